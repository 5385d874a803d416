"""The one progress bar of the package: tqdm, which is imported when a bar is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Bar", "track"]

T = TypeVar("T")

_SHARE = "{desc}: {percentage:3.0f}%|{bar}| "
_TIME = "[{elapsed}<{remaining}{postfix}]"


class Bar:
    """A progress bar, or nothing where ``show`` is False.

    ``show`` None: on terminals only, and it goes when all is done.
    ``total``: an int is a number of things, which are counted; a float is an amount like time, of which the
    bar shows the share; None means that nobody knows how much there is to do, and what is done is counted.
    """

    def __init__(
        self,
        name: str,
        show: bool | None,
        total: float | None = None,
        *,
        start: float = 0,
        unit: str = "",
    ) -> None:
        self._start = start
        self._bar: Any = None
        if show is False:
            return
        from tqdm.auto import tqdm

        if total is None:
            layout = "{desc}: {n_fmt}{unit} [{elapsed}{postfix}]"
        else:
            layout = _SHARE + ("{n_fmt}/{total_fmt} " if isinstance(total, int) else "") + _TIME
        self._bar = tqdm(
            desc=name,
            total=total,
            unit=unit,
            bar_format=layout,
            disable=None if show is None else False,
            leave=show is not None,
        )

    @property
    def report(self) -> Callable[[float], None] | None:
        """``to`` for an engine that need not be told of anything when there is no bar."""
        return None if self._bar is None else self.to

    def to(self, done: float, note: str = "") -> None:
        """Moves the bar to where ``done`` is, counted from ``start``; ``note`` is shown behind it."""
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._start - self._bar.n)

    def step(self, note: str = "") -> None:
        """One thing more is done."""
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(1)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def track(
    items: Iterable[T], name: str, show: bool | None, total: int | None = None
) -> Iterator[T]:
    """The items one after the other, with a bar that counts those that are done."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Bar(name, show, total) as bar:
        for item in items:
            yield item
            bar.step()
