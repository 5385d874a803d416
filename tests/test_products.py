"""A @ V and mu @ A for softmax operators: shapes, right-hand sides, both axes, transposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .checks import check_products
from .generators import DIMS, DTYPES, EDGES, KINDS, MASKS, RHS, Spec, build, specs

AXES = (1, 0)


@given(specs(), st.sampled_from(AXES), st.sampled_from((None, *RHS)))
def test_any_product_matches_the_reference(spec: Spec, axis: int, k: int | None) -> None:
    check_products(build(spec), axis, k)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [None, *RHS])
def test_every_count_of_right_hand_sides(k: int | None, dtype: str, axis: int) -> None:
    check_products(build(Spec("dot", dtype, 33, 65, 3)), axis, k)
    check_products(build(Spec("dense", dtype, 17, 47)), axis, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, dtype: str) -> None:
    for axis in AXES:
        check_products(build(Spec("distance", dtype, size, 49, 2)), axis, 5)
        check_products(build(Spec("distance", dtype, 9, size, 2)), axis, None)


@pytest.mark.parametrize("dim", DIMS)
def test_dimensions(dim: int) -> None:
    check_products(build(Spec("forward", "float32", 33, 31, dim, "asymmetric")), 1, 4)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_under_every_mask(kind: str, mask: str) -> None:
    p = build(Spec(kind, "float64", 31, 33, 3, "none", mask))
    for axis in AXES:
        check_products(p, axis, 3)


@pytest.mark.parametrize("axis", AXES)
def test_products_of_the_transposed_operator(axis: int) -> None:
    """A.T @ U = (U^T @ A)^T, both ways."""
    p = build(Spec("dot", "float64", 33, 17, 3, mask="several"))
    A, P = qk.softmax(p.scores, axis=axis), ref.softmax(p.s, axis)
    entry = bounds.softmax(p, axis)
    U, V = p.vectors(4, left=True), p.vectors(4)
    want, bound = ref.apply_left(U, P), bounds.apply_left(p.dtype, U, P, entry)
    assert_within(A.T @ U.T, want.T, bound.T, "A.T @ U")
    want, bound = ref.apply(P, V), bounds.apply(p.dtype, P, entry, V)
    assert_within(V.T @ A.T, want.T, bound.T, "V^T @ A.T")


def test_apply_is_the_at_operator() -> None:
    p = build(Spec("dot", "float32", 33, 17, 3))
    A = qk.softmax(p.scores)
    V, U = p.vectors(3), p.vectors(3, left=True)
    assert_same_bits(A.apply(V), A @ V, "apply")
    assert_same_bits(A.apply(V, n_threads=3), A @ V, "apply with threads")
    n = qk.get_num_threads()
    assert_same_bits(A.apply_left(U, n_threads=n), U @ A, "apply_left")


def test_a_matrix_on_the_left_is_not_captured_by_numpy() -> None:
    """`array @ A` must reach A: NumPy would otherwise try to make an object array of it."""
    A = qk.softmax(qk.scores.dense(np.zeros((3, 4))))
    got = np.ones(3) @ A
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.full(4, 0.75), rtol=1e-15)


def test_a_constant_is_kept_and_mass_is_kept() -> None:
    """Rows sum to one: A 1 = 1, and mu A has the mass of mu."""
    p = build(Spec("forward", "float64", 129, 65, 7))
    A = qk.softmax(p.scores)
    limit = bounds.eps_of(p.dtype) * (bounds.summation(65) + bounds.EXP_EPS)
    np.testing.assert_allclose(A @ np.ones(65), 1.0, rtol=0, atol=limit)
    mu = np.abs(p.vectors(None, left=True))
    entry = bounds.softmax(p)
    slack = bounds.apply_left(p.dtype, mu, ref.softmax(p.s), entry).sum()
    assert abs((mu @ A).sum() - mu.sum()) <= slack


def test_empty_rows_give_zero() -> None:
    p = build(Spec("dot", "float64", 6, 6, 2))
    A = qk.softmax(p.scores.causal(-2))
    assert A.empty.tolist() == [True, True, False, False, False, False]
    got = A @ p.vectors(3)
    assert not got[:2].any()
    assert np.abs(got[2:]).min() > 0
    mu = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert not (mu @ A).any()  # the mass of empty rows is lost


def test_the_result_is_new_and_writable() -> None:
    A, V = qk.softmax(qk.scores.dense(np.zeros((2, 3)))), np.ones((3, 2))
    got = A @ V
    got[:] = 5
    np.testing.assert_allclose(A @ V, 1.0, rtol=1e-15)
    assert (V == 1).all()


def test_lists_are_accepted_as_right_hand_sides() -> None:
    A = qk.softmax(qk.scores.dense([[0.0, 0.0]]))
    np.testing.assert_allclose(A @ [1.0, 3.0], [2.0], rtol=1e-15)
