"""TPDE-5 and the particles: gaussian-cones, rank-histogram, particles, against SciPy and closed forms."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

import qkcore as qk
from qkcore import cli, experiments
from qkcore.experiments import (
    _configs,
    _covariances,
    _figures,
    _ranks_show,
    _report,
    gaussian_cones,
    particles,
    rank_histogram,
)
from qkcore.experiments._files import Table

from . import reference_flows as reference
from .quick_runs import Results

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")

FILES = {
    "gaussian-cones": {"trajectories", "paths", "random_fields"},
    "rank-histogram": {"cases", "histogram"},
    "particles": {"runs", "series", "points"},
}
FIGURES = {
    "gaussian-cones": {
        "figure1",
        "figure2",
        "figure4",
        "figure5",
        "figure6",
        "figure7a",
        "figure7b",
    },
    "rank-histogram": {"figure3", "figure8"},
    "particles": {"clusters", "radius", "energy", "points"},
}


def number(cell: str) -> float:
    return float(cell) if cell else float("inf")


# ---- every one of them ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_files(results: Results, name: str) -> None:
    """TPDE-5, EOT-17: data, figures, settings, claims with verdicts, tables."""
    done = results(name)
    assert {p.stem for p in done.folder.glob("*.csv")} == FILES[name]
    assert {p.stem for p in done.figures} == FIGURES[name]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in done.figures)
    assert not (done.folder / "checkpoint").exists()
    text = (done.folder / "metrics.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    manifest = json.loads((done.folder / "manifest.json").read_text())
    assert manifest["status"] == "finished" and manifest["quick"] is True and manifest["seed"] == 0
    found = experiments.get(name).claims(done.metrics)
    assert len(found) >= 5 and all(c.measured and c.where for c in found)
    assert found[0].verdict == "holds", "everything has a status"
    for table in experiments.get(name).tables(done.folder):
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

    monkeypatch.setattr(qk, "flow", refuse)
    monkeypatch.setattr(qk.gaussian, "flow", refuse)
    monkeypatch.setattr(qk.gaussian, "velocity", refuse)
    drawn = experiments.get(name).plot(tmp_path)
    assert [p.name for p in drawn] == [p.name for p in done.figures]
    for ours, theirs in zip(drawn, done.figures, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("name", "module", "function", "settings"),
    [
        (
            "gaussian-cones",
            gaussian_cones,
            "_panel",
            ["most_starts=4", "most_steps=200", "random_fields=5"],
        ),
        ("rank-histogram", rank_histogram, "_cases", ["n=3", "most_steps=20"]),
        (
            "particles",
            particles,
            "one_run",
            ["n=6", "n_masked_sinkhorn=4", "t_collapse=1", "t_sphere=1", "n_times=4"],
        ),
    ],
)
def test_an_interrupted_run_resumes(
    name: str,
    module: Any,
    function: str,
    settings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EOT-17: what was done is not done again, and the result is the same."""
    whole = experiments.run(name, tmp_path / "whole", quick=True, overrides=settings)
    work, calls = getattr(module, function), 0

    def count(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return work(*arguments)

    def stop(*arguments: Any) -> Any:
        if calls == 4:
            raise KeyboardInterrupt
        return count(*arguments)

    monkeypatch.setattr(module, function, stop)
    with pytest.raises(KeyboardInterrupt):
        experiments.run(name, tmp_path / "cut", quick=True, overrides=settings)
    assert not (tmp_path / "cut" / f"{name}-quick").exists()
    monkeypatch.setattr(module, function, count)
    calls = 0
    again = experiments.run(name, tmp_path / "cut", quick=True, overrides=settings)
    assert again.resumed and again.metrics == whole.metrics
    total = {"gaussian-cones": 17, "rank-histogram": 18, "particles": 96}[name]
    assert calls == total - 4


@pytest.mark.usefixtures("no_figures")
def test_seeds(tmp_path: Path) -> None:
    """Another seed, other matrices; the same one, the same numbers."""
    settings = ["n=4", "most_steps=10", "kinds=[softmax]", "dimensions=[3]"]
    settings.append(
        "procedures=[{kind: softmax, values: identity, step: [0.1], settle: 1.0e-4, steps: 9}, "
        "{kind: softmax, values: positive, step: [0.1], settle: 1.0e-4, steps: 9}]"
    )
    runs = [
        experiments.run("rank-histogram", tmp_path / str(k), overrides=settings, seed=seed)
        for k, seed in enumerate((0, 0, 1))
    ]
    data = [(r.folder / "cases.csv").read_text() for r in runs]
    assert data[0] == data[1] != data[2]


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("gaussian-cones", "panels=[{figure: 1a}]", "wanted the key field"),
        ("gaussian-cones", "most_starts=1", "most_starts: wanted a number above 1"),
        ("rank-histogram", "kinds=[l1]", "unknown kind 'l1'; did you mean l2"),
        ("rank-histogram", "dimensions=[3, 4]", "step: wanted one for each of the 2 dimensions"),
        ("particles", "scenes=[spere]", "did you mean sphere"),
        ("particles", "first_time=5.0", "first_time: wanted less than the shortest run"),
    ],
)
def test_bad_settings(
    name: str, setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["run", name, "--out", str(tmp_path), "--set", setting]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


def test_panels_are_checked_key_by_key() -> None:
    panel = dict(gaussian_cones.PANEL)
    config = _configs.resolve("gaussian-cones")
    for change, message in (
        ({"steep": 1}, "unknown key 'steep'; did you mean step"),
        ({"field": "softmx"}, "did you mean softmax"),
        ({"matrices": "negativ"}, "did you mean negative"),
        ({"step": "x"}, "step: wanted a value like 0.3"),
        ({"starts": -1}, "starts: wanted a number above 0"),
        ({"starts": 2, "half_width": 2.0}, "wanted at least one start inside the cone"),
    ):
        with pytest.raises(experiments.ExperimentError, match=re.escape(message)):
            gaussian_cones.check(config | {"panels": [panel | change]})
    with pytest.raises(experiments.ExperimentError, match="wanted a figure name for each"):
        gaussian_cones.check(config | {"panels": [panel, panel]})


def test_in_the_report(results: Results, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copytree(results(name).folder, tmp_path / results(name).folder.name)
    text = _report.write_report(tmp_path).read_text()
    assert text.count("data:image/png;base64,") == sum(map(len, FIGURES.values()))
    assert _report.escape(_report.ERRATA[27]) in text


@pytest.mark.parametrize("who", [["ours"], ["ours", "published"]])
def test_bars_stand_at_their_ranks(who: list[str]) -> None:
    """One series is centred at its rank, two are beside it; the legend names no series that is not there."""
    rows = [{"who": w, "fate": f, "count": "3"} for w in who for f in ("1", "2", "diverged")]
    axes = _figures.figure(4, 3).subplots()
    _ranks_show._one(axes, Table(rows), 3, "title")
    centres = np.array([bar.get_x() + bar.get_width() / 2 for bar in axes.patches])
    middle = centres.reshape(len(who), 3).mean(axis=0)
    ticks = dict(
        zip((t.get_text() for t in axes.get_xticklabels()), axes.get_xticks(), strict=True)
    )
    np.testing.assert_allclose(middle, [ticks["1"], ticks["2"], ticks["di-\nverged"]])
    widths = [bar.get_width() for bar in axes.patches]
    assert max(widths) * len(who) < 1, "bars of neighbouring ranks do not touch"
    labels = axes.get_legend_handles_labels()[1]
    assert ("published procedure" in labels) == ("published" in who)


# ---- gaussian-cones ------------------------------------------------------------------------------


def test_every_trajectory_of_the_cones_is_accounted_for(results: Results) -> None:
    """TPDE-5: none is dropped, by us or by the paper's Euler steps."""
    done = results("gaussian-cones")
    table = Table.read(done.folder / "trajectories.csv")
    config = _configs.resolve("gaussian-cones", quick=True)
    for panel in config["panels"]:
        found = done.metrics["panels"][panel["figure"]]
        side = min(panel["starts"], config["most_starts"])
        axis = np.linspace(-panel["half_width"], panel["half_width"], side)
        inside = int((axis[:, None] ** 2 + axis**2 < 1).sum())
        rows = table.where(panel=panel["figure"])
        assert len(rows) == found["n"] == inside
        assert sum(found["status"].values()) == sum(found["euler_status"].values()) == inside
        assert sum(found["ranks"].values()) == found["status"].get("converged", 0)
    assert done.metrics["accounted_for"] == done.metrics["trajectories"] == len(table)
    assert {f for p in config["panels"] for f in [p["field"]]} == set(_covariances.FIELDS)


@pytest.mark.parametrize("panel", ["1a", "1b", "1c", "1c2", "4b", "4c", "5b", "7a"])
def test_cones_against_scipy(results: Results, panel: str) -> None:
    """TPDE-5: where trajectories end, by LSODA on the covariance ODE."""
    done = results("gaussian-cones")
    found = done.metrics["panels"][panel]
    m = _covariances.matrices(found["matrices"], 0)
    fields = reference.paper_fields(found["field"], m.Q, m.K, m.V)
    rows = Table.read(done.folder / "trajectories.csv").where(panel=panel).rows
    for row in rows[:: max(1, len(rows) // 3)]:
        x, y = float(row["x0"]), float(row["y0"])
        start = np.array([[1 + x, y], [y, 1 - x]]) / 2
        S = reference.covariance_at(float(row["t_end"]), start, fields)
        ours = [float(row[c]) for c in "xyz"]
        theirs = [S[0, 0] - S[1, 1], 2 * S[0, 1], S[0, 0] + S[1, 1]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-8)


def test_commuting_panels_in_closed_form(results: Results) -> None:
    """TPDE-5, proposition 4.4: V = I gives (Sigma_0^-1 - t(A + A'))^-1, its limit and its blow-up time."""
    table = Table.read(results("gaussian-cones").folder / "trajectories.csv")
    for panel, name in (("1b", "rank one"), ("2a", "positive")):
        m = _covariances.matrices(name, 0)
        A = m.K.T @ m.Q / np.sqrt(2)
        for row in table.where(panel=panel).rows:
            x, y = float(row["x0"]), float(row["y0"])
            start = np.array([[1 + x, y], [y, 1 - x]]) / 2
            if panel == "2a":
                half = reference.root(start)
                time = 1 / np.linalg.eigvalsh(half @ (A + A.T) @ half)[-1]
                assert row["status"] == "blew up"
                assert float(row["blow_up_time"]) == pytest.approx(time, rel=1e-9)
            else:
                S = np.linalg.inv(np.linalg.inv(start) - 1e5 * (A + A.T))
                np.testing.assert_allclose(
                    [float(row[c]) for c in "xyz"],
                    [S[0, 0] - S[1, 1], 2 * S[0, 1], S[0, 0] + S[1, 1]],
                    rtol=1e-6,
                )


def test_one_head_that_moves_one_coordinate_leaves_a_plane(results: Results) -> None:
    """TPDE-5, figure 1 (c): V = e1 e1' keeps the second variance, and stops where (Sigma q)_1 = 0."""
    metrics = results("gaussian-cones").metrics["panels"]
    q = _covariances.matrices("rank one", 0).Q[0]
    for row in (
        Table.read(results("gaussian-cones").folder / "trajectories.csv").where(panel="1c").rows
    ):
        x, y, z = (float(row[c]) for c in "xyz")
        assert (z - x) / 2 == pytest.approx((1 - float(row["x0"])) / 2, rel=1e-6)
        assert abs((z + x) / 2 * q[0] + y / 2 * q[1]) < 0.02
    assert metrics["1c"]["span"] == 2
    assert metrics["1c2"]["span"] == 1, "two heads that are not empty: a line"
    assert metrics["1b"]["span"] == 1 and metrics["1a"]["span"] == 0


def test_euler_paths_are_the_papers_steps() -> None:
    """The plain loop, one step at a time, and its stopping rule at the states that are looked at."""
    panel = gaussian_cones.PANEL | {"settle": 1e-3}
    m = _covariances.matrices("negative", 0)
    arguments = _covariances.field("softmax", m)
    cov = _covariances.starts(3, 0.5)
    paths = gaussian_cones.euler_paths(arguments, cov, panel, 5000)
    A = m.K.T @ m.Q / np.sqrt(2)
    for k, S in enumerate(cov):
        states = [S]
        for _ in range(600):
            half = m.V @ states[-1] @ A @ states[-1]
            states.append(states[-1] + 0.3 * (half + half.T))
        for t, found in zip(paths.times[k], paths.states[k], strict=True):
            np.testing.assert_allclose(found, states[round(t / 0.3)], rtol=1e-9, atol=1e-14)
        rates = [np.linalg.norm(b - a) / 0.3 for a, b in itertools.pairwise(states)]
        first = int(np.argmax(np.array(rates) < 1e-3))
        assert paths.status[k] == "converged"
        assert first <= round(paths.times[k][-1] / 0.3) <= 1.05 * first + 1
    none = gaussian_cones.euler_paths(arguments, cov, panel, 10)
    assert none.status == ["unfinished"] * len(cov)


def test_cones_verdicts(results: Results) -> None:
    """TPDE-5: what holds and what does not, at the published matrices."""
    metrics = results("gaussian-cones").metrics
    panels = metrics["panels"]
    for name in ("1a", "4b", "4c", "7a"):
        assert panels[name]["status"] == {"converged": panels[name]["n"]}
        assert panels[name]["symmetric_part"][1] < 0
    for name in ("2a", "2b"):
        assert panels[name]["status"] == {"blew up": panels[name]["n"]}
    for name in ("2c", "7b"):
        assert panels[name]["status"] == {"diverged": panels[name]["n"]}
    verdicts = {c.statement: c.verdict for c in experiments.get("gaussian-cones").claims(metrics)}
    assert verdicts["… independently of V"] == "does not hold"
    assert verdicts["The same with two heads: convergence to a plane"] == "holds in part"


def test_trace_falls_for_positive_values(results: Results) -> None:
    """Erratum 25: Tr(V^-1 Sigma)' = 2 Tr(Sigma A Sigma) <= 0, so V > 0 and A + A' < 0 never diverge."""
    found = results("gaussian-cones").metrics["random_fields"]
    for name in ("softmax", "l2", "sinkhorn"):
        assert set(found[name]["positive"]["status"]) <= {"converged", "not settled"}
        assert not set(found[name]["normal"]["status"]) <= {"converged", "not settled"}
    draw = np.random.default_rng(3)
    for _ in range(20):
        Q, G, H = draw.standard_normal((3, 3, 3))
        V, S = G @ G.T, H @ H.T
        for kind in ("softmax", "l2", "sinkhorn"):
            rate = reference.covariance_rate(kind, S, Q, -Q, V)
            assert np.trace(np.linalg.solve(V, rate)) < 0


# ---- rank-histogram ------------------------------------------------------------------------------


def test_every_case_of_the_histograms_is_accounted_for(results: Results) -> None:
    """TPDE-5: a rank or a status for each case, in the table and in the picture's data."""
    done = results("rank-histogram")
    bars = Table.read(done.folder / "histogram.csv")
    for kind in ("softmax", "l2"):
        for values in ("identity", "positive", "normal"):
            for d in ("3", "4", "5"):
                found = done.metrics[kind][values][d]
                for who in ("ours", "published"):
                    here = bars.where(kind=kind, values=values, d=d, who=who)
                    assert here["count"].sum() == found["n"] == 25
                    assert sum(found[who]["status"].values()) == 25
    assert done.metrics["accounted_for"] == done.metrics["cases"] == 2 * 3 * 3 * 25


def test_ranks_against_the_limit_in_closed_form(results: Results) -> None:
    """TPDE-5, proposition 4.4, erratum 27: V = I keeps what lies in ker A: d - floor(d/2) directions."""
    done = results("rank-histogram")
    config = done.config
    table = Table.read(done.folder / "cases.csv").where(kind="softmax", values="identity")
    for d in (3, 4, 5):
        c = rank_histogram.cases("softmax", "identity", d, config)
        for k, row in enumerate(table.where(d=str(d)).rows):
            A = -(c.Q[k] * np.sqrt(d)).T @ (c.Q[k] * np.sqrt(d)) / np.sqrt(d)
            S = np.linalg.inv(np.linalg.inv(c.start[k]) - 1e9 * (A + A.T))
            rank = int((np.linalg.eigvalsh(S) > 1e-6 * np.linalg.eigvalsh(c.start[k])[-1]).sum())
            assert rank == d - d // 2
            if row["status"] == "converged":
                assert abs(int(row["rank"]) - rank) <= 1
        same = [
            int(r["rank"]) == d - d // 2 for r in table.where(d=str(d), status="converged").rows
        ]
        assert np.mean(same) > 0.9
        found = done.metrics["softmax"]["identity"][str(d)]["ours"]
        assert found["above_ceil"] == 0
        assert (found["above_floor"] > 0.9 * 25) == (d % 2 == 1)


def test_published_matrices_are_drawn_case_by_case() -> None:
    """The published streams: Q and V one case after the other over all dimensions, starts by dimension."""
    config = _configs.resolve("rank-histogram") | {"n": 7}
    np_random = np.random.RandomState
    for kind, seed in (("softmax", 26), ("l2", 27)):
        queries, values = np_random(40), np_random(seed)
        for d in (3, 4, 5):
            c = rank_histogram.cases(kind, "positive", d, config)
            starts = np_random(41)
            for k in range(7):
                Q, G, S = queries.randn(d // 2, d), values.randn(d, d), starts.randn(d, d)
                np.testing.assert_array_equal(c.K[k], -Q)
                np.testing.assert_allclose(c.K[k].T @ c.Q[k], -Q.T @ Q / np.sqrt(d))
                np.testing.assert_allclose(c.V[k], G.T @ G)
                np.testing.assert_allclose(c.start[k], S @ S.T)


@pytest.mark.parametrize("kind", ["softmax", "l2"])
@pytest.mark.parametrize("values", ["identity", "positive", "normal"])
def test_the_published_procedure_one_case_at_a_time(
    results: Results, kind: str, values: str
) -> None:
    """TPDE-5: projected Euler on a batch is the loop over cases."""
    done = results("rank-histogram")
    config = done.config
    rows = Table.read(done.folder / "cases.csv").where(kind=kind, values=values, d="4").rows
    c = rank_histogram.cases(kind, values, 4, config)
    p = rank_histogram._procedure(config, kind, values)
    for k in range(0, 25, 6):
        status, rank, lifted = reference.lifted_euler(
            kind,
            c.start[k],
            c.Q[k],
            c.K[k],
            c.V[k],
            step=p["step"][1],
            settle=p["settle"],
            steps=config["most_steps"],
        )
        row = rows[k]
        assert (row["published_status"], int(row["published_rank"])) == (status, rank)
        # An eigenvalue that was raised to 1e-14 stays near rounding errors, so its sign is random.
        assert (int(row["projections"]) > 0) == (lifted > 0)
        assert int(row["projections"]) == pytest.approx(lifted, rel=0.05)


def test_rank_verdicts(results: Results) -> None:
    """TPDE-5: floor(d/2) fails for odd d, ceil(d/2) does not; normal V does not converge."""
    metrics = results("rank-histogram").metrics
    verdicts = {c.statement: c.verdict for c in experiments.get("rank-histogram").claims(metrics)}
    for name in ("softmax", "L2"):
        assert verdicts[f"{name}, V = I: limits have a rank of at most ⌊d/2⌋"] == "holds in part"
        assert verdicts[f"{name}, V = I: at most ⌈d/2⌉, the dimension of ker A"] == "holds"
        assert verdicts[f"{name}, V normal: the flow converges for a random V"] == "does not hold"


# ---- particles -----------------------------------------------------------------------------------


def test_every_run_of_the_particles_is_accounted_for(results: Results) -> None:
    """TPDE-1, TPDE-2: every field of AttentionField, both linear forms, masked and multi-head."""
    done = results("particles")
    runs = Table.read(done.folder / "runs.csv")
    kinds = {r["kind"].split()[0] for r in runs.rows}
    assert kinds == set(qk.fields.KINDS) and "linear centred" in {r["kind"] for r in runs.rows}
    assert len(runs) == done.metrics["runs"] == sum(done.metrics["status"].values()) == 3 * 8 * 4
    assert set(done.metrics["status"]) <= {"finished", "blew up", "step limit", "step underflow"}
    for r in runs.rows:
        assert r["status"] == "finished" or float(r["t_end"]) < done.config[f"t_{r['scene']}"]


@pytest.mark.parametrize("kind", [k for k in particles.KINDS if k != "sinkhorn"])
@pytest.mark.parametrize("variant", particles.VARIANTS)
@pytest.mark.parametrize("scene", ["collapse", "sphere"])
def test_particles_against_scipy(kind: str, variant: str, scene: str) -> None:
    """TPDE-2: where particles are, by DOP853 over loops."""
    config = _configs.resolve("particles", quick=True) | {
        "n": 4,
        "t_collapse": 1.0,
        "t_sphere": 1.0,
        "rtol": 1e-9,  # ReLU has kinks, where error estimates are too small
        "atol": 1e-11,
    }
    s = particles.setup(scene, kind, variant, config)
    done = particles.one_run(scene, kind, variant, config)
    Q, K, V = s.field.parameters()
    arguments: dict[str, Any] = {
        "Q": Q.reshape(-1, 2),
        "K": K.reshape(-1, 2),
        "V": V,
        "heads": s.field.heads,
        "mask": s.field.mask,
        "centred": kind == "linear centred",
    }
    theirs = reference.particles_at(
        1.0, s.X0, kind.split()[0], arguments=arguments, sphere=scene == "sphere"
    )
    ours = [(p["x"], p["y"]) for p in done["points"] if p["when"] == "end"]
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert done["run"]["status"] == "finished"


def test_sinkhorn_particles_against_the_definition() -> None:
    """The velocity of the experiment's Sinkhorn fields, from the plain iteration of 2.4."""
    from .reference_particles import sinkhorn_kernel

    config = _configs.resolve("particles", quick=True) | {"n": 9}
    s = particles.setup("collapse", "sinkhorn", "plain", config)
    Q, K, V = (p[0] for p in s.field.parameters())
    np.testing.assert_allclose(K.T @ Q, -V, atol=1e-15)  # the condition of 5.11
    kernel = sinkhorn_kernel(s.X0, Q, K, 1.0, np.full(9, 1 / 9))
    np.testing.assert_allclose(s.field(s.X0), kernel @ s.X0 @ V.T / 9, atol=1e-8)


def test_series_against_brute_force(results: Results) -> None:
    """Clusters by connected components, energies by double sums, the bound of theorem 3.1 in closed form."""
    done = results("particles")
    points = Table.read(done.folder / "points.csv")
    for r in Table.read(done.folder / "runs.csv").rows:
        here = points.where(scene=r["scene"], kind=r["kind"], variant=r["variant"], when="end")
        X = np.stack([here["x"], here["y"]], axis=1)
        radius = float(np.sqrt((X**2).sum(axis=1)).max())
        assert float(r["radius_end"]) == pytest.approx(radius, rel=1e-12)
        scale = {"collapse": 1.0, "spread": radius, "sphere": 1.0}[r["scene"]]
        linked = cdist(X, X) <= done.config["threshold"] * scale
        assert int(r["clusters_end"]) == connected_components(linked)[0]
        if r["bound_end"]:
            bound = float(r["radius_start"]) * np.exp(float(r["t_end"]))
            assert float(r["bound_end"]) == pytest.approx(bound, rel=1e-12)
        if (
            r["kind"] in ("softmax", "exp", "relu", "sigmoid", "linear")
            and r["scene"] == "collapse"
        ):
            A = particles._heads() if r["variant"] == "heads" else [np.eye(2)]
            total = 0.0
            for a in A:
                Z = X @ a @ X.T
                phi = {
                    "softmax": np.exp,
                    "exp": np.exp,
                    "relu": lambda z: np.maximum(z, 0) ** 2 / 2,
                    "sigmoid": lambda z: np.log1p(np.exp(z)),
                    "linear": lambda z: z**2 / 2,
                }[r["kind"]]
                total += 0.5 * float(phi(Z).mean())
            expected = np.log(total) if r["kind"] in ("softmax", "exp") else total
            assert float(r["energy_end"]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["exp", "relu", "sigmoid", "linear"])
@pytest.mark.parametrize("variant", ["plain", "heads"])
def test_unnormalised_fields_are_gradients_of_their_energy(kind: str, variant: str) -> None:
    """The velocity is minus the gradient in each particle, by central differences."""
    config = _configs.resolve("particles", quick=True) | {"n": 6}
    s = particles.setup("collapse", kind, variant, config)

    def value(X: np.ndarray[Any, Any]) -> float:
        found = particles.energy(s, kind, X)
        assert found is not None
        return float(np.exp(found)) if kind == "exp" else found

    gradient = np.empty_like(s.X0)
    for i in np.ndindex(s.X0.shape):
        h = np.zeros_like(s.X0)
        h[i] = 1e-5
        gradient[i] = (value(s.X0 + h) - value(s.X0 - h)) / 2e-5
    # Particles have mass 1/6; V = -A / heads.
    np.testing.assert_allclose(s.field(s.X0), -6 * gradient / len(s.A), atol=1e-8)


def test_radius_bound_and_energies(results: Results) -> None:
    """TPDE-2, theorems 3.1 and 3.4: within R(t); 5.4 and 5.11: monotone."""
    runs = Table.read(results("particles").folder / "runs.csv").rows
    bounded = [r for r in runs if r["radius_over_bound"]]
    assert len(bounded) == 2 * 4 * 4
    assert all(float(r["radius_over_bound"]) <= 1 + 1e-6 for r in bounded)
    assert all(r["status"] == "finished" for r in bounded)
    lawful = [r for r in runs if r["energy_law"] == "True"]
    assert len(lawful) == 3 * (4 * 2 + 2)
    assert all(float(r["energy_against_law"]) == 0 for r in lawful)
    for kind in ("linear", "exp", "relu"):
        here = [r for r in runs if r["scene"] == "spread" and r["kind"] == kind]
        assert any(r["status"] == "blew up" for r in here)


def test_the_first_particle_of_a_causal_flow_is_alone(results: Results) -> None:
    """It sees itself: x' = V x for softmax and l2, so that it reaches R(t), times its start's radius."""
    points = Table.read(results("particles").folder / "points.csv")
    for kind in ("softmax", "l2"):
        here = points.where(scene="spread", kind=kind, variant="causal", particle="0")
        start, end = here.where(when="start"), here.where(when="end")
        assert float(end["x"][0] / start["x"][0]) == pytest.approx(np.exp(3.0), rel=1e-4)
