"""Lazy score matrices, from which every operator is made (DAC-1, DAC-2).

A score is a logit: larger means closer. Scores are only described here; reductions compute them tile by
tile, and an N x M matrix is formed only by :meth:`qkcore.Scores.to_numpy`.

==================== =====================================================================
``dense(Z)``         :math:`s_{ij} = Z_{ij}`
``dot(X, Y)``        :math:`s_{ij} = \\beta\\, x_i^\\top W y_j`
``cosine(X, Y)``     :math:`s_{ij} = \\beta \\cos\\angle(x_i, y_j)`
``forward(X, Y)``    :math:`s_{ij} = -\\beta\\,(G_{jj} - G_{ij})`
``backward(X, Y)``   :math:`s_{ij} = -\\beta\\,(G_{ii} - G_{ji})`
``distance(X, Y)``   :math:`s_{ij} = -\\beta\\,(x_i - y_j)^\\top W (x_i - y_j)`
``l1(X, Y)``         :math:`s_{ij} = -\\beta\\sum_k w_k |x_{ik} - y_{jk}|`
==================== =====================================================================

For one set of points R, :math:`G = R W R^\\top`. If X and Y differ, :math:`G_{ij} = x_i^\\top W y_j` and
:math:`G_{ji} = y_j^\\top W x_i`, while :math:`G_{ii} = x_i^\\top W x_i` uses the points of the rows and
:math:`G_{jj} = y_j^\\top W y_j` those of the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import backend_of
from ._lazy_scores import Scores
from ._points import WLike, metric_factor, pair
from ._terms import Terms

__all__ = ["backward", "cosine", "dense", "distance", "dot", "forward", "l1"]


def __dir__() -> list[str]:
    return list(__all__)


def dense(Z: npt.ArrayLike) -> Scores:
    """Scores that are read from an array Z (..., N, M), which is not copied and may have any strides.

    An entry -inf is masked.

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.dense(np.zeros((2, 4))).logsumexp()
    array([1.38629436, 1.38629436])
    """
    backend = backend_of(Z)
    array, dtype, largest, holed = backend.matrix("Z", Z)
    *batch, n, m = array.shape
    terms = Terms(dense=((array, 1.0),))
    out = Scores(dtype, tuple(batch), n, m, terms, bound=largest, backend=backend)
    out.holed = holed
    return out


def dot(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`s_{ij} = \\beta\\, x_i^\\top W y_j` (DAC-1, eq 1 and 37): plain attention logits.

    X is (..., N, d), Y (..., M, d') (default X), W (d, d') or a pair of factors
    ``(W_Q (d, r), W_K (r, d'))`` with W = W_Q W_K; W need not be symmetric. In all functions of this module
    the leading axes of W broadcast with those of the points, so W (heads, d, d') gives scores (heads, N, M).

    >>> import numpy as np, qkcore as qk
    >>> Q, K = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> qk.scores.dot(Q, K, beta=0.5).to_numpy()
    array([[0.5, 1.5, 2.5],
           [1. , 2. , 3. ]])
    """
    p = pair(X, Y, W, beta)
    left, right, bound = p.projected()
    return p.scores(Terms.dot(left, right, p.beta), p.beta * bound)


def cosine(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, beta: float = 1.0) -> Scores:
    """:math:`s_{ij} = \\beta\\,\\langle x_i, y_j\\rangle / (|x_i|\\,|y_j|)`: the lengths do not matter.

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.cosine(np.array([[2.0, 0.0], [0.0, 9.0]]), np.array([[3.0, 4.0]])).to_numpy()
    array([[0.6],
           [0.8]])
    """
    p = pair(X, Y, None, beta)
    p.same_dimension()
    x = p.backend.unit_rows("X", p.x)
    y = x if p.y is p.x else p.backend.unit_rows("Y", p.y)
    # |cos| is at most 1, and after rounding certainly below 2.
    return p.scores(Terms.dot(x, y, p.beta), 2 * p.beta)


def forward(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`-\\beta\\,d^\\to_{ij}`, :math:`d^\\to_{ij} = G_{jj} - G_{ij}` (DAC-1, eqs 3-4).

    Its row softmax is :math:`A^+`: attention with the key bias :math:`-\\beta G_{jj}`.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> qk.scores.forward(X).to_numpy()
    array([[ 0., -4.],
           [-1.,  0.]])
    """
    return _forward(X, Y, W, beta, ("X", "Y"))


def _forward(
    X: npt.ArrayLike, Y: npt.ArrayLike | None, W: WLike, beta: float, names: tuple[str, str]
) -> Scores:
    p = pair(X, Y, W, beta, names)
    p.same_dimension()
    left, right, bound = p.projected()
    y_left, y_bound = left, bound
    if p.y is not p.x:
        y_left, _, y_bound = p._replace(x=p.y, x_largest=p.y_largest).projected()
    top = p.beta * (bound + y_bound)
    _checks.no_overflow("beta (x - y)^T W y", top, p.dtype)
    bias = p.backend.row_dots(y_left, right, -p.beta)
    return p.scores(Terms(dots=((left, right, p.beta),), col_bias=(bias,)), top)


def backward(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`-\\beta\\,d^\\gets_{ij}`, :math:`d^\\gets_{ij} = G_{ii} - G_{ji}` (DAC-1, eqs 3-4).

    Its row softmax is plain attention with :math:`W^\\top` (the row shift drops out).

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> qk.scores.backward(X).to_numpy()
    array([[ 0., -1.],
           [-4.,  0.]])
    """
    if Y is None:
        return forward(X, W=W, beta=beta).T
    # The backward divergence d<-_ij is the forward one, d->_ji, with X and Y exchanged.
    return _forward(Y, X, W, beta, ("Y", "X")).T


def distance(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`-\\beta\\,(x_i-y_j)^\\top W (x_i-y_j)` (DAC-1, eq 2): squared distances (Mahalanobis with W).

    Only the symmetric part of W matters; it may be indefinite. :math:`e^{s}` is the kernel
    :math:`K = e^{-\\beta D^2}` (DAC-2).

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.distance(np.array([[0.0], [1.0], [3.0]]), beta=0.5).to_numpy()
    array([[ 0. , -0.5, -4.5],
           [-0.5,  0. , -2. ],
           [-4.5, -2. ,  0. ]])
    """
    p = pair(X, Y, W, beta)
    p.same_dimension()
    n_negative = 0
    if W is not None:
        factor, n_negative = metric_factor(p.W, p.x.shape[-1], p.dtype)
        x, x_largest = p.backend.project("X", p.x, factor)
        y, y_largest = (x, x_largest) if p.y is p.x else p.backend.project("Y", p.y, factor)
        p = p._replace(x=x, y=y, x_largest=x_largest, y_largest=y_largest)
    span = p.x_largest + p.y_largest
    top = p.beta * p.x.shape[-1] * span * span
    _checks.no_overflow("beta (x - y)^T W (x - y)", top, p.dtype)
    centred = p.backend.centred(p.x, p.y)
    if centred is None:
        out = p.scores(Terms(distances=((p.x, p.y, p.beta, n_negative, 2),)), top)
        out.as_given = W is None
        return out
    x, y = centred
    signed = p.backend.negated(x, n_negative)
    y_signed = signed if y is x else p.backend.negated(y, n_negative)
    row_bias = p.backend.row_dots(signed, x, -p.beta)
    col_bias = row_bias if y is x else p.backend.row_dots(y_signed, y, -p.beta)
    return p.scores(
        Terms(dots=((signed, y, 2 * p.beta),), row_bias=(row_bias,), col_bias=(col_bias,)), top
    )


def l1(
    X: npt.ArrayLike,
    Y: npt.ArrayLike | None = None,
    *,
    W: npt.ArrayLike | None = None,
    beta: float = 1.0,
) -> Scores:
    """:math:`-\\beta\\sum_k w_k\\,|x_{ik}-y_{jk}|`, city-block distances.

    :math:`e^s` is the Laplacian kernel, which like the Gaussian kernel is positive definite.

    W: weights >= 0 of the coordinates, (d,), all 1 by default. Weights (heads, d) give scores (heads, N, M).
    The score of equal points is exactly 0, because differences of coordinates are summed.

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.l1(np.array([[0.0, 0.0], [1.0, 3.0]]), W=np.array([1.0, 0.5])).to_numpy()
    array([[ 0. , -2.5],
           [-2.5,  0. ]])
    """
    p = pair(X, Y, W, beta)
    p.same_dimension()
    d = p.x.shape[-1]
    if W is not None:
        weights = _coordinate_weights(p.W, d, p.dtype)
        diagonal = weights[..., None] * np.eye(d, dtype=p.dtype)
        x, x_largest = p.backend.project("X", p.x, diagonal)
        y, y_largest = (x, x_largest) if p.y is p.x else p.backend.project("Y", p.y, diagonal)
        p = p._replace(x=x, y=y, W=diagonal, x_largest=x_largest, y_largest=y_largest)
    top = p.beta * d * (p.x_largest + p.y_largest)
    _checks.no_overflow("beta |x - y|", top, p.dtype)
    out = p.scores(Terms(distances=((p.x, p.y, p.beta, 0, 1),)), top)
    out.as_given = W is None
    return out


def _coordinate_weights(W: object, d: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    weights = _checks.converted("W", W, dtype, "the points")  # type: ignore[arg-type]  # checked there
    _checks.shape(
        "W",
        weights.shape,
        (..., d),
        why="with a weight for each coordinate",
        do="for a matrix use qk.scores.distance",
    )
    _checks.finite("W", weights)
    remedy = "for negative weights subtract the scores of those coordinates"
    _checks.none_negative("W", weights, "weights >= 0", remedy)
    return weights
