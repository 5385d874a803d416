"""The problems of the comparison, with their answers in float64 by NumPy or SciPy."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qkcore as qk

Array = NDArray[Any]
Call = Callable[[], Array]


@dataclass(frozen=True)
class Case:
    """One problem: contenders that compute the same array, the exact array, and qkcore's error bound."""

    name: str
    contenders: dict[str, Call]
    exact: Array
    bound: float  # on the largest error of qkcore, relative to ``scale``
    scale: float


def peer(name: str) -> ModuleType | None:
    """A library if it is installed, otherwise None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _torch(threads: int) -> Any:
    torch: Any = peer("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    return torch


def _softmax_rows(S: Array) -> Array:
    np.subtract(S, S.max(axis=1, keepdims=True), out=S)
    np.exp(S, out=S)
    S /= S.sum(axis=1, keepdims=True)
    return S


def attention(quick: bool, threads: int) -> Case:
    """softmax(QKᵀ/√d) V in single precision, for a head of the usual size."""
    n, d = (256 if quick else 4096), 64
    Q, K, V = np.random.default_rng(0).standard_normal((3, n, d)).astype(np.float32)
    beta = d**-0.5
    contenders: dict[str, Call] = {
        "qkcore": lambda: qk.softmax(qk.scores.dot(Q, K, beta=beta)).apply(V, n_threads=threads),
        "NumPy": lambda: _softmax_rows(np.float32(beta) * Q @ K.T) @ V,
    }
    torch = _torch(threads)
    if torch is not None:
        q, k, v = (torch.from_numpy(a)[None, None] for a in (Q, K, V))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        contenders["torch SDPA"] = lambda: sdpa(q, k, v, scale=beta)[0, 0].numpy()
    Q64, K64, V64 = (a.astype(np.float64) for a in (Q, K, V))
    exact = _softmax_rows(beta * Q64 @ K64.T) @ V64
    return Case(f"N={n} d={d} float32", contenders, exact, 2e-6, float(np.abs(V).max()))


def _distances(X: Array, Y: Array) -> Array:
    """Squared distances, from differences of coordinates, so that nothing cancels."""
    D = np.zeros((len(X), len(Y)))
    for a, b in zip(X.T, Y.T, strict=True):
        D += (a[:, None] - b) ** 2
    return D


def logsumexp(quick: bool, threads: int) -> Case:
    """Row log-sum-exp of -|x - y|² from points in space."""
    n = 300 if quick else 4000
    X, Y = np.random.default_rng(0).standard_normal((2, n, 3))
    s = qk.scores.distance(X, Y)

    def by_numpy() -> Array:
        S = 2 * X @ Y.T
        S -= (X * X).sum(axis=1)[:, None]
        S -= (Y * Y).sum(axis=1)
        m = S.max(axis=1)
        np.subtract(S, m[:, None], out=S)
        return np.asarray(m + np.log(np.exp(S, out=S).sum(axis=1)))

    contenders: dict[str, Call] = {
        "qkcore": lambda: s.logsumexp(n_threads=threads),
        "NumPy": by_numpy,
    }
    torch = _torch(threads)
    if torch is not None:
        x, y = torch.from_numpy(X), torch.from_numpy(Y)
        contenders["torch"] = lambda: torch.logsumexp(-(torch.cdist(x, y) ** 2), 1).numpy()
    exact = np.log(np.exp(-_distances(X, Y)).sum(axis=1))
    return Case(f"N={n} d=3 float64", contenders, exact, 5e-14, float(np.abs(exact).max()))


def bridge(quick: bool, threads: int) -> Case:
    """The coupling of two clouds at temperature 0.05 with an L1 error of 1e-9.

    Couplings are compared by their barycentric projections.
    """
    n, epsilon, tol = (100 if quick else 1000), 0.05, 1e-9
    X, Y = np.random.default_rng(0).standard_normal((2, n, 3))
    C = _distances(X, Y)
    C /= C.max()
    u = np.full(n, 1 / n)
    s = qk.scores.dense(-C / epsilon)

    def by_numpy(tol: float = tol) -> Array:
        """Sinkhorn's iteration on scalings, which do not underflow at this temperature."""
        P = np.exp(-C / epsilon)
        b = np.ones(n)
        for _ in range(100_000):
            a = u / (P @ b)
            sums = a @ P
            if np.abs(b * sums - u).sum() <= tol:
                break
            b = u / sums
        return np.asarray((a[:, None] * P * b) @ Y * n)

    def ours() -> Array:
        b = qk.bridge(s, u, u, tol=tol, n_threads=threads)
        return np.asarray(b.project(Y) if b.converged else np.full_like(Y, np.nan))

    contenders: dict[str, Call] = {"qkcore": ours, "NumPy": by_numpy}
    ot: Any = peer("ot")
    if ot is not None:

        def pot() -> Array:
            stop = tol / math.sqrt(n)  # POT's threshold is for an L2 norm
            plan = ot.sinkhorn(u, u, C, epsilon, stopThr=stop, numItermax=100_000, warn=False)
            return np.asarray(plan @ Y * n)

        contenders["POT"] = pot
    exact = by_numpy(1e-14)
    name = f"N={n} eps={epsilon} float64, to 1e-9"
    return Case(name, contenders, exact, 1e-6, float(np.abs(Y).max()))


def diffusion(quick: bool, threads: int) -> Case:
    """Ten eigenvalues of a diffusion map on a Swiss roll."""
    from scipy.linalg import eigvalsh
    from scipy.sparse.linalg import eigsh

    n, k = (200 if quick else 2000), 10
    rng = np.random.default_rng(0)
    angle = 1.5 * np.pi * (1 + 2 * rng.random(n))
    X = np.column_stack([angle * np.cos(angle), 21 * rng.random(n), angle * np.sin(angle)])
    beta = qk.diffusion.choose_beta(X, "median").beta

    def conjugate(D: Array) -> Array:
        D *= -beta
        np.exp(D, out=D)
        root = 1 / np.sqrt(D.sum(axis=1))
        D *= root[:, None]
        D *= root
        return D

    def by_scipy() -> Array:
        square = (X * X).sum(axis=1)
        S = conjugate(np.maximum(square[:, None] + square - 2 * X @ X.T, 0))
        return np.asarray(eigsh(S, k=k + 1, which="LA", v0=np.cos(np.arange(n)))[0][::-1][1:])

    def ours() -> Array:
        model = qk.diffusion.DiffusionMap(k, beta=beta, n_threads=threads)
        return np.asarray(model.fit(X).eigenvalues_)

    exact = eigvalsh(conjugate(_distances(X, X)), subset_by_index=[n - k - 1, n - 2])[::-1]
    contenders: dict[str, Call] = {"qkcore": ours, "NumPy and eigsh": by_scipy}
    return Case(f"N={n} d=3 float64, {k} eigenvalues", contenders, exact, 1e-11, 1.0)


def _rk4(velocity: Any, x: Any, steps: int, h: float) -> Any:
    for _ in range(steps):
        k1 = velocity(x)
        k2 = velocity(x + h / 2 * k1)
        k3 = velocity(x + h / 2 * k2)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(x + h * k3))
    return x


def particles(quick: bool, threads: int) -> Case:
    """RK4 steps of the softmax particle flow in the plane."""
    n, steps = (100, 5) if quick else (2000, 20)
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((n, 2)), rng.standard_normal((2, 2)) / math.sqrt(2)
    eye, end = np.eye(2), steps / 100
    field = qk.AttentionField("softmax", Q=eye, K=eye, V=V)

    def velocity(x: Array) -> Array:
        return np.asarray(_softmax_rows(x @ x.T) @ x @ V.T)

    def ours() -> Array:
        sol = qk.flow(field, X, (0.0, end), "rk4", n_steps=steps, t_eval=[end], n_threads=threads)
        return np.asarray(sol.x[-1])

    contenders: dict[str, Call] = {
        "qkcore": ours,
        "NumPy": lambda: np.asarray(_rk4(velocity, X, steps, 0.01)),
    }
    jax: Any = peer("jax")
    if jax is not None:
        contenders["JAX"] = _jax_particles(jax, X, V, steps)
    exact = np.asarray(_rk4(velocity, X, steps, 0.01))
    return Case(
        f"N={n} d=2 float64, {steps} RK4 steps", contenders, exact, 1e-12, float(np.abs(X).max())
    )


def _jax_particles(jax: Any, X: Array, V: Array, steps: int) -> Call:
    def step(x: Any, _: None) -> tuple[Any, None]:
        return _rk4(lambda y: jax.nn.softmax(y @ y.T, axis=1) @ y @ V.T, x, 1, 0.01), None

    whole = jax.jit(lambda x: jax.lax.scan(step, x, None, length=steps)[0])

    def call() -> Array:
        before = jax.config.jax_enable_x64  # the caller's setting, which is restored
        jax.config.update("jax_enable_x64", True)
        try:
            return np.asarray(whole(X).block_until_ready())
        finally:
            jax.config.update("jax_enable_x64", before)

    return call


GROUPS: dict[str, Callable[[bool, int], Case]] = {
    "attention": attention,
    "logsumexp": logsumexp,
    "bridge": bridge,
    "diffusion": diffusion,
    "particles": particles,
}
