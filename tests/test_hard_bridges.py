"""Bridges that plain iteration cannot solve: small temperatures, assignments, penalties, many points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.scores import dense

Long = np.longdouble
DTYPES = ("float32", "float64")


def true_error(Z: Any, mu: Any, nu: Any, b: Any, penalty: float = math.inf) -> float:
    """The residual of the conditions in extended precision, as a share of the plan's mass."""
    f, g = b.f.astype(Long), b.g.astype(Long)
    plan = np.exp(f[:, None] + Z.astype(Long) + g)
    worst = 0.0
    for sums, w, potential in ((plan.sum(1), mu, f), (plan.sum(0), nu, g)):
        wanted = w.astype(Long)
        if not math.isinf(penalty):
            wanted = wanted * np.exp(-potential / Long(penalty))
        worst = max(worst, float(np.abs(sums - wanted).sum() / plan.sum()))
    return worst


def bumps(n: int, m: int, dtype: str = "float64") -> tuple[Any, Any, Any]:
    """Two Gaussian bumps on grids, cost over 1e-4; weights down to 1e-30."""
    x, y, width = np.linspace(-1, 2, n), np.linspace(-1, 2, m), 9 / 51
    mu, nu = (np.exp(-(t**2) / 2 / width**2) for t in (x, y - 0.4))
    Z = (-((x[:, None] - y) ** 2) / 1e-4).astype(dtype)
    return Z, (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


def squares(
    n: int, m: int, epsilon: float, dtype: str = "float64", uniform: bool = True
) -> tuple[Any, Any, Any]:
    """Points of the unit square; epsilon as a share of the mean cost."""
    rng = np.random.default_rng(0)
    X, Y = rng.random((n, 2)), rng.random((m, 2))
    C = ((X[:, None] - Y) ** 2).sum(-1)
    mu, nu = (np.ones(k) if uniform else 0.1 + rng.random(k) for k in (n, m))
    scores = (-C / (epsilon * C.mean())).astype(dtype)
    return scores, (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


@pytest.mark.parametrize("tol", [1e-4, 1e-8])
@pytest.mark.parametrize("shape", [(60, 51), (200, 170)])
def test_bumps_on_grids_take_hundreds_of_visits(shape: tuple[int, int], tol: float) -> None:
    """Ten and fifty thousand were spent once; never more than twice what the best single method needs."""
    Z, mu, nu = bumps(*shape)
    s = dense(Z)
    b = qk.bridge(s, mu, nu, tol=tol)
    assert b.converged and true_error(Z, mu, nu, b) <= tol
    single = [
        qk.bridge(s, mu, nu, tol=tol, solver=solver, max_visits=2 * b.n_visits, on_fail="ignore")
        for solver in ("annealed", "newton", "anderson", "relaxed")
    ]
    best = min(other.n_visits for other in single if other.converged)
    assert b.n_visits <= 2 * best and b.n_visits < 700


def test_random_bumps_in_float32_do_not_overflow() -> None:
    """Scores down to -9e4. Potentials of that size, rounded to float32, hold 1e-3."""
    x, y = np.linspace(-1, 2, 60), np.linspace(-1, 2, 51)
    Z = (-((x[:, None] - y) ** 2) / 1e-4).astype(np.float32)
    arrived, visits = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        weights = []
        for t in (x, y):
            centre, width = rng.uniform(-0.5, 1.5), rng.uniform(0.05, 0.4)
            w = np.exp(-((t - centre) ** 2) / 2 / width**2)
            weights.append((w / w.sum()).astype(np.float32))
        b = qk.bridge(dense(Z), *weights, tol=1e-3, on_fail="ignore")
        assert math.isfinite(b.error) and b.status in ("converged", "stagnated")
        if b.converged:
            assert true_error(Z, *weights, b) <= 1e-3
        arrived += b.converged
        visits.append(b.n_visits)
    assert arrived == 60 and np.median(visits) < 400


def neighbours(x: Any) -> list[Any]:
    """How far the float32 numbers below and above are, in extended precision."""
    near = x.astype(np.float32)
    below = np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float32)
    return [below - x, np.nextafter(below, np.float32(np.inf)).astype(Long) - x]


def best_rounding(Z: Any, u: Any, rng: np.random.Generator) -> float:
    """The least error of an assignment's exact potentials, each rounded as it suits, in many gauges."""
    n = len(u)
    b = qk.bridge(dense(Z.astype(np.float64)), np.full(n, 1 / n), np.full(n, 1 / n), tol=1e-9)
    f, g, Z = b.f.astype(Long), b.g.astype(Long), Z.astype(Long)
    for _ in range(3):
        f = np.log(u.astype(Long)) - np.logaddexp.reduce(Z + g, axis=1)
        g = np.log(u.astype(Long)) - np.logaddexp.reduce(Z + f[:, None], axis=0)
    plan = np.exp(f[:, None] + Z + g)
    partner = plan.argmax(axis=1)
    assert b.converged and plan.max(axis=1).sum() > 1 - 1e-6
    errors = []
    for gauge in rng.uniform(-1.5e5, 1.5e5, 500):
        pairs = [x + y[partner] for x in neighbours(f + gauge) for y in neighbours(g - gauge)]
        errors.append(float(np.abs(np.expm1(pairs)).min(axis=0).mean()))
    return min(errors)


@pytest.mark.parametrize("seed", range(20))
def test_float32_scores_up_to_9e4(seed: int) -> None:
    """All were stagnated at 2e-3; now less is left than any rounding of the exact potentials leaves."""
    n = 24
    Z = np.random.default_rng(seed).uniform(-9e4, 9e4, (n, n)).astype(np.float32)
    u = np.full(n, 1 / n, np.float32)
    b = qk.bridge(dense(Z), u, u, tol=1e-3)
    assert b.converged and true_error(Z, u, u, b) <= 1e-3
    least = qk.bridge(dense(Z), u, u, on_fail="ignore")
    assert least.status == "stagnated" and least.tol == 1e-5
    assert true_error(Z, u, u, least) < best_rounding(Z, u, np.random.default_rng(0))


@pytest.mark.parametrize("seed", [169, 371])
def test_plateaus_of_float32_scores_are_crossed_in_double(seed: int) -> None:
    """Two rows whose columns the other may have too, for a score of a few units less in thousands."""
    Z = np.random.default_rng(seed).uniform(-9e4, 9e4, (24, 24)).astype(np.float32)
    u = np.full(24, 1 / 24, np.float32)
    b = qk.bridge(dense(Z), u, u, tol=1e-3)
    assert b.converged and true_error(Z, u, u, b) <= 1e-3


def test_what_stagnates_names_the_dtype() -> None:
    Z = np.random.default_rng(0).uniform(-9e4, 9e4, (24, 24)).astype(np.float32)
    u = np.full(24, 1 / 24, np.float32)
    with pytest.raises(qk.ConvergenceError, match="stagnated at the precision of float32"):
        qk.bridge(dense(Z), u, u, on_fail="raise")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tol", [1e-9, 1e-12])
def test_logits_up_to_700(seed: int, tol: float) -> None:
    """An assignment but for 1e-30: no method came below 1e-9 in ten thousand visits."""
    n = 24
    Z = np.random.default_rng(seed).uniform(-700, 700, (n, n))
    u = np.full(n, 1 / n)
    b = qk.bridge(dense(Z), u, u, tol=tol)
    assert b.converged and b.n_visits < 300
    assert true_error(Z, u, u, b) <= tol
    assert b.worst < 100 * tol


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("epsilon", [1e-3, 1e-4, 1e-5])
def test_near_assignments(epsilon: float, uniform: bool) -> None:
    Z, mu, nu = squares(200, 200, epsilon, uniform=uniform)
    b = qk.bridge(dense(Z), mu, nu)
    assert b.converged and b.n_visits < 1000
    assert true_error(Z, mu, nu, b) <= 1e-9
    if uniform and epsilon <= 1e-4:  # the plan is the best assignment's, as SciPy finds it
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(-Z)
        assert -(b.plan() * Z).sum() <= -Z[rows, columns].mean() + math.log(200) + 1e-6


def test_near_assignments_in_float32_go_on_in_double() -> None:
    Z, mu, nu = squares(120, 120, 1e-3, "float32")
    b = qk.bridge(dense(Z), mu, nu, tol=1e-3)
    assert b.converged and b.f.dtype == np.float32 and b.n_visits < 1000
    assert true_error(Z, mu, nu, b) <= 1e-3


@pytest.mark.parametrize("penalty", [10.0, 2000.0, (math.inf, 10.0), (30.0, math.inf)])
@pytest.mark.parametrize(
    "solver", ["auto", "relaxed", "anderson", "newton", "accelerated", "annealed"]
)
def test_every_solver_takes_penalties(solver: str, penalty: Any) -> None:
    """All find the plan of Sinkhorn's iteration, which alone was allowed once."""
    rng = np.random.default_rng(0)
    X, Y = rng.random((60, 2)), rng.random((45, 2)) + 0.2
    s = qk.scores.distance(X, Y, beta=50.0)
    mu, nu = np.full(60, 1 / 60), np.full(45, 1 / 45)
    known = qk.bridge(s, mu, nu, penalty=penalty, solver="alternating", tol=1e-11, max_iter=100_000)
    b = qk.bridge(s, mu, nu, penalty=penalty, solver=solver)
    assert known.converged and b.converged
    assert np.abs(b.plan() - known.plan()).sum() < 1e-6 * known.plan().sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mass", [1e-12, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("penalty", [(57.0, 1.25), 0.05, (math.inf, 3.0)])
def test_penalised_problems_of_any_mass_are_annealed(dtype: str, mass: float, penalty: Any) -> None:
    """In float32 they "converged" to the empty plan: early stages had penalties of 1e-9."""
    rng = np.random.default_rng(0)
    Z = (3 * rng.normal(size=(6, 5))).astype(dtype)
    mu, nu = (np.full(n, mass / n, dtype) for n in (6, 5))
    mu[0] = 0
    b = qk.bridge(dense(Z), mu, nu, penalty=penalty, solver="annealed")
    known = qk.bridge(dense(Z), mu, nu, penalty=penalty, solver="alternating")
    assert b.converged and known.converged and known.plan().sum() > 0
    np.testing.assert_allclose(b.plan(), known.plan(), rtol=1e-3, atol=1e-4 * known.plan().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("penalty", [10.0, 2000.0, 1e5])
def test_penalties_are_accelerated(penalty: float, dtype: str) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.random((200, 2)), rng.random((150, 2)) + 0.2
    Z = (-((X[:, None] - Y) ** 2).sum(-1) / 0.005).astype(dtype)
    mu, nu = np.full(200, 1 / 200, dtype), np.full(150, 1 / 150, dtype)
    tol = 1e-9 if dtype == "float64" else 1e-4
    options: Any = {"penalty": penalty, "tol": tol}
    plain = qk.bridge(dense(Z), mu, nu, solver="alternating", max_iter=20_000, **options)
    b = qk.bridge(dense(Z), mu, nu, **options)
    assert b.converged and b.n_visits <= 300
    assert true_error(Z, mu, nu, b, penalty) <= tol
    assert b.n_visits < plain.n_visits


def clusters(n: int) -> tuple[Any, Any]:
    """Two clouds of twelve anisotropic clusters in 30 dimensions."""
    rng = np.random.default_rng(0)
    clouds = []
    for _ in range(2):
        centres, label = rng.normal(size=(12, 30)) * 2, rng.integers(0, 12, n)
        shapes = rng.normal(size=(12, 30, 30)) * np.geomspace(1, 0.1, 30)
        noise = np.einsum("nd,nde->ne", rng.normal(size=(n, 30)), shapes[label])
        clouds.append((centres[label] + noise * 2 / math.sqrt(30)).astype(np.float32))
    return clouds[0], clouds[1]


@pytest.mark.parametrize("memory", [None, 0])
def test_clusters_in_many_dimensions(memory: int | None) -> None:
    """At a thousandth of the mean cost, stored and on the fly; hundreds of visits left 9 % once."""
    X, Y = clusters(1500)
    C = ((X[:, None] - Y[::10].astype(np.float64)) ** 2).sum(-1)
    u = np.full(1500, 1 / 1500, np.float32)
    s = qk.scores.distance(X, Y, beta=float(np.float32(1e3 / C.mean())))
    b = qk.bridge(s, u, u, tol=1e-3, max_memory=memory)
    assert b.converged and b.n_visits <= 200
    plan = np.exp(qk.scores.distance(X.astype(float), Y.astype(float), beta=float(np.float32(1e3 / C.mean())))
                  .to_numpy() + b.f[:, None].astype(float) + b.g)  # fmt: skip
    assert max(np.abs(plan.sum(k) - 1 / 1500).sum() for k in (0, 1)) <= 1e-3


def test_methods_are_told_in_words() -> None:
    Z, mu, nu = bumps(60, 51)
    assert qk.bridge(dense(Z), mu, nu, tol=1e-4).method == "anderson, then annealed, stored"
    easy = qk.bridge(dense(Z * 1e-4), mu, nu)
    assert easy.converged and easy.method == "anderson, stored"
    single = qk.bridge(dense(Z), mu, nu, tol=1e-4, solver="annealed")
    assert single.method == "annealed, stored"


@pytest.mark.parametrize("dtype", DTYPES)
def test_annealing_of_scores_with_biases_and_masks(dtype: str) -> None:
    """Every term is scaled: products, distances, matrices, biases; entries that are masked stay so."""
    rng = np.random.default_rng(1)
    X, Y, Z = rng.random((40, 3)), rng.random((30, 3)), rng.normal(size=(40, 30))
    mask = rng.random((40, 30)) < 0.8
    mask[np.arange(40), np.arange(40) % 30] = True
    s = qk.scores.distance(X.astype(dtype), Y.astype(dtype), beta=30.0)
    s = s + qk.scores.dot(X.astype(dtype), Y.astype(dtype)) + dense(Z.astype(dtype))
    s = s.shift(rows=rng.normal(size=40).astype(dtype), columns=rng.normal(size=30).astype(dtype))
    s = s.masked(mask)
    mu, nu = np.full(40, 1 / 40, dtype), np.full(30, 1 / 30, dtype)
    plans = [
        qk.bridge(s, mu, nu, solver=solver, max_iter=50_000)
        for solver in ("annealed", "alternating")
    ]
    assert all(b.converged for b in plans)
    off = np.abs(plans[0].plan().astype(float) - plans[1].plan()).sum()
    assert off < (1e-3 if dtype == "float32" else 1e-6)
    assert (plans[0].plan()[~mask] == 0).all()
