"""Reports of bridges on their solves: errors relative to the mass, warnings, penalties, plateaus (DAC-7)."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkcore as qk

DTYPES = ["float32", "float64"]
dense = qk.scores.dense


def clouds(n: int, m: int, d: int = 2, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    return ((X[:, None] - Y) ** 2).sum(-1), np.full(n, 1 / n), np.full(m, 1 / m)


def bumps() -> tuple[Any, Any, Any]:
    """Two bumps on a line at a very low temperature: whole blocks of potentials move by small steps."""
    x, y, s = np.linspace(-1, 2, 60), np.linspace(-1, 2, 51), 9 / 51
    weights = [np.exp(-(t**2) / 2 / s**2) for t in (x, y - 0.4)]
    a, b = (w / w.sum() for w in weights)
    return dense(-((x[:, None] - y) ** 2) / 1e-4), a, b


# ---- the size of an error ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mass", [2.0**-40, 1.0, 2.0**20, 2.0**40])
def test_errors_are_shares_of_the_mass(mass: float, dtype: str) -> None:
    """The same problem in other units is solved in the same way and has the same errors."""
    C, mu, nu = clouds(30, 20)
    s = dense((-3 * C).astype(dtype))
    one = qk.bridge(s, mu.astype(dtype), nu.astype(dtype))
    other = qk.bridge(s, (mass * mu).astype(dtype), (mass * nu).astype(dtype))
    assert one.converged and other.converged
    assert abs(other.n_iter - one.n_iter) <= 1
    plan = np.exp(other.f[:, None].astype(np.longdouble) + s.to_numpy() + other.g)
    off = np.abs(plan.sum(1) - other.mu).sum() / other.mu.astype(np.longdouble).sum()
    assert off <= other.tol
    np.testing.assert_allclose(other.plan() / mass, one.plan(), rtol=1e-3, atol=1e-9)


def test_scores_of_1e8_are_checked_in_extended_precision() -> None:
    """Double precision cannot tell whether the error is below tol there; the verdict is right anyway."""
    rng = np.random.default_rng(5)
    for scale in (1e6, 1e8):
        Z = scale * rng.normal(size=(8, 8))
        mu, nu = np.full(8, 1 / 8), np.full(8, 1 / 8)
        b = qk.bridge(dense(Z), mu, nu, tol=1e-10, on_fail="ignore")
        f, g = b.f.astype(np.longdouble), b.g.astype(np.longdouble)
        plan = np.exp(Z.astype(np.longdouble) + f[:, None] + g)
        true = max(np.abs(plan.sum(1) - mu).sum(), np.abs(plan.sum(0) - nu).sum())
        assert b.converged == (true <= 1e-10) or not b.converged


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_sided_transport_is_checked(dtype: str) -> None:
    """Rounding the row potentials of large scores breaks the tolerance, and that is said."""
    rng = np.random.default_rng(1)
    mu = np.full(20, 1 / 20, dtype)
    for scale in (1.0, 1e3, 1e5, 1e12 if dtype == "float64" else 1e6):
        Z = (scale * rng.normal(size=(20, 30))).astype(dtype)
        b = qk.semi_relaxed(dense(Z), mu)
        rows = np.exp(b.f[:, None].astype(np.longdouble) + Z + b.g).sum(1)
        true = float(np.abs(rows - mu).sum() / mu.astype(np.longdouble).sum())
        assert b.converged == (true <= b.tol)
        assert b.error == pytest.approx(true, rel=1e-3, abs=0.1 * b.tol)
        assert b.status == ("converged" if b.converged else "stagnated")
    with pytest.warns(qk.ConvergenceWarning, match="stagnated"):
        b.plan()


def test_one_sided_transport_of_batches() -> None:
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(3, 5, 4))
    Z[1, 2] = -np.inf
    mu = np.full(5, 1 / 5)
    b = qk.semi_relaxed(dense(Z), mu)
    assert list(b.status) == ["converged", "infeasible", "converged"]
    np.testing.assert_allclose(b.error, [0, 0.2, 0], atol=1e-12)
    for k in (0, 2):
        np.testing.assert_array_equal(b[k].f, qk.semi_relaxed(dense(Z[k]), mu).f)


def test_float32_goes_on_in_double_where_its_scores_are_too_coarse() -> None:
    """Scores of about 1000: computed in single precision they are off by more than the tolerance."""
    rng = np.random.default_rng(0)
    X, Y = rng.random((300, 3)).astype(np.float32), rng.random((300, 3)).astype(np.float32)
    u = np.full(300, 1 / 300, np.float32)
    for s in (
        qk.scores.distance(X, Y, beta=2000.0),
        dense(qk.scores.distance(X, Y, beta=2000.0).to_numpy()),
    ):
        b = qk.bridge(s, u, u, tol=1e-4)
        assert b.converged and b.f.dtype == np.float32


# ---- plateaus -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", ["alternating", "anderson", "newton", "annealed", "relaxed", "auto"]
)
def test_a_plateau_is_not_stagnation(solver: str) -> None:
    """The error stays for thousands of visits while the potentials move: every solver arrives."""
    s, a, b = bumps()
    found = qk.bridge(s, a, b, tol=1e-8, max_iter=200_000, solver=solver)
    assert found.converged
    plan = np.exp(s.to_numpy() + found.f[:, None] + found.g)
    assert np.abs(plan.sum(1) - a).sum() < 1e-8


def test_auto_anneals_where_it_pays() -> None:
    """From far away, a few hundred visits instead of ten thousand."""
    s, a, b = bumps()
    found = qk.bridge(s, a, b, tol=1e-4)
    assert found.converged and found.n_visits < 2000


def test_what_runs_out_of_visits_says_so() -> None:
    s, a, b = bumps()
    for solver, limit in (("alternating", 700), ("auto", 50)):
        found = qk.bridge(s, a, b, tol=1e-8, max_iter=limit, solver=solver)
        assert found.status == "iteration limit" and found.n_iter == len(found.errors) == limit
        found = qk.bridge(s, a, b, tol=1e-8, max_visits=limit, solver=solver)
        assert found.status == "visit limit" and found.n_visits <= limit
    many = dense(np.stack([s.to_numpy()] * 2))
    assert list(qk.bridge(many, a, b, tol=1e-8, max_iter=50).status) == ["iteration limit"] * 2


def test_float32_potentials_that_overflow_are_tried_otherwise() -> None:
    """Scores down to -9e4 in float32: some solvers leave the range on their way, and others are tried."""
    rng = np.random.default_rng(0)
    x, y = np.linspace(-1, 2, 60), np.linspace(-1, 2, 51)
    s = dense((-((x[:, None] - y) ** 2) / 1e-4).astype(np.float32))
    for _ in range(40):
        a, b = (
            np.exp(-((t - rng.uniform(-1, 2)) ** 2) / 2 / rng.uniform(0.05, 0.4) ** 2) + 1e-30
            for t in (x, y)
        )
        a, b = (a / a.sum()).astype(np.float32), (b / b.sum()).astype(np.float32)
        found = qk.bridge(s, a, b, tol=1e-3, on_fail="ignore")
        assert found.status in ("converged", "stagnated", "iteration limit")
        assert math.isfinite(found.error)


# ---- penalties ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_plans_of_little_mass_are_solved(dtype: str) -> None:
    """The residual is a share of the plan's own mass: 1.7e-10 here, far below any absolute tolerance."""
    rng = np.random.default_rng(0)
    n = 128
    x, y = rng.normal(size=(2, n, 32))
    C = ((x[:, None] - y) ** 2).sum(-1)
    a = np.full(n, 1 / n)
    Z = -C / 0.25 + 2 * np.log(1 / n)
    b = qk.bridge(dense(Z.astype(dtype)), a.astype(dtype), a.astype(dtype), penalty=1.0)
    f = g = np.zeros(n)
    for _ in range(60):
        f = 0.5 * (np.log(a) - np.logaddexp.reduce(Z + g, axis=1))
        g = 0.5 * (np.log(a) - np.logaddexp.reduce(Z.T + f, axis=1))
    want = np.exp(f[:, None] + Z + g)
    assert b.converged
    np.testing.assert_allclose(
        b.plan().sum(), want.sum(), rtol=1e-4 if dtype == "float32" else 1e-8
    )


@pytest.mark.parametrize("scale", [1e3, 1e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plans_whose_mass_underflows(dtype: str, scale: float) -> None:
    """exp(-3333) is no double, but its logarithm is: the potentials are right, and said to be."""
    rng = np.random.default_rng(3)
    Z = (-scale * (1 + rng.random((6, 5)))).astype(dtype)
    mu, nu = np.full(6, 1 / 6, dtype), np.full(5, 1 / 5, dtype)
    b = qk.bridge(dense(Z), mu, nu, penalty=1.0, tol=1e-3)
    assert b.converged
    f, g = b.f.astype(np.longdouble), b.g.astype(np.longdouble)
    rows = f + np.logaddexp.reduce(Z + g, axis=1)  # log of the row sums
    np.testing.assert_allclose(rows, np.log(mu) - f, rtol=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 3.0, 1e3, (1.0, 20.0), (math.inf, 2.0), (2.0, math.inf)])
def test_primal_and_dual_of_penalised_bridges(penalty: Any) -> None:
    """They meet at the solution; the primal is the objective itself, the dual is below it elsewhere."""
    C, mu, nu = clouds(12, 9)
    nu = 1.7 * nu if not isinstance(penalty, tuple) or math.inf not in penalty else nu
    Z = -C / 0.4
    b = qk.bridge(dense(Z), mu, nu, penalty=penalty)
    assert b.converged
    assert b.gap == pytest.approx(0, abs=1e-7 * (1 + abs(b.primal)))
    rho = penalty if isinstance(penalty, tuple) else (penalty, penalty)

    def objective(P: Any) -> float:
        value = float((P * (np.log(P) - Z - 1)).sum())
        for sums, w, weight in ((P.sum(1), mu, rho[0]), (P.sum(0), nu, rho[1])):
            if not math.isinf(weight):
                value += weight * float((sums * np.log(sums / w) - sums + w).sum())
        return value

    P = b.plan()
    assert b.primal == pytest.approx(objective(P), rel=1e-9, abs=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(5):
        move = rng.normal(size=P.shape) * P
        if math.isinf(rho[0]):
            move -= P * (move.sum(1) / P.sum(1))[:, None]
        if math.isinf(rho[1]):
            move -= P * (move.sum(0) / P.sum(0))
        assert objective(P + 0.01 * move) > b.dual - 1e-9


def test_large_penalties_do_not_need_many_iterations() -> None:
    """The total mass is balanced in closed form at every step; left to itself it takes about rho steps."""
    C, mu, nu = clouds(20, 20)
    for rho in (1e2, 1e4):
        b = qk.bridge(dense(-C), mu, 2 * nu, penalty=rho)
        assert b.converged and b.n_iter < 200
        plan = b.plan()
        # for an infinite penalty the mass is sqrt(mass of mu times mass of nu)
        assert plan.sum() == pytest.approx(math.sqrt(2), rel=5 / rho)


def test_penalties_bear_rows_and_columns_that_see_nothing() -> None:
    """Such a row stays empty at a finite price: the problem has a solution, and it is found."""
    half = np.full(2, 0.5)
    Z = np.zeros((2, 2))
    Z[0] = -np.inf
    for z, empty in ((Z, "f"), (Z.T, "g")):
        b = qk.bridge(dense(z), half, half, penalty=1.0)
        assert b.converged
        assert np.isneginf(getattr(b, empty)[0])
        # one row of mass e^(2t), t = log(1/2)/...; the columns share its mass
        assert b.gap == pytest.approx(0, abs=1e-9)
    nothing = qk.bridge(dense(np.full((2, 2), -np.inf)), half, half, penalty=2.0)
    assert nothing.converged and nothing.plan().sum() == 0
    assert nothing.primal == pytest.approx(2.0 * 2)  # both marginals are missed altogether
    strict = qk.bridge(dense(Z), half, half, penalty=(math.inf, 1.0), on_fail="ignore")
    assert strict.status == "infeasible"


def test_printed_figures_name_what_they_are() -> None:
    C, mu, nu = clouds(6, 5)
    assert "marginal error" in str(qk.bridge(dense(-C), mu, nu))
    assert "optimality residual" in str(qk.bridge(dense(-C), mu, nu, penalty=1.0))


# ---- what a failed solve leads to ----------------------------------------------------------------


def test_using_what_did_not_converge_warns_once() -> None:
    C, mu, nu = clouds(20, 20)
    b = qk.bridge(dense(-20 * C), mu, nu, max_iter=3)
    assert not b.converged and "iteration limit" in str(b)  # reading a property costs nothing
    with pytest.warns(qk.ConvergenceWarning, match=r"iteration limit after 3 iterations") as seen:
        b.project(np.eye(20))
    assert seen[0].filename == __file__
    b.plan(), b.cost, b.dual  # a second warning would be an error here


USES: dict[str, Callable[[Any], Any]] = {
    "plan": lambda b: b.plan(),
    "project": lambda b: b.project(np.zeros(6)),
    **{
        name: operator.attrgetter(name)
        for name in ("forward", "backward", "cost", "entropy", "primal", "dual", "gap")
    },
}


@pytest.mark.parametrize("use", USES)
def test_every_use_warns(use: str) -> None:
    C, mu, nu = clouds(6, 6)
    for s in (dense(-20 * C), dense(np.stack([-20 * C, -C]))):
        b = qk.bridge(s, mu, nu, max_iter=2)
        with pytest.warns(qk.ConvergenceWarning, match="converged"):
            USES[use](b)


def test_on_fail() -> None:
    C, mu, nu = clouds(6, 6)
    s = dense(-20 * C)
    with pytest.raises(qk.ConvergenceError, match=r"bridge: not converged \(iteration limit"):
        qk.bridge(s, mu, nu, max_iter=2, on_fail="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.bridge(s, mu, nu, max_iter=2, on_fail="ignore").plan()
        qk.bridge(dense(-C), mu, nu, on_fail="raise").plan()
    with pytest.raises(ValueError, match=r'on_fail: wanted "warn" .* got "?\'?stop'):
        qk.bridge(s, mu, nu, on_fail="stop")


def unfinished_chain(**options: Any) -> Any:
    C, mu, _ = clouds(6, 6)
    return qk.bridge_chain([dense(-20 * C), dense(-20 * C.T)], mu, mu, max_iter=1, **options)


def unfinished_ipf(**options: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(2, 6, 2))
    u = np.full(6, 1 / 6)
    return qk.adaptive_ipf(*x, u, u, tol=1e-12, max_iter=1, **options)


def unfinished_factors(**options: Any) -> Any:
    rng = np.random.default_rng(0)
    K = qk.LowRank(rng.random((6, 2)) ** 8, rng.random((2, 6)) ** 8)
    return qk.bridge(K, np.full(6, 1 / 6), np.full(6, 1 / 6), max_iter=1, **options)


def used(result: Any, name: str) -> None:
    value = getattr(result, name)
    if callable(value):
        value()


@pytest.mark.parametrize(
    ("make", "uses"),
    [
        (unfinished_chain, ("kernels", "marginals")),
        (unfinished_ipf, ("phi", "psi", "plan")),
        (unfinished_factors, ("plan", "forward", "backward", "cost")),
    ],
)
def test_chains_and_factors_warn_alike(make: Callable[..., Any], uses: tuple[str, ...]) -> None:
    for use in uses:
        b = make()
        assert not b.converged
        with pytest.warns(qk.ConvergenceWarning, match="iteration limit after 1 iterations"):
            used(b, use)
        used(make(on_fail="ignore"), use)
    with pytest.raises(qk.ConvergenceError, match="not converged"):
        make(on_fail="raise")


def test_barycentric_maps_warn_when_they_are_made() -> None:
    """Their values are computed at once."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(qk.ConvergenceWarning, match="barycentric: not converged") as seen:
        B = qk.isb.barycentric(X, 0.1, max_iter=1)
    assert seen[0].filename == __file__
    B(X), B.score(), B.operator  # a second warning would be an error here
    assert not qk.isb.barycentric(X, 0.1, max_iter=1, on_fail="ignore").converged
    with pytest.raises(qk.ConvergenceError, match="barycentric: not converged"):
        qk.isb.barycentric(X, 0.1, max_iter=1, on_fail="raise")


# ---- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_batch_says_of_each_what_it_says_alone(ragged: bool, dtype: str) -> None:
    """Easy, hard, masked, infeasible and badly supported problems, side by side."""
    rng = np.random.default_rng(7)
    n = 5
    Z = np.stack([scale * rng.normal(size=(n, n)) for scale in (1, 30, 300, 3000, 1, 1, 1)])
    Z[4][np.triu_indices(n, 1)] = -np.inf
    Z[5, 0] = -np.inf
    Z[6, :3, 1:] = -np.inf
    Z = Z.astype(dtype)
    u = np.full(n, 1 / n, dtype)
    alone = []
    for z in Z:
        try:
            alone.append(qk.bridge(dense(z), u, u).status)
        except OverflowError:
            alone.append("overflow")
    if ragged:
        whole = np.full((7 * n, 7 * n), 0, dtype)
        for k in range(7):
            whole[k * n : (k + 1) * n, k * n : (k + 1) * n] = Z[k]
        b = qk.bridge(dense(whole).ragged(np.arange(8) * n), np.tile(u, 7), np.tile(u, 7))
    else:
        b = qk.bridge(dense(Z), u, u)
    assert list(b.status) == alone
    assert {"converged", "no total support", "infeasible"} <= set(alone)
