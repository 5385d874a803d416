"""The final check of a bridge: how well the potentials that are returned satisfy the conditions.

The check recomputes the kernel in double precision for either dtype, by a separate visit, and adds a bound on
the rounding of the check itself. If this bound leaves open on which side of ``tol`` the exact error lies,
extended precision decides if the problem is small enough; otherwise the conditions count as not met. So
``converged`` holds in exact arithmetic.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks, _pieces
from ._host import HOST
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._rounding import PLAIN

_EPS = float(np.finfo(np.float64).eps)
# The number of entries of points and matrices that are converted to float64 at a time.
_WIDENED = 2**21
# The most entries that are checked in extended precision, which takes some 0.1 microseconds per entry.
_EXTENDED = 2**21
_HAS_EXTENDED = np.finfo(np.longdouble).eps < _EPS
# If the sum of a plan is outside this range, the potentials are shifted before it is computed.
_SMALLEST, _LARGEST = 1e-200, 1e200

Cuts = npt.NDArray[np.int64] | None


class Residual(NamedTuple):
    """How far the marginals of exp(f + s + g) are from the marginals that are wanted."""

    error: float
    """the larger L1 error of the two sides, as a share of the side's mass, or of the plan's if penalised"""
    worst: float
    """the largest relative error of a single row or column"""
    met: bool
    """whether the error is at most the tolerance, rounding of the check included"""


class Conditions(NamedTuple):
    """One side of a problem: its weights, and the factor of the KL penalty on its marginal.

    A penalty of inf is a constraint; with a penalty of 0 the marginal is free.
    """

    weights: Real
    penalty: float

    def wanted(self, potential: Real, shift: float = 0.0) -> Real:
        """The marginal of the solution times exp(shift): the weights, tilted by exp(-potential / penalty)."""
        weights = self.weights.astype(potential.dtype, copy=False)
        if math.isinf(self.penalty):
            return weights * np.exp(shift) if shift else weights
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            log = np.log(weights) - potential / self.penalty + shift
            return np.where(weights > 0, np.exp(log), 0.0)

    def cut(self, weights: Real) -> Conditions:
        """The same conditions on a part of the side."""
        return Conditions(weights, self.penalty)


def residual(
    s: Scores, rows: Conditions, columns: Conditions, f: Real, g: Real, tol: float, n_threads: int
) -> Residual:
    """The check of one problem at the potentials f and g, which are of the scores' own dtype."""
    f, g = (_pieces.converted(x, np.float64) for x in (f, g))
    sides = (
        _without_dead(lambda: s, rows, f, g, n_threads),
        _without_dead(lambda: s.T, columns, g, f, n_threads),
    )
    try:
        shift, sums = _sums(s, sides, f, g, n_threads)
    except OverflowError:  # the potentials diverge, as those of an infeasible problem do
        return Residual(math.inf, math.inf, False)
    error, worst = _compare(sums, sides, (f, g), shift)
    slack = rounding_slack(s, f, g)
    if error + slack <= tol:
        return Residual(error, worst, True)
    if error - slack > tol or not math.isfinite(error) or math.prod(s.shape) > _EXTENDED:
        return Residual(error, worst, False)
    if not _HAS_EXTENDED:
        return Residual(error, worst, False)
    exact = f.astype(np.longdouble), g.astype(np.longdouble)
    error, worst = _compare(_extended_sums(s, *exact, shift), sides, exact, shift)
    return Residual(error, worst, error <= tol)


def judge(
    sums: tuple[Real, Real],
    sides: tuple[Conditions, Conditions],
    potentials: tuple[Real, Real],
    slack: float,
    tol: float,
) -> Residual:
    """How well given row and column sums in double precision satisfy the conditions.

    ``slack`` bounds the rounding errors of the sums, as a share of the mass.
    """
    error, worst = _compare(sums, sides, potentials, 0.0)
    return Residual(error, worst, error + slack <= tol)


def _without_dead(
    scores: Callable[[], Scores], side: Conditions, own: Real, other: Real, n_threads: int
) -> Conditions:
    """The conditions of a penalised side, with weight 0 for rows whose entries are all masked.

    The marginal of such a row is 0 for all potentials.
    """
    if math.isinf(side.penalty):
        return side
    dead = _pieces.mapped(lambda x, w: np.isneginf(x) & (w > 0), own, side.weights)
    if not dead.any():
        return side
    with np.errstate(invalid="ignore"):
        seen = widened(scores()).shift(columns=other).logsumexp(n_threads=n_threads)
    return side.cut(
        _pieces.mapped(lambda d, x, w: np.where(d & np.isneginf(x), 0, w), dead, seen, side.weights)
    )


def rounding_slack(s: Scores, f: Real, g: Real) -> float:
    """A bound on what rounding does to the error: relative errors of entries, as a share of the mass."""
    # An exponent is rounded three times, and once more where exp reduces it, each time by half a unit. The
    # bound of the score covers its rounding, term by term. The rest is for exp and for the sums.
    exponent = s.bound + sum(largest_finite(x) for x in (f, g))
    terms = 4 + max((x.shape[-1] for x in s.terms.features), default=0)
    return _EPS * (terms * exponent + 32 + math.sqrt(max(s.shape[-2:])))


def largest_finite(potential: Real) -> float:
    return float(cpu.scan(potential, 1)[1])


def _sums(
    s: Scores, sides: tuple[Conditions, Conditions], f: Real, g: Real, n_threads: int
) -> tuple[float, tuple[Real, Real]]:
    """Row and column sums of the plan times exp(shift), with a shift that keeps them in range."""
    if all(math.isinf(side.penalty) for side in sides):
        mass = _checks.total(sides[0].weights)
        shift = 0.0 if mass == 0 or _SMALLEST < mass < _LARGEST else -math.log(mass)
        return shift, wide_marginals(s, _shifted(f, shift), g, n_threads)
    with contextlib.suppress(OverflowError):
        found = wide_marginals(s, f, g, n_threads)
        if _SMALLEST < _checks.mass(found[0]) < _LARGEST:
            return 0.0, found
    # The mass of the plan is outside the range of double precision or close to its ends, but the logarithm of
    # the mass can be computed.
    seen = widened(s).shift(columns=g).logsumexp(n_threads=n_threads)
    top = max(float((a + b).max(initial=-math.inf)) for a, b in _pieces.pieces(f, seen))
    if top == -math.inf:  # no entry carries anything
        return 0.0, (np.zeros_like(f), np.zeros_like(g))
    if not math.isfinite(top):
        raise OverflowError
    return -top, wide_marginals(s, _shifted(f, -top), g, n_threads)


def _shifted(potential: Real, shift: float) -> Real:
    return _pieces.mapped(lambda x: x + shift, potential) if shift else potential


def _compare(
    sums: tuple[Real, Real],
    sides: tuple[Conditions, Conditions],
    potentials: tuple[Real, Real],
    shift: float,
) -> tuple[float, float]:
    error = worst = 0.0
    balanced = all(math.isinf(side.penalty) for side in sides)
    if not balanced and not any(side.weights.any() for side in sides):
        return 0.0, 0.0  # no row or column can carry mass: the empty plan is the solution
    for got, side, potential in zip(sums, sides, potentials, strict=True):
        if side.penalty == 0:  # free
            continue
        if math.isinf(side.penalty) and not shift:
            wanted = _pieces.converted(side.weights, got.dtype)
        else:
            wanted = _pieces.mapped(
                lambda w, x, side=side: side.cut(w).wanted(x, shift), side.weights, potential
            )
        there, mass, off, relative = _deviation(got, wanted)
        error = max(error, _share(off, mass if math.isinf(side.penalty) else there))
        worst = max(worst, relative)
    return (error, worst) if math.isfinite(error) else (math.inf, math.inf)


def _deviation(got: Real, wanted: Real) -> tuple[float, float, float, float]:
    """Both sums, the sum of the absolute differences, and the largest relative one where wanted > 0."""
    if got.dtype == np.float64:
        return cpu.deviation(got, wanted)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(got - wanted)  # only small problems are in extended precision
        relative = np.divide(off, wanted, out=np.zeros_like(off), where=wanted > 0)
    return float(got.sum()), float(wanted.sum()), float(off.sum()), float(relative.max(initial=0.0))


def _share(off: float, mass: float) -> float:
    """The error as a share of the mass; where there is no mass, any error is infinite."""
    return off / mass if mass > 0 else math.inf if off != 0 else 0.0


# ---- sums in more precision than the dtype's -----------------------------------------------------


def wide_marginals(s: Scores, f: Real, g: Real, n_threads: int) -> tuple[Real, Real]:
    """Row and column sums of exp(f + s + g) in float64, from scores that are computed in float64 too."""
    if (alone := _one_matrix(s)) is not None:
        return cpu.coupling_sums(*alone, f, g, n_threads)
    if s.dtype == np.float64 or not s.terms.dense or s.batch or s.terms.offsets is not None:
        return widened(s)._with_potentials(f, g).marginals(n_threads=n_threads)
    # Dense terms are widened by the core, a few rows at a time.
    rest = widened(s._with(s.terms._replace(dense=())))._with_potentials(f, g)
    return cpu.widened_marginals(rest._spec, s.terms.dense, n_threads)


def _one_matrix(s: Scores) -> tuple[Real, float] | None:
    """The matrix and its factor if the scores of one problem have no other terms; otherwise None."""
    if s.backend is not HOST:
        return None
    t = s.terms
    others = t.dots or t.distances or t.row_bias or t.col_bias or t.masks or t.banded
    if len(t.dense) != 1 or others or s.batch or t.offsets is not None:
        return None
    z, scale = t.dense[0]
    return (z, scale) if z.shape == s.shape and z.itemsize in z.strides else None


def widened(s: Scores) -> Scores:
    """The same scores in float64: the arrays are converted, so every term is computed more exactly."""
    if s.dtype == np.float64:
        return s
    seen: dict[int, Real] = {}

    def wide(x: Any) -> Any:  # each array is converted once, so that symmetric scores stay so
        if id(x) not in seen:
            seen[id(x)] = _pieces.converted(x, np.float64) if x.ndim == 1 else _wide(x)
        return seen[id(x)]

    terms = s.terms.map(x=wide, y=wide, z=wide, r=wide, c=wide, masks=lambda m: m)
    terms = terms._replace(rounding=PLAIN)
    return Scores(
        np.dtype(np.float64), s.batch, s.n_rows, s.n_cols, terms, bound=s.bound, backend=s.backend
    )


def _wide(x: Real) -> Real:
    """Points and matrices in float64, converted by blocks of rows, or by parts of rows that are long."""
    out = np.empty(x.shape, np.float64)
    height = max(1, _WIDENED // max(1, math.prod(x.shape[:-2]) * x.shape[-1]))
    for start in range(0, x.shape[-2], height):
        for part, to in _pieces.pieces(
            x[..., start : start + height, :], out[..., start : start + height, :]
        ):
            to[...] = part
    return out


def extended_scores(s: Scores, start: int, stop: int) -> npt.NDArray[np.longdouble]:
    """Rows start to stop of one problem's scores, every term computed in extended precision."""

    def wide(x: Any, cut: bool) -> Any:
        return (x[start:stop] if cut and len(x) > 1 else x).astype(np.longdouble)

    out = np.zeros((stop - start, s.n_cols), np.longdouble)
    for x, y, scale in s.terms.dots:
        out += np.longdouble(scale) * (wide(x, True) @ wide(y, False).T)
    for x, y, scale, n_negative, power in s.terms.distances:
        rows, columns = wide(x, True), wide(y, False)
        for k in range(rows.shape[1]):
            sign = -1 if k >= rows.shape[1] - n_negative else 1
            out -= sign * np.longdouble(scale) * np.abs(rows[:, k, None] - columns[:, k]) ** power
    for z, scale in s.terms.dense:
        out += np.longdouble(scale) * wide(z, True)
    for r in s.terms.row_bias:
        out += wide(r, True)[:, None]
    for c in s.terms.col_bias:
        out += wide(c, False)
    for mask in s.terms.masks:
        out[
            (mask[start:stop] if len(mask) > 1 else np.broadcast_to(mask, out.shape)) == 0
        ] = -np.inf
    if s.terms.banded:
        lo, hi = s.terms.band
        offset = np.arange(s.n_cols) - np.arange(start, stop)[:, None]
        out[(offset < lo) | (offset > hi)] = -np.inf
    return out


def _extended_sums(s: Scores, f: Any, g: Any, shift: float) -> tuple[Any, Any]:
    n, m = s.shape
    rows, columns = np.zeros(n, np.longdouble), np.zeros(m, np.longdouble)
    height = max(1, 2**16 // m)
    for start in range(0, n, height):
        stop = min(n, start + height)
        with np.errstate(invalid="ignore"):  # masked scores may meet potentials of -inf
            log = extended_scores(s, start, stop) + (f[start:stop, None] + shift) + g
        plan = np.exp(log)
        rows[start:stop] = plan.sum(axis=1)
        columns += plan.sum(axis=0)
    return rows, columns


# ---- batches -------------------------------------------------------------------------------------


def batch_residuals(
    s: Scores,
    rows: Conditions,
    columns: Conditions,
    f: Real,
    g: Real,
    tol: float,
    n_threads: int,
) -> tuple[Real, Real, npt.NDArray[np.bool_]]:
    """The check of every problem of a batch: errors, worst errors, and whether the conditions are met.

    One visit serves all of them. Problems that it cannot judge safely are then checked one by one.
    """
    cuts: Any = s.terms.offsets if s.terms.offsets is not None else (None, None)
    n = math.prod(s.batch) if s.terms.offsets is None else len(s.terms.offsets[0]) - 1
    error, worst = np.full(n, np.inf), np.full(n, np.inf)
    undecided = np.ones(n, np.bool_)
    slack = rounding_slack(s, f, g)
    wide = _pieces.converted(f, np.float64), _pieces.converted(g, np.float64)
    with contextlib.suppress(OverflowError):  # if one problem overflows, each is checked by itself
        sums = wide_marginals(s, *wide, n_threads)
        error, worst, mass = _batch_errors(sums, (rows, columns), wide, cuts)
        safe = (mass > _SMALLEST) & (mass < _LARGEST) & np.isfinite(error)
        undecided = ~safe | (np.abs(error - tol) <= slack)
    met: npt.NDArray[np.bool_] = error + slack <= tol
    for k in np.flatnonzero(undecided).tolist():
        here, there = problem_part(s, k, 0), problem_part(s, k, 1)
        error[k], worst[k], met[k] = residual(
            s._problem(k),
            Conditions(rows.weights[here], rows.penalty),
            Conditions(columns.weights[there], columns.penalty),
            f[here],
            g[there],
            tol,
            n_threads,
        )
    return error, worst, met


def _batch_errors(
    sums: tuple[Real, Real],
    sides: tuple[Conditions, Conditions],
    potentials: tuple[Real, Real],
    cuts: tuple[Cuts, Cuts],
) -> tuple[Real, Real, Real]:
    """Errors, worst errors and masses of all problems; see :class:`Residual`."""
    found = []
    for got, side, potential, cut in zip(sums, sides, potentials, cuts, strict=True):
        if side.penalty == 0:  # free
            continue
        wanted = np.broadcast_to(side.wanted(potential), got.shape)
        off = np.abs(got - wanted)
        mass = block_sums(wanted if math.isinf(side.penalty) else got, cut)
        total = block_sums(off, cut)
        # Problems with rows that see nothing are checked one by one afterwards.
        with np.errstate(invalid="ignore", over="ignore"):
            relative = np.divide(off, wanted, out=np.zeros_like(off), where=wanted > 0)
            share = np.divide(total, mass, out=np.where(total > 0, np.inf, 0.0), where=mass > 0)
        found.append((share, _block_maxima(relative, cut), np.where(total > 0, mass, 1.0)))
    error, worst = (np.max([side[k] for side in found], axis=0) for k in (0, 1))
    mass = np.min([side[2] for side in found], axis=0)
    error[np.isnan(error)] = np.inf
    return error, worst, mass


def block_sums(values: Real, cuts: Cuts) -> Real:
    """Sums over the last axis, flattened, or over the blocks between cuts (0 for an empty block)."""
    if cuts is None:
        return np.asarray(values.sum(axis=-1, dtype=np.float64)).reshape(-1)
    sums = np.zeros(len(cuts) - 1)
    # reduceat gives an empty block the entry that follows it, so those are left out.
    live = np.flatnonzero(np.diff(cuts))
    sums[live] = np.add.reduceat(values.astype(np.float64), cuts[live])
    return sums


def _block_maxima(values: Real, cuts: Cuts) -> Real:
    if cuts is None:
        return np.asarray(values.max(axis=-1)).reshape(-1)
    return np.array([values[first:end].max(initial=0.0) for first, end in pairwise(cuts)])


def problem_part(s: Scores, k: int, side: int) -> Any:
    """Where problem k's rows (side 0) or columns lie in an array of all of them."""
    if s.terms.offsets is not None:
        return slice(*s.terms.offsets[side][k : k + 2])
    return np.unravel_index(k, s.batch)
