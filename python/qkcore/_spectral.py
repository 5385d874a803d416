"""Leading eigenpairs of Hermitian operators that are known by their products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[Any]

# Below this size (or when nearly all pairs are wanted) the array itself is diagonalised.
DENSE_BELOW = 64


def leading_eigenpairs(
    product: Callable[[Vectors], Vectors],
    n: int,
    k: int,
    dtype: npt.DTypeLike,
    *,
    start: Vectors | None = None,
    max_iter: int | None = None,
) -> tuple[npt.NDArray[np.floating[Any]], Vectors]:
    """The k largest eigenvalues, largest first, and orthonormal vectors with fixed signs.

    ``product`` takes vectors as columns (n, m). ARPACK (SciPy's eigsh) starts from a fixed vector, so
    that the same operator gives the same bits again.
    """
    if n < DENSE_BELOW or k >= n - 1:
        matrix = product(np.eye(n, dtype=dtype))
        values, vectors = np.linalg.eigh((matrix + matrix.conj().T) / 2)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        return values, fix_signs(vectors)
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    if start is None:
        start = 1 + 0.5 * np.cos(np.arange(n))
    operator = LinearOperator(
        (n, n),
        matvec=lambda x: product(np.ascontiguousarray(x, dtype).reshape(n, 1))[:, 0],
        matmat=lambda x: product(np.ascontiguousarray(x, dtype)),
        dtype=np.dtype(dtype),
    )
    # Twice the vectors that ARPACK would keep: a product costs far more than they do.
    ncv = min(n - 1, max(4 * k + 1, 40))
    try:
        values, vectors = eigsh(
            operator, k=k, which="LA", v0=start.astype(dtype), ncv=ncv, maxiter=max_iter, tol=0
        )
    except ArpackNoConvergence as stopped:
        raise RuntimeError(
            f"eigenpairs: {len(stopped.eigenvalues)} of the {k} wanted converged; "
            "ask for fewer, or raise max_iter"
        ) from stopped
    order = np.argsort(values)[::-1]
    return values[order], fix_signs(vectors[:, order])


def fix_signs(vectors: Vectors) -> Vectors:
    """Each column times the sign (or phase) that makes its largest entry positive.

    Of entries that are equal to rounding the first counts, so that symmetric data repeat too.
    """
    size = np.abs(vectors)
    at = np.argmax(size > (1 - 1e-6) * size.max(axis=0), axis=0)
    largest = vectors[at, np.arange(vectors.shape[1])]
    out: Vectors = vectors * (largest.conj() / np.abs(largest))
    return out
