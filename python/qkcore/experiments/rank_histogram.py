"""Ranks of the limits of Gaussian laws under attention, d = 3, 4, 5 (TPDE-5, figures 3 and 8).

Each case is integrated by Dormand-Prince and judged; none is left out. For comparison the published procedure
is applied to the same matrices, and the cases that it leaves out are counted: those that do not stop, and
ranks above ceil(d/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ._configs import Config, positive
from ._covariances import Array, count, generator, known, mapping
from ._errors import ExperimentError
from ._ranks_show import claims, plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

KINDS = ("softmax", "l2")
VALUES = ("identity", "positive", "normal")
PROCEDURE: dict[str, Any] = {
    "kind": "softmax",
    "values": "identity",
    "step": [0.1],
    "settle": 1e-4,
    "steps": 60000,
}
# The value to which the published code sets negative eigenvalues.
LIFTED = 1e-14


def check(config: Config) -> None:
    """Refuses settings with which no histogram can be made."""
    positive(config, "n", "horizon", "dopri_steps", "rank_tolerance")
    positive(config, "trace_limit", "rank_threshold", "most_steps")
    positive(config, "dimensions", least=1)
    known("kind", config["kinds"], KINDS)
    known("values", config["values"], VALUES)
    for k, given in enumerate(config["procedures"]):
        mapping(f"procedures, entry {k + 1}", given, PROCEDURE)
        if len(given["step"]) != len(config["dimensions"]):
            raise ExperimentError(
                f"procedures, entry {k + 1}: step: wanted one for each of the "
                f"{len(config['dimensions'])} dimensions, got {len(given['step'])}"
            )
    if config["published_procedure"]:
        for kind in config["kinds"]:
            for values in config["values"]:
                _procedure(config, kind, values)


def _procedure(config: Config, kind: str, values: str) -> dict[str, Any]:
    wanted = "positive" if values == "normal" else values
    for given in config["procedures"]:
        if (given["kind"], given["values"]) == (kind, wanted):
            found: dict[str, Any] = given
            return found
    raise ExperimentError(f"procedures: wanted an entry for {kind} and V {wanted}, got none")


@dataclass(frozen=True)
class Cases:
    """Q, K (n, k, d), V and starts (n, d, d) of one dimension; Q includes the factor 1 / sqrt(d) of A."""

    Q: Array
    K: Array
    V: Array
    start: Array


def cases(kind: str, values: str, dimension: int, config: Config) -> Cases:
    """The published draws: one stream gives Q for all dimensions, another V; each dimension draws starts."""
    n, seed = config["n"], config["seed"]
    queries, matrices = generator(40, seed), generator(26 if kind == "softmax" else 27, seed)
    for d in config["dimensions"]:
        Q = queries.randn(n, d // 2, d)
        G = matrices.randn(n, d, d)
        if d == dimension:
            break
    S = generator(41, seed).randn(n, d, d)
    V = {
        "identity": np.broadcast_to(np.eye(d), G.shape),
        "positive": G.swapaxes(-1, -2) @ G,
        "normal": G,
    }
    return Cases(Q / math.sqrt(d), -Q, V[values].copy(), S @ S.swapaxes(-1, -2))


def compute(config: Config, run: Run) -> None:
    """Writes cases.csv, with a line for each case, and histogram.csv, which counts outcomes and ranks."""
    wanted = [
        (k, v, d) for k in config["kinds"] for v in config["values"] for d in config["dimensions"]
    ]
    rows: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    metrics: dict[str, Any] = {}
    for kind, values, d in run.progress(wanted, "cases"):
        found = run.stage(f"{kind}-{values}-{d}", lambda: _cases(kind, values, d, config))  # noqa: B023
        rows += found
        summary = _summary(found, d)
        metrics.setdefault(kind, {}).setdefault(values, {})[str(d)] = summary
        for who in ("ours", "published"):
            if summary[who] is not None:
                bars += [
                    {"kind": kind, "values": values, "d": d, "who": who, "fate": fate, "count": n}
                    for fate, n in summary[who]["fates"].items()
                ]
    run.write_csv("cases", rows)
    run.write_csv("histogram", bars)
    metrics["cases"] = len(rows)
    metrics["accounted_for"] = sum(b["count"] for b in bars if b["who"] == "ours")
    run.write_metrics(metrics)


def _cases(kind: str, values: str, d: int, config: Config) -> list[dict[str, Any]]:
    c = cases(kind, values, d, config)
    sol = qk.gaussian.flow(
        kind,
        None,
        c.start,
        (0.0, config["horizon"]),
        Q=c.Q,
        K=c.K,
        V=c.V,
        method="dopri5",
        store="final",
        max_steps=config["dopri_steps"],
        rank_tol=config["rank_tolerance"],
    )
    theirs = projected_euler(kind, c, d, values, config) if config["published_procedure"] else None
    out = []
    for k in range(len(c.start)):
        row = {
            "kind": kind,
            "values": values,
            "d": d,
            "case": k,
            "status": str(sol.status[k]),
            "rank": int(sol.rank[k]),
            "smallest": float(sol.eigenvalues[k, 0]),
            "largest": float(sol.eigenvalues[k, -1]),
            "t_end": float(sol.t_end[k]),
            "blow_up_time": float(sol.blow_up_time[k]),
            "published_status": "" if theirs is None else theirs.status[k],
            "published_rank": -1 if theirs is None else int(theirs.rank[k]),
            "published_steps": -1 if theirs is None else int(theirs.steps[k]),
            "projections": -1 if theirs is None else int(theirs.projections[k]),
        }
        out.append(row)
    return out


# ---- the published procedure ---------------------------------------------------------------------


@dataclass
class ProjectedEuler:
    """The outcome of the published procedure for every case."""

    status: list[str]
    rank: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    projections: npt.NDArray[np.int64]
    """number of steps after which a negative eigenvalue was raised"""


def projected_euler(kind: str, c: Cases, d: int, values: str, config: Config) -> ProjectedEuler:
    """Euler steps on all cases at once; negative eigenvalues are raised to 1e-14 after each step."""
    p = _procedure(config, kind, values)
    tau = p["step"][config["dimensions"].index(d)]
    n = len(c.start)
    out = ProjectedEuler(["unfinished"] * n, *(np.zeros(n, np.int64) for _ in range(3)))
    final = c.start.copy()
    active = np.arange(n)
    state = c.start.copy()
    A, V, KK = c.K.swapaxes(-1, -2) @ c.Q, c.V, c.K.swapaxes(-1, -2) @ c.K
    identity = np.eye(d)
    for step in range(min(p["steps"], config["most_steps"])):
        inner = A if kind == "softmax" else 2 * np.linalg.solve(identity + 2 * KK @ state, A)
        half = V @ state @ inner @ state
        rate = half + half.swapaxes(-1, -2)
        settled = np.linalg.norm(rate, axis=(-2, -1)) < p["settle"]
        moved, lifted = _lifted(state + tau * rate)
        out.projections[active] += lifted
        large = ~settled & (np.trace(moved, axis1=-2, axis2=-1) > config["trace_limit"])
        stop = settled | large
        final[active] = state
        if stop.any():
            for k, converged in zip(active[stop], settled[stop], strict=True):
                out.status[k] = "converged" if converged else "above the limit"
            out.steps[active[stop]] = step
            keep = ~stop
            active, moved = active[keep], moved[keep]
            A, V, KK = A[keep], V[keep], KK[keep]
        state = moved
        if not active.size:
            break
    out.steps[active] = step + 1
    out.rank[:] = (np.linalg.eigvalsh(final) > config["rank_threshold"]).sum(axis=-1)
    return out


def _lifted(cov: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    values, vectors = np.linalg.eigh(cov)
    negative: npt.NDArray[np.bool_] = np.asarray((values < 0).any(axis=-1))
    if negative.any():
        values = np.where(values < 0, LIFTED, values)
        again = (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)
        cov = np.where(negative[:, None, None], again, cov)
    return cov, negative


# ---- counts --------------------------------------------------------------------------------------


def _summary(rows: list[dict[str, Any]], d: int) -> dict[str, Any]:
    """Counts outcomes: the rank of the limit if there is one, and the status otherwise."""
    limits = [r for r in rows if r["status"] == "converged"]
    ours = {
        "status": count(r["status"] for r in rows),
        "ranks": count(r["rank"] for r in limits),
        "fates": _fates((r["rank"] if r["status"] == "converged" else r["status"]) for r in rows),
        "above_floor": sum(r["rank"] > d // 2 for r in limits),
        "above_ceil": sum(r["rank"] > (d + 1) // 2 for r in limits),
    }
    theirs = None
    if rows[0]["published_status"]:
        stopped = [r for r in rows if r["published_status"] == "converged"]
        kept = [r for r in stopped if r["published_rank"] <= (d + 1) // 2]
        both = [r for r in kept if r["status"] == "converged"]
        theirs = {
            "status": count(r["published_status"] for r in rows),
            "shown": len(kept),
            "left_out_by_rank": len(stopped) - len(kept),
            "fates": _fates(
                ("rank above ⌈d/2⌉" if r["published_rank"] > (d + 1) // 2 else r["published_rank"])
                if r["published_status"] == "converged" else r["published_status"]
                for r in rows
            ),
            "above_floor": sum(r["published_rank"] > d // 2 for r in kept),
            "projected": sum(r["projections"] > 0 for r in rows),
            "projections": sum(r["projections"] for r in rows),
            "both_converged": len(both),
            "same_rank": sum(r["rank"] == r["published_rank"] for r in both),
            "lower_rank": sum(r["rank"] > r["published_rank"] for r in both),
        }  # fmt: skip
    return {
        "n": len(rows),
        "floor": d // 2,
        "ceil": (d + 1) // 2,
        "ours": ours,
        "published": theirs,
    }


def _fates(values: Any) -> dict[str, int]:
    found = [str(v) for v in values]
    return {v: found.count(v) for v in sorted(set(found), key=lambda v: (not v.isdigit(), v))}
