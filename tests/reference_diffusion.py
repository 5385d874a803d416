"""Naive versions for the tests of diffusion maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64")
TOL = {"float32": 2e-5, "float64": 1e-12}


# ---- naive versions -------------------------------------------------------------------------------


def squared_distances(X: Array, Y: Array, W: Array | None = None) -> Array:
    difference = X[:, None, :].astype(np.float64) - Y[None, :, :].astype(np.float64)
    metric = np.eye(X.shape[1]) if W is None else W.astype(np.float64)
    return np.asarray(np.einsum("ija,ab,ijb->ij", difference, metric, difference))


def naive_kernel(X: Array, beta: float, alpha: float = 0.0, W: Array | None = None) -> Array:
    K = np.exp(-beta * squared_distances(X, X, W))
    q = K.sum(axis=1) ** alpha
    return np.asarray(K / q[:, None] / q[None, :])


def naive_operator(X: Array, beta: float, alpha: float = 0.0, W: Array | None = None) -> Array:
    K = naive_kernel(X, beta, alpha, W)
    return np.asarray(K / K.sum(axis=1, keepdims=True))


def naive_map(
    X: Array, beta: float, alpha: float = 0.0, W: Array | None = None
) -> tuple[Array, Array, Array]:
    """All eigenvalues (largest first), right eigenvectors with unit norm in pi, and pi."""
    K = naive_kernel(X, beta, alpha, W)
    z = K.sum(axis=1)
    pi = z / z.sum()
    values, vectors = scipy.linalg.eigh(K / np.sqrt(np.outer(z, z)))
    return values[::-1], vectors[:, ::-1] / np.sqrt(pi)[:, None], pi


def cloud(n: int, d: int, seed: int = 0, dtype: str = "float64") -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def ring(n: int) -> Array:
    angle = 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angle), np.sin(angle)])


def roll(n: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    angle = 1.5 * np.pi * (1 + 2 * rng.random(n))
    return np.column_stack([angle * np.cos(angle), 21 * rng.random(n), angle * np.sin(angle)])


def assert_same_up_to_sign(got: Array, wanted: Array, atol: float) -> None:
    signs = np.sign((got * wanted).sum(axis=0))
    np.testing.assert_allclose(got, wanted * signs, atol=atol, rtol=0)
