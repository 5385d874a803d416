"""Random hard inputs for diagnostics, observables and bounds on measures.

Results are compared with their formulas in extended precision, or with linear programmes. Bounds are compared
with values measured here, for random inputs and for inputs that are known to attain the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import qkcore as qk
from qkcore.diagnostics import curvature, depth, drift, duality, rotation, score

from .attack_tools import (
    Family,
    Found,
    Long,
    Rng,
    dtype_of,
    law,
    numbers,
    programme,
    size,
    softmax,
    worst,
)
from .reference_diagnostics import triangle_torsion

E = float(np.finfo(float).eps)
TORSION = triangle_torsion()


def depths(rng: Rng) -> Iterator[Found]:
    dtype, V, L = dtype_of(rng), size(rng, 33), int(rng.integers(4, 40))
    tau = float(10.0 ** rng.uniform(-0.5, 0.5))
    z = (rng.normal(size=(1, V)) + np.cumsum(0.1 * rng.normal(size=(L + 1, V)), axis=0)).astype(
        dtype
    )
    if rng.random() < 0.3 and V > 1:
        z[:, 0] = -np.inf
    constants = depth.Constants(L_b=float(rng.uniform(0, 1)), M_b=float(rng.uniform(0, 1)), tau=tau)
    with np.errstate(invalid="ignore"):
        dz = np.diff(z.astype(Long), axis=0)
    dz = np.where(np.isnan(dz), 0, dz)
    few = (V + L + 16) * E
    seen = np.isfinite(z[0])
    if seen.any():
        off = np.where(seen, dz - dz[:, seen].mean(axis=1, keepdims=True), 0)
        rows = depth.budget(z, tau=tau, constants=constants)
        half = (dz[:, seen].max(axis=1) - dz[:, seen].min(axis=1)) / 2
        # A mean is taken off numbers up to |dz|, whose squares are what the error is a share of.
        yield (
            "depth.budget, S_bar",
            worst(
                abs(rows.S_bar - np.square(off).sum() / seen.sum()),
                4 * few * np.square(dz).sum() / seen.sum(),
            ),
        )
        yield (
            "depth.budget, C_BV up to constants",
            worst(abs(rows.C_BV - half.mean()), few * abs(dz).max()),
        )
    got = depth.budget(z, tau=tau, constants=constants, centered=False)
    sup, squares = abs(dz).max(axis=1), np.square(dz).sum(axis=1)
    # Differences are taken in double, of numbers up to |z|.
    yield "depth.budget, C_BV", worst(abs(got.C_BV - sup.mean()), few * sup.mean())
    yield "depth.budget, S_L", worst(abs(got.S_L - squares.sum()), 2 * few * squares.sum())
    lipschitz, growth = 1 / Long(tau), constants.L_b / Long(tau)
    alpha1 = lipschitz * (1 + growth * np.exp(growth) / 2)
    alpha2 = lipschitz * 2 / Long(tau) * np.exp(growth + constants.M_b * 2 / Long(tau)) / 2
    want = alpha1 * sup.max() + alpha2 * np.square(sup).sum()
    yield "depth.budget, Xi", worst(abs(got.xi - want), 8 * few * want)
    # A stream whose steps differ by less than half, except for one that is a hundred times as large.
    norms = rng.uniform(1, 1.5, L)
    jump, window = int(rng.integers(3, L)), int(rng.integers(1, 9))
    norms[jump] *= 100
    for threshold in (None, 4.0):
        detector = depth.BVDetector(threshold=threshold, window=window)
        for norm in norms:
            detector.update_norm(float(norm))
        spikes = [step.layer for step in detector.steps if bool(step.spike)]
        yield "BVDetector, spikes", 0.0 if spikes == [jump] else np.inf
        flagged = list(range(jump, min(L, jump + window)))
        yield "BVDetector, violations", 0.0 if detector.violations == flagged else np.inf
    for k, step in enumerate(detector.steps):
        inside = norms[max(0, k + 1 - window) : k + 1].astype(Long)
        limit = 4 * (1 + inside.std() / inside.mean() / 10)
        want = np.square(inside).mean() / limit
        yield "BVDetector, severity", worst(abs(step.severity - want), 64 * window * E * want)
    direction = rng.normal(size=(L, V))
    stack = np.concatenate([np.zeros((1, V)), np.cumsum(direction * norms[:, None], axis=0)])
    violations = depth.detect(stack, threshold=1e-3, window=1).violations
    moves = np.diff(stack, axis=0)
    moves -= moves.mean(axis=1, keepdims=True)
    wanted = [int(k) for k in np.flatnonzero(np.square(moves).sum(axis=1) > 1e-3)]
    yield "depth.detect", 0.0 if violations == wanted else np.inf


def drifts(rng: Rng) -> Iterator[Found]:
    d, m = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    n = d + 6 + int(rng.integers(0, 40))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-5, 5, d)
    y = X @ rng.normal(size=(d, m)) + rng.normal(size=(n, m)) + 3
    model = drift.RidgeDrift().fit(X, y)
    x = X.astype(Long) - X.astype(Long).mean(axis=0)
    target = y.astype(Long) - y.astype(Long).mean(axis=0)
    scale = np.sqrt(np.square(x).sum(axis=0))
    # The normal equations in extended precision, scaled, and refined once.
    gram = x.T @ x + model.alpha_ * np.eye(d)
    scaled = (gram / scale[:, None] / scale).astype(float)
    w = np.zeros((d, m), Long)
    for _ in range(6):
        rest = (x.T @ target - gram @ w) / scale[:, None]
        w += np.linalg.solve(scaled, rest.astype(float)) / scale[:, None]
    s = np.linalg.svd(x.astype(float), compute_uv=False)
    condition = s[0] / s[-1]
    # A singular value decomposition is backward stable: n d eps of the largest singular value.
    bound = (
        16 * n * d * E * condition * (abs(w).max() + np.linalg.norm(target.astype(float)) / s[-1])
    )
    yield "RidgeDrift, coefficients", worst(abs(model.coef_ - w), bound)
    q = X[:3]
    want = (q - X.astype(Long).mean(axis=0)) @ w + y.astype(Long).mean(axis=0)
    reach = abs(q).sum(axis=1).max() + abs(X).mean(axis=0).sum()
    yield (
        "RidgeDrift.predict",
        worst(abs(model.predict(q) - want), bound * reach + 64 * n * E * abs(y).max()),
    )
    L, V, tau = int(rng.integers(1, 6)), size(rng, 17), float(10.0 ** rng.uniform(-1, 1))
    z = rng.normal(size=(L + 1, 2, V))
    states, steps = drift.transitions(z, tau=tau, with_time=False)
    P = softmax(z[:-1].reshape(-1, V).astype(Long) / Long(tau))[0]
    yield (
        "drift.transitions, states",
        worst(abs(states - P), P * E * (16 + V + 2 * abs(z).max() * 2 / tau)),
    )
    dz = L * np.diff(z.astype(Long), axis=0)
    dz = (dz - dz.mean(axis=-1, keepdims=True)).reshape(-1, V)
    yield "drift.transitions, drifts", worst(abs(steps - dz), (V + 8) * E * L * 4 * abs(z).max())


def rotations(rng: Rng) -> Iterator[Found]:
    n, beta = int(rng.integers(4, 13)), float(10.0 ** rng.uniform(-3, 3))
    g = rng.normal(size=2) * beta
    slope = float(rng.normal()) * beta

    def gradient(p: Any) -> Any:
        return slope * p + g

    def spin(p: Any) -> Any:
        return beta * np.stack([p[:, 1], -p[:, 0]], axis=1)

    found = rotation.on_simplex(gradient, n)
    # Least squares are solved to eps times their condition; energies are squares of that.
    yield (
        "on_simplex, gradients",
        worst(found.normalized, (64 * n * n * E * max(found.condition, 1)) ** 2),
    )
    turning = rotation.on_simplex(spin, n).energy
    one = rotation.on_simplex(lambda p: spin(p) / beta, n).energy
    scale = 64 * n * n * E * max(found.condition, 1)
    values = spin(rotation.simplex_points(n))
    given = rotation.on_simplex(values, n).energy
    yield "on_simplex, values", worst(abs(given - turning), scale * turning)
    yield "on_simplex, scaling", worst(abs(turning - beta**2 * one), scale * turning)
    # The law has density 2 and the stream function is twice that of -Laplace psi = 1: the energy is eight of
    # its integrals. Elements of order two: half the width leaves a quarter of the error.
    exact = 8 * TORSION
    finer = rotation.on_simplex(lambda p: spin(p) / beta, 2 * n).energy
    yield "on_simplex, spin", worst(abs(finer - exact), 0.4 * abs(one - exact))
    both = rotation.on_simplex(lambda p: spin(p) + gradient(p), n).energy
    kinetic = beta**2 + float(g @ g) + slope**2
    yield "on_simplex, gradients do not count", worst(abs(both - turning), scale * kinetic * 4)
    X = rng.normal(size=(int(rng.integers(60, 200)), 2))
    S = rng.normal(size=(2, 2)) * beta
    still = rotation.rotational_energy(X, X @ (S + S.T), n_resamples=10)
    allowed = (64 * len(X) * E * max(still.condition, 1)) ** 2
    yield "rotational_energy, gradients", worst(still.normalized, allowed)


def curvatures(rng: Rng) -> Iterator[Found]:
    n = int(rng.integers(2, 9))
    p, q = (np.array(law(rng, n, np.float64)) for _ in range(2))
    q *= p.sum() / q.sum()
    positions = np.sort(rng.normal(size=n)) * 10.0 ** rng.uniform(-6, 6)
    gaps = np.diff(positions.astype(Long))
    want = (abs(np.cumsum(p.astype(Long) - q)[:-1]) * gaps).sum()
    reach = float(np.ptp(positions))
    got = curvature.w1(p, q, positions=positions)
    yield "curvature.w1, line", worst(abs(got - want), 4 * (n + 8) * E * reach)
    points = rng.normal(size=(n, 2))
    cost = abs(points[:, None] - points).sum(axis=2)
    best = programme(cost, p, q)
    if best is not None:
        # Either linear programme may violate its constraints by 1e-7.
        off = abs(curvature.w1(p, q, points=points) - best)
        yield "curvature.w1, points", worst(off, 4e-7 * n * cost.max())
    m = int(rng.integers(2, 17))
    P = rng.random((m, m)) + 1e-3
    P /= P.sum(axis=1, keepdims=True)
    i, j = (int(k) for k in rng.choice(m, 2, replace=False))
    found = curvature.curvature(P, pairs=[[i, j]], n_resamples=10)
    gap = (P[i].astype(Long) / P[i].astype(Long).sum()) - P[j].astype(Long) / P[j].astype(
        Long
    ).sum()
    w1 = abs(np.cumsum(gap)[:-1]).sum()
    bound = 8 * (m + 8) * m * E
    yield "curvature.curvature", worst(abs(found.kappa[0] - (1 - w1 / abs(i - j))), bound)


def moves(rng: Rng) -> Iterator[Found]:
    """How far p moves while its logits do: bounds against random and against the worst steps."""
    V, R = int(rng.integers(2, 12)), float(10.0 ** rng.uniform(-3, 1))
    z = rng.normal(size=V) * 10.0 ** rng.uniform(-1, 2.5)
    p = softmax(z[None].astype(Long))[0][0]
    top = int(p.argmax())
    steps = [rng.uniform(-R, R, V), R * rng.choice([-1.0, 1.0], V)]
    steps.append(np.where(np.arange(V) == top, -R, R))
    tv = [abs(softmax((z + step)[None].astype(Long))[0][0] - p).sum() / 2 for step in steps]
    tail = float(np.delete(p, top).sum())
    q = np.asarray(p, float)
    # Both bounds are attained, so rounding of p and of exp may put the measured value above them.
    slack = 1 + 64 * V * E * (1 + R)
    least = 64 * V * E
    yield "motion_bound", worst(max(tv), float(qk.schedule.motion_bound(q, R)) * slack + least)
    yield "locking_bound", worst(max(tv), float(curvature.locking_bound(tail, R)) * slack + least)
    if tail <= 1 / (1 + np.exp(R)):
        for bound in (qk.schedule.motion_bound(q, R), curvature.locking_bound(tail, R)):
            yield "locking, attained", worst(abs(float(bound) - tv[2]), least + 64 * V * E * tv[2])


def slopes(rng: Rng) -> Iterator[Found]:
    k = int(rng.integers(2, 9))
    h = np.sort(10.0 ** rng.uniform(-6, 0, k))
    h *= 1.5 ** np.arange(k)
    errors = h ** rng.uniform(0.5, 3) * 10.0 ** rng.uniform(-0.1, 0.1, k)
    got = duality.weak_error_slope(h, errors, n_resamples=10, method="percentile").slope
    x, y = np.log(h.astype(Long)), np.log(errors.astype(Long))
    x = x - x.mean()
    want = (x * (y - y.mean())).sum() / (x * x).sum()
    spread = np.sqrt((x * x).sum())
    bound = 16 * (k + 4) * E * (abs(y).max() + abs(np.log(h)).max() * (1 + abs(want))) / spread
    yield "weak_error_slope", worst(abs(got - want), bound * np.sqrt(k))


def scores(rng: Rng) -> Iterator[Found]:
    d, k, n = int(rng.integers(1, 4)), int(rng.integers(1, 5)), size(rng, 17)
    weights = rng.random(k) + 0.05
    weights /= weights.sum()
    means = rng.normal(size=(k, d)) * 10.0 ** rng.uniform(-1, 2)
    roots = rng.normal(size=(k, d, d))
    covs = roots @ roots.swapaxes(1, 2) + 10.0 ** rng.uniform(-5, 0) * np.eye(d)
    sigma = float(rng.choice([0.0, 0.3]))
    x = rng.normal(size=(n, d)) * 2
    wide = covs.astype(Long) + Long(sigma) ** 2 * np.eye(d)
    inverse = np.linalg.inv(wide.astype(float)).astype(Long)
    for _ in range(3):  # Newton's iteration for inverses, to extended precision
        inverse = inverse @ (2 * np.eye(d) - wide @ inverse)
    gaps = means.astype(Long)[None] - x[:, None]
    pull = np.einsum("kab,nkb->nka", inverse, gaps)
    half = (gaps * pull).sum(axis=2) / 2
    log_det = np.array([np.linalg.slogdet(c)[1] for c in wide.astype(float)])
    r, below = softmax(np.log(weights.astype(Long)) - log_det / 2 - half)
    condition = float(max(np.linalg.cond(c) for c in wide.astype(float)))
    sizes = (abs(pull) * (1 + half.max(axis=1)[:, None, None])).sum(axis=1) * (1 + below.max())
    bound = 64 * d * (k + 4) * E * condition * sizes
    want = (r[:, :, None] * pull).sum(axis=1)
    got = score.mixture_score(x, weights, means, covs, sigma=sigma)
    yield "score.mixture_score", worst(abs(got - want), bound)
    got = score.gaussian_score(x, means[0], covs[0], sigma=sigma)
    few = 64 * d * E * condition * (abs(inverse[0]) @ abs(gaps[:, 0].T)).T
    yield "score.gaussian_score", worst(abs(got - pull[:, 0]), few)


def observables(rng: Rng) -> Iterator[Found]:
    n, d = size(rng, 33), int(rng.integers(1, 5))
    X = np.array(numbers(rng, (n, d), np.float64, float(10.0 ** rng.uniform(-100, 100))))
    x = X.astype(Long)
    norms = np.sqrt(np.square(x).sum(axis=1))
    yield (
        "observables.radius",
        worst(abs(qk.observables.radius(X) - norms.max()), (d + 8) * E * norms.max()),
    )
    if n > 1 and (norms > 1e-290).all():
        unit = x / norms[:, None]
        i, j = np.triu_indices(n, 1)
        cosines = (unit @ unit.T)[i, j]
        found = qk.observables.angles(X)
        few = 4 * (d + 16) * E
        yield (
            "observables.angles",
            worst(
                [abs(found.mean - cosines.mean()), abs(found.smallest - cosines.min())],
                [few + n * E, few],
            ),
        )
    Y = np.round(rng.normal(size=(n, d)) * 4)
    close = np.square(Y[:, None] - Y).sum(axis=2) <= 2.25  # no pair is at 1.5, except by rounding
    label = np.arange(n)
    for _ in range(n):
        label = np.array([label[close[i]].min() for i in range(n)])
    got = qk.observables.clusters(Y, 1.5)
    same = got.labels[:, None] == got.labels
    yield "observables.clusters", 0.0 if (same == (label[:, None] == label)).all() else np.inf
    A = rng.normal(size=(d, d))
    Z = rng.normal(size=(n, d))
    dots = (Z.astype(Long) @ A.T.astype(Long)) @ Z.T.astype(Long)
    want = np.exp(dots).mean() / 2
    sizes = (np.exp(dots) * (abs(Z) @ abs(A).T @ abs(Z).T * (2 * d + 4) + n * 2 + 16)).mean()
    got = qk.observables.interaction_energy(Z, A)
    yield "observables.interaction_energy", worst(abs(got - want), E * sizes)
    kind = str(rng.choice(["softmax", "l2", "sigmoid"]))
    Q, K, V = (rng.normal(size=(d, d)) for _ in range(3))
    field = qk.AttentionField(kind, Q=Q, K=K, V=V)
    R = float(10.0 ** rng.uniform(-2, 1.5))
    cloud = rng.normal(size=(n, d))
    cloud *= R * rng.random((n, 1)) / np.linalg.norm(cloud, axis=1, keepdims=True)
    step = 1e-5 * R

    def gamma(at: Any) -> Any:
        s = (at @ Q.T) @ (cloud @ K.T).T
        if kind == "l2":
            s = -np.square((Q @ at)[None] - cloud @ K.T).sum(axis=1)
        if kind == "sigmoid":
            return V @ (cloud.T @ (1 / (1 + np.exp(-s)))) / n
        w = np.exp(s - s.max())
        return V @ (cloud.T @ w) / w.sum()

    at = cloud[0] * 0.99
    J = np.stack([(gamma(at + step * u) - gamma(at - step * u)) / (2 * step) for u in np.eye(d)])
    # A difference quotient is a mean of derivatives in the ball, so only rounding can take it above a bound.
    rounding = (
        64
        * d
        * n
        * E
        * float(np.linalg.norm(V))
        * R
        / step
        * (1 + R * R * np.linalg.norm(Q) * np.linalg.norm(K))
    )
    limit = qk.observables.field_lipschitz_bound(field, R)
    yield "observables.field_lipschitz_bound", worst(np.linalg.norm(J, 2), limit + rounding)


def contractions(rng: Rng) -> Iterator[Found]:
    from qkcore.measure import (
        AttentionJacobian,
        AttentionKernel,
        Box,
        DotPotential,
        GaussianPotential,
    )

    d, n = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    half = float(10.0 ** rng.uniform(-3, 1))
    beta = float(10.0 ** rng.uniform(-1, 1))
    W = rng.normal(size=(d, d)) if rng.random() < 0.5 else np.eye(d)
    dot = bool(rng.random() < 0.6)
    potential: Any = DotPotential(beta, W) if dot else GaussianPotential(beta)
    kernel, domain = AttentionKernel(potential), Box([-half] * d, [half] * d)
    report = qk.measure.contraction(kernel, domain, samples=10, climbs=2)

    def inside() -> Any:
        x = rng.uniform(-half, half, (n, d))
        return np.where(rng.random((n, d)) < 0.3, half * np.sign(x), x)

    def weights(at: Any, cloud: Any) -> Any:
        if dot:
            s = beta * at @ W @ cloud.T
        else:
            s = -beta * np.square(at[:, None] - cloud).sum(axis=2)
        return softmax(s.astype(Long))[0]

    def attend(at: Any, cloud: Any) -> Any:
        return weights(at, cloud) @ cloud

    cloud, other = inside(), inside()
    few = 1 + 1e-6  # tolerance of the linear programmes; ratios of tiny distances are left out
    a, b = rng.uniform(-half, half, (2, 1, d))
    if rng.random() < 0.5:
        b = np.clip(a + 1e-3 * half * rng.normal(size=(1, d)), -half, half)
    apart = abs(a - b).sum()
    if apart > 1e-6 * half:
        means = abs(attend(a, cloud) - attend(b, cloud)).sum() / apart
        yield "contraction, query", worst(means, report.query.bound * few + 1e-9)
    cost = abs(cloud[:, None] - other).sum(axis=2)
    uniform = np.full(n, 1 / n)
    before = programme(cost, uniform, uniform)
    after = programme(cost, *(weights(a, c)[0].astype(float) for c in (cloud, other)))
    if before is not None and after is not None and before > 1e-3 * half:
        yield "contraction, measure", worst(after / before, report.measure.bound * few + 1e-4)
        images = _gaps(attend(cloud, cloud), attend(other, other))
        moved = programme(images, uniform, uniform)
        if moved is not None:
            yield (
                "contraction, attention",
                worst(moved / before, report.attention.bound * few + 1e-4),
            )
            tau = qk.measure.tau_bound(kernel, domain)
            yield "measure.tau_bound", worst(moved / before, tau * few + 1e-4)
    x = cloud.astype(Long)
    got = kernel.self_attention(cloud)
    P = weights(cloud, cloud)
    scores = beta * d * half * half * max(1.0, float(abs(W).sum())) * 4
    rounding = 8 * E * (n + d * d + 16) * (1 + scores)
    yield "AttentionKernel.self_attention", worst(abs(got - P @ x), rounding * half)
    if dot:
        dX = rng.normal(size=(n, d))
        w = W.astype(Long)
        ds = beta * (dX @ w @ x.T + x @ w @ dX.T)
        # The derivative of a softmax mean: that of the points, and that of the weights, which multiplies
        # the distance of the points from the mean.
        want = P @ dX + (P * ds) @ x - (P * ds).sum(axis=1, keepdims=True) * (P @ x)
        sizes = abs(dX).sum() * (1 + 4 * scores)
        got = AttentionJacobian(kernel, cloud).apply(dX)
        yield "AttentionJacobian.apply", worst(abs(got - want), rounding * sizes)
        J = AttentionJacobian(kernel, cloud)
        dense = J.to_numpy()
        norm = np.linalg.norm(dense.reshape(n * d, n * d), 2)
        # The measured value approaches it from below, to a tolerance of 1e-3.
        found = J.spectral_norm()
        yield "AttentionJacobian.spectral_norm", worst(found.value, norm * (1 + 1e-9))
        report_l = qk.measure.lipschitz(kernel, cloud, queries=4, climbs=2)
        centred = x[None] - (P @ x)[:, None]
        C = np.einsum("ij,ija,jb->iab", P, centred, x).astype(float)
        own = max(np.linalg.norm(beta * c @ W.T, 2) for c in C)
        yield "measure.lipschitz", worst(own, report_l.query.bound * (1 + 1e-9) + rounding)


def neighbours(rng: Rng) -> Iterator[Found]:
    """How attention moves with its measure: what is measured by programmes here, and what bounds it."""
    from qkcore.measure import AttentionKernel, Box, GaussianPotential, Measure

    d, n = int(rng.integers(1, 3)), int(rng.integers(1, 6))
    beta = float(10.0 ** rng.uniform(-1, 1))
    X = rng.uniform(-1, 1, (n, d))
    Y = X + 10.0 ** rng.uniform(-2, 0) * rng.uniform(-1, 1, (n, d))
    kernel, domain = AttentionKernel(GaussianPotential(beta)), Box([-2.0] * d, [2.0] * d)
    uniform = np.full(n, 1 / n)
    apart = programme(_gaps(X, Y), uniform, uniform)
    if apart is None or apart < 1e-3:
        return

    def weights(at: Any, cloud: Any) -> Any:
        return softmax(-beta * np.square(at[:, None] - cloud).sum(axis=2).astype(Long))[0]

    x = X[0]
    off = abs(weights(X[:1], X)[0] @ X - weights(X[:1], Y)[0] @ Y).sum()
    found = qk.measure.neighbourhood(kernel, x, Measure(X), Measure(Y), domain)
    few = 64 * n * E * (1 + beta * 64 * d) * d
    yield "measure.neighbourhood, measured", worst(abs(found.measured - off), few)
    yield "measure.neighbourhood", worst(off, found.bound * (1 + 1e-6) + few)
    images = programme(_gaps(weights(X, X) @ X, weights(Y, Y) @ Y), uniform, uniform)
    if images is not None:
        found = qk.measure.gaussian_lipschitz(kernel, Measure(X), Measure(Y))
        yield "measure.gaussian_lipschitz", worst(images / apart, found.bound + 1e-3)
        # Linear programmes may violate their constraints by 1e-7, each with costs up to 8 d.
        slack = 4e-7 * n * 16 * d / apart * (1 + images / apart)
        yield (
            "measure.gaussian_lipschitz, measured",
            worst(abs(found.measured - images / apart), slack),
        )
    moved = programme(_gaps(X, Y), *(weights(z[:1], z)[0].astype(float) for z in (X, Y)))
    if moved is not None:
        found = qk.measure.softmatch_perturbation(X[0], Y[0], Measure(X), Measure(Y), beta=beta)
        far = float(abs(X[0] - Y[0]).sum()) + apart
        slack = 4e-7 * n * 16 * d
        yield "measure.softmatch_perturbation, distance", worst(abs(found.distance - far), slack)
        yield "measure.softmatch_perturbation, measured", worst(abs(found.measured - moved), slack)


def _gaps(a: Any, b: Any) -> Any:
    return abs(a[:, None] - b).sum(axis=2)


FAMILIES: tuple[Family, ...] = (
    depths,
    drifts,
    rotations,
    curvatures,
    moves,
    slopes,
    scores,
    observables,
    contractions,
    neighbours,
)
