"""Calls of NumPy on long vectors, piece by piece, so that Ctrl-C can interrupt them.

A single call of NumPy cannot be interrupted, and takes seconds for 10^8 entries. A vector that is no longer
than one piece is passed on as it is, so short vectors cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["converted", "mapped", "pieces", "total"]

Array = npt.NDArray[Any]

# The length of a piece along the last axis; a call on one piece takes some milliseconds.
_PIECE = 2**20


def pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Slices of arrays along their common last axis, all cut at the same places."""
    n = arrays[0].shape[-1]
    if n <= _PIECE:
        yield arrays
        return
    for start in range(0, n, _PIECE):
        yield tuple(x[..., start : start + _PIECE] for x in arrays)


def mapped(function: Callable[..., Array], *arrays: Array) -> Array:
    """``function(*arrays)``, for a function that works entry by entry along the last axis."""
    n = arrays[0].shape[-1]
    if n <= _PIECE:
        return function(*arrays)
    out: Array | None = None
    start = 0
    for cut in pieces(*arrays):
        part = function(*cut)
        if out is None:
            out = np.empty((*part.shape[:-1], n), part.dtype)
        out[..., start : start + part.shape[-1]] = part
        start += part.shape[-1]
    assert out is not None
    return out


def total(function: Callable[..., Any], *arrays: Array) -> Any:
    """The sum of the values that ``function`` has for the pieces, e.g. their sums over the last axis."""
    if arrays[0].shape[-1] <= _PIECE:
        return function(*arrays)
    found: Any = None
    for cut in pieces(*arrays):
        part = function(*cut)
        found = part if found is None else found + part
    return found


def converted(array: Array, dtype: npt.DTypeLike) -> Array:
    """The array in the given dtype and C-contiguous; it is not copied if it is so already."""
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    return mapped(lambda x: x.astype(dtype, order="C"), array)
