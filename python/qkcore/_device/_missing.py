"""What a class of CPU arrays has and that of device arrays has not: an error that says so."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["missing"]


def missing(on_device: object, name: str, counterpart: type) -> NoReturn:
    """For ``__getattr__``, which is asked for what is not there."""
    kind = type(on_device).__name__
    if not name.startswith("_") and hasattr(counterpart, name):
        raise AttributeError(
            f"{name}: wanted CPU arrays, got a {kind}; {counterpart.__name__}.{name} is not there for "
            "arrays on a device: copy them to the CPU"
        )
    raise AttributeError(f"{kind!r} object has no attribute {name!r}")
