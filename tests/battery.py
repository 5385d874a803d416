"""A small set of accuracy tests, which is run in a separate process for each instruction set.

`python -m tests.battery` prints the instruction set in use and fails on the first wrong answer.
"""

from __future__ import annotations

import numpy as np

import qkcore as qk
from qkcore._native import cpu

from .checks import check_everything
from .generators import DTYPES, KINDS, MASKS, RHS, Spec, build
from .reference_particles import velocity
from .test_math import exact, exp_arguments, log_arguments, sample_if_slow, ulp_error


def specifications() -> list[Spec]:
    """Every kind and mask, with sizes that leave each remainder of a vector of 2 to 16."""
    found = []
    for dtype in DTYPES:
        for i, kind in enumerate(KINDS):
            for j, mask in enumerate(MASKS):
                n, m = 15 + 3 * i + j, 33 + i + 5 * j
                weight = ("none", "asymmetric", "factored")[(i + j) % 3]
                found.append(Spec(kind, dtype, n, m, 1 + (i + j) % 9, weight, mask))
        found.append(Spec("distance", dtype, 257, 129, 17))
        found.append(Spec("dot", dtype, 33, 31, 65, "asymmetric", "causal", (2,)))
    return found


def check_math() -> None:
    for dtype in DTYPES:
        x = sample_if_slow(exp_arguments(dtype))[::5].copy()
        assert ulp_error(cpu.exp(x), exact("exp", x)).max() <= cpu.EXP_MAX_ULP, f"exp, {dtype}"
        x = sample_if_slow(log_arguments(dtype))[::5]
        x = x[x != 1].copy()
        assert ulp_error(cpu.log(x), exact("log", x)).max() <= cpu.LOG_MAX_ULP, f"log, {dtype}"


def check_operators() -> None:
    """Phases, comparisons, sweeps of the bridge: the reductions that the specifications leave out."""
    for dtype in DTYPES:
        rng = np.random.default_rng(0)
        eps = float(np.finfo(dtype).eps)
        for n in (15, 33, 130):
            X, W = rng.normal(size=(n, 3)).astype(dtype), rng.normal(size=(3, 3)).astype(dtype)
            A = qk.softmax(qk.scores.dot(X, W=W, beta=0.5))
            rho = np.full(n, 1 / n, dtype)
            flow = rho.astype(np.float64)[:, None] * A.to_numpy()
            norms = A.current_norms(rho)
            assert abs(norms.largest - np.abs(flow - flow.T).max()) <= 50 * eps * flow.max()
            M = qk.magnetic.operator(X, beta=0.5, W=W)
            v = rng.normal(size=(n, 2)).astype(dtype)
            assert np.abs(M @ v - M.to_numpy() @ v).max() <= 100 * eps
            J = qk.measure.AttentionJacobian(
                qk.measure.AttentionKernel(qk.measure.DotPotential(0.5, W)), X
            )
            P, x, d = A.to_numpy().astype(np.float64), X.astype(np.float64), np.ones((n, 3))
            d[::3] = -2
            change = 0.5 * (d @ W @ x.T + x @ W @ d.T)
            change -= (P * change).sum(axis=1, keepdims=True)
            want = P @ d + (P * change) @ x
            error = np.abs(J.apply(d.astype(dtype)) - want).max()
            assert error <= 1000 * eps * np.abs(want).max()
            pulled = (J.transpose(X).astype(np.float64) * d).sum()
            assert abs(pulled - (want * x).sum()) <= 1000 * eps * np.abs(want * x).sum()
            for memory in (0, 1e9):
                b = qk.bridge(
                    qk.scores.distance(X, beta=0.3), rho, rho[::-1].copy(), max_memory=memory
                )
                assert b.converged, str(b)
                B = qk.isb.barycentric(X, 1 / 0.6, max_memory=memory)
                same = qk.bridge(qk.scores.distance(X, beta=0.3), rho, rho).project(X)
                assert np.abs(B.values - same).max() <= 1e3 * max(eps, 1e-12), str(B)


def check_gaussian_flows() -> None:
    """One step of every kind against NumPy, with sizes that leave remainders of a vector."""
    for dtype in DTYPES:
        rng = np.random.default_rng(1)
        eps = float(np.finfo(dtype).eps)
        for kind in ("softmax", "l2", "sinkhorn", "linear"):
            for d in (1, 2, 3, 4, 5, 6, 9):
                B = rng.normal(size=(19, d, d))
                mean, cov = rng.normal(size=(19, d)), B @ B.swapaxes(1, 2) / d + 0.1 * np.eye(d)
                Q, K, V = rng.normal(size=(3, d, d)) / d
                a = [x.astype(dtype) for x in (mean, cov, Q, K, V)]
                p = dict(zip("QKV", a[2:], strict=True))
                v = qk.gaussian.velocity(kind, *a[:2], **p)
                sol = qk.gaussian.flow(kind, *a[:2], (0, 0.25), n_steps=1, method="euler", **p)
                scale = 1 + float(np.abs(v.cov_rate).max())
                gap = np.abs(sol.cov[1] - a[1] - np.asarray(0.25, dtype) * v.cov_rate).max()
                assert gap <= 200 * eps * scale, f"{kind}, {d}, {dtype}: {gap}"


def check_particles() -> None:
    """Velocities by both kernels (few and many dimensions), and a flow."""
    rng = np.random.default_rng(1)
    for dtype in DTYPES:
        eps = float(np.finfo(dtype).eps)
        for n, d in ((15, 2), (33, 4), (130, 6)):
            Q, K, V = rng.normal(size=(3, d, d)) / d
            X = rng.normal(size=(n, d)).astype(dtype)
            for kind in ("softmax", "l2", "exp", "relu", "sigmoid"):
                field = qk.AttentionField(kind, Q=Q, K=K, V=V, mask="causal")
                want = velocity(kind, X.astype(np.float64), Q, K, V, mask="causal")
                assert np.abs(field(X) - want).max() <= 200 * eps * np.abs(want).max(), kind
            sol = qk.flow(qk.AttentionField("softmax", Q=Q, K=K, V=V), X, (0.0, 1.0))
            assert sol.status == "finished" and np.isfinite(sol.x).all()


def main() -> None:
    for i, spec in enumerate(specifications()):
        try:
            check_everything(build(spec), k=(None, *RHS)[i % (len(RHS) + 1)])
        except AssertionError as error:
            raise AssertionError(f"{spec}: {error}") from error
    check_math()
    check_operators()
    check_gaussian_flows()
    check_particles()
    bits = qk.softmax(build(Spec("distance", "float32", 65, 129, 3)).scores).to_numpy()
    assert np.isfinite(bits).all()
    print(qk.config()["isa"])


if __name__ == "__main__":
    main()
