"""Measured convergence of the bridge scheme: fitted exponents and Gaussian closed forms (ISB-4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._density import auto_theta, nonzero_theta, surrogate_weights
from ._flows import heat_flow, ornstein_uhlenbeck, steps_for
from ._laws import Mixture
from ._steps import step

__all__ = [
    "Rate",
    "fit_rate",
    "gaussian_entropy_gap",
    "gaussian_slope",
    "gaussian_variances",
    "one_step_rate",
    "uniform_rate",
]

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rate:
    """Errors at several epsilon and the exponent of the power law fitted to them."""

    epsilons: Float64 = field(repr=False)
    errors: Float64 = field(repr=False)
    slope: float
    """of log error against log epsilon, by least squares"""
    slope_error: float
    """standard error of the slope; NaN for two points"""
    constant: float
    """c of the fitted error :math:`c\\,\\varepsilon^{slope}`"""

    @property
    def local_slopes(self) -> Float64:
        """The exponents between neighbouring values of epsilon."""
        found: Float64 = np.diff(np.log(self.errors)) / np.diff(np.log(self.epsilons))
        return found

    def __str__(self) -> str:
        rows = "\n".join(
            f"  {e:10.4g} {x:12.4g}" for e, x in zip(self.epsilons, self.errors, strict=True)
        )
        return (
            f"error about {self.constant:.3g} epsilon^{self.slope:.3f} (+- {self.slope_error:.3f})\n"
            f"     epsilon        error\n{rows}"
        )


def fit_rate(epsilons: npt.ArrayLike, errors: npt.ArrayLike) -> Rate:
    """The exponent of errors that follow a power law.

    >>> import qkcore as qk
    >>> print(qk.isb.fit_rate([0.1, 0.2, 0.4], [0.03, 0.12, 0.48]))
    error about 3 epsilon^2.000 (+- 0.000)
         epsilon        error
             0.1         0.03
             0.2         0.12
             0.4         0.48
    """
    e, x = _checks.doubles("epsilons", epsilons), _checks.doubles("errors", errors)
    if e.ndim != 1 or e.shape != x.shape or e.size < 2:
        raise ValueError(
            f"errors: wanted two or more errors, one per epsilon, got shapes {e.shape}, {x.shape}"
        )
    if not ((e > 0).all() and (x > 0).all()):
        raise ValueError(
            "errors: wanted positive epsilons and errors, whose logarithms are fitted, got others"
        )
    a, b = np.log(e), np.log(x)
    a_mean, spread = a.mean(), float(((a - a.mean()) ** 2).sum())
    if spread == 0:
        raise ValueError("epsilons: wanted different ones, got one value only")
    # Both are centred, because otherwise the rounding error of one mean would be multiplied by the other.
    slope = float(((a - a_mean) * (b - b.mean())).sum()) / spread
    off = b - b.mean() - slope * (a - a_mean)
    error = math.sqrt(float(off @ off) / (e.size - 2) / spread) if e.size > 2 else math.nan
    return Rate(e, x, slope, error, math.exp(float(b.mean() - slope * a_mean)))


# ---- normal laws, in closed form ----------------------------------------------------------------


def gaussian_slope(variance: float, epsilon: float) -> float:
    """b with :math:`B_{\\rho,\\varepsilon}(x) = bx` for :math:`\\rho = N(0, s^2)` (ISB-4).

    The coupling is normal with covariance c that solves :math:`c^2 + \\varepsilon c = s^4`, so
    :math:`b = \\sqrt{1 + a^2} - a` with :math:`a = \\varepsilon/2s^2`.

    >>> import qkcore as qk
    >>> qk.isb.gaussian_slope(1.0, 1.5)
    0.5
    """
    a = _checks.positive("epsilon", epsilon) / (2 * _checks.positive("variance", variance))
    return 1 / (math.sqrt(1 + a * a) + a)  # the same, without cancellation


def gaussian_variances(
    variance: float,
    epsilon: float,
    n_steps: int,
    *,
    target: float | None = None,
    theta: float | None = None,
) -> Float64:
    """Variances of N(0, s²) under the bridge scheme, in closed form, (n_steps + 1,) (ISB-4).

    ``target=None``: the heat flow, theta = -1. Otherwise the flow to N(0, target) with the surrogate
    :math:`(\\rho/\\nu)^{-\\theta}`; ``theta=None`` takes that of :func:`auto_theta`, target / (s² - target).

    >>> import qkcore as qk
    >>> qk.isb.gaussian_variances(1.0, 0.5, 1)  # (2 - b)² with b = 0.7808; exactly: 1.5
    array([1.        , 1.48...])
    """
    s2 = _checks.positive("variance", variance)
    epsilon = _checks.positive("epsilon", epsilon)
    n = _checks.integer_within("n_steps", n_steps, 1, 10**9, "a flow has a step")
    target, fixed = _checked_target(target, theta)
    out = [s2]
    for _ in range(n):
        if target is None:
            factor = 2 - gaussian_slope(s2, epsilon)
        else:
            pull = 1 / target - 1 / s2
            if pull == 0:
                out.append(s2)
                continue
            now = 1 / (s2 * pull) if fixed is None else fixed
            if not now * pull > 0:
                raise ValueError(
                    f"theta: wanted the sign of {pull:+.3g} for a surrogate that can be normalised, "
                    f"got {now:g}"
                )
            factor = 1 - (1 - gaussian_slope(1 / (now * pull), epsilon)) / now
        s2 *= factor * factor
        out.append(s2)
    return np.array(out)


def _checked_target(target: float | None, theta: float | None) -> tuple[float | None, float | None]:
    if target is None:
        if theta is not None:
            raise ValueError(
                f"theta: wanted None without target=, got {_checks.shown(theta)}; the heat flow has "
                "theta = -1"
            )
        return None, None
    return _checks.positive("target", target), None if theta is None else nonzero_theta(theta)


def gaussian_entropy_gap(variance: float, epsilon: float) -> float:
    """:math:`H(\\ell|\\pi) + H(\\pi|\\ell)` for N(0, s²).

    :math:`\\ell`: the law of :math:`(X_0, X_\\varepsilon)` under Langevin's equation; :math:`\\pi`: the
    bridge.

    Theorem 1 of the poster bounds it by :math:`\\varepsilon^2 C(\\varepsilon)` with
    :math:`C = O(\\varepsilon^2)` for normal laws; it is :math:`a^4/72 + \\dots` with
    :math:`a = \\varepsilon/2s^2` (ISB-4).

    >>> import qkcore as qk
    >>> a = 0.01
    >>> round(qk.isb.gaussian_entropy_gap(1.0, 2 * a) / (a**4 / 72), 1)
    1.0
    """
    bridge = gaussian_slope(variance, epsilon)
    a = _checks.positive("epsilon", epsilon) / (2 * variance)
    # Symmetrised divergence of two standard bivariate normals of correlations r and q:
    # (r - q)² (1 + rq) / ((1 - r²)(1 - q²)).
    langevin = math.exp(-a)
    return (
        _difference(a) ** 2
        * (1 + bridge * langevin)
        / ((1 - bridge * bridge) * -math.expm1(-2 * a))
    )


def _difference(a: float) -> float:
    """sqrt(1 + a²) - a - exp(-a); for small a, where the terms cancel, by its series."""
    if a > 0.1:
        return 1 / (math.sqrt(1 + a * a) + a) - math.exp(-a)
    root = a**2 / 2 - a**4 / 8 + a**6 / 16 - 5 * a**8 / 128 + 7 * a**10 / 256
    total, term = 0.0, 1.0
    for k in range(1, 14):
        term *= -a / k
        if k > 2:
            total += term
    return root - a**2 / 2 - total


# ---- any mixture, on a grid that resolves it ----------------------------------------------------


def one_step_rate(
    law: Mixture,
    epsilons: Sequence[float],
    *,
    target: float | None = None,
    theta: float | None = None,
    against: str = "euler",
    n: int = 1000,
) -> Rate:
    """W2 between one bridge step and one Euler (or ``against="exact"``) step, at each epsilon (ISB-4).

    ``target=None``: heat flow; otherwise the flow to N(0, target) with the surrogate step. Theorem 2 of the
    poster says :math:`o(\\varepsilon)`, that is, an exponent above 1. Both maps are monotone, so W2 is the
    L2 distance of the maps under the law. It is summed on a grid of n points, so there is no sampling error.

    >>> import qkcore as qk
    >>> rate = qk.isb.one_step_rate(qk.isb.Mixture.gaussian(0.0, 1.0), [0.01, 0.02, 0.04], n=400)
    >>> round(rate.slope, 1), round(rate.constant, 2)  # epsilon² / 8
    (2.0, 0.12)
    """
    _checks.one_of("against", against, ("euler", "exact"))
    _checks.instance("law", law, Mixture, "a Mixture")
    target, theta = _checked_target(target, theta)
    x, w = law.grid(n)
    errors = []
    for epsilon in epsilons:
        if target is None:
            stepped = step(x, epsilon, weights=w).X[:, 0]
            exact = law.heat(epsilon)
            velocity = -0.5 * law.score(x[:, 0])
        else:
            logs = law.log_pdf(x[:, 0])
            ratio = logs + x[:, 0] ** 2 / (2 * target)
            now = auto_theta(logs, ratio, w) if theta is None else theta
            sigma = surrogate_weights(-ratio / 2, now)
            stepped = step(x, epsilon, theta=now, surrogate=sigma).X[:, 0]
            exact = law.ornstein_uhlenbeck(epsilon, variance=target)
            velocity = -0.5 * (law.score(x[:, 0]) + x[:, 0] / target)
        other = (
            x[:, 0] + epsilon * velocity if against == "euler" else law.transport(x[:, 0], exact)
        )
        errors.append(_w2_of_maps(stepped, other, w))
    return fit_rate(epsilons, errors)


def uniform_rate(
    law: Mixture,
    epsilons: Sequence[float],
    T: float,
    *,
    target: float | None = None,
    method: str = "surrogate",
    theta: float | None = None,
    n: int = 1000,
) -> Rate:
    """:math:`\\sup_k W_2(\\rho^\\varepsilon_k, \\rho_{k\\varepsilon})` over [0, T] at each epsilon (ISB-4).

    It is measured for the heat flow, or with ``target`` for the flow to N(0, target) by either ``method`` of
    :func:`kl_flow`, where "surrogate" carries the density along. The composed maps are monotone, so they are
    compared on a grid, as in :func:`one_step_rate`.

    >>> import qkcore as qk
    >>> rate = qk.isb.uniform_rate(qk.isb.Mixture.gaussian(0.0, 1.0), [0.05, 0.1], 0.5, n=300)
    >>> round(rate.slope, 1)  # local errors epsilon³/16: twice as good as the theorem asks
    2.0
    """
    _checks.instance("law", law, Mixture, "a Mixture")
    _checks.one_of("method", method, ("split", "surrogate"))
    target, theta = _checked_target(target, theta)
    x, w = law.grid(n)
    errors = []
    for epsilon in epsilons:
        count = steps_for(T, epsilon)
        if target is None:
            flow = heat_flow(x, epsilon, count, weights=w)
        else:
            flow = ornstein_uhlenbeck(
                x,
                epsilon,
                count,
                variance=target,
                weights=w,
                method=method,
                theta=theta,
                log_density=law.log_pdf(x[:, 0]) if method == "surrogate" else None,
            )
        if not flow.converged:
            raise RuntimeError(f"uniform_rate: at epsilon {epsilon:g} the flow {flow.message}")
        worst = 0.0
        for t, state in zip(flow.t[1:], flow.x[1:], strict=True):
            exact = law.heat(t) if target is None else law.ornstein_uhlenbeck(t, variance=target)
            worst = max(worst, _w2_of_maps(state[:, 0], law.transport(x[:, 0], exact), w))
        errors.append(worst)
    return fit_rate(epsilons, errors)


def _w2_of_maps(first: Real, second: Real, w: Float64) -> float:
    return math.sqrt(float(w @ (first - second) ** 2))
