"""Models with random weights: tiny ones for the quick run, and controls of the trained ones."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ._attention import Array
from ._decoder import Decoder, DecoderLayer
from ._encoder import Affine, Encoder, EncoderLayer


def tiny_encoder(
    seed: int, *, layers: int = 4, d: int = 24, heads: int = 3, vocabulary: int = 97
) -> Encoder:
    """An encoder with random weights, which runs the same code as BERT."""
    draw = _Draw(seed)
    return Encoder(
        words=draw.matrix(vocabulary, d, 1.0),
        positions=draw.matrix(512, d, 0.5),
        segment=draw.vector(d),
        norm=draw.norm(d),
        layers=tuple(
            EncoderLayer(
                query=draw.affine(d, d, 2.0),
                key=draw.affine(d, d, 2.0),
                value=draw.affine(d, d),
                mixed=draw.affine(d, d),
                norm_attention=draw.norm(d),
                up=draw.affine(d, 4 * d),
                down=draw.affine(4 * d, d),
                norm_output=draw.norm(d),
            )
            for _ in range(layers)
        ),
        n_heads=heads,
    )  # fmt: skip


def tiny_decoder(
    seed: int, *, layers: int = 6, d: int = 32, heads: int = 4, vocabulary: int = 97
) -> Decoder:
    """A decoder with random weights; it is rotary, grouped and gated like llama."""
    draw = _Draw(seed)
    keys = heads // 2
    return Decoder(
        words=draw.matrix(vocabulary, d, 1.0),
        layers=tuple(
            DecoderLayer(
                norm_attention=1 + 0.1 * draw.vector(d),
                query=draw.matrix(d, d, 1.5 / d**0.5),
                key=draw.matrix(d, d * keys // heads, 1.5 / d**0.5),
                value=draw.matrix(d, d * keys // heads, 1 / d**0.5),
                mixed=draw.matrix(d, d, 1 / d**0.5),
                norm_feed=1 + 0.1 * draw.vector(d),
                gate=draw.matrix(d, 2 * d, 1 / d**0.5),
                up=draw.matrix(d, 2 * d, 1 / d**0.5),
                down=draw.matrix(2 * d, d, 1 / d**0.5),
            )
            for _ in range(layers)
        ),
        norm=1 + 0.1 * draw.vector(d),
        n_heads=heads,
        n_key_heads=keys,
        rotary_base=1e4,
        eps=1e-5,
    )


class _Draw:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, scale: float) -> Array:
        return (scale * self.rng.standard_normal((rows, columns))).astype(np.float32)

    def vector(self, d: int) -> Array:
        return self.rng.standard_normal(d).astype(np.float32)

    def affine(self, inputs: int, outputs: int, gain: float = 1.0) -> Affine:
        return Affine(self.matrix(inputs, outputs, gain / inputs**0.5), 0.1 * self.vector(outputs))

    def norm(self, d: int) -> Affine:
        return Affine(1 + 0.1 * self.vector(d), 0.1 * self.vector(d))


def shuffled(model: Any, seed: int) -> Any:
    """The model with the entries of every matrix in random order, which keeps sizes and scales only.

    A layer that occurs several times is shuffled once and stays shared.
    """
    rng = np.random.default_rng(seed)
    done: dict[int, Any] = {}

    def mix(value: Any) -> Any:
        if id(value) in done:
            return done[id(value)]
        out = value
        if isinstance(value, np.ndarray) and value.ndim == 2:
            out = rng.permutation(value.ravel()).reshape(value.shape)
        elif isinstance(value, tuple):
            out = tuple(mix(v) for v in value)
        elif is_dataclass(value) and not isinstance(value, type):
            out = replace(value, **{f.name: mix(getattr(value, f.name)) for f in fields(value)})
        done[id(value)] = out
        return out

    return mix(model)
