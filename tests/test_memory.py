"""Memory: any layout is read in place, inputs are never changed, and nothing of size N x M is formed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import qkcore as qk

from .bounds import assert_same_bits
from .generators import DTYPES, normal, points
from .processes import no_sanitizer, run_ok
from .reference import Array


def c_order(a: Array) -> Array:
    return np.ascontiguousarray(a)


def fortran(a: Array) -> Array:
    return np.asfortranarray(a)


def sliced(a: Array) -> Array:
    """Every other entry of a larger array, along every axis."""
    big = np.full([2 * n + 1 for n in a.shape], np.nan if a.dtype.kind == "f" else True, a.dtype)
    view = big[tuple(slice(1, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def backwards(a: Array) -> Array:
    """Negative strides on every axis."""
    flip = tuple(slice(None, None, -1) for _ in a.shape)
    return np.ascontiguousarray(a[flip])[flip]


def transposed(a: Array) -> Array:
    return np.ascontiguousarray(a.T).T


def padded_rows(a: Array) -> Array:
    """Rows contiguous but further apart than they are long, starting at an odd entry."""
    big = np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)
    big[..., 1 : 1 + a.shape[-1]] = a
    return big[..., 1 : 1 + a.shape[-1]]


def read_only(a: Array) -> Array:
    b = a.copy()
    b.flags.writeable = False
    return b


LAYOUTS: list[Callable[[Array], Array]] = [
    fortran,
    sliced,
    backwards,
    transposed,
    padded_rows,
    read_only,
]


def results(layout: Callable[[Array], Array], dtype: str) -> dict[str, Array]:
    """Every kind of input passed through `layout`; also checks that none is changed."""
    rng = np.random.default_rng(0)
    inputs = {
        "X": points(rng, (33, 5), dtype),
        "Y": points(rng, (17, 5), dtype),
        "W": normal(rng, (5, 5), dtype),
        "WQ": normal(rng, (5, 2), dtype),
        "WK": normal(rng, (2, 5), dtype),
        "Z": normal(rng, (33, 17), dtype),
        "mask": rng.random((33, 17)) < 0.8,
        "padding": rng.random(17) < 0.8,
        "r": normal(rng, (33,), dtype),
        "c": normal(rng, (17,), dtype),
        "V": normal(rng, (17, 3), dtype),
        "U": normal(rng, (3, 33), dtype),
    }
    a = {name: layout(value) for name, value in inputs.items()}
    before = {name: value.tobytes() for name, value in a.items()}
    s = qk.scores.forward(a["X"], a["Y"], W=a["W"]) + qk.scores.dense(a["Z"])
    s = s + qk.scores.dot(a["X"], a["Y"], W=(a["WQ"], a["WK"]))
    s = s.masked(a["mask"]).key_padding(a["padding"]).shift(a["r"], a["c"])
    A, K = qk.softmax(s), qk.kernel(qk.scores.dense(a["Z"]), weight="sigmoid")
    rows, columns = s.marginals(a["r"], a["c"])
    found = {
        "scores": s.to_numpy(),
        "lse": s.logsumexp(),
        "lse0": s.logsumexp(0),
        "A @ V": A @ a["V"],
        "U @ A": a["U"] @ A,
        "A @ v": A @ a["c"],
        "A.T @ U.T": A.T @ a["U"].T,
        "K @ V": K @ a["V"],
        "U @ K": a["U"] @ K,
        "entropy": A.entropy(),
        "rows": rows,
        "columns": columns,
    }
    for name, value in a.items():
        assert value.tobytes() == before[name], f"{name} was written to"
        assert value.flags.writeable == (layout is not read_only)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_inputs_does_not_matter(layout: Callable[..., Array], dtype: str) -> None:
    want = results(c_order, dtype)
    for name, got in results(layout, dtype).items():
        tolerance = 32 * float(np.finfo(dtype).eps)
        if name in ("rows", "columns"):
            # Sums of exp(s), whose relative error is the absolute one of s. Layout and threads change the
            # order in which X is multiplied by W (5 terms), by the factors of W (5 and 2), and Y by W (5).
            # Each addition rounds by half an eps of the terms' sizes, which come to 21, 42 and 22 here: up to
            # 5 x 21 + 7 x 42 + 5 x 22, some 510 halves, in either layout, and 510 eps between two. The bound
            # is two thirds of that.
            tolerance = 4 * 85 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(got, want[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_read_only_inputs_give_the_same_bits() -> None:
    want = results(c_order, "float32")
    for name, got in results(read_only, "float32").items():
        assert_same_bits(got, want[name], name)


def test_broadcast_inputs_with_zero_strides() -> None:
    row = np.array([0.5, -1.0, 2.0])
    X = np.broadcast_to(row, (9, 3))
    s = qk.scores.distance(X, np.broadcast_to(row, (7, 3)))
    assert not s.to_numpy().any()
    Z = np.broadcast_to(np.arange(4.0), (3, 4))
    np.testing.assert_array_equal(qk.scores.dense(Z).to_numpy(), Z)
    V = np.broadcast_to(np.float64(2.0), (7, 2))
    np.testing.assert_allclose(qk.softmax(s) @ V, 2.0, rtol=1e-15)


def test_inputs_may_die_before_the_scores() -> None:
    """Scores hold on to what they read: the caller need not."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 40))
    want = X @ X.T
    s = qk.scores.dot(X)
    A = qk.softmax(qk.scores.dense(X @ X.T))
    del X
    # These arrays would reuse the memory if it had been freed.
    rubbish = [np.full((300, 300), np.nan) for _ in range(20)]
    np.testing.assert_allclose(s.to_numpy(), want, rtol=1e-12, atol=1e-12)
    assert np.isfinite(A.to_numpy()).all()
    assert len(rubbish) == 20


def test_results_do_not_share_memory_with_inputs() -> None:
    Z, V = np.zeros((5, 5)), np.ones((5, 5))
    s = qk.scores.dense(Z)
    assert not np.shares_memory(s.to_numpy(), Z)
    assert not np.shares_memory(qk.kernel(s, weight="linear").to_numpy(), Z)
    assert not np.shares_memory(qk.softmax(s) @ V, V)


# ---- how much ----------------------------------------------------------------------------------

# The peak that the operating system records, reset before the measured call, so that imports do not count.
# `ru_maxrss` cannot be used, because a child inherits the peak of its parent process.
MEASURE = """
import numpy as np
import qkcore as qk

def status(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))

def growth(call):
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    before = status("VmRSS")
    result = call()
    del result
    return status("VmHWM") - before

rng = np.random.default_rng(0)
qk.softmax(qk.scores.distance(rng.normal(size=(300, 3)))) @ np.ones(300)  # start the threads
"""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


@linux_only
@no_sanitizer
@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "qk.softmax(qk.scores.distance(X)) @ V",
        "V.T @ qk.softmax(qk.scores.distance(X).causal())",
        "qk.scores.forward(X, W=W).logsumexp(0)",
        "(qk.scores.dot(X) + qk.scores.distance(X)).marginals()",
        "qk.softmax(qk.scores.dot(X).window(50, 50)).entropy()",
        "qk.kernel(qk.scores.distance(X)) @ V",
        "qk.softmax(qk.scores.dot(X).ragged([0, 6000, 16000])) @ V",
    ],
)
def test_reductions_of_points_take_linear_memory(call: str) -> None:
    """16000 points make a matrix of 1 GB in float32; a reduction may grow by 50 MB at most."""
    code = MEASURE + (
        "X = (0.1 * rng.normal(size=(16000, 3))).astype(np.float32)\n"
        "V, W = rng.normal(size=(16000, 4)).astype(np.float32), np.eye(3, dtype=np.float32)\n"
        f"print(growth(lambda: {call}))"
    )
    assert float(run_ok(code)) < 50


@linux_only
@no_sanitizer
@pytest.mark.slow
@pytest.mark.parametrize("view", ["Z", "Z.T", "Z[::-1]", "Z[:, ::-1]"])
def test_dense_scores_are_not_copied(view: str) -> None:
    """200 MB of scores, read where they lie, whatever their strides."""
    code = MEASURE + (
        "Z = np.zeros((5000, 5000)); Z[:] = 0.5\n"
        f"s = qk.scores.dense({view})\n"
        "v = np.ones(5000)\n"
        "call = lambda: (s.logsumexp(), s.logsumexp(0), qk.softmax(s) @ v, v @ qk.softmax(s))\n"
        f"print(growth(lambda: (qk.scores.dense({view}), call())))"
    )
    assert float(run_ok(code)) < 40


@linux_only
@no_sanitizer
@pytest.mark.slow
def test_dense_masks_are_not_copied() -> None:
    code = MEASURE + (
        "X = rng.normal(size=(10000, 2)); keep = np.ones((10000, 10000), bool); keep[0] = False\n"
        "print(growth(lambda: qk.scores.distance(X).masked(keep).logsumexp()))"
    )
    assert float(run_ok(code)) < 40
