"""Naive float64 NumPy versions of attention on measures: loops and dense matrices, no code of the package."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import linprog

from .reference import Array


def softmax_rows(s: Array) -> Array:
    e = np.exp(s - s.max(axis=1, keepdims=True))
    out: Array = e / e.sum(axis=1, keepdims=True)
    return out


def attention(Q: Array, K: Array, V: Array, beta: float, W: Array | None = None) -> Array:
    """softmax(beta Q W K^T) V, as in definition 1."""
    s = beta * (Q @ (np.eye(Q.shape[1]) if W is None else W) @ K.T)
    out: Array = softmax_rows(s) @ V
    return out


def gaussian_attention(Q: Array, K: Array, V: Array, beta: float) -> Array:
    s = -beta * ((Q[:, None, :] - K[None, :, :]) ** 2).sum(axis=2)
    out: Array = softmax_rows(s) @ V
    return out


def w1_programme(x: Array, a: Array, y: Array, b: Array) -> float:
    """The transport linear programme written out, dense, all constraints kept."""
    n, m = len(x), len(y)
    cost = [float(np.abs(x[i] - y[j]).sum()) for i in range(n) for j in range(m)]
    rows = np.zeros((n + m, n * m))
    for i, j in itertools.product(range(n), range(m)):
        rows[i, i * m + j] = 1
        rows[n + j, i * m + j] = 1
    found = linprog(cost, A_eq=rows, b_eq=np.concatenate([a, b]), bounds=(0, None))
    assert found.status == 0
    return float(found.fun)


def w1_permutations(x: Array, y: Array) -> float:
    """All matchings of equally many points (MTA section 6.1)."""
    n = len(x)
    return min(
        math.fsum(float(np.abs(x[i] - y[j]).sum()) for i, j in enumerate(order)) / n
        for order in itertools.permutations(range(n))
    )


def layer_norm(X: Array, gamma: Array, shift: Array, eps: float) -> Array:
    out = np.empty_like(X)
    for i, row in enumerate(X):
        out[i] = (row - row.mean()) / math.sqrt(row.var() + eps) * gamma + shift
    return out


def encoder_block(
    X: Array,
    W_Q: Array,
    W_K: Array,
    W_V: Array,
    W_O: Array,
    ffn: tuple[Array, Array, Array, Array] | None,
    residual: bool,
    norm: str | None,
    norms: list[tuple[Array, Array, float]],
) -> Array:
    """The Transformer encoder block by concatenation, head after head (MTA appendix A)."""

    def normalise(k: int, Z: Array) -> Array:
        return layer_norm(Z, *norms[k])

    inner = normalise(0, X) if norm == "pre" else X
    heads = []
    for q, k, v in zip(W_Q, W_K, W_V, strict=True):
        scores = (inner @ q) @ (inner @ k).T / math.sqrt(q.shape[1])
        heads.append(softmax_rows(scores) @ (inner @ v))
    Y = np.concatenate(heads, axis=1) @ np.concatenate(list(W_O), axis=0)
    Y = X + Y if residual else Y
    Y = normalise(0, Y) if norm == "post" else Y
    if ffn is None:
        return Y
    W1, b1, W2, b2 = ffn
    inner = normalise(1, Y) if norm == "pre" else Y
    Z = np.maximum(inner @ W1 + b1, 0) @ W2 + b2
    Y = Y + Z if residual else Z
    return normalise(1, Y) if norm == "post" else Y
