"""Covariances under attention as curves in the cone of 2 x 2 covariances (TPDE-5, figures 1, 2, 4 to 7).

Every trajectory is computed twice. The pictures show the paper's Euler steps, up to the paper's stopping
rule. Dormand-Prince, up to a later time, decides where the trajectory ends. The counts include every
trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import qkcore as qk

from ._cones_show import claims, plot, tables
from ._configs import Config, positive
from ._covariances import (
    FIELDS,
    MATRICES,
    STATUSES,
    Array,
    Matrices,
    count,
    field,
    known,
    mapping,
    matrices,
    starts,
    to_cone,
)
from ._errors import ExperimentError

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

PANEL: dict[str, Any] = {
    "figure": "1a",
    "field": "softmax",
    "matrices": "negative",
    "starts": 10,
    "half_width": 0.5,
    "step": 0.3,
    "settle": 1e-5,
    "limit": 1e3,
    "steps": 50000,
    "horizon": 1e3,
}
# The stopping rule looks at so many states in each stretch of Euler steps; stretches double in length.
SEEN = 40
# Number of points of a curve in paths.csv.
POINTS = 48
# If an eigenvalue is below minus this fraction of the trace, a step was too long and left the cone.
OUTSIDE = 1e-9


def check(config: Config) -> None:
    """Refuses settings with which some panel cannot be computed."""
    positive(config, "random_fields", "random_horizon", "dopri_steps", "most_steps", "drawn")
    positive(config, "most_starts", least=1)
    names = []
    for k, panel in enumerate(config["panels"]):
        where = f"panels, entry {k + 1}"
        mapping(where, panel, PANEL)
        known(f"field in {where}:", [panel["field"]], FIELDS)
        known(f"matrices in {where}:", [panel["matrices"]], MATRICES)
        if not len(starts(min(panel["starts"], config["most_starts"]), panel["half_width"])):
            raise ExperimentError(
                f"{where}: wanted at least one start inside the cone, got none; lower half_width"
            )
        names.append(panel["figure"])
    if len(set(names)) < len(names):
        raise ExperimentError(f"panels: wanted a figure name for each, got {', '.join(names)}")


def compute(config: Config, run: Run) -> None:
    """Writes trajectories.csv, paths.csv and random_fields.csv."""
    rows: list[dict[str, Any]] = []
    paths: list[dict[str, Any]] = []
    panels: dict[str, Any] = {}
    for panel in run.progress(config["panels"], "panels"):
        done = run.stage(f"panel-{panel['figure']}", lambda: _panel(panel, config))  # noqa: B023
        rows += done["trajectories"]
        paths += done["paths"]
        panels[panel["figure"]] = done["summary"]
    draws = [
        run.stage(f"random-{name}-{values}", lambda: _random(name, values, config))  # noqa: B023
        for name in run.progress(FIELDS, "random V")
        for values in ("positive", "normal")
    ]
    run.write_csv("trajectories", rows)
    run.write_csv("paths", paths)
    run.write_csv("random_fields", [_flat(d) for d in draws])
    total = sum(p["n"] for p in panels.values())
    accounted = sum(sum(p["status"].values()) for p in panels.values())
    run.write_metrics(
        {
            "panels": panels,
            "trajectories": total,
            "accounted_for": accounted,
            "similarity": _similarity(rows, panels),
            "random_fields": {
                name: {d["values"]: d for d in draws if d["field"] == name} for name in FIELDS
            },
        }
    )


def _flat(draw: dict[str, Any]) -> dict[str, Any]:
    statuses = {name.replace(" ", "_"): draw["status"].get(name, 0) for name in STATUSES}
    return {"field": draw["field"], "values": draw["values"], "n": draw["n"], **statuses}


# ---- a panel -------------------------------------------------------------------------------------


def _panel(panel: dict[str, Any], config: Config) -> dict[str, Any]:
    m = matrices(panel["matrices"], config["seed"])
    arguments = field(panel["field"], m)
    cov = starts(min(panel["starts"], config["most_starts"]), panel["half_width"])
    sol = qk.gaussian.flow(
        mean=None,
        cov=cov,
        t_span=(0.0, float(panel["horizon"])),
        method="dopri5",
        store="final",
        max_steps=config["dopri_steps"],
        **arguments,
    )
    euler = euler_paths(arguments, cov, panel, config["most_steps"])
    last = sol.cov[-1]
    rows = []
    for k in range(len(cov)):
        x0, y0, _ = to_cone(cov[k])
        x, y, z = to_cone(last[k])
        ex, ey, ez = to_cone(euler.states[k][-1])
        rows.append(
            {
                "panel": panel["figure"],
                "trajectory": k,
                "x0": x0,
                "y0": y0,
                "status": str(sol.status[k]),
                "rank": int(sol.rank[k]),
                "t_end": float(sol.t_end[k]),
                "blow_up_time": float(sol.blow_up_time[k]),
                "x": x,
                "y": y,
                "z": z,
                "euler_status": euler.status[k],
                "euler_t": euler.times[k][-1],
                "euler_x": ex,
                "euler_y": ey,
                "euler_z": ez,
            }
        )
    return {
        "trajectories": rows,
        "paths": _drawn(panel, euler, config),
        "summary": _summary(panel, m, sol, euler, last),
    }


class EulerPaths:
    """States and times of every trajectory up to the paper's stopping rule, and why it stopped."""

    def __init__(self, cov: Array) -> None:
        self.states: list[list[Array]] = [[c] for c in cov]
        self.times: list[list[float]] = [[0.0] for _ in cov]
        self.status = ["unfinished"] * len(cov)


def euler_paths(
    arguments: dict[str, Any], cov: Array, panel: dict[str, Any], most_steps: int
) -> EulerPaths:
    """Takes Euler steps until the rate is below ``settle``, the trace above ``limit``, or no steps are left.

    The rule is applied only to the states that are kept: each of the first steps, every second of the next,
    and so on, because a curve that slows down like 1/t needs few of them. Where an eigenvalue becomes
    negative by more than rounding, the published code sets it to 1e-14; here the trajectory ends as "left the
    cone".
    """
    out = EulerPaths(cov)
    budget, step = min(panel["steps"], most_steps), float(panel["step"])
    active, state, done = np.arange(len(cov)), cov.copy(), 0
    while done < budget and active.size:
        length = min(max(SEEN, done), budget - done)
        every = max(1, length // SEEN)
        sol = qk.gaussian.flow(
            mean=None,
            cov=state[active],
            t_span=(done * step, (done + length) * step),
            n_steps=length,
            store=every,
            method="euler",
            **arguments,
        )
        states, times = sol.cov[1:], sol.t[1:]
        trace = np.trace(states, axis1=-2, axis2=-1)
        lowest = np.linalg.eigvalsh(states)[..., 0]
        inside = states - np.minimum(lowest, 0)[..., None, None] * np.eye(2)
        rate = qk.gaussian.velocity(mean=None, cov=inside, **arguments).cov_rate
        marks = {
            "left the cone": lowest < -OUTSIDE * np.abs(trace),
            "above the limit": trace > panel["limit"],
            "converged": np.linalg.norm(rate, axis=(-2, -1)) < panel["settle"],
        }
        # If flow() had to stop a trajectory, its last finite state is kept, and that is above the limit.
        stops = np.any(list(marks.values()), axis=0) | (times[:, None] > sol.t_end + 1e-9 * step)
        for column, k in enumerate(active):
            hit = np.flatnonzero(stops[:, column])
            end = hit[0] + 1 if hit.size else len(times)
            out.states[k] += list(states[:end, column])
            out.times[k] += [float(t) for t in times[:end]]
            if hit.size:
                reasons = [name for name, at in marks.items() if at[hit[0], column]]
                out.status[k] = reasons[0] if reasons else "above the limit"
        state[active] = inside[-1]
        active = active[~stops.any(axis=0)]
        done += length
    return out


def _drawn(panel: dict[str, Any], euler: EulerPaths, config: Config) -> list[dict[str, Any]]:
    """Some of the curves, each reduced to points at equal distances."""
    n = len(euler.states)
    some = np.random.default_rng(config["seed"]).permutation(n)[: config["drawn"]]
    rows = []
    for k in sorted(int(k) for k in some):
        points = to_cone(np.array(euler.states[k]))
        at = np.array(euler.times[k])
        # Where curves diverge, they are drawn rescaled to trace 1; distances are measured on that drawing.
        shape = points / points[:, 2:] if panel["figure"][0] in "26" else points
        length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(shape, axis=0), axis=1))])
        marks = np.linspace(0, length[-1], POINTS)
        kept = np.unique([0, *np.searchsorted(length, marks).clip(max=len(points) - 1)])
        rows += [
            {
                "panel": panel["figure"],
                "trajectory": k,
                "t": at[i],
                "x": points[i, 0],
                "y": points[i, 1],
                "z": points[i, 2],
            }
            for i in kept
        ]
    return rows


# ---- what is counted -----------------------------------------------------------------------------


def _summary(
    panel: dict[str, Any],
    m: Matrices,
    sol: qk.gaussian.GaussianFlow,
    euler: EulerPaths,
    last: Array,
) -> dict[str, Any]:
    converged = np.asarray(sol.converged)
    blew = np.asarray(sol.status) == "blew up"
    limits = last[converged]
    trace = np.trace(limits, axis1=-2, axis2=-1)
    A = m.K.T @ m.Q
    same = [
        (e == "converged") == (s == "converged")
        for e, s in zip(euler.status, sol.status, strict=True)
    ]
    return {
        "field": panel["field"],
        "matrices": panel["matrices"],
        "n": len(last),
        "status": count(sol.status),
        "euler_status": count(euler.status),
        "same_verdict": int(np.sum(same)),
        "ranks": count(np.asarray(sol.rank)[converged]),
        "blow_up_time": [float(v) for v in _ends(np.asarray(sol.blow_up_time)[blew])],
        "symmetric_part": [float(v) for v in np.linalg.eigvalsh(A + A.T)],
        "trace": [float(v) for v in _ends(trace)],
        # The dimension (0 to 3) of the space that the limits of converged trajectories span.
        "span": _span(limits),
        "span_values": [float(v) for v in _singular(limits)],
        "off_kernel": _largest(
            np.linalg.norm(limits @ m.Q.T, axis=(-2, -1)) if len(limits) else np.array([])
        ),
        "off_plane": _largest(np.abs((limits @ m.Q[0])[..., 0]) if len(limits) else np.array([])),
        "off_isotropic": _largest(_isotropy(limits, A)),
    }


def _ends(values: Array) -> list[float]:
    return [float(values.min()), float(values.max())] if len(values) else []


def _largest(values: Array) -> float | None:
    return float(values.max()) if len(values) else None


def _singular(limits: Array) -> Array:
    """Singular values of the limits as points of the cone, divided by the root of their number."""
    if not len(limits):
        return np.zeros(0)
    values: Array = np.linalg.svd(to_cone(limits), compute_uv=False) / np.sqrt(len(limits))
    return values


def _span(limits: Array, tolerance: float = 0.02) -> int | None:
    """The dimension of the space in which the limits lie; the tolerance is relative to starts of trace 1."""
    return int((_singular(limits) > tolerance).sum()) if len(limits) else None


def _isotropy(limits: Array, A: Array) -> Array:
    """|u'(A + A')u| for the unit vector u along the largest axis of each limit; 0 on lemma 4.7's lines."""
    if not len(limits):
        return np.zeros(0)
    u = np.linalg.eigh(limits)[1][..., -1]
    out: Array = np.abs(np.einsum("ni,ij,nj->n", u, A + A.T, u)) / np.linalg.norm(A + A.T, 2)
    return out


# Panels with the same starts and matrices, whose limits the paper calls similar.
PAIRS = {"1a": ("4b", "4c", "7a"), "1b": ("5b",), "1d": ("5c",), "2d": ("6b", "6c"), "2a": ("7b",)}


def _similarity(rows: list[dict[str, Any]], panels: dict[str, Any]) -> dict[str, Any]:
    """The distance of limits under other fields from those under softmax, for each start."""
    by_panel: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_panel.setdefault(row["panel"], []).append(row)
    out = {}
    for first, others in PAIRS.items():
        for other in others:
            if (
                first not in panels
                or other not in panels
                or panels[first]["n"] != panels[other]["n"]
            ):
                continue
            pairs = list(zip(by_panel[first], by_panel[other], strict=True))
            both = [(a, b) for a, b in pairs if a["status"] == b["status"] == "converged"]
            gaps = [np.linalg.norm([a[c] - b[c] for c in "xyz"]) for a, b in both]
            out[f"{first} {other}"] = {
                "both_converged": len(both),
                "same_fate": sum(
                    (a["status"] == "converged") == (b["status"] == "converged") for a, b in pairs
                ),
                "n": len(pairs),
                "median_distance": float(np.median(gaps)) if gaps else None,
                "largest_distance": float(np.max(gaps)) if gaps else None,
            }
    return out


def _random(name: str, values: str, config: Config) -> dict[str, Any]:
    """Section 4.5, item 1: A + A' negative definite and V random; every case draws a field and a start."""
    draw = np.random.default_rng([config["seed"], 7])
    n = config["random_fields"]
    Q, G, S = draw.standard_normal((3, n, 2, 2))
    V = G @ G.swapaxes(-1, -2) if values == "positive" else G
    cov = S @ S.swapaxes(-1, -2)
    cov /= np.trace(cov, axis1=-2, axis2=-1)[:, None, None]
    if name == "multi-head":
        heads = np.einsum("hi,hj,njk->nhik", np.eye(2), np.eye(2), V)
        arguments: dict[str, Any] = {"kind": "softmax", "Q": Q, "K": -Q, "V": heads, "heads": 2}
    else:
        arguments = field(name, Matrices(Q, -Q, V))
    sol = qk.gaussian.flow(
        mean=None,
        cov=cov,
        t_span=(0.0, config["random_horizon"]),
        method="dopri5",
        store="final",
        max_steps=config["dopri_steps"],
        **arguments,
    )
    converged = np.asarray(sol.converged)
    trace = np.trace(sol.cov[-1], axis1=-2, axis2=-1)
    return {
        "field": name,
        "values": values,
        "n": n,
        "status": count(sol.status),
        "largest_trace": _largest(trace[converged]),
        "largest_trace_not_settled": _largest(trace[np.asarray(sol.status) == "not settled"]),
    }
