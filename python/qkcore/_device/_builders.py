"""Scores from arrays on a device: dense ones, dot products, directed and squared distances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._arrays import Context, largest_score
from ._scores import DeviceScores

__all__ = ["backward", "dense", "distance", "dot", "forward"]


def dense(Z: Any) -> DeviceScores:
    c = Context(Z)
    array = c.numbers("Z", Z, short=True)
    if array.ndim < 2:
        raise ValueError(f"Z: wanted shape (..., N, M), got {array.shape}; pass Z[None, :]")
    top = c.finite("Z", c.figures(("Z", array, None))[0], minus_inf=True)
    *batch, n_rows, n_cols = array.shape
    return DeviceScores(
        c,
        c.real(array),
        array.dtype,
        tuple(batch),
        n_rows,
        n_cols,
        dense=((array, 1.0),),
        top=top,
    )


def dot(X: Any, Y: Any = None, *, W: Any = None, beta: float = 1.0) -> DeviceScores:
    p = _Pair(X, Y, W, beta, ("X", "Y"), metric=False)
    left, right, bound = p.projected()
    return p.scores(dots=((left, right, p.beta),), top=p.beta * bound)


def forward(
    X: Any,
    Y: Any = None,
    *,
    W: Any = None,
    beta: float = 1.0,
    names: tuple[str, str] = ("X", "Y"),
) -> DeviceScores:
    p = _Pair(X, Y, W, beta, names, metric=True)
    p.full_precision()
    left, right, bound = p.projected()
    y_left, y_bound = (left, bound) if p.y is p.x else p.left_of(p.y, names[1])
    top = p.beta * (bound + y_bound)
    largest_score("beta (x - y)^T W y", top, p.dtype)
    bias = p.c.module.row_dots(y_left, right, -p.beta, stream=p.c.stream())
    return p.scores(dots=((left, right, p.beta),), col_bias=(bias,), top=top)


def backward(X: Any, Y: Any = None, *, W: Any = None, beta: float = 1.0) -> DeviceScores:
    if Y is None:
        return forward(X, W=W, beta=beta).T
    return forward(Y, X, W=W, beta=beta, names=("Y", "X")).T


def distance(X: Any, Y: Any = None, *, W: Any = None, beta: float = 1.0) -> DeviceScores:
    p = _Pair(X, Y, W, beta, ("X", "Y"), metric=True)
    x, y, tops, n_negative = p.x, p.y, p.tops, 0
    if W is not None:
        from ..scores import _metric_factor

        p.full_precision()
        factor, n_negative = _metric_factor(np.empty((1, p.d), p.dtype), p.W)
        x, x_top = p.project("X", p.x, factor)
        y, y_top = (x, x_top) if p.y is p.x else p.project("Y", p.y, factor)
        tops = (x_top, y_top)
    span = sum(tops)
    top = p.beta * x.shape[-1] * span * span
    largest_score("beta (x - y)^T W (x - y)", top, p.dtype)
    return p.scores(distances=((x, y, p.beta, n_negative),), top=top)


class _Pair:
    """The points of both sides, checked, with W brought to the host (it is small)."""

    def __init__(
        self, X: Any, Y: Any, W: Any, beta: float, names: tuple[str, str], *, metric: bool
    ) -> None:
        self.c = Context(X, Y, W)
        self.names = names
        self.x = self._points(names[0], X)
        self.y = self.x if Y is None or Y is X else self._points(names[1], Y)
        if self.y.dtype != self.x.dtype:
            raise TypeError(
                f"{names[1]}: wanted {self.x.dtype} like {names[0]}, got {self.y.dtype}; "
                "convert one of them"
            )
        self.d, self.d_cols = self.x.shape[-1], self.y.shape[-1]
        if self.d != self.d_cols and (W is None or metric):
            raise ValueError(
                f"Y: wanted points of dimension {self.d} like X, got shape {self.y.shape}"
                + ("; or pass W of shape (d, d')" if not metric else "")
            )
        self.dtype = self.c.real(self.x)
        self.beta = _checks.representable("beta", _checks.positive("beta", beta), self.dtype)
        sides = [(names[0], self.x, None)]
        if self.y is not self.x:
            sides.append((names[1], self.y, None))
        tops = [
            self.c.finite(name, found)
            for (name, _, _), found in zip(sides, self.c.figures(*sides), strict=True)
        ]
        self.tops = (tops[0], tops[-1])
        self.W = self._host_w(W)

    def _points(self, name: str, value: Any) -> Any:
        array = self.c.numbers(name, value, short=True)
        if array.ndim < 2:
            raise ValueError(
                f"{name}: wanted points of shape (..., n, d), got shape {array.shape}; "
                f"for points on a line pass {name}[:, None]"
            )
        return array

    def _host_w(self, W: Any) -> Any:
        if W is None:
            return None
        if isinstance(W, tuple):
            return tuple(
                self.c.download(self.c.take(f"W[{k}]", w, dtype=str(self.dtype), like="the points"))
                for k, w in enumerate(W)
            )
        return self.c.download(self.c.take("W", W, dtype=str(self.dtype), like="the points"))

    def full_precision(self) -> None:
        if self.x.dtype != str(self.dtype):
            raise TypeError(
                f"{self.names[0]}: wanted float32 or float64 for scores that project points, got "
                f"{self.x.dtype}; convert it, or use dot without W"
            )

    def projected(self) -> tuple[Any, Any, float]:
        """Features whose plain dot product is x^T W y, and a bound on it."""
        if self.W is None:
            return self.x, self.y, self.d * self.tops[0] * self.tops[1]
        self.full_precision()
        left, right = _checks.matrix_w(self.W, self.d, self.d_cols, self.dtype)
        x, x_top = self.project(self.names[0], self.x, left)
        y, y_top = self.y, self.tops[1]
        if right is not None:
            y, y_top = self.project(self.names[1], self.y, right.T)
        return x, y, x.shape[-1] * x_top * y_top

    def left_of(self, points: Any, name: str) -> tuple[Any, float]:
        """The left features of other points, and the bound on their products with the right ones."""
        top = self.tops[1]
        if self.W is None:
            return points, self.d * top * top
        left, right = _checks.matrix_w(self.W, self.d, self.d_cols, self.dtype)
        out, out_top = self.project(name, points, left)
        if right is not None:
            top = self.project(name, points, right.T)[1]
        return out, out.shape[-1] * out_top * top

    def project(self, name: str, points: Any, matrix: npt.NDArray[Any]) -> tuple[Any, float]:
        """points @ matrix on the device, and its largest magnitude."""
        if points.ndim != 2 or not points.contiguous:
            raise ValueError(
                f"{name}: wanted contiguous points (n, d) beside W on a device, got shape "
                f"{points.shape} with strides {points.strides}; pass a contiguous copy, one problem "
                "at a time"
            )
        device_matrix = self.c.upload(matrix.T, str(self.dtype))
        out = self.c.module.project(points, device_matrix, stream=self.c.stream())
        figures = self.c.figures((name, out, None))[0]
        bad = figures["nan"] or figures["plus_inf"] or figures["minus_inf"]
        top = largest_score(f"{name} times W", math.inf if bad else figures["largest"], self.dtype)
        return out, top

    def scores(self, **terms: Any) -> DeviceScores:
        batch = _checks.broadcast("Y", self.x.shape[:-2], self.y.shape[:-2])
        return DeviceScores(
            self.c,
            self.dtype,
            self.x.dtype,
            batch,
            self.x.shape[-2],
            self.y.shape[-2],
            **terms,
        )
