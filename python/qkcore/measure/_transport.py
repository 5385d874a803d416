"""The 1-Wasserstein distance with the l1 ground metric, exact and bracketed (MTA-4)."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Scores
from .._linear_transport import least_cost
from .._words import Ended
from ..bridges import bridge
from ..operators import kernel
from ..scores import l1
from ._measure import Measure, as_measure

__all__ = ["W1Bracket", "w1", "w1_bracket"]

Array = npt.NDArray[np.float64]

_METHODS = ("auto", "sorted", "assignment", "linprog", "pot")
# The exact solvers are refused cost matrices of more entries, for which w1_bracket gives certified bounds.
_LINPROG_ENTRIES = 1_000_000
_DENSE_ENTRIES = 64_000_000
_BLOCK = 1024


def w1(mu: Measure | npt.ArrayLike, nu: Measure | npt.ArrayLike, *, method: str = "auto") -> float:
    """:math:`W_1(\\mu,\\nu) = \\inf_\\pi\\int\\|x-y\\|_1\\,\\pi(dx, dy)`, exactly (MTA-4; section 4).

    ``method``:

    - "auto": the first of these that applies.
    - "sorted": the closed form on the line (d = 1), O(n log n).
    - "assignment": equal weights and as many points on both sides; SciPy's linear assignment.
    - "pot": POT's network simplex, any weights, when POT is installed.
    - "linprog": any weights, SciPy's HiGHS on the sparse linear programme, up to a million pairs.

    Equal points are merged, and mass that both measures have at the same point stays there, which is optimal
    because the cost is a metric. All methods except "sorted" store the matrix of distances; for large
    measures see :func:`w1_bracket`.

    >>> import numpy as np
    >>> from qkcore.measure import Measure, w1
    >>> w1(np.array([[0.0, 0.0]]), np.array([[1.0, 2.0]]))
    3.0
    >>> X = np.array([[0.0], [1.0]])
    >>> w1(Measure(X), Measure(X, np.array([0.25, 0.75])))
    0.25
    """
    _checks.one_of("method", method, _METHODS)
    p, q = _pair(mu, nu)
    if method == "sorted" and p.dim != 1:
        raise ValueError(f'method: wanted points on a line for "sorted", got d = {p.dim}')
    if p.dim == 1 and method in ("auto", "sorted"):
        return _on_a_line(p, q)
    x, a, y, b = _without_common_mass(p, q)
    if not len(x) or not len(y):
        return 0.0
    equal = len(a) == len(b) and _all_equal(a) and _all_equal(b)
    if method == "assignment":
        if equal:
            return _assignment(x, y, a)
        # Merging may have made equal weights unequal; then the measures as given may still qualify.
        if p.uniform and q.uniform and len(p) == len(q):
            weights = np.full(len(p), 1 / len(p))
            return _assignment(_double(p.points), _double(q.points), weights)
        raise ValueError(
            'method: wanted equal weights and equally many points for "assignment", got '
            f'{len(p)} and {len(q)} points; use "linprog"'
        )
    if method == "auto" and equal:
        return _assignment(x, y, a)
    if method == "pot" or (method == "auto" and _has_pot()):
        return _pot(x, a, y, b)
    return _linprog(x, a, y, b)


@dataclass(frozen=True)
class W1Bracket(Ended):
    """Certified bounds: ``lower <= W1 <= upper``, by a 1-Lipschitz function and by a transport plan."""

    lower: float
    upper: float
    epsilon: float
    """the temperature of the last Sinkhorn solve; 0 if none was needed"""
    landmarks: tuple[int, int]
    """how many points of each side that solve had: all, or the landmarks to which the others were moved"""
    status: str
    """"converged" (the gap is at most rtol * upper) or "iteration limit" (the bounds hold nevertheless)"""

    @property
    def gap(self) -> float:
        """upper - lower."""
        return self.upper - self.lower

    def __str__(self) -> str:
        return f"W1 in [{self.lower:.6g}, {self.upper:.6g}] ({self.status})"


def w1_bracket(
    mu: Measure | npt.ArrayLike,
    nu: Measure | npt.ArrayLike,
    *,
    rtol: float = 0.01,
    max_rounds: int = 8,
    max_points: int = 4000,
    rng: np.random.Generator | int | None = 0,
    n_threads: int | None = None,
) -> W1Bracket:
    """Bounds below and above :math:`W_1(\\mu,\\nu)` for large measures, certified (MTA-4).

    Sinkhorn's method at falling temperatures, each solve started from the last, gives potentials and a plan.
    The bounds hold even if a solve is inaccurate: the lower bound is the value of
    :math:`\\phi(z) = \\min_j \\|z - y_j\\|_1 - g_j`, which is 1-Lipschitz whatever g is; the upper bound is
    the cost of the plan after its marginals have been repaired exactly. The search stops when the gap is at
    most ``rtol * upper``.

    Distances are computed as they are needed, in O(N) memory beyond what the bridge keeps. Measures of
    more than ``max_points`` points are moved to landmarks (a random subset, each point to the nearest): the
    upper bound pays for the move by the triangle inequality, and the lower bound, which is evaluated on all
    points, stays valid; both are then looser.

    >>> import numpy as np
    >>> from qkcore.measure import w1, w1_bracket
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.normal(size=(60, 2)), rng.normal(size=(50, 2)) + 1
    >>> found = w1_bracket(X, Y)
    >>> found.lower <= w1(X, Y) <= found.upper, found.status
    (True, 'converged')
    """
    p, q = _pair(mu, nu)
    tol = _checks.positive("rtol", rtol)
    rounds = _checks.integer_within("max_rounds", max_rounds, 1, 100, "rounds of cooling")
    limit = _checks.integer_within("max_points", max_points, 2, 10**6, "time grows with its square")
    if p.dim == 1:
        exact = _on_a_line(p, q)
        return W1Bracket(exact, exact, 0.0, (len(p), len(q)), "converged")
    x, a, y, b = _without_common_mass(p, q)
    if not len(x) or not len(y):
        return W1Bracket(0.0, 0.0, 0.0, (0, 0), "converged")
    generator = np.random.default_rng(rng)
    near_x, near_a, move_x = _landmarks(x, a, limit, generator)
    near_y, near_b, move_y = _landmarks(y, b, limit, generator)
    s = l1(near_x, near_y)
    scale = float(a.sum())  # without the common mass the total may be below 1
    alpha, beta = near_a / scale, near_b / scale
    lower, upper = 0.0, math.inf
    sums = kernel(s, "linear").apply(np.ones(len(near_y)), n_threads=n_threads)
    epsilon = -float(sums.mean()) / len(near_y) / 10
    init: Any = None
    for _ in range(rounds):
        solved = bridge(
            s / epsilon,
            alpha,
            beta,
            tol=1e-4,
            max_iter=2000,
            init=init,
            n_threads=n_threads,
        )
        f, g = _double(solved.f), _double(solved.g)
        usable = np.isfinite(f).all() and np.isfinite(g).all()
        if not usable:
            break
        # The coupling is exp(f + s + g), so g contains log(beta), which a potential of the cost does not.
        potential: Array = epsilon * (g - np.log(beta))
        value = scale * _plan_cost(s, f, g, epsilon, alpha, beta) + move_x + move_y
        upper = min(upper, value)
        lower = max(lower, _lipschitz_value(x, a, y, b, near_y, potential))
        if upper - lower <= tol * upper:
            break
        init = (2 * f, 2 * g)
        epsilon /= 2
    status = "converged" if upper - lower <= tol * upper else "iteration limit"
    return W1Bracket(min(lower, upper), upper, epsilon, (len(near_x), len(near_y)), status)


def _double(points: npt.NDArray[Any]) -> Array:
    return np.asarray(points, dtype=np.float64)


def _pair(mu: Measure | npt.ArrayLike, nu: Measure | npt.ArrayLike) -> tuple[Measure, Measure]:
    p, q = as_measure("mu", mu), as_measure("nu", nu)
    _checks.same_space("nu", q.dim, p.dim, "mu")
    _checks.same_dtype("nu", q.points, p.dtype, "mu")
    return p, q


def _all_equal(w: Array) -> bool:
    return bool(np.ptp(w) <= 1e-12 * w.max())


def _on_a_line(p: Measure, q: Measure) -> float:
    """The area between the distribution functions."""
    points = np.concatenate([_double(p.points)[:, 0], _double(q.points)[:, 0]])
    jumps = np.concatenate([_normalized(p.weights), -_normalized(q.weights)])
    order = np.argsort(points, kind="stable")
    height = np.abs(np.cumsum(jumps[order])[:-1])
    return float(height @ np.diff(points[order]))


def _normalized(weights: npt.NDArray[Any]) -> Array:
    w = _double(weights)
    out: Array = w / w.sum()
    return out


def _without_common_mass(p: Measure, q: Measure) -> tuple[Array, Array, Array, Array]:
    """Points and masses of the positive and the negative part of mu - nu."""
    points = np.concatenate([_double(p.points), _double(q.points)]) + 0.0
    mass = np.concatenate([_normalized(p.weights), -_normalized(q.weights)])
    unique, inverse = np.unique(points, axis=0, return_inverse=True)
    net: Array = np.bincount(inverse.reshape(-1), mass, len(unique)).astype(np.float64)
    tiny = 4 * np.finfo(np.float64).eps / max(len(p), len(q))
    above, below = net > tiny, net < -tiny
    a, b = net[above], -net[below]
    if a.size and b.size:
        b = b * (a.sum() / b.sum())  # so that the totals agree to the last bits
    return unique[above], a, unique[below], b


def _assignment(x: Array, y: Array, a: Array) -> float:
    from scipy.optimize import linear_sum_assignment

    _not_too_large(len(x), len(y), _DENSE_ENTRIES)
    cost = _l1(x, y)
    rows, columns = linear_sum_assignment(cost)
    return math.fsum(cost[rows, columns]) * float(a.mean())


def _l1(x: Array, y: Array) -> Array:
    return 0.0 - _double(l1(x, y).to_numpy())  # 0.0 - s, because -s would make -0.0 of a distance 0


def _has_pot() -> bool:
    return importlib.util.find_spec("ot") is not None


def _pot(x: Array, a: Array, y: Array, b: Array) -> float:
    if not _has_pot():
        raise ImportError(
            'method: wanted POT for "pot", got no module "ot"; pip install POT, or use "linprog"'
        )
    import ot  # type: ignore[import-untyped, unused-ignore]  # optional

    _not_too_large(len(x), len(y), _DENSE_ENTRIES)
    total = float(a.sum())
    cost = _l1(x, y)
    plan, log = ot.emd(a / total, b / total, cost, numItermax=10_000_000, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"POT did not solve the transport problem: {log['warning']}")
    return total * float((plan * cost).sum())


def _linprog(x: Array, a: Array, y: Array, b: Array) -> float:
    n, m = len(x), len(y)
    _not_too_large(n, m, _LINPROG_ENTRIES)
    return least_cost(_l1(x, y), a, b)


def _not_too_large(n: int, m: int, limit: int) -> None:
    if n * m > limit:
        wanted = f"at most {limit:.0e} pairs of points for an exact solution"
        _checks.refuse("mu, nu", wanted, f"{n} x {m}", "use w1_bracket for certified bounds")


def _landmarks(
    x: Array, a: Array, limit: int, rng: np.random.Generator
) -> tuple[Array, Array, float]:
    """A subset of the points, its masses after all others have moved to the nearest, and what that costs."""
    if len(x) <= limit:
        return x, a, 0.0
    chosen = x[rng.choice(len(x), limit, replace=False)]
    mass = np.zeros(limit)
    moved = 0.0
    for i in range(0, len(x), _BLOCK):
        far = _l1(x[i : i + _BLOCK], chosen)
        nearest = far.argmin(axis=1)
        w = a[i : i + _BLOCK]
        mass += np.bincount(nearest, w, limit)
        moved += float(w @ far[np.arange(len(w)), nearest])
    live = mass > 0
    return chosen[live], mass[live], moved


def _plan_cost(s: Scores, f: Array, g: Array, epsilon: float, alpha: Array, beta: Array) -> float:
    """The cost -s of the Sinkhorn plan with its marginals repaired, by blocks of rows.

    Rows and then columns with too much mass are scaled down. A product measure supplies the missing mass.
    """
    n, m = s.shape
    scale_rows, columns = np.empty(n), np.zeros(m)

    def entries(block: slice) -> Array:
        return _double(s.rows(block.start, min(n, block.stop)).to_numpy())

    def plan(block: slice, scores: Array) -> Array:
        return np.asarray(np.exp(np.minimum(f[block, None] + g + scores / epsilon, 700.0)))

    for i in range(0, n, _BLOCK):
        block = slice(i, i + _BLOCK)
        P = plan(block, entries(block))
        sums = P.sum(axis=1)
        scale = np.minimum(1.0, alpha[i : i + _BLOCK] / np.maximum(sums, 1e-300))
        scale_rows[i : i + _BLOCK] = scale
        columns += scale @ P
    scale_columns = np.minimum(1.0, beta / np.maximum(columns, 1e-300))
    missing_rows = np.empty(n)
    total = 0.0
    for i in range(0, n, _BLOCK):
        block = slice(i, i + _BLOCK)
        scores = entries(block)
        P = plan(block, scores)
        P *= scale_rows[block, None] * scale_columns
        missing_rows[block] = np.maximum(alpha[block] - P.sum(axis=1), 0.0)
        total -= float(np.vdot(P, scores))
    missing_columns = np.maximum(beta - columns * scale_columns, 0.0)
    lacking = float(missing_columns.sum())
    if lacking > 0:
        for i in range(0, n, _BLOCK):
            block = slice(i, i + _BLOCK)
            total -= float(missing_rows[block] @ entries(block) @ missing_columns) / lacking
    return total


def _lipschitz_value(x: Array, a: Array, y: Array, b: Array, at: Array, potential: Array) -> float:
    """mu(phi) - nu(phi) for phi(z) = min_j |z - at_j|_1 - potential_j."""

    def mean(points: Array, weights: Array) -> float:
        total = 0.0
        for i in range(0, len(points), _BLOCK):
            far = _l1(points[i : i + _BLOCK], at)
            total += float(weights[i : i + _BLOCK] @ (far - potential).min(axis=1))
        return total

    return mean(x, a) - mean(y, b)
