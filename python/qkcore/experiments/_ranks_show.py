"""Figures 3 and 8 of TPDE, drawn so that no case is missing from a histogram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._covariances import in_words
from ._files import Table, read_json
from ._results import Claim, Listing

FIGURES = {"softmax": "figure3", "l2": "figure8"}
NAMES = {"softmax": "softmax", "l2": "L2"}
LABELS = {"identity": "V = I", "positive": "V = GᵀG", "normal": "V normal"}
WHO = {
    "ours": (figures.BLUE, "Dormand–Prince, every case"),
    "published": (figures.ORANGE, "published procedure"),
}
# Names in the figures for outcomes that have no rank.
OTHERS = {
    "not settled": "not\nsettled",
    "diverged": "di-\nverged",
    "blew up": "blew\nup",
    "indefinite": "left\ncone",
    "step limit": "step\nlimit",
    "above the limit": "above\nlimit",
    "unfinished": "un-\nfinished",
    "rank above ⌈d/2⌉": "rank\n> ⌈d/2⌉",
}


def plot(folder: Path) -> list[Path]:
    """Draws figure3.png and figure8.png from histogram.csv."""
    table = Table.read(folder / "histogram.csv")
    kinds = [k for k in FIGURES if len(table.where(kind=k))]
    return [_histograms(folder, kind, table.where(kind=kind)) for kind in kinds]


def _histograms(folder: Path, kind: str, table: Table) -> Path:
    values = [v for v in LABELS if len(table.where(values=v))]
    dimensions = sorted({int(r["d"]) for r in table.rows})
    made = figures.figure(4.0 * len(dimensions), 2.5 * len(values) + 0.5)
    grid = made.subplots(len(values), len(dimensions), squeeze=False)
    for axes_row, v in zip(grid, values, strict=True):
        for axes, d in zip(axes_row, dimensions, strict=True):
            _one(axes, table.where(values=v, d=str(d)), d, f"{NAMES[kind]}, d = {d}, {LABELS[v]}")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    made.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
    )
    return figures.save(made, folder / f"{FIGURES[kind]}.png")


def _one(axes: Any, table: Table, d: int, title: str) -> None:
    present = [f for f in OTHERS if len(table.where(fate=f))]
    places = [*map(str, range(d + 1)), *present]
    at = {fate: k + (0.6 if fate in OTHERS else 0) for k, fate in enumerate(places)}
    shown = [who for who in WHO if len(table.where(who=who))]
    width = 0.8 / len(shown)
    for k, who in enumerate(shown):
        colour, label = WHO[who]
        rows = table.where(who=who)
        beside = width * (k - (len(shown) - 1) / 2)
        x = [at[r["fate"]] + beside for r in rows.rows]
        heights = [int(r["count"]) for r in rows.rows]
        none = [r["fate"] in OTHERS for r in rows.rows]
        bars = axes.bar(x, heights, 0.95 * width, color=colour, label=label)
        axes.bar_label(bars, fontsize=6, padding=1)
        for bar, hatched in zip(bars, none, strict=True):
            if hatched:
                bar.set(alpha=0.55, hatch="///", edgecolor="white")
    axes.axvline(
        d // 2 + 0.5,
        color=figures.GREY,
        linestyle="--",
        linewidth=1,
        label="⌊d/2⌋, the paper's bound",
    )
    axes.set_xticks([at[p] for p in places], [OTHERS.get(p, p) for p in places], fontsize=7)
    axes.set_xlim(-0.6, max(at.values()) + 0.6)
    axes.margins(y=0.15)
    figures.tidy(axes, "rank of the limit  |  no limit", "cases", title)


def tables(folder: Path) -> list[Listing]:
    """Tables with one line for each field, V and dimension."""
    metrics = read_json(folder / "metrics.json")
    rows, theirs = [], []
    for kind, values, d, m in _each(metrics):
        name = (NAMES[kind], LABELS[values], d, str(m["n"]))
        ranks = ", ".join(f"{r}: {n}" for r, n in m["ours"]["ranks"].items()) or "–"
        rows.append(
            (
                *name,
                in_words(m["ours"]["status"]),
                ranks,
                str(m["floor"]),
                str(m["ours"]["above_floor"]),
                str(m["ours"]["above_ceil"]),
            )
        )
        p = m["published"]
        if p is not None:
            theirs.append(
                (
                    *name,
                    in_words(p["status"]),
                    str(p["shown"]),
                    str(p["left_out_by_rank"]),
                    str(p["projected"]),
                    str(p["same_rank"]),
                    str(p["lower_rank"]),
                )
            )
    head = ("field", "V", "d", "cases")
    out = [
        Listing(
            "Limits of all cases",
            (*head, "status", "rank: cases", "⌊d/2⌋", "above ⌊d/2⌋", "above ⌈d/2⌉"),
            tuple(rows),
        )
    ]
    if theirs:
        out.append(
            Listing(
                "The published procedure on the same cases",
                (
                    *head,
                    "status",
                    "in the histogram",
                    "left out by rank",
                    "projected",
                    "same rank as here",
                    "rank lower",
                ),
                tuple(theirs),
                "projected: a step made an eigenvalue negative, which was then set to 1e-14",
            )
        )
    return out


def _each(metrics: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any]]]:
    return [
        (kind, values, d, m)
        for kind in FIGURES
        for values, by_dimension in metrics.get(kind, {}).items()
        for d, m in by_dimension.items()
    ]


# ---- claims --------------------------------------------------------------------------------------


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """The statements of figures 3 and 8, compared with the counts."""
    out = [
        Claim(
            "Every case is accounted for",
            "figures 3, 8",
            "not stated; the published code leaves out runs that do not stop and ranks above ⌈d/2⌉",
            f"{metrics['accounted_for']} of {metrics['cases']} cases have a rank or a status",
            "holds" if metrics["accounted_for"] == metrics["cases"] else "does not hold",
        )
    ]
    for kind, figure in (("softmax", "figure 3"), ("l2", "figure 8")):
        for values in ("identity", "positive", "normal"):
            found = metrics.get(kind, {}).get(values)
            if found:
                out += _bounds(kind, values, found, figure)
        out += _published(kind, metrics.get(kind, {}), figure)
    return out


def _bounds(kind: str, values: str, found: dict[str, Any], figure: str) -> list[Claim]:
    limits = {d: sum(m["ours"]["ranks"].values()) for d, m in found.items()}
    n = sum(m["n"] for m in found.values())
    converged = sum(limits.values())
    above = {
        key: {d: m["ours"][key] for d, m in found.items()} for key in ("above_floor", "above_ceil")
    }

    def cells(key: str) -> str:
        return "; ".join(f"d = {d}: {above[key][d]} of {limits[d]} limits above" for d in found)

    def verdict(key: str) -> str:
        fine = [limits[d] > 0 and above[key][d] <= 0.02 * limits[d] for d in found]
        return "holds" if all(fine) else "holds in part" if any(fine) else "does not hold"

    name = f"{NAMES[kind]}, {LABELS[values]}"
    out = [
        Claim(
            f"{name}: limits have a rank of at most ⌊d/2⌋",
            f"{figure} and its caption",
            "at most ⌊d/2⌋",
            cells("above_floor") + " (erratum 27)",
            verdict("above_floor"),
        ),
        Claim(
            f"{name}: at most ⌈d/2⌉, the dimension of ker A",
            "proposition 4.4 (V = I)",
            "the multiplicity of 0",
            cells("above_ceil"),
            verdict("above_ceil"),
        ),
    ]
    if values != "identity":
        statuses: dict[str, int] = {}
        for m in found.values():
            for status, k in m["ours"]["status"].items():
                statuses[status] = statuses.get(status, 0) + k
        out.append(
            Claim(
                f"{name}: the flow converges for a random V",
                f"{figure}: random means independent normal entries (section 4.5)",
                "histograms of limits",
                f"{in_words(statuses)} of {n}",
                "holds"
                if converged > 0.98 * n
                else "does not hold"
                if converged < 0.5 * n
                else "holds in part",
            )
        )
    return out


def _published(kind: str, found: dict[str, Any], figure: str) -> list[Claim]:
    parts = [
        m["published"]
        for v in ("identity", "positive")
        for m in found.get(v, {}).values()
        if m["published"]
    ]
    if not parts:
        return []
    total = {
        k: sum(p[k] for p in parts)
        for k in (
            "shown",
            "left_out_by_rank",
            "projected",
            "same_rank",
            "lower_rank",
            "both_converged",
        )
    }
    n = int(np.sum([sum(p["status"].values()) for p in parts]))
    share = total["same_rank"] / max(1, total["both_converged"])
    return [
        Claim(
            f"{NAMES[kind]}: the published Euler steps give the ranks of the flow",
            f"{figure}, V = I and V = GᵀG",
            "implied",
            f"{total['shown']} of {n} cases in the histogram, {total['left_out_by_rank']} left out for "
            f"their rank; in {total['projected']} cases a step left the cone and was projected; of "
            f"{total['both_converged']} cases, {total['same_rank']} have the rank found by "
            f"Dormand–Prince and {total['lower_rank']} a lower one",
            "holds" if share > 0.98 else "holds in part" if share > 0.5 else "does not hold",
        )
    ]
