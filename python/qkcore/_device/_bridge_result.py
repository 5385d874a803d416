"""A solved bridge whose arrays are on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._bridge_result import _birkhoff_rate, dual_value, primal_value, summary
from .._convergence import WarnsOnUse
from ._moments import totals
from ._operators import DeviceMarkovOperator
from ._scores import DeviceScores

__all__ = ["DeviceBridge"]


@dataclass(frozen=True, eq=False)
class DeviceBridge(WarnsOnUse):
    """A solved bridge whose arrays are on the device; see :class:`qkcore.SchrodingerBridge`.

    ``errors`` are those of the checks (every 1 to 16 iterations), not of every iteration. With batch axes
    ``status``, ``converged``, ``n_iter``, ``n_visits``, ``error``, ``worst`` and ``errors`` (the last ones)
    are NumPy arrays over the batch.
    """

    scores: DeviceScores = field(repr=False)
    mu: Any = field(repr=False)
    nu: Any = field(repr=False)
    f: Any = field(repr=False)
    """log potential of the rows, a device array"""
    g: Any = field(repr=False)
    """log potential of the columns; sum_j nu_j g_j = 0 for balanced problems"""
    status: Any
    """"converged", or why not: "iteration limit", "stagnated" (at the precision of the dtype),
    "infeasible" (a row or column with mass sees nothing)"""
    converged: Any
    """finite, and the conditions met within ``tol`` at a final check of their own"""
    n_iter: Any
    n_visits: Any
    errors: npt.NDArray[np.float64] = field(repr=False)
    """L1 error of the columns at each check"""
    error: Any
    """L1 error of the worse marginal at the final check (of the optimality conditions if unbalanced)"""
    worst: Any
    """largest relative error of a single entry of the marginals at the final check"""
    method: str
    tol: float
    penalty: tuple[float, float] = (math.inf, math.inf)
    relaxation: float = 1.0
    """1: Sinkhorn's iteration as it is"""
    checked: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), repr=False
    )
    """the iterations after which ``errors`` were looked at; empty for batches"""
    on_fail: str = field(default="warn", repr=False)
    """what using the result does when it did not converge: "warn" or "ignore" """

    @cached_property
    def _log_plan(self) -> DeviceScores:
        return self.scores.shift(rows=self.f, columns=self.g)

    def plan(self) -> Any:
        """The coupling as a device array (N, M)."""
        self._used()
        return self._log_plan._materialize(False, None, None)

    def marginals(self) -> tuple[Any, Any]:
        """Row and column sums of the coupling, in one pass."""
        return self._log_plan.marginals()

    @property
    def forward(self) -> DeviceMarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{ik}`, N x M."""
        self._used()
        return self._forward

    @cached_property
    def _forward(self) -> DeviceMarkovOperator:
        return DeviceMarkovOperator(self.scores.shift(columns=self.g), 1)

    @property
    def backward(self) -> DeviceMarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{kj}` as an M x N operator whose rows are the columns j."""
        self._used()
        return self._backward

    @cached_property
    def _backward(self) -> DeviceMarkovOperator:
        return DeviceMarkovOperator(self.scores.T.shift(columns=self.f), 1)

    def project(self, V: Any) -> Any:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        self._used()
        return self._forward.apply(V)

    # ---- figures of one problem ----------------------------------------------------------------

    @property
    def cost(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij} s_{ij}`."""
        self._used()
        return -self._totals[0]

    @property
    def entropy(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij}\\log \\Pi_{ij}`, in nats."""
        self._used()
        return -self._totals[1]

    @cached_property
    def _totals(self) -> tuple[float, float]:
        self._require_one_problem()
        return totals(self._log_plan, self.scores, self.scores._context.stream())

    @cached_property
    def _sums(self) -> tuple[Any, Any]:
        c = self.scores._context
        rows, columns = c.module.marginals(self._log_plan._spec, stream=c.stream())
        return c.download(rows).astype(np.float64), c.download(columns).astype(np.float64)

    @cached_property
    def _sides(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Potential and weight of both sides, on the host."""
        s, (n, m) = self.scores, self.scores.shape[-2:]
        take = s._context
        pairs = ("f", self.f, n), ("mu", self.mu, n), ("g", self.g, m), ("nu", self.nu, m)
        f, mu, g, nu = (
            take.download(take.vector(name, x, str(s.dtype), k, s._batch)).astype(np.float64)
            for name, x, k in pairs
        )
        return (f, mu), (g, nu)

    @property
    def primal(self) -> float:
        """What the bridge minimises; see :attr:`qkcore.SchrodingerBridge.primal`."""
        self._used()
        self._require_one_problem()
        return primal_value(
            -self._totals[0], -self._totals[1], self._sums, self._sides, self.penalty
        )

    @property
    def dual(self) -> float:
        """At most ``primal``, and equal to it at the solution; see :attr:`qkcore.SchrodingerBridge.dual`."""
        self._used()
        self._require_one_problem()
        return dual_value(self._sums, self._sides, self.penalty)

    @property
    def gap(self) -> float:
        """primal - dual; only of the size of ``error`` times the potentials when converged."""
        return self.primal - self.dual

    @property
    def rate(self) -> float:
        """The observed factor per iteration of the error over the last checks; NaN if there were few."""
        self._require_one_problem()
        tail, at = self.errors[-6:], self.checked[-6:]
        if len(tail) < 3 or not (tail > 0).all():
            return math.nan
        return float((tail[-1] / tail[0]) ** (1 / (at[-1] - at[0])))

    @cached_property
    def birkhoff_rate(self) -> float:
        """:math:`\\tanh^2(\\Delta/4)`: the Birkhoff-Hopf bound on the factor per iteration, see
        :attr:`qkcore.SchrodingerBridge.birkhoff_rate`. Scores are brought to the host in blocks for it."""
        self._require_one_problem()
        return _birkhoff_rate(cast(Any, self.scores))

    def _require_one_problem(self) -> None:
        if self.scores._batch:
            raise ValueError(
                "bridge: wanted one problem for this figure, got a batch; take them one by one"
            )

    def __str__(self) -> str:
        return summary(self, f", on {self.scores.device}")
