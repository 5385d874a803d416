"""What the regressors of drifts share: checks, R², scikit-learn's tags."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._estimator import Estimator

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]


class Regressor(Estimator):
    """A regressor of one or several targets; ``fit`` and ``predict`` are its own."""

    _flat: bool

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Any:
        raise NotImplementedError

    def predict(self, X: npt.ArrayLike) -> Real:
        raise NotImplementedError

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """The coefficient of determination, R², mean over outputs."""
        target = np.asarray(y, dtype=np.float64)
        residual = ((target - self.predict(X)) ** 2).sum(axis=0)
        total = ((target - target.mean(axis=0)) ** 2).sum(axis=0)
        return float(np.mean(1 - residual / np.where(total > 0, total, 1.0)))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import (  # type: ignore[import-untyped,unused-ignore]
            InputTags,
            RegressorTags,
            Tags,
            TargetTags,
        )

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(),
        )

    def _data(self, X: npt.ArrayLike, y: npt.ArrayLike | None) -> tuple[Real, Double]:
        points = self._points(X)
        _checks.some("X", len(points), 2, "states", "1 sample fits no transition: fit more")
        if y is None:
            raise ValueError(
                "y: wanted targets, got None; it requires y to be passed, but the target y is None"
            )
        target = np.asarray(y)
        if target.dtype.kind not in "fiubO":
            raise TypeError(f"y: wanted numbers, got {target.dtype}; pass y.astype(np.float64)")
        try:
            target = target.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"y: wanted numbers, got objects ({error}). Unknown label type"
            ) from None
        _checks.shape(
            "y",
            target.shape,
            (len(points),),
            (len(points), "m"),
            why="for these X",
            do="one row per state",
        )
        _checks.finite("y", target)
        self._learn_features(X, points)
        self._flat = target.ndim == 1
        return points, target.reshape(len(points), -1)

    def _queries(self, X: npt.ArrayLike) -> Real:
        self._require_fitted("n_features_in_")
        points = self._points(X)
        self._same_features(X, points)
        return points

    def _shaped(self, out: Double, like: Real) -> Real:
        result = out.astype(like.dtype)
        return result[:, 0] if self._flat else result
