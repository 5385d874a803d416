"""Do two samplers give the same images? Pooled histograms, and what chance makes of them (EOT-7, EOT-16)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import fraction
from ._arrays import Float, count, generator
from ._stats import Interval

__all__ = ["PooledParity", "pooled_parity"]

Single = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PooledParity:
    """Distances between two pooled histograms at one time, and what two samples of one law show."""

    tv: float
    """half the L1 distance of the histograms"""
    tv_chance: float
    """its mean for samplers of one law"""
    tv_critical: float
    """what it then exceeds with probability 1 - confidence"""
    tv_interval: Interval
    """percentile bootstrap over the samples"""
    ks: float
    """largest distance of the distribution functions at the edges of the bins"""
    ks_chance: float
    ks_critical: float
    ks_interval: Interval
    n: int
    bins: int
    confidence: float
    tv_null: Float = field(repr=False)
    """draws of TV for samplers of one law; the same seed gives the same multipliers at every time"""
    ks_null: Float = field(repr=False)
    masses: tuple[Float, Float] = field(repr=False)
    """both histograms (bins + 2,): below the range, its bins, above"""

    @property
    def agree(self) -> bool:
        """Whether neither distance exceeds its critical value."""
        return self.tv <= self.tv_critical and self.ks <= self.ks_critical

    def __str__(self) -> str:
        verdict = "no difference seen" if self.agree else "the histograms differ"
        return (
            f"pooled parity of {self.n} samples: {verdict}\n"
            f"  TV  {self.tv:.4f}, by chance alone {self.tv_chance:.4f} (critical {self.tv_critical:.4f})\n"
            f"  KS  {self.ks:.4f}, by chance alone {self.ks_chance:.4f} (critical {self.ks_critical:.4f})"
        )


def pooled_parity(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    bins: int = 256,
    value_range: tuple[float, float] = (0.0, 1.0),
    paired: bool = True,
    n_resamples: int = 200,
    confidence: float = 0.95,
    rng: int | np.random.Generator | None = 0,
) -> PooledParity:
    """TV and KS between the values of all coordinates of two samples, pooled (EOT-16, figure 2a).

    ``first`` (n, ...) and ``second`` (m, ...): images, say, of one shape; every sample's values go into one
    histogram of ``bins`` bins over ``value_range`` and two open ones beyond it. The pixels of an image are
    not independent, so that the number of values says nothing about chance: it is measured by a multiplier
    bootstrap over samples. ``paired``: sample i of both began in the same point (n = m), and differences of
    pairs are resampled. Intervals are percentile bootstraps of the distances themselves.

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> rng = np.random.default_rng(0)
    >>> images = lambda: rng.uniform(size=(300, 1)) * rng.uniform(size=(300, 64))  # brightness varies
    >>> duality.pooled_parity(images(), images(), paired=False).agree
    True
    >>> duality.pooled_parity(images(), 0.8 * images(), paired=False).agree
    False
    """
    bins = count("bins", bins, 2)
    n_resamples = count("n_resamples", n_resamples, 10)
    confidence = fraction("confidence", confidence)
    x, y = _flat("first", first), _flat("second", second)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"second: wanted {x.shape[1]} values per sample like first, got {y.shape[1]}"
        )
    if paired and len(x) != len(y):
        raise ValueError(
            f"second: wanted {len(x)} samples, each the partner of one of first, got {len(y)}; "
            "pass paired=False for independent samples"
        )
    p, q = (_histograms(v, bins, value_range) for v in (x, y))
    rng = generator(rng)
    parts = [p - q] if paired else [p, -q]
    gap = sum(h.mean(axis=0, dtype=np.float64) for h in parts)
    null = sum(_multiplied(h, n_resamples, rng) for h in parts)
    again = sum(_resampled(h, n_resamples, rng) for h in parts)
    tv, ks = (float(v[0]) for v in _distances(np.asarray(gap)[None]))
    tv_null, ks_null = _distances(np.asarray(null))
    tv_again, ks_again = _distances(np.asarray(again))
    tail = (1 - confidence) / 2

    def interval(draws: Float) -> Interval:
        low, high = np.quantile(draws, [tail, 1 - tail])
        return float(low), float(high)

    return PooledParity(
        tv,
        float(tv_null.mean()),
        float(np.quantile(tv_null, confidence)),
        interval(tv_again),
        ks,
        float(ks_null.mean()),
        float(np.quantile(ks_null, confidence)),
        interval(ks_again),
        len(x),
        bins,
        confidence,
        tv_null,
        ks_null,
        (p.mean(axis=0, dtype=np.float64), q.mean(axis=0, dtype=np.float64)),
    )


def _flat(name: str, value: npt.ArrayLike) -> npt.NDArray[np.floating]:
    x = np.asarray(value)
    if x.ndim < 2 or len(x) < 2 or x.size == 0:
        raise ValueError(f"{name}: wanted at least two samples (n, ...), got shape {x.shape}")
    if x.dtype.kind in "iu":  # grey levels
        x = x.astype(np.float64)
    real = _checks.real_array(name, x)
    _checks.finite(name, real)
    return real.reshape(len(real), -1)


def _histograms(x: npt.NDArray[np.floating], bins: int, value_range: tuple[float, float]) -> Single:
    """One normalised histogram per sample: (n, bins + 2)."""
    low, high = value_range
    if not high > low:
        raise ValueError(f"value_range: wanted low < high, got {value_range}")
    n, d = x.shape
    cell = np.floor((x - low) * (bins / (high - low)))
    cell[x == high] = bins - 1  # the last bin is closed, as NumPy's
    np.clip(cell, -1, bins, out=cell)
    width = bins + 2
    index = cell.astype(np.int64) + (np.arange(n, dtype=np.int64) * width + 1)[:, None]
    counts = np.bincount(index.ravel(), minlength=n * width).reshape(n, width)
    out: Single = (counts / d).astype(np.float32)
    return out


def _distances(gaps: Float) -> tuple[Float, Float]:
    """TV and KS of differences of histograms, one per row."""
    return 0.5 * np.abs(gaps).sum(axis=1), np.abs(np.cumsum(gaps, axis=1)).max(axis=1)


def _multiplied(h: Single, n_resamples: int, rng: np.random.Generator) -> Float:
    """The mean of h about its expectation, redrawn: random signs on centred samples."""
    signs = rng.integers(0, 2, size=(n_resamples, len(h))).astype(np.float32) * 2 - 1
    out: Float = (signs @ (h - h.mean(axis=0))).astype(np.float64) / len(h)
    return out


def _resampled(h: Single, n_resamples: int, rng: np.random.Generator) -> Float:
    """Means of h over samples drawn with replacement."""
    n = len(h)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(np.float32)
    out: Float = (weights @ h).astype(np.float64) / n
    return out
