"""Contraction and Lipschitz bounds (MTA-3) are never below measured values; erratum 10 with numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from qkcore import measure
from qkcore.measure import (
    AttentionJacobian,
    AttentionKernel,
    Ball,
    Box,
    DotPotential,
    FunctionLookup,
    FunctionPotential,
    GaussianPotential,
    LinearLookup,
    Measure,
    PotentialConstants,
    TableLookup,
    contraction,
    gaussian_lipschitz,
    lipschitz,
    neighbourhood,
    softmatch_perturbation,
    w1,
)
from qkcore.measure._bounds import psi_bounds
from qkcore.measure._domains import Domain
from qkcore.measure._lipschitz import gaussian_factor, printed_factor
from qkcore.measure._potentials import Potential

from .generators import DTYPES
from .reference import Array


def random_problem(rng: np.random.Generator) -> tuple[Potential, Domain]:
    """A potential and a compact set, of one to three dimensions, mild to steep."""
    d = int(rng.integers(1, 4))
    centre = rng.normal(size=d) * rng.choice([0.0, 0.5])
    domain: Domain
    if rng.random() < 0.5:
        domain = Ball(rng.uniform(0.1, 1.2), centre)
    else:
        half = rng.uniform(0.05, 0.9, size=d)
        domain = Box(centre - half, centre + half)
    beta = 10 ** rng.uniform(-1, 0.5)
    kind = rng.integers(4)
    if kind == 0:
        return GaussianPotential(beta), domain
    W = None if kind == 1 else rng.normal(size=(d, d))
    return DotPotential(beta, W), domain


def adversarial(rng: np.random.Generator, domain: Domain) -> Measure:
    """Few atoms, many of them extreme, some of tiny weight."""
    n = int(rng.integers(1, 5))
    w = np.exp(rng.normal(size=n) * rng.choice([0.0, 1.0, 6.0]))
    return Measure(domain.sample(n, rng), w / w.sum())


def near(rng: np.random.Generator, mu: Measure, domain: Domain) -> Measure:
    """A neighbour: one atom moved a little, or mass shifted between atoms."""
    if rng.random() < 0.5:
        points = mu.points.copy()
        i = int(rng.integers(len(mu)))
        points[i] += 0.01 * domain.diameter * rng.normal(size=mu.dim)
        return Measure(domain.project(points), mu.weights)
    w = mu.weights * np.exp(0.1 * rng.normal(size=len(mu)))
    return Measure(mu.points, w / w.sum())


@pytest.mark.parametrize("seed", range(4))
def test_no_bound_is_ever_exceeded(seed: int) -> None:
    """MTA-3, propositions 19 to 23: 2000 pairs of measures in 100 problems, every ratio below its bound."""
    rng = np.random.default_rng(seed)
    violated = 0
    for _ in range(25):
        potential, domain = random_problem(rng)
        query, key = psi_bounds(potential.constants(domain))
        M = rng.normal(size=(domain.dim, domain.dim))
        A = AttentionKernel(potential, LinearLookup(M))
        whole = measure.tau_bound(A, domain)
        for _ in range(20):
            mu = adversarial(rng, domain)
            nu = near(rng, mu, domain) if rng.random() < 0.7 else adversarial(rng, domain)
            apart = w1(mu, nu)
            x, y = domain.sample(2, rng)
            first, second = measure.softmatch(potential, np.stack([x, y]), mu).to_numpy()
            moved = w1(Measure(mu.points, first), Measure(mu.points, second))
            slack = 1e-12 * domain.diameter
            for value in query:
                assert moved <= value * np.abs(x - y).sum() * (1 + 1e-9) + slack
            other = measure.softmatch(potential, x[None], nu).to_numpy()[0]
            moved = w1(Measure(mu.points, first), Measure(nu.points, other / other.sum()))
            violated += moved > key[0] * apart * (1 + 1e-9) + slack
            for value in key[1:]:
                assert moved <= value * apart * (1 + 1e-9) + slack
            out = w1(A.step(mu), A.step(nu))
            assert out <= whole * apart * (1 + 1e-9) + 10 * slack
            # The projection alone (20): its constant is 1, not d.
            assert np.abs(mu.mean() - nu.mean()).sum() <= apart * (1 + 1e-9) + slack
            where = neighbourhood(A, x, mu, nu, domain)
            assert where.measured <= where.bound * (1 + 1e-9) + 10 * slack
            assert math.isclose(where.distance, apart, abs_tol=1e-15)
    assert violated > 0, "the printed factor of 19 was expected to fail somewhere (erratum 10)"


def test_erratum_10_at_the_constant_potential() -> None:
    """MTA-3, erratum 10: G = 1 makes Psi the identity; the printed factor is 0, the corrected one 1."""
    nothing = PotentialConstants(0, 0, -math.inf, -math.inf, 0, 0, 0, 0, 2.0, 2.0)
    one = FunctionPotential(lambda X, Y: np.ones((len(X), len(Y))), nothing)
    report = contraction(AttentionKernel(one), Box([-1.0], [1.0]), samples=200, climbs=20)
    assert report.measure.printed == 0
    assert report.measure.printed_violated and not report.measure.printed_holds
    assert report.measure.bound == 1
    assert math.isclose(report.measure.measured, 1, rel_tol=1e-9)  # attained: the bound is sharp
    mu, nu = Measure(np.array([[0.0]])), Measure(np.array([[1.0]]))
    assert w1(mu @ AttentionKernel(one)(mu), nu @ AttentionKernel(one)(nu)) == 1.0 == w1(mu, nu)
    found = neighbourhood(AttentionKernel(one), np.array([0.0]), mu, nu, Box([-1.0], [1.0]))
    assert found.printed == 0 and found.measured == found.bound == 1.0


def test_equality_cases() -> None:
    """MTA-3: on a centred box the sharp readings of 19 are attained, and so are tau(Pi) and tau(L)."""
    potential, domain = DotPotential(0.8), Box([-0.5, -0.3], [0.5, 0.3])
    query, key = psi_bounds(potential.constants(domain))
    u, v = domain.high, domain.low
    # Query: two atoms at opposite corners with equal softmatch weights, queries close to the centre.
    h = 1e-6
    x, y = np.zeros(2), np.array([h, 0.0])
    first, second = measure.softmatch(potential, np.stack([x, y]), np.stack([u, v])).to_numpy()
    moved = w1(Measure(np.stack([u, v]), first), Measure(np.stack([u, v]), second))
    assert math.isclose(moved / h, query[2], rel_tol=1e-6)
    # Measure: a grain of mass at one corner, seen from there, moves towards the rest.
    grain = 1e-9
    weights = np.array([grain, 1 - grain])
    mu = Measure(np.stack([u, v]), weights)
    nu = Measure(np.stack([u - np.array([h, 0.0]), v]), weights)
    psi = [
        Measure(m.points, measure.softmatch(potential, u[None], m).to_numpy()[0]) for m in (mu, nu)
    ]
    # All mass moves along the line between the atoms, and is measured by the distance from v.
    read = [float(m.weights @ np.abs(m.points - v).sum(axis=1)) for m in psi]
    assert math.isclose(abs(read[0] - read[1]) / (grain * h), key[2], rel_tol=1e-4)
    report = contraction(AttentionKernel(potential, LinearLookup(2 * np.eye(2))), domain)
    assert report.query.ratio < 1.01 and report.measure.ratio < 1.01
    assert report.lookup.bound == 2 and math.isclose(report.lookup.measured, 2, rel_tol=1e-9)
    assert report.projection.bound == 1 and report.projection.printed == 2
    assert report.attention.measured <= report.attention.bound


@pytest.mark.parametrize("seed", range(6))
def test_reports(seed: int) -> None:
    """MTA-3, theorem 23: reports with data: measured below bound, and a summary that can be read."""
    rng = np.random.default_rng((seed, 7))
    potential, domain = random_problem(rng)
    d = domain.dim
    A = AttentionKernel(potential, LinearLookup(rng.normal(size=(d, d)), rng.normal(size=d)))
    data = domain.sample(12, rng)
    report = contraction(A, domain, data=data, samples=300, climbs=60, rng=seed)
    for bound in (report.query, report.measure, report.softmatch, report.projection, report.lookup):
        assert 0 < bound.measured <= bound.bound * (1 + 1e-9)
        assert bound.ratio >= 1 - 1e-9
    assert AttentionJacobian(A, data).w1_norm().value <= report.attention.measured * (1 + 1e-12)
    assert report.attention.measured <= report.attention.bound * (1 + 1e-9)
    text = str(report)
    assert "tau(A) (23)" in text and "not a bound" in text and "theorem 26" in text


def test_reports_of_other_kernels() -> None:
    """MTA-3: parameters in single precision, tables and functions: bounds above what can be measured."""
    rng = np.random.default_rng(0)
    domain = Box([-1, -1.0], [1, 1])
    data = rng.uniform(-1, 1, size=(6, 2)).astype(np.float32)
    W, M = (rng.normal(size=(2, 2)).astype(np.float32) for _ in range(2))
    single = AttentionKernel(DotPotential(0.5, W), LinearLookup(M))
    report = contraction(single, domain, data=data, samples=100, climbs=10)
    assert 0 < report.attention.measured <= report.attention.bound
    factored = AttentionKernel(DotPotential(0.5, (W[:, :1], W[:1])))
    assert contraction(factored, domain, samples=100, climbs=10).attention.measured > 0
    tanh = AttentionKernel(GaussianPotential(0.5), FunctionLookup(np.tanh, lipschitz=1.0))
    report = contraction(tanh, domain, data=data, samples=100, climbs=10)
    assert 0.5 < report.lookup.measured <= 1.0 and report.invariant is None
    assert 0 < report.attention.measured <= report.attention.bound
    unknown = AttentionKernel(GaussianPotential(0.5), FunctionLookup(np.tanh))
    assert contraction(unknown, domain, samples=50, climbs=0).attention.bound == math.inf
    table = AttentionKernel(DotPotential(0.5), TableLookup(data, data[::-1].copy()))
    report = contraction(table, domain, data=data, samples=50, climbs=5)
    assert report.lookup.bound == report.lookup.measured > 0
    # With float32 data the Jacobian is measured in that precision, close to the double one.
    low, high = (lipschitz(single.double() if d == "d" else single, data.astype(d)) for d in "fd")
    assert math.isclose(low.spectral.value, high.spectral.value, rel_tol=1e-3)
    assert math.isclose(low.w1.value, high.w1.value, rel_tol=1e-4)


def test_constants_against_a_grid() -> None:
    """MTA-3: sup, inf and Lipschitz constants of the potentials, by brute force on a grid; exact cases."""
    rng = np.random.default_rng(0)
    side = np.linspace(-1, 1, 15)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    for domain in (Box([-1, -1.0], [1, 1]), Ball(1.0, dim=2), Box([0.5, 0], [1.5, 1.0])):
        inside = domain.project(grid * 1.5 + domain.centre)
        for potential, exact in (
            (DotPotential(0.7), not domain.centre.any()),
            (DotPotential(0.7, rng.normal(size=(2, 2))), False),
            (GaussianPotential(0.9), True),
        ):
            c = potential.constants(domain)
            a = potential.scores(inside, inside).to_numpy()
            G = np.exp(a)
            h = 1e-6
            slope = 0.0
            for e in np.eye(2):
                moved = np.exp(potential.scores(inside + h * e, inside).to_numpy())
                slope = max(slope, float(np.abs(moved - G).max() / h))
            assert G.max() <= c.sup * (1 + 1e-9) and G.min() >= c.epsilon * (1 - 1e-9)
            assert slope <= c.lip_left * (1 + 1e-5)
            assert np.ptp(a, axis=1).max() <= c.log_oscillation + 1e-9
            assert math.isclose(
                c.diameter, np.abs(inside[:, None] - inside).sum(-1).max(), rel_tol=0.02
            )
            if exact:
                assert math.isclose(G.max(), c.sup, rel_tol=0.02)
                assert math.isclose(G.min(), c.epsilon, rel_tol=0.02)
                assert slope > 0.95 * c.lip_left
            x = inside[17]
            at = potential.constants_at(x, domain)
            row = potential.scores(x[None], inside).to_numpy()[0]
            assert row.max() <= at.log_sup + 1e-9 and row.min() >= at.log_inf - 1e-9
            assert at.log_sup <= c.log_sup + 1e-9 and at.log_inf >= c.log_inf - 1e-9
            assert np.ptp(row) <= at.log_oscillation + 1e-9


def dense_jacobian(A: AttentionKernel, mu: Measure, h: float = 1e-6) -> Array:
    X = mu.points
    columns = []
    for k in range(X.size):
        e = np.zeros(X.size)
        e[k] = h
        step = e.reshape(X.shape)
        plus, minus = (A(Measure(Z, mu.weights)).attend(Z) for Z in (X + step, X - step))
        columns.append(((plus - minus) / (2 * h)).reshape(-1))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("potential", ["dot", "bilinear", "factored", "gaussian"])
@pytest.mark.parametrize("n", [1, 2, 7, 9, 65])
def test_jacobian(monkeypatch: pytest.MonkeyPatch, weighted: bool, potential: str, n: int) -> None:
    """MTA-3: products with the Jacobian and its transpose, both norms, against finite differences."""
    rng = np.random.default_rng(n)
    W, M = rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
    G: Potential = {
        "dot": DotPotential(0.6),
        "bilinear": DotPotential(0.6, W),
        "factored": DotPotential(0.6, (W[:, :2], W[:2])),
        "gaussian": GaussianPotential(0.7),
    }[potential]
    w = rng.random(n) + 0.1
    mu = Measure(rng.normal(size=(n, 3)), w / w.sum() if weighted else None)
    A = AttentionKernel(G, LinearLookup(M, np.ones(2)))
    J = AttentionJacobian(A, mu)
    want = dense_jacobian(A, mu)
    np.testing.assert_allclose(J.to_numpy(), want, atol=1e-8)
    D, U = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    np.testing.assert_allclose((J.apply(D) * U).sum(), (J.transpose(U) * D).sum(), atol=1e-12)
    top = J.spectral_norm(tol=1e-9)
    assert top.converged
    np.testing.assert_allclose(top.value, np.linalg.norm(want, 2), rtol=1e-6)
    v = mu.weights
    exact = float(((np.repeat(v, 2) @ np.abs(want)) / np.repeat(v, 3)).max())
    got = J.w1_norm().value
    np.testing.assert_allclose(got, exact, rtol=1e-6)
    # By the ascent that is used for large problems.
    monkeypatch.setattr(measure._jacobian, "_ALL_COLUMNS", 0)
    assert 0.8 * exact <= J.w1_norm().value <= exact * (1 + 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_jacobian_of_many_particles(dtype: str) -> None:
    """MTA-3: several tiles each way, both precisions; the local constant is that of small moves."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4)).astype(dtype)
    A = AttentionKernel(DotPotential.scaled(4))
    J = AttentionJacobian(A, X)
    D = rng.normal(size=X.shape).astype(dtype)
    double = AttentionJacobian(A, X.astype(np.float64))
    tol = 3e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(J.apply(D), double.apply(D.astype(np.float64)), atol=tol)
    np.testing.assert_allclose(
        J.transpose(D), double.transpose(D.astype(np.float64)), atol=10 * tol
    )
    assert J.apply(D).dtype == dtype
    np.testing.assert_array_equal(J.apply(D, n_threads=1), J.apply(D, n_threads=2))
    np.testing.assert_array_equal(J.transpose(D, n_threads=2), J.transpose(D, n_threads=2))
    one, two = J.transpose(D, n_threads=1), J.transpose(D, n_threads=2)
    np.testing.assert_allclose(one, two, atol=10 * tol)
    h = 1e-5
    X64, D64 = X.astype(np.float64), D.astype(np.float64)
    moved = (A.self_attention(X64 + h * D64) - A.self_attention(X64 - h * D64)) / (2 * h)
    np.testing.assert_allclose(double.apply(D64), moved, atol=1e-7)
    top = J.spectral_norm()
    assert np.linalg.norm(moved) <= top.value * np.linalg.norm(D64) * 1.01


@pytest.mark.parametrize("seed", range(8))
def test_corollary_24(seed: int) -> None:
    """MTA-3, corollary 24: the Euclidean bound for one query, above its derivative and all differences."""
    rng = np.random.default_rng((seed, 24))
    potential, domain = random_problem(rng)
    d = domain.dim
    A = AttentionKernel(potential, LinearLookup(rng.normal(size=(d, d))))
    X = domain.sample(9, rng)
    report = lipschitz(A, X, domain=domain)
    query = report.query
    assert 0 < query.measured <= query.bound * (1 + 1e-9)
    assert query.bound <= query.printed * (1 + 1e-9) and query.printed_holds
    a, b = domain.sample(50, rng), domain.sample(50, rng)
    moved = np.linalg.norm(A(X).attend(a) - A(X).attend(b), axis=1)
    assert (moved <= query.bound * np.linalg.norm(a - b, axis=1) * (1 + 1e-9) + 1e-14).all()
    assert report.spectral.converged and "products" in str(report)


def test_corollary_24_is_attained() -> None:
    """MTA-3: two keys at the ends of a diameter, equal weights: the sharp reading with equality."""
    domain, potential = Ball(0.7, dim=2), DotPotential(1.3)
    keys = np.array([[0.7, 0.0], [-0.7, 0.0]])
    report = lipschitz(AttentionKernel(potential), keys, domain=domain, climbs=100)
    assert math.isclose(report.query.sharp, 1.3 * 0.7**2, rel_tol=1e-12)
    assert math.isclose(report.query.measured, report.query.sharp, rel_tol=1e-4)


def test_gaussian_bound_on_all_of_space() -> None:
    """MTA-3, theorem 29 and corollary 30: equal and unequal lengths, random and adversarial measures."""
    rng = np.random.default_rng(0)
    for trial in range(400):
        d, n = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        X = rng.normal(size=(n, d)) * 10 ** rng.uniform(-1, 1)
        if trial % 3 == 0:  # one point moves, the others stay
            Y = X.copy()
            Y[0] += 0.01 * rng.normal(size=d)
        elif trial % 3 == 1:  # a shorter or longer sequence
            Y = np.vstack([X, rng.normal(size=(int(rng.integers(1, 4)), d))])
        else:
            Y = X + rng.normal(size=X.shape) * 10 ** rng.uniform(-2, 1)
        A = AttentionKernel(GaussianPotential(10 ** rng.uniform(-1, 1)))
        found = gaussian_lipschitz(A, X, Y)
        assert found.measured <= found.bound * (1 + 1e-9)
        assert not found.printed_holds
    # A star of far points, each of which attends to itself and the centre; the moving centre moves all of
    # them.
    for d in (4, 16, 64):
        r = math.sqrt(math.log(2 * d) / 2)
        X = np.vstack([np.zeros(d), r * np.eye(d), -r * np.eye(d)])
        Y = X.copy()
        Y[0, 0] = 1e-4
        found = gaussian_lipschitz(AttentionKernel(GaussianPotential()), X, Y)
        assert 1 < found.measured <= found.bound
    weighted = Measure(X, np.append(0.5, np.full(2 * d, 0.25 / d)))
    assert gaussian_lipschitz(AttentionKernel(GaussianPotential()), weighted, Y).bound == math.inf


def test_columns_of_a_normalised_kernel() -> None:
    """MTA-3: the lemma behind the Gaussian bound: columns sum to at most sqrt(n); the star comes close."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        n, d = int(rng.integers(1, 30)), int(rng.integers(1, 6))
        P = measure.softmatch(
            GaussianPotential(10 ** rng.uniform(-2, 2)), X := rng.normal(size=(n, d)), X
        )
        assert P.to_numpy().sum(axis=0).max() <= math.sqrt(n) * (1 + 1e-12)
    d = 4000
    r = math.sqrt(math.log(d) / 2)
    s = np.exp(-(r**2))  # each of d far points: itself 1, the centre s, the others s^2
    assert d * s / (1 + s + (d - 1) * s**2) > 0.45 * math.sqrt(d)


def test_proposition_28_fails_as_printed() -> None:
    """MTA-3, erratum 10: one near point moves, N - 2 are far away: the printed factor lacks an N."""
    N, h = 400, 1e-3
    far = 50 + np.arange(N - 2.0)
    X = np.concatenate([[0.0, 0.7], far])[:, None]
    Y = X.copy()
    Y[1] += h
    found = softmatch_perturbation(X[0], Y[0], X, Y)
    assert math.isclose(found.distance, h / N, rel_tol=1e-9)
    assert found.printed_violated
    assert found.measured > 10 * found.printed
    assert found.measured <= found.bound
    rng = np.random.default_rng(2)
    for _ in range(200):
        n, d = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        X, beta = rng.normal(size=(n, d)), 10 ** rng.uniform(-1, 1)
        Y = X + rng.normal(size=(n, d)) * 10 ** rng.uniform(-3, 0)
        found = softmatch_perturbation(X[0], Y[0], X, Y, beta=beta)
        assert found.measured <= found.bound * (1 + 1e-9)


@pytest.mark.parametrize("beta", [0.25, 1.0, 9.0])
def test_softmatch_perturbations_are_in_units_of_the_points(beta: float) -> None:
    """One particle each: both softmatch measures are Diracs, 3 apart in l1, whatever beta."""
    X, Y = np.array([[0.0, 0.0]]), np.array([[1.0, -2.0]])
    found = softmatch_perturbation(X[0], Y[0], X, Y, beta=beta)
    assert math.isclose(found.measured, 3.0, rel_tol=1e-14)
    assert math.isclose(found.distance, 6.0, rel_tol=1e-14)
    assert found.bound == softmatch_perturbation(X[0], Y[0], X, Y).bound


def cube_and_centre(d: int, s: float) -> float:
    """The W1 constant of a cube of 2^d particles at (+-s, ..., +-s) when the one at its centre moves.

    All particles of the cube are alike, so sums over it are d-th powers.
    """
    t = math.exp(-s * s)
    Z = (1 + t**4) ** d + t**d
    p = t**d / Z  # what a corner gives to the centre
    mean = (1 - t**4) / (1 + t**4) * (1 + t**4) ** d / Z  # its output, in units of s
    moved = abs(p - 2 * p * s * s * mean) + (d - 1) * 2 * p * s * s * mean
    return 2.0**d * moved


def test_theorem_29_fails_as_printed() -> None:
    """MTA-3, erratum 10: a cube in 44 dimensions and up: above the printed factor, below ours."""
    A = AttentionKernel(GaussianPotential())
    for d in (2, 5, 9):  # the closed form, checked where the cube can be written down
        X = np.vstack(
            [np.zeros(d), 0.55 * np.array(list(itertools.product([-1.0, 1.0], repeat=d)))]
        )
        D = np.zeros_like(X)
        D[0, 0] = 1
        moved = np.abs(AttentionJacobian(A, X).apply(D)[1:]).sum()
        assert math.isclose(moved, cube_and_centre(d, 0.55), rel_tol=1e-10)
        assert moved <= AttentionJacobian(A, X).w1_norm().value * (1 + 1e-12)
    for d, excess in ((44, 1.2), (64, 11.0)):
        found = max(cube_and_centre(d, s) for s in np.linspace(0.3, 0.9, 61))
        N = 2**d + 1
        assert found > excess * 2 * d * printed_factor(N, d)
        assert found < gaussian_factor(N, float(N), d)


def test_neighbourhoods() -> None:
    """MTA-3, proposition 25: removing words: W1 by the matching of section 6.1, order irrelevant."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, size=(8, 2))
    A, domain = AttentionKernel(GaussianPotential(0.5)), Box([-1, -1.0], [1, 1])
    full, less = (
        neighbourhood(A, X[0], X, X[:6], domain),
        neighbourhood(A, X[0], X[::-1], X[:6], domain),
    )
    assert math.isclose(full.distance, w1(X, X[:6])) and full.measured <= full.bound
    assert math.isclose(full.measured, less.measured, rel_tol=1e-9)
    assert neighbourhood(A, X[0], X, X, domain).measured == 0


P = np.zeros((3, 2))
DOT = AttentionKernel(DotPotential())
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: contraction(DotPotential(), Ball(1, dim=2)), TypeError, r"kernel.*AttentionKernel"),  # type: ignore[arg-type]
    (lambda: contraction(DOT, Ball(1, dim=2), data=P + 5), ValueError, r"data.*3 outside.*around"),
    (lambda: contraction(DOT, Ball(1, dim=3), data=P), ValueError, r"data.*3 dimensions"),
    (lambda: contraction(DOT, Ball(1, dim=2), samples=0), ValueError, r"samples.*got 0"),
    (lambda: lipschitz(DOT, P, domain=Ball(1, dim=3)), ValueError, r"domain.*2 dimensions"),
    (
        lambda: AttentionJacobian(AttentionKernel(DotPotential(), FunctionLookup(np.sin)), P).apply(
            P
        ),
        NotImplementedError,
        r"FunctionLookup has no derivative",
    ),
    (lambda: AttentionJacobian(DOT, P).apply(np.zeros((2, 2))), ValueError, r"direction.*\(3, 2\)"),
    (lambda: AttentionJacobian(DOT, P).transpose(P[:1]), ValueError, r"cotangent.*\(3, 2\)"),
    (lambda: gaussian_lipschitz(DOT, P, P + 1), TypeError, r"kernel.*GaussianPotential"),
    (
        lambda: gaussian_lipschitz(AttentionKernel(GaussianPotential()), P, P),
        ValueError,
        r"mu, nu.*different",
    ),
    (lambda: softmatch_perturbation(P[0] + 1, P[0], P, P), ValueError, r"x.*point of its measure"),
    (lambda: neighbourhood(DOT, P[0], P, P + 9, Ball(1, dim=2)), ValueError, r"mu_hat.*outside"),
    (
        lambda: contraction(
            AttentionKernel(FunctionPotential(lambda X, Y: X @ Y.T)), Ball(1, dim=2)
        ),
        ValueError,
        r"constants.*PotentialConstants",
    ),
    (lambda: DotPotential(1.0, np.eye(3)).constants(Ball(1, dim=2)), ValueError, r"W.*\(2, 2\)"),
]


@pytest.mark.parametrize(("call", "error", "pattern"), BAD)
def test_bad_input(call: Callable[[], object], error: type[Exception], pattern: str) -> None:
    """MTA-3: kernels without bounds, points outside the set, wrong shapes: refused with a reason."""
    with pytest.raises(error, match=pattern):
        call()
