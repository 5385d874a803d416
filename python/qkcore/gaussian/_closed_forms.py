"""Gaussian flows in closed form: on a line, with commuting parameters, of rank one (TPDE-3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from .._ode import Arrays, Integrator
from ._roots import root

__all__ = [
    "Commuting",
    "RankOne",
    "commuting",
    "l2_line",
    "rank_one",
    "sinkhorn_line",
    "softmax_blow_up_line",
    "softmax_line",
]

# Commutators up to this size, relative to the factors, count as zero.
_COMMUTES = 1e-10


def softmax_blow_up_line(s0: npt.ArrayLike, a: npt.ArrayLike, v: npt.ArrayLike) -> Real:
    """The blow-up time :math:`(2 v a s_0)^{-1}` on a line, inf when :math:`va \\le 0` (TPDE 4.3).

    >>> from qkcore.gaussian import softmax_blow_up_line
    >>> float(softmax_blow_up_line(0.5, 2.0, 1.0)), float(softmax_blow_up_line(0.5, -2.0, 1.0))
    (0.5, inf)
    """
    rate = 2 * _checks.doubles("v", v) * _checks.doubles("a", a) * _variance("s0", s0)
    with np.errstate(divide="ignore"):
        return np.where(rate > 0, 1 / rate, math.inf)


def softmax_line(s0: npt.ArrayLike, a: npt.ArrayLike, v: npt.ArrayLike, t: npt.ArrayLike) -> Real:
    """The variance :math:`s(t) = (s_0^{-1} - 2vat)^{-1}` on a line under softmax attention (TPDE 4.3).

    Arguments broadcast; t may be inf, for the limit. The result is inf from the blow-up time on, where there
    is no solution.

    >>> import numpy as np
    >>> from qkcore.gaussian import softmax_line
    >>> softmax_line(1.0, 1.0, 1.0, np.array([0.0, 0.25, 0.5, 1.0]))
    array([ 1.,  2., inf, inf])
    """
    start = _variance("s0", s0)
    numbers = _checks.doubles
    left = 1 - _grown(2 * numbers("v", v) * numbers("a", a) * start, numbers("t", t, inf=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > 0, start / left, math.inf)


def l2_line(
    s0: npt.ArrayLike, q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, t: npt.ArrayLike
) -> Real:
    """The variance on a line under L2 attention, :math:`\\dot s = 4qkvs^2/(1 + 2k^2s)` (TPDE 4.13).

    With :math:`u = 1/(2k^2s)`, :math:`u + \\log u` falls at the rate :math:`2qv/k`, so u is Wright's omega
    function of a linear function of time. The variance is finite at every finite time (lemma 4.12). Arguments
    broadcast; t may be inf, for the limit.

    >>> from qkcore.gaussian import l2_line
    >>> round(float(l2_line(1.0, 1.0, 1.0, -1.0, 2.0)), 6)
    0.179647
    """
    from scipy.special import wrightomega

    start, q_, k_, v_, time = np.broadcast_arrays(
        _variance("s0", s0),
        *map(_checks.doubles, "qkv", (q, k, v)),
        _checks.doubles("t", t, inf=True),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        u0 = 1 / (2 * k_**2 * start)
        u = wrightomega(u0 + np.log(u0) - _grown(2 * q_ * v_ / k_, time))
        found = 1 / (2 * k_**2 * u)
    return np.where((q_ * k_ * v_ == 0) | (start == 0), start, found)


def sinkhorn_line(
    s0: npt.ArrayLike,
    a: npt.ArrayLike,
    v: npt.ArrayLike,
    t: npt.ArrayLike,
    epsilon: float = 1.0,
) -> Real:
    """The variance on a line under Sinkhorn attention (TPDE 4.17, any ε).

    :math:`\\dot s = \\frac{v}{a\\varepsilon}(\\sqrt{4a^2s^2 + \\varepsilon^2} - \\varepsilon)`. With
    :math:`2|a|s = \\varepsilon\\sinh\\theta`, :math:`\\theta - \\coth(\\theta/2)` grows at the rate
    :math:`2v\\,\\mathrm{sign}(a)/\\varepsilon`; θ is found by bisection and Newton steps.
    Arguments broadcast; t may be inf, for the limit.

    >>> from qkcore.gaussian import sinkhorn_line
    >>> round(float(sinkhorn_line(1.0, 1.0, -1.0, 2.0)), 6)
    0.227372
    """
    eps = _checks.positive("epsilon", epsilon)
    start, a_, v_, time = np.broadcast_arrays(
        _variance("s0", s0),
        *map(_checks.doubles, "av", (a, v)),
        _checks.doubles("t", t, inf=True),
    )
    # The limit of a variance that is not constant.
    limit = np.where(v_ * a_ * np.sign(time) > 0, math.inf, 0.0)
    still = (a_ == 0) | (start == 0) | (v_ == 0)
    forever, time = np.isinf(time), np.where(np.isinf(time), 0.0, time)
    size = np.where(still, 1.0, np.abs(a_))
    theta0 = np.arcsinh(2 * size * np.where(still, 1.0, start) / eps)
    target = theta0 - 1 / np.tanh(theta0 / 2) + 2 * v_ * np.sign(a_) * time / eps
    # theta - coth(theta/2) increases with theta, and equals the target between these bounds.
    low = 1 / (2 + np.abs(target))
    high = np.maximum(target, 0) + 3.0
    for _ in range(60):
        middle = np.where(high > 4 * low, np.sqrt(low * high), 0.5 * (low + high))
        above = middle - 1 / np.tanh(middle / 2) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    theta = 0.5 * (low + high)
    for _ in range(3):
        slope = 1 + 0.5 / np.sinh(theta / 2) ** 2
        theta = theta - (theta - 1 / np.tanh(theta / 2) - target) / slope
    return np.where(still, start, np.where(forever, limit, eps * np.sinh(theta) / (2 * size)))


def _grown(rate: Real, time: Real) -> Real:
    """rate * time, and 0 for a rate of 0 even if the time is inf."""
    with np.errstate(invalid="ignore"):
        return np.where(rate == 0, 0.0, rate * time)


def _variance(name: str, value: npt.ArrayLike) -> Real:
    array = _checks.doubles(name, value)
    _checks.none_negative(name, array, "finite variances >= 0")
    return array


# ---- commuting parameters (proposition 4.4, remark 4.5) -------------------------------------------


@dataclass(frozen=True, eq=False)
class Commuting:
    """The solution :math:`\\Sigma(t) = (\\Sigma_0^{-1} - tB)^{-1}`, :math:`B = VA + A^\\top V^\\top`."""

    cov: Real = field(repr=False)
    """:math:`\\Sigma_0`"""
    generator: Real
    """B"""
    blow_up_time: float
    """1 / the largest eigenvalue of :math:`\\Sigma_0^{1/2}B\\Sigma_0^{1/2}`, inf if no eigenvalue is > 0"""
    limit: Real | None
    """:math:`\\lim\\Sigma(t)`, the part of the law on ker B; None if it blows up"""
    limit_rank: int | None

    def __call__(self, t: npt.ArrayLike) -> Real:
        """Σ at times t (...), as (..., d, d); t must be before the blow-up."""
        times = _checks.doubles("t", t)
        if not (times < self.blow_up_time).all():
            raise ValueError(
                f"t: wanted times before the blow-up at {self.blow_up_time:.6g}, got up to {times.max():.6g}"
            )
        values, left = _growth_rates(self.cov, self.generator)
        scales = 1 / (1 - times[..., None] * values)
        out: Real = (left * scales[..., None, :]) @ left.T
        return out


def commuting(cov: npt.ArrayLike, A: npt.ArrayLike, V: npt.ArrayLike) -> Commuting:
    """The softmax flow when V commutes with Σ₀ and with :math:`B = VA + A^\\top V^\\top` (TPDE 4.4).

    Σ₀ may be singular. Parameters that do not commute are refused.

    >>> import numpy as np
    >>> from qkcore.gaussian import commuting
    >>> solution = commuting(np.diag([1.0, 2.0]), np.diag([-1.0, 0.0]), np.eye(2))
    >>> solution.blow_up_time, solution.limit_rank
    (inf, 1)
    >>> solution.limit
    array([[0., 0.],
           [0., 2.]])
    >>> solution(0.5)
    array([[0.5, 0. ],
           [0. , 2. ]])
    """
    sigma = _checks.covariances("cov", cov).astype(np.float64)
    a, v = (_square(name, x, sigma.shape[-1]) for name, x in (("A", A), ("V", V)))
    _checks.shape("cov", sigma.shape, ("d", "d"), what="one covariance", do="take them one by one")
    B = v @ a
    B = B + B.T
    for name, other in (("cov", sigma), ("VA + A^T V^T", B)):
        if (size := _commutator(v, other)) > _COMMUTES:
            raise ValueError(
                f"V: wanted a matrix that commutes with {name}, got a commutator of relative size "
                f"{size:.2g}; use qk.gaussian.flow"
            )
    rates, left = _growth_rates(sigma, B)
    if rates[-1] > 0:
        return Commuting(sigma, B, float(1 / rates[-1]), None, None)
    limit = left[:, rates == 0] @ left[:, rates == 0].T
    scale = 1e-12 * max(float(np.abs(sigma).max()), np.finfo(float).tiny)
    return Commuting(sigma, B, math.inf, limit, int((np.linalg.eigvalsh(limit) > scale).sum()))


def _growth_rates(cov: Real, generator: Real, noise: float = 1e-12) -> tuple[Real, Real]:
    """Eigenvalues (rates) of :math:`\\Sigma^{1/2}B\\Sigma^{1/2}`, and :math:`\\Sigma^{1/2}` times its
    eigenvectors u, so that :math:`\\Sigma(t) = \\sum_k u_k u_k^\\top / (1 - t\\,rate_k)`. Rates that are
    rounding errors are set to 0."""
    half = root(cov)
    rates, vectors = np.linalg.eigh(half @ generator @ half)
    size = np.abs(rates).max(axis=-1, keepdims=True)
    return np.where(np.abs(rates) <= noise * size, 0.0, rates), half @ vectors


class CommutingBatch(NamedTuple):
    """What proposition 4.4 says about each law of a batch."""

    applies: npt.NDArray[np.bool_]
    """whether the parameters commute, which they always do in one dimension"""
    blow_up: npt.NDArray[np.float64]
    limit: npt.NDArray[np.float64]
    """the limits of the covariances; NaN if they blow up or the proposition does not apply"""
    limit_rank: npt.NDArray[np.int64]
    """their ranks; -1 if there is no limit"""


def commuting_batch(cov: Real, A: Real, V: Real) -> CommutingBatch:
    """Blow-up times, limits and ranks of limits as by :func:`commuting`, for a batch (..., d, d)."""
    sigma, a, v = np.broadcast_arrays(*(x.astype(np.float64) for x in (cov, A, V)))
    B = v @ a
    B = B + B.swapaxes(-1, -2)
    single = cov.dtype == np.float32
    allowed = 1e-5 if single else _COMMUTES
    applies = np.asarray(_commutators(v, sigma) <= allowed)
    if applies.any():
        applies &= _commutators(v, B) <= allowed
    times = np.full(applies.shape, math.inf)
    limit, rank = np.full(sigma.shape, math.nan), np.full(applies.shape, -1)
    if applies.any():
        noise = 1e-5 if single else 1e-12
        start = sigma[applies]
        rates, left = _growth_rates(start, B[applies], noise)
        top = rates[:, -1]
        times[applies] = np.where(top > 0, 1 / np.where(top > 0, top, 1.0), math.inf)
        still = left * (rates == 0)[:, None, :]
        ends = still @ still.swapaxes(-1, -2)
        scale = noise * np.maximum(np.abs(start).max(axis=(-2, -1)), np.finfo(float).tiny)
        ranks = (np.linalg.eigvalsh(ends) > scale[:, None]).sum(axis=-1)
        limit[applies] = np.where((top > 0)[:, None, None], math.nan, ends)
        rank[applies] = np.where(top > 0, -1, ranks)
    return CommutingBatch(applies, times, limit, rank)


def _commutators(x: Real, y: Real) -> Any:
    gap = np.linalg.norm(x @ y - y @ x, axis=(-2, -1))
    size = np.linalg.norm(x, axis=(-2, -1)) * np.linalg.norm(y, axis=(-2, -1))
    return gap / np.where(size > 0, size, 1.0)


def _commutator(x: Real, y: Real) -> float:
    return float(_commutators(x, y))


def _square(name: str, value: npt.ArrayLike, d: int) -> Real:
    array = _checks.doubles(name, value)
    _checks.shape(
        name,
        array.shape,
        (d, d),
        why="as the covariance",
        do="pass A = K.T @ Q" if name == "A" else "",
    )
    _checks.finite(name, array)
    return array


# ---- rank one (lemma 4.6) ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RankOne:
    """:math:`\\Sigma(t) = u(t)u(t)^\\top` with :math:`u(t) = e^{\\tau(t) V}u_0` for a time change τ."""

    t: npt.NDArray[np.float64]
    u: Real = field(repr=False)
    """(times, d)"""
    clock: npt.NDArray[np.float64] = field(repr=False)
    """τ at these times"""

    @property
    def cov(self) -> Real:
        """:math:`uu^\\top`, (times, d, d)."""
        return self.u[:, :, None] * self.u[:, None, :]


def rank_one(u0: npt.ArrayLike, A: npt.ArrayLike, V: npt.ArrayLike, t: npt.ArrayLike) -> RankOne:
    """The softmax flow from :math:`u_0u_0^\\top`: :math:`\\dot u = (u^\\top Au)Vu` (TPDE 4.6).

    The paper gives no formula for u(t). Up to a time change it is explicit: :math:`u = e^{\\tau V}u_0` with
    :math:`\\dot\\tau = q(\\tau) = u^\\top Au`. This scalar equation is solved to 1e-12. Times beyond a
    blow-up are refused.

    >>> import numpy as np
    >>> from qkcore.gaussian import rank_one
    >>> found = rank_one(np.array([1.0, 1.0]), -np.eye(2), np.eye(2), [0.0, 1.0])
    >>> found.cov[1]  # u^T u = 1 / (1/2 + 2 t)
    array([[0.2, 0.2],
           [0.2, 0.2]])
    """
    from scipy.linalg import expm

    u = _checks.doubles("u0", u0)
    _checks.shape("u0", u.shape, ("d",), what="one vector")
    _checks.not_empty("u0", u)
    _checks.finite("u0", u)
    a, v = (_square(name, x, u.size) for name, x in (("A", A), ("V", V)))
    times = np.atleast_1d(_checks.doubles("t", t))
    _checks.rising("t", times, strictly=False)
    _checks.none_negative("t", times, "times from 0 on")

    def rates(y: Real, _: float) -> Real:  # the derivatives of tau and of u
        speed = float(y[1:] @ a @ y[1:])
        return np.append(speed, speed * (v @ y[1:]))

    state = Arrays(rates, np.append(0.0, u), 0.0, rtol=1e-13, atol=1e-14)
    steps = Integrator(state, max_steps=10**6)
    clock = np.zeros_like(times)
    for k in range(times.size):
        if not steps.advance(float(times[k])):
            end = "limit on steps" if steps.status == "step limit" else "blow-up"
            raise ValueError(
                f"t: wanted times before the {end} near {state.t:.6g}, got up to {times[-1]:.6g}"
            )
        clock[k] = state.x[0]
    path = [np.asarray(expm(tau * v) @ u) for tau in clock]
    return RankOne(times, np.stack(path), clock)
