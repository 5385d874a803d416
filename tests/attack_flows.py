"""Random hard inputs for flows and bridges of clouds: isb, ``pf_ode``, Gaussian and particle attention.

Velocities and maps are compared with dense formulas in extended precision, Gaussian transport with its
closed form in 40 digits, and flows with closed forms or SciPy's DOP853 at a far smaller tolerance. An
adaptive integrator keeps the error of every step below its tolerance. The bound is the sum of these errors,
multiplied by exp(L T), where L is the largest norm of the Jacobian along the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import qkcore as qk

from . import reference_flows, reference_particles
from .attack_tools import Family, Found, Long, Rng, dtype_of, numbers, size, softmax, worst


def self_bridge(x: Any, epsilon: Long, w: Any) -> tuple[Any, Any]:
    """The dense bridge of a cloud with itself by Sinkhorn's symmetric iteration, and what its rows miss."""
    z = -np.square(x[:, None] - x).sum(axis=2) / (2 * epsilon)
    log_w = np.log(w)
    g = log_w.copy()
    miss = np.ones(len(x), Long)
    for _ in range(3000):
        total = z + g
        top = total.max(axis=1)
        rows = top + np.log(np.exp(total - top[:, None]).sum(axis=1))
        step = (log_w - rows - g) / 2
        g = g + step
        if abs(step).max() < 1e-18:
            break
    plan = np.exp(z + g[:, None] + g)
    miss = abs(plan.sum(axis=1) - w)
    return plan, float(miss.sum())


def doubly_normalised(z: Any, w: Any) -> Any:
    """exp(z + f + g) with both marginals w by Newton's method on the dual, in extended precision.

    The plain iteration of the reference leaves 3e-3 after 5000 steps where the kernel's spectral gap is 1e-6.
    """
    z, w = z.astype(Long), w.astype(Long)
    log_w = np.log(w)
    f, g = np.zeros_like(w), np.zeros_like(w)
    for _ in range(100):
        f = log_w - np.log(np.exp(z + g).sum(axis=1))
        g = log_w - np.log(np.exp(z + f[:, None]).sum(axis=0))

    def missing(f: Any, g: Any) -> tuple[Any, Any]:
        plan = np.exp(z + f[:, None] + g)
        return plan, np.concatenate([w - plan.sum(axis=1), w - plan.sum(axis=0)])

    plan, off = missing(f, g)
    for _ in range(200):
        if abs(off).sum() < 1e-17:
            break
        # Scaled symmetrically; least squares leaves out the direction (1, -1), which changes no plan.
        sums = np.concatenate([plan.sum(axis=1), plan.sum(axis=0)])
        root = np.sqrt(sums)
        n = len(w)
        hessian = np.block([[np.diag(sums[:n]), plan], [plan.T, np.diag(sums[n:])]])
        hessian = (hessian / root[:, None] / root).astype(float)
        step = np.linalg.lstsq(hessian, (off / root).astype(float), rcond=1e-15)[0] / root
        share = min(Long(1), 2 / abs(step).max())
        f, g = f + share * step[:n], g + share * step[n:]
        plan, off = missing(f, g)
    # The tolerance of the library's solve is thousands of times larger; where the spectral gap vanishes,
    # rounding of large potentials leaves some 1e-15.
    if not abs(off).sum() < 1e-13:
        raise ArithmeticError(f"the oracle's marginals are off by {abs(off).sum():.3g}")
    return plan


def isb(rng: Rng) -> Iterator[Found]:
    dtype, n, d = dtype_of(rng), size(rng, 17), int(rng.integers(1, 5))
    eps = float(np.finfo(dtype).eps)
    scale = float(10.0 ** rng.uniform(-9, 9))
    X = numbers(rng, (n, d), dtype, scale)
    epsilon = float(10.0 ** rng.uniform(-4, 3)) * scale**2
    w = rng.random(n) + 0.1
    w = (w / w.sum()).astype(dtype)
    tol = 1e-12 if dtype == np.float64 else 1e-5
    found = qk.isb.barycentric(X, epsilon, w, tol=tol, on_fail="ignore")
    x, masses = X.astype(Long), w.astype(Long) / w.astype(Long).sum()
    plan, miss = self_bridge(x, Long(epsilon), masses)
    P = plan / plan.sum(axis=1, keepdims=True)
    B = P @ x
    spread = abs(x[None] - B[:, None]).max()
    # Potentials off by e leave I + P times e as residual; the kernel is positive definite, so that e is at
    # most the residual, in the norm of the weights: r / min(w) in every entry. B moves by twice e times the
    # spread. Scores have the error of distances from differences, a few eps of their size.
    z = np.square(x[:, None] - x).sum(axis=2) / (2 * epsilon)
    residual = (found.error if not found.converged else tol) + miss
    scores = eps * (d + 16) * (plan * (z + 1)).sum() + n * eps
    e = (residual + scores) / float(masses.min())
    bound = 4 * (e * spread + eps * (d + n + 16) * abs(x).max())
    yield "isb.barycentric", worst(abs(found.values - B), bound)
    yield "BarycentricMap.self_weight", worst(abs(found.self_weight - np.trace(plan)), 4 * e * n)
    if not found.converged:
        return
    theta = float(rng.choice([-1.0, 0.5, 2.0, -3.0]))
    moved = qk.isb.step(X, epsilon, theta=theta, weights=w, tol=tol).X
    want = (1 - 1 / Long(theta)) * x + B / Long(theta)
    grown = 1 + 1 / abs(theta)
    yield "isb.step", worst(abs(moved - want), bound * grown + 8 * eps * grown * abs(x).max())
    flow = qk.isb.heat_flow(X, epsilon, 1, weights=w, tol=tol)
    yield (
        "isb.heat_flow, one step",
        worst(abs(flow.x[-1] - (2 * x - B)), 2 * bound + 16 * eps * abs(x).max()),
    )
    v = numbers(rng, (n, d), dtype, scale)
    want = x + np.asarray(epsilon, dtype).astype(Long) * v.astype(Long)
    sizes = abs(x) + epsilon * abs(v.astype(Long))
    yield (
        "isb.euler_step",
        worst(
            abs(qk.isb.euler_step(X, epsilon, v) - want),
            4 * eps * sizes + 2 * float(np.finfo(dtype).tiny),
        ),
    )


def simplex_flows(rng: Rng) -> Iterator[Found]:
    n = size(rng, 33)
    p0 = 10.0 ** rng.uniform(-3 if rng.random() < 0.5 else -30, 0, n)
    p0 /= p0.sum()
    tau = float(10.0 ** rng.uniform(-1, 1))
    drift = rng.normal(size=n)
    T = float(rng.uniform(0.1, 2)) * tau / max(np.ptp(drift), 1)
    coordinates = str(rng.choice(["p", "logits"]))
    rtol, atol = 1e-8, 1e-11
    options = {"tau": tau, "rtol": rtol, "atol": atol, "coordinates": coordinates}
    log_p = np.log(p0.astype(Long) / p0.astype(Long).sum())

    def compare(name: str, sol: Any, exact: Any, lipschitz: float) -> Found:
        if sol.status != "finished":
            return f"{name}: {sol.status}", np.inf
        steps = sol.n_steps * (rtol + atol) * np.exp(lipschitz * T)
        return name, worst(abs(sol.p[-1] - exact), steps + n * 16 * np.finfo(float).eps)

    # d/dt log p = (b - <p, b>)/tau: the Jacobian of p -> J(p) b has norms up to 2 osc(b)/tau.
    exact = softmax((log_p + drift * Long(T) / Long(tau))[None])[0][0]
    sol = qk.simplex.pf_ode(p0, lambda p, t: drift, (0, T), **options)
    yield compare("pf_ode, constant drift", sol, exact, 2 * float(np.ptp(drift)) / tau)
    table = (np.array([0.0, T / 2, T]), np.stack([drift, -drift]))
    sol = qk.simplex.pf_ode(p0, table, (0, T), **options)
    yield compare("pf_ode, there and back", sol, np.exp(log_p), 2 * float(np.ptp(drift)) / tau)
    # Heat: b = -log p makes log p' = -log p / tau up to constants, so logits decay like exp(-t/tau).
    exact = softmax((log_p * np.exp(-Long(T) / Long(tau)))[None])[0][0]
    sol = qk.simplex.pf_ode(p0, lambda p, t: -np.log(p), (0, T), **options)
    grown = (2 * float(np.ptp(log_p)) + 2 + float(abs(log_p).max())) / tau
    yield compare("pf_ode, heat", sol, exact, grown)
    b = rng.normal(size=n)
    exact_p = np.exp(log_p)
    # dH/dt = -<log p, J b>
    centred = b.astype(Long) - exact_p @ b.astype(Long)
    want = -(exact_p * centred * log_p).sum() / Long(tau)
    sizes = (exact_p * (abs(b) + exact_p @ abs(b)) * (abs(log_p) + 1)).sum() / tau
    got = qk.simplex.entropy_rate(p0, b, tau)
    yield "simplex.entropy_rate", worst(abs(got - want), 4 * (n + 16) * np.finfo(float).eps * sizes)


def mobilities(rng: Rng) -> Iterator[Found]:
    """Figures of the mobility beside those of the family ``simplex``."""
    dtype, n = dtype_of(rng), size(rng, 9)
    p = 10.0 ** rng.uniform(-8 if rng.random() < 0.5 else -3, 0, n)
    p = (p / p.sum()).astype(dtype)
    tau = float(10.0 ** rng.uniform(-2, 2))
    J = qk.simplex.Mobility(p, tau)
    exact = J.p.astype(Long) / J.p.astype(Long).sum()
    dense = (np.diag(exact) - np.outer(exact, exact)) / Long(tau)
    eps, e = float(np.finfo(dtype).eps), float(np.finfo(float).eps)
    yield "Mobility.to_numpy", worst(abs(J.to_numpy() - dense), 8 * eps * exact[:, None] / tau)
    # The mass of p is 1 only to a few eps of the dtype; the results are computed in double.
    yield "Mobility.trace", worst(abs(J.trace - np.trace(dense)), (n + 16) * eps / tau)
    yield "Mobility.tail", worst(abs(J.tail - (1 - exact.max())), (n + 16) * eps)
    if n > 1:
        values = np.linalg.eigvalsh(dense.astype(float))
        condition = values[-1] / values[1]
        # LAPACK's error, and that of the mass, are relative to the largest value.
        off = (16 * n * e + 8 * eps) * condition
        yield (
            "Mobility.condition_number",
            worst(abs(J.condition_number - condition), 2 * condition * off),
        )
        # Half of |J v|_1 for signs v that are -1 on a set of mass m is 2 m (1 - m): the most over all sets,
        # of which those without the most probable entry are enough.
        sets = np.array(np.meshgrid(*[[0, 1]] * (n - 1))).reshape(n - 1, -1)
        masses = np.delete(exact, int(exact.argmax())) @ sets
        moved = (4 * masses * (1 - masses)).max() / Long(tau)
        allowed = J.mass_norm * (1 + (n + 16) * eps)
        yield "Mobility.mass_norm", worst(moved, allowed)
    W = rng.normal(size=(int(rng.integers(1, 5)), n)).astype(dtype)
    a = float(10.0 ** rng.uniform(-1, 1))
    effective = qk.simplex.EffectiveMobility(p, W, a, tau)
    # J depends only on differences from the most probable entry, since p (1 - p) cancels near a vertex.
    d = (W.astype(Long) - W[:, [int(J.p.argmax())]]).T
    factor = exact[:, None] * (d - exact @ d) / Long(tau)
    sizes = exact[:, None] * (abs(d) + exact @ abs(d)) / Long(tau)
    want = factor * Long(a) @ factor.T
    bound = 2 * (n + len(W) + 24) * eps * a * (sizes @ sizes.T)
    yield "EffectiveMobility", worst(abs(effective.to_numpy() - want), bound)


def entropic_gaussians(rng: Rng) -> Iterator[Found]:
    import mpmath as mp

    d = int(rng.integers(1, 4))
    scale = float(10.0 ** rng.uniform(-6, 6))
    epsilon = scale * float(10.0 ** rng.uniform(-6, 6))
    means = rng.normal(size=(2, d)) * np.sqrt(scale)
    covs = []
    for _ in range(2):
        q, _ = np.linalg.qr(rng.normal(size=(d, d)))
        c = (q * 10.0 ** rng.uniform(-2, 0, d)) @ q.T * scale
        covs.append((c + c.T) / 2)
    found = qk.gaussian.entropic_ot(means[0], covs[0], means[1], covs[1], epsilon=epsilon)
    bures = float(qk.gaussian.entropic_bures(covs[0], covs[1], epsilon=epsilon))
    with mp.workdps(40):

        def root(c: Any, power: Any = None) -> Any:
            values, vectors = mp.eigsy((c + c.T) / 2)
            return (
                vectors
                * mp.diag([mp.mpf(v) ** (power or mp.mpf(1) / 2) for v in values])
                * vectors.T
            )

        S, R = (mp.matrix(c.tolist()) for c in covs)
        half, inverse = root(S), root(S, -mp.mpf(1) / 2)
        eps = mp.mpf(epsilon)
        inner = root(half * R * half + mp.eye(d) * eps**2 / 4) - mp.eye(d) * eps / 2
        C = half * inner * inverse  # cross-covariance of x and y: S^1/2 (...) S^-1/2
        correlation = inverse * C * mp.inverse(R) * C.T * inverse
        kl = -mp.log(mp.det(mp.eye(d) - correlation)) / 2
        apart = mp.matrix((means[0] - means[1]).tolist())
        traces = sum(S[i, i] + R[i, i] for i in range(d))
        centred = (traces - 2 * sum(C[i, i] for i in range(d))) / 2
        cost = (centred + (apart.T * apart)[0] / 2) / eps
        sizes = (traces + (apart.T * apart)[0]) / eps + kl
        # Roots of eigenvalues that are off by eps of the largest: a condition of at most 1e2 each.
        e = 64 * d * np.finfo(float).eps * 1e2
        yield (
            "gaussian.entropic_ot, kl",
            worst(float(abs(found.kl - kl)), e * float(1 + kl + sizes)),
        )
        yield "gaussian.entropic_ot, cost", worst(float(abs(found.cost - cost)), e * float(sizes))
        yield (
            "gaussian.entropic_ot, value",
            worst(float(abs(found.value - cost - kl)), e * float(1 + sizes + kl)),
        )
        cross = np.array(C.tolist(), dtype=float)
        yield "gaussian.entropic_ot, cross", worst(abs(found.cross - cross), e * scale)
        want = 2 * eps * (centred / eps + kl)
        yield (
            "gaussian.entropic_bures",
            worst(float(abs(bures - want)), e * float(2 * (traces + eps * (1 + kl)))),
        )


def scipy_flow(rate: Callable[[Any], Any], start: Any, T: float) -> tuple[Any, float]:
    """The end by DOP853 at 1e-13, and the largest norm of the Jacobian at nine times, by differences."""
    from scipy.integrate import solve_ivp

    sol = solve_ivp(
        lambda t, y: rate(y),
        (0, T),
        start,
        "DOP853",
        rtol=1e-13,
        atol=1e-15,
        t_eval=np.linspace(0, T, 9),
    )
    if not sol.success:
        raise ArithmeticError(sol.message)
    largest = 0.0
    for y in sol.y.T:
        h = 1e-6 * max(1.0, float(abs(y).max()))
        J = np.stack([(rate(y + h * u) - rate(y - h * u)) / (2 * h) for u in np.eye(len(y))])
        largest = max(largest, float(np.linalg.norm(J, 2)))
    return sol.y[:, -1], largest


def gaussian_flows(rng: Rng) -> Iterator[Found]:
    d = int(rng.integers(1, 4))
    kind = str(rng.choice(["softmax", "l2", "sinkhorn"]))
    Q, K, V = (rng.normal(size=(d, d)) / d for _ in range(3))
    root = rng.normal(size=(d, d))
    cov = root @ root.T / d + 0.1 * np.eye(d)
    rate = qk.gaussian.velocity(kind, None, cov, Q=Q, K=K, V=V).cov_rate
    want = reference_flows.covariance_rate(kind, cov, Q, K, V)
    norm = float(np.linalg.norm(cov, 2))
    # The reference inverts a root of cov: its error is eps times the condition of cov.
    condition = float(np.linalg.cond(cov)) * float(np.linalg.cond(np.eye(d) + 2 * K.T @ K @ cov))
    size_v = float(np.linalg.norm(V, 2) * np.linalg.norm(Q, 2) * np.linalg.norm(K, 2)) * norm**2
    e = np.finfo(float).eps
    yield f"gaussian.velocity, {kind}", worst(abs(rate - want), 256 * d * e * size_v * condition)
    T = 0.2 / (1 + size_v / norm)

    def flat(y: Any) -> Any:
        return reference_flows.covariance_rate(kind, y.reshape(d, d), Q, K, V).ravel()

    end, lipschitz = scipy_flow(flat, cov.ravel(), T)
    rtol = 1e-9
    for form in ("covariance", "pushforward"):
        sol = qk.gaussian.flow(
            kind,
            None,
            cov,
            (0, T),
            Q=Q,
            K=K,
            V=V,
            store="final",
            method="dopri5",
            form=form,
            rtol=rtol,
            atol=rtol,
        )
        # The law of the flow of maps P is P S P', so errors of P count twice, times the covariance.
        largest = max(1.0, norm, float(abs(end).max()))
        bound = int(np.max(sol.n_steps)) * 2 * rtol * largest * 2 * np.exp(2 * lipschitz * T)
        error = abs(sol.cov[-1].ravel() - end)
        yield f"gaussian.flow, {form}", worst(error, bound + 256 * d * e * largest * condition)


def _seen(x: Any, Q: Any, K: Any, heads: int) -> Any:
    """Which scores are positive, (heads, n, n)."""
    q, k = (np.split(x @ M.T, heads, axis=1) for M in (Q, K))
    return np.stack([a @ b.T > 0 for a, b in zip(q, k, strict=True)])


def particles(rng: Rng) -> Iterator[Found]:
    n, d, heads = int(rng.integers(1, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    kind = str(
        rng.choice(["softmax", "l2", "linear", "centred", "exp", "relu", "sigmoid", "sinkhorn"])
    )
    heads = 1 if kind == "sinkhorn" else heads
    dtype = np.dtype(np.float64) if kind == "sinkhorn" else dtype_of(rng)
    Q, K = (rng.normal(size=(heads * d, d)) / np.sqrt(d) for _ in range(2))
    V = rng.normal(size=(heads, d, d)) / np.sqrt(d)
    X = numbers(rng, (n, d), dtype, 1.0)
    x = np.array(X, np.float64)
    w = rng.random(n) + 0.1
    mask: Any = None
    if kind != "sinkhorn" and rng.random() < 0.5:
        mask = "causal" if rng.random() < 0.5 else np.round(rng.random(n), 1)
    epsilon = float(10.0 ** rng.uniform(-0.5, 1))
    options: dict[str, Any] = {"heads": heads, "mask": mask, "weights": w}
    if kind in ("sinkhorn", "centred"):
        options["epsilon"] = epsilon
    name = kind if kind != "centred" else "linear"
    if kind == "centred":
        options["centred"] = True
    field = qk.AttentionField(name, Q=Q, K=K, V=V, **options)

    masses = w.astype(Long) / w.astype(Long).sum()

    def coupling(y: Any) -> Any:
        y = y.astype(Long)
        z = -np.square((y @ Q.T)[:, None] - y @ K.T).sum(axis=2) / (2 * Long(epsilon))
        return doubly_normalised(z, masses)

    def exact(y: Any) -> Any:
        if kind == "sinkhorn":
            return (coupling(y) / masses[:, None] @ y @ V[0].T / epsilon).astype(float)
        return reference_particles.velocity(name, y, Q, K, V, **options)

    eps = float(np.finfo(dtype).eps)
    want = exact(x)
    top = float(abs(x).max())
    scores = float(np.linalg.norm(Q, 2) * np.linalg.norm(K, 2)) * d * top**2
    if kind == "l2":
        scores = (np.linalg.norm(Q, 2) + np.linalg.norm(K, 2)) ** 2 * d * top**2
    weight = {
        "exp": np.exp(scores),
        "linear": 1 + scores,
        "relu": 1 + scores,
        "centred": 2 + scores,
    }
    sizes = float(abs(V).sum()) * top * weight.get(kind, 1.0) * max(1.0, 1 / epsilon)
    # Scores have d^2 roundings, sums n; features are kept in double, results in the dtype.
    bound = 8 * eps * (n + d * d + 16) * (1 + scores) * sizes
    if kind == "sinkhorn":
        # L1 errors of the marginals up to the tolerance: weights off by twice that over the least one, as
        # in the family ``isb``, but for kernels that are not definite; the spectral gap comes in.
        flow = (coupling(x) / np.sqrt(masses)[:, None] / np.sqrt(masses)).astype(float)
        values = np.linalg.svd(flow, compute_uv=False)
        gap = 1 - (values[1] if n > 1 else 0.0)
        bound += 8e-10 * sizes * w.sum() / w.min() / max(gap, 1e-12)
    yield f"AttentionField, {kind}", worst(abs(field(X) - want), bound)
    if dtype == np.float32 or kind == "sinkhorn" or rng.random() < 0.7:  # loops are slow
        return
    T = 0.1 / (1 + sizes)
    end, lipschitz = scipy_flow(lambda y: exact(y.reshape(n, d)).ravel(), x.ravel(), T)
    rtol = 1e-9
    sol = qk.flow(field, x, (0.0, T), "dopri5", rtol=rtol, atol=rtol)
    largest = max(1.0, float(abs(end).max()))
    steps = sol.n_steps * 2 * rtol * np.sqrt(n * d) * largest * np.exp(lipschitz * T)
    if kind == "relu" and (_seen(x, Q, K, heads) != _seen(end.reshape(n, d), Q, K, heads)).any():
        # A score changes its sign during the flow, where the velocity has a kink. Error estimates of a step
        # assume smoothness, so only the bound for any method holds: the velocity changes by at most the
        # Lipschitz constant times the length of the path.
        steps += 2 * lipschitz * T * float(np.linalg.norm(end - x.ravel()))
    yield f"flow, {kind}", worst(abs(sol.x[-1].ravel() - end), steps + bound * T)


FAMILIES: tuple[Family, ...] = (
    isb,
    simplex_flows,
    mobilities,
    entropic_gaussians,
    gaussian_flows,
    particles,
)
