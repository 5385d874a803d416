"""Softmax over rows and columns: entries, normaliser, empty rows, the transposed operator."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .checks import check_softmax
from .generators import DTYPES, EDGES, KINDS, Problem, Spec, build, dense_scores, specs

AXES = (1, 0)


@given(specs(), st.sampled_from(AXES))
def test_any_softmax_matches_the_reference(spec: Spec, axis: int) -> None:
    check_softmax(build(spec), axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, dtype: str, axis: int) -> None:
    check_softmax(build(Spec("forward", dtype, size, 33, 2)), axis)
    check_softmax(build(Spec("dense", dtype, 7, size)), axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, axis: int) -> None:
    check_softmax(build(Spec(kind, "float64", 31, 49, 7, "asymmetric", "dense")), axis)


def total_bound(p: Problem, axis: int) -> ref.Array:
    """The sum of a row of probabilities is off by the sum of what each entry may be off."""
    entry = bounds.softmax(p, axis)
    return np.asarray(entry.sum(axis=-1 if axis == 1 else -2), dtype=np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plus_sums_to_one_over_rows_and_minus_over_columns(dtype: str) -> None:
    """DAC-3, the two axes: "+" has unit row sums and "-" unit column sums, entries positive."""
    p = build(Spec("dot", dtype, 65, 33, 16))
    for axis in AXES:
        P = qk.softmax(p.scores, axis=axis).to_numpy()
        assert (P > 0).all()
        total = P.astype(np.float64).sum(axis=axis)
        assert_within(total, np.ones_like(total), total_bound(p, axis), f"axis {axis}")
    assert not np.allclose(qk.softmax(p.scores, axis=0).to_numpy().sum(axis=1), 1, atol=1e-3)


def test_rows_is_the_default_axis() -> None:
    s = build(Spec("dot")).scores
    assert qk.softmax(s).axis == 1
    assert_same_bits(qk.softmax(s).to_numpy(), qk.softmax(s, axis=1).to_numpy(), "default")


def test_against_scipy_directly() -> None:
    """One comparison that passes by no helper of this suite."""
    Z = np.random.default_rng(0).normal(size=(40, 50)) * 4
    for axis in AXES:
        got = qk.softmax(qk.scores.dense(Z), axis=axis).to_numpy()
        np.testing.assert_allclose(got, scipy.special.softmax(Z, axis=axis), rtol=1e-14)


@pytest.mark.parametrize("axis", AXES)
def test_the_transposed_operator(axis: int) -> None:
    p = build(Spec("backward", "float64", 17, 33, 3, "asymmetric", "causal"))
    A = qk.softmax(p.scores, axis=axis)
    assert A.T.shape == (33, 17)
    assert A.T.dtype == A.dtype
    P = ref.softmax(p.s, axis)
    bound = bounds.softmax(p, axis)
    assert_within(A.T.to_numpy(), P.T, bound.T, "A.T")
    assert_same_bits(A.T.T.to_numpy(), A.to_numpy(), "A.T.T")
    # After transposing, the sums of the other axis are one.
    assert A.T.axis == 1 - axis
    assert_within(
        A.T.log_normalizer,
        ref.logsumexp(p.s, axis),
        bounds.logsumexp(p, axis),
        "A.T.log_normalizer",
    )


@pytest.mark.parametrize("axis", AXES)
def test_empty_rows_weigh_nothing_and_are_flagged(axis: int) -> None:
    Z = np.zeros((4, 5))
    Z[1, :] = -np.inf
    Z[:, 3] = -np.inf
    p = dense_scores(Z, np.random.default_rng(0))
    check_softmax(p, axis)
    A = qk.softmax(p.scores, axis=axis)
    assert A.empty.sum() == 1
    assert A.empty[1 if axis == 1 else 3]
    assert "1 empty" in repr(A)  # known by now, because A.empty was read
    assert (A.to_numpy().sum(axis=axis) == np.where(A.empty, 0, 1)).all()


def test_nothing_empty_is_not_mentioned_as_empty() -> None:
    A = qk.softmax(qk.scores.dense(np.zeros((3, 3))))
    assert not A.empty.any()
    assert A.log_normalizer.shape == (3,)  # the repr may only show what has been computed already
    assert "empty" not in repr(A)


def test_the_operator_remembers_its_scores() -> None:
    s = build(Spec("dot", "float32")).scores
    A = qk.softmax(s, axis=0)
    assert_same_bits(A.scores.to_numpy(), s.to_numpy(), "scores")
    assert A.axis == 0
    assert A.dtype == np.float32
    text = repr(A)
    assert "17" in text
    assert "9" in text
    assert "float32" in text


def test_to_numpy_gives_a_fresh_writable_array_each_time() -> None:
    A = qk.softmax(qk.scores.dense(np.zeros((3, 4))))
    first = A.to_numpy()
    first[:] = -1
    assert (A.to_numpy() == 0.25).all()


def test_threads_of_one_call() -> None:
    A = qk.softmax(build(Spec("dot", "float64", 129, 257, 7)).scores)
    for n in (1, 2, 3):
        assert_same_bits(A.to_numpy(n_threads=n), A.to_numpy(), f"{n} threads")
