"""Stationary laws, currents, regimes, compositions (DAC-8), against dense float64 linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _dynamics, _stationary

from .generators import DTYPES
from .reference import Array

SIZES = (1, 2, 3, 17, 64, 65, 201, 300)
KINDS = ("dot", "forward", "distance", "dense", "sum")


def chain(kind: str, n: int, dtype: str, seed: int = 0, beta: float = 0.5) -> qk.MarkovOperator:
    rng = np.random.default_rng((seed, n))
    X = rng.normal(size=(n, 3)).astype(dtype)
    W = rng.normal(size=(3, 3)).astype(dtype)
    s: dict[str, Any] = {
        "dot": lambda: qk.scores.dot(X, W=W, beta=beta),
        "forward": lambda: qk.scores.forward(X, W=W, beta=beta / 2),
        "distance": lambda: qk.scores.distance(X, beta=beta),
        "dense": lambda: qk.scores.dense(rng.normal(size=(n, n)).astype(dtype)),
        "sum": lambda: qk.scores.distance(X, beta=beta) + qk.scores.dot(X, W=W, beta=beta / 4),
    }
    return qk.softmax(s[kind]())


def from_matrix(P: object, dtype: str = "float64") -> qk.MarkovOperator:
    with np.errstate(divide="ignore"):
        return qk.softmax(qk.scores.dense(np.log(np.asarray(P, dtype))))


def exact(A: qk.Composition | qk.MarkovOperator) -> Array:
    P = A.to_numpy().astype(np.float64)
    return P / P.sum(axis=1, keepdims=True)


def stationary_by_solve(P: Array) -> Array:
    n = len(P)
    system = np.vstack([P.T - np.eye(n), np.ones(n)])
    return np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]


def random_law(n: int, dtype: str, seed: int = 0) -> Array:
    rho = np.random.default_rng(seed).exponential(size=n) + 0.01
    return (rho / rho.sum()).astype(dtype)


def eps(dtype: str) -> float:
    return float(np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_stationary_law(kind: str, n: int, dtype: str) -> None:
    """DAC-8: rho P = rho, and it is the law that dense linear algebra finds."""
    A = chain(kind, n, dtype)
    rho = A.stationary()
    assert rho.dtype == dtype
    assert (rho >= 0).all()
    assert abs(rho.astype(np.float64).sum() - 1) <= 4 * eps(dtype) * np.sqrt(n)
    P = exact(A)
    high = rho.astype(np.float64)
    assert np.abs(high @ P - high).sum() <= 50 * eps(dtype)
    np.testing.assert_allclose(high, stationary_by_solve(P), atol=200 * eps(dtype) / n)


@pytest.mark.parametrize("kind", ["dot", "sum", "dense"])
def test_elimination_and_iteration_agree(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = chain(kind, 150, "float64")
    direct = A.stationary()
    monkeypatch.setattr(_stationary, "DIRECT", 0)
    monkeypatch.setattr(_stationary, "ELIMINATED", 0)
    np.testing.assert_allclose(A.stationary(), direct, rtol=1e-12)


@pytest.mark.parametrize("leak", [1e-3, 1e-9, 1e-15])
def test_a_nearly_decoupled_chain(leak: float) -> None:
    """Two states that are hardly ever left: the law is the ratio of the leaks, to every digit."""
    rho = from_matrix([[1 - leak, leak], [3 * leak, 1 - 3 * leak]]).stationary()
    np.testing.assert_allclose(rho, [0.75, 0.25], rtol=1e-13)


@pytest.mark.parametrize("n", [2, 5, 300])
def test_a_periodic_chain(n: int) -> None:
    """Power steps go round for ever; the law is uniform and the gap is 0."""
    A = from_matrix(np.roll(np.eye(n), 1, axis=1))
    np.testing.assert_allclose(A.stationary(), np.full(n, 1 / n), rtol=1e-12)
    if n <= _dynamics.SMALL:
        assert A.spectral_gap() == pytest.approx(0, abs=1e-10)
    else:
        with pytest.raises(RuntimeError, match="did not converge"):
            A.spectral_gap()


@pytest.mark.parametrize("n", [3, 60, 300])
def test_causal_attention_ends_in_the_first_state(n: int) -> None:
    """Transient states carry no mass: one closed class, so the law is unique."""
    rng = np.random.default_rng(0)
    A = qk.softmax(qk.scores.dot(0.1 * rng.normal(size=(n, 3))).causal())
    rho = A.stationary()
    assert rho[0] == pytest.approx(1, abs=1e-9)
    assert A.leads_to(0).all()
    assert A.leads_to(n - 1).sum() == 1


@pytest.mark.parametrize("n", [4, 250])
def test_reducible_chains_are_refused(n: int) -> None:
    """DAC-8: with two closed classes there is no the stationary law."""
    X = np.random.default_rng(1).normal(size=(n, 2))
    blocks = qk.softmax(qk.scores.dot(X).ragged([0, n // 2, n]))
    with pytest.raises(qk.ReducibleChainError, match="at least two closed classes"):
        blocks.stationary()
    with pytest.raises(qk.ReducibleChainError, match=f"from {n - 1} of its {n} states"):
        qk.softmax(qk.scores.dot(X).window(0, 0)).stationary()
    with pytest.raises(ValueError, match="reducible"):
        blocks.regime()


def test_weights_that_underflow_still_connect_a_chain() -> None:
    """e^-1000000 is 0 as a number, and a way from one state to the other all the same."""
    far = np.array([[0.0], [1e3]])
    A = qk.softmax(qk.scores.distance(far))
    np.testing.assert_allclose(A.stationary(), [0.5, 0.5], rtol=1e-15)
    assert A.leads_to(0).all()
    lopsided = qk.scores.dense(np.array([[0.0, -1e6 - 1], [-1e6, 0.0]]))
    np.testing.assert_allclose(qk.softmax(lopsided).stationary()[1], 1 / (1 + np.e), rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_currents_and_their_norms(kind: str, n: int, dtype: str) -> None:
    """DAC-8, eq 18: the array, and every norm of it without the array."""
    A, rho = chain(kind, n, dtype), random_law(n, dtype)
    J = A.currents(rho)
    flow = rho.astype(np.float64)[:, None] * exact(A)
    want = flow - flow.T
    top = flow.max()
    limit = 60 * eps(dtype) * top
    assert np.abs(J - want).max() <= limit
    assert (J == -J.T).all()
    norms = A.current_norms(rho)
    assert norms.largest == pytest.approx(np.abs(want).max(), abs=limit)
    assert norms.largest_flow == pytest.approx(top, rel=60 * eps(dtype))
    assert norms.total == pytest.approx(np.abs(want).sum() / 2, abs=n * n * limit)
    assert norms.frobenius == pytest.approx(np.linalg.norm(want), abs=n * limit)
    i, j = norms.where
    assert want[i, j] == pytest.approx(norms.largest, abs=2 * limit)
    production = 0.5 * np.sum(want * (np.log(flow) - np.log(flow.T)))
    assert norms.entropy_production == pytest.approx(
        production, rel=1e3 * eps(dtype), abs=n * limit
    )
    assert A.entropy_production(rho) == norms.entropy_production


def test_norms_of_masked_chains() -> None:
    """One-way edges: infinite entropy production, the other norms as ever."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    A, rho = qk.softmax(qk.scores.dot(X).causal()), random_law(40, "float64")
    norms, J = A.current_norms(rho), A.currents(rho)
    assert norms.entropy_production == np.inf
    assert norms.largest == pytest.approx(np.abs(J).max(), rel=1e-14)
    assert norms.total == pytest.approx(np.abs(J).sum() / 2, rel=1e-13)
    # A symmetric window masks both directions, so the value is finite again.
    window = qk.softmax(qk.scores.dot(X).window(3, 3))
    assert np.isfinite(window.entropy_production(rho))
    # States without mass do not contribute.
    lone = np.zeros(40)
    lone[7] = 1.0
    assert A.current_norms(lone).largest == pytest.approx(np.abs(A.currents(lone)).max(), rel=1e-14)


@given(st.integers(3, 30), st.integers(0, 10_000))
def test_entropy_production_is_positive(n: int, seed: int) -> None:
    """DAC-8: zero in equilibrium and only there. (Two states are always in equilibrium.)"""
    A = chain("dot", n, "float64", seed)
    assert A.entropy_production() > 0
    assert A.regime().regime == "NESS"
    P = chain("distance", n, "float64", seed)
    assert P.entropy_production() <= 1e-25
    assert P.regime().regime == "EQ"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [40, 300])
def test_regimes(n: int, dtype: str) -> None:
    """DAC-8, 4.0.1: EQ, NESS, NE, and a report that can be read."""
    P, A = chain("distance", n, dtype), chain("dot", n, dtype)
    assert P.regime().regime == "EQ"
    report = A.regime()
    assert report.regime == "NESS"
    assert report.max_current == report.currents.largest > report.tol > 0
    assert report.entropy_production > 0
    assert report.stationarity <= report.stationarity_tol
    assert "NESS" in str(report)
    assert "nats per step" in str(report)
    away = A.regime(random_law(n, dtype))
    assert away.regime == "NE"
    assert away.stationarity > away.stationarity_tol
    # With a large enough tolerance everything counts as an equilibrium.
    assert A.regime(tol=10.0).regime == "EQ"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column_stochastic_chain_is_its_transpose(dtype: str) -> None:
    A = chain("dot", 30, dtype)
    rho = A.stationary()
    np.testing.assert_array_equal(A.T.stationary(), rho)
    np.testing.assert_array_equal(A.T.currents(rho), A.currents(rho))
    assert A.T.regime().regime == "NESS"
    assert A.T.axis == 0
    np.testing.assert_allclose(A.T @ rho, rho, atol=20 * eps(dtype))


@pytest.mark.parametrize("n", [1, 2, 20, 260])
def test_spectral_gap(n: int) -> None:
    for kind in ("dot", "distance"):
        A = chain(kind, n, "float64")
        values = np.sort(np.abs(np.linalg.eigvals(exact(A))))
        want = 1 - values[-2] if n > 1 else 1.0
        assert A.spectral_gap() == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 64, 130])
def test_doob_transform(n: int, dtype: str) -> None:
    """DAC-7, eqs 22 and 34-35."""
    A = chain("forward", n, dtype)
    h = random_law(n, dtype, 3)
    if n > 2:
        h[1] = 0
    P = exact(A)
    want = P * h / (P @ h)[:, None]
    got = A.doob(h)
    np.testing.assert_allclose(got.to_numpy(), want, atol=30 * eps(dtype))
    np.testing.assert_allclose(A.T.doob(h).to_numpy(), want.T, atol=30 * eps(dtype))
    np.testing.assert_allclose(A.doob(np.ones(n, dtype)).to_numpy(), P, atol=30 * eps(dtype))


def test_doob_refuses_what_it_cannot_do() -> None:
    A = chain("dot", 5, "float64")
    with pytest.raises(ValueError, match="h: wanted weights >= 0"):
        A.doob(np.array([1.0, -1, 1, 1, 1]))
    with pytest.raises(ValueError, match="h must be positive somewhere"):
        A.doob(np.zeros(5))
    with pytest.raises(ValueError, match="h"):
        A.doob(np.ones(4))
    with pytest.raises(TypeError, match="h"):
        A.doob(np.ones(5) * 1j)


# ---- compositions -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_composition(dtype: str) -> None:
    A, B = chain("dot", 33, dtype), chain("distance", 33, dtype, 1)
    product = exact(A) @ exact(B)
    C = A @ B
    assert isinstance(C, qk.Composition)
    assert C.shape == (33, 33)
    assert C.dtype == dtype
    tol = 30 * eps(dtype)
    np.testing.assert_allclose(C.to_numpy(), product, atol=tol)
    np.testing.assert_allclose(C.T.to_numpy(), product.T, atol=tol)
    V = np.random.default_rng(0).normal(size=(33, 4)).astype(dtype)
    np.testing.assert_allclose(C @ V, product @ V, atol=40 * tol)
    np.testing.assert_allclose(V.T @ C, V.T @ product, atol=40 * tol)
    np.testing.assert_allclose(C @ V[:, 0], product @ V[:, 0], atol=40 * tol)
    np.testing.assert_allclose((C @ A).to_numpy(), product @ exact(A), atol=tol)
    assert len((C @ A).factors) == 3
    assert not C.empty.any()
    rho = C.stationary()
    np.testing.assert_allclose(rho, stationary_by_solve(product), atol=10 * tol)
    norms = C.current_norms(rho)
    flow = rho.astype(np.float64)[:, None] * product
    assert norms.largest == pytest.approx(np.abs(flow - flow.T).max(), abs=tol)
    assert C.regime().regime == "NESS"


@pytest.mark.parametrize("t", [0, 1, 2, 5])
def test_powers(t: int) -> None:
    A = chain("dot", 20, "float64")
    want = np.linalg.matrix_power(exact(A), t)
    np.testing.assert_allclose((A**t).to_numpy(), want, atol=1e-14)
    V = np.random.default_rng(0).normal(size=(20, 3))
    np.testing.assert_allclose((A**t) @ V, want @ V, atol=1e-13)
    np.testing.assert_allclose(V.T @ (A**t), V.T @ want, atol=1e-13)
    assert (A**t) @ V is not V


def test_rectangular_composition() -> None:
    rng = np.random.default_rng(0)
    X, Y, Z = (rng.normal(size=(n, 2)) for n in (5, 7, 3))
    A, B = qk.softmax(qk.scores.dot(X, Y)), qk.softmax(qk.scores.dot(Y, Z))
    C = A @ B
    assert C.shape == (5, 3)
    np.testing.assert_allclose(C.to_numpy(), exact(A) @ exact(B), atol=1e-15)
    np.testing.assert_allclose(C.to_numpy().sum(axis=1), 1, atol=1e-15)


def test_compositions_refuse_what_is_not_stochastic() -> None:
    A, B = chain("dot", 6, "float64"), chain("dot", 7, "float64")
    with pytest.raises(ValueError, match="one of each"):
        A @ A.T
    with pytest.raises(ValueError, match="columns of A as rows of B"):
        A @ B
    with pytest.raises(TypeError, match="one dtype"):
        A @ chain("dot", 6, "float32")
    with pytest.raises(ValueError, match="0 or more"):
        A**-1
    with pytest.raises(ValueError, match="square"):
        qk.softmax(qk.scores.dense(np.zeros((2, 3)))) ** 2
    S = qk.sinkhorn(qk.scores.distance(np.random.default_rng(0).normal(size=(6, 2))))
    assert (S @ A.T).axis == 0
    assert (A @ S).axis == 1


# ---- bad input ----------------------------------------------------------------------------------


def test_bad_laws_are_named() -> None:
    A = chain("dot", 4, "float64")
    bad: list[tuple[object, type[Exception], str]] = [
        (np.array([0.5, 0.5, 0.5, -0.5]), ValueError, "rho: wanted probabilities, got a negative"),
        (np.full(4, 0.3), ValueError, "sum to 1, got a sum of 1.2"),
        (np.full(5, 0.2), ValueError, "rho"),
        (np.full(4, "a"), TypeError, "rho: wanted float32 or float64"),
        (np.full(4, 0.25 + 0j), TypeError, "rho"),
        (np.array([np.nan, 0.5, 0.25, 0.25]), ValueError, "rho"),
        (np.full((1, 4), 0.25), ValueError, "rho: wanted shape"),
    ]
    for rho, error, text in bad:
        for call in (A.currents, A.current_norms, A.regime, A.entropy_production):
            with pytest.raises(error, match=text):
                call(rho)  # type: ignore[arg-type]


def test_operators_that_are_no_chain_are_refused() -> None:
    rectangular = qk.softmax(qk.scores.dense(np.zeros((2, 3))))
    hole = qk.softmax(qk.scores.dense(np.array([[0.0, 0.0], [-np.inf, -np.inf]])))
    for A, text in (
        (rectangular, "as many columns as rows"),
        (hole, "1 empty row"),
    ):
        for call in (A.stationary, A.regime, A.spectral_gap, A.current_norms):
            with pytest.raises(ValueError, match=text):
                call()
    with pytest.raises(ValueError, match="state"):
        chain("dot", 4, "float64").leads_to(4)
    with pytest.raises(ValueError, match="tol"):
        chain("dot", 4, "float64").regime(tol=-1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_norms_do_not_depend_on_threads(threads: int) -> None:
    A, rho = chain("dot", 500, "float64"), random_law(500, "float64")
    assert A.current_norms(rho, n_threads=threads) == A.current_norms(rho, n_threads=1)
    np.testing.assert_array_equal(A.stationary(n_threads=threads), A.stationary(n_threads=1))
