"""Schrödinger bridges on the device: the loop stays there, and one pair of numbers comes back per check."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._arrays import Context
from ._operators import DeviceMarkovOperator
from ._scores import SOFTMAX, DeviceScores

__all__ = ["DeviceBridge", "bridge"]

_TOL = {4: 1e-5, 8: 1e-9}
_SOLVERS = ("auto", "alternating")
# Iterations between two looks at the residual: few at first, for easy problems, then more.
_FIRST, _MOST = 1, 16
# Checks without a new smallest residual after which the dtype has given what it can.
_PATIENCE = 25
# Weights of a strip of rows are kept between their two uses up to this much scratch memory.
_STORED_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class DeviceBridge:
    """A solved bridge whose arrays are on the device; see :class:`qkcore.SchrodingerBridge`.

    ``errors`` are those of the checks (every 1 to 16 iterations), not of every iteration.
    """

    scores: DeviceScores = field(repr=False)
    mu: Any = field(repr=False)
    nu: Any = field(repr=False)
    f: Any = field(repr=False)
    """log potential of the rows, a device array"""
    g: Any = field(repr=False)
    """log potential of the columns; sum_j nu_j g_j = 0 for balanced problems"""
    status: str
    """"converged", or why not: "iteration limit", "stagnated" (at the precision of the dtype),
    "infeasible" (a row or column with mass sees nothing)"""
    converged: bool
    """finite, and the conditions met within ``tol`` at a final check of their own"""
    n_iter: int
    n_visits: int
    errors: npt.NDArray[np.float64] = field(repr=False)
    """L1 error of the columns at each check"""
    error: float
    """L1 error of the worse marginal at the final check (of the optimality conditions if unbalanced)"""
    worst: float
    """largest relative error of a single entry of the marginals at the final check"""
    method: str
    tol: float
    penalty: tuple[float, float] = (math.inf, math.inf)

    @cached_property
    def _log_plan(self) -> DeviceScores:
        return self.scores.shift(rows=self.f, columns=self.g)

    def plan(self) -> Any:
        """The coupling as a device array (N, M)."""
        return self._log_plan._materialize(False, None, None)

    def marginals(self) -> tuple[Any, Any]:
        """Row and column sums of the coupling, in one pass."""
        return self._log_plan.marginals()

    @cached_property
    def forward(self) -> DeviceMarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{ik}`, N x M."""
        return DeviceMarkovOperator(self.scores.shift(columns=self.g), 1)

    @cached_property
    def backward(self) -> DeviceMarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{kj}` as an M x N operator whose rows are the columns j."""
        return DeviceMarkovOperator(self.scores.T.shift(columns=self.f), 1)

    def project(self, V: Any) -> Any:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        return self.forward.apply(V)

    def __str__(self) -> str:
        n, m = self.scores.shape
        state = "converged" if self.converged else f"not converged ({self.status})"
        return (
            f"Schrödinger bridge {n} x {m}, {self.scores.dtype}, on {self.scores.device}: {state}\n"
            f"  {self.n_iter} iterations ({self.method}), marginal error {self.error:.3g} "
            f"(tolerance {self.tol:.3g})"
        )


def bridge(
    s: DeviceScores,
    mu: Any,
    nu: Any,
    *,
    tol: float | None,
    max_iter: int,
    solver: str,
    penalty: tuple[float, float],
    init: Any,
    max_memory: float | None,
    report: Any,
) -> DeviceBridge:
    """Sinkhorn's iteration, one visit each; arguments checked by qk.bridge but for the arrays."""
    if solver not in _SOLVERS:
        raise ValueError(
            f'solver: wanted "auto" or "alternating" for arrays on a device, got {solver!r}; the others '
            "run on the CPU"
        )
    loop = _Loop(s, mu, nu, penalty, init, max_memory)
    tol = _TOL[s.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    status = loop.run(0.5 * tol, max_iter, report)
    return loop.finish(tol, status)


class _Loop:
    def __init__(
        self,
        s: DeviceScores,
        mu: Any,
        nu: Any,
        penalty: tuple[float, float],
        init: Any,
        max_memory: float | None,
    ) -> None:
        _checks.one_problem("kernel", s._batch)
        self.s, self.c, self.penalty = s, s._context, penalty
        self.n, self.m = s.shape
        self.dtype = str(s.dtype)
        if s._inputs != self.dtype:
            raise TypeError(
                f"kernel: wanted float32 or float64 for a bridge, got {s._inputs}; convert the points"
            )
        self.given = (mu, nu)
        self.mu = _marginal(self.c, "mu", mu, self.dtype, self.n)
        self.nu = _marginal(self.c, "nu", nu, self.dtype, self.m)
        masses = _masses(self.c, self.mu, self.nu)
        balanced = all(map(math.isinf, penalty))
        if balanced:
            _same_mass(masses, (self.n, self.m), s.dtype)
        self.balanced = balanced
        self.dampings = tuple(1.0 if math.isinf(p) else p / (1 + p) for p in penalty)
        self.stream = self.c.stream()
        self.g = self._start(init)
        self.f, self.lse = self._empty(self.n), self._empty(self.n)
        self.columns = self._empty(self.m)
        self.residual = self.c.module.empty((2,), "float64", self.c.device, self.stream)
        self.errors: list[float] = []
        self.n_iter = self.n_visits = 0
        # 216 blocks keep a strip of 32 rows each (cuda/src/sweep.hpp).
        strips = min(216, -(-self.n // 32)) * 32 * self.m * s.dtype.itemsize
        self.stored = strips <= (_STORED_BYTES if max_memory is None else max_memory)

    def _empty(self, length: int) -> Any:
        return self.c.module.empty((length,), self.dtype, self.c.device, self.stream)

    def _start(self, init: Any) -> Any:
        """g of the first row update; f follows from it."""
        if init is None:
            return self.c.fill(0.0, self.m, self.dtype)
        pair = (init.f, init.g) if isinstance(init, DeviceBridge) else init
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"init: wanted an earlier result on the device or a pair (f, g), got {type(init).__name__}"
            )
        g = self.c.vector("init g", pair[1], self.dtype, self.m, ())
        self.c.finite("init g", self.c.figures(("init g", g, None))[0], minus_inf=True)
        # A copy, since the loop writes to it; a column that had no mass starts from nothing.
        negated = self.c.module.map_vector("minus_or_zero", g, stream=self.stream)
        return self.c.module.map_vector("affine", negated, a=-1.0, stream=self.stream)

    # ---- the loop ------------------------------------------------------------------------------

    def run(self, tol: float, max_iter: int, report: Any) -> str:
        best, since, every = math.inf, 0, _FIRST
        while self.n_iter < max_iter:
            count = min(every, max_iter - self.n_iter)
            error, stuck = self.c.module.sinkhorn_sweeps(
                self.s._spec,
                self.g,
                self.mu,
                self.nu,
                self.lse,
                self.f,
                self.columns,
                self.residual,
                count,
                self.n_iter > 0,
                *self.dampings,
                self.stored,
                self.stream,
            )
            self.n_iter += count
            self.n_visits += count
            self.errors.append(error)
            if report is not None:
                report(self.n_iter, error)
            if stuck and not self._exact_columns():
                return "infeasible"
            if not math.isfinite(error):
                return "infeasible" if self._blind_rows() else "stagnated"
            if error <= tol and not stuck:
                return "converged"
            if self.balanced is False and len(self.errors) > 1 and self._settled(tol):
                return "converged"
            since = 0 if error < best else since + 1
            best = min(best, error)
            if since >= _PATIENCE and self.balanced:
                return "stagnated"
            every = min(2 * every, _MOST)
        return "iteration limit"

    def _settled(self, tol: float) -> bool:
        """Penalised problems: the optimality conditions themselves, since no marginal is met."""
        return self._error()[0] <= tol

    def _exact_columns(self) -> bool:
        """Columns whose mass underflowed: their potential from an exact log-sum-exp."""
        turned = self.s.T
        turned = turned._with(col_bias=(*turned._col_bias, self.f))
        lse, _ = turned._reduce(SOFTMAX, None, True, stream=self.stream)
        self.n_visits += 1
        self.c.module.map_vector(
            "log_minus", self.nu, lse, a=self.dampings[1], out=self.g, stream=self.stream
        )
        return self.c.figures(("g", self.g, None))[0]["plus_inf"] == 0

    def _blind_rows(self) -> bool:
        return self.c.figures(("f", self.f, None))[0]["plus_inf"] > 0

    # ---- the end -------------------------------------------------------------------------------

    def _error(self) -> tuple[float, float]:
        """L1 and worst relative error of the conditions on the marginals of exp(f + s + g)."""
        s = self.s._with(row_bias=(*self.s._row_bias, self.f), col_bias=(*self.s._col_bias, self.g))
        sums = self.c.module.marginals(s._spec, stream=self.stream)
        wanted = []
        for weight, potential, strength in zip(
            (self.mu, self.nu), (self.f, self.g), self.penalty, strict=True
        ):
            if math.isinf(strength):
                wanted.append(weight)
            else:
                wanted.append(
                    self.c.module.map_vector(
                        "tilt", weight, potential, a=-1 / strength, stream=self.stream
                    )
                )
        figures = self.c.figures(("rows", sums[0], wanted[0]), ("columns", sums[1], wanted[1]))
        self.n_visits += 1
        if any(side["nan"] or side["plus_inf"] for side in figures):
            return math.inf, math.inf
        return max(s["difference"] for s in figures), max(s["ratio"] for s in figures)

    def finish(self, tol: float, status: str) -> DeviceBridge:
        module = self.c.module
        if self.balanced and status != "infeasible":
            mean = self.c.figures(("g", self.g, self.nu))[0]
            shift = mean["dot"] / mean["weight"]
            if math.isfinite(shift):
                module.map_vector("affine", self.f, c=shift, out=self.f, stream=self.stream)
                module.map_vector("affine", self.g, c=-shift, out=self.g, stream=self.stream)
        blind = self._blind_rows()
        if blind:
            status = "infeasible"
        error, worst = (math.inf, math.inf) if blind else self._error()
        converged = error <= tol and status != "infeasible"
        if converged:
            status = "converged"
        elif status == "converged":
            status = "stagnated"
        return DeviceBridge(
            scores=self.s,
            mu=self.given[0],
            nu=self.given[1],
            f=self.c.give(self.f, stream=self.stream),
            g=self.c.give(self.g, stream=self.stream),
            status=status,
            converged=converged,
            n_iter=self.n_iter,
            n_visits=self.n_visits,
            errors=np.asarray(self.errors),
            error=error,
            worst=worst,
            method=f"alternating, {'one exp' if self.stored else 'two exps'} per entry and iteration",
            tol=tol,
            penalty=self.penalty,
        )


# ---- arguments ----------------------------------------------------------------------------------


def _marginal(c: Context, name: str, value: Any, dtype: str, length: int) -> Any:
    array = c.vector(name, value, dtype, length, ())
    found = c.figures((name, array, None))[0]
    c.finite(name, found)
    if found["smallest"] < 0:
        raise ValueError(
            f"{name}: wanted weights >= 0, got {found['smallest']:.3g}; marginals are measures"
        )
    if found["largest"] == 0:
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    return array


def _masses(c: Context, mu: Any, nu: Any) -> tuple[float, float]:
    rows, columns = c.figures(("mu", mu, None), ("nu", nu, None))
    return rows["sum"], columns["sum"]


def _same_mass(masses: tuple[float, float], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    a, b = masses
    slack = 16 * math.sqrt(max(shape)) * float(np.finfo(dtype).eps)
    if abs(a - b) > slack * abs(a):
        raise ValueError(
            f"nu: wanted the total mass of mu, {a:.6g}, got {b:.6g}; divide both by their sums, or "
            "pass penalty= for marginals that need not be met"
        )
