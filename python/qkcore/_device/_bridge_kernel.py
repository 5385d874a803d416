"""The kernel of a bridge on a device: entries stay there, potentials and sums cross to the host."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _feasibility
from .._bridge_check import Residual, judge
from .._bridge_kernels import BridgeKernel
from .._bridge_problem import _Problem
from .._lazy_scores import Real, Scores
from .._native import cpu
from .._score_masks import UNBOUNDED
from ._operators import EXP
from ._scores import SOFTMAX, DeviceScores

__all__ = ["DeviceKernel"]

# Weights of a strip of rows are kept between their two uses up to this much scratch memory.
_STORED_BYTES = 2**30
# Masses that differ by no more, as shares of each other, are the same but for rounding on the host.
_ALIKE = 1e-13
# Masses whose largest has a greater logarithm than this are not left to the device's own dtype.
_IN_RANGE = 46.0


class DeviceKernel(BridgeKernel):
    """exp(s) of one problem. ``mu`` and the penalty on it tell which masses the rows will mostly get."""

    def __init__(
        self,
        s: DeviceScores,
        mu: Real,
        penalty: float = math.inf,
        max_memory: float | None = None,
        stream: int | None = None,
    ) -> None:
        self.scores, self.shape = s, s.shape
        self.dtype = self.potentials = self.entries = s.dtype
        # 216 blocks keep a strip of 32 rows each (cuda/src/sweep.hpp).
        strips = min(216, -(-s.shape[0] // 32)) * 32 * s.shape[1] * s.dtype.itemsize
        self.stored = strips <= (_STORED_BYTES if max_memory is None else max_memory)
        self._masses = mu, penalty
        self._stream = s._context.stream() if stream is None else stream

    @cached_property
    def sweep(self) -> DeviceSweep:
        return DeviceSweep(self.scores, *self._masses, self.stored, self._stream)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        s = self.scores
        pairs = [(x, y) for x, y, *_ in (*s._dots, *s._distances)]
        others = s._dense or s._row_bias or s._col_bias or s._masks
        return not others and s._band[0] == -s._band[1] and all(x is y for x, y in pairs)

    @cached_property
    def native(self) -> Any:
        n, m = self.shape
        return cpu.bridge_object(self.sweep, n, m, float(np.finfo(self.dtype).eps))

    @property
    def kept(self) -> str:
        return f"{'one exp' if self.stored else 'two exps'} per entry and visit"

    def check(self, p: _Problem, f: Real, g: Real) -> Residual:
        """By the device, in the dtype of the scores."""
        with np.errstate(over="ignore", invalid="ignore"):
            f, g = f.astype(np.float64), g.astype(np.float64)
            try:
                return judge(self.sweep.sums(f, g), p.conditions, (f, g), 0.0, p.tol)
            except OverflowError:
                return Residual(math.inf, math.inf, False)

    @cached_property
    def support(self) -> Scores | None:
        """A mask of few entries is copied to the host; what a band lets through is known without."""
        from .. import scores

        s, (n, m) = self.scores, self.shape
        open_sides = [abs(end) == UNBOUNDED for end in s._band]
        if s._masks or not any(open_sides):
            return scores.dense(s.to_numpy()) if n * m <= _feasibility.MAX_ENTRIES else None
        if all(open_sides):
            return None
        ends = np.zeros((n, 1), s.dtype), np.zeros((m, 1), s.dtype)
        return scores.dot(*ends)._with(band=s._band)

    def refuses(self, solver: str) -> str | None:
        return None

    def automatic(self, symmetric: bool) -> str:
        return "auto"


class DeviceSweep:
    """What the core asks of a kernel that is given from Python, by the device's own reductions."""

    def __init__(
        self, s: DeviceScores, mu: Real, penalty: float, stored: bool, stream: int
    ) -> None:
        self.s, self.c, self.mu, self.penalty = s, s._context, mu, penalty
        self.stored, self.stream = stored, stream
        self.damping = 1.0 if math.isinf(penalty) else penalty / (1 + penalty)
        with np.errstate(divide="ignore"):
            self._log_mu = np.log(mu.astype(np.float64))
        n, m = s.shape
        empty, device, dtype = self.c.module.empty, self.c.device, str(s.dtype)
        lse, f, columns = (empty((k,), dtype, device, stream) for k in (n, n, m))
        self._arrays = self._up(mu), self._up(np.ones(m)), lse, f, columns
        # Whether the log-sum-exps of a visit are there, for the next to start from.
        self._warm = False

    def rows(self, g: Real, mass: Any) -> tuple[Real, Real | None]:
        """One visit where the masses are those of Sinkhorn's update, up to a factor; else another one for
        the columns."""
        if mass is None:
            return self._lse(self.s, g), None
        how = None, 1, self._warm, self.damping, 1.0, self.stored, self.stream
        self.c.module.sinkhorn_sweeps(self.s._spec, self._up(g), *self._arrays, *how)
        _, _, lse_there, _, columns_there = self._arrays
        lse, self._warm = _in_range(self._down(lse_there)), True
        self._g, self._minus_lse = g, np.where(np.isneginf(lse), -np.inf, -lse)
        masses = mass(lse)
        live = np.isfinite(self._log_mu) & np.isfinite(lse)
        log_guessed = self.damping * self._log_mu[live] + (1 - self.damping) * lse[live]
        with np.errstate(divide="ignore"):
            log_masses = np.log(masses)
        factors = log_masses[live] - log_guessed
        in_range = abs(log_guessed.max(initial=-math.inf)) < _IN_RANGE
        if in_range and np.isfinite(factors).all() and np.ptp(factors) <= _ALIKE:
            return lse, math.exp(factors[0]) * self._down(columns_there)
        return lse, np.exp(g + self.columns(log_masses + self._minus_lse))

    def columns(self, f: Real) -> Real:
        return self._lse(self.s.T, f)

    def curvature(self, x: Real, mass: Real) -> Real:
        """By products: p x, and the transpose of p with the result."""
        g, minus_lse = self._up(self._g), self._up(self._minus_lse)
        at = self.s._with(col_bias=(*self.s._col_bias, g))
        inner = self._product(at, SOFTMAX, x)
        turned = at._with(row_bias=(*self.s._row_bias, minus_lse)).T
        return self._product(turned, EXP, mass * inner)

    def scaled(self, factor: float) -> DeviceSweep:
        penalty = self.penalty * factor
        return DeviceSweep(self.s * factor, self.mu, penalty, self.stored, self.stream)

    def sums(self, f: Real, g: Real) -> tuple[Real, Real]:
        """Row and column sums of exp(f + s + g)."""
        s = self.s
        plan = s._with(row_bias=(*s._row_bias, self._up(f)), col_bias=(*s._col_bias, self._up(g)))
        found = self.c.module.marginals(plan._spec, stream=self.stream)
        rows, columns = map(self._down, found)
        if np.isfinite(rows).all() and np.isfinite(columns).all():
            return rows, columns
        # A penalised plan may have more mass than the dtype holds.
        return np.exp(f + self._lse(s, g)), np.exp(g + self.columns(f))

    def _lse(self, s: DeviceScores, potential: Real) -> Real:
        """Log-sum-exps of the rows of s + potential."""
        shifted = s._with(col_bias=(*s._col_bias, self._up(potential)))
        found = self._down(shifted._reduce(SOFTMAX, None, True, stream=self.stream)[0])
        return _in_range(found)

    def _product(self, s: DeviceScores, weight: int, values: Real) -> Real:
        given = self._up(values[:, None])
        found = self.c.module.reduce_rows(s._spec, weight, given, False, stream=self.stream)[1]
        return self._down(found)[:, 0]

    def _up(self, host: Real) -> Any:
        with np.errstate(over="ignore"):
            ready = np.ascontiguousarray(host, dtype=self.s.dtype)
        c, dtype = self.c, str(self.s.dtype)
        return c.module.upload(ready, ready.shape, dtype, c.device, self.stream)

    def _down(self, array: Any) -> npt.NDArray[np.float64]:
        out = np.empty(array.shape, self.s.dtype)
        self.c.module.download(array, out, self.stream)
        return out.astype(np.float64)


def _in_range(sums: Real) -> Real:
    if np.isnan(sums).any() or (sums == np.inf).any():
        raise OverflowError("the potentials are out of the range of the dtype")
    return sums
