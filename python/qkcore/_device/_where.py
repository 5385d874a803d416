"""Where arrays are, according to DLPack."""

from __future__ import annotations

import numpy as np

__all__ = ["CUDA", "device_of", "on_device", "place"]

CPU = (1, 3)  # memory of the host, ordinary or pinned
CUDA = (2, 13)  # memory of a device, ordinary or managed


def device_of(x: object) -> tuple[int, int] | None:
    """DLPack's device (type, index), or None for objects that have no ``__dlpack_device__``."""
    if type(x) is np.ndarray:
        return None
    ask = getattr(x, "__dlpack_device__", None)
    if ask is None or isinstance(x, np.ndarray):
        return None
    kind, index = ask()
    return int(kind), int(index)


def on_device(*arrays: object) -> bool:
    """Whether any of the arrays (or of the arrays in a tuple) lies on a CUDA device."""
    for x in arrays:
        if type(x) is np.ndarray or x is None:
            continue
        if isinstance(x, tuple):
            if on_device(*x):
                return True
            continue
        where = device_of(x)
        if where is None:
            continue
        if where[0] in CUDA:
            return True
        if where[0] not in CPU:
            raise TypeError(
                f"wanted arrays on the CPU or on a CUDA device, got a {type(x).__name__} on DLPack "
                f"device type {where[0]}; copy it to one of these"
            )
    return False


def place(x: object) -> str:
    where = device_of(x)
    if where is None or where[0] in CPU:
        return "the CPU"
    return f"cuda:{where[1]}"
