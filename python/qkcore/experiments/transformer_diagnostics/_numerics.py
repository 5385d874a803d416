"""The elementwise parts of a transformer, computed in the dtype of their input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf, expit

Array = npt.NDArray[np.floating[Any]]


def layer_norm(x: Array, gain: Array, bias: Array, eps: float) -> Array:
    """Normalises rows to mean 0 and variance 1, then scales and shifts them."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + x.dtype.type(eps))
    out: Array = centred / spread * gain + bias
    return out


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """Normalises rows to mean square 1, then scales them."""
    size = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + x.dtype.type(eps))
    out: Array = x / size * gain
    return out


def gelu(x: Array) -> Array:
    """GELU, exactly: x times the normal distribution function (BERT)."""
    half = x.dtype.type(0.5)
    out: Array = half * x * (1 + erf(x * x.dtype.type(math.sqrt(0.5))))
    return out


def gelu_tanh(x: Array) -> Array:
    """GELU, approximated with tanh (ALBERT)."""
    real = x.dtype.type
    inner = real(math.sqrt(2 / math.pi)) * (x + real(0.044715) * x**3)
    out: Array = real(0.5) * x * (1 + np.tanh(inner))
    return out


def silu(x: Array) -> Array:
    """SiLU: x times the logistic function."""
    out: Array = x * expit(x)
    return out


def rotate(x: Array, base: float) -> Array:
    """Rotary positions on (heads, n, d): coordinates 2k, 2k + 1 of token i turn by i base^(-2k/d).

    GGUF stores the rows of llama's query and key matrices in an order in which neighbours form a pair.

    >>> x = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    >>> rotate(x, 1e4)[0].round(4)
    array([[1.    , 0.    ],
           [0.5403, 0.8415]])
    """
    n, d = x.shape[-2:]
    rates = base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    angle = np.arange(n, dtype=np.float64)[:, None] * rates
    c, s = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * c - odd * s
    out[..., 1::2] = even * s + odd * c
    return out
