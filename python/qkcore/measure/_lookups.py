"""Lookup kernels L(k, dv): from keys to values (MTA-1, definition 5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real

__all__ = ["FunctionLookup", "LinearLookup", "Lookup", "TableLookup"]

_BLOCK = 1024


class Lookup(ABC):
    """A deterministic lookup :math:`L(k, dv) = \\delta_{\\ell(k)}(dv)`."""

    lipschitz: float | None
    """:math:`K_\\ell`, the Lipschitz constant of l in l1; None if not known"""
    lipschitz_l2: float | None
    """the same in the Euclidean norm"""

    @abstractmethod
    def values(self, points: Real) -> Real:
        """The values l(k) of keys (n, d), as (n, d')."""

    def double(self) -> Lookup:
        """The same lookup with its arrays in float64."""
        return self

    @property
    def differentiable(self) -> bool:
        """Whether l has a derivative, which :meth:`push` and :meth:`pull` apply."""
        return type(self).push is not Lookup.push

    def push(self, points: Real, direction: Real) -> Real:
        """The derivative of l at the points, times a direction (n, d)."""
        raise self._no_derivative()

    def pull(self, points: Real, cotangent: Real) -> Real:
        """The transpose of :meth:`push`."""
        raise self._no_derivative()

    def _no_derivative(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no derivative; use LinearLookup or leave the lookup out"
        )


class LinearLookup(Lookup):
    """:math:`\\ell(k) = k M + b` with M (d, d') and b (d',); without both it is the identity.

    >>> import numpy as np
    >>> from qkcore.measure import LinearLookup
    >>> L = LinearLookup(np.array([[1.0, 2.0], [0.0, 4.0]]))
    >>> L.values(np.ones((1, 2))), L.lipschitz
    (array([[1., 6.]]), 4.0)
    """

    def __init__(self, M: npt.ArrayLike | None = None, b: npt.ArrayLike | None = None) -> None:
        self.M = None if M is None else _checks.real_array("M", M)
        self.b = None if b is None else _checks.real_array("b", b)
        if self.M is not None:
            _checks.shape("M", self.M.shape, ("d", "d'"))
            _checks.not_empty("M", self.M)
            _checks.finite("M", self.M)
        if self.b is not None:
            _checks.shape("b", self.b.shape, ("d'",))
            _checks.not_empty("b", self.b)
            _checks.finite("b", self.b)
        # |k M|_1 <= sum_i |k_i| sum_j |M_ij|
        self.lipschitz = 1.0 if self.M is None else float(np.abs(self.M).sum(axis=1).max())
        self.lipschitz_l2 = 1.0 if self.M is None else float(np.linalg.norm(self.M, 2))

    def values(self, points: Real) -> Real:
        """k M + b."""
        out = points
        if self.M is not None:
            _checks.same_dtype("M", self.M, points.dtype, "the keys")
            d = points.shape[1]
            _checks.shape("M", self.M.shape, (d, "d'"), why=f"for keys in R^{d}")
            out = points @ self.M
        if self.b is not None:
            _checks.same_dtype("b", self.b, points.dtype, "the keys")
            out = out + self.b
        return out

    def double(self) -> LinearLookup:
        """The same lookup with its arrays in float64."""
        M, b = (None if a is None else a.astype(np.float64) for a in (self.M, self.b))
        return LinearLookup(M, b)

    def push(self, points: Real, direction: Real) -> Real:
        """direction M."""
        return direction if self.M is None else direction @ self.M

    def pull(self, points: Real, cotangent: Real) -> Real:
        """cotangent M^T."""
        return cotangent if self.M is None else cotangent @ self.M.T

    def __repr__(self) -> str:
        return "LinearLookup(identity)" if self.M is None else f"LinearLookup({self.M.shape})"


class FunctionLookup(Lookup):
    """Any function of all keys at once, (n, d) to (n, d'), with its Lipschitz constants if known."""

    def __init__(
        self,
        function: Callable[[Real], npt.ArrayLike],
        *,
        lipschitz: float | None = None,
        lipschitz_l2: float | None = None,
    ) -> None:
        _checks.function("function", function)
        for name, value in (("lipschitz", lipschitz), ("lipschitz_l2", lipschitz_l2)):
            if value is not None:
                _checks.at_least(name, value, 0)
        self.function = function
        self.lipschitz = lipschitz
        self.lipschitz_l2 = lipschitz_l2

    def values(self, points: Real) -> Real:
        """The function of the keys."""
        out = np.asarray(self.function(points))
        _checks.shape(
            "function",
            out.shape,
            (len(points), "d'"),
            what="values",
            do="it takes all keys at once",
        )
        out = out.astype(points.dtype, copy=False)
        _checks.finite("function(keys)", out)
        return out


class TableLookup(Lookup):
    """The table :math:`L(k, dv) = \\sum_i 1_{k = k_i}\\delta_{v_i}(dv)` (definition 5).

    keys (n, d) and values (n, d'). A key that is not in the table, or that is there twice with
    different values, is an error.

    >>> import numpy as np
    >>> from qkcore.measure import TableLookup
    >>> L = TableLookup(np.array([[0.0], [1.0]]), np.array([[5.0], [7.0]]))
    >>> L.values(np.array([[1.0], [0.0]])).ravel()
    array([7., 5.])
    """

    def __init__(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        self.keys, _ = _checks.points("keys", keys)
        self.table, _ = _checks.points("values", values)
        _checks.same_dtype("values", self.table, self.keys.dtype, "the keys")
        _checks.shape("keys", self.keys.shape, ("n", "d"))
        _checks.shape(
            "values", self.table.shape, (len(self.keys), "d'"), why="with one row for each key"
        )
        self._rows: dict[bytes, int] = {}
        for i, key in enumerate(self.keys + 0.0):  # + 0.0 makes one key of -0.0 and 0.0
            first = self._rows.setdefault(key.tobytes(), i)
            if first != i and not np.array_equal(self.table[first], self.table[i]):
                raise ValueError(
                    f"keys: wanted one value for each key, got key {i} equal to key {first} with "
                    "another value; give equal keys equal values"
                )

    def double(self) -> TableLookup:
        """The same table with its arrays in float64."""
        return TableLookup(self.keys.astype(np.float64), self.table.astype(np.float64))

    @cached_property
    def lipschitz(self) -> float:  # type: ignore[override]  # computed on demand
        """The largest ratio of distances in the table, in l1."""
        return self._ratio("cityblock")

    @cached_property
    def lipschitz_l2(self) -> float:  # type: ignore[override]  # computed on demand
        """The same in the Euclidean norm."""
        return self._ratio("euclidean")

    @cached_property
    def diameter_l2(self) -> float:
        """The largest Euclidean distance of two values."""
        from scipy.spatial.distance import cdist

        table = self.table.astype(np.float64)
        blocks = range(0, len(table), _BLOCK)
        return max(float(cdist(table[i : i + _BLOCK], table).max()) for i in blocks)

    def _ratio(self, metric: Literal["cityblock", "euclidean"]) -> float:
        from scipy.spatial.distance import cdist

        best = 0.0
        for i in range(0, len(self.keys), _BLOCK):
            far = cdist(self.keys[i : i + _BLOCK], self.keys, metric)
            moved = cdist(self.table[i : i + _BLOCK], self.table, metric)
            apart = far > 0
            if apart.any():
                best = max(best, float((moved[apart] / far[apart]).max()))
        return best

    def values(self, points: Real) -> Real:
        """The rows of the table for these keys."""
        if points is self.keys:
            return self.table
        try:
            rows = [self._rows[key.tobytes()] for key in points.astype(self.keys.dtype) + 0.0]
        except KeyError:
            missing = next(
                i for i, key in enumerate(points + 0.0) if key.tobytes() not in self._rows
            )
            raise ValueError(
                f"keys: wanted keys of the table, got one that is not in it at index {missing}: "
                f"{points[missing].tolist()[:4]}; for values of other keys use a FunctionLookup"
            ) from None
        return self.table[rows]
