"""The solvers of a bridge: each finds the same answer; hard problems; batches; penalties; chains."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import qkcore as qk
from qkcore._native import cpu

from .generators import DTYPES
from .reference import Array

SOLVERS = ("alternating", "relaxed", "anderson", "newton", "accelerated", "annealed")


def law(rng: np.random.Generator, n: int, dtype: str = "float64") -> Array:
    rho = rng.exponential(size=n) + 0.05
    return (rho / rho.sum()).astype(dtype)


def clouds(
    n: int, m: int, epsilon: float, dtype: str = "float64", seed: int = 0
) -> tuple[qk.Scores, Array, Array]:
    """Two clouds and a temperature relative to the largest cost."""
    rng = np.random.default_rng((seed, n, m))
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2)) + 0.5
    top = max(((x - Y) ** 2).sum(1).max() for x in X)
    s = qk.scores.distance(X.astype(dtype), Y.astype(dtype), beta=1 / (epsilon * top))
    return s, law(rng, n, dtype), law(rng, m, dtype)


def exact_plan(s: qk.Scores, mu: Array, nu: Array) -> Array:
    """Log-domain iteration in float64 to 1e-14, written plainly."""
    Z = s.to_numpy().astype(np.float64)
    mu, nu = mu.astype(np.float64), nu.astype(np.float64)
    nu = nu * mu.sum() / nu.sum()
    g = np.zeros(len(nu))
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(mu), np.log(nu)
    for _ in range(200_000):
        f = log_mu - np.logaddexp.reduce(Z + g, axis=1)
        lse = np.logaddexp.reduce(Z + f[:, None], axis=0)
        if np.abs(np.exp(g + lse) - nu).sum() < 1e-14:
            break
        g = log_nu - lse
    return np.exp(f[:, None] + Z + g)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("epsilon", [1.0, 0.05, 0.005])
def test_every_solver_finds_the_coupling(solver: str, epsilon: float, stored: bool) -> None:
    """DAC-7: the same answer to the tolerance, entries stored or computed at every visit."""
    s, mu, nu = clouds(60, 45, epsilon)
    b = qk.bridge(s, mu, nu, solver=solver, max_memory=1e9 if stored else 0, tol=1e-10)
    assert b.converged, str(b)
    assert b.method == f"{solver}, {'stored' if stored else 'on the fly'}"
    np.testing.assert_allclose(b.plan(), exact_plan(s, mu, nu), atol=3e-10)
    assert abs(b.gap) <= 1e-8
    assert b.n_visits >= b.n_iter > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 7), (9, 1), (12, 13), (65, 31), (130, 257), (300, 1100)]
)
def test_sizes_and_types(shape: tuple[int, int], stored: bool, dtype: str) -> None:
    s, mu, nu = clouds(*shape, 0.1, dtype)
    b = qk.bridge(s, mu, nu, max_memory=1e9 if stored else 0)
    assert b.converged, str(b)
    tol = 1e-5 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(b.plan(), exact_plan(s, mu, nu), atol=tol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 2500), (7, 2500), (8, 2500), (9, 2500), (29, 2500), (300, 4000)]
)
def test_long_rows_that_go_together(shape: tuple[int, int], dtype: str) -> None:
    """Stored rows beyond the L1 cache are visited eight at a time, and what is left of them after."""
    s, mu, nu = clouds(*shape, 0.5, dtype)
    want = exact_plan(s, mu, nu)
    tol = 1e-5 if dtype == "float32" else 1e-9
    for threads in (1, 2):
        b = qk.bridge(s, mu, nu, solver="alternating", max_memory=1e9, n_threads=threads)
        assert b.converged and "stored" in b.method
        np.testing.assert_allclose(b.plan(), want, atol=tol)


@pytest.mark.parametrize(
    "kind", ["dense", "dot", "sum", "masked", "window", "many dimensions", "shifted"]
)
@pytest.mark.parametrize("stored", [True, False])
def test_every_kind_of_kernel(kind: str, stored: bool) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    mask = rng.random((50, 50)) < 0.8
    np.fill_diagonal(mask, True)
    dense = rng.normal(size=(50, 50))
    s = {
        "dense": lambda: qk.scores.dense(dense.T),
        "dot": lambda: qk.scores.dot(X, Y, W=rng.normal(size=(3, 3)), beta=0.5),
        "sum": lambda: qk.scores.dot(X, Y) + qk.scores.dense(dense) + qk.scores.distance(X, Y),
        "masked": lambda: qk.scores.dot(X, Y).masked(mask),
        "window": lambda: qk.scores.dot(X, Y).window(20, 20),
        "many dimensions": lambda: qk.scores.distance(*rng.normal(size=(2, 50, 40)), beta=0.05),
        "shifted": lambda: qk.scores.dot(X, Y).shift(rows=dense[0] * 50, columns=dense[1] * 50),
    }[kind]()
    mu, nu = np.full(50, 0.02), np.full(50, 0.02)
    b = qk.bridge(s, mu, nu, max_memory=1e9 if stored else 0)
    assert b.converged, str(b)
    np.testing.assert_allclose(b.plan(), exact_plan(s, mu, nu), atol=1e-9)


@pytest.mark.parametrize("epsilon", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_small_temperatures(epsilon: float) -> None:
    """From 1 down to 1e-4 of the largest cost: converged, or a status that says what is left."""
    s, mu, nu = clouds(50, 50, epsilon)
    b = qk.bridge(s, mu, nu, max_iter=50_000)
    assert b.converged, str(b)
    rows, cols = b.marginals()
    assert np.abs(rows - mu).sum() + np.abs(cols - nu).sum() < 2e-9
    assert abs(b.gap) < 1e-5


def test_logits_over_a_range_of_700() -> None:
    rng = np.random.default_rng(0)
    Z = rng.uniform(-700, 700, size=(30, 30))
    b = qk.bridge(qk.scores.dense(Z), np.full(30, 1 / 30), np.full(30, 1 / 30), max_iter=100_000)
    assert np.isfinite(b.f).all()
    assert b.converged == (b.error <= b.tol)
    # Logits f_i + g_j are pure potentials, so the coupling is the product measure for any size.
    r, c = rng.uniform(-700, 700, size=(2, 30))
    mu, nu = law(rng, 30), law(rng, 30)
    flat = qk.scores.dense(np.zeros((30, 30))).shift(rows=r, columns=c)
    for solver in ("auto", *SOLVERS):
        for memory in (0, 1e9):
            product = qk.bridge(flat, mu, nu, solver=solver, max_memory=memory)
            assert product.converged, str(product)
            np.testing.assert_allclose(product.plan(), np.outer(mu, nu), rtol=1e-9)


def test_marginals_of_every_size() -> None:
    """Weights from 1e-300 to 1."""
    mu = np.array([1e-300, 1e-200, 1e-20, 1.0])
    mu /= mu.sum()
    nu = np.array([1.0, 1e-150, 1e-10])
    nu /= nu.sum()
    b = qk.bridge(qk.scores.dense(np.zeros((4, 3))), mu, nu)
    assert b.converged
    np.testing.assert_allclose(b.plan(), np.outer(mu, nu), rtol=1e-9)


def test_duplicated_points_share_their_mass() -> None:
    s, mu, nu = clouds(20, 15, 0.05)
    X, Y, beta, *_ = s.terms.distances[0]
    twice = qk.scores.distance(np.vstack([X, X]), Y, beta=beta)
    b = qk.bridge(twice, np.concatenate([mu, mu]) / 2, nu, tol=1e-11)
    want = qk.bridge(s, mu, nu, tol=1e-11).plan()
    np.testing.assert_allclose(b.plan()[:20] + b.plan()[20:], want, atol=1e-10)


@given(st.integers(2, 25), st.integers(2, 25), st.integers(0, 5000))
def test_symmetries_of_the_problem(n: int, m: int, seed: int) -> None:
    """DAC-7: transposition, permutation, gauge, and additivity over blocks."""
    s, mu, nu = clouds(n, m, 0.2, seed=seed)
    rng = np.random.default_rng(seed)
    plan = qk.bridge(s, mu, nu, tol=1e-12).plan()

    def same(other: qk.SchrodingerBridge, want: Array) -> None:
        assert other.converged
        np.testing.assert_allclose(other.plan(), want, atol=1e-11)

    same(qk.bridge(s.T, nu, mu, tol=1e-12), plan.T)
    shifted = s.shift(rows=rng.normal(size=n), columns=rng.normal(size=m))
    same(qk.bridge(shifted, mu, nu, tol=1e-12), plan)
    order = rng.permutation(n)
    dense = s.to_numpy()
    same(qk.bridge(qk.scores.dense(dense[order]), mu[order], nu, tol=1e-12), plan[order])
    # Two copies as one ragged problem.
    X, Y, beta, *_ = s.terms.distances[0]
    both = qk.scores.distance(np.vstack([X, X]), np.vstack([Y, Y]), beta=beta)
    blocks = qk.bridge(
        both.ragged([0, n, 2 * n], [0, m, 2 * m]), np.tile(mu, 2), np.tile(nu, 2), tol=1e-12
    )
    assert blocks.converged.all()  # type: ignore[attr-defined]
    np.testing.assert_allclose(blocks.plan()[n:, m:], plan, atol=1e-11)
    assert (blocks.plan()[:n, m:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_empty_blocks_of_ragged_problems(kind: str, stored: bool, dtype: str) -> None:
    """An empty block is solved by nothing, wherever it lies; the others are what they are alone."""
    s, mu, nu = clouds(6, 6, 0.3, dtype)
    if kind == "dense":
        s = qk.scores.dense(s.to_numpy())
    cuts = [0, 0, 2, 2, 6, 6]
    mu, nu = (np.concatenate([w[:2] / w[:2].sum(), w[2:] / w[2:].sum()]) for w in (mu, nu))
    b = qk.bridge(s.ragged(cuts), mu, nu, max_memory=1e9 if stored else 0)
    assert list(b.status) == ["converged"] * 5
    assert (np.asarray(b.error)[[0, 2, 4]] == 0).all()
    whole = s.to_numpy()
    for first, end in ((0, 2), (2, 6)):
        part = slice(first, end)
        want = exact_plan(qk.scores.dense(whole[part, part]), mu[part], nu[part])
        np.testing.assert_allclose(b.plan()[part, part], want, atol=1e-5)


@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_rows_without_columns(kind: str) -> None:
    """Their mass has nowhere to go: refused when it must go; a penalty bears that it stays."""
    s, mu, nu = clouds(6, 6, 0.3)
    if kind == "dense":
        s = qk.scores.dense(s.to_numpy())
    blocks = s.ragged([0, 2, 6], [0, 0, 6])
    with pytest.raises(ValueError, match="nu: wanted the total mass of mu"):
        qk.bridge(blocks, mu, nu)
    for memory in (0, 1e9):
        b = qk.bridge(blocks, mu, nu, penalty=1.0, max_memory=memory)
        assert list(b.status) == ["converged", "converged"]
        assert np.isneginf(b.f[:2]).all() and np.isfinite(b.f[2:]).all()


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # SciPy's, before 1.16
def test_tiny_problems_against_a_convex_solver() -> None:
    """DAC-7: SciPy's SLSQP on the primal itself."""
    for seed in range(5):
        s, mu, nu = clouds(3, 4, 0.3, seed=seed)
        Z = s.to_numpy()

        def objective(p: Array, Z: Array = Z) -> float:
            return float(np.sum(p * (np.log(p) - Z.ravel() - 1)))

        constraints = [
            {"type": "eq", "fun": lambda p, mu=mu: p.reshape(3, 4).sum(1) - mu},
            {"type": "eq", "fun": lambda p, nu=nu: (p.reshape(3, 4).sum(0) - nu)[:-1]},
        ]
        found = minimize(
            objective, np.outer(mu, nu).ravel(), bounds=[(1e-12, None)] * 12,
            constraints=constraints, options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        b = qk.bridge(s, mu, nu, tol=1e-12)
        np.testing.assert_allclose(b.plan().ravel(), found.x, atol=2e-5)
        assert b.primal == pytest.approx(found.fun, abs=1e-8)
        assert b.dual <= found.fun + 1e-8


def test_a_two_point_kernel_in_closed_form() -> None:
    """K = [[1, k], [k, 1]], uniform marginals: the diagonal carries 1/(2(1 + k))."""
    for k in (0.5, 1e-3, 1e-12):
        s = qk.scores.dense(np.log(np.array([[1.0, k], [k, 1.0]])))
        plan = qk.bridge(s, np.full(2, 0.5), np.full(2, 0.5), tol=1e-13).plan()
        np.testing.assert_allclose(plan[0, 0], 0.5 / (1 + k), rtol=1e-12)
        np.testing.assert_allclose(plan[0, 1], 0.5 * k / (1 + k), rtol=1e-9)


# ---- how a solve goes ---------------------------------------------------------------------------


def test_over_relaxation_saves_iterations_and_reports_itself() -> None:
    s, mu, nu = clouds(200, 200, 0.003)
    plain = qk.bridge(s, mu, nu, solver="alternating", max_iter=50_000)
    relaxed = qk.bridge(s, mu, nu, solver="relaxed")
    assert plain.converged
    assert relaxed.converged
    assert relaxed.n_iter < plain.n_iter / 3
    assert 1 < relaxed.relaxation < 2
    assert 0 < plain.rate < 1
    assert plain.rate <= plain.birkhoff_rate <= 1


@given(st.integers(2, 12), st.integers(0, 2000))
def test_the_birkhoff_rate_bounds_the_observed_one(n: int, seed: int) -> None:
    """EOT-10, erratum 7: tanh^2(Delta/4), with Delta by brute force."""
    rng = np.random.default_rng((seed, n))
    Z = rng.normal(size=(n, n))
    mu, nu = law(rng, n), law(rng, n)
    b = qk.bridge(qk.scores.dense(Z), mu, nu, solver="alternating", tol=1e-12)
    delta = max(np.ptp(Z[i] - Z[k]) for i in range(n) for k in range(n))
    assert b.birkhoff_rate == pytest.approx(np.tanh(delta / 4) ** 2, abs=1e-12)
    if len(b.errors) > 8 and b.errors[-1] > 1e-12:
        assert b.rate <= b.birkhoff_rate + 0.05


def test_masked_kernels_have_no_birkhoff_rate() -> None:
    s, mu, nu = clouds(6, 6, 0.5)
    assert qk.bridge(s.window(3, 3), mu, mu).birkhoff_rate == 1.0
    assert nu is not mu


def test_callback_and_progress(capfd: pytest.CaptureFixture[str]) -> None:
    s, mu, nu = clouds(40, 40, 0.05)
    seen: list[tuple[int, float]] = []
    b = qk.bridge(s, mu, nu, callback=lambda visits, error: seen.append((visits, error)))
    assert [error for _, error in seen] == list(b.errors)
    assert [visits for visits, _ in seen] == sorted(visits for visits, _ in seen)
    qk.bridge(s, mu, nu, progress=True)
    assert "bridge" in capfd.readouterr().err

    class Stop(Exception):
        pass

    def stop(visits: int, error: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        qk.bridge(s, mu, nu, callback=stop)
    with pytest.raises(TypeError, match="callback"):
        qk.bridge(s, mu, nu, callback=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [*SOLVERS, "auto"])
def test_the_same_bits_again(solver: str) -> None:
    s, mu, nu = clouds(150, 140, 0.02)
    for threads in (1, 2):
        a, b = (qk.bridge(s, mu, nu, solver=solver, n_threads=threads) for _ in range(2))
        np.testing.assert_array_equal(a.f, b.f)
        np.testing.assert_array_equal(a.g, b.g)


def test_limits_are_kept_and_said() -> None:
    s, mu, nu = clouds(80, 80, 0.001)
    for solver in SOLVERS:
        for limits, status in (
            ({"max_iter": 12}, "iteration limit"),
            ({"max_visits": 11}, "visit limit"),
        ):
            b = qk.bridge(s, mu, nu, solver=solver, **limits)
            assert b.status == status
            assert not b.converged
            assert len(b.errors) == b.n_iter <= 12
            assert b.n_visits <= limits.get("max_visits", 10_000) + 3
            assert f"not converged ({status})" in str(b)
    tight = qk.bridge(s, mu, nu, tol=1e-18, max_iter=3000)
    assert tight.status in ("stagnated", "iteration limit")
    assert not tight.converged


# ---- batches, penalties, one side ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_solve_every_problem_for_itself(dtype: str) -> None:
    rng = np.random.default_rng(0)
    X, Y = (
        rng.normal(size=(2, 3, 20, 2)).astype(dtype),
        rng.normal(size=(2, 3, 17, 2)).astype(dtype),
    )
    mu = np.stack([[law(rng, 20, dtype) for _ in range(3)] for _ in range(2)])
    nu = law(rng, 17, dtype)
    b = qk.bridge(qk.scores.distance(X, Y), mu, nu)
    assert b.f.shape == (2, 3, 20)
    assert b.g.shape == (2, 3, 17)
    assert np.shape(b.converged) == (2, 3)
    assert np.all(b.converged)
    for i, j in np.ndindex(2, 3):
        one = qk.bridge(qk.scores.distance(X[i, j], Y[i, j]), mu[i, j], nu)
        np.testing.assert_allclose(
            b.plan()[i, j], one.plan(), atol=1e-5 if dtype == "float32" else 1e-9
        )
    assert "6 of 6 converged" in str(b)
    V = rng.normal(size=(2, 3, 17, 2)).astype(dtype)
    assert b.project(V).shape == (2, 3, 20, 2)
    for name in ("cost", "entropy", "primal", "dual", "gap", "birkhoff_rate"):
        want = [[getattr(b[i, j], name) for j in range(3)] for i in range(2)]
        np.testing.assert_array_equal(getattr(b, name), want)
    assert len(b) == 6 and [one.cost for one in b] == list(np.ravel(b.cost))
    one = qk.bridge(qk.scores.distance(X[1, 2], Y[1, 2]), mu[1, 2], nu)
    assert b[5].cost == pytest.approx(one.cost, rel=1e-4 if dtype == "float32" else 1e-8)
    assert b[1, 2].gap == b[-1].gap == pytest.approx(0, abs=1e-4)
    for bad in (6, (2, 0), (0, 0, 0)):
        with pytest.raises(IndexError, match=r"index: wanted a problem of the batch \(2, 3\)"):
            b[bad]
    with pytest.raises(TypeError, match="index: wanted one integer"):
        b[1:]
    with pytest.raises(TypeError, match="got one bridge"):
        len(one)
    with pytest.raises(ValueError, match="one problem for a callback"):
        qk.bridge(qk.scores.distance(X, Y), mu, nu, progress=True)


@pytest.mark.parametrize(
    "penalty", [0.1, 1.0, 10.0, (1.0, float("inf")), (float("inf"), 0.5), (0.3, 3.0)]
)
def test_unbalanced_bridges(penalty: float | tuple[float, float]) -> None:
    """KL penalties: the optimality conditions, and a smaller objective than any neighbour's."""
    rng = np.random.default_rng(0)
    s, mu, nu = clouds(12, 9, 0.3)
    b = qk.bridge(
        s, mu, 2 * nu if not isinstance(penalty, tuple) else nu, penalty=penalty, tol=1e-11
    )
    assert b.converged, str(b)
    a, c = b.penalty
    plan, Z = b.plan(), s.to_numpy()
    weights = b.mu, b.nu

    def kl(p: Array, q: Array) -> float:
        return float(np.sum(p * np.log(p / q) - p + q))

    def objective(P: Array) -> float:
        value = float(np.sum(P * (np.log(P) - Z - 1)))
        for strength, sums, weight in ((a, P.sum(1), weights[0]), (c, P.sum(0), weights[1])):
            if np.isfinite(strength):
                value += strength * kl(sums, weight)
        return value

    for strength, sums, weight, potential in (
        (a, plan.sum(1), weights[0], b.f),
        (c, plan.sum(0), weights[1], b.g),
    ):
        want = weight if np.isinf(strength) else weight * np.exp(-potential / strength)
        np.testing.assert_allclose(sums, want, atol=1e-10)
    for _ in range(5):
        direction = plan * rng.normal(size=plan.shape)
        if np.isinf(a):
            direction -= plan * (direction.sum(1) / plan.sum(1))[:, None]
        if np.isinf(c):
            direction -= plan * (direction.sum(0) / plan.sum(0))
        for size in (1e-3, -1e-3):
            assert objective(plan + size * direction) > objective(plan) - 1e-12


@pytest.mark.parametrize("penalty", [1.0, (0.3, float("inf"))])
def test_unbalanced_batches(penalty: float | tuple[float, float]) -> None:
    """Each problem of a batch is what it is alone: potentials, verdict and error."""
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(3, 7, 2)), rng.normal(size=(3, 5, 2))
    mu, nu = rng.uniform(0.5, 1.5, (3, 7)), rng.uniform(0.5, 1.5, (3, 5))
    b = qk.bridge(qk.scores.distance(X, Y, beta=0.5), mu, nu, penalty=penalty, tol=1e-9)
    assert list(b.status) == ["converged"] * 3
    assert (np.asarray(b.error) <= 1e-9).all()
    for k in range(3):
        alone = qk.bridge(
            qk.scores.distance(X[k], Y[k], beta=0.5), mu[k], nu[k], penalty=penalty, tol=1e-9
        )
        assert alone.converged
        np.testing.assert_allclose(b.f[k], alone.f, atol=1e-7)
        np.testing.assert_allclose(b.g[k], alone.g, atol=1e-7)


def test_penalties_are_checked() -> None:
    s, mu, nu = clouds(4, 4, 1.0)
    for bad in (0.0, -1.0, (1.0, 0.0), (1.0,), np.nan, -np.inf, 10**400):
        with pytest.raises(ValueError, match="penalty"):
            qk.bridge(s, mu, nu, penalty=bad)  # type: ignore[arg-type]
    for wrong in ("x", True, np.bool_(True), 1j):
        with pytest.raises(TypeError, match="penalty"):
            qk.bridge(s, mu, nu, penalty=wrong)  # type: ignore[arg-type]
    plain = qk.bridge(s, mu, nu, penalty=2.0)
    for same in (np.float32(2), 2, np.int64(2)):
        np.testing.assert_array_equal(qk.bridge(s, mu, nu, penalty=same).f, plain.f)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="symmetric"):
        qk.bridge(s, mu, nu, penalty=1.0, solver="symmetric")
    with pytest.raises(ValueError, match="max_memory"):
        qk.bridge(s, mu, nu, max_memory=-1)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2000))
def test_attention_is_one_sided_transport(n: int, m: int, seed: int) -> None:
    """EOT-1: row softmax minimises <c, p> + KL(p | u) for every reference u, masks included."""
    rng = np.random.default_rng((seed, n, m))
    Z = rng.normal(size=(n, m))
    Z[rng.random((n, m)) < 0.2] = -np.inf
    Z[:, 0] = 0.0
    mu, u = law(rng, n), law(rng, m)
    b = qk.semi_relaxed(qk.scores.dense(Z), mu, reference=u)
    assert b.converged
    plan = b.plan()
    np.testing.assert_allclose(plan.sum(1), mu, atol=1e-15)
    np.testing.assert_allclose(b.nu, plan.sum(0), atol=1e-15)
    weights = u * np.exp(Z)
    np.testing.assert_allclose(
        plan, mu[:, None] * weights / weights.sum(1, keepdims=True), atol=1e-15
    )
    assert (plan[np.isneginf(Z)] == 0).all()

    def objective(p: Array, i: int) -> float:
        live = p > 0
        return float(np.sum(p[live] * (np.log(p[live] / u[live]) - Z[i][live])))

    for i in range(min(n, 3)):
        p = plan[i] / mu[i]
        q = rng.dirichlet(np.ones(m)) * ~np.isneginf(Z[i])
        q /= q.sum()
        assert objective(p, i) <= objective(q, i) + 1e-12
        assert objective(p, i) == pytest.approx(-np.log(weights[i].sum()), abs=1e-12)
    # The default reference is uniform, and then it is qk.softmax.
    plain = qk.semi_relaxed(qk.scores.dense(Z), mu)
    np.testing.assert_allclose(
        plain.forward.to_numpy(), qk.softmax(qk.scores.dense(Z)).to_numpy(), atol=1e-15
    )


def test_a_blind_row_is_infeasible_even_on_one_side() -> None:
    Z = np.array([[0.0, 0.0], [-np.inf, -np.inf]])
    b = qk.semi_relaxed(qk.scores.dense(Z), np.full(2, 0.5))
    assert b.status == "infeasible"
    assert not b.converged


# ---- chains and algorithm 2 ---------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_chains_of_kernels(steps: int) -> None:
    """DAC-7: the ends, the intermediate laws and the steps, against the dense path measure."""
    rng = np.random.default_rng(steps)
    sizes = [5, 7, 4, 6, 5][: steps + 1]
    logits = [rng.normal(size=(a, b)) for a, b in pairwise(sizes)]
    mu, nu = law(rng, sizes[0]), law(rng, sizes[-1])
    c = qk.bridge_chain([qk.scores.dense(z) for z in logits], mu, nu, tol=1e-12)
    assert c.converged
    product = np.linalg.multi_dot([np.exp(z) for z in logits] + [np.eye(sizes[-1])])
    ends = qk.bridge(qk.scores.dense(np.log(product)), mu, nu, tol=1e-12)
    np.testing.assert_allclose(c.f, ends.f, atol=1e-9)
    np.testing.assert_allclose(c.g, ends.g, atol=1e-9)
    assert len(c.marginals) == steps + 1
    np.testing.assert_allclose(c.marginals[0], mu, atol=1e-11)
    np.testing.assert_allclose(c.marginals[-1], nu, atol=1e-11)
    joint = np.diag(mu)
    for kernel in c.kernels:
        np.testing.assert_allclose(kernel.to_numpy().sum(1), 1, atol=1e-13)
        joint = joint @ kernel.to_numpy()
    np.testing.assert_allclose(joint, ends.plan(), atol=1e-10)
    assert f"{steps} steps" in str(c)
    warm = qk.bridge_chain([qk.scores.dense(z) for z in logits], mu, nu, tol=1e-11, init=c)
    assert warm.n_iter == 1


def test_chains_are_checked() -> None:
    a, b = qk.scores.dense(np.zeros((3, 4))), qk.scores.dense(np.zeros((5, 3)))
    u = np.full(3, 1 / 3)
    with pytest.raises(ValueError, match=r"kernels\[1\]: wanted 4 rows"):
        qk.bridge_chain([a, b], u, u)
    with pytest.raises(ValueError, match="at least one"):
        qk.bridge_chain([], u, u)
    with pytest.raises(TypeError, match=r"kernels\[1\]"):
        qk.bridge_chain([a, qk.scores.dense(np.zeros((4, 3), np.float32))], u, u)
    with pytest.raises(ValueError, match="nu: wanted the total mass"):
        qk.bridge_chain([a, a.T], u, 2 * u)
    blocked = qk.scores.dense(np.array([[0.0, -np.inf], [0.0, -np.inf]]))
    half = np.full(2, 0.5)
    assert qk.bridge_chain([blocked, blocked], half, half).status == "infeasible"


def test_algorithm_2() -> None:
    """EOT-10: as written it ends at the bridge of the temperature that it chose."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(30, 2)), rng.normal(size=(25, 2)) + 0.3
    mu, nu = law(rng, 30), law(rng, 25)
    found = qk.adaptive_ipf(X, Y, mu, nu, tol=1e-9, max_iter=5000)
    assert found.converged
    assert found.condition <= 1e10
    assert found.epsilon >= 0.1
    want = qk.bridge(qk.scores.distance(X, Y, beta=0.5 / found.epsilon), mu, nu, tol=1e-11)
    np.testing.assert_allclose(found.plan(), want.plan(), atol=1e-8)
    assert found.tv[-1] < 1e-9
    assert found.potential_change[-1] < 1e-9
    # The document's "dual gap" is minus the dual value, so it decreases to -dual, and not to 0.
    assert (np.diff(found.dual_objective) < 1e-9).all()
    assert found.dual_objective[-1] == pytest.approx(-want.dual, abs=1e-6)
    assert abs(found.dual_objective[-1]) > 0.1
    np.testing.assert_allclose(found.phi, found.epsilon * found.log_a)
    np.testing.assert_allclose(found.psi, found.epsilon * found.log_b)
    metric = np.diag([2.0, 0.5])
    other = qk.adaptive_ipf(X, Y, mu, nu, a=metric, tol=1e-8, max_iter=5000)
    direct = qk.scores.distance(X, Y, W=np.linalg.inv(metric), beta=0.5 / other.epsilon)
    np.testing.assert_allclose(other.plan(), qk.bridge(direct, mu, nu, tol=1e-11).plan(), atol=1e-7)
    assert qk.adaptive_ipf(X, Y, mu, nu, tol=1e-12, max_iter=3).status == "iteration limit"
    with pytest.raises(ValueError, match="condition"):
        qk.adaptive_ipf(X, Y, mu, nu, condition="x")


def test_erratum_15_the_conditioning_rule_runs_away() -> None:
    """EOT-10, algorithm 2 line 5: a larger eps makes a Gaussian kernel worse conditioned, not better."""
    X = np.linspace(0, 1, 12)[:, None]
    conditions = [
        np.linalg.cond(np.exp(qk.scores.distance(X, beta=0.5 / eps).to_numpy()))
        for eps in (1e-3, 1e-2, 1e-1)
    ]
    assert conditions[0] < 1e2 < conditions[1] < 1e10 < conditions[2]
    u = np.full(12, 1 / 12)
    away = qk.adaptive_ipf(X, X, u, u, condition="spectral")
    assert away.condition > 1e10
    assert away.epsilon == pytest.approx(0.1 * 1.5**60)
    assert qk.adaptive_ipf(X, X, u, u).epsilon == 0.1


def test_adaptive_ipf_stops_on_changes_of_phi() -> None:
    """EOT-10, H: the rule is on phi = eps log a and psi = eps log b, not on the logarithms."""
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(12, 2)), rng.normal(size=(9, 2))
    mu, nu = np.full(12, 1 / 12), np.full(9, 1 / 9)
    earlier, later = (
        qk.adaptive_ipf(X, Y, mu, nu, tol=1e-12, epsilon=3.0, max_iter=k, on_fail="ignore")
        for k in (2, 3)
    )
    moved = max(np.abs(later.phi - earlier.phi).max(), np.abs(later.psi - earlier.psi).max())
    assert later.potential_change[-1] == pytest.approx(moved, rel=1e-12)


def test_adaptive_ipf_does_not_form_the_kernel() -> None:
    """The condition of the entries is found by blocks of rows."""
    rng = np.random.default_rng(4)
    X, Y = rng.normal(size=(2500, 1)), rng.normal(size=(2500, 1))
    u = np.full(2500, 1 / 2500)
    tracemalloc.start()
    try:
        found = qk.adaptive_ipf(X, Y, u, u, max_iter=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6  # the scores alone would be 50 MB
    C = (X - Y.T) ** 2 / 2 / found.epsilon
    assert found.condition == pytest.approx(np.exp(C.max() - C.min()))


def test_extrapolation_ends_linear_iterations() -> None:
    """Anderson's method of memory d knows a linear map of d dimensions after d + 1 steps; coordinates of
    weight 0 take the plain step."""
    rng = np.random.default_rng(0)
    A, b = 0.3 * rng.normal(size=(3, 3)), rng.normal(size=3)
    fixed = np.linalg.solve(np.eye(3) - A, b)
    anderson = cpu.Anderson(np.array([1.0, 2.0, 0.5, 0.0]), 3)
    x = np.zeros(4)
    for k in range(4):
        assert anderson.empty == (k == 0)
        step = np.append(A @ x[:3] + b - x[:3], 1.0)
        x = anderson.next(x, step)
        assert x[3] == k + 1
    np.testing.assert_allclose(x[:3], fixed, atol=1e-12)
    anderson.forget()
    assert anderson.empty
    with pytest.raises(ValueError, match=r"point, step: wanted as many entries as weights"):
        anderson.next(x[:3], step)
