"""Operations on rows of particles: reductions over visible particles, products, divisions, the sphere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._host import WEIGHTS
from .._terms import EVERYTHING
from ._arrays import Context

__all__ = ["ALL", "LINEAR", "Sphere", "divide", "reduced", "rows_times"]

LINEAR = WEIGHTS["linear"]
ALL = EVERYTHING


def reduced(
    c: Context,
    like: Any,
    weight: int,
    values: Any,
    stream: int,
    dots: tuple[Any, ...],
    distances: tuple[Any, ...] = (),
    col_bias: tuple[Any, ...] = (),
    masks: tuple[Any, ...] = (),
    band: tuple[int, int] = ALL,
) -> Any:
    """sum_j w(s_ij) values_j for N particles, with the dtype and the number N of ``like``."""
    n = like.shape[0]
    spec = (like.dtype, c.device, (), n, n, dots, distances, (), (), col_bias, masks, *band)
    return c.module.reduce_rows(spec, weight, values, False, stream=stream)[1]


def rows_times(c: Context, x: Any, y: Any, values: Any, stream: int) -> Any:
    """<x_i, y_i> values_i, as a linear kernel whose band is only the diagonal."""
    return reduced(c, x, LINEAR, values, stream, ((x, y, 1.0),), band=(0, 0))


def divide(c: Context, x: Any, y: Any, stream: int) -> Any:
    """x / |y|, entry by entry."""
    return c.module.map_vector("relative", x, y, y, a=0.0, b=1.0, stream=stream)


class Sphere:
    """Operations for rows of norm 1: tangential velocities, and scaling states back to norm 1."""

    def __init__(self, c: Context, x: Any) -> None:
        self.c = c
        self._ones = c.upload(np.ones((x.shape[1], 1)), x.dtype)

    def _squares(self, x: Any, stream: int) -> Any:
        """|x_i|^2 in every coordinate of row i."""
        dots = self.c.module.row_dots(x, x, stream=stream).expand()
        return self.c.module.project(dots, self._ones, stream=stream)

    def tangent(self, x: Any, v: Any, stream: int) -> None:
        """v - <x, v> x / |x|^2 in place; it changes nothing in a row where x is 0."""
        module = self.c.module
        along = rows_times(self.c, x, v, x, stream)
        square = self._squares(x, stream)
        tiny = float(np.finfo(x.dtype).tiny)
        off = module.map_vector("relative", along, square, square, a=tiny, b=1.0, stream=stream)
        module.map_vector("affine", v, off, a=1.0, b=-1.0, out=v, stream=stream)

    def normalise(self, x: Any, stream: int) -> None:
        """Rows scaled to norm 1 in place: x exp(-log |x|^2 / 2), which is exact near 1."""
        module = self.c.module
        log = module.map_vector("log", self._squares(x, stream), stream=stream)
        module.map_vector("tilt", x, log, a=-0.5, out=x, stream=stream)

    def check(self, name: str, x: Any) -> None:
        """Raises an error if the norm of a row is not 1."""
        lengths = self.c.module.row_dots(x, x, stream=self.c.stream())
        found = self.c.figures((name, lengths, None))[0]
        off = max(abs(math.sqrt(found[which]) - 1) for which in ("smallest", "largest"))
        if found["plus_inf"] or off > (1e-3 if x.dtype == "float32" else 1e-6):
            raise ValueError(
                f"{name}: wanted unit rows for a field on the sphere, got norms off by {off:.2g}; "
                f"divide the rows of {name} by their norms"
            )
