"""Measures how time and memory grow with N (up to 100 000 points) and with d, on one and on two threads.

Exponents are fitted by least squares on logarithms over the larger half of the sizes, where fixed costs do
not matter. With the full sizes the figure is written to docs/growth.svg and growth.png. Long calls are timed
once, and those that would take minutes are left out, so that the whole run takes about ten minutes.
"""

from __future__ import annotations

import math
import time
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

DIM = 3  # dimension while N grows
EIGENVECTORS = 5  # number for a diffusion map
POINTS = 10_000  # number of points while d grows
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
DIMENSIONS = (2, 4, 8, 16, 32, 64, 128)
QUICK_SIZES, QUICK_DIMENSIONS, QUICK_POINTS = (200, 400, 800), (2, 8, 32), 300
BOUND = 1e-10  # for the answers on a few rows in float64
TIME_WANTED, MEMORY_WANTED = (
    2.1,
    1.1,
)  # exponents in N: every pair is visited, but nothing of size N x N is kept
MEMORY_FLOOR_MB = 1.0  # smaller growth cannot be distinguished from the allocator's noise
ONCE = 1.0  # longer calls (in seconds) are timed once, because warming up hardly matters for them
LONGEST = 150.0  # calls that are expected to take longer (in seconds) are left out
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
    model = diffusion.DiffusionMap(EIGENVECTORS, beta=1 / d, n_threads=options.threads)
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


# A fit consists of products, whose number varies, so that its growth with d would say nothing new.
FOLLOWED_OVER_D = tuple(name for name in JOBS if name != "diffusion map")


def error_of(name: str, value: object, n: int, d: int) -> float | None:
    """The error on a few rows, against blocked NumPy in float64; None if rows are too expensive to check."""
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
        return float(np.abs(found - np.linalg.eigvalsh(D)[::-1][1 : EIGENVECTORS + 1]).max())
    if name == "bridge iteration":
        return bridge_error(found, X, n, d) if n <= 10_000 else None
    return None


def bridge_error(f: Array, X: Array, n: int, d: int) -> float:
    """How far f_i + lse_j(s_ij) is from a constant minus log n, as it must be after a row update from g = 0.

    The first row update starts from g = 0, so f is known in closed form except for the gauge.
    """
    few = np.unique(np.linspace(0, n - 1, 7).astype(int))
    Y = X[::-1] + 0.3
    exact = -reference.logsumexp(reference.distance_scores(X[few], Y, 1 / d), len(few))
    return float(np.ptp(f[few] - exact))


def exponent(sizes: Sequence[int] | Array, values: Sequence[float] | Array) -> float | None:
    """Slope of log value against log size; None if there are fewer than two points."""
    if len(sizes) < 2:
        return None
    slope, _ = np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float)), 1)
    return float(slope)


def larger_half(values: Sequence[Any]) -> Sequence[Any]:
    return values[len(values) // 2 :] if len(values) > 3 else values


def threads_of(team: int) -> str:
    return f"{team} thread{'s' if team > 1 else ''}"


class Sweep:
    """One job for several (n, d): times for each number of threads, in turns, and memory for the largest."""

    def __init__(self, group: Group, options: Options, name: str, teams: Sequence[int]) -> None:
        self.group, self.quick, self.name = group, options.quick, name
        self.teams = list(teams)
        self.times: dict[int, dict[tuple[int, int], float]] = {team: {} for team in teams}
        self.memory: dict[tuple[int, int], float] = {}

    def expected(self, team: int, n: int, d: int) -> float:
        """The expected time, if time grows like n^2 d from the previous measurement; 0 for the first."""
        if not self.times[team]:
            return 0.0
        (n0, d0), seconds = list(self.times[team].items())[-1]
        return seconds * (n / n0) ** 2 * max(1.0, d / d0)

    def visit(self, n: int, d: int) -> None:
        calls: dict[str, Call] = {}
        timings: dict[str, Timing] = {}
        errors: dict[str, float | None] = {}
        runs = {threads_of(team): Options(team, self.quick) for team in self.teams}
        for team, (label, own) in zip(self.teams, runs.items(), strict=True):
            case = f"{self.name} N={n} d={d}, {label}"
            if (guess := self.expected(team, n, d)) > LONGEST:
                self.group.notes.append(f"{case}: left out, it would take about {guess:.0f} s")
                continue
            calls[label] = call = JOBS[self.name](own, n, d)
            start = time.perf_counter()
            found = call()
            timings[label] = Timing((time.perf_counter() - start,))
            errors[label] = error = error_of(self.name, found, n, d)
            if error is not None:
                self.group.check(case, error, BOUND)
        if calls and all(timing.minimum < ONCE for timing in timings.values()):
            timings = interleave(calls, rounds=3, budget=0.5 if self.quick else 2.0)
        for team, label in zip(self.teams, runs, strict=True):
            if label not in timings:
                continue
            self.times[team][n, d] = timings[label].minimum
            grown = None
            if team == self.teams[-1]:
                job = JOBS[self.name].__name__
                grown = peak_growth_mb("growth", job, runs[label], n=n, d=d)
                self.memory[n, d] = grown
            case = f"{self.name} N={n} d={d}, {label}"
            row = Row(case, "qkcore", timings[label], n * n, None, errors[label], grown)
            self.group.add(row)

    def series(self, over: str) -> list[dict[str, Any]]:
        """Series for the table and the figure, one for each number of threads; the last has the memory."""
        out = []
        for team in self.teams:
            times = self.times[team]
            at = [n if over == "N" else d for n, d in times]
            memory = [self.memory[key] for key in times] if team == self.teams[-1] else []
            seen = [(x, m) for x, m in zip(at, memory, strict=False) if m >= MEMORY_FLOOR_MB]
            slopes = {
                "time": exponent(larger_half(at), larger_half(list(times.values()))),
                "memory": exponent([x for x, _ in seen], [m for _, m in seen]),
            }
            out.append(
                {"job": self.name, "over": over, "threads": team, "sizes": at,
                 "time": list(times.values()), "memory": memory, "exponents": slopes}
            )  # fmt: skip
        return out


def figure(data: dict[str, Any], folder: Path) -> list[Path]:
    """Draws time against N, time against d and memory against N on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    drawn, axes = plt.subplots(1, 3, figsize=(12, 5.4), layout="constrained")
    most = max(data["threads"])
    panels = (
        ("N", "time", "number of points N", "time (s)", f"Time, d = {DIM}"),
        ("d", "time", "dimension d", "time (s)", f"Time, N = {data['points']}"),
        ("N", "memory", "number of points N", "growth of the resident peak (MB)",
         f"Memory, d = {DIM}, {threads_of(most)}"),
    )  # fmt: skip
    for axis, (over, what, xlabel, ylabel, title) in zip(axes, panels, strict=True):
        for series in data["series"]:
            values = series[what]
            if series["over"] != over or not values:
                continue
            colour, marker = STYLES[series["job"]]
            whole = series["threads"] == most
            if what == "memory":
                values = [max(v, MEMORY_FLOOR_MB) for v in values]
            slope = series["exponents"][what]
            fit = f"  ∝ {over}$^{{{slope:.2f}}}$" if slope is not None else ""
            axis.loglog(
                series["sizes"],
                values,
                color=colour,
                marker=marker,
                markersize=5,
                markerfacecolor=colour if whole else "white",
                linestyle="-" if whole else "--",
                label=f"{series['job']}{fit}" if whole else None,
            )
        handles, _ = axis.get_legend_handles_labels()
        if what == "memory":
            sizes = np.array(data["sizes"], float)
            handles += axis.loglog(
                sizes, 8e-6 * sizes**2, color="0.5", linewidth=1, label="one N × N matrix"
            )
            axis.axhline(MEMORY_FLOOR_MB, color="0.5", linewidth=1, linestyle=":")
            handles.append(
                Line2D(
                    [],
                    [],
                    color="0.5",
                    linestyle=":",
                    label=f"below {MEMORY_FLOOR_MB:g} MB: not told apart",
                )
            )
            axis.set_ylim(bottom=0.7 * MEMORY_FLOOR_MB)
        elif len(data["threads"]) > 1:
            handles.append(
                Line2D([], [], color="0.3", linestyle="--", marker="o", markerfacecolor="white",
                       markersize=5, label="dashed, empty: 1 thread")
            )  # fmt: skip
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        ticks = data["sizes"] if over == "N" else data["dimensions"]
        axis.set_xticks(ticks, [f"{x}" for x in ticks])
        axis.set_xticks([], minor=True)
        axis.grid(visible=True, which="major", color="0.9")
        # The legend is below the panel, where it hides no curve.
        axis.legend(
            handles=handles, fontsize=8, frameon=False, ncols=2, loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
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
        "The calls start from points in float64 and keep nothing of size N × N. N grows at d = "
        f"{DIM}, and d at N = {fixed}. A diffusion map is a whole fit of {EIGENVECTORS} eigenvectors; "
        "a bridge iteration is one row and one column update. Exponents are fitted by least squares "
        "on logarithms: those of time to the larger half of the sizes, those of memory to the sizes "
        f"where it is {MEMORY_FLOOR_MB:g} MB or more. One and two threads take turns; a call of more "
        "than a second is timed once; memory is that with all threads. Errors are those of a few "
        "rows against NumPy. The diffusion map is not measured over d: it takes too long from d = 8 "
        "on, and the reason is not known.",
    )
    threads = sorted({1, min(2, options.threads)})
    lines = ["| | over | threads | time | memory |", "|---|---|---:|---:|---:|"]
    found: list[dict[str, Any]] = []
    for over, grid in (
        ("N", [(n, DIM) for n in sizes]),
        ("d", [(fixed, d) for d in dimensions]),
    ):
        for name in JOBS if over == "N" else FOLLOWED_OVER_D:
            sweep = Sweep(group, options, name, threads)
            for n, d in grid:
                sweep.visit(n, d)
            for series in sweep.series(over):
                found.append(series)
                slopes, team = series["exponents"], series["threads"]
                shown = [f"{over}^{s:.2f}" if s is not None else "–" for s in slopes.values()]
                lines.append(f"| {name} | {over} | {team} | {shown[0]} | {shown[1]} |")
                if over == "N" and not quick:
                    report_targets(group, name, team, slopes)
    if not quick:
        lines += ["", "![Time and memory against N and d](growth.svg)"]
    group.extra["table"] = "\n".join(lines)
    group.extra["growth"] = data = {
        "series": found, "sizes": list(sizes), "dimensions": list(dimensions),
        "points": fixed, "threads": threads,
    }  # fmt: skip
    try:
        paths = figure(data, BENCH / "results" if quick else BENCH.parent / "docs")
        print(f"  figure: {', '.join(map(str, paths))}", flush=True)
    except ImportError:
        group.notes.append("no figure: matplotlib is not installed (pip install matplotlib)")
    return group


def report_targets(group: Group, name: str, team: int, slopes: dict[str, float | None]) -> None:
    suffix = f"{name}, {threads_of(team)}"
    # The number of iterations of a diffusion map varies.
    if slopes["time"] is not None and name != "diffusion map":
        group.at_most(f"{suffix}: exponent of time in N", slopes["time"], TIME_WANTED, "")
    if slopes["memory"] is not None:
        group.at_most(f"{suffix}: exponent of memory in N", slopes["memory"], MEMORY_WANTED, "")
