"""Reports of a solve while it runs: calls of the caller's function, and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import _checks
from ._progress import Bar

Callback = Callable[[int, float], object]


@contextmanager
def reporter(
    callback: Callback | None, progress: bool, tol: float | None
) -> Iterator[Callback | None]:
    """The function that the solver calls with visits and error after each iteration, or None."""
    if callback is not None:
        _checks.function("callback", callback, "(visits, error)")
    if not progress:
        yield callback
        return
    with Bar("bridge", True, unit=" visits") as bar:

        def show(visits: int, error: float) -> None:
            bar.to(visits, f"error {error:.2e}" + ("" if tol is None else f", wanted {tol:.0e}"))
            if callback is not None:
                callback(visits, error)

        yield show
