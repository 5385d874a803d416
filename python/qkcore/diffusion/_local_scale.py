"""Scales from nearest neighbours, and the self-tuning kernel that has one at every point."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real, Scores
from .._points import WLike, metric_factor
from ..scores import distance, dot

Double = npt.NDArray[np.float64]

TREE_UP_TO = 8  # up to this many dimensions a k-d tree is faster than going through all pairs
_BLOCK = 2**22  # number of distances that are stored at a time
# The smallest scale of a point, relative to its distance from the centre of the data. The scores are
# differences of numbers up to the square of the inverse of this, so their error is then about 1e-5.
_FLOOR = 1e-5


def own_copy(W: WLike) -> WLike:
    """A copy of W, so that changes of the caller's array after fit do not reach transform."""
    if W is None:
        return None
    return tuple(map(np.array, W)) if isinstance(W, tuple) else np.array(W)


def features_of(points: Real, W: WLike, what: str) -> Double:
    """Points (n, d) as float64 features whose Euclidean distance is that of the metric W."""
    x = points.astype(np.float64)
    if W is None:
        return x
    factor, negative = metric_factor(W, points.shape[-1], points.dtype)
    if negative:
        raise ValueError(
            f"W: wanted a metric without negative eigenvalues for {what}, got one with {negative}; "
            "symmetrise and lift it, or pass beta as a number"
        )
    out: Double = x @ factor.astype(np.float64)
    return out


def neighbor_count(value: object, n: int) -> int:
    """``n_neighbors``, checked, but at most the number of other points."""
    return min(
        _checks.integer_within("n_neighbors", value, 1, 10**9, "use one neighbour at least"), n - 1
    )


def neighbor_distances(queries: Double, points: Double, rank: int, n_threads: int) -> Double:
    """The distance from each query to its rank-th nearest of the points, the nearest having rank 0.

    If that is 0, because points are repeated, it is the distance to the nearest different point (0 if there
    is none). Distances are computed in blocks, in O(N) memory.
    """
    from scipy.spatial import cKDTree

    if points.shape[1] <= TREE_UP_TO:
        found, _ = cKDTree(points).query(queries, k=[rank + 1], workers=n_threads)
    else:
        found = np.concatenate(
            [np.partition(d, rank, axis=1)[:, rank] for d in blocks_of_distances(queries, points)]
        )
    out: Double = np.asarray(found, dtype=np.float64).reshape(-1)
    zero = np.flatnonzero(out == 0)
    if zero.size:
        nearest = [
            np.where(d > 0, d, np.inf).min(axis=1)
            for d in blocks_of_distances(queries[zero], points)
        ]
        other = np.concatenate(nearest)
        out[zero] = np.where(np.isfinite(other), other, 0.0)
    return out


def blocks_of_distances(queries: Double, points: Double) -> Iterator[Double]:
    """Blocks of rows of the matrix of distances."""
    from scipy.spatial.distance import cdist

    rows = max(1, _BLOCK // len(points))
    for at in range(0, len(queries), rows):
        yield cdist(queries[at : at + rows], points)


class LocalKernel:
    """The scores :math:`-\\beta |x_i-x_j|^2/(\\sigma_i\\sigma_j)` with a scale for every point.

    With :math:`y = x/\\sigma` and :math:`q = |x|^2/\\sigma` the scores are
    :math:`\\beta(2\\,y_i\\cdot y_j - q_i/\\sigma_j - q_j/\\sigma_i)`: three dot products, so that no
    N x N array is needed. The terms cancel, so points are taken relative to their median, in float64.
    """

    beta = 1.0
    scales: Double
    """the scales of the points of the fit"""

    def __init__(self, points: Real, W: WLike, what: str) -> None:
        self._W = own_copy(W)
        self._what = what
        features = features_of(points, self._W, what)
        self._centre = np.median(features, axis=0)
        self.features: Double = features - self._centre

    def features_of(self, points: Real) -> Double:
        """Points as features whose Euclidean distance is that of the metric, from the median of the fit."""
        out: Double = features_of(points, self._W, self._what) - self._centre
        return out

    def scales_of(self, points: Real, n_threads: int) -> Double:
        """The scales of new points."""
        raise NotImplementedError

    def scores(self) -> Scores:
        """The scores between the points of the fit; they are symmetric."""
        terms = _terms(self.features, self.scales)
        return _lifted(terms, terms, self.beta)

    def cross(self, points: Real, scales: Double | None) -> Scores:
        """The scores from new points with these scales to the points of the fit."""
        assert scales is not None
        left = _terms(self.features_of(points), scales)
        return _lifted(left, _terms(self.features, self.scales), self.beta)

    def sample(self, n: int) -> Scores:
        """Scores with beta 1 of at most n points, evenly spaced in their order."""
        at = np.linspace(0, len(self.features) - 1, min(len(self.features), n)).round()
        some = at.astype(np.intp)
        terms = _terms(self.features[some], self.scales[some])
        return _lifted(terms, terms, 1.0)


class SelfTuningKernel(LocalKernel):
    """Zelnik-Manor and Perona's kernel (2005): scales are distances to a neighbour."""

    def __init__(
        self, points: Real, W: WLike, beta: float, n_neighbors: int, n_threads: int
    ) -> None:
        super().__init__(points, W, 'bandwidth="self-tuning"')
        self.beta = beta
        self._rank = n_neighbors
        self.scales = self._near(self.features, n_threads)
        if not self.scales.all():
            raise ValueError(
                f'X: wanted points that differ for bandwidth="self-tuning", got {len(points)} equal ones; '
                'pass bandwidth="global" and beta as a number'
            )

    def _near(self, x: Double, n_threads: int) -> Double:
        found = neighbor_distances(x, self.features, self._rank, n_threads)
        out: Double = np.maximum(found, _FLOOR * np.linalg.norm(x, axis=1))
        return out

    def scales_of(self, points: Real, n_threads: int) -> Double:
        return self._near(self.features_of(points), n_threads)


def _terms(x: Double, scales: Double) -> tuple[Double, Double, Double]:
    inverse = (1 / scales)[:, None]
    square = np.einsum("ij,ij->i", x, x)[:, None]
    return np.ascontiguousarray(x * inverse), np.ascontiguousarray(-square * inverse), inverse


def _lifted(
    left: tuple[Double, Double, Double], right: tuple[Double, Double, Double], beta: float
) -> Scores:
    """The sum of the three dot products, known to be symmetric if both sides are the same arrays."""
    y, q, r = left
    v, p, t = right
    cross = dot(y, v, beta=2 * beta)
    return cross + dot(q, t, beta=beta) + dot(r, p, beta=beta)


class GlobalKernel:
    """The scores :math:`-\\beta D^2` with one scale for all points."""

    def __init__(self, points: Real, W: WLike, beta: float) -> None:
        self._points = points
        self._W = own_copy(W)
        self.beta = beta

    def features_of(self, points: Real) -> Double:
        """Points as features whose Euclidean distance is that of the metric."""
        return features_of(points, self._W, "neighbors")

    def scores(self) -> Scores:
        """The scores between the points of the fit; they are symmetric."""
        return distance(self._points, W=self._W, beta=self.beta)

    def scales_of(self, points: Real, n_threads: int) -> None:
        """None, because beta is the only scale."""

    def cross(self, points: Real, scales: Double | None) -> Scores:
        """The scores from new points to the points of the fit."""
        return distance(points, self._points, W=self._W, beta=self.beta)
