"""softmax(beta Q K^T) V against PyTorch's fused attention and blocked NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpy_best
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
    max_error,
    peak_growth_mb,
)
from limits import Floor
from peers import blas_threads_setter, torch_module

D = 64
BETA = D**-0.5
WANTED = {"float32": 1.5, "float64": 2.0}  # times faster than torch
BOUND = {"float32": 2e-6, "float64": 5e-15}  # largest error, relative to the largest value of V
MEMORY_MB = 50.0


def inputs(n: int, dtype: str) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(n)
    Q, K, V = rng.standard_normal((3, n, D)).astype(dtype)
    return Q, K, V


def ours(options: Options, n: int, dtype: str) -> Call:
    Q, K, V = inputs(n, dtype)
    return lambda: qk.softmax(qk.scores.dot(Q, K, beta=BETA)).apply(V, n_threads=options.threads)


def torch_sdpa(options: Options, n: int, dtype: str) -> Call:
    torch: Any = torch_module(options)
    Q, K, V = (torch.from_numpy(a)[None, None] for a in inputs(n, dtype))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return lambda: sdpa(Q, K, V, scale=BETA)[0, 0].numpy()


def numpy_blocked(options: Options, n: int, dtype: str) -> Call:
    Q, K, V = inputs(n, dtype)
    return numpy_best.attention(numpy_best.dot_scores(Q, K, BETA), n, V)


def numpy_threads(options: Options, n: int, dtype: str) -> Call:
    """Blocked NumPy on several Python threads, which needs BLAS to use one thread."""
    Q, K, V = inputs(n, dtype)
    scores = numpy_best.dot_scores(Q, K, BETA)
    return numpy_best.attention(scores, n, V, block=128, workers=options.threads)


def error_of(result: object, exact: Array, V: Array) -> float:
    # The error is relative to V, because the average shrinks with N, but the rounding of its terms does not.
    return max_error(result, exact) * float(np.abs(exact).max() / np.abs(V).max())


def run_case(group: Group, options: Options, n: int, dtype: str) -> None:
    Q, K, V = inputs(n, dtype)
    exact = reference.attention(reference.dot_scores(Q, K, BETA), n, V)
    jobs = {"qkcore": ours, "NumPy": numpy_blocked}
    setups: dict[str, Call] = {}
    set_blas = blas_threads_setter()
    if set_blas is not None and options.threads > 1:
        jobs["NumPy, Python threads"] = numpy_threads
        setups["NumPy"] = lambda: set_blas(options.threads)
        setups["NumPy, Python threads"] = lambda: set_blas(1)
    if torch_module(options, group) is not None:
        jobs["torch SDPA"] = torch_sdpa
    calls = {name: job(options, n, dtype) for name, job in jobs.items()}
    errors = {name: error_of(call(), exact, V) for name, call in calls.items()}
    floor = Floor(options, dtype)
    timings = interleave(
        calls,
        rounds=5 if options.quick else 15,
        budget=5 if options.quick else 25,
        setups=setups,
        probe=floor,
    )
    if set_blas is not None:
        set_blas(options.threads)
    kept = best_of(timings, [name for name in timings if name.startswith("NumPy")])
    case = f"N={n} {dtype}"
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        if name.startswith("NumPy") and name != kept:
            continue
        memory = peak_growth_mb("attention", jobs[name].__name__, options, n=n, dtype=dtype)
        group.add(Row(case, name, timing, n * n, timing.minimum / mine, errors[name], memory))
        if name == "qkcore" and n >= 16000:
            group.at_most(f"{case}: peak memory growth", memory, MEMORY_MB, " MB")
    group.check(f"attention {case}", errors["qkcore"], BOUND[dtype])
    least = floor.seconds(n * n, 2 * D)
    if least is not None:
        group.add(Row(case, "floor: FMA and exp", Timing((least,)), n * n, least / mine))
    if "torch SDPA" in timings:
        peer = timings["torch SDPA"].minimum
        why = floor.why(n * n, 2 * D, mine, peer)
        group.at_least(f"{case}: speed against torch SDPA", peer / mine, WANTED[dtype], why=why)


def run(options: Options) -> Group:
    group = Group(
        "attention",
        f"Attention, d = {D}",
        "`softmax(β Q Kᵀ) V` from points. Errors are against float64, relative to the largest "
        "value of V; peak MB is the growth of the resident peak during the call.",
    )
    for n in (1000,) if options.quick else (4000, 16000):
        for dtype in ("float32", "float64"):
            run_case(group, options, n, dtype)
    return group
