"""The Transformer encoder block as a kernel on measures (MTA-1, section 3.2 and appendix A)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, scores
from .._lazy_scores import Real
from ..operators import softmax
from ._kernels import AttentionKernel, Layer
from ._lookups import LinearLookup
from ._measure import Measure, _like, as_measure
from ._potentials import DotPotential

__all__ = ["ConditionedTransformer", "FeedForward", "LayerNorm", "TransformerKernel"]


def _relu(x: Real) -> Real:
    return np.maximum(x, 0)


def _gelu(x: Real) -> Real:
    from scipy.special import erf

    out: Real = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return out.astype(x.dtype)


# Function and Lipschitz constant of each activation.
_ACTIVATIONS: dict[str, tuple[Callable[[Real], Real], float]] = {
    "relu": (_relu, 1.0),
    "gelu": (_gelu, 1.1290),
    "tanh": (lambda x: np.tanh(x), 1.0),
    "identity": (lambda x: x, 1.0),
}


def _matrix(name: str, value: npt.ArrayLike, ndim: int, dtype: np.dtype[Any] | None) -> Real:
    array = _checks.real_array(name, value)
    if array.ndim != ndim:
        raise ValueError(f"{name}: wanted an array with {ndim} axes, got shape {array.shape}")
    _checks.not_empty(name, array)
    _checks.finite(name, array)
    if dtype is not None:
        _checks.same_dtype(name, array, dtype, "the other weights")
    return array


class FeedForward:
    """:math:`f(x) = \\sigma(x W_1 + b_1) W_2 + b_2`: W1 (d, h), W2 (h, d), biases 0 if left out.

    ``activation``: "relu", "gelu", "tanh" or "identity".
    """

    def __init__(
        self,
        W1: npt.ArrayLike,
        W2: npt.ArrayLike,
        b1: npt.ArrayLike | None = None,
        b2: npt.ArrayLike | None = None,
        *,
        activation: str = "relu",
    ) -> None:
        self.W1 = _matrix("W1", W1, 2, None)
        self.W2 = _matrix("W2", W2, 2, self.W1.dtype)
        _checks.shape(
            "W2", self.W2.shape, (self.W1.shape[1], "d'"), why="with as many rows as W1 has columns"
        )
        self.b1 = self._bias("b1", b1, self.W1.shape[1])
        self.b2 = self._bias("b2", b2, self.W2.shape[1])
        _checks.one_of("activation", activation, _ACTIVATIONS)
        self.activation = activation

    def _bias(self, name: str, value: npt.ArrayLike | None, n: int) -> Real:
        if value is None:
            return np.zeros(n, self.W1.dtype)
        b = _matrix(name, value, 1, self.W1.dtype)
        _checks.shape(name, b.shape, (n,))
        return b

    @property
    def lipschitz(self) -> float:
        """An l1 Lipschitz constant: the product of those of both matrices and of the activation."""
        norms = [float(np.abs(W).sum(axis=1).max()) for W in (self.W1, self.W2)]
        return norms[0] * _ACTIVATIONS[self.activation][1] * norms[1]

    def __call__(self, X: Real) -> Real:
        """f of every row."""
        out: Real = _ACTIVATIONS[self.activation][0](X @ self.W1 + self.b1) @ self.W2 + self.b2
        return out


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """:math:`(x - \\bar x)/\\sqrt{var(x) + \\epsilon}\\,\\gamma + b` of every row (scale gamma, shift b)."""

    scale: npt.NDArray[Any] | None = None
    shift: npt.NDArray[Any] | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        _checks.positive("eps", self.eps)
        for name, value in (("scale", self.scale), ("shift", self.shift)):
            if value is not None:
                array = _checks.real_array(name, value)
                _checks.not_empty(name, array)
                _checks.finite(name, array)

    def __call__(self, X: Real) -> Real:
        """The normalised rows."""
        centred = X - X.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + X.dtype.type(self.eps))
        out: Real = centred / deviation
        if self.scale is not None:
            out = out * self.scale
        return out if self.shift is None else out + self.shift


class TransformerKernel(Layer):
    """A multi-head encoder block :math:`T = M F` on measures (MTA-1, proposition 12, appendix A).

    W_Q, W_K (heads, d, k), W_V (heads, d, v), W_O (heads, v, d): rows are points, so a head is
    :math:`softmax(\\beta X W_Q W_K^T Y^T)\\,Y W_V W_O` with beta = 1/sqrt(k) unless given. In the paper
    the heads are mixed with weights 1/H, O multiplies by H, and the projection takes the mean, which together
    is the sum over heads. ``ffn``: a :class:`FeedForward`, any function of the rows, or None.
    ``residual=True`` adds the input of attention to its output, and likewise for ``ffn``. ``norm``: None,
    "post" (after each addition, as in the original Transformer) or "pre"; ``norms``: two :class:`LayerNorm`.

    >>> import numpy as np
    >>> from qkcore.measure import Measure, TransformerKernel
    >>> rng = np.random.default_rng(0)
    >>> W_Q, W_K, W_V = (rng.normal(size=(2, 4, 2)) for _ in range(3))
    >>> T = TransformerKernel(W_Q, W_K, W_V, rng.normal(size=(2, 2, 4)))
    >>> mu = Measure(rng.normal(size=(5, 4)))
    >>> mu @ T(mu)
    Measure(5 points in R^4, uniform, float64)
    """

    def __init__(
        self,
        W_Q: npt.ArrayLike,
        W_K: npt.ArrayLike,
        W_V: npt.ArrayLike,
        W_O: npt.ArrayLike,
        *,
        ffn: FeedForward | Callable[[Real], Real] | None = None,
        residual: bool = False,
        norm: str | None = None,
        norms: tuple[LayerNorm, LayerNorm] | None = None,
        beta: float | None = None,
    ) -> None:
        self.W_Q = _matrix("W_Q", W_Q, 3, None)
        self.W_K = _matrix("W_K", W_K, 3, self.W_Q.dtype)
        self.W_V = _matrix("W_V", W_V, 3, self.W_Q.dtype)
        self.W_O = _matrix("W_O", W_O, 3, self.W_Q.dtype)
        heads, d, k = self.W_Q.shape
        v = self.W_V.shape[2]
        for name, got, wanted in (
            ("W_K", self.W_K.shape, (heads, d, k)),
            ("W_V", self.W_V.shape, (heads, d, v)),
            ("W_O", self.W_O.shape, (heads, v, d)),
        ):
            _checks.shape(
                name, got, wanted, why=f"(heads, rows, columns) for W_Q of shape {self.W_Q.shape}"
            )
        _checks.one_of("norm", norm, (None, "post", "pre"))
        if norms is not None and norm is None:
            raise ValueError('norms: wanted norm="post" or "pre" as well, got norm=None')
        if isinstance(ffn, FeedForward):
            _checks.same_dtype("ffn.W1", ffn.W1, self.W_Q.dtype, "W_Q")
            if ffn.W1.shape[0] != d or ffn.W2.shape[1] != d:
                raise ValueError(
                    f"ffn: wanted a map of R^{d}, got R^{ffn.W1.shape[0]} to R^{ffn.W2.shape[1]}"
                )
        self.ffn = ffn
        self.residual = residual
        self.norm = norm
        self.norms = (LayerNorm(), LayerNorm()) if norms is None else norms
        self.beta = k**-0.5 if beta is None else _checks.positive("beta", beta)

    @property
    def dim(self) -> int:
        """The dimension d of the points."""
        return int(self.W_Q.shape[1])

    def __call__(self, mu: Measure | npt.ArrayLike) -> ConditionedTransformer:
        """The Markov kernel :math:`T_\\mu`."""
        measure = as_measure("mu", mu)
        _checks.same_dtype("mu", measure.points, self.W_Q.dtype, "W_Q")
        _checks.same_space("mu", measure.dim, self.dim, "W_Q")
        return ConditionedTransformer(self, measure)

    def head(self, h: int) -> AttentionKernel:
        """Head h as an attention kernel, with W_O included in its values."""
        i = _checks.integer_within("h", h, 0, len(self.W_Q) - 1, "the heads of W_Q")
        potential = DotPotential(self.beta, (self.W_Q[i], np.ascontiguousarray(self.W_K[i].T)))
        return AttentionKernel(potential, LinearLookup(self.W_V[i] @ self.W_O[i]))


@dataclass(frozen=True, eq=False)
class ConditionedTransformer:
    """:math:`T_\\mu`, a Markov kernel; made by calling a :class:`TransformerKernel` with mu."""

    kernel: TransformerKernel
    measure: Measure

    def multi_head(self, Q: Real, K: Real) -> Real:
        """The sum over heads :math:`\\sum_h softmax(\\beta Q W_Q^h (K W_K^h)^T) K W_V^h W_O^h`, (m, d)."""
        T = self.kernel
        queries, keys = np.matmul(Q, T.W_Q), np.matmul(K, T.W_K)
        values = np.matmul(np.matmul(K, T.W_V), T.W_O)
        s = scores.dot(queries, keys, beta=T.beta)
        if not self.measure.uniform:
            s = s.shift(columns=self.measure.log_weights)
        out: Real = (softmax(s) @ values).sum(axis=0)
        return out

    def attend(self, Q: npt.ArrayLike) -> Real:
        """The block's output for queries (m, d) against the points of mu."""
        T = self.kernel
        x = _like(self.measure, "Q", Q)
        keys = self.measure.points
        first, second = T.norms
        if T.norm == "pre":
            y = self.multi_head(first(x), first(keys))
        else:
            y = self.multi_head(x, keys)
        y = x + y if T.residual else y
        y = first(y) if T.norm == "post" else y
        if T.ffn is not None:
            z = T.ffn(second(y) if T.norm == "pre" else y)
            y = y + z if T.residual else z
            y = second(y) if T.norm == "post" else y
        return y

    def transport(self, nu: Measure) -> Measure:
        """:math:`\\nu T_\\mu`; also written ``nu @ T(mu)``."""
        other = as_measure("nu", nu)
        return Measure(self.attend(other.points), other.weights)
