"""A scale for a Gaussian kernel, chosen from the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import _checks, scores
from ._lazy_scores import Real, Scores
from ._points import WLike

# The rule looks at this many points at most.
MOST_POINTS = 1000


class MedianRule(NamedTuple):
    """What :func:`median_rule` found."""

    beta: float | None
    """None if no two points differ"""
    minus: Scores
    """the scores :math:`-D^2` of the points that were used"""
    lowest: float
    """the lowest squared distance; it is negative only if W is indefinite, never by rounding alone"""


def median_rule(points: Real, W: WLike = None) -> MedianRule:
    """:math:`\\beta = 1 / \\mathrm{median}\\,|D^2_{ij}|` over pairs that differ, for points (n, d).

    :math:`D^2_{ij} = (x_i-x_j)^\\top W (x_i-x_j)`. Pairs whose distance is 0 up to rounding do not count. If
    there are more than 1000 points, 1000 of them, evenly spaced in their order, are used; nothing is random,
    so the same points always give the same scale. Everything is computed in float64.

    >>> import numpy as np
    >>> from qkcore import _bandwidth
    >>> _bandwidth.median_rule(np.array([[0.0], [0.0], [1.0], [2.0]])).beta  # 1, 1, 1, 4, 4
    1.0
    """
    n, d = points.shape
    sample = points
    if n > MOST_POINTS:
        sample = points[np.linspace(0, n - 1, MOST_POINTS).round().astype(np.intp)]
    if W is not None:
        left, right = _checks.matrix_w(W, d, d, points.dtype)
        W = left.astype(np.float64) if right is None else left.astype(np.float64) @ right
    minus = scores.distance(np.ascontiguousarray(sample, np.float64), W=W)
    # Every pair counts once.
    table = minus.to_numpy()
    squares = np.concatenate([-table[i, i + 1 :] for i in range(len(table) - 1)] or [np.zeros(0)])
    sizes = np.abs(squares)
    rounding = 64 * float(np.finfo(points.dtype).eps) * float(sizes.max(initial=0.0))
    lowest = float(squares.min(initial=0.0))
    apart = sizes[sizes > rounding]
    beta = 1.0 / float(np.median(apart)) if apart.size else None
    return MedianRule(beta, minus, lowest if lowest < -rounding else 0.0)
