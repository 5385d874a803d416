"""Random hard inputs for all functions except bridges, and oracles that use no code of the library.

tests/attack_campaign.py runs campaigns and prints the worst error of every function as a share of
its bound; tests/test_attack_functions.py runs some draws with fixed seeds. tests/attack.py does the
same for bridges, tests/test_engine_attack.py for sums over every kind of score.

Functions that are covered, and their oracles:

- softmax operators (products from both sides, arrays, entropy, expected score, Doob transforms,
  currents, entropy production, total variation) and ``semi_relaxed``: the formulas in extended
  precision, entry by entry;
- ``stationary``: elimination without subtractions in extended precision;
- ``divergence``, ``LowRank``, ``poe`` of factors, ``diffusion.operator``, ``isb.kde_log_density``,
  ``measure.kl_divergence`` and ``boltzmann_gibbs``: the formulas in extended precision;
- ``simplex``: eigenvalues by LAPACK on the dense matrix, projections by bisection, the rest by
  formulas in extended precision; ``schedule.temperature_for_entropy``: the entropy at the
  temperature that it gives;
- ``wasserstein`` and ``measure.w1``: all permutations, and linear programmes for
  weights;
- ``gaussian.bures`` and ``isb.gaussian_w2``: 40 digits by mpmath.

tests/attack_names.py lists all public names, with the family that attacks each or why none does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import qkcore as qk

from .attack_tools import (
    Family,
    Found,
    Long,
    Rng,
    dtype_of,
    laid_out,
    law,
    logs,
    numbers,
    scale_of,
    size,
    softmax,
    worst,
)

# ---- operators -----------------------------------------------------------------------------------


def operators(rng: Rng) -> Iterator[Found]:
    dtype, n, m = dtype_of(rng), size(rng), size(rng)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    z = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-3, 3), rng.choice([0, 0.3]))
    A = qk.softmax(qk.scores.dense(laid_out(rng, z)))
    P, below = softmax(z)
    # An exponent is rounded to eps of its size; a weight, a sum and a quotient add a few roundings.
    off = P * eps * (16 + m + below) + tiny
    yield "to_numpy", worst(abs(A.to_numpy() - P), off)
    V = numbers(rng, (m, 3), dtype, scale_of(rng, dtype))
    yield "A @ V", worst(abs(A @ V - P @ V.astype(Long)), off @ abs(V.astype(Long)) * 2 + tiny)
    U = numbers(rng, (2, n), dtype, scale_of(rng, dtype))
    more = abs(U.astype(Long)) @ (off + n * eps * P) * 2 + tiny
    yield "U @ A", worst(abs(U @ A - U.astype(Long) @ P), more)
    with np.errstate(divide="ignore", invalid="ignore"):
        self_information = np.where(P > 0, -np.log(P), 0)
        finite = np.where(np.isfinite(z), z, 0).astype(Long)
    entropy = (P * self_information).sum(axis=1)
    spread = (P * (16 + m + below) * (1 + below + self_information)).sum(axis=1)
    yield "entropy", worst(abs(A.entropy() - entropy), eps * spread * 2 + m * tiny)
    expected = (P * finite).sum(axis=1)
    bound = (off * abs(finite)).sum(axis=1) * 2 + m * tiny
    # Moments are computed for scores relative to the largest one, which is then added.
    bound += eps * 16 * (abs(finite).max(axis=1) + (P * below).sum(axis=1))
    yield "expected_score", worst(abs(A.expected_score() - expected), bound)
    w = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-3, 3), 0)
    Q, below_q = softmax(w)
    apart = (off + Q * eps * (16 + m + below_q) + tiny).sum(axis=1)
    got = qk.total_variation(A, qk.softmax(qk.scores.dense(w)))
    yield "total_variation", worst(abs(got - abs(P - Q).sum(axis=1) / 2), apart)
    h = law(rng, m, dtype) + dtype.type(0)
    if ((P * (h > 0)).max(axis=1) > tiny / eps).all() and (P @ h.astype(Long) > tiny).all():
        D = P * h.astype(Long)
        D /= D.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_h = np.where(h > 0, abs(np.log(h.astype(Long))), 0)
        bound = D * eps * (32 + m + 2 * (below + log_h) + abs(finite)) + tiny
        yield "doob", worst(abs(A.doob(h).to_numpy() - D), bound)


def one_sided(rng: Rng) -> Iterator[Found]:
    dtype, n, m = dtype_of(rng), size(rng), size(rng)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    z = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-3, 2), rng.choice([0, 0.3]))
    mu = law(rng, n, dtype)
    b = qk.semi_relaxed(qk.scores.dense(z), mu)
    P, below = softmax(z)
    want = mu.astype(Long)[:, None] * P
    with np.errstate(divide="ignore"):
        size_f = np.where(np.isfinite(b.f), abs(b.f), 0).astype(Long)[:, None]
    finite = np.where(np.isfinite(z), abs(z), 0)
    # exp(f + s): the potential is kept in the dtype.
    bound = want * eps * (32 + 2 * (size_f + finite + below)) + 2 * tiny
    yield "semi_relaxed", worst(abs(b.plan() - want), bound)


def stationary_law(P: Any) -> Any:
    """By elimination without subtractions (Grassmann, Taksar and Heyman)."""
    P = P.copy()
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(1, Long)
    for k in range(1, n):
        pi = np.append(pi, pi @ P[:k, k])
    return pi / pi.sum()


def dynamics(rng: Rng) -> Iterator[Found]:
    dtype, n = dtype_of(rng), size(rng, 33)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    z = logs(rng, n, n, dtype, 10.0 ** rng.uniform(-3, 1), 0)
    A = qk.softmax(qk.scores.dense(z))
    P, below = softmax(z)
    # Entries with relative errors e give a law with relative errors 2 n e (O'Cinneide).
    relative = eps * (16 + n + below.max())
    pi = stationary_law(P)
    yield "stationary", worst(abs(A.stationary() - pi).sum(), 2 * n * relative)
    rho = law(rng, n, dtype)
    flow = rho.astype(Long)[:, None] * P
    J = flow - flow.T
    both = flow + flow.T
    yield "currents", worst(abs(A.currents(rho) - J), 2 * relative * both + tiny)
    if (flow > tiny).all():
        L = np.log(flow / flow.T)
        want = (J * L).sum() / 2
        log_rho = abs(np.log(rho.astype(Long))).max()
        bound = (both * (abs(L) + 1 + 2 * log_rho)).sum() * (relative + 2 * n * eps) * 2
        yield "entropy_production", worst(abs(A.entropy_production(rho) - want), bound)


# ---- points --------------------------------------------------------------------------------------


def divergences(rng: Rng) -> Iterator[Found]:
    dtype, n, m, d = dtype_of(rng), size(rng), size(rng), size(rng, 17)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    scale = scale_of(rng, dtype, 2)
    X, Y = numbers(rng, (n, d), dtype, scale), numbers(rng, (m, d), dtype, scale)
    x, y = X.astype(Long), Y.astype(Long)
    dots, norms_x, norms_y = x @ y.T, (x * x).sum(axis=1), (y * y).sum(axis=1)
    # d products and their sum, and a difference of two such sums.
    sizes = abs(x) @ abs(y).T + norms_x[:, None] + norms_y
    bound = (d + 8) * eps * 2 * sizes + 4 * d * tiny
    for name, want in (
        ("gram", dots),
        ("forward", norms_y - dots),
        ("backward", norms_x[:, None] - dots),
        ("squared_distance", np.square(x[:, None] - y).sum(axis=2)),
    ):
        if name == "squared_distance" and d <= 16:  # from differences
            bound = (d + 4) * eps * want + 4 * d * tiny
        elif name == "squared_distance":
            # From products around the mean of Y, which is rounded too.
            moved = m * np.finfo(float).eps * abs(y).max()
            c = y.mean(axis=0)
            wide = np.square(abs(x - c) + moved).sum(axis=1)[:, None]
            wide = wide + np.square(abs(y - c) + moved).sum(axis=1)
            bound = (d + 16) * eps * 2 * wide + 4 * d * tiny
        got = getattr(qk.divergence, name)(X, Y).to_numpy()
        yield f"divergence.{name}", worst(abs(got - want), bound)


def diffusion(rng: Rng) -> Iterator[Found]:
    dtype, n, d = dtype_of(rng), size(rng), size(rng, 5)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    scale = 10.0 ** rng.uniform(-6, 6)
    X = numbers(rng, (n, d), dtype, scale)
    beta = float(10.0 ** rng.uniform(-1, 1)) / scale**2
    x = X.astype(Long)
    z = -beta * np.square(x[:, None] - x).sum(axis=2)
    alpha = float(rng.choice([0.0, 0.5, 1.0]))
    q = np.exp(z).sum(axis=1)
    P, below = softmax(z - alpha * np.log(q))
    # Distances have relative errors of d + 4 roundings (d <= 16), log densities the mean of those.
    dots = (d + 8) * abs(z)
    density = (softmax(z)[0] * dots).sum(axis=1) + n + 16 + abs(np.log(q))
    exponent = dots + alpha * density + abs(z - alpha * np.log(q))
    got = qk.diffusion.operator(X, beta=beta, alpha=alpha).to_numpy()
    exponent = exponent + (P * exponent).sum(axis=1, keepdims=True)
    bound = P * eps * (16 + n + below + exponent) + tiny
    yield "diffusion.operator", worst(abs(got - P), bound)
    w = law(rng, n, np.float64)
    h = scale * 10.0 ** rng.uniform(-1, 1)
    exponents = np.square(x[:, None] - x).sum(axis=2) / (2 * Long(h) ** 2)
    with np.errstate(divide="ignore"):
        terms = np.log(w.astype(dtype).astype(Long)) - exponents
    top = terms.max(axis=1)
    constant = d / 2 * np.log(2 * np.pi * Long(h) ** 2)
    want = top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - constant
    with np.errstate(invalid="ignore"):
        sizes = np.where(np.isfinite(terms), (d + 8) * exponents + abs(terms + exponents), 0)
    part = np.exp(terms - top[:, None])
    part /= part.sum(axis=1, keepdims=True)
    bound = eps * (
        n + 32 + abs(want) + 2 * abs(constant) + abs(top) + 2 * (part * sizes).sum(axis=1)
    )
    yield (
        "isb.kde_log_density",
        worst(abs(qk.isb.kde_log_density(X, h, w.astype(dtype)) - want), bound),
    )


def factors(rng: Rng) -> Iterator[Found]:
    dtype, n, m, r = dtype_of(rng), size(rng), size(rng), size(rng, 9)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    scale = scale_of(rng, dtype, 5)
    L, R = numbers(rng, (n, r), dtype, scale), numbers(rng, (r, m), dtype, scale)
    L2, R2 = numbers(rng, (n, 2), dtype, scale), numbers(rng, (2, m), dtype, scale)
    z = numbers(rng, (m,), dtype, scale)
    G = L.astype(Long) @ R.astype(Long)
    sizes = abs(L.astype(Long)) @ abs(R.astype(Long))
    more = abs(L2.astype(Long)) @ abs(R2.astype(Long))
    G2 = G * (L2.astype(Long) @ R2.astype(Long))
    v = z.astype(Long)
    one = qk.LowRank(L, R)
    floor = tiny * (m + r) * (1 + abs(L).max()) * (1 + abs(v).max() + abs(R).max())
    bound = (m + r + 8) * eps * (sizes @ abs(v)) + floor
    yield "LowRank @ z", worst(abs(one @ z - G @ v), bound)
    both = qk.poe(one, qk.LowRank(L2, R2))
    floor = (
        tiny * 2 * (m + r) * (1 + abs(L).max()) ** 2 * (1 + abs(v).max()) * (1 + abs(R).max()) ** 2
    )
    bound = (m + 2 * r + 16) * eps * ((sizes * more) @ abs(v)) + floor
    yield "poe @ z", worst(abs(both @ z - G2 @ v), bound)


# ---- the simplex ---------------------------------------------------------------------------------


def simplex(rng: Rng) -> Iterator[Found]:
    dtype, n = dtype_of(rng), size(rng)
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    tau = float(10.0 ** rng.uniform(-2, 2))
    z = numbers(rng, (n,), dtype, 10.0 ** rng.uniform(-3, 3))
    P, below = softmax(z[None].astype(Long) / tau)
    off = P[0] * eps * (16 + n + 2 * below[0]) + tiny
    yield "simplex.from_logits", worst(abs(qk.simplex.from_logits(z, tau) - P[0]), off)
    p = law(rng, n, dtype)
    exact = p.astype(Long) / p.astype(Long).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(exact > 0, np.log(exact), 0)
    want = -(exact * log).sum()
    bound = eps * (n + 16) * (1 + (exact * abs(log)).sum()) + n * tiny
    yield "simplex.entropy", worst(abs(qk.simplex.entropy(p) - want), bound)
    # p (1 - p) is computed as p times the sum of the others, because near a vertex 1 - p cancels.
    J = -np.outer(exact, exact) / tau
    np.fill_diagonal(J, 0)
    np.fill_diagonal(J, -J.sum(axis=1))
    mobility = qk.simplex.Mobility(p, tau)
    values = np.linalg.eigvalsh(J.astype(np.float64))
    top = float(values.max())
    # LAPACK's own error is n eps of double; input and results are rounded to the dtype.
    bound = (16 * eps + 16 * n * np.finfo(float).eps) * top + tiny
    yield "Mobility.eigenvalues", worst(abs(np.sort(mobility.eigenvalues()) - values), bound * 2)
    yield "Mobility.operator_norm", worst(abs(mobility.operator_norm - top), bound * 2)
    frobenius = np.sqrt(np.square(J).sum())
    bound = (n + 32) * eps * frobenius + tiny
    yield "Mobility.frobenius_norm", worst(abs(mobility.frobenius_norm - frobenius), bound)
    v = numbers(rng, (n,), dtype, scale_of(rng, dtype))
    # J depends only on differences, and takes them from the largest probability.
    away = v.astype(Long) - v[mobility.p.argmax()]
    sizes = exact * (abs(away) + exact @ abs(away)) / tau
    got = mobility.apply(v)
    yield (
        "Mobility.apply",
        worst(
            abs(got - exact * (away - exact @ away) / Long(tau)),
            (n + 16) * eps * sizes + n * tiny / min(tau, 1),
        ),
    )
    cost = numbers(rng, (n,), dtype, 10.0 ** rng.uniform(-3, 2))
    with np.errstate(divide="ignore"):
        u = np.log(exact)
    terms = u - cost.astype(Long) / tau
    K, below = softmax(terms[None])
    size_u = np.where(np.isfinite(u), abs(u), 0) + abs(cost.astype(Long)) / tau
    bound = K[0] * eps * (32 + n + below[0] + 3 * size_u + 2 * abs(terms.max())) + tiny
    yield "kl_prox", worst(abs(qk.simplex.kl_prox(cost, p, tau=tau) - K[0]), bound)
    free = -tau * (terms.max() + np.log(np.exp(terms - terms.max()).sum()))
    bound = eps * tau * (n + 32 + abs(terms.max()) * 4 + size_u.max() * 2 + abs(free / tau))
    yield "free_energy", worst(abs(qk.simplex.free_energy(cost, p, tau=tau) - free), bound)
    y = np.array(numbers(rng, (n,), np.float64, 10.0 ** rng.uniform(-3, 3)))
    low, high = y.astype(Long).min() - 2, y.astype(Long).max()
    for _ in range(120):
        mid = (low + high) / 2
        low, high = (mid, high) if np.maximum(y - mid, 0).sum() > 1 else (low, mid)
    e = np.finfo(float).eps
    nearest = np.maximum(y - mid, 0)
    bound = (n + 8) * e * (1 + abs(y).max())
    yield "project_to_simplex", worst(abs(qk.simplex.project_to_simplex(y) - nearest), bound)


def temperatures(rng: Rng) -> Iterator[Found]:
    n = int(rng.integers(2, 65))
    z = np.array(numbers(rng, (n,), np.float64, 10.0 ** rng.uniform(-2, 2)))
    target = float(rng.uniform(0.001, 0.999) * np.log(n))
    tau, reached = qk.schedule.temperature_for_entropy(z, target)
    if not reached:
        return
    P, below = softmax(z[None].astype(Long) / Long(tau))
    with np.errstate(divide="ignore", invalid="ignore"):
        H = -(np.where(P > 0, P * np.log(P), 0)).sum()
    # tau is rounded, and so is the entropy that determined it: dH/dlog(tau) is the variance of the exponents.
    variance = (P * np.square(below)).sum() - (P * below).sum() ** 2
    e = np.finfo(float).eps
    bound = e * (16 * variance + (n + 16) * (1 + (P * below).sum()))
    yield "temperature_for_entropy", worst(abs(H - target), bound)


# ---- laws ----------------------------------------------------------------------------------------


def transport(rng: Rng) -> Iterator[Found]:
    from scipy.optimize import linprog

    n, d = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    scale = 10.0 ** rng.uniform(-30, 30)
    X, Y = (np.array(numbers(rng, (n, d), np.float64, 1.0)) for _ in range(2))
    if rng.random() < 0.3:
        Y[: n // 2] = X[: n // 2]
    p = float(rng.choice([1.0, 2.0, 3.0]))
    e = np.finfo(float).eps
    apart = np.sqrt(np.square(X[:, None].astype(Long) - Y).sum(axis=2))
    cost = apart**p
    best = min(cost[range(n), list(q)].sum() for q in itertools.permutations(range(n))) / n
    largest = (abs(X).max() + abs(Y).max()) * np.sqrt(Long(d))
    got = Long(qk.wasserstein(X * scale, Y * scale, p=p, method="exact")) / Long(scale)
    # X times scale is rounded: coordinates are off by eps of their size, costs by p times as much.
    bound = (n + 16 + 4 * p) * p * e * largest**p
    yield "wasserstein", worst(abs(got**p - best), bound)
    l1 = abs(X[:, None].astype(Long) - Y).sum(axis=2)
    best = min(l1[range(n), list(q)].sum() for q in itertools.permutations(range(n))) / n
    yield "measure.w1", worst(abs(qk.measure.w1(X, Y) - best), (n + d + 16) * e * largest * d)
    a, b = (np.array(law(rng, n, np.float64)) for _ in range(2))
    b *= a.sum() / b.sum()
    rows, columns = np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))
    found = linprog(
        (l1 / largest).astype(float).ravel() if largest > 0 else np.zeros(n * n),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.r_[a, b],
        method="highs-ds",
    )
    if found.success:
        got = qk.measure.w1(qk.measure.Measure(X, a), qk.measure.Measure(Y, b))
        # The linear programmes, here and in the library, may violate their constraints by 1e-7.
        yield "measure.w1, weights", worst(abs(got - found.fun * largest), 4e-7 * n * largest * d)


def measures(rng: Rng) -> Iterator[Found]:
    n = size(rng)
    X = np.arange(n, dtype=float)[:, None]
    a, b = (np.array(law(rng, n, np.float64)) for _ in range(2))
    e = np.finfo(float).eps
    mu, nu = (w.astype(Long) / w.astype(Long).sum() for w in (a, b))
    got = qk.measure.kl_divergence(qk.measure.Measure(X, a), qk.measure.Measure(X, b))
    if ((mu > 0) & (nu == 0)).any():
        yield "kl_divergence", 0.0 if got == np.inf else np.inf
    else:
        live = mu > 0
        terms = mu[live] * np.log(mu[live] / nu[live])
        # After division by the mass, subnormal weights have only a few correct digits.
        lost = (mu[live] * (5e-324 / nu[live] + 5e-324 / mu[live])).sum()
        bound = (n + 16) * e * (abs(terms) + mu[live]).sum() + 4 * lost
        yield "kl_divergence", worst(abs(got - terms.sum()), bound)
    g = 10.0 ** rng.uniform(-30, 30, n)
    want = g.astype(Long) * nu
    want /= want.sum()
    got = qk.measure.boltzmann_gibbs(g, qk.measure.Measure(X, b)).weights
    yield "boltzmann_gibbs", worst(abs(got - want), (n + 16) * e * want + 1e-290)


def gaussians(rng: Rng) -> Iterator[Found]:
    import mpmath as mp

    d = int(rng.integers(1, 4))
    scale = 10.0 ** rng.uniform(-20, 20)

    def covariance() -> tuple[Any, float]:
        q, _ = np.linalg.qr(rng.normal(size=(d, d)))
        spectrum = 10.0 ** rng.uniform(-3, 0, d)
        c = (q * spectrum) @ q.T * scale
        return (c + c.T) / 2, float(spectrum.max() / spectrum.min())

    (a, cond_a), (b, cond_b) = covariance(), covariance()
    with mp.workdps(40):

        def root(c: Any) -> Any:
            values, vectors = mp.eigsy(c)
            return vectors * mp.diag([mp.sqrt(v) for v in values]) * vectors.T

        half = root(mp.matrix(a.tolist()))
        middle = half * mp.matrix(b.tolist()) * half
        middle = (middle + middle.T) / 2
        nuclear = mp.fsum(mp.sqrt(v) for v in mp.eigsy(middle, eigvals_only=True))
        want = mp.fsum(a.diagonal().tolist()) + mp.fsum(b.diagonal().tolist()) - 2 * nuclear
        # Roots of eigenvalues that are off by eps of the largest.
        e = np.finfo(float).eps
        bound = 32 * d * e * (np.trace(a) + np.trace(b)) * np.sqrt(max(cond_a, cond_b))
        yield "gaussian.bures", worst(float(abs(qk.gaussian.bures(a, b) - want)), bound)
        zero = np.zeros(d)
        got = qk.isb.gaussian_w2(zero, a, zero, b)
        yield "isb.gaussian_w2", worst(float(abs(mp.mpf(got) ** 2 - want)), bound * 2)


FAMILIES: tuple[Family, ...] = (
    operators,
    one_sided,
    dynamics,
    divergences,
    diffusion,
    factors,
    simplex,
    temperatures,
    transport,
    measures,
    gaussians,
)
