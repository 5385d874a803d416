"""Figures and tables of the two flows of the ISB poster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._files import Table, read_json
from ._results import Listing, number

COLOURS = (figures.BLUE, figures.RED, figures.GREEN, figures.ORANGE, "#CC79A7")
MARKS = "osD^v"
MEASURES = {"w1": "W1", "w2": "W2", "density": "L1 of densities"}
STATES = {
    "total_w2": "total",
    "scheme_w2": "added by the scheme",
    "sampling_w2": "moved exactly",
}


def plot(folder: Path) -> list[Path]:
    """Draws flow.png, errors.png and particles.png from the CSV files."""
    metrics = read_json(folder / "metrics.json")
    return [
        figures.save(_flow(folder, metrics), folder / "flow.png"),
        figures.save(_errors(folder, metrics), folder / "errors.png"),
        figures.save(_particles(folder, metrics), folder / "particles.png"),
    ]


# ---- the poster's figure -------------------------------------------------------------------------


def _flow(folder: Path, metrics: dict[str, Any]) -> Any:
    densities, cloud = Table.read(folder / "densities.csv"), Table.read(folder / "cloud.csv")
    paths = Table.read(folder / "paths.csv")
    times = np.unique(densities["t"])
    made = figures.figure(3.1 * (len(times) + 1), 3.3)
    axes = made.subplots(1, len(times) + 1)
    x, t = densities["x"], densities["t"]
    seen = densities["exact"] > 1e-4
    limits = float(x[seen].min()), float(x[seen].max())
    tallest = 1.25 * float(densities["exact"].max())
    edges = np.linspace(*limits, 41)
    for ax, time in zip(axes, times, strict=False):
        of = t == time
        ax.hist(
            cloud["x"][cloud["t"] == time],
            edges,
            density=True,
            color=figures.BLUE,
            alpha=0.3,
            label=f"{metrics['figure']['n_particles']} particles",
        )
        order = np.argsort(x[of])
        ax.plot(x[of][order], densities["exact"][of][order], color="black", lw=2.6, label="exact")
        ax.plot(
            x[of][order],
            densities["scheme"][of][order],
            "--",
            color=figures.ORANGE,
            lw=1.6,
            label=f"bridges on a grid, ε = {metrics['figure']['epsilon']:g}",
        )
        ax.set(xlim=limits, ylim=(0, tallest))
        figures.tidy(ax, "x", "density" if time == times[0] else "", f"t = {time:g}")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    for path in np.unique(paths["path"]):
        of = paths["path"] == path
        axes[-1].plot(paths["t"][of], paths["x"][of], color=figures.BLUE, lw=0.6, alpha=0.7)
    figures.tidy(axes[-1], "t", "x", "paths of particles")
    return made


# ---- errors against epsilon ----------------------------------------------------------------------


def _errors(folder: Path, metrics: dict[str, Any]) -> Any:
    errors, one = Table.read(folder / "errors.csv"), Table.read(folder / "one_step.csv")
    over = Table.read(folder / "over_time.csv")
    made = figures.figure(13.5, 4.4)
    left, middle, right = made.subplots(1, 3)
    for k, name in enumerate(metrics["schemes"]):
        rows = errors.where(scheme=name)
        _line(
            left,
            rows["epsilon"],
            rows["w2_sup"],
            k,
            f"{name}: {_slope(metrics['schemes'][name]['w2_sup'])}",
        )
    figures.tidy(left, "ε", f"largest W2 error, t ≤ {metrics['T']:g}", "schemes, and their slopes")
    rows = errors.where(scheme=metrics["poster"])
    for k, (m, label) in enumerate(MEASURES.items()):
        text = f"{label}: {_slope(metrics['schemes'][metrics['poster']][f'{m}_sup'])}"
        _line(middle, rows["epsilon"], rows[f"{m}_sup"], k, text)
    for k, (against, label) in enumerate(
        [("euler", "one step, W2 to Euler's"), ("exact", "one step, W2 to the exact one")]
    ):
        of = one.where(against=against)
        text = f"{label}: {_slope(metrics['one_step'][against])}"
        _line(middle, of["epsilon"], of["w2"], k + 3, text, "--")
    figures.tidy(middle, "ε", "error", f"the poster's step ({metrics['poster']})")
    for ax in (left, middle):
        ax.legend(fontsize="x-small", frameon=False, loc="upper right")
        figures.ticks_at(ax, errors["epsilon"])
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    of = over.where(scheme=metrics["poster"])
    sizes = np.unique(of["epsilon"])
    for k, e in enumerate(sizes):
        rows_ = of["epsilon"] == e
        shade = 0.15 + 0.75 * k / max(1, len(sizes) - 1)
        right.semilogy(
            of["t"][rows_], of["w2"][rows_], color=_viridis(shade), label=f"ε = {e:g}", lw=1.6
        )
    right.legend(fontsize="x-small", frameon=False, ncols=2, loc="lower right")
    figures.tidy(right, "t", "W2 error", "over time")
    return made


def _viridis(value: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](value)


def _line(ax: Any, x: Any, y: Any, k: int, label: str, style: str = "-") -> None:
    k %= len(COLOURS)
    ax.loglog(
        x, y, style, marker=MARKS[k], color=COLOURS[k], label=label, markersize=5, linewidth=1.2
    )


def _slope(found: dict[str, Any]) -> str:
    if found["slope"] is None:
        return "no slope"
    return f"{found['slope']:.2f} ± {(found['high'] - found['low']) / 2:.2f}"


# ---- particles -----------------------------------------------------------------------------------


def _particles(folder: Path, metrics: dict[str, Any]) -> Any:
    rows = Table.read(folder / "particles.csv")
    draws = rows.where(start="draws")
    schemes = list(dict.fromkeys(draws["scheme"]))
    epsilons = np.unique(draws["epsilon"])
    made = figures.figure(4.3 * len(epsilons), 0.8 + 3.1 * len(schemes))
    grid = made.subplots(len(schemes), len(epsilons), squeeze=False, sharey=True)
    for axes, scheme in zip(grid, schemes, strict=True):
        for ax, epsilon in zip(axes, epsilons, strict=True):
            _against_n(ax, rows, scheme, float(epsilon))
            floor = metrics["schemes"][_on_a_grid(metrics, scheme)]["errors"].get(f"{epsilon:g}")
            if floor is not None:
                ax.axhline(floor["w2"], color="black", lw=1, ls=":", label="the step itself (grid)")
            figures.ticks_at(ax, draws["n"])
            label = "W2 error at the end" if epsilon == epsilons[0] else ""
            figures.tidy(ax, "particles N", label, f"{scheme}, ε = {epsilon:g}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return made


def _on_a_grid(metrics: dict[str, Any], scheme: str) -> str:
    """The name of the scheme on the grid that corresponds to this one on particles."""
    return scheme if scheme in metrics["schemes"] else str(metrics["poster"])


def _against_n(ax: Any, rows: Table, scheme: str, epsilon: float) -> None:
    for k, (m, label) in enumerate(STATES.items()):
        for start, style, fill in (("draws", "-", None), ("quantiles", "--", "white")):
            of = rows.where(scheme=scheme, start=start)
            n, value = of["n"], of[m]
            here = of["epsilon"] == epsilon
            numbers = np.unique(n[here])
            each = [value[here & (n == j)] for j in numbers]
            middle = np.array([np.mean(v) for v in each])
            text = f"{label} ({start})"
            ax.loglog(
                numbers, middle, style, marker=MARKS[k], color=COLOURS[k], mfc=fill, ms=5, lw=1.2,
                label=text,
            )  # fmt: skip
            if start == "draws":
                low, high = (np.array([f(v) for v in each]) for f in (np.min, np.max))
                ax.fill_between(numbers, low, high, color=COLOURS[k], alpha=0.15, lw=0)


# ---- tables --------------------------------------------------------------------------------------


def tables(folder: Path) -> list[Listing]:
    """Tables of errors, slopes and particles."""
    metrics = read_json(folder / "metrics.json")
    errors, particles = Table.read(folder / "errors.csv"), metrics["particles"]
    first = Listing(
        f"Largest error over t ≤ {metrics['T']:g} against the exact law, on a grid",
        ("scheme", "ε", "steps", "W1", "W2", "L1 of densities", "W2 at the end", "status"),
        tuple(
            (
                r["scheme"],
                number(float(r["epsilon"])),
                r["n_steps"],
                *(number(float(r[f"{m}_sup"])) for m in MEASURES),
                number(float(r["w2_end"])),
                r["status"],
            )
            for r in errors.rows
        ),
    )
    second = Listing(
        "Slopes of log error against log ε, with 95 % intervals",
        ("scheme", *MEASURES.values(), "W2 at the end"),
        (
            *(
                (
                    name,
                    *(_interval(found[f"{m}_sup"]) for m in MEASURES),
                    _interval(found["w2_end"]),
                )
                for name, found in metrics["schemes"].items()
            ),
            *(
                (f"one step against {name}", "–", _interval(found), "–", "–")
                for name, found in metrics["one_step"].items()
            ),
        ),
        "the errors are not random: an interval shows how straight the line is",
    )
    third = Listing(
        "Particles: W2 error at the end and its parts, means over the draws",
        ("scheme", "start", "ε", "N", *STATES.values(), "fresh draws", "self weight"),
        tuple(
            (
                g["scheme"],
                g["start"],
                number(g["epsilon"]),
                str(n),
                *(number(g[m][k]) for m in (*STATES, "fresh_w2", "self_weight")),
            )
            for g in particles
            for k, n in enumerate(g["n"])
        ),
        "moved exactly: error of the same particles when the exact map moves them; added by the scheme: "
        "distance between those and the particles that the scheme moved",
    )
    return [first, second, third]


def _interval(found: dict[str, Any]) -> str:
    if found["slope"] is None:
        return "–"
    return f"{found['slope']:.2f} ({found['low']:.2f}–{found['high']:.2f})"
