"""Checks of spans of time and of times within them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import doubles
from .numbers import number
from .options import refuse, shown


def time_span(name: str, value: Any, backwards: str = "") -> tuple[float, float]:
    """(t0, t1) with t0 < t1; ``backwards`` says how to run a flow backwards in time."""
    try:
        pair = list(value)
    except TypeError:
        refuse(name, "a pair (t0, t1)", shown(value), f"pass e.g. {name}=(0.0, 1.0)", TypeError)
    if len(pair) != 2:
        refuse(name, "a pair (t0, t1)", shown(value), f"pass e.g. {name}=(0.0, 1.0)")
    first, last = number(f"{name}[0]", pair[0]), number(f"{name}[1]", pair[1])
    if not first < last:
        back = backwards or "swap the times and negate the velocity (V of attention)"
        refuse(name, "t0 < t1", f"({first:g}, {last:g})", f"to run backwards {back}")
    return first, last


def rising(
    name: str,
    times: npt.NDArray[Any],
    least: int = 1,
    what: str = "times",
    *,
    strictly: bool = True,
    do: str = "",
) -> None:
    """Refuses an array unless it is a vector of at least ``least`` numbers in rising order.

    With ``strictly=False`` neighbours may be equal.
    """
    steps = np.diff(times) if times.ndim == 1 else np.zeros(0)
    if times.ndim != 1 or len(times) < least or (steps <= 0 if strictly else steps < 0).any():
        wanted = f"{f'at least {least} ' if least > 1 else ''}rising {what} (n,)"
        got = f"shape {times.shape}" if times.ndim != 1 or len(times) < least else "others"
        refuse(name, wanted, got, do or "sort them, drop repeats")


def rising_times(name: str, value: npt.ArrayLike, t0: float, t1: float) -> npt.NDArray[np.float64]:
    """Strictly rising times within [t0, t1]."""
    times = doubles(name, value)
    rising(name, times)
    if times[0] < t0 or times[-1] > t1:
        refuse(name, f"rising times in [{t0:g}, {t1:g}]", f"{times[0]:g} to {times[-1]:g}")
    return times


def output_times(
    value: npt.ArrayLike | None, span: tuple[float, float]
) -> npt.NDArray[np.float64] | None:
    """``t_eval``: rising times within a span, which may be repeated; or None."""
    if value is None:
        return None
    times = doubles("t_eval", value)
    rising("t_eval", times, strictly=False, do="sort it")
    if times[0] < span[0] or times[-1] > span[1]:
        got = f"{times[0]:.6g} to {times[-1]:.6g}"
        refuse("t_eval", f"times within t_span {span}", got)
    return times
