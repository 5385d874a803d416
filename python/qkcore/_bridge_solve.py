"""One bridge, solved: the native iteration, what to try when it stagnates, and the final verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from . import _feasibility
from ._bridge_problem import _band_only, _check, _gauge, _Problem
from ._bridge_result import SchrodingerBridge
from ._lazy_scores import Real
from ._native import cpu

METHODS = {name: code for code, name in enumerate(cpu.BRIDGE_METHODS)}
_CREEP = 200  # iterations spent on a problem that is known to converge like 1/k

Callback = Callable[[int, float], object]


def solve_one(
    p: _Problem, solver: str, fall_backs: Sequence[str], f: Real, g: Real, report: Callback | None
) -> SchrodingerBridge:
    # Cheap to know of bands beforehand, and the iteration would creep for ever.
    cheap = p.balanced and _band_only(p.s)
    if cheap and _feasibility.diagnose(p.s, p.mu, p.nu) == _feasibility.NO_TOTAL_SUPPORT:
        p = p._replace(max_iter=min(p.max_iter, _CREEP))
    if solver == "annealed":
        found = _anneal(p, f, g, report)
    else:
        found = _solve(p, solver, f, g, report)
    for other in fall_backs:
        if found.status != "stagnated" or found.n_visits >= p.max_iter:
            break
        left = p._replace(max_iter=p.max_iter - found.n_visits)
        again = _solve(left, other, found.f, found.g, report)
        best = again if again.error < found.error else found
        visits = found.n_visits + again.n_visits
        found = dataclasses.replace(best, n_visits=visits)
    status = verdict(p, found.f, found.g, found.status, found.error)
    if status == "overflow":
        raise OverflowError(
            f"kernel: the potentials overflow {p.s.dtype}; scale the scores down, or use float64"
        )
    return dataclasses.replace(found, status=status, converged=status == "converged")


def _solve(
    p: _Problem, solver: str, f: Real, g: Real, report: Callback | None
) -> SchrodingerBridge:
    if solver == "symmetric":  # f = g is the gauge that the averaged update keeps
        f = g = (f + g) / 2
    errors: list[Real] = []
    visits = 0
    # The final check rounds the potentials to the dtype and looks at both marginals: leave it room.
    for inner in (0.5 * p.tol, 0.05 * p.tol):
        f, g, new, used, relaxation, code = cpu.solve_bridge(
            p.s._spec,
            p.mu,
            p.nu,
            f,
            g,
            METHODS[solver],
            inner,
            p.max_iter - visits,
            *p.dampings(),
            p.stored,
            report,
            p.n_threads,
        )
        errors.append(new)
        visits += used
        status = cpu.BRIDGE_STATUS[code]
        if status == "overflow":
            raise OverflowError("kernel: scores overflow while solving; scale them or use float64")
        found = _finish(p, f, g, np.concatenate(errors), visits, status, solver, relaxation)
        if found.converged or found.status != "stagnated" or visits >= p.max_iter:
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
    f, g = f.astype(p.s.dtype), g.astype(p.s.dtype)
    try:
        error, worst = _check(p, f, g)
    except OverflowError:  # potentials that run away, as those of an infeasible problem do
        error = worst = math.inf
        status = "overflow"
    converged = error <= p.tol and status != "infeasible"
    if converged:
        status = "converged"
    elif status == "converged":
        status = "stagnated"
    return SchrodingerBridge(
        scores=p.s,
        mu=p.mu,
        nu=p.nu,
        f=f,
        g=g,
        status=status,
        converged=converged,
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


def verdict(p: _Problem, f: Real, g: Real, status: str, error: float) -> str:
    """The last word on a problem: penalties make every mask feasible."""
    return _feasibility.verdict(p.s, p.mu, p.nu, f, g, status, error) if p.balanced else status


def _anneal(p: _Problem, f: Real, g: Real, report: Callback | None) -> SchrodingerBridge:
    """Scores times 1/64, 1/16, 1/4, 1: each stage to a rough tolerance, the last to the full one."""
    errors: list[Real] = []
    visits = 0
    scale = 1.0 / 64
    while scale < 1:
        stage = p._replace(
            s=p.s * scale, tol=max(p.tol, 1e-3), max_iter=max(1, p.max_iter - visits)
        )
        found = _solve(stage, "relaxed", f * scale, g * scale, report)
        visits += found.n_visits
        errors.append(found.errors)
        if found.status == "infeasible" or visits >= p.max_iter:
            break
        f, g = (np.where(np.isfinite(x), x / scale, 0.0) for x in (found.f, found.g))
        scale *= 4
    last = _solve(p._replace(max_iter=max(1, p.max_iter - visits)), "relaxed", f, g, report)
    errors.append(last.errors)
    return _finish(
        p,
        last.f,
        last.g,
        np.concatenate(errors),
        visits + last.n_visits,
        last.status,
        "annealed",
        last.relaxation,
    )
