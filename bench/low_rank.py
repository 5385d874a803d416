"""K @ z of a low-rank product of experts against NumPy's best and the time to read the factors once."""

from __future__ import annotations

import numpy as np

from harness import Array, Call, Group, Options, Row, best_of, interleave, max_error
from qkcore._native import cpu
from qkcore.factors import LowRank, ProductOfFactors

RANK = 14
WANTED = 3.0  # times faster than NumPy
STREAM = 2.0  # times the time to read the four factors once
BOUND = {"float32": 3e-6, "float64": 1e-14}


def inputs(n: int, dtype: str) -> tuple[Array, Array, Array, Array, Array]:
    """L0, R0, L1, R1, each (rank, n) with contiguous points, and z; all positive like softmax factors."""
    rng = np.random.default_rng(0)
    L0, R0, L1, R1 = rng.random((4, RANK, n)).astype(dtype)
    return L0, R0, L1, R1, rng.random(n).astype(dtype)


def ours(options: Options, n: int, dtype: str, transposed: bool = False) -> Call:
    L0, R0, L1, R1, z = inputs(n, dtype)
    K = ProductOfFactors(LowRank(L0.T, R0), LowRank(L1.T, R1))
    if transposed:
        K = K.T
    return lambda: K.apply(z, n_threads=options.threads)


def numpy_components(options: Options, n: int, dtype: str) -> Call:
    """NumPy: H = (R0 z) R1^T and the column sums of L0 * (H L1), with buffers allocated beforehand."""
    L0, R0, L1, R1, z = inputs(n, dtype)
    scaled, inner = np.empty_like(R0), np.empty_like(L1)

    def call() -> Array:
        H = np.multiply(R0, z, out=scaled) @ R1.T
        out: Array = np.einsum("ai,ai->i", L0, np.matmul(H, L1, out=inner))
        return out

    return call


def numpy_points(options: Options, n: int, dtype: str) -> Call:
    """The same, with the components of each point contiguous."""
    L0, R0, L1, R1, z = (np.ascontiguousarray(x.T) for x in inputs(n, dtype))
    scaled, inner = np.empty_like(R0), np.empty_like(L0)

    def call() -> Array:
        H = np.multiply(R0, z[:, None], out=scaled).T @ R1
        out: Array = np.einsum("ia,ia->i", np.matmul(L0, H, out=inner), L1)
        return out

    return call


def numpy_blocks(options: Options, n: int, dtype: str) -> Call:
    """The same in blocks of points, so that the intermediate arrays stay in cache."""
    L0, R0, L1, R1, z = inputs(n, dtype)
    block = 2048
    out = np.empty(n, dtype)
    slices = [slice(k, min(n, k + block)) for k in range(0, n, block)]

    def call() -> Array:
        H: Array = np.zeros((RANK, RANK), dtype)
        for at in slices:
            H += (R0[:, at] * z[at]) @ R1[:, at].T
        for at in slices:
            np.einsum("ai,ai->i", L0[:, at], H @ L1[:, at], out=out[at])
        return out

    return call


def streaming(options: Options, n: int, dtype: str) -> Call:
    """Reads the four factors once on the same threads, for their largest magnitude."""
    factors = np.concatenate([x.ravel() for x in inputs(n, dtype)[:4]])
    return lambda: cpu.scan(factors, options.threads)


def exact(n: int, dtype: str) -> Array:
    L0, R0, L1, R1, z = (x.astype(np.float64) for x in inputs(n, dtype))
    out: Array = np.einsum("ai,ai->i", L0, (R0 * z) @ R1.T @ L1)
    return out


def run_case(group: Group, options: Options, n: int, dtype: str) -> None:
    jobs = {
        "qkcore": ours,
        "NumPy, components": numpy_components,
        "NumPy, points": numpy_points,
        "NumPy, blocks": numpy_blocks,
    }
    calls = {name: job(options, n, dtype) for name, job in jobs.items()}
    wanted = exact(n, dtype)
    errors = {name: max_error(call(), wanted) for name, call in calls.items()}
    calls["K.T @ z"] = ours(options, n, dtype, transposed=True)
    calls["reading the factors once"] = streaming(options, n, dtype)
    timings = interleave(
        calls, rounds=7 if options.quick else 31, budget=4 if options.quick else 20, sample=0.05
    )
    kept = best_of(timings, [name for name in timings if name.startswith("NumPy")])
    case = f"N={n} {dtype}"
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        if name.startswith("NumPy") and name != kept:
            continue
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors.get(name)))
    group.check(f"factored product {case}", errors["qkcore"], BOUND[dtype])
    group.at_least(f"{case}: speed against NumPy", timings[kept].minimum / mine, WANTED)
    read = timings["reading the factors once"].minimum
    group.at_most(f"{case}: time over reading the factors once", mine / read, STREAM)


def run(options: Options) -> Group:
    group = Group(
        "low_rank",
        f"Product of two experts of rank {RANK}",
        "`K @ z` for K = (L₀R₀) ⊙ (L₁R₁) through the factors. Errors are against float64, relative to "
        "the largest value. The row for reading is one pass over the four factors by the same threads.",
    )
    for n in (20000,) if options.quick else (100000,):
        for dtype in ("float64", "float32"):
            run_case(group, options, n, dtype)
    return group
