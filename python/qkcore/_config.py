"""The number of threads, and a description of this installation."""

from __future__ import annotations

import os
from typing import Any

from . import _cpuid, _native

MAX_THREADS = 1024


def _cpus() -> int:
    """The number of CPUs that this process may use; a container or taskset may restrict it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_threads(name: str, n: object) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"{name}: wanted an integer of at least 1, got {n!r}; pass e.g. {name}=2")
    count = int(n.__index__())
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(
            f"{name}: wanted an integer from 1 to {MAX_THREADS}, got {count}; "
            f"this process may use {_cpus()} CPUs"
        )
    return count


def _initial_threads() -> int:
    text = os.environ.get("QKCORE_NUM_THREADS", "").strip()
    if not text:
        return min(_cpus(), MAX_THREADS)
    try:
        value = int(text)
    except ValueError:
        raise ValueError(
            f"QKCORE_NUM_THREADS: wanted an integer of at least 1, got {text!r}; "
            "set it to a number or unset it"
        ) from None
    return _check_threads("QKCORE_NUM_THREADS", value)


_threads = _initial_threads()


def set_num_threads(n: int) -> None:
    """Sets how many threads later calls use when they are not given ``n_threads``.

    >>> import qkcore as qk
    >>> before = qk.get_num_threads()
    >>> qk.set_num_threads(1)
    >>> qk.get_num_threads()
    1
    >>> qk.set_num_threads(before)
    """
    global _threads
    _threads = _check_threads("n", n)


def get_num_threads() -> int:
    """The number of threads used by calls that are not given ``n_threads``."""
    return _threads


def resolve_threads(n_threads: int | None) -> int:
    return _threads if n_threads is None else _check_threads("n_threads", n_threads)


def config() -> dict[str, Any]:
    """A description of this installation and of the machine, as a dictionary.

    ``isa`` is the instruction-set level in use (``QKCORE_ISA`` overrides the choice), and ``isa_available``
    lists all levels that can run here. ``thread_shortage`` is "" unless the system has refused to start some
    threads (because of a limit on processes or memory). Calls then run on the threads that did start, with
    the same results.

    >>> import qkcore as qk
    >>> qk.config()["isa"] in qk.config()["isa_available"]
    True
    """
    return {
        "version": _cpuid.version,
        "isa": _native.isa,
        "isa_available": _native.available_levels(),
        "simd_bits": 8 * _native.cpu.SIMD_BYTES,
        "cpu": _cpuid.brand(),
        "threads": _threads,
        "thread_shortage": _thread_shortage(),
        "compiler": _native.cpu.COMPILER,
        "eigen": _native.cpu.EIGEN,
        "cuda": _cuda(),
    }


def _thread_shortage() -> str:
    wanted, had = _native.cpu.thread_shortage()
    return f"wanted {wanted}, the system started {had}" if wanted else ""


def _cuda() -> dict[str, Any]:
    from ._device import _backend  # imported here: the query initialises the driver

    return _backend.status()


def show_config() -> None:
    """Prints :func:`config`, one line per entry, for bug reports."""
    for name, value in config().items():
        if name == "cuda":
            names = ", ".join(device["name"] for device in value["devices"])
            value = names if value["available"] else f"unavailable: {value['reason']}"
        elif isinstance(value, list):
            value = ", ".join(value)
        elif name == "thread_shortage":
            value = value or "none"
        print(f"{name:15s} {value}")
