"""Words, flags, functions and classes that a caller passes; and the form of every refusal."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")

_SHORT = reprlib.Repr()


_SHORT.maxother = _SHORT.maxstring = 80


def shown(value: object) -> str:
    """A value as a message gives it: in full where that is short, an array of some size by its shape."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array of shape {value.shape}"
    return _SHORT.repr(value)


def refuse(
    name: str, wanted: str, got: str, do: str = "", error: type[Exception] = ValueError
) -> NoReturn:
    """Raises the message of a refused argument: its name, what was wanted, what came, what to do."""
    raise error(f"{name}: wanted {wanted}, got {got}{do and f'; {do}'}") from None


def instance(
    name: str, value: object, kind: type[T] | tuple[type[T], ...], wanted: str, do: str = ""
) -> T:
    """Refuses an argument of another class; ``wanted`` says what it should be, ``do`` how to make one."""
    if not isinstance(value, kind):
        refuse(name, wanted, type(value).__name__, do, TypeError)
    return value


def function(name: str, value: object, of: str = "", do: str = "") -> None:
    """Refuses what cannot be called; ``of`` names the arguments that it will get."""
    if not callable(value):
        wanted = f"a function of {of}" if of else "a function"
        refuse(name, wanted, type(value).__name__, do, TypeError)


def flag(name: str, value: object, do: str = "") -> bool:
    """True or False, of Python or NumPy, and nothing that only counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, "True or False", shown(value), do, TypeError)
    return bool(value)


def one_of(name: str, value: Any, choices: Collection[Any], do: str = "") -> Any:
    """One of a few words (or None, or numbers): the choice that the value is equal to."""
    if isinstance(value, str | int | float | None):
        for choice in choices:
            if value == choice:
                return choice
    words = [repr(choice) for choice in choices]
    listed = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    refuse(name, listed, shown(value), do)


def exactly_one(name: str, do: str = "", **given: object) -> None:
    """Refuses arguments that exclude each other, or of which one is needed (None: not given)."""
    names = [key for key, value in given.items() if value is not None]
    if len(names) != 1:
        none = "neither" if len(given) == 2 else "none of them"
        refuse(name, f"one of {', '.join(given)}", " and ".join(names) or none, do)


def some(name: str, number: int, least: int, what: str, do: str = "") -> None:
    """Refuses a collection of fewer than ``least`` entries."""
    if number < least:
        words = {1: "one", 2: "two"}
        refuse(name, f"at least {words.get(least, least)} {what}", str(number or "none"), do)
