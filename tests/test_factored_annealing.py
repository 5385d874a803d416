"""Annealing of factored kernels: a positive matrix of rank one is added, and vanishes in stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.factors import LowRank, ProductOfFactors, low_rank, solve_factored

from .factors import Array


def narrow(n: int, r: int, epsilon: float) -> LowRank:
    """A Gaussian kernel of width epsilon between points and their squares, through r centres."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=n), rng.uniform(size=n) ** 2
    c = np.linspace(0, 1, r)
    return LowRank(
        np.exp(-np.square(x[:, None] - c) / epsilon), np.exp(-np.square(c[:, None] - y) / epsilon)
    )


def solved(K: Any, mu: Array, nu: Array, **how: Any) -> Any:
    return solve_factored(K, mu, nu, on_fail="ignore", **how)


def law(n: int, seed: int) -> Array:
    w = np.random.default_rng(seed).random(n) + 0.1
    out: Array = w / w.sum()
    return out


def test_annealing_pays_for_narrow_kernels() -> None:
    """Sinkhorn's iteration takes thousands of visits, annealing hundreds; auto finds that out."""
    K, u = narrow(400, 150, 3e-4), np.full(400, 1 / 400)
    plain, annealed, auto = (
        solved(K, u, u, solver=solver) for solver in ("alternating", "annealed", "auto")
    )
    assert plain.converged and plain.n_visits > 5000
    for b in (annealed, auto):
        assert b.converged and b.n_visits < 800
        np.testing.assert_allclose(b.plan(), plain.plan(), atol=1e-11)
    assert annealed.method == "annealed, factored"
    assert auto.method == "anderson, then annealed, factored"


@pytest.mark.parametrize("penalty", [None, 5.0, (100.0, np.inf)])
@pytest.mark.parametrize("ranks", [(30,), (12, 9), (4, 3, 5)])
def test_annealing_arrives_at_the_same_bridge(ranks: tuple[int, ...], penalty: Any) -> None:
    """Products of experts, weights of 0, rows and columns of the kernel without an entry, penalties."""
    rng = np.random.default_rng(len(ranks))
    n, m = 70, 50
    experts = [
        LowRank(np.exp(-30 * rng.random((n, r))), np.exp(-30 * rng.random((r, m)))) for r in ranks
    ]
    left, right = experts[0].left.copy(), experts[0].right.copy()
    left[3], right[:, 5] = 0, 0
    experts[0] = LowRank(left, right)
    K = ProductOfFactors(*experts) if len(experts) > 1 else experts[0]
    mu, nu = law(n, 1), law(m, 2)
    mu[[3, 8]] = nu[[5, 11]] = 0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    with np.errstate(divide="ignore"):
        exact = qk.scores.dense(np.log(K.to_numpy()))
    want = qk.bridge(exact, mu, nu, penalty=penalty, tol=1e-11)
    got = solved(K, mu, nu, penalty=penalty, solver="annealed", tol=1e-10)
    assert want.converged and got.converged and got.method == "annealed, factored"
    np.testing.assert_allclose(got.plan(), want.plan(), atol=1e-9)


@pytest.mark.parametrize("solver", ["annealed", "auto"])
def test_zeros_of_the_kernel_are_seen_behind_the_added_part(solver: str) -> None:
    """The added part has no zeros where a row has an entry: the kernel itself has the last word."""
    half = np.full(2, 0.5)
    empty = LowRank(np.array([[1.0], [0.0]]), np.array([[1.0, 1.0]]))
    assert solved(empty, half, half, solver=solver).status == "infeasible"
    blocks = LowRank(np.eye(2), np.eye(2))
    b = solved(blocks, np.array([0.3, 0.7]), half, solver=solver, max_visits=500)
    assert b.status == "visit limit" and b.error > 0.4 - 1e-6


def test_the_guard_judges_the_kernel_itself() -> None:
    """A kernel whose sums go negative, or that has negative entries, is judged as by Sinkhorn's iteration:
    with the added part both would be positive."""
    K = LowRank(np.array([[1.0], [1.0]]), np.array([[1.0, -0.1, 1.0]]))
    mu, nu = np.full(2, 0.5), np.full(3, 1 / 3)
    b = solved(K, mu, nu, solver="annealed")
    assert b.status == "negative kernel" and not b.converged
    rng = np.random.default_rng(0)
    positive = np.exp(rng.normal(size=(30, 30)))
    seen = set()
    for rank in (3, 6, 12, 20, 29):
        G = low_rank(positive, rank)
        u = np.full(30, 1 / 30)
        want, got = (solved(G, u, u, solver=solver) for solver in ("alternating", "annealed"))
        assert got.status == want.status
        seen.add(got.status)
        if want.status != "negative kernel":
            np.testing.assert_allclose(got.plan(), want.plan(), atol=1e-8)
    assert seen == {"converged", "negative entries"}
    with pytest.raises(ValueError, match=r'wanted solver="alternating" for on_negative="continue"'):
        solve_factored(K, mu, nu, solver="annealed", on_negative="continue")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stages_do_not_depend_on_the_size_of_the_kernel(dtype: str) -> None:
    """The added part follows the scale of the rows and of the columns."""
    K, u = narrow(60, 25, 1e-2), np.full(60, 1 / 60, dtype)
    plain = solved(LowRank(K.left.astype(dtype), K.right.astype(dtype)), u, u, solver="annealed")
    a = np.exp(np.linspace(-20, 20, 60))
    scaled = LowRank((K.left * a[:, None]).astype(dtype), (K.right * a[::-1]).astype(dtype))
    other = solved(scaled, u, u, solver="annealed")
    assert plain.converged and other.converged
    assert other.n_visits <= 1.2 * plain.n_visits
    np.testing.assert_allclose(other.plan(), plain.plan(), rtol=2e-3, atol=1e-6)
