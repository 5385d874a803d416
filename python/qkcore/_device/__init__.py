"""The same calls on device arrays: recognised by ``__dlpack_device__``, computed by ``qkcore_cuda``.

The package is loaded with qkcore; the module, and with it the driver, when an array on a device turns up.
"""

from typing import Any, TypeGuard

from ._where import on_device, place

__all__ = ["is_scores", "on_device", "place", "to_host"]


def is_scores(s: object) -> TypeGuard[Any]:
    """Whether these are scores of device arrays."""
    return hasattr(s, "terms") and not getattr(getattr(s, "backend", None), "host_arrays", True)


def to_host(name: str, array: object) -> Any:
    """A device array as a NumPy array."""
    from ._arrays import Context

    c = Context(array)
    return c.download(c.take(name, array))
