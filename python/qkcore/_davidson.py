"""Leading eigenpairs of symmetric operators with a low-rank surrogate as the preconditioner.

A kernel of points is nearly of low rank, and a few hundred of its columns determine the leading eigenvectors
to three digits. From there Davidson's method gains about three digits at every pass over the matrix, so that
it needs three to six passes where Lanczos' method needs twenty to forty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ._lanczos import Product, Values, Vectors, _combine, _orthonormal, _project, _start

# GUARD Ritz pairs are followed besides those that are wanted. CHAIN vectors form a Krylov chain from a random
# start, which finds an eigenvector that the surrogate misses.
GUARD, CHAIN = 2, 2
# If the surrogate may have missed an eigenvector, the chain gets this many passes to show it.
CHAIN_PASSES = 3
# After this many passes the method gives up, because the surrogate does not help.
MAX_PASSES = 24
# Some BLAS kernels round sums of equal terms (such as those of the constant vector of points on a circle) in
# one direction, and the residual then stays above the level of rounding errors with random signs. A residual
# that no longer halves is accepted up to this multiple of that level.
PLATEAU = 4.0


@dataclass(frozen=True, eq=False)
class Surrogate:
    """:math:`U \\Lambda U^\\top`, an approximation of the operator."""

    vectors: Vectors
    """orthonormal, (n, r)"""
    values: Values
    """largest first, (r,)"""
    rest: float
    """the trace of the remainder, which bounds its norm if the operator is positive semidefinite"""

    def knows(self, k: int) -> bool:
        """Whether it shows the first k eigenvectors: the remainder is smaller than their eigenvalues."""
        return len(self.values) >= k + GUARD + 1 and self.rest < float(self.values[k - 1])


def surrogate_of(factor: Vectors, known: Vectors, rest: float) -> Surrogate:
    """The surrogate from a factor (r, n) of the operator, orthogonal to the ``known`` eigenvectors (n, m)."""
    from scipy.linalg import eigh
    from scipy.linalg.blas import get_blas_funcs

    gemm = get_blas_funcs("gemm", (factor,))
    # SciPy's routines need arrays in Fortran order; the transpose of the factor is one.
    columns, _ = _project(np.asfortranarray(factor.T), known)
    gram = gemm(1.0, columns, columns, trans_a=1)
    values, vectors = eigh(gram.astype(np.float64))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > len(gram) * float(np.finfo(factor.dtype).eps) * values[0]
    values, vectors = values[kept], vectors[:, kept]
    basis = _combine(columns, (vectors / np.sqrt(values)).astype(factor.dtype))
    return Surrogate(basis, values, rest)


def leading_by_davidson(
    product: Product, known: Vectors, k: int, surrogate: Surrogate
) -> tuple[Values, Vectors] | None:
    """The k largest eigenvalues, largest first, with orthonormal vectors orthogonal to ``known`` (n, m).

    They are exact up to rounding errors for every surrogate. None if that takes too many passes.
    """
    from scipy.linalg import eigh, qr

    n, m = known.shape
    dtype = known.dtype
    tol = math.sqrt(n) * float(np.finfo(dtype).eps)
    followed = k + GUARD
    room = 8 * (followed + CHAIN)
    V = np.empty((n, m + room), dtype, order="F")
    AV = np.empty((n, room), dtype, order="F")
    V[:, :m] = known
    T = np.zeros((room, room))
    first = np.hstack([surrogate.vectors[:, :followed], _start(n, CHAIN, m, dtype)])
    Q, _ = _orthonormal(first, known)
    kept = 0
    values, rotation = np.empty(0), np.empty((0, 0))  # Ritz values and vectors, in V
    last = math.inf  # the largest residual of the pass before
    for passes in range(1, MAX_PASSES + 1):
        size = Q.shape[1]
        if kept + size > room:
            keep = followed + CHAIN
            V[:, m : m + keep] = _combine(V[:, m : m + kept], rotation[:, :keep])
            AV[:, :keep] = _combine(AV[:, :kept], rotation[:, :keep])
            T[:] = 0
            T[np.arange(keep), np.arange(keep)] = values[:keep]
            kept = keep
        V[:, m + kept : m + kept + size] = Q
        AQ = AV[:, kept : kept + size]
        AQ[:] = product(np.ascontiguousarray(Q))
        kept += size
        T[:kept, kept - size : kept] = _combine(V[:, m : m + kept].T, AQ)
        T[kept - size : kept, :kept] = T[:kept, kept - size : kept].T
        values, rotation = eigh(T[:kept, :kept])
        values, rotation = values[::-1], rotation[:, ::-1]
        X = _combine(V[:, m : m + kept], rotation[:, :k])
        R = _combine(AV[:, :kept], rotation[:, :k]) - X * values[:k].astype(dtype)
        residuals = np.linalg.norm(R, axis=0)
        rounding, largest = tol * float(np.abs(values).max()), float(residuals.max())
        settled = largest <= PLATEAU * rounding and largest > 0.5 * last
        open_ = (residuals > rounding) & (not settled)
        last = largest
        # On vectors orthogonal to the first block the norm of the operator is at most this.
        unseen = float(surrogate.values[followed]) + surrogate.rest
        if not open_.any() and (unseen < values[k - 1] or passes >= CHAIN_PASSES):
            X, _ = qr(X, mode="economic", check_finite=False)
            return values[:k].astype(dtype), X
        new = [AQ[:, size - CHAIN :]]
        if open_.any():
            new.insert(0, _corrections(R[:, open_], values[:k][open_], surrogate, followed))
        Q, _ = _orthonormal(np.hstack(new), V[:, : m + kept])
    return None


def _corrections(R: Vectors, values: Values, surrogate: Surrogate, followed: int) -> Vectors:
    """Solutions of (surrogate - value) t = -residual, without the surrogate's leading vectors.

    The leading vectors are nearly the Ritz vectors, to which the residuals are orthogonal; the next pass
    corrects the difference.
    """
    U, dtype = surrogate.vectors, R.dtype
    outside, inside = _project(np.asfortranarray(R), U)
    distance = values - surrogate.values[followed:, None]
    # The surrogate cannot separate eigenvalues of a cluster, so distances count as a hundredth at least.
    distance = np.maximum(distance, 0.01 * np.abs(values))
    weights = (inside[followed:] / distance).astype(dtype)
    out: Vectors = outside / values.astype(dtype) + _combine(U[:, followed:], weights)
    return out
