"""Densities of particles and the surrogate measures made from them (ISB-2, ISB-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend
from .._host import HOST
from .._lazy_scores import Real
from ..scores import distance
from ._barycentric import masses

__all__ = ["auto_theta", "kde_log_density", "silverman", "surrogate_weights"]

Float64 = npt.NDArray[np.float64]

_LEAST_THETA = 0.25


def silverman(X: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """Silverman's bandwidth of a Gaussian kernel estimate: :math:`\\sigma\\,(4/((d+2)n))^{1/(d+4)}`.

    :math:`\\sigma^2` is the mean variance of the coordinates, n the effective number of points.

    >>> import numpy as np, qkcore as qk
    >>> round(qk.isb.silverman(np.linspace(-1, 1, 100)[:, None]), 3)
    0.246
    """
    x, _ = _checks.points("X", X)
    _checks.one_problem("X", x.shape[:-2])
    w = masses("weights", weights, x)
    n, d = 1 / float(np.sum(w**2)), x.shape[1]
    centred = x - w @ x
    variance = float(np.mean(w @ centred.astype(np.float64) ** 2))
    if not variance > 0:
        raise ValueError(
            "X: wanted points that differ, to choose a bandwidth, got equal points; pass bandwidth="
        )
    return math.sqrt(variance) * float((4 / ((d + 2) * n)) ** (1 / (d + 4)))


def kde_log_density(
    X: npt.ArrayLike,
    bandwidth: float | None = None,
    weights: npt.ArrayLike | None = None,
    *,
    at: npt.ArrayLike | None = None,
) -> Float64:
    """log of a Gaussian kernel estimate of the density of X (N, d), at its own points or ``at`` (M, d).

    :math:`\\log\\sum_j w_j (2\\pi h^2)^{-d/2} e^{-|x-x_j|^2/2h^2}` in O(N) memory; h is the
    ``bandwidth``, by default that of :func:`silverman`. The estimate has the variance of the points plus h².

    >>> import numpy as np, qkcore as qk
    >>> bool(np.isclose(qk.isb.kde_log_density(np.zeros((1, 1)), 1.0)[0], -0.5 * np.log(2 * np.pi)))
    True
    """
    x, _ = _checks.points("X", X)
    _checks.one_problem("X", x.shape[:-2])
    w = masses("weights", weights, x)
    h = silverman(x, weights) if bandwidth is None else _checks.positive("bandwidth", bandwidth)
    return kernel_estimate(x, h, w, x if at is None else at, HOST)


def kernel_estimate(x: Real, h: float, w: Float64, at: Any, where: Backend) -> Float64:
    """The logarithm of the kernel estimate of bandwidth h at ``at``, computed by the backend ``where``."""
    with np.errstate(divide="ignore"):
        logs: Real = np.log(w).astype(x.dtype)
    s = where.visiting(distance(at, x, beta=1 / (2 * h * h))).shift(columns=logs)
    constant = x.shape[1] * (0.5 * math.log(2 * math.pi) + math.log(h))
    found: Float64 = s.logsumexp(1).astype(np.float64) - constant
    return found


def auto_theta(
    log_density: npt.ArrayLike, log_ratio: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> float:
    """The theta whose surrogate :math:`(\\rho/\\nu)^{-\\theta}` is closest to :math:`\\rho` (ISB-2).

    :math:`-\\mathrm{Cov}(\\log\\rho, \\log\\rho/\\nu) / \\mathrm{Var}(\\log\\rho/\\nu)`: least squares for
    :math:`-\\theta\\log(\\rho/\\nu) \\approx \\log\\rho`. It is -1 for the heat flow, exactly
    :math:`1/(s^2 - 1)` from N(0, s²) to N(0, 1), and infinite if rho equals nu. Its absolute value is at
    least 1/4, because the step divides the errors of the bridge at the edge of a support by theta.

    >>> import numpy as np, qkcore as qk
    >>> x = np.linspace(-3, 3, 50)
    >>> round(qk.isb.auto_theta(-(x**2) / 8, -(x**2) / 8 + x**2 / 2), 12)  # N(0, 4) to N(0, 1)
    0.333333333333
    """
    density, ratio = _vectors(("log_density", log_density), ("log_ratio", log_ratio))
    w = masses("weights", weights, density[:, None])
    density, ratio = density - w @ density, ratio - w @ ratio
    variance = float(w @ ratio**2)
    # If the ratio is constant up to rounding, the law is the target already.
    if variance <= (1e-12 * (1 + float(np.abs(density).max()))) ** 2:
        return math.inf
    theta = -float(w @ (density * ratio)) / variance
    if theta == 0:
        raise ValueError(
            "log_ratio: wanted a ratio that varies with the density, got uncorrelated ones; pass theta="
        )
    return math.copysign(max(abs(theta), _LEAST_THETA), theta)


def surrogate_weights(
    psi: npt.ArrayLike, theta: float, *, log_density: npt.ArrayLike | None = None
) -> Real:
    """Weights on a support for the surrogate :math:`\\sigma \\propto e^{2\\theta\\psi}` (ISB-2).

    ``psi`` (N,): the values of :math:`\\psi` at the support; the velocity is :math:`\\nabla\\psi`.
    ``log_density`` (N,): the logarithm of the density :math:`\\rho` that the support was drawn from, which
    gives weights :math:`\\sigma/\\rho`; None for a grid of equal cells. The weights sum to 1 and have the
    dtype of ``psi``.

    >>> import numpy as np, qkcore as qk
    >>> x = np.linspace(-8, 8, 401)
    >>> w = qk.isb.surrogate_weights(-(x**2) / 8, 2.0)  # e^{-x²/2}: N(0, 1)
    >>> bool(np.isclose(w @ x**2, 1.0))
    True
    """
    theta = nonzero_theta(theta)
    (values,) = _vectors(("psi", psi))
    logs = 2 * theta * values
    if log_density is not None:
        (density,) = _vectors(("log_density", log_density))
        _checks.shape("log_density", density.shape, logs.shape, why="as psi")
        logs = logs - density
    w = np.exp(logs - logs.max())
    found: Real = (w / w.sum()).astype(_checks.real_array("psi", psi).dtype)
    return found


def nonzero_theta(theta: float) -> float:
    out = _checks.number("theta", theta)
    if out == 0:
        raise ValueError("theta: wanted a number other than 0, got 0; the heat flow has -1")
    return out


def _vectors(*named: tuple[str, npt.ArrayLike]) -> list[Float64]:
    out: list[Float64] = []
    for name, value in named:
        array = _checks.real_array(name, value)
        _checks.shape(name, array.shape, ("N",), why="with one value per point")
        _checks.not_empty(name, array)
        _checks.finite(name, array)
        out.append(array.astype(np.float64))
    return out
