"""The parts of the experiment `simplex-flow` on depth: theorem 3.1, jumps, early exit and schedules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ..diagnostics import depth
from ._bridge_flows import slope
from ._configs import Config

Array = npt.NDArray[np.float64]
Found = tuple[list[dict[str, Any]], dict[str, Any]]


# ---- theorem 3.1 ---------------------------------------------------------------------------------


class Drift:
    """The drift b(p, t) = A p + c sin(2πt). Its constants are known, and so is every part of the bound."""

    def __init__(self, config: Config, size: float = 1.0) -> None:
        draw = np.random.default_rng([config["seed"], 3])
        V, rows = config["depth_tokens"], config["depth_rows"]
        a, c = size * config["drift_slope"], size * config["drift_push"]
        self.A = a * draw.uniform(-1, 1, size=(V, V))
        self.c = c * draw.uniform(-1, 1, size=(rows, V))
        self.z = draw.normal(size=(rows, V))
        # Vectors are measured up to constants, by half of max - min. Since p - q sums to 0, the norm of A is
        # given by differences of its rows, halved once for the norm of p - q and once for the range over i.
        spread = np.abs(self.A[:, None, :] - self.A[None, :, :])
        self.constants = depth.Constants(
            L_b=float(0.5 * spread.max()),
            M_b=float(0.5 * spread.max() + 0.5 * np.ptp(self.c, axis=1).max()),
            L_t=float(2 * np.pi * 0.5 * np.ptp(self.c, axis=1).max()),
        )

    def __call__(self, p: Array, t: float) -> Array:
        value: Array = p @ self.A.T + self.c * math.sin(2 * math.pi * t)
        return value

    def layers(self, L: int, *, linear: bool = False) -> tuple[Array, Array]:
        """(logits, probabilities) after each of L steps of size 1/L, by softmax layers or by p ← p + JΔz."""
        z, p = self.z.copy(), qk.simplex.from_logits(self.z)
        logits, states = [z], [p]
        for k in range(L):
            dz = self(np.asarray(p, np.float64), k / L) / L
            z = z + dz
            p = p + qk.simplex.Mobility(p) @ dz if linear else qk.simplex.from_logits(z)
            logits.append(z)
            states.append(p)
        return np.stack(logits), np.stack(states)


def theorem_3_1(config: Config) -> Found:
    """Compares stacks of L layers with the PF-ODE: the error, the bound with its parts, the budgets."""
    b = Drift(config)
    rows = []
    for L in config["depths"]:
        logits, _ = b.layers(L)
        out = depth.finite_depth(logits, b, constants=b.constants)
        _, linear = b.layers(L, linear=True)
        exact = out.solution.p[np.searchsorted(out.solution.t, np.arange(L + 1) / L - 1e-12)]
        xi = np.asarray(out.xi)
        rows.append(
            {
                "L": L,
                "error": float(np.max(out.error)),
                "error_at_layers": float(np.max(out.error_at_layers)),
                "bound": float(np.max(out.bound)),
                "bound_over_error": float(np.min(np.asarray(out.bound) / np.asarray(out.error))),
                "xi": float(xi.max()),
                "xi_over_error": float((xi / np.asarray(out.error)).min()),
                "linear_error_at_layers": float(np.abs(linear - exact).sum(axis=-1).max()),
                "C_BV": float(np.max(out.budget.C_BV)),
                "S_L": float(np.max(out.budget.S_L)),
                "largest_step": float(np.max(out.budget.largest_step)),
                "holds": int(out.holds),
            }
        )
    sizes = [r["L"] for r in rows]
    slopes = {
        k: slope(sizes, [r[k] for r in rows])
        for k in ("error", "error_at_layers", "bound", "xi", "linear_error_at_layers", "S_L")
    }
    c = b.constants
    known = {"L_b": c.L_b, "M_b": c.M_b, "L_t": c.L_t, "gamma": c.gamma}
    return rows, {
        "slopes": slopes,
        "holds": all(r["holds"] for r in rows),
        "tightest_bound_over_error": min(r["bound_over_error"] for r in rows),
        "tightest_xi_over_error": min(r["xi_over_error"] for r in rows),
        "constants": known | {"alpha1": c.alpha1, "alpha2": c.alpha2},
    }


def start(config: Config) -> Found:
    """Theorem 3.1's last term: how an error of the start grows, compared with e^Γ − 1 and e^Γ."""
    draw = np.random.default_rng([config["seed"], 4])
    rows = []
    for size in config["start_drifts"]:
        b = Drift(config, size)
        p = qk.simplex.from_logits(b.z)
        other = qk.simplex.from_logits(b.z + 0.01 * draw.normal(size=b.z.shape))
        apart = np.abs(p - other).sum(axis=-1)
        times = np.linspace(0, 1, 41)
        first, second = (
            qk.simplex.pf_ode(s, b, (0.0, 1.0), t_eval=times, rtol=1e-9, atol=1e-12).p
            for s in (p, other)
        )
        growth = (np.abs(first - second).sum(axis=-1) / apart).max()
        gamma = b.constants.gamma
        rows.append(
            {
                "drift": size,
                "growth": float(growth),
                "gamma": float(gamma),
                "printed": float(np.expm1(gamma)),
                "corrected": float(np.exp(gamma)),
            }
        )
    return rows, {
        "printed_fails_at": [r["drift"] for r in rows if r["growth"] > r["printed"] * (1 + 1e-6)],
        "corrected_fails_at": [
            r["drift"] for r in rows if r["growth"] > r["corrected"] * (1 + 1e-6)
        ],
    }


# ---- jumps ---------------------------------------------------------------------------------------


def jumps(config: Config) -> Found:
    """Algorithm 1 and K.2: finds the one jump of an otherwise smooth stack and cuts there."""
    L = config["jump_layers"]
    b = Drift(config)
    smooth, _ = b.layers(L)
    at = (2 * L) // 3
    rows = []
    for size in config["jumps"]:
        logits = smooth.copy()
        logits[at + 1 :, :, 0] += size
        cut = depth.segment(logits)
        whole = depth.segment(logits, max_segments=1)
        budget = depth.budget(logits, constants=b.constants, centered=True)
        rows.append(
            {
                "jump": size,
                "layer": at,
                "largest_step": float(np.max(budget.largest_step)),
                "S_L": float(np.max(budget.S_L)),
                "flags": len(cut.detector.violations),
                "found": int(at in cut.boundaries),
                "false_cuts": sum(c != at for c in cut.boundaries),
                "error_cut": cut.error,
                "error_whole": whole.error,
                "mass_error": cut.mass_error,
            }
        )
    return rows, {
        "found": [r["jump"] for r in rows if r["found"]],
        "missed": [r["jump"] for r in rows if r["jump"] > 0 and not r["found"]],
        "false_cuts": sum(r["false_cuts"] for r in rows),
        "largest_gain": max(r["error_whole"] / r["error_cut"] for r in rows),
    }


# ---- early exit ----------------------------------------------------------------------------------


def _stack(config: Config) -> tuple[Array, Array]:
    """Logits (L + 1, rows, V): one entry of each row rises, at a random rate from 0 upwards; all get noise.

    Steps shrink with depth. The second result (L,) bounds half of max − min of every step.
    """
    draw = np.random.default_rng([config["seed"], 5])
    L, n, V = config["exit_layers"], config["exit_rows"], config["exit_tokens"]
    noise, most = config["exit_noise"], config["exit_rate"]
    z = 0.1 * draw.normal(size=(n, V))
    rate = most * np.linspace(0, 1, n) ** 2
    sizes = config["exit_decay"] ** np.arange(L)
    layers = [z]
    for size in sizes:
        z = z + size * noise * draw.uniform(-1, 1, size=(n, V))
        z[:, 0] += size * rate
        layers.append(z)
    return np.stack(layers), sizes * (0.5 * most + noise)


def early_exit(config: Config) -> Found:
    """Layers saved and mass lost by three rules: certified, extrapolated, and H.1's norm of the mobility."""
    z, most = _stack(config)
    L = config["exit_layers"]
    p = [qk.simplex.from_logits(layer) for layer in z]
    norms = np.stack([np.asarray(qk.simplex.Mobility(row).frobenius_norm) for row in p])
    rows = []
    for tol in config["tolerances"]:
        leave = {"Frobenius norm (H.1)": norms <= tol}
        for name, variation in (("certified", most), ("extrapolated", None)):
            policy = qk.schedule.EarlyExit(tol=tol, n_layers=L, variation=variation)
            leave[name] = np.stack([np.asarray(policy.update(layer).exit) for layer in z])
        for name, may in leave.items():
            may = may.copy()
            may[-1] = True  # the stack ends there
            at = may.argmax(axis=0)
            lost = np.array(
                [0.5 * np.abs(p[k][i] - p[-1][i]).sum() for i, k in enumerate(at.tolist())]
            )
            rows.append(
                {
                    "policy": name,
                    "tol": tol,
                    "saved": float(1 - at.mean() / L),
                    "left_early": float((at < L).mean()),
                    "largest_loss": float(lost.max()),
                    "mean_loss": float(lost.mean()),
                    "broken": float((lost > tol * (1 + 1e-9)).mean()),
                }
            )
    found = {
        name: {
            "largest_loss_over_tol": max(
                r["largest_loss"] / r["tol"] for r in rows if r["policy"] == name
            ),
            "broken": max(r["broken"] for r in rows if r["policy"] == name),
            "saved": {f"{r['tol']:g}": r["saved"] for r in rows if r["policy"] == name},
        }
        for name in leave
    }
    V = config["exit_tokens"]
    flat = qk.simplex.Mobility(np.full(V, 1 / V))
    found["uniform row"] = {
        "tokens": V,
        "frobenius_norm": float(np.asarray(flat.frobenius_norm)),
        "moved_by_logits_of_1": float(qk.schedule.motion_bound(np.full(V, 1 / V), 1.0)),
    }
    return rows, found


# ---- schedules -----------------------------------------------------------------------------------


def schedule(config: Config) -> Found:
    """Entropy and mobility of growing logits, at τ = 1 and with a τ that holds the entropy by feedback."""
    draw = np.random.default_rng([config["seed"], 6])
    z = draw.normal(size=(config["n_rows"], config["tokens"]))
    target = float(np.mean(qk.simplex.entropy(qk.simplex.from_logits(z))))
    feedback = qk.schedule.EntropySchedule(target, gain=1.0, smoothing=0.3, bounds=(0.05, 50.0))
    rows = []
    for layer in range(config["schedule_layers"]):
        grown = z * (1 + config["schedule_growth"] * layer)
        held = qk.simplex.from_logits(grown, tau=feedback.tau)
        plain = qk.simplex.from_logits(grown)
        rows.append(
            {
                "layer": layer,
                "tau": feedback.tau,
                "entropy_fixed": float(np.mean(qk.simplex.entropy(plain))),
                "entropy_held": float(np.mean(qk.simplex.entropy(held))),
                "target": target,
                "mobility_fixed": float(np.median(qk.simplex.Mobility(plain).operator_norm)),
                "mobility_held": float(
                    np.median(qk.simplex.Mobility(held, feedback.tau).operator_norm)
                ),
                "tail_fixed": float(np.median(qk.simplex.Mobility(plain).tail)),
                "tail_held": float(np.median(qk.simplex.Mobility(held, feedback.tau).tail)),
            }
        )
        feedback.update(grown)
    last = rows[-1]
    return rows, {
        "target": target,
        "last_entropy_fixed": last["entropy_fixed"],
        "last_entropy_held": last["entropy_held"],
        "largest_miss": max(abs(r["entropy_held"] - target) for r in rows[len(rows) // 2 :]),
        "last_mobility_fixed": last["mobility_fixed"],
        "last_mobility_held": last["mobility_held"],
        "last_tail_fixed": last["tail_fixed"],
        "last_tail_held": last["tail_held"],
        "last_tau": last["tau"],
    }
