"""The progress bar of the package, made with tqdm, which is imported only when a bar is asked for."""

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

    With ``show`` None the bar appears on terminals only, and disappears at the end.
    ``total`` says how much there is to do. An int is a number of things, which are counted; for a float, an
    amount such as time, the bar shows the share that is done; None means that the total is unknown, and the
    bar only counts what is done.
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
        """The function :meth:`to` if there is a bar, otherwise None, so that an engine need not call it."""
        return None if self._bar is None else self.to

    def to(self, done: float, note: str = "") -> None:
        """Moves the bar to ``done``, which counts from ``start``; ``note`` is shown after the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._start - self._bar.n)

    def step(self, note: str = "") -> None:
        """Counts one more thing as done."""
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
    """Yields the items one after the other, with a bar that counts them."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Bar(name, show, total) as bar:
        for item in items:
            yield item
            bar.step()
