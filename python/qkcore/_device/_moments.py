"""Entropies and expected scores: sums over each row of weights times scores, by blocks of rows.

The reductions on a device multiply weights with given values, not with the scores themselves. So the weights
and the scores of a block of rows are both formed and then read once. Sums over a whole matrix are in double.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .._lazy_scores import Scores
from ._cuda import one_of

__all__ = ["expected_rows"]

# The size of one array of a block; three such arrays exist at a time.
BLOCK_BYTES = 2**26


def _blocks(s: Scores) -> Iterator[tuple[int, int]]:
    n, m = s.shape[-2:]
    count = max(1, BLOCK_BYTES // (m * s.dtype.itemsize))
    return ((first, min(n, first + count)) for first in range(0, n, count))


def expected_rows(log_weights: Scores, values: Scores, stream: int) -> Any:
    """sum_j exp(log_weights_ij) values_ij of each row, (..., N); masked entries count as 0."""
    c: Any = values.backend
    batch = values.batch
    n = values.shape[-2]
    out = c.module.empty((*batch, n), str(values.dtype), c.device, stream)
    for k, index in enumerate(itertools.product(*map(range, batch))):
        weights, scores = log_weights._problem(k), values._problem(k)
        row = one_of(out, index, 1)
        for first, last in _blocks(scores):
            weight = c.module.materialize(
                weights.rows(first, last)._described, False, stream=stream
            )
            raw = c.module.materialize(scores.rows(first, last)._described, True, stream=stream)
            # -s, with 0 for masked entries, because 0 times -inf would be NaN.
            c.module.map_vector("minus_or_zero", raw, out=raw, stream=stream)
            c.module.row_dots(weight, raw, -1.0, out=row.cut(-1, first, last), stream=stream)
    return out
