"""Velocities of attention particles by explicit loops, from the formulas of TPDE 2.1-2.9."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

Array = NDArray[np.float64]


def visible(n: int, mask: object) -> NDArray[np.bool_]:
    """Row i: which particles i sees."""
    if mask is None:
        return np.ones((n, n), bool)
    if isinstance(mask, str):
        return np.tril(np.ones((n, n), bool))
    s = np.asarray(mask)
    return s[None, :] <= s[:, None]


def one_head(
    kind: str, x: Array, Y: Array, w: Array, Q: Array, K: Array, epsilon: float, centred: bool
) -> Array:
    """Gamma_mu(x) without V, mu = sum w_j delta_{y_j} a probability."""
    q, k = Q @ x, Y @ K.T
    s = k @ q
    if kind == "softmax":
        p = w * np.exp(s - s.max())
        return p @ Y / p.sum()
    if kind == "l2":
        s = -((q - k) ** 2).sum(axis=1)
        p = w * np.exp(s - s.max())
        return p @ Y / p.sum()
    if kind == "linear" and centred:
        mean = w @ Y
        cov = (w[:, None] * (Y - mean)).T @ (Y - mean)
        return mean / epsilon + cov @ (K.T @ q)
    weight = {"linear": s, "exp": np.exp(s), "relu": np.maximum(s, 0), "sigmoid": expit(s)}[kind]
    return (w * weight) @ Y


def velocity(
    kind: str,
    X: Array,
    Q: Array,
    K: Array,
    V: Array,
    heads: int = 1,
    mask: object = None,
    weights: Array | None = None,
    epsilon: float = 1.0,
    centred: bool = False,
    renormalise: bool = True,
) -> Array:
    n, d = X.shape
    V = np.broadcast_to(V, (heads, d, d))
    Qs, Ks = (P.reshape(heads, -1, d) for P in (Q, K))
    w = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    sees = visible(n, mask)
    out = np.zeros((n, d))
    for i in range(n):
        mass = w[sees[i]].sum()
        scale = 1.0 if renormalise else mass
        for h in range(heads):
            mean = one_head(
                kind, X[i], X[sees[i]], w[sees[i]] / mass, Qs[h], Ks[h], epsilon, centred
            )
            out[i] += scale * V[h] @ mean
    return out


def sinkhorn_kernel(X: Array, Q: Array, K: Array, epsilon: float, w: Array) -> Array:
    """kappa^infinity of TPDE 2.4 by the plain iteration (2.4)."""
    s = -(((X @ Q.T)[:, None] - (X @ K.T)[None]) ** 2)
    s = s.sum(-1) / (2 * epsilon)
    f, g = np.zeros(len(X)), np.zeros(len(X))
    for _ in range(5000):
        f = -logsumexp(s + g, axis=1, b=w)
        g = -logsumexp(s + f[:, None], axis=0, b=w[:, None])
    return np.exp(s + f[:, None] + g)


def causal_loop(X: Array, A: Array, V: Array) -> Array:
    """Masked softmax (2.6), written out."""
    out = []
    for i in range(len(X)):
        e = [np.exp((A @ X[i]) @ X[j]) for j in range(i + 1)]
        out.append(V @ sum(e[j] * X[j] for j in range(i + 1)) / sum(e))
    return np.array(out)
