"""The stored upper half of a symmetric kernel against the kernel written out."""

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
