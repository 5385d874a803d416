"""City-block scores: values, sums with other terms, symmetric kernels, bridges against other solvers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import qkcore as qk
from qkcore._bridge_check import extended_scores, widened
from qkcore.factors import nystrom, positive_features
from qkcore.magnetic._phases import _antisymmetrized

from . import bounds
from . import reference as ref
from .bounds import assert_same_bits, assert_within
from .checks import KERNELS, check_kernel, check_logsumexp, check_scores, check_softmax
from .generators import DTYPES, Spec, build, l1_scores, points

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
DIMS = (1, 2, 3, 4, 5, 17, 64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_at_the_edges_of_registers_and_tiles(size: int, dtype: str) -> None:
    for dim in (2, 5):
        for shape in ((size, 65), (33, size)):
            problem = build(Spec("l1", dtype, *shape, dim))
            check_scores(problem)
            check_logsumexp(problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", ["none", "positive"])
@pytest.mark.parametrize("dim", DIMS)
def test_dimensions(dim: int, weight: str, dtype: str) -> None:
    problem = build(Spec("l1", dtype, 19, 40, dim, weight))
    check_scores(problem)
    check_softmax(problem)
    check_softmax(problem, 0)
    for kernel in KERNELS:
        check_kernel(problem, kernel)


@given(
    st.integers(1, 40), st.integers(1, 70), st.sampled_from(DIMS), st.sampled_from(DTYPES),
    st.floats(0.5, 3), st.integers(0, 2**16),
)  # fmt: skip
def test_heavy_tails(n: int, m: int, d: int, dtype: str, tail: float, seed: int) -> None:
    """Coordinates of very different sizes: every score within the bound of its own terms."""
    r = rng(seed)
    X, Y = (np.clip(r.standard_t(tail, (k, d)), -1e6, 1e6).astype(dtype) for k in (n, m))
    problem = l1_scores(X, Y, r.uniform(0, 2, d).astype(dtype), 0.5, r)
    check_scores(problem)
    lse = problem.scores.logsumexp()
    assert_within(lse, ref.logsumexp(problem.s), bounds.logsumexp(problem, 1), "logsumexp")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_equal_points_have_the_score_0(dim: int, dtype: str) -> None:
    """Exactly, however large the coordinates are, and whatever the weights."""
    r = rng(dim)
    X = (1e4 * r.standard_normal((37, dim))).astype(dtype)
    for W in (None, r.uniform(0.1, 3, dim).astype(dtype)):
        for s in (qk.scores.l1(X, W=W, beta=3.0), qk.scores.l1(X, X.copy(), W=W, beta=3.0)):
            got = s.to_numpy()
            assert (np.diag(got) == 0).all()
            assert (got <= 0).all()
            assert_same_bits(got, got.T, "symmetry")
    # Also for some equal points among others.
    repeated = np.concatenate([X, X[::-1]])
    assert (qk.scores.l1(X, repeated).to_numpy()[np.arange(37), 73 - np.arange(37)] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 5])
def test_sums_with_every_other_term(dim: int, dtype: str) -> None:
    """Terms of both powers with scales of either sign, dot products, matrices, shifts, masks; transposed."""
    r = rng(7)
    X, Y = points(r, (29, dim), dtype), points(r, (35, dim), dtype)
    U, V = points(r, (29, 3), dtype), points(r, (35, 3), dtype)
    Z, c = r.normal(size=(29, 35)).astype(dtype), r.normal(size=35).astype(dtype)
    q = qk.scores
    S = r.normal(size=(dim, dim)).astype(dtype)
    sums: list[tuple[Any, Any]] = [
        (q.l1(X, Y) + q.l1(U, V, beta=2.0), ref.l1(X, Y) + ref.l1(U, V, beta=2.0)),
        (q.l1(X, Y) - q.l1(U, V, beta=0.5), ref.l1(X, Y) - ref.l1(U, V, beta=0.5)),
        (q.distance(X, Y) - q.l1(U, V), ref.distance(X, Y) - ref.l1(U, V)),
        (q.l1(U, V, beta=3.0) - q.distance(X, Y), ref.l1(U, V, beta=3.0) - ref.distance(X, Y)),
        (q.distance(X, Y) - q.distance(U, V), ref.distance(X, Y) - ref.distance(U, V)),
        (q.distance(X, Y, W=S) - q.l1(X, Y), ref.distance(X, Y, S) - ref.l1(X, Y)),
        (q.l1(X, Y) + q.dot(U, V), ref.l1(X, Y) + ref.dot(U, V)),
        (-q.l1(X, Y) + q.dense(Z), -ref.l1(X, Y) + Z),
        (0.3 * (q.l1(X, Y) + q.dense(Z)).shift(columns=c), ref.HIGH(0.3) * (ref.l1(X, Y) + Z + c)),
    ]
    tol = 400 * float(np.finfo(dtype).eps)
    for made, wanted in sums:
        np.testing.assert_allclose(made.to_numpy(), wanted, rtol=0, atol=tol, err_msg=repr(made))
        assert_same_bits(made.T.to_numpy(), made.to_numpy().T, repr(made))
        np.testing.assert_allclose(made.rows(3, 20).to_numpy(), wanted[3:20], rtol=0, atol=tol)
        some = np.array([4, 0, 34])
        np.testing.assert_allclose(made.columns(some).to_numpy(), wanted[:, some], rtol=0, atol=tol)
        np.testing.assert_allclose(
            made.causal(3).logsumexp(),
            logsumexp(np.where(ref.causal_mask(29, 35, 3), wanted.astype(float), -np.inf), axis=1),
            atol=tol,
        )
        np.testing.assert_allclose(extended_scores(made, 0, 29), wanted, rtol=0, atol=tol)
        assert float(np.abs(made.to_numpy()).max()) <= made.bound


def test_batches_heads_and_ragged_blocks() -> None:
    r = rng(3)
    X, Y, W = r.normal(size=(2, 1, 9, 4)), r.normal(size=(13, 4)), r.uniform(0, 2, (3, 4))
    s = qk.scores.l1(X, Y, W=W, beta=0.6)
    assert s.shape == (2, 3, 9, 13)
    for k in range(2):
        for h in range(3):
            alone = qk.scores.l1(X[k, 0], Y, W=W[h], beta=0.6)
            np.testing.assert_array_equal(s[k, h].to_numpy(), alone.to_numpy())
            wanted = ref.l1(X[k, 0], Y, W[h], 0.6).astype(float)
            np.testing.assert_allclose(s.to_numpy()[k, h], wanted, atol=1e-13)
    cuts = np.array([0, 4, 4, 9])
    ragged = qk.scores.l1(X[0, 0]).ragged(cuts)
    wanted = np.where(ref.ragged_mask(cuts), ref.l1(X[0, 0], X[0, 0]).astype(float), -np.inf)
    np.testing.assert_allclose(ragged.to_numpy(), wanted, atol=1e-13)


def test_it_is_shown_pickled_and_widened() -> None:
    X = rng(1).normal(size=(6, 3)).astype(np.float32)
    s = qk.scores.l1(X, beta=2.0) + qk.scores.distance(X)
    assert "1 distance, 1 l1" in repr(s)
    assert "l1" in s._repr_html_()
    again = pickle.loads(pickle.dumps(s))
    np.testing.assert_array_equal(again.to_numpy(), s.to_numpy())
    assert widened(s).dtype == np.float64
    wanted = ref.l1(X, X, beta=2.0) + ref.distance(X, X)
    np.testing.assert_allclose(widened(s).to_numpy(), wanted.astype(float), atol=1e-14)
    assert s.symmetric
    assert s.T.symmetric
    assert not qk.scores.l1(X, X + 1).symmetric


def test_the_laplacian_kernel_is_positive_definite_and_bistochastic() -> None:
    X = rng(2).normal(size=(60, 3))
    s = qk.scores.l1(X, W=np.array([1.0, 0.3, 2.0]), beta=1.3)
    K = np.exp(s.to_numpy())
    assert np.linalg.eigvalsh(K).min() > 0
    B = qk.sinkhorn(s, tol=1e-12)
    P = B.to_numpy()
    np.testing.assert_allclose(P.sum(axis=0), 1, atol=1e-11)
    np.testing.assert_allclose(P, P.T, atol=1e-12)
    C = qk.bridge(s, solver="symmetric", tol=1e-11)
    assert C.converged
    np.testing.assert_allclose(C.plan() * 60, P, atol=1e-9)
    # Operators accept it like any other symmetric scores.
    A = qk.softmax(s)
    np.testing.assert_allclose(A.stationary(), K.sum(axis=1) / K.sum(), atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory", [0, None])
def test_bridges_on_the_fly_and_stored(memory: int | None, dtype: str) -> None:
    """Against Sinkhorn's iteration in logarithms on SciPy's city-block distances."""
    r = rng(5)
    X, Y = r.normal(size=(40, 3)).astype(dtype), r.normal(size=(33, 3)).astype(dtype)
    mu, nu = (w / w.sum() for w in (r.uniform(0.5, 1, 40), r.uniform(0.5, 1, 33)))
    beta = 2.0
    tol = 1e-11 if dtype == "float64" else 2e-6
    b = qk.bridge(
        qk.scores.l1(X, Y, beta=beta),
        mu.astype(dtype),
        nu.astype(dtype),
        tol=tol,
        max_memory=memory,
    )
    assert b.converged
    z = -beta * cdist(X.astype(float), Y.astype(float), "cityblock")
    f, g = np.zeros(40), np.zeros(33)
    for _ in range(2000):
        f = np.log(mu) - logsumexp(z + g, axis=1)
        g = np.log(nu) - logsumexp(z + f[:, None], axis=0)
    plan = np.exp(f[:, None] + z + g)
    np.testing.assert_allclose(b.plan(), plan, atol=1e-10 if dtype == "float64" else 2e-6)
    assert b.cost == pytest.approx(-(plan * z).sum(), rel=1e-9 if dtype == "float64" else 1e-5)


def test_a_sharp_bridge_finds_the_assignment_of_city_block_costs() -> None:
    r = rng(8)
    X, Y = r.normal(size=(12, 2)), r.normal(size=(12, 2))
    cost = cdist(X, Y, "cityblock")
    b = qk.bridge(qk.scores.l1(X, Y, beta=400.0), tol=1e-10, max_iter=100_000)
    assert b.converged
    rows = np.kron(np.eye(12), np.ones(12))
    columns = np.kron(np.ones(12), np.eye(12))
    programme = linprog(
        cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.full(24, 1 / 12), method="highs"
    )
    assert b.cost / 400 == pytest.approx(programme.fun, abs=np.log(12) / 400)


def test_a_bridge_agrees_with_pot() -> None:
    ot = pytest.importorskip("ot")
    r = rng(9)
    X, Y = r.normal(size=(25, 2)), r.normal(size=(30, 2))
    a, b = np.full(25, 1 / 25), np.full(30, 1 / 30)
    M = ot.dist(X, Y, metric="cityblock")
    wanted = ot.sinkhorn(a, b, M, reg=0.5, stopThr=1e-13, numItermax=20_000)
    got = qk.bridge(qk.scores.l1(X, Y, beta=2.0), a, b, tol=1e-12)
    np.testing.assert_allclose(got.plan(), wanted, atol=1e-11)


def test_the_flow_of_currents_of_a_bridge_of_two_clouds() -> None:
    """Phases are antisymmetrised scores: those of two clouds keep both of their city-block terms."""
    r = rng(4)
    X, Y = r.normal(size=(8, 2)), r.normal(size=(8, 2))
    s = qk.scores.l1(X, Y, beta=0.7)
    wanted = (ref.l1(X, Y, None, 0.7) - ref.l1(X, Y, None, 0.7).T).astype(float)
    np.testing.assert_allclose(_antisymmetrized(s).to_numpy(), wanted, atol=1e-13)
    assert not _antisymmetrized(qk.scores.l1(X)).to_numpy().any()


def test_nystrom_takes_it() -> None:
    X = 0.3 * rng(6).normal(size=(200, 1))
    s = qk.scores.l1(X, beta=0.2)
    F = nystrom(s, 100)
    assert F.relative_error(s) < 1e-3


def test_what_is_refused() -> None:
    X = np.zeros((3, 2))
    f = qk.scores.l1
    for error, match, call in (
        (ValueError, r"W: wanted shape \(\.\.\., 2\)", lambda: f(X, W=np.ones(3))),
        (ValueError, r"W: wanted weights >= 0, got -1", lambda: f(X, W=np.array([1.0, -1.0]))),
        (ValueError, r"W: wanted finite", lambda: f(X, W=np.array([1.0, np.nan]))),
        (ValueError, r"Y: wanted points of dimension 2", lambda: f(X, np.zeros((3, 3)))),
        (ValueError, r"beta: wanted", lambda: f(X, beta=0.0)),
        (OverflowError, r"beta \|x - y\|", lambda: f(np.full((3, 2), 1e308), beta=10.0)),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(ValueError, match=r"K: wanted dot products and squared distances"):
        positive_features(f(X), 10)
