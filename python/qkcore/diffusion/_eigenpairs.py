"""Eigenpairs of the symmetric conjugate other than the known one, from a stored matrix or without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._davidson import Surrogate, leading_by_davidson, surrogate_of
from .._lanczos import Product, leading_by_lanczos
from .._lazy_scores import Scores
from .._native import cpu
from .._spectral import DENSE_UP_TO, fix_signs, leading_eigenpairs
from ..operators import KernelOperator

# How many vectors are multiplied at a time, and how many basis vectors are kept. If every entry costs an exp,
# 16 vectors take 1.6 times as long as one. If stored weights are read, four take little longer than one.
_LAZY = (16, 240)
_FORMED = (4, 80)
# The surrogate is made of some columns of the operator, at a cost that grows with the square of their number.
# Once the trace of the rest is below _ENOUGH (that of the operator is at least 1), further columns cost more
# than the pass that they save. A pass costs more if the matrix is not stored, so the threshold is lower then.
_POINTS_PER_COLUMN, _COLUMNS_PER_PAIR, _MIN_RANK, _MAX_RANK = 25, 8, 100, 400
_ENOUGH = {True: 1e-4, False: 1e-8}  # with and without a stored matrix


def nontrivial_eigenpairs(
    S: KernelOperator | None,
    root: npt.NDArray[np.float64],
    k: int,
    multiply: Product | None,
    definite: bool,
    max_iter: int | None,
    n_threads: int,
    *,
    dtype: np.dtype[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """The k largest eigenvalues of S other than the known pair (1, root), their vectors, and the passes made.

    ``multiply`` is the product with S if that is stored; then S may be None. ``definite`` says that S is
    positive semidefinite, so that some of its columns give a bound on the rest.
    """
    n = len(root)
    first = root.astype(dtype)[:, None]
    formed = multiply is not None
    if multiply is not None:
        times = multiply
    else:
        assert S is not None
        times = _lazy_product(S, n_threads)
    passes = 0

    def product(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        nonlocal passes
        passes += 1
        return times(x)

    # The known eigenvalue is moved to -1, below all others. This separates its vector from other vectors of
    # eigenvalue 1, which exist if clusters have no weights between them.
    def deflated(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        y = product(x)
        y -= first * (2 * (first.T @ x))
        return y

    block, basis = _FORMED if formed else _LAZY
    found = None
    if n > DENSE_UP_TO and definite and S is not None:
        surrogate = _surrogate(S, first, k, _ENOUGH[formed], n_threads)
        if surrogate is not None:
            found = leading_by_davidson(product, first, k, surrogate)
    if n > DENSE_UP_TO and found is None:
        found = leading_by_lanczos(
            product, first, k, block=block, basis=basis, max_restarts=max_iter
        )
    if found is None:
        found = leading_eigenpairs(deflated, n, n, dtype)
    values, vectors = found
    return values[:k], fix_signs(vectors[:, :k]), passes


def _surrogate(
    S: KernelOperator, first: npt.NDArray[Any], k: int, enough: float, n_threads: int
) -> Surrogate | None:
    """The leading part of S from some of its columns; None if it does not determine the first k vectors."""
    n = S.shape[0]
    rank = min(_MAX_RANK, max(_MIN_RANK, n // _POINTS_PER_COLUMN, _COLUMNS_PER_PAIR * k))
    if 2 * rank > n:
        return None
    factor, rank, rest = cpu.partial_cholesky(S.scores._spec, rank, enough, n_threads)
    if rank < k + 4:
        return None
    surrogate = surrogate_of(factor[:rank], first, rest)
    return surrogate if surrogate.knows(k) else None


def _lazy_product(S: KernelOperator, n_threads: int) -> Product:
    return lambda x: S.apply(x, n_threads=n_threads)


def stored_bytes(n: int, dtype: np.dtype[Any]) -> int:
    """Bytes of the upper half of an N x N matrix, stored in whole tiles."""
    side = -(-n // cpu.SYMMETRIC_TILE)
    return side * (side + 1) // 2 * cpu.SYMMETRIC_TILE**2 * dtype.itemsize


class StoredKernel:
    """The upper half of a symmetric kernel exp(s), read once for all vectors of a product."""

    def __init__(self, s: Scores, n_threads: int) -> None:
        self._tiles = cpu.pack_symmetric(s._spec, n_threads)
        self._n_threads = n_threads

    def __call__(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """K x for vectors as columns (n, m)."""
        return cpu.symmetric_product(self._tiles, np.ascontiguousarray(x.T), self._n_threads).T

    def scaled(self, scale: npt.NDArray[Any]) -> Product:
        """Products with diag(scale) K diag(scale)."""
        column = scale[:, None]
        return lambda x: column * self(column * x)

    def log_row_sums(self, shift: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """log sum_j exp(s_ij + shift_i + shift_j), for shifts whose exponentials do not overflow."""
        out: npt.NDArray[Any] = np.log(self(np.exp(shift)[:, None])[:, 0]) + shift
        return out
