"""Bridges over a kernel that only an object of the caller knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._bridge_kernels import GivenKernel
from ._bridge_result import SolvedBridge, dual_value
from ._config import resolve_threads
from ._lazy_scores import Real

__all__ = ["GivenBridge"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenBridge(SolvedBridge):
    """A solved bridge over an object with ``rows`` and ``columns``: like :class:`SchrodingerBridge`.

    The coupling is :math:`\\Pi_{ij} = e^{f_i + s_{ij} + g_j}`, where only the object knows :math:`s`.
    Everything here, including the final check, is computed by calls of its methods. ``n_visits`` counts the
    solver's calls of ``rows``, ``columns`` and ``curvature``.
    """

    kernel: Any = field(repr=False)

    @property  # a new object for each call, so that threads can share a result
    def _native(self) -> Any:
        return GivenKernel(self.kernel).native

    @cached_property
    def _sums(self) -> tuple[Real, Real]:
        f, g = self.f.astype(np.float64), self.g.astype(np.float64)
        sums: tuple[Real, Real] = self._native.sums(f, g, resolve_threads(None))
        return sums

    def marginals(self) -> tuple[Real, Real]:
        """Row and column sums of the coupling, by one visit."""
        rows, columns = self._sums
        return rows.astype(self.f.dtype), columns.astype(self.f.dtype)

    def plan(self) -> Real:
        """The coupling as an array (N, M), by one visit for each column."""
        self._used()
        n, m = len(self.mu), len(self.nu)
        out = np.zeros((n, m))
        for j in np.flatnonzero(np.isfinite(self.g)):
            alone = np.full(m, -np.inf)
            alone[j] = self.g[j]
            out[:, j] = np.exp(self.f + self._row_sums(alone))
        return out.astype(self.f.dtype)

    def project(self, V: npt.ArrayLike) -> Real:
        """Barycentric projection of V (M, k) or (M,): one visit, and two for each column of V."""
        self._used()
        values = _checks.real_array("V", V)
        _checks.same_dtype("V", values, self.f.dtype, "the kernel")
        n = len(self.nu)
        _checks.shape("V", values.shape, (n,), (n, "k"))
        _checks.finite("V", values)
        g = self.g.astype(np.float64)
        total = self._row_sums(g)
        columns = values.reshape(len(values), -1).T.astype(np.float64)
        out = np.zeros((len(columns), len(self.mu)))
        with np.errstate(divide="ignore", invalid="ignore"):
            for mean, column in zip(out, columns, strict=True):
                for sign in (1.0, -1.0):
                    part = np.maximum(sign * column, 0.0)
                    if part.any():
                        logs = self._row_sums(g + np.log(part)) - total
                        mean += sign * np.where(np.isneginf(total), 0.0, np.exp(logs))
        return out.T.reshape(len(self.mu), *values.shape[1:]).astype(self.f.dtype)

    def _row_sums(self, g: Real) -> Real:
        """The logarithms of the row sums of exp(s + g)."""
        lse: Real = self._native.row_sums(g, resolve_threads(None))
        return lse

    @property
    def dual(self) -> float:
        """At most the primal value of any coupling; see :attr:`qkcore.SchrodingerBridge.dual`."""
        self._used()
        return dual_value(self._sums, ((self.f, self.mu), (self.g, self.nu)), self.penalty)

    def __str__(self) -> str:
        shape = f"{len(self.mu)} x {len(self.nu)}"
        return self._summary(
            f"Schrödinger bridge {shape} over {type(self.kernel).__name__}, {self.f.dtype}"
        )
