"""Transformers in float64, one token and one head at a time, from their papers; 4-bit blocks decoded by hand.

Nothing here uses qkcore: attention, norms, rotations and dequantisation are written independently.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


def encoder(net: Any, ids: Any) -> tuple[list[Array], list[Array]]:
    """Logits (heads, n, n) of every layer, and every state (n, d): BERT (Devlin et al. 2018, 3)."""

    def f64(x: Any) -> Array:
        return np.asarray(x, dtype=np.float64)

    def affine(a: Any, x: Array) -> Array:
        return np.stack([f64(a.weight).T @ row + f64(a.bias) for row in x])

    def norm(a: Any, x: Array) -> Array:
        rows = [(row - row.mean()) / math.sqrt(row.var() + net.eps) for row in x]
        return np.stack(rows) * f64(a.weight) + f64(a.bias)

    def act(x: Array) -> Array:
        if net.activation == "gelu":
            return x * 0.5 * np.vectorize(lambda v: 1 + math.erf(v / math.sqrt(2)))(x)
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = np.stack([f64(net.words[t]) + f64(net.positions[k]) for k, t in enumerate(ids)])
    x = norm(net.norm, x + f64(net.segment))
    if net.project is not None:
        x = affine(net.project, x)
    states, logits = [x], []
    for layer in net.layers:
        q, k, v = (affine(a, x) for a in (layer.query, layer.key, layer.value))
        z, mixed = _heads(q, k, v, net.n_heads, net.n_heads, causal=False)
        x = norm(layer.norm_attention, affine(layer.mixed, mixed) + x)
        x = norm(layer.norm_output, affine(layer.down, act(affine(layer.up, x))) + x)
        states.append(x)
        logits.append(z)
    return logits, states


def decoder(net: Any, ids: Any) -> tuple[list[Array], list[Array], Array]:
    """The same of llama (Touvron et al. 2023, 2.2), and the logits of the next token."""

    def f64(x: Any) -> Array:
        return np.asarray(x, dtype=np.float64)

    def norm(gain: Any, x: Array) -> Array:
        return np.stack([row / math.sqrt((row**2).mean() + net.eps) for row in x]) * f64(gain)

    x = f64(net.words)[np.asarray(ids)]
    states, logits = [x], []
    for layer in net.layers:
        seen = norm(layer.norm_attention, x)
        q, k, v = (seen @ f64(w) for w in (layer.query, layer.key, layer.value))
        q = _turned(q, net.n_heads, net.rotary_base)
        k = _turned(k, net.n_key_heads, net.rotary_base)
        z, mixed = _heads(q, k, v, net.n_heads, net.n_key_heads, causal=True)
        x = x + mixed @ f64(layer.mixed)
        seen = norm(layer.norm_feed, x)
        gate = seen @ f64(layer.gate)
        x = x + (gate / (1 + np.exp(-gate)) * (seen @ f64(layer.up))) @ f64(layer.down)
        states.append(x)
        logits.append(z)
    return logits, states, norm(net.norm, x) @ f64(net.probe).T


def _heads(
    q: Array, k: Array, v: Array, n_heads: int, n_key_heads: int, *, causal: bool
) -> tuple[Array, Array]:
    n, d = len(q), q.shape[1] // n_heads
    z = np.full((n_heads, n, n), -np.inf)
    out = np.zeros((n, n_heads * d))
    for h in range(n_heads):
        g = h * n_key_heads // n_heads
        mine, theirs = slice(h * d, (h + 1) * d), slice(g * d, (g + 1) * d)
        for i in range(n):
            last = i + 1 if causal else n
            z[h, i, :last] = k[:last, theirs] @ q[i, mine] / math.sqrt(d)
            out[i, mine] = softmax(z[h, i, :last]) @ v[:last, theirs]
    return z, out


def _turned(x: Array, n_heads: int, base: float) -> Array:
    """Rotary positions as multiplication by complex numbers (Su et al. 2021, 3.4)."""
    n, width = x.shape
    d = width // n_heads
    pairs = x.reshape(n, n_heads, d // 2, 2)
    as_complex = pairs[..., 0] + 1j * pairs[..., 1]
    rate = base ** (-2 * np.arange(d // 2) / d)
    as_complex *= np.exp(1j * np.arange(n)[:, None, None] * rate)
    return np.stack([as_complex.real, as_complex.imag], axis=-1).reshape(n, width)


def q4_1(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Blocks of 32 weights: a scale and a minimum (float16), then 16 bytes of two 4-bit numbers each."""
    blocks = raw.reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    return np.concatenate([low, high], axis=1) * scale + least


def q8_0(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Blocks of 32 weights: a scale (float16), then 32 signed bytes."""
    blocks = raw.reshape(-1, 34)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale
