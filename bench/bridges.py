"""Schrödinger bridges against POT, OTT, RegOT, KeOps and blocked PyTorch: by iteration, to a tolerance."""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qkcore as qk
import reference
from harness import (
    Array,
    Call,
    Group,
    Options,
    Row,
    Timing,
    best_of,
    interleave,
    peak_growth_mb,
    recorder,
)
from limits import BestRate
from peers import optional, torch_module

READS = 1.5  # times one read of the matrix
OVER_POT, OVER_OTT, OVER_POT_LOG = 4.0, 10.0, 70.0
POINTS_FACTOR = {3: 8.0, 64: 5.0}
MEMORY_MB = 100.0
KEOPS = "KeOps, as in GeomLoss"


def clouds(n: int, d: int, dtype: str, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(dtype)
    Y = (rng.standard_normal((n, d)) + 0.3).astype(dtype)
    return X, Y


def costs(X: Array, Y: Array) -> Array:
    C = (X * X).sum(1)[:, None] + (Y * Y).sum(1) - 2 * X @ Y.T
    return np.maximum(C, 0) / C.max()


def weights(n: int, dtype: str) -> tuple[Array, Array]:
    nu = 1 + 0.5 * np.sin(np.arange(n))
    return np.full(n, 1 / n, dtype), (nu / nu.sum()).astype(dtype)


def per_iteration(name: str, make: Any, few: int, many: int, rounds: int) -> dict[str, Timing]:
    """Seconds per iteration: the difference of a long and a short run, so that set-up drops out.

    The median of the rounds: a minimum of differences would pick the one with the slowest short run.
    """
    if recorder.calls is not None:
        recorder.keep({name: lambda: make(many)}, {})
        return {name: Timing((1.0,))}
    make(few)  # warm
    samples = []
    for _ in range(rounds):
        spent = []
        for count in (few, many):
            start = time.perf_counter()
            make(count)
            spent.append(time.perf_counter() - start)
        samples.append((spent[1] - spent[0]) / (many - few))
    return {name: Timing((max(statistics.median(samples), 1e-9),))}


def iteration_of_a_solve(
    name: str, solve: Callable[[Callable[[int, float], None]], object], rounds: int
) -> dict[str, Timing]:
    """The median time from the end of one iteration to that of the next, in whole solves."""
    if recorder.calls is not None:
        recorder.keep({name: lambda: solve(lambda *_: None)}, {})
        return {name: Timing((1.0,))}
    ends: list[float] = []

    def note(*_: object) -> None:
        ends.append(time.perf_counter())

    solve(note)  # warm
    spans: list[float] = []
    for _ in range(rounds):
        ends.clear()
        solve(note)
        spans += list(np.diff(ends))
    return {name: Timing((float(statistics.median(spans)),))}


def dense_case(group: Group, options: Options, n: int, dtype: str) -> None:
    X, Y = clouds(n, 3, dtype)
    C, (mu, nu) = costs(X, Y), weights(n, dtype)
    epsilon = 0.05
    s = qk.scores.dense(-C / np.array(epsilon, dtype))
    case = f"dense iteration N={n} {dtype}"

    def ours(callback: Callable[[int, float], None]) -> qk.SchrodingerBridge:
        return qk.bridge(
            s, mu, nu, solver="alternating", n_threads=options.threads, callback=callback
        )

    rounds = 3
    timings = iteration_of_a_solve("qkcore", ours, rounds)
    whole = ours(lambda *_: None)
    if exact := whole.n_visits - whole.n_iter:
        group.notes.append(
            f"{case}: {exact} exact visits in {whole.n_iter} iterations, {whole.tol:g}"
        )
    ot = optional("ot", group)
    if ot is not None:

        def plain(count: int) -> object:
            return ot.sinkhorn(mu, nu, C, epsilon, numItermax=count, stopThr=0, warn=False)

        def log(count: int) -> object:
            return ot.bregman.sinkhorn_log(
                mu, nu, C, epsilon, numItermax=count, stopThr=0, warn=False
            )

        timings |= per_iteration("POT sinkhorn", plain, 5, 25, rounds)
        timings |= per_iteration("POT sinkhorn_log", log, 1, 3, 1)
    timings.update(ott_case(group, C, mu, nu, epsilon))
    limit = BestRate(options, dtype, "dram_read")
    for _ in range(3):
        limit()
    mine = timings["qkcore"].minimum
    b = qk.bridge(s, mu, nu, n_threads=options.threads)
    for name, timing in timings.items():
        error = float(b.error) if name == "qkcore" else None
        group.add(Row(case, name, timing, n * n, timing.minimum / mine, error))
    if limit.best is not None:
        read = n * n * np.dtype(dtype).itemsize / (limit.best * 1e9)
        group.add(Row(case, "one read of the matrix", Timing((read,)), n * n, read / mine))
        group.at_most(f"{case}: over one read", mine / read, READS)
    for name, wanted in (
        ("POT sinkhorn", OVER_POT),
        ("OTT", OVER_OTT),
        ("POT sinkhorn_log", OVER_POT_LOG),
    ):
        if name in timings:
            group.at_least(f"{case}: against {name}", timings[name].minimum / mine, wanted)
    group.check(case, b.error if b.converged else math.nan, b.tol)


def ott_case(group: Group, C: Array, mu: Array, nu: Array, epsilon: float) -> dict[str, Timing]:
    jax = optional("jax", group)
    ott = optional("ott", group)
    if jax is None or ott is None:
        return {}
    jax.config.update("jax_enable_x64", True)
    geometry = importlib.import_module("ott.geometry.geometry")
    linear = importlib.import_module("ott.problems.linear.linear_problem")
    solver = importlib.import_module("ott.solvers.linear.sinkhorn")
    problem = linear.LinearProblem(geometry.Geometry(cost_matrix=C, epsilon=epsilon), a=mu, b=nu)
    runs = {}
    for count in (5, 25):
        fixed = solver.Sinkhorn(
            threshold=-1.0, inner_iterations=5, min_iterations=count, max_iterations=count
        )
        runs[count] = jax.jit(fixed)
        jax.block_until_ready(runs[count](problem).f)  # compiled once, off the clock

    def run(count: int) -> object:
        return jax.block_until_ready(runs[count](problem).f)

    return per_iteration("OTT", run, 5, 25, 2)


def torch_iterations(torch: Any, X: Array, Y: Array, beta: float) -> Any:
    """Row and column log-sum-exp by blocks, the scores as one augmented product each."""
    one = np.ones((len(X), 1), X.dtype)
    left = np.hstack([2 * beta * X, -beta * (X * X).sum(1, keepdims=True), one])
    right = np.hstack([Y, one, -beta * (Y * Y).sum(1, keepdims=True)])
    A, B = (torch.from_numpy(np.ascontiguousarray(side, dtype=X.dtype)) for side in (left, right))
    n, block = len(X), 256
    buffer = torch.empty((block, n), dtype=A.dtype)

    def half(P: Any, Q: Any, potential: Any) -> Any:
        out = torch.empty(n, dtype=A.dtype)
        for start in range(0, n, block):
            stop = min(start + block, n)
            S = torch.mm(P[start:stop], Q.T, out=buffer[: stop - start])
            S += potential
            torch.logsumexp(S, 1, out=out[start:stop])
        return -math.log(n) - out

    def run(count: int) -> object:
        g = torch.zeros(n, dtype=A.dtype)
        for _ in range(count):
            f = half(A, B, g)
            g = half(B, A, f)
        return g

    return run


def keops_iterations(group: Group, torch: Any, X: Array, Y: Array, beta: float) -> Any:
    """The iteration as GeomLoss's online backend does it: KeOps reductions, compiled at their first call.

    KeOps directly, since GeomLoss's public functions anneal eps and have no fixed number of iterations.
    """
    keops = optional("pykeops", group) if torch is not None else None
    if keops is None:
        return None
    lazy = importlib.import_module("pykeops.torch").LazyTensor
    n = len(X)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)

    def half(a: Any, b: Any, potential: Any) -> Any:
        distance = ((lazy(a[:, None, :]) - lazy(b[None, :, :])) ** 2).sum(-1)
        scores = lazy(potential.view(1, n, 1)) - beta * distance
        return -math.log(n) - scores.logsumexp(dim=1).view(-1)

    def run(count: int) -> Any:
        g = torch.zeros(n, dtype=x.dtype)
        for _ in range(count):
            f = half(x, y, g)
            g = half(y, x, f)
        return g

    try:
        run(1)
    except (
        Exception
    ) as problem:  # a compiler is run on the user's machine: many things can be missing
        text = f"skipped: KeOps cannot compile here ({type(problem).__name__}: {problem})"
        group.notes.append(text.splitlines()[0])
        return None
    return run


def first_potentials(X: Array, Y: Array, beta: float, columns: Array) -> Array:
    """Potentials of some columns after one iteration from 0 with weights 1: -lse_i(s_ij - lse_j s_ij)."""
    f = -reference.logsumexp(reference.distance_scores(X, Y, beta), len(X))
    return potentials_of(f, Y[columns], X, beta)


def potentials_of(other: Array, A: Array, B: Array, beta: float) -> Array:
    """-lse over B of the scores and the other side's potentials, at the points A."""
    scores = reference.distance_scores(A, B, beta)
    return -reference.logsumexp(lambda rows: scores(rows) + other, len(A))


def points_solver(options: Options, n: int, d: int, dtype: str, count: int = 3) -> Call:
    """For the memory probe: a few iterations from points, nothing stored."""
    X, Y = clouds(n, d, dtype)
    mu, nu = weights(n, dtype)
    s = qk.scores.distance(X, Y, beta=1.0 / d)
    return lambda: qk.bridge(
        s, mu, nu, solver="alternating", tol=1e-300, max_iter=count, max_memory=0,
        n_threads=options.threads,
    )  # fmt: skip


def points_case(group: Group, options: Options, n: int, d: int, dtype: str) -> None:
    X, Y = clouds(n, d, dtype)
    mu, nu = weights(n, dtype)
    s = qk.scores.distance(X, Y, beta=1.0 / d)

    def ours(count: int) -> Any:
        return qk.bridge(
            s, mu, nu, solver="alternating", tol=1e-300, max_iter=count, max_memory=0,
            n_threads=options.threads,
        )  # fmt: skip

    timings = per_iteration("qkcore", ours, 1, 4, 2)
    torch, blocked = torch_module(options, group), None
    if torch is not None:
        blocked = torch_iterations(torch, X, Y, 1.0 / d)
        timings |= per_iteration("torch, blocked", blocked, 0, 1, 1)
    keops = keops_iterations(group, torch, X, Y, 1.0 / d) if n <= 10_000 else None
    if keops is not None:  # tens of seconds an iteration beyond
        timings |= per_iteration(KEOPS, keops, 0, 1, 1)
    few = np.unique(np.linspace(0, n - 1, 5).astype(int))
    want = first_potentials(X, Y, 1.0 / d, few) if n <= 10_000 else None
    errors: dict[str, float | None] = {
        name: None if want is None else float(np.ptp(np.asarray(run(1), np.float64)[few] - want))
        for name, run in (("torch, blocked", blocked), (KEOPS, keops))
        if run is not None
    }
    # One side meets its marginal exactly when an iteration is over: its potentials follow from the other's.
    b = ours(2)
    f, g = (np.asarray(p, np.float64) for p in (b.f, b.g))
    rows = f[few] - np.log(mu[few].astype(np.float64)) - potentials_of(g, X[few], Y, 1.0 / d)
    cols = g[few] - np.log(nu[few].astype(np.float64)) - potentials_of(f, Y[few], X, 1.0 / d)
    errors["qkcore"] = own = float(min(np.abs(rows).max(), np.abs(cols).max()))
    case = f"iteration from points d={d} N={n} {dtype}"
    mine = timings["qkcore"].minimum
    grown = peak_growth_mb("bridges", "points_solver", options, n=n, d=d, dtype=dtype)
    for name, timing in timings.items():
        memory = grown if name == "qkcore" else None
        group.add(Row(case, name, timing, n * n, timing.minimum / mine, errors[name], memory))
    bound = 1e-4 if dtype == "float32" else 1e-10
    group.check(f"{case}: potentials after two iterations", own, bound)
    if "torch, blocked" in timings:
        ratio = timings["torch, blocked"].minimum / mine
        group.at_least(f"{case}: against torch, blocked", ratio, POINTS_FACTOR[d])
    group.at_most(f"{case}: memory", grown, MEMORY_MB, " MB")


def tolerance_case(group: Group, options: Options, n: int, epsilon: float) -> None:
    X, Y = clouds(n, 3, "float64")
    C, (mu, nu) = costs(X, Y), weights(n, "float64")
    s = qk.scores.dense(-C / epsilon)
    case = f"to L1 error 1e-9 N={n} eps={epsilon}"
    contenders: dict[str, Call] = {
        "qkcore": lambda: qk.bridge(s, mu, nu, n_threads=options.threads)
    }
    b = qk.bridge(s, mu, nu)
    slow: dict[str, Timing] = {}
    ot = optional("ot", group)
    if ot is not None:

        def pot() -> object:
            # Its threshold is an L2 norm looked at every ten iterations.
            return ot.sinkhorn(
                mu, nu, C, epsilon, numItermax=20000, stopThr=1e-9 / math.sqrt(n), warn=False
            )

        start = time.perf_counter()
        plan = np.asarray(pot())
        once = time.perf_counter() - start
        off = np.abs(plan.sum(0) - nu).sum() + np.abs(plan.sum(1) - mu).sum()
        if not (np.isfinite(off) and off < 1e-7):
            group.notes.append(
                f"{case}: POT's plain scaling has not converged after 20000 iterations and {once:.0f} s "
                f"(marginal error {off:.1e}); its time is a lower bound"
            )
        if once < 3:
            contenders["POT sinkhorn"] = pot
        else:  # too slow to repeat
            slow["POT sinkhorn"] = Timing((once,))
    errors = {"qkcore": float(b.error)}
    regot = optional("regot", group)
    if regot is not None:
        cost = np.asfortranarray(
            C
        )  # splr: Newton steps with a sparse Hessian and a low-rank update

        def sparse_newton() -> Any:
            return regot.sinkhorn_splr(cost, mu, nu, epsilon, tol=1e-9 / math.sqrt(n), max_iter=100)

        start = time.perf_counter()
        plan = np.asarray(sparse_newton().plan)
        once = time.perf_counter() - start
        off = float(max(np.abs(plan.sum(0) - nu).sum(), np.abs(plan.sum(1) - mu).sum()))
        errors["RegOT splr"] = off
        if off > 1e-7:
            group.notes.append(
                f"{case}: RegOT has not converged after 100 steps and {once:.0f} s; its time is a lower bound"
            )
        if once < 3:
            contenders["RegOT splr"] = sparse_newton
        else:
            slow["RegOT splr"] = Timing((once,))
    timings = interleave(contenders, rounds=5, budget=10) | slow
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors.get(name)))
    group.check(case, b.error if b.converged else math.nan, b.tol)
    # A peer that stopped short of the tolerance has not done the work.
    peers = [name for name in timings if name != "qkcore" and not errors.get(name, 0.0) > 1e-8]
    if peers:
        best = best_of(timings, peers)
        wanted = 1.0 if epsilon > 0.01 else 10.0
        ratio = timings[best].minimum / mine
        group.at_least(f"{case}: against the best peer ({best})", ratio, wanted)
    group.notes.append(f"{case}: {b.n_iter} iterations, {b.n_visits} visits ({b.method})")


def small_cases(group: Group, options: Options) -> None:
    X, Y = clouds(400, 3, "float64")
    C, (mu, nu) = costs(X, Y), weights(400, "float64")
    s = qk.scores.dense(-C / 0.05)
    timing = interleave({"qkcore": lambda: qk.bridge(s, mu, nu)}, rounds=9)["qkcore"]
    group.add(
        Row("one problem N=400 eps=0.05", "qkcore", timing, error=float(qk.bridge(s, mu, nu).error))
    )
    group.at_most("one problem N=400: time", timing.minimum * 1e3, 2.0, " ms")
    rng = np.random.default_rng(0)
    Z = -costs_batch(rng) / 0.05
    u = np.full(64, 1 / 64)
    batch = qk.scores.dense(Z)
    contenders: dict[str, Call] = {
        "qkcore": lambda: qk.bridge(batch, u, u, n_threads=options.threads)
    }
    ot = optional("ot", group)
    if ot is not None:
        few = 20 if options.quick else 100

        def loop() -> object:
            return [
                ot.sinkhorn(u, u, -Z[k] * 0.05, 0.05, stopThr=1e-9 / 8, numItermax=5000, warn=False)
                for k in range(few)
            ]

        contenders["POT, Python loop"] = loop
    timings = interleave(contenders, rounds=5, budget=10)
    mine = timings["qkcore"].minimum
    b = qk.bridge(batch, u, u)
    case = "1000 problems N=64 eps=0.05"
    group.add(Row(case, "qkcore", timings["qkcore"], error=float(np.max(b.error))))
    group.check(case, float(np.max(b.error)) if np.all(b.converged) else math.nan, b.tol)
    if "POT, Python loop" in timings:
        scaled = Timing(tuple(t * 1000 / few for t in timings["POT, Python loop"].samples))
        group.add(Row(case, "POT, Python loop", scaled, ratio=scaled.minimum / mine))
        group.at_least(f"{case}: against a loop over POT", scaled.minimum / mine, 20.0)


def costs_batch(rng: np.random.Generator) -> Array:
    X, Y = rng.standard_normal((2, 1000, 64, 3))
    C = (X**2).sum(-1)[:, :, None] + (Y**2).sum(-1)[:, None] - 2 * X @ Y.transpose(0, 2, 1)
    return np.maximum(C, 0) / C.max(axis=(1, 2), keepdims=True)


def run(options: Options) -> Group:
    group = Group(
        "bridges",
        "Schrödinger bridges",
        "A full iteration is a row and a column update. Costs are scaled to a maximum of 1; eps is the "
        "temperature. Errors are L1 errors of the worse marginal at the end of a full solve.",
    )
    for n in (1000,) if options.quick else (4000, 8000):
        for dtype in ("float64", "float32"):
            dense_case(group, options, n, dtype)
    for d in (3, 64):
        for n in (2000,) if options.quick else (10000, 30000):
            for dtype in ("float32", "float64"):
                if n < 30000 or dtype == "float32":
                    points_case(group, options, n, d, dtype)
    for epsilon in (0.05, 0.005, 0.001):
        tolerance_case(group, options, 500 if options.quick else 2000, epsilon)
    small_cases(group, options)
    group.notes = list(dict.fromkeys(group.notes))
    return group
