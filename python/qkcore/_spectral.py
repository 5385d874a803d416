"""Leading eigenpairs of Hermitian operators that are known by their products."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[Any]
Values = npt.NDArray[np.floating[Any]]
Product = Callable[[Vectors], Vectors]

# Operators of this size are diagonalised whole: as fast as a few pairs, and nothing can be missed.
DENSE_UP_TO = 256
# The angle between neighbours of a sunflower: its multiples and their squares repeat nowhere.
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def leading_eigenpairs(
    product: Product, n: int, k: int, dtype: npt.DTypeLike, *, max_iter: int | None = None
) -> tuple[Values, Vectors]:
    """The k largest eigenvalues, largest first, and orthonormal vectors with fixed signs.

    ``product`` takes vectors as columns (n, m) and is real symmetric or complex Hermitian, as ``dtype``
    says. Repeated eigenvalues come as often as they are there. The same operator gives the same bits
    again. ``max_iter`` bounds ARPACK's restarts (None: 10 n); too few raise.
    """
    dtype = np.dtype(dtype)
    ncv = max(4 * k + 1, 40)  # twice ARPACK's own choice: a product costs far more than vectors do
    if n <= DENSE_UP_TO or ncv >= n - 1:
        matrix = product(np.eye(n, dtype=dtype))
        values, vectors = np.linalg.eigh((matrix + matrix.conj().T) / 2)
        return values[::-1][:k], fix_signs(vectors[:, ::-1][:, :k])
    start = 1 + 0.5 * np.cos(np.arange(n))
    _, vectors, size = _arpack(product, start, dtype, k, ncv, max_iter)
    values, vectors = _ritz(product, vectors)
    # ARPACK starts from one vector and may see an eigenvalue that repeats only once. So the pairs that
    # were found are moved below all others, and what then comes first must not belong among them. A
    # rough value of it will do: what is missed of an eigenvalue that was seen is a gap above the last.
    while (gap := _smallest_gap(values, size)) > 0:

        def rest(x: Vectors, found: Vectors = vectors, down: Values = values + 2 * size) -> Vectors:
            out: Vectors = product(x) - (found * down) @ (found.conj().T @ x)
            return out

        def raised(x: Vectors, rest: Product = rest) -> Vectors:  # as tolerances are relative
            out: Vectors = rest(x) + x.dtype.type(size) * x
            return out

        start = probe(n, dtype)
        top = _arpack(raised, start, dtype, 1, 20, max_iter, tol=gap / (8 * size))[0][0] - size
        if not top > values[-1] + gap / 2:
            break
        more = _arpack(rest, start, dtype, k, ncv, max_iter)[1]
        values, vectors = _ritz(product, np.hstack([vectors, more]))
        values, vectors = values[:k], vectors[:, :k]
    return values, fix_signs(vectors)


def _smallest_gap(values: Values, size: float) -> float:
    """From the last value to the next that differs from it by more than rounding; 0 if none does."""
    above = values - values[-1]
    above = above[above > 100 * np.finfo(above.dtype).eps * size]
    return float(above[-1]) if above.size else 0.0


def _arpack(
    product: Product,
    start: Vectors,
    dtype: np.dtype[Any],
    k: int,
    ncv: int,
    max_iter: int | None,
    tol: float = 0.0,
) -> tuple[Values, Vectors, float]:
    """k pairs, largest first, and the largest norm that a product gave a unit vector."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

    n = len(start)
    size = 0.0

    def column(x: Vectors) -> Vectors:
        nonlocal size
        given = np.ascontiguousarray(x, dtype).reshape(n, 1)
        out = product(given)[:, 0]
        size = max(size, float(np.linalg.norm(out) / np.linalg.norm(given)))
        return out

    operator = LinearOperator((n, n), matvec=column, dtype=dtype)
    options: dict[str, Any] = {
        "v0": start.astype(dtype),
        "ncv": ncv,
        "maxiter": max_iter,
        "tol": tol,
    }
    if (
        "rng" in inspect.signature(eigsh).parameters
    ):  # SciPy >= 1.17; used where a Krylov space ends early
        options["rng"] = np.random.default_rng(0)
    try:
        # For complex operators eigsh is eigs, but takes no seed along.
        if dtype.kind == "c":
            values, vectors = eigs(operator, k, which="LR", **options)
        else:
            values, vectors = eigsh(operator, k, which="LA", **options)
    except ArpackNoConvergence as stopped:
        raise RuntimeError(
            f"eigenpairs: {len(stopped.eigenvalues)} of the {k} wanted converged; "
            "ask for fewer, or raise max_iter"
        ) from stopped
    order = np.argsort(-values.real, kind="stable")
    return values.real[order], vectors[:, order], size


def _ritz(product: Product, vectors: Vectors) -> tuple[Values, Vectors]:
    """Eigenpairs within the span of vectors, orthonormal.

    ARPACK treats complex problems as not symmetric: where eigenvalues repeat, its vectors span the right
    space but are not orthogonal. Real ones lose digits over many restarts.
    """
    basis = np.ascontiguousarray(np.linalg.qr(vectors)[0])
    small = basis.conj().T @ product(basis)
    values, turn = np.linalg.eigh((small + small.conj().T) / 2)
    return values[::-1], basis @ turn[:, ::-1]


def probe(n: int, dtype: npt.DTypeLike) -> Vectors:
    """A vector that favours nothing, always the same: unit numbers, or their real parts."""
    turns = np.exp(1j * _GOLDEN_ANGLE * np.arange(n, dtype=np.float64) ** 2)
    out: Vectors = (turns if np.dtype(dtype).kind == "c" else turns.real).astype(dtype)
    return out


def fix_signs(vectors: Vectors) -> Vectors:
    """Each column times the sign (or phase) that makes its largest entry positive.

    Of entries that are equal to rounding the first counts, so that symmetric data repeat too.
    """
    size = np.abs(vectors)
    at = np.argmax(size > (1 - 1e-6) * size.max(axis=0), axis=0)
    largest = vectors[at, np.arange(vectors.shape[1])]
    out: Vectors = vectors * (largest.conj() / np.abs(largest))
    return out
