"""Sampled paths: times, states, and how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import _checks
from ._arrays import Float, count


@dataclass(frozen=True, eq=False)
class Path:
    """States of n samples in d dimensions at the saved times."""

    t: Float = field(repr=False)
    x: Float = field(repr=False)
    """(times, n, d)"""
    method: str
    n_steps: int

    def __str__(self) -> str:
        times, n, d = self.x.shape
        return (
            f"{n} paths in {d} dimensions by {self.method}, {self.n_steps} steps from t = {self.t[0]:g} to "
            f"{self.t[-1]:g}, {times} states kept"
        )


def time_grid(t_span: Sequence[float], n_steps: int) -> Float:
    """n_steps + 1 equally spaced times, forwards or backwards."""
    if len(t_span) != 2:
        raise ValueError(f"t_span: wanted (start, end), got {len(t_span)} numbers")
    start, end = (_checks.number(f"t_span[{k}]", t) for k, t in enumerate(t_span))
    if start == end:
        raise ValueError(f"t_span: wanted two different times, got {start:g} twice")
    return np.linspace(start, end, n_steps + 1)


def saved_steps(n_steps: int, n_saved: int | None) -> set[int]:
    """Which steps are kept: n_saved, evenly spread, the first and the last among them."""
    if n_saved is None:
        return set(range(n_steps + 1))
    n = count("n_saved", n_saved, 2)
    return {int(k) for k in np.linspace(0, n_steps, min(n, n_steps + 1)).round()}
