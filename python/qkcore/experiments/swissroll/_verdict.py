"""Compares the models of D.2: how good each one is after how many steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._configs import Config

MEASURES = ("mmd2", "chamfer")


def summarize(
    rows: list[dict[str, Any]], floor: dict[str, float], config: Config
) -> dict[str, Any]:
    """The content of metrics.json: for each variant and model the measures by step, and the comparison.

    ``floor`` has the measures of new points of the Swiss roll itself, the best that a model can reach.
    """
    found: dict[str, Any] = {
        "floor": floor,
        "d_model": config["d_model"],
        "amap_steps": config["amap_steps"],
        "dmap_steps": config["dmap_steps"],
        "variants": {},
    }
    for variant in config["variants"]:
        mine = [r for r in rows if r["variant"] == variant]
        models = {m: _by_step([r for r in mine if r["model"] == m]) for m in ("amap", "dmap")}
        found["variants"][variant] = {**models, "comparison": _compare(mine)}
    return found


def _by_step(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for step in sorted({r["step"] for r in rows}):
        here = [r for r in rows if r["step"] == step]
        out[str(step)] = {"seeds": len(here)}
        for name in (*MEASURES, "loss"):
            values = np.array([r[name] for r in here], dtype=float)
            out[str(step)][name] = {
                "mean": float(values.mean()),
                "min": float(values.min()),
                "max": float(values.max()),
            }
    return out


def _compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each seed and measure: AMAP after its last step, DMAP after the same step and after its own last
    step, and the first evaluated step at which DMAP was as good (None if it never was)."""
    out = []
    for seed in sorted({r["seed"] for r in rows}):
        runs = {
            m: {r["step"]: r for r in rows if r["seed"] == seed and r["model"] == m}
            for m in ("amap", "dmap")
        }
        if not runs["amap"] or not runs["dmap"]:
            continue
        last = max(runs["amap"])
        if last not in runs["dmap"]:
            continue
        for name in MEASURES:
            goal = runs["amap"][last][name]
            reached = [s for s in sorted(runs["dmap"]) if runs["dmap"][s][name] <= goal]
            end = max(runs["dmap"])
            out.append(
                {
                    "seed": seed,
                    "measure": name,
                    "amap_step": last,
                    "amap": goal,
                    "dmap_same_step": runs["dmap"][last][name],
                    "dmap_step": end,
                    "dmap": runs["dmap"][end][name],
                    "dmap_reaches_at": reached[0] if reached else None,
                }
            )
    return out
