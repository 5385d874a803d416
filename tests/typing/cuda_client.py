"""A typed user of qkcore_cuda, which mypy --strict must accept (tests/test_typing.py); it needs a device."""

from __future__ import annotations

import qkcore_cuda as qc
from qkcore_cuda import Array


def norms(points: Array) -> Array:
    """Squared norms of the rows."""
    dots: Array = qc.row_dots(points, points, stream=0)
    n: int = dots.shape[0]
    return qc.map_vector("affine", dots, a=1.0 / n)


def heaviest(weights: Array) -> float:
    found = qc.summaries([("weights", weights, None)])
    return found[0]["largest"]


def middle(points: Array) -> Array:
    return points.cut(-2, 1, points.shape[-2] - 1).T


if qc.status()["available"]:
    made = qc.empty((4, 2), "float32", 0)
    print(heaviest(norms(made)), middle(made).strides, qc.live_allocations())
