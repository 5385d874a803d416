"""The variance-preserving process, and its reverse-time samplers as tables of coefficients.

The forward process is :math:`dx = -\\frac12\\beta(t)x\\,dt + \\sqrt{\\beta(t)}\\,dW` with linear beta, hence
:math:`x_t = \\alpha x_0 + \\sigma\\varepsilon`, :math:`\\alpha^2 + \\sigma^2 = 1`. With
:math:`D(x, t) = E[x_0 | x_t = x]` the score is :math:`(\\alpha D - x)/\\sigma^2`, and one step of any
sampler here is

.. math:: x \\leftarrow \\text{keep}\\,x + \\text{pull}\\,D(x, t) + \\text{noise}\\,\\xi.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SCHEMES = ("ddim", "euler")
FLOWS = ("sde", "ode")


@dataclass(frozen=True)
class VP:
    """beta(t) from beta_min at t = 0 to beta_max at t = 1 (Song et al. 2021).

    >>> vp = VP(0.1, 20.0)
    >>> bool(np.isclose(vp.alpha(0.3) ** 2 + vp.sigma(0.3) ** 2, 1))
    True
    """

    beta_min: float
    beta_max: float

    def beta(self, t: npt.ArrayLike) -> Array:
        """Squared diffusion coefficient: a = beta I."""
        return np.asarray(self.beta_min + np.asarray(t) * (self.beta_max - self.beta_min))

    def log_alpha(self, t: npt.ArrayLike) -> Array:
        """:math:`-\\frac12\\int_0^t\\beta`."""
        s = np.asarray(t, dtype=np.float64)
        return np.asarray(-0.25 * s * s * (self.beta_max - self.beta_min) - 0.5 * s * self.beta_min)

    def alpha(self, t: npt.ArrayLike) -> Array:
        """The factor of the image in x_t."""
        return np.asarray(np.exp(self.log_alpha(t)))

    def sigma(self, t: npt.ArrayLike) -> Array:
        """The noise's standard deviation, computed without cancellation near t = 0."""
        return np.asarray(np.sqrt(-np.expm1(2 * self.log_alpha(t))))


def grid(n_steps: int, t_end: float) -> Array:
    """n_steps + 1 equally spaced times from 1 back to t_end."""
    return np.linspace(1.0, t_end, n_steps + 1)


@dataclass(frozen=True, eq=False)
class Steps:
    """A sampler as a table: coefficients of step k, from t[k] to t[k+1].

    With ``carry``, ``gain`` and ``release`` the normal numbers xi of small steps add up to the noise of a
    large step: this is ``release`` times the last value of ``c = carry c + gain xi`` over the small steps. So
    samplers with different step sizes can share one Brownian path.
    """

    t: Array
    keep: Array
    pull: Array
    noise: Array
    carry: Array
    gain: Array
    release: Array

    def __len__(self) -> int:
        return len(self.keep)


def steps(vp: VP, times: Array, flow: str, scheme: str) -> Steps:
    """The table for a flow ("sde" or "ode") and a scheme ("euler" or "ddim").

    "euler" is Euler-Maruyama for the SDE and Euler for the probability flow. "ddim" is exact as long as D
    does not change: it is DDIM (Song et al. 2020) with eta = 0 for the flow, and with eta = 1 (DDPM's
    ancestral step) for the SDE.

    >>> ode = steps(VP(0.1, 20.0), grid(4, 0.001), "ode", "ddim")
    >>> bool(np.all(ode.noise == 0))
    True
    """
    if flow not in FLOWS or scheme not in SCHEMES:
        raise ValueError(f"flow, scheme: wanted one of {FLOWS} and {SCHEMES}, got {flow}, {scheme}")
    t, s = times[:-1], times[1:]
    h = t - s
    a, b = vp.alpha(t), vp.alpha(s)
    v, w = vp.sigma(t) ** 2, vp.sigma(s) ** 2
    one = np.ones_like(h)
    stochastic = flow == "sde"
    if scheme == "euler":
        beta = vp.beta(t)
        force = beta * h if stochastic else beta * h / 2
        spread = np.sqrt(beta * h) if stochastic else 0 * h
        return Steps(
            times,
            1 + beta * h / 2 - force / v,
            force * a / v,
            spread,
            one,
            np.sqrt(h),
            np.sqrt(beta),
        )
    if not stochastic:
        ratio = np.sqrt(w / v)
        return Steps(times, ratio, b - a * ratio, 0 * h, one, 0 * h, one)
    # For q(x_s | x_t, x_0): the variance that the forward step from s to t adds, without cancellation.
    added = -np.expm1(2 * (vp.log_alpha(t) - vp.log_alpha(s)))
    keep = (a / b) * w / v
    spread = np.sqrt(added * w / v)
    return Steps(times, keep, b * added / v, spread, keep, spread, one)
