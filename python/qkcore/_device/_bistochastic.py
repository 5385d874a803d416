"""Sinkhorn attention on the device (TPDE 2.4): one bridge per velocity, started from the one before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._arrays import Context
from ._bridge import Loop, keeps_weights, run
from ._errors import NoConvergence, Overflow
from ._scores import SOFTMAX, DeviceScores

__all__ = ["Bistochastic"]

# Stagnation is the precision of the dtype: good enough when it is near the tolerance.
_NEAR = 100


class Bistochastic:
    """Means of particles under the bistochastic kernel of exp(-|Qx - Ky|^2 / 2 epsilon)."""

    def __init__(self, field: Any, c: Context, x: Any) -> None:
        from ..fields import _SINKHORN_TOL

        n = x.shape[0]
        self.field, self.c = field, c
        self.dtype = np.dtype(x.dtype)
        weights = np.full(n, 1 / n) if field.weights is None else field.weights
        self._weights = c.upload(weights, x.dtype)
        self._tol = field._sinkhorn_tol or _SINKHORN_TOL[self.dtype.itemsize]
        self._stored = keeps_weights((n, n), self.dtype.itemsize, None)
        # f and g of each head, written in place by every solve.
        self._potentials: list[tuple[Any, Any]] = []

    def product(self, h: int, q: Any, k: Any, x: Any, stream: int) -> Any:
        """sum_j kappa_ij w_j x_j of one head: the row softmax of s + g, normalised exactly."""
        n = x.shape[0]
        warm = h < len(self._potentials)
        if not warm:
            shape = ((n,), x.dtype, self.c.device, stream)
            self._potentials.append((self.c.module.empty(*shape), self.c.module.empty(*shape)))
        f, g = self._potentials[h]
        beta = 0.5 / self.field.epsilon
        s = DeviceScores(
            self.c, self.dtype, x.dtype, (), n, n, distances=((q, k, beta, 0),), top=0.0
        )
        both = (self._weights, self._weights)
        start = g if warm else None
        loop = Loop(s, both, (f, g), start, (math.inf, math.inf), self._stored, stream)
        run([loop], self._tol, self.field._sinkhorn_visits)
        error = loop.errors[-1]
        if not math.isfinite(error):
            self._potentials.clear()  # the next call starts from nothing
            raise Overflow
        near = loop.status == "stagnated" and error <= _NEAR * self._tol
        if loop.status != "converged" and not near:
            raise NoConvergence
        return s._with(col_bias=(g,))._reduce(SOFTMAX, x, False, stream=stream)[1]
