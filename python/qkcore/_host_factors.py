"""Factors of low-rank kernels in NumPy arrays, a part of the backend ``Host``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._native import cpu

__all__ = ["HostFactors"]

Real = npt.NDArray[np.floating[Any]]


class HostFactors:
    """The section "factors" of :class:`qkcore._backend.Backend`, on NumPy arrays."""

    most_experts: int | None = None

    def factor(self, name: str, value: Any) -> Real:
        array = _checks.real_array(name, value)
        _checks.factor_shape(name, array.shape)
        _checks.not_empty(name, array)
        _checks.finite(name, array)
        return array

    def streamed(self, array: Real) -> Real:
        if array.shape[-1] > 1 and array.strides[-1] == array.itemsize:
            return array
        return np.ascontiguousarray(array)

    def factored_product(
        self, left: tuple[Real, ...], right: tuple[Real, ...], z: Real, at: int
    ) -> Real:
        if len(left) == 1:  # a plain matrix: two products by BLAS
            inner = np.matmul(right[0], z.swapaxes(-1, -2))
            found: Real = np.matmul(left[0].swapaxes(-1, -2), inner).swapaxes(-1, -2)
            return found
        if all(x.ndim == 2 for x in (z, *left, *right)):
            return cpu.factored_product(left, right, np.ascontiguousarray(z), at)
        batch = np.broadcast_shapes(*(x.shape[:-2] for x in (z, *left, *right)))
        sides = [[np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in s] for s in (left, right)]
        values = np.broadcast_to(z, (*batch, *z.shape[-2:]))
        out = np.empty((*batch, z.shape[-2], left[0].shape[-1]), z.dtype)
        for index in np.ndindex(batch):
            one, other = (tuple([x[index] for x in side]) for side in sides)
            out[index] = cpu.factored_product(one, other, np.ascontiguousarray(values[index]), at)
        return out

    def converted(self, array: Real, dtype: np.dtype[Any]) -> Real:
        return array.astype(dtype, copy=False)

    def smallest(self, array: Real) -> float:
        return float(array.min())
