"""The reference against SciPy and loops, because a wrong reference could hide errors of the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special

from . import reference as ref
from .generators import WEIGHTS, normal, points, weight_matrix
from .reference import Array

RTOL = 1e-12


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def s(rng: np.random.Generator) -> Array:
    """Scores with masked entries, one masked row and one masked column."""
    s = rng.normal(size=(6, 5)) * 3
    s[rng.random((6, 5)) < 0.2] = -np.inf
    s[2] = -np.inf
    s[:, 3] = -np.inf
    return ref.high(s)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_scores_are_the_sums_they_claim_to_be(rng: np.random.Generator, weight: str) -> None:
    """DAC-1, the divergences: every one by explicit loops over i, j and the coordinates."""
    X, Y = points(rng, (4, 3), "float64"), points(rng, (5, 3), "float64")
    W = weight_matrix(rng, weight, 3, "float64")
    full = np.eye(3) if W is None else W[0] @ W[1] if isinstance(W, tuple) else W

    def form(a: Array, b: Array) -> float:
        return math.fsum(float(a[p] * full[p, q] * b[q]) for p in range(3) for q in range(3))

    for i, x in enumerate(X):
        for j, y in enumerate(Y):
            values = {
                "dot": form(x, y),
                "forward": -(form(y, y) - form(x, y)),
                "backward": -(form(x, x) - form(y, x)),
                "distance": -form(x - y, x - y),
            }
            for kind, want in values.items():
                got = getattr(ref, kind)(X, Y, W, 2.0)[i, j]
                assert float(got) == pytest.approx(2.0 * want, rel=RTOL, abs=1e-13), kind


def test_distance_agrees_with_scipy(rng: np.random.Generator) -> None:
    X, Y = normal(rng, (7, 4), "float64"), normal(rng, (6, 4), "float64")
    want = scipy.spatial.distance.cdist(X, Y, "sqeuclidean")
    np.testing.assert_allclose(ref.squared_distance(X, Y).astype(float), want, rtol=RTOL)
    W = np.asarray(weight_matrix(rng, "positive", 4, "float64"))
    want = scipy.spatial.distance.cdist(X, Y, "mahalanobis", VI=W) ** 2
    np.testing.assert_allclose(ref.squared_distance(X, Y, W).astype(float), want, rtol=1e-11)


@pytest.mark.parametrize("axis", [1, 0])
def test_reductions_agree_with_scipy(s: Array, axis: int) -> None:
    """On the rows (columns) that are not empty, where SciPy has an answer too."""
    full = ~ref.empty(s, axis)
    z = s.astype(float)
    lse, p = ref.logsumexp(s, axis), ref.softmax(s, axis)
    np.testing.assert_allclose(
        lse.astype(float)[full], scipy.special.logsumexp(z, axis=axis)[full], rtol=RTOL
    )
    assert (lse[~full] == -np.inf).all()
    lines = p if axis == 1 else p.T
    source = z if axis == 1 else z.T
    for line, score, ok in zip(lines, source, full, strict=True):
        if ok:
            np.testing.assert_allclose(line.astype(float), scipy.special.softmax(score), rtol=RTOL)
        else:
            assert (line == 0).all()
    entropies = scipy.special.entr(p.astype(float)).sum(axis=axis)
    np.testing.assert_allclose(ref.entropy(s, axis).astype(float), entropies, rtol=RTOL)
    # -sum p log p = lse - sum p s relates the three reductions.
    gap = (lse - ref.expected_score(s, axis))[full]
    np.testing.assert_allclose(ref.entropy(s, axis)[full].astype(float), gap.astype(float), RTOL)


def test_kernels_agree_with_scipy(s: Array) -> None:
    z = s.astype(float)
    kept = np.isfinite(z)
    np.testing.assert_allclose(ref.kernel(s, "exp").astype(float), np.exp(z), rtol=RTOL)
    np.testing.assert_allclose(
        ref.kernel(s, "sigmoid").astype(float), scipy.special.expit(z), rtol=RTOL
    )
    np.testing.assert_array_equal(ref.kernel(s, "linear").astype(float)[kept], z[kept])
    np.testing.assert_array_equal(ref.kernel(s, "relu").astype(float), np.maximum(z, 0))
    assert not ref.kernel(s, "linear")[~kept].any()


def test_marginals_and_products_by_loops(rng: np.random.Generator, s: Array) -> None:
    f, g = rng.normal(size=6), rng.normal(size=5)
    plan = [[math.exp(f[i] + float(s[i, j]) + g[j]) for j in range(5)] for i in range(6)]
    rows, columns = ref.marginals(s, f, g)
    np.testing.assert_allclose(rows.astype(float), [math.fsum(r) for r in plan], rtol=RTOL)
    np.testing.assert_allclose(
        columns.astype(float), [math.fsum(c) for c in zip(*plan, strict=True)], rtol=RTOL
    )
    P, V = ref.kernel(s, "exp"), rng.normal(size=(5, 2))
    want = [
        [math.fsum(float(P[i, j]) * V[j, k] for j in range(5)) for k in (0, 1)] for i in range(6)
    ]
    np.testing.assert_allclose(ref.apply(P, V).astype(float), want, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(ref.apply_left(f, P), ref.apply(P.T, f))


def test_masks_on_examples_drawn_by_hand() -> None:
    X, o = True, False
    np.testing.assert_array_equal(ref.causal_mask(3, 4), [[X, o, o, o], [X, X, o, o], [X, X, X, o]])
    np.testing.assert_array_equal(ref.causal_mask(3, 2, -1), [[o, o], [X, o], [X, X]])
    np.testing.assert_array_equal(
        ref.window_mask(4, 4, 1, 0), [[X, o, o, o], [X, X, o, o], [o, X, X, o], [o, o, X, X]]
    )
    np.testing.assert_array_equal(ref.window_mask(2, 3, None, None), np.ones((2, 3), bool))
    ragged = ref.ragged_mask([0, 2, 2, 3], [0, 1, 2, 4])
    np.testing.assert_array_equal(ragged, [[X, o, o, o], [X, o, o, o], [o, o, X, X]])
    ragged = ref.ragged_mask([0, 2, 4], right=0)
    np.testing.assert_array_equal(ragged, [[X, o, o, o], [X, X, o, o], [o, o, X, o], [o, o, X, X]])
