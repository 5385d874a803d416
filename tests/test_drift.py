"""Drift estimation (EOT-6): robust local regression, ridge with cross-validation, scikit-learn's rules."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import qkcore as qk
from qkcore.diagnostics import _drift_network, drift, score
from qkcore.diagnostics.drift import HUBER, KNNDrift, MLPDrift, RidgeDrift, huber_loss, transitions
from tests import reference_simplex as ref


def test_transitions() -> None:
    """EOT-6: pairs (p, L dz) of all layers and rows."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 2, 3, 5))
    X, y = transitions(z, tau=0.5)
    assert X.shape == (18, 6) and y.shape == (18, 5)
    np.testing.assert_allclose(X[7, :5], ref.softmax(z[1, 0, 1], 0.5))
    assert X[7, 5] == pytest.approx(1 / 3)
    step = 3 * (z[2, 0, 1] - z[1, 0, 1])
    np.testing.assert_allclose(y[7], step - step.mean())
    L, _ = transitions(z, state="logits", with_time=False)
    np.testing.assert_allclose(ref.softmax(L), ref.softmax(z[:-1].reshape(-1, 5)))


# ---- k nearest neighbours -----------------------------------------------------------------------


def neighbours(X: ref.Array, x: ref.Array, k: int) -> Any:
    return np.argsort(((X - x) ** 2).sum(axis=1), kind="stable")[:k]


@pytest.mark.parametrize("degree", [0, 1])
def test_least_squares_by_brute_force(degree: int) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=(60, 3))
    Q = rng.normal(size=(5, 2))
    model = KNNDrift(n_neighbors=11, degree=degree, huber=None).fit(X, y)
    for q, got in zip(Q, model.predict(Q), strict=True):
        near = neighbours(X, q, 11)
        if degree == 0:
            want = y[near].mean(axis=0)
        else:
            A = np.column_stack([np.ones(11), X[near] - q])
            want = np.linalg.lstsq(A, y[near], rcond=None)[0][0]
        np.testing.assert_allclose(got, want, atol=1e-7)


@pytest.mark.parametrize("degree", [0, 1])
def test_huber_fit_is_stationary(degree: int) -> None:
    """EOT-6: the reweighted fit minimises Huber's loss at its own delta = 1.345 median residual."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 1))
    y = 2 * X + rng.standard_t(1.5, size=(40, 1))
    q = np.array([[0.1]])
    model = KNNDrift(n_neighbors=40, degree=degree, n_reweight=2000).fit(X, y)
    A = np.column_stack([np.ones(40), *([X - q] if degree else [])])
    delta = [1.0]

    def loss(c: Any) -> float:
        return float(huber_loss(y[:, 0] - A @ c, delta[0]).sum())

    c = np.linalg.lstsq(A, y[:, 0], rcond=None)[0]
    for _ in range(60):  # delta and the fit, in turns
        delta[0] = HUBER * float(np.median(np.abs(y[:, 0] - A @ c)))
        c = minimize(loss, c, method="BFGS", options={"gtol": 1e-9}).x
    assert model.predict(q)[0, 0] == pytest.approx(c[0], abs=1e-4)


def test_outliers_do_not_move_it() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, size=(400, 2))
    truth = X @ np.array([[1.0, -2.0], [0.5, 3.0]])
    y = truth + 0.01 * rng.normal(size=truth.shape)
    y[rng.choice(400, 60, replace=False)] += 50
    errors = {}
    for huber in (HUBER, None):
        model = KNNDrift(n_neighbors=30, degree=1, huber=huber).fit(X, y)
        errors[huber] = np.abs(model.predict(0.5 * X[:50]) - 0.5 * truth[:50]).max()
    assert errors[HUBER] < 0.2 and errors[None] > 5


def test_an_exact_majority_decides() -> None:
    """More than half of the residuals 0: delta is 0, and the others have no say."""
    X = np.linspace(0, 1, 9)[:, None]
    y = np.ones(9)
    y[[1, 4]] = 100.0
    assert KNNDrift(n_neighbors=9, degree=0).fit(X, y).predict(X[:1])[0] == pytest.approx(
        1.0, abs=1e-9
    )


def test_k_by_leave_one_out() -> None:
    """EOT-6: the errors are those of refitting without each point; noise wants many, curvature few."""
    rng = np.random.default_rng(4)
    X = rng.uniform(size=(40, 1))
    y = np.sin(8 * X[:, 0]) + 0.1 * rng.normal(size=40)
    model = KNNDrift(candidates=(2, 5, 12), degree=0).fit(X, y)
    errors = np.array(
        [
            [
                abs(
                    float(
                        KNNDrift(k, degree=0)
                        .fit(np.delete(X, i, 0), np.delete(y, i))
                        .predict(X[i : i + 1])[0]
                    )
                    - y[i]
                )
                for i in range(40)
            ]
            for k in (2, 5, 12)
        ]
    )
    delta = HUBER * np.median(errors, axis=1).min()
    np.testing.assert_allclose(model.loo_errors_, huber_loss(errors, delta).mean(axis=1), rtol=1e-9)
    assert model.n_neighbors_ == (2, 5, 12)[int(model.loo_errors_.argmin())]
    noise = KNNDrift(candidates=(2, 30), degree=0).fit(X, rng.normal(size=40))
    bend = KNNDrift(candidates=(2, 30), degree=0).fit(X, np.sin(25 * X[:, 0]))
    assert (bend.n_neighbors_, noise.n_neighbors_) == (2, 30)


def test_leaving_out_some_states_only() -> None:
    rng = np.random.default_rng(12)
    X, y = rng.normal(size=(50, 1)), rng.normal(size=50)
    few = KNNDrift(candidates=(4, 8), degree=0, n_loo=10, huber=None).fit(X, y)
    at = np.linspace(0, 49, 10).astype(int)
    for k, error in zip((4, 8), few.loo_errors_, strict=True):
        model = KNNDrift(k, degree=0, huber=None)
        left = [
            float(model.fit(np.delete(X, i, 0), np.delete(y, i)).predict(X[[i]])[0]) - y[i]
            for i in at
        ]
        assert error == pytest.approx(np.mean(np.square(left)) / 2)


def test_repeated_states() -> None:
    X = np.repeat(np.arange(4.0), 10)[:, None]
    model = KNNDrift(candidates=(3, 6)).fit(X, X[:, 0])
    assert np.isfinite(model.loo_errors_).all()
    np.testing.assert_allclose(model.predict(X[::10]), np.arange(4.0), atol=1e-9)


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(5).normal(size=(50, 3))
    want = KNNDrift(7).fit(X, X).predict(X)
    monkeypatch.setattr(drift, "_CHUNK", 40)
    np.testing.assert_allclose(KNNDrift(7).fit(X, X).predict(X), want, atol=1e-9)


# ---- ridge --------------------------------------------------------------------------------------


def test_ridge_normal_equations_and_folds() -> None:
    """EOT-6: 5-fold cross-validation over {1e-4, 1e-3, 1e-2} by hand."""
    rng = np.random.default_rng(6)
    X, w = rng.normal(size=(30, 4)), rng.normal(size=(4, 2))
    y = X @ w + 0.3 * rng.normal(size=(30, 2)) + 1.0
    model = RidgeDrift().fit(X, y)
    assert model.alphas == (1e-4, 1e-3, 1e-2) and model.n_folds == 5

    def solve(A: ref.Array, b: ref.Array, alpha: float) -> tuple[ref.Array, ref.Array]:
        mean = A.mean(axis=0)
        C = A - mean
        v = np.linalg.solve(C.T @ C + alpha * np.eye(4), C.T @ (b - b.mean(axis=0)))
        return v, b.mean(axis=0) - mean @ v

    order = np.random.default_rng(0).permutation(30)
    errors = []
    for alpha in model.alphas:
        total = 0.0
        for held in np.array_split(order, 5):
            kept = np.setdiff1d(np.arange(30), held)
            v, c = solve(X[kept], y[kept], alpha)
            total += ((X[held] @ v + c - y[held]) ** 2).sum()
        errors.append(total / 60)
    np.testing.assert_allclose(model.cv_errors_, errors, rtol=1e-9)
    assert model.alpha_ == model.alphas[int(np.argmin(errors))]
    v, c = solve(X, y, model.alpha_)
    np.testing.assert_allclose(model.coef_, v, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, c, atol=1e-10)


def test_more_features_than_states_and_own_features() -> None:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(10, 30))
    assert np.abs(RidgeDrift().fit(X, X[:, 0]).predict(X) - X[:, 0]).max() < 1e-2
    X = rng.normal(size=(50, 1))
    model = RidgeDrift(features=lambda x: np.column_stack([x, x**2])).fit(X, X[:, 0] ** 2)
    np.testing.assert_allclose(model.predict(X), X[:, 0] ** 2, atol=1e-3)


@pytest.mark.peers
def test_ridge_is_scikit_learns() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(8)
    X, y = rng.normal(size=(40, 5)), rng.normal(size=(40, 2))
    want = linear.Ridge(alpha=0.01, solver="svd").fit(X, y)
    got = RidgeDrift(alphas=(0.01,)).fit(X, y)
    np.testing.assert_allclose(got.predict(X), want.predict(X), atol=1e-12)
    assert got.score(X, y) == pytest.approx(want.score(X, y))


# ---- as drifts of a flow ------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: KNNDrift(candidates=(8, 16)), RidgeDrift])
def test_fitted_drifts_carry_a_flow(make: Callable[[], Any]) -> None:
    """EOT-6 into EOT-5: layers of b = A p are learned from transitions and integrated."""
    rng = np.random.default_rng(9)
    A = rng.normal(size=(3, 3))
    z = [rng.normal(size=(200, 3))]
    for _ in range(20):
        z.append(z[-1] + ref.softmax(z[-1]) @ A.T / 20)
    X, y = transitions(np.stack(z), with_time=False)
    model = make().fit(X, y)
    sol = qk.simplex.pf_ode(ref.softmax(z[0][:5]), model, (0, 1), rtol=1e-3, atol=1e-5)
    assert sol.success
    assert np.abs(sol.p[-1] - ref.softmax(z[-1][:5])).max() < 0.02


# ---- manners ------------------------------------------------------------------------------------

OTHER_WORDS = {
    "check_complex_data": "complex input is refused, in other words",
    "check_dtype_object": "arrays of objects are refused with the conversion to make",
    "check_estimators_empty_data_messages": "empty input is refused, in other words",
    "check_estimator_sparse_tag": "sparse input is refused, in other words",
    "check_estimator_sparse_array": "sparse input is refused, in other words",
    "check_estimator_sparse_matrix": "sparse input is refused, in other words",
    "check_fit2d_predict1d": "one-dimensional input is refused, in other words",
    "check_estimators_unfitted": "the error is qkcore's own NotFittedError",
    "check_supervised_y_2d": "a column of targets gives a column, without their warning",
}


@pytest.mark.peers
@pytest.mark.parametrize("model", [KNNDrift(n_neighbors=5), RidgeDrift()], ids=repr)
def test_scikit_learn_estimator_checks(model: Any) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # warnings about skipped checks, and of scikit-learn about itself
        results = checks.check_estimator(
            model, expected_failed_checks=OTHER_WORDS, on_fail=None, on_skip=None
        )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) >= 30


def test_dtypes_and_shapes() -> None:
    X = np.random.default_rng(10).normal(size=(30, 2)).astype(np.float32)
    for model in (KNNDrift(5), RidgeDrift()):
        assert model.fit(X, X[:, 0]).predict(X).dtype == np.float32
        assert model.fit(X, X[:, 0]).predict(X[::2]).shape == (15,)
        assert model.fit(X, X[:, :1]).predict(X).shape == (30, 1)


X2 = np.zeros((4, 2))
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: KNNDrift(5).predict(X2), ValueError, r"KNNDrift: wanted a fitted estimator"),
    (lambda: KNNDrift(5).fit(X2, np.zeros(3)), ValueError, r"y: wanted shape \(4,\) or \(4, m\)"),
    (lambda: KNNDrift(5).fit(X2, np.full(4, np.nan)), ValueError, r"y: wanted finite"),
    (lambda: KNNDrift(5).fit(X2 + np.nan, np.zeros(4)), ValueError, r"X: .*NaN"),
    (lambda: KNNDrift(0).fit(X2, np.zeros(4)), ValueError, r"n_neighbors: wanted"),
    (
        lambda: KNNDrift(candidates=()).fit(X2, np.zeros(4)),
        ValueError,
        r"candidates: wanted at least one",
    ),
    (
        lambda: KNNDrift(degree=2).fit(X2, np.zeros(4)),
        ValueError,
        r"degree: wanted one of 0, 1, None",
    ),
    (lambda: KNNDrift(n_loo=0).fit(X2, np.zeros(4)), ValueError, r"n_loo: wanted"),
    (lambda: KNNDrift(huber=-1).fit(X2, np.zeros(4)), ValueError, r"huber: wanted"),
    (
        lambda: KNNDrift(2).fit(X2, np.zeros(4)).predict(np.zeros((2, 3))),
        ValueError,
        r"X: wanted 2 features",
    ),
    (lambda: RidgeDrift(alphas=(0.0,)).fit(X2, np.zeros(4)), ValueError, r"alphas: wanted"),
    (
        lambda: RidgeDrift(alphas=()).fit(X2, np.zeros(4)),
        ValueError,
        r"alphas: wanted at least one",
    ),
    (lambda: RidgeDrift(n_folds=1).fit(X2, np.zeros(4)), ValueError, r"n_folds: wanted"),
    (
        lambda: RidgeDrift(features=lambda x: x[:1]).fit(X2, np.zeros(4)),
        ValueError,
        r"features: wanted",
    ),
    (lambda: transitions(np.zeros((1, 3))), ValueError, r"logits: wanted at least two layers"),
    (
        lambda: transitions(np.zeros((3, 3)), state="z"),
        ValueError,
        r"state: wanted 'p' or 'logits'",
    ),
    (lambda: transitions(np.array([[0, -np.inf]] * 3)), ValueError, r"logits: wanted finite"),
]


needs_jax = pytest.mark.skipif(not score.available(), reason="JAX and optax are not installed")


@needs_jax
def test_a_network_bends_where_a_ridge_cannot() -> None:
    """EOT-6, H.1: a curved drift on states that were not fitted; the same seed, the same bits."""
    rng = np.random.default_rng(0)

    def curved(x: ref.Array) -> ref.Array:
        return np.stack([np.sin(2 * x[:, 0]), x[:, 1] ** 2, x[:, 2]], axis=1)

    X, new = rng.normal(size=(300, 3)), rng.normal(size=(100, 3))
    model = MLPDrift(width=64, n_steps=300).fit(X, curved(X))
    assert (
        model.score(new, curved(new))
        > 0.9
        > 0.6
        > RidgeDrift().fit(X, curved(X)).score(new, curved(new))
    )
    again = MLPDrift(width=64, n_steps=300).fit(X, curved(X))
    np.testing.assert_array_equal(model.predict(new), again.predict(new))
    flat = MLPDrift(width=8, n_steps=5).fit(X, X @ np.array([1.0, -2.0, 0.5]))
    assert flat.predict(new).shape == (100,)
    np.testing.assert_allclose(flat.predict(new), new @ np.array([1.0, -2.0, 0.5]), atol=1e-2)


def test_a_network_without_jax_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    _drift_network._program.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'qkcore\[train\]'"):
        MLPDrift(width=8).fit(X2, np.zeros(4))
    with pytest.raises(ValueError, match="depth: wanted"):
        MLPDrift(depth=0).fit(X2, np.zeros(4))


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()
