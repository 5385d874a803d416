"""The ISB poster's statements, compared with the results of its two experiments."""

from __future__ import annotations

from typing import Any

from ._results import Claim, number


def heat(metrics: dict[str, Any]) -> list[Claim]:
    """Claims about the heat flow: the main one, its limit, how errors accumulate, the printed objective."""
    printed = metrics["schemes"]["cost as printed"]
    others = [
        f"{name.split(', ')[1]}: {_slope(found['w2_sup'])}"
        for name, found in metrics["schemes"].items()
        if name.startswith("surrogate")
    ]
    slopes = [
        found["w2_sup"]["low"] or 0.0
        for name, found in metrics["schemes"].items()
        if name.startswith("surrogate")
    ]
    return [
        _figure(metrics, "heat flow"),
        _one_step(
            metrics, "2x − B(x) is x − ε/2 ∇log ρ(x) up to o(ε)", "main contribution, theorem 2"
        ),
        _uniform(metrics, "The curve tends to the heat flow, uniformly in [0, T]", "background"),
        _accumulation(metrics),
        Claim(
            "The general scheme also works with other surrogates ρ^(−θ)",
            "iterative scheme",
            "any θ for which the integral is finite",
            f"slopes of the largest W2 error, {'; '.join(others) or 'none run'}; θ = −1: "
            f"{_slope(metrics['schemes'][metrics['poster']]['w2_sup'])}",
            "not tested" if not others else "holds" if min(slopes) > 0 else "does not hold",
        ),
        Claim(
            "The bridge minimises ∫|x − y|² dπ + ε KL(π | ρ ⊗ ρ)",
            "setting",
            "no ½ on the cost",
            f"with this cost the flow runs at half the speed: W2 error {_ends(printed)}, slope "
            f"{_slope(printed['w2_sup'])} (erratum 6)",
            "does not hold" if (printed["w2_sup"]["high"] or 1.0) < 0.5 else "holds",
        ),
        _particles(metrics),
    ]


def ornstein_uhlenbeck(metrics: dict[str, Any]) -> list[Claim]:
    """Claims about the Ornstein-Uhlenbeck process: theorems 1 and 2, uniform convergence, particles."""
    first, step = metrics["theorem_1"], metrics["one_step"]["euler"]
    return [
        _figure(metrics, "Ornstein–Uhlenbeck flow"),
        Claim(
            "H(ℓ|π) + H(π|ℓ) ≤ ε² C(ε) with C = O(ε²) for normal laws",
            "theorem 1",
            "exponent 4",
            f"exponent {_slope(first)} (closed form (ε/2s²)⁴/72 + …)",
            "holds" if abs(first["slope"] - 4) < 0.1 else "does not hold",
        ),
        Claim(
            "W2 of a bridge step and an Euler step is below K ε C(ε)",
            "theorem 2",
            "exponent 3, with theorem 1's C = O(ε²)",
            f"exponent {_slope(step)}: the bound holds only with √C (erratum 6)",
            "does not hold" if step["high"] < 2.5 else "holds",
        ),
        _one_step(metrics, "W2 of a bridge step and an Euler step is o(ε)", "theorem 2"),
        _uniform(
            metrics,
            "The scheme converges to the gradient flow of KL to a log-concave law, uniformly in [0, T]",
            "key contribution 3",
        ),
        _accumulation(metrics),
        _particles(metrics),
    ]


def _slope(found: dict[str, Any]) -> str:
    if found["slope"] is None:
        return "–"
    return f"{found['slope']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _ends(scheme: dict[str, Any]) -> str:
    """The largest W2 error at the largest and at the smallest epsilon."""
    keys = sorted(scheme["errors"], key=float)
    return " and ".join(
        f"{number(scheme['errors'][k]['w2'])} at ε = {k}" for k in (keys[-1], keys[0])
    )


def _figure(metrics: dict[str, Any], name: str) -> Claim:
    found = metrics["figure"]
    end = found["times"][max(found["times"], key=float)]
    off = abs(end["particles_variance"] / end["exact_variance"] - 1)
    return Claim(
        f"The figure: particles and law follow the {name} at ε = 0.01",
        "experiments",
        "figure",
        f"ε = {found['epsilon']:g}, last time shown: on a grid W2 {number(end['w2'])}, L1 of densities "
        f"{number(end['density'])}; {found['n_particles']} particles: W2 {number(end['particles_w2'])}, "
        f"variance {number(end['particles_variance'], 4)} (exact {number(end['exact_variance'], 4)})",
        "holds" if end["w2"] < 0.02 and off < 0.2 else "does not hold",
    )


def _one_step(metrics: dict[str, Any], statement: str, where: str) -> Claim:
    found = metrics["one_step"]["euler"]
    least = min(found["errors"], key=float)
    return Claim(
        statement,
        where,
        "o(ε): exponent above 1",
        f"W2 of the two steps {number(found['errors'][least])} at ε = {least}, exponent {_slope(found)}",
        "holds" if found["low"] > 1 else "does not hold",
    )


def _uniform(metrics: dict[str, Any], statement: str, where: str) -> Claim:
    found = metrics["schemes"][metrics["poster"]]
    slope = found["w2_sup"]
    return Claim(
        statement,
        where,
        "sup W2 → 0, no rate given",
        f"largest W2 error {_ends(found)}; exponent {_slope(slope)}; W1 {_slope(found['w1_sup'])}, L1 of "
        f"densities {_slope(found['density_sup'])}",
        "not tested" if slope["low"] is None else "holds" if slope["low"] > 0 else "does not hold",
    )


def _accumulation(metrics: dict[str, Any]) -> Claim:
    """Compares the error of the flow with the sum of the errors of its steps."""
    steps = metrics["one_step"]["exact"]["errors"]
    whole = metrics["schemes"][metrics["poster"]]["errors"]
    ratios = {
        e: whole[e]["w2"] / (x * metrics["T"] / float(e))
        for e, x in steps.items()
        if whole[e]["w2"] is not None
    }
    worst = max(ratios.values())
    return Claim(
        "Errors of the steps do not accumulate by more than 1/ε",
        "uniform convergence",
        "at most T/ε times the error of a step",
        f"largest error of the flow, divided by T/ε times that of its first step: "
        f"{number(min(ratios.values()))} to {number(worst)}",
        "holds" if worst < 2 else "does not hold",
    )


def _particles(metrics: dict[str, Any]) -> Claim:
    """Whether the bridge of N particles moves them as the bridge of the law would."""
    parts, falls, off = [], [], []
    for g in metrics["particles"]:
        name = f"{g['scheme']}, ε = {g['epsilon']:g}"
        if g["start"] == "draws" and not (g["total_w2"][-1] or 1e300) < 2 * g["fresh_w2"][-1]:
            off.append(
                f"{name}: {number(g['total_w2'][-1])}, fresh draws {number(g['fresh_w2'][-1])}"
            )
        if g["start"] == "quantiles" and g["scheme_w2_slope"]["slope"] is not None:
            falls.append(g["scheme_w2_slope"]["slope"] < 0)
            parts.append(
                f"{name}: {number(g['scheme_w2'][0])} (N = {g['n'][0]}) to {number(g['scheme_w2'][-1])} "
                f"(N = {g['n'][-1]}), ∝ N^{g['scheme_w2_slope']['slope']:.2f}"
            )
        elif g["start"] == "quantiles":
            falls.append(False)
            parts.append(f"{name}: does not reach the end for every N")
    wrong = (
        f". Total W2 error of N = {metrics['particles'][0]['n'][-1]} random draws: " if off else ""
    )
    return Claim(
        "What attention does to n particles tends to the flow as n → ∞",
        "background",
        "n → ∞ first, then ε → 0",
        "W2 error that comes from using the bridge of N particles (quantiles, no random draws): "
        + "; ".join(parts)
        + wrong
        + "; ".join(off),
        "holds" if all(falls) and not off else "holds in part" if any(falls) else "does not hold",
    )
