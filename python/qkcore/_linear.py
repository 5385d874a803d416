"""The base class of all operators: a linear map with products, sums and multiples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real, computed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LEFT", "RIGHT", "LinearMap", "OperatorSum"]

# The names in error messages for the operands of @, which are not arguments with names.
LEFT, RIGHT = "left operand of @", "right operand of @"


class LinearMap:
    """A real matrix (..., N, M) that is applied without being formed.

    ``np.asarray(A)`` computes the matrix. ``scipy.sparse.linalg.aslinearoperator(A)`` accepts the operator,
    so SciPy's eigensolvers and linear solvers accept it too. ``A + B``, ``A - B``, ``2 * A`` are linear maps
    again.
    """

    __slots__ = ()
    # With these, `array @ operator` calls __rmatmul__ below instead of the array library's own product.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of the data."""
        raise NotImplementedError

    @property
    def T(self) -> LinearMap:
        """The transposed matrix."""
        raise NotImplementedError

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product with V of shape (..., M, k) or (..., M)."""
        out: Real = self._applied("V", V, n_threads)
        return out

    def apply_left(self, U: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product from the left with U of shape (..., N) or (..., k, N)."""
        out: Real = self._applied_left("U", U, n_threads)
        return out

    def _applied(self, name: str, V: Any, n_threads: int | None = None) -> Any:
        """The product with V; ``name`` is the caller's name for it, for messages."""
        raise NotImplementedError

    def _applied_left(self, name: str, U: Any, n_threads: int | None = None) -> Any:
        """The product from the left with U; ``name`` is the caller's name for it, for messages."""
        raise NotImplementedError

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The matrix as an array (..., N, M)."""
        raise NotImplementedError

    def __matmul__(self, V: Any) -> Any:
        return self._applied(RIGHT, V)

    def __rmatmul__(self, U: npt.ArrayLike) -> Real:
        out: Real = self._applied_left(LEFT, U)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return computed("operator", self.to_numpy(), dtype, copy)

    def plot(self, *, axes: Sequence[Axes] | None = None) -> Figure:
        """Draws a heat map, and for a square operator of at most 1000 rows its spectrum; returns the figure.

        ``axes``: one existing axes for each picture. With more than 256 rows or columns, means of blocks are
        drawn.
        """
        from . import _plots

        return _plots.operator(self, axes)

    def _repr_html_(self) -> str:
        from . import _html

        return _html.operator(self)

    # ---- SciPy's names ------------------------------------------------------------------------------

    def matvec(self, x: npt.ArrayLike) -> Real:
        """``A @ x``, under SciPy's name."""
        out: Real = self._applied("x", x)
        return out

    def rmatvec(self, x: npt.ArrayLike) -> Real:
        """``A.T @ x``, under SciPy's name."""
        out: Real = self.T._applied("x", x)
        return out

    def matmat(self, X: npt.ArrayLike) -> Real:
        """``A @ X``, under SciPy's name."""
        out: Real = self._applied("X", X)
        return out

    def rmatmat(self, X: npt.ArrayLike) -> Real:
        """``A.T @ X``, under SciPy's name."""
        out: Real = self.T._applied("X", X)
        return out

    # ---- sums and multiples -------------------------------------------------------------------------

    def __add__(self, other: object) -> OperatorSum:
        """The sum of two operators; a product with it applies each of them and adds the results."""
        if not isinstance(other, LinearMap):
            return NotImplemented
        return OperatorSum((*_parts(self), *_parts(other)))

    def __sub__(self, other: object) -> OperatorSum:
        if not isinstance(other, LinearMap):
            return NotImplemented
        return self + (-1.0) * other

    def __mul__(self, factor: object) -> OperatorSum:
        """A number times the operator."""
        if isinstance(factor, LinearMap) or hasattr(factor, "shape"):
            return NotImplemented
        c = _checks.number("factor", factor)
        return OperatorSum(tuple([(c * a, A) for a, A in _parts(self)]))

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> OperatorSum:
        c = _checks.number("divisor", divisor)
        if c == 0:
            raise ZeroDivisionError("divisor: wanted a number other than 0, got 0")
        return self * (1 / c)

    def __neg__(self) -> OperatorSum:
        return self * -1.0


def _parts(A: LinearMap) -> tuple[tuple[float, LinearMap], ...]:
    return A.parts if isinstance(A, OperatorSum) else ((1.0, A),)


class OperatorSum(LinearMap):
    """A sum of multiples of operators: ``0.5 * A + 0.5 * B``.

    >>> import numpy as np, qkcore as qk
    >>> A = qk.softmax(qk.scores.dense(np.zeros((2, 2))))
    >>> B = qk.softmax(qk.scores.dense(np.log(np.array([[0.9, 0.1], [0.2, 0.8]]))))
    >>> (0.5 * A + 0.5 * B) @ np.array([0.0, 1.0])
    array([0.3 , 0.65])
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[tuple[float, LinearMap], ...]) -> None:
        first = parts[0][1]
        for _, A in parts[1:]:
            if A.shape[-2:] != first.shape[-2:]:
                raise ValueError(
                    f"A + B: wanted equal last two axes, got {first.shape} and {A.shape}"
                )
            if A.dtype != first.dtype:
                raise TypeError(
                    f"A + B: wanted operators of one dtype, got {first.dtype} and {A.dtype}; build one of "
                    "them from converted data"
                )
            _checks.broadcast("A + B", first.shape[:-2], A.shape[:-2])
        self.parts = parts
        """pairs of a number and an operator"""

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        batch = np.broadcast_shapes(*(A.shape[:-2] for _, A in self.parts))
        return (*batch, *self.parts[0][1].shape[-2:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of all terms."""
        return self.parts[0][1].dtype

    @property
    def T(self) -> OperatorSum:
        """The sum of the transposed operators."""
        return OperatorSum(tuple([(c, A.T) for c, A in self.parts]))

    def _applied(self, name: str, V: Any, n_threads: int | None = None) -> Any:
        return self._sum(lambda A: A._applied(name, V, n_threads))

    def _applied_left(self, name: str, U: Any, n_threads: int | None = None) -> Any:
        return self._sum(lambda A: A._applied_left(name, U, n_threads))

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The sum as an array."""
        return self._sum(lambda A: A.to_numpy(n_threads=n_threads))

    def _sum(self, of: Any) -> Real:
        total: Any = None
        for c, A in self.parts:
            term = of(A) * c
            total = term if total is None else total + term
        return np.asarray(total, self.dtype) if isinstance(total, np.ndarray) else total

    def __repr__(self) -> str:
        terms = " + ".join(f"{c:g} {type(A).__name__}" for c, A in self.parts)
        return f"OperatorSum(shape={self.shape}, dtype={self.dtype}, {terms})"
