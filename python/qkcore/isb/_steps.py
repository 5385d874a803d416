"""The Schrödinger-bridge step, and the explicit Euler step to compare it with (ISB-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend, backend_of
from .._convergence import failure, limit_named
from .._host import HOST
from .._lazy_scores import Real
from ._barycentric import BarycentricMap, Init, Options, cloud, masses, solve, solver_options, start
from ._density import nonzero_theta
from ._result import FlowEnds

__all__ = ["Step", "euler_step", "step"]

Surrogate = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | BarycentricMap | None
Velocity = npt.ArrayLike | Callable[[Any], npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Step:
    """Particles after one step, and the map that moved them."""

    X: Any = field(repr=False)
    """the particles (..., N, d) after the step"""
    time: float
    """the time that the step advances: epsilon"""
    theta: float
    map: BarycentricMap = field(repr=False)
    """:math:`B_{\\sigma,\\varepsilon}`, always converged; ``init=step.map`` starts the next step from it"""

    def __str__(self) -> str:
        *batch, n, d = self.X.shape
        clouds = f", batch {tuple(batch)}" if batch else ""
        return (
            f"Bridge step of {n} particles in dimension {d}{clouds}: time {self.time:g}, theta "
            f"{self.theta:g}\n  {np.max(self.map.n_visits)} visits, marginal error "
            f"{np.max(self.map.error):.3g}"
        )


def step(
    X: npt.ArrayLike,
    epsilon: float,
    *,
    theta: float = -1.0,
    surrogate: Surrogate = None,
    weights: npt.ArrayLike | None = None,
    init: Init = None,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    max_memory: float | None = None,
    n_threads: int | None = None,
) -> Step:
    """The Schrödinger-bridge step of particles X (..., N, d) (ISB-2).

    .. math:: x \\leftarrow (1 - \\theta^{-1})\\,x + \\theta^{-1} B_{\\sigma,\\varepsilon}(x)
       = x + \\varepsilon\\nabla\\psi(x) + o(\\varepsilon), \\qquad \\sigma \\propto e^{2\\theta\\psi}.

    It advances the flow :math:`\\partial_t\\rho + \\nabla\\cdot(\\rho\\nabla\\psi) = 0` by the time
    ``epsilon`` (erratum 6: with the kernel :math:`e^{-|x-y|^2/2\\varepsilon}`; without the ½ it would be
    epsilon/2). ``surrogate``: None for the particles themselves with their ``weights`` (theta = -1:
    the heat flow); weights (N,) on the particles (:func:`surrogate_weights`); a pair (Z, w) of
    other points and their weights; or a solved :class:`BarycentricMap`. If the bridge does not converge, a
    RuntimeError is raised.

    >>> import numpy as np, qkcore as qk
    >>> x, w = qk.isb.Mixture.gaussian(0.0, 1.0).grid(200)
    >>> moved = qk.isb.step(x, 0.1, weights=w)
    >>> bool(np.isclose(w @ moved.X[:, 0] ** 2, 1.1, atol=1e-3))  # variance grows by the time
    True
    """
    where = backend_of(X)
    x, epsilon = cloud(X, epsilon)
    theta = nonzero_theta(theta)
    if isinstance(surrogate, BarycentricMap):
        if surrogate.epsilon != epsilon:
            raise ValueError(
                f"surrogate: wanted a map for epsilon {epsilon:g}, got one for {surrogate.epsilon:g}"
            )
        found, own = surrogate, False
    else:
        support, w, own = x, None, True
        if isinstance(surrogate, tuple):
            if len(surrogate) != 2:
                raise ValueError(f"surrogate: wanted a pair (Z, w), got {len(surrogate)} items")
            here = where.here("surrogate[0]", surrogate[0])
            support, own = _checks.points("surrogate[0]", here)[0], False
            _checks.same_dtype("surrogate[0]", support, x.dtype, "X")
            w = masses("surrogate[1]", surrogate[1], support, where)
        elif surrogate is not None:
            w = masses("surrogate", surrogate, x, where)
        if w is None:
            w = masses("weights", weights, x, where)
        options = solver_options(support, tol, max_iter, max_visits, max_memory, n_threads, where)
        found = solve(support, epsilon, w, start(init, w), options)._given(where)
    if not np.all(found.converged):
        limit = limit_named(found.status)
        raise RuntimeError(f"step: bridge {failure(found)}; raise {limit} or tol, or use float64")
    values = where.here("values", found.values if own else found(X))
    new = moved(x, values, theta)
    if not np.isfinite(new).all():
        raise OverflowError(
            f"X: particles leave the range of {x.dtype}; scale them, or use float64"
        )
    return Step(where.give(where.from_host(new)), epsilon, theta, found)


def bridge_of(
    x: Real,
    epsilon: float,
    w: npt.NDArray[np.float64],
    g: npt.NDArray[np.float64],
    options: Options,
) -> BarycentricMap:
    """The bridge of a step in a flow. If scores overflow, :class:`FlowEnds` ends the flow."""
    try:
        return solve(x, epsilon, w, g, options)
    except OverflowError as error:
        far = float(np.abs(x).max())
        raise FlowEnds(
            f"|x - y|²/2 epsilon overflows {x.dtype} for particles as far out as {far:.3g}", error
        ) from None


def moved(x: Real, values: Real, theta: float) -> Real:
    """x + (B - x) / theta, which equals the formula of :func:`step` and is exact where B = x."""
    with np.errstate(over="ignore", invalid="ignore"):  # callers check the result
        out: Real = x + (values - x) / x.dtype.type(theta)
    return out


def euler_step(X: npt.ArrayLike, epsilon: float, velocity: Velocity) -> Real:
    """The explicit Euler step :math:`x + \\varepsilon v(x)` (ISB-2), which the bridge step approximates.

    ``velocity``: an array (..., N, d) as X, or a function of the particles. For the heat flow
    :math:`v = -\\tfrac12\\nabla\\log\\rho`, for the KL flow :math:`v = -\\tfrac12\\nabla\\log(\\rho/\\nu)`.

    >>> import numpy as np, qkcore as qk
    >>> qk.isb.euler_step(np.array([[2.0]]), 0.1, lambda x: x / 2)  # heat flow at N(0, 1)
    array([[2.1]])
    """
    where = backend_of(X)
    x, epsilon = cloud(X, epsilon)
    try:
        v = field_values("velocity", velocity, x, where)
    except FlowEnds as end:
        raise end.error from None
    out: Real = where.give(where.from_host(x + x.dtype.type(epsilon) * v))
    return out


def field_values(name: str, field_: Velocity, x: Real, where: Backend = HOST) -> Real:
    """The checked values of a vector field at the particles, from an array or a function.

    Values that are not finite raise :class:`FlowEnds`, which a flow turns into its status.
    """
    return at_particles(name, field_, x, x.shape, x.dtype, where)


def at_particles(
    name: str,
    given: Any,
    x: Real,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    where: Backend = HOST,
) -> Real:
    """Values at the particles, from an array or a function of them, checked to be finite and of this shape.

    Functions are called with arrays of the caller's kind, and may return such.
    """
    if callable(given):
        with np.errstate(all="ignore"):  # the result is checked below
            given = given(where.give(where.from_host(x)))
    try:
        values = np.asarray(where.here(name, given))
    except ValueError as error:
        raise ValueError(f"{name}: wanted real numbers, got a ragged list ({error})") from None
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name}: wanted real numbers, got {values.dtype}; pass floats")
    if values.shape != shape:
        what = "vector" if len(shape) > 1 else "value"
        raise ValueError(
            f"{name}: wanted one {what} per particle, shape {shape}, got {values.shape}"
        )
    with np.errstate(over="ignore"):
        out: Real = values.astype(dtype, copy=False)
    fine = np.isfinite(out).reshape(*x.shape[:-1], -1).all(axis=-1)
    if not fine.all():
        lost = f"{int((~fine).sum())} of {fine.size} points"
        far = float(np.abs(x[~fine]).max())
        raise FlowEnds(
            f"{name} is not a finite number at {lost}, with coordinates up to {far:.3g}; take a "
            "smaller epsilon if the particles ran away",
            ValueError(f"{name}: wanted finite numbers, got NaN or infinities at {lost}"),
        )
    return out
