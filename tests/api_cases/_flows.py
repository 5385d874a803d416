"""Cases of particles, Gaussian laws and iterated bridges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import qkcore as qk
from qkcore import gaussian, isb, observables

from ._base import Draw, case, cases_of

# ---- particles -----------------------------------------------------------------------------------

case(
    "AttentionField",
    lambda X, **a: qk.AttentionField(**a)(X),
    lambda g: {
        "kind": "softmax",
        "Q": g.double(g.d, g.d),
        "K": g.double(g.d, g.d),
        "V": g.double(g.d, g.d),
        "epsilon": 1.0,
        "X": g.X(),
    },
)
case(
    "flow",
    qk.flow,
    lambda g: {
        "field": g.field(),
        "X0": g.X(),
        "t_span": (0.0, 0.5),
        "method": "rk4",
        "n_steps": 5,
    },
)
cases_of(
    "observables.",
    observables,
    [
        ("angles", lambda g: {"X": g.X(), "tolerance": 0.9}),
        ("clusters", lambda g: {"X": g.X(), "threshold": 0.5}),
        (
            "conditional_wasserstein",
            lambda g: {
                "X": g.X(),
                "Y": g.X(),
                "positions": g.keep(np.linspace(0, 1, g.n)),
                "p": 2.0,
            },
        ),
        ("field_lipschitz_bound", lambda g: {"field": g.field(), "R": 2.0, "t": 0.0}),
        ("interaction_energy", lambda g: {"X": g.X(), "A": g.double(g.d, g.d, scale=0.2)}),
        ("radius", lambda g: {"x": g.X()}),
        ("radius_bound", lambda g: {"field": g.field(), "R0": 1.0, "t": 0.5, "t0": 0.0}),
        (
            "sinkhorn_energy",
            lambda g: {"X": g.X(), "field": g.field("sinkhorn"), "weights": g.law(g.n)},
        ),
        (
            "stability",
            lambda g: {
                "field": g.field(),
                "X0": g.X(),
                "t": g.keep([0.25, 0.5]),
                "n_trials": 2,
                "rng": 0,
            },
        ),
    ],
)
case(
    "observables.mean_field_convergence",
    observables.mean_field_convergence,
    lambda g: {
        "field": g.field(),
        "sample": lambda n, rng: rng.normal(size=(n, 2)) if g.d == 2 else rng.normal(size=(n, g.d)),
        "n": [3, 5],
        "t": 0.2,
        "n_reference": 8,
        "n_trials": 2,
    },
)

# ---- Gaussian laws -------------------------------------------------------------------------------


def _qkv(g: Draw) -> dict[str, Any]:
    return {"Q": g.square(0.3), "K": g.square(0.3), "V": g.square(0.3)}


def _diagonal(g: Draw) -> dict[str, Any]:
    e = np.eye(g.d)
    return {
        "cov": g.keep(g.rng.uniform(0.5, 1, g.d) * e),
        "A": g.keep(-g.rng.uniform(0.5, 1, g.d) * e),
        "V": g.keep(g.rng.uniform(0.5, 1, g.d) * e),
    }


cases_of(
    "gaussian.",
    gaussian,
    [
        ("bures", lambda g: {"cov_x": g.cov(), "cov_y": g.cov()}),
        ("bures_rate", lambda g: {"cov": g.cov(), "gradient": g.symmetric()}),
        ("commuting", _diagonal),
        ("entropic_bures", lambda g: {"cov_x": g.cov(), "cov_y": g.cov(), "epsilon": 0.5}),
        (
            "entropic_ot",
            lambda g: {
                "mean_x": g.normal(g.d),
                "cov_x": g.cov(),
                "mean_y": g.normal(g.d),
                "cov_y": g.cov(),
                "epsilon": 0.5,
            },
        ),
        (
            "flow",
            lambda g: {
                "kind": "l2",
                "mean": g.normal(g.d),
                "cov": g.cov(),
                "t_span": (0.0, 0.3),
                **_qkv(g),
                "n_steps": 6,
                "method": "rk4",
                "epsilon": 1.0,
            },
        ),
        (
            "velocity",
            lambda g: {
                "kind": "softmax",
                "mean": g.normal(g.d),
                "cov": g.cov(),
                **_qkv(g),
                "epsilon": 1.0,
            },
        ),
        ("l2_line", lambda g: {"s0": 1.0, "q": 0.5, "k": 1.0, "v": -1.0, "t": g.uniform(0, 2, 4)}),
        ("sinkhorn_line", lambda g: {"s0": 1.0, "a": 1.0, "v": -1.0, "t": g.uniform(0, 2, 4)}),
        ("softmax_line", lambda g: {"s0": 1.0, "a": -1.0, "v": 1.0, "t": g.uniform(0, 2, 4)}),
        ("softmax_blow_up_line", lambda g: {"s0": 1.0, "a": 1.0, "v": g.uniform(0.5, 2, 4)}),
        (
            "rank_one",
            lambda g: {
                "u0": g.double(g.d),
                "A": g.keep(-np.eye(g.d)),
                "V": g.keep(np.eye(g.d)),
                "t": np.array([0.0, 0.5]),
            },
        ),
        (
            "sinkhorn_energy",
            lambda g: {"mean": g.normal(g.d), "cov": g.cov(), "Q": g.square(), "K": g.square()},
        ),
        ("sinkhorn_gradient", lambda g: {"cov": g.cov(), "Q": g.square(), "K": g.square()}),
        ("stationarity", _diagonal),
        ("stationary_rank_bound", lambda g: {"A": g.symmetric(), "tol": 1e-6}),
        (
            "twisted_energy",
            lambda g: {"mean": g.normal(g.d), "cov": g.cov(), "A": g.symmetric(0.03)},
        ),
    ],
)

# ---- iterated Schrödinger bridges ----------------------------------------------------------------

_STEP: Callable[[Draw], dict[str, Any]] = lambda g: {"X": g.X(), "epsilon": 0.5, "tol": 1e-3}  # noqa: E731
cases_of(
    "isb.",
    isb,
    [
        ("auto_theta", lambda g: {"log_density": g.double(g.n), "log_ratio": g.double(g.n)}),
        ("barycentric", lambda g: {**_STEP(g), "weights": g.law(g.n), "max_iter": 500}),
        ("euler_step", lambda g: {"X": g.X(), "epsilon": 0.1, "velocity": g.X()}),
        (
            "fit_rate",
            lambda g: {"epsilons": g.uniform(0.1, 0.5, 4), "errors": g.uniform(0.1, 0.5, 4)},
        ),
        ("gaussian_entropy_gap", lambda g: {"variance": 1.0, "epsilon": 0.3}),
        ("gaussian_slope", lambda g: {"variance": 1.0, "epsilon": 0.3}),
        ("gaussian_variances", lambda g: {"variance": 1.0, "epsilon": 0.3, "n_steps": 4}),
        (
            "gaussian_w2",
            lambda g: {
                "mean_x": g.normal(g.d),
                "cov_x": g.cov(),
                "mean_y": g.normal(g.d),
                "cov_y": g.cov(),
            },
        ),
        ("heat_flow", lambda g: {**_STEP(g), "n_steps": 2, "weights": g.law(g.n)}),
        ("kde_log_density", lambda g: {"X": g.X(), "bandwidth": 0.7, "weights": g.law(g.n)}),
        ("kl_flow", lambda g: {**_STEP(g), "n_steps": 2, "score": lambda x: -x, "method": "split"}),
        ("ornstein_uhlenbeck", lambda g: {**_STEP(g), "n_steps": 2, "variance": 1.0, "mean": 0.0}),
        ("silverman", lambda g: {"X": g.X(), "weights": g.law(g.n)}),
        ("step", lambda g: {**_STEP(g), "theta": -1.0, "weights": g.law(g.n)}),
        ("steps_for", lambda g: {"T": 1.0, "epsilon": 0.3}),
        (
            "surrogate_weights",
            lambda g: {"psi": g.normal(g.n), "theta": 1.0, "log_density": g.normal(g.n)},
        ),
        (
            "Mixture",
            lambda g: {"weights": [0.5, 0.5], "means": [-1.0, 1.0], "variances": [1.0, 2.0]},
        ),
        (
            "one_step_rate",
            lambda g: {"law": isb.Mixture.gaussian(0.0, 1.0), "epsilons": [0.1, 0.2], "n": 60},
        ),
        (
            "uniform_rate",
            lambda g: {
                "law": isb.Mixture.gaussian(0.0, 1.0),
                "epsilons": [0.1, 0.2],
                "T": 0.2,
                "n": 60,
            },
        ),
    ],
)
