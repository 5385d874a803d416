"""Weight-shared depth: the fixed point of a block, and whether theorem 26 promises one (MTA-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from .._native import cpu
from .._progress import Bar
from .._words import Ended
from ._bounds import invariant, psi_bounds
from ._domains import Domain, domain_argument
from ._kernels import AttentionKernel
from ._measure import Measure, as_measure
from ._transformer import FeedForward, TransformerKernel

__all__ = ["FixedPoint", "fixed_point", "tau_bound"]

Block = AttentionKernel | TransformerKernel | Callable[[Real], npt.ArrayLike]

_TOL = {4: 1e-5, 8: 1e-10}
_GROWTH = 2.0  # an extrapolation that raises the residual by more than this factor is undone
_PATIENCE = 60  # after this many iterations without a smaller residual the run has stagnated
_BLOW_UP = 1e8
# Residuals are relative to the size of X, or to this part of the size of X0 if X is smaller: X may go to 0.
_FLOOR = 1e-3


@dataclass(frozen=True, eq=False)
class FixedPoint(Ended):
    """The fixed point :math:`X = T(X)` of a block, and how the iteration went."""

    X: Real = field(repr=False)
    """the particles (n, d) of the smallest residual"""
    status: str
    """"converged", "iteration limit", "stagnated" (no better residual for many iterations), "diverged"
    """
    converged: bool
    residual: float
    """mean l1 distance of a particle from its image, which is at least W1(mu, mu T)"""
    residuals: npt.NDArray[np.float64] = field(repr=False)
    """the residual at the start and after each iteration"""
    n_iter: int
    n_evaluations: int
    rejected: int
    """number of extrapolations that were undone, because they raised the residual too much"""
    contraction: float
    """the largest ratio, over consecutive iterates, of the distance of the images to that of the points
    (mean l1)"""
    local_rate: float
    """the rate at which plain iteration converges near X: the spectral radius of the block's derivative"""
    tau: float
    """the bound on tau(T) over the domain; nan if no domain was given, inf if no bound is known"""
    theorem: str
    """whether theorem 26 promises a unique fixed point: "applies", "does not apply" (tau >= 1, or the
    domain is not shown to be mapped into itself), "unknown" (no domain was given, or for such a block
    there is no bound or no test of the domain)"""

    @property
    def measure(self) -> Measure:
        """The empirical measure m(X) of the particles."""
        return Measure(self.X)

    def __str__(self) -> str:
        return (
            f"FixedPoint({self.status} after {self.n_iter} iterations, residual "
            f"{self.residual:.3g}, local rate {self.local_rate:.3g}, tau {self.tau:.3g}: theorem 26 "
            f"{self.theorem})"
        )


def fixed_point(
    block: Block,
    X0: Measure | npt.ArrayLike,
    *,
    method: str = "anderson",
    memory: int = 5,
    tol: float | None = None,
    max_iter: int = 1000,
    domain: Domain | None = None,
    progress: bool = False,
) -> FixedPoint:
    """The fixed point of an infinitely deep network with shared weights (MTA-3, section 6.2, theorem 26).

    ``block``: an attention or Transformer kernel, or any function (n, d) to (n, d). ``method``: "picard"
    repeats the block; "anderson" extrapolates from the last ``memory`` residuals, and takes a plain step
    instead whenever the extrapolation more than doubles the residual. ``tol`` (default 1e-10, in float32
    1e-5) bounds the mean l1 move of a particle. It is relative to the size of X, or to a thousandth of the
    size of X0 if X is smaller than that, as near a fixed point 0. With ``domain`` the result says whether
    theorem 26 applies there: tau must be below 1 by a proved bound, and the domain must be mapped into
    itself.

    >>> import numpy as np
    >>> from qkcore.measure import AttentionKernel, Ball, DotPotential, LinearLookup, fixed_point
    >>> A = AttentionKernel(DotPotential(), LinearLookup(0.3 * np.eye(2), np.array([0.07, 0.0])))
    >>> X = 0.2 * np.random.default_rng(0).random((5, 2))
    >>> found = fixed_point(A, X, domain=Ball(0.4, dim=2))
    >>> found.status, found.theorem, found.X[0].round(6)  # the point with x = 0.3 x + b
    ('converged', 'applies', array([0.1, 0. ]))
    """
    _checks.one_of("method", method, ("anderson", "picard"))
    start = as_measure("X0", X0)
    if not start.uniform:
        raise ValueError("X0: wanted particles of equal weight, got weights; pass points")
    depth = _checks.integer_within("memory", memory, 1, 100, "residuals to extrapolate from")
    limit = _checks.integer_within("max_iter", max_iter, 1, 2**31, "iterations")
    x = start.points.astype(start.dtype, copy=True)
    rtol = _TOL[x.itemsize] if tol is None else _checks.positive("tol", tol)
    apply = _function(block)
    tau = math.nan if domain is None else tau_bound(block, domain)
    theorem = _verdict(block, domain, tau)
    run = _Run(apply, x, depth if method == "anderson" else 0)
    status = "iteration limit"
    with Bar("fixed point", progress, limit) as bar:
        for _ in range(limit):
            residual = run.residual
            bar.step(f"residual {residual:.2e}")
            if not math.isfinite(residual) or run.size > _BLOW_UP * (1 + run.first_size):
                status = "diverged"
                break
            if residual <= rtol * run.scale:
                status = "converged"
                break
            if run.since_best > _PATIENCE:
                status = "stagnated"
                break
            run.advance()
    if status == "iteration limit" and run.residual <= rtol * run.scale:
        status = "converged"
    rate = _local_rate(apply, run.best) if status != "diverged" else math.nan
    return FixedPoint(
        X=run.best,
        status=status,
        converged=status == "converged",
        residual=run.best_residual,
        residuals=np.asarray(run.residuals),
        n_iter=len(run.residuals) - 1,
        n_evaluations=run.evaluations,
        rejected=run.rejected,
        contraction=run.contraction,
        local_rate=rate,
        tau=tau,
        theorem=theorem,
    )


class _Run:
    """The iterates and their residuals."""

    def __init__(self, apply: Callable[[Real], Real], x: Real, memory: int) -> None:
        self.apply = apply
        self.anderson: Any = cpu.Anderson(np.ones(x.size), memory) if memory else None
        self.evaluations = self.rejected = self.since_best = 0
        self.contraction = 0.0
        self.residuals: list[float] = []
        self.first_size = self._norm(x)
        self.best, self.best_residual = x, math.inf
        self.x, self.image = x, self._evaluate(x)
        self._record()

    @property
    def residual(self) -> float:
        return self.residuals[-1]

    @property
    def size(self) -> float:
        return self._norm(self.x)

    @property
    def scale(self) -> float:
        """The size to which the tolerance on the residual is relative."""
        return max(self.size, _FLOOR * self.first_size)

    def _evaluate(self, x: Real) -> Real:
        self.evaluations += 1
        return self.apply(x)

    def _norm(self, move: Real) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.abs(move.astype(np.float64)).sum(axis=1).mean())

    def _record(self) -> None:
        residual = self._norm(self.image - self.x)
        self.residuals.append(residual)
        if residual < self.best_residual:
            self.best, self.best_residual, self.since_best = self.x, residual, 0
        else:
            self.since_best += 1

    def advance(self) -> None:
        """One iteration: an extrapolation, or a plain step if that would raise the residual too much."""
        old_x, old_image = self.x, self.image
        trial = self._extrapolated()
        if trial is not None:
            image = self._evaluate(trial)
            if self._norm(image - trial) <= _GROWTH * self.residual:
                self.x, self.image = trial, image
            else:
                self.rejected += 1
                self.anderson.forget()
                trial = None
        if trial is None:
            self.x = old_image
            self.image = self._evaluate(self.x)
        self._record()
        apart = self._norm(self.x - old_x)
        # Between closer points the ratio would be one of rounding errors.
        if apart > 1e-6 * self.size and apart > 0:
            self.contraction = max(self.contraction, self._norm(self.image - old_image) / apart)

    def _extrapolated(self) -> Real | None:
        """The point extrapolated from the last steps; None at the first step and without extrapolation."""
        if self.anderson is None:
            return None
        first = self.anderson.empty
        point, image = (x.astype(np.float64).ravel() for x in (self.x, self.image))
        trial: Real = self.anderson.next(point, image - point)
        return None if first else trial.reshape(self.x.shape).astype(self.x.dtype)


def _function(block: Block) -> Callable[[Real], Real]:
    inner = (
        block.self_attention if isinstance(block, AttentionKernel | TransformerKernel) else block
    )
    _checks.function("block", inner, "points, or a kernel")

    def apply(x: Real) -> Real:
        out = np.asarray(inner(x))
        _checks.shape(
            "block",
            out.shape,
            x.shape,
            what="values",
            why="as the points",
            do="a fixed point needs values in their space",
        )
        return out.astype(x.dtype, copy=False)

    return apply


def _local_rate(apply: Callable[[Real], Real], x: Real, steps: int = 12) -> float:
    """The factor by which the block's derivative at x stretches a vector, by power iteration."""
    # This step balances the rounding and the truncation errors of a central difference. In single
    # precision four or five digits remain.
    step = float(np.finfo(x.dtype).eps) ** (1 / 3) * (1 + float(np.abs(x).max()))
    v = np.random.default_rng(0).normal(size=x.shape)
    v /= np.linalg.norm(v)
    rate = 0.0
    logs = []
    for _ in range(steps):
        h = (step * v).astype(x.dtype)
        image = (apply(x + h).astype(np.float64) - apply(x - h)) / (2 * step)
        rate = float(np.linalg.norm(image))
        if not math.isfinite(rate) or rate < 1e-14:
            return rate if math.isfinite(rate) else math.nan
        logs.append(math.log(rate))
        v = image / rate
    half = logs[len(logs) // 2 :]
    return math.exp(sum(half) / len(half))


def tau_bound(block: Block, domain: Domain) -> float:
    """A proved bound on tau over a domain (theorem 23, corrected); inf if none is known for the block.

    For a Transformer block without residuals and normalisation it is the sum of the bounds of the heads,
    times the Lipschitz constant of the feed-forward network. Other blocks get inf: a residual alone adds 1 to
    such a bound, so that theorem 26 could not apply, and for normalisation no bound is computed.
    """
    domain_argument(domain)
    if not isinstance(block, AttentionKernel | TransformerKernel):
        _checks.function("block", block, "points, or a kernel")
    if isinstance(block, AttentionKernel):
        query, measure = psi_bounds(block.potential.constants(domain))
        lip = block.values.lipschitz
        if lip is None or block.projection != "dirac":
            return math.inf
        return lip * (min(query) + min(measure[1:]))
    if isinstance(block, TransformerKernel):
        if block.residual or block.norm is not None:
            return math.inf
        heads = sum(tau_bound(block.head(h), domain) for h in range(len(block.W_Q)))
        if block.ffn is None:
            return heads
        return heads * block.ffn.lipschitz if isinstance(block.ffn, FeedForward) else math.inf
    return math.inf


def _verdict(block: Block, domain: Domain | None, tau: float) -> str:
    if domain is None or not isinstance(block, AttentionKernel | TransformerKernel):
        return "unknown"
    if not tau < 1:
        return "unknown" if math.isinf(tau) else "does not apply"
    if isinstance(block, AttentionKernel):
        inside = invariant(block, domain)
    elif block.ffn is None:
        maps = [block.W_V[h] @ block.W_O[h] for h in range(len(block.W_V))]
        inside = domain.holds(maps, np.zeros(domain.dim))
    else:
        inside = None
    return "unknown" if inside is None else "applies" if inside else "does not apply"
