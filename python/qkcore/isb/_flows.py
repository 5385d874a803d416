"""Flows by iterated bridges: heat, Ornstein-Uhlenbeck, KL to a log-concave target (ISB-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import backend_of
from .._batch import each
from .._lazy_scores import Real
from .._words import Status
from ._barycentric import BarycentricMap, Options, cloud, masses, solve, solver_options, start
from ._result import BridgeFlow, FlowEnds, Recorder
from ._steps import Velocity, bridge_of, field_values, moved
from ._surrogate import LogDensity, SurrogateDensity, SurrogateSteps, per_point

__all__ = ["heat_flow", "kl_flow", "ornstein_uhlenbeck", "steps_for"]

Float64 = npt.NDArray[np.float64]
Field = Callable[[Any], npt.ArrayLike] | None


def steps_for(T: float, epsilon: float) -> int:
    """:math:`\\lceil T/\\varepsilon\\rceil`, but without a step that only rounding would add (ISB-2).

    >>> import qkcore as qk
    >>> qk.isb.steps_for(0.3, 0.1), qk.isb.steps_for(0.31, 0.1)
    (3, 4)
    """
    quotient = _checks.positive("T", T) / _checks.positive("epsilon", epsilon)
    return max(1, math.ceil(quotient * (1 - 1e-12)))


def heat_flow(
    X: npt.ArrayLike,
    epsilon: float,
    n_steps: int | None = None,
    *,
    T: float | None = None,
    weights: npt.ArrayLike | None = None,
    save_every: int = 1,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    max_memory: float | None = None,
    progress: bool = False,
    n_threads: int | None = None,
) -> BridgeFlow:
    """The heat flow of particles X (..., N, d): :math:`x \\leftarrow 2x - B_{\\rho,\\varepsilon}(x)` (ISB-3).

    This approximates :math:`\\partial_t\\rho = \\tfrac12\\Delta\\rho`, the law of :math:`X_0` plus Brownian
    motion. Each step advances the time by ``epsilon`` (erratum 6), and after the time t the covariance has
    grown by t times the identity. Give ``n_steps``, or ``T`` for :math:`\\lceil T/\\varepsilon\\rceil` steps.
    The bridge of every step starts from potentials that are extrapolated from the last three.

    ``save_every=k``: particles are stored after every k-th step (0: the first and last states only).
    The flow stops if a bridge does not converge, or if particles leave the range of the dtype. Then
    ``status`` and ``message`` say so, with the step and the time, and the last state is the last good one.
    The flow is deterministic: the particles spread without random noise. A batch of clouds gives a
    :class:`qkcore.Batch` of flows, whose fields are arrays; their bridges are solved in one call per step,
    and a flow that ends does not stop the others. The bridges of clouds on a device are solved there.

    >>> import numpy as np, qkcore as qk
    >>> law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    >>> x, w = law.grid(400)
    >>> flow = qk.isb.heat_flow(x, 0.05, T=0.5, weights=w)
    >>> flow.status, float(flow.t[-1])
    ('finished', 0.5)
    >>> bool(abs(w @ flow.X[:, 0] ** 2 - 5.5) < 1e-3)  # variance 5 + t
    True
    """
    where = backend_of(X)
    x, epsilon = cloud(X, epsilon)
    n = _n_steps(n_steps, T, epsilon)
    w = masses("weights", weights, x, where)
    options = solver_options(x, tol, max_iter, max_visits, max_memory, n_threads, where)
    flow: BridgeFlow = _iterated("heat flow", x, epsilon, n, w, None, options, save_every, progress)
    return flow


def kl_flow(
    X: npt.ArrayLike,
    epsilon: float,
    n_steps: int | None = None,
    *,
    T: float | None = None,
    score: Callable[[Any], npt.ArrayLike] | None = None,
    potential: Callable[[Any], npt.ArrayLike] | None = None,
    method: str = "split",
    theta: float | None = None,
    support: npt.ArrayLike | None = None,
    log_density: LogDensity = None,
    bandwidth: float | None = None,
    max_unevenness: float = 0.05,
    weights: npt.ArrayLike | None = None,
    save_every: int = 1,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    max_memory: float | None = None,
    progress: bool = False,
    n_threads: int | None = None,
) -> BridgeFlow:
    """The gradient flow of KL to a log-concave target :math:`\\nu \\propto e^{-U}` (ISB-3).

    .. math:: \\partial_t\\rho = \\tfrac12\\nabla\\cdot\\Big(\\rho\\nabla\\log\\frac{\\rho}{\\nu}\\Big),
       \\qquad v = \\nabla\\psi,\\quad \\psi = -\\tfrac12\\log\\frac{\\rho}{\\nu},

    the Fokker-Planck equation of :math:`dX = -\\tfrac12\\nabla U\\,dt + dB`. Each step advances the time
    by ``epsilon``; ``n_steps``, or ``T`` for :math:`\\lceil T/\\varepsilon\\rceil`.

    The target is given by its ``score`` :math:`\\nabla\\log\\nu` (a function from points (N, d) to (N, d)) or
    by its ``potential`` U (a function from points (N, d) to (N,)). ``method``:

    - "split": :math:`2x - B_{\\rho,\\varepsilon}(x) + \\tfrac{\\varepsilon}{2}\\nabla\\log\\nu(x)`. The
      bridge of the particles themselves gives :math:`-\\tfrac12\\nabla\\log\\rho`, and the score of the
      target is used directly (by central differences if only the potential is given). No density is
      estimated. This method is not in the poster; it has the same order, and is the one to use for particles.
    - "surrogate": the poster's step with :math:`\\sigma = (\\rho/\\nu)^{-\\theta}`. It needs the potential,
      and the density of the particles: ``log_density`` at the start (N,), carried along by the Jacobians of
      the steps; a function ``log_density(points, k)`` after k steps; or None for a kernel estimate with
      ``bandwidth`` (default: that of :func:`silverman`, at every step). ``theta``: fixed, or None for
      :func:`auto_theta` at every step. The surrogate is a weighted measure on the points ``support`` (M, d)
      of a grid of equal cells, or without ``support`` on the particles, with weights :math:`\\sigma/\\rho`.
      In the second case a positive theta makes particles cluster, so they must be placed like a grid, with
      their density given; random particles are refused. ``max_unevenness``: the largest error of the
      displacements, relative to their size, that the uneven spacing of these points may cause at the scale of
      the kernel (docs/isb.md); inf for no check.

    A failure after the first step (particles that overflow, a bridge that does not converge, a score that is
    not finite, particles that cluster) ends the flow: ``status`` and ``message`` say what failed, at which
    step and time, and the states so far are kept. For batches ("split" only) see :func:`heat_flow`. On a
    device, the functions are called with device arrays and return such.

    >>> import numpy as np, qkcore as qk
    >>> x, w = qk.isb.Mixture.gaussian(0.0, 4.0).grid(300)
    >>> flow = qk.isb.kl_flow(x, 0.01, T=1.0, weights=w, score=lambda x: -x)  # to N(0, 1)
    >>> exact = 1 + 3 * np.exp(-1.0)
    >>> bool(abs(w @ flow.X[:, 0] ** 2 - exact) < 0.01)
    True
    """
    where = backend_of(X)
    x, epsilon = cloud(X, epsilon)
    n = _n_steps(n_steps, T, epsilon)
    w = masses("weights", weights, x, where)
    score = _checked_target(method, score, potential)
    _no_idle_options(method, theta, support, log_density, bandwidth)
    kind = f"KL flow ({method})"
    if method == "split":
        options = solver_options(x, tol, max_iter, max_visits, max_memory, n_threads, where)
        flow: BridgeFlow = _iterated(kind, x, epsilon, n, w, score, options, save_every, progress)
        return flow
    assert potential is not None
    if x.ndim > 2:
        raise ValueError(
            f'X: wanted one cloud for method="surrogate", got a batch {x.shape[:-2]}; take the clouds one '
            'by one, or pass method="split"'
        )
    record = Recorder(kind, x, w, epsilon, n, save_every, progress, where)
    density = SurrogateDensity(x, w, log_density, bandwidth, support, where)
    at = x if density.support is None else density.support
    options = solver_options(at, tol, max_iter, max_visits, max_memory, n_threads, where)
    surrogate = SurrogateSteps(epsilon, potential, density, theta, max_unevenness, options)
    with record:
        for k in range(n):
            found, now, new = surrogate.step(x, k)
            if found is None:  # at the target: the velocity is 0
                x = record.rest(x)
                continue
            if found.converged and not density.carry(found, now):
                record.end(
                    Status.STOPPED,
                    "the step folds the particles, so their density cannot be carried",
                )
                break
            x = record.step(found, now, new, surrogate.unevenness)
            if record.ended:
                break
    return record.result()


def ornstein_uhlenbeck(
    X: npt.ArrayLike,
    epsilon: float,
    n_steps: int | None = None,
    *,
    mean: float = 0.0,
    variance: float = 1.0,
    method: str = "split",
    **options: Any,
) -> BridgeFlow:
    """:func:`kl_flow` to :math:`N(m, v I)`: :math:`dX = -(X - m)/2v\\,dt + dB` (ISB-3).

    From :math:`N(0, s^2)` to :math:`N(0, 1)` the variance is :math:`1 + (s^2 - 1)e^{-t}`;
    :meth:`Mixture.ornstein_uhlenbeck` is the exact law. ``options``: those of :func:`kl_flow`.

    >>> import numpy as np, qkcore as qk
    >>> x, w = qk.isb.Mixture.gaussian(0.0, 4.0).grid(300)
    >>> flow = qk.isb.ornstein_uhlenbeck(x, 0.05, 20, weights=w, method="surrogate",
    ...     log_density=lambda x, k: -x[:, 0]**2 / (2 * (w @ x[:, 0]**2)))  # Gaussian all along
    >>> bool(abs(w @ flow.X[:, 0] ** 2 - (1 + 3 * np.exp(-1.0))) < 0.05)
    True
    """
    centre, v = _checks.number("mean", mean), _checks.positive("variance", variance)
    return kl_flow(
        X,
        epsilon,
        n_steps,
        score=_on_host(lambda x: (centre - x) / x.dtype.type(v)),
        potential=_on_host(lambda x: ((x - centre) ** 2).sum(axis=1) / (2 * v)),
        method=method,
        **options,
    )


# ---- pieces -------------------------------------------------------------------------------------


def _iterated(
    kind: str,
    x: Real,
    epsilon: float,
    n: int,
    w: Float64,
    score: Velocity | None,
    options: Options,
    save_every: int,
    progress: bool,
) -> Any:
    """The flow whose steps use the bridge of the particles, and the score of the target if there is one."""
    where = options.where

    def new(x: Real, found: BarycentricMap) -> Real:
        out = moved(x, found.values, -1.0)
        if score is None:
            return out
        drift = field_values("score", score, x, where)
        with np.errstate(over="ignore", invalid="ignore"):  # the recorder checks the result
            return out + x.dtype.type(epsilon / 2) * drift

    if x.ndim > 2:
        if progress:
            raise ValueError("X: wanted one cloud for a progress bar, got a batch")
        records = [
            Recorder(kind, x[k], w[k], epsilon, n, save_every, False, where)
            for k in np.ndindex(x.shape[:-2])
        ]
        return _together(x, epsilon, n, w, new, options, records)
    record = Recorder(kind, x, w, epsilon, n, save_every, progress, where)
    warm = _WarmStart(w)
    with record:
        for _ in range(n):
            found = bridge_of(x, epsilon, w, warm.guess(), options)
            x = record.step(found, -1.0, new(x, found))
            if record.ended:
                break
            warm.keep(found)
    return record.result()


def _together(
    x: Real,
    epsilon: float,
    n: int,
    w: Float64,
    new: Callable[[Real, BarycentricMap], Real],
    options: Options,
    records: list[Recorder],
) -> Any:
    """The flows of a batch. Each step solves the bridges of all that have not ended in one call."""
    batch = x.shape[:-2]
    _checks.not_empty("X", x)
    clouds, masses = x.reshape(-1, *x.shape[-2:]).copy(), w.reshape(-1, w.shape[-1])
    warm = [_WarmStart(one) for one in masses]
    for _ in range(n):
        live = [k for k, record in enumerate(records) if not record.ended]
        if not live:
            break
        guesses = np.stack([warm[k].guess() for k in live])
        found = _bridges_of(clouds[live], epsilon, masses[live], guesses, options)
        for k, one in zip(live, found, strict=True):
            record = records[k]
            try:
                if isinstance(one, FlowEnds):
                    raise one
                moved_to = new(clouds[k], one)
            except FlowEnds as end:
                record.end(Status.STOPPED, str(end))
                continue
            clouds[k] = record.step(one, -1.0, moved_to)
            if not record.ended:
                warm[k].keep(one)
    flows = iter(records)
    return each(batch, lambda _: next(flows).result())


def _bridges_of(
    x: Real, epsilon: float, w: Float64, g: Float64, options: Options
) -> list[BarycentricMap | FlowEnds]:
    """The bridges of clouds (k, N, d); a cloud whose scores overflow has the exception that ends its flow."""
    try:
        found = solve(x, epsilon, w, g, options)
        return [found[k] for k in range(len(x))]
    except OverflowError:  # at least one cloud overflows, so each is solved separately
        out: list[BarycentricMap | FlowEnds] = []
        for k in range(len(x)):
            try:
                out.append(bridge_of(x[k], epsilon, w[k], g[k], options))
            except FlowEnds as end:
                out.append(end)
        return out


class _WarmStart:
    """Starting potentials for the next bridge, extrapolated for each particle from the last three."""

    def __init__(self, w: Float64) -> None:
        self._cold = start(None, w)
        self._last: list[Float64] = []

    def guess(self) -> Float64:
        known = self._last
        if not known:
            return self._cold
        with np.errstate(invalid="ignore"):
            if len(known) == 1:
                g = known[-1]
            elif len(known) == 2:
                g = 2 * known[-1] - known[-2]
            else:
                g = 3 * (known[-1] - known[-2]) + known[-3]
        return np.where(np.isfinite(g), g, self._cold)

    def keep(self, found: BarycentricMap) -> None:
        self._last = [*self._last[-2:], found.potential]


def _n_steps(n_steps: int | None, T: float | None, epsilon: float) -> int:
    if (n_steps is None) == (T is None):
        got = "both" if T is not None else "neither"
        raise ValueError(
            f"n_steps: wanted n_steps or T, got {got}; T makes ceil(T / epsilon) steps"
        )
    if n_steps is None:
        assert T is not None
        return steps_for(T, epsilon)
    return _checks.count("n_steps", n_steps)


def _checked_target(method: str, score: Field, potential: Field) -> Callable[[Any], npt.ArrayLike]:
    """The score of the target, by differences of its potential if only that is given."""
    _checks.one_of("method", method, ("split", "surrogate"))
    for name, given in (("score", score), ("potential", potential)):
        if given is not None:
            _checks.function(name, given, "the particles (N, d)")
    if method == "surrogate" and potential is None:
        raise ValueError(
            'potential: wanted the target\'s potential for "surrogate", got None; pass '
            "potential=lambda x: (x**2).sum(1) / 2 for N(0, I)"
        )
    if score is not None:
        return score
    if potential is None:
        raise ValueError(
            "score: wanted the target's score or its potential, got neither; pass "
            "score=lambda x: -x for N(0, I)"
        )
    given = potential
    return lambda x: _minus_gradient(given, x)


def _no_idle_options(
    method: str, theta: object, support: object, log_density: object, bandwidth: object
) -> None:
    """Refuses options that the chosen method does not use."""
    if method == "split":
        for name, given in (
            ("theta", theta),
            ("support", support),
            ("log_density", log_density),
            ("bandwidth", bandwidth),
        ):
            if given is not None:
                raise ValueError(
                    f'{name}: wanted None for method="split", which has no surrogate, got '
                    f'{_checks.shown(given)}; pass method="surrogate"'
                )
    elif bandwidth is not None and log_density is not None:
        raise ValueError(
            "bandwidth: wanted None where log_density is given, since nothing is estimated, got "
            f"{_checks.shown(bandwidth)}"
        )


def _on_host(function: Callable[[Real], Real]) -> Callable[[Any], Any]:
    """Makes a function of NumPy arrays accept and return arrays of any backend."""

    def of(x: Any) -> Any:
        b = backend_of(x)
        return b.give(b.from_host(function(b.here("x", x))))

    return of


def _minus_gradient(potential: Callable[[Any], npt.ArrayLike], x: Any) -> Any:
    b = backend_of(x)
    at = b.here("x", x).astype(np.float64)
    out = np.empty_like(at)
    for k in range(at.shape[1]):
        h = 6e-6 * np.maximum(1.0, np.abs(at[:, k]))  # the cube root of the rounding error
        ends = []
        for sign in (1, -1):
            shifted = at.copy()
            shifted[:, k] += sign * h
            ends.append((shifted[:, k], per_point("potential", potential, shifted, b)))
        out[:, k] = (ends[1][1] - ends[0][1]) / (ends[0][0] - ends[1][0])
    return b.give(b.from_host(out))
