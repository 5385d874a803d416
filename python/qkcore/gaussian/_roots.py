"""Factors of covariances, by eigh, and the entropic coupling of two Gaussians in their coordinates.

With :math:`\\Sigma = LL^\\top` and :math:`\\Omega = RR^\\top` (x = Lξ, y = Rη) only :math:`T = R^\\top A L`
couples ξ and η. In the coordinates of its singular vectors, :math:`T = U\\,\\mathrm{diag}(t)\\,W^\\top`, the
problem splits into independent problems on lines, with the correlation
:math:`\\rho = 2t/(\\varepsilon + \\sqrt{\\varepsilon^2 + 4t^2})`, the solution of
:math:`\\rho/(1 - \\rho^2) = t/\\varepsilon`. Nothing is inverted: Σ, Ω and A may be singular.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._lazy_scores import Real


def root(cov: Real) -> Real:
    """The symmetric square root by eigh (sqrtm loses half the digits at singular matrices)."""
    values, vectors = np.linalg.eigh(cov)
    out: Real = (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ vectors.swapaxes(-1, -2)
    return out


class Lines(NamedTuple):
    """The coupling in coordinates: x = left ξ, y = right η, correlations rho of ξ_i and η_i."""

    left: Real
    right: Real
    strength: Real
    """t, the singular values of T"""
    rho: Real
    one_minus_square: Real
    """:math:`1 - \\rho^2`, without cancellation"""


def lines(sigma: Real, omega: Real, A: Real, epsilon: float) -> Lines:
    L, R = root(sigma), root(omega)
    U, t, Wt = np.linalg.svd(R @ A @ L, full_matrices=True)
    n = t.shape[-1]
    denominator = epsilon + np.sqrt(epsilon**2 + 4 * t * t)
    return Lines(
        (L @ Wt.swapaxes(-1, -2))[..., :n],
        (R @ U)[..., :n],
        t,
        2 * t / denominator,
        2 * epsilon / denominator,
    )


def regression(sigma: Real, omega: Real, A: Real, epsilon: float) -> Real:
    """N with E[y | x] = beta + N (x - alpha): :math:`\\mathrm{Cov}(y|x) A/\\varepsilon`."""
    out: Real = conditional(sigma, omega, A, epsilon) @ A / epsilon
    return out


def conditional(sigma: Real, omega: Real, A: Real, epsilon: float) -> Real:
    """Cov(y | x) of the coupling, (..., d, d); Cov(x | y) is ``conditional(omega, sigma, A^T, epsilon)``."""
    found = lines(sigma, omega, A, epsilon)
    # If d_y > d_x, some directions of y belong to no line and keep their variance, Omega - right right^T.
    rest = omega - found.right @ found.right.swapaxes(-1, -2)
    if found.right.shape[-1] == omega.shape[-1]:
        rest = np.zeros_like(rest)
    out: Real = (found.right * found.one_minus_square[..., None, :]) @ found.right.swapaxes(
        -1, -2
    ) + rest
    return out
