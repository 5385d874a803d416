"""Measures of a score: parity over time, weak error against steps, and rotational energy (EOT-16)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from ...diagnostics import duality, rotation
from ...diagnostics._stats import mean_interval
from .._configs import Config
from ._sampling import Bar, Moment, on_one_path
from ._schedule import VP, grid, steps
from ._scores import Axes, GaussianScore, PooledLaw, Score, score_of

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Row = dict[str, Any]

OBSERVABLES = ("brightness", "square")


# ---- parity --------------------------------------------------------------------------------------


def parity(
    moments: Iterable[Moment], axes: Axes, law: PooledLaw, vp: VP, config: Config
) -> tuple[list[Row], Row, Moment]:
    """Rows over time, their summary, and the last samples.

    For pooled pixels these are TV and KS between the samplers, and between each sampler and the true law at
    that time, which is known in closed form. For leading principal components it is KS, by
    :func:`duality.parity`.
    """
    bins, kept = config["bins"], config["components"]
    began = time.perf_counter()
    rows: list[Row] = []
    nulls: list[tuple[Array, Array]] = []
    lead: list[tuple[Single, Single]] = []
    last: Moment | None = None
    for now in moments:
        p, q = axes.pixels(now.sde), axes.pixels(now.ode)
        found = duality.pooled_parity(p, q, bins=bins, n_resamples=config["parity_resamples"])
        true = law.masses(vp, now.t, bins)
        row: Row = {"t": now.t}
        for name in ("tv", "ks"):
            low, high = getattr(found, f"{name}_interval")
            row |= {
                name: getattr(found, name),
                f"{name}_chance": getattr(found, f"{name}_chance"),
                f"{name}_critical": getattr(found, f"{name}_critical"),
                f"{name}_low": low,
                f"{name}_high": high,
            }
        for name, masses in zip(("sde", "ode"), found.masses, strict=True):
            gap = masses - true
            row |= {
                f"tv_{name}_true": float(0.5 * np.abs(gap).sum()),
                f"ks_{name}_true": float(np.abs(np.cumsum(gap)).max()),
            }
        row |= {"sde_moved": now.sde_moved, "ode_moved": now.ode_moved}
        rows.append(row)
        nulls.append((found.tv_null, found.ks_null))
        lead.append((now.sde[:, :kept], now.ode[:, :kept]))
        last = now
    if last is None:
        raise ValueError("moments: wanted at least one time, got none")
    by_axis = duality.parity(np.stack([a for a, _ in lead]), np.stack([b for _, b in lead]))
    for k, row in enumerate(rows):
        row["component_ks"] = float(by_axis.ks[k].max())
        row["component_ks_critical"] = by_axis.ks_critical
    summary = _summary(rows, nulls) | {"n_images": len(last.sde)}
    summary["seconds"] = round(time.perf_counter() - began, 1)
    return rows, summary, last


def _summary(rows: list[Row], nulls: list[tuple[Array, Array]]) -> Row:
    out: Row = {}
    for k, name in enumerate(("tv", "ks")):
        value = np.array([r[name] for r in rows])
        chance = np.array([r[f"{name}_chance"] for r in rows])
        worst = int(np.argmax(value))
        # One p-value for all times: the statistic is the largest distance in units of its chance level.
        # The multipliers are the same at all times, so the maxima include the correlations between times.
        ratio = value / np.maximum(chance, 1e-12)
        null = np.stack([n[k] for n in nulls]) / np.maximum(chance, 1e-12)[:, None]
        drawn = null.max(axis=0)
        out |= {
            f"{name}_max": float(value[worst]),
            f"{name}_max_t": rows[worst]["t"],
            f"{name}_max_chance": float(chance[worst]),
            f"{name}_mean": float(value.mean()),
            f"{name}_mean_chance": float(chance.mean()),
            f"{name}_last": float(value[-1]),
            f"{name}_above_critical": int(sum(r[name] > r[f"{name}_critical"] for r in rows)),
            f"{name}_p_value": float((1 + (drawn >= ratio.max()).sum()) / (1 + len(drawn))),
        }
        for flow in ("sde", "ode"):
            true = np.array([r[f"{name}_{flow}_true"] for r in rows])
            out |= {f"{name}_{flow}_true_max": float(true.max())}
            out |= {f"{name}_{flow}_true_mean": float(true.mean())}
    worst = int(np.argmax([r["component_ks"] for r in rows]))
    out |= {
        "component_ks_max": rows[worst]["component_ks"],
        "component_ks_max_t": rows[worst]["t"],
        "component_ks_critical": rows[worst]["component_ks_critical"],
        "sde_variation": float(sum(r["sde_moved"] for r in rows)),
        "ode_variation": float(sum(r["ode_moved"] for r in rows)),
        "n_times": len(rows),
    }
    return out


def exact_parity(
    score: GaussianScore, axes: Axes, vp: VP, scheme: str, refine: int, config: Config
) -> Row:
    """Largest TV and KS between both samplers for the Gaussian score, by the recursion of the moments.

    There is no sampling error. The differences are due to the steps, and to the start from N(0, I) instead of
    the law at t = 1: the flow keeps this error, while the SDE forgets it. ``*_true_start`` starts from the
    true law.
    """
    times = grid(config["n_times"] * refine, config["t_end"])
    tables = [steps(vp, times, flow, scheme) for flow in ("sde", "ode")]
    V = axes.axes.astype(np.float64)
    edges = 2 * np.linspace(0.0, 1.0, config["bins"] + 1) - 1

    def below(moments: tuple[Array, Array]) -> Array:
        m, v = V @ moments[0], (V * V) @ moments[1]
        out: Array = ndtr((edges[:, None] - m) / np.sqrt(v)).mean(axis=1)
        return out

    found: Row = {}
    for suffix, true_start in (("", False), ("_true_start", True)):
        tv, ks = [], []
        pairs = zip(*(score.path(t, true_start=true_start) for t in tables), strict=True)
        for k, (sde, ode) in enumerate(pairs):
            if (k + 1) % refine == 0:
                gap = below(sde) - below(ode)
                ks.append(float(np.abs(gap).max()))
                tv.append(float(0.5 * np.abs(np.diff(gap, prepend=0.0, append=0.0)).sum()))
        found |= {f"exact_tv{suffix}": max(tv), f"exact_ks{suffix}": max(ks)}
    return found


# ---- weak error ----------------------------------------------------------------------------------


def observe(x: Single, axes: Axes) -> dict[str, Array]:
    """Two observables of each image: its mean pixel (black 0, white 1) and the mean square of its values."""
    z = x.astype(np.float64)
    return {
        "brightness": z @ axes.brightness + 0.5,
        "square": np.einsum("nd,nd->n", z, z) / z.shape[1],
    }


def weak_error(
    score: Score, axes: Axes, vp: VP, scheme: str, config: Config, bar: Bar | None = None
) -> tuple[list[Row], Row]:
    """Step doubling on one Brownian path: rows for every observable and K, and slopes with BCa intervals."""
    levels = sorted({k for K in config["weak_steps"] for k in (K, 2 * K)})
    n, d = config["weak_images"], len(axes.mean)
    x = on_one_path(
        score, vp, levels, scheme=scheme, t_end=config["t_end"], n=n, d=d,
        seed=config["seed"] + 1000, bar=bar,
    )  # fmt: skip
    seen = {K: observe(v, axes) for K, v in x.items()}
    exact = {K: _expected(score, vp, axes, scheme, K, config) for K in levels}
    rows: list[Row] = []
    slopes: Row = {}
    for name in OBSERVABLES:
        replicates = []
        for K in config["weak_steps"]:
            gap = seen[K][name] - seen[2 * K][name]
            blocks = np.array_split(gap, config["weak_blocks"])
            replicates.append([float(b.mean()) for b in blocks])
            rows.append(
                {
                    "observable": name,
                    "K": K,
                    "error": abs(float(gap.mean())),
                    "signed": float(gap.mean()),
                    "standard_error": float(gap.std(ddof=1) / np.sqrt(n)),
                    "exact": abs(exact[K][name] - exact[2 * K][name]),
                }
            )
        fit = duality.weak_error_slope(
            config["weak_steps"], np.array(replicates), n_resamples=config["bca_resamples"]
        )
        low, high = fit.interval if fit.interval is not None else (np.nan, np.nan)
        mine = [r for r in rows if r["observable"] == name]
        slopes[name] = {
            "slope": fit.slope,
            "low": low,
            "high": high,
            "method": fit.method,
            "last_slope": _last_slope([r["error"] for r in mine], config["weak_steps"]),
            "exact_slope": _slope([r["exact"] for r in mine], config["weak_steps"]),
            "in_noise": int(sum(r["error"] < 2 * r["standard_error"] for r in mine)),
            "n_errors": len(mine),
        }
    return rows, slopes


def _expected(
    score: Score, vp: VP, axes: Axes, scheme: str, K: int, config: Config
) -> dict[str, float]:
    """The expectations without sampling error, for the Gaussian score; they are not known for others."""
    if not isinstance(score, GaussianScore):
        return dict.fromkeys(OBSERVABLES, float("nan"))
    return expectations(score, axes, vp, scheme, K, config["t_end"])


def expectations(
    score: GaussianScore, axes: Axes, vp: VP, scheme: str, K: int, t_end: float
) -> dict[str, float]:
    """Expectations of both observables after K steps from N(0, I), by the recursion of the moments."""
    m, v = score.sampled(steps(vp, grid(K, t_end), "sde", scheme))
    return {
        "brightness": float(m @ axes.brightness) + 0.5,
        "square": float((m * m + v).mean()),
    }


def _slope(errors: list[float], K: list[int]) -> float:
    if not np.all(np.array(errors) > 1e-12):  # errors of the size of rounding have no order
        return float("nan")
    return float(np.polyfit(np.log(K), np.log(errors), 1)[0])


def _last_slope(errors: list[float], K: list[int]) -> float:
    """The slope between the two largest numbers of steps, which is nearest to the asymptotic order."""
    return _slope(errors[-2:], K[-2:])


# ---- rotational energy ---------------------------------------------------------------------------


def middle_times(n: int, t_end: float) -> Array:
    """Midpoints of n equal intervals of [t_end, 1]; a mean over them approximates the mean over time."""
    return t_end + (1 - t_end) * (np.arange(n) + 0.5) / n


def rotation_at(score: Score, x0: Single, t: float, vp: VP, config: Config) -> Row:
    """Rotational energy of the probability flow in the leading principal components, at one time.

    ``energy`` is what corollary 5.3 prescribes for projected states: the energy that no potential of the
    projected coordinates explains. A part of it is not rotation but scatter: the velocity depends on all
    coordinates, so it varies among images whose leading coordinates are equal. ``scatter`` is the energy that
    no function of the leading coordinates explains (least squares over polynomial fields), and ``rotation``
    the rotational energy of the fitted mean field. energy = scatter + rotation.
    """
    d, degree = config["components_rotation"], config["degree"]
    beta = float(vp.beta(t))
    a, s = np.float32(vp.alpha(t)), np.float32(vp.sigma(t))
    draw = np.random.default_rng([config["seed"], 5, round(1e6 * t)])
    x = a * x0 + s * draw.standard_normal(x0.shape, dtype=np.float32)
    slope = score_of(score.denoise(x, t), x, t, vp)
    u = -0.5 * beta * (x + slope)
    X, U = x[:, :d].astype(np.float64), u[:, :d]
    # the fewest resamples, because the reported interval is over the times and not over the samples
    options: dict[str, Any] = {"degree": degree, "method": "polynomial", "n_resamples": 10}
    whole = rotation.rotational_energy(X, U, beta, **options)
    mean_field = _fitted(X, U, degree - 1)
    turning = rotation.rotational_energy(X, mean_field, beta, **options)
    scatter = float(np.square(U - mean_field).sum(axis=1).mean() / beta)
    return {
        "t": t,
        "energy": whole.energy,
        "standard_error": whole.standard_error,
        "kinetic": whole.kinetic,
        "scatter": scatter,
        "rotation": turning.energy,
        "gamma": whole.gamma,
        "condition": whole.condition,
    }


def _fitted(X: Array, U: Array, degree: int) -> Array:
    """The least-squares fit to U by polynomial fields of this degree, at the points."""
    from itertools import combinations_with_replacement

    y = (X - X.mean(axis=0)) / X.std(axis=0)
    columns = [np.ones(len(y))]
    for p in range(1, degree + 1):
        chosen = combinations_with_replacement(range(y.shape[1]), p)
        columns += [np.prod(y[:, axes], axis=1) for axes in chosen]
    basis, _ = np.linalg.qr(np.stack(columns, axis=1))
    out: Array = basis @ (basis.T @ U)
    return out


def over_times(rows: list[Row], config: Config) -> Row:
    """Means over the times with BCa intervals, and shares of the kinetic energy."""
    out: Row = {}
    kinetic = float(np.mean([r["kinetic"] for r in rows]))
    for name in ("energy", "scatter", "rotation"):
        values = np.array([r[name] for r in rows])
        low, high = mean_interval(
            values,
            rng=np.random.default_rng(config["seed"]),
            method="BCa",
            n_resamples=config["bca_resamples"],
        )
        mean = float(values.mean())
        out[name] = {"mean": mean, "low": low, "high": high, "share": mean / kinetic}
    curls = [r["asymmetry"] for r in rows]
    out["asymmetry"] = float(np.mean(curls))
    out["asymmetry_max"] = float(np.max(curls))
    out["kinetic"] = kinetic
    out["largest_condition"] = float(max(r["condition"] for r in rows))
    out["largest_gamma"] = float(max(r["gamma"] for r in rows))
    out["n_times"] = len(rows)
    return out
