"""Mobility, softmax, proximal steps, effective mobility (EOT-1, EOT-2, EOT-8) against formed matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import qkcore as qk
from qkcore.simplex import EffectiveMobility, Mobility, free_energy, from_logits, jko, kl_prox
from tests import reference_simplex as ref

SIZES = (1, 2, 3, 7, 8, 9, 17, 64)


def random_p(rng: np.random.Generator, n: int, spread: float = 2.0) -> ref.Array:
    return ref.softmax(spread * rng.standard_normal(n))


# ---- softmax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_softmax_with_temperature(dtype: str, tau: float) -> None:
    z = np.random.default_rng(0).normal(size=(3, 4, 9)).astype(dtype) * 10
    got = from_logits(z, tau)
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got, ref.softmax(z.astype(float), tau), rtol=0, atol=4 * np.finfo(dtype).eps
    )
    assert from_logits(np.array([1e300, -1e300, 0.0]), 1e-300).tolist() == [1, 0, 0]


def test_entropy_of_known_rows() -> None:
    p = np.array([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    np.testing.assert_allclose(qk.simplex.entropy(p), np.log([4.0, 1.0, 2.0]), atol=1e-15)


# ---- EOT-2: mobility ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_figures_of_the_formed_matrix(n: int, tau: float) -> None:
    """EOT-2: product, norms, trace, spectrum, condition number."""
    rng = np.random.default_rng(n)
    for _ in range(5):
        p = random_p(rng, n)
        J, M = Mobility(p, tau), ref.mobility(p, tau)
        v = rng.standard_normal(n)
        eigenvalues = np.linalg.eigvalsh(M)
        np.testing.assert_allclose(J @ v, M @ v, atol=1e-14 / tau)
        np.testing.assert_allclose(J.to_numpy(), M, atol=1e-15 / tau)
        np.testing.assert_allclose(J.eigenvalues(), eigenvalues, atol=1e-15 / tau)
        assert J.operator_norm == pytest.approx(np.linalg.norm(M, 2), abs=1e-15 / tau)
        assert J.frobenius_norm == pytest.approx(np.linalg.norm(M), abs=1e-14 / tau)
        assert J.trace == pytest.approx(np.trace(M), abs=1e-15 / tau)
        if n > 1:
            assert J.condition_number == pytest.approx(eigenvalues[-1] / eigenvalues[1], rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_and_dtypes_and_strides(dtype: str) -> None:
    rng = np.random.default_rng(1)
    p = from_logits(rng.normal(size=(4, 6, 11)).astype(dtype))
    v = rng.normal(size=(4, 6, 11)).astype(dtype)
    for q, w in (
        (p, v),
        (p[:, ::2], v[:, ::2]),
        (p[:, :, ::-1], v[:, :, ::-1]),
        (p.swapaxes(0, 1), v.swapaxes(0, 1)),
    ):
        q.setflags(write=False)
        J = Mobility(q, 0.5)
        eps = float(np.finfo(dtype).eps)
        product = J @ w
        assert product.dtype == dtype and J.eigenvalues().dtype == dtype
        for index in np.ndindex(q.shape[:2]):
            M = ref.mobility(q[index].astype(float) / q[index].astype(float).sum(), 0.5)
            np.testing.assert_allclose(product[index], M @ w[index], atol=20 * eps)
            np.testing.assert_allclose(J.eigenvalues()[index], np.linalg.eigvalsh(M), atol=10 * eps)
            assert J.operator_norm[index] == pytest.approx(np.linalg.norm(M, 2), abs=10 * eps)
            assert J.frobenius_norm[index] == pytest.approx(np.linalg.norm(M), abs=10 * eps)


def test_two_tokens() -> None:
    """EOT-2, L.3: J = p(1-p) [[1, -1], [-1, 1]], eigenvalues 0 and 2p(1-p)."""
    for p in (0.5, 0.3, 1e-3, 1e-12, 1e-200):
        J = Mobility(np.array([p, 1 - p]), 0.7)
        assert J.eigenvalues()[0] == 0
        assert J.operator_norm == pytest.approx(2 * p * (1 - p) / 0.7, rel=1e-15)
        assert J.frobenius_norm == pytest.approx(2 * p * (1 - p) / 0.7, rel=1e-14)
        assert J.trace == pytest.approx(2 * p * (1 - p) / 0.7, rel=1e-14)
        assert J.condition_number == pytest.approx(1.0, rel=1e-14)
        np.testing.assert_allclose(
            J @ np.array([1.0, 0.0]), np.array([1, -1]) * p * (1 - p) / 0.7, rtol=1e-14
        )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-30, 1.0), min_size=2, max_size=8), st.integers(0, 2))
def test_eigenvalues_keep_their_relative_accuracy(weights: list[float], zeros: int) -> None:
    """EOT-2: against 60 digits; small eigenvalues are as accurate as large ones, ties and zeros are exact."""
    w = np.array([*weights, *[0.0] * zeros])
    p = w / w.sum()
    want = ref.precise_eigenvalues(p)
    got = Mobility(p).eigenvalues()
    n_zero = len(p) - np.count_nonzero(p) + 1
    assert (got[:n_zero] == 0).all()
    # p is divided by its sum again, so the error is some ulp and not one
    errors = [
        abs(float((g - x) / x)) for g, x in zip(got[n_zero:].tolist(), want[n_zero:], strict=True)
    ]
    assert max(errors, default=0) < 1e-13


def test_ties_and_zeros_are_exact() -> None:
    p = np.array([0.25, 0.25, 0.25, 0.0, 0.125, 0.125, 0.0])
    e = Mobility(p).eigenvalues()
    assert e[:3].tolist() == [0, 0, 0]
    assert e[3] == 0.125
    assert e[5:].tolist() == [0.25, 0.25]
    root = e[4]
    assert 3 * 0.25 / (0.25 - root) + 2 * 0.125 / (0.125 - root) == pytest.approx(0, abs=1e-12)
    assert Mobility(np.array([0.0, 1.0, 0.0])).eigenvalues().tolist() == [0, 0, 0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=12), st.floats(0.1, 10))
def test_interlacing_and_the_sharp_bound(z: list[float], tau: float) -> None:
    """EOT-2, J.3: eigenvalues interlace p, norm at most 1/2tau, condition number at most 1/2p_min."""
    p = ref.softmax(np.array(z), tau)
    J = Mobility(p, tau)
    e, q = J.eigenvalues() * tau, np.sort(p)
    slack = 1e-14
    assert (e <= q + slack).all()
    assert (e[1:] >= q[:-1] - slack).all()
    assert J.operator_norm <= 0.5 / tau * (1 + slack)
    if len(p) > 1:
        assert J.condition_number <= 0.5 / p.min() * (1 + 1e-12)


def test_where_the_bound_is_reached_and_left() -> None:
    """2.2: equality at (1/2, 1/2, 0, ...), collapse near a vertex."""
    assert Mobility(np.array([0.5, 0.5, 0, 0]), 0.25).operator_norm == 2.0
    norms = [Mobility(np.array([1 - 2 * t, t, t])).operator_norm for t in (1e-2, 1e-6, 1e-12)]
    np.testing.assert_allclose(norms, 3 * np.array([1e-2, 1e-6, 1e-12]), rtol=0.03)


def test_the_texts_proofs_of_the_bounds_do_not_hold() -> None:
    """Errata 7a and 7b: J.3 drops (sum p v)^2 for v orthogonal to 1; B claims v'Jv <= 1/2 sum p v^2."""
    p = np.array([0.7, 0.2, 0.1])
    v = np.array([1.0, -1.0, 0.0]) / np.sqrt(2)
    assert abs(p @ v) > 0.35  # J.3 assumes that it is 0
    uniform, J = np.full(4, 0.25), ref.mobility(np.full(4, 0.25))
    w = np.array([1.0, -1.0, 0, 0]) / np.sqrt(2)
    assert w @ J @ w == pytest.approx(0.25) and 0.5 * uniform @ w**2 == pytest.approx(0.125)
    # the bounds themselves hold: from below by interlacing, from above by Gershgorin's rows 2 p_i (1 - p_i)
    assert np.abs(ref.mobility(p)).sum(axis=1) == pytest.approx(2 * p * (1 - p))


def test_condition_number_is_not_one_over_twice_p_min() -> None:
    """Erratum 7c: J.3's asymptote is a bound only; locked rows are well conditioned."""
    for t in (1e-3, 1e-6, 1e-9):
        J = Mobility(np.array([1 - 2 * t, t, t]))
        assert J.condition_number == pytest.approx(3, rel=3 * t)
        assert 0.5 / t > 100


@pytest.mark.parametrize("tail", [1e-3, 1e-8, 1e-12, 1e-30])
def test_frobenius_norm_near_a_vertex(tail: float) -> None:
    """EOT-2, erratum 7e: the printed three moments cancel where early exit needs them."""
    p = np.array([1 - tail, tail * 0.75, tail * 0.25])
    t = tail
    exact = np.sqrt((1 - t) ** 2 * t**2 + (2 * (1 - t) ** 2 + 1) * 0.625 * t**2)
    assert Mobility(p).frobenius_norm == pytest.approx(exact, rel=max(2 * t, 1e-14))
    s2, s3 = (p**2).sum(), (p**3).sum()
    printed = np.sqrt(max(0.0, s2 + s2**2 - 2 * s3))
    assert (abs(printed / exact - 1) > 0.1) == (tail <= 1e-8)


def test_products_near_a_vertex_keep_their_digits() -> None:
    t = 1e-13
    p, v = np.array([1 - 3 * t, t, 2 * t]), np.array([1.0, 0.25, 0.75])
    mean = -t * 0.75 - 2 * t * 0.25
    want = p * (np.array([0, -0.75, -0.25]) - mean)
    np.testing.assert_allclose(Mobility(p) @ v, want, rtol=1e-14)


def test_mass_norm() -> None:
    """EOT-2: most l1 motion for logits that change by at most 1, by trying all corners."""
    rng = np.random.default_rng(3)
    for n in (2, 3, 5, 8):
        for spread in (0.3, 2.0, 5.0):
            p = random_p(rng, n, spread)
            exact = ref.mass_norm(p)
            masses = ref.subset_masses(p)
            assert exact == pytest.approx((4 * masses * (1 - masses)).max())
            got = Mobility(p).mass_norm
            assert exact <= got + 1e-14
            if p.max() >= 0.5:
                assert got == pytest.approx(exact)


def test_temperature_scaling() -> None:
    """EOT-2, L.2: J at tau is J(z/tau)/tau, also as the derivative of the softmax."""
    rng = np.random.default_rng(4)
    z, tau, h = rng.normal(size=6), 0.6, 1e-6
    J = Mobility.from_logits(z, tau)
    numeric = np.stack(
        [(from_logits(z + h * e, tau) - from_logits(z - h * e, tau)) / (2 * h) for e in np.eye(6)]
    )
    np.testing.assert_allclose(J.to_numpy(), numeric, atol=1e-9)
    scaled = Mobility.from_logits(z / tau)
    np.testing.assert_allclose(J.eigenvalues(), scaled.eigenvalues() / tau, rtol=1e-13)
    assert J.condition_number == pytest.approx(scaled.condition_number)


def test_lower_temperature_locks_earlier() -> None:
    """Erratum 7d: L.2's closing remark has it the other way round."""
    z = np.array([2.0, 0.0])
    norms = [Mobility.from_logits(z, tau).operator_norm for tau in (0.25, 0.5, 1.0)]
    want = [2 * p * (1 - p) / tau for tau in (0.25, 0.5, 1.0) for p in [1 / (1 + np.exp(2 / tau))]]
    np.testing.assert_allclose(norms, want, rtol=1e-12)
    assert norms[0] < norms[1] < norms[2]


def test_large_vocabulary() -> None:
    p = from_logits(np.random.default_rng(5).normal(size=3000) * 3)
    e = Mobility(p).eigenvalues()
    assert e.sum() == pytest.approx(Mobility(p).trace, rel=1e-13)
    assert np.sqrt((e**2).sum()) == pytest.approx(Mobility(p).frobenius_norm, rel=1e-13)
    assert e[-1] == pytest.approx(Mobility(p).operator_norm, rel=1e-13)


def test_the_number_of_threads_changes_no_bit() -> None:
    p = from_logits(np.random.default_rng(6).normal(size=(300, 70)))
    want = Mobility(p[0]).eigenvalues(n_threads=1)
    np.testing.assert_array_equal(Mobility(p[0]).eigenvalues(n_threads=4), want)
    before = qk.get_num_threads()
    norms = []
    try:
        for n in (1, 3):
            qk.set_num_threads(n)
            norms.append(Mobility(p).operator_norm)
    finally:
        qk.set_num_threads(before)
    np.testing.assert_array_equal(*norms)


# ---- EOT-1: proximal steps ----------------------------------------------------------------------


def objective(p: ref.Array, c: ref.Array, u: ref.Array, tau: float) -> float:
    return float(c @ p + tau * (p * np.log(np.maximum(p, 1e-300) / u)).sum())


def test_kl_prox_minimises() -> None:
    """EOT-1, eq 1: against a general-purpose optimiser and against every neighbour."""
    rng = np.random.default_rng(6)
    c, u, tau = rng.normal(size=5), rng.dirichlet(np.ones(5)), 0.4
    p = kl_prox(c, u, tau=tau)
    found = minimize(lambda y: objective(ref.softmax(y), c, u, tau), np.zeros(5), tol=1e-12)
    np.testing.assert_allclose(p, ref.softmax(found.x), atol=1e-5)
    value = objective(p, c, u, tau)
    assert value == pytest.approx(free_energy(c, u, tau=tau), abs=1e-13)
    for _ in range(50):
        q = np.abs(p + 0.01 * rng.normal(size=5))
        assert objective(q / q.sum(), c, u, tau) >= value


def test_kl_prox_is_attention_and_semi_relaxed_transport() -> None:
    """EOT-1: rows of qk.semi_relaxed, any reference, masks as infinite cost."""
    rng = np.random.default_rng(7)
    s = rng.normal(size=(4, 6))
    s[:, 2] = -np.inf
    u = rng.dirichlet(np.ones(6))
    plan = qk.semi_relaxed(qk.scores.dense(s), np.full(4, 0.25), reference=u).plan()
    got = kl_prox(-s, u)
    np.testing.assert_allclose(got / 4, plan, atol=1e-15)
    assert (got[:, 2] == 0).all()
    np.testing.assert_allclose(kl_prox(-s), from_logits(s))


def test_jko_of_a_linear_energy_is_the_flow() -> None:
    """EOT-1, EOT-5: n steps at tau are the PF-ODE with b = -c at time n/tau, exactly."""
    rng = np.random.default_rng(8)
    c, p0, tau = rng.normal(size=4), rng.dirichlet(np.ones(4)), 2.5
    path = jko(p0, c, tau=tau, n_steps=3)
    assert path.converged and path.status == "converged"
    for k in range(4):
        np.testing.assert_allclose(path.p[k], ref.softmax(np.log(p0) - k * c / tau), atol=1e-15)
    flow = qk.simplex.pf_ode(p0, lambda p, t: -c, (0, 3 / tau), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.p[-1], flow.p[-1], atol=1e-8)


def test_jko_of_the_entropy_has_a_closed_form() -> None:
    """EOT-1: F = s sum p log p gives p proportional to u^(tau/(tau+s)); stiff ones are damped."""
    u = np.array([0.5, 0.3, 0.15, 0.05])
    for s, tau in ((0.5, 1.0), (20.0, 1.0)):
        path = jko(u, lambda p, s=s: s * (np.log(p) + 1), tau=tau)  # type: ignore[misc]
        want = u ** (tau / (tau + s))
        assert path.converged, path
        np.testing.assert_allclose(path.p[-1], want / want.sum(), atol=1e-8)
    stuck = jko(u, lambda p: 20 * np.log(p), max_iter=2)
    assert not stuck.converged and "step 0: iteration limit" in str(stuck)


def test_jko_of_a_quadratic_energy_is_stationary() -> None:
    rng = np.random.default_rng(9)
    A = rng.normal(size=(5, 5))
    A = A @ A.T
    u = rng.dirichlet(np.ones(5), size=3)
    path = jko(u, lambda p: p @ A, tau=0.5, n_steps=4)
    assert path.converged and path.p.shape == (5, 3, 5)
    for k in range(4):
        multiplier = path.p[k + 1] @ A + 0.5 * np.log(path.p[k + 1] / path.p[k])
        assert np.ptp(multiplier, axis=-1).max() < 1e-7  # one Lagrange multiplier per row
    energies = np.einsum("kri,ij,krj->kr", path.p, A, path.p)
    assert (np.diff(energies, axis=0) <= 1e-12).all()


# ---- EOT-8: effective mobility ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["number", "diagonal", "matrix"])
def test_effective_mobility(kind: str) -> None:
    """EOT-8: J W'aW J formed, and the covariance of softmax(W'(h + noise)) by sampling."""
    rng = np.random.default_rng(10)
    d, V, tau = 3, 6, 0.8
    W, p = rng.normal(size=(d, V)), random_p(rng, V)
    root = rng.normal(size=(d, d))
    a = {"number": 0.7, "diagonal": rng.uniform(0, 2, d), "matrix": root @ root.T}[kind]
    full = a * np.eye(d) if np.ndim(a) < 2 else np.asarray(a)
    J = ref.mobility(p, tau)
    want = J @ W.T @ full @ W @ J
    M = EffectiveMobility(p, W, a, tau)
    np.testing.assert_allclose(M.to_numpy(), want, atol=1e-13)
    v = rng.normal(size=V)
    np.testing.assert_allclose(M @ v, want @ v, atol=1e-13)
    assert M.trace == pytest.approx(np.trace(want))
    assert M.operator_norm == pytest.approx(np.linalg.norm(want, 2))
    np.testing.assert_allclose(M.eigenvalues(), np.linalg.eigvalsh(want)[-d:], atol=1e-13)
    assert np.abs(want.sum(axis=0)).max() < 1e-13
    if kind == "matrix":
        noise = rng.normal(size=(200_000, d)) @ root.T * 1e-3
        z = tau * np.log(p) + noise @ W
        np.testing.assert_allclose(
            np.cov(ref.softmax(z, tau).T) * 1e6, want, atol=0.02 * np.abs(want).max()
        )


# ---- bad input ----------------------------------------------------------------------------------

P = np.array([0.5, 0.5])
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: Mobility(np.array([0.5, 0.6])),
        ValueError,
        r"p: wanted rows that sum to 1.*off by 0\.1.*divide",
    ),
    (lambda: Mobility(np.array([[0.5, 0.5], [0.5, 0.4]])), ValueError, r"p: .*in row 1"),
    (
        lambda: Mobility(np.array([1.5, -0.5])),
        ValueError,
        r"p: wanted probabilities >= 0, got -0\.5",
    ),
    (lambda: Mobility(np.array([np.nan, 1.0])), ValueError, r"p: wanted finite.*NaN"),
    (lambda: Mobility(P, tau=0.0), ValueError, r"tau: wanted a finite number > 0, got 0\.0"),
    (lambda: Mobility(P, tau=-1.0), ValueError, r"tau: wanted"),
    (lambda: Mobility(np.array([1, 0])), TypeError, r"p: .*int64"),
    (lambda: Mobility(P) @ np.ones(3), ValueError, r"v: wanted shape \(\.\.\., 2\)"),
    (lambda: Mobility(P) @ np.ones(2, np.float32), TypeError, r"v: wanted float64 like p"),
    (lambda: Mobility(P) @ np.array([np.inf, 0]), ValueError, r"v: wanted finite"),
    (lambda: from_logits(np.array([np.nan, 1.0])), ValueError, r"z: .*NaN"),
    (
        lambda: from_logits(np.array([[0.0, 1.0], [-np.inf, -np.inf]])),
        ValueError,
        r"z: .*all masked",
    ),
    (lambda: from_logits(P, tau=0), ValueError, r"tau: wanted"),
    (lambda: kl_prox(np.full(2, np.inf)), ValueError, r"cost.*all masked"),
    (
        lambda: kl_prox(np.array([0.0, np.inf]), np.array([0.0, 1.0])),
        ValueError,
        r"cost: .*where the reference",
    ),
    (lambda: kl_prox(P, np.array([-1.0, 2.0])), ValueError, r"reference: wanted weights >= 0"),
    (lambda: kl_prox(P, np.ones(3)), ValueError, r"reference: wanted shape \(\.\.\., 2\)"),
    (lambda: jko(P, P, tau=-1), ValueError, r"tau: wanted"),
    (
        lambda: free_energy(np.array([0.0, np.inf]), np.array([0.0, 1.0])),
        ValueError,
        r"cost: .*where the reference",
    ),
    (lambda: jko(P, np.ones(3)), ValueError, r"energy: wanted shape"),
    (lambda: jko(P, P.astype(np.float32)), TypeError, r"energy: wanted float64 like p0"),
    (lambda: jko(P, lambda p: p * np.nan), ValueError, r"energy: wanted a finite gradient"),
    (lambda: EffectiveMobility(P, np.ones((2, 3))), ValueError, r"W: wanted shape \(d, 2\)"),
    (
        lambda: EffectiveMobility(P, np.eye(2), -np.eye(2)),
        ValueError,
        r"a: wanted a positive semidefinite",
    ),
    (
        lambda: EffectiveMobility(P, np.eye(2), np.array([[0, 1.0], [0, 0]])),
        ValueError,
        r"a: wanted a symmetric",
    ),
    (
        lambda: EffectiveMobility(P, np.eye(2), np.ones(3)),
        ValueError,
        r"a: wanted a number, a diagonal",
    ),
    (lambda: EffectiveMobility(np.stack([P, P]), np.eye(2)), ValueError, r"p: wanted one vector"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()


def test_what_is_printed() -> None:
    assert "V=2, tau=1, operator norm up to 0.5" in repr(Mobility(P))
    assert "3 rows" in repr(Mobility(np.full((3, 4), 0.25)))
    assert "d=2" in repr(EffectiveMobility(P, np.eye(2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["flat, one large value", "large common value", "vertex"])
def test_mobility_products_are_as_exact_as_differences(kind: str, dtype: Any) -> None:
    """An error of eps p (|d| + sum p |d|), d what v lies above its value at the largest probability.

    It takes about V roundings. A common value of v costs nothing. One large value at the largest of many
    nearly equal probabilities is in every difference, so that eps (|v| + sum p |v|) is not kept there.
    """
    rng = np.random.default_rng(5)
    n, eps = 31, np.finfo(dtype).eps
    for _ in range(50):
        p = 1 + 1e-3 * rng.random(n)
        v = rng.normal(size=n)
        if kind.startswith("flat"):
            v *= 1e-6
            v[p.argmax()] = 1
        elif kind.startswith("large"):
            v += 1e3
        else:
            p[1:] *= 1e-20
        p, v = (p / p.sum()).astype(dtype), v.astype(dtype)
        J = Mobility(p, tau=0.3)
        exact = J.p.astype(np.longdouble) / J.p.astype(np.longdouble).sum()
        d = v.astype(np.longdouble) - v[J.p.argmax()]
        want = exact * (d - exact @ d) / np.longdouble(0.3)
        sizes = exact * (abs(d) + exact @ abs(d)) / 0.3
        assert (abs(J @ v - want) <= (n + 16) * eps * sizes).all()
