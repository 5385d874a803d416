"""Flows by iterated bridges: heat, Ornstein-Uhlenbeck, KL to a log-concave target (ISB-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from .._words import Status
from ._barycentric import BarycentricMap, Options, cloud, masses, solver_options, start
from ._result import BridgeFlow, Recorder
from ._steps import Velocity, bridge_of, field_values, moved
from ._surrogate import LogDensity, SurrogateDensity, SurrogateSteps, per_point

__all__ = ["heat_flow", "kl_flow", "ornstein_uhlenbeck", "steps_for"]

Float64 = npt.NDArray[np.float64]
Field = Callable[[Any], npt.ArrayLike] | None


def steps_for(T: float, epsilon: float) -> int:
    """:math:`\\lceil T/\\varepsilon\\rceil`, forgiving the rounding of the quotient (ISB-2).

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
    max_iter: int = 1000,
    max_memory: float | None = None,
    progress: bool = False,
    n_threads: int | None = None,
) -> BridgeFlow:
    """The heat flow of particles X (N, d): :math:`x \\leftarrow 2x - B_{\\rho,\\varepsilon}(x)` (ISB-3).

    Approximates :math:`\\partial_t\\rho = \\tfrac12\\Delta\\rho`, the law of :math:`X_0` plus Brownian
    motion; each step advances the time by ``epsilon`` (erratum 6): after t the covariance has grown by
    t times the identity. ``n_steps``, or ``T`` for :math:`\\lceil T/\\varepsilon\\rceil` steps. Every step
    starts from the potentials extrapolated from the last three.

    ``save_every``: particles are kept after every so many steps (0: the first and last only).
    The flow stops at a bridge that does not converge or whose particles leave the range of the dtype:
    ``status`` says so, with the step and the time, and the last state is the last good one. The
    particles are those of X: they spread, but draw no noise.

    >>> import numpy as np, qkcore as qk
    >>> law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    >>> x, w = law.grid(400)
    >>> flow = qk.isb.heat_flow(x, 0.05, T=0.5, weights=w)
    >>> flow.status, float(flow.t[-1])
    ('finished', 0.5)
    >>> bool(abs(w @ flow.X[:, 0] ** 2 - 5.5) < 1e-3)  # variance 5 + t
    True
    """
    x, epsilon = cloud(X, epsilon)
    n = _n_steps(n_steps, T, epsilon)
    w = masses("weights", weights, x)
    options = solver_options(x, tol, max_iter, max_memory, n_threads)
    record = Recorder("heat flow", x, w, epsilon, n, save_every, progress)
    warm = _WarmStart(w)
    with record:
        for _ in range(n):
            found = bridge_of(x, epsilon, w, warm.guess(), options)
            x = record.step(found, -1.0, moved(x, found.values, -1.0))
            if record.ended:
                break
            warm.keep(found)
    return record.result()


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
    max_iter: int = 1000,
    max_memory: float | None = None,
    progress: bool = False,
    n_threads: int | None = None,
) -> BridgeFlow:
    """The gradient flow of KL to a log-concave target :math:`\\nu \\propto e^{-U}` (ISB-3).

    .. math:: \\partial_t\\rho = \\tfrac12\\nabla\\cdot\\Big(\\rho\\nabla\\log\\frac{\\rho}{\\nu}\\Big),
       \\qquad v = \\nabla\\psi,\\quad \\psi = -\\tfrac12\\log\\frac{\\rho}{\\nu},

    the Fokker-Planck equation of :math:`dX = -\\tfrac12\\nabla U\\,dt + dB`. Each step advances the time
    by ``epsilon``; ``n_steps``, or ``T`` for :math:`\\lceil T/\\varepsilon\\rceil`.

    The target comes by its ``score`` :math:`\\nabla\\log\\nu` (a function of points (N, d): (N, d)) or its
    ``potential`` U (a function: (N,)). ``method``:

    - "split": :math:`2x - B_{\\rho,\\varepsilon}(x) + \\tfrac{\\varepsilon}{2}\\nabla\\log\\nu(x)`: the
      bridge of the particles themselves for :math:`-\\tfrac12\\nabla\\log\\rho`, and the target's score
      as it is (by central differences of the potential when only that is given). No density is
      estimated. Not in the poster; of the same order, and the one to use for particles.
    - "surrogate": the poster's step with :math:`\\sigma = (\\rho/\\nu)^{-\\theta}`. Needs the potential, and
      the density of the particles: ``log_density`` at the start (N,), carried along by the Jacobians of the
      steps; a function ``log_density(points, k)`` after k steps; or None for a kernel estimate with
      ``bandwidth`` (default :func:`silverman`'s, at every step). ``theta``: fixed, or None for
      :func:`auto_theta` at every step. The surrogate is held by ``support`` (M, d), points of equal
      cells, or without one by the particles, with weights :math:`\\sigma/\\rho`. With a positive theta the
      step draws the particles that hold it together, so these must be like a grid, with their density given;
      random particles are refused there. ``max_unevenness``: the most that the
      points which hold sigma may add to the displacement by not being even cells at the scale of the
      kernel, relative to the displacement itself (docs/isb.md); inf for no check.

    What goes wrong after the first step (particles that run away, a bridge that does not converge, a
    score that is not finite, particles that draw together) ends the flow: ``status`` says what, at
    which step and time, and the states so far are kept.

    >>> import numpy as np, qkcore as qk
    >>> x, w = qk.isb.Mixture.gaussian(0.0, 4.0).grid(300)
    >>> flow = qk.isb.kl_flow(x, 0.01, T=1.0, weights=w, score=lambda x: -x)  # to N(0, 1)
    >>> exact = 1 + 3 * np.exp(-1.0)
    >>> bool(abs(w @ flow.X[:, 0] ** 2 - exact) < 0.01)
    True
    """
    x, epsilon = cloud(X, epsilon)
    n = _n_steps(n_steps, T, epsilon)
    w = masses("weights", weights, x)
    score = _checked_target(method, score, potential)
    _no_idle_options(method, theta, support, log_density, bandwidth)
    record = Recorder(f"KL flow ({method})", x, w, epsilon, n, save_every, progress)
    if method == "split":
        options = solver_options(x, tol, max_iter, max_memory, n_threads)
        return _split(x, epsilon, n, w, score, options, record)
    assert potential is not None
    density = SurrogateDensity(x, w, log_density, bandwidth, support)
    where = x if density.support is None else density.support
    options = solver_options(where, tol, max_iter, max_memory, n_threads)
    surrogate = SurrogateSteps(epsilon, potential, density, theta, max_unevenness, options)
    with record:
        for k in range(n):
            found, now, new = surrogate.step(x, k)
            if found is None:  # at the target: the velocity is 0
                x = record.rest(x)
                continue
            if found.converged and not density.carry(found, now):
                record.end(
                    Status.STOPPED, "the step folds the particles; their density cannot be carried"
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
        score=lambda x: (centre - x) / x.dtype.type(v),
        potential=lambda x: ((x - centre) ** 2).sum(axis=1) / (2 * v),
        method=method,
        **options,
    )


# ---- pieces -------------------------------------------------------------------------------------


def _split(
    x: Real,
    epsilon: float,
    n: int,
    w: Float64,
    score: Velocity,
    options: Options,
    record: Recorder,
) -> BridgeFlow:
    half = x.dtype.type(epsilon / 2)
    warm = _WarmStart(w)
    with record:
        for _ in range(n):
            found = bridge_of(x, epsilon, w, warm.guess(), options)
            drift = field_values("score", score, x)
            with np.errstate(over="ignore", invalid="ignore"):  # the record looks at what came out
                new = moved(x, found.values, -1.0) + half * drift
            x = record.step(found, -1.0, new)
            if record.ended:
                break
            warm.keep(found)
    return record.result()


class _WarmStart:
    """Potentials of the next step, extrapolated along the particles from the last three."""

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
    """The target's score, by differences of its potential if need be."""
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
    """Refuses options that the chosen method would not look at."""
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


def _minus_gradient(potential: Callable[[Any], npt.ArrayLike], x: Real) -> Float64:
    at = x.astype(np.float64)
    out = np.empty_like(at)
    for k in range(at.shape[1]):
        h = 6e-6 * np.maximum(1.0, np.abs(at[:, k]))  # the cube root of the rounding error
        ends = []
        for sign in (1, -1):
            shifted = at.copy()
            shifted[:, k] += sign * h
            ends.append((shifted[:, k], per_point("potential", potential, shifted)))
        out[:, k] = (ends[1][1] - ends[0][1]) / (ends[0][0] - ends[1][0])
    return out
