"""Reads tensors from a file in PyTorch's older format, without PyTorch and without running code from it.

The file is a sequence of pickles (a magic number, a version, facts about the machine, the dictionary, the
names of the storages), followed by the storages, each a count and its raw numbers. The dictionary may name
two harmless functions and the types of storages; everything else is refused. Inconsistent files are refused
too: every number is checked against the size of the file before it is used.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

MAGIC = 0x1950A86A20F9469CFC6C
_TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}
_MOST_AXES = 16


class _Later:
    """A tensor whose numbers are read later, from the end of the file."""

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any) -> None:
        self.key, self.dtype, self.count = storage
        self.offset, self.size, self.stride = offset, tuple(size), tuple(stride)
        numbers = (self.count, offset, *self.size, *self.stride)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("wanted whole numbers of at least 0 for offsets, sizes and strides")
        if not len(self.size) == len(self.stride) <= _MOST_AXES:
            raise ValueError(
                f"wanted as many strides as sizes, at most {_MOST_AXES}, "
                f"got {len(self.stride)} and {len(self.size)}"
            )
        # Strides of 0 are refused: they repeat an axis, so that the tensor would need more memory than the
        # file.
        entries = math.prod(self.size)
        last = offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        if offset > self.count or entries > self.count or (entries and last >= self.count):
            raise ValueError(f"wanted a tensor within its {self.count} numbers, got one beyond")

    def array(self, storage: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not math.prod(self.size):
            return np.empty(self.size, storage.dtype)
        step = storage.itemsize
        view = np.lib.stride_tricks.as_strided(
            storage[self.offset :], self.size, [step * s for s in self.stride], writeable=False
        )
        # Reshape removes the axis of a single number.
        return np.ascontiguousarray(view).reshape(self.size)


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Later:
    return _Later(storage, offset, size, stride)


class _Careful(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        raise pickle.UnpicklingError(f"wanted tensors only, got {module}.{name}")

    def persistent_load(self, saved: Any) -> tuple[str, str, int]:
        _, dtype, key, _place, count, *_rest = saved
        if not (isinstance(key, str) and dtype in _TYPES.values()):
            raise pickle.UnpicklingError("wanted the name and the type of a storage")
        return key, dtype, count


def read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors by name; raises a ValueError if the file is broken or of another kind."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except OSError:
        raise
    except Exception as error:  # unpickling broken data can raise nearly any exception
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ValueError(
            f"{path}: wanted a file of torch.save in its older format, got a broken one or another ({reason})"
        ) from error


def _read(file: BinaryIO) -> dict[str, npt.NDArray[Any]]:
    if _unpickled(file) != MAGIC:
        raise ValueError("another magic number")
    _unpickled(file)  # version
    _unpickled(file)  # machine
    tensors, keys = _unpickled(file), _unpickled(file)
    if not isinstance(tensors, dict) or not all(
        isinstance(n, str) and isinstance(t, _Later) for n, t in tensors.items()
    ):
        raise ValueError("wanted tensors by name")
    kinds: dict[str, tuple[str, int]] = {}
    for t in tensors.values():
        if kinds.setdefault(t.key, (t.dtype, t.count)) != (t.dtype, t.count):
            raise ValueError("one storage of two types or sizes")
    if not isinstance(keys, list) or sorted(keys) != sorted(kinds):
        raise ValueError("wanted every storage once")
    storages = {key: _storage(file, *kinds[key]) for key in keys}
    if _left(file):
        raise ValueError(f"{_left(file)} bytes more than the storages have")
    return {name: t.array(storages[t.key]) for name, t in tensors.items()}


def _unpickled(file: BinaryIO) -> Any:
    """The next pickle of the file; its operations are checked before any of them is executed.

    Otherwise a broken length or position in the memo would make the unpickler ask for all memory.
    """
    start = file.tell()
    content: Any = _Bounded(file, _left(file))
    for operations, (code, argument, _) in enumerate(pickletools.genops(content)):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > operations:
            raise pickle.UnpicklingError("a memo with holes")
    end = file.tell()
    file.seek(start)
    return _Careful(io.BytesIO(file.read(end - start))).load()


class _Bounded:
    """Limits reads to the rest of the file, because asking a file for more reserves the memory first."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file, self._end = file, file.tell() + left
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, self._end - self._file.tell()))

    def readline(self) -> bytes:
        return self._file.readline()


def _left(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size - file.tell()


def _storage(file: BinaryIO, dtype: str, wanted: int) -> npt.NDArray[Any]:
    (count,) = struct.unpack("<q", file.read(8))
    needed = count * np.dtype(dtype).itemsize
    if count != wanted or needed > _left(file):
        raise ValueError(
            f"wanted a storage of {wanted} numbers, got {count}, and {_left(file)} bytes to the end"
        )
    return np.frombuffer(file.read(needed), dtype)
