"""Large bridges in float64 store their kernel in single precision (DAC-7) and must be as accurate as others.

From 2^20 entries on, stored entries are rounded, and exact visits measure the effect on the sums.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import qkcore as qk

from .test_solvers import SOLVERS, clouds, law

N, M = 1030, 1050  # just above 2^20 entries, no multiple of any tile


def both(
    s: qk.Scores, mu: np.ndarray, nu: np.ndarray, **options: object
) -> tuple[qk.SchrodingerBridge, ...]:
    """The stored solve, and the one that computes every entry at every visit."""
    return tuple(
        qk.bridge(s, mu, nu, max_memory=memory, **options)  # type: ignore[arg-type]
        for memory in (1e9, 0)
    )


def same(stored: qk.SchrodingerBridge, exact: qk.SchrodingerBridge, atol: float) -> None:
    assert stored.converged, str(stored)
    assert exact.converged, str(exact)
    assert stored.method.endswith("stored") and exact.method.endswith("on the fly")
    for got, want in zip(stored.marginals(), (stored.mu, stored.nu), strict=True):
        assert np.abs(got - want).sum() <= 1.001 * stored.tol, (
            "by marginals from the scores themselves"
        )
    np.testing.assert_allclose(stored.plan(), exact.plan(), rtol=0, atol=atol)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("epsilon", [0.2, 0.02])
def test_every_solver(solver: str, epsilon: float) -> None:
    s, mu, nu = clouds(N, M, epsilon)
    stored, exact = both(s, mu, nu, solver=solver, tol=1e-10)
    same(stored, exact, 1e-10)
    # Rounding must not cost iterations: a few exact visits on top.
    assert stored.n_visits <= 1.25 * exact.n_visits + 8


@pytest.mark.parametrize("epsilon", [0.005, 0.001])
def test_small_temperatures(epsilon: float) -> None:
    """Potentials move by hundreds, and entries are taken anew."""
    s, mu, nu = clouds(N, M, epsilon)
    stored, exact = both(s, mu, nu, tol=1e-9)
    same(stored, exact, 1e-9)


@pytest.mark.parametrize("tol", [1e-5, 1e-9, 1e-11, 1e-13])
def test_tolerances(tol: float) -> None:
    """Met by single precision itself, met with corrections, and met by doubles in the end."""
    s, mu, nu = clouds(N, M, 0.1)
    stored, exact = both(s, mu, nu, tol=tol)
    same(stored, exact, 2 * tol)


def test_masks_zeros_and_shifts() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(N, M)) * 3
    mask = rng.random((N, M)) < 0.7
    s = (
        qk.scores.dense(Z)
        .masked(mask)
        .shift(rows=200 * rng.normal(size=N), columns=200 * rng.normal(size=M))
    )
    mu, nu = law(rng, N), law(rng, M)
    mu[::7] = 0
    nu[::5] = 0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    stored, exact = both(s, mu, nu)
    same(stored, exact, 1e-9)
    plan = stored.plan()
    assert not plan[::7].any() and not plan[:, ::5].any() and not plan[~mask].any()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("epsilon", [0.1, 0.02, 0.003])
def test_one_matrix(order: Literal["C", "F"], epsilon: float) -> None:
    """What rounding does is measured by the loop of the final check, in a matrix of either order."""
    rng = np.random.default_rng(5)
    cost = ((rng.random((N, 1, 2)) - rng.random((M, 2))) ** 2).sum(-1)
    cost[rng.random((N, M)) < 0.3] = np.inf
    Z = np.asarray(-cost / cost[np.isfinite(cost)].mean(), order=order)
    s = qk.scores.dense(Z) * (1 / epsilon)
    mu, nu = law(rng, N), law(rng, M)
    mu[::7] = 0
    nu[::5] = 0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    stored, exact = both(s, mu, nu, tol=1e-11)
    same(stored, exact, 1e-11)
    assert stored.n_visits <= exact.n_visits + 8
    plan = stored.plan()
    assert not plan[::7].any() and not plan[:, ::5].any() and not plan[np.isinf(cost)].any()


@pytest.mark.parametrize("least", [1e-19, 1e-25, 1e-300])
def test_weights_of_every_size(least: float) -> None:
    """Below 1e-20 of the largest the entries are stored as they are; above, small weights are met too."""
    s, mu, nu = clouds(N, M, 0.3)
    mu[3] = nu[5] = least
    mu, nu = mu / mu.sum(), nu / nu.sum()
    stored, exact = both(s, mu, nu)
    same(stored, exact, 1e-9)
    rows, cols = stored.marginals()
    np.testing.assert_allclose(rows[3], mu[3], rtol=1e-6)
    np.testing.assert_allclose(cols[5], exact.marginals()[1][5], rtol=1e-3)


def test_penalties_and_symmetric_updates_are_not_rounded() -> None:
    s, mu, nu = clouds(N, M, 0.2)
    stored, exact = both(s, mu, nu, penalty=0.5)
    np.testing.assert_allclose(stored.plan(), exact.plan(), rtol=1e-7, atol=1e-12)
    X = np.random.default_rng(0).normal(size=(N, 2))
    t = qk.scores.distance(X, beta=0.5)
    rho = np.full(N, 1 / N)
    same(*both(t, rho, rho, solver="symmetric", tol=1e-11), 1e-11)


@pytest.mark.parametrize("solver", ["alternating", "anderson"])
def test_a_start_near_the_solution(solver: str) -> None:
    """The first visit is exact, and the second so near that what rounding does is measured between them."""
    s, mu, nu = clouds(N, M, 0.1)
    solved = qk.bridge(s, mu, nu, tol=1e-11, max_memory=0)
    near = solved.f, solved.g + 1e-5 * np.random.default_rng(1).standard_normal(M)
    stored, exact = both(s, mu, nu, solver=solver, tol=1e-10, init=near)
    same(stored, exact, 1e-10)
    assert stored.n_visits <= exact.n_visits + 4


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_again(threads: int) -> None:
    s, mu, nu = clouds(N, M, 0.02)
    first, second = (qk.bridge(s, mu, nu, max_memory=1e9, n_threads=threads) for _ in range(2))
    np.testing.assert_array_equal(first.f, second.f)
    np.testing.assert_array_equal(first.g, second.g)


def test_infeasible_and_limited_problems_say_so() -> None:
    mask = np.ones((N, M), bool)
    mask[:, 7] = False
    s = qk.scores.dense(np.zeros((N, M))).masked(mask)
    b = qk.bridge(s, np.full(N, 1 / N), np.full(M, 1 / M), max_memory=1e9)
    assert not b.converged and b.status == "infeasible"
    s, mu, nu = clouds(N, M, 0.001)
    short = qk.bridge(s, mu, nu, max_memory=1e9, max_iter=5)
    assert not short.converged and short.status == "iteration limit"
