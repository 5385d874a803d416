"""One bridge, solved: the native iteration, what to try when it stalls, and the final verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from . import _feasibility, _pieces
from ._bridge_check import largest_finite, widened
from ._bridge_problem import _band_only, _gauge, _Problem, _stored
from ._bridge_result import SchrodingerBridge
from ._lazy_scores import Real
from ._native import cpu

METHODS = {name: code for code, name in enumerate(cpu.BRIDGE_METHODS)}
_MINUS_INF = 4  # of cpu.scan's flags
# Iterations spent on a problem that is known to converge like 1/k.
_SLOW_LIMIT = 200
# Above this error a solver without progress is on a plateau, far from the solution, not at its precision.
_FAR = 1e-2

Callback = Callable[[int, float], object]


def solve_one(
    p: _Problem, solver: str, fall_backs: Sequence[str], f: Real, g: Real, report: Callback | None
) -> SchrodingerBridge:
    # For a band alone this is cheap to know beforehand, and the iteration would never end.
    cheap = p.balanced and _band_only(p.s)
    if cheap and _feasibility.diagnose(p.s, p.mu, p.nu) == _feasibility.NO_TOTAL_SUPPORT:
        p = p._replace(max_iter=min(p.max_iter, _SLOW_LIMIT))
    start = f, g
    found = _attempt(p, solver, f, g, report)
    if found.status in ("stagnated", "overflow"):
        status = verdict(p, found)
        if status in (_feasibility.INFEASIBLE, _feasibility.NO_TOTAL_SUPPORT):
            return _with_status(found, status)
    for other in fall_backs:
        # Annealing is for what is far from its solution; from close by it is a detour.
        if _ended(p, found) or (other == "annealed" and found.error < _FAR):
            continue
        found = _better(found, _attempt(_rest(p, found), other, *_from(found, start), report))
    latest = found
    while not _ended(p, found) and found.error > _precision(found):
        # A plateau: the error stays, or rises for a while, as the potentials move. Only the limit on visits
        # ends it, and each attempt goes on from where the last one came to, not from the best point.
        name = fall_backs[-1] if fall_backs else solver
        name = "relaxed" if name == "annealed" else name  # annealing has done its part
        latest = _attempt(_rest(p, found), name, *_from(latest, start), report)
        found = _better(found, latest)
    if not _ended(p, found) and p.s.dtype == np.float32:
        found = _in_double(p, solver, fall_backs, found, start, report)
    if found.status == "stagnated" and found.error > _precision(found):
        found = _with_status(found, "iteration limit")
    status = verdict(p, found)
    if status == "overflow":
        raise OverflowError(
            f"kernel: the potentials overflow {p.s.dtype}; scale the scores down, or use float64"
        )
    return _with_status(found, status)


def _ended(p: _Problem, found: SchrodingerBridge) -> bool:
    return found.status not in ("stagnated", "overflow") or found.n_visits >= p.max_iter


def _rest(p: _Problem, found: SchrodingerBridge) -> _Problem:
    return p._replace(max_iter=p.max_iter - found.n_visits)


def _from(found: SchrodingerBridge, start: tuple[Real, Real]) -> tuple[Real, Real]:
    """Where the next attempt starts: potentials that overflowed are of no use to it."""
    if found.status == "overflow":
        return start
    return _pieces.converted(found.f, np.float64), _pieces.converted(found.g, np.float64)


def _better(a: SchrodingerBridge, b: SchrodingerBridge) -> SchrodingerBridge:
    """The one with the smaller error, and the visits of both."""
    best = b if b.converged or b.error <= a.error else a
    return dataclasses.replace(best, n_visits=a.n_visits + b.n_visits)


def _with_status(found: SchrodingerBridge, status: str) -> SchrodingerBridge:
    return dataclasses.replace(found, status=status, converged=status == "converged")


def _precision(found: SchrodingerBridge) -> float:
    """The error that rounding of the potentials and scores leaves: below it no solver makes progress."""
    size = sum(largest_finite(x) for x in (found.f, found.g))
    return 16 * float(np.finfo(found.f.dtype).eps) * (32 + size)


def verdict(p: _Problem, found: SchrodingerBridge) -> str:
    """The last word on a problem: what its mask allows, if in doubt. Penalties make every mask feasible."""
    if not p.balanced:
        return found.status
    return _feasibility.verdict(p.s, p.mu, p.nu, found.f, found.g, found.status, found.error)


def _in_double(
    p: _Problem,
    solver: str,
    fall_backs: Sequence[str],
    found: SchrodingerBridge,
    start: tuple[Real, Real],
    report: Callback | None,
) -> SchrodingerBridge:
    """A float32 problem that stagnated, solved on in double precision and rounded at the end.

    Single precision computes large scores with an error that the tolerance may not allow. The potentials of
    the exact problem meet the conditions better than those of the rounded one, once they are rounded too.
    """
    wide = p._replace(
        s=widened(p.s),
        mu=_pieces.converted(p.mu, np.float64),
        nu=_pieces.converted(p.nu, np.float64),
        tol=0.1 * p.tol,
        max_iter=p.max_iter - found.n_visits,
    )
    wide = wide._replace(stored=p.stored and _stored(wide.s, None))
    exact = _attempt(wide, solver, *_from(found, start), report)
    for other in fall_backs:
        if _ended(wide, exact):
            break
        exact = _better(exact, _attempt(_rest(wide, exact), other, *_from(exact, start), report))
    if exact.status == "overflow":
        return found
    again = _finish(
        p, exact.f, exact.g, exact.errors, exact.n_visits, exact.status, solver, exact.relaxation
    )
    return _better(found, again)


def _attempt(
    p: _Problem, solver: str, f: Real, g: Real, report: Callback | None
) -> SchrodingerBridge:
    if solver == "annealed":
        return _anneal(p, f, g, report)
    if solver == "symmetric":  # f = g is the gauge that the averaged update keeps
        f = g = (f + g) / 2
    mu, nu = _pieces.converted(p.mu, np.float64), _pieces.converted(p.nu, np.float64)
    errors: list[Real] = []
    visits = 0
    # The final check rounds the potentials to the dtype and looks at both marginals: leave it room.
    for inner in (0.5 * p.tol, 0.05 * p.tol):
        f, g, new, used, relaxation, code = cpu.solve_bridge(
            p.s._spec,
            mu,
            nu,
            f,
            g,
            METHODS[solver],
            inner,
            p.max_iter - visits,
            p.row_penalty,
            p.col_penalty,
            p.stored,
            report,
            p.n_threads,
        )
        errors.append(new)
        visits += used
        status = cpu.BRIDGE_STATUS[code]
        found = _finish(p, f, g, np.concatenate(errors), visits, status, solver, relaxation)
        if found.status != "stagnated" or status != "converged" or visits >= p.max_iter:
            break
    return found


def _finish(
    p: _Problem,
    f: Real,
    g: Real,
    errors: Real,
    visits: int,
    status: str,
    solver: str,
    relaxation: float = 1.0,
) -> SchrodingerBridge:
    if p.balanced:
        f, g = _gauge(f, g, p.nu)
    with np.errstate(over="ignore"):
        f, g = (_pieces.converted(x, p.s.dtype) for x in (f, g))
    if any(cpu.scan(x, p.n_threads)[0] & ~_MINUS_INF for x in (f, g)):
        status, error, worst, met = "overflow", math.inf, math.inf, False
    else:
        error, worst, met = p.check(f, g)
    if met and status != "infeasible":
        status = "converged"
    elif not math.isfinite(error) and status != "infeasible":
        status = "overflow"
    elif status == "converged":
        status = "stagnated"
    return SchrodingerBridge(
        scores=p.s,
        mu=p.mu,
        nu=p.nu,
        f=f,
        g=g,
        status=status,
        converged=status == "converged",
        n_iter=len(errors),
        n_visits=visits,
        errors=np.asarray(errors),
        error=error,
        worst=worst,
        method=f"{solver}, {'stored' if p.stored else 'on the fly'}",
        tol=p.tol,
        penalty=(p.row_penalty, p.col_penalty),
        relaxation=relaxation,
    )


def _anneal(p: _Problem, f: Real, g: Real, report: Callback | None) -> SchrodingerBridge:
    """Scores times 1/64, 1/16, 1/4, 1: each stage to a rough tolerance, the last to the full one."""
    errors: list[Real] = []
    visits = 0
    scale = 1.0 / 64
    while scale < 1:
        stage = p._replace(
            s=p.s * scale, tol=max(p.tol, 1e-3), max_iter=max(1, p.max_iter - visits)
        )
        found = _attempt(stage, "relaxed", f * scale, g * scale, report)
        visits += found.n_visits
        errors.append(found.errors)
        if found.status in ("infeasible", "interrupted") or visits >= p.max_iter:
            break
        f, g = (
            _pieces.mapped(lambda x: np.where(np.isfinite(x), x / scale, 0.0), x)  # noqa: B023
            for x in (found.f, found.g)
        )
        scale *= 4
    last = _attempt(p._replace(max_iter=max(1, p.max_iter - visits)), "relaxed", f, g, report)
    return dataclasses.replace(
        last,
        errors=np.concatenate([*errors, last.errors]),
        n_iter=sum(map(len, errors)) + last.n_iter,
        n_visits=visits + last.n_visits,
        method=last.method.replace("relaxed", "annealed"),
    )
