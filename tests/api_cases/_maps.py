"""Cases of diffusion and magnetic maps and of measures."""

from __future__ import annotations

import numpy as np

import qkcore as qk
from qkcore import magnetic, measure

from ._base import case, cases_of

# ---- diffusion and magnetic maps -----------------------------------------------------------------

cases_of(
    "diffusion.",
    qk.diffusion,
    [
        ("operator", lambda g: {"X": g.X(), "beta": 0.5, "alpha": 0.5}),
        ("bistochastic", lambda g: {"X": g.X(), "beta": 0.5, "tol": 1e-3, "max_iter": 2000}),
        ("choose_beta", lambda g: {"X": g.X(), "rule": "median"}),
        ("diffusion_distance", lambda g: {"P": g.diffusion(), "i": 0, "j": 1, "t": 2}),
        ("laplacian", lambda g: {"P": g.diffusion(), "kind": "random_walk"}),
        ("symmetric_conjugate", lambda g: {"P": g.diffusion()}),
    ],
)
case(
    "diffusion.DiffusionMap",
    lambda X, new, **a: qk.diffusion.DiffusionMap(**a).fit(X).transform(new),
    lambda g: {
        "X": g.X(),
        "new": g.X(g.m),
        "n_components": 2,
        "beta": 0.5,
        "alpha": 0.5,
        "t": 1,
        "weights": g.uniform(0.5, 1.5, g.n),
        "neighbors": 6,
    },
)
case(
    "diffusion.Laplacian",
    lambda P, V: qk.diffusion.laplacian(P) @ V,
    lambda g: {"P": g.diffusion(), "V": g.normal(g.n, 2)},
)
cases_of(
    "magnetic.",
    magnetic,
    [
        ("operator", lambda g: {"X": g.X(), "beta": 0.5, "W": g.square(), "gamma": 1.0}),
        ("from_attention", lambda g: {"A": g.markov(), "P": g.diffusion(), "gamma": 1.0}),
        ("laplacian", lambda g: {"op": g.magnetic(), "kind": "combinatorial"}),
        ("log_flux", lambda g: {"A": g.markov(), "rho": g.law(g.n)}),
        ("phases", lambda g: {"X": g.X(), "W": g.square(), "gamma": 1.0}),
    ],
)
case(
    "magnetic.gauge_transform",
    magnetic.gauge_transform,
    lambda g: {"E": g.normal(g.n, g.n), "phi": g.normal(g.n), "weight": 1.0},
)
case(
    "magnetic.hadamard",
    lambda a, b: magnetic.hadamard(a, b),
    lambda g: {"a": g.magnetic(), "b": g.markov()},
)
case(
    "magnetic.MagneticMap",
    lambda X, new, **a: magnetic.MagneticMap(**a).fit(X).transform(new),
    lambda g: {
        "X": g.X(),
        "new": g.X(g.m),
        "n_components": 2,
        "beta": 0.5,
        "W": g.square(),
        "gamma": 1.0,
    },
)
case(
    "magnetic.MagneticOperator",
    lambda op, V, phi, rho: (op @ V, op.gauge(phi).to_numpy(), op.current(rho)),
    lambda g: {"op": g.magnetic(), "V": g.normal(g.n, 2), "phi": g.normal(g.n), "rho": g.law(g.n)},
    free="op",
)
case(
    "magnetic.MagneticLaplacian",
    lambda op, V: magnetic.laplacian(op).apply(V),
    lambda g: {"op": g.magnetic(), "V": g.normal(g.n, 2)},
)

# ---- measures ------------------------------------------------------------------------------------

cases_of(
    "measure.",
    measure,
    [
        ("Measure", lambda g: {"points": g.X(), "weights": g.law(g.n)}),
        ("Ball", lambda g: {"radius": 1.0, "centre": g.double(g.d)}),
        ("Box", lambda g: {"low": np.zeros(g.d), "high": np.ones(g.d)}),
        ("AttentionKernel", lambda g: {"potential": measure.DotPotential(0.5)}),
        ("AttentionJacobian", lambda g: {"kernel": g.kernel(), "X": g.X()}),
        ("DotPotential", lambda g: {"beta": 0.5, "W": g.square()}),
        ("GaussianPotential", lambda g: {"beta": 0.5}),
        ("FeedForward", lambda g: {"W1": g.normal(g.d, 4), "W2": g.normal(4, g.d)}),
        ("LinearLookup", lambda g: {"M": g.square(), "b": g.normal(g.d)}),
        ("TableLookup", lambda g: {"keys": g.X(), "values": g.X()}),
        (
            "TransformerKernel",
            lambda g: {
                "W_Q": g.normal(1, g.d, 2),
                "W_K": g.normal(1, g.d, 2),
                "W_V": g.normal(1, g.d, 2),
                "W_O": g.normal(1, 2, g.d),
                "beta": 0.5,
            },
        ),
        ("boltzmann_gibbs", lambda g: {"g": g.uniform(0.5, 2, g.n), "nu": g.X()}),
        (
            "contraction",
            lambda g: {
                "kernel": g.kernel(),
                "domain": g.box(),
                "samples": 20,
                "climbs": 2,
                "rng": 0,
            },
        ),
        ("fixed_point", lambda g: {"block": g.kernel(), "X0": g.X(), "tol": 1e-3, "max_iter": 200}),
        ("gaussian_lipschitz", lambda g: {"kernel": g.kernel(), "mu": g.X(), "nu": g.X()}),
        (
            "kl_divergence",
            lambda g: (lambda X: {"mu": measure.Measure(X, g.law(g.n)), "nu": measure.Measure(X)})(
                g.X()
            ),
        ),
        (
            "lipschitz",
            lambda g: {"kernel": g.kernel(), "X": g.X(), "queries": 4, "climbs": 2, "tol": 1e-2},
        ),
        (
            "maximum_entropy",
            lambda g: {
                "features": np.linspace(0, 1, 6)[:, None],
                "targets": np.array([0.4]),
                "tol": 1e-8,
            },
        ),
        ("moment_projection", lambda g: {"mu": g.X(), "family": "dirac"}),
        (
            "neighbourhood",
            lambda g: (
                lambda X: {
                    "kernel": g.kernel(),
                    "x": X[0],
                    "mu": X,
                    "mu_hat": X[: max(1, g.n - 1)],
                    "domain": g.box(),
                }
            )(g.X()),
        ),
        (
            "softmatch",
            lambda g: {"potential": measure.GaussianPotential(0.5), "X": g.X(), "nu": g.X(g.m)},
        ),
        (
            "softmatch_perturbation",
            lambda g: (lambda X, Y: {"x": X[0], "y": Y[0], "mu": X, "nu": Y, "beta": 0.5})(
                g.X(), g.X()
            ),
        ),
        ("tau_bound", lambda g: {"block": g.kernel(), "domain": g.box()}),
        ("w1", lambda g: {"mu": g.X(), "nu": g.X(g.m), "method": "auto"}),
        (
            "w1_bracket",
            lambda g: {"mu": g.X(), "nu": g.X(g.m), "rtol": 0.1, "max_rounds": 2, "rng": 0},
        ),
        ("LayerNorm", lambda g: {"scale": g.normal(g.d), "shift": g.normal(g.d), "eps": 1e-5}),
        ("GaussianFamily", lambda g: {"sigma": 0.5}),
        ("FunctionPotential", lambda g: {"G": lambda X, Y: X @ Y.T}),
        ("FunctionLookup", lambda g: {"function": lambda x: x, "lipschitz": 1.0}),
    ],
)
