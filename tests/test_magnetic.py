"""Magnetic maps (DAC-6) and the attention-magnetic duality (DAC-11), against naive NumPy in complex128,
closed forms, and the laws of DAC 4.4, C.6 and C.7."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _spectral, magnetic
from qkcore._bandwidth import median_rule
from qkcore._estimator import NotFittedError

Array = np.ndarray[Any, Any]

COMPLEX = {"float32": np.complex64, "float64": np.complex128}
SIZES = (1, 2, 7, 64, 65, 300)
DTYPES = ("float32", "float64")
both_types = pytest.mark.parametrize("dtype", DTYPES)
all_sizes = pytest.mark.parametrize("n", SIZES)
seeds = st.integers(0, 2**31 - 1)


def eps_of(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = "float64") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def complex_normal(rng: np.random.Generator, *shape: int, dtype: Any = "float64") -> Array:
    z = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return z.astype(COMPLEX[np.dtype(dtype).name])


def row_softmax(s: Array) -> Array:
    top = s.max(axis=1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(axis=1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def squared_distances(X: Array, Y: Array, W: Array | None = None) -> Array:
    d = X[:, None].astype(float) - Y[None].astype(float)
    return np.einsum("ija,ab,ijb->ij", d, np.eye(X.shape[1]) if W is None else W.astype(float), d)


def naive_phases(X: Array, W: Array, gamma: float) -> Array:
    w = W.astype(float)
    return np.asarray(gamma * X.astype(float) @ ((w - w.T) / 2) @ X.T.astype(float))


def naive_log_flux(P: Array, rho: Array) -> Array:
    flow = rho[:, None] * P
    return np.asarray(np.log(flow) - np.log(flow.T))


def stationary(P: Array) -> Array:
    """By elimination without subtraction: every entry to a few eps, small ones too."""
    a = P.copy()
    n = len(a)
    for k in range(n - 1, 0, -1):
        a[:k, k] /= a[k, :k].sum()
        a[:k, :k] += np.outer(a[:k, k], a[k, :k])
    rho = np.ones(n)
    for k in range(1, n):
        rho[k] = rho[:k] @ a[:k, k]
    return np.asarray(rho / rho.sum())


def problem(
    n: int, dtype: str = "float64", d: int = 3, seed: int = 0
) -> tuple[Array, Array, np.random.Generator]:
    rng = np.random.default_rng([seed, n, d])
    return normal(rng, n, d, dtype=dtype), normal(rng, d, d, dtype=dtype), rng


def close(got: Array, want: Array, bound: Array | float, what: str = "") -> None:
    assert got.shape == want.shape, (got.shape, want.shape)
    assert np.isfinite(got).all(), what
    error = np.abs(got - want)
    assert (error <= bound).all(), f"{what}: {error.max():.3g}, wanted {np.max(bound):.3g}"


def product_bound(E: Array, V: Array, dtype: str, spread: float) -> Array:
    """Error of E V: `spread` is the size of the scores and angles that rounding acts on."""
    units = 20 + np.sqrt(E.shape[1]) + 6 * spread
    return np.asarray(eps_of(dtype) * units * (np.abs(E) @ np.abs(V)) + np.finfo(dtype).tiny * 100)


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
            features = sum(x.shape[1] for x, _, _ in angles._dots)
            assert features == (2 * rank if isinstance(W, tuple) and 2 * rank < 8 else 8)
            # The bound that scores carry must hold.
            assert np.abs(want).max() <= angles._top * (1 + 1e-5)
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
    assert np.abs(want).max() <= F._top + 1
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


# ---- laws of 4.4 ----------------------------------------------------------------------------------


@st.composite
def operators(draw: Any) -> tuple[magnetic.MagneticOperator, str]:
    dtype = draw(st.sampled_from(DTYPES))
    n, d = draw(st.sampled_from([1, 2, 3, 7, 20, 33])), draw(st.sampled_from([1, 2, 3, 18]))
    rng = np.random.default_rng(draw(seeds))
    X, W = normal(rng, n, d, dtype=dtype), normal(rng, d, d, dtype=dtype) / dtype_of(dtype, d)
    op = magnetic.operator(
        X / dtype_of(dtype, d**0.25),
        beta=draw(st.sampled_from([0.1, 1.0, 3.0])),
        W=W,
        gamma=draw(st.sampled_from([0.0, 0.5, -2.0, 30.0])),
        metric=draw(st.sampled_from(["W", "euclidean"])),
        alpha=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return op, dtype


def dtype_of(dtype: str, value: float) -> Any:
    return np.dtype(dtype).type(value)


@given(operators())
def test_magnitudes_are_the_diffusion_map(drawn: tuple[magnetic.MagneticOperator, str]) -> None:
    """DAC-6, after eq 40: |P~| = P, pi P = pi, and the real currents vanish."""
    op, dtype = drawn
    P = op.magnitude.to_numpy()
    np.testing.assert_allclose(np.abs(op.to_numpy()), P, rtol=4 * eps_of(dtype), atol=1e-37)
    pi = op.stationary()
    assert pi.dtype == dtype
    tol = 400 * eps_of(dtype)
    np.testing.assert_allclose(pi @ op.magnitude, pi, rtol=0, atol=tol)
    flow = pi[:, None] * P
    assert np.abs(flow - flow.T).max() <= tol * flow.max()
    assert isinstance(op.magnitude, qk.MarkovOperator)
    assert np.abs(op.magnitude.currents(pi / pi.sum())).max() <= tol * flow.max()


@given(operators())
def test_hermitian_form_and_currents(drawn: tuple[magnetic.MagneticOperator, str]) -> None:
    """DAC-6: H = H*, similar to P~; J = -J^T (eq 43); F Hermitian at pi (eq 41)."""
    op, dtype = drawn
    theta = op.phases.to_numpy().astype(float)
    tol = eps_of(dtype) * (400 + 4 * np.abs(theta).max())
    H = op.hermitian().to_numpy()
    assert np.abs(H - H.conj().T).max() <= tol
    pi = op.stationary().astype(float)
    root = np.sqrt(pi)
    E = op.to_numpy()
    np.testing.assert_allclose(H, root[:, None] * E / root, atol=tol)
    F, J = op.flux(), op.current()
    np.testing.assert_allclose(F, pi[:, None] * E, atol=tol * pi.max())
    np.testing.assert_array_equal(J, F.imag)
    largest = np.abs(F).max()
    assert np.abs(J + J.T).max() <= tol * largest
    assert np.abs(F - F.conj().T).max() <= tol * largest
    want = pi[:, None] * op.magnitude.to_numpy() * np.sin(theta)
    np.testing.assert_allclose(J, want, atol=tol * largest)


@given(operators())
def test_spectrum(drawn: tuple[magnetic.MagneticOperator, str]) -> None:
    """DAC-6: P~ psi = lambda psi, real lambda within [-1, 1], psi orthonormal in pi."""
    op, dtype = drawn
    n = op.shape[0]
    k = max(1, n // 2)
    values, vectors = op.spectrum(k)
    theta = op.phases.to_numpy()
    tol = eps_of(dtype) * (1000 + 8 * np.abs(theta).max()) * (1 + n)
    assert values.dtype == dtype and vectors.dtype == COMPLEX[dtype]
    assert (np.diff(values) <= tol).all() and np.abs(values).max() <= 1 + tol
    pi = op.stationary().astype(float)
    size = np.abs(vectors).max()
    assert np.abs(op @ vectors - vectors * values).max() <= tol * size
    gram = (vectors.conj().T * pi) @ vectors
    assert np.abs(gram - np.eye(k)).max() <= tol
    H = op.hermitian().to_numpy().astype(np.complex128)
    want = np.linalg.eigvalsh((H + H.conj().T) / 2)[::-1][:k]
    np.testing.assert_allclose(values, want, atol=tol)


@given(st.sampled_from([2, 7, 40, 90]), seeds, st.sampled_from(["gamma 0", "symmetric W"]))
def test_without_phases_it_is_the_diffusion_map(n: int, seed: int, how: str) -> None:
    """DAC-6, eq 43: Theta = 0 has no current and the spectrum and vectors of DMAP."""
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((n, 3)), rng.standard_normal((3, 3))
    if how == "symmetric W":
        W = (W + W.T) / 2
    op = magnetic.operator(X, beta=0.5, W=W, gamma=float(how == "symmetric W"), metric="euclidean")
    assert not op.current().any()
    values, vectors = op.spectrum(min(n, 4))
    P = row_softmax(-0.5 * squared_distances(X, X))
    want = np.sort(np.linalg.eigvals(P).real)[::-1][: len(values)]
    np.testing.assert_allclose(values, want, atol=1e-12)
    np.testing.assert_allclose(vectors[:, 0], 1, atol=1e-9)


@both_types
def test_vectors_at_unlikely_states(dtype: str) -> None:
    """Far points have a small weight pi; their coordinates are no less exact for that."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((80, 2))
    X[:3] = [[6.0, 0.0], [0.0, -5.0], [4.0, 4.0]]
    W = np.array([[1.0, 0.3], [-0.3, 1.0]])
    op = magnetic.operator(X.astype(dtype), beta=0.5, W=W.astype(dtype), alpha=0.0)
    exact = magnetic.operator(X.astype(dtype).astype(float), beta=0.5, W=W)
    values, vectors = exact.spectrum(4)
    for found in (op, magnetic.laplacian(op, "random_walk")):
        psi = found.spectrum(4)[1]
        assert np.abs(exact @ psi.astype(complex) - psi * values).max() < 2e3 * eps_of(dtype)
    psi = vectors
    E = exact.to_numpy()
    assert np.abs(E @ psi - psi * values).max() < 1e-13
    flat = exact.magnitude, qk.scores.dense(np.zeros((80, 80)))
    ones = magnetic.MagneticOperator(*flat).spectrum(1)[1]
    np.testing.assert_allclose(ones, 1, atol=1e-13)


def test_spectrum_of_the_transpose_and_of_the_kernel() -> None:
    X, W, _ = problem(40)
    op = magnetic.operator(X, beta=0.3, W=W, metric="euclidean", alpha=0.5)
    values = op.spectrum()[0]
    for made in (op.T, op.H, op.kernel, op.hermitian(), op.hermitian().T, op.kernel.H):
        found, vectors = made.spectrum(5)
        E = made.to_numpy()
        np.testing.assert_allclose(E @ vectors, vectors * found, atol=1e-12 * np.abs(vectors).max())
        if not isinstance(made.magnitude, qk.KernelOperator):
            np.testing.assert_allclose(found, values[:5], atol=1e-13)
    np.testing.assert_allclose(op.hermitian().spectrum()[0], values, atol=1e-13)


def test_no_current_does_not_mean_no_phases() -> None:
    """The text before eq 43 says "iff"; only Theta = 0 => J = 0 holds: Theta = pi has sin = 0 too."""
    angle = np.pi * (np.triu(np.ones((3, 3)), 1) - np.tril(np.ones((3, 3)), -1))
    ring = np.where(np.eye(3) > 0, -np.inf, 0.0)
    op = magnetic.MagneticOperator(qk.softmax(qk.scores.dense(ring)), qk.scores.dense(angle))
    assert np.abs(op.current()).max() < 1e-16
    np.testing.assert_allclose(op.spectrum()[0], [0.5, 0.5, -1.0], atol=1e-14)  # DMAP: 1, -.5, -.5


@given(st.sampled_from(["forward", "dot", "dense"]), st.sampled_from([2, 5, 30]), seeds)
def test_small_gamma_limit(kind: str, n: int, seed: int) -> None:
    """DAC-11, eqs 81-83: J/gamma - pi P F = -gamma^2 pi P F^3 / 6 + O(gamma^4): slope 2."""
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((n, 2)), rng.standard_normal((2, 2)) / 2
    made = {
        "forward": lambda: qk.scores.forward(X, W=W),
        "dot": lambda: qk.scores.dot(X, W=W),
        "dense": lambda: qk.scores.dense(rng.standard_normal((n, n))),
    }
    A = qk.softmax(made[kind]())
    P = qk.softmax(qk.scores.distance(X, beta=0.3))
    F = magnetic.log_flux(A).to_numpy()
    flow = P.stationary()[:, None] * P.to_numpy()
    top = np.abs(F).max()
    third = np.abs(flow * F**3 / 6).max()
    if top < 1e-6:  # two states are always in equilibrium
        assert n == 2
        return
    gammas = np.array([0.2, 0.1, 0.05, 0.025]) / top
    errors = []
    for gamma in gammas:
        op = magnetic.from_attention(A, P, gamma=gamma)
        np.testing.assert_allclose(op.phases.to_numpy(), gamma * F, atol=1e-12)
        J = op.current()
        np.testing.assert_allclose(J, flow * np.sin(gamma * F), atol=1e-14)
        errors.append(np.abs(J / gamma - flow * F).max())
        assert (np.sign(J)[np.abs(J) > 1e-12] == np.sign(F)[np.abs(J) > 1e-12]).all()
    assert np.allclose(errors / (third * gammas**2), 1, atol=0.01)
    slope = np.polyfit(np.log(gammas), np.log(errors), 1)[0]
    assert abs(slope - 2) < 0.01


@both_types
@pytest.mark.parametrize("n", [2, 65])
def test_from_attention(n: int, dtype: str) -> None:
    """DAC-11, eqs 77-81; without P the geometry is s + s^T: DMAP itself for forward scores."""
    X, W, _ = problem(n, dtype)
    A = qk.softmax(qk.scores.forward(X, W=W, beta=0.2))
    D = qk.softmax(qk.scores.distance(X, W=W, beta=0.2))
    own, given_ = magnetic.from_attention(A, gamma=0.3), magnetic.from_attention(A, D, gamma=0.3)
    tol = 400 * eps_of(dtype)
    np.testing.assert_allclose(own.to_numpy(), given_.to_numpy(), atol=tol)
    np.testing.assert_allclose(own.spectrum()[0], given_.spectrum()[0], atol=tol)
    np.testing.assert_allclose(given_.magnitude.to_numpy(), D.to_numpy(), atol=0)
    # NESS: attention has currents, and their signs are those of the phases (eq 75).
    pi = A.stationary()
    J = A.currents(pi)
    F = given_.phases.to_numpy()
    clear = np.abs(J) > 1e-4 * np.abs(J).max() + tol
    assert (np.sign(J)[clear] == np.sign(F)[clear]).all()
    np.testing.assert_allclose(given_.stationary(), D.stationary(), atol=tol)


# ---- closed forms ---------------------------------------------------------------------------------


@both_types
@pytest.mark.parametrize("n", [5, 63, 300])
def test_points_on_a_circle_are_circulant(n: int, dtype: str) -> None:
    """x_i^T A x_j = sin(phi_j - phi_i): the operator is circulant and its spectrum a Fourier transform."""
    phi = 2 * np.pi * np.arange(n) / n
    X = np.c_[np.cos(phi), np.sin(phi)]
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]])
    op = magnetic.operator(X.astype(dtype), beta=2.0, W=turn.astype(dtype), gamma=1.7)
    first = np.exp(-2 * ((X - X[0]) ** 2).sum(1)) * np.exp(1.7j * np.sin(phi))
    want = np.sort(np.fft.fft(first).real / np.abs(first).sum())[::-1]
    assert np.abs(np.fft.fft(first).imag).max() < 1e-12
    values, vectors = op.spectrum(min(n, 9))
    np.testing.assert_allclose(values, want[: len(values)], atol=40 * eps_of(dtype))
    # The first mode turns with the field: one Fourier vector, of constant size.
    np.testing.assert_allclose(np.abs(vectors[:, 0]), 1, atol=3e3 * eps_of(dtype))


@pytest.mark.parametrize("n", [3, 8, 70])
@pytest.mark.parametrize("step", [0.0, 0.3, np.pi / 70, np.pi])
def test_ring_with_uniform_flux(n: int, step: float) -> None:
    """Hops by one with phase a per step: eigenvalues cos(2 pi k / n + a); repeated ones for a = pi/n."""
    hop = np.roll(np.eye(n), 1, axis=1)
    with np.errstate(divide="ignore"):
        s = qk.scores.dense(np.log(hop + hop.T))
    op = magnetic.MagneticOperator(qk.softmax(s), qk.scores.dense(step * (hop - hop.T)))
    want = np.sort(np.cos(2 * np.pi * np.arange(n) / n + step))[::-1]
    for k in (n, min(n, 6)):
        values, vectors = op.spectrum(k)
        np.testing.assert_allclose(values, want[:k], atol=1e-13)
        np.testing.assert_allclose(vectors.conj().T @ vectors / n, np.eye(k), atol=1e-12)
    # All current goes round: pi P sin(a) = sin(a) / 2n along every edge.
    np.testing.assert_allclose(op.current(), np.sin(step) / (2 * n) * (hop - hop.T), atol=1e-16)


@both_types
@pytest.mark.parametrize("n", [3, 4, 10, 70])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.25, 1 / 3])
def test_directed_cycle(n: int, q: float, dtype: str) -> None:
    """DAC-6, C.9: the magnetic Laplacian of a directed cycle has eigenvalues 1 - cos(2 pi (k/n + q))."""
    op = graph_operator(np.roll(np.eye(n), 1, axis=1), q, dtype)
    want = np.sort(1 - np.cos(2 * np.pi * (np.arange(n) / n + q)))
    for kind in ("combinatorial", "symmetric", "random_walk"):
        L = magnetic.laplacian(op, kind)
        for k in (None, min(n, 4)):
            values, vectors = L.spectrum(k)
            np.testing.assert_allclose(values, want[: len(values)], atol=60 * eps_of(dtype))
            close(L @ vectors, vectors * values, 300 * eps_of(dtype) * np.abs(vectors).max())


@pytest.mark.parametrize("q", [0.0, 0.1, 1 / 3])
def test_repeated_eigenvalues_are_all_found(q: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations that start from one vector see a repeated eigenvalue once; none may be missed."""
    monkeypatch.setattr(_spectral, "DENSE_UP_TO", 0)
    n = 70
    L = magnetic.laplacian(graph_operator(np.roll(np.eye(n), 1, axis=1), q))
    want = np.sort(1 - np.cos(2 * np.pi * (np.arange(n) / n + q)))
    for k in (2, 4, 5):
        values, vectors = L.spectrum(k)
        np.testing.assert_allclose(values, want[:k], atol=1e-13)
        np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(k), atol=1e-12)
        np.testing.assert_allclose(L @ vectors, vectors * values, atol=1e-12)


def graph_operator(adjacency: Array, q: float, dtype: str = "float64") -> magnetic.MagneticOperator:
    """The kernel (W + W^T)/2 with phase 2 pi q along one-way edges."""
    with np.errstate(divide="ignore"):
        weights = np.log((adjacency + adjacency.T) / 2)
    there = adjacency > 0
    angle = 2 * np.pi * q * (there.astype(float) - there.T)
    return magnetic.MagneticOperator(
        qk.kernel(qk.scores.dense(weights.astype(dtype))), qk.scores.dense(angle.astype(dtype))
    )


@pytest.mark.peers
@pytest.mark.parametrize("q", [0.0, 0.25, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
def test_magnetic_laplacian_of_networkx_graphs(q: float, weighted: bool) -> None:
    """DAC-6, C.9, against D - W' exp(2 pi i q delta) on graphs and adjacency by networkx.

    networkx has its own magnetic_laplacian_matrix after 3.6; where it is there, it is compared too.
    """
    nx = pytest.importorskip("networkx")
    rng = np.random.default_rng(0)
    graph = nx.gnp_random_graph(40, 0.12, seed=1, directed=True)
    graph.add_node(40)  # a state without any edge
    for _, _, data in graph.edges(data=True):
        data["weight"] = float(rng.uniform(0.5, 2)) if weighted else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adjacency = nx.to_numpy_array(graph, weight="weight")
    n = len(adjacency)
    symmetric = (adjacency + adjacency.T) / 2
    delta = np.zeros((n, n))
    for i, j in graph.edges:
        if not graph.has_edge(j, i):
            delta[i, j], delta[j, i] = 1, -1
    degree = symmetric.sum(axis=1)
    want = np.diag(degree) - symmetric * np.exp(2j * np.pi * q * delta)
    with np.errstate(divide="ignore"):
        root = np.where(degree > 0, 1 / np.sqrt(degree), 0)
    normalized = root[:, None] * want * root
    op = graph_operator(adjacency, q)
    for kind, matrix in (("combinatorial", want), ("symmetric", normalized)):
        L = magnetic.laplacian(op, kind)
        np.testing.assert_allclose(L.to_numpy(), matrix, atol=1e-14)
        V = complex_normal(rng, n, 3)
        np.testing.assert_allclose(L @ V, matrix @ V, atol=1e-13)
        values, _ = L.spectrum()
        np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), atol=1e-13)
        if hasattr(nx, "magnetic_laplacian_matrix"):
            peer = nx.magnetic_laplacian_matrix(graph, q=q, normalized=kind == "symmetric")
            peer = peer.toarray() if hasattr(peer, "toarray") else np.asarray(peer)
            np.testing.assert_allclose(L.to_numpy(), peer, atol=1e-13)


@both_types
def test_laplacian_forms(dtype: str) -> None:
    """DAC-6: D - K~, I - H, I - P~ of points; positive semidefinite; the last two share a spectrum."""
    X, W, rng = problem(70, dtype)
    op = magnetic.operator(X, beta=0.5, W=W, metric="euclidean")
    K = np.exp(-0.5 * squared_distances(X, X))
    U = np.exp(1j * naive_phases(X, W, 1.0))
    d = K.sum(axis=1)
    want = {
        "combinatorial": np.diag(d) - K * U,
        "symmetric": np.eye(70) - K * U / np.sqrt(d[:, None] * d),
        "random_walk": np.eye(70) - K * U / d[:, None],
    }
    tol = 200 * eps_of(dtype)
    V = complex_normal(rng, 70, dtype=dtype)
    for kind, matrix in want.items():
        L = magnetic.laplacian(op, kind)
        assert L.shape == (70, 70) and L.dtype == COMPLEX[dtype] and L.kind == kind
        assert kind in repr(L)
        np.testing.assert_allclose(L.to_numpy(), matrix, atol=tol)
        np.testing.assert_allclose(L @ V, matrix @ V, atol=20 * tol)
        values, vectors = L.spectrum(5)
        lowest = np.sort(np.linalg.eigvals(matrix).real)[:5]
        np.testing.assert_allclose(values, lowest, atol=10 * tol)
        np.testing.assert_allclose(L @ vectors, vectors * values, atol=20 * tol)
        assert values[0] > -tol


# ---- gauge (C.7) ----------------------------------------------------------------------------------


@given(operators(), seeds)
def test_gauge_leaves_the_spectrum(drawn: tuple[magnetic.MagneticOperator, str], seed: int) -> None:
    """DAC-6, C.8.3 and C.9: eigenvalues, magnitudes and cycles stay; vectors turn with phi."""
    op, dtype = drawn
    n = op.shape[0]
    rng = np.random.default_rng(seed)
    phi = rng.uniform(0, 2 * np.pi, n).astype(dtype)
    weight = float(rng.integers(-2, 3))
    op = magnetic.MagneticOperator(op.magnitude, op.phases, gauge_weight=weight)
    turned = op.gauge(phi)
    assert turned.gauge_weight == weight
    theta = op.phases.to_numpy()
    tol = eps_of(dtype) * (200 + 8 * np.abs(theta).max() + 40 * abs(weight)) * (1 + n)
    E = op.to_numpy()
    want = magnetic.gauge_transform(E, phi, weight)
    R = np.exp(1j * weight * phi.astype(float))
    np.testing.assert_allclose(want, np.diag(R) @ E @ np.diag(R.conj()), atol=tol)
    np.testing.assert_allclose(turned.to_numpy(), want, atol=tol)
    values, vectors = op.spectrum()
    np.testing.assert_allclose(turned.spectrum()[0], values, atol=tol)
    moved = R[:, None] * vectors
    assert (
        np.abs(turned @ moved.astype(E.dtype) - moved * values).max() <= tol * np.abs(vectors).max()
    )
    for kind in ("combinatorial", "symmetric"):
        before, after = (magnetic.laplacian(o, kind) for o in (op, turned))
        close(after.spectrum()[0], before.spectrum()[0], tol * before.degree.max())
    np.testing.assert_allclose(np.abs(turned.flux()), np.abs(op.flux()), atol=4 * eps_of(dtype))
    if n >= 3:  # the phase around a triangle
        around = [o.phases.to_numpy() for o in (op, turned)]
        a, b = (t[0, 1] + t[1, 2] + t[2, 0] for t in around)
        assert abs(a - b) <= tol


def test_coordinates_turn_and_currents_change_with_the_gauge() -> None:
    """C.8.3 calls diffusion coordinates gauge-invariant; their absolute values are, they are not."""
    X, W, rng = problem(30)
    op = magnetic.operator(X, beta=0.5, W=W)
    phi = rng.uniform(0, 2 * np.pi, 30)
    turned = op.gauge(phi)
    a, b = op.spectrum(3)[1], turned.spectrum(3)[1]
    np.testing.assert_allclose(np.abs(a), np.abs(b), atol=1e-10)
    aligned = np.exp(1j * phi)[:, None] * a
    overlap = np.sum(op.stationary()[:, None] * aligned.conj() * b, axis=0)
    np.testing.assert_allclose(np.abs(overlap), 1, atol=1e-10)
    assert np.abs(a - b).max() > 0.5
    # A pure gauge on an operator without phases: a current, but the spectrum of DMAP.
    flat = magnetic.operator(X, beta=0.5, W=np.eye(3))
    pure = flat.gauge(phi)
    assert not flat.current().any() and np.abs(pure.current()).max() > 1e-4
    np.testing.assert_allclose(pure.spectrum()[0], flat.spectrum()[0], atol=1e-13)


@given(operators(), seeds)
def test_hadamard_products_are_closed(
    drawn: tuple[magnetic.MagneticOperator, str], seed: int
) -> None:
    """DAC-6, C.8.1: (B . C)' has weight a + b, phases add, and the product has a Hermitian form."""
    A, dtype = drawn
    n = A.shape[0]
    rng = np.random.default_rng(seed)
    phi = normal(rng, n, dtype=dtype)
    a, b = (float(x) for x in rng.uniform(-2, 2, 2))
    X, W = normal(rng, n, 2, dtype=dtype), normal(rng, 2, 2, dtype=dtype)
    B = magnetic.operator(X, beta=0.5, W=W, metric="euclidean")
    A = magnetic.MagneticOperator(A.magnitude, A.phases, gauge_weight=a)
    B = magnetic.MagneticOperator(B.magnitude, B.phases, gauge_weight=b)
    AB = magnetic.hadamard(A, B)
    assert AB.gauge_weight == pytest.approx(a + b)
    angles = np.abs(A.phases.to_numpy()).max() + np.abs(B.phases.to_numpy()).max()
    tol = eps_of(dtype) * (500 + 8 * angles)
    np.testing.assert_allclose(AB.to_numpy(), A.to_numpy() * B.to_numpy(), atol=tol)
    product = A.gauge(phi).to_numpy() * B.gauge(phi).to_numpy()
    np.testing.assert_allclose(AB.gauge(phi).to_numpy(), product, atol=tol)
    np.testing.assert_allclose(
        magnetic.gauge_transform(A.to_numpy() * B.to_numpy(), phi, a + b), product, atol=tol
    )
    H = AB.normalized().hermitian().to_numpy()
    assert np.abs(H - H.conj().T).max() <= tol
    np.testing.assert_allclose(np.abs(AB.normalized().to_numpy()).sum(axis=1), 1, rtol=tol)


def test_hadamard_with_random_experts() -> None:
    """The same on operators that are sure to fit; real ones take part with weight 0 (C.8.2)."""
    X, W, rng = problem(65)
    A = magnetic.operator(X, beta=0.5, W=W)
    B = magnetic.operator(X[::-1], beta=0.2, W=W, gamma=2.0)
    R = qk.softmax(qk.scores.distance(X, beta=0.1))
    C = magnetic.hadamard(A, B, R)
    assert C.gauge_weight == 2 and magnetic.hadamard(R).gauge_weight == 0
    want = A.to_numpy() * B.to_numpy() * R.to_numpy()
    np.testing.assert_allclose(C.to_numpy(), want, atol=1e-14)
    V = complex_normal(rng, 65, 2)
    np.testing.assert_allclose(C @ V, want @ V, atol=1e-14)
    P = C.normalized()
    values, vectors = P.spectrum(4)
    rows = want / np.abs(want).sum(axis=1, keepdims=True)
    exact = np.sort(np.linalg.eigvals(rows).real)[::-1][:4]
    np.testing.assert_allclose(values, exact, atol=1e-12)
    np.testing.assert_allclose(rows @ vectors, vectors * values, atol=1e-10)
    pi = P.stationary()
    np.testing.assert_allclose(pi @ np.abs(rows), pi, atol=1e-14)
    # D - K needs the kernel itself to be symmetric: the normalisers of the factors are not.
    with pytest.raises(ValueError, match="symmetric scores and antisymmetric phases for D - K"):
        magnetic.laplacian(C)
    magnetic.laplacian(C, "symmetric")
    K = magnetic.hadamard(A.kernel, B.kernel)
    np.testing.assert_allclose(K.hermitian().to_numpy(), K.to_numpy(), atol=1e-14)
    magnetic.laplacian(K)


def su2(axis: Array, angle: float) -> Array:
    pauli = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])
    return np.asarray(
        np.cos(angle / 2) * np.eye(2) - 1j * np.sin(angle / 2) * np.einsum("a,abc->bc", axis, pauli)
    )


def test_non_abelian_counter_example() -> None:
    """DAC C.7.1: for SU(2) the Hadamard product is not equivariant; for U(1), and for permutations, it is.

    B = C = I on an edge, R_i a quarter turn about x, R_j = 1: (R B) . (R C) = (I - X)/2 with X the Pauli
    matrix, but R (B . C) = (I - iX)/sqrt 2.
    """
    R = su2(np.array([1.0, 0, 0]), np.pi / 2)
    np.testing.assert_allclose(R @ R.conj().T, np.eye(2), atol=1e-15)
    assert abs(np.linalg.det(R) - 1) < 1e-15
    B = C = np.eye(2)
    X = np.array([[0, 1], [1, 0]])
    after, wanted = (R @ B) * (R @ C), R @ (B * C)
    np.testing.assert_allclose(after, (np.eye(2) - X) / 2, atol=1e-15)
    np.testing.assert_allclose(wanted, (np.eye(2) - 1j * X) / np.sqrt(2), atol=1e-15)
    assert np.linalg.norm(after - wanted) == pytest.approx(np.sqrt(3 - np.sqrt(2)))  # 1.2593
    # Eq 84 is what it is instead: two copies of the representation at one free index.
    rng = np.random.default_rng(0)
    Ri, Rj = (
        su2(v / np.linalg.norm(v), t)
        for v, t in ((rng.normal(size=3), 0.7), (rng.normal(size=3), 2.0))
    )
    B, C = complex_normal(rng, 2, 2), complex_normal(rng, 2, 2)
    back = Rj.conj().T
    eq84 = np.einsum("ag,am,gd,mn,db,nb->ab", Ri, Ri, B, C, back, back)
    np.testing.assert_allclose((Ri @ B @ back) * (Ri @ C @ back), eq84, atol=1e-14)
    assert np.linalg.norm(eq84 - Ri @ (B * C) @ back) > 0.1
    # Diagonal phases commute with the product, with weights that add ...
    for a, b in ((1.0, 1.0), (0.5, -2.0)):
        phi = rng.uniform(0, 6, 2)
        both = magnetic.gauge_transform(B, phi, a) * magnetic.gauge_transform(C, phi, b)
        np.testing.assert_allclose(both, magnetic.gauge_transform(B * C, phi, a + b), atol=1e-14)
    # ... and so do permutations, which do not commute with each other: "Abelian" is enough, not needed.
    S, T = np.eye(3)[[1, 0, 2]], np.eye(3)[[1, 2, 0]]
    assert (S @ T != T @ S).any()
    B3, C3 = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    np.testing.assert_array_equal((S @ B3 @ T.T) * (S @ C3 @ T.T), S @ (B3 * C3) @ T.T)


# ---- the estimator --------------------------------------------------------------------------------


@both_types
@pytest.mark.parametrize("n", [1, 2, 65, 200])
def test_magnetic_map(n: int, dtype: str) -> None:
    """DAC-6: the embedding is lambda^t psi of the operator, and extends to the points it came from."""
    X, W, _ = problem(n, dtype)
    k = min(n, 3)
    for t in (1, 2):
        model = magnetic.MagneticMap(k, beta=0.3, W=W, gamma=0.5, metric="euclidean", t=t)
        got = model.fit_transform(X)
        assert got.dtype == COMPLEX[dtype] and got.shape == (n, k)
        op = magnetic.operator(X, beta=0.3, W=W, gamma=0.5, metric="euclidean")
        values, vectors = op.spectrum(k)
        np.testing.assert_array_equal(model.eigenvalues_, values)
        np.testing.assert_array_equal(model.eigenvectors_, vectors)
        np.testing.assert_allclose(got, vectors * values**t, rtol=1e-6)
        scale = np.abs(got).max()
        np.testing.assert_allclose(model.transform(X), got, atol=3e3 * eps_of(dtype) * scale)
        assert model.beta_ == 0.3 and model.n_features_in_ == 3
    again = magnetic.MagneticMap(k, beta=0.3, W=W, gamma=0.5, metric="euclidean", t=2).fit(X)
    assert again.embedding_.tobytes() == got.tobytes()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("metric", ["W", "euclidean"])
def test_nystrom(alpha: float, d: int, metric: str) -> None:
    """psi(x) = 1/lambda sum_j P(x, x_j) e^{i theta(x, x_j)} psi_j, by hand, for new points."""
    rng = np.random.default_rng(d)
    X, new = rng.standard_normal((60, d)), rng.standard_normal((11, d))
    W = np.eye(d) + 0.4 * rng.standard_normal((d, d))  # its symmetric part may be indefinite
    beta = 0.2 / d
    model = magnetic.MagneticMap(4, beta=beta, W=W, alpha=alpha, metric=metric).fit(X)
    S = (W + W.T) / 2 if metric == "W" else np.eye(d)
    K, k = (np.exp(-beta * squared_distances(P, X, S)) for P in (X, new))
    q = K.sum(axis=1)
    K = K / np.outer(q, q) ** alpha
    k = k / q**alpha
    U, u = (np.exp(1j * P @ ((W - W.T) / 2) @ X.T) for P in (X, new))
    E = K * U / K.sum(axis=1, keepdims=True)
    values, psi = model.eigenvalues_, model.eigenvectors_
    np.testing.assert_allclose(E @ psi, psi * values, atol=1e-10)
    np.testing.assert_allclose(values, np.sort(np.linalg.eigvals(E).real)[::-1][:4], atol=1e-11)
    want = (k * u / k.sum(axis=1, keepdims=True)) @ psi / values
    np.testing.assert_allclose(model.transform(new), want * values, atol=1e-10)
    model.set_params(t=0)
    np.testing.assert_allclose(model.transform(new), want, atol=1e-9)


def test_median_rule() -> None:
    """beta = None: one over the median squared distance between different points, in the metric."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    upper = np.triu_indices(300, 1)
    beta = magnetic.MagneticMap().fit(X).beta_
    assert beta == pytest.approx(1 / np.median(squared_distances(X, X)[upper]))
    W = np.diag([1.0, 4.0, 9.0]) + np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0.0]])
    beta = magnetic.MagneticMap(W=W).fit(X).beta_
    assert beta == pytest.approx(1 / np.median(squared_distances(X, X, W)[upper]))
    repeated = np.vstack([np.zeros((200, 3)), X[:2]])
    distances = squared_distances(repeated[-3:], repeated[-3:])
    rest = [distances[0, 1]] * 200 + [distances[0, 2]] * 200 + [distances[1, 2]]
    assert magnetic.MagneticMap().fit(repeated).beta_ == pytest.approx(1 / np.median(rest))
    assert magnetic.MagneticMap(1).fit(np.ones((5, 2))).beta_ == 1
    many = rng.standard_normal((2500, 2))
    one, two = (median_rule(many) for _ in range(2))
    assert one.beta == two.beta and one.beta is not None and 0.15 < one.beta < 0.5
    assert one.minus.shape == (1000, 1000) and one.lowest == 0
    assert median_rule(X, np.diag([1.0, -1.0, 1.0])).lowest < -1


def test_scikit_learn_conventions() -> None:
    """clone, Pipeline, set_params and integer data."""
    base = pytest.importorskip("sklearn.base")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    X, W, _ = problem(50)
    model = magnetic.MagneticMap(3, W=W, beta=0.2)
    copy = base.clone(model)
    assert copy is not model and copy.get_params().keys() == model.get_params().keys()
    assert copy.fit_transform(X).tobytes() == model.fit(X).embedding_.tobytes()
    made = pipeline.make_pipeline(preprocessing.StandardScaler(), model)
    out = made.fit_transform(X)
    assert out.shape == (50, 3) and np.iscomplexobj(out)
    np.testing.assert_allclose(made.transform(X), out, atol=1e-11)
    made.set_params(magneticmap__n_components=2)
    assert made.fit_transform(X).shape == (50, 2)
    assert magnetic.MagneticMap(2).fit(np.arange(12).reshape(6, 2)).embedding_.shape == (6, 2)
    assert "n_components=4, beta=0.5" in repr(magnetic.MagneticMap(4, beta=0.5))
    with pytest.raises(ValueError, match="no such parameter"):
        model.set_params(bandwidth=1)


def test_the_estimator_keeps_its_own_points() -> None:
    X, W, _ = problem(30)
    mine = X.copy()
    model = magnetic.MagneticMap(2, W=W, beta=0.3).fit(mine)
    before = model.transform(X)
    mine[:] = 0
    np.testing.assert_array_equal(model.transform(X), before)


def test_a_directed_ring_is_seen_in_the_angles() -> None:
    """Points that drift round a noisy ring: the leading coordinate turns with the angle, DMAP's cannot."""
    rng = np.random.default_rng(2)
    phi = np.sort(rng.uniform(0, 2 * np.pi, 150))
    X = np.c_[np.cos(phi), np.sin(phi)] + 0.02 * rng.standard_normal((150, 2))
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]])
    # sin(a) phase per hop of angle a; the best mode advances by 2 turns per turn at gamma = 2.
    first = magnetic.MagneticMap(1, beta=8.0, W=turn, gamma=2.0).fit(X).embedding_[:, 0]
    winding = np.unwrap(np.angle(first))
    assert abs(abs(winding[-1] - winding[0]) / (phi[-1] - phi[0]) - 2) < 0.1


# ---- masked operators -----------------------------------------------------------------------------


@both_types
def test_symmetric_masks_keep_the_hermitian_form(dtype: str) -> None:
    X, W, rng = problem(40, dtype)
    keep = rng.random((40, 40)) < 0.4
    keep = keep | keep.T
    keep[7] = keep[:, 7] = False  # a state without any weight
    s = qk.scores.distance(X, beta=0.3)
    theta = naive_phases(X, W, 1.0)
    for masked, seen in (
        (s.masked(keep), keep),
        (s.window(3, 3), np.abs(np.subtract.outer(range(40), range(40))) <= 3),
    ):
        op = magnetic.MagneticOperator(qk.softmax(masked), magnetic.phases(X, W))
        K = np.exp(-0.3 * squared_distances(X, X)) * seen
        d = K.sum(axis=1)
        safe = np.where(d > 0, d, 1)
        H = K * np.exp(1j * theta) / np.sqrt(safe[:, None] * safe)
        tol = 300 * eps_of(dtype)
        np.testing.assert_allclose(op.hermitian().to_numpy(), H, atol=tol)
        np.testing.assert_allclose(op.spectrum()[0], np.linalg.eigvalsh(H)[::-1], atol=tol)
        np.testing.assert_allclose(op.stationary(), d / d.sum(), atol=tol)
        J = op.current()
        np.testing.assert_allclose(J, (d / d.sum() / safe)[:, None] * K * np.sin(theta), atol=tol)
    with pytest.raises(ValueError, match="no diagonal scaling makes Hermitian"):
        magnetic.MagneticOperator(qk.softmax(s.causal()), magnetic.phases(X, W)).hermitian()


def test_padding() -> None:
    """States left out on both sides are gone; left out on one side there is no Hermitian form."""
    X, W, _ = problem(20)
    gone = np.where(np.arange(20) < 15, 0.0, -np.inf)
    s = qk.scores.distance(X, beta=0.3)
    theta = magnetic.phases(X, W)
    op = magnetic.MagneticOperator(qk.softmax(s.shift(gone, gone)), theta)
    small = magnetic.operator(X[:15], beta=0.3, W=W, metric="euclidean")
    np.testing.assert_allclose(op.stationary(), np.r_[small.stationary(), np.zeros(5)], atol=1e-15)
    np.testing.assert_allclose(
        np.sort(op.spectrum()[0]), np.sort(np.r_[small.spectrum()[0], np.zeros(5)]), atol=1e-13
    )
    one_sided = magnetic.MagneticOperator(qk.softmax(s.shift(columns=gone)), theta)
    with pytest.raises(ValueError, match="no diagonal scaling"):
        one_sided.spectrum()


def test_attention_as_magnitude() -> None:
    """Magnitudes need not be reversible: flux and currents are there, the spectrum is refused."""
    X, W, _ = problem(30)
    A = qk.softmax(qk.scores.forward(X, W=W, beta=0.2))
    op = magnetic.MagneticOperator(A, magnetic.phases(X, W))
    np.testing.assert_allclose(op.stationary(), A.stationary(), atol=0)
    want = A.stationary()[:, None] * A.to_numpy() * np.sin(naive_phases(X, W, 1.0))
    np.testing.assert_allclose(op.current(), want, atol=1e-15)
    rho = np.full(30, 1 / 30)
    np.testing.assert_allclose(op.flux(rho), op.to_numpy() / 30, atol=1e-16)
    with pytest.raises(ValueError, match="no diagonal scaling makes Hermitian"):
        op.spectrum(2)
    # Symmetric phases are no gauge field either.
    P = qk.softmax(qk.scores.distance(X))
    with pytest.raises(ValueError, match="antisymmetric"):
        magnetic.MagneticOperator(P, qk.scores.dot(X)).hermitian()


# ---- bad input ------------------------------------------------------------------------------------


def good(n: int = 5) -> tuple[Array, Array, magnetic.MagneticOperator]:
    X, W, _ = problem(n)
    return X, W, magnetic.operator(X, beta=1.0, W=W)


def raises(error: type[Exception], match: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        call()


def test_bad_right_hand_sides() -> None:
    _, _, op = good()
    V = np.ones((5, 2))
    raises(TypeError, "V: wanted complex128 or float64", lambda: op @ V.astype(np.float32))
    raises(TypeError, "V: wanted complex128 or float64", lambda: op @ V.astype(np.complex64))
    raises(TypeError, "V: wanted float32 or float64", lambda: op @ np.ones(5, dtype=int))
    raises(TypeError, "V: wanted float32 or float64", lambda: op @ V.astype(">c16"))
    raises(
        ValueError, r"length 5 along the operator's columns.*U @ A", lambda: op @ np.ones((4, 5))
    )
    raises(ValueError, r"length 5 along the operator's rows.*A @ V", lambda: np.ones((5, 4)) @ op)
    raises(ValueError, r"wanted shape \(5,\) or \(\.\.\., 5, k\)", lambda: op @ np.ones((1, 5, 2)))
    raises(ValueError, "no axis of length 0", lambda: op @ np.ones((5, 0)))
    for bad in (np.nan, np.inf, 1j * np.nan):
        raises(ValueError, "V: wanted finite", lambda bad=bad: op @ np.full(5, bad))
    raises(ValueError, "V: wanted finite", lambda: magnetic.laplacian(op) @ np.full(5, np.nan))


def test_bad_points_and_weights() -> None:
    X, W, _ = good()
    f = magnetic.operator
    raises(TypeError, "X: .*complex128", lambda: f(X * 1j, beta=1.0, W=W))
    raises(TypeError, "W: .*complex128", lambda: f(X, beta=1.0, W=W * 1j))
    raises(TypeError, "W: wanted float64", lambda: f(X, beta=1.0, W=W.astype(np.float32)))
    raises(ValueError, "X: wanted finite", lambda: f(X * np.nan, beta=1.0, W=W))
    raises(ValueError, "W: wanted finite", lambda: f(X, beta=1.0, W=W * np.inf))
    raises(ValueError, r"W: wanted shape \(3, 3\)", lambda: f(X, beta=1.0, W=W[:2]))
    raises(ValueError, "inner sizes must agree", lambda: f(X, beta=1.0, W=(W[:, :2], W)))
    raises(ValueError, "tuple of 0", lambda: magnetic.phases(X, ()))
    raises(ValueError, "batch axes", lambda: f(X[None], beta=1.0, W=W))
    raises(ValueError, "beta", lambda: f(X, beta=0.0, W=W))
    raises(ValueError, "gamma: wanted a finite", lambda: f(X, beta=1.0, W=W, gamma=np.nan))
    raises(TypeError, "gamma: wanted a real number", lambda: f(X, beta=1.0, W=W, gamma=1j))
    raises(TypeError, "gamma: wanted a real number", lambda: f(X, beta=1.0, W=W, gamma="1"))
    raises(ValueError, "metric: wanted", lambda: f(X, beta=1.0, W=W, metric="cosine"))
    raises(ValueError, "alpha: wanted", lambda: f(X, beta=1.0, W=W, alpha=-1.0))
    raises(
        ValueError,
        "gamma: wanted a number that float32",
        lambda: magnetic.phases(X.astype(np.float32), W.astype(np.float32), 1e300),
    )
    raises(OverflowError, "overflows", lambda: magnetic.phases(X * 1e200, W * 1e200))


def test_bad_operators() -> None:
    X, W, op = good()
    s, theta = qk.scores.distance(X), magnetic.phases(X, W)
    M = magnetic.MagneticOperator
    raises(TypeError, "magnitude: wanted a real operator", lambda: M(s, theta))
    raises(ValueError, "magnitude: wanted weights exp", lambda: M(qk.kernel(s, "relu"), theta))
    raises(TypeError, "phases: wanted angles as scores", lambda: M(qk.softmax(s), theta.to_numpy()))
    raises(
        ValueError,
        r"phases: wanted shape \(5, 5\)",
        lambda: M(qk.softmax(s), magnetic.phases(X, W, Y=X[:4])),
    )
    raises(
        TypeError,
        "phases: wanted float64",
        lambda: M(qk.softmax(s), magnetic.phases(X.astype(np.float32), W.astype(np.float32))),
    )
    raises(
        ValueError,
        "magnitude: wanted one problem",
        lambda: M(qk.softmax(qk.scores.distance(X[None])), theta),
    )
    raises(ValueError, "ragged", lambda: M(qk.softmax(s.ragged([0, 2, 5])), theta))
    for masked in (theta.causal(), theta.masked(np.eye(5) > 0), theta.window(1, 1)):
        raises(
            ValueError,
            "phases: wanted an angle for every pair",
            lambda t=masked: M(qk.softmax(s), t),
        )
    raises(
        ValueError,
        "phases: wanted an angle",
        lambda: M(qk.softmax(s), qk.scores.dense(np.full((5, 5), -np.inf))),
    )
    M(qk.softmax(s), theta.causal(4))  # a band that masks nothing
    raises(ValueError, "gauge_weight", lambda: M(qk.softmax(s), theta, gauge_weight=np.inf))
    raises(ValueError, "call normalized", lambda: op.kernel.flux())
    raises(ValueError, "take its transpose", lambda: op.T.current())
    raises(ValueError, "rho: wanted probabilities", lambda: op.flux(np.ones(5)))
    raises(TypeError, "rho: wanted float64", lambda: op.flux(np.ones(5, np.float32) / 5))
    raises(ValueError, "k: wanted 1 to 5", lambda: op.spectrum(6))
    raises(ValueError, "k: wanted 1 to 5", lambda: op.spectrum(0))
    raises(ValueError, r"phi: wanted shape \(5,\)", lambda: op.gauge(np.ones(4)))
    raises(TypeError, "phi", lambda: op.gauge(np.ones(5) * 1j))
    raises(ValueError, "phi: wanted finite", lambda: op.gauge(np.full(5, np.nan)))
    raises(TypeError, "phi: wanted float64", lambda: op.gauge(np.ones(5, np.float32)))
    raises(TypeError, "op: wanted a magnetic operator", lambda: magnetic.laplacian(qk.softmax(s)))
    raises(ValueError, "kind: wanted", lambda: magnetic.laplacian(op, "signless"))
    raises(ValueError, "at least one", lambda: magnetic.hadamard())
    raises(TypeError, "number 2", lambda: magnetic.hadamard(op, np.ones((5, 5))))
    other = magnetic.operator(X[:4], beta=1.0, W=W)
    raises(ValueError, "equal last two axes", lambda: magnetic.hadamard(op, other))
    single = magnetic.operator(X.astype(np.float32), beta=1.0, W=W.astype(np.float32))
    raises(TypeError, "one dtype", lambda: magnetic.hadamard(op, single))
    raises(ValueError, "E: wanted a square", lambda: magnetic.gauge_transform(X, np.ones(5)))
    raises(ValueError, "phi: wanted shape", lambda: magnetic.gauge_transform(W, np.ones(5)))
    raises(
        TypeError,
        "phi: wanted float64",
        lambda: magnetic.gauge_transform(W, np.ones(3, np.float32)),
    )
    raises(ValueError, "E: wanted finite", lambda: magnetic.gauge_transform(W * np.nan, np.ones(3)))


def test_bad_attention() -> None:
    X, _, _ = good()
    A = qk.softmax(qk.scores.dot(X))
    raises(TypeError, "A: wanted an attention operator", lambda: magnetic.log_flux(A.to_numpy()))
    s = qk.scores.dot(X)
    for masked in (
        s.causal(),
        s.window(1, 1),
        s.masked(np.tri(5) > 0),
        s.key_padding(np.arange(5) < 4),
        qk.scores.dense(np.where(np.eye(5) > 0, -np.inf, 0.0)),
    ):
        raises(ValueError, "weights both ways", lambda m=masked: magnetic.log_flux(qk.softmax(m)))
    raises(
        ValueError,
        "as many columns",
        lambda: magnetic.log_flux(qk.softmax(qk.scores.dot(X, X[:3]))),
    )
    raises(ValueError, "one problem", lambda: magnetic.log_flux(qk.softmax(qk.scores.dot(X[None]))))
    raises(ValueError, "rho: wanted positive", lambda: magnetic.log_flux(A, np.eye(5)[0]))
    raises(ValueError, "rho", lambda: magnetic.log_flux(A, np.ones(5)))
    raises(
        ValueError,
        r"phases: wanted shape \(4, 4\)",
        lambda: magnetic.from_attention(A, qk.softmax(qk.scores.distance(X[:4]))),
    )
    raises(ValueError, "gamma", lambda: magnetic.from_attention(A, gamma=np.inf))


def test_bad_estimators() -> None:
    X, W, _ = good()
    M = magnetic.MagneticMap
    raises(NotFittedError, "call fit", lambda: M().transform(X))
    raises(ValueError, "n_components: wanted 1 to 5", lambda: M(6).fit(X))
    raises(TypeError, "n_components: wanted an integer", lambda: M(2.0).fit(X))  # type: ignore[arg-type]
    raises(ValueError, "t: wanted", lambda: M(t=-1).fit(X))
    raises(ValueError, "beta", lambda: M(beta=-1.0).fit(X))
    raises(ValueError, "metric", lambda: M(metric="other").fit(X))
    raises(ValueError, "W: wanted shape", lambda: M(W=W[:2]).fit(X))
    raises(ValueError, "X: wanted", lambda: M().fit(X[0]))
    raises(ValueError, "X: wanted finite", lambda: M().fit(X * np.nan))
    raises(TypeError, "X: .*complex", lambda: M().fit(X * 1j))
    fitted = M(W=W).fit(X)
    raises(ValueError, "X: wanted 3 features", lambda: fitted.transform(X[:, :2]))
    raises(TypeError, "X: wanted float64", lambda: fitted.transform(X.astype(np.float32)))
    ring = np.array([[1.0, 0], [0, 1.0]])
    lost = M(2, beta=1e-30, t=0).fit(ring)
    raises(ValueError, "cannot be extended", lambda: lost.transform(ring))


def test_pickles() -> None:
    _, _, op = good()
    for made in (op, op.T, magnetic.laplacian(op)):
        again = pickle.loads(pickle.dumps(made))
        assert again.to_numpy().tobytes() == made.to_numpy().tobytes()
        assert type(made).__module__.startswith("qkcore.magnetic")


def test_reprs() -> None:
    _, _, op = good()
    for text, made in (
        ("row-stochastic", op),
        ("column-stochastic", op.T),
        ("kernel", op.hermitian()),
        ("gauge weight -1", op.T),
    ):
        assert text in repr(made)


def test_new_parameters_wait_for_the_next_fit() -> None:
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(30, 3)), rng.normal(size=(3, 3))
    fitted = magnetic.MagneticMap(2, W=W).fit(X)
    before = fitted.transform(X[:5])
    fitted.set_params(W=W + 1, gamma=3.0, metric="euclidean")
    np.testing.assert_array_equal(fitted.transform(X[:5]), before)
