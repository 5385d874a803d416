"""A device array library for tests: its arrays are memory of the SIMT layer, shared as CUDA memory.

The module that computes (build/simt/qkcore_simt, `make simt`) is qkcore_cuda's host code with its bindings,
compiled for the SIMT layer with small tiles. So dispatch, checks, allocations and launches are the same as
for a GPU.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels import BUILD

STREAMS: list[int | None] = []  # the streams that calls of __dlpack__ gave


def _file() -> str | None:
    found = sorted(BUILD.glob("qkcore_simt*.so"))
    return str(found[-1]) if found else None


def built() -> bool:
    return _file() is not None


@lru_cache
def module() -> Any:
    path = _file()
    assert path is not None
    loader = importlib.machinery.ExtensionFileLoader("qkcore_simt", path)
    spec = importlib.util.spec_from_loader("qkcore_simt", loader)
    assert spec is not None
    out = importlib.util.module_from_spec(spec)
    loader.exec_module(out)
    return out


class FakeArray:
    """An array on a pretended device."""

    def __init__(self, memory: Any, *, old: bool = False) -> None:
        self.memory = memory
        self.old = old  # a library that knows only the first version of DLPack

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.memory.shape)

    @property
    def dtype(self) -> str:
        return str(self.memory.dtype)

    @property
    def mT(self) -> FakeArray:
        return FakeArray(self.memory.T)

    @property
    def T(self) -> FakeArray:
        return self.mT

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return sys.modules[__name__]

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.memory.__dlpack_device__()
        return int(kind), int(index)

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        STREAMS.append(options.get("stream"))
        return self.memory.__dlpack__(**options)

    def every(self, step: int) -> FakeArray:
        """Every step-th entry of the last axis: not contiguous."""
        *lead, length = self.memory.shape
        strides = list(self.memory.strides)
        strides[-1] *= step
        shape = [*lead, -(-length // step)]
        return FakeArray(module().simt_view(self.memory, shape, strides))

    def readonly(self) -> FakeArray:
        return FakeArray(module().simt_readonly(self.memory))


def from_dlpack(x: Any) -> FakeArray:
    return FakeArray(module().asarray(x))


def asarray(host: Any, device: int = 0, dtype: str | None = None) -> FakeArray:
    """A copy of a NumPy array on the pretended device; bfloat16 from its bits."""
    ready = np.ascontiguousarray(host)
    name = dtype or ready.dtype.name
    return FakeArray(module().upload(ready.view(np.uint8), ready.shape, name, device))


def numpy(x: FakeArray) -> NDArray[Any]:
    memory = x.memory
    if not memory.contiguous:  # arrays that a library would have to copy first
        assert memory.T.contiguous
        return numpy(FakeArray(memory.T)).swapaxes(-1, -2)
    out = np.empty(memory.shape, memory.dtype)
    module().download(memory, out.view(np.uint8) if out.ndim else out)
    return out
