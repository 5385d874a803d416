"""Laws of 4.4, closed forms and gauge (C.7) of magnetic operators."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _spectral, magnetic
from tests.reference_magnetic import (
    COMPLEX,
    DTYPES,
    Array,
    both_types,
    close,
    complex_normal,
    eps_of,
    naive_phases,
    normal,
    problem,
    row_softmax,
    seeds,
    squared_distances,
)

# ---- laws of 4.4 ----------------------------------------------------------------------------------


def random_operator(
    dtype: str, n: int, d: int, seed: int, **options: Any
) -> magnetic.MagneticOperator:
    rng = np.random.default_rng(seed)
    X, W = normal(rng, n, d, dtype=dtype), normal(rng, d, d, dtype=dtype) / dtype_of(dtype, d)
    return magnetic.operator(X / dtype_of(dtype, d**0.25), W=W, **options)


@st.composite
def operators(draw: Any) -> tuple[magnetic.MagneticOperator, str]:
    dtype = draw(st.sampled_from(DTYPES))
    op = random_operator(
        dtype,
        draw(st.sampled_from([1, 2, 3, 7, 20, 33])),
        draw(st.sampled_from([1, 2, 3, 18])),
        draw(seeds),
        beta=draw(st.sampled_from([0.1, 1.0, 3.0])),
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
    check_spectrum(*drawn)


@pytest.mark.parametrize(
    ("n", "d", "seed", "alpha"),
    [
        (33, 1, 234, 0.0),  # eigenvalues that are only rounding errors
        (33, 1, 0x091C0B, 0.0),  # two states have all of the law, and an eigenvalue of 1e-12
        (20, 1, 0x115E, 0.0),  # the law leaves the range of float32
        (3, 2, 158, 1.0),  # unlikely states that mostly see each other
    ],
)
def test_spectrum_of_far_points(n: int, d: int, seed: int, alpha: float) -> None:
    """DAC-6: eigenvectors are divided by roots of probabilities down to 1e-40."""
    op = random_operator("float32", n, d, seed, beta=3.0, gamma=0.0, alpha=alpha)
    check_spectrum(op, "float32")


def check_spectrum(op: magnetic.MagneticOperator, dtype: str) -> None:
    n = op.shape[0]
    k = max(1, n // 2)
    values, vectors = op.spectrum(k)
    theta = op.phases.to_numpy()
    tol = eps_of(dtype) * (1000 + 8 * np.abs(theta).max()) * (1 + n)
    assert values.dtype == dtype and vectors.dtype == COMPLEX[dtype]
    assert (np.diff(values) <= tol).all() and np.abs(values).max() <= 1 + tol
    pi = np.exp(op._reversed().log_law)  # far points may have less of it than float32 can hold
    np.testing.assert_allclose(op.stationary(), pi, rtol=tol, atol=np.finfo(dtype).tiny)
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


@pytest.mark.parametrize(("dtype", "high"), [("float32", 200.0), ("float64", 1500.0)])
def test_spectrum_says_when_the_law_is_beyond_the_dtype(dtype: str, high: float) -> None:
    """Vectors are divided by roots of the law; of e^-high that root is 0 in the dtype."""
    s = qk.scores.dense(np.array([[high, 0.0], [0.0, 0.0]], dtype))
    phases = qk.scores.dense(np.array([[0.0, 0.5], [-0.5, 0.0]], dtype))
    op = magnetic.MagneticOperator(qk.softmax(s), phases)
    with pytest.raises(OverflowError, match=r"stationary law.*e\^-.*lower beta"):
        op.spectrum()
    assert op.stationary()[0] == 1


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
    # F is a difference of logarithms, and gamma is as large as F is small.
    rounding = 64 * eps_of("float64") * (1 + np.abs(A.log_weights.to_numpy()).max())
    errors = []
    for gamma in gammas:
        op = magnetic.from_attention(A, P, gamma=gamma)
        np.testing.assert_allclose(op.phases.to_numpy(), gamma * F, atol=gamma * rounding)
        J = op.current()
        tol = gamma * rounding * flow.max()
        np.testing.assert_allclose(J, flow * np.sin(gamma * F), atol=tol)
        errors.append(np.abs(J / gamma - flow * F).max())
        assert (np.sign(J)[np.abs(J) > tol] == np.sign(F)[np.abs(J) > tol]).all()
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
    # The first mode is one Fourier vector, which turns with the field and has constant modulus.
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
    # The whole current is a circulation: pi P sin(a) = sin(a) / 2n along every edge.
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
            peer = np.array(peer.toarray() if hasattr(peer, "toarray") else peer)
            # networkx 3.7 has 1 there, but 0 in its normalized_laplacian_matrix, as we do.
            if kind == "symmetric":
                peer[40, 40] = matrix[40, 40]
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
    kinds = ["combinatorial", "symmetric"]
    # Weights without a normaliser may overflow even if the probabilities do not.
    if op.magnitude.scores.logsumexp(axis=1).max() >= np.log(np.finfo(dtype).max):
        kinds.remove("combinatorial")
        with pytest.raises(OverflowError, match=f"overflow {dtype}"):
            magnetic.laplacian(op, "combinatorial")
    for kind in kinds:
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
    # Eq 84 holds in this form instead: two copies of the representation with one free index.
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
