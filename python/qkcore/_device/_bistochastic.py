"""Sinkhorn attention on the device (TPDE 2.4): each velocity solves a bridge, starting from the last one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._bridge_solve import METHODS
from .._flow_tasks import FieldSpec
from .._lazy_scores import Real, Scores
from .._native import cpu
from .._ode import NoConvergence, Overflow
from .._terms import Terms
from ._bridge_kernel import DeviceSweep, keeps_weights, native

__all__ = ["Bistochastic"]

# A solve stagnates at the precision of the dtype. This is accepted if the error is at most this many times
# the tolerance.
_NEAR = 100


class Bistochastic:
    """Means of particles under the bistochastic kernel of exp(-|Qx - Ky|^2 / 2 epsilon)."""

    def __init__(self, field: FieldSpec, c: Any, x: Any) -> None:
        n = x.shape[0]
        self.field, self.c = field, c
        self.dtype = np.dtype(x.dtype)
        weights = np.full(n, 1 / n) if field.weights is None else field.weights
        self._weights = weights / weights.sum()
        self._tol = field.tol_of(self.dtype)
        # The potentials f and g of each head, from which its next solve starts.
        self._potentials: dict[int, tuple[Real, Real]] = {}

    def product(self, h: int, q: Any, k: Any, x: Any, stream: int) -> Any:
        """sum_j kappa_ij w_j x_j of one head, by the row softmax of s + g, whose rows sum to 1 exactly."""
        n, w = x.shape[0], self._weights
        beta = 0.5 / self.field.epsilon
        terms = Terms(distances=((q, k, beta, 0, 2),))
        s = Scores(self.dtype, (), n, n, terms, bound=0.0, backend=self.c)
        kernel = native(DeviceSweep(s, w, math.inf, keeps_weights(s), stream))
        start = self._potentials.get(h, (np.zeros(n), np.zeros(n)))
        visits = self.field.max_visits
        how: Any = METHODS["auto"], self._tol, visits, visits, math.inf, math.inf, None, 1
        f, g, errors, _, _, code, _ = cpu.solve_bridge(kernel, w, w, *start, *how)
        self._potentials[h] = f, g
        status, error = cpu.BRIDGE_STATUS[code], float(errors[-1]) if len(errors) else math.inf
        if not math.isfinite(error):
            self._potentials.clear()  # the next call starts from zeros
            raise Overflow
        near = status == "stagnated" and error <= _NEAR * self._tol
        if status != "converged" and not near:
            raise NoConvergence
        there = self.c.module.upload(
            g.astype(self.dtype), g.shape, str(self.dtype), self.c.device, stream
        )
        shifted = s._with(s.terms.shifted(0, (there,)))
        return self.c.product(shifted, "softmax", x, None, stream)
