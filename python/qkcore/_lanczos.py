"""Leading eigenpairs of Hermitian operators by thick-restart block Lanczos.

ARPACK (SciPy's eigsh) starts from one vector, so it may silently miss copies of a repeated eigenvalue. It
treats complex operators as not symmetric, so that the vectors of a repeated eigenvalue are not orthogonal.
And it multiplies one vector per pass over the matrix. Here a block of vectors is multiplied per pass,
convergence is tested as soon as enough vectors are there, and further copies are searched for until there
are no more.

All linear algebra uses SciPy's BLAS. NumPy has another one, and if calls alternate between the two, the
waiting threads of one make the other several times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[Any]
Values = npt.NDArray[np.floating[Any]]
Product = Callable[[Vectors], Vectors]

MAX_RESTARTS = 1000


def leading_by_lanczos(
    product: Product,
    known: Vectors,
    k: int,
    *,
    block: int,
    basis: int,
    max_restarts: int | None = None,
) -> tuple[Values, Vectors] | None:
    """The k largest eigenvalues, largest first, with orthonormal vectors orthogonal to ``known`` (n, m).

    ``block`` vectors are multiplied per pass, and about ``basis`` are kept. Returns None if the basis would
    span (nearly) the whole space: then the matrix is small enough to be diagonalised directly.
    """
    n = len(known)
    basis = max(basis, 2 * k + 6 * block)
    if basis + block >= n - known.shape[1] - k:
        return None
    solver = _Lanczos(product, known, MAX_RESTARTS if max_restarts is None else max_restarts)
    values, vectors = solver.leading(k, block, basis)
    # A Krylov space from a block of m vectors has at most m vectors of an eigenvalue, even if it is repeated
    # more often. So if m eigenvalues are equal, more are searched for, orthogonal to the vectors found.
    near = max(10 * solver.tol, math.sqrt(float(np.finfo(known.dtype).eps))) * solver.scale
    while k >= block and (values[: k - block + 1] - values[block - 1 : k] <= near).any():
        block, basis = max(block, 16), max(basis, 2 * k + 6 * 16)
        solver.locked = np.hstack([known, vectors])
        if basis + block >= n - solver.locked.shape[1]:
            return None
        above = float(values[k - 1]) + solver.tol * solver.scale
        others, more = solver.leading(k, block, basis, above=above)
        if len(others) == 0:
            break
        values, vectors = np.append(values, others), np.hstack([vectors, more])
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], vectors[:, order]
    # Restarts cost a digit or two of orthogonality; a QR factorisation restores it.
    from scipy.linalg import qr

    vectors, _ = qr(vectors[:, :k], mode="economic", check_finite=False)
    return values[:k], vectors


class _Lanczos:
    """The method with full orthogonalisation, on the space orthogonal to ``locked``.

    Tolerances are relative to ``scale``, the largest eigenvalue (in magnitude) seen so far.
    """

    def __init__(self, product: Product, locked: Vectors, max_restarts: int) -> None:
        self.product = product
        self.locked = locked
        self.max_restarts = max_restarts
        self.tol = math.sqrt(len(locked)) * float(np.finfo(locked.dtype).eps)
        self.scale = 0.0

    def leading(
        self, k: int, size: int, basis: int, above: float = -math.inf
    ) -> tuple[Values, Vectors]:
        """The k leading pairs, or fewer if fewer are ``above``; ``size`` vectors are multiplied at a time."""
        from scipy.linalg import eigh

        n, m = self.locked.shape
        dtype = self.locked.dtype
        V = np.empty((n, m + basis + size), dtype, order="F")
        V[:, :m] = self.locked
        inner = np.complex128 if dtype.kind == "c" else np.float64
        T = np.zeros((basis + size, basis + size), inner)  # the projected matrix
        Q, _ = _orthonormal(_start(n, size, m, dtype), V[:, :m])
        kept, restarts, step = 0, 0, 0
        while True:
            V[:, m + kept : m + kept + size] = Q
            known = V[:, : m + kept + size]
            R, H = _project(np.asfortranarray(self.product(np.ascontiguousarray(Q))), known)
            T[: kept + size, kept : kept + size] = H[m:]
            T[kept : kept + size, :kept] = H[m : m + kept].conj().T
            kept += size
            step += 1
            Q, B = _orthonormal(R, known)
            full = kept + size > basis
            if not full and (kept < k or step % max(1, 4 // size)):
                continue
            values, vectors = eigh(T[:kept, :kept])
            values, vectors = values[::-1], vectors[:, ::-1]
            self.scale = max(self.scale, float(np.abs(values).max()))
            tol = self.tol * self.scale
            residual = np.linalg.norm(B @ vectors[kept - size :], axis=0)
            wanted = int((values[:k] > above).sum())
            # To decide that no other eigenvalue is above, a tenth of the mean spacing is accurate enough.
            enough = max(tol, 0.1 * (self.scale - above) / m) if m else tol
            if residual[:wanted].max(initial=0.0) <= tol and (
                wanted == k or residual[wanted] <= enough
            ):
                real = np.dtype(dtype.type().real.dtype)
                return values[:wanted].astype(real), _combine(known[:, m:], vectors[:, :wanted])
            if full:
                if restarts == self.max_restarts:
                    raise RuntimeError(
                        f"eigenpairs: {int((residual[:k] <= tol).sum())} of the {k} wanted converged "
                        f"within {restarts} restarts; ask for fewer pairs, lower beta, or raise max_iter"
                    )
                restarts += 1
                keep = max(k + size, kept // 2)
                V[:, m : m + keep] = _combine(known[:, m:], vectors[:, :keep])
                T[:] = 0
                T[np.arange(keep), np.arange(keep)] = values[:keep]
                kept = keep


def _start(n: int, size: int, seed: int, dtype: np.dtype[Any]) -> Vectors:
    """A random block that is always the same for the same sizes, so that results repeat."""
    rng = np.random.default_rng(seed)
    block: Vectors = rng.standard_normal((n, size))
    if dtype.kind == "c":
        block = block + 1j * rng.standard_normal((n, size))
    return block.astype(dtype)


def _combine(basis: Vectors, weights: Vectors) -> Vectors:
    """basis @ weights, in the precision of the basis."""
    from scipy.linalg.blas import get_blas_funcs

    if weights.shape[1] == 0:
        return np.empty((len(basis), 0), basis.dtype)
    gemm = get_blas_funcs("gemm", (basis,))
    return np.asarray(gemm(1.0, basis, weights))


def _project(R: Vectors, basis: Vectors) -> tuple[Vectors, Vectors]:
    """R minus its projection on the orthonormal basis (R is overwritten), and the coefficients of that."""
    from scipy.linalg.blas import get_blas_funcs

    if basis.shape[1] == 0:
        return R, np.empty((0, R.shape[1]), R.dtype)
    gemm = get_blas_funcs("gemm", (basis,))
    H = gemm(1.0, basis, R, trans_a=2)
    return np.asarray(gemm(-1.0, basis, H, beta=1.0, c=R, overwrite_c=1)), np.asarray(H)


def _orthonormal(R: Vectors, basis: Vectors) -> tuple[Vectors, Vectors]:
    """Q and B with R = Q B + (a part in the basis), where Q is orthonormal and orthogonal to the basis.

    If a pass removes most of a column, the rest may be mostly rounding errors that are not orthogonal to the
    basis, so another pass follows.
    """
    from scipy.linalg import qr

    B = np.eye(R.shape[1])
    for _ in range(4):
        before = np.linalg.norm(R, axis=0)
        R, _ = _project(np.asfortranarray(R), basis)
        R, upper = qr(R, mode="economic", check_finite=False)
        B = upper @ B
        if (np.abs(np.diag(upper)) > 0.5 * before).all():
            break
    return R, B
