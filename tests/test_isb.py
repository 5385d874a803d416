"""Iterated bridges: barycentric projection, steps, flows, and their convergence (ISB-1 to ISB-4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import qkcore as qk
from qkcore import isb

from . import reference_isb as ref
from .own_kernels import Dense

Array = NDArray[Any]
GAUSS = isb.Mixture.gaussian(0.0, 1.0)
MIXTURE = isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
OU_START = isb.Mixture.gaussian(0.0, 4.0)
EPSILONS = (0.02, 0.04, 0.08, 0.16)


def cloud(n: int, d: int, seed: int = 0, dtype: str = "float64") -> Array:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


# ---- ISB-1: the barycentric projection ------------------------------------------------------------


@pytest.mark.parametrize("max_memory", [None, 0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 129, 200])
def test_isb1_against_reference(n: int, dtype: str, max_memory: int | None) -> None:
    """ISB-1 on weighted supports, one of weight 0, stored and on the fly."""
    for d in (1, 2, 20):
        X = cloud(n, d, n, dtype)
        w = np.random.default_rng(n + 1).random(n).astype(dtype) + np.asarray(0.1, dtype)
        if n > 2:
            w[1] = 0
        epsilon = 0.3 * d
        B = isb.barycentric(X, epsilon, w, max_memory=max_memory)
        coupling, wanted = ref.self_bridge(X.astype(np.float64), epsilon, w.astype(np.float64))
        assert B.converged and B.status == "converged", str(B)
        assert B.method == ("stored" if max_memory is None else "on the fly")
        assert B.values.dtype == X.dtype
        bound = 1e-8 if dtype == "float64" else 2e-5
        np.testing.assert_allclose(B.values, wanted, atol=bound)
        np.testing.assert_allclose(B.self_weight, np.trace(coupling), atol=bound)
        np.testing.assert_allclose(B(X), B.values, atol=bound)  # the extension, at the support
        assert np.isneginf(B.potential[np.asarray(w) == 0]).all()


def test_isb1_same_as_the_bridge_solver() -> None:
    X, mu = cloud(150, 3), np.full(150, 1 / 150)
    b = qk.bridge(qk.scores.distance(X, beta=1 / 0.8), mu, mu, tol=1e-12)
    B = isb.barycentric(X, 0.4, tol=1e-12)
    np.testing.assert_allclose(B.values, b.project(X), atol=1e-11)
    np.testing.assert_allclose(B.operator.to_numpy() / 150, b.plan(), atol=1e-12)
    assert B.n_iter == b.n_iter
    # Momentum for a kernel with known spectrum, against the averaged update for any kernel.
    logs = -np.square(X[:, None] - X).sum(-1) / 0.8
    plain = qk.bridge(Dense(logs, symmetric=True), mu, mu, tol=1e-12)
    np.testing.assert_allclose(plain.f, b.f, atol=1e-11)
    assert plain.method == "symmetric, given" and B.n_iter < 0.7 * plain.n_iter


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("variance", "epsilon"), [(1.0, 0.1), (4.0, 1.5), (0.5, 0.02), (2.0, 8.0)])
def test_isb1_gaussian_closed_form(variance: float, epsilon: float, dtype: str) -> None:
    """B of N(0, s²) is linear with the slope of the quadratic; the grid resolves it."""
    x, w = isb.Mixture.gaussian(0.0, variance).grid(600)
    B = isb.barycentric(x.astype(dtype), epsilon, w.astype(dtype))
    slope = ref.bridge_slope(variance, epsilon)
    assert isb.gaussian_slope(variance, epsilon) == pytest.approx(slope, rel=1e-13)
    inside = np.abs(x[:, 0]) < 4 * math.sqrt(variance)
    bound = 1e-8 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(B.values[inside], slope * x[inside], atol=bound)
    new = np.linspace(-3, 3, 7, dtype=dtype)[:, None] * np.asarray(math.sqrt(variance), dtype)
    np.testing.assert_allclose(B(new), slope * new, atol=bound)  # out of sample
    np.testing.assert_allclose(
        B.score(new), 2 * (slope - 1) / epsilon * new, atol=bound / epsilon * 4
    )


def test_isb1_anisotropic_gaussian_is_a_product() -> None:
    x, v = isb.Mixture.gaussian(0.0, 1.0).grid(50, 6.0)
    y, u = isb.Mixture.gaussian(0.0, 0.5).grid(50, 6.0)
    X = np.stack(np.meshgrid(x[:, 0], y[:, 0], indexing="ij"), axis=-1).reshape(-1, 2)
    B = isb.barycentric(X, 0.4, np.outer(v, u).ravel())
    inside = (np.abs(X[:, 0]) < 2) & (np.abs(X[:, 1]) < 1.4)
    wanted = X * [ref.bridge_slope(1.0, 0.4), ref.bridge_slope(0.5, 0.4)]
    np.testing.assert_allclose(B.values[inside], wanted[inside], atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    scale=st.floats(0.01, 100.0),
)
def test_isb1_laws(n: int, d: int, seed: int, scale: float) -> None:
    """Translation, rotation, permutation, scaling; the mean is kept; B stays in the hull."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), rng.random(n) + 0.05
    epsilon = float(rng.uniform(0.05, 3.0))
    B = isb.barycentric(X, epsilon, w)
    assert B.converged
    np.testing.assert_allclose(B.weights @ B.values, B.weights @ X, atol=1e-8)
    assert (B.values <= X.max(axis=0) + 1e-12).all() and (B.values >= X.min(axis=0) - 1e-12).all()
    shift = rng.uniform(-5, 5, d)
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0]
    order = rng.permutation(n)
    others = (
        (isb.barycentric(X + shift, epsilon, w).values - shift, B.values),
        (isb.barycentric(X @ rotation, epsilon, w).values, B.values @ rotation),
        (isb.barycentric(X[order], epsilon, w[order]).values, B.values[order]),
        (isb.barycentric(scale * X, scale**2 * epsilon, w).values / scale, B.values),
        (isb.barycentric(X, epsilon, 7.0 * w).values, B.values),  # the total does not matter
    )
    for got, wanted in others:
        np.testing.assert_allclose(got, wanted, atol=1e-7)


def test_isb1_limits_of_epsilon() -> None:
    X, w = cloud(50, 2), np.random.default_rng(3).random(50)
    wide = isb.barycentric(X, 1e8, w)
    np.testing.assert_allclose(wide.values, np.broadcast_to(wide.weights @ X, X.shape), atol=1e-6)
    narrow = isb.barycentric(X, 1e-8, w)
    np.testing.assert_allclose(narrow.values, X, atol=1e-12)
    assert narrow.self_weight == pytest.approx(1.0)
    assert wide.self_weight == pytest.approx(float((wide.weights**2).sum()), rel=1e-5)


def test_isb1_duplicates_share_their_weight() -> None:
    X, w = cloud(20, 2), np.random.default_rng(4).random(20) + 0.1
    twice = isb.barycentric(np.repeat(X, 2, axis=0), 0.5, np.repeat(w, 2))
    once = isb.barycentric(X, 0.5, w)
    np.testing.assert_allclose(twice.values[::2], once.values, atol=1e-9)
    np.testing.assert_array_equal(twice.values[::2], twice.values[1::2])
    same = isb.barycentric(np.ones((5, 3)), 0.1)
    np.testing.assert_allclose(same.values, 1.0, rtol=1e-15)


def test_isb1_weights_of_all_sizes() -> None:
    """Weights over 200 orders of magnitude; in float32 entries vanish and the log domain takes over."""
    X = 10.0 * np.arange(6.0)[:, None]
    w = np.array([1.0, 1e-200, 1e-30, 0.5, 1e-10, 0.1])
    B = isb.barycentric(X, 30.0, w)
    np.testing.assert_allclose(B.values, ref.self_bridge(X, 30.0, w)[1], atol=1e-7)
    w32 = np.array([1.0, 1e-38, 1e-30, 0.5, 1e-10, 0.1], np.float32)
    B32 = isb.barycentric(X.astype(np.float32), 30.0, w32)
    wanted = ref.self_bridge(X, 30.0, w32.astype(np.float64))[1]
    assert B32.converged
    np.testing.assert_allclose(B32.values, wanted, atol=1e-3)


def test_isb1_arrays_of_any_layout() -> None:
    X = cloud(40, 3)
    wanted = isb.barycentric(X, 0.5).values
    wide = np.zeros((80, 6))
    wide[::2, ::2] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    for other in (wide[::2, ::2], np.asfortranarray(X), frozen):
        before = other.copy()
        np.testing.assert_array_equal(isb.barycentric(other, 0.5).values, wanted)
        np.testing.assert_array_equal(other, before)


def test_isb1_warm_start_and_threads() -> None:
    X = cloud(300, 2)
    cold = isb.barycentric(X, 0.2)
    warm = isb.barycentric(X + 1e-4 * cloud(300, 2, 1), 0.2, init=cold)
    again = isb.barycentric(X, 0.2, init=cold)
    assert again.n_iter == 1 and warm.n_iter < 0.7 * cold.n_iter
    one = isb.barycentric(X, 0.2, n_threads=1)
    np.testing.assert_allclose(one.values, cold.values, atol=1e-13)
    np.testing.assert_array_equal(
        isb.barycentric(X, 0.2).values, cold.values
    )  # the same bits again


def test_isb1_says_when_it_has_not_converged() -> None:
    B = isb.barycentric(cloud(50, 2), 0.1, max_iter=3, on_fail="ignore")
    assert not B.converged and B.status == "iteration limit" and B.n_iter == 3
    assert "not converged (iteration limit)" in str(B)
    # Potentials are doubles for both types, and problems that float32 cannot solve are continued in double.
    fine = isb.barycentric(cloud(500, 2, 0, "float32"), 0.1, tol=1e-12)
    assert fine.converged and fine.values.dtype == np.float32
    hopeless = isb.barycentric(cloud(500, 2, 0, "float32"), 0.1, tol=1e-18, on_fail="ignore")
    assert not hopeless.converged and hopeless.status == "stagnated"
    with pytest.raises(RuntimeError, match=r"step: bridge not converged \(iteration limit"):
        isb.step(cloud(50, 2), 0.1, max_iter=3)


# ---- ISB-2: steps ---------------------------------------------------------------------------------


def test_isb2_step_is_the_formula() -> None:
    """(1 - 1/theta) x + B/theta with B of the surrogate, on the particles or on another support."""
    X, sigma = cloud(60, 2), np.random.default_rng(5).random(60)
    for theta in (-1.0, 0.5, 2.0):
        moved = isb.step(X, 0.3, theta=theta, surrogate=sigma)
        B = ref.self_bridge(X, 0.3, sigma)[1]
        np.testing.assert_allclose(moved.X, (1 - 1 / theta) * X + B / theta, atol=1e-8)
        assert moved.time == 0.3 and moved.theta == theta
    Z, w = cloud(80, 2, 9), np.random.default_rng(6).random(80)
    other = isb.step(X, 0.3, theta=1.0, surrogate=(Z, w))
    np.testing.assert_allclose(other.X, isb.barycentric(Z, 0.3, w)(X), atol=1e-12)
    solved = isb.step(X, 0.3, theta=1.0, surrogate=other.map)
    np.testing.assert_array_equal(solved.X, other.X)
    heat = isb.step(X, 0.3)
    np.testing.assert_allclose(heat.X, 2 * X - ref.self_bridge(X, 0.3, np.ones(60))[1], atol=1e-8)
    assert "theta -1" in str(heat)


def test_isb2_surrogate_weights_are_the_surrogate() -> None:
    x = np.linspace(-9, 9, 2001)
    rho, nu = -(x**2) / 8, -(x**2) / 2
    psi = -0.5 * (rho - nu)
    for theta in (1 / 3, 1.0, 3.0):  # variance 1 / (theta (1 - 1/4))
        w = isb.surrogate_weights(psi, theta)
        assert w @ x**2 == pytest.approx(1 / (theta * 0.75), rel=1e-3 if theta < 1 else 1e-10)
    draws = OU_START.quantile_grid(4000)[:, 0]
    w = isb.surrogate_weights(-0.375 * draws**2 / 2, 1.0, log_density=OU_START.log_pdf(draws))
    assert w @ draws**2 == pytest.approx(4 / 3, rel=1e-3)  # importance weights
    assert isb.auto_theta(rho, rho - nu) == pytest.approx(1 / 3, rel=1e-12)
    assert isb.auto_theta(rho, rho) == pytest.approx(-1.0)  # without a target it is the heat flow
    assert math.isinf(isb.auto_theta(rho, np.full_like(rho, 3.0)))


def test_isb2_euler_step_and_the_time_of_a_step() -> None:
    """Erratum 6: with the ½ in the kernel a step is an Euler step of time epsilon; without, half of it."""
    x, w = GAUSS.grid(500)
    epsilon = 0.01
    euler = isb.euler_step(x, epsilon, -0.5 * GAUSS.score(x[:, 0])[:, None])
    printed = 2 * x - isb.barycentric(x, epsilon / 2, w).values  # kernel exp(-|x-y|²/epsilon)
    inside = (np.abs(x[:, 0]) > 0.5) & (np.abs(x[:, 0]) < 4)
    moved = isb.step(x, epsilon, weights=w).X
    np.testing.assert_allclose(moved[inside], euler[inside], atol=1e-4)
    ratio = (printed - x)[inside] / (euler - x)[inside]
    np.testing.assert_allclose(ratio, 0.5, atol=2e-3)


def test_isb2_number_of_steps() -> None:
    assert isb.steps_for(1.0, 0.01) == 100
    assert isb.steps_for(0.3, 0.1) == 3  # 0.3 / 0.1 is 2.9999999999999996
    assert isb.steps_for(1.1, 1.0) == 2
    assert isb.steps_for(0.07, 0.01) == 7  # 7.000000000000001
    assert isb.heat_flow(cloud(5, 1), 0.4, T=1.0).n_steps == 3


# ---- ISB-3: flows ---------------------------------------------------------------------------------


def test_isb3_heat_flow_is_iterated_steps() -> None:
    X = cloud(40, 2)
    flow = isb.heat_flow(X, 0.1, 4)
    assert flow.converged and flow.status == "finished"
    assert flow.x.shape == (5, 40, 2)
    np.testing.assert_allclose(flow.t, [0, 0.1, 0.2, 0.3, 0.4])
    for before, after in zip(flow.x, flow.x[1:], strict=False):
        np.testing.assert_allclose(
            after, 2 * before - ref.self_bridge(before, 0.1, np.ones(40))[1], atol=1e-8
        )
    np.testing.assert_allclose(flow.mean(), np.broadcast_to(X.mean(0), (5, 2)), atol=1e-9)
    np.testing.assert_allclose(flow.covariance()[-1], np.cov(flow.X.T, bias=True), atol=1e-12)
    assert len(flow.n_iter) == len(flow.errors) == len(flow.theta) == len(flow.self_weight) == 4
    assert "4 steps of 0.1 to t = 0.4" in str(flow)


def test_isb3_saved_states() -> None:
    X = cloud(10, 1)
    every = isb.heat_flow(X, 0.1, 7)
    third = isb.heat_flow(X, 0.1, 7, save_every=3)
    ends = isb.heat_flow(X, 0.1, 7, save_every=0)
    np.testing.assert_allclose(third.t, [0, 0.3, 0.6, 0.7])
    np.testing.assert_array_equal(third.x, every.x[[0, 3, 6, 7]])
    np.testing.assert_array_equal(ends.x, every.x[[0, -1]])


def test_isb3_heat_flow_gaussian_closed_form() -> None:
    x, w = GAUSS.grid(400)
    flow = isb.heat_flow(x, 0.1, 10, weights=w)
    wanted = isb.gaussian_variances(1.0, 0.1, 10)
    np.testing.assert_allclose(flow.covariance()[:, 0, 0], wanted, rtol=1e-8)
    assert wanted[-1] == pytest.approx(2.0, abs=1e-3)  # 1 + t
    step_by_step = 1.0
    for got in wanted[1:]:
        step_by_step *= (2 - ref.bridge_slope(step_by_step, 0.1)) ** 2
        assert got == pytest.approx(step_by_step, rel=1e-13)


def test_isb3_heat_flow_of_a_gaussian_in_the_plane() -> None:
    """Every axis for itself, and W2 to N(0, S + tI) by the moments."""
    x, v = isb.Mixture.gaussian(0.0, 1.0).grid(44, 7.0)
    y, u = isb.Mixture.gaussian(0.0, 0.5).grid(44, 7.0)
    turn = np.linalg.qr(cloud(2, 2, 5))[0]
    X = np.stack(np.meshgrid(x[:, 0], y[:, 0], indexing="ij"), axis=-1).reshape(-1, 2) @ turn.T
    flow = isb.heat_flow(X, 0.2, 4, weights=np.outer(v, u).ravel())
    moments = [isb.gaussian_variances(s, 0.2, 4)[-1] for s in (1.0, 0.5)]
    np.testing.assert_allclose(turn.T @ flow.covariance()[-1] @ turn, np.diag(moments), atol=1e-6)
    exact = turn @ np.diag([1.8, 1.3]) @ turn.T
    assert isb.gaussian_w2(flow.mean()[-1], flow.covariance()[-1], [0.0, 0.0], exact) < 5e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_isb3_heat_flow_of_a_mixture(dtype: str) -> None:
    """Particles at quantiles of ½N(-2,1)+½N(2,1) follow the exact law as closely as they began."""
    X = MIXTURE.quantile_grid(400).astype(dtype)
    flow = isb.heat_flow(X, 0.05, T=0.5)
    assert flow.converged and flow.X.dtype == X.dtype
    assert MIXTURE.heat(0.5).w2(flow.X) < 1.4 * MIXTURE.w2(X)
    sample = MIXTURE.heat(0.5).sample(400, np.random.default_rng(0))
    assert MIXTURE.heat(0.5).w2(flow.X) < MIXTURE.heat(0.5).w2(sample)


def test_isb3_ornstein_uhlenbeck_surrogate_closed_form() -> None:
    """The surrogate flow of the poster from N(0, 4): densities carried along, theta by itself."""
    x, w = OU_START.grid(400)
    flow = isb.ornstein_uhlenbeck(
        x, 0.05, 20, weights=w, method="surrogate", log_density=OU_START.log_pdf(x[:, 0])
    )
    wanted = isb.gaussian_variances(4.0, 0.05, 20, target=1.0)
    assert flow.converged, str(flow)
    np.testing.assert_allclose(flow.covariance()[:, 0, 0], wanted, rtol=1e-6)
    np.testing.assert_allclose(flow.theta, 1 / (wanted[:-1] - 1), rtol=1e-6)
    assert wanted[-1] == pytest.approx(1 + 3 * math.exp(-1), abs=0.02)
    fixed = isb.gaussian_variances(4.0, 0.01, 100, target=1.0, theta=1.0)
    assert fixed[-1] == pytest.approx(1 + 3 * math.exp(-1), abs=0.01)


def test_isb3_densities_are_carried_exactly_in_the_plane() -> None:
    """log det of the Jacobian in two dimensions, against the normal law that the flow stays."""
    g, u = isb.Mixture.gaussian(0.0, 4.0).grid(60, 8.0)
    X = np.stack(np.meshgrid(g[:, 0], g[:, 0], indexing="ij"), axis=-1).reshape(-1, 2)
    w = np.outer(u, u).ravel()
    flow = isb.ornstein_uhlenbeck(
        X, 0.5, 3, weights=w, method="surrogate", log_density=-(X**2).sum(1) / 8 - 50.0
    )
    wanted = isb.gaussian_variances(4.0, 0.5, 3, target=1.0)
    assert flow.converged, str(flow)
    np.testing.assert_allclose(flow.covariance()[:, 0, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize("law", [OU_START, MIXTURE])
def test_isb3_kl_flow_of_particles(law: isb.Mixture) -> None:
    """Random particles: split with score or potential, surrogate on its own support with an estimate."""
    X = law.sample(600, np.random.default_rng(1))
    exact = law.ornstein_uhlenbeck(0.6)
    start, bound = law.w2(X), 0.15
    split = isb.kl_flow(X, 0.03, T=0.6, score=lambda x: -x)
    by_potential = isb.kl_flow(X, 0.03, T=0.6, potential=lambda x: (x**2).sum(1) / 2)
    np.testing.assert_allclose(by_potential.X, split.X, atol=1e-9)
    assert exact.w2(split.X) < max(start, bound)
    Z = np.linspace(-16, 16, 500)[:, None]
    surrogate = isb.ornstein_uhlenbeck(X, 0.03, 20, method="surrogate", support=Z)
    assert surrogate.converged
    assert exact.w2(surrogate.X) < max(start, bound)


def test_isb3_kl_flows_in_float32() -> None:
    X = OU_START.quantile_grid(300)
    Z = np.linspace(-16, 16, 400)[:, None]
    for options in ({}, {"method": "surrogate", "support": Z}):
        wide = isb.ornstein_uhlenbeck(X, 0.1, 5, **options)
        if options:
            options["support"] = Z.astype(np.float32)
        flow = isb.ornstein_uhlenbeck(X.astype(np.float32), 0.1, 5, **options)
        assert flow.converged and flow.x.dtype == np.float32
        np.testing.assert_allclose(flow.X, wide.X, atol=2e-3)
    psi = np.linspace(-1, 0, 300, dtype=np.float32)
    w = isb.surrogate_weights(psi, 1.0)
    assert w.dtype == np.float32
    assert isb.step(X.astype(np.float32), 0.1, theta=1.0, surrogate=w).X.dtype == np.float32


def test_isb3_interrupt_ends_a_flow() -> None:
    """Ctrl-C during a long flow is heard within a fraction of a second."""
    import signal
    import threading
    import time

    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    began = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        isb.heat_flow(cloud(2000, 3), 0.05, 10**6, save_every=0, max_memory=0)
    timer.join()
    assert time.perf_counter() - began < 30


def test_isb3_kl_flow_comes_to_rest_at_the_target() -> None:
    x, w = GAUSS.grid(300)
    still = isb.ornstein_uhlenbeck(
        x, 0.1, 5, weights=w, method="surrogate", log_density=GAUSS.log_pdf(x[:, 0])
    )
    np.testing.assert_array_equal(still.X, x)  # rho = nu: no surrogate is needed
    assert np.isinf(still.theta).all() and (still.n_iter == 0).all()
    split = isb.ornstein_uhlenbeck(x, 0.01, T=8.0, weights=w)
    assert split.covariance()[-1, 0, 0] == pytest.approx(1.0, abs=5e-3)


def test_isb3_log_concave_target() -> None:
    """A target that is not normal, U = x⁴/4 + x²/2, reached from N(0, 4): moments by quadrature."""
    x, w = OU_START.grid(500, 5.0)
    flow = isb.kl_flow(x, 0.01, T=6.0, weights=w, score=lambda x: -(x**3) - x, save_every=0)
    z = np.linspace(-6, 6, 4001)
    nu = np.exp(-(z**4) / 4 - z**2 / 2)
    nu /= nu.sum()
    assert flow.converged
    assert flow.weights @ flow.X[:, 0] ** 2 == pytest.approx(nu @ z**2, abs=0.02)
    assert flow.weights @ flow.X[:, 0] ** 4 == pytest.approx(nu @ z**4, abs=0.05)


def test_isb3_flow_ends_at_a_bridge_that_does_not_converge() -> None:
    X = cloud(40, 2)
    flow = isb.heat_flow(X, 0.05, 5, max_iter=2)
    assert not flow.converged and flow.n_steps == 0
    assert flow.status == "no convergence"
    assert flow.message == "ended at step 1 of 5 (t = 0): bridge not converged (iteration limit)"
    np.testing.assert_array_equal(flow.X, X)  # the last good state
    assert flow.t[-1] == 0 and flow.map is not None and not flow.map.converged
    far = isb.kl_flow(np.array([[1e300], [-1e300]]) * 1e-150, 1e250, 3, score=lambda x: 1e100 * x)
    assert not far.converged and "left the range" in far.message and np.isfinite(far.X).all()


def test_isb3_progress(capsys: pytest.CaptureFixture[str]) -> None:
    isb.heat_flow(cloud(10, 1), 0.1, 3, progress=True)
    assert "3/3" in capsys.readouterr().err


# ---- ISB-4: laws, distances, rates ----------------------------------------------------------------


def test_isb4_mixture_functions_against_numerical_ones() -> None:
    law = isb.Mixture([0.2, 0.5, 0.3], [-1.0, 0.5, 4.0], [0.3, 2.0, 0.7])
    x = np.linspace(-25, 25, 200_001)
    pdf, h = np.exp(law.log_pdf(x)), x[1] - x[0]
    assert pdf.sum() * h == pytest.approx(1.0, abs=1e-10)
    assert (pdf * x).sum() * h == pytest.approx(law.mean, abs=1e-9)
    assert (pdf * x**2).sum() * h - law.mean**2 == pytest.approx(law.variance, abs=1e-9)
    at = np.array([-2.0, 0.3, 5.0])
    np.testing.assert_allclose(
        law.score(at), (law.log_pdf(at + 1e-6) - law.log_pdf(at - 1e-6)) / 2e-6, atol=1e-7
    )
    np.testing.assert_allclose(law.cdf(at) + law.sf(at), 1.0, atol=1e-15)
    u = np.array([0.0, 1e-12, 0.1, 0.5, 0.999, 1.0])
    q = law.quantile(u)
    assert q[0] == -np.inf and q[-1] == np.inf
    np.testing.assert_allclose(law.cdf(q[1:-1]), u[1:-1], rtol=1e-10)
    np.testing.assert_allclose(law.transport(x[::20_000], law), x[::20_000], atol=1e-9)
    points = law.quantile_grid(500)
    assert points.mean() == pytest.approx(law.mean, abs=1e-12)


def test_isb4_exact_flows_of_laws() -> None:
    """Chapman-Kolmogorov, and the equations themselves by differences."""
    law = isb.Mixture([0.3, 0.7], [-1.0, 2.0], [0.5, 1.5])
    x, dt, dx = np.linspace(-3, 4, 15), 1e-4, 1e-3
    for flow, drift in ((isb.Mixture.heat, 0.0), (isb.Mixture.ornstein_uhlenbeck, 1.0)):
        two, once = flow(flow(law, 0.3), 0.4), flow(law, 0.7)
        np.testing.assert_allclose(two.log_pdf(x), once.log_pdf(x), atol=1e-12)

        def p(t: float, y: Array, flow: Any = flow) -> Array:
            return np.asarray(np.exp(flow(law, t).log_pdf(y)))

        rate = (p(0.3 + dt, x) - p(0.3 - dt, x)) / (2 * dt)
        second = (p(0.3, x + dx) - 2 * p(0.3, x) + p(0.3, x - dx)) / dx**2
        pull = ((x + dx) * p(0.3, x + dx) - (x - dx) * p(0.3, x - dx)) / (2 * dx)
        np.testing.assert_allclose(rate, 0.5 * second + 0.5 * drift * pull, atol=1e-6)


def test_isb4_w2_on_the_line() -> None:
    law = isb.Mixture([0.4, 0.6], [-1.0, 2.0], [0.5, 1.0])
    X = np.random.default_rng(0).standard_normal((40, 1))
    fine = law.quantile_grid(40 * 1000)[:, 0]
    assert law.w2(X) == pytest.approx(ref.w2_line(np.repeat(X[:, 0], 1000), fine), rel=1e-4)
    w = np.random.default_rng(1).integers(1, 6, 40).astype(float)
    many = np.repeat(X[:, 0], w.astype(int))
    assert law.w2(X, w) == pytest.approx(law.w2(many), rel=1e-12)
    assert GAUSS.w2(np.array([[3.0]])) == pytest.approx(math.sqrt(10.0))  # 1 + 9
    assert GAUSS.w2_to(isb.Mixture.gaussian(3.0, 4.0)) == pytest.approx(math.sqrt(10.0), rel=1e-9)
    assert law.w2(law.quantile_grid(2000)) < 0.02


def test_isb4_gaussian_w2_in_the_plane() -> None:
    A = np.array([[2.0, 0.5], [0.5, 1.0]])
    turn = np.linalg.qr(cloud(2, 2))[0]
    other = turn @ np.diag([3.0, 0.2]) @ turn.T
    from scipy.linalg import sqrtm

    root = sqrtm(A)
    wanted = 5.0 + np.trace(A + other - 2 * np.real(sqrtm(root @ other @ root)))
    got = isb.gaussian_w2([0.0, 0.0], A, [1.0, 2.0], other)
    assert got == pytest.approx(math.sqrt(wanted), rel=1e-7)
    assert isb.gaussian_w2([0.0, 0.0], A, [0.0, 0.0], A) < 1e-7


def test_isb4_one_step_is_of_smaller_order_than_epsilon() -> None:
    """Theorem 2: W2 of the bridge and Euler steps is o(epsilon); measured epsilon², for normal laws
    epsilon²/8s³, so that its bound holds with the square root of theorem 1's C only."""
    heat = isb.one_step_rate(GAUSS, EPSILONS)
    assert heat.slope == pytest.approx(2.0, abs=0.01)
    assert heat.constant == pytest.approx(1 / 8, rel=0.02)
    for law, target in ((MIXTURE, None), (OU_START, 1.0), (MIXTURE, 1.0)):
        rate = isb.one_step_rate(law, EPSILONS, target=target)
        assert rate.slope == pytest.approx(2.0, abs=0.1), str(rate)
    # Against the exact heat flow a bridge step is better than Euler's: third order.
    for law in (GAUSS, MIXTURE):
        rate = isb.one_step_rate(law, EPSILONS[:3], against="exact")
        assert rate.slope > 2.7 and rate.local_slopes[0] > 2.75, str(rate)


def test_isb4_one_step_closed_form() -> None:
    for epsilon in (0.05, 0.4):
        rate = isb.one_step_rate(GAUSS, (epsilon, epsilon / 2))
        wanted = abs(2 - ref.bridge_slope(1.0, epsilon) - 1 - epsilon / 2)
        assert rate.errors[0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("law", [GAUSS, MIXTURE])
def test_isb4_uniform_convergence_of_the_heat_flow(law: isb.Mixture) -> None:
    """sup over [0, T] of W2: second order for the heat flow, where first is what one expects."""
    rate = isb.uniform_rate(law, (0.05, 0.1, 0.2), 1.0, n=400)
    assert rate.slope == pytest.approx(2.0, abs=0.15), str(rate)
    assert rate.errors[0] < 2e-4


@pytest.mark.parametrize("method", ["split", "surrogate"])
def test_isb4_uniform_convergence_of_ornstein_uhlenbeck(method: str) -> None:
    rate = isb.uniform_rate(OU_START, (0.05, 0.1, 0.2), 1.0, target=1.0, method=method, n=400)
    assert rate.slope == pytest.approx(1.0, abs=0.15), str(rate)
    mixed = isb.uniform_rate(MIXTURE, (0.05, 0.1, 0.2), 0.6, target=1.0, method="split", n=400)
    assert mixed.slope == pytest.approx(1.0, abs=0.15), str(mixed)


def test_isb4_gaussian_rate_of_theorem_1() -> None:
    """H(l|pi) + H(pi|l) = epsilon² C(epsilon) with C = O(epsilon²): an exponent of 4."""
    for variance in (0.5, 2.0):
        for epsilon in (0.1, 1.0, 3.0):
            a = epsilon / (2 * variance)
            wanted = ref.symmetrised_divergence(math.exp(-a), ref.bridge_slope(variance, epsilon))
            got = isb.gaussian_entropy_gap(variance, epsilon)
            assert got == pytest.approx(wanted, rel=1e-6, abs=1e-13)
    small = np.array([0.001, 0.002, 0.004, 0.008])
    rate = isb.fit_rate(small, [isb.gaussian_entropy_gap(1.0, e) for e in small])
    assert rate.slope == pytest.approx(4.0, abs=0.01)
    assert rate.constant == pytest.approx(1 / (72 * 16), rel=0.05)
    # The series and the direct formula agree where they meet.
    below, above = (
        isb.gaussian_entropy_gap(1.0, 2 * a) for a in (0.1 * (1 - 1e-9), 0.1 * (1 + 1e-9))
    )
    assert below == pytest.approx(above, rel=1e-7)


def test_isb4_closed_form_flow_rates() -> None:
    e = np.array([0.1, 0.05, 0.025, 0.0125])
    heat = [abs(isb.gaussian_variances(1.0, x, round(1 / x))[-1] - 2) for x in e]
    assert isb.fit_rate(e, heat).slope == pytest.approx(2.0, abs=0.05)
    ou = [
        abs(isb.gaussian_variances(4.0, x, round(1 / x), target=1.0)[-1] - 1 - 3 / math.e)
        for x in e
    ]
    assert isb.fit_rate(e, ou).slope == pytest.approx(1.0, abs=0.05)


def test_isb4_bias_of_particles_is_told_by_the_self_weight() -> None:
    """Random particles move too little, by about the mass that stays on its own point."""
    for n, d, epsilon in ((400, 2, 0.05), (400, 3, 0.2), (1600, 2, 0.0125), (100, 2, 0.2)):
        short, alone = [], []
        for seed in range(3):
            X = cloud(n, d, seed)
            moved = isb.step(X, epsilon)
            short.append(1 - (moved.X.var(axis=0) - X.var(axis=0)).mean() / epsilon)
            alone.append(moved.map.self_weight)
        assert 0.5 * np.mean(alone) < np.mean(short) < 1.2 * np.mean(alone)


def test_isb4_density_estimate_against_the_sum() -> None:
    X, Y = cloud(30, 2), cloud(5, 2, 1)
    w = np.random.default_rng(2).random(30)
    sq = ((Y[:, None] - X) ** 2).sum(-1)
    wanted = np.log((w / w.sum() * np.exp(-sq / (2 * 0.49)) / (2 * np.pi * 0.49)).sum(1))
    np.testing.assert_allclose(isb.kde_log_density(X, 0.7, w, at=Y), wanted, atol=1e-12)
    got = isb.kde_log_density(X, isb.silverman(X))
    np.testing.assert_array_equal(isb.kde_log_density(X), got)
