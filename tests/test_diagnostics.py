"""The suite P0-P4 (EOT-13): gate, verdicts, abstentions, bad input."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from qkcore import diagnostics
from qkcore.diagnostics import Report, Thresholds

from .reference_diagnostics import Array, mobility, softmax


def smooth(layers: int = 6, heads: int = 2, n: int = 12, size: float = 1.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    base = size * rng.normal(size=(heads, n, n))
    turn = 0.1 * rng.normal(size=(heads, n, n))
    return np.stack([base + turn * k / layers for k in range(layers)])


def rotating(layers: int = 6, n: int = 400, angle: float = 0.02) -> Array:
    x = np.random.default_rng(1).normal(size=(n, 2))
    c, s = np.cos(angle), np.sin(angle)
    return np.stack(
        [x @ np.linalg.matrix_power(np.array([[c, s], [-s, c]]), k) for k in range(layers)]
    )


def test_a_smooth_stack_passes() -> None:
    """EOT-13: numbers of P0-P2 against a plain computation row by row."""
    z = smooth(size=4.0)
    x = np.random.default_rng(2).normal(size=(200, 2))
    report = diagnostics.run(z, activations=np.stack([0.97**k * x for k in range(6)]))
    assert report.verdicts == dict.fromkeys(("P0", "P1", "P2", "P3", "P4"), "pass")
    assert report.passed
    steps = np.diff(z, axis=0)
    assert report["P0"].value == pytest.approx(
        float((steps**2).sum(axis=0).mean(axis=(1, 2)).max())
    )
    assert report["P0"].details["total"] == pytest.approx(
        float((steps**2).sum(axis=(0, 3)).mean()), rel=1e-12
    )
    p = softmax(z)
    tv = 0.5 * np.abs(np.diff(p, axis=0)).sum(axis=-1)
    np.testing.assert_allclose(report["P1"].details["realised"], tv.mean(axis=(1, 2)), rtol=1e-12)
    budget = 0.25 * np.ptp(steps, axis=-1)
    np.testing.assert_allclose(report["P1"].details["budget"], budget.mean(axis=(1, 2)), rtol=1e-12)
    euler = np.einsum("lhij,lhijk->lhik", steps, _all_mobilities(p[:-1]))
    missed = 0.5 * np.abs(np.diff(p, axis=0) - euler).sum(axis=-1)
    assert report["P1"].value == pytest.approx(float(missed.sum() / tv.sum()))
    tail = 1 - p[:-1].max(axis=-1)
    assert report["P2"].value == pytest.approx(float(np.median(tv[tail <= 0.1])))
    assert report["P4"].value is not None and report["P4"].value < 1e-20


def _all_mobilities(p: Array) -> Array:
    flat = np.stack([mobility(row) for row in p.reshape(-1, p.shape[-1])])
    return flat.reshape(*p.shape, p.shape[-1])


def test_a_jump_makes_everything_abstain() -> None:
    """EOT-13 (N.4): P0 fails and says where; nothing else speaks."""
    z = smooth()
    z[3:] += 3.0 * np.random.default_rng(3).normal(size=z.shape[1:])
    report = diagnostics.run(z, activations=rotating())
    assert report["P0"].verdict == "fail"
    assert "transition 2 -> 3" in report["P0"].reason
    for name in ("P1", "P2", "P3", "P4"):
        assert report[name].verdict == "abstain" and report[name].value is None
        assert report[name].reason.startswith("P0 failed: the logits vary too much")
    assert not report.passed
    # a jump in one head of many is seen as well: the worst head counts
    z = smooth(heads=20)
    z[3:, 7] += 1.0 * np.random.default_rng(4).normal(size=z.shape[2:])
    report = diagnostics.run(z)
    assert report["P0"].verdict == "fail" and int(np.argmax(report["P0"].details["by_head"])) == 7


def test_a_change_of_mask_is_a_jump() -> None:
    z = smooth()
    z[..., -1] = -np.inf
    assert diagnostics.run(z)["P0"].verdict == "pass"
    z[2:, ..., 0, 3] = -np.inf
    report = diagnostics.run(z)
    assert report["P0"].verdict == "fail" and "mask changes" in report["P0"].reason


def test_masked_keys_do_not_count() -> None:
    z = smooth(n=9)
    wide = np.concatenate([z, np.full((*z.shape[:-1], 4), -np.inf)], axis=-1)
    a, b = diagnostics.run(z), diagnostics.run(wide)
    for name in ("P0", "P1", "P3"):
        assert a[name].value == pytest.approx(b[name].value, rel=1e-10)
    causal = np.where(np.tril(np.ones((9, 9), bool)), z, -np.inf)
    assert diagnostics.run(causal)["P0"].verdict == "pass"


def test_mass_must_be_conserved() -> None:
    """EOT-13: float32 probabilities lose mass at 1e-7; the gate says so instead of going on."""
    p = softmax(smooth())
    assert diagnostics.run(probabilities=p)["P0"].verdict == "pass"
    report = diagnostics.run(probabilities=p.astype(np.float32))
    assert report["P0"].verdict == "fail" and "mass" in report["P0"].reason
    relaxed = diagnostics.run(probabilities=p.astype(np.float32), thresholds={"continuity": 1e-5})
    assert relaxed["P0"].verdict == "pass"
    assert relaxed["P2"].details["exceeding"] == 0  # rounding is not motion


def test_probabilities_and_logits_agree() -> None:
    z = smooth(size=4.0)
    centred = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    a, b = diagnostics.run(centred), diagnostics.run(probabilities=softmax(z))
    assert a.verdicts == b.verdicts
    for name in ("P0", "P1", "P2", "P3"):
        assert a[name].value == pytest.approx(b[name].value, rel=1e-8)


def test_dtype_layout_and_lists() -> None:
    z = smooth().astype(np.float32)
    z.setflags(write=False)
    whole = diagnostics.run(z)
    listed = diagnostics.run(list(z))
    assert listed.to_dict() == whole.to_dict()
    strided = np.repeat(z, 2, axis=-1)[..., ::2]
    assert diagnostics.run(strided).to_dict() == whole.to_dict()
    assert diagnostics.run(z.astype(np.float64)).to_dict()["checks"]["P0"][
        "value"
    ] == pytest.approx(whole["P0"].value)


def test_budget_of_the_caller() -> None:
    """EOT-13 (P1, eq 22): a budget below the motion fails with the layer; the default one cannot."""
    z = smooth()
    assert diagnostics.run(z)["P1"].details["rows_over_budget"] == 0
    tight = np.full(5, 1.0)
    tight[3] = 1e-4
    report = diagnostics.run(z, budget=tight)
    assert report["P1"].verdict == "fail"
    assert report["P1"].details["exceeding_layers"] == [3] and "3 -> 4" in report["P1"].reason


def test_coarse_layers_are_not_a_flow() -> None:
    """Few large steps pass a lenient gate; the Euler step of the flow then misses most of the motion."""
    rng = np.random.default_rng(5)
    z = np.stack([np.zeros((1, 8, 8)), 4 * rng.normal(size=(1, 8, 8))])
    report = diagnostics.run(z, thresholds={"variation": 1e3})
    assert report["P1"].verdict == "fail" and "Euler" in report["P1"].reason


def test_locking_verdicts() -> None:
    loose = smooth(size=0.3)
    assert diagnostics.run(loose)["P2"].verdict == "abstain"
    z = smooth(size=6.0)
    assert diagnostics.run(z)["P2"].verdict == "pass"
    assert diagnostics.run(z, thresholds={"locked_motion": 1e-12})["P2"].verdict == "fail"


def test_contraction_can_fail() -> None:
    """P3 is a prediction: rows locked to one key part when warmed."""
    row = np.array([[9.0, 0, 0, 3], [9, 3, 0, 0]])
    z = np.tile(row, (3, 1, 8, 1)) * (1 + 1e-3 * np.arange(3)[:, None, None, None])
    report = diagnostics.run(z)
    assert report["P3"].verdict == "fail" and report["P3"].value is not None
    assert report["P3"].value < 0
    single = diagnostics.run(z[:, :, :1].copy())
    assert single["P3"].verdict == "abstain" and "two rows" in single["P3"].reason


def test_keys_and_queries_set_the_distance() -> None:
    rng = np.random.default_rng(6)
    Q, K = rng.normal(size=(10, 3)), rng.normal(size=(12, 3))
    z = np.stack([(1 + 0.01 * k) * Q @ K.T for k in range(3)])[:, None]
    report = diagnostics.run(z, queries=Q, keys=K, n_pairs=3)
    assert report["P3"].details["distance"] == "keys" and report["P3"].verdict == "pass"


def test_evi_of_a_few_rows() -> None:
    report = diagnostics.run(smooth(), evi_rows=3)
    found = report["P3"].details["evi"]
    assert found["contracting"] == 1 and found["w2"].shape == (6,)  # a straight path in logits
    assert found["w2"][-1] == pytest.approx(0, abs=1e-7) and "EVI" in report["P3"].reason


def test_alignment() -> None:
    """EOT-13 (P4): a rotation fails, a gradient flow passes, and a reference energy is compared with."""
    z = smooth()
    turned = diagnostics.run(z, activations=rotating())
    assert turned["P4"].verdict == "fail" and turned["P4"].value is not None
    assert turned["P4"].value > 0.9
    energy = turned["P4"].details["energy"]
    assert (
        diagnostics.run(z, activations=rotating(), reference_energy=2 * energy)["P4"].verdict
        == "pass"
    )
    assert (
        diagnostics.run(z, activations=rotating(), reference_energy=energy / 2)["P4"].verdict
        == "fail"
    )
    wide = np.concatenate([rotating(), 1e-3 * np.ones((6, 400, 5))], axis=-1)
    assert (
        "components hold 100 % of the variance" in diagnostics.run(z, activations=wide)["P4"].reason
    )


def test_singular_tensor_is_an_abstention_with_its_reason() -> None:
    report = diagnostics.run(smooth(), activations=rotating(), diffusion=np.diag([1.0, 0.0]))
    assert report["P4"].verdict == "abstain"
    assert "positive definite" in report["P4"].reason and "epsilon I" in report["P4"].reason


def test_activations_alone_and_with_an_unembedding() -> None:
    H = rotating()
    alone = diagnostics.run(activations=H)
    assert alone["P0"].verdict == "pass" and alone["P1"].verdict == "abstain"
    assert "needs logits" in alone["P1"].reason
    W = np.random.default_rng(7).normal(size=(2, 9))
    whole = diagnostics.run(activations=H, unembedding=W)
    direct = diagnostics.run(H @ W, activations=H)
    assert whole.to_dict() == direct.to_dict() and whole["P1"].verdict == "pass"
    still = diagnostics.run(activations=np.tile(H[:1], (3, 1, 1)))
    assert still["P4"].verdict == "abstain" and "do not move" in still["P4"].reason
    few = diagnostics.run(activations=H[:, :8])
    assert "too few" in few["P4"].reason


def test_two_layers_one_row_two_keys() -> None:
    """The smallest stack: L.3's two tokens."""
    z = np.array([[[0.0, 0.0]], [[0.1, 0.0]]])
    report = diagnostics.run(z)
    p = 1 / (1 + np.exp(-0.1))
    assert report["P1"].details["realised"][0] == pytest.approx(p - 0.5)
    euler = 0.25 * 0.1  # p (1 - p) dz at p = 1/2
    assert report["P1"].value == pytest.approx(abs(p - 0.5 - euler) / (p - 0.5))
    flat = diagnostics.run(z[:, 0])
    assert flat["P3"].verdict == "abstain"


def test_report_prints_and_serialises() -> None:
    report = diagnostics.run(smooth(), activations=rotating())
    text = str(report)
    lines = text.splitlines()
    assert len(lines) == 7 and "verdict" in lines[1] and lines[2].startswith("P0")
    assert repr(report) == text and "pass" in str(report["P0"])
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["checks"]["P1"]["verdict"] == "pass" and data["thresholds"]["variation"] == 0.15
    assert [check.name for check in report] == ["P0", "P1", "P2", "P3", "P4"]
    with pytest.raises(KeyError, match="P9"):
        report["P9"]
    again = diagnostics.run(smooth(), activations=rotating())
    assert again.to_dict() == report.to_dict()  # the same seed, the same bits


def test_plots() -> None:
    pytest.importorskip("matplotlib")
    report = diagnostics.run(smooth(size=4.0), activations=rotating())
    figure = report.plot()
    assert len(figure.axes) == 5
    for ax in figure.axes:
        assert ax.get_xlabel() and ax.get_ylabel() and ax.get_title()
    z = smooth()
    z[3:] += 9
    z[3:, :, :, 0] -= 20
    assert len(diagnostics.run(z).plot().axes) == 1  # only the gate has something to show


def test_plots_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    report: Report = diagnostics.run(smooth())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        report.plot()


Z = smooth()
ERRORS: list[tuple[str, Any, type[Exception], str]] = [
    ("nothing", lambda: diagnostics.run(), ValueError, "logits.*none"),
    ("nan", lambda: diagnostics.run(np.where(Z > 1, np.nan, Z)), ValueError, r"logits\[0\].*NaN"),
    ("inf", lambda: diagnostics.run(np.where(Z > 1, np.inf, Z)), ValueError, r"logits.*\+inf"),
    ("masked row", lambda: diagnostics.run(np.full((2, 3, 3), -np.inf)), ValueError, "unmasked"),
    ("one layer", lambda: diagnostics.run(Z[:1]), ValueError, "logits.*at least two layers, got 1"),
    ("vector", lambda: diagnostics.run(np.zeros(4)), ValueError, r"logits.*\(4,\)"),
    ("integers", lambda: diagnostics.run(Z.astype(int)), TypeError, "logits.*int64"),
    (
        "ragged",
        lambda: diagnostics.run([Z[0], Z[1, :1]]),
        ValueError,
        r"logits\[1\].*like the first",
    ),
    ("rows", lambda: diagnostics.run(probabilities=np.abs(Z)), ValueError, "sum to 1"),
    ("signs", lambda: diagnostics.run(probabilities=Z), ValueError, "probabilities.*>= 0"),
    ("both", lambda: diagnostics.run(Z, probabilities=softmax(Z)), ValueError, "one of the two"),
    (
        "nan activations",
        lambda: diagnostics.run(activations=rotating() * np.nan),
        ValueError,
        "activations.*NaN",
    ),
    (
        "one state",
        lambda: diagnostics.run(activations=rotating()[:1]),
        ValueError,
        "activations.*two layers",
    ),
    ("temperature", lambda: diagnostics.run(Z, temperature=0.0), ValueError, "temperature.*> 0"),
    (
        "temperatures",
        lambda: diagnostics.run(Z, temperatures=(2, 1)),
        ValueError,
        "temperatures.*rising",
    ),
    (
        "thresholds",
        lambda: diagnostics.run(Z, thresholds={"x": 1.0}),
        ValueError,
        "thresholds.*'x'",
    ),
    ("budget", lambda: diagnostics.run(Z, budget=np.ones(3)), ValueError, r"budget.*\(5,\)"),
    ("unembedding", lambda: diagnostics.run(Z, unembedding=np.eye(2)), ValueError, "unembedding"),
]


@pytest.mark.parametrize(("name", "call", "error", "match"), ERRORS, ids=[e[0] for e in ERRORS])
def test_bad_input(name: str, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_thresholds_object() -> None:
    report = diagnostics.run(Z, thresholds=Thresholds(variation=1e-9))
    assert report["P0"].verdict == "fail" and report["P0"].threshold == 1e-9
