"""Draws figures from the CSV files: P0 to P4 by model, regimes and sinks by head, profiles over depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import _figures as figures
from .._files import Table, read_json

PALETTE = (figures.BLUE, figures.RED, figures.GREEN, figures.ORANGE, "#CC79A7", "#56B4E9")
Row = dict[str, Any]


def plot(folder: Path) -> list[Path]:
    """Draws diagnostics.png, regimes.png and depth.png."""
    models: dict[str, Row] = read_json(folder / "metrics.json")["models"]
    shown = [n for n in models if not n.endswith("-shuffled")]
    return [
        _diagnostics(folder, models, shown),
        _regimes(folder, models, shown),
        _depth(folder, models, shown),
    ]


def _by(table: Table, key: str, value: str) -> tuple[Any, Any]:
    """Sorted keys, and values (groups, members), where all rows with the same key are a group."""
    keys, values = table[key], table[value]
    found = np.unique(keys)
    return found, [values[keys == k] for k in found]


def _bands(axes: Any, x: Any, groups: list[Any], colour: str, label: str, **style: Any) -> None:
    """Draws medians with quartiles."""
    low, middle, high = (
        np.array([np.nanquantile(g, q) for g in groups]) for q in (0.25, 0.5, 0.75)
    )
    axes.plot(x, middle, color=colour, label=label, **style)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _diagnostics(folder: Path, models: dict[str, Row], shown: list[str]) -> Path:
    """A column for each model and a row for each check, so that the figure is narrow enough for a page."""
    moves, bins = Table.read(folder / "transitions.csv"), Table.read(folder / "locking.csv")
    gaps, turn = Table.read(folder / "curvature.csv"), Table.read(folder / "rotation.csv")
    evi = Table.read(folder / "evi.csv")
    made = figures.figure(3.0 * len(shown) + 2.2, 15)
    grid = made.subplots(6, len(shown), squeeze=False)
    for column, name in zip(grid.T, shown, strict=True):
        part = moves.where(model=name)
        _gate_panel(column[0], part, models[name], name)
        _motion_panel(column[1], part)
        _locking_panel(column[2], bins.where(model=name))
        _gap_panel(column[3], gaps.where(model=name))
        _evi_panel(column[4], evi.where(model=name))
        _turn_panel(column[5], turn, name, models[name])
        for k in (0, 1, 3, 4, 5):
            _whole(column[k])
    for row in grid:
        for axes in row[1:]:
            axes.set_ylabel("")
        handles: dict[str, Any] = {}
        for axes in row:
            found = axes.get_legend_handles_labels()
            handles |= dict(zip(found[1], found[0], strict=True))
        row[-1].legend(
            handles.values(),
            handles,
            fontsize="small",
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )
    return figures.save(made, folder / "diagnostics.png")


def _gate_panel(axes: Any, part: Table, model: Row, name: str) -> None:
    at, groups = _by(part, "layer", "square")
    _bands(axes, at + 1, groups, figures.BLUE, "one layer: median\nand quartiles of heads")
    axes.plot(at + 1, _worst_head(part), color=figures.RED, label="summed, worst head\n(judged)")
    axes.axhline(0.15, color=figures.GREY, linestyle="--", linewidth=1, label="gate, 0.15")
    axes.set_yscale("log")
    figures.plain_log(axes)
    kind = "" if model["about"]["trained"] else " (random weights)"
    figures.tidy(axes, "layer", "mean (Δz)²")
    axes.set_title(f"{name}{kind}\nP0: variation of logits", fontsize="medium")


def _worst_head(part: Table) -> Any:
    """Sums over depth of the head that varies most, mean over passages."""
    layer, head, passage, square = (part[c] for c in ("layer", "head", "passage", "square"))
    sums = []
    for p in np.unique(passage):
        of = passage == p
        table = np.zeros((int(layer.max()) + 1, int(head.max()) + 1))
        table[layer[of].astype(int), head[of].astype(int)] = square[of]
        sums.append(np.cumsum(table, axis=0)[:, table.sum(axis=0).argmax()])
    return np.mean(sums, axis=0)


def _motion_panel(axes: Any, part: Table) -> None:
    for column, colour, label in (
        ("budget", figures.GREY, "budget ½‖Δz‖∞"),
        ("tv", figures.BLUE, "realised TV"),
        ("defect", figures.RED, "missed by Euler"),
    ):
        at, groups = _by(part, "layer", column)
        _bands(axes, at + 1, groups, colour, label)
    axes.set_yscale("log")
    figures.plain_log(axes)
    figures.tidy(axes, "layer", "total variation", "P1: motion and its budget")


def _locking_panel(axes: Any, part: Table) -> None:
    _, edges = _by(part, "bin", "high_edge")
    _, rows = _by(part, "bin", "rows")
    x = np.array([e[0] for e in edges])
    used = np.array([r.sum() > 0 for r in rows])
    for column, colour, label in (
        ("bound", figures.GREY, "bound (sharp eq 23)"),
        ("median", figures.BLUE, "median TV, quartiles"),
    ):
        _, groups = _by(part, "bin", column)
        with np.errstate(all="ignore"):
            middle = np.array([np.nanmedian(g) if np.isfinite(g).any() else np.nan for g in groups])
        axes.plot(x[used], middle[used], "o-", markersize=3, color=colour, label=label)
    lows, highs = (_by(part, "bin", c)[1] for c in ("low", "high"))
    low = [np.nanmean(g) if np.isfinite(g).any() else np.nan for g in lows]
    high = [np.nanmean(g) if np.isfinite(g).any() else np.nan for g in highs]
    axes.fill_between(
        x[used],
        np.array(low)[used],
        np.array(high)[used],
        color=figures.BLUE,
        alpha=0.2,
        linewidth=0,
    )
    axes.axvline(0.1, color=figures.GREY, linestyle=":", linewidth=1, label="locked: to the left")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.05)
    figures.tidy(axes, "tail mass 1 − max p", "TV to the next layer", "P2: locking")


def _gap_panel(axes: Any, part: Table) -> None:
    warm = np.unique(part["temperature"])
    for k, t in enumerate(warm):
        rows = Table([r for r in part.rows if float(r["temperature"]) == t])
        at, groups = _by(rows, "layer", "gap")
        mean = np.array([g.mean() for g in groups])
        around = np.array([1.96 * g.std() / np.sqrt(len(g)) for g in groups])
        axes.plot(at + 1, mean, color=_shade(k, len(warm)), label=f"τ = {t:g}")
        low = np.maximum(mean - around, 1e-3 * mean)
        axes.fill_between(
            at + 1, low, mean + around, color=_shade(k, len(warm)), alpha=0.15, linewidth=0
        )
    axes.set_yscale("log")
    figures.plain_log(axes)
    figures.tidy(axes, "layer", "curvature gap 1 − κ", "P3: contraction (mean of heads, 95 %)")


def _shade(k: int, n: int) -> Any:
    """Shades from dark to light, which can be told apart without colour."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * k / max(n - 1, 1))


def _evi_panel(axes: Any, part: Table) -> None:
    at, groups = _by(part, "layer", "w2")
    middle, around = (np.array([f(g) for g in groups]) for f in (np.mean, np.std))
    axes.plot(at + 1, middle, color=figures.BLUE, label="mean ± sd of rows")
    axes.fill_between(
        at + 1,
        np.maximum(middle - around, 0),
        middle + around,
        color=figures.BLUE,
        alpha=0.2,
        linewidth=0,
    )
    axes.set_ylim(bottom=0)
    figures.tidy(axes, "layer", "Sinkhorn W₂² (positions²)", "P3, EVI: to the last layer's rows")


def _turn_panel(axes: Any, turn: Table, name: str, model: Row) -> None:
    number = f"{model['rotation']['number']}"
    part = turn.where(model=name, components=number)
    x, share, error = part["layer"] + 1, part["share"], part["error"]
    axes.fill_between(
        x, share - 2 * error, share + 2 * error, color=figures.BLUE, alpha=0.2, linewidth=0
    )
    axes.plot(
        x, share, "o-", markersize=3, color=figures.BLUE, label="the model,\n± 2 standard errors"
    )
    axes.plot(
        x, part["explained"], ":", color=figures.GREY, label="motion that the\nmean flow explains"
    )
    if model["rotation"]["control"] is not None:
        axes.axhline(
            model["rotation"]["control"],
            color=figures.GREEN,
            linestyle="-.",
            linewidth=1,
            label="gradient fields,\nlargest reading",
        )
    control = turn.where(model=f"{name}-shuffled", components=number)
    if len(control):
        axes.plot(
            control["layer"] + 1,
            control["share"],
            "--",
            color=figures.ORANGE,
            label="weights shuffled",
        )
    axes.set_ylim(-0.05, 1.05)
    figures.tidy(axes, "layer", "share of the mean flow", "P4: rotation")


def _whole(axes: Any) -> None:
    """Only whole numbers on the axis, which counts layers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _regimes(folder: Path, models: dict[str, Row], shown: list[str]) -> Path:
    heads = Table.read(folder / "heads.csv")
    heights = [_height(models[n]) for n in shown]
    made = figures.figure(12, sum(heights))
    for part, name in zip(_rows(made, heights), shown, strict=True):
        causal = models[name]["about"]["causal"]
        of = ": causal; the first two of its logits without the mask" if causal else ""
        part.suptitle(name + of, fontsize="medium")
        rows = heads.where(model=name)
        for axes, (column, title, unit) in zip(part.subplots(1, 3), HEAD_MAPS, strict=True):
            _head_map(part, axes, _matrix(rows, column), column, unit)
            axes.set_title(title, fontsize="medium")
    return figures.save(made, folder / "regimes.png")


def _rows(made: Any, heights: list[float]) -> list[Any]:
    """One subfigure for each model, so that its name can stand above its panels."""
    return list(made.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).ravel())


HEAD_MAPS = (
    ("entropy_production", "entropy production", "nats per step"),
    ("unbalanced", "unbalanced share of the flow", "share"),
    ("sink_first", "mass on the first token", "share"),
)


def _head_map(made: Any, axes: Any, table: Any, column: str, unit: str) -> None:
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator

    scale: Any = Normalize(0, 1)
    ticks: Any = (0, 0.5, 1)
    if column == "entropy_production":
        positive = table[np.isfinite(table) & (table > 0)]
        # Values below 1e-10 nats are rounding errors, and would take most of the range of colours.
        low, high = (positive.min(), positive.max()) if positive.size else (1e-10, 1.0)
        scale = LogNorm(max(low, 1e-10), max(high, 2e-10))
        table = np.where(table <= scale.vmin, scale.vmin, table)
        ticks = LogLocator(10, subs=(1, 2, 5) if high < 100 * low else (1,))
    image = axes.imshow(table, aspect="auto", cmap="viridis", interpolation="nearest", norm=scale)
    bar = made.colorbar(image, ax=axes, label=unit, shrink=0.9, pad=0.02, ticks=ticks)
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.minorticks_off()
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    layers, heads = table.shape
    step = max(1, layers // 10)
    axes.set_xticks(range(heads), [str(h + 1) for h in range(heads)], fontsize="x-small")
    axes.set_yticks(
        range(0, layers, step), [str(k + 1) for k in range(0, layers, step)], fontsize="x-small"
    )


def _height(model: Row) -> float:
    return float(np.clip(0.12 * model["about"]["layers"] + 1.9, 2.7, 6.0))


def _matrix(part: Table, column: str) -> Any:
    """(layers, heads) means over passages."""
    layer, head, value = (part[c] for c in ("layer", "head", column))
    value = np.where(np.isinf(value), np.nan, value)
    out = np.full((int(layer.max()) + 1, int(head.max()) + 1), np.nan)
    for k in range(out.shape[0]):
        for h in range(out.shape[1]):
            found = value[(layer == k) & (head == h)]
            found = found[np.isfinite(found)]
            if found.size:
                out[k, h] = found.mean()
    return out


def _depth(folder: Path, models: dict[str, Row], shown: list[str]) -> Path:
    """Draws medians over heads and passages, with quartiles."""
    layers, heads = Table.read(folder / "layers.csv"), Table.read(folder / "heads.csv")
    made = figures.figure(12.5, 7.6)
    grid = made.subplots(2, 3).ravel()
    panels: tuple[tuple[str, Table, str, str], ...] = (
        ("cosine", layers, "mean cosine of two tokens", "tokens cluster"),
        ("update", layers, "‖Δh‖ / ‖h‖", "update of a state by a layer"),
        ("entropy", heads, "entropy / its maximum", "entropy of attention rows"),
        ("sink_first", heads, "mean mass", "attention on the first token"),
        ("entropy_production", heads, "nats per step", "entropy production (causal: unmasked)"),
        ("probe_left", layers, "TV", "read-out: distance to the last layer's law"),
    )
    for axes, (column, table, label, title) in zip(grid, panels, strict=True):
        for k, name in enumerate(shown):
            for which, style in ((name, "-"), (f"{name}-shuffled", "--")):
                part = table.where(model=which)
                if which not in models or not len(part):
                    continue
                if table is heads:
                    part = Table([r for r in part.rows if r["head"] != "-1"])
                at, groups = _by(part, "layer", column)
                keep = np.array([np.isfinite(g).any() for g in groups])
                if not keep.any():
                    continue
                chosen = [g[np.isfinite(g)] for g, used in zip(groups, keep, strict=True) if used]
                x = at[keep] / max(models[which]["about"]["layers"], 1)
                colour = PALETTE[k % len(PALETTE)]
                if style == "-":
                    _bands(axes, x, chosen, colour, name)
                else:
                    axes.plot(x, [np.median(g) for g in chosen], style, color=colour, linewidth=1)
        if column in ("entropy_production", "update"):
            axes.set_yscale("log")
            figures.plain_log(axes)
        figures.tidy(axes, "depth / layers", label, title)
    from matplotlib.lines import Line2D

    handles, labels = grid[0].get_legend_handles_labels()
    if any(f"{name}-shuffled" in models for name in shown):
        handles.append(Line2D([], [], color=figures.GREY, linestyle="--", linewidth=1))
        labels.append("weights shuffled")
    made.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figures.save(made, folder / "depth.png")
