"""Nyström and positive features: factors of kernels from points (EOT-10)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.factors import (
    LowRank,
    nystrom,
    positive_features,
    solve_factored,
)
from tests.device_libraries import Library, xp  # noqa: F401  # a fixture

Array = np.ndarray[Any, np.dtype[Any]]

# ---- Nyström and positive features --------------------------------------------------------------


@cache
def gaussian(beta: float = 0.2) -> qk.Scores:
    X = np.random.default_rng(10).standard_normal((500, 2))
    return qk.scores.distance(X, beta=beta)


@pytest.mark.parametrize("method", ["uniform", "kmeans++", "leverage"])
def test_nystrom(method: str) -> None:
    """EOT-10."""
    s = gaussian()
    F = nystrom(s, 60, method=method)
    assert F.relative_error(s) < {"uniform": 3e-2, "kmeans++": 1e-4, "leverage": 1e-3}[method]
    np.testing.assert_array_equal(F.left, nystrom(s, 60, method=method).left)
    np.testing.assert_array_equal(F.left, F.right.T)
    values = np.linalg.eigvalsh(F.to_numpy())
    assert values.min() > -1e-12 * values.max()  # positive semidefinite, not positive
    cut = nystrom(s, 60, method=method, rank=10)
    assert cut.rank == 10
    sizes = np.linalg.eigvalsh(np.exp(s.to_numpy()))[::-1]
    best = math.sqrt(np.square(sizes[10:]).sum() / np.square(sizes).sum())
    assert best <= cut.relative_error(s) < 3 * best + 3e-2


def test_nystrom_defaults_and_exactness() -> None:
    s = gaussian()
    assert "50 landmarks" in nystrom(s).method  # min(1000, V / 10)
    assert (
        "200 landmarks"
        in nystrom(qk.scores.distance(np.random.default_rng(0).random((2000, 1)))).method
    )
    small = qk.scores.distance(np.arange(12.0)[:, None], beta=2.0)
    np.testing.assert_allclose(nystrom(small, 12).to_numpy(), np.exp(small.to_numpy()), atol=1e-12)
    dot = qk.scores.dot(0.5 * np.random.default_rng(1).standard_normal((100, 5)))
    assert nystrom(qk.kernel(dot), 60).relative_error(dot) < 1e-2
    repeated = qk.scores.distance(np.repeat(np.eye(3), 10, axis=0))
    assert nystrom(repeated, 20).relative_error(repeated) < 1e-7
    B = qk.sinkhorn(gaussian())
    assert nystrom(B, 60).relative_error(B) < 1e-3


def test_nystrom_bridges_are_guarded() -> None:
    s = gaussian(beta=4.0)  # too narrow for the landmarks
    u = np.full(500, 1 / 500)
    b = solve_factored(nystrom(s, 20, method="uniform"), u, u)
    assert not b.converged
    assert b.status == "negative kernel" or b.negative.count > 0
    wide = gaussian(beta=0.02)
    b = solve_factored(nystrom(wide, 60), u, u)
    assert b.converged
    np.testing.assert_allclose(b.plan(), qk.bridge(wide, u, u).plan(), rtol=1e-3)


@pytest.mark.parametrize("kind", ["distance", "dot", "softmax", "forward"])
def test_positive_features(kind: str) -> None:
    rng = np.random.default_rng(11)
    X, Y = 0.4 * rng.standard_normal((80, 3)) + 0.3, 0.4 * rng.standard_normal((60, 3)) - 1
    A: Any = {
        "distance": lambda: qk.scores.distance(X, Y, beta=0.7),
        "dot": lambda: qk.kernel(qk.scores.dot(X, Y)),
        "softmax": lambda: qk.softmax(qk.scores.dot(X, Y) + qk.scores.distance(X, Y, beta=0.2)),
        "forward": lambda: qk.softmax(qk.scores.forward(X, Y, beta=0.5)),
    }[kind]()
    errors = [positive_features(A, m, rng=1).relative_error(A) for m in (50, 5000)]
    assert errors[1] < 0.08
    assert errors[1] < errors[0] / 3
    G = positive_features(A, 50)
    assert G.nonnegative
    mu, nu = np.full(80, 1 / 80), np.full(60, 1 / 60)
    b = solve_factored(G, mu, nu)
    assert b.converged
    assert b.exact().converged


def test_bad_features() -> None:
    s = gaussian()
    with pytest.raises(ValueError, match="n_landmarks: wanted an integer from 1 to 500"):
        nystrom(s, 501)
    with pytest.raises(ValueError, match="method: wanted one of"):
        nystrom(s, 5, method="grid")
    with pytest.raises(ValueError, match="rank: wanted an integer from 1 to 5"):
        nystrom(s, 5, rank=6)
    with pytest.raises(ValueError, match="wanted a symmetric kernel"):
        nystrom(qk.softmax(s), 5)
    with pytest.raises(ValueError, match="wanted scores from points"):
        nystrom(qk.scores.dense(np.zeros((4, 4))), 2)
    with pytest.raises(ValueError, match="without masks"):
        positive_features(s.causal(), 10)
    with pytest.raises(TypeError, match='weight "exp"'):
        positive_features(qk.kernel(s, "relu"), 10)
    with pytest.raises(ValueError, match="n_features: wanted at least 1"):
        positive_features(s, 0)
    with pytest.raises(OverflowError, match="features leave the range"):
        positive_features(qk.scores.dot(1e3 * np.eye(3)), 10)


# ---- batches and devices ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["kmeans++", "leverage", "uniform", "features"])
def test_factors_of_a_batch(kind: str, dtype: str) -> None:
    X = np.random.default_rng(3).normal(size=(2, 2, 40, 2)).astype(dtype)
    X[1, 1, :, 1] = 0  # its factors have fewer components than the others
    s = qk.scores.distance(X, beta=0.05)

    def factors(s: qk.Scores) -> LowRank:
        return positive_features(s, 20) if kind == "features" else nystrom(s, 12, method=kind)

    F = factors(s)
    assert F.shape == (2, 2, 40, 40) and F.dtype == dtype
    for k in np.ndindex(2, 2):
        one = factors(s[k])
        np.testing.assert_array_equal(F.left[k][:, : one.rank], one.left)
        np.testing.assert_array_equal(F.right[k][: one.rank], one.right)
        assert not F.left[k][:, one.rank :].any()
        assert F[k].relative_error(s[k]) == pytest.approx(one.relative_error(s[k]), rel=1e-4)


@pytest.mark.parametrize("kind", ["kmeans++", "features"])
def test_factors_of_scores_on_a_device(xp: Library, kind: str) -> None:  # noqa: F811
    X = np.random.default_rng(3).normal(size=(2, 30, 2))

    def factors(s: qk.Scores) -> LowRank:
        return positive_features(s, 20) if kind == "features" else nystrom(s, 12, method=kind)

    here = factors(qk.scores.distance(X, beta=0.05))
    there = factors(qk.scores.distance(xp.asarray(X), beta=0.05))
    assert there.device == "cuda:0" and there.batch == (2,)
    np.testing.assert_allclose(there.to_numpy(), here.to_numpy(), rtol=0, atol=1e-9)
