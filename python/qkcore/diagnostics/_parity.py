"""Do two samplers give the same marginals? TV and KS per coordinate over time (EOT-7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import fraction
from ._arrays import Float, count, float64
from ._paths import Path

__all__ = ["Parity", "parity"]


@dataclass(frozen=True, eq=False)
class Parity:
    """Distances between the marginals of two samples, (times, coordinates), and what chance gives."""

    t: Float = field(repr=False)
    tv: Float = field(repr=False)
    """half the L1 distance of the histograms"""
    tv_chance: Float = field(repr=False)
    """the mean TV of two samples of these sizes from one law (normal approximation per bin)"""
    ks: Float = field(repr=False)
    """largest distance of the empirical distribution functions"""
    ks_critical: float
    """what KS exceeds by chance with probability 1 - confidence, all times and coordinates together"""
    bins: int
    confidence: float

    @property
    def agree(self) -> bool:
        """Whether no KS distance exceeds its critical value: the samples do not tell the laws apart."""
        return bool((self.ks <= self.ks_critical).all())

    def __str__(self) -> str:
        worst = np.unravel_index(int(np.argmax(self.ks)), self.ks.shape)
        verdict = "no difference seen" if self.agree else "the marginals differ"
        return (
            f"parity over {len(self.t)} times, {self.ks.shape[1]} coordinates: {verdict}\n"
            f"  KS  {self.ks.max():.4f} at t = {self.t[worst[0]]:g}, coordinate {worst[1]} "
            f"(critical {self.ks_critical:.4f})\n"
            f"  TV  mean {self.tv.mean():.4f}, by chance alone {self.tv_chance.mean():.4f} ({self.bins} bins)"
        )


def parity(
    first: Path | npt.ArrayLike,
    second: Path | npt.ArrayLike,
    *,
    bins: int = 256,
    value_range: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> Parity:
    """TV and Kolmogorov-Smirnov distance between the marginals of two samplers (EOT-7, figure 2a).

    ``first`` and ``second``: paths with the same saved times, or arrays (times, n, d); the numbers of
    samples may differ. TV is taken between histograms of ``bins`` bins over ``value_range`` (default:
    the joint range at each time and coordinate), which two samples of one law do not make 0:
    ``tv_chance`` is what they do make.

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> rng = np.random.default_rng(0)
    >>> duality.parity(rng.normal(size=(3, 500, 2)), rng.normal(size=(3, 400, 2))).agree
    True
    >>> duality.parity(rng.normal(size=(3, 500, 2)), rng.normal(size=(3, 400, 2)) + 1).agree
    False
    """
    from scipy.stats import kstwobign

    x, t = _states("first", first)
    y, other = _states("second", second)
    _checks.shape(
        "second",
        y.shape,
        (x.shape[0], "n", x.shape[2]),
        why="like first",
        do="save both samplers on one grid",
    )
    if t is not None and other is not None and not np.allclose(t, other):
        raise ValueError(
            "second: wanted the saved times of first, got others; pass the same n_saved"
        )
    bins = count("bins", bins, 2)
    confidence = fraction("confidence", confidence)
    times, n, d = x.shape
    m = y.shape[1]
    tv, chance, ks = (np.zeros((times, d)) for _ in range(3))
    for k in range(times):
        for j in range(d):
            p, q = x[k, :, j], y[k, :, j]
            tv[k, j], chance[k, j] = _histogram_tv(p, q, bins, value_range)
            ks[k, j] = _ks(p, q)
    # Bonferroni over all comparisons: one answer for the whole picture
    level = (1 - confidence) / (times * d)
    critical = float(kstwobign.isf(level) * np.sqrt((n + m) / (n * m)))
    grid = (
        t if t is not None else other if other is not None else np.arange(times, dtype=np.float64)
    )
    return Parity(grid, tv, chance, ks, critical, bins, confidence)


def _states(name: str, value: Path | npt.ArrayLike) -> tuple[Float, Float | None]:
    if isinstance(value, Path):
        return value.x, value.t
    x = float64(name, value)
    _checks.shape(name, x.shape, ("times", "n", "d"), what="states")
    return x, None


def _histogram_tv(
    p: Float, q: Float, bins: int, value_range: tuple[float, float] | None
) -> tuple[float, float]:
    low, high = value_range or (float(min(p.min(), q.min())), float(max(p.max(), q.max())))
    if not high > low:  # both samples sit in one point
        return 0.0, 0.0
    a = np.histogram(p, bins, (low, high))[0] / p.size
    b = np.histogram(q, bins, (low, high))[0] / q.size
    outside = abs((1 - a.sum()) - (1 - b.sum()))
    pooled = (a * p.size + b * q.size) / (p.size + q.size)
    spread = np.sqrt(pooled * (1 - pooled) * (1 / p.size + 1 / q.size))
    return float(0.5 * (np.abs(a - b).sum() + outside)), float(
        0.5 * np.sqrt(2 / np.pi) * spread.sum()
    )


def _ks(p: Float, q: Float) -> float:
    p, q = np.sort(p), np.sort(q)
    both = np.concatenate([p, q])
    gap = np.searchsorted(p, both, "right") / p.size - np.searchsorted(q, both, "right") / q.size
    return float(np.abs(gap).max())
