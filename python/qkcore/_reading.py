"""Figures that describe attention: the largest weights of rows, and how many entries a row can see."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real, Scores

if TYPE_CHECKING:
    from .operators import MarkovOperator

__all__ = ["LargestWeights", "largest_weights", "log_visible"]

# Rows are processed in blocks of this many entries; Ctrl-C takes effect between blocks.
_ENTRIES = 2**22


class LargestWeights(NamedTuple):
    """The largest weights of every row, in falling order."""

    weights: Real
    """(..., N, k)"""
    columns: npt.NDArray[np.intp]
    """their columns, (..., N, k); masked entries have the weight 0"""


def largest_weights(P: MarkovOperator, k: int, n_threads: int | None) -> LargestWeights:
    """The k largest weights of every row, found block by block of rows, in O(N k) memory."""
    log_weights = P.log_weights
    m = P.shape[-1]
    _checks.integer_within("k", k, 1, m, "there are as many columns")
    if log_weights.terms.offsets is not None:
        raise ValueError("top_k: wanted scores that are not ragged; take the blocks one by one")
    weights, columns = [], []
    for rows in _blocks(log_weights):
        block = rows.to_numpy(n_threads=n_threads)
        found = np.argpartition(-block, k - 1, axis=-1)[..., :k] if k < m else None
        at = np.broadcast_to(np.arange(m), block.shape) if found is None else found
        values = np.take_along_axis(block, at, -1)
        order = np.argsort(-values, axis=-1, kind="stable")
        weights.append(np.exp(np.take_along_axis(values, order, -1)))
        columns.append(np.take_along_axis(at, order, -1))
    return LargestWeights(np.concatenate(weights, axis=-2), np.concatenate(columns, axis=-2))


def log_visible(s: Scores, n_threads: int | None) -> Any:
    """The logarithm of the number of unmasked entries in each row, (..., N), or one number for all rows."""
    terms = s.terms
    if not s.holed:
        if not (terms.masks or terms.banded or terms.offsets is not None):
            return math.log(s.n_cols)
        masks = terms._replace(dots=(), distances=(), dense=()).with_shifts((), ())
        return s._with(masks, bound=0.0).logsumexp(n_threads=n_threads)
    if terms.offsets is not None:
        raise ValueError(
            "normalized_entropy: wanted ragged scores whose only -inf come from masks, got -inf in an array"
        )
    counts = [np.isfinite(rows.to_numpy(n_threads=n_threads)).sum(axis=-1) for rows in _blocks(s)]
    with np.errstate(divide="ignore"):
        return np.log(np.concatenate(counts, axis=-1))


def _blocks(s: Scores) -> Any:
    n = s.n_rows
    height = max(1, _ENTRIES // max(1, math.prod(s.batch) * s.n_cols))
    return (s.rows(first, min(n, first + height)) for first in range(0, n, height))
