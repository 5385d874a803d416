"""Dynamics of a large chain: stationary law and the norms of all currents, in O(N) memory."""

from __future__ import annotations

import numpy as np

import qkcore as qk
from harness import Array, Call, Group, Options, Row, interleave, peak_growth_mb

MEMORY_MB = 100.0


def chain(n: int, dtype: str) -> qk.MarkovOperator:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 8)).astype(dtype)
    W = rng.standard_normal((8, 8)).astype(dtype) / 8
    return qk.softmax(qk.scores.dot(X, W=W))


def everything(options: Options, n: int, dtype: str) -> Call:
    """Builds the inputs and returns the call whose memory memory.py measures."""
    A = chain(n, dtype)

    def call() -> object:
        rho = A.stationary(n_threads=options.threads)
        return A.current_norms(rho, n_threads=options.threads)

    return call


def by_numpy(A: qk.MarkovOperator, rho: Array) -> Call:
    """The same norms, computed by NumPy from the whole matrix, which must fit into memory."""
    s = A.scores.to_numpy()

    def call() -> object:
        P = np.exp(s - s.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        flow = rho[:, None] * P
        J = flow - flow.T
        tilt = 0.5 * np.sum(J * np.log(flow / flow.T))
        return np.abs(J).max(), np.abs(J).sum() / 2, np.sqrt((J * J).sum()), tilt

    return call


def run(options: Options) -> Group:
    group = Group(
        "dynamics",
        "Stationary law and currents",
        "Attention with an asymmetric W on standard normal points in 8 dimensions. Norms of all "
        "currents: largest, total, Frobenius, entropy production.",
    )
    n = 1000 if options.quick else 3000
    for dtype in ("float32", "float64"):
        A = chain(n, dtype)
        rho = A.stationary()
        dense = by_numpy(A, rho)

        def ours(A: qk.MarkovOperator = A, rho: Array = rho) -> object:
            return A.current_norms(rho, n_threads=options.threads)

        norms, want = A.current_norms(rho), dense()
        assert isinstance(want, tuple)
        got = (norms.largest, norms.total, norms.frobenius, norms.entropy_production)
        error = max(abs(a - float(b)) / float(b) for a, b in zip(got, want, strict=True))
        timings = interleave({"qkcore": ours, "NumPy, dense": dense}, rounds=5, budget=5)
        case = f"current norms N={n} {dtype}"
        mine = timings["qkcore"].minimum
        for name, timing in timings.items():
            shown = error if name == "qkcore" else None
            group.add(Row(case, name, timing, n * n, timing.minimum / mine, shown))
        group.check(case, error, 1e-3 if dtype == "float32" else 1e-9)
        group.at_least(f"{case}: speed against NumPy", timings["NumPy, dense"].minimum / mine, 1.0)
    large = 4000 if options.quick else 20000
    call = everything(options, large, "float64")
    timing = interleave({"qkcore": call}, rounds=3, budget=20)["qkcore"]
    grown = peak_growth_mb("dynamics", "everything", options, n=large, dtype="float64")
    case = f"stationary law and current norms N={large} float64"
    group.add(Row(case, "qkcore", timing, large * large, memory_mb=grown))
    group.at_most(f"{case}: memory", grown, MEMORY_MB, " MB")
    return group
