"""The same-marginal bridge of a cloud and its barycentric projection (ISB-1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._bridge_kernels import ScoresKernel
from .._bridge_problem import TOLERANCES, Problem, memory_limit
from .._bridge_solve import solve_one
from .._config import resolve_threads
from .._convergence import WarnsOnUse, on_fail_option, settle
from .._lazy_scores import Real, Scores
from .._native import cpu
from .._words import Ended
from ..operators import MarkovOperator, softmax
from ..scores import distance

__all__ = ["BarycentricMap", "barycentric"]

_SOFTMAX = cpu.WEIGHTS.index("softmax")


@dataclass(frozen=True, eq=False)
class BarycentricMap(Ended, WarnsOnUse):
    """:math:`B_{\\rho,\\varepsilon}` of a weighted cloud: its values, and how the solve went."""

    X: Real = field(repr=False)
    """the support (N, d)"""
    weights: npt.NDArray[np.float64] = field(repr=False)
    """masses of the support (N,), of sum 1"""
    epsilon: float
    values: Real = field(repr=False)
    """B at the support (N, d): the mean of Y given X = x_i"""
    potential: npt.NDArray[np.float64] = field(repr=False)
    """g with :math:`\\Pi_{ij} = e^{g_i + g_j - |x_i-x_j|^2/2\\varepsilon}`; -inf where the weight is 0"""
    status: str
    """"converged", or why not: "iteration limit", "stagnated" (at the precision of the dtype)"""
    converged: bool
    """the marginal was met within ``tol`` at a final check from the points"""
    n_iter: int
    """visits of all entries that the solve took"""
    errors: npt.NDArray[np.float64] = field(repr=False)
    """L1 error of the marginal at each visit"""
    error: float
    """L1 error of the marginal at the final check"""
    tol: float
    method: str
    """how the entries were kept: "stored" (the upper triangle) or "on the fly"."""
    n_threads: int = field(repr=False, default=1)
    on_fail: str = field(default="ignore", repr=False)
    """what :func:`barycentric` was told to do when the solve did not converge"""

    @property
    def n_visits(self) -> int:
        """As ``n_iter``."""
        return self.n_iter

    @cached_property
    def operator(self) -> MarkovOperator:
        """The conditional law of Y given X = x_i as a Markov operator (N x N), nothing formed."""
        return softmax(_scores(self.X, self.epsilon).shift(columns=self._columns))

    @property
    def self_weight(self) -> float:
        """:math:`\\sum_i\\Pi_{ii}`: the mass that stays on its own point, 1 when no point sees another.

        For particles drawn from a law it tells how far their map is from the law's: the displacement
        :math:`B - x` falls short by about this fraction.
        """
        return float(np.exp(2 * self.potential).sum())

    def __call__(self, Y: npt.ArrayLike) -> Real:
        """B at new points (M, d): the mean of the support under :math:`e^{g_j-|y-x_j|^2/2\\varepsilon}`."""
        points, _ = _checks.points("Y", Y)
        _checks.one_problem("Y", points.shape[:-2])
        _checks.same_dtype("Y", points, self.X.dtype, "the support")
        if points.shape[1] != self.X.shape[1]:
            raise ValueError(
                f"Y: wanted points of dimension {self.X.shape[1]} like the support, got shape "
                f"{points.shape}; pass an array (M, {self.X.shape[1]})"
            )
        s = distance(points, self.X, beta=_beta(self.epsilon)).shift(columns=self._columns)
        values: Real = softmax(s).apply(self.X, n_threads=self.n_threads)
        return values

    def score(self, Y: npt.ArrayLike | None = None) -> Real:
        """:math:`2(B(x) - x)/\\varepsilon`, near :math:`\\nabla\\log\\rho(x)` for small epsilon."""
        at = self.X if Y is None else _checks.points("Y", Y)[0]
        values = self.values if Y is None else self(Y)
        found: Real = (values - at) * self.X.dtype.type(2 / self.epsilon)
        return found

    @cached_property
    def _columns(self) -> Real:
        return self.potential.astype(self.X.dtype)

    def __str__(self) -> str:
        n, d = self.X.shape
        state = "converged" if self.converged else f"not converged ({self.status})"
        return (
            f"Barycentric projection of {n} points in dimension {d}, epsilon {self.epsilon:g}: {state}\n"
            f"  {self.n_iter} visits ({self.method}), marginal error {self.error:.3g} "
            f"(tolerance {self.tol:.3g})"
        )


Init = BarycentricMap | npt.ArrayLike | None


def barycentric(
    X: npt.ArrayLike,
    epsilon: float,
    weights: npt.ArrayLike | None = None,
    *,
    tol: float | None = None,
    max_iter: int = 1000,
    init: Init = None,
    max_memory: float | None = None,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> BarycentricMap:
    """The barycentric projection of the bridge from a cloud X (N, d) to itself (ISB-1).

    .. math:: B_{\\rho,\\varepsilon}(x) = E[Y | X = x], \\qquad
       \\Pi_{ij} = e^{g_i + g_j - |x_i - x_j|^2/2\\varepsilon},\\quad
       \\textstyle\\sum_j \\Pi_{ij} = w_i.

    The kernel has the ½ that the poster's objective lacks (erratum 6), so that
    :math:`B(x) = x + \\tfrac{\\varepsilon}{2}\\nabla\\log\\rho(x) + o(\\varepsilon)`. ``weights`` (N,) may
    have any total and may be 0 (B is there all the same); default: equal.

    One visit of all entries per iteration, a few more than ten in all: momentum chosen for a positive
    definite kernel, where that is safe, else the averaged symmetric update. ``tol`` bounds the L1 error
    of the marginal (default 1e-9, in float32 1e-5). ``init``: an earlier result on as many points, or a
    potential. ``max_memory``: bytes for the upper triangle of the kernel (default 256 MB; 0: entries are
    computed at every visit, in O(N) memory).

    The values are computed at once, so a solve that did not converge leads to a
    :class:`qkcore.ConvergenceWarning` here; ``on_fail="raise"`` or ``"ignore"`` as in :func:`qkcore.bridge`.

    For few points the map is that of the points, not of the law they were drawn from: see docs/isb.md.

    >>> import numpy as np, qkcore as qk
    >>> B = qk.isb.barycentric(np.array([[-1.0], [1.0]]), 2.0)
    >>> B.values  # (1 - q) / (1 + q) with q = exp(-4/4)
    array([[-0.46211716],
           [ 0.46211716]])
    >>> B(np.array([[0.0]]))
    array([[0.]])
    """
    fails = on_fail_option(on_fail)
    x, epsilon = cloud(X, epsilon)
    options = solver_options(x, tol, max_iter, max_memory, n_threads)
    w = masses("weights", weights, x)
    found = settle(solve(x, epsilon, w, start(init, w), options, fails), fails)
    found._used()
    return found


# ---- shared with the steps and flows ------------------------------------------------------------


class Options(NamedTuple):
    tol: float
    max_iter: int
    scratch: Real | None
    n_threads: int


def solver_options(
    x: Real,
    tol: float | None,
    max_iter: int,
    max_memory: float | None,
    n_threads: int | None,
) -> Options:
    """Checked options; the room for the triangle is made here, once for all steps of a flow."""
    tol = TOLERANCES[x.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    if _checks.integer("max_iter", max_iter) < 1:
        raise ValueError(f"max_iter: wanted at least 1, got {max_iter}")
    limit = memory_limit(max_memory)
    size = cpu.triangle_scratch(len(x), x.dtype.itemsize == 4, -1.0 if limit is None else limit)
    scratch = np.empty(size, x.dtype) if size else None
    return Options(tol, int(max_iter), scratch, resolve_threads(n_threads))


def cloud(X: npt.ArrayLike, epsilon: float) -> tuple[Real, float]:
    """One cloud of points (N, d), and the temperature."""
    x, largest = _checks.points("X", X)
    _checks.one_problem("X", x.shape[:-2])
    epsilon = _checks.representable("epsilon", _checks.positive("epsilon", epsilon), x.dtype)
    top = 2 * x.shape[1] * largest * largest / epsilon  # of |x - y|² / 2 epsilon
    if not top <= float(np.finfo(x.dtype).max):
        raise OverflowError(
            f"epsilon: |x - y|²/2 epsilon can reach {top:.1e}, which overflows {x.dtype}; raise epsilon "
            "or scale the points down" + (", or use float64" if x.dtype == np.float32 else "")
        )
    return x, epsilon


def masses(name: str, weights: npt.ArrayLike | None, x: Real) -> npt.NDArray[np.float64]:
    """Weights of the points, of sum 1."""
    n = len(x)
    if weights is None:
        return np.full(n, 1 / n)
    w = _checks.real_array(name, weights)
    _checks.same_dtype(name, w, x.dtype, "the points")
    if w.shape != (n,):
        raise ValueError(f"{name}: wanted one weight per point, shape ({n},), got {w.shape}")
    _checks.finite(name, w)
    if (low := float(w.min())) < 0:
        raise ValueError(f"{name}: wanted weights >= 0, got {low:.3g}; a cloud is a measure")
    if not w.any():
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    w = w.astype(np.float64) / w.max()
    normalised: npt.NDArray[np.float64] = w / w.sum()
    return normalised


def start(init: Init, w: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Starting potentials: those of an earlier solve, or half the logarithm of the weights."""
    with np.errstate(divide="ignore"):
        cold: npt.NDArray[np.float64] = np.log(w) / 2
    if init is None:
        return cold
    given = np.asarray(init.potential if isinstance(init, BarycentricMap) else init, np.float64)
    if given.shape != w.shape:
        raise ValueError(
            f"init: wanted one potential per point, shape {w.shape}, got {given.shape}; "
            "start from a result on as many points"
        )
    if np.isnan(given).any() or np.isposinf(given).any():
        raise ValueError("init: wanted finite potentials (-inf: no weight), got NaN or +inf")
    # A point that had no mass earlier starts from its weight, not from -inf for ever.
    return np.where(np.isneginf(given), cold, given)


def solve(
    x: Real,
    epsilon: float,
    w: npt.NDArray[np.float64],
    g: npt.NDArray[np.float64],
    options: Options,
    on_fail: str = "ignore",
) -> BarycentricMap:
    """Solves from checked arguments; the final check is made in more precision than the dtype's."""
    s = _scores(x, epsilon)
    kernel = ScoresKernel(
        s,
        0 if options.scratch is None else math.inf,
        potentials=np.float64,
        scratch=options.scratch,
        name="X",
    )
    problem = Problem(kernel, w, w, options.tol, options.max_iter, n_threads=options.n_threads)
    found = solve_one(problem, "symmetric", g, g, None)
    g = (found.f + found.g) / 2
    columns = s.shift(columns=g.astype(x.dtype))
    _, means, _, _ = cpu.reduce_rows(columns._spec, _SOFTMAX, x, False, False, options.n_threads)
    assert means is not None
    values: Real = means
    return BarycentricMap(
        X=x,
        weights=w,
        epsilon=epsilon,
        values=values,
        potential=g,
        status=found.status,
        converged=found.converged,
        n_iter=found.n_visits,
        errors=found.errors,
        error=found.error,
        tol=options.tol,
        method="on the fly" if options.scratch is None else "stored",
        n_threads=options.n_threads,
        on_fail=on_fail,
    )


def _beta(epsilon: float) -> float:
    return 1 / (2 * epsilon)


def _scores(x: Real, epsilon: float) -> Scores:
    return distance(x, beta=_beta(epsilon))
