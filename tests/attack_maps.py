"""Random hard inputs for diffusion and magnetic operators, powers, regimes and chains of bridges.

The oracle is the dense matrix in extended precision; spectra are computed by LAPACK from it in double.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

import qkcore as qk

from .attack_functions import stationary_law
from .attack_tools import (
    Family,
    Found,
    Long,
    Rng,
    dtype_of,
    law,
    logs,
    numbers,
    size,
    softmax,
    worst,
)
from .own_kernels import Dense

ComplexLong = np.clongdouble


class Cloud:
    """Points with small to very large scores, the softmax of their distances, and its entries' errors.

    ``relative`` bounds the relative error of an entry of the softmax: that of its own score, and the mean of
    those of the row, which the normaliser has.
    """

    def __init__(self, rng: Rng, *, metric: bool) -> None:
        self.dtype, self.n, self.d = dtype_of(rng), size(rng, 33), int(rng.integers(1, 5))
        self.eps = float(np.finfo(self.dtype).eps)
        self.tiny = float(np.finfo(self.dtype).tiny)
        scale = float(10.0 ** rng.uniform(-12, 12))
        self.X = numbers(rng, (self.n, self.d), self.dtype, scale)
        self.x = self.X.astype(Long)
        self.beta = float(10.0 ** rng.uniform(-3, 3)) / scale**2
        self.W = rng.normal(size=(self.d, self.d)).astype(self.dtype)
        if not metric:
            self.W = np.eye(self.d, dtype=self.dtype)
        w = self.W.astype(Long)
        self.A = (w - w.T) / 2
        gaps = self.x[:, None] - self.x
        self.z = -self.beta * np.einsum("ija,ab,ijb->ij", gaps, (w + w.T) / 2, gaps)
        if metric:
            # Features x L with L diag(+-1) L' = sym(W) are off by d eps |x| |L|, and L by d eps of itself.
            norm = np.linalg.norm(((w + w.T) / 2).astype(float))
            length, gap = (
                np.sqrt(np.square(self.x).sum(axis=1)),
                np.sqrt(np.square(gaps).sum(axis=2)),
            )
            ends = length[:, None] + length
            few = (8 * self.d + 16) * self.eps
            self.off = self.beta * norm * few * (gap**2 + 2 * gap * ends + few * ends**2)
        else:
            self.off = (self.d + 8) * self.eps * abs(self.z)
        self.off = self.off + self.eps * abs(self.z)
        self.P, self.below = softmax(self.z)
        mean = (self.P * self.off).sum(axis=1, keepdims=True)
        self.relative = self.off + mean + self.eps * (16 + self.n + self.below)


def magnetic(rng: Rng) -> Iterator[Found]:
    c = Cloud(rng, metric=True)
    gamma = float(rng.uniform(-2, 2)) * c.beta
    op = qk.magnetic.operator(c.X, beta=c.beta, W=c.W, gamma=gamma)
    angle = gamma * (c.x @ c.A @ c.x.T)
    sizes = abs(gamma) * (abs(c.x) @ abs(c.A) @ abs(c.x).T)
    turn = (8 * c.d + 8) * c.eps * sizes + 4 * c.eps
    got = qk.magnetic.phases(c.X, c.W, gamma).to_numpy()
    yield "magnetic.phases", worst(abs(got - angle), turn + c.tiny)
    want = c.P * np.exp(ComplexLong(1j) * angle)
    off = c.P * (c.relative + turn) + 2 * c.tiny
    yield "magnetic.operator", worst(abs(op.to_numpy() - want), off)
    V = numbers(rng, (c.n, 2), c.dtype, 1.0)
    sums = (off + c.P * c.eps * (c.n + 8)) @ abs(V.astype(Long)) * 2
    yield "magnetic.operator @ V", worst(abs(op @ V - want @ V.astype(Long)), sums + c.n * c.tiny)
    top = c.z.max(axis=1)
    lse = top + np.log(np.exp(c.z - top[:, None]).sum(axis=1))
    H = np.exp(c.z - (lse[:, None] + lse) / 2 + ComplexLong(1j) * angle)
    # Half of the normalisers of both rows, and the rounding of their logarithms.
    own = (c.P * c.off).sum(axis=1) + c.eps * (c.n + 16 + abs(lse))
    wrong = abs(H) * (c.off + own[:, None] + own + turn + c.eps * (16 + abs(c.z))) + 2 * c.tiny
    yield "MagneticOperator.hermitian", worst(abs(op.hermitian().to_numpy() - H), wrong)
    values = np.sort(np.linalg.eigvalsh(H.astype(complex)))[::-1]
    found, vectors = op.spectrum()
    # Weyl: eigenvalues move by no more than the norm of the error; LAPACK adds n eps of the norm.
    weyl = np.sqrt(np.square(wrong).sum()) + 8 * c.n * c.eps * abs(values).max()
    yield "MagneticOperator.spectrum", worst(abs(np.sort(found)[::-1] - values), weyl)
    pi = np.exp(lse - lse.max())
    pi /= pi.sum()
    inner = np.sqrt(pi)[:, None] * (want @ vectors.astype(ComplexLong) - vectors * found)
    yield (
        "MagneticOperator.spectrum, vectors",
        worst(np.sqrt(np.square(abs(inner)).sum(axis=0)), 4 * weyl),
    )
    yield (
        "MagneticOperator.stationary",
        worst(
            abs(op.stationary() - pi), pi * (2 * own + 2 * (pi * own).sum() + c.n * c.eps) + c.tiny
        ),
    )
    both = qk.magnetic.hadamard(op, op).to_numpy()
    yield "magnetic.hadamard", worst(abs(both - want * want), 2.1 * off * c.P + 2 * c.tiny)
    one, root = np.eye(c.n), np.exp(lse / 2)
    degree = root**2
    exact = {
        "combinatorial": (np.diag(degree) - H * root[:, None] * root, wrong * root[:, None] * root),
        "symmetric": (one - H, wrong),
        "random_walk": (one - want, off),
    }
    for kind, (dense, entries) in exact.items():
        got = qk.magnetic.laplacian(op, kind).to_numpy()
        slack = entries + 4 * c.eps * abs(dense) + np.diag(degree * own) * (kind[0] == "c")
        yield f"magnetic.laplacian, {kind}", worst(abs(got - dense), slack)
    phi = rng.uniform(-3, 3, c.n)
    E = want.astype(np.complex128)
    turned = E * np.exp(ComplexLong(1j) * 0.5 * (phi[:, None] - phi).astype(Long))
    got = qk.magnetic.gauge_transform(E, phi, 0.5)
    yield (
        "magnetic.gauge_transform",
        worst(abs(got - turned), 16 * np.finfo(float).eps * abs(E) + np.finfo(float).tiny),
    )


def fluxes(rng: Rng) -> Iterator[Found]:
    """Attention's currents: the flux at a law, and the magnetic operator that it makes."""
    dtype, n = dtype_of(rng), size(rng, 33)
    eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    z = logs(rng, n, n, dtype, 10.0 ** rng.uniform(-3, 2), 0)
    rho = rng.random(n) + 1e-3
    rho = (rho / rho.sum()).astype(dtype)
    A = qk.softmax(qk.scores.dense(z))
    x = z.astype(Long)
    lse = np.log(np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)) + x.max(axis=1)
    u = np.log(rho.astype(Long)) - lse
    F = x - x.T + u[:, None] - u
    size_u = abs(np.log(rho.astype(Long))) + abs(lse) + n
    bound = eps * 8 * (abs(x) + abs(x.T) + size_u[:, None] + size_u)
    yield "magnetic.log_flux", worst(abs(qk.magnetic.log_flux(A, rho).to_numpy() - F), bound)
    gamma = float(rng.uniform(-1, 1))
    P, below = softmax(x + x.T)
    want = P * np.exp(ComplexLong(1j) * gamma * F)
    sizes = abs(x) + abs(x.T)
    relative = eps * (24 + n + below + sizes + (P * sizes).sum(axis=1, keepdims=True))
    got = qk.magnetic.from_attention(A, gamma=gamma, rho=rho).to_numpy()
    yield (
        "magnetic.from_attention",
        worst(
            abs(got - want), P * (relative + abs(gamma) * bound + eps * (8 + abs(gamma * F))) + tiny
        ),
    )


def diffusion_spectra(rng: Rng) -> Iterator[Found]:
    c = Cloud(rng, metric=False)
    P = qk.diffusion.operator(c.X, beta=c.beta)
    degree = np.exp(c.z).sum(axis=1)
    root = np.sqrt(degree)
    S = np.exp(c.z) / root[:, None] / root
    own = (c.P * c.off).sum(axis=1) + c.eps * (c.n + 16 + abs(np.log(degree)))
    wrong = S * (c.off + own[:, None] + own + c.eps * (16 + abs(c.z))) + 2 * c.tiny
    got = qk.diffusion.symmetric_conjugate(P).to_numpy()
    yield "diffusion.symmetric_conjugate", worst(abs(got - S), wrong)
    pi = degree / degree.sum()
    law_off = pi * (2 * own + 2 * (pi * own).sum() + c.n * c.eps)
    yield "stationary, diffusion", worst(abs(P.stationary() - pi), law_off)
    one = np.eye(c.n, dtype=Long)
    off = c.P * c.relative + 2 * c.tiny
    L = qk.diffusion.laplacian(P).to_numpy()
    yield "diffusion.laplacian", worst(abs(L - (one - c.P)), off + c.eps * abs(one - c.P))
    L = qk.diffusion.laplacian(P, "symmetric").to_numpy()
    yield "diffusion.laplacian, symmetric", worst(abs(L - (one - S)), wrong + c.eps * abs(one - S))
    i, j, t = rng.integers(0, c.n, 3), rng.integers(0, c.n, 3), int(rng.integers(0, 4))
    power = np.linalg.matrix_power(c.P.astype(np.float64), 0).astype(Long)
    drift = np.zeros((c.n, c.n), Long)
    for _ in range(t):
        drift = drift @ c.P + power @ (off + c.n * c.eps * c.P)
        power = power @ c.P
    apart = np.sqrt((np.square(power[i] - power[j]) / pi).sum(axis=1))
    moved = np.sqrt((np.square(drift[i] + drift[j]) / pi).sum(axis=1))
    got = qk.diffusion.diffusion_distance(P, i, j, t)
    # Errors of both laws, and of the law that weights them.
    bound = moved + apart * (max(law_off / pi) + (c.n + 8) * c.eps) + c.tiny
    yield "diffusion.diffusion_distance", worst(abs(got - apart), bound)
    k = min(3, c.n - 1)
    if k < 1:
        return
    values = np.sort(np.linalg.eigvalsh(S.astype(float)))[::-1]
    weyl = np.sqrt(np.square(wrong).sum()) + 8 * c.n * c.eps
    # Warnings about disconnected clouds, which are part of the attack.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qk.diffusion.DisconnectedWarning)
        m = qk.diffusion.DiffusionMap(k, beta=c.beta)
        coordinates = m.fit_transform(c.X).astype(Long)
    # The solver stops at a residual of sqrt(n) eps, or four times that.
    weyl = weyl + 4 * np.sqrt(c.n) * c.eps
    found = np.asarray(m.eigenvalues_, Long)
    yield (
        "DiffusionMap.eigenvalues_",
        worst(abs(found - values[1 : k + 1]), weyl),
    )  # all except that of the constants
    # Coordinates are eigenvalues times right eigenvectors; in the norm of the law the error is that of S.
    rest = np.sqrt(pi)[:, None] * (c.P @ coordinates - coordinates * found)
    length = np.sqrt((pi[:, None] * np.square(coordinates)).sum(axis=0))
    yield (
        "DiffusionMap.fit_transform",
        worst(np.sqrt(np.square(rest).sum(axis=0)), 4 * weyl * length + c.tiny),
    )
    lengths = abs(found)  # vectors have the mean square 1
    yield (
        "DiffusionMap, lengths",
        worst(abs(length - lengths), 8 * c.n * c.eps * lengths + 4 * weyl),
    )


def bistochastic(rng: Rng) -> Iterator[Found]:
    c = Cloud(rng, metric=False)
    B = qk.diffusion.bistochastic(c.X, beta=c.beta)
    b = B.bridge
    u = np.zeros(c.n, Long)
    for _ in range(4000):  # K = D P D with P bistochastic, by Sinkhorn's symmetric iteration
        total = c.z + u[:, None] + u
        top = total.max(axis=1)
        step = top + np.log(np.exp(total - top[:, None]).sum(axis=1))
        u = u - step / 2
        if abs(step).max() < 1e-17:
            break
    want = np.exp(c.z + u[:, None] + u)
    # Rows off by r in sum are an error of at most n r in the logarithms of a Gaussian kernel's scaling, whose
    # Jacobian I + P is at least 1, and an entry has two. Roundings of the exponent are added.
    r = float(b.tol) + c.n * float(abs(want.sum(axis=1) - 1).max())
    relative = 2 * c.n * (r + c.off.max() + c.eps * (c.n + 32 + abs(u).max() * 2 + abs(c.z).max()))
    yield (
        "diffusion.bistochastic",
        worst(abs(B.to_numpy() - want), want * relative * 2 + 4 * c.tiny),
    )


def powers(rng: Rng) -> Iterator[Found]:
    dtype, n = dtype_of(rng), size(rng, 33)
    eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    z, w = (logs(rng, n, n, dtype, 10.0 ** rng.uniform(-3, 2.5), 0) for _ in range(2))
    A, B = qk.softmax(qk.scores.dense(z)), qk.softmax(qk.scores.dense(w))
    (P, below), (Q, other) = softmax(z), softmax(w)
    off_p, off_q = P * eps * (16 + n + below) + tiny, Q * eps * (16 + n + other) + tiny
    V = numbers(rng, (n, 2), dtype, 1.0)
    v = V.astype(Long)
    inner = off_q @ abs(v) * 2 + n * eps * (Q @ abs(v)) + tiny
    bound = 2 * (off_p @ (Q @ abs(v)) + P @ inner) + n * eps * (P @ (Q @ abs(v))) + tiny
    yield "Composition @ V", worst(abs((A @ B) @ V - P @ (Q @ v)), bound)
    t = int(rng.integers(0, 5))
    exact, error = v, np.zeros_like(v)
    for _ in range(t):
        error = 2 * off_p @ abs(exact) + P @ error + n * eps * (P @ abs(exact)) + tiny
        exact = P @ exact
    yield "A ** t", worst(abs((A**t) @ V - exact), error + tiny)
    # Reversible chains of 8 states are in equilibrium; others are not, unless rounding cannot tell.
    s = z + z.T
    found = qk.softmax(qk.scores.dense(s)).regime()
    yield "regime, symmetric scores", 0.0 if found.regime == "EQ" else np.inf
    found = A.regime()
    pi = stationary_law(P)
    flow = pi[:, None] * P
    J = abs(flow - flow.T)
    # The law has relative errors of 2 n times those of the entries, the flows as much and their own.
    slack = 4 * n * eps * (16 + n + below.max()) * flow.max() + tiny
    yield "regime, largest current", worst(abs(found.max_current - J.max()), slack)
    rho = law(rng, n, dtype)
    got = A.regime(rho)
    r = rho.astype(Long)
    yield (
        "regime, stationarity",
        worst(abs(got.stationarity - abs(r @ P - r).sum()), 2 * (r @ off_p).sum() + 4 * n * eps),
    )


def chains(rng: Rng) -> Iterator[Found]:
    dtype = dtype_of(rng)
    n, m, k = (int(rng.integers(1, 18)) for _ in range(3))
    eps = float(np.finfo(dtype).eps)
    first = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-2, 2), 0)
    second = logs(rng, m, k, dtype, 10.0 ** rng.uniform(-2, 2), 0)
    mu, nu = (rng.random(count) + 0.05 for count in (n, k))
    mu, nu = (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)
    scores = [qk.scores.dense(first), qk.scores.dense(second)]
    b = qk.bridge_chain(scores, mu, nu, on_fail="ignore")
    if not b.converged:
        yield "refused: bridge_chain", 0.0
        return
    one, two = first.astype(Long), second.astype(Long)
    f, g = b.f.astype(Long), b.g.astype(Long)
    path = np.exp(f[:, None] + one)[:, :, None] * np.exp(two + g)[None]
    # Potentials beyond the range of the exponential, even in extended precision.
    if not np.isfinite(path).all():
        yield "refused: bridge_chain", 0.0
        return
    ends = path.sum(axis=(1, 2)), path.sum(axis=(0, 1))
    off = max(
        abs(end - target.astype(Long)).sum() for end, target in zip(ends, (mu, nu), strict=True)
    )
    # The tolerance, and the effect of rounded potentials on exp.
    slack = float(b.tol) + 2 * eps * float(abs(f).max() + abs(g).max())
    yield "bridge_chain", worst(off, slack)
    middle = path.sum(axis=(0, 2))
    sizes = abs(f).max() + abs(g).max() + abs(one).max() + abs(two).max()
    got = b.marginals[1]
    yield (
        "BridgeChain.marginals",
        worst(abs(got - middle), middle * eps * (64 + n + m + k + 8 * sizes) + 4 * float(b.tol)),
    )


def own_kernels(rng: Rng) -> Iterator[Found]:
    """A kernel that the caller gives as an object, solved by any method; its object is exact in double."""
    dtype = dtype_of(rng)
    n, m = (int(rng.integers(1, 18)) for _ in range(2))
    scores = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-2, 2), 0)
    mu, nu = (rng.random(count) + 0.05 for count in (n, m))
    mu, nu = (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)
    solver = str(rng.choice(["auto", "alternating", "relaxed", "anderson", "newton"]))
    b = qk.bridge(Dense(scores), mu, nu, solver=solver, on_fail="ignore")
    if not b.converged:
        yield "refused: GivenBridge", 0.0
        return
    f, g = b.f.astype(Long), b.g.astype(Long)
    plan = np.exp(f[:, None] + scores.astype(Long) + g)
    ends = plan.sum(axis=1), plan.sum(axis=0)
    off = max(
        abs(end - target.astype(Long)).sum() for end, target in zip(ends, (mu, nu), strict=True)
    )
    # The tolerance, and the rounding in double precision of the exponents in the object's sums.
    sizes = float(abs(f).max() + abs(g).max() + abs(scores).max())
    slack = float(b.tol) + (64 + n + m + 8 * sizes) * float(np.finfo(np.float64).eps)
    yield "GivenBridge", worst(off, slack)


def masks(rng: Rng) -> Iterator[Found]:
    """Which entries some coupling uses: a linear programme per entry, for small integers as masses."""
    from scipy.optimize import linprog

    n, m = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    mu, nu = rng.integers(1, 5, n).astype(float), rng.integers(1, 5, m).astype(float)
    short = mu.sum() - nu.sum()
    (nu if short > 0 else mu)[0] += abs(short)
    seen = rng.random((n, m)) < 0.7
    seen[:, 0] |= ~seen.any(axis=1)
    seen[0] |= ~seen.any(axis=0)
    scores = qk.scores.dense(np.where(seen, 0.0, -np.inf))
    equal = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    limits = [(0, None) if x else (0, 0) for x in seen.ravel()]
    usable = np.zeros(n * m, bool)
    feasible = True
    for k in np.flatnonzero(seen.ravel()):
        most = linprog(
            -np.eye(n * m)[k], A_eq=equal, b_eq=np.r_[mu, nu], bounds=limits, method="highs-ds"
        )
        feasible = feasible and most.success
        usable[k] = most.success and -most.fun > 0.01  # vertices have integer entries
    try:
        found = qk.usable_entries(scores, mu, nu)
    except ValueError:
        yield "usable_entries, refused", np.inf if feasible else 0.0
        return
    right = bool((found.ravel() == usable).all())
    yield "usable_entries", 0.0 if right else np.inf


FAMILIES: tuple[Family, ...] = (
    magnetic,
    fluxes,
    diffusion_spectra,
    bistochastic,
    powers,
    chains,
    own_kernels,
    masks,
)
