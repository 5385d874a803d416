"""Heat flow by iterated bridges against the same scheme on POT and in NumPy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from harness import Array, Group, Options, Row, Timing
from peers import optional
from qkcore import isb

EPSILON = 0.05
TOL = 1e-9
WANTED = 4.0
POT_ITERATIONS = 100  # per step; POT has not converged by then, so its time is a lower bound
MIXTURE = isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])


def start(n: int, d: int) -> Array:
    """Particles of the poster's mixture along the first axis, standard normal along the others."""
    X = np.random.default_rng(n + d).standard_normal((n, d))
    X[:, :1] = MIXTURE.quantile_grid(n)
    return X


def costs(X: Array) -> Array:
    square = (X * X).sum(axis=1)
    C = square[:, None] + square - 2 * X @ X.T
    return np.maximum(C, 0, out=C) / 2


class NumpyScheme:
    """NumPy: the averaged update with a stored kernel; potentials are kept from step to step."""

    def __init__(self, n: int) -> None:
        self.n, self.g, self.visits = n, np.full(n, -0.5 * math.log(n)), 0

    def step(self, X: Array) -> Array:
        K = costs(X)
        K *= -1 / EPSILON
        np.exp(K, out=K)
        weight = 1 / self.n
        for _ in range(1000):
            self.visits += 1
            row = np.exp(self.g)
            sums = K @ row
            if np.abs(row * sums - weight).sum() <= TOL:
                break
            self.g = 0.5 * (self.g + math.log(weight) - np.log(sums))
        return np.asarray(2 * X - (K @ (row[:, None] * X)) / sums[:, None])


def pot_step(ot: object, X: Array, iterations: int) -> tuple[Array, float]:
    """One step by POT's plain scaling, and the marginal error that it leaves."""
    n = len(X)
    a = np.full(n, 1 / n)
    plan = ot.sinkhorn(  # type: ignore[attr-defined]
        a, a, costs(X), EPSILON, numItermax=iterations, stopThr=TOL / math.sqrt(n), warn=False
    )
    off = max(float(np.abs(plan.sum(axis) - a).sum()) for axis in (0, 1))
    return 2 * X - (plan @ X) / plan.sum(axis=1)[:, None], off


def timed(call: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def run_case(group: Group, options: Options, n: int, d: int, n_steps: int) -> None:
    X = start(n, d)
    case = f"heat flow N={n} d={d} eps={EPSILON}, {n_steps} steps"
    few = 3

    def ours(count: int, dtype: str = "float64") -> isb.BridgeFlow:
        return isb.heat_flow(
            X.astype(dtype), EPSILON, count, n_threads=options.threads, save_every=0
        )

    ours(1)
    seconds, single = [], []
    for _ in range(2):
        used, flow = timed(lambda: ours(n_steps))
        seconds.append(used)
        single.append(timed(lambda: ours(n_steps, "float32"))[0])
    assert isinstance(flow, isb.BridgeFlow)
    # The variance of the particles must grow by the time, or by less, at most by the self weight.
    grown = (flow.covariance()[-1] - flow.covariance()[0])[0, 0] / flow.t[-1]
    group.check(f"{case}: converged", float(flow.errors.max()) if flow.converged else math.nan, TOL)
    group.check(f"{case}: growth of the variance", abs(grown - 1), 0.1)
    if d == 1:
        exact = MIXTURE.heat(float(flow.t[-1]))
        group.check(f"{case}: W2 to the exact law", exact.w2(flow.X), 4 * MIXTURE.w2(X))
        group.notes.append(f"{case}: W2 to the exact law {exact.w2(flow.X):.2e} at the end")
    mine = Timing(tuple(seconds))
    group.add(Row(case, "qkcore", mine, error=float(flow.errors.max())))
    group.add(Row(case, "qkcore, float32", Timing(tuple(single))))
    group.notes.append(f"{case}: {flow.n_iter.mean():.1f} visits per step")

    scheme, Y = NumpyScheme(n), X
    spent = 0.0
    for k in range(1 + few):  # the first step, which starts cold, is not counted
        used, moved = timed(lambda Y=Y: scheme.step(Y))  # type: ignore[misc]
        Y = np.asarray(moved)
        spent += used if k else 0.0
    off = float(np.abs(Y - isb.heat_flow(X, EPSILON, 1 + few).X).max())
    group.check(f"{case}: against NumPy's averaged update", off, 1e-7)
    scaled = Timing((spent / few * n_steps,))
    ratio = scaled.minimum / mine.minimum
    group.add(Row(case, "NumPy, averaged update", scaled, ratio=ratio, error=TOL))
    group.at_least(f"{case}: against NumPy's averaged update", ratio, 2.0)

    ot = optional("ot", group)
    if ot is not None:
        used, result = timed(lambda: pot_step(ot, X, POT_ITERATIONS))
        assert isinstance(result, tuple)
        scaled = Timing((used * n_steps,))
        ratio = scaled.minimum / mine.minimum
        name = f"POT sinkhorn, {POT_ITERATIONS} iterations a step"
        group.add(Row(case, name, scaled, ratio=ratio, error=result[1]))
        group.at_least(f"{case}: against POT stopped early", ratio, WANTED)


def run(options: Options) -> Group:
    group = Group(
        "isb",
        "Iterated bridges",
        "Times are for all steps. Errors are the L1 marginal errors of the bridges; qkcore and NumPy "
        f"solve to {TOL:g}. POT's alternating updates converge slowly when both marginals are one "
        f"cloud, so POT is stopped after {POT_ITERATIONS} iterations, and only one of its steps is "
        "timed.",
    )
    for d in (1, 2):
        n, n_steps = (600, 10) if options.quick else (5000, 100)
        run_case(group, options, n, d, n_steps)
    return group
