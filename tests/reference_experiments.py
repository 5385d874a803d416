"""Independent versions of D.1 and D.2 in simple float64 NumPy, with dense arrays and without the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def trefoil_problem(n: int = 400) -> tuple[Array, Array, Array, Array, Array]:
    """t, circle, trefoil, mu, nu of D.1."""
    t = np.linspace(0, 1, n, endpoint=False)
    a = 2 * np.pi * t
    circle = np.array([np.cos(a), np.sin(a), np.zeros(n)]).T
    trefoil = np.array(
        [(2 + np.cos(3 * a)) * np.cos(2 * a), (2 + np.cos(3 * a)) * np.sin(2 * a), np.sin(3 * a)]
    ).T
    clouds = []
    for X in (circle, trefoil):
        spread = X.std(axis=0)
        spread[spread == 0] = 1
        clouds.append((X - X.mean(axis=0)) / spread)
    bumps = [np.exp(-(((t - c) / 0.07) ** 2) / 2) for c in (0.15, 0.65)]
    return t, *clouds, *(b / b.sum() for b in bumps)


def expert(X: Array, kind: str, beta: float = 0.5) -> Array:
    """P or A of D.1: the row softmax of -beta times the divergence."""
    G = X @ X.T
    g = np.diag(G)
    D = g[:, None] + g - 2 * G if kind == "dmap" else g - G
    E = np.exp(-beta * D)
    return E / E.sum(axis=1, keepdims=True)


def truncate(G: Array, rank: int) -> Array:
    U, s, Vt = np.linalg.svd(G)
    return (U[:, :rank] * s[:rank]) @ Vt[:rank]


def sinkhorn(K: Array, mu: Array, nu: Array, iterations: int = 20000) -> Array:
    """D.1's plain scaling."""
    v = np.ones(len(nu))
    for _ in range(iterations):
        u = mu / (K @ v)
        new = nu / (K.T @ u)
        if np.abs(new / v - 1).max() < 1e-13:
            break
        v = new
    return u[:, None] * K * v


def trefoil_errors(kind: str, rank: int, beta: float = 0.5) -> dict[str, float]:
    """D.1's measures at one rank, by forming everything."""
    t, circle, trefoil, mu, nu = trefoil_problem()
    experts = [expert(X, kind, beta) for X in (circle, trefoil)]
    K = experts[0] * experts[1]
    low = truncate(experts[0], rank) * truncate(experts[1], rank)
    exact, ours = sinkhorn(K, mu, nu), sinkhorn(low, mu, nu)
    maps = [P @ t / P.sum(axis=1) for P in (exact, ours)]
    return {
        "kernel_rel_err": float(np.linalg.norm(low - K) / np.linalg.norm(K)),
        "coupling_rel_err": float(np.linalg.norm(ours - exact) / np.linalg.norm(exact)),
        "latent_rmse": float(np.sqrt(np.mean((maps[0] - maps[1]) ** 2))),
        "min_entry": float(low.min()),
    }


def denoiser(w: Any, x: Array, temperature: Array, kind: str, heads: int, symmetric: bool) -> Array:
    """D.2's network, one point, one head and one pair of tokens at a time."""
    out = np.empty_like(x)
    for n in range(len(x)):
        h = np.array([x[n, i] * w["embed"]["w"][0] + w["embed"]["b"] for i in range(3)])
        h = h + w["position"]
        for block in w["blocks"]:
            z = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-6)
            z = z * block["norm"]["scale"] + block["norm"]["shift"]
            Q, K, V = np.split(z @ block["qkv"]["w"] + block["qkv"]["b"], 3, axis=1)
            d = Q.shape[1] // heads
            mixed = np.empty_like(Q)
            for a in range(heads):
                q, k, v = (M[:, a * d : (a + 1) * d] for M in (Q, K, V))
                S = np.empty((3, 3))
                for i in range(3):
                    for j in range(3):
                        if kind == "amap":
                            S[i, j] = q[i] @ k[j] / np.sqrt(d)
                        else:
                            S[i, j] = -(q[i] @ q[i] + k[j] @ k[j] - q[i] @ k[j] - q[j] @ k[i])
                if symmetric and kind == "dmap":
                    S = (S + S.T) / 2
                E = np.exp(temperature[n] * (S - S.max()))
                mixed[:, a * d : (a + 1) * d] = E / E.sum(axis=1, keepdims=True) @ v
            h = h + mixed @ block["out"]["w"] + block["out"]["b"]
        out[n] = (h @ w["read"]["w"] + w["read"]["b"])[:, 0]
    return out
