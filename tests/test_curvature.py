"""Curvature, EVI and locking (EOT-12, EOT-13) against closed forms, duals and the attained bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkcore._linear_transport import least_cost
from qkcore.diagnostics import curvature

from .reference_diagnostics import Array, softmax, w1_dual

# W1


@given(st.integers(0, 10_000), st.integers(2, 7))
def test_w1_against_its_dual(seed: int, n: int) -> None:
    """EOT-12: primal (ours) equals Kantorovich's dual (another programme), on a line and in the plane."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(n, 0.5), size=2)
    x = rng.normal(size=n)
    line = np.abs(x[:, None] - x)
    wanted = w1_dual(p, q, line)
    assert float(curvature.w1(p, q, positions=x)) == pytest.approx(wanted, abs=1e-9)
    assert float(curvature.w1(p, q, points=x[:, None])) == pytest.approx(wanted, abs=1e-9)
    y = rng.normal(size=(n, 2))
    l1 = np.abs(y[:, None] - y).sum(axis=-1)
    wanted = w1_dual(p, q, l1)
    assert float(curvature.w1(p, q, points=y)) == pytest.approx(wanted, abs=1e-9)
    assert float(curvature.w1(q, p, distance=l1)) == pytest.approx(wanted, abs=1e-9)


def test_w1_agrees_with_an_assignment_and_scipy() -> None:
    from scipy.optimize import linear_sum_assignment
    from scipy.stats import wasserstein_distance

    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3))
    p = np.r_[np.full(8, 1 / 8), np.zeros(8)]
    D = np.linalg.norm(x[:8, None] - x[None, 8:], axis=-1)
    row, column = linear_sum_assignment(D)
    got = float(curvature.w1(p, p[::-1], points=x, metric="l2"))
    assert got == pytest.approx(D[row, column].mean(), abs=1e-9)
    q = rng.dirichlet(np.ones(16))
    wanted = wasserstein_distance(x[:, 0], x[:, 0], p, q)
    assert float(curvature.w1(p, q, positions=x[:, 0])) == pytest.approx(wanted)
    many = curvature.w1(np.stack([p, q]), q, positions=x[:, 0])
    assert many.shape == (2,) and many[1] == 0 and many[0] == pytest.approx(wanted)


@pytest.mark.parametrize("seed", [230, 390, 1516, 1692])
def test_least_cost_of_peaked_laws(seed: int) -> None:
    """Masses near the solver's tolerance: HiGHS' presolver calls these four infeasible."""
    rng = np.random.default_rng(seed)
    n, sharpness = int(rng.integers(3, 12)), rng.uniform(1, 30)
    p, q = (law / law.sum() for law in np.exp(sharpness * rng.normal(size=(2, n))))
    x = rng.normal(size=n)
    got = least_cost(np.abs(x[:, None] - x), p, q)
    assert got == pytest.approx(float(curvature.w1(p, q, positions=x)), abs=1e-10)


def test_w1_wants_equal_masses_to_the_precision_of_the_laws() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    p, q = rng.dirichlet(np.ones(300), size=2)
    wanted = float(curvature.w1(p, q, positions=x))
    single = [law.astype(np.float32) for law in (p, q)]  # sums differ by some 1e-8
    assert float(curvature.w1(*single, positions=x)) == pytest.approx(wanted, rel=1e-5)
    for a, b in ((p, q * (1 + 1e-7)), (single[0], single[1] * np.float32(1 + 1e-4))):
        with pytest.raises(ValueError, match="p, q: wanted the same mass in both"):
            curvature.w1(a, b, positions=x)


@pytest.mark.parametrize(("n", "d"), [(30, 1), (60, 2), (90, 12)])
def test_w1_of_larger_laws(n: int, d: int) -> None:
    """Column generation against the whole programme, and against the closed form where there is one."""
    import scipy.sparse as sp
    from scipy.optimize import linprog

    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, d))
    p, q = rng.dirichlet(np.full(n, 0.3), size=2)
    D = np.abs(x[:, None] - x).sum(axis=-1)
    rows = sp.kron(sp.identity(n), np.ones((1, n)))
    columns = sp.kron(np.ones((1, n)), sp.identity(n))
    A = sp.vstack([rows, columns]).tocsr()[:-1]
    whole: Any = linprog(D.ravel(), A_eq=A, b_eq=np.concatenate([p, q])[:-1], method="highs")
    got = float(
        curvature.w1(p, q, points=np.repeat(x, 2, axis=1) / 2)
    )  # with two columns the code for points on a line is not used
    assert got == pytest.approx(float(whole.fun), abs=1e-6)
    if d == 1:
        assert got == pytest.approx(float(curvature.w1(p, q, positions=x[:, 0])), abs=1e-11)


# Curvature


def test_known_curvatures() -> None:
    """EOT-12, eq 24: a lazy walk on a path is flat inside, the complete graph contracts to a point."""
    n = 9
    walk = 0.5 * np.eye(n) + 0.25 * (np.eye(n, k=1) + np.eye(n, k=-1))
    walk[0, 0] = walk[-1, -1] = 0.75
    inner = curvature.curvature(walk, pairs=[[3, 4], [4, 5]])
    # eq 24 restricts rows to their common support first: (2, 1) and (1, 2) thirds on two keys
    np.testing.assert_allclose(inner.gap, 1 / 3, atol=1e-14)
    full = curvature.curvature(0.25 * walk + 0.75 / n, pairs=[[3, 4]])
    np.testing.assert_allclose(
        full.gap, 0.25, atol=1e-14
    )  # the mixed part is shared, a quarter moves by one
    same = curvature.curvature(np.full((n, n), 1 / n))
    np.testing.assert_allclose(same.kappa, 1.0, atol=1e-14)


def test_causal_rows_are_compared_where_both_see() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(6, 6))
    z[np.triu_indices(6, 1)] = -np.inf
    found = curvature.curvature(softmax(z), pairs=[[2, 4]])
    a, b = softmax(z[2, :3]), softmax(z[4, :3])
    assert found.w1[0] == pytest.approx(float(curvature.w1(a, b, positions=np.arange(3.0))))
    assert found.distance[0] == 2 and found.gap[0] == pytest.approx(found.w1[0] / 2)
    apart = np.eye(4)[[0, 1, 1, 1]]
    few = curvature.curvature(apart, pairs=[[0, 1], [1, 2]])
    assert few.skipped == 1 and len(few.kappa) == 1
    with pytest.raises(ValueError, match=r"pairs.*none"):
        curvature.curvature(apart, pairs=[[0, 1]])


def test_points_for_queries_and_keys() -> None:
    rng = np.random.default_rng(2)
    Q, K = rng.normal(size=(5, 3)), rng.normal(size=(6, 3))
    P = softmax(Q @ K.T)
    found = curvature.curvature(P, queries=Q, keys=K, pairs=[[0, 3]])
    cost = np.abs(K[:, None] - K).sum(axis=-1)
    assert found.w1[0] == pytest.approx(w1_dual(P[0], P[3], cost), abs=1e-9)
    assert found.distance[0] == pytest.approx(np.abs(Q[0] - Q[3]).sum())


def test_the_gap_falls_with_temperature_like_one_over_it() -> None:
    """EOT-12 (P3): with small logits the gap is proportional to 1/tau, and to the key norm."""
    rng = np.random.default_rng(3)
    z = 0.01 * rng.normal(size=(30, 30))
    hot = curvature.curvature_sweep(z, temperatures=[1, 2, 4])
    assert hot.slope == pytest.approx(-1, abs=0.01)
    assert hot.reduction == pytest.approx(0.75, abs=0.01)
    cold = curvature.curvature_sweep(z, key_scales=[1, 0.5, 0.25])
    assert cold.slope == pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(cold.mean, hot.mean, rtol=1e-12)  # the metric of positions stays
    keys = rng.normal(size=(30, 2))
    both = curvature.curvature_sweep(z, key_scales=[1, 0.5], keys=keys, n_pairs=4)
    fixed = curvature.curvature_sweep(
        z, key_scales=[1, 0.5], keys=keys, n_pairs=4, scale_metric=False
    )
    np.testing.assert_allclose(both.mean[1], 0.5 * fixed.mean[1], rtol=1e-12)
    low, high = hot.reduction_interval
    assert low <= hot.reduction <= high and "reduced by" in str(hot)


def test_warming_can_widen_the_gap() -> None:
    """Not a law: two rows locked to one key agree when cold and part when warm."""
    z = np.array([[9.0, 0, 0, 3], [9, 3, 0, 0]])
    sweep = curvature.curvature_sweep(z, temperatures=[1, 2, 4])
    assert (np.diff(sweep.mean) > 0).all() and sweep.reduction < -10


# Locking


@given(st.integers(2, 30), st.floats(1e-3, 8), st.floats(1e-4, 6), st.integers(0, 10_000))
def test_locking_bound_holds(n: int, scale: float, eps: float, seed: int) -> None:
    """EOT-13 (P2), eq 23 made sharp: never exceeded, by random and by extreme changes, argmax kept or not."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(50, n))
    for dz in (
        rng.uniform(-eps, eps, size=z.shape),
        eps * rng.choice([-1.0, 1.0], size=z.shape),
        eps * np.where(z == z.max(axis=1, keepdims=True), -1.0, 1.0),
    ):
        p = softmax(z)
        tv = 0.5 * np.abs(softmax(z + dz) - p).sum(axis=1)
        tail = np.sort(p, axis=1)[:, :-1].sum(axis=1)
        bound = curvature.locking_bound(tail, 0.5 * np.ptp(dz, axis=1))
        assert (tv <= bound * (1 + 1e-9) + 1e-15).all()


@pytest.mark.parametrize("delta", [1e-8, 1e-3, 0.1, 0.3])
@pytest.mark.parametrize("eps", [1e-4, 0.1, 0.8])
def test_locking_bound_is_attained_and_the_printed_one_is_not_a_bound(
    delta: float, eps: float
) -> None:
    """EOT-13: tail up, top down attains it; eq 23 with alpha = 0 is exceeded by nearly two (erratum)."""
    p = np.r_[1 - delta, np.full(4, delta / 4)]
    z = np.log(p)
    moved = softmax(z + eps * np.r_[-1, np.ones(4)])
    tv = 0.5 * np.abs(moved - p).sum()
    bound = float(curvature.locking_bound(delta, eps))
    assert tv == pytest.approx(bound, rel=1e-9)
    printed = float(curvature.locking_bound(delta, eps, form="printed"))
    assert tv > 1.05 * printed
    if eps < 1e-3:
        assert tv / printed == pytest.approx(2 * (1 - delta), rel=1e-3)
    assert float(curvature.locking_bound(0.5, eps)) == pytest.approx(np.tanh(eps / 2))
    assert float(curvature.locking_bound(0.2, 1000.0)) <= 1


def test_locking_bound_of_tails_near_underflow() -> None:
    """A tail of 1e-280 and logits that move by 350: the odds come to e^700 1e-280, and all mass moves."""
    assert float(curvature.locking_bound(1e-280, 350.0)) == pytest.approx(1.0)
    assert float(curvature.locking_bound(1e-280, 300.0)) == pytest.approx(1e-280 * np.exp(600.0))
    assert float(curvature.locking_bound(0.0, 1e6)) == 0.0
    # The bound also holds for rows whose tail underflows and whose order the next layer reverses.
    z = np.zeros((2, 6, 3))
    z[0, :, 0], z[1, :, 1] = 2000.0, 2000.0
    found = curvature.locking(z)
    assert found.exceeding == 0.0 and found.bound[0] == 1.0


def test_locking_summary() -> None:
    rng = np.random.default_rng(4)
    base = 5 * rng.normal(size=(3, 40, 12))
    z = base + 0.05 * rng.normal(size=(4, 3, 40, 12))
    found = curvature.locking(z)
    assert found.exceeding == 0 and found.counts.sum() == 3 * 3 * 40
    filled = found.counts > 5
    assert (found.median[filled] <= found.bound[filled]).all()
    assert found.median[filled][0] < 0.1 * found.median[filled][-1]  # locked rows hardly move
    assert 0 <= found.alpha <= 1
    half = curvature.locking(z, tau=2.0)
    np.testing.assert_array_equal(half.counts, curvature.locking(z / 2).counts)
    masked = z.copy()
    masked[..., 5:] = -np.inf
    same = curvature.locking(z[..., :5].copy())
    np.testing.assert_allclose(curvature.locking(masked).median, same.median, rtol=1e-12)


# EVI


def test_sinkhorn_w2() -> None:
    """EOT-12: zero at equality, symmetric, and W2 squared as epsilon vanishes."""
    rng = np.random.default_rng(5)
    x = np.linspace(0, 1, 12)
    p, q = rng.dirichlet(np.ones(12), size=2)
    assert abs(float(curvature.sinkhorn_w2(p, p, x))) < 1e-9
    there, back = (float(curvature.sinkhorn_w2(*pair, x)) for pair in ((p, q), (q, p)))
    assert there == pytest.approx(back, rel=1e-6) and there > 0
    # exact W2 on a line: quantile coupling
    cuts = np.unique(np.concatenate([np.cumsum(p), np.cumsum(q)]).clip(0, 1))
    middle = np.concatenate([[0], cuts])
    mass, at = np.diff(middle), 0.5 * (middle[1:] + middle[:-1])
    i, j = (np.searchsorted(np.cumsum(r), at).clip(0, 11) for r in (p, q))
    exact = float((mass * (x[i] - x[j]) ** 2).sum())
    errors = [
        abs(float(curvature.sinkhorn_w2(p, q, x, epsilon=e)) - exact) for e in (0.1, 0.01, 0.002)
    ]
    assert errors[2] < errors[1] < errors[0] and errors[2] < 0.1 * exact
    plane = np.stack([x, np.zeros(12)], axis=1)
    assert float(curvature.sinkhorn_w2(p, q, plane)) == pytest.approx(there, rel=1e-6)


def test_evi_of_a_proximal_path() -> None:
    """EOT-12, eq 25: a path to the target progresses, one away from it does not."""
    rng = np.random.default_rng(6)
    start, target = rng.dirichlet(np.ones(8), size=2)
    s = np.linspace(0, 1, 6)[:, None]
    logs = (1 - s) * np.log(start) + s * np.log(target)
    rows = softmax(logs)
    found = curvature.evi(rows, np.arange(8.0))
    assert found.contracting == 1 and found.w2.shape == (6, 1)
    np.testing.assert_allclose(found.w2[-1], 0, atol=1e-8)
    assert (np.diff(found.gap[:, 0]) < 0).all() and found.gap[-1, 0] == pytest.approx(0, abs=1e-12)
    kl = float((rows[1] * np.log(rows[1] / rows[-1])).sum())
    assert found.gap[0, 0] == pytest.approx(kl)
    np.testing.assert_allclose(found.drift, found.progress + found.gap)
    away = curvature.evi(rows[::-1].copy(), np.arange(8.0), target=target, tau=2.0)
    assert away.contracting == 0 and "come nearer" in str(away)
    assert away.gap[-1, 0] == pytest.approx(2 * float((start * np.log(start / target)).sum()))


p3 = np.array([0.2, 0.3, 0.5])
P22 = np.full((2, 2), 0.5)
ERRORS: list[tuple[str, Any, type[Exception], str]] = [
    ("mass", lambda: curvature.w1(p3, 2 * p3, positions=np.arange(3.0)), ValueError, "same mass"),
    ("sign", lambda: curvature.w1(-p3, -p3, positions=np.arange(3.0)), ValueError, ">= 0"),
    ("support", lambda: curvature.w1(p3, p3), ValueError, "support.*one of"),
    (
        "length",
        lambda: curvature.w1(p3, p3, positions=np.arange(4.0)),
        ValueError,
        r"positions.*\(3,\)",
    ),
    ("metric", lambda: curvature.w1(p3, p3, distance=-np.eye(3)), ValueError, "distance.*metric"),
    ("rows", lambda: curvature.curvature(2 * P22), ValueError, "P:.*sum to 1"),
    ("nan", lambda: curvature.curvature(P22 * np.nan), ValueError, "P.*NaN"),
    ("pairs", lambda: curvature.curvature(P22, pairs=[[0, 0]]), ValueError, "pairs.*itself"),
    ("range", lambda: curvature.curvature(P22, pairs=[[0, 5]]), ValueError, "pairs.*0 to 1"),
    (
        "keys",
        lambda: curvature.curvature(P22, keys=np.zeros((3, 2))),
        ValueError,
        r"keys.*\(2, d\)",
    ),
    (
        "both",
        lambda: curvature.curvature_sweep(P22, temperatures=[1, 2], key_scales=[1, 2]),
        ValueError,
        "one of the two",
    ),
    ("factor", lambda: curvature.curvature_sweep(P22, temperatures=[1, -2]), ValueError, "> 0"),
    ("layers", lambda: curvature.locking(np.zeros((1, 3, 3))), ValueError, "logits.*two layers"),
    ("tail", lambda: curvature.locking_bound(2.0, 0.1), ValueError, "tail"),
    ("evi", lambda: curvature.evi(np.ones((3, 4)), np.arange(4.0)), ValueError, "rows.*sum to 1"),
    ("w2", lambda: curvature.sinkhorn_w2(p3, p3, np.arange(4.0)), ValueError, "support"),
]


@pytest.mark.parametrize(("name", "call", "error", "match"), ERRORS, ids=[e[0] for e in ERRORS])
def test_bad_input(name: str, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_arrays_are_not_written_to() -> None:
    z = np.random.default_rng(7).normal(size=(3, 6, 6))
    z.setflags(write=False)
    curvature.locking(z)
    curvature.curvature_sweep(z[0])
    P: Array = softmax(z[0])
    P.setflags(write=False)
    curvature.curvature(P)
