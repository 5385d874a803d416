"""Softmatch kernels and the attention kernel, their composition with lookup and projection (MTA-1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ..operators import MarkovOperator, softmax
from ._families import ExponentialFamily
from ._lookups import LinearLookup, Lookup
from ._measure import Measure, _like, as_measure
from ._potentials import Potential

__all__ = ["AttentionKernel", "ConditionedKernel", "boltzmann_gibbs", "softmatch"]


def boltzmann_gibbs(
    g: Callable[[Real], npt.ArrayLike] | npt.ArrayLike, nu: Measure | npt.ArrayLike
) -> Measure:
    """:math:`\\Psi_g(\\nu)(dx) = g(x)\\nu(dx)/\\nu(g)` for g > 0 (MTA-1, definition 3).

    g: a function of the points (n, d), or its values (n,).

    >>> import numpy as np
    >>> from qkcore.measure import boltzmann_gibbs
    >>> boltzmann_gibbs(np.array([1.0, 3.0]), np.array([[0.0], [1.0]])).weights
    array([0.25, 0.75])
    """
    measure = as_measure("nu", nu)
    values = _checks.doubles("g", g(measure.points) if callable(g) else g)
    _checks.shape("g", values.shape, (len(measure),), why="with one value for each point")
    _checks.all_positive("g", values, "a potential that is positive everywhere")
    # Fractions are multiplied and exponents added, because a product that underflows before the
    # normalisation may be large after it.
    part, exponent = np.frexp(values)
    weight, more = np.frexp(measure.weights.astype(np.float64))
    exponent = exponent + more
    live = weight > 0
    w = np.zeros_like(part)
    w[live] = np.ldexp(
        part[live] * weight[live], exponent[live] - exponent[live].max(initial=-(2**30))
    )
    total = w.sum()
    if not total > 0:
        raise ValueError(
            "g: wanted a potential with positive mean under nu, got 0 after rounding; "
            "its values span more than the range of a double"
        )
    return Measure(measure.points, (w / total).astype(measure.dtype))


def softmatch(
    potential: Potential, X: npt.ArrayLike, nu: Measure | npt.ArrayLike
) -> MarkovOperator:
    """The softmatch kernel :math:`\\Psi_{G(x_i,\\cdot)}(\\nu)` as a Markov operator (MTA-1, definition 4).

    Rows are queries X (m, d), columns the points of nu; the logarithms of nu's weights are added to the
    columns of scores. For dot-product and Gaussian potentials the matrix is never formed.

    >>> import numpy as np
    >>> from qkcore.measure import DotPotential, Measure, softmatch
    >>> nu = Measure(np.array([[0.0], [1.0]]), np.array([0.75, 0.25]))
    >>> softmatch(DotPotential(), np.array([[np.log(3.0)]]), nu).to_numpy()
    array([[0.5, 0.5]])
    """
    _potential(potential)
    measure = as_measure("nu", nu)
    queries, _ = _checks.points("X", X)
    s = potential.scores(queries, measure.points)
    # Adding the same number to all columns does not change a softmax, so equal weights are left out.
    return softmax(s if measure.uniform else s.shift(columns=measure.log_weights))


def _potential(value: object) -> None:
    _checks.instance(
        "potential", value, Potential, "a Potential", "wrap a function with FunctionPotential"
    )


class Layer:
    """A map from measures to Markov kernels, :math:`\\mu \\mapsto A_\\mu`, that can be iterated."""

    def __call__(self, mu: Measure | npt.ArrayLike) -> Any:
        """The Markov kernel at mu."""
        raise NotImplementedError

    def self_attention(self, X: npt.ArrayLike) -> Real:
        """The particles after one layer, :math:`x_i \\mapsto A_{m(X)}(x_i)`, (n, d')."""
        mu = as_measure("X", X)
        particles: Real = self(mu).attend(mu.points)
        return particles

    def step(self, mu: Measure | npt.ArrayLike) -> Measure:
        """The nonlinear transport :math:`\\mu A_\\mu`."""
        measure = as_measure("mu", mu)
        moved: Measure = measure @ self(measure)
        return moved

    def iterate(self, mu: Measure | npt.ArrayLike, depth: int) -> list[Measure]:
        """The measures after 0, 1, ..., depth layers with shared weights (sections 3.1, 6.2)."""
        layers = [as_measure("mu", mu)]
        for _ in range(_checks.integer_within("depth", depth, 0, 2**31, "a number of layers")):
            layers.append(self.step(layers[-1]))
        return layers


def kernel_argument(value: object) -> None:
    _checks.instance("kernel", value, AttentionKernel, "an AttentionKernel")


@dataclass(frozen=True, eq=False)
class AttentionKernel(Layer):
    """:math:`A_\\mu(x, dz) = \\Pi[\\Psi_{G(x,\\cdot)}(\\mu) L](dz)` (MTA-1, definition 8).

    ``potential`` G, ``lookup`` L (default: the identity, values are keys) and ``projection``: "dirac"
    for the mean, or an :class:`ExponentialFamily`. ``A(mu)`` is the Markov kernel at mu, and
    ``nu @ A(mu)`` its action on a measure; ``mu @ A(mu)`` is self-attention as a nonlinear transport.

    >>> import numpy as np
    >>> from qkcore.measure import AttentionKernel, DotPotential, Measure
    >>> A = AttentionKernel(DotPotential(beta=0.5))
    >>> mu = Measure(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    >>> mu @ A(mu)
    Measure(3 points in R^2, uniform, float64)
    """

    potential: Potential
    lookup: Lookup | None = None
    projection: str | ExponentialFamily = "dirac"

    def __post_init__(self) -> None:
        _potential(self.potential)
        if self.lookup is None:
            object.__setattr__(self, "lookup", LinearLookup())
        else:
            _checks.instance(
                "lookup", self.lookup, Lookup, "a Lookup", "wrap a function with FunctionLookup"
            )
        if self.projection != "dirac" and not isinstance(self.projection, ExponentialFamily):
            raise ValueError(
                f'projection: wanted "dirac" or an ExponentialFamily, got {_checks.shown(self.projection)}'
            )

    @property
    def values(self) -> Lookup:
        """The lookup, never None."""
        assert self.lookup is not None
        return self.lookup

    def double(self) -> AttentionKernel:
        """The same kernel with parameters in float64; constants are estimated in double precision."""
        return AttentionKernel(self.potential.double(), self.values.double(), self.projection)

    def __call__(self, mu: Measure | npt.ArrayLike) -> ConditionedKernel:
        """The Markov kernel :math:`A_\\mu`."""
        return ConditionedKernel(self, as_measure("mu", mu))


@dataclass(frozen=True, eq=False)
class ConditionedKernel:
    """:math:`A_\\mu`, a Markov kernel; made by calling an :class:`AttentionKernel` with mu."""

    kernel: AttentionKernel
    measure: Measure

    def softmatch(self, Q: npt.ArrayLike) -> MarkovOperator:
        """:math:`\\Psi_{G(q_i,\\cdot)}(\\mu)`: the attention weights (m, n), as an operator."""
        return softmatch(self.kernel.potential, _like(self.measure, "Q", Q), self.measure)

    def before_projection(self, q: npt.ArrayLike) -> Measure:
        """:math:`\\Psi_{G(q,\\cdot)}(\\mu) L` for one query (d,): the weighted values."""
        query = _checks.real_array("q", q)
        weights = self.softmatch(query.reshape(1, -1)).to_numpy()[0]
        return Measure(self.kernel.values.values(self.measure.points), weights / weights.sum())

    def attend(self, Q: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """Attention(Q, K, V): the means of the values, (m, d') (proposition 9), in O(n + m) memory."""
        values = self.kernel.values.values(self.measure.points)
        return self.softmatch(Q).apply(np.ascontiguousarray(values), n_threads=n_threads)

    def transport(self, nu: Measure) -> Measure:
        """:math:`\\nu A_\\mu`; also written ``nu @ A(mu)``."""
        other = as_measure("nu", nu)
        if self.kernel.projection == "dirac":
            return Measure(self.attend(other.points), other.weights)
        family = self.kernel.projection
        assert isinstance(family, ExponentialFamily)
        F = family.values(self.kernel.values.values(self.measure.points))
        moments = self.softmatch(other.points).apply(F.astype(self.measure.dtype))
        members = family.members(moments)
        weights = other.weights.astype(np.float64) @ np.stack([m.measure.weights for m in members])
        return Measure(family.base.points, (weights / weights.sum()).astype(family.base.dtype))
