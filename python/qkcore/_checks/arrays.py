"""Checks of arrays: their type, their memory, their shapes and their batch axes."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _config
from .._native import cpu
from .numbers import positive
from .options import refuse, shown

Real = npt.NDArray[np.floating[Any]]

_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)
# The limits of float32 and float64 by item size; a call of np.finfo would take a microsecond.
_LARGEST = {4: float(np.finfo(np.float32).max), 8: float(np.finfo(np.float64).max)}
_SMALLEST = {4: float(np.finfo(np.float32).tiny), 8: float(np.finfo(np.float64).tiny)}


def real_array(name: str, value: npt.ArrayLike) -> Real:
    """A float32 or float64 array. If an array is given the result is a view of it, not a copy.

    A view has its own shape, strides and dtype. So they stay as they were checked, whatever the caller does
    to the array object afterwards (``X.shape = ...``).
    """
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                f"{name}: wanted a plain array, got a masked array, whose mask would be ignored; "
                f"pass {name}.filled(value), and masks of scores to s.masked()"
            )
        array = value.view(np.ndarray)
    else:
        if hasattr(value, "__dlpack_device__"):
            refuse_device(name, value)
        array = _from_elsewhere(name, value)
    dtype = array.dtype
    if dtype is not _FLOAT64 and dtype is not _FLOAT32 and dtype not in (_FLOAT32, _FLOAT64):
        it = code(name)
        hint = f"{it}.real" if dtype.kind == "c" else f"{it}.astype(np.float64)"
        raise TypeError(
            f"{name}: wanted float32 or float64 in native byte order, got {dtype}; pass {hint}"
        )
    itemsize = array.itemsize
    for stride in array.strides:
        if stride % itemsize:
            raise ValueError(
                f"{name}: wanted strides that are multiples of the item size, got {array.strides} "
                f"for {dtype}; pass np.ascontiguousarray({code(name)})"
            )
    if not array.flags.aligned:
        raise ValueError(
            f"{name}: wanted an aligned array, got an unaligned one; pass {code(name)}.copy()"
        )
    return array


def code(name: str) -> str:
    """The argument's name in code that a message suggests; "it" for operands of @, which have no name."""
    return "it" if " " in name else name


def converted(name: str, value: npt.ArrayLike, dtype: np.dtype[Any], other: str) -> Real:
    """A vector in the given dtype: a view of an array that has it, otherwise a converted copy."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return real_array(name, value)
    if hasattr(value, "__dlpack_device__"):
        refuse_device(name, value)
    given = _from_elsewhere(name, value)
    if isinstance(value, np.ma.MaskedArray) or given.dtype.kind not in "biuf":
        return real_array(name, value)  # raises the error
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    if dtype == _FLOAT32 and given.dtype.itemsize > 4 and given.dtype.kind == "f":
        lost = np.isinf(array) & np.isfinite(given) | (array == 0) & (given != 0)
        if lost.any():
            at = np.unravel_index(int(np.argmax(lost)), lost.shape)
            raise OverflowError(
                f"{name}: wanted numbers that float32 can hold like {other}, got {given[at]:.3g}; pass "
                "float64 data"
            )
    return array


def _from_elsewhere(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    """A list, a tensor or a data frame as an array, with the same memory if its library shares it."""
    kind = type(value).__name__
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{name}: wanted numbers, got a {kind} that requires gradients, which would be lost, since NumPy "
            f"computes none; pass {name}.detach()"
        )
    if hasattr(value, "tocsr"):
        raise TypeError(f"{name}: wanted a dense array, got a sparse {kind}; pass {name}.toarray()")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name}: wanted a rectangular array of numbers, got {kind} ({error}); pass a NumPy array"
        ) from None
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{name}: wanted numbers of a type that NumPy has, got a {kind} that it cannot take ({error}); "
            f"convert it, e.g. {name}.float()"
        ) from None


def refuse_device(name: str, value: object) -> None:
    from .. import _device

    if _device.on_device(value):
        raise TypeError(
            f"{name}: wanted an array on the CPU like the others, got one on {_device.place(value)}; "
            "copy it to the CPU, or move all arrays to the device"
        )


def doubles(name: str, value: npt.ArrayLike, *, inf: bool = False) -> npt.NDArray[np.float64]:
    """Real numbers of any shape and type as float64, for small arguments; ``inf`` allows infinities."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: wanted real numbers, got a ragged list ({error})") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name}: wanted real numbers, got {array.dtype if array.dtype.kind != 'O' else shown(value)}; "
            "pass floats"
        )
    out = array.astype(np.float64, copy=False)
    if np.isnan(out).any() or not (inf or np.isfinite(out).all()):
        bad = int((np.isnan(out) if inf else ~np.isfinite(out)).sum())
        got = shown(value) if out.size <= 4 else f"{bad} of {out.size} that are not"
        raise ValueError(f"{name}: wanted {'numbers' if inf else 'finite numbers'}, got {got}")
    return out


def complex_array(name: str, value: npt.ArrayLike) -> npt.NDArray[np.complexfloating[Any, Any]]:
    """A complex64 or complex128 array of finite real or complex numbers, without an axis of length 0."""
    array = np.asarray(value)
    if array.dtype not in (np.complex64, np.complex128):
        real = real_array(name, array)
        array = real.astype(np.complex64 if real.itemsize == 4 else np.complex128)
    not_empty(name, array)
    for part in (array.real, array.imag):
        finite(name, part)
    return array


def same_dtype(name: str, array: Real, dtype: np.dtype[Any], other: str) -> None:
    if array.dtype != dtype:
        raise TypeError(
            f"{name}: wanted {dtype} like {other}, got {array.dtype}; "
            f"convert one of them, e.g. {code(name)}.astype(np.{dtype})"
        )


def finite(name: str, array: Real, *, minus_inf: bool = False) -> float:
    """Refuses NaN, +inf and, unless ``minus_inf`` allows it, -inf; returns the largest magnitude."""
    return finite_or_masked(name, array, minus_inf=minus_inf)[0]


def finite_or_masked(name: str, array: Real, *, minus_inf: bool = True) -> tuple[float, bool]:
    """The largest magnitude, and whether some number is -inf; NaN and +inf are refused."""
    found, largest = cpu.scan(array, _config.get_num_threads())
    if found & ~(4 if minus_inf else 0):
        kinds = [k for bit, k in ((1, "NaN"), (2, "+inf"), (4, "-inf")) if found & bit]
        wanted = "numbers below +inf (-inf masks an entry)" if minus_inf else "finite numbers"
        raise ValueError(
            f"{name}: wanted {wanted}, got {' and '.join(kinds)}; "
            f"find them with ~np.isfinite({code(name)}) and remove or replace them"
        )
    return largest, bool(found & 4)


def no_overflow(what: str, largest: float, dtype: np.dtype[Any]) -> None:
    """Refuses data whose scores could overflow the dtype, because -inf would look like a masked entry."""
    if not largest <= _LARGEST[dtype.itemsize]:
        raise OverflowError(
            f"{what}: scores can reach {largest:.1e}, which overflows {dtype}; "
            "scale the points or beta down" + (", or use float64" if dtype == _FLOAT32 else "")
        )


def representable(name: str, value: float, dtype: np.dtype[Any]) -> float:
    """Refuses a positive number that would become 0 or inf in the dtype of the arrays."""
    if not _SMALLEST[dtype.itemsize] <= value <= _LARGEST[dtype.itemsize]:
        raise ValueError(
            f"{name}: wanted a number that {dtype} can hold, got {value!r}; rescale the data"
        )
    return value


def scale(name: str, value: object, dtype: np.dtype[Any]) -> float:
    """A positive number that the dtype of the arrays can hold."""
    itemsize = dtype.itemsize
    if type(value) is float and _SMALLEST[itemsize] <= value <= _LARGEST[itemsize]:
        return value
    return representable(name, positive(name, value), dtype)


def points(name: str, value: npt.ArrayLike) -> tuple[Real, float]:
    """Finite points (..., n, d) with n, d > 0, and the largest magnitude of their coordinates."""
    if type(value) is np.ndarray and value.ndim > 1:
        top = cpu.plain_magnitude(value)  # one call for small arrays, where checks cost most
        if top >= 0:
            return value.view(), top  # see real_array
    array = real_array(name, value)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: wanted points of shape (..., n, d), got shape {array.shape}; "
            f"for points on a line pass {name}[:, None]"
        )
    not_empty(name, array)
    return array, finite(name, array)


def not_empty(name: str, array: npt.NDArray[Any]) -> None:
    if 0 in array.shape:
        raise ValueError(
            f"{name}: wanted no axis of length 0, got shape {array.shape}; "
            "skip the call when there is no data"
        )


def matrix_w(
    W: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    d: int,
    d_cols: int,
    dtype: np.dtype[Any],
) -> tuple[Real, Real | None]:
    """W, checked, as (W, None) for a matrix or (W_Q, W_K) for two factors."""
    if isinstance(W, tuple):
        if len(W) != 2:
            raise ValueError(
                f"W: wanted a matrix or a pair (W_Q, W_K), got a tuple of {len(W)}; "
                "pass W=(W_Q, W_K) with W = W_Q @ W_K"
            )
        left, right = (_small_matrix(n, w, dtype) for n, w in zip(("W[0]", "W[1]"), W, strict=True))
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(
                f"W: wanted factors (d, r) and (r, d'), got shapes {left.shape} and {right.shape}; "
                "the inner sizes must agree"
            )
        shape = (left.shape[-2], right.shape[-1])
    else:
        left, right = _small_matrix("W", W, dtype), None
        shape = left.shape[-2:]
    if shape != (d, d_cols):
        raise ValueError(
            f"W: wanted shape ({d}, {d_cols}) for points of dimension {d} and {d_cols}, "
            f"got {shape}; check which of X and Y it multiplies"
        )
    return left, right


def same_place(name: str, place: str, wanted: str, like: str) -> None:
    """Refuses scores or factors that are on another device, or on the CPU while others are on a device."""
    if place != wanted:
        got, do = f"arrays on {place}", "move them to one place"
        refuse(name, f"arrays on {wanted} like {like}", got, do, TypeError)


def square_matrices(name: str, shape: tuple[int, ...]) -> None:
    """Refuses everything that is not a square matrix, or one for each problem of a batch."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{name}: wanted a square matrix, got shape {shape}")


def array_shape(name: str, value: object) -> tuple[int, ...]:
    """The shape of an operator, an array, or a list that NumPy can convert to an array."""
    if isinstance(value, (list, tuple)):
        return _from_elsewhere(name, value).shape
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        raise TypeError(f"{name}: wanted an operator or an array, got {type(value).__name__}")
    return shape


def factor_shape(name: str, shape: tuple[int, ...]) -> None:
    """Refuses a factor of a low-rank kernel that is not a matrix, or one for each problem of a batch."""
    if len(shape) < 2:
        raise ValueError(
            f"{name}: wanted a matrix, or one for each problem of a batch, got shape {shape}; left is "
            "(..., N, r), right is (..., r, M)"
        )


def _small_matrix(name: str, value: npt.ArrayLike, dtype: np.dtype[Any]) -> Real:
    array = real_array(name, value)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: wanted a matrix, or one for each head, got shape {array.shape}; pass an array (d, d')"
        )
    not_empty(name, array)
    same_dtype(name, array, dtype, "the points")
    finite(name, array)
    return array


def boolean(name: str, value: npt.ArrayLike, core: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A boolean array as bytes, whose last axes are broadcast to ``core`` (with zero strides)."""
    array = np.asarray(value)
    if array.dtype != np.bool_:
        raise TypeError(
            f"{name}: wanted a boolean array (True = keep), got {array.dtype}; "
            f"pass {name}.astype(bool)"
        )
    got = array.shape
    n = len(core)
    if got[-n:] != core:
        try:
            array = np.broadcast_to(array, (*got[:-n], *core))
        except ValueError:
            raise ValueError(
                f"{name}: wanted shape (..., {', '.join(map(str, core))}) as the scores, "
                f"got {got}; check the order of the axes"
            ) from None
    return array.view(np.uint8)


Axes = tuple[int | str | EllipsisType, ...]
"""The axes that are wanted: a number is a length, a name any length, ``...`` any number of axes."""


def shape(
    name: str, got: tuple[int, ...], *wanted: Axes, what: str = "", why: str = "", do: str = ""
) -> None:
    """Refuses a shape that is not one of those wanted.

    ``what`` names the thing that has the shape and ``why`` says where the lengths come from:
    "wanted points of shape (n, 3) as the measure's, got (4, 2)".
    """
    if any(_fits(got, axes) for axes in wanted):
        return
    listed = " or ".join(_written(axes) for axes in wanted)
    came = str(got) if got else "a number, of shape ()"
    refuse(name, f"{what and f'{what} of '}shape {listed}{why and f' {why}'}", came, do)


def _fits(got: tuple[int, ...], axes: Axes) -> bool:
    if ... in axes:
        at = axes.index(...)
        axes, free = axes[:at] + axes[at + 1 :], len(got) - len(axes) + 1
        got = got[:at] + got[at + free :] if free >= 0 else ()
    return len(got) == len(axes) and all(
        isinstance(a, str) or a == n for a, n in zip(axes, got, strict=True)
    )


def _written(axes: Axes) -> str:
    words = ["..." if axis is ... else str(axis) for axis in axes]
    if not words:
        return "()"
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def square(name: str, got: tuple[int, ...], do: str = "") -> None:
    """Refuses a shape that is not that of one square matrix."""
    if len(got) != 2 or got[0] != got[1]:
        refuse(name, "a square matrix", f"shape {got}", do)


def same_space(name: str, dimension: int, other: int, like: str) -> None:
    """Refuses points (or a law, or a domain) of another dimension than ``like`` has."""
    if dimension != other:
        refuse(name, f"points in {other} dimensions as {like}", str(dimension))


def core_shape(name: str, got: tuple[int, ...], wanted: tuple[int, ...], what: str) -> None:
    """The last axes of an array must be those of the scores."""
    if got[-len(wanted) :] != wanted:
        raise ValueError(
            f"{name}: wanted shape (..., {', '.join(map(str, wanted))}) {what}, got {got}; "
            "check the order of the axes"
        )


def one_problem(name: str, batch: tuple[int, ...], ragged: bool = False) -> None:
    """Refuses a batch, for functions whose result belongs to one problem."""
    if batch or ragged:
        got = f"batch axes {batch}" if batch else "ragged blocks"
        raise ValueError(
            f"{name}: wanted one problem, got {got}; take the problems of a batch one by one"
        )


def broadcast(name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The common batch shape, or an error that names the argument."""
    if shape == other or not other:
        return shape
    try:
        return np.broadcast_shapes(shape, other)
    except ValueError:
        raise ValueError(
            f"{name}: wanted batch axes that broadcast with {shape}, got {other}; "
            "make the leading axes equal or 1"
        ) from None


def into_batch(
    name: str, got: tuple[int, ...], lead: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """The leading axes ``lead`` of an argument of shape ``got`` must broadcast to ``batch``."""
    fits = len(lead) <= len(batch) and all(
        a in (1, b) for a, b in zip(lead[::-1], batch[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name}: wanted batch axes that broadcast to {batch}, got shape {got}; "
            "make its leading axes those of the operator, or 1"
        )


def offsets(name: str, value: npt.ArrayLike, total: int) -> npt.NDArray[np.int64]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: wanted integer offsets, got {array.dtype}; "
            f"pass e.g. np.array([0, 3, {total}])"
        )
    if array.ndim != 1 or array.size < 2:
        raise ValueError(
            f"{name}: wanted a 1-D array of at least two offsets, got shape {array.shape}; "
            f"pass e.g. np.array([0, 3, {total}])"
        )
    # Memory is accessed by these offsets, so they are copied: a caller cannot change the copy.
    out = np.array(array, dtype=np.int64)
    out.flags.writeable = False
    if out[0] != 0 or out[-1] != total or (np.diff(out) < 0).any():
        raise ValueError(
            f"{name}: wanted offsets that rise from 0 to {total}, got first {out[0]}, last "
            f"{out[-1]}; block b is [{name}[b], {name}[b+1])"
        )
    return out
