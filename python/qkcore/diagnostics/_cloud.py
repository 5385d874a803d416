"""The Hodge decomposition on a cloud of samples: meshless (polynomials) or on the neighbour graph."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import scipy.sparse as sp
from scipy.spatial import cKDTree

from . import _poisson
from ._arrays import Float
from ._tensor import DiffusionTensor
from ._whitney import Index, solve_grounded

_MOST_TERMS = 600
MOST_QUADRATIC = 1000  # degree two is worth more: without it no contraction is a gradient
_CHUNK = 4_000_000  # numbers of one block of gradients


@dataclass(frozen=True, eq=False)
class CloudHodge:
    """The decomposition at the samples."""

    theta: Float
    remainder: Float
    solve: _poisson.PoissonSolve
    method: str


def terms(d: int, degree: int) -> int:
    """Monomials of degree 1 to ``degree`` in d variables."""
    return comb(d + degree, degree) - 1


def best_degree(n: int, d: int) -> int:
    """The largest degree up to 6 whose terms are few against the n d numbers that they explain."""
    if terms(d, 2) > min(MOST_QUADRATIC, n * d // 20):
        return 1
    degree = 2
    while degree < 6 and terms(d, degree + 1) <= min(_MOST_TERMS, n * d // 80):
        degree += 1
    return degree


def polynomial(
    X: Float, v: Float, weights: Float, A: DiffusionTensor, degree: int, **solver: float
) -> CloudHodge:
    """theta among polynomials: minimise the mean of \\|v - a grad theta\\|^2 in the metric of a^-1.

    Galerkin's method with the empirical measure. The basis is Hermite's in whitened coordinates, which is
    nearly orthogonal for clouds that resemble a Gaussian.
    """
    n, d = X.shape
    exponents = np.array(
        [
            np.bincount(chosen, minlength=d)
            for p in range(1, degree + 1)
            for chosen in combinations_with_replacement(range(d), p)
        ]
    )
    m = len(exponents)
    centre = weights @ X
    spread, axes = np.linalg.eigh((X - centre).T @ ((X - centre) * weights[:, None]))
    top = float(spread.max())
    # A direction without extent keeps its linear term (a constant drift across it), scaled like the rest.
    scale = np.where(spread > 1e-12 * top, np.sqrt(np.maximum(spread, 0.0)), np.sqrt(top) or 1.0)
    whiten = axes / scale
    gram, load = np.zeros((m, m)), np.zeros(m)
    block = max(1, _CHUNK // (m * d))
    for begin in range(0, n, block):
        at = slice(begin, begin + block)
        slopes = _hermite_gradients((X[at] - centre) @ whiten, exponents) @ whiten.T  # (b, m, d)
        flat = slopes.reshape(-1, d)
        repeated = np.repeat(X[at], m, axis=0) if not A.constant else X[at]
        pushed = _apply(A, repeated, flat).reshape(slopes.shape)
        w = weights[at]
        gram += np.tensordot(slopes * w[:, None, None], pushed, axes=([0, 2], [0, 2]))
        load += np.einsum("bmk,bk,b->m", slopes, v[at], w)
    solve = _poisson.solve(sp.csr_matrix(0.5 * (gram + gram.T)), load, **solver)  # type: ignore[arg-type]
    theta, w_out = np.zeros(n), np.zeros_like(v)
    for begin in range(0, n, block):
        at = slice(begin, begin + block)
        y = (X[at] - centre) @ whiten
        slope = np.einsum("bmk,m->bk", _hermite_gradients(y, exponents), solve.theta) @ whiten.T
        w_out[at] = v[at] - _apply(A, X[at], slope)
        theta[at] = _hermite_values(y, exponents) @ solve.theta
    return CloudHodge(
        theta - weights @ theta, w_out, solve, f"meshless, {m} polynomials of degree up to {degree}"
    )


def _apply(A: DiffusionTensor, x: Float, v: Float) -> Float:
    if A.constant:
        a = A.at(x, 0.0)
        out: Float = v * a if a.ndim == 2 else v @ a[0].T
        return out
    return A.apply(x, 0.0, v)


def _hermite(y: Float, degree: int) -> Float:
    """Normalised Hermite polynomials of every coordinate: (degree + 1, n, d)."""
    out = [np.ones_like(y), y]
    for k in range(1, degree):
        out.append((y * out[k] - np.sqrt(k) * out[k - 1]) / np.sqrt(k + 1))
    return np.stack(out[: degree + 1])


def _hermite_values(y: Float, exponents: Float) -> Float:
    H = _hermite(y, int(exponents.max()))
    out = np.ones((len(y), len(exponents)))
    for j in range(y.shape[1]):
        out *= H[exponents[:, j], :, j].T
    return out


def _hermite_gradients(y: Float, exponents: Float) -> Float:
    """Gradients (n, m, d) of the products in whitened coordinates: He_k' = sqrt(k) He_{k-1}."""
    d = y.shape[1]
    H = _hermite(y, int(exponents.max()))
    values = np.stack([H[exponents[:, j], :, j].T for j in range(d)], axis=-1)  # (n, m, d)
    ones = np.ones_like(values[..., :1])
    before = np.cumprod(np.concatenate([ones, values[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, values[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    out: Float = before * after  # products of all other factors
    for j in range(d):
        e = exponents[:, j]
        out[..., j] *= np.sqrt(e) * H[np.maximum(e - 1, 0), :, j].T
    return out


def graph(
    X: Float, v: Float, weights: Float, A: DiffusionTensor, n_neighbors: int, **solver: float
) -> CloudHodge:
    """theta at the samples: its differences along the edges of the neighbour graph against the field's.

    In coordinates in which a is the identity, an edge carries
    :math:`\\frac12(v_i + v_j)\\cdot(x_j - x_i)` (exact for potentials of degree two) with a self-tuning
    Gaussian weight; the remainder at a point is the vector that fits the remainders of its edges best.
    """
    a = A.at(X[:1], 0.0)
    matrix = np.diag(np.broadcast_to(a[0], (X.shape[1],))) if a.ndim == 2 else a[0]
    values, vectors = np.linalg.eigh(matrix)
    inverse_root = vectors / np.sqrt(values) @ vectors.T
    y, f = X @ inverse_root, v @ inverse_root
    n = len(y)
    found = cKDTree(y).query(y, k=n_neighbors + 1)
    distance, neighbour = (np.asarray(x) for x in found)
    radius = distance[:, -1]
    if not (radius > 0).all():
        raise ValueError(
            "X: wanted distinct points, got more than n_neighbors copies of one; remove repeats"
        )
    begin = np.repeat(np.arange(n), n_neighbors)
    end = neighbour[:, 1:].ravel()
    low, high = np.minimum(begin, end), np.maximum(begin, end)
    edge = np.unique(low * n + high)
    begin, end = edge // n, edge % n
    keep = begin != end
    begin, end = begin[keep], end[keep]
    along = y[end] - y[begin]
    local = radius[begin] * radius[end]
    square = (along * along).sum(axis=1)
    strength = np.exp(-1.5 * square / local) / local * np.sqrt(weights[begin] * weights[end])
    carried = 0.5 * ((f[begin] + f[end]) * along).sum(axis=1)
    rows = np.concatenate([begin, end, begin, end])
    columns = np.concatenate([end, begin, begin, end])
    entries = np.concatenate([-strength, -strength, strength, strength])
    L = sp.csr_matrix((entries, (rows, columns)), shape=(n, n))
    flux = strength * carried
    b = np.zeros(n)
    b += np.bincount(end, flux, minlength=n)
    b -= np.bincount(begin, flux, minlength=n)
    theta, solve = solve_grounded(L, b, **solver)
    left = carried - (theta[end] - theta[begin])
    covector = _at_points(n, begin, end, along, strength, left)
    root = (vectors * np.sqrt(values)) @ vectors.T
    return CloudHodge(
        theta, covector @ root, solve, f"graph of {n_neighbors} neighbours, {begin.size} edges"
    )


def _at_points(
    n: int, begin: Index, end: Index, along: Float, strength: Float, left: Float
) -> Float:
    """The vector at every point that fits the remainders of its edges best (weighted least squares)."""
    d = along.shape[1]
    side = np.concatenate([begin, end])
    edge = np.tile(np.arange(begin.size), 2)[np.argsort(side, kind="stable")]
    stops = np.cumsum(np.bincount(side, minlength=n))
    out = np.zeros((n, d))
    for i, (first, last) in enumerate(zip(np.append(0, stops[:-1]), stops, strict=True)):
        mine = edge[first:last]
        pull = along[mine] * strength[mine, None]
        spread = pull.T @ along[mine]
        spread[np.diag_indices(d)] += 1e-10 * np.trace(spread) / d
        out[i] = np.linalg.solve(spread, pull.T @ left[mine])
    return out
