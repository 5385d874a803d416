"""Eigenpairs of the symmetric conjugate besides the known one: formed or matrix-free."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._lanczos import Product, leading_by_lanczos
from .._native import cpu
from .._spectral import DENSE_UP_TO, fix_signs, leading_eigenpairs
from ..operators import KernelOperator

# Vectors multiplied at a time, and basis vectors kept. Where every entry costs an exp, 16 vectors take
# 1.6 times as long as one; where weights are read, four take little longer than one.
_LAZY = (16, 240)
_FORMED = (4, 80)


def nontrivial_eigenpairs(
    S: KernelOperator,
    root: npt.NDArray[np.float64],
    k: int,
    materialized: bool,
    max_iter: int | None,
    n_threads: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """The k largest eigenvalues of S, and vectors, besides the known pair (1, root); the passes made."""
    n, dtype = S.shape[0], S.dtype
    first = root.astype(dtype)[:, None]
    multiply = _stored_product(S, n_threads) if materialized else _lazy_product(S, n_threads)
    passes = 0

    def product(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        nonlocal passes
        passes += 1
        return multiply(x)

    # Moving the known eigenvalue to -1, below all others, keeps constants apart from other vectors of
    # eigenvalue 1 (of clusters that do not see each other).
    def deflated(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        y = product(x)
        y -= first * (2 * (first.T @ x))
        return y

    block, basis = _FORMED if materialized else _LAZY
    found = None
    if n > DENSE_UP_TO:
        found = leading_by_lanczos(
            product, first, k, block=block, basis=basis, max_restarts=max_iter
        )
    if found is None:
        found = leading_eigenpairs(deflated, n, n, dtype)
    values, vectors = found
    return values[:k], fix_signs(vectors[:, :k]), passes


def _lazy_product(S: KernelOperator, n_threads: int) -> Product:
    return lambda x: S.apply(x, n_threads=n_threads)


def stored_bytes(n: int, dtype: np.dtype[Any]) -> int:
    """What the upper half of an N x N matrix takes, in whole tiles."""
    side = -(-n // cpu.SYMMETRIC_TILE)
    return side * (side + 1) // 2 * cpu.SYMMETRIC_TILE**2 * dtype.itemsize


def _stored_product(S: KernelOperator, n_threads: int) -> Product:
    """Products with the stored upper half of S, read once for all vectors."""
    tiles = cpu.pack_symmetric(S.scores._spec, n_threads)

    def product(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return cpu.symmetric_product(tiles, np.ascontiguousarray(x.T), n_threads).T

    return product
