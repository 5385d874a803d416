"""Naive versions and examples for the tests of magnetic maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]

COMPLEX = {"float32": np.complex64, "float64": np.complex128}
SIZES = (1, 2, 7, 64, 65, 300)
DTYPES = ("float32", "float64")
both_types = pytest.mark.parametrize("dtype", DTYPES)
all_sizes = pytest.mark.parametrize("n", SIZES)
seeds = st.integers(0, 2**31 - 1)


def eps_of(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = "float64") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def complex_normal(rng: np.random.Generator, *shape: int, dtype: Any = "float64") -> Array:
    z = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return z.astype(COMPLEX[np.dtype(dtype).name])


def row_softmax(s: Array) -> Array:
    top = s.max(axis=1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(axis=1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def squared_distances(X: Array, Y: Array, W: Array | None = None) -> Array:
    d = X[:, None].astype(float) - Y[None].astype(float)
    return np.einsum("ija,ab,ijb->ij", d, np.eye(X.shape[1]) if W is None else W.astype(float), d)


def naive_phases(X: Array, W: Array, gamma: float) -> Array:
    w = W.astype(float)
    return np.asarray(gamma * X.astype(float) @ ((w - w.T) / 2) @ X.T.astype(float))


def naive_log_flux(P: Array, rho: Array) -> Array:
    flow = rho[:, None] * P
    return np.asarray(np.log(flow) - np.log(flow.T))


def stationary(P: Array) -> Array:
    """By elimination without subtraction: every entry to a few eps, small ones too."""
    a = P.copy()
    n = len(a)
    for k in range(n - 1, 0, -1):
        a[:k, k] /= a[k, :k].sum()
        a[:k, :k] += np.outer(a[:k, k], a[k, :k])
    rho = np.ones(n)
    for k in range(1, n):
        rho[k] = rho[:k] @ a[:k, k]
    return np.asarray(rho / rho.sum())


def problem(
    n: int, dtype: str = "float64", d: int = 3, seed: int = 0
) -> tuple[Array, Array, np.random.Generator]:
    rng = np.random.default_rng([seed, n, d])
    return normal(rng, n, d, dtype=dtype), normal(rng, d, d, dtype=dtype), rng


def close(got: Array, want: Array, bound: Array | float, what: str = "") -> None:
    assert got.shape == want.shape, (got.shape, want.shape)
    assert np.isfinite(got).all(), what
    error = np.abs(got - want)
    assert (error <= bound).all(), f"{what}: {error.max():.3g}, wanted {np.max(bound):.3g}"


def product_bound(E: Array, V: Array, dtype: str, spread: float) -> Array:
    """Error of E V: `spread` is the size of the scores and angles that rounding acts on."""
    units = 20 + np.sqrt(E.shape[1]) + 6 * spread
    return np.asarray(eps_of(dtype) * units * (np.abs(E) @ np.abs(V)) + np.finfo(dtype).tiny * 100)
