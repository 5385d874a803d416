"""Moment projections onto Dirac measures, natural exponential families and Gaussians (MTA-1, MTA-2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._entropy import maximum_entropy
from ._measure import Measure, as_measure

__all__ = [
    "ExponentialFamily",
    "ExponentialMember",
    "Gaussian",
    "GaussianFamily",
    "kl_divergence",
    "moment_projection",
]

Statistics = Callable[[Real], npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class ExponentialMember:
    """:math:`\\nu_\\theta(dx) = e^{\\langle\\theta, F\\rangle - A(\\theta)}\\lambda(dx)`."""

    theta: npt.NDArray[np.float64]
    log_partition: float
    """:math:`A(\\theta)`"""
    measure: Measure
    error: float
    """largest error of a moment, relative to the range of its statistic"""


@dataclass(frozen=True, eq=False)
class ExponentialFamily:
    """The natural exponential family of statistics F over a base measure (MTA section 4.2).

    ``base`` holds the points and weights of lambda, ``statistics`` maps points (n, d) to (n, l).

    >>> import numpy as np
    >>> from qkcore.measure import ExponentialFamily, Measure, moment_projection
    >>> grid = Measure(np.linspace(-1.0, 1.0, 5)[:, None])
    >>> family = ExponentialFamily(grid, lambda X: X)
    >>> found = moment_projection(Measure(np.array([[0.5], [-0.25]])), family)
    >>> round(float(found.measure.mean()[0]), 9)
    0.125
    """

    base: Measure
    statistics: Statistics = field(repr=False)

    def values(self, points: Real) -> npt.NDArray[np.float64]:
        """F of points (n, d), as (n, l)."""
        out = np.asarray(self.statistics(points), dtype=np.float64)
        out = out[:, None] if out.ndim == 1 else out
        _checks.shape(
            "statistics",
            out.shape,
            (len(points), "l"),
            what="values",
            do="it takes all points at once",
        )
        return out

    def members(self, moments: npt.ArrayLike) -> list[ExponentialMember]:
        """The members with moments (m, l), all solved at once; a ValueError if one does not exist."""
        F = self.values(self.base.points)
        found = maximum_entropy(F, np.asarray(moments, dtype=np.float64), self.base)
        if not found.converged.all():
            i = int(np.argmin(found.converged))
            raise ValueError(
                f"moments: wanted moments of a member of the family, got {found.status[i]} at "
                f"index {i}; they must lie inside the convex hull of the statistics"
            )
        weights = found.softmatch().to_numpy()
        out = []
        for lam, row, error in zip(found.lam, weights, found.errors, strict=True):
            s = F @ lam + found.log_weights
            top = float(s.max())
            log_partition = top + math.log(float(np.exp(s - top).sum()))
            w = (row / row.sum()).astype(self.base.dtype)
            out.append(
                ExponentialMember(lam, log_partition, Measure(self.base.points, w), float(error))
            )
        return out

    def member(self, theta: npt.ArrayLike) -> ExponentialMember:
        """The member with natural parameter theta (l,)."""
        t = np.asarray(theta, dtype=np.float64)
        s = self.values(self.base.points) @ t + self.base.log_weights
        top = float(s.max())
        w = np.exp(s - top)
        total = float(w.sum())
        measure = Measure(self.base.points, (w / total).astype(self.base.dtype))
        return ExponentialMember(t, top + math.log(total), measure, 0.0)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The normal law with this mean (d,) and covariance (d, d)."""

    mean: npt.NDArray[np.float64]
    cov: npt.NDArray[np.float64]

    def log_density(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Logarithm of the density at points (n, d)."""
        centred = np.asarray(X, dtype=np.float64) - self.mean
        factor = np.linalg.cholesky(self.cov)
        white = np.linalg.solve(factor, centred.T)
        d = len(self.mean)
        log_det = 2 * float(np.log(np.diag(factor)).sum())
        out: npt.NDArray[np.float64] = -0.5 * (
            (white**2).sum(axis=0) + log_det + d * math.log(2 * math.pi)
        )
        return out


@dataclass(frozen=True)
class GaussianFamily:
    """Normal laws, as a family to project on.

    With ``sigma``: the laws N(m, sigma^2 I), F(x) = x, so the mean is matched (proposition 17). With
    ``sigma=None``: all normal laws, F(x) = (x, x x^T), so mean and covariance are matched (remark 18).
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            _checks.positive("sigma", self.sigma)

    def project(self, mu: Measure) -> Gaussian:
        """The member with the moments of mu."""
        mean = mu.mean().astype(np.float64)
        if self.sigma is not None:
            return Gaussian(mean, self.sigma**2 * np.eye(mu.dim))
        return Gaussian(mean, mu.covariance().astype(np.float64))


@overload
def moment_projection(mu: Measure | npt.ArrayLike, family: str = "dirac") -> Measure: ...
@overload
def moment_projection(
    mu: Measure | npt.ArrayLike, family: ExponentialFamily
) -> ExponentialMember: ...
@overload
def moment_projection(mu: Measure | npt.ArrayLike, family: GaussianFamily) -> Gaussian: ...
def moment_projection(
    mu: Measure | npt.ArrayLike, family: str | ExponentialFamily | GaussianFamily = "dirac"
) -> Measure | ExponentialMember | Gaussian:
    """:math:`\\Pi_F(\\mu) = \\nu_{\\mu(F)}`, the member with the moments of mu (MTA-1, eq 2).

    ``family``: "dirac" (F(x) = x: the Dirac measure at the mean), an :class:`ExponentialFamily` or a
    :class:`GaussianFamily`. In an exponential family this member minimises KL(mu, nu) (proposition 16); the
    Dirac measure is the limit of Gaussians whose width goes to 0 (proposition 17).

    >>> import numpy as np
    >>> from qkcore.measure import moment_projection
    >>> moment_projection(np.array([[0.0, 1.0], [2.0, 3.0]])).points
    array([[1., 2.]])
    """
    measure = as_measure("mu", mu)
    if isinstance(family, ExponentialFamily):
        F = family.values(measure.points)
        return family.members((measure.weights.astype(np.float64) @ F)[None])[0]
    if isinstance(family, GaussianFamily):
        return family.project(measure)
    if family != "dirac":
        raise ValueError(
            f'family: wanted "dirac", an ExponentialFamily or a GaussianFamily, got {_checks.shown(family)}'
        )
    return Measure.dirac(measure.mean())


def kl_divergence(mu: Measure, nu: Measure) -> float:
    """:math:`KL(\\mu\\|\\nu) = \\int\\log\\frac{d\\mu}{d\\nu}\\,d\\mu` (MTA-2).

    It is inf if mu has mass where nu has none. The logarithm is integrated against mu; the text of the paper
    says nu (erratum 12).

    >>> import numpy as np
    >>> from qkcore.measure import Measure, kl_divergence
    >>> X = np.array([[0.0], [1.0]])
    >>> kl_divergence(Measure(X, np.array([1.0, 0.0])), Measure(X))
    0.69314718055994...
    """
    p, q = as_measure("mu", mu).reduced(), as_measure("nu", nu).reduced()
    _checks.same_space("nu", q.dim, p.dim, "mu")
    _checks.same_dtype("nu", q.points, p.dtype, "mu")
    place = {point.tobytes(): w for point, w in zip(q.points + 0.0, q.weights, strict=True)}
    total = []
    for point, w in zip(p.points + 0.0, p.weights, strict=True):
        other = place.get(point.tobytes())
        if other is None:
            return math.inf
        total.append(float(w) * (math.log(w) - math.log(other)))
    return max(0.0, math.fsum(total))
