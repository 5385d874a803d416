"""The array libraries that own device memory: their streams, how they allocate, and how they adopt arrays.

For everything else DLPack is enough.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Library", "library_of"]


class Library:
    """Any library that follows the array API standard, given by its namespace."""

    # Whether results must be complete when a call returns, because the library does not know our streams.
    waits = True

    def __init__(self, namespace: Any) -> None:
        self._xp = namespace

    def stream(self, device: int) -> int:
        """The caller's current stream."""
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        """A new array of the library to write to, or None if we have to allocate it."""
        return None

    def take(self, array: Any) -> Any:
        """An array of the library that uses our memory."""
        return self._xp.from_dlpack(array)

    def transpose(self, array: Any) -> Any:
        return array.mT

    def hint(self, name: str, device: int) -> str:
        """Code with which a caller moves an array to the device."""
        return f"asarray({name}, device=...) of the library of the other arrays"


class CuPy(Library):
    waits = False

    def stream(self, device: int) -> int:
        with self._xp.cuda.Device(device):
            return int(self._xp.cuda.get_current_stream().ptr)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        with self._xp.cuda.Device(device):
            return self._xp.empty(shape, dtype)

    def transpose(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def hint(self, name: str, device: int) -> str:
        return f"cupy.asarray({name})"


class PyTorch(Library):
    waits = False

    def stream(self, device: int) -> int:
        return int(self._xp.cuda.current_stream(device).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        return self._xp.empty(shape, dtype=getattr(self._xp, dtype), device=f"cuda:{device}")

    def hint(self, name: str, device: int) -> str:
        return f"torch.as_tensor({name}, device='cuda:{device}')"


class JAX(Library):
    """JAX. Its arrays cannot be written to, and its streams are hidden, so we allocate and wait."""

    def take(self, array: Any) -> Any:
        return self._xp.dlpack.from_dlpack(array)

    def transpose(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def hint(self, name: str, device: int) -> str:
        return f"jax.device_put({name}, jax.devices('cuda')[{device}])"


_CLASSES: dict[str, type[Library]] = {"cupy": CuPy, "torch": PyTorch, "jax": JAX}
_known: dict[str, Library] = {}


def library_of(array: Any) -> Library:
    """The library that an array belongs to."""
    root = type(array).__module__.partition(".")[0]
    root = "jax" if root == "jaxlib" else root
    if root in _known:
        return _known[root]
    if root in _CLASSES:  # imported already, since there is an array of it
        return _known.setdefault(root, _CLASSES[root](importlib.import_module(root)))
    if hasattr(array, "__array_namespace__"):
        return Library(array.__array_namespace__())
    raise TypeError(
        f"wanted arrays of CuPy, PyTorch, JAX or a library with __array_namespace__, got "
        f"{type(array).__module__}.{type(array).__name__}; convert them with one of these"
    )
