"""Particles under every kind of attention: clusters, radius, energy, and how each run ended (TPDE-1, TPDE-2).

The paper has no figure of particles. Here its theorems 3.1 and 3.4 (radius), its sections 5.2 and 5.4
(energies) and the clustering that it mentions are tested for all fields, also with masks and several heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ._configs import Config, positive
from ._covariances import count, known
from ._errors import ExperimentError
from ._particles_show import claims, plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]
KINDS = ("softmax", "l2", "linear", "linear centred", "sinkhorn", "exp", "relu", "sigmoid")
VARIANTS = ("plain", "causal", "positions", "heads")
SCENES = ("collapse", "spread", "sphere")
BOUNDED = ("softmax", "l2", "sinkhorn", "sigmoid")
# For these fields the flow with V = -A is the steepest descent of an energy, for any number of heads.
POTENTIALS = ("linear", "exp", "relu", "sigmoid")
# L1 error of the marginals when Sinkhorn's energy is computed; the energy's error is of second order in it.
BRIDGE = 1e-8
# At later times the bound, exp(t), is larger than what a double can hold.
BOUND_TIME = 300.0
# A change in the wrong direction counts as rounding if it is smaller than this share of the whole change.
ROUNDING = 1e-6


def check(config: Config) -> None:
    """Refuses settings with which the flow cannot be computed."""
    positive(config, "n", "n_masked_sinkhorn", "n_times", least=1)
    positive(config, "radius", "beta_sphere", "t_collapse", "t_spread", "t_sphere", "epsilon")
    positive(config, "threshold", "first_time", "blow_up_radius", "rtol", "atol", "max_steps")
    known("kind", config["kinds"], KINDS)
    known("variant", config["variants"], VARIANTS)
    known("scene", config["scenes"], SCENES)
    shortest = min(config[f"t_{scene}"] for scene in config["scenes"])
    if config["first_time"] >= shortest:
        raise ExperimentError(
            f"first_time: wanted less than the shortest run, {shortest}, got {config['first_time']}"
        )


@dataclass(frozen=True)
class Setup:
    """A field and the points from which the flow starts."""

    field: qk.AttentionField
    X0: Array
    A: Array
    """(heads, d, d), symmetric"""
    sign: float
    """sign of V relative to A"""
    law: bool
    """whether the energy must be monotone: rising if V = A, falling if V = -A"""


def setup(scene: str, kind: str, variant: str, config: Config) -> Setup:
    """The field and the start of a run; points and positions depend only on the seed."""
    draw = np.random.default_rng(config["seed"])
    masked = variant in ("causal", "positions")
    n = config["n_masked_sinkhorn"] if masked and kind == "sinkhorn" else config["n"]
    angle = draw.uniform(0, 2 * np.pi, config["n"])
    radius = np.sqrt(draw.uniform(size=config["n"])) * config["radius"]
    positions = np.asarray(draw.uniform(size=config["n"]))[:n]
    if scene == "sphere":
        radius = np.ones_like(radius)
    X0 = (radius * np.array([np.cos(angle), np.sin(angle)])).T[:n].copy()
    if scene == "sphere":
        X0 /= np.linalg.norm(X0, axis=1, keepdims=True)
    A = _heads() if variant == "heads" else np.eye(2)[None]
    sign = -1.0 if scene == "collapse" else 1.0
    beta = config["beta_sphere"] if scene == "sphere" else 1.0
    heads = len(A)
    options: dict[str, Any] = {
        "Q": beta * A.reshape(-1, 2),
        "K": np.tile(np.eye(2), (heads, 1)),
        "V": sign * A / heads,  # so that the norms of the heads sum to 1
        "heads": heads,
        "sphere": scene == "sphere",
        "mask": {"causal": "causal", "positions": positions}.get(variant),
    }
    if kind in ("sinkhorn", "linear centred"):
        options["epsilon"] = config["epsilon"]
    if kind == "linear centred":
        options["centred"] = True
    if kind in ("l2", "sinkhorn"):
        # Scores are distances in these fields: Q must equal K, or points are not nearest to themselves.
        root = np.stack([_root(beta * a) for a in A]).reshape(-1, 2)
        options |= {"Q": root, "K": root}
    field = qk.AttentionField(kind.split()[0], **options)
    law = not masked and (kind in POTENTIALS or (kind in ("softmax", "sinkhorn") and heads == 1))
    return Setup(field, X0, beta * A, sign, law)


def _heads() -> Array:
    """Two symmetric positive matrices of norm 1 whose axes are 60 degrees apart."""
    c, s = math.cos(math.pi / 3), math.sin(math.pi / 3)
    turn = np.array([[c, -s], [s, c]])
    first = np.diag([1.0, 0.25])
    return np.stack([first, turn @ first @ turn.T])


def _root(A: Array) -> Array:
    values, vectors = np.linalg.eigh(A)
    out: Array = (vectors * np.sqrt(values)) @ vectors.T
    return out


def energy(s: Setup, kind: str, X: Array) -> float | None:
    r"""The energy that the flow of this kind descends if V = -A; None if there is no such energy.

    For exp, relu, sigmoid and linear it is :math:`\frac12\sum_h\iint\Phi(A_hx\cdot y)`, where :math:`\Phi'`
    is the weight of :math:`y`; for exp and softmax the logarithm is returned (section 5.4). For sinkhorn it
    is
    :math:`\mathcal F_\varepsilon` (5.11).
    """
    if kind in ("l2", "linear centred") or (kind == "sinkhorn" and len(s.A) > 1):
        return None
    if kind == "sinkhorn":
        return qk.observables.sinkhorn_energy(X, s.field, tol=BRIDGE)
    scores = np.einsum("ni,hij,mj->hnm", X, s.A, X)
    if kind in ("softmax", "exp"):
        top = float(scores.max())
        return top + math.log(float(np.exp(scores - top).mean(axis=(1, 2)).sum() / 2))
    potential: dict[str, Callable[[Array], Array]] = {
        "linear": lambda z: 0.5 * z**2,
        "relu": lambda z: 0.5 * np.maximum(z, 0) ** 2,
        "sigmoid": lambda z: np.logaddexp(0, z),
    }
    return 0.5 * float(potential[kind](scores).mean(axis=(1, 2)).sum())


def compute(config: Config, run: Run) -> None:
    """Writes runs.csv, series.csv and points.csv."""
    wanted = [
        (scene, kind, variant)
        for scene in config["scenes"]
        for kind in config["kinds"]
        for variant in config["variants"]
    ]
    runs, series, points = [], [], []
    for scene, kind, variant in run.progress(wanted, "flows"):
        name = f"{scene}-{kind}-{variant}".replace(" ", "_")
        done = run.stage(name, lambda: one_run(scene, kind, variant, config))  # noqa: B023
        runs.append(done["run"])
        series += done["series"]
        points += done["points"]
    run.write_csv("runs", runs)
    run.write_csv("series", series)
    run.write_csv("points", points)
    metrics: dict[str, Any] = {"runs": len(runs), "status": count(r["status"] for r in runs)}
    metrics["accounted_for"] = sum(metrics["status"].values())
    for r in runs:
        at = metrics.setdefault(r["scene"], {}).setdefault(r["kind"], {})
        at[r["variant"]] = {k: v for k, v in r.items() if k not in ("scene", "kind", "variant")}
    run.write_metrics(metrics)


def one_run(scene: str, kind: str, variant: str, config: Config) -> dict[str, Any]:
    """Computes a flow to the end time of the scene, or until it blows up or fails."""
    s = setup(scene, kind, variant, config)
    end = config[f"t_{scene}"]
    times = np.concatenate([[0.0], np.geomspace(config["first_time"], end, config["n_times"] - 1)])
    times[-1] = end
    sol = qk.flow(
        s.field,
        s.X0,
        (0.0, end),
        rtol=config["rtol"],
        atol=config["atol"],
        t_eval=times,
        blow_up=config["blow_up_radius"],
        max_steps=config["max_steps"],
    )
    where = {"scene": scene, "kind": kind, "variant": variant}
    series = [
        where | _state(s, kind, float(t), X, scene, config)
        for t, X in zip(sol.t, sol.x, strict=True)
    ]
    first, last = series[0], series[-1]
    clusters = [r["clusters"] for r in series]
    settled = next(k for k in range(len(series)) if len(set(clusters[k:])) == 1)
    bounds = [r["radius"] / r["bound"] for r in series[1:] if r["bound"] is not None]
    summary = {
        **where,
        "status": sol.status,
        "n": len(s.X0),
        "t_end": float(sol.t[-1]),
        "clusters_start": clusters[0],
        "clusters_end": clusters[-1],
        "t_formed": series[settled]["t"],
        "spread_end": last["spread"],
        "radius_start": first["radius"],
        "radius_end": last["radius"],
        "bound_end": last["bound"],
        "radius_over_bound": max(bounds) if bounds and scene != "sphere" else None,
        "energy_start": first["energy"],
        "energy_end": last["energy"],
        "energy_law": s.law,
        "energy_against_law": _against(s, [r["energy"] for r in series]) if s.law else None,
        "n_steps": sol.n_steps,
        "n_evaluations": sol.n_evaluations,
    }
    points = [
        {**where, "when": when, "particle": k, "x": float(x), "y": float(y)}
        for when, X in (("start", sol.x[0]), ("end", sol.x[-1]))
        for k, (x, y) in enumerate(X)
    ]
    return {"run": summary, "series": series, "points": points}


def _state(s: Setup, kind: str, t: float, X: Array, scene: str, config: Config) -> dict[str, Any]:
    radius = float(qk.observables.radius(X))
    scale = {"collapse": config["radius"], "spread": radius, "sphere": 1.0}[scene]
    bound = None
    if kind in BOUNDED and t <= BOUND_TIME:
        start = float(qk.observables.radius(s.X0))
        bound = float(qk.observables.radius_bound(s.field, start, t))
    return {
        "t": t,
        "clusters": qk.observables.clusters(X, config["threshold"] * scale).count,
        "radius": radius,
        "bound": bound,
        "spread": float(np.sqrt(np.square(X - X.mean(axis=0)).sum(axis=1).mean())),
        "energy": energy(s, kind, X),
    }


def _against(s: Setup, energies: list[float]) -> float:
    """The energy's largest step in the wrong direction, as a share of its whole change; 0 if rounding."""
    steps = s.sign * np.diff(energies)
    change = abs(energies[-1] - energies[0])
    worst = float(max(0.0, -steps.min(initial=0.0)))
    share = worst / max(change, 1e-300)
    return share if share > ROUNDING else 0.0
