"""Estimators with scikit-learn: its checks, names of features, containers, pipelines, copies."""

from __future__ import annotations

import pickle
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import eye_array

from qkcore import diffusion, magnetic
from qkcore._estimator import Estimator, NotFittedError
from qkcore.diagnostics.drift import KNNDrift, MLPDrift, RidgeDrift

ESTIMATORS = {
    "DiffusionMap": lambda: diffusion.DiffusionMap(1),
    "self-tuning": lambda: diffusion.DiffusionMap(1, bandwidth="self-tuning"),
    "variable": lambda: diffusion.DiffusionMap(1, bandwidth="variable"),
    "neighbors": lambda: diffusion.DiffusionMap(1, neighbors=10),
    "MagneticMap": lambda: magnetic.MagneticMap(1),
    "KNNDrift": lambda: KNNDrift(n_neighbors=3),
    "RidgeDrift": lambda: RidgeDrift(),
    "MLPDrift": lambda: MLPDrift(width=4, n_steps=3),
}
# Checks of scikit-learn that an estimator cannot pass.
DECLARED = {"MagneticMap": {"check_transformer_preserve_dtypes": "its coordinates are complex"}}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_checks_of_scikit_learn(name: str) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if name == "MLPDrift":
        pytest.importorskip("jax")
    declared = DECLARED.get(name, {})
    with warnings.catch_warnings():
        # Warnings about data of the checks that have separate clusters.
        warnings.simplefilter("ignore")
        found = checks.check_estimator(
            ESTIMATORS[name](), expected_failed_checks=declared, on_fail=None, on_skip=None
        )
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(declared)
    assert sum(one["status"] == "passed" for one in found) > 40


def test_all_estimators_are_checked() -> None:
    def below(cls: type) -> set[type]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    public = {cls.__name__ for cls in below(Estimator) if not cls.__name__.startswith("_")}
    assert public - {"Estimator", "Transformer", "Regressor"} <= {
        type(e()).__name__ for e in ESTIMATORS.values()
    }


def test_an_estimator_that_is_not_fitted() -> None:
    exceptions = pytest.importorskip("sklearn.exceptions")
    for error in (NotFittedError, exceptions.NotFittedError, ValueError, AttributeError):
        with pytest.raises(error, match="KNNDrift: wanted a fitted estimator"):
            KNNDrift().predict(np.zeros((1, 2)))


class Frame:
    """As much of a data frame as is looked at."""

    def __init__(self, values: Any, columns: list[Any]) -> None:
        self.values, self.columns = values, columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.values, dtype)


def test_names_of_features() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = diffusion.DiffusionMap(1, beta=1.0).fit(Frame(X, ["a", "b"]))
    assert model.feature_names_in_.tolist() == ["a", "b"] and model.n_features_in_ == 2
    np.testing.assert_allclose(model.transform(Frame(X, ["a", "b"])), model.embedding_, atol=1e-10)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but DiffusionMap"):
        model.transform(X)
    with pytest.raises(
        ValueError, match=r"(?s)should match.*unseen at fit time:\n- c\n.*missing:\n- b"
    ):
        model.transform(Frame(X, ["a", "c"]))
    with pytest.raises(ValueError, match="must be in the same order"):
        model.transform(Frame(X, ["b", "a"]))
    with pytest.raises(TypeError, match="all input features have string names"):
        model.fit(Frame(X, ["a", 1]))
    model.fit(X)
    assert not hasattr(model, "feature_names_in_")
    with pytest.warns(
        UserWarning, match="X has feature names, but DiffusionMap was fitted without"
    ):
        model.transform(Frame(X, ["a", "b"]))


def test_points_of_another_dtype() -> None:
    """Fitted in single precision, asked in double: an answer in that of the fit."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = diffusion.DiffusionMap(1, beta=1.0).fit(X.astype(np.float32))
    found = model.transform(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.embedding_, atol=1e-4)
    with pytest.raises(TypeError, match="sparse input is not supported by DiffusionMap"):
        model.fit(eye_array(5).tocsr())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Reshape your data"):
        model.transform(X[0])


def test_containers_get_names_and_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the least that a data frame's library has."""
    frames = SimpleNamespace(DataFrame=lambda values, **options: (values, options))
    monkeypatch.setitem(sys.modules, "pandas", frames)  # type: ignore[arg-type]
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = diffusion.DiffusionMap(2, beta=1.0).set_output(transform="pandas")
    found: Any = model.fit_transform(X)
    np.testing.assert_array_equal(found[0], model.embedding_)
    assert found[1] == {"columns": ["diffusionmap0", "diffusionmap1"], "index": None}


def test_data_frames_out() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    X.index = X.index + 100
    model = diffusion.DiffusionMap(2, beta=1.0).set_output(transform="pandas")
    found = model.fit_transform(X)
    assert list(found.columns) == ["diffusionmap0", "diffusionmap1"]
    assert (found.index == X.index).all()
    np.testing.assert_array_equal(found.to_numpy(), model.embedding_)
    assert isinstance(model.set_output(transform="default").transform(X), np.ndarray)


def test_containers_that_are_refused() -> None:
    with pytest.raises(ValueError, match="transform: wanted one of 'default', 'pandas', 'polars'"):
        diffusion.DiffusionMap().set_output(transform="csv")


def test_pipelines_and_copies() -> None:
    base = pytest.importorskip("sklearn.base")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    X = np.random.default_rng(0).normal(size=(30, 2))
    chain = pipeline.make_pipeline(
        preprocessing.StandardScaler(), diffusion.DiffusionMap(2, beta=0.5)
    )
    found = chain.fit_transform(X)
    np.testing.assert_allclose(chain.transform(X), found, atol=1e-10)
    assert chain.get_feature_names_out().tolist() == ["diffusionmap0", "diffusionmap1"]
    copy = base.clone(chain)
    np.testing.assert_array_equal(copy.fit_transform(X), found)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(chain)).transform(X), chain.transform(X)
    )
