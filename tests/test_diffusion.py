"""Diffusion operators, Laplacians, distances and scales (DAC-5)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _estimator, diffusion
from qkcore.diffusion import DiffusionMap
from tests.reference_diffusion import (
    DTYPES,
    TOL,
    Array,
    cloud,
    naive_kernel,
    naive_map,
    naive_operator,
    roll,
    squared_distances,
)

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
    assert pi is not None  # the symmetry of the scores is noticed
    np.testing.assert_allclose(pi, z / z.sum(), rtol=1e-11)
    np.testing.assert_allclose(pi @ P, pi, rtol=1e-11)
    flow = pi[:, None] * P
    np.testing.assert_allclose(flow, flow.T, rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)


@given(problems)
@pytest.mark.filterwarnings("ignore::qkcore.diffusion.DisconnectedWarning")  # weights of far points
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
    # The maximum is above the plateau, here by little more than a fifth at most.
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
    with pytest.raises(
        ValueError, match="rule: wanted one of 'median', 'dimension', 'knn', got 'mean'"
    ):
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
        ({"max_iter": 0}, ValueError, "max_iter: wanted at least 1, got 0"),
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
        (X[:0], ValueError, r"X: wanted points, got 0 sample\(s\)"),
        (X[:1], ValueError, "X: wanted at least two points, got 1"),
        (X.reshape(2, 10, 2), ValueError, r"X: wanted shape \(n, d\)"),
        (X.astype(complex), ValueError, "X: wanted real numbers"),
    ):
        with pytest.raises(error, match=message):
            DiffusionMap(1).fit(bad)
    model = DiffusionMap(1).fit(X)
    with pytest.raises(ValueError, match="X: wanted 2 features as in fit, got 3"):
        model.transform(cloud(4, 3))
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
