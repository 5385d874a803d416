"""Bridges over masked kernels, alone and in batches, are solved, or refused with the reason (DAC-7)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk

from .generators import DTYPES
from .test_solvers import law


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tol", [None, 1e-3])
@pytest.mark.parametrize("scale", [0.0, 3.0, 30.0])
@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_marginals_met_without_total_support_are_no_bridge(
    n: int, scale: float, tol: float | None, dtype: str
) -> None:
    """Below the diagonal only: marginals can be met as well as one likes, the potentials have no limit."""
    rng = np.random.default_rng((n, int(scale)))
    Z = (scale * rng.normal(size=(n, n))).astype(dtype)
    u = np.full(n, 1 / n, dtype)
    below = np.tri(n, dtype=bool)
    dense = qk.scores.dense(Z)
    infinite = qk.scores.dense(np.where(below, Z, -np.inf).astype(dtype))
    for s in (dense.causal(), dense.masked(below), infinite, dense.T.window(0, None).T):
        for solver in ("auto", "alternating", "newton", "annealed"):
            b = qk.bridge(s, u, u, tol=tol, solver=solver, max_iter=1000)
            assert (b.status, b.converged) == ("no total support", False), f"{solver}: {b}"


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(DTYPES),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_masks_are_judged_as_the_largest_flow_does(
    n: int, m: int, dtype: str, seed: int, uniform: bool
) -> None:
    """Any mask: converged when every allowed entry can carry mass, and else for the right reason not."""
    rng = np.random.default_rng(seed)
    keep = rng.random((n, m)) < rng.uniform(0.2, 1.0)
    s = qk.scores.dense(rng.normal(size=(n, m), scale=3.0).astype(dtype)).masked(keep)
    mu, nu = (np.full(k, 1 / k, dtype) if uniform else law(rng, k, dtype) for k in (n, m))
    b = qk.bridge(s, mu, nu, max_iter=2000)
    try:
        usable = qk.usable_entries(s, mu, nu)
    except ValueError:
        assert b.status == "infeasible"
        return
    if (usable == keep).all():
        assert b.converged, str(b)
    else:
        assert b.status == "no total support"


@pytest.mark.parametrize("dtype", DTYPES)
def test_extrapolations_do_not_end_on_plateaus(dtype: str) -> None:
    """Few columns and a mask: steps are nearly collinear, and their extrapolation may lie anywhere.

    Sinkhorn's own iteration takes 18 and 141 visits for these two.
    """
    rng = np.random.default_rng(108 + 10**6)
    rng.integers(1, 7, 2)
    keep = rng.random((6, 2)) < rng.uniform(0.2, 1)
    s = qk.scores.dense(rng.normal(size=(6, 2), scale=3.0).astype(dtype)).masked(keep)
    problems = [(s, law(rng, 6, dtype), law(rng, 2, dtype))]
    rng = np.random.default_rng(2053 + 10**6)
    rng.integers(1, 7, 2)
    keep = rng.random((5, 3)) < rng.uniform(0.2, 1)
    s = qk.scores.dense(rng.normal(size=(5, 3), scale=3.0).astype(dtype)).masked(keep)
    problems += [(s, np.full(5, 1 / 5, dtype), np.full(3, 1 / 3, dtype))]
    for s, mu, nu in problems:
        for solver in ("anderson", "auto"):
            b = qk.bridge(s, mu, nu, solver=solver, max_iter=500)
            assert b.converged, str(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plateaus_are_left_by_newtons_method(dtype: str) -> None:
    """Errors stay at 0.004 for hundreds of visits, while the potentials move by a little at each."""
    rng = np.random.default_rng(1175)
    keep = rng.random((4, 5)) < rng.uniform(0.2, 1)
    s = qk.scores.dense(rng.normal(size=(4, 5), scale=3.0).astype(dtype)).masked(keep)
    mu, nu = law(rng, 4, dtype), law(rng, 5, dtype)
    b = qk.bridge(s, mu, nu, max_iter=2000, max_visits=2000)
    assert b.converged and b.n_iter <= b.n_visits <= 2000, str(b)
    few = qk.bridge(s, mu, nu, max_visits=250)  # all methods together have one budget
    assert few.n_visits <= 251
    few = qk.bridge(s, mu, nu, max_iter=250)
    assert few.n_iter == len(few.errors) <= 250


@pytest.mark.parametrize("solver", ["auto", "newton", "relaxed", "annealed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_points_that_hardly_see_each_other(dtype: str, solver: str) -> None:
    """Three points at epsilon = 1 / 75: a Sinkhorn step moves potentials by 0.01, and they need 75.

    On the line the coupling of so small an epsilon is the monotone one, but for exp(-75).
    """
    x = np.arange(3, dtype=dtype)[:, None]
    mu = np.array([0.32019529, 0.24391739, 0.43588732], dtype)
    nu = np.array([0.22944853, 0.33106211, 0.43948936], dtype)
    mu, nu = mu / mu.sum(), nu / nu.sum()
    b = qk.bridge(qk.scores.distance(x, beta=75.0), mu, nu, solver=solver)
    assert b.converged, str(b)
    F, G = (np.concatenate([[0.0], np.cumsum(v, dtype=np.float64)]) for v in (mu, nu))
    overlap = np.minimum(F[1:, None], G[1:]) - np.maximum(F[:-1, None], G[:-1])
    np.testing.assert_allclose(b.plan(), np.maximum(overlap, 0), atol=4 * b.tol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_potentials_that_run_away_do_not_hide_why(dtype: str) -> None:
    """Of an infeasible problem they leave the range of float32: that is no overflow of the scores."""
    Z = np.array([[1.3, -3.3], [0.0, 5.1]], dtype)
    keep = np.array([[True, True], [False, True]])
    mu, nu = (
        np.array([0.25, 0.75], dtype),
        np.array([0.3, 0.7], dtype),
    )  # row 1 has 0.75, its column 0.7
    for solver in ("auto", "newton", "alternating"):
        alone = qk.bridge(qk.scores.dense(Z).masked(keep), mu, nu, solver=solver)
        assert alone.status == "infeasible"
        two = qk.scores.dense(np.stack([Z, Z])).masked(np.stack([keep, np.ones((2, 2), bool)]))
        b = qk.bridge(two, mu, nu, solver=solver)
        assert b.status.tolist() == ["infeasible", "converged"]
        assert np.isfinite(b.error[1]) and b.error[1] <= b.tol


def same_as_alone(b: Any, k: Any, alone: qk.SchrodingerBridge) -> None:
    assert b.status[k] == alone.status
    assert b.converged[k] == alone.converged
    if alone.converged:
        np.testing.assert_allclose(b.f[k], alone.f, atol=1e-6)
        np.testing.assert_allclose(b.g[k], alone.g, atol=1e-6)


@pytest.mark.parametrize("solver", ["auto", "alternating", "newton"])
def test_batches_judge_every_mask_for_itself(solver: str) -> None:
    """Problems without a bridge are called so, and the others solved, as each would be alone."""
    rng = np.random.default_rng(3)
    n = 6
    X = rng.normal(size=(2, 2, n, 2))
    uniform = np.full(n, 1 / n)
    late = law(rng, n) * np.arange(1, n + 1) ** 2  # rows that see many columns have the mass
    mu = np.stack([[uniform, late / late.sum()], [uniform[::-1], late[::-1] / late.sum()]])
    # no total support, feasible, no total support, infeasible
    s = qk.scores.distance(X, beta=0.3).causal()
    b = qk.bridge(s, mu, uniform, solver=solver, max_iter=300)
    for k in np.ndindex(2, 2):
        alone = qk.bridge(
            qk.scores.distance(X[k], beta=0.3).causal(), mu[k], uniform, solver=solver, max_iter=300
        )
        same_as_alone(b, k, alone)
    assert b.status.tolist() == [
        ["no total support", "converged"],
        ["no total support", "infeasible"],
    ]


def test_ragged_batches_judge_every_mask_for_itself() -> None:
    rng = np.random.default_rng(4)
    sizes = (4, 1, 5)
    cuts = np.concatenate([[0], np.cumsum(sizes)])
    X = rng.normal(size=(cuts[-1], 2))
    keep = np.ones((cuts[-1], cuts[-1]), bool)
    keep[:4, :4] = np.tri(4)  # one coupling only
    keep[5:7, 5:] = [True, False, False, False, False]  # two rows for one column
    weights = np.concatenate([np.full(n, 1 / n) for n in sizes])
    s = qk.scores.distance(X, beta=0.3).masked(keep)
    b = qk.bridge(s.ragged(cuts), weights, weights, max_iter=300)
    assert b.status.tolist() == ["no total support", "converged", "infeasible"]
    assert b.converged.tolist() == [False, True, False]
    for (first, end), status in zip(pairwise(cuts), b.status, strict=True):
        block = slice(first, end)
        alone = qk.bridge(
            qk.scores.distance(X[block], beta=0.3).masked(keep[block, block]),
            weights[block],
            weights[block],
            max_iter=300,
        )
        assert alone.status == status


def test_batches_have_the_gauge_of_one_problem() -> None:
    """sum_j nu_j g_j = 0 in every problem, ragged ones and weights of 0 included."""
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(3, 8, 2)), rng.normal(size=(3, 5, 2)) + 2
    mu, nu = np.stack([law(rng, 8) for _ in range(3)]), np.stack([law(rng, 5) for _ in range(3)])
    nu[1, 2] = 0
    nu[1] /= nu[1].sum()
    b = qk.bridge(qk.scores.distance(X, Y), mu, nu)
    assert b.converged.all()
    live = np.where(nu > 0, b.g, 0.0)
    np.testing.assert_allclose(np.sum(nu * live, axis=-1), 0, atol=1e-13)
    for k in range(3):
        same_as_alone(b, k, qk.bridge(qk.scores.distance(X[k], Y[k]), mu[k], nu[k]))
    rows, cols = np.array([0, 8, 16, 24]), np.array([0, 5, 10, 15])
    flat = qk.scores.distance(X.reshape(24, 2), Y.reshape(15, 2)).ragged(rows, cols)
    r = qk.bridge(flat, mu.reshape(-1), nu.reshape(-1))
    np.testing.assert_allclose(r.g.reshape(3, 5), b.g, atol=1e-7)
    np.testing.assert_allclose(r.f.reshape(3, 8), b.f, atol=1e-7)
