"""Divergences (DAC-1), dense and lazy, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import divergence

from .generators import DTYPES
from .reference import Array


def gram(X: Array, Y: Array, W: Array) -> Array:
    return X.astype(np.float64) @ W.astype(np.float64) @ Y.astype(np.float64).T


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 1000),
    st.sampled_from(["full", "factored"]),
)
def test_definitions(dtype: str, n: int, m: int, seed: int, form: str) -> None:
    """DAC-1, eqs 1-4: Gram, both directions and their sum, with any W, X and Y apart."""
    rng = np.random.default_rng((seed, n, m))
    X, Y = rng.normal(size=(n, 3)).astype(dtype), rng.normal(size=(m, 3)).astype(dtype)
    left, right = rng.normal(size=(3, 2)).astype(dtype), rng.normal(size=(2, 3)).astype(dtype)
    W = left.astype(np.float64) @ right
    given_w = (left, right) if form == "factored" else W.astype(dtype)
    tol = 300 * float(np.finfo(dtype).eps)
    G = gram(X, Y, W)
    G_xx = np.diag(gram(X, X, W))
    G_yy = np.diag(gram(Y, Y, W))
    forward, backward = G_yy - G, G_xx[:, None] - gram(Y, X, W).T

    def check(lazy: divergence.Divergence, want: Array) -> None:
        assert lazy.shape == want.shape
        assert lazy.dtype == dtype
        got = lazy.to_numpy()
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, atol=tol * 10)
        np.testing.assert_allclose(lazy.T.to_numpy(), want.T, atol=tol * 10)
        sign = 1 if lazy.similarity else -1
        np.testing.assert_allclose(lazy.scores(0.5).to_numpy(), sign * 0.5 * want, atol=tol * 10)

    check(divergence.gram(X, Y, W=given_w), G)
    check(divergence.forward(X, Y, W=given_w), forward)
    check(divergence.backward(X, Y, W=given_w), backward)
    check(divergence.squared_distance(X, Y, W=given_w), forward + backward)
    both = divergence.forward(X, Y, W=given_w) + divergence.backward(X, Y, W=given_w)
    check(both, forward + backward)


def test_laws_of_the_bidivergence() -> None:
    """DAC-1, section 2: self-zero, asymmetric, of either sign, and a sum that is a distance."""
    rng = np.random.default_rng(0)
    R, W = rng.normal(size=(12, 4)), rng.normal(size=(4, 4))
    for w in (None, W):
        for d in (divergence.forward(R, W=w), divergence.backward(R, W=w)):
            np.testing.assert_allclose(np.diag(d.to_numpy()), 0, atol=1e-14)
            assert np.abs(d.to_numpy() - d.T.to_numpy()).max() > 1
    plain = divergence.forward(R).to_numpy(), divergence.backward(R).to_numpy()
    assert min(d.min() for d in plain) < 0  # each part alone may be negative
    D = divergence.squared_distance(R).to_numpy()
    assert (D >= 0).all()
    assert (np.diag(D) == 0).all()
    assert not np.signbit(np.diag(D)).any()


@given(st.integers(1, 20), st.integers(0, 1000))
def test_erratum_14_the_directions_are_transposes_for_every_w(n: int, seed: int) -> None:
    """DAC-1, DAC-4: section 2 says that d-> = (d<-)^T fails for an asymmetric W. It cannot: both are
    G_jj - G_ij once the indices are exchanged. So A- is the transpose of A+ as well."""
    rng = np.random.default_rng((seed, n))
    R, W = rng.normal(size=(n, 4)), rng.normal(size=(4, 4))
    forward, backward = divergence.forward(R, W=W), divergence.backward(R, W=W)
    G = R @ W @ R.T
    np.testing.assert_allclose(forward.to_numpy(), np.diag(G) - G, atol=1e-12)
    np.testing.assert_allclose(backward.to_numpy(), np.diag(G)[:, None] - G.T, atol=1e-12)
    np.testing.assert_allclose(forward.to_numpy(), backward.to_numpy().T, atol=1e-12)
    A_plus = qk.softmax(forward.scores(), axis=1).to_numpy()
    A_minus = qk.softmax(backward.scores(), axis=0).to_numpy()
    np.testing.assert_allclose(A_plus, A_minus.T, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hermitian_partition(dtype: str) -> None:
    """DAC-1, eqs 4 and 37: W = S + A, V = S + iA Hermitian, Theta = R A R^T antisymmetric."""
    rng = np.random.default_rng(0)
    W, R = rng.normal(size=(5, 5)).astype(dtype), rng.normal(size=(9, 5)).astype(dtype)
    part = divergence.hermitian_partition(W)
    assert part.symmetric.dtype == part.antisymmetric.dtype == dtype
    np.testing.assert_array_equal(part.symmetric, part.symmetric.T)
    np.testing.assert_array_equal(part.antisymmetric, -part.antisymmetric.T)
    np.testing.assert_allclose(part.symmetric + part.antisymmetric, W, atol=1e-6)
    np.testing.assert_array_equal(part.V, part.V.conj().T)
    theta = part.phases(R).to_numpy()
    tol = 200 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(theta, -theta.T, atol=tol)
    np.testing.assert_allclose(theta, gram(R, R, part.antisymmetric), atol=tol)
    # Only S enters the distance.
    a = divergence.squared_distance(R, W=W).to_numpy()
    b = divergence.squared_distance(R, W=part.symmetric).to_numpy()
    np.testing.assert_allclose(a, b, atol=tol)
    factors = rng.normal(size=(5, 2)).astype(dtype), rng.normal(size=(2, 5)).astype(dtype)
    S, A = divergence.hermitian_partition(factors)
    np.testing.assert_allclose(S + A, factors[0] @ factors[1], atol=1e-5)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="W: wanted a square matrix"):
        divergence.hermitian_partition(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="W: wanted factors"):
        divergence.hermitian_partition((np.zeros((2, 3)), np.zeros((2, 3))))
    with pytest.raises(ValueError, match="W"):
        divergence.hermitian_partition(np.array([[np.nan]]))
    with pytest.raises(TypeError, match="similarities"):
        divergence.gram(np.zeros((2, 2))) + divergence.forward(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="K: wanted"):
        divergence.qk_metric(np.zeros((2, 2)), np.zeros((3, 2)))
    with pytest.raises(TypeError, match="K: wanted float64"):
        divergence.qk_metric(np.zeros((2, 2)), np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="beta: wanted a finite number > 0"):
        divergence.gram(np.zeros((2, 2))).scores(-1.0)
    with pytest.raises(TypeError, match=r"experts\[1\]"):
        qk.poe(qk.scores.dense(np.zeros((2, 2))), np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        qk.poe()
    with pytest.raises(ValueError, match="no logarithm"):
        qk.poe(qk.kernel(qk.scores.dense(np.zeros((2, 2))), "relu"))
    A = qk.softmax(qk.scores.dense(np.zeros((2, 2))))
    with pytest.raises(ValueError, match="B: wanted shape"):
        qk.total_variation(A, qk.softmax(qk.scores.dense(np.zeros((3, 3)))))
    with pytest.raises(TypeError, match="A: wanted a MarkovOperator"):
        qk.total_variation(np.zeros((2, 2)), A)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 70), (65, 33), (300, 257)])
def test_total_variation(shape: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (qk.softmax(qk.scores.dense(3 * rng.normal(size=shape).astype(dtype))) for _ in "ab")
    want = 0.5 * np.abs(a.to_numpy().astype(np.float64) - b.to_numpy()).sum(axis=1)
    tol = 50 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(qk.total_variation(a, b), want, atol=tol)
    np.testing.assert_allclose(qk.total_variation(a.T, b.T), want, atol=tol)
    assert (qk.total_variation(a, a) == 0).all()


def test_products_with_a_magnetic_expert() -> None:
    """DAC-9, theorem C.8: qk.poe of a magnetic operator and real ones is magnetic; phases add."""
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(20, 3)), rng.normal(size=(3, 3))
    M = qk.magnetic.operator(X, beta=0.5, W=W)
    P = qk.softmax(qk.scores.distance(X))
    product = qk.poe(M, P, M)
    want = M.to_numpy() * P.to_numpy() * M.to_numpy()
    np.testing.assert_allclose(product.to_numpy(), want, atol=1e-15)
    assert product.gauge_weight == 2 * M.gauge_weight
