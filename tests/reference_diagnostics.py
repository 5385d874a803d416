"""Independent computations for the diagnostics: closed forms, series, brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm

Array = NDArray[np.float64]


def triangle_torsion(terms: int = 400) -> float:
    """Integral of psi over the right-angled triangle with legs 1, -Laplace psi = 1, psi = 0 on the boundary.

    On the unit square the odd reflection of the triangle at its hypotenuse has the double sine series of the
    source +1 below the diagonal and -1 above, which vanishes on the diagonal by symmetry.
    """
    m = np.arange(1, terms + 1)
    M, N = np.meshgrid(m, m, indexing="ij")
    # b_mn = 4 * integral of sign(1 - x - y) sin(m pi x) sin(n pi y) over the square, by exact inner integrals
    x, w = np.polynomial.legendre.leggauss(4 * terms)
    x, w = 0.5 * (x + 1), 0.5 * w
    sines = np.sin(np.pi * np.outer(m, x))
    # inner integral over y: (1 - cos(n pi (1 - x))) / (n pi) - (cos(n pi (1 - x)) - cos(n pi)) / (n pi)
    c = np.cos(np.pi * np.outer(m, 1 - x))
    inner = (1 + np.cos(np.pi * m)[:, None] - 2 * c) / (np.pi * m)[:, None]
    b = 4 * (sines * w) @ inner.T
    # the integral of psi over the triangle is half of that of psi * source over the square
    return float((b * b / (np.pi**2 * (M**2 + N**2))).sum() / 8)


def ou_moments(A: Array, a: Array, m0: Array, C0: Array, t: float) -> tuple[Array, Array]:
    """Mean and covariance of dX = A X dt + sigma dW at time t (Van Loan's block exponential)."""
    d = len(A)
    block = np.zeros((2 * d, 2 * d))
    block[:d, :d], block[:d, d:], block[d:, d:] = A, a, -A.T
    E = expm(block * t)
    flow = E[:d, :d]
    return flow @ m0, flow @ C0 @ flow.T + E[:d, d:] @ flow.T


def euler_maruyama_moments(
    A: Array, a: Array, m0: Array, C0: Array, t: float, n: int
) -> tuple[Array, Array]:
    """The law that Euler-Maruyama gives exactly after n steps of a linear SDE."""
    step = np.eye(len(A)) + A * t / n
    m, C = m0, C0
    for _ in range(n):
        m, C = step @ m, step @ C @ step.T + a * t / n
    return m, C


def w1_dual(p: Array, q: Array, D: Array) -> float:
    """W1 by Kantorovich's dual over 1-Lipschitz functions (a linear programme of another kind)."""
    from scipy.optimize import linprog

    n = len(p)
    rows, limits = [], []
    for i, j in product(range(n), repeat=2):
        if i != j:
            row = np.zeros(n)
            row[i], row[j] = 1, -1
            rows.append(row)
            limits.append(D[i, j])
    found: Any = linprog(q - p, A_ub=np.array(rows), b_ub=limits, bounds=(None, None))
    assert found.status == 0
    return float(-found.fun)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def mobility(p: Array) -> Array:
    return np.diag(p) - np.outer(p, p)
