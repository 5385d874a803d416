"""Naive float64 NumPy versions of iterated bridges, with full matrices and no code of the library."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def log_kernel(X: Array, Y: Array, epsilon: float) -> Array:
    difference = X[:, None, :] - Y[None, :, :]
    return np.asarray(-(difference**2).sum(axis=-1) / (2 * epsilon))


def log_sum_exp(S: Array) -> Array:
    top = S.max(axis=1)
    return np.asarray(top + np.log(np.exp(S - top[:, None]).sum(axis=1)))


def self_bridge(X: Array, epsilon: float, w: Array, n_iter: int = 200) -> tuple[Array, Array]:
    """(coupling, B at the points) by the averaged update, points of weight 0 left out of the solve."""
    live = w > 0
    S = log_kernel(X[live], X[live], epsilon)
    logs = np.log(w[live] / w.sum())
    g = np.zeros(live.sum())
    for _ in range(n_iter):
        g = 0.5 * (g + logs - log_sum_exp(S + g))
    coupling = np.exp(g[:, None] + S + g)
    everywhere = log_kernel(X, X[live], epsilon) + g
    P = np.exp(everywhere - log_sum_exp(everywhere)[:, None])
    return coupling, P @ X[live]


def bridge_slope(variance: float, epsilon: float) -> float:
    """b of B(x) = b x for N(0, s²), from the quadratic c² + epsilon c = s⁴ of the covariance."""
    covariance = (-epsilon + math.sqrt(epsilon**2 + 4 * variance**2)) / 2
    return covariance / variance


def symmetrised_divergence(r: float, q: float) -> float:
    """KL both ways between standard bivariate normals of correlations r and q, by matrices."""
    A, B = (np.array([[1.0, c], [c, 1.0]]) for c in (r, q))
    return float(0.5 * np.trace(np.linalg.solve(B, A) + np.linalg.solve(A, B)) - 2)


def w2_line(x: Array, y: Array) -> float:
    """W2 between two clouds of as many points on the line."""
    return float(np.sqrt(np.mean((np.sort(x) - np.sort(y)) ** 2)))
