"""The helpers that check arguments: what they accept, what they refuse, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkcore import _checks

SHAPES: list[tuple[tuple[int, ...], tuple[Any, ...], bool]] = [
    ((3, 2), (3, 2), True),
    ((3, 2), (2, 3), False),
    ((3, 2), ("n", 2), True),
    ((3, 2), ("n",), False),
    ((3, 2), (..., 2), True),
    ((2,), (..., 2), True),
    ((), (..., 2), False),
    ((4, 3, 2), (..., "n", 2), True),
    ((2,), (..., "n", 2), False),
    ((5, 4, 3, 2), (5, ..., 2), True),
    ((5, 2), (5, ..., 2), True),
    ((5,), (5, ..., 5), False),
    ((4, 3, 2), (5, ..., 2), False),
    ((), (), True),
    ((1,), (), False),
]


@pytest.mark.parametrize(("got", "axes", "fits"), SHAPES)
def test_a_shape_fits_lengths_names_and_dots(
    got: tuple[int, ...], axes: tuple[Any, ...], fits: bool
) -> None:
    if fits:
        _checks.shape("x", got, axes)
        return
    with pytest.raises(ValueError, match=r"^x: wanted shape \(.*\), got "):
        _checks.shape("x", got, axes)
    _checks.shape("x", got, axes, got)


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: _checks.shape("x", (4,), (3,), ("n", 2), what="points", why="like y", do="turn it"),
        ValueError,
        "x: wanted points of shape (3,) or (n, 2) like y, got (4,); turn it",
    ),
    (
        lambda: _checks.shape("x", (), (..., "V")),
        ValueError,
        "x: wanted shape (..., V), got a number, of shape ()",
    ),
    (lambda: _checks.one_of("m", "c", ("a", "b")), ValueError, "m: wanted 'a' or 'b', got 'c'"),
    (
        lambda: _checks.one_of("m", np.array(["a", "b"]), ("a", "b", None)),
        ValueError,
        "m: wanted one of 'a', 'b', None, got array(['a', 'b'], dtype='<U1')",
    ),
    (lambda: _checks.flag("f", 1), TypeError, "f: wanted True or False, got 1"),
    (lambda: _checks.count("n", 0), ValueError, "n: wanted at least 1, got 0"),
    (
        lambda: _checks.count("n", 9, below=9),
        ValueError,
        "n: wanted at least 1 and less than 9, got 9",
    ),
    (lambda: _checks.count("n", True), TypeError, "n: wanted an integer, got True; pass e.g. n=0"),
    (lambda: _checks.at_least("p", 0.5, 1), ValueError, "p: wanted a number >= 1, got 0.5"),
    (
        lambda: _checks.above("p", 1, 1, "e.g. 2"),
        ValueError,
        "p: wanted a number > 1, got 1; e.g. 2",
    ),
    (
        lambda: _checks.fraction("c", 1),
        ValueError,
        "c: wanted a number between 0 and 1, got 1; e.g. 0.95",
    ),
    (
        lambda: _checks.function("f", 3, "(x, t)"),
        TypeError,
        "f: wanted a function of (x, t), got int",
    ),
    (lambda: _checks.instance("a", 3, str, "a word"), TypeError, "a: wanted a word, got int"),
    (
        lambda: _checks.exactly_one("d", a=None, b=None),
        ValueError,
        "d: wanted one of a, b, got neither",
    ),
    (lambda: _checks.exactly_one("d", a=1, b=2), ValueError, "d: wanted one of a, b, got a and b"),
    (
        lambda: _checks.some("v", 0, 1, "thing"),
        ValueError,
        "v: wanted at least one thing, got none",
    ),
    (
        lambda: _checks.square("W", (2, 3)),
        ValueError,
        "W: wanted a square matrix, got shape (2, 3)",
    ),
    (
        lambda: _checks.same_space("Y", 3, 2, "X"),
        ValueError,
        "Y: wanted points in 2 dimensions as X, got 3",
    ),
    (
        lambda: _checks.none_negative("w", np.array([[1.0, 2.0], [-3.0, 4.0]])),
        ValueError,
        "w: wanted numbers >= 0, got -3 at index 1, 0",
    ),
    (lambda: _checks.all_positive("w", np.zeros(1)), ValueError, "w: wanted numbers > 0, got 0"),
    (
        lambda: _checks.all_positive("w", np.array([1.0, np.nan])),
        ValueError,
        "w: wanted numbers > 0, got nan at index 1",
    ),
    (
        lambda: _checks.rising("t", np.array([0.0, 0.0]), do="sort"),
        ValueError,
        "t: wanted rising times (n,), got others; sort",
    ),
    (
        lambda: _checks.rising("t", np.zeros(1), 2),
        ValueError,
        "t: wanted at least 2 rising times (n,), got shape (1,); sort them, drop repeats",
    ),
    (
        lambda: _checks.time_span("t", (0, 1, 2)),
        ValueError,
        "t: wanted a pair (t0, t1), got (0, 1, 2); pass e.g. t=(0.0, 1.0)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_a_refusal_says_name_wanted_got_and_what_to_do(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_what_passes_comes_back() -> None:
    assert _checks.one_of("m", np.str_("b"), ("a", "b")) == "b"
    assert _checks.one_of("m", None, ("a", None)) is None
    assert _checks.flag("f", np.True_) is True
    assert _checks.count("n", np.int64(7), 7) == 7
    assert _checks.at_least("p", 1, 1) == 1.0
    assert _checks.instance("a", "b", str, "a word") == "b"
    assert _checks.time_span("t", np.array([0, 2])) == (0.0, 2.0)
    _checks.exactly_one("d", a=1, b=None)
    _checks.rising("t", np.array([0.0, 0.0]), strictly=False)
    _checks.none_negative("w", np.zeros((0, 3)))
