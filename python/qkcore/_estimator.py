"""scikit-learn's estimator conventions, without depending on scikit-learn."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real

Self = TypeVar("Self", bound="Estimator")
T = TypeVar("T", bound="Transformer")


class NotFittedError(ValueError, AttributeError):
    """Raised by an estimator that is asked for results before :meth:`fit`."""


def _not_fitted() -> type[NotFittedError]:
    """The class to raise; if scikit-learn is loaded, a subclass of its own NotFittedError as well."""
    if "sklearn" not in sys.modules:
        return NotFittedError
    theirs: Any = importlib.import_module("sklearn.exceptions").NotFittedError
    both: type[NotFittedError] = type("NotFittedError", (NotFittedError, theirs), {})
    return both


class Estimator:
    """Base of estimators: parameters are the arguments of ``__init__``, kept as given, checked by ``fit``."""

    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters by name."""
        names = self._parameter_names()
        for name, value in params.items():
            if name not in names:
                raise ValueError(
                    f"{name}: {type(self).__name__} has no such parameter; "
                    f"it has {', '.join(names)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if isinstance(value, np.ndarray) or value is not defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this method, so it can be imported.
        from sklearn.utils import (  # type: ignore[import-untyped,unused-ignore]
            InputTags,
            Tags,
            TargetTags,
            TransformerTags,
        )

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(),
        )

    def _require_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise _not_fitted()(
                f"{type(self).__name__}: wanted a fitted estimator, got one that is not; "
                "call fit(X) first"
            )

    # ---- arguments ----------------------------------------------------------------------------------

    def _points(self, X: npt.ArrayLike, *, at_least: int = 1) -> Real:
        """Points (n, d), as floats; integers and numbers stored as objects are converted, as in scikit-learn.

        The messages also contain the phrases that scikit-learn's own checks look for.
        """
        if hasattr(X, "tocsr"):
            raise TypeError(
                f"X: wanted an array, got a sparse matrix: sparse input is not supported by "
                f"{type(self).__name__}; pass X.toarray()"
            )
        array = np.asarray(X)
        if array.dtype.kind == "c":
            raise ValueError(
                f"X: wanted real numbers, got {array.dtype}. Complex data not supported; pass X.real"
            )
        if array.dtype.kind in "iubO":
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"X: wanted numbers, got objects ({error}); every argument must be a string or a number, "
                    "and here a number"
                ) from None
        if array.ndim == 1:
            raise ValueError(
                f"X: wanted points of shape (n, d), got shape {array.shape}. Reshape your data: X[:, None] "
                "for points on a line, X[None, :] for one point"
            )
        if array.ndim == 2 and 0 in array.shape:
            what = "sample" if array.shape[0] == 0 else "feature"
            raise ValueError(
                f"X: wanted points, got 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required."
            )
        points, _ = _checks.points("X", array)
        _checks.shape("X", points.shape, ("n", "d"), do="reshape the points")
        _checks.some("X", len(points), at_least, "points")
        return points

    def _learn_features(self, X: object, points: Real) -> None:
        """Remembers the number of features, and their names if X has names."""
        self.n_features_in_ = points.shape[1]
        names = _feature_names(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _same_features(self, X: object, points: Real) -> None:
        """New points must have the features of those that were fitted, under the same names."""
        kind, known = type(self).__name__, getattr(self, "feature_names_in_", None)
        names = _feature_names(X)
        if names is None and known is not None:
            warnings.warn(
                f"X does not have valid feature names, but {kind} was fitted with feature names",
                stacklevel=4,
            )
        elif names is not None and known is None:
            warnings.warn(
                f"X has feature names, but {kind} was fitted without feature names", stacklevel=4
            )
        elif names is not None and known is not None and list(names) != list(known):
            unseen = [f"- {name}" for name in names if name not in known][:5]
            missing = [f"- {name}" for name in known if name not in names][:5]
            lines = ["The feature names should match those that were passed during fit."]
            lines += ["Feature names unseen at fit time:", *unseen] if unseen else []
            lines += (
                ["Feature names seen at fit time, yet now missing:", *missing] if missing else []
            )
            if not unseen and not missing:
                lines.append("Feature names must be in the same order as they were in fit.")
            raise ValueError("\n".join([*lines, ""]))
        if points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X: wanted {self.n_features_in_} features as in fit, got {points.shape[1]}; X has "
                f"{points.shape[1]} features, but {kind} is expecting {self.n_features_in_} features as input"
            )


class Transformer(Estimator):
    """An estimator whose coordinates can come as a data frame: scikit-learn's ``set_output``."""

    def set_output(self: T, *, transform: str | None = None) -> T:
        """Sets what ``transform`` and ``fit_transform`` return: "default" (arrays), "pandas" or "polars"."""
        if transform is not None:
            _checks.one_of("transform", transform, _CONTAINERS)
            self._sklearn_output_config = {"transform": transform}
        return self

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:
        """The names of the coordinates, for scikit-learn's pipelines."""
        raise NotImplementedError

    def _as_asked(self, coordinates: Any, X: object) -> Any:
        """Coordinates in the container of ``set_output``, or of scikit-learn's own setting."""
        wanted = getattr(self, "_sklearn_output_config", {}).get("transform")
        if wanted is None and "sklearn" in sys.modules:
            wanted = sys.modules["sklearn"].get_config().get("transform_output")
        if wanted in (None, "default"):
            return coordinates
        frames: Any = importlib.import_module(wanted)
        columns = list(self.get_feature_names_out())
        if wanted == "pandas":
            return frames.DataFrame(coordinates, columns=columns, index=getattr(X, "index", None))
        return frames.DataFrame(coordinates, schema=columns, orient="row")


_CONTAINERS = ("default", "pandas", "polars")


def _feature_names(X: object) -> npt.NDArray[np.object_] | None:
    """The names of a data frame's columns, if all are strings."""
    columns = getattr(X, "columns", None)
    if columns is None:
        return None
    names: npt.NDArray[np.object_] = np.asarray(list(columns), dtype=object)
    kinds = sorted({type(name).__name__ for name in names})
    if kinds == ["str"]:
        return names
    if "str" in kinds:
        raise TypeError(
            "Feature names are only supported if all input features have string names, but your input has "
            f"{kinds} as feature name / column name types. Convert them: X.columns = X.columns.astype(str)"
        )
    return None
