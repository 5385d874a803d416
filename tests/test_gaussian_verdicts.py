"""Verdicts of Gaussian flows: on the flow's own time scale, and never against the closed form (TPDE-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.gaussian import commuting, flow

I1 = np.eye(1)
KINDS = ["softmax", "l2", "sinkhorn", "linear", "linear_epsilon"]


def test_a_flow_that_will_blow_up_has_not_converged() -> None:
    slow = np.array([[1e-6]])
    sol = flow("softmax", None, I1, (0, 1000.0), Q=slow, K=I1, V=I1, store="final", method="dopri5")
    assert sol.status == "not settled" and sol.blow_up_time == pytest.approx(500000.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(5))
def test_verdicts_agree_with_the_closed_form(seed: int, dtype: str) -> None:
    """Diagonal parameters (they commute), turned; rates and spans over many orders of magnitude."""
    rng = np.random.default_rng(seed)
    n, d = 12, int(rng.integers(1, 4))
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    if dtype == "float32":
        turn = np.eye(d)  # so that parameters commute to the last bit
    start = 10 ** rng.uniform(-1, 1, size=(n, d))
    rate = 10 ** rng.uniform(-4, 1, size=(n, d)) * rng.choice([-1, -1, 0, 1], size=(n, d))
    cov, A = ((turn * x[:, None, :]) @ turn.T for x in (start, rate))
    cov = (cov + cov.swapaxes(-1, -2)) / 2
    T = float(10 ** rng.uniform(-1, 4))
    arrays = [x.astype(dtype) for x in (cov, A, np.eye(d))]
    sol = flow(
        "softmax",
        None,
        arrays[0],
        (0, T),
        Q=arrays[1],
        K=arrays[2],
        V=arrays[2],
        method="dopri5",
        store="final",
    )
    assert sol.blow_up_exact.all()
    for i in range(n):
        exact = commuting(arrays[0][i].astype(float), arrays[1][i].astype(float), np.eye(d))
        status = sol.status[i]
        assert (status == "blew up") == (exact.blow_up_time <= T), (status, exact.blow_up_time, T)
        assert sol.blow_up_time[i] == pytest.approx(exact.blow_up_time, rel=1e-4)
        if exact.limit is None:
            assert status in ("blew up", "not settled")
            continue
        size = np.linalg.norm(cov[i])
        left = np.linalg.norm(exact(T) - exact.limit) / size
        if abs(left - 1e-2) > 1e-4:
            assert status == ("converged" if left < 1e-2 else "not settled")
        if status == "converged":
            assert sol.rank[i] == exact.limit_rank
            assert np.linalg.norm(sol.cov[-1, i] - exact.limit) <= 1.01e-2 * size


def test_rank_of_the_limit_is_the_closed_form_s() -> None:
    """An eigenvalue below rank_tol of the largest that stays is part of the limit."""
    cov, A = np.diag([1.0, 1.0, 1e-8]), np.diag([-1.0, 0.0, 0.0])
    sol = flow(
        "softmax",
        None,
        cov,
        (0, 1000.0),
        Q=A,
        K=np.eye(3),
        V=np.eye(3),
        store="final",
        method="dopri5",
    )
    assert sol.status == "converged"
    assert sol.rank == commuting(cov, A, np.eye(3)).limit_rank == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_do_not_depend_on_the_unit_of_time(kind: str, dtype: str) -> None:
    """V / c over c times the span is the same flow: the same status and rank, from 1e-12 to 1e12."""
    rng = np.random.default_rng(3)
    Q, V = (rng.normal(size=(6, 2, 2)).astype(dtype) for _ in range(2))
    cov = np.diag([1.0, 0.3]).astype(dtype)
    seen = []
    for c in (2.0**-40, 1.0, 2.0**40):
        sol = flow(
            kind,
            None,
            cov,
            (0, 30 * c),
            Q=Q,
            K=-Q,
            V=(V / c).astype(dtype),
            n_steps=3000,
            method="rk4",
            store="final",
        )
        seen.append((sol.status.tolist(), sol.rank[sol.converged].tolist()))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("judge", ["covariance", "law"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_time_to_move_is_not_rest(kind: str, judge: str) -> None:
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 2, 2))
    given: dict[str, Any] = {"Q": Q, "K": K, "V": V, "store": "final", "judge": judge}
    sol = flow(kind, np.ones(2), np.diag([1.0, 2.0]), (0, 1e-9), **given)
    assert sol.status == "not settled"
    # If nothing moves at all, the flow is at rest, however short the span is.
    still = flow(kind, None, np.diag([1.0, 2.0]), (0, 1e-9), **{**given, "V": 0 * V})
    assert still.status == "converged" and still.rank == 2


def test_steps_that_pass_a_blow_up_do_not_hide_it() -> None:
    """Euler's method with one step over t = 10 sees no growth to infinity at t = 0.5."""
    sol = flow("softmax", None, I1, (0, 10.0), Q=I1, K=I1, V=I1, n_steps=1, method="euler")
    assert sol.status == "blew up" and sol.blow_up_time == 0.5


def test_statuses_and_blow_up_times_never_contradict_each_other() -> None:
    rng = np.random.default_rng(7)
    for kind in KINDS:
        Q, K, V = rng.normal(size=(3, 40, 2, 2))
        cov = np.eye(2) * 10 ** rng.uniform(-2, 1, size=(40, 1, 1))
        sol = flow(kind, None, cov, (0, 5.0), Q=Q, K=K, V=V, store="final", method="dopri5")
        finite = np.isfinite(sol.blow_up_time)
        assert not (finite & (sol.status == "converged")).any()
        assert finite[sol.status == "blew up"].all()
        early = (sol.status == "blew up") & ~sol.blow_up_exact
        assert (sol.blow_up_time[early] >= sol.t_end[early] * (1 - 1e-6)).all()


@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_functions_of_time_are_refused_in_plain_words(name: str) -> None:
    given: dict[str, Any] = {"Q": I1, "K": I1, "V": I1, name: lambda t: t * I1}
    with pytest.raises(
        TypeError, match=rf"{name}: wanted a constant matrix, got a function.*layers"
    ):
        flow("softmax", None, I1, (0, 1.0), n_steps=1, method="euler", **given)
    with pytest.raises(TypeError, match=rf"{name}: wanted a constant matrix"):
        qk.gaussian.velocity("softmax", None, I1, **given)


def test_layers_are_flows_one_after_another() -> None:
    """What the message tells to do: V(t) = -1, then -2, against the closed form with the mean of V."""
    cov = 2 * I1
    for V in (-I1, -2 * I1):
        sol = flow("softmax", None, cov, (0, 0.5), Q=I1, K=I1, V=V, store="final", method="dopri5")
        cov = sol.cov[-1]
    assert cov[0, 0] == pytest.approx(1 / (0.5 + 2 * 1.5), rel=1e-7)
    assert math.isinf(sol.blow_up_time)
