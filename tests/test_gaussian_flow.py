"""Gaussian flows (TPDE-3): velocities by quadrature, flows against SciPy, formulas, errors."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.integrate import solve_ivp

import qkcore as qk
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
    ({"rtol": 1e-6}, ValueError, "rtol, atol: wanted None if n_steps is given"),
    ({"t_eval": [0.5]}, ValueError, "t_eval: wanted none beside n_steps"),
    ({"n_steps": None, "t_eval": [0.5, 2]}, ValueError, r"t_eval: wanted times within t_span \(0"),
    ({"n_steps": None, "t_eval": [0.5, 0.1]}, ValueError, "t_eval: wanted rising times"),
    ({"n_steps": None, "store": 2}, ValueError, "store: wanted .all. or .final. with adaptive"),
    (
        {"n_steps": None, "method": "euler"},
        ValueError,
        "n_steps: wanted a number of steps for euler, whose steps are",
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
