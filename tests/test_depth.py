"""Depth budgets, the finite-depth bound, jumps and segments (EOT-3, EOT-4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkcore.diagnostics import depth, run
from qkcore.diagnostics.drift import RidgeDrift
from tests import reference_simplex as ref


def stack(
    seed: int = 0, L: int = 12, rows: tuple[int, ...] = (3,), V: int = 7, size: float = 0.2
) -> ref.Array:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(size=(L + 1, *rows, V)) * size, axis=0)


# ---- EOT-3: budgets -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_budgets_by_hand(dtype: str) -> None:
    """EOT-3: C_BV, S_L and eq 2 from their definitions, in float64 whatever the logits."""
    z = stack().astype(dtype)
    dz = np.diff(z.astype(np.float64), axis=0)
    c = depth.Constants(L_b=0.5, M_b=0.25)
    got = depth.budget(z, constants=c, centered=False)
    sup = np.abs(dz).max(axis=-1)
    np.testing.assert_allclose(got.C_BV, sup.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(got.S_L, (dz**2).sum(axis=(0, 2)), rtol=1e-14)
    np.testing.assert_allclose(got.S_bar, got.S_L / 7, rtol=1e-14)
    np.testing.assert_allclose(
        got.total_variation, np.linalg.norm(dz, axis=-1).sum(axis=0), rtol=1e-14
    )
    np.testing.assert_allclose(
        got.xi, c.alpha1 * sup.max(axis=0) + c.alpha2 * (sup**2).sum(axis=0), rtol=1e-14
    )
    assert got.n_layers == 12 and got.continuity < 1e-14
    assert "S_L" in str(got) and "supplied" in str(got)


def test_constants_by_hand() -> None:
    c = depth.Constants(L_b=0.5, M_b=0.25, tau=2.0)
    assert (c.Lambda_J, c.L_J, c.gamma) == (0.5, 1.0, 0.5)
    assert c.alpha1 == pytest.approx(0.5 * (1 + 0.125 * np.exp(0.25)))
    assert c.alpha2 == pytest.approx(0.25 * np.exp(0.5))


def test_s_l_is_summed_in_float64() -> None:
    """H.1: 10^5 float32 steps of 1e-3 after a step of 10^3; a float32 sum would not see them."""
    z = np.zeros((3001, 2), np.float32)
    z[1:, 0] = 4096.0
    z[1:, 1] = np.arange(3000) % 2 * np.float32(0.03125)
    want = 4096.0**2 + 2999 * 0.03125**2
    assert want == depth.budget(z, constants=depth.Constants(), centered=False).S_L
    running = np.float32(0)
    for step in np.diff(z, axis=0):
        running += np.float32((step**2).sum())
    assert running != np.float32(want)


def test_layers_may_stream_and_rows_may_be_masked() -> None:
    z = stack(1)
    z[:, :, 2] = -np.inf
    kept = np.delete(z, 2, axis=-1)
    for centered in (False, True):
        whole = depth.budget(z, centered=centered)
        lazy = depth.budget((layer for layer in z), centered=centered)
        bare = depth.budget(kept, centered=centered)
        for name in ("C_BV", "S_L", "S_bar", "largest_step", "xi"):
            np.testing.assert_allclose(getattr(whole, name), getattr(bare, name), rtol=1e-12)
            np.testing.assert_array_equal(getattr(whole, name), getattr(lazy, name))


def test_centering_removes_what_the_softmax_does_not_see() -> None:
    z = stack(2)
    shifted = z + np.random.default_rng(0).normal(size=(*z.shape[:-1], 1)) * 5
    a, b = (depth.budget(x) for x in (z, shifted))
    np.testing.assert_allclose(a.C_BV, b.C_BV, atol=1e-12)
    np.testing.assert_allclose(a.S_L, b.S_L, atol=1e-12)
    assert (a.C_BV <= depth.budget(shifted, centered=False).C_BV).all()


def test_constants_of_rows_move_no_boundary() -> None:
    """EOT-4: detection and segmentation see what the softmax sees, with masks too."""
    z = jumping(V=6)
    z[:, 4] = -np.inf
    shifted = z + 30 * np.random.default_rng(1).normal(size=(len(z), 1))
    a, b = depth.segment(z), depth.segment(shifted)
    assert a.boundaries == b.boundaries == (19,)
    assert a.detector.violations == b.detector.violations
    for one, two in zip(a.segments, b.segments, strict=True):
        np.testing.assert_allclose(one.drift[0], two.drift[0], atol=1e-9)
        assert one.variation == pytest.approx(two.variation)
    step = np.array([3.0, -1.0, 1.0])
    norms = [depth.BVDetector().update(step + c).norm for c in (0.0, 100.0)]
    assert norms[0] == pytest.approx(norms[1]) and norms[0] == pytest.approx(np.sqrt(8.0))


def test_one_definition_of_the_variation() -> None:
    """N.4: P0's number is the mean S_bar of the rows of the worst head, and its reason names it."""
    z = 0.05 * np.cumsum(np.random.default_rng(2).normal(size=(6, 3, 5, 7)), axis=0)
    gate = run(z)["P0"]
    rows = depth.budget(z).S_bar
    assert gate.value == pytest.approx(rows.mean(axis=1).max(), rel=1e-12)
    assert gate.details["S_bar"] == gate.value and "S̄_L" in gate.reason
    failing = run(z, thresholds={"variation": gate.value / 2})["P0"]
    assert f"S̄_L {gate.value:.3g} > " in failing.reason


def test_the_softmax_norms_of_the_bound() -> None:
    """Lambda_J = 1 and L_J = 2 hold on random data and are attained."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        n = int(rng.integers(2, 7))
        p, q = rng.dirichlet(np.full(n, 0.5), size=2)
        v = rng.uniform(-1, 1, n)
        assert np.abs(ref.mobility(p) @ v).sum() <= np.abs(v).max() + 1e-12
        change = np.abs((ref.mobility(p) - ref.mobility(q)) @ v).sum()
        assert change <= np.ptp(v) * np.abs(p - q).sum() + 1e-12
    half, sign = np.array([0.5, 0.5]), np.array([1.0, -1.0])
    assert np.abs(ref.mobility(half) @ sign).sum() == 1.0
    p, q = np.array([1.0, 0.0]), np.array([1 - 1e-6, 1e-6])
    change = np.abs((ref.mobility(p) - ref.mobility(q)) @ sign).sum() / np.abs(p - q).sum()
    assert change == pytest.approx(2.0, rel=1e-5)


def test_estimated_constants() -> None:
    """For layers of Euler's method with a linear drift the estimates find its constants, from below."""
    rate, L = 1.5, 40
    p = [np.array([0.9, 0.1])]
    z = [np.log(p[0])]
    for _ in range(L):
        b = np.array(
            [-rate * p[-1][0], rate * p[-1][0]]
        )  # half range rate p_0, Lipschitz rate/2 in l1
        z.append(z[-1] + b / L)
        p.append(ref.softmax(z[-1]))
    c = depth.estimate_constants(np.stack(z))
    assert c.estimated
    assert c.L_b == pytest.approx(rate / 2, rel=1e-9)
    assert c.M_b == pytest.approx(rate * 0.9, rel=1e-9)
    default = depth.budget(np.stack(z))
    assert default.constants.L_b == pytest.approx(c.L_b) and "estimated" in str(default)


# ---- EOT-3: the finite-depth bound --------------------------------------------------------------


def euler_layers(
    L: int, strength: float, seed: int
) -> tuple[ref.Array, Callable[..., ref.Array], depth.Constants]:
    """Layers z + b(softmax z)/L with b = A p, whose constants are known."""
    rng = np.random.default_rng(seed)
    V = 5
    A = strength * rng.uniform(-1, 1, size=(V, V))
    z = [rng.normal(size=V)]
    for _ in range(L):
        z.append(z[-1] + A @ ref.softmax(z[-1]) / L)
    # |A(p-q)|_inf, up to constants, over tangent vectors (e_i - e_j)/2 of l1 norm 1
    slopes = [np.ptp(A[:, i] - A[:, j]) / 4 for i in range(V) for j in range(V)]
    sizes = [np.ptp(A[:, i]) / 2 for i in range(V)]
    return np.stack(z), lambda p, t: p @ A.T, depth.Constants(L_b=max(slopes), M_b=max(sizes))


@pytest.mark.parametrize("L", [4, 16, 64])
@pytest.mark.parametrize("strength", [0.5, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_holds_and_falls_with_depth(L: int, strength: float, seed: int) -> None:
    """EOT-3, theorem 3.1 with explicit constants: a theorem, so never below the measured error."""
    z, drift, constants = euler_layers(L, strength, seed)
    out = depth.finite_depth(z, drift, constants=constants)
    assert out.holds
    assert 0 < out.error <= out.bound
    assert out.error <= out.xi
    assert out.misfit < 1e-10 and out.start == 0
    assert out.bound == pytest.approx(
        out.within_layers + out.misfit + out.discretization + out.start
    )
    deeper, drift, constants = euler_layers(4 * L, strength, seed)
    finer = depth.finite_depth(deeper, drift, constants=constants)
    assert finer.bound < 0.3 * out.bound and finer.error < 0.4 * out.error
    assert "bound" in str(out) and "supplied" in str(out)


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_with_time_noise_and_temperature(seed: int) -> None:
    """EOT-3: a drift of state and time, layers that miss it by noise, another start, any temperature."""
    rng = np.random.default_rng(seed)
    V, L = 4, int(rng.integers(3, 30))
    tau, omega = rng.uniform(0.3, 3), rng.uniform(0, 6)
    A, c = rng.uniform(-1, 1, size=(V, V)), rng.uniform(-1, 1, size=V)

    def drift(p: ref.Array, t: float) -> ref.Array:
        return p @ A.T + np.sin(omega * t) * c

    z = [rng.normal(size=V)]
    for k in range(L):
        b = drift(ref.softmax(z[-1], tau), k / L) + 0.3 * rng.normal(size=V)
        z.append(z[-1] + b / L)
    slope = max(np.ptp(A[:, i] - A[:, j]) / 4 for i in range(V) for j in range(V))
    size = max(np.ptp(A[:, i]) for i in range(V)) / 2 + np.ptp(c) / 2
    constants = depth.Constants(L_b=slope, M_b=size, L_t=omega * np.ptp(c) / 2, tau=tau)
    p0 = rng.dirichlet(np.ones(V)) if seed % 2 else None
    out = depth.finite_depth(np.stack(z), drift, constants=constants, tau=tau, p0=p0)
    assert out.holds, out
    assert out.misfit > 0 and (out.start > 0) == (p0 is not None)


def test_the_bound_for_layers_that_move_p_itself() -> None:
    """EOT-3, Q.1: layers p + J dz need eq 2's squares; with them Xi covers the error."""
    rng = np.random.default_rng(4)
    L, V = 30, 4
    b = rng.uniform(-1, 1, size=(L, V)) * 0.8
    p = [np.full(V, 0.25)]
    for k in range(L):
        p.append(p[-1] + ref.mobility(p[-1]) @ b[k] / L)
    exact = ref.softmax(np.concatenate([np.zeros((1, V)), np.cumsum(b, axis=0) / L]))
    error = np.abs(np.stack(p) - exact).sum(axis=1).max()
    c = depth.Constants(M_b=np.ptp(b, axis=1).max() / 2)
    second = c.alpha2 * (np.abs(b).max(axis=1) ** 2).sum() / L**2
    assert 0 < error <= second


def test_the_bound_is_tight() -> None:
    """One small step from (1/2, 1/2): the whole of the bound is the motion within the layer."""
    for size in (1e-1, 1e-2, 1e-3):
        out = depth.finite_depth(np.array([[0.0, 0.0], [size, -size]]), n_between=8)
        assert out.error / out.bound == pytest.approx(1.0, abs=size**2)


def test_a_start_that_differs() -> None:
    """Erratum 7g: the text's factor e^Gamma - 1 of the initial error is 0 for b = 0, yet it stays."""
    z = np.tile(np.array([0.3, -0.3, 0.0]), (5, 1))
    out = depth.finite_depth(z, p0=np.array([0.2, 0.3, 0.5]))
    gap = np.abs(ref.softmax(z[0]) - np.array([0.2, 0.3, 0.5])).sum()
    assert out.error == pytest.approx(gap)
    assert out.bound == pytest.approx(gap)
    printed = out.xi + np.expm1(out.budget.constants.gamma) * gap
    assert printed == 0.0 < out.error
    z, drift, constants = euler_layers(20, 2.0, 5)
    assert depth.finite_depth(z, drift, constants=constants, p0=np.full(5, 0.2)).holds


def test_the_layers_own_increments_as_drift() -> None:
    z = stack(5, L=8, rows=(2, 3))
    out = depth.finite_depth(z)
    assert out.error.shape == (2, 3) and out.holds
    assert np.max(out.error_at_layers) < 1e-5
    np.testing.assert_allclose(out.bound, depth.budget(z, centered=True).largest_step)


def test_a_wrong_drift_is_paid_for_as_misfit() -> None:
    z, drift, constants = euler_layers(20, 2.0, 6)
    flat = depth.finite_depth(z, lambda p, t: np.zeros(5), constants=depth.Constants())
    assert flat.misfit > 0.1 and flat.holds
    assert flat.error > depth.finite_depth(z, drift, constants=constants).error
    estimated = depth.finite_depth(z, drift)
    assert "indication" in str(estimated)


def rough_layers() -> ref.Array:
    rng = np.random.default_rng(10)
    start = 3 * rng.normal(size=(2, 16, 16))
    return np.asarray(start + 0.02 * np.cumsum(rng.normal(size=(10, 2, 16, 16)), axis=0))


@pytest.mark.parametrize("with_time", [False, True])
def test_constants_of_a_ridge_regression_are_its_own(with_time: bool) -> None:
    """A linear drift is extreme at the vertices of the simplex: brute force over random pairs of rows."""
    z = rough_layers()
    L, V = len(z) - 1, z.shape[-1]
    p = ref.softmax(z)
    states = p[:-1].reshape(-1, V)
    if with_time:
        states = np.column_stack([states, np.repeat(np.arange(L) / L, states.shape[0] // L)])
    model = RidgeDrift().fit(states, (L * np.diff(z, axis=0)).reshape(-1, V))
    out = depth.finite_depth(z, model)
    c = out.budget.constants
    assert out.holds and out.informative.all() and np.max(out.bound) < 1
    assert not c.estimated and "SAYS NOTHING" not in str(out)

    def drift(q: ref.Array, t: float) -> ref.Array:
        return np.asarray(model.predict(np.append(q, t)[None] if with_time else q[None])[0])

    rng = np.random.default_rng(0)
    steepest = largest = quickest = 0.0
    for _ in range(300):
        q, r = rng.dirichlet(np.full(V, 0.02), size=2)
        steepest = max(steepest, np.ptp(drift(q, 0.3) - drift(r, 0.3)) / 2 / np.abs(q - r).sum())
        largest = max(largest, np.ptp(drift(q, rng.integers(2))) / 2)
        quickest = max(quickest, np.ptp(drift(q, 1.0) - drift(q, 0.0)) / 2)
    assert 0.7 * c.L_b <= steepest <= c.L_b * (1 + 1e-9)
    assert 0.7 * c.M_b <= largest <= c.M_b * (1 + 1e-9)
    assert c.L_t == pytest.approx(quickest, abs=1e-9)


def test_constants_of_tables() -> None:
    z = rough_layers()[:, 0, 0]
    times = np.linspace(0, 1, 4)
    values = np.cumsum(np.random.default_rng(1).normal(size=(4, 16)), axis=0)
    c = depth.finite_depth(z, (times, values)).budget.constants
    assert (c.L_b, c.estimated) == (0.0, False)
    assert c.M_b == pytest.approx(np.ptp(values, axis=1).max() / 2)
    assert c.L_t == pytest.approx(3 * np.ptp(np.diff(values, axis=0), axis=1).max() / 2)
    steps = depth.finite_depth(z, (times, values[:3]))  # 9 layers: the jumps are at layers
    assert steps.budget.constants.L_t == 0 and steps.holds
    assert depth.finite_depth(z[:-1], (times, values[:3])).budget.constants.estimated


def test_a_bound_that_says_nothing_says_so() -> None:
    """Constants estimated from rough layers give bounds of 1e21 and inf; no l1 distance is above 2."""
    out = depth.finite_depth(rough_layers(), lambda p, t: np.zeros(16))
    assert out.bound.min() > 1e9 and not out.informative.any() and out.holds
    assert "THE BOUND SAYS NOTHING about 100 % of the rows" in str(out)
    one = depth.finite_depth(rough_layers()[:, 0, 0], lambda p, t: np.zeros(16))
    assert one.informative is False


# ---- EOT-4: algorithm 1 -------------------------------------------------------------------------


def algorithm_1(norms: list[float], window: int, tau0: float) -> list[tuple[bool, float]]:
    """The printed algorithm, line by line."""
    local, buffer, out = 0.0, [], []
    for norm in norms:
        local += norm**2
        buffer.append(norm)
        if len(buffer) > window:
            local -= buffer[0] ** 2
            buffer.pop(0)
        adaptive = tau0 * (1 + 0.1 * np.std(buffer) / np.mean(buffer))
        statistic = local / len(buffer)
        out.append((statistic > adaptive, statistic / adaptive))
    return out


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0.01, 5), min_size=1, max_size=30), st.integers(1, 9), st.floats(0.05, 10)
)
def test_the_printed_algorithm(norms: list[float], window: int, tau0: float) -> None:
    """EOT-4: the streaming detector is algorithm 1."""
    detector = depth.BVDetector(threshold=tau0, window=window)
    for k, (norm, (flag, severity)) in enumerate(
        zip(norms, algorithm_1(norms, window, tau0), strict=True)
    ):
        step = detector.update(np.array([norm, -norm]) / np.sqrt(2))
        assert step.layer == k
        assert step.severity == pytest.approx(severity, rel=1e-9)
        if abs(severity - 1) > 1e-9:
            assert bool(step.violated) == flag
        if abs(severity - 2) > 1e-9 and abs(severity - 1) > 1e-9:
            assert step.action == ("segment" if severity > 2 else "monitor" if flag else "none")


def test_a_large_jump_leaves_no_rounding_behind() -> None:
    """The printed running sum keeps the error of 1e9 squared for ever; the window's own sum does not."""
    norms = [1e9, *[1.0] * 20]
    printed = algorithm_1(norms, 4, 0.5)
    detector = depth.BVDetector(threshold=0.5, window=4)
    for norm in norms:
        step = detector.update_norm(norm)
    assert step.statistic == 1.0
    assert printed[-1][1] != pytest.approx(2.0)


def test_rows_of_a_batch_and_the_median_threshold() -> None:
    z = stack(7, L=20, rows=(4,), size=0.1)
    z[11:, 2] += np.array([6.0, 0, 0, 0, 0, 0, 0])
    detector = depth.detect(z)
    flags = np.array([np.broadcast_to(s.violated, 4) for s in detector.steps])
    spikes = np.array([s.spike for s in detector.steps])
    assert flags[:, 2].any() and not np.delete(flags, 2, axis=1).any()
    assert np.argwhere(spikes & flags).tolist() == [[10, 2]]
    assert detector.violations[0] == 10 and "violations at [10" in repr(detector)
    assert depth.detect(z[:10]).violations == []


def test_still_layers_are_no_violation() -> None:
    detector = depth.detect(np.zeros((10, 3)))
    assert detector.violations == []
    jump = np.zeros((10, 3))
    jump[6:, 0] = 1.0
    assert depth.detect(jump).violations[0] == 5  # relative to a median of 0 everything is a jump


# ---- EOT-4: segments ----------------------------------------------------------------------------


def jumping(L: int = 40, at: tuple[int, ...] = (19,), size: float = 4.0, V: int = 5) -> ref.Array:
    """Logits that are quadratic in depth, with jumps in the increments ``at``."""
    rng = np.random.default_rng(8)
    t = np.linspace(0, 1, L + 1)[:, None]
    z = t * rng.normal(size=V) + t**2 * rng.normal(size=V)
    for k in at:
        z[k + 1 :] += size * rng.normal(size=V)
    return z


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("size", [2.0, 30.0])
@pytest.mark.parametrize("L", [6, 30])
def test_a_jump_is_found_where_it_is(L: int, size: float, window: int) -> None:
    """Also at the first increments, where no median is known yet, and in an echo of the window."""
    for at in {0, 1, 2, 4, 5, L // 2, L - 1}:
        z = np.linspace(0, 1, L + 1)[:, None] * np.array([1.0, 0.0, -1.0])
        z[at + 1 :] += np.array([size, 0.0, 0.0])
        out = depth.segment(z, window=window)
        assert set(out.boundaries) | set(out.dropped) == {at}
        # A boundary leaves five increments on each side.
        assert bool(out.boundaries) == (5 <= at <= L - 6)
        detector = depth.detect(z, window=window)
        assert [s.layer for s in detector.steps if s.violated and s.spike] == [at]


def test_two_early_jumps_are_one_cluster() -> None:
    """The median of the first four increments is that of the two jumps; five tell them apart."""
    z = np.linspace(0, 1, 31)[:, None] * np.array([1.0, 0.0, -1.0])
    z[1:] += np.array([9.0, 0.0, 0.0])
    z[2:] += np.array([0.0, 8.0, 0.0])
    out = depth.segment(z)
    assert out.boundaries == () and out.dropped == (0,)
    spikes = [s.layer for s in out.detector.steps if s.violated and s.spike]
    assert spikes == [0, 1]


def test_segments_of_a_jump() -> None:
    """EOT-4, K.2: cut at the jump; on both sides the fitted drift is exact, and so is the flow."""
    z = jumping()
    found = depth.segment(z)
    assert found.boundaries == (19,) and found.buffers == ((17, 21),)
    assert [(s.start, s.stop) for s in found.segments] == [(0, 19), (20, 40)]
    assert found.error < 1e-12 and found.mass_error < 1e-14
    smooth = jumping(at=())
    assert depth.segment(smooth).boundaries == ()
    assert depth.segment(smooth).error < 1e-12
    whole = depth.segment(z, threshold=1e9)
    assert whole.boundaries == () and whole.error > 0.1  # one flow does not explain a jump
    p = ref.softmax(z)
    (interface,) = found.interfaces
    assert interface.jump == pytest.approx(np.abs(p[20] - p[19]).sum())
    assert interface.gap == pytest.approx(interface.jump)
    np.testing.assert_allclose(interface.transition(p[19]), p[20], atol=1e-14)
    assert interface.velocity_residual < 1e-13
    tv = 0.5 * np.abs(np.diff(p, axis=0)).sum(axis=1)
    assert found.transport == pytest.approx(tv.sum())
    assert found.jump_transport == pytest.approx(tv[19])
    assert found.path is not None
    np.testing.assert_allclose(found.path, p, atol=1e-12)
    assert "cut at [19]" in str(found)
    for s in found.segments:
        steps = np.diff(z[s.start : s.stop + 1], axis=0)
        steps -= steps.mean(axis=1, keepdims=True)
        assert s.variation == pytest.approx(np.linalg.norm(steps, axis=1).sum())
        assert s.n_layers == len(steps)


def test_rules_of_the_cuts() -> None:
    """K.2: clusters of 3 layers, segments of at least 5, at most L/10 of them."""
    assert depth.segment(jumping(60, (20, 22, 45))).boundaries in ((20, 45), (22, 45))
    early = depth.segment(jumping(40, (3, 20)))
    assert early.boundaries == (20,) and early.dropped == (3,) and "not cut" in str(early)
    many = (9, 19, 29, 39, 49)
    assert len(depth.segment(jumping(60, many)).segments) == 6
    fewer = depth.segment(jumping(60, many), max_segments=3)
    assert len(fewer.segments) == 3 and len(fewer.dropped) == 3
    assert depth.segment(jumping(40), max_segments=1).boundaries == ()


def test_batches_are_cut_as_one() -> None:
    z = np.stack([jumping(), jumping(at=())], axis=1)
    z = np.concatenate([z, z[:, :1]], axis=1)
    z[:, :, 3] = -np.inf
    for over in ("mean", "max"):
        found = depth.segment(z.astype(np.float32), over_rows=over, keep_path=False)
        assert found.boundaries == (19,) and found.path is None
        assert found.error < 1e-5
        assert found.segments[0].drift[0].shape == (3, 5)
        assert found.interfaces[0].factors.shape == (3, 5)


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkcore.diagnostics import _depth_segments

    z = np.stack([jumping(), 2 * jumping(), jumping(size=3)], axis=1)
    want = depth.segment(z)
    monkeypatch.setattr(_depth_segments, "_CHUNK", 41 * 5)
    got = depth.segment(z)
    assert got.path is not None and want.path is not None
    np.testing.assert_allclose(got.path, want.path, rtol=1e-14)
    assert got.transport == pytest.approx(want.transport)
    assert got.error == pytest.approx(want.error, abs=1e-14)


# ---- bad input ----------------------------------------------------------------------------------

Z = np.zeros((3, 4))
MIXED = np.array([[0.0, 1.0], [-np.inf, 1.0]])
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: depth.budget(Z[:1]), ValueError, r"logits: wanted at least two layers, got 1"),
    (lambda: depth.budget(Z[0]), ValueError, r"logits: wanted layers of rows"),
    (lambda: depth.budget([Z[0], np.zeros(5)]), ValueError, r"logits\[1\]: wanted shape \(4,\)"),
    (lambda: depth.budget(Z + np.nan), ValueError, r"logits\[0\]: .*NaN"),
    (lambda: depth.budget(MIXED), ValueError, r"logits\[1\]: wanted the same entries masked"),
    (lambda: depth.budget(Z, tau=0), ValueError, r"tau: wanted"),
    (
        lambda: depth.budget(Z, tau=2.0, constants=depth.Constants()),
        ValueError,
        r"constants: wanted the temp",
    ),
    (lambda: depth.Constants(L_b=-1), ValueError, r"L_b: wanted a number >= 0"),
    (lambda: depth.finite_depth(Z[:1]), ValueError, r"logits: wanted at least two layers"),
    (lambda: depth.finite_depth(Z, p0=np.ones(4)), ValueError, r"p0: wanted rows that sum to 1"),
    (lambda: depth.finite_depth(Z, n_between=0), ValueError, r"n_between: wanted"),
    (
        lambda: depth.finite_depth(Z, lambda p, t: p + np.nan),
        RuntimeError,
        r"PF-ODE did not reach.*NaN",
    ),
    (lambda: depth.BVDetector(threshold=0), ValueError, r"threshold: wanted"),
    (lambda: depth.BVDetector(window=0), ValueError, r"window: wanted"),
    (lambda: depth.BVDetector().update(np.array([np.nan])), ValueError, r"dz: .*NaN"),
    (lambda: depth.BVDetector().update_norm(-1.0), ValueError, r"norm: wanted finite numbers >= 0"),
    (lambda: depth.segment(Z, over_rows="all"), ValueError, r"over_rows: wanted 'mean' or 'max'"),
    (lambda: depth.segment(Z[:1]), ValueError, r"logits: wanted at least two layers"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()


def test_one_detector_one_stack() -> None:
    detector = depth.BVDetector()
    detector.update(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"dz: wanted rows of shape \(2,\) as before"):
        detector.update(np.zeros((4, 3)))


@pytest.mark.parametrize("page", ["simplex.md", "diagnostics_depth.md"])
def test_the_guides_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out


def test_masked_stacks_have_bounds_too() -> None:
    """EOT-3: entries masked in all layers change nothing."""
    z = stack(9, L=6, rows=(2,), V=4)
    wide = np.insert(z, 1, -np.inf, axis=-1)
    a, b = depth.finite_depth(z), depth.finite_depth(wide)
    np.testing.assert_allclose(b.bound, a.bound, rtol=1e-12)
    np.testing.assert_allclose(b.error, a.error, atol=1e-9)
    assert (b.solution.p[..., 1] == 0).all() and b.holds
