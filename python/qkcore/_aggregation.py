"""Stationary laws of chains that are too large for an array: by products, with an estimate of the error.

Power steps give the law. Random vectors ("probes"), multiplied from the other side, show how fast the chain
forgets its start: what the chain still remembers after k steps is the amount by which they differ from
constant vectors. If the chain forgets slowly because it consists of parts that are hardly ever left, the
probes become constant on each part instead, which shows the parts. The masses of the parts then come from
the elimination of a chain between them, and the laws within the parts from power steps (aggregation and
disaggregation, after Takahashi and after Koury, McAllister and Stewart).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._bridge_check import widened
from ._elimination import eliminate
from ._lazy_scores import Scores

if TYPE_CHECKING:
    from ._markov import Markov

__all__ = ["Found", "by_aggregation", "by_arnoldi", "by_products"]

Array = npt.NDArray[Any]
States = npt.NDArray[np.intp]

# The number of random vectors that show how fast the chain forgets its start.
_PROBES = 4
# The number of whole steps. If the chain has hardly forgotten anything by then, every further step is half a
# step (the mean of the law before and after it), because a periodic chain never settles in whole steps.
_PLAIN = 40
# Other methods are tried if the chain, at the rate observed, would need more further steps than this.
_PATIENCE = 200
# A chain that could also be eliminated is given up after this many steps, if it forgets slowly.
_HURRY = 16
# Random vectors show less than the chain remembers; this factor in the estimate of the error allows for it.
_SAFETY = 3.0
# The chain counts as having forgotten its start once the probes' spread has shrunk to this share.
_FORGOTTEN = 1e-6
# There are at most _PARTS parts. Values of a probe in two parts are a gap of at least _GAP apart, as a share
# of its range, and those within a part spread over at most _WITHIN.
_PARTS = 256
_GAP, _WITHIN = 1e-4, 1e-7
# After the last step of smoothing the parts are told apart by this gap, since the chain may move between them
# now and then. Their spread need not be small then: whether the chain forgets within them is measured.
_LAST_GAP = 0.1
_SMOOTHING = 120
# Rounds of aggregation, of four half steps each.
_ROUNDS = 500
# Restarts of Arnoldi's method, of some 38 products each.
_RESTARTS = 50
# Entries of float32 arrays that are converted to float64 at a time.
_WIDENED = 2**21


class Found(NamedTuple):
    """A law, the estimate of its L1 error, and the probes as the last step left them."""

    log_law: npt.NDArray[np.float64]
    error: float
    """2, the largest possible L1 error, when nothing is known"""
    probes: Array
    gap: float
    """the share of its memory of the start that the chain was seen to lose in one step"""


def by_products(
    P: Markov,
    members: States,
    tol: float,
    max_iter: int,
    n_threads: int | None,
    *,
    hurry: bool = False,
) -> Found:
    """Power steps until the law has settled and the probes show that the chain has forgotten its start.

    ``hurry``: give up early when the chain forgets slowly, because there is a better way.
    """
    n = P.shape[0]
    eps = float(np.finfo(P.dtype).eps)
    rho = np.zeros(n, P.dtype)
    rho[members] = 1 / len(members)
    probes = _probes(P, members)
    first = _range(probes[members])
    forgotten = max(_FORGOTTEN, 100 * eps * math.sqrt(n))
    memory = [1.0]
    total, previous, rate = 1.0, math.inf, 1.0
    half = False
    for k in range(max_iter):
        moved = P.apply_left(rho, n_threads=n_threads)
        residual = float(np.abs(moved.astype(np.float64) - rho).sum())
        if memory[-1] > forgotten:
            seen = P.apply(probes, n_threads=n_threads)
            probes = (seen + probes) / 2 if half else seen
            # Averages of random vectors over n states are about sqrt(n) smaller than their entries.
            memory.append(math.sqrt(n) * float((_range(probes[members]) / first).max()))
            total += min(1.0, memory[-1]) * (2 if half else 1)
            rate = _rate(memory)
        rho = _normalized((moved + rho) / 2 if half else moved, members, P.dtype)
        tail = 2 * memory[-1] * rate / (1 - rate) if rate < 1 else math.inf
        error = _SAFETY * max(residual, eps) * (total + tail)
        settled = residual <= 8 * eps or residual > 0.8 * previous  # no more decrease: rounding
        previous = residual
        if settled and memory[-1] <= forgotten and error <= tol:
            return Found(_log(rho), error, probes, 1.0)
        if hurry and k >= _HURRY and not _soon(memory[-1], rate, 3 * _HURRY):
            break
        if k >= _PLAIN + 8 and not _soon(memory[-1], rate, _PATIENCE):
            break
        if k == _PLAIN and not _soon(memory[-1], rate, _PATIENCE):
            half = True
    return Found(_log(rho), 2.0, probes, (1 - rate) * (2 if half else 1))


def _probes(P: Markov, members: States) -> Array:
    """Random vectors, 0 on all states that are not members."""
    out: Array = np.zeros((P.shape[0], _PROBES), P.dtype)
    out[members] = np.random.default_rng(0).standard_normal((len(members), _PROBES))
    return out


def _range(x: Array) -> Array:
    out: Array = x.max(axis=0).astype(np.float64) - x.min(axis=0)
    return out


def _rate(memory: list[float]) -> float:
    """The factor per step by which the memory shrank in the last five steps: 1 while nothing is forgotten."""
    if len(memory) < 6 or memory[-6] == 0:
        return 0.0 if memory[-1] == 0 else 1.0
    return min(1.0, float((memory[-1] / memory[-6]) ** 0.2))


def _soon(memory: float, rate: float, n_steps: int) -> bool:
    """Whether the chain will have forgotten its start after ``n_steps`` more steps at this rate."""
    return memory == 0 or memory * rate**n_steps <= _FORGOTTEN


def _normalized(rho: Array, members: States, dtype: np.dtype[Any]) -> Array:
    out = np.zeros(len(rho))
    out[members] = np.maximum(rho[members].real.astype(np.float64), 0.0)
    out /= out.sum()
    return out.astype(dtype)


def _log(rho: Array) -> npt.NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        out: npt.NDArray[np.float64] = np.log(rho.astype(np.float64))
    return out


# ---- parts that are hardly ever left -------------------------------------------------------------


def by_aggregation(
    P: Markov, members: States, start: Found, tol: float, max_iter: int, n_threads: int | None
) -> Found:
    """The law, from a chain between parts and the laws within them; ``start`` if there are no clear parts."""
    label = _parts(P, members, start.probes, min(max_iter, _SMOOTHING), n_threads)
    if label is None:
        return start
    n_parts = int(label.max()) + 1
    leaks = _leaks(P, members, label, n_parts, n_threads)
    eps = float(np.finfo(P.dtype).eps)
    within = np.exp(start.log_law[members]) + np.finfo(np.float64).tiny
    within /= np.bincount(label, within, n_parts)[label]
    log_mass = np.zeros(n_parts)
    probes = _probes(P, members)
    first = _range(probes[members])
    memory, changes = [1.0], [1.0]
    error = 2.0
    floor = 10 * eps * math.sqrt(len(members))
    forgotten = max(_FORGOTTEN, 100 * eps * math.sqrt(len(members)))
    for k in range(min(max_iter, _ROUNDS)):
        new_mass = _between(within, leaks, label, n_parts)
        if not np.isfinite(new_mass).all():  # the chain is a composition, and its leaks underflow
            return start
        rho = np.zeros(P.shape[0])
        rho[members] = within * np.exp(new_mass)[label]
        for _ in range(4):
            moved = P.apply_left(rho.astype(P.dtype), n_threads=n_threads).astype(np.float64)
            rho[members] = (moved[members] + rho[members]) / 2
            probes = (P.apply(probes, n_threads=n_threads) + probes) / 2
            probes[members] -= _averages(probes[members], within, label, n_parts)
        mass = np.bincount(label, rho[members], n_parts)
        alive = mass > 1e-290  # a part of less mass keeps its law of the last round
        new = np.where(alive[label], rho[members] / np.where(alive, mass, 1.0)[label], within)
        moved_within = float(np.bincount(label, np.abs(new - within), n_parts).max())
        moved_mass = float(np.abs(np.exp(new_mass) - np.exp(log_mass)).sum())
        log_mass, within = new_mass, new
        changes.append(moved_within + moved_mass)
        # What the chain remembers within the parts. A slow direction that the parts do not show stays in it.
        share = float((_range(probes[members]) / first).max())
        memory.append(min(1.0, math.sqrt(len(members)) * share))
        if memory[-1] > forgotten:
            if k >= 24 and not _soon(memory[-1], _rate(memory), _PATIENCE):
                break
            continue
        rate = _rate(memory)
        if changes[-1] > floor:
            rate = max(rate, _rate(changes))
        if rate < 1:
            error = min(2.0, max(changes[-1], floor) / (1 - rate))
        if changes[-1] <= floor or error <= floor:
            break
    log_law = np.full(P.shape[0], -np.inf)
    log_law[members] = _log(within) + _between(within, leaks, label, n_parts)[label]
    return Found(log_law, error, start.probes, start.gap)


def _averages(values: Array, within: Array, label: States, n_parts: int) -> Array:
    """The mean of each column over the part of each member, under the law within the part."""
    means = np.stack([np.bincount(label, within * v, n_parts) for v in values.T], axis=1)
    out: Array = means[label].astype(values.dtype)
    return out


def _parts(
    P: Markov, members: States, probes: Array, max_steps: int, n_threads: int | None
) -> States | None:
    """A number for the part of each member; None when the probes do not become constant on a few parts."""
    rounding = 1e5 * float(np.finfo(P.dtype).eps) / math.sqrt(len(members))
    for k in range(max_steps + 1):
        if k % 8 == 0 or k == max_steps:
            # Each column is rescaled to the range from 0 to 1, so that small remaining differences count.
            inside = probes[members].astype(np.float64)
            spread = _range(inside)
            if not (spread > 0).all():
                return None
            inside = (inside - inside.min(axis=0)) / spread
            label, n_parts = _by_gaps(inside, _GAP)
            if n_parts <= _PARTS and _largest_range(inside, label, n_parts) <= max(
                _WITHIN, rounding
            ):
                return label
            # Neither a constant added to a column nor a factor changes its parts; both prevent underflow.
            probes = probes - probes[members].mean(axis=0)
            probes = probes / np.abs(probes).max(axis=0)
        if k < max_steps:
            probes = (P.apply(probes, n_threads=n_threads) + probes) / 2
    label, n_parts = _by_gaps(inside, _LAST_GAP)
    return label if 1 < n_parts <= _PARTS else None


def _by_gaps(points: npt.NDArray[np.float64], gap: float) -> tuple[States, int]:
    """Labels of groups of points: two groups are separated by a larger gap than this in some coordinate."""
    keys = np.zeros(points.shape, np.intp)
    for c in range(points.shape[1]):
        order = np.argsort(points[:, c], kind="stable")
        jumps = np.diff(points[order, c], prepend=points[order[:1], c]) > gap
        keys[order, c] = np.cumsum(jumps)
    _, label = np.unique(keys, axis=0, return_inverse=True)
    label = label.reshape(-1)
    return label, int(label.max()) + 1


def _largest_range(points: npt.NDArray[np.float64], label: States, n_parts: int) -> float:
    """The largest spread of a coordinate within a part."""
    shape = (n_parts, points.shape[1])
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(low, label, points)
    np.maximum.at(high, label, points)
    return float((high - low).max())


def _between(
    within: npt.NDArray[np.float64], leaks: npt.NDArray[np.float64], label: States, n_parts: int
) -> npt.NDArray[np.float64]:
    """Logarithms of the masses of the parts, which are the stationary law of the chain between the parts."""
    rates = np.full((n_parts, n_parts), -np.inf)
    flow = leaks + _log(within)[:, None]
    for part in range(n_parts):
        rows = flow[label == part]
        top = rows.max(axis=0)
        top[~np.isfinite(top)] = 0
        with np.errstate(divide="ignore"):
            rates[part] = top + np.log(np.exp(rows - top).sum(axis=0))
    return eliminate(rates).log_law


def _leaks(
    P: Markov, members: States, label: States, n_parts: int, n_threads: int | None
) -> npt.NDArray[np.float64]:
    """Logarithms of the probability to go from each member to each part, (members, parts)."""
    steps: tuple[Any, ...] = P._steps()
    if len(steps) != 1:  # a composition has products only, no scores
        indicator = np.zeros((P.shape[0], n_parts), P.dtype)
        indicator[members, label] = 1
        return _log(P.apply(indicator, n_threads=n_threads))[members]
    s: Scores = steps[0].scores
    n = s.shape[0]
    out = np.empty((n, n_parts))
    # Matrices of float32 scores are converted to float64 some rows at a time, because differences of float32
    # logarithms would lose digits.
    whole = s.dtype == np.float64 or not s.terms.dense or s.terms.offsets is not None
    height = n if whole else max(1, _WIDENED // n)
    for first in range(0, n, height):
        rows = widened(s if height >= n else s.rows(first, min(n, first + height)))
        for part in range(n_parts):
            chosen = _columns(rows, members[label == part])
            out[first : first + height, part] = chosen.logsumexp(n_threads=n_threads)
        out[first : first + height] -= rows.logsumexp(n_threads=n_threads)[:, None]
    return out[members]


def _columns(s: Scores, columns: States) -> Scores:
    """The scores of some columns. From points without masks the others are left out, else they are masked."""
    n, m = s.shape
    banded = s.terms.hides(n, m)
    if s.terms.dense or s.terms.masks or s.terms.offsets is not None or banded:
        keep = np.zeros(m, bool)
        keep[columns] = True
        return s.key_padding(keep)
    return s.columns(columns)


# ---- Arnoldi -------------------------------------------------------------------------------------


def by_arnoldi(
    P: Markov, members: States, start: Found, tol: float, max_iter: int, n_threads: int | None
) -> Found:
    """Arnoldi's method on the transposed operator, for chains that mix slowly without having parts.

    The error is ten times the residual, divided by the distance of the second eigenvalue found from 1.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    n = P.shape[0]
    eps = float(np.finfo(P.dtype).eps)
    step = LinearOperator(
        (n, n), matvec=lambda x: P.apply_left(x, n_threads=n_threads), dtype=P.dtype
    )
    # Arnoldi's method starts from a random vector and not from the law of the power steps, because that may
    # have almost no share in the slow directions, which the method has to find.
    guess = np.zeros(n, P.dtype)
    guess[members] = np.random.default_rng(1).random(len(members))
    values: Array
    vectors: Array
    try:
        # The rightmost eigenvalues are wanted, not the largest: a periodic chain has others of modulus 1.
        values, vectors = eigs(
            step,
            k=2,
            which="LR",
            v0=guess,
            maxiter=min(max_iter, _RESTARTS),
            tol=0,
            ncv=min(n, 40),
        )
    except ArpackNoConvergence as stopped:
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
    if len(values) < 2:
        return start
    first = int(np.argmin(np.abs(values - 1)))
    gap = float(np.abs(1 - np.delete(values, first)).min())
    found: Array = vectors[:, first]
    found = found * np.exp(-1j * np.angle(found[np.argmax(np.abs(found))]))
    best = _normalized(found, members, P.dtype)
    residual = _residual(P, best, n_threads)
    for _ in range(10):  # power steps remove the rest of the fast modes
        moved = _normalized(P.apply_left(best, n_threads=n_threads), members, P.dtype)
        after = _residual(P, moved, n_threads)
        if after >= residual:
            break
        best, residual = moved, after
    # If the chain was seen to forget more slowly than these eigenvalues explain, there are eigenvalues nearer
    # to 1 that were not found, and the estimate of the error would be wrong.
    believed = 3 * start.gap >= gap > 0
    error = min(2.0, 10 * max(residual, eps) / gap) if believed else 2.0
    return Found(_log(best), error, start.probes, start.gap)


def _residual(P: Markov, rho: Array, n_threads: int | None) -> float:
    moved = P.apply_left(rho, n_threads=n_threads)
    return float(np.abs(moved.astype(np.float64) - rho).sum())
