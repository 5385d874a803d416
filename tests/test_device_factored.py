"""Low-rank kernels and products of experts on device arrays (DAC-9, DAC-10)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.factors import LowRank, ProductOfFactors, low_rank
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
    cpu, device = cpu_and_device(xp, "distance", "float64")
    A = qk.softmax(cpu)
    small = low_rank(A, 5)
    K = LowRank(xp.asarray(small.left), xp.asarray(small.right))
    V = rng().normal(size=(18, 2))
    close(xp.numpy(K @ xp.asarray(V)), small @ V, 4)
    assert K.to_cpu().relative_error(A) == pytest.approx(small.relative_error(A), rel=1e-9)
    with pytest.raises(
        TypeError, match=r"A: wanted an operator or array on the CPU, .* MarkovOperator on"
    ):
        low_rank(qk.softmax(device), 5)
    with pytest.raises(TypeError, match=r"A: wanted an operator or array on the CPU"):
        low_rank(xp.asarray(V), 1)


def test_bridges_of_factored_kernels_are_sent_to_the_cpu(xp: Library) -> None:
    (left, right) = factors(4, 5, (2,), "float64")[0]
    K = LowRank(xp.asarray(np.abs(left)), xp.asarray(np.abs(right)))
    mu, nu = laws(4, 5, "float64")
    with pytest.raises(
        TypeError, match=r"kernel: wanted scores for a bridge on a device, .*to_cpu"
    ):
        qk.bridge(K, xp.asarray(mu), xp.asarray(nu))
    assert qk.bridge(K.to_cpu(), mu, nu).converged


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
    with pytest.raises(ValueError, match=r"left: wanted a matrix, got shape \(4,\)"):
        LowRank(d(left[:, 0].copy()), d(right))
    with pytest.raises(TypeError, match=r"experts\[1\]: wanted low-rank factors on a device"):
        qk.poe(K, LowRank(left2, right2))
    with pytest.raises(
        ValueError, match=r"experts\[1\]: wanted shape \(4, 5\) and float64 on cuda"
    ):
        ProductOfFactors(K, LowRank(d(left[:3].copy()), d(right)))
    with pytest.raises(ValueError, match=r"experts: wanted at most 4 on a device, got 5"):
        ProductOfFactors(K, K, K, K, K)
    with pytest.raises(
        ValueError, match=r"V: wanted shape \(5,\) or \(5, k\) .* did you mean U @ K"
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
