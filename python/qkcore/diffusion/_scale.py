"""Rules that find the scale of the kernel from the data (DAC-5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._bandwidth import MOST_POINTS, median_rule
from .._config import get_num_threads
from .._lazy_scores import Scores
from .._points import WLike
from ..operators import softmax
from ._local_scale import features_of, neighbor_count, neighbor_distances

RULES = ("median", "dimension", "knn")


@dataclass(frozen=True)
class BetaChoice:
    """The beta that a rule found; see :func:`choose_beta`."""

    beta: float
    rule: str
    """"median", "dimension" or "knn\""""
    n_points: int
    """how many of the points the rule looked at"""
    dimension: float | None = None
    """the estimated intrinsic dimension ("dimension" only)"""


def choose_beta(
    X: npt.ArrayLike, rule: str = "median", *, W: WLike = None, n_neighbors: int = 7
) -> BetaChoice:
    """The inverse scale beta of :math:`e^{-\\beta D^2}` by a stated rule (DAC-5).

    "median"
        beta = 1 / median of the squared distances between different points (those at distance 0 do
        not count). The kernel is wide: typically half of the other points have a weight above 1/e.
    "dimension"
        The beta at which the kernel sum :math:`T = \\sum_{ij} e^{-\\beta D^2_{ij}}` grows fastest with
        the scale :math:`\\epsilon = 1/\\beta` (Berry, Giannakis and Harlim 2015): the maximum of
        :math:`\\frac{d\\log T}{d\\log\\epsilon} = \\beta\\,\\frac{\\sum D^2 K}{\\sum K}`, found
        on powers of 2 and refined to 0.1 %. On a manifold of dimension m, T grows like
        :math:`\\epsilon^{m/2}`, so twice the maximum estimates m. The kernel is narrow and follows the
        shape of the data.
    "knn"
        beta = 1 / median of the squared distances from points to their ``n_neighbors``-th neighbour. The
        kernel is narrow, whatever the dimension and however far apart clusters are. A scale that suits dense
        regions isolates points in sparse ones; ``DiffusionMap(bandwidth="self-tuning")`` has a scale for each
        point.

    Of more than 1000 points, the rules look at 1000, evenly spaced in their order, so that results are
    reproducible ("knn" looks for their neighbours among all points).

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    >>> circle = np.column_stack([np.cos(angle), np.sin(angle)])
    >>> round(diffusion.choose_beta(circle).beta, 3)
    0.5
    >>> found = diffusion.choose_beta(circle, "dimension")
    >>> found.rule, round(found.dimension, 1)
    ('dimension', 1.2)
    """
    _checks.one_of("rule", rule, RULES, "or choose beta yourself")
    points, _ = _checks.points("X", X)
    _checks.shape("X", points.shape, ("n", "d"), do="pass one set of points")
    found = median_rule(points, W)
    if found.lowest < 0:
        raise ValueError(
            f"beta: wanted squared distances >= 0 for the rule {rule!r}, got {found.lowest:.3g} "
            "(W is indefinite); pass a number"
        )
    if found.beta is None:
        raise ValueError(
            f"beta: wanted points that differ for the rule {rule!r}, got {len(points)} equal ones; "
            "pass a number"
        )
    if rule == "median":
        return BetaChoice(found.beta, rule, found.minus.shape[0])
    if rule == "knn":
        x = features_of(points, W, "the rule 'knn'")
        rank = neighbor_count(n_neighbors, len(x))
        sample = x[np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).round().astype(np.intp)]
        near = neighbor_distances(sample, x, rank, get_num_threads())
        return BetaChoice(1 / float(np.median(near)) ** 2, rule, len(sample))
    return fastest_growth(found.minus, found.beta)


def fastest_growth(minus: Scores, middle: float) -> BetaChoice:
    """The maximum over beta of d log T / d log(1/beta), from ``minus``, the scores -D^2."""
    from scipy.optimize import minimize_scalar

    def growth(log2_beta: float) -> tuple[float, float]:
        """The slope, and log T less its smallest possible value log N."""
        P = softmax(minus * (middle * 2.0**log2_beta))
        lse = P.log_normalizer
        weight = np.exp(lse - lse.max())
        slope = -float(weight @ P.expected_score() / weight.sum())
        return slope, float(lse.max() + np.log(weight.sum()) - np.log(len(lse)))

    # Below 2^-4 times the middle beta every weight is near 1. Once T is near N, every point has weight with
    # itself only, and the search ends.
    best, slope = -4, -math.inf
    for exponent in range(-4, 100):
        found, above = growth(exponent)
        if found > slope:
            best, slope = exponent, found
        if above < 1e-3:
            break
    refined = minimize_scalar(
        lambda x: -growth(x)[0],
        bounds=(best - 1, best + 1),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return BetaChoice(
        middle * 2.0 ** float(refined.x), "dimension", minus.shape[0], -2 * float(refined.fun)
    )
