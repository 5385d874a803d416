"""Cutting depth where logits jump, and the flow on each side: the five steps of K.2 (EOT-4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ..simplex._mobility import mobility_product
from ..simplex._softmax import logits as check_logits
from ..simplex._softmax import plain_softmax
from ._depth_budget import Constants, DepthBudget, budget, increments
from ._depth_detector import BVDetector

Double = npt.NDArray[np.float64]

CLUSTER, BUFFER, SHORTEST = 3, 2, 5  # layers (K.2)


@dataclass(frozen=True)
class Segment:
    """Layers ``start`` to ``stop`` (inclusive): a stretch of depth without a jump."""

    start: int
    stop: int
    variation: float  #: :math:`C_i = \\sum\\|\\Delta z\\|_2` of the segment, largest over rows
    largest_step: float
    error: float  #: largest l1 error of the local flow at the segment's layers
    budget: DepthBudget
    drift: tuple[Double, Double]  #: (value, slope) in time of the fitted local drift, each (..., V)

    @property
    def n_layers(self) -> int:
        """Increments in the segment."""
        return self.stop - self.start


@dataclass(frozen=True)
class Interface:
    """The jump between two segments: the increment from ``layer`` to ``layer + 1``."""

    layer: int
    severity: float
    gap: float  #: l1 distance from the local flow's end before it to its start after it, largest over rows
    jump: float  #: l1 distance that the increment itself moves p
    velocity_residual: (
        float  #: of :math:`v^+ - v^-` outside the range of J: net mass, and mass off the support
    )
    factors: Double  #: the transition operator's weights, (..., V)

    def transition(self, p: npt.ArrayLike) -> Double:
        """The operator :math:`T_i`: p reweighted by :math:`e^{\\Delta z/\\tau}` and normalised."""
        raised = _checks.probabilities("p", p) * self.factors
        out: Double = raised / raised.sum(axis=-1, keepdims=True)
        return out


@dataclass(frozen=True)
class Segmentation:
    """Depth as segments that flow and jumps between them (EOT-4, K.2). See :func:`segment`."""

    segments: tuple[Segment, ...]
    interfaces: tuple[Interface, ...]
    buffers: tuple[
        tuple[int, int], ...
    ]  #: layers around each jump that local fits leave out, where they can
    dropped: tuple[
        int, ...
    ]  #: jumps that are no boundary: too close to an end or another, or too many
    mass_error: float  #: largest :math:`|\\sum_i p_i(t) - 1|` of the assembled path
    transport: float  #: total variation travelled, flows and jumps, mean over rows
    jump_transport: float  #: the share of the jumps
    detector: BVDetector
    path: Double  #: the assembled flow at all layers, (L + 1, ..., V)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The increments at which depth is cut."""
        return tuple(i.layer for i in self.interfaces)

    @property
    def error(self) -> float:
        """Largest l1 error of the assembled path at a layer."""
        return max(s.error for s in self.segments)

    def __str__(self) -> str:
        lines = [f"Segmentation: {len(self.segments)} segments, cut at {list(self.boundaries)}"]
        lines += [
            f"  layers {s.start:3d} to {s.stop:3d}: variation {s.variation:.3g}, largest step "
            f"{s.largest_step:.3g}, local flow within {s.error:.3g}"
            for s in self.segments
        ]
        lines += [
            f"  jump at {i.layer}: severity {i.severity:.3g}, moves {i.jump:.3g}, velocity outside the "
            f"tangent range {i.velocity_residual:.1e}"
            for i in self.interfaces
        ]
        share = self.jump_transport / self.transport if self.transport else 0.0
        lines.append(f"  transport {self.transport:.3g}, {100 * share:.0f} % of it in jumps")
        if self.dropped:
            lines.append(f"  flagged but not cut: {list(self.dropped)}")
        return "\n".join(lines)


def segment(
    logits: npt.ArrayLike,
    *,
    tau: float = 1.0,
    threshold: float | None = None,
    window: int = 8,
    over_rows: str = "mean",
    max_segments: int | None = None,
) -> Segmentation:
    """Cut depth at the jumps of its logits and analyse the flow on each side (EOT-4, K.2's five steps).

    1. Algorithm 1 (:class:`BVDetector`) flags layers; spikes within 3 layers are one cluster, which
       is cut at its largest increment.
    2. Cuts leave segments of at least 5 increments and at most ``max_segments`` (default max(2, L/10))
       of them; the smallest jumps are given up first. Two layers on each side of a cut are its buffer.
    3. On each segment a drift linear in time is fitted to the increments, without buffers where enough
       are left. Its PF-ODE has a closed form, the softmax of :math:`(z + \\int b)/\\tau`; its error at the
       layers and the segment's own budget are reported.
    4. At each cut: the gap between the two flows, the reweighting that is the transition operator, and
       whether the velocity's jump is in the range of J (no net mass, none off the support).
    5. The assembled path, its mass and the distance it travels, jumps included.

    logits: (L + 1, ..., V). over_rows: a batch is cut as one, by the root mean square of its rows' increments
    ("mean") or the largest ("max").

    >>> import numpy as np
    >>> from qkcore.diagnostics import depth
    >>> z = np.linspace(0, 1, 31)[:, None] * np.array([1.0, 0.0, -1.0])
    >>> z[16:] += np.array([3.0, 0.0, 0.0])
    >>> depth.segment(z).boundaries
    (15,)
    """
    tau = _checks.positive("tau", tau)
    z = check_logits("logits", logits).astype(np.float64)
    steps = np.stack([dz for _, dz in increments(z)])
    L = len(steps)
    if over_rows not in ("mean", "max"):
        raise ValueError(
            f'over_rows: wanted "mean" or "max", got {over_rows!r}; choose one of them'
        )
    most = max(2, L // 10)
    if max_segments is not None:
        most = _checks.integer_within("max_segments", max_segments, 1, 10**9, "keep one at least")
    squares = np.einsum("...i,...i->...", steps, steps).reshape(L, -1)
    norms = np.sqrt(squares.mean(axis=1) if over_rows == "mean" else squares.max(axis=1))
    detector = BVDetector(threshold=threshold, window=window)
    for norm in norms:
        detector.update_norm(norm)
    cuts, dropped = _cuts(detector, norms, L, most)
    p = plain_softmax(z, tau)
    ends = [-1, *cuts, L]
    segments = []
    path = p.copy()
    for before, after in pairwise(ends):
        segments.append(_local(z, steps, p, before + 1, after, before >= 0, after < L, tau, path))
    interfaces = tuple(
        _interface(cut, detector, steps[cut], p, path, segments[k : k + 2], L, tau)
        for k, cut in enumerate(cuts)
    )
    moved = 0.5 * np.abs(np.diff(path, axis=0)).sum(axis=-1).reshape(L, -1).mean(axis=1)
    return Segmentation(
        segments=tuple(segments),
        interfaces=interfaces,
        buffers=tuple((max(0, c - BUFFER), min(L, c + BUFFER)) for c in cuts),
        dropped=tuple(dropped),
        mass_error=float(np.abs(path.sum(axis=-1) - 1).max()),
        transport=float(moved.sum()),
        jump_transport=float(moved[list(cuts)].sum()),
        detector=detector,
        path=path,
    )


def _cuts(detector: BVDetector, norms: Double, L: int, most: int) -> tuple[list[int], list[int]]:
    flagged = [s for s in detector.steps if s.violated]
    spikes = [s.layer for s in flagged if s.spike] or [s.layer for s in flagged]
    clusters: list[list[int]] = []
    for layer in spikes:
        if clusters and layer - clusters[-1][-1] <= CLUSTER:
            clusters[-1].append(layer)
        else:
            clusters.append([layer])
    candidates = [max(c, key=lambda layer: norms[layer]) for c in clusters]
    kept: list[int] = []
    for layer in sorted(candidates, key=lambda layer: -norms[layer]):  # the largest jump first
        ends = sorted([-1, L, layer, *kept])
        if len(kept) + 2 <= most and np.diff(ends).min() > SHORTEST:
            kept.append(layer)
    return sorted(kept), sorted(set(candidates) - set(kept))


def _local(
    z: Double,
    steps: Double,
    p: Double,
    start: int,
    stop: int,
    cut_before: bool,
    cut_after: bool,
    tau: float,
    path: Double,
) -> Segment:
    """Fit and integrate a drift on layers start..stop; writes the segment's part of the path."""
    L = len(steps)
    inside = np.arange(start, stop)
    first, last = start + BUFFER * cut_before, stop - BUFFER * cut_after
    used = np.arange(first, last) if last - first >= 2 else inside
    values, slope = _line((used + 0.5) / L, steps[used] * L)
    flow = _flow(z[start], start / L, values, slope)
    for layer in range(start, stop + 1):
        path[layer] = plain_softmax(flow(layer / L), tau)
    error = np.abs(path[start : stop + 1] - p[start : stop + 1]).sum(axis=-1).max()
    own = budget(z[start : stop + 1], tau=tau, constants=Constants(tau=tau))
    return Segment(
        start=start,
        stop=stop,
        variation=float(np.max(own.total_variation)),
        largest_step=float(np.max(own.largest_step)),
        error=float(error),
        budget=own,
        drift=(values, slope),
    )


def _line(times: Double, values: Double) -> tuple[Double, Double]:
    """Least squares b(t) = value + slope t, entry by entry; constant when there is one time only."""
    mean = values.mean(axis=0)
    if len(times) < 2:
        return mean, np.zeros_like(mean)
    off = times - times.mean()
    slope = np.tensordot(off, values - mean, axes=(0, 0)) / (off @ off)
    return mean - slope * times.mean(), slope


def _flow(z: Double, t0: float, value: Double, slope: Double) -> Callable[[float], Double]:
    return lambda t: z + (t - t0) * (value + slope * (t + t0) / 2)


def _interface(
    cut: int,
    detector: BVDetector,
    step: Double,
    p: Double,
    path: Double,
    sides: list[Segment],
    L: int,
    tau: float,
) -> Interface:
    before, after = path[cut], path[cut + 1]
    velocities = []
    for side, q, t in ((sides[0], before, cut / L), (sides[1], after, (cut + 1) / L)):
        value, slope = side.drift
        velocities.append(mobility_product(q, value + slope * t, tau))
    change = velocities[1] - velocities[0]
    off_support = np.abs(np.where((before == 0) & (after == 0), change, 0.0)).sum(axis=-1)
    return Interface(
        layer=cut,
        severity=float(detector.steps[cut].severity),
        gap=float(np.abs(after - before).sum(axis=-1).max()),
        jump=float(np.abs(p[cut + 1] - p[cut]).sum(axis=-1).max()),
        velocity_residual=float((np.abs(change.sum(axis=-1)) + off_support).max()),
        factors=_weights(step, tau),
    )


def _weights(step: Double, tau: float) -> Double:
    out: Any = np.exp((step - step.max(axis=-1, keepdims=True)) / tau)
    return np.asarray(out, dtype=np.float64)
