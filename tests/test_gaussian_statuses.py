"""Gaussian flows (TPDE-3): how every trajectory ends, and what a flow says of its steps."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

from qkcore._native import cpu
from qkcore.gaussian import flow

from . import reference_gaussian as ref
from .test_gaussian_flow import field, law


def test_every_trajectory_gets_a_status() -> None:
    """TPDE-3: convergence, blow-up and what is between, in one batch; none dropped, none NaN."""
    s = np.array([1e-3, 0.5, 1.0, 2.0, 100.0])[:, None, None]
    a = np.array([-1.0, -1e-4, 1e-4, 1.0])[:, None, None, None]
    I = np.eye(1)
    sol = flow(
        "softmax", None, s, (0, 20), Q=I, K=a * I, V=I, n_steps=4000, method="euler", store=100
    )
    assert sol.status.shape == (4, 5)
    assert sum(sol.counts().values()) == 20
    assert np.isfinite(sol.cov).all()
    bound = 1 / (2 * a[:, 0, 0] * s[:, 0, 0])
    blew = (bound > 0) & (bound < 20)
    np.testing.assert_array_equal(sol.status == "blew up", blew)
    np.testing.assert_allclose(sol.blow_up_time[bound > 0], bound[bound > 0], rtol=1e-12)
    assert (sol.t_end[blew] < 20).all() and (sol.t_end[~blew] == 20).all()
    assert sol.status[1, 0] == "not settled"  # hardly moves yet: it needs 5e6 times as long
    assert sol.status[0, 4] == "converged"  # 1 / (0.01 + 2 t)
    assert sol.rank[0, 4] == 0


def test_blow_up_is_extrapolated_where_no_formula_holds() -> None:
    """TPDE-3: parameters that do not commute; dopri5 follows the solution to 1e8 and beyond."""
    rng = np.random.default_rng(9)
    _, cov = law(rng, 3)
    p = {"Q": np.eye(3), "K": np.eye(3) + 0.3 * rng.normal(size=(3, 3)), "V": np.eye(3)}
    p["V"] = p["V"] + 0.2 * rng.normal(size=(3, 3))
    fine = flow(
        "softmax",
        None,
        cov,
        (0, 50),
        t_eval=np.linspace(0, 50, 11),
        method="dopri5",
        rtol=1e-11,
        **p,
    )
    assert fine.status == "blew up" and not fine.blow_up_exact
    assert abs(fine.t_end - fine.blow_up_time) < 1e-6
    coarse = []
    for n in (2000, 4000):
        sol = flow("softmax", None, cov, (0, 20), n_steps=n, method="euler", store="final", **p)
        assert sol.status == "blew up"
        assert np.isfinite(sol.cov).all()
        coarse.append(abs(sol.blow_up_time - fine.blow_up_time))
    assert coarse[0] < 0.05 * fine.blow_up_time
    assert coarse[1] < 0.7 * coarse[0]
    rk = flow("softmax", None, cov, (0, 20), n_steps=4000, method="rk4", store="final", **p)
    assert abs(rk.blow_up_time - fine.blow_up_time) < 5e-3 * fine.blow_up_time


def test_l2_and_sinkhorn_diverge_but_never_blow_up() -> None:
    """TPDE-3, lemma 4.12 and proposition 4.17: exponential growth at most."""
    I = np.eye(2)
    cov = np.diag([1.0, 0.2])
    for kind, method in (
        ("l2", "euler"),
        ("l2", "dopri5"),
        ("sinkhorn", "euler"),
        ("sinkhorn", "dopri5"),
    ):
        steps: dict[str, Any] = {"n_steps": 6000, "store": 50} if method == "euler" else {}
        sol = flow(kind, None, cov, (0, 60), Q=I, K=I, V=I, method=method, **steps)
        assert sol.status == "diverged", (kind, method)
        assert sol.blow_up_time == np.inf
        assert 5 < sol.t_end < 60
        assert np.isfinite(sol.cov).all()


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_l2_blows_up_when_the_keys_are_singular(method: str) -> None:
    """Erratum 26: lemma 4.12 needs an invertible K; with K = (1, 0) a cross covariance obeys b' = b^2."""
    K, Q, V = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.diag([0.0, 1.0])
    cov = np.array([[0.5, 0.8], [0.8, 2.0]])  # a = 1/2: b' = b^2, so b = 1 / (1/0.8 - t)
    short = flow("l2", None, cov, (0, 1), Q=Q, K=K, V=V, n_steps=2000, method="rk4")
    np.testing.assert_allclose(short.cov[:, 0, 1], 1 / (1.25 - short.t), rtol=1e-8)
    x, w = ref.gauss_hermite(np.zeros(2), cov, 40)
    v = ref.particle_velocity("l2", x, x, w, Q=Q, K=K, V=V, epsilon=1.0)
    assert ref.moment_rates(x, w, v)[1][0, 1] == pytest.approx(0.64, abs=1e-8)
    n_steps = None if method == "dopri5" else 4000
    sol = flow(
        "l2", None, cov, (0, 2), Q=Q, K=K, V=V, n_steps=n_steps, method=method, store="final"
    )
    assert sol.status == "blew up"
    assert sol.blow_up_time == pytest.approx(1.25, rel=1e-2 if method == "euler" else 1e-3)
    full = flow(
        "l2",
        None,
        cov,
        (0, 60),
        Q=np.eye(2),
        K=np.eye(2),
        V=V,
        t_eval=np.linspace(0, 60, 11),
        method="dopri5",
    )
    assert full.status == "diverged"


def test_exponential_growth_of_softmax_is_not_called_a_blow_up() -> None:
    """V nilpotent: the covariance grows like a power of t; with a constant field like an exponential."""
    # Sigma = diag(s, 1), A = diag(0, 1) e_2 e_2': V = [[1, 0], [0, 0]] moves nothing but the cross terms.
    cov, V = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    A = np.array([[1.0, 0.0], [0.0, 0.0]])
    sol = flow(
        "softmax",
        None,
        cov,
        (0, 2000),
        Q=np.eye(2),
        K=A,
        V=V,
        n_steps=20000,
        method="euler",
        max_growth=1e4,
        store="final",
    )
    assert sol.status == "diverged"


def test_convergence_and_rank_of_the_limit() -> None:
    """TPDE-3, proposition 4.4, erratum 27: K = -Q of rank k, V = I: the limit has rank d - k, not k."""
    rng = np.random.default_rng(11)
    for d, k in ((3, 1), (4, 2), (5, 2)):
        _, cov = law(rng, d, (20,))
        Q = rng.normal(size=(20, k, d))
        sol = flow(
            "softmax",
            None,
            cov,
            (0, 4000),
            Q=Q,
            K=-Q,
            V=np.eye(d),
            t_eval=np.linspace(0, 4000, 3),
            method="dopri5",
            settle_tol=1e-2,
        )
        assert (sol.status == "converged").all(), str(sol)
        np.testing.assert_array_equal(sol.rank, d - k)
        assert "rank of the limit" in str(sol)


def test_judging_the_law_looks_at_the_mean_too() -> None:
    I = np.eye(1)
    args: dict[str, Any] = {
        "Q": I,
        "K": -I,
        "V": I,
        "n_steps": 40000,
        "store": "final",
        "method": "euler",
    }
    cov_only = flow("softmax", np.ones(1), 100 * I, (0, 40), **args)
    law_too = flow("softmax", np.ones(1), 100 * I, (0, 40), judge="law", **args)
    assert cov_only.status == "converged"
    assert law_too.status == "diverged" and law_too.t_end < 40
    assert np.abs(cov_only.mean[-1]).max() > 1e6  # the mean of lemma 4.1's field grows like e^t


def test_overflow_ends_with_the_last_finite_state() -> None:
    for dtype in (np.float32, np.float64):
        I = np.eye(2, dtype=dtype)
        sol = flow(
            "softmax", None, I, (0, 10), Q=I, K=I, V=I, n_steps=50, method="euler", max_growth=1e300
        )
        assert sol.status == "blew up"
        assert np.isfinite(sol.cov).all()
        assert sol.cov[-1, 0, 0] > 10
        assert sol.t_end < 10


def test_a_large_mean_does_not_end_a_flow() -> None:
    """Its square would overflow single precision; it is finite all the same."""
    I = np.eye(1, dtype=np.float32)
    args: dict[str, Any] = {
        "Q": I,
        "K": -I,
        "V": I,
        "n_steps": 6000,
        "store": "final",
        "method": "euler",
    }
    sol = flow("softmax", np.ones(1, np.float32), I, (0, 60), **args)
    assert sol.t_end == 60 and 1e20 < sol.mean[-1, 0] < np.inf
    assert sol.cov[-1, 0, 0] == pytest.approx(1 / 121, rel=1e-2)


def test_step_limit() -> None:
    I = np.eye(2)
    sol = flow(
        "sinkhorn", None, I, (0, 10), Q=I, K=I, V=I, store="final", method="dopri5", max_steps=3
    )
    assert sol.status == "step limit"
    assert sol.n_steps <= 3 and sol.t_end < 10


def test_progress_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    _, cov = law(rng, 3, (40,))
    sol = flow("l2", None, cov, (0, 1), n_steps=50, method="euler", progress=True, **field(rng, 3))
    assert "Gaussian flow" in capsys.readouterr().err
    assert "40 trajectories" in str(sol) and "d = 3" in str(sol)
    assert "status" in repr(sol)
    assert sol.final()[1].shape == (40, 3, 3)


def test_ctrl_c_stops_a_long_flow() -> None:
    I = np.eye(6)
    cov = np.broadcast_to(I, (4000, 6, 6))
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            flow(
                "sinkhorn",
                None,
                cov,
                (0, 1),
                Q=I,
                K=-I,
                V=I,
                n_steps=2_000_000,
                method="euler",
                store="final",
            )
    finally:
        timer.cancel()


def test_steps_adapt_unless_there_is_a_number_of_them() -> None:
    """As qk.flow: dopri5 to rtol and atol by default; t_eval names the times, n_steps makes steps equal."""
    rng = np.random.default_rng(3)
    mean, cov = law(rng, 3, (5,))
    p = field(rng, 3)
    sol = flow("softmax", mean, cov, (1.0, 2.5), **p)
    assert sol.method == "dopri5" and sol.settings["form"] == "pushforward"
    np.testing.assert_array_equal(sol.t, np.linspace(1.0, 2.5, 101))
    assert sol.cov.shape == (101, 5, 3, 3) and (sol.n_rejected >= 0).all()
    for times in ([1.0, 2.5], [1.3, 1.3, 1.9], [1.0], [2.5], np.linspace(1.0, 2.5, 6)):
        some = flow("softmax", mean, cov, (1.0, 2.5), t_eval=times, **p)
        np.testing.assert_array_equal(some.t, times)
        for t, m, S in zip(some.t, some.mean, some.cov, strict=True):
            k = round((t - 1.0) / 0.015)  # of the 101 times: all of these are among them
            np.testing.assert_allclose(m, sol.mean[k], rtol=0, atol=1e-7 * np.abs(sol.mean).max())
            np.testing.assert_allclose(S, sol.cov[k], rtol=0, atol=1e-7 * np.abs(sol.cov).max())
        # The verdict is on the end of the span, whatever is kept.
        assert some.status.tolist() == sol.status.tolist() and (some.t_end == 2.5).all()
    times = np.array([1.0, 2.0])
    mine = flow("softmax", mean, cov, (1.0, 2.5), t_eval=times, **p)
    times[:] = 0.0
    assert mine.t.tolist() == [1.0, 2.0]
    ends = flow("softmax", mean, cov, (1.0, 2.5), store="final", rtol=1e-3, **p)
    assert ends.t.tolist() == [1.0, 2.5] and (ends.n_steps < 101).all()
    equal = flow("softmax", mean, cov, (1.0, 2.5), n_steps=9, **p)
    assert (equal.n_steps == 9).all() and (equal.n_rejected == 0).all() and len(equal.t) == 10


def test_results_say_what_happened() -> None:
    I = np.eye(2)
    good = flow("softmax", None, I, (0, 1), Q=I, K=-I, V=I)
    assert good.success is True and good.message.startswith("the end of t_span was reached")
    bad = flow("softmax", None, I, (0, 1), Q=I, K=I, V=I)
    assert bad.success is False and "blow_up_time" in bad.message
    both = flow("softmax", None, I, (0, 1), Q=I, K=np.stack([-I, I]), V=I)
    assert both.success.tolist() == [True, False] and both.message == "1 not settled, 1 blew up"


def test_every_end_of_a_trajectory_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine says of the end is told, whether or not a field is known that ends so."""
    compute = cpu.gaussian_flow

    def ended(*arguments: Any) -> Any:
        *found, counts = compute(*arguments)
        counts[1, 0] = cpu.FLOW_STATUS.index("step underflow")
        return *found, counts

    monkeypatch.setattr(cpu, "gaussian_flow", ended)
    I = np.eye(2)
    sol = flow("softmax", None, np.stack([I, I]), (0, 1), Q=I, K=-I, V=I)
    assert sol.status.tolist() == ["not settled", "step underflow"]
    assert sol.success.tolist() == [True, False] and "step underflow" in str(sol)
