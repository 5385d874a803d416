"""BERT and ALBERT encoders: post-norm layers, in which every token sees every other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._attention import Array, Heads, Ids, Trace, attend, split
from ._numerics import gelu, gelu_tanh, layer_norm

ACTIVATIONS: dict[str, Any] = {"gelu": gelu, "gelu_tanh": gelu_tanh}


@dataclass(frozen=True, eq=False)
class Affine:
    """x W + b, or a layer norm's gain and bias (then ``weight`` is a vector)."""

    weight: Array
    """(inputs, outputs)"""
    bias: Array

    def __call__(self, x: Array) -> Array:
        out: Array = x @ self.weight + self.bias
        return out


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """Weights of one layer."""

    query: Affine
    key: Affine
    value: Affine
    mixed: Affine
    norm_attention: Affine
    up: Affine
    down: Affine
    norm_output: Affine


@dataclass(frozen=True, eq=False)
class Head:
    """The layers that predict masked words from states."""

    dense: Affine
    norm: Affine
    decoder: Affine


@dataclass(frozen=True, eq=False)
class Encoder:
    """Weights of an encoder; ``layers`` may hold the same layer many times (ALBERT)."""

    words: Array
    positions: Array
    segment: Array
    norm: Affine
    layers: tuple[EncoderLayer, ...]
    n_heads: int
    project: Affine | None = None
    """map from the width of the embeddings to that of the layers (ALBERT)"""
    activation: str = "gelu"
    eps: float = 1e-12
    head: Head | None = None
    causal: bool = False

    @property
    def width(self) -> int:
        """The dimension of the states."""
        return int(self.layers[0].mixed.weight.shape[1])

    def trace(self, ids: Ids) -> Trace:
        """Runs the forward pass of one passage."""
        x: Array = self.words[ids] + self.positions[: len(ids)] + self.segment
        x = layer_norm(x, self.norm.weight, self.norm.bias, self.eps)
        if self.project is not None:
            x = self.project(x)
        states, layers = [x], []
        for layer in self.layers:
            heads = Heads(
                split(layer.query(x), self.n_heads), split(layer.key(x), self.n_heads), False
            )
            mixed = layer.mixed(attend(heads, split(layer.value(x), self.n_heads)))
            norm = layer.norm_attention
            x = layer_norm(mixed + x, norm.weight, norm.bias, self.eps)
            fed = layer.down(ACTIVATIONS[self.activation](layer.up(x)))
            norm = layer.norm_output
            x = layer_norm(fed + x, norm.weight, norm.bias, self.eps)
            states.append(x)
            layers.append(heads)
        return Trace(ids, tuple(layers), np.stack(states), x)

    def read_out(self, states: Array) -> Array | None:
        """Logits over the vocabulary for states (..., d), by the head or else by the word embeddings."""
        if self.head is not None:
            x = ACTIVATIONS[self.activation](self.head.dense(states))
            x = layer_norm(x, self.head.norm.weight, self.head.norm.bias, self.eps)
            return self.head.decoder(x)
        if self.project is not None:  # the embeddings have another width, and there is no head
            return None
        out: Array = states @ self.words.T
        return out
