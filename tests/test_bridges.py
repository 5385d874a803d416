"""Bridges (DAC-7): marginals, potentials, statuses, and refused input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import qkcore as qk

from .generators import DTYPES
from .reference import Array


def law(rng: np.random.Generator, n: int, dtype: str = "float64") -> Array:
    rho = rng.exponential(size=n) + 0.05
    return (rho / rho.sum()).astype(dtype)


def problem(
    n: int, m: int, dtype: str = "float64", seed: int = 0
) -> tuple[qk.Scores, Array, Array]:
    rng = np.random.default_rng((seed, n, m))
    X, Y = rng.normal(size=(n, 2)).astype(dtype), rng.normal(size=(m, 2)).astype(dtype)
    return qk.scores.distance(X, Y, beta=0.5), law(rng, n, dtype), law(rng, m, dtype)


def by_scaling(s: Array, mu: Array, nu: Array) -> Array:
    """The textbook iteration (DAC eq 64) on the kernel itself."""
    K = np.exp(s.astype(np.float64))
    v = np.ones(len(nu))
    for _ in range(20_000):
        u = mu / (K @ v)
        v = nu / (K.T @ u)
    return u[:, None] * K * v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 3), (64, 65), (33, 100)])
def test_the_coupling(shape: tuple[int, int], dtype: str) -> None:
    """DAC-7, eqs 16 and 63-64: against plain scaling, both dtypes, N != M."""
    s, mu, nu = problem(*shape, dtype)
    b = qk.bridge(s, mu, nu)
    assert b.converged
    assert b.status == "converged"
    assert b.f.dtype == b.g.dtype == b.plan().dtype == dtype
    tol = 1e-5 if dtype == "float32" else 1e-9
    want = by_scaling(s.to_numpy(), mu.astype(np.float64), nu.astype(np.float64))
    np.testing.assert_allclose(b.plan(), want, atol=tol)
    rows, cols = b.marginals()
    assert np.abs(rows - mu).sum() <= b.tol
    assert np.abs(cols - nu).sum() <= b.tol
    assert abs(np.sum(nu.astype(np.float64) * b.g)) <= 20 * np.finfo(dtype).eps
    assert b.n_iter == len(b.errors)
    plan = want[want > 0]
    assert b.cost == pytest.approx(-np.sum(want * s.to_numpy()), rel=100 * tol)
    assert b.entropy == pytest.approx(-np.sum(plan * np.log(plan)), rel=100 * tol, abs=tol)
    V = np.random.default_rng(0).normal(size=(shape[1], 3)).astype(dtype)
    np.testing.assert_allclose(b.project(V), want @ V / want.sum(1, keepdims=True), atol=100 * tol)
    assert "converged" in str(b)


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 1000))
def test_no_other_coupling_is_closer_to_the_kernel(n: int, m: int, seed: int) -> None:
    """DAC-7: the minimiser of sum P (log P/K - 1) under the marginals, by perturbation."""
    s, mu, nu = problem(n, m, seed=seed)
    plan, logits = qk.bridge(s, mu, nu, tol=1e-12).plan(), s.to_numpy()

    def objective(P: Array) -> float:
        return float(np.sum(P * (np.log(P) - logits - 1)))

    rng = np.random.default_rng(seed)
    for _ in range(5):
        i, j = rng.choice(n, 2, replace=False), rng.choice(m, 2, replace=False)
        cycle = np.zeros((n, m))  # moves mass round a square: the marginals stay
        cycle[i[0], j[0]] = cycle[i[1], j[1]] = 1
        cycle[i[0], j[1]] = cycle[i[1], j[0]] = -1
        size = 0.1 * plan[np.ix_(i, j)].min()
        assert objective(plan + size * cycle) > objective(plan)
        assert objective(plan - size * cycle) > objective(plan)


def test_weights_of_zero_are_exact() -> None:
    s, mu, nu = problem(10, 8)
    mu[[0, 4]] = 0
    nu[3] = 0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    b = qk.bridge(s, mu, nu)
    plan = b.plan()
    assert b.converged
    assert (plan[[0, 4]] == 0).all()
    assert (plan[:, 3] == 0).all()
    assert np.isneginf(b.f[[0, 4]]).all()
    assert np.isneginf(b.g[3])
    live = np.ix_(mu > 0, nu > 0)
    want = qk.bridge(qk.scores.dense(s.to_numpy()[live]), mu[mu > 0], nu[nu > 0]).plan()
    np.testing.assert_allclose(plan[live], want, atol=1e-9)
    # A warm start from it, for a problem whose mass is not zero there.
    again = qk.bridge(s, np.full(10, 0.1), np.full(8, 0.125), init=b)
    assert again.converged


def test_causal_masks_with_uniform_marginals() -> None:
    """DAC-7: the only coupling is the identity; the iteration creeps, and it is said beforehand."""
    s, _, _ = problem(6, 6)
    u = np.full(6, 1 / 6)
    for masked in (s.causal(), s.window(0, None), qk.scores.dense(s.to_numpy()).causal()):
        b = qk.bridge(masked, u, u)
        assert b.status == "no total support"
        assert not b.converged
        usable = qk.usable_entries(masked, u, u)
        np.testing.assert_array_equal(usable, np.eye(6, dtype=bool))
        limit = qk.bridge(masked.masked(usable), u, u)
        assert limit.converged
        np.testing.assert_allclose(limit.plan(), np.eye(6) / 6, atol=1e-12)
        with pytest.warns(qk.ConvergenceWarning, match="no total support"):
            np.testing.assert_allclose(b.plan(), np.eye(6) / 6, atol=0.02)
    # Marginals that leave room below the diagonal have a bridge of full support.
    down = np.arange(6, 0, -1) / 21
    fine = qk.bridge(s.causal(), down[::-1].copy(), down)
    assert fine.converged
    assert (np.triu(fine.plan(), 1) == 0).all()
    # With the marginals exchanged there is none.
    assert qk.bridge(s.causal(), down, down[::-1].copy(), max_iter=300).status == "infeasible"


def test_masks_and_infeasible_problems() -> None:
    s, mu, nu = problem(6, 6)
    hidden = np.ones((6, 6), bool)
    hidden[2] = False
    infeasible = qk.bridge(s.masked(hidden), mu, nu)
    assert infeasible.status == "infeasible"
    assert not infeasible.converged
    window = qk.bridge(s.window(2, 2), np.full(6, 1 / 6), np.full(6, 1 / 6))
    assert window.converged
    assert (window.plan()[0, 3:] == 0).all()
    with pytest.raises(ValueError, match="no coupling"):
        qk.usable_entries(s.masked(hidden), mu, nu)


@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 5000))
def test_feasibility_against_linear_programming(n: int, m: int, seed: int) -> None:
    """DAC-7, B.2: feasible, usable entries and total support, entry by entry with SciPy's HiGHS."""
    rng = np.random.default_rng((seed, n, m))
    mask = rng.random((n, m)) < 0.55
    mu, nu = rng.integers(1, 5, n).astype(float), rng.integers(1, 5, m).astype(float)
    nu *= mu.sum() / nu.sum()
    mu, nu = mu / mu.sum(), nu / nu.sum()
    s = qk.scores.dense(np.where(mask, rng.normal(size=(n, m)), -np.inf))
    equalities = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    bounds = [(0, None if keep else 0) for keep in mask.ravel()]

    def best(entry: int) -> float | None:
        cost = np.zeros(n * m)
        cost[entry] = -1
        found = linprog(cost, A_eq=equalities, b_eq=np.concatenate([mu, nu]), bounds=bounds)
        return -found.fun if found.status == 0 else None

    if best(0) is None:
        with pytest.raises(ValueError, match="no coupling"):
            qk.usable_entries(s, mu, nu)
        assert not qk.bridge(s, mu, nu, max_iter=500).converged
        return
    want = np.array([(best(k) or 0.0) > 1e-9 for k in range(n * m)]).reshape(n, m)
    np.testing.assert_array_equal(qk.usable_entries(s, mu, nu), want)
    b = qk.bridge(s, mu, nu, max_iter=20_000, tol=1e-8)
    if (want == mask).all():
        assert b.status in ("converged", "iteration limit")
    elif not b.converged:
        assert b.status == "no total support"


def test_warm_starts() -> None:
    s, mu, nu = problem(40, 50)
    cold = qk.bridge(s, mu, nu)
    warm = qk.bridge(s, mu, nu, init=cold)
    assert warm.n_iter == 1
    by_hand = qk.bridge(s, mu, nu, init=(cold.f, cold.g))
    assert by_hand.n_iter == 1
    np.testing.assert_allclose(warm.plan(), cold.plan(), atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_extreme_scores(scale: float) -> None:
    """Logits of thousands in the log domain: no overflow, an honest status."""
    rng = np.random.default_rng(0)
    Z = scale * rng.normal(size=(20, 20))
    b = qk.bridge(qk.scores.dense(Z), np.full(20, 0.05), np.full(20, 0.05), max_iter=2000)
    assert np.isfinite(b.f).all()
    assert np.isfinite(b.g).all()
    assert b.converged == (b.error <= b.tol)
    assert b.status in ("converged", "iteration limit", "stagnated")


def test_wrong_arguments_are_named() -> None:
    s, mu, nu = problem(4, 5)
    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"mu": mu[:3]}, ValueError, "mu"),
        ({"mu": -mu}, ValueError, "mu: wanted weights >= 0"),
        ({"nu": 2 * nu}, ValueError, "nu: wanted the total mass of mu"),
        ({"nu": np.zeros(5)}, ValueError, "nu: wanted some mass"),
        ({"mu": mu * (1 + 1j)}, TypeError, "mu"),
        ({"mu": np.where(np.arange(4) == 1, np.nan, mu)}, ValueError, "mu"),
        ({"mu": mu[None]}, ValueError, "mu"),
        ({"tol": 0}, ValueError, "tol"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"solver": "magic"}, ValueError, "solver"),
        ({"solver": "symmetric"}, ValueError, "symmetric"),
        ({"init": 3}, TypeError, "init"),
        ({"init": (np.zeros(4), np.zeros(4))}, ValueError, "init g"),
        ({"kernel": np.zeros((4, 5))}, TypeError, "qk.scores.dense"),
    ]
    for change, error, text in cases:
        arguments: dict[str, object] = {"kernel": s, "mu": mu, "nu": nu, **change}
        with pytest.raises(error, match=text):
            qk.bridge(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="square"):
        qk.sinkhorn(s)
    with pytest.raises(RuntimeError, match="iteration limit after 3"):
        qk.sinkhorn(qk.scores.dot(np.random.default_rng(0).normal(size=(9, 3))), max_iter=3)
