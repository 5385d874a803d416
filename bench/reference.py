"""Reference answers in float64 NumPy by blocks of rows. They are slow and simple on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from harness import Array

BLOCK = 500


def blocks(n: int) -> Iterator[slice]:
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


def dot_scores(X: Array, Y: Array, beta: float) -> Callable[[slice], Array]:
    X64, Y64 = X.astype(np.float64), Y.astype(np.float64)
    return lambda rows: beta * (X64[rows] @ Y64.T)


def distance_scores(X: Array, Y: Array, beta: float) -> Callable[[slice], Array]:
    """-beta |x - y|^2 by differences, one coordinate at a time, so that there is no cancellation."""
    X64, Y64 = X.astype(np.float64), Y.astype(np.float64)

    def scores(rows: slice) -> Array:
        total = np.zeros((len(X64[rows]), len(Y64)))
        for k in range(X64.shape[1]):
            total += (X64[rows, k, None] - Y64[None, :, k]) ** 2
        return -beta * total

    return scores


def l1_scores(X: Array, Y: Array, beta: float) -> Callable[[slice], Array]:
    """-beta sum |x - y|, one coordinate at a time."""
    X64, Y64 = X.astype(np.float64), Y.astype(np.float64)

    def scores(rows: slice) -> Array:
        total = np.zeros((len(X64[rows]), len(Y64)))
        for k in range(X64.shape[1]):
            total += np.abs(X64[rows, k, None] - Y64[None, :, k])
        return -beta * total

    return scores


def causal(scores: Callable[[slice], Array], index: Array, n: int) -> Callable[[slice], Array]:
    """Row k of the scores is row index[k] of a matrix with n columns."""
    columns = np.arange(n)
    return lambda rows: np.where(columns <= index[rows, None], scores(rows), -np.inf)


def logsumexp(scores: Callable[[slice], Array], n: int) -> Array:
    out = np.empty(n)
    for rows in blocks(n):
        s = scores(rows)
        m = s.max(axis=1)
        out[rows] = m + np.log(np.exp(s - m[:, None]).sum(axis=1))
    return out


def attention(scores: Callable[[slice], Array], n: int, V: Array) -> Array:
    V64 = V.astype(np.float64)
    out = np.empty((n, *V.shape[1:]))
    for rows in blocks(n):
        s = scores(rows)
        e = np.exp(s - s.max(axis=1, keepdims=True))
        e /= e.sum(axis=1, keepdims=True)
        out[rows] = e @ V64
    return out
