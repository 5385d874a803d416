"""scikit-learn's estimator conventions, without depending on scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real

Self = TypeVar("Self", bound="Estimator")


class NotFittedError(ValueError, AttributeError):
    """Raised by an estimator that is asked for results before :meth:`fit`."""


class Estimator:
    """Parameters are the arguments of ``__init__``, kept as given and checked by ``fit``."""

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
        # Only scikit-learn asks, so it is there.
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
            raise NotFittedError(
                f"{type(self).__name__}: wanted a fitted estimator, got one that is not; "
                "call fit(X) first"
            )

    def _points(self, X: npt.ArrayLike, *, at_least: int = 1) -> Real:
        """Points (n, d), as floats; integers are converted, as scikit-learn does."""
        array = np.asarray(X)
        if array.dtype.kind in "iub":
            array = array.astype(np.float64)
        points, _ = _checks.points("X", array)
        if points.ndim != 2:
            raise ValueError(f"X: wanted shape (n, d), got {points.shape}; reshape the points")
        if len(points) < at_least:
            raise ValueError(f"X: wanted at least {at_least} points, got {len(points)}")
        return points
