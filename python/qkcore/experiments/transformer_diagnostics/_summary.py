"""Makes metrics.json, the key numbers of every model over its passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._configs import Config
from ._states import summarize

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """All measurements of one model."""

    about: Row
    passages: list[Row]
    """measures of the first passages"""
    rotation: Row
    surprise: list[float | None]
    """loss per token of every passage, for models that predict tokens"""


def metrics(found: dict[str, Found], config: Config, text: dict[str, str]) -> Row:
    """The content of the whole file."""
    return {
        "models": {label: _model(f, config) for label, f in found.items()},
        "text": {"source": "pydoc_data.topics", "sha256": text},
        "tokens": config["tokens"],
        "passages": config["passages"],
        "variation_limit": config["variation"],
    }


def _model(f: Found, config: Config) -> Row:
    return {
        "about": f.about,
        "gate": _gate(f),
        "adequacy": _adequacy(f),
        "locking": _locking(f, config),
        "contraction": _contraction(f, config),
        "evi": _evi(f),
        "rotation": _rotation(f),
        "suite": _suite(f),
        "regimes": _regimes(f),
        "sink": _sink(f),
        "depth": _depth(f),
    }


def _over(f: Found, value: Callable[[Row], Any]) -> Row:
    return summarize([value(m) for m in f.passages])


def _gate(f: Found) -> Row:
    return {
        "variation": _over(f, lambda m: m["variation"]),
        "variation_best_head": _over(f, lambda m: m["variation_best_head"]),
        "residual": max(m["suite"]["rows"]["residual"] for m in f.passages),
        "window": _over(f, lambda m: m["window"]["length"]),
        "transitions": f.about["layers"] - 1,
    }


def _adequacy(f: Found) -> Row:
    moves = [m["transitions"] for m in f.passages]
    sizes = np.array([r["budget"] for rows in moves for r in rows])
    tv = np.array([r["tv"] for rows in moves for r in rows])
    missed = np.array([r["defect"] for rows in moves for r in rows])
    return {
        "tv": _over(f, lambda m: np.mean([r["tv"] for r in m["transitions"]])),
        "budget": _over(f, lambda m: np.mean([r["budget"] for r in m["transitions"]])),
        "missed": _over(
            f,
            lambda m: (
                sum(r["defect"] for r in m["transitions"])
                / max(sum(r["tv"] for r in m["transitions"]), 1e-300)
            ),
        ),
        "over_budget": float((tv > sizes * (1 + 1e-12)).mean()),
        # Prediction (i): the less logits move, the better the flow describes the motion.
        "rank_correlation": _spearman(sizes, missed / np.maximum(tv, 1e-300)),
        "smallest_steps_missed": _lowest_tenth(sizes, missed, tv),
    }


def _lowest_tenth(sizes: Any, missed: Any, tv: Any) -> float:
    """Share of the motion that an Euler step misses, for the tenth of heads and layers that move least."""
    small = sizes <= np.quantile(sizes, 0.1)
    return float(missed[small].sum() / max(tv[small].sum(), 1e-300))


def _spearman(x: Any, y: Any) -> float:
    from scipy.stats import spearmanr

    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = np.isfinite(x) & np.isfinite(y)
    if kept.sum() < 3 or np.ptp(x[kept]) == 0 or np.ptp(y[kept]) == 0:
        return float("nan")
    return float(spearmanr(x[kept], y[kept]).statistic)


def _locking(f: Found, config: Config) -> Row:
    def locked(rows: list[Row]) -> float:
        """Medians of heads, weighted by how many of their rows are locked."""
        some = [r for r in rows if r["locked"]]
        if not some:
            return float("nan")
        return float(
            np.average([r["locked_tv"] for r in some], weights=[r["locked"] for r in some])
        )

    return {
        "locked_share": _over(
            f,
            lambda m: (
                sum(r["locked"] for r in m["transitions"])
                / max(sum(r["rows"] for r in m["transitions"]), 1)
            ),
        ),
        "locked_tv": _over(f, lambda m: locked(m["transitions"])),
        "tv": _over(f, lambda m: np.mean([r["tv"] for r in m["transitions"]])),
        "argmax_kept": _over(f, lambda m: m["locking"]["argmax_kept"]),
        "above_sharp": max(m["locking"]["above_sharp"] for m in f.passages),
        "above_printed": _over(f, lambda m: m["locking"]["above_printed"]),
        "tail": config["locked_tail"],
    }


def _contraction(f: Found, config: Config) -> Row:
    first, last = config["temperatures"][0], config["temperatures"][-1]

    def gaps(m: Row, t: float) -> Any:
        return np.array([r["gap"] for r in m["curvature"] if r["temperature"] == t])

    falls = np.stack([1 - gaps(m, last) / np.maximum(gaps(m, first), 1e-300) for m in f.passages])
    return {
        "gap": _over(f, lambda m: gaps(m, first).mean()),
        "gap_hot": _over(f, lambda m: gaps(m, last).mean()),
        "fall": _over(f, lambda m: 1 - gaps(m, last).mean() / gaps(m, first).mean()),
        "heads_that_fall": float((falls.mean(axis=0) > 0).mean()),
        "heads": int(falls.shape[1]),
        "factor": last / first,
        "key_space": {knob: _key_space(f, knob) for knob in ("temperature", "key norm")},
    }


def _key_space(f: Found, knob: str) -> Row:
    rows = [r for m in f.passages for r in m["key_space"] if r["knob"] == knob]
    before, after = (np.array([r[c] for r in rows]) for c in ("gap", "gap_after"))
    if not rows:
        return {"gap": None, "gap_after": None, "heads_that_fall": None, "heads": 0}
    return {
        "gap": float(before.mean()),
        "gap_after": float(after.mean()),
        "heads_that_fall": float((after < before).mean()),
        "heads": len(rows),
    }


def _evi(f: Found) -> Row:
    rows = [r for m in f.passages for r in m["evi"]]
    steps = [r["progress"] for r in rows if r["progress"] is not None]
    start = [r["w2"] for r in rows if r["layer"] == 0]
    return {
        "nearer": float(np.mean([s <= 0 for s in steps])) if steps else None,
        "steps": len(steps),
        "first_w2": summarize(start),
    }


def _rotation(f: Found) -> Row:
    parts = [{k: v for k, v in c.items() if k != "rows"} for c in f.rotation["components"]]
    known = all(s is not None for s in f.surprise)
    turning = f.rotation["passages"]
    return {
        **parts[0],
        "by_components": parts,
        "by_passage": turning,
        "rank_correlation_with_surprise": _spearman(turning, f.surprise) if known else None,
        "surprise": summarize(f.surprise),
    }


def _suite(f: Found) -> Row:
    """How often the suite gave each verdict over the passages, for each reading."""
    out: Row = {}
    readings = {reading for m in f.passages for reading in m["suite"]}
    for reading in sorted(readings):
        runs = [m["suite"][reading] for m in f.passages if reading in m["suite"]]
        out[reading] = {
            check: {
                "gated": dict(Counter(r["gated"][check] for r in runs)),
                "open": dict(Counter(r["open"][check] for r in runs)),
                "value": summarize([r["value"][check] for r in runs]),
            }
            for check in runs[0]["gated"]
        }
    return out


def _regimes(f: Found) -> Row:
    rows = [r for m in f.passages for r in m["heads"] if r["head"] >= 0]
    layers = [r for m in f.passages for r in m["heads"] if r["head"] < 0]
    production = np.array([_number(r["entropy_production"]) for r in rows])
    depth = np.array([r["layer"] for r in rows])
    finite = np.isfinite(production)
    return {
        "counts": dict(Counter(r["regime"] for r in rows)),
        "of": "the unmasked logits" if f.about["causal"] else "the attention matrices",
        "entropy_production": summarize(production[finite].tolist()),
        "entropy_production_median": float(np.median(production[finite])) if finite.any() else None,
        "infinite": int((~finite).sum()),
        "unbalanced": summarize([r["unbalanced"] for r in rows]),
        "smallest_current": summarize([r["current"] for r in rows])["low"],
        "asymmetry": summarize([r["asymmetry"] for r in rows]),
        "rank_correlation_with_asymmetry": _spearman([r["asymmetry"] for r in rows], production),
        "rank_correlation_with_depth": _spearman(depth, production),
        "mean_of_heads": summarize([r["entropy_production"] for r in layers]),
        "absorption": summarize([r["absorption"] for r in rows]),
        "gap": summarize([r["gap"] for r in rows]),
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _sink(f: Found) -> Row:
    layers = [[r for r in m["heads"] if r["head"] < 0] for m in f.passages]
    first = np.array([[r["sink_first"] for r in rows] for rows in layers]).mean(axis=0)
    top = np.array([[r["sink_top"] for r in rows] for rows in layers]).mean(axis=0)
    return {
        "first": first.tolist(),
        "top": top.tolist(),
        "largest": {"layer": int(first.argmax()), "mass": float(first.max())},
        "uniform": _uniform_first(f),
    }


def _uniform_first(f: Found) -> float:
    """The mass on the first token if every row were uniform."""
    n = f.about["tokens"]
    return float(np.mean(1 / np.arange(1, n + 1))) if f.about["causal"] else 1 / n


def _depth(f: Found) -> Row:
    def by_layer(name: str) -> list[float]:
        table = np.array([[_number(s[name]) for s in m["states"]] for m in f.passages])
        out: list[float] = table.mean(axis=0).tolist()
        return out

    entropy = np.array([[r["entropy"] for r in m["heads"] if r["head"] >= 0] for m in f.passages])
    per_layer = entropy.mean(axis=0).reshape(f.about["layers"], -1).mean(axis=1)
    out: Row = {name: by_layer(name) for name in ("cosine", "rank", "update", "turn", "norm")}
    out["attention_entropy"] = per_layer.tolist()
    out["entropy_rank_correlation"] = _spearman(np.arange(len(per_layer)), per_layer)
    out["steps"] = np.array([m["steps"] for m in f.passages]).mean(axis=0).tolist()
    out["update_rank_correlation"] = _spearman(np.arange(f.about["layers"]), out["update"][1:])
    if "probe" in f.passages[0]:
        for name in ("probe_step", "probe_left"):
            table = np.array([[s[name] for s in m["probe"]] for m in f.passages])
            out[name] = table.mean(axis=0).tolist()
    return out
