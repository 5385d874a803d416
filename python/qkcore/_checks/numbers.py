"""Checks of single numbers and integers, and of their ranges."""

from __future__ import annotations

import math

import numpy as np

from .options import refuse, shown


def _float(value: object) -> float:
    """float(value) for a real number, or inf if it is too large. Everything else raises TypeError.

    float() alone also accepts text, complex numbers of NumPy (with a warning), and arrays of one entry.
    """
    if isinstance(value, (str, bytes, complex, np.complexfloating)):
        raise TypeError
    if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind == "c"):
        raise TypeError
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an int or a fraction
        return math.inf
    except ValueError:
        raise TypeError from None


def positive(name: str, value: object) -> float:
    if type(value) is float and 0.0 < value < math.inf:
        return value
    try:
        number = _float(value)
    except TypeError:
        raise TypeError(
            f"{name}: wanted a finite number > 0, got {shown(value)}; pass e.g. {name}=1.0"
        ) from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"{name}: wanted a finite number > 0, got {shown(value)}; pass e.g. {name}=1.0"
        )
    return number


def number(name: str, value: object) -> float:
    """A finite real number of either sign."""
    try:
        out = _float(value)
    except TypeError:
        raise TypeError(
            f"{name}: wanted a real number, got {shown(value)}; pass e.g. {name}=1.0"
        ) from None
    if not math.isfinite(out):
        raise ValueError(
            f"{name}: wanted a finite number, got {shown(value)}; pass e.g. {name}=1.0"
        )
    return out


def integer(name: str, value: object, *, any_size: bool = False) -> int:
    """An integer of 64 bits, as the engine needs; ``any_size`` allows larger ones, for callers that clamp."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: wanted an integer, got {shown(value)}; pass e.g. {name}=0")
    try:
        out = int(value.__index__())
    except TypeError:  # an array
        raise TypeError(
            f"{name}: wanted an integer, got {shown(value)}; pass e.g. {name}=0"
        ) from None
    if not (any_size or -(2**63) <= out < 2**63):
        raise ValueError(
            f"{name}: wanted an integer of 64 bits, got one of {out.bit_length()} bits"
        )
    return out


def index(name: str, value: object, n: int) -> int:
    """The index of one of n things; a negative index counts from the end."""
    k = integer(name, value)
    if not -n <= k < n:
        raise IndexError(f"{name}: wanted {-n} to {n - 1}, got {k}")
    return k % n


def integer_within(name: str, value: object, first: int, last: int, what: str) -> int:
    """An integer from first to last, both included; the message ends with ``what``, the reason."""
    out = integer(name, value)
    if not first <= out <= last:
        raise ValueError(f"{name}: wanted {first} to {last}, got {out}; {what}")
    return out


def axis(value: object) -> int:
    """1 (rows) or 0 (columns); -1 and -2 mean the same from the end."""
    if type(value) is int and value == 1:
        return 1
    number = integer("axis", value)
    if number not in (1, 0, -1, -2):
        raise ValueError(
            f"axis: wanted 1 or -1 (each row) or 0 or -2 (each column), got {number}; "
            "batch axes are never reduced"
        )
    return 1 if number in (1, -1) else 0


def at_least(name: str, value: object, bound: float, do: str = "") -> float:
    """A finite number that is at least ``bound``."""
    out = number(name, value)
    if out < bound:
        refuse(name, f"a number >= {bound:g}", shown(value), do)
    return out


def above(name: str, value: object, bound: float, do: str = "") -> float:
    """A finite number greater than ``bound``."""
    out = number(name, value)
    if out <= bound:
        refuse(name, f"a number > {bound:g}", shown(value), do)
    return out


def fraction(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    out = positive(name, value)
    if not out < 1:
        refuse(name, "a number between 0 and 1", shown(value), "e.g. 0.95")
    return out


def count(name: str, value: object, least: int = 1, do: str = "", below: int = 2**63) -> int:
    """An integer that is at least ``least`` and less than ``below``."""
    out = integer(name, value)
    if not least <= out < below:
        limit = "" if out < least else f" and less than {below}"
        refuse(name, f"at least {least}{limit}", str(out), do)
    return out
