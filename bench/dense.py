"""Scores that are given as a matrix: only the exp has to be computed, so memory limits the speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpy_best
import qkcore as qk
import reference
from harness import Array, Call, Group, Options, Row, Timing, best_of, interleave, max_error
from limits import BestRate
from peers import blas_threads_setter, torch_module

BOUND = {"float32": 2e-6, "float64": 5e-15}
WITHIN_FLOOR = 2.0
OPERATIONS = ("row logsumexp", "column logsumexp", "A @ v", "A.to_numpy()")


def copy_rows(Z: Array) -> numpy_best.Scores:
    def write(rows: slice, out: Array) -> None:
        np.copyto(out, Z[rows])

    return write


def numpy_columns(Z: Array, block: int = 64) -> Call:
    """Column log-sum-exp in two passes over blocks of rows that stay in cache."""
    buffer = np.empty((block, Z.shape[1]), Z.dtype)
    ones = np.ones(block, Z.dtype)

    def call() -> Array:
        m = Z.max(axis=0)
        total = np.zeros_like(m)
        for start in range(0, len(Z), block):
            S = buffer[: min(block, len(Z) - start)]
            np.subtract(Z[start : start + block], m, out=S)
            np.exp(S, out=S)
            total += ones[: len(S)] @ S
        result: Array = np.log(total) + m
        return result

    return call


def numpy_softmax(Z: Array, workers: int) -> Call:
    out = np.empty_like(Z)
    ones = np.ones(Z.shape[1], Z.dtype)
    work = numpy_best.Rows(copy_rows(Z), len(Z), Z.shape[1], Z.dtype.type, 64, workers)

    def visit(rows: slice, S: Array) -> None:
        numpy_best.stable_exp(S)
        np.divide(S, (S @ ones)[:, None], out=out[rows])

    def call() -> Array:
        work.each(visit)
        return out

    return call


def ours(options: Options, Z: Array, v: Array) -> dict[str, Call]:
    s = qk.scores.dense(Z)
    n = options.threads
    return {
        "row logsumexp": lambda: s.logsumexp(n_threads=n),
        "column logsumexp": lambda: s.logsumexp(axis=0, n_threads=n),
        "A @ v": lambda: qk.softmax(s).apply(v, n_threads=n),
        "A.to_numpy()": lambda: qk.softmax(s).to_numpy(n_threads=n),
    }


def with_numpy(Z: Array, v: Array, workers: int) -> dict[str, Call]:
    n, m = Z.shape
    dtype, rows = Z.dtype.type, copy_rows(Z)
    made: dict[str, Call] = {
        "row logsumexp": numpy_best.logsumexp(rows, n, m, dtype, block=64, workers=workers),
        "A @ v": numpy_best.attention(rows, n, v, block=64, workers=workers),
        "A.to_numpy()": numpy_softmax(Z, workers),
    }
    if workers == 1:
        made["column logsumexp"] = numpy_columns(Z)
    return made


def with_torch(torch: Any, Z: Array, v: Array) -> dict[str, Call]:
    T, t = torch.from_numpy(Z), torch.from_numpy(v)
    return {
        "row logsumexp": lambda: torch.logsumexp(T, 1).numpy(),
        "column logsumexp": lambda: torch.logsumexp(T, 0).numpy(),
        "A @ v": lambda: (torch.softmax(T, 1) @ t).numpy(),
        "A.to_numpy()": lambda: torch.softmax(T, 1).numpy(),
    }


def exact_answers(Z: Array, v: Array) -> dict[str, Callable[[], Array]]:
    n = len(Z)

    def rows_of(A: Array) -> Callable[[slice], Array]:
        return lambda rows: A[rows].astype(np.float64)

    return {
        "row logsumexp": lambda: reference.logsumexp(rows_of(Z), n),
        "column logsumexp": lambda: reference.logsumexp(rows_of(Z.T), n),
        "A @ v": lambda: reference.attention(rows_of(Z), n, v),
        "A.to_numpy()": lambda: reference.attention(rows_of(Z), n, np.eye(n)),
    }


def run_case(group: Group, options: Options, n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    Z = (3 * rng.standard_normal((n, n))).astype(dtype)
    v = rng.standard_normal(n).astype(dtype)
    families = {"qkcore": ours(options, Z, v), "NumPy": with_numpy(Z, v, 1)}
    set_blas = blas_threads_setter()
    setups: dict[str, Call] = {}
    if set_blas is not None and options.threads > 1:
        families["NumPy, Python threads"] = with_numpy(Z, v, options.threads)
        setups["NumPy"] = lambda: set_blas(options.threads)
        setups["NumPy, Python threads"] = lambda: set_blas(1)
    torch = torch_module(options, group)
    if torch is not None:
        families["torch"] = with_torch(torch, Z, v)
    limit_read = BestRate(options, dtype, "dram_read")
    limit_exp = BestRate(options, dtype, "exp_libmvec", "exp_qkcore")

    def probe() -> None:
        limit_read()
        limit_exp()

    budget = {"rounds": 4, "budget": 2.0} if options.quick else {"rounds": 10, "budget": 5.0}
    check: dict[str, Call] = {"scores.dense(Z)": lambda: qk.scores.dense(Z)}
    timing = interleave(check, **budget, probe=probe)["scores.dense(Z)"]  # type: ignore[arg-type]
    group.add(Row(f"construction N={n} {dtype}", "qkcore", timing, n * n))
    for op in OPERATIONS:
        calls = {name: family[op] for name, family in families.items() if op in family}
        exact = exact_answers(Z, v)[op]()
        errors = {name: max_error(call(), exact) for name, call in calls.items()}
        timings = interleave(calls, **budget, setups=setups)  # type: ignore[arg-type]
        case = f"{op} N={n} {dtype}"
        kept = best_of(timings, [name for name in timings if name.startswith("NumPy")])
        mine = timings["qkcore"].minimum
        for name, timing in timings.items():
            if not name.startswith("NumPy") or name == kept:
                ratio = timing.minimum / mine
                group.add(Row(case, name, timing, n * n, ratio, errors[name]))
        scale = float(np.abs(exact).max() / np.abs(v).max()) if op == "A @ v" else 1.0
        group.check(f"dense {case}", errors["qkcore"] * scale, BOUND[dtype])
        peers = [name for name in timings if name != "qkcore"]
        fastest = best_of(timings, peers)
        speed = timings[fastest].minimum / mine
        group.at_least(f"{case}: speed against the fastest peer ({fastest})", speed, 1.0)
        add_floor(group, case, op, Z, mine, limit_read.best, limit_exp.best)
    if set_blas is not None:
        set_blas(options.threads)


def add_floor(
    group: Group, case: str, op: str, Z: Array, mine: float, read: float | None, exp: float | None
) -> None:
    """The longer time of one pass over memory (two if the result is a matrix) and one exp per entry."""
    if read is None or exp is None:
        return
    passes = 2 if op == "A.to_numpy()" else 1
    memory = passes * Z.nbytes / (read * 1e9)
    work = Z.size / (exp * 1e9)
    floor = max(memory, work)
    name = "floor: memory" if memory > work else "floor: exp"
    group.add(Row(case, name, Timing((floor,)), Z.size, floor / mine))
    claim = f"{case}: time over the floor ({mine / memory:.2f}× the memory traffic)"
    group.at_most(claim, mine / floor, WITHIN_FLOOR)


def run(options: Options) -> Group:
    group = Group(
        "dense",
        "Dense scores",
        "Reductions of a given N × N matrix. The floor is the larger of two times measured in the "
        "same run: one pass over the matrix at DRAM bandwidth (two when the result is a matrix), and "
        "one exponential per entry. A matrix that fits the last-level cache can be read faster than "
        "that.",
    )
    for n in (1000,) if options.quick else (1000, 4000):
        for dtype in ("float32", "float64"):
            run_case(group, options, n, dtype)
    return group
