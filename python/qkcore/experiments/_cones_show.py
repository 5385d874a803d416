"""Figures 1, 2 and 4 to 7 of TPDE, and the paper's statements about them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._covariances import in_words
from ._files import Table, read_json
from ._results import Claim, Listing, number

NAMES = {"softmax": "softmax", "l2": "L2", "multi-head": "multi-head", "sinkhorn": "Sinkhorn"}
FATES = {
    "converged": (figures.BLUE, "converged"),
    "not settled": (figures.GREY, "not settled"),
    "diverged": (figures.ORANGE, "diverged, t → ∞"),
    "blew up": (figures.RED, "blew up, t finite"),
    "indefinite": ("#000000", "left the cone"),
    "step limit": ("#CC79A7", "step limit"),
}
CONES = {
    "figure1": ("1a", "1b", "1c", "1c2", "1d"),
    "figure4": ("1a", "4b", "4c"),
    "figure5": ("4b", "5b", "5c"),
    "figure7a": ("7a",),
}
SLICES = {"figure2": ("2a", "2b", "2c", "2d"), "figure6": ("2d", "6b", "6c"), "figure7b": ("7b",)}
TITLES = {
    "1a": "A + Aᵀ ≺ 0, V positive",
    "1b": "A + Aᵀ ⪯ 0 of rank 1, V = I",
    "4b": "A + Aᵀ ≺ 0, V positive",
    "1c": "rank 1, V = I, second head empty",
    "1c2": "rank 1, V = I, two heads",
    "1d": "A + Aᵀ indefinite",
    "5b": "A + Aᵀ ⪯ 0 of rank 1, V = I",
    "5c": "A + Aᵀ indefinite",
    "4c": "A + Aᵀ ≺ 0, V positive",
    "7a": "A + Aᵀ ≺ 0, V positive",
}


def plot(folder: Path) -> list[Path]:
    """Draws one figure for each figure of the paper, from trajectories.csv, paths.csv and metrics.json."""
    ends, paths = Table.read(folder / "trajectories.csv"), Table.read(folder / "paths.csv")
    panels = read_json(folder / "metrics.json")["panels"]
    drawn = []
    for names, draw, projection in ((CONES, _cone, "3d"), (SLICES, _slice, None)):
        for name, wanted in names.items():
            shown = [p for p in wanted if p in panels]
            if not shown:
                continue
            across = min(3 if draw is _cone else 4, len(shown))
            down = -(-len(shown) // across)
            made = figures.figure(4.2 * across + (0.8 if draw is _cone else 0), 4.1 * down)
            for k, panel in enumerate(shown):
                axes: Any = made.add_subplot(down, across, k + 1, projection=projection)
                draw(axes, panel, panels[panel], ends.where(panel=panel), paths.where(panel=panel))
            if draw is _cone:
                _colour_scale(made)
            else:
                _legend(made, [panels[p] for p in shown])
            drawn.append(figures.save(made, folder / f"{name}.png"))
    return drawn


def _curves(paths: Table) -> list[tuple[str, np.ndarray[Any, Any]]]:
    points = np.stack([paths["x"], paths["y"], paths["z"]], axis=1)
    which = [row["trajectory"] for row in paths.rows]
    starts = [0, *(i for i in range(1, len(which)) if which[i] != which[i - 1]), len(which)]
    return [(which[a], points[a:b]) for a, b in itertools.pairwise(starts)]


def _colour(y: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"]((y + 1) / 2)


def _cone(axes: Any, name: str, panel: dict[str, Any], ends: Table, paths: Table) -> None:
    top = 1.0
    angle, height = np.meshgrid(np.linspace(0, 2 * np.pi, 61), np.linspace(0, top, 8))
    axes.plot_surface(
        height * np.cos(angle), height * np.sin(angle), height, color="0.5", alpha=0.08, linewidth=0
    )
    ring = np.linspace(0, 2 * np.pi, 121)
    axes.plot(top * np.cos(ring), top * np.sin(ring), top, color="0.5", linewidth=0.8)
    for _, curve in _curves(paths):
        # Curves are cut where they leave the picture.
        inside = curve[: max(2, int(np.argmax(curve[:, 2] > 1.5)) or len(curve))]
        axes.plot(*inside.T, color=_colour(inside[0, 1]), linewidth=0.8, alpha=0.8)
    there = (ends["status"] == "converged") & (ends["z"] < 1.5)
    if there.any():
        at = [ends[c][there] for c in "xyz"]
        axes.scatter(*at, color=figures.RED, s=6, depthshade=False)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(0, top), xlabel="a − b", ylabel="2c", zlabel="a + b")
    # There are no ticks where two axes meet, because their numbers would overlap.
    axes.set(xticks=[-1, 0, 1], yticks=[-0.5, 0, 0.5], zticks=[0, 0.5, 1])
    axes.tick_params(labelsize=7, pad=-3)
    axes.tick_params(axis="z", pad=0)
    for one, pad in ((axes.xaxis, -7), (axes.yaxis, -6), (axes.zaxis, -3)):
        one.labelpad = pad
    axes.set_box_aspect((1, 1, 0.85), zoom=1.05)
    axes.view_init(elev=18, azim=-70)
    title = f"{name[:2]}  {NAMES[panel['field']]}: {TITLES.get(name, panel['matrices'])}"
    axes.set_title(f"{title}\n{in_words(panel['status'])}", fontsize="small", y=1.0)


def _colour_scale(made: Any) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), "viridis")
    shown = (-1, -0.5, 0, 0.5, 1)
    made.colorbar(scale, ax=made.axes, label="2c at the start", shrink=0.6, pad=0.05, ticks=shown)
    from matplotlib.lines import Line2D

    limits = Line2D([], [], marker="o", linestyle="", color=figures.RED, markersize=4)
    made.legend(
        [limits],
        ["limits of those that converge"],
        loc="outside lower center",
        frameon=False,
        fontsize="small",
    )


def _slice(axes: Any, name: str, panel: dict[str, Any], ends: Table, paths: Table) -> None:
    ring = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(ring), np.sin(ring), color=figures.GREY, linewidth=0.8)
    fates = dict(zip((r["trajectory"] for r in ends.rows), ends["status"], strict=True))
    for which, curve in _curves(paths):
        inside = curve / curve[:, 2:]
        axes.plot(*inside.T[:2], color=FATES[fates[which]][0], linewidth=0.7, alpha=0.7)
    z = ends["euler_z"]
    for status, (colour, _) in FATES.items():
        at = ends["status"] == status
        if at.any():
            axes.plot(
                ends["euler_x"][at] / z[at], ends["euler_y"][at] / z[at], ".", color=colour, ms=3
            )
    axes.set_aspect("equal")
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06))
    title = f"{name}  {NAMES[panel['field']]}\n{in_words(panel['status'])}"
    figures.tidy(axes, "(a − b) / trace", "2c / trace")
    axes.set_title(title, fontsize="small")


def _legend(made: Any, panels: list[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    seen = [s for s in FATES if any(s in p["status"] for p in panels)]
    handles = [Line2D([], [], color=FATES[s][0], label=FATES[s][1]) for s in seen]
    ends = "where the paper's Euler steps ended"
    handles.append(Line2D([], [], color="0.3", marker=".", linestyle="", label=ends))
    made.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 2 * len(panels)),
        frameon=False,
        fontsize="small",
    )


def tables(folder: Path) -> list[Listing]:
    """Tables of the panels with their counts, and of the random fields."""
    metrics = read_json(folder / "metrics.json")
    rows = [
        (
            name,
            NAMES[p["field"]],
            p["matrices"],
            str(p["n"]),
            in_words(p["status"]),
            in_words(p["euler_status"]),
            ", ".join(f"{r}: {n}" for r, n in p["ranks"].items()) or "–",
            "–".join(number(t) for t in p["blow_up_time"]) or "–",
        )
        for name, p in metrics["panels"].items()
    ]
    first = Listing(
        "All trajectories, by panel",
        (
            "panel",
            "field",
            "matrices",
            "n",
            "status",
            "the paper's Euler steps",
            "ranks of limits",
            "blow-up times",
        ),
        tuple(rows),
        "status: Dormand–Prince up to the horizon; panel 1c2 is 1c with a second head that is not empty",
    )
    draws = [
        (NAMES[f], v, str(d["n"]), in_words(d["status"]), number(d["largest_trace"], 2))
        for f, by_values in metrics["random_fields"].items()
        for v, d in by_values.items()
    ]
    second = Listing(
        "A + Aᵀ ≺ 0, V random",
        ("field", "V", "n", "status", "largest trace of the converged"),
        tuple(draws),
    )
    return [first, second]


# ---- claims --------------------------------------------------------------------------------------


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """The statements of section 4.5 and C.2, compared with the counts."""
    panels = metrics["panels"]
    out = [
        Claim(
            "Every trajectory is accounted for",
            "figures 1, 2, 4–7",
            "not said",
            f"{metrics['accounted_for']} of {metrics['trajectories']} trajectories have a status",
            "holds" if metrics["accounted_for"] == metrics["trajectories"] else "does not hold",
        )
    ]
    for build in (
        _to_zero,
        _any_values,
        _sinkhorn,
        _to_a_line,
        _to_a_plane,
        _two_lines,
        _explosions,
        _mixed,
        _similar,
        _low_rank,
    ):
        out += build(metrics, panels)
    return out


def _all(panel: dict[str, Any], *statuses: str) -> bool:
    return bool(sum(panel["status"].get(s, 0) for s in statuses) == panel["n"])


def _verdict(flags: list[bool]) -> str:
    return "holds" if all(flags) else "holds in part" if any(flags) else "does not hold"


def _counts(panels: dict[str, Any], names: Sequence[str]) -> str:
    return "; ".join(
        f"{n} {NAMES[panels[n]['field']]}: {in_words(panels[n]['status'])}" for n in names
    )


def _to_zero(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    names = [n for n in ("1a", "4b", "4c") if n in panels]
    if not names:
        return []
    small = max((panels[n]["trace"][1] for n in names if panels[n]["trace"]), default=None)
    flags = [_all(panels[n], "converged") and panels[n]["span"] == 0 for n in names]
    return [
        Claim(
            "A + Aᵀ ≺ 0: all trajectories converge to 0 under softmax, multi-head and L2 attention",
            "section 4.5, item 1; figures 1 (a), 4, 5 (a)",
            "all to 0, for the V shown",
            f"{_counts(panels, names)}; largest trace at the end {number(small, 2)}, from 1",
            _verdict(flags),
        )
    ]


def _any_values(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    draws = metrics["random_fields"]
    parts = {
        v: "; ".join(
            f"{NAMES[f]}: {in_words(draws[f][v]['status'])}"
            for f in ("softmax", "multi-head", "l2")
        )
        for v in ("positive", "normal")
    }
    flags = [
        draws[f]["normal"]["status"].get("converged", 0) == draws[f]["normal"]["n"]
        for f in ("softmax", "multi-head", "l2")
    ]
    return [
        Claim(
            "… independently of V",
            "section 4.5, item 1",
            "for V random, i.i.d. Gaussian",
            f"V normal: {parts['normal']}. V = GGᵀ: {parts['positive']} (erratum 25)",
            _verdict(flags),
        )
    ]


def _sinkhorn(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    if "7a" not in panels:
        return []
    p = panels["7a"]
    to_zero = _all(p, "converged") and p["span"] == 0
    draws = metrics["random_fields"]["sinkhorn"]["positive"]
    return [
        Claim(
            "A + Aᵀ ≺ 0: under Sinkhorn attention trajectories do not all converge to 0",
            "section 4.5, item 1; the caption of figure 7 (a) says the opposite",
            "text: they do not; caption: very similar to softmax",
            f"7a: {in_words(p['status'])}, largest trace {number(max(p['trace'], default=None), 2)}; "
            f"V = GGᵀ, random: {in_words(draws['status'])}",
            "does not hold" if to_zero else "holds",
        )
    ]


def _to_a_line(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    names = [n for n in ("1b", "5b") if n in panels]
    if not names:
        return []
    cells = [
        f"{n} {NAMES[panels[n]['field']]}: {in_words(panels[n]['status'])}, limits span {panels[n]['span']} "
        f"dimension, |QΣ| ≤ {number(panels[n]['off_kernel'], 2)}"
        for n in names
    ]
    return [
        Claim(
            "A + Aᵀ ⪯ 0 of rank 1: all trajectories converge to a line, softmax and L2",
            "section 4.5, item 2; figures 1 (b), 5 (b)",
            "a line (V = I in the caption, random in the text)",
            "; ".join(cells),
            _verdict([_all(panels[n], "converged") and panels[n]["span"] == 1 for n in names]),
        )
    ]


def _to_a_plane(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    names = [n for n in ("1c", "1c2") if n in panels]
    if not names:
        return []
    labels = {"1c": "second head empty, as in the published code", "1c2": "two heads, A of rank 1"}
    cells = [
        f"{labels[n]}: {in_words(panels[n]['status'])}, limits span {panels[n]['span']} dimensions"
        for n in names
    ]
    return [
        Claim(
            "The same with two heads: convergence to a plane",
            "section 4.5, item 3; figure 1 (c)",
            "a plane",
            "; ".join(cells),
            _verdict([_all(panels[n], "converged") and panels[n]["span"] == 2 for n in names]),
        )
    ]


def _two_lines(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    names = [n for n in ("1d", "5c") if n in panels]
    cells, flags = [], []
    for n in names:
        p = panels[n]
        cells.append(
            f"{n} {NAMES[p['field']]}: {in_words(p['status'])}; ranks of the limits "
            f"{', '.join(f'{r}: {c}' for r, c in p['ranks'].items()) or '–'}; "
            f"|uᵀ(A + Aᵀ)u| ≤ {number(p['off_isotropic'], 2)}"
        )
        flags.append(set(p["ranks"]) == {"1"} and p["off_isotropic"] < 0.05)
    if not names:
        return []
    return [
        Claim(
            "Limits of rank 1 lie where uᵀ(A + Aᵀ)u = 0: on two lines when A + Aᵀ is indefinite",
            "lemma 4.7; figures 1 (d), 5 (c)",
            "two lines",
            "; ".join(cells),
            _verdict(flags),
        )
    ]


def _explosions(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    out = []
    for names, statement, paper, statuses in (
        (
            ("2a", "2b"),
            "A + Aᵀ ≻ 0, V = I: softmax and multi-head explode in finite time",
            "finite time",
            ("blew up",),
        ),
        (
            ("2c",),
            "… and L2 attention diverges, but in infinite time",
            "well-posed, diverging",
            ("diverged",),
        ),
        (
            ("7b",),
            "… as Sinkhorn attention does",
            "very similar to softmax (caption); global (4.17, d = 1)",
            ("diverged",),
        ),
    ):
        here = [n for n in names if n in panels]
        if not here:
            continue
        times = [t for n in here for t in panels[n]["blow_up_time"]]
        when = f"; at t = {min(times):.3g} to {max(times):.3g}" if times else ""
        out.append(
            Claim(
                statement,
                "figure 2; figure 7 (b)" if names == ("7b",) else "figure 2",
                paper,
                _counts(panels, here) + when,
                _verdict([_all(panels[n], *statuses) for n in here]),
            )
        )
    return out


def _mixed(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    names = [n for n in ("2d", "6b", "6c") if n in panels]
    if not names:
        return []
    flags = []
    for n in names:
        status = panels[n]["status"]
        gone = "diverged" if panels[n]["field"] == "l2" else "blew up"
        flags.append(
            status.get("converged", 0) > 0
            and status.get(gone, 0) > 0
            and status.get("converged", 0) + status.get(gone, 0) == panels[n]["n"]
        )
    return [
        Claim(
            "A + Aᵀ indefinite: some starts converge, others blow up (softmax, multi-head) or diverge (L2)",
            "figures 2 (d), 6",
            "both",
            _counts(panels, names),
            _verdict(flags),
        )
    ]


def _similar(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    out = []
    for pairs, statement, where in (
        (
            ("1a 4b", "1b 5b", "1d 5c"),
            "L2 attention looks extremely similar to softmax",
            "figure 5",
        ),
        (
            ("2d 6c",),
            "Multi-head attention is very similar to softmax where only some trajectories converge",
            "figure 6",
        ),
    ):
        here = [p for p in pairs if p in metrics["similarity"]]
        if not here:
            continue
        found = [metrics["similarity"][p] for p in here]
        cells = [
            f"{p.replace(' ', ' and ')}: same fate for {s['same_fate']} of {s['n']}, limits apart by "
            f"{number(s['median_distance'], 2)} (median), "
            f"{number(s['largest_distance'], 2)} (largest), starts have trace 1"
            for p, s in zip(here, found, strict=True)
        ]
        flags = [
            s["same_fate"] >= 0.95 * s["n"] and (s["median_distance"] or 0) < 0.1 for s in found
        ]
        out.append(Claim(statement, where, "similar", "; ".join(cells), _verdict(flags)))
    return out


def _low_rank(metrics: dict[str, Any], panels: dict[str, Any]) -> list[Claim]:
    limits = {n: p["ranks"] for n, p in panels.items() if p["ranks"]}
    total = sum(sum(r.values()) for r in limits.values())
    full = {n: r["2"] for n, r in limits.items() if "2" in r}
    where = ", ".join(f"{k} in {n}" for n, k in full.items())
    return [
        Claim(
            "When the dynamics are well posed they converge to a low-dimensional subspace",
            "section 4.5",
            "generically",
            f"{total - sum(full.values())} of {total} limits are of rank 0 or 1"
            + (f"; of rank 2: {where}" if full else ""),
            "holds" if not full else "holds in part",
        )
    ]
