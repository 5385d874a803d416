"""Cases of diagnostics, schedules and the simplex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkcore import diagnostics, schedule, simplex
from qkcore.diagnostics import curvature, depth, drift, duality, rotation, score

from ..reference import Array
from ._base import Draw, case, cases_of

# ---- diagnostics ---------------------------------------------------------------------------------

cases_of(
    "diagnostics.curvature.",
    curvature,
    [
        (
            "curvature",
            lambda g: {"P": g.law(g.n, g.n), "n_pairs": 4, "n_resamples": 20, "confidence": 0.9},
        ),
        (
            "curvature_sweep",
            lambda g: {"logits": g.normal(g.n, g.n), "n_pairs": 4, "n_resamples": 20},
        ),
        (
            "evi",
            lambda g: {
                "rows": g.law(4, g.m),
                "support": g.keep(np.arange(float(g.m))),
                "tau": 1.0,
            },
        ),
        ("locking", lambda g: {"logits": g.logits(), "tau": 1.0, "bins": 4}),
        ("locking_bound", lambda g: {"tail": 0.1, "change": 0.2, "form": "sharp"}),
        (
            "sinkhorn_w2",
            lambda g: {
                "p": g.law(g.n),
                "q": g.law(g.n),
                "support": g.X(),
                "epsilon": 0.5,
                "tol": 1e-4,
            },
        ),
        ("w1", lambda g: {"p": g.law(g.n), "q": g.law(g.n), "points": g.X()}),
    ],
)
cases_of(
    "diagnostics.depth.",
    depth,
    [
        ("budget", lambda g: {"logits": g.logits(), "tau": 1.0}),
        ("detect", lambda g: {"logits": g.logits(), "window": 4}),
        ("estimate_constants", lambda g: {"logits": g.logits(), "tau": 1.0}),
        ("finite_depth", lambda g: {"logits": g.logits(5, 0.02), "tau": 1.0, "n_between": 2}),
        ("segment", lambda g: {"logits": g.logits(12), "tau": 1.0, "window": 4}),
        ("Constants", lambda g: {"L_b": 1.0, "M_b": 1.0, "L_t": 1.0, "tau": 1.0}),
    ],
)
case(
    "diagnostics.depth.BVDetector",
    lambda dz, **a: depth.BVDetector(**a).update(dz),
    lambda g: {"threshold": 0.5, "window": 4, "dz": g.normal(g.m)},
)
case(
    "diagnostics.drift.KNNDrift",
    lambda X, y, new, **a: drift.KNNDrift(**a).fit(X, y).predict(new),
    lambda g: {"X": g.X(30), "y": g.X(30), "new": g.X(), "n_neighbors": 6},
)
case(
    "diagnostics.drift.RidgeDrift",
    lambda X, y, new, **a: drift.RidgeDrift(**a).fit(X, y).predict(new),
    lambda g: {"X": g.X(30), "y": g.X(30), "new": g.X(), "n_folds": 3},
)
case(
    "diagnostics.drift.transitions",
    drift.transitions,
    lambda g: {"logits": g.logits(), "tau": 1.0, "state": "p"},
)


def _line(x: Array, t: float) -> Array:
    return -x


cases_of(
    "diagnostics.duality.",
    duality,
    [
        ("DiffusionTensor", lambda g: {"a": 0.5, "d": g.d}),
        (
            "parity",
            lambda g: {"first": g.normal(2, 40, g.d), "second": g.normal(2, 30, g.d), "bins": 8},
        ),
        (
            "pooled_parity",
            lambda g: (
                {"first": g.uniform(0, 1, 9, 4), "second": g.uniform(0, 1, 9, 4), "bins": 8}
                | {"n_resamples": 20}
            ),
        ),
        ("reverse_drift", lambda g: {"F": _line, "a": 0.5, "score": _line}),
        ("velocity", lambda g: {"F": _line, "a": 0.5, "score": _line}),
        ("sample_ode", lambda g: {"u": _line, "x0": g.X(), "t_span": (0.0, 1.0), "n_steps": 4}),
        (
            "sample_sde",
            lambda g: {
                "F": _line,
                "a": 0.5,
                "x0": g.X(),
                "t_span": (0.0, 1.0),
                "n_steps": 4,
                "rng": 0,
            },
        ),
        (
            "step_doubling",
            lambda g: {
                "F": _line,
                "a": 0.5,
                "x0": g.X(40),
                "n_steps": (2, 4),
                "n_blocks": 4,
                "rng": 0,
            },
        ),
        (
            "weak_error_slope",
            lambda g: {
                "h": np.array([0.1, 0.05, 0.02]),
                "errors": g.uniform(0.1, 0.5, 3),
                "n_resamples": 30,
                "method": "percentile",
            },
        ),
    ],
)
_RUN: Callable[[Draw], dict[str, Any]] = lambda g: {  # noqa: E731
    "logits": g.logits(9, 0.01),
    "tau": 1.0,
    "n_pairs": 4,
    "n_resamples": 10,
}
case("diagnostics.run", diagnostics.run, _RUN)
case(
    "diagnostics.Thresholds", diagnostics.Thresholds, lambda g: {"variation": 0.2, "rotation": 0.3}
)
cases_of(
    "diagnostics.rotation.",
    rotation,
    [
        ("on_grid", lambda g: {"u": g.double(5, 4, 2), "spacing": 0.2}),
        ("on_simplex", lambda g: {"u": lambda p: -p, "n": 4}),
        (
            "jacobian_asymmetry",
            lambda g: {
                "layer_map": lambda x: 0.9 * x + 0.1 * np.tanh(x),
                "X": g.normal(4, 3),
                "n_probes": 8,
            },
        ),
        ("path_energy", lambda g: {"X": g.normal(3, 40, 2), "n_resamples": 10}),
        (
            "rotational_energy",
            lambda g: {"X": g.normal(40, 2), "u": g.normal(40, 2), "n_resamples": 10, "gamma": 0.0},
        ),
        ("simplex_points", lambda g: {"n": 4, "states": 3}),
    ],
)
cases_of(
    "diagnostics.score.",
    score,
    [
        ("available", lambda g: {}),
        (
            "gaussian_score",
            lambda g: {"x": g.X(), "mean": g.normal(g.d), "cov": g.cov(), "sigma": 0.1},
        ),
        (
            "mixture_score",
            lambda g: {
                "x": g.X(),
                "weights": g.law(2),
                "means": g.normal(2, g.d),
                "covs": g.cov(2),
                "sigma": 0.1,
            },
        ),
    ],
)

# ---- schedule and simplex ------------------------------------------------------------------------

case(
    "schedule.EarlyExit",
    lambda z, **a: schedule.EarlyExit(**a).update(z),
    lambda g: {"tol": 1e-3, "n_layers": 4, "variation": 0.1, "tau": 1.0, "z": g.normal(g.m)},
)
case(
    "schedule.EntropySchedule",
    lambda z, **a: schedule.EntropySchedule(**a).update(z),
    lambda g: {"target": 1.0, "gain": 0.5, "smoothing": 0.5, "tau": 1.0, "z": g.normal(g.m)},
)
cases_of(
    "schedule.",
    schedule,
    [
        (
            "entropy_flow",
            lambda g: {
                "entropy_at": lambda tau, t: tau / (1 + tau),
                "target": 0.5,
                "t_span": (0.0, 0.5),
                "rate": 1.0,
            },
        ),
        ("motion_bound", lambda g: {"p": g.law(g.m), "remaining": 0.3, "tau": 1.0}),
        ("temperature_for_entropy", lambda g: {"z": g.normal(g.m + 1), "target": 0.5}),
    ],
)
case(
    "simplex.Mobility",
    lambda v, **a: simplex.Mobility(**a).apply(v),
    lambda g: {"p": g.law(g.m), "tau": 1.0, "v": g.normal(g.m)},
)
cases_of(
    "simplex.",
    simplex,
    [
        (
            "EffectiveMobility",
            lambda g: {"p": g.law(g.m), "W": g.normal(g.d, g.m), "a": 1.0, "tau": 1.0},
        ),
        ("entropy", lambda g: {"p": g.law(g.n, g.m)}),
        ("entropy_rate", lambda g: {"p": g.law(g.m), "b": g.normal(g.m), "tau": 1.0}),
        ("free_energy", lambda g: {"cost": g.normal(g.m), "reference": g.law(g.m), "tau": 1.0}),
        ("jko", lambda g: {"p0": g.law(g.m), "energy": g.normal(g.m), "tau": 1.0, "n_steps": 2}),
        ("kl_prox", lambda g: {"cost": g.normal(g.m), "reference": g.law(g.m), "tau": 1.0}),
        (
            "pf_ode",
            lambda g: {
                "p0": g.law(g.m),
                "drift": lambda p, t: -p,
                "t_span": (0.0, 0.5),
                "tau": 1.0,
                "rtol": 1e-4,
            },
        ),
        ("project_to_simplex", lambda g: {"y": g.normal(g.n, g.m)}),
        ("from_logits", lambda g: {"z": g.normal(g.n, g.m), "tau": 1.0}),
    ],
)
