"""Corollary 24 for keys with arbitrary values, and fixed points at the origin (MTA-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qkcore.measure import (
    AttentionKernel,
    Ball,
    Box,
    DotPotential,
    FeedForward,
    FunctionLookup,
    GaussianPotential,
    LinearLookup,
    Measure,
    TableLookup,
    TransformerKernel,
    fixed_point,
    lipschitz,
)

# ---- tables ------------------------------------------------------------------------------------------


def attention(q: Any, K: Any, V: Any, weights: Any, kind: str, beta: float) -> Any:
    """Attention(q, K, V) by its definition, in long double."""
    q, K, V = (np.asarray(a, np.longdouble) for a in (q, K, V))
    if kind == "dot":
        a = beta * q @ K.T
    else:
        a = -beta * ((q[:, None] - K) ** 2).sum(-1)
    p = np.exp(a - a.max(axis=1, keepdims=True)) * weights
    return (p / p.sum(axis=1, keepdims=True)) @ V


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dot", "gaussian"])
@pytest.mark.parametrize("seed", range(6))
def test_corollary_24_holds_for_keys_with_values_of_their_own(
    seed: int, kind: str, dtype: str
) -> None:
    """Difference quotients of pairs of queries, near and far, stay below the bound; some come near."""
    rng = np.random.default_rng(seed)
    n, d, out = int(rng.integers(1, 40)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    beta = float(10 ** rng.uniform(-1, 0.7))
    K = rng.normal(size=(n, d)).astype(dtype)
    if n > 2:
        K[1] = K[0] + 1e-3  # close keys with values far apart
    V = (rng.normal(size=(n, out)) * 10 ** rng.uniform(-1, 1)).astype(dtype)
    potential = DotPotential(beta) if kind == "dot" else GaussianPotential(beta)
    weights = rng.random(n) + 0.1
    mu = Measure(K, (weights / weights.sum()).astype(dtype))
    radius = 1.5 * float(np.abs(K).sum(axis=1).max()) + 0.1
    domain: Any = Ball(radius, dim=d) if seed % 2 else Box([-radius] * d, [radius] * d)
    kernel = AttentionKernel(potential, TableLookup(K, V))
    report = lipschitz(kernel, mu, domain=domain)
    q = domain.sample(400, rng)
    other = np.where(rng.random((400, 1)) < 0.5, domain.sample(400, rng), 0) + np.where(
        rng.random((400, 1)) < 0.5, domain.project(q + 1e-4 * rng.normal(size=q.shape)), q
    )
    other = domain.project(other)
    apart = np.linalg.norm(q - other, axis=1)
    live = apart > 1e-9
    w = mu.weights.astype(np.float64)
    moved = attention(q, K, V, w, kind, beta) - attention(other, K, V, w, kind, beta)
    ratio = float((np.linalg.norm(moved.astype(float), axis=1)[live] / apart[live]).max())
    assert ratio <= report.query.bound * (1 + 1e-6)
    assert report.query.measured <= report.query.bound * (1 + 1e-5)
    assert ratio <= report.query.printed * (1 + 1e-6)
    assert report.local is None and "no Jacobian" in str(report)


def test_the_bound_of_a_table_is_reached() -> None:
    """Two keys ±1 with values ±1 on a line: at q = 0 the derivative is beta, and so is the bound."""
    K = np.array([[-1.0], [1.0]])
    report = lipschitz(
        AttentionKernel(DotPotential(0.5), TableLookup(K, K.copy())), K, domain=Ball(1.0, dim=1)
    )
    assert report.query.bound == pytest.approx(0.5)
    assert report.query.measured == pytest.approx(0.5, rel=1e-3)
    # The same values at keys ten times closer: ten times the Lipschitz constant of l, not of attention.
    near = lipschitz(
        AttentionKernel(DotPotential(0.5), TableLookup(0.1 * K, K)),
        0.1 * K,
        domain=Ball(1.0, dim=1),
    )
    assert near.query.bound == pytest.approx(0.5) and near.query.corrected > 0.5


def test_a_table_and_the_linear_lookup_it_tabulates_agree() -> None:
    rng = np.random.default_rng(0)
    K, M = rng.normal(size=(20, 3)), rng.normal(size=(3, 3))
    table = lipschitz(AttentionKernel(DotPotential(0.3), TableLookup(K, K @ M)), K)
    linear = lipschitz(AttentionKernel(DotPotential(0.3), LinearLookup(M)), K)
    assert table.query.measured == pytest.approx(linear.query.measured, rel=1e-6)
    assert table.query.bound <= linear.query.bound * (1 + 1e-12)
    assert linear.local is not None and linear.spectral.converged
    with pytest.raises(NotImplementedError, match=r"no derivative.*use \.query"):
        _ = table.spectral
    with pytest.raises(NotImplementedError, match=r"no derivative"):
        _ = table.w1


def test_functions_without_a_derivative_have_the_bound_too() -> None:
    X = np.random.default_rng(1).normal(size=(12, 2))
    plain = lipschitz(AttentionKernel(DotPotential(), FunctionLookup(np.tanh)), X)
    assert math.isinf(plain.query.bound) and plain.local is None
    known = FunctionLookup(np.tanh, lipschitz=1.0, lipschitz_l2=1.0)
    assert lipschitz(AttentionKernel(DotPotential(), known), X).query.ratio >= 1
    # Nothing depends on the query, so the bound is 0 for any lookup.
    still = lipschitz(AttentionKernel(DotPotential(W=np.zeros((2, 2))), FunctionLookup(np.tanh)), X)
    assert still.query.bound == 0 and still.query.measured == 0


def test_a_domain_that_does_not_hold_the_keys_is_refused() -> None:
    K = 3 * np.eye(2)
    with pytest.raises(ValueError, match=r"X: wanted points inside the domain, got 2 outside"):
        lipschitz(AttentionKernel(DotPotential(), TableLookup(K, K)), K, domain=Ball(1.0, dim=2))


# ---- fixed points at 0 -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["picard", "anderson"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e3])
def test_a_fixed_point_at_0_is_recognised(size: float, method: str, dtype: str) -> None:
    """Every block without biases has one, and there no move is small relative to X."""
    X = (size * np.random.default_rng(0).normal(size=(8, 2))).astype(dtype)
    first = float(np.abs(X).sum(axis=1).mean())
    shrink = (0.8 * np.eye(2)).astype(dtype)
    beta = 1 / size**2
    tol = 1e-5 if dtype == "float32" else 1e-10
    blocks: list[Any] = [
        AttentionKernel(DotPotential(beta), LinearLookup(shrink)),
        AttentionKernel(GaussianPotential(beta), LinearLookup(shrink)),
        lambda x: x @ shrink,
        lambda x: 0 * x,
    ]
    for block in blocks:
        found = fixed_point(block, X, method=method)
        assert found.converged and found.status == "converged", str(found)
        assert found.X.dtype == dtype
        assert np.abs(found.X).max() <= 50 * tol * 1e-3 * first + 1e-30


@pytest.mark.parametrize("method", ["picard", "anderson"])
def test_a_transformer_without_biases_rests_at_0(method: str) -> None:
    rng = np.random.default_rng(1)
    W = 0.4 * np.stack([np.linalg.qr(rng.normal(size=(2, 2)))[0]])
    ffn = FeedForward(0.7 * np.eye(2), np.eye(2))
    block = TransformerKernel(W, W, W, W, ffn=ffn, residual=False, norm=None)
    found = fixed_point(block, rng.normal(size=(6, 2)), method=method)
    assert found.converged and np.abs(found.X).max() < 1e-9


def test_the_floor_leaves_other_fixed_points_as_exact_as_before() -> None:
    """The point with x = 0.5 x + b, from a start a hundred times as far away."""
    A = AttentionKernel(DotPotential(0.01), LinearLookup(0.5 * np.eye(2), np.array([0.01, -0.02])))
    X = np.random.default_rng(2).normal(size=(5, 2))
    for method in ("picard", "anderson"):
        found = fixed_point(A, X, method=method)
        assert found.converged
        np.testing.assert_allclose(found.X, np.tile([[0.02, -0.04]], (5, 1)), rtol=1e-8)


def test_what_moves_on_is_no_fixed_point() -> None:
    """A rotation of a cloud keeps its size: never converged; a start at 0 is, at once."""
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    X = np.random.default_rng(3).normal(size=(4, 2))
    assert not fixed_point(lambda x: x @ turn, X, method="picard", max_iter=50).converged
    at_once = fixed_point(lambda x: x @ turn, np.zeros((4, 2)))
    assert at_once.converged and at_once.n_iter == 0
