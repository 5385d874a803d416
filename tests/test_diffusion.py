"""Diffusion maps (DAC-5): operators, Laplacians, spectrum, embedding, extension, scales."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _estimator, diffusion
from qkcore.diffusion import DiffusionMap

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64")
TOL = {"float32": 2e-5, "float64": 1e-12}


# ---- naive versions -------------------------------------------------------------------------------


def squared_distances(X: Array, Y: Array, W: Array | None = None) -> Array:
    difference = X[:, None, :].astype(np.float64) - Y[None, :, :].astype(np.float64)
    metric = np.eye(X.shape[1]) if W is None else W.astype(np.float64)
    return np.asarray(np.einsum("ija,ab,ijb->ij", difference, metric, difference))


def naive_kernel(X: Array, beta: float, alpha: float = 0.0, W: Array | None = None) -> Array:
    K = np.exp(-beta * squared_distances(X, X, W))
    q = K.sum(axis=1) ** alpha
    return np.asarray(K / q[:, None] / q[None, :])


def naive_operator(X: Array, beta: float, alpha: float = 0.0, W: Array | None = None) -> Array:
    K = naive_kernel(X, beta, alpha, W)
    return np.asarray(K / K.sum(axis=1, keepdims=True))


def naive_map(
    X: Array, beta: float, alpha: float = 0.0, W: Array | None = None
) -> tuple[Array, Array, Array]:
    """All eigenvalues (largest first), right eigenvectors with unit norm in pi, and pi."""
    K = naive_kernel(X, beta, alpha, W)
    z = K.sum(axis=1)
    pi = z / z.sum()
    values, vectors = scipy.linalg.eigh(K / np.sqrt(np.outer(z, z)))
    return values[::-1], vectors[:, ::-1] / np.sqrt(pi)[:, None], pi


def cloud(n: int, d: int, seed: int = 0, dtype: str = "float64") -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def ring(n: int) -> Array:
    angle = 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angle), np.sin(angle)])


def roll(n: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    angle = 1.5 * np.pi * (1 + 2 * rng.random(n))
    return np.column_stack([angle * np.cos(angle), 21 * rng.random(n), angle * np.sin(angle)])


def assert_same_up_to_sign(got: Array, wanted: Array, atol: float) -> None:
    signs = np.sign((got * wanted).sum(axis=0))
    np.testing.assert_allclose(got, wanted * signs, atol=atol, rtol=0)


# ---- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, -0.3])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (33, 2), (65, 17)])
def test_operator_matches_the_definition(shape: tuple[int, int], alpha: float, dtype: str) -> None:
    """DAC-5, eq 11, with the density divided out alpha times."""
    X = cloud(*shape, dtype=dtype)
    P = diffusion.operator(X, beta=0.7, alpha=alpha)
    assert P.dtype == np.dtype(dtype) and P.shape == (shape[0], shape[0])
    np.testing.assert_allclose(P.to_numpy(), naive_operator(X, 0.7, alpha), atol=TOL[dtype])
    V = cloud(shape[0], 3, 1, dtype)
    np.testing.assert_allclose(P @ V, naive_operator(X, 0.7, alpha) @ V, atol=10 * TOL[dtype])


@pytest.mark.parametrize("dim", [3, 20])
def test_operator_with_a_metric(dim: int) -> None:
    X, A = cloud(40, dim), cloud(dim, dim, 1)
    W = A @ A.T / dim
    P = diffusion.operator(X, beta=0.3, alpha=1.0, W=W)
    np.testing.assert_allclose(P.to_numpy(), naive_operator(X, 0.3, 1.0, W), atol=1e-12)
    factored = diffusion.operator(X, beta=0.3, alpha=1.0, W=(A / dim, A.T.copy()))
    np.testing.assert_allclose(factored.to_numpy(), P.to_numpy(), atol=1e-12)


def test_operator_takes_batches() -> None:
    X = cloud(60, 2).reshape(3, 20, 2)
    P = diffusion.operator(X, beta=1.0, alpha=1.0).to_numpy()
    for x, p in zip(X, P, strict=True):
        np.testing.assert_allclose(p, naive_operator(x, 1.0, 1.0), atol=1e-13)


def test_the_minus_operator_is_the_transpose() -> None:
    """DAC-5, eq 11: softmax over columns of a symmetric kernel."""
    X = cloud(30, 2)
    minus = qk.softmax(qk.scores.distance(X, beta=2.0), axis=0)
    np.testing.assert_allclose(
        diffusion.operator(X, beta=2.0).T.to_numpy(), minus.to_numpy(), atol=1e-15
    )


problems = st.tuples(
    st.integers(2, 70),
    st.integers(1, 4),
    st.floats(0.01, 30.0),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 2**16),
)


@given(problems)
def test_reversibility(problem: tuple[int, int, float, float, int]) -> None:
    """DAC-5, proposition C.2 (eqs 19, 66): pi is Z over its sum, stationary, in detailed balance."""
    n, d, beta, alpha, seed = problem
    X = cloud(n, d, seed)
    chain = diffusion.operator(X, beta=beta, alpha=alpha)
    P = chain.to_numpy()
    z = naive_kernel(X, beta, alpha).sum(axis=1)
    pi = chain._known_stationary()
    assert pi is not None  # the symmetry of the scores is seen
    np.testing.assert_allclose(pi, z / z.sum(), rtol=1e-11)
    np.testing.assert_allclose(pi @ P, pi, rtol=1e-11)
    flow = pi[:, None] * P
    np.testing.assert_allclose(flow, flow.T, rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)


@given(problems)
def test_the_bridge_between_equal_laws_is_the_operator(
    problem: tuple[int, int, float, float, int],
) -> None:
    """DAC-5, theorem C.3: pi_i P_ij has both marginals pi and the factors pi_i / Z_i and 1."""
    n, d, beta, _, seed = problem
    X = cloud(n, d, seed)
    chain = diffusion.operator(X, beta=beta)
    model = DiffusionMap(1, beta=beta).fit(X)
    pi = model.stationary_
    coupling = pi[:, None] * chain.to_numpy()
    np.testing.assert_allclose(coupling.sum(axis=1), pi, rtol=1e-11)
    np.testing.assert_allclose(coupling.sum(axis=0), pi, rtol=1e-11)
    K = naive_kernel(X, beta)
    np.testing.assert_allclose(coupling, (pi / K.sum(axis=1))[:, None] * K, rtol=1e-10, atol=1e-300)


def test_regime_is_equilibrium() -> None:
    """DAC-5, 4.1: (P, pi) is an EQ pair."""
    X = cloud(50, 3)
    assert diffusion.operator(X, beta=0.5, alpha=1.0).regime().regime == "EQ"


@pytest.mark.parametrize("dtype", DTYPES)
def test_bistochastic(dtype: str) -> None:
    """DAC-5, 3.2: rows and columns sum to 1, symmetric, diagonal scalings of the kernel."""
    X = cloud(40, 2, dtype=dtype)
    B = diffusion.bistochastic(X, beta=0.5)
    array = B.to_numpy().astype(np.float64)
    assert B.bistochastic
    tol = 1e-4 if dtype == "float32" else 1e-8
    np.testing.assert_allclose(array.sum(axis=0), 1, atol=tol)
    np.testing.assert_allclose(array.sum(axis=1), 1, atol=tol)
    np.testing.assert_allclose(array, array.T, atol=tol)
    ratio = np.log(array) + 0.5 * squared_distances(X, X)  # f_i + f_j
    half = np.diag(ratio) / 2
    np.testing.assert_allclose(ratio, half[:, None] + half[None, :], atol=10 * tol)
    np.testing.assert_allclose(B.stationary(), np.full(40, 1 / 40, dtype), atol=tol)


def test_bistochastic_hands_its_options_on() -> None:
    X = cloud(60, 2)
    with pytest.raises(RuntimeError, match="max_iter"):
        diffusion.bistochastic(X, beta=20.0, tol=1e-15, max_iter=1)
    loose = diffusion.bistochastic(X, beta=2.0, tol=1e-3).to_numpy()
    assert np.abs(loose.sum(axis=0) - 1).mean() < 2e-3


# ---- the symmetric conjugate and Laplacians -------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_symmetric_conjugate_has_the_spectrum_of_the_operator(alpha: float) -> None:
    """DAC-5, 3.2: against the general eigenvalues of P."""
    X = cloud(50, 2)
    P = diffusion.operator(X, beta=1.0, alpha=alpha)
    S = diffusion.symmetric_conjugate(P).to_numpy()
    pi = P.stationary()
    np.testing.assert_allclose(S, S.T, atol=1e-15)
    np.testing.assert_allclose(S, np.sqrt(pi[:, None] / pi) * P.to_numpy(), atol=1e-13)
    general = np.sort(np.linalg.eigvals(P.to_numpy()).real)
    np.testing.assert_allclose(np.linalg.eigvalsh(S), general, atol=1e-12)
    np.testing.assert_allclose(S @ np.sqrt(pi), np.sqrt(pi), atol=1e-14)
    by_columns = diffusion.symmetric_conjugate(P.T).to_numpy()
    np.testing.assert_allclose(by_columns, S, atol=1e-15)


def test_symmetric_conjugate_of_a_bistochastic_operator_is_itself() -> None:
    B = diffusion.bistochastic(cloud(30, 2), beta=1.0)
    S = diffusion.symmetric_conjugate(B)
    np.testing.assert_array_equal(S.to_numpy(), B.to_numpy())


def test_symmetric_conjugate_refuses_what_has_none() -> None:
    X = cloud(10, 2)
    with pytest.raises(ValueError, match="P: wanted an operator with symmetric scores"):
        diffusion.symmetric_conjugate(qk.softmax(qk.scores.forward(X)))
    with pytest.raises(TypeError, match="P: wanted a diffusion operator, got ndarray"):
        diffusion.symmetric_conjugate(X)  # type: ignore[arg-type]
    batch = diffusion.operator(X.reshape(2, 5, 2), beta=1.0)
    with pytest.raises(ValueError, match="P: wanted one chain"):
        diffusion.symmetric_conjugate(batch)


def naive_laplacian(X: Array, kind: str, beta: float, alpha: float) -> Array:
    K = naive_kernel(X, beta, alpha)
    z = K.sum(axis=1)
    if kind == "combinatorial":
        return np.diag(z) - K
    scale = np.sqrt(np.outer(z, z)) if kind == "symmetric" else z[:, None]
    return np.asarray(np.eye(len(X)) - K / scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("kind", diffusion._operators.KINDS)
def test_laplacians(kind: str, alpha: float, dtype: str) -> None:
    """DAC-5, eqs 12-13."""
    X = cloud(33, 2, dtype=dtype)
    wanted = naive_laplacian(X, kind, 0.4, alpha)
    tol = 10 * TOL[dtype]
    for L in (
        diffusion.laplacian(X, kind, beta=0.4, alpha=alpha),
        diffusion.laplacian(diffusion.operator(X, beta=0.4, alpha=alpha), kind),
    ):
        assert L.shape == (33, 33) and L.dtype == np.dtype(dtype) and L.kind == kind
        np.testing.assert_allclose(L.to_numpy(), wanted, atol=tol)
        V = cloud(33, 4, 1, dtype)
        np.testing.assert_allclose(L @ V, wanted @ V, atol=tol)
        np.testing.assert_allclose(L @ V[:, 0], wanted @ V[:, 0], atol=tol)
        np.testing.assert_allclose(V.T @ L, V.T @ wanted, atol=tol)
        np.testing.assert_allclose(V[:, 0] @ L, V[:, 0] @ wanted, atol=tol)
        np.testing.assert_allclose(L.T @ V, wanted.T @ V, atol=tol)
        assert L.T.shape == L.shape and "Laplacian" in repr(L)
        zero = np.ones(33)
        if kind == "symmetric":
            zero = np.sqrt(naive_kernel(X, 0.4, alpha).sum(axis=1))
        np.testing.assert_allclose(L @ zero.astype(dtype), 0, atol=5 * tol)
        assert np.linalg.eigvals(L.to_numpy().astype(np.float64)).real.min() > -tol


def test_laplacians_of_a_bistochastic_operator_agree() -> None:
    B = diffusion.bistochastic(cloud(20, 2), beta=1.0)
    wanted = np.eye(20) - B.to_numpy()
    for kind in diffusion._operators.KINDS:
        np.testing.assert_allclose(diffusion.laplacian(B, kind).to_numpy(), wanted, atol=1e-14)


def test_laplacian_of_any_chain() -> None:
    X = cloud(12, 2)
    A = qk.softmax(qk.scores.forward(X))
    np.testing.assert_allclose(
        diffusion.laplacian(A @ A).to_numpy(),
        np.eye(12) - A.to_numpy() @ A.to_numpy(),
        atol=1e-14,
    )
    with pytest.raises(ValueError, match="symmetric scores"):
        diffusion.laplacian(A, "combinatorial")


def test_laplacian_refuses_bad_arguments() -> None:
    X = cloud(5, 2)
    P = diffusion.operator(X, beta=1.0)
    with pytest.raises(ValueError, match=r"kind: wanted one of .*'symmetric'.*, got 'normed'"):
        diffusion.laplacian(P, "normed")
    with pytest.raises(ValueError, match="beta: wanted a number > 0 for a Laplacian of points"):
        diffusion.laplacian(X)
    with pytest.raises(ValueError, match="beta: wanted for points only"):
        diffusion.laplacian(P, beta=1.0)
    with pytest.raises(ValueError, match="as many columns as rows"):
        diffusion.laplacian(qk.softmax(qk.scores.distance(X, X[:3])))


# ---- the estimator: spectrum ----------------------------------------------------------------------


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "k"), [(2, 1), (3, 2), (20, 5), (63, 62), (64, 3), (120, 119), (400, 7)]
)
def test_map_matches_numpy(n: int, k: int, dtype: str, max_memory: int) -> None:
    """DAC-5: eigenvalues, eigenvectors, law and embedding against scipy.linalg.eigh."""
    X = cloud(n, 2, dtype=dtype)
    beta = 1.5
    model = DiffusionMap(k, beta=beta, alpha=0.5, t=2, max_memory=max_memory)
    assert model.fit(X) is model
    values, vectors, pi = naive_map(X, beta, 0.5)
    tol = 200 * TOL[dtype]
    for name in ("eigenvalues_", "eigenvectors_", "embedding_", "stationary_"):
        assert getattr(model, name).dtype == np.dtype(dtype), name
    np.testing.assert_allclose(model.eigenvalues_, values[1 : k + 1], atol=tol)
    np.testing.assert_allclose(model.stationary_, pi, rtol=tol)
    assert model.materialized_ == (max_memory > 0)
    assert model.n_iter_ >= 1 and model.beta_ == beta and model.beta_rule_ == "given"
    assert model.dimension_ is None and model.n_features_in_ == 2
    psi = model.eigenvectors_.astype(np.float64)
    gram = psi.T @ (pi[:, None] * psi)
    np.testing.assert_allclose(gram, np.eye(k), atol=tol)
    np.testing.assert_allclose(pi @ psi, 0, atol=tol)  # orthogonal to constants
    residual = naive_operator(X, beta, 0.5) @ psi - psi * model.eigenvalues_
    np.testing.assert_allclose(np.sqrt(pi)[:, None] * residual, 0, atol=tol)
    np.testing.assert_allclose(model.embedding_, psi * model.eigenvalues_**2, atol=tol)
    if dtype == "float64" and n == 400:
        assert_same_up_to_sign(psi, vectors[:, 1 : k + 1], 1e-9)


def test_formed_and_lazy_give_the_same() -> None:
    X = roll(1200)
    models = [DiffusionMap(6, beta=0.1, max_memory=m).fit(X) for m in (0, 2**30)]
    lazy, formed = models
    assert formed.materialized_ and not lazy.materialized_
    np.testing.assert_allclose(lazy.eigenvalues_, formed.eigenvalues_, atol=1e-13)
    np.testing.assert_allclose(lazy.embedding_, formed.embedding_, atol=1e-10)
    # 150 points are three tiles of 128 x 128, 8 bytes an entry: one byte less and none is formed.
    enough = 3 * 8 * 128**2
    assert DiffusionMap(1, beta=1.0, max_memory=enough).fit(X[:150]).materialized_
    assert not DiffusionMap(1, beta=1.0, max_memory=enough - 1).fit(X[:150]).materialized_


def ring_eigenvalues(n: int, beta: float) -> Array:
    """P on n equally spaced points of a circle is circulant: its eigenvalues are a Fourier transform."""
    squares = 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)
    row = np.exp(-beta * squares)
    return np.asarray(np.sort(np.fft.fft(row / row.sum()).real)[::-1])


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize(("n", "beta", "k"), [(50, 3.0, 4), (600, 20.0, 3), (600, 20.0, 10)])
def test_circle_in_closed_form(n: int, beta: float, k: int, max_memory: int) -> None:
    """DAC-5: every eigenvalue but the first is double; the embedding is a circle."""
    model = DiffusionMap(k, beta=beta, max_memory=max_memory).fit(ring(n))
    np.testing.assert_allclose(model.eigenvalues_, ring_eigenvalues(n, beta)[1 : k + 1], atol=1e-13)
    plane = model.eigenvectors_[:, :2]
    np.testing.assert_allclose(np.linalg.norm(plane, axis=1), np.sqrt(2), atol=1e-9)


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("k", [3, 8, 20])
def test_torus_in_closed_form(k: int, max_memory: int) -> None:
    """The kernel of a product is a product: eigenvalues are products, repeated 4 and 8 times."""
    n = 24
    angle = 2 * np.pi * np.arange(n) / n
    a, b = np.meshgrid(angle, angle)
    X = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b)], axis=-1).reshape(-1, 4)
    model = DiffusionMap(k, beta=4.0, max_memory=max_memory).fit(X)
    one = ring_eigenvalues(n, 4.0)
    wanted = np.sort(np.outer(one, one).ravel())[::-1][1 : k + 1]
    np.testing.assert_allclose(model.eigenvalues_, wanted, atol=1e-13)


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize(
    ("clusters", "n", "k"), [(2, 600, 3), (6, 360, 7), (6, 600, 2), (6, 600, 8), (20, 600, 22)]
)
def test_clusters_that_do_not_see_each_other(
    clusters: int, n: int, k: int, max_memory: int
) -> None:
    """The eigenvalue 1 comes once for each cluster; constants stay apart from the other vectors."""
    X = np.concatenate([cloud(n // clusters, 2, seed) + 200 * seed for seed in range(clusters)])
    model = DiffusionMap(k, beta=1.0, max_memory=max_memory).fit(X)
    wanted = naive_map(X, 1.0)[0][1 : k + 1]
    ones = min(k, clusters - 1)
    np.testing.assert_allclose(model.eigenvalues_, wanted, atol=1e-12)
    np.testing.assert_allclose(model.eigenvalues_[:ones], 1, atol=1e-12)
    np.testing.assert_allclose(model.stationary_ @ model.eigenvectors_, 0, atol=1e-12)
    gram = model.eigenvectors_.T @ (model.stationary_[:, None] * model.eigenvectors_)
    np.testing.assert_allclose(gram, np.eye(k), atol=1e-12)
    by_cluster = model.eigenvectors_[:, :ones].reshape(clusters, -1, ones)
    np.testing.assert_allclose(by_cluster.std(axis=1), 0, atol=1e-9)


def test_a_kernel_of_low_rank() -> None:
    """More components than the kernel has digits for: those that are there are right, the rest 0."""
    X = cloud(500, 1)
    for memory in (0, 2**30):
        model = DiffusionMap(25, beta=0.01, max_memory=memory).fit(X)
        values = naive_map(X, 0.01)[0]
        np.testing.assert_allclose(model.eigenvalues_, values[1:26], atol=1e-14)
        gram = model.eigenvectors_.T @ (model.stationary_[:, None] * model.eigenvectors_)
        np.testing.assert_allclose(gram, np.eye(25), atol=1e-12)


def test_equal_points() -> None:
    """One point many times over: P = 1/n, all other eigenvalues 0."""
    model = DiffusionMap(3, beta=1.0).fit(np.ones((70, 2)))
    np.testing.assert_allclose(model.eigenvalues_, 0, atol=1e-14)
    np.testing.assert_allclose(model.embedding_, 0, atol=1e-13)


def test_alpha_removes_the_sampling_density() -> None:
    """DAC-5, Coifman and Lafon: alpha = 1 finds cos and sin on a circle sampled unevenly.

    The part of (cos, sin) that the first two eigenvectors do not span is below 3 % with alpha = 1, and
    ten times that without.
    """
    u = (np.arange(1500) + 0.5) / 1500
    angle = 2 * np.pi * u + 0.9 * np.sin(2 * np.pi * u)  # density between 1/1.9 and 1/0.1
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    missed = {}
    for alpha in (0.0, 1.0):
        psi = DiffusionMap(2, beta=100.0, alpha=alpha).fit(X).eigenvectors_
        basis = np.column_stack([psi, np.ones(len(X))])
        # Weighed as by an even sampling: by the spacing of the angles.
        root = np.sqrt(np.gradient(angle))[:, None]
        fit = np.linalg.lstsq(root * basis, root * X, rcond=None)[0]
        missed[alpha] = np.linalg.norm(root * (X - basis @ fit)) / np.linalg.norm(root * X)
    assert missed[1.0] < 0.03
    assert missed[0.0] > 10 * missed[1.0]


def test_indefinite_metrics_have_negative_eigenvalues() -> None:
    X = 0.5 * cloud(40, 2)
    W = np.diag([1.0, -1.0])
    model = DiffusionMap(39, beta=1.0, W=W).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, naive_map(X, 1.0, 0.0, W)[0][1:], atol=1e-13)
    assert model.eigenvalues_[-1] < -1e-3
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=1e-11)
    with pytest.raises(ValueError, match="t: wanted an integer, as there are negative eigenvalues"):
        DiffusionMap(39, beta=1.0, W=W, t=0.5).fit(X)


def test_results_repeat_to_the_bit() -> None:
    X = roll(700)
    for memory in (0, 2**30):
        first, second = (DiffusionMap(5, max_memory=memory).fit(X) for _ in range(2))
        for name in ("eigenvalues_", "eigenvectors_", "embedding_", "stationary_"):
            a, b = getattr(first, name), getattr(second, name)
            assert a.tobytes() == b.tobytes(), name
        at = np.argmax(np.abs(first.eigenvectors_), axis=0)
        assert (first.eigenvectors_[at, np.arange(5)] > 0).all()


def test_order_of_points_does_not_matter() -> None:
    X = roll(300)
    order = np.random.default_rng(1).permutation(300)
    a = DiffusionMap(4, beta=0.05).fit(X).embedding_
    b = DiffusionMap(4, beta=0.05).fit(X[order]).embedding_
    np.testing.assert_allclose(b, a[order], atol=1e-11)


def test_restarts_can_run_out() -> None:
    X = roll(600)
    with pytest.raises(RuntimeError, match=r"of the 10 wanted converged.*raise max_iter"):
        DiffusionMap(10, beta=5.0, max_memory=0, max_iter=1).fit(X)
    with pytest.raises(RuntimeError, match=r"of the 10 wanted converged.*raise max_iter"):
        DiffusionMap(10, beta=5.0, max_iter=1).fit(X)


# ---- new points -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("t", [0, 0.5, 1, 2, 2.5])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("dim", [2, 20])
def test_points_of_fit_get_their_embedding(dim: int, alpha: float, t: float, dtype: str) -> None:
    X = cloud(90, dim, dtype=dtype)
    model = DiffusionMap(3, beta=1 / dim, alpha=alpha, t=t).fit(X)
    tol = 2e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=tol)
    np.testing.assert_allclose(model.eigenfunctions(X), model.eigenvectors_, atol=tol)
    np.testing.assert_allclose(model.fit_transform(X), model.embedding_, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_new_points_by_the_definition(alpha: float) -> None:
    """DAC-5, Nyström: psi(x) = (1/lambda) sum_j P(x, x_j) psi_j, densities divided out as in fit."""
    X, new = cloud(80, 2), cloud(15, 2, 1)
    A = cloud(2, 2, 2)
    W = A @ A.T
    model = DiffusionMap(4, beta=0.5, alpha=alpha, t=3, W=W).fit(X)
    K = np.exp(-0.5 * squared_distances(new, X, W))
    q = np.exp(-0.5 * squared_distances(X, X, W)).sum(axis=1)
    K = K / K.sum(axis=1, keepdims=True) ** alpha / q**alpha
    psi = K / K.sum(axis=1, keepdims=True) @ model.eigenvectors_ / model.eigenvalues_
    np.testing.assert_allclose(model.eigenfunctions(new), psi, atol=1e-12)
    np.testing.assert_allclose(model.transform(new), psi * model.eigenvalues_**3, atol=1e-12)


def test_extension_predicts_a_finer_circle() -> None:
    """The extended eigenfunctions of a circle are the cosines that a finer sampling gives."""
    coarse, fine = ring(100), ring(400)
    model = DiffusionMap(2, beta=5.0).fit(coarse)
    extended = model.eigenfunctions(fine)
    np.testing.assert_allclose(np.linalg.norm(extended, axis=1), np.sqrt(2), atol=1e-9)
    np.testing.assert_allclose(extended[::4], model.eigenvectors_, atol=1e-11)


def test_parameters_set_after_fit_do_not_change_the_fitted_map() -> None:
    X = cloud(50, 2)
    W = np.eye(2)
    model = DiffusionMap(2, beta=1.0, alpha=1.0, t=2, W=W).fit(X)
    wanted = model.transform(X)
    model.set_params(beta=5.0, alpha=0.0, t=1, n_components=1)
    W *= 3
    X_before = X.copy()
    X *= 2
    np.testing.assert_array_equal(model.transform(X_before), wanted)
    np.testing.assert_allclose(
        model.operator_.to_numpy(), naive_operator(X_before, 1.0, 1.0), atol=1e-13
    )


def test_zero_eigenvalues_cannot_be_extended() -> None:
    X = cloud(60, 1)
    model = DiffusionMap(20, beta=0.01, t=1).fit(X)
    # t >= 1 divides by no eigenvalue: coordinates that are 0 stay 0.
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=1e-13)
    with pytest.raises(ValueError, match=r"eigenfunctions: eigenvalue \d+ is 0 to rounding"):
        model.eigenfunctions(X)
    model = DiffusionMap(20, beta=0.01, t=0).fit(X)
    with pytest.raises(
        ValueError, match=r"transform with t=0 < 1: eigenvalue \d+ is 0 to rounding"
    ):
        model.transform(X)


# ---- diffusion distance ---------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0, 1, 2, 5])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_diffusion_distance_is_that_of_the_laws(alpha: float, t: int) -> None:
    """DAC-5: D_t^2 = sum_k (P^t_ik - P^t_jk)^2 / pi_k, from all eigenvectors and from products."""
    X = cloud(40, 2)
    P = naive_operator(X, 1.0, alpha)
    pi = naive_map(X, 1.0, alpha)[2]
    power = np.linalg.matrix_power(P, t)
    wanted = np.sqrt((((power[:, None] - power[None]) ** 2) / pi).sum(axis=-1))
    model = DiffusionMap(39, beta=1.0, alpha=alpha, t=t).fit(X)
    every = np.arange(40)
    np.testing.assert_allclose(model.diffusion_distance(every), wanted, atol=1e-10)
    np.testing.assert_allclose(model.diffusion_distance(3), wanted[3], atol=1e-10)
    np.testing.assert_allclose(
        model.diffusion_distance([0, 5], [7, 7]), wanted[[0, 5], [7, 7]], atol=1e-10
    )
    got = diffusion.diffusion_distance(model.operator_, every[:, None], every[None, :], t)
    np.testing.assert_allclose(got, wanted, atol=1e-10)
    fewer = DiffusionMap(5, beta=1.0, alpha=alpha, t=t).fit(X).diffusion_distance(every)
    assert (fewer <= wanted + 1e-10).all()


def test_diffusion_distance_refuses_bad_arguments() -> None:
    X = cloud(10, 2)
    model = DiffusionMap(2, beta=1.0).fit(X)
    with pytest.raises(ValueError, match="i: wanted indices from 0 to 9, got 10 to 10"):
        model.diffusion_distance(10)
    with pytest.raises(ValueError, match="j: wanted indices from 0 to 9, got -1 to 3"):
        model.diffusion_distance([0, 1], [-1, 3])
    with pytest.raises(TypeError, match="i: wanted indices of points, got float64"):
        model.diffusion_distance(0.5)
    with pytest.raises(ValueError, match="t: wanted a number of steps, 0 or more, got -1"):
        diffusion.diffusion_distance(model.operator_, 0, 1, -1)


# ---- the scale ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_median_rule(dtype: str) -> None:
    X = cloud(81, 3, dtype=dtype)
    squares = squared_distances(X, X)[np.triu_indices(81, 1)]
    found = diffusion.choose_beta(X)
    assert (found.rule, found.n_points, found.dimension) == ("median", 81, None)
    assert found.beta == pytest.approx(1 / np.median(squares), rel=1e-12)
    doubled = np.concatenate([X, X])  # pairs at distance 0 do not count, so the median stays
    assert diffusion.choose_beta(doubled).beta == pytest.approx(found.beta, rel=1e-12)
    model = DiffusionMap().fit(X)
    assert model.beta_ == found.beta and model.beta_rule_ == "median"
    assert DiffusionMap(beta="median").fit(X).beta_ == found.beta


def test_rules_look_at_a_thousand_points_of_more() -> None:
    X = roll(3500)
    found = diffusion.choose_beta(X)
    assert found.n_points == 1000
    used = X[np.linspace(0, 3499, 1000).round().astype(int)]
    assert found.beta == diffusion.choose_beta(used).beta


@pytest.mark.parametrize("intrinsic", [1, 2, 3])
def test_dimension_rule_estimates_the_dimension(intrinsic: int) -> None:
    """A flat torus has no boundary: the slope is m/2 between the spacing and the size."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * rng.random((1000, intrinsic))
    X = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    found = diffusion.choose_beta(X, "dimension")
    assert found.rule == "dimension" and found.dimension is not None
    # The maximum is above the plateau: by at most a fifth and a bit here.
    assert intrinsic <= found.dimension <= 1.25 * intrinsic


def test_dimension_rule_is_the_steepest_growth() -> None:
    """Against the sum itself, differenced on a fine grid (Berry, Giannakis and Harlim 2015)."""
    X = roll(300)
    squares = squared_distances(X, X)
    log_beta = np.linspace(np.log(1e-4), np.log(50), 2000)
    log_sum = np.array([np.log(np.exp(-np.exp(b) * squares).sum()) for b in log_beta[::4]])
    slope = -np.diff(log_sum) / np.diff(log_beta[::4])
    model = DiffusionMap(beta="dimension").fit(X)
    assert model.beta_rule_ == "dimension" and model.dimension_ is not None
    assert model.dimension_ == pytest.approx(2 * slope.max(), rel=1e-3)
    assert np.log(model.beta_) == pytest.approx(log_beta[::4][np.argmax(slope)], abs=0.05)


@given(st.floats(1e-3, 1e3), st.sampled_from(diffusion._scale.RULES))
def test_rules_follow_the_units(unit: float, rule: str) -> None:
    """Points in other units: beta D^2 stays, and so does the map."""
    X = cloud(60, 2)
    a, b = diffusion.choose_beta(X, rule), diffusion.choose_beta(unit * X, rule)
    assert b.beta * unit**2 == pytest.approx(a.beta, rel=1e-3 if rule == "dimension" else 1e-10)


def test_rules_with_a_metric() -> None:
    X, A = cloud(70, 2), cloud(2, 2, 1)
    W = A @ A.T
    L = np.linalg.cholesky(W)
    for rule in diffusion._scale.RULES:
        found = diffusion.choose_beta(X, rule, W=W).beta
        assert found == pytest.approx(diffusion.choose_beta(X @ L, rule).beta, rel=1e-6)
        factored = diffusion.choose_beta(X, rule, W=(A, A.T.copy())).beta
        assert factored == pytest.approx(found, rel=1e-6)


def test_rules_refuse_what_has_no_scale() -> None:
    with pytest.raises(
        ValueError, match=r"beta: wanted points that differ .*'median'.*pass a number"
    ):
        diffusion.choose_beta(np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"W is indefinite\); pass a number"):
        DiffusionMap(beta="dimension", W=np.diag([1.0, -1.0])).fit(cloud(20, 2))
    with pytest.raises(ValueError, match="rule: wanted one of 'median', 'dimension', got 'mean'"):
        diffusion.choose_beta(cloud(5, 2), "mean")
    with pytest.raises(ValueError, match=r"X: wanted shape \(n, d\)"):
        diffusion.choose_beta(cloud(8, 2).reshape(2, 4, 2))


# ---- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_components": 0}, ValueError, "n_components: wanted 1 to 19"),
        ({"n_components": 20}, ValueError, "n_components: wanted 1 to 19"),
        ({"n_components": 2.0}, TypeError, "n_components: wanted an integer"),
        ({"beta": 0.0}, ValueError, "beta: wanted a finite number > 0, got 0.0"),
        ({"beta": -1}, ValueError, "beta: wanted a finite number > 0, got -1"),
        ({"beta": np.nan}, ValueError, "beta: wanted a finite number > 0, got nan"),
        ({"beta": "scott"}, ValueError, "beta: wanted a number > 0 or one of the rules 'median'"),
        ({"beta": [1.0]}, TypeError, "beta: wanted a finite number > 0"),
        ({"alpha": "one"}, TypeError, "alpha: wanted a real number, got 'one'"),
        ({"alpha": np.inf}, ValueError, "alpha: wanted a finite number, got inf"),
        ({"t": -1}, ValueError, "t: wanted a number >= 0, got -1"),
        ({"t": None}, TypeError, "t: wanted a real number, got None"),
        ({"W": np.eye(3)}, ValueError, r"W: wanted shape \(2, 2\)"),
        ({"max_memory": -1}, ValueError, "max_memory: wanted a number >= 0"),
        ({"max_iter": 0}, ValueError, "max_iter: wanted 1 or more restarts, got 0"),
        ({"n_threads": 0}, ValueError, "n_threads"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DiffusionMap(**parameters).fit(cloud(20, 2))


def test_bad_points() -> None:
    X = cloud(20, 2)
    for bad, error, message in (
        (np.where(np.arange(2) == 1, np.nan, X), ValueError, "X: wanted finite numbers, got NaN"),
        (X[:, 0], ValueError, "X: wanted points of shape"),
        (X[:0], ValueError, "X: wanted no axis of length 0"),
        (X[:1], ValueError, "X: wanted at least 2 points, got 1"),
        (X.reshape(2, 10, 2), ValueError, r"X: wanted shape \(n, d\)"),
        (X.astype(complex), TypeError, "X: wanted float32 or float64"),
    ):
        with pytest.raises(error, match=message):
            DiffusionMap(1).fit(bad)
    model = DiffusionMap(1).fit(X)
    with pytest.raises(ValueError, match="X: wanted 2 features as in fit, got 3"):
        model.transform(cloud(4, 3))
    with pytest.raises(TypeError, match="X: wanted float64 like the points of fit, got float32"):
        model.transform(X.astype(np.float32))
    assert model.transform(np.zeros((3, 2), dtype=int)).shape == (3, 1)


def test_not_fitted() -> None:
    model = DiffusionMap()
    for ask in (
        lambda: model.transform(cloud(3, 2)),
        lambda: model.eigenfunctions(cloud(3, 2)),
        lambda: model.diffusion_distance(0),
        lambda: model.get_feature_names_out(),
        lambda: model.operator_,
    ):
        with pytest.raises(_estimator.NotFittedError, match="call fit"):
            ask()


@pytest.mark.parametrize("dtype", DTYPES)
def test_read_only_and_strided_points(dtype: str) -> None:
    X = cloud(90, 3, dtype=dtype)
    wide = np.zeros((180, 5), dtype)
    wide[::2, 1:4] = X
    frozen = np.asfortranarray(X)
    frozen.flags.writeable = False
    wanted = DiffusionMap(3, alpha=1.0).fit(X)
    for view in (wide[::2, 1:4], frozen, X[::-1][::-1]):
        before = view.copy()
        got = DiffusionMap(3, alpha=1.0).fit(view)
        np.testing.assert_array_equal(got.embedding_, wanted.embedding_)
        np.testing.assert_array_equal(got.transform(view), wanted.transform(X))
        np.testing.assert_array_equal(view, before)
    np.testing.assert_array_equal(
        DiffusionMap(3, alpha=1.0).fit_transform(X.tolist()).shape, (90, 3)
    )


def test_pickle() -> None:
    X = cloud(30, 2)
    model = DiffusionMap(2, alpha=1.0).fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


# ---- other libraries ------------------------------------------------------------------------------


@pytest.mark.peers
def test_against_scikit_learn() -> None:
    """rbf_kernel and scipy.linalg.eigh; the vectors of spectral_embedding."""
    manifold = pytest.importorskip("sklearn.manifold")
    pairwise = pytest.importorskip("sklearn.metrics.pairwise")
    X = roll(300)
    K = pairwise.rbf_kernel(X, gamma=0.05)
    values, vectors = scipy.linalg.eigh(K, np.diag(K.sum(axis=1)))
    model = DiffusionMap(8, beta=0.05).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][1:9], atol=1e-12)
    scaled = vectors[:, ::-1][:, 1:9] * np.sqrt(K.sum())  # eigh: unit norm in Z, not in pi
    assert_same_up_to_sign(model.eigenvectors_, scaled, 1e-9)
    # spectral_embedding drops the diagonal of the kernel, which leaves the vectors as they are where
    # all row sums are equal: on a circle.
    circle = ring(120)
    theirs = manifold.spectral_embedding(
        pairwise.rbf_kernel(circle, gamma=8.0), n_components=4, random_state=0
    )
    ours = DiffusionMap(4, beta=8.0).fit(circle).eigenvectors_
    for pair in (slice(0, 2), slice(2, 4)):  # double eigenvalues: compare the planes
        a, _ = np.linalg.qr(ours[:, pair])
        b, _ = np.linalg.qr(theirs[:, pair])
        np.testing.assert_allclose(np.linalg.svd(a.T @ b)[1], 1, atol=1e-9)


@pytest.mark.peers
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_against_pydiffmap(alpha: float) -> None:
    """Its kernel is exp(-d^2 / 4 eps) and its eigenvalues are (lambda - 1) / eps."""
    peer = pytest.importorskip("pydiffmap.diffusion_map")
    X, epsilon = roll(200), 4.0
    theirs = peer.DiffusionMap.from_sklearn(alpha=alpha, k=200, epsilon=epsilon, n_evecs=6).fit(X)
    ours = DiffusionMap(6, beta=1 / (4 * epsilon), alpha=alpha).fit(X)
    np.testing.assert_allclose(ours.eigenvalues_, 1 + epsilon * theirs.evals, atol=1e-8, rtol=0)
    unit = theirs.evecs / np.sqrt(ours.stationary_ @ theirs.evecs**2)
    assert_same_up_to_sign(ours.eigenvectors_, unit, 1e-7)


@pytest.mark.peers
def test_scikit_learn_conventions() -> None:
    base = pytest.importorskip("sklearn.base")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    X = roll(150)
    W = np.eye(3)
    model = DiffusionMap(3, beta=0.1, W=W)
    other = base.clone(model)
    assert other is not model and other.get_params()["n_components"] == 3
    np.testing.assert_array_equal(other.W, W)
    assert repr(DiffusionMap(beta=2.0)) == "DiffusionMap(beta=2.0)"
    with pytest.raises(ValueError, match="gamma: DiffusionMap has no such parameter"):
        model.set_params(gamma=1)
    steps = pipeline.make_pipeline(preprocessing.StandardScaler(), DiffusionMap(2))
    Y = steps.fit_transform(X)
    np.testing.assert_allclose(steps.transform(X), Y, atol=1e-12)
    assert list(steps.get_feature_names_out()) == ["diffusionmap0", "diffusionmap1"]
    steps.set_params(diffusionmap__n_components=3)
    assert steps.fit_transform(X).shape == (150, 3)


# Their messages are asked for word by word; ours say the same otherwise, as everywhere in qkcore.
OTHER_WORDS = {
    "check_complex_data": "complex input is refused, in other words",
    "check_dtype_object": "arrays of objects are refused with the conversion to make",
    "check_estimators_empty_data_messages": "empty input is refused, in other words",
    "check_estimator_sparse_tag": "sparse input is refused, in other words",
    "check_estimator_sparse_array": "sparse input is refused, in other words",
    "check_estimator_sparse_matrix": "sparse input is refused, in other words",
    "check_fit2d_predict1d": "one-dimensional input is refused, in other words",
}


@pytest.mark.peers
def test_scikit_learn_estimator_checks() -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of checks that are skipped, and of theirs about themselves
        results = checks.check_estimator(
            DiffusionMap(), expected_failed_checks=OTHER_WORDS, on_fail=None, on_skip=None
        )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) >= 30
