"""Bootstrap intervals as EOT uses them: BCa with B = 1000 for slopes, percentile with B = 200 for bands."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ._arrays import Float

Interval = tuple[float, float]

_AT_ONCE = 2_000_000  # numbers that a batch of resamples may hold


def interval(
    samples: tuple[Float, ...],
    statistic: Callable[..., Float],
    *,
    method: str,
    n_resamples: int,
    confidence: float,
    rng: np.random.Generator,
) -> tuple[Interval, str] | None:
    """A bootstrap interval by SciPy over paired samples, and its method; None when nothing varies.

    ``statistic`` is vectorised over leading axes and may return NaN for a resample that has no value
    (all of one abscissa): such resamples are drawn again.
    """
    import scipy.stats

    stats: Any = scipy.stats  # its stubs want literals where options are passed on
    batch = max(1, _AT_ONCE // samples[0].shape[-1])
    options = {"paired": True, "vectorized": True, "confidence_level": confidence, "batch": batch}
    kept: list[Float] = []
    result: Any = None
    with warnings.catch_warnings():
        # It warns of NaN among the resamples, which are dealt with here, and of BCa without a value.
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        while sum(draws.size for draws in kept) < n_resamples and len(kept) < 20:
            result = stats.bootstrap(
                samples,
                statistic,
                n_resamples=n_resamples,
                method="percentile",
                random_state=rng,
                axis=-1,
                **options,
            )
            draws = np.asarray(result.bootstrap_distribution)
            kept.append(draws[np.isfinite(draws)])
        draws = np.concatenate(kept)[:n_resamples]
        if draws.size < 2 or np.ptp(draws) <= 1e-12 * max(1.0, float(np.abs(draws).max())):
            return None
        result = stats.bootstrap(
            samples,
            statistic,
            n_resamples=0,
            method=method,
            bootstrap_result=replace(result, bootstrap_distribution=draws),
            axis=-1,
            **options,
        )
    low, high = result.confidence_interval
    if not (np.isfinite(low) and np.isfinite(high)):  # no BCa without a spread of the jackknife
        low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
        method = f"percentile ({method} undefined)"
    return (float(low), float(high)), method


def mean_interval(
    values: Float,
    *,
    rng: np.random.Generator,
    method: str = "percentile",
    n_resamples: int = 200,
    confidence: float = 0.95,
    weights: Float | None = None,
) -> Interval:
    """The interval of a mean (of a weighted mean); a constant sample gives a point."""
    if values.size == 1 or np.ptp(values) == 0:
        return float(values.flat[0]), float(values.flat[0])
    w = np.ones_like(values) if weights is None else weights

    def mean(x: Float, y: Float, axis: int = -1) -> Float:
        out: Float = (x * y).sum(axis=axis) / y.sum(axis=axis)
        return out

    found = interval(
        (values, w),
        mean,
        method=method,
        n_resamples=n_resamples,
        confidence=confidence,
        rng=rng,
    )
    middle = float((values * w).sum() / w.sum())
    return found[0] if found else (middle, middle)
