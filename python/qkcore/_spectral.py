"""Leading eigenpairs of Hermitian operators, from products with vectors."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ._lanczos import Product, Values, Vectors, leading_by_lanczos

# Operators up to this size are diagonalised completely: this is as fast as computing a few pairs, and no
# eigenvalue can be missed.
DENSE_UP_TO = 256
# How many vectors a product takes at a time, and how many vectors are kept. Every entry of the operator costs
# an exp in each product, so products with several vectors are worth while.
BLOCK, BASIS = 8, 120
# The golden angle: the angles k^2 times this never repeat (modulo a full turn).
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def leading_eigenpairs(
    product: Product, n: int, k: int, dtype: npt.DTypeLike, *, max_iter: int | None = None
) -> tuple[Values, Vectors]:
    """The k largest eigenvalues, largest first, and orthonormal vectors with fixed signs.

    ``product`` takes vectors as columns (n, m) and is real symmetric or complex Hermitian, as ``dtype``
    says. A repeated eigenvalue is returned with its multiplicity. The same operator always gives the same
    bits. ``max_iter`` bounds the restarts of the block Lanczos iteration (None: 1000); if it is reached, an
    error is raised.
    """
    dtype = np.dtype(dtype)
    if n > DENSE_UP_TO:
        nothing = np.empty((n, 0), dtype)
        found = leading_by_lanczos(
            product, nothing, k, block=BLOCK, basis=BASIS, max_restarts=max_iter
        )
        if found is not None:
            return found[0], fix_signs(found[1])
    from scipy.linalg import eigh

    # In double precision, because the method's rounding errors are proportional to the largest entry of a
    # vector. In single precision they would hide the entries of unlikely states, which callers divide by the
    # root of the probability.
    matrix = product(np.eye(n, dtype=dtype)).astype(np.result_type(dtype, np.float64), copy=False)
    # SciPy before 1.14 gives this method too little room for a matrix of one entry.
    values, vectors = eigh((matrix + matrix.conj().T) / 2, driver="evd" if n > 1 else "ev")
    return (
        values[::-1][:k].astype(dtype.type(0).real.dtype, copy=False),
        fix_signs(vectors[:, ::-1][:, :k].astype(dtype, copy=False)),
    )


def probe(n: int, dtype: npt.DTypeLike) -> Vectors:
    """A fixed vector without structure: complex numbers of modulus 1, or their real parts."""
    turns = np.exp(1j * _GOLDEN_ANGLE * np.arange(n, dtype=np.float64) ** 2)
    out: Vectors = (turns if np.dtype(dtype).kind == "c" else turns.real).astype(dtype)
    return out


def fix_signs(vectors: Vectors) -> Vectors:
    """Each column times the sign (or phase) that makes its largest entry positive.

    If several entries are largest up to rounding, the first of them counts, so that the result is
    reproducible for symmetric data too.
    """
    if vectors.size == 0:
        return vectors
    size = np.abs(vectors)
    at = np.argmax(size > (1 - 1e-6) * size.max(axis=0), axis=0)
    largest = vectors[at, np.arange(vectors.shape[1])]
    out: Vectors = np.ascontiguousarray(vectors * (largest.conj() / np.abs(largest)))
    return out
