"""The result of a Gaussian flow: the states, and for every trajectory how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .._backend import backend_of
from .._lazy_scores import Real
from .._words import Ended

__all__ = ["STATUSES", "GaussianFlow"]


_MEANING = {
    "converged": "the covariance is within settle_tol of its limit",
    "not settled": "the end of t_span was reached, and the law still moves",
    "diverged": "the covariance grew by the factor max_growth, but its growth does not suggest a blow-up "
    "at a finite time",
    "blew up": "the covariance becomes infinite at blow_up_time",
    "indefinite": "the steps were too long: the covariance did not stay positive semidefinite; pass more "
    "n_steps, or n_steps=None for adaptive steps",
    "step limit": "max_steps were not enough; if the steps are short for stability alone (a stiff flow), "
    "pass method='rodas4'",
    "step underflow": "the tolerance needs steps that are too small to change t",
}
STATUSES = tuple(_MEANING)


@dataclass(frozen=True, eq=False)
class GaussianFlow(Ended):
    """Means and covariances over time, and a status for every trajectory (TPDE-3).

    With batch axes ``status`` and the numbers about trajectories are arrays over the batch; for one
    trajectory they are a string and numbers. A trajectory that ended before the last time keeps its last
    finite state from then on: see ``t_end``.
    """

    t: npt.NDArray[np.float64] = field(repr=False)
    """the stored times"""
    mean: Real = field(repr=False)
    """(times, ..., d)"""
    cov: Real = field(repr=False)
    """(times, ..., d, d), symmetric to the last bit"""
    status: Any
    """"converged": the distance of the covariance to its limit is at most ``settle_tol`` times its initial
    norm, if the limit is known in closed form (``blow_up_exact``). Otherwise: at its present rate the
    covariance would move by no more than that over another span of the same length, or over the time that the
    field needs to change anything by its own size (from norms of Q, K, V), if that is longer. "not settled":
    it is farther away, or would move by more. "diverged": its norm grew by the factor ``max_growth``, but the
    growth does not suggest a blow-up at a finite time. "blew up": the same, but the growth suggests a blow-up
    at ``blow_up_time``, or the closed form has one before the end, even if steps that are too long missed it.
    "indefinite": the steps were too long for the covariance to stay positive semidefinite. "step limit":
    ``max_steps`` were used up, as happens in stiff flows, for which ``method="rodas4"`` is meant. "step
    underflow": the tolerance needs steps that are too small to change t"""
    t_end: Any
    """the time of the last state; less than the last time if a trajectory ended early"""
    blow_up_time: Any
    """the time of the blow-up, inf if there is none: in closed form if the parameters commute
    (``blow_up_exact``), otherwise extrapolated from the last step that resolved the growth"""
    blow_up_exact: Any
    eigenvalues: Real = field(repr=False)
    """the eigenvalues of the last covariance, ascending, (..., d)"""
    decay: Real = field(repr=False)
    """:math:`t\\dot\\lambda/\\lambda` of these eigenvalues: near -1 if they vanish like 1/t, near 0 if they
    stay"""
    rank: Any
    """the rank of the limit, in closed form if there is one and the status is "converged". Otherwise the
    number of eigenvalues above ``rank_tol`` times the largest initial one and with ``decay`` above -1/2,
    which says something about the limit only if the status is "converged\""""
    mean_rate: Real = field(repr=False)
    """the time derivative of the last mean"""
    cov_rate: Real = field(repr=False)
    """the time derivative of the last covariance"""
    n_steps: Any = field(repr=False)
    """steps accepted"""
    n_rejected: Any = field(repr=False)
    kind: str
    method: str
    settings: dict[str, Any] = field(repr=False)
    """``judge``, ``form`` and the tolerances that the statuses refer to"""

    @property
    def converged(self) -> Any:
        """Whether the status is "converged", an array for batches."""
        return np.asarray(self.status) == "converged" if self._batch else self.status == "converged"

    @property
    def success(self) -> Any:
        """Whether the end of the span was reached with a valid covariance, an array for batches."""
        found = np.isin(np.asarray(self.status), ("converged", "not settled"))
        return found if self._batch else bool(found)

    @property
    def message(self) -> str:
        """What the status means, in a sentence; for a batch how many trajectories have each status."""
        if not self._batch:
            return _MEANING[self.status]
        return ", ".join(f"{n} {name}" for name, n in self.counts().items())

    @property
    def _batch(self) -> tuple[int, ...]:
        return self.mean.shape[1:-1]

    def counts(self) -> dict[str, int]:
        """How many trajectories ended with each status; they sum to their number."""
        flat = np.atleast_1d(np.asarray(self.status)).ravel()
        return {name: n for name in STATUSES if (n := int(np.count_nonzero(flat == name)))}

    def final(self) -> tuple[Real, Real]:
        """The last mean and covariance."""
        return self.mean[-1], self.cov[-1]

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.gaussian_flow(self)

    def __str__(self) -> str:
        d = self.mean.shape[-1]
        n = int(np.prod(self._batch, dtype=int))
        what = "1 trajectory" if n == 1 else f"{n} trajectories"
        lines = [
            f"Gaussian flow ({self.kind}, {self.method}): {what}, d = {d}, {self.cov.dtype}, "
            f"t = {self.t[0]:g} to {self.t[-1]:g}, {len(self.t)} times stored"
        ]
        status = np.atleast_1d(np.asarray(self.status)).ravel()
        t_end, blow_up = np.atleast_1d(self.t_end).ravel(), np.atleast_1d(self.blow_up_time).ravel()
        rank = np.atleast_1d(self.rank).ravel()
        for name, count in self.counts().items():
            at = status == name
            text = f"  {name:12s} {count}"
            if name == "converged":
                ranks = ", ".join(
                    f"{r}: {c}"
                    for r, c in zip(*np.unique(rank[at], return_counts=True), strict=True)
                )
                text += f"  (rank of the limit {ranks})"
            elif name == "blew up":
                text += f"  (at t = {blow_up[at].min():.4g} to {blow_up[at].max():.4g})"
            elif name not in ("converged", "not settled"):
                text += f"  (stopped at t = {t_end[at].min():.4g} to {t_end[at].max():.4g})"
            if name == "step limit" and self.method != "rodas4":
                text += '; if the steps are short for stability alone, pass method="rodas4"'
            lines.append(text)
        backend = backend_of(self.cov)
        if not backend.host_arrays:
            lines.append(f"  on {backend.place}")
        return "\n".join(lines)
