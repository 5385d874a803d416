"""Kernels whose bandwidth is a function of the points: given, or of their density (Berry and Harlim 2016)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._bandwidth import MOST_POINTS
from .._lazy_scores import Real
from .._points import WLike
from ._given import positive_values
from ._local_scale import Double, LocalKernel, SelfTuningKernel
from ._scale import BetaChoice, fastest_growth

Given = Callable[[Real], npt.ArrayLike]


class VariableKernel(LocalKernel):
    """The scores :math:`-\\beta |x_i-x_j|^2/(\\rho_i\\rho_j)`, the bandwidth :math:`\\rho` as ``scales``.

    ``choose`` finds beta and the intrinsic dimension where they are not given.
    """

    def __init__(self, points: Real, W: WLike) -> None:
        super().__init__(points, W, "bandwidth")
        self.dimension = 0.0
        """the intrinsic dimension of the data, which is in the powers that relate bandwidths to densities"""

    def choose(self, beta: float | None, dimension: float | None) -> BetaChoice:
        """Sets beta and the dimension; if not given, they are found where the kernel sum grows fastest."""
        found: BetaChoice | None = None
        if beta is None or (dimension is None and self.dimension == 0.0):
            found = _growth(self)
        if dimension is not None:
            self.dimension = dimension
        elif self.dimension == 0.0:
            assert found is not None
            self.dimension = _whole(found, self.features.shape[1])
        if beta is None:
            assert found is not None
            self.beta = found.beta
            return found
        self.beta = beta
        return BetaChoice(beta, "given", len(self.features), self.dimension)


class GivenBandwidth(VariableKernel):
    """The bandwidth as an array, for the points of the fit only, or as a function of points."""

    def __init__(self, points: Real, W: WLike, given: object) -> None:
        super().__init__(points, W)
        self._function = given if callable(given) else None
        self.scales = positive_values("bandwidth", given, points)

    def scales_of(self, points: Real, n_threads: int) -> Double:
        if self._function is None:
            raise ValueError(
                "bandwidth: wanted a function of points to extend the map to new ones, got an array for the "
                "points of fit; pass a callable (m, d) -> (m,)"
            )
        return positive_values("bandwidth", self._function, points)


class DensityBandwidth(VariableKernel):
    """:math:`\\rho = \\hat q^{-1/2}`, scaled to the geometric mean 1, so wide where points are sparse.

    The density :math:`\\hat q` is that of a self-tuning kernel,
    :math:`\\hat q_i\\propto\\sigma_i^{-m}\\sum_j e^{-b|x_i-x_j|^2/(\\sigma_i\\sigma_j)}`, with b and the
    dimension m where its sum grows fastest.
    """

    def __init__(
        self, points: Real, W: WLike, n_neighbors: int, dimension: float | None, n_threads: int
    ) -> None:
        super().__init__(points, W)
        self._tuned = SelfTuningKernel(points, W, 1.0, n_neighbors, n_threads)
        found = _growth(self._tuned)
        self._tuned.beta = found.beta
        self.dimension = _whole(found, self.features.shape[1]) if dimension is None else dimension
        log_density = self._log_density(None, n_threads)
        self._mean = float(log_density.mean())
        self.scales = self._bandwidth(log_density)

    def _log_density(self, points: Real | None, n_threads: int) -> Double:
        if points is None:
            s, sigma = self._tuned.scores(), self._tuned.scales
        else:
            sigma = self._tuned.scales_of(points, n_threads)
            s = self._tuned.cross(points, sigma)
        out: Double = s.logsumexp(n_threads=n_threads) - self.dimension * np.log(sigma)
        return out

    def _bandwidth(self, log_density: Double) -> Double:
        out: Double = np.exp((self._mean - log_density) / 2)
        return out

    def scales_of(self, points: Real, n_threads: int) -> Double:
        return self._bandwidth(self._log_density(points, n_threads))


def _growth(kernel: LocalKernel) -> BetaChoice:
    """Where the sum of the kernel grows fastest, on at most 1000 points."""
    minus = kernel.sample(MOST_POINTS)
    squares = -minus.to_numpy()
    some = squares[squares > 0]
    if not some.size:
        raise ValueError(
            "beta: wanted points that differ to find the scale of the kernel, got equal ones; pass beta and "
            "dimension as numbers"
        )
    return fastest_growth(minus, 1 / float(np.median(some)))


def _whole(found: BetaChoice, d: int) -> float:
    """The estimated dimension rounded to an integer from 1 to d, since manifolds have whole dimensions."""
    assert found.dimension is not None
    return float(min(max(round(found.dimension), 1), d))
