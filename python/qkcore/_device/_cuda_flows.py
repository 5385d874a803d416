"""Flows of particles and Gaussian laws on a device, the part of ``Cuda`` for flows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .._flow_tasks import FieldSpec, Flown, FlowOptions, Laws, LawsFlown
from .._ode import IMPLICIT, Overflow
from ._arrays import Context, lost
from ._rows import Sphere

__all__ = ["CudaFlows"]


class CudaFlows(Context):
    """See the section on flows of ``_backend.Backend``."""

    def particles(self, name: str, X: Any, d: int | None) -> Any:
        x = self.numbers(name, X)
        if x.ndim != 2 or d not in (None, x.shape[1]):
            raise ValueError(f"{name}: wanted particles of shape (N, {d or 'd'}), got {x.shape}")
        self._contiguous(name, x)
        self.finite(name, self.figures((name, x, None))[0])
        return x

    def _contiguous(self, name: str, x: Any) -> None:
        if not x.contiguous:
            raise ValueError(
                f"{name}: wanted a contiguous array, got strides {x.strides}; pass a contiguous copy"
            )

    def on_sphere(self, name: str, x: Any) -> None:
        Sphere(self, x).check(name, x)

    def velocity(self, field: FieldSpec, x: Any, t: float, at: int) -> Any:
        from ._velocity import DeviceField

        out, target = self.fresh(x.shape, x.dtype, at)
        of = DeviceField(field, self, x)
        of.enter(t)
        v = of(x, t, out, at)
        if lost(self.figures(("velocity", v, None))[0]):
            raise Overflow
        return self.give(v, target, at)

    def integrate(self, field: Any, x: Any, options: FlowOptions, at: int) -> Flown:
        from ._particles import integrate
        from ._velocity import DeviceField, DeviceFunction

        if options.method in IMPLICIT:
            raise ValueError(
                f"method: wanted an explicit one for particles on a device, got {options.method!r}, which "
                "runs only on the CPU; pass NumPy arrays, or method='dopri5'"
            )
        of = DeviceField if isinstance(field, FieldSpec) else DeviceFunction
        return integrate(of(field, self, x), options, at)

    def last_radius(self, states: Any) -> float:
        array = self.take("x", states)
        x, stream = array.entry(array.shape[0] - 1), self.stream()
        # The array is divided by its largest entry, so that squares do not overflow.
        size = max(self.figures(("x", x, None))[0]["largest"], 1e-300)
        scaled = self.module.map_vector("affine", x, a=1 / size, stream=stream)
        squares = self.module.row_dots(scaled, scaled, stream=stream)
        return size * math.sqrt(self.figures(("radius", squares, None))[0]["largest"])

    def law(self, name: str, value: Any) -> npt.NDArray[Any] | None:
        if value is None:
            return None
        array = self.numbers(name, value)
        self._contiguous(name, array)
        return self.download(array)

    def gaussian_flow(self, laws: Laws, at: int) -> LawsFlown:
        from ._gaussian import flow

        return flow(self, laws, at)

    def shaped(self, array: Any, shape: tuple[int, ...]) -> Any:
        stream = self.stream()
        if isinstance(array, np.ndarray):
            array = self.upload(array, array.dtype.name)
        shaped = array.reshape(shape)
        target = self.output("out", None, shape, array.dtype)
        if target is not None:  # otherwise the library adopts our memory
            self.module.copy(shaped, self.module.asarray(target, "out", stream), stream)
        return self.give(shaped, target, stream)
