"""Random hard inputs for closed forms, approximations of kernels and measures, and small choices of scale.

Closed forms are evaluated in extended precision or with 40 digits, if possible from the equation that they
solve. Approximations are compared with results of singular value decompositions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import qkcore as qk

from .attack_tools import (
    Family,
    Found,
    Long,
    Rng,
    dtype_of,
    law,
    logs,
    numbers,
    programme,
    size,
    softmax,
    worst,
)

E = float(np.finfo(float).eps)


def lines(rng: Rng) -> Iterator[Found]:
    """Variances on a line: the closed forms satisfy the integrated equations."""
    import mpmath as mp

    s0, epsilon = float(10.0 ** rng.uniform(-3, 3)), float(10.0 ** rng.uniform(-2, 2))
    q, k, v = (float(x) for x in rng.normal(size=3) * 10.0 ** rng.uniform(-1, 1))
    a = q * k
    with mp.workdps(40):
        S, V, eps = mp.mpf(s0), mp.mpf(v), mp.mpf(epsilon)
        rate = 2 * V * mp.mpf(a) * S
        blow_up = float(1 / rate) if rate > 0 else np.inf
        got = float(qk.gaussian.softmax_blow_up_line(s0, a, v))
        same = got == blow_up or abs(got - blow_up) <= 8 * E * blow_up
        yield "gaussian.softmax_blow_up_line", 0.0 if same else np.inf
        t = float(rng.uniform(0.01, 0.9)) / abs(float(rate))
        want = S / (1 - rate * mp.mpf(t))
        # The denominator is at least 0.1, its error a few eps.
        got = float(qk.gaussian.softmax_line(s0, a, v, t))
        yield "gaussian.softmax_line", worst(float(abs(got - want)), 64 * E * float(want))
        # u + log u falls at the rate 2 q v / k with u = 1 / (2 k^2 s).
        t = float(rng.uniform(0.01, 2)) * min(1.0, abs(k / (2 * q * v)))
        start = 1 / (2 * mp.mpf(k) ** 2 * S)
        level = start + mp.log(start) - 2 * mp.mpf(q) * V / mp.mpf(k) * mp.mpf(t)
        u = (
            mp.lambertw(mp.exp(level))
            if level < 200
            else mp.findroot(lambda x: x + mp.log(x) - level, level - mp.log(level))
        )
        want = 1 / (2 * mp.mpf(k) ** 2 * u.real)
        got = float(qk.gaussian.l2_line(s0, q, k, v, t))
        # d log s = - d level / (1 + u): an error of the level is at most itself, and level/(1+u) is bounded.
        sizes = 1 + (abs(float(start)) + abs(float(mp.log(start))) + 1) / (1 + float(u.real))
        yield "gaussian.l2_line", worst(float(abs(got - want)), 64 * E * sizes * float(want))
        # theta - coth(theta/2) grows at the rate 2 v sign(a) / epsilon with 2 |a| s = epsilon sinh theta.
        t = float(rng.uniform(0.01, 1)) * epsilon / (2 * abs(v))
        theta0 = mp.asinh(2 * abs(mp.mpf(a)) * S / eps)
        level = theta0 - mp.coth(theta0 / 2) + 2 * V * mp.sign(a) / eps * mp.mpf(t)
        got = float(qk.gaussian.sinkhorn_line(s0, a, v, t, epsilon))
        theta = mp.asinh(2 * abs(mp.mpf(a)) * mp.mpf(got) / eps)
        miss = abs(theta - mp.coth(theta / 2) - level)
        # Rounding s by eps moves the left side by tanh theta (1 + csch^2(theta/2) / 2) eps, at the start too.
        slope = [mp.tanh(x) * (1 + mp.csch(x / 2) ** 2 / 2) for x in (theta, theta0)]
        bound = 64 * E * float(1 + abs(level) + sum(slope) + abs(theta0) + abs(theta))
        yield "gaussian.sinkhorn_line", worst(float(miss), bound)
        variance = s0
        b = float(qk.isb.gaussian_slope(variance, epsilon))
        half = eps / (2 * S)
        want = mp.sqrt(1 + half**2) - half
        yield "isb.gaussian_slope", worst(float(abs(b - want)), 8 * E * float(want))
        steps = qk.isb.gaussian_variances(variance, epsilon, 1)
        # x <- 2 x - B x for theta = -1
        grown = (2 - want) ** 2 * S
        yield "isb.gaussian_variances", worst(float(abs(steps[1] - grown)), 32 * E * float(grown))


def gaussian_forms(rng: Rng) -> Iterator[Found]:
    d = int(rng.integers(1, 4))
    root = rng.normal(size=(d, d))
    cov = root @ root.T / d + 0.1 * np.eye(d)
    norm = float(np.linalg.norm(cov, 2))
    G = rng.normal(size=(d, d))
    G = G + G.T
    want = -2 * (G.astype(Long) @ cov + cov @ G.astype(Long))
    sizes = 4 * abs(G) @ abs(cov) + 4 * abs(cov) @ abs(G)
    yield (
        "gaussian.bures_rate",
        worst(abs(qk.gaussian.bures_rate(cov, G) - want), (d + 4) * E * sizes),
    )
    # Commuting parameters: all diagonal in one basis.
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    s, a, v = 10.0 ** rng.uniform(-2, 0, d), rng.normal(size=d), rng.normal(size=d)
    sigma, A, V = ((q * x) @ q.T for x in (s, a, v))
    sigma = (sigma + sigma.T) / 2
    found = qk.gaussian.commuting(sigma, A, V)
    rates = 2 * a * v * s
    top = float(rates.max())
    blow_up = 1 / top if top > 0 else np.inf
    few = 1e3 * d * E * float(abs(a * v).max()) * float(s.max()) / max(abs(top), 1e-300)
    same = (
        np.isinf(found.blow_up_time) if top <= 0 else abs(found.blow_up_time / blow_up - 1) <= few
    )
    yield "gaussian.commuting, blow-up", 0.0 if same else np.inf
    t = 0.5 * min(1 / float(abs(rates).max()), blow_up)
    want = (q * (s / (1 - rates * t))) @ q.T
    # 1 - t rate is at least a half.
    yield "gaussian.Commuting", worst(abs(found(t) - want), 1e3 * d * E * float(s.max()))
    # The Jacobian is also taken in directions that do not commute, in which rounding of the start may grow.
    lipschitz = 8 * float(abs(a).max() * abs(v).max()) * float(s.max())
    t = min(t, 2 / lipschitz)
    want = (q * (s / (1 - rates * t))) @ q.T
    flow = qk.gaussian.flow(
        "softmax",
        None,
        sigma,
        (0, t),
        Q=A,
        K=np.eye(d),
        V=V,
        store="final",
        method="dopri5",
        rtol=1e-9,
        atol=1e-9,
    )
    bound = int(np.max(flow.n_steps)) * 4e-9 * np.exp(2 * lipschitz * t)
    yield "gaussian.flow, closed form", worst(abs(flow.cov[-1] - want), bound)
    # (1/2) E exp(x' A y) with centred laws: y integrates to exp(|S^1/2 A x|^2 / 2), x to a determinant.
    small = 0.3 * A / (float(abs(a).max()) * norm)
    inner = np.eye(d) - small.T @ cov @ small @ cov
    want = 0.5 / np.sqrt(np.linalg.det(inner))
    got = qk.gaussian.twisted_energy(None, cov, small)
    # The singular values are at most 0.3, so the determinant is well conditioned, except for the root of cov.
    yield "gaussian.twisted_energy", worst(abs(got - want), 64 * d * E * float(np.linalg.cond(cov)))
    epsilon = float(10.0 ** rng.uniform(-1, 1))
    Q, K = (rng.normal(size=(d, d)) for _ in range(2))
    plan = qk.gaussian.entropic_ot(None, cov, None, cov, Q=Q, K=K, epsilon=epsilon)
    want = -plan.value / 2 + (np.trace(Q @ cov @ Q.T) + np.trace(K @ cov @ K.T)) / (4 * epsilon)
    got = qk.gaussian.sinkhorn_energy(None, cov, Q=Q, K=K, epsilon=epsilon)
    sizes = (np.trace(Q @ cov @ Q.T) + np.trace(K @ cov @ K.T)) / epsilon + abs(plan.kl) + 1
    yield (
        "gaussian.sinkhorn_energy",
        worst(abs(got - want), 256 * d * E * sizes * np.linalg.cond(cov)),
    )
    # A difference quotient of the energy along a symmetric direction, of order four.
    h = 1e-3 * float(np.linalg.eigvalsh(cov)[0]) / max(1.0, float(np.linalg.norm(G, 2)))

    def energy(x: float) -> float:
        return float(qk.gaussian.sinkhorn_energy(None, cov + x * G, Q=Q, K=K, epsilon=epsilon))

    slope = (8 * (energy(h) - energy(-h)) - (energy(2 * h) - energy(-2 * h))) / (12 * h)
    along = float((qk.gaussian.sinkhorn_gradient(cov, Q=Q, K=K, epsilon=epsilon) * G).sum())
    # Steps are a thousandth of the distance r to the edge of the cone, on which the energy is analytic: the
    # fifth derivative is at most 5! sup |F| / r^5, so that the remainder is 4 h^4 / r^4 of sizes / r.
    reach = h * 1e3
    bound = 4e-12 * sizes / reach * 30 + 2048 * d * E * sizes * np.linalg.cond(cov) / h
    yield "gaussian.sinkhorn_gradient", worst(abs(slope - along), bound)


def approximations(rng: Rng) -> Iterator[Found]:
    n, m = size(rng, 33), size(rng, 33)
    r = int(rng.integers(1, min(n, m) + 1))
    Z = np.array(numbers(rng, (n, m), np.float64, float(10.0 ** rng.uniform(-20, 20))))
    if not Z.any():
        return
    G = qk.low_rank(Z, r)
    values = np.linalg.svd(Z, compute_uv=False)
    best = float(values[r]) if r < len(values) else 0.0
    left, right = G.left.astype(Long), G.right.astype(Long)
    error = np.linalg.norm((left @ right - Z).astype(float), 2)
    # The bound of Eckart and Young, plus LAPACK's error of n eps times the norm.
    yield "low_rank", worst(error, best + 16 * (n + m) * E * values[0])
    X = rng.normal(size=(n, 2))
    s = qk.scores.distance(X, beta=float(10.0 ** rng.uniform(-4, 4)))
    K = np.exp(s.to_numpy())
    count = int(rng.integers(1, n + 1))
    F = qk.nystrom(s, count, rng=int(rng.integers(100)))
    rest = K - (F.left @ F.right)
    # The remainder is positive semidefinite, and no larger than the kernel; eigenvalues of the landmarks'
    # block below count eps are cut, roots of which times the columns are what may be lost.
    lost = np.sqrt(n * count * E) * n * 8
    low, high = np.linalg.eigvalsh((rest + rest.T) / 2)[[0, -1]]
    yield "nystrom, order", worst(max(-low, 0.0), lost)
    yield "nystrom, size", worst(max(high, 0.0), np.linalg.norm(K, 2) + lost)
    W = rng.normal(size=(2, 2))
    partition = qk.divergence.hermitian_partition(W)
    yield (
        "hermitian_partition",
        worst(abs(partition.symmetric + partition.antisymmetric - W), 2 * E * (abs(W) + abs(W.T))),
    )
    Q, P = rng.normal(size=(2, n, 2)).astype(Long)
    dots = Q @ P.T
    norms = np.square(Q).sum(axis=1)[:, None] + np.square(P).sum(axis=1)
    got = qk.divergence.qk_metric(Q.astype(float), P.astype(float)).to_numpy()
    want = norms - dots - (Q @ P.T).T
    yield "divergence.qk_metric", worst(abs(got - want), 16 * E * (norms + abs(dots) + abs(dots.T)))
    beta = float(rng.uniform(0.1, 1))
    product = qk.directional_experts(X, beta=beta).weighted().to_numpy()
    exact = softmax(-beta * np.square(X.astype(Long)[:, None] - X).sum(axis=2))[0]
    sizes = beta * 8 * np.square(X).sum(axis=1).max()
    yield "directional_experts", worst(abs(product - exact), 16 * exact * E * (n + 16 + 8 * sizes))


def kernels(rng: Rng) -> Iterator[Found]:
    dtype, n, m = dtype_of(rng), size(rng, 33), size(rng, 33)
    eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    z = logs(rng, n, m, dtype, 10.0 ** rng.uniform(-3, 1), 0.2)
    V = numbers(rng, (m, 2), dtype, 1.0)
    x = z.astype(Long)
    K = np.exp(x)
    with np.errstate(invalid="ignore"):
        off = np.where(K > 0, K * eps * (8 + m + np.where(np.isfinite(x), abs(x), 0)), 0) + tiny
    got = qk.kernel(qk.scores.dense(z)) @ V
    yield "kernel @ V", worst(abs(got - K @ V.astype(Long)), 2 * off @ abs(V.astype(Long)) + tiny)
    weight = np.maximum(np.where(np.isfinite(x), x, 0), 0)
    got = qk.kernel(qk.scores.dense(np.where(np.isfinite(z), z, 0).astype(dtype)), "relu") @ V
    bound = (m + 8) * eps * weight @ abs(V.astype(Long)) + m * tiny
    yield "kernel @ V, relu", worst(abs(got - weight @ V.astype(Long)), bound)


def choices(rng: Rng) -> Iterator[Found]:
    """Bandwidths, rates, weights and steps: one formula each."""
    n, d = int(rng.integers(2, 40)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-10, 10)
    x = X.astype(Long)
    squares = np.square(x[:, None] - x).sum(axis=2)
    beta = qk.diffusion.choose_beta(X).beta
    median = np.median(squares[np.triu_indices(n, 1)].astype(float))
    yield "diffusion.choose_beta", worst(abs(beta * median - 1), (d + 32) * E)
    sigma = np.sqrt(x.var(axis=0).mean())
    want = sigma * (4 / (Long(d + 2) * n)) ** (1 / Long(d + 4))
    yield "isb.silverman", worst(abs(qk.isb.silverman(X) - want), 8 * (n + 16) * E * want)
    h = 10.0 ** rng.uniform(-4, 0, n)
    h *= 1.1 ** np.arange(n)
    errors = 3 * h**1.7 * 10.0 ** rng.uniform(-0.2, 0.2, n)
    u, v = np.log(h.astype(Long)), np.log(errors.astype(Long))
    centred = u - u.mean()
    spread = (centred * centred).sum()
    want = (centred * (v - v.mean())).sum() / spread
    sizes = (
        16
        * np.sqrt(n)
        * (n + 4)
        * E
        * (abs(v).max() + (1 + abs(want)) * abs(u).max())
        / np.sqrt(spread)
    )
    yield "isb.fit_rate", worst(abs(qk.isb.fit_rate(h, errors).slope - want), sizes)
    psi, theta = rng.normal(size=n) * 3, float(rng.choice([-1.0, 0.7, 2.0]))
    P, below = softmax(2 * theta * psi[None].astype(Long))
    got = qk.isb.surrogate_weights(psi, theta)
    bound = P[0] * E * (n + 16 + 2 * below[0] + 4 * abs(theta * psi).max())
    yield "isb.surrogate_weights", worst(abs(got - P[0]), bound)
    density, ratio = rng.normal(size=n), rng.normal(size=n)
    a, b = (y.astype(Long) - y.astype(Long).mean() for y in (density, ratio))
    want = -(a * b).sum() / (b * b).sum()
    got = qk.isb.auto_theta(density, ratio)
    off = 8 * (n + 16) * E * (abs(a * b).sum() / (b * b).sum() + abs(want)) * 4
    want = want if abs(want) > 0.25 + off else np.copysign(0.25, want)  # kept at 1/4 or more
    if (b * b).sum() > 0.01 * n:
        yield "isb.auto_theta", worst(abs(abs(got) - abs(want)), off)
    k, epsilon = int(rng.integers(1, 1000)), float(10.0 ** rng.uniform(-5, 5))
    exact = qk.isb.steps_for(k * epsilon, epsilon) == k
    more = qk.isb.steps_for((k + 0.5) * epsilon, epsilon) == k + 1
    yield "isb.steps_for", 0.0 if exact and more else np.inf


def laws(rng: Rng) -> Iterator[Found]:
    """Measures: moments, softmatch, brackets of distances, conditional distances, steps of a scheme."""
    n, d = int(rng.integers(2, 8)), int(rng.integers(1, 3))
    X, Y = rng.normal(size=(2, n, d)) * 10.0 ** rng.uniform(-8, 8)
    a = np.array(law(rng, n, np.float64))
    mu, nu = qk.measure.Measure(X, a), qk.measure.Measure(Y)
    mean = (a.astype(Long) / a.astype(Long).sum()) @ X.astype(Long)
    got = qk.measure.moment_projection(mu).points[0]
    yield "measure.moment_projection", worst(abs(got - mean), (n + 8) * 2 * E * abs(X).max())
    beta = float(10.0 ** rng.uniform(-1, 3)) / np.square(X).max()
    with np.errstate(divide="ignore"):
        terms = beta * X.astype(Long) @ Y.T.astype(Long) - np.log(Long(n))
    P, below = softmax(terms)
    sizes = beta * abs(X) @ abs(Y).T * (d + 4)
    got = qk.measure.softmatch(qk.measure.DotPotential(beta), X, nu).to_numpy()
    bound = 2 * P * E * (n + 32 + below + sizes + sizes.max()) + np.finfo(float).tiny
    yield "measure.softmatch", worst(abs(got - P), bound)
    cost = abs(X[:, None] - Y).sum(axis=2)
    best = programme(cost, np.full(n, 1 / n), np.full(n, 1 / n))
    if best is not None:
        bracket = qk.measure.w1_bracket(qk.measure.Measure(X), nu)
        outside = max(bracket.lower - best, best - bracket.upper, 0.0)
        yield "measure.w1_bracket", worst(outside, 4e-7 * n * cost.max())
    # Laws with random moments are those of a tilted measure: the moments of the answer are its own.
    features = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6, d)
    far = features / abs(features).max(axis=0) @ rng.normal(size=d) * 10.0 ** rng.uniform(-1, 1.7)
    tilt = softmax(far[None].astype(Long))[0][0]
    targets = (tilt @ features).astype(float)
    found = qk.measure.maximum_entropy(features, targets)
    if found.converged.all():
        w = found.softmatch().to_numpy()[0].astype(Long)
        off = abs(w @ features - targets)
        sizes = E * (n + 32 + 4 * float(abs(features @ found.lam[0]).max())) * abs(features).max()
        # The tolerance is a share of each feature's range.
        yield "measure.maximum_entropy", worst(off, 1e-10 * np.ptp(features, axis=0) + sizes)
    positions = rng.integers(0, 2, n).astype(float)
    joined, largest = 0.0, 0.0
    for value in np.unique(positions):
        at = positions == value
        distances = np.square(X[at][:, None] - Y[at]).sum(axis=2)
        k = int(at.sum())
        each = programme(distances, np.full(k, 1 / k), np.full(k, 1 / k))
        joined += np.inf if each is None else each * k / n
        largest = max(largest, float(distances.max()))
    got = qk.observables.conditional_wasserstein(X, Y, positions, method="exact")
    if joined < np.inf:
        yield "observables.conditional_wasserstein", worst(abs(got**2 - joined), 4e-7 * n * largest)
    p = rng.random(n) + 1e-2
    p /= p.sum()
    c, tau, steps = (
        rng.normal(size=n) * 10.0 ** rng.uniform(-2, 2),
        float(10.0 ** rng.uniform(-1, 1)),
        int(rng.integers(1, 5)),
    )
    path = qk.simplex.jko(p, c, tau=tau, n_steps=steps)
    exact = softmax((np.log(p.astype(Long)) - steps * c.astype(Long) / Long(tau))[None])[0][0]
    sizes = steps * (n + 32 + 4 * float(abs(c).max()) * steps / tau + 2 * abs(np.log(p)).max())
    yield "simplex.jko", worst(abs(path.p[-1] - exact), 4 * E * exact * sizes + 1e-300)


FAMILIES: tuple[Family, ...] = (
    lines,
    gaussian_forms,
    approximations,
    kernels,
    choices,
    laws,
)
