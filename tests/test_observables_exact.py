"""Exact distances beyond the line, and a bound on the radius that holds for fast and peaked V(t)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import qkcore as qk
from qkcore import observables as ob
from qkcore._linear_transport import least_cost

I1, I2 = np.eye(1), np.eye(2)


# ---- Wasserstein distances ------------------------------------------------------------------------


def brute_force(X: Any, Y: Any, p: float) -> float:
    cost = cdist(X.astype(float), Y.astype(float)) ** p
    n = len(X)
    least = min(cost[np.arange(n), list(s)].mean() for s in itertools.permutations(range(n)))
    return float(least ** (1 / p))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
def test_wasserstein_against_all_permutations(p: float, d: int, dtype: str) -> None:
    rng = np.random.default_rng(d)
    for n in (1, 2, 6):
        X, Y = rng.normal(size=(2, n, d)).astype(dtype)
        wanted = brute_force(X, Y, p)
        equal = np.full(n, 1 / n)
        assert ob.wasserstein(X, Y, p=p) == pytest.approx(wanted, rel=1e-10)
        assert ob.wasserstein(X, Y, equal, equal, p=p) == pytest.approx(wanted, rel=1e-10)
        # A point without weight makes the code use the linear programme for general weights.
        some = np.append(equal, 0.0)
        more = np.concatenate([X, 9 + X[:1]])
        assert ob.wasserstein(more, Y, some, equal, p=p) == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_wasserstein_of_any_weights_against_split_atoms(p: float) -> None:
    """Masses that are multiples of 1/60, split into 60 equal atoms; also n of one size and m of another."""
    rng = np.random.default_rng(5)
    for n, m in ((4, 7), (10, 60), (1, 9)):
        X, Y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2)) + 0.3
        a, b = rng.multinomial(60, np.full(n, 1 / n)), rng.multinomial(60, np.full(m, 1 / m))
        cost = cdist(np.repeat(X, a, axis=0), np.repeat(Y, b, axis=0)) ** p
        wanted = cost[linear_sum_assignment(cost)].mean() ** (1 / p)
        assert ob.wasserstein(X, Y, a / 60, b / 60, p=p) == pytest.approx(wanted, rel=1e-8)


def test_large_and_small_distances_keep_their_power() -> None:
    X, Y = np.random.default_rng(0).normal(size=(2, 5, 2))
    for scale in (1e-120, 1e120):
        for p in (1.0, 2.0, 8.0):
            got = ob.wasserstein(scale * X, scale * Y, p=p)
            assert got == pytest.approx(scale * ob.wasserstein(X, Y, p=p), rel=1e-10)


@pytest.mark.parametrize("power", [1, 2])
def test_the_programme_beyond_forty_thousand_pairs_is_exact(power: int) -> None:
    """Prices of an entropic problem choose its first routes; the assignment of copies says what is right."""
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(150, 2)), rng.normal(size=(450, 2))
    cost = cdist(X, Y) ** power
    copies = np.repeat(cost, 3, axis=0)
    wanted = copies[linear_sum_assignment(copies)].mean()
    got = least_cost(cost, np.full(150, 1 / 150), np.full(450, 1 / 450))
    assert got == pytest.approx(wanted, rel=1e-9)
    assert ob.wasserstein(X, Y, p=power) ** power == pytest.approx(wanted, rel=1e-9)


def test_auto_never_estimates() -> None:
    X, Y = np.zeros((3500, 2)), np.ones((3000, 2))
    with pytest.raises(ValueError, match=r'method="exact" to wait for it, method="sinkhorn"'):
        ob.wasserstein(X, Y)
    with pytest.raises(ValueError, match=r'epsilon: wanted None for method="auto"'):
        ob.wasserstein(X[:9], Y[:9], epsilon=0.1)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_mean_field_convergence_in_the_plane_is_exact(p: float) -> None:
    """Q = 0 and V = 0: nothing moves, so the distances are those of the draws, by copies and assignment."""
    field = qk.AttentionField("softmax", Q=0 * I2, K=I2, V=0 * I2)
    drawn: list[Any] = []

    def sample(n: int, rng: np.random.Generator) -> Any:
        drawn.append(rng.normal(size=(n, 2)))
        return drawn[-1]

    found = ob.mean_field_convergence(
        field, sample, [50, 150], 1.0, n_reference=450, n_trials=2, p=p, method="euler", n_steps=1
    )
    assert found.transport == "exact"
    reference, wanted = drawn[0], []
    for X in drawn[1:]:
        cost = cdist(np.repeat(X, 450 // len(X), axis=0), reference) ** p
        wanted.append(cost[linear_sum_assignment(cost)].mean() ** (1 / p))
    np.testing.assert_allclose(found.distances, np.reshape(wanted, (2, 2)).mean(1), rtol=1e-8)
    if p == 2:
        estimate = ob.mean_field_convergence(
            field,
            sample,
            [50, 150],
            1.0,
            n_reference=450,
            n_trials=2,
            transport="sinkhorn",
            method="euler",
            n_steps=1,
        )
        assert estimate.transport == "sinkhorn"
        ratio = estimate.distances / found.distances
        assert (ratio < 1).all() and (ratio > 0.88).all()  # low, as the text says


def test_mean_field_convergence_of_a_single_place_has_no_rate() -> None:
    field = qk.AttentionField("softmax", Q=I2, K=I2, V=I2)
    found = ob.mean_field_convergence(
        field, lambda n, rng: np.ones((n, 2)), [4, 8], 0.1, n_reference=16, n_trials=1
    )
    assert (found.distances < 1e-12).all()
    assert math.isnan(found.rate) or found.distances.all()


def test_stability_of_many_particles_in_the_plane() -> None:
    """x' = x for every particle when all scores are 0 and V acts on the mean: W1 between clouds, exactly."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2100, 2))
    field = qk.AttentionField("softmax", Q=0 * I2, K=I2, V=0 * I2)
    found = ob.stability(field, X, [0.5], n_trials=1, p=1.0, size=1e-3, method="euler", n_steps=1)
    assert found.transport == "exact" and found.constant[0] == pytest.approx(1.0, abs=1e-12)


def test_stability_names_its_arguments() -> None:
    field = qk.AttentionField("softmax", Q=I2, K=I2, V=I2)
    X = np.random.default_rng(0).normal(size=(5, 2))
    for t in ([0.0, 1.0], [1.0, 0.5], -1.0):
        with pytest.raises(ValueError, match=r"t: wanted rising times"):
            ob.stability(field, X, t)
    with pytest.raises(ValueError, match=r"size: wanted noise that changes X0 in float32"):
        ob.stability(field, X.astype(np.float32), [0.1], size=1e-20)
    with pytest.raises(ValueError, match=r"transport: wanted one of"):
        ob.stability(field, X, [0.1], transport="best")


# ---- the radius -----------------------------------------------------------------------------------


def one_particle(size: Any, **more: Any) -> qk.AttentionField:
    """x' = size(t) x, whose radius is R0 exp of the integral of the size: the bound is reached."""
    return qk.AttentionField("softmax", Q=I1, K=I1, V=lambda t: size(t) * I1, **more)


def test_radius_bound_holds_for_a_fast_v() -> None:
    """V = sin²(1000πt): nodes of equal spacing see only zeros, the particle reaches e^½."""
    field = one_particle(lambda t: math.sin(1000 * math.pi * t) ** 2)
    bound = float(ob.radius_bound(field, 1.0, 1.0))
    assert math.exp(0.5) <= bound <= 1.05 * math.exp(0.5)
    assert float(ob.radius_bound(field, 1.0, 1.0, V_bound=1.0)) == pytest.approx(math.e, rel=1e-11)


@pytest.mark.parametrize("seed", range(8))
def test_radius_bound_holds_for_random_fast_and_peaked_v(seed: int) -> None:
    """Sums of waves and of peaks whose integrals are known, at several times at once."""
    rng = np.random.default_rng(seed)
    wave = 10 ** rng.uniform(0, 2.9) * math.pi
    centre, width = rng.uniform(0.1, 0.9), 10 ** rng.uniform(-3, -0.5)
    height, shift = rng.uniform(0.1, 2.0, 2)

    def size(t: float) -> float:
        bell = height / width * math.exp(-0.5 * ((t - centre) / width) ** 2)
        return shift + math.cos(wave * t) ** 2 + bell

    def integral(t: float) -> float:
        root = width * math.sqrt(2)
        bell = math.erf((t - centre) / root) - math.erf(-centre / root)
        plain = shift * t + t / 2 + math.sin(2 * wave * t) / (4 * wave)
        return plain + height * math.sqrt(math.pi / 2) * bell

    times = np.array([0.2, 1.0, 0.55])
    exact = np.array([integral(t) for t in times])
    got = np.log(ob.radius_bound(one_particle(size), 1.0, times))
    assert (got >= exact * (1 - 1e-12)).all()
    assert (got <= exact * 1.2 + 0.05).all()


def test_radius_bound_of_smooth_v_is_sharp_and_jumps_are_no_fault() -> None:
    smooth = one_particle(lambda t: 1 + t)
    np.testing.assert_allclose(np.log(ob.radius_bound(smooth, 1.0, 1.0)), 1.5, rtol=2e-5)
    jump = one_particle(lambda t: 5.0 * (t > 0.7712))
    got = math.log(ob.radius_bound(jump, 1.0, 1.0))
    assert 5 * (1 - 0.7712) <= got < 1.15
    # Only Q depends on time: the integral of a constant is exact.
    only_q = qk.AttentionField("softmax", Q=lambda t: t * I1, K=I1, V=2 * I1)
    assert float(ob.radius_bound(only_q, 1.0, 0.5)) == math.e


def test_radius_bound_refuses_what_it_cannot_integrate() -> None:
    with pytest.raises(RuntimeError, match=r"V: its norm varies too fast .* pass V_bound="):
        ob.radius_bound(one_particle(lambda t: abs(math.sin(1e6 * t))), 1.0, 1.0)


def test_a_bound_of_v_over_intervals_makes_a_proof() -> None:
    """A peak of width 1e-7 that no sample sees: only the caller can know of it."""
    size = one_particle(lambda t: 1e7 * max(0.0, 1 - abs(t - 1 / 3) * 1e7))

    def above(a: float, b: float) -> float:
        near = max(0.0, a - 1 / 3, 1 / 3 - b)
        return 1e7 * max(0.0, 1 - near * 1e7)

    assert 1.0 <= math.log(ob.radius_bound(size, 1.0, 1.0, V_bound=above)) < 1.1
    wave = one_particle(lambda t: math.sin(50 * t) ** 2)

    def slope(a: float, b: float) -> float:
        return max(math.sin(50 * a) ** 2, math.sin(50 * b) ** 2) + 25 * (b - a)

    exact = 0.5 - math.sin(100) / 200
    assert exact <= math.log(ob.radius_bound(wave, 1.0, 1.0, V_bound=slope)) <= exact + 0.05
    with pytest.raises(ValueError, match=r"V_bound: wanted at least the norm of V on \[0, 1\]"):
        ob.radius_bound(wave, 1.0, 1.0, V_bound=0.01)
    with pytest.raises(ValueError, match=r"V_bound: wanted None for a V that is not a function"):
        ob.radius_bound(qk.AttentionField("softmax", Q=I1, K=I1, V=I1), 1.0, 1.0, V_bound=1.0)


def test_radius_bound_of_heads_and_epsilon_that_depend_on_time() -> None:
    rng = np.random.default_rng(2)
    V = rng.normal(size=(2, 2, 2))
    field = qk.AttentionField(
        "sinkhorn", Q=np.eye(4, 2), K=np.eye(4, 2), V=lambda t: V * (1 + t), heads=2, epsilon=2.0
    )
    exact = np.linalg.norm(V, 2, axis=(1, 2)).sum() * 1.5 / 2
    assert math.log(ob.radius_bound(field, 1.0, 1.0)) == pytest.approx(exact, rel=2e-5)
    shared = qk.AttentionField("softmax", Q=np.eye(4, 2), K=np.eye(4, 2), V=lambda t: V[0], heads=2)
    exact = 2 * float(np.linalg.norm(V[0], 2))
    assert math.log(ob.radius_bound(shared, 1.0, 1.0)) == pytest.approx(exact, rel=1e-9)
