"""Attention on measures: local Lipschitz constants, W1 and maximum entropy, each against a direct method."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, svds

import qkcore as qk
from harness import Array, Call, Group, Options, Row, interleave, peak_growth_mb
from qkcore import measure

SECONDS = 10.0  # local constant at n = 2000, d = 64
DIM = 64


def points(n: int, d: int = DIM) -> Array:
    return np.random.default_rng((n, d)).normal(size=(n, d))


def kernel(d: int = DIM) -> measure.AttentionKernel:
    return measure.AttentionKernel(measure.DotPotential.scaled(d))


def ours_lipschitz(options: Options, n: int) -> Call:
    X = points(n)
    return lambda: measure.AttentionJacobian(kernel(), X).spectral_norm(tol=1e-3).value


def stored_lipschitz(options: Options, n: int) -> Call:
    """The local constant by NumPy products with a stored matrix of weights, and ARPACK."""
    X = points(n)

    def call() -> float:
        P = X @ X.T / math.sqrt(DIM)
        P = np.exp(P - P.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        return float(svds(stored_operator(X, P), k=1, tol=1e-3, ncv=10, random_state=0)[1][0])

    return call


def stored_operator(X: Array, P: Array) -> LinearOperator:
    n, d = X.shape
    Y = P @ X

    def matvec(v: Array) -> Array:
        D = v.reshape(n, d)
        S = (D @ X.T + X @ D.T) / math.sqrt(d) * P
        return np.asarray(P @ D + S @ X - S.sum(axis=1)[:, None] * Y).reshape(-1)

    def rmatvec(u: Array) -> Array:
        U = u.reshape(n, d)
        S = P * (U @ X.T - (U * Y).sum(axis=1)[:, None]) / math.sqrt(d)
        return np.asarray(P.T @ U + S @ X + S.T @ X).reshape(-1)

    return LinearOperator((n * d, n * d), matvec=matvec, rmatvec=rmatvec, dtype=np.float64)


@cache
def exact_lipschitz(n: int) -> float:
    return measure.AttentionJacobian(kernel(), points(n)).spectral_norm(tol=1e-6).value


def run_lipschitz(group: Group, options: Options, n: int) -> None:
    calls = {"qkcore": ours_lipschitz(options, n)}
    if n <= 2000:  # for larger n it takes minutes
        calls["NumPy and svds, weights stored"] = stored_lipschitz(options, n)
    exact = exact_lipschitz(n)
    errors = {name: abs(float(call()) / exact - 1) for name, call in calls.items()}  # type: ignore[arg-type]
    # With stored weights a call takes half a minute at full size, so one round is enough.
    timings = interleave(
        calls, rounds=3 if options.quick else 1, budget=10.0 if options.quick else 60.0
    )
    case = f"local constant, n={n}, d={DIM}"
    mine = timings["qkcore"].minimum
    for name, job in zip(calls, ("ours_lipschitz", "stored_lipschitz"), strict=False):
        memory = peak_growth_mb("measure", job, options, n=n)
        timing = timings[name]
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors[name], memory))
    group.check(f"{case}: qkcore", errors["qkcore"], 5e-3)
    if n == 2000:
        group.at_most(f"{case}: seconds", mine, SECONDS, " s")


def run_w1(group: Group, options: Options, n: int) -> None:
    rng = np.random.default_rng(n)
    X, Y = rng.normal(size=(n, 3)), rng.normal(size=(n - n // 10, 3)) + 0.5
    exact = measure.w1(X, Y)
    calls: dict[str, Callable[[], object]] = {
        "w1 (POT's network simplex)": lambda: measure.w1(X, Y),
        "w1_bracket, 1 %": lambda: measure.w1_bracket(X, Y),
    }
    bracket = measure.w1_bracket(X, Y)
    inside = bracket.lower <= exact * (1 + 1e-12) and exact <= bracket.upper * (1 + 1e-12)
    group.check(f"W1, n={n}: exact value outside the bracket", 0.0 if inside else 1.0, 0.5)
    timings = interleave(calls, rounds=3, budget=5.0 if options.quick else 20.0)
    errors = {"w1_bracket, 1 %": bracket.gap / exact}
    mine = timings["w1_bracket, 1 %"].minimum
    for name, timing in timings.items():
        case = f"W1, {n} and {n - n // 10} points in R³"
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors.get(name, 0.0)))


def run_entropy(group: Group, options: Options, m: int, n: int) -> None:
    rng = np.random.default_rng(m)
    Y, X = rng.normal(size=(n, 4)), rng.normal(size=(m, 4))
    targets = qk.softmax(qk.scores.dot(X, Y, beta=0.5)) @ Y
    want = 0.5 * X

    def one_by_one() -> Array:
        out = np.empty((m, 4))
        for i, f in enumerate(targets):

            def dual(lam: Array, f: Array = f) -> tuple[float, Array]:
                s = Y @ lam
                top = s.max()
                p = np.exp(s - top)
                total = p.sum()
                return float(top + np.log(total) - lam @ f), np.asarray(p @ Y / total - f)

            out[i] = minimize(dual, np.zeros(4), jac=True, method="BFGS", tol=1e-9).x
        return out

    calls = {
        "qkcore, all at once": lambda: measure.maximum_entropy(Y, targets).lam,
        "SciPy BFGS, one by one": one_by_one,
    }
    errors = {name: float(np.abs(call() - want).max()) for name, call in calls.items()}
    timings = interleave(calls, rounds=3, budget=5.0 if options.quick else 20.0)
    mine = timings["qkcore, all at once"].minimum
    for name, timing in timings.items():
        case = f"maximum entropy, {m} targets, {n} points"
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors[name]))
    group.check(f"maximum entropy, m={m}", errors["qkcore, all at once"], 1e-6)


def run(options: Options) -> Group:
    group = Group(
        "measure",
        "Attention on measures",
        "Three tasks. The largest singular value of the Jacobian of self-attention (relative "
        "tolerance 1e-3, errors against 1e-6), in O(n d) memory and with the weights stored. W₁, "
        "exact and as a bracket, whose error is its relative width. λ(x) of maximum entropy, whose "
        "error is against the known λ.",
    )
    qk.set_num_threads(options.threads)
    for n in (500,) if options.quick else (2000, 4000):
        run_lipschitz(group, options, n)
    run_w1(group, options, 300 if options.quick else 2000)
    run_entropy(group, options, 50 if options.quick else 500, 200)
    return group
