"""Figures and tables of the experiment `simplex-flow`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._files import Table
from ._results import Listing, number

COLOURS = (figures.BLUE, figures.GREEN, figures.ORANGE, figures.RED, figures.GREY)
MARKS = "osD^v"
LEAST = 1e-12  # tails tend to 0; smaller ones are not shown
POLICIES = {
    "certified": (figures.BLUE, "o"),
    "extrapolated": (figures.GREEN, "s"),
    "Frobenius norm (H.1)": (figures.RED, "^"),
}


def plot(folder: Path) -> list[Path]:
    """Draws locking.png and depth.png from the CSV files."""
    return [
        figures.save(_locking(folder), folder / "locking.png"),
        figures.save(_depth(folder), folder / "depth.png"),
    ]


def _locking(folder: Path) -> Any:
    flow, hot = Table.read(folder / "locking.csv"), Table.read(folder / "temperature.csv")
    moved = Table.read(folder / "perturbations.csv")
    made = figures.figure(13.5, 8.0)
    grid = made.subplots(2, 3)
    for k, tau in enumerate(np.unique(flow["tau"])):
        of = flow["tau"] == tau
        style: dict[str, Any] = {"color": COLOURS[k % 5], "label": f"τ = {tau:g}"}
        grid[0][0].semilogy(flow["t"][of], flow["tail"][of], **style)
        grid[0][1].loglog(flow["tail"][of], flow["operator_norm"][of], **style)
        grid[0][1].axhline(1 / (2 * tau), color=COLOURS[k % 5], ls=":", lw=1)
        grid[0][2].semilogy(flow["t"][of], flow["speed"][of], **style)
        style["label"] = "_"
        grid[0][2].semilogy(flow["t"][of], flow["speed_bound"][of], ls="--", lw=1, **style)
    grid[0][1].set_xlim(LEAST, 2)
    tail = np.geomspace(LEAST, 0.5)
    grid[0][1].loglog(
        tail, 2 * tail * (1 - tail), color="black", ls="--", lw=1, label="2δ(1 − δ), τ = 1"
    )
    grid[0][1].plot([], [], ":", color=figures.GREY, label="1/2τ")
    grid[0][2].plot([], [], "--", color=figures.GREY, lw=1, label="bound of eq 21")
    titles = (
        ("t", "tail δ = 1 − p_max (median)", "rows lock; higher τ later", "upper right"),
        ("tail δ", "‖J‖ (median)", "mobility vanishes with the tail", "lower right"),
        ("t", "speed ‖dp/dt‖₂ (median)", "and with it the speed", "upper right"),
    )
    for ax, (x, y, title, corner) in zip(grid[0], titles, strict=True):
        ax.set_ylim(LEAST, 5)
        figures.tidy(ax, x, y, title)
        ax.legend(fontsize="x-small", frameon=False, loc=corner)
    for k, gap in enumerate(np.unique(hot["gap"])):
        of = hot["gap"] == gap
        grid[1][0].loglog(
            hot["tau"][of], hot["operator_norm"][of], color=COLOURS[k % 5], label=f"gap {gap:g}"
        )
    of = hot["gap"] == hot["gap"][0]
    grid[1][0].loglog(hot["tau"][of], hot["bound"][of], ":", color=figures.GREY, label="1/2τ")
    grid[1][0].set_ylim(1e-6, 10)
    figures.tidy(grid[1][0], "temperature τ", "‖J‖", "two tokens: cooling freezes them")
    grid[1][0].legend(fontsize="x-small", frameon=False, loc="upper right")
    for ax, kind, title in (
        (grid[1][1], "random", "random changes of the logits"),
        (grid[1][2], "worst", "worst changes: eq 23 (α = 0) exceeded"),
    ):
        _perturbed(ax, moved.where(kind=kind))
        figures.tidy(ax, "tail δ", "total variation moved", title)
    return made


def _perturbed(ax: Any, rows: Table) -> None:
    for k, change in enumerate(np.unique(rows["change"])):
        of = rows["change"] == change
        at = rows["tail"][of]
        colour = COLOURS[k % 5]
        ax.fill_between(at, rows["tv_low"][of], rows["tv_high"][of], color=colour, alpha=0.2, lw=0)
        ax.loglog(at, rows["tv"][of], marker=MARKS[k], ms=4, color=colour, lw=0.8,
                  label=f"‖Δz‖ = {change:g}")  # fmt: skip
        ax.loglog(at, rows["sharp"][of], color=colour, lw=1.2)
        ax.loglog(at, rows["printed"][of], color=colour, lw=1.2, ls="--")
    ax.plot([], [], color=figures.GREY, label="median sharp bound of these rows")
    ax.plot([], [], "--", color=figures.GREY, label="eq 23, α = 0")
    ax.legend(fontsize="x-small", frameon=False, loc="upper left")


def _depth(folder: Path) -> Any:
    depth, jumps = Table.read(folder / "depth.csv"), Table.read(folder / "jumps.csv")
    start, left = Table.read(folder / "start.csv"), Table.read(folder / "early_exit.csv")
    held = Table.read(folder / "schedule.csv")
    made = figures.figure(13.5, 8.0)
    grid = made.subplots(2, 3)
    ax = grid[0][0]
    for name, label, colour, mark, style in (
        ("xi", "Ξ_L (eq 2)", figures.RED, "^", "--"),
        ("bound", "bound with its parts", figures.ORANGE, "s", "--"),
        ("error", "error, sup over t", "black", "o", "-"),
        ("error_at_layers", "error at the layers", figures.BLUE, "D", "-"),
        ("linear_error_at_layers", "the same, layers p + JΔz", figures.GREEN, "v", "-"),
    ):
        ax.loglog(depth["L"], depth[name], style, marker=mark, color=colour, label=label, ms=4.5)
    ax.axhline(2, color=figures.GREY, lw=1, ls=":", label="2: says nothing above")
    ax.set_ylim(bottom=ax.get_ylim()[0] / 300)  # room for the legend
    figures.ticks_at(ax, depth["L"])
    figures.tidy(ax, "layers L", "L1 error and bounds", "theorem 3.1")
    ax = grid[0][1]
    x = start["drift"]
    for name, label, colour, mark, style in (
        ("corrected", "e^Γ", figures.ORANGE, "s", "--"),
        ("printed", "e^Γ − 1, as printed", figures.RED, "^", "--"),
        ("growth", "measured", "black", "o", "-"),
    ):
        ax.plot(
            x, np.minimum(start[name], 1e4), style, marker=mark, color=colour, label=label, ms=5
        )
    ax.set_yscale("symlog", linthresh=0.1)
    ax.set_ylim(-0.02, 300)
    figures.tidy(ax, "size of the drift", "growth of an initial error", "theorem 3.1, the start")
    ax = grid[0][2]
    ax.semilogy(jumps["jump"], jumps["error_whole"], "^--", color=figures.RED, label="one flow")
    ax.semilogy(
        jumps["jump"], jumps["error_cut"], "o-", color=figures.BLUE, label="cut at jumps (K.2)"
    )
    figures.tidy(ax, "size of a jump", "L1 error of fitted flows", "segmentation")
    for name, (colour, mark) in POLICIES.items():
        of = left.where(policy=name)
        grid[1][0].loglog(of["tol"], of["largest_loss"], mark + "-", color=colour, label=name, ms=5)
        grid[1][1].semilogx(
            of["tol"], 100 * of["saved"], mark + "-", color=colour, label=name, ms=5
        )
    tol = np.unique(left["tol"])
    grid[1][0].loglog(tol, tol, "--", color="black", lw=1, label="what was allowed")
    for one in grid[1][:2]:
        figures.ticks_at(one, tol)
    figures.tidy(grid[1][0], "tolerance", "largest total variation lost", "early exit: the loss")
    figures.tidy(grid[1][1], "tolerance", "layers saved (%)", "early exit: the gain")
    ax = grid[1][2]
    ax.plot(held["layer"], held["entropy_fixed"], color=figures.RED, label="entropy, τ = 1")
    ax.plot(held["layer"], held["entropy_held"], color=figures.BLUE, label="entropy, τ by feedback")
    ax.plot(held["layer"], held["target"], ":", color=figures.GREY, label="target entropy")
    ax.plot(held["layer"], held["tau"], "--", color=figures.BLUE, label="τ")
    figures.tidy(ax, "layer", "nats; τ", "entropy schedule, growing logits")
    for row in grid:
        for one in row:
            corner = "lower left" if one is grid[0][0] else "upper left"
            one.legend(fontsize="x-small", frameon=False, loc=corner)
    return made


def tables(folder: Path) -> list[Listing]:
    """Tables on depth, eq 23 and early exit."""
    depth, left = Table.read(folder / "depth.csv"), Table.read(folder / "early_exit.csv")
    jumps, start = Table.read(folder / "jumps.csv"), Table.read(folder / "start.csv")

    def cells(table: Table, first: tuple[str, ...], *names: str) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (*(r[k] for k in first), *(number(float(r[k])) for k in names)) for r in table.rows
        )

    return [
        Listing(
            "Theorem 3.1 over depth",
            ("L", "error", "at layers", "bound", "Ξ_L", "C_BV", "S_L", "layers p + JΔz"),
            cells(depth, ("L",), "error", "error_at_layers", "bound", "xi", "C_BV", "S_L",
                  "linear_error_at_layers"),
        ),
        Listing(
            "Growth of an initial error",
            ("drift", "measured", "Γ", "e^Γ − 1, printed", "e^Γ"),
            cells(start, (), "drift", "growth", "gamma", "printed", "corrected"),
        ),
        Listing(
            "One jump in a stack",
            ("jump", "flags", "found", "S_L", "error cut", "error of one flow"),
            cells(jumps, (), "jump", "flags", "found", "S_L", "error_cut", "error_whole"),
        ),
        Listing(
            "Early exit",
            ("policy", "tolerance", "layers saved", "largest loss", "mean loss", "rows above it"),
            cells(left, ("policy",), "tol", "saved", "largest_loss", "mean_loss", "broken"),
        ),
    ]  # fmt: skip
