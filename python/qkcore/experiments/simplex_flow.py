"""Probabilities that flow by their mobility: locking, depth budgets, early exit, schedules.

Every bound of the document (EOT-2, 3, 5, 15) is compared with measurements: the mobility's norm and eq 21's
speed along the flow, eq 23 for perturbed rows (erratum 33), theorem 3.1 against depth (erratum 7g), early
exit by H.1's norm and by a certified bound (erratum 7h), and temperature (erratum 7d).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ..diagnostics.curvature import locking_bound
from . import _simplex_depth as depths
from ._configs import Config, positive
from ._errors import ExperimentError
from ._simplex_claims import claims
from ._simplex_flow_show import plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]


def check(config: Config) -> None:
    """Refuses settings with which no flow or no stack of layers can be made."""
    positive(config, "temperatures", "horizon", "gaps", "changes", "drift_push", "exit_rate")
    positive(config, "exit_decay")
    positive(config, "n_rows", "perturbed_rows", "depth_rows", "exit_rows", "tolerances", "depths")
    positive(config, "tokens", "n_times", "depth_tokens", "exit_tokens", "exit_layers", least=1)
    positive(config, "schedule_layers", "jump_layers", least=19)
    if len(set(config["depths"])) < 3:
        raise ExperimentError("depths: wanted at least 3 different ones for a slope")
    if not 0 < config["locked_tail"] < 0.5:
        raise ExperimentError(
            f"locked_tail: wanted a number between 0 and 0.5, got {config['locked_tail']:g}"
        )
    for key in ("drift_slope", "start_drifts", "jumps", "exit_noise", "schedule_growth"):
        values = config[key] if isinstance(config[key], list) else [config[key]]
        if min(values) < 0:
            raise ExperimentError(f"{key}: wanted numbers >= 0, got {min(values)}")


def compute(config: Config, run: Run) -> None:
    """Writes six tables; each is a stage with a checkpoint."""
    parts = {
        "locking": locking,
        "temperature": temperature,
        "perturbations": perturbations,
        "depth": depths.theorem_3_1,
        "start": depths.start,
        "jumps": depths.jumps,
        "early_exit": depths.early_exit,
        "schedule": depths.schedule,
    }
    metrics: dict[str, Any] = {}
    for name, work in run.progress(parts.items(), "simplex-flow", len(parts)):
        rows, found = run.stage(name, lambda: work(config))  # noqa: B023
        run.write_csv(name, [{k: math.nan if v is None else v for k, v in r.items()} for r in rows])
        metrics[name] = found
    run.write_metrics(metrics)


# ---- locking along the flow ----------------------------------------------------------------------


def locking(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Theorem 3.9: rows under bounded drifts; the PF-ODE and its closed form softmax((z + tb)/τ)."""
    draw = np.random.default_rng([config["seed"], 1])
    shape = (config["n_rows"], config["tokens"])
    z = draw.normal(size=shape)
    b = draw.uniform(-1, 0, size=shape)
    b[np.arange(len(b)), draw.integers(shape[1], size=len(b))] = 1  # one entry of each row wins
    times = np.linspace(0, config["horizon"], config["n_times"])
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"temperatures": {}}
    worst = {"operator_norm_over_bound": 0.0, "operator_norm_over_tail_bound": 0.0,
             "speed_over_bound": 0.0, "ode_error": 0.0, "mass_error": 0.0}  # fmt: skip
    for tau in config["temperatures"]:
        start = qk.simplex.from_logits(z, tau=tau)
        sol = qk.simplex.pf_ode(
            start, lambda p, t: b, (0.0, config["horizon"]), tau=tau, t_eval=times, max_steps=20000
        )
        if not sol.success:
            raise ArithmeticError(f"the flow at temperature {tau:g}: {sol.message}")
        locked_at = np.full(len(z), math.inf)
        for t, p in zip(times, sol.p, strict=True):
            exact = qk.simplex.from_logits(z + t * b, tau=tau)
            J = qk.simplex.Mobility(exact, tau)
            norm, tail = np.asarray(J.operator_norm), np.asarray(J.tail)
            speed = np.linalg.norm(J @ b, axis=1)
            limit = norm * np.linalg.norm(b, axis=1)  # eq 21
            least = np.minimum(tail, 0.5)
            near = {
                "operator_norm_over_bound": (norm * 2 * tau).max(),
                "operator_norm_over_tail_bound": (norm * tau / (2 * least * (1 - least))).max(),
                "speed_over_bound": (speed / limit).max(),
                "ode_error": np.abs(p - exact).max(),
                "mass_error": np.abs(p.sum(axis=1) - 1).max(),
            }
            worst = {k: max(v, float(near[k])) for k, v in worst.items()}
            locked_at = np.where((tail < config["locked_tail"]) & (t < locked_at), t, locked_at)
            rows.append(
                {
                    "tau": tau,
                    "t": float(t),
                    "tail": float(np.median(tail)),
                    "operator_norm": float(np.median(norm)),
                    "norm_bound": 1 / (2 * tau),
                    "speed": float(np.median(speed)),
                    "speed_bound": float(np.median(limit)),
                    "entropy": float(np.median(qk.simplex.entropy(exact))),
                    "ode_error": float(np.abs(p - exact).max()),
                }
            )
        found["temperatures"][f"{tau:g}"] = {
            "locked_share": float(np.isfinite(locked_at).mean()),
            "median_locking_time": _finite(np.median(locked_at)),
            "last_speed": rows[-1]["speed"],
            "first_speed": rows[-len(times)]["speed"],
            "n_steps": sol.n_steps,
        }
    return rows, found | {"worst": worst}


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def temperature(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Example 3.10 and L.2: how the mobility of two tokens, 2p(1 − p)/τ, depends on temperature."""
    taus = np.geomspace(0.1, 20, 121)
    rows, found, off = [], {}, 0.0
    for gap in config["gaps"]:
        norms = [
            float(
                np.asarray(qk.simplex.Mobility.from_logits(np.array([gap, 0.0]), t).operator_norm)
            )
            for t in taus
        ]
        # p(1 − p) for the logistic function, written so that 1 − p does not cancel
        closed = 0.5 / np.cosh(gap / (2 * taus)) ** 2 / taus
        off = max(off, float(np.abs(np.array(norms) / closed - 1).max()))
        rows += [
            {"gap": gap, "tau": float(t), "operator_norm": n, "closed_form": float(c),
             "bound": float(1 / (2 * t))}
            for t, n, c in zip(taus, norms, closed, strict=True)
        ]  # fmt: skip
        best = int(np.argmax(norms))
        found[f"{gap:g}"] = {
            "most_mobile_tau": float(taus[best]),
            "largest_norm": norms[best],
            "norm_at": {
                f"{t:g}": 0.5 / math.cosh(gap / (2 * t)) ** 2 / t
                for t in (0.25, 0.5, 1.0, 2.0, 4.0)
            },
        }
    half = float(np.asarray(qk.simplex.Mobility(np.array([0.5, 0.5, 0.0])).operator_norm))
    return rows, {"gaps": found, "relative_error": off, "norm_at_half_half": half}


# ---- eq 23 ---------------------------------------------------------------------------------------


def perturbations(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Eq 23: how far rows move when their logits do, at random and in the worst direction.

    Random changes count only if they keep the largest entry, which the text assumes.
    """
    draw = np.random.default_rng([config["seed"], 2])
    n, V = config["perturbed_rows"], config["tokens"]
    z = draw.normal(size=(n, V))
    top = np.argmax(z, axis=1)
    z[np.arange(n), top] += draw.uniform(0, 16, size=n)  # tails from nearly 1 down to 1e-6
    p = qk.simplex.from_logits(z)
    tail = np.asarray(qk.simplex.Mobility(p).tail)
    edges = np.geomspace(1e-7, 1, 15)
    rows, found = [], {}
    for change in config["changes"]:
        worst_case = np.full((n, V), change)
        worst_case[np.arange(n), top] = -change
        for kind, dz in (
            ("random", change * draw.uniform(-1, 1, size=(n, V))),
            ("worst", worst_case),
        ):
            after = z + dz
            kept = np.argmax(after, axis=1) == top
            size = np.abs(dz).max(axis=1)
            tv = 0.5 * np.abs(qk.simplex.from_logits(after) - p).sum(axis=1)
            sharp = tv / locking_bound(tail, size)
            printed = tv / locking_bound(tail, size, form="printed")
            alpha = 2 * tv / size - np.minimum(1, 2 * tail)
            index = np.digitize(tail, edges) - 1
            for k in range(len(edges) - 1):
                of = kept & (index == k)
                if not of.any():
                    continue
                low, middle, high = np.quantile(tv[of], [0.25, 0.5, 0.75])
                rows.append(
                    {
                        "change": change,
                        "kind": kind,
                        "tail_low": edges[k],
                        "tail_high": edges[k + 1],
                        "rows": int(of.sum()),
                        "tv_low": low,
                        "tv": middle,
                        "tv_high": high,
                        "tv_largest": tv[of].max(),
                        # Of the same rows: a bound at the middle of the bin would be one of other rows.
                        "tail": float(np.median(tail[of])),
                        "sharp": float(np.median(locking_bound(tail[of], change))),
                        "printed": float(
                            np.median(locking_bound(tail[of], change, form="printed"))
                        ),
                    }
                )
            found[f"{kind} {change:g}"] = {
                "rows": int(kept.sum()),
                "over_sharp": float(sharp[kept].max()),
                "over_printed": float(printed[kept].max()),
                "share_above_printed": float((printed[kept] > 1 + 1e-9).mean()),
                "alpha_needed": max(0.0, float(alpha[kept].max())),
            }
    return rows, found
