"""Measures the errors of the two flows of the ISB poster against the exact law (ISB-5).

On the line the maps of all schemes are increasing. On a weighted grid every distance to the exact law is
therefore the distance of two maps. Nothing is drawn at random, so errors down to 1e-7 can be measured.
Particles drawn at random add sampling errors; :func:`particle_errors` separates the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isb import BridgeFlow, Mixture, fit_rate
from ._configs import Config, positive
from ._errors import ExperimentError
from ._files import columns

if TYPE_CHECKING:
    from ._run import Run

Array = npt.NDArray[np.float64]
MEASURES = ("w1", "w2", "density")
Scheme = Callable[[Array, Array | None, float, int], tuple[Array, "BridgeFlow | None"]]
"""(x, weights, epsilon, steps) -> states (steps + 1, N), and the flow that computed them (if it is one)"""


@dataclass(frozen=True)
class Problem:
    """A law, its exact flow, and the schemes that approximate it."""

    law: Mixture
    exact: Callable[[float], Mixture]
    schemes: dict[str, Scheme]
    """schemes on a weighted grid; the first is the poster's"""
    particle_schemes: dict[str, Scheme]
    """schemes on particles of equal weights"""
    one_step: Callable[[Sequence[float], str], Array]
    """W2 from one step of the poster's scheme to an Euler step and to the exact one, at every epsilon"""

    @property
    def poster(self) -> str:
        """The poster's scheme."""
        return next(iter(self.schemes))


def check(config: Config) -> None:
    """Refuses settings from which no flow or no slope can be computed."""
    positive(config, "epsilon", "epsilons", "T", "times", "particle_epsilons")
    positive(config, "grid", "grid_width", "n_seeds", "n_paths")
    positive(config, "n_particles", "particle_numbers", least=1)
    for key, least in (("epsilons", 3), ("particle_numbers", 3)):
        if len(set(config[key])) < least:
            raise ExperimentError(f"{key}: wanted at least {least} different values for a slope")
    for epsilon in [config["epsilon"], *config["epsilons"], *config["particle_epsilons"]]:
        steps = config["T"] / epsilon
        if abs(steps - round(steps)) > 1e-9 * steps:
            raise ExperimentError(
                f"epsilons: wanted divisors of T = {config['T']:g}, so that all flows end at the same time, "
                f"got {epsilon:g}"
            )
    if max(config["times"]) > config["T"]:
        raise ExperimentError(f"times: wanted at most T = {config['T']:g}, got {config['times']}")


class FlowEnded(ArithmeticError):
    """A scheme did not reach the final time; the message says why the flow ended."""


def states_of(flow: BridgeFlow) -> tuple[Array, BridgeFlow]:
    """The states of a finished flow, (steps + 1, N)."""
    if not flow.converged:
        raise FlowEnded(flow.message)
    return np.asarray(flow.x[:, :, 0], np.float64), flow


# ---- errors --------------------------------------------------------------------------------------


def map_errors(law: Mixture, x: Array, w: Array, state: Array, exact: Mixture) -> dict[str, float]:
    """W1, W2 and the L1 distance of the densities, from the points to which a scheme has moved a grid.

    With E the exact map and S = E + D the scheme's, :math:`\\int|\\rho_S - \\rho_E| =
    \\int\\rho_0\\,|1 - \\rho_E(S)S'/\\rho_E(E)E'|`. Only D, which is small and smooth, is differentiated
    numerically. The outermost points, which together carry less than 1e-10 of the mass, are left out: there
    half of every neighbourhood is missing, so a bridge moves them arbitrarily.
    """
    seen = w > 1e-14
    x, w, state = x[seen], w[seen], state[seen]
    moved = law.transport(x, exact)
    off = state - moved
    at = exact.log_pdf(moved)
    stretch = np.exp(law.log_pdf(x) - at)  # E'
    ratio = np.exp(exact.log_pdf(state) - at) * (1 + np.gradient(off, x) / stretch)
    return {
        "w1": float(w @ np.abs(off)),
        "w2": math.sqrt(float(w @ off**2)),
        "density": float(w @ np.abs(1 - ratio)),
    }


def scheme_errors(p: Problem, name: str, epsilon: float, config: Config) -> dict[str, Any]:
    """The errors of one scheme on the grid: the largest of all, that at the end, and those over time."""
    x, w = p.law.grid(config["grid"], config["grid_width"])
    steps = round(config["T"] / epsilon)
    try:
        states, _ = p.schemes[name](x, w, epsilon, steps)
    except FlowEnded as error:
        none = {f"{m}_{k}": math.nan for m in MEASURES for k in ("sup", "end")}
        return {"n_steps": steps, "status": str(error), "t": [], **none} | {m: [] for m in MEASURES}
    over = [
        map_errors(p.law, x[:, 0], w, states[k], p.exact(k * epsilon)) for k in range(1, steps + 1)
    ]
    out: dict[str, Any] = {"n_steps": steps, "status": "completed"}
    out["t"] = [k * epsilon for k in range(1, steps + 1)]
    for m in MEASURES:
        values = [e[m] for e in over]
        out |= {f"{m}_sup": max(values), f"{m}_end": values[-1], m: values}
    return out


def slope(sizes: Sequence[float], errors: Sequence[float]) -> dict[str, Any]:
    """The exponent of a power law with its 95 % interval (Student's t of the fit's residuals).

    Where nothing is drawn, the errors are not random: the interval then tells how straight the line is. If an
    error is missing, every entry of the result is None.

    >>> found = slope([0.1, 0.2, 0.4], [0.03, 0.12, 0.48])
    >>> round(found["slope"], 6), round(found["high"] - found["low"], 6)
    (2.0, 0.0)
    """
    from scipy.stats import t

    if not all(e is not None and math.isfinite(e) and e > 0 for e in errors):
        return dict.fromkeys(("slope", "low", "high", "constant", "local"))
    rate = fit_rate(sizes, errors)
    half = float(t.ppf(0.975, len(sizes) - 2)) * rate.slope_error
    return {
        "slope": rate.slope,
        "low": rate.slope - half,
        "high": rate.slope + half,
        "constant": rate.constant,
        "local": rate.local_slopes.tolist(),
    }


# ---- particles -----------------------------------------------------------------------------------


def particle_errors(
    p: Problem, name: str, epsilon: float, n: int, seed: int | None, config: Config
) -> dict[str, Any]:
    """Splits the W2 error of n particles into its parts. ``seed`` draws them; with None they are quantiles.

    ``sampling`` is the error of the same particles when the exact map moves them: every scheme has this one.
    ``scheme`` is the distance between those and the particles that the scheme moved. The part of it that
    also appears on a grid is the error of the step. The rest arises because the bridge is that of n
    particles and not that of the law.
    """
    last = p.exact(config["T"])
    fresh = math.nan
    if seed is None:
        X = p.law.quantile_grid(n)
    else:
        draw = np.random.default_rng([config["seed"], seed, n])
        X = p.law.sample(n, draw)
        fresh = last.w2(last.sample(n, draw))
    carried = p.law.transport(X[:, 0], last)
    out: dict[str, Any] = {
        "scheme": name,
        "epsilon": epsilon,
        "n": n,
        "start": "quantiles" if seed is None else "draws",
        "draw": -1 if seed is None else seed,
        "status": "completed",
        "start_w2": p.law.w2(X),
        "sampling_w2": last.w2(carried),
        "fresh_w2": fresh,
    }
    try:
        states, flow = p.particle_schemes[name](X, None, epsilon, round(config["T"] / epsilon))
    except FlowEnded as error:
        none = dict.fromkeys(("total_w2", "scheme_w2", "self_weight", "variance"), math.nan)
        return out | none | {"status": str(error)}
    end = states[-1]
    return out | {
        "total_w2": last.w2(end),
        "scheme_w2": math.sqrt(float(np.mean((np.sort(end) - np.sort(carried)) ** 2))),
        "self_weight": math.nan if flow is None else float(np.max(flow.self_weight)),
        "variance": float(end.var()),
    }


# ---- the figures of the poster -------------------------------------------------------------------


def snapshots(p: Problem, config: Config, run: Run) -> dict[str, Any]:
    """Writes densities.csv, cloud.csv and paths.csv at the poster's epsilon."""
    epsilon, T = config["epsilon"], config["T"]
    steps = round(T / epsilon)
    x, w = p.law.grid(config["grid"], config["grid_width"])
    exact_states, _ = p.schemes[p.poster](x, w, epsilon, steps)
    X = p.law.sample(config["n_particles"], np.random.default_rng(config["seed"]))
    name = next(iter(p.particle_schemes))
    states, _ = p.particle_schemes[name](X, None, epsilon, steps)
    densities, cloud, found = [], [], {}
    for t in [0.0, *config["times"]]:
        k = round(t / epsilon)
        law = p.exact(k * epsilon)
        at = exact_states[k]
        # The density of the moved grid is the mass of each cell divided by its width.
        places, now = x[w > 1e-9, 0], at[w > 1e-9]
        densities += columns(
            t=[t] * len(now),
            x=now,
            scheme=np.exp(p.law.log_pdf(places)) / np.gradient(now, places),
            exact=np.exp(law.log_pdf(now)),
        )
        cloud += columns(t=[t] * len(X), x=states[k])
        found[f"{t:g}"] = {
            "particles_w2": law.w2(states[k]),
            "particles_variance": float(states[k].var()),
            "exact_variance": law.variance,
        } | ({} if k == 0 else map_errors(p.law, x[:, 0], w, at, law))
    run.write_csv("densities", densities)
    run.write_csv("cloud", cloud)
    chosen = np.argsort(X[:, 0])[:: max(1, len(X) // config["n_paths"])]
    every = max(1, steps // 50)
    run.write_csv(
        "paths",
        [
            {"path": int(i), "t": k * epsilon, "x": states[k, i]}
            for i in chosen
            for k in range(0, steps + 1, every)
        ],
    )
    return {"epsilon": epsilon, "n_particles": len(X), "scheme": name, "times": found}


# ---- everything ----------------------------------------------------------------------------------


def study(p: Problem, config: Config, run: Run) -> dict[str, Any]:
    """Writes all tables that both flows have, and returns the metrics."""
    metrics: dict[str, Any] = {"poster": p.poster, "T": config["T"]}
    metrics["figure"] = run.stage("figure", lambda: snapshots(p, config, run))
    metrics["schemes"] = _schemes(p, config, run)
    metrics["one_step"] = _one_step(p, config, run)
    metrics["particles"] = _particles(p, config, run)
    return metrics


def _schemes(p: Problem, config: Config, run: Run) -> dict[str, Any]:
    """Writes errors.csv and over_time.csv, and computes the slopes of every scheme."""
    rows, over_time, out = [], [], {}
    work = [(name, e) for name in p.schemes for e in config["epsilons"]]
    for name, e in run.progress(work, "schemes"):
        key = f"scheme-{list(p.schemes).index(name)}-{e:g}"
        one = run.stage(key, lambda: scheme_errors(p, name, e, config))  # noqa: B023
        ends = {f"{m}_{k}": one[f"{m}_{k}"] for m in MEASURES for k in ("sup", "end")}
        ends = {k: math.nan if v is None else v for k, v in ends.items()}
        same = {"scheme": name, "epsilon": e, "n_steps": one["n_steps"], "status": one["status"]}
        rows.append(same | ends)
        over_time += columns(
            scheme=[name] * len(one["t"]),
            epsilon=[e] * len(one["t"]),
            t=one["t"],
            **{m: one[m] for m in MEASURES},
        )
    run.write_csv("errors", rows)
    run.write_csv("over_time", over_time)
    for name in p.schemes:
        of = [r for r in rows if r["scheme"] == name]
        out[name] = {
            f"{m}_{k}": slope(config["epsilons"], [r[f"{m}_{k}"] for r in of])
            for m in MEASURES
            for k in ("sup", "end")
        } | {"errors": {f"{r['epsilon']:g}": {m: r[f"{m}_sup"] for m in MEASURES} for r in of}}
    return out


def _one_step(p: Problem, config: Config, run: Run) -> dict[str, Any]:
    rows, out = [], {}
    for against in ("euler", "exact"):
        errors = run.stage(
            f"one-step-{against}",
            lambda: p.one_step(config["epsilons"], against).tolist(),  # noqa: B023
        )
        rows += columns(against=[against] * len(errors), epsilon=config["epsilons"], w2=errors)
        out[against] = slope(config["epsilons"], errors) | {
            "errors": {f"{e:g}": x for e, x in zip(config["epsilons"], errors, strict=True)}
        }
    run.write_csv("one_step", rows)
    return out


def _particles(p: Problem, config: Config, run: Run) -> list[dict[str, Any]]:
    """Writes particles.csv; returns means over the draws, and slopes in n."""
    rows: list[dict[str, Any]] = []
    work = [
        (name, e, n, seed)
        for name in p.particle_schemes
        for e in config["particle_epsilons"]
        for n in config["particle_numbers"]
        for seed in (None, *range(config["n_seeds"]))
    ]
    for name, e, n, seed in run.progress(work, "particles"):
        key = f"particles-{list(p.particle_schemes).index(name)}-{e:g}-{n}-{seed}"
        found = run.stage(
            key,
            lambda: particle_errors(p, name, e, n, seed, config),  # noqa: B023
        )
        rows.append({k: math.nan if v is None else v for k, v in found.items()})
    run.write_csv("particles", rows)
    return _summaries(rows, config)


def _summaries(rows: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    out = []
    numbers = config["particle_numbers"]
    groups = list(dict.fromkeys((r["scheme"], r["epsilon"], r["start"]) for r in rows))
    for scheme, epsilon, start in groups:
        of = [
            r for r in rows if (r["scheme"], r["epsilon"], r["start"]) == (scheme, epsilon, start)
        ]
        group: dict[str, Any] = {"scheme": scheme, "epsilon": epsilon, "start": start, "n": numbers}
        for m in ("total_w2", "sampling_w2", "scheme_w2", "fresh_w2", "self_weight", "variance"):
            values = [[r[m] for r in of if r["n"] == n] for n in numbers]
            group[m] = [float(np.mean(v)) for v in values]
            group[f"{m}_sd"] = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
        for m in ("total_w2", "sampling_w2", "scheme_w2"):
            group[f"{m}_slope"] = slope(numbers, group[m])
        out.append(group)
    return out
