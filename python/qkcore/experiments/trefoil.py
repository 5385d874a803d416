"""Circle to trefoil: bridges over product-of-experts kernels and their truncations (DAC-12, D.1, figure 1).

Every truncation is compared with the exact bridge by the measures of D.1. The circle's singular values come
in equal pairs. A rank that cuts a pair leaves a free choice (erratum 11), so ranges over all choices are
given too.

At the same beta the document's two kernels have different widths: attention at beta is diffusion at beta / 2
with a key bias (erratum 41). Each kernel therefore has a control: the other kernel at the same width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ..factors import LowRank
from ._configs import Config, positive
from ._errors import ExperimentError
from ._files import columns
from ._trefoil_show import claims, plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.floating[Any]]
# The function of the scores, and a factor for the document's beta. The last two are controls: diffusion that
# is as wide as the document's attention, and attention that is as narrow as its diffusion.
KERNELS = {
    "dmap": (qk.scores.distance, 1.0),
    "amap": (qk.scores.forward, 1.0),
    "dmap_matched": (qk.scores.distance, 0.5),
    "amap_matched": (qk.scores.forward, 2.0),
}
MEASURES = ("kernel_rel_err", "coupling_rel_err", "latent_rmse", "row_err", "col_err", "min_entry")
# Measures that a kernel has even if it has no coupling.
OF_KERNELS = ("kernel_rel_err", "min_entry")
# With these statuses the scalings have a limit that meets the marginals, perhaps with negative entries. With
# other statuses the last scalings only tell where the solver stopped, and nothing about the kernel.
WITH_COUPLING = ("converged", "negative entries")
# The measures whose extremes over the choices in a cut pair are searched for.
SEARCHED = ("coupling_rel_err", "latent_rmse")
# Singular values with a smaller relative difference count as an equal pair, and truncating between them
# leaves a free choice.
PAIR = 1e-6
# The last step of the search over choices, in radians.
FINEST = 0.01


def check(config: Config) -> None:
    """Refuses settings with which no bridge can be made."""
    positive(config, "n", least=2)
    positive(config, "beta", "width", "tolerance", "exact_tolerance", "ranks", "angles")
    for rank in (*config["ranks"], config["shown_rank"]):
        if rank >= config["n"]:
            raise ExperimentError(f"ranks: wanted less than n = {config['n']}, got {rank}")


def curves(n: int) -> tuple[Array, Array, Array]:
    """t (n,), the circle and the trefoil (n, 3), standardized by coordinate.

    >>> t, circle, trefoil = curves(400)
    >>> bool(np.allclose(trefoil.std(axis=0), 1)), float(circle[0, 2])
    (True, 0.0)
    """
    t = np.arange(n) / n
    a = 2 * np.pi * t
    ring = 2 + np.cos(3 * a)
    circle = np.stack([np.cos(a), np.sin(a), np.zeros(n)], axis=1)
    trefoil = np.stack([ring * np.cos(2 * a), ring * np.sin(2 * a), np.sin(3 * a)], axis=1)
    return t, _standardized(circle), _standardized(trefoil)


def _standardized(X: Array) -> Array:
    centred = X - X.mean(axis=0)
    spread = centred.std(axis=0)
    # The circle lies in a plane: its third coordinate has no variance to divide by.
    standardized: Array = centred / np.where(spread > 0, spread, 1.0)
    return standardized


def bump(t: Array, centre: float, width: float) -> Array:
    """A Gaussian bump in t as a probability vector."""
    weights = np.exp(-0.5 * np.square((t - centre) / width))
    law: Array = weights / weights.sum()
    return law


def compute(config: Config, run: Run) -> None:
    """Computes the bridges over all kernels, exact and truncated."""
    t, circle, trefoil = curves(config["n"])
    mu = bump(t, config["source_centre"], config["width"])
    nu = bump(t, config["target_centre"], config["width"])
    points = {f"{name}_{x}": X[:, k] for name, X in (("circle", circle), ("trefoil", trefoil))
              for k, x in enumerate("xyz")}  # fmt: skip
    run.write_csv("curves", columns(t=t, **points, source=mu, target=nu))
    metrics: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    maps: dict[str, Array] = {}
    values: list[dict[str, Any]] = []
    for name in KERNELS:
        one = _Kernel(name, (circle, trefoil), mu, nu, t, config)
        metrics[name] = {"full": one.full(), "ranks": {}}
        for rank in run.progress(config["ranks"], name):
            found = run.stage(f"{name}-{rank}", lambda: one.truncated(rank))  # noqa: B023
            metrics[name]["ranks"][str(rank)] = found
            rows.append(_flat(name, rank, found))
        full, short = one.latent_map(), one.latent_map(config["shown_rank"])
        maps |= {f"{name}_full": full, f"{name}_truncated": short}
        metrics.setdefault("maps", {})[name] = _map_figures(t, mu, full, short)
        values += one.singular_values(max(config["ranks"]) + 1)
    run.write_csv("ranks", rows)
    run.write_csv("latent_maps", columns(t=t, **maps))
    run.write_csv("singular_values", values)
    metrics |= {"shown_rank": config["shown_rank"], "angles": config["angles"]}
    metrics["beta"] = {name: scale * config["beta"] for name, (_, scale) in KERNELS.items()}
    run.write_metrics(metrics)


def _map_figures(t: Array, mu: Array, full: Array, short: Array) -> dict[str, float]:
    """How flat a latent map is where the source has its mass, and how much truncation changes it.

    ``slope`` is the slope of the regression of t' on t under mu: 1 for the identity, 0 for a plateau.
    ``change`` is the root mean square of the change by truncation over all t; ``change_under_source`` is
    the same under mu.
    """
    mean, image = float(mu @ t), float(mu @ full)
    slope = float(mu @ ((t - mean) * (full - image)) / (mu @ np.square(t - mean)))
    off = np.square(short - full)
    return {
        "level": image,
        "slope": slope,
        "change": math.sqrt(float(off.mean())),
        "change_under_source": math.sqrt(float(mu @ off)),
    }


def _flat(name: str, rank: int, found: dict[str, Any]) -> dict[str, Any]:
    """A line of ranks.csv."""
    row: dict[str, Any] = {"kernel": name, "rank": rank, "status": found["status"]}
    row["cuts_pair"] = int(found["cuts_pair"])
    for measure in MEASURES:
        low, high = found["range"][measure] if found["range"] else (found[measure],) * 2
        row |= {measure: found[measure], f"{measure}_low": low, f"{measure}_high": high}
    return {k: math.nan if v is None else v for k, v in row.items()}


class _Kernel:
    """One product-of-experts kernel and its exact bridge."""

    def __init__(
        self,
        name: str,
        clouds: tuple[Array, Array],
        mu: Array,
        nu: Array,
        t: Array,
        config: Config,
    ) -> None:
        self.name, self.mu, self.nu, self.t, self.config = name, mu, nu, t, config
        build, scale = KERNELS[name]
        beta = scale * config["beta"]
        self.experts = tuple(qk.softmax(build(X, beta=beta)) for X in clouds)
        self.exact = qk.bridge(qk.poe(*self.experts), mu, nu, tol=config["exact_tolerance"])

    def full(self) -> dict[str, Any]:
        """How well the exact bridge meets its marginals."""
        rows, cols = self.exact.marginals()
        return {
            "row_err": float(np.abs(rows - self.mu).max()),
            "col_err": float(np.abs(cols - self.nu).max()),
            "n_iter": self.exact.n_iter,
            "status": self.exact.status,
            "solver": self.exact.method,
        }

    def _bridge(self, factors: tuple[LowRank, ...]) -> Any:
        return qk.bridge(
            qk.poe(*factors), self.mu, self.nu, tol=self.config["tolerance"], on_fail="ignore"
        )

    def _errors(self, factors: tuple[LowRank, ...]) -> dict[str, Any]:
        """The measures; for a kernel without coupling, only those that need no coupling."""
        b = self._bridge(factors)
        found = asdict(qk.compression_errors(b, self.exact, self.t))
        there = MEASURES if b.status in WITH_COUPLING else OF_KERNELS
        figures = {m: found[m] if m in there else None for m in MEASURES}
        return figures | {"status": b.status, "n_iter": b.n_iter}

    def truncated(self, rank: int) -> dict[str, Any]:
        """The measures at one rank, and their range over the choices if a pair is cut.

        If a pair is cut, the measures are those of one choice that is the same on every machine: the
        direction along which the source has most of its mass.
        """
        options = [_options(A, rank, self.mu) for A in self.experts]
        circles = [k for k, option in enumerate(options) if option.cut]

        def at(angles: tuple[float, ...]) -> dict[str, Any]:
            turned = dict(zip(circles, angles, strict=True))
            return self._errors(tuple(o.at(turned.get(k, 0.0)) for k, o in enumerate(options)))

        found = at((0.0,) * len(circles))
        found |= {"cuts_pair": bool(circles), "range": None, "statuses": [found["status"]]}
        if circles:
            choices = _search(at, len(circles), self.config["angles"])
            found["range"] = {m: _range([c[m] for c in choices]) for m in MEASURES}
            found["statuses"] = sorted({c["status"] for c in choices})
        return found

    def latent_map(self, rank: int | None = None) -> Array:
        """t -> t': the barycentric map of the exact bridge or of a truncation (NaN if it has no coupling)."""
        if rank is None:
            exact: Array = self.exact.project(self.t)
            return exact
        b = self._bridge(tuple(_options(A, rank, self.mu).at(0.0) for A in self.experts))
        if b.status not in WITH_COUPLING:
            return np.full_like(self.t, math.nan)
        projected: Array = np.asarray(b.forward.apply(self.t))
        return projected

    def singular_values(self, count: int) -> list[dict[str, Any]]:
        """Lines of singular_values.csv."""
        out = []
        for curve, A in zip(("circle", "trefoil"), self.experts, strict=True):
            s = np.linalg.svd(A.to_numpy(), compute_uv=False)[:count]
            out += [
                {"kernel": self.name, "curve": curve, "index": k + 1, "value": v}
                for k, v in enumerate(s)
            ]
        return out


class _Option(NamedTuple):
    """The truncations of one expert to one rank: a circle of them if a pair is cut, otherwise one."""

    cut: bool
    factor: LowRank
    """the truncation with both directions of the pair, if one is cut"""
    angle: float

    def at(self, angle: float) -> LowRank:
        return rotated(self.factor, self.angle + angle) if self.cut else self.factor


def _options(A: Any, rank: int, mu: Array) -> _Option:
    """The options at a rank. Angle 0 keeps the pair's direction along which mu is largest, for any basis."""
    factor = qk.low_rank(A, rank)
    if not factor.cut_gap < PAIR:
        return _Option(False, factor, 0.0)
    both = qk.low_rank(A, rank + 1)
    first, second = mu @ np.asarray(both.left)[:, -2:]
    return _Option(True, both, math.atan2(second, first))


def _search(
    at: Callable[[tuple[float, ...]], dict[str, Any]], n_circles: int, n_angles: int
) -> list[dict[str, Any]]:
    """The measures over the whole circle of choices (a torus, where two experts cut a pair).

    A grid finds the neighbourhood of each extreme, and a search with halved steps the extreme itself. The
    errors are smooth except where couplings cease to exist; the search then ends next to that edge.
    """
    known: dict[tuple[float, ...], dict[str, Any]] = {}

    def seen(angles: tuple[float, ...]) -> dict[str, Any]:
        key = tuple(round(a % math.pi, 9) for a in angles)  # half a turn changes only signs
        if key not in known:
            known[key] = at(key)
        return known[key]

    spacing = math.pi / n_angles
    grid = list(itertools.product([k * spacing for k in range(n_angles)], repeat=n_circles))
    for angles in grid:
        seen(angles)
    for measure, sign in itertools.product(SEARCHED, (1.0, -1.0)):

        def value(angles: tuple[float, ...]) -> float:
            figure = seen(angles)[measure]  # noqa: B023
            return math.inf if figure is None else sign * figure  # noqa: B023

        best = min(grid, key=value)
        step = spacing / 2
        while step > FINEST and math.isfinite(value(best)):
            around = [
                tuple(a + (side if k == axis else 0.0) for k, a in enumerate(best))
                for axis in range(n_circles)
                for side in (step, -step)
            ]
            nearest = min(around, key=value)
            if value(nearest) < value(best):
                best = nearest
            else:
                step /= 2
    return list(known.values())


def rotated(whole: LowRank, angle: float) -> LowRank:
    """Keeps one direction in the plane of the last two of a truncation.

    If their singular values are equal, every direction gives a best approximation of one rank less.
    """
    left, right = np.asarray(whole.left), np.asarray(whole.right)
    c, s = math.cos(angle), math.sin(angle)
    column = c * left[:, -2] + s * left[:, -1]
    row = c * right[-2] + s * right[-1]
    return LowRank(np.column_stack([left[:, :-2], column]), np.vstack([right[:-2], row]))


def _range(values: list[float | None]) -> list[float | None]:
    """The smallest and the largest of the values that are not None."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    return [min(there), max(there)] if there else [None, None]
