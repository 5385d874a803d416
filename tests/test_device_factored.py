"""Low-rank kernels and products of experts on device arrays (DAC-9, DAC-10)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.factors import LowRank, ProductOfFactors, low_rank, solve_factored
from tests.device_libraries import Library
from tests.test_device import DTYPES, close, cpu_and_device, laws, rng


def factors(n: int, m: int, ranks: tuple[int, ...], dtype: str) -> list[tuple[Any, Any]]:
    r = rng()
    return [
        (r.normal(size=(n, k)).astype(dtype), r.normal(size=(k, m)).astype(dtype)) for k in ranks
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [(1,), (3,), (2, 3), (2, 1, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 9), (33, 2)])
def test_products(xp: Library, ranks: tuple[int, ...], n: int, m: int, dtype: str) -> None:
    """K @ V, U @ K, vectors, the transpose: against the product of the matrices themselves."""
    given = factors(n, m, ranks, dtype)
    d = xp.asarray
    experts = [LowRank(d(left), d(right)) for left, right in given]
    K = ProductOfFactors(*experts) if len(ranks) > 1 else experts[0]
    dense = np.prod([left.astype(float) @ right.astype(float) for left, right in given], axis=0)
    assert (K.shape, K.ranks, K.dtype, K.device) == ((n, m), ranks, np.dtype(dtype), "cuda:0")
    V, U = rng().normal(size=(m, 4)).astype(dtype), rng().normal(size=(3, n)).astype(dtype)
    size = 4 * max(1.0, float(np.abs(dense).max()))
    for array, found in (
        (V, K @ d(V)),
        (V[:, 0], K @ d(V[:, 0].copy())),
        (V, K.T.T @ d(V)),
    ):
        close(xp.numpy(found), (dense @ array.astype(float)).astype(dtype), size)
    for array, found in ((U, K.apply_left(d(U))), (U[0], K.apply_left(d(U[0].copy())))):
        close(xp.numpy(found), (array.astype(float) @ dense).astype(dtype), size)
    close(xp.numpy(K.T @ d(U.T.copy())), (dense.T @ U.T.astype(float)).astype(dtype), size)
    close(K.to_numpy(), dense.astype(dtype), size)
    assert "cuda:0" in repr(K)


def test_factors_of_any_strides(xp: Library) -> None:
    (left, right), (left2, right2) = factors(6, 8, (2, 3), "float64")
    d = xp.asarray
    K = LowRank(d(left.T.copy()).T, d(right.T.copy()).T)
    V = rng().normal(size=(3, 8))
    close(xp.numpy(K @ d(V).T), left @ right @ V.T, 4)
    many = qk.poe(K, LowRank(d(left2), d(right2)))
    close(xp.numpy(many @ d(V).T), ((left @ right) * (left2 @ right2)) @ V.T, 16)


def test_factors_of_an_svd_moved_to_the_device(xp: Library) -> None:
    """DAC-10, D.1: compress on the CPU, apply on the device."""
    cpu, _ = cpu_and_device(xp, "distance", "float64")
    A = qk.softmax(cpu)
    small = low_rank(A, 5)
    K = LowRank(xp.asarray(small.left), xp.asarray(small.right))
    V = rng().normal(size=(18, 2))
    close(xp.numpy(K @ xp.asarray(V)), small @ V, 4)
    assert K.to_cpu().relative_error(A) == pytest.approx(small.relative_error(A), rel=1e-9)


@pytest.mark.parametrize("method", ["dense", "randomised"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions_of_operators_on_a_device(xp: Library, dtype: str, method: str) -> None:
    """Products on the device, small decompositions on the host: the factors of the CPU, on the device."""
    cpu, device = cpu_and_device(xp, "distance", dtype)
    V = rng().normal(size=(18, 2)).astype(dtype)
    size = 400 if method == "randomised" else 8
    for here, there in (
        (qk.softmax(cpu), qk.softmax(device)),
        (qk.kernel(cpu), qk.kernel(device)),
        (cpu.to_numpy(), xp.asarray(cpu.to_numpy())),
    ):
        want, got = low_rank(here, 5, method=method), low_rank(there, 5, method=method)
        assert (got.device, got.dtype, got.method) == ("cuda:0", np.dtype(dtype), method)
        close(xp.numpy(got @ xp.asarray(V)), want @ V, size)
        close(got.singular_values, want.singular_values, size)
        assert got.relative_error(there) == pytest.approx(want.relative_error(here), rel=1e-3)
    positive = low_rank(qk.softmax(device), 3, nonnegative=True)
    assert positive.nonnegative and positive.device == "cuda:0"
    assert positive.error == pytest.approx(
        low_rank(qk.softmax(cpu), 3, nonnegative=True).error, rel=1e-2
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", ["auto", "alternating", "newton"])
@pytest.mark.parametrize("ranks", [(3,), (2, 3)])
def test_bridges(xp: Library, ranks: tuple[int, ...], solver: str, dtype: str) -> None:
    """Bridges over factors on a device are those of the CPU, figure by figure."""
    d = xp.asarray
    given = [(np.abs(left), np.abs(right)) for left, right in factors(14, 11, ranks, dtype)]
    here = qk.poe(*(LowRank(left, right) for left, right in given))
    K = qk.poe(*(LowRank(d(left), d(right)) for left, right in given))
    mu, nu = laws(14, 11, dtype)
    want = qk.bridge(here, mu, nu, solver=solver)
    got = qk.bridge(K, d(mu), d(nu), solver=solver)
    assert got.converged and got.status == "converged"
    assert abs(got.n_visits - want.n_visits) <= 2
    tol = 4 * want.tol
    np.testing.assert_allclose(xp.numpy(got.plan()), want.plan(), atol=tol)
    for rows, columns in zip(got.marginals(), (mu, nu), strict=True):
        assert np.abs(xp.numpy(rows) - columns).sum() <= 2 * want.tol
    V = rng().normal(size=(11, 2)).astype(dtype)
    exact = want.plan() @ V / want.plan().sum(axis=1, keepdims=True)
    np.testing.assert_allclose(xp.numpy(got.project(d(V))), exact, atol=40 * tol)
    np.testing.assert_allclose(
        xp.numpy(got.backward @ d(V[:1].repeat(14, 0).copy())), V[:1].repeat(11, 0), atol=40 * tol
    )
    assert got.cost == pytest.approx(want.cost, abs=40 * tol)
    assert got.negative.count == 0
    again = qk.bridge(K, d(mu), d(nu), solver=solver, init=got)
    assert again.n_visits <= max(3, got.n_visits)
    free = qk.bridge(K, d(mu), d(nu), penalty=0.7)
    other = qk.bridge(here, mu, nu, penalty=0.7)
    np.testing.assert_allclose(xp.numpy(free.plan()), other.plan(), atol=tol)


def test_what_a_bridge_is_compared_with(xp: Library) -> None:
    """The measures of D.1, and the exact bridge that the factors remember."""
    cpu, device = cpu_and_device(xp, "distance", "float64")
    d, n = xp.asarray, cpu.shape[0]
    u = np.full(n, 1 / n), np.full(cpu.shape[1], 1 / cpu.shape[1])
    here, there = low_rank(qk.kernel(cpu), 8), low_rank(qk.kernel(device), 8)
    mine = qk.bridge(here, *u, on_fail="ignore")
    theirs = qk.bridge(there, *map(d, u), on_fail="ignore")
    want = qk.compression_errors(mine, mine.exact())
    got = qk.compression_errors(theirs, theirs.exact())
    assert got.status == want.status
    for name in ("kernel_rel_err", "coupling_rel_err", "latent_rmse", "min_entry", "min_mass"):
        assert getattr(got, name) == pytest.approx(getattr(want, name), rel=1e-5, abs=1e-9)
    with pytest.raises(TypeError, match="n_threads: wanted None for arrays on cuda:0"):
        qk.bridge(there, *map(d, u), n_threads=1)


def test_kernels_that_go_negative(xp: Library) -> None:
    """No coupling is claimed where there is none: the guards of the CPU hold on a device."""
    d = xp.asarray
    half, third = np.full(2, 0.5), np.full(3, 1 / 3)
    K = LowRank(d(np.ones((2, 1))), d(np.array([[1.0, -0.1, 1.0]])))
    b = qk.bridge(K, d(half), d(third), on_fail="ignore")
    assert (b.status, b.converged) == ("negative kernel", False)
    assert (K.count_negative().count, K.nonnegative) == (2, False)
    left, right = np.array([[1.0, -0.4], [1.0, 0.5]]), np.array([[1.0, 1.0, 1.0], [2.6, 0.1, 0.3]])
    K = LowRank(d(left), d(right))
    b = qk.bridge(K, d(half), d(third), on_fail="ignore")
    want = qk.bridge(K.to_cpu(), half, third, on_fail="ignore")
    assert b.status == want.status != "converged"
    with pytest.raises(ValueError, match=r"on_negative: wanted .stop. for a kernel on cuda:0"):
        solve_factored(K, d(half), d(third), on_negative="continue")


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(xp: Library, dtype: str) -> None:
    """Factors with batch axes on a device: products, one problem of them, and bridges."""
    r, d = rng(), xp.asarray
    left, right = (
        r.uniform(0.1, 1, size=size).astype(dtype) for size in ((2, 3, 7, 2), (2, 3, 2, 6))
    )
    K, here = LowRank(d(left), d(right)), LowRank(left, right)
    assert (K.shape, K.batch, len(K)) == ((2, 3, 7, 6), (2, 3), 2)
    V = r.normal(size=(2, 3, 6, 4)).astype(dtype)
    close(xp.numpy(K @ d(V)), here @ V, 8)
    close(xp.numpy(K @ d(V[..., 0].copy())), here @ V[..., 0], 8)
    close(xp.numpy(qk.poe(K, K) @ d(V)), qk.poe(here, here) @ V, 8)
    close(K[1, 2].to_numpy(), here[1, 2].to_numpy(), 4)
    mu, nu = (w.astype(dtype) for w in laws(7, 6, dtype))
    got, want = qk.bridge(K, d(mu), d(nu)), qk.bridge(here, mu, nu)
    assert got.status.shape == (2, 3) and got.converged.all() and want.converged.all()
    np.testing.assert_allclose(xp.numpy(got.plan()), want.plan(), atol=4 * want.tol)
    np.testing.assert_allclose(xp.numpy(got[1, 2].plan()), want[1, 2].plan(), atol=4 * want.tol)


def test_wrong_factors(xp: Library) -> None:
    (left, right), (left2, right2) = factors(4, 5, (2, 3), "float64")
    d = xp.asarray
    K = LowRank(d(left), d(right))
    with pytest.raises(TypeError, match=r"right: wanted an array on cuda:0 like the others, got a"):
        LowRank(d(left), right)
    with pytest.raises(TypeError, match=r"left: wanted an array on cuda:0"):
        LowRank(left, d(right))
    with pytest.raises(ValueError, match=r"right: wanted shape \(2, M\) after left"):
        LowRank(d(left), d(right2))
    with pytest.raises(TypeError, match=r"right: wanted float64 like left, got float32"):
        LowRank(d(left), d(right.astype("f")))
    with pytest.raises(ValueError, match=r"left: wanted finite numbers, got NaN"):
        LowRank(d(left * np.nan), d(right))
    with pytest.raises(
        ValueError,
        match=r"left: wanted a matrix, or one for each problem of a batch, got shape \(4,\)",
    ):
        LowRank(d(left[:, 0].copy()), d(right))
    with pytest.raises(TypeError, match=r"experts\[1\]: wanted arrays on cuda:0 like exp"):
        qk.poe(K, LowRank(left2, right2))
    with pytest.raises(ValueError, match=r"experts\[1\]: wanted shape \(4, 5\) and float64 like"):
        ProductOfFactors(K, LowRank(d(left[:3].copy()), d(right)))
    with pytest.raises(ValueError, match=r"experts: wanted at most 4 on a device, got 5"):
        ProductOfFactors(K, K, K, K, K)
    with pytest.raises(
        ValueError, match=r"right operand of @: wanted length 5 .* did you mean U @ A"
    ):
        K @ d(np.ones(4))
    with pytest.raises(TypeError, match=r"V: wanted an array on cuda:0 like the others"):
        K.apply(np.ones(5))
    with pytest.raises(TypeError, match=r"V: wanted an array on the CPU like the others"):
        LowRank(left, right).apply(d(np.ones(5)))
    whole = LowRank(left, right)
    np.testing.assert_array_equal(copy.copy(whole).to_numpy(), whole.to_numpy())


def test_products_of_experts(xp: Library) -> None:
    """DAC-9: scores, operators and kernels multiply by adding logits, as on the CPU."""
    cpu, device = cpu_and_device(xp, "dot", "float64")
    other_cpu, other_device = cpu_and_device(xp, "masked", "float64")
    a = qk.poe(cpu, qk.softmax(other_cpu), qk.kernel(cpu))
    b = qk.poe(device, qk.softmax(other_device), qk.kernel(device))
    close(b.to_numpy(), a.to_numpy(), 8)
    with pytest.raises(
        ValueError, match=r"experts\[1\]: wanted a kernel with weight .exp., got .relu"
    ):
        qk.poe(device, qk.kernel(device, "relu"))
