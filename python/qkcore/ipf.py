"""Algorithm 2 of EOT as written: IPF with adaptive regularisation (EOT-10, M.3).

It serves to reproduce the paper; :func:`qkcore.bridge` solves the same problem faster, and at the temperature
that was asked for. The iterations are those of the solver, extrapolated when the paper says so. An observer
keeps the figures that the paper reports, and applies its two stopping rules.
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
from ._bridge_solve import METHODS
from ._config import resolve_threads
from ._convergence import WarnsOnUse, on_fail_option, settle
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._words import Ended

__all__ = ["AdaptiveIPF", "adaptive_ipf"]

# A tolerance that no iteration reaches, because the algorithm stops by its own rules.
_NEVER = -1.0


@dataclass(frozen=True, eq=False)
class AdaptiveIPF(Ended, WarnsOnUse):
    """The result of algorithm 2, with a record of its iterations."""

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
    """total variation error of both marginals together, after each iteration (line 11)"""
    potential_change: npt.NDArray[np.float64] = field(repr=False)
    """largest change of a potential, phi or psi, in each iteration (H's second rule)"""
    dual_objective: npt.NDArray[np.float64] = field(repr=False)
    """:math:`\\langle a, Kb\\rangle - \\langle\\mu_0, \\log a\\rangle - \\langle\\mu_1, \\log b\\rangle`,
    which the paper calls the dual gap. In truth it is minus the dual value, and does not tend to 0."""
    n_visits: int = 0
    """visits of all entries: one before the first iteration, one for each iteration, and one for each
    extrapolated point that was tried"""
    tol: float = 1e-3
    on_fail: str = field(default="warn", repr=False)
    """what using the result does when it did not converge: "warn" or "ignore" """

    @property
    def error(self) -> float:
        """The larger of the two figures that the stopping rules compare with ``tol``, at the end."""
        return float(max(self.tv[-1], self.potential_change[-1]))

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
    """Algorithm 2 (EOT-10): IPF on the logarithms of K = exp(-|x - y|^2_{a^-1} / 2 eps), with adaptive eps.

    First eps is multiplied by 1.5 until the condition of K is at most ``max_condition``. Each iteration then
    updates b, and after it a. Every fifth iteration tries Anderson's extrapolation of the last five iterates,
    which is kept only if the total variation (TV) error of the marginals falls. The algorithm stops when the
    TV of both marginals is below ``tol`` *and* the potentials phi = eps log a change by less than ``tol``.
    ``on_fail`` is that of :func:`bridge`.

    With ``condition="entries"`` the condition is max K / min K, which a larger eps lowers. ``"spectral"`` is
    the usual condition number. For a Gaussian kernel it grows with eps, so that the rule would raise eps for
    ever (errata). It is meant for small problems, and stops after 60 raises.

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
    kernel, threads = ScoresKernel(s).native, resolve_threads(n_threads)
    masses = rows.astype(np.float64), cols.astype(np.float64)
    record = _Record(*masses, eps, tolerance)
    start = np.zeros(len(rows)), np.zeros(len(cols))
    limits = limit, 2**62
    unbounded = math.inf, math.inf  # constraints, not penalties
    # The arguments 4 and 5 say that an extrapolation from four differences, those of five iterates, is tried
    # at every fifth iteration.
    log_a, log_b, _, n_visits, _, code, _ = cpu.solve_bridge(
        kernel,
        *masses,
        *start,
        METHODS["anderson"],
        _NEVER,
        *limits,
        *unbounded,
        record.error,
        threads,
        4,
        5,
        record.observe,
    )
    status = cpu.BRIDGE_STATUS[code]
    found = AdaptiveIPF(
        log_a.astype(rows.dtype),
        log_b.astype(cols.dtype),
        s,
        eps,
        kappa,
        status,
        len(record.tv),
        np.array(record.tv),
        np.array(record.change),
        np.array(record.dual),
        n_visits,
        tolerance,
    )
    return settle(found, fails)


def _condition(unit: Scores, kind: str) -> Callable[[float], float]:
    """The condition of K = exp(unit / eps) as a function of eps."""
    if kind == "entries":
        low, high = math.inf, -math.inf
        height = max(
            1, 2**20 // unit.shape[1]
        )  # rows at a time, so that the scores are never all in memory
        for start in range(0, unit.shape[0], height):
            block = unit.rows(start, min(unit.shape[0], start + height)).to_numpy()
            low, high = min(low, float(block.min())), max(high, float(block.max()))
        return lambda eps: math.exp(min((high - low) / eps, 700.0))
    Z = unit.to_numpy().astype(np.float64)
    return lambda eps: float(np.linalg.cond(np.exp(Z / eps)))


def _largest(x: Real) -> float:
    finite = np.isfinite(x)
    return float(np.abs(x[finite]).max(initial=0.0))


class _Record:
    """The record of the iterations and the stopping rules, as an observer of the solver."""

    def __init__(self, mu: Real, nu: Real, eps: float, tol: float) -> None:
        self._weights, self._eps, self._tol = (mu, nu), eps, tol
        self._live = mu > 0, nu > 0
        self._mass = float(mu.sum())
        self._last: tuple[Real, Real] = np.zeros(len(mu)), np.zeros(len(nu))
        self.tv: list[float] = []
        self.change: list[float] = []
        self.dual: list[float] = []

    def error(self, _visits: int, error: float) -> None:
        """Notes the TV error. The solver reports the L1 error of the columns as a share of the mass; the rows
        have no error."""
        self.tv.append(0.5 * error * self._mass)

    def observe(self, log_a: Real, log_b: Real) -> bool:
        """Notes the potentials after an iteration, and returns whether both rules are met."""
        here = log_a, log_b
        moved = max(
            _largest(x[at] - y[at]) for x, y, at in zip(here, self._last, self._live, strict=True)
        )
        self.change.append(self._eps * moved)
        self._last = here
        sides = zip(self._weights, here, self._live, strict=True)
        self.dual.append(self._mass - sum(math.fsum(w[at] * x[at]) for w, x, at in sides))
        return self.tv[-1] < self._tol and self.change[-1] < self._tol
