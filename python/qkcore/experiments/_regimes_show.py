"""Figure and tables of the regimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _figures as figures
from ._files import Table
from ._results import Claim, Listing, number

# Values that are exactly 0 are drawn at this height, because a logarithmic axis has no 0.
FLOOR = 1e-33


def plot(folder: Path) -> list[Path]:
    """Draws regimes.png from tilts.csv, asymmetry.csv and duality.csv."""
    tilts, asymmetry = Table.read(folder / "tilts.csv"), Table.read(folder / "asymmetry.csv")
    duality = Table.read(folder / "duality.csv")
    made = figures.figure(12.5, 4.2)
    left, middle, right = (made.add_subplot(1, 3, k + 1) for k in range(3))
    left.semilogy(
        tilts["spread_log_h"],
        np.maximum(tilts["relative_current"], FLOOR),
        "o",
        color=figures.BLUE,
        markersize=4,
        label="symmetric kernel, μ⁺ = μ⁻",
    )
    left.axhline(float(np.finfo(float).eps), color=figures.GREY, linewidth=1, linestyle="--")
    note: dict[str, Any] = {"fontsize": "small", "color": figures.GREY}
    eps = np.finfo(float).eps
    left.text(
        0.98, 2 * eps, "machine epsilon", transform=left.get_yaxis_transform(), ha="right", **note
    )
    left.set_ylim(1e-18, 10)
    left.legend(fontsize="small", frameon=False, loc="upper left")
    figures.tidy(
        left,
        "spread of log h (0: h constant)",
        "largest current / largest flow",
        "erratum 1: no current for any h",
    )
    a = asymmetry["asymmetry"]
    for name, colour, mark in (("attention", figures.RED, "o"), ("bridge", figures.GREEN, "s")):
        height = np.maximum(np.abs(asymmetry[f"{name}_entropy_production"]), FLOOR)
        label = {"attention": "attention A⁺", "bridge": "bridge, μ⁺ = μ⁻ random"}[name]
        middle.loglog(a[a > 0], height[a > 0], mark + "-", color=colour, label=label)
        for value in height[a == 0]:
            middle.axhline(value, color=colour, linewidth=1, linestyle=":", label="_")
    middle.set_ylim(FLOOR / 10, 10)
    middle.text(0.02, 0.2, "dotted: W symmetric", transform=middle.transAxes, **note)
    middle.legend(fontsize="small", frameon=False, loc="center right")
    figures.tidy(
        middle,
        "asymmetry a of W = S + aA",
        "entropy production (nats per step)",
        "steady currents need an asymmetric W",
    )
    phase = duality["phase"]
    right.loglog(phase, duality["relative_error"], "o-", color=figures.BLUE, label="measured")
    guide = duality["relative_error"][0] * (phase / phase[0]) ** 2
    right.loglog(phase, guide, "--", color=figures.GREY, label="second order")
    right.set_xticks(phase, [f"{p:g}" for p in phase])
    right.minorticks_off()
    right.legend(fontsize="small", frameon=False)
    figures.tidy(right, "γ max |F|", "relative error of eq 83", "attention's flux as phases")
    return [figures.save(made, folder / "regimes.png")]


def tables(folder: Path) -> list[Listing]:
    """Tables of the cases and of the duality."""
    cases, duality = Table.read(folder / "cases.csv"), Table.read(folder / "duality.csv")
    header = ("case", "section", "paper", "measured", "stationarity", "current / flow")
    rows = [
        (r["case"], r["where"], r["paper"], r["regime"],
         *(number(float(r[k]), 2) for k in ("stationarity", "relative_current", "entropy_production")))
        for r in cases.rows
    ]  # fmt: skip
    first = Listing("Regimes", (*header, "entropy production"), tuple(rows))
    names = ("phase", "relative_error", "signs_agree")
    second = Listing(
        "Attention's currents as magnetic phases (C.6)",
        ("γ max|F|", "error of the small-γ form", "signs that agree"),
        tuple(tuple(number(float(r[k])) for k in names) for r in duality.rows),
    )
    return [first, second]


def claims(metrics: dict[str, Any]) -> list[Claim]:
    """The statements of sections 4.1, 4.3 and C.6, compared with what was measured."""
    cases, first = metrics["cases"], metrics["erratum_1"]
    out = [
        Claim(
            "A generic non-constant h makes the bridge over a symmetric kernel a NESS",
            "section 4.1",
            "NESS",
            f"{first['bridges']} bridges with log h spread up to {first['largest_spread_of_log_h']:.2g}: all "
            f"{', '.join(first['regimes'])}; largest current {first['largest_relative_current']:.1e} of the "
            "largest flow (erratum 1)",
            "does not hold" if first["regimes"] == ["EQ"] else "holds in part",
        )
    ]
    for name, statement in (
        ("diffusion map P+", "The diffusion map is in equilibrium at π"),
        ("attention A+, W asymmetric", "Attention with an asymmetric W has steady currents"),
        ("attention A+, W symmetric", "Attention has steady currents even if W is symmetric, as K⁺ is not"),
        ("bridge, directed K, mu = nu = pi+", "The stationary bridge over the directed kernel is a NESS"),
        ("bridge, symmetric K, mu != nu", "Different marginals make a bridge non-stationary"),
    ):  # fmt: skip
        found = cases[name]
        out.append(
            Claim(
                statement,
                f"section {found['where']}",
                found["paper"],
                f"{found['regime']}, largest current {found['relative_current']:.1e} of the largest flow",
                "holds" if found["regime"] == found["paper"] else "does not hold",
            )
        )
    off = metrics["bridge_equals_attention"]["largest_difference"]
    errors = [r["relative_error"] for r in metrics["duality"]["errors"]]
    signs = min(r["signs_agree"] for r in metrics["duality"]["errors"])
    phases = [r["phase"] for r in metrics["duality"]["errors"]]
    outflow = [metrics["duality"][f"divergence_{name}"] for name in ("magnetic", "attention")]
    order = np.polyfit(np.log(phases), np.log(errors), 1)[0] if len(phases) > 1 else float("nan")
    out += [
        Claim(
            "With μ⁺ = μ⁻ = π⁺ the forward kernel of the bridge is A⁺",
            "section 4.3, C.7",
            "equal",
            f"largest difference {off:.1e}",
            "holds" if off < 1e-9 else "does not hold",
        ),
        Claim(
            "For small γ the magnetic current is γ π P F",
            "C.6, eq 83",
            "first order in γ",
            f"relative error {errors[-1]:.1e} at γ max|F| = {phases[-1]:g}, order {order:.2f}",
            "holds" if order > 1.9 else "not tested" if order != order else "does not hold",
        ),
        Claim(
            "Sign and cycle structure of the magnetic current mirror attention's current",
            "C.6",
            "mirrored",
            f"{100 * signs:.4g} % of the signs agree; but the net outflow of a state is {outflow[0]:.2g} of "
            f"what passes through it ({outflow[1]:.1e} for attention): cycles do not agree (erratum 20)",
            "holds in part",
        ),
    ]
    return out
