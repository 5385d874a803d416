"""Scales from neighbours, the self-tuning kernel, and warnings of maps that only separate outliers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.spatial.distance import cdist

import qkcore as qk
from qkcore.diffusion import DiffusionMap, DisconnectedWarning, _local_scale, _localized
from qkcore.magnetic import MagneticMap
from tests.reference_diffusion import DTYPES, Array, cloud, ring, roll

# ---- the self-tuning kernel -----------------------------------------------------------------------


def long_distances(X: Array, Y: Array) -> Array:
    """Squared distances from differences in long double."""
    difference = X.astype(np.longdouble)[:, None] - Y.astype(np.longdouble)[None]
    return np.asarray((difference**2).sum(axis=-1))


def naive_scales(X: Array, Y: Array, k: int) -> Array:
    """The distance to the k-th neighbour among Y, which has the point itself or its nearest first."""
    return np.asarray(np.sort(np.sqrt(long_distances(X, Y)), axis=1)[:, k])


def naive_scores(X: Array, Y: Array, k: int, beta: float) -> Array:
    s, t = naive_scales(X, Y, k), naive_scales(Y, Y, k)
    return np.asarray(-beta * long_distances(X, Y) / np.outer(s, t)).astype(np.float64)


def naive_operator(X: Array, k: int, beta: float, alpha: float = 0.0) -> Array:
    K = np.exp(naive_scores(X, X, k, beta))
    q = K.sum(axis=1) ** alpha
    K = K / np.outer(q, q)
    return np.asarray(K / K.sum(axis=1, keepdims=True))


def uneven(n: int, d: int, seed: int = 0) -> Array:
    """A cloud whose density differs by orders of magnitude, far from the origin."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.exp(1.5 * rng.normal(size=(n, 1)))
    return np.asarray(X + 5.0)


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d", "k"), [(3, 1, 1), (20, 2, 3), (150, 3, 7), (300, 12, 7)])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_self_tuning_matches_its_definition(
    n: int, d: int, k: int, alpha: float, dtype: str, max_memory: int
) -> None:
    X = uneven(n, d).astype(dtype)
    wanted = min(5, n - 1)
    model = DiffusionMap(
        wanted, bandwidth="self-tuning", n_neighbors=k, alpha=alpha, max_memory=max_memory
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DisconnectedWarning)
        model.fit(X)
    P = naive_operator(X, k, 1.0, alpha)
    assert model.scales_ is not None and model.scales_.dtype == np.dtype(dtype)
    np.testing.assert_allclose(model.scales_, naive_scales(X, X, k), rtol=1e-6)
    np.testing.assert_allclose(model.operator_.to_numpy(), P, atol=1e-12)
    values = np.sort(scipy.linalg.eigvals(P).real)[::-1]
    tol = 1e-11 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(model.eigenvalues_, values[1 : wanted + 1], atol=tol)
    assert model.eigenvalues_.dtype == model.embedding_.dtype == np.dtype(dtype)
    assert model.beta_ == 1.0 and model.materialized_ == (max_memory > 0)
    size = float(np.abs(model.embedding_).max())
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=10 * tol * max(size, 1))
    assert model.transform(X).dtype == np.dtype(dtype)


@pytest.mark.parametrize("d", [2, 9])
def test_extension_of_the_self_tuning_kernel(d: int) -> None:
    """New points take their scale from their neighbours among the points of the fit."""
    X, new = uneven(200, d), uneven(30, d, seed=1)
    model = DiffusionMap(3, bandwidth="self-tuning", beta=0.5, n_neighbors=5).fit(X)
    K = np.exp(naive_scores(new, X, 5, 0.5))
    wanted = K / K.sum(axis=1, keepdims=True) @ model.eigenvectors_
    np.testing.assert_allclose(model.transform(new), wanted, atol=1e-11)
    # The map is continuous: near a point of the fit the coordinates are close to those of the point.
    near = model.transform(X + 1e-9)
    np.testing.assert_allclose(near, model.embedding_, atol=1e-5 * np.abs(near).max())


def test_self_tuning_with_a_metric() -> None:
    X = uneven(120, 3)
    root = np.random.default_rng(2).normal(size=(3, 3))
    W = root @ root.T
    plain = DiffusionMap(3, bandwidth="self-tuning").fit(X @ root)
    metric = DiffusionMap(3, bandwidth="self-tuning", W=W).fit(X)
    np.testing.assert_allclose(metric.eigenvalues_, plain.eigenvalues_, atol=1e-12)
    np.testing.assert_allclose(metric.transform(X[:9]), plain.transform(X[:9] @ root), atol=1e-9)
    W *= 100  # the map keeps a copy
    np.testing.assert_allclose(metric.transform(X[:9]), plain.transform(X[:9] @ root), atol=1e-9)
    with pytest.raises(ValueError, match="W: wanted a metric without negative eigenvalues"):
        DiffusionMap(bandwidth="self-tuning", W=np.diag([1.0, 1.0, -1.0])).fit(X)


def hard_clouds() -> dict[str, tuple[Array, float]]:
    """Points for which the terms of the scores cancel, and the error that is allowed."""
    rng = np.random.default_rng(0)
    outlier = rng.normal(size=(300, 20))
    outlier[0] = 1e6
    tight = np.concatenate([1e-6 * rng.normal(size=(100, 5)), 1 + 1e-6 * rng.normal(size=(90, 5))])
    return {
        "a line": (rng.normal(size=(400, 1)), 1e-10),
        "far away": (1e6 + rng.normal(size=(300, 3)), 1e-8),
        "an outlier": (outlier, 1e-12),
        "heavy tails": (rng.standard_cauchy(size=(300, 3)), 1e-11),
        "tight clusters": (tight, 1e-4),
    }


@pytest.mark.parametrize("name", list(hard_clouds()))
def test_cancellation_in_the_lifted_scores(name: str) -> None:
    """Against differences in long double, wherever a weight is not 0."""
    X, allowed = hard_clouds()[name]
    kernel = _local_scale.SelfTuningKernel(X, None, 1.0, 7, 1)
    floor = _local_scale._FLOOR * np.linalg.norm(X - np.median(X, axis=0), axis=1)
    scales = np.maximum(naive_scales(X, X, 7).astype(np.float64), floor)
    wanted = -long_distances(X, X).astype(np.float64) / np.outer(scales, scales)
    got = kernel.scores().to_numpy()
    seen = wanted > -40
    assert np.abs(got - wanted)[seen].max() < allowed
    assert got[~seen].max() < -39
    assert kernel.scores().symmetric


def test_repeated_points_have_a_scale() -> None:
    """More copies of a point than neighbours: the nearest point that differs sets the scale."""
    X = np.concatenate([np.zeros((10, 2)), [[3.0, 4.0]], cloud(20, 2)])
    model = DiffusionMap(2, bandwidth="self-tuning", n_neighbors=4).fit(X)
    assert model.scales_ is not None
    nearest = np.linalg.norm(X[10:], axis=1).min()
    np.testing.assert_allclose(model.scales_[:10], nearest)
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=1e-10)
    with pytest.raises(ValueError, match=r"X: wanted points that differ .*got 9 equal ones"):
        DiffusionMap(bandwidth="self-tuning").fit(np.ones((9, 2)))


@pytest.mark.parametrize("d", [3, 12])
def test_neighbours_by_blocks(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, queries = cloud(200, d), cloud(50, d, 1)
    wanted = np.sort(cdist(queries, X), axis=1)
    monkeypatch.setattr(_local_scale, "_BLOCK", 700)  # three rows at a time
    for rank in (0, 1, 7, 199):
        got = _local_scale.neighbor_distances(queries, X, rank, 1)
        np.testing.assert_allclose(got, wanted[:, rank], rtol=1e-12)


# ---- one scale from neighbours --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_beta_from_neighbours(dtype: str) -> None:
    X = cloud(90, 3, dtype=dtype)
    kth = np.sort(cdist(X.astype(np.float64), X.astype(np.float64)), axis=1)
    for k in (1, 7, 20):
        found = qk.diffusion.choose_beta(X, "knn", n_neighbors=k)
        assert found.beta == pytest.approx(1 / np.median(kth[:, k]) ** 2, rel=1e-6)
        assert (found.rule, found.n_points, found.dimension) == ("knn", 90, None)
    model = DiffusionMap(1, beta="knn", n_neighbors=20).fit(X)
    assert model.beta_rule_ == "knn" and model.beta_ == found.beta
    few = qk.diffusion.choose_beta(X[:5], "knn", n_neighbors=100)  # as many as there are
    far = cdist(X[:5].astype(np.float64), X[:5].astype(np.float64)).max(axis=1)
    assert few.beta == pytest.approx(1 / np.median(far) ** 2, rel=1e-6)


def test_beta_from_neighbours_of_many_points() -> None:
    """1000 points are looked at; their neighbours are looked for among all."""
    X = cloud(3000, 2)
    chosen = np.linspace(0, 2999, 1000).round().astype(int)
    kth = np.sort(cdist(X[chosen], X), axis=1)[:, 7]
    found = qk.diffusion.choose_beta(X, "knn")
    assert found.beta == pytest.approx(1 / np.median(kth) ** 2) and found.n_points == 1000


# ---- warnings -------------------------------------------------------------------------------------


def with_outlier(seed: int = 0) -> Array:
    X = np.random.default_rng(seed).normal(size=(501, 2))
    X[300] = [30.0, 30.0]
    return X


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_memory", [0, 2**30])
def test_an_outlier_is_named(dtype: str, max_memory: int) -> None:
    """One point of 501 takes the first coordinate; without it the map is that of the others."""
    X = with_outlier().astype(dtype)
    model = DiffusionMap(2, max_memory=max_memory)
    with pytest.warns(DisconnectedWarning) as caught:
        model.fit(X)
    text = str(caught[0].message)
    assert caught[0].filename == __file__ and len(caught) == 1
    assert "DiffusionMap: the points fall into 2 parts" in text and "of 500, 1 points" in text
    assert "of 2 coordinates, 1 (0) lives on at most 1 of the 501 points, around index 300" in text
    assert f"lower beta (now {model.beta_:.3g})" in text and "self-tuning" in text
    assert model.effective_points_[0] < 1.01 and model.effective_points_[1] > 100
    with pytest.warns(DisconnectedWarning) as caught:
        model.fit_transform(X)
    assert caught[0].filename == __file__
    # A warning would be an error here.
    rest = DiffusionMap(2, beta=model.beta_).fit(np.delete(X, 300, axis=0))
    tol = 1e-6 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(model.eigenvalues_[1], rest.eigenvalues_[0], atol=tol)


@pytest.mark.parametrize("seed", range(5))
def test_an_outlier_that_is_still_seen(seed: int) -> None:
    """No eigenvalue is 1, but the walk stays at the outlier for hundreds of steps."""
    X = with_outlier(seed)
    X[300] = [5.0, 5.0]
    with pytest.warns(
        DisconnectedWarning, match=r"lives on at most 1 of the 501 points.*index 300"
    ):
        model = DiffusionMap(1, beta=0.5).fit(X)
    assert model.eigenvalues_[0] < 1 - 1e-6


def test_parts_and_their_sizes() -> None:
    sizes = [60, 200, 40]
    X = np.concatenate([cloud(n, 2, k) + 50 * k for k, n in enumerate(sizes)])
    with pytest.warns(
        DisconnectedWarning, match=r"into 3 parts .* of 200, 60, 40 points \(2 eigen"
    ):
        DiffusionMap(5, beta=1.0).fit(X)
    with pytest.warns(
        DisconnectedWarning, match=r"into at least \d parts .*\(1 eigenvalue besides"
    ):
        DiffusionMap(1, beta=1.0).fit(X)
    with pytest.warns(DisconnectedWarning, match=r"of 200, 60, 40 points.*raise n_neighbors"):
        DiffusionMap(4, bandwidth="self-tuning").fit(X)
    assert issubclass(DisconnectedWarning, UserWarning)


@pytest.mark.parametrize("seed", range(20))
def test_sizes_of_random_parts(seed: int) -> None:
    """Any orthonormal basis of functions that are constant on parts, complex phases too."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(1, 7)
    label = np.concatenate([np.arange(parts), rng.integers(0, parts, size=40)])
    basis = np.linalg.qr(rng.normal(size=(parts, parts)) + 1j * rng.normal(size=(parts, parts)))[0]
    counts = np.bincount(label)
    vectors = basis[label] / np.sqrt(counts[label])[:, None]
    vectors = vectors * np.exp(2j * np.pi * rng.random(len(label)))[:, None]
    assert _localized.part_sizes(vectors) == sorted(counts.tolist(), reverse=True)


def ordinary(kind: str, rng: np.random.Generator) -> Array:
    n = int(rng.choice([20, 50, 150, 400]))
    if kind == "normal":
        return np.asarray(rng.normal(size=(n, rng.integers(1, 30))))
    if kind == "uniform":
        return np.asarray(rng.random(size=(n, rng.integers(1, 6))))
    if kind == "roll":
        return roll(n, int(rng.integers(1000)))
    if kind == "ring":
        return np.asarray(ring(n) + 0.03 * rng.normal(size=(n, 2)))
    if kind == "moons":
        angle = np.pi * rng.random(n)
        X = np.column_stack([np.cos(angle), np.sin(angle)])
        X[n // 2 :] = [1.0, 0.5] - X[n // 2 :]
        return np.asarray(X + 0.06 * rng.normal(size=X.shape))
    share = 2 if kind == "two clusters" else 10  # or one cluster nine times as large as the other
    X = rng.normal(size=(n, 2))
    X[: n // share, 0] += 6.0
    return X


@pytest.mark.parametrize("bandwidth", ["global", "self-tuning"])
@pytest.mark.parametrize(
    "kind", ["normal", "uniform", "roll", "ring", "moons", "two clusters", "uneven clusters"]
)
def test_ordinary_data_are_no_cause_for_a_warning(kind: str, bandwidth: str) -> None:
    """Warnings are errors here. Two groups that coordinate 0 rightly separates are not localised."""
    for seed in range(12):
        X = ordinary(kind, np.random.default_rng(seed))
        model = DiffusionMap(4, bandwidth=bandwidth).fit(X.astype(DTYPES[seed % 2]))
        if kind == "two clusters" and len(X) > 20:
            assert model.effective_points_[0] > 0.3 * len(X)


def test_iris_is_no_cause_for_a_warning() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    for bandwidth in ("global", "self-tuning"):
        DiffusionMap(4, bandwidth=bandwidth).fit(datasets.load_iris().data)


def test_digits_with_outliers() -> None:
    """Standardised digits have isolated points: the default warns, self-tuning scales classify.

    A 5-nearest-neighbour classifier on five coordinates, halves of the data: 0.4 and 0.8.
    """
    datasets = pytest.importorskip("sklearn.datasets")
    neighbors = pytest.importorskip("sklearn.neighbors")
    X, y = datasets.load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    X = X @ np.linalg.svd(X, full_matrices=False)[2][:20].T

    def accuracy(model: DiffusionMap) -> float:
        train = model.fit_transform(X[::2])
        classifier = neighbors.KNeighborsClassifier(5).fit(train, y[::2])
        return float(classifier.score(model.transform(X[1::2]), y[1::2]))

    with pytest.warns(DisconnectedWarning, match=r"live on at most 1 of the 899 points"):
        collapsed = accuracy(DiffusionMap(5))
    tuned = accuracy(DiffusionMap(5, bandwidth="self-tuning"))
    assert collapsed < 0.55 and tuned > 0.75


# ---- magnetic maps --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnetic_maps_warn_alike(dtype: str) -> None:
    turn = np.array([[1.0, 0.3], [-0.3, 1.0]], dtype)
    X = with_outlier().astype(dtype)
    with pytest.warns(DisconnectedWarning, match=r"MagneticMap: of 3 coordinates, 1 .*index 300"):
        model = MagneticMap(3, W=turn).fit(X)
    assert model.effective_points_.min() < 1.01
    with pytest.warns(DisconnectedWarning, match=r"into 2 parts .* of 500, 1 points") as caught:
        MagneticMap(3).fit_transform(X)  # no phases: a diffusion map
    assert caught[0].filename == __file__
    rest = np.delete(X, 300, axis=0)
    assert MagneticMap(3, W=turn).fit(rest).effective_points_.min() > 20
    for seed in range(10):
        kind = ["normal", "roll", "ring", "two clusters", "uniform"][seed % 5]
        MagneticMap(3).fit(ordinary(kind, np.random.default_rng(seed)))


# ---- bad arguments --------------------------------------------------------------------------------

X10 = cloud(10, 2)
BAD: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: DiffusionMap(bandwidth="local").fit(X10),
        ValueError,
        r"bandwidth: wanted one of 'global', 'self-tuning', 'variable'.*array or a function",
    ),
    (
        lambda: DiffusionMap(bandwidth="self-tuning", beta="median").fit(X10),
        ValueError,
        r"beta: wanted a number > 0 or None .* got the rule 'median'",
    ),
    (
        lambda: DiffusionMap(bandwidth="self-tuning", n_neighbors=0).fit(X10),
        ValueError,
        r"n_neighbors: wanted",
    ),
    (
        lambda: DiffusionMap(bandwidth="self-tuning", beta=-1.0).fit(X10),
        ValueError,
        r"beta: wanted",
    ),
    (lambda: DiffusionMap(beta="knn", n_neighbors=1.5).fit(X10), TypeError, r"n_neighbors: wanted"),
    (
        lambda: qk.diffusion.choose_beta(X10, "knn", W=np.diag([1.0, -1.0])),
        ValueError,
        r"W is indefinite|negative eigenvalues",
    ),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_arguments(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()
