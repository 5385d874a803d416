"""The stored upper half of a symmetric kernel, against the full matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._native import cpu

Array = np.ndarray[Any, Any]
TILE = cpu.SYMMETRIC_TILE


def check(s: qk.Scores, k: int, seed: int = 0) -> None:
    K = np.exp(s.to_numpy().astype(np.float64))
    n = len(K)
    x = np.random.default_rng(seed).standard_normal((k, n)).astype(s.dtype)
    tiles = cpu.pack_symmetric(s._spec, 2)
    side = -(-n // TILE)
    assert tiles.shape == (side * (side + 1) // 2, TILE, TILE)
    got = cpu.symmetric_product(tiles, x, 2)
    assert got.shape == x.shape and got.dtype == s.dtype
    bound = 4 * np.sqrt(n) * np.finfo(s.dtype).eps * (np.abs(x.astype(np.float64)) @ np.abs(K))
    assert (np.abs(got - x.astype(np.float64) @ K) <= bound).all()
    np.testing.assert_array_equal(cpu.symmetric_product(tiles, x, 1), got)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE, 300])
def test_products_of_distance_kernels(n: int, dtype: str) -> None:
    X = np.random.default_rng(n).standard_normal((n, 3)).astype(dtype)
    s = qk.scores.distance(X, beta=0.7)
    for k in (1, 2, 3, 6):
        check(s, k)


def test_every_kind_of_term_lands_in_its_tile() -> None:
    """Dots, distances, dense terms, shifts, bands and masks, cut into tiles that do not start at 0."""
    rng = np.random.default_rng(1)
    n = 2 * TILE + 17
    X = rng.standard_normal((n, 5))
    Z = rng.standard_normal((n, n))
    keep = rng.random((n, n)) < 0.8
    shift = rng.standard_normal(n)
    s = (
        qk.scores.dot(X, beta=0.3)
        + qk.scores.distance(X[:, :2], beta=0.2)
        + qk.scores.dense(Z + Z.T)
    )
    s = s.shift(rows=shift, columns=shift).window(150, 150).masked(keep & keep.T)
    check(s, 3)
    check(qk.scores.dense((Z + Z.T)[::-1, ::-1]), 2)


# ---- partial factors ------------------------------------------------------------------------------


def greedy_cholesky(K: Array, rank: int) -> tuple[Array, Array]:
    """The columns of the factor and the diagonal that is left, one pivot after another."""
    left = K.astype(np.float64).copy()
    columns = []
    for _ in range(rank):
        p = int(np.argmax(np.diag(left)))
        columns.append(left[:, p] / np.sqrt(left[p, p]))
        left -= np.outer(columns[-1], columns[-1])
    return np.array(columns), np.diag(left)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 511, 512, 513, 700])
def test_partial_factor_takes_the_largest_pivot_each_time(n: int, dtype: str) -> None:
    X = np.random.default_rng(n).standard_normal((n, 3)).astype(dtype)
    s = qk.scores.distance(X, beta=0.7).shift(rows=X[:, 0] * 0 - X[:, 1] ** 2)
    s = s.shift(columns=-(X[:, 1] ** 2))  # a diagonal that is not constant
    K = np.exp(s.to_numpy().astype(np.float64))
    wanted = min(n, 9)
    factor, rank, rest = cpu.partial_cholesky(s._spec, wanted, 0.0, 2)
    assert factor.shape == (wanted, n) and factor.dtype == s.dtype and rank == wanted
    columns, left = greedy_cholesky(K, wanted)
    tol = 50 * np.finfo(s.dtype).eps
    np.testing.assert_allclose(factor, columns, atol=tol)
    np.testing.assert_allclose(rest, left.sum(), atol=n * tol)
    again = cpu.partial_cholesky(s._spec, wanted, 0.0, 1)
    np.testing.assert_array_equal(again[0], factor)
    assert again[1:] == (rank, rest)


def test_partial_factor_stops_when_enough_or_nothing_is_left() -> None:
    X = np.random.default_rng(3).standard_normal((600, 2))
    s = qk.scores.distance(X, beta=0.05)
    K = np.exp(s.to_numpy())
    factor, rank, rest = cpu.partial_cholesky(s._spec, 100, 1e-3, 2)
    assert rank < 100 and rest <= 1e-3
    rest_matrix = K - factor[:rank].T @ factor[:rank]
    np.testing.assert_allclose(np.trace(rest_matrix), rest, atol=1e-12)
    assert np.linalg.norm(rest_matrix, 2) <= rest
    _, before, more = cpu.partial_cholesky(s._spec, rank - 1, 1e-3, 2)
    assert before == rank - 1 and more > 1e-3
    twice = np.repeat(X[:4], 5, axis=0)  # four points, five times each
    _, rank, rest = cpu.partial_cholesky(qk.scores.distance(twice, beta=1.0)._spec, 20, 0.0, 2)
    assert rank == 4 and abs(rest) < 1e-12
