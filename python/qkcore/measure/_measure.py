"""Probability measures on finitely many points, and their convolution with a Gaussian (MTA-1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real

if TYPE_CHECKING:
    from ._kernels import ConditionedKernel
    from ._transformer import ConditionedTransformer

__all__ = ["GaussianMixture", "Measure", "as_measure"]

PointMap = Callable[[Real], npt.ArrayLike]

# Weights may miss the sum 1 by this much, because they were normalised in their own dtype.
_MASS_TOL = {4: 1e-4, 8: 1e-9}
_MAX_NODES = 10_000_000


class Measure:
    """A probability measure :math:`\\mu = \\sum_i w_i \\delta_{x_i}` on points of R^d (MTA-1, section 3.1).

    ``points`` (n, d), ``weights`` (n,) with sum 1 (default: 1/n each, the empirical measure m(X)).
    Points may repeat and weights may be 0. Nothing is copied; the arrays of a measure are read-only.

    >>> import numpy as np
    >>> from qkcore.measure import Measure
    >>> mu = Measure(np.array([[0.0], [1.0], [3.0]]), np.array([0.5, 0.25, 0.25]))
    >>> mu.mean()
    array([1.])
    >>> mu.push_forward(lambda X: 2 * X).mean()
    array([2.])
    """

    __slots__ = ("_points", "_weights")
    __array_ufunc__ = None  # so that NumPy does not take `mu @ kernel` apart

    def __init__(self, points: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        array = _checks.real_array("points", points)
        _checks.shape(
            "points", array.shape, ("n", "d"), do="for points on a line pass points[:, None]"
        )
        _checks.some(
            "points",
            len(array),
            1,
            "point",
            "a probability measure has at least one point",
        )
        _checks.not_empty("points", array)
        _checks.finite("points", array)
        n = len(array)
        if weights is None:
            w = np.full(n, 1 / n, array.dtype)
        else:
            w = _weights(weights, n, array.dtype)
        self._points = _frozen(array)
        self._weights = _frozen(w)

    @classmethod
    def dirac(cls, x: npt.ArrayLike) -> Measure:
        """:math:`\\delta_x` for one point x (d,)."""
        point = _checks.real_array("x", x)
        _checks.shape("x", point.shape, ("d",), what="one point", do="pass X[i]")
        return cls(point[None, :])

    @classmethod
    def mixture(cls, measures: Sequence[Measure], weights: npt.ArrayLike | None = None) -> Measure:
        """:math:`\\sum_k c_k \\mu_k` with weights c (default: equal) that sum to 1."""
        parts = list(measures)
        _checks.some("measures", len(parts), 1, "measure")
        for k, part in enumerate(parts):
            _checks.instance(f"measures[{k}]", part, Measure, "a Measure")
            _checks.same_space(f"measures[{k}]", part.dim, parts[0].dim, "measures[0]")
            _checks.same_dtype(f"measures[{k}]", part.points, parts[0].dtype, "measures[0]")
        c = (
            np.full(len(parts), 1 / len(parts), parts[0].dtype)
            if weights is None
            else _weights(weights, len(parts), parts[0].dtype)
        )
        points = np.concatenate([part.points for part in parts])
        w = np.concatenate([ck * part.weights for ck, part in zip(c, parts, strict=True)])
        return cls(points, w / w.sum(dtype=np.float64).astype(w.dtype))

    @property
    def points(self) -> Real:
        """The support (n, d); read-only."""
        return self._points

    @property
    def weights(self) -> Real:
        """The weights (n,), sum 1; read-only."""
        return self._weights

    @property
    def dim(self) -> int:
        """The dimension d of the space."""
        return int(self._points.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the points, float32 or float64."""
        return self._points.dtype

    def __len__(self) -> int:
        return len(self._points)

    @property
    def uniform(self) -> bool:
        """Whether all weights are equal up to rounding, as in an empirical measure m(X)."""
        w = self._weights
        return bool(np.abs(w - 1 / len(w)).max() <= 8 * np.finfo(w.dtype).eps / len(w))

    @property
    def log_weights(self) -> Real:
        """Logarithms of the weights, -inf where a weight is 0."""
        with np.errstate(divide="ignore"):
            out: Real = np.log(self._weights)
        return out

    def expectation(self, f: PointMap) -> Real:
        """:math:`\\mu(F) = \\sum_i w_i F(x_i)` of a map from (n, d) to (n,) or (n, ...)."""
        values = _mapped("f", f, self._points)
        out: Real = np.tensordot(self._weights.astype(np.float64), values, axes=(0, 0))
        return np.asarray(out, dtype=self.dtype)

    def mean(self) -> Real:
        """The first moment :math:`\\mu(x)` (d,)."""
        return self.expectation(lambda X: X)

    def covariance(self) -> Real:
        """The covariance matrix (d, d)."""
        centred = self._points.astype(np.float64) - self.mean()
        out: Real = (centred * self._weights[:, None]).T @ centred
        return out.astype(self.dtype)

    def push_forward(self, f: PointMap) -> Measure:
        """:math:`f_\\#\\mu`: the points moved by f, a map from (n, d) to (n, d')."""
        return Measure(_mapped("f", f, self._points), self._weights)

    def reduced(self) -> Measure:
        """The same measure with equal points merged and points of weight 0 dropped."""
        live = self._weights > 0
        points, inverse = np.unique(self._points[live], axis=0, return_inverse=True)
        w = np.bincount(inverse.reshape(-1), self._weights[live], len(points))
        return Measure(points, (w / w.sum()).astype(self.dtype))

    def convolve(self, other: Measure) -> Measure:
        """:math:`\\mu * \\nu`, the law of the sum of independent draws (definition 13): n m points."""
        _checks.instance("other", other, Measure, "a Measure")
        _checks.same_space("other", other.dim, self.dim, "this measure")
        _checks.same_dtype("other", other.points, self.dtype, "this measure")
        points = (self._points[:, None, :] + other.points[None, :, :]).reshape(-1, self.dim)
        weights = np.outer(self._weights, other.weights).reshape(-1)
        return Measure(points, weights / weights.sum())

    def smooth(self, sigma: float) -> GaussianMixture:
        """:math:`N(0, \\sigma^2 I) * \\mu` (definition 13; the regularisation of proposition 17)."""
        return GaussianMixture(self, _checks.positive("sigma", sigma))

    def __matmul__(self, kernel: ConditionedKernel | ConditionedTransformer) -> Measure:
        """``nu @ A(mu)``: the transport :math:`\\nu A_\\mu`."""
        transport = getattr(kernel, "transport", None)
        if transport is None:
            raise TypeError(
                f"mu @ kernel: wanted a conditioned kernel such as A(mu), got "
                f"{type(kernel).__name__}; write mu @ A(mu)"
            )
        out: Measure = transport(self)
        return out

    def __repr__(self) -> str:
        kind = "uniform" if self.uniform else "weighted"
        return f"Measure({len(self)} points in R^{self.dim}, {kind}, {self.dtype})"


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """:math:`N(0, \\sigma^2 I) * \\mu` (MTA-2, proposition 17, lemma 37), with a density and the mean of mu.

    >>> import numpy as np
    >>> from qkcore.measure import Measure
    >>> smooth = Measure(np.array([[-1.0], [3.0]])).smooth(0.5)
    >>> smooth.mean(), smooth.w1_bound
    (array([1.]), 0.39894228040143...)
    """

    measure: Measure
    sigma: float

    def mean(self) -> Real:
        """The mean, which is that of the measure whatever sigma is (lemma 36)."""
        return self.measure.mean()

    @cached_property
    def w1_bound(self) -> float:
        """:math:`\\int\\|z\\|_1\\rho(dz) = d\\sigma\\sqrt{2/\\pi}`: at least W1 to the measure (lemma 37)."""
        return self.measure.dim * self.sigma * math.sqrt(2 / math.pi)

    def log_density(self, X: npt.ArrayLike) -> Real:
        """Logarithm of the density at points X (m, d), in O(n + m) memory."""
        from ..scores import distance

        points = _like(self.measure, "X", X)
        s = distance(points, self.measure.points, beta=0.5 / self.sigma**2)
        constant = 0.5 * self.measure.dim * math.log(2 * math.pi * self.sigma**2)
        return s.shift(columns=self.measure.log_weights).logsumexp() - points.dtype.type(constant)

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Real:
        """n independent draws (n, d)."""
        generator = np.random.default_rng(rng)
        w = self.measure.weights.astype(np.float64)
        index = generator.choice(len(w), size=_checks.integer("n", n), p=w / w.sum())
        noise = generator.normal(scale=self.sigma, size=(len(index), self.measure.dim))
        return np.asarray(self.measure.points[index] + noise, dtype=self.measure.dtype)

    def quadrature(self, nodes: int = 8) -> Measure:
        """A measure on Gauss-Hermite points of every Gaussian, exact for moments up to ``2 nodes - 1``."""
        count = _checks.count("nodes", nodes, do="pass e.g. nodes=8")
        d = self.measure.dim
        if float(count) ** d * len(self.measure) > _MAX_NODES:
            raise ValueError(
                f"nodes: wanted at most {_MAX_NODES} points in all, got {count}**{d} for each of "
                f"{len(self.measure)} points; use sample(n), which does not grow with d"
            )
        z, w = np.polynomial.hermite_e.hermegauss(count)
        grid = np.stack(np.meshgrid(*([z] * d), indexing="ij"), axis=-1).reshape(-1, d)
        weight = np.ones(1)
        for _ in range(d):
            weight = np.multiply.outer(weight, w).reshape(-1)
        dtype = self.measure.dtype
        rule = Measure((self.sigma * grid).astype(dtype), (weight / weight.sum()).astype(dtype))
        return self.measure.convolve(rule)


def as_measure(name: str, value: Measure | npt.ArrayLike) -> Measure:
    """A measure is returned as it is; an array of points (n, d) becomes its empirical measure."""
    if isinstance(value, Measure):
        return value
    array = _checks.real_array(name, value)
    _checks.shape(
        name,
        array.shape,
        ("n", "d"),
        what="a Measure or points",
        do=f"for points on a line pass {name}[:, None]",
    )
    _checks.some(name, len(array), 1, "point")
    return Measure(array)


def _like(measure: Measure, name: str, value: npt.ArrayLike) -> Real:
    """Points (m, d) in the space and the dtype of a measure."""
    array, _ = _checks.points(name, value)
    _checks.same_dtype(name, array, measure.dtype, "the measure")
    _checks.shape(name, array.shape, ("m", measure.dim), what="points", why="as the measure's")
    return array


def _weights(value: npt.ArrayLike, n: int, dtype: np.dtype[Any]) -> Real:
    w = _checks.real_array("weights", value)
    _checks.same_dtype("weights", w, dtype, "the points")
    _checks.shape("weights", w.shape, (n,), why="with one weight for each point")
    _checks.finite("weights", w)
    _checks.none_negative("weights", w, "weights >= 0")
    total = float(w.sum(dtype=np.float64))
    if abs(total - 1) > _MASS_TOL[w.itemsize]:
        raise ValueError(
            f"weights: wanted weights that sum to 1, got a sum of {total:.6g}; "
            "pass weights / weights.sum()"
        )
    return w


def _mapped(name: str, f: PointMap, points: Real) -> Real:
    values = np.asarray(f(points))
    _checks.shape(
        name,
        values.shape[:1],
        (len(points),),
        what="values",
        why="from a map of all points at once, (n, d) to (n, ...)",
    )
    values = values.astype(points.dtype, copy=False)
    _checks.finite(f"{name}(points)", np.atleast_1d(values))
    return values


def _frozen(array: Real) -> Real:
    view = array.view()
    view.flags.writeable = False
    return view
