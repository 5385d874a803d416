"""Optimal transport between clouds and histograms: distances, divergences, barycentres, c-transforms.

============================== ======================================================================
``wasserstein(X, Y)``          :math:`W_p` between clouds: exact, or an entropic estimate on request
``sinkhorn_divergence(X, Y)``  :math:`S_\\epsilon`, the debiased entropic cost: 0 only for equal laws
``barycenter(s, laws)``        the histogram nearest to several histograms on a fixed support
``free_barycenter(clouds)``    the cloud nearest to several clouds; its points move
``c_transform(s, g)``          the largest f with f_i + s_ij + g_j <= 0
============================== ======================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._checks import particles as checks
from ._convergence import ConvergenceError, ConvergenceWarning, on_fail_option
from ._lazy_scores import Real, Scores
from ._transport import cost_scores, mass_of, wasserstein
from ._words import Ended
from .bridges import bridge
from .operators import scores_argument

__all__ = [
    "Barycenter",
    "barycenter",
    "c_transform",
    "free_barycenter",
    "sinkhorn_divergence",
    "wasserstein",
]


def sinkhorn_divergence(
    X: npt.ArrayLike,
    Y: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    weights_y: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    p: float = 2.0,
    penalty: float | None = None,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> float:
    r"""The debiased entropic cost between clouds X (N, d) and Y (M, d) for the cost :math:`|x-y|^p`.

    .. math:: S_\epsilon = OT_\epsilon(\mu,\nu) - \tfrac12 OT_\epsilon(\mu,\mu) - \tfrac12
       OT_\epsilon(\nu,\nu), \quad OT_\epsilon(\mu,\nu) = \min_\pi \int |x-y|^p\,d\pi + \epsilon\,
       \mathrm{KL}(\pi\|\mu\otimes\nu).

    It is 0 for equal laws and positive for others (p = 1 or 2). It tends to :math:`W_p^p` for epsilon to 0,
    and for p = 2 to the squared distance of the means for epsilon to infinity. With ``penalty`` the plan need
    not meet the marginals, but ``penalty`` times the KL divergences is added to the cost. Then the masses may
    differ, and :math:`\tfrac\epsilon2 (m_\mu - m_\nu)^2` is added. The memory is O(N + M) for p = 2, and a
    matrix of costs for other p. ``tol``, ``max_iter`` and ``max_visits`` are used for each of the three
    bridges (:func:`bridge`).

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0], [1.0]])
    >>> round(qk.sinkhorn_divergence(X, X + 2.0, epsilon=0.1), 6)
    4.0
    """
    fails = on_fail_option(on_fail)
    x, y = (checks.one_cloud(name, a) for name, a in (("X", X), ("Y", Y)))
    if x.dtype != y.dtype:
        x, y = x.astype(np.float64), y.astype(np.float64)
    _checks.same_space("Y", y.shape[1], x.shape[1], "X")
    temperature = _checks.positive("epsilon", epsilon)
    price = None if penalty is None else _checks.positive("penalty", penalty)
    power = _checks.above("p", p, 0)
    laws = [
        mass_of(name, w, len(z), keep=price is not None)
        for name, w, z in (("weights", weights, x), ("weights_y", weights_y, y))
    ]

    def entropic(i: int, j: int) -> float:
        pair = (x, y)
        mu, nu = laws[i].astype(x.dtype), laws[j].astype(x.dtype)
        with np.errstate(divide="ignore"):
            log_mu = np.log(mu)
            log_nu = log_mu if i == j else np.log(nu)
        s = cost_scores(pair[i], pair[j], power, temperature).shift(rows=log_mu, columns=log_nu)
        b = bridge(
            s,
            mu,
            nu,
            penalty=None if price is None else price / temperature,
            tol=tol,
            max_iter=max_iter,
            max_visits=max_visits,
            on_fail=fails,
            n_threads=n_threads,
        )
        # The bridge's dual value is the dual value of <c, pi> / epsilon + KL(pi | mu x nu), minus the mass of
        # mu x nu.
        product = float(mu.sum(dtype=np.float64)) * float(nu.sum(dtype=np.float64))
        return temperature * (float(b.dual) + product)

    gap = float(laws[0].sum()) - float(laws[1].sum())
    own = 0.5 * entropic(0, 0) + 0.5 * entropic(1, 1)
    return entropic(0, 1) - own + (0.0 if price is None else 0.5 * temperature * gap * gap)


def c_transform(
    s: Scores, g: npt.ArrayLike | None = None, axis: int = 1, *, n_threads: int | None = None
) -> Real:
    r"""The c-transform :math:`f_i = -\max_j (s_{ij} + g_j)` over rows (axis 1) or over columns (axis 0).

    With scores :math:`-c_{ij}/\epsilon` it is :math:`\min_j (c_{ij} - \epsilon g_j)/\epsilon`. It is the
    largest potential for which every :math:`f_i + s_{ij} + g_j` is at most 0, and the limit of a Sinkhorn
    update at low temperature. It is +inf for a row whose entries are all masked.

    >>> import numpy as np, qkcore as qk
    >>> s = qk.scores.dense(-np.array([[0.0, 2.0], [1.0, 5.0]]))
    >>> qk.c_transform(s, np.array([0.0, 3.0]))
    array([-1.,  1.])
    """
    rows = scores_argument(s)
    rows = rows if _checks.axis(axis) == 1 else rows.T
    if g is not None:
        rows = rows.shift(columns=g)
    return -rows.max(1, n_threads=n_threads)


# ---- barycentres ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Barycenter(Ended):
    """A barycentre and how the iteration ended."""

    weights: Real = field(repr=False)
    """masses of its points; their sum is 1"""
    points: Real | None = field(repr=False)
    """the points of a free support; None for a fixed support"""
    status: str
    """"converged" or "iteration limit" """
    n_iter: int
    error: float
    """largest L1 distance between a law and the marginal of its coupling; for a free support, how far points
    moved in the last step, as a share of the spread"""

    @property
    def converged(self) -> bool:
        """Whether the error is within ``tol``."""
        return self.status == "converged"


def barycenter(
    s: Scores,
    laws: npt.ArrayLike,
    shares: npt.ArrayLike | None = None,
    *,
    debiased: bool = True,
    tol: float | None = None,
    max_iter: int = 10_000,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> Barycenter:
    r"""The histogram :math:`q` with the least :math:`\sum_k \lambda_k OT(p_k, q)` on a fixed support.

    ``s``: symmetric scores -cost / epsilon of the support against itself, (N, N). ``laws``: histograms
    (K, N). ``shares``: the :math:`\lambda` (K,), by default all equal. The method is iterated projections of
    logarithms; in each iteration every side takes one visit for all laws. A plain entropic barycentre is
    blurred by about :math:`\sqrt\epsilon`. ``debiased`` replaces OT by the Sinkhorn divergence, which does
    not blur. ``tol`` bounds the L1 error of all marginals (default 1e-6, in float32 1e-4).

    >>> import numpy as np, qkcore as qk
    >>> x = np.linspace(0, 1, 11)[:, None]
    >>> q = qk.barycenter(qk.scores.distance(x, beta=200.0), np.eye(11)[[2, 6]])
    >>> int(q.weights.argmax()), bool(q.weights.max() > 0.99)
    (4, True)
    """
    fails = on_fail_option(on_fail)
    kernel = scores_argument(s)
    n = kernel.shape[0]
    if kernel.shape != (n, n) or not _looks_symmetric(kernel, n_threads):
        raise ValueError(
            f"s: wanted symmetric scores (N, N) of the support against itself, got {kernel!r}"
        )
    given = _checks.converted("laws", laws, kernel.dtype, "the scores")
    _checks.shape("laws", given.shape, ("K", n), why="with one histogram a row")
    for k, one in enumerate(given):
        _checks.masses(f"laws[{k}]", one)
    wide = given.astype(np.float64)
    wide /= wide.sum(axis=1, keepdims=True)
    lam = _shares(shares, len(wide))
    limit = (
        (1e-6 if kernel.dtype == np.float64 else 1e-4)
        if tol is None
        else _checks.positive("tol", tol)
    )
    most = _checks.integer_within("max_iter", max_iter, 1, 2**62, "an iteration at least")

    def lse(potentials: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        shifted = kernel.shift(columns=potentials.astype(kernel.dtype))
        return shifted.logsumexp(n_threads=n_threads).astype(np.float64)

    with np.errstate(divide="ignore"):
        log_laws = np.log(wide)
    g, d = np.zeros_like(wide), np.zeros(n)
    rows = lse(g)
    error, steps = math.inf, 0
    while steps < most and error > limit:
        steps += 1
        f = log_laws - rows
        h = lse(f)
        log_q = lam @ h + d
        # d is such that exp(d_i + s_ij + d_j) has the marginal q. This is the plan of q to itself, whose cost
        # the Sinkhorn divergence subtracts.
        own = lse(d) if debiased else np.zeros(n)
        off = float(np.abs(np.exp(d + own) - np.exp(log_q)).sum()) if debiased else 0.0
        if debiased:
            d = 0.5 * (d + log_q - own)
        g = log_q - h
        rows = lse(g)
        with np.errstate(invalid="ignore"):
            found = np.where(np.isneginf(log_laws), 0.0, np.exp(f + rows))
        error = max(off, float(np.abs(found - wide).sum(axis=1).max()))
    q = np.exp(log_q)
    status = "converged" if error <= limit else "iteration limit"
    _report("barycenter", status, steps, error, limit, fails)
    weights = (q / q.sum()).astype(kernel.dtype)
    return Barycenter(weights, None, status, steps, error)


def _looks_symmetric(s: Scores, n_threads: int | None) -> bool:
    """Whether scores are symmetric by construction, or have equal weighted sums of rows and of columns."""
    if s.symmetric:
        return True
    tilt = np.cos(np.arange(s.n_cols)).astype(s.dtype)
    rows, columns = (x.shift(columns=tilt).logsumexp(n_threads=n_threads) for x in (s, s.T))
    return bool(np.allclose(rows, columns, rtol=1e-4, atol=1e-4))


def free_barycenter(
    clouds: Sequence[npt.ArrayLike],
    start: npt.ArrayLike,
    shares: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    weights: Sequence[npt.ArrayLike] | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> Barycenter:
    r"""The cloud of equal weights that minimises :math:`\sum_k \lambda_k OT_\epsilon(X, Y_k)` for |x - y|^2.

    The points begin at ``start`` (N, d). Every step moves each point to the mean of its barycentric
    projections onto the clouds (Cuturi and Doucet 2014), until points move by less than ``tol`` times the
    spread. ``shares`` are the :math:`\lambda`, by default all equal; ``weights`` has the weights of every
    cloud.

    >>> import numpy as np, qkcore as qk
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> found = qk.free_barycenter([X, X + 2.0], X, epsilon=0.01)
    >>> bool(np.abs(found.points - (X + 1.0)).max() < 0.1)
    True
    """
    fails = on_fail_option(on_fail)
    _checks.some("clouds", len(clouds), 1, "cloud")
    x = np.array(checks.one_cloud("start", start))
    targets = [checks.one_cloud(f"clouds[{k}]", y) for k, y in enumerate(clouds)]
    for k, y in enumerate(targets):
        if y.shape[1] != x.shape[1] or y.dtype != x.dtype:
            raise ValueError(
                f"clouds[{k}]: wanted dimension {x.shape[1]} and {x.dtype} like start, got shape {y.shape} "
                f"and {y.dtype}"
            )
    given = [None] * len(targets) if weights is None else list(weights)
    checks.count_matches("weights", len(given), len(targets))
    laws = [
        mass_of(f"weights[{k}]", w, len(y)).astype(x.dtype)
        for k, (w, y) in enumerate(zip(given, targets, strict=True))
    ]
    lam = _shares(shares, len(targets))
    beta = 1 / _checks.positive("epsilon", epsilon)
    limit = _checks.positive("tol", tol)
    most = _checks.integer_within("max_iter", max_iter, 1, 2**62, "a step at least")
    spread = max(float(np.concatenate(targets).std()), float(np.finfo(x.dtype).tiny))
    inits: list[Any] = [None] * len(targets)
    error, steps = math.inf, 0
    while steps < most and error > limit:
        steps += 1
        moved = np.zeros(x.shape)
        for k, (y, nu) in enumerate(zip(targets, laws, strict=True)):
            b = bridge(
                scores.distance(x, y, beta=beta),
                None,
                nu,
                init=inits[k],
                on_fail=fails,
                n_threads=n_threads,
            )
            inits[k] = b
            moved += lam[k] * b.project(y)
        error = float(np.abs(moved - x).max()) / spread
        x = moved.astype(x.dtype)
    status = "converged" if error <= limit else "iteration limit"
    _report("free_barycenter", status, steps, error, limit, fails)
    return Barycenter(np.full(len(x), 1 / len(x), x.dtype), x, status, steps, error)


def _shares(shares: npt.ArrayLike | None, count: int) -> npt.NDArray[np.float64]:
    if shares is None:
        return np.full(count, 1 / count)
    lam = _checks.doubles("shares", shares)
    _checks.shape("shares", lam.shape, (count,), why="with one for each law")
    _checks.masses("shares", lam)
    out: npt.NDArray[np.float64] = lam / lam.sum()
    return out


def _report(what: str, status: str, steps: int, error: float, limit: float, fails: str) -> None:
    if status == "converged" or fails == "ignore":
        return
    message = (
        f"{what}: {status} after {steps} iterations, with an error of {error:.3g} (wanted {limit:.3g}); "
        "raise max_iter, tol or epsilon"
    )
    if fails == "raise":
        raise ConvergenceError(message)
    warnings.warn(message, ConvergenceWarning, stacklevel=3)
