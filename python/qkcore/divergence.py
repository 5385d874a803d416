"""Divergences and similarities between points, from which scores are made (DAC-1, eqs 1-4, 37-38).

They are lazy, as scores are: only :meth:`Divergence.to_numpy` forms an N x M array.
:meth:`Divergence.scores` turns a divergence d into the logits :math:`-\\beta d`, and a similarity G into
:math:`\\beta G`.

======================= ===================================================================
``gram(X, Y)``          :math:`G_{ij} = x_i^\\top W y_j`  (a similarity)
``forward(X, Y)``       :math:`d^\\to_{ij} = G_{jj} - G_{ij}`
``backward(X, Y)``      :math:`d^\\gets_{ij} = G_{ii} - G_{ji}`
``squared_distance``    :math:`D^2_{ij} = d^\\to_{ij} + d^\\gets_{ij} = (x_i-y_j)^\\top W (x_i-y_j)`
======================= ===================================================================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._lazy_scores import Real, Scores
from ._points import WLike

__all__ = [
    "Divergence",
    "HermitianPartition",
    "backward",
    "forward",
    "gram",
    "hermitian_partition",
    "qk_metric",
    "squared_distance",
]


def __dir__() -> list[str]:
    return list(__all__)


class Divergence:
    """A lazy matrix of divergences (``similarity`` False) or similarities (True)."""

    __slots__ = ("_logits", "similarity")
    __array_ufunc__ = None

    def __init__(self, logits: Scores, similarity: bool) -> None:
        self._logits = logits
        self.similarity = similarity

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return self._logits.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of the points."""
        return self._logits.dtype

    @property
    def T(self) -> Divergence:
        """The transposed matrix, lazily."""
        return Divergence(self._logits.T, self.similarity)

    def scores(self, beta: float = 1.0) -> Scores:
        """The logits :math:`-\\beta d`, or :math:`+\\beta G` for a similarity."""
        return self._logits * _checks.positive("beta", beta)

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The matrix as an array (..., N, M)."""
        out = self._logits.to_numpy(n_threads=n_threads)
        if self.similarity:
            return out
        return np.subtract(0, out, out=out)  # -out would make -0 of a distance 0

    def __add__(self, other: object) -> Divergence:
        if not isinstance(other, Divergence):
            return NotImplemented
        if other.similarity != self.similarity:
            raise TypeError(
                "d + e: wanted two divergences or two similarities, got one of each; "
                "add their scores(beta) instead"
            )
        return Divergence(self._logits + other._logits, self.similarity)

    def __repr__(self) -> str:
        kind = "similarity" if self.similarity else "divergence"
        return f"Divergence(shape={self.shape}, dtype={self.dtype}, {kind})"


def gram(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None) -> Divergence:
    """The Gram matrix :math:`X Y^\\top`, or the QK Gram matrix :math:`X W Y^\\top` (DAC-1, eq 3).

    W may be asymmetric, rectangular (d, d'), or a pair of factors (W_Q, W_K).

    >>> import numpy as np, qkcore as qk
    >>> qk.divergence.gram(np.array([[1.0, 0.0], [1.0, 2.0]])).to_numpy()
    array([[1., 1.],
           [1., 5.]])
    """
    return Divergence(scores.dot(X, Y, W=W), True)


def squared_distance(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None
) -> Divergence:
    """:math:`D^2_{ij} = (x_i - y_j)^\\top W (x_i - y_j)` (DAC-1, eqs 1-2).

    Only the symmetric part of W matters.

    >>> import numpy as np, qkcore as qk
    >>> qk.divergence.squared_distance(np.array([[0.0], [3.0]])).to_numpy()
    array([[0., 9.],
           [9., 0.]])
    """
    return Divergence(scores.distance(X, Y, W=W), False)


def forward(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None) -> Divergence:
    """:math:`d^\\to_{ij} = G_{jj} - G_{ij}` (DAC-1, eq 2).

    It is zero on the diagonal, and elsewhere of either sign.

    >>> import numpy as np, qkcore as qk
    >>> R = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> qk.divergence.forward(R).to_numpy()
    array([[0., 4.],
           [1., 0.]])
    """
    return Divergence(scores.forward(X, Y, W=W), False)


def backward(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None) -> Divergence:
    """:math:`d^\\gets_{ij} = G_{ii} - G_{ji}` (DAC-1, eq 2), the transpose of forward (erratum 14).

    >>> import numpy as np, qkcore as qk
    >>> R = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> both = qk.divergence.forward(R) + qk.divergence.backward(R)
    >>> both.to_numpy()  # the squared distance
    array([[0., 5.],
           [5., 0.]])
    """
    return Divergence(scores.backward(X, Y, W=W), False)


def qk_metric(Q: npt.ArrayLike, K: npt.ArrayLike, *, symmetrized: bool = False) -> Divergence:
    """:math:`|Q_i|^2 + |K_j|^2 - Q_i\\cdot K_j - Q_j\\cdot K_i`, the "QK metric" of DAC D.2 (DAC-1).

    As printed it is not symmetric unless :math:`|Q_i| = |K_i|` for all i (erratum 2). ``symmetrized=True``
    gives the mean of it and its transpose, which is symmetric. Both are 0 if Q_i = K_j = Q_j = K_i, and both
    may be negative. Q and K are (..., N, d).

    >>> import numpy as np, qkcore as qk
    >>> Q, K = np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]])
    >>> qk.divergence.qk_metric(Q, K).to_numpy()
    array([[ 0., -1.],
           [ 3.,  4.]])
    >>> qk.divergence.qk_metric(Q, K, symmetrized=True).to_numpy()
    array([[0., 1.],
           [1., 4.]])
    """
    q, _ = _checks.points("Q", Q)
    k, _ = _checks.points("K", K)
    _checks.same_dtype("K", k, q.dtype, "Q")
    _checks.shape("K", k.shape, (..., *q.shape[-2:]), what="points", why="like Q")
    cross = scores.dot(q, k) + scores.dot(k, q)
    with np.errstate(over="ignore"):  # Scores raises an error for an overflow
        q_norm = np.einsum("...nd,...nd->...n", q, q)
        k_norm = np.einsum("...nd,...nd->...n", k, k)
    if symmetrized:
        mean = -(q_norm + k_norm) / 2
        return Divergence(cross.shift(rows=mean, columns=mean), False)
    return Divergence(cross.shift(rows=-q_norm, columns=-k_norm), False)


class HermitianPartition(NamedTuple):
    """:math:`V = S + iA` with S symmetric and A antisymmetric (DAC-1, eq 4)."""

    symmetric: Real
    antisymmetric: Real

    @property
    def V(self) -> npt.NDArray[np.complexfloating[Any, Any]]:
        """The Hermitian matrix S + iA."""
        out: npt.NDArray[np.complexfloating[Any, Any]] = self.symmetric + 1j * self.antisymmetric
        return out

    def phases(self, X: npt.ArrayLike) -> Divergence:
        """Token-space phases :math:`\\Theta = X A X^\\top`, antisymmetric, lazily (eq 37)."""
        return gram(X, W=self.antisymmetric)


def hermitian_partition(
    W: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
) -> HermitianPartition:
    """S = (W + W^T)/2 and A = (W - W^T)/2 (DAC-1, eq 4), for a matrix W or factors (W_Q, W_K).

    S is the metric of the squared distance, and A determines the magnetic phases.

    >>> import numpy as np, qkcore as qk
    >>> S, A = qk.divergence.hermitian_partition(np.array([[1.0, 2.0], [0.0, 1.0]]))
    >>> S
    array([[1., 1.],
           [1., 1.]])
    >>> A
    array([[ 0.,  1.],
           [-1.,  0.]])
    """
    if isinstance(W, tuple):
        if len(W) != 2:
            raise ValueError(f"W: wanted a matrix or two factors (W_Q, W_K), got {len(W)} of them")
        left, right = (_checks.real_array(f"W[{k}]", part) for k, part in enumerate(W))
        _checks.same_dtype("W[1]", right, left.dtype, "W[0]")
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            raise ValueError(
                f"W: wanted factors (d, r) and (r, d), got shapes {left.shape} and {right.shape}"
            )
        matrix: Real = left @ right
    else:
        matrix = _checks.real_array("W", W)
    _checks.square("W", matrix.shape)
    _checks.not_empty("W", matrix)
    _checks.finite("W", matrix)
    half = matrix / 2
    return HermitianPartition(half + half.T, half - half.T)
