"""Thick-restart block Lanczos for Hermitian operators that are known by their products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._spectral import fix_signs

Product = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


class Lanczos:
    """Thick-restart block Lanczos with full orthogonalisation, orthogonal to ``locked``.

    For this spectrum (in [-1, 1], its upper end wanted) it makes fewer products than ARPACK, which
    looks for convergence at restarts only, and it takes several vectors in one pass over the matrix.
    All linear algebra is SciPy's: NumPy has a BLAS of its own, and the waiting threads of one slow the
    other down several times when they take turns.
    """

    def __init__(self, product: Product, locked: npt.NDArray[Any], max_restarts: int) -> None:
        self.product = product
        self.locked = locked
        self.max_restarts = max_restarts
        n = len(locked)
        self.tol = math.sqrt(n) * float(np.finfo(locked.dtype).eps)

    def lock(self, vectors: npt.NDArray[Any]) -> None:
        """Leave out the span of ``first`` and these vectors from now on."""
        self.locked = np.hstack([self.locked[:, :1], vectors])

    def leading(
        self, k: int, size: int, basis: int, above: float = -math.inf
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """k pairs, or as many as are ``above``, largest first, by ``size`` vectors at a time."""
        from scipy.linalg import eigh

        n, m = self.locked.shape
        dtype = self.locked.dtype
        V = np.empty((n, m + basis + size), dtype, order="F")
        V[:, :m] = self.locked
        T = np.zeros((basis + size, basis + size))  # the projected matrix
        Q = np.random.default_rng(m).standard_normal((n, size)).astype(dtype)
        Q, _ = _orthonormal(Q, V[:, :m])
        # To see that no other is above, its value to a tenth of the mean spacing is enough.
        enough = max(self.tol, 0.1 * (1 - above) / m)
        kept, restarts, step = 0, 0, 0
        while True:
            V[:, m + kept : m + kept + size] = Q
            known = V[:, : m + kept + size]
            R, H = _project(np.asfortranarray(self.product(Q)), known)
            T[: kept + size, kept : kept + size] = H[m:]
            T[kept : kept + size, :kept] = H[m : m + kept].T
            kept += size
            step += 1
            Q, B = _orthonormal(R, known)
            full = kept + size > basis
            if not full and (kept < k or step % max(1, 4 // size)):
                continue
            values, vectors = eigh(T[:kept, :kept])
            values, vectors = values[::-1], vectors[:, ::-1]
            residual = np.linalg.norm(B @ vectors[kept - size :], axis=0)
            wanted = int((values[:k] > above).sum())
            if residual[:wanted].max(initial=0.0) <= self.tol and (
                wanted == k or residual[wanted] <= enough
            ):
                out = _combine(known[:, m:], vectors[:, :wanted])
                return values[:wanted].astype(dtype), fix_signs(out) if wanted else out
            if full:
                if restarts == self.max_restarts:
                    raise RuntimeError(
                        f"eigenpairs: {int((residual[:k] <= self.tol).sum())} of the {k} wanted "
                        f"converged within {restarts} restarts; ask for fewer, lower beta, or raise "
                        "max_iter"
                    )
                restarts += 1
                keep = max(k + size, kept // 2)
                V[:, m : m + keep] = _combine(known[:, m:], vectors[:, :keep])
                T[:] = 0
                T[np.arange(keep), np.arange(keep)] = values[:keep]
                kept = keep


def _combine(basis: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """basis @ weights, in the precision of the basis."""
    from scipy.linalg.blas import get_blas_funcs

    if weights.shape[1] == 0:
        return np.empty((len(basis), 0), basis.dtype)
    gemm = get_blas_funcs("gemm", (basis,))
    return np.asarray(gemm(1.0, basis, weights))


def _project(
    R: npt.NDArray[Any], basis: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """R without its part in the orthonormal basis, in the place of R, and the coefficients of that."""
    from scipy.linalg.blas import get_blas_funcs

    gemm = get_blas_funcs("gemm", (basis,))
    H = gemm(1.0, basis, R, trans_a=1)
    return np.asarray(gemm(-1.0, basis, H, beta=1.0, c=R, overwrite_c=1)), np.asarray(H)


def _orthonormal(
    R: npt.NDArray[Any], basis: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Q and B with R = Q B + (basis), Q orthonormal and orthogonal to the basis.

    What is left of a column may be rounding alone, and is a direction all the same: a pass that takes
    most of a column away is followed by another.
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
