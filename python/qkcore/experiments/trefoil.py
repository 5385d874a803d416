"""Circle to trefoil: bridges over product-of-experts kernels and their truncations (DAC-12, D.1, figure 1).

Every truncation is compared with the exact bridge by the measures of D.1. The circle's singular values
come in pairs: a rank that cuts one leaves a free choice (erratum 11), so that its figures are also
given as ranges over rotations of the pair.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
KERNELS = {"dmap": qk.scores.distance, "amap": qk.scores.forward}
MEASURES = ("kernel_rel_err", "coupling_rel_err", "latent_rmse", "row_err", "col_err", "min_entry")
# Singular values this close, relatively, are a pair: where truncating between them is a free choice.
PAIR = 1e-6


def check(config: Config) -> None:
    """Refuses settings that make no bridge."""
    positive(config, "n", least=2)
    positive(config, "beta", "width", "tolerance", "ranks", "angles")
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
    """Bridges over both kernels, exact and truncated."""
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
        maps[f"{name}_full"] = one.latent_map()
        maps[f"{name}_truncated"] = one.latent_map(config["shown_rank"])
        values += one.singular_values(max(config["ranks"]) + 1)
    run.write_csv("ranks", rows)
    run.write_csv("latent_maps", columns(t=t, **maps))
    run.write_csv("singular_values", values)
    metrics["shown_rank"] = config["shown_rank"]
    run.write_metrics(metrics)


def _flat(name: str, rank: int, found: dict[str, Any]) -> dict[str, Any]:
    """A line of ranks.csv."""
    row: dict[str, Any] = {"kernel": name, "rank": rank, "status": found["status"]}
    row["cuts_pair"] = int(found["cuts_pair"])
    for measure in MEASURES:
        low, high = found["range"][measure] if found["range"] else (found[measure],) * 2
        row |= {measure: found[measure], f"{measure}_low": low, f"{measure}_high": high}
    return {k: math.nan if v is None else v for k, v in row.items()}


class _Kernel:
    """One product-of-experts kernel with its exact bridge."""

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
        build = KERNELS[name]
        self.experts = tuple(qk.softmax(build(X, beta=config["beta"])) for X in clouds)
        self.exact = qk.bridge(qk.poe(*self.experts), mu, nu, tol=config["tolerance"])

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
        b = self._bridge(factors)
        found = asdict(qk.compression_errors(b, self.exact, self.t))
        return {m: found[m] for m in MEASURES} | {"status": b.status, "n_iter": b.n_iter}

    def truncated(self, rank: int) -> dict[str, Any]:
        """The measures at one rank, and their range over the choices that a cut pair leaves."""
        factors = tuple(qk.low_rank(A, rank) for A in self.experts)
        found = self._errors(factors)
        cuts = [bool(f.cut_gap < PAIR) for f in factors]
        found |= {"cuts_pair": any(cuts), "range": None, "statuses": [found["status"]]}
        if any(cuts):
            choices = [self._errors(f) for f in self._choices(rank, factors, cuts)]
            found["range"] = {m: _range([c[m] for c in [found, *choices]]) for m in MEASURES}
            found["statuses"] = sorted({c["status"] for c in [found, *choices]})
        return found

    def _choices(
        self, rank: int, factors: tuple[LowRank, ...], cuts: list[bool]
    ) -> list[tuple[LowRank, ...]]:
        """Truncations that keep another direction of each cut pair."""
        angles = np.arange(self.config["angles"]) * np.pi / self.config["angles"]
        options = []
        for A, factor, cut in zip(self.experts, factors, cuts, strict=True):
            if not cut:
                options.append([factor])
                continue
            whole = qk.low_rank(A, rank + 1)
            options.append([rotated(whole, a) for a in angles])
        return list(itertools.product(*options))

    def latent_map(self, rank: int | None = None) -> Array:
        """t -> t': the barycentric map of the exact bridge, or of its truncation."""
        if rank is None:
            exact: Array = self.exact.project(self.t)
            return exact
        b = self._bridge(tuple(qk.low_rank(A, rank) for A in self.experts))
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


def rotated(whole: LowRank, angle: float) -> LowRank:
    """One direction of the last two of a truncation that keeps both.

    For equal singular values every direction gives a best approximation of one rank less.
    """
    left, right = np.asarray(whole.left), np.asarray(whole.right)
    c, s = math.cos(angle), math.sin(angle)
    column = c * left[:, -2] + s * left[:, -1]
    row = c * right[-2] + s * right[-1]
    return LowRank(np.column_stack([left[:, :-2], column]), np.vstack([right[:-2], row]))


def _range(values: list[float]) -> list[float | None]:
    finite = [v for v in values if math.isfinite(v)]
    return [min(finite), max(finite)] if finite else [None, None]
