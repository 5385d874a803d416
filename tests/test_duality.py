"""Fokker-Planck duality (EOT-7) and weak error (EOT-9) against laws known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkcore.diagnostics import duality

from .reference_diagnostics import Array, euler_maruyama_moments, ou_moments

A = np.array([[-1.0, 0.6], [-0.4, -0.5]])
SIGMA = np.array([[0.9, 0.0], [0.5, 0.4]])
M0 = np.array([1.0, -0.5])
C0 = np.array([[0.5, 0.1], [0.1, 0.3]])


def linear(x: Array, t: float) -> Array:
    return np.asarray(x @ A.T)


def exact_score(a: Array) -> Any:
    def score(x: Array, t: float) -> Array:
        m, C = ou_moments(A, a, M0, C0, t)
        return np.asarray(-np.linalg.solve(C, (x - m).T).T)

    return score


TENSORS = {
    "scalar": (0.7, 0.7 * np.eye(2)),
    "diagonal": (np.array([0.2, 1.1]), np.diag([0.2, 1.1])),
    "full": (SIGMA @ SIGMA.T, SIGMA @ SIGMA.T),
    "singular": (np.diag([0.8, 0.0]), np.diag([0.8, 0.0])),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_probability_flow_carries_the_gaussian_exactly(kind: str) -> None:
    """EOT-7: the flow of an anisotropic OU process is affine: three points give its covariance."""
    a, full = TENSORS[kind]
    u = duality.velocity(linear, a, exact_score(full))
    start = np.vstack([M0, M0 + np.linalg.cholesky(C0).T])
    path = duality.sample_ode(u, start, (0.0, 1.5), n_steps=300, n_saved=4)
    assert path.x.shape == (4, 3, 2)
    for t, x in zip(path.t, path.x, strict=True):
        m, C = ou_moments(A, full, M0, C0, float(t))
        np.testing.assert_allclose(x[0], m, atol=1e-9)
        root = (x[1:] - x[0]).T
        np.testing.assert_allclose(root @ root.T, C, atol=1e-9)


def test_orders_of_the_ode_methods() -> None:
    u = duality.velocity(linear, SIGMA @ SIGMA.T, exact_score(SIGMA @ SIGMA.T))
    start = np.vstack([M0, M0 + 1.0])
    fine = duality.sample_ode(u, start, n_steps=2000).x[-1]
    for method, order in (("euler", 1), ("heun", 2), ("rk4", 4)):
        errors = [
            np.abs(duality.sample_ode(u, start, n_steps=n, method=method).x[-1] - fine).max()
            for n in (10, 20)
        ]
        assert abs(np.log2(errors[0] / errors[1]) - order) < 0.35, method


def test_euler_maruyama_has_its_own_known_law() -> None:
    """EOT-7: mean and covariance of the scheme itself, by their recursion, within five standard errors."""
    n = 40_000
    rng = np.random.default_rng(0)
    x0 = rng.multivariate_normal(M0, C0, size=n)
    for a, full in (TENSORS["full"], TENSORS["diagonal"], TENSORS["singular"]):
        path = duality.sample_sde(linear, a, x0, (0.0, 1.0), n_steps=8, n_saved=2, rng=1)
        m, C = euler_maruyama_moments(A, full, M0, C0, 1.0, 8)
        x = path.x[-1]
        assert np.abs(x.mean(axis=0) - m).max() < 5 * np.sqrt(C.max() / n)
        found = np.cov(x.T)
        spread = np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / n)
        assert (np.abs(found - C) < 5 * spread).all()


def test_both_flows_have_the_same_marginals() -> None:
    """EOT-7, figure 2a: parity of SDE and ODE, anisotropic; a wrong tensor is found out."""
    full = SIGMA @ SIGMA.T
    x0 = np.random.default_rng(2).multivariate_normal(M0, C0, size=6000)
    sde = duality.sample_sde(linear, full, x0, n_steps=200, n_saved=5, rng=3)
    u = duality.velocity(linear, full, exact_score(full))
    ode = duality.sample_ode(u, x0[::-1].copy(), n_steps=100, n_saved=5)
    same = duality.parity(sde, ode)
    assert same.agree
    assert same.tv.mean() < 1.1 * same.tv_chance.mean()
    assert "no difference" in str(same)
    wrong = duality.velocity(linear, 0.2 * full, exact_score(full))
    other = duality.parity(sde, duality.sample_ode(wrong, x0, n_steps=100, n_saved=5))
    assert not other.agree
    assert other.tv[-1].max() > 1.5 * other.tv_chance[-1].max()


def test_noise_on_top_of_the_flow_is_not_the_reverse_sde() -> None:
    """Erratum (EOT 4.5): dX = u dt + sigma dW spreads an OU law at equilibrium: variance 1 + 2t."""
    x0 = np.random.default_rng(4).normal(size=(40_000, 1))
    u = duality.velocity(lambda x, t: -x, 2.0, lambda x, t: -x)
    printed = duality.sample_sde(u, 2.0, x0, n_steps=50, n_saved=2, rng=5).x[-1].var()
    assert abs(printed - 3) < 0.12
    back = duality.reverse_drift(lambda x, t: -x, 2.0, lambda x, t: -x)
    right = duality.sample_sde(back, 2.0, x0, (1.0, 0.0), n_steps=400, n_saved=2, rng=5).x[-1].var()
    assert abs(right - 1) < 0.05


# Geometric Brownian motion: a = s^2 x^2 in one dimension, B diag(s^2 y^2) B^T after a linear map B.
MU, S = 0.3, 0.5
B = np.array([[1.0, 0.4], [-0.3, 1.2]])
B_INVERSE = np.linalg.inv(B)


def lognormal_score(y: Array, t: float) -> Array:
    m, v = (MU - S**2 / 2) * t, S**2 * t
    return np.asarray(-1 / y - (np.log(y) - m) / (v * y))


def gbm_drift(x: Array, t: float) -> Array:
    return np.asarray(MU * x)  # B commutes with a multiple of the identity


def gbm_tensor(x: Array, t: float) -> Array:
    y = x @ B_INVERSE.T
    return np.asarray(np.einsum("ij,nj,kj->nik", B, (S * y) ** 2, B))


def gbm_divergence(x: Array, t: float) -> Array:
    y = x @ B_INVERSE.T  # (div a)_i = sum_j d a_ij / dx_j = sum_l B_il 2 s^2 y_l
    return np.asarray((2 * S**2 * y) @ B.T)


def gbm_score(x: Array, t: float) -> Array:
    return np.asarray(lognormal_score(x @ B_INVERSE.T, t) @ B_INVERSE)


@pytest.mark.parametrize("given", [True, False])
def test_state_dependent_tensor_needs_its_divergence(given: bool) -> None:
    """EOT-7: a full tensor that varies; the flow follows the quantiles, without div a it does not."""
    y0 = np.exp([[0.0, 0.3], [-0.2, 0.1], [0.5, -0.4]])
    t0, t1 = 0.5, 1.5

    def transported(y: Array) -> Array:
        drift = MU - S**2 / 2
        return np.asarray(np.exp(drift * t1 + np.sqrt(t1 / t0) * (np.log(y) - drift * t0)))

    u = duality.velocity(
        gbm_drift, gbm_tensor, gbm_score, divergence=gbm_divergence if given else None
    )
    got = duality.sample_ode(u, y0 @ B.T, (t0, t1), n_steps=200).x[-1] @ B_INVERSE.T
    np.testing.assert_allclose(got, transported(y0), rtol=1e-8)
    without = duality.velocity(
        gbm_drift, gbm_tensor, gbm_score, divergence=lambda x, t: np.zeros_like(x)
    )
    got = duality.sample_ode(without, y0 @ B.T, (t0, t1), n_steps=200).x[-1] @ B_INVERSE.T
    assert np.abs(got / transported(y0) - 1).min() > 0.1


@pytest.mark.parametrize("shape", ["scalar", "diagonal"])
def test_divergence_of_the_smaller_forms(shape: str) -> None:
    x = np.random.default_rng(6).normal(size=(5, 3))

    def a(x: Array, t: float) -> Array:
        return np.asarray(1 + (x**2).sum(axis=1) if shape == "scalar" else 1 + x**2)

    T = duality.DiffusionTensor(a, 3)
    np.testing.assert_allclose(T.divergence(x, 0.0), 2 * x, atol=1e-8)


def test_step_doubling_has_order_one() -> None:
    """EOT-9: the doubling error of E|x|^2 against the scheme's own moments; slope 1 and interval."""
    full = SIGMA @ SIGMA.T
    x0 = np.random.default_rng(7).multivariate_normal(M0, C0, size=20_000)
    found = duality.step_doubling(linear, full, x0, n_steps=(8, 16, 32, 64), rng=8)

    def second_moment(n: int) -> float:
        m, C = euler_maruyama_moments(A, full, M0, C0, 1.0, n)
        return float(m @ m + np.trace(C))

    exact = [abs(second_moment(K) - second_moment(2 * K)) for K in (8, 16, 32, 64)]
    assert (np.abs(found.errors - exact) < 5 * found.standard_errors).all()
    fit = found.slope()
    low, high = fit.interval or (np.nan, np.nan)
    truth = duality.weak_error_slope(found.h, exact).slope
    assert abs(truth - 1) < 0.15
    assert low < truth < high
    assert "step doubling" in str(found) and "BCa" in str(fit)


@pytest.mark.parametrize("order", [1.0, 2.0, -1.0])
def test_slopes_of_exact_power_laws(order: float) -> None:
    h = np.array([0.4, 0.2, 0.1, 0.05])
    fit = duality.weak_error_slope(h, 3 * h**order)
    assert abs(float(fit) - order) < 1e-12
    assert abs(np.exp(fit.intercept) - 3) < 1e-10
    # With nothing to resample, the interval is None and a note says why.
    assert fit.interval is None and "line" in fit.note


def test_interval_covers_and_is_repeatable() -> None:
    """EOT-9: BCa intervals of noisy power laws contain the order about as often as they say."""
    rng = np.random.default_rng(9)
    h = np.geomspace(1, 0.01, 12)
    hits = 0
    for _ in range(40):
        errors = 0.3 * h * np.exp(0.2 * rng.normal(size=h.size))
        fit = duality.weak_error_slope(h, errors, n_resamples=300)
        low, high = fit.interval or (np.nan, np.nan)
        hits += low < 1 < high
        assert duality.weak_error_slope(h, errors, n_resamples=300).interval == fit.interval
    assert hits >= 30
    for method in ("percentile", "basic"):
        low, high = duality.weak_error_slope(
            h, errors, method=method, n_resamples=200
        ).interval or (2, 0)
        assert low < high


def test_few_points_give_a_slope_and_say_why_there_is_no_interval() -> None:
    fit = duality.weak_error_slope([1.0, 0.5], [1.0, 0.5])
    assert fit.slope == pytest.approx(1) and fit.interval is None
    assert "too few" in str(fit)
    three = duality.weak_error_slope([1.0, 0.5, 0.25], [1.0, 0.6, 0.2])
    assert three.interval is not None and np.isfinite(three.interval).all()


def constant(x: Array, t: float) -> Array:
    return np.zeros_like(x)


X = np.zeros((4, 2))
ERRORS: list[tuple[str, Any, type[Exception], str]] = [
    ("shape", lambda: duality.sample_sde(constant, 1.0, np.zeros(3)), ValueError, r"x0.*\(n, d\)"),
    ("nan", lambda: duality.sample_sde(constant, 1.0, X * np.nan), ValueError, "x0.*finite"),
    ("steps", lambda: duality.sample_sde(constant, 1.0, X, n_steps=0), ValueError, "n_steps.*1"),
    ("span", lambda: duality.sample_sde(constant, 1.0, X, (1, 1)), ValueError, "t_span.*different"),
    (
        "tensor",
        lambda: duality.sample_sde(constant, np.ones(3), X),
        ValueError,
        r"a:.*shape .*got \(3,\)",
    ),
    ("negative", lambda: duality.sample_sde(constant, -1.0, X), ValueError, "a:.*semi-definite"),
    (
        "asymmetric",
        lambda: duality.sample_sde(constant, np.array([[1.0, 1.0], [0.0, 1.0]]), X),
        ValueError,
        "a:.*symmetric",
    ),
    (
        "field",
        lambda: duality.sample_sde(lambda x, t: x[:, 0], 1.0, X),
        ValueError,
        r"F:.*shape \(4, 2\)",
    ),
    ("blow up", lambda: duality.sample_ode(lambda x, t: x / 0.0, X + 1), ValueError, "u:.*finite"),
    (
        "overflow",
        lambda: duality.sample_ode(lambda x, t: np.full(x.shape, 1e308), X, (0, 4), n_steps=2),
        ValueError,
        "u: wanted a flow that stays finite.*after t = 0;",
    ),
    ("method", lambda: duality.sample_ode(constant, X, method="ab2"), ValueError, "method.*'rk4'"),
    ("zero", lambda: duality.weak_error_slope([1, 0.5], [1, 0.0]), ValueError, "errors.*> 0"),
    (
        "h",
        lambda: duality.weak_error_slope([1, -0.5], [1, 1.0]),
        ValueError,
        "h: wanted numbers > 0",
    ),
    ("one h", lambda: duality.weak_error_slope([1.0, 1.0], [1, 1.0]), ValueError, "h:.*different"),
    ("lengths", lambda: duality.weak_error_slope([1, 0.5], [1.0]), ValueError, r"errors.*\(2,\)"),
    (
        "times",
        lambda: duality.parity(np.zeros((2, 5, 1)), np.zeros((3, 5, 1))),
        ValueError,
        "second",
    ),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("name", "call", "error", "match"), ERRORS, ids=[e[0] for e in ERRORS])
def test_bad_input(name: str, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
