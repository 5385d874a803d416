"""Formulas of Gaussian flows (TPDE-3): lines, commuting, rank one, stationary; energies (TPDE-4)."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.integrate import solve_ivp

from qkcore import gaussian

from . import reference_gaussian as ref
from .reference_gaussian import Array

positive = st.floats(0.05, 3)
signed = positive.flatmap(lambda x: st.sampled_from([x, -x]))


def scalar_ode(f: object, s0: float, t: float) -> float:
    solution = solve_ivp(lambda _, s: f(s), (0, t), [s0], "DOP853", rtol=1e-12, atol=1e-14)  # type: ignore[operator]
    return float(solution.y[0, -1])


# ---- on a line ---------------------------------------------------------------------------------------


@given(s0=positive, a=signed, v=signed, part=st.floats(0, 0.95))
def test_softmax_line(s0: float, a: float, v: float, part: float) -> None:
    """TPDE-3, proposition 4.3: variance and blow-up time."""
    blow_up = float(gaussian.softmax_blow_up_line(s0, a, v))
    assert blow_up == (1 / (2 * a * v * s0) if a * v > 0 else math.inf)
    t = part * min(blow_up, 2.0)
    found = float(gaussian.softmax_line(s0, a, v, t))
    assert found == pytest.approx(scalar_ode(lambda s: 2 * a * v * s * s, s0, t), rel=1e-8)
    assert gaussian.softmax_line(s0, a, v, 1.01 * blow_up) in (math.inf, 0.0) or blow_up == math.inf


@given(s0=positive, q=signed, k=signed, v=signed, t=st.floats(0, 2))
def test_l2_line(s0: float, q: float, k: float, v: float, t: float) -> None:
    """TPDE-3, proposition 4.13, integrated by Wright's omega; never infinite (lemma 4.12)."""
    rate = 2 * q * v / k  # of the exponential growth of a large variance
    if rate > 0:
        t = min(t, 150 / rate - 0.1)  # up to 1e65: beyond max_growth the flow below stops
    found = float(gaussian.l2_line(s0, q, k, v, t))
    exact = scalar_ode(lambda s: 4 * q * k * v * s * s / (1 + 2 * k * k * s), s0, t)
    assert found == pytest.approx(exact, rel=1e-7)
    sol = gaussian.flow(
        "l2", None, s0 * np.eye(1), (0, t + 0.1), Q=q * np.eye(1), K=k * np.eye(1), V=v * np.eye(1),
        store="final", method="dopri5", max_growth=1e80, rtol=1e-10,
    )  # fmt: skip
    assert sol.cov[-1, 0, 0] == pytest.approx(
        float(gaussian.l2_line(s0, q, k, v, t + 0.1)), rel=1e-6
    )


@given(s0=positive, a=signed, v=signed, t=st.floats(0, 2), epsilon=st.floats(0.2, 3))
def test_sinkhorn_line(s0: float, a: float, v: float, t: float, epsilon: float) -> None:
    """TPDE-3, proposition 4.17 with any ε: ε is absorbed as a/ε, v/ε."""
    found = float(gaussian.sinkhorn_line(s0, a, v, t, epsilon))
    b, w = a / epsilon, v / epsilon
    exact = scalar_ode(lambda s: w / b * (np.sqrt(4 * b * b * s * s + 1) - 1), s0, t)
    assert found == pytest.approx(exact, rel=1e-7)


def test_lines_at_the_edges() -> None:
    assert gaussian.l2_line(0.0, 1, 1, 1, 1) == 0 and gaussian.sinkhorn_line(0.0, 1, 1, 1) == 0
    assert gaussian.l2_line(2.0, 1, 0, 1, 1) == 2 and gaussian.sinkhorn_line(2.0, 0, 1, 1) == 2
    assert gaussian.softmax_line(1.0, 1.0, 1.0, np.array([0.0, 0.6])).tolist() == [1.0, math.inf]
    # decay like 1/t over many decades, growth over many orders
    t = 1e9
    assert gaussian.sinkhorn_line(1.0, 1, -1, t) == pytest.approx(1 / (2 * t), rel=1e-6)
    assert gaussian.l2_line(1.0, 1, 1, -1, t) == pytest.approx(1 / (4 * t), rel=1e-6)
    assert 1e80 < gaussian.l2_line(1.0, 1, 1, 1, 100) < math.inf
    # t = infinity: growing solutions are infinite, decaying ones 0, constant ones unchanged
    for line in (gaussian.softmax_line, gaussian.sinkhorn_line):
        assert line(2.0, [1, -1, 0, 1], [1, 1, 1, 0], math.inf).tolist() == [math.inf, 0, 2, 2]
    found = gaussian.l2_line(2.0, [1, -1, 0, 1, 1], [1, 1, 1, 0, 1], [1, 1, 1, 1, 0], math.inf)
    assert found.tolist() == [math.inf, 0, 2, 2, 2]
    with pytest.raises(ValueError, match="s0: wanted finite variances >= 0"):
        gaussian.softmax_line(-1.0, 1, 1, 1)
    with pytest.raises(ValueError, match="epsilon: wanted a finite number > 0"):
        gaussian.sinkhorn_line(1.0, 1, 1, 1, 0.0)


# ---- commuting parameters ----------------------------------------------------------------------------


def commuting_case(rng: np.random.Generator, d: int) -> tuple[Array, Array, Array]:
    """V commutes with Σ and with VA + A'V', A is neither symmetric nor diagonal with them."""
    blocks = [2] * (d // 2) + [1] * (d % 2)
    R = np.linalg.qr(rng.normal(size=(d, d)))[0]
    V, S, B = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    at = 0
    for size in blocks:
        here = slice(at, at + size)
        V[here, here] = rng.uniform(0.5, 2) * np.eye(size)
        X, Y = rng.normal(size=(2, size, size))
        S[here, here] = X @ X.T + 0.1 * np.eye(size)
        B[here, here] = Y + Y.T
        at += size
    skew = rng.normal(size=(d, d))
    A = np.linalg.inv(V) @ (0.5 * B + (skew - skew.T))  # VA + A'V' = B
    return R @ S @ R.T, R @ A @ R.T, R @ V @ R.T


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_commuting_parameters(d: int) -> None:
    """TPDE-3, proposition 4.4: the formula solves eq 4.1, and its blow-up time is the flow's."""
    rng = np.random.default_rng(d)
    for _ in range(3):
        S, A, V = commuting_case(rng, d)
        S = 0.5 * (S + S.T)
        formula = gaussian.commuting(S, A, V)
        end = 0.8 * min(formula.blow_up_time, 2.0)
        sol = gaussian.flow(
            "softmax",
            None,
            S,
            (0, end),
            Q=A,
            K=np.eye(d),
            V=V,
            t_eval=np.linspace(0, end, 6),
            method="dopri5",
            rtol=1e-11,
        )
        np.testing.assert_allclose(
            sol.cov, formula(sol.t), rtol=0, atol=1e-8 * np.abs(sol.cov).max()
        )
        assert sol.blow_up_exact and sol.blow_up_time == pytest.approx(formula.blow_up_time)
        if formula.blow_up_time < math.inf:
            long = gaussian.flow(
                "softmax",
                None,
                S,
                (0, 3 * formula.blow_up_time),
                Q=A,
                K=np.eye(d),
                V=V,
                t_eval=np.linspace(0, 3 * formula.blow_up_time, 6),
                method="dopri5",
            )
            assert long.status == "blew up"
            assert abs(long.t_end / formula.blow_up_time - 1) < 1e-5
            with pytest.raises(ValueError, match="t: wanted times before the blow-up"):
                formula(formula.blow_up_time)


def test_commuting_limit() -> None:
    """TPDE-3, proposition 4.4 and remark 4.5: what stays lives on the kernel of VA + A'V'."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4, 4))
    S = X @ X.T + 0.1 * np.eye(4)
    q = rng.normal(size=(2, 4))
    formula = gaussian.commuting(S, -q.T @ q, np.eye(4))
    assert (
        formula.blow_up_time == math.inf and formula.limit_rank == 2 and formula.limit is not None
    )
    np.testing.assert_allclose(formula(1e9), formula.limit, atol=1e-7)
    assert np.abs(q @ formula.limit).max() < 1e-10
    # Σ0 commutes with A: eigenvalues stay or vanish (remark 4.5)
    easy = gaussian.commuting(np.diag([1.0, 2.0, 3.0]), np.diag([0.0, -1.0, 0.0]), np.eye(3))
    np.testing.assert_allclose(easy.limit, np.diag([1.0, 0.0, 3.0]), atol=1e-12)


def test_what_does_not_commute_is_refused() -> None:
    S, V = np.diag([1.0, 2.0]), np.array([[1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="V: wanted a matrix that commutes with cov"):
        gaussian.commuting(S, np.eye(2), V)
    with pytest.raises(ValueError, match=r"V: wanted a matrix that commutes with VA \+ A\^T V\^T"):
        gaussian.commuting(np.eye(2), np.diag([1.0, 2.0]), V)
    with pytest.raises(ValueError, match=r"A: wanted shape \(2, 2\)"):
        gaussian.commuting(np.eye(2), np.eye(3), V)
    with pytest.raises(ValueError, match="cov: wanted one covariance"):
        gaussian.commuting(np.eye(2)[None], np.eye(2), np.eye(2))
    assert gaussian.commuting(np.zeros((2, 2)), np.eye(2), np.eye(2)).blow_up_time == math.inf


# ---- rank one ----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), d=st.integers(1, 4))
def test_rank_one(seed: int, d: int) -> None:
    """TPDE-3, lemma 4.6: u' = (u'Au) Vu, through the clock, against the ODE and against the flow of uu'."""
    rng = np.random.default_rng(seed)
    u0, A, V = 0.5 * rng.normal(size=d), rng.normal(size=(d, d)), rng.normal(size=(d, d))
    end = 0.3 / (
        np.linalg.norm(A) * np.linalg.norm(V) * (u0 @ u0) + 0.1
    )  # no blow-up before 1/2 of it
    t = np.linspace(0, end, 3)
    found = gaussian.rank_one(u0, A, V, t)
    exact = solve_ivp(
        lambda _, u: (u @ A @ u) * (V @ u), (0, end), u0, "DOP853", t, rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(found.u, exact.y.T, atol=1e-8)
    sol = gaussian.flow(
        "softmax", None, np.outer(u0, u0), (0, end), Q=A, K=np.eye(d), V=V, n_steps=200, method="rk4",
        store="final", form="pushforward",
    )  # fmt: skip
    np.testing.assert_allclose(sol.cov[-1], found.cov[-1], atol=1e-8)
    values = np.linalg.eigvalsh(sol.cov[-1])
    assert np.abs(values[:-1]).max(initial=0) <= 1e-13 * values[-1]  # rank one is preserved


def test_rank_one_blow_up_and_input() -> None:
    with pytest.raises(ValueError, match=r"t: wanted times before the blow-up near 0\.5"):
        gaussian.rank_one(np.ones(1), np.eye(1), np.eye(1), [0.0, 1.0])
    with pytest.raises(ValueError, match="u0: wanted one vector of shape"):
        gaussian.rank_one(np.ones((1, 1)), np.eye(1), np.eye(1), [0.0])
    with pytest.raises(ValueError, match="t: wanted rising times"):
        gaussian.rank_one(np.ones(1), np.eye(1), np.eye(1), [1.0, 0.0])
    still = gaussian.rank_one(
        np.array([1.0, 1.0]), np.diag([1.0, -1.0]), np.diag([1.0, 1.0]), [0.0, 5.0]
    )
    np.testing.assert_allclose(still.u[1], [1.0, 1.0], atol=1e-12)  # isotropic: stationary


# ---- stationary points -------------------------------------------------------------------------------


def test_rank_one_stationary_points() -> None:
    """TPDE-3, lemma 4.7: exactly the kernel of V and the isotropic cone of A + A'."""
    rng = np.random.default_rng(0)
    A, V = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    A = A - A.T + np.diag([1.0, -1.0, 0.5])
    cone = np.array([1.0, 1.0, 0.0])  # u'(A + A')u = 0
    report = gaussian.stationarity(np.outer(cone, cone), A, V)
    assert report.stationary and report.rank == 1 and abs(report.isotropy or 0) < 1e-12
    assert report.in_kernel is not None and report.in_kernel > 0.01
    other = np.array([1.0, 0.5, 0.0])
    report = gaussian.stationarity(np.outer(other, other), A, V)
    assert not report.stationary and abs(report.isotropy or 0) > 1e-3
    P = np.eye(3) - np.outer(other, other) / (other @ other)
    report = gaussian.stationarity(np.outer(other, other), A, V @ P)
    assert report.stationary and report.in_kernel == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(np.abs(report.direction), np.abs(other))
    assert "TPDE 4.7" in str(report)
    # the flow agrees
    sol = gaussian.flow(
        "softmax",
        None,
        np.outer(cone, cone),
        (0, 1),
        Q=A,
        K=np.eye(3),
        V=V,
        n_steps=100,
        method="rk4",
    )
    np.testing.assert_allclose(sol.cov[-1], np.outer(cone, cone), atol=1e-12)


@given(
    seed=st.integers(0, 10**6), signs=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=5)
)
def test_rank_bound_is_attained(seed: int, signs: list[int]) -> None:
    """TPDE-3, proposition 4.8: a largest isotropic space gives a stationary Σ of that rank."""
    rng = np.random.default_rng(seed)
    d = len(signs)
    R = np.linalg.qr(rng.normal(size=(d, d)))[0]
    size = np.array(signs) * rng.uniform(0.5, 2, size=d)
    A = R @ np.diag(size) @ R.T
    A = 0.5 * (A + A.T)
    n_zero, n_plus, n_minus = (signs.count(x) for x in (0, 1, -1))
    bound = n_zero + min(n_plus, n_minus)
    assert gaussian.stationary_rank_bound(A) == bound
    columns = [R[:, i] for i in range(d) if signs[i] == 0]
    pairs = zip(
        [i for i in range(d) if signs[i] > 0], [i for i in range(d) if signs[i] < 0], strict=False
    )
    columns += [R[:, i] / np.sqrt(size[i]) + R[:, j] / np.sqrt(-size[j]) for i, j in pairs]
    basis = np.array(columns).reshape(-1, d).T
    S = basis @ basis.T
    report = gaussian.stationarity(0.5 * (S + S.T), A, np.eye(d), tol=1e-9)
    assert report.stationary and report.rank == bound == report.rank_bound
    full = gaussian.stationarity(np.eye(d), A, np.eye(d))
    assert full.stationary == (n_plus + n_minus == 0)


def test_stationarity_input() -> None:
    with pytest.raises(ValueError, match="A: wanted a symmetric matrix"):
        gaussian.stationary_rank_bound(np.array([[0.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="A: wanted a square matrix"):
        gaussian.stationary_rank_bound(np.ones((2, 3)))
    with pytest.raises(ValueError, match="cov: wanted one covariance"):
        gaussian.stationarity(np.eye(2)[None], np.eye(2), np.eye(2))
    assert (
        gaussian.stationarity(np.eye(2), np.array([[0, 1.0], [0, 0]]), np.eye(2)).rank_bound is None
    )
    assert gaussian.stationarity(np.zeros((2, 2)), np.eye(2), np.eye(2)).rank == 0


# ---- energies ----------------------------------------------------------------------------------------


def symmetric_problem(rng: np.random.Generator, d: int) -> tuple[Array, Array, Array, Array]:
    """(cov, Q, K, A) with A = K'Q symmetric, of either sign, and Q unlike K."""
    X, Y = rng.normal(size=(2, d, d))
    A = 0.5 * (Y + Y.T)
    Q = rng.normal(size=(d, d)) + 2 * np.eye(d)
    return X @ X.T / d + 0.1 * np.eye(d), Q, np.linalg.inv(Q).T @ A.T, A


def numeric_gradient(f: object, cov: Array) -> Array:
    """The symmetric gradient by central differences."""
    d, h = len(cov), 1e-5
    out = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            E = np.zeros((d, d))
            E[i, j] += 0.5
            E[j, i] += 0.5
            out[i, j] = (f(cov + h * E) - f(cov - h * E)) / (2 * h)  # type: ignore[operator]
    return out


@pytest.mark.parametrize("d", [1, 2, 3])
def test_sinkhorn_flow_is_the_bures_wasserstein_flow(d: int) -> None:
    """TPDE-4, 5.3: A = A' = -V. Gradients by differences; errata 22 and 23 by numbers."""
    rng = np.random.default_rng(d)
    cov, Q, K, A = symmetric_problem(rng, d)
    mean, epsilon = rng.normal(size=d), 0.7

    def energy(S: Array, m: Array = mean, printed: bool = False) -> float:
        return gaussian.sinkhorn_energy(m, S, Q=Q, K=K, epsilon=epsilon, as_printed=printed)

    G = gaussian.sinkhorn_gradient(cov, Q=Q, K=K, epsilon=epsilon)
    np.testing.assert_allclose(G, numeric_gradient(energy, cov), atol=1e-6)
    flow = gaussian.velocity("sinkhorn", mean, cov, Q=Q, K=K, V=-A, epsilon=epsilon)
    np.testing.assert_allclose(gaussian.bures_rate(cov, G), flow.cov_rate, atol=1e-10)
    half = -(G @ cov + cov @ G)  # as printed, except for the sign
    assert np.abs(half - flow.cov_rate).max() > 0.3 * np.abs(flow.cov_rate).max()

    h = 1e-5
    slope = np.array(
        [(energy(cov, mean + h * e) - energy(cov, mean - h * e)) / (2 * h) for e in np.eye(d)]
    )
    np.testing.assert_allclose(-slope, flow.mean_rate, atol=1e-6)
    printed = np.array(
        [
            (energy(cov, mean + h * e, True) - energy(cov, mean - h * e, True)) / (2 * h)
            for e in np.eye(d)
        ]
    )
    assert np.abs(printed + flow.mean_rate).max() > 0.1


def test_energies_along_their_flows() -> None:
    """TPDE-4: F_ε falls along the Sinkhorn flow, the twisted energy along the softmax flow."""
    rng = np.random.default_rng(4)
    cov, Q, K, A = symmetric_problem(rng, 2)
    mean = rng.normal(size=2)
    sol = gaussian.flow("sinkhorn", mean, cov, (0, 1), Q=Q, K=K, V=-A, n_steps=40, method="rk4")
    values = [
        gaussian.sinkhorn_energy(m, S, Q=Q, K=K) for m, S in zip(sol.mean, sol.cov, strict=True)
    ]
    assert (np.diff(values) < 0).all()
    X = rng.normal(size=(2, 2))
    B, A = X @ X.T + 0.2 * np.eye(2), 0.3 * rng.normal(size=(2, 2))
    cov = 0.5 * np.eye(2)
    sol = gaussian.flow(
        "softmax", 0.5 * mean, cov, (0, 1), Q=A, K=np.eye(2), V=-B @ A.T, n_steps=40, method="rk4"
    )
    values = [gaussian.twisted_energy(m, S, A) for m, S in zip(sol.mean, sol.cov, strict=True)]
    assert np.isfinite(values).all() and (np.diff(values) < 0).all()


@pytest.mark.parametrize("d", [1, 2])
def test_twisted_energy_by_quadrature(d: int) -> None:
    """TPDE-4, 5.4 and D.2: half the mean of exp(Ax.y), and the printed formula where it is right."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(d, d))
    cov, A, mean = (
        0.2 * (X @ X.T + np.eye(d)) / d,
        0.7 * rng.normal(size=(d, d)),
        rng.normal(size=d),
    )
    x, w = ref.gauss_hermite(mean, cov, 50 if d == 1 else 30)
    wanted = 0.5 * w @ np.exp(x @ A.T @ x.T) @ w
    assert gaussian.twisted_energy(mean, cov, A) == pytest.approx(wanted, rel=1e-8)
    inverse = np.linalg.inv(cov)
    inner = (A + inverse).T @ np.linalg.inv(inverse - A @ cov @ A.T) @ (A + inverse) - inverse
    paper = np.exp(0.5 * mean @ inner @ mean) / (
        2 * abs(np.linalg.det(np.eye(d) - A @ cov @ A.T @ cov)) ** 0.5
    )
    assert gaussian.twisted_energy(mean, cov, A) == pytest.approx(paper, rel=1e-10)


def test_twisted_energy_is_infinite_where_the_integral_is() -> None:
    """Erratum 24: the paper's |det| gives 0.75 for s a = 1.2, where the integral diverges."""
    assert gaussian.twisted_energy(None, 1.2 * np.eye(1), np.eye(1)) == math.inf
    assert 1 / (2 * abs(1 - 1.44) ** 0.5) == pytest.approx(0.754, abs=1e-3)
    grows = []
    for n in (20, 40, 80):
        x, w = ref.gauss_hermite(np.zeros(1), 1.2 * np.eye(1), n)
        grows.append(0.5 * w @ np.exp(np.outer(x, x)) @ w)
    assert grows[2] > 100 * grows[1] > 1e4 * grows[0]
    assert gaussian.twisted_energy(None, np.zeros((2, 2)), np.eye(2)) == 0.5


def test_energy_input() -> None:
    I = np.eye(2)
    with pytest.raises(ValueError, match="cov: wanted one law"):
        gaussian.twisted_energy(None, I[None], I)
    with pytest.raises(ValueError, match="cov: wanted one law"):
        gaussian.sinkhorn_energy(None, I[None], Q=I, K=I)
    with pytest.raises(ValueError, match="epsilon: wanted a finite number > 0"):
        gaussian.sinkhorn_energy(None, I, Q=I, K=I, epsilon=0)
    with pytest.raises(ValueError, match=r"gradient: wanted shape \(..., 2, 2\)"):
        gaussian.bures_rate(I, np.eye(3))


def test_softmax_with_negative_scores_may_blow_up() -> None:
    """Erratum 25: section 4.5 says that A + A' < 0 gives convergence to 0 whatever V; V = -I blows up."""
    rng = np.random.default_rng(0)
    n = 200
    X, Y = rng.normal(size=(2, n, 2, 2))
    S = X @ X.swapaxes(1, 2) / 2
    Q, V = Y, rng.normal(size=(n, 2, 2))
    sol = gaussian.flow(
        "softmax", None, S, (0, 200), Q=Q, K=-Q, V=V, store="final", method="dopri5"
    )
    counts = sol.counts()
    assert sum(counts.values()) == n
    assert counts["blew up"] > 20
    line = gaussian.flow(
        "softmax",
        None,
        np.eye(1),
        (0, 1),
        Q=np.eye(1),
        K=-np.eye(1),
        V=-np.eye(1),
        n_steps=500,
        method="euler",
    )
    assert line.status == "blew up" and line.blow_up_time == 0.5
