"""Figures and tables of the particles, and the paper's statements about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._covariances import in_words
from ._files import Table
from ._results import Claim, Listing, number

# Okabe and Ito's eight colours, each with its own dashes, so that colour is never the only difference.
LOOKS: dict[str, tuple[str, Any]] = {
    "softmax": ("#0072B2", "-"),
    "l2": ("#E69F00", "-"),
    "linear": ("#009E73", "--"),
    "linear centred": ("#000000", "--"),
    "sinkhorn": ("#D55E00", "-"),
    "exp": ("#CC79A7", "-."),
    "relu": ("#56B4E9", "-."),
    "sigmoid": ("#8C7A00", ":"),
}
NAMES = {"l2": "L2", "sinkhorn": "Sinkhorn", "relu": "ReLU"}
SCENES = {
    "collapse": "collapse, V = −A",
    "spread": "spread, V = A",
    "sphere": "on the circle, V = A",
}
VARIANTS = {
    "plain": "one head",
    "causal": "causal mask",
    "positions": "mask by position",
    "heads": "two heads",
}
BOUNDED = ("softmax", "l2", "sinkhorn", "sigmoid")
UNBOUNDED = ("linear", "linear centred", "exp", "relu")


def plot(folder: Path) -> list[Path]:
    """Draws clusters.png, radius.png, energy.png and points.png from series.csv and points.csv."""
    series, points = Table.read(folder / "series.csv"), Table.read(folder / "points.csv")
    runs = Table.read(folder / "runs.csv")
    ended = {(r["scene"], r["kind"], r["variant"]): r["status"] for r in runs.rows}
    return [
        _against_time(folder, "clusters", series, ended),
        _against_time(folder, "radius", series, ended),
        _against_time(folder, "energy", series, ended),
        _points(folder, points, ended),
    ]


def _against_time(folder: Path, measure: str, series: Table, ended: dict[Any, str]) -> Path:
    scenes = [
        s
        for s in SCENES
        if len(series.where(scene=s)) and not (measure == "radius" and s == "sphere")
    ]
    variants = [
        v
        for v in VARIANTS
        if len(series.where(variant=v))
        and not (measure == "energy" and v in ("causal", "positions"))
    ]
    made = figures.figure(3.5 * len(variants), 2.7 * len(scenes) + 0.5)
    grid = made.subplots(len(scenes), len(variants), squeeze=False)
    for axes_row, scene in zip(grid, scenes, strict=True):
        for axes, variant in zip(axes_row, variants, strict=True):
            here = series.where(scene=scene, variant=variant)
            _panel(axes, measure, scene, variant, here, ended)
    from matplotlib.lines import Line2D

    kinds = [k for k in LOOKS if any(r[measure] for r in series.where(kind=k).rows)]
    handles = [
        Line2D([], [], color=LOOKS[k][0], linestyle=LOOKS[k][1], label=_name(k)) for k in kinds
    ]
    if measure == "radius":
        handles.append(
            Line2D([], [], color="0.3", linewidth=3, alpha=0.35, label="R(t), theorem 3.1")
        )
    if any(status != "finished" for status in ended.values()):
        handles.append(
            Line2D([], [], color="0.3", marker="x", linestyle="", label="ended early: blew up")
        )
    made.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 3 * len(variants)),
        frameon=False,
        fontsize="small",
    )
    return figures.save(made, folder / f"{measure}.png")


def _panel(
    axes: Any, measure: str, scene: str, variant: str, table: Table, ended: dict[Any, str]
) -> None:
    labels = {
        "clusters": "clusters",
        "radius": "radius max |x|",
        "energy": "energy, rescaled",
    }
    for kind, (colour, dash) in LOOKS.items():
        rows = table.where(kind=kind)
        if not len(rows) or not rows.rows[0][measure]:
            continue
        t, value = rows["t"], rows[measure]
        if measure == "energy":
            value = (value - value[0]) / max(abs(value[-1] - value[0]), 1e-300)
        style = {"color": colour, "linestyle": dash, "linewidth": 1.4}
        axes.plot(
            t[1:],
            value[1:],
            drawstyle="steps-post" if measure == "clusters" else "default",
            **style,
        )
        if ended[scene, kind, variant] != "finished":
            axes.plot(t[-1:], value[-1:], "x", color=colour, markersize=6)
        if measure == "radius" and kind == "softmax" and rows.rows[0]["bound"]:
            known = [(float(r["t"]), float(r["bound"])) for r in rows.rows[1:] if r["bound"]]
            axes.plot(*zip(*known, strict=True), color="0.3", linewidth=3, alpha=0.35)
    axes.set_xscale("log")
    if measure != "energy":
        axes.set_yscale("log")
    if measure == "clusters":
        from matplotlib.ticker import FixedLocator, NullLocator

        axes.yaxis.set_major_locator(FixedLocator([1, 2, 3, 5, 10, 20, 50, 100, 200]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0.9)
    if measure == "radius":
        # The limits are not left to the bound, which is a hundred decades above the picture.
        least = min(float(r["radius"]) for r in table.rows if r["radius"])
        axes.set_ylim(least / 2, 1e4 if scene == "spread" else 20)
    figures.tidy(axes, "time t", labels[measure], f"{SCENES[scene]}; {VARIANTS[variant]}")


def _points(folder: Path, points: Table, ended: dict[Any, str]) -> Path:
    scenes = [s for s in SCENES if len(points.where(scene=s))]
    kinds = [k for k in LOOKS if len(points.where(kind=k))]
    made = figures.figure(1.75 * len(kinds), 2.0 * len(scenes) + 0.4)
    grid = made.subplots(len(scenes), len(kinds), squeeze=False)
    for i, scene in enumerate(scenes):
        for j, kind in enumerate(kinds):
            axes = grid[i, j]
            here = points.where(scene=scene, kind=kind, variant="plain")
            if not len(here):
                axes.set_visible(False)
                continue
            start, end = here.where(when="start"), here.where(when="end")
            # Points that spread are drawn relative to their radius.
            size = (
                max(float(np.hypot(end["x"], end["y"]).max()), 1e-300) if scene == "spread" else 1.0
            )
            axes.plot(start["x"], start["y"], ".", color="0.75", markersize=2, label="start")
            axes.plot(end["x"] / size, end["y"] / size, ".", color=LOOKS[kind][0], markersize=4)
            axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
            axes.set_aspect("equal")
            axes.tick_params(labelsize=6)
            status = ended[scene, kind, "plain"]
            figures.tidy(
                axes, "x / R" if scene == "spread" else "x", "y / R" if scene == "spread" else "y"
            )
            early = f"\n{status}" if status != "finished" else ""
            axes.set_title(_name(kind) + early, fontsize="small")
        grid[i, 0].set_ylabel(f"{SCENES[scene]}\n{grid[i, 0].get_ylabel()}")
    made.suptitle("one head: start (grey) and end; R is the radius at the end", fontsize="small")
    return figures.save(made, folder / "points.png")


def tables(folder: Path) -> list[Listing]:
    """Tables with a line for each run."""
    out = []
    runs = Table.read(folder / "runs.csv")
    for scene, title in SCENES.items():
        rows = [
            (
                _name(r["kind"]),
                VARIANTS[r["variant"]],
                r["n"],
                r["status"],
                _n(r["t_end"]),
                f"{r['clusters_start']} → {r['clusters_end']}",
                _n(r["t_formed"]),
                _n(r["radius_end"]),
                _n(r["bound_end"]),
                _n(r["energy_start"]),
                _n(r["energy_end"]),
            )
            for r in runs.where(scene=scene).rows
        ]
        if rows:
            head = (
                "field",
                "variant",
                "n",
                "status",
                "t",
                "clusters",
                "since t",
                "radius",
                "R(t)",
                "energy at 0",
            )
            out.append(Listing(title, (*head, "at the end"), tuple(rows)))
    return out


def _name(kind: str) -> str:
    return NAMES.get(kind, kind)


def _n(cell: str) -> str:
    return number(float(cell)) if cell else "–"


# ---- claims --------------------------------------------------------------------------------------


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """The statements of sections 1, 3 and 5, compared with the runs."""
    runs = [
        {"scene": scene, "kind": kind, "variant": variant, **r}
        for scene in SCENES
        for kind, by_variant in metrics.get(scene, {}).items()
        for variant, r in by_variant.items()
    ]
    out = [
        Claim(
            "Every run has a status",
            "TPDE-2",
            "–",
            f"{metrics['runs']} runs: {in_words(metrics['status'])}",
            "holds"
            if metrics["accounted_for"] == metrics["runs"] == len(runs)
            else "does not hold",
        )
    ]
    out += _radius(runs) + _no_bound(runs) + _energies(runs) + _clusters(runs)
    return out


def _radius(runs: list[dict[str, Any]]) -> list[Claim]:
    out = []
    for variants, statement, where in (
        (
            ("plain", "heads"),
            "Softmax, L2, Sinkhorn and sigmoid particles stay within R(t) = R(0) e^{t‖V‖}",
            "theorem 3.1",
        ),
        (("causal", "positions"), "Masked particles stay within R(t) too", "theorem 3.4"),
    ):
        here = [r for r in runs if r["radius_over_bound"] is not None and r["variant"] in variants]
        if not here:
            continue
        worst = max(here, key=lambda r: r["radius_over_bound"])
        early = [r for r in here if r["status"] != "finished"]
        fine = worst["radius_over_bound"] < 1 + 1e-6 and not early
        out.append(
            Claim(
                statement,
                where,
                "for all t",
                f"{len(here)} runs, radius at most {worst['radius_over_bound']:.8g} of R(t) after the start "
                f"({_name(worst['kind'])}, {worst['scene']}); "
                f"{len(early)} ended early",
                "holds" if fine else "does not hold",
            )
        )
    return out


def _no_bound(runs: list[dict[str, Any]]) -> list[Claim]:
    here = [r for r in runs if r["scene"] == "spread" and r["kind"] in UNBOUNDED]
    if not here:
        return []
    blew = [r for r in here if r["status"] == "blew up"]
    times = {
        k: min(r["t_end"] for r in blew if r["kind"] == k)
        for k in UNBOUNDED
        if any(r["kind"] == k for r in blew)
    }
    first = ", ".join(f"{_name(k)} from t = {t:.3g}" for k, t in times.items())
    return [
        Claim(
            "Exp, linear and ReLU attention are not covered: their support need not stay compact",
            "section 3.1",
            "open",
            f"V = A: {len(blew)} of {len(here)} runs blew up in finite time ({first or 'none'})",
            "holds"
            if len(times) == len({r["kind"] for r in here})
            else "holds in part"
            if blew
            else "does not hold",
        )
    ]


def _energies(runs: list[dict[str, Any]]) -> list[Claim]:
    out = []
    for kinds, statement, where in (
        (
            ("softmax",),
            "½∬exp(Ax·y) falls along softmax flows, A = Aᵀ, V = −A",
            "section 5.4 (erratum 28)",
        ),
        (("sinkhorn",), "F_ε falls along Sinkhorn flows, A = Aᵀ = −V", "section 5.2, eq 5.11"),
        (
            ("exp", "relu", "sigmoid", "linear"),
            "Unnormalised fields follow the gradient of ½Σ∬Φ(A_h x·y), Φ' the weight, any heads",
            "not in the paper",
        ),
    ):
        here = [r for r in runs if r["kind"] in kinds and r["energy_law"]]
        if not here:
            continue
        worst = max(r["energy_against_law"] for r in here)
        out.append(
            Claim(
                statement,
                where,
                "monotone (rises for V = A)",
                f"{len(here)} runs, largest step in the wrong direction {worst:.1e} of the whole change",
                "holds" if worst == 0 else "does not hold",
            )
        )
    return out


def _clusters(runs: list[dict[str, Any]]) -> list[Claim]:
    out = []
    collapse = [r for r in runs if r["scene"] == "collapse"]
    if collapse:
        one = [r for r in collapse if r["clusters_end"] == 1]
        rest = [
            f"{_name(r['kind'])} {VARIANTS[r['variant']]}: {r['clusters_end']}"
            for r in collapse
            if r not in one
        ]
        out.append(
            Claim(
                "Tokens gather like Gaussian laws: V = −A brings them to one point",
                "sections 1, 4.1",
                "clustering, shown for Gaussian laws",
                f"one cluster at the end of {len(one)} of {len(collapse)} runs"
                + (f"; {'; '.join(rest)}" if rest else ""),
                "holds" if not rest else "holds in part",
            )
        )
    sphere = [r for r in runs if r["scene"] == "sphere"]
    if sphere:
        softmax = [r for r in sphere if r["kind"] == "softmax" and r["variant"] == "plain"]
        cells = [
            f"{_name(r['kind'])}: {r['clusters_end']} (since t = {r['t_formed']:.3g})"
            for r in sphere
            if r["variant"] == "plain"
        ]
        out.append(
            Claim(
                "On the sphere, softmax tokens end in one cluster",
                "section 1, citing [27]",
                "one, t → ∞",
                f"clusters at t = {max(r['t_end'] for r in sphere):g}, one head: {', '.join(cells)}",
                "not tested"
                if not softmax
                else "holds"
                if softmax[0]["clusters_end"] == 1
                else "holds in part",
            )
        )
    return out
