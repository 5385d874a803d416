"""Laws that hold for any data. They need no reference value, but compare two ways to the same answer.

Both ways may be off by the bound, so two results may differ by the sum of the two bounds.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .generators import (
    DTYPES,
    WEIGHTS,
    Problem,
    Spec,
    add,
    build,
    normal,
    point_scores,
    points,
    scale,
    shift,
    specs,
    weight_matrix,
)
from .reference import Array

AXES = (1, 0)
ANY = st.sampled_from(AXES)


def softmax_bound(p: Problem, axis: int) -> Array:
    return bounds.softmax(p, axis)


def probabilities(p: Problem, axis: int) -> Array:
    return ref.high(qk.softmax(p.scores, axis=axis).to_numpy())


@given(specs(), ANY)
def test_softmax_ignores_a_shift_along_its_axis(spec: Spec, axis: int) -> None:
    """DAC-3, shift invariance (A.3): r_i for the row softmax, c_j for the column softmax."""
    p = build(spec)
    n, m = p.s.shape[-2:]
    size = 30 * normal(p.rng, (*p.s.shape[:-2], n if axis == 1 else m), p.dtype)
    q = shift(p, size, None) if axis == 1 else shift(p, None, size)
    limit = softmax_bound(p, axis) + softmax_bound(q, axis)
    assert_within(probabilities(q, axis), probabilities(p, axis), limit, "shifted")


def test_softmax_feels_a_shift_across_its_axis() -> None:
    """DAC-3, erratum 9: a row softmax is invariant only to shifts that depend on i."""
    p = build(Spec("dot", "float64", 9, 7, 3))
    q = shift(p, None, normal(p.rng, (7,), "float64"))
    assert np.abs(probabilities(q, 1) - probabilities(p, 1)).max() > 0.1


@given(specs(entries=5000), ANY)
def test_product_of_experts(spec: Spec, axis: int) -> None:
    """DAC-3, the product-of-experts identity (A.2): softmax(s + t) is softmax(s) softmax(t)
    renormalised along the axis."""
    p = build(spec)
    t = build(Spec("dot", spec.dtype, spec.rows, spec.columns, 3, batch=spec.batch, seed=1))
    both = add(p, t)
    product = probabilities(p, axis) * probabilities(t, axis)
    total = product.sum(axis=-1 if axis == 1 else -2, keepdims=True)
    want = product / np.where(total > 0, total, 1)
    eps = bounds.eps_of(p.dtype)
    relative = bounds.softmax_relative(p, axis)
    relative = relative + bounds.softmax_relative(t, axis)
    # Normalising averages the relative errors of a row: twice the largest is enough.
    worst = relative.max(axis=-1 if axis == 1 else -2, keepdims=True)
    limit = softmax_bound(both, axis) + eps * want * 2 * worst
    assert_within(probabilities(both, axis), want, limit, "product of experts")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_forward_and_backward_make_the_distance(weight: str, dtype: str) -> None:
    """DAC-1, the divergences: D2 = d-> + d<- for every W, also between two sets of points."""
    rng = np.random.default_rng(0)
    W = weight_matrix(rng, weight, 5, dtype)
    X, Y = points(rng, (33, 5), dtype), points(rng, (17, 5), dtype)
    for other in (Y, None):
        parts = [point_scores(kind, X, other, W, 0.8, rng) for kind in ("forward", "backward")]
        whole = point_scores("distance", X, other, W, 0.8, rng)
        together = add(*parts)
        limit = bounds.scores(dtype, together.slack) + bounds.scores(dtype, whole.slack)
        got = ref.high(together.scores.to_numpy())
        assert_within(whole.scores.to_numpy(), got, limit, "d-> + d<-")


@pytest.mark.parametrize("kind", ["forward", "backward", "distance"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_point_is_at_no_divergence_from_itself(kind: str, weight: str) -> None:
    """DAC-1, self-zero: the diagonal vanishes, up to the rounding of what cancels there."""
    rng = np.random.default_rng(1)
    p = point_scores(
        kind,
        points(rng, (20, 7), "float64"),
        None,
        weight_matrix(rng, weight, 7, "float64"),
        1,
        rng,
    )
    limit = np.diagonal(bounds.scores(p.dtype, p.slack))
    assert_within(np.diagonal(p.scores.to_numpy()), np.zeros(20), limit, kind)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_backward_is_forward_seen_from_the_other_side(weight: str) -> None:
    """DAC-1: d<-_ij = G_ii - G_ji is d->_ji term by term, so d-> = (d<-)^T for every W, also an
    asymmetric one, where the document says otherwise."""
    rng = np.random.default_rng(2)
    W = weight_matrix(rng, weight, 3, "float64")
    X, Y = points(rng, (9, 3), "float64"), points(rng, (8, 3), "float64")
    there = point_scores("forward", X, Y, W, 1.0, rng)
    back = point_scores("backward", Y, X, W, 1.0, rng)
    limit = bounds.scores(there.dtype, there.slack + back.slack.T)
    assert_within(there.scores.to_numpy(), ref.high(back.scores.T.to_numpy()), limit, weight)
    # And they differ without the transpose.
    assert np.abs(there.s - ref.backward(X, Y, W)).max() > 1e-2


def test_only_the_symmetric_part_of_the_weight_makes_a_distance() -> None:
    rng = np.random.default_rng(3)
    W = np.asarray(weight_matrix(rng, "asymmetric", 4, "float64"))
    X = points(rng, (21, 4), "float64")
    p = point_scores("distance", X, None, W, 1.0, rng)
    half = qk.scores.distance(X, W=(W + W.T) / 2).to_numpy()
    assert_within(half, ref.high(p.scores.to_numpy()), 2 * bounds.scores(p.dtype, p.slack), "sym")


@pytest.mark.parametrize("dtype", DTYPES)
def test_erratum_9_attention_has_a_key_bias(dtype: str) -> None:
    """DAC-4, A+ = softmax_j(-beta d->) is plain attention plus the key bias -beta G_jj (erratum
    9): equal to plain attention when all keys have one norm, far from it otherwise."""
    rng = np.random.default_rng(4)
    X, Y, beta = points(rng, (33, 4), dtype), 2 * points(rng, (17, 4), dtype), 1.5

    def pair(keys: Array) -> tuple[Problem, Problem]:
        plain = point_scores("dot", X, keys, None, beta, rng)
        return plain, point_scores("forward", X, keys, None, beta, rng)

    plain, plus = pair(Y)
    biased = shift(plain, None, (-beta * (Y * Y).sum(axis=1)).astype(dtype))
    limit = softmax_bound(biased, 1) + softmax_bound(plus, 1)
    # The bias was itself rounded before it was added.
    limit = limit + 4 * bounds.eps_of(dtype) * beta * (Y * Y).sum(axis=1).max()
    assert_within(probabilities(plus, 1), probabilities(biased, 1), limit, "A+ with key bias")
    error = np.linalg.norm(
        probabilities(plus, 1).astype(float) - probabilities(plain, 1).astype(float)
    )
    assert error / np.linalg.norm(probabilities(plain, 1).astype(float)) > 0.3

    signs = np.where(rng.random((17, 4)) < 0.5, -1, 1).astype(dtype)  # norm 2 exactly, all of them
    plain, plus = pair(signs)
    limit = softmax_bound(plain, 1) + softmax_bound(plus, 1)
    assert_within(probabilities(plus, 1), probabilities(plain, 1), limit, "equal norms")


@pytest.mark.parametrize("weight", ["none", "asymmetric", "factored"])
def test_backward_rows_are_plain_attention_with_the_transposed_weight(weight: str) -> None:
    """DAC-4, the row-normalised A<-+ (erratum 9): G_ii shifts the row, so what remains is
    softmax_j(beta y_j^T W x_i), plain attention with W^T."""
    rng = np.random.default_rng(5)
    X, Y = points(rng, (33, 4), "float64"), points(rng, (17, 4), "float64")
    W = weight_matrix(rng, weight, 4, "float64")
    turned: ref.Weight
    if W is None:
        turned = None
    elif isinstance(W, tuple):
        turned = (W[1].T.copy(), W[0].T.copy())
    else:
        turned = W.T.copy()
    back = point_scores("backward", X, Y, W, 1.2, rng)
    plain = point_scores("dot", X, Y, turned, 1.2, rng)
    limit = softmax_bound(back, 1) + softmax_bound(plain, 1)
    assert_within(probabilities(back, 1), probabilities(plain, 1), limit, "A<-+")
    if weight == "asymmetric":
        other = qk.softmax(qk.scores.dot(X, Y, W=W, beta=1.2)).to_numpy()
        assert np.abs(other - probabilities(back, 1).astype(float)).max() > 1e-2


@pytest.mark.parametrize("weight", ["none", "asymmetric", "factored"])
def test_the_column_softmax_of_backward_is_the_row_softmax_of_forward_turned(weight: str) -> None:
    """DAC-4, A- = softmax_i(-beta d<-): it is (A+)^T of the swapped points, whatever W."""
    rng = np.random.default_rng(6)
    W = weight_matrix(rng, weight, 3, "float64")
    X, Y = points(rng, (15, 3), "float64"), points(rng, (17, 3), "float64")
    minus = point_scores("backward", X, Y, W, 1.0, rng)
    plus = point_scores("forward", Y, X, W, 1.0, rng)
    limit = softmax_bound(minus, 0) + softmax_bound(plus, 1).T
    assert_within(probabilities(minus, 0), probabilities(plus, 1).T, limit, "A-")


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_of_the_divergences_multiply_to_the_gaussian(dtype: str) -> None:
    """DAC-2, K = exp(-beta D2) = K-> K<- entry by entry; symmetric, with unit diagonal; its
    row sums come from a reduction that never forms it."""
    rng = np.random.default_rng(7)
    X = points(rng, (65, 3), dtype)
    whole, there, back = (
        point_scores(kind, X, None, None, 0.9, rng) for kind in ("distance", "forward", "backward")
    )
    K, K1, K2 = (ref.high(qk.kernel(p.scores).to_numpy()) for p in (whole, there, back))
    e = [bounds.kernel(p, "exp") for p in (whole, there, back)]
    assert_within(K1 * K2, K, e[0] + e[1] * K2 + e[2] * K1, "K-> K<-")
    assert_within(K, K.T, e[0] + e[0].T, "symmetry")
    assert_within(np.diagonal(K), np.ones(65, ref.HIGH), np.diagonal(e[0]), "diagonal")
    rows = bounds.apply(dtype, K, e[0], np.ones(65))
    lse = bounds.logsumexp(whole)
    total = K.sum(axis=1)
    assert_within(np.exp(ref.high(whole.scores.logsumexp())), total, rows + 2 * lse * total, "Z")


@given(specs(entries=8000), ANY)
def test_permuting_points_permutes_the_answer(spec: Spec, axis: int) -> None:
    p = build(spec)
    rows, columns = p.rng.permutation(p.s.shape[-2]), p.rng.permutation(p.s.shape[-1])
    dense = p.scores.to_numpy()
    A = qk.softmax(qk.scores.dense(dense), axis=axis)
    B = qk.softmax(qk.scores.dense(dense[..., rows, :][..., columns]), axis=axis)
    limit = softmax_bound(p, axis)
    want = ref.high(A.to_numpy())[..., rows, :][..., columns]
    assert_within(B.to_numpy(), want, 2 * limit[..., rows, :][..., columns], "permuted")
    V = p.vectors(3)
    bound = 2 * bounds.apply(p.dtype, ref.softmax(p.s, axis), limit, V)
    got = B @ V[..., columns, :]
    assert_within(got, ref.high(A @ V)[..., rows, :], bound[..., rows, :], "permuted product")


@given(specs(entries=8000), ANY)
def test_transposition_exchanges_the_axes(spec: Spec, axis: int) -> None:
    p = build(spec)
    q, other = p.transposed, 1 - axis
    bound = 2 * bounds.logsumexp(p, axis)
    got, want = q.scores.logsumexp(other), ref.high(p.scores.logsumexp(axis))
    assert_within(got, want, bound, "logsumexp of s.T")
    limit = 2 * softmax_bound(p, axis)
    want = np.swapaxes(probabilities(p, axis), -1, -2)
    assert_within(probabilities(q, other), want, np.swapaxes(limit, -1, -2), "softmax of s.T")
    rows, columns = p.scores.marginals()
    turned = q.scores.marginals()
    limits = bounds.marginals(p, None, None)
    assert_within(turned[1], ref.high(rows), 2 * limits[0], "rows")
    assert_within(turned[0], ref.high(columns), 2 * limits[1], "columns")


@given(specs(entries=8000), ANY)
def test_products_are_linear(spec: Spec, axis: int) -> None:
    p = build(spec)
    A, P = qk.softmax(p.scores, axis=axis), ref.softmax(p.s, axis)
    V, W = p.vectors(4), p.vectors(4)
    two, three = p.dtype.type(2), p.dtype.type(3)
    combined = two * V - three * W
    entry = softmax_bound(p, axis)
    limit = sum(bounds.apply(p.dtype, P, entry, v) for v in (combined, 2 * V, 3 * W))
    want = 2 * ref.high(A @ V) - 3 * ref.high(A @ W)
    rounding = 3 * bounds.eps_of(p.dtype) * (P @ (np.abs(2 * V) + np.abs(3 * W)))
    assert_within(A @ combined, want, limit + rounding, "linear")
    assert_same_bits(A @ (two * V), two * (A @ V), "a power of two scales exactly")


@given(specs(entries=8000), st.sampled_from([0.5, 2.0, 0.3]))
def test_a_temperature_is_beta(spec: Spec, c: float) -> None:
    """c * s is the same scores at beta c."""
    if spec.kind not in ("dot", "forward", "backward", "distance"):
        return
    p = build(spec)
    hot = build(Spec(**{**vars(spec), "beta": spec.beta * c}))
    scaled = scale(p, c)
    limit = bounds.scores(p.dtype, hot.slack) + bounds.scores(p.dtype, scaled.slack)
    assert_within(scaled.scores.to_numpy(), ref.high(hot.scores.to_numpy()), limit, "scaled")


def test_scaling_points_scales_scores_by_the_square() -> None:
    rng = np.random.default_rng(8)
    X, Y = points(rng, (17, 3), "float64"), points(rng, (9, 3), "float64")
    for kind in ("dot", "forward", "backward", "distance"):
        make = getattr(qk.scores, kind)
        # Multiplication by powers of two commutes with rounding.
        assert_same_bits(make(2 * X, 2 * Y).to_numpy(), make(X, Y, beta=4.0).to_numpy(), kind)
