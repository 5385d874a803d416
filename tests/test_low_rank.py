"""Low-rank product-of-experts kernels against naive NumPy (DAC-10, DAC-12, EOT-10; erratum 11)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

import qkcore as qk
from qkcore._native import cpu
from qkcore.factors import (
    LowRank,
    ProductOfFactors,
    low_rank,
)

from .factors import DTYPES, Array, factors

SIZES = (1, 7, 64, 65, 1000)
RANKS = (1, 2, 5, 14, 17)


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


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 8191), (8192, 3), (8193, 16_400)])
def test_one_expert_is_two_products_whatever_the_threads(n: int, m: int) -> None:
    """The core's own product of a single expert and a vector, which solves over factors use."""
    rng = np.random.default_rng(n)
    left, right, z = rng.standard_normal((5, n)), rng.standard_normal((5, m)), rng.random((1, m))
    wide = np.empty((5, m + 3))
    wide[:, :m] = right
    alone = cpu.factored_product((left,), (right,), z, 1)
    np.testing.assert_allclose(alone[0], left.T @ (right @ z[0]), rtol=1e-12, atol=1e-10)
    for same, threads in ((right, 2), (right, 5), (wide[:, :m], 3)):
        again = cpu.factored_product((left,), (same,), z, threads)
        np.testing.assert_array_equal(again, alone)


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
    # No entry of random factors is so small that rounding could change its sign.
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


# ---- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["dense", "randomised", "svds"])
def test_factors_of_a_batch_are_those_of_its_problems(method: str, dtype: str) -> None:
    X = np.random.default_rng(3).normal(size=(2, 3, 30, 2)).astype(dtype)
    A = qk.softmax(qk.scores.distance(X))
    G = low_rank(A, 4, method=method)
    assert (G.shape, G.batch, G.rank, len(G)) == ((2, 3, 30, 30), (2, 3), 4, 2)
    assert G.singular_values is not None and G.singular_values.shape == (2, 3, 4)
    assert G.cut_gap.shape == G.cuts_pair.shape == G.relative_error(A).shape == (2, 3)
    V = np.random.default_rng(4).normal(size=(2, 3, 30, 5)).astype(dtype)
    U = V.swapaxes(-1, -2).copy()
    moved, turned = G @ V, U @ G
    for k in np.ndindex(2, 3):
        one = low_rank(A[k], 4, method=method)
        np.testing.assert_array_equal(G[k].left, one.left)
        np.testing.assert_array_equal(G[k].right, one.right)
        assert G[k].cut_gap == one.cut_gap and G[k].method == method
        assert G.relative_error(A)[k] == one.relative_error(A[k])
        size = 8 * float(np.finfo(dtype).eps) * np.abs(V).sum()
        np.testing.assert_allclose(moved[k], one @ V[k], rtol=0, atol=size)
        np.testing.assert_allclose(turned[k], U[k] @ one, rtol=0, atol=size)
        np.testing.assert_allclose((G @ V[..., 0])[k], one @ V[k][:, 0], rtol=0, atol=size)
        np.testing.assert_allclose((G.T @ V)[k], one.T @ V[k], rtol=0, atol=size)
    np.testing.assert_array_equal(G[1].to_numpy(), G.to_numpy()[1])
    np.testing.assert_array_equal(G[:, 2].to_numpy(), G.to_numpy()[:, 2])
    found = G.count_negative()
    assert found.count.shape == (2, 3)
    assert found.count[1, 1] == G[1, 1].count_negative().count


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_products_of_batches_of_factors(count: int, dtype: str) -> None:
    """Experts with and without batch axes, against the entries."""
    r = np.random.default_rng(5)
    batches = [(3,), (), (1,), (3,), (2, 1)][:count]
    experts = [
        LowRank(r.normal(size=(*b, 6, 2)).astype(dtype), r.normal(size=(*b, 2, 7)).astype(dtype))
        for b in batches
    ]
    K = qk.poe(*experts)
    dense = np.ones((6, 7))
    for e in experts:
        dense = dense * (e.left.astype(float) @ e.right.astype(float))
    assert K.shape == dense.shape and K.batch == np.broadcast_shapes(*batches)
    bound = 64 * float(np.finfo(dtype).eps) * np.abs(dense).max()
    np.testing.assert_allclose(K.to_numpy(), dense, rtol=0, atol=bound)
    V = r.normal(size=(7, 2)).astype(dtype)
    many = np.broadcast_to(V, (*K.batch, 7, 2))
    np.testing.assert_allclose(K @ many, dense @ V.astype(float), rtol=0, atol=40 * bound)
    np.testing.assert_allclose(K @ V[:, 0], dense @ V[:, 0].astype(float), rtol=0, atol=40 * bound)
    index = (0,) * len(K.batch)
    np.testing.assert_allclose(K[index].to_numpy(), dense[index], rtol=0, atol=bound)


def test_ranks_that_pairs_lower_are_filled_with_nothing() -> None:
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = qk.softmax(qk.scores.distance(np.c_[np.cos(t), np.sin(t)])).to_numpy()
    other = np.diag(np.arange(40.0) + 1)
    G = low_rank(np.stack([circle, other]), 8, keep_pairs=True)
    assert G.rank == 8 and G.singular_values is not None and G.singular_values[0, 7] == 0
    np.testing.assert_array_equal(
        G[0].to_numpy(), G.left[0, :, :7] @ np.ascontiguousarray(G.right[0, :7])
    )
    assert low_rank(circle, 8, keep_pairs=True).rank == 7


def test_lists_are_arrays() -> None:
    G = low_rank([[[4.0, 0.0], [0.0, 3.0]]], 1)
    assert G.shape == (1, 2, 2) and G.relative_error([[[4.0, 0.0], [0.0, 3.0]]])[0] == 0.6
    with pytest.raises(ValueError, match="A: wanted a rectangular array"):
        low_rank([[1.0], [1.0, 2.0]], 1)
    with pytest.raises(ValueError, match="A: wanted a matrix"):
        low_rank([1.0, 2.0], 1)


def test_bad_batches() -> None:
    with pytest.raises(ValueError, match=r"A: wanted no axis of length 0, got shape \(0, 4, 4\)"):
        low_rank(np.ones((0, 4, 4)), 2)
    with pytest.raises(ValueError, match=r"right: wanted batch axes that broadcast"):
        LowRank(np.ones((2, 4, 1)), np.ones((3, 1, 4)))
    G = LowRank(np.ones((2, 4, 1)), np.ones((2, 1, 5)))
    with pytest.raises(ValueError, match=r"experts\[1\]: wanted batch axes that broadcast"):
        qk.poe(G, LowRank(np.ones((3, 4, 1)), np.ones((3, 1, 5))))
    with pytest.raises(ValueError, match=r"exact: wanted shape \(2, 4, 5\) like the factors"):
        G.relative_error(np.ones((4, 5)))
    with pytest.raises(TypeError, match="exact: wanted an operator or an array, got int"):
        G.relative_error(3)
    with pytest.raises(IndexError, match=r"index: wanted integers or slices for the batch"):
        G[0, 1]
    with pytest.raises(TypeError, match="len: wanted a batch of kernels"):
        len(G[0])
    with pytest.raises(ValueError, match="right operand of @: wanted batch axes that broadcast"):
        G @ np.ones((3, 5, 1))
    with pytest.raises(ValueError, match=r"exact: wanted one problem, got batch axes \(2,\)"):
        G[0].relative_error(G)


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
    with pytest.raises(ValueError, match=r"right operand of @: wanted length 5 .*got \(4,\)"):
        K @ np.ones(4)
    with pytest.raises(ValueError, match=r"left operand of @: wanted length 4 along"):
        np.ones(5) @ K
    with pytest.raises(TypeError, match="operand of @: wanted float64 like the factors"):
        K @ np.ones(5, np.float32)
    with pytest.raises(ValueError, match=r"right operand of @: wanted finite numbers, got \+inf"):
        K @ np.full(5, np.inf)
    with pytest.raises(ValueError, match=r"exact: wanted shape \(4, 5\)"):
        K.relative_error(np.ones((5, 4)))


def test_bad_truncations() -> None:
    A = cloud(150)
    with pytest.raises(ValueError, match="rank: wanted 1 to 150, got 0"):
        low_rank(A, 0)
    with pytest.raises(ValueError, match="rank: wanted 1 to 150, got 151"):
        low_rank(A, 151)
    with pytest.raises(TypeError, match="rank: wanted an integer"):
        low_rank(A, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method: wanted one of"):
        low_rank(A, 3, method="lanczos")
    with pytest.raises(ValueError, match="max_iter: wanted at least 1"):
        low_rank(A, 3, max_iter=0)
    with pytest.raises(ValueError, match="n_oversamples: wanted at least 1"):
        low_rank(A, 3, n_oversamples=0)
    with pytest.raises(TypeError, match="already factored"):
        low_rank(LowRank(np.ones((3, 1)), np.ones((1, 3))), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted entries >= 0 for nonnegative"):
        low_rank(-np.ones((3, 3)), 1, nonnegative=True)
    with pytest.raises(ValueError, match="keep_pairs: wanted a gap"):
        low_rank(np.eye(5), 2, keep_pairs=True)
