"""Observables of particle flows (TPDE-2), each compared with another computation or with a law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import sqrtm
from scipy.spatial.distance import pdist
from scipy.stats import wasserstein_distance

import qkcore as qk
from qkcore import observables as ob
from tests import reference_particles as reference

I2 = np.eye(2)


# ---- radius -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn", "sigmoid"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_particles_stay_within_the_radius_bound(kind: str, mask: Any) -> None:
    """TPDE-2, theorems 3.1 and 3.4; two heads add their norms, epsilon divides."""
    rng = np.random.default_rng(0)
    Q, K, X = rng.normal(size=(2, 2)), rng.normal(size=(2, 2)), rng.normal(size=(10, 2))
    V = rng.normal(size=(2, 2, 2))
    more: dict[str, Any] = {"epsilon": 2.0} if kind == "sinkhorn" else {}
    field = qk.AttentionField(kind, Q=Q, K=K, V=V, heads=2, mask=mask, **more)
    sol = qk.flow(field, X, (0.0, 0.5), rtol=1e-8)
    bound = ob.radius_bound(field, float(ob.radius(X)), sol.t)
    assert (ob.radius(sol.x) <= bound * (1 + 1e-9)).all()
    norms = np.linalg.norm(V, 2, axis=(1, 2)).sum() / field.epsilon
    assert abs(bound[-1] / bound[0] - np.exp(0.5 * norms)) < 1e-9 * bound[-1]


def test_radius_bound_is_reached() -> None:
    """Everything at one point and V = I: x' = x."""
    field = qk.AttentionField("softmax", Q=I2, K=I2, V=I2)
    sol = qk.flow(field, np.ones((3, 2)), (0.0, 1.0), rtol=1e-11, atol=1e-12)
    assert abs(ob.radius(sol.x[-1]) / ob.radius_bound(field, 2**0.5, 1.0) - 1) < 1e-9


def test_radius_bound_of_layers_and_its_refusals() -> None:
    V = np.stack([I2, 3 * I2])
    field = qk.AttentionField("softmax", Q=I2, K=I2, V=V, times=[0.0, 1.0])
    assert abs(ob.radius_bound(field, 1.0, 1.5) - np.exp(1 + 1.5)) < 1e-12 * np.exp(2.5)
    assert ob.radius_bound(field, 1.0, [0.0, 1.0]).tolist() == [1.0, np.exp(1.0)]
    for kind in ("exp", "relu", "linear"):
        with pytest.raises(
            ValueError,
            match=f"field.kind: wanted .*, got '{kind}'; no other kind has a radius bound",
        ):
            ob.radius_bound(qk.AttentionField(kind, Q=I2, K=I2, V=I2), 1.0, 1.0)
    with pytest.raises(ValueError, match="t: wanted times from t0"):
        ob.radius_bound(field, 1.0, -1.0)


def test_lipschitz_bounds_hold_and_the_printed_one_for_l2_does_not() -> None:
    """TPDE 3.1 (ii): two points, Q = K = V = 1, at the middle: the slope is 2 R^2, not R^2."""
    points = np.array([[-1.0], [1.0]])
    one = np.eye(1)

    def slope(kind: str) -> float:
        field = qk.AttentionField(kind, Q=one, K=one, V=one, weights=[1.0, 1.0, 0.0, 0.0])
        h = 1e-5
        v = field(np.concatenate([points, [[h], [-h]]]))
        return float((v[2] - v[3])[0] / (2 * h))

    for kind, factor in (("softmax", 1.0), ("l2", 2.0), ("sigmoid", 0.25)):
        field = qk.AttentionField(kind, Q=one, K=one, V=one)
        bound = ob.field_lipschitz_bound(field, 1.0)
        assert bound == factor
        assert slope(kind) <= bound * (1 + 1e-6)
    assert slope("l2") > 1.99


# ---- clusters and angles ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 50, 200])
def test_clusters_are_single_linkage(n: int) -> None:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 2))
    for threshold in (0.05, 0.2, 0.5, 3.0):
        got = ob.clusters(X, threshold)
        assert got.sizes.sum() == n and (np.diff(got.sizes) <= 0).all()
        if n > 1:
            want = fcluster(linkage(pdist(X), "single"), threshold, "distance")
            same = want[:, None] == want[None]
            assert (same == (got.labels[:, None] == got.labels[None])).all()
        assert got.labels[0] == 0 and got.count == len(got.sizes)
    with pytest.raises(ValueError, match="threshold: wanted a finite number > 0"):
        ob.clusters(X, 0.0)


def test_angles() -> None:
    X = np.random.default_rng(1).normal(size=(300, 3))
    u = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = (u @ u.T)[np.triu_indices(300, 1)]
    got = ob.angles(X, tolerance=0.9)
    assert abs(got.mean - pairs.mean()) < 1e-14
    assert abs(got.std - pairs.std()) < 1e-13
    assert got.smallest == pytest.approx(pairs.min()) and got.largest == pytest.approx(pairs.max())
    assert got.aligned == (pairs >= 0.9).mean()
    with pytest.raises(ValueError, match="got one at 0"):
        ob.angles(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="at least two"):
        ob.angles(np.ones((1, 2)))


# ---- energies -----------------------------------------------------------------------------------


def test_interaction_energy() -> None:
    rng = np.random.default_rng(2)
    X, A, w = rng.normal(size=(20, 3)), 0.5 * rng.normal(size=(3, 3)), rng.uniform(size=20)
    plain = 0.5 * np.mean([np.exp((A @ x) @ y) for x in X for y in X])
    assert abs(ob.interaction_energy(X, A) - plain) < 1e-13 * plain
    mass = w / w.sum()
    pairs = np.array([[np.exp((A @ x) @ y) for y in X] for x in X])
    weighted = 0.5 * mass @ pairs @ mass
    assert abs(ob.interaction_energy(X, A, w) - weighted) < 1e-13 * weighted
    single = ob.interaction_energy(X.astype(np.float32), A)
    assert abs(single - plain) < 1e-5 * plain
    with pytest.raises(ValueError, match="A: wanted shape"):
        ob.interaction_energy(X, I2)


def test_softmax_flow_decreases_the_interaction_energy() -> None:
    """TPDE 5.4 with A symmetric and B = -V A^-T positive definite."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        A, L = rng.normal(size=(2, 3, 3))
        A = A + A.T
        V = -(L @ L.T) @ A.T
        field = qk.AttentionField("softmax", Q=A, K=np.eye(3), V=V)
        sol = qk.flow(field, 0.5 * rng.normal(size=(12, 3)), (0.0, 1.0), rtol=1e-9, atol=1e-10)
        energies = np.array([ob.interaction_energy(x, A) for x in sol.x])
        assert (np.diff(energies) <= 1e-12 * energies[:-1]).all()
        assert energies[-1] < energies[0]


def test_the_energy_may_increase_when_A_is_not_symmetric() -> None:
    """Erratum: B symmetric positive definite alone (TPDE 5.4) is not enough."""
    rng = np.random.default_rng(26)
    A, L = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    B = L @ L.T + 0.01 * I2
    X = rng.normal(size=(3, 2))
    field = qk.AttentionField("softmax", Q=A, K=I2, V=-B @ A.T)
    assert np.linalg.eigvalsh(B).min() > 0
    sol = qk.flow(field, X, (0.0, 1e-3), rtol=1e-10, atol=1e-12)
    growth = np.log(ob.interaction_energy(sol.x[-1], A) / ob.interaction_energy(X, A)) / 1e-3
    assert growth > 1.0


def test_sinkhorn_energy_and_its_gradient_flow() -> None:
    """TPDE 5.11: its value from the kernel itself; the field with A = A^T = -V is minus its gradient."""
    rng = np.random.default_rng(3)
    n, eps = 8, 0.8
    L = rng.normal(size=(2, 2))
    S = L @ L.T + 0.5 * I2
    half = np.real(sqrtm(S))
    X = rng.normal(size=(n, 2))
    field = qk.AttentionField("sinkhorn", Q=half, K=half, V=-S, epsilon=eps, sinkhorn_tol=1e-13)
    w = np.full(n, 1 / n)
    kappa = reference.sinkhorn_kernel(X, half, half, eps, w)
    cost = ((X @ half)[:, None] - (X @ half)[None]) ** 2
    kl = (kappa * (np.log(kappa) + cost.sum(-1) / (2 * eps))).mean()
    want = -0.5 * kl + 2 * ((X @ half) ** 2).sum(1).mean() / (4 * eps)
    assert abs(ob.sinkhorn_energy(X, field) - want) < 1e-9
    h, gradient = 1e-4, np.zeros((n, 2))
    for i in range(n):
        for a in range(2):
            up, down = X.copy(), X.copy()
            up[i, a] += h
            down[i, a] -= h
            gradient[i, a] = (ob.sinkhorn_energy(up, field) - ob.sinkhorn_energy(down, field)) / (
                2 * h
            )
    assert np.abs(field(X) + n * gradient).max() < 1e-5  # a particle carries mass 1/n
    sol = qk.flow(field, X, (0.0, 1.0), rtol=1e-8)
    energies = [ob.sinkhorn_energy(x, field) for x in sol.x]
    assert (np.diff(energies) <= 1e-10).all() and energies[-1] < energies[0]
    with pytest.raises(ValueError, match="field: wanted a sinkhorn field"):
        ob.sinkhorn_energy(X, qk.AttentionField("softmax", Q=I2, K=I2, V=I2))


# ---- Wasserstein --------------------------------------------------------------------------------


def test_exact_distances_agree_with_one_another() -> None:
    """Assignment, linear programme and sorting are three computations of the same number."""
    rng = np.random.default_rng(4)
    for p in (1.0, 2.0, 3.0):
        x, y = rng.normal(size=(2, 30, 1))
        flat = (
            np.concatenate([x, np.zeros((30, 1))], axis=1),
            np.concatenate([y, np.zeros((30, 1))], 1),
        )
        line = ob.wasserstein(x, y, p=p)
        assert abs(line - ob.wasserstein(*flat, p=p)) < 1e-12
        ones = np.ones(30)
        assert abs(line - ob.wasserstein(*flat, ones, ones, p=p)) < 1e-8
        a, b = rng.uniform(size=(2, 30))
        weighted = ob.wasserstein(x, y, a, b, p=p)
        assert abs(weighted - ob.wasserstein(*flat, a, b, p=p)) < 1e-7
        if p == 1:
            assert abs(weighted - wasserstein_distance(x[:, 0], y[:, 0], a, b)) < 1e-12


def test_wasserstein_laws() -> None:
    rng = np.random.default_rng(5)
    X, Y, Z = rng.normal(size=(3, 25, 3))
    assert ob.wasserstein(X, X) == 0
    assert ob.wasserstein(X, Y) == pytest.approx(ob.wasserstein(Y, X), rel=1e-12)
    assert ob.wasserstein(X, Z) <= ob.wasserstein(X, Y) + ob.wasserstein(Y, Z)
    c = np.array([1.0, 2.0, -2.0])
    assert ob.wasserstein(X, X + c) == pytest.approx(3.0, rel=1e-12)
    assert ob.wasserstein(X, Y, p=1) <= ob.wasserstein(X, Y, p=2)
    assert ob.wasserstein(X, Y[:10]) > 0


def test_entropic_distance_of_large_clouds() -> None:
    """Debiased: zero at zero, near the exact value, on the scale of the clouds."""
    rng = np.random.default_rng(6)
    X, Y = rng.normal(size=(300, 2)), rng.normal(size=(250, 2)) * [1.5, 0.5] + [1.0, 0.0]
    exact = ob.wasserstein(X, Y, method="exact")
    assert abs(ob.wasserstein(X, Y, method="sinkhorn") - exact) < 0.02 * exact
    assert ob.wasserstein(X, X, method="sinkhorn") < 1e-3
    for method, message in (("emd", "method: wanted one of 'auto', 'exact', 'sinkhorn'"),):
        with pytest.raises(ValueError, match=message):
            ob.wasserstein(X, Y, method=method)
    with pytest.raises(ValueError, match="p: wanted a number >= 1"):
        ob.wasserstein(X, Y, p=0.5)
    with pytest.raises(ValueError, match="Y: wanted points in 2 dimensions"):
        ob.wasserstein(X, rng.normal(size=(3, 3)))


def test_conditional_distance() -> None:
    """TPDE 3.2: per position, never below the free distance, equal when there is one position."""
    rng = np.random.default_rng(7)
    X, Y = rng.normal(size=(2, 30, 2))
    s = np.round(rng.uniform(size=30), 1)
    got = ob.conditional_wasserstein(X, Y, s)
    want = 0.0
    for tau in np.unique(s):
        at = s == tau
        want += at.mean() * ob.wasserstein(X[at], Y[at]) ** 2
    assert got == pytest.approx(want**0.5, rel=1e-12)
    assert got >= ob.wasserstein(X, Y)
    once = ob.conditional_wasserstein(X, Y, np.zeros(30))
    assert once == pytest.approx(ob.wasserstein(X, Y), rel=1e-12)
    order = rng.permutation(30)
    renamed = ob.conditional_wasserstein(X, Y[order], s, s[order])
    assert renamed == pytest.approx(got, rel=1e-12)
    apart = ob.conditional_wasserstein(X, Y, np.arange(30) / 30)
    assert apart == pytest.approx(np.sqrt(((X - Y) ** 2).sum(1).mean()), rel=1e-12)
    with pytest.raises(ValueError, match="positions_y: wanted the same positions as X"):
        ob.conditional_wasserstein(X, Y, s, np.zeros(30))
    moved = np.where(np.arange(30) == 0, s[1], s)
    if set(moved) == set(s):
        with pytest.raises(ValueError, match="positions_y: wanted mass"):
            ob.conditional_wasserstein(X, Y, s, moved)


# ---- stability and mean field -------------------------------------------------------------------


def test_stability_constant_of_a_linear_flow() -> None:
    """Q = 0: everything moves with V times the mean, so perturbations of mean 0 keep their size."""
    X = np.linspace(-1, 1, 40)[:, None]
    still = qk.AttentionField("softmax", Q=np.zeros((1, 1)), K=np.eye(1), V=np.zeros((1, 1)))
    assert np.allclose(ob.stability(still, X, [0.5, 1.0]).constant, 1.0)
    # All mass at one point, far from 0: the distance grows with x' = x, by e.
    grows = qk.AttentionField("softmax", Q=np.zeros((1, 1)), K=np.eye(1), V=np.eye(1))
    s = ob.stability(grows, X[:1], [1.0], n_trials=3, rtol=1e-9, atol=1e-10)
    assert np.allclose(s.constant, np.e, rtol=1e-6)
    assert s.ratios.shape == (3, 1) and not s.conditional


def test_stability_under_a_mask_is_conditional() -> None:
    """TPDE 3.4, and below the constant of the proof."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(20, 2))
    s = np.round(rng.uniform(size=20), 1)
    field = qk.AttentionField("softmax", Q=0.3 * I2, K=I2, V=0.5 * I2, mask=s)
    got = ob.stability(field, X, [0.2, 0.5], n_trials=3)
    assert got.conditional and got.ratios.shape == (3, 2)
    assert (got.constant > 0.5).all() and (got.constant < 5).all()


def test_mean_field_convergence_rate() -> None:
    """TPDE-2, theorem 3.1: in one dimension W2 falls about like n^-1/2."""
    field = qk.AttentionField("softmax", Q=np.eye(1), K=np.eye(1), V=-np.eye(1))
    found = ob.mean_field_convergence(
        field,
        lambda n, rng: rng.uniform(-1, 1, size=(n, 1)),
        [25, 100, 400],
        0.5,
        n_reference=4000,
        n_trials=8,
        rtol=1e-6,
    )
    assert (np.diff(found.distances) < 0).all()
    assert -0.65 < found.rate < -0.35
    with pytest.raises(ValueError, match="at least two sizes"):
        ob.mean_field_convergence(field, lambda n, rng: rng.normal(size=(n, 1)), [10], 1.0)
