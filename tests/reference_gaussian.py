"""Naive float64 NumPy versions of the Gaussian functions, from definitions and not the library's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax_weights(logits: Array) -> Array:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sinkhorn_plan(logits: Array, mu: Array, nu: Array, tol: float = 1e-14) -> Array:
    """exp(f + logits + g) with these marginals, by plain iteration in the log domain."""
    log_mu, log_nu = np.log(mu), np.log(nu)
    g = np.zeros(len(nu))
    for _ in range(100_000):
        s = logits + g
        top = s.max(axis=1)
        f = log_mu - top - np.log(np.exp(s - top[:, None]).sum(axis=1))
        s = logits + f[:, None]
        top = s.max(axis=0)
        new = log_nu - top - np.log(np.exp(s - top).sum(axis=0))
        moved = np.abs(new - g).max()
        g = new
        if moved < tol:
            break
    return np.exp(logits + f[:, None] + g)


def particle_velocity(
    kind: str,
    x: Array,
    y: Array,
    weights: Array,
    Q: Array,
    K: Array,
    V: Array,
    epsilon: float,
) -> Array:
    """The velocity of x under attention to the weighted particles y, by the definitions of section 2.

    Sinkhorn attention is over the particles themselves, so there x must be y.
    """
    queries, keys, values = x @ Q.T, y @ K.T, y @ V.T
    dot = queries @ keys.T
    if kind == "linear":
        return (dot * weights) @ values
    if kind == "linear_epsilon":
        mean = weights @ y
        second = (y * weights[:, None]).T @ y - np.outer(mean, mean)
        return V @ mean / epsilon + x @ (V @ second @ K.T @ Q).T
    if kind == "softmax":
        return softmax_weights(dot + np.log(weights)) @ values
    square = (queries**2).sum(1)[:, None] + (keys**2).sum(1) - 2 * dot
    if kind == "l2":
        return softmax_weights(-square + np.log(weights)) @ values
    assert kind == "sinkhorn"
    plan = sinkhorn_plan(-square / (2 * epsilon), weights, weights)
    return (plan / weights[:, None]) @ values / epsilon


def gauss_hermite(mean: Array, cov: Array, n: int) -> tuple[Array, Array]:
    """Points and weights of a product rule for N(mean, cov): exact for polynomials of degree 2n - 1."""
    d = len(mean)
    nodes, w = np.polynomial.hermite_e.hermegauss(n)
    w = w / w.sum()
    grid = np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), axis=-1).reshape(-1, d)
    weights = np.prod(
        np.stack(np.meshgrid(*[w] * d, indexing="ij"), axis=-1).reshape(-1, d), axis=1
    )
    return mean + grid @ np.linalg.cholesky(cov).T, weights


def moment_rates(x: Array, weights: Array, v: Array) -> tuple[Array, Array]:
    """d/dt of the mean and the covariance of weighted particles that move with velocity v."""
    mean = weights @ x
    centred = x - mean
    flux = (v * weights[:, None]).T @ centred
    return weights @ v, flux + flux.T


# ---- the paper's formulas, as printed where they are right ------------------------------------------


def rates(
    kind: str, mean: Array, cov: Array, Q: Array, K: Array, V: Array, epsilon: float
) -> tuple[Array, Array]:
    """(mean', cov') of one head, in the paper's own form: needs an invertible covariance and A."""
    d = len(mean)
    A, I = K.T @ Q, np.eye(d)
    if kind in ("softmax", "linear_epsilon"):
        M = V @ cov @ A
        mean_rate = V @ mean / (epsilon if kind == "linear_epsilon" else 1) + M @ mean
    elif kind == "linear":
        M = V @ (cov + np.outer(mean, mean)) @ A
        mean_rate = M @ mean
    elif kind == "l2":
        inverse = np.linalg.inv(np.linalg.inv(cov) + 2 * K.T @ K)
        M = 2 * V @ inverse @ A
        mean_rate = V @ inverse @ (np.linalg.inv(cov) + 2 * A) @ mean
    else:
        C = lemma_4_14(cov, A.T @ cov @ A, epsilon)
        M = V @ np.linalg.inv(A.T) @ np.linalg.inv(cov) @ C / epsilon
        mean_rate = V @ mean / epsilon
    return mean_rate, M @ cov + cov @ M.T + 0 * I


def root(cov: Array) -> Array:
    values, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def lemma_4_14(cov: Array, inner: Array, epsilon: float) -> Array:
    """C with ``inner`` = A'ΣA (lemma 4.14) or AΣA' (proposition 4.15 as printed)."""
    half = root(cov)
    middle = root(half @ inner @ half + epsilon**2 / 4 * np.eye(len(cov)))
    return half @ middle @ np.linalg.inv(half) - epsilon / 2 * np.eye(len(cov))


def euler(
    kind: str,
    mean: Array,
    cov: Array,
    Q: Array,
    K: Array,
    V: Array,
    epsilon: float,
    step: float,
    n: int,
) -> tuple[Array, Array]:
    """The loop of the paper's authors: one law, one step at a time."""
    for _ in range(n):
        mean_rate, cov_rate = rates(kind, mean, cov, Q, K, V, epsilon)
        mean, cov = mean + step * mean_rate, cov + step * cov_rate
    return mean, cov
