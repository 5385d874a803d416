"""Numbers near the limits of the dtype give no NaN, no warning and no silent overflow."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

import qkcore as qk

from . import bounds
from . import reference as ref
from .bounds import assert_within
from .checks import (
    check_entropy,
    check_everything,
    check_kernel,
    check_logsumexp,
    check_marginals,
    check_products,
    check_softmax,
)
from .generators import DTYPES, Problem, dense_scores, normal, point_scores

SPREADS = [("float64", 1e4), ("float64", 1e150), ("float64", 700.0)]
SPREADS += [("float32", 80.0), ("float32", 1e4), ("float32", 1e30)]


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def check_normalised(p: Problem) -> None:
    """All that a softmax offers; an unnormalised kernel may rightly overflow on such scores."""
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for axis in (1, 0):
            check_logsumexp(p, axis)
            check_entropy(p, axis)
    for axis in (1, 0):
        check_softmax(p, axis)
        check_products(p, axis, 3)


@pytest.mark.parametrize(("dtype", "spread"), SPREADS)
def test_huge_logits(dtype: str, spread: float) -> None:
    """Uniform in +-spread: each row is all but one-hot, the log-sum-exp all but the maximum."""
    generator = rng()
    Z = (spread * generator.uniform(-1, 1, (33, 65))).astype(dtype)
    check_normalised(dense_scores(Z, generator))


@pytest.mark.parametrize(("dtype", "level"), SPREADS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_huge_common_level_cancels(dtype: str, level: float, sign: int) -> None:
    """Rows whose logits are all near one huge number keep their small differences."""
    Z = np.full((17, 33), sign * level, dtype=dtype)
    Z[:, ::2] = np.nextafter(Z[:, ::2], np.array(np.inf, dtype))
    p = dense_scores(Z, rng())
    if level < 1e20:  # beyond this, one unit in the last place is a huge logit itself
        assert (qk.softmax(p.scores).to_numpy() > 0).all()
    check_normalised(p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_at_the_ends_of_the_range_of_exp(dtype: str) -> None:
    """Down to weights that underflow, up to the last one that does not overflow."""
    top = float(np.log(np.finfo(dtype).max)) - 6  # room for the sum of 65 such weights
    Z = np.linspace(-1.2 * top, top, 17 * 65).reshape(17, 65).astype(dtype)
    p = dense_scores(Z, rng())
    check_normalised(p)
    check_kernel(p, "exp")
    check_kernel(p, "sigmoid")
    check_marginals(p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_entry_left_in_a_row(dtype: str) -> None:
    generator = rng()
    Z = np.full((33, 17), -np.inf, dtype=dtype)
    Z[np.arange(33), np.arange(33) % 17] = normal(generator, (33,), dtype) * 50
    p = dense_scores(Z, generator)
    check_normalised(p)
    assert (qk.softmax(p.scores).to_numpy().max(axis=1) == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows_between_huge_ones(dtype: str) -> None:
    """An empty row next to logits of 1e4: no -inf minus -inf, no 0 times infinity."""
    generator = rng()
    Z = (1e4 * generator.uniform(-1, 1, (65, 33))).astype(dtype)
    Z[generator.random((65, 33)) < 0.5] = -np.inf
    Z[[0, 7, 8, 31, 64]] = -np.inf
    Z[:, [0, 16, 32]] = -np.inf
    p = dense_scores(Z, generator)
    check_normalised(p)
    A = qk.softmax(p.scores)
    assert np.flatnonzero(A.empty).tolist() == [0, 7, 8, 31, 64]
    assert not A.to_numpy()[A.empty].any()
    assert not (A @ p.vectors(2))[A.empty].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 1, 63, 64, 127, 128, 256])
def test_the_peak_may_stand_anywhere(position: int, dtype: str) -> None:
    """An online softmax must rescale what it has when the maximum comes late."""
    Z = np.linspace(0, 1, 257 * 5).reshape(5, 257).astype(dtype)
    Z[:, position] = 60
    check_normalised(dense_scores(Z, rng()))
    check_normalised(dense_scores(np.sort(Z, axis=1), rng()))  # a new maximum at every step


@pytest.mark.parametrize("kind", ["dot", "forward", "backward", "distance"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heavy_tailed_points(kind: str, dtype: str) -> None:
    """Cauchy coordinates: a few points far out, most scores hopeless, the bound per entry."""
    generator = rng()
    X = np.clip(generator.standard_cauchy((65, 3)), -1e3, 1e3).astype(dtype)
    Y = np.clip(generator.standard_cauchy((33, 3)), -1e3, 1e3).astype(dtype)
    p = point_scores(kind, X, Y, None, 1.0, generator)
    for axis in (1, 0):
        check_logsumexp(p, axis)
        got = qk.softmax(p.scores, axis=axis).to_numpy()
        assert np.isfinite(got).all()
        total = got.astype(np.float64).sum(axis=axis)
        # The normaliser and the entries come from the same rounded scores, so sums are tight.
        slack = bounds.eps_of(dtype) * (np.abs(p.scores.logsumexp(axis)).max() + 60)
        np.testing.assert_allclose(total, 1.0, rtol=0, atol=4 * slack)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [3, 16, 17, 40])
def test_points_far_from_the_origin(dim: int, dtype: str) -> None:
    """A cloud around (100, 100, ...): distances cancel, within the stated bound."""
    generator = rng()
    X = (100 + generator.standard_normal((33, dim)) / dim).astype(dtype)
    p = point_scores("distance", X, None, None, 1.0, generator)
    check_everything(p)


def uneven_cloud(dim: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Points of every size from 1e-12 to 1, and pairs of them that differ in their last digits."""
    generator = rng()
    X = generator.normal(size=(40, dim)) * 10.0 ** generator.uniform(-12, 0, (40, 1))
    X = X.astype(dtype)
    return X, np.concatenate([X * np.array(1 + 1e-5, dtype), X[:5]]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_distances_from_differences_keep_their_relative_digits(dim: int, dtype: str) -> None:
    """Up to 16 dimensions the rest of the cloud costs no digits: d + 4 roundings of each distance."""
    X, Y = uneven_cloud(dim, dtype)
    exact = np.square(X.astype(np.longdouble)[:, None] - Y).sum(axis=2)
    got = qk.divergence.squared_distance(X, Y).to_numpy()
    assert (np.abs(got - exact) <= (dim + 4) * np.finfo(dtype).eps * exact).all()
    assert (got[:5, 40:].diagonal() == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [17, 40])
@pytest.mark.parametrize("away", [0.0, 1e4])
def test_distances_from_products_are_as_exact_as_the_cloud_is_wide(
    dim: int, dtype: str, away: float
) -> None:
    """Above 16 dimensions: eps of the squared distances from the mean c of Y, wherever that lies."""
    X, Y = ((x + away).astype(dtype) for x in uneven_cloud(dim, dtype))
    x, y = X.astype(np.longdouble), Y.astype(np.longdouble)
    c = y.mean(axis=0)
    wide = np.square(x - c).sum(axis=1)[:, None] + np.square(y - c).sum(axis=1)
    exact = np.square(x[:, None] - y).sum(axis=2)
    got = qk.divergence.squared_distance(X, Y).to_numpy()
    assert (np.abs(got - exact) <= 2 * (dim + 16) * np.finfo(dtype).eps * wide).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [3, 17])
@pytest.mark.parametrize("kind", ["dot", "forward", "backward", "distance"])
def test_duplicates(kind: str, dim: int, dtype: str) -> None:
    """All points equal: the softmax is uniform and the products are means."""
    X = np.tile(np.linspace(-1.7, 0.3, dim).astype(dtype), (48, 1))
    p = point_scores(kind, X, None, None, 1.0, rng())
    check_everything(p)
    P = qk.softmax(p.scores).to_numpy()
    np.testing.assert_array_equal(P, P[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", ["subnormal", "tiny"])
def test_vanishing_points(size: str, dtype: str) -> None:
    """Products that underflow are zero scores; nothing divides by them."""
    info = np.finfo(dtype)
    step = float(info.smallest_subnormal) * 5 if size == "subnormal" else float(info.tiny) * 3
    X = (step * rng().integers(-9, 10, (17, 3))).astype(dtype)
    for kind in ("dot", "forward", "backward", "distance"):
        s = getattr(qk.scores, kind)(X)
        assert not np.abs(s.to_numpy()).any()
        np.testing.assert_allclose(s.logsumexp(), np.log(17), rtol=4 * bounds.eps_of(dtype))
        np.testing.assert_allclose(
            qk.softmax(s) @ np.ones(17, dtype), 1, rtol=8 * bounds.eps_of(dtype)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_values_are_averaged_and_not_lost(dtype: str) -> None:
    tiny = float(np.finfo(dtype).tiny)
    V = np.full((8, 1), 1000 * tiny, dtype)
    got = qk.softmax(qk.scores.dense(np.zeros((3, 8), dtype))) @ V
    np.testing.assert_allclose(got / V[0, 0], 1.0, rtol=8 * bounds.eps_of(dtype))


# ---- overflow ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_overflow_are_an_error(dtype: str) -> None:
    high = 1.01 * float(np.log(np.finfo(dtype).max))
    Z = np.zeros((9, 17), dtype)
    Z[4, 5] = high
    s, ones = qk.scores.dense(Z), np.ones(17, dtype)
    K = qk.kernel(s)
    for call in (K.to_numpy, lambda: K @ ones, lambda: np.ones(9, dtype) @ K, s.marginals):
        with pytest.raises(OverflowError, match="overflow"):
            call()
    assert np.isfinite(qk.softmax(s) @ ones).all()  # the softmax of the same scores is fine
    masked = qk.kernel(s.masked(Z == 0))  # and so is the kernel without that entry
    assert np.isfinite(masked @ ones).all()
    assert masked.to_numpy()[4, 5] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_finite_weights_may_overflow(dtype: str) -> None:
    Z = np.full((3, 40), float(np.log(np.finfo(dtype).max)) - 1, dtype)
    K = qk.kernel(qk.scores.dense(Z))
    assert np.isfinite(K.to_numpy()).all()
    with pytest.raises(OverflowError, match="overflow"):
        K @ np.ones(40, dtype)
    with pytest.raises(OverflowError, match="overflow"):
        qk.scores.dense(Z).marginals()


@pytest.mark.parametrize("kind", ["dot", "forward", "backward", "distance"])
@pytest.mark.parametrize("dim", [3, 20])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", ["square", "number"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_points_whose_scores_overflow_are_an_error(
    kind: str, dim: int, sign: int, size: str, dtype: str
) -> None:
    """One far point on each side: a number whose square overflows, and nearly the largest one. A
    score below every finite number is no mask, so downwards is an error as well."""
    largest = float(np.finfo(dtype).max)
    X = np.ones((17, dim), dtype)
    X[5] = largest**0.7 if size == "square" else 0.9 * largest
    Y = np.array(X[::-1] * (0.5 * sign), dtype)
    made = partial(getattr(qk.scores, kind), X, Y)
    ones = np.ones(17, dtype)
    for call in (
        lambda: made().to_numpy(),
        lambda: made().logsumexp(),
        lambda: made().logsumexp(0),
        lambda: made().marginals(),
        lambda: qk.softmax(made()) @ ones,
        lambda: ones @ qk.softmax(made()),
        lambda: qk.softmax(made()).to_numpy(),
        lambda: qk.softmax(made()).entropy(),
        lambda: qk.kernel(made(), weight="linear") @ ones,
    ):
        with pytest.raises(OverflowError, match="overflow"):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_products_that_overflow_are_an_error(dtype: str) -> None:
    big = float(np.finfo(dtype).max) / 4
    K = qk.kernel(qk.scores.dense(np.full((2, 9), 100.0, dtype)), weight="linear")
    with pytest.raises(OverflowError, match="overflow"):
        K @ np.full(9, big, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_values_are_averaged(dtype: str) -> None:
    """A mean of numbers below max / M fits even before it is normalised."""
    big = float(np.finfo(dtype).max) / 100
    V = np.full((33, 2), big, dtype)
    got = qk.softmax(qk.scores.dense(np.zeros((4, 33), dtype))) @ V
    assert_within(got, np.full((4, 2), ref.HIGH(V[0, 0])), 16 * bounds.eps_of(dtype) * big, "mean")


@pytest.mark.parametrize("kind", ["dot", "forward", "backward", "distance"])
@pytest.mark.parametrize("factored", [False, True])
def test_weights_that_overflow_the_points_are_an_error(kind: str, factored: bool) -> None:
    X, big = np.full((5, 3), 1e200), 1e200 * np.eye(3)
    with pytest.raises(OverflowError, match="overflow"):
        getattr(qk.scores, kind)(X, -X, W=(big, np.eye(3)) if factored else big).logsumexp()


@pytest.mark.parametrize("sign", [1, -1])
def test_shifts_that_overflow_are_an_error(sign: int) -> None:
    zero, far = qk.scores.dense(np.zeros((4, 4))), np.full(4, sign * 1.5e308)
    with pytest.raises(OverflowError, match="overflow"):
        zero.shift(far).shift(far).logsumexp()
    with pytest.raises(OverflowError, match="overflow"):
        zero.shift(far, far).to_numpy()
    with pytest.raises(OverflowError, match="overflow"):
        (zero.shift(far) * 1e10).logsumexp()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_scores_that_overflow_are_an_error(dtype: str) -> None:
    """Also downwards: a sum that becomes -inf would look like a mask."""
    for sign in (1, -1):
        big = qk.scores.dense(np.full((3, 4), sign * float(np.finfo(dtype).max) * 0.75, dtype))
        with pytest.raises(OverflowError, match="overflow"):
            big + big
        with pytest.raises(OverflowError, match="overflow"):
            2.0 * big


# ---- subnormal numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2])
def test_calls_that_flush_subnormal_numbers_leave_those_of_the_caller_alone(n_threads: int) -> None:
    """Bridges, flows and stored symmetric kernels count them as zeros, and only while they run."""
    X = rng().standard_normal((300, 2))
    u = np.full(300, 1 / 300)
    s = qk.scores.distance(X, X + 0.1, beta=400.0)
    for memory in (0, 2**28):
        b = qk.bridge(s, u, u, max_iter=200, max_memory=memory, n_threads=n_threads)
        assert np.isfinite(b.f).all() and np.isfinite(b.error)
    field = qk.AttentionField("softmax", Q=20 * np.eye(2), K=np.eye(2), V=np.eye(2))
    qk.flow(field, X, (0.0, 0.1), "euler", n_steps=2, n_threads=n_threads)
    with pytest.warns(qk.diffusion.DisconnectedWarning):  # a kernel so narrow that points are alone
        qk.diffusion.DiffusionMap(2, beta=100.0, n_threads=n_threads).fit(X)
    qk.isb.barycentric(X, 0.01)
    with pytest.raises(ValueError, match="mu"):
        qk.bridge(s, -u, u, n_threads=n_threads)
    for dtype in DTYPES:
        smallest = np.full(64, np.finfo(dtype).smallest_subnormal, dtype)
        assert (smallest * 2 == smallest + smallest).all() and (smallest * 2 > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_kernels_whose_partial_sums_are_subnormal(dtype: str) -> None:
    """Weights below the smallest normal number next to the largest: marginals hold all the same."""
    position = np.sort(rng().uniform(0, 1, 400))[:, None].astype(dtype)
    u = np.full(400, 1 / 400, dtype)
    log_range = -np.log(np.finfo(dtype).tiny)
    s = qk.scores.distance(position, position, beta=float(40 * log_range))
    assert (np.exp(s.to_numpy()) < np.finfo(dtype).tiny).any()
    for memory in (0, 2**28):
        b = qk.bridge(s, u, u, solver="auto", max_memory=memory)
        assert b.converged
        P = np.exp(np.add.outer(b.f, b.g).astype(np.float64) + s.to_numpy())
        assert abs(P.sum(0) - u).sum() <= 2 * b.tol and abs(P.sum(1) - u).sum() <= 2 * b.tol
