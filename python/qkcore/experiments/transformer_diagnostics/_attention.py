"""Attention of all heads on qkcore's engine, and the record of a forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

Array = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Heads:
    """Queries and keys (heads, n, d) of one layer, which determine its logits."""

    queries: Array
    keys: Array
    causal: bool

    @property
    def unmasked(self) -> qk.Scores:
        """The logits as if every token saw every other."""
        return qk.scores.dot(self.queries, self.keys, beta=1 / math.sqrt(self.queries.shape[-1]))

    @property
    def scores(self) -> qk.Scores:
        """The logits as the model uses them."""
        return self.unmasked.causal() if self.causal else self.unmasked

    @property
    def logits(self) -> Array:
        """(heads, n, n), -inf where masked."""
        return self.scores.to_numpy()


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one passage through a model: heads of all layers, and states of the residual stream."""

    ids: Ids
    layers: tuple[Heads, ...] = field(repr=False)
    hidden: Array = field(repr=False)
    """(layers + 1, n, d): the input of the first layer, then the output of each layer"""
    output: Array = field(repr=False)
    """(n, d): hidden[-1] after the model's last norm, if it has one"""

    @property
    def n_tokens(self) -> int:
        """The number of tokens, and so of rows of every attention matrix."""
        return len(self.ids)


def split(x: Array, n_heads: int) -> Array:
    """Reshapes (n, heads * d) to (heads, n, d)."""
    n, width = x.shape
    return np.ascontiguousarray(x.reshape(n, n_heads, width // n_heads).swapaxes(0, 1))


def attend(heads: Heads, values: Array) -> Array:
    """softmax(scores) V of all heads, side by side: (n, heads * d)."""
    mixed = qk.softmax(heads.scores).apply(values)
    n = mixed.shape[1]
    return np.ascontiguousarray(mixed.swapaxes(0, 1)).reshape(n, -1)
