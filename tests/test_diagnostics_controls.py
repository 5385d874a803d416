"""Each of P0-P4 on stacks whose verdict is known, over many seeds: false passes at most 5 % (EOT-13).

What the softmax, a common drift, a projection, a mask, a dtype or the order of the keys does not change must
not change a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm

from qkcore import diagnostics
from qkcore.diagnostics import rotation, score

from .reference_diagnostics import Array, softmax

Make = Callable[[np.random.Generator], Array]

SEEDS = 40
MOST = SEEDS // 20  # 5 %
OPEN = {"variation": 1e9}


def verdicts(
    name: str, make: Callable[[np.random.Generator], dict[str, Any]], seeds: int = SEEDS
) -> Any:
    """How often each verdict of a check comes out."""
    found: Counter[str] = Counter()
    for seed in range(seeds):
        arguments = make(np.random.default_rng(seed))
        report = diagnostics.run(**{"n_resamples": 40, "rng": seed, "n_pairs": 12, **arguments})
        found[report[name].verdict] += 1
    return found


def causal(z: Array) -> Array:
    """Row i sees the keys up to i."""
    n, V = z.shape[-2:]
    return np.where(np.arange(V) <= np.arange(n)[:, None], z, -np.inf)


# ---- what changes nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_no_verdict_depends_on_what_the_softmax_ignores(masked: bool) -> None:
    """Constants of rows, the order of the keys and single precision, in P0 to P3."""
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(2, 60, 6))
    z -= z.mean(axis=-1, keepdims=True)
    A = 0.01 * rng.normal(size=(6, 6))
    z = np.stack([z @ np.linalg.matrix_power(np.eye(6) + A, k) for k in range(5)])
    z = causal(z) if masked else z
    keys, order = rng.normal(size=6), rng.permutation(6)
    wanted = diagnostics.run(z, keys=keys)
    assert wanted["P0"].verdict == "pass" and "abstain" not in (
        wanted["P1"].verdict,
        wanted["P2"].verdict,
    )
    # Differences of single precision are off by 1e-3 of themselves, which moves rows between bins of P2.
    for slack, same in (
        (1e-3, diagnostics.run(z + 20 * rng.normal(size=(5, 2, 60, 1)), keys=keys)),
        (1e-3, diagnostics.run(z[..., order], keys=keys[order])),
        (5e-2, diagnostics.run(z.astype(np.float32), keys=keys)),
        (1e-3, diagnostics.run(probabilities=softmax(z), keys=keys) if not masked else wanted),
    ):
        assert same.verdicts == wanted.verdicts
        for name in ("P0", "P1", "P2", "P3"):
            assert same[name].value == pytest.approx(wanted[name].value, abs=slack), name


# ---- P0 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_gate_ignores_constants_of_rows(masked: bool) -> None:
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        z = 3 * rng.normal(size=(2, 8, 8)) + 0.02 * np.cumsum(rng.normal(size=(6, 2, 8, 8)), axis=0)
        z = causal(z) if masked else z
        shifted = z + 10 * rng.normal(size=(6, 2, 8, 1))
        a, b = (diagnostics.run(x, n_resamples=10)["P0"] for x in (z, shifted))
        assert a.verdict == b.verdict == "pass"
        assert b.value == pytest.approx(a.value, rel=1e-9)
        assert b.details["jeffreys"] == pytest.approx(a.details["jeffreys"], rel=1e-6)
        order = rng.permutation(8)
        if not masked:
            assert diagnostics.run(z[..., order], n_resamples=10)["P0"].value == pytest.approx(
                a.value
            )


def test_gate_fails_where_logits_jump() -> None:
    """Even in one head of four, and whatever constants are added."""

    def jump(rng: np.random.Generator) -> dict[str, Any]:
        z = rng.normal(size=(1, 4, 8, 8)) + 0.01 * np.cumsum(rng.normal(size=(6, 4, 8, 8)), axis=0)
        z[3:, 2] += rng.normal(size=(8, 8))
        return {"logits": z + rng.normal(size=(6, 4, 8, 1))}

    assert verdicts("P0", jump) == {"fail": SEEDS}


def test_keys_without_mass_do_not_count_in_fishers_metric() -> None:
    rng = np.random.default_rng(0)
    z = np.zeros((4, 5, 8))
    z[..., 4:] = -60 + 3 * rng.normal(size=(4, 5, 4))
    check = diagnostics.run(z)["P0"]
    assert check.verdict == "fail" and check.details["jeffreys"] < 1e-14
    assert "keys without mass" in check.reason


def test_the_gate_of_activations_alone() -> None:
    """Their motion against each other: a drift common to all and a shift do not count, a jump does."""
    rng = np.random.default_rng(0)
    for _ in range(SEEDS):
        H = rng.normal(size=(30, 4)) + 0.02 * np.cumsum(rng.normal(size=(5, 30, 4)), axis=0)
        plain = diagnostics.run(activations=H)["P0"]
        drifting = diagnostics.run(activations=H + 100 + 5 * rng.normal(size=(5, 1, 4)))["P0"]
        assert plain.verdict == drifting.verdict == "pass"
        assert drifting.value == pytest.approx(plain.value, rel=1e-9)
        H[3:] += rng.normal(size=(30, 4))
        jump = diagnostics.run(activations=H)["P0"]
        assert jump.verdict == "fail" and "transition 2 -> 3" in jump.reason


STILL: dict[str, Any] = {
    "constant": np.zeros((4, 1, 30, 8)),
    "locked": np.zeros((4, 30, 30)) + 1000 * np.eye(30),
    "nearly still": np.zeros((4, 30, 30))
    + 1000 * np.eye(30)
    + 1e-3 * np.random.default_rng(0).normal(size=(4, 30, 30)),
    "one key": np.random.default_rng(0).normal(size=(4, 30, 1)),
    "one row": np.random.default_rng(0).normal(size=(1, 1, 8)) * np.ones((4, 1, 1)),
    "huge": np.full((4, 30, 8), 1e300),
    "no motion": np.random.default_rng(0).normal(size=(1, 30, 8)) * np.ones((4, 1, 1)),
}


@pytest.mark.parametrize("name", STILL)
def test_what_does_not_move_is_not_judged(name: str) -> None:
    """Abstention with a reason, never an exception, in logits and activations."""
    z = STILL[name]
    x = z.reshape(len(z), -1, z.shape[-1])
    report = diagnostics.run(z, activations=x, keys=np.arange(float(z.shape[-1])))
    assert report["P0"].verdict == "pass"
    moving = name in ("nearly still", "one key")  # the activations do, and a line has no rotation
    for check in ("P1", "P2") if moving else ("P1", "P2", "P4"):
        assert report[check].verdict == "abstain" and report[check].reason, check
        assert report[check].value is None


def test_nan_is_refused_by_name() -> None:
    bad = np.full((3, 4, 4), np.nan)
    for name in ("logits", "probabilities", "activations"):
        with pytest.raises(ValueError, match=rf"{name}.*NaN"):
            diagnostics.run(**{name: bad})
    z = np.zeros((3, 4, 4))
    for name in ("keys", "queries"):
        with pytest.raises(ValueError, match=rf"{name}.*NaN"):
            diagnostics.run(z, **{name: bad[0]})
        with pytest.raises(ValueError, match=rf"{name}: wanted shape"):
            diagnostics.run(z, **{name: np.zeros((7, 2))})


# ---- P1 -------------------------------------------------------------------------------------------


def linear_flow(rng: np.random.Generator, passages: int = 0) -> Array:
    lead = (passages, 1) if passages else (1,)
    z = 1.5 * rng.normal(size=(*lead, 24 if passages else 64, 6))
    z -= z.mean(axis=-1, keepdims=True)
    A = 0.3 * rng.normal(size=(6, 6))
    A -= A.mean(axis=1, keepdims=True)
    return np.stack([z @ expm(A * k / 7) for k in range(8)])


def field_of_rows(rng: np.random.Generator) -> Array:
    """A smooth field of p that is not linear in the logits."""
    z = 1.5 * rng.normal(size=(1, 64, 6))
    W = 1.5 * rng.normal(size=(6, 6))
    out = [z]
    for _ in range(7):
        for _ in range(4):
            z = z + softmax(z) @ W / 28
        out.append(z)
    return np.stack(out)


def random_walk(rng: np.random.Generator) -> Array:
    return 1.5 * rng.normal(size=(1, 64, 6)) + 0.1 * np.cumsum(
        rng.normal(size=(8, 1, 64, 6)), axis=0
    )


def independent_layers(rng: np.random.Generator) -> Array:
    return rng.normal(size=(5, 1, 40, 4))


def common_drift(rng: np.random.Generator) -> Array:
    drift = np.linspace(0, 1, 8)[:, None, None, None] * rng.normal(size=6)
    return 1.5 * rng.normal(size=(1, 64, 6)) + drift


@pytest.mark.parametrize("mask", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("make", [linear_flow, field_of_rows], ids=["linear", "field"])
def test_smooth_flows_are_adequate(make: Make, mask: bool) -> None:
    found = verdicts(
        "P1",
        lambda rng: {"logits": causal(make(rng)) if mask else make(rng), "thresholds": OPEN},
        12,
    )
    # A mask takes entries of the state from the field that moves the others: only most rows are full.
    assert found["fail"] == 0 and found["pass"] >= (9 if mask else 12)


@pytest.mark.parametrize("mask", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("make", [random_walk, independent_layers])
def test_what_is_no_flow_fails(make: Make, mask: bool) -> None:
    found = verdicts(
        "P1", lambda rng: {"logits": causal(make(rng)) if mask else make(rng), "thresholds": OPEN}
    )
    assert found["pass"] <= MOST and found["fail"] >= SEEDS - MOST


def test_common_drift_passes_with_its_baseline_shown() -> None:
    for seed in range(6):
        z = common_drift(np.random.default_rng(seed))
        check = diagnostics.run(z, n_resamples=40, thresholds=OPEN)["P1"]
        assert check.verdict == "pass" and check.value is not None
        assert check.details["time_only"] == pytest.approx(check.value, abs=0.02)
        assert "one common drift explains it" in check.reason
    flow = diagnostics.run(linear_flow(np.random.default_rng(0)), thresholds=OPEN)["P1"]
    assert flow.details["time_only"] < 0.2 and "common drift" not in flow.reason


def test_whole_passages_are_held_out() -> None:
    z = linear_flow(np.random.default_rng(1), passages=6)
    check = diagnostics.run(z, thresholds=OPEN)["P1"]
    assert check.verdict == "pass"
    assert check.details["fitted_rows"] == check.details["held_out_rows"] == 72


def test_few_rows_teach_no_drift() -> None:
    z = random_walk(np.random.default_rng(0))
    check = diagnostics.run(z[:, :, :20], thresholds=OPEN)["P1"]
    assert check.verdict == "abstain" and "too few" in check.reason
    wide = np.random.default_rng(0).normal(size=(1, 40, 60)) * np.ones((4, 1, 1, 1))
    wide = wide + 0.1 * np.random.default_rng(1).normal(size=wide.shape)
    check = diagnostics.run(wide, thresholds=OPEN)["P1"]
    assert check.verdict == "abstain" and "too few rows to learn" in check.reason


def test_the_bound_stands_beside_the_error() -> None:
    z = linear_flow(np.random.default_rng(2))
    d = diagnostics.run(z[0] + (z - z[0]) / 5, thresholds=OPEN)["P1"].details
    assert 0 < d["bound_error"] <= d["bound"] < 2 and d["informative"] > 0.9
    walk = diagnostics.run(random_walk(np.random.default_rng(2)), thresholds=OPEN)["P1"].details
    assert walk["informative"] < 0.5


def test_drifts_by_neighbours() -> None:
    z = linear_flow(np.random.default_rng(3))[::2]
    check = diagnostics.run(z, drift="knn", thresholds=OPEN)["P1"]
    assert check.details["drift"] == "knn" and check.value is not None and check.value > 0.5
    with pytest.raises(ValueError, match="drift: wanted"):
        diagnostics.run(z, drift="spline")


@pytest.mark.skipif(not score.available(), reason="JAX and optax are not installed")
def test_drifts_by_a_network() -> None:
    z = field_of_rows(np.random.default_rng(3))[::2, :, :, :]
    check = diagnostics.run(z, drift="mlp", n_resamples=40, thresholds=OPEN)["P1"]
    assert check.details["drift"] == "mlp" and check.value is not None and check.value > 0.5


# ---- P2 -------------------------------------------------------------------------------------------


def locked_and_loose(rng: np.random.Generator) -> Array:
    """Half of the rows locked, all logits moving alike."""
    size = np.where(np.arange(60) % 2, 1.0, 6.0)[:, None]
    z = size * rng.normal(size=(60, 8))
    return z + 0.05 * np.cumsum(rng.normal(size=(5, 1, 60, 8)), axis=0)


def restless(rng: np.random.Generator) -> Array:
    """Locked rows move where their mass is, the others at keys that have none."""
    z = np.zeros((5, 1, 60, 8))
    lead = np.arange(60) % 2 == 0
    z[..., lead, 0], z[..., lead, 1] = 2.5, 0.0
    z[..., lead, 2:] = -9.0
    z[..., ~lead, 2:] = -9.0
    sign = np.where(np.arange(5) % 2, 0.1, 0.0) * rng.uniform(0.5, 1.5)
    z[..., lead, 1] += sign[:, None, None]
    z[..., ~lead, 5] += sign[:, None, None]
    return z + 1e-3 * rng.normal(size=z.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_locking_controls(dtype: Any) -> None:
    assert (
        verdicts("P2", lambda rng: {"logits": locked_and_loose(rng).astype(dtype)})["pass"]
        >= SEEDS - MOST
    )
    assert verdicts("P2", lambda rng: {"logits": restless(rng).astype(dtype)})["pass"] <= MOST


def test_rows_with_one_key_are_not_locked() -> None:
    """Causal stacks whose other rows are loose have nothing locked, though row 0 has no tail."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        z = 0.1 * rng.normal(size=(20, 6, 6)) + 0.02 * np.cumsum(
            rng.normal(size=(5, 20, 6, 6)), axis=0
        )
        return {"logits": causal(z)}

    assert verdicts("P2", make) == {"abstain": SEEDS}
    alone = np.full((3, 2, 4, 4), -np.inf)
    alone[..., 0] = np.random.default_rng(0).normal(size=(3, 2, 4))
    assert "no row sees two keys" in diagnostics.run(alone)["P2"].reason


# ---- P3 -------------------------------------------------------------------------------------------


def test_vocabularies_need_a_metric() -> None:
    """Without one P3 abstains; with embeddings the order of the words does not matter."""
    rng = np.random.default_rng(0)
    E = rng.normal(size=(3, 12))
    z = np.stack([2 * rng.normal(size=(6, 3)) @ E * (1 + 0.01 * k) for k in range(3)])
    none = diagnostics.run(z, thresholds=OPEN)["P3"]
    assert none.verdict == "abstain" and "metric" in none.reason and none.value is None
    order = rng.permutation(12)
    options: dict[str, Any] = {"n_pairs": 3, "n_resamples": 40, "thresholds": OPEN}
    a = diagnostics.run(z, keys=E.T, **options)["P3"]
    b = diagnostics.run(z[..., order], keys=E.T[order], **options)["P3"]
    assert a.verdict == b.verdict == "pass"
    assert a.value == pytest.approx(b.value, rel=1e-9)


def test_too_many_keys_for_exact_transport() -> None:
    z = np.zeros((2, 3, 4000)) + 0.01 * np.random.default_rng(0).normal(size=(2, 3, 4000))
    check = diagnostics.run(z, keys=np.random.default_rng(1).normal(size=(4000, 2)))["P3"]
    assert check.verdict == "abstain" and "linear programme" in check.reason


def test_contraction_controls() -> None:
    """Logits that fall with distance contract as they warm; rows locked to one key part."""

    def near(rng: np.random.Generator) -> dict[str, Any]:
        z = 2 * rng.normal(size=(1, 12, 12))
        return {"logits": z + 1e-3 * rng.normal(size=(3, 1, 12, 12))}

    def parting(rng: np.random.Generator) -> dict[str, Any]:
        rows = np.array([[9.0, 0, 0, 3], [9, 3, 0, 0]])[np.arange(12) % 2]
        return {"logits": rows + 0.05 * rng.normal(size=(3, 1, 12, 4)), "keys": np.arange(4.0)}

    assert verdicts("P3", near)["pass"] >= SEEDS - MOST
    assert verdicts("P3", parting) == {"fail": SEEDS}


# ---- P4 -------------------------------------------------------------------------------------------


def rotation_flow(rng: np.random.Generator, n: int = 120, d: int = 2, drift: float = 0.0) -> Array:
    A = rng.normal(size=(d, d))
    A -= A.T
    x = rng.normal(size=(n, d))
    return np.stack([x @ expm(0.05 * k * A / np.linalg.norm(A, 2)) + drift * k for k in range(5)])


def gradient_flow(rng: np.random.Generator, n: int = 120, d: int = 8, drift: float = 0.0) -> Array:
    S = rng.normal(size=(d, d)) + np.diag(np.linspace(0, 2, d))
    S = S + S.T
    x = rng.normal(size=(n, d))
    out = [x]
    for _ in range(4):
        out.append(out[-1] + 0.01 * (out[-1] - out[-1].mean(axis=0)) @ S + drift)
    return np.stack(out)


def curved_gradient_flow(rng: np.random.Generator) -> Array:
    """The gradient of a sum of log cosh: not linear."""
    S = rng.normal(size=(8, 8))
    x = rng.normal(size=(120, 8))
    out = [x]
    for _ in range(4):
        out.append(out[-1] + 0.02 * np.tanh(out[-1] @ S) @ S.T)
    return np.stack(out)


def blurred(H: Array, rng: np.random.Generator) -> Array:
    """Scatter as large as the motion."""
    steps = np.diff(H, axis=0)
    return H + np.sqrt((steps**2).mean()) * np.cumsum(rng.normal(size=H.shape), axis=0)


ROTATIONS: dict[str, Make] = {
    "plane": rotation_flow,
    "drift": lambda rng: rotation_flow(rng, drift=10.0),
    "shift": lambda rng: rotation_flow(rng) + 100.0,
    "single precision": lambda rng: rotation_flow(rng).astype(np.float32),
    "59 samples": lambda rng: rotation_flow(rng, n=59, d=3),
    "60 samples": lambda rng: rotation_flow(rng, n=60, d=3),
    "scatter": lambda rng: blurred(rotation_flow(rng, n=400), rng),
}
GRADIENTS: dict[str, Make] = {
    "projected": gradient_flow,
    "drift": lambda rng: gradient_flow(rng, drift=10.0),
    "shift": lambda rng: gradient_flow(rng) + 100.0,
    "single precision": lambda rng: gradient_flow(rng).astype(np.float32),
    "30 samples": lambda rng: gradient_flow(rng, n=30),
    "curved": curved_gradient_flow,
    "scatter": lambda rng: blurred(gradient_flow(rng, n=400), rng),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_fail(name: str) -> None:
    found = verdicts("P4", lambda rng: {"activations": ROTATIONS[name](rng), "thresholds": OPEN})
    assert found["pass"] <= MOST and found["fail"] >= SEEDS - MOST


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_flows_pass(name: str) -> None:
    found = verdicts("P4", lambda rng: {"activations": GRADIENTS[name](rng), "thresholds": OPEN})
    assert found["fail"] <= MOST
    if name != "scatter":  # which widens the interval
        assert found["pass"] >= SEEDS - MOST


def test_scatter_is_no_rotation() -> None:
    """Random walks of the states: nothing to judge, and never a pass."""
    found = verdicts(
        "P4",
        lambda rng: {
            "activations": rng.normal(size=(60, 4))
            + 0.1 * np.cumsum(rng.normal(size=(5, 60, 4)), axis=0),
            "thresholds": OPEN,
        },
    )
    assert found["pass"] <= MOST and found["fail"] <= MOST


def test_a_drift_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    H = rotation_flow(rng) + 0.3 * gradient_flow(np.random.default_rng(0), d=2)
    a = diagnostics.run(activations=H, thresholds=OPEN)["P4"]
    b = diagnostics.run(activations=H + 5 * rng.normal(size=(5, 1, 2)), thresholds=OPEN)["P4"]
    assert b.value == pytest.approx(a.value, rel=1e-9) and a.verdict == b.verdict


def test_what_the_normalised_energy_reads() -> None:
    """Erratum 42: the share of the kinetic energy falls with a drift and rises in a projection; not P4."""
    H = rotation_flow(np.random.default_rng(1), n=400)
    still, drifting = (
        rotation.path_energy(H + drift * np.arange(5)[:, None, None], n_resamples=10)
        for drift in (0.0, 0.2)
    )
    assert still.normalized > 0.95 and drifting.normalized < 0.1
    assert drifting.energy == pytest.approx(still.energy, rel=1e-6)
    H = gradient_flow(np.random.default_rng(4))
    flat = (H - H.mean(axis=(0, 1))).reshape(-1, 8)
    leading = np.linalg.eigh(flat.T @ flat)[1][:, -3:]
    assert rotation.path_energy(H @ leading, n_resamples=10).normalized > 0.2
    assert abs(diagnostics.run(activations=H, thresholds=OPEN)["P4"].value or 1.0) < 0.01


def test_the_share_is_unbiased_at_every_number_of_samples() -> None:
    """u = Cx + noise, x normal: the share is that of C, at 59 samples as at 60 and 400."""
    C = np.random.default_rng(5).normal(size=(3, 3))
    truth = ((C - C.T) ** 2).sum() / 4 / (C**2).sum()
    for n in (40, 59, 60, 400):
        found = []
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(n, 3))
            H = np.stack([x, x + 0.05 * (x @ C.T + 2 * rng.normal(size=x.shape)) + 3.0])
            found.append(diagnostics.run(activations=H, thresholds=OPEN)["P4"].value or np.nan)
        error = np.nanstd(found) / np.sqrt(SEEDS)
        assert abs(np.nanmean(found) - truth) < 3.5 * error + 0.01, n


def test_a_contraction_hides_no_rotation() -> None:
    """u = -x + Rx/5 has little rotation beside its contraction: no pass, with the reason."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.normal(size=(120, 2))
        step = np.eye(2) + 0.05 * (-np.eye(2) + 0.2 * np.array([[0.0, 1.0], [-1.0, 0.0]]))
        return {
            "activations": np.stack([x @ np.linalg.matrix_power(step, k) for k in range(5)]),
            "thresholds": OPEN,
        }

    assert verdicts("P4", make) == {"abstain": SEEDS}
    check = diagnostics.run(**make(np.random.default_rng(0)))["P4"]
    assert (
        check.details["beyond"] == pytest.approx(1, abs=0.05)
        and "multiple of the state" in check.reason
    )
    # A contraction alone has nothing beyond.
    x = np.random.default_rng(0).normal(size=(120, 3))
    alone = diagnostics.run(activations=np.stack([x * 0.9**k for k in range(4)]), thresholds=OPEN)[
        "P4"
    ]
    assert alone.verdict == "pass" and alone.details["scaling"] == pytest.approx(1)


def test_gradient_fields_stand_beside() -> None:
    check = diagnostics.run(activations=rotation_flow(np.random.default_rng(0), d=4))["P4"]
    assert len(check.details["control"]) == 5 and np.nanmax(check.details["control"]) < 0.1
    assert "gradient fields at these states read up to" in check.reason


def test_a_tensor_that_varies() -> None:
    """u = a grad theta with a(x) = 1 + x_1^2 / 4 is a gradient flow in the metric of a alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))

    def a(y: Array) -> Array:
        return np.asarray(1 + y[:, 0] ** 2 / 4)

    S, R = np.array([[1.0, 0.5], [0.5, -1.0]]), np.array([[0.0, 1.0], [-1.0, 0.0]])
    for matrix, verdict in ((S, "pass"), (R, "fail")):
        u = a(x)[:, None] * (x @ matrix)
        H = np.stack([x, x + 0.01 * (u - u.mean(axis=0))])
        check = diagnostics.run(activations=H, diffusion=a, thresholds=OPEN)["P4"]
        assert check.verdict == verdict, check.reason


# ---- the Jacobian of a layer ----------------------------------------------------------------------


def test_jacobians_by_hand() -> None:
    """The share of a known matrix, formed and probed, by differences and by products."""
    rng = np.random.default_rng(0)
    for d, exact in ((5, True), (300, False)):
        B = rng.normal(size=(d, d)) + 0.5 * np.triu(rng.normal(size=(d, d)))
        off = B - np.trace(B) / d * np.eye(d)
        truth = (((B - B.T) / 2) ** 2).sum() / (off**2).sum()
        x = rng.normal(size=(1, d))

        def layer(y: Array, B: Array = B) -> Array:
            return y + y @ B.T + 3.0

        pair = (lambda y, v, B=B: v + v @ B.T, lambda y, v, B=B: v + v @ B)
        for f in (layer, pair):
            found = rotation.jacobian_asymmetry(f, x, n_probes=200 if not exact else 8)
            assert found.exact == exact
            if exact:
                assert found.share == pytest.approx(truth, rel=1e-6)
            else:
                low, high = found.interval
                assert low - 0.01 < truth < high + 0.01 and high - low < 0.2


def test_the_multiple_of_the_identity_is_taken_off() -> None:
    """A strong contraction hides no rotation; a gradient reads 0 whatever multiple is added."""
    x = np.random.default_rng(0).normal(size=(3, 4))
    R = np.kron(np.eye(2), np.array([[0.0, 1.0], [-1.0, 0.0]]))
    for c in (-0.9, 0.0, 5.0):
        turn = rotation.jacobian_asymmetry(lambda y, c=c: (1 + c) * y + 0.1 * y @ R, x)
        assert turn.share == pytest.approx(1, abs=1e-6)
        potential = rotation.jacobian_asymmetry(lambda y, c=c: (1 + c) * y + 0.1 * np.tanh(y), x)
        assert potential.share < 1e-12
    for size in (x, np.random.default_rng(1).normal(size=(20, 5))):  # formed, and probed
        for multiple in (0.0, 0.5, 1.0, 2.0):
            nothing = rotation.jacobian_asymmetry(lambda y, c=multiple: c * y, size)
            assert np.isnan(nothing.share)
            single = rotation.jacobian_asymmetry(
                lambda y, c=multiple: (c * y).astype(np.float32), size
            )
            assert np.isnan(single.share)
    single = rotation.jacobian_asymmetry(lambda y: (y + 0.1 * y @ R).astype(np.float32), x)
    assert single.share == pytest.approx(1, abs=0.01)


def test_layer_maps_beside_the_samples() -> None:
    rng = np.random.default_rng(0)
    H = rotation_flow(rng, n=40, d=4)
    A = rng.normal(size=(4, 4))
    turned = diagnostics.run(activations=H, layer_map=lambda y: y @ expm(0.05 * (A - A.T)))["P4"]
    assert turned.verdict == "fail" and np.allclose(turned.details["jacobian"], 1, atol=0.05)
    flow = gradient_flow(np.random.default_rng(1), n=40, d=4)
    smooth: Any = [lambda y: y + 0.1 * np.tanh(y)] * 4
    assert diagnostics.run(activations=flow, layer_map=smooth)["P4"].verdict == "pass"
    # Scatter alone says nothing; the map still does.
    walk = rng.normal(size=(40, 4)) + 0.05 * np.cumsum(rng.normal(size=(5, 40, 4)), axis=0)
    assert diagnostics.run(activations=walk)["P4"].verdict == "abstain"
    assert diagnostics.run(activations=walk, layer_map=smooth)["P4"].verdict == "pass"
    with pytest.raises(ValueError, match="layer_map: wanted one map or a list of 4"):
        diagnostics.run(activations=walk, layer_map=smooth[:2])
    with pytest.raises(ValueError, match="layer_map: wanted a function whose value is"):
        diagnostics.run(activations=walk, layer_map=lambda y: y[:2])
    with pytest.raises(ValueError, match="layer_map: wanted together with activations"):
        diagnostics.run(np.zeros((2, 3, 3)), layer_map=smooth)
    with pytest.raises(ValueError, match=r"layer_map.*NaN"):
        diagnostics.run(activations=walk, layer_map=lambda y: y * np.nan)
