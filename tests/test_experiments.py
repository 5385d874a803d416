"""Experiments by one command (DAC-12, DAC-8, DAC-11, EOT-17); swissroll is in test_swissroll.py."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore import cli, experiments
from qkcore.experiments import _configs, _files, _report
from qkcore.experiments._files import Table
from qkcore.experiments._results import VERDICTS

from . import reference_experiments as reference
from .quick_runs import Results

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")


def strict_json(path: Path) -> Any:
    def refuse(text: str) -> None:
        raise AssertionError(f"{path}: {text} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


# ---- every experiment ----------------------------------------------------------------------------

FILES = {
    "trefoil": {"curves", "ranks", "latent_maps", "singular_values"},
    "regimes": {"cases", "tilts", "asymmetry", "duality"},
}


@pytest.mark.parametrize("name", FILES)
def test_files_and_manifest(results: Results, name: str) -> None:
    """EOT-17: data, figures, settings as run, and what they were made with."""
    done = results(name)
    folder = done.folder
    assert {p.stem for p in folder.glob("*.csv")} == FILES[name]
    assert done.figures and all(p.read_bytes()[:4] == b"\x89PNG" for p in done.figures)
    assert not list(folder.glob(".*")), "nothing half-written stays"
    assert not (folder / "checkpoint").exists()
    manifest = strict_json(folder / "manifest.json")
    assert manifest["status"] == "finished"
    assert manifest["quick"] is True and manifest["seed"] == 0
    assert manifest["wall_time_s"] > 0
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["versions"]["qkcore"] == qk.__version__
    assert {"cpu", "isa", "threads"} <= set(manifest["machine"])
    strict_json(folder / "metrics.json")
    claims = experiments.get(name).claims(done.metrics)
    assert claims and all(c.measured for c in claims)
    for table in experiments.get(name).tables(folder):
        assert table.rows and all(len(r) == len(table.header) for r in table.rows)


@pytest.mark.parametrize("name", FILES)
def test_plots_are_drawn_from_the_files_alone(
    results: Results, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = results(name)
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not compute")

    for function in ("bridge", "softmax", "low_rank", "kernel"):
        monkeypatch.setattr(qk, function, refuse)
    drawn = experiments.get(name).plot(tmp_path)
    assert [p.name for p in drawn] == [p.name for p in done.figures]
    for ours, theirs in zip(drawn, done.figures, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


def test_settings_as_run_give_the_same_run(results: Results, tmp_path: Path) -> None:
    done = results("regimes")
    again = experiments.run("regimes", tmp_path, config=done.folder / "config.yaml")
    assert again.config == done.config
    assert again.metrics == done.metrics
    other = experiments.run("regimes", tmp_path / "3", config=done.folder / "config.yaml", seed=3)
    assert other.metrics != done.metrics and other.config["seed"] == 3


def test_every_experiment_ships_its_settings() -> None:
    for name, e in experiments.EXPERIMENTS.items():
        config = _configs.resolve(name)
        assert "quick" not in config and isinstance(config["seed"], int)
        e.check(config)
        e.check(_configs.resolve(name, quick=True))
        assert set(e.extends) <= set(config)
        assert set(e.errata) <= set(_report.ERRATA)


# ---- trefoil -------------------------------------------------------------------------------------

MEASURES = {
    "kernel_rel_err", "coupling_rel_err", "latent_rmse", "row_err", "col_err", "min_entry", "status",
}  # fmt: skip


KERNELS = ("amap", "dmap", "amap_matched", "dmap_matched")


def test_trefoil_schema(results: Results) -> None:
    """DAC-12: metrics.json as other programs read it."""
    metrics = results("trefoil").metrics
    assert set(metrics["beta"]) == set(KERNELS)
    for name in KERNELS:
        assert set(metrics[name]) == {"full", "ranks"}
        assert {"row_err", "col_err", "n_iter"} <= set(metrics[name]["full"])
        assert list(metrics[name]["ranks"]) == ["8", "11", "12", "13", "14"]
        for found in metrics[name]["ranks"].values():
            assert set(found) >= MEASURES
    config = _configs.resolve("trefoil")
    assert config["ranks"] == list(range(8, 21))
    assert (config["n"], config["beta"], config["width"]) == (400, 0.5, 0.07)


def test_trefoil_full_bridges_meet_their_marginals(results: Results) -> None:
    for name in KERNELS:
        full = results("trefoil").metrics[name]["full"]
        assert full["status"] == "converged"
        assert max(full["row_err"], full["col_err"]) < np.finfo(float).eps, "machine precision"


@pytest.mark.parametrize(
    ("kind", "rank"),
    [("amap", 11), ("amap", 13), ("dmap", 13), ("dmap_matched", 11), ("dmap_matched", 13)],
)
def test_trefoil_against_dense_numpy(results: Results, kind: str, rank: int) -> None:
    """DAC-12: where no pair is cut the truncation is unique, and the table is D.1's to 3 digits."""
    metrics = results("trefoil").metrics
    ours = metrics[kind]["ranks"][str(rank)]
    assert ours["cuts_pair"] is False and ours["range"] is None
    for name, value in reference.trefoil_errors(kind[:4], rank, metrics["beta"][kind]).items():
        tight = {"abs": 1e-9, "rel": 1e-3} if name == "min_entry" else {"rel": 5e-4}
        assert ours[name] == pytest.approx(value, **tight), name


def test_erratum_11_even_ranks_are_ranges(results: Results) -> None:
    """DAC-12: a cut pair leaves a choice; the range holds the one that is shown."""
    for kind in ("amap", "dmap", "dmap_matched"):
        for rank in ("8", "12", "14"):
            found = results("trefoil").metrics[kind]["ranks"][rank]
            assert found["cuts_pair"] is True
            for name in MEASURES - {"status"}:
                if found[name] is not None:
                    low, high = found["range"][name]
                    assert low <= found[name] <= high
            low, high = found["range"]["kernel_rel_err"]
            assert high - low < 0.01 * high, (
                "every choice is as good an approximation of the kernel"
            )
    low, high = results("trefoil").metrics["amap"]["ranks"]["12"]["range"]["coupling_rel_err"]
    assert low == pytest.approx(0.01601, rel=2e-3) and high == pytest.approx(0.04662, rel=2e-3)


def test_ranges_are_the_same_for_every_basis_that_an_svd_may_give(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erratum 11: LAPACK's basis of a pair is arbitrary. Turned at random, it changes no figure."""
    from qkcore.experiments import trefoil

    done = results("trefoil")
    t, circle, knot = trefoil.curves(400)
    mu, nu = trefoil.bump(t, 0.15, 0.07), trefoil.bump(t, 0.65, 0.07)
    honest = qk.low_rank

    def turned(A: Any, rank: int) -> Any:
        """The last two components, which are a pair where one more than a cut rank is asked for."""
        factor = honest(A, rank)
        if not honest(A, rank - 1).cut_gap < trefoil.PAIR:
            return factor
        c, s = np.cos(0.83), np.sin(0.83)
        left, right = np.array(factor.left), np.array(factor.right)
        left[:, -2:] = left[:, -2:] @ [[c, -s], [s, c]]
        right[-2:] = np.array([[c, s], [-s, c]]) @ right[-2:]
        return qk.LowRank(left, right)

    monkeypatch.setattr(qk, "low_rank", turned)
    one = trefoil._Kernel("amap", (circle, knot), mu, nu, t, done.config)
    again, first = one.truncated(14), done.metrics["amap"]["ranks"]["14"]
    for measure in ("coupling_rel_err", "latent_rmse"):
        assert again[measure] == pytest.approx(first[measure], rel=1e-6)
        assert again["range"][measure] == pytest.approx(first["range"][measure], rel=2e-3)


def test_trefoil_says_that_truncated_diffusion_kernels_are_negative(results: Results) -> None:
    metrics = results("trefoil").metrics
    assert all(f["min_entry"] < 0 for f in metrics["dmap"]["ranks"].values())
    assert all("converged" not in f["statuses"] for f in metrics["dmap"]["ranks"].values())
    assert metrics["amap"]["ranks"]["13"]["status"] == "converged"


def test_a_kernel_without_a_coupling_has_no_figures_of_one(results: Results) -> None:
    """What a solver stopped at says nothing of a kernel: no value, no range, nothing in the table."""
    done = results("trefoil")
    found = done.metrics["dmap"]["ranks"]["11"]
    assert found["status"] == "negative kernel"
    assert found["coupling_rel_err"] is None and found["latent_rmse"] is None
    assert found["kernel_rel_err"] == pytest.approx(0.141, rel=5e-3)
    rows = Table.read(done.folder / "ranks.csv").where(kernel="dmap", rank="11")
    assert np.isnan(rows["coupling_rel_err_low"]).all()
    listed = experiments.get("trefoil").tables(done.folder)[1].rows
    assert next(row for row in listed if row[:2] == ("DMAP β = 0.5", "11"))[3:5] == ("–", "–")


def test_erratum_41_attention_is_diffusion_of_twice_the_width(results: Results) -> None:
    """A+(beta) is P+(beta / 2) with a key bias, which a bridge takes into its potentials: the exact maps are
    equal. At matched width attention wins no comparison of couplings, and the verdict says so.
    """
    done = results("trefoil")
    maps = Table.read(done.folder / "latent_maps.csv")
    for a, b in (("amap", "dmap_matched"), ("amap_matched", "dmap")):
        assert np.abs(maps[f"{a}_full"] - maps[f"{b}_full"]).max() < 1e-12
    X = np.random.default_rng(0).normal(size=(30, 3))
    attention = qk.softmax(qk.scores.forward(X, beta=0.8))
    biased = qk.scores.distance(X, beta=0.4).shift(columns=-0.4 * np.square(X).sum(axis=1))
    assert np.abs(attention.to_numpy() - qk.softmax(biased).to_numpy()).max() < 1e-15
    claims = {c.statement: c for c in experiments.get("trefoil").claims(done.metrics)}
    survival = next(c for s, c in claims.items() if "much more stable" in s)
    assert survival.verdict == "does not hold" and "0 of 6" in survival.measured
    coupling = next(c for s, c in claims.items() if s.startswith("AMAP's coupling error"))
    assert coupling.verdict == "holds in part"
    # The verdicts follow from the numbers: if the other couplings survive better, they change.
    better = json.loads(json.dumps(done.metrics))
    for found in better["amap"]["ranks"].values():
        found["coupling_rel_err"] = found["latent_rmse"] = 1e-9
        if found["range"]:
            found["range"] |= {"coupling_rel_err": [1e-9, 1e-9], "latent_rmse": [1e-9, 1e-9]}
    turned = {c.statement: c.verdict for c in experiments.get("trefoil").claims(better)}
    assert turned[survival.statement] == "holds in part"
    assert turned[coupling.statement] == "holds"


def test_rotations_of_a_pair_keep_the_error() -> None:
    from qkcore.experiments.trefoil import curves, rotated

    _, circle, _ = curves(60)
    A = qk.softmax(qk.scores.distance(circle, beta=0.5))
    dense = A.to_numpy()
    best = np.linalg.norm(np.linalg.svd(dense, compute_uv=False)[8:])
    for angle in (0.0, 0.7, 2.0):
        factor = rotated(qk.low_rank(A, 9), angle)
        assert factor.rank == 8
        error = np.linalg.norm(np.asarray(factor.left) @ np.asarray(factor.right) - dense)
        assert error == pytest.approx(best, rel=1e-9)


# ---- regimes -------------------------------------------------------------------------------------


def test_regimes_cases(results: Results) -> None:
    """DAC-7, DAC-8: the regime of every operator; where the document errs the measured one."""
    cases = results("regimes").metrics["cases"]
    differ = {name: c["regime"] for name, c in cases.items() if c["regime"] != c["paper"]}
    assert differ == {
        "bridge, symmetric K, mu = nu, h not constant": "EQ",
        "Doob transform of P+, random h, its own law": "EQ",
        "attention A+, W symmetric": "EQ",
    }


def test_regimes_against_dense_numpy(results: Results) -> None:
    """DAC-8: currents and entropy production of attention from plain arrays."""
    from qkcore.experiments.regimes import Setting

    done = results("regimes")
    s = Setting(done.config, done.config["seed"])
    G = s.X @ s.W() @ s.X.T
    E = np.exp(-s.beta * (np.diag(G) - G))
    A = E / E.sum(axis=1, keepdims=True)
    values, vectors = np.linalg.eig(A.T)
    pi = np.real(vectors[:, np.argmax(values.real)])
    pi /= pi.sum()
    flow = pi[:, None] * A
    J = flow - flow.T
    found = done.metrics["cases"]["attention A+, W asymmetric"]
    assert found["max_current"] == pytest.approx(np.abs(J).max(), rel=1e-9)
    production = 0.5 * np.sum(J * np.log(flow / flow.T))
    assert found["entropy_production"] == pytest.approx(production, rel=1e-9)


def test_erratum_1_in_numbers(results: Results) -> None:
    """DAC-7: h far from constant, no current."""
    found = results("regimes").metrics["erratum_1"]
    assert found["regimes"] == ["EQ"]
    assert found["largest_relative_current"] < 1e-10
    assert found["largest_spread_of_log_h"] > 5
    verdicts = [c.verdict for c in experiments.get("regimes").claims(results("regimes").metrics)]
    assert verdicts[0] == "does not hold"


def test_duality_is_second_order(results: Results) -> None:
    """DAC-11, eq 83."""
    table = Table.read(results("regimes").folder / "duality.csv")
    order = np.diff(np.log(table["relative_error"])) / np.diff(np.log(table["phase"]))
    assert np.all(np.abs(order - 2) < 0.05)
    assert np.all(table["signs_agree"] == 1)


# ---- interruption --------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_run_resumes(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: what was done is not done again, and the result is the same."""
    from qkcore.experiments import trefoil

    calls: list[int] = []
    work = trefoil._Kernel.truncated

    def stop_at_the_fourth(self: Any, rank: int) -> Any:
        calls.append(rank)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return work(self, rank)

    with monkeypatch.context() as patch:
        patch.setattr(trefoil._Kernel, "truncated", stop_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            experiments.run("trefoil", tmp_path, quick=True)
    folder, unfinished = tmp_path / "trefoil-quick", tmp_path / "trefoil-quick.unfinished"
    assert strict_json(unfinished / "manifest.json")["status"] == "interrupted"
    assert not (unfinished / "metrics.json").exists()
    assert sorted(tmp_path.iterdir()) == [unfinished] and not list(unfinished.rglob(".*"))
    page = _report.write_report(tmp_path).read_text()
    assert "not finished (interrupted)" in page

    calls.clear()

    def count(self: Any, rank: int) -> Any:
        calls.append(rank)
        return work(self, rank)

    monkeypatch.setattr(trefoil._Kernel, "truncated", count)
    done = experiments.run("trefoil", tmp_path, quick=True)
    assert done.resumed and len(calls) == 20 - 3
    assert done.metrics == results("trefoil").metrics
    assert strict_json(folder / "manifest.json")["resumed"] is True
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "trefoil-quick"]


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    _files.write_json(path, {"x": [1.5, float("nan")]})
    assert strict_json(path) == {"x": [1.5, None]}
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        _files.write_json(path, {"x": 2})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_csv_keeps_every_digit(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e-300, np.float64(1) / 3, 7]
    _files.write_csv(tmp_path / "a.csv", [{"v": v, "name": "a,b"} for v in values])
    table = Table.read(tmp_path / "a.csv")
    assert list(table["v"]) == values
    assert list(table["name"]) == ["a,b"] * 4
    with pytest.raises(ValueError, match="wanted the columns"):
        _files.write_csv(tmp_path / "a.csv", [{"v": 1}, {"w": 2}])


# ---- settings ------------------------------------------------------------------------------------


def test_later_settings_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("n: 50\nbeta: 1\n")
    assert _configs.resolve("trefoil", quick=True)["angles"] == 4
    config = _configs.resolve("trefoil", quick=True, file=file, overrides=["beta=2e-1"], seed=7)
    assert (config["n"], config["beta"], config["angles"], config["seed"]) == (50, 0.2, 4, 7)
    assert isinstance(config["beta"], float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "trefoi"], r"unknown experiment 'trefoi'; did you mean trefoil\?"),
        (["rum", "trefoil"], r"unknown command 'rum'; did you mean run\?"),
        (["run", "trefoil", "--set", "rank=8"], r"unknown key 'rank'; did you mean ranks"),
        (["run", "trefoil", "--set", "n=many"], r"n: wanted a whole number, got text \('many'\)"),
        (["run", "trefoil", "--set", "n"], r"--set n: wanted key=value"),
        (["run", "trefoil", "--set", "ranks=[]"], r"ranks: wanted at least one entry"),
        (
            ["run", "trefoil", "--set", "ranks=[8, 500]"],
            r"ranks: wanted less than n = 400, got 500",
        ),
        (["run", "trefoil", "--set", "n=[1"], r"not valid YAML"),
        (["run", "trefoil", "--set", "beta=-1"], r"beta: wanted a number above 0, got -1"),
        (["run", "trefoil", "--seed", "-1"], r"seed: wanted an integer of at least 0"),
        (["run", "trefoil", "--config", "no-such.yaml"], r"no-such.yaml: cannot be read"),
        (["run", "regimes", "--set", "tilts=[-1.0]"], r"tilts: wanted numbers >= 0"),
        (["run", "swissroll", "--set", "d_model=30"], r"d_model: wanted a multiple of heads = 8"),
        (
            ["run", "swissroll", "--set", "variants=[print]"],
            r"unknown variant 'print'; did you mean",
        ),
        (["run"], r"arguments are required: NAME"),
        (["run", "trefoil", "--sed", "1"], r"unknown option '--sed'; did you mean --seed"),
        (["run", "trefoil", "--seed", "one"], r"argument --seed: invalid int value: 'one'"),
        (["run", "trefoil", "regimes"], r"unexpected argument 'regimes'"),
        (["run", "all", "--set", "n=3"], r"--set: applies to one experiment"),
        (["--verbose", "list"], r"unknown option '--verbose'"),
        (["completion", "tcsh"], r"unknown shell 'tcsh'"),
        (["report", "no-such-folder"], r"no-such-folder: no such folder"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("qkcore: error: ")
    assert re.search(message, captured.err), captured.err
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    "text", ["n: [1", "- a\n- b\n", "just text\n", "ranks: 8\n", "quick: {n: 3}\n"]
)
def test_broken_settings_files(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    assert cli.main(["run", "trefoil", "--config", str(file), "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "broken.yaml" in err and err.count("\n") == 1


def test_unwritable_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", Path("/proc/nothing")):
        assert cli.main(["run", "regimes", "--quick", "--out", str(out)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("qkcore: error: cannot write") and err.count("\n") == 1
        assert "--out" in err


def test_failures_that_are_ours_keep_their_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkcore.experiments import regimes

    def fail(*_: object) -> None:
        raise ArithmeticError("a bridge did not converge")

    monkeypatch.setattr(regimes, "_cases", fail)
    with pytest.raises(ArithmeticError, match="did not converge"):
        cli.main(["run", "regimes", "--quick", "--out", str(tmp_path)])
    unfinished = tmp_path / "regimes-quick.unfinished"
    assert strict_json(unfinished / "manifest.json")["status"] == "failed"


def test_missing_packages_name_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["run", "swissroll", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "swissroll needs jax, optax, matplotlib and PyYAML" in err
    assert "pip install 'qkcore[train]'" in err


# ---- command line and report ---------------------------------------------------------------------


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in experiments.names())
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert qk.__version__ in out and "numpy" in out
    assert cli.main(["run", "regimes", "--quick", "--out", str(tmp_path), "--seed", "2"]) == 0
    out = capsys.readouterr().out
    assert "does not hold: A generic non-constant h" in out
    assert str(tmp_path / "regimes-quick" / "regimes.png") in out
    assert cli.main(["report", str(tmp_path)]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_interrupting_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkcore.experiments import regimes

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(regimes, "_duality", interrupt)
    assert cli.main(["run", "regimes", "--quick", "--out", str(tmp_path)]) == 130
    assert "continues from the last checkpoint" in capsys.readouterr().err


def test_report_is_self_contained(results: Results, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copytree(results(name).folder, tmp_path / f"{name}-quick")
    text = _report.write_report(tmp_path).read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    links = re.findall(r'href="#([^"]*)"', text)
    assert links == [f"{name}-quick" for name in FILES]
    assert all(text.count(f'id="{name}"') == 1 for name in links)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert text.count("data:image/png;base64,") == 2
    assert "does not hold" in text and "A quick run" in text
    assert _report.escape(_report.ERRATA[1]) in text and _report.escape(_report.ERRATA[11]) in text
    assert "measured here" in text and "<pre># trefoil" in text
    other = _report.write_report(tmp_path, tmp_path / "page.html")
    assert other.read_text() == text
    with pytest.raises(experiments.ExperimentError, match="no results in it"):
        _report.write_report(tmp_path / "trefoil-quick")


def test_report_counts_verdicts(results: Results, tmp_path: Path) -> None:
    """The table at the top: as many statements of each verdict as there are below."""
    shutil.copytree(results("regimes").folder, tmp_path / "regimes-quick")
    text = _report.write_report(tmp_path).read_text()
    top = text[: text.index("<section")]
    found = dict(re.findall(r'<td class="([a-z-]+)">(\d+|–)</td>', top))
    for verdict in VERDICTS:
        name = verdict.replace(" ", "-")
        below = text.count(f'class="text verdict {name}"')
        assert found[name] == (str(below) if below else "–")
    assert "does-not-hold" in found and found["does-not-hold"] != "–"
