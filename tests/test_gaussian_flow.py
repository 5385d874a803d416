"""Gaussian flows (TPDE-3): velocities by quadrature, flows against SciPy, formulas, statuses, errors."""

from __future__ import annotations

import signal
import threading
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.integrate import solve_ivp

import qkcore as qk
from qkcore._native import cpu
from qkcore.gaussian import flow, velocity

from . import reference_gaussian as ref
from .reference_gaussian import Array

KINDS = ("softmax", "l2", "sinkhorn", "linear", "linear_epsilon")


def law(rng: np.random.Generator, d: int, batch: tuple[int, ...] = ()) -> tuple[Array, Array]:
    B = rng.normal(size=(*batch, d, d))
    cov = 0.4 * B @ B.swapaxes(-1, -2) / d + 0.1 * np.eye(d)
    return 0.4 * rng.normal(size=(*batch, d)), cov


def field(rng: np.random.Generator, d: int, k: int | None = None) -> dict[str, Array]:
    k = d if k is None else k
    Q, K = 0.6 * rng.normal(size=(2, k, d)) / np.sqrt(d)
    return {"Q": Q, "K": K, "V": 0.6 * rng.normal(size=(d, d)) / np.sqrt(d)}


def reference_flow(
    kind: str, mean: Array, cov: Array, p: dict[str, Array], epsilon: float, t: float
) -> tuple[Array, Array]:
    d = len(mean)

    def f(_: float, y: Array) -> Array:
        sigma = y[d:].reshape(d, d)
        m, c = ref.rates(kind, y[:d], 0.5 * (sigma + sigma.T), p["Q"], p["K"], p["V"], epsilon)
        return np.concatenate([m, c.ravel()])

    start = np.concatenate([mean, cov.ravel()])
    end = solve_ivp(f, (0, t), start, "DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    return end[:d], end[d:].reshape(d, d)


# ---- the velocity of a Gaussian law is what attention does to it -------------------------------------


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_velocity_by_quadrature(kind: str, d: int) -> None:
    """TPDE-3, lemmas 4.1, 4.10, 4.14, section 2.2: attention over a Gaussian rule, to 1e-8."""
    rng = np.random.default_rng(d)
    mean, cov = law(rng, d)
    p = field(rng, d)
    epsilon = 0.9
    x, w = ref.gauss_hermite(mean, cov, 60 if d == 1 else 24)
    v = ref.particle_velocity(kind, x, x, w, epsilon=epsilon, **p)
    found = velocity(kind, mean, cov, epsilon=epsilon, **p)
    near = np.abs((x - mean) @ np.linalg.inv(np.linalg.cholesky(cov)).T).max(axis=1) < 2
    np.testing.assert_allclose(found(x)[near], v[near], rtol=0, atol=1e-8)
    mean_rate, cov_rate = ref.moment_rates(x, w, v)
    np.testing.assert_allclose(found.mean_rate, mean_rate, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.cov_rate, cov_rate, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_velocity_by_sampling(kind: str) -> None:
    """TPDE-3: a cloud of particles moves as the Gaussian law does, within Monte-Carlo error."""
    rng = np.random.default_rng(3)
    d, n = 3, 1500
    mean, cov = law(rng, d)
    p = field(rng, d)
    x = rng.multivariate_normal(mean, cov, size=n)
    w = np.full(n, 1 / n)
    v = ref.particle_velocity(kind, x, x, w, epsilon=1.0, **p)
    mean_rate, cov_rate = ref.moment_rates(x, w, v)
    found = velocity(kind, mean, cov, **p)
    scale = np.abs(found.matrix).max() + np.abs(found.offset).max() + np.abs(p["V"]).max()
    assert np.abs(mean_rate - found.mean_rate).max() < 6 * scale / np.sqrt(n)
    assert np.abs(cov_rate - found.cov_rate).max() < 6 * scale / np.sqrt(n)
    # With the law of the sample itself only the error of the field is left.
    own = velocity(kind, x.mean(axis=0), np.cov(x.T, bias=True), **p)
    assert np.abs(cov_rate - own.cov_rate).max() < 2 * scale / np.sqrt(n)


def test_particles_follow_the_gaussian_flow() -> None:
    """TPDE-3: Euler steps of particles against the pushforward of their law, closer as n grows."""
    rng = np.random.default_rng(5)
    mean, cov = law(rng, 2)
    p = field(rng, 2)
    sol = flow("softmax", mean, cov, (0, 1), n_steps=10, method="euler", form="pushforward", **p)
    errors = []
    for n in (64, 1024):
        found = []
        for _ in range(12):
            x = rng.multivariate_normal(mean, cov, size=n)
            w = np.full(n, 1 / n)
            for _ in range(10):
                x = x + 0.1 * ref.particle_velocity("softmax", x, x, w, epsilon=1.0, **p)
            gap = np.sum((np.cov(x.T) - sol.cov[-1]) ** 2) + np.sum((x.mean(0) - sol.mean[-1]) ** 2)
            found.append(gap)
        errors.append(np.sqrt(np.mean(found)))
    assert 0.3 < np.log(errors[0] / errors[1]) / np.log(16) < 0.7  # n^-1/2


def test_l2_second_term_is_the_transpose() -> None:
    """Erratum 8: eq 4.3 prints (I + 2K'KΣ)^-1 in both terms; the second needs its transpose."""
    rng = np.random.default_rng(0)
    mean, cov = law(rng, 2)
    p = {"Q": rng.normal(size=(2, 2)), "K": rng.normal(size=(2, 2)), "V": rng.normal(size=(2, 2))}
    Q, K, V = p["Q"], p["K"], p["V"]
    A, inner = K.T @ Q, np.linalg.inv(np.eye(2) + 2 * K.T @ K @ cov)
    right = 2 * V @ cov @ inner @ A @ cov
    printed = right + 2 * cov @ A.T @ inner @ cov @ V.T
    x, w = ref.gauss_hermite(mean, cov, 24)
    v = ref.particle_velocity("l2", x, x, w, epsilon=1.0, **p)
    measured = ref.moment_rates(x, w, v)[1]
    found = velocity("l2", mean, cov, **p).cov_rate
    assert np.abs(found - measured).max() < 1e-7
    assert np.abs(right + right.T - measured).max() < 1e-7
    assert np.abs(printed - measured).max() > 1e-2
    assert np.abs(printed - printed.T).max() > 1e-2


def test_sinkhorn_c_is_that_of_lemma_4_14() -> None:
    """Erratum 5: proposition 4.15 prints C with AΣA', lemma 4.14 has A'ΣA; quadrature decides."""
    rng = np.random.default_rng(1)
    mean, cov = law(rng, 2)
    p = {"Q": rng.normal(size=(2, 2)), "K": rng.normal(size=(2, 2)), "V": rng.normal(size=(2, 2))}
    A = p["K"].T @ p["Q"]
    x, w = ref.gauss_hermite(mean, cov, 24)
    v = ref.particle_velocity("sinkhorn", x, x, w, epsilon=1.0, **p)
    measured = ref.moment_rates(x, w, v)[1]

    def reading(inner: Array) -> Array:
        M = p["V"] @ np.linalg.inv(A.T) @ np.linalg.inv(cov) @ ref.lemma_4_14(cov, inner, 1.0)
        return M @ cov + cov @ M.T

    lemma, printed = reading(A.T @ cov @ A), reading(A @ cov @ A.T)
    assert np.abs(lemma - measured).max() < 1e-7
    assert np.abs(printed - measured).max() > 1e-2
    np.testing.assert_allclose(velocity("sinkhorn", mean, cov, **p).cov_rate, lemma, atol=1e-12)


# ---- the native flow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_is_the_velocity(kind: str, d: int) -> None:
    """The C++ right-hand sides against NumPy's, every size class, more trajectories than lanes, ragged."""
    rng = np.random.default_rng(d)
    for n, heads, k in ((1, 1, d), (9, 1, d + 2), (19, 2, 4), (3, 3, 3)):
        mean, cov = law(rng, d, (n,))
        p = field(rng, d, k)
        p["V"] = rng.normal(size=(heads, d, d)) if heads > 1 else p["V"]
        args: dict[str, Any] = {**p, "heads": heads, "epsilon": 0.7}
        v = velocity(kind, mean, cov, **args)
        sol = flow(kind, mean, cov, (1, 1.5), n_steps=1, method="euler", **args)
        scale = 1 + np.abs(v.cov_rate).max() + np.abs(v.mean_rate).max()
        assert np.abs(sol.cov[1] - (cov + 0.5 * v.cov_rate)).max() < 1e-13 * scale
        assert np.abs(sol.mean[1] - (mean + 0.5 * v.mean_rate)).max() < 1e-13 * scale
        assert (sol.cov == sol.cov.swapaxes(-1, -2)).all()
        single = {name: a.astype(np.float32) for name, a in p.items()}
        low = flow(
            kind,
            mean.astype("f"),
            cov.astype("f"),
            (1, 1.5),
            n_steps=1,
            method="euler",
            heads=heads,
            epsilon=0.7,
            **single,
        )
        assert low.cov.dtype == low.mean.dtype == np.float32
        assert np.abs(low.cov[1] - sol.cov[1]).max() < 2e-5 * scale


@pytest.mark.parametrize("d", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_against_scipy(kind: str, d: int) -> None:
    """TPDE-3, eqs 4.1, 4.3, 4.9-4.15 in the paper's own form, integrated by SciPy: 1e-8."""
    rng = np.random.default_rng(10 + d)
    mean, cov = law(rng, d)
    p = field(rng, d)
    wanted = reference_flow(kind, mean, cov, p, 0.8, 1.5)
    settings: dict[str, Any]
    for settings in (
        {"method": "rk4", "n_steps": 300},
        {"method": "rk4", "n_steps": 300, "form": "pushforward"},
        {"method": "dopri5", "rtol": 1e-10, "store": "final"},
        {"method": "dopri5", "rtol": 1e-10, "t_eval": [0.1, 0.1, 1.5], "form": "covariance"},
        {"method": "dopri5", "n_steps": 60},
        {"method": "dopri5", "n_steps": 60, "form": "covariance"},
    ):
        sol = flow(kind, mean, cov, (0, 1.5), epsilon=0.8, **p, **settings)
        np.testing.assert_allclose(sol.mean[-1], wanted[0], rtol=0, atol=1e-8)
        np.testing.assert_allclose(sol.cov[-1], wanted[1], rtol=0, atol=1e-8)
    mean_loop, cov_loop = ref.euler(kind, mean, cov, **p, epsilon=0.8, step=0.015, n=100)
    sol = flow(kind, mean, cov, (0, 1.5), epsilon=0.8, n_steps=100, method="euler", **p)
    np.testing.assert_allclose(sol.mean[-1], mean_loop, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.cov[-1], cov_loop, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["covariance", "pushforward"])
@pytest.mark.parametrize(
    ("method", "order"), [("euler", 1), ("heun", 2), ("rk4", 4), ("rodas4", 4)]
)
def test_order_of_the_steppers(method: str, order: int, form: str) -> None:
    """The error falls with the step like its order says: slope within 0.1."""
    if method == "rodas4" and form == "pushforward":
        pytest.skip("implicit steps are no maps of particles")
    rng = np.random.default_rng(2)
    mean, cov = law(rng, 3)
    p = field(rng, 3)
    exact = reference_flow("softmax", mean, cov, p, 1.0, 2.0)[1]
    errors = [
        np.abs(
            flow("softmax", mean, cov, (0, 2), n_steps=n, method=method, form=form, **p).cov[-1]
            - exact
        ).max()
        for n in ((64, 128) if order < 4 else (16, 32))
    ]
    assert abs(np.log2(errors[0] / errors[1]) - order) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_a_loop(kind: str) -> None:
    """Trajectories do not see each other: bit for bit, whatever the batch, the threads, what is stored."""
    rng = np.random.default_rng(4)
    mean, cov = law(rng, 3, (2, 7))
    p = field(rng, 3)
    p["V"] = rng.normal(size=(7, 3, 3))  # one field for each trajectory along an axis
    sol = flow(kind, mean, cov, (0, 0.5), n_steps=10, method="euler", n_threads=2, **p)
    assert sol.mean.shape == (11, 2, 7, 3)
    for i, j in ((0, 0), (1, 3), (1, 6)):
        alone = {**p, "V": p["V"][j]}
        one = flow(
            kind, mean[i, j], cov[i, j], (0, 0.5), n_steps=10, method="euler", n_threads=1, **alone
        )
        np.testing.assert_array_equal(one.cov, sol.cov[:, i, j])
        np.testing.assert_array_equal(one.mean, sol.mean[:, i, j])
        assert one.status == sol.status[i, j]
    some = flow(kind, mean, cov, (0, 0.5), n_steps=10, method="euler", store=4, **p)
    np.testing.assert_allclose(some.t, [0, 0.2, 0.4, 0.5])
    np.testing.assert_array_equal(some.cov, sol.cov[[0, 4, 8, 10]])
    last = flow(kind, mean, cov, (0, 0.5), n_steps=10, method="euler", store="final", **p)
    np.testing.assert_array_equal(last.cov, sol.cov[[0, -1]])


@given(seed=st.integers(0, 10**6), d=st.integers(1, 5), kind=st.sampled_from(KINDS))
def test_rotations_commute_with_the_flow(seed: int, d: int, kind: str) -> None:
    """Orthogonal change of basis: (Rα, RΣR', QR', KR', RVR') flows as (α, Σ, Q, K, V)."""
    rng = np.random.default_rng(seed)
    mean, cov = law(rng, d)
    p = field(rng, d)
    R = np.linalg.qr(rng.normal(size=(d, d)))[0]
    turned = {"Q": p["Q"] @ R.T, "K": p["K"] @ R.T, "V": R @ p["V"] @ R.T}
    rotated = R @ cov @ R.T
    a = flow(kind, mean, cov, (0, 0.5), n_steps=20, method="heun", **p)
    b = flow(
        kind, R @ mean, 0.5 * (rotated + rotated.T), (0, 0.5), n_steps=20, method="heun", **turned
    )
    np.testing.assert_allclose(R @ a.cov[-1] @ R.T, b.cov[-1], atol=1e-10)
    np.testing.assert_allclose(R @ a.mean[-1], b.mean[-1], atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_covariances_stay_covariances(kind: str) -> None:
    """Pushed forward with steps far too long, or followed with short ones: positive semidefinite."""
    rng = np.random.default_rng(6)
    mean, cov = law(rng, 4, (50,))
    p = field(rng, 4)
    p["K"], p["V"] = -p["Q"], np.eye(4)
    sol = flow(kind, None, cov, (0, 3), n_steps=300, method="euler", **p)
    assert np.linalg.eigvalsh(sol.cov).min() > -1e-15
    wild = flow(
        kind,
        mean,
        40 * cov,
        (0, 20),
        n_steps=20,
        method="euler",
        form="pushforward",
        max_growth=1e30,
        **p,
    )
    values = np.linalg.eigvalsh(wild.cov)
    assert (values[..., 0] > -1e-12 * values[..., -1]).all()
    assert "indefinite" not in wild.counts()


def test_a_step_too_long_is_reported() -> None:
    """Euler overshoots zero and runs to minus infinity: the status says so, nothing is NaN."""
    I = np.eye(1)
    sol = flow("softmax", None, 10 * I, (0, 10), Q=I, K=-I, V=I, n_steps=10, method="euler")
    assert sol.status == "indefinite"
    assert np.isfinite(sol.cov).all()
    assert (
        flow("softmax", None, 10 * I, (0, 10), Q=I, K=-I, V=I, n_steps=1000, method="euler").cov[
            -1, 0, 0
        ]
        > 0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_singular_covariances_and_keys(kind: str) -> None:
    """Rank one and zero covariances, keys of lower rank: no inverse fails, the rank does not grow."""
    rng = np.random.default_rng(7)
    u = rng.normal(size=(3, 1))
    p = field(rng, 3, 1)
    for cov, rank in ((u @ u.T, 1), (np.zeros((3, 3)), 0), (np.diag([1.0, 0.0, 2.0]), 2)):
        sol = flow(
            kind, np.ones(3), cov, (0, 0.5), n_steps=200, method="rk4", form="pushforward", **p
        )
        assert np.isfinite(sol.cov).all() and np.isfinite(sol.mean).all()
        assert np.linalg.matrix_rank(sol.cov[-1], tol=1e-10, hermitian=True) == rank
        near = velocity(kind, np.ones(3), cov + 1e-9 * np.eye(3), **p)
        at = velocity(kind, np.ones(3), cov, **p)
        assert np.abs(near.cov_rate - at.cov_rate).max() < 1e-7
        assert np.abs(near.mean_rate - at.mean_rate).max() < 1e-7


def test_multi_head_is_the_sum_of_heads() -> None:
    """TPDE-3, proposition 4.9: rates add over heads, Q and K stacked by rows (eq 2.9)."""
    rng = np.random.default_rng(8)
    mean, cov = law(rng, 4)
    Q, K, V = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), rng.normal(size=(2, 4, 4))
    for kind in KINDS:
        both = velocity(kind, mean, cov, Q=Q, K=K, V=V, heads=2)
        parts = [
            velocity(kind, mean, cov, Q=Q[s], K=K[s], V=v)
            for s, v in zip((slice(0, 2), slice(2, 4)), V, strict=True)
        ]
        np.testing.assert_allclose(both.cov_rate, sum(x.cov_rate for x in parts), atol=1e-12)
        np.testing.assert_allclose(both.mean_rate, sum(x.mean_rate for x in parts), atol=1e-12)
    shared = velocity("softmax", mean, cov, Q=Q, K=K, V=V[0], heads=2)
    whole = velocity("softmax", mean, cov, Q=Q, K=K, V=V[0])
    # One V for all heads: A = sum of the heads' A, but V alpha is counted by every head.
    np.testing.assert_allclose(shared.matrix, whole.matrix, atol=1e-12)
    np.testing.assert_allclose(shared.offset, 2 * whole.offset, atol=1e-12)


# ---- statuses ----------------------------------------------------------------------------------------


def test_every_trajectory_gets_a_status() -> None:
    """TPDE-3: convergence, blow-up and what is between, in one batch; none dropped, none NaN."""
    s = np.array([1e-3, 0.5, 1.0, 2.0, 100.0])[:, None, None]
    a = np.array([-1.0, -1e-4, 1e-4, 1.0])[:, None, None, None]
    I = np.eye(1)
    sol = flow(
        "softmax", None, s, (0, 20), Q=I, K=a * I, V=I, n_steps=4000, method="euler", store=100
    )
    assert sol.status.shape == (4, 5)
    assert sum(sol.counts().values()) == 20
    assert np.isfinite(sol.cov).all()
    bound = 1 / (2 * a[:, 0, 0] * s[:, 0, 0])
    blew = (bound > 0) & (bound < 20)
    np.testing.assert_array_equal(sol.status == "blew up", blew)
    np.testing.assert_allclose(sol.blow_up_time[bound > 0], bound[bound > 0], rtol=1e-12)
    assert (sol.t_end[blew] < 20).all() and (sol.t_end[~blew] == 20).all()
    assert sol.status[1, 0] == "not settled"  # hardly moves yet: it needs 5e6 times as long
    assert sol.status[0, 4] == "converged"  # 1 / (0.01 + 2 t)
    assert sol.rank[0, 4] == 0


def test_blow_up_is_extrapolated_where_no_formula_holds() -> None:
    """TPDE-3: parameters that do not commute; dopri5 follows the solution to 1e8 and beyond."""
    rng = np.random.default_rng(9)
    _, cov = law(rng, 3)
    p = {"Q": np.eye(3), "K": np.eye(3) + 0.3 * rng.normal(size=(3, 3)), "V": np.eye(3)}
    p["V"] = p["V"] + 0.2 * rng.normal(size=(3, 3))
    fine = flow(
        "softmax",
        None,
        cov,
        (0, 50),
        t_eval=np.linspace(0, 50, 11),
        method="dopri5",
        rtol=1e-11,
        **p,
    )
    assert fine.status == "blew up" and not fine.blow_up_exact
    assert abs(fine.t_end - fine.blow_up_time) < 1e-6
    coarse = []
    for n in (2000, 4000):
        sol = flow("softmax", None, cov, (0, 20), n_steps=n, method="euler", store="final", **p)
        assert sol.status == "blew up"
        assert np.isfinite(sol.cov).all()
        coarse.append(abs(sol.blow_up_time - fine.blow_up_time))
    assert coarse[0] < 0.05 * fine.blow_up_time
    assert coarse[1] < 0.7 * coarse[0]
    rk = flow("softmax", None, cov, (0, 20), n_steps=4000, method="rk4", store="final", **p)
    assert abs(rk.blow_up_time - fine.blow_up_time) < 5e-3 * fine.blow_up_time


def test_l2_and_sinkhorn_diverge_but_never_blow_up() -> None:
    """TPDE-3, lemma 4.12 and proposition 4.17: exponential growth at most."""
    I = np.eye(2)
    cov = np.diag([1.0, 0.2])
    for kind, method in (
        ("l2", "euler"),
        ("l2", "dopri5"),
        ("sinkhorn", "euler"),
        ("sinkhorn", "dopri5"),
    ):
        steps: dict[str, Any] = {"n_steps": 6000, "store": 50} if method == "euler" else {}
        sol = flow(kind, None, cov, (0, 60), Q=I, K=I, V=I, method=method, **steps)
        assert sol.status == "diverged", (kind, method)
        assert sol.blow_up_time == np.inf
        assert 5 < sol.t_end < 60
        assert np.isfinite(sol.cov).all()


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_l2_blows_up_when_the_keys_are_singular(method: str) -> None:
    """Erratum 26: lemma 4.12 needs an invertible K; with K = (1, 0) a cross covariance obeys b' = b^2."""
    K, Q, V = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.diag([0.0, 1.0])
    cov = np.array([[0.5, 0.8], [0.8, 2.0]])  # a = 1/2: b' = b^2, so b = 1 / (1/0.8 - t)
    short = flow("l2", None, cov, (0, 1), Q=Q, K=K, V=V, n_steps=2000, method="rk4")
    np.testing.assert_allclose(short.cov[:, 0, 1], 1 / (1.25 - short.t), rtol=1e-8)
    x, w = ref.gauss_hermite(np.zeros(2), cov, 40)
    v = ref.particle_velocity("l2", x, x, w, Q=Q, K=K, V=V, epsilon=1.0)
    assert ref.moment_rates(x, w, v)[1][0, 1] == pytest.approx(0.64, abs=1e-8)
    n_steps = None if method == "dopri5" else 4000
    sol = flow(
        "l2", None, cov, (0, 2), Q=Q, K=K, V=V, n_steps=n_steps, method=method, store="final"
    )
    assert sol.status == "blew up"
    assert sol.blow_up_time == pytest.approx(1.25, rel=1e-2 if method == "euler" else 1e-3)
    full = flow(
        "l2",
        None,
        cov,
        (0, 60),
        Q=np.eye(2),
        K=np.eye(2),
        V=V,
        t_eval=np.linspace(0, 60, 11),
        method="dopri5",
    )
    assert full.status == "diverged"


def test_exponential_growth_of_softmax_is_not_called_a_blow_up() -> None:
    """V nilpotent: the covariance grows like a power of t; with a constant field like an exponential."""
    # Sigma = diag(s, 1), A = diag(0, 1) e_2 e_2': V = [[1, 0], [0, 0]] moves nothing but the cross terms.
    cov, V = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    A = np.array([[1.0, 0.0], [0.0, 0.0]])
    sol = flow(
        "softmax",
        None,
        cov,
        (0, 2000),
        Q=np.eye(2),
        K=A,
        V=V,
        n_steps=20000,
        method="euler",
        max_growth=1e4,
        store="final",
    )
    assert sol.status == "diverged"


def test_convergence_and_rank_of_the_limit() -> None:
    """TPDE-3, proposition 4.4, erratum 27: K = -Q of rank k, V = I: the limit has rank d - k, not k."""
    rng = np.random.default_rng(11)
    for d, k in ((3, 1), (4, 2), (5, 2)):
        _, cov = law(rng, d, (20,))
        Q = rng.normal(size=(20, k, d))
        sol = flow(
            "softmax",
            None,
            cov,
            (0, 4000),
            Q=Q,
            K=-Q,
            V=np.eye(d),
            t_eval=np.linspace(0, 4000, 3),
            method="dopri5",
            settle_tol=1e-2,
        )
        assert (sol.status == "converged").all(), str(sol)
        np.testing.assert_array_equal(sol.rank, d - k)
        assert "rank of the limit" in str(sol)


def test_judging_the_law_looks_at_the_mean_too() -> None:
    I = np.eye(1)
    args: dict[str, Any] = {
        "Q": I,
        "K": -I,
        "V": I,
        "n_steps": 40000,
        "store": "final",
        "method": "euler",
    }
    cov_only = flow("softmax", np.ones(1), 100 * I, (0, 40), **args)
    law_too = flow("softmax", np.ones(1), 100 * I, (0, 40), judge="law", **args)
    assert cov_only.status == "converged"
    assert law_too.status == "diverged" and law_too.t_end < 40
    assert np.abs(cov_only.mean[-1]).max() > 1e6  # the mean of lemma 4.1's field grows like e^t


def test_overflow_ends_with_the_last_finite_state() -> None:
    for dtype in (np.float32, np.float64):
        I = np.eye(2, dtype=dtype)
        sol = flow(
            "softmax", None, I, (0, 10), Q=I, K=I, V=I, n_steps=50, method="euler", max_growth=1e300
        )
        assert sol.status == "blew up"
        assert np.isfinite(sol.cov).all()
        assert sol.cov[-1, 0, 0] > 10
        assert sol.t_end < 10


def test_a_large_mean_does_not_end_a_flow() -> None:
    """Its square would overflow single precision; it is finite all the same."""
    I = np.eye(1, dtype=np.float32)
    args: dict[str, Any] = {
        "Q": I,
        "K": -I,
        "V": I,
        "n_steps": 6000,
        "store": "final",
        "method": "euler",
    }
    sol = flow("softmax", np.ones(1, np.float32), I, (0, 60), **args)
    assert sol.t_end == 60 and 1e20 < sol.mean[-1, 0] < np.inf
    assert sol.cov[-1, 0, 0] == pytest.approx(1 / 121, rel=1e-2)


def test_step_limit() -> None:
    I = np.eye(2)
    sol = flow(
        "sinkhorn", None, I, (0, 10), Q=I, K=I, V=I, store="final", method="dopri5", max_steps=3
    )
    assert sol.status == "step limit"
    assert sol.n_steps <= 3 and sol.t_end < 10


def test_progress_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    _, cov = law(rng, 3, (40,))
    sol = flow("l2", None, cov, (0, 1), n_steps=50, method="euler", progress=True, **field(rng, 3))
    assert "Gaussian flow" in capsys.readouterr().err
    assert "40 trajectories" in str(sol) and "d = 3" in str(sol)
    assert "status" in repr(sol)
    assert sol.final()[1].shape == (40, 3, 3)


def test_ctrl_c_stops_a_long_flow() -> None:
    I = np.eye(6)
    cov = np.broadcast_to(I, (4000, 6, 6))
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            flow(
                "sinkhorn",
                None,
                cov,
                (0, 1),
                Q=I,
                K=-I,
                V=I,
                n_steps=2_000_000,
                method="euler",
                store="final",
            )
    finally:
        timer.cancel()


def test_steps_adapt_unless_there_is_a_number_of_them() -> None:
    """As qk.flow: dopri5 to rtol and atol by default; t_eval names the times, n_steps makes steps equal."""
    rng = np.random.default_rng(3)
    mean, cov = law(rng, 3, (5,))
    p = field(rng, 3)
    sol = flow("softmax", mean, cov, (1.0, 2.5), **p)
    assert sol.method == "dopri5" and sol.settings["form"] == "pushforward"
    np.testing.assert_array_equal(sol.t, np.linspace(1.0, 2.5, 101))
    assert sol.cov.shape == (101, 5, 3, 3) and (sol.n_rejected >= 0).all()
    for times in ([1.0, 2.5], [1.3, 1.3, 1.9], [1.0], [2.5], np.linspace(1.0, 2.5, 6)):
        some = flow("softmax", mean, cov, (1.0, 2.5), t_eval=times, **p)
        np.testing.assert_array_equal(some.t, times)
        for t, m, S in zip(some.t, some.mean, some.cov, strict=True):
            k = round((t - 1.0) / 0.015)  # all of these are among the 101 times
            np.testing.assert_allclose(m, sol.mean[k], rtol=0, atol=1e-7 * np.abs(sol.mean).max())
            np.testing.assert_allclose(S, sol.cov[k], rtol=0, atol=1e-7 * np.abs(sol.cov).max())
        # The verdict is about the end of the span, whichever times are kept.
        assert some.status.tolist() == sol.status.tolist() and (some.t_end == 2.5).all()
    times = np.array([1.0, 2.0])
    mine = flow("softmax", mean, cov, (1.0, 2.5), t_eval=times, **p)
    times[:] = 0.0
    assert mine.t.tolist() == [1.0, 2.0]
    ends = flow("softmax", mean, cov, (1.0, 2.5), store="final", rtol=1e-3, **p)
    assert ends.t.tolist() == [1.0, 2.5] and (ends.n_steps < 101).all()
    equal = flow("softmax", mean, cov, (1.0, 2.5), n_steps=9, **p)
    assert (equal.n_steps == 9).all() and (equal.n_rejected == 0).all() and len(equal.t) == 10


def test_results_say_what_happened() -> None:
    I = np.eye(2)
    good = flow("softmax", None, I, (0, 1), Q=I, K=-I, V=I)
    assert good.success is True and good.message.startswith("the end of t_span was reached")
    bad = flow("softmax", None, I, (0, 1), Q=I, K=I, V=I)
    assert bad.success is False and "blow_up_time" in bad.message
    both = flow("softmax", None, I, (0, 1), Q=I, K=np.stack([-I, I]), V=I)
    assert both.success.tolist() == [True, False] and both.message == "1 not settled, 1 blew up"


def test_every_end_of_a_trajectory_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine says of the end is told, whether or not a field is known that ends so."""
    compute = cpu.gaussian_flow

    def ended(*arguments: Any) -> Any:
        *found, counts = compute(*arguments)
        counts[1, 0] = cpu.FLOW_STATUS.index("step underflow")
        return *found, counts

    monkeypatch.setattr(cpu, "gaussian_flow", ended)
    I = np.eye(2)
    sol = flow("softmax", None, np.stack([I, I]), (0, 1), Q=I, K=-I, V=I)
    assert sol.status.tolist() == ["not settled", "step underflow"]
    assert sol.success.tolist() == [True, False] and "step underflow" in str(sol)


# ---- bad input ---------------------------------------------------------------------------------------

I2 = np.eye(2)
GOOD: dict[str, Any] = {
    "kind": "softmax",
    "mean": np.zeros(2),
    "cov": I2,
    "t_span": (0, 1),
    "Q": I2,
    "K": I2,
    "V": I2,
    "n_steps": 3,
}
BAD = [
    ({"kind": "relu"}, ValueError, "kind: wanted one of .*softmax.*got 'relu'"),
    ({"cov": np.diag([1.0, -1.0])}, ValueError, "cov: wanted positive semidefinite.*lowest is -1"),
    ({"cov": np.array([[1.0, 0.5], [0.0, 1.0]])}, ValueError, "cov: wanted symmetric"),
    (
        {"cov": np.ones((2, 3))},
        ValueError,
        r"cov: wanted covariances of shape \(..., d, d\).*\(2, 3\)",
    ),
    ({"cov": np.array([[np.nan, 0], [0, 1]])}, ValueError, "cov: wanted finite numbers, got NaN"),
    ({"cov": np.eye(2, dtype=int)}, TypeError, "cov: wanted float32 or float64"),
    ({"mean": np.zeros(3)}, ValueError, r"mean: wanted shape \(..., 2\).*\(3,\)"),
    ({"mean": np.zeros(2, np.float32)}, TypeError, "mean: wanted float64 like cov"),
    ({"mean": np.array([np.inf, 0])}, ValueError, "mean: wanted finite"),
    (
        {"mean": np.zeros((3, 2)), "cov": np.ones((4, 1, 1)) * I2},
        ValueError,
        "cov: wanted batch axes",
    ),
    ({"t_span": (1, 0)}, ValueError, r"t_span: wanted t0 < t1, got \(1, 0\)"),
    ({"t_span": (0, 0)}, ValueError, "t_span: wanted t0 < t1"),
    ({"t_span": 1.0}, TypeError, "t_span: wanted a pair"),
    ({"t_span": (0, np.inf)}, ValueError, r"t_span\[1\]: wanted a finite"),
    ({"n_steps": 0}, ValueError, "n_steps: wanted at least 1, got 0"),
    ({"n_steps": 1.5}, TypeError, "n_steps: wanted an integer"),
    ({"epsilon": 0.0}, ValueError, "epsilon: wanted a finite number > 0"),
    ({"epsilon": -1.0}, ValueError, "epsilon: wanted a finite number > 0"),
    ({"Q": np.eye(3)}, ValueError, r"Q: wanted shape \(..., k, 2\).*\(3, 3\)"),
    ({"K": np.ones((1, 2))}, ValueError, "K: wanted as many rows as Q"),
    ({"K": np.eye(2, dtype=np.float32)}, TypeError, "K: wanted float64 like cov"),
    ({"V": np.ones((3, 2))}, ValueError, r"V: wanted shape \(..., 2, 2\), got \(3, 2\)"),
    ({"V": np.full((2, 2), np.nan)}, ValueError, "V: wanted finite"),
    ({"heads": 3}, ValueError, "heads: wanted a divisor of the 2 rows"),
    ({"heads": 0}, ValueError, "heads: wanted at least 1"),
    (
        {"heads": 2, "V": np.ones((3, 2, 2))},
        ValueError,
        r"V: wanted shape \(2, 2\) or \(..., 2, 2, 2\)",
    ),
    ({"method": "rk5"}, ValueError, "method: wanted one of .*rk4"),
    ({"form": "x"}, ValueError, "form: wanted 'covariance' or"),
    ({"judge": "x"}, ValueError, "judge: wanted 'covariance' or"),
    ({"store": 0}, ValueError, "store: wanted at least 1"),
    ({"store": "some"}, ValueError, "store: wanted .all., .final. or an integer"),
    ({"max_memory": 100}, ValueError, "store: 4 times of 1 trajectories take .*max_memory"),
    ({"settle_tol": 0}, ValueError, "settle_tol: wanted"),
    ({"n_threads": 0}, ValueError, "n_threads"),
    ({"rtol": 1e-6}, ValueError, "rtol, atol: wanted none beside n_steps"),
    ({"t_eval": [0.5]}, ValueError, "t_eval: wanted none beside n_steps"),
    ({"n_steps": None, "t_eval": [0.5, 2]}, ValueError, r"t_eval: wanted times within t_span \(0"),
    ({"n_steps": None, "t_eval": [0.5, 0.1]}, ValueError, "t_eval: wanted a rising"),
    ({"n_steps": None, "store": 2}, ValueError, "store: wanted .all. or .final. of steps that"),
    (
        {"n_steps": None, "method": "euler"},
        ValueError,
        "n_steps: wanted for euler, whose steps are",
    ),
]


@pytest.mark.parametrize(("change", "error", "match"), BAD)
def test_bad_input(change: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        flow(**{**GOOD, **change})


def test_inputs_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    mean, cov = law(rng, 3, (5,))
    p = field(rng, 3)
    arrays = [mean, cov, *p.values()]
    before = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    one = flow("softmax", mean, cov, (0, 1), n_steps=5, method="euler", **p)
    turned = flow(
        "softmax",
        mean[::-1],
        np.asfortranarray(cov)[::-1],
        (0, 1),
        n_steps=5,
        method="euler",
        **{k: np.asfortranarray(v) for k, v in p.items()},
    )
    np.testing.assert_array_equal(one.cov[:, ::-1], turned.cov)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_module_is_public() -> None:
    assert qk.gaussian.flow is flow
