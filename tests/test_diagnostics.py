"""The suite P0-P4 (EOT-13): gate, verdicts, abstentions, bad input."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from qkcore import _plots, diagnostics
from qkcore.diagnostics import Report, Thresholds

from .reference_diagnostics import Array, softmax


def smooth(layers: int = 6, heads: int = 2, n: int = 12, size: float = 1.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    base = size * rng.normal(size=(heads, n, n))
    turn = 0.1 * rng.normal(size=(heads, n, n))
    return np.stack([base + turn * k / layers for k in range(layers)])


def flowing(layers: int = 6, heads: int = 2, n: int = 48, V: int = 6, seed: int = 0) -> Array:
    """Rows carried by one linear field of their centred logits: the flow is exp(tA)."""
    rng = np.random.default_rng(seed)
    z = 2.5 * rng.normal(size=(heads, n, V))
    z -= z.mean(axis=-1, keepdims=True)
    A = 0.015 * rng.normal(size=(heads, V, V))
    A -= A.mean(axis=-1, keepdims=True)
    out = [z]
    for _ in range(layers - 1):
        out.append(out[-1] + out[-1] @ A)
    return np.stack(out)


def rotating(layers: int = 6, n: int = 400, angle: float = 0.02) -> Array:
    x = np.random.default_rng(1).normal(size=(n, 2))
    c, s = np.cos(angle), np.sin(angle)
    return np.stack(
        [x @ np.linalg.matrix_power(np.array([[c, s], [-s, c]]), k) for k in range(layers)]
    )


def test_a_smooth_stack_passes() -> None:
    """EOT-13: numbers of P0-P2 against a plain computation row by row."""
    z = flowing()
    x = np.random.default_rng(2).normal(size=(200, 2))
    report = diagnostics.run(
        z, activations=np.stack([0.97**k * x for k in range(6)]), keys=np.arange(6.0)
    )
    assert report.verdicts == dict.fromkeys(("P0", "P1", "P2", "P3", "P4"), "pass")
    assert report.passed
    steps = np.diff(z, axis=0)
    off = steps - steps.mean(axis=-1, keepdims=True)
    p = softmax(z)
    assert report["P0"].value == pytest.approx(float((off**2).sum(axis=0).mean(axis=(1, 2)).max()))
    jeffreys = (np.diff(p, axis=0) * np.diff(np.log(p), axis=0)).sum(axis=(0, -1))
    assert report["P0"].details["jeffreys"] == pytest.approx(float(jeffreys.mean(axis=1).max()))
    tv = 0.5 * np.abs(np.diff(p, axis=0)).sum(axis=-1)
    np.testing.assert_allclose(report["P1"].details["realised"], tv.mean(axis=(1, 2)), rtol=1e-12)
    budget = 0.25 * np.ptp(steps, axis=-1)
    np.testing.assert_allclose(report["P1"].details["budget"], budget.mean(axis=(1, 2)), rtol=1e-12)
    ratio = (tv / (0.5 * np.ptp(steps, axis=-1))).reshape(5, -1)
    np.testing.assert_allclose(report["P1"].details["sensitivity"], ratio.max(axis=1))
    tail = 1 - p[:-1].max(axis=-1)
    assert report["P2"].details["locked_tv"] == pytest.approx(float(np.median(tv[tail <= 0.1])))
    assert report["P4"].value is not None and abs(report["P4"].value) < 1e-20


def test_a_jump_makes_everything_abstain() -> None:
    """EOT-13 (N.4): P0 fails and says where; nothing else speaks."""
    z = smooth()
    z[3:] += 3.0 * np.random.default_rng(3).normal(size=z.shape[1:])
    report = diagnostics.run(z, activations=rotating())
    assert report["P0"].verdict == "fail"
    assert "transition 2 -> 3" in report["P0"].reason
    for name in ("P1", "P2", "P3", "P4"):
        assert report[name].verdict == "abstain" and report[name].value is None
        assert report[name].reason == "P0 failed, see there"
    assert not report.passed
    # a jump in one of many heads is noticed too, because the worst head counts
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
    a = diagnostics.run(z, keys=np.arange(9.0))
    b = diagnostics.run(wide, keys=np.arange(13.0))
    for name in ("P0", "P3"):
        assert a[name].value == pytest.approx(b[name].value, rel=1e-10)
    causal = np.where(np.tril(np.ones((9, 9), bool)), z, -np.inf)
    assert diagnostics.run(causal)["P0"].verdict == "pass"
    z = flowing()
    wide = np.concatenate([z, np.full((*z.shape[:-1], 4), -np.inf)], axis=-1)
    a, b = diagnostics.run(z), diagnostics.run(wide)
    assert a.verdicts == b.verdicts
    for name in ("P0", "P2"):
        assert a[name].value == pytest.approx(b[name].value, rel=1e-10)
    assert a["P1"].value == pytest.approx(b["P1"].value, abs=1e-4)


def test_mass_must_be_conserved() -> None:
    """EOT-13: what rounding to a dtype loses is normalised away; what it does not explain fails P0."""
    p = softmax(smooth())
    exact = diagnostics.run(probabilities=p)
    assert exact["P0"].verdict == "pass"
    for dtype in (np.float32, np.float16):
        rounded = diagnostics.run(probabilities=p.astype(dtype))
        assert rounded["P0"].verdict == "pass" and rounded["P0"].details["residual"] < 1e-14
        assert rounded["P2"].details["exceeding"] == 0  # rounding is not motion
    single = diagnostics.run(probabilities=p.astype(np.float32))
    assert single["P0"].value == pytest.approx(exact["P0"].value, rel=1e-3)
    assert single.verdicts == exact.verdicts
    for dtype, loss in ((np.float64, 1e-9), (np.float32, 1e-4)):
        leaking = p.copy()
        leaking[2, 0, 3] *= 1 - loss
        report = diagnostics.run(probabilities=leaking.astype(dtype))
        assert report["P0"].verdict == "fail" and "lose mass" in report["P0"].reason
        assert "thresholds={'continuity'" in report["P0"].reason
        assert report["P0"].details["residual"] == pytest.approx(loss, rel=0.1)
        relaxed = diagnostics.run(
            probabilities=leaking.astype(dtype), thresholds={"continuity": 1e-3}
        )
        assert relaxed["P0"].verdict == "pass"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_probabilities_given_as_logits_are_refused(dtype: Any, masked: bool) -> None:
    z = smooth()
    if masked:
        z[..., np.triu(np.ones(z.shape[-2:], bool), 1)] = -np.inf
    p = softmax(z).astype(dtype)
    with pytest.raises(ValueError, match=r"logits: .* probabilities; pass them as probabilities="):
        diagnostics.run(p)
    with pytest.raises(ValueError, match="probabilities; pass them as probabilities="):
        diagnostics.run(list(p))
    p[:, 0, -1] = 0.0  # leaving a token out
    with pytest.raises(ValueError, match="probabilities; pass them as probabilities="):
        diagnostics.run(p)
    # The reverse order.
    with pytest.raises(ValueError, match=r"probabilities\[0\]: wanted numbers >= 0.*logits="):
        diagnostics.run(probabilities=z.astype(dtype))
    with pytest.raises(ValueError, match=r"probabilities\[0\]: wanted rows that sum to 1.*logits="):
        diagnostics.run(probabilities=np.where(np.isfinite(z), np.abs(z), 0.0).astype(dtype))


def test_other_functions_of_logits_refuse_probabilities() -> None:
    p = softmax(smooth())
    for call in (
        lambda: diagnostics.depth.budget(p),
        lambda: diagnostics.depth.budget(iter(p)),
        lambda: diagnostics.depth.segment(p),
        lambda: diagnostics.depth.finite_depth(p),
        lambda: diagnostics.depth.detect(p),
        lambda: diagnostics.drift.transitions(p),
        lambda: diagnostics.curvature.locking(p),
        lambda: diagnostics.curvature.curvature_sweep(p[0, 0]),
    ):
        with pytest.raises(ValueError, match=r"are probabilities; pass np.log\(p\)"):
            call()
    # Rows minus constants show that these are logits; a few rows of this kind are no reason to refuse.
    assert diagnostics.run(p - 1.0)["P0"].verdict == "pass"
    q = p.copy()
    q[0, 0, 0, 0] += 0.5
    assert diagnostics.run(q)["P0"].value is not None


class Tensor:
    """As much of a PyTorch tensor as matters here: it raises where PyTorch does."""

    def __init__(self, array: Array, dtype: str, grad: bool = False) -> None:
        self._array, self.dtype, self.requires_grad = array, f"torch.{dtype}", grad

    def detach(self) -> Tensor:
        return Tensor(self._array, self.dtype.rpartition(".")[2])

    def float(self) -> Tensor:
        return Tensor(self._array.astype(np.float32), "float32", self.requires_grad)

    def numpy(self) -> Array:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._array

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        return self.numpy()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class SparseTensor(Tensor):
    def detach(self) -> Tensor:
        return self

    def numpy(self) -> Array:
        raise TypeError("can't convert Sparse layout tensor to numpy.")


def bfloat16(x: Array) -> Array:
    """Rounded to 8 bits, in float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_tensors(dtype: str, grad: bool, listed: bool) -> None:
    rounded = bfloat16 if dtype == "bfloat16" else lambda x: x.astype(dtype)

    def tensor(x: Array) -> Any:
        x = rounded(x)
        return [Tensor(y, dtype, grad) for y in x] if listed else Tensor(x, dtype, grad)

    def array(x: Array) -> Array:
        return np.asarray(rounded(x).astype(np.float32) if "16" in dtype else rounded(x))

    z, states = smooth(), rotating()
    ours = diagnostics.run(tensor(z), activations=tensor(states))
    assert ours.to_dict() == diagnostics.run(array(z), activations=array(states)).to_dict()
    p = diagnostics.run(probabilities=tensor(softmax(z)))
    assert p["P0"].details["residual"] < 1e-14  # rows of bfloat16 sum to 1 within 2 %
    with pytest.raises(ValueError, match="pass them as probabilities="):
        diagnostics.run(tensor(softmax(z)))


def test_tensors_that_cannot_be_read() -> None:
    with pytest.raises(TypeError, match=r"logits: wanted an array or a dense tensor on the CPU"):
        diagnostics.run(SparseTensor(smooth(), "float32"))
    with pytest.raises(TypeError, match=r"activations: wanted .* got SparseTensor .*detach\(\)"):
        diagnostics.run(activations=SparseTensor(rotating(), "float32"))


def test_hidden_states_of_a_model() -> None:
    """A tuple of layers (1, n, d), as models return them; batches and single layers are refused."""
    states = rotating()
    wanted = diagnostics.run(activations=states).to_dict()
    assert diagnostics.run(activations=tuple(states[:, None])).to_dict() == wanted
    assert diagnostics.run(activations=states[:, None]).to_dict() == wanted
    with pytest.raises(
        ValueError, match=r"got \(\d+, 2, .*take the sequences of a batch one by one"
    ):
        diagnostics.run(activations=np.stack([states, states], axis=1))
    with pytest.raises(ValueError, match=r"two layers.*got 1.*hidden states of every layer"):
        diagnostics.run(activations=states[:1])
    with pytest.raises(ValueError, match=r"wanted shape \(layers, n, d\).*stack the hidden states"):
        diagnostics.run(activations=states[0])


def test_the_reason_is_given_once() -> None:
    z = smooth()
    z[3:] += 3.0 * np.random.default_rng(3).normal(size=z.shape[1:])
    report = diagnostics.run(z)
    assert str(report).count("vary too much") == 1 and str(report).count("thresholds=") == 1
    advice = float(re.search(r"'variation': ([\d.e+]+)", report["P0"].reason)[1])  # type: ignore[index]
    assert diagnostics.run(z, thresholds={"variation": advice})["P0"].verdict == "pass"
    z[3:, ..., 0, 0] = -np.inf
    assert "use one mask" in (reason := diagnostics.run(z)["P0"].reason)
    assert "thresholds" not in reason  # no threshold changes that


# ---- degenerate input -----------------------------------------------------------------------------


def test_logits_that_underflow_when_they_are_cold() -> None:
    """Rows whose mass on common keys underflows keep their pairs: closed form for one-hot rows."""
    rng = np.random.default_rng(10)
    for z in (
        1000 * np.eye(8) + 1e-3 * rng.normal(size=(4, 8, 8)),
        np.repeat(2000 * rng.normal(size=(1, 8, 8)), 4, axis=0),
    ):
        report = diagnostics.run(z)
        assert report["P0"].verdict == "pass"
        assert report["P1"].verdict == "abstain" and report["P3"].verdict == "abstain"
        assert "no row moves" in report["P1"].reason and "one key" in report["P3"].reason
    sweep = diagnostics.curvature.curvature_sweep(800 * np.eye(6), temperatures=[1, 2, 4])
    np.testing.assert_allclose(sweep.gaps, 1.0)  # keys i and i + 1 are at distance 1
    # The mass of the second row is on a key that the first does not see.
    z = np.array([[0.0, 1.0, -np.inf], [0.0, 0.0, 5000.0]])
    gap = diagnostics.curvature.curvature_sweep(z, temperatures=[1, 2]).gaps[:, 0]
    heat = 1 / (1 + np.exp(-1 / np.array([1.0, 2.0])))
    np.testing.assert_allclose(gap, heat - 0.5, atol=1e-15)


def degenerate(rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of run: finite, and as odd as they come."""
    L, n, V = rng.integers(2, 7), rng.choice([1, 2, 3, 8, 30]), rng.choice([1, 2, 3, 8])
    shape = (*rng.choice([1, 2], size=rng.integers(0, 2)), n, V)
    scale = 10.0 ** rng.choice([-300, -20, -3, 0, 1, 3, 6, 100, 155, 250, 306])
    base = rng.normal(size=shape)
    noise = 1e-3 * rng.normal(size=(L, *shape))
    kind = rng.integers(6)
    if kind == 0:
        z = np.full((L, *shape), -scale)
    elif kind == 1:
        z = np.repeat(scale * base[None], L, axis=0)
    elif kind == 2:
        z = scale * base + noise
    elif kind == 3:
        z = scale * rng.normal(size=(L, *shape))
    elif kind == 4:
        z = np.where(rng.random(shape) < 0.5, -np.inf, scale * base) + noise
        z[..., 0] = 0.0
    else:
        hot = np.arange(V) == rng.integers(0, V, size=shape[:-1])[..., None]
        z = np.repeat(np.where(hot, scale, -1.0)[None], L, axis=0)
    out: dict[str, Any] = {"n_resamples": 10, "evi_rows": int(rng.choice([0, 0, 2]))}
    out["probabilities" if rng.random() < 0.3 else "logits"] = z
    if "probabilities" in out:
        out["probabilities"] = softmax(z).astype(rng.choice(["float32", "float64"]))
    if rng.random() < 0.5:
        out["thresholds"] = {"variation": 1e308}
    if rng.random() < 0.3:
        out["keys"] = rng.normal(size=V) * scale
    if rng.random() < 0.6:
        m, d = rng.choice([1, 2, 19, 20, 30]), rng.choice([1, 2, 5])
        x = rng.normal(size=(L, m, d))
        odd = [
            np.ones_like(x),
            np.repeat(x[:1], L, axis=0),
            scale * x,
            x * (np.arange(d) > 0),
            np.repeat(x[:1], L, axis=0) + 1e-9 * x,
            x[:, :1] + 0 * x + np.arange(L)[:, None, None],
        ]
        out["activations"] = odd[rng.integers(len(odd))]
        if rng.random() < 0.2:
            out["layer_map"] = [np.tanh, lambda y: y, lambda y: 0.5 * y, lambda y: 0 * y][
                rng.integers(4)
            ]
        if rng.random() < 0.2:
            out["diffusion"] = lambda y: 1 + np.minimum(y[:, 0] ** 2, 1.0)
    return out


@pytest.mark.parametrize("block", range(5))
def test_finite_input_gets_verdicts(block: int) -> None:
    """Nothing but a verdict, with its reason, comes out of finite input; warnings are errors here."""
    for seed in range(40 * block, 40 * block + 40):
        arguments = degenerate(np.random.default_rng(seed))
        report = diagnostics.run(**arguments)
        for check in report:
            assert check.verdict in ("pass", "fail", "abstain") and check.reason, seed
            assert check.value is None or not np.isnan(check.value), seed
        assert str(report) and report.to_dict()


def test_probabilities_and_logits_agree() -> None:
    z = flowing()
    a, b = (
        diagnostics.run(keys=np.arange(6.0), **given)
        for given in ({"logits": z}, {"probabilities": softmax(z)})
    )
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


def test_locking_verdicts() -> None:
    loose = smooth(size=0.3)
    assert diagnostics.run(loose)["P2"].verdict == "abstain"
    z = flowing()
    assert diagnostics.run(z)["P2"].verdict == "pass"
    assert diagnostics.run(z, thresholds={"locked_motion": 1e-12})["P2"].verdict == "fail"
    assert diagnostics.run(z, thresholds={"locking": 1e-12})["P2"].verdict == "fail"


def test_contraction_can_fail() -> None:
    """P3 is a prediction: rows locked to one key part when warmed."""
    row = np.array([[9.0, 0, 0, 3], [9, 3, 0, 0]])
    z = np.tile(row, (3, 1, 8, 1)) * (1 + 1e-3 * np.arange(3)[:, None, None, None])
    line = np.arange(4.0)
    report = diagnostics.run(z, keys=line)
    assert report["P3"].verdict == "fail" and report["P3"].value is not None
    assert report["P3"].value < 0
    single = diagnostics.run(z[:, :, :1].copy(), keys=line)
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
    reason = diagnostics.run(z, activations=wide)["P4"].reason
    assert "in 3 of 7 components with 100 % of the variance" in reason


def test_singular_tensor_is_an_abstention_with_its_reason() -> None:
    report = diagnostics.run(smooth(), activations=rotating(), diffusion=np.diag([1.0, 0.0]))
    assert report["P4"].verdict == "abstain"
    assert "positive definite" in report["P4"].reason and "epsilon I" in report["P4"].reason


def test_activations_alone_and_with_an_unembedding() -> None:
    H = rotating(n=60)
    alone = diagnostics.run(activations=H)
    assert alone["P0"].verdict == "pass" and alone["P1"].verdict == "abstain"
    assert "needs logits" in alone["P1"].reason
    W = np.random.default_rng(7).normal(size=(2, 9))
    whole = diagnostics.run(activations=H, unembedding=W, n_pairs=2)
    direct = diagnostics.run(H @ W, activations=H, keys=W.T, n_pairs=2)
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
    assert report["P1"].verdict == "abstain" and "too few" in report["P1"].reason
    flat = diagnostics.run(z[:, 0])
    assert flat["P1"].verdict == flat["P3"].verdict == "abstain"


def test_report_prints_and_serialises() -> None:
    report = diagnostics.run(flowing(), activations=rotating())
    text = str(report)
    lines = text.splitlines()
    assert len(lines) == 7 and "verdict" in lines[1] and lines[2].startswith("P0")
    assert repr(report) == text and "pass" in str(report["P0"])
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["checks"]["P1"]["verdict"] == "pass" and data["thresholds"]["variation"] == 0.15
    assert [check.name for check in report] == ["P0", "P1", "P2", "P3", "P4"]
    with pytest.raises(KeyError, match="P9"):
        report["P9"]
    again = diagnostics.run(flowing(), activations=rotating())
    assert again.to_dict() == report.to_dict()  # the same seed, the same bits


def test_plots() -> None:
    pytest.importorskip("matplotlib")
    report = diagnostics.run(flowing(), activations=rotating(), keys=np.arange(6.0))
    figure = report.plot()
    assert len(figure.axes) == 5
    for ax in figure.axes:
        assert ax.get_xlabel() and ax.get_ylabel() and ax.get_title()
    z = smooth()
    z[3:] += 9
    z[3:, :, :, 0] -= 20
    assert len(diagnostics.run(z).plot().axes) == 1  # only the gate has a result


def test_plots_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    report: Report = diagnostics.run(smooth())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _plots._figures.cache_clear()
    with pytest.raises(ImportError, match="pip install 'qkcore\\[plot\\]'"):
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
    ("temperature", lambda: diagnostics.run(Z, tau=0.0), ValueError, "tau.*> 0"),
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
