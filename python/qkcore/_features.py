"""Factors without an SVD: Nyström's method from landmarks, positive random features (EOT-10, DAC-10)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from . import _checks
from ._factor_batches import Found, together
from ._factors import LowRank
from ._lazy_scores import Real, Scores
from .operators import KernelOperator, MarkovOperator, kernel

__all__ = ["nystrom", "positive_features"]

_LANDMARKS = ("uniform", "kmeans++", "leverage")
_Index = npt.NDArray[np.int64]


def nystrom(
    K: Scores | KernelOperator | MarkovOperator,
    n_landmarks: int | None = None,
    *,
    method: str = "kmeans++",
    rank: int | None = None,
    rng: int | np.random.Generator = 0,
) -> LowRank:
    """Nyström's approximation of a symmetric kernel from points (EOT-10).

    :math:`K \\approx C W^+ C^\\top` for the columns C of K at R landmarks and the block W of C at their
    rows, as factors :math:`F F^\\top` with :math:`F = C U \\Lambda^{-1/2}` from the eigenpairs of W above
    :math:`R \\epsilon \\lambda_{max}`. O(N R) entries of K are computed, O(N R) memory. ``K`` is scores
    (for their exponential), a kernel with weight "exp", or a symmetric bistochastic operator.

    ``n_landmarks`` is min(1000, N / 10) by default (EOT-10). ``method``: "uniform"; "kmeans++"
    (each landmark drawn with probability proportional to the squared distance, in the kernel's
    own feature space, from those before); "leverage" (recursive ridge leverage scores, Musco and
    Musco 2017). ``rank`` cuts the result to its best approximation of that rank.

    For a batch the factors have its batch axes, and ranks that differ are made equal by components of 0. For
    scores on a device the factors are on the device; the landmarks are chosen on the host.

    The approximation is positive semidefinite, but its entries can be negative: ``qk.bridge`` checks
    their signs, as for every factored kernel.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import nystrom
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> s = qk.scores.distance(X, beta=0.1)
    >>> F = nystrom(s, 40)
    >>> bool(F.relative_error(s) < 1e-3)
    True
    """
    s = _symmetric_logits(K)
    n = s.n_rows
    count = (
        max(1, min(1000, n // 10))
        if n_landmarks is None
        else _checks.integer("n_landmarks", n_landmarks)
    )
    if not 1 <= count <= n:
        raise ValueError(f"n_landmarks: wanted an integer from 1 to {n}, got {n_landmarks}")
    _checks.one_of("method", method, _LANDMARKS)
    if rank is not None and not 1 <= _checks.integer("rank", rank) <= count:
        raise ValueError(f"rank: wanted an integer from 1 to {count}, the landmarks, got {rank}")

    def factors(one: Scores) -> Found:
        at = _landmarks(one, count, method, np.random.default_rng(rng))
        C = _entries(one, None, at)
        W = C[at]
        values, vectors = np.linalg.eigh((W + W.T) / 2)
        eps = float(np.finfo(s.dtype).eps)
        kept = values > count * eps * values[-1]
        F = C @ (vectors[:, kept] / np.sqrt(values[kept]))
        if rank is not None and rank < F.shape[1]:
            U, sizes, _ = np.linalg.svd(F, full_matrices=False)
            F = U[:, :rank] * sizes[:rank]
        F = np.ascontiguousarray(F.T.astype(s.dtype))
        return Found(F, F, f"Nyström, {count} landmarks, {method}")

    return _each(s, factors, kernel(s))


def _each(s: Scores, factors: Callable[[Scores], Found], source: object) -> LowRank:
    """The factors of every problem, computed from NumPy arrays and moved to the backend of the scores."""
    here, batch = s.backend.visited(s), s.batch
    found = [factors(here[k] if batch else here) for k in np.ndindex(batch)]
    return together(found, batch, s.backend, source)


def positive_features(
    K: Scores | KernelOperator | MarkovOperator,
    n_features: int,
    *,
    rng: int | np.random.Generator = 0,
) -> LowRank:
    """Positive random features of an exponential kernel: factors without a negative entry (DAC-10).

    :math:`e^{x\\cdot y} = E_w\\, e^{w\\cdot x - |x|^2/2}\\, e^{w\\cdot y - |y|^2/2}` for
    a standard normal w (FAVOR+), with blocks of orthogonal w. The estimate is unbiased and entrywise
    positive, so that a bridge over it always exists. The relative error of an entry is about
    :math:`\\sqrt{(e^{|x + y|^2} - 1) / m}` for m features and centred points x, y (scaled by the root of
    beta), so it is small only for moderate scores, and falls slowly with m. ``K`` may consist of dot,
    forward, backward and distance scores and their sums, shifted or normalised, without masks and dense
    terms. Batches and scores on a device are treated as in :func:`nystrom`.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import positive_features
    >>> X = 0.3 * np.random.default_rng(0).normal(size=(200, 2))
    >>> s = qk.scores.distance(X)
    >>> G = positive_features(s, 500)
    >>> G.nonnegative, bool(G.relative_error(s) < 0.05)
    (True, True)
    """
    s = _point_logits("K", K)
    m = _checks.count("n_features", n_features)
    source = K if isinstance(K, (KernelOperator, MarkovOperator)) else kernel(s)
    return _each(s, lambda one: _positive(one, m, rng), source)


def _positive(s: Scores, m: int, rng: int | np.random.Generator) -> Found:
    n, k = s.shape
    xs, ys = [], []
    row, col = np.zeros(n), np.zeros(k)
    for x, y, beta in s.terms.dots:
        x, y = (z.astype(np.float64) * math.sqrt(beta) for z in (x, y))
        # <x, y> = <x - a, y - b> + <x, b> + <a, y> - <a, b>: the variance is least for centred points.
        a, b = x.mean(axis=0), y.mean(axis=0)
        row += x @ b
        col += y @ a - float(a @ b)
        xs.append(x - a)
        ys.append(y - b)
    for x, y, beta, n_negative, power in s.terms.distances:
        if power != 2:
            raise ValueError(
                "K: wanted dot products and squared distances, got distances of the power "
                f"{power}; use low_rank(K, rank) or nystrom"
            )
        if n_negative:
            raise ValueError("K: wanted a positive metric W, got an indefinite one")
        centre = (x.mean(axis=0, dtype=np.float64) + y.mean(axis=0, dtype=np.float64)) / 2
        x, y = ((z.astype(np.float64) - centre) * math.sqrt(2 * beta) for z in (x, y))
        row -= np.square(x).sum(axis=1) / 2
        col -= np.square(y).sum(axis=1) / 2
        xs.append(x)
        ys.append(y)
    row += np.sum([r.astype(np.float64) for r in s.terms.row_bias], axis=0)
    col += np.sum([c.astype(np.float64) for c in s.terms.col_bias], axis=0)
    X, Y = np.hstack(xs), np.hstack(ys)
    w = _orthogonal_gaussian(m, X.shape[1], np.random.default_rng(rng))
    left = X @ w.T + (row - np.square(X).sum(axis=1) / 2)[:, None] - math.log(m)
    right = Y @ w.T + (col - np.square(Y).sum(axis=1) / 2)[:, None]
    # A factor is moved from one side to the other, so that neither side overflows.
    shift = (float(left.max()) - float(right.max())) / 2
    left, right = left - shift, right + shift
    largest = float(np.finfo(s.dtype).maxexp) * math.log(2) / 2
    F = np.exp(np.minimum(left, largest)).astype(s.dtype)
    H = np.exp(np.minimum(right, largest)).astype(s.dtype)
    overflows = max(float(left.max()), float(right.max())) >= largest
    if overflows or not (F.any(axis=1).all() and H.any(axis=1).all()):
        raise OverflowError(
            "K: wanted moderate scores, got scores whose features leave the range of "
            f"{s.dtype}; scale the points or beta down, or use low_rank(..., nonnegative=True)"
        )
    return Found(np.ascontiguousarray(F.T), np.ascontiguousarray(H.T), f"{m} positive features")


def _orthogonal_gaussian(m: int, d: int, rng: np.random.Generator) -> Real:
    """m standard normal vectors, orthogonal within blocks of d, which reduces the variance without bias."""
    blocks = [
        np.linalg.qr(rng.standard_normal((d, d)))[0] * np.sign(rng.standard_normal(d))
        for _ in range(-(-m // d))
    ]
    directions = np.concatenate(blocks)[:m]
    lengths = np.sqrt(rng.chisquare(d, size=m))
    out: Real = lengths[:, None] * directions
    return out


# ---- landmarks ----------------------------------------------------------------------------------


def _landmarks(s: Scores, count: int, method: str, rng: np.random.Generator) -> _Index:
    n = s.shape[0]
    if count == n:
        return np.arange(n)
    if method == "uniform":
        return np.sort(rng.choice(n, count, replace=False))
    found = _seeding(s, count, rng) if method == "kmeans++" else _leverage(s, count, rng)
    return np.sort(found)


def _seeding(s: Scores, count: int, rng: np.random.Generator) -> _Index:
    diagonal = _diagonal(s)
    chosen = [int(rng.integers(len(diagonal)))]
    distance = np.full(len(diagonal), np.inf)
    for _ in range(count - 1):
        at = chosen[-1]
        column = _entries(s, None, np.array([at]))[:, 0]
        distance = np.minimum(distance, np.maximum(diagonal + diagonal[at] - 2 * column, 0))
        distance[chosen] = 0
        total = distance.sum()
        if total <= 0:  # all other points coincide with landmarks
            rest = np.setdiff1d(np.arange(len(diagonal)), chosen)
            chosen.append(int(rng.choice(rest)))
            continue
        chosen.append(
            int(np.searchsorted(np.cumsum(distance), rng.uniform(0, total), side="right"))
        )
        chosen[-1] = min(chosen[-1], len(diagonal) - 1)
    return np.array(chosen)


def _leverage(s: Scores, count: int, rng: np.random.Generator) -> _Index:
    """Recursive ridge leverage scores: each level samples from twice as many points as the last."""
    n = s.shape[0]
    order = rng.permutation(n)
    sizes = [n]
    while sizes[-1] > 2 * count:
        sizes.append(-(-sizes[-1] // 2))
    over = max(1.0, math.log(count))
    k = max(1, math.ceil(count / (4 * over)))
    at = order[: sizes[-1]]
    if len(at) > count:
        at = at[:count]
    weights = np.ones(len(at))
    diagonal = _diagonal(s)
    for level in range(len(sizes) - 1, -1, -1):
        pool = order[: sizes[level]]
        KS = _entries(s, pool, at)
        SKS = _entries(s, at, at)
        weighted = SKS * weights[:, None] * weights
        values = np.linalg.eigvalsh((weighted + weighted.T) / 2)
        ridge = float(values[:-k].sum()) / k if k < len(values) else 0.0
        ridge = max(ridge, 1e-10 * float(values[-1]))
        solved = np.linalg.solve(SKS + np.diag(ridge / weights**2), KS.T)
        score = np.maximum(diagonal[pool] - np.einsum("ij,ji->i", KS, solved), 0) / ridge
        score = np.maximum(score, 1e-12 * max(float(score.max()), 1e-300))
        if level == 0:
            return rng.choice(pool, count, replace=False, p=score / score.sum())
        keep = np.minimum(1.0, over * score)
        drawn = rng.uniform(size=len(pool)) < keep
        if not drawn.any():
            drawn[int(np.argmax(score))] = True
        at, weights = pool[drawn], 1 / np.sqrt(keep[drawn])
    raise AssertionError("the last level returns")


# ---- entries of kernels from points -------------------------------------------------------------


def _point_logits(name: str, K: object) -> Scores:
    if isinstance(K, Scores):
        s = K
    elif isinstance(K, MarkovOperator):
        s = K.log_weights
    elif isinstance(K, KernelOperator) and K.weight == "exp":
        s = K.scores
    else:
        what = f"weight {K.weight!r}" if isinstance(K, KernelOperator) else type(K).__name__
        raise TypeError(
            f'{name}: wanted scores or a kernel with weight "exp" from points, got {what}'
        )
    if s.terms.offsets is not None or s.terms.masks or s.terms.banded:
        raise ValueError(f"{name}: wanted a kernel without masks or ragged blocks, got {s!r}")
    if s.terms.dense or not (s.terms.dots or s.terms.distances):
        raise ValueError(
            f"{name}: wanted scores from points, got {s!r}; for an array use low_rank(array, rank)"
        )
    return s


def _symmetric_logits(K: object) -> Scores:
    s = _point_logits("K", K)
    if not s.symmetric:
        raise ValueError(
            "K: wanted a symmetric kernel (scores of X against X), got one that is not known to be; "
            "use low_rank(operator, rank)"
        )
    return s


def _entries(s: Scores, rows: _Index | None, cols: _Index | None) -> Real:
    """exp(s) at some rows and columns, in double."""
    some = s if rows is None else s.T.columns(rows).T
    some = some if cols is None else some.columns(cols)
    return np.asarray(kernel(some).to_numpy(), np.float64)


def _diagonal(s: Scores) -> Real:
    """exp(s_ii), in double."""
    out = np.zeros(s.shape[0])
    for x, y, c in s.terms.dots:
        out += c * np.einsum("ij,ij->i", x, y, dtype=np.float64)
    for bias in (*s.terms.row_bias, *s.terms.col_bias):
        out += bias
    return np.exp(out)
