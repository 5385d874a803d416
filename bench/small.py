"""Small problems: the fixed cost of a call, and N = 64 ... 400 against the best NumPy code."""

from __future__ import annotations

import numpy as np

import qkcore as qk
import reference
from harness import Array, Call, Group, Options, Row, best_of, interleave, max_error
from peers import blas_threads_setter, optional

OVERHEAD_US = 10.0
BOUND = {"float32": 2e-6, "float64": 5e-15}
BETA = 0.3
# In the first two milliseconds after the pause between contenders, all of them are up to two times slower,
# because clock and caches are cold. A sample is much longer than that, as are loops with small calls.
SAMPLE = 0.02
WHOLE = "softmax(scores.dot(X)) @ V"  # several calls, so the target of one does not apply


def steps(n: int, d: int, dtype: str) -> dict[str, Call]:
    """Each public step alone, and the whole line that a user writes."""
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((2, n, d)).astype(dtype)
    s = qk.scores.dot(X, beta=BETA)
    A = qk.softmax(s)
    return {
        "scores.dot(X)": lambda: qk.scores.dot(X, beta=BETA),
        "scores.distance(X)": lambda: qk.scores.distance(X, beta=BETA),
        "softmax(s)": lambda: qk.softmax(s),
        "A @ V": lambda: A @ V,
        "s.logsumexp()": lambda: s.logsumexp(),
        WHOLE: lambda: qk.softmax(qk.scores.dot(X, beta=BETA)) @ V,
    }


def run_overhead(group: Group, options: Options) -> None:
    for n in (1, 8):
        calls = steps(n, 2, "float64")
        # No threads keep spinning after these calls, so a short pause suffices.
        timings = interleave(calls, rounds=25, budget=3, sample=0.002, settle=0.002)
        for name, timing in timings.items():
            group.add(Row(f"one call, N={n} d=2 float64", name, timing))
            if name != WHOLE:
                group.at_most(f"{name}, N={n}", timing.minimum * 1e6, OVERHEAD_US, " µs")


class NumPySmall:
    """softmax(beta X Y^T) V and its log-sum-exp with buffers allocated beforehand, and without any checks.

    There are several formulations, because the size decides which one is fastest: scores stored by rows or by
    columns (the maximum over the first axis vectorises better), and row sums computed separately or as one
    more column of V.
    """

    def __init__(self, X: Array, Y: Array, V: Array) -> None:
        dtype = X.dtype
        self.X, self.YT, self.V = X, Y.T, V
        self.beta = dtype.type(BETA)
        self.scaled, self.S = np.empty_like(X), np.empty((len(X), len(Y)), dtype)
        self.ST = np.empty((len(Y), len(X)), dtype)
        self.m, self.mT = np.empty((len(X), 1), dtype), np.empty((1, len(X)), dtype)
        self.ones = np.ones(len(Y), dtype)
        columns = V[:, None] if V.ndim == 1 else V
        self.k = columns.shape[1]
        self.V1 = np.hstack([columns, np.ones((len(Y), 1), dtype)])
        self.out1 = np.empty((len(X), self.k + 1), dtype)
        self.total, self.out = np.empty(len(X), dtype), np.empty((len(X), *V.shape[1:]), dtype)

    def weights(self) -> None:
        np.multiply(self.X, self.beta, out=self.scaled)
        np.matmul(self.scaled, self.YT, out=self.S)
        np.maximum.reduce(self.S, axis=1, keepdims=True, out=self.m)
        np.subtract(self.S, self.m, out=self.S)
        np.exp(self.S, out=self.S)

    def weights_by_columns(self) -> None:
        np.multiply(self.X, self.beta, out=self.scaled)
        np.matmul(self.YT.T, self.scaled.T, out=self.ST)
        np.maximum.reduce(self.ST, axis=0, keepdims=True, out=self.mT)
        np.subtract(self.ST, self.mT, out=self.ST)
        np.exp(self.ST, out=self.ST)

    def finish(self, W: Array) -> Array:
        np.matmul(W, self.ones, out=self.total)
        np.matmul(W, self.V, out=self.out)
        np.divide(self.out, self.total[:, None] if self.V.ndim == 2 else self.total, out=self.out)
        return self.out

    def rows(self) -> Array:
        self.weights()
        return self.finish(self.S)

    def columns(self) -> Array:
        self.weights_by_columns()
        return self.finish(self.ST.T)

    def augmented(self) -> Array:
        self.weights()
        self.V1[:, : self.k] = self.V[:, None] if self.V.ndim == 1 else self.V
        np.matmul(self.S, self.V1, out=self.out1)
        value, total = self.out1[:, : self.k], self.out1[:, self.k :]
        np.divide(value, total, out=self.out[:, None] if self.V.ndim == 1 else self.out)
        return self.out

    def lse_rows(self) -> Array:
        self.weights()
        np.matmul(self.S, self.ones, out=self.total)
        np.log(self.total, out=self.total)
        np.add(self.total, self.m[:, 0], out=self.total)
        return self.total

    def lse_columns(self) -> Array:
        self.weights_by_columns()
        np.matmul(self.ones, self.ST, out=self.total)
        np.log(self.total, out=self.total)
        np.add(self.total, self.mT[0], out=self.total)
        return self.total


def contenders(X: Array, Y: Array, V: Array, op: str) -> dict[str, Call]:
    best = NumPySmall(X, Y, V)
    if op == "logsumexp":
        return {
            "qkcore": lambda: qk.scores.dot(X, Y, beta=BETA).logsumexp(),
            "NumPy by rows": best.lse_rows,
            "NumPy by columns": best.lse_columns,
        }
    return {
        "qkcore": lambda: qk.softmax(qk.scores.dot(X, Y, beta=BETA)) @ V,
        "NumPy by rows": best.rows,
        "NumPy by columns": best.columns,
        "NumPy, sum as a column": best.augmented,
    }


def run_case(group: Group, options: Options, n: int, d: int, op: str, dtype: str) -> float:
    """Adds the rows of one case; returns how many times faster than NumPy qkcore is."""
    rng = np.random.default_rng(n)
    X, Y = rng.standard_normal((2, n, d)).astype(dtype)
    V = rng.standard_normal((n, d) if op == "matrix" else n).astype(dtype)
    calls = contenders(X, Y, V, op)
    scores = reference.dot_scores(X, Y, BETA)
    if op == "logsumexp":
        exact = reference.logsumexp(scores, n)
    else:
        exact = reference.attention(scores, n, V)
    errors = {name: max_error(np.array(call()), exact) for name, call in calls.items()}
    setups: dict[str, Call] = {}
    set_blas = blas_threads_setter()
    if set_blas is not None and options.threads > 1:
        # The best number of BLAS threads depends on N, so NumPy competes with one and with all.
        for name in [name for name in calls if name.startswith("NumPy")]:
            single = f"{name}, 1 BLAS thread"
            calls[single], errors[single] = calls[name], errors[name]
            setups[single] = lambda: set_blas(1)
            setups[name] = lambda: set_blas(options.threads)
    # The best of more noisy times is smaller by luck. So NumPy's formulations compete first, and the fastest
    # of them then has as many rounds as qkcore.
    names = [name for name in calls if name.startswith("NumPy")]
    tried = interleave(
        {name: calls[name] for name in names}, budget=3, sample=SAMPLE, setups=setups
    )
    kept = best_of(tried, names)
    pair = {name: calls[name] for name in ("qkcore", kept)}
    rounds = 4 if options.quick else 20
    timings = interleave(pair, rounds=rounds, budget=5, sample=SAMPLE, setups=setups)
    if set_blas is not None:
        set_blas(options.threads)
    case = f"{op} N={n} d={d} {dtype}"
    mine = timings["qkcore"].minimum
    for name in ("qkcore", kept):
        timing = timings[name]
        group.add(Row(case, name, timing, n * n, timing.minimum / mine, errors[name]))
    # The bound is relative to V, because averages of V shrink with N while rounding errors do not.
    scale = 1.0 if op == "logsumexp" else float(np.abs(exact).max() / np.abs(V).max())
    group.check(f"small {case}", errors["qkcore"] * scale, BOUND[dtype])
    return timings[kept].minimum / mine


def run(options: Options) -> Group:
    group = Group(
        "small",
        "Small problems",
        "The whole call, from points to result, is compared with the best of several NumPy "
        "formulations whose buffers are allocated beforehand. A trial run chooses the best one, then "
        "the two take turns. `vector` and `matrix` are `softmax(s) @ V` with V of shape (N,) and (N, "
        "d).",
    )
    optional("threadpoolctl", group)
    qk.set_num_threads(options.threads)
    run_overhead(group, options)
    sizes = (64, 400) if options.quick else (64, 200, 400)
    dimensions = (16,) if options.quick else (2, 16, 64)
    for op in ("vector", "matrix", "logsumexp"):
        for dtype in ("float32", "float64"):
            for n in sizes:
                speeds = {d: run_case(group, options, n, d, op, dtype) for d in dimensions}
                worst = min(speeds, key=lambda d: speeds[d])
                claim = f"{op} N={n} {dtype}: speed against NumPy, worst d (d={worst})"
                group.at_least(claim, speeds[worst], 1.0)
    return group
