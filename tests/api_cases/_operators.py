"""Cases of scores, operators, bridges and low-rank kernels."""

from __future__ import annotations

import numpy as np

import qkcore as qk
from qkcore.factors import solve_factored

from ._base import CASES, Call, Draw, case, cases_of

# ---- scores, operators, bridges ------------------------------------------------------------------

for _kind in ("dot", "forward", "backward", "distance"):
    case(
        f"scores.{_kind}",
        lambda _k=_kind, **a: getattr(qk.scores, _k)(**a).to_numpy(),
        lambda g: {"X": g.X(), "Y": g.X(g.m), "W": g.square(), "beta": 0.7},
    )
case(
    "scores.cosine",
    lambda **a: qk.scores.cosine(**a).to_numpy(),
    lambda g: {"X": g.X(), "Y": g.X(g.m), "beta": 0.7},
)
case(
    "scores.l1",
    lambda **a: qk.scores.l1(**a).to_numpy(),
    lambda g: {"X": g.X(), "Y": g.X(g.m), "W": g.uniform(0.1, 2.0, g.d), "beta": 0.7},
)
case("scores.dense", lambda Z: qk.scores.dense(Z).to_numpy(), lambda g: {"Z": g.normal(g.n, g.m)})
for _kind in ("forward", "backward", "gram", "squared_distance"):
    case(
        f"divergence.{_kind}",
        lambda _k=_kind, **a: getattr(qk.divergence, _k)(**a).to_numpy(),
        lambda g: {"X": g.X(), "Y": g.X(g.m), "W": g.square()},
    )
case(
    "divergence.qk_metric",
    lambda **a: qk.divergence.qk_metric(**a).to_numpy(),
    lambda g: {"Q": g.X(), "K": g.X(), "symmetrized": True},
    free="symmetrized",
)
case(
    "divergence.hermitian_partition", qk.divergence.hermitian_partition, lambda g: {"W": g.square()}
)

cases_of(
    "",
    qk,
    [
        ("softmax", lambda g: {"s": g.scores(), "axis": 1}),
        ("kernel", lambda g: {"s": g.scores(), "weight": "sigmoid"}),
        ("sinkhorn", lambda g: {"s": g.scores(True), "tol": 1e-3, "max_iter": 2000}),
        ("usable_entries", lambda g: {"s": g.scores(), "mu": g.law(g.n), "nu": g.law(g.m)}),
        (
            "semi_relaxed",
            lambda g: {"kernel": g.scores(), "mu": g.law(g.n), "reference": g.law(g.m)},
        ),
        (
            "bridge",
            lambda g: {
                "kernel": g.scores(),
                "mu": g.law(g.n),
                "nu": g.law(g.m),
                "tol": 1e-3,
                "max_iter": 2000,
                "solver": "auto",
            },
        ),
        (
            "bridge_chain",
            lambda g: {
                "kernels": [g.scores(True), g.scores(True)],
                "mu": g.law(g.n),
                "nu": g.law(g.n),
                "tol": 1e-3,
                "max_iter": 2000,
            },
        ),
        (
            "adaptive_ipf",
            lambda g: {
                "X": g.X(),
                "Y": g.X(g.m),
                "mu0": g.law(g.n),
                "mu1": g.law(g.m),
                "tol": 1e-3,
                "max_iter": 500,
                "epsilon": 1.0,
            },
        ),
        ("directional_experts", lambda g: {"X": g.X(), "W": g.square(), "beta": 0.5}),
        ("total_variation", lambda g: {"A": g.markov(), "B": g.markov()}),
        ("low_rank", lambda g: {"A": g.markov(), "rank": 2, "method": "dense"}),
        ("nystrom", lambda g: {"K": g.scores(True), "n_landmarks": 3, "rng": 1}),
        ("positive_features", lambda g: {"K": g.scores(True), "n_features": 6, "rng": 1}),
        ("LowRank", lambda g: {"left": g.normal(g.n, 2), "right": g.normal(2, g.m)}),
        (
            "sinkhorn_divergence",
            lambda g: {
                "X": g.X(),
                "Y": g.X(g.m),
                "weights": g.law(g.n),
                "weights_y": g.law(g.m),
                "epsilon": 1.0,
                "p": 2.0,
                "tol": 1e-3,
            },
        ),
        ("wasserstein", lambda g: {"X": g.X(), "Y": g.X(), "p": 2.0, "method": "auto"}),
        ("c_transform", lambda g: {"s": g.scores(), "g": g.normal(g.m), "axis": 1}),
        (
            "barycenter",
            lambda g: {
                "s": g.scores(True),
                "laws": g.keep(np.stack([g.law(g.n), g.law(g.n)])),
                "shares": g.keep(np.array([0.3, 0.7])),
                "debiased": False,
                "tol": 1e-2,
                "max_iter": 500,
            },
        ),
        (
            "free_barycenter",
            lambda g: {
                "clouds": [g.X(), g.X(g.m)],
                "start": g.X(),
                "shares": g.keep(np.array([0.3, 0.7])),
                "epsilon": 2.0,
                "tol": 1e-2,
                "max_iter": 300,
            },
        ),
        ("set_num_threads", lambda g: {"n": qk.get_num_threads()}),
        ("get_num_threads", lambda g: {}),
        ("config", lambda g: {}),
        ("show_config", lambda g: {}),
    ],
)


def _poe(g: Draw) -> Call:
    a, b = g.scores(), g.scores()
    return Call(
        lambda first, second: qk.poe(qk.softmax(first), qk.softmax(second)),
        {"first": a, "second": b},
    )


def _product(g: Draw) -> Call:
    (a, _, _), (b, _, _) = g.factors(), g.factors()
    return Call(lambda a, b: qk.ProductOfFactors(a, b), {"a": a, "b": b})


def _compression(g: Draw) -> Call:
    G, mu, nu = g.factors()
    exact = qk.bridge(qk.scores.dense(np.log(G.to_numpy())), mu, nu, tol=1e-4)
    return Call(
        qk.compression_errors,
        {"b": solve_factored(G, mu, nu, tol=1e-4), "exact": exact, "t": g.normal(g.m)},
    )


def _operator(g: Draw) -> Call:
    A = g.markov()
    return Call(
        lambda V, U, h, rho: (A @ V, U @ A, A.doob(h).to_numpy(), A.currents(rho), A.T.to_numpy()),
        {
            "V": g.normal(g.n, 3),
            "U": g.normal(2, g.n),
            "h": g.uniform(0.5, 2, g.n),
            "rho": g.law(g.n),
        },
    )


def _scores_methods(g: Draw) -> Call:
    s = g.scores()
    return Call(
        lambda axis, offset, rows=None, columns=None, f=None, g=None: (
            s.shift(rows, columns).logsumexp(axis),
            s.marginals(f, g),
            qk.softmax(s.causal(offset)).to_numpy(),
        ),
        {
            "rows": g.normal(g.n),
            "columns": g.normal(g.m),
            "f": g.normal(g.n),
            "g": g.normal(g.m),
            "axis": 0,
            "offset": 1,
        },
    )


CASES["poe"] = _poe
CASES["ProductOfFactors"] = _product
CASES["compression_errors"] = _compression
CASES["MarkovOperator"] = _operator
CASES["Scores"] = _scores_methods
case(
    "OperatorSum",
    lambda parts, V: qk.OperatorSum(parts) @ V,
    lambda g: {"parts": ((0.5, g.markov()), (-2.0, g.markov())), "V": g.normal(g.n, 2)},
    "parts",
)
case(
    "KernelOperator",
    lambda s, V, U: ((K := qk.kernel(s)) @ V, U @ K),
    lambda g: {"s": g.scores(), "V": g.normal(g.m, 2), "U": g.normal(2, g.n)},
)
case(
    "Composition", lambda A, V: (A @ A) @ V, lambda g: {"A": g.markov(), "V": g.normal(g.n, 2)}, "A"
)
case(
    "divergence.Divergence",
    lambda X, beta: qk.divergence.forward(X).scores(beta).to_numpy(),
    lambda g: {"X": g.X(), "beta": 0.5},
)
case(
    "divergence.HermitianPartition",
    lambda W, X: qk.divergence.hermitian_partition(W).phases(X).to_numpy(),
    lambda g: {"W": g.square(), "X": g.X()},
)
