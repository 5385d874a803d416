"""Flows by iterated bridges: heat, Ornstein-Uhlenbeck, KL to a log-concave target (ISB-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._barycentric import BarycentricMap, Options, cloud, masses, solve, solver_options, start
from ._density import auto_theta, kde_log_density, nonzero_theta, surrogate_weights
from ._result import BridgeFlow, Recorder
from ._steps import Velocity, field_values, moved

__all__ = ["heat_flow", "kl_flow", "ornstein_uhlenbeck", "steps_for"]

Float64 = npt.NDArray[np.float64]
Scalar = npt.ArrayLike | Callable[[Any], npt.ArrayLike]


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
    The flow stops at a bridge that does not converge: ``status`` says so, and the last state is the
    last good one. The particles are those of X: they spread, but draw no noise.

    >>> import numpy as np, qkcore as qk
    >>> law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    >>> x, w = law.grid(400)
    >>> flow = qk.isb.heat_flow(x, 0.05, T=0.5, weights=w)
    >>> flow.status, float(flow.t[-1])
    ('completed', 0.5)
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
            found = solve(x, epsilon, w, warm.guess(), options)
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
    method: str = "auto",
    theta: float | None = None,
    log_density: npt.ArrayLike | Callable[[Any, int], npt.ArrayLike] | None = None,
    bandwidth: float | None = None,
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

    ``method``:

    - "surrogate": the poster's step with :math:`\\sigma = (\\rho/\\nu)^{-\\theta}`, held by the particles with
      weights :math:`\\sigma/\\rho`. Needs ``potential`` (U at points (N, d): (N,)) and the density of
      the particles: ``log_density`` at the start (N,), carried along by the Jacobians of the steps; a
      function ``log_density(X, k)`` of the particles after k steps; or None for a kernel estimate with
      ``bandwidth`` (default :func:`silverman`'s, at every step). ``theta``: fixed, or None for :func:`auto_theta` at every step, so that the
      surrogate is as wide as the particles; a theta of the wrong sign has a surrogate that cannot be
      normalised, and weights that pile up at the edge.
    - "split": :math:`x - (B_{\\rho,\\varepsilon}(x) - x) + \\tfrac{\\varepsilon}{2}\\nabla\\log\\nu(x)`: the bridge
      of the particles themselves for :math:`-\\tfrac12\\nabla\\log\\rho`, and the target's ``score`` (N, d) as it is.
      No density is estimated. Not in the poster; same order, and the better choice for particles.
    - "auto": "split" if there is a score, else "surrogate".

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
    options = solver_options(x, tol, max_iter, max_memory, n_threads)
    method = _method(method, score, potential)
    record = Recorder(f"KL flow ({method})", x, w, epsilon, n, save_every, progress)
    if method == "split":
        assert score is not None
        return _split(x, epsilon, n, w, score, options, record)
    assert potential is not None
    fixed = None if theta is None else nonzero_theta(theta)
    if bandwidth is not None:
        bandwidth = _checks.positive("bandwidth", bandwidth)
    carried = None
    if log_density is not None and not callable(log_density):
        carried = _per_point("log_density", log_density, x)
    previous: BarycentricMap | None = None
    with record:
        for k in range(n):
            energy = _per_point("potential", potential(x), x)
            if carried is not None:
                logs = carried
            elif callable(log_density):
                logs = _per_point("log_density", log_density(x, k), x)
            else:
                logs = kde_log_density(x, bandwidth, w.astype(x.dtype))
            ratio = logs + energy
            now = auto_theta(logs, ratio, w) if fixed is None else fixed
            if math.isinf(now):  # at the target: the velocity is 0
                x = record.rest(x)
                continue
            sigma = w * surrogate_weights(-ratio / 2, now, log_density=logs)
            sigma /= sigma.sum()
            found = solve(x, epsilon, sigma, start(previous, sigma), options)
            growth = None if carried is None else _log_jacobian(found, now)
            if growth is not None and not np.isfinite(growth).all():
                record.end("a step folds the particles; their density cannot be carried")
                break
            x = record.step(found, now, moved(x, found.values, now))
            if record.ended:
                break
            if growth is not None:
                carried = logs - growth
            previous = found
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
            found = solve(x, epsilon, w, warm.guess(), options)
            drift = field_values("score", score, x)
            x = record.step(found, -1.0, moved(x, found.values, -1.0) + half * drift)
            if record.ended:
                break
            warm.keep(found)
    return record.result()


def _log_jacobian(found: BarycentricMap, theta: float) -> Float64:
    """log det of the step's derivative, :math:`(1-\\theta^{-1})I + \\mathrm{Cov}(Y|x)/\\theta\\varepsilon`;
    -inf or NaN where the step turns space over."""
    n, d = found.X.shape
    y = (found.X - found.X.mean(axis=0)).astype(np.float64)
    products = (y[:, :, None] * y[:, None, :]).reshape(n, d * d).astype(found.X.dtype)
    second = found.operator.apply(products).astype(np.float64).reshape(n, d, d)
    first = found.values - found.X.mean(axis=0)
    covariance = second - first[:, :, None] * first[:, None, :]
    derivative = (1 - 1 / theta) * np.eye(d) + covariance / (theta * found.epsilon)
    sign, logs = np.linalg.slogdet(derivative)
    out: Float64 = np.where(sign > 0, logs, -np.inf)
    return out


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
        raise ValueError(f"n_steps: wanted n_steps or T, got {got}; T makes ceil(T / epsilon) steps")
    if n_steps is None:
        assert T is not None
        return steps_for(T, epsilon)
    n = _checks.integer("n_steps", n_steps)
    if n < 1:
        raise ValueError(f"n_steps: wanted at least 1, got {n}")
    return n


def _method(method: str, score: object, potential: object) -> str:
    if method not in ("auto", "split", "surrogate"):
        raise ValueError(f'method: wanted "auto", "split" or "surrogate", got {method!r}')
    for name, given in (("score", score), ("potential", potential)):
        if given is not None and not callable(given):
            raise TypeError(f"{name}: wanted a function of the particles (N, d), got {given!r}")
    if method == "auto":
        if score is None and potential is None:
            raise ValueError(
                "score: wanted the target's score or its potential, got neither; pass "
                "score=lambda x: -x for N(0, I)"
            )
        method = "surrogate" if score is None else "split"
    if method == "split" and score is None:
        raise ValueError('score: wanted the target\'s score for "split", got None')
    if method == "surrogate" and potential is None:
        raise ValueError('potential: wanted the target\'s potential for "surrogate", got None')
    return method


def _per_point(name: str, value: npt.ArrayLike, x: Real) -> Float64:
    array = np.asarray(value, np.float64)
    if array.shape != (len(x),):
        raise ValueError(
            f"{name}: wanted one value per particle, shape ({len(x)},), got {array.shape}"
        )
    _checks.finite(name, array)
    return array
