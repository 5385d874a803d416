"""The kernel of a bridge on a device: its entries stay there; potentials and sums are copied to the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _feasibility, scores
from .._bridge_check import Residual, judge, widened
from .._bridge_kernels import ScoresKernel
from .._bridge_problem import Problem
from .._lazy_scores import Real, Scores
from .._native import cpu
from ._visits import full_precision, visited, visits

__all__ = ["DeviceKernel", "DeviceSweep", "keeps_weights", "native"]

# Masses with a relative difference of at most this count as equal; the host's rounding explains the
# difference.
_ALIKE = 1e-13
# Kernels with at most this many entries are copied to the host, in strips, so that Newton's method can gather
# their large entries.
_LOOKED_AT = 2**22
# If the logarithm of the largest mass exceeds this, the sums are not left to the device's dtype.
_IN_RANGE = 46.0


class DeviceKernel(ScoresKernel):
    """exp(s) of one problem. From ``mu`` and the penalty on it follow the masses that rows usually get.

    The final check and the search for zeros of the kernel are those for scores on the CPU. They use a copy of
    the points and shifts, with visits on the device in double precision. Dense scores are not copied: the
    device sums them in their own dtype, and masks are examined only if the kernel has few entries.
    """

    def __init__(
        self,
        s: Scores,
        mu: Real,
        penalty: float = math.inf,
        max_memory: float | None = None,
        *,
        potentials: Any = None,
        name: str = "kernel",
    ) -> None:
        self.there, self.max_memory, self.name = s, max_memory, name
        self.shape, self.batch = s.shape, s.batch
        self.dtype = self.entries = s.dtype
        self.potentials = np.dtype(s.dtype if potentials is None else potentials)
        self.cuda: Any = s.backend
        full_precision(name, s)
        self.stored = keeps_weights(s, max_memory)
        self._masses = mu, penalty

    @cached_property
    def scores(self) -> Scores:  # type: ignore[override]
        """The scores with arrays on the host, which are copied when this is first used."""
        return visited(self.there, "kernel")

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.there.symmetric

    @cached_property
    def sweep(self) -> DeviceSweep:
        return DeviceSweep(self.there, *self._masses, self.stored, self.cuda.stream())

    @cached_property
    def native(self) -> Any:
        return native(self.sweep)

    def forget(self) -> None:
        super().forget()
        self.__dict__.pop("sweep", None)

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        if not self.there.terms.dense:
            return super().check(p, f, g)
        with np.errstate(over="ignore", invalid="ignore"):
            f, g = f.astype(np.float64), g.astype(np.float64)
            try:
                return judge(self.sweep.sums(f, g), p.conditions, (f, g), 0.0, p.tol)
            except OverflowError:
                return Residual(math.inf, math.inf, False)

    @cached_property
    def support(self) -> Scores | None:  # type: ignore[override]
        s = self.there
        if not s.terms.dense:
            return self.scores
        if s.terms.masks or s.terms.banded:
            few = s.n_rows * s.n_cols <= _feasibility.MAX_ENTRIES
            return scores.dense(s.to_numpy()) if few else None
        return None

    @property
    def kept(self) -> str:
        return f"{'one exp' if self.stored else 'two exps'} per entry and visit"

    def in_double(self) -> DeviceKernel | None:
        if self.dtype == np.float64 or self.there.terms.dense:
            return None
        self.forget()
        there = visits(self.scores).on_device(widened(self.scores))
        return DeviceKernel(there, *self._masses, self.max_memory)

    def automatic(self, symmetric: bool) -> str:
        return "auto"


def keeps_weights(s: Scores, max_memory: float | None = None) -> bool:
    """Whether there is memory to keep the weights of a strip of rows between their two uses in a visit."""
    memory = -1.0 if max_memory is None else max_memory
    return cpu.device_keeps_weights(s.n_rows, s.n_cols, s.dtype.itemsize, memory)


def native(sweep: DeviceSweep) -> Any:
    """The kernel as an object of the core."""
    s = sweep.s
    return cpu.bridge_object(sweep, s.n_rows, s.n_cols, float(np.finfo(s.dtype).eps))


class DeviceSweep:
    """The methods that the core calls for a kernel from Python, computed by reductions on the device."""

    def __init__(self, s: Scores, mu: Real, penalty: float, stored: bool, stream: int) -> None:
        self.s, self.mu, self.penalty = s, mu, penalty
        self.c: Any = s.backend
        self.stored, self.stream = stored, stream
        self.damping = 1.0 if math.isinf(penalty) else penalty / (1 + penalty)
        with np.errstate(divide="ignore"):
            self._log_mu = np.log(mu.astype(np.float64))
        n, m = s.shape
        c: Any = self.c
        empty, device, dtype = c.module.empty, c.device, str(s.dtype)
        lse, f, columns = (empty((k,), dtype, device, stream) for k in (n, n, m))
        self._arrays = self._up(mu), self._up(np.ones(m)), lse, f, columns
        # Whether there are log-sum-exps of an earlier visit, from which the next one can start.
        self._warm = False

    def rows(self, g: Real, mass: Any) -> tuple[Real, Real | None]:
        """Log-sum-exps of rows and the column sums, usually in one visit.

        The visit assumes that the masses are those of Sinkhorn's update, up to a common factor. If they are
        not, a second visit computes the columns.
        """
        if mass is None:
            return self._lse(self.s, g), None
        how = None, 1, self._warm, self.damping, 1.0, self.stored, self.stream
        self.c.module.sinkhorn_sweeps(self.s._described, self._up(g), *self._arrays, *how)
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
        """The curvature by two products: p x, and the transpose of p times the result."""
        g, minus_lse = self._up(self._g), self._up(self._minus_lse)
        at = _shifted(self.s, columns=g)
        inner = self._product(at, "softmax", x)
        return self._product(_shifted(at, rows=minus_lse).T, "exp", mass * inner)

    @property
    def entries(self) -> Callable[[int, int, float], tuple[Any, Any, Real]] | None:
        """A function that finds the large entries in a strip of rows, or None for kernels that are too large.

        The strip is computed on the device and searched on the host.
        """
        n, m = self.s.shape
        return self._entries if n * m <= _LOOKED_AT else None

    def _entries(self, first: int, end: int, least: float) -> tuple[Any, Any, Real]:
        columns, rows = self._up(self._g), self._up(self._minus_lse[first:end])
        strip = _shifted(self.s.rows(first, end), rows, columns)
        shares = self._down(self.c.materialize(strip, "exp", None, self.stream))
        i, j = np.nonzero(shares >= least)
        return i, j, shares[i, j]

    def scaled(self, factor: float) -> DeviceSweep:
        penalty = self.penalty * factor
        return DeviceSweep(self.s * factor, self.mu, penalty, self.stored, self.stream)

    def sums(self, f: Real, g: Real) -> tuple[Real, Real]:
        """Row and column sums of exp(f + s + g)."""
        plan = _shifted(self.s, rows=self._up(f), columns=self._up(g))
        rows, columns = map(self._down, self.c.marginals(plan, self.stream))
        if np.isfinite(rows).all() and np.isfinite(columns).all():
            return rows, columns
        # The mass of a plan with penalties may overflow the dtype, so the sums are taken from logarithms.
        return np.exp(f + self._lse(self.s, g)), np.exp(g + self.columns(f))

    def _lse(self, s: Scores, potential: Real) -> Real:
        """Log-sum-exps of the rows of s + potential."""
        shifted = _shifted(s, columns=self._up(potential))
        return _in_range(self._down(self.c.logsumexp(shifted, None, self.stream)))

    def _product(self, s: Scores, weight: str, values: Real) -> Real:
        given = self._up(values[:, None])
        return self._down(self.c.product(s, weight, given, None, self.stream))[:, 0]

    def _up(self, host: Real) -> Any:
        with np.errstate(over="ignore"):
            ready = np.ascontiguousarray(host, dtype=self.s.dtype)
        c, dtype = self.c, str(self.s.dtype)
        return c.module.upload(ready, ready.shape, dtype, c.device, self.stream)

    def _down(self, array: Any) -> npt.NDArray[np.float64]:
        out = np.empty(array.shape, self.s.dtype)
        self.c.module.download(array, out, self.stream)
        return out.astype(np.float64)


def _shifted(s: Scores, rows: Any = None, columns: Any = None) -> Scores:
    """The scores with shifts, which are device arrays and are not checked; they may exceed ``bound``."""
    terms = s.terms
    for axis, shift in ((1, rows), (0, columns)):
        if shift is not None:
            terms = terms.shifted(axis, (shift,))
    return s._with(terms)


def _in_range(sums: Real) -> Real:
    if np.isnan(sums).any() or (sums == np.inf).any():
        raise OverflowError("the potentials are out of the range of the dtype")
    return sums
