"""Every check of an argument: a message gives the name, what was wanted, what came, what to do."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _config, _pieces
from ._native import cpu

Real = npt.NDArray[np.floating[Any]]

_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)
# np.finfo costs a microsecond a call, by item size.
_LARGEST = {4: float(np.finfo(np.float32).max), 8: float(np.finfo(np.float64).max)}
_SMALLEST = {4: float(np.finfo(np.float32).tiny), 8: float(np.finfo(np.float64).tiny)}


def real_array(name: str, value: npt.ArrayLike) -> Real:
    """A float32 or float64 array: a view, not a copy, of one that is given.

    A view has a shape, strides and dtype of its own. What is kept of an argument therefore stays as it was
    checked, whatever the caller does to the array object afterwards (``X.shape = ...``).
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
            _refuse_device(name, value)
        array = _from_elsewhere(name, value)
    dtype = array.dtype
    if dtype is not _FLOAT64 and dtype is not _FLOAT32 and dtype not in (_FLOAT32, _FLOAT64):
        hint = f"{name}.real" if dtype.kind == "c" else f"{name}.astype(np.float64)"
        raise TypeError(
            f"{name}: wanted float32 or float64 in native byte order, got {dtype}; pass {hint}"
        )
    itemsize = array.itemsize
    for stride in array.strides:
        if stride % itemsize:
            raise ValueError(
                f"{name}: wanted strides that are multiples of the item size, got {array.strides} "
                f"for {dtype}; pass np.ascontiguousarray({name})"
            )
    if not array.flags.aligned:
        raise ValueError(
            f"{name}: wanted an aligned array, got an unaligned one; pass {name}.copy()"
        )
    return array


def converted(name: str, value: npt.ArrayLike, dtype: np.dtype[Any], other: str) -> Real:
    """Numbers in this dtype, for vectors: a view of an array that has it, else a copy."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return real_array(name, value)
    if hasattr(value, "__dlpack_device__"):
        _refuse_device(name, value)
    given = _from_elsewhere(name, value)
    if isinstance(value, np.ma.MaskedArray) or given.dtype.kind not in "biuf":
        return real_array(name, value)  # says what was wanted
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
    """A list, a tensor, a data frame as an array: the same memory where the library shares it."""
    kind = type(value).__name__
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{name}: wanted numbers, got a {kind} that requires gradients, which functions of NumPy "
            f"arrays do not carry on; pass {name}.detach()"
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


def _refuse_device(name: str, value: object) -> None:
    from . import _device

    if _device.on_device(value):
        raise TypeError(
            f"{name}: wanted an array on the CPU like the others, got one on {_device.place(value)}; "
            "copy it to the CPU, or move all arrays to the device"
        )


def doubles(name: str, value: npt.ArrayLike, *, inf: bool = False) -> npt.NDArray[np.float64]:
    """Real numbers of any shape and type as float64, for small arguments: no NaN, inf if it may be."""
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


_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


def shown(value: object) -> str:
    """A value as a message gives it: in full where that is short, an array of some size by its shape."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array of shape {value.shape}"
    return _SHORT.repr(value)


def instance(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuses an argument of another class; ``wanted`` says what it should be and how to make one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: wanted {wanted}, got {type(value).__name__}")


def complex_array(name: str, value: npt.ArrayLike) -> npt.NDArray[np.complexfloating[Any, Any]]:
    """A complex64 or complex128 array from real or complex numbers, finite, no axis empty."""
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
            f"convert one of them, e.g. {name}.astype(np.{dtype})"
        )


def finite(name: str, array: Real, *, minus_inf: bool = False) -> float:
    """Refuses NaN and infinities (-inf passes where it masks); gives the largest magnitude."""
    return finite_or_masked(name, array, minus_inf=minus_inf)[0]


def finite_or_masked(name: str, array: Real, *, minus_inf: bool = True) -> tuple[float, bool]:
    """The largest magnitude of numbers, and whether -inf is among them."""
    found, largest = cpu.scan(array, _config.get_num_threads())
    if found & ~(4 if minus_inf else 0):
        kinds = [k for bit, k in ((1, "NaN"), (2, "+inf"), (4, "-inf")) if found & bit]
        wanted = "numbers below +inf (-inf masks an entry)" if minus_inf else "finite numbers"
        raise ValueError(
            f"{name}: wanted {wanted}, got {' and '.join(kinds)}; "
            f"find them with ~np.isfinite({name}) and remove or replace them"
        )
    return largest, bool(found & 4)


def no_overflow(what: str, largest: float, dtype: np.dtype[Any]) -> None:
    """Refuses data whose scores could leave the range of the dtype (and then pass for masked)."""
    if not largest <= _LARGEST[dtype.itemsize]:
        raise OverflowError(
            f"{what}: scores can reach {largest:.1e}, which overflows {dtype}; "
            "scale the points or beta down" + (", or use float64" if dtype == _FLOAT32 else "")
        )


def points(name: str, value: npt.ArrayLike) -> tuple[Real, float]:
    """Points (..., n, d), both axes non-empty, finite; and their largest coordinate."""
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


def _float(value: object) -> float:
    """What float() makes of a real number; inf beyond its range. TypeError for anything else.

    float() takes more than that: text, complex numbers of NumPy (with a warning), arrays of one entry.
    """
    if isinstance(value, (str, bytes, complex, np.complexfloating)):
        raise TypeError
    if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind == "c"):
        raise TypeError
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an int or a fraction
        return math.inf
    except ValueError:
        raise TypeError from None


def positive(name: str, value: object) -> float:
    if type(value) is float and 0.0 < value < math.inf:
        return value
    try:
        number = _float(value)
    except TypeError:
        raise TypeError(
            f"{name}: wanted a finite number > 0, got {shown(value)}; pass e.g. {name}=1.0"
        ) from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"{name}: wanted a finite number > 0, got {shown(value)}; pass e.g. {name}=1.0"
        )
    return number


# How far the sum of a row of probabilities may be from 1: what a softmax over 10^6 entries leaves.
_MASS = {4: 1e-4, 8: 1e-8}


def probabilities(name: str, value: npt.ArrayLike) -> Real:
    """Rows of probabilities (..., V): finite, none negative, each row summing to one."""
    array = real_array(name, value)
    if array.ndim == 0:
        raise ValueError(
            f"{name}: wanted rows of probabilities (..., V), got a number; pass an array"
        )
    not_empty(name, array)
    finite(name, array)
    smallest = float(array.min())
    if smallest < 0:
        raise ValueError(
            f"{name}: wanted probabilities >= 0, got {smallest:.3g}; for logits pass "
            f"qk.simplex.softmax({name})"
        )
    off = np.abs(array.sum(axis=-1, dtype=np.float64) - 1.0)
    if off.max() > _MASS[array.itemsize]:
        row = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
        where = f" in row {row if len(row) > 1 else row[0]}" if row else ""
        raise ValueError(
            f"{name}: wanted rows that sum to 1 within {_MASS[array.itemsize]:g}, got a sum that is off "
            f"by {off.max():.3g}{where}; divide by {name}.sum(axis=-1, keepdims=True)"
        )
    return array


def representable(name: str, value: float, dtype: np.dtype[Any]) -> float:
    """A positive scale that stays positive and finite in the arrays' dtype."""
    if not _SMALLEST[dtype.itemsize] <= value <= _LARGEST[dtype.itemsize]:
        raise ValueError(
            f"{name}: wanted a number that {dtype} can hold, got {value!r}; rescale the data"
        )
    return value


def scale(name: str, value: object, dtype: np.dtype[Any]) -> float:
    """A positive number that the arrays' dtype can hold."""
    itemsize = dtype.itemsize
    if type(value) is float and _SMALLEST[itemsize] <= value <= _LARGEST[itemsize]:
        return value
    return representable(name, positive(name, value), dtype)


def number(name: str, value: object) -> float:
    """A finite real number of either sign."""
    try:
        out = _float(value)
    except TypeError:
        raise TypeError(
            f"{name}: wanted a real number, got {shown(value)}; pass e.g. {name}=1.0"
        ) from None
    if not math.isfinite(out):
        raise ValueError(
            f"{name}: wanted a finite number, got {shown(value)}; pass e.g. {name}=1.0"
        )
    return out


def integer(name: str, value: object, *, any_size: bool = False) -> int:
    """An integer of 64 bits, which is what the engine takes; ``any_size`` where it is clamped afterwards."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: wanted an integer, got {shown(value)}; pass e.g. {name}=0")
    try:
        out = int(value.__index__())
    except TypeError:  # an array
        raise TypeError(
            f"{name}: wanted an integer, got {shown(value)}; pass e.g. {name}=0"
        ) from None
    if not (any_size or -(2**63) <= out < 2**63):
        raise ValueError(
            f"{name}: wanted an integer of 64 bits, got one of {out.bit_length()} bits"
        )
    return out


def index(name: str, value: object, n: int) -> int:
    """The number of one of n things, counted from the end if it is negative."""
    k = integer(name, value)
    if not -n <= k < n:
        raise IndexError(f"{name}: wanted {-n} to {n - 1}, got {k}")
    return k % n


def integer_within(name: str, value: object, first: int, last: int, what: str) -> int:
    """An integer from first to last (both allowed); ``what`` says why these."""
    out = integer(name, value)
    if not first <= out <= last:
        raise ValueError(f"{name}: wanted {first} to {last}, got {out}; {what}")
    return out


def axis(value: object) -> int:
    """1 (rows) or 0 (columns); -1 and -2 mean the same from the end."""
    if type(value) is int and value == 1:
        return 1
    number = integer("axis", value)
    if number not in (1, 0, -1, -2):
        raise ValueError(
            f"axis: wanted 1 or -1 (each row) or 0 or -2 (each column), got {number}; "
            "batch axes are never reduced"
        )
    return 1 if number in (1, -1) else 0


def matrix_w(
    W: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    d: int,
    d_cols: int,
    dtype: np.dtype[Any],
) -> tuple[Real, Real | None]:
    """W as one matrix (W, None) or as its two factors (W_Q, W_K)."""
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
    """A boolean array, seen as bytes, whose last axes broadcast to ``core`` (by zero strides)."""
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


def core_shape(name: str, got: tuple[int, ...], wanted: tuple[int, ...], what: str) -> None:
    """The last axes of an array must be those of the scores."""
    if got[-len(wanted) :] != wanted:
        raise ValueError(
            f"{name}: wanted shape (..., {', '.join(map(str, wanted))}) {what}, got {got}; "
            "check the order of the axes"
        )


def one_problem(name: str, batch: tuple[int, ...], ragged: bool = False) -> None:
    """Refuses batches, where a result belongs to one problem."""
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
    # Offsets steer memory access: a copy cannot be changed from outside.
    out = np.array(array, dtype=np.int64)
    out.flags.writeable = False
    if out[0] != 0 or out[-1] != total or (np.diff(out) < 0).any():
        raise ValueError(
            f"{name}: wanted offsets that rise from 0 to {total}, got first {out[0]}, last "
            f"{out[-1]}; block b is [{name}[b], {name}[b+1])"
        )
    return out


def covariances(name: str, value: npt.ArrayLike, d: int | None = None) -> Real:
    """Covariances (..., d, d): square, finite, symmetric, no negative eigenvalue but for rounding.

    What comes back is symmetric to the last bit.
    """
    array = real_array(name, value)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or d not in (None, array.shape[-1]):
        size = "d" if d is None else d
        raise ValueError(
            f"{name}: wanted covariances of shape (..., {size}, {size}), got shape {array.shape}; "
            f"for a variance s on a line pass np.array([[s]])"
        )
    not_empty(name, array)
    finite(name, array)
    turned = array.swapaxes(-1, -2)
    scale = np.abs(array).max(axis=(-1, -2))
    eps = float(np.finfo(array.dtype).eps)
    if (off := np.abs(array - turned).max(axis=(-1, -2)) > 1e3 * eps * scale).any():
        raise ValueError(
            f"{name}: wanted symmetric matrices, got {int(off.sum())} of {off.size} that are not; "
            f"pass ({name} + {name}.swapaxes(-1, -2)) / 2 if the asymmetry is rounding"
        )
    symmetric: Real = 0.5 * (array + turned)
    try:  # far cheaper than eigenvalues, which are for what it refuses
        np.linalg.cholesky(
            symmetric
            + (1e3 * eps * scale)[..., None, None] * np.eye(array.shape[-1], dtype=array.dtype)
        )
        return symmetric
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(symmetric)[..., 0]
    if (bad := smallest < -1e3 * eps * scale).any():
        raise ValueError(
            f"{name}: wanted positive semidefinite matrices, got {int(bad.sum())} of {bad.size} with a "
            f"negative eigenvalue (the lowest is {float(smallest.min()):.3g}); a covariance has none"
        )
    return symmetric


def time_span(name: str, value: object) -> tuple[float, float]:
    """(t0, t1) with t0 < t1."""
    pair = list(value) if isinstance(value, (tuple, list, np.ndarray)) else []
    if len(pair) != 2:
        raise ValueError(
            f"{name}: wanted a pair (t0, t1), got {shown(value)}; pass e.g. {name}=(0.0, 1.0)"
        )
    first, last = number(f"{name}[0]", pair[0]), number(f"{name}[1]", pair[1])
    if not first < last:
        raise ValueError(
            f"{name}: wanted t0 < t1, got ({first:g}, {last:g}); to run backwards flip the sign of V "
            "and swap the times"
        )
    return first, last


def rising_times(name: str, value: npt.ArrayLike, t0: float, t1: float) -> npt.NDArray[np.float64]:
    """Times within [t0, t1], each after the one before."""
    times = doubles(name, value)
    if times.ndim != 1 or len(times) == 0:
        raise ValueError(
            f"{name}: wanted finite times (n,), got shape {times.shape}; pass a 1-D array"
        )
    if (np.diff(times) <= 0).any() or times[0] < t0 or times[-1] > t1:
        raise ValueError(f"{name}: wanted rising times in [{t0:g}, {t1:g}], got others; sort them")
    return times


def masses(name: str, array: Real) -> None:
    """Refuses weights that are not a measure: not finite, negative, or all zero."""
    finite(name, array)
    if (low := min(float(part.min()) for (part,) in _pieces.pieces(array))) < 0:
        raise ValueError(f"{name}: wanted weights >= 0, got {low:.3g}; marginals are measures")
    with np.errstate(over="ignore"):
        found = mass(array)
    if found == 0:
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    if found == math.inf:
        raise OverflowError(
            f"{name}: the total mass overflows float64; divide the weights by their largest"
        )


def total(weights: Real) -> float:
    """The sum of weights, to the last digit or nearly so: pairwise, in extended precision."""
    return float(_pieces.total(lambda w: w.sum(dtype=np.longdouble), weights))


def mass(weights: Real) -> float:
    """The sum of weights in float64."""
    return float(_pieces.total(lambda w: w.sum(dtype=np.float64), weights))


def mass_slack(n: int, dtype: np.dtype[Any]) -> float:
    """How far sums of n rounded weights may differ, as a share of either, and still count as equal."""
    return 16 * math.sqrt(n) * float(np.finfo(dtype).eps)
