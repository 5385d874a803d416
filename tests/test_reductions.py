"""Log-sum-exp, marginals, entropy and expected score against the reference."""

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
from .checks import check_entropy, check_logsumexp, check_marginals
from .generators import DTYPES, EDGES, MASKS, Spec, build, dense_scores, normal, specs
from .reference import Array

AXES = (1, 0)


@given(specs(), st.sampled_from(AXES))
def test_any_logsumexp_matches_the_reference(spec: Spec, axis: int) -> None:
    check_logsumexp(build(spec), axis)


@given(specs(), st.sampled_from(AXES))
def test_any_entropy_matches_the_reference(spec: Spec, axis: int) -> None:
    check_entropy(build(spec), axis)


@given(specs(), st.booleans(), st.booleans())
def test_any_marginals_match_the_reference(spec: Spec, with_f: bool, with_g: bool) -> None:
    p = build(spec)
    f = normal(p.rng, p.s.shape[:-1], p.dtype) if with_f else None
    g = normal(p.rng, (*p.s.shape[:-2], p.s.shape[-1]), p.dtype) if with_g else None
    check_marginals(p, f, g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, dtype: str) -> None:
    for p in (
        build(Spec("distance", dtype, size, 17, 3)),
        build(Spec("dense", dtype, 33, size)),
    ):
        for axis in AXES:
            check_logsumexp(p, axis)
            check_entropy(p, axis)
        check_marginals(p)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    p = build(Spec("backward", "float64", 33, 31, 3, "asymmetric", mask))
    for axis in AXES:
        check_logsumexp(p, axis)
        check_entropy(p, axis)
    check_marginals(p, p.vectors(None, left=True), p.vectors(None))


def test_negative_axes_count_from_the_end() -> None:
    s = build(Spec("dot", batch=(3,))).scores
    assert_same_bits(s.logsumexp(-1), s.logsumexp(1), "columns")
    assert_same_bits(s.logsumexp(-2), s.logsumexp(0), "rows")
    assert_same_bits(s.logsumexp(), s.logsumexp(1), "default")
    assert s.logsumexp(1).shape == (3, 17)
    assert s.logsumexp(0).shape == (3, 9)


def test_against_scipy_directly() -> None:
    Z = np.random.default_rng(0).normal(size=(40, 50)) * 4
    s = qk.scores.dense(Z)
    for axis in AXES:
        np.testing.assert_allclose(
            s.logsumexp(axis), scipy.special.logsumexp(Z, axis=axis), rtol=1e-14
        )
        p = scipy.special.softmax(Z, axis=axis)
        A = qk.softmax(s, axis=axis)
        np.testing.assert_allclose(A.entropy(), scipy.special.entr(p).sum(axis), rtol=1e-13)
        np.testing.assert_allclose(A.expected_score(), (p * Z).sum(axis), rtol=1e-13)


def test_entropy_of_known_laws() -> None:
    """Uniform over n: log n. One entry: 0. Two equal halves: log 2."""
    uniform = qk.softmax(qk.scores.dense(np.full((2, 10), 7.0)))
    np.testing.assert_allclose(uniform.entropy(), np.log(10), rtol=1e-15)
    np.testing.assert_allclose(uniform.expected_score(), 7.0, rtol=1e-15)
    one = qk.softmax(qk.scores.dense(np.array([[5.0, -np.inf, -np.inf]])))
    assert one.entropy().tolist() == [0.0]
    assert one.expected_score().tolist() == [5.0]
    halves = qk.softmax(qk.scores.dense(np.array([[3.0, -np.inf, 3.0]])))
    np.testing.assert_allclose(halves.entropy(), np.log(2), rtol=1e-15)


@pytest.mark.parametrize("axis", AXES)
def test_empty_rows_have_no_entropy_and_no_score(axis: int) -> None:
    Z = np.ones((3, 4))
    Z[1], Z[:, 2] = -np.inf, -np.inf
    p = dense_scores(Z, np.random.default_rng(0))
    check_entropy(p, axis)
    A = qk.softmax(p.scores, axis=axis)
    assert A.entropy()[A.empty].tolist() == [0.0]
    assert A.expected_score()[A.empty].tolist() == [0.0]
    assert p.scores.logsumexp(axis)[A.empty].tolist() == [-np.inf]
    rows, columns = p.scores.marginals()
    assert rows[1] == 0
    assert columns[2] == 0


def test_the_row_and_the_column_marginal_have_the_same_mass() -> None:
    p = build(Spec("dot", "float64", 129, 65, 3, mask="causal"))
    f, g = p.vectors(None, left=True), p.vectors(None)
    rows, columns = p.scores.marginals(f, g)
    limit = sum(b.sum() for b in bounds.marginals(p, f, g))
    assert abs(rows.sum() - columns.sum()) <= limit


def test_potentials_are_shifts() -> None:
    """marginals(f, g) of s are marginals() of s.shift(f, g), and exp of its log-sum-exps."""
    p = build(Spec("distance", "float64", 33, 17, 3))
    f, g = p.vectors(None, left=True), p.vectors(None)
    direct = p.scores.marginals(f, g)
    shifted = p.scores.shift(f, g)
    limits = bounds.marginals(p, f, g)
    pairs = zip(direct, shifted.marginals(), limits, (1, 0), strict=True)
    for a, b, limit, axis in pairs:
        assert_within(a, ref.high(b), 2 * limit, "shifted marginal")
        assert_within(np.exp(shifted.logsumexp(axis)), ref.high(a), 4 * limit, "exp lse")


def test_softmax_scaled_by_its_normaliser_has_unit_marginals() -> None:
    """f = -lse makes every row marginal 1: the coupling of a row softmax."""
    p = build(Spec("forward", "float64", 65, 33, 3))
    f = -p.scores.logsumexp(1)
    rows, columns = p.scores.marginals(f=f)
    limit, _ = bounds.marginals(p, f, None)
    lse = bounds.logsumexp(p)
    assert_within(rows, np.ones(65), limit + lse, "unit rows")
    A = qk.softmax(p.scores)
    np.testing.assert_allclose(columns, np.ones(65) @ A, rtol=1e-13)


def test_thread_counts_are_accepted_everywhere() -> None:
    s = build(Spec("dot", "float32", 65, 33, 3)).scores
    A = qk.softmax(s)
    for n in (1, 2, 4):
        assert_same_bits(s.logsumexp(n_threads=n), s.logsumexp(), "logsumexp")
        assert_same_bits(A.entropy(n_threads=n), A.entropy(), "entropy")
        assert_same_bits(A.expected_score(n_threads=n), A.expected_score(), "expected_score")
        again = s.marginals(n_threads=n)
        for first, second in zip(s.marginals(n_threads=n), again, strict=True):
            assert_same_bits(first, second, "marginals")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (16, 16), (17, 40), (97, 33), (130, 257)])
def test_columns_of_a_matrix_are_read_as_they_stand(shape: tuple[int, int], dtype: str) -> None:
    """Squares of packs are transposed in registers; edges, scales and shifts are as in any order."""
    Z = np.random.default_rng(3).normal(size=shape).astype(dtype)
    shift = np.random.default_rng(4).normal(size=shape[0]).astype(dtype)
    for scale in (1.0, 0.75):
        by_columns = (qk.scores.dense(Z).T * scale).shift(columns=shift)
        by_rows = (qk.scores.dense(np.ascontiguousarray(Z.T)) * scale).shift(columns=shift)
        np.testing.assert_array_equal(by_columns.to_numpy(), by_rows.to_numpy())
        np.testing.assert_array_equal(by_columns.logsumexp(), by_rows.logsumexp())
    np.testing.assert_array_equal(qk.scores.dense(Z).T.to_numpy(), Z.T)
    strided = np.repeat(Z, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(qk.scores.dense(strided).T.to_numpy(), Z.T)


def views_down_columns(Z: Array) -> list[Array]:
    """Matrices whose transposes are read down the columns: whole ones, and parts of others."""
    return [Z, Z[::2], Z[::-1], Z[:, 1:], Z[-3:], np.asfortranarray(Z).T]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_cols", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 100])
def test_few_columns_down_a_matrix(n_cols: int, dtype: str) -> None:
    """Fewer columns than a pack has lanes are transposed too, up to the last entry of the memory."""
    for n_rows in (3, 16, 40, 259):
        Z = np.random.default_rng(n_cols).normal(size=(n_rows, n_cols + 1)).astype(dtype)
        for k, view in enumerate(views_down_columns(Z)):
            by_columns = qk.scores.dense(view)
            what = f"{n_rows} rows, view {k}"
            found = by_columns.logsumexp(0, n_threads=1)
            assert_same_bits(found, by_columns.logsumexp(0, n_threads=2), what)
            want = scipy.special.logsumexp(view.astype(np.float64), axis=0)
            eps = float(np.finfo(dtype).eps)
            np.testing.assert_allclose(found, want, rtol=8 * eps, atol=16 * eps, err_msg=what)
            np.testing.assert_array_equal(by_columns.T.to_numpy(), view.T, err_msg=what)
