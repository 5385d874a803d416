"""Limits of bridge solvers: ``max_iter`` counts iterations, ``max_visits`` visits of all entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._native import cpu
from qkcore.factors import LowRank, solve_factored

N = 40


def points() -> Any:
    return np.random.default_rng(0).normal(size=(N, 2))


def law(seed: int) -> Any:
    w = np.random.default_rng(seed).random(N) + 0.1
    return w / w.sum()


def scores() -> Any:
    x = points()
    return qk.scores.distance(x, x[::-1] ** 2, beta=60.0)


def chain(**how: Any) -> Any:
    return qk.bridge_chain([scores(), scores()], law(1), law(2), **how)


def factored(**how: Any) -> Any:
    x, c = points(), np.random.default_rng(1).normal(size=(9, 2))
    left = np.exp(-25 * np.square(x[:, None] - c).sum(-1))
    return solve_factored(LowRank(left, np.roll(left, 7, axis=0).T), law(1), law(2), **how)


KINDS: dict[str, Callable[..., Any]] = {
    "scores": lambda **how: qk.bridge(scores(), law(1), law(2), **how),
    "single entries": lambda **how: qk.bridge(
        qk.scores.distance(*np.random.default_rng(4).normal(size=(2, 1100, 2)), beta=60.0), **how
    ),
    "penalties": lambda **how: qk.bridge(scores(), law(1), law(2), penalty=50.0, **how),
    "factors": factored,
    "chain": chain,
}
SOLVERS = ("auto", "alternating", "relaxed", "anderson", "newton", "accelerated", "annealed")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_iterations_and_visits_have_limits_of_their_own(kind: str, solver: str) -> None:
    for limit in (1, 2, 3, 6, 11):
        b = KINDS[kind](solver=solver, tol=1e-14, max_iter=limit, on_fail="ignore")
        assert b.status == "iteration limit" and b.n_iter == len(b.errors) == limit
        seen: list[int] = []
        b = KINDS[kind](
            solver=solver,
            tol=1e-14,
            max_visits=limit,
            on_fail="ignore",
            callback=lambda visits, error, seen=seen: seen.append(visits),
        )
        # Even if every visit is an iteration, the two limits differ by far.
        assert b.status == "visit limit" and b.n_visits <= limit + 3
        assert len(seen) == b.n_iter == len(b.errors)


def test_results_name_the_limit_that_they_reached() -> None:
    with pytest.raises(
        qk.ConvergenceError, match=r"iteration limit after 3 iter.*raise max_iter or"
    ):
        qk.bridge(scores(), law(1), law(2), max_iter=3, on_fail="raise")
    with pytest.raises(
        qk.ConvergenceError, match=r"visit limit after 3 visits.*raise max_visits or"
    ):
        qk.bridge(scores(), law(1), law(2), max_visits=3, on_fail="raise")
    b = qk.bridge(scores(), law(1), law(2), max_visits=3)
    assert b.status is qk.Status.VISIT_LIMIT
    with pytest.warns(qk.ConvergenceWarning, match="raise max_visits or tol"):
        b.plan()
    dots = qk.scores.dot(points())
    with pytest.raises(
        qk.ConvergenceError, match=r"sinkhorn: visit limit.*raise max_visits or tol"
    ):
        qk.sinkhorn(dots, max_visits=2)
    with pytest.raises(qk.ConvergenceError, match=r"sinkhorn: iteration limit after 2 iterations"):
        qk.sinkhorn(dots, max_iter=2)
    for name in ("max_iter", "max_visits"):
        with pytest.raises(ValueError, match=f"{name}: wanted at least 1, got 0"):
            qk.bridge(scores(), law(1), law(2), **{name: 0})  # type: ignore[call-overload]


@pytest.mark.parametrize("solver", ["auto", "newton"])
def test_every_problem_of_a_batch_has_the_limits_for_itself(solver: str) -> None:
    hard = scores().to_numpy()
    easy = np.zeros_like(hard)
    s = qk.scores.dense(np.stack([hard, easy, hard]))
    how: dict[str, Any] = {"solver": solver, "on_fail": "ignore", "tol": 1e-12}
    alone = qk.bridge(qk.scores.dense(hard), law(1), law(2), **how)
    assert alone.converged and alone.n_iter < alone.n_visits
    b = qk.bridge(s, law(1), law(2), **how)
    assert b.n_iter.tolist() == [alone.n_iter, b.n_iter[1], alone.n_iter]
    assert b.n_visits.tolist() == [alone.n_visits, b.n_visits[1], alone.n_visits]
    few = qk.bridge(s, law(1), law(2), max_iter=5, **how)
    assert few.status.tolist() == ["iteration limit", "converged", "iteration limit"]
    assert few.n_iter.max() == 5
    few = qk.bridge(s, law(1), law(2), max_visits=6, **how)
    assert few.status.tolist() == ["visit limit", "converged", "visit limit"]
    assert few.n_visits.max() <= 9


def test_maps_and_divergences_take_both_limits() -> None:
    x = points()
    for name, status in (("max_iter", "iteration limit"), ("max_visits", "visit limit")):
        few: Any = {name: 3}
        B = qk.isb.barycentric(x, 0.01, on_fail="ignore", **few)
        assert B.status == status and B.n_iter == len(B.errors) == B.n_visits == 3
        assert status in qk.isb.heat_flow(x, 0.01, 2, **few).message
        with pytest.raises(RuntimeError, match=f"raise {name} or tol"):
            qk.isb.step(x, 0.01, **few)
        with pytest.raises(qk.ConvergenceError, match=f"raise {name} or tol"):
            qk.sinkhorn_divergence(x, x[::-1] ** 2, epsilon=0.01, on_fail="raise", **few)
        with pytest.raises(qk.ConvergenceError, match=f"raise {name} or tol"):
            qk.diffusion.bistochastic(x, beta=5.0, **few)


def test_attempts_share_one_budget() -> None:
    """Stagnation at a tolerance beyond reach leads to further attempts: all together keep to the limits."""
    s, mu, nu = scores(), law(1), law(2)
    for limit in (60, 400):
        b = qk.bridge(s, mu, nu, tol=1e-18, max_iter=limit, on_fail="ignore")
        assert b.n_iter == len(b.errors) <= limit
        b = qk.bridge(s, mu, nu, tol=1e-18, max_visits=limit, on_fail="ignore")
        assert b.n_visits <= limit + 3


def test_devices_keep_weights_where_their_strips_fit() -> None:
    """216 strips of 32 rows at most; 1 GB by default, max_memory otherwise."""
    keeps = cpu.device_keeps_weights
    assert keeps(10**9, 2**30 // (216 * 32 * 4), 4, -1.0)
    assert not keeps(10**9, 2**30 // (216 * 32 * 4) + 1, 4, -1.0)
    for rows, strips in ((1, 1), (32, 1), (33, 2), (216 * 32 + 1, 216)):
        size = strips * 32 * 100 * 8
        assert keeps(rows, 100, 8, size) and not keeps(rows, 100, 8, size - 1)
    assert not keeps(1, 1, 4, 0.0)
