"""NumPy arrays and the C++ engine, as the backend of scores and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._config import get_num_threads, resolve_threads
from ._host_factors import HostFactors
from ._host_flows import HostFlows
from ._native import cpu
from ._rounding import PLAIN

if TYPE_CHECKING:
    from ._lazy_scores import Scores
    from ._terms import Terms

__all__ = ["HOST", "WEIGHTS"]

Real = npt.NDArray[np.floating[Any]]

WEIGHTS = {name: code for code, name in enumerate(cpu.WEIGHTS)}
# Up to this many dimensions squared distances are summed from differences, which is exact for equal
# points; above, from |x|^2 - 2<x,y> + |y|^2 on centred data, at the speed of a matrix product and
# with an error of a few eps * beta * (|x|^2 + |y|^2).
DIRECT_DISTANCE_MAX_DIM = 16
_MINUS_INF = 4  # of cpu.scan's flags


class _Normalizer:
    """The log-sum-exp of every row, its maximum, and the log of the sum relative to the maximum.

    The last two are 0 where everything is masked. They are kept besides the first because rounding their sum
    to one number costs digits when scores are large.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Real) -> None:
        parts.flags.writeable = False
        self._parts = parts

    @property
    def lse(self) -> Real:
        out: Real = self._parts[0]
        return out

    @property
    def all(self) -> Real:
        """All three, along the first axis of one array."""
        return self._parts

    def shifts(self) -> tuple[Real, ...]:
        return -self._parts[1], -self._parts[2]

    def divided(self) -> tuple[Real, Real]:
        """Dividing right-hand sides by the sums spares the engine one addition for every entry."""
        return -self._parts[1], np.exp(-self._parts[2])[..., None]


class Host(HostFactors, HostFlows):
    """The backend for NumPy arrays; its only instance is ``HOST``."""

    host_arrays = True

    @property
    def place(self) -> str:
        return "cpu"

    # ---- arguments ----------------------------------------------------------------------------------

    def at(self, n_threads: int | None, stream: object = None) -> int:
        if stream is not None:
            raise TypeError("stream: wanted None for arrays on the CPU; pass n_threads instead")
        return resolve_threads(n_threads)

    def matrix(self, name: str, value: Any) -> tuple[Real, np.dtype[Any], float, bool]:
        array = _checks.real_array(name, value)
        _matrix_shape(name, array)
        _checks.not_empty(name, array)
        return array, array.dtype, *_checks.finite_or_masked(name, array)

    def points(
        self, names: tuple[str, str], X: Any, Y: Any
    ) -> tuple[Real, Real, float, float, np.dtype[Any]]:
        x, x_largest = _checks.points(names[0], X)
        if Y is None or Y is X:
            return x, x, x_largest, x_largest, x.dtype
        y, y_largest = _checks.points(names[1], Y)
        _checks.same_dtype(names[1], y, x.dtype, names[0])
        return x, y, x_largest, y_largest, x.dtype

    def small(self, value: Any, dtype: np.dtype[Any]) -> Any:
        return value

    def vectors(
        self, dtype: np.dtype[Any], batch: tuple[int, ...], *named: tuple[str, Any, int]
    ) -> list[tuple[Real, float]]:
        found = []
        for name, value, length in named:
            array = _checks.converted(name, value, dtype, "the scores")
            if array.ndim < 1:
                raise ValueError(
                    f"{name}: wanted shape (..., {length}), got a single number; "
                    f"pass np.full({length}, value)"
                )
            _checks.core_shape(name, array.shape, (length,), "as the scores")
            found.append((array, _checks.finite(name, array, minus_inf=True)))
        return found

    def values(
        self, name: str, value: Any, dtype: np.dtype[Any], like: str = "the scores"
    ) -> tuple[Real, bool]:
        if type(value) is np.ndarray and cpu.plain_magnitude(value) >= 0:
            array, checked = value, True
        else:
            array, checked = _checks.real_array(name, value), False
        _checks.same_dtype(name, array, dtype, like)
        return array, checked

    def check_finite(self, name: str, array: Real) -> None:
        _checks.not_empty(name, array)
        _checks.finite(name, array)

    def boolean(self, name: str, value: Any, core: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        return _checks.boolean(name, value, core)

    def output(self, name: str, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if given is None:
            return None
        if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype != dtype:
            got = (
                f"{given.dtype} {given.shape}" if hasattr(given, "shape") else _checks.shown(given)
            )
            raise ValueError(
                f"{name}: wanted a NumPy array of shape {shape} and {dtype}, got {got}"
            )
        return given

    def writable(self, target: Any, vector: bool, at: int) -> None:
        return None

    # ---- views --------------------------------------------------------------------------------------

    def swap(self, array: Real) -> Real:
        return array.swapaxes(-1, -2)

    def cut(self, array: Real, axis: int, first: int, last: int) -> Real:
        if array.shape[axis] == 1 and last > 1:
            return array
        return array[..., first:last, :] if axis == -2 else array[..., first:last]

    def one(self, array: Any, index: tuple[int, ...], core: tuple[slice, ...]) -> Any:
        lead = array.ndim - len(core)
        at = [
            0 if n == 1 else i
            for i, n in zip(index[len(index) - lead :], array.shape, strict=False)
        ]
        own = (
            slice(None) if n == 1 else part
            for part, n in zip(core, array.shape[lead:], strict=True)
        )
        return array[(*at, *own)]

    def indexed(self, array: Any, index: tuple[Any, ...], core: int) -> Any:
        lead = array.ndim - core
        own = index[len(index) - lead :]  # missing axes broadcast, and so do those of length 1
        at = tuple(
            (0 if hasattr(i, "__index__") else slice(None)) if n == 1 else i
            for i, n in zip(own, array.shape, strict=False)
        )
        return array[at]

    def has_minus_inf(self, array: Real) -> bool:
        return bool(cpu.scan(array, get_num_threads())[0] & _MINUS_INF)

    def part(self, array: Real, index: Any) -> Real:
        out: Real = array[index]
        return out

    def taken(self, array: Real, at: npt.NDArray[np.intp], axis: int) -> Real:
        return np.take(array, at, axis)

    def column(self, array: Real) -> Real:
        return array[..., None]

    def same(self, a: Real, b: Real) -> bool:
        return a is b or (
            a.shape == b.shape
            and a.strides == b.strides
            and a.__array_interface__["data"] == b.__array_interface__["data"]
        )

    # ---- small maps ---------------------------------------------------------------------------------

    def scaled(self, array: Real, factor: float) -> Real:
        out: Real = array * array.dtype.type(factor)
        return out

    def project(self, name: str, points: Real, matrix: Real) -> tuple[Real, float]:
        if matrix.ndim > 2:  # one for each head
            out = np.matmul(points, matrix)
        else:
            flat = points if points.ndim == 2 else points.reshape(-1, points.shape[-1])
            out = cpu.project(flat, matrix, get_num_threads())
        found, top = cpu.scan(out, get_num_threads())
        _checks.no_overflow(f"{name} times W", np.inf if found else top, points.dtype)
        if points.ndim > 2 and matrix.ndim == 2:
            out = out.reshape(*points.shape[:-1], matrix.shape[1])
        return out, top

    def unit_rows(self, name: str, x: Real) -> Real:
        size = np.abs(x).max(axis=-1, keepdims=True)  # so that no square overflows or underflows
        if not size.all():
            row = int(np.argmin(size))
            raise ValueError(
                f"{name}: wanted points other than 0, which have no direction; row {row} is 0"
            )
        near_one = x / size
        out: Real = near_one / np.sqrt(self.row_dots(near_one, near_one, 1.0))[..., None]
        return out

    def row_dots(self, a: Real, b: Real, factor: float) -> Real:
        if a.ndim == 2 and b.ndim == 2:
            return self.scaled(cpu.row_dots(a, b), factor)
        if a.shape != b.shape:
            a, b = np.broadcast_arrays(a, b)
        flat = cpu.row_dots(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
        return self.scaled(flat.reshape(a.shape[:-1]), factor)

    def centred(self, x: Real, y: Real) -> tuple[Real, Real] | None:
        dim = x.shape[-1]
        if dim <= DIRECT_DISTANCE_MAX_DIM:
            return None
        centre = y.reshape(-1, dim).mean(axis=0, dtype=np.float64)
        xc = (x - centre).astype(x.dtype, copy=False)
        return xc, xc if y is x else (y - centre).astype(x.dtype, copy=False)

    def negated(self, x: Real, n_last: int) -> Real:
        if not n_last:
            return x
        out = x.copy()
        out[..., x.shape[-1] - n_last :] *= -1
        return out

    def padding(self, terms: Terms, mask: Any, dtype: np.dtype[Any], n_rows: int) -> Terms:
        return terms.shifted(0, (np.where(mask, 0.0, -np.inf).astype(dtype),))

    def joined(self, s: Scores, t: Scores) -> None:
        if t.backend is not self:
            raise TypeError(
                f"s + t: wanted scores on {t.backend.place} on both sides, got scores of CPU arrays "
                "on one side; move the arrays to one place"
            )

    # ---- visits -------------------------------------------------------------------------------------

    def describe(self, s: Scores) -> tuple[Any, ...]:
        """See cpp/bind/score_tuple.hpp."""
        dots, distances, dense, rows, columns, masks, band, offsets, rounding = s.terms
        return (
            s.dtype.itemsize == 4,
            s.batch,
            s.n_rows,
            s.n_cols,
            None if offsets is None else offsets[0],
            None if offsets is None else offsets[1],
            dots,
            distances,
            dense,
            rows,
            columns,
            masks,
            *band,
            None if rounding is PLAIN else rounding,
        )

    def logsumexp(self, s: Scores, target: Any, at: int) -> Real:
        lse = cpu.reduce_rows(s._described, 0, None, True, False, at)[0]
        assert lse is not None
        return lse

    def largest(self, s: Scores, at: int) -> Real:
        lse, peak, _ = self.normalizer(s, at).all
        out: Real = np.where(np.isneginf(lse), lse, peak)
        return out

    def normalizer(self, s: Scores, at: int) -> _Normalizer:
        parts = cpu.reduce_rows(s._described, 0, None, True, False, at, True)[0]
        assert parts is not None
        return _Normalizer(parts)

    def product(
        self,
        s: Scores,
        weight: str,
        values: Real,
        target: Any,
        at: int,
        keep: list[Any] | None = None,
    ) -> Real:
        code = WEIGHTS[weight]
        if keep is not None and not keep:
            parts, out, _, _ = cpu.reduce_rows(s._described, code, values, True, False, at, True)
            assert parts is not None
            assert out is not None
            keep.append(_Normalizer(parts))
            return out
        out = cpu.reduce_rows(s._described, code, values, False, False, at)[1]
        assert out is not None
        return out

    def materialize(self, s: Scores, weight: str | None, target: Any, at: int) -> Real:
        return cpu.materialize(
            s._described, weight is None, 0 if weight is None else WEIGHTS[weight], at
        )

    def marginals(self, s: Scores, at: int) -> tuple[Real, Real]:
        return cpu.marginals(s._described, at)

    def moment(self, which: str, s: Scores, log_weights: Callable[[int], Scores], at: int) -> Real:
        found = cpu.reduce_rows(s._described, WEIGHTS["softmax"], None, False, True, at)
        out = found[3 if which == "entropy" else 2]
        assert out is not None
        return out

    # ---- results ------------------------------------------------------------------------------------

    def give(self, array: Real, target: Any = None, at: int | None = None) -> Any:
        if target is None:
            return array
        np.copyto(target, array)
        return target

    def turned(self, array: Real) -> Real:
        return array.swapaxes(-1, -2)

    def squeeze(self, array: Real) -> Real:
        out: Real = array[..., 0]
        return out

    def here(self, name: str, array: Any) -> Any:
        return array

    def visited(self, s: Scores) -> Scores:
        return s

    def returned(self, s: Scores) -> Scores:
        return s

    def visiting(self, s: Scores) -> Scores:
        return s

    def to_host(self, array: Real) -> Real:
        return array

    def from_host(self, array: Real) -> Real:
        return array


def _matrix_shape(name: str, array: Any) -> None:
    _checks.shape(name, array.shape, (..., "N", "M"), do=f"pass {name}[None, :]")


HOST = Host()
