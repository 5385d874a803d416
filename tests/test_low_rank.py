"""Low-rank product-of-experts kernels against naive NumPy (DAC-10, DAC-12, EOT-10; erratum 11)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore._factored_bridge import bridge_factored
from qkcore.low_rank import (
    FactoredBridge,
    LowRank,
    ProductOfFactors,
    compression_errors,
    low_rank,
    nystrom,
    positive_features,
    solve_factored,
)

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = (1, 7, 64, 65, 1000)
RANKS = (1, 2, 5, 14, 17)
DTYPES = ("float32", "float64")


def factors(
    n: int, m: int, ranks: tuple[int, ...], dtype: str, seed: int = 0, positive: bool = False
) -> list[LowRank]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        x = rng.standard_normal(shape)
        return (np.abs(x) if positive else x).astype(dtype)

    return [LowRank(draw(n, r), draw(r, m)) for r in ranks]


def dense(experts: list[LowRank]) -> Array:
    out: Array = np.ones(experts[0].shape)
    for e in experts:
        out *= e.left.astype(np.float64) @ e.right.astype(np.float64)
    return out


def magnitude(experts: list[LowRank]) -> Array:
    """Products of absolute values: what rounding errors are relative to."""
    out: Array = np.ones(experts[0].shape)
    for e in experts:
        out *= np.abs(e.left).astype(np.float64) @ np.abs(e.right).astype(np.float64)
    return out


def check_products(experts: list[LowRank], k: int | None = None, n_threads: int = 2) -> None:
    K: LowRank | ProductOfFactors = experts[0] if len(experts) == 1 else ProductOfFactors(*experts)
    n, m = K.shape
    rng = np.random.default_rng(1)
    exact, scale = dense(experts), magnitude(experts)
    eps = float(np.finfo(K.dtype).eps)
    slack = eps * (16 + sum(K.ranks) + math.sqrt(max(n, m)))
    V = rng.standard_normal(m if k is None else (m, k)).astype(K.dtype)
    U = rng.standard_normal(n if k is None else (n, k)).astype(K.dtype)
    for got, A, B, x in (
        (K.apply(V, n_threads=n_threads), exact, scale, V),
        (K.T.apply(U, n_threads=n_threads), exact.T, scale.T, U),
        (K.apply_left(U.T, n_threads=n_threads).T, exact.T, scale.T, U),
    ):
        assert got.dtype == K.dtype
        bound = slack * (B @ np.abs(x).astype(np.float64))
        assert (np.abs(got - A @ x.astype(np.float64)) <= bound).all()


# ---- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("n", SIZES)
def test_product_of_two_experts_matches_numpy(n: int, rank: int, dtype: str) -> None:
    check_products(factors(n, n, (rank, rank), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "m", "ranks"),
    [
        (65, 190, (14,)),
        (300, 97, (3, 17)),
        (1, 500, (2, 5)),
        (383, 1, (4, 3)),
        (200, 130, (2, 3, 4)),
        (97, 193, (5, 1, 2, 3)),
        (50, 60, (40, 33)),
    ],
)
def test_rectangular_kernels_and_more_experts(
    n: int, m: int, ranks: tuple[int, ...], dtype: str
) -> None:
    experts = factors(n, m, ranks, dtype)
    check_products(experts)
    check_products(experts, k=1)
    check_products(experts, k=7)


def test_many_right_hand_sides_go_in_groups() -> None:
    check_products(factors(150, 120, (14, 14), "float64"), k=50)


def test_long_sums_keep_their_digits_in_single_precision() -> None:
    # 300000 equal terms: a running sum in float32 would be off by 1e-3.
    n = 300_000
    one = np.ones((n, 1), np.float32)
    G = LowRank(np.full((4, 1), np.float32(0.1)), one.T)
    got = ProductOfFactors(G, G) @ np.full(n, np.float32(0.1))
    np.testing.assert_allclose(got, float(np.float32(0.1)) ** 3 * n, rtol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_thread_count_does_not_change_a_bit(dtype: str) -> None:
    K = ProductOfFactors(*factors(5000, 7001, (9, 6), dtype))
    z = np.random.default_rng(2).standard_normal(7001).astype(dtype)
    results = [K.apply(z, n_threads=k) for k in (1, 2, 3, 8)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_layouts_agree_and_inputs_are_not_written_to() -> None:
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((90, 4)), rng.standard_normal((4, 70))
    z = rng.standard_normal((70, 3))
    copies = left.copy(), right.copy(), z.copy()
    variants = [
        LowRank(left, right),
        LowRank(np.asfortranarray(left), np.asfortranarray(right)),
        LowRank(left[::-1][::-1], np.repeat(right, 2, axis=1)[:, ::2]),
    ]
    results = [ProductOfFactors(G, G) @ z for G in variants]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    for before, after in zip(copies, (left, right, z), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(variants[0].left, left)
    np.testing.assert_array_equal(variants[0].right, right)
    assert variants[1]._left[0].base is not None  # already contiguous along the points: not copied


def test_products_of_products_are_flat() -> None:
    a, b, c = factors(20, 30, (3, 2, 2), "float64")
    K = ProductOfFactors(ProductOfFactors(a, b), c)
    assert K.experts == (a, b, c)
    assert K.ranks == (3, 2, 2)


def test_to_numpy_and_transpose() -> None:
    experts = factors(20, 30, (3, 2), "float64")
    K = ProductOfFactors(*experts)
    np.testing.assert_allclose(K.to_numpy(), dense(experts), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(K.T.to_numpy(), K.to_numpy().T)
    assert K.T.shape == (30, 20)
    assert "ranks 3 x 2" in repr(K)


# ---- negative entries ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (97, 300), (192, 96), (65, 1000)])
def test_negative_entries_are_counted(shape: tuple[int, int], dtype: str) -> None:
    experts = factors(*shape, (5, 3), dtype, seed=4)
    K = ProductOfFactors(*experts)
    exact = dense(experts)
    found = K.count_negative()
    # No entry of random factors is so small that rounding could give it its sign.
    assert np.abs(exact).min() > 100 * np.finfo(dtype).eps * np.abs(exact).max() * 1e-3
    assert abs(found.count - int((exact < 0).sum())) <= (2 if dtype == "float32" else 0)
    assert found.fraction == found.count / exact.size
    assert found.smallest == pytest.approx(exact.min(), rel=1e-4 if dtype == "float32" else 1e-10)
    assert found.mass == pytest.approx(exact[exact < 0].sum(), rel=1e-3, abs=1e-5)


def test_smallest_entry_of_a_positive_kernel_is_not_the_padding() -> None:
    K = ProductOfFactors(*factors(10, 11, (2, 2), "float64", positive=True))
    found = K.count_negative()
    assert found.count == 0
    assert found.mass == 0
    assert found.smallest == pytest.approx(K.to_numpy().min())
    assert K.nonnegative


def test_rounding_is_not_counted_as_negative() -> None:
    # 1 - 1 up to rounding: (1/3 + 1/3 + 1/3) - 1 is of either sign.
    left = np.array([[0.1, 0.2, -0.3]])
    right = np.ones((3, 50))
    assert LowRank(left, right).count_negative().count == 0
    assert LowRank(left - [[0, 0, 1e-12]], right).count_negative().count == 50


# ---- truncated SVD ------------------------------------------------------------------------------


@cache
def cloud(n: int, m: int | None = None, dtype: str = "float64") -> qk.MarkovOperator:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 3)).astype(dtype)
    Y = X if m is None else rng.standard_normal((m, 3)).astype(dtype)
    return qk.softmax(qk.scores.dot(X, Y, beta=0.4))


@pytest.mark.parametrize("method", ["dense", "svds", "randomised"])
@pytest.mark.parametrize(("n", "m"), [(150, None), (120, 200)])
def test_truncation_is_the_best_one(n: int, m: int | None, method: str) -> None:
    A = cloud(n, m)
    sizes = np.linalg.svd(A.to_numpy(), compute_uv=False)
    for r in (1, 5, 12):
        G = low_rank(A, r, method=method)
        best = math.sqrt(np.square(sizes[r:]).sum() / np.square(sizes).sum())
        assert G.relative_error(A) == pytest.approx(best, rel=1e-3)  # Eckart-Young
        assert G.singular_values is not None
        np.testing.assert_allclose(G.singular_values, sizes[:r], rtol=1e-6)
        assert G.cut_gap == pytest.approx(1 - sizes[r] / sizes[r - 1], abs=1e-3)
        # D.1 splits the singular values evenly.
        np.testing.assert_allclose(G.left.T @ G.left, np.diag(sizes[:r]), atol=1e-6 * sizes[0])
        np.testing.assert_allclose(G.right @ G.right.T, np.diag(sizes[:r]), atol=1e-6 * sizes[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_full_rank_is_exact(dtype: str) -> None:
    A = cloud(40, 30, dtype)
    G = low_rank(A, 30)
    assert G.dtype == A.dtype
    np.testing.assert_allclose(G.to_numpy(), A.to_numpy(), atol=20 * np.finfo(dtype).eps)
    assert G.cut_gap == 1.0
    K = ProductOfFactors(G, G)
    z = np.random.default_rng(6).random(30).astype(dtype)
    np.testing.assert_allclose(K @ z, A.to_numpy() ** 2 @ z, rtol=200 * np.finfo(dtype).eps)


def test_arrays_kernels_and_single_precision() -> None:
    s = qk.scores.distance(np.random.default_rng(7).standard_normal((80, 2)), beta=0.3)
    K = qk.kernel(s)
    by_operator, by_array = low_rank(K, 9), low_rank(np.exp(s.to_numpy()), 9)
    np.testing.assert_allclose(by_operator.to_numpy(), by_array.to_numpy(), atol=1e-12)
    A = cloud(120, 200, "float32")
    for method in ("dense", "randomised"):
        G = low_rank(A, 12, method=method)
        assert G.dtype == np.float32
        sizes = np.linalg.svd(A.to_numpy().astype(np.float64), compute_uv=False)
        best = math.sqrt(np.square(sizes[12:]).sum() / np.square(sizes).sum())
        assert G.relative_error(A) <= 1.01 * best + 1e-6


def test_large_operators_are_compressed_without_being_formed() -> None:
    A = cloud(1050)
    G = low_rank(A, 8)
    assert G.method == "randomised"
    sizes = np.linalg.svd(A.to_numpy(), compute_uv=False)
    best = math.sqrt(np.square(sizes[8:]).sum() / np.square(sizes).sum())
    assert G.relative_error(A) <= 1.01 * best
    again = low_rank(A, 8)
    np.testing.assert_array_equal(G.left, again.left)
    np.testing.assert_array_equal(G.right, again.right)


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
    return solve_factored(K, *marginals(), **options)


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
    # The figures are still there.
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


@pytest.mark.parametrize("name", ["AMAP", "DMAP"])
def test_non_negative_factors_give_a_coupling(name: str) -> None:
    factors = [low_rank(A, 14, nonnegative=True) for A in experts_of(name)]
    for G, A in zip(factors, experts_of(name), strict=True):
        assert G.nonnegative
        assert G.error == pytest.approx(G.relative_error(A))
    b = solve_factored(ProductOfFactors(*factors), *marginals())
    assert b.converged
    e = compression_errors(b, exact_bridge(name), T)
    assert e.min_entry >= 0
    # Not worse than the truncated SVD of the same rank, which is no coupling for diffusion.
    assert e.coupling_rel_err < 1.2 * {"AMAP": 0.0179, "DMAP": 0.165}[name]


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
    assert b.method == "scaling, factored"


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
    b = solve_factored(K, mu, nu, max_iter=300, on_negative="continue" if signed else "stop")
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
    with pytest.raises(ValueError, match="know what they approximate"):
        solve_factored(*positive_problem()).exact()


# ---- Nyström and positive features --------------------------------------------------------------


@cache
def gaussian(beta: float = 0.2) -> qk.Scores:
    X = np.random.default_rng(10).standard_normal((500, 2))
    return qk.scores.distance(X, beta=beta)


@pytest.mark.parametrize("method", ["uniform", "kmeans++", "leverage"])
def test_nystrom(method: str) -> None:
    """EOT-10."""
    s = gaussian()
    F = nystrom(s, 60, method=method)
    assert F.relative_error(s) < {"uniform": 3e-2, "kmeans++": 1e-4, "leverage": 1e-3}[method]
    np.testing.assert_array_equal(F.left, nystrom(s, 60, method=method).left)
    np.testing.assert_array_equal(F.left, F.right.T)
    values = np.linalg.eigvalsh(F.to_numpy())
    assert values.min() > -1e-12 * values.max()  # positive semidefinite, not positive
    cut = nystrom(s, 60, method=method, rank=10)
    assert cut.rank == 10
    sizes = np.linalg.eigvalsh(np.exp(s.to_numpy()))[::-1]
    best = math.sqrt(np.square(sizes[10:]).sum() / np.square(sizes).sum())
    assert best <= cut.relative_error(s) < 3 * best + 3e-2


def test_nystrom_defaults_and_exactness() -> None:
    s = gaussian()
    assert "50 landmarks" in nystrom(s).method  # min(1000, V / 10)
    assert (
        "200 landmarks"
        in nystrom(qk.scores.distance(np.random.default_rng(0).random((2000, 1)))).method
    )
    small = qk.scores.distance(np.arange(12.0)[:, None], beta=2.0)
    np.testing.assert_allclose(nystrom(small, 12).to_numpy(), np.exp(small.to_numpy()), atol=1e-12)
    dot = qk.scores.dot(0.5 * np.random.default_rng(1).standard_normal((100, 5)))
    assert nystrom(qk.kernel(dot), 60).relative_error(dot) < 1e-2
    repeated = qk.scores.distance(np.repeat(np.eye(3), 10, axis=0))
    assert nystrom(repeated, 20).relative_error(repeated) < 1e-7
    B = qk.sinkhorn(gaussian())
    assert nystrom(B, 60).relative_error(B) < 1e-3


def test_nystrom_bridges_are_guarded() -> None:
    s = gaussian(beta=4.0)  # too narrow for the landmarks
    u = np.full(500, 1 / 500)
    b = solve_factored(nystrom(s, 20, method="uniform"), u, u)
    assert not b.converged
    assert b.status == "negative kernel" or b.negative.count > 0
    wide = gaussian(beta=0.02)
    b = solve_factored(nystrom(wide, 60), u, u)
    assert b.converged
    np.testing.assert_allclose(b.plan(), qk.bridge(wide, u, u).plan(), rtol=1e-3)


@pytest.mark.parametrize("kind", ["distance", "dot", "softmax", "forward"])
def test_positive_features(kind: str) -> None:
    rng = np.random.default_rng(11)
    X, Y = 0.4 * rng.standard_normal((80, 3)) + 0.3, 0.4 * rng.standard_normal((60, 3)) - 1
    A: Any = {
        "distance": lambda: qk.scores.distance(X, Y, beta=0.7),
        "dot": lambda: qk.kernel(qk.scores.dot(X, Y)),
        "softmax": lambda: qk.softmax(qk.scores.dot(X, Y) + qk.scores.distance(X, Y, beta=0.2)),
        "forward": lambda: qk.softmax(qk.scores.forward(X, Y, beta=0.5)),
    }[kind]()
    errors = [positive_features(A, m, seed=1).relative_error(A) for m in (50, 5000)]
    assert errors[1] < 0.08
    assert errors[1] < errors[0] / 3
    G = positive_features(A, 50)
    assert G.nonnegative
    mu, nu = np.full(80, 1 / 80), np.full(60, 1 / 60)
    b = solve_factored(G, mu, nu)
    assert b.converged
    assert b.exact().converged


# ---- errors -------------------------------------------------------------------------------------


def test_bad_factors() -> None:
    good = np.ones((4, 2))
    with pytest.raises(ValueError, match=r"right: wanted shape \(2, M\)"):
        LowRank(good, np.ones((3, 5)))
    with pytest.raises(ValueError, match="left: wanted a matrix"):
        LowRank(np.ones(4), np.ones((3, 5)))
    with pytest.raises(TypeError, match="right: wanted float64 like left"):
        LowRank(good, np.ones((2, 5), np.float32))
    with pytest.raises(TypeError, match="left: wanted float32 or float64"):
        LowRank(np.ones((4, 2), int), np.ones((2, 5)))
    with pytest.raises(ValueError, match="left: wanted finite numbers, got NaN"):
        LowRank(np.full((4, 2), np.nan), np.ones((2, 5)))
    with pytest.raises(ValueError, match="left: wanted no axis of length 0"):
        LowRank(np.ones((0, 2)), np.ones((2, 5)))


def test_bad_products() -> None:
    G = LowRank(np.ones((4, 2)), np.ones((2, 5)))
    with pytest.raises(ValueError, match="at least one low-rank matrix"):
        ProductOfFactors()
    with pytest.raises(TypeError, match=r"experts\[1\]: wanted a LowRank"):
        ProductOfFactors(G, cloud(150))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"experts\[1\]: wanted shape \(4, 5\)"):
        ProductOfFactors(G, G.T)
    with pytest.raises(ValueError, match="product is at most 65536, got 20 x 20 x 200"):
        ProductOfFactors(*factors(250, 250, (20, 20, 200), "float64"))
    K = ProductOfFactors(G, G)
    with pytest.raises(ValueError, match=r"V: wanted shape \(5,\) or \(5, k\).*got \(4,\)"):
        K @ np.ones(4)
    with pytest.raises(ValueError, match=r"U: wanted shape \(4,\) or \(k, 4\)"):
        np.ones(5) @ K
    with pytest.raises(TypeError, match="V: wanted float64 like the factors"):
        K @ np.ones(5, np.float32)
    with pytest.raises(ValueError, match=r"V: wanted finite numbers, got \+inf"):
        K @ np.full(5, np.inf)
    with pytest.raises(ValueError, match=r"exact: wanted shape \(4, 5\)"):
        K.relative_error(np.ones((5, 4)))


def test_bad_truncations() -> None:
    A = cloud(150)
    with pytest.raises(ValueError, match="rank: wanted an integer from 1 to 150, got 0"):
        low_rank(A, 0)
    with pytest.raises(ValueError, match="rank: wanted an integer from 1 to 150, got 151"):
        low_rank(A, 151)
    with pytest.raises(TypeError, match="rank: wanted an integer"):
        low_rank(A, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method: wanted one of"):
        low_rank(A, 3, method="lanczos")
    with pytest.raises(ValueError, match="max_iter: wanted at least 1"):
        low_rank(A, 3, max_iter=0)
    with pytest.raises(ValueError, match="n_oversamples: wanted at least 1"):
        low_rank(A, 3, n_oversamples=0)
    with pytest.raises(TypeError, match="factored already"):
        low_rank(LowRank(np.ones((3, 1)), np.ones((1, 3))), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted entries >= 0 for nonnegative"):
        low_rank(-np.ones((3, 3)), 1, nonnegative=True)
    with pytest.raises(ValueError, match="keep_pairs: wanted a gap"):
        low_rank(np.eye(5), 2, keep_pairs=True)
    with pytest.raises(ValueError, match="one matrix, got batch axes"):
        low_rank(qk.softmax(qk.scores.dot(np.ones((2, 4, 3)))), 2)


def test_bad_bridges() -> None:
    K, mu, nu = positive_problem()
    with pytest.raises(TypeError, match="K: wanted a LowRank or a product"):
        solve_factored(gaussian(), mu, nu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mu: wanted shape \(60,\)"):
        solve_factored(K, nu, nu)
    with pytest.raises(TypeError, match="nu: wanted float64"):
        solve_factored(K, mu, nu.astype(np.float32))
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
    with pytest.raises(ValueError, match=r"V: wanted shape \(45,\)"):
        b.project(np.ones(60))
    with pytest.raises(TypeError, match="exact: wanted a SchrodingerBridge"):
        compression_errors(b, b)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"exact: wanted shape \(60, 45\)"):
        compression_errors(b, exact_bridge("AMAP"))


def test_options_of_exact_bridges_are_refused() -> None:
    K, mu, nu = positive_problem()
    assert bridge_factored(K, mu, nu, tol=1e-6).converged
    with pytest.raises(ValueError, match='solver: wanted "auto" or "alternating" for a factored'):
        bridge_factored(K, mu, nu, solver="newton")
    with pytest.raises(ValueError, match="penalty: wanted none for a factored"):
        bridge_factored(K, mu, nu, penalty=1.0)


def test_bad_features() -> None:
    s = gaussian()
    with pytest.raises(ValueError, match="n_landmarks: wanted an integer from 1 to 500"):
        nystrom(s, 501)
    with pytest.raises(ValueError, match="method: wanted one of"):
        nystrom(s, 5, method="grid")
    with pytest.raises(ValueError, match="rank: wanted an integer from 1 to 5"):
        nystrom(s, 5, rank=6)
    with pytest.raises(ValueError, match="wanted a symmetric kernel"):
        nystrom(qk.softmax(s), 5)
    with pytest.raises(ValueError, match="wanted scores from points"):
        nystrom(qk.scores.dense(np.zeros((4, 4))), 2)
    with pytest.raises(ValueError, match="without masks"):
        positive_features(s.causal(), 10)
    with pytest.raises(TypeError, match='weight "exp"'):
        positive_features(qk.kernel(s, "relu"), 10)
    with pytest.raises(ValueError, match="n_features: wanted at least 1"):
        positive_features(s, 0)
    with pytest.raises(OverflowError, match="features leave the range"):
        positive_features(qk.scores.dot(1e3 * np.eye(3)), 10)
