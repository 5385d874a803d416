"""10000 Gaussian laws in five dimensions against NumPy's loop, batched NumPy and JAX; few in 32 to 300."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness import Array, Call, Group, Options, Row, Timing, interleave, max_error
from peers import optional
from qkcore.gaussian import flow

D = 5
SPAN = 10.0
STEPS = 1000
LAWS = 10000
WANTED = 50.0  # times faster than the loop in the style of the paper's authors
BOUND = {"float64": 1e-10, "float32": 2e-4}
# The smaller problems on which slow contenders are timed; their time is multiplied accordingly.
LOOP_LAWS = 1
BATCH_STEPS = 20
CHECKED = 8  # number of laws whose final covariances are compared
EPSILON = 1.0
HEADS = 4  # heads in many dimensions, each with its own V

Rates = Callable[[Array, Array], tuple[Array, Array]]


def inputs(n: int, dtype: str = "float64") -> dict[str, Array]:
    """Covariances of order 1 that contract (A symmetric and negative, V near the identity)."""
    rng = np.random.default_rng(0)
    Q = 0.3 * rng.normal(size=(D, D))
    V = np.eye(D) + 0.1 * rng.normal(size=(D, D))
    mean, X = rng.normal(size=(LAWS, D))[:n], rng.normal(size=(LAWS, D, D))[:n]
    cov = X @ X.swapaxes(1, 2) / D + 0.01 * np.eye(D)
    found = {"mean": mean, "cov": cov, "Q": Q, "K": -Q, "V": V}
    return {name: value.astype(dtype) for name, value in found.items()}


def ours(options: Options, kind: str, n: int, dtype: str) -> Call:
    p = inputs(n, dtype)
    heads = 5 if kind == "multi-head" else 1
    name = "softmax" if kind == "multi-head" else kind
    p["V"] = np.repeat(p["V"][None], heads, axis=0) if heads > 1 else p["V"]

    def call() -> Array:
        out: Array = flow(
            name,
            p["mean"],
            p["cov"],
            (0, SPAN),
            Q=p["Q"],
            K=p["K"],
            V=p["V"],
            epsilon=EPSILON,
            heads=heads,
            n_steps=STEPS,
            store="final",
            n_threads=options.threads,
        ).cov[-1]
        return out

    return call


def loop_rates(kind: str, p: dict[str, Array]) -> Rates:
    """The paper's formulas for one law, with explicit inverses as in the paper."""
    Q, K, V = p["Q"], p["K"], p["V"]
    A, I = K.T @ Q, np.eye(D)
    inv = np.linalg.inv

    def softmax(m: Array, S: Array) -> tuple[Array, Array]:
        return V @ (I + S @ A) @ m, V @ S @ A @ S + S @ A.T @ S @ V.T

    def linear(m: Array, S: Array) -> tuple[Array, Array]:
        M = V @ (S + np.outer(m, m)) @ A
        return M @ m, M @ S + S @ M.T

    def multi_head(m: Array, S: Array) -> tuple[Array, Array]:
        dm, dS = np.zeros(D), np.zeros((D, D))
        for h in range(D):
            Ah = np.outer(K[h], Q[h])
            dm = dm + V @ (I + S @ Ah) @ m
            dS = dS + V @ S @ Ah @ S + S @ Ah.T @ S @ V.T
        return dm, dS

    def l2(m: Array, S: Array) -> tuple[Array, Array]:
        inverse = inv(S)
        B = V @ inv(inverse + 2 * K.T @ K)
        W = 2 * B @ A @ S
        return B @ (inverse + 2 * A) @ m, W + W.T

    def sinkhorn(m: Array, S: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(S)
        half = (vectors * np.sqrt(values)) @ vectors.T
        values, vectors = np.linalg.eigh(half @ A.T @ S @ A @ half + EPSILON**2 / 4 * I)
        middle = (vectors * np.sqrt(values)) @ vectors.T
        C = half @ middle @ inv(half) - EPSILON / 2 * I
        W = V @ inv(A.T) @ inv(S) @ C @ S / EPSILON
        return V @ m / EPSILON, W + W.T

    return {
        "softmax": softmax,
        "linear": linear,
        "multi-head": multi_head,
        "l2": l2,
        "sinkhorn": sinkhorn,
    }[kind]


def numpy_loop(kind: str, n: int) -> Call:
    """A loop over laws and steps."""
    p = inputs(n)
    rates = loop_rates(kind, p)
    h = SPAN / STEPS

    def call() -> Array:
        out = np.empty((n, D, D))
        for i in range(n):
            m, S = p["mean"][i], p["cov"][i]
            for _ in range(STEPS):
                dm, dS = rates(m, S)
                m, S = m + h * dm, S + h * dS
            out[i] = S
        return out

    return call


def batched_rates(kind: str, p: dict[str, Any], np_: Any) -> Rates:
    """The same for all laws at once with NumPy or jax.numpy, and with solves instead of inverses."""
    Q, K, V = p["Q"], p["K"], p["V"]
    A, I = K.T @ Q, np_.eye(Q.shape[-1])

    def affine(M: Array, b: Array, m: Array, S: Array) -> tuple[Array, Array]:
        W = M @ S
        return b + (M @ m[..., None])[..., 0], W + np_.swapaxes(W, -1, -2)

    def softmax(m: Array, S: Array) -> tuple[Array, Array]:
        return affine(V @ S @ A, m @ V.T, m, S)

    def linear(m: Array, S: Array) -> tuple[Array, Array]:
        return affine(V @ (S + m[..., None] * m[..., None, :]) @ A, 0 * m, m, S)

    def multi_head(m: Array, S: Array) -> tuple[Array, Array]:
        # All heads have the same V, so their A are added.
        return affine(V @ S @ A, D * (m @ V.T), m, S)

    def l2(m: Array, S: Array) -> tuple[Array, Array]:
        KS = K @ S
        B = np_.swapaxes(np_.linalg.solve(I + 2 * KS @ K.T, KS), -1, -2)
        b = m - 2 * (B @ (m @ K.T)[..., None])[..., 0]
        return affine(2 * V @ B @ Q, b @ V.T, m, S)

    def sinkhorn(m: Array, S: Array) -> tuple[Array, Array]:
        values, vectors = np_.linalg.eigh(S)
        L = vectors * np_.sqrt(np_.maximum(values, 0))[..., None, :]
        T = np_.swapaxes(L, -1, -2) @ A @ L / EPSILON
        values, U = np_.linalg.eigh(T @ np_.swapaxes(T, -1, -2))
        Z = L @ U
        ratio = 2 / (1 + np_.sqrt(1 + 4 * np_.maximum(values, 0)))
        N = (Z * ratio[..., None, :]) @ np_.swapaxes(Z, -1, -2) @ A / EPSILON
        W = V @ N @ S / EPSILON
        return m @ V.T / EPSILON, W + np_.swapaxes(W, -1, -2)

    return {
        "softmax": softmax,
        "linear": linear,
        "multi-head": multi_head,
        "l2": l2,
        "sinkhorn": sinkhorn,
    }[kind]


def numpy_batched(kind: str, n: int, steps: int) -> Call:
    """NumPy on blocks of laws that stay in cache."""
    p = inputs(n)
    rates = batched_rates(kind, p, np)
    h, block = SPAN / STEPS, 500

    def call() -> Array:
        out = np.empty((n, D, D))
        for start in range(0, n, block):
            m, S = p["mean"][start : start + block], p["cov"][start : start + block]
            for _ in range(steps):
                dm, dS = rates(m, S)
                m, S = m + h * dm, S + h * dS
            out[start : start + block] = S
        return out

    return call


def jax_batched(jax: Any, kind: str, n: int, steps: int) -> Call:
    """JAX with batch axes for the laws and a compiled scan over the steps."""
    jax.config.update("jax_enable_x64", True)
    p = {name: jax.numpy.asarray(value) for name, value in inputs(n).items()}
    rates = batched_rates(kind, p, jax.numpy)
    h = SPAN / STEPS

    def step(state: Any, _: Any) -> Any:
        m, S = state
        dm, dS = rates(m, S)
        return (m + h * dm, S + h * dS), None

    run = jax.jit(lambda m, S: jax.lax.scan(step, (m, S), None, length=steps)[0][1])
    return lambda: jax.block_until_ready(run(p["mean"], p["cov"]))


def scaled(timing: Timing, factor: float) -> Timing:
    return Timing(tuple(factor * x for x in timing.samples))


def run_case(group: Group, options: Options, kind: str, n: int) -> None:
    jax = optional("jax", group)
    exact = np.asarray(numpy_batched(kind, CHECKED, STEPS)())
    calls: dict[str, Call] = {
        "qkcore": ours(options, kind, n, "float64"),
        "qkcore, float32": ours(options, kind, n, "float32"),
        "NumPy loop": numpy_loop(kind, LOOP_LAWS),
        "NumPy batched": numpy_batched(kind, n, BATCH_STEPS),
    }
    factors = {"NumPy loop": n / LOOP_LAWS, "NumPy batched": STEPS / BATCH_STEPS}
    errors = {
        name: max_error(np.asarray(calls[name]())[:CHECKED], exact)
        for name in ("qkcore", "qkcore, float32")
    }
    errors["NumPy loop"] = max_error(calls["NumPy loop"](), exact[:LOOP_LAWS])
    if jax is not None:
        errors["JAX"] = max_error(jax_batched(jax, kind, CHECKED, STEPS)(), exact)
        calls["JAX"] = jax_batched(jax, kind, n, BATCH_STEPS)
        factors["JAX"] = STEPS / BATCH_STEPS
    timings = interleave(calls, rounds=5, budget=4 if options.quick else 20)
    timings = {name: scaled(t, factors.get(name, 1.0)) for name, t in timings.items()}
    case = f"{kind}, {n} laws, d={D}, {STEPS} steps"
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors.get(name)))
    group.check(f"Gaussian flow {kind}", errors["qkcore"], BOUND["float64"])
    group.check(f"Gaussian flow {kind}, float32", errors["qkcore, float32"], BOUND["float32"])
    group.at_least(
        f"{kind}: speed against the NumPy loop", timings["NumPy loop"].minimum / mine, WANTED
    )


def many_inputs(d: int, n: int) -> dict[str, Array]:
    """Like ``inputs``, but scaled so that products stay of order 1, and with a V for each of HEADS heads."""
    rng = np.random.default_rng(d)
    Q = 0.7 * rng.normal(size=(d, d)) / np.sqrt(d)
    V = np.eye(d) + 0.2 * rng.normal(size=(HEADS, d, d)) / np.sqrt(d)
    X = rng.normal(size=(n, d, d))
    cov = X @ X.swapaxes(1, 2) / d + 0.01 * np.eye(d)
    return {"mean": rng.normal(size=(n, d)), "cov": cov, "Q": Q, "K": -Q, "V": V}


def many_rates(kind: str, p: dict[str, Array]) -> Rates:
    if kind != "multi-head":
        return batched_rates(kind, p | {"V": p["V"][0]}, np)
    d, V = p["cov"].shape[-1], p["V"]
    rows = np.arange(d).reshape(HEADS, -1)
    A = np.stack([p["K"][r].T @ p["Q"][r] for r in rows])

    def rates(m: Array, S: Array) -> tuple[Array, Array]:
        W = (V @ (S[:, None] @ A)).sum(axis=1)
        M = W @ S
        return m @ V.sum(axis=0).T + (W @ m[..., None])[..., 0], M + M.swapaxes(1, 2)

    return rates


def run_many(group: Group, options: Options, kind: str, d: int, n: int) -> None:
    """Few laws in many dimensions, where nearly all time goes into products of matrices."""
    p = many_inputs(d, n)
    steps, h = max(20, 48000 // d // n), 5e-4
    rates = many_rates(kind, p)
    heads = HEADS if kind == "multi-head" else 1

    def mine() -> Array:
        name = "softmax" if heads > 1 else kind
        out: Array = flow(
            name,
            p["mean"],
            p["cov"],
            (0, steps * h),
            Q=p["Q"],
            K=p["K"],
            V=p["V"] if heads > 1 else p["V"][0],
            heads=heads,
            n_steps=steps,
            store="final",
            n_threads=options.threads,
        ).cov[-1]
        return out

    def theirs() -> Array:
        m, S = p["mean"], p["cov"]
        for _ in range(steps):
            dm, dS = rates(m, S)
            m, S = m + h * dm, S + h * dS
        return S

    error = max_error(mine(), theirs())
    timings = interleave({"qkcore": mine, "NumPy batched": theirs}, rounds=5, budget=3)
    case = f"{kind}, {n} {'law' if n == 1 else 'laws'}, d={d}, {steps} steps"
    for name, timing in timings.items():
        ratio = timing.minimum / timings["qkcore"].minimum
        group.add(Row(case, name, timing, None, ratio, error if name == "qkcore" else None))
    group.check(f"Gaussian flow {kind}, d={d}, {n} laws", error, BOUND["float64"])


def run(options: Options) -> Group:
    group = Group(
        "gaussian",
        "Gaussian flows",
        f"Mean and covariance of laws in {D} dimensions for {STEPS} Euler steps, one field for all. The "
        f"NumPy loop (one law at a time, the paper's formulas) is timed on {LOOP_LAWS} law and multiplied; "
        f"batched NumPy and JAX (vmap, compiled scan) on {BATCH_STEPS} steps of all laws and multiplied. "
        "Single laws and eight in 32 to 300 dimensions are timed with all of their steps and the judgement. "
        f"Errors: final covariances of {CHECKED} laws against batched NumPy in float64, relative to the "
        "largest entry.",
    )
    for kind in ("softmax", "multi-head", "l2", "sinkhorn", "linear"):
        run_case(group, options, kind, 1000 if options.quick else LAWS)
        for d in (32, 100) if options.quick else (32, 64, 100, 200, 300):
            for n in (1, 8):
                run_many(group, options, kind, d, n)
    return group
