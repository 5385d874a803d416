"""Row log-sum-exp of scores computed from points, compared with the time of one exp per entry."""

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
WITHIN_EXP = 2.0
CAUSAL_COST = 0.6  # relative to the full matrix: half of the entries, and the diagonal tiles
KINDS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "distance": (qk.scores.distance, numpy_best.distance_scores, reference.distance_scores),
    "l1": (qk.scores.l1, numpy_best.l1_scores, reference.l1_scores),
    "dot": (qk.scores.dot, numpy_best.dot_scores, reference.dot_scores),
}


def inputs(n: int, d: int, dtype: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(d)
    X, Y = rng.standard_normal((2, n, d)).astype(dtype)
    return X, Y


def torch_blocked(torch: Any, X: Array, Y: Array, beta: float, kind: str) -> Call:
    """A loop over row blocks, the fastest way we know in PyTorch; distances as augmented products."""
    if kind == "distance":
        one = np.ones((len(X), 1), X.dtype)
        left = np.hstack([2 * beta * X, -beta * (X * X).sum(1, keepdims=True), one])
        right = np.hstack([Y, one, -beta * (Y * Y).sum(1, keepdims=True)])
    else:
        left, right = beta * X, Y
    A = torch.from_numpy(np.ascontiguousarray(left, dtype=X.dtype))
    BT = torch.from_numpy(np.ascontiguousarray(right, dtype=X.dtype)).T
    block = 256
    if kind == "l1":
        B, out = torch.from_numpy(beta * Y), torch.empty(len(X), dtype=A.dtype)

        def by_differences() -> Array:
            for start in range(0, len(X), block):
                S = torch.cdist(A[start : start + block], B, p=1).neg_()
                torch.logsumexp(S, 1, out=out[start : start + block])
            result: Array = out.numpy()
            return result

        return by_differences
    buffer = torch.empty((block, len(Y)), dtype=A.dtype)
    out = torch.empty(len(X), dtype=A.dtype)

    def call() -> Array:
        for start in range(0, len(X), block):
            stop = min(start + block, len(X))
            S = torch.mm(A[start:stop], BT, out=buffer[: stop - start])
            torch.logsumexp(S, 1, out=out[start:stop])
        result: Array = out.numpy()
        return result

    return call


def run_case(group: Group, options: Options, n: int, d: int, kind: str, dtype: str) -> None:
    X, Y = inputs(n, d, dtype)
    beta = 1.0 if d < 8 else d**-0.5
    make, make_numpy, make_exact = KINDS[kind]
    s = make(X, Y, beta=beta)
    fast = make_numpy(X, Y, beta)
    kwargs: dict[str, Any] = {"n": n, "m": n, "dtype": X.dtype.type}
    contenders: dict[str, Call] = {
        "qkcore": lambda: s.logsumexp(n_threads=options.threads),
        "qkcore, causal": lambda: s.causal().logsumexp(n_threads=options.threads),
        "NumPy": numpy_best.logsumexp(fast, **kwargs),
    }
    setups: dict[str, Call] = {}
    set_blas = blas_threads_setter()
    if set_blas is not None and options.threads > 1:
        name = "NumPy, Python threads"
        contenders[name] = numpy_best.logsumexp(fast, **kwargs, block=64, workers=options.threads)
        setups["NumPy"] = lambda: set_blas(options.threads)
        setups[name] = lambda: set_blas(1)
    torch = torch_module(options, group)
    if torch is not None:
        contenders["torch, blocked"] = torch_blocked(torch, X, Y, beta, kind)
    # Exact distances are slow in NumPy, so only one row in twenty is checked, and the first and the last.
    checked = np.unique(np.append(np.arange(0, n, 20), n - 1))
    exact = reference.logsumexp(make_exact(X[checked], Y, beta), len(checked))
    seen = reference.causal(make_exact(X[checked], Y, beta), checked, n)
    half = reference.logsumexp(seen, len(checked))
    errors = {
        name: max_error(np.asarray(call())[checked], half if "causal" in name else exact)
        for name, call in contenders.items()
    }
    limit = BestRate(options, dtype, "exp_libmvec", "exp_qkcore")
    timings = interleave(
        contenders,
        rounds=5 if options.quick else 15,
        budget=3 if options.quick else 6,
        probe=limit,
        setups=setups,
    )
    if set_blas is not None:
        set_blas(options.threads)
    case = f"{kind} d={d} N={n} {dtype}"
    kept = best_of(timings, [name for name in timings if name.startswith("NumPy")])
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        if name.startswith("NumPy") and name != kept:
            continue
        visited = n * (n + 1) // 2 if "causal" in name else n * n
        group.add(Row(case, name, timing, visited, timing.minimum / mine, errors[name]))
    for name in ("qkcore", "qkcore, causal"):
        group.check(f"logsumexp {case} ({name})", errors[name], BOUND[dtype])
    if limit.best is not None:
        floor = n * n / (limit.best * 1e9)
        group.add(Row(case, "one exp per entry", Timing((floor,)), n * n, floor / mine))
        if d == 3:
            group.at_most(f"{case}: time over one exp per entry", mine / floor, WITHIN_EXP)
    cost = timings["qkcore, causal"].minimum / mine
    group.at_most(f"{case}: causal over full", cost, CAUSAL_COST)


def run(options: Options) -> Group:
    group = Group(
        "lse",
        "Log-sum-exp from points",
        "Row log-sum-exp of scores that are computed on the fly. The floor is one exponential per "
        "entry, at the rate of libmvec or of qkcore's own exp on data in L1, whichever is faster in "
        "the same run.",
    )
    # At d = 64 most work is the matrix product, which reaches its full rate at a smaller N.
    for d, n in ((3, 2000 if options.quick else 10000), (64, 2000 if options.quick else 4000)):
        for kind in KINDS:
            for dtype in ("float32", "float64"):
                run_case(group, options, n, d, kind, dtype)
    return group
