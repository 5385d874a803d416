"""Algorithm 2 of EOT as written: IPF with adaptive regularisation (EOT-10, M.3).

For reproducing the document; :func:`qkcore.bridge` solves the same problem faster and at the
temperature that was asked for. The loop is the document's: its two stopping rules, its record and its fixed
schedule of extrapolations are not those of the solver, whose visits and extrapolation it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._bridge_kernels import ScoresKernel
from ._bridge_problem import _marginal
from ._config import resolve_threads
from ._convergence import WarnsOnUse, on_fail_option, settle
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._words import Ended

__all__ = ["AdaptiveIPF", "adaptive_ipf"]


@dataclass(frozen=True, eq=False)
class AdaptiveIPF(Ended, WarnsOnUse):
    """What algorithm 2 returns, and how it got there."""

    log_a: Real = field(repr=False)
    log_b: Real = field(repr=False)
    scores: Scores = field(repr=False)
    epsilon: float
    """the regularisation that the conditioning rule ended with"""
    condition: float
    status: str
    """"converged" or "iteration limit" (the algorithm's warning)"""
    n_iter: int
    tv: npt.NDArray[np.float64] = field(repr=False)
    """TV of both marginals together, after each iteration (line 11)"""
    potential_change: npt.NDArray[np.float64] = field(repr=False)
    """largest change of a potential, phi or psi, in each iteration (H's second rule)"""
    dual_objective: npt.NDArray[np.float64] = field(repr=False)
    """:math:`\\langle a, Kb\\rangle - \\langle\\mu_0, \\log a\\rangle - \\langle\\mu_1, \\log b\\rangle`,
    which the document calls the dual gap: it is minus the dual value, and tends to it, not to 0"""
    tol: float = 1e-3
    on_fail: str = field(default="warn", repr=False)
    """what using the result does when it did not converge: "warn" or "ignore" """

    @property
    def error(self) -> float:
        """The larger of what the two stopping rules look at, after the last iteration."""
        return float(max(self.tv[-1], self.potential_change[-1]))

    @property
    def n_visits(self) -> int:
        """Iterations; each visits every entry twice, and every fifth four times."""
        return self.n_iter

    @property
    def converged(self) -> bool:
        """Whether both stopping rules were met."""
        return self.status == "converged"

    @property
    def phi(self) -> Real:
        """:math:`\\varphi = \\varepsilon \\log a` (line 12)."""
        self._used()
        out: Real = self.log_a * self.log_a.dtype.type(self.epsilon)
        return out

    @property
    def psi(self) -> Real:
        """:math:`\\psi = \\varepsilon \\log b` (line 12)."""
        self._used()
        out: Real = self.log_b * self.log_b.dtype.type(self.epsilon)
        return out

    def plan(self) -> Real:
        """The coupling as an array."""
        self._used()
        return np.exp(self.scores.shift(rows=self.log_a, columns=self.log_b).to_numpy())


def adaptive_ipf(
    X: npt.ArrayLike,
    Y: npt.ArrayLike,
    mu0: npt.ArrayLike,
    mu1: npt.ArrayLike,
    *,
    a: npt.ArrayLike | None = None,
    tol: float = 1e-3,
    max_iter: int = 1000,
    epsilon: float = 0.1,
    condition: str = "entries",
    max_condition: float = 1e10,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> AdaptiveIPF:
    """Algorithm 2 (EOT-10): K = exp(-|x - y|^2_{a^-1} / 2 eps), IPF on logarithms.

    Line by line: eps starts at 0.1 and grows by 1.5 while the condition of K exceeds 1e10; b, then a;
    TV of both marginals below ``tol`` *and* potentials phi = eps log a that change by less than ``tol``
    stop it; every fifth iteration Anderson's extrapolation of the last five iterates, kept only if the TV
    falls. ``on_fail`` is that of :func:`bridge`.

    ``condition="entries"`` reads the condition as max K / min K, which a larger eps does lower.
    ``"spectral"`` is the usual condition number: for a Gaussian kernel it grows with eps, so the rule
    never stops raising it (errata); it is offered for small problems, and gives up after 60 raises.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0], [1.0]])
    >>> found = qk.adaptive_ipf(X, X, np.full(2, 0.5), np.full(2, 0.5))
    >>> found.converged, found.epsilon
    (True, 0.1)
    """
    fails = on_fail_option(on_fail)
    tolerance = _checks.positive("tol", tol)
    eps = _checks.positive("epsilon", epsilon)
    limit = _checks.count("max_iter", max_iter)
    largest = _checks.positive("max_condition", max_condition)
    _checks.one_of("condition", condition, ("entries", "spectral"))
    metric = None if a is None else np.linalg.inv(_checks.real_array("a", a))
    unit = scores.distance(X, Y, W=metric, beta=0.5)  # K at eps = 1
    rows, cols = _marginal("mu0", mu0, unit, 0), _marginal("mu1", mu1, unit, 1)
    raises = 0
    kappa_at = _condition(unit, condition)
    while (kappa := kappa_at(eps)) > largest and raises < 60:
        eps *= 1.5
        raises += 1
    s = unit / eps
    visited, threads = ScoresKernel(s).native, resolve_threads(n_threads)
    masses = rows.astype(np.float64), cols.astype(np.float64)
    with np.errstate(divide="ignore"):
        log_mu, log_nu = (np.log(w) for w in masses)
    log_a: Real = np.zeros(len(rows))
    log_b: Real = np.zeros(len(cols))
    tv: list[float] = []
    change: list[float] = []
    dual: list[float] = []
    live = rows > 0
    anderson = cpu.Anderson(live.astype(np.float64), 4)  # of the map on log a: five iterates
    status = "iteration limit"

    def step(start: Real) -> tuple[Real, Real, float, float]:
        """b from a, a from b, the TV that is left, and the mass."""
        b = _minus(log_nu, visited.column_sums(start, threads))
        # A row update is known once the row has been visited, and with it what the columns get.
        lse, reached = visited.rows(b, masses[0], threads)
        met = np.where(np.isneginf(lse), 0.0, masses[0])
        off = sum(
            0.5 * float(np.abs(x - w).sum()) for x, w in zip((met, reached), masses, strict=True)
        )
        return _minus(log_mu, lse), b, off, float(met.sum())

    for k in range(1, limit + 1):
        start = log_a
        log_a, new_b, off, mass = step(start)
        change.append(eps * max(_largest(log_a - start), _largest(new_b - log_b)))
        log_b = new_b
        change_a = np.subtract(log_a, start, out=np.zeros_like(start), where=live)
        further = anderson.next(np.where(live, start, 0.0), change_a)
        if k % 5 == 0:
            t_a, t_b, t_off, t_mass = step(np.where(live, further, log_a))
            if t_off < off:
                log_a, log_b, off, mass = t_a, t_b, t_off, t_mass
        tv.append(off)
        seen = cols > 0
        dual.append(
            mass
            - math.fsum(masses[0][live] * log_a[live])
            - math.fsum(masses[1][seen] * log_b[seen])
        )
        if off < tolerance and change[-1] < tolerance:
            status = "converged"
            break
    found = AdaptiveIPF(
        log_a.astype(rows.dtype),
        log_b.astype(cols.dtype),
        s,
        eps,
        kappa,
        status,
        len(tv),
        np.array(tv),
        np.array(change),
        np.array(dual),
        tolerance,
    )
    return settle(found, fails)


def _condition(unit: Scores, kind: str) -> Callable[[float], float]:
    """The condition of K = exp(unit / eps) as a function of eps."""
    if kind == "entries":
        low, high = math.inf, -math.inf
        height = max(1, 2**20 // unit.shape[1])  # rows at a time: the scores are never all there
        for start in range(0, unit.shape[0], height):
            block = unit.rows(start, min(unit.shape[0], start + height)).to_numpy()
            low, high = min(low, float(block.min())), max(high, float(block.max()))
        return lambda eps: math.exp(min((high - low) / eps, 700.0))
    Z = unit.to_numpy().astype(np.float64)
    return lambda eps: float(np.linalg.cond(np.exp(Z / eps)))


def _minus(log_weight: Real, lse: Real) -> Real:
    """log_weight - lse, with weights of 0 staying out."""
    with np.errstate(invalid="ignore"):
        out: Real = np.where(np.isneginf(log_weight) | np.isneginf(lse), -np.inf, log_weight - lse)
    return out


def _largest(x: Real) -> float:
    finite = np.isfinite(x)
    return float(np.abs(x[finite]).max(initial=0.0))
