"""Low-rank product-of-experts kernels: truncated SVD, bridges with a sign guard, Nyström (DAC-10, EOT-10).

A truncated kernel need not be positive. If some of its entries are negative, there may be no coupling for it.
All functions here look for negative entries and report them; see ``solve_factored``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import Backend, backend_of
from ._config import resolve_threads
from ._factor_batches import Found, together
from ._factored_bridge import (
    CompressionErrors,
    FactoredBridge,
    compression_errors,
    solve_factored,
)
from ._factors import PAIR, Factored, LowRank, NegativeEntries, ProductOfFactors
from ._features import nystrom, positive_features
from ._host import HOST
from ._lazy_scores import Real, Scores
from .operators import KernelOperator, MarkovOperator, kernel

__all__ = [
    "CompressionErrors",
    "Factored",
    "FactoredBridge",
    "LowRank",
    "NegativeEntries",
    "ProductOfFactors",
    "compression_errors",
    "low_rank",
    "nystrom",
    "positive_features",
    "solve_factored",
]

# Matrices with at most this many rows or columns are decomposed by LAPACK, in double precision.
DENSE_UP_TO = 1024
_METHODS = ("auto", "dense", "svds", "randomised")
# Singular values whose relative difference is smaller than this count as equal up to rounding.
_EQUAL = 1e-9
# The randomised method stops when the relative change of the singular values is smaller than this.
_SETTLED = {4: 1e-5, 8: 1e-9}


def low_rank(
    A: MarkovOperator | KernelOperator | npt.ArrayLike,
    rank: int,
    *,
    method: str = "auto",
    nonnegative: bool = False,
    keep_pairs: bool = False,
    rng: int | np.random.Generator = 0,
    n_oversamples: int = 10,
    max_iter: int | None = None,
    n_threads: int | None = None,
) -> LowRank:
    """The truncated SVD of an operator or array as two factors (DAC-10, D.1).

    :math:`A \\approx (U_r \\Sigma_r^{1/2})(\\Sigma_r^{1/2} V_r^\\top)`, the best approximation of rank r in
    the Frobenius norm. ``method``:

    - "auto": "dense" up to 1024 rows or columns, "randomised" for larger operators.
    - "dense": LAPACK's decomposition of the array, in double precision.
    - "svds": SciPy's svds (ARPACK) through products; singular values below sqrt(eps) s_1 are noise.
    - "randomised": a range finder with ``n_oversamples`` extra directions, followed by subspace iterations
      until the singular values settle (at most ``max_iter``, default 30). It uses products with many
      right-hand sides and O((N + M) r) memory. ``rng`` determines its random numbers.

    If the truncation separates equal singular values, the factors are not unique, and figures can depend on
    the choice (erratum 11). The result says so (``cut_gap``, ``cuts_pair``). ``keep_pairs=True`` lowers the
    rank until no equal values are separated.

    ``nonnegative=True`` gives non-negative factors instead, for operators without negative entries. They are
    computed by hierarchical alternating least squares (at most ``max_iter`` sweeps, default 500), which start
    from the positive parts of the SVD. The error is larger (see ``error``), but no entry can be negative, so
    that a bridge exists.

    For a batch the factors have the axes of the batch, every problem is factored independently, and figures
    are arrays. For an operator on a device the factors are there too: products are computed on the device,
    and small matrices are decomposed on the host.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import low_rank
    >>> t = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    >>> A = qk.softmax(qk.scores.distance(np.c_[np.cos(t), np.sin(t)]))
    >>> low_rank(A, 7)
    LowRank(shape=(100, 100), rank=7, dtype=float64, dense)
    >>> low_rank(A, 8)  # sines and cosines come in pairs
    LowRank(shape=(100, 100), rank=8, dtype=float64, dense, cuts a pair of singular values)
    >>> low_rank(A, 8, keep_pairs=True).rank
    7
    >>> float(round(low_rank(A, 7).relative_error(A), 6))
    0.021747
    """
    if isinstance(A, Factored):
        raise TypeError("A: wanted an exact operator or array, got one that is already factored")
    shape = _checks.array_shape("A", A)
    _checks.factor_shape("A", shape)
    most = min(shape[-2:])
    r = _checks.integer_within("rank", rank, 1, most, "a matrix has no more singular values")
    _checks.one_of("method", method, _METHODS)
    if max_iter is not None:
        _checks.count("max_iter", max_iter)
    extra = _checks.count("n_oversamples", n_oversamples)
    settings = _Settings(
        r, method, nonnegative, keep_pairs, rng, extra, max_iter, resolve_threads(n_threads)
    )
    s = A.scores if isinstance(A, (MarkovOperator, KernelOperator)) else A
    b = s.backend if isinstance(s, Scores) else backend_of(A)
    given, source = _with_host_vectors(A, b)
    batch = given.shape[:-2]
    _checks.not_empty("A", np.broadcast_to(np.int8(0), shape))
    found = [_one(given[k] if batch else given, settings) for k in np.ndindex(batch)]
    return together(found, batch, b, source)


class _Settings(NamedTuple):
    rank: int
    method: str
    nonnegative: bool
    keep_pairs: bool
    rng: int | np.random.Generator
    extra: int
    max_iter: int | None
    n_threads: int


def _with_host_vectors(A: Any, b: Backend) -> tuple[Any, Any]:
    """The operator or array in a form that takes NumPy vectors, and the source that the factors keep.

    The products of an operator on a device are still computed there.
    """
    if isinstance(A, (MarkovOperator, KernelOperator)):
        return A._with_host_vectors(), A
    if isinstance(A, Scores):
        array = kernel(A).to_numpy()
    else:
        array = HOST.factor("A", b.here("A", A))
    return array, array


def _one(A: Any, settings: _Settings) -> Found:
    """The factors of one operator or array."""
    r, method = settings.rank, settings.method
    products = _Products(A, settings.n_threads)
    shape = products.shape
    if method == "auto":
        method = "dense" if min(shape) <= DENSE_UP_TO else "randomised"
    # One more singular value than wanted, to see whether the truncation separates equal ones.
    k = min(r + 1, *shape)
    if method == "dense":
        array = products.array().astype(np.float64)
        U, s, Vt = np.linalg.svd(array, full_matrices=False)
        dtype, products = products.dtype, _Products(array, settings.n_threads)
        products.dtype = dtype
        U, Vt = _same_basis_everywhere(U, s, Vt, k)
        U, s, Vt = U[:, :k], s[:k], Vt[:k]
    elif method == "svds":
        U, s, Vt = _svds(products, k)
    else:
        size = min(r + settings.extra, *shape)
        start = np.random.default_rng(settings.rng).standard_normal((shape[1], size))
        most = 30 if settings.max_iter is None else settings.max_iter
        U, s, Vt = _randomised(products, start, k, most)
    signs = np.sign(
        U[np.argmax(np.abs(U) > (1 - 1e-6) * np.abs(U).max(axis=0), axis=0), np.arange(len(s))]
    )
    signs[signs == 0] = 1
    U, Vt = U * signs, Vt * signs[:, None]
    if settings.keep_pairs:
        while r < len(s) and r >= 1 and _gap(s, r) < PAIR:
            r -= 1
        if r == 0:
            raise ValueError(
                f"keep_pairs: wanted a gap among the first {settings.rank} singular values, got all of "
                "them equal; raise the rank, or pass keep_pairs=False"
            )
    gap = _gap(s, r)
    root = np.sqrt(s[:r])
    left, right = U[:, :r] * root, root[:, None] * Vt[:r]
    dtype = products.dtype
    if settings.nonnegative:
        left, right = _hals(
            products, left, right, 500 if settings.max_iter is None else settings.max_iter
        )
        left, right = left.T.astype(dtype), right.astype(dtype)
        error = LowRank(left.T, right).relative_error(A)
        return Found(left, right, "nonnegative", None, math.nan, error)
    return Found(left.T.astype(dtype), right.astype(dtype), method, s[:r].astype(dtype), gap)


def _same_basis_everywhere(U: Real, s: Real, Vt: Real, k: int) -> tuple[Real, Real]:
    """The first k singular vectors, with a basis that does not depend on LAPACK if singular values are equal.

    The vectors of equal singular values may be any orthonormal basis of their space, and LAPACK's choice
    differs between processors. Here the basis comes from fixed vectors that are projected onto the space.
    """
    U, Vt = U.copy(), Vt.copy()
    start = 0
    while start < k:
        stop = start + 1
        while stop < len(s) and s[stop] > (1 - _EQUAL) * s[stop - 1] > 0:
            stop += 1
        if stop - start > 1:
            angles = np.outer(np.arange(1, len(U) + 1), np.sqrt(2.0) + np.arange(stop - start))
            Q, R = np.linalg.qr(U[:, start:stop].T @ np.cos(angles))
            Q *= np.where(np.diag(R) < 0, -1.0, 1.0)
            U[:, start:stop] = U[:, start:stop] @ Q
            Vt[start:stop] = Q.T @ Vt[start:stop]
        start = stop
    return U, Vt


def _gap(s: Real, r: int) -> float:
    """1 - s_{r+1} / s_r, or 1 if the truncation removes nothing."""
    if r >= len(s) or s[r - 1] <= 0:
        return 1.0
    return float(1 - s[r] / s[r - 1])


class _Products:
    """Products of an operator or array with many vectors at a time; they take and return float64."""

    def __init__(self, source: Any, n_threads: int) -> None:
        self.source = source
        self.n_threads = n_threads
        self.dtype: np.dtype[Any] = source.dtype
        self.shape: tuple[int, int] = source.shape

    def array(self) -> Real:
        out: Real = self.source if isinstance(self.source, np.ndarray) else self.source.to_numpy()
        return out

    def right(self, V: Real) -> Real:
        """A V"""
        return self._apply(self.source, V)

    def left(self, U: Real) -> Real:
        """A^T U"""
        return self._apply(self.source.T, U)

    def _apply(self, A: Any, V: Real) -> Real:
        if isinstance(A, np.ndarray):
            out: Real = A @ V
        else:
            out = A.apply(np.ascontiguousarray(V, self.dtype), n_threads=self.n_threads)
        return out.astype(np.float64, copy=False)


def _svds(A: _Products, k: int) -> tuple[Real, Real, Real]:
    from scipy.sparse.linalg import LinearOperator, svds

    n, m = A.shape
    if k >= min(n, m):
        raise ValueError(
            f'rank: wanted less than {min(n, m) - 1} for method "svds", got {k - 1}; use "dense"'
        )
    operator = LinearOperator(
        (n, m),
        matvec=lambda x: A.right(x.reshape(m, 1))[:, 0],
        rmatvec=lambda x: A.left(x.reshape(n, 1))[:, 0],
        dtype=np.dtype(np.float64),
    )
    start = 1 + 0.5 * np.cos(np.arange(min(n, m)))
    U, s, Vt = svds(operator, k=k, v0=start, solver="arpack")
    order = np.argsort(s)[::-1]
    return U[:, order], s[order], Vt[order]


def _randomised(A: _Products, start: Real, k: int, max_iter: int) -> tuple[Real, Real, Real]:
    """Subspace iteration on A A^T from A @ start, orthonormalised at every half-step."""
    Q = np.linalg.qr(A.right(start))[0]
    before = np.zeros(k)
    settled = _SETTLED[A.dtype.itemsize]
    for _ in range(max_iter):
        B = A.left(Q)  # A^T Q: its singular values approach A's from below
        V, s, Wt = np.linalg.svd(B, full_matrices=False)
        if np.all(np.abs(s[:k] - before) <= settled * s[0]):
            break
        before = s[:k].copy()
        Q = np.linalg.qr(A.right(V))[0]
    else:
        V, s, Wt = np.linalg.svd(A.left(Q), full_matrices=False)
    return (Q @ Wt.T)[:, :k], s[:k], V.T[:k]


def _hals(A: _Products, left: Real, right: Real, sweeps: int) -> tuple[Real, Real]:
    """Non-negative L, R with small |A - L R|_F, by exact minimisation over one component at a time.

    The start is the larger of the positive and the negative part of each singular pair (NNDSVD). Zeros are
    replaced by small numbers, because zeros would never change.
    """
    if isinstance(A.source, np.ndarray) and A.source.min() < 0:
        raise ValueError(f"A: wanted entries >= 0 for nonnegative=True, got {A.source.min():.3g}")
    L, R = np.empty_like(left), np.empty_like(right)
    for c in range(left.shape[1]):
        parts = []
        for sign in (1, -1):
            x, y = np.maximum(sign * left[:, c], 0), np.maximum(sign * right[c], 0)
            parts.append((float(np.linalg.norm(x) * np.linalg.norm(y)), x, y))
        # If both parts have the same size up to rounding, the positive one is taken.
        size, x, y = parts[1] if parts[1][0] > (1 + 1e-6) * parts[0][0] else parts[0]
        size = size or 1.0
        x_norm, y_norm = np.linalg.norm(x) or 1.0, np.linalg.norm(y) or 1.0
        L[:, c], R[c] = x * math.sqrt(size) / x_norm, y * math.sqrt(size) / y_norm
    floor = 1e-2
    L, R = np.maximum(L, floor * L.mean()), np.maximum(R, floor * R.mean())
    tiny = float(np.finfo(A.dtype).eps)
    before = math.inf
    for sweep in range(sweeps):
        L = _hals_side(L, A.right(R.T), R @ R.T, tiny)
        AtL = A.left(L)
        R = _hals_side(R.T, AtL, L.T @ L, tiny).T
        if sweep % 5 == 4:  # |A - LR|^2 - |A|^2
            now = float(np.sum((L.T @ L) * (R @ R.T)) - 2 * np.sum(AtL.T * R))
            if before - now <= 1e-7 * abs(now):
                break
            before = now
    return L, R


def _hals_side(L: Real, AR: Real, gram: Real, tiny: float) -> Real:
    """Minimises over the columns of L in turn, each non-negative, while the others are fixed."""
    L = L.copy()
    for c in range(L.shape[1]):
        weight = gram[c, c]
        if weight <= 0:
            continue
        column = L[:, c] + (AR[:, c] - L @ gram[:, c]) / weight
        # Entries are kept slightly above 0, because a component that is 0 would never change again.
        L[:, c] = np.maximum(column, tiny * max(float(column.max()), tiny))
    return L
