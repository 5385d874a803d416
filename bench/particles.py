"""100 RK4 steps of softmax particles against NumPy, PyTorch's fused attention, a JAX scan and diffrax."""

from __future__ import annotations

from typing import Any

import numpy as np

import qkcore as qk
from harness import (
    Array,
    Call,
    Group,
    Options,
    Row,
    Timing,
    best_of,
    interleave,
    max_error,
    peak_growth_mb,
)
from limits import Floor
from peers import optional, torch_module

STEPS = 100
SPAN = (0.0, 1.0)
BOUND = {"float32": 2e-5, "float64": 1e-12}
PEERS_WANTED, NUMPY_WANTED, LARGE_WANTED = 2.5, 8.0, 4.0
LARGE_MEMORY_MB = 60.0
PEERS = ("torch SDPA", "JAX scan", "diffrax")


def inputs(n: int, d: int, dtype: str) -> tuple[Array, Array, Array, Array]:
    """Particles, and Q, K and V with which they move by about the size of their cloud."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    Q, K = rng.standard_normal((2, d, d)) / d**0.75
    V = rng.standard_normal((d, d)) / d**0.5
    X, Q, K, V = (a.astype(dtype) for a in (X, Q, K, V))
    return X, Q, K, V


def rk4(velocity: Any, x: Any, n_steps: int, h: float) -> Any:
    for _ in range(n_steps):
        k1 = velocity(x)
        k2 = velocity(x + h / 2 * k1)
        k3 = velocity(x + h / 2 * k2)
        k4 = velocity(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def ours(options: Options, n: int, d: int, dtype: str, steps: int = STEPS) -> Call:
    X, Q, K, V = inputs(n, d, dtype)
    field = qk.AttentionField("softmax", Q=Q, K=K, V=V)
    end = SPAN[1] * steps / STEPS
    return lambda: qk.flow(
        field, X, (0.0, end), "rk4", n_steps=steps, t_eval=[end], n_threads=options.threads
    ).x[-1]


def numpy_loop(options: Options, n: int, d: int, dtype: str, steps: int = STEPS) -> Call:
    X, Q, K, V = inputs(n, d, dtype)
    scores = np.empty((n, n), dtype)

    def velocity(x: Array) -> Array:
        np.matmul(x @ Q.T, (x @ K.T).T, out=scores)
        np.subtract(scores, scores.max(axis=1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        mean: Array = scores @ x
        mean /= scores.sum(axis=1, keepdims=True)
        return mean @ V.T

    h = X.dtype.type(SPAN[1] / STEPS)
    return lambda: rk4(velocity, X, steps, h)


def torch_sdpa(options: Options, n: int, d: int, dtype: str, steps: int = STEPS) -> Call:
    torch: Any = torch_module(options)
    X, Q, K, V = (torch.from_numpy(a) for a in inputs(n, d, dtype))
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def velocity(x: Any) -> Any:
        mean = sdpa((x @ Q.T)[None, None], (x @ K.T)[None, None], x[None, None], scale=1.0)
        return mean[0, 0] @ V.T

    return lambda: rk4(velocity, X, steps, SPAN[1] / STEPS).numpy()


def jax_scan(options: Options, n: int, d: int, dtype: str, steps: int = STEPS) -> Call:
    import jax

    jax.config.update("jax_enable_x64", True)
    X, Q, K, V = (jax.numpy.asarray(a) for a in inputs(n, d, dtype))
    h = SPAN[1] / STEPS

    def velocity(x: Any) -> Any:
        return jax.nn.softmax((x @ Q.T) @ (x @ K.T).T, axis=1) @ x @ V.T

    @jax.jit
    def whole(x: Any) -> Any:
        def step(y: Any, _: None) -> tuple[Any, None]:
            return rk4(velocity, y, 1, h), None

        return jax.lax.scan(step, x, None, length=steps)[0]

    return lambda: np.asarray(whole(X).block_until_ready())


def diffrax_rk4(options: Options, n: int, d: int, dtype: str, steps: int = STEPS) -> Call:
    """diffrax's diffeqsolve with constant steps and the classical RK4 tableau, which diffrax lacks."""
    import diffrax
    import jax

    jax.config.update("jax_enable_x64", True)
    X, Q, K, V = (jax.numpy.asarray(a) for a in inputs(n, d, dtype))
    # Times must have the dtype of the data; doubles would make the whole flow double.
    start, end, h = (X.dtype.type(t) for t in (0.0, SPAN[1] / STEPS * steps, SPAN[1] / STEPS))

    class RK4(diffrax.AbstractERK):  # type: ignore[misc]
        tableau = diffrax.ButcherTableau(
            c=np.array([0.5, 0.5, 1.0], dtype),
            b_sol=(np.array([1, 2, 2, 1]) / 6).astype(dtype),
            b_error=np.zeros(4, dtype),  # unused, because steps are constant
            a_lower=tuple(np.array(a, dtype) for a in ([0.5], [0.0, 0.5], [0.0, 0.0, 1.0])),
        )
        interpolation_cls = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

        def order(self, terms: Any) -> int:
            return 4

    def velocity(t: Any, x: Any, args: Any) -> Any:
        return jax.nn.softmax((x @ Q.T) @ (x @ K.T).T, axis=1) @ x @ V.T

    @jax.jit
    def whole(x: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            RK4(),
            t0=start,
            t1=end,
            dt0=h,
            y0=x,
            max_steps=steps + 1,
            adjoint=diffrax.DirectAdjoint(),
        ).ys[-1]

    return lambda: np.asarray(whole(X).block_until_ready())


def contenders(options: Options, group: Group) -> dict[str, Any]:
    jobs: dict[str, Any] = {"qkcore": ours, "NumPy": numpy_loop}
    if torch_module(options, group) is not None:
        jobs["torch SDPA"] = torch_sdpa
    if optional("jax", group) is not None:
        jobs["JAX scan"] = jax_scan
        if optional("diffrax", group) is not None:
            jobs["diffrax"] = diffrax_rk4
    return jobs


def exact(n: int, d: int, dtype: str, steps: int) -> Array:
    """The result of the same steps in float64, from inputs that are rounded to the dtype."""
    X, Q, K, V = (a.astype(np.float64) for a in inputs(n, d, dtype))
    field = qk.AttentionField("softmax", Q=Q, K=K, V=V)
    end = SPAN[1] * steps / STEPS
    if n <= 2000:  # computed without qkcore

        def velocity(x: Array) -> Array:
            s = (x @ Q.T) @ (x @ K.T).T
            e = np.exp(s - s.max(axis=1, keepdims=True))
            return (e @ x) / e.sum(axis=1, keepdims=True) @ V.T

        return rk4(velocity, X, steps, SPAN[1] / STEPS)
    return np.asarray(qk.flow(field, X, (0.0, end), "rk4", n_steps=steps, t_eval=[end]).x[-1])


def run_case(group: Group, options: Options, n: int, d: int, dtype: str) -> None:
    jobs = contenders(options, group)
    calls = {name: job(options, n, d, dtype) for name, job in jobs.items()}
    want = exact(n, d, dtype, STEPS)
    errors = {name: max_error(call(), want) for name, call in calls.items()}
    floor = Floor(options, dtype)
    timings = interleave(
        calls, rounds=4 if options.quick else 6, budget=10 if options.quick else 40, probe=floor
    )
    mine = timings["qkcore"].minimum
    case = f"N={n} d={d} {dtype}, {STEPS} steps"
    pairs = 4 * STEPS * n * n
    for name, timing in timings.items():
        group.add(Row(case, name, timing, pairs, timing.minimum / mine, errors[name]))
    group.check(case, errors["qkcore"], BOUND[dtype])
    # A pair takes d FMA for its score, one exp, and d FMA for its part of the mean.
    least = floor.seconds(pairs, 2 * d)
    if least is not None:
        group.add(Row(case, "floor: FMA and exp", Timing((least,)), pairs, least / mine))
    wanted = {"NumPy": ("NumPy", NUMPY_WANTED)}
    peers = [name for name in PEERS if name in timings]
    if peers:
        wanted["the best peer"] = (best_of(timings, peers), PEERS_WANTED)
    for title, (name, factor) in wanted.items():
        peer = timings[name].minimum
        why = floor.why(pairs, 2 * d, mine, peer)
        group.at_least(f"{case}: speed against {title}", peer / mine, factor, why=why)


def run_large(group: Group, options: Options, n: int, d: int, dtype: str) -> None:
    """Fewer steps, so that the peers finish; the times are scaled to STEPS steps."""
    steps = 2
    jobs = contenders(options, group)
    calls = {name: job(options, n, d, dtype, steps) for name, job in jobs.items()}
    want = exact(n, d, dtype, steps)
    errors = {name: max_error(call(), want) for name, call in calls.items()}
    timings = interleave(calls, rounds=3, budget=40)
    mine = timings["qkcore"].minimum
    case = f"N={n} d={d} {dtype}, {STEPS} steps scaled from {steps}"
    grown = peak_growth_mb("particles", "ours", options, n=n, d=d, dtype=dtype, steps=steps)
    for name, timing in timings.items():
        scaled = Timing(tuple(s * STEPS / steps for s in timing.samples))
        memory = grown if name == "qkcore" else None
        group.add(
            Row(case, name, scaled, 4 * STEPS * n * n, timing.minimum / mine, errors[name], memory)
        )
    group.check(case, errors["qkcore"], BOUND[dtype])
    group.at_most(f"{case}: memory", grown, LARGE_MEMORY_MB, " MB")
    peers = [timing.minimum for name, timing in timings.items() if name != "qkcore"]
    group.at_least(f"{case}: speed against the best peer", min(peers) / mine, LARGE_WANTED)


def run(options: Options) -> Group:
    group = Group(
        "particles",
        "Particle flows",
        f"{STEPS} steps of RK4 (four velocities each) of softmax attention from normal points, random Q, "
        "K and V. Errors are relative, against the same steps in float64.",
    )
    n, large = (500, 1500) if options.quick else (2000, 8000)
    for d in (2, 16):
        for dtype in ("float32", "float64"):
            run_case(group, options, n, d, dtype)
    for dtype in ("float32", "float64"):
        run_large(group, options, large, 2, dtype)
    return group
