"""One check per operation of the contract: library against reference, within the bound.

They are used by the tests of this folder and by the battery that runs once for each instruction set.
"""

from __future__ import annotations

import numpy as np

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_within
from .generators import Problem
from .reference import Array

KERNELS = ("exp", "linear", "relu", "sigmoid")


def check_dtype(p: Problem, *results: Array) -> None:
    for result in results:
        assert result.dtype == p.dtype, f"{result.dtype} out of {p.dtype} in"


def check_scores(p: Problem) -> None:
    assert p.scores.shape == p.s.shape
    assert p.scores.ndim == p.s.ndim
    assert p.scores.dtype == p.dtype
    got = p.scores.to_numpy()
    check_dtype(p, got)
    assert_within(got, p.s, bounds.scores(p.dtype, p.slack), "to_numpy")


def check_logsumexp(p: Problem, axis: int = 1) -> None:
    got = p.scores.logsumexp(axis)
    check_dtype(p, got)
    bound = bounds.logsumexp(p, axis)
    assert_within(got, ref.logsumexp(p.s, axis), bound, f"logsumexp({axis})")


def check_softmax(p: Problem, axis: int = 1) -> None:
    A = qk.softmax(p.scores, axis=axis)
    assert A.shape == p.s.shape
    assert A.dtype == p.dtype
    assert A.axis == axis
    got = A.to_numpy()
    check_dtype(p, got)
    bound = bounds.softmax(p, axis)
    assert_within(got, ref.softmax(p.s, axis), bound, f"softmax({axis})")
    assert_within(
        A.log_normalizer,
        ref.logsumexp(p.s, axis),
        bounds.logsumexp(p, axis),
        f"log_normalizer({axis})",
    )
    assert A.empty.dtype == bool
    np.testing.assert_array_equal(A.empty, ref.empty(p.s, axis))


def check_products(p: Problem, axis: int = 1, k: int | None = 3) -> None:
    """A @ V and mu @ A; k = None means one vector."""
    A, P = qk.softmax(p.scores, axis=axis), ref.softmax(p.s, axis)
    entry = bounds.softmax(p, axis)
    V, U = p.vectors(k), p.vectors(k, left=True)
    right, left = A @ V, U @ A
    check_dtype(p, right, left)
    what = f"softmax({axis}), k={k}"
    assert_within(right, ref.apply(P, V), bounds.apply(p.dtype, P, entry, V), f"A @ V, {what}")
    expected = bounds.apply_left(p.dtype, U, P, entry)
    assert_within(left, ref.apply_left(U, P), expected, f"mu @ A, {what}")


def check_kernel(p: Problem, weight: str = "exp", k: int | None = 3) -> None:
    K, P = qk.kernel(p.scores, weight=weight), ref.kernel(p.s, weight)
    assert K.shape == p.s.shape
    assert K.dtype == p.dtype
    assert K.weight == weight
    entry = bounds.kernel(p, weight)
    V, U = p.vectors(k), p.vectors(k, left=True)
    full, right, left = K.to_numpy(), K @ V, U @ K
    check_dtype(p, full, right, left)
    assert_within(full, P, entry, f"kernel {weight}")
    assert_within(right, ref.apply(P, V), bounds.apply(p.dtype, P, entry, V), f"{weight} K @ V")
    expected = bounds.apply_left(p.dtype, U, P, entry)
    assert_within(left, ref.apply_left(U, P), expected, f"mu @ K, {weight}")


def check_marginals(p: Problem, f: Array | None = None, g: Array | None = None) -> None:
    got = p.scores.marginals(f, g)
    check_dtype(p, *got)
    wanted = ref.marginals(p.s, f, g)
    limits = bounds.marginals(p, f, g)
    for name, value, want, bound in zip(("row", "column"), got, wanted, limits, strict=True):
        assert_within(value, want, bound, f"{name} marginal")


def check_entropy(p: Problem, axis: int = 1) -> None:
    A = qk.softmax(p.scores, axis=axis)
    got, score = A.entropy(), A.expected_score()
    check_dtype(p, got, score)
    bound = bounds.entropy(p, axis)
    assert_within(got, ref.entropy(p.s, axis), bound, f"entropy({axis})")
    bound = bounds.expected_score(p, axis)
    assert_within(score, ref.expected_score(p.s, axis), bound, f"expected_score({axis})")


def check_everything(p: Problem, k: int | None = 3) -> None:
    """Every operation once, both axes."""
    check_scores(p)
    for axis in (1, 0):
        check_logsumexp(p, axis)
        check_softmax(p, axis)
        check_products(p, axis, k)
        check_entropy(p, axis)
    for weight in KERNELS:
        check_kernel(p, weight, k)
    check_marginals(p)
