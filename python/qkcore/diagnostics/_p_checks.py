"""The checks P0-P4 one by one: a number, a threshold, a verdict and its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._progress import track
from . import _locking, rotation
from ._arrays import Float
from ._evi import EVI, evi
from ._gate import Gate
from ._layers import LayerStack, Rows, row_motion
from ._stats import mean_interval
from .curvature import Geometry, _pairs, gaps_at, summarize_sweep

if TYPE_CHECKING:
    from .report import Thresholds

PASS, FAIL, ABSTAIN = "pass", "fail", "abstain"

TITLES = {
    "P0": "bounded variation, continuity",
    "P1": "probability-flow adequacy",
    "P2": "locking",
    "P3": "contraction",
    "P4": "bridge alignment",
}
_PROGRAMMES = 256  # linear programmes that P3 may take
_SMALLEST = 1e-70  # activations from here to its inverse: their fourth powers are numbers
_BAND_ROWS = 2000  # rows that a band is bootstrapped from


@dataclass(frozen=True, eq=False)
class Check:
    """One diagnostic: its verdict, the number, what it was compared with, and why."""

    name: str
    title: str
    verdict: str
    value: float | None
    threshold: float
    sense: str
    """how value and threshold compare when the check passes"""
    reason: str
    details: dict[str, Any] = field(repr=False, default_factory=dict)

    def __str__(self) -> str:
        number = "-" if self.value is None else f"{self.value:.4g}"
        return (
            f"{self.name} {self.title}: {self.verdict} "
            f"({number} {self.sense} {self.threshold:g}); {self.reason}"
        )


def _limit(name: str, limits: Thresholds) -> tuple[str, float]:
    return {
        "P0": ("<=", limits.variation),
        "P1": ("<=", limits.adequacy),
        "P2": ("<=", limits.locked_motion),
        "P3": (">", limits.reduction),
        "P4": ("<=", limits.rotation),
    }[name]


def _check(
    name: str, limits: Thresholds, verdict: str, value: float | None, reason: str, **details: Any
) -> Check:
    sense, limit = _limit(name, limits)
    return Check(name, TITLES[name], verdict, value, limit, sense, reason, details)


def abstain(name: str, limits: Thresholds, reason: str, **details: Any) -> Check:
    """No verdict, and why."""
    return _check(name, limits, ABSTAIN, None, reason, **details)


def _above(value: float) -> float:
    """A threshold that the value keeps, with two digits."""
    return float(f"{1.1 * value:.2g}")


def gate_check(gate: Gate, limits: Thresholds, what: str) -> Check:
    """P0 (N.4)."""
    reasons, remedies = [], {}
    if not gate.variation <= limits.variation:
        worst = int(np.argmax(gate.by_layer))
        size = f"S_L {gate.variation:.3g} > {limits.variation:g}"
        remedies["variation"] = _above(gate.variation)
        if gate.mask_changes:
            size = "a mask changes between layers; use one mask"
        elif np.isinf(gate.variation):
            size = "the squares of their changes overflow"
        reasons.append(
            f"the {what} vary too much ({size}), most at transition {worst} -> {worst + 1}"
        )
    if not gate.residual < limits.continuity:
        reasons.append(
            f"rows gain or lose mass (residual {gate.residual:.2g}, wanted < {limits.continuity:g}), more "
            "than rounding explains: divide them by their sums, or pass logits"
        )
        remedies["continuity"] = _above(gate.residual)
    if reasons and all(np.isfinite(list(remedies.values()))):
        reasons.append(f"to judge P1-P4 all the same, pass thresholds={remedies}")
    verdict = FAIL if reasons else PASS
    reason = "; ".join(reasons) or f"continuity residual {gate.residual:.1e}"
    spikes = gate.spikes
    if spikes and not reasons:
        reason += f"; jumps (over 5 medians) at transitions {', '.join(map(str, spikes[:5]))}"
    return _check(
        "P0",
        limits,
        verdict,
        gate.variation,
        reason,
        residual=gate.residual,
        by_layer=gate.by_layer,
        by_head=gate.by_head,
        total=gate.total,
        spikes=spikes,
    )


@dataclass(frozen=True, eq=False)
class Motions:
    """Row motions of all transitions, (transitions, rows) each."""

    tv: Float
    change: Float
    tail: Float
    bound: Float
    defect: Float


def motions(transitions: Iterable[tuple[Rows, Rows]]) -> Motions:
    """Walk the layers once."""
    found = [row_motion(before, after) for before, after in transitions]
    return Motions(
        *(
            np.stack([getattr(m, k) for m in found])
            for k in ("tv", "change", "tail", "bound", "defect")
        )
    )


def adequacy(
    m: Motions, budget: Float | None, limits: Thresholds, n_resamples: int, rng: np.random.Generator
) -> Check:
    """P1 (M.6): realised TV within the drift budget (eq 22) and a band, and an Euler step that is near."""
    allowed = np.broadcast_to(0.5 * m.change if budget is None else budget, m.tv.shape)
    excess = m.tv - allowed
    over, bands = [], []
    rows = m.tv.shape[1]
    chosen = rng.choice(rows, size=min(rows, _BAND_ROWS), replace=False)
    for k in range(len(m.tv)):
        low, high = mean_interval(excess[k][chosen], rng=rng, n_resamples=n_resamples)
        bands.append((low, high))
        if low > 0:  # the whole band lies above the budget
            over.append(k)
    moved = float(m.tv.sum())
    share = float(m.defect.sum()) / moved if moved > 0 else 0.0
    details = {
        "realised": m.tv.mean(axis=1),
        "budget": allowed.mean(axis=1),
        "excess_bands": bands,
        "exceeding_layers": over,
        "rows_over_budget": float((excess > 1e-12).mean()),
        "defect_by_layer": m.defect.mean(axis=1),
        "budget_source": "logits (eq 22, constant 1)" if budget is None else "given",
    }
    if moved == 0:
        return abstain("P1", limits, "no row moves from layer to layer", **details)
    if over:
        worst = max(over, key=lambda k: float(excess[k].mean()))
        return _check(
            "P1",
            limits,
            FAIL,
            share,
            f"more motion than the drift budget at {len(over)} transitions, most at {worst} -> {worst + 1} "
            f"(TV {m.tv[worst].mean():.3g}, budget {allowed[worst].mean():.3g})",
            **details,
        )
    if share > limits.adequacy:
        return _check(
            "P1",
            limits,
            FAIL,
            share,
            f"an Euler step of the flow misses {100 * share:.3g} % of the motion: layers are too far apart",
            **details,
        )
    return _check(
        "P1",
        limits,
        PASS,
        share,
        f"an Euler step of the flow misses {100 * share:.3g} % of the motion, no layer over its budget",
        **details,
    )


def locking_check(m: Motions, limits: Thresholds) -> Check:
    """P2 (M.6): the bound of eq 23, and a small median in low-tail bins."""
    tail, tv = m.tail.ravel(), m.tv.ravel()
    found = _locking.summarize(tail, m.change.ravel(), tv, m.bound.ravel())
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
    if not m.change.any():
        return abstain("P2", limits, "no logit changes from layer to layer", **details)
    locked = tail <= limits.locked_tail
    n = int(locked.sum())
    if found.exceeding > 0:
        return _check(
            "P2",
            limits,
            FAIL,
            float(np.median(tv[locked])) if n else None,
            f"{100 * found.exceeding:.3g} % of rows move more than the locking bound allows: "
            "the rows are not the softmax of these logits",
            **details,
        )
    if n < 10:
        return abstain(
            "P2",
            limits,
            f"{n} of {tail.size} rows have a tail mass of at most {limits.locked_tail:g}: nothing is locked",
            **details,
        )
    middle = float(np.median(tv[locked]))
    verdict = PASS if middle <= limits.locked_motion else FAIL
    return _check(
        "P2",
        limits,
        verdict,
        middle,
        f"median TV of {n} locked rows (tail mass at most {limits.locked_tail:g}), "
        f"elsewhere {float(np.median(tv[~locked])) if n < tail.size else 0.0:.3g}",
        **details,
    )


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
    where = "positions" if geometry.keys is None else "keys"
    gaps = []
    if geometry.keys is None:
        chosen = list(range(stack.n_layers))
    else:  # a linear programme per pair and temperature: few layers and pairs must do
        chosen = np.unique(np.linspace(0, stack.n_layers - 1, 4).round()).astype(int).tolist()
        n_pairs = min(n_pairs, max(2, _PROGRAMMES // (len(chosen) * stack.n_heads * factors.size)))
    pairs = _pairs(None, rows, n_pairs, rng)
    for k in track(chosen, "P3", progress):
        z = stack.layer(k).z.reshape(-1, rows, columns)
        gaps += [gaps_at(head, pairs, geometry, factors, "temperature", True) for head in z]
    every = np.concatenate(gaps, axis=1)
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
        return _check("P3", limits, PASS, sweep.reduction, text, **details)
    if high <= limits.reduction:
        return _check("P3", limits, FAIL, sweep.reduction, text, **details)
    return _check("P3", limits, ABSTAIN, sweep.reduction, f"undecided: {text}", **details)


def _evi_of_rows(stack: LayerStack, geometry: Geometry, n: int, rng: np.random.Generator) -> EVI:
    """Eq 25 for a few rows of the first head, towards the last layer."""
    chosen = np.sort(rng.choice(stack.shape[-2], size=n, replace=False))
    path = np.stack([stack.layer(k).p[chosen] for k in range(stack.n_layers)])
    support = geometry.positions if geometry.keys is None else geometry.keys
    return evi(path / path.sum(axis=-1, keepdims=True), support)


def alignment(
    H: Float,
    diffusion: Any,
    n_components: int,
    reference: float | None,
    limits: Thresholds,
    n_resamples: int,
    rng: np.random.Generator,
) -> Check:
    """P4: rotational energy along depth, in the leading principal components."""
    n, d = H.shape[1:]
    if n < 20:
        return abstain(
            "P4", limits, f"{n} samples are too few for a rotational energy; pass at least 20"
        )
    if not np.diff(H, axis=0).any():
        return abstain("P4", limits, "the activations do not move")
    largest = float(np.abs(H).max())
    if not _SMALLEST < largest < 1 / _SMALLEST:
        return abstain(
            "P4",
            limits,
            f"the powers of the activations, up to {largest:.2g}, leave the range of float64: scale them",
        )
    flat = H.reshape(-1, d) - H.reshape(-1, d).mean(axis=0)
    extent = float(np.abs(flat).max())
    if extent <= n * np.finfo(np.float64).eps * largest:
        return abstain("P4", limits, "the activations of all samples are equal")
    k = min(n_components, d)
    kept = ""
    if k < d:
        values, vectors = np.linalg.eigh(flat.T @ flat)
        H = H @ vectors[:, ::-1][:, :k]
        kept = f"; {k} of {d} components hold {100 * values[-k:].sum() / values.sum():.3g} % of the variance"
    try:
        found = rotation.path_energy(H, a=diffusion, n_resamples=n_resamples, rng=rng)
    except ValueError as problem:
        # About the activations, which are the X of path_energy, or their diffusion tensor.
        text = str(problem)
        if not text.startswith("X: ") and "positive definite" not in text:
            raise
        return abstain("P4", limits, text.replace("X: ", "activations: ", 1))
    except (ArithmeticError, np.linalg.LinAlgError) as problem:
        return abstain("P4", limits, f"the Poisson problem cannot be solved: {problem}")
    energies = np.array([layer.energy for layer in found.layers])
    moving = np.array([layer.kinetic for layer in found.layers])
    details = {
        "energy": found.energy,
        "interval": found.interval,
        "by_layer": energies,
        "kinetic_by_layer": moving,
        "condition": [layer.condition for layer in found.layers],
        "gamma": [layer.gamma for layer in found.layers],
    }
    if not moving.sum() > 0:
        return abstain("P4", limits, "the kinetic energy of the activations is 0", **details)
    bad = sum(not layer.converged for layer in found.layers)
    if bad:
        return abstain("P4", limits, f"{bad} Poisson solves did not converge", **details)
    text = f"R = {found.energy:.4g} [{found.interval[0]:.3g}, {found.interval[1]:.3g}]{kept}"
    if reference is not None:
        verdict = PASS if found.interval[1] < reference else FAIL
        if found.interval[0] < reference <= found.interval[1]:
            verdict = ABSTAIN
        return _check(
            "P4",
            limits,
            verdict,
            found.normalized,
            f"{text}; compared with {reference:.4g}",
            **details,
        )
    low, high = (x * len(energies) / moving.sum() for x in found.interval)
    if high <= limits.rotation:
        return _check("P4", limits, PASS, found.normalized, text, **details)
    if low > limits.rotation:
        return _check("P4", limits, FAIL, found.normalized, text, **details)
    return _check("P4", limits, ABSTAIN, found.normalized, f"undecided: {text}", **details)
