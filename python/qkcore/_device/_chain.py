"""Bridges over several steps on a device: visits run there; the potentials of all times are on the host."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from .._bridge_kernels import ChainKernel
from .._lazy_scores import Real, Scores
from .._native import cpu
from ..operators import kernel, softmax
from ._cuda import Cuda
from ._visits import visited

__all__ = ["DeviceChain", "on_host"]


class DeviceChain(ChainKernel):
    """The product of the kernels of several steps, with visits that run on the device."""

    @classmethod
    def of(cls, steps: tuple[Scores, ...]) -> DeviceChain:
        """Makes the kernel from scores whose arrays are on a device."""
        return cls(tuple(visited(s, f"kernels[{k}]") for k, s in enumerate(steps)))

    @cached_property
    def native(self) -> Any:
        n, m = self.shape
        return cpu.bridge_object(_Sweep(self.steps), n, m, float(np.finfo(self.dtype).eps))

    def in_double(self) -> None:
        return None


class _Sweep:
    """The methods that the core calls for a kernel that is given from Python.

    Let h_n = g, and let h_{k-1} be the log-sum-exp of s_k + h_k over its columns. Then the row softmax of the
    chain at g is the product of the row softmaxes of s_k + h_k.
    """

    def __init__(self, steps: tuple[Scores, ...]) -> None:
        self.steps, self.dtype = steps, steps[0].dtype
        self._h: list[Real] = []

    def rows(self, g: Real, mass: Any) -> tuple[Real, Real | None]:
        h = [self._own(g)]
        for s in reversed(self.steps):
            h.insert(0, s.shift(columns=h[0]).logsumexp())
        self._h, lse = h, h[0].astype(np.float64)
        if mass is None:
            return lse, None
        with np.errstate(divide="ignore", invalid="ignore"):
            start = np.where(np.isneginf(lse), -np.inf, np.log(mass(lse)) - lse)
            return lse, np.nan_to_num(np.exp(self.columns(start) + g), nan=0.0)

    def columns(self, f: Real) -> Real:
        a = self._own(f)
        for s in self.steps:
            a = s.shift(rows=a).logsumexp(0)
        return a.astype(np.float64)

    def curvature(self, x: Real, mass: Real) -> Real:
        values = self._own(x)
        at = [s.shift(columns=h) for s, h in zip(self.steps, self._h[1:], strict=True)]
        for s in reversed(at):
            values = softmax(s).apply(values)
        values = self._own(mass * values)
        for s, lse in zip(at, self._h, strict=False):
            minus = np.where(np.isneginf(lse), lse, -lse).astype(self.dtype)
            values = kernel(s.shift(rows=minus)).apply_left(values)
        return values.astype(np.float64)

    def scaled(self, factor: float) -> _Sweep:
        return _Sweep(tuple(s * factor for s in self.steps))

    def _own(self, values: Real) -> Real:
        with np.errstate(over="ignore"):
            return values.astype(self.dtype)


def on_host(s: Scores, name: str, value: Any, length: int) -> Any:
    """A vector of the caller's device array library as a NumPy array."""
    c = s.backend
    assert isinstance(c, Cuda)
    return c.download(c.vector(name, value, str(s.dtype), length, ()))
