"""Everything that the engine computes, written as simply as possible in NumPy.

These functions take and return whole arrays, form every N x M matrix, and use nothing of the library. Each is
the textbook formula. They work in extended precision (with a 64-bit mantissa if the platform has it,
otherwise in float64), so they are more accurate than float64 results. Inputs of either dtype are converted
exactly.

A score array is (..., N, M) with -inf for "masked". Rows are queries i, columns are keys j.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[Any]
Weight: TypeAlias = "Array | tuple[Array, Array] | None"

HIGH = np.longdouble


def high(a: ArrayLike) -> Array:
    return np.asarray(a, dtype=HIGH)


# ---- scores ------------------------------------------------------------------------------------


def full_weight(W: Weight, d: int) -> Array:
    """The d x d' matrix that `W` stands for: the identity, itself, or W_Q W_K."""
    if W is None:
        return np.eye(d, dtype=HIGH)
    if isinstance(W, tuple):
        return high(W[0]) @ high(W[1])
    return high(W)


def gram(X: Array, Y: Array, W: Weight) -> Array:
    """G_ij = x_i^T W y_j."""
    X, Y = high(X), high(Y)
    return np.einsum("...ia,ab,...jb->...ij", X, full_weight(W, X.shape[-1]), Y, optimize=True)


def self_gram(X: Array, W: Weight) -> Array:
    """G_ii = x_i^T W x_i, shape (..., N)."""
    X = high(X)
    return np.einsum("...ia,ab,...ib->...i", X, full_weight(W, X.shape[-1]), X, optimize=True)


def dot(X: Array, Y: Array, W: Weight = None, beta: float = 1.0) -> Array:
    return HIGH(beta) * gram(X, Y, W)


def forward_divergence(X: Array, Y: Array, W: Weight = None) -> Array:
    """d->_ij = y_j^T W y_j - x_i^T W y_j."""
    return self_gram(Y, W)[..., None, :] - gram(X, Y, W)


def backward_divergence(X: Array, Y: Array, W: Weight = None) -> Array:
    """d<-_ij = x_i^T W x_i - y_j^T W x_i."""
    return self_gram(X, W)[..., :, None] - np.swapaxes(gram(Y, X, W), -1, -2)


def squared_distance(X: Array, Y: Array, W: Weight = None) -> Array:
    """D2_ij = (x_i - y_j)^T W (x_i - y_j), from the differences themselves."""
    difference = high(X)[..., :, None, :] - high(Y)[..., None, :, :]
    turned = difference @ full_weight(W, difference.shape[-1])
    return np.asarray((turned * difference).sum(axis=-1))


def forward(X: Array, Y: Array, W: Weight = None, beta: float = 1.0) -> Array:
    return -HIGH(beta) * forward_divergence(X, Y, W)


def backward(X: Array, Y: Array, W: Weight = None, beta: float = 1.0) -> Array:
    return -HIGH(beta) * backward_divergence(X, Y, W)


def distance(X: Array, Y: Array, W: Weight = None, beta: float = 1.0) -> Array:
    return -HIGH(beta) * squared_distance(X, Y, W)


def l1(X: Array, Y: Array, W: Array | None = None, beta: float = 1.0) -> Array:
    """-beta sum_k w_k |x_ik - y_jk|."""
    sizes = np.abs(high(X)[..., :, None, :] - high(Y)[..., None, :, :])
    weights = np.ones(sizes.shape[-1]) if W is None else W
    return -HIGH(beta) * (sizes * high(weights)[..., None, None, :]).sum(axis=-1)


def shift(s: Array, rows: Array | None = None, columns: Array | None = None) -> Array:
    """s_ij + r_i + c_j."""
    if rows is not None:
        s = s + high(rows)[..., :, None]
    if columns is not None:
        s = s + high(columns)[..., None, :]
    return s


# ---- masks (True = keep) -------------------------------------------------------------------------


def window_mask(n: int, m: int, left: int | None, right: int | None) -> Array:
    """i - left <= j <= i + right; None leaves that side open."""
    keep = np.ones((n, m), dtype=bool)
    for i in range(n):
        for j in range(m):
            if left is not None and j < i - left:
                keep[i, j] = False
            if right is not None and j > i + right:
                keep[i, j] = False
    return keep


def causal_mask(n: int, m: int, offset: int = 0) -> Array:
    """j <= i + offset."""
    return window_mask(n, m, None, offset)


def ragged_mask(
    row_offsets: ArrayLike,
    column_offsets: ArrayLike | None = None,
    *,
    left: int | None = None,
    right: int | None = None,
) -> Array:
    """Block-diagonal; a window, if any, counts positions from the corner of each block."""
    rows = [int(o) for o in np.asarray(row_offsets)]
    columns = rows if column_offsets is None else [int(o) for o in np.asarray(column_offsets)]
    keep = np.zeros((rows[-1], columns[-1]), dtype=bool)
    for b in range(len(rows) - 1):
        r0, r1, c0, c1 = rows[b], rows[b + 1], columns[b], columns[b + 1]
        keep[r0:r1, c0:c1] = window_mask(r1 - r0, c1 - c0, left, right)
    return keep


def masked(s: Array, keep: Array) -> Array:
    return np.where(keep, s, -np.inf)


# ---- reductions --------------------------------------------------------------------------------


def _axis(axis: int) -> int:
    """Contract axes are those of one N x M matrix: 1 or -1 the columns, 0 or -2 the rows."""
    return {1: -1, -1: -1, 0: -2, -2: -2}[axis]


def peak(s: Array, axis: int) -> Array:
    """The largest score of each row (column), kept as an axis of length 1; 0 where all masked."""
    m = s.max(axis=_axis(axis), keepdims=True)
    return np.where(m == -np.inf, HIGH(0), m)


def logsumexp(s: Array, axis: int = 1) -> Array:
    m = peak(s, axis)
    total = np.exp(s - m).sum(axis=_axis(axis), keepdims=True)
    with np.errstate(divide="ignore"):  # log 0 = -inf is the answer for a masked row
        return np.squeeze(m + np.log(total), axis=_axis(axis))


def empty(s: Array, axis: int = 1) -> Array:
    return np.asarray((s == -np.inf).all(axis=_axis(axis)))


def softmax(s: Array, axis: int = 1) -> Array:
    """exp(s) over its sum along the axis; a fully masked row (column) is all zeros."""
    weights = np.exp(s - peak(s, axis))
    total = weights.sum(axis=_axis(axis), keepdims=True)
    return weights / np.where(total == 0, HIGH(1), total)


def marginals(s: Array, f: Array | None = None, g: Array | None = None) -> tuple[Array, Array]:
    plan = np.exp(shift(s, f, g))
    return plan.sum(axis=-1), plan.sum(axis=-2)


def entropy(s: Array, axis: int = 1) -> Array:
    """-sum p log p, with 0 log 0 = 0."""
    p = softmax(s, axis)
    terms = -p * np.log(np.where(p > 0, p, HIGH(1)))
    return np.asarray(terms.sum(axis=_axis(axis)))


def expected_score(s: Array, axis: int = 1) -> Array:
    """sum p s, over the entries that are not masked."""
    terms = softmax(s, axis) * np.where(s == -np.inf, HIGH(0), s)
    return np.asarray(terms.sum(axis=_axis(axis)))


# ---- kernels and products ------------------------------------------------------------------------


def kernel(s: Array, weight: str) -> Array:
    """w(s_ij); a masked entry weighs 0 whatever w is."""
    finite = np.where(s == -np.inf, HIGH(0), s)
    if weight == "exp":
        k = np.exp(finite)
    elif weight == "linear":
        k = finite
    elif weight == "relu":
        k = np.where(finite > 0, finite, HIGH(0))
    elif weight == "sigmoid":
        # Two branches, since exp of a large positive number overflows even here.
        small = np.exp(-np.abs(finite))
        k = np.where(finite >= 0, 1 / (1 + small), small / (1 + small))
    else:
        raise ValueError(weight)
    return np.where(s == -np.inf, HIGH(0), k)


def apply(P: Array, V: Array) -> Array:
    """P V for a matrix V (..., M, k), or for one vector per matrix: V (..., M)."""
    V = high(V)
    if V.ndim == P.ndim - 1:
        return np.asarray((P * V[..., None, :]).sum(axis=-1))
    return np.asarray(P @ V)


def apply_left(U: Array, P: Array) -> Array:
    """U P for a matrix U (..., k, N), or for one vector per matrix: U (..., N)."""
    U = high(U)
    if U.ndim == P.ndim - 1:
        return np.asarray((U[..., :, None] * P).sum(axis=-2))
    return np.asarray(U @ P)
