"""Whether a masked kernel allows a coupling of the marginals, and whether it uses all entries (DAC-7, B.2).

A coupling of mu and nu on the allowed entries exists if the largest flow from rows to columns carries all
mass. Sinkhorn's scaling itself exists if, in addition, every allowed entry carries mass in some such coupling
(total support). Otherwise the iteration approaches its limit like 1/k, while the potentials diverge.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from . import _checks, _pieces
from ._config import resolve_threads
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._terms import UNBOUNDED

__all__ = ["INFEASIBLE", "NO_TOTAL_SUPPORT", "diagnose", "usable_entries", "verdict"]


INFEASIBLE = "infeasible"
NO_TOTAL_SUPPORT = "no total support"
# The graph of allowed entries is not built for kernels with more entries than this.
MAX_ENTRIES = 4_000_000
# It is built for every kernel of at most this many entries whose coupling does not show total support itself.
_SMALL = 250_000


def may_be_masked(s: Scores) -> bool:
    """Whether some entry of the kernel may be 0."""
    return bool(s.terms.masks) or s.terms.banded or s.holed


def diagnose(s: Scores, mu: Real, nu: Real) -> str | None:
    """INFEASIBLE, NO_TOTAL_SUPPORT, "feasible", or None if the kernel is too large to tell."""
    if not may_be_masked(s):
        return "feasible"
    if _one_sided(s):
        lo, hi = s.terms.band
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
    """The status of a solve over a masked kernel, corrected if the marginals allow no solution.

    Without total support the marginals may be met to any tolerance although the potentials have no limit.
    Such a result is not called converged.
    """
    if status == INFEASIBLE:
        return status
    if status == "converged" and not in_doubt(s, mu, nu, f, g, error):
        return status
    found = diagnose(s, mu, nu)
    return found if found in (INFEASIBLE, NO_TOTAL_SUPPORT) else status


def in_doubt(s: Scores, mu: Real, nu: Real, f: Real, g: Real, error: float) -> bool:
    """Whether a coupling that meets its marginals may lack total support, so that `diagnose` must decide."""
    if not may_be_masked(s):
        return False
    if _one_sided(s):
        return True  # diagnose is cheap for these masks
    entries = math.prod(s.shape)
    if entries <= MAX_ENTRIES and _shows_its_support(s, mu, nu, f, g, error):
        return False
    return entries <= _SMALL or _run_away(s, mu, nu, f, g)


def _one_sided(s: Scores) -> bool:
    """Whether the only mask is a band that is open on one side."""
    bounded = [abs(end) < UNBOUNDED for end in s.terms.band]
    return sum(bounded) == 1 and not (s.terms.masks or s.holed)


def _shows_its_support(s: Scores, mu: Real, nu: Real, f: Real, g: Real, error: float) -> bool:
    """Whether the coupling's own mass connects the rows and columns of every allowed entry.

    Without total support, rows and columns split into two parts with allowed entries between them, and these
    entries carry no more mass than the error of the marginals. So a set that starts from one row, and grows
    by every row or column that exchanges more mass with it, stays within one of the two parts.
    """
    live_rows, live_cols = mu > 0, nu > 0
    allowed = (s.to_numpy() > -np.inf) & live_rows[:, None] & live_cols
    coupling = s.shift(rows=f, columns=g)  # -inf where there is no weight
    plan = cpu.materialize(coupling._spec, False, cpu.WEIGHTS.index("exp"), resolve_threads(None))
    total = float(np.sum(mu, dtype=np.float64))
    noise = (4 * error + 16 * float(np.finfo(s.dtype).eps)) * total
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
    """Whether the potentials spread over more than the scores and weights explain."""

    def spread(values: Real, weights: Real) -> float:
        least, most = math.inf, -math.inf
        for x, w in _pieces.pieces(values, weights):
            live = x[w > 0]
            least = min(least, float(live.min(initial=math.inf)))
            most = max(most, float(live.max(initial=-math.inf)))
        return most - least if most >= least else 0.0

    with np.errstate(divide="ignore"):
        allowed = sum(spread(_pieces.mapped(np.log, w), w) for w in (mu, nu))
    return spread(f, mu) + spread(g, nu) > allowed + 4 * s.bound + 15


def _staircase(mu: Real, nu: Real, offset: int) -> str:
    """The diagnosis for the mask in which row i sees the columns j <= i + offset."""
    rows, cols = _sums_before(mu), _sums_before(nu)
    later_rows, later_cols = _sums_before(mu[::-1])[::-1], _sums_before(nu[::-1])[::-1]
    slack, total_support = _slack(mu, nu), True
    for below, above, k in _pieces.pieces(rows, later_rows, np.arange(len(mu) + 1)):
        seen = np.clip(k + offset, 0, len(nu))  # how many columns the rows < k see
        # The mass of the rows < k must fit into the columns that they see. The remaining room is computed on
        # the side of the cut that has less mass, because rounding errors are smaller there.
        spare = np.where(below <= above, cols[seen] - below, above - later_cols[seen])
        noise = slack * np.minimum(below, above)
        if (spare < -noise).any():
            return INFEASIBLE
        # If it fits exactly, no later row can use those columns, although their entries are allowed.
        tight = (above > 0) & (cols[seen] > 0) & (spare <= noise)
        total_support = total_support and not tight.any()
    return "feasible" if total_support else NO_TOTAL_SUPPORT


def _sums_before(weights: Real) -> npt.NDArray[np.longdouble]:
    """The sums of the first k weights, for k from 0 to their number."""
    sums = np.empty(len(weights) + 1, np.longdouble)
    sums[0] = before = np.longdouble(0)
    for part, out in _pieces.pieces(weights, sums[1:]):
        np.cumsum(part, dtype=np.longdouble, out=out)
        out += before
        before = out[-1]
    return sums


def _slack(mu: Real, nu: Real) -> float:
    """How far two sums of weights may differ, as a share of either, and still count as equal.

    Weights are rounded numbers, and the totals of the two sides may differ by as much
    (:func:`_checks.mass_slack`).
    """
    return _checks.mass_slack(max(len(mu), len(nu)), mu.dtype)


def usable_entries(s: Scores, mu: npt.ArrayLike, nu: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """The entries that carry mass in some coupling of mu and nu on the kernel's support (DAC-7).

    ``qk.bridge(s.masked(usable_entries(s, mu, nu)), mu, nu)`` converges geometrically to the limit that
    plain iteration on ``s`` approaches only like 1/k. The function builds the graph of allowed entries (N M
    is at most 4e6), and raises ValueError if there is no coupling at all.

    >>> import numpy as np, qkcore as qk
    >>> u = np.full(3, 1 / 3)
    >>> qk.usable_entries(qk.scores.dense(np.zeros((3, 3))).causal(), u, u)  # only the diagonal
    array([[ True, False, False],
           [False,  True, False],
           [False, False,  True]])
    """
    from ._bridge_problem import _marginal
    from .operators import scores_argument

    s = scores_argument(s)
    rows, cols = _marginal("mu", mu, s, 0), _marginal("nu", nu, s, 1)
    if s.ndim != 2 or math.prod(s.shape) > MAX_ENTRIES:
        raise ValueError(
            f"s: wanted one problem of at most {MAX_ENTRIES} entries, got shape {s.shape}"
        )
    usable = _usable(~np.isneginf(s.to_numpy()), rows, cols)
    if usable is None:
        raise ValueError("s: no coupling of mu and nu exists on the entries that are not masked")
    return usable


def _usable(allowed: npt.NDArray[np.bool_], mu: Real, nu: Real) -> npt.NDArray[np.bool_] | None:
    """Entries of some coupling, by the residual graph of a largest flow; None if there is none.

    The flow is exact (cpp/src/bridge/transport_flow.cpp), so small weights count beside large ones.
    There is no coupling if a set of rows has more mass than the columns it sees, by more than rounding
    of its weights.
    """
    live = np.ascontiguousarray(allowed & (mu > 0)[:, None] & (nu > 0))
    i, j, amounts, row_rest, col_rest = cpu.transport_flow(live, mu, nu)
    used = np.zeros_like(live)
    used[i, j] = True
    rounding = _Rounding(mu, nu)
    if _overfull(live, used, mu, row_rest, rounding) or _overfull(
        live.T, used.T, nu, col_rest, rounding
    ):
        return None
    # An entry may carry a little mass only because the weights are rounded. So entries with little mass are
    # removed first, and put back if the mass through the cut that they cross is more than rounding explains.
    n = len(live)
    low = np.flatnonzero(amounts <= rounding.share * _checks.total(mu))
    low = low[np.argsort(-amounts[low], kind="stable")]
    i, j, amounts = i[low], j[low], amounts[low]
    used[i, j] = False
    label = _cycles(live, used)
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        if label[a] == label[n + b] or used[a, b]:
            continue
        rows, cols = _reached(live, used, np.array([n + b]))
        crossing = ~rows[i] & cols[j]
        through = _checks.total(amounts[crossing])
        if not (rounding.explains(through, nu[cols]) and rounding.explains(through, mu[~rows])):
            used[i[crossing], j[crossing]] = True
            label = _cycles(live, used)
    usable: npt.NDArray[np.bool_] = (live & (label[:n, None] == label[None, n:])) | used
    return usable


class _Rounding:
    """Whether rounding of weights explains that two sums of them, which should be equal, differ."""

    def __init__(self, mu: Real, nu: Real) -> None:
        self.share = _checks.mass_slack(max(len(mu), len(nu)), mu.dtype)
        self._eps = float(np.finfo(mu.dtype).eps)
        self._equal = _exact_sum(mu) == _exact_sum(nu)

    def explains(self, difference: float, weights: Real) -> bool:
        # A weight is a multiple of the unit of its last digit. If the two totals are equal, a difference much
        # smaller than this unit of the largest weight comes from smaller weights, and not from rounding.
        finest = 0.25 * self._eps * float(weights.max(initial=0.0)) if self._equal else 0.0
        return finest <= difference <= self.share * _checks.total(weights)


def _exact_sum(weights: Real) -> Fraction:
    return sum(map(Fraction, weights.tolist()), Fraction(0))


def _overfull(
    live: npt.NDArray[np.bool_],
    used: npt.NDArray[np.bool_],
    weights: Real,
    rest: Real,
    rounding: _Rounding,
) -> bool:
    """Whether some rows have more mass than the columns they see, by more than rounding of their weights."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    left = np.flatnonzero(rest)
    if not left.size:
        return False
    # The rows to which mass can be moved from rows with mass left, and the columns they see, which are full.
    rows, cols = _reached(live, used, left)
    i, j = np.nonzero(live & rows[:, None] & cols)
    n, m = live.shape
    graph = coo_array((np.ones(len(i)), (i, n + j)), shape=(n + m, n + m))
    count, label = connected_components(graph.tocsr(), directed=False)
    over = np.bincount(label[left], weights=rest[left], minlength=count)
    return any(
        not rounding.explains(over[k], weights[(label[:n] == k) & rows])
        for k in np.flatnonzero(over).tolist()
    )


def _cycles(live: npt.NDArray[np.bool_], used: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Labels of rows and columns; two have the same when mass can be moved round a cycle through both.

    Mass moves from rows to the columns they see, and from columns to the rows that fill them.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, m = live.shape
    i, j = np.nonzero(live)
    a, b = np.nonzero(used)
    heads, tails = np.concatenate([i, n + b]), np.concatenate([n + j, a])
    graph = coo_array((np.ones(len(heads)), (heads, tails)), shape=(n + m, n + m)).tocsr()
    _, label = connected_components(graph, directed=True, connection="strong")
    return label


def _reached(
    live: npt.NDArray[np.bool_], used: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Rows and columns that mass can be moved to from the starting nodes (columns count from n on)."""
    n, m = live.shape
    rows, cols = np.zeros(n, np.bool_), np.zeros(m, np.bool_)
    new_rows, new_cols = starts[starts < n], starts[starts >= n] - n
    while new_rows.size or new_cols.size:
        rows[new_rows] = cols[new_cols] = True
        seen = live[new_rows].any(axis=0) & ~cols
        fed = used[:, new_cols].any(axis=1) & ~rows
        new_rows, new_cols = np.flatnonzero(fed), np.flatnonzero(seen)
    return rows, cols
