"""The transport problem as a linear programme, solved by SciPy's HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_NEAREST = 8  # the number of routes per place in the first problem, and of routes added to it later
_PRICED = 20_000  # from so many routes on, an entropic problem is solved for the first prices
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_REDUCED = 1e-11  # a reduced cost below minus this share of the largest cost counts as negative


def least_cost(cost: Doubles, supply: Doubles, demand: Doubles) -> float:
    """:math:`\\min_\\pi \\langle c, \\pi\\rangle` over couplings of supply (n,), demand (m,) of equal mass.

    >>> import numpy as np
    >>> from qkcore._linear_transport import least_cost
    >>> round(least_cost(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.7, 0.3]), np.array([0.5, 0.5])), 12)
    0.2
    """
    give, take = supply > 0, demand > 0
    mass = float(supply.sum())
    # Both sides are normalised to mass 1, because the solver needs equal totals.
    shares = supply[give] / mass, demand[take] / float(demand.sum())
    return mass * _optimal(*shares, np.ascontiguousarray(cost[np.ix_(give, take)]))


def _optimal(supply: Doubles, demand: Doubles, cost: Doubles) -> float:
    """The transport problem by column generation: few routes at first, then routes of negative reduced cost.

    It ends when no route that was left out has a negative reduced cost, which proves that the optimum is that
    of the whole problem.
    """
    import scipy.optimize
    import scipy.sparse as sp

    solver: Any = scipy.optimize  # Any, since the stubs refuse sparse constraints, which work
    m, k = cost.shape
    if m == 1 or k == 1:
        return float((cost * np.outer(supply, demand)).sum())
    used = _corner(supply, demand)  # routes of one plan: the first problem is feasible
    near = min(_NEAREST, m, k)
    first = cost - _entropic_prices(supply, demand, cost) if cost.size >= _PRICED else cost
    used[np.arange(m)[:, None], np.argpartition(first, near - 1, axis=1)[:, :near]] = True
    used[np.argpartition(first, near - 1, axis=0)[:near], np.arange(k)] = True
    size = float(max(m, k))  # masses of about one: the solver's tolerances are absolute
    limits = size * np.concatenate([supply, demand])[:-1]  # one equation follows from the others
    scale = float(cost.max()) or 1.0
    while True:
        i, j = np.nonzero(used)
        arcs = np.arange(i.size)
        rows = np.concatenate([i, m + j])
        A = sp.csr_matrix((np.ones(rows.size), (rows, np.concatenate([arcs, arcs]))))
        problem = {"A_eq": A[:-1], "b_eq": limits, "method": "highs"}
        found = solver.linprog(cost[i, j], **problem, options=_TIGHT)
        if found.status != 0:
            # If masses are near its tolerance, as in softmax rows, the presolver may say "infeasible".
            found = solver.linprog(cost[i, j], **problem, options={**_TIGHT, "presolve": False})
        if found.status != 0:
            raise RuntimeError(f"HiGHS did not solve the transport problem: {found.message}")
        price = np.append(found.eqlin.marginals, 0.0)
        reduced = cost - price[:m, None] - price[m:]
        wanted = (reduced < -_REDUCED * scale) & ~used
        if not wanted.any():
            return float(found.fun) / size
        if int(wanted.sum()) <= 2 * (m + k):
            used |= wanted
            continue
        deepest = np.argpartition(reduced, near - 1, axis=1)[:, :near]
        chosen = np.zeros_like(used)
        chosen[np.arange(m)[:, None], deepest] = True
        used |= wanted & (chosen if (wanted & chosen).any() else wanted)


def _entropic_prices(supply: Doubles, demand: Doubles, cost: Doubles) -> Doubles:
    """Prices f_i + g_j (m, k) of a similar entropic problem, which show most routes of the optimum at once.

    The result does not depend on them, only the number of rounds does: 1 instead of 3 to 11.
    """
    from .bridges import bridge
    from .scores import dense

    epsilon = 0.002 * float(supply @ cost @ demand)
    if not epsilon > 0:
        return np.zeros_like(cost)
    try:
        found = bridge(dense(cost / -epsilon), supply, demand, tol=1e-3)
    except (ArithmeticError, RuntimeError, ValueError):  # e.g. float64 cannot hold the kernel
        return np.zeros_like(cost)
    prices = np.add.outer(found.f - np.log(supply), found.g - np.log(demand)) * epsilon
    return np.asarray(prices) if np.isfinite(prices).all() else np.zeros_like(cost)


def _corner(supply: Doubles, demand: Doubles) -> npt.NDArray[np.bool_]:
    """Routes of the north-west corner plan, with a margin for rounding at its turns."""
    used = np.zeros((supply.size, demand.size), dtype=bool)
    ends = np.concatenate([np.cumsum(supply), np.cumsum(demand)])
    cuts = np.unique(np.concatenate([[0.0], ends]))
    middle = 0.5 * (cuts[1:] + cuts[:-1])
    i = np.minimum(np.searchsorted(np.cumsum(supply), middle), supply.size - 1)
    j = np.minimum(np.searchsorted(np.cumsum(demand), middle), demand.size - 1)
    used[i, j] = True
    used[np.minimum(i + 1, supply.size - 1), j] = True
    used[i, np.minimum(j + 1, demand.size - 1)] = True
    return used
