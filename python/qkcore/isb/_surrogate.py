"""Surrogates along a flow: the density of the particles, and the step that it gives (ISB-2, ISB-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._barycentric import BarycentricMap, Options, solve, start
from ._density import auto_theta, kde_log_density, nonzero_theta, surrogate_weights
from ._steps import moved

__all__ = ["LogDensity", "SurrogateDensity", "SurrogateSteps", "per_point"]

Float64 = npt.NDArray[np.float64]
LogDensity = npt.ArrayLike | Callable[[Any, int], npt.ArrayLike] | None

# The step may fold the last points of a support, where half of every neighbourhood is missing; with so
# little mass their density does not matter.
_FOLDED_MASS = 1e-9


class SurrogateDensity:
    """log density of the particles on the support of the surrogate: given, carried along, or estimated."""

    def __init__(
        self,
        x: Real,
        w: Float64,
        log_density: LogDensity,
        bandwidth: float | None,
        support: npt.ArrayLike | None,
    ) -> None:
        self.w = w
        self.support: Real | None = None
        self._given: Callable[[Any, int], npt.ArrayLike] | None = None
        self._carried: Float64 | None = None
        self._bandwidth = None if bandwidth is None else _checks.positive("bandwidth", bandwidth)
        if support is not None:
            self.support, _ = _checks.points("support", support)
            _checks.same_dtype("support", self.support, x.dtype, "X")
            if self.support.ndim != 2 or self.support.shape[1] != x.shape[1]:
                raise ValueError(
                    f"support: wanted points (M, {x.shape[1]}) as the particles, got shape "
                    f"{self.support.shape}"
                )
        if callable(log_density):
            self._given = log_density
        elif log_density is not None:
            if support is not None:
                raise ValueError(
                    "log_density: wanted a function of points for a support of its own, got an array; "
                    "values can be carried by the particles only"
                )
            self._carried = per_point("log_density", log_density, x)

    def __call__(self, x: Real, k: int) -> Float64:
        """At the support (the particles x by default) after k steps."""
        if self._carried is not None:
            return self._carried
        at = x if self.support is None else self.support
        if self._given is not None:
            return per_point("log_density", self._given(at, k), at)
        return kde_log_density(x, self._bandwidth, self.w.astype(x.dtype), at=self.support)

    def carry(self, found: BarycentricMap, theta: float) -> bool:
        """Follows the particles through a step; False if it folds them."""
        if self._carried is None:
            return True
        growth = _log_jacobian(found, theta)
        folded = ~np.isfinite(growth)
        if self.w[folded].sum() > _FOLDED_MASS:
            return False
        growth[folded] = 0.0
        self._carried = self._carried - growth
        return True


class SurrogateSteps:
    """The poster's step with :math:`\\sigma = (\\rho/\\nu)^{-\\theta}`."""

    def __init__(
        self,
        epsilon: float,
        potential: Callable[[Any], npt.ArrayLike],
        density: SurrogateDensity,
        theta: float | None,
        options: Options,
    ) -> None:
        self._epsilon, self._potential, self._density = epsilon, potential, density
        self._theta = None if theta is None else nonzero_theta(theta)
        self._options = options
        self._last: BarycentricMap | None = None

    def step(self, x: Real, k: int) -> tuple[BarycentricMap | None, float, Real]:
        """The bridge of the surrogate, theta, and the particles moved; no bridge at the target."""
        own = self._density.support
        at = x if own is None else own
        logs = self._density(x, k)
        ratio = logs + per_point("potential", self._potential(at), at)
        # How much of the particles' mass a point of the support stands for.
        share = self._density.w if own is None else np.exp(logs - logs.max())
        theta = auto_theta(logs, ratio, share) if self._theta is None else self._theta
        if math.isinf(theta):
            return None, theta, x
        weights = surrogate_weights(-ratio / 2, theta, log_density=logs if own is None else None)
        sigma = weights.astype(np.float64)
        if own is None:
            sigma *= self._density.w
            sigma /= sigma.sum()
        found = solve(at, self._epsilon, sigma, start(self._last, sigma), self._options)
        self._last = found
        return found, theta, moved(x, found.values if own is None else found(x), theta)


def _log_jacobian(found: BarycentricMap, theta: float) -> Float64:
    """log det of the step's derivative, :math:`(1-\\theta^{-1})I + \\mathrm{Cov}(Y|x)/\\theta\\varepsilon`;
    -inf where the step turns space over."""
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


def per_point(name: str, value: npt.ArrayLike, x: Real) -> Float64:
    array = _checks.doubles(name, value)
    if array.shape != (len(x),):
        raise ValueError(
            f"{name}: wanted one value per particle, shape ({len(x)},), got {array.shape}"
        )
    _checks.finite(name, array)
    return array
