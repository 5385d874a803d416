"""Bad input raises the right exception, which names the argument, what was given, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import mul, truediv
from typing import Any

import numpy as np
import pytest

import qkcore as qk

X = np.ones((4, 3))
Y = np.ones((5, 3))
Z = np.zeros((4, 5))
s = qk.scores.dense(Z)
A = qk.softmax(s)
K = qk.kernel(s)
batch = qk.scores.dense(np.zeros((2, 4, 5)))
P = qk.softmax(qk.scores.dense(np.zeros((4, 4))))
BRIDGE = qk.bridge(s)


def with_entry(a: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    b = a.copy()
    b.flat[1] = value
    return b


Error = type[Exception] | tuple[type[Exception], ...]
Case = tuple[str, Callable[[], object], Error, str]

# name, call, exception, pattern. A pattern has the argument's name, then what was given or what to do.
DTYPE_CASES: list[Case] = []
for bad, remedy in (
    (np.ones((4, 3), int), r"int64.*astype|astype.*int64"),
    (np.ones((4, 3), bool), r"bool.*astype|astype.*bool"),
    (np.ones((4, 3), complex), r"complex128"),
    (np.ones((4, 3), np.float16), r"float16.*astype|astype.*float16"),
    (np.ones((4, 3), object), r"object.*astype"),
    (np.ones((4, 3), ">f8"), r"(>f8|endian|byte).*"),
    (np.ones((4, 3), np.longdouble), r"(longdouble|float128).*"),
):
    label = str(bad.dtype)
    DTYPE_CASES += [
        (f"dot X {label}", partial(qk.scores.dot, bad), TypeError, f"X.*({remedy})"),
        (f"dense Z {label}", partial(qk.scores.dense, bad), TypeError, f"Z.*({remedy})"),
    ]

f32 = np.float32
MIX_CASES: list[Case] = [
    ("X and Y", lambda: qk.scores.dot(X, Y.astype(f32)), TypeError, r"Y.*float64.*float32"),
    ("X and W", lambda: qk.scores.dot(X, W=np.eye(3, dtype=f32)), TypeError, r"W.*float32"),
    ("sum", lambda: s + qk.scores.dense(Z.astype(f32)), TypeError, r"float64.*float32"),
    ("A @ V", lambda: A @ np.ones(5, f32), TypeError, r"right operand of @.*float64.*float32"),
    ("U @ A", lambda: np.ones(4, f32) @ A, TypeError, r"left operand of @.*float64.*float32"),
    ("K @ V", lambda: K @ np.ones((5, 2), f32), TypeError, r"right operand of @.*float64.*float32"),
    ("shift", lambda: s.shift(np.ones(4) * 1j), TypeError, r"rows.*float64.*complex128"),
    ("marginals", lambda: s.marginals(np.ones(4) * 1j), TypeError, r"f.*float64.*complex128"),
    ("integer V", lambda: A @ np.ones(5, int), TypeError, r"right operand of @.*int64"),
    ("text as a shift", lambda: s.shift(columns=["a"] * 5), TypeError, r"columns.*<U1"),
]

record = np.zeros((4, 5), dtype=[("pad", "i1"), ("x", "f8")])["x"]
shifted = np.frombuffer(bytes(8 * 20 + 1), np.uint8)[1:].view(np.float64).reshape(4, 5)
SHAPE_CASES: list[Case] = [
    ("odd strides", lambda: qk.scores.dense(record), ValueError, r"Z.*strides.*ascontiguous"),
    ("not aligned", lambda: qk.scores.dense(shifted), ValueError, r"Z.*aligned.*copy"),
    ("dense 1-D", lambda: qk.scores.dense(np.ones(3)), ValueError, r"Z.*\(3,\)"),
    ("dense 0-D", lambda: qk.scores.dense(np.float64(3)), ValueError, r"Z.*\(\)"),
    ("X 1-D", lambda: qk.scores.dot(np.ones(3)), ValueError, r"X.*\(3,\)"),
    ("Y 1-D", lambda: qk.scores.dot(X, np.ones(3)), ValueError, r"Y.*\(3,\)"),
    ("d differs", lambda: qk.scores.dot(X, np.ones((5, 2))), ValueError, r"Y.*3.*2|Y.*2.*3"),
    ("W shape", lambda: qk.scores.dot(X, Y, W=np.eye(4)), ValueError, r"W.*\(4, 4\)"),
    ("W 1-D", lambda: qk.scores.dot(X, Y, W=np.ones(3)), ValueError, r"W.*\(3,\)"),
    (
        "W pair",
        lambda: qk.scores.dot(X, Y, W=(np.ones((3, 2)), np.ones((4, 3)))),
        ValueError,
        r"W.*\(3, 2\).*\(4, 3\)",
    ),
    ("W triple", lambda: qk.scores.dot(X, W=(X.T, X, X)), (ValueError, TypeError), r"W.*(pair|2)"),
    (
        "rectangular W for distance",
        lambda: qk.scores.distance(X, np.ones((5, 2)), W=np.ones((3, 2))),
        ValueError,
        r"Y.*dimension 3.*\(5, 2\)",
    ),
    (
        "rectangular W for forward",
        lambda: qk.scores.forward(X, np.ones((5, 2)), W=np.ones((3, 2))),
        ValueError,
        r"Y.*dimension 3.*\(5, 2\)",
    ),
    (
        "batch of X and Y",
        lambda: qk.scores.dot(np.ones((2, 4, 3)), np.ones((3, 5, 3))),
        ValueError,
        r"\(2,.*\(3,",
    ),
    (
        "sum of shapes",
        lambda: s + qk.scores.dense(np.zeros((4, 6))),
        ValueError,
        r"\(4, 5\).*\(4, 6\)",
    ),
    ("sum of batches", lambda: batch + qk.scores.dense(np.zeros((3, 4, 5))), ValueError, r"2.*3"),
    ("V rows", lambda: A @ np.ones((4, 2)), ValueError, r"right operand of @.*5.*\(4, 2\)"),
    ("V vector", lambda: A @ np.ones(4), ValueError, r"right operand of @.*5.*\(4,\)"),
    ("V 0-D", lambda: A @ np.float64(1), (ValueError, TypeError), r""),
    ("U columns", lambda: np.ones((2, 5)) @ A, ValueError, r"left operand of @.*4.*\(2, 5\)"),
    ("A.T @ V", lambda: A.T @ np.ones(5), ValueError, r"^right operand of @: .* 4 .*\(5,\)"),
    ("mu @ A", lambda: np.ones(5) @ A, ValueError, r"^left operand of @: .* 4 .*\(5,\)"),
    ("apply", lambda: A.apply(np.ones(4)), ValueError, r"^V: wanted length 5"),
    ("apply_left", lambda: A.apply_left(np.ones(5)), ValueError, r"^U: wanted length 4"),
    ("matvec", lambda: A.matvec(np.ones(4)), ValueError, r"^x: wanted length 5"),
    ("sum @ V", lambda: (A + A) @ np.ones(4), ValueError, r"^right operand of @: .* 5 "),
    ("mu @ sum", lambda: np.ones(5) @ (A - A), ValueError, r"^left operand of @: .* 4 "),
    ("power @ V", lambda: P**2 @ np.ones(5), ValueError, r"^right operand of @: .* 4 "),
    ("mu @ power", lambda: np.ones(5) @ P**2, ValueError, r"^left operand of @: .* 4 "),
    ("NaN in mu", lambda: np.full(4, np.nan) @ A, ValueError, r"isfinite\(it\)"),
    ("weights", lambda: A.column_mass(np.ones(5)), ValueError, r"^weights: .* 4 "),
    ("transform", lambda: BRIDGE.transform(s, np.ones((4, 1))), ValueError, r"^Y: .* 5 "),
    ("project", lambda: BRIDGE.project(np.ones((4, 1))), ValueError, r"^V: .* 5 "),
    (
        "V batch",
        lambda: qk.softmax(batch) @ np.ones((3, 5, 2)),
        ValueError,
        r"right operand of @.*\(2,\).*\(3, 5, 2\)",
    ),
    (
        "V of more batch",
        lambda: A @ np.ones((3, 5, 2)),
        ValueError,
        r"right operand of @.*\(3, 5, 2\).*batch",
    ),
    ("V no columns", lambda: A @ np.ones((5, 0)), ValueError, r"right operand of @.*\(5, 0\)"),
    ("K @ V rows", lambda: K @ np.ones((4, 2)), ValueError, r"right operand of @.*5.*\(4, 2\)"),
    ("rows shift", lambda: s.shift(np.ones(5)), ValueError, r"rows.*4.*\(5,\)"),
    ("columns shift", lambda: s.shift(columns=np.ones(4)), ValueError, r"columns.*5.*\(4,\)"),
    ("f", lambda: s.marginals(f=np.ones(5)), ValueError, r"f.*4.*\(5,\)"),
    ("g", lambda: s.marginals(g=np.ones(4)), ValueError, r"g.*5.*\(4,\)"),
    ("empty rows", lambda: qk.scores.dot(np.ones((0, 3))), ValueError, r"X.*\(0, 3\)"),
    ("empty columns", lambda: qk.scores.dot(X, np.ones((0, 3))), ValueError, r"Y.*\(0, 3\)"),
    ("no coordinates", lambda: qk.scores.dot(np.ones((4, 0))), ValueError, r"X.*\(4, 0\)"),
    ("empty dense", lambda: qk.scores.dense(np.ones((4, 0))), ValueError, r"Z.*\(4, 0\)"),
    ("empty batch", lambda: qk.scores.dense(np.ones((0, 4, 5))), ValueError, r"Z.*\(0, 4, 5\)"),
    ("ragged list", lambda: qk.scores.dense([[1.0], [2.0, 3.0]]), (ValueError, TypeError), r"Z"),
]

bad_y = with_entry(Y, np.nan)
VALUE_CASES: list[Case] = [
    ("NaN in X", lambda: qk.scores.dot(with_entry(X, np.nan)), ValueError, r"X.*(nan|NaN)"),
    ("inf in X", lambda: qk.scores.dot(with_entry(X, np.inf)), ValueError, r"X.*inf"),
    ("-inf in Y", lambda: qk.scores.dot(X, with_entry(Y, -np.inf)), ValueError, r"Y.*inf"),
    (
        "NaN in W",
        lambda: qk.scores.dot(X, W=with_entry(np.eye(3), np.nan)),
        ValueError,
        r"W.*(nan|NaN)",
    ),
    *[
        (f"{make.__name__}, NaN in Y", partial(make, X, bad_y), ValueError, "^Y: .*NaN")
        for make in (qk.scores.dot, qk.scores.forward, qk.scores.backward, qk.scores.distance)
    ],
    *[
        (f"{make.__name__}, dimension of Y", partial(make, X, Y[:, :2]), ValueError, "^Y: .*3.*2")
        for make in (qk.scores.dot, qk.scores.forward, qk.scores.backward, qk.scores.distance)
    ],
    (
        "NaN in V",
        lambda: A @ with_entry(np.ones(5), np.nan),
        ValueError,
        r"right operand of @.*(nan|NaN)",
    ),
    (
        "inf in V",
        lambda: A @ with_entry(np.ones((5, 2)), np.inf),
        ValueError,
        r"right operand of @.*inf",
    ),
    ("inf in U", lambda: with_entry(np.ones(4), np.inf) @ A, ValueError, r"left operand of @.*inf"),
    (
        "NaN in rows",
        lambda: s.shift(with_entry(np.ones(4), np.nan)),
        ValueError,
        r"rows.*(nan|NaN)",
    ),
    ("+inf in rows", lambda: s.shift(with_entry(np.ones(4), np.inf)), ValueError, r"rows.*inf"),
    (
        "+inf in columns",
        lambda: s.shift(None, with_entry(np.ones(5), np.inf)),
        ValueError,
        r"columns.*inf",
    ),
    ("NaN in f", lambda: s.marginals(with_entry(np.ones(4), np.nan)), ValueError, r"f.*(nan|NaN)"),
    ("+inf in g", lambda: s.marginals(None, with_entry(np.ones(5), np.inf)), ValueError, r"g.*inf"),
]
for value in (0.0, -1.0, np.nan, np.inf):
    VALUE_CASES += [
        (
            f"{make.__name__} beta={value}",
            partial(make, X, beta=value),
            ValueError,
            f"beta.*{value}",
        )
        for make in (qk.scores.dot, qk.scores.forward, qk.scores.backward, qk.scores.distance)
    ]
    if value != -1.0:
        VALUE_CASES += [
            (f"{value} * s", partial(mul, value, s), ValueError, f"{value}"),
            (f"s / {value}", partial(truediv, s, value), ValueError, f"{value}"),
        ]

keep = np.ones((4, 5), bool)
MASK_CASES: list[Case] = [
    ("mask shape", lambda: s.masked(keep.T), ValueError, r"(M|mask).*\(5, 4\)"),
    ("mask dtype", lambda: s.masked(keep.astype(int)), TypeError, r"(M|mask).*bool.*int64"),
    ("mask of floats", lambda: s.masked(Z), TypeError, r"(M|mask).*bool.*float64"),
    ("padding shape", lambda: s.key_padding(np.ones(4, bool)), ValueError, r"keep.*5.*\(4,\)"),
    ("padding dtype", lambda: s.key_padding(np.ones(5)), TypeError, r"keep.*bool.*float64"),
    ("causal float", lambda: s.causal(0.5), TypeError, r"offset.*0\.5"),  # type: ignore[arg-type]
    ("window text", lambda: s.window("1", 1), TypeError, r"left.*'1'"),  # type: ignore[arg-type]
    ("window float", lambda: s.window(1, 1.5), TypeError, r"right.*1\.5"),  # type: ignore[arg-type]
    ("window empty", lambda: s.window(-3, 2), ValueError, r"left.*right.*-3.*2"),
    ("ragged twice", lambda: s.ragged([0, 4], [0, 5]).ragged([0, 4], [0, 5]), ValueError, "once"),
    ("ragged batch", lambda: batch.ragged([0, 4], [0, 5]), ValueError, r"ragged.*2-D"),
    ("ragged end", lambda: s.ragged([0, 3], [0, 5]), ValueError, r"row_offsets.*4"),
    ("ragged column end", lambda: s.ragged([0, 4], [0, 4]), ValueError, r"column_offsets.*5"),
    ("ragged start", lambda: s.ragged([1, 4], [0, 5]), ValueError, r"row_offsets.*0"),
    ("ragged order", lambda: s.ragged([0, 3, 2, 4], [0, 1, 2, 5]), ValueError, r"row_offsets"),
    ("ragged counts", lambda: s.ragged([0, 2, 4], [0, 5]), ValueError, r"column_offsets.*"),
    ("ragged floats", lambda: s.ragged([0.0, 4.0], [0, 5]), TypeError, r"row_offsets.*int"),
    ("ragged none", lambda: s.ragged([0, 4]), ValueError, r"column_offsets|row_offsets"),
    ("ragged 2-D", lambda: s.ragged([[0, 4]], [0, 5]), ValueError, r"row_offsets.*\(1, 2\)"),
]

OPTION_CASES: list[Case] = [
    ("axis 2", lambda: qk.softmax(s, axis=2), ValueError, r"axis.*2"),
    ("axis None", lambda: qk.softmax(s, axis=None), (ValueError, TypeError), r"axis.*None"),  # type: ignore[arg-type]
    ("logsumexp axis", lambda: s.logsumexp(2), ValueError, r"axis.*2"),
    ("weight", lambda: qk.kernel(s, weight="gauss"), ValueError, r"weight.*exp.*gauss"),
    ("softmax of array", lambda: qk.softmax(Z), TypeError, r"scores.*ndarray.*dense"),  # type: ignore[arg-type]
    ("kernel of array", lambda: qk.kernel(Z), TypeError, r"scores.*ndarray.*dense"),  # type: ignore[arg-type]
    ("s + 1", lambda: s + 1, TypeError, r""),
    ("s + vector", lambda: s + Z[0], ValueError, r"shift"),
    ("vector + s", lambda: Z[0] + s, ValueError, r"shift"),
    ("s * s", lambda: s * s, TypeError, r""),  # type: ignore[operator]
    ("s * array", lambda: s * np.ones(5), TypeError, r""),  # type: ignore[operator]
    ("1 / s", lambda: 1 / s, TypeError, r""),  # type: ignore[operator]
    ("beta text", lambda: qk.scores.dot(X, beta="1"), TypeError, r"beta.*(str|'1')"),  # type: ignore[arg-type]
    ("text * s", lambda: "2" * s, TypeError, r"(?i)str|'2'"),  # type: ignore[operator]
    ("beta array", lambda: qk.scores.dot(X, beta=np.ones(3)), TypeError, r"beta"),  # type: ignore[arg-type]
]
calls: dict[str, Callable[[Any], object]] = {
    "scores.to_numpy": lambda n: s.to_numpy(n_threads=n),
    "logsumexp": lambda n: s.logsumexp(n_threads=n),
    "marginals": lambda n: s.marginals(n_threads=n),
    "apply": lambda n: A.apply(np.ones(5), n_threads=n),
    "apply_left": lambda n: A.apply_left(np.ones(4), n_threads=n),
    "to_numpy": lambda n: A.to_numpy(n_threads=n),
    "entropy": lambda n: A.entropy(n_threads=n),
    "expected_score": lambda n: A.expected_score(n_threads=n),
    "kernel apply": lambda n: K.apply(np.ones(5), n_threads=n),
}
for label, call in calls.items():
    OPTION_CASES += [
        (f"{label} n_threads=0", partial(call, 0), ValueError, r"n_threads.*1.*0"),
        (f"{label} n_threads=1.5", partial(call, 1.5), TypeError, r"n_threads.*1\.5"),
    ]

GROUPS = (DTYPE_CASES, MIX_CASES, SHAPE_CASES, VALUE_CASES, MASK_CASES, OPTION_CASES)
CASES = [case for group in GROUPS for case in group]


@pytest.mark.parametrize(
    ("call", "error", "pattern"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_bad_input(call: Callable[[], object], error: Error, pattern: str) -> None:
    with pytest.raises(error, match=f"(?s){pattern}") as caught:
        call()
    assert len(str(caught.value)) < 600, "an error message, not an essay"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_dense_scores_may_be_minus_infinity_but_not_nan_or_infinity(value: float) -> None:
    """Dense scores are read lazily: the error comes at the latest with the first result."""
    with pytest.raises(ValueError, match=r"(?s)Z.*(nan|NaN|inf)"):
        qk.scores.dense(with_entry(Z, value)).logsumexp()
    assert np.isfinite(qk.scores.dense(with_entry(Z, -np.inf)).logsumexp()).all()


def test_an_error_leaves_the_library_usable() -> None:
    for _, call, _, _ in CASES:
        with suppress(Exception):
            call()
    np.testing.assert_allclose(A @ np.ones(5), 1.0, rtol=1e-15)


def test_zero_values_are_legal() -> None:
    assert not (A @ np.zeros((5, 2))).any()
    assert not (np.zeros(4) @ A).any()
