"""Kernels without normalisation: exp, linear, relu, sigmoid, their products and transposes."""

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
from .checks import KERNELS, check_kernel
from .generators import DTYPES, EDGES, KINDS, MASKS, RHS, Spec, build, specs


@given(specs(), st.sampled_from(KERNELS), st.sampled_from((None, *RHS)))
def test_any_kernel_matches_the_reference(spec: Spec, weight: str, k: int | None) -> None:
    check_kernel(build(spec), weight, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", KERNELS)
@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, weight: str, dtype: str) -> None:
    check_kernel(build(Spec("distance", dtype, size, 17, 3)), weight, 2)
    check_kernel(build(Spec("dot", dtype, 9, size, 3)), weight, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", KERNELS)
@pytest.mark.parametrize("k", [None, *RHS])
def test_every_count_of_right_hand_sides(k: int | None, weight: str, dtype: str) -> None:
    check_kernel(build(Spec("dot", dtype, 17, 33, 3)), weight, k)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weight", KERNELS)
def test_masked_entries_weigh_nothing(weight: str, mask: str) -> None:
    p = build(Spec("dot", "float64", 31, 33, 3, mask=mask))
    check_kernel(p, weight)
    assert not qk.kernel(p.scores, weight=weight).to_numpy()[np.isinf(p.s)].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", KERNELS)
def test_every_kind(kind: str, weight: str) -> None:
    check_kernel(build(Spec(kind, "float32", 33, 15, 7, "factored")), weight)


def test_exp_is_the_default_weight() -> None:
    s = build(Spec("distance")).scores
    assert qk.kernel(s).weight == "exp"
    assert_same_bits(qk.kernel(s).to_numpy(), qk.kernel(s, weight="exp").to_numpy(), "default")


def test_against_numpy_and_scipy_directly() -> None:
    """One comparison that passes by no helper of this suite."""
    Z = np.random.default_rng(0).normal(size=(20, 30)) * 5
    V = np.random.default_rng(1).normal(size=(30, 4))
    wanted = {
        "exp": np.exp(Z),
        "linear": Z,
        "relu": np.maximum(Z, 0),
        "sigmoid": scipy.special.expit(Z),
    }
    for weight, K in wanted.items():
        operator = qk.kernel(qk.scores.dense(Z), weight=weight)
        np.testing.assert_allclose(operator.to_numpy(), K, rtol=1e-14, err_msg=weight)
        scale = np.abs(K) @ np.abs(V)
        assert (np.abs(operator @ V - K @ V) <= 1e-14 * scale).all(), weight


@pytest.mark.parametrize("weight", KERNELS)
def test_the_transposed_kernel(weight: str) -> None:
    p = build(Spec("forward", "float64", 17, 31, 3, "asymmetric", "causal"))
    K, P = qk.kernel(p.scores, weight=weight), ref.kernel(p.s, weight)
    entry = bounds.kernel(p, weight)
    assert K.T.shape == (31, 17)
    assert K.T.weight == weight
    assert_within(K.T.to_numpy(), P.T, entry.T, "K.T")
    U = p.vectors(3, left=True)
    want, bound = ref.apply_left(U, P), bounds.apply_left(p.dtype, U, P, entry)
    assert_within(K.T @ U.T, want.T, bound.T, "K.T @ U")
    assert_within(U @ K, want, bound, "U @ K")
    assert_same_bits(K.T.T.to_numpy(), K.to_numpy(), "K.T.T")


@pytest.mark.parametrize("weight", ["sigmoid", "relu", "exp"])
def test_weights_of_extreme_scores(weight: str) -> None:
    """Far left all three vanish without a warning; far right sigmoid is 1 and relu is s."""
    for dtype, far in (("float32", 200.0), ("float64", 2000.0)):
        Z = np.array([[-far, -1.0, 0.0, 1.0]], dtype=dtype)
        assert qk.kernel(qk.scores.dense(Z), weight=weight).to_numpy()[0, 0] == 0
        if weight != "exp":
            right = qk.kernel(qk.scores.dense(-Z), weight=weight).to_numpy()[0, 0]
            assert right == (1 if weight == "sigmoid" else far)


def test_apply_takes_a_thread_count() -> None:
    p = build(Spec("distance", "float32", 129, 65, 3))
    K, V = qk.kernel(p.scores), p.vectors(3)
    for n in (1, 2, 3):
        assert_same_bits(K.apply(V, n_threads=n), K @ V, f"{n} threads")


def test_row_sums_of_the_kernel_are_its_marginals() -> None:
    """DAC-2, never formed when a reduction will do: K 1 and 1 K are the marginals, exp(lse) too."""
    p = build(Spec("distance", "float64", 65, 33, 3, beta=0.5))
    K = qk.kernel(p.scores)
    rows, columns = p.scores.marginals()
    bound_rows, bound_columns = bounds.marginals(p, None, None)
    assert_within(K @ np.ones(33), ref.high(rows), 2 * bound_rows, "K 1")
    assert_within(np.ones(65) @ K, ref.high(columns), 2 * bound_columns, "1 K")
    lse = bounds.logsumexp(p)
    assert_within(np.exp(p.scores.logsumexp()), ref.high(rows), bound_rows + 2 * lse * rows, "lse")


def test_repr_names_the_weight() -> None:
    text = repr(qk.kernel(qk.scores.dense(np.zeros((3, 4))), weight="relu"))
    assert "relu" in text
    assert "3" in text
    assert "4" in text
