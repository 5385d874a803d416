"""Flows of particles (TPDE-2): orders, dense output, events, laws, and comparison with other integrators."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import qkcore as qk

I2 = np.eye(2)
ORDER = {"euler": 1, "heun": 2, "rk4": 4, "dopri5": 5}


def example(seed: int = 0, n: int = 12, d: int = 3, kind: str = "softmax", **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    Q, K, V = 0.7 * rng.normal(size=(3, d, d))
    return qk.AttentionField(kind, Q=Q, K=K, V=V, **more), rng.normal(size=(n, d))


def by_scipy(field: Any, X: Any, t: Any) -> Any:
    sol = solve_ivp(
        lambda s, y: field(y.reshape(X.shape), s).ravel(),
        (0.0, t[-1]),
        X.ravel(),
        method="DOP853",
        rtol=1e-13,
        atol=1e-14,
        t_eval=t,
    )
    return sol.y.T.reshape(len(t), *X.shape)


@pytest.mark.parametrize("method", ORDER)
def test_orders(method: str) -> None:
    """TPDE-2: the error falls as h^order by step halving."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    Q, K, V = (0.7 * rng.normal(size=(3, 3)) for _ in range(3))
    field = qk.AttentionField("softmax", Q=Q, K=K, V=V)
    exact = by_scipy(field, X, [2.0])[-1]
    steps = {"euler": 1280, "heun": 320, "rk4": 80, "dopri5": 40}[method]
    errors = [
        np.abs(qk.flow(field, X, (0.0, 2.0), method, n_steps=m).x[-1] - exact).max()
        for m in (steps, 2 * steps, 4 * steps)
    ]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.abs(slopes - ORDER[method]).max() < 0.1


@pytest.mark.parametrize("method", ORDER)
def test_dense_output_keeps_the_order(method: str) -> None:
    field, X = example()
    times = np.linspace(0, 1, 12)
    exact = by_scipy(field, X, times)
    steps = 4 if method == "dopri5" else 13  # with few steps the error is that of the interpolant
    errors = []
    for m in (steps, 12 * steps):
        sol = qk.flow(field, X, (0.0, 1.0), method, n_steps=m, t_eval=times)
        assert (sol.t == times).all()
        errors.append(np.abs(sol.x - exact).max())
    slope = np.log(errors[0] / errors[1]) / np.log(12)
    assert slope > ORDER[method] - 0.2


@pytest.mark.parametrize("kind", ["softmax", "l2", "linear", "sigmoid", "exp", "sinkhorn"])
def test_agrees_with_scipy(kind: str) -> None:
    """TPDE-2: to 1e-8, at every requested time."""
    field, X = example(1, n=15, d=2, kind=kind)
    X = 0.5 * X
    times = np.linspace(0, 0.8, 7)
    sol = qk.flow(field, X, (0.0, 0.8), rtol=1e-10, atol=1e-11, t_eval=times)
    assert sol.status == "finished"
    assert np.abs(sol.x - by_scipy(field, X, times)).max() < 1e-8


@pytest.mark.peers
def test_agrees_with_diffrax() -> None:
    diffrax = pytest.importorskip("diffrax")
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    field, X = example(2)
    Q, K, V = (p[0] for p in field.parameters())

    def velocity(t: Any, x: Any, args: Any) -> Any:
        return jax.nn.softmax((x @ Q.T) @ (x @ K.T).T, axis=1) @ x @ V.T

    want = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Dopri5(),
        0.0,
        1.0,
        0.01,
        jnp.asarray(X),
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-12),
    ).ys[-1]
    got = qk.flow(field, X, (0.0, 1.0), rtol=1e-11, atol=1e-12).x[-1]
    assert np.abs(got - np.asarray(want)).max() < 1e-8


def test_tolerance_is_met_and_more_of_it_costs_more() -> None:
    field, X = example()
    exact = by_scipy(field, X, [1.0])[-1]
    costs = []
    for tol in (1e-3, 1e-6, 1e-9):
        sol = qk.flow(field, X, (0.0, 1.0), rtol=tol, atol=tol)
        assert np.abs(sol.x[-1] - exact).max() < 30 * tol
        assert sol.n_evaluations <= 6 * (sol.n_steps + sol.n_rejected) + 3
        costs.append(sol.n_evaluations)
    assert costs[0] < costs[1] < costs[2]


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_float32_stays_float32(method: str) -> None:
    field, X = example()
    options: dict[str, Any] = {} if method == "dopri5" else {"n_steps": 50}
    sol = qk.flow(field, X.astype(np.float32), (0.0, 1.0), method, **options)
    want = qk.flow(field, X, (0.0, 1.0), rtol=1e-10).x[-1]
    assert sol.x.dtype == np.float32
    assert np.abs(sol.x[-1] - want).max() < 2e-3


def test_reversibility() -> None:
    """The flow of -V undoes the flow of V."""
    field, X = example()
    there = qk.flow(field, X, (0.0, 1.0), rtol=1e-11, atol=1e-12).x[-1]
    back = qk.flow(field.reversed(), there, (0.0, 1.0), rtol=1e-11, atol=1e-12).x[-1]
    assert np.abs(back - X).max() < 1e-8
    assert np.abs(there - X).max() > 0.1


def test_permutation_of_a_masked_flow() -> None:
    """The order in which particles are given does not matter, only their positions do."""
    field, X = example(4, n=20)
    rng = np.random.default_rng(1)
    s = np.round(rng.uniform(size=20), 1)
    order = rng.permutation(20)
    Q, K, V = (p[0] for p in field.parameters())
    masked = [qk.AttentionField("softmax", Q=Q, K=K, V=V, mask=m) for m in (s, s[order])]
    a = qk.flow(masked[0], X, (0.0, 1.0), "rk4", n_steps=10).x
    b = qk.flow(masked[1], X[order], (0.0, 1.0), "rk4", n_steps=10).x
    assert np.abs(a[:, order] - b).max() < 1e-12


def test_means_that_must_be_conserved() -> None:
    """sinkhorn is bistochastic: the mean obeys m' = V m / eps; centred linear: m' = V m/eps + V C A m."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30, 2))
    X -= X.mean(axis=0)
    V = np.array([[0.3, 1.0], [-0.5, 0.2]])
    K = np.array([[1.0, 0.5], [0.0, 1.0]])
    for kind, more in (("sinkhorn", {}), ("linear", {"centred": True})):
        field = qk.AttentionField(kind, Q=I2, K=K, V=V, **more)
        end = qk.flow(field, X, (0.0, 0.5), rtol=1e-9, atol=1e-10).x[-1]
        assert np.abs(end.mean(axis=0)).max() < 1e-8
        assert np.abs(end - X).max() > 0.05


def test_l2_never_blows_up_where_softmax_grows_faster() -> None:
    """TPDE 3.1: within R(t) whatever the size of the scores."""
    rng = np.random.default_rng(6)
    X = 5 * rng.normal(size=(30, 2))
    R0 = float(qk.observables.radius(X))
    for kind in ("l2", "softmax", "sigmoid"):
        field = qk.AttentionField(kind, Q=3 * I2, K=3 * I2, V=I2)
        sol = qk.flow(field, X, (0.0, 5.0), rtol=1e-6)
        assert sol.status == "finished"
        bound = qk.observables.radius_bound(field, R0, sol.t)
        assert (qk.observables.radius(sol.x) <= bound * (1 + 1e-6)).all()


# ---- layers and callables -----------------------------------------------------------------------


def test_layers_are_not_stepped_over() -> None:
    """Parameters that jump inside a step: order 4 is kept, because steps are cut there."""
    rng = np.random.default_rng(7)
    Q, V = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2, 2))
    X = rng.normal(size=(10, 2))
    times = np.array([0.0, 0.337, 0.71])
    field = qk.AttentionField("softmax", Q=Q, K=I2, V=V, times=times)
    exact, start = X, 0.0
    for layer, end in enumerate((0.337, 0.71, 1.0)):
        one = qk.AttentionField("softmax", Q=Q[layer], K=I2, V=V[layer])
        exact = qk.flow(one, exact, (start, end), rtol=1e-12, atol=1e-13).x[-1]
        start = end
    errors = [
        np.abs(qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=m).x[-1] - exact).max()
        for m in (20, 80)
    ]
    assert errors[0] / errors[1] > 150
    adaptive = qk.flow(field, X, (0.0, 1.0), rtol=1e-10, atol=1e-11)
    assert np.abs(adaptive.x[-1] - exact).max() < 1e-8
    assert set(times[1:]) <= set(adaptive.t)


def test_euler_on_layers_is_a_residual_network() -> None:
    rng = np.random.default_rng(8)
    Q, K, V = rng.normal(size=(3, 4, 2, 2))
    x = X = rng.normal(size=(6, 2))
    for layer in range(4):
        x = x + qk.AttentionField("softmax", Q=Q[layer], K=K[layer], V=V[layer])(x)
    field = qk.AttentionField("softmax", Q=Q, K=K, V=V, times=np.arange(4.0))
    sol = qk.flow(field, X, (0.0, 4.0), "euler", n_steps=4)
    assert np.abs(sol.x[-1] - x).max() < 1e-13
    assert sol.n_evaluations == 4


def test_callables_of_time() -> None:
    """A rotating V, and a field written in Python: against SciPy."""
    X = np.random.default_rng(9).normal(size=(8, 2))

    def V(t: float) -> Any:
        return np.array([[np.cos(3 * t), -np.sin(3 * t)], [np.sin(3 * t), np.cos(3 * t)]])

    field = qk.AttentionField("softmax", Q=I2, K=I2, V=V)
    exact = by_scipy(field, X, [1.0])[-1]
    assert np.abs(qk.flow(field, X, (0.0, 1.0), rtol=1e-10, atol=1e-11).x[-1] - exact).max() < 1e-8
    python = qk.flow(lambda x, t: field(x, t), X, (0.0, 1.0), rtol=1e-10, atol=1e-11)
    assert np.abs(python.x[-1] - exact).max() < 1e-8
    bound = qk.observables.radius_bound(field, 1.0, 1.0)
    assert abs(float(bound) - np.e) < 1e-12


def test_errors_inside_callables_come_out() -> None:
    def V(t: float) -> Any:
        if t > 0.5:
            raise KeyError("no parameters there")
        return I2

    field = qk.AttentionField("softmax", Q=I2, K=I2, V=V)
    with pytest.raises(KeyError, match="no parameters there"):
        qk.flow(field, np.ones((3, 2)), (0.0, 1.0), "rk4", n_steps=10)
    with pytest.raises(ValueError, match="field: wanted a velocity of shape"):
        qk.flow(lambda x, t: x[:1], np.ones((3, 2)), (0.0, 1.0), "rk4", n_steps=10)


# ---- the sphere ---------------------------------------------------------------------------------


def test_sphere() -> None:
    """Rows stay on the sphere; renormalising after each step keeps the order of the method."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(12, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    field = qk.AttentionField("softmax", Q=np.eye(3), K=np.eye(3), V=np.eye(3), sphere=True)
    exact = qk.flow(field, X, (0.0, 1.0), rtol=1e-12, atol=1e-13).x[-1]
    errors = []
    for m in (10, 20, 40):
        sol = qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=m)
        assert np.abs(np.linalg.norm(sol.x, axis=2) - 1).max() < 1e-15
        errors.append(np.abs(sol.x[-1] - exact).max())
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.abs(slopes - 4).max() < 0.3
    long = qk.flow(field, np.abs(X), (0.0, 100.0), clusters=(1, 1e-3))
    assert long.status == "clustered"  # a hemisphere collapses to one point


# ---- events and endings -------------------------------------------------------------------------


def one_particle(x0: float) -> Any:
    """x' = x^3 for a single particle under linear attention: blows up at 1/(2 x0^2)."""
    return qk.AttentionField("linear", Q=np.eye(1), K=np.eye(1), V=np.eye(1)), np.array([[x0]])


@pytest.mark.parametrize(
    ("method", "options"), [("dopri5", {}), ("rk4", {"n_steps": 1000}), ("euler", {"n_steps": 100})]
)
def test_blow_up_ends_with_the_last_finite_state(method: str, options: Any) -> None:
    field, x0 = one_particle(1.0)
    sol = qk.flow(field, x0, (0.0, 2.0), method, **options)
    assert sol.status == "blew up" and not sol.success
    assert np.isfinite(sol.x).all()
    if method == "dopri5":
        assert abs(sol.t[-1] - 0.5) < 1e-5
        assert sol.x[-1, 0, 0] > 1e3
    assert "blew up" in str(sol) and "last finite state" in str(sol)


def test_blow_up_at_a_radius_has_its_time() -> None:
    """x(t) = (1 - 2t)^(-1/2) passes 10 at t = 0.495."""
    field, x0 = one_particle(1.0)
    for t_eval in (None, [0.1, 0.2, 1.5]):
        sol = qk.flow(field, x0, (0.0, 2.0), rtol=1e-9, atol=1e-9, blow_up=10.0, t_eval=t_eval)
        assert sol.status == "blew up"
        assert abs(sol.t[-1] - 0.495) < 1e-6
        assert abs(sol.x[-1, 0, 0] - 10) < 1e-4
    assert sol.t.tolist()[:2] == [0.1, 0.2] and len(sol.t) == 3


def test_exp_overflows_into_a_status() -> None:
    for dtype in (np.float32, np.float64):
        X = np.ones((4, 2), dtype)
        field = qk.AttentionField("exp", Q=I2, K=I2, V=I2)
        for options in ({"method": "rk4", "n_steps": 20}, {}):
            sol = qk.flow(field, X, (0.0, 5.0), **options)  # type: ignore[arg-type]
            assert sol.status == "blew up"
            assert np.isfinite(sol.x).all()


def test_clusters_form_at_the_time_of_the_interpolant() -> None:
    """Two particles under x' = -(mean): their distance is constant; under l2 with V = -I they merge."""
    X = np.array([[-1.0], [1.0]])
    field = qk.AttentionField("softmax", Q=-np.eye(1), K=np.eye(1), V=np.eye(1))
    sol = qk.flow(field, X, (0.0, 50.0), clusters=(1, 0.5), rtol=1e-10, atol=1e-12)
    assert sol.status == "clustered" and sol.success
    assert abs(float(np.ptp(sol.x[-1])) - 0.5) < 1e-7
    assert qk.observables.clusters(sol.x[-1], 0.5).count == 1
    assert qk.observables.clusters(sol.x[-2], 0.5).count == 2
    at_once = qk.flow(field, X, (0.0, 1.0), clusters=(1, 3.0))
    assert at_once.status == "clustered" and at_once.t.tolist() == [0.0]


def test_step_limit_and_underflow() -> None:
    field, X = example()
    limited = qk.flow(field, X, (0.0, 1.0), rtol=1e-10, max_steps=3)
    assert limited.status == "step limit" and limited.n_steps + limited.n_rejected == 3
    coarse = qk.flow(field, X, (0.0, 1.0), rtol=1e-13, atol=1e-14, min_step=0.05)
    assert coarse.status == "step underflow"
    bounded = qk.flow(field, X, (0.0, 1.0), rtol=1e-2, atol=1e-2, max_step=0.01)
    assert np.diff(bounded.t).max() <= 0.01 * (1 + 1e-12)
    assert limited.x.shape[0] == limited.t.size


def test_sinkhorn_that_does_not_converge_is_a_status() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    field = qk.AttentionField(
        "sinkhorn", Q=I2, K=I2 + 0.1, V=-I2, epsilon=0.01, sinkhorn_max_visits=2
    )
    sol = qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=5)
    assert sol.status == "no convergence"
    assert (sol.x[-1] == X).all()


def test_interrupt_within_100_ms() -> None:
    field, X = example(n=3000, d=2)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=100_000, t_eval=[1.0])
    timer.join()
    assert time.perf_counter() - start < 60  # it would take hours


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    field, X = example()
    a = qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=20, progress=True)
    assert "flow" in capsys.readouterr().err
    b = qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=20, n_threads=1)
    assert (a.x == b.x).all()


def test_functions_of_any_kind_are_fields() -> None:
    """What can be called with (X, t): an error of the function itself passes through as it is."""

    class Field:
        def __call__(self, X: Any, *rest: float) -> Any:
            return -X

    def wrong(X: Any, t: float) -> Any:
        raise TypeError("mine")

    X = np.ones((3, 2))
    for field in (Field(), lambda X, t=0.0: -X, functools.partial(lambda s, X, t: s * X, -1.0)):
        sol = qk.flow(field, X, (0.0, 1.0))
        np.testing.assert_allclose(sol.x[-1], np.exp(-1.0), rtol=1e-5)
    # A C function, which has no signature.
    assert qk.flow(np.multiply, X, (0.0, 1.0)).status == "finished"
    with pytest.raises(TypeError, match=r"^mine$"):
        qk.flow(wrong, X, (0.0, 1.0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"t_span": (1.0, 0.0)}, ValueError, r"t_span: wanted t0 < t1, got \(1, 0\)"),
        ({"t_span": 3.0}, TypeError, r"t_span: wanted a pair"),
        ({"t_span": (0.0, np.inf)}, ValueError, r"t_span\[1\]: wanted a finite number"),
        ({"n_steps": 0}, ValueError, r"n_steps: wanted at least 1, got 0"),
        ({"n_steps": 2.5}, TypeError, r"n_steps: wanted an integer"),
        ({"n_steps": None}, ValueError, r"n_steps: wanted a number of steps for rk4"),
        ({"rtol": 1e-3}, ValueError, r"rtol, atol: wanted None if n_steps is given"),
        ({"n_steps": None, "method": "dopri5", "rtol": -1.0}, ValueError, r"rtol: wanted a finite"),
        (
            {"method": "leapfrog"},
            ValueError,
            r"method: wanted one of 'euler', 'heun', 'rk4', 'dopri5'",
        ),
        ({"X0": np.full((3, 2), np.nan)}, ValueError, r"X0: wanted finite numbers, got NaN"),
        ({"X0": np.ones((3, 5))}, ValueError, r"X0: wanted particles of dimension 2"),
        ({"t_eval": [0.5, 2.0]}, ValueError, r"t_eval: wanted times within t_span"),
        ({"t_eval": [0.5, 0.1]}, ValueError, r"t_eval: wanted rising times"),
        ({"clusters": 3}, TypeError, r"clusters: wanted a pair"),
        ({"clusters": (0, 1.0)}, ValueError, r"clusters\[0\]: wanted a count of at least 1"),
        ({"blow_up": -1.0}, ValueError, r"blow_up: wanted a finite number > 0"),
        ({"field": 3}, TypeError, r"field: wanted an AttentionField or a function"),
        (
            {"field": lambda X: -X},
            TypeError,
            r"function \(X, t\) -> velocity, got one that takes 1 argument; pass lambda X, t: field\(X\)",
        ),
        ({"field": lambda X, t, u: -X}, TypeError, r"got one that is called as field\(X, t, u\)"),
        ({"n_threads": 0}, ValueError, r"n_threads"),
    ],
)
def test_bad_flows(arguments: Any, error: Any, message: str) -> None:
    options: dict[str, Any] = {
        "field": qk.AttentionField("softmax", Q=I2, K=I2, V=I2),
        "X0": np.ones((3, 2)),
        "t_span": (0.0, 1.0),
        "method": "rk4",
        "n_steps": 5,
    }
    with pytest.raises(error, match=message):
        qk.flow(**(options | arguments))
