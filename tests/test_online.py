"""The online softmax: rows longer than a tile, whose maximum comes early, late or again and again.

The engine visits a row tile by tile. When a larger score appears, it rescales its sums, or keeps the older
shift as long as that is safe. So the scores here rise, fall and jump by amounts from 0 to far outside the
range of exp. The points have few or many dimensions (which use different code), and masks leave whole tiles
empty.
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
from .checks import check_entropy, check_logsumexp, check_marginals, check_products, check_softmax
from .generators import DTYPES, Problem, keep, point_scores
from .reference import Array

COLUMNS = 2100  # several tiles whatever their size, and no multiple of it
SHAPES = ("rising", "falling", "late spike", "early spike", "steps", "zigzag", "one per tile")
DIMS = (1, 4, 5, 17)
# Sizes of the jumps: those for which a shift may be kept, larger ones, and some far beyond the range of exp.
HEIGHTS = (3.9, 30.0, 3000.0)


def profile(shape: str, m: int) -> Array:
    """Scores of one row, between -1 and about 1, no two alike: see the test of equal terms below."""
    t = np.linspace(0, 1, m)
    if shape == "rising":
        return t
    if shape == "falling":
        return t[::-1].copy()
    if shape == "late spike":
        return np.where(np.arange(m) == m - 2, 1.0, 0.5 * t)
    if shape == "early spike":
        return np.where(np.arange(m) == 1, 1.0, 0.5 * t)
    if shape == "steps":
        return np.asarray(np.floor(8 * t) / 8 + 0.02 * t)
    if shape == "zigzag":
        return np.where(np.arange(m) % 2 == 0, t, -t)
    if shape == "one per tile":
        return np.where(np.arange(m) % 64 == 63, t, -1.0 + 0.1 * t)
    raise ValueError(shape)


def problem(
    kind: str, shape: str, height: float, dim: int, dtype: str, m: int = COLUMNS
) -> Problem:
    """Points whose scores against a few rows have the given profile, up to `height` and its half.

    Keys lie on a line; the other coordinates are noise too small to change the profile.
    """
    rng = np.random.default_rng(0)
    Y = np.zeros((m, dim))
    Y[:, 0] = profile(shape, m) * np.sqrt(height)
    if dim > 1:
        Y[:, 1:] = 0.01 * rng.standard_normal((m, dim - 1)) / np.sqrt(height)
    X = np.zeros((3, dim))
    X[:, 0] = np.sqrt(height) * np.array([1.0, -1.0, 0.1])
    return point_scores(kind, X.astype(dtype), Y.astype(dtype), None, 1.0, rng)


def check(p: Problem) -> None:
    check_logsumexp(p)
    check_softmax(p)
    check_entropy(p)
    for k in (None, 5):
        check_products(p, 1, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", ["dot", "distance"])
def test_long_rows_of_every_profile(kind: str, dim: int, dtype: str) -> None:
    for shape in SHAPES:
        for height in HEIGHTS:
            check(problem(kind, shape, height, dim, dtype))


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(HEIGHTS),
    st.sampled_from(DIMS),
    st.sampled_from(DTYPES),
    st.integers(1, 700),
    st.integers(0, 700),
)
def test_tiles_that_are_masked_as_a_whole(
    shape: str, height: float, dim: int, dtype: str, start: int, length: int
) -> None:
    """Keys are kept from `start` on for `length`; before it a row has no maximum yet."""
    p = problem("dot", shape, height, dim, dtype, 701)
    kept = (np.arange(701) >= start) & (np.arange(701) < start + length)
    check(keep(p, p.scores.key_padding(kept), kept))
    far = keep(
        p, p.scores.window(-start, start + length), ref.window_mask(3, 701, -start, start + length)
    )
    check(far)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_a_shift_that_vanishes_and_returns(dim: int, dtype: str) -> None:
    """A row shift of -inf among others: that row is empty, its neighbours in the block are not."""
    p = problem("dot", "rising", 30.0, dim, dtype)
    rows = np.array([50, -np.inf, -50], dtype)
    s = p.scores.shift(rows=rows)
    want = ref.shift(p.s, rows)
    assert qk.softmax(s).empty.tolist() == [False, True, False]
    got, expected = s.logsumexp(), ref.logsumexp(want)
    assert_within(got, expected, 1e3 * bounds.eps_of(dtype), "logsumexp")
    P = qk.softmax(s) @ np.ones(COLUMNS, dtype)
    np.testing.assert_allclose(P, [1, 0, 1], rtol=1e3 * bounds.eps_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_large_values_are_averaged_in_long_rows(shape: str, dim: int, dtype: str) -> None:
    """A mean is no larger than its largest term; a kept shift may not make it overflow."""
    p = problem("dot", shape, 30.0, dim, dtype)
    big = float(np.finfo(dtype).max) / (1000 * COLUMNS)
    got = qk.softmax(p.scores) @ np.full(COLUMNS, big, dtype)
    np.testing.assert_allclose(got / dtype_scalar(big, dtype), 1.0, rtol=200 * bounds.eps_of(dtype))


def dtype_scalar(value: float, dtype: str) -> Array:
    return np.asarray(value, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_marginals_of_long_rows(dim: int, dtype: str) -> None:
    """Down to weights that are flushed, up to sums near 1e30: no maximum is subtracted here."""
    for shape in SHAPES:
        for height in (1.0, 30.0, 60.0):
            check_marginals(problem("dot", shape, height, dim, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [4, 17])
@pytest.mark.parametrize("mask", ["none", "padding", "window"])
def test_few_rows_and_very_many_columns(mask: str, dim: int, dtype: str) -> None:
    """Such rows are cut between tasks and the states merged; a part may be empty or hold it all."""
    for shape in ("rising", "early spike"):
        p = problem("dot", shape, 30.0, dim, dtype, 50_000)
        if mask == "padding":
            kept = np.arange(50_000) > 40_000
            p = keep(p, p.scores.key_padding(kept), kept)
        elif mask == "window":
            band = np.arange(50_000)[None, :] <= np.arange(3)[:, None] + 20_000
            p = keep(p, p.scores.causal(20_000), band)
        check(p)
        V = p.vectors(4)
        for n in (1, 2, 3):
            A = qk.softmax(p.scores)
            assert_same_bits(A.apply(V, n_threads=n), A.apply(V, n_threads=4), f"{n} threads")
            got = p.scores.logsumexp(n_threads=n)
            assert_same_bits(got, p.scores.logsumexp(n_threads=4), f"lse, {n} threads")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_sums_of_equal_terms_do_not_drift(dim: int, dtype: str) -> None:
    """Equal weights are rounded alike, so one running sum over n of them is off by up to n / 2 eps;
    in blocks it is off by sqrt(n) eps at most. Uniform attention over many keys is such a sum."""
    n, eps = 20_000, bounds.eps_of(dtype)
    X, Y = np.zeros((3, dim), dtype), np.zeros((n, dim), dtype)
    X[:, 0], Y[:, 0] = [1.0, 0.7, 0.3], -1.0
    s = qk.scores.dot(X, Y)
    mass = n * np.exp(-X[:, 0].astype(np.float64))
    ones, value = np.ones(n, dtype), np.full(n, 0.7, dtype)
    sums = {
        "row marginal": s.marginals()[0] / mass,
        "column marginal": s.T.marginals()[1] / mass,
        "K 1": (qk.kernel(s) @ ones) / mass,
        "1 K": (ones @ qk.kernel(s.T)) / mass,
        "A v": (qk.softmax(s) @ value) / float(value[0]),
        "v A": (value @ qk.softmax(s.T, axis=0)) / float(value[0]),
        "exp lse": 1 + (s.logsumexp() - np.log(mass)),
    }
    error = {
        name: float(np.abs(got.astype(np.float64) - 1).max()) / eps for name, got in sums.items()
    }
    assert max(error.values()) <= np.sqrt(n), error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_long_rows_and_tiles_that_are_masked(shape: str, dtype: str) -> None:
    """A matrix of scores takes a way of its own into the tiles; its softmax is written in one pass."""
    for height in HEIGHTS:
        Z = np.outer([1.0, -1.0, 0.1], height * profile(shape, COLUMNS)).astype(dtype)
        M = np.ones_like(Z, dtype=bool)
        M[0, :1500] = M[1, 600:] = M[2] = False
        for s, exact in (
            (qk.scores.dense(Z), Z.astype(np.float64)),
            (qk.scores.dense(Z).masked(M), np.where(M, Z.astype(np.float64), -np.inf)),
        ):
            top = exact.max(axis=1, keepdims=True)
            top[np.isneginf(top)] = 0  # all entries masked
            weights = np.exp(exact - top)
            total = weights.sum(axis=1, keepdims=True)
            wanted = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            # The rounding error of s - max grows with its size; subnormal results are zeros.
            eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
            below = np.where(np.isfinite(exact), top - exact, 0)
            allowed = eps * wanted * (10 + below) + tiny
            assert_within(qk.softmax(s).to_numpy(), wanted, allowed, f"{shape} {height}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sweeps_of_bridges_over_long_rows(shape: str, dim: int, dtype: str) -> None:
    """Three iterations, stored and on the fly, against the same in float64: tiles weighed before the
    largest score of their row was known are put right in the sums of rows and of columns."""
    mu, nu = np.array([0.2, 0.5, 0.3]), np.full(COLUMNS, 1 / COLUMNS)
    for height in (3.9, 30.0):
        p = problem("dot", shape, height, dim, dtype)
        Z = p.s
        g = np.zeros(COLUMNS)
        for _ in range(3):
            f = np.log(mu) - np.logaddexp.reduce(Z + g, axis=1)
            columns = np.logaddexp.reduce(Z + f[:, None], axis=0)
            before, g = g, np.log(nu) - columns
        for memory in (0, 1 << 30):
            b = qk.bridge(
                p.scores, mu.astype(dtype), nu.astype(dtype), solver="alternating", max_iter=3,
                tol=1e-30, max_memory=memory,
            )  # fmt: skip
            shift = float(b.g.mean() - before.mean())
            allowed = 40 * np.finfo(dtype).eps * (height + np.log(COLUMNS))
            np.testing.assert_allclose(b.g - shift, before, rtol=0, atol=allowed)
            np.testing.assert_allclose(b.f + shift, f, rtol=0, atol=allowed)
