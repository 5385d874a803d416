"""Naive float64 NumPy (and mpmath) versions of the functions on the simplex, with full matrices."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mobility(p: Array, tau: float = 1.0) -> Array:
    out: Array = (np.diag(p) - np.outer(p, p)) / tau
    return out


def precise_eigenvalues(p: Array, digits: int = 60) -> list[Any]:
    """Eigenvalues of diag(p) - p p^T for p / sum(p), ascending, in many digits."""
    with mpmath.workdps(digits):
        q = [mpmath.mpf(float(x)) for x in p]
        total = mpmath.fsum(q)
        q = [x / total for x in q]
        J = mpmath.matrix(len(q))
        for i, x in enumerate(q):
            for j, y in enumerate(q):
                J[i, j] = (x if i == j else 0) - x * y
        return sorted(mpmath.eigsy(J, eigvals_only=True))


def subset_masses(p: Array) -> Array:
    """The mass of every set of entries."""
    n = range(len(p))
    sets = chain.from_iterable(combinations(n, k) for k in range(len(p) + 1))
    return np.array([sum(p[list(s)]) for s in sets])


def mass_norm(p: Array) -> float:
    """sup |J v|_1 over |v|_inf <= 1 by trying all signs: the maximum of a convex function is at a corner."""
    J = mobility(p)
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(p))).reshape(len(p), -1)
    return float(np.abs(J @ corners).sum(axis=0).max())


def softmax(z: Array, tau: float = 1.0) -> Array:
    e = np.exp((z - z.max(axis=-1, keepdims=True)) / tau)
    out: Array = e / e.sum(axis=-1, keepdims=True)
    return out


def entropy(p: Array) -> Array:
    out: Array = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
    return out


def simplex_projection(y: Array) -> Array:
    """By bisection on the shift."""
    low, high = y.min() - 1.0, y.max()
    for _ in range(200):
        nu = (low + high) / 2
        if np.maximum(y - nu, 0).sum() > 1:
            low = nu
        else:
            high = nu
    out: Array = np.maximum(y - (low + high) / 2, 0)
    return out
