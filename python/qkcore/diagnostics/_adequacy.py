"""P1: does one drift, fitted to some rows, carry other rows through depth? (EOT 6.3, M.6, eqs 1, 22)

The drift of a head is fitted layer by layer to half of its rows (to half of the passages, where there are
several), at every second layer, and joined linearly in time. The probability flow then starts at layer 0
of the other half and never sees the layers again. Its error in total variation at all layers is set against
that of rows that stay where they were:

    skill = 1 - (error of the flow) / (error of persistence)

1 is a flow that is followed exactly, 0 no better than standing still. A random walk has no drift to learn.
A drift common to all rows can be learned without looking at the state, so the skill of a flow that knows the
time alone is reported beside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ..simplex import pf_ode
from ._arrays import Float
from ._layers import LayerStack, softmax
from ._p_checks import Motions
from ._stats import mean_interval
from ._verdict import ABSTAIN, FAIL, PASS, Check, Thresholds, abstain, check

Fit = Callable[[Float, Float], Any]
"""States (n, f) and drifts (n, V) to a model with ``predict``."""

_FEWEST = 12  # rows that a drift is fitted to
_MOST_ROWS = 400  # of a head, both halves together
_MOST_HEADS = 8
_MOST_NUMBERS = 40_000_000  # logits of a head that are held at once
_COMPONENTS = 32  # of the states, as features
_ROWS_PER_DIMENSION = (
    2  # fewer rows teach no linear drift, and a bad one is no evidence against a flow
)
_PASSAGES = 4  # so many passages are needed to hold out whole ones
_TINY = 1e-300  # logits of probabilities below this are not told apart
_BAND_ROWS = 2000
_STEPS_PER_LAYER = 40  # a flow that needs more of them than this is not what the layers do


def fitter(drift: str) -> Fit:
    """How a drift is fitted: by ridge regression, by nearest neighbours, or by a network (on JAX)."""
    from . import drift as models

    _checks.one_of("drift", drift, ("ridge", "knn", "mlp"))
    make: Any = {"ridge": models.RidgeDrift, "knn": models.KNNDrift, "mlp": models.MLPDrift}[drift]
    return lambda X, y: make().fit(X, y)


@dataclass(frozen=True, eq=False)
class Skill:
    """What the flow of the held-out rows achieves."""

    skill: float
    interval: tuple[float, float]
    time_only: float
    """skill of the mean drift of each layer, which does not look at the state"""
    n_fitted: int
    """rows of a head that its drift was fitted to"""
    n_held: int
    """rows that were held out, over all heads"""
    error_by_layer: Float = field(repr=False)
    """mean TV between flow and rows at layers 1 to L"""
    persistence_by_layer: Float = field(repr=False)
    time_by_layer: Float = field(repr=False)
    bound: float
    """median over held-out rows of the finite-depth bound (l1), with constants measured at their states"""
    bound_error: float
    """median of the l1 error that it bounds"""
    informative: float
    """share of rows whose bound is below 2, the largest l1 distance"""
    finished: bool
    """whether all flows reached the last layer"""
    dimensions: int
    """principal components that hold 95 % of the variance of the states, at most over the heads"""


def adequacy(
    stack: LayerStack,
    m: Motions,
    budget: Float | None,
    drift: str,
    limits: Thresholds,
    n_resamples: int,
    rng: np.random.Generator,
) -> Check:
    """P1: the skill of the flow, and realised TV within the drift budget of eq 22 and a band."""
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
    moving = m.change > 0
    ratio = np.divide(m.tv, m.change, out=np.zeros_like(m.tv), where=moving)
    details: dict[str, Any] = {
        "realised": m.tv.mean(axis=1),
        "budget": allowed.mean(axis=1),
        "excess_bands": bands,
        "exceeding_layers": over,
        "rows_over_budget": float((excess > 1e-12).mean()),
        "budget_source": "logits (eq 22, sharp constant 1/2)" if budget is None else "given",
        "sensitivity": ratio.max(axis=1),
    }
    if over:
        worst = max(over, key=lambda k: float(excess[k].mean()))
        reason = (
            f"more motion than the drift budget at {len(over)} transitions, most at {worst} -> {worst + 1} "
            f"(TV {m.tv[worst].mean():.3g}, budget {allowed[worst].mean():.3g})"
        )
        return check("P1", limits, FAIL, None, reason, **details)
    if float(m.tv.max()) <= 1e-12:
        return abstain("P1", limits, "no row moves from layer to layer", **details)
    found = measure(stack, fitter(drift), n_resamples, rng)
    if isinstance(found, str):
        return abstain("P1", limits, found, **details)
    return _judged(found, drift, limits, details)


def _judged(found: Skill, drift: str, limits: Thresholds, details: dict[str, Any]) -> Check:
    details |= {
        "skill": found.skill,
        "interval": found.interval,
        "time_only": found.time_only,
        "error_by_layer": found.error_by_layer,
        "persistence_by_layer": found.persistence_by_layer,
        "time_by_layer": found.time_by_layer,
        "bound": found.bound,
        "bound_error": found.bound_error,
        "informative": found.informative,
        "fitted_rows": found.n_fitted,
        "dimensions": found.dimensions,
        "held_out_rows": found.n_held,
        "drift": drift,
    }
    low, high = found.interval
    text = (
        f"a drift fitted to {found.n_fitted} rows ({drift}) carries {found.n_held} others with skill "
        f"{found.skill:.3g} [{low:.3g}, {high:.3g}], without looking at the state {found.time_only:.3g}"
    )
    if not found.finished:
        text += "; the fitted flow does not reach the last layer"
    if found.informative >= 0.5:
        text += f"; l1 error {found.bound_error:.2g}, bound {found.bound:.2g}"
    if low >= limits.skill:
        if found.time_only >= found.skill - 0.02:
            text += "; one common drift explains it as well as the state does"
        return check("P1", limits, PASS, found.skill, text, **details)
    if high < limits.skill and found.n_fitted < _ROWS_PER_DIMENSION * found.dimensions:
        few = (
            f"too few rows to learn a drift from: {found.n_fitted}, of states in {found.dimensions} "
            "dimensions"
        )
        return check("P1", limits, ABSTAIN, found.skill, f"{few}; {text}", **details)
    if high < limits.skill:
        return check("P1", limits, FAIL, found.skill, text, **details)
    return check("P1", limits, ABSTAIN, found.skill, f"undecided: {text}", **details)


def measure(stack: LayerStack, fit: Fit, n_resamples: int, rng: np.random.Generator) -> Skill | str:
    """The skill over all heads, or why there is none."""
    if len(stack.shape) < 2:
        return "needs rows to fit a drift to and others to test it on"
    found = []
    for head in _some(stack.n_heads_proper, _MOST_HEADS):
        z, passage = _head(stack, head, rng)
        if isinstance(z, str):
            return z
        found.append(_head_skill(z, passage, fit, rng))
        if isinstance(found[-1], str):
            return str(found[-1])
    parts = [f for f in found if not isinstance(f, str)]
    errors, still, timed = (
        np.concatenate([getattr(f, name) for f in parts], axis=1)
        for name in ("flow", "still", "timed")
    )
    units = np.concatenate([f.unit + 10**6 * k * (not f.by_passage) for k, f in enumerate(parts)])
    below = float(still.sum())
    if not below > 1e-12 * still.size:
        return "the held-out rows do not move"
    bound = np.concatenate([f.bound for f in parts])
    return Skill(
        skill=1 - float(errors.sum()) / below,
        interval=_band(errors.sum(axis=0), still.sum(axis=0), units, n_resamples, rng),
        time_only=1 - float(timed.sum()) / below,
        n_fitted=parts[0].n_fitted,
        n_held=errors.shape[1],
        error_by_layer=errors.mean(axis=1),
        persistence_by_layer=still.mean(axis=1),
        time_by_layer=timed.mean(axis=1),
        bound=float(np.median(bound)),
        bound_error=float(np.median(2 * errors.max(axis=0))),
        informative=float((bound < 2).mean()),
        finished=all(f.finished for f in parts),
        dimensions=max(f.dimensions for f in parts),
    )


def _some(n: int, most: int) -> list[int]:
    return [int(k) for k in np.unique(np.linspace(0, n - 1, min(n, most)).round())]


def _band(
    above: Float, below: Float, units: Float, n_resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Percentile bootstrap of 1 - sum / sum over the rows, or over the passages."""
    _, index = np.unique(units, return_inverse=True)
    a, b = np.bincount(index, above), np.bincount(index, below)
    drawn = rng.integers(0, len(a), size=(n_resamples, len(a)))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = 1 - a[drawn].sum(axis=1) / b[drawn].sum(axis=1)
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.025, 0.975]) if values.size else (-np.inf, np.inf)
    return float(low), float(high)


def _head(
    stack: LayerStack, head: int, rng: np.random.Generator
) -> tuple[Float | str, npt.NDArray[np.int64]]:
    """Logits (layers, rows, keys) of one head, a sample of its rows with several keys, their passages."""
    V = stack.shape[-1]
    first = stack.of_head(0, head)
    several = np.flatnonzero(np.isfinite(first).sum(axis=1) > 1)
    most = min(_MOST_ROWS, _MOST_NUMBERS // (stack.n_layers * V))
    chosen = several
    if len(several) > most:
        chosen = np.sort(rng.choice(several, size=most, replace=False))
    passage = chosen // stack.shape[-2]
    if len(chosen) < 2 * _FEWEST:
        why = (
            f"{len(chosen)} rows of a head are too few to fit a drift to half of them; "
            f"pass at least {2 * _FEWEST}"
        )
        return why, passage
    z = np.stack([stack.of_head(k, head)[chosen] for k in range(stack.n_layers)])
    if (np.isneginf(z) != np.isneginf(z[0])).any():
        return "a mask changes between layers: there is no drift there", passage
    return z, passage


@dataclass(frozen=True, eq=False)
class _HeadSkill:
    flow: Float
    still: Float
    timed: Float
    """TV (layers, held-out rows) of the flow, of standing still, of the mean drift"""
    bound: Float
    unit: npt.NDArray[np.int64]
    by_passage: bool
    n_fitted: int
    finished: bool
    dimensions: int


def _head_skill(
    z: Float, passage: npt.NDArray[np.int64], fit: Fit, rng: np.random.Generator
) -> _HeadSkill | str:
    L = len(z) - 1
    names = np.unique(passage)
    by_passage = len(names) >= _PASSAGES
    if by_passage:
        fitted = np.isin(passage, rng.permutation(names)[: len(names) // 2])
    else:
        fitted = np.zeros(len(passage), dtype=bool)
        fitted[rng.permutation(len(passage))[: len(passage) // 2]] = True
    if fitted.sum() < _FEWEST or (~fitted).sum() < 2:
        return f"{int(fitted.sum())} rows are too few to fit a drift to; pass at least {_FEWEST}"
    seen = np.isfinite(z[0])
    steps = _centred(np.diff(np.where(seen, z, 0.0), axis=0), seen)
    with np.errstate(invalid="ignore"):
        middles = np.where(seen, z[:-1] / 2 + z[1:] / 2, -np.inf)
    used = list(range(0, L, 2)) if L >= 4 else list(range(L))
    learn = _Drift(z, middles, steps * L, seen, fitted, used, fit)
    held = ~fitted
    p = softmax(z[:, held])
    solution = pf_ode(
        p[0],
        lambda q, t: learn(q, t, seen[held]),
        (0.0, 1.0),
        t_eval=np.arange(L + 1) / L,
        max_steps=min(2000, max(200, _STEPS_PER_LAYER * L)),
    )
    path = solution.p
    if len(path) < L + 1:  # where the flow ended it stays
        path = np.concatenate([path, np.repeat(path[-1:], L + 1 - len(path), axis=0)])
    timed = softmax(_timed(z[0], steps, fitted, seen, used)[:, held])
    flow, still, mean = (0.5 * np.abs(x - p)[1:].sum(axis=2) for x in (path, p[:1], timed))
    return _HeadSkill(
        flow=flow,
        still=still,
        timed=mean,
        bound=_bound(learn, p, steps[:, held], seen[held]),
        unit=passage[held] if by_passage else np.flatnonzero(held),
        by_passage=by_passage,
        n_fitted=int(fitted.sum()),
        finished=solution.success,
        dimensions=learn.dimensions,
    )


def _centred(x: Float, seen: npt.NDArray[np.bool_]) -> Float:
    """Without the mean over visible keys; 0 at the others."""
    mean = (x / seen.sum(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    return np.asarray(np.where(seen, x - mean, 0.0))


class _Drift:
    """Models of the drift at the middles of some layers, joined linearly in time, held at the ends."""

    def __init__(
        self,
        z: Float,
        middles: Float,
        drifts: Float,
        seen: npt.NDArray[np.bool_],
        fitted: npt.NDArray[np.bool_],
        used: list[int],
        fit: Fit,
    ) -> None:
        kept = seen[fitted]
        states = [_state(softmax(middles[k][fitted]), kept) for k in used]
        flat = np.concatenate(states)
        self._centre = flat.mean(axis=0)
        count = min(_COMPONENTS, max(1, len(states[0]) // 3), flat.shape[1])
        off = flat - self._centre
        _, sizes, directions = np.linalg.svd(off, full_matrices=False)
        held = np.cumsum(sizes**2) / max(float((sizes**2).sum()), _TINY)
        self.dimensions = int(np.searchsorted(held, 0.95)) + 1
        self._axes = directions[:count].T
        self._times = (np.array(used) + 0.5) / (len(z) - 1)
        self._models = [
            fit((x - self._centre) @ self._axes, drifts[k][fitted])
            for k, x in zip(used, states, strict=True)
        ]

    def __call__(self, p: Float, t: float, seen: npt.NDArray[np.bool_]) -> Float:
        x = (_state(p, seen) - self._centre) @ self._axes
        at = float(np.interp(t, self._times, np.arange(len(self._times))))
        first = min(int(at), len(self._models) - 1)
        out = np.asarray(self._models[first].predict(x), dtype=np.float64)
        if at > first:
            after = np.asarray(self._models[first + 1].predict(x), dtype=np.float64)
            out = out + (at - first) * (after - out)
        return _centred(np.where(seen, out, 0.0), seen)


def _state(p: Float, seen: npt.NDArray[np.bool_]) -> Float:
    """What a drift may depend on: p and its centred logarithm."""
    logs = np.log(np.maximum(p, _TINY))
    return np.concatenate([p, _centred(np.where(seen, logs, 0.0), seen)], axis=1)


def _timed(
    start: Float,
    steps: Float,
    fitted: npt.NDArray[np.bool_],
    seen: npt.NDArray[np.bool_],
    used: list[int],
) -> Float:
    """Logits carried by the mean step of the fitted rows, known at the used layers and joined."""
    weight = seen[fitted].sum(axis=0)
    mean = steps[:, fitted].sum(axis=1) / np.maximum(weight, 1)
    L = len(steps)
    every = np.stack(
        [np.interp(np.arange(L), used, mean[used, j]) for j in range(mean.shape[1])], axis=1
    )
    moved = np.concatenate([np.zeros((1, every.shape[1])), np.cumsum(every, axis=0)])
    return np.asarray(start + moved[:, None, :])


def _half_range(x: Float, seen: npt.NDArray[np.bool_]) -> Float:
    high = np.where(seen, x, -np.inf).max(axis=-1)
    low = np.where(seen, x, np.inf).min(axis=-1)
    return np.asarray(high / 2 - low / 2)


def _bound(learn: _Drift, p: Float, steps: Float, seen: npt.NDArray[np.bool_]) -> Float:
    """The finite-depth bound of each row (depth.finite_depth), its constants measured along the row."""
    L = len(steps)
    growth, unsteady, misfit = (np.zeros(p.shape[1]) for _ in range(3))
    for k in range(L):
        here = learn(p[k], k / L, seen)
        moved = np.abs(p[k + 1] - p[k]).sum(axis=1)
        change = _half_range(learn(p[k + 1], k / L, seen) - here, seen)
        growth = np.maximum(
            growth, np.divide(change, moved, out=np.zeros_like(change), where=moved > 0)
        )
        unsteady = np.maximum(
            unsteady, L * _half_range(learn(p[k], (k + 1) / L, seen) - here, seen)
        )
        misfit += _half_range(L * steps[k] - here, seen) / L
    sizes = _half_range(steps, seen)
    with np.errstate(over="ignore"):
        out = sizes.max(axis=0) + np.exp(growth) * (
            misfit + 0.5 * growth * sizes.mean(axis=0) + 0.5 * unsteady / L
        )
    return np.asarray(out)
