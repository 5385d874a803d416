"""Bounds on how much attention can stretch, compared with measured constants (MTA-3).

The experiment covers contraction coefficients on balls against d and radius (19 to 23), Jacobians at data
against n (24), the Gaussian potential on all of space (28 to 30), other neighbourhoods (25) and weight-shared
depth (26). Each printed bound that does not hold is shown to fail (erratum 10), next to one that holds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import measure
from ..measure import Ball, Bound
from ..measure._lipschitz import gaussian_factor, printed_factor
from ._configs import Config, positive
from ._errors import ExperimentError
from ._lipschitz_show import claims, plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]
PARTS = ("query", "measure", "softmatch", "lookup", "attention")


def check(config: Config) -> None:
    """Refuses settings with which the sets or measures cannot be made."""
    positive(config, "dims", "radii", "samples", "data_dims", "data_radii", "n_seeds", "cube_dims")
    positive(
        config,
        "gaussian_dims",
        "far_step",
        "lookups",
        "depth_radius",
        "neighbours",
        "neighbour_radii",
    )
    positive(config, "numbers", "gaussian_numbers", least=1)
    positive(config, "far_numbers", least=2)
    if max(config["neighbours"]) >= 64:
        raise ExperimentError(f"neighbours: wanted less than 64, got {max(config['neighbours'])}")


def compute(config: Config, run: Run) -> None:
    """Writes one table for each group of statements."""
    work: dict[str, Any] = {}
    for d in config["dims"]:
        for r in config["radii"]:
            work[f"sets-{d}-{r:g}"] = lambda d=d, r=r: on_a_ball(config, d, r)
    for d in config["data_dims"]:
        for n in config["numbers"]:
            work[f"data-{d}-{n}"] = lambda d=d, n=n: at_data(config, d, n)
    for d in config["gaussian_dims"]:
        for n in config["gaussian_numbers"]:
            work[f"gaussian-{d}-{n}"] = lambda d=d, n=n: gaussian(config, d, n)
    work["far-0"] = lambda: far_points(config)
    work["cube-0"] = lambda: cube(config)
    work["depth-0"] = lambda: depth(config)
    work["neighbours-0"] = lambda: neighbours(config)
    found: dict[str, list[dict[str, Any]]] = {}
    for key, one in run.progress(work.items(), "lipschitz", len(work)):
        rows = run.stage(key, one)
        found.setdefault(key.split("-")[0], []).extend(rows)
    for name, rows in found.items():
        # A null in JSON stands for infinity here: the bound has overflowed, and is still true.
        run.write_csv(name, [{k: math.inf if v is None else v for k, v in r.items()} for r in rows])
    run.write_metrics(summary(found))


def _readings(bound: Bound) -> dict[str, Any]:
    return {
        "printed": bound.printed,
        "corrected": bound.corrected,
        "sharp": bound.sharp,
        "bound": bound.bound,
        "measured": bound.measured,
        "printed_holds": int(bound.printed_holds),
        "violated": int(bound.printed_violated),
        "bound_violated": int(bound.measured > bound.bound * (1 + 1e-9)),
    }


def on_a_ball(config: Config, d: int, radius: float) -> list[dict[str, Any]]:
    """Propositions 19 to 23 on the ball of this radius, for scaled dot products and the identity as ℓ."""
    kernel = measure.AttentionKernel(measure.DotPotential.scaled(d))
    report = measure.contraction(
        kernel,
        Ball(radius, dim=d),
        samples=config["samples"],
        climbs=config["climbs"],
        rng=np.random.default_rng([config["seed"], d, round(1e6 * radius)]),
    )
    return [
        {"d": d, "radius": radius, "part": part, **_readings(getattr(report, part))}
        for part in PARTS
    ]


def at_data(config: Config, d: int, n: int) -> list[dict[str, Any]]:
    """The Jacobian at n points of a ball, and corollary 24 there."""
    kernel = measure.AttentionKernel(measure.DotPotential.scaled(d))
    out = []
    for radius in config["data_radii"]:
        for seed in range(config["n_seeds"]):
            X = cloud(config, d, n, radius, seed)
            found = measure.lipschitz(kernel, X, domain=Ball(radius, dim=d), rng=seed)
            out.append(
                {
                    "n": n,
                    "d": d,
                    "radius": radius,
                    "draw": seed,
                    "spectral": found.spectral.value,
                    "spectral_converged": int(found.spectral.converged),
                    "w1": found.w1.value,
                    **_readings(found.query),
                }
            )
    return out


def cloud(config: Config, d: int, n: int, radius: float, seed: int) -> Array:
    """n uniform random points in the ball."""
    draw = np.random.default_rng([config["seed"], seed, d, n])
    z = draw.normal(size=(n, d))
    z *= draw.random((n, 1)) ** (1 / d) / np.linalg.norm(z, axis=1, keepdims=True)
    out: Array = radius * z
    return out


def gaussian(config: Config, d: int, n: int) -> list[dict[str, Any]]:
    """Theorem 29: moves one particle, or all particles, of normal clouds a little."""
    kernel = measure.AttentionKernel(measure.GaussianPotential())
    out = []
    for seed in range(config["n_seeds"]):
        draw = np.random.default_rng([config["seed"], 9, seed, d, n])
        X = 2 * draw.normal(size=(n, d))
        for moves in ("one", "all"):
            step = 1e-3 * draw.normal(size=X.shape)
            if moves == "one":
                step[1:] = 0
            found = measure.gaussian_lipschitz(kernel, X, X + step)
            out.append({"n": n, "d": d, "draw": seed, "moves": moves, **_readings(found)})
    return out


def far_points(config: Config) -> list[dict[str, Any]]:
    """Proposition 28: points at 0 and 0.7, and N − 2 far ones; effects of moving the second, per distance."""
    out = []
    for n in config["far_numbers"]:
        X = np.concatenate([[0.0, 0.7], 50 + np.arange(n - 2.0)])[:, None]
        Y = X.copy()
        Y[1] += config["far_step"]
        found = measure.softmatch_perturbation(X[0], Y[0], X, Y)
        out.append(
            {
                "n": n,
                "measured": found.measured / found.distance,
                "printed": found.printed / found.distance,
                "corrected": found.corrected / found.distance,
                "violated": int(found.printed_violated),
            }
        )
    return out


def cube(config: Config) -> list[dict[str, Any]]:
    """The worst case of theorem 29: 2^d particles at (±s, …, ±s) and a moving one at the centre; best s."""
    out = []
    for d in config["cube_dims"]:
        sides = np.linspace(0.3, 0.9, 601)
        factors = [cube_factor(d, float(s)) for s in sides]
        best = int(np.argmax(factors))
        n = 2**d + 1
        out.append(
            {
                "d": d,
                "side": float(sides[best]),
                "measured": factors[best],
                "printed": 2 * d * printed_factor(n, d),
                "corrected": gaussian_factor(n, float(n), d),
                "violated": int(factors[best] > 2 * d * printed_factor(n, d)),
            }
        )
    return out


def cube_factor(d: int, s: float) -> float:
    """How far all corners of the cube together move, in l1, if the particle at the centre moves by one.

    All corners are alike, and sums over the cube are d-th powers. With :math:`t = e^{-s^2}` a corner gives
    the share :math:`p = t^d / ((1 + t^4)^d + t^d)` of its attention to the centre.
    """
    t = math.exp(-s * s)
    whole = (1 + t**4) ** d
    p = t**d / (whole + t**d)
    mean = (1 - t**4) / (1 + t**4) * whole / (whole + t**d)  # a corner's output, in units of s
    pull = 2 * p * s * s * mean
    return 2.0**d * (abs(p - pull) + (d - 1) * pull)


def depth(config: Config) -> list[dict[str, Any]]:
    """Theorem 26: repeats a block with ℓ(x) = c x + b in a ball that the block maps into itself."""
    d, r = 2, config["depth_radius"]
    X = cloud(config, d, 12, r, 0)
    out = []
    for c in config["lookups"]:
        b = np.array([(1 - c) * r / 2, 0.0])
        lookup = measure.LinearLookup(c * np.eye(d), b)
        block = measure.AttentionKernel(measure.DotPotential(), lookup)
        # Plain iteration reaches this tolerance even at a rate of 0.99.
        found = measure.fixed_point(
            block, X, domain=Ball(r, dim=d), method="picard", tol=1e-9, max_iter=3000
        )
        fixed = b / (1 - c) if c < 1 else found.X.mean(axis=0)
        out.append(
            {
                "c": c,
                "tau": found.tau,
                "theorem": found.theorem,
                "status": found.status,
                "n_iter": found.n_iter,
                "contraction": found.contraction,
                "local_rate": found.local_rate,
                "from_fixed_point": float(np.abs(found.X - fixed).max()),
                "spread": float(np.ptp(found.X, axis=0).max()),
            }
        )
    return out


def neighbours(config: Config) -> list[dict[str, Any]]:
    """Proposition 25: how far one word's output moves if it sees only m of its 64 neighbours."""
    d = 2
    kernel = measure.AttentionKernel(measure.DotPotential.scaled(d))
    out = []
    for r in config["neighbour_radii"]:
        X = cloud(config, d, 64, r, 1)
        for m in config["neighbours"]:
            found = measure.neighbourhood(kernel, X[0], X, X[:m], Ball(r, dim=d))
            row = {"radius": r, "m": m, "distance": found.distance}
            out.append(row | _readings(found))
    return out


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The content of metrics.json: the worst cases of every table."""
    sets, data, clouds = found["sets"], found["data"], found["gaussian"]
    parts: dict[str, Any] = {}
    for part in PARTS:
        of = [r for r in sets if r["part"] == part]
        parts[part] = {
            "cells": len(of),
            "printed_is_proved": bool(of[0]["printed_holds"]),
            "printed_violated": sum(r["violated"] for r in of),
            "bound_violated": sum(r["bound_violated"] for r in of),
            "largest_measured_over_printed": max(_over(r["measured"], r["printed"]) for r in of),
            "least_bound_over_measured": min(_over(r["bound"], r["measured"]) for r in of),
            "largest_bound_over_measured": max(_over(r["bound"], r["measured"]) for r in of),
        }
    return {
        "parts": parts,
        "data": {
            "problems": len(data),
            "bound_violated": sum(r["bound_violated"] for r in data),
            "printed_violated": sum(r["violated"] for r in data),
            "largest_spectral": max(r["spectral"] for r in data),
            "largest_w1": max(r["w1"] for r in data),
            "least_bound_over_measured": min(_over(r["bound"], r["measured"]) for r in data),
            "least_printed_over_measured": min(_over(r["printed"], r["measured"]) for r in data),
            "largest_printed_over_measured": max(_over(r["printed"], r["measured"]) for r in data),
        },
        "gaussian": {
            "problems": len(clouds),
            "printed_violated": sum(r["violated"] for r in clouds),
            "bound_violated": sum(r["bound_violated"] for r in clouds),
            "largest_measured": max(r["measured"] for r in clouds),
            "least_printed_over_measured": min(_over(r["printed"], r["measured"]) for r in clouds),
        },
        "far": {str(r["n"]): {k: r[k] for k in ("measured", "printed", "corrected")} for r in found["far"]},
        "cube": {str(r["d"]): {k: r[k] for k in ("measured", "printed", "corrected")} for r in found["cube"]},
        "depth": {f"{r['c']:g}": {k: v for k, v in r.items() if k != "c"} for r in found["depth"]},
        "neighbours": {
            "cases": len(found["neighbours"]),
            "printed_violated": sum(r["violated"] for r in found["neighbours"]),
            "bound_violated": sum(r["bound_violated"] for r in found["neighbours"]),
            "largest_measured_over_printed": max(
                _over(r["measured"], r["printed"]) for r in found["neighbours"]
            ),
        },
    }  # fmt: skip


def _over(a: float | None, b: float | None) -> float:
    """a / b, where None stands for infinity."""
    if b is None or b == math.inf:
        return 0.0
    return math.inf if a is None or b == 0 else a / b
