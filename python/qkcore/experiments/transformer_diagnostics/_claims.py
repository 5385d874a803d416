"""EOT's statements on transformers, compared with what was measured, with a verdict for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .._results import Claim, number
from ._tables import percent, spread

Row = dict[str, Any]
PAPER_R = "1.096e-7 [3.468e-8, 2.153e-7], 10 central layers"


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """Claims for all statements of section 6, M.6 and N.4 on transformers; only trained models count."""
    models = {n: m for n, m in metrics["models"].items() if m["about"]["trained"]}
    if not models:
        return [
            Claim(
                "Section 6.2 on pre-trained transformers",
                "section 6.2",
                "diagnostics pass",
                "random weights only: nothing about trained models follows",
                "not tested",
            )
        ]
    makers: Iterable[Callable[[dict[str, Row], dict[str, Any]], Claim]] = (
        _gate, _probe_gate, _windows, _budget, _flow, _prediction, _locking, _contraction, _evi, _rotation,
        _checkpoints, _quality, _peaked, _diminishing, _ness,
    )  # fmt: skip
    return [make(models, metrics) for make in makers]


def _each(models: dict[str, Row], text: Callable[[Row], str]) -> str:
    return "; ".join(f"{name}: {text(m)}" for name, m in models.items())


def _verdict(passed: Iterable[bool]) -> str:
    found = list(passed)
    if not found:
        return "not tested"
    return "holds" if all(found) else "holds in part" if any(found) else "does not hold"


def _gate(models: dict[str, Row], metrics: Row) -> Claim:
    limit = metrics["variation_limit"]
    return Claim(
        "Attention rows of a trained transformer vary little through depth: P0 opens the way to P1–P4",
        "N.4, section 6",
        f"S̄_L ≤ {limit:g}",
        _each(models, lambda m: spread(m["gate"]["variation"])),
        _verdict(m["gate"]["variation"]["high"] <= limit for m in models.values()),
    )


def _probe_gate(models: dict[str, Row], metrics: Row) -> Claim:
    seen = {n: m for n, m in models.items() if "probe" in m["suite"]}
    return Claim(
        "So do probe-induced probabilities: the read-out of the residual stream over the vocabulary",
        "C.6 (ii), N.4",
        f"S̄_L ≤ {metrics['variation_limit']:g}",
        _each(seen, lambda m: spread(m["suite"]["probe"]["P0"]["value"])),
        _verdict(
            m["suite"]["probe"]["P0"]["value"]["high"] <= metrics["variation_limit"]
            for m in seen.values()
        ),
    )


def _windows(models: dict[str, Row], metrics: Row) -> Claim:
    def share(m: Row) -> float:
        return float(m["gate"]["window"]["low"] / max(m["gate"]["transitions"], 1))

    return Claim(
        "Where the variation is too large for the whole depth, it is bounded on segments",
        "remark 3.3, K.2",
        "piecewise",
        "longest stretch that passes P0: "
        + _each(
            models,
            lambda m: (
                f"{number(m['gate']['window']['mean'], 2)} of {m['gate']['transitions']} transitions"
            ),
        ),
        _verdict(share(m) >= 0.25 for m in models.values()),
    )


def _budget(models: dict[str, Row], metrics: Row) -> Claim:
    return Claim(
        "P1: realised TV of a layer does not exceed the drift budget (eq 22)",
        "M.6, figure 1",
        "TV ≤ budget",
        _each(
            models,
            lambda m: (
                f"TV {number(m['adequacy']['tv']['mean'], 2)}, budget "
                f"{number(m['adequacy']['budget']['mean'], 2)}"
            ),
        )
        + ". With the sharp constant ½ it cannot fail; a TV is never above 1, and the budget is",
        _verdict(m["adequacy"]["over_budget"] == 0 for m in models.values()),
    )


def _judged(model: Row, check: str) -> Row:
    """Verdicts of a check over the passages, the gate open, and its number."""
    found: Row = model["suite"]["rows"][check]
    return found


def _decided(model: Row, check: str) -> list[bool]:
    """Whether the check passed, of the passages where it did not abstain."""
    counts = _judged(model, check)["open"]
    return [True] * counts.get("pass", 0) + [False] * counts.get("fail", 0)


def _flow(models: dict[str, Row], metrics: Row) -> Claim:
    def text(m: Row) -> str:
        found = _judged(m, "P1")
        counts = ", ".join(f"{v} {k}" for k, v in sorted(found["open"].items()))
        return f"skill {spread(found['value'])} ({counts})"

    return Claim(
        "P1: a drift fitted to some rows describes the motion of the others through depth",
        "section 6.3, M.6, figure 1",
        "adequate",
        "rows of one passage, 1 is a flow that is followed, 0 standing still: "
        + _each(models, text),
        _verdict(passed for m in models.values() for passed in _decided(m, "P1")),
    )


def _prediction(models: dict[str, Row], metrics: Row) -> Claim:
    def right(m: Row) -> bool:
        found = m["adequacy"]["rank_correlation"]
        return found is not None and found > 0.5

    return Claim(
        "Prediction (i): the continuum approximation is the better the smaller the logit steps are",
        "abstract, remark 3.2",
        "monotone",
        "rank correlation of ‖Δz‖ with the share that an Euler step misses, over heads and layers: "
        + _each(
            models,
            lambda m: (
                f"{number(m['adequacy']['rank_correlation'], 2)} (the tenth with the smallest steps misses "
                f"{percent(m['adequacy']['smallest_steps_missed'], 2)})"
            ),
        ),
        _verdict(right(m) for m in models.values()),
    )


def _locking(models: dict[str, Row], metrics: Row) -> Claim:
    seen = {n: m for n, m in models.items() if m["locking"]["locked_tv"]["mean"] is not None}
    return Claim(
        "P2: rows of low tail mass hardly move (median ΔTV within a small band)",
        "M.6, figure 7",
        "locked",
        _each(
            seen,
            lambda m: (
                f"{percent(m['locking']['locked_share']['mean'], 2)} of rows locked, their median TV "
                f"{number(m['locking']['locked_tv']['mean'], 2)} (all rows "
                f"{number(m['locking']['tv']['mean'], 2)}), the largest entry stays the largest in "
                f"{percent(m['locking']['argmax_kept']['mean'], 2)}"
            ),
        ),
        _verdict(m["locking"]["locked_tv"]["mean"] <= 0.05 for m in seen.values()),
    )


def _contraction(models: dict[str, Row], metrics: Row) -> Claim:
    passed = [m["contraction"]["fall"]["low"] > 0 for m in models.values()]
    every = [m["contraction"]["heads_that_fall"] == 1 for m in models.values()]
    verdict = "holds" if all(every) else "holds in part" if any(passed) else "does not hold"
    return Claim(
        "P3: a higher temperature (or smaller keys) reduces the curvature gap 1 − κ",
        "M.6, figure 1, section 7 (1)",
        "falls",
        "as temperature doubles: "
        + _each(
            models,
            lambda m: (
                f"mean gap {number(m['contraction']['gap']['mean'])} → "
                f"{number(m['contraction']['gap_hot']['mean'])}, it falls in "
                f"{percent(m['contraction']['heads_that_fall'], 3)} of {m['contraction']['heads']} heads"
            ),
        )
        + ". By distances of queries and keys, keys halved: "
        + _each(
            models,
            lambda m: (
                f"{number(m['contraction']['key_space']['key norm']['gap'])} → "
                f"{number(m['contraction']['key_space']['key norm']['gap_after'])}"
            ),
        )
        + " (no law: erratum 34)",
        verdict,
    )


def _evi(models: dict[str, Row], metrics: Row) -> Claim:
    seen = {n: m for n, m in models.items() if m["evi"]["nearer"] is not None}
    return Claim(
        "P3, EVI: layers bring rows nearer to the last layer's in Sinkhorn W₂ (proximal progress)",
        "eq 25, figure 8",
        "progress",
        "steps that come nearer: "
        + _each(seen, lambda m: f"{percent(m['evi']['nearer'], 2)} of {m['evi']['steps']}"),
        _verdict(m["evi"]["nearer"] > 0.75 for m in seen.values()),
    )


def _turning(r: Row) -> str:
    low, high = r["share_interval"]
    return (
        f"{percent(r['share'])} [{percent(low, 2)}, {percent(high, 2)}] of a mean flow that explains "
        f"{percent(r['explained'], 2)} of the motion; {percent(r['scaling'], 2)} of it is a multiple of the "
        f"state, {percent(r['beyond'], 2)} of the rest rotation"
    )


def _gradient(r: Row) -> list[bool]:
    """Whether the mean flow is a gradient flow within 10 %, with the multiple of the state and without it.

    Nothing where it is not decided.
    """
    if r["share"] is None or r["explained"] < 0.1:
        return []
    out = []
    for low, high in (r["share_interval"], r["beyond_interval"]):
        if high is not None and high <= 0.1:
            out.append(True)
        elif low is not None and low > max(0.1, r["control"] or 0.0):
            out.append(False)
    return out


def _rotation(models: dict[str, Row], metrics: Row) -> Claim:
    found = [_gradient(m["rotation"]) for m in models.values()]
    return Claim(
        "P4: the tokens' flow through depth is nearly a gradient flow (rotational energy near 0)",
        "section 6.2",
        PAPER_R,
        _each(
            models,
            lambda m: (
                f"R = {number(m['rotation']['energy'])} [{number(m['rotation']['interval'][0])}, "
                f"{number(m['rotation']['interval'][1])}], {_turning(m['rotation'])} (gradient fields at "
                f"these states read up to {percent(m['rotation']['control'], 2)})"
            ),
        )
        + ". R has the units of the states: only the share can be compared",
        _verdict(passed for each in found for passed in each),
    )


def _checkpoints(models: dict[str, Row], metrics: Row) -> Claim:
    every = metrics["models"]
    pairs = {
        n: (m["rotation"], every[f"{n}-shuffled"]["rotation"])
        for n, m in models.items()
        if f"{n}-shuffled" in every
    }
    text = "; ".join(
        f"{n}: {_turning(a)}, weights shuffled {_turning(b)}" for n, (a, b) in pairs.items()
    )
    return Claim(
        "P4: rotational energy decreases under improved checkpoints",
        "M.6",
        "decreases",
        text or "no control was run",
        _verdict(
            a[which] < b[which]
            for a, b in pairs.values()
            for which in ("share", "beyond")
            if _apart(a, b, which) and min(a["explained"], b["explained"]) >= 0.1
        ),
    )


def _apart(a: Row, b: Row, which: str) -> bool:
    """Whether the intervals of two shares do not meet: where they do nothing is decided."""
    if a[which] is None or b[which] is None:
        return False
    (low, high), (bottom, top) = a[f"{which}_interval"], b[f"{which}_interval"]
    return bool(high < bottom or top < low)


def _quality(models: dict[str, Row], metrics: Row) -> Claim:
    seen = {
        n: m
        for n, m in models.items()
        if metrics["passages"] >= 8 and m["rotation"]["rank_correlation_with_surprise"] is not None
    }
    # Kendall and Stuart's large-sample band of a rank correlation if there is no dependence.
    band = 1.96 / max(metrics["passages"] - 1, 1) ** 0.5
    # Within the band nothing is decided, because so few passages cannot exclude a correlation of this size.
    found = [m["rotation"]["rank_correlation_with_surprise"] for m in seen.values()]
    decided = [rho > 0 for rho in found if abs(rho) > band]
    return Claim(
        "Prediction (iii): lower rotational energy goes with better generations",
        "abstract",
        "correlated",
        _each(
            seen,
            lambda m: (
                "rank correlation of the share of rotation with the loss per token over "
                f"{metrics['passages']} passages "
                f"{number(m['rotation']['rank_correlation_with_surprise'], 2)} "
                f"(undecided within ± {band:.2f}), "
                f"loss {spread(m['rotation']['surprise'])} nats"
            ),
        )
        or "needs a model that predicts and at least 8 passages",
        _verdict(decided),
    )


def _peaked(models: dict[str, Row], metrics: Row) -> Claim:
    def ends(m: Row) -> str:
        e = m["depth"]["attention_entropy"]
        return (
            f"{number(e[0], 2)} → {number(e[-1], 2)} (lowest {number(min(e), 2)} at layer "
            f"{e.index(min(e)) + 1}, rank correlation with depth "
            f"{number(m['depth']['entropy_rank_correlation'], 2)})"
        )

    return Claim(
        "Attention becomes increasingly peaked in deeper layers; entropy collapse is inevitable",
        "L.1",
        "inevitable",
        "mean entropy of a row over its largest possible: " + _each(models, ends),
        _verdict((m["depth"]["entropy_rank_correlation"] or 0) < -0.5 for m in models.values()),
    )


def _diminishing(models: dict[str, Row], metrics: Row) -> Claim:
    def text(m: Row) -> str:
        u = m["depth"]["update"][1:]
        return f"{number(u[0], 2)}, {number(u[len(u) // 2], 2)}, {number(u[-1], 2)}"

    def falls(m: Row) -> bool:
        u = m["depth"]["update"][1:]
        return bool(u[-1] < 0.5 * u[0] and (m["depth"]["update_rank_correlation"] or 0) < -0.5)

    return Claim(
        "Prediction (ii): depth has diminishing returns",
        "abstract",
        "diminishing",
        "relative update of a state by the first, middle and last layer: " + _each(models, text),
        _verdict(falls(m) for m in models.values()),
    )


def _ness(models: dict[str, Row], metrics: Row) -> Claim:
    def text(m: Row) -> str:
        r = m["regimes"]
        counts = ", ".join(f"{v} {k}" for k, v in sorted(r["counts"].items()))
        return (
            f"{counts} ({r['of']}), entropy production {number(r['entropy_production_median'])} nats per "
            f"step in the median ({number(r['entropy_production']['low'], 2)} to "
            f"{number(r['entropy_production']['high'], 2)})"
        )

    def all_steady(m: Row) -> bool:
        return set(m["regimes"]["counts"]) == {"NESS"} and not m["about"]["causal"]

    return Claim(
        "Attention of trained models carries steady currents (DAC: a NESS)",
        "DAC section 4.3",
        "NESS",
        _each(models, text)
        + (
            ". Causal matrices as they are used are reducible: token 0 absorbs, the stationary law is a "
            "point, with no currents"
            if any(m["about"]["causal"] for m in models.values())
            else ""
        ),
        _verdict(all_steady(m) for m in models.values()),
    )
