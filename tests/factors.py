"""Random low-rank experts for the tests of kernels and of bridges."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkcore.factors import LowRank

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = ("float32", "float64")


def factors(
    n: int, m: int, ranks: tuple[int, ...], dtype: str, seed: int = 0, positive: bool = False
) -> list[LowRank]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        x = rng.standard_normal(shape)
        return (np.abs(x) if positive else x).astype(dtype)

    return [LowRank(draw(n, r), draw(r, m)) for r in ranks]
