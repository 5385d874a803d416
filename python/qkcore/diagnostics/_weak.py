"""Weak error by step doubling and the slope of its log-log plot (EOT-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import fraction, one_of
from ._arrays import Field, Float, count, field_values, float64, generator, points
from ._paths import time_grid
from ._stats import Interval, interval
from ._tensor import TensorLike, tensor

__all__ = ["StepDoubling", "WeakErrorSlope", "step_doubling", "weak_error_slope"]


@dataclass(frozen=True, eq=False)
class WeakErrorSlope:
    """The slope of log error against log h, with its interval."""

    slope: float
    intercept: float
    interval: Interval | None
    """None where there is nothing to resample; ``note`` says why"""
    h: Float = field(repr=False)
    errors: Float = field(repr=False)
    """one error per h: of replicates, the modulus of their mean"""
    method: str = "BCa"
    n_resamples: int = 1000
    confidence: float = 0.95
    note: str = ""

    def __float__(self) -> float:
        return self.slope

    def __str__(self) -> str:
        if self.interval is None:
            return f"slope {self.slope:.4f} ({self.note})"
        low, high = self.interval
        return (
            f"slope {self.slope:.4f}, {100 * self.confidence:g} % {self.method} interval "
            f"[{low:.4f}, {high:.4f}] from {self.n_resamples} resamples"
        )


def weak_error_slope(
    h: npt.ArrayLike,
    errors: npt.ArrayLike,
    *,
    method: str = "BCa",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    rng: int | np.random.Generator | None = 0,
) -> WeakErrorSlope:
    """The order of a weak error: the slope of log error against log h, least squares (EOT-9, figure 2b).

    ``h`` (k,): step sizes (a first-order scheme has slope 1) or numbers of steps (slope -1, as EOT plots
    it). ``errors``: (k,) positive errors, whose (h, error) pairs are resampled; or (k, m) signed errors
    of m replicates, which are resampled and enter as \\|mean\\|. The interval is SciPy's bootstrap:
    "BCa" with 1000 resamples, or "percentile" (EOT uses 200). Resamples that hold a single h have no
    slope and are drawn again.

    >>> from qkcore.diagnostics import duality
    >>> fit = duality.weak_error_slope([0.1, 0.05, 0.025, 0.0125], [0.1, 0.052, 0.024, 0.0125])
    >>> round(fit.slope, 2)
    1.01
    >>> fit.interval[0] < 1 < fit.interval[1]
    True
    """
    step = float64("h", h)
    _checks.shape("h", step.shape, ("k",), what="step sizes")
    _checks.some("h", step.size, 2, "step sizes")
    _checks.all_positive("h", step, do="the plot is logarithmic")
    if np.ptp(step) == 0:
        raise ValueError("h: wanted different step sizes, got the same ones; a slope needs two")
    values = float64("errors", errors)
    _checks.shape("errors", values.shape, step.shape, (*step.shape, "replicates"), why="like h")
    one_of("method", method, ("BCa", "percentile", "basic"))
    n_resamples = count("n_resamples", n_resamples, 10)
    confidence = fraction("confidence", confidence)
    size = values if values.ndim == 1 else np.abs(values.mean(axis=1))
    _checks.all_positive(
        "errors",
        size,
        do="0 has no logarithm: leave that step size out, it is below the rounding or sampling error",
    )
    x, y = np.log(step), np.log(size)
    slope = float(_slope(x, y))
    rng = generator(rng)
    found: tuple[Interval, str] | None = None
    note = ""
    if values.ndim == 2 and values.shape[1] > 2:

        def of_replicates(*rows: Float, axis: int = -1) -> Float:
            means = np.stack([np.abs(row.mean(axis=axis)) for row in rows], axis=-1)
            with np.errstate(divide="ignore"):
                return _slope(x, np.log(means))

        found = interval(
            tuple(values),
            of_replicates,
            method=method,
            n_resamples=n_resamples,
            confidence=confidence,
            rng=rng,
        )
        note = "replicates without spread"
    elif values.ndim == 1 and step.size > 2:

        def of_pairs(x: Float, y: Float, axis: int = -1) -> Float:
            return _slope(x, y)

        found = interval(
            (x, y),
            of_pairs,
            method=method,
            n_resamples=n_resamples,
            confidence=confidence,
            rng=rng,
        )
        note = "the points lie on a line: every resample has this slope"
    else:
        note = "too few points for an interval: pass three step sizes, or three replicates"
    return WeakErrorSlope(
        slope,
        float((y - slope * x).mean()),
        found[0] if found else None,
        step,
        size,
        found[1] if found else method,
        n_resamples,
        confidence,
        "" if found else note,
    )


def _slope(x: Float, y: Float) -> Float:
    """Least-squares slope along the last axis; NaN where all x are one number."""
    dx = x - x.mean(axis=-1, keepdims=True)
    spread = (dx * dx).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Float = (dx * (y - y.mean(axis=-1, keepdims=True))).sum(axis=-1) / spread
    return np.where(spread > 1e-14, out, np.nan)


@dataclass(frozen=True, eq=False)
class StepDoubling:
    """The difference that doubling the number of steps makes to an expectation."""

    n_steps: npt.NDArray[np.int64]
    h: Float = field(repr=False)
    errors: Float
    """:math:`|E\\varphi(X^K) - E\\varphi(X^{2K})|`"""
    standard_errors: Float
    """Monte-Carlo error of each: an error below it is noise"""
    replicates: Float = field(repr=False)
    """(k, m): the same differences, signed, of m blocks of samples"""
    n_samples: int

    def slope(self, **options: object) -> WeakErrorSlope:
        """The order with its interval over the blocks; options as :func:`weak_error_slope`."""
        return weak_error_slope(self.h, self.replicates, **options)  # type: ignore[arg-type]

    def __str__(self) -> str:
        lines = [f"step doubling, {self.n_samples} samples"]
        lines += [
            f"  K = {k:5d}  h = {h:.3e}  error {e:.3e} ± {s:.1e}"
            for k, h, e, s in zip(
                self.n_steps, self.h, self.errors, self.standard_errors, strict=True
            )
        ]
        return "\n".join(lines)


def step_doubling(
    F: Field,
    a: TensorLike,
    x0: npt.ArrayLike,
    t_span: Sequence[float] = (0.0, 1.0),
    *,
    n_steps: Sequence[int] = (4, 8, 16, 32),
    observable: Callable[[Float], npt.ArrayLike] | None = None,
    n_blocks: int = 32,
    rng: int | np.random.Generator | None = None,
) -> StepDoubling:
    """Weak error of Euler-Maruyama by step doubling (EOT-9, theorem 4.5).

    For each K both paths, of K and of 2K steps, are driven by the same Brownian increments, so that
    their difference has little variance. ``observable(x)`` maps (n, d) to (n,); by default \\|x\\|². The
    samples are cut into ``n_blocks`` blocks, which :meth:`StepDoubling.slope` resamples.

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> x0 = np.full((20000, 1), 2.0)
    >>> doubling = duality.step_doubling(lambda x, t: -x, 0.5, x0, n_steps=(4, 8, 16, 32), rng=1)
    >>> 0.8 < doubling.slope().slope < 1.3
    True
    """
    start = points("x0", x0, least=2)
    n, d = start.shape
    A = tensor(a, d)
    rng = generator(rng)
    blocks = _checks.integer_within(
        "n_blocks", n_blocks, 2, n, "every block needs a sample, and an interval two blocks"
    )
    counts = [count("n_steps", k) for k in n_steps]
    _checks.some("n_steps", len(set(counts)), 2, "different numbers")
    edges = np.linspace(0, n, blocks + 1).astype(int)
    means, errors, spread = [], [], []
    for K in counts:
        times = time_grid(t_span, 2 * K)
        h = float(times[1] - times[0])
        coarse, fine = start.copy(), start.copy()
        for k in range(K):
            t0, t1 = float(times[2 * k]), float(times[2 * k + 1])
            first, second = rng.normal(size=(2, n, d)) * np.sqrt(abs(h))
            drift = field_values("F", F(coarse, t0), (n, d), t0)
            coarse = coarse + 2 * h * drift + A.root(coarse, t0, first + second)
            for t, noise in ((t0, first), (t1, second)):
                drift = field_values("F", F(fine, t), (n, d), t)
                fine = fine + h * drift + A.root(fine, t, noise)
        difference = _observe(observable, coarse) - _observe(observable, fine)
        sums = np.add.reduceat(difference, edges[:-1])
        means.append(sums / np.diff(edges))
        errors.append(abs(float(difference.mean())))
        spread.append(float(difference.std(ddof=1) / np.sqrt(n)))
    length = abs(float(t_span[1]) - float(t_span[0]))
    K_array = np.array(counts, dtype=np.int64)
    return StepDoubling(
        K_array, length / K_array, np.array(errors), np.array(spread), np.stack(means), n
    )


def _observe(observable: Callable[[Float], npt.ArrayLike] | None, x: Float) -> Float:
    if observable is None:
        out: Float = (x * x).sum(axis=1)
        return out
    value = np.asarray(observable(x), dtype=np.float64)
    _checks.shape("observable", value.shape, (len(x),), why="with one number per sample")
    return value
