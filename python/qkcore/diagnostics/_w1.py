"""Exact W1 between laws on one finite support: closed form on a line, a linear programme elsewhere."""

from __future__ import annotations

import numpy as np

from .._linear_transport import least_cost
from ._arrays import Float


def on_line(p: Float, q: Float, positions: Float) -> Float:
    """W1 on a line: the integral of \\|P - Q\\| of the distribution functions; batches along leading axes."""
    order = np.argsort(positions, kind="stable")
    gaps = np.diff(positions[order])
    behind = np.cumsum((p - q)[..., order], axis=-1)[..., :-1]
    return np.abs(behind, out=behind) @ gaps


def ground_metric(points: Float, metric: str) -> Float:
    """Distances between all points: l1 as EOT's M.1 has it, or l2."""
    from scipy.spatial.distance import cdist

    if metric == "l1":
        return np.asarray(cdist(points, points, "cityblock"))
    return np.asarray(cdist(points, points, "euclidean"))


def in_metric(p: Float, q: Float, distance: Float) -> float:
    """W1 in a metric: what the laws share stays where it is, the rest is a transport problem."""
    surplus = p - q
    give = np.flatnonzero(surplus > 0)
    take = np.flatnonzero(surplus < 0)
    if not give.size or not take.size:
        return 0.0
    supply, demand = surplus[give], -surplus[take]
    return least_cost(distance[np.ix_(give, take)], supply, demand)
