"""Measures, softmatch, lookup, projection and the attention kernel (MTA-1), against linear algebra."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkcore import measure
from qkcore.measure import (
    AttentionKernel,
    DotPotential,
    FeedForward,
    FunctionLookup,
    FunctionPotential,
    GaussianPotential,
    LayerNorm,
    LinearLookup,
    Measure,
    TableLookup,
    TransformerKernel,
)

from . import reference_measure as ref
from .generators import DTYPES
from .reference import Array

SIZES = (1, 2, 7, 8, 9, 33)


def test_the_guide_runs() -> None:
    """Every example of docs/measure.md prints what it says."""
    guide = Path(__file__).resolve().parent.parent / "docs" / "measure.md"
    found = doctest.testfile(
        str(guide), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted > 20 and found.failed == 0


def tolerance(dtype: str) -> float:
    return 200 * float(np.finfo(dtype).eps)


def points(n: int, d: int, dtype: str = "float64", seed: int = 0) -> Array:
    return np.random.default_rng((seed, n, d)).normal(size=(n, d)).astype(dtype)


def weights(n: int, dtype: str = "float64", seed: int = 0) -> Array:
    w = np.random.default_rng((seed, n)).random(n) + 0.05
    return (w / w.sum()).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_attention_kernel_is_attention(dtype: str, n: int) -> None:
    """MTA-1, proposition 9: the kernel at m(K) acting on Dirac measures is softmax(Q K^T) V."""
    Q, K, V = points(5, 3, dtype), points(n, 3, dtype, 1), points(n, 4, dtype, 2)
    A = AttentionKernel(DotPotential(beta=0.7), TableLookup(K, V))
    got = A(Measure(K)).attend(Q)
    want = ref.attention(*(a.astype(np.float64) for a in (Q, K, V)), 0.7)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, atol=tolerance(dtype))
    # Query by query, through the measures themselves: Psi, then L, then the projection.
    for q, row in zip(Q, want, strict=True):
        before = A(Measure(K)).before_projection(q)
        assert len(before) == n
        mean = measure.moment_projection(before)
        np.testing.assert_allclose(mean.points[0], row, atol=tolerance(dtype))
        moved = Measure.dirac(q) @ A(Measure(K))
        np.testing.assert_allclose(moved.points[0], row, atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_gaussian_and_bilinear_potentials(dtype: str, n: int) -> None:
    """MTA-1: Gaussian potentials and dot products with W, with a linear lookup; non-contiguous points."""
    X = points(2 * n, 6, dtype)[::2, ::2]
    X.flags.writeable = False
    W, M = points(3, 3, dtype, 3), points(3, 2, dtype, 4)
    X64, W64, M64 = (a.astype(np.float64) for a in (X, W, M))
    got = AttentionKernel(GaussianPotential(0.4), LinearLookup(M)).self_attention(X)
    want = ref.gaussian_attention(X64, X64, X64 @ M64, 0.4)
    np.testing.assert_allclose(got, want, atol=tolerance(dtype))
    got = AttentionKernel(DotPotential(0.4, W)).self_attention(X)
    np.testing.assert_allclose(
        got, ref.attention(X64, X64, X64, 0.4, W64), atol=5 * tolerance(dtype)
    )
    pair = AttentionKernel(DotPotential(0.4, (W[:, :2], W[:2]))).self_attention(X)
    low = ref.attention(X64, X64, X64, 0.4, W64[:, :2] @ W64[:2])
    np.testing.assert_allclose(pair, low, atol=5 * tolerance(dtype))


@pytest.mark.parametrize("potential", [DotPotential(0.8), GaussianPotential(0.5)])
def test_weights_are_repetitions(potential: measure.Potential) -> None:
    """MTA-1: a point of weight k/n is a point that occurs k times; order does not matter."""
    X = points(5, 2)
    times = np.array([3, 1, 0, 2, 2])
    mu = Measure(X, times / times.sum())
    repeated = Measure(np.repeat(X, times, axis=0))
    A = AttentionKernel(potential)
    np.testing.assert_allclose(A(mu).attend(X), A(repeated).attend(X), atol=1e-14)
    assert measure.w1(A.step(mu), A.step(repeated)) < 1e-14
    order = np.random.default_rng(0).permutation(5)
    shuffled = Measure(X[order], mu.weights[order])
    np.testing.assert_allclose(A(mu).attend(X), A(shuffled).attend(X), atol=1e-14)
    twice = Measure(np.vstack([X, X]), np.tile(mu.weights / 2, 2))
    np.testing.assert_allclose(A(mu).attend(X), A(twice).attend(X), atol=1e-14)
    np.testing.assert_allclose(twice.reduced().weights.sum(), 1.0)
    assert len(twice.reduced()) == 4


def test_boltzmann_gibbs_and_softmatch() -> None:
    """MTA-1, definitions 3 and 4: the rows of the kernel are Boltzmann-Gibbs transforms."""
    X, w = points(6, 2), weights(6)
    mu = Measure(X, w)
    potential = DotPotential(0.9)
    rows = measure.softmatch(potential, X, mu).to_numpy()
    for x, row in zip(X, rows, strict=True):
        psi = measure.boltzmann_gibbs(lambda Y, x=x: np.exp(0.9 * Y @ x), mu)
        np.testing.assert_allclose(psi.weights, row, atol=1e-14)
    # It composes as Bayes' rule does: likelihoods multiply.
    g, h = np.exp(X[:, 0]), np.exp(X[:, 1])
    once = measure.boltzmann_gibbs(g * h, mu)
    twice = measure.boltzmann_gibbs(h, measure.boltzmann_gibbs(g, mu))
    np.testing.assert_allclose(once.weights, twice.weights, atol=1e-15)


def test_any_positive_potential() -> None:
    """MTA-1: a potential given as a function, here a Student kernel."""
    X = points(9, 2)

    def student(A: Array, B: Array) -> Array:
        return 1 / (1 + ((A[:, None] - B[None]) ** 2).sum(axis=2))

    got = AttentionKernel(FunctionPotential(student)).self_attention(X)
    P = student(X, X)
    np.testing.assert_allclose(got, P / P.sum(axis=1, keepdims=True) @ X, atol=1e-14)


def test_particles_and_depth() -> None:
    """MTA-1, section 3.1: layers are repeated transport; particles keep their weights."""
    X = points(8, 3)
    A = AttentionKernel(DotPotential(0.5), LinearLookup(0.9 * np.eye(3)))
    layers = A.iterate(X, 3)
    assert len(layers) == 4
    want = X
    for layer in layers[1:]:
        want = ref.attention(want, want, 0.9 * want, 0.5)
        np.testing.assert_allclose(layer.points, want, atol=1e-13)
    mu = Measure(X, weights(8))
    np.testing.assert_array_equal(A.step(mu).weights, mu.weights)


def test_measures() -> None:
    """MTA-1: push-forward, mixture, convolution and moments against their definitions."""
    X, Y = points(4, 2), points(3, 2, seed=1)
    mu, nu = Measure(X, weights(4)), Measure(Y, weights(3))
    f: Callable[[Array], Array] = lambda Z: np.sin(Z) + Z[:, :1] ** 2  # noqa: E731
    np.testing.assert_allclose(mu.push_forward(f).mean(), mu.expectation(f), atol=1e-15)
    mix = Measure.mixture([mu, nu], np.array([0.25, 0.75]))
    np.testing.assert_allclose(mix.mean(), 0.25 * mu.mean() + 0.75 * nu.mean(), atol=1e-15)
    both = mu.convolve(nu)
    np.testing.assert_allclose(both.mean(), mu.mean() + nu.mean(), atol=1e-14)  # lemma 36
    np.testing.assert_allclose(both.covariance(), mu.covariance() + nu.covariance(), atol=1e-14)
    np.testing.assert_allclose(
        mu.covariance(), np.cov(X.T, aweights=mu.weights, ddof=0), atol=1e-15
    )
    assert not mu.points.flags.writeable and not mu.uniform and Measure(X).uniform
    assert "4 points in R^2" in repr(mu)


def test_convolution_with_a_gaussian() -> None:
    """MTA-2, lemmas 36 and 37: density, quadrature, moments, and W1 to the measure within its bound."""
    mu = Measure(np.array([[-1.0], [2.0]]), np.array([0.25, 0.75]))
    for sigma in (1.0, 0.1, 0.01):
        smooth = mu.smooth(sigma)
        rule = smooth.quadrature(40)
        np.testing.assert_allclose(rule.mean(), mu.mean(), atol=1e-12)
        np.testing.assert_allclose(rule.covariance(), mu.covariance() + sigma**2, atol=1e-12)
        # |z| is not a polynomial: the rule has it to two percent
        assert measure.w1(rule, mu) <= 1.02 * smooth.w1_bound
        grid = np.linspace(-1 - 12 * sigma, 2 + 12 * sigma, 200_001)[:, None]
        density = np.exp(smooth.log_density(grid))
        np.testing.assert_allclose(density.sum() * (grid[1, 0] - grid[0, 0]), 1, atol=1e-6)
    draws = mu.smooth(0.3).sample(20_000, 0)
    assert abs(draws.mean() - mu.mean()[0]) < 0.05
    # For measures that are far apart the bound of lemma 37 is attained.
    single = Measure.dirac(np.zeros(3)).smooth(0.5)
    rule = single.quadrature(60)
    cost = float(rule.weights @ np.abs(rule.points).sum(axis=1))
    np.testing.assert_allclose(cost, single.w1_bound, rtol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("norm", [None, "post", "pre"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("with_ffn", [False, True])
def test_transformer_block(
    dtype: str, heads: int, norm: str | None, residual: bool, with_ffn: bool
) -> None:
    """MTA-1, proposition 12: the encoder block as a kernel equals the one of linear algebra."""
    rng = np.random.default_rng(heads)
    d, k, v, h = 4, 3, 2, 7

    def array(*shape: int) -> Array:
        return rng.normal(size=shape).astype(dtype)

    X = array(9, d)
    W_Q, W_K, W_V, W_O = (array(heads, *s) for s in ((d, k), (d, k), (d, v), (v, d)))
    ffn = (array(d, h), array(h), array(h, d), array(d))
    norms = [(array(d), array(d), 1e-5) for _ in range(2)]
    T = TransformerKernel(
        W_Q,
        W_K,
        W_V,
        W_O,
        ffn=FeedForward(ffn[0], ffn[2], ffn[1], ffn[3]) if with_ffn else None,
        residual=residual,
        norm=norm,
        norms=None if norm is None else (LayerNorm(*norms[0]), LayerNorm(*norms[1])),
    )
    double = [a.astype(np.float64) for a in (X, W_Q, W_K, W_V, W_O)]
    want = ref.encoder_block(
        *double,
        tuple(a.astype(np.float64) for a in ffn) if with_ffn else None,  # type: ignore[arg-type]
        residual,
        norm,
        [(g.astype(np.float64), s.astype(np.float64), e) for g, s, e in norms],
    )
    got = T.self_attention(X)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, atol=50 * tolerance(dtype) * max(1, np.abs(want).max()))
    moved = Measure(X) @ T(Measure(X))
    np.testing.assert_array_equal(moved.points, got)
    if norm is None and not residual and not with_ffn:
        summed = sum(T.head(i).self_attention(X) for i in range(heads))
        np.testing.assert_allclose(summed, got, atol=50 * tolerance(dtype) * np.abs(want).max())
    # Duplicated and shuffled particles give the same, since only the measure counts.
    twice = np.vstack([X, X[::-1]])
    again = T(Measure(twice)).attend(X)
    np.testing.assert_allclose(again, got, atol=50 * tolerance(dtype) * max(1, np.abs(want).max()))


def test_transformer_depth_and_weights() -> None:
    """MTA-1, section 6.2: shared weights over depth, weighted measures."""
    rng = np.random.default_rng(0)
    T = TransformerKernel(*(rng.normal(size=(2, 3, 3)) for _ in range(4)), ffn=np.tanh)
    X = points(5, 3)
    assert len(T.iterate(X, 2)) == 3
    times = np.array([1, 2, 1, 3, 1])
    weighted = T(Measure(X, times / times.sum())).attend(X)
    np.testing.assert_allclose(
        weighted, T(Measure(np.repeat(X, times, axis=0))).attend(X), atol=1e-13
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 10**6))
def test_transport_keeps_mass_and_hull(n: int, d: int, seed: int) -> None:
    """MTA-1: outputs are means of values, inside their range, whatever the weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * 10 ** rng.uniform(-2, 1)
    w = rng.random(n) ** 4 + 1e-9
    out = AttentionKernel(DotPotential(rng.uniform(0.1, 2))).step(Measure(X, w / w.sum()))
    assert math.isclose(float(out.weights.sum()), 1, abs_tol=1e-12)
    slack = 1e-12 * (1 + np.abs(X).max())
    assert (out.points >= X.min(axis=0) - slack).all()
    assert (out.points <= X.max(axis=0) + slack).all()


def test_lookup_constants() -> None:
    """MTA-3, proposition 21: Lipschitz constants of linear maps and tables, by brute force."""
    M = points(3, 4)
    lookup = LinearLookup(M, np.ones(4))
    best = max(np.abs(M[k]).sum() for k in range(3))
    assert math.isclose(lookup.lipschitz or 0, best)
    assert math.isclose(lookup.lipschitz_l2 or 0, np.linalg.svd(M)[1][0])
    K, V = points(6, 2), points(6, 2, seed=1)
    table = TableLookup(K, V)
    pairs = [
        np.abs(V[i] - V[j]).sum() / np.abs(K[i] - K[j]).sum() for i in range(6) for j in range(i)
    ]
    assert math.isclose(table.lipschitz, max(pairs))
    np.testing.assert_array_equal(table.values(K[[4, 1]]), V[[4, 1]])


P = np.ones((3, 2))
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Measure(np.empty((0, 2))), ValueError, r"points.*at least one point.*got none"),
    (lambda: Measure(np.empty((2, 0))), ValueError, r"points.*length 0"),
    (lambda: Measure(np.ones(3)), ValueError, r"points.*\(n, d\).*points\[:, None\]"),
    (lambda: Measure(np.array([[np.nan]])), ValueError, r"points.*NaN"),
    (lambda: Measure(P, np.ones(3)), ValueError, r"weights.*sum to 1.*3.*weights / weights.sum"),
    (lambda: Measure(P, np.array([2.0, -1.0, 0])), ValueError, r"weights.*>= 0.*-1"),
    (lambda: Measure(P, np.full(2, 0.5)), ValueError, r"weights.*\(3,\).*\(2,\)"),
    (lambda: Measure(P, np.full(3, 1 / 3, np.float32)), TypeError, r"weights.*float64"),
    (lambda: Measure(P.astype(int)), TypeError, r"points.*int64.*astype"),
    (lambda: Measure.mixture([]), ValueError, r"measures.*at least one"),
    (lambda: Measure.mixture([Measure(P), Measure(P[:, :1])]), ValueError, r"measures\[1\].*2"),
    (lambda: Measure.dirac(P), ValueError, r"x.*one point"),
    (lambda: Measure(P) @ AttentionKernel(DotPotential()), TypeError, r"mu @ A\(mu\)"),  # type: ignore[operator]
    (lambda: Measure(P).push_forward(lambda X: X[:1]), ValueError, r"f.*all points at once"),
    (lambda: Measure(P).smooth(0.0), ValueError, r"sigma.*> 0"),
    (lambda: Measure(P).smooth(1.0).quadrature(10_000), ValueError, r"nodes.*sample"),
    (
        lambda: measure.boltzmann_gibbs(np.array([1.0, 0, 1]), P),
        ValueError,
        r"g.*positive.*index 1",
    ),
    (lambda: measure.boltzmann_gibbs(np.ones(2), P), ValueError, r"g.*\(3,\).*each point"),
    (
        lambda: FunctionPotential(lambda X, Y: X @ Y.T - 5).scores(P, P),
        ValueError,
        r"G.*positive everywhere.*-3",
    ),
    (lambda: FunctionPotential(lambda X, Y: X).scores(P, P), ValueError, r"G.*\(3, 3\).*\(3, 2\)"),
    (lambda: DotPotential(beta=-1.0), ValueError, r"beta.*> 0"),
    (lambda: AttentionKernel(np.exp), TypeError, r"potential.*FunctionPotential"),  # type: ignore[arg-type]
    (lambda: AttentionKernel(DotPotential(), np.sin), TypeError, r"lookup.*FunctionLookup"),  # type: ignore[arg-type]
    (lambda: AttentionKernel(DotPotential(), projection="mode"), ValueError, r"projection.*dirac"),
    (
        lambda: AttentionKernel(DotPotential(), FunctionLookup(lambda X: X[0])).self_attention(P),
        ValueError,
        r"function.*\(3, d'\)",
    ),
    (lambda: TableLookup(P, P[:2]), ValueError, r"values.*\(3, d'\).*each key"),
    (lambda: TableLookup(P, np.arange(6.0).reshape(3, 2)), ValueError, r"keys.*one value"),
    (lambda: TableLookup(P[:1], P[:1]).values(2 * P), ValueError, r"keys.*not in it at index 0"),
    (lambda: AttentionKernel(DotPotential())(P).attend(P[:, :1]), ValueError, r"Q.*\(m, 2\)"),
    (lambda: measure.moment_projection(P, "mode"), ValueError, r"family.*dirac"),
    (
        lambda: TransformerKernel(np.ones((1, 2, 2)), *[np.ones((1, 3, 2))] * 3),
        ValueError,
        r"W_K.*\(1, 2, 2\).*\(1, 3, 2\)",
    ),
    (
        lambda: TransformerKernel(*[np.ones((1, 2, 2))] * 4, norm="batch"),
        ValueError,
        r"norm.*post.*pre",
    ),
    (
        lambda: FeedForward(np.ones((2, 3)), np.ones((2, 2))),
        ValueError,
        r"W2.*\(3, d'\).*rows as W1",
    ),
    (
        lambda: TransformerKernel(*[np.ones((1, 2, 2))] * 4)(np.ones((2, 3))),
        ValueError,
        r"mu.*2 dimensions as W_Q",
    ),
    (lambda: measure.Ball(1.0), ValueError, r"centre, dim.*neither"),
    (lambda: measure.Ball(-1.0, dim=2), ValueError, r"radius.*> 0"),
    (lambda: measure.Box([1.0], [0.0]), ValueError, r"low <= high"),
]


@pytest.mark.parametrize(("call", "error", "pattern"), BAD)
def test_bad_input(call: Callable[[], object], error: type[Exception], pattern: str) -> None:
    """MTA-1: empty measures, weights, potentials and shapes that are wrong, each with its message."""
    with pytest.raises(error, match=pattern):
        call()
