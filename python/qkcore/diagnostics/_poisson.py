"""Symmetric positive definite systems: conjugate gradients, incomplete Cholesky, Tikhonov escalation.

The matrices are weighted Laplacians whose constants have been removed. SciPy has an incomplete LU only,
so IC(0) is here: the factor on the pattern of the matrix, by the fixed-point sweeps of Chow and Patel
(2015), in which every entry is updated at once; their fixed point is the IC(0) factor itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from ._arrays import Float

_DENSE = 600  # up to this size eigenvalues come from LAPACK
_FULL = (
    4000  # and up to this one when most entries are there; such matrices are factorised completely
)
_MOST_PAIRS = (
    30_000_000  # of entries that meet in a column: beyond, IC(0) would take too much memory
)


@dataclass(frozen=True, eq=False)
class PoissonSolve:
    """A solution and how it was reached."""

    theta: Float = field(repr=False)
    gamma: float
    """Tikhonov's term, relative to the mean diagonal; 0: none was needed"""
    condition: float
    """condition number of the system that was solved"""
    n_iter: int
    residual: float
    """norm of b - A theta over that of b"""
    preconditioner: str
    converged: bool


class Preconditioner:
    """z = (L L^T)^-1 r with L the (incomplete) Cholesky factor of a matrix of unit diagonal."""

    def __init__(self, A: sp.csr_matrix) -> None:
        n = A.shape[0]
        self.shift = 0.0
        if _is_full(A):
            self.name = "complete Cholesky"
            try:
                factor = scipy.linalg.cho_factor(A.toarray(), lower=True)
            except scipy.linalg.LinAlgError:
                self.shift = 1e-12
                factor = scipy.linalg.cho_factor(A.toarray() + self.shift * np.eye(n), lower=True)
            self._solve: Callable[[Float], Float] = lambda r: scipy.linalg.cho_solve(factor, r)
            return
        below = np.diff(sp.csc_matrix(sp.tril(A)).indptr).astype(np.float64) - 1
        if float((below * (below + 1)).sum()) / 2 > _MOST_PAIRS:
            self.name = "diagonal"  # which is 1 already
            self._solve = lambda r: r
            return
        self.name = "IC(0)"
        lower = None
        while lower is None:
            lower = incomplete_cholesky(A, self.shift)
            if lower is None:  # not an M-matrix, and the factor broke down: lift the diagonal
                self.shift = max(2 * self.shift, 1e-3)
                if self.shift > 100:
                    raise ArithmeticError("incomplete Cholesky broke down with every shift")
        if self.shift:
            self.name = f"IC(0) of the matrix with {self.shift:g} added to its diagonal"
        # A triangular matrix is its own LU factor: SuperLU's solve is substitution in compiled code.
        lu: Any = spla.splu(lower.tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0.0)
        self._solve = lambda r: lu.solve(lu.solve(r), trans="T")

    def __call__(self, r: Float) -> Float:
        return np.asarray(self._solve(r))


def _is_full(A: sp.csr_matrix) -> bool:
    n = A.shape[0]
    return bool(n <= _FULL and A.nnz > 0.25 * n * n)


def incomplete_cholesky(
    A: sp.csr_matrix, shift: float = 0.0, *, tol: float = 1e-10, max_sweeps: int = 500
) -> sp.csr_matrix | None:
    """IC(0): lower L on the pattern of A with (L L^T)_ij = A_ij there; None if a pivot is not positive."""
    n = A.shape[0]
    lower = sp.csc_matrix(sp.tril(A))
    lower.sort_indices()
    rows, start = lower.indices.astype(np.int64), lower.indptr
    columns = np.repeat(np.arange(n, dtype=np.int64), np.diff(start))
    wanted = lower.data.astype(np.float64).copy()
    diagonal = start[:-1].astype(np.int64)  # each column begins with its diagonal
    if not np.array_equal(rows[diagonal], np.arange(n)):
        return None
    wanted[diagonal] += shift
    # All pairs (i, k), (j, k) of a column k with i >= j > k: they contribute L_ik L_jk to entry (i, j).
    below = start[1:] - 1 - diagonal
    owner = np.arange(rows.size) - diagonal[columns]  # place within the column, 0 is the diagonal
    off = np.flatnonzero(owner > 0)
    first = np.repeat(off, owner[off])
    offset = np.arange(first.size) - np.repeat(np.cumsum(owner[off]) - owner[off], owner[off])
    second = diagonal[columns[first]] + 1 + offset
    keys = columns * n + rows  # sorted: by column, then row
    pair = rows[second] * n + rows[first]
    place = np.searchsorted(keys, pair)
    place[place == keys.size] = 0
    hit = keys[place] == pair
    first, second, place = first[hit], second[hit], place[hit]
    del below, owner, off, offset, pair, hit
    L = wanted.copy()
    off_diagonal = np.ones(L.size, dtype=bool)
    off_diagonal[diagonal] = False
    pivot_of = diagonal[columns]
    for _ in range(max_sweeps):
        left = wanted - np.bincount(place, L[first] * L[second], minlength=L.size)
        pivots = left[diagonal]
        if not (pivots > 0).all():
            return None
        new = left.copy()
        new[diagonal] = np.sqrt(pivots)
        new[off_diagonal] /= new[pivot_of[off_diagonal]]
        change = float(np.abs(new - L).max())
        L = new
        if change < tol:
            break
    return sp.csr_matrix(sp.csc_matrix((L, lower.indices, start), shape=(n, n)))


def conjugate_gradients(
    A: sp.csr_matrix, b: Float, M: Preconditioner, *, tol: float, max_iter: int
) -> tuple[Float, int, float]:
    """Preconditioned CG; the residual that is returned is computed from the solution, not carried along."""
    x = np.zeros_like(b)
    size = float(np.linalg.norm(b))
    if size == 0:
        return x, 0, 0.0
    r = b.copy()
    z = M(r)
    p = z.copy()
    rz = float(r @ z)
    best, kept = np.inf, x
    steps = 0
    while steps < max_iter:
        steps += 1
        q = A @ p
        curvature = float(p @ q)
        if not curvature > 0:
            break
        step = rz / curvature
        x = x + step * p
        r = r - step * q
        error = float(np.linalg.norm(r)) / size
        if error < best:
            best, kept = error, x
        if error <= tol:
            break
        z = M(r)
        rz, old = float(r @ z), rz
        p = z + (rz / old) * p
    return kept, steps, float(np.linalg.norm(b - A @ kept)) / size


def extreme_eigenvalues(A: sp.csr_matrix) -> tuple[float, float]:
    """The smallest and the largest eigenvalue, by LAPACK or by Lanczos with inner CG solves."""
    n = A.shape[0]
    if n <= _DENSE or _is_full(A):
        values = scipy.linalg.eigvalsh(A.toarray())
        return max(float(values[0]), 0.0), float(values[-1])
    v0 = np.random.default_rng(0).normal(size=n)
    top = float(spla.eigsh(A, k=1, which="LA", return_eigenvectors=False, v0=v0, tol=1e-4)[0])
    lift = 1e-11 * top  # keeps the inner solves definite; taken off again
    shifted = sp.csr_matrix(A + lift * sp.identity(n, format="csr"))
    d = 1 / np.sqrt(shifted.diagonal())
    scaled = sp.csr_matrix(sp.diags(d) @ shifted @ sp.diags(d))
    M = Preconditioner(scaled)

    def inverse(v: Float) -> Float:
        out: Float = d * conjugate_gradients(scaled, d * v.ravel(), M, tol=1e-5, max_iter=2000)[0]
        return out

    operator = spla.LinearOperator((n, n), matvec=inverse, dtype=np.float64)
    bottom = spla.eigsh(
        operator, k=1, which="LA", return_eigenvectors=False, v0=v0, tol=1e-2, ncv=8
    )
    return max(1 / float(bottom[0]) - lift, 0.0), top


def solve(
    A: sp.csr_matrix,
    b: Float,
    *,
    gamma: float = 0.0,
    max_condition: float = 1e8,
    tol: float = 1e-12,
    max_iter: int = 5000,
) -> PoissonSolve:
    """Solve (A + gamma d I) theta = b, with d the mean diagonal and gamma raised while cond > max_condition.

    gamma starts as given (N.2 starts at 1e-5; 0 leaves potential flows exact), then 1e-12, 1e-11, ...
    """
    n = A.shape[0]
    scale = float(A.diagonal().mean())
    smallest, largest = extreme_eigenvalues(A)
    g = gamma
    while (largest + g * scale) > max_condition * (smallest + g * scale):
        g = max(10 * g, 1e-12)
    condition = (largest + g * scale) / (smallest + g * scale)
    system = sp.csr_matrix(A + g * scale * sp.identity(n, format="csr")) if g else A
    d = 1 / np.sqrt(system.diagonal())
    scaled = sp.csr_matrix(sp.diags(d) @ system @ sp.diags(d))
    M = Preconditioner(scaled)
    theta, steps, residual = conjugate_gradients(scaled, d * b, M, tol=tol, max_iter=max_iter)
    theta = d * theta
    size = float(np.linalg.norm(b))
    true = float(np.linalg.norm(b - system @ theta)) / size if size else 0.0
    # What double precision can reach for this condition number counts as solved.
    reached = max(tol, 10 * np.finfo(np.float64).eps * np.sqrt(condition))
    out = PoissonSolve(theta, g, condition, steps, true, M.name, residual <= reached)
    return out if out.converged else replace(out, converged=true <= 1e-8)
