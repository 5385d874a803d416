"""Imports other libraries; one that is missing is skipped with a line that says what to install."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness import Group, Options

WANTED = {
    "torch": "torch==2.13.0",
    "threadpoolctl": "threadpoolctl",
    "ot": "POT",
    "jax": "jax",
    "ott": "ott-jax",
    "optax": "optax",
    "diffrax": "diffrax",
    "pykeops": "pykeops",
    "geomloss": "geomloss pykeops",
    "regot": "regot",
}


def optional(name: str, group: Group | None = None) -> ModuleType | None:
    """The peer's module; if it is missing, None, and a note in the group."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if group is not None:
            note = f"skipped: {name} is not installed (pip install {WANTED[name]})"
            if note not in group.notes:
                group.notes.append(note)
                print(f"  {note}", flush=True)
        return None


def torch_module(options: Options, group: Group | None = None) -> Any:
    """PyTorch with the run's number of threads and no autograd, or None."""
    torch = optional("torch", group)
    if torch is not None:
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
    return torch


def blas_threads_setter() -> Callable[[int], None] | None:
    """A function that sets the number of threads of NumPy's BLAS; None without threadpoolctl."""
    control = optional("threadpoolctl")
    if control is None:
        return None
    libraries = control.ThreadpoolController().select(user_api="blas").lib_controllers

    def set_threads(threads: int) -> None:
        for library in libraries:
            library.set_num_threads(threads)

    return set_threads
