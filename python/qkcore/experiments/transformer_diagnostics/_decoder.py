"""A causal llama decoder: pre-norm layers, rotary positions, grouped keys, gated feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._attention import Array, Heads, Ids, Trace, attend, split
from ._numerics import rms_norm, rotate, silu


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """Weights of one layer; matrices are (inputs, outputs)."""

    norm_attention: Array
    query: Array
    key: Array
    value: Array
    mixed: Array
    norm_feed: Array
    gate: Array
    up: Array
    down: Array


@dataclass(frozen=True, eq=False)
class Decoder:
    """Weights of a decoder."""

    words: Array
    layers: tuple[DecoderLayer, ...]
    norm: Array
    n_heads: int
    n_key_heads: int
    rotary_base: float
    eps: float
    unembedding: Array | None = None
    """(V, d); None stands for the word embeddings"""
    causal: bool = True

    @property
    def width(self) -> int:
        """The dimension of the states."""
        return int(self.words.shape[1])

    @property
    def probe(self) -> Array:
        """(V, d): the matrix that turns normed states into logits of the next token."""
        return self.words if self.unembedding is None else self.unembedding

    def trace(self, ids: Ids) -> Trace:
        """Runs the forward pass of one passage."""
        x = self.words[ids]
        states, layers = [x], []
        group = self.n_heads // self.n_key_heads
        for layer in self.layers:
            seen = rms_norm(x, layer.norm_attention, self.eps)
            queries = rotate(split(seen @ layer.query, self.n_heads), self.rotary_base)
            keys = rotate(split(seen @ layer.key, self.n_key_heads), self.rotary_base)
            values = split(seen @ layer.value, self.n_key_heads)
            # Several heads read the same keys and values.
            heads = Heads(queries, np.repeat(keys, group, axis=0), True)
            x = x + attend(heads, np.repeat(values, group, axis=0)) @ layer.mixed
            seen = rms_norm(x, layer.norm_feed, self.eps)
            x = x + (silu(seen @ layer.gate) * (seen @ layer.up)) @ layer.down
            states.append(x)
            layers.append(heads)
        return Trace(ids, tuple(layers), np.stack(states), rms_norm(x, self.norm, self.eps))

    def read_out(self, states: Array) -> Array:
        """Logits over the vocabulary for states (..., d), after the last norm (the logit lens)."""
        out: Array = rms_norm(states, self.norm, self.eps) @ self.probe.T
        return out
