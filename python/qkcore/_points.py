"""Points as arguments of scores: both sides are checked, and projected if a matrix W is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import Backend, backend_of
from ._host import HOST
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._terms import Terms

__all__ = ["Pair", "WLike", "metric_factor", "pair"]

WLike = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | None


class Pair(NamedTuple):
    """The points of both sides, checked, with the other arguments of a function that builds scores."""

    backend: Backend
    dtype: np.dtype[Any]
    x: Any
    y: Any
    x_largest: float
    """the largest coordinate"""
    y_largest: float
    W: Any
    """the matrix or its two factors, as NumPy arrays; or None"""
    beta: float
    names: tuple[str, str]

    def same_dimension(self) -> None:
        """Refuses points of two spaces."""
        x, y = self.x, self.y
        if x.shape[-1] != y.shape[-1]:
            if self.names == ("Y", "X"):  # the message names the argument that came second
                x, y = y, x
            raise ValueError(
                f"Y: wanted points of dimension {x.shape[-1]} like X, got shape {y.shape}; "
                "divergences compare points of one space"
            )

    def projected(self) -> tuple[Any, Any, float]:
        """Features whose plain dot product is x^T W y, and a bound on that product's magnitude.

        They are (X, Y) without W, (X W, Y) with a matrix W, and (X W_Q, Y W_K^T) with factors of W.
        """
        x, y, x_largest, y_largest = self.x, self.y, self.x_largest, self.y_largest
        if self.W is None:
            if x.shape[-1] != y.shape[-1]:
                raise ValueError(
                    f"Y: wanted points of dimension {x.shape[-1]} like X, got shape {y.shape}; "
                    "or pass W of shape (d, d')"
                )
            return x, y, x.shape[-1] * x_largest * y_largest
        w_left, w_right = _checks.matrix_w(self.W, x.shape[-1], y.shape[-1], self.dtype)
        x, x_largest = self.backend.project("X", x, w_left)
        if w_right is not None:
            y, y_largest = self.backend.project("Y", y, w_right.swapaxes(-1, -2))
        return x, y, x.shape[-1] * x_largest * y_largest

    def scores(self, terms: Terms, bound: float) -> Scores:
        """Scores of these points."""
        shape = self.x.shape
        batch, n = shape[:-2], shape[-2]
        m = n
        if self.y is not self.x:
            shape = self.y.shape
            m = shape[-2]
            if len(shape) > 2:
                batch = _checks.broadcast("Y", batch, shape[:-2])
        if self.W is not None:
            for part in self.W if isinstance(self.W, tuple) else (self.W,):
                batch = _checks.broadcast("W", batch, np.shape(part)[:-2])
        return Scores(self.dtype, batch, n, m, terms, bound=bound, backend=self.backend)


def pair(
    X: npt.ArrayLike,
    Y: npt.ArrayLike | None,
    W: WLike,
    beta: float,
    names: tuple[str, str] = ("X", "Y"),
) -> Pair:
    """The arguments of a function that builds scores, checked."""
    if type(X) is np.ndarray and Y is None and W is None:
        # Fewer checks, because they would take most of the time of a call with few points.
        x, largest = _checks.points(names[0], X)
        dtype = x.dtype
        beta = _checks.scale("beta", beta, dtype)
        # NamedTuple's own constructor takes longer than everything else here.
        return tuple.__new__(Pair, (HOST, dtype, x, x, largest, largest, None, beta, names))
    backend = backend_of(X, Y, W)
    x, y, x_largest, y_largest, dtype = backend.points(names, X, Y)
    beta = _checks.scale("beta", beta, dtype)
    small = None if W is None else backend.small(W, dtype)
    return Pair(backend, dtype, x, y, x_largest, y_largest, small, beta, names)


def metric_factor(W: WLike, d: int, dtype: np.dtype[Any]) -> tuple[Real, int]:
    """L (..., d, r) with sym(W) = L diag(+1.., -1..) L^T, and how many of the signs are -1.

    If W has several heads, all get as many columns as the head that needs most, filled up with zeros.
    """
    assert W is not None
    left, right = _checks.matrix_w(W, d, d, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        full = left.astype(np.float64) if right is None else left.astype(np.float64) @ right
        symmetric = 0.5 * full + 0.5 * full.swapaxes(-1, -2)
    found, largest = cpu.scan(symmetric, 1)
    _checks.no_overflow("W", np.inf if found else largest, np.dtype(np.float64))
    sides = [_roots(one, largest) for one in symmetric.reshape(-1, d, d)]
    counts = [max(side[sign].shape[1] for side in sides) for sign in (0, 1)]
    if sum(counts) == 0:  # W = 0: one feature that is always 0
        counts[0] = 1
    out = np.zeros((len(sides), d, sum(counts)), dtype)
    for one, (positive, negative) in zip(out, sides, strict=True):
        one[:, : positive.shape[1]] = positive
        one[:, counts[0] : counts[0] + negative.shape[1]] = negative
    return out.reshape(*symmetric.shape[:-2], d, sum(counts)), counts[1]


def _roots(symmetric: Real, largest: float) -> tuple[Real, Real]:
    """Eigenvectors times the roots of |eigenvalue|, for the positive and for the negative eigenvalues."""
    size = float(np.abs(symmetric).max())
    scale = largest if size > 0 else 1.0  # eigh squares entries, so they are scaled to be near 1
    values, vectors = np.linalg.eigh(symmetric / scale if scale > 0 else symmetric)
    order = np.argsort(-values)
    values, vectors = values[order], vectors[:, order]
    kept = np.abs(values) > np.finfo(np.float64).eps * len(values) * np.abs(values).max(initial=0.0)
    scaled = vectors * (np.sqrt(np.abs(values)) * np.sqrt(scale))
    return scaled[:, kept & (values > 0)], scaled[:, kept & (values < 0)]
