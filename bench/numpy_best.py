"""The fastest code that we can write with NumPy alone, as a careful user would have it.

Blocks of rows stay in cache, all intermediate results go into buffers allocated beforehand, row sums are
matrix-vector products (NumPy's reductions are slower), and large problems are divided among Python threads,
since NumPy releases the GIL in its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness import Array, Call

Scores = Callable[[slice, Array], None]  # writes the scores of some rows into a buffer


def dot_scores(X: Array, Y: Array, beta: float) -> Scores:
    scaled, YT = X * X.dtype.type(beta), Y.T

    def write(rows: slice, out: Array) -> None:
        np.matmul(scaled[rows], YT, out=out)

    return write


def distance_scores(X: Array, Y: Array, beta: float) -> Scores:
    """Scores of distances, 2 beta <x, y> - beta |y|^2 - beta |x|^2, as one product of augmented points."""
    b = X.dtype.type(beta)
    one = np.ones((len(X), 1), X.dtype)
    left = np.hstack([2 * b * X, -b * (X * X).sum(1, keepdims=True), one])
    right = np.hstack([Y, np.ones((len(Y), 1), Y.dtype), -b * (Y * Y).sum(1, keepdims=True)])
    return dot_scores(left, right, 1.0)


def l1_scores(X: Array, Y: Array, beta: float) -> Scores:
    """Scores from SciPy's city-block distances, which are always in double precision."""
    from scipy.spatial.distance import cdist

    def write(rows: slice, out: Array) -> None:
        np.multiply(cdist(X[rows], Y, "cityblock"), -beta, out=out, casting="same_kind")

    return write


def stable_exp(S: Array) -> Array:
    """Replaces S by exp(S - row maximum) in place; returns the row maxima as one column."""
    m: Array = S.max(axis=1, keepdims=True)
    np.subtract(S, m, out=S)
    np.exp(S, out=S)
    return m


class Rows:
    """Applies a function to row blocks, with one buffer per worker."""

    def __init__(
        self, scores: Scores, n: int, m: int, dtype: type, block: int, workers: int
    ) -> None:
        self.scores, self.workers = scores, workers
        starts = range(0, n, block)
        self.slices = [slice(start, min(start + block, n)) for start in starts]
        self.buffers: list[Array] = [np.empty((min(block, n), m), dtype) for _ in range(workers)]
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def each(self, visit: Callable[[slice, Array], None]) -> None:
        def share(worker: int) -> None:
            for rows in self.slices[worker :: self.workers]:
                S = self.buffers[worker][: rows.stop - rows.start]
                self.scores(rows, S)
                visit(rows, S)

        if self.pool is None:
            share(0)
        else:
            list(self.pool.map(share, range(self.workers)))


def attention(scores: Scores, n: int, V: Array, *, block: int = 256, workers: int = 1) -> Call:
    """softmax(scores) V."""
    work = Rows(scores, n, len(V), V.dtype.type, block, workers)
    ones = np.ones(len(V), V.dtype)
    out = np.empty((n, *V.shape[1:]), V.dtype)

    def visit(rows: slice, S: Array) -> None:
        stable_exp(S)
        total = S @ ones
        np.matmul(S, V, out=out[rows])
        out[rows] /= total[:, None] if V.ndim == 2 else total

    def call() -> Array:
        work.each(visit)
        return out

    return call


def logsumexp(
    scores: Scores, n: int, m: int, dtype: type, *, block: int = 256, workers: int = 1
) -> Call:
    """Row log-sum-exp."""
    work = Rows(scores, n, m, dtype, block, workers)
    ones: Array = np.ones(m, dtype)
    out: Array = np.empty(n, dtype)

    def visit(rows: slice, S: Array) -> None:
        peak = stable_exp(S)
        np.log(S @ ones, out=out[rows])
        out[rows] += peak[:, 0]

    def call() -> Array:
        work.each(visit)
        return out

    return call
