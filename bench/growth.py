"""How time and memory grow with N (to 100 000 points, from points) and with d, on one and on two threads.

Exponents are fitted by least squares on logarithms over the larger half of the sizes, where fixed costs no
longer show. The figure goes to docs/growth.svg and growth.png when the sizes are the full ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qkcore as qk
import reference
from harness import (
    BENCH,
    Array,
    Call,
    Group,
    Options,
    Row,
    Timing,
    interleave,
    max_error,
    peak_growth_mb,
)
from qkcore import diffusion

DIM = 3  # while N grows
POINTS = 10_000  # while d grows
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
DIMENSIONS = (2, 4, 8, 16, 32, 64, 128)
QUICK_SIZES, QUICK_DIMENSIONS, QUICK_POINTS = (200, 400, 800), (2, 8, 32), 300
BOUND = 1e-10  # of the answers on a few rows, float64
TIME_WANTED, MEMORY_WANTED = (
    2.1,
    1.1,
)  # exponents in N: every pair is visited, nothing N x N is kept
MEMORY_FLOOR_MB = 1.0  # less cannot be told from the allocator's noise
# Okabe and Ito's colours, which differ for every kind of colour vision; markers differ too.
STYLES = {
    "log-sum-exp": ("#0072B2", "o"),
    "apply": ("#E69F00", "s"),
    "bridge iteration": ("#009E73", "^"),
    "diffusion map": ("#CC79A7", "D"),
    "flow step": ("#D55E00", "v"),
}


def points(n: int, d: int) -> Array:
    return np.random.default_rng((n, d)).standard_normal((n, d))


def log_sum_exp(options: Options, n: int, d: int) -> Call:
    s = qk.scores.distance(points(n, d), beta=1 / d)
    return lambda: s.logsumexp(n_threads=options.threads)


def apply(options: Options, n: int, d: int) -> Call:
    X = points(n, d)
    A = qk.softmax(qk.scores.dot(X, beta=1 / math.sqrt(d)))
    return lambda: A.apply(X, n_threads=options.threads)


def bridge_iteration(options: Options, n: int, d: int) -> Call:
    s, u = qk.scores.distance(points(n, d), points(n, d)[::-1] + 0.3, beta=1 / d), np.full(n, 1 / n)
    return lambda: qk.bridge(
        s, u, u, solver="alternating", tol=1e-300, max_iter=1, max_memory=0,
        n_threads=options.threads,
    ).f  # fmt: skip


def diffusion_map(options: Options, n: int, d: int) -> Call:
    X = points(n, d)
    model = diffusion.DiffusionMap(5, beta=1 / d, n_threads=options.threads)
    model.set_params(max_memory=0)
    return lambda: np.asarray(model.fit(X).eigenvalues_)


def flow_step(options: Options, n: int, d: int) -> Call:
    X, eye = points(n, d), np.eye(d)
    field = qk.AttentionField("softmax", Q=eye / d, K=eye, V=eye)
    return lambda: qk.flow(
        field, X, (0.0, 0.01), "euler", n_steps=1, t_eval=[0.01], n_threads=options.threads
    ).x[-1]


JOBS: dict[str, Callable[[Options, int, int], Call]] = {
    "log-sum-exp": log_sum_exp,
    "apply": apply,
    "bridge iteration": bridge_iteration,
    "diffusion map": diffusion_map,
    "flow step": flow_step,
}


def error_of(name: str, value: object, n: int, d: int) -> float | None:
    """On a few rows, against blocked NumPy in float64; None where every row depends on all pairs twice."""
    X = points(n, d)
    few = np.unique(np.linspace(0, n - 1, 7).astype(int))
    found = np.asarray(value)
    if name == "log-sum-exp":
        exact = reference.logsumexp(reference.distance_scores(X[few], X, 1 / d), len(few))
        return max_error(found[few], exact)
    if name in ("apply", "flow step"):
        beta = 1 / math.sqrt(d) if name == "apply" else 1 / d
        mean = reference.attention(reference.dot_scores(X[few], X, beta), len(few), X)
        return max_error(found[few], mean if name == "apply" else X[few] + 0.01 * mean)
    if name == "diffusion map" and n <= 1000:
        D = diffusion.symmetric_conjugate(diffusion.operator(X, beta=1 / d)).to_numpy()
        return float(np.abs(found - np.linalg.eigvalsh(D)[::-1][1:6]).max())
    if name == "bridge iteration":
        return bridge_error(found, X, n, d) if n <= 10_000 else None
    return None


def bridge_error(f: Array, X: Array, n: int, d: int) -> float:
    """Rows of the returned potentials must be a half-step from some g: f_i + lse_j(s_ij) is -log n + const.

    The first row update starts from g = 0, so that f is known in closed form up to the gauge.
    """
    few = np.unique(np.linspace(0, n - 1, 7).astype(int))
    Y = X[::-1] + 0.3
    exact = -reference.logsumexp(reference.distance_scores(X[few], Y, 1 / d), len(few))
    return float(np.ptp(f[few] - exact))


def exponent(sizes: Sequence[int] | Array, values: Sequence[float] | Array) -> float | None:
    """Slope of log value over log size; None with fewer than two points."""
    if len(sizes) < 2:
        return None
    slope, _ = np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float)), 1)
    return float(slope)


def larger_half(values: Sequence[Any]) -> Sequence[Any]:
    return values[len(values) // 2 :] if len(values) > 3 else values


def sweep(
    group: Group, options: Options, name: str, sizes: Sequence[tuple[int, int]], threads: int
) -> tuple[list[float], list[float]]:
    """Times and memory of one job over (n, d)."""
    own = Options(threads=threads, quick=options.quick)
    times, memory = [], []
    for n, d in sizes:
        call = JOBS[name](own, n, d)
        error = error_of(name, call(), n, d)
        timing = interleave({name: call}, rounds=3, budget=0.5 if options.quick else 4.0)[name]
        grown = peak_growth_mb("growth", JOBS[name].__name__, own, n=n, d=d)
        case = f"{name} N={n} d={d}, {threads} thread{'s' if threads > 1 else ''}"
        group.add(Row(case, "qkcore", Timing(timing.samples), n * n, None, error, grown))
        if error is not None:
            group.check(case, error, BOUND)
        times.append(timing.minimum)
        memory.append(grown)
    return times, memory


def figure(data: dict[str, Any], folder: Path) -> list[Path]:
    """Time over N, time over d, memory over N, all on logarithmic axes, drawn from the numbers alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
    panels = (
        ("N", "time", "number of points N", "seconds", f"Time, d = {DIM}"),
        ("d", "time", "dimension d", "seconds", f"Time, N = {data['points']}"),
        ("N", "memory", "number of points N", "MB", f"Growth of the resident peak, d = {DIM}"),
    )
    for axis, (over, what, xlabel, ylabel, title) in zip(axes, panels, strict=True):
        for series in data["series"]:
            if series["over"] != over:
                continue
            colour, marker = STYLES[series["job"]]
            single = series["threads"] == 1
            values = series[what]
            if what == "memory":
                values = [max(v, MEMORY_FLOOR_MB) for v in values]
            slope = series["exponents"][what]
            fit = f" ({over}^{slope:.2f})" if slope is not None else ""
            axis.loglog(
                series["sizes"],
                values,
                color=colour,
                marker=marker,
                markersize=5,
                markerfacecolor=colour if not single else "white",
                linestyle="--" if single else "-",
                label=f"{series['job']}{fit}" if not single or data["threads"] == [1] else None,
            )
        if what == "memory":
            sizes = np.array(data["sizes"], float)
            axis.loglog(sizes, 8e-6 * sizes**2, color="0.5", linewidth=1, label="one N × N matrix")
            axis.set_ylim(bottom=0.8 * MEMORY_FLOOR_MB)
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axis.grid(visible=True, which="major", color="0.9")
        axis.legend(fontsize=7.5, frameon=False)
    axes[0].text(
        0.98, 0.02, "filled, solid: 2 threads\nempty, dashed: 1 thread", fontsize=7.5,
        transform=axes[0].transAxes, ha="right", va="bottom",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"growth.{kind}" for kind in ("svg", "png")]
    for path in paths:
        drawn.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(drawn)
    return paths


def run(options: Options) -> Group:
    quick = options.quick
    sizes = QUICK_SIZES if quick else SIZES
    dimensions, fixed = (QUICK_DIMENSIONS, QUICK_POINTS) if quick else (DIMENSIONS, POINTS)
    group = Group(
        "growth",
        "Growth with N and d",
        f"From points in float64, nothing of size N × N kept: with N at d = {DIM}, with d at N = {fixed}. "
        "A diffusion map is a whole fit of 5 eigenvectors, a bridge iteration one row and one column update. "
        "Exponents are least squares on logarithms over the larger half of the sizes. Errors are on a few "
        "rows against NumPy.",
    )
    threads = sorted({1, min(2, options.threads)})
    lines = ["| | over | threads | time | memory |", "|---|---|---:|---:|---:|"]
    found: list[dict[str, Any]] = []
    for over, grid in (
        ("N", [(n, DIM) for n in sizes]),
        ("d", [(fixed, d) for d in dimensions]),
    ):
        for name in JOBS:
            for team in threads:
                times, memory = sweep(group, options, name, grid, team)
                at = [n if over == "N" else d for n, d in grid]
                seen = [(x, m) for x, m in zip(at, memory, strict=True) if m >= MEMORY_FLOOR_MB]
                slopes = {
                    "time": exponent(larger_half(at), larger_half(times)),
                    "memory": exponent([x for x, _ in seen], [m for _, m in seen]),
                }
                found.append(
                    {"job": name, "over": over, "threads": team, "sizes": at, "time": times,
                     "memory": memory, "exponents": slopes}
                )  # fmt: skip
                shown = [f"{over}^{s:.2f}" if s is not None else "–" for s in slopes.values()]
                lines.append(f"| {name} | {over} | {team} | {shown[0]} | {shown[1]} |")
                if over == "N" and not quick:
                    report_targets(group, name, team, slopes)
    if not quick:
        lines += ["", "![Time and memory against N and d](growth.svg)"]
    group.extra["table"] = "\n".join(lines)
    group.extra["growth"] = data = {
        "series": found, "sizes": list(sizes), "points": fixed, "threads": threads
    }  # fmt: skip
    try:
        paths = figure(data, BENCH / "results" if quick else BENCH.parent / "docs")
        print(f"  figure: {', '.join(map(str, paths))}", flush=True)
    except ImportError:
        group.notes.append("no figure: matplotlib is not installed (pip install matplotlib)")
    return group


def report_targets(group: Group, name: str, team: int, slopes: dict[str, float | None]) -> None:
    suffix = f"{name}, {team} thread{'s' if team > 1 else ''}"
    if slopes["time"] is not None and name != "diffusion map":  # its number of iterations varies
        group.at_most(f"{suffix}: exponent of time in N", slopes["time"], TIME_WANTED, "")
    if slopes["memory"] is not None:
        group.at_most(f"{suffix}: exponent of memory in N", slopes["memory"], MEMORY_WANTED, "")
