"""Laws that are known exactly: normal mixtures on the line, their flows and distances (ISB-4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._barycentric import masses

__all__ = ["Mixture", "gaussian_w2"]

Float64 = npt.NDArray[np.float64]
_ROOT_2PI = math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False, init=False)
class Mixture:
    """A mixture of normal laws on the line. All but the quantiles is in closed form.

    >>> import qkcore as qk
    >>> law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    >>> law.mean, law.variance, law.heat(1.5).variance
    (0.0, 5.0, 6.5)
    """

    weights: Float64
    means: Float64
    variances: Float64

    def __init__(
        self, weights: npt.ArrayLike, means: npt.ArrayLike, variances: npt.ArrayLike
    ) -> None:
        w, m, v = map(
            _checks.doubles, ("weights", "means", "variances"), (weights, means, variances)
        )
        if not (w.ndim == 1 and w.size > 0 and w.shape == m.shape == v.shape):
            raise ValueError(
                "weights: wanted weights, means and variances of one length, got shapes "
                f"{w.shape}, {m.shape}, {v.shape}"
            )
        if not ((w >= 0).all() and w.sum() > 0):
            raise ValueError("weights: wanted weights >= 0 with some mass, got a negative or none")
        _checks.all_positive("variances", v, "variances > 0")
        object.__setattr__(self, "weights", w / w.sum())
        object.__setattr__(self, "means", m)
        object.__setattr__(self, "variances", v)

    @classmethod
    def gaussian(cls, mean: float, variance: float) -> Mixture:
        """The normal law."""
        return cls([1.0], [mean], [variance])

    @property
    def mean(self) -> float:
        """The mean of the law."""
        return float(self.weights @ self.means)

    @property
    def variance(self) -> float:
        """The variance of the law."""
        return float(self.weights @ (self.variances + self.means**2)) - self.mean**2

    # ---- flows, exactly

    def heat(self, t: float) -> Mixture:
        """The law at time t of :math:`\\partial_t\\rho = \\tfrac12\\rho''`: every variance grows by t."""
        return Mixture(self.weights, self.means, self.variances + _time(t))

    def ornstein_uhlenbeck(self, t: float, *, mean: float = 0.0, variance: float = 1.0) -> Mixture:
        """The law at time t of :math:`dX = -(X-m)/2v\\,dt + dB`, which tends to N(m, v)."""
        m, v = _checks.number("mean", mean), _checks.positive("variance", variance)
        gone = -_time(t) / (2 * v)
        decay, grown = math.exp(gone), -math.expm1(2 * gone)
        return Mixture(
            self.weights,
            m + decay * (self.means - m),
            decay**2 * self.variances + grown * v,
        )

    # ---- the law itself

    def log_pdf(self, x: npt.ArrayLike) -> Float64:
        """log density at finite x of any shape."""
        logs = self._component_logs(_checks.doubles("x", x))
        top = logs.max(axis=-1)
        found: Float64 = top + np.log(np.exp(logs - top[..., None]).sum(axis=-1))
        return found

    def score(self, x: npt.ArrayLike) -> Float64:
        """:math:`(\\log\\rho)'` at finite x of any shape."""
        at = _checks.doubles("x", x)
        logs = self._component_logs(at)
        share = np.exp(logs - logs.max(axis=-1)[..., None])
        share /= share.sum(axis=-1)[..., None]
        pull = (self.means - at[..., None]) / self.variances
        found: Float64 = (share * pull).sum(axis=-1)
        return found

    def cdf(self, x: npt.ArrayLike) -> Float64:
        """Distribution function at x of any shape, infinite ones included."""
        from scipy.special import ndtr

        found: Float64 = ndtr(self._standardised(_checks.doubles("x", x, inf=True))) @ self.weights
        return found

    def sf(self, x: npt.ArrayLike) -> Float64:
        """1 - cdf, to full precision in the upper tail."""
        from scipy.special import ndtr

        found: Float64 = ndtr(-self._standardised(_checks.doubles("x", x, inf=True))) @ self.weights
        return found

    def quantile(self, u: npt.ArrayLike) -> Float64:
        """The inverse of the distribution function at u in [0, 1], of any shape."""
        at = _checks.doubles("u", u)
        if not ((at >= 0) & (at <= 1)).all():
            raise ValueError(
                f"u: wanted probabilities in [0, 1], got numbers from {at.min():.3g} to {at.max():.3g}"
            )
        return self._inverse(at, 1 - at)

    def transport(self, x: npt.ArrayLike, target: Mixture) -> Float64:
        """The optimal map to another law at x: :math:`G^{-1}(F(x))`, exact in both tails."""
        _checks.instance("target", target, Mixture, "a Mixture")
        return target._inverse(self.cdf(x), self.sf(x))

    # ---- supports

    def grid(self, n: int, width: float = 9.0) -> tuple[Float64, Float64]:
        """A support (n, 1) and its weights (n,): equal cells over ``width`` deviations of every component.

        Sums over it are trapezoidal sums of smooth functions, which are exact up to rounding if the spacing
        is below the scales of the density and of the kernel.
        """
        count = _checks.integer_within("n", n, 2, 10**8, "a grid has two ends")
        reach = _checks.positive("width", width) * np.sqrt(self.variances)
        x = np.linspace((self.means - reach).min(), (self.means + reach).max(), count)
        w = np.exp(self.log_pdf(x))
        return x[:, None], w / w.sum()

    def quantile_grid(self, n: int) -> Float64:
        """The n points of equal weight (n, 1) nearest to the law in W2: the means of its n equal parts."""
        count = _checks.integer_within("n", n, 1, 10**8, "a cloud has a point")
        q = self.quantile(np.arange(count + 1) / count)
        points: Float64 = count * np.diff(self._partial_moments(q)[0])[:, None]
        return points

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Float64:
        """n independent draws (n, 1)."""
        count = _checks.integer_within("n", n, 1, 10**9, "a cloud has a point")
        generator = np.random.default_rng(rng)
        which = generator.choice(len(self.weights), size=count, p=self.weights)
        z = generator.standard_normal(count)
        return np.asarray(self.means[which] + np.sqrt(self.variances[which]) * z)[:, None]

    # ---- distances

    def w2(self, X: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
        """The Wasserstein distance W2 from weighted points (N, 1) or (N,) to the law, exactly.

        Each of the sorted points is matched with a piece of the law of the same mass, whose first two moments
        are known.
        """
        x = _checks.real_array("X", X)
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim != 2 or x.shape[1] != 1 or x.shape[0] == 0:
            raise ValueError(f"X: wanted points on the line, shape (N, 1) or (N,), got {x.shape}")
        _checks.finite("X", x)
        w = masses("weights", weights, x)
        order = np.argsort(x[:, 0], kind="stable")
        at, w = x[order, 0].astype(np.float64), w[order]
        below = np.concatenate([[0.0], np.cumsum(w)])
        above = np.concatenate([np.cumsum(w[::-1])[::-1], [0.0]])
        mass, first, second = (
            np.diff(m) for m in (below, *self._partial_moments(self._inverse(below, above)))
        )
        square = math.fsum(second - 2 * at * first + at**2 * mass)
        return math.sqrt(max(square, 0.0))

    def w2_to(self, other: Mixture, n: int = 4000) -> float:
        """W2 to another mixture, by the optimal map on a grid of n points."""
        _checks.instance("other", other, Mixture, "a Mixture")
        x, w = self.grid(n)
        return math.sqrt(float(w @ (x[:, 0] - self.transport(x[:, 0], other)) ** 2))

    # ---- helpers

    def _standardised(self, x: npt.ArrayLike) -> Float64:
        z: Float64 = (np.asarray(x, np.float64)[..., None] - self.means) / np.sqrt(self.variances)
        return z

    def _component_logs(self, x: npt.ArrayLike) -> Float64:
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights) - 0.5 * np.log(2 * np.pi * self.variances)
        found: Float64 = logs - 0.5 * self._standardised(x) ** 2
        return found

    def _inverse(self, below: Float64, above: Float64) -> Float64:
        """x with cdf ``below`` and sf ``above``, by bisection on the smaller of the two."""
        from scipy.special import ndtri

        live = self.weights > 0
        means, roots = self.means[live], np.sqrt(self.variances[live])
        upper = above < below
        small = np.where(upper, above, below)
        with np.errstate(invalid="ignore"):
            z = ndtri(small)[..., None] * roots
        ends = np.where(upper[..., None], means - z, means + z)
        lo, hi = ends.min(axis=-1), ends.max(axis=-1)  # the quantile of a mixture lies between
        if len(means) == 1:
            return np.asarray(lo)
        finite = np.isfinite(lo) & np.isfinite(hi)
        lo, hi = np.where(finite, lo, 0.0), np.where(finite, hi, 0.0)
        for _ in range(100):
            middle = 0.5 * (lo + hi)
            left = np.where(upper, self.sf(middle) > above, self.cdf(middle) < below)
            lo, hi = np.where(left, middle, lo), np.where(left, hi, middle)
            if (hi - lo <= 2e-16 * np.maximum(np.abs(lo), np.abs(hi))).all():
                break
        return np.where(finite, 0.5 * (lo + hi), np.where(upper, np.inf, -np.inf))

    def _partial_moments(self, q: Float64) -> tuple[Float64, Float64]:
        """Integrals of y and y² over the law below q."""
        from scipy.special import ndtr

        z = self._standardised(q)
        bell = np.exp(-0.5 * z**2) / _ROOT_2PI
        below, root = ndtr(z), np.sqrt(self.variances)
        tail = np.where(np.isfinite(z), z, 0.0) * bell
        first = self.means * below - root * bell
        second = (self.means**2 + self.variances) * below - 2 * self.means * root * bell
        second -= self.variances * tail
        return first @ self.weights, second @ self.weights


def _time(t: object) -> float:
    return _checks.at_least("t", t, 0, "these flows only run forwards")


def gaussian_w2(
    mean_x: npt.ArrayLike, cov_x: npt.ArrayLike, mean_y: npt.ArrayLike, cov_y: npt.ArrayLike
) -> float:
    """W2 between two normal laws in any dimension; a lower bound for any laws with these moments.

    >>> import numpy as np, qkcore as qk
    >>> qk.isb.gaussian_w2([0.0], [[1.0]], [3.0], [[25.0]])
    5.0
    """
    m0, m1 = _checks.doubles("mean_x", mean_x), _checks.doubles("mean_y", mean_y)
    c0, c1 = (
        _checks.covariances(name, np.atleast_2d(_checks.doubles(name, c)))
        for name, c in (("cov_x", cov_x), ("cov_y", cov_y))
    )
    d = m0.size
    if m0.shape != (d,) or m1.shape != (d,) or c0.shape != (d, d) or c1.shape != (d, d):
        raise ValueError(
            "mean_x: wanted means (d,) and covariances (d, d), got shapes "
            f"{m0.shape}, {c0.shape}, {m1.shape}, {c1.shape}"
        )
    values, vectors = np.linalg.eigh(c0)
    root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
    cross = np.linalg.eigvalsh(root @ c1 @ root)
    bures = np.trace(c0) + np.trace(c1) - 2 * np.sqrt(np.maximum(cross, 0)).sum()
    return math.sqrt(max(float(((m0 - m1) ** 2).sum() + bures), 0.0))
