"""Diffusion maps of neighbours, with given weights, densities and targets, and with variable bandwidth."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.spatial.distance import cdist

from qkcore.diffusion import DiffusionMap, DisconnectedWarning
from tests.reference_diffusion import DTYPES, Array, roll


@pytest.fixture(autouse=True)
def _parts_are_no_matter() -> Iterator[None]:
    """What a map warns of is tested elsewhere; small neighbourhoods may isolate points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DisconnectedWarning)
        yield


def points(n: int = 120, d: int = 2, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d))


def naive_graph(X: Array, Y: Array, k: int) -> Array:
    """Whether a point of Y is among the k nearest of one of X, or sees it from within its own reach."""
    reach = np.sort(cdist(Y, Y), axis=1)[:, k - 1]
    mine = np.sort(cdist(X, Y), axis=1)[:, k - 1]
    return np.asarray(cdist(X, Y) <= np.maximum(mine[:, None], reach) * (1 + 1e-10))


def naive_map(
    X: Array,
    k: int,
    *,
    beta: float,
    alpha: float = 0.0,
    near: int | None = None,
    weights: Array | None = None,
    target: Array | None = None,
    density: Array | None = None,
    rho: Array | None = None,
    m: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Rates, right eigenvectors of unit norm, and the law, by the textbook."""
    one = np.ones(len(X)) if rho is None else rho
    K = np.exp(-beta * cdist(X, X) ** 2 / np.outer(one, one))
    if near is not None:
        K = np.where(naive_graph(X, X, near), K, 0)
    q = K.sum(axis=1) / one**m if density is None else density
    r = q**-alpha if target is None else target**0.5 * one ** (-(m + 2) / 2) / q
    if rho is None and target is not None:
        r = target**0.5 / q
    if weights is not None:
        r = r * weights
    A = K * r[:, None] * r
    Z = A.sum(axis=1)
    generator = (A / Z[:, None] - np.eye(len(X))) * 4 * beta / one[:, None] ** 2
    law = Z * one**2
    root = np.sqrt(law)
    S = root[:, None] * generator / root
    values, vectors = scipy.linalg.eigh((S + S.T) / 2)
    order = np.argsort(-values)[1 : k + 1]
    law = law / law.sum()
    return -values[order], vectors[:, order] / np.sqrt(law)[:, None], law


def same_up_to_sign(found: Array, wanted: Array, tol: float) -> None:
    signs = np.sign((found * wanted).sum(axis=0))
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found * signs, wanted, atol=tol * scale, rtol=0)


def bump(X: Array) -> Array:
    return np.asarray(np.exp(-0.3 * X[:, 0]) + 0.2)


def wide(X: Array) -> Array:
    return np.asarray(1 + 0.5 * np.square(X).sum(axis=1))


CASES: dict[str, dict[str, Any]] = {
    "neighbours": {"neighbors": 12},
    "neighbours, alpha": {"neighbors": 12, "alpha": 1.0},
    "weights": {"weights": bump},
    "weights, alpha": {"weights": bump, "alpha": 0.5},
    "density": {"density": bump, "alpha": 1.0},
    "target": {"target": bump},
    "target, density": {"target": bump, "density": wide},
    "target, neighbours": {"target": bump, "neighbors": 20},
    "given bandwidth": {"bandwidth": wide, "dimension": 2},
    "given bandwidth, alpha": {"bandwidth": wide, "dimension": 2, "alpha": -0.5},
    "given bandwidth, target": {"bandwidth": wide, "dimension": 2, "target": bump},
    "given bandwidth, all": {
        "bandwidth": wide, "dimension": 2, "alpha": 0.5, "weights": bump, "neighbors": 15,
    },
}  # fmt: skip
VARIABLE = {
    "variable": {"bandwidth": "variable"},
    "variable, target, neighbours": {"bandwidth": "variable", "target": bump, "neighbors": 30},
    "self-tuning, target": {"bandwidth": "self-tuning", "target": bump},
    "self-tuning, neighbours": {"bandwidth": "self-tuning", "neighbors": 15, "alpha": 1.0},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_memory", [0, 2**28])
@pytest.mark.parametrize("case", CASES)
def test_against_the_definition(case: str, max_memory: int, dtype: str) -> None:
    """Every normalisation, formed and lazy: rates, vectors, laws."""
    X = points().astype(dtype)
    options = CASES[case]
    model = DiffusionMap(4, beta=1.5, max_memory=max_memory, **options).fit(X)
    given = {
        name: options[name](X.astype(float))
        for name in ("weights", "target", "density")
        if name in options
    }
    rho = options["bandwidth"](X.astype(float)) if "bandwidth" in options else None
    rates, vectors, law = naive_map(
        X.astype(float), 4, beta=1.5, alpha=options.get("alpha", 0.0),
        near=options.get("neighbors"), rho=rho, m=options.get("dimension", 0), **given,
    )  # fmt: skip
    tol = 1e-9 if dtype == "float64" else 2e-4
    assert model.rates_ is not None
    np.testing.assert_allclose(model.rates_, rates, rtol=tol, atol=tol)
    same_up_to_sign(model.eigenvectors_, vectors, 10 * tol)
    np.testing.assert_allclose(model.stationary_, law, rtol=tol)
    assert model.eigenvectors_.dtype == model.rates_.dtype == np.dtype(dtype)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("dim", [2, 12])
def test_all_neighbours_are_all_pairs(dim: int, alpha: float) -> None:
    """k = N, or more, is the dense map; by a tree and by blocks."""
    X = points(90, dim)
    dense = DiffusionMap(3, beta=0.3, alpha=alpha).fit(X)
    for k in (90, 1000):
        sparse = DiffusionMap(3, beta=0.3, alpha=alpha, neighbors=k).fit(X)
        np.testing.assert_allclose(sparse.eigenvalues_, dense.eigenvalues_, atol=1e-12)
        same_up_to_sign(sparse.embedding_, dense.embedding_, 1e-9)
        np.testing.assert_allclose(
            sparse.sparse_operator_.toarray(), dense.operator_.to_numpy(), atol=1e-14
        )
        new = points(7, dim, seed=1)
        same_up_to_sign(sparse.transform(new), dense.transform(new), 1e-9)


@pytest.mark.parametrize("dim", [1, 3, 12])
@pytest.mark.parametrize("k", [2, 9])
def test_the_graph_is_that_of_the_nearest_points(k: int, dim: int) -> None:
    X = points(70, dim)
    found = DiffusionMap(1, beta=0.1, neighbors=k).fit(X).sparse_operator_
    np.testing.assert_array_equal(found.toarray() > 0, naive_graph(X, X, k))
    assert found.nnz <= 2 * k * 70
    np.testing.assert_allclose(np.asarray(found.sum(axis=1)).reshape(-1), 1, rtol=1e-14)


def test_ties_belong_to_the_graph_whatever_the_order() -> None:
    """On a grid the fourth neighbour ties with others: the map does not depend on the order of the points."""
    X = np.stack(np.meshgrid(np.arange(7.0), np.arange(9.0)), axis=-1).reshape(-1, 2)
    order = np.random.default_rng(3).permutation(len(X))
    a = DiffusionMap(3, beta=0.5, neighbors=4).fit(X)
    b = DiffusionMap(3, beta=0.5, neighbors=4).fit(X[order])
    assert a.sparse_operator_.nnz == b.sparse_operator_.nnz
    np.testing.assert_allclose(a.eigenvalues_, b.eigenvalues_, atol=1e-12)
    np.testing.assert_allclose(a.transform(X), a.embedding_, atol=1e-10)


@pytest.mark.parametrize("t", [0.5, 1, 3])
@pytest.mark.parametrize("case", [*CASES, *VARIABLE])
def test_points_of_fit_get_their_embedding(case: str, t: float) -> None:
    """Nyström's extension, for every combination; pickled too."""
    X = points(80)
    model = DiffusionMap(2, beta=1.5, t=t, **{**CASES, **VARIABLE}[case]).fit(X)
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=1e-8)
    np.testing.assert_allclose(model.eigenfunctions(X), model.eigenvectors_, atol=1e-8)
    again = pickle.loads(pickle.dumps(model))
    new = points(5, seed=9)
    np.testing.assert_array_equal(again.transform(new), model.transform(new))


def test_new_points_of_a_variable_bandwidth_solve_the_eigenvalue_equation() -> None:
    """psi(x) (1 - (1 - lambda) rho(x)^2 / min rho^2) is the mean of psi over the row of x."""
    X, new = points(100), points(6, seed=4)
    model = DiffusionMap(2, beta=1.5, bandwidth=wide, alpha=0.5, dimension=2).fit(X)
    K = np.exp(-1.5 * cdist(X, X) ** 2 / np.outer(wide(X), wide(X)))
    q = K.sum(axis=1) / wide(X) ** 2
    row = np.exp(-1.5 * cdist(new, X) ** 2 / np.outer(wide(new), wide(X))) * q**-0.5
    row /= row.sum(axis=1, keepdims=True)
    assert model.rates_ is not None
    share = 1 - model.rates_ / (4 * 1.5) * wide(new)[:, None] ** 2
    np.testing.assert_allclose(model.eigenfunctions(new), row @ model.eigenvectors_ / share)


# ---- laws -------------------------------------------------------------------------------------------


def test_constant_weights_change_nothing() -> None:
    X = points()
    plain = DiffusionMap(3, beta=1.0, alpha=0.5).fit(X)
    for weights in (np.full(120, 7.0), lambda x: np.full(len(x), 1e-30)):
        same = DiffusionMap(3, beta=1.0, alpha=0.5, weights=weights).fit(X)
        np.testing.assert_allclose(same.eigenvalues_, plain.eigenvalues_, atol=1e-13)
        same_up_to_sign(same.embedding_, plain.embedding_, 1e-10)
    one = DiffusionMap(3, beta=1.0, bandwidth=np.ones(120), dimension=2, alpha=0.5).fit(X)
    np.testing.assert_allclose(one.eigenvalues_, plain.eigenvalues_, atol=1e-13)
    half = DiffusionMap(3, beta=0.25, bandwidth=np.full(120, 0.5), dimension=2, alpha=0.5).fit(X)
    np.testing.assert_allclose(half.rates_, plain.rates_, rtol=1e-11)


def ring(n: int, strength: float) -> tuple[Array, Array]:
    """Points on a circle of the density 1 + strength cos, by its quantiles; their angles."""
    fine = np.linspace(0, 2 * np.pi, 20_001)
    mass = (fine + strength * np.sin(fine)) / (2 * np.pi)
    angle = np.interp((np.arange(n) + 0.5) / n, mass, fine)
    return np.column_stack([np.cos(angle), np.sin(angle)]), angle


@pytest.mark.parametrize("options", [{}, {"neighbors": 300}], ids=["all", "neighbours"])
def test_a_uniform_target_on_a_circle_sees_no_density(options: dict[str, Any]) -> None:
    """Rates of the Laplacian of the circle: 1, 1, 4, 4."""
    X, _ = ring(1500, 0.6)
    model = DiffusionMap(4, beta=100.0, target=np.ones(1500), **options).fit(X)
    np.testing.assert_allclose(model.rates_, [1, 1, 4, 4], rtol=0.03)
    drifting = DiffusionMap(4, beta=100.0).fit(X)
    assert drifting.rates_ is not None
    assert abs(float(drifting.rates_[0]) - 1) > 0.05


def test_a_target_on_a_circle_has_the_rates_of_its_langevin_generator() -> None:
    """d^2 + (log pi)' d for pi = exp(cos), by finite differences on a fine grid."""
    X, angle = ring(1500, 0.6)
    model = DiffusionMap(3, beta=200.0, target=np.exp(np.cos(angle))).fit(X)
    m = 2000
    grid = 2 * np.pi * np.arange(m) / m
    edge = np.exp(np.cos(grid + np.pi / m)) * (m / (2 * np.pi)) ** 2
    pi = np.exp(np.cos(grid))
    L = np.diag(-(edge + np.roll(edge, 1)))
    L += np.diag(edge[:-1], 1) + np.diag(edge[:-1], -1)
    L[0, -1] = L[-1, 0] = edge[-1]
    rates = -scipy.linalg.eigvalsh(L, np.diag(pi), subset_by_index=[m - 4, m - 2])[::-1]
    np.testing.assert_allclose(model.rates_, rates, rtol=0.02)


@pytest.mark.parametrize(
    ("bandwidth", "source"),
    [
        ("global", "uniform"),
        ("variable", "uniform"),
        ("variable", "wide normal"),
        ("given", "uniform"),
        ("given", "wide normal"),
    ],
)
def test_a_gaussian_target_has_the_rates_of_ornstein_and_uhlenbeck(
    bandwidth: str, source: str
) -> None:
    """1, 2, 3 for the standard normal law, from points of other laws, and Hermite's polynomials."""
    n = 1500
    level = (np.arange(n) + 0.5) / n
    if source == "uniform":
        x = 10 * level - 5
    else:
        from scipy.special import ndtri

        x = 1.7 * ndtri(level)
    options: dict[str, Any] = {"beta": 60.0}
    if bandwidth == "given":
        options |= {"bandwidth": lambda X: 1 + 0.1 * X[:, 0] ** 2, "dimension": 1}
    elif bandwidth == "variable":
        options |= {"bandwidth": "variable", "n_neighbors": 20}
    model = DiffusionMap(3, target=lambda X: np.exp(-(X[:, 0] ** 2) / 2), **options).fit(x[:, None])
    np.testing.assert_allclose(model.rates_, [1, 2, 3], rtol=0.06)
    middle = np.abs(x) < 2
    first = model.eigenvectors_[middle, 0]
    assert abs(np.corrcoef(first, x[middle])[0, 1]) > 0.999


def test_variable_bandwidth_finds_ornstein_and_uhlenbeck_in_normal_points() -> None:
    """Berry and Harlim: alpha = -m / 4 with the bandwidth q^(-1/2) has the generator of the sampling law.

    By the density itself to 6 %; by its estimate, which is smooth in the tails, the first rate to 15 %.
    """
    from scipy.special import ndtri

    x = ndtri((np.arange(2000) + 0.5) / 2000)[:, None]
    known = DiffusionMap(3, bandwidth=lambda X: np.exp(X[:, 0] ** 2 / 4), alpha=-0.25).fit(x)
    assert known.dimension_ == 1
    np.testing.assert_allclose(known.rates_, [1, 2, 3], rtol=0.06)
    # The stationary law of the generator is uniform over the points.
    assert float(np.median(known.stationary_ * 2000)) == pytest.approx(1, abs=0.1)
    model = DiffusionMap(1, bandwidth="variable", n_neighbors=20, alpha=-0.25).fit(x)
    assert model.dimension_ == 1
    np.testing.assert_allclose(model.rates_, [1], rtol=0.15)


def test_weights_add_a_drift() -> None:
    """On a circle of uniform points weights w have the law w^2: the same as a target, for alpha = 0 and 1."""
    angle = 2 * np.pi * np.arange(800) / 800
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    w = np.exp(0.5 * np.cos(angle))
    a = DiffusionMap(3, beta=100.0, weights=w).fit(X)
    b = DiffusionMap(3, beta=100.0, target=w**2).fit(X)
    np.testing.assert_allclose(a.rates_, b.rates_, rtol=1e-9)
    np.testing.assert_allclose(a.stationary_ / a.stationary_.max(), (w / w.max()) ** 2, rtol=0.02)


# ---- pyDiffMap --------------------------------------------------------------------------------------


def theirs(**options: Any) -> Any:
    peer = pytest.importorskip("pydiffmap.diffusion_map")
    return peer.DiffusionMap.from_sklearn(n_evecs=4, **options)


def compare(ours: DiffusionMap, peer: Any, X: Array, new: Array | None = None) -> None:
    """Rates are minus their eigenvalues; their coordinates are unit vectors over the roots of the rates."""
    ours.fit(X)
    peer.fit(X)
    assert ours.rates_ is not None
    np.testing.assert_allclose(ours.rates_, -peer.evals, rtol=1e-8, atol=1e-9)
    scale = np.linalg.norm(ours.eigenvectors_, axis=0) * np.sqrt(ours.rates_)
    same_up_to_sign(ours.eigenvectors_ / scale, peer.dmap, 1e-7)
    if new is not None:
        # The other library computes P psi without a division, which is ours at t = 1 with the same scale.
        same_up_to_sign(ours.transform(new) / scale, peer.transform(new), 1e-7)


@pytest.mark.peers
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [20, 64])
def test_neighbours_against_pydiffmap(k: int, alpha: float) -> None:
    X = roll(250)
    compare(
        DiffusionMap(4, beta=1 / 16, alpha=alpha, neighbors=k),
        theirs(alpha=alpha, k=k, epsilon=4.0),
        X,
    )


@pytest.mark.peers
def test_new_points_against_pydiffmap() -> None:
    """With all neighbours; else their new points have no edges to points that have them as neighbours."""
    X = points(150)
    compare(
        DiffusionMap(4, beta=1.0, alpha=0.5, neighbors=150),
        theirs(alpha=0.5, k=150, epsilon=0.25),
        X,
        points(8, seed=5),
    )


@pytest.mark.peers
@pytest.mark.parametrize("k", [25, 150])
def test_weights_and_densities_against_pydiffmap(k: int) -> None:
    X = points(150)
    compare(
        DiffusionMap(4, beta=1.0, alpha=0.5, neighbors=k, weights=bump),
        theirs(alpha=0.5, k=k, epsilon=0.25, weight_fxn=lambda x: bump(x[None])[0]),
        X,
    )
    compare(
        DiffusionMap(4, beta=1.0, alpha=1.0, neighbors=k, density=wide),
        theirs(alpha=1.0, k=k, epsilon=0.25, density_fxn=wide),
        X,
    )


@pytest.mark.peers
@pytest.mark.parametrize("k", [25, 150])
def test_targets_against_pydiffmap(k: int) -> None:
    """Their target-measure map at alpha = 1, with the target as change of measure."""
    peer = pytest.importorskip("pydiffmap.diffusion_map")
    X = points(150)
    compare(
        DiffusionMap(4, beta=1.0, neighbors=k, target=bump),
        peer.TMDmap(alpha=1.0, k=k, epsilon=0.25, n_evecs=4, change_of_measure=lambda x: bump(x[None])[0]),
        X,
    )  # fmt: skip


@pytest.mark.peers
@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.0])
@pytest.mark.parametrize("k", [25, 150])
def test_variable_bandwidth_against_pydiffmap(k: int, alpha: float) -> None:
    """Theirs divides the density by the bandwidth's square whatever the dimension is: dimension=2."""
    X = points(150)
    compare(
        DiffusionMap(4, beta=1.0, alpha=alpha, neighbors=k, bandwidth=wide, dimension=2),
        theirs(alpha=alpha, k=k, epsilon=0.25, bandwidth_type=wide, bandwidth_normalize=True),
        X,
    )


# ---- arguments --------------------------------------------------------------------------------------


def test_arrays_and_functions_are_the_same() -> None:
    X = points()
    for name, f in (("weights", bump), ("target", bump), ("bandwidth", wide)):
        a = DiffusionMap(2, beta=1.0, dimension=2, **{name: f}).fit(X)
        b = DiffusionMap(2, beta=1.0, dimension=2, **{name: f(X)}).fit(X)
        np.testing.assert_array_equal(a.embedding_, b.embedding_)
    before = X.copy()

    def spoil(x: Array) -> Array:
        x[:] = 0
        return np.ones(len(x))

    DiffusionMap(2, beta=1.0, weights=spoil).fit(X)
    np.testing.assert_array_equal(X, before)


def test_metrics_and_large_neighbourhoods_in_single_precision() -> None:
    X = points(60, 3).astype(np.float32)
    W = np.diag([1.0, 4.0, 0.25]).astype(np.float32)
    a = DiffusionMap(2, beta=0.5, W=W, neighbors=60).fit(X)
    b = DiffusionMap(2, beta=0.5, W=W).fit(X)
    np.testing.assert_allclose(a.eigenvalues_, b.eigenvalues_, atol=2e-6)
    assert a.transform(X[:3]).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"neighbors": 1}, ValueError, "neighbors: wanted"),
        ({"neighbors": 2.5}, TypeError, "neighbors: wanted"),
        ({"weights": np.ones(5)}, ValueError, r"weights: wanted weights of shape \(20,\)"),
        ({"weights": lambda x: x}, ValueError, r"weights: wanted what weights returns of shape \(20,\)"),
        ({"target": np.zeros(20)}, ValueError, "target: wanted numbers > 0, got 0 at index 0"),
        ({"weights": np.full(20, np.nan)}, ValueError, "weights: wanted finite"),
        ({"target": bump, "weights": bump}, ValueError, "weights: wanted None together with a target"),
        ({"target": bump, "alpha": 0.5}, ValueError, "alpha: wanted 0 or 1 together with a target"),
        ({"density": bump}, ValueError, "density: wanted alpha other than 0"),
        ({"bandwidth": "narrow"}, ValueError, "bandwidth: wanted one of 'global'"),
        ({"bandwidth": np.ones(3)}, ValueError, r"bandwidth: wanted bandwidth of shape \(20,\)"),
        ({"bandwidth": wide, "beta": "knn"}, ValueError, "beta: wanted .* bandwidth=a function"),
        ({"bandwidth": "variable", "dimension": 0}, ValueError, "dimension: wanted"),
        ({"neighbors": 5, "W": np.diag([1.0, -1.0])}, ValueError, "W: wanted a metric without negative"),
    ],
)  # fmt: skip
def test_bad_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        DiffusionMap(2, **{"beta": 1.0, **options}).fit(points(20))


def test_what_a_fitted_map_refuses() -> None:
    X = points(40)
    fixed = DiffusionMap(2, beta=1.0, bandwidth=wide(X), dimension=2).fit(X)
    with pytest.raises(ValueError, match="bandwidth: wanted a function of points to extend"):
        fixed.transform(X)
    sparse = DiffusionMap(2, beta=1.0, neighbors=10).fit(X)
    with pytest.raises(ValueError, match="operator_: wanted a map of all pairs"):
        _ = sparse.operator_
    with pytest.raises(ValueError, match="sparse_operator_: wanted a map of neighbors"):
        _ = fixed.sparse_operator_
    model = DiffusionMap(2, beta=1.0, bandwidth=wide, dimension=2).fit(X)
    assert model.rates_ is not None
    reach = float(np.sqrt(4 / model.rates_[0]))  # there coordinate 0 is nearly zero
    radius = np.sqrt(2 * (reach - 1))
    with pytest.raises(
        ValueError, match="X: wanted points to which coordinate 0 can be extended, got point 1"
    ):
        model.transform(np.array([[0.0, 0.0], [radius, 0.0]]))


def test_equal_points_have_no_variable_bandwidth() -> None:
    with pytest.raises(ValueError, match="X: wanted points that differ"):
        DiffusionMap(1, bandwidth="variable").fit(np.ones((20, 2)))
    with pytest.raises(ValueError, match="beta: wanted points that differ to find the scale"):
        DiffusionMap(1, bandwidth=np.ones(20)).fit(np.ones((20, 2)))


def test_many_points_in_little_memory() -> None:
    """A square, whose Laplacian has the rate pi^2 twice: 2 % of the pairs are kept."""
    side = (np.arange(70) + 0.5) / 70
    X = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    X += np.random.default_rng(0).uniform(-0.3, 0.3, X.shape) / 70
    model = DiffusionMap(2, beta=1750.0, neighbors=64, alpha=1.0).fit(X)
    assert model.sparse_operator_.nnz < len(X) * 80
    np.testing.assert_allclose(model.rates_, np.pi**2, rtol=0.05)
