"""Schrödinger bridges on a device: the solver of the host over kernels that stay there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _checks
from .._bridge_problem import penalties
from .._bridge_report import Callback
from .._bridge_solve import ask, overflowed
from .._lazy_scores import Scores
from ._bridge_kernel import DeviceKernel
from ._cuda import Cuda

__all__ = ["solved"]

# Figures of one problem, of which a batch has arrays.
_FIGURES = ("status", "converged", "n_iter", "n_visits", "error", "worst", "method", "relaxation")


def solved(
    s: Scores,
    mu: Any,
    nu: Any,
    *,
    penalty: Any,
    init: Any,
    max_memory: float | None,
    callback: Callback | None,
    progress: bool,
    **options: Any,
) -> dict[str, Any]:
    """The fields of the result, its vectors on the device; one problem of a batch after the other."""
    c = s.backend
    assert isinstance(c, Cuda)
    pair = (init.f, init.g) if hasattr(init, "f") else init
    started = isinstance(pair, tuple) and len(pair) == 2
    given = (mu, nu, *pair) if started else (mu, nu)
    named = zip(("mu", "nu", "init f", "init g"), given, s.shape[-2:] * 2, strict=False)
    host = [_on_host(s, c, *one) for one in named]
    found = []
    for k, index in enumerate(np.ndindex(s.batch)):
        at = [x[index] for x in host]
        kernel = DeviceKernel(s._problem(k), at[0], penalties(penalty)[0], max_memory)
        start = (at[2], at[3]) if started else pair
        asked = ask(kernel, at[0], at[1], penalty=penalty, init=start, **options)
        try:
            found.append(asked.solved(callback, progress))
        except OverflowError:
            if not s.batch:
                raise
            found.append(asked.fields(overflowed(kernel)))  # the others have their results
    fields = found[0]
    if s.batch:
        for name in _FIGURES:
            fields[name] = np.array([one[name] for one in found]).reshape(s.batch)
        fields["errors"] = np.array([_last(one["errors"]) for one in found]).reshape(s.batch)
    for name in ("f", "g"):
        both = np.stack([one[name] for one in found])
        fields[name] = c.give(c.from_host(both.reshape(*s.batch, both.shape[-1])))
    return fields | {"mu": mu, "nu": nu}


def _on_host(s: Scores, c: Cuda, name: str, value: Any, length: int) -> Any:
    """A vector for every problem of the batch."""
    array = c.vector(name, value, str(s.dtype), length, s.batch)
    _checks.into_batch(name, array.shape, array.shape[:-1], s.batch)
    return np.broadcast_to(c.to_host(array), (*s.batch, length))


def _last(errors: Any) -> float:
    return float(errors[-1]) if len(errors) else math.inf
