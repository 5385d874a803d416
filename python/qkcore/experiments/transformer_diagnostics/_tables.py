"""Makes the tables of the report from metrics.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .._files import Table, read_json
from .._results import Listing, number

Row = dict[str, Any]


def tables(folder: Path) -> list[Listing]:
    """Tables of models, P0 to P4, verdicts, regimes (also of every head), and depth."""
    models: dict[str, Row] = read_json(folder / "metrics.json")["models"]
    heads = Table.read(folder / "heads.csv")
    each = [_heads(n, m, heads) for n, m in models.items() if not n.endswith("-shuffled")]
    checks = [_first_checks(models), _last_checks(models), _verdicts(models)]
    return [_models(models), *checks, _regimes(models), *each, _depth(models)]


def spread(found: Row, digits: int = 3) -> str:
    """Mean ± standard deviation over passages, as text."""
    if found["mean"] is None:
        return "–"
    around = found["sd"]
    return number(found["mean"], digits) + (f" ± {number(around, 2)}" if around else "")


def percent(value: float | None, digits: int = 3) -> str:
    """A share as text in per cent."""
    if value is None:
        return "–"
    text = f"{100 * value:.{digits}g}"
    return f"{100 * value:.0f} %" if "e+" in text else f"{text} %"


def _models(models: dict[str, Row]) -> Listing:
    rows = []
    for name, m in models.items():
        a = m["about"]
        shape = f"{a['layers']} / {a['heads']} / {a['width']}"
        mask = "causal" if a["causal"] else "full"
        rows.append((name, a["title"], shape, mask, "yes" if a["trained"] else "no"))
    return Listing(
        "Models", ("model", "what", "layers / heads / width", "mask", "trained"), tuple(rows)
    )


def _first_checks(models: dict[str, Row]) -> Listing:
    header = (
        "model", "P0: variation", "longest stretch within 0.15", "P1: TV per layer", "budget",
        "missed by an Euler step", "P2: locked rows", "their TV",
    )  # fmt: skip
    rows = []
    for name, m in models.items():
        gate, p1, p2 = (m[k] for k in ("gate", "adequacy", "locking"))
        rows.append(
            (
                name,
                spread(gate["variation"]),
                f"{number(gate['window']['mean'], 2)} of {gate['transitions']}",
                spread(p1["tv"]),
                spread(p1["budget"]),
                percent(p1["missed"]["mean"]),
                percent(p2["locked_share"]["mean"]),
                spread(p2["locked_tv"]),
            )
        )
    note = "Means over passages ± standard deviation."
    return Listing("P0, P1, P2, whatever the gate says", header, tuple(rows), note)


def _last_checks(models: dict[str, Row]) -> Listing:
    header = (
        "model", "P3: gap", "fall when warmed", "heads that fall", "P4: R", "share of the mean flow",
        "beyond a multiple of the state", "motion it explains", "gradient fields, at most",
    )  # fmt: skip
    rows = []
    for name, m in models.items():
        p3, p4 = m["contraction"], m["rotation"]
        rows.append(
            (
                name,
                spread(p3["gap"]),
                percent(p3["fall"]["mean"]),
                percent(p3["heads_that_fall"]),
                f"{number(p4['energy'])} [{number(p4['interval'][0])}, {number(p4['interval'][1])}]",
                percent(p4["share"]),
                percent(p4["beyond"]),
                percent(p4["explained"]),
                percent(p4["control"]),
            )
        )
    note = (
        "P3: means over passages ± standard deviation; P4: tokens of all passages, central layers."
    )
    return Listing("P3, P4, whatever the gate says", header, tuple(rows), note)


def _verdicts(models: dict[str, Row]) -> Listing:
    rows = []
    for name, m in models.items():
        for reading, checks in m["suite"].items():
            rows.append(
                (
                    name,
                    reading,
                    *(_both(checks.get(c)) for c in ("P0", "P1", "P2", "P3", "P4")),
                )
            )
    note = (
        "As N.4 prescribes / with the gate open. Readings: rows, attention rows of head h through depth; "
        "probe, read-out over the vocabulary; window, attention rows through the longest stretch of depth "
        "that passes P0."
    )
    return Listing(
        "Verdicts of the suite over passages",
        ("model", "reading", "P0", "P1", "P2", "P3", "P4"),
        tuple(rows),
        note,
    )


def _both(check: Row | None) -> str:
    return "–" if check is None else f"{_counts(check['gated'])} / {_counts(check['open'])}"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{v} {k}" for k, v in sorted(found.items()))


def _regimes(models: dict[str, Row]) -> Listing:
    header = (
        "model", "regime of", "EQ / NESS / other", "entropy production, median", "range",
        "flow that is unbalanced", "asymmetry of logits", "spectral gap, as masked",
        "steps to the first token", "largest mass on token 0",
    )  # fmt: skip
    rows = []
    for name, m in models.items():
        r, sink = m["regimes"], m["sink"]
        counts = r["counts"]
        other = sum(v for k, v in counts.items() if k not in ("EQ", "NESS"))
        low, high = r["entropy_production"]["low"], r["entropy_production"]["high"]
        rows.append(
            (
                name,
                r["of"],
                f"{counts.get('EQ', 0)} / {counts.get('NESS', 0)} / {other}",
                number(r["entropy_production_median"]),
                f"{number(low)} to {number(high)}",
                spread(r["unbalanced"], 2),
                spread(r["asymmetry"], 2),
                spread(r["gap"], 2),
                spread(r["absorption"], 2),
                f"{number(sink['largest']['mass'], 2)} (layer {sink['largest']['layer'] + 1})",
            )
        )
    note = (
        "Heads of all layers and passages at their stationary law; nats per step. Causal matrices are "
        "reducible, token 0 absorbs: their regime is that of the same logits without the mask."
    )
    return Listing("Attention as a Markov chain", header, tuple(rows), note)


def _heads(name: str, model: Row, heads: Table) -> Listing:
    """Entropy production of every head, as mean over passages, and the regimes in each layer."""
    here = heads.where(model=name)
    count = model["about"]["heads"]
    rows = []
    for layer in range(model["about"]["layers"]):
        of_layer = here.where(layer=str(layer))
        single = [r["regime"] for r in of_layer.rows if r["head"] != "-1"]
        regimes = ", ".join(f"{single.count(k)} {k}" for k in sorted(set(single)))
        cells = []
        for h in (*range(count), -1):
            values = of_layer.where(head=str(h))["entropy_production"]
            values = values[np.isfinite(values)]
            cells.append(number(float(values.mean()), 2) if values.size else "–")
        rows.append((str(layer + 1), regimes, *cells))
    title = "Entropy production by layer and head"
    of = " (logits without the mask)" if model["about"]["causal"] else ""
    return Listing(
        f"{title}: {name}{of}",
        ("layer", "regimes", *(str(h + 1) for h in range(count)), "mean of heads"),
        tuple(rows),
        "Nats per step at the stationary law, means over passages; last: the chain whose matrix is the "
        "mean of the heads.",
    )


def _depth(models: dict[str, Row]) -> Listing:
    header = (
        "model", "mean cosine of tokens, first", "middle", "last", "attention entropy, first", "middle",
        "last", "relative update, first", "middle", "last", "read-out: TV to the last law, middle",
    )  # fmt: skip
    rows = []
    for name, m in models.items():
        d = m["depth"]
        left = d.get("probe_left")
        rows.append(
            (
                name,
                *_three(d["cosine"]),
                *_three(d["attention_entropy"]),
                *_three(d["update"][1:]),
                number(left[len(left) // 2]) if left else "–",
            )
        )
    return Listing(
        "Depth profiles", header, tuple(rows), "Entropy of a row over the log of what it sees."
    )


def _three(values: list[float]) -> tuple[str, str, str]:
    return number(values[0]), number(values[len(values) // 2]), number(values[-1])
