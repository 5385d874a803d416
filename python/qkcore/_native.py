"""Chooses, once at import, the build of the engine that fits the processor."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING

from . import _cpuid

if TYPE_CHECKING:
    from . import _cpu_api as cpu

__all__ = ["available_levels", "cpu", "isa"]

# The best level comes first. `native` exists only in development builds, made for the machine that built it.
# `wide` is a test build: it has the tile shapes of v4, but does not use its instructions.
_LEVELS = ("native", "v4", "v3", "v2", "baseline", "wide")
_SUPPORTED = {
    "v1": ("native", "baseline"),
    "v2": ("native", "baseline", "v2"),
    "v3": ("native", "baseline", "v2", "v3", "wide"),
    "v4": ("native", "baseline", "v2", "v3", "v4", "wide"),
    "baseline": ("native", "baseline"),
}


def available_levels() -> list[str]:
    """The levels that are installed and that this processor can run, best first."""
    runnable = _SUPPORTED[_cpuid.level()]
    return [
        level
        for level in _LEVELS
        if level in runnable and importlib.util.find_spec(f"qkcore._cpu_{level}") is not None
    ]


def _choose() -> str:
    levels = available_levels()
    forced = os.environ.get("QKCORE_ISA", "").strip()
    if forced and forced not in levels:
        reason = "this processor or this build lacks it" if forced in _LEVELS else "no such level"
        raise ImportError(
            f"QKCORE_ISA={forced!r}: {reason}; available here: {', '.join(levels) or 'none'}. "
            "Unset QKCORE_ISA to choose automatically."
        )
    if not levels:
        raise ImportError(
            f"no build of the qkcore engine runs on this processor (level {_cpuid.level()}); "
            "build from source: pip install --no-binary qkcore qkcore "
            "-C cmake.define.QKCORE_ISA_LEVELS=native"
        )
    return forced or levels[0]


isa = _choose()
if not TYPE_CHECKING:
    cpu = importlib.import_module(f"qkcore._cpu_{isa}")
