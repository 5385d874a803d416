"""Factors of low-rank kernels on a device, and their bridges, which the solver on the host computes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _checks
from .._lazy_scores import Real
from .._terms import EVERYTHING
from ._arrays import Context

if TYPE_CHECKING:
    from .._factors import Factored

__all__ = ["DeviceFactors", "FactoredSweep"]


class DeviceFactors(Context):
    """The section "factors" of :class:`qkcore._backend.Backend`, on arrays of a device."""

    most_experts: int | None = 4  # max_terms of qk_cuda/types.hpp
    inputs: str

    def factor(self, name: str, value: Any) -> Any:
        array = self.numbers(name, value)
        _checks.factor_shape(name, array.shape)
        self.finite(name, self.figures((name, array, None))[0])
        self.inputs = array.dtype
        return array

    def streamed(self, array: Any) -> Any:
        if array.contiguous:
            return array
        *batch, n, m = array.shape
        one = ((array, 1.0),)
        spec = (array.dtype, self.device, tuple(batch), n, m, (), (), one, (), (), (), *EVERYTHING)
        return self.module.materialize(spec, True, stream=self.stream())

    def factored_product(
        self, left: tuple[Any, ...], right: tuple[Any, ...], z: Any, at: int
    ) -> Any:
        from ._cuda import one_of

        z = self.streamed(z)
        batch = np.broadcast_shapes(*(x.shape[:-2] for x in (z, *left, *right)))
        if not batch:
            return self.module.factored_product(left, right, z, stream=at)
        shape = (*batch, z.shape[-2], left[0].shape[-1])
        out = self.module.empty(shape, z.dtype, self.device, at)
        for index in itertools.product(*map(range, batch)):
            one, other = (tuple(one_of(x, index, 2) for x in side) for side in (left, right))
            to = one_of(out, index, 2)
            self.module.factored_product(one, other, one_of(z, index, 2), out=to, stream=at)
        return out

    def converted(self, array: Any, dtype: np.dtype[Any]) -> Any:
        if array.dtype == str(dtype):
            return array
        return self.upload(self.download(self.streamed(array)), str(dtype))

    def smallest(self, array: Any) -> float:
        found = self.figures(("factor", array, None))[0]
        return float(found["smallest"])


class FactoredSweep:
    """The methods that the core calls for a kernel from Python, by products with factors on a device.

    It works like cpp/src/bridge/factored_sweep.cpp. Scalings are divided by the largest of them. If a factor
    has negative entries (``guarded``), every sum that has to be positive is checked. If one is not, negative
    column sums are returned, which end the solve.
    """

    def __init__(self, K: Factored, mu: Real, guarded: bool) -> None:
        self._K, self._turned, self._mu, self._guarded = K, K.T, mu, guarded
        self._live = np.ones(K.shape[-1], np.bool_)
        self._lost = False

    def rows(self, g: Real, mass: Any) -> tuple[Real, Real | None]:
        top, self._z = _scaling(g)
        sums = self._sums(self._K, self._z)
        lse = _logs(sums, top)
        if mass is None:
            self._lost = self._lost or (self._guarded and bool((sums <= 0).any()))
            return lse, None
        masses = mass(lse)
        lost = self._lost or (self._guarded and bool(((sums <= 0) & (self._mu > 0)).any()))
        self._lost = False
        w = np.divide(masses, sums, out=np.zeros_like(sums), where=masses != 0)
        columns = self._sums(self._turned, w)
        self._live = g != -np.inf
        if lost or (self._guarded and bool((self._live & (columns <= 0)).any())):
            return lse, np.full(len(g), -1.0)
        self._row_sums = sums
        return lse, self._z * columns

    def columns(self, f: Real) -> Real:
        top, w = _scaling(f)
        sums = self._sums(self._turned, w)
        self._lost = self._lost or (self._guarded and bool((self._live & (sums <= 0)).any()))
        return _logs(np.abs(sums), top)

    def curvature(self, x: Real, mass: Real) -> Real:
        def share(values: Real) -> Real:
            live = (self._row_sums != 0) & (mass != 0)
            return np.divide(values, self._row_sums, out=np.zeros_like(values), where=live)

        inner = share(self._sums(self._K, self._z * x))
        return self._z * self._sums(self._turned, mass * share(inner))

    def _sums(self, K: Factored, values: Real) -> Real:
        sums = K._visit(values, None)
        if not np.isfinite(sums).all():
            raise OverflowError("the sums are out of the range of float64")
        return sums


def _scaling(potential: Real) -> tuple[float, Real]:
    """The largest potential, and the exponentials of the potentials minus the largest."""
    top = float(potential.max())
    if top == -np.inf:
        return 0.0, np.zeros_like(potential)
    return top, np.exp(potential - top)


def _logs(sums: Real, top: float) -> Real:
    with np.errstate(divide="ignore"):
        out: Real = np.log(np.maximum(sums, 0.0)) + top
    return out
