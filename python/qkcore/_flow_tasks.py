"""Arguments and results of a backend's flows: of particles (TPDE-2) and of Gaussian laws (TPDE-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FieldSpec", "FlowOptions", "Flown", "Laws", "LawsFlown"]

Report = Callable[[float], None] | None

_SINKHORN_TOL = {4: 1e-5, 8: 1e-10}


class FieldSpec(NamedTuple):
    """A field of attention among N particles (TPDE-1)."""

    kind: str
    """one of ``cpu.FIELD_KINDS``"""
    Q: npt.NDArray[np.float64]
    """(layers, heads, k, d), the same shape as K; V is (layers, heads or 1, d, d)"""
    K: npt.NDArray[np.float64]
    V: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    """(layers,): layer l is in force from times[l] on"""
    order: npt.NDArray[np.intp] | None
    """the indices that sort the particles by their positions under a mask; None: they keep their order"""
    ends: npt.NDArray[np.int64] | None
    """in that order, particle i sees the first ends[i] particles; None: every particle sees all"""
    weights: npt.NDArray[np.float64] | None
    """(N,), with sum 1; None: all particles have the same weight"""
    renormalise: bool
    sphere: bool
    epsilon: float
    tol: float | None
    """the tolerance for the marginals of Sinkhorn attention; None: chosen for the dtype"""
    max_visits: int
    parameters: Callable[[float], tuple[npt.NDArray[np.float64], ...]]
    """Q, K (heads, k, d) and V (heads or 1, d, d) in force at a time"""
    time_dependent: bool
    """whether Q, K and V are functions of time, and not layers"""

    def tol_of(self, dtype: Any) -> float:
        return self.tol or _SINKHORN_TOL[np.dtype(dtype).itemsize]


class FlowOptions(NamedTuple):
    """Options of a flow of particles; cpp/bind/register_particles.cpp reads them by these names."""

    method: str
    t0: float
    t1: float
    n_steps: int
    """equal steps; 0: steps that adapt to ``rtol`` and ``atol``"""
    rtol: float
    atol: float
    first_step: float
    min_step: float
    max_step: float
    max_steps: int
    breaks: npt.NDArray[np.float64]
    """times between t0 and t1 at which the velocity jumps"""
    t_eval: npt.NDArray[np.float64] | None
    sphere: bool
    radius: float
    """the flow ends when a particle has this distance from 0; 0: no limit"""
    n_clusters: int
    linkage: float
    report: Report
    """called with the time after each step"""


class Flown(NamedTuple):
    """The result of a flow of particles."""

    t: npt.NDArray[np.float64]
    x: Any
    """states (T, N, d) in the caller's library"""
    status: str
    n_steps: int
    n_rejected: int
    n_evaluations: int


class Laws(NamedTuple):
    """Gaussian laws and the options of their flow: the arguments of ``cpu.gaussian_flow``, in its order."""

    field: int
    """the kind of field (cpp/include/qk/gaussian.hpp): 0 weighted, 1 l2, 2 sinkhorn"""
    gain: float
    raw_moment: bool
    epsilon: float
    mean: npt.NDArray[Any]
    cov: npt.NDArray[Any]
    score: npt.NDArray[Any]
    query: npt.NDArray[Any]
    value: npt.NDArray[Any]
    method: int
    pushforward: bool
    t0: float
    t1: float
    n_steps: int
    """equal steps, of which every ``every``-th is stored; 0: steps that adapt"""
    every: int
    output: npt.NDArray[np.float64]
    """for steps that adapt: the times after t0 that are stored; the last of them is t1"""
    rtol: float
    atol: float
    max_steps: int
    max_growth: float
    judge_mean: bool
    report: Report

    @property
    def n_stored(self) -> int:
        """The number of times that are stored, including t0."""
        return 1 + (-(-self.n_steps // self.every) if self.n_steps else len(self.output))

    def mapped(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Laws:
        """A copy with all arrays changed."""
        return self._replace(
            mean=change(self.mean),
            cov=change(self.cov),
            score=change(self.score),
            query=change(self.query),
            value=change(self.value),
        )

    def of(self, chosen: npt.NDArray[np.intp]) -> Laws:
        """A copy for some of the trajectories, without ``report``."""

        def rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return x if len(x) == 1 < len(self.mean) else np.ascontiguousarray(x[chosen])

        return self._replace(report=None).mapped(rows)


class LawsFlown(NamedTuple):
    """The result of a flow of Gaussian laws."""

    mean: Any
    """(times, n, d), an array of the backend"""
    cov: Any
    last: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    """mean and covariance at the end, as NumPy arrays; the rates and the figures are NumPy arrays too"""
    rates: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    figures: npt.NDArray[np.float64]
    """(n, 12), see cpp/bind/register_gaussian.cpp"""
    counts: npt.NDArray[np.int64]
    """(n, 4): the status of each law, its steps, its rejected steps, whether it stayed positive"""
