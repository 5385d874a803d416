"""Every identity that DAC's appendices A to C state, as a property of random data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from .generators import DTYPES
from .reference import Array

TIGHT = 1e-13  # a tolerance near the last digits


def case(seed: int, n: int, d: int = 3) -> tuple[np.random.Generator, Array, Array]:
    rng = np.random.default_rng((seed, n))
    return rng, 0.7 * rng.normal(size=(n, d)), rng.normal(size=(d, d))


def law(rng: np.random.Generator, n: int) -> Array:
    rho = rng.exponential(size=n) + 0.05
    return rho / rho.sum()


def close(a: Any, b: Any, tol: float = 1e-13) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=tol)


SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 10_000)


# ---- appendix A ---------------------------------------------------------------------------------


@given(SIZES, SEEDS, st.sampled_from((1, 0)))
def test_softmax_of_a_sum_is_the_normalised_product(n: int, seed: int, axis: int) -> None:
    """DAC-3, DAC-9, theorem A.2 and lemma C.5 (eqs 48-51, 69)."""
    rng, X, W = case(seed, n)
    z, s = qk.scores.dot(X, W=W), qk.scores.dense(rng.normal(size=(n, n)))
    a, b = qk.softmax(z, axis), qk.softmax(s, axis)
    product = a.to_numpy() * b.to_numpy()
    want = product / product.sum(axis=axis, keepdims=True)
    close(qk.softmax(z + s, axis).to_numpy(), want)
    close(qk.softmax(qk.poe(a, b), axis).to_numpy(), want)
    close(np.exp(qk.poe(a, b).to_numpy()), product)


@given(SIZES, SEEDS)
def test_a_constant_expert_is_uniform_and_changes_nothing(n: int, seed: int) -> None:
    """DAC-3, corollary A.3 (eqs 54-57): a shift is the expert 1/N."""
    rng, X, W = case(seed, n)
    z = qk.scores.dot(X, W=W)
    rows = rng.normal(size=n)
    expert = qk.softmax(qk.scores.dense(np.broadcast_to(rows[:, None], (n, n)).copy()))
    close(expert.to_numpy(), np.full((n, n), 1 / n))
    close(qk.softmax(qk.poe(qk.softmax(z), expert)).to_numpy(), qk.softmax(z).to_numpy())


# ---- appendix B ---------------------------------------------------------------------------------


@given(SIZES, SEEDS)
def test_sinkhorn_is_gauge_invariant(n: int, seed: int) -> None:
    """DAC-4, lemma B.4 (eq 62)."""
    rng, X, W = case(seed, n)
    z = qk.scores.dot(X, W=W, beta=0.5)
    moved = z.shift(rows=3 * rng.normal(size=n), columns=3 * rng.normal(size=n))
    close(qk.sinkhorn(z, tol=TIGHT).to_numpy(), qk.sinkhorn(moved, tol=TIGHT).to_numpy(), 1e-11)


@given(SIZES, SEEDS)
def test_bistochastic_operators_are_closed_under_products(n: int, seed: int) -> None:
    """DAC-4, lemma B.5 and corollary B.6."""
    _, X, W = case(seed, n)
    A = qk.sinkhorn(qk.scores.forward(X, W=W, beta=0.3), tol=TIGHT)
    B = qk.sinkhorn(qk.scores.distance(X), tol=TIGHT)
    C = A @ B
    assert C.bistochastic
    dense = C.to_numpy()
    close(dense.sum(axis=0), np.ones(n), 1e-10)
    close(dense.sum(axis=1), np.ones(n), 1e-10)
    close(C @ np.ones(n), np.ones(n), 1e-10)
    close(np.ones(n) @ C, np.ones(n), 1e-10)


def test_erratum_13_the_two_bistochastic_attentions_are_transposes() -> None:
    """DAC-4, eqs 9-10: 3.1 says that A+- and A-+ are neither equal nor transposes of each other."""
    _, X, W = case(0, 30)
    forth = qk.sinkhorn(qk.scores.forward(X, W=W)).to_numpy()
    back = qk.sinkhorn(qk.scores.backward(X, W=W)).to_numpy()
    assert np.abs(forth - back).max() > 0.1
    # By B.4 both depend on G alone, A+- on G_ij and A-+ on G_ji: the diagonal terms of the
    # divergences are potentials. So they are transposes, whatever W.
    close(forth, back.T, 1e-7)


@given(SIZES, SEEDS)
def test_sinkhorn_of_attention_sees_only_the_gram_matrix(n: int, seed: int) -> None:
    """DAC-4: A+- = Sinkhorn(beta G) and A-+ = Sinkhorn(beta G^T) = (A+-)^T (from B.4)."""
    _, X, W = case(seed, n)
    forth = qk.sinkhorn(qk.scores.forward(X, W=W, beta=0.4), tol=TIGHT)
    back = qk.sinkhorn(qk.scores.backward(X, W=W, beta=0.4), tol=TIGHT)
    plain = qk.sinkhorn(qk.scores.dot(X, W=W, beta=0.4), tol=TIGHT)
    close(forth.to_numpy(), plain.to_numpy(), 1e-11)
    close(back.to_numpy(), plain.to_numpy().T, 1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
def test_symmetric_scores_take_the_averaged_update(dtype: str) -> None:
    """DAC-5: P+- is symmetric, and the averaged update finds the same operator."""
    X = case(1, 50)[1].astype(dtype)
    P = qk.sinkhorn(qk.scores.distance(X))
    assert P.bridge.method == "symmetric, stored"
    assert P.bistochastic
    dense = P.to_numpy()
    np.testing.assert_array_equal(dense, dense.T)
    uniform = np.full(50, 1 / 50, dtype)
    plain = qk.bridge(qk.scores.distance(X), uniform, uniform, solver="alternating")
    assert plain.method == "alternating, stored"
    np.testing.assert_allclose(50 * plain.plan(), dense, atol=1e-4 if dtype == "float32" else 1e-7)
    np.testing.assert_array_equal(P.stationary(), uniform)
    assert P.regime().regime == "EQ"


# ---- appendix C ---------------------------------------------------------------------------------


@given(st.integers(2, 30), SEEDS)
def test_equal_marginals_are_stationary_for_the_bridge(n: int, seed: int) -> None:
    """DAC-7, proposition C.1 (eq 65)."""
    rng, X, W = case(seed, n)
    rho = law(rng, n)
    b = qk.bridge(qk.scores.dot(X, W=W, beta=0.4), rho, rho, tol=TIGHT)
    close(rho @ b.forward, rho, 1e-12)
    close(rho @ b.backward, rho, 1e-12)


@given(st.integers(1, 40), SEEDS)
def test_diffusion_maps_are_reversible(n: int, seed: int) -> None:
    """DAC-5, proposition C.2 (eqs 19, 66): pi ~ Z, stationarity, detailed balance."""
    _, X, W = case(seed, n)
    P = qk.softmax(qk.scores.distance(X, W=W @ W.T))
    Z = np.exp(P.log_normalizer)
    pi = Z / Z.sum()
    close(P.stationary(), pi)
    close(pi @ P, pi)
    close(P.currents(pi), np.zeros((n, n)), 1e-15)


@given(st.integers(1, 30), SEEDS)
def test_diffusion_maps_are_equilibrium_bridges(n: int, seed: int) -> None:
    """DAC-7, theorem C.3 (eqs 20, 67): the bridge at pi has u- = 1, u+ = pi/Z, forward P+."""
    _, X, _ = case(seed, n)
    s = qk.scores.distance(X)
    P = qk.softmax(s)
    pi = P.stationary()
    b = qk.bridge(s, pi, pi, tol=TIGHT)
    close(b.forward.to_numpy(), P.to_numpy(), 1e-11)
    close(b.g, np.zeros(n), 1e-10)
    close(b.f, np.log(pi) - P.log_normalizer, 1e-10)
    close(b.plan(), pi[:, None] * P.to_numpy(), 1e-12)


@given(st.integers(1, 30), SEEDS)
def test_bridges_are_doob_transforms(n: int, seed: int) -> None:
    """DAC-7, proposition C.4 (eqs 22, 33-35, 68): of the row softmax, with h = u-."""
    rng, X, W = case(seed, n)
    s = qk.scores.forward(X, W=W, beta=0.3)
    mu, nu = law(rng, n), law(rng, n)
    b = qk.bridge(s, mu, nu, tol=TIGHT)
    A = qk.softmax(s)
    plan = b.plan()
    close(b.forward.to_numpy(), plan / plan.sum(axis=1, keepdims=True), 1e-12)
    close(b.forward.to_numpy(), A.doob(np.exp(b.g)).to_numpy(), 1e-13)
    close(b.backward.to_numpy(), (plan / plan.sum(axis=0)).T, 1e-12)
    close(mu @ b.forward, nu, 1e-12)
    close(nu @ b.backward, mu, 1e-12)


@given(st.integers(1, 40), SEEDS, st.floats(0.05, 1.0))
def test_diffusion_is_a_product_of_directional_experts(n: int, seed: int, beta: float) -> None:
    """DAC-9, theorem C.6 (eqs 25-29, 70-71), with an asymmetric W."""
    _, X, W = case(seed, n)
    W = W / 2
    e = qk.directional_experts(X, W=W, beta=beta)
    P = qk.softmax(qk.scores.distance(X, W=W, beta=beta)).to_numpy()
    for exact in (e.weighted(), e.by_rows(), e.diffusion()):
        close(exact.to_numpy(), P, 1e-12)
    # eq 25: the kernel itself
    z_plus = np.exp(e.forward.log_normalizer)
    K = z_plus[:, None] * e.forward.to_numpy() * e.backward.to_numpy() * np.exp(e.log_z)
    np.testing.assert_allclose(
        K, np.exp(qk.scores.distance(X, W=W, beta=beta).to_numpy()), rtol=1e-11
    )
    # eq 27: an approximation; the reported error is right
    product = e.forward.to_numpy() * e.backward.to_numpy()
    want = product / product.sum(axis=1, keepdims=True)
    approximation = e.constant_z()
    close(approximation.operator.to_numpy(), want, 1e-12)
    distance = 0.5 * np.abs(want - P).sum(axis=1)
    close(approximation.total_variation, distance, 1e-12)
    assert approximation.max_error == pytest.approx(distance.max(), abs=1e-12)
    assert approximation.mean_error == pytest.approx(distance.mean(), abs=1e-12)


def test_constant_z_is_exact_when_z_is_constant() -> None:
    """DAC-9, eq 27: on a circle every column has the same z."""
    t = 2 * np.pi * np.arange(24) / 24
    e = qk.directional_experts(np.column_stack([np.cos(t), np.sin(t)]), beta=2.0)
    approximation = e.constant_z()
    assert approximation.log_z_spread < 1e-13
    assert approximation.max_error < 1e-14
    assert "at most" in str(approximation)
    _, X, _ = case(0, 24)
    assert qk.directional_experts(X, beta=2.0).constant_z().max_error > 0.01


@given(st.integers(1, 30), SEEDS)
def test_attention_is_a_bridge_exactly_when_the_marginals_are_its_own(n: int, seed: int) -> None:
    """DAC-7, proposition C.7 (eqs 36, 72-74), both directions."""
    rng, X, W = case(seed, n)
    s = qk.scores.forward(X, W=W, beta=0.3)
    A = qk.softmax(s)
    mu = law(rng, n)
    nu = mu @ A
    b = qk.bridge(s, mu, nu / nu.sum(), tol=TIGHT)
    close(b.forward.to_numpy(), A.to_numpy(), 1e-11)
    if n < 3:
        return
    other = law(rng, n)
    assert np.abs(other - nu).sum() > 1e-3
    c = qk.bridge(s, mu, other, tol=TIGHT)
    assert np.abs(c.forward.to_numpy() - A.to_numpy()).max() > 1e-6


@given(st.integers(3, 30), SEEDS)
def test_attention_is_a_steady_state_bridge(n: int, seed: int) -> None:
    """DAC-7, DAC-8, 4.3: at its stationary law attention is the bridge's forward kernel, NESS."""
    _, X, W = case(seed, n)
    s = qk.scores.forward(X, W=W, beta=0.3)
    A = qk.softmax(s)
    pi = A.stationary()
    b = qk.bridge(s, pi, pi, tol=TIGHT)
    close(b.forward.to_numpy(), A.to_numpy(), 1e-10)
    assert A.regime().regime == "NESS"


# ---- errata -------------------------------------------------------------------------------------


@given(st.integers(3, 30), SEEDS)
def test_erratum_1_symmetric_kernels_have_no_steady_currents(n: int, seed: int) -> None:
    """DAC-7, 4.1: a bridge over a symmetric kernel with equal marginals is in equilibrium, whatever
    the marginal, although h = u- is not constant."""
    rng, X, _ = case(seed, n)
    rho = law(rng, n)
    s = qk.scores.distance(X, beta=0.2)
    b = qk.bridge(s, rho, rho, tol=TIGHT)
    assert b.converged
    assert np.ptp(b.g) > 1e-3  # not the trivial bridge of C.3
    plan = b.plan()
    close(plan, plan.T, 1e-12)
    assert np.abs(b.forward.currents(rho)).max() < 1e-12
    # The alternating solver does not use the symmetry, and finds the same.
    plain = qk.bridge(s, rho, rho, tol=TIGHT, solver="alternating")
    assert plain.converged
    close(plain.plan(), plain.plan().T, 1e-12)


def test_erratum_1_an_asymmetric_kernel_has_them() -> None:
    rng, X, W = case(0, 30)
    rho = law(rng, 30)
    b = qk.bridge(qk.scores.dot(X, W=W), rho, rho, tol=1e-12)
    report = b.forward.regime(rho, tol=1e-9)
    assert report.regime == "NESS"
    assert report.max_current > 1e-4


def test_erratum_2_the_qk_metric_is_not_symmetric() -> None:
    """DAC-1, D.2: as written it is not symmetric, unless |Q_i| = |K_i|; symmetrised it is."""
    rng = np.random.default_rng(0)
    Q, K = rng.normal(size=(2, 20, 4))
    printed = qk.divergence.qk_metric(Q, K).to_numpy()
    C = Q @ K.T
    q, k = (Q**2).sum(1), (K**2).sum(1)
    close(printed, q[:, None] + k - C - C.T, 1e-13)
    assert np.abs(printed - printed.T).max() > 1
    close(printed - printed.T, (q - k)[:, None] - (q - k), 1e-13)
    mean = qk.divergence.qk_metric(Q, K, symmetrized=True)
    close(mean.to_numpy(), (printed + printed.T) / 2, 1e-13)
    # With equal norms both are symmetric.
    K2 = K * np.sqrt(q / k)[:, None]
    same = qk.divergence.qk_metric(Q, K2).to_numpy()
    close(same, same.T, 1e-12)
    # The symmetrised metric gives a chain in equilibrium, the printed one does not.
    assert qk.softmax(mean.scores(0.2)).regime().regime == "EQ"
    # Row softmax drops the row term: what is left of the asymmetry is a column bias, so the
    # printed kernel still satisfies detailed balance, at another law.
    assert qk.softmax(qk.divergence.qk_metric(Q, K).scores(0.2)).regime().regime == "EQ"
