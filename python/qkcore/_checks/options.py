"""Checks of words, flags, functions and classes, and the form of all messages."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")

_SHORT = reprlib.Repr()


_SHORT.maxother = _SHORT.maxstring = 80


def shown(value: object) -> str:
    """A value as messages show it: in full if that is short; a larger array by its shape."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array of shape {value.shape}"
    return _SHORT.repr(value)


def refuse(
    name: str, wanted: str, got: str, do: str = "", error: type[Exception] = ValueError
) -> NoReturn:
    """Raises the error for a refused argument: its name, what was wanted, what came, what to do."""
    raise error(f"{name}: wanted {wanted}, got {got}{do and f'; {do}'}") from None


def instance(
    name: str, value: object, kind: type[T] | tuple[type[T], ...], wanted: str, do: str = ""
) -> T:
    """Refuses a value of another class; ``wanted`` names the right one, ``do`` says how to make it."""
    if not isinstance(value, kind):
        refuse(name, wanted, type(value).__name__, do, TypeError)
    return value


def function(name: str, value: object, of: str = "", do: str = "") -> None:
    """Refuses a value that cannot be called; ``of`` names the arguments that the function gets."""
    if not callable(value):
        wanted = f"a function of {of}" if of else "a function"
        refuse(name, wanted, type(value).__name__, do, TypeError)


def flag(name: str, value: object, do: str = "") -> bool:
    """True or False, of Python or NumPy; other values that Python treats as true or false are refused."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, "True or False", shown(value), do, TypeError)
    return bool(value)


def one_of(name: str, value: Any, choices: Collection[Any], do: str = "") -> Any:
    """The choice, among a few words (or None, or numbers), that the value is equal to."""
    if isinstance(value, str | int | float | None):
        for choice in choices:
            if value == choice:
                return choice
    words = [repr(choice) for choice in choices]
    listed = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    refuse(name, listed, shown(value), do)


def exactly_one(name: str, do: str = "", **given: object) -> None:
    """Refuses arguments unless exactly one of them is given; None means not given."""
    names = [key for key, value in given.items() if value is not None]
    if len(names) != 1:
        none = "neither" if len(given) == 2 else "none of them"
        refuse(name, f"one of {', '.join(given)}", " and ".join(names) or none, do)


def some(name: str, number: int, least: int, what: str, do: str = "") -> None:
    """Refuses a collection of fewer than ``least`` entries."""
    if number < least:
        words = {1: "one", 2: "two"}
        refuse(name, f"at least {words.get(least, least)} {what}", str(number or "none"), do)
