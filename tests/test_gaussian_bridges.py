"""Entropic transport between Gaussians (TPDE-4, A.3), against the bridge solver, quadrature and laws."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import qkcore as qk
from qkcore.gaussian import bures, entropic_bures, entropic_ot

from .reference_gaussian import Array, root


def random_cov(rng: np.random.Generator, d: int, rank: int | None = None) -> Array:
    X = rng.normal(size=(d, d if rank is None else rank))
    return X @ X.T / d


def grid(mean: float, sd: float, n: int) -> tuple[Array, Array]:
    """A fine grid with the weights of N(mean, sd^2), a trapezoidal rule: exact to rounding here."""
    x = np.linspace(mean - 8 * sd, mean + 8 * sd, n)
    w = np.exp(-0.5 * ((x - mean) / sd) ** 2)
    return x, w / w.sum()


# ---- the discrete solver on a fine grid ------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.03, 0.1, 0.5, 2.0, 20.0])
@pytest.mark.parametrize(("q", "k"), [(1.0, 1.0), (0.7, -1.3)])
def test_bridge_on_a_line(epsilon: float, q: float, k: float) -> None:
    """DAC-7, TPDE-4: qk.bridge between Gaussians on a grid is the closed form, ε from 0.03 to 20."""
    (mx, sx), (my, sy) = (0.4, 0.8), (-0.3, 1.3)
    x, mu = grid(mx, sx, 400)
    y, nu = grid(my, sy, 401)
    cost = (q * x[:, None] - k * y) ** 2 / (2 * epsilon)
    b = qk.bridge(qk.scores.dense(-cost), mu, nu, tol=1e-13, max_iter=200_000)
    plan = entropic_ot(
        np.array([mx]), sx**2 * np.eye(1), np.array([my]), sy**2 * np.eye(1), epsilon=epsilon,
        Q=q * np.eye(1), K=k * np.eye(1),
    )  # fmt: skip
    P = b.plan()
    cross = (x - mx) @ P @ (y - my)
    assert cross == pytest.approx(plan.cross[0, 0], abs=1e-8)
    # E[y | x] where there is mass
    near = mu > 1e-6
    np.testing.assert_allclose(b.project(y[:, None])[near], plan.project(x[near, None]), atol=1e-6)
    value = math.fsum((P * cost).ravel()) + math.fsum(
        (P * (np.log(np.maximum(P, 1e-300)) - np.log(mu)[:, None] - np.log(nu))).ravel()
    )
    assert value == pytest.approx(plan.value, abs=1e-8)
    assert math.fsum((P * cost).ravel()) == pytest.approx(plan.cost, abs=1e-8)
    # potentials: P = exp(f + g - c) mu nu, both with the gauge sum nu g = 0
    f, g = b.f - np.log(mu), b.g - np.log(nu)
    g_mean = float(nu @ g)
    near_y = nu > 1e-8
    np.testing.assert_allclose((g - g_mean)[near_y], plan.g(y[:, None])[near_y], atol=1e-5)
    np.testing.assert_allclose((f + g_mean)[mu > 1e-8], plan.f(x[:, None])[mu > 1e-8], atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.4, 2.0])
def test_bridge_in_the_plane(epsilon: float) -> None:
    """DAC-7, TPDE-4: two dimensions, correlated laws, matrices Q and K that are not symmetric."""
    rng = np.random.default_rng(0)
    Q, K = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    covs = [random_cov(rng, 2) + 0.3 * np.eye(2) for _ in range(2)]
    means = [np.array([0.3, -0.2]), np.array([-0.5, 0.1])]
    points, weights = [], []
    line = np.linspace(-6.3, 6.3, 32)
    standard = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    w = np.exp(-0.5 * (standard**2).sum(1))
    for mean, cov in zip(means, covs, strict=True):
        points.append(mean + standard @ np.linalg.cholesky(cov).T)
        weights.append(w / w.sum())
    X, Y = points
    scores = qk.scores.distance(X @ Q.T, Y @ K.T, beta=1 / (2 * epsilon))
    b = qk.bridge(scores, *weights, tol=1e-12, max_iter=100_000)
    plan = entropic_ot(means[0], covs[0], means[1], covs[1], epsilon=epsilon, Q=Q, K=K)
    cross = (X - means[0]).T @ b.plan() @ (Y - means[1])
    np.testing.assert_allclose(cross, plan.cross, atol=1e-6)
    assert b.cost == pytest.approx(plan.cost, abs=1e-6)


# ---- the problem itself ----------------------------------------------------------------------------------


def objective(
    cov_x: Array, cov_y: Array, cross: Array, Q: Array, K: Array, epsilon: float
) -> float:
    """Cost + KL of the centred Gaussian coupling with this cross covariance."""
    joint = np.block([[cov_x, cross], [cross.T, cov_y]])
    moved = np.hstack([Q, -K])
    cost = np.trace(moved @ joint @ moved.T) / (2 * epsilon)
    logs = [np.linalg.slogdet(S)[1] for S in (cov_x, cov_y, joint)]
    return float(cost + 0.5 * (logs[0] + logs[1] - logs[2]))


@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 4),
    e=st.integers(1, 4),
    epsilon=st.floats(0.05, 20),
)
def test_the_plan_is_optimal(seed: int, d: int, e: int, epsilon: float) -> None:
    """TPDE-4, eq A.5: no other Gaussian coupling does better; cost, KL and value are those of the plan."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 4))
    Q, K = rng.normal(size=(k, d)), rng.normal(size=(k, e))
    cov_x, cov_y = random_cov(rng, d) + 0.1 * np.eye(d), random_cov(rng, e) + 0.1 * np.eye(e)
    plan = entropic_ot(None, cov_x, None, cov_y, epsilon=epsilon, Q=Q, K=K)
    best = objective(cov_x, cov_y, plan.cross, Q, K, epsilon)
    assert plan.value == pytest.approx(best, rel=1e-7, abs=1e-8)
    assert plan.value == pytest.approx(plan.cost + plan.kl, rel=1e-12)
    for _ in range(5):
        other = plan.cross + 1e-3 * rng.normal(size=(d, e))
        if np.linalg.eigvalsh(np.block([[cov_x, other], [other.T, cov_y]]))[0] > 0:
            assert objective(cov_x, cov_y, other, Q, K, epsilon) >= best - 1e-10
    # A.10-A.12: cov^-1 of the coupling is [[F, -A'], [-A, G]] / epsilon
    precision = np.linalg.inv(plan.cov)
    np.testing.assert_allclose(
        precision[d:, :d], -K.T @ Q / epsilon, atol=1e-5 * np.abs(precision).max()
    )


def test_theorem_a3_where_it_applies() -> None:
    """TPDE-4: A^-1 C' with C = Ω^1/2 (Ω^1/2 AΣA' Ω^1/2 + ε²/4)^1/2 Ω^-1/2 - ε/2."""
    rng = np.random.default_rng(1)
    for epsilon in (0.1, 1.0, 10.0):
        Q, K = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
        S, O = random_cov(rng, 3) + 0.2 * np.eye(3), random_cov(rng, 3) + 0.2 * np.eye(3)
        A, half = K.T @ Q, root(O)
        C = (
            half
            @ root(half @ A @ S @ A.T @ half + epsilon**2 / 4 * np.eye(3))
            @ np.linalg.inv(half)
        )
        C = C - epsilon / 2 * np.eye(3)
        plan = entropic_ot(None, S, None, O, epsilon=epsilon, Q=Q, K=K)
        np.testing.assert_allclose(plan.cross, np.linalg.inv(A) @ C.T, atol=1e-9)


@given(seed=st.integers(0, 10**6), rank=st.integers(0, 2), epsilon=st.floats(0.05, 5))
def test_potentials(seed: int, rank: int, epsilon: float) -> None:
    """TPDE-4, eqs A.2, A.6: f is the soft transform of g, for singular laws too; gauge and dual value."""
    rng = np.random.default_rng(seed)
    d = 2
    Q, K = rng.normal(size=(d, d)), rng.normal(size=(d, d))
    S, O = random_cov(rng, d) + 0.1 * np.eye(d), random_cov(rng, d, rank)
    a, b = rng.normal(size=(2, d))
    plan = entropic_ot(a, S, b, O, epsilon=epsilon, Q=Q, K=K)
    # y = b + R eta: -log E exp(g - c) is a Gaussian integral in eta, here from g's own coefficients.
    R = root(O)
    for x in rng.normal(size=(3, d)):
        m = Q @ x - K @ b
        # g(b + R eta) - |m - K R eta|^2 / 2 eps = const + l.eta - eta' H eta / 2
        H = R @ (plan.g.matrix + K.T @ K / epsilon) @ R
        l = R @ (plan.g.linear + K.T @ m / epsilon)
        const = plan.g.constant - m @ m / (2 * epsilon)
        inner = np.eye(d) + H
        assert np.linalg.eigvalsh(0.5 * (inner + inner.T))[0] > 0
        log_mean = const + 0.5 * l @ np.linalg.solve(inner, l) - 0.5 * np.linalg.slogdet(inner)[1]
        assert plan.f(x) == pytest.approx(-log_mean, rel=1e-7, abs=1e-7)
    # the gauge, and the equality with the dual value
    g_mean = plan.g.constant - 0.5 * np.trace(plan.g.matrix @ O)
    f_mean = plan.f.constant - 0.5 * np.trace(plan.f.matrix @ S)
    assert g_mean == pytest.approx(0, abs=1e-9)
    assert f_mean == pytest.approx(plan.value, rel=1e-8, abs=1e-8)


def test_singular_scores_are_the_limit_of_regular_ones() -> None:
    """TPDE-4: rank-deficient A = K'Q, where theorem A.3 cannot be evaluated."""
    rng = np.random.default_rng(2)
    S, O = random_cov(rng, 3) + 0.1 * np.eye(3), random_cov(rng, 3) + 0.1 * np.eye(3)
    Q, K = rng.normal(size=(1, 3)), rng.normal(size=(1, 3))
    plan = entropic_ot(None, S, None, O, Q=Q, K=K)
    assert np.linalg.matrix_rank(plan.cross, tol=1e-10) == 1
    extra = 1e-4 * np.eye(3)
    near = entropic_ot(None, S, None, O, Q=np.vstack([Q, extra]), K=np.vstack([K, extra]))
    np.testing.assert_allclose(near.cross, plan.cross, atol=1e-6)
    independent = entropic_ot(np.ones(3), S, None, O, Q=0 * Q, K=K)
    assert np.abs(independent.cross).max() == 0 and independent.kl == 0


def test_limits_in_epsilon() -> None:
    """TPDE-4: ε to 0 gives optimal transport (Bures), ε to infinity independence."""
    rng = np.random.default_rng(3)
    S, O = random_cov(rng, 4) + 0.1 * np.eye(4), random_cov(rng, 4) + 0.1 * np.eye(4)
    half = root(S)
    direct = np.trace(S + O - 2 * root(half @ O @ half))
    assert float(bures(S, O)) == pytest.approx(direct, rel=1e-10)
    gaps = [abs(entropic_bures(S, O, epsilon=e) - direct) for e in (1e-2, 1e-4, 1e-6)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 1e-3
    plan = entropic_ot(None, S, None, O, epsilon=1e-9)
    mapped = np.linalg.inv(half) @ root(half @ O @ half) @ np.linalg.inv(half)
    np.testing.assert_allclose(plan.regression, mapped, atol=1e-6)
    far = entropic_ot(None, S, None, O, epsilon=1e9)
    assert np.abs(far.cross).max() < 1e-6 and far.kl < 1e-12
    assert float(bures(S, S)) == pytest.approx(0, abs=1e-12)
    assert float(bures(np.zeros((2, 2)), np.eye(2))) == 2


def test_batches_are_loops() -> None:
    rng = np.random.default_rng(4)
    covs = np.stack([random_cov(rng, 2) for _ in range(6)]).reshape(2, 3, 2, 2)
    means = rng.normal(size=(3, 2))
    Q, K = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    both = entropic_ot(means, covs, None, np.eye(2), Q=Q, K=K, epsilon=0.5)
    assert both.value.shape == (2, 3) and both.cov.shape == (2, 3, 4, 4)
    for i, j in ((0, 0), (1, 2)):
        one = entropic_ot(means[j], covs[i, j], None, np.eye(2), Q=Q, K=K, epsilon=0.5)
        assert both.value[i, j] == pytest.approx(one.value, rel=1e-12)
        np.testing.assert_allclose(both.cross[i, j], one.cross, atol=1e-12)
        np.testing.assert_allclose(both.f(np.ones(2))[i, j], one.f(np.ones(2)), atol=1e-10)
    assert "6 entropic plans" in str(both)
    assert "value" in str(entropic_ot(None, np.eye(2), None, np.eye(2)))


I2 = np.eye(2)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cov_x": -I2}, ValueError, "cov_x: wanted positive semidefinite"),
    ({"cov_y": np.array([[1.0, 1.0], [0.0, 1.0]])}, ValueError, "cov_y: wanted symmetric"),
    ({"cov_y": np.ones(2)}, ValueError, "cov_y: wanted covariances of shape"),
    ({"mean_x": np.zeros(3)}, ValueError, r"mean_x: wanted shape \(..., 2\)"),
    ({"mean_y": np.array([0.0, np.nan])}, ValueError, "mean_y: wanted finite"),
    ({"epsilon": 0}, ValueError, "epsilon: wanted a finite number > 0"),
    ({"Q": np.eye(3), "K": np.eye(3)}, ValueError, r"Q: wanted shape \(k, 2\)"),
    ({"Q": np.ones((1, 2)), "K": I2}, ValueError, "K: wanted as many rows as Q"),
    ({"cov_y": np.eye(3)}, ValueError, "Q, K: wanted matrices"),
]


@pytest.mark.parametrize(("change", "error", "match"), BAD)
def test_bad_input(change: dict[str, Any], error: type[Exception], match: str) -> None:
    good: dict[str, Any] = {"mean_x": None, "cov_x": I2, "mean_y": None, "cov_y": I2}
    with pytest.raises(error, match=match):
        entropic_ot(**{**good, **change})
