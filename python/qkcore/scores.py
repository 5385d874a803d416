"""Score matrices, lazily: what every operator is made from (DAC-1, DAC-2).

A score is a logit: larger means closer. Scores are described, not computed; reductions walk them
tile by tile, so an N x M matrix exists only when :meth:`Scores.to_numpy` asks for it.

==================== =====================================================================
``dense(Z)``         :math:`s_{ij} = Z_{ij}`
``dot(X, Y)``        :math:`s_{ij} = \\beta\\, x_i^\\top W y_j`
``forward(X, Y)``    :math:`s_{ij} = -\\beta\\,(G_{jj} - G_{ij})`
``backward(X, Y)``   :math:`s_{ij} = -\\beta\\,(G_{ii} - G_{ji})`
``distance(X, Y)``   :math:`s_{ij} = -\\beta\\,(x_i - y_j)^\\top W (x_i - y_j)`
==================== =====================================================================

with :math:`G = R W R^\\top`; where X and Y differ, :math:`G_{ij} = x_i^\\top W y_j`,
:math:`G_{ji} = y_j^\\top W x_i`, and the diagonal terms belong to the side their index runs over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, _device
from ._config import get_num_threads
from ._lazy_scores import Real, Scores
from ._native import cpu

__all__ = ["Scores", "backward", "dense", "distance", "dot", "forward"]

WLike = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | None

# Up to this many dimensions squared distances are summed from differences, which is exact for equal
# points; above, from |x|^2 - 2<x,y> + |y|^2 on centred data, at the speed of a matrix product and
# with an error of a few eps * beta * (|x|^2 + |y|^2).
DIRECT_DISTANCE_MAX_DIM = 16


def dense(Z: npt.ArrayLike) -> Scores:
    """Scores read from an array Z (..., N, M) of any strides; not copied. -inf masks an entry.

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.dense(np.zeros((2, 4))).logsumexp()
    array([1.38629436, 1.38629436])
    """
    if _device.on_device(Z):
        return _on_device("dense", Z)
    array = _checks.real_array("Z", Z)
    if array.ndim < 2:
        raise ValueError(f"Z: wanted shape (..., N, M), got {array.shape}; pass Z[None, :]")
    _checks.not_empty("Z", array)
    top = _checks.finite("Z", array, minus_inf=True)
    *batch, n_rows, n_cols = array.shape
    return Scores(array.dtype, tuple(batch), n_rows, n_cols, dense=((array, 1.0),), top=top)


def dot(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`s_{ij} = \\beta\\, x_i^\\top W y_j` (DAC-1, eq 1 and 37): plain attention logits.

    X is (..., N, d), Y (..., M, d') (default X), W (d, d') or a pair of factors
    ``(W_Q (d, r), W_K (r, d'))`` with W = W_Q W_K; W need not be symmetric.

    >>> import numpy as np, qkcore as qk
    >>> Q, K = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> qk.scores.dot(Q, K, beta=0.5).to_numpy()
    array([[0.5, 1.5, 2.5],
           [1. , 2. , 3. ]])
    """
    if _device.on_device(X, Y, W):
        return _on_device("dot", X, Y, W=W, beta=beta)
    x, y, beta, tops = _points_pair(X, Y, beta)
    left, right, bound = _projected(x, y, W, tops)
    return _scores(x, y, dots=((left, right, beta),), top=beta * bound)


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
    if _device.on_device(X, Y, W):
        return _on_device("forward", X, Y, W=W, beta=beta)
    return _forward(X, Y, W, beta, ("X", "Y"))


def _forward(
    X: npt.ArrayLike, Y: npt.ArrayLike | None, W: WLike, beta: float, names: tuple[str, str]
) -> Scores:
    x, y, beta, tops = _points_pair(X, Y, beta, names)
    _same_dimension(x, y, names)
    left, right, bound = _projected(x, y, W, tops)
    y_left, y_bound = left, bound
    if y is not x:
        y_left, _, y_bound = _projected(y, y, W, (tops[1], tops[1]))
    top = beta * (bound + y_bound)
    _checks.no_overflow("beta (x - y)^T W y", top, x.dtype)
    bias = _scaled(-beta, _row_dots(y_left, right))
    return _scores(x, y, dots=((left, right, beta),), col_bias=(bias,), top=top)


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
    if _device.on_device(X, Y, W):
        return _on_device("backward", X, Y, W=W, beta=beta)
    if Y is None:
        return forward(X, W=W, beta=beta).T
    # d<-_ij is d->_ji with the sets exchanged.
    return _forward(Y, X, W, beta, ("Y", "X")).T


def distance(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> Scores:
    """:math:`-\\beta\\,(x_i-y_j)^\\top W (x_i-y_j)` (DAC-1, eq 2): Euclidean or Mahalanobis.

    Only the symmetric part of W matters; it may be indefinite. :math:`e^{s}` is the kernel
    :math:`K = e^{-\\beta D^2}` (DAC-2).

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.distance(np.array([[0.0], [1.0], [3.0]]), beta=0.5).to_numpy()
    array([[ 0. , -0.5, -4.5],
           [-0.5,  0. , -2. ],
           [-4.5, -2. ,  0. ]])
    """
    if _device.on_device(X, Y, W):
        return _on_device("distance", X, Y, W=W, beta=beta)
    x, y, beta, (x_top, y_top) = _points_pair(X, Y, beta)
    _same_dimension(x, y, ("X", "Y"))
    x_features, y_features, n_negative = x, y, 0
    if W is not None:
        factor, n_negative = _metric_factor(x, W)
        x_features, x_top = _project("X", x, factor)
        y_features, y_top = (x_features, x_top) if y is x else _project("Y", y, factor)
    span = x_top + y_top
    top = beta * x_features.shape[-1] * span * span
    _checks.no_overflow("beta (x - y)^T W (x - y)", top, x.dtype)
    if x_features.shape[-1] <= DIRECT_DISTANCE_MAX_DIM:
        return _scores(x, y, distances=((x_features, y_features, beta, n_negative),), top=top)
    return _centred_distance(x, y, x_features, y_features, beta, n_negative, top)


def _on_device(name: str, *args: Any, **options: Any) -> Scores:
    """The same builder for arrays on a device: its scores have the same methods."""
    from ._device import _builders as device

    found: Scores = getattr(device, name)(*args, **options)
    return found


def _centred_distance(
    x: Real, y: Real, x_features: Real, y_features: Real, beta: float, n_negative: int, top: float
) -> Scores:
    dim = x_features.shape[-1]
    centre = y_features.reshape(-1, dim).mean(axis=0, dtype=np.float64)
    xc = (x_features - centre).astype(x.dtype, copy=False)
    yc = xc if y is x else (y_features - centre).astype(x.dtype, copy=False)
    signed = xc
    if n_negative:
        signed = xc.copy()
        signed[..., dim - n_negative :] *= -1
    y_signed = signed
    if y is not x:
        y_signed = yc.copy()
        y_signed[..., dim - n_negative :] *= -1
    row_bias = _scaled(-beta, _row_dots(signed, xc))
    col_bias = row_bias if y is x else _scaled(-beta, _row_dots(y_signed, yc))
    return _scores(
        x, y, dots=((signed, yc, 2 * beta),), row_bias=(row_bias,), col_bias=(col_bias,), top=top
    )


def _points_pair(
    X: npt.ArrayLike,
    Y: npt.ArrayLike | None,
    beta: float,
    names: tuple[str, str] = ("X", "Y"),
) -> tuple[Real, Real, float, tuple[float, float]]:
    """The points, beta, and the largest coordinates of both."""
    x, x_top = _checks.points(names[0], X)
    y, y_top = x, x_top
    if Y is not None and Y is not X:
        y, y_top = _checks.points(names[1], Y)
        _checks.same_dtype(names[1], y, x.dtype, names[0])
    beta = _checks.representable("beta", _checks.positive("beta", beta), x.dtype)
    return x, y, beta, (x_top, y_top)


def _scores(x: Real, y: Real, **terms: Any) -> Scores:
    batch = _checks.broadcast("Y", x.shape[:-2], y.shape[:-2])
    return Scores(x.dtype, batch, x.shape[-2], y.shape[-2], **terms)


def _projected(x: Real, y: Real, W: WLike, tops: tuple[float, float]) -> tuple[Real, Real, float]:
    """Features whose plain dot product is x^T W y, and a bound on that product's magnitude.

    (X, Y); with W (X W, Y); with factors (X W_Q, Y W_K^T).
    """
    x_top, y_top = tops
    if W is None:
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(
                f"Y: wanted points of dimension {x.shape[-1]} like X, got shape {y.shape}; "
                "or pass W of shape (d, d')"
            )
        return x, y, x.shape[-1] * x_top * y_top
    w_left, w_right = _checks.matrix_w(W, x.shape[-1], y.shape[-1], x.dtype)
    left, x_top = _project("X", x, w_left)
    right = y
    if w_right is not None:
        right, y_top = _project("Y", y, w_right.T)
    return left, right, left.shape[-1] * x_top * y_top


def _project(name: str, x: Real, w: Real) -> tuple[Real, float]:
    """x @ w, and its largest magnitude."""
    flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    out = cpu.project(flat, w, get_num_threads())
    found, top = cpu.scan(out, get_num_threads())
    _checks.no_overflow(f"{name} times W", np.inf if found else top, x.dtype)
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], w.shape[1]), top


def _row_dots(a: Real, b: Real) -> Real:
    if a.ndim == 2:
        return cpu.row_dots(a, b)
    flat = cpu.row_dots(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
    return flat.reshape(a.shape[:-1])


def _scaled(factor: float, a: Real) -> Real:
    """factor * a in the array's own dtype."""
    scaled: Real = a * a.dtype.type(factor)
    return scaled


def _same_dimension(x: Real, y: Real, names: tuple[str, str]) -> None:
    if x.shape[-1] != y.shape[-1]:
        if names == ("Y", "X"):  # name the argument that came second
            x, y = y, x
        raise ValueError(
            f"Y: wanted points of dimension {x.shape[-1]} like X, got shape {y.shape}; "
            "divergences compare points of one space"
        )


def _metric_factor(x: Real, W: WLike) -> tuple[Real, int]:
    """L (d, r) with sym(W) = L diag(+1.., -1..) L^T, and how many are negative."""
    assert W is not None
    d = x.shape[-1]
    left, right = _checks.matrix_w(W, d, d, x.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        full = left.astype(np.float64) if right is None else left.astype(np.float64) @ right
        symmetric = 0.5 * full + 0.5 * full.T
    found, largest = cpu.scan(symmetric, 1)
    _checks.no_overflow("W", np.inf if found else largest, np.dtype(np.float64))
    if largest > 0:  # eigh squares: keep it near 1
        values, vectors = np.linalg.eigh(symmetric / largest)
    else:
        values, vectors = np.linalg.eigh(symmetric)
    order = np.argsort(-values)  # positive directions first
    values, vectors = values[order], vectors[:, order]
    size = float(np.abs(values).max(initial=0.0))
    kept = np.abs(values) > np.finfo(np.float64).eps * d * size
    if not kept.any():  # W = 0: one feature that is always 0
        return np.zeros((d, 1), dtype=x.dtype), 0
    factor = vectors[:, kept] * (np.sqrt(np.abs(values[kept])) * np.sqrt(largest))
    return np.ascontiguousarray(factor, dtype=x.dtype), int((values[kept] < 0).sum())
