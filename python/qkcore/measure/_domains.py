"""Compact convex sets E on which the constants of a potential are taken (MTA, assumption 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import _checks

__all__ = ["Ball", "Box", "Domain"]

Vector = npt.NDArray[np.float64]


class Domain(Protocol):
    """A compact convex set, as the bounds use it: its sizes, and the range of linear maps on it."""

    @property
    def centre(self) -> Vector:
        """The point of symmetry (d,)."""

    @property
    def dim(self) -> int:
        """Dimension of the space."""

    @property
    def diameter(self) -> float:
        """Largest l1 distance of two points."""

    @property
    def diameter_l2(self) -> float:
        """Largest Euclidean distance of two points."""

    def reach(self, rows: npt.ArrayLike) -> Vector:
        """Half the width of each linear form ``rows @ x`` over the set."""

    def bilinear(self, W: npt.ArrayLike) -> float:
        """An upper bound on :math:`u^T W v` for u, v in the set after its centre is moved to the origin."""

    def farthest(self, x: npt.ArrayLike) -> float:
        """The largest Euclidean distance from x (d,) to a point of the set."""

    def project(self, X: npt.ArrayLike) -> Vector:
        """The nearest points of the set (n, d)."""

    def sample(self, n: int, rng: int | np.random.Generator) -> Vector:
        """n points (n, d), by turns in the interior and on the boundary."""

    def holds(self, maps: Sequence[npt.NDArray[Any]], shift: npt.ArrayLike) -> bool:
        """Whether :math:`\\sum_h x_h M_h + shift` is proved to be in the set for all x_h of the set."""


def domain_argument(value: object) -> None:
    """Raise a TypeError for what is not a domain. ``Domain`` is a protocol: the attributes decide."""
    if not (hasattr(value, "dim") and hasattr(value, "reach") and hasattr(value, "project")):
        raise TypeError(
            f"domain: wanted a Ball or a Box, got {type(value).__name__}; "
            "pass e.g. Ball.around(points)"
        )


def _vector(name: str, value: npt.ArrayLike) -> Vector:
    array = _checks.doubles(name, value)
    _checks.shape(name, array.shape, ("d",), what="one point")
    _checks.not_empty(name, array)
    return array


@dataclass(frozen=True, eq=False)
class Ball:
    """The Euclidean ball :math:`\\{x: \\|x - c\\|_2 \\le r\\}`. Its ``diameter`` is nevertheless the l1 one.

    >>> from qkcore.measure import Ball
    >>> Ball(radius=2.0, dim=4).diameter  # along a diagonal
    8.0
    """

    radius: float
    centre: Vector

    def __init__(
        self, radius: float, centre: npt.ArrayLike | None = None, *, dim: int | None = None
    ) -> None:
        object.__setattr__(self, "radius", _checks.positive("radius", radius))
        _checks.exactly_one(
            "centre, dim", "pass Ball(r, dim=3) or Ball(r, centre)", centre=centre, dim=dim
        )
        if centre is not None:
            c = _vector("centre", centre)
        else:
            c = np.zeros(_checks.integer_within("dim", dim, 1, 2**31, "a dimension"))
        object.__setattr__(self, "centre", c)

    @classmethod
    def around(cls, X: npt.ArrayLike) -> Ball:
        """A ball that contains the points (n, d), around the centre of their bounding box."""
        points = np.asarray(_checks.points("X", X)[0], dtype=np.float64)
        centre = (points.min(axis=0) + points.max(axis=0)) / 2
        radius = float(np.linalg.norm(points - centre, axis=1).max())
        return cls(max(radius * (1 + 1e-12), np.finfo(np.float64).tiny), centre)

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return len(self.centre)

    @property
    def diameter(self) -> float:
        """:math:`2 r\\sqrt d` in l1."""
        return 2 * self.radius * math.sqrt(self.dim)

    @property
    def diameter_l2(self) -> float:
        """2 r."""
        return 2 * self.radius

    def reach(self, rows: npt.ArrayLike) -> Vector:
        """Half the width of each linear form ``rows @ x`` over the set."""
        out: Vector = self.radius * np.linalg.norm(np.atleast_2d(rows), axis=-1)
        return out

    def bilinear(self, W: npt.ArrayLike) -> float:
        """:math:`r^2\\sigma_{max}(W)`."""
        return float(self.radius**2 * np.linalg.norm(W, 2))

    def farthest(self, x: npt.ArrayLike) -> float:
        """The largest Euclidean distance from x (d,) to a point of the set."""
        return float(np.linalg.norm(np.asarray(x) - self.centre)) + self.radius

    def project(self, X: npt.ArrayLike) -> Vector:
        """The nearest points of the set (n, d)."""
        offset = np.asarray(X, dtype=np.float64) - self.centre
        norm = np.linalg.norm(offset, axis=-1, keepdims=True)
        out: Vector = self.centre + offset * np.minimum(1, self.radius / np.maximum(norm, 1e-300))
        return out

    def sample(self, n: int, rng: int | np.random.Generator) -> Vector:
        """n points (n, d), by turns in the interior and on the boundary."""
        draws = np.random.default_rng(rng)
        z = draws.normal(size=(n, self.dim))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        z[::2] *= draws.random((len(z[::2]), 1)) ** (1 / self.dim)
        out: Vector = self.centre + self.radius * z
        return out

    def holds(self, maps: Sequence[npt.NDArray[Any]], shift: npt.ArrayLike) -> bool:
        """Whether the triangle inequality keeps :math:`\\sum_h x_h M_h + shift` in the set for all x_h."""
        middle = sum((self.centre @ M for M in maps), np.asarray(shift, dtype=np.float64))
        growth = sum(float(np.linalg.norm(M, 2)) for M in maps)
        away = float(np.linalg.norm(middle - self.centre))
        return away + growth * self.radius <= self.radius * (1 + 1e-12)

    def __repr__(self) -> str:
        return f"Ball(radius={self.radius:g}, dim={self.dim})"


@dataclass(frozen=True, eq=False)
class Box:
    """The box :math:`\\prod_k [l_k, u_k]`.

    >>> from qkcore.measure import Box
    >>> Box([-1.0, 0.0], [1.0, 3.0]).diameter
    5.0
    """

    low: Vector
    high: Vector

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike) -> None:
        lo, hi = _vector("low", low), _vector("high", high)
        _checks.shape("high", hi.shape, lo.shape, why="as low")
        if (lo > hi).any() or (lo == hi).all():
            raise ValueError(
                "low, high: wanted low <= high with a side that is not empty, got "
                f"low={lo.tolist()[:4]}, high={hi.tolist()[:4]}"
            )
        object.__setattr__(self, "low", lo)
        object.__setattr__(self, "high", hi)

    @classmethod
    def around(cls, X: npt.ArrayLike) -> Box:
        """The smallest box around points (n, d)."""
        points = np.asarray(_checks.points("X", X)[0], dtype=np.float64)
        return cls(points.min(axis=0), points.max(axis=0))

    @property
    def centre(self) -> Vector:
        """The point of symmetry (d,)."""
        out: Vector = (self.low + self.high) / 2
        return out

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return len(self.low)

    @property
    def diameter(self) -> float:
        """The sum of the sides."""
        return float((self.high - self.low).sum())

    @property
    def diameter_l2(self) -> float:
        """The Euclidean length of the diagonal."""
        return float(np.linalg.norm(self.high - self.low))

    def reach(self, rows: npt.ArrayLike) -> Vector:
        """Half the width of each linear form ``rows @ x`` over the set."""
        out: Vector = np.abs(np.atleast_2d(rows)) @ ((self.high - self.low) / 2)
        return out

    def bilinear(self, W: npt.ArrayLike) -> float:
        """:math:`h^T|W|h` for half sides h, which is the maximum if W is diagonal and otherwise a bound."""
        half = (self.high - self.low) / 2
        return float(half @ np.abs(W) @ half)

    def farthest(self, x: npt.ArrayLike) -> float:
        """The largest Euclidean distance from x (d,) to a point of the set."""
        point = np.asarray(x, dtype=np.float64)
        return float(np.linalg.norm(np.maximum(point - self.low, self.high - point)))

    def project(self, X: npt.ArrayLike) -> Vector:
        """The nearest points of the set (n, d)."""
        out: Vector = np.clip(np.asarray(X, dtype=np.float64), self.low, self.high)
        return out

    def sample(self, n: int, rng: int | np.random.Generator) -> Vector:
        """n points (n, d), by turns corners and points of the interior."""
        z = np.random.default_rng(rng).random((n, self.dim))
        z[::2] = np.round(z[::2])
        out: Vector = self.low + z * (self.high - self.low)
        return out

    def holds(self, maps: Sequence[npt.NDArray[Any]], shift: npt.ArrayLike) -> bool:
        """Whether :math:`\\sum_h x_h M_h + shift` is in the set for all x_h of the set."""
        middle = sum((self.centre @ M for M in maps), np.asarray(shift, dtype=np.float64))
        reach = sum((self.reach(M.T) for M in maps), np.zeros(self.dim))
        half = (self.high - self.low) / 2
        return bool((np.abs(middle - self.centre) + reach <= half * (1 + 1e-12)).all())

    def __repr__(self) -> str:
        return f"Box(dim={self.dim}, l1 diameter={self.diameter:g})"
