"""Gradients pulled back through weights of scores, against explicit matrices; and skipped tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._native import cpu

Array = np.ndarray[Any, Any]
BLOCK, TILE = 96, 256  # sizes of the walk's tiles, along which the kept blocks are cut


def problem(n: int, m: int, d: int, dtype: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    U, V = normal(n, 5), normal(m, 5)
    t = qk.scores.dot(U, V).shift(normal(n), normal(m))
    s = qk.scores.dot(normal(n, d), normal(m, d), beta=0.3)
    return {"s": s, "t": t, "Y": normal(m, 3), "X": normal(n, 33), "U": normal(n, 17)}


def pulled(p: dict[str, Any], kept: Any = None, n_threads: int = 2) -> tuple[Array, ...]:
    out: tuple[Array, ...] = cpu.pull(
        p["s"]._spec, p["t"]._spec, p["Y"], p["X"], p["U"], kept, n_threads
    )
    return out


def check(p: dict[str, Any], got: tuple[Array, ...], keep: Array | None = None) -> None:
    w = np.exp(p["s"].to_numpy().astype(np.float64))
    if keep is not None:
        w = np.where(keep, w, 0.0)
    t = p["t"].to_numpy().astype(np.float64)
    G = w * t
    # The rounding of a sum of n terms, and of the scores that are in the exponent.
    n, m = w.shape
    eps = float(np.finfo(p["s"].dtype).eps)
    finite = np.where(w > 0, np.abs(p["s"].to_numpy()), 0.0)
    size = w * (np.abs(t) + 8) * (1 + finite)
    cases = [
        ("G Y", G @ p["Y"], size @ np.abs(p["Y"]), m),
        ("G^T X", G.T @ p["X"], size.T @ np.abs(p["X"]), n),
        ("w^T U", w.T @ p["U"], (w * (1 + finite)).T @ np.abs(p["U"]), n),
        ("G 1", G.sum(1), size.sum(1), m),
        ("G^T 1", G.sum(0), size.sum(0), n),
    ]
    for (name, wanted, scale, terms), found in zip(cases, got, strict=True):
        assert found.dtype == p["s"].dtype and found.shape == wanted.shape, name
        bound = (8 + np.sqrt(terms)) * eps * scale
        assert (np.abs(found - wanted) <= bound).all(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [3, 20])
@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (1, 40), (33, 1), (5, 17), (96, 256), (97, 257), (200, 520)]
)
def test_every_product_and_sum(n: int, m: int, d: int, dtype: str) -> None:
    p = problem(n, m, d, dtype, seed=n + m)
    check(p, pulled(p))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masked_entries_pull_nothing(dtype: str) -> None:
    n, m = 150, 300
    p = problem(n, m, 4, dtype, seed=1)
    mask = np.random.default_rng(2).random((n, m)) < 0.3
    for s in (p["s"].causal(), p["s"].masked(mask), p["s"].causal(-200), p["s"].window(3, 2)):
        q = {**p, "s": s}
        check(q, pulled(q))


def test_the_rows_of_one_thread_do_not_depend_on_the_number_of_threads() -> None:
    p = problem(400, 300, 7, "float32", seed=3)
    one, four, again = (pulled(p, n_threads=k) for k in (1, 4, 4))
    for k in (0, 3):  # sums over columns
        np.testing.assert_array_equal(one[k], four[k])
    for a, b in zip(four, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_without_a_kept_block_are_skipped(dtype: str) -> None:
    n, m = 3 * BLOCK, 2 * TILE + 10
    p = problem(n, m, 6, dtype, seed=4)
    blocks = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=np.uint8)
    keep = np.repeat(np.repeat(blocks, BLOCK, 0), TILE, 1)[:n, :m].astype(bool)
    check(p, pulled(p, (blocks, BLOCK, TILE), n_threads=1), keep)
    # If one block of a tile is kept, the whole tile is visited.
    halves = np.zeros((3, 6), dtype=np.uint8)
    halves[1, 3] = 1
    keep = np.zeros((n, m), dtype=bool)
    keep[BLOCK : 2 * BLOCK, TILE : 2 * TILE] = True
    check(p, pulled(p, (halves, BLOCK, TILE // 2), n_threads=1), keep)


def test_a_result_out_of_range_is_an_error() -> None:
    p = problem(4, 4, 2, "float32", seed=5)
    p["s"] = qk.scores.dense(np.full((4, 4), 100.0, dtype=np.float32))
    with pytest.raises(OverflowError, match="float32"):
        pulled(p)
