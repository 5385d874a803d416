"""A solved bridge whose arrays are on the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from .._bridge_result import (
    SolvedBridge,
    _birkhoff_rate,
    dual_value,
    observed_rate,
    primal_value,
    scores_summary,
)
from ._moments import totals
from ._operators import DeviceMarkovOperator
from ._scores import DeviceScores

__all__ = ["DeviceBridge"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceBridge(SolvedBridge):
    """A solved bridge whose mu, nu, f and g are on the device; see :class:`qkcore.SchrodingerBridge`."""

    scores: DeviceScores = field(repr=False)

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
        """The observed factor by which the last iterations reduced the error; NaN if there were few."""
        self._require_one_problem()
        return observed_rate(self.errors)

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
        return scores_summary(self, f", on {self.scores.device}")
