"""Tensors of a file that PyTorch saved in its older format, without PyTorch, running nothing that is in it.

The file is a row of pickles (a magic number, a version, facts on the machine, the dictionary, the names of
its storages) and then the storages, each a count and its raw numbers. The dictionary may name two
harmless functions and the types of storages; everything else is refused.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

MAGIC = 0x1950A86A20F9469CFC6C
_TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


class _Later:
    """A tensor whose numbers come at the end of the file."""

    def __init__(
        self, key: str, dtype: str, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
    ) -> None:
        self.key, self.dtype, self.offset, self.size, self.stride = key, dtype, offset, size, stride

    def array(self, storage: npt.NDArray[Any]) -> npt.NDArray[Any]:
        step = storage.itemsize
        view = np.lib.stride_tricks.as_strided(
            storage[self.offset :], self.size, [step * s for s in self.stride], writeable=False
        )
        return np.ascontiguousarray(view)


def _rebuild(storage: tuple[str, str], offset: int, size: Any, stride: Any, *_: Any) -> _Later:
    return _Later(*storage, offset, tuple(size), tuple(stride))


class _Careful(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        raise pickle.UnpicklingError(f"wanted tensors only, got {module}.{name}")

    def persistent_load(self, saved: Any) -> tuple[str, str]:
        _, dtype, key, *_rest = saved
        return key, dtype


def read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors by name."""
    with path.open("rb") as file:
        if _Careful(file).load() != MAGIC:
            raise pickle.UnpicklingError(f"{path}: wanted a file of torch.save in its older format")
        _Careful(file).load()  # version
        _Careful(file).load()  # machine
        tensors: dict[str, _Later] = _Careful(file).load()
        keys: list[str] = _Careful(file).load()
        kinds = {t.key: t.dtype for t in tensors.values()}
        storages = {key: _storage(file, kinds[key]) for key in keys}
    return {name: t.array(storages[t.key]) for name, t in tensors.items()}


def _storage(file: BinaryIO, dtype: str) -> npt.NDArray[Any]:
    (count,) = struct.unpack("<q", file.read(8))
    return np.fromfile(file, dtype=dtype, count=count)
