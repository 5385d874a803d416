"""Figures and tables of the image experiment, made from its files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import _figures as figures
from .._files import Table, read_json
from .._results import Listing, number

COLOURS = {"gaussian": figures.BLUE, "empirical": figures.GREEN, "model": figures.RED}
NAMES = {
    "gaussian": "exact score of the Gaussian",
    "empirical": "exact score of images",
    "model": "trained model",
}
OBSERVED = {"brightness": "mean pixel", "square": "mean square"}
SCHEMES = {"ddim": "DDIM / ancestral", "euler": "Euler(–Maruyama)"}


def plot(folder: Path) -> list[Path]:
    """Draws parity.png, weak_error.png, rotation.png and samples.png."""
    metrics = read_json(folder / "metrics.json")
    return [
        _parity(folder, metrics),
        _weak(folder, metrics),
        _rotation(folder, metrics),
        _samples(folder, metrics),
    ]


def _parity(folder: Path, metrics: dict[str, Any]) -> Path:
    """Figure 2a for every score. Columns: numbers of steps of the first scheme, then the other schemes."""
    rows = Table.read(folder / "parity.csv")
    first = metrics["first_scheme"]
    cases = list(dict.fromkeys((r["scheme"], r["steps"]) for r in rows.rows))
    cases.sort(key=lambda c: (c[0] != first, c[0], int(c[1])))
    made = figures.figure(3.6 * len(cases), 6.2)
    axes: Any = made.subplots(2, len(cases), sharex=True, sharey="row", squeeze=False)
    for j, (scheme, n_steps) in enumerate(cases):
        for i, name in enumerate(("tv", "ks")):
            at = axes[i][j]
            for score, colour in COLOURS.items():
                part = rows.where(score=score, scheme=scheme, steps=n_steps)
                if not len(part):
                    continue
                at.plot(part["t"], part[name], color=colour, label=NAMES[score], linewidth=1.6)
                at.plot(part["t"], part[f"{name}_critical"], ":", color=colour, linewidth=1.2)
            at.set_yscale("log")
            title = f"{SCHEMES.get(scheme, scheme)}, {n_steps} steps" if i == 0 else ""
            figures.tidy(
                at, "t" if i else "", "" if j else f"{name.upper()}, SDE against flow", title
            )
            at.set_xlim(1, 0)
    axes[0][0].plot([], [], ":", color=figures.GREY, label="95 % line of chance")
    axes[0][0].legend(fontsize="x-small", frameon=False)
    data = metrics["data"]
    made.suptitle(f"Parity of pooled pixels over time; {data['name']} stands in for CIFAR-10",
                  fontsize="medium")  # fmt: skip
    return figures.save(made, folder / "parity.png")


def _weak(folder: Path, metrics: dict[str, Any]) -> Path:
    """Figure 2b for both observables and every scheme."""
    rows = Table.read(folder / "weak_error.csv")
    schemes = list(metrics["weak"]["model"])
    made = figures.figure(4.8 * len(schemes), 8.2)
    axes: Any = made.subplots(2, len(schemes), sharex=True, squeeze=False)
    for j, scheme in enumerate(schemes):
        for i, observable in enumerate(OBSERVED):
            at = axes[i][j]
            for score, colour in COLOURS.items():
                part = rows.where(score=score, scheme=scheme, observable=observable)
                m = metrics["weak"][score][scheme][observable]
                label = f"{NAMES[score]}: {number(m['slope'])}"
                if m["low"] is not None:
                    label += f" [{number(m['low'])}, {number(m['high'])}]"
                at.errorbar(part["K"], part["error"], yerr=1.96 * part["standard_error"], fmt="o-",
                            color=colour, label=label, markersize=4, capsize=2)  # fmt: skip
                if np.isfinite(part["exact"]).all() and part["exact"].min() > 1e-12:
                    at.plot(part["K"], part["exact"], "x--", color=figures.GREY, linewidth=1,
                            label=f"Gaussian, no sampling error: {number(m['exact_slope'])}")  # fmt: skip
            ends = rows.where(score="model", scheme=scheme, observable=observable)
            K, e = ends["K"], ends["error"]
            at.plot(K, 2 * e[0] * K[0] / K, color="0.75", linewidth=1, label="slope −1")
            seen = rows.where(scheme=scheme, observable=observable)["error"]
            at.set_xscale("log", base=2)
            at.set_yscale("log")
            at.set_ylim(seen.min() / 4, 4 * seen.max())  # error bars may reach down to 0
            figures.headroom(at, 0.3)
            at.legend(fontsize="x-small", framealpha=0.85, edgecolor="none", loc="upper right")
            title = SCHEMES.get(scheme, scheme) if i == 0 else ""
            figures.tidy(at, "K" if i else "", f"Δ_K of the {OBSERVED[observable]}", title)
    return figures.save(made, folder / "weak_error.png")


def _rotation(folder: Path, metrics: dict[str, Any]) -> Path:
    """The energy, its two parts, and the asymmetry of the Jacobian against time and checkpoint."""
    rows = Table.read(folder / "rotation.csv")
    last = max(rows.where(score="model")["step"])
    made = figures.figure(12.5, 3.9)
    axes: Any = made.subplots(1, 3)
    for score, colour in COLOURS.items():
        part = rows.where(score=score)
        if score == "model":
            part = rows.where(score="model", step=str(int(last)))
        axes[0].plot(
            part["t"], part["energy"], "o-", color=colour, markersize=3, label=NAMES[score]
        )
        axes[1].plot(
            part["t"], part["rotation"], "o-", color=colour, markersize=3, label=NAMES[score]
        )
    for at, title in ((axes[0], "energy (scatter included)"), (axes[1], "rotation alone")):
        at.set_yscale("log")
        figures.tidy(at, "t", "⟨w, w⟩ / β", title)
    axes[0].legend(fontsize="x-small", frameon=False)
    shades = np.linspace(0.35, 1.0, len(metrics["checkpoints"]))
    for found, shade in zip(metrics["checkpoints"], shades, strict=True):
        part = rows.where(score="model", step=str(found["step"]))
        axes[2].plot(part["t"], part["asymmetry"], "o-", color=figures.RED, alpha=shade, markersize=3,
                     label=f"{found['step']} steps")  # fmt: skip
    axes[2].set_yscale("log")
    axes[2].legend(fontsize="x-small", frameon=False)
    figures.tidy(axes[2], "t", "share of |J|²", "antisymmetric part of the model's Jacobian")
    return figures.save(made, folder / "rotation.png")


def _samples(folder: Path, metrics: dict[str, Any]) -> Path:
    """Images of the data and of both flows; columns of one score share their seeds."""
    rows = Table.read(folder / "samples.csv")
    side = metrics["data"]["side"]
    kinds = list(dict.fromkeys(r["kind"] for r in rows.rows))
    pixels = [f"p{j}" for j in range(side * side)]
    count = max(len(rows.where(kind=k)) for k in kinds)
    made = figures.figure(1.9 + 0.75 * count, 0.78 * len(kinds) + 0.5)
    axes: Any = made.subplots(len(kinds), count, squeeze=False)
    for i, kind in enumerate(kinds):
        part = rows.where(kind=kind)
        for j in range(count):
            at = axes[i][j]
            at.set_xticks([])
            at.set_yticks([])
            at.spines[:].set_visible(False)
            if j < len(part):
                image = np.array([float(part.rows[j][p]) for p in pixels]).reshape(side, side)
                at.imshow(image, cmap="gray", vmin=0, vmax=1)
        axes[i][0].set_ylabel(kind, rotation=0, ha="right", va="center", fontsize="small")
    return figures.save(made, folder / "samples.png")


def tables(folder: Path) -> list[Listing]:
    """Tables of parity, weak error, rotational energy and checkpoints."""
    m = read_json(folder / "metrics.json")
    return [_parity_table(m), _true_table(m), _weak_table(m), _rotation_table(m), _quality_table(m)]


def _parity_table(m: dict[str, Any]) -> Listing:
    rows = [
        (NAMES[score], case.split("-")[0], str(f["steps"]), str(f["n_images"]), number(f["tv_max"]),
         number(f["tv_max_chance"]), number(f["tv_p_value"], 2), number(f["ks_max"]),
         number(f["ks_max_chance"]), number(f["ks_p_value"], 2), number(f["component_ks_max"]),
         number(f["component_ks_critical"]), number(f["sde_variation"]), number(f["ode_variation"]))
        for score, found in m["parity"].items() for case, f in found.items()
    ]  # fmt: skip
    return Listing(
        f"SDE against probability flow over {m['n_times']} times ({m['data']['name']}, in place of CIFAR-10)",
        ("score", "scheme", "steps", "images", "TV max", "chance", "p", "KS max", "chance", "p",
         "KS of components", "critical", "path SDE", "path flow"),
        tuple(rows),
        "chance: what two samplers of one law show at that time; p: for all times; components: largest "
        "over the leading principal components; path: its length relative to the root of the dimension",
    )  # fmt: skip


def _true_table(m: dict[str, Any]) -> Listing:
    rows = [
        (NAMES[score], case.split("-")[0], str(f["steps"]), *(
            number(f[f"{d}_{flow}_true_{how}"])
            for d in ("tv", "ks") for flow in ("sde", "ode") for how in ("mean", "max")))
        for score, found in m["parity"].items() for case, f in found.items()
    ]  # fmt: skip
    head = [f"{d} {flow}, {how}" for d in ("TV", "KS") for flow in ("SDE", "flow")
            for how in ("mean", "max")]  # fmt: skip
    return Listing(
        "Each sampler against the true law of a pixel, over the same times",
        ("score", "scheme", "steps", *head),
        tuple(rows),
    )


def _weak_table(m: dict[str, Any]) -> Listing:
    rows = [
        (NAMES[score], scheme, OBSERVED[name], number(f["slope"]),
         f"[{number(f['low'])}, {number(f['high'])}]", number(f["last_slope"]),
         number(f["exact_slope"]), str(f["in_noise"]))
        for score, found in m["weak"].items() for scheme, one in found.items() for name, f in one.items()
    ]  # fmt: skip
    return Listing(
        "Weak error by step doubling: slope of log Δ_K against log K",
        ("score", "scheme", "observable", "slope", "95 % BCa", "last two", "exact", "in noise"),
        tuple(rows),
        "exact: by the recursion of the moments, Gaussian only; in noise: errors below two standard errors",
    )


def _rotation_table(m: dict[str, Any]) -> Listing:
    def line(label: str, f: dict[str, Any]) -> tuple[str, ...]:
        cells = [
            f"{number(f[k]['mean'])} [{number(f[k]['low'])}, {number(f[k]['high'])}]"
            for k in ("energy", "scatter", "rotation")
        ]
        return (label, *cells, number(f["energy"]["share"]), number(f["asymmetry"], 2))

    found = m["rotation"]
    rows = [line(NAMES[s], found[s]) for s in ("gaussian", "empirical")]
    rows += [line(f"model, {step} steps", f) for step, f in found["checkpoints"].items()]
    return Listing(
        f"Rotational energy over {found['model']['n_times']} times, 95 % BCa over the times",
        ("score", "energy", "scatter", "rotation", "share of kinetic", "asymmetry of Jacobian"),
        tuple(rows),
        "energy = scatter + rotation; exact scores are gradients, so that their true energy is 0",
    )


def _quality_table(m: dict[str, Any]) -> Listing:
    rows = [
        (str(r["step"]), number(r["validation_loss"], 4), number(r["mmd2_sde"]), number(r["mmd2_ode"]))
        for r in m["checkpoints"]
    ]  # fmt: skip
    return Listing(
        f"Checkpoints of the model ({m['model']['parameters']} parameters)",
        ("steps", "held-out loss", "MMD² SDE", "MMD² flow"),
        tuple(rows),
        f"the exact Gaussian score's loss is {number(m['model']['gaussian_loss'], 4)}; other training images "
        f"score an MMD² of {number(m['mmd2_floor'])}",
    )
