"""Bridges of a batch, solved one after the other: the vectors of each problem, and one result for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _checks
from ._backend import Backend
from ._bridge_report import Callback
from ._bridge_solve import Asked, overflowed
from ._lazy_scores import Real

__all__ = ["Vectors", "each_solved", "solved_fields"]

# The result of a batch has arrays of the figures, and the vectors with the batch axes in front.
_FIGURES = ("status", "converged", "n_iter", "n_visits", "error", "worst", "method", "relaxation")
_VECTORS = ("f", "g", "u", "v", "mu", "nu")


class Vectors:
    """Marginals and starting potentials as NumPy arrays, for every problem of scores or factors."""

    def __init__(self, kernel: Any, mu: Any, nu: Any, init: Any) -> None:
        b: Backend = kernel.backend
        batch, lengths = kernel.batch, kernel.shape[-2:] * 2
        pair = (init.f, init.g) if hasattr(init, "f") else init
        started = isinstance(pair, tuple) and len(pair) == 2
        given = (mu, nu, *pair) if started else (mu, nu)
        names = ("mu", "nu", "init f", "init g")
        named = list(zip(names, given, lengths, strict=False))
        self._init = None if started else pair
        self._here: list[Real] = []
        found = b.vectors(kernel.dtype, batch, *named)
        for (name, _, length), (array, _) in zip(named, found, strict=True):
            _checks.into_batch(name, array.shape, array.shape[:-1], batch)
            self._here.append(np.broadcast_to(b.to_host(array), (*batch, length)))

    def of(self, index: tuple[int, ...]) -> tuple[Real, Real, Any]:
        """mu, nu and the start of one problem."""
        mu, nu, *start = (x[index] for x in self._here)
        return mu, nu, tuple(start) if start else self._init


def solved_fields(
    asked: Asked, alone: bool, callback: Callback | None, progress: bool
) -> dict[str, Any]:
    """The fields of one result. If its potentials overflow, the rest of a batch is solved all the same."""
    try:
        return asked.solved(callback, progress)
    except OverflowError:
        if alone:
            raise
        return asked.fields(overflowed(asked.problem.kernel))


def each_solved(
    batch: tuple[int, ...], call: Callable[[tuple[int, ...]], dict[str, Any]]
) -> dict[str, Any]:
    """The fields of one result for all problems; without batch axes, the fields of the only problem."""
    found = [call(index) for index in np.ndindex(batch)]
    fields = found[0]
    if not batch:
        return fields
    for name in _FIGURES + ("signs_checked",) * ("signs_checked" in fields):
        fields[name] = np.array([one[name] for one in found]).reshape(batch)
    last = [float(one["errors"][-1]) if len(one["errors"]) else math.inf for one in found]
    fields["errors"] = np.array(last).reshape(batch)
    for name in _VECTORS:
        if name in fields:
            both = np.stack([one[name] for one in found])
            fields[name] = both.reshape(*batch, both.shape[-1])
    return fields
