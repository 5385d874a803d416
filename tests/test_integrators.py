"""The integrators: coefficients, orders, stiff problems, the same steps and statuses in C++ and Python."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import qkcore as qk
from qkcore._native import cpu
from qkcore._ode import METHODS, Arrays, Integrator
from qkcore.gaussian._parameters import check_parameters
from qkcore.gaussian._velocity import field_of

Array = np.ndarray[Any, np.dtype[Any]]
ROOT = Path(__file__).parents[1]
TABLEAUX = cpu.tableaux()
EXPLICIT = [name for name, t in TABLEAUX.items() if not t["gamma"]]


def triangle(rows: Any, n: int) -> Array:
    out = np.zeros((n, n))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


# ---- numbers -------------------------------------------------------------------------------------------


def test_dormand_and_princes_numbers_are_written_once() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    for number in ("9017", "17253", "32700410799", "6561"):
        found = subprocess.run(
            ["git", "grep", "-lw", number, "--", "cpp", "cuda", "python", "tools", "bench"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        assert found == ["cpp/src/ode/tableau.cpp"], number


def test_python_has_the_numbers_of_the_core() -> None:
    assert sorted(METHODS) == sorted(EXPLICIT)
    for name, method in METHODS.items():
        assert method._asdict() == {field: TABLEAUX[name][field] for field in method._fields}


def test_no_other_integrator() -> None:
    """The core and its twin solve all differential equations: no solver of SciPy's, no steps of their own."""
    package = Path(qk.__file__).parent
    for path in package.rglob("*.py"):
        if "_bench" in path.parts:  # the references of the library
            continue
        text = path.read_text()
        for sign in ("solve_ivp", "odeint", "h / 6", "h / 2 * k"):
            assert sign not in text, f"{path.relative_to(package)}: {sign}"
        if "StepController" in text:
            assert path.name == "_ode.py"


def rooted_trees(order: int, a: Array, c: Array) -> list[tuple[Array, float]]:
    """(elementary weights of the stages, wanted sum) of all rooted trees of one order."""
    memo: dict[int, list[tuple[Array, int, int]]] = {1: [(np.ones(len(a)), 1, 1)]}
    # A tree is a multiset of subtrees: stage weight prod (A phi), density order * prod of densities.
    for n in range(2, order + 1):
        found: list[tuple[Array, int, int]] = []

        def build(left: int, most: int, index: int, phi: Array, density: int, n: int = n) -> None:
            if left == 0:
                found.append((phi, n, n * density))  # noqa: B023
                return
            for size in range(min(left, most), 0, -1):
                start = index if size == most else 0
                for k in range(start, len(memo[size])):
                    sub, _, gamma = memo[size][k]
                    build(left - size, size, k, phi * (a @ sub), density * gamma)

        build(n - 1, n - 1, 0, np.ones(len(a)), 1)
        memo[n] = found
    return [(phi, 1 / gamma) for phi, _, gamma in memo[order]]


@pytest.mark.parametrize("name", EXPLICIT)
def test_order_conditions_of_explicit_methods(name: str) -> None:
    """All rooted trees: 1, 1, 2, 4, 9 of orders 1 to 5; the interpolant of dopri5 has order 4."""
    t = TABLEAUX[name]
    n = len(t["b"])
    a, b, c = triangle(t["a"], n), np.array(t["b"]), np.array(t["c"])
    np.testing.assert_allclose(a.sum(axis=1), c, atol=1e-15)
    counts = []
    for order in range(1, t["order"] + 1):
        trees = rooted_trees(order, a, c)
        counts.append(len(trees))
        for phi, wanted in trees:
            assert b @ phi == pytest.approx(wanted, abs=1e-14)
            if t["error"] and order < t["order"]:
                assert (b - np.array(t["error"])) @ phi == pytest.approx(wanted, abs=1e-14)
            if t["dense"] and order <= 4:
                for theta in (0.2, 0.7, 1.0):
                    w = np.array(t["dense"]) @ theta ** np.arange(1, 5)
                    assert w @ phi == pytest.approx(theta**order * wanted, abs=1e-13)
    assert counts == [1, 1, 2, 4, 9][: t["order"]]
    if t["order"] < 5:  # and not a higher order
        assert max(abs(b @ phi - w) for phi, w in rooted_trees(t["order"] + 1, a, c)) > 1e-3


def test_order_conditions_of_rodas4() -> None:
    """Hairer and Wanner II, IV.7: order 4, embedded 3, interpolant 3, stiffly accurate, L-stable."""
    t = TABLEAUX["rodas4"]
    n, gamma = len(t["b"]), t["gamma"]
    G = np.linalg.inv(np.eye(n) / gamma - triangle(t["coupling"], n))
    alpha = triangle(t["a"], n) @ G
    beta = alpha + G
    np.testing.assert_allclose(alpha.sum(axis=1), t["c"], atol=1e-13)
    np.testing.assert_allclose(G.sum(axis=1), t["rate"], atol=1e-13)
    one = np.ones(n)
    c, e = alpha @ one, beta @ one
    trees = [
        (1, one, 1),
        (2, e, 1 / 2),
        (3, c**2, 1 / 3),
        (3, beta @ e, 1 / 6),
        (4, c**3, 1 / 4),
        (4, c * (alpha @ e), 1 / 8),
        (4, beta @ c**2, 1 / 12),
        (4, beta @ beta @ e, 1 / 24),
    ]
    b, off = np.array(t["b"]) @ G, np.array(t["error"]) @ G
    for order, phi, wanted in trees:
        assert b @ phi == pytest.approx(wanted, abs=1e-12)
        if order < 4:
            assert (b - off) @ phi == pytest.approx(wanted, abs=1e-12)
            for theta in (0.3, 0.8):
                w = np.array(t["dense"]) @ theta ** np.arange(1, 5) @ G
                assert w @ phi == pytest.approx(theta**order * wanted, abs=1e-12)
    np.testing.assert_allclose(b, beta[-1], atol=1e-12)  # stiffly accurate
    for z in (-1e4, -1e8):
        stable = 1 + z * b @ np.linalg.solve(np.eye(n) - z * beta, one)
        assert abs(stable) < 10 / abs(z)


# ---- orders, seen ----------------------------------------------------------------------------------------


def swirl(x: Array, t: float) -> Array:
    """x' = (cos t) x turned by 1 + |x|^2: |x| = |x0| exp(sin t), and the angle by quadrature."""
    turn = 1 + (x**2).sum(axis=1, keepdims=True)
    return np.asarray(np.cos(t) * x + turn * np.stack([-x[:, 1], x[:, 0]], axis=1))


def swirled(x0: Array, t: float) -> Array:
    nodes, weights = np.polynomial.legendre.leggauss(60)
    s = 0.5 * t * (nodes + 1)
    square = (x0**2).sum(axis=1)
    angle = t + square * 0.5 * t * (weights @ np.exp(2 * np.sin(s)))
    z = (x0[:, 0] + 1j * x0[:, 1]) * np.exp(np.sin(t) + 1j * angle)
    return np.stack([z.real, z.imag], axis=1)


X0 = np.array([[0.6, 0.1], [-0.3, 0.4], [0.05, -0.8]])


@pytest.mark.parametrize("name", list(TABLEAUX))
def test_fixed_steps_converge_with_their_order(name: str) -> None:
    exact = swirled(X0, 1.2)
    counts = np.array([80, 160, 320])
    errors = [
        np.abs(qk.flow(swirl, X0, (0, 1.2), name, n_steps=int(n)).x[-1] - exact).max()
        for n in counts
    ]
    slope = np.log(errors[0] / errors[-1]) / np.log(counts[-1] / counts[0])
    assert abs(slope - TABLEAUX[name]["order"]) < 0.35


@pytest.mark.parametrize("name", ["dopri5", "rodas4"])
@pytest.mark.parametrize("tol", [1e-5, 1e-7, 1e-9])
def test_adaptive_errors_follow_the_tolerance(name: str, tol: float) -> None:
    times = np.linspace(0, 1.2, 7)
    sol = qk.flow(swirl, X0, (0, 1.2), name, rtol=tol, atol=tol, t_eval=times)
    errors = [np.abs(x - swirled(X0, t)).max() for t, x in zip(sol.t, sol.x, strict=True)]
    assert sol.success and max(errors) < 50 * tol
    if name == "dopri5":
        assert max(errors) > tol / 1e4  # more would mean unnecessary steps


# ---- the Python integrator takes the same steps ------------------------------------------------------------


PROBLEMS: dict[str, tuple[Callable[[Array, float], Array], float, dict[str, Any]]] = {
    "finished": (swirl, 1.2, {}),
    "blew up": (lambda x, t: x * np.abs(x).max(), 4.0, {}),
    "blew up, not finite": (lambda x, t: x * (1.0 if t < 0.3 else np.nan), 1.0, {}),
    "step limit": (swirl, 1.2, {"max_steps": 9}),
    "step underflow": (swirl, 1.2, {"min_step": 0.05}),
    "finished, max_step": (swirl, 1.2, {"max_step": 0.02}),
}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_python_takes_the_steps_of_the_core(name: str) -> None:
    f, end, options = PROBLEMS[name]
    sol = qk.flow(f, X0, (0.0, end), rtol=1e-7, atol=1e-9, **options)
    state = Arrays(f, X0, 0.0, rtol=1e-7, atol=1e-9)
    run = Integrator(state, **{"max_steps": 100_000, **options})
    run.advance(end)
    assert (run.status or "finished") == sol.status == name.split(",")[0]
    if sol.status == "blew up":  # close to the end the last bits decide on steps
        assert abs(run.n_steps - sol.n_steps) <= 0.25 * sol.n_steps
        assert state.t == pytest.approx(sol.t[-1], rel=1e-7)
    else:
        assert (run.n_steps, run.n_rejected) == (sol.n_steps, sol.n_rejected)
        np.testing.assert_allclose([t for t, _ in state.path], sol.t, rtol=1e-7)
        np.testing.assert_allclose(state.x, sol.x[-1], rtol=1e-6)


def test_statuses_have_one_vocabulary() -> None:
    """pf_ode, particles and laws say the same of the same: too few steps, and values that end."""
    p0 = np.array([0.2, 0.8])
    few = {"max_steps": 3}
    particles = qk.flow(lambda x, t: np.sin(40 * t) * x, X0, (0, 5.0), **few)
    path = qk.simplex.pf_ode(p0, lambda p, t: np.sin(40 * t) * p, (0, 5.0), **few)
    state = Arrays(lambda x, t: np.sin(40 * t) * x, X0, 0.0)
    plain = Integrator(state, **few)
    assert not plain.advance(5.0)
    eye = np.eye(2)
    law = qk.gaussian.flow(
        "softmax", None, eye, (0, 5.0), Q=eye, K=-eye, V=eye, store="final", method="dopri5", **few
    )
    assert particles.status == path.status == law.status == plain.status == "step limit"
    assert "rodas4" in particles.message
    assert "rodas4" in str(law)
    gone = qk.flow(lambda x, t: x * np.nan, X0, (0, 1.0))
    nowhere = qk.simplex.pf_ode(p0, lambda p, t: p * np.nan, (0, 1.0))
    assert gone.status == nowhere.status == "blew up"


def test_controller() -> None:
    """Factors of EOT H.1, and of the proportional-integral rule."""
    plain = cpu.StepController(5, True)
    for error in (1e-30, 1e-6, 0.3, 1.0):
        assert plain.accepted(error) == pytest.approx(
            min(10, max(0.2, 0.9 * max(error, 1e-30) ** -0.2))
        )
    assert plain.rejected(32.0) == pytest.approx(0.45)
    assert plain.accepted(1e-8) == 10  # grows at once after a rejection,
    assert plain.rejected(np.nan) == pytest.approx(0.2)
    assert plain.accepted(1e-8) == 1  # but not after one that was not finite
    both = cpu.StepController(5, False)
    assert both.accepted(0.1) == pytest.approx(0.9 * 0.1 ** (-0.14))
    assert both.accepted(0.2) == pytest.approx(0.9 * 0.2 ** (-0.14) * 0.1**0.08)
    both.rejected(4.0)
    assert both.accepted(1e-8) == 1


# ---- stiff problems ------------------------------------------------------------------------------------


def slow_and_fast(x: Array, t: float) -> Array:
    """Prothero and Robinson: x = cos t, reached at the rate 1e5."""
    return np.asarray(-1e5 * (x - np.cos(t)) - np.sin(t))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_particles_that_are_stiff(dtype: Any) -> None:
    start = np.array([[1.0], [3.0]], dtype)
    times = np.linspace(0, 4, 9)
    sol = qk.flow(slow_and_fast, start, (0, 4), "rodas4", t_eval=times)
    assert sol.success and sol.x.dtype == dtype and sol.n_steps < 400
    tol = 3e-4 if dtype == np.float32 else 1e-5
    np.testing.assert_allclose(sol.x[1:, :, 0], np.cos(sol.t[1:, None]) * np.ones(2), atol=tol)
    few = qk.flow(slow_and_fast, start, (0, 4), max_steps=2000)
    assert few.status == "step limit" and "rodas4" in few.message


def test_attention_that_is_stiff() -> None:
    """Linear attention that contracts in one direction 1e5 times faster than in the other, against Radau."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 2))
    field = qk.AttentionField("linear", Q=np.eye(2), K=np.eye(2), V=-np.diag([1e5, 1.0]))
    sol = qk.flow(field, X, (0, 2.0), "rodas4", rtol=1e-8, atol=1e-10)
    explicit = qk.flow(field, X, (0, 2.0), rtol=1e-8, atol=1e-10, max_steps=20 * sol.n_steps)
    exact = solve_ivp(
        lambda t, y: field(y.reshape(6, 2)).ravel(),
        (0, 2.0),
        X.ravel(),
        method="Radau",
        rtol=1e-11,
        atol=1e-12,
    )
    assert sol.success and explicit.status == "step limit"
    np.testing.assert_allclose(sol.x[-1].ravel(), exact.y[:, -1], atol=2e-7)


def test_events_and_layers_of_implicit_steps() -> None:
    layers = qk.AttentionField(
        "softmax", Q=np.eye(1), K=np.eye(1), V=np.array([[[1.0]], [[-2.0]]]), times=[0.0, 0.3]
    )
    X = np.array([[0.4], [-0.2], [0.1]])
    a = qk.flow(layers, X, (0, 1.0), "rodas4", rtol=1e-9, atol=1e-11)
    b = qk.flow(layers, X, (0, 1.0), "dopri5", rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(a.x[-1], b.x[-1], atol=1e-8)
    assert 0.3 in a.t
    blow = qk.AttentionField("linear", Q=np.eye(1), K=np.eye(1), V=np.eye(1))
    end = qk.flow(blow, np.ones((1, 1)), (0.0, 2.0), "rodas4", blow_up=1e3, rtol=1e-8)
    assert end.status == "blew up" and abs(end.t[-1] - 0.5) < 1e-5
    gone = qk.flow(blow, np.ones((1, 1)), (0.0, 2.0), "rodas4")
    assert gone.status == "blew up" and abs(gone.t[-1] - 0.5) < 1e-4


def test_implicit_steps_refuse() -> None:
    with pytest.raises(ValueError, match="at most 4000"):
        qk.flow(swirl, np.zeros((2001, 2)), (0, 1.0), "rodas4")
    eye = np.eye(2)
    with pytest.raises(ValueError, match="form: wanted"):
        qk.gaussian.flow(
            "softmax",
            None,
            eye,
            (0, 1),
            Q=eye,
            K=eye,
            V=eye,
            store="final",
            method="rodas4",
            form="pushforward",
        )


# The start of figure 2d of the paper's experiments that takes Dormand-Prince the most steps.
Q2D = np.array([[0.47829641, 1.07557955], [-0.36195116, 0.81331043]])
K2D = np.array([[-0.59071681, -0.76876525], [-0.33500917, 0.09299944]])
V2D = np.array([[1.83175301, -0.37688784], [0.34811234, -0.11628156]])
COV2D = np.array([[3.0, 3.5], [3.5, 26.0]]) / 29


def test_a_law_that_takes_explicit_steps_by_the_hundred_thousand() -> None:
    options: dict[str, Any] = {"Q": Q2D, "K": K2D, "V": V2D, "store": "final"}
    sol = qk.gaussian.flow("softmax", None, COV2D, (0, 1000.0), method="rodas4", **options)
    assert sol.status == "converged" and sol.rank == 1 and sol.n_steps < 2000
    few = qk.gaussian.flow(
        "softmax", None, COV2D, (0, 1000.0), method="dopri5", max_steps=20_000, **options
    )
    assert few.status == "step limit"
    A = K2D.T @ Q2D

    def rate(t: float, y: Array) -> Array:
        S = y.reshape(2, 2)
        W = V2D @ S @ A @ S
        return np.asarray((W + W.T).ravel())

    exact = solve_ivp(rate, (0, 1000.0), COV2D.ravel(), method="Radau", rtol=1e-11, atol=1e-13).y[
        :, -1
    ]
    np.testing.assert_allclose(sol.cov[-1].ravel(), exact, atol=1e-6)
    long = qk.gaussian.flow(
        "softmax", None, COV2D, (0, 1000.0), method="dopri5", max_steps=10**6, **options
    )
    assert long.n_steps > 100_000 and (long.status, long.rank) == (sol.status, sol.rank)
    np.testing.assert_allclose(sol.cov[-1], long.cov[-1], atol=1e-6)
    single = qk.gaussian.flow(
        "softmax",
        None,
        COV2D.astype(np.float32),
        (0, 1000.0),
        method="rodas4",
        store="final",
        Q=Q2D.astype(np.float32),
        K=K2D.astype(np.float32),
        V=V2D.astype(np.float32),
    )
    assert single.status == "converged" and single.cov.dtype == np.float32
    np.testing.assert_allclose(single.cov[-1], exact.reshape(2, 2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["euler", "heun", "rk4", "dopri5"])
def test_equal_steps_of_laws_are_those_of_the_python_integrator(method: str) -> None:
    """Whatever the method, n_steps makes that many steps of equal length, and none of them is judged."""
    rng = np.random.default_rng(4)
    cov, V, Q = np.diag([2.0, 1.0, 0.5]), -np.eye(3), rng.normal(size=(3, 3))
    K = Q + 0.2 * rng.normal(size=(3, 3))

    def rate(S: Array, t: float) -> Array:
        W = V @ S @ (K.T @ Q) @ S
        return W + W.T

    state = Arrays(rate, cov, 0.0, method=method)
    steps = Integrator(state, max_steps=9)
    assert all(steps.fixed_step(0.1 * k) for k in range(1, 8))
    sol = qk.gaussian.flow(
        "softmax", None, cov, (0, 0.7), Q=Q, K=K, V=V, n_steps=7, method=method, form="covariance"
    )
    assert (sol.n_steps, sol.n_rejected) == (7, 0)
    np.testing.assert_allclose(sol.cov[-1], state.x, rtol=1e-11, atol=1e-12)


def test_stiff_laws_against_closed_forms() -> None:
    """Commuting parameters (proposition 4.4) with rates 1e6 apart, and the line (4.3, 4.13, 4.17)."""
    S0, A = np.diag([1.0, 2.0, 0.5]), -np.diag([1e6, 1.0, 0.0])
    times = np.linspace(0, 50, 6)
    sol = qk.gaussian.flow(
        "softmax", None, S0, (0, 50.0), Q=A, K=np.eye(3), V=np.eye(3), t_eval=times, method="rodas4"
    )
    exact = qk.gaussian.commuting(S0, A, np.eye(3))
    assert sol.n_steps < 2000 and sol.status == "converged" and sol.rank == 1
    for t, S in zip(times, sol.cov, strict=True):
        np.testing.assert_allclose(S, exact(t), atol=2e-7)
    one = np.ones((1, 1))
    g = qk.gaussian
    for kind, wanted in (
        ("softmax", g.softmax_line(2.0, -3e4, 1.0, 4.0)),
        ("l2", g.l2_line(2.0, -3e4, 1.0, 1.0, 4.0)),
        ("sinkhorn", g.sinkhorn_line(2.0, -3e4, 1.0, 4.0)),
    ):
        line = qk.gaussian.flow(
            kind,
            None,
            2 * one,
            (0, 4.0),
            Q=-3e4 * one,
            K=one,
            V=one,
            store="final",
            method="rodas4",
        )
        np.testing.assert_allclose(line.cov[-1, 0, 0], wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn", "linear", "linear_epsilon"])
def test_stiff_and_explicit_laws_agree(kind: str) -> None:
    """Batches of every kind, with means and two heads where they are allowed."""
    rng = np.random.default_rng(5)
    d, n = 3, 7
    X = rng.normal(size=(n, d, d))
    options: dict[str, Any] = {
        "Q": 0.4 * rng.normal(size=(2 * d, d)),
        "K": 0.4 * rng.normal(size=(2 * d, d)),
        "V": -0.5 * rng.normal(size=(2, d, d)),
        "heads": 2,
        "t_eval": [0, 0.5, 1],
    }
    mean, cov = rng.normal(size=(n, d)), X @ X.swapaxes(1, 2) / d
    a = qk.gaussian.flow(kind, mean, cov, (0, 1.0), method="rodas4", **options)
    b = qk.gaussian.flow(kind, mean, cov, (0, 1.0), method="dopri5", rtol=1e-10, **options)
    np.testing.assert_array_equal(a.status, b.status)
    alive = a.status != "blew up"
    assert alive.sum() >= 3
    np.testing.assert_allclose(a.cov[:, alive], b.cov[:, alive], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(a.mean[:, alive], b.mean[:, alive], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(
        a.cov,
        qk.gaussian.flow(kind, mean, cov, (0, 1.0), method="rodas4", n_threads=1, **options).cov,
    )


# ---- laws in many dimensions, by whole matrices --------------------------------------------------------


def many(d: int, n: int, heads: int, dtype: Any, rank: int) -> dict[str, Any]:
    rng = np.random.default_rng(d)
    X = rng.normal(size=(n, d, rank))
    given = {
        "mean": rng.normal(size=(n, d)),
        "cov": X @ X.swapaxes(1, 2) / d,
        "Q": rng.normal(size=(n, d, d)) / np.sqrt(d),
        "K": rng.normal(size=(n, d, d)) / np.sqrt(d),
        "V": rng.normal(size=(heads, d, d)) / np.sqrt(d)
        if heads > 1
        else rng.normal(size=(d, d)) / np.sqrt(d),
    }
    return {name: x.astype(dtype) for name, x in given.items()} | {"heads": heads}


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn", "linear", "linear_epsilon"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("d", "rank", "heads", "epsilon"),
    [(32, 32, 1, 0.8), (32, 7, 2, 0.8), (33, 40, 1, 1e-7), (97, 200, 1, 0.8), (330, 700, 1, 0.8)],
)
def test_laws_in_many_dimensions(
    kind: str, dtype: Any, d: int, rank: int, heads: int, epsilon: float
) -> None:
    """Two Euler steps of three laws, each under its own field, against NumPy; singular covariances too.

    Sizes beside those of strips, panels and depths of the products and the solve.
    """
    if epsilon < 1e-3 and (kind != "sinkhorn" or dtype == np.float32):
        pytest.skip("small epsilon is for Sinkhorn, whose singular values then span many digits")
    p = many(d, 3, heads, dtype, rank)
    mean, cov = p.pop("mean"), p.pop("cov")
    p["epsilon"] = epsilon
    h = 1e-6 if rank < d else 1e-3 * min(1.0, epsilon)  # longer steps leave the cone
    sol = qk.gaussian.flow(kind, mean, cov, (0, 2 * h), n_steps=2, method="euler", **p)
    m, S = mean.astype(np.float64), cov.astype(np.float64)
    wide = {name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in p.items()}
    parameters = check_parameters(kind, d=d, dtype=np.dtype("float64"), **wide)
    for _ in range(2):
        v = field_of(parameters, m, S)
        m, S = m + h * v.mean_rate, S + h * v.cov_rate
    tol = 3e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(sol.cov[-1], S, rtol=tol, atol=tol)
    np.testing.assert_allclose(sol.mean[-1], m, rtol=tol, atol=tol)
    np.testing.assert_array_equal(sol.cov[-1], sol.cov[-1].swapaxes(1, 2))
    alone = qk.gaussian.flow(
        kind,
        mean[1],
        cov[1],
        (0, 2 * h),
        n_steps=2,
        method="euler",
        **(p | {"Q": p["Q"][1], "K": p["K"][1]}),
    )
    np.testing.assert_array_equal(alone.cov[-1], sol.cov[-1, 1])


@pytest.mark.parametrize("method", ["rk4", "dopri5", "rodas4"])
def test_methods_in_many_dimensions(method: str) -> None:
    """Pushed forward and not: the same law of a contracting field, also where packs take over below 32."""
    d, small = 32, 31
    rng = np.random.default_rng(3)
    X = rng.normal(size=(small, small)) / np.sqrt(small)
    Q, V = np.zeros((d, d)), np.eye(d)
    Q[:small, :small] = 0.5 * np.eye(small) + 0.2 * X
    cov = np.zeros((d, d))
    cov[:small, :small] = X @ X.T
    options: dict[str, Any] = {"method": method}
    options |= {"n_steps": 20} if method == "rk4" else {"store": "final"}
    if method != "rodas4":
        options["form"] = "pushforward"
    a = qk.gaussian.flow("softmax", None, cov, (0, 1.0), Q=Q, K=-Q, V=V, **options)
    cut = slice(0, small), slice(0, small)
    b = qk.gaussian.flow(
        "softmax", None, cov[cut], (0, 1.0), Q=Q[cut], K=-Q[cut], V=V[cut], **options
    )
    np.testing.assert_allclose(a.cov[-1][cut], b.cov[-1], atol=1e-8)
    assert np.linalg.eigvalsh(a.cov[-1])[0] > -1e-9 and a.status == b.status


def test_a_blow_up_in_many_dimensions_ends_with_its_time() -> None:
    eye = np.eye(40)
    for options in ({"n_steps": 2000, "method": "euler"}, {"method": "dopri5"}):
        sol = qk.gaussian.flow("softmax", None, eye, (0, 1.0), Q=eye, K=eye, V=eye, **options)
        assert sol.status == "blew up" and sol.blow_up_time == pytest.approx(0.5)
        assert np.isfinite(sol.cov).all() and 0.45 < sol.t_end < 0.56
