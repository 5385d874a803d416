"""Schrödinger bridges against POT, OTT, RegOT, GeomLoss, KeOps and blocked PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import compiling
import qkcore as qk
import reference
from bridge_peers import (
    KEOPS,
    OneRead,
    dense_peers,
    geomloss_solver,
    keops_iterations,
    torch_iterations,
)
from harness import (
    Array,
    Call,
    Group,
    Iterated,
    IterationsOfSolves,
    LongAndShort,
    Options,
    Row,
    Timing,
    best_of,
    interleave,
    peak_growth_mb,
    take_turns,
)
from peers import optional, torch_module

READS = 1.5  # times one read of the matrix
OVER_POT, OVER_OTT, OVER_POT_LOG = 4.0, 10.0, 70.0
POINTS_FACTOR = {3: 8.0, 64: 5.0}
MEMORY_MB = 100.0
MOST = 6000  # most iterations of POT towards a tolerance; more would take minutes
READ = "one read of the matrix"
NO_TIME = "no figure: its long runs took no longer than its short ones"


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


def dense_case(group: Group, options: Options, n: int, dtype: str) -> None:
    X, Y = clouds(n, 3, dtype)
    C, (mu, nu) = costs(X, Y), weights(n, dtype)
    epsilon = 0.05
    s = qk.scores.dense(-C / np.array(epsilon, dtype))
    case = f"dense iteration N={n} {dtype}"

    def solve(callback: Callable[[int, float], None] | None = None) -> qk.SchrodingerBridge:
        return qk.bridge(
            s, mu, nu, solver="alternating", n_threads=options.threads, callback=callback
        )

    b = solve()
    contenders: dict[str, Iterated] = {
        "qkcore": IterationsOfSolves(solve),
        **dense_peers(group, C, mu, nu, epsilon),
    }
    if compiling.compiler() is not None:
        contenders[READ] = OneRead(options, dtype, C.nbytes)
    else:
        group.notes.append(f"{READ}: {compiling.NO_COMPILER}")
    # POT fills five new matrices in every run, so that even a few samples take long.
    rounds = 3 if options.quick else 5
    turns = take_turns(contenders, rounds=rounds, share=10, shares={"POT sinkhorn": 40})
    timings = turns.timings()
    group.notes += [f"{case}: {name}: {NO_TIME}" for name in turns.missing]
    for name, timing in timings.items():
        error = float(b.error) if name == "qkcore" else None
        group.add(Row(case, name, timing, n * n, turns.ratio(name, "qkcore"), error))
    if exact := b.n_visits - b.n_iter:
        group.notes.append(
            f"{case}: {exact} of the visits of {b.n_iter} iterations to {b.tol:g} computes the "
            "entries again; it is counted too"
        )
    if READ in timings:
        group.at_most(f"{case}: over one read", turns.ratio("qkcore", READ), READS)
    for name, wanted in (
        ("POT sinkhorn", OVER_POT),
        ("OTT", OVER_OTT),
        ("POT sinkhorn_log", OVER_POT_LOG),
    ):
        if name in timings:
            group.at_least(f"{case}: against {name}", turns.ratio(name, "qkcore"), wanted)
    group.check(case, b.error if b.converged else math.nan, b.tol)


def first_potentials(X: Array, Y: Array, beta: float, columns: Array) -> Array:
    """Potentials of some columns after one iteration from 0 with weights 1, -lse_i(s_ij - lse_j s_ij)."""
    X64, Y64 = X.astype(np.float64), Y.astype(np.float64)
    squares = (Y64 * Y64).sum(1)

    def scores(rows: slice) -> Array:
        # Scores come from one product, since differences by coordinate would take a minute for all pairs.
        part = X64[rows]
        out: Array = beta * (2 * part @ Y64.T - squares - (part * part).sum(1, keepdims=True))
        return out

    f = -reference.logsumexp(scores, len(X))
    return potentials_of(f, Y[columns], X, beta)


def potentials_of(other: Array, A: Array, B: Array, beta: float) -> Array:
    """Potentials at the points A: -lse over B of the scores plus the other side's potentials."""
    scores = reference.distance_scores(A, B, beta)
    return -reference.logsumexp(lambda rows: scores(rows) + other, len(A))


def points_solver(options: Options, n: int, d: int, dtype: str, count: int = 3) -> Call:
    """For the memory probe: a few iterations from points without stored entries."""
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
    case = f"iteration from points d={d} N={n} {dtype}"

    def ours(count: int, callback: Callable[[int, float], None] | None = None) -> Any:
        return qk.bridge(
            s, mu, nu, solver="alternating", tol=1e-300, max_iter=count, max_memory=0,
            n_threads=options.threads, callback=callback,
        )  # fmt: skip

    torch = torch_module(options, group)
    peers: dict[str, Callable[[int], object]] = {}
    if torch is not None:
        peers["torch, blocked"] = torch_iterations(torch, X, Y, 1.0 / d)
    if n <= 10_000:  # for larger N an iteration would take tens of seconds
        keops = keops_iterations(group, torch, X, Y, 1.0 / d)
        if keops is not None:
            peers[KEOPS] = keops
    first: dict[str, Array] = {}

    def kept(name: str, run: Callable[[int], object]) -> Callable[[int], object]:
        def keeping(count: int) -> object:
            found = run(count)
            if count == 1 and name not in first:
                first[name] = np.asarray(found, np.float64)
            return found

        return keeping

    contenders: dict[str, Iterated] = {"qkcore": IterationsOfSolves(partial(ours, 4))}
    # A run without iterations takes no time, so these runs are timed as a whole.
    contenders |= {name: LongAndShort(kept(name, run), 0, 1) for name, run in peers.items()}
    # All contenders have three rounds, even if an iteration takes seconds.
    turns = take_turns(contenders, rounds=3 if options.quick else 5, share=60, limit=180)
    timings = turns.timings()
    group.notes += [f"{case}: {name}: {NO_TIME}" for name in turns.missing]
    few = np.unique(np.linspace(0, n - 1, 5).astype(int))
    want = first_potentials(X, Y, 1.0 / d, few) if n <= 10_000 else None
    errors: dict[str, float | None] = {
        name: None if want is None or name not in first else float(np.ptp(first[name][few] - want))
        for name in peers
    }
    # After an iteration one side meets its marginal exactly, so its potentials follow from the other side's.
    b = ours(2)
    f, g = (np.asarray(p, np.float64) for p in (b.f, b.g))
    rows = f[few] - np.log(mu[few].astype(np.float64)) - potentials_of(g, X[few], Y, 1.0 / d)
    cols = g[few] - np.log(nu[few].astype(np.float64)) - potentials_of(f, Y[few], X, 1.0 / d)
    errors["qkcore"] = own = float(min(np.abs(rows).max(), np.abs(cols).max()))
    grown = peak_growth_mb("bridges", "points_solver", options, n=n, d=d, dtype=dtype)
    for name, timing in timings.items():
        memory = grown if name == "qkcore" else None
        ratio = turns.ratio(name, "qkcore")
        group.add(Row(case, name, timing, n * n, ratio, errors[name], memory))
    bound = 1e-4 if dtype == "float32" else 1e-10
    group.check(f"{case}: potentials after two iterations", own, bound)
    if "torch, blocked" in timings:
        ratio = turns.ratio("torch, blocked", "qkcore")
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
    errors = {"qkcore": float(b.error)}
    ot = optional("ot", group)
    if ot is not None:

        def pot() -> object:
            # Its threshold is for an L2 norm that is computed every ten iterations.
            return ot.sinkhorn(
                mu, nu, C, epsilon, numItermax=MOST, stopThr=1e-9 / math.sqrt(n), warn=False
            )

        start = time.perf_counter()
        plan = np.asarray(pot())
        once = time.perf_counter() - start
        off = float(max(np.abs(plan.sum(0) - nu).sum(), np.abs(plan.sum(1) - mu).sum()))
        errors["POT sinkhorn"] = off
        if not off < 1e-7:  # also true for NaN
            group.notes.append(
                f"{case}: POT's plain scaling has not converged after {MOST} iterations and {once:.0f} s "
                f"(marginal error {off:.1e}); its time is a lower bound"
            )
        if once < 3:
            contenders["POT sinkhorn"] = pot
        else:  # too slow to repeat
            slow["POT sinkhorn"] = Timing((once,))
    regot = optional("regot", group)
    if regot is not None:
        cost = np.asfortranarray(
            C
        )  # splr: Newton's method with a sparse Hessian and a low-rank update

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
    # A peer that stopped before it reached the tolerance is not compared.
    peers = [name for name in timings if name != "qkcore" and not errors.get(name, 0.0) > 1e-8]
    if peers:
        best = best_of(timings, peers)
        wanted = 1.0 if epsilon > 0.01 else 10.0
        ratio = timings[best].minimum / mine
        group.at_least(f"{case}: against the best peer ({best})", ratio, wanted)
    group.notes.append(f"{case}: {b.n_iter} iterations, {b.n_visits} visits ({b.method})")


def marginal_error(X: Array, Y: Array, f: Array, g: Array, beta: float, marginals: Any) -> float:
    """L1 error of the worse marginal of exp(f_i - beta |x_i - y_j|^2 + g_j), in float64 and by blocks."""
    mu, nu = marginals
    scores = reference.distance_scores(X, Y, beta)
    rows, columns = np.empty(len(X)), np.zeros(len(Y))
    for part in reference.blocks(len(X)):
        plan = np.exp(f[part, None] + scores(part) + g)
        rows[part] = plan.sum(1)
        columns += plan.sum(0)
    return float(max(np.abs(rows - mu).sum(), np.abs(columns - nu).sum()))


def solution_case(group: Group, options: Options, n: int, scaling: float) -> None:
    """Whole solves from points: GeomLoss at the accuracy of its annealing, qkcore at the same or better."""
    blur = 0.25
    # GeomLoss's cost is half the squared distance, and its temperature is blur^2.
    beta = 0.5 / blur**2
    X, Y = clouds(n, 3, "float64")
    mu, nu = weights(n, "float64")
    s = qk.scores.distance(X, Y, beta=beta)
    case = f"from points to a solution N={n} d=3 blur={blur} scaling={scaling}"
    torch = torch_module(options, group)
    contenders: dict[str, Call] = {}
    slow: dict[str, Timing] = {}
    errors: dict[str, float] = {}
    backends = ("online", "tensorized") if n <= 1000 or scaling <= 0.5 else ("online",)
    if "tensorized" not in backends:
        group.notes.append(f"{case}: GeomLoss tensorized is left out to keep the run short")
    for backend in backends:
        solve = geomloss_solver(group, torch, (X, mu, Y, nu), blur, scaling, backend)
        if solve is not None:
            name = f"GeomLoss {backend}"
            start = time.perf_counter()
            F, G = solve()
            once = time.perf_counter() - start
            if once < 1:
                contenders[name] = solve
            else:  # too slow to repeat
                slow[name] = Timing((once,))
            f, g = F / blur**2 + np.log(mu), G / blur**2 + np.log(nu)
            errors[name] = marginal_error(X, Y, f, g, beta, (mu, nu))
    if not errors:
        return
    for name, tol in (("qkcore", min(errors.values())), ("qkcore, to 1e-9", 1e-9)):
        contenders[name] = call = partial(qk.bridge, s, mu, nu, tol=tol, n_threads=options.threads)
        b = call()
        errors[name] = marginal_error(X, Y, b.f, b.g, beta, (mu, nu))
        group.check(f"{case}: {name}", errors[name] if b.converged else math.nan, 1.01 * tol)
    timings = slow | interleave(contenders, rounds=5, budget=10)
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors[name]))


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
        "A full iteration is a row and a column update. Costs are scaled to a maximum of 1; eps is "
        "the temperature. The error of a full solve is the L1 error of the worse marginal at its "
        "end; the error of iterations from points is that of the potentials. The time of one "
        "iteration is measured in three ways: for qkcore it is the mean time between the iterations "
        "of whole solves; for POT the mean between the lines that it prints every ten iterations, at "
        "each of which it also computes the error; for the others the difference in time of a long "
        "and a short run, divided by the difference of their iterations. All contenders, and the "
        "plain reading of the matrix, take turns. The time shown is the median over the rounds, and "
        "the ratio the median of the rounds' ratios; the contenders that are slowest on a matrix "
        "take part in one or two rounds. All other times are minima. GeomLoss anneals eps and stops "
        "without computing the marginals, so it and qkcore do not solve to the same accuracy. The "
        "error of each is shown, computed from its potentials in float64, and the row 'qkcore' "
        "solves to the error of GeomLoss or less.",
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
    for scaling in (0.5, 0.9):
        solution_case(group, options, 500 if options.quick else 5000, scaling)
    small_cases(group, options)
    group.notes = list(dict.fromkeys(group.notes))
    return group
