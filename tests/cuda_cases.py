"""Problems for the CUDA kernels, each with its score array computed by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref
from tests.kernels import UNBOUNDED, Scores

Array = NDArray[Any]

KINDS = ("dot", "distance", "l1", "dense", "sum")
MASKS = ("none", "causal", "window", "dense", "keys", "padding")
# Sizes near those of warps and tiles, the size 1, and long thin shapes.
SHAPES = ((1, 1), (31, 33), (32, 32), (33, 31), (1, 130), (70, 1), (65, 70))


def scores(
    rng: np.random.Generator, n: int, m: int, d: int, kind: str, mask: str, dtype: Any
) -> tuple[Scores, Array]:
    """A problem and its scores in extended precision, from the numbers as rounded to `dtype`."""

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return (scale * rng.normal(size=shape)).astype(dtype)

    s = Scores(n, m)
    exact = np.zeros((n, m), dtype=ref.HIGH)
    if kind in ("dot", "sum"):
        X, Y = draw(n, d), draw(m, d)
        s.features.append(("dot", X, Y, 0.7))
        exact = exact + ref.dot(X, Y, beta=_as(0.7, dtype))
    if kind in ("distance", "sum"):
        X, Y = draw(n, d), draw(m, d)
        s.features.append(("distance", X, Y, 0.4))
        exact = exact + ref.distance(X, Y, beta=_as(0.4, dtype))
    if kind in ("l1", "sum"):
        X, Y = draw(n, d), draw(m, d)
        s.features.append(("l1", X, Y, 0.3))
        exact = exact + ref.l1(X, Y, beta=_as(0.3, dtype))
    if kind in ("dense", "sum"):
        Z = draw(n, m, scale=2.0)
        s.dense.append((Z, -1.5))
        exact = exact - 1.5 * ref.high(Z)
    if kind == "sum":  # directions of an indefinite metric, and biases on both sides
        X, Y = draw(n, 2), draw(m, 2)
        s.features.append(("distance", X, Y, -0.25))
        exact = exact + 0.25 * ref.squared_distance(X, Y)
        rows, columns = draw(n), draw(m)
        s.row_bias.append(rows)
        s.col_bias.append(columns)
        exact = ref.shift(exact, rows, columns)
    return s, _masked(rng, s, exact, mask, dtype)


def _as(x: float, dtype: Any) -> float:
    return float(np.dtype(dtype).type(x)) if np.dtype(dtype).kind == "f" else x


def _masked(rng: np.random.Generator, s: Scores, exact: Array, mask: str, dtype: Any) -> Array:
    n, m = s.n, s.m
    if mask == "causal":
        s.band = (-UNBOUNDED, 2)
        return ref.masked(exact, ref.causal_mask(n, m, 2))
    if mask == "window":
        s.band = (-5, 3)
        return ref.masked(exact, ref.window_mask(n, m, 5, 3))
    if mask == "dense":
        keep = rng.random((n, m)) < 0.5
        s.masks.append(keep)
        return ref.masked(exact, keep)
    if mask == "keys":
        keys = rng.random(m) < 0.7
        s.masks.append(keys)
        return ref.masked(exact, np.broadcast_to(keys, (n, m)))
    if mask == "padding":
        bias = np.where(np.arange(m) < max(1, m // 2), 0, -np.inf).astype(dtype)
        s.col_bias.append(bias)
        return ref.masked(exact, np.broadcast_to(bias == 0, (n, m)))
    return exact


def close(found: Array, wanted: Array, *, digits: float = 1.0, scale: float | None = None) -> None:
    """Equal up to rounding: 16 eps of the size of the numbers (or of `scale`) times `digits`."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    finite = np.isfinite(wanted.astype(np.float64))
    np.testing.assert_array_equal(found[~finite], wanted[~finite].astype(found.dtype))
    if not finite.any():
        return
    size = max(1.0, float(np.abs(wanted[finite]).max())) if scale is None else scale
    error = float(np.abs(found[finite].astype(ref.HIGH) - wanted[finite]).max())
    assert error <= 16 * float(np.finfo(found.dtype).eps) * size * digits
