"""Track I's statements, compared with what was measured, and the cause where they fail."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .._results import Claim, number

# Values printed in figure 2b, section 6.3 and table 3.
PAPER_SLOPE = (-1.08, -2.18, -0.28)
PAPER_ENERGY = (0.03092, 0.01046, 0.05385)
SMALL_KS = 0.02  # a significant difference below this is called small
LEVEL = 0.05
NAMES = {"gaussian": "Gaussian", "empirical": "images themselves", "model": "model"}


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """Claims on parity (exact scores, model), the order of the weak error, and rotational energy (two)."""
    out = [_theorem(metrics), _parity(metrics)]
    out += [_slope(metrics, scheme) for scheme in metrics["weak"]["model"]]
    return [*out, _energy(metrics), _improves(metrics)]


def _cases(metrics: dict[str, Any], score: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of the first scheme with the paper's number of steps (one per time) and with the largest."""
    found = metrics["parity"][score]
    scheme = metrics["first_scheme"]
    sizes = sorted(v["steps"] for k, v in found.items() if k.startswith(f"{scheme}-"))
    return found[f"{scheme}-{sizes[0]}"], found[f"{scheme}-{sizes[-1]}"]


def _agree(m: dict[str, Any]) -> bool:
    return bool(m["ks_p_value"] >= LEVEL and m["tv_p_value"] >= LEVEL)


def _grade(m: dict[str, Any]) -> str:
    if _agree(m):
        return "holds"
    return "holds in part" if m["ks_max"] < SMALL_KS else "does not hold"


def _distance(m: dict[str, Any]) -> str:
    return (
        f"{m['steps']} steps: KS up to {number(m['ks_max'])} (by chance {number(m['ks_max_chance'])}, "
        f"p = {number(m['ks_p_value'], 2)}), TV up to {number(m['tv_max'])} "
        f"(by chance {number(m['tv_max_chance'])}, p = {number(m['tv_p_value'], 2)})"
    )


def _theorem(metrics: dict[str, Any]) -> Claim:
    """The theorem assumes exact scores, small steps and the same law at the start. It is tested with the
    Gaussian from its true law, without sampling error, and with both controls sampled from N(0, I), as the
    paper does."""
    parts = []
    for score in ("gaussian", "empirical"):
        few, many = _cases(metrics, score)
        parts.append(f"score of the {NAMES[score]}, sampled, {_distance(few)}; {_distance(many)}")
    few, many = _cases(metrics, "gaussian")
    start, end = few["exact_ks_true_start"], many["exact_ks_true_start"]
    parts.append(
        f"Gaussian without sampling error: KS {number(few['exact_ks'])} and {number(many['exact_ks'])} from "
        f"N(0, I), {number(start)} and {number(end)} from its true law at t = 1"
    )
    sampled = max(_cases(metrics, s)[1]["ks_max"] for s in ("gaussian", "empirical"))
    if end < 0.5 * start and end < SMALL_KS / 4:
        verdict = "holds" if sampled < SMALL_KS else "holds in part"
    else:
        verdict = "holds in part" if end < SMALL_KS else "does not hold"
    return Claim(
        "With an exact score the probability flow and the SDE have the same marginals (control)",
        "theorem 4.2, 6.3",
        "identical marginals for all t",
        ". ".join(parts),
        verdict,
    )


def blame(metrics: dict[str, Any]) -> str:
    """Whether steps or model cause a difference, judged by exact scores on the same grid and more steps."""
    few, many = _cases(metrics, "model")
    exact_few, exact_many = _cases(metrics, "empirical")
    if _agree(few):
        return "nothing to explain"
    text = (
        f"the exact score of images differs by {number(exact_few['ks_max'])} in KS on the same "
        f"{few['steps']} steps, by {number(exact_many['ks_max'])} on {exact_many['steps']}, the model by "
        f"{number(few['ks_max'])} and {number(many['ks_max'])}; from the law of the images SDE and flow "
        f"are {number(many['ks_sde_true_max'])} and {number(many['ks_ode_true_max'])} away with the model, "
        f"{number(exact_many['ks_sde_true_max'])} and {number(exact_many['ks_ode_true_max'])} "
        "with the exact score"
    )
    if few["ks_max"] < 1.5 * exact_few["ks_max"] and many["ks_max"] < 1.5 * exact_many["ks_max"]:
        return f"not the model, exact scores differ as much (steps, start from N(0, I)): {text}"
    if many["ks_max"] < 0.5 * few["ks_max"]:
        return f"mostly the steps: {text}"
    if many["ks_max"] > 2 * exact_many["ks_max"]:
        return f"mostly the model: {text}"
    return f"steps and model: {text}"


def _parity(metrics: dict[str, Any]) -> Claim:
    few, many = _cases(metrics, "model")
    data = metrics["data"]["name"]
    return Claim(
        f"SDE and probability flow of a trained model agree over {few['n_times']} times ({data} stands in "
        "for CIFAR-10)",
        "6.3, figure 2a",
        "parity of pixel histograms; no numbers printed",
        f"{few['n_images']} images, {_distance(few)}; above the 95 % line at {few['ks_above_critical']} (KS) "
        f"and {few['tv_above_critical']} (TV) of {few['n_times']} times. {many['n_images']} images, "
        f"{_distance(many)}. To blame: {blame(metrics)}",
        _grade(few),
    )


def _slope(metrics: dict[str, Any], scheme: str) -> Claim:
    """First order holds if -1 is in the interval of every visible error, in part if slopes are near -1.

    Near means -0.5 to -1.5. If most errors of an observable are below two standard errors, it gets no
    verdict.
    """
    name = {"euler": "Euler-Maruyama", "ddim": "the ancestral step"}[scheme]
    found = metrics["weak"]["model"][scheme]
    exact = metrics["weak"]["gaussian"][scheme]
    parts, inside, near = [], [], []
    for key, m in found.items():
        text = f"{key}: {number(m['slope'])} [{number(m['low'])}, {number(m['high'])}]"
        if 2 * m["in_noise"] > m["n_errors"]:
            parts.append(f"{text}, no verdict: {m['in_noise']} of {m['n_errors']} errors are noise")
            continue
        parts.append(
            f"{text}, the last two points {number(m['last_slope'])}; Gaussian score, same steps, "
            f"without sampling error {number(exact[key]['exact_slope'])}"
        )
        inside.append(m["low"] is not None and m["low"] <= -1 <= m["high"])
        near.append(-1.5 <= m["slope"] <= -0.5)
    if not inside:
        verdict = "not tested"
    elif all(inside):
        verdict = "holds"
    else:
        verdict = "holds in part" if any(near) else "does not hold"
    slope, low, high = PAPER_SLOPE
    return Claim(
        f"The weak error of {name} falls like 1/K: slope of log Δ_K against log K",
        "6.3, figure 2b, M.6",
        f"{slope} [{low}, {high}]",
        "; ".join(parts),
        verdict,
    )


def _energy(metrics: dict[str, Any]) -> Claim:
    """R > 0 should show that a flow is not a bridge's, so it must exceed R of exact scores (truly 0)."""
    mean, low, high = PAPER_ENERGY
    found = metrics["rotation"]
    parts = [
        f"{NAMES[s]} {number(found[s]['energy']['mean'])} [{number(found[s]['energy']['low'])}, "
        f"{number(found[s]['energy']['high'])}], of which scatter {number(found[s]['scatter']['mean'])} and "
        f"rotation {number(found[s]['rotation']['mean'])}"
        for s in ("gaussian", "empirical", "model")
    ]
    share = found["model"]["asymmetry"]
    told_apart = found["model"]["energy"]["low"] > found["empirical"]["energy"]["high"]
    turning = found["model"]["rotation"]["low"] > found["empirical"]["rotation"]["high"]
    verdict = "holds" if told_apart else "holds in part" if turning else "does not hold"
    return Claim(
        "Rotational energy measures the model's distance from a potential flow",
        "corollary 5.3, 6.3, table 3",
        f"{mean} [{low}, {high}] over 20 times",
        f"{'; '.join(parts)}. Exact scores are gradients: their true energy is 0. Directly, the "
        f"antisymmetric share of the model's Jacobian is {number(share)} on average, "
        f"{number(found['model']['asymmetry_max'])} at most",
        verdict,
    )


def _improves(metrics: dict[str, Any]) -> Claim:
    """M.6's P4: energy and asymmetry at every checkpoint, compared with the held-out loss."""
    energy = metrics["rotation"]["checkpoints"]
    rows = metrics["checkpoints"]
    values = [energy[str(r["step"])] for r in rows]
    loss = [r["validation_loss"] for r in rows]

    def falls(x: list[float]) -> bool:
        return all(b < a for a, b in pairwise(x))

    def listed(x: list[float]) -> str:
        return ", ".join(number(v) for v in x)

    measures = {
        "energy": [v["energy"]["mean"] for v in values],
        "rotation alone": [v["rotation"]["mean"] for v in values],
        "antisymmetric share of the Jacobian": [v["asymmetry"] for v in values],
    }
    good = [falls(x) for x in measures.values()]
    if len(rows) < 3 or not falls(loss):
        verdict = "not tested"
    elif good[0]:
        verdict = "holds"
    elif any(good):
        verdict = "holds in part"
    else:
        verdict = "does not hold"
    return Claim(
        "Rotational energy decreases as checkpoints improve",
        "M.6, P4",
        "decreases",
        f"after {', '.join(str(r['step']) for r in rows)} steps: held-out loss {listed(loss)}, MMD² of the "
        f"flow's samples {listed([r['mmd2_ode'] for r in rows])}; "
        + "; ".join(f"{k} {listed(x)}" for k, x in measures.items()),
        verdict,
    )
