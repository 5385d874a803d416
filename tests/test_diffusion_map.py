"""DiffusionMap: its spectrum, new points, and comparison with other libraries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.linalg

from qkcore.diffusion import DiffusionMap, DisconnectedWarning
from tests.reference_diffusion import (
    DTYPES,
    TOL,
    Array,
    assert_same_up_to_sign,
    cloud,
    naive_map,
    naive_operator,
    ring,
    roll,
    squared_distances,
)

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
    # 150 points take three tiles of 128 x 128 with 8 bytes per entry; with one byte less none is stored.
    enough = 3 * 8 * 128**2
    assert DiffusionMap(1, beta=0.1, max_memory=enough).fit(X[:150]).materialized_
    assert not DiffusionMap(1, beta=0.1, max_memory=enough - 1).fit(X[:150]).materialized_


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
    with pytest.warns(DisconnectedWarning, match=f"{n // clusters}, {n // clusters}"):
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
        # Weights as for an even sampling, from the spacing of the angles.
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
    # spectral_embedding drops the diagonal of the kernel, which does not change the vectors if all row
    # sums are equal, as on a circle.
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


# scikit-learn checks for its exact messages; those of qkcore say the same in their usual form.
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
        )  # warnings about skipped checks, and of scikit-learn about itself
        results = checks.check_estimator(
            DiffusionMap(), expected_failed_checks=OTHER_WORDS, on_fail=None, on_skip=None
        )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) >= 30
