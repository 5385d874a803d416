"""What solving a bridge gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ._lazy_scores import Real, Scores
from .operators import MarkovOperator, softmax

__all__ = ["SchrodingerBridge"]


@dataclass(frozen=True, eq=False)
class SchrodingerBridge:
    """A solved bridge: log potentials, how the solve went, and everything that follows from them.

    The coupling is :math:`\\Pi_{ij} = e^{f_i + s_{ij} + g_j}`. With batch axes, every figure below is
    an array over the batch (over the blocks of ragged scores).
    """

    scores: Scores = field(repr=False)
    mu: Real = field(repr=False)
    nu: Real = field(repr=False)
    f: Real = field(repr=False)
    """log potential of the rows"""
    g: Real = field(repr=False)
    """log potential of the columns; sum_j nu_j g_j = 0 for balanced problems"""
    status: str
    """"converged", or why not: "iteration limit", "stagnated" (at the precision of the dtype),
    "infeasible" (no coupling lives on the kernel's support), "no total support" (one does, on fewer
    entries; the iteration creeps there like 1/k)"""
    converged: bool
    """finite, and the conditions met within ``tol`` at a final check of their own"""
    n_iter: int
    """iterations: one visit of every entry each (Newton's method: see ``n_visits``)"""
    n_visits: int
    """visits of all entries, including those of inner solves"""
    errors: npt.NDArray[np.float64] = field(repr=False)
    """the error after each iteration: L1 of the marginal that the last half-step did not fix"""
    error: float
    """L1 error of the worse marginal at the final check (of the optimality conditions if unbalanced)"""
    worst: float
    """largest relative error of a single entry of the marginals at the final check"""
    method: str
    """the solver that was used, and how it kept the entries, e.g. "relaxed, stored"."""
    tol: float
    penalty: tuple[float, float] = (math.inf, math.inf)
    """weights of the KL penalties on both marginals; infinite: met exactly"""
    relaxation: float = 1.0
    """the over-relaxation that was reached"""

    @cached_property
    def _log_plan(self) -> Scores:
        return self.scores.shift(rows=self.f, columns=self.g)

    def plan(self) -> Real:
        """The coupling as an array (N, M)."""
        return np.exp(self._log_plan.to_numpy())

    def marginals(self) -> tuple[Real, Real]:
        """Row and column sums of the coupling, in one pass."""
        return self._log_plan.marginals()

    @cached_property
    def forward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{ik}` (eq 17): the softmax of s + g over rows (eq 33), N x M."""
        return softmax(self.scores.shift(columns=self.g))

    @cached_property
    def backward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{kj}` as an M x N operator whose rows are the columns j."""
        return softmax(self.scores.T.shift(columns=self.f))

    def project(self, V: npt.ArrayLike) -> Real:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        return self.forward.apply(V)

    @property
    def cost(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij} s_{ij}`."""
        return self._row_terms[0]

    @property
    def entropy(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij}\\log \\Pi_{ij}`, in nats."""
        return self._row_terms[1]

    @cached_property
    def _row_terms(self) -> tuple[float, float]:
        # A row of the coupling is its sum times a softmax, whose moments the engine gives.
        self._require_one_problem()
        forward = self.forward
        with np.errstate(invalid="ignore"):
            log_mass = (self.f + forward.log_normalizer).astype(np.float64)
        live = np.isfinite(log_mass)
        log_mass = log_mass[live]
        mass = np.exp(log_mass)
        expected = forward.expected_score()[live].astype(np.float64)  # of s + g
        g_mean = forward.apply(np.where(np.isfinite(self.g), self.g, 0))[live].astype(np.float64)
        entropy = forward.entropy()[live].astype(np.float64)
        return -math.fsum(mass * (expected - g_mean)), math.fsum(mass * (entropy - log_mass))

    @cached_property
    def primal(self) -> float:
        """:math:`\\sum_{ij} \\Pi_{ij}(\\log\\Pi_{ij} - s_{ij} - 1)`, what a balanced bridge minimises."""
        rows, _ = self.marginals()
        return self.cost - self.entropy - float(rows.sum(dtype=np.float64))

    @cached_property
    def dual(self) -> float:
        """:math:`\\langle f,\\mu\\rangle + \\langle g,\\nu\\rangle - \\sum_{ij}\\Pi_{ij}`: at most ``primal``
        of any coupling with these marginals, and equal to it at the solution (balanced problems)."""
        self._require_one_problem()
        total = 0.0
        for potential, weight in ((self.f, self.mu), (self.g, self.nu)):
            live = weight > 0
            total += math.fsum(potential[live].astype(np.float64) * weight[live])
        rows, _ = self.marginals()
        return total - float(rows.sum(dtype=np.float64))

    @property
    def gap(self) -> float:
        """primal - dual; only of the size of ``error`` times the potentials when converged."""
        return self.primal - self.dual

    @property
    def rate(self) -> float:
        """The observed factor by which the last iterations reduced the error; NaN if there were few."""
        tail = self.errors[-6:]
        if len(tail) < 3 or not (tail > 0).all():
            return math.nan
        return float((tail[-1] / tail[0]) ** (1 / (len(tail) - 1)))

    @cached_property
    def birkhoff_rate(self) -> float:
        """:math:`\\tanh^2(\\Delta/4)`: the Birkhoff-Hopf bound on the factor per plain iteration.

        :math:`\\Delta = \\max (s_{ij} + s_{kl} - s_{il} - s_{kj})`, exactly for small problems and from
        above otherwise (twice the largest range of a row's difference from the first one); 1 when the
        kernel has zeros. EOT's own rate is weaker still (erratum 7).
        """
        self._require_one_problem()
        return _birkhoff_rate(self.scores)

    def _require_one_problem(self) -> None:
        if self.f.ndim != 1 or self.scores._offsets is not None:
            raise ValueError(
                "bridge: wanted one problem for this figure, got a batch; take them one by one"
            )

    def __str__(self) -> str:
        return summary(self)


def summary(result: Any, place: str = "") -> str:
    """What ``print`` shows of a solved problem, or of a batch of them; ``place`` follows the dtype."""
    *batch, n, m = result.scores.shape
    size = f"{n} x {m}" + (f", batch {tuple(batch)}" if batch else "")
    if isinstance(result.status, str):
        state = "converged" if result.converged else f"not converged ({result.status})"
    else:
        state = f"{int(np.sum(result.converged))} of {np.size(result.converged)} converged"
    return (
        f"Schrödinger bridge {size}, {result.scores.dtype}{place}: {state}\n"
        f"  {np.max(result.n_iter)} iterations ({result.method}), "
        f"marginal error {np.max(result.error):.3g} (tolerance {result.tol:.3g})"
    )


_EXACT_BELOW = 10**7  # entries of the three-fold product that the exact diameter looks at


def _birkhoff_rate(s: Scores) -> float:
    n, m = s.shape
    exact = n * n * m <= _EXACT_BELOW
    first = s.rows(0, n if exact else 1).to_numpy().astype(np.float64)
    diameter = 0.0
    for start in range(0, n, 256):
        block = s.rows(start, min(n, start + 256)).to_numpy().astype(np.float64)
        if np.isneginf(block).any():
            return 1.0
        for reference in first:
            diameter = max(diameter, float(np.ptp(block - reference, axis=1).max()))
    return math.tanh((diameter if exact else 2 * diameter) / 4) ** 2
