"""Many bridges at once, each on one thread and judged as if it were alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._bridge_problem import _block_sums, _check, _marginal_errors, _Problem, _wanted
from ._bridge_result import SchrodingerBridge
from ._bridge_solve import METHODS, solve_one, verdict
from ._feasibility import may_be_masked
from ._lazy_scores import Real
from ._native import cpu


def solve_batch(
    p: _Problem, solver: str, fall_backs: Sequence[str], f: Real, g: Real
) -> SchrodingerBridge:
    s = p.s
    rows, cols = (*s._batch, s.shape[-2]), (*s._batch, s.shape[-1])
    mu, nu = np.broadcast_to(p.mu, rows), np.broadcast_to(p.nu, cols)
    f, g = np.broadcast_to(f, rows), np.broadcast_to(g, cols)
    if solver == "symmetric":
        f = g = (f + g) / 2
    found = cpu.solve_bridges(
        s._spec,
        mu.reshape(-1),
        nu.reshape(-1),
        f.reshape(-1),
        g.reshape(-1),
        METHODS[solver],
        0.5 * p.tol,
        p.max_iter,
        *p.dampings(),
        p.stored,
        p.n_threads,
    )
    f, g = found[0].reshape(rows), found[1].reshape(cols)
    cuts: Any = s._offsets if s._offsets is not None else (None, None)
    if p.balanced:
        f, g = _gauge_each(f, g, nu, cuts)
    f, g = f.astype(s.dtype), g.astype(s.dtype)
    try:
        error, worst = _errors(p, f, g, mu, nu, cuts)
    except OverflowError:  # of one of them
        error, worst = _errors_one_by_one(p, f, g, mu, nu)
    names = np.array(cpu.BRIDGE_STATUS, dtype=object)[found[4]]
    names[np.isinf(error) & (names != "infeasible")] = "overflow"
    converged = (error <= p.tol) & (names != "infeasible")
    names = np.where(converged, "converged", np.where(names == "converged", "stagnated", names))
    visits, last = found[3], found[2]

    # What is in doubt is looked at alone: masks that have no bridge, and problems that stagnated.
    doubtful = np.ones_like(converged) if may_be_masked(s) else ~converged
    for k in np.flatnonzero(doubtful).tolist():
        here, there = _place(s, k, 0), _place(s, k, 1)
        one = p._replace(s=s._problem(k), mu=mu[here], nu=nu[there])
        if names[k] != "stagnated":
            names[k] = verdict(one, f[here], g[there], names[k], error[k])
            continue
        try:
            again = solve_one(one, solver, fall_backs, f[here], g[there], None)
        except OverflowError:  # the others have their results
            names[k] = "overflow"
            continue
        f[here], g[there] = again.f, again.g
        names[k], error[k], worst[k], last[k] = (
            again.status, again.error, again.worst, again.errors[-1],
        )  # fmt: skip
        visits[k] += again.n_visits
    shape = s._batch if s._offsets is None else (len(error),)
    batch: Any = {
        "status": names.astype(str).reshape(shape),
        "converged": (names == "converged").reshape(shape),
        "n_iter": visits.reshape(shape),
        "n_visits": visits.reshape(shape),
        "errors": last.reshape(shape),
        "error": error.reshape(shape),
        "worst": worst.reshape(shape),
    }
    return SchrodingerBridge(
        scores=s,
        mu=mu,
        nu=nu,
        f=f,
        g=g,
        method=f"{solver}, {'stored' if p.stored else 'on the fly'}",
        tol=p.tol,
        penalty=(p.row_penalty, p.col_penalty),
        **batch,
    )


def _errors(p: _Problem, f: Real, g: Real, mu: Real, nu: Real, cuts: Any) -> Real:
    """L1 and worst relative errors of each problem, (2, problems)."""
    rows, cols = p.s.marginals(f, g, n_threads=p.n_threads)
    found: Real = np.maximum(
        _marginal_errors(rows, _wanted(f, mu, p.row_penalty), cuts[0]),
        _marginal_errors(cols, _wanted(g, nu, p.col_penalty), cuts[1]),
    )
    return np.where(np.isfinite(found), found, np.inf)


def _errors_one_by_one(p: _Problem, f: Real, g: Real, mu: Real, nu: Real) -> Real:
    """The same where the potentials of some problem run away: its errors are inf."""
    s = p.s
    n = math.prod(s._batch) if s._offsets is None else len(s._offsets[0]) - 1
    out = np.full((2, n), np.inf)
    for k in range(n):
        here, there = _place(s, k, 0), _place(s, k, 1)
        one = p._replace(s=s._problem(k), mu=mu[here], nu=nu[there])
        with contextlib.suppress(OverflowError):
            out[:, k] = _check(one, f[here], g[there])
    return out


def _place(s: Any, k: int, side: int) -> Any:
    """Where problem k's rows (side 0) or columns lie in an array of all of them."""
    if s._offsets is not None:
        return slice(*s._offsets[side][k : k + 2])
    return np.unravel_index(k, s._batch)


def _gauge_each(f: Real, g: Real, nu: Real, cuts: Any) -> tuple[Real, Real]:
    """Potentials shifted so that sum_j nu_j g_j = 0 in every problem."""
    with np.errstate(invalid="ignore"):
        moments = np.where(nu > 0, nu.astype(np.float64) * g, 0.0)
    if cuts[0] is None:
        mean = moments.sum(-1, keepdims=True) / nu.sum(-1, keepdims=True, dtype=np.float64)
        mean = np.where(np.isfinite(mean), mean, 0.0)
        return f + mean, g - mean
    masses = _block_sums(nu, cuts[1])
    mean = np.divide(
        _block_sums(moments, cuts[1]), masses, out=np.zeros_like(masses), where=masses > 0
    )
    mean = np.where(np.isfinite(mean), mean, 0.0)
    return f + np.repeat(mean, np.diff(cuts[0])), g - np.repeat(mean, np.diff(cuts[1]))
