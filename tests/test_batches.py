"""Leading axes: broadcast between points, sums, masks, shifts and right-hand sides."""

from __future__ import annotations

import numpy as np
import pytest

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .checks import check_everything, check_scores, check_softmax
from .generators import (
    DTYPES,
    KINDS,
    POINT_KINDS,
    Problem,
    Spec,
    add,
    build,
    dense_scores,
    keep,
    normal,
    point_scores,
    points,
    shift,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(1,), (3,), (2, 2), (2, 1, 3)])
def test_everything_over_a_batch(batch: tuple[int, ...], kind: str, dtype: str) -> None:
    check_everything(build(Spec(kind, dtype, 17, 9, 3, "asymmetric", "dense", batch)))


@pytest.mark.parametrize("kind", POINT_KINDS)
@pytest.mark.parametrize(
    ("left", "right"), [((3,), ()), ((), (3,)), ((2, 1), (3,)), ((1,), (4,)), ((2, 1, 3), (5, 1))]
)
def test_points_broadcast(kind: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    X, Y = points(rng, (*left, 9, 3), "float64"), points(rng, (*right, 17, 3), "float64")
    p = point_scores(kind, X, Y, None, 1.0, rng)
    assert p.scores.shape == (*np.broadcast_shapes(left, right), 9, 17)
    check_everything(p)


def parts(dtype: str = "float64") -> tuple[Problem, Problem, Problem]:
    """Scores over (3,), (2, 1) and no batch: their sum is over (2, 3)."""
    rng = np.random.default_rng(1)
    X, Y = points(rng, (3, 9, 2), dtype), points(rng, (3, 8, 2), dtype)
    a = point_scores("dot", X, Y, None, 1.0, rng)
    b = dense_scores(normal(rng, (2, 1, 9, 8), dtype), rng)
    c = point_scores("distance", X[0], Y[0], None, 0.5, rng)
    return a, b, c


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_broadcast(dtype: str) -> None:
    a, b, c = parts(dtype)
    assert (a.scores + b.scores + c.scores).shape == (2, 3, 9, 8)
    check_everything(add(add(a, b), c))
    check_scores(add(c, a))


@pytest.mark.parametrize("shape", [(9, 8), (3, 9, 8), (3, 1, 8), (1, 9, 1), (2, 1, 9, 8)])
def test_dense_masks_broadcast(shape: tuple[int, ...]) -> None:
    a, _, _ = parts()
    mask = np.random.default_rng(2).random(shape) < 0.6
    check_everything(keep(a, a.scores.masked(mask), mask))


def test_key_padding_per_batch_item() -> None:
    """Sequences of unequal length in one array: the usual use of padding."""
    a, _, _ = parts()
    padding = np.arange(8) < np.array([[8], [3], [0]])
    p = keep(a, a.scores.key_padding(padding), padding[:, None, :])
    check_everything(p)
    assert qk.softmax(p.scores).empty.all(axis=1).tolist() == [False, False, True]


@pytest.mark.parametrize("lead", [(), (3,), (2, 1)])
def test_shifts_broadcast(lead: tuple[int, ...]) -> None:
    a, _, _ = parts()
    r, c = normal(a.rng, (*lead, 9), "float64"), normal(a.rng, (*lead, 8), "float64")
    check_everything(shift(a, r, c))
    check_scores(shift(a, r, None))


@pytest.mark.parametrize("lead", [(3,), (1,)])
@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("axis", [1, 0])
def test_right_hand_sides_broadcast(lead: tuple[int, ...], k: int | None, axis: int) -> None:
    """Right-hand sides have the operator's batch axes, of length 1 where all items share them."""
    a, _, _ = parts()
    A, P = qk.softmax(a.scores, axis=axis), ref.softmax(a.s, axis)
    entry = bounds.softmax(a, axis)
    V = normal(a.rng, (*lead, 8) if k is None else (*lead, 8, k), "float64")
    U = normal(a.rng, (*lead, 9) if k is None else (*lead, k, 9), "float64")
    assert_within(A @ V, ref.apply(P, V), bounds.apply(a.dtype, P, entry, V), "A @ V")
    want = bounds.apply_left(a.dtype, U, P, entry)
    assert_within(U @ A, ref.apply_left(U, P), want, "U @ A")


def test_one_vector_for_every_item() -> None:
    a, _, _ = parts()
    A = qk.softmax(a.scores)
    v, mu = normal(a.rng, (8,), "float64"), normal(a.rng, (9,), "float64")
    np.testing.assert_allclose(A @ v, A.to_numpy() @ v, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mu @ A, mu @ A.to_numpy(), rtol=1e-12, atol=1e-14)


def test_as_many_vectors_as_items_are_one_for_each() -> None:
    """V (B, M) on a batch of B is a vector per item, never a matrix, also when B = M = N."""
    Z = normal(np.random.default_rng(5), (4, 4, 4), "float64")
    A, V = qk.softmax(qk.scores.dense(Z)), normal(np.random.default_rng(6), (4, 4), "float64")
    assert (A @ V).shape == (V @ A).shape == (4, 4)
    want = np.einsum("bij,bj->bi", A.to_numpy(), V)
    np.testing.assert_allclose(A @ V, want, rtol=1e-12, atol=1e-14)
    want = np.einsum("bi,bij->bj", V, A.to_numpy())
    np.testing.assert_allclose(V @ A, want, rtol=1e-12, atol=1e-14)


def test_marginals_take_potentials_with_or_without_batch() -> None:
    a, _, _ = parts()
    for lead in ((), (3,), (2, 1)):
        f, g = normal(a.rng, (*lead, 9), "float64"), normal(a.rng, (*lead, 8), "float64")
        rows, columns = a.scores.marginals(f, g)
        want_rows, want_columns = ref.marginals(a.s, f, g)
        limits = bounds.marginals(a, f, g)
        assert_within(rows, want_rows, limits[0], f"rows, {lead}")
        assert_within(columns, want_columns, limits[1], f"columns, {lead}")


@pytest.mark.parametrize("kind", ["dense", *POINT_KINDS])
def test_a_batch_is_its_items_to_the_bit(kind: str) -> None:
    """Batching is a loop: an item computed alone has the same bits."""
    rng = np.random.default_rng(3)
    if kind == "dense":
        Z = normal(rng, (3, 33, 17), "float32")
        whole, items = qk.scores.dense(Z), [qk.scores.dense(z) for z in Z]
    else:
        make = getattr(qk.scores, kind)
        X, Y = points(rng, (3, 33, 5), "float32"), points(rng, (3, 17, 5), "float32")
        whole, items = make(X, Y), [make(x, y) for x, y in zip(X, Y, strict=True)]
    V = normal(rng, (1, 17, 4), "float32")
    for b, item in enumerate(items):
        assert_same_bits(whole.to_numpy()[b], item.to_numpy(), "scores")
        assert_same_bits(whole.logsumexp()[b], item.logsumexp(), "logsumexp")
        assert_same_bits((qk.softmax(whole) @ V)[b], qk.softmax(item) @ V[0], "A @ V")


def test_transposition_leaves_batch_axes_in_place() -> None:
    p = build(Spec("forward", "float64", 17, 9, 3, "asymmetric", batch=(2, 3)))
    assert p.scores.T.shape == (2, 3, 9, 17)
    check_softmax(p.transposed, 1)
    check_softmax(p.transposed, 0)
    assert qk.softmax(p.scores).T.shape == (2, 3, 9, 17)
