"""Arrays on their way into the CUDA module and back; no other module passes them on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from . import _backend
from ._libraries import Library, library_of
from ._where import CUDA, device_of, on_device, place

__all__ = ["Context", "largest_score", "lost"]

_REAL = ("float32", "float64")
_SHORT = ("float16", "bfloat16")


class Context:
    """The device and the array library of the first device array of a call."""

    def __init__(self, *arrays: object) -> None:
        first = next(x for x in arrays if on_device(x))
        while isinstance(first, tuple):
            first = next(x for x in first if on_device(x))
        self.module: Any = _backend.require(f"an array on {place(first)}")
        self.library: Library = library_of(first)
        where = device_of(first)
        assert where is not None
        self.device = where[1]

    def stream(self, given: object = None) -> int:
        """The given stream, or the current stream of the caller's library."""
        if given is None:
            return self.library.stream(self.device)
        return int(self.module.stream_handle(given))

    # ---- in ------------------------------------------------------------------------------------

    def take(self, name: str, x: object, *, dtype: str | None = None, like: str = "") -> Any:
        """The memory of a device array, without a copy; arrays that are not on the device are refused."""
        where = device_of(x)
        if where is None or where[0] not in CUDA:
            got = "NumPy array" if isinstance(x, np.ndarray) else type(x).__name__
            move = self.library.hint(_checks.code(name), self.device)
            raise TypeError(
                f"{name}: wanted an array on cuda:{self.device} like the others, got a {got} on the CPU; "
                f"move it there, e.g. {move}, or use CPU arrays only"
            )
        if where[1] != self.device:
            raise ValueError(
                f"{name}: wanted an array on cuda:{self.device} like the others, got one on "
                f"cuda:{where[1]}; copy it to one device"
            )
        array = self.module.asarray(x, name, self.stream())
        if dtype is not None and array.dtype != dtype:
            raise TypeError(
                f"{name}: wanted {dtype}{like and ' like ' + like}, got {array.dtype}; "
                "convert one of them"
            )
        return array

    def numbers(self, name: str, x: object, *, short: bool = False) -> Any:
        """A device array of numbers without an axis of length 0."""
        array = self.take(name, x)
        allowed = (*_REAL, *_SHORT) if short else _REAL
        if array.dtype not in allowed:
            raise TypeError(f"{name}: wanted {' or '.join(allowed)}, got {array.dtype}; convert it")
        if 0 in array.shape:
            raise ValueError(
                f"{name}: wanted no axis of length 0, got shape {array.shape}; "
                "skip the call when there is no data"
            )
        return array

    def vector(self, name: str, x: object, dtype: str, length: int, batch: tuple[int, ...]) -> Any:
        """An array (..., length) in the dtype of the scores whose last axis is contiguous."""
        array = self.take(name, x, dtype=dtype, like="the scores")
        _checks.shape(
            name, array.shape, (..., length), why="as the scores", do="check the order of the axes"
        )
        _checks.broadcast(name, batch, array.shape[:-1])
        if length > 1 and array.strides[-1] != 1:
            raise ValueError(
                f"{name}: wanted an array whose last axis is contiguous, got strides {array.strides}; "
                "pass a contiguous copy"
            )
        return array

    def output(self, name: str, given: object, shape: tuple[int, ...], dtype: str) -> Any:
        """The caller's ``out``, or a new array of the caller's library, or None if the module allocates."""
        if given is not None:
            array = self.take(name, given, dtype=dtype)
            _checks.shape(name, array.shape, shape)
            return given
        return self.library.empty(shape, dtype, self.device)

    def fresh(self, shape: tuple[int, ...], dtype: str, stream: int) -> tuple[Any, Any]:
        """An array to write to, and the same memory as an array of the caller's library if that allocates."""
        target = self.output("out", None, shape, dtype)
        new = self.module.empty(shape, dtype, self.device, stream) if target is None else target
        return self.module.asarray(new, "out", stream), target

    # ---- out -----------------------------------------------------------------------------------

    def give(self, array: Any, out: object = None, stream: int | None = None) -> Any:
        """The result as an array of the caller's library: ``out`` if it was given."""
        if self.library.waits:
            self.module.synchronize(self.device, self.stream() if stream is None else stream)
        return self.library.take(array) if out is None else out

    # ---- figures, uploads, downloads -----------------------------------------------------------

    def figures(self, *given: tuple[str, Any, Any]) -> list[dict[str, float]]:
        """Sums, extremes and counts of NaN and inf for each (name, a, b or None), in one transfer."""
        out: list[dict[str, float]] = self.module.summaries(list(given), self.stream())
        return out

    def finite(self, name: str, figures: dict[str, float], *, minus_inf: bool = False) -> float:
        """Refuses the same numbers as on the CPU, and returns the largest magnitude."""
        kinds = [
            word
            for key, word in (("nan", "NaN"), ("plus_inf", "+inf"), ("minus_inf", "-inf"))
            if figures[key] and not (minus_inf and key == "minus_inf")
        ]
        if kinds:
            wanted = "numbers below +inf (-inf masks an entry)" if minus_inf else "finite numbers"
            raise ValueError(
                f"{name}: wanted {wanted}, got {' and '.join(kinds)}; "
                f"find them with ~isfinite({_checks.code(name)}) and remove or replace them"
            )
        return figures["largest"]

    def upload(self, host: npt.NDArray[Any], dtype: str) -> Any:
        """A copy of a small host array on the device."""
        ready = np.ascontiguousarray(host, dtype=dtype)
        return self.module.upload(ready, ready.shape, dtype, self.device, self.stream())

    def download(self, array: Any) -> npt.NDArray[Any]:
        """A contiguous device array as a NumPy array."""
        out = np.empty(array.shape, dtype="bool" if array.dtype == "bool" else array.dtype)
        self.module.download(array, out, self.stream())
        return out

    def fill(self, value: float, n: int, dtype: str) -> Any:
        return self.upload(np.full(n, value), dtype)

    def real(self, array: Any) -> np.dtype[Any]:
        """The dtype of results: the dtype of the inputs, or float32 if the inputs have 16 bits."""
        return np.dtype("float32" if array.dtype in _SHORT else array.dtype)


def largest_score(what: str, top: float, dtype: np.dtype[Any]) -> float:
    if math.isnan(top):
        top = math.inf
    _checks.no_overflow(what, top, dtype)
    return top


def lost(figures: dict[str, float]) -> bool:
    """Whether the array with these figures has an entry that is not finite."""
    return bool(figures["nan"] or figures["plus_inf"] or figures["minus_inf"])
