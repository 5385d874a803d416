"""Maximum entropy under moments (MTA-2, theorem 14) and moment projections (16, 17)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from qkcore import measure
from qkcore.measure import (
    AttentionKernel,
    DotPotential,
    ExponentialFamily,
    GaussianFamily,
    InfeasibleMomentsError,
    Measure,
    kl_divergence,
    maximum_entropy,
    moment_projection,
    softmatch,
)

from .reference import Array


def random_weights(rng: np.random.Generator, n: int) -> Array:
    w = rng.random(n) + 0.01
    out: Array = w / w.sum()
    return out


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 12), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10**6))
def test_softmatch_is_the_maximiser(n: int, l: int, m: int, seed: int) -> None:
    """MTA-2, theorem 14: moments met, and every other measure with them has less entropy."""
    rng = np.random.default_rng((seed, n, l, m))
    nu = random_weights(rng, n)
    k = rng.normal(size=(m, n, l)) * 10.0 ** rng.uniform(-3, 3, size=l)
    p = rng.random((m, n)) + 0.05
    p /= p.sum(axis=1, keepdims=True)
    f = np.einsum("mn,mnl->ml", p, k)  # moments that a positive measure has
    found = maximum_entropy(k, f, nu)
    assert found.converged.all()
    P = found.softmatch().to_numpy()
    scale = np.ptp(k, axis=1)
    np.testing.assert_allclose(np.einsum("mn,mnl->ml", P, k) / scale, f / scale, atol=1e-9)
    entropy = -(P * np.log(P / nu)).sum(axis=1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-8)
    for i in range(m):
        # Feasible directions: no change of mass or moments.
        constraints = np.vstack([np.ones(n), k[i].T / scale[i][:, None]])
        free = np.linalg.svd(constraints)[2][np.linalg.matrix_rank(constraints) :]
        for _ in range(5):
            if not len(free):
                break
            step = rng.normal(size=len(free)) @ free
            q = P[i] + rng.uniform(0.1, 0.9) * step * (P[i] / np.maximum(-step, 1e-12)).min()
            if (q > 0).all():
                other = -(q * np.log(q / nu)).sum()
                assert other <= entropy[i] + 1e-12
                # Pythagoras: the entropies differ by the divergence (the proof of theorem 14).
                gap = (q * np.log(q / P[i])).sum()
                np.testing.assert_allclose(entropy[i] - other, gap, atol=1e-7)


def test_lambda_of_attention_is_recovered() -> None:
    """MTA-2: the moments of dot-product attention give back its potential: lambda = beta x, k = y."""
    rng = np.random.default_rng(0)
    Y, X, w = rng.normal(size=(40, 3)), rng.normal(size=(6, 3)), random_weights(rng, 40)
    nu = Measure(Y, w)
    A = softmatch(DotPotential(0.8), X, nu)
    found = maximum_entropy(Y, A @ Y, nu)
    np.testing.assert_allclose(found.lam, 0.8 * X, atol=1e-7)
    np.testing.assert_allclose(found.softmatch().to_numpy(), A.to_numpy(), atol=1e-9)
    assert "6 converged" in str(found)


def test_dependent_features_and_zero_weights() -> None:
    """MTA-2: a repeated and a constant feature, points of weight 0: still solved."""
    rng = np.random.default_rng(1)
    k = rng.normal(size=(10, 1))
    features = np.hstack([k, 2 * k, np.ones((10, 1))])
    w = np.append(np.full(9, 1 / 9), 0.0)
    f = w @ features * np.array([0.9, 0.9, 1.0])
    found = maximum_entropy(features, f, w)
    P = found.softmatch().to_numpy()[0]
    assert P[9] == 0
    np.testing.assert_allclose(P @ features, f, atol=1e-9)
    # A target that contradicts the dependence has no solution.
    with pytest.raises(InfeasibleMomentsError, match=r"targets\[0\]"):
        maximum_entropy(features, f + np.array([0.0, 0.1, 0.0]), w)


def test_feasibility() -> None:
    """MTA-2: inside, outside and on the boundary of the convex hull, told apart in one batch."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    targets = np.array(
        [[0.5, 0.5], [1.2, 0.5], [0.5, 0.0], [1.0, 1.0], [0.999, 0.999], [1.0001, 0.5]]
    )
    found = maximum_entropy(corners, targets, on_infeasible="report")
    assert found.status.tolist() == [
        "converged", "infeasible", "boundary", "boundary", "converged", "infeasible",
    ]  # fmt: skip
    assert np.isnan(found.lam[1]).all() and found.entropy[1] == -math.inf
    assert found.errors[2] < 1e-8  # within tolerance, with a lambda on its way to infinity
    np.testing.assert_allclose(found.entropy[0], 0, atol=1e-12)
    with pytest.raises(InfeasibleMomentsError, match=r"2 of 6 outside.*targets\[1\]"):
        maximum_entropy(corners, targets)
    with pytest.raises(InfeasibleMomentsError, match="status"):
        found.softmatch()


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 10), st.integers(0, 10**6))
def test_feasibility_on_the_line(n: int, seed: int) -> None:
    """MTA-2: one feature: feasible exactly between its extremes."""
    rng = np.random.default_rng((seed, n))
    k = rng.normal(size=(n, 1))
    low, high = k.min(), k.max()
    t = rng.uniform(low - 0.5 * (high - low), high + 0.5 * (high - low))
    found = maximum_entropy(k, np.array([t]), on_infeasible="report")
    assert found.status[0] == ("converged" if low < t < high else "infeasible")


def test_bad_input() -> None:
    """MTA-2: shapes and values that cannot be."""
    k, f = np.ones((4, 2)), np.ones((3, 2))
    for call, pattern in (
        (lambda: maximum_entropy(np.ones(4), f), r"features.*\(n, l\)"),
        (lambda: maximum_entropy(k, np.ones((3, 1))), r"targets.*\(m, 2\)"),
        (lambda: maximum_entropy(np.ones((2, 4, 2)), f), r"targets.*\(2, 2\)"),
        (lambda: maximum_entropy(k, f, np.ones(4)), r"weights.*sum to 1"),
        (lambda: maximum_entropy(k, f, np.full(5, 0.2)), r"weights.*\(4,\)"),
        (lambda: maximum_entropy(k * np.nan, f), r"features.*NaN"),
        (lambda: maximum_entropy(k, f, on_infeasible="ignore"), r"on_infeasible.*report"),
        (lambda: maximum_entropy(k, f, tol=0.0), r"tol.*> 0"),
    ):
        with pytest.raises(ValueError, match=pattern):
            call()


def statistics(X: Array) -> Array:
    return np.hstack([X, X**2])


def test_projection_minimises_the_divergence() -> None:
    """MTA-2, proposition 16: the member with the moments of mu is nearest in KL(mu, .)."""
    rng = np.random.default_rng(3)
    base = Measure(np.linspace(-2, 2, 15)[:, None], random_weights(rng, 15))
    family = ExponentialFamily(base, statistics)
    mu = Measure(base.points, random_weights(rng, 15))
    found = moment_projection(mu, family)
    np.testing.assert_allclose(
        found.measure.expectation(statistics), mu.expectation(statistics), atol=1e-9
    )
    best = kl_divergence(mu, found.measure)

    def objective(theta: Array) -> float:
        return kl_divergence(mu, family.member(theta).measure)

    for _ in range(50):
        theta = found.theta + rng.normal(size=2)
        member = family.member(theta)
        # KL(mu, nu) - KL(mu, projection) = KL(projection, nu): the proof of proposition 16.
        excess = kl_divergence(mu, member.measure) - best
        np.testing.assert_allclose(excess, kl_divergence(found.measure, member.measure), atol=1e-9)
    numeric = minimize(
        objective, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12}
    )
    np.testing.assert_allclose(numeric.x, found.theta, atol=1e-3)
    np.testing.assert_allclose(family.member(found.theta).log_partition, found.log_partition)


def test_projection_inside_attention() -> None:
    """MTA-1: an attention kernel whose projection is an exponential family keeps its moments."""
    rng = np.random.default_rng(4)
    grid = Measure(np.linspace(-3, 3, 25)[:, None])
    family = ExponentialFamily(grid, statistics)
    X = rng.uniform(-2, 2, size=(5, 1))
    A = AttentionKernel(DotPotential(0.5), projection=family)
    mu = Measure(X)
    out = mu @ A(mu)
    P = softmatch(DotPotential(0.5), X, mu).to_numpy()
    np.testing.assert_allclose(
        out.expectation(statistics), (P @ statistics(X)).mean(axis=0), atol=1e-8
    )
    with pytest.raises(ValueError, match="convex hull"):
        Measure(10 * X) @ A(Measure(10 * X))


def test_dirac_projection_is_the_limit_of_gaussians() -> None:
    """MTA-2, proposition 17: the best N(x, sigma^2) for rho * mu is at the mean, and tends to it in W1."""
    mu = Measure(np.array([[-1.0], [0.5], [2.0]]), np.array([0.2, 0.5, 0.3]))
    for sigma in (1.0, 0.3, 0.05):
        rule = mu.smooth(sigma).quadrature(12)

        def cross_entropy(x: float, sigma: float = sigma, rule: Measure = rule) -> float:
            # KL(rho * mu, N(x, sigma^2)) up to terms that do not depend on x.
            log_density = -((rule.points[:, 0] - x) ** 2) / (2 * sigma**2)
            return -float(rule.weights @ log_density)

        xs = np.linspace(-1, 2, 3001)
        best = xs[np.argmin([cross_entropy(float(x)) for x in xs])]
        assert abs(best - mu.mean()[0]) <= 1e-3
        projected = moment_projection(mu, GaussianFamily(sigma))
        np.testing.assert_allclose(projected.mean, mu.mean())
        smooth = Measure.dirac(projected.mean).smooth(sigma)
        limit = moment_projection(mu)
        assert measure.w1(smooth.quadrature(20), limit) <= 1.03 * smooth.w1_bound


def test_gaussian_family_and_divergence() -> None:
    """MTA-2, remark 18 and erratum 12: mean and covariance; KL against mu, infinite off the support."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(50, 2))
    g = moment_projection(X, GaussianFamily())
    np.testing.assert_allclose(g.cov, np.cov(X.T, ddof=0), atol=1e-14)
    at = g.log_density(g.mean[None])[0]
    assert math.isclose(at, -0.5 * math.log(np.linalg.det(2 * math.pi * g.cov)))
    p, q = Measure(X[:3], np.array([0.5, 0.5, 0.0])), Measure(X[:3], np.array([0.25, 0.5, 0.25]))
    assert math.isclose(kl_divergence(p, q), 0.5 * math.log(2))
    assert kl_divergence(q, p) == math.inf
    # The integral against nu in the text is a different number, which can be negative.
    a, b = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    printed = float((b * np.log(a / b)).sum())
    right = kl_divergence(Measure(X[:2], a), Measure(X[:2], b))
    assert printed < -0.5 < 0.3 < right
