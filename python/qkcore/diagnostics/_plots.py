"""Figures of a report, drawn when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._plots import BLUE, GREEN, GREY, ORANGE, RED, figure
from ._verdict import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .report import Report


def draw(report: Report) -> Figure:
    """A panel per check that was computed."""
    painters = {"P0": _gate, "P1": _adequacy, "P2": _locking, "P3": _contraction, "P4": _alignment}
    shown = [c for c in report.checks if c.details]
    made = figure(4.2 * max(len(shown), 1), 3.8)
    axes = np.atleast_1d(np.asarray(made.subplots(1, max(len(shown), 1)), dtype=object))
    for ax, check in zip(axes, shown, strict=False):
        painters[check.name](ax, check)
        _label(ax, check)
    return made


def _label(ax: Axes, check: Check) -> None:
    ax.set_title(f"{check.name} {check.title}: {check.verdict}", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, frameon=False)


def _whole(ax: Axes) -> None:
    """Transitions and layers are counted: no halves on the axis."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _limit(ax: Axes, check: Check, label: str) -> None:
    ax.axhline(check.threshold, color=RED, ls="--", lw=1, label=f"{label} {check.threshold:g}")


def _logarithmic(ax: Axes, axis: str, *series: Any) -> None:
    """A logarithmic scale where something is positive: few labels, which do not overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter

    every = np.concatenate([np.ravel(values) for values in series])
    every = every[np.isfinite(every) & (every > 0)]
    if not every.size:
        return
    getattr(ax, f"set_{axis}scale")("log")
    which = ax.xaxis if axis == "x" else ax.yaxis
    if every.max() < 100 * every.min():
        which.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        which.set_major_formatter("{x:g}")
    else:
        which.set_major_locator(LogLocator(10, numticks=6))
    which.set_minor_formatter(NullFormatter())


def _gate(ax: Axes, check: Check) -> None:
    d = check.details
    y = np.asarray(d["by_layer"])
    ax.plot(y, color=BLUE, marker="o", ms=3, label="a transition, mean of heads")
    summed = np.cumsum(d["worst_by_layer"])
    ax.plot(summed, color=ORANGE, ls=":", label="worst head, summed over depth")
    judged = f"judged: {d['S_bar']:.3g}"
    ax.plot(len(y) - 1, d["S_bar"], color=ORANGE, marker="D", ls="", ms=5, label=judged)
    _limit(ax, check, "gate")
    ax.set(xlabel="transition", ylabel="squared change of a logit")
    _logarithmic(ax, "y", y, [check.threshold])
    ax.set_ylim(top=20 * max(check.threshold, d["S_bar"]))  # room for the legend
    _whole(ax)


def _adequacy(ax: Axes, check: Check) -> None:
    d = check.details
    if "error_by_layer" not in d:
        ax.plot(d["realised"], color=BLUE, marker="o", ms=3, label="realised TV of a layer")
        ax.plot(d["budget"], color=ORANGE, ls="--", label="drift budget (eq 22)")
        ax.set(xlabel="transition", ylabel="total variation")
        _logarithmic(ax, "y", d["realised"], d["budget"])
        _whole(ax)
        return
    x = np.arange(1, len(d["error_by_layer"]) + 1)
    ax.plot(x, d["persistence_by_layer"], color=GREY, ls="--", label="standing still")
    ax.plot(x, d["time_by_layer"], color=ORANGE, ls="-.", label="mean drift, time only")
    ax.plot(x, d["error_by_layer"], color=BLUE, marker="o", ms=3, label="fitted flow")
    low, high = d["interval"]
    ax.plot(
        [],
        [],
        " ",
        label=f"skill {d['skill']:.2f} [{low:.2f}, {high:.2f}], wanted {check.threshold:g}",
    )
    ax.set(xlabel="layer", ylabel="TV from the held-out rows")
    ax.set_ylim(bottom=0)
    _whole(ax)


def _locking(ax: Axes, check: Check) -> None:
    d = check.details
    filled = np.asarray(d["counts"]) > 0
    edges = np.asarray(d["edges"])
    x = np.sqrt(np.maximum(edges[:-1], edges[1] / 10) * edges[1:])[filled]
    middle, low, high = (np.asarray(d[k])[filled] for k in ("median", "low", "high"))
    ax.fill_between(x, low, high, color=BLUE, alpha=0.25, label="quartiles")
    ax.plot(x, middle, color=BLUE, marker="o", ms=3, label="median TV of rows")
    bound = np.asarray(d["bound"])[filled]
    ax.plot(x, bound, color=ORANGE, ls="--", label="median bound of these rows (eq 23)")
    ax.set(xlabel="tail mass 1 - max p", ylabel="TV between layers")
    _logarithmic(ax, "x", x)
    _logarithmic(ax, "y", middle, bound)


def _contraction(ax: Axes, check: Check) -> None:
    d = check.details
    bands = np.asarray(d["bands"])
    ax.fill_between(
        d["factors"], bands[:, 0], bands[:, 1], color=BLUE, alpha=0.25, label="95 % band over pairs"
    )
    ax.plot(d["factors"], d["gap"], color=BLUE, marker="o", ms=3, label="mean gap")
    low, high = d["reduction_interval"]
    ax.plot([], [], " ", label=f"falls by {check.value:.2g} [{low:.2g}, {high:.2g}]")
    ax.set(xlabel="temperature factor", ylabel="curvature gap 1 - kappa")
    ax.set_ylim(bottom=0)


def _alignment(ax: Axes, check: Check) -> None:
    d = check.details
    if "by_layer" in d:
        y, error = np.asarray(d["by_layer"]), np.asarray(d["error_by_layer"])
        x = np.arange(len(y))
        ax.fill_between(
            x, y - 2 * error, y + 2 * error, color=BLUE, alpha=0.25, label="2 standard errors"
        )
        ax.plot(x, y, color=BLUE, marker="o", ms=3, label="rotation in the mean flow")
        ax.plot(
            x,
            d["explained_by_layer"],
            color=GREY,
            ls=":",
            label="motion that the mean flow explains",
        )
    if "control" in d:
        worst = float(np.nanmax(d["control"]))
        ax.axhline(worst, color=GREEN, ls="-.", lw=1, label="gradient fields, largest reading")
    if "jacobian" in d:
        ax.plot(d["jacobian"], color=ORANGE, marker="s", ms=3, ls="", label="layers' Jacobians")
    _limit(ax, check, "threshold")
    ax.set(xlabel="transition", ylabel="share of rotation")
    ax.set_ylim(-0.05, 1.3)
    _whole(ax)
