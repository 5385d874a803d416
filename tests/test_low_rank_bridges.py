"""Bridges over low-rank products of experts; circle and trefoil of D.1 (DAC-10, DAC-12; erratum 11)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore.factors import (
    FactoredBridge,
    LowRank,
    ProductOfFactors,
    compression_errors,
    low_rank,
    solve_factored,
)

from .factors import DTYPES, Array, factors

# ---- D.1 ----------------------------------------------------------------------------------------

N = 400
T = np.arange(N) / N


def standardized(X: Array) -> Array:
    size = X.std(axis=0)
    out: Array = (X - X.mean(axis=0)) / np.where(size > 0, size, 1)
    return out


@cache
def curves() -> tuple[Array, Array]:
    a = 2 * np.pi * T
    knot = 2 + np.cos(3 * a)
    circle = np.c_[np.cos(a), np.sin(a), 0 * a]
    trefoil = np.c_[knot * np.cos(2 * a), knot * np.sin(2 * a), np.sin(3 * a)]
    return standardized(circle), standardized(trefoil)


@cache
def marginals() -> tuple[Array, Array]:
    bumps = [np.exp(-0.5 * ((T - c) / 0.07) ** 2) for c in (0.15, 0.65)]
    mu, nu = (b / b.sum() for b in bumps)
    return mu, nu


@cache
def experts_of(name: str) -> tuple[qk.MarkovOperator, ...]:
    build = qk.scores.distance if name == "DMAP" else qk.scores.forward
    return tuple(qk.softmax(build(X, beta=0.5)) for X in curves())


@cache
def factor(name: str, k: int, r: int) -> LowRank:
    return low_rank(experts_of(name)[k], r)


@cache
def exact_bridge(name: str) -> qk.SchrodingerBridge:
    return qk.bridge(qk.poe(*experts_of(name)), *marginals())


def truncated(name: str, r: int, **options: Any) -> FactoredBridge:
    K = ProductOfFactors(*(factor(name, k, r) for k in (0, 1)))
    return solve_factored(K, *marginals(), on_fail="ignore", **options)


@pytest.mark.parametrize(
    ("r", "status", "coupling", "rmse"),
    [
        (8, "negative entries", 0.0992, 0.00701),
        (11, "converged", 0.0472, 0.00223),
        (13, "converged", 0.0155, 0.000815),
        (15, "converged", 0.0267, 0.000731),
        (17, "converged", 0.0174, 0.000513),
    ],
)
def test_attention_survives_truncation(r: int, status: str, coupling: float, rmse: float) -> None:
    """D.1: barycentric error below 1e-3 from rank 13 on; odd ranks cut no pair of the circle's."""
    b = truncated("AMAP", r)
    e = compression_errors(b, exact_bridge("AMAP"), T)
    assert b.status == e.status == status
    assert b.converged == (status == "converged")
    if r > 8:  # rank 8 cuts a pair
        assert e.coupling_rel_err == pytest.approx(coupling, rel=0.01)
        assert e.latent_rmse == pytest.approx(rmse, rel=0.01)
    assert max(e.row_err, e.col_err) < 1e-9
    assert (e.min_entry > 0) == b.converged


@pytest.mark.parametrize(
    ("r", "status"),
    [
        (10, "negative kernel"),
        (11, "negative kernel"),
        (13, "negative entries"),
        (14, "negative entries"),
        (20, "negative entries"),
    ],
)
def test_truncated_diffusion_is_never_called_a_coupling(r: int, status: str) -> None:
    b = truncated("DMAP", r)
    e = compression_errors(b, exact_bridge("DMAP"), T)
    assert b.status == status
    assert not b.converged
    # The other measures are still there.
    assert e.min_entry < 0
    assert e.min_mass < 0
    assert b.negative.count > 1000
    assert b.negative.mass < 0
    assert b.negative.smallest == pytest.approx(e.min_mass)
    assert np.isfinite([e.kernel_rel_err, e.coupling_rel_err, e.latent_rmse, e.row_err]).all()
    assert np.isfinite(b.plan()).all()
    assert math.isfinite(b.error)
    assert math.isnan(b.cost)


def test_signed_scaling_goes_on_and_says_so() -> None:
    b = truncated("DMAP", 11, on_negative="continue", max_iter=50)
    assert b.status == "negative kernel"
    assert not b.converged
    assert (b.u < 0).any() or (b.v < 0).any()
    assert b.plan().min() < 0


@pytest.mark.parametrize(("name", "truncated_svd"), [("AMAP", 0.0155), ("DMAP", 0.120)])
def test_non_negative_factors_give_a_coupling(name: str, truncated_svd: float) -> None:
    factors = [low_rank(A, 13, nonnegative=True) for A in experts_of(name)]
    for G, A in zip(factors, experts_of(name), strict=True):
        assert G.nonnegative
        assert G.error == pytest.approx(G.relative_error(A))
    b = solve_factored(ProductOfFactors(*factors), *marginals())
    assert b.converged
    e = compression_errors(b, exact_bridge(name), T)
    assert e.min_entry >= 0
    # Not worse than the truncated SVD of the same rank, which is no coupling for diffusion.
    assert e.coupling_rel_err < truncated_svd


BASIS = """
import numpy as np, qkcore as qk
t = 2 * np.pi * np.arange(60) / 60
A = qk.softmax(qk.scores.distance(np.c_[np.cos(t), np.sin(t)]))
for options in ({}, {"nonnegative": True, "max_iter": 20}):
    G = qk.low_rank(A, 8, **options)
    print(*(np.asarray(G.left).ravel()[:40].tolist()))
"""


def test_equal_singular_values_have_one_basis_on_every_processor() -> None:
    """The basis of a pair is a free choice, and LAPACK's depends on the processor (erratum 11)."""

    def run(kernels: str | None) -> Array:
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        if kernels is not None:
            env["OPENBLAS_CORETYPE"] = kernels
        done = subprocess.run(
            [sys.executable, "-c", BASIS], env=env, capture_output=True, text=True, check=True
        )
        return np.array([line.split() for line in done.stdout.splitlines()], np.float64)

    np.testing.assert_allclose(run("Prescott"), run(None), atol=1e-8)


def test_signs_of_large_kernels_are_looked_at_in_rows_and_columns() -> None:
    """O(N r) for large kernels; negative entries that are not everywhere are found all the same."""
    rng = np.random.default_rng(0)
    n = 3000
    left, right = rng.random((n, 3)) + 0.5, rng.random((3, n)) + 0.5
    u = np.full(n, 1 / n)
    # The factors have both signs, but no entry is negative.
    left[:, 0] *= 1e-3 * np.where(rng.random(n) < 0.5, -1, 1)
    b = solve_factored(LowRank(left, right), u, u)
    assert b.converged and 0.3 < b.signs_checked < 0.5
    assert "signs of" in str(b)
    assert b.negative.count == 0
    whole = solve_factored(LowRank(left, right), u, u, signs="all")
    assert whole.converged and whole.signs_checked == 1
    left[1234] = [0.4, -0.1, -0.1]  # one row, whose sum stays positive
    some = LowRank(left, right)
    assert 0 < some.count_negative().count < n
    b = solve_factored(some, u, u)
    assert b.status == "negative entries" and not b.converged
    with pytest.raises(ValueError, match="signs: wanted 'auto' or 'all'"):
        solve_factored(some, u, u, signs="some")


@pytest.mark.parametrize("mass", [1e-12, 1e12])
def test_factored_errors_are_shares_of_the_mass(mass: float) -> None:
    rng = np.random.default_rng(1)
    K = LowRank(rng.random((30, 4)), rng.random((4, 20)))
    mu, nu = np.full(30, 1 / 30), np.full(20, 1 / 20)
    one, other = solve_factored(K, mu, nu), solve_factored(K, mass * mu, mass * nu)
    assert other.converged and other.n_iter == one.n_iter
    np.testing.assert_allclose(other.plan(), mass * one.plan(), rtol=1e-6)
    plan = (other.u[:, None] * K.to_numpy() * other.v).astype(np.longdouble)
    assert np.abs(plan.sum(1) - mass * mu).sum() <= other.tol * mass
    np.testing.assert_allclose(np.exp(other.f[:, None] + other.g) * K.to_numpy(), other.plan())


def test_pairs_of_singular_values_are_reported_and_can_be_kept() -> None:
    """Erratum 11: the circle's singular values come in pairs after the first."""
    a = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    circle = qk.softmax(qk.scores.forward(np.c_[np.cos(a), np.sin(a)]))
    for r in range(2, 13):
        G = low_rank(circle, r)
        assert G.cuts_pair == (r % 2 == 0)
        assert ("cuts a pair" in repr(G)) == G.cuts_pair
        assert low_rank(circle, r, keep_pairs=True).rank == (r if r % 2 else r - 1)


def test_the_choice_within_a_cut_pair_moves_the_error() -> None:
    """Erratum 11: at rank 12 the AMAP coupling error ranges over 0.016-0.044."""
    mu, nu = marginals()
    parts = [np.linalg.svd(A.to_numpy()) for A in experts_of("AMAP")]

    def turned(part: Any, angle: float) -> LowRank:
        U, s, Vt = part
        c, d = math.cos(angle), math.sin(angle)
        left = np.c_[U[:, :11], c * U[:, 11] + d * U[:, 12]] * np.sqrt(s[:12])
        right = np.r_[Vt[:11], [c * Vt[11] + d * Vt[12]]] * np.sqrt(s[:12, None])
        return LowRank(left, right)

    errors = []
    angles = np.linspace(0, np.pi, 8, endpoint=False)
    for a in angles:
        for b in angles:
            K = ProductOfFactors(turned(parts[0], a), turned(parts[1], b))
            found = solve_factored(K, mu, nu)
            errors.append(compression_errors(found, exact_bridge("AMAP")).coupling_rel_err)
    assert min(errors) == pytest.approx(0.016, abs=0.002)
    assert max(errors) == pytest.approx(0.044, abs=0.003)


# ---- bridges ------------------------------------------------------------------------------------


def positive_problem(dtype: str = "float64") -> tuple[ProductOfFactors, Array, Array]:
    rng = np.random.default_rng(8)
    K = ProductOfFactors(*factors(60, 45, (3, 4), dtype, positive=True))
    mu, nu = rng.random(60) + 0.1, rng.random(45) + 0.1
    mu[7] = nu[3] = 0
    return K, (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bridge_agrees_with_the_exact_solver(dtype: str) -> None:
    K, mu, nu = positive_problem(dtype)
    b = solve_factored(K, mu, nu)
    want = qk.bridge(qk.scores.dense(np.log(K.to_numpy())), mu, nu)
    assert b.converged
    assert b.f.dtype == b.g.dtype == b.plan().dtype == K.dtype
    loose = 1e-4 if dtype == "float32" else 1e-7
    np.testing.assert_allclose(b.plan(), want.plan(), rtol=loose, atol=1e-9)
    live_rows, live_cols = mu > 0, nu > 0
    np.testing.assert_allclose(b.f[live_rows], want.f[live_rows], atol=loose)
    np.testing.assert_allclose(b.g[live_cols], want.g[live_cols], atol=loose)
    assert np.isneginf(b.f[7]) and np.isneginf(b.g[3])
    assert b.cost == pytest.approx(want.cost, rel=loose)
    V = np.random.default_rng(9).standard_normal((45, 3)).astype(dtype)
    np.testing.assert_allclose(b.project(V), want.project(V), rtol=10 * loose, atol=loose)
    np.testing.assert_allclose(
        b.project(V[:, 0]), want.project(V)[:, 0], rtol=10 * loose, atol=loose
    )
    np.testing.assert_allclose(b.forward.to_numpy(), want.forward.to_numpy(), atol=loose)
    np.testing.assert_allclose(b.backward.to_numpy(), want.backward.to_numpy(), atol=loose)
    U = np.ones(60, dtype)
    np.testing.assert_allclose(b.backward @ U, 1, atol=loose)
    np.testing.assert_allclose(b.marginals()[0], mu, atol=loose)
    np.testing.assert_allclose(b.marginals()[1], nu, atol=loose)
    assert b.n_iter == len(b.errors) == b.n_visits
    assert "converged" in str(b)
    assert b.method == "anderson, factored"


def test_warm_start_and_iteration_limit() -> None:
    K, mu, nu = positive_problem()
    cold = solve_factored(K, mu, nu)
    assert solve_factored(K, mu, nu, init=cold).n_iter <= 2
    assert solve_factored(K, mu, nu, init=(cold.f, cold.g)).n_iter <= 2
    short = solve_factored(K, mu, nu, max_iter=1)
    assert short.status == "iteration limit"
    assert not short.converged
    seen: list[int] = []
    solve_factored(K, mu, nu, callback=lambda k, error: seen.append(k))
    assert seen == list(range(1, cold.n_iter + 1))


def test_wide_ranges_of_scales() -> None:
    # Rows and columns of very different sizes: only the products u_i v_j matter.
    K, mu, nu = positive_problem()
    G = K.experts[0]
    rows, cols = np.logspace(-90, 90, 60), np.logspace(80, -80, 45)
    wild = ProductOfFactors(LowRank(G.left * rows[:, None], G.right * cols), K.experts[1])
    b = solve_factored(wild, mu, nu)
    assert b.converged
    np.testing.assert_allclose(b.plan(), solve_factored(K, mu, nu).plan(), rtol=1e-6, atol=1e-12)


def test_infeasible_kernel() -> None:
    K = LowRank(np.array([[1.0], [0.0]]), np.ones((1, 2)))
    b = solve_factored(K, np.full(2, 0.5), np.full(2, 0.5))
    assert b.status == "infeasible"
    assert not b.converged


@given(
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    ranks=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    tilt=st.floats(-1, 3),
    seed=st.integers(0, 10**6),
    signed=st.booleans(),
)
def test_nothing_with_negative_mass_converges(
    n: int, m: int, ranks: list[int], tilt: float, seed: int, signed: bool
) -> None:
    rng = np.random.default_rng(seed)
    experts = [
        LowRank(rng.standard_normal((n, r)) + tilt, rng.standard_normal((r, m)) + tilt)
        for r in ranks
    ]
    K = ProductOfFactors(*experts)
    mu, nu = rng.random(n) + 0.01, rng.random(m) + 0.01
    mu, nu = mu / mu.sum(), nu / nu.sum()
    b = solve_factored(
        K,
        mu,
        nu,
        max_iter=300,
        on_negative="continue" if signed else "stop",
        on_fail="ignore",
    )
    plan = b.plan()
    assert b.converged == (b.status == "converged")
    if b.converged:
        assert plan.min() > -1e-12
        np.testing.assert_allclose(plan.sum(axis=1), mu, atol=1e-8)
        np.testing.assert_allclose(plan.sum(axis=0), nu, atol=1e-8)
    elif b.status == "negative entries":
        assert b.negative.count > 0
        assert plan.min() < 0
    else:
        assert b.status in ("negative kernel", "iteration limit", "stagnated")
    assert np.isfinite(plan).all()


def test_exact_fallback() -> None:
    b = truncated("DMAP", 11)
    exact = b.exact()
    assert exact.converged
    np.testing.assert_allclose(exact.plan(), exact_bridge("DMAP").plan(), atol=1e-9)
    array = np.exp(-(np.subtract.outer(np.arange(8.0), np.arange(8.0)) ** 2))
    u = np.full(8, 1 / 8)
    assert solve_factored(low_rank(array, 3), u, u).exact().converged
    with pytest.raises(ValueError, match="keep what they approximate"):
        solve_factored(*positive_problem()).exact()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2])
def test_bridges_of_a_batch_are_those_of_its_problems(count: int, dtype: str) -> None:
    r = np.random.default_rng(11)
    experts = [
        LowRank(
            r.uniform(0.1, 1, size=(2, 2, 9, 3)).astype(dtype),
            r.uniform(0.1, 1, size=(2, 2, 3, 7)).astype(dtype),
        )
        for _ in range(count)
    ]
    K = qk.poe(*experts)
    mu = r.uniform(0.5, 1, size=(2, 2, 9))
    mu = (mu / mu.sum(-1, keepdims=True)).astype(dtype)
    nu = np.full(7, 1 / 7, dtype)
    b = qk.bridge(K, mu, nu)
    assert b.status.shape == b.error.shape == b.cost.shape == (2, 2) and b.converged.all()
    assert (len(b), b.u.shape, b.g.shape, b.plan().shape) == (4, (2, 2, 9), (2, 2, 7), (2, 2, 9, 7))
    assert isinstance(b.negative, qk.Batch) and not b.negative.count.any()
    V = r.normal(size=(2, 2, 7, 2)).astype(dtype)
    bound = 64 * float(np.finfo(dtype).eps) * np.abs(V).max()
    for at in np.ndindex(2, 2):
        one = qk.bridge(K[at], mu[at], nu)
        for name in ("f", "g", "u", "v"):
            np.testing.assert_array_equal(getattr(b, name)[at], getattr(one, name))
        part = b[at]
        assert (part.status, part.n_visits, part.error) == (one.status, one.n_visits, one.error)
        assert (part.signs_checked, part.cost) == (one.signs_checked, b.cost[at])
        np.testing.assert_allclose(b.plan()[at], one.plan(), rtol=0, atol=bound)
        np.testing.assert_allclose(b.project(V)[at], one.project(V[at]), rtol=0, atol=bound)
        np.testing.assert_allclose(b.marginals()[0][at], mu[at], rtol=0, atol=2 * one.tol)
        np.testing.assert_allclose(
            (b.backward @ mu[..., None])[at][:, 0], one.backward @ mu[at], atol=bound
        )
        np.testing.assert_allclose(b.forward[at].to_numpy(), one.forward.to_numpy(), atol=bound)
    again = qk.bridge(K, mu, nu, init=b)
    assert (again.n_visits <= 3).all()
    assert "batch (2, 2)" in str(b) and "4 of 4 converged" in str(b)


def test_a_batch_knows_which_of_its_kernels_go_negative() -> None:
    left, right = np.ones((2, 2, 1)), np.array([[[1.0, 1.0, 1.0]], [[1.0, -0.1, 1.0]]])
    K, half, third = LowRank(left, right), np.full(2, 0.5), np.full(3, 1 / 3)
    b = solve_factored(K, half, third, on_fail="ignore")
    assert b.status.tolist() == ["converged", "negative kernel"]
    assert b.negative.count.tolist() == [0, 2] and np.isnan(b.cost[1]) and b.cost[0] == 0
    with pytest.raises(ValueError, match="K: wanted one problem for a callback"):
        qk.bridge(K, half, third, callback=lambda visits, error: None)
    with pytest.raises(ValueError, match=r"mu: wanted batch axes that broadcast to \(2,\)"):
        qk.bridge(K, np.full((3, 2), 0.5), third)
    with pytest.raises(ValueError, match=r"b: wanted one problem, got batch axes \(2,\)"):
        compression_errors(b, qk.bridge(qk.scores.dense(np.zeros((2, 3)))))


def test_conditional_operators_are_linear_maps() -> None:
    K, mu, nu = positive_problem()
    forward = solve_factored(K, mu, nu).forward
    dense = forward.to_numpy()
    np.testing.assert_allclose(dense.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(forward.T.to_numpy(), dense.T, rtol=0)
    np.testing.assert_allclose(mu @ forward, mu @ dense, rtol=1e-12)
    np.testing.assert_allclose((2 * forward) @ nu, 2 * dense @ nu, rtol=1e-12)
    with pytest.raises(ValueError, match=r"left operand of @: wanted length 60"):
        nu @ forward
    with pytest.raises(TypeError, match=r"right operand of @: wanted float64 like the kernel"):
        forward @ nu.astype("f")


def test_bad_bridges() -> None:
    K, mu, nu = positive_problem()
    with pytest.raises(TypeError, match="K: wanted a LowRank or a product"):
        solve_factored(qk.scores.dense(np.ones((60, 60))), mu, nu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mu: wanted shape \(60,\)"):
        solve_factored(K, nu, nu)
    with pytest.raises(TypeError, match="nu: wanted float32 or float64"):
        solve_factored(K, mu, nu * 1j)
    with pytest.raises(ValueError, match="nu: wanted the total mass of mu"):
        solve_factored(K, mu, 2 * nu)
    with pytest.raises(ValueError, match="mu: wanted weights >= 0"):
        solve_factored(K, mu - 0.01, nu)
    with pytest.raises(ValueError, match="mu: wanted some mass"):
        solve_factored(K, 0 * mu, nu)
    with pytest.raises(ValueError, match="max_iter: wanted at least 1"):
        solve_factored(K, mu, nu, max_iter=0)
    with pytest.raises(ValueError, match="tol: wanted a finite number > 0"):
        solve_factored(K, mu, nu, tol=-1)
    with pytest.raises(ValueError, match="on_negative: wanted"):
        solve_factored(K, mu, nu, on_negative="clip")
    with pytest.raises(TypeError, match="init: wanted an earlier result"):
        solve_factored(K, mu, nu, init=3)
    with pytest.raises(ValueError, match=r"init f: wanted shape \(60,\)"):
        solve_factored(K, mu, nu, init=(nu, nu))
    with pytest.raises(TypeError, match="callback: wanted a function"):
        solve_factored(K, mu, nu, callback=3)  # type: ignore[arg-type]
    b = solve_factored(K, mu, nu)
    with pytest.raises(ValueError, match=r"V: wanted length 45 along the operator's columns"):
        b.project(np.ones(60))
    with pytest.raises(TypeError, match="exact: wanted a SchrodingerBridge"):
        compression_errors(b, b)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"exact: wanted shape \(60, 45\)"):
        compression_errors(b, exact_bridge("AMAP"))


def test_options_of_exact_bridges_reach_factored_ones() -> None:
    K, mu, nu = positive_problem()
    assert qk.bridge(K, mu, nu, tol=1e-6).converged
    want = qk.bridge(qk.scores.dense(np.log(K.to_numpy())), mu, nu, penalty=1.0)
    got = qk.bridge(K, mu, nu, penalty=1.0)
    assert got.converged and got.penalty == (1.0, 1.0)
    np.testing.assert_allclose(got.plan(), want.plan(), rtol=1e-6, atol=1e-12)
    seen: list[int] = []
    qk.bridge(K, mu, nu, solver="newton", callback=lambda visits, error: seen.append(visits))
    assert seen == sorted(seen) and len(seen) > 1
