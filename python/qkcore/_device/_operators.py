"""Normalisations of device scores: the operators that products go through."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._arrays import Context
from ._missing import missing
from ._moments import expected_rows
from ._scores import SOFTMAX, DeviceScores

__all__ = ["DeviceKernelOperator", "DeviceMarkovOperator", "bistochastic", "uniform"]

WEIGHTS = ("softmax", "exp", "linear", "relu", "sigmoid")  # as in qk_cuda/api.hpp
EXP = WEIGHTS.index("exp")


class _Operator:
    """A matrix w(s_ij) that is applied on the device, never formed."""

    __slots__ = ("_scores",)
    # So that `array @ operator` comes to us and not to the library's own product.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    _scores: DeviceScores

    @property
    def scores(self) -> DeviceScores:
        """The scores that the operator is made from."""
        return self._scores

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return self._scores.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64: that of the results."""
        return self._scores.dtype

    @property
    def device(self) -> str:
        """The device that computes, e.g. "cuda:0"."""
        return self._scores.device

    @property
    def T(self) -> _Operator:
        raise NotImplementedError

    def apply(self, V: Any, *, out: Any = None, stream: Any = None) -> Any:
        """The product with the device array V of shape (..., M, k) or (..., M).

        ``out``: an array to write to. ``stream``: where to compute (an integer handle, or a stream
        object of CuPy, PyTorch or CUDA Python); by default where the caller's library works now.
        """
        s, c = self._scores, self._scores._context
        values, vector = _right_hand_side("V", V, s, s._n_cols, at=-2)
        core = (s._n_rows,) if vector else (s._n_rows, values.shape[-1])
        target = c.output("out", out, (*s._batch, *core), str(s.dtype))
        at = c.stream(stream)
        product = self._product(values, _as_matrix(c, "out", target, vector, at), at)
        if target is not None:
            return c.give(None, target, at)
        return c.give(product.squeeze() if vector else product, None, at)

    def apply_left(self, U: Any, *, stream: Any = None) -> Any:
        """The product from the left with the device array U of shape (..., N) or (..., k, N)."""
        s, c = self._scores, self._scores._context
        values, vector = _right_hand_side("U", U, s, s._n_rows, at=-1)
        at = c.stream(stream)
        product = self.T._product(values, None, at)
        if vector:
            return c.give(product.squeeze(), None, at)
        return c.library.transpose(c.give(product, None, at))

    def __matmul__(self, V: Any) -> Any:
        return self.apply(V)

    def __rmatmul__(self, U: Any) -> Any:
        return self.apply_left(U)

    def _product(self, values: Any, out: Any, stream: int) -> Any:
        raise NotImplementedError


class DeviceMarkovOperator(_Operator):
    """A row- or column-stochastic matrix on the device; see :class:`qkcore.MarkovOperator`."""

    __slots__ = ("_normalizer_cell", "axis", "bridge")

    def __init__(self, scores: DeviceScores, axis: int, *, bridge: Any = None) -> None:
        self._scores = scores
        self.axis = axis
        self.bridge = bridge
        """of :func:`qkcore.sinkhorn`, the solver's result: the scores are log weights already; else None"""
        self._normalizer_cell: list[Any] = []

    @property
    def bistochastic(self) -> bool:
        """Whether rows and columns sum to 1, as :func:`qkcore.sinkhorn` makes them."""
        return self.bridge is not None

    @property
    def T(self) -> DeviceMarkovOperator:
        """The transposed operator: column-stochastic if this one is row-stochastic."""
        out = DeviceMarkovOperator(self._scores.T, 1 - self.axis, bridge=self.bridge)
        out._normalizer_cell = self._normalizer_cell  # computed once, by whoever asks first
        return out

    def _normalizer(self, stream: int) -> Any:
        if not self._normalizer_cell:
            by_rows = self._scores if self.axis == 1 else self._scores.T
            self._normalizer_cell.append(by_rows._reduce(SOFTMAX, None, True, stream=stream)[0])
        return self._normalizer_cell[0]

    @property
    def log_normalizer(self) -> Any:
        """Log-sum-exp of each row (axis 1) or column (axis 0), a device array; computed once."""
        c = self._scores._context
        return c.give(self._normalizer(c.stream()))

    def _shifted(self, stream: int) -> DeviceScores:
        """Scores minus the normaliser, whose exp is the operator itself."""
        s = self._scores
        if self.bridge is not None:
            return s
        shift = s._context.module.map_vector(
            "minus_or_zero", self._normalizer(stream), stream=stream
        )
        if self.axis == 1:
            return s._with(row_bias=(*s._row_bias, shift))
        return s._with(col_bias=(*s._col_bias, shift))

    @property
    def log_weights(self) -> DeviceScores:
        """The logarithm of the operator, lazily; -inf where masked."""
        return self._shifted(self._scores._context.stream())

    def _product(self, values: Any, out: Any, stream: int) -> Any:
        if self.axis == 1 and self.bridge is None:  # the normaliser falls out of the same pass
            lse, product = self._scores._reduce(SOFTMAX, values, True, out=out, stream=stream)
            if not self._normalizer_cell:
                self._normalizer_cell.append(lse)
            return product
        return self._shifted(stream)._reduce(EXP, values, False, out=out, stream=stream)[1]

    def entropy(self, *, stream: Any = None) -> Any:
        """:math:`-\\sum_j p_{ij}\\log p_{ij}` of each row (axis 1) or column (axis 0), on the device."""
        return self._moment(stream, of_scores=False)

    def expected_score(self, *, stream: Any = None) -> Any:
        """:math:`\\sum_j p_{ij} s_{ij}` of each row (axis 1) or column (axis 0); 0 if empty."""
        return self._moment(stream, of_scores=True)

    def _moment(self, stream: Any, *, of_scores: bool) -> Any:
        c = self._scores._context
        at = c.stream(stream)
        log_weights = self._shifted(at)
        values = self._scores if of_scores else log_weights
        if self.axis == 0:
            log_weights, values = log_weights.T, values.T
        out = expected_rows(log_weights, values, at)
        if not of_scores:
            c.module.map_vector("affine", out, a=-1.0, out=out, stream=at)
        return c.give(out, None, at)

    def to_device(self, *, out: Any = None, stream: Any = None) -> Any:
        """The operator as a device array (..., N, M)."""
        return self._shifted(self._scores._context.stream(stream))._materialize(False, out, stream)

    def to_numpy(self) -> npt.NDArray[Any]:
        """The operator as a NumPy array: computed on the device and copied to the host."""
        c = self._scores._context
        at = c.stream()
        return c.download(c.module.materialize(self._shifted(at)._spec, False, stream=at))

    def __getattr__(self, name: str) -> NoReturn:
        from ..operators import MarkovOperator

        missing(self, name, MarkovOperator)

    def __repr__(self) -> str:
        side = "bi" if self.bridge is not None else "row-" if self.axis == 1 else "column-"
        return (
            f"DeviceMarkovOperator(shape={self.shape}, dtype={self.dtype}, {side}stochastic, "
            f"device={self.device!r})"
        )


def uniform(s: DeviceScores) -> Any:
    """The uniform law on the rows of square scores."""
    return s._context.fill(1 / s.shape[0], s.shape[0], str(s.dtype))


def bistochastic(s: DeviceScores, found: Any) -> DeviceMarkovOperator:
    """The operator of a solved bridge between uniform laws, N times its coupling."""
    c = s._context
    f, g = c.take("f", found.f), c.take("g", found.g)
    rows = c.module.map_vector("affine", f, c=math.log(s.shape[0]), stream=c.stream())
    shifted = s._with(row_bias=(*s._row_bias, rows), col_bias=(*s._col_bias, g))
    return DeviceMarkovOperator(shifted, 1, bridge=found)


class DeviceKernelOperator(_Operator):
    """K_ij = w(s_ij) on the device, not normalised; see :class:`qkcore.KernelOperator`."""

    __slots__ = ("weight",)

    def __init__(self, scores: DeviceScores, weight: str) -> None:
        self._scores = scores
        self.weight = weight

    @property
    def T(self) -> DeviceKernelOperator:
        """The transposed operator."""
        return DeviceKernelOperator(self._scores.T, self.weight)

    def _product(self, values: Any, out: Any, stream: int) -> Any:
        code = WEIGHTS.index(self.weight)
        return self._scores._reduce(code, values, False, out=out, stream=stream)[1]

    def __getattr__(self, name: str) -> NoReturn:
        from ..operators import KernelOperator

        missing(self, name, KernelOperator)

    def __repr__(self) -> str:
        return (
            f"DeviceKernelOperator(shape={self.shape}, dtype={self.dtype}, weight={self.weight!r}, "
            f"device={self.device!r})"
        )


def _as_matrix(c: Context, name: str, target: Any, vector: bool, stream: int) -> Any:
    """The output (..., n) of one right-hand side as (..., n, 1)."""
    if target is None:
        return None
    array = c.module.asarray(target, name, stream)
    return array.expand() if vector else array


def _right_hand_side(
    name: str, value: Any, s: DeviceScores, length: int, *, at: int
) -> tuple[Any, bool]:
    """The right-hand sides as (..., length, k), and whether they were one vector."""
    c = s._context
    array = c.take(name, value, dtype=s._inputs, like="the scores")
    n_batch = len(s._batch)
    vector = array.ndim in (1, n_batch + 1)
    if not vector and array.ndim != n_batch + 2:
        wanted = f"(..., {length}, k)" if at == -2 else f"(..., k, {length})"
        raise ValueError(
            f"{name}: wanted shape (..., {length}) or {wanted} for an operator of shape {s.shape}, got "
            f"{array.shape}; give it the operator's batch axes (length 1 broadcasts)"
        )
    matrix = array.expand() if vector else array.T if at == -1 else array
    if matrix.shape[-2] != length:
        side = "columns" if at == -2 else "rows"
        raise ValueError(
            f"{name}: wanted length {length} along the operator's {side} (operator shape {s.shape}), got "
            f"{array.shape}; " + ("did you mean U @ A?" if at == -2 else "did you mean A @ V?")
        )
    _checks.into_batch(name, array.shape, matrix.shape[:-2], s._batch)
    c.finite(name, c.figures((name, array, None))[0])
    return matrix, vector
