"""Score matrices: every kind, every weight matrix, sums, scaling, shifts, transposition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .checks import check_scores
from .generators import (
    DIMS,
    DTYPES,
    EDGES,
    POINT_KINDS,
    WEIGHTS,
    Problem,
    Spec,
    add,
    build,
    dense_scores,
    normal,
    point_scores,
    points,
    scale,
    shift,
    specs,
    weight_matrix,
)


@given(specs())
def test_any_scores_match_the_reference(spec: Spec) -> None:
    check_scores(build(spec))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("kind", POINT_KINDS)
def test_every_kind_with_every_weight(kind: str, weight: str, dtype: str) -> None:
    """DAC-1, the divergences: QK Gram, both bidivergences and the Mahalanobis distance, W any."""
    check_scores(build(Spec(kind, dtype, 33, 17, 7, weight, beta=0.7)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, dtype: str) -> None:
    other = EDGES[(EDGES.index(size) * 5 + 3) % 18]  # not the same size: N != M
    check_scores(build(Spec("distance", dtype, size, other, 3)))
    check_scores(build(Spec("dot", dtype, other, size, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", POINT_KINDS)
@pytest.mark.parametrize("dim", DIMS)
def test_dimensions(dim: int, kind: str, dtype: str) -> None:
    check_scores(build(Spec(kind, dtype, 9, 18, dim, "asymmetric")))


@pytest.mark.parametrize("kind", POINT_KINDS)
def test_one_set_of_points_is_both_sets(kind: str) -> None:
    """Y=None means Y = X, to the bit."""
    rng = np.random.default_rng(1)
    X, W = points(rng, (21, 5), "float64"), weight_matrix(rng, "asymmetric", 5, "float64")
    make = getattr(qk.scores, kind)
    check_scores(point_scores(kind, X, None, W, 1.5, rng))
    assert_same_bits(make(X, W=W).to_numpy(), make(X, X, W=W).to_numpy(), kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factored", [False, True])
def test_a_rectangular_weight_joins_points_of_two_dimensions(factored: bool, dtype: str) -> None:
    rng = np.random.default_rng(2)
    X, Y = points(rng, (19, 5), dtype), points(rng, (11, 8), dtype)
    if factored:
        W: ref.Weight = (normal(rng, (5, 3), dtype), normal(rng, (3, 8), dtype))
    else:
        W = normal(rng, (5, 8), dtype)
    check_scores(point_scores("dot", X, Y, W, 0.5, rng))


@pytest.mark.parametrize("kind", POINT_KINDS)
def test_a_factored_weight_is_its_product(kind: str) -> None:
    rng = np.random.default_rng(3)
    X, Y = points(rng, (13, 4), "float64"), points(rng, (10, 4), "float64")
    W = weight_matrix(rng, "factored", 4, "float64")
    assert isinstance(W, tuple)
    pair = point_scores(kind, X, Y, W, 1.0, rng)
    whole = getattr(qk.scores, kind)(X, Y, W=W[0] @ W[1]).to_numpy()
    assert_within(whole, pair.s, 2 * bounds.scores(pair.dtype, pair.slack), kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_scores_come_back_as_they_are(dtype: str) -> None:
    Z = normal(np.random.default_rng(4), (3, 17, 9), dtype)
    Z[0, 3] = -np.inf
    assert_same_bits(qk.scores.dense(Z).to_numpy(), Z, "dense")


def test_lists_of_floats_are_float64() -> None:
    s = qk.scores.dense([[1.0, 2.0], [3.0, 4.0]])
    assert s.dtype == np.float64
    assert s.shape == (2, 2)
    t = qk.scores.dot([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_array_equal(t.to_numpy(), [[11.0, 17.0]])


def small(dtype: str = "float64", *, mask: bool = False) -> tuple[Problem, Problem]:
    rng = np.random.default_rng(5)
    a = point_scores("dot", points(rng, (9, 3), dtype), points(rng, (7, 3), dtype), None, 1.0, rng)
    Z = normal(rng, (9, 7), dtype)
    if mask:
        Z[2, :4] = -np.inf
    return a, dense_scores(Z, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [False, True])
def test_sums_of_points_and_dense(dtype: str, mask: bool) -> None:
    a, b = small(dtype, mask=mask)
    check_scores(add(a, b))
    check_scores(add(b, a))
    check_scores(add(add(a, b), a))  # the same expert twice counts twice


def test_scalars_multiply_from_both_sides_and_divide() -> None:
    a, _ = small()
    check_scores(scale(a, 2.5))
    want = scale(a, 0.25)
    for got in (0.25 * a.scores, a.scores * 0.25, a.scores / 4, np.float64(0.25) * a.scores):
        assert isinstance(got, qk.Scores)
        assert_within(got.to_numpy(), want.s, bounds.scores(a.dtype, want.slack), "scaled")


def test_a_scalar_scales_shifts_masks_and_every_expert() -> None:
    a, b = small(mask=True)
    r, c = normal(a.rng, (9,), a.dtype), normal(a.rng, (7,), a.dtype)
    check_scores(scale(shift(add(a, b), r, c), 3.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", ["rows", "columns", "both"])
def test_shifts(sides: str, dtype: str) -> None:
    a, _ = small(dtype)
    r = normal(a.rng, (9,), dtype) if sides != "columns" else None
    c = normal(a.rng, (7,), dtype) if sides != "rows" else None
    shifted = shift(a, r, c)
    check_scores(shifted)
    check_scores(shift(shifted, r, c))  # a second shift adds to the first


def test_a_shift_of_minus_infinity_masks() -> None:
    a, _ = small()
    r, c = np.zeros(9), np.zeros(7)
    r[4], c[[0, 6]] = -np.inf, -np.inf
    check_scores(shift(a, r, c))


def test_transposition_is_lazy_exact_and_its_own_inverse() -> None:
    for kind in ("dense", *POINT_KINDS, "sum", "shifted"):
        p = build(Spec(kind, "float64", 17, 9, 3, "asymmetric", "several"))
        check_scores(p.transposed)
        assert p.scores.T.shape == (9, 17)
        assert_same_bits(p.scores.T.T.to_numpy(), p.scores.to_numpy(), kind)


def test_operations_leave_the_operand_alone() -> None:
    """Scores are values: deriving new ones must not change the old."""
    a, b = small()
    before = a.scores.to_numpy()
    r = np.ones(9)
    for derived in (a.scores + b.scores, 2 * a.scores, a.scores.T, a.scores.causal()):
        derived.to_numpy()
    a.scores.shift(rows=r).window(1, 1).masked(np.zeros((9, 7), bool)).to_numpy()
    assert_same_bits(a.scores.to_numpy(), before, "operand")


def test_the_thread_count_of_one_call_changes_nothing() -> None:
    p = build(Spec("distance", "float32", 129, 65, 7))
    for n in (1, 2, 5):
        assert_same_bits(p.scores.to_numpy(n_threads=n), p.scores.to_numpy(n_threads=1), str(n))


def test_repr_shows_shape_and_dtype() -> None:
    text = repr(qk.scores.dot(np.ones((4, 2), np.float32), np.ones((3, 2), np.float32)))
    assert "4" in text
    assert "3" in text
    assert "float32" in text


@pytest.mark.parametrize("ragged", [False, True])
def test_one_problem_of_many(ragged: bool) -> None:
    """Every kind of term, broadcast or not: problem k alone has the scores that it has among the others."""
    rng = np.random.default_rng(0)
    if ragged:
        cuts = np.array([0, 3, 3, 8, 9])
        batch: tuple[int, ...] = ()
        n, m = 9, 9
    else:
        batch, n, m = (2, 3), 5, 4
    X, Y = rng.normal(size=(*batch, n, 2)), rng.normal(size=(*batch[1:], m, 2))
    s = (
        qk.scores.distance(X, Y, beta=0.5)
        + qk.scores.dot(rng.normal(size=(n, 3)), rng.normal(size=(*batch, m, 3)))
        + qk.scores.dense(rng.normal(size=(*(1 for _ in batch), n, m)))
    ).shift(rows=rng.normal(size=(*batch, n)), columns=rng.normal(size=m))
    s = s.masked(rng.random((*batch[1:], n, m)) < 0.8).window(2, 1)
    if not ragged:
        for k, at in enumerate(np.ndindex(*batch)):
            one = s._problem(k)
            assert one.shape == (n, m)
            np.testing.assert_array_equal(one.to_numpy(), s.to_numpy()[at])
        return
    r = s.ragged(cuts)
    whole = r.to_numpy()
    for k, (first, end) in enumerate(pairwise(cuts)):
        one = r._problem(k)
        assert one.shape == (end - first, end - first)
        np.testing.assert_array_equal(one.to_numpy(), whole[first:end, first:end])
