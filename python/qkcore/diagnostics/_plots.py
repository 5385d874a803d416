"""Figures of a report, drawn when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._plots import BLUE, GREEN, GREY, ORANGE, figure
from ._p_checks import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .report import Report


def draw(report: Report) -> Figure:
    """A panel per check that was computed."""
    painters = {"P0": _gate, "P1": _adequacy, "P2": _locking, "P3": _contraction, "P4": _alignment}
    shown = [c for c in report.checks if c.details]
    made = figure(4.2 * max(len(shown), 1), 3.6)
    axes = np.atleast_1d(np.asarray(made.subplots(1, max(len(shown), 1)), dtype=object))
    for ax, check in zip(axes, shown, strict=False):
        painters[check.name](ax, check.details)
        _label(ax, check)
    return made


def _label(ax: Axes, check: Check) -> None:
    ax.set_title(f"{check.name} {check.title}: {check.verdict}", fontsize=9)
    ax.tick_params(labelsize=8)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, frameon=False)


def _gate(ax: Axes, d: dict[str, Any]) -> None:
    y = np.asarray(d["by_layer"])
    ax.plot(y, color=BLUE, marker="o", ms=3, label="mean square change of a logit")
    ax.axhline(5 * float(np.median(y)), color=GREY, ls=":", label="5 medians")
    ax.set(xlabel="transition", ylabel="variation", yscale="log" if (y > 0).all() else "linear")


def _adequacy(ax: Axes, d: dict[str, Any]) -> None:
    ax.plot(d["realised"], color=BLUE, marker="o", ms=3, label="realised TV")
    ax.plot(d["budget"], color=ORANGE, ls="--", label="drift budget")
    ax.plot(d["defect_by_layer"], color=GREEN, ls="-.", label="missed by an Euler step")
    ax.set(xlabel="transition", ylabel="total variation", yscale="log")


def _locking(ax: Axes, d: dict[str, Any]) -> None:
    filled = np.asarray(d["counts"]) > 0
    edges = np.asarray(d["edges"])
    x = np.sqrt(np.maximum(edges[:-1], edges[1] / 10) * edges[1:])[filled]
    middle, low, high = (np.asarray(d[k])[filled] for k in ("median", "low", "high"))
    ax.fill_between(x, low, high, color=BLUE, alpha=0.25, label="quartiles")
    ax.plot(x, middle, color=BLUE, marker="o", ms=3, label="median TV")
    ax.plot(x, np.asarray(d["bound"])[filled], color=ORANGE, ls="--", label="bound (eq 23, sharp)")
    ax.set(xlabel="tail mass 1 - max p", ylabel="TV between layers", xscale="log", yscale="log")


def _contraction(ax: Axes, d: dict[str, Any]) -> None:
    bands = np.asarray(d["bands"])
    ax.fill_between(
        d["factors"], bands[:, 0], bands[:, 1], color=BLUE, alpha=0.25, label="95 % band"
    )
    ax.plot(d["factors"], d["gap"], color=BLUE, marker="o", ms=3, label="mean gap")
    ax.set(xlabel="temperature factor", ylabel="curvature gap 1 - kappa")


def _alignment(ax: Axes, d: dict[str, Any]) -> None:
    ax.plot(d["kinetic_by_layer"], color=ORANGE, ls="--", label="kinetic energy")
    ax.plot(d["by_layer"], color=BLUE, marker="o", ms=3, label="rotational energy")
    ax.set(xlabel="transition", ylabel="energy", yscale="log")
