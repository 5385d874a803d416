"""ISB-5, EOT-17 with EOT-2, 3, 5, 15, and MTA-3: heat-flow, ornstein-uhlenbeck, simplex-flow, lipschitz.

Important numbers are computed a second time by other methods: semigroups in closed form and by finite
differences, dense NumPy bridges, Runge-Kutta, and finite-difference Jacobians.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qkcore as qk
from qkcore import cli, experiments
from qkcore.experiments import _bridge_flows, _configs, _report, heat_flow, ornstein_uhlenbeck
from qkcore.experiments._files import Table

from . import reference_isb as reference
from .quick_runs import Results

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")

Array = NDArray[np.float64]

FLOW = {"densities", "cloud", "paths", "errors", "over_time", "one_step", "particles"}
FILES = {
    "heat-flow": FLOW,
    "ornstein-uhlenbeck": FLOW | {"theorem1"},
    "simplex-flow": {
        "locking", "temperature", "perturbations", "depth", "start", "jumps", "early_exit", "schedule",
    },
    "lipschitz": {"sets", "data", "gaussian", "far", "cube", "depth", "neighbours"},
}  # fmt: skip
FIGURES = {
    "heat-flow": ["flow.png", "errors.png", "particles.png"],
    "ornstein-uhlenbeck": ["flow.png", "errors.png", "particles.png"],
    "simplex-flow": ["locking.png", "depth.png"],
    "lipschitz": ["contraction.png", "data.png"],
}


def table(results: Results, experiment: str, name: str) -> Table:
    return Table.read(results(experiment).folder / f"{name}.csv")


# ---- every experiment ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_files(results: Results, name: str) -> None:
    """EOT-17, ISB-5: data, figures, settings and verdicts; strict JSON; nothing half-written."""
    done = results(name)
    assert {p.stem for p in done.folder.glob("*.csv")} == FILES[name]
    assert [p.name for p in done.figures] == FIGURES[name]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in done.figures)
    assert not (done.folder / "checkpoint").exists() and not list(done.folder.glob(".*"))
    for file in ("metrics.json", "manifest.json"):
        text = (done.folder / file).read_text()
        json.loads(text, parse_constant=lambda x: pytest.fail(f"{x} is not JSON"))
    assert json.loads((done.folder / "manifest.json").read_text())["status"] == "finished"
    claims = experiments.get(name).claims(done.metrics)
    assert len(claims) >= 6 and all(c.measured and c.where and c.paper for c in claims)
    for listing in experiments.get(name).tables(done.folder):
        assert listing.rows and all(len(r) == len(listing.header) for r in listing.rows)
    for file_ in done.folder.glob("*.csv"):
        assert len(Table.read(file_)) > 0


@pytest.mark.parametrize("name", FILES)
def test_plots_are_drawn_from_the_files_alone(
    results: Results, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = results(name)
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not compute")

    for module, functions in (
        (qk.isb, ("heat_flow", "kl_flow", "ornstein_uhlenbeck", "step", "barycentric", "Mixture")),
        (qk.simplex, ("Mobility", "from_logits", "pf_ode")),
        (qk.measure, ("contraction", "lipschitz", "gaussian_lipschitz")),
    ):
        for function in functions:
            monkeypatch.setattr(module, function, refuse)
    drawn = experiments.get(name).plot(tmp_path)
    for ours, theirs in zip(drawn, done.figures, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_the_report_holds_them(results: Results, name: str, tmp_path: Path) -> None:
    shutil.copytree(results(name).folder, tmp_path / results(name).folder.name)
    text = _report.write_report(tmp_path).read_text()
    assert text.count("data:image/png;base64,") == len(FIGURES[name])
    assert "verdict holds" in text and "Errata that this experiment shows" in text


def test_the_posters_numbers_are_the_settings() -> None:
    """ISB-5: ε = 0.01, ½N(−2,1) + ½N(2,1) and N(0, 4)."""
    heat = _configs.resolve("heat-flow")
    assert (heat["weights"], heat["means"], heat["variances"]) == ([0.5, 0.5], [-2, 2], [1, 1])
    ou = _configs.resolve("ornstein-uhlenbeck")
    assert (ou["variance"], ou["target_variance"]) == (4.0, 1.0)
    assert heat["epsilon"] == ou["epsilon"] == 0.01
    assert 0.01 in heat["epsilons"] and 0.01 in ou["epsilons"]


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("heat-flow", "epsilons=[0.03, 0.1, 0.2]", r"divisors of T = 1.* got 0.03"),
        ("heat-flow", "epsilons=[0.1, 0.2]", r"at least 3 different values"),
        ("heat-flow", "thetas=[1.0]", r"thetas: wanted numbers below 0"),
        ("heat-flow", "means=[1.0]", r"of one length"),
        ("heat-flow", "times=[2.0]", r"times: wanted at most T = 1"),
        ("ornstein-uhlenbeck", "thetas=[-1.0]", r"thetas: .*sign of \+0.75"),
        ("ornstein-uhlenbeck", "variance=1.0", r"nothing moves"),
        ("simplex-flow", "depths=[4]", r"depths: wanted at least 3"),
        ("simplex-flow", "locked_tail=0.7", r"locked_tail: wanted a number between"),
        ("simplex-flow", "jumps=[-1.0]", r"jumps: wanted numbers >= 0"),
        ("lipschitz", "radii=[0.0]", r"radii: wanted a number above 0"),
        ("lipschitz", "far_numbers=[2]", r"far_numbers: wanted a number above 2"),
    ],
)
def test_bad_settings_are_one_line(
    name: str, setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["run", name, "--set", setting, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(message, err), err


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_flow_goes_on(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: what was done is not done again, and the numbers are the same."""
    calls: list[Any] = []
    work = _bridge_flows.particle_errors

    def stop(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return work(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_bridge_flows, "particle_errors", stop)
        with pytest.raises(KeyboardInterrupt):
            experiments.run("heat-flow", tmp_path, quick=True)
    calls.clear()
    monkeypatch.setattr(_bridge_flows, "particle_errors", lambda *a: (calls.append(a), work(*a))[1])
    monkeypatch.setattr(_bridge_flows, "scheme_errors", lambda *_: pytest.fail("done before"))
    done = experiments.run("heat-flow", tmp_path, quick=True)
    config = done.config
    total = len(config["particle_epsilons"]) * len(config["particle_numbers"])
    assert done.resumed and len(calls) == total * (1 + config["n_seeds"]) - 2
    assert done.metrics == results("heat-flow").metrics


# ---- heat flow -----------------------------------------------------------------------------------


def bumps(x: Array) -> Array:
    return (np.exp(-((x + 2) ** 2) / 2) + np.exp(-((x - 2) ** 2) / 2)) / math.sqrt(8 * math.pi)


def crank_nicolson(x: Array, rho: Array, T: float, steps: int, drift: bool = False) -> Array:
    """∂ρ/∂t = ½ρ'' (+ ½(xρ)' with drift) by central differences, ρ = 0 at the ends."""
    from scipy.linalg import solve_banded

    h, k, n = x[1] - x[0], T / steps, len(x)
    lower, diagonal, upper = (np.zeros(n) for _ in range(3))
    diagonal -= 1 / h**2
    lower += 0.5 / h**2
    upper += 0.5 / h**2
    if drift:
        upper += 0.5 * np.append(x[1:], 0) / (2 * h)
        lower -= 0.5 * np.append(0, x[:-1]) / (2 * h)
    banded = np.zeros((3, n))
    banded[0, 1:], banded[1], banded[2, :-1] = (
        -k / 2 * upper[:-1],
        1 - k / 2 * diagonal,
        -k / 2 * lower[1:],
    )
    for _ in range(steps):
        right = rho + k / 2 * (diagonal * rho)
        right[:-1] += k / 2 * upper[:-1] * rho[1:]
        right[1:] += k / 2 * lower[1:] * rho[:-1]
        rho = solve_banded((1, 1), banded, right)
    return rho


def test_heat_flow_against_finite_differences(results: Results) -> None:
    """ISB-5: the scheme's density at every time shown is that of a Crank-Nicolson solution."""
    rows = table(results, "heat-flow", "densities")
    x = np.linspace(-16, 16, 3201)
    for t in np.unique(rows["t"]):
        of = rows["t"] == t
        rho = bumps(x) if t == 0 else crank_nicolson(x, bumps(x), t, 400)
        np.testing.assert_allclose(rows["exact"][of], np.interp(rows["x"][of], x, rho), atol=2e-5)
        np.testing.assert_allclose(rows["scheme"][of], np.interp(rows["x"][of], x, rho), atol=5e-4)


def quantiles(cdf: Callable[[Array], Array], u: Array) -> Array:
    low, high = np.full_like(u, -30.0), np.full_like(u, 30.0)
    for _ in range(80):
        middle = (low + high) / 2
        below = cdf(middle) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def mixture_cdf(x: Array, t: float) -> Array:
    from scipy.special import ndtr

    s = math.sqrt(1 + t)
    return np.asarray(0.5 * (ndtr((x + 2) / s) + ndtr((x - 2) / s)))


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_heat_flow_errors_against_dense_numpy(results: Results, epsilon: float) -> None:
    """ISB-5: W1 and W2 at the end by a plain Sinkhorn iteration on another grid, exact quantiles."""
    x = np.linspace(-10.5, 10.5, 260)
    w = bumps(x)
    w /= w.sum()
    state = x.copy()
    for _ in range(round(1 / epsilon)):
        _, B = reference.self_bridge(state[:, None], epsilon, w, 80)
        state = 2 * state - B[:, 0]
    seen = w > 1e-13
    exact = quantiles(lambda y: mixture_cdf(y, 1.0), mixture_cdf(x[seen], 0.0))
    off = state[seen] - exact
    rows = table(results, "heat-flow", "errors").where(scheme="bridge", epsilon=repr(epsilon))
    assert rows["w2_end"][0] == pytest.approx(math.sqrt(w[seen] @ off**2), rel=2e-3)
    assert rows["w1_end"][0] == pytest.approx(w[seen] @ np.abs(off), rel=2e-3)


def test_errors_of_maps_in_closed_form() -> None:
    """ISB-5: two normal laws: W1, W2 and the L1 distance of densities by formula."""
    from scipy.special import erf

    law = qk.isb.Mixture.gaussian(0.0, 1.0)
    x, w = law.grid(1000)
    s, r = 1.3, 1.31
    found = _bridge_flows.map_errors(
        law, x[:, 0], w, r * x[:, 0], qk.isb.Mixture.gaussian(0.0, s**2)
    )
    assert found["w2"] == pytest.approx(r - s, rel=1e-9)
    assert found["w1"] == pytest.approx((r - s) * math.sqrt(2 / math.pi), rel=1e-3)
    cross = math.sqrt(2 * math.log(r / s) / (1 / s**2 - 1 / r**2))
    area = 2 * (erf(cross / s / math.sqrt(2)) - erf(cross / r / math.sqrt(2)))
    assert found["density"] == pytest.approx(area, rel=2e-3)


def test_heat_flow_slopes(results: Results) -> None:
    """ISB-5: second order for the poster's step, first step 2 (to Euler) and near 3; none as printed."""
    done = results("heat-flow")
    rows = table(results, "heat-flow", "errors")
    for name, found in done.metrics["schemes"].items():
        of = rows.where(scheme=name)
        line = np.polyfit(np.log(of["epsilon"]), np.log(of["w2_sup"]), 1)
        assert found["w2_sup"]["slope"] == pytest.approx(line[0], rel=1e-9)
        assert found["w2_sup"]["low"] < line[0] < found["w2_sup"]["high"]
    schemes = done.metrics["schemes"]
    for m in ("w1_sup", "w2_sup", "density_sup"):
        assert 1.8 < schemes["bridge"][m]["slope"] < 2.3
    assert abs(schemes["cost as printed"]["w2_sup"]["slope"]) < 0.1
    assert 1.8 < done.metrics["one_step"]["euler"]["slope"] < 2.1
    assert 2.4 < done.metrics["one_step"]["exact"]["slope"] < 3.1
    verdicts = {c.where: c.verdict for c in experiments.get("heat-flow").claims(done.metrics)}
    assert verdicts["setting"] == "does not hold" and verdicts["background"] is not None


def test_printed_cost_runs_at_half_speed(results: Results) -> None:
    """ISB-5, erratum 6: as printed, the law at T is that of T/2."""
    law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
    u = (np.arange(20000) + 0.5) / 20000
    half, whole = (quantiles(lambda y, t=t: mixture_cdf(y, t), u) for t in (0.5, 1.0))  # type: ignore[misc]
    rows = table(results, "heat-flow", "errors").where(scheme="cost as printed")
    expected = math.sqrt(np.mean((half - whole) ** 2))
    assert rows["w2_end"][0] == pytest.approx(expected, rel=0.02)
    assert law.heat(0.5).w2_to(law.heat(1.0)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["heat-flow", "ornstein-uhlenbeck"])
def test_particle_errors_are_taken_apart(results: Results, name: str) -> None:
    """ISB-5: the parts obey the triangle inequality; sampling by brute force; less of both with N."""
    rows = table(results, name, "particles")
    fine = rows["status"] == "completed"
    total, scheme, draws = (rows[k][fine] for k in ("total_w2", "scheme_w2", "sampling_w2"))
    assert np.all(total <= scheme + draws + 1e-12)
    assert np.all(total >= np.abs(scheme - draws) - 1e-12)
    config = results(name).config
    n = config["particle_numbers"][0]
    draw = np.random.default_rng([config["seed"], 0, n])
    if name == "heat-flow":
        p = heat_flow.problem(config)
        X = p.law.sample(n, draw)[:, 0]
        carried = quantiles(lambda y: mixture_cdf(y, 1.0), mixture_cdf(X, 0.0))
        u = (np.arange(200 * n) + 0.5) / (200 * n)
        exact = quantiles(lambda y: mixture_cdf(y, 1.0), u)
    else:
        from scipy.special import ndtri

        p = ornstein_uhlenbeck.problem(config)
        X = p.law.sample(n, draw)[:, 0]
        s = math.sqrt(1 + 3 * math.exp(-config["T"]))
        carried = X * s / 2
        u = (np.arange(200 * n) + 0.5) / (200 * n)
        exact = s * ndtri(u)
    brute = math.sqrt(np.mean((np.repeat(np.sort(carried), 200) - exact) ** 2))
    first = rows.where(start="draws", draw="0", n=str(n))
    np.testing.assert_allclose(first["sampling_w2"], brute, rtol=2e-3)
    for group in results(name).metrics["particles"]:
        if group["start"] == "draws" and group["scheme"] in ("bridge", "split"):
            assert group["scheme_w2"][-1] < group["scheme_w2"][0]
            assert group["sampling_w2"][-1] < group["sampling_w2"][0]


# ---- Ornstein-Uhlenbeck --------------------------------------------------------------------------


def deviations(scheme: str, epsilon: float, steps: int) -> Array:
    """s after each step from N(0, 4), by the recursion of each scheme."""
    s, out = 2.0, [2.0]
    for _ in range(steps):
        pull = 1 - 1 / s**2
        if scheme == "split":
            s = s * (2 - reference.bridge_slope(s * s, epsilon) - epsilon / 2)
        elif scheme == "explicit Euler":
            s = s * (1 - epsilon / 2 * pull)
        else:
            theta = 1 / (s * s - 1) if "chosen" in scheme else float(scheme.split("=")[1])
            s = s * (1 - (1 - reference.bridge_slope(1 / (theta * pull), epsilon)) / theta)
        out.append(s)
    return np.array(out)


def test_ornstein_uhlenbeck_in_closed_form(results: Results) -> None:
    """ISB-5: every scheme keeps normal laws normal; its errors are those of its recursion."""
    rows = table(results, "ornstein-uhlenbeck", "errors")
    assert len(set(rows["scheme"])) == 5
    for row in rows.rows:
        epsilon, steps = float(row["epsilon"]), int(row["n_steps"])
        s = deviations(row["scheme"], epsilon, steps)
        exact = np.sqrt(1 + 3 * np.exp(-epsilon * np.arange(steps + 1)))
        off = np.abs(s - exact)
        assert row["status"] == "completed"
        assert float(row["w2_sup"]) == pytest.approx(off.max(), rel=1e-3, abs=1e-7), row
        assert float(row["w2_end"]) == pytest.approx(off[-1], rel=1e-3, abs=1e-7)
        assert float(row["w1_end"]) == pytest.approx(off[-1] * math.sqrt(2 / math.pi), rel=3e-3)
    schemes = results("ornstein-uhlenbeck").metrics["schemes"]
    assert all(0.9 < found["w2_sup"]["slope"] < 1.2 for found in schemes.values())
    assert results("ornstein-uhlenbeck").metrics["closed_form"]["largest_difference_of_w2"] < 1e-6


def test_ornstein_uhlenbeck_against_finite_differences(results: Results) -> None:
    """ISB-5: the densities solve the Fokker-Planck equation."""
    rows = table(results, "ornstein-uhlenbeck", "densities")
    x = np.linspace(-20, 20, 4001)
    start = np.exp(-(x**2) / 8) / math.sqrt(8 * math.pi)
    for t in np.unique(rows["t"]):
        of = rows["t"] == t
        rho = start if t == 0 else crank_nicolson(x, start, t, 800, drift=True)
        np.testing.assert_allclose(rows["exact"][of], np.interp(rows["x"][of], x, rho), atol=1e-4)
        np.testing.assert_allclose(rows["scheme"][of], np.interp(rows["x"][of], x, rho), atol=4e-3)


def test_theorem_1(results: Results) -> None:
    """ISB-5: relative entropies of normal pairs by matrices; exponent 4; theorem 2 needs a root."""
    rows = table(results, "ornstein-uhlenbeck", "theorem1")
    for e, found in zip(rows["epsilon"], rows["entropies"], strict=True):
        b = reference.bridge_slope(4.0, float(e))
        exact = reference.symmetrised_divergence(b, math.exp(-e / 8))
        assert found == pytest.approx(exact, rel=1e-2, abs=1e-12)
    done = results("ornstein-uhlenbeck")
    assert done.metrics["theorem_1"]["slope"] == pytest.approx(4, abs=0.05)
    claims = experiments.get("ornstein-uhlenbeck").claims(done.metrics)
    assert [c.verdict for c in claims if c.where == "theorem 2"] == ["does not hold", "holds"]


# ---- simplex flow --------------------------------------------------------------------------------


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def test_locking_against_dense_matrices(results: Results) -> None:
    """EOT-2, EOT-5, theorem 3.9: medians of tails, norms and speeds from formed Jacobians."""
    done = results("simplex-flow")
    config = done.config
    draw = np.random.default_rng([config["seed"], 1])
    shape = (config["n_rows"], config["tokens"])
    z, b = draw.normal(size=shape), draw.uniform(-1, 0, size=shape)
    b[np.arange(shape[0]), draw.integers(shape[1], size=shape[0])] = 1
    rows = table(results, "simplex-flow", "locking")
    for row in rows.rows[5::17]:
        tau, t = float(row["tau"]), float(row["t"])
        p = softmax((z + t * b) / tau)
        J = (np.einsum("ri,ij->rij", p, np.eye(shape[1])) - p[:, :, None] * p[:, None, :]) / tau
        norms = np.linalg.norm(J, 2, axis=(1, 2))
        speed = np.linalg.norm(np.einsum("rij,rj->ri", J, b), axis=1)
        # 1 - max p cancels; the sum of the others does not.
        tail = np.sort(p, axis=1)[:, :-1].sum(axis=1)
        for name, values in (("tail", tail), ("operator_norm", norms), ("speed", speed)):
            assert float(row[name]) == pytest.approx(np.median(values), rel=1e-6, abs=1e-13)
    worst = done.metrics["locking"]["worst"]
    assert worst["operator_norm_over_bound"] <= 1 and worst["speed_over_bound"] <= 1 + 1e-12
    assert worst["operator_norm_over_tail_bound"] <= 1 + 1e-12
    assert worst["ode_error"] < 1e-4 and worst["mass_error"] < 1e-11


def test_temperature_freezes(results: Results) -> None:
    """EOT-15, erratum 7d: two tokens with a gap of 2 are most mobile near τ = 1.3."""
    found = results("simplex-flow").metrics["temperature"]
    assert found["relative_error"] < 1e-12 and found["norm_at_half_half"] == pytest.approx(0.5)
    gap = found["gaps"]["2"]
    assert gap["most_mobile_tau"] == pytest.approx(1.30, abs=0.05)
    assert gap["norm_at"]["0.25"] == pytest.approx(0.0027, abs=5e-5)
    claims = {
        c.where: c.verdict
        for c in experiments.get("simplex-flow").claims(results("simplex-flow").metrics)
    }
    assert claims["L.2, last sentences"] == "does not hold"


def test_perturbed_rows(results: Results) -> None:
    """EOT-12, erratum 33: the worst change moves σ(logit δ + 2ε) − δ, nearly twice what is printed."""
    done = results("simplex-flow")
    for key, found in done.metrics["perturbations"].items():
        assert found["over_sharp"] <= 1 + 1e-6, key
    for change in done.config["changes"]:
        found = done.metrics["perturbations"][f"worst {change:g}"]
        assert found["over_sharp"] == pytest.approx(1, abs=1e-6)
        # Small tails: δ(e^{2ε} − 1) moves, δε is printed.
        assert found["over_printed"] == pytest.approx(math.expm1(2 * change) / change, rel=2e-2)
    assert done.metrics["perturbations"]["worst 0.01"]["share_above_printed"] > 0.5


def test_theorem_3_1(results: Results) -> None:
    """EOT-3: errors of the layers against a Runge-Kutta solution; first order; never above the bound."""
    from qkcore.experiments._simplex_depth import Drift

    done = results("simplex-flow")
    b = Drift(done.config)
    steps = 1280
    h = 1 / steps
    z = b.z.copy()
    path = [softmax(z)]
    for k in range(steps):
        t = k * h
        k1 = b(softmax(z), t)
        k2 = b(softmax(z + h / 2 * k1), t + h / 2)
        k3 = b(softmax(z + h / 2 * k2), t + h / 2)
        k4 = b(softmax(z + h * k3), t + h)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(softmax(z))
    exact = np.stack(path)
    rows = table(results, "simplex-flow", "depth")
    for row in rows.rows:
        L = int(row["L"])
        _, p = b.layers(L)
        worst = np.abs(p - exact[:: steps // L]).sum(axis=-1).max()
        assert float(row["error_at_layers"]) == pytest.approx(worst, rel=1e-3)
        assert float(row["error"]) <= float(row["bound"])
        assert float(row["error_at_layers"]) <= float(row["error"])
    slopes = done.metrics["depth"]["slopes"]
    assert -1.15 < slopes["error"]["slope"] < -0.9 and -1.2 < slopes["S_L"]["slope"] < -0.9
    assert done.metrics["depth"]["holds"] is True
    # The constants: differences of the drift between random rows are below them.
    draw = np.random.default_rng(0)
    for x, y in softmax(3 * draw.normal(size=(200, 2, 1, len(b.A)))):
        difference = np.ptp(b(x, 0.3) - b(y, 0.3), axis=-1) / 2
        assert np.all(difference <= b.constants.L_b * np.abs(x - y).sum(axis=-1) * (1 + 1e-12))


def test_an_initial_error_stays(results: Results) -> None:
    """EOT-3, erratum 7g: without a drift the growth is 1; e^Γ − 1 = 0 is no bound, e^Γ is."""
    rows = table(results, "simplex-flow", "start")
    none = rows["drift"] == 0
    assert rows["growth"][none] == pytest.approx(1) and np.all(rows["printed"][none] == 0)
    assert np.all(rows["growth"] <= rows["corrected"] * (1 + 1e-9))
    assert 0.0 in results("simplex-flow").metrics["start"]["printed_fails_at"]


def test_jumps_are_found(results: Results) -> None:
    """EOT-4: the large jumps are cut where they are, and the flows between them fit better."""
    rows = table(results, "simplex-flow", "jumps")
    large = rows["jump"] >= 4
    assert np.all(rows["found"][large] == 1) and np.all(rows["false_cuts"] == 0)
    assert np.all(rows["error_cut"][large] < 0.2 * rows["error_whole"][large])
    assert np.all(rows["found"][rows["jump"] == 0] == 0)


def test_early_exit(results: Results) -> None:
    """EOT-15, erratum 7h: certified exits keep their word, H.1's norm does not."""
    from qkcore.experiments._simplex_depth import _stack

    done = results("simplex-flow")
    rows = table(results, "simplex-flow", "early_exit")
    sure = rows.where(policy="certified")
    assert np.all(sure["broken"] == 0) and np.all(sure["largest_loss"] <= sure["tol"])
    assert sure["saved"].max() > 0.1
    norm = rows.where(policy="Frobenius norm (H.1)")
    assert norm["broken"].max() > 0
    # The losses of H.1's rule from formed Jacobians, for the first tolerance.
    z, most = _stack(done.config)
    assert np.all(np.ptp(np.diff(z, axis=0), axis=-1) / 2 <= most[:, None] + 1e-12)
    tol, p = done.config["tolerances"][0], softmax(z)
    losses = []
    for i in range(p.shape[1]):
        leave = [
            k for k in range(len(p)) if np.linalg.norm(np.diag(p[k, i]) - np.outer(p[k, i], p[k, i])) <= tol
        ]  # fmt: skip
        at = leave[0] if leave else len(p) - 1
        losses.append(0.5 * np.abs(p[at, i] - p[-1, i]).sum())
    assert norm["largest_loss"][0] == pytest.approx(max(losses), rel=1e-9)


def test_the_schedule_holds_the_entropy(results: Results) -> None:
    """EOT-15: growing logits lock at τ = 1 and do not under feedback."""
    rows = table(results, "simplex-flow", "schedule")
    assert abs(rows["entropy_held"][-1] - rows["target"][-1]) < 0.15 * rows["target"][-1]
    assert rows["entropy_fixed"][-1] < 0.3 * rows["target"][-1]
    assert np.all(np.diff(rows["tau"]) > -1e-3)


# ---- Lipschitz -----------------------------------------------------------------------------------


def test_contraction_on_an_interval(results: Results) -> None:
    """MTA-3: on [−r, r] the sharp constants are r² and e^{2r²}(1 + 2r²), and reached (19)."""
    sets = table(results, "lipschitz", "sets").where(d="1")
    for row in sets.rows:
        r, measured = float(row["radius"]), float(row["measured"])
        exact = {
            "query": r * r,
            "measure": math.exp(2 * r * r) * (1 + 2 * r * r),
            "lookup": 1.0,
        }.get(row["part"])
        if exact is not None:
            assert float(row["sharp"]) == pytest.approx(exact, rel=1e-9)
            assert measured == pytest.approx(exact, rel=0.02) and measured <= exact * (1 + 1e-9)
        assert measured <= float(row["bound"]) * (1 + 1e-9)
    parts = results("lipschitz").metrics["parts"]
    assert all(f["bound_violated"] == 0 for f in parts.values())
    assert parts["query"]["printed_violated"] == 0
    assert parts["measure"]["printed_violated"] > 0, "erratum 10"


def attend(X: Array, beta: float) -> Array:
    return np.asarray(softmax(beta * X @ X.T) @ X)


def test_jacobians_by_differences(results: Results) -> None:
    """MTA-3: Euclidean and W1 constants at the data from dense finite differences."""
    from qkcore.experiments.lipschitz import cloud

    data = table(results, "lipschitz", "data").where(draw="0", n="16")
    assert len(data) > 0
    for row in data.rows:
        d, radius = int(row["d"]), float(row["radius"])
        X = cloud(results("lipschitz").config, d, 16, radius, 0)
        assert np.linalg.norm(X, axis=1).max() <= radius
        h, columns = 1e-6, []
        for k in range(X.size):
            e = np.zeros(X.size)
            e[k] = h
            step = e.reshape(X.shape)
            columns.append(
                (attend(X + step, d**-0.5) - attend(X - step, d**-0.5)).ravel() / (2 * h)
            )
        J = np.stack(columns, axis=1)
        assert float(row["spectral"]) == pytest.approx(np.linalg.norm(J, 2), rel=2e-3)
        assert float(row["w1"]) == pytest.approx(np.abs(J).sum(axis=0).max(), rel=1e-5)
        assert float(row["measured"]) <= float(row["sharp"]) <= float(row["printed"])


def test_far_points_by_scipy(results: Results) -> None:
    """MTA-3, erratum 10: proposition 28's factor grows with N; W1 by SciPy."""
    from scipy.stats import wasserstein_distance

    config = results("lipschitz").config
    rows = table(results, "lipschitz", "far")
    for n, found, printed in zip(rows["n"], rows["measured"], rows["printed"], strict=True):
        n = int(n)
        X = np.concatenate([[0.0, 0.7], 50 + np.arange(n - 2.0)])
        Y = X.copy()
        Y[1] += config["far_step"]
        first, second = (np.exp(-((Z - Z[0]) ** 2)) for Z in (X, Y))
        moved = wasserstein_distance(X, Y, first, second)
        assert found == pytest.approx(moved / (config["far_step"] / n), rel=1e-6)
        assert (found > printed) == (n >= 40)


def test_cubes_by_differences(results: Results) -> None:
    """MTA-3, erratum 10: the closed form in 2 and 3 dimensions, then beyond theorem 29's factor."""
    from qkcore.experiments.lipschitz import cube_factor

    for d in (2, 3):
        s = 0.6
        X = np.vstack([np.zeros(d), s * np.array(list(itertools.product([-1.0, 1.0], repeat=d)))])

        def gaussian(Y: Array) -> Array:
            D = ((Y[:, None] - Y[None]) ** 2).sum(axis=-1)
            return np.asarray(softmax(-D) @ Y)

        step = np.zeros_like(X)
        step[0, 0] = 1e-6
        moved = np.abs(gaussian(X + step) - gaussian(X - step))[1:].sum() / 2e-6
        assert cube_factor(d, s) == pytest.approx(moved, rel=1e-7)
    rows = table(results, "lipschitz", "cube")
    assert np.array_equal(rows["violated"] == 1, rows["d"] >= 44)
    assert np.all(rows["measured"] < rows["corrected"])


def test_neighbourhoods_by_numpy(results: Results) -> None:
    """MTA-3, erratum 10: proposition 25 fails in small balls; the moves once more in NumPy."""
    from qkcore.experiments.lipschitz import cloud

    rows = table(results, "lipschitz", "neighbours")
    for row in rows.rows:
        X = cloud(results("lipschitz").config, 2, 64, float(row["radius"]), 1)
        out = [softmax(Y @ X[0] / math.sqrt(2)) @ Y for Y in (X, X[: int(row["m"])])]
        assert float(row["measured"]) == pytest.approx(np.abs(out[0] - out[1]).sum(), rel=1e-9)
    assert np.all(rows["measured"] <= rows["bound"])
    assert np.any(rows["violated"] == 1)


def test_depth_has_one_fixed_point(results: Results) -> None:
    """MTA-3, theorem 26: where it applies iterates contract by less than τ, to x = ℓ(x)."""
    found = results("lipschitz").metrics["depth"]
    applies = [f for f in found.values() if f["theorem"] == "applies"]
    assert applies
    for f in applies:
        assert f["status"] == "converged" and f["contraction"] <= f["tau"] < 1
        assert f["from_fixed_point"] < 1e-7
    assert found["1"]["theorem"] == "does not apply"
    # Near the fixed point all particles coincide, so the rate is that of the lookup.
    assert found["0.3"]["local_rate"] == pytest.approx(0.3, abs=1e-4)


@pytest.mark.usefixtures("no_figures")
def test_seeds_change_what_is_drawn(results: Results, tmp_path: Path) -> None:
    """EOT-17: the same settings give the same numbers, another seed others."""
    done = results("simplex-flow")
    again = experiments.run("simplex-flow", tmp_path, config=done.folder / "config.yaml")
    assert again.metrics == done.metrics
    other = experiments.run("simplex-flow", tmp_path, config=done.folder / "config.yaml", seed=3,
                            force=True)  # fmt: skip
    assert other.metrics != done.metrics
