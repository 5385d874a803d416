"""Figure 2, curves of quality against steps, and the verdict on D.2's claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import _figures as figures
from .._files import Table, read_json
from .._results import Claim, Listing, number
from ._verdict import MEASURES

NAMES = {"mmd2": "MMD²", "chamfer": "Chamfer"}
# Numbers of section 5: the Chamfer distances after the paper's numbers of steps.
PAPER = {"amap": 5.30e-3, "dmap": 4.55e-3}


def plot(folder: Path) -> list[Path]:
    """Draws curves.png from evaluations.csv, and samples.png from data.csv and samples_*.csv."""
    made = [_curves(folder)]
    if any(folder.glob("samples_*.csv")):
        made.append(_clouds(folder))
    return made


def _curves(folder: Path) -> Path:
    rows = Table.read(folder / "evaluations.csv")
    schedule = Table.read(folder / "schedule.csv")
    floor = read_json(folder / "metrics.json")["floor"]
    variants = [v for v in ("corrected", "printed") if len(rows.where(variant=v))]
    made = figures.figure(12.5, 3.9)
    lines = {"corrected": "-", "printed": "--"}
    for k, measure in enumerate(MEASURES):
        axes: Any = made.add_subplot(1, 3, k + 1)
        for variant in variants:
            for model in ("amap", "dmap"):
                _one_curve(
                    axes, rows.where(variant=variant, model=model), measure, model, variant, lines
                )
        axes.axhline(floor[measure], color=figures.GREY, linewidth=1, linestyle=":")
        axes.text(0.02, floor[measure], "fresh data", color=figures.GREY, fontsize="small",
                  va="bottom", transform=axes.get_yaxis_transform())  # fmt: skip
        axes.set_xscale("log")
        if measure == "mmd2":  # unbiased, so it may be negative
            axes.set_yscale("symlog", linthresh=5e-4)
        else:
            axes.set_yscale("log")
        if k == 0:
            axes.legend(fontsize="small", frameon=False)
        figures.tidy(axes, "training steps", NAMES[measure], f"{NAMES[measure]} of samples")
    axes = made.add_subplot(1, 3, 3)
    for variant in lines:
        part = schedule.where(variant=variant)
        axes.plot(part["t"], part["alpha_bar"], lines[variant], color=figures.GREEN, label=variant)
    axes.set_ylim(0, 1)
    axes.legend(fontsize="small", frameon=False)
    figures.tidy(axes, "step t", "ᾱ after clipping", "schedule (erratum 3)")
    return figures.save(made, folder / "curves.png")


def _one_curve(
    axes: Any, rows: Table, measure: str, model: str, variant: str, lines: dict[str, str]
) -> None:
    if not len(rows):
        return
    steps = np.unique(rows["step"])
    values = [rows[measure][rows["step"] == s] for s in steps]
    colour = figures.COLOURS[model]
    label = f"{model.upper()}, {variant}"
    means = [float(np.mean(v)) for v in values]
    axes.plot(steps, means, "o" + lines[variant], color=colour, label=label, markersize=4)
    axes.fill_between(
        steps, [v.min() for v in values], [v.max() for v in values], color=colour, alpha=0.2
    )


def _clouds(folder: Path) -> Path:
    found = [("training data", folder / "data.csv")]
    for variant in ("corrected", "printed"):
        for model in ("amap", "dmap"):
            path = folder / f"samples_{model}_{variant}.csv"
            if path.exists():
                found.append((f"{model.upper()}, {variant}", path))
    made = figures.figure(3.1 * len(found), 3.3)
    for k, (title, path) in enumerate(found):
        table = Table.read(path)
        axes: Any = made.add_subplot(1, len(found), k + 1)
        x, height, z = (table[name] for name in "xyz")
        drawn = axes.scatter(x, z, c=height, s=1, cmap="viridis", vmin=-2, vmax=2)
        if outside := int(np.count_nonzero(np.maximum(np.abs(x), np.abs(z)) > 3)):
            title += f"\n({outside} of {len(table)} outside)"
        axes.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
        figures.tidy(axes, "x", "z", title)
    made.colorbar(drawn, ax=axes, label="y (height)")
    return figures.save(made, folder / "samples.png")


def tables(folder: Path) -> list[Listing]:
    """Tables of the measures by steps, and of the comparison by seed."""
    metrics = read_json(folder / "metrics.json")
    rows = []
    for variant, found in metrics["variants"].items():
        for model in ("amap", "dmap"):
            for step, m in found[model].items():
                cells = [_spread(m[name]) for name in (*MEASURES, "loss")]
                rows.append((variant, model.upper(), step, str(m["seeds"]), *cells))
    floor = metrics["floor"]
    first = Listing(
        f"Sample quality against steps, mean (lowest–highest seed), d_model = {metrics['d_model']}",
        ("variant", "model", "steps", "seeds", "MMD²", "Chamfer", "loss"),
        tuple(rows),
        f"new points of the roll have MMD² {number(floor['mmd2'])}, Chamfer {number(floor['chamfer'])}; "
        "Chamfer is the sum of both mean squared nearest distances",
    )
    compared = tuple(
        (variant, str(c["seed"]), NAMES[c["measure"]], str(c["amap_step"]), number(c["amap"]),
         number(c["dmap_same_step"]), str(c["dmap_step"]), number(c["dmap"]),
         str(c["dmap_reaches_at"] or "never"))
        for variant, found in metrics["variants"].items() for c in found["comparison"]
    )  # fmt: skip
    header = ("variant", "seed", "measure", "AMAP steps", "AMAP", "DMAP, same steps", "DMAP steps")
    second = Listing("Is DMAP slower?", (*header, "DMAP", "DMAP as good after"), compared)
    return [first, second] if compared else [first]


def _spread(m: dict[str, float]) -> str:
    text = number(m["mean"])
    if m["max"] > m["min"]:
        text += f" ({number(m['min'])}–{number(m['max'])})"
    return text


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """The two statements of section 5, for each variant that was run."""
    out = []
    for variant, found in metrics["variants"].items():
        rows = found["comparison"]
        if rows:
            out += [_slower(variant, rows), _level(variant, rows, metrics)]
    return out


def _enough(rows: list[dict[str, Any]]) -> bool:
    """Whether the results suffice for a verdict: three seeds, AMAP's steps, and DMAP trained until it was
    as good, or for three times as many steps."""
    return len({r["seed"] for r in rows}) >= 3 and all(
        r["amap_step"] >= 30_000
        and (r["dmap_reaches_at"] is not None or r["dmap_step"] >= 3 * r["amap_step"])
        for r in rows
    )


def _slower(variant: str, rows: list[dict[str, Any]]) -> Claim:
    """The claim holds if DMAP needed at least three times AMAP's steps, and fails if it needed no more."""
    cells, counts = [], []
    for measure in MEASURES:
        mine = [r for r in rows if r["measure"] == measure]
        reached = [r["dmap_reaches_at"] for r in mine]
        last = mine[0]["amap_step"]
        early = sum(s is not None and s <= last for s in reached)
        late = sum(s is not None and s >= 3 * last for s in reached)
        never = reached.count(None)
        cells.append(
            f"{NAMES[measure]}: DMAP was as good within AMAP's {last} steps for {early} of {len(mine)} "
            f"seeds, after at least three times as many for {late}, and not within "
            f"{max(r['dmap_step'] for r in mine)} for {never}"
        )
        counts.append((early, late + never, len(mine)))
    note = ""
    if not _enough(rows):
        verdict, note = (
            "not tested",
            " (a verdict needs 3 seeds, 3e4 steps of AMAP and more of DMAP)",
        )
    elif all(slow == n for _, slow, n in counts):
        verdict = "holds"
    elif all(fast == n for fast, _, n in counts):
        verdict = "does not hold"
    else:
        verdict = "holds in part"
    return Claim(
        f"DMAP needs six times the steps of AMAP to match it ({variant})",
        "section 5, D.2",
        "3e4 against 1.8e5 steps",
        "; ".join(cells) + note,
        verdict,
    )


def _level(variant: str, rows: list[dict[str, Any]], metrics: dict[str, Any]) -> Claim:
    mine = [r for r in rows if r["measure"] == "chamfer"]
    amap, dmap = (float(np.mean([r[m] for r in mine])) for m in ("amap", "dmap"))
    steps = mine[0]["amap_step"], max(r["dmap_step"] for r in mine)
    floor = metrics["floor"]["chamfer"]
    full = steps[0] >= 30_000 and steps[1] >= 180_000
    close = amap < 2 * PAPER["amap"] and dmap < 2 * PAPER["dmap"]
    return Claim(
        f"Samples lie on the roll: Chamfer of AMAP and of DMAP after their steps ({variant})",
        "section 5",
        f"{PAPER['amap']:.3g} and {PAPER['dmap']:.3g}",
        f"{amap:.3g} after {steps[0]} and {dmap:.3g} after {steps[1]} steps (mean of {len(mine)} seeds; "
        f"new data {floor:.3g})",
        ("holds" if close else "does not hold") if full else "not tested",
    )
