"""What a backend is told of a flow, and what it gives back: particles (TPDE-2), Gaussian laws (TPDE-3)."""

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
    """of ``cpu.FIELD_KINDS``"""
    Q: npt.NDArray[np.float64]
    """(layers, heads, k, d), and so is K; V is (layers, heads or 1, d, d)"""
    K: npt.NDArray[np.float64]
    V: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    """(layers,): layer l is in force from times[l] on"""
    order: npt.NDArray[np.intp] | None
    """the particles by rising position under a mask; None: as they are"""
    ends: npt.NDArray[np.int64] | None
    """in that order, particle i sees the first ends[i]; None: everybody sees all"""
    weights: npt.NDArray[np.float64] | None
    """(N,), of sum 1; None: all weigh the same"""
    renormalise: bool
    sphere: bool
    epsilon: float
    tol: float | None
    """of the marginals of Sinkhorn attention; None: what the dtype allows"""
    max_visits: int
    parameters: Callable[[float], tuple[npt.NDArray[np.float64], ...]]
    """Q, K (heads, k, d) and V (heads or 1, d, d) in force at a time"""
    time_dependent: bool
    """whether these are functions of time, and not layers"""

    def tol_of(self, dtype: Any) -> float:
        return self.tol or _SINKHORN_TOL[np.dtype(dtype).itemsize]


class FlowOptions(NamedTuple):
    """How particles are moved; the names are those that cpp/bind/register_particles.cpp reads."""

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
    """the distance from 0 that ends the flow; 0: none does"""
    n_clusters: int
    linkage: float
    report: Report
    """told of the time after each step"""


class Flown(NamedTuple):
    """What became of particles."""

    t: npt.NDArray[np.float64]
    x: Any
    """states (T, N, d) in the caller's library"""
    status: str
    n_steps: int
    n_rejected: int
    n_evaluations: int


class Laws(NamedTuple):
    """Gaussian laws and how they are moved: what ``cpu.gaussian_flow`` is given, in its order."""

    field: int
    """of cpp/include/qk/gaussian.hpp: 0 weighted, 1 l2, 2 sinkhorn"""
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
    """of steps that adapt: the times after t0 that are stored, the last of them t1"""
    rtol: float
    atol: float
    max_steps: int
    max_growth: float
    judge_mean: bool
    report: Report

    @property
    def n_stored(self) -> int:
        """How many times are kept, t0 among them."""
        return 1 + (-(-self.n_steps // self.every) if self.n_steps else len(self.output))

    def mapped(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Laws:
        """The same with all arrays changed."""
        return self._replace(
            mean=change(self.mean),
            cov=change(self.cov),
            score=change(self.score),
            query=change(self.query),
            value=change(self.value),
        )

    def of(self, chosen: npt.NDArray[np.intp]) -> Laws:
        """The same for some of the trajectories, of which nobody is told."""

        def rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return x if len(x) == 1 < len(self.mean) else np.ascontiguousarray(x[chosen])

        return self._replace(report=None).mapped(rows)


class LawsFlown(NamedTuple):
    """What became of Gaussian laws."""

    mean: Any
    """(times, n, d), an array of the backend"""
    cov: Any
    last: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    """mean and covariance at the end, as NumPy arrays, and so are their rates and the figures"""
    rates: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    figures: npt.NDArray[np.float64]
    """(n, 12), see cpp/bind/register_gaussian.cpp"""
    counts: npt.NDArray[np.int64]
    """(n, 4): how each ended, steps, rejected ones, whether it stayed positive"""
