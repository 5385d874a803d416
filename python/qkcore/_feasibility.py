"""Can a masked kernel carry the marginals at all, and on all of its entries? (DAC-7, B.2)

A coupling with the marginals mu, nu that lives on the allowed entries exists when the largest flow from
rows to columns carries all mass. Sinkhorn's scaling itself exists when, moreover, every allowed entry is
used by some such coupling (total support); otherwise the iteration creeps to its limit like 1/k while
potentials diverge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ._config import resolve_threads
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._score_masks import UNBOUNDED

__all__ = ["INFEASIBLE", "NO_TOTAL_SUPPORT", "diagnose", "usable_entries", "verdict"]

_MINUS_INF = 4  # of cpu.scan's flags

INFEASIBLE = "infeasible"
NO_TOTAL_SUPPORT = "no total support"
# Beyond this many entries the graph of allowed ones is not built.
MAX_ENTRIES = 4_000_000
# Up to this many it is, wherever a coupling that meets its marginals does not show its own support.
_SMALL = 250_000
_UNITS = 2**30  # mass is counted in whole units of this fraction: SciPy's flows are integers


def may_be_masked(s: Scores) -> bool:
    """Whether some entry of the kernel may be 0."""
    unbounded = s._band == (-UNBOUNDED, UNBOUNDED)
    return bool(s._masks) or not unbounded or _has_minus_inf(s)


def _has_minus_inf(s: Scores) -> bool:
    arrays = (*s._row_bias, *s._col_bias, *(z for z, _ in s._dense))
    return any(cpu.scan(array, resolve_threads(None))[0] & _MINUS_INF for array in arrays)


def diagnose(s: Scores, mu: Real, nu: Real) -> str | None:
    """INFEASIBLE, NO_TOTAL_SUPPORT, "feasible", or None where it is too large to tell."""
    if not may_be_masked(s):
        return "feasible"
    if _one_sided(s):
        lo, hi = s._band
        return _staircase(mu, nu, hi) if lo == -UNBOUNDED else _staircase(nu, mu, -lo)
    if math.prod(s.shape) > MAX_ENTRIES:
        return None
    allowed = ~np.isneginf(s.to_numpy())
    usable = _usable(allowed, mu, nu)
    if usable is None:
        return INFEASIBLE
    live = allowed & (mu > 0)[:, None] & (nu > 0)
    return "feasible" if (usable | ~live).all() else NO_TOTAL_SUPPORT


def verdict(s: Scores, mu: Real, nu: Real, f: Real, g: Real, status: str, error: float) -> str:
    """What the marginals of a masked kernel allow, where the iteration's own word is in doubt.

    The marginals of a problem without total support may be met to any tolerance, with potentials that have
    no limit: that is said, and not called converged.
    """
    if status == INFEASIBLE:
        return status
    if status == "converged" and not in_doubt(s, mu, nu, f, g, error):
        return status
    found = diagnose(s, mu, nu)
    return found if found in (INFEASIBLE, NO_TOTAL_SUPPORT) else status


def in_doubt(s: Scores, mu: Real, nu: Real, f: Real, g: Real, error: float) -> bool:
    """Whether a coupling that meets its marginals may have no total support: then `diagnose` is due."""
    if not may_be_masked(s):
        return False
    if _one_sided(s):
        return True  # cheap to know
    entries = math.prod(s.shape)
    if entries <= MAX_ENTRIES and _shows_its_support(s, mu, nu, f, g, error):
        return False
    return entries <= _SMALL or _run_away(s, mu, nu, f, g)


def _one_sided(s: Scores) -> bool:
    """Whether a band, open on one side, is all that masks."""
    bounded = [abs(end) < UNBOUNDED for end in s._band]
    return sum(bounded) == 1 and not (s._masks or _has_minus_inf(s))


def _shows_its_support(s: Scores, mu: Real, nu: Real, f: Real, g: Real, error: float) -> bool:
    """Whether the coupling's own mass connects the rows and columns of every allowed entry.

    Without total support, rows and columns fall into two parts that exchange no more mass than the marginals
    are off, with allowed entries between them. So a part that grows by whoever exchanges more with it than
    that cannot pass from one to the other.
    """
    live_rows, live_cols = mu > 0, nu > 0
    allowed = (s.to_numpy() > -np.inf) & live_rows[:, None] & live_cols
    coupling = s.shift(rows=f, columns=g)  # -inf where there is no weight
    plan = cpu.materialize(coupling._spec, False, cpu.WEIGHTS.index("exp"), resolve_threads(None))
    total = float(np.sum(mu, dtype=np.float64))
    noise = 4 * error + 16 * float(np.finfo(s.dtype).eps) * total
    waiting = live_rows.copy()
    while waiting.any():
        rows, cols = np.zeros_like(live_rows), np.zeros_like(live_cols)
        rows[np.argmax(np.where(waiting, mu, -1.0))] = True
        size = 0
        while size < (size := int(rows.sum() + cols.sum())):
            cols |= rows.astype(s.dtype) @ plan > noise
            rows |= plan @ cols.astype(s.dtype) > noise
        if allowed[rows][:, ~cols].any() or allowed[~rows][:, cols].any():
            return False
        waiting &= ~rows
    return True


def _run_away(s: Scores, mu: Real, nu: Real, f: Real, g: Real) -> bool:
    """Whether potentials differ by more than scores and weights account for."""

    def spread(values: Real, weights: Real) -> float:
        live = values[weights > 0]
        return float(live.max() - live.min()) if live.size else 0.0

    with np.errstate(divide="ignore"):
        allowed = sum(spread(np.log(w), w) for w in (mu, nu))
    return spread(f, mu) + spread(g, nu) > allowed + 4 * s._top + 15


def _staircase(mu: Real, nu: Real, offset: int) -> str:
    """Row i sees the columns j <= i + offset: mass may only come from rows low enough."""
    total = float(np.sum(mu, dtype=np.float64))
    slack = 1e-12 * total if mu.dtype == np.float64 else 1e-6 * total
    rows_before = np.concatenate([[0.0], np.cumsum(mu, dtype=np.float64)])  # rows < k
    cols_before = np.concatenate([[0.0], np.cumsum(nu, dtype=np.float64)])
    k = np.arange(len(mu) + 1)
    # Rows < k must fit into the columns they see: j <= k - 1 + offset.
    seen = cols_before[np.clip(k + offset, 0, len(nu))]
    spare = seen - rows_before
    if (spare < -slack).any():
        return INFEASIBLE
    # Where they fit exactly, no later row may use those columns: allowed entries that carry nothing.
    inside = (k > 0) & (k < len(mu)) & (rows_before > slack) & (rows_before < total - slack)
    tight = inside & (spare <= slack) & (k + offset > 0)
    return NO_TOTAL_SUPPORT if tight.any() else "feasible"


def usable_entries(s: Scores, mu: npt.ArrayLike, nu: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """The entries that carry mass in some coupling of mu and nu on the kernel's support (DAC-7).

    ``qk.bridge(s.masked(usable_entries(s, mu, nu)), mu, nu)`` converges geometrically to the limit that
    plain iteration on ``s`` would only creep to. Builds the graph of allowed entries (N M at most 4e6).
    Raises ValueError when there is no coupling at all.

    >>> import numpy as np, qkcore as qk
    >>> u = np.full(3, 1 / 3)
    >>> qk.usable_entries(qk.scores.dense(np.zeros((3, 3))).causal(), u, u)  # only the diagonal
    array([[ True, False, False],
           [False,  True, False],
           [False, False,  True]])
    """
    from ._bridge_problem import _marginal
    from .operators import _scores_argument

    s = _scores_argument(s)
    rows, cols = _marginal("mu", mu, s, 0), _marginal("nu", nu, s, 1)
    if s.ndim != 2 or math.prod(s.shape) > MAX_ENTRIES:
        raise ValueError(
            f"s: wanted one problem of at most {MAX_ENTRIES} entries, got shape {s.shape}"
        )
    usable = _usable(~np.isneginf(s.to_numpy()), rows, cols)
    if usable is None:
        raise ValueError("s: no coupling of mu and nu lives on the entries that are not masked")
    return usable


def _units(weights: Real, total: float) -> npt.NDArray[np.int64]:
    """Weights in whole units that add up to exactly _UNITS."""
    exact = weights.astype(np.float64) / total * _UNITS
    whole = np.floor(exact).astype(np.int64)
    missing = _UNITS - int(whole.sum())
    order = np.argsort(whole - exact)  # the largest remainders first
    live = order[weights[order] > 0]
    whole[live[np.arange(missing) % len(live)]] += 1 if missing > 0 else 0
    return whole


def _usable(allowed: npt.NDArray[np.bool_], mu: Real, nu: Real) -> npt.NDArray[np.bool_] | None:
    """Entries of some coupling, by the residual graph of a largest flow; None if there is none."""
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import connected_components, maximum_flow

    n, m = allowed.shape
    live = allowed & (mu > 0)[:, None] & (nu > 0)
    i, j = np.nonzero(live)
    source, sink = n + m, n + m + 1
    row_units, col_units = (_units(w, float(np.sum(w, dtype=np.float64))) for w in (mu, nu))
    heads = np.concatenate([np.full(n, source), i, n + np.arange(m)])
    tails = np.concatenate([np.arange(n), n + j, np.full(m, sink)])
    room = np.concatenate([row_units, np.full(len(i), _UNITS), col_units])
    graph: Any = csr_array(
        coo_array((room.astype(np.int32), (heads, tails)), shape=(n + m + 2, n + m + 2))
    )
    flow = maximum_flow(graph, source, sink)
    # Rounding to units may strand a few of them; anything more is a real obstacle.
    if flow.flow_value < _UNITS - 4 * (n + m):
        return None
    carried = flow.flow[:n, n : n + m].toarray()
    used = carried > n + m  # more than stranded units
    # Mass can be moved onto an entry when a cycle of the residual graph passes it: rows reach their
    # columns through allowed entries, columns reach rows through entries that carry something.
    forth = coo_array((np.ones(len(i), np.int8), (i, n + j)), shape=(n + m, n + m))
    bi, bj = np.nonzero(used)
    back = coo_array((np.ones(len(bi), np.int8), (n + bj, bi)), shape=(n + m, n + m))
    _, label = connected_components(csr_array(forth + back), directed=True, connection="strong")
    usable: npt.NDArray[np.bool_] = (live & (label[:n, None] == label[None, n:])) | used
    return usable
