"""The CUDA module, which is loaded when it is first needed, never at import."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

__all__ = ["module", "require", "status"]

_INSTALL = "install it with pip install qkcore-cuda, or build it with make cuda"
_NO_DRIVER = "no NVIDIA driver answers on this machine"

_loaded: Any = None
_failure = ""


def module() -> Any:
    """The CUDA module, or None, and then ``status`` says why."""
    global _loaded, _failure
    if _loaded is None and not _failure:
        if importlib.util.find_spec("qkcore_cuda") is None:
            _failure = f"the package qkcore-cuda is not installed; {_INSTALL}"
        else:
            try:
                _loaded = importlib.import_module("qkcore_cuda")
            except ImportError as error:
                _failure = f"qkcore_cuda cannot be imported: {error}"
    return _loaded


def status() -> dict[str, Any]:
    """Asks the driver whether there is a device to compute on, and if not, why."""
    found = module()
    if found is None:
        return {"available": False, "reason": _failure, "devices": []}
    out: dict[str, Any] = found.status()
    if not out["available"] and out["driver"] == 0:
        out["reason"] = f"{_NO_DRIVER} ({out['reason']})"
    out["module"] = found.version
    return out


def require(name: str = "CUDA") -> Any:
    """The CUDA module if there is a device, otherwise an error that says what is missing."""
    found = module()
    if found is None:
        raise RuntimeError(f"{name}: wanted CUDA, which is unavailable: {_failure}")
    now = status()
    if not now["available"]:
        raise RuntimeError(f"{name}: wanted CUDA, which is unavailable: {now['reason']}")
    return found


def _use(replacement: Any) -> Any:
    """Replaces the CUDA module, for tests, and returns the previous one."""
    global _loaded, _failure
    before, _loaded, _failure = _loaded, replacement, ""
    return before
