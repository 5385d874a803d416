"""Functions of the points, given as arrays or callables, and the column factors made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real

Double = npt.NDArray[np.float64]


def positive_values(name: str, given: object, points: Real) -> Double:
    """A positive number for every point, from an array (n,) or a function that maps points (n, d) to one."""
    value: Any = given(points.copy()) if callable(given) else given
    what = f"what {name} returns" if callable(given) else name
    values = _checks.doubles(name, value)
    if values.shape != (len(points),):
        raise ValueError(
            f"{name}: wanted {what} of shape ({len(points)},), a number for each point, got {values.shape}"
        )
    _checks.all_positive(name, values, do="leave out points that should not count")
    return values


@dataclass(frozen=True)
class RightFactors:
    """The factors r of a kernel's columns, applied before its rows are normalised.

    :math:`r_j = w_j\\,q_j^{-\\alpha}`, where q is the density of the points, given or the kernel's own sums;
    for a target density :math:`\\pi` it is :math:`r_j = \\pi_j^{1/2} \\rho_j^{-(m+2)/2} / q_j`.
    """

    alpha: float
    log_weights: Double | None
    log_target: Double | None
    log_density: Double | None

    @property
    def plain(self) -> bool:
        """Whether r is only a power of the kernel's own row sums."""
        return self.log_weights is None and self.log_target is None and self.log_density is None

    @property
    def estimates_density(self) -> bool:
        """Whether the sums of the kernel are needed."""
        wanted = self.alpha != 0 or self.log_target is not None
        return wanted and self.log_density is None

    def logarithms(
        self, log_sums: Double | None, log_bandwidth: Double | None, dimension: float
    ) -> Double | None:
        """log r, or None if all r are 1. Sums with a variable bandwidth are divided by its volume."""
        log_q = self.log_density
        if log_sums is not None:
            log_q = log_sums.astype(np.float64)
            if log_bandwidth is not None:
                log_q = log_q - dimension * log_bandwidth
        out: Double
        if self.log_target is not None:
            assert log_q is not None
            out = self.log_target / 2 - log_q
            if log_bandwidth is not None:
                out -= (dimension + 2) / 2 * log_bandwidth
        elif self.alpha != 0:
            assert log_q is not None
            out = -self.alpha * log_q
        elif self.log_weights is None:
            return None
        else:
            out = np.zeros(len(self.log_weights))
        if self.log_weights is not None:
            out = out + self.log_weights
        out -= out.max()  # a common factor of all columns cancels
        return out


def right_factors(
    points: Real, alpha: object, weights: object, target: object, density: object
) -> RightFactors:
    """The parameters of a map, checked."""
    power = _checks.number("alpha", alpha)
    if target is not None:
        if weights is not None:
            raise ValueError(
                "weights: wanted None together with a target, which is a weight itself, got both; multiply "
                "the target by the square of the weights"
            )
        if power not in (0, 1):
            raise ValueError(
                f"alpha: wanted 0 or 1 together with a target, which divides by the density, got {power:g}; "
                "leave alpha out"
            )
    elif density is not None and power == 0:
        raise ValueError(
            "density: wanted alpha other than 0, or a target, to divide by the density, got alpha=0; pass "
            "alpha=1"
        )

    def log(name: str, given: object) -> Double | None:
        if given is None:
            return None
        out: Double = np.log(positive_values(name, given, points))
        return out

    return RightFactors(
        power, log("weights", weights), log("target", target), log("density", density)
    )
