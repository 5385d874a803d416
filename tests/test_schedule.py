"""Entropy-driven temperatures and certified early exit (EOT-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkcore as qk
from qkcore.schedule import (
    EarlyExit,
    EntropySchedule,
    entropy_flow,
    motion_bound,
    temperature_for_entropy,
)
from tests import reference_simplex as ref


def entropy_at(z: ref.Array, tau: float) -> float:
    return float(ref.entropy(ref.softmax(z, tau)))


# ---- temperatures -------------------------------------------------------------------------------


def test_temperature_for_entropy() -> None:
    """EOT-15: the root, row by row; two tokens by hand."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 5, 6)) * 3
    z[0, 0, 2:] = -np.inf
    wanted = rng.uniform(0.1, 0.6, size=(4, 5))
    tau, reached = temperature_for_entropy(z, wanted)
    assert reached.all() and tau.shape == (4, 5)
    for i in np.ndindex(4, 5):
        row = z[i][np.isfinite(z[i])]
        assert entropy_at(row, tau[i]) == pytest.approx(wanted[i], abs=1e-12)
    p = 0.2
    h = -p * np.log(p) - (1 - p) * np.log(1 - p)
    got, ok = temperature_for_entropy(np.array([2.0, 0.0]), h)
    assert got == pytest.approx(2.0 / np.log((1 - p) / p), rel=1e-9) and ok


def test_entropies_out_of_reach() -> None:
    z = np.array([1.0, 1.0, 0.0])
    assert temperature_for_entropy(z, 0.5 * np.log(2.0)) == (
        pytest.approx(1e-3),
        False,
    )  # two are largest
    assert temperature_for_entropy(z, np.log(3.0) + 0.1) == (pytest.approx(1e3), False)
    assert temperature_for_entropy(z, 1.0, bounds=(0.1, 0.2)) == (pytest.approx(0.2), False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0.2, 5))
def test_entropy_rises_with_temperature(logits: list[float], tau: float) -> None:
    """What makes the feedback negative: dH/dtau = Var(z)/tau^3."""
    z = np.array(logits)
    p, h = ref.softmax(z, tau), 1e-4 * tau
    slope = (entropy_at(z, tau + h) - entropy_at(z, tau - h)) / (2 * h)
    variance = p @ z**2 - (p @ z) ** 2
    assert slope == pytest.approx(variance / tau**3, rel=1e-3, abs=1e-6)


def test_the_discrete_schedule_by_hand() -> None:
    """EOT-15: EMA, gain, clipping."""
    s = EntropySchedule(target=1.0, gain=0.5, smoothing=0.75, bounds=(0.5, 1.5), tau=1.0)
    assert s.update_entropy(0.4) == pytest.approx(np.exp(0.5 * 0.6))
    smoothed = 0.75 * 0.4 + 0.25 * 0.8
    assert s.smoothed is not None
    after = s.update_entropy(0.8)
    assert s.smoothed == pytest.approx(smoothed)
    assert after == 1.5 and s.n_clipped == 1
    for _ in range(50):
        s.update_entropy(5.0)
    assert s.tau == 0.5
    assert len(s.taus) == len(s.entropies) + 1 == 53
    assert "clipped" in repr(s)


@pytest.mark.parametrize("smoothing", [0.0, 0.8])
def test_the_schedule_holds_the_entropy_of_a_stack(smoothing: float) -> None:
    """Logits that grow layer by layer would lock; the schedule keeps the target."""
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(10, 16))
    s = EntropySchedule(1.5, gain=0.5, smoothing=smoothing, bounds=(0.01, 100))
    for layer in range(300):
        z = directions * (1 + layer / 50)
        s.update(z)
    assert np.mean([entropy_at(row, s.tau) for row in z]) == pytest.approx(1.5, abs=0.05)
    assert np.mean([entropy_at(row, 1.0) for row in z]) < 0.6


def test_a_target_that_depends_on_the_layer() -> None:
    s = EntropySchedule(lambda layer: 1.0 if layer < 60 else 0.5, smoothing=0.0)
    z = np.array([3.0, 1.0, 0.0, 0.0])
    found = []
    for _ in range(120):
        found.append(entropy_at(z, s.tau))
        s.update(z)
    assert found[59] == pytest.approx(1.0, abs=1e-3) and found[-1] == pytest.approx(0.5, abs=1e-3)


def test_the_continuous_schedule_is_the_limit() -> None:
    """EOT-15: steps of length h with gain r h and smoothing exp(-h/T) converge."""
    z, target, rate, lag, end = np.array([4.0, 0.0, 0.0, 1.0]), 1.0, 1.5, 0.3, 2.0
    flow = entropy_flow(
        lambda tau, t: entropy_at(z, tau), target, (0, end), rate=rate, time_constant=lag
    )
    assert flow.success and flow.status == "finished" and "finished" in str(flow)
    errors = []
    for n in (50, 100, 200):
        h = end / n
        s = EntropySchedule(target, gain=rate * h, smoothing=float(np.exp(-h / lag)))
        for _ in range(n):
            s.update(z)
        errors.append(abs(s.tau - flow.tau[-1]))
    assert errors[0] < 0.1
    ratios = [errors[0] / errors[1], errors[1] / errors[2]]
    assert all(r > 1.7 for r in ratios), ratios  # first order at least; 4 here, from rest


def test_the_continuous_schedule_is_clipped() -> None:
    flow = entropy_flow(
        lambda tau, t: 0.0, 5.0, (0, 50), bounds=(0.5, 2.0), t_eval=[0.0, 10.0, 50.0]
    )
    assert flow.tau[-1] == pytest.approx(2.0) and flow.t.tolist() == [0, 10, 50]


def test_a_target_that_ends_ends_the_schedule() -> None:
    flow = entropy_flow(lambda tau, t: 1.0, lambda t: 0.5 if t < 0.5 else np.nan, (0, 1))
    assert flow.status == "blew up" and not flow.success and flow.t[-1] == pytest.approx(0.5)
    assert "blew up" in str(flow)


# ---- early exit ---------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-6, 6), min_size=2, max_size=7), st.floats(0, 4), st.floats(0.3, 3))
def test_motion_bound_over_all_corners(logits: list[float], R: float, tau: float) -> None:
    """EOT-15: the largest motion is at a corner of the box; the bound is above, and equal when locked."""
    p = ref.softmax(np.array(logits))
    corners = np.array(np.meshgrid(*[[-R, R]] * len(p))).reshape(len(p), -1).T
    moved = ref.softmax(tau * np.log(p) + corners, tau)
    most = 0.5 * np.abs(moved - p).sum(axis=1).max()
    bound = motion_bound(p, R, tau=tau)
    assert most <= bound + 1e-12
    if 1 - p.max() <= 1 / (1 + np.exp(R / tau)):
        assert bound == pytest.approx(most, abs=1e-12)


def test_motion_bound_limits() -> None:
    p = np.array([0.999, 0.001])
    assert motion_bound(p, 0.0) == 0.0
    assert motion_bound(p, np.inf) == 1.0
    assert motion_bound(np.array([1.0, 0.0]), np.inf) == 0.0  # a flow cannot leave a vertex
    small = 1e-6
    assert motion_bound(p, small) == pytest.approx(
        small * qk.simplex.Mobility(p).mass_norm / 2, rel=1e-4
    )
    assert motion_bound(np.full(10, 0.1), 0.5) == pytest.approx(np.tanh(0.25))
    rows = motion_bound(np.stack([p, p[::-1]]), np.array([0.1, 0.2]))
    assert rows.shape == (2,) and rows[0] < rows[1]


def exact_motion(z: list[float], R: float, tau: float) -> float:
    """The bound from its definition, with 2000 digits."""
    import mpmath as mp

    with mp.workdps(2000):
        weights = sorted(mp.exp(mp.mpf(x) / mp.mpf(tau)) for x in z if np.isfinite(x))
        t = sum(weights[:-1], mp.mpf(0)) / sum(weights)
        E = mp.exp(2 * mp.mpf(R) / mp.mpf(tau))
        if t * (1 + mp.sqrt(E)) <= 1:
            return float(t * (1 - t) * (E - 1) / (1 + t * (E - 1)))
        return float(mp.tanh(mp.mpf(R) / mp.mpf(tau) / 2))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1500, 1500) | st.just(-np.inf), min_size=1, max_size=5),
    st.floats(0, 2000),
    st.floats(0.5, 3),
)
def test_motion_bound_of_logits_whose_tail_underflows(
    logits: list[float], R: float, tau: float
) -> None:
    """The tail of a row may be e^-2000, which no float64 holds."""
    z = np.array([0.0, *logits])
    bound = motion_bound(z, R, tau=tau, logits=True)
    assert bound == pytest.approx(exact_motion(z.tolist(), R, tau), rel=1e-9, abs=1e-300)


def test_an_exit_is_not_certified_by_a_tail_that_underflows() -> None:
    """A row of logits (800, 0) is one-hot in float64, and logits that may move by 10000 turn it round."""
    for dtype in (np.float32, np.float64):
        z = np.array([800.0, 0.0], dtype)
        decision = EarlyExit(tol=1e-3, variation=1000.0, n_layers=10).update(z)
        assert decision.remaining == 10000.0 and decision.bound == 1.0
        assert decision.certified and not decision.all
        assert EarlyExit(tol=1e-3, variation=30.0, n_layers=10).update(z).all  # 800 > 2 * 300
        masked = np.array([800.0, -np.inf], dtype)
        assert EarlyExit(tol=1e-3, variation=1000.0, n_layers=10).update(masked).all
    # Numbers that overflow once they are doubled or divided by the temperature.
    huge = np.array([1.7e308, -1.7e308])
    assert motion_bound(huge, 1.7e308, tau=0.5, logits=True) == 0.5  # odds that come to 1
    assert motion_bound(huge, 1e300, tau=1e-10, logits=True) == 0.0
    assert motion_bound(huge, np.inf, logits=True) == 1.0


def test_certified_exit_is_safe() -> None:
    """EOT-15: whatever the later layers do within the bound, rows that left stay within the tolerance."""
    rng = np.random.default_rng(2)
    L, tol, step = 12, 0.02, 0.3
    z = [rng.normal(size=(200, 5)) * 3]
    for _ in range(L):
        z.append(z[-1] + step * rng.choice([-1.0, 1.0], size=(200, 5)))
    policy = EarlyExit(tol=tol, n_layers=L, variation=step)
    left = np.zeros(200, bool)
    for k in range(L + 1):
        decision = policy.update(z[k])
        assert decision.certified and decision.layer == k
        fresh = decision.exit & ~left
        left |= decision.exit
        for later in range(k, L + 1):
            tv = 0.5 * np.abs(ref.softmax(z[later]) - ref.softmax(z[k])).sum(axis=1)
            assert (tv[fresh] <= tol).all()
            assert (tv <= decision.bound + 1e-12).all()
    assert left.all() and decision.all  # nothing remains after the last layer
    assert "supplied" in str(decision)


def test_without_bounds_the_exit_is_only_extrapolated() -> None:
    policy = EarlyExit(tol=1e-3, n_layers=4)
    first = policy.update(np.array([20.0, 0.0, -np.inf]))
    assert not first.certified and not first.all and first.remaining == np.inf
    second = policy.update(np.array([20.1, 0.0, -np.inf]))
    assert second.remaining == pytest.approx(3 * 0.05) and second.all
    assert "certifies nothing" in str(second)


def test_a_small_frobenius_norm_certifies_nothing() -> None:
    """Erratum 7h: H.1 exits on a small norm of J, which a uniform row over a vocabulary has too."""
    V = 50257
    decision = EarlyExit(tol=0.01, n_layers=2, variation=1.0).update(np.zeros(V))
    assert (
        decision.frobenius_norm == pytest.approx(np.sqrt(V - 1) / V)
        and decision.frobenius_norm < 0.005
    )
    assert not decision.all and decision.bound == pytest.approx(np.tanh(1.0))
    half = np.where(np.arange(V) < V // 4, 1.0, -1.0)  # one step of 1 does move that much
    moved = 0.5 * np.abs(ref.softmax(half) - 1 / V).sum()
    assert moved > 0.35


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: temperature_for_entropy(np.zeros(3), -1.0),
        ValueError,
        r"target: wanted an entropy >= 0",
    ),
    (
        lambda: temperature_for_entropy(np.zeros(3), 0.5, bounds=(2, 1)),
        ValueError,
        r"bounds: wanted low < high",
    ),
    (lambda: EntropySchedule(np.nan), ValueError, r"target: wanted a finite"),
    (
        lambda: EntropySchedule(1.0, smoothing=1.0),
        ValueError,
        r"smoothing: wanted 0 <= smoothing < 1",
    ),
    (lambda: EntropySchedule(1.0, tau=0), ValueError, r"tau: wanted"),
    (lambda: EntropySchedule(1.0, gain=-1), ValueError, r"gain: wanted"),
    (lambda: EntropySchedule(1.0).update(np.array([np.nan, 0])), ValueError, r"z: .*NaN"),
    (
        lambda: entropy_flow(lambda a, b: np.nan, 1.0, (0, 1)),
        ValueError,
        r"entropy_at: wanted a finite",
    ),
    (lambda: entropy_flow(lambda a, b: 1.0, 1.0, (1, 0)), ValueError, r"t_span: wanted t0 < t1"),
    (lambda: motion_bound(np.array([0.5, 0.6]), 1.0), ValueError, r"p: wanted rows that sum to 1"),
    (
        lambda: motion_bound(np.array([0.5, 0.5]), -1.0),
        ValueError,
        r"remaining: wanted numbers >= 0",
    ),
    (lambda: EarlyExit(tol=0, n_layers=3), ValueError, r"tol: wanted"),
    (lambda: EarlyExit(tol=0.1, n_layers=0), ValueError, r"n_layers: wanted"),
    (
        lambda: EarlyExit(tol=0.1, n_layers=3, variation=[1.0, 2.0]),
        ValueError,
        r"variation: wanted one number",
    ),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()


def test_too_many_or_other_layers() -> None:
    policy = EarlyExit(tol=0.1, n_layers=1)
    policy.update(np.zeros(3))
    with pytest.raises(ValueError, match=r"z: wanted shape \(3,\) as before"):
        policy.update(np.zeros(4))
    policy.update(np.zeros(3))
    with pytest.raises(ValueError, match=r"z: wanted at most 2 layers"):
        policy.update(np.zeros(3))
