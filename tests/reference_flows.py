"""Independent versions of the experiments on flows, by SciPy's integrators, loops and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.integrate import solve_ivp

from . import reference_particles

Array = npt.NDArray[np.float64]


def covariance_rate(kind: str, S: Array, Q: Array, K: Array, V: Array) -> Array:
    """(4.1), (4.3) with its second term transposed (erratum 8), lemma 4.14 with epsilon 1."""
    A = K.T @ Q
    if kind == "softmax":
        M = V @ S @ A
    elif kind == "l2":
        M = 2 * V @ S @ np.linalg.inv(np.eye(len(S)) + 2 * K.T @ K @ S) @ A
    else:
        # C of the lemma is half (root - 1/2) half^-1 with root^2 = X + 1/4, X = half A'SA half; the
        # difference is written X / (root + 1/2), which loses no digits near 0.
        half, one = root(S), np.eye(len(S))
        inner = root(half @ A.T @ S @ A @ half + one / 4) + one / 2
        M = V @ S @ A @ half @ np.linalg.inv(inner) @ np.linalg.inv(half)
    return M @ S + S @ M.T


def root(S: Array) -> Array:
    values, vectors = np.linalg.eigh(S)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def covariance_at(t: float, start: Array, fields: list[tuple[str, Array, Array, Array]]) -> Array:
    """Sigma(t) under the sum of fields (heads), by LSODA."""
    d = len(start)

    def rate(_: float, flat: Array) -> Array:
        S = flat.reshape(d, d)
        return sum(covariance_rate(*(f[0], S, *f[1:])) for f in fields).ravel()  # type: ignore[union-attr]

    sol = solve_ivp(rate, (0, t), start.ravel(), "LSODA", rtol=1e-10, atol=1e-13)
    assert sol.success, sol.message
    return np.asarray(sol.y[:, -1]).reshape(d, d)


def paper_fields(name: str, Q: Array, K: Array, V: Array) -> list[tuple[str, Array, Array, Array]]:
    """The paper's fields as single heads: A = K'Q / sqrt(d), heads of one row and A_h = k_h q_h'."""
    if name == "multi-head":
        return [
            ("softmax", Q[h : h + 1], K[h : h + 1], np.diag(np.eye(2)[h]) @ V)
            for h in range(len(Q))
        ]
    scale = 1.0 if name == "sinkhorn" else 1 / np.sqrt(len(V))
    return [(name, scale * Q, K, V)]


def lifted_euler(
    kind: str, S: Array, Q: Array, K: Array, V: Array, *, step: float, settle: float, steps: int
) -> tuple[str, int, int]:
    """One case of the published procedure: (how it ended, rank, steps with a negative eigenvalue)."""
    lifted = 0
    for _ in range(steps):
        rate = covariance_rate(kind, S, Q, K, V)
        moved = S + step * rate
        values, vectors = np.linalg.eigh(moved)
        if values[0] < 0:
            lifted += 1
            moved = (vectors * np.where(values < 0, 1e-14, values)) @ vectors.T
        if np.linalg.norm(rate) < settle:
            return "converged", int((np.linalg.eigvalsh(S) > 0.1).sum()), lifted
        if np.trace(moved) > 1e3:
            return "above the limit", int((np.linalg.eigvalsh(S) > 0.1).sum()), lifted
        last, S = S, moved
    return "unfinished", int((np.linalg.eigvalsh(last) > 0.1).sum()), lifted


def particles_at(t: float, X0: Array, field: Any, **options: Any) -> Array:
    """Particles at time t by DOP853 over explicit loops."""

    def rate(_: float, flat: Array) -> Array:
        X = flat.reshape(X0.shape)
        v = reference_particles.velocity(field, X, **options.get("arguments", {}))
        if options.get("sphere"):
            v = v - (v * X).sum(axis=1, keepdims=True) * X
        return v.ravel()

    sol = solve_ivp(rate, (0, t), X0.ravel(), "DOP853", rtol=1e-10, atol=1e-12)
    assert sol.success, sol.message
    return np.asarray(sol.y[:, -1]).reshape(X0.shape)
