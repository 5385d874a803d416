"""The same functions for arrays on a device, which are recognised by their ``__dlpack_device__``.

This package is imported with qkcore. The module ``qkcore_cuda``, and with it the driver, is loaded only when
an array on a device is passed.
"""

from typing import Any, TypeGuard

from ._where import on_device, place

__all__ = ["is_scores", "on_device", "place", "to_host"]


def is_scores(s: object) -> TypeGuard[Any]:
    """Whether ``s`` is scores whose arrays are on a device."""
    return hasattr(s, "terms") and not getattr(getattr(s, "backend", None), "host_arrays", True)


def to_host(name: str, array: object) -> Any:
    """A device array as a NumPy array."""
    from ._arrays import Context

    c = Context(array)
    return c.download(c.take(name, array))
