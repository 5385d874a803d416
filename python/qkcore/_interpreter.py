"""Refuses subinterpreters, in which the compiled engine cannot work, before it is loaded."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def _is_main() -> bool:
    """Whether this is the main interpreter of the process; True if Python cannot tell."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, and before
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        here, main = interpreters.get_current(), interpreters.get_main()
        # These are identifiers, or since Python 3.13 pairs of an identifier and the interpreter's origin.
        first, second = (x[0] if isinstance(x, tuple) else x for x in (here, main))
        return bool(first == second)
    return True


if not _is_main():
    # In a subinterpreter the import of the modules would wait for ever for a lock that this thread holds.
    raise ImportError(
        "qkcore: wanted the main interpreter, got a subinterpreter, which the compiled modules (and NumPy's) "
        "do not support; import qkcore in the main interpreter, or use a process (multiprocessing, "
        "subprocess) instead"
    )
