"""Masks: exactly which entries remain, and how masks combine, transpose and broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from . import reference as ref
from .bounds import assert_same_bits
from .checks import check_everything
from .generators import DTYPES, MASKS, Spec, build, keep, offsets
from .processes import run_ok
from .reference import Array


def kept(s: qk.Scores) -> Array:
    """Where the scores are not -inf."""
    return np.isfinite(s.to_numpy())


def zeros(n: int, m: int) -> qk.Scores:
    return qk.scores.dense(np.zeros((n, m)))


SIZES = [(1, 1), (1, 9), (9, 1), (8, 8), (17, 16), (16, 33), (65, 64)]


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("offset", [-(10**30), -65, -3, -1, 0, 1, 2, 15, 63, 10**30])
def test_causal(n: int, m: int, offset: int) -> None:
    s = zeros(n, m)
    np.testing.assert_array_equal(kept(s.causal(offset)), ref.causal_mask(n, m, offset))
    if offset == 0:
        np.testing.assert_array_equal(kept(s.causal()), ref.causal_mask(n, m))


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("left", [None, 0, 1, 7, 100])
@pytest.mark.parametrize("right", [None, 0, 2, 8, 100])
def test_window(n: int, m: int, left: int | None, right: int | None) -> None:
    got = kept(zeros(n, m).window(left, right))
    np.testing.assert_array_equal(got, ref.window_mask(n, m, left, right))


def test_a_window_without_a_left_side_is_causal() -> None:
    s = build(Spec("dot", "float32", 33, 31, 3)).scores
    for offset in (0, 2):
        a, b = s.window(None, offset).to_numpy(), s.causal(offset).to_numpy()
        assert_same_bits(a, b, "window(None, offset)")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["dense", "distance"])
def test_everything_under_every_mask(kind: str, mask: str, dtype: str) -> None:
    """Column reductions too: a mask that skips tiles must skip the right ones both ways."""
    for seed, (n, m) in enumerate([(65, 33), (17, 129), (130, 127)]):
        check_everything(build(Spec(kind, dtype, n, m, 2, mask=mask, seed=seed)), k=3)


@pytest.mark.parametrize("shape", [(17, 9), (1, 9), (17, 1), (1, 1), (9,)])
def test_dense_masks_broadcast(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(3).random(shape) < 0.5
    np.testing.assert_array_equal(kept(zeros(17, 9).masked(mask)), np.broadcast_to(mask, (17, 9)))


def test_key_padding_removes_columns() -> None:
    padding = np.array([True, False, True, True, False])
    np.testing.assert_array_equal(
        kept(zeros(3, 5).key_padding(padding)), np.broadcast_to(padding, (3, 5))
    )


@given(st.integers(0, 2**16), st.integers(1, 40), st.integers(1, 40), st.integers(1, 6))
def test_ragged_blocks(seed: int, n: int, m: int, blocks: int) -> None:
    """Any offsets, empty blocks included, rows and columns cut differently."""
    rng = np.random.default_rng(seed)
    rows, columns = offsets(rng, n, blocks), offsets(rng, m, blocks)
    np.testing.assert_array_equal(
        kept(zeros(n, m).ragged(rows, columns)), ref.ragged_mask(rows, columns)
    )
    np.testing.assert_array_equal(kept(zeros(n, n).ragged(rows)), ref.ragged_mask(rows))


@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(-2, 2))
def test_causal_and_window_count_inside_each_block(seed: int, blocks: int, offset: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = offsets(rng, 33, blocks), offsets(rng, 31, blocks)
    s = zeros(33, 31)
    want = ref.ragged_mask(rows, columns, right=offset)
    np.testing.assert_array_equal(kept(s.ragged(rows, columns).causal(offset)), want)
    np.testing.assert_array_equal(kept(s.causal(offset).ragged(rows, columns)), want)
    want = ref.ragged_mask(rows, columns, left=2, right=1)
    np.testing.assert_array_equal(kept(s.ragged(rows, columns).window(2, 1)), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_on_ragged_causal_scores(dtype: str) -> None:
    p = build(Spec("dot", dtype, 129, 65, 3))
    rows, columns = np.array([0, 10, 10, 70, 129]), np.array([0, 33, 40, 40, 65])
    masked = p.scores.ragged(rows, columns).causal(1)
    check_everything(keep(p, masked, ref.ragged_mask(rows, columns, right=1)))


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64, np.uint32])
def test_offsets_of_any_integer_type(index_dtype: type) -> None:
    cut: Array = np.array([0, 2, 5]).astype(index_dtype)
    np.testing.assert_array_equal(kept(zeros(5, 5).ragged(cut)), ref.ragged_mask([0, 2, 5]))
    np.testing.assert_array_equal(kept(zeros(5, 5).ragged([0, 2, 5])), ref.ragged_mask([0, 2, 5]))


def test_masks_combine_as_intersections() -> None:
    rng = np.random.default_rng(4)
    a, b, padding = rng.random((17, 16)) < 0.7, rng.random((17, 16)) < 0.7, rng.random(16) < 0.7
    want = a & b & padding & ref.window_mask(17, 16, 4, 2) & ref.causal_mask(17, 16, 1)
    s = zeros(17, 16)
    orders = (
        s.masked(a).masked(b).key_padding(padding).window(4, 2).causal(1),
        s.causal(1).window(4, 2).key_padding(padding).masked(b).masked(a),
        s.window(None, 1).masked(a & b).window(4, 2).key_padding(padding),
    )
    for got in orders:
        np.testing.assert_array_equal(kept(got), want)


def test_masks_of_a_sum_are_those_of_all_experts() -> None:
    a, b = build(Spec("dot", "float64", 17, 17, 3)), build(Spec("distance", "float64", 17, 17, 3))
    s = a.scores.causal() + b.scores.window(3, 3)
    want = ref.causal_mask(17, 17) & ref.window_mask(17, 17, 3, 3)
    np.testing.assert_array_equal(kept(s), want)
    np.testing.assert_array_equal(kept(2.0 * s), want)


def unless_refused(make: Callable[[], qk.Scores]) -> qk.Scores | None:
    """The scores, or None if they were refused because they are ragged: an answer too."""
    try:
        return make()
    except ValueError as error:
        if "ragged" not in str(error):
            raise
        return None


def test_a_sum_is_the_sum_of_the_matrices_also_when_one_is_ragged() -> None:
    """A mask means the same entries before and after its scores become an expert of a sum."""
    banded = zeros(6, 6).causal()
    for rows, columns in (([0, 3, 6], [0, 3, 6]), ([0, 2, 6], [0, 4, 6])):
        blocks = zeros(6, 6).ragged(rows, columns)
        want = ref.causal_mask(6, 6) & ref.ragged_mask(rows, columns)
        for make in (partial(add, banded, blocks), partial(add, blocks, banded)):
            s = unless_refused(make)
            if s is not None:
                np.testing.assert_array_equal(kept(s), want)


@pytest.mark.parametrize(
    "join",
    [
        "ragged + qk.scores.dense(batch)",
        "qk.scores.dense(batch) + ragged",
        "ragged.masked(batch == 0)",
        "ragged.key_padding(np.ones((2, 6), bool))",
        "ragged.shift(np.zeros((2, 6)))",
    ],
)
def test_ragged_scores_do_not_become_a_batch(join: str) -> None:
    """Ragged is 2-D only; a batch joined later is answered or refused, never misread. In a process
    of its own: offsets read past their end take the whole process down."""
    code = f"""
    import numpy as np
    import qkcore as qk
    from tests import reference as ref
    from tests.test_masks import kept, unless_refused, zeros
    ragged, batch = zeros(6, 6).ragged([0, 2, 6]), np.zeros((2, 6, 6))
    s = unless_refused(lambda: {join})
    if s is not None:
        want = np.broadcast_to(ref.ragged_mask([0, 2, 6]), (2, 6, 6))
        np.testing.assert_array_equal(kept(s), want)
        np.testing.assert_allclose(s.logsumexp(), ref.logsumexp(ref.masked(batch, want)))
    """
    run_ok(code)


def test_masks_are_transposed_with_the_scores() -> None:
    """Causal before .T looks ahead after it; causal after .T looks back."""
    s = build(Spec("dot", "float64", 17, 31, 3)).scores
    np.testing.assert_array_equal(kept(s.causal(2).T), ref.causal_mask(17, 31, 2).T)
    np.testing.assert_array_equal(kept(s.T.causal(2)), ref.causal_mask(31, 17, 2))
    np.testing.assert_array_equal(kept(s.window(3, 1).T), ref.window_mask(31, 17, 1, 3))
    padding = np.arange(31) % 3 > 0
    np.testing.assert_array_equal(
        kept(s.key_padding(padding).T), np.broadcast_to(padding[:, None], (31, 17))
    )
    rows, columns = np.array([0, 5, 17]), np.array([0, 30, 31])
    np.testing.assert_array_equal(
        kept(s.ragged(rows, columns).causal().T), ref.ragged_mask(rows, columns, right=0).T
    )


@pytest.mark.parametrize("kind", ["dense", "distance"])
def test_all_masked(kind: str) -> None:
    """Every reduction of nothing: zero weights, -inf normalisers, no warning (an error here)."""
    p = build(Spec(kind, "float32", 17, 9, 3))
    for s in (p.scores.causal(-17), p.scores.key_padding(np.zeros(9, bool))):
        check_everything(keep(p, s, np.zeros((17, 9), bool)))
        assert qk.softmax(s).empty.all()
        assert qk.softmax(s, axis=0).empty.all()


def test_a_mask_of_all_true_changes_no_bit() -> None:
    p = build(Spec("distance", "float32", 65, 33, 3))
    A, V = qk.softmax(p.scores), p.vectors(3)
    B = qk.softmax(p.scores.masked(np.ones((65, 33), bool)))
    assert_same_bits(B.to_numpy(), A.to_numpy(), "to_numpy")
    np.testing.assert_allclose(B @ V, A @ V, rtol=0, atol=1e-6)


def test_a_numpy_integer_is_an_offset() -> None:
    s = zeros(5, 5)
    np.testing.assert_array_equal(kept(s.causal(np.int64(1))), ref.causal_mask(5, 5, 1))
    np.testing.assert_array_equal(kept(s.window(np.int32(1), None)), ref.window_mask(5, 5, 1, None))
