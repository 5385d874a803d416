"""Many bridges at once: each is solved on one thread, and judged as if it were the only problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._bridge_check import batch_residuals, block_sums, problem_part
from ._bridge_kernels import ScoresKernel
from ._bridge_result import SchrodingerBridge
from ._bridge_solve import METHODS, Asked, settled, solve_one
from ._feasibility import may_be_masked, verdict
from ._lazy_scores import Real
from ._native import cpu

_CONVERGED = cpu.BRIDGE_STATUS.index("converged")


def solve_batch(asked: Asked) -> SchrodingerBridge:
    p, solver = asked.problem, asked.solver
    f, g = asked.start
    assert isinstance(p.kernel, ScoresKernel)
    kernel, s = p.kernel, p.kernel.scores
    rows, cols = (*s.batch, s.shape[-2]), (*s.batch, s.shape[-1])
    mu, nu = np.broadcast_to(p.mu, rows), np.broadcast_to(p.nu, cols)
    p = p._replace(mu=mu, nu=nu)
    start_f, start_g = np.broadcast_to(f, rows), np.broadcast_to(g, cols)
    f, g = start_f, start_g
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
        p.max_visits,
        p.row_penalty,
        p.col_penalty,
        kernel.memory,
        p.n_threads,
    )
    f, g = found[0].reshape(rows), found[1].reshape(cols)
    if p.balanced:
        f, g = _gauge_each(f, g, nu, s.terms.offsets)
    with np.errstate(over="ignore"):
        f, g = f.astype(kernel.potentials), g.astype(kernel.potentials)
    # Potentials that have overflowed have no plan that could be checked.
    lost = _lost(s, f, g)
    for k in np.flatnonzero(lost).tolist():
        f[problem_part(s, k, 0)] = g[problem_part(s, k, 1)] = 0
    error, worst, met = batch_residuals(s, *p.conditions, f, g, p.tol, p.n_threads)
    error[lost] = worst[lost] = np.inf
    met &= ~lost
    names = np.array(cpu.BRIDGE_STATUS, dtype=object)[found[5]]
    for k in np.flatnonzero((found[5] != _CONVERGED) | ~met).tolist():
        names[k] = settled(names[k], error[k], met[k])
    last, iterations, visits = found[2:5]
    ways = list(zip(*found[6:], strict=True))
    texts = {
        way: f"{way[0] or solver}, {'stored' if way[1] else 'on the fly'}" for way in set(ways)
    }
    methods = [texts[way] for way in ways]

    masked = p.balanced and may_be_masked(s)
    for k in np.flatnonzero(~met | masked).tolist():
        here, there = problem_part(s, k, 0), problem_part(s, k, 1)
        one = p._replace(
            kernel=ScoresKernel(
                s._problem(k), kernel.max_memory, potentials=kernel.potentials, name=kernel.name
            ),
            mu=mu[here],
            nu=nu[there],
        )
        if names[k] == "converged" and met[k]:
            names[k] = verdict(one.s, one.mu, one.nu, f[here], g[there], names[k], error[k])
            continue
        # A problem that did not converge here is solved again by itself, with every method for one problem.
        try:
            again = solve_one(one, solver, start_f[here], start_g[there], None)
        except OverflowError:  # the other problems keep their results
            names[k], error[k], worst[k] = "overflow", np.inf, np.inf
            continue
        f[here], g[there] = again.f, again.g
        names[k], error[k], worst[k] = again.status, again.error, again.worst
        last[k] = again.errors[-1] if len(again.errors) else np.inf
        iterations[k], visits[k] = len(again.errors), again.n_visits
        methods[k] = again.method
    shape = s.batch if s.terms.offsets is None else (len(error),)
    batch: Any = {
        "status": names.astype(str).reshape(shape),
        "converged": (names == "converged").reshape(shape),
        "n_iter": iterations.reshape(shape),
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
        method=np.array(methods).reshape(shape),
        tol=p.tol,
        penalty=p.penalty,
        **batch,
    )


def _lost(s: Any, f: Real, g: Real) -> Any:
    """Which problems have potentials that define no plan because some are NaN or +inf."""
    n = math.prod(s.batch) if s.terms.offsets is None else len(s.terms.offsets[0]) - 1
    lost = np.zeros(n, np.bool_)
    for side, x in enumerate((f, g)):
        bad = np.isnan(x) | (x == np.inf)
        if bad.any():
            cuts = None if s.terms.offsets is None else s.terms.offsets[side]
            lost |= block_sums(bad.astype(np.float64), cuts) > 0
    return lost


def _gauge_each(f: Real, g: Real, nu: Real, offsets: Any) -> tuple[Real, Real]:
    """Potentials shifted so that sum_j nu_j g_j = 0 in every problem."""
    with np.errstate(invalid="ignore"):
        moments = np.where(nu > 0, nu.astype(np.float64) * g, 0.0)
    cuts: Any = (None, None) if offsets is None else offsets
    masses = block_sums(nu, cuts[1])
    mean = np.divide(
        block_sums(moments, cuts[1]), masses, out=np.zeros_like(masses), where=masses > 0
    )
    mean = np.where(np.isfinite(mean), mean, 0.0)
    if offsets is None:
        mean = mean.reshape(*nu.shape[:-1], 1)
        return f + mean, g - mean
    return f + np.repeat(mean, np.diff(cuts[0])), g - np.repeat(mean, np.diff(cuts[1]))
