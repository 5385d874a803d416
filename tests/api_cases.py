"""One valid call of every public function and class, drawn at random (tests/test_api_properties.py).

A case is a function of a `Draw` that gives a `Call`: the function, and its arguments by name. Arguments
are drawn from wide but well-conditioned families, so that a call has no excuse to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkcore as qk
from qkcore import diagnostics, gaussian, isb, magnetic, measure, observables, schedule, simplex
from qkcore.diagnostics import curvature, depth, drift, duality, rotation, score
from qkcore.low_rank import solve_factored

from .reference import Array


@dataclass
class Call:
    function: Callable[..., Any]
    arguments: dict[str, Any]
    positional: tuple[Any, ...] = ()  # for *arguments
    # Arguments whose wrong values are checked later (functions) or have a meaning of their own.
    free: frozenset[str] = frozenset()

    def __call__(self, **changes: Any) -> Any:
        return self.function(*self.positional, **{**self.arguments, **changes})


@dataclass
class Draw:
    """Sizes, a dtype and a stream of numbers; every array is read-only."""

    seed: int = 0
    n: int = 7
    m: int = 5
    d: int = 2
    dtype: str = "float64"
    arrays: list[tuple[Array, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, self.n, self.m, self.d])

    def keep(self, a: Any) -> Array:
        """`a` read-only, its bytes remembered."""
        out = np.array(a, dtype=self.dtype)
        out.flags.writeable = False
        self.arrays.append((out, out.tobytes()))
        return out

    def unchanged(self) -> None:
        for array, before in self.arrays:
            assert array.tobytes() == before, f"an input of shape {array.shape} was written to"

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return self.keep(scale * np.clip(self.rng.normal(size=shape), -3, 3))

    def double(self, *shape: int, scale: float = 1.0) -> Array:
        """Where only double precision is meant."""
        kept, self.dtype = self.dtype, "float64"
        out = self.normal(*shape, scale=scale)
        self.dtype = kept
        return out

    def X(self, n: int | None = None) -> Array:
        return self.normal(n or self.n, self.d)

    def law(self, *shape: int) -> Array:
        w = self.rng.uniform(0.5, 1.5, shape).astype(self.dtype).astype(np.float64)
        return self.keep(w / w.sum(axis=-1, keepdims=True))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return self.keep(self.rng.uniform(low, high, shape))

    def square(self, scale: float = 0.5) -> Array:
        return self.normal(self.d, self.d, scale=scale)

    def symmetric(self, scale: float = 0.5) -> Array:
        a = self.rng.normal(size=(self.d, self.d)) * scale
        return self.keep(np.float32(a + a.T).astype(np.float64) / 2)

    def cov(self, *lead: int) -> Array:
        a = self.rng.normal(size=(*lead, self.d, self.d)).astype(np.float32).astype(np.float64)
        c = a @ a.swapaxes(-1, -2) / self.d + 0.2 * np.eye(self.d)
        return self.keep((c + c.swapaxes(-1, -2)) / 2)

    def scores(self, square: bool = False) -> qk.Scores:
        Y = None if square else self.X(self.m)
        return qk.scores.distance(self.X(), Y, beta=0.5)

    def markov(self) -> qk.MarkovOperator:
        return qk.softmax(qk.scores.forward(self.X(), W=self.square(), beta=0.3))

    def diffusion(self) -> qk.MarkovOperator:
        return qk.diffusion.operator(self.X(), beta=0.5)

    def magnetic(self) -> Any:
        return magnetic.operator(self.X(), beta=0.5, W=self.square())

    def field(self, kind: str = "softmax") -> qk.AttentionField:
        Q, K, V = (self.double(self.d, self.d, scale=0.3) for _ in range(3))
        return qk.AttentionField(kind, Q=Q, K=K, V=V)

    def logits(self, layers: int = 9, step: float = 0.1) -> Array:
        base = self.rng.normal(size=(1, self.n, self.m + 1))
        moves = step * self.rng.normal(size=(layers, self.n, self.m + 1))
        return self.keep(base + np.cumsum(moves, axis=0))

    def kernel(self) -> measure.AttentionKernel:
        return measure.AttentionKernel(measure.GaussianPotential(0.5))

    def box(self) -> measure.Box:
        return measure.Box(np.full(self.d, -4.0), np.full(self.d, 4.0))

    def factors(self) -> tuple[qk.LowRank, Array, Array]:
        """Positive factors and the marginals of a bridge over them."""
        G = qk.LowRank(self.uniform(0.2, 1, self.n, 2), self.uniform(0.2, 1, 2, self.m))
        return G, self.law(self.n), self.law(self.m)


CASES: dict[str, Callable[[Draw], Call]] = {}


def case(
    name: str, function: Callable[..., Any], draw: Callable[[Draw], dict[str, Any]], free: str = ""
) -> None:
    assert name not in CASES, name
    CASES[name] = lambda g: Call(function, draw(g), free=frozenset(free.split()))


def cases_of(
    prefix: str, module: Any, table: Iterable[tuple[str, Callable[[Draw], dict[str, Any]]]]
) -> None:
    for name, draw in table:
        case(f"{prefix}{name}", getattr(module, name), draw)


# ---- scores, operators, bridges ------------------------------------------------------------------

for _kind in ("dot", "forward", "backward", "distance"):
    case(
        f"scores.{_kind}",
        lambda _k=_kind, **a: getattr(qk.scores, _k)(**a).to_numpy(),
        lambda g: {"X": g.X(), "Y": g.X(g.m), "W": g.square(), "beta": 0.7},
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
        ("nystrom", lambda g: {"K": g.scores(True), "n_landmarks": 3, "seed": 1}),
        ("positive_features", lambda g: {"K": g.scores(True), "n_features": 6, "seed": 1}),
        ("LowRank", lambda g: {"left": g.normal(g.n, 2), "right": g.normal(2, g.m)}),
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
                "positions_x": g.keep(np.linspace(0, 1, g.n)),
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
        ("wasserstein", lambda g: {"X": g.X(), "Y": g.X(), "p": 2.0, "method": "auto"}),
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
                "mean0": g.normal(g.d),
                "cov0": g.cov(),
                "mean1": g.normal(g.d),
                "cov1": g.cov(),
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
    lambda g: {"X": g.X(), "new": g.X(g.m), "n_components": 2, "beta": 0.5, "alpha": 0.5, "t": 1},
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
                "temperature": 1.0,
            },
        ),
        ("locking", lambda g: {"logits": g.logits(), "temperature": 1.0, "bins": 4}),
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
                "seed": 0,
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
                "seed": 0,
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
    "temperature": 1.0,
    "n_pairs": 4,
    "n_resamples": 10,
}
case("diagnostics.run", diagnostics.run, _RUN)
case("diagnostics.report.run", diagnostics.report.run, _RUN)
case(
    "diagnostics.report.Thresholds",
    diagnostics.Thresholds,
    lambda g: {"variation": 0.2, "adequacy": 0.3},
)
case(
    "diagnostics.Thresholds", diagnostics.Thresholds, lambda g: {"variation": 0.2, "rotation": 0.3}
)
cases_of(
    "diagnostics.rotation.",
    rotation,
    [
        ("on_grid", lambda g: {"u": g.double(5, 4, 2), "spacing": 0.2}),
        ("on_simplex", lambda g: {"u": lambda p: -p, "n": 4}),
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
        ("semi_relaxed", lambda g: {"kernel": g.scores(), "mu": g.law(g.n)}),
        ("softmax", lambda g: {"z": g.normal(g.n, g.m), "tau": 1.0}),
    ],
)
