"""What a solve tells while it runs: the caller's function, and a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import _checks

Callback = Callable[[int, float], object]


@contextmanager
def reporter(
    callback: Callback | None, progress: bool, tol: float | None
) -> Iterator[Callback | None]:
    """What the solver calls with visits and error after each iteration; None if nobody wants to know."""
    if callback is not None:
        _checks.function("callback", callback, "(visits, error)")
    if not progress:
        yield callback
        return
    from tqdm.auto import tqdm

    bar = tqdm(desc="bridge", unit=" visits", total=None)

    def show(visits: int, error: float) -> None:
        bar.update(visits - bar.n)
        wanted = "" if tol is None else f", wanted {tol:.0e}"
        bar.set_postfix_str(f"error {error:.2e}{wanted}", refresh=False)
        if callback is not None:
            callback(visits, error)

    try:
        yield show
    finally:
        bar.close()
