"""Cutting depth where logits jump, and the flow on each side: the five steps of K.2 (EOT-4)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .. import _checks
from ..simplex._mobility import mobility_product
from ..simplex._softmax import logits as check_logits
from ..simplex._softmax import plain_softmax
from ._depth_budget import Constants, DepthBudget, budget, increments, sizes, without_mean
from ._depth_detector import BVDetector

Double = npt.NDArray[np.float64]

CLUSTER, BUFFER, SHORTEST = 3, 2, 5  # layers (K.2)
_CHUNK = 2**22  # logits that are analysed at a time


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
    path: Double | None  #: the assembled flow at all layers, (L + 1, ..., V), if it was kept

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
    keep_path: bool = True,
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

    logits: (L + 1, ..., V); constants of rows do not count. over_rows: a batch is cut as
    one, by the root mean square of its rows' increments ("mean") or the largest ("max"). keep_path=False does
    without the assembled path, which has the size of the logits.

    >>> import numpy as np
    >>> from qkcore.diagnostics import depth
    >>> z = np.linspace(0, 1, 31)[:, None] * np.array([1.0, 0.0, -1.0])
    >>> z[16:] += np.array([3.0, 0.0, 0.0])
    >>> depth.segment(z).boundaries
    (15,)
    """
    tau = _checks.positive("tau", tau)
    _checks.one_of("over_rows", over_rows, ("mean", "max"))
    z = check_logits("logits", logits)
    squares = [sizes(layer, dz, True)[1].ravel() for layer, dz in increments(z)]
    L = len(squares)
    most = max(2, L // 10)
    if max_segments is not None:
        most = _checks.integer_within("max_segments", max_segments, 1, 10**9, "keep one at least")
    norms = np.sqrt([x.mean() if over_rows == "mean" else x.max() for x in squares])
    detector = BVDetector(threshold=threshold, window=window)
    for norm in norms:
        detector.update_norm(norm)
    cuts, dropped = _cuts(detector, norms, L, most)
    ends = [-1, *cuts, L]
    rows = z.reshape(L + 1, -1, z.shape[-1])
    block = max(1, _CHUNK // ((L + 1) * z.shape[-1]))
    parts = [
        _Block(rows[:, at : at + block].astype(np.float64), ends, tau, keep_path)
        for at in range(0, rows.shape[1], block)
    ]
    batch = z.shape[1:]
    budgets = [
        budget(z[a + 1 : b + 1], tau=tau, constants=Constants(tau=tau)) for a, b in pairwise(ends)
    ]
    segments = tuple(
        Segment(
            start=a + 1,
            stop=b,
            variation=float(np.max(own.total_variation)),
            largest_step=float(np.max(own.largest_step)),
            error=max(part.errors[k] for part in parts),
            budget=own,
            drift=(
                np.concatenate([part.drifts[k][0] for part in parts]).reshape(batch),
                np.concatenate([part.drifts[k][1] for part in parts]).reshape(batch),
            ),
        )
        for k, ((a, b), own) in enumerate(zip(pairwise(ends), budgets, strict=True))
    )
    interfaces = tuple(
        Interface(
            layer=cut,
            severity=float(detector.steps[cut].severity),
            gap=max(part.gaps[k] for part in parts),
            jump=max(part.jumps[k] for part in parts),
            velocity_residual=max(part.velocities[k] for part in parts),
            factors=np.concatenate([part.factors[k] for part in parts]).reshape(batch),
        )
        for k, cut in enumerate(cuts)
    )
    travelled = sum((part.travelled for part in parts), np.zeros(L)) / rows.shape[1]
    path = None
    if keep_path:
        path = np.concatenate([part.path for part in parts], axis=1).reshape(z.shape)
    return Segmentation(
        segments=segments,
        interfaces=interfaces,
        buffers=tuple((max(0, c - BUFFER), min(L, c + BUFFER)) for c in cuts),
        dropped=tuple(dropped),
        mass_error=max(part.mass_error for part in parts),
        transport=float(travelled.sum()),
        jump_transport=float(travelled[cuts].sum()),
        detector=detector,
        path=path,
    )


def _cuts(detector: BVDetector, norms: Double, L: int, most: int) -> tuple[list[int], list[int]]:
    flagged = [s for s in detector.steps if s.violated]
    spikes = {s.layer for s in flagged if s.spike}
    for s in flagged:
        # A flag without a spike in its window belongs to the largest increment there.
        window = range(max(0, s.layer - detector.window + 1), s.layer + 1)
        if not spikes.intersection(window):
            spikes.add(max(window, key=lambda layer: norms[layer]))
    clusters: list[list[int]] = []
    for layer in sorted(spikes):
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


class _Block:
    """Steps 3 to 5 for some rows: z (L + 1, rows, V), cut at the inner ``ends``."""

    def __init__(self, z: Double, ends: list[int], tau: float, keep_path: bool) -> None:
        steps = np.stack([without_mean(layer, dz) for layer, dz in increments(z)])
        L = len(steps)
        p = plain_softmax(z, tau)
        path = p.copy()
        self.errors: list[float] = []
        self.drifts: list[tuple[Double, Double]] = []
        for before, after in pairwise(ends):
            start = before + 1
            first, last = start + BUFFER * (before >= 0), after - BUFFER * (after < L)
            used = np.arange(first, last) if last - first >= 2 else np.arange(start, after)
            value, slope = _line((used + 0.5) / L, steps[used] * L)
            for layer in range(start, after + 1):
                s, t = start / L, layer / L
                path[layer] = plain_softmax(z[start] + (t - s) * (value + slope * (t + s) / 2), tau)
            gaps = np.abs(path[start : after + 1] - p[start : after + 1]).sum(axis=-1)
            self.errors.append(float(gaps.max()))
            self.drifts.append((value, slope))
        self.gaps: list[float] = []
        self.jumps: list[float] = []
        self.velocities: list[float] = []
        self.factors: list[Double] = []
        for k, cut in enumerate(ends[1:-1]):
            ahead, behind = path[cut + 1], path[cut]
            self.gaps.append(float(np.abs(ahead - behind).sum(axis=-1).max()))
            self.jumps.append(float(np.abs(p[cut + 1] - p[cut]).sum(axis=-1).max()))
            sides = ((behind, cut / L, self.drifts[k]), (ahead, (cut + 1) / L, self.drifts[k + 1]))
            v = [mobility_product(q, value + slope * t, tau) for q, t, (value, slope) in sides]
            self.velocities.append(_outside_range(v[1] - v[0], behind, ahead))
            step = steps[cut]
            self.factors.append(np.exp((step - step.max(axis=-1, keepdims=True)) / tau))
        self.mass_error = float(np.abs(path.sum(axis=-1) - 1).max())
        self.travelled = 0.5 * np.abs(np.diff(path, axis=0)).sum(axis=(1, 2))
        self.path = path if keep_path else np.zeros((0, 0, 0))


def _outside_range(change: Double, before: Double, after: Double) -> float:
    """The range of J: no net mass, nothing where p is 0."""
    off_support = np.abs(np.where((before == 0) & (after == 0), change, 0.0)).sum(axis=-1)
    return float((np.abs(change.sum(axis=-1)) + off_support).max())


def _line(times: Double, values: Double) -> tuple[Double, Double]:
    """Least squares b(t) = value + slope t, entry by entry; constant when there is one time only."""
    mean = values.mean(axis=0)
    if len(times) < 2:
        return mean, np.zeros_like(mean)
    off = times - times.mean()
    slope = np.tensordot(off, values - mean, axes=(0, 0)) / (off @ off)
    return mean - slope * times.mean(), slope
