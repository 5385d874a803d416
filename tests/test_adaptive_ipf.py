"""Algorithm 2 of EOT by the solver of bridges, against a simple NumPy version of its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

import qkcore as qk
from qkcore._bridge_kernels import ScoresKernel
from qkcore._bridge_solve import METHODS
from qkcore._native import cpu


def problem(n: int, m: int, seed: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    mu, nu = rng.random(n) + 0.1, rng.random(m) + 0.1
    mu[2] = nu[3] = 0
    x, y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2)) + 0.3
    return x, y, mu / mu.sum(), nu / nu.sum()


def combination(points: list[Any], images: list[Any]) -> Any:
    """Anderson's point: the combination, of sum 1, of the images whose combined step is least."""
    steps = np.array(images) - np.array(points)
    weights = np.linalg.lstsq((steps[:-1] - steps[-1]).T, -steps[-1], rcond=None)[0]
    return np.append(weights, 1 - weights.sum()) @ np.array(images)


def reading(S: Any, mu: Any, nu: Any, eps: float, tol: float, most: int) -> dict[str, Any]:
    """b, then a; the TV of both marginals; at every fifth iteration the extrapolation of the last
    five of log b, kept only if the TV falls; both stopping rules."""
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(mu), np.log(nu)
    live = nu > 0

    def a_of(b: Any) -> Any:
        return log_mu - logsumexp(S + b, axis=1)

    def b_of(a: Any) -> Any:
        return log_nu - logsumexp(S + a[:, None], axis=0)

    def tv(a: Any, b: Any) -> float:
        plan = np.exp(S + a[:, None] + b)
        return 0.5 * float(np.abs(plan.sum(1) - mu).sum() + np.abs(plan.sum(0) - nu).sum())

    def largest(x: Any, y: Any) -> float:
        both = np.isfinite(x) & np.isfinite(y)
        return float(np.abs(x[both] - y[both]).max())

    a, b = np.zeros(len(mu)), np.zeros(len(nu))
    points: list[Any] = []
    images: list[Any] = []
    out: dict[str, Any] = {"tv": [], "change": [], "dual": [], "kept": 0}
    following = b_of(a)
    for k in range(1, most + 1):
        before, b = (a, b), following
        a = a_of(b)
        off, following = tv(a, b), b_of(a)
        points, images = [*points[-4:], b[live]], [*images[-4:], following[live]]
        if k % 5 == 0:
            trial = np.full(len(nu), -np.inf)
            trial[live] = combination(points, images)
            if tv(a_of(trial), trial) < off:
                b, a = trial, a_of(trial)
                off, following = tv(a, b), b_of(a)
                out["kept"] += 1
        out["tv"].append(off)
        out["change"].append(eps * max(largest(a, before[0]), largest(b, before[1])))
        out["dual"].append(1 - mu[mu > 0] @ a[mu > 0] - nu[live] @ b[live])
        if off < tol and out["change"][-1] < tol:
            break
    return out


@pytest.mark.parametrize(("seed", "tol"), [(0, 1e-6), (1, 1e-4), (2, 1e-8), (3, 1e-3)])
def test_records_are_those_of_the_text(seed: int, tol: float) -> None:
    x, y, mu, nu = problem(20 + 5 * seed, 31 - 3 * seed, seed)
    found = qk.adaptive_ipf(x, y, mu, nu, tol=tol)
    S = -0.5 * np.square(x[:, None] - y).sum(-1) / found.epsilon
    want = reading(S, mu, nu, found.epsilon, tol, 1000)
    assert found.converged and found.n_iter == len(want["tv"])
    np.testing.assert_allclose(found.tv, want["tv"], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found.potential_change, want["change"], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found.dual_objective, want["dual"], rtol=1e-9)
    # Every iteration is one visit, and so is every trial; the first b takes another.
    assert found.n_visits == 1 + found.n_iter + found.n_iter // 5
    assert np.isneginf(found.log_a[2]) and np.isneginf(found.log_b[3])
    assert want["kept"] > 0 or found.n_iter < 5


def test_marginals_of_any_mass_are_recorded_as_they_are() -> None:
    x, y, mu, nu = problem(25, 20, 5)
    one, ten = (
        qk.adaptive_ipf(x, y, c * mu, c * nu, tol=1e-5 * c, epsilon=1.0) for c in (1.0, 10.0)
    )
    np.testing.assert_allclose(ten.tv[: one.n_iter], 10 * one.tv, rtol=1e-6)
    np.testing.assert_allclose(ten.plan().sum(), 10, rtol=1e-5)


def test_an_observer_sees_the_potentials_and_ends_the_solve() -> None:
    """What adaptive_ipf is made of, at the level of the core."""
    x, y, mu, nu = problem(25, 20, 6)
    kernel = ScoresKernel(qk.scores.distance(x, y, beta=2.0)).native
    start = np.zeros(25), np.zeros(20)

    def solve(method: str, stop: int, **options: Any) -> tuple[Any, list[Any]]:
        seen: list[Any] = []

        def observe(f: Any, g: Any) -> bool:
            seen.append((f, g))
            return len(seen) == stop

        limits: Any = -1.0, 50, 10_000, np.inf, np.inf, None, 1
        how: Any = METHODS[method], *limits
        return cpu.solve_bridge(kernel, mu, nu, *start, *how, **options, observe=observe), seen

    for method in ("alternating", "relaxed", "anderson", "newton"):
        (f, g, errors, _, _, code, _), seen = solve(method, 4)
        assert cpu.BRIDGE_STATUS[code] == "converged" and len(errors) == len(seen) == 4
        np.testing.assert_array_equal(seen[-1][0], f)
        np.testing.assert_array_equal(seen[-1][1], g)
    (*_, errors, _, _, code, _), seen = solve("anderson", 1000, period=5)
    assert cpu.BRIDGE_STATUS[code] == "iteration limit" and len(errors) == len(seen) == 50
    # A memory of more than one change helps. With a period that is never reached, it is Sinkhorn's iteration.
    ends = [solve("anderson", 12, memory=k, period=p)[0][2] for k, p in ((1, 5), (4, 5), (4, 100))]
    assert ends[1][-1] < ends[0][-1] < ends[2][-1]
    plain = solve("alternating", 12)[0][2]
    np.testing.assert_allclose(ends[2][-1], plain[-1], rtol=0.5)
