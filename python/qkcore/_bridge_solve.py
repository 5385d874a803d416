"""One bridge, solved: the core's solver, the final check of its potentials, and the decisions after that.

The core decides which methods an iteration uses. This module decides what only the final check can tell,
because it checks the potentials after they have been rounded to the dtype: whether a tighter tolerance,
scores in double precision or more visits are worth trying, and what the zeros of the kernel say about a
problem that was not solved.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, _feasibility, _pieces
from ._bridge_check import largest_finite
from ._bridge_kernels import BridgeKernel
from ._bridge_problem import (
    TOLERANCES,
    Problem,
    _gauge,
    _is_symmetric,
    _marginal,
    _same_mass,
    _start,
    limits,
    penalties,
)
from ._bridge_report import Callback, reporter
from ._config import resolve_threads
from ._lazy_scores import Real
from ._native import cpu

METHODS = {name: code for code, name in enumerate(cpu.BRIDGE_METHODS)}
SOLVERS = tuple(METHODS)
_MINUS_INF = 4  # of cpu.scan's flags
# The most iterations, and the most visits, for a problem that is known to converge like 1/k.
_SLOW_LIMIT = 200


@dataclass(frozen=True)
class Found:
    """The outcome of one problem, as fields of the results."""

    f: Real
    g: Real
    status: str
    n_visits: int
    errors: npt.NDArray[np.float64]
    error: float
    worst: float
    method: str
    relaxation: float = 1.0

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def n_iter(self) -> int:
        return len(self.errors)


@dataclass(frozen=True)
class Asked:
    """A problem, its method and its starting potentials, all checked."""

    problem: Problem
    solver: str
    start: tuple[Real, Real]

    def solved(self, callback: Callback | None = None, progress: bool = False) -> dict[str, Any]:
        """The fields that all results share."""
        p = self.problem
        with reporter(callback, progress, p.tol) as report:
            return self.fields(solve_one(p, self.solver, *self.start, report))

    def fields(self, found: Found) -> dict[str, Any]:
        p = self.problem
        return {
            **vars(found),
            "mu": p.mu,
            "nu": p.nu,
            "converged": found.converged,
            "n_iter": found.n_iter,
            "tol": p.tol,
            "penalty": p.penalty,
        }


def ask(
    kernel: BridgeKernel,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    tol: float | None,
    max_iter: int,
    max_visits: int | None,
    solver: str,
    penalty: float | tuple[float, float] | None,
    init: Any,
    n_threads: int | None,
) -> Asked:
    """The arguments of a bridge over any kernel, checked."""
    p = Problem(
        kernel,
        _marginal("mu", mu, kernel, 0),
        _marginal("nu", nu, kernel, 1),
        TOLERANCES[kernel.dtype.itemsize] if tol is None else _checks.positive("tol", tol),
        *limits(max_iter, max_visits),
        *penalties(penalty),
        resolve_threads(n_threads),
    )
    _checks.one_of("solver", solver, SOLVERS)
    if p.balanced:
        _same_mass(p)
    symmetric = _is_symmetric(p)
    if solver == "symmetric" and not symmetric:
        raise ValueError(
            'solver: wanted symmetric scores and mu = nu for "symmetric", got a problem that is not '
            'known to be symmetric; use "auto"'
        )
    if (reason := kernel.refuses(solver)) is not None:
        raise ValueError(f"{kernel.name}: {reason}")
    if solver == "auto":
        solver = kernel.automatic(symmetric)
    return Asked(p, solver, _start(init, kernel))


def solve_one(p: Problem, solver: str, f: Real, g: Real, report: Callback | None) -> Found:
    if p.kernel.crawls(p):
        p = p._replace(
            max_iter=min(p.max_iter, _SLOW_LIMIT), max_visits=min(p.max_visits, _SLOW_LIMIT)
        )
    start = f, g
    found = _attempt(p, solver, f, g, report)
    if found.status == "negative kernel" and solver != "alternating" and _limit(p, found) is None:
        # A step longer than Sinkhorn's may leave the region where all sums are positive, so the answer
        # "negative kernel" stands only if Sinkhorn's own iteration gives it too.
        found = _better(found, _attempt(_rest(p, found), "alternating", f, g, report))
    if found.status in ("stagnated", "overflow"):
        status = p.kernel.verdict(p, found)
        if status in (_feasibility.INFEASIBLE, _feasibility.NO_TOTAL_SUPPORT):
            return _with_status(found, status)
    if solver == "auto" and not _ended(p, found):
        # The rounding of the scores may have stopped the solve; then only double precision helps.
        found = _in_double(p, solver, found, start, report)
    found = _across_plateaus(p, solver, found, start, report)
    if solver != "auto" and not _ended(p, found):
        found = _in_double(p, solver, found, start, report)
    if found.status == "stagnated" and found.error > _precision(p, found):
        found = _with_status(found, _limit(p, found) or "iteration limit")
    if found.status == "overflow" and math.isfinite(found.error):
        # The potentials are finite and have been checked; only the next step would have overflowed.
        found = _with_status(found, _limit(p, found) or found.status)
    status = p.kernel.verdict(p, found)
    if status == "overflow":
        raise OverflowError(
            f"{p.kernel.name}: the potentials overflow {p.kernel.dtype}; scale the scores down, or use "
            "float64"
        )
    return _with_status(found, status)


def overflowed(kernel: BridgeKernel) -> Found:
    """The outcome of a problem of a batch whose potentials overflow the dtype: they are replaced by zeros."""
    f, g = (np.zeros(n, kernel.dtype) for n in kernel.shape)
    return Found(f, g, "overflow", 0, np.zeros(0), math.inf, math.inf, f"none, {kernel.kept}")


def _across_plateaus(
    p: Problem, solver: str, found: Found, start: tuple[Real, Real], report: Callback | None
) -> Found:
    """Solves on while the error stands still, or rises for a while, although the potentials move (a plateau).

    Only success, the limits or the precision of the dtype end this. Each attempt starts where the last one
    ended and not from the best point, because a plateau has to be crossed.
    """
    latest = found
    while not _ended(p, found) and found.error > _precision(p, found):
        name = "relaxed" if solver in ("auto", "annealed") else solver
        latest = _attempt(_rest(p, found), name, *_from(latest, start), report)
        found = _better(found, latest)
    return found


def _ended(p: Problem, found: Found) -> bool:
    return found.status not in ("stagnated", "overflow") or _limit(p, found) is not None


def _limit(p: Problem, found: Found) -> str | None:
    """The limit that has been reached, or None."""
    if len(found.errors) >= p.max_iter:
        return "iteration limit"
    return "visit limit" if found.n_visits >= p.max_visits else None


def _rest(p: Problem, found: Found) -> Problem:
    """The same problem, with limits reduced by the work that has been done."""
    return p._replace(
        max_iter=p.max_iter - len(found.errors), max_visits=p.max_visits - found.n_visits
    )


def _from(found: Found, start: tuple[Real, Real]) -> tuple[Real, Real]:
    """The start of the next attempt: the last potentials, or the first start if they have overflowed."""
    if found.status == "overflow":
        return start
    return _pieces.converted(found.f, np.float64), _pieces.converted(found.g, np.float64)


def _better(a: Found, b: Found) -> Found:
    """The outcome with the smaller error, with the iterations and visits of both."""
    best = b if b.converged or b.error <= a.error else a
    errors = _joined([a.errors, b.errors])
    return dataclasses.replace(best, errors=errors, n_visits=a.n_visits + b.n_visits)


def _with_status(found: Found, status: str) -> Found:
    return found if status == found.status else dataclasses.replace(found, status=status)


def _precision(p: Problem, found: Found) -> float:
    """The error that rounding of the potentials and scores causes: no solver makes progress below it."""
    size = sum(largest_finite(x) for x in (found.f, found.g))
    eps = max(float(np.finfo(d).eps) for d in (p.kernel.entries, p.kernel.potentials))
    return 16 * eps * (32 + size)


def _in_double(
    p: Problem,
    solver: str,
    found: Found,
    start: tuple[Real, Real],
    report: Callback | None,
) -> Found:
    """Continues with scores in double precision, when rounded scores allow no further progress.

    Even after they are rounded, the potentials of the exact problem meet the conditions better than the
    potentials of a problem with rounded scores.
    """
    kernel = p.kernel.in_double()
    if kernel is None:
        return found
    wide = _rest(p, found)._replace(
        kernel=kernel,
        mu=_pieces.converted(p.mu, np.float64),
        nu=_pieces.converted(p.nu, np.float64),
        tol=0.1 * p.tol,
    )
    exact = _attempt(wide, solver, *_from(found, start), report)
    exact = _across_plateaus(wide, solver, exact, start, report)
    if exact.status == "overflow":
        kernel.forget()
        return found
    how = exact.method.rsplit(", ", 1)[0] + " in double precision"
    best = _better(found, _checked(p, dataclasses.replace(exact, method=how)))
    if p.balanced and not best.converged:
        f, g = _rounded_in_turn(wide, exact, p.kernel.potentials)
        turned = dataclasses.replace(exact, f=f, g=g, errors=np.zeros(0), n_visits=1, method=how)
        best = _better(best, _checked(p, turned, gauge=False))
    kernel.forget()
    return best


def _rounded_in_turn(wide: Problem, exact: Found, dtype: np.dtype[Any]) -> tuple[Real, Real]:
    """f rounded to the dtype, and the g that meets the column marginals with this f, before rounding.

    If a row and a column have most of their mass in the same entry, this g corrects the rounding of f for
    both. In the gauge of results g is usually smaller than f, so rounding g afterwards does less harm.
    """
    f = _pieces.converted(_pieces.converted(exact.f, dtype), np.float64)
    seen = wide.kernel.native.column_sums(f, wide.n_threads)
    with np.errstate(divide="ignore", invalid="ignore"):
        return f, np.where(wide.nu > 0, np.log(wide.nu) - seen, -math.inf)


def _attempt(p: Problem, solver: str, f: Real, g: Real, report: Callback | None) -> Found:
    if solver == "symmetric":  # f = g is the gauge that the averaged update keeps
        f = g = (f + g) / 2
    mu, nu = _pieces.converted(p.mu, np.float64), _pieces.converted(p.nu, np.float64)
    errors: list[Any] = []
    visits = 0
    # The solver gets a smaller tolerance than the final check, because the check looks at both marginals, and
    # at potentials that are rounded to the dtype.
    how = ""
    for inner in (0.5 * p.tol, 0.05 * p.tol):
        f, g, new, used, relaxation, code, done = cpu.solve_bridge(
            p.kernel.native,
            mu,
            nu,
            f,
            g,
            METHODS[solver],
            inner,
            p.max_iter - sum(map(len, errors)),
            p.max_visits - visits,
            *p.penalty,
            report,
            p.n_threads,
        )
        errors.append(new)
        visits += used
        status, how = cpu.BRIDGE_STATUS[code], how or done or solver
        unchecked = math.inf, math.inf
        found = Found(f, g, status, visits, _joined(errors), *unchecked, how, relaxation)
        found = _checked(p, found)
        if found.status != "stagnated" or status != "converged" or _limit(p, found) is not None:
            break
    return found


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _checked(p: Problem, found: Found, *, gauge: bool = True) -> Found:
    """The solver's outcome in the gauge and the dtype of results, with the outcome of the final check."""
    f, g = _gauge(found.f, found.g, p.nu) if p.balanced and gauge else (found.f, found.g)
    if p.kernel.potentials != np.float64:
        with np.errstate(over="ignore"):
            f, g = (_pieces.converted(x, p.kernel.potentials) for x in (f, g))
    lost = any(cpu.scan(x, p.n_threads)[0] & ~_MINUS_INF for x in (f, g))
    error, worst, met = (math.inf, math.inf, False) if lost else p.kernel.check(p, f, g)
    status = settled("overflow" if lost else found.status, error, met)
    method = f"{found.method}, {p.kernel.kept}"
    return Found(f, g, status, found.n_visits, found.errors, error, worst, method, found.relaxation)


def settled(status: str, error: float, met: bool) -> str:
    """The status of a solve after the final check of its potentials."""
    if status in ("infeasible", "negative kernel"):
        return status
    if met:
        return "converged"
    if not math.isfinite(error):
        return "overflow"
    return "stagnated" if status == "converged" else status
