"""The same-marginal bridge of a cloud and its barycentric projection (ISB-1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend, backend_of
from .._bridge_batch import solve_batch
from .._bridge_fields import each_solved, solved_fields
from .._bridge_kernels import BridgeKernel, ScoresKernel
from .._bridge_problem import TOLERANCES, Problem, limits, memory_limit
from .._bridge_solve import Asked, solve_one
from .._config import resolve_threads
from .._convergence import WarnsOnUse, on_fail_option, settle
from .._host import HOST
from .._lazy_scores import Real
from .._native import cpu
from .._words import Ended
from ..operators import MarkovOperator, softmax
from ..scores import distance

__all__ = ["BarycentricMap", "barycentric"]


@dataclass(frozen=True, eq=False)
class BarycentricMap(Ended, WarnsOnUse):
    """:math:`B_{\\rho,\\varepsilon}` of a weighted cloud: its values, and how the solve went.

    For a batch of clouds every field has the batch axes in front, and ``B[k]`` is the map of one cloud. For a
    cloud on a device, ``X`` and ``values`` are there; weights and potentials are NumPy arrays.
    """

    X: Any = field(repr=False)
    """the support (..., N, d)"""
    weights: npt.NDArray[np.float64] = field(repr=False)
    """masses of the support (..., N), of sum 1"""
    epsilon: float
    values: Any = field(repr=False)
    """B at the support (..., N, d): the mean of Y given X = x_i"""
    potential: npt.NDArray[np.float64] = field(repr=False)
    """g with :math:`\\Pi_{ij} = e^{g_i + g_j - |x_i-x_j|^2/2\\varepsilon}`; -inf where the weight is 0"""
    status: Any
    """"converged", or why not: "iteration limit", "visit limit", "stagnated" (at the precision of the
    dtype)"""
    converged: Any
    """whether the marginal was met within ``tol`` at a final check from the points"""
    n_iter: Any
    """number of iterations of the solve"""
    n_visits: Any
    """number of visits, each of which computes with all entries of the kernel"""
    errors: npt.NDArray[np.float64] = field(repr=False)
    """L1 error of the marginal after each iteration; for a batch, the last one of each cloud"""
    error: Any
    """L1 error of the marginal at the final check"""
    tol: float
    method: Any
    """how the entries were kept: "stored" (the upper triangle) or "on the fly"."""
    n_threads: int = field(repr=False, default=1)
    on_fail: str = field(default="ignore", repr=False)
    """what :func:`barycentric` was told to do when the solve did not converge"""

    @cached_property
    def operator(self) -> MarkovOperator:
        """The conditional law of Y given X = x_i as a lazy Markov operator (N x N)."""
        return softmax(distance(self.X, beta=_beta(self.epsilon)).shift(columns=self._columns))

    @property
    def self_weight(self) -> Any:
        """:math:`\\sum_i\\Pi_{ii}`: the mass that stays on its own point; 1 if the points are too far apart.

        For particles drawn from a law it tells how far their map is from that of the law: the displacement
        :math:`B - x` is too small by about this fraction.
        """
        found = np.exp(2 * self.potential).sum(axis=-1)
        return found if found.ndim else float(found)

    def __getitem__(self, index: Any) -> BarycentricMap:
        """The map of one cloud of a batch, or of some."""
        if not np.ndim(self.converged):
            raise TypeError("index: wanted a batch of maps, got the map of one cloud; see B.values")
        names = (
            "status",
            "converged",
            "n_iter",
            "n_visits",
            "error",
            "method",
            "weights",
            "potential",
            "errors",
        )
        parts = {name: getattr(self, name)[index] for name in names}
        if not np.ndim(parts["converged"]):
            parts |= {"status": str(parts["status"]), "method": str(parts["method"])}
            parts |= {
                name: parts[name].item() for name in ("converged", "n_iter", "n_visits", "error")
            }
            parts["errors"] = np.atleast_1d(parts["errors"])
        at = index if isinstance(index, tuple) else (index,)
        at = (*at, *(slice(None),) * (np.ndim(self.converged) - len(at)))
        for name in ("X", "values"):
            parts[name] = cloud_of(getattr(self, name), at)
        return replace(self, **parts)

    def __call__(self, Y: npt.ArrayLike) -> Any:
        """B at new points (..., M, d): the mean of the support under
        :math:`e^{g_j-|y-x_j|^2/2\\varepsilon}`."""
        b = backend_of(self.X, Y)
        points = b.points(("Y", "Y"), Y, None)[0]
        _checks.same_dtype("Y", points, self._dtype, "the support")
        _checks.same_space("Y", points.shape[-1], self.X.shape[-1], "the support")
        # Under one map, the points of many clouds are mapped as one cloud.
        if points.ndim > 2 and not np.ndim(self.converged):
            here = b.here("Y", Y)
            flat = self(b.give(b.from_host(here.reshape(-1, here.shape[-1]))))
            return b.give(b.from_host(b.here("values", flat).reshape(here.shape)))
        s = distance(Y, self.X, beta=_beta(self.epsilon)).shift(columns=self._columns)
        threads = self.n_threads if s.backend.host_arrays else None
        return softmax(s).apply(self.X, n_threads=threads)

    def score(self, Y: npt.ArrayLike | None = None) -> Any:
        """:math:`2(B(x) - x)/\\varepsilon`, close to :math:`\\nabla\\log\\rho(x)` for small epsilon."""
        b = backend_of(self.X)
        at = b.here("X", self.X) if Y is None else _checks.points("Y", b.here("Y", Y))[0]
        values = b.here("values", self.values if Y is None else self(Y))
        return b.give(b.from_host((values - at) * at.dtype.type(2 / self.epsilon)))

    @cached_property
    def _columns(self) -> Any:
        b = backend_of(self.X)
        return b.give(b.from_host(self.potential.astype(str(self._dtype))))

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The dtype of the points, float32 or float64."""
        return np.dtype(str(self.X.dtype).rpartition(".")[2])

    def _conditional(self, points: Real, where: Backend) -> MarkovOperator:
        """The conditional laws at other points (a NumPy array); ``where`` is the backend that computes."""
        s = where.visiting(distance(points, self.X, beta=_beta(self.epsilon)))
        return softmax(s.shift(columns=self._columns))

    def _given(self, where: Backend) -> BarycentricMap:
        """The same map with its points and values moved to the place that the cloud came from."""
        if where.host_arrays:
            return self
        X, values = (where.give(where.from_host(x)) for x in (self.X, self.values))
        return replace(self, X=X, values=values)

    def __str__(self) -> str:
        *batch, n, d = self.X.shape
        state = "converged" if np.all(self.converged) else f"not converged ({self.status})"
        if batch:
            state = f"{int(np.sum(self.converged))} of {np.size(self.converged)} converged"
        clouds = f", batch {tuple(batch)}" if batch else ""
        methods = ", or ".join(sorted(set(np.ravel(self.method).tolist())))
        return (
            f"Barycentric projection of {n} points in dimension {d}{clouds}, epsilon {self.epsilon:g}: "
            f"{state}\n  {np.max(self.n_visits)} visits ({methods}), marginal error "
            f"{np.max(self.error):.3g} (tolerance {self.tol:.3g})"
        )


Init = BarycentricMap | npt.ArrayLike | None


def barycentric(
    X: npt.ArrayLike,
    epsilon: float,
    weights: npt.ArrayLike | None = None,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    init: Init = None,
    max_memory: float | None = None,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> BarycentricMap:
    """The barycentric projection of the bridge from a cloud X (..., N, d) to itself (ISB-1).

    .. math:: B_{\\rho,\\varepsilon}(x) = E[Y | X = x], \\qquad
       \\Pi_{ij} = e^{g_i + g_j - |x_i - x_j|^2/2\\varepsilon},\\quad
       \\textstyle\\sum_j \\Pi_{ij} = w_i.

    The kernel has the ½ that the poster's objective lacks (erratum 6), so that
    :math:`B(x) = x + \\tfrac{\\varepsilon}{2}\\nabla\\log\\rho(x) + o(\\varepsilon)`. ``weights`` (N,) may
    have any sum, and some may be 0 (B is computed there too); default: equal.

    An iteration makes one visit of all entries, and a little more than ten iterations are usual. It takes a
    step with momentum, chosen for a positive definite kernel, or the averaged symmetric update where momentum
    is not safe. ``tol`` bounds the L1 error of the marginal (default 1e-9, in float32 1e-5). ``max_iter`` and
    ``max_visits`` are those of :func:`qkcore.bridge`. ``init``: an earlier result for the same number of
    points, or a potential. ``max_memory``: bytes for the upper triangle of the kernel (default 256 MB; 0:
    entries are computed at every visit, in O(N) memory). The clouds of a batch are solved in one call,
    independently of each other; ``weights`` are then (..., N). Clouds on a device are solved there.

    The values are computed at once, so a solve that did not converge gives a
    :class:`qkcore.ConvergenceWarning` here; ``on_fail="raise"`` or ``"ignore"`` as in :func:`qkcore.bridge`.

    With few points the map is that of the points, and not that of the law they were drawn from: see
    docs/isb.md.

    >>> import numpy as np, qkcore as qk
    >>> B = qk.isb.barycentric(np.array([[-1.0], [1.0]]), 2.0)
    >>> B.values  # (1 - q) / (1 + q) with q = exp(-4/4)
    array([[-0.46211716],
           [ 0.46211716]])
    >>> B(np.array([[0.0]]))
    array([[0.]])
    """
    fails = on_fail_option(on_fail)
    where = backend_of(X)
    x, epsilon = cloud(X, epsilon)
    options = solver_options(x, tol, max_iter, max_visits, max_memory, n_threads, where)
    w = masses("weights", weights, x, where)
    found = solve(x, epsilon, w, start(init, w), options, fails)
    found = settle(found._given(where), fails)
    found._used()
    return found


# ---- shared with the steps and flows ------------------------------------------------------------


class Options(NamedTuple):
    tol: float
    max_iter: int
    max_visits: int
    scratch: Real | None
    n_threads: int
    max_memory: float | None = None
    where: Backend = HOST
    """the backend that computes visits; the points themselves stay NumPy arrays throughout"""


def solver_options(
    x: Real,
    tol: float | None,
    max_iter: int,
    max_visits: int | None,
    max_memory: float | None,
    n_threads: int | None,
    where: Backend = HOST,
) -> Options:
    """Checked options. Memory for the triangle is allocated here, once for all steps of a flow."""
    tol = TOLERANCES[x.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    most = limits(max_iter, max_visits)
    limit = memory_limit(max_memory)
    where.at(n_threads)  # a device refuses a number of threads
    threads = resolve_threads(n_threads)
    if x.ndim > 2 or not where.host_arrays:
        return Options(tol, *most, None, threads, limit, where)
    size = cpu.triangle_scratch(len(x), x.dtype.itemsize == 4, -1.0 if limit is None else limit)
    scratch = np.empty(size, x.dtype) if size else None
    return Options(tol, *most, scratch, threads)


def cloud(X: npt.ArrayLike, epsilon: float) -> tuple[Real, float]:
    """Points (..., N, d) as a NumPy array, and epsilon, both checked."""
    x, largest = _checks.points("X", backend_of(X).here("X", X))
    epsilon = _checks.representable("epsilon", _checks.positive("epsilon", epsilon), x.dtype)
    top = 2 * x.shape[-1] * largest * largest / epsilon  # of |x - y|² / 2 epsilon
    if not top <= float(np.finfo(x.dtype).max):
        raise OverflowError(
            f"epsilon: |x - y|²/2 epsilon can reach {top:.1e}, which overflows {x.dtype}; raise epsilon "
            "or scale the points down" + (", or use float64" if x.dtype == np.float32 else "")
        )
    return x, epsilon


def cloud_of(points: Any, index: tuple[Any, ...]) -> Any:
    """Points (N, d) out of the caller's array (..., N, d); on a device the index must be of integers."""
    if isinstance(points, np.ndarray):
        return points[index]
    b = backend_of(points)
    return b.give(b.indexed(b.points(("X", "X"), points, None)[0], index, 2))


def masses(
    name: str, weights: npt.ArrayLike | None, x: Real, where: Backend = HOST
) -> npt.NDArray[np.float64]:
    """Weights of the points (..., N), normalised to the sum 1 in every cloud."""
    n = x.shape[-2]
    if weights is None:
        return np.full(x.shape[:-1], 1 / n)
    w = _checks.real_array(name, where.here(name, weights))
    _checks.same_dtype(name, w, x.dtype, "the points")
    _checks.shape(name, w.shape[-1:], (n,), why="with one weight per point")
    _checks.into_batch(name, w.shape, w.shape[:-1], x.shape[:-2])
    _checks.masses(name, w)
    w = np.broadcast_to(w, x.shape[:-1]).astype(np.float64)
    top = w.max(axis=-1, keepdims=True)
    if not top.all():
        _checks.refuse(name, "some mass in every cloud", "all zeros in one")
    w /= top
    normalised: npt.NDArray[np.float64] = w / w.sum(axis=-1, keepdims=True)
    return normalised


def start(init: Init, w: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Starting potentials: those of an earlier solve, or half the logarithm of the weights."""
    with np.errstate(divide="ignore"):
        cold: npt.NDArray[np.float64] = np.log(w) / 2
    if init is None:
        return cold
    given = np.asarray(init.potential if isinstance(init, BarycentricMap) else init, np.float64)
    _checks.shape(
        "init",
        given.shape,
        w.shape,
        why="with one potential per point",
        do="start from as many points",
    )
    if np.isnan(given).any() or np.isposinf(given).any():
        raise ValueError("init: wanted finite potentials (-inf: no weight), got NaN or +inf")
    # A point that had no mass earlier starts from its weight, because a potential of -inf would never change.
    return np.where(np.isneginf(given), cold, given)


def solve(
    x: Real,
    epsilon: float,
    w: npt.NDArray[np.float64],
    g: npt.NDArray[np.float64],
    options: Options,
    on_fail: str = "ignore",
) -> BarycentricMap:
    """Solves the bridge for checked arguments; its final check uses a higher precision than the dtype."""
    where, n_threads = options.where, options.n_threads
    s = where.visiting(distance(x, beta=_beta(epsilon)))

    def asked(kernel: BridgeKernel, w: Any, g: Any) -> Asked:
        p = Problem(
            kernel, w, w, options.tol, options.max_iter, options.max_visits, n_threads=n_threads
        )
        return Asked(p, "symmetric", (g, g))

    kernel: Any
    kept: Any = "on the fly" if options.scratch is None else "stored"
    if not where.host_arrays:
        from .._device._bridge_kernel import DeviceKernel

        def one(index: tuple[int, ...]) -> dict[str, Any]:
            there = where.returned(s[index] if s.batch else s)
            limit = options.max_memory
            kernel = DeviceKernel(
                there, w[index], max_memory=limit, potentials=np.float64, name="X"
            )
            return solved_fields(asked(kernel, w[index], g[index]), not s.batch, None, False)

        found: Any = SimpleNamespace(**each_solved(s.batch, one))
    elif s.batch:
        kernel = ScoresKernel(s, options.max_memory, potentials=np.float64, name="X")
        found = solve_batch(asked(kernel, w, g))
        kept = np.array([text.rpartition(", ")[2] for text in np.ravel(found.method)]).reshape(
            s.batch
        )
    else:
        limit = 0 if options.scratch is None else math.inf
        kernel = ScoresKernel(s, limit, potentials=np.float64, scratch=options.scratch, name="X")
        found = solve_one(asked(kernel, w, g).problem, "symmetric", g, g, None)
    if s.batch and np.ndim(kept) == 0:
        kept = np.full(s.batch, kept)
    g = (found.f + found.g) / 2
    columns = s.shift(columns=g.astype(x.dtype))
    values: Real = s.backend.product(columns, "softmax", x, None, n_threads)
    return BarycentricMap(
        X=x,
        weights=w,
        epsilon=epsilon,
        values=values,
        potential=g,
        status=found.status,
        converged=found.converged,
        n_iter=found.n_iter,
        n_visits=found.n_visits,
        errors=found.errors,
        error=found.error,
        tol=options.tol,
        method=kept,
        n_threads=n_threads,
        on_fail=on_fail,
    )


def _beta(epsilon: float) -> float:
    return 1 / (2 * epsilon)
