"""Kernels restricted to nearest neighbours, as sparse arrays in O(N k) memory."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._local_scale import TREE_UP_TO, Double, GlobalKernel, LocalKernel, blocks_of_distances

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .._lazy_scores import Real

_Index = npt.NDArray[np.int64]
_ROWS = 4096  # number of points whose neighbours are Python lists at the same time
# Distances this close to that of the last neighbour are ties: the graph must not depend on rounding.
_TIE = 1e-12


class NeighborLogits:
    """Scores of neighbours, and -inf for all other pairs, as compressed rows. No row is empty."""

    def __init__(self, starts: _Index, columns: _Index, values: Double, n_columns: int) -> None:
        self._starts, self._columns, self._values = starts, columns, values
        self._n_columns = n_columns
        self._rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def log_row_sums(self, shift: Real | None) -> Double:
        """log sum_j exp(s_ij + shift_j)."""
        values = self._values if shift is None else self._values + shift[self._columns]
        top = np.maximum.reduceat(values, self._starts[:-1])
        sums = np.add.reduceat(np.exp(values - top[self._rows]), self._starts[:-1])
        out: Double = top + np.log(sums)
        return out

    def kernel(self, rows: Double, columns: Real | None) -> csr_array[Any]:
        """exp(s_ij + rows_i + columns_j) as SciPy's sparse array."""
        from scipy.sparse import csr_array

        values = self._values + rows[self._rows]
        if columns is not None:
            values += columns[self._columns]
        weights = np.exp(values)
        shape = (len(self._starts) - 1, self._n_columns)
        return csr_array((weights, self._columns, self._starts), shape=shape)


class NeighborGraph:
    """Which points are neighbours: one of them is among the k nearest of the other, itself included.

    So the graph is symmetric. New points too have edges to their own k nearest points, and to the points
    whose k-th neighbour is farther away than they are. All points as far away as the k-th neighbour are
    included.
    """

    def __init__(self, kernel: GlobalKernel | LocalKernel, points: Real, k: int, n_threads: int):
        self._kernel = kernel
        self._k = k
        self._points: Double = np.ascontiguousarray(kernel.features_of(points))
        self._radii = self._reach(self._points, n_threads)

    def scores(self) -> NeighborLogits:
        """The scores between the points of the fit; they are symmetric."""
        scales = getattr(self._kernel, "scales", None)
        return self._scores(self._points, self._radii, scales)

    def cross(self, points: Real, scales: Double | None, n_threads: int) -> NeighborLogits:
        """The scores from new points with these scales to the points of the fit."""
        x = np.ascontiguousarray(self._kernel.features_of(points))
        return self._scores(x, self._reach(x, n_threads), scales)

    def _scores(self, x: Double, radii: Double, scales: Double | None) -> NeighborLogits:
        rows, columns = self._edges(x, radii)
        squares = np.zeros(len(rows))
        for k in range(x.shape[1]):  # one coordinate at a time, to need O(N k) memory only
            squares += (x[rows, k] - self._points[columns, k]) ** 2
        if scales is not None:
            assert isinstance(self._kernel, LocalKernel)
            squares /= scales[rows] * self._kernel.scales[columns]
        starts = np.searchsorted(rows, np.arange(len(x) + 1)).astype(np.int64)
        return NeighborLogits(starts, columns, -self._kernel.beta * squares, len(self._points))

    def _reach(self, x: Double, n_threads: int) -> Double:
        """The distance to the k-th nearest of the points."""
        if x.shape[1] <= TREE_UP_TO:
            from scipy.spatial import cKDTree

            found, _ = cKDTree(self._points).query(x, k=[self._k], workers=n_threads)
            return np.asarray(found, dtype=np.float64).reshape(-1)
        blocks = blocks_of_distances(x, self._points)
        return np.concatenate(
            [np.partition(d, self._k - 1, axis=1)[:, self._k - 1] for d in blocks]
        )

    def _edges(self, x: Double, radii: Double) -> tuple[_Index, _Index]:
        """Pairs of a row and a column, sorted."""
        n = len(self._points)
        mine, theirs = radii * (1 + _TIE), self._radii * (1 + _TIE)
        if x.shape[1] > TREE_UP_TO:
            codes, first = [], 0
            for d in blocks_of_distances(x, self._points):
                near = d <= np.maximum(mine[first : first + len(d), None], theirs)
                codes.append(np.flatnonzero(near) + first * n)
                first += len(d)
            found = np.concatenate(codes).astype(np.int64)
        else:
            forward, to = _balls(self._points, x, mine)
            backward, of = _balls(x, self._points, theirs)
            found = np.sort(np.concatenate([forward * n + to, of * n + backward]))
            found = found[np.diff(found, prepend=-1) > 0]
        return found // n, found % n


def _balls(points: Double, centres: Double, radii: Double) -> tuple[_Index, _Index]:
    """Pairs of a centre and a point within its radius."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points)
    centre, inside = [], []
    for first in range(0, len(centres), _ROWS):
        block = slice(first, first + _ROWS)
        lists = tree.query_ball_point(centres[block], radii[block])
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        centre.append(np.repeat(np.arange(first, first + len(lists)), counts))
        inside.append(np.fromiter(chain.from_iterable(lists), np.int64, int(counts.sum())))
    return np.concatenate(centre).astype(np.int64), np.concatenate(inside)
