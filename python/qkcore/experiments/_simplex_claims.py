"""The document's statements on locking, depth, exit and schedules, compared with what was measured."""

from __future__ import annotations

from typing import Any

from ._results import Claim, number


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """Claims on remark 2.2, theorems 3.1 and 3.9, eq 23, L.2, K and H.1."""
    return [
        *_locking(metrics["locking"], metrics["temperature"]),
        _perturbations(metrics["perturbations"]),
        *_depth(metrics["depth"], metrics["start"], metrics["jumps"]),
        *_exit(metrics["early_exit"]),
        _schedule(metrics["schedule"]),
    ]


def _locking(found: dict[str, Any], hot: dict[str, Any]) -> list[Claim]:
    worst, taus = found["worst"], found["temperatures"]
    low, high = min(taus, key=float), max(taus, key=float)
    times = ", ".join(f"{number(f['median_locking_time'])} at τ = {t}" for t, f in taus.items())
    ratio = worst["operator_norm_over_bound"]
    gap = hot["gaps"].get("2") or next(iter(hot["gaps"].values()))
    norms = gap["norm_at"]
    slower = [
        f["median_locking_time"] for f in taus.values() if f["median_locking_time"] is not None
    ]
    return [
        Claim(
            "The mobility's norm is at most 1/2τ, with equality at (½, ½, 0, …)",
            "section 2.2, remark",
            "1/2τ",
            f"at most {number(ratio)} of it along all flows; {number(hot['norm_at_half_half'])} at "
            "(½, ½, 0)",
            "holds" if ratio <= 1 + 1e-12 and abs(hot["norm_at_half_half"] - 0.5) < 1e-12
            else "does not hold",
        ),
        Claim(
            "As p_max → 1 under a bounded drift mobility and speed vanish",
            "theorem 3.9, eq 21",
            "‖dp/dt‖ ≤ ‖b‖ ‖J‖ → 0",
            f"speed at most {number(worst['speed_over_bound'])} of the bound, ‖J‖ at most "
            f"{number(worst['operator_norm_over_tail_bound'])} of 2δ(1 − δ)/τ; at τ = {low} the median "
            f"speed falls from {number(taus[low]['first_speed'])} to {number(taus[low]['last_speed'])}; "
            f"PF-ODE within {number(worst['ode_error'], 2)} of the closed form",
            "holds"
            if worst["speed_over_bound"] <= 1 + 1e-9
            and worst["operator_norm_over_tail_bound"] <= 1 + 1e-9
            else "does not hold",
        ),
        Claim(
            "Two tokens have ‖J‖ = 2p(1 − p)/τ",
            "example 3.10, L.3",
            "2p(1 − p)/τ",
            f"relative difference at most {number(hot['relative_error'], 2)}",
            "holds" if hot["relative_error"] < 1e-12 else "does not hold",
        ),
        Claim(
            "A higher temperature delays locking",
            "section 3.3, theorem 3.9",
            "later",
            f"median time to lock: {times}",
            "holds" if slower == sorted(slower) and len(slower) > 1 else "not tested"
            if len(slower) < 2 else "does not hold",
        ),
        Claim(
            "A lower temperature prevents premature commitment by maintaining transport capacity",
            "L.2, last sentences",
            "lower τ, more mobility",
            f"gap 2: ‖J‖ = {', '.join(f'{number(v)} at τ = {t}' for t, v in norms.items())}; largest at "
            f"τ = {number(gap['most_mobile_tau'])}; rows lock first at τ = {low}, last at {high} "
            "(erratum 7d)",
            "does not hold" if norms["0.25"] < norms["1"] else "holds",
        ),
    ]  # fmt: skip


def _perturbations(found: dict[str, Any]) -> Claim:
    alpha = max(f["alpha_needed"] for f in found.values())
    printed = max(f["over_printed"] for f in found.values())
    sharp = max(f["over_sharp"] for f in found.values())
    random = max(f["share_above_printed"] for k, f in found.items() if k.startswith("random"))
    return Claim(
        "A change Δz that keeps the largest entry moves a row by min{1, 2δ}‖Δz‖ in L1, and α‖Δz‖ more",
        "eq 23",
        "α not given",
        f"with α = 0 exceeded up to {number(printed)} times (α = {number(alpha)} is needed), by "
        f"{number(100 * random)} % of random changes at most; the sharp bound is reached to "
        f"{number(sharp)} and never exceeded (erratum 33)",
        "holds in part" if sharp <= 1 + 1e-6 else "does not hold",
    )


def _depth(found: dict[str, Any], start: dict[str, Any], jumps: dict[str, Any]) -> list[Claim]:
    slope = found["slopes"]["error"]
    budget = found["slopes"]["xi"]
    fails = [number(s) for s in start["printed_fails_at"]]
    missed = jumps["missed"]
    return [
        Claim(
            "The error of L layers against the PF-ODE is at most Ξ_L (equal starts)",
            "theorem 3.1, eq 2",
            "error ≤ Ξ_L",
            f"at all depths; Ξ_L is at least {number(found['tightest_xi_over_error'])} times the error, the "
            f"bound with its parts {number(found['tightest_bound_over_error'])} times",
            "holds" if found["holds"] and found["tightest_xi_over_error"] >= 1 else "does not hold",
        ),
        Claim(
            "The discrepancy vanishes as L → ∞ under fixed budgets",
            "remark 3.2",
            "→ 0",
            f"error ∝ L^{slope['slope']:.2f} ({slope['low']:.2f} to {slope['high']:.2f}), Ξ_L ∝ "
            f"L^{budget['slope']:.2f}",
            "holds" if slope["high"] < 0 else "does not hold",
        ),
        Claim(
            "An initial error adds at most (e^Γ − 1) times itself",
            "theorem 3.1",
            "e^Γ − 1",
            f"exceeded at drifts of size {', '.join(fails) or '–'}: without a drift the factor is 0 and the "
            f"error stays; e^Γ is exceeded in {len(start['corrected_fails_at'])} cases (erratum 7g)",
            "does not hold" if fails else "holds",
        ),
        Claim(
            "Jumps are detected online, and flows on the segments between them are valid",
            "algorithm 1, K.2",
            "cut at violations",
            f"jumps of {', '.join(number(j) for j in jumps['found']) or 'no size'} are found"
            + (f", those of {', '.join(number(j) for j in missed)} missed" if missed else "")
            + f", {jumps['false_cuts']} false cuts; the error falls by up to "
            f"{number(jumps['largest_gain'])} times",
            "holds" if not missed and not jumps["false_cuts"] else "holds in part",
        ),
    ]


def _exit(found: dict[str, Any]) -> list[Claim]:
    norm, sure, guess = (found[k] for k in ("Frobenius norm (H.1)", "certified", "extrapolated"))
    flat = found["uniform row"]
    most = max(sure["saved"].values())
    return [
        Claim(
            "A small ‖J‖_F says when computation may stop",
            "A, H.1, O",
            "mobility thresholds for early exit",
            f"rows leave that still move {number(norm['largest_loss_over_tol'])} times the threshold "
            f"({number(100 * norm['broken'])} % of rows above it); the uniform row over {flat['tokens']} "
            f"tokens has ‖J‖_F = {number(flat['frobenius_norm'])}, and logits that move by 1 can shift "
            f"{number(100 * flat['moved_by_logits_of_1'])} % of its mass (erratum 7h)",
            "does not hold" if norm["largest_loss_over_tol"] > 1 else "holds",
        ),
        Claim(
            "Locked rows can leave early (bound on what is left to move instead)",
            "theorem 3.9",
            "–",
            f"certified: at most {number(sure['largest_loss_over_tol'])} of the tolerance lost, up to "
            f"{number(100 * most)} % of the layers saved; extrapolated from the steps seen: "
            f"{number(guess['largest_loss_over_tol'])} of it, {number(100 * max(guess['saved'].values()))} %",
            "holds" if sure["largest_loss_over_tol"] <= 1 else "does not hold",
        ),
    ]  # fmt: skip


def _schedule(found: dict[str, Any]) -> Claim:
    return Claim(
        "Temperature schedules keep mobility where logits grow",
        "section 2.2, M",
        "no schedule printed",
        f"target {number(found['target'])} nats: after the last layer {number(found['last_entropy_held'])} "
        f"with feedback (τ = {number(found['last_tau'])}) and {number(found['last_entropy_fixed'])} at "
        f"τ = 1; tails {number(found['last_tail_held'])} and {number(found['last_tail_fixed'])}; but ‖J‖ "
        f"{number(found['last_mobility_held'])} and {number(found['last_mobility_fixed'])}, as 1/τ "
        "multiplies it",
        "holds"
        if found["last_tail_held"] > found["last_tail_fixed"]
        and found["last_mobility_held"] > found["last_mobility_fixed"]
        else "holds in part",
    )
