"""The checks P0-P4 one by one: a number, a threshold, a verdict and its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._progress import track
from . import _locking
from ._arrays import Float
from ._evi import EVI, evi
from ._gate import Gate
from ._layers import LayerStack, Rows, row_motion
from ._verdict import ABSTAIN, FAIL, PASS, Check, Thresholds, abstain, check
from .curvature import Geometry, _pairs, gaps_at, summarize_sweep

_PROGRAMMES = 256  # linear programmes that P3 may take
_MOST_KEYS = (
    2048  # keys in several dimensions up to which W1, a programme of their square, is affordable
)


def _above(value: float) -> float:
    """A threshold that the value keeps, with two digits."""
    return float(f"{1.1 * value:.2g}")


def gate_check(gate: Gate, limits: Thresholds, what: str) -> Check:
    """P0 (N.4)."""
    reasons, remedies = [], {}
    fisher = "" if np.isnan(gate.jeffreys) else f"in Fisher's metric {gate.jeffreys:.2g}"
    if not gate.S_bar <= limits.variation:
        worst = int(np.argmax(gate.by_layer))
        size = f"S̄_L {gate.S_bar:.3g} > {limits.variation:g}"
        remedies["variation"] = _above(gate.S_bar)
        if gate.mask_changes:
            size = "a mask changes between layers; use one mask"
        elif np.isinf(gate.S_bar):
            size = "the squares of their changes overflow"
        elif fisher:
            size += f", {fisher}"
        reasons.append(
            f"the {what} vary too much ({size}), most at transition {worst} -> {worst + 1}"
        )
        if gate.jeffreys <= 0.01 * gate.S_bar < np.inf:
            reasons.append("nearly all of it is at keys without mass")
    if not gate.residual < limits.continuity:
        reasons.append(
            f"rows gain or lose mass (residual {gate.residual:.2g}, wanted < {limits.continuity:g}), more "
            "than rounding explains: divide them by their sums, or pass logits"
        )
        remedies["continuity"] = _above(gate.residual)
    if reasons and all(np.isfinite(list(remedies.values()))):
        reasons.append(f"to judge P1-P4 all the same, pass thresholds={remedies}")
    verdict = FAIL if reasons else PASS
    reason = "; ".join(reasons)
    if not reasons:
        told = [f"S̄_L of the {what}", fisher, f"continuity residual {gate.residual:.1e}"]
        reason = "; ".join(part for part in told if part)
        if gate.spikes:
            first = ", ".join(map(str, gate.spikes[:5]))
            reason += f"; jumps (over 5 medians) at transitions {first}"
    return check(
        "P0",
        limits,
        verdict,
        gate.S_bar,
        reason,
        residual=gate.residual,
        by_layer=gate.by_layer,
        by_head=gate.by_head,
        worst_by_layer=gate.worst_by_layer,
        jeffreys=gate.jeffreys,
        spikes=gate.spikes,
        limit=limits.variation,
        S_bar=gate.S_bar,
    )


@dataclass(frozen=True, eq=False)
class Motions:
    """Row motions of all transitions, (transitions, rows) each."""

    tv: Float
    change: Float
    tail: Float
    bound: Float
    seen: Float


def motions(transitions: Iterable[tuple[Rows, Rows]]) -> Motions:
    """Walk the layers once."""
    found = [row_motion(before, after) for before, after in transitions]
    return Motions(
        *(
            np.stack([getattr(m, k) for m in found])
            for k in ("tv", "change", "tail", "bound", "seen")
        )
    )


def locking_check(
    m: Motions, limits: Thresholds, n_resamples: int, rng: np.random.Generator
) -> Check:
    """P2 (M.6): the bound of eq 23, a small median in low-tail bins, and smaller than that of other rows."""
    used = m.seen > 1
    if not used.any():
        return abstain("P2", limits, "no row sees two keys: none of them can move")
    tail, tv = m.tail[used], m.tv[used]
    found = _locking.summarize(tail, m.change[used], tv, m.bound[used])
    details = {
        "edges": found.edges,
        "counts": found.counts,
        "median": found.median,
        "low": found.low,
        "high": found.high,
        "bound": found.bound,
        "exceeding": found.exceeding,
        "exceeding_printed": found.exceeding_printed,
        "alpha": found.alpha,
    }
    if not m.change[used].any():
        return abstain("P2", limits, "no logit changes from layer to layer", **details)
    locked = tail <= limits.locked_tail
    n = int(locked.sum())
    middle = float(np.median(tv[locked])) if n else float("nan")
    details |= {"locked_rows": n, "locked_tv": middle}
    if found.exceeding > 0:
        reason = (
            f"{100 * found.exceeding:.3g} % of rows move more than the locking bound allows: "
            "the rows are not the softmax of these logits"
        )
        return check("P2", limits, FAIL, None, reason, **details)
    if n < 10:
        return abstain(
            "P2",
            limits,
            f"{n} of {tail.size} rows have a tail mass of at most {limits.locked_tail:g}: nothing is locked",
            **details,
        )
    apart = _locking.compare(m.tail, m.change, m.tv, used, limits.locked_tail, n_resamples, rng)
    low, high = apart.interval
    details |= {"ratio": apart.ratio, "ratio_interval": apart.interval}
    text = f"median TV of {n} locked rows (tail mass at most {limits.locked_tail:g}) {middle:.3g}"
    if middle > limits.locked_motion:
        reason = f"{text}, more than {limits.locked_motion:g}"
        return check("P2", limits, FAIL, apart.ratio, reason, **details)
    if apart.ratio is None:
        reason = f"{text}, but no unlocked rows whose logits change as much to compare them with"
        return abstain("P2", limits, reason, **details)
    text += f", {apart.ratio:.3g} [{low:.3g}, {high:.3g}] of that of other rows whose logits change as much"
    if high <= limits.locking:
        return check("P2", limits, PASS, apart.ratio, text, **details)
    if low > limits.locking:
        return check("P2", limits, FAIL, apart.ratio, text, **details)
    return check("P2", limits, ABSTAIN, apart.ratio, f"undecided: {text}", **details)


def contraction(
    stack: LayerStack,
    temperature: float,
    queries: npt.ArrayLike | None,
    keys: npt.ArrayLike | None,
    factors: Float,
    n_pairs: int,
    limits: Thresholds,
    n_resamples: int,
    rng: np.random.Generator,
    progress: bool,
    evi_rows: int,
) -> Check:
    """P3 (M.6): the curvature gap of neighbouring queries falls with temperature."""
    if len(stack.shape) < 2 or stack.shape[-2] < 2:
        return abstain("P3", limits, "needs at least two rows (queries) per layer")
    rows, columns = stack.shape[-2:]
    geometry = Geometry((rows, columns), queries, keys)
    if keys is None and rows != columns:
        return abstain(
            "P3",
            limits,
            f"no metric on the {columns} keys of {rows} queries: pass keys= (embeddings for a vocabulary); "
            "positions serve square attention alone",
        )
    if geometry.keys is not None and columns > _MOST_KEYS:
        return abstain(
            "P3",
            limits,
            f"W1 between rows over {columns} keys in {geometry.keys.shape[1]} dimensions is a linear "
            f"programme of {columns} x {columns} routes; pass at most {_MOST_KEYS} of the keys",
        )
    where = "positions" if keys is None else "keys"
    if geometry.keys is None:
        chosen = list(range(stack.n_layers))
    else:  # a linear programme per pair and temperature: few layers and pairs must do
        chosen = np.unique(np.linspace(0, stack.n_layers - 1, 4).round()).astype(int).tolist()
        n_pairs = min(n_pairs, max(2, _PROGRAMMES // (len(chosen) * stack.n_heads * factors.size)))
    pairs = _pairs(None, rows, n_pairs, rng)
    gaps: list[list[Float]] = []
    for k in track(chosen, "P3", progress):
        z = stack.layer(k).z.reshape(-1, rows, columns)
        gaps.append([gaps_at(head, pairs, geometry, factors, "temperature", True) for head in z])
    every = np.concatenate([_over_layers(of_head) for of_head in zip(*gaps, strict=True)], axis=1)
    if not every.shape[1]:
        return abstain("P3", limits, "no two neighbouring queries differ and see a common key")
    if np.ptp(every, axis=0).max() <= 1e-12 * every.max():
        return abstain(
            "P3",
            limits,
            f"the temperatures do not change the gap of any of {every.shape[1]} pairs: their rows are "
            "uniform, equal, or have all their mass on one key",
        )
    sweep = summarize_sweep(every, factors, "temperature", n_resamples, rng)
    low, high = sweep.reduction_interval
    details = {
        "factors": sweep.factors,
        "gap": sweep.mean,
        "bands": sweep.bands,
        "reduction_interval": sweep.reduction_interval,
        "slope": sweep.slope,
        "n_pairs": sweep.gaps.shape[1],
        "distance": where,
    }
    text = (
        f"gap {sweep.mean[0]:.3g} -> {sweep.mean[-1]:.3g} as temperature rises "
        f"x {factors[-1] / factors[0]:g}, reduction [{low:.3g}, {high:.3g}], "
        f"{sweep.gaps.shape[1]} pairs, distance of {where}"
    )
    if evi_rows:
        try:
            found = _evi_of_rows(stack, geometry, min(evi_rows, rows), rng)
        except ArithmeticError as problem:
            text += f"; no EVI: {problem}"
        else:
            details["evi"] = {
                "w2": found.w2.mean(axis=1),
                "contracting": found.contracting,
                "drift": found.drift.mean(axis=1),
            }
            text += (
                f"; {100 * found.contracting:.3g} % of steps come nearer to the last layer (EVI)"
            )
    if low > limits.reduction:
        return check("P3", limits, PASS, sweep.reduction, text, **details)
    if high <= limits.reduction:
        return check("P3", limits, FAIL, sweep.reduction, text, **details)
    return check("P3", limits, ABSTAIN, sweep.reduction, f"undecided: {text}", **details)


def _over_layers(gaps: tuple[Float, ...]) -> Float:
    """The mean gap of each pair over the layers, which are no independent samples of it."""
    if len({g.shape for g in gaps}) > 1:  # masks that change leave other pairs in each layer
        return np.concatenate(gaps, axis=1)
    return np.asarray(np.mean(gaps, axis=0))


def _evi_of_rows(stack: LayerStack, geometry: Geometry, n: int, rng: np.random.Generator) -> EVI:
    """Eq 25 for a few rows of the first head, towards the last layer."""
    chosen = np.sort(rng.choice(stack.shape[-2], size=n, replace=False))
    path = np.stack([stack.layer(k).p[chosen] for k in range(stack.n_layers)])
    support = geometry.positions if geometry.keys is None else geometry.keys
    return evi(path / path.sum(axis=-1, keepdims=True), support)
