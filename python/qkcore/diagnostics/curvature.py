"""Curvature, contraction and locking of softmax rows (EOT-12, EOT-13; eqs 23-25).

================================  =================================================================
``w1(p, q, positions=...)``       exact W1 on a common support
``curvature(P, ...)``             :math:`\\kappa(i, i') = 1 - W_1(\\hat P_i, \\hat P_{i'})/d_Q(i, i')` (eq 24)
``curvature_sweep(z, ...)``       the gap :math:`1 - \\kappa` as temperature or key norm change
``sinkhorn_w2``, ``evi``          the Sinkhorn surrogate of W2 squared, and both sides of eq 25
``locking``, ``locking_bound``    motion against tail mass, and the bound on it (eq 23)
================================  =================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import fraction, one_of
from . import _w1
from ._arrays import Float, count, float64, generator, plain_array
from ._evi import EVI, evi, sinkhorn_w2
from ._layers import are_probabilities, refuse_probabilities, softmax
from ._locking import Locking, locking, locking_bound
from ._stats import Interval, mean_interval

__all__ = [
    "EVI",
    "Curvature",
    "CurvatureSweep",
    "Locking",
    "curvature",
    "curvature_sweep",
    "evi",
    "locking",
    "locking_bound",
    "sinkhorn_w2",
    "w1",
]


def __dir__() -> list[str]:
    return list(__all__)


Pairs = npt.NDArray[np.int64]


def w1(
    p: npt.ArrayLike,
    q: npt.ArrayLike,
    *,
    positions: npt.ArrayLike | None = None,
    points: npt.ArrayLike | None = None,
    distance: npt.ArrayLike | None = None,
    metric: str = "l1",
) -> Float:
    """The exact Wasserstein distance W1 between laws on a common support (EOT-12).

    ``p`` and ``q`` (..., n), of equal mass. The support is one of: ``positions`` (n,) on a line (closed
    form, any number of laws at once), ``points`` (n, d) with the "l1" (EOT's M.1) or "l2" distance,
    ``distance`` (n, n) a metric. Beside the line it is a linear programme (HiGHS) per pair of laws, on
    what the two do not share.

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> float(curvature.w1([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], positions=[0.0, 1.0, 2.0]))
    1.0
    >>> float(curvature.w1([1.0, 0.0], [0.0, 1.0], points=[[0.0, 0.0], [3.0, 4.0]]))
    7.0
    """
    a, b = np.broadcast_arrays(float64("p", p), float64("q", q))
    _checks.shape("p", a.shape, (..., "n"), what="a law")
    _checks.none_negative("p", a)
    _checks.none_negative("q", b)
    masses = a.sum(axis=-1), b.sum(axis=-1)
    # Laws in single precision are normalised to their own rounding; the rest is made exact.
    single = any(np.asarray(x).dtype == np.float32 for x in (p, q))
    if float(np.abs(masses[0] - masses[1]).max()) > (1e-5 if single else 1e-8) * max(
        1.0, float(masses[0].max())
    ):
        raise ValueError("p, q: wanted the same mass in both, got different sums; normalise them")
    if single and (masses[1] > 0).all():
        b = b * (masses[0] / masses[1])[..., None]
    _checks.exactly_one("support", positions=positions, points=points, distance=distance)
    n = a.shape[-1]
    if positions is not None:
        at = float64("positions", positions)
        _checks.shape("positions", at.shape, (n,), why="like the laws")
        return _w1.on_line(a, b, at)
    if points is not None:
        at = float64("points", points)
        _checks.shape("points", at.shape, (n, "d"), why="like the laws")
        cost = _w1.ground_metric(at, one_of("metric", metric, ("l1", "l2")))
    else:
        assert distance is not None
        cost = _distance("distance", distance, n)
    flat = [
        _w1.in_metric(x, y, cost) for x, y in zip(a.reshape(-1, n), b.reshape(-1, n), strict=True)
    ]
    return np.array(flat).reshape(a.shape[:-1])


@dataclass(frozen=True, eq=False)
class Curvature:
    """Coarse Ricci curvature of pairs of rows."""

    pairs: Pairs = field(repr=False)
    """(k, 2): the rows that were compared"""
    kappa: Float = field(repr=False)
    w1: Float = field(repr=False)
    distance: Float = field(repr=False)
    """:math:`d_Q` of each pair"""
    interval: Interval
    """percentile bootstrap of the mean gap over the pairs"""
    skipped: int
    """pairs without common support, or whose queries coincide"""

    @property
    def gap(self) -> Float:
        """:math:`1 - \\kappa = W_1/d_Q`, of each pair."""
        out: Float = 1 - self.kappa
        return out

    def __str__(self) -> str:
        low, high = self.interval
        tail = f"; {self.skipped} pairs skipped" if self.skipped else ""
        return (
            f"curvature of {len(self.kappa)} pairs: mean {self.kappa.mean():.4f}, gap {self.gap.mean():.4f} "
            f"[{low:.4f}, {high:.4f}]{tail}"
        )


def curvature(
    P: npt.ArrayLike,
    *,
    queries: npt.ArrayLike | None = None,
    keys: npt.ArrayLike | None = None,
    pairs: npt.ArrayLike | None = None,
    n_pairs: int = 64,
    metric: str = "l1",
    n_resamples: int = 200,
    confidence: float = 0.95,
    rng: int | np.random.Generator | None = 0,
) -> Curvature:
    """The curvature :math:`\\kappa(i, i') = 1 - W_1(\\hat P_i, \\hat P_{i'})/d_Q(i, i')` of eq 24 (EOT-12).

    ``P`` (n, m) row-stochastic. Rows are restricted to the keys that both see (so causal masks are fine)
    and normalised there. ``queries`` (n, d) and ``keys`` (m, d) set the distances (``metric`` "l1" or
    "l2"); without them positions in the sequence do, and W1 is a closed form. ``pairs`` (k, 2), or
    ``n_pairs`` neighbours (i, i + 1) drawn at random.

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> walk = (np.eye(8, k=1) + np.eye(8, k=-1) + 2 * np.eye(8)) / 4
    >>> walk[0, 0] = walk[-1, -1] = 0.75
    >>> P = 0.5 * walk + 0.5 / 8  # every other step goes anywhere
    >>> float(curvature.curvature(P, pairs=[[3, 4]]).kappa[0])
    0.5
    """
    rows = float64("P", P)
    _checks.shape("P", rows.shape, ("n", "m"), what="rows")
    _checks.some("P", len(rows), 2, "rows")
    if (rows < 0).any() or float(np.abs(rows.sum(axis=1) - 1).max()) > 1e-6:
        raise ValueError("P: wanted rows of probabilities that sum to 1; normalise them")
    rng = generator(rng)
    chosen = _pairs(pairs, len(rows), n_pairs, rng)
    geometry = Geometry(rows.shape, queries, keys, metric)
    value, apart, kept = geometry.measure(rows, chosen)
    if not kept.any():
        raise ValueError(
            "pairs: wanted pairs with a common support and different queries, got none; pass others"
        )
    gap = value / apart
    found = mean_interval(
        gap,
        rng=rng,
        n_resamples=count("n_resamples", n_resamples),
        confidence=fraction("confidence", confidence),
    )
    return Curvature(chosen[kept], 1 - gap, value, apart, found, int((~kept).sum()))


class Geometry:
    """Distances between queries and between keys: given points, or positions in the sequence."""

    def __init__(
        self,
        shape: tuple[int, ...],
        queries: npt.ArrayLike | None,
        keys: npt.ArrayLike | None,
        metric: str = "l1",
    ) -> None:
        n, m = shape
        self.metric = one_of("metric", metric, ("l1", "l2"))
        self.queries = np.arange(n, dtype=np.float64)[:, None]
        self.keys: Float | None = None
        self.positions = np.arange(m, dtype=np.float64)
        if queries is not None:
            self.queries = _vectors("queries", queries, n)
        if keys is not None:
            points = _vectors("keys", keys, m)
            if points.shape[1] == 1:
                self.positions = points[:, 0]
            else:
                self.keys = points

    def measure(self, rows: Float, pairs: Pairs) -> tuple[Float, Float, npt.NDArray[np.bool_]]:
        """W1, d_Q and whether the pair could be used (only those are returned)."""
        p, q = rows[pairs[:, 0]], rows[pairs[:, 1]]
        both = (p > 0) & (q > 0)
        p, q = np.where(both, p, 0.0), np.where(both, q, 0.0)
        apart = self.apart(pairs)
        kept = both.any(axis=1) & (apart > 0)
        p, q = p[kept], q[kept]
        p /= p.sum(axis=1, keepdims=True)
        q /= q.sum(axis=1, keepdims=True)
        return self.transport(p, q), apart[kept], kept

    def apart(self, pairs: Pairs) -> Float:
        """The distances between the queries of pairs."""
        side = self.queries[pairs[:, 0]] - self.queries[pairs[:, 1]]
        return np.asarray(np.linalg.norm(side, ord=1 if self.metric == "l1" else 2, axis=1))

    def transport(self, p: Float, q: Float) -> Float:
        """W1 between the laws p and q (pairs, keys)."""
        if self.keys is None:
            return _w1.on_line(p, q, self.positions)
        cost = _w1.ground_metric(self.keys, self.metric)
        return np.array([_w1.in_metric(a, b, cost) for a, b in zip(p, q, strict=True)])


@dataclass(frozen=True, eq=False)
class CurvatureSweep:
    """The curvature gap over a sweep of temperatures or key norms."""

    knob: str
    """"temperature" or "key norm"."""
    factors: Float
    gaps: Float = field(repr=False)
    """(factors, pairs)"""
    bands: tuple[Interval, ...]
    """of the mean gap, at each factor"""
    reduction: float
    """relative reduction of the mean gap from the first factor to the last"""
    reduction_interval: Interval
    """percentile bootstrap over the pairs"""
    slope: float
    """of log mean gap against log factor; -1 (temperature) and +1 (key norm, fixed metric) where logits
    are small"""

    @property
    def mean(self) -> Float:
        """The mean gap at each factor."""
        out: Float = self.gaps.mean(axis=1)
        return out

    def __str__(self) -> str:
        lines = [f"curvature gap over {self.knob}, {self.gaps.shape[1]} pairs"]
        lines += [
            f"  x {f:<6g} gap {m:.5f} [{low:.5f}, {high:.5f}]"
            for f, m, (low, high) in zip(self.factors, self.mean, self.bands, strict=True)
        ]
        low, high = self.reduction_interval
        lines.append(
            f"  reduced by {100 * self.reduction:.3g} % [{100 * low:.3g}, {100 * high:.3g}], "
            f"slope {self.slope:.3g}"
        )
        return "\n".join(lines)


def curvature_sweep(
    logits: npt.ArrayLike,
    *,
    temperatures: Sequence[float] | None = None,
    key_scales: Sequence[float] | None = None,
    queries: npt.ArrayLike | None = None,
    keys: npt.ArrayLike | None = None,
    scale_metric: bool = True,
    pairs: npt.ArrayLike | None = None,
    n_pairs: int = 64,
    metric: str = "l1",
    n_resamples: int = 200,
    rng: int | np.random.Generator | None = 0,
) -> CurvatureSweep:
    """The gap :math:`1 - \\kappa` of the same pairs as a knob is turned (P3, EOT-12).

    ``logits`` (n, m), -inf masks. ``temperatures`` divide them (default 1, 1.25, 1.5, 2), or
    ``key_scales`` multiply the keys: the logits, which are linear in the keys, and (``scale_metric``)
    the distances between them when ``keys`` are given. EOT expects the gap to fall with temperature and
    with shrinking keys; it is not a law: rows locked to the same key part when they are warmed
    (docs/diagnostics.md).

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> z = np.random.default_rng(0).normal(size=(40, 40))
    >>> curvature.curvature_sweep(z, temperatures=[1, 2, 4]).reduction > 0.5
    True
    """
    plain, eps = plain_array("logits", logits)
    z = _checks.real_array("logits", plain)
    _checks.shape("logits", z.shape, ("n", "m"), what="rows")
    _checks.some("logits", len(z), 2, "rows")
    _checks.finite("logits", z, minus_inf=True)
    if temperatures is not None and key_scales is not None:
        raise ValueError(
            "temperatures, key_scales: wanted one of the two, got both; sweep them in turn"
        )
    knob = "temperature" if key_scales is None else "key norm"
    given = (1.0, 1.25, 1.5, 2.0) if temperatures is None else temperatures
    factors = (
        float64("temperatures", given) if key_scales is None else float64("key_scales", key_scales)
    )
    _checks.shape(knob, factors.shape, ("k",), what="factors")
    _checks.some(knob, factors.size, 2, "factors")
    _checks.all_positive(knob, factors, "factors > 0")
    if are_probabilities(z, eps):
        refuse_probabilities("logits", "np.log(p)")
    rng = generator(rng)
    chosen = _pairs(pairs, len(z), n_pairs, rng)
    geometry = Geometry(z.shape, queries, keys, metric)
    gaps = gaps_at(z.astype(np.float64), chosen, geometry, factors, knob, scale_metric)
    if not gaps.shape[1]:
        raise ValueError(
            "pairs: wanted pairs with a common support and different queries, got none; pass others"
        )
    return summarize_sweep(gaps, factors, knob, count("n_resamples", n_resamples), rng)


def gaps_at(
    z: Float, pairs: Pairs, geometry: Geometry, factors: Float, knob: str, scale_metric: bool
) -> Float:
    """Gaps (factors, pairs) of one layer, of the pairs with a common key and different queries.

    Rows are restricted to their common keys before they are normalised. Restricting the probabilities would
    lose the pairs whose mass lies elsewhere, once that underflows.
    """
    first, second = z[pairs[:, 0]], z[pairs[:, 1]]
    both = np.isfinite(first) & np.isfinite(second)
    apart = geometry.apart(pairs)
    kept = both.any(axis=1) & (apart > 0)
    first, second = (np.where(both, x, -np.inf)[kept] for x in (first, second))
    out = []
    for f in factors:
        p, q = (softmax(x / f if knob == "temperature" else x * f) for x in (first, second))
        scale = f if knob == "key norm" and scale_metric and geometry.keys is not None else 1.0
        out.append(float(scale) * geometry.transport(p, q) / apart[kept])
    return np.stack(out)


def summarize_sweep(
    gaps: Float, factors: Float, knob: str, n_resamples: int, rng: np.random.Generator
) -> CurvatureSweep:
    """Bands and the paired reduction from gaps (factors, pairs)."""
    bands = tuple(mean_interval(g, rng=rng, n_resamples=n_resamples) for g in gaps)
    first, last = gaps[0], gaps[-1]
    total = float(first.mean())
    if total > 0:
        low, high = mean_interval(
            np.where(first > 0, last / np.where(first > 0, first, 1.0), 1.0),
            rng=rng,
            n_resamples=n_resamples,
            weights=np.maximum(first, 1e-300),
        )
        reduction, around = 1 - float(last.mean()) / total, (1 - high, 1 - low)
    else:
        reduction, around = 0.0, (0.0, 0.0)
    means = gaps.mean(axis=1)
    slope = float(np.polyfit(np.log(factors), np.log(means), 1)[0]) if (means > 0).all() else 0.0
    return CurvatureSweep(knob, factors, gaps, bands, reduction, around, slope)


def _pairs(pairs: npt.ArrayLike | None, n: int, n_pairs: int, rng: np.random.Generator) -> Pairs:
    if pairs is None:
        k = min(count("n_pairs", n_pairs), n - 1)
        first = np.sort(rng.choice(n - 1, size=k, replace=False))
        return np.stack([first, first + 1], axis=1).astype(np.int64)
    chosen = np.asarray(pairs)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 2 or chosen.shape[1] != 2:
        raise ValueError(f"pairs: wanted integers (k, 2), got {chosen.dtype} {chosen.shape}")
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= n:
        raise ValueError(f"pairs: wanted rows from 0 to {n - 1}, got others or none")
    if (chosen[:, 0] == chosen[:, 1]).any():
        raise ValueError("pairs: wanted two different rows in each, got a row with itself")
    return chosen.astype(np.int64)


def _vectors(name: str, value: npt.ArrayLike, n: int) -> Float:
    array = float64(name, value)
    array = array[:, None] if array.ndim == 1 else array
    _checks.shape(name, array.shape, (n, "d"), (n,))
    return array


def _distance(name: str, value: npt.ArrayLike, n: int) -> Float:
    cost = float64(name, value)
    _checks.shape(name, cost.shape, (n, n))
    if (cost < 0).any() or np.diag(cost).any() or not np.allclose(cost, cost.T):
        raise ValueError(
            f"{name}: wanted a metric: symmetric, >= 0, zero diagonal; got another matrix"
        )
    return cost
