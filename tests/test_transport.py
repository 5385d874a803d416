"""Distances, divergences, barycentres and c-transforms, against closed forms and linear programmes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import qkcore as qk
from qkcore._linear_transport import least_cost

DTYPES = ("float32", "float64")


def clouds(seed: int, n: int = 12, m: int = 9, d: int = 2) -> tuple[Any, Any, Any, Any]:
    r = np.random.default_rng(seed)
    mu, nu = r.random(n) + 0.1, r.random(m) + 0.1
    return r.normal(size=(n, d)), r.normal(size=(m, d)) + 1, mu / mu.sum(), nu / nu.sum()


def naive_entropic(C: Any, mu: Any, nu: Any, epsilon: float, rho: float = np.inf) -> float:
    """The value of the (unbalanced) problem by plain Sinkhorn in the logarithm, from its own primal."""
    f, g = np.zeros(len(mu)), np.zeros(len(nu))
    damping = 1.0 if np.isinf(rho) else rho / (rho + epsilon)
    for _ in range(3000):
        f = -damping * epsilon * np.log(np.exp((g - C) / epsilon) @ nu)
        g = -damping * epsilon * np.log(mu @ np.exp((f[:, None] - C) / epsilon))
    P = mu[:, None] * nu * np.exp((f[:, None] + g - C) / epsilon)

    def kl(a: Any, b: Any) -> float:
        return float((a * np.log(a / b) - a + b).sum())

    value = float((P * C).sum()) + epsilon * kl(P, mu[:, None] * nu)
    if np.isfinite(rho):
        value += rho * (kl(P.sum(axis=1), mu) + kl(P.sum(axis=0), nu))
    return value


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("penalty", [None, 0.7])
def test_divergence_against_the_definition(p: float, penalty: float | None) -> None:
    X, Y, mu, nu = clouds(1)
    if penalty is not None:
        mu, nu = 2 * mu, 0.5 * nu
    epsilon, rho = 0.5, np.inf if penalty is None else penalty

    def cost(a: Any, b: Any) -> Any:
        return np.linalg.norm(a[:, None] - b, axis=2) ** p

    wanted = (
        naive_entropic(cost(X, Y), mu, nu, epsilon, rho)
        - 0.5 * naive_entropic(cost(X, X), mu, mu, epsilon, rho)
        - 0.5 * naive_entropic(cost(Y, Y), nu, nu, epsilon, rho)
        + (0 if penalty is None else 0.5 * epsilon * (mu.sum() - nu.sum()) ** 2)
    )
    found = qk.sinkhorn_divergence(X, Y, mu, nu, epsilon=epsilon, p=p, penalty=penalty)
    assert found == pytest.approx(wanted, rel=1e-7)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.5, 5.0]), st.sampled_from(DTYPES))
def test_laws_of_the_divergence(seed: int, epsilon: float, dtype: str) -> None:
    """0 for equal laws, positive for others, symmetric, not changed by motions."""
    X, Y, mu, nu = (a.astype(dtype) for a in clouds(seed, 7, 6))
    tol = 1e-6 if dtype == "float64" else 2e-3

    def S(a: Any, b: Any, wa: Any, wb: Any) -> float:
        return qk.sinkhorn_divergence(a, b, wa, wb, epsilon=epsilon)

    value = S(X, Y, mu, nu)
    assert value > 0
    order = np.random.default_rng(seed).permutation(7)
    assert S(X, X[order].copy(), mu, mu[order].copy()) == pytest.approx(0, abs=tol)
    assert S(Y, X, nu, mu) == pytest.approx(value, abs=tol)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]], dtype)
    assert S(X @ turn + 1, Y @ turn + 1, mu, nu) == pytest.approx(value, abs=10 * tol)


def test_limits_of_the_divergence() -> None:
    X, Y, mu, nu = clouds(3)
    far = qk.sinkhorn_divergence(X, Y, mu, nu, epsilon=1e6)
    assert far == pytest.approx(float(np.square(mu @ X - nu @ Y).sum()), rel=1e-3)
    C = np.square(X[:, None] - Y).sum(axis=2)
    near = qk.sinkhorn_divergence(X, Y, mu, nu, epsilon=1e-3, tol=1e-8)
    assert near == pytest.approx(least_cost(C, mu, nu), rel=5e-3)
    point = np.zeros((1, 2))
    assert qk.sinkhorn_divergence(point, point + 3, epsilon=1.0) == pytest.approx(18)


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0])
def test_entropic_estimates_of_any_power(p: float) -> None:
    X, Y, _, _ = clouds(4, 30, 30)
    exact = qk.wasserstein(X, Y, p=p)
    assert qk.wasserstein(X, Y, p=p, method="sinkhorn") == pytest.approx(exact, rel=0.05)


def test_arguments_of_the_divergence() -> None:
    X, Y, mu, _ = clouds(5)
    with pytest.raises(ValueError, match=r"epsilon: wanted a finite number > 0"):
        qk.sinkhorn_divergence(X, Y, epsilon=0)
    with pytest.raises(ValueError, match=r"Y: wanted points in 2 dimensions as X"):
        qk.sinkhorn_divergence(X, Y[:, :1], epsilon=1.0)
    with pytest.raises(ValueError, match=r"p: wanted a number > 0"):
        qk.sinkhorn_divergence(X, Y, epsilon=1.0, p=-1)
    with pytest.raises(ValueError, match="weights_y"):
        qk.sinkhorn_divergence(X, Y, mu, mu, epsilon=1.0)


# ---- c-transforms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_c_transforms(dtype: str) -> None:
    """The definition; three in a row are one; two of them bound the transport cost from below, sharply."""
    X, Y, mu, nu = (a.astype(dtype) for a in clouds(6))
    C = np.square(X[:, None] - Y).sum(axis=2)
    s = qk.scores.distance(X, Y)
    g = np.random.default_rng(0).normal(size=9).astype(dtype)
    f = qk.c_transform(s, g)
    np.testing.assert_allclose(f, (C - g).min(axis=1), atol=1e-5)
    back = qk.c_transform(s, f, 0)
    np.testing.assert_allclose(back, (C - f[:, None]).min(axis=0), atol=1e-5)
    np.testing.assert_allclose(qk.c_transform(s, back), f, atol=1e-5)
    least = least_cost(*(a.astype(np.float64) for a in (C, mu, nu)))
    assert float(f @ mu + back @ nu) <= least + 1e-5
    assert qk.c_transform(s.masked(np.zeros((12, 9), bool))).tolist() == [np.inf] * 12
    np.testing.assert_allclose(s.max(0), -C.min(axis=0), atol=1e-5)


# ---- barycentres ------------------------------------------------------------------------------------


def gaussian(x: Any, mean: float, deviation: float) -> Any:
    q = np.exp(-0.5 * ((x - mean) / deviation) ** 2)
    return q / q.sum()


def test_barycentres_of_gaussians_on_a_line() -> None:
    """Means and deviations are averaged; the plain barycentre is wider, by epsilon/2 in variance."""
    x = np.linspace(-6, 6, 241)
    laws = np.stack([gaussian(x, -1.5, 0.5), gaussian(x, 1.0, 1.0)])
    shares, epsilon = np.array([0.4, 0.6]), 0.1
    s = qk.scores.distance(x[:, None], beta=1 / epsilon)
    found = qk.barycenter(s, laws, shares)
    q = found.weights
    mean = float(q @ x)
    assert found.converged and mean == pytest.approx(shares @ [-1.5, 1.0], abs=1e-3)
    assert np.sqrt(q @ (x - mean) ** 2) == pytest.approx(shares @ [0.5, 1.0], abs=5e-3)
    plain = qk.barycenter(s, laws, shares, debiased=False).weights
    wider = float(plain @ (x - plain @ x) ** 2) - float(q @ (x - mean) ** 2)
    assert 0.01 < wider < epsilon


@pytest.mark.parametrize("dtype", DTYPES)
def test_barycentre_against_the_programme(dtype: str) -> None:
    """At low temperature the value is that of the linear programme over q and all couplings."""
    r = np.random.default_rng(2)
    n = 6
    x = np.sort(r.random(n))
    C = np.abs(x[:, None] - x) ** 2
    laws = r.random((3, n))
    laws /= laws.sum(axis=1, keepdims=True)
    rows = []
    limits = []
    size = n + 3 * n * n
    for k in range(3):
        for i in range(n):
            row = np.zeros(size)
            row[n + k * n * n + i * n : n + k * n * n + (i + 1) * n] = 1
            rows.append(row)
            limits.append(laws[k, i])
            column = np.zeros(size)
            column[n + k * n * n + i : n + (k + 1) * n * n : n] = 1
            column[i] = -1
            rows.append(column)
            limits.append(0)
    least = linprog(np.concatenate([np.zeros(n), *[C.ravel() / 3] * 3]), A_eq=rows, b_eq=limits).fun
    s = qk.scores.dense((-C / 1e-3).astype(dtype))
    q = qk.barycenter(s, laws, tol=1e-3, max_iter=20_000).weights.astype(float)
    value = sum(least_cost(C, law, q / q.sum()) for law in laws) / 3
    assert value <= least + 2e-3 and value >= least - 1e-9


def test_barycentre_of_one_law_is_the_law() -> None:
    r = np.random.default_rng(1)
    X, law = r.normal(size=(20, 2)), r.random(20)
    found = qk.barycenter(qk.scores.distance(X, beta=30.0), law[None], tol=1e-8)
    np.testing.assert_allclose(found.weights, law / law.sum(), atol=1e-6)


def test_free_barycentres() -> None:
    """Of a cloud and its translate the middle one; of points their mean."""
    X, _, _, _ = clouds(8, 25)
    found = qk.free_barycenter([X, X + np.array([4.0, 0.0])], X, [0.25, 0.75], epsilon=1e-3)
    assert found.converged
    np.testing.assert_allclose(found.points, X + np.array([3.0, 0.0]), atol=0.05)
    points = [np.array([[0.0, 0.0]]), np.array([[3.0, 6.0]]), np.array([[0.0, 3.0]])]
    found = qk.free_barycenter(points, X, epsilon=0.1)
    np.testing.assert_allclose(found.points, np.broadcast_to([1.0, 3.0], (25, 2)), atol=1e-12)


def test_barycentres_that_end_early_say_so() -> None:
    x = np.linspace(0, 1, 20)[:, None]
    laws = np.random.default_rng(0).random((2, 20))
    s = qk.scores.distance(x, beta=500.0)
    with pytest.warns(
        qk.ConvergenceWarning, match="barycenter: iteration limit after 3 iterations"
    ):
        assert not qk.barycenter(s, laws, max_iter=3).converged
    with pytest.raises(qk.ConvergenceError, match="barycenter"):
        qk.barycenter(s, laws, max_iter=3, on_fail="raise")
    with pytest.raises(ValueError, match=r"s: wanted symmetric scores"):
        qk.barycenter(qk.scores.dot(x, x**2), laws)
    with pytest.raises(ValueError, match=r"laws: wanted shape \(K, 20\)"):
        qk.barycenter(s, laws[:, :3])
    with pytest.raises(ValueError, match=r"shares: wanted shape \(2,\) with one for each law"):
        qk.barycenter(s, laws, [1.0])
    with pytest.raises(ValueError, match=r"clouds\[1\]: wanted dimension 1"):
        qk.free_barycenter([x, np.zeros((3, 2))], x, epsilon=1.0)
