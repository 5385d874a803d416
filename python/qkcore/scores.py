"""Score matrices, lazily: what every operator is made from (DAC-1, DAC-2).

A score is a logit: larger means closer. Scores are described, not computed; reductions walk them tile
by tile, so an N x M matrix exists only when :meth:`Scores.to_numpy` asks for it.

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

from . import _checks
from ._config import get_num_threads, resolve_threads
from ._native import cpu

__all__ = ["Scores", "backward", "dense", "distance", "dot", "forward"]

Real = npt.NDArray[np.floating[Any]]
WLike = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | None

UNBOUNDED = 1 << 60  # a band this wide masks nothing

# Below this many dimensions squared distances are summed from differences, which is exact for equal
# points; above, from |x|^2 - 2<x,y> + |y|^2 on centred data, which runs at matrix-product speed with an
# error of a few eps * beta * (|x|^2 + |y|^2).
DIRECT_DISTANCE_MAX_DIM = 16


class Scores:
    """A lazy score matrix of shape (..., N, M). Build one with the functions of this module.

    Every sum of scores has the same normal form, so sums, masks and shifts cost nothing until reduced:
    dot terms + distance terms + dense terms + row shift + column shift, masked to -inf.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> s = qk.scores.dot(X).causal()
    >>> s.to_numpy()
    array([[  1., -inf, -inf],
           [  0.,   4., -inf],
           [  1.,   2.,   2.]])
    """

    __slots__ = (
        "_band",
        "_batch",
        "_col_bias",
        "_dense",
        "_distances",
        "_dots",
        "_masks",
        "_n_cols",
        "_n_rows",
        "_offsets",
        "_row_bias",
        "_spec",
        "_top",
        "dtype",
    )

    # NumPy must not try to loop over us: arr + s is an error, not an object array.
    __array_ufunc__ = None

    def __init__(
        self,
        dtype: np.dtype[Any],
        batch: tuple[int, ...],
        n_rows: int,
        n_cols: int,
        *,
        dots: tuple[tuple[Real, Real, float], ...] = (),
        distances: tuple[tuple[Real, Real, float, int], ...] = (),
        dense: tuple[tuple[Real, float], ...] = (),
        row_bias: tuple[Real, ...] = (),
        col_bias: tuple[Real, ...] = (),
        masks: tuple[npt.NDArray[np.uint8], ...] = (),
        band: tuple[int, int] = (-UNBOUNDED, UNBOUNDED),
        offsets: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
        top: float,
    ) -> None:
        # `top` bounds every finite score: a sum that overflowed to -inf would pass for a mask.
        _checks.no_overflow("scores", top, dtype)
        if offsets is not None and batch:
            raise ValueError(
                f"ragged: wanted 2-D scores, got batch axes {batch}; ragged blocks are the batch: "
                "concatenate the problems along the rows"
            )
        self.dtype = dtype
        self._top = top
        self._batch = batch
        self._n_rows = n_rows
        self._n_cols = n_cols
        self._dots = dots
        self._distances = distances
        self._dense = dense
        self._row_bias = row_bias
        self._col_bias = col_bias
        self._masks = masks
        self._band = band
        self._offsets = offsets
        # What the engine reads: see cpp/bind/score_tuple.hpp.
        rows, cols = offsets if offsets is not None else (None, None)
        self._spec = (
            dtype.itemsize == 4,
            batch,
            n_rows,
            n_cols,
            rows,
            cols,
            dots,
            distances,
            dense,
            row_bias,
            col_bias,
            masks,
            band[0],
            band[1],
        )

    def _with(self, **changes: Any) -> Scores:
        fields: dict[str, Any] = {
            "dtype": self.dtype,
            "batch": self._batch,
            "n_rows": self._n_rows,
            "n_cols": self._n_cols,
            "dots": self._dots,
            "distances": self._distances,
            "dense": self._dense,
            "row_bias": self._row_bias,
            "col_bias": self._col_bias,
            "masks": self._masks,
            "band": self._band,
            "offsets": self._offsets,
            "top": self._top,
        }
        fields.update(changes)
        return Scores(**fields)

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return (*self._batch, self._n_rows, self._n_cols)

    @property
    def ndim(self) -> int:
        """The number of axes: two and the batch axes."""
        return len(self._batch) + 2

    @property
    def T(self) -> Scores:
        """The transposed scores, lazily."""
        lo, hi = self._band
        return self._with(
            n_rows=self._n_cols,
            n_cols=self._n_rows,
            # The scale multiplies the row side when packed; a product does not mind which.
            dots=tuple((y, x, c) for x, y, c in self._dots),
            distances=tuple((y, x, c, k) for x, y, c, k in self._distances),
            dense=tuple((z.swapaxes(-1, -2), c) for z, c in self._dense),
            row_bias=self._col_bias,
            col_bias=self._row_bias,
            masks=tuple(m.swapaxes(-1, -2) for m in self._masks),
            band=(-hi, -lo),
            offsets=None if self._offsets is None else self._offsets[::-1],
        )

    # ---- algebra ------------------------------------------------------------------------------

    def __add__(self, other: object) -> Scores:
        """Logit sum: the product of experts (DAC A.3). Shapes broadcast over batch axes."""
        if not isinstance(other, Scores):
            return NotImplemented
        if other.dtype != self.dtype:
            raise TypeError(
                f"s + t: wanted scores of one dtype, got {self.dtype} and {other.dtype}; "
                "convert the data of one of them"
            )
        if (other._n_rows, other._n_cols) != (self._n_rows, self._n_cols):
            raise ValueError(
                f"s + t: wanted equal last two axes, got {self.shape} and {other.shape}; "
                "experts score the same pairs"
            )
        offsets = self._common_offsets(other)
        lo, hi = self._band
        other_lo, other_hi = other._band
        return self._with(
            batch=_checks.broadcast("s + t", self._batch, other._batch),
            dots=self._dots + other._dots,
            distances=self._distances + other._distances,
            dense=self._dense + other._dense,
            row_bias=self._row_bias + other._row_bias,
            col_bias=self._col_bias + other._col_bias,
            masks=self._masks + other._masks,
            band=(max(lo, other_lo), min(hi, other_hi)),
            offsets=offsets,
            top=self._top + other._top,
        )

    def _common_offsets(
        self, other: Scores
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """The ragged blocks of a sum. A band counts from each block's corner, so it must not move."""
        if self._offsets is None or other._offsets is None:
            whole, offsets = (
                (self, other._offsets) if self._offsets is None else (other, self._offsets)
            )
            if offsets is not None and whole._band != (-UNBOUNDED, UNBOUNDED):
                raise ValueError(
                    "s + t: wanted causal masks and windows applied after ragged(), got one on scores "
                    "that are not ragged beside ragged ones; call ragged() first, on each or on the sum"
                )
            return offsets
        if not all(map(np.array_equal, self._offsets, other._offsets)):
            raise ValueError(
                "s + t: wanted the same ragged blocks, got different offsets; "
                "call ragged() once, on the sum"
            )
        return self._offsets

    def __mul__(self, factor: float) -> Scores:
        """Scores times a positive number (an inverse temperature)."""
        if isinstance(factor, (Scores, np.ndarray)):
            return NotImplemented
        c = _checks.positive("factor", factor)

        def scaled(scale: float) -> float:
            return _checks.representable("factor * beta", c * scale, self.dtype)

        # Checked before the shifts are multiplied: they must not overflow on the way.
        _checks.no_overflow("scores", c * self._top, self.dtype)
        number = self.dtype.type(_checks.representable("factor", c, self.dtype))
        return self._with(
            top=c * self._top,
            dots=tuple((x, y, scaled(b)) for x, y, b in self._dots),
            distances=tuple((x, y, scaled(b), k) for x, y, b, k in self._distances),
            dense=tuple((z, scaled(b)) for z, b in self._dense),
            row_bias=tuple(r * number for r in self._row_bias),
            col_bias=tuple(r * number for r in self._col_bias),
        )

    __rmul__ = __mul__

    def __truediv__(self, temperature: float) -> Scores:
        """Scores over a positive temperature."""
        return self * (1.0 / _checks.positive("temperature", temperature))

    # ---- masks and shifts ---------------------------------------------------------------------

    def causal(self, offset: int = 0) -> Scores:
        """Keeps key j for row i when ``j <= i + offset``; the rest is -inf."""
        return self._band_limited(-UNBOUNDED, _checks.integer("offset", offset))

    def window(self, left: int | None, right: int | None) -> Scores:
        """Keeps ``i - left <= j <= i + right``; None leaves that side open."""
        lo = -UNBOUNDED if left is None else -_checks.integer("left", left)
        hi = UNBOUNDED if right is None else _checks.integer("right", right)
        if lo > hi:
            raise ValueError(
                f"left, right: wanted a window with -left <= right, got left={left}, right={right};"
                " it would mask everything"
            )
        return self._band_limited(lo, hi)

    def _band_limited(self, lo: int, hi: int) -> Scores:
        # Clamped so that sums of indices cannot overflow 64 bits.
        lo, hi = max(lo, -UNBOUNDED), min(hi, UNBOUNDED)
        lo, hi = min(lo, UNBOUNDED), max(hi, -UNBOUNDED)
        return self._with(band=(max(lo, self._band[0]), min(hi, self._band[1])))

    def masked(self, M: npt.ArrayLike) -> Scores:
        """Keeps the entries where the boolean array M (..., N, M) is True."""
        mask = _checks.boolean("M", M, (self._n_rows, self._n_cols))
        batch = _checks.broadcast("M", self._batch, mask.shape[:-2])
        return self._with(batch=batch, masks=(*self._masks, mask))

    def key_padding(self, keep: npt.ArrayLike) -> Scores:
        """Keeps the columns where the boolean array ``keep`` (..., M) is True."""
        mask = _checks.boolean("keep", keep, (self._n_cols,))
        batch = _checks.broadcast("keep", self._batch, mask.shape[:-1])
        bias = np.where(mask, 0.0, -np.inf).astype(self.dtype)
        return self._with(batch=batch, col_bias=(*self._col_bias, bias))

    def shift(
        self, rows: npt.ArrayLike | None = None, columns: npt.ArrayLike | None = None
    ) -> Scores:
        """Adds r_i to row i and c_j to column j (arrays (..., N) and (..., M)); -inf masks."""
        return self._shift(rows, columns, ("rows", "columns"))

    def _shift(
        self, rows: npt.ArrayLike | None, columns: npt.ArrayLike | None, names: tuple[str, str]
    ) -> Scores:
        batch, top = self._batch, self._top
        row_bias, col_bias = self._row_bias, self._col_bias
        if rows is not None:
            r, largest = self._bias(names[0], rows, self._n_rows)
            top += largest
            batch = _checks.broadcast(names[0], batch, r.shape[:-1])
            row_bias = (*row_bias, r)
        if columns is not None:
            c, largest = self._bias(names[1], columns, self._n_cols)
            top += largest
            batch = _checks.broadcast(names[1], batch, c.shape[:-1])
            col_bias = (*col_bias, c)
        return self._with(batch=batch, row_bias=row_bias, col_bias=col_bias, top=top)

    def _bias(self, name: str, value: npt.ArrayLike, length: int) -> tuple[Real, float]:
        """A shift, and its largest finite magnitude."""
        array = _checks.real_array(name, value)
        if array.ndim < 1:
            raise ValueError(
                f"{name}: wanted shape (..., {length}), got a single number; "
                f"pass np.full({length}, value)"
            )
        _checks.same_dtype(name, array, self.dtype, "the scores")
        _checks.core_shape(name, array.shape, (length,), "as the scores")
        return array, _checks.finite(name, array, minus_inf=True)

    def ragged(
        self, row_offsets: npt.ArrayLike, column_offsets: npt.ArrayLike | None = None
    ) -> Scores:
        """Many problems of different sizes in one: block-diagonal scores, -inf outside the blocks.

        Block b holds rows ``row_offsets[b]:row_offsets[b+1]`` and the same range of columns, or that
        of ``column_offsets``. Causal masks and windows count from the corner of each block.
        """
        if self._offsets is not None:
            raise ValueError("ragged: these scores are ragged already; call it once")
        rows = _checks.offsets("row_offsets", row_offsets, self._n_rows)
        if column_offsets is None:
            if self._n_cols != self._n_rows:
                raise ValueError(
                    f"column_offsets: wanted for scores of shape {self.shape}, got None; "
                    "only square scores can share row_offsets"
                )
            cols = rows
        else:
            cols = _checks.offsets("column_offsets", column_offsets, self._n_cols)
        if len(rows) != len(cols):
            raise ValueError(
                f"column_offsets: wanted {len(rows)} offsets like row_offsets, got {len(cols)}; "
                "every block has rows and columns"
            )
        return self._with(offsets=(rows, cols))

    # ---- reductions ---------------------------------------------------------------------------

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The scores as an array (..., N, M); masked entries are -inf."""
        return cpu.materialize(self._spec, True, 0, resolve_threads(n_threads))

    def logsumexp(self, axis: int = 1, *, n_threads: int | None = None) -> Real:
        """:math:`\\log\\sum_j e^{s_{ij}}` for each row (axis=1) or over i for each column (axis=0).

        -inf where everything is masked. O(N + M) memory when the scores come from points.
        """
        s = self if _checks.axis(axis) == 1 else self.T
        lse = cpu.reduce_rows(s._spec, 0, None, True, False, resolve_threads(n_threads))[0]
        assert lse is not None
        return lse

    def marginals(
        self,
        f: npt.ArrayLike | None = None,
        g: npt.ArrayLike | None = None,
        *,
        n_threads: int | None = None,
    ) -> tuple[Real, Real]:
        """Row and column sums of :math:`e^{f_i + s_ij + g_j}` (DAC-7), both in one pass."""
        s = self if f is None and g is None else self._shift(f, g, ("f", "g"))
        return cpu.marginals(s._spec, resolve_threads(n_threads))

    def __repr__(self) -> str:
        parts = [f"{len(t)} {n}" for n, t in self._terms() if t]
        if self._band != (-UNBOUNDED, UNBOUNDED):
            parts.append("band")
        if self._offsets is not None:
            parts.append(f"{len(self._offsets[0]) - 1} ragged blocks")
        return f"Scores(shape={self.shape}, dtype={self.dtype}, {', '.join(parts)})"

    def _terms(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        return (
            ("dot", self._dots),
            ("distance", self._distances),
            ("dense", self._dense),
            ("row shift", self._row_bias),
            ("column shift", self._col_bias),
            ("mask", self._masks),
        )


# ---- constructors -----------------------------------------------------------------------------


def dense(Z: npt.ArrayLike) -> Scores:
    """Scores read from an array Z (..., N, M) of any strides; not copied. -inf masks an entry.

    >>> import numpy as np, qkcore as qk
    >>> qk.scores.dense(np.zeros((2, 4))).logsumexp()
    array([1.38629436, 1.38629436])
    """
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


def _projected(
    x: Real, y: Real, W: WLike, tops: tuple[float, float]
) -> tuple[Real, Real, float]:
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
    return a * a.dtype.type(factor)


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
