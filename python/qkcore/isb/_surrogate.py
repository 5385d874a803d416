"""Surrogates along a flow: the density of the particles, and the step made from it (ISB-2, ISB-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend
from .._host import HOST
from .._lazy_scores import Real
from ..operators import softmax
from ..scores import distance
from ._barycentric import BarycentricMap, Options, start
from ._density import auto_theta, kernel_estimate, nonzero_theta, silverman, surrogate_weights
from ._result import FlowEnds
from ._steps import at_particles, bridge_of, moved

__all__ = ["LogDensity", "SurrogateDensity", "SurrogateSteps", "per_point"]

Float64 = npt.NDArray[np.float64]
LogDensity = npt.ArrayLike | Callable[[Any, int], npt.ArrayLike] | None

# The step may fold space at the outermost points of a support, which have neighbours on one side only. If
# they have no more mass than this, their density does not matter.
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
        where: Backend,
    ) -> None:
        self.w, self._where = w, where
        self.support: Real | None = None
        self._given: Callable[[Any, int], npt.ArrayLike] | None = None
        self._carried: Float64 | None = None
        self._bandwidth = None if bandwidth is None else _checks.positive("bandwidth", bandwidth)
        if support is not None:
            self.support, _ = _checks.points("support", where.here("support", support))
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
                    "log_density: wanted a function of points together with support=, got an array; "
                    "only values at the particles can be carried along"
                )
            try:
                self._carried = per_point("log_density", log_density, x, where)
            except FlowEnds as end:
                raise end.error from None

    def __call__(self, x: Real, k: int) -> Float64:
        """The log density at the support (by default the particles x) after k steps."""
        if self._carried is not None:
            return self._carried
        at = x if self.support is None else self.support
        if self._given is not None:
            given = self._given
            return per_point("log_density", lambda z: given(z, k), at, self._where)
        h = silverman(x, self.w.astype(x.dtype)) if self._bandwidth is None else self._bandwidth
        return kernel_estimate(x, h, self.w, at, self._where)

    def carry(self, found: BarycentricMap, theta: float) -> bool:
        """Updates carried values for a step; False if the step folds space where there is mass."""
        if self._carried is None:
            return True
        growth = _log_jacobian(found, theta, self._where)
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
        max_unevenness: float,
        options: Options,
    ) -> None:
        self._epsilon, self._potential, self._density = epsilon, potential, density
        self._theta = None if theta is None else nonzero_theta(theta)
        self._most = _limit(max_unevenness)
        self._options = options
        self._last: BarycentricMap | None = None
        self.unevenness = math.nan
        """that of the last step; NaN if it does not matter"""

    def step(self, x: Real, k: int) -> tuple[BarycentricMap | None, float, Real]:
        """The bridge of the surrogate, theta, and the moved particles; at the target the bridge is None."""
        own = self._density.support
        at = x if own is None else own
        logs = self._density(x, k)
        where = self._options.where
        ratio = logs + per_point("potential", self._potential, at, where)
        # The share of the particles' mass that each point of the support represents.
        share = self._density.w if own is None else np.exp(logs - logs.max())
        theta = auto_theta(logs, ratio, share) if self._theta is None else self._theta
        if math.isinf(theta):
            return None, theta, x
        weights = surrogate_weights(-ratio / 2, theta, log_density=logs if own is None else None)
        sigma = weights.astype(np.float64)
        if own is None:
            sigma *= self._density.w
            sigma /= sigma.sum()
        found = bridge_of(at, self._epsilon, sigma, start(self._last, sigma), self._options)
        self._last = found
        values = found.values if own is None else found._conditional(x, where).apply(found.X)
        if found.converged:
            self._look_at_cells(x, logs, theta, values)
        return found, theta, moved(x, values, theta)

    def _look_at_cells(self, x: Real, logs: Float64, theta: float, values: Real) -> None:
        """Ends the flow if the points of the surrogate are spaced so unevenly that the step would be wrong.

        The points of ``support`` must be cells that resolve the kernel around every particle. If the
        particles are the points, they must do so for theta > 0: then the step moves particles towards any
        excess of sigma, and so also towards chance clusters, which grow. With theta < 0 it moves them away
        from clusters, which dissolve, so nothing needs to be checked.
        """
        own = self._density.support
        self.unevenness = math.nan
        if own is None and theta < 0:
            return
        w = self._density.w
        with np.errstate(divide="ignore"):
            volumes = np.log(w) - logs if own is None else np.zeros(len(own))
        cells = x if own is None else own
        pull = _pull_of_cells(x, cells, volumes, self._epsilon, self._options.where)
        size = float(w @ ((values - x).astype(np.float64) ** 2).sum(axis=1))
        excess = float(w @ (pull**2).sum(axis=1))
        # The displacement is 0 if every particle has weight with a single cell only.
        self.unevenness = math.sqrt(excess / size) if size > 0 else math.inf
        if self.unevenness <= self._most:
            return
        found = f"an unevenness of {self.unevenness:.3g} (see max_unevenness)"
        if own is not None:
            wanted = (
                "equal cells not wider than about 1.5 sqrt(epsilon) that reach a few sqrt(epsilon) beyond "
                f"every particle, got {found}"
            )
            raise FlowEnds(
                f"the support does not resolve the kernel around the particles ({found}); pass a "
                'wider or finer support, or method="split"',
                ValueError(f'support: wanted {wanted}; pass such a grid, or method="split"'),
            )
        raise FlowEnds(
            f"the particles have clustered, as theta = {theta:.3g} > 0 makes them do, and no longer "
            f'represent the surrogate ({found}); use method="split", or support= a grid of equal cells',
            ValueError(
                'X: method="surrogate" without support= needs points like a grid, with weights / densities '
                f"that are even at the scale sqrt(epsilon), because theta = {theta:.3g} > 0 makes other "
                f'particles cluster; got {found}; pass method="split", which needs no density, or '
                "support= a grid of equal cells around the particles"
            ),
        )


def _pull_of_cells(x: Real, at: Real, volumes: Float64, epsilon: float, where: Backend) -> Float64:
    """How the cells alone, without any density, would move the particles (N, d).

    It is the mean of the cells around x under :math:`e^{-|x-y|^2/2\\varepsilon}`, minus x, which is zero if
    cells of these log volumes fill space evenly at the scale of the kernel. It adds to the displacement by
    the bridge of a density on these cells, and so estimates the error of that.
    """
    scores = where.visiting(distance(x, at, beta=1 / (2 * epsilon)))
    cells = scores.shift(columns=volumes.astype(x.dtype))
    pull: Float64 = (softmax(cells).apply(at) - x).astype(np.float64)
    return pull


def _limit(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise ValueError(
            f"max_unevenness: wanted a number > 0, or inf for no check, got {_checks.shown(value)}"
        )
    return number


def _log_jacobian(found: BarycentricMap, theta: float, where: Backend) -> Float64:
    """log det of the step's derivative, :math:`(1-\\theta^{-1})I + \\mathrm{Cov}(Y|x)/\\theta\\varepsilon`;
    -inf where the step reverses the orientation of space."""
    n, d = found.X.shape
    y = (found.X - found.X.mean(axis=0)).astype(np.float64)
    products = (y[:, :, None] * y[:, None, :]).reshape(n, d * d).astype(found.X.dtype)
    second = found._conditional(found.X, where).apply(products).astype(np.float64).reshape(n, d, d)
    first = found.values - found.X.mean(axis=0)
    covariance = second - first[:, :, None] * first[:, None, :]
    derivative = (1 - 1 / theta) * np.eye(d) + covariance / (theta * found.epsilon)
    sign, logs = np.linalg.slogdet(derivative)
    out: Float64 = np.where(sign > 0, logs, -np.inf)
    return out


def per_point(name: str, given: Any, x: Real, where: Backend = HOST) -> Float64:
    """One number for each point, from an array or a function of the points."""
    values = at_particles(name, given, x, (len(x),), np.float64, where)
    return values.astype(np.float64)
