"""Locking (P2): how little a peaked softmax moves, and the bound that says so (eq 23)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import one_of
from ..simplex._tail import LogTail, locked_motion
from ._arrays import Float, count, float64
from ._layers import LayerStack, row_motion

__all__ = ["Locking", "locking", "locking_bound"]


def locking_bound(
    tail: npt.ArrayLike, change: npt.ArrayLike, *, form: str = "sharp", alpha: float = 0.0
) -> Float:
    """The largest TV by which a softmax row of tail mass delta moves when its logits move (eq 23).

    ``tail``: :math:`\\delta = 1 - \\max p`; ``change``: :math:`\\epsilon = \\|\\Delta z\\|_\\infty`,
    best taken as half the range of :math:`\\Delta z`, as a common shift moves nothing.

    - "sharp": :math:`\\sigma(\\mathrm{logit}\\,\\delta + 2\\epsilon) - \\delta` while
      :math:`\\delta \\le 1/(1 + e^\\epsilon)`, then :math:`\\tanh(\\epsilon/2)`. Attained for every
      delta and epsilon below that point: all of the tail up by epsilon, the largest entry down. Needs no
      assumption on the argmax.
    - "printed": half of :math:`\\min\\{1, 2\\delta\\}\\epsilon + \\alpha\\epsilon`, as eq 23 bounds the
      L1 norm. With :math:`\\alpha = 0` it is not a bound: small steps reach
      :math:`4\\delta(1 - \\delta)\\epsilon`, nearly twice as much.

    >>> from qkcore.diagnostics import curvature
    >>> float(curvature.locking_bound(0.01, 0.1).round(6))
    0.002187
    >>> float(curvature.locking_bound(0.01, 0.1, form="printed"))  # less than is reached
    0.001
    """
    delta, eps = np.broadcast_arrays(float64("tail", tail), float64("change", change))
    if not ((delta >= 0).all() and (delta <= 1).all() and (eps >= 0).all()):
        raise ValueError("tail, change: wanted 0 <= tail <= 1 and change >= 0, got values outside")
    if one_of("form", form, ("sharp", "printed")) == "printed":
        extra = _checks.number("alpha", alpha)
        return np.asarray(0.5 * (np.minimum(1.0, 2 * delta) + extra) * eps)
    with np.errstate(divide="ignore"):
        logs = np.log(delta)
    return locked_motion(LogTail(np.zeros_like(logs), logs), eps)


@dataclass(frozen=True, eq=False)
class Locking:
    """Motion of rows against their tail mass, in bins."""

    edges: Float
    """of the bins of tail mass, geometric"""
    counts: npt.NDArray[np.int64]
    median: Float
    """median TV per bin (NaN where a bin is empty)"""
    low: Float = field(repr=False)
    high: Float = field(repr=False)
    """quartiles of the TV"""
    bound: Float
    """median of the sharp bound per bin"""
    exceeding: float
    """share of rows above the sharp bound: 0, unless rows are not the softmax of the logits"""
    exceeding_printed: float
    """share of rows above eq 23 with alpha = 0"""
    alpha: float
    """the smallest alpha with which eq 23 holds for all rows"""

    def __str__(self) -> str:
        lines = ["tail mass            rows   median TV   quartiles                bound"]
        for k in range(len(self.counts)):
            if not self.counts[k]:
                continue
            lines.append(
                f"{self.edges[k]:.1e} - {self.edges[k + 1]:.1e} {self.counts[k]:8d}   {self.median[k]:.3e}"
                f"   {self.low[k]:.2e} - {self.high[k]:.2e}   {self.bound[k]:.3e}"
            )
        lines.append(
            f"above the bound: {100 * self.exceeding:.3g} % of rows; above eq 23 with alpha = 0: "
            f"{100 * self.exceeding_printed:.3g} % (alpha = {self.alpha:.3g} would do)"
        )
        return "\n".join(lines)


def locking(
    logits: npt.ArrayLike, *, tau: float = 1.0, bins: int = 12, least: float = 1e-6
) -> Locking:
    """TV between successive layers against tail mass, with the bound (P2, eq 23, figure 7; EOT-13).

    ``logits`` (layers, ..., keys), at least two layers; -inf masks. Rows that see fewer than two keys have no
    tail and are left out. Bins of tail mass are geometric from ``least`` to 1.

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> rng = np.random.default_rng(0)
    >>> z = 4 * rng.normal(size=(1, 50, 8)) + 0.05 * rng.normal(size=(3, 50, 8))
    >>> curvature.locking(z).exceeding
    0.0
    """
    stack = LayerStack.of_logits(logits, tau)
    motions = [row_motion(a, b) for a, b in stack.transitions()]
    several = np.concatenate([m.seen > 1 for m in motions])
    if not several.any():
        raise ValueError(
            "logits: wanted rows that see at least two keys, got none; a row with one key cannot move"
        )
    tail, change, tv, bound = (
        np.concatenate([getattr(m, name) for m in motions])[several]
        for name in ("tail", "change", "tv", "bound")
    )
    return summarize(tail, change, tv, bound, bins=count("bins", bins), least=least)


def summarize(
    tail: Float, change: Float, tv: Float, bound: Float, *, bins: int = 12, least: float = 1e-6
) -> Locking:
    """Bins of the tail mass, logit change, TV and sharp bound of rows."""
    edges = np.concatenate([[0.0], np.geomspace(_checks.positive("least", least), 1.0, bins)])
    index = np.clip(np.searchsorted(edges, tail, side="right") - 1, 0, bins - 1)
    slack = 8 * np.finfo(np.float64).eps
    sharp = tv > bound * (1 + 1e-9) + slack
    printed = tv > locking_bound(tail, change, form="printed") * (1 + 1e-9) + slack
    moving = change > 1e-12
    ratio = 2 * tv[moving] / change[moving] - np.minimum(1.0, 2 * tail[moving])
    counts = np.bincount(index, minlength=bins)
    middle, low, high, limit = (np.full(bins, np.nan) for _ in range(4))
    for k in np.flatnonzero(counts):
        inside = index == k
        low[k], middle[k], high[k] = np.quantile(tv[inside], [0.25, 0.5, 0.75])
        limit[k] = np.median(bound[inside])
    return Locking(
        edges,
        counts.astype(np.int64),
        middle,
        low,
        high,
        limit,
        float(sharp.mean()),
        float(printed.mean()),
        float(max(ratio.max(), 0.0)) if ratio.size else 0.0,
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far locked rows move beside others whose logits change as much."""

    ratio: float | None
    """median TV over half-range, of locked rows over that of the others; None: nothing to compare"""
    interval: tuple[float, float]
    """percentile bootstrap over rows, all transitions of a row together"""
    n_locked: int
    """locked rows that have others to compare with"""


_BINS = 8  # of the half-range, at most
_EDGE = 1e-4  # of the first and the last edge of the bins
_FEWEST = 5  # rows of either kind in a bin
_BAND_ROWS = 1000  # rows that the band is bootstrapped from


def compare(
    tail: Float,
    change: Float,
    tv: Float,
    used: npt.NDArray[np.bool_],
    locked_tail: float,
    n_resamples: int,
    rng: np.random.Generator,
) -> Comparison:
    """Locked against unlocked rows in bins of the half-range of their logits' change.

    All arrays are (transitions, rows).
    Within a bin the TV is divided by the half-range, so that small differences inside the bin cancel.
    """
    moving = used & (change > 0)
    locked = moving & (tail <= locked_tail)
    nothing = Comparison(None, (float("nan"), float("nan")), 0)
    if not locked.any():
        return nothing
    wanted = min(_BINS, max(1, int(locked.sum()) // (2 * _FEWEST)))
    ordered = np.sort(change[locked])
    splits = np.linspace(0, len(ordered), wanted + 1).astype(int)[1:-1]
    # Edges lie between values, so that rounding moves no row to another bin.
    inner = (ordered[splits - 1] + ordered[splits]) / 2
    edges = np.concatenate([[ordered[0] * (1 - _EDGE)], inner, [ordered[-1] * (1 + _EDGE)]])
    at = np.searchsorted(edges, change, side="right") - 1
    bins = wanted
    inside = moving & (at >= 0) & (at < bins)
    sensitivity = np.divide(tv, change, out=np.zeros_like(tv), where=moving)

    def ratio(columns: npt.NDArray[np.int64]) -> tuple[float, int]:
        index, value = at[:, columns], sensitivity[:, columns]
        still, here = locked[:, columns], inside[:, columns]
        above = below = 0.0
        count = 0
        for k in range(bins):
            of_bin = here & (index == k)
            a, b = value[of_bin & still], value[of_bin & ~still]
            if len(a) < _FEWEST or len(b) < _FEWEST:
                continue
            above += len(a) * float(np.median(a))
            below += len(a) * float(np.median(b))
            count += len(a)
        return (above / below if below > 0 else float("nan")), count

    every = np.arange(tv.shape[1])
    whole, count = ratio(every)
    if not np.isfinite(whole):
        return nothing
    if len(every) > _BAND_ROWS:
        every = rng.choice(every, size=_BAND_ROWS, replace=False)
    draws = [ratio(rng.choice(every, size=len(every)))[0] for _ in range(n_resamples)]
    known = np.array(draws)[np.isfinite(draws)]
    if known.size < n_resamples // 2:
        return nothing
    low, high = np.quantile(known, [0.025, 0.975])
    return Comparison(whole, (float(low), float(high)), count)
