"""Benchmarks of the C++ core without Python at every instruction-set level, by ``make bench-native``.

Each kernel's time is also given as a multiple of the least time that the rates of FMA, exp or memory allow;
the same program measures these rates at the same level.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import environment
from harness import BENCH, Group, Options

ROOT = BENCH.parent
LEVELS = ("v2", "v3", "v4")
TITLES = {
    "log_sum_exp": "log-sum-exp from points",
    "attention": "attention",
    "sweep_points": "Sinkhorn iteration from points",
    "sweep_dense": "Sinkhorn iteration from a matrix of scores",
    "sweep_stored": "Sinkhorn iteration, entries stored",
    "sweep_stored_single": "Sinkhorn iteration, entries stored in float32",
    "low_rank_14x14": "product of two experts of rank 14 with a vector",
    "symmetric_pack": "symmetric kernel, half of it taken",
    "symmetric_times_1": "symmetric kernel times 1 vector",
    "symmetric_times_8": "symmetric kernel times 8 vectors",
    "velocity": "velocities of particles, softmax",
    "gaussian_flow": "Gaussian flow, 20 Euler steps",
}
RATES = {"GFLOP_s": "FMA, GFLOP/s", "Gexp_s": "exp, G/s", "GB_s": "memory read, GB/s"}


class Figure(NamedTuple):
    """One benchmark at one level."""

    ms: float
    multiple: float  # multiple of the time that the limit allows
    limit: str
    spread: float | None  # standard deviation over mean of the repetitions


class Found(NamedTuple):
    """The results of one program; keys are (name, sizes, dtype, threads), and (dtype, threads) for rates."""

    figures: dict[tuple[str, str, str, int], Figure]
    rates: dict[tuple[str, int], dict[str, float]]
    failures: list[str]


def parts_of(name: str) -> tuple[str, str, str, int]:
    """``attention/N:4000/d:64/float32/threads:2/real_time`` as name, sizes, dtype and threads."""
    words = name.split("/")
    sizes = ", ".join(w.replace(":", " = ") for w in words if re.match(r"[Nd]:\d+$", w))
    dtype = next(w for w in words if w.startswith("float"))
    threads = next(int(w.split(":")[1]) for w in words if w.startswith("threads:"))
    return words[0], sizes, dtype, threads


def read(path: Path) -> Found:
    """Reads a file of Google Benchmark: medians if runs were repeated, and single runs otherwise."""
    found = Found({}, {}, [])
    spreads: dict[tuple[str, str, str, int], float] = {}
    limits: dict[tuple[str, str, str, int], dict[str, None]] = {}
    for run in json.loads(path.read_text())["benchmarks"]:
        key = parts_of(run["run_name"])
        if "label" in run:  # medians have no label if the repetitions found different limits
            limits.setdefault(key, {})[run["label"]] = None
        if run.get("error_occurred"):
            failure = f"{run['run_name']}: {run['error_message']}"
            if failure not in found.failures:
                found.failures.append(failure)
        elif key[0] == "limits":
            found.rates[key[2:]] = {name: run[name] for name in RATES}
        elif run.get("aggregate_name") == "cv":
            spreads[key] = run["real_time"]
        elif run.get("aggregate_name", "median") == "median":
            limit = " / ".join(limits[key])  # medians come after the runs from which they are made
            found.figures[key] = Figure(run["real_time"], run["x_limit"], limit, None)
    for key, spread in spreads.items():
        found.figures[key] = found.figures[key]._replace(spread=spread)
    return found


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value >= 1 else f"{value * 1e3:.3g} µs"


def limits_table(by_level: dict[str, Found]) -> list[str]:
    columns = sorted({key for found in by_level.values() for key in found.rates})
    head = [f"{dtype}, {team} thread{'s' if team > 1 else ''}" for dtype, team in columns]
    lines = ["| limit | level | " + " | ".join(head) + " |", "|---|---|" + "---:|" * len(head)]
    for rate, title in RATES.items():
        for level, found in by_level.items():
            cells = [
                f"{found.rates[key][rate]:.3g}" if key in found.rates else "–" for key in columns
            ]
            lines.append(f"| {title} | {level} | " + " | ".join(cells) + " |")
    return lines


def figures_table(by_level: dict[str, Found]) -> list[str]:
    head = [f"{level} | × limit" for level in by_level]
    lines = [
        "| kernel | dtype | threads | limit | " + " | ".join(head) + " |",
        "|---|---|---:|---|" + "---:|---:|" * len(head),
    ]
    keys = dict.fromkeys(key for found in by_level.values() for key in found.figures)
    for name, sizes, dtype, threads in keys:
        key = (name, sizes, dtype, threads)
        here = [found.figures.get(key) for found in by_level.values()]
        limit = " / ".join(dict.fromkeys(figure.limit for figure in here if figure))
        cells = [
            f"{milliseconds(figure.ms)} | {figure.multiple:.2f}" if figure else "– | –"
            for figure in here
        ]
        title = f"{TITLES.get(name, name)}, {sizes}"
        lines.append(f"| {title} | {dtype} | {threads} | {limit} | " + " | ".join(cells) + " |")
    return lines


def build_and_run(levels: list[str], quick: bool) -> str | None:
    """Builds and runs the programs; returns None, or a text that says why there are no results."""
    if shutil.which("make") is None:
        return "skipped: make is not installed"
    words = ["make", "bench-native", f"NATIVE_LEVELS={' '.join(levels)}"]
    # If make runs this program, it passes its own arguments on in the environment.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(
        [*words, f"ARGS={'--quick' if quick else ''}"],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0 or "WRONG ANSWER" in done.stdout:
        return None  # wrong answers are reported in the files
    print(done.stdout[-3000:], flush=True)
    if "Google Benchmark was not found" in done.stdout:
        return "skipped: Google Benchmark is not installed (Debian, Ubuntu: apt install libbenchmark-dev)"
    return f"skipped: `{' '.join(words)}` failed with status {done.returncode}"


def run(options: Options) -> Group:
    group = Group(
        "native",
        "The C++ core by itself",
        "Google Benchmark runs the core without Python; the table has medians of three repetitions. "
        '"× limit" is the time divided by the time that the limit allows. The same program measures '
        "the limits beside each benchmark, at the same level and number of threads. The limit FMA + "
        "exp counts the operations of scores and products and one exponential for each entry; the "
        "limit read is one read of what must come from memory. Where arithmetic and reading overlap, "
        "the longer of the two is taken; data that fit the cache can be read faster than that. The "
        "first table has the medians of the limits.",
    )
    levels = [level for level in LEVELS if environment.cpu_has(level)]
    if not levels:
        group.notes.append(
            "skipped: the native programs are built for x86-64 levels, and this is none"
        )
        return group
    problem = build_and_run(levels, options.quick)
    if problem is not None:
        group.notes.append(problem)
        return group
    by_level = {level: read(BENCH / "results" / f"native_{level}.json") for level in levels}
    lines = [*limits_table(by_level), "", *figures_table(by_level)]
    group.extra["table"] = "\n".join(lines)
    for level, found in by_level.items():
        group.failures += [f"{level}: {failure}" for failure in found.failures]
        wide = [f.spread for f in found.figures.values() if f.spread is not None]
        if wide:
            group.notes.append(
                f"{level}: repetitions differ by {100 * sorted(wide)[len(wide) // 2]:.0f} % (median of the "
                f"standard deviations), by {100 * max(wide):.0f} % at most"
            )
    group.notes += [
        f"{level}: not run, the processor lacks it" for level in LEVELS if level not in levels
    ]
    return group
