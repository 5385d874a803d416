"""Magnetic operators against naive NumPy, phases and log-flux (DAC-6, DAC-11)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import qkcore as qk
from qkcore import magnetic
from tests.reference_magnetic import (
    COMPLEX,
    Array,
    all_sizes,
    both_types,
    close,
    complex_normal,
    eps_of,
    naive_log_flux,
    naive_phases,
    normal,
    problem,
    product_bound,
    row_softmax,
    squared_distances,
    stationary,
)

# ---- against naive NumPy --------------------------------------------------------------------------

Case = tuple[magnetic.MagneticOperator, Array, float]


def case(kind: str, n: int, dtype: str) -> Case:
    """An operator, the same as an array in complex128, and the size of its scores and angles."""
    X, W, rng = problem(n, dtype)
    s, want_s = qk.scores.distance(X, beta=0.5), -0.5 * squared_distances(X, X)
    angles, theta = magnetic.phases(X, W, 0.7), naive_phases(X, W, 0.7)
    spread = float(np.abs(want_s).max() + 40)
    if kind == "kernel":
        return (
            magnetic.MagneticOperator(qk.kernel(s), angles),
            np.exp(want_s) * np.exp(1j * theta),
            spread,
        )
    if kind == "dense phases":
        t = normal(rng, n, n, dtype=dtype)
        angles, theta = qk.scores.dense(t), t.astype(float)
    elif kind == "factored":
        wide = normal(rng, n, 7, dtype=dtype)
        factors = normal(rng, 7, 2, dtype=dtype), normal(rng, 2, 7, dtype=dtype)
        angles = magnetic.phases(wide, factors, -0.3)
        theta = naive_phases(wide, factors[0].astype(float) @ factors[1].astype(float), -0.3)
        spread += 100
    elif kind == "dense scores":
        z = normal(rng, n, n, dtype=dtype)
        s, want_s = qk.scores.dense(z), z.astype(float)
    elif kind == "causal":
        s = s.causal()
        want_s = np.where(np.tri(n) > 0, want_s, -np.inf)
    elif kind == "window":
        s = s.window(2, 1)
        i = np.arange(n)
        want_s = np.where((i >= i[:, None] - 2) & (i <= i[:, None] + 1), want_s, -np.inf)
    elif kind == "mask":  # some rows are empty
        keep = rng.random((n, n)) < 0.4
        keep[: n // 3] = False
        s, want_s = s.masked(keep), np.where(keep, want_s, -np.inf)
    elif kind == "column softmax":
        P = qk.softmax(s, axis=0)
        return (
            magnetic.MagneticOperator(P, angles),
            row_softmax(want_s.T).T * np.exp(1j * theta),
            spread,
        )
    elif kind == "gauged":
        phi = normal(rng, n, dtype=dtype)
        op = magnetic.MagneticOperator(qk.softmax(s), angles, gauge_weight=-1.5).gauge(phi)
        turn = -1.5 * (phi[:, None].astype(float) - phi.astype(float))
        return op, row_softmax(want_s) * np.exp(1j * (theta + turn)), spread
    return (
        magnetic.MagneticOperator(qk.softmax(s), angles),
        row_softmax(want_s) * np.exp(1j * theta),
        spread,
    )


KINDS = "points,kernel,dense phases,factored,dense scores,causal,window,mask,column softmax,gauged"


@both_types
@all_sizes
@pytest.mark.parametrize("kind", KINDS.split(","))
def test_products_against_numpy(kind: str, n: int, dtype: str) -> None:
    """DAC-6, eqs 39-40: E V, u E, E^T V, E* V and E itself."""
    op, E, spread = case(kind, n, dtype)
    rng = np.random.default_rng(n)
    assert op.shape == (n, n) and op.dtype == COMPLEX[dtype]
    full = op.to_numpy()
    assert full.dtype == op.dtype
    close(full, E, product_bound(np.abs(E), np.eye(n), dtype, spread), "to_numpy")
    for V in (
        complex_normal(rng, n, 3, dtype=dtype),
        normal(rng, n, 1, dtype=dtype),
        complex_normal(rng, n, dtype=dtype),
        normal(rng, n, dtype=dtype),
    ):
        for what, got, A in (
            ("E V", op @ V, E),
            ("E^T V", op.T @ V, E.T),
            ("E* V", op.H @ V, E.conj().T),
        ):
            assert got.dtype == op.dtype
            close(got, A @ V, product_bound(A, V, dtype, spread), what)
        left = V.T @ op
        assert left.dtype == op.dtype
        bound = product_bound(E.T, V, dtype, spread)
        close(left.T, E.T @ V, bound, "u E")


@both_types
def test_rectangular(dtype: str) -> None:
    """New points against old ones: P(x, y_j) e^{i theta(x, y_j)}."""
    rng = np.random.default_rng(3)
    X, Y, W = (normal(rng, n, 4, dtype=dtype) for n in (33, 70, 4))
    op = magnetic.MagneticOperator(
        qk.softmax(qk.scores.distance(X, Y)), magnetic.phases(X, W, 0.5, Y=Y)
    )
    w = W.astype(float)
    theta = 0.5 * X.astype(float) @ ((w - w.T) / 2) @ Y.T.astype(float)
    E = row_softmax(-squared_distances(X, Y)) * np.exp(1j * theta)
    V, U = complex_normal(rng, 70, 2, dtype=dtype), complex_normal(rng, 5, 33, dtype=dtype)
    close(op @ V, E @ V, product_bound(E, V, dtype, 60))
    close((U @ op).T, E.T @ U.T, product_bound(E.T, U.T, dtype, 60))
    with pytest.raises(ValueError, match="as many columns as rows"):
        op.hermitian()


@both_types
def test_views_and_read_only_arrays(dtype: str) -> None:
    """Arrays of any strides give the bits of their copies, and none is written to."""
    X, W, rng = problem(37, dtype)
    op = magnetic.operator(X, beta=0.4, W=W)
    big = complex_normal(rng, 74, 6, dtype=dtype)
    views = [big[::2, ::2], big[37:, ::-1], big[:37].T.copy().T, big.real[:37], big.imag[::2, 1]]
    for V in views:
        before = V.copy()
        V.flags.writeable = False
        got = op @ V
        assert got.tobytes() == (op @ before.copy()).tobytes()
        assert V.tobytes() == before.tobytes()
    wide = normal(rng, 74, 6, dtype=dtype)
    strided = wide[::2, ::2]
    strided.flags.writeable = False
    one = magnetic.operator(strided, beta=0.4, W=W).to_numpy()
    assert one.tobytes() == magnetic.operator(strided.copy(), beta=0.4, W=W).to_numpy().tobytes()


@both_types
@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
def test_large_phases(dtype: str, size: float) -> None:
    """Angles read from memory cost no digits, however large."""
    n, rng = 65, np.random.default_rng(5)
    theta = (rng.standard_normal((n, n)) * size).astype(dtype)
    z = normal(rng, n, n, dtype=dtype)
    op = magnetic.MagneticOperator(qk.softmax(qk.scores.dense(z)), qk.scores.dense(theta))
    E = row_softmax(z.astype(float)) * np.exp(1j * theta.astype(float))
    V = complex_normal(rng, n, 2, dtype=dtype)
    close(op @ V, E @ V, product_bound(E, V, dtype, 6))
    close(op.to_numpy(), E, product_bound(E, np.eye(n), dtype, 6))


@both_types
@pytest.mark.parametrize("n", [65, 300])
def test_thread_counts_give_the_same_bits(dtype: str, n: int) -> None:
    X, W, rng = problem(n, dtype)
    op = magnetic.operator(X, beta=0.4, W=W)
    V = complex_normal(rng, n, 3, dtype=dtype)
    found = {
        t: (op.apply(V, n_threads=t), op.apply_left(V.T, n_threads=t), op.flux(n_threads=t))
        for t in (1, 2, 3)
    }
    for t in (2, 3):
        for a, b in zip(found[1], found[t], strict=True):
            assert a.tobytes() == b.tobytes()
    values, vectors = op.spectrum(4, n_threads=1)
    again = op.spectrum(4, n_threads=2)
    assert values.tobytes() == again[0].tobytes() and vectors.tobytes() == again[1].tobytes()


# ---- phases and log-flux --------------------------------------------------------------------------


@both_types
@pytest.mark.parametrize("gamma", [1.0, -2.5, 0.0])
def test_phases(dtype: str, gamma: float) -> None:
    """DAC-6, eq 37: whole and factored W, of high and low rank; symmetric W has none."""
    rng = np.random.default_rng(0)
    X = normal(rng, 40, 8, dtype=dtype)
    for rank in (1, 3, 4, 8, 11):
        Q, K = normal(rng, 8, rank, dtype=dtype), normal(rng, rank, 8, dtype=dtype)
        want = naive_phases(X, Q.astype(float) @ K.astype(float), gamma)
        size = np.abs(X.astype(float)) @ np.abs(Q) @ np.abs(K) @ np.abs(X.T)
        for W in ((Q, K), (Q.astype(float) @ K).astype(dtype)):
            angles = magnetic.phases(X, W, gamma)
            got = angles.to_numpy()
            close(got, want, 8 * eps_of(dtype) * abs(gamma) * (size + size.T))
            close(got, -got.T, 8 * eps_of(dtype) * abs(gamma) * (size + size.T))
            features = sum(x.shape[1] for x, _, _ in angles.terms.dots)
            assert features == (2 * rank if isinstance(W, tuple) and 2 * rank < 8 else 8)
            # The bound that the scores have must hold.
            assert np.abs(want).max() <= angles.bound * (1 + 1e-5)
    symmetric = np.eye(8, dtype=dtype) + np.ones((8, 8), dtype)
    assert not magnetic.phases(X, symmetric, gamma).to_numpy().any()
    assert not magnetic.phases(X, None, gamma).to_numpy().any()


def attention(kind: str, n: int, dtype: str) -> qk.MarkovOperator:
    X, W, rng = problem(n, dtype)
    W = W * np.asarray(0.4, dtype)
    Y = normal(rng, n, 3, dtype=dtype)
    made: dict[str, Callable[[], qk.Scores]] = {
        "forward": lambda: qk.scores.forward(X, W=W),
        "dot": lambda: qk.scores.dot(X, W=W),
        "backward": lambda: qk.scores.backward(X, W=W),
        "dense": lambda: qk.scores.dense(normal(rng, n, n, dtype=dtype)),
        "two sets": lambda: qk.scores.distance(X + 5, Y + 5, beta=0.3),
        "two sets, indefinite": lambda: qk.scores.distance(
            X, Y, W=np.diag(np.array([1, -1, 0.5], dtype)), beta=0.3
        ),
        "sum": lambda: qk.scores.dot(X, W=W) + qk.scores.distance(X) + qk.scores.distance(X, Y),
        "shifted": lambda: (0.5 * qk.scores.dot(X, Y)).shift(
            normal(rng, n, dtype=dtype), normal(rng, n, dtype=dtype)
        ),
    }
    return qk.softmax(made[kind]())


ATTENTIONS = (
    "forward",
    "dot",
    "backward",
    "dense",
    "two sets",
    "two sets, indefinite",
    "sum",
    "shifted",
)


@both_types
@pytest.mark.parametrize("n", [1, 2, 7, 65, 300])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_log_flux(kind: str, n: int, dtype: str) -> None:
    """DAC-11, eq 76, at the stationary law and at another, for rows and for columns."""
    A = attention(kind, n, dtype)
    P = row_softmax(A.scores.to_numpy().astype(float))
    spread = np.abs(A.scores.to_numpy()).max() + 10
    tol = 60 * eps_of(dtype) * spread
    want = naive_log_flux(P, stationary(P))
    F = magnetic.log_flux(A)
    got = F.to_numpy()
    assert got.dtype == dtype
    close(got, want, tol + 300 * eps_of(dtype) * n, kind)  # the law itself is known to n eps
    close(got, -got.T, tol)
    assert np.abs(want).max() <= F.bound + 1
    rho = np.random.default_rng(n).dirichlet(np.ones(n) * 3).astype(dtype)
    rho /= rho.sum()
    close(magnetic.log_flux(A, rho).to_numpy(), naive_log_flux(P, rho.astype(float)), tol)
    np.testing.assert_array_equal(magnetic.log_flux(A.T, rho).to_numpy().shape, (n, n))
    close(magnetic.log_flux(A.T, rho).to_numpy(), naive_log_flux(P, rho.astype(float)), tol)


@both_types
def test_log_flux_vanishes_for_symmetric_kernels(dtype: str) -> None:
    """DAC-11: equilibrium has no log-flux; by construction none is computed."""
    X, W, rng = problem(50, dtype)
    for s in (
        qk.scores.distance(X),
        qk.scores.distance(X, W=W @ W.T),
        qk.scores.dot(X) + qk.scores.distance(X),
        qk.scores.dot(X).shift(columns=normal(rng, 50, dtype=dtype)),
    ):
        assert not magnetic.log_flux(qk.softmax(s)).to_numpy().any()
    Z = normal(rng, 50, 50, dtype=dtype)
    F = magnetic.log_flux(qk.softmax(qk.scores.dense(Z + Z.T))).to_numpy()
    assert np.abs(F).max() < 500 * eps_of(dtype)


def test_forward_attention_carries_the_antisymmetric_part_of_w() -> None:
    """DAC-6 and DAC-11 meet: F of A = softmax(-beta d->) is 2 beta x^T A x plus a pure gauge."""
    X, W, _ = problem(30)
    beta = 0.2
    F = magnetic.log_flux(qk.softmax(qk.scores.forward(X, W=W, beta=beta))).to_numpy()
    rest = F - 2 * beta * naive_phases(X, W, 1.0)
    phi = rest[:, 0]
    np.testing.assert_allclose(rest, phi[:, None] - phi, atol=1e-12)
    np.testing.assert_allclose(np.diag(F), 0, atol=1e-13)
