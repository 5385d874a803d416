"""The stationary law of an irreducible chain by elimination, from the logarithms of its probabilities.

The method of Grassmann, Taksar and Heyman: states are taken out of the chain one after the other, and the
paths through a state that is taken out are added to the direct transitions. Nothing is subtracted, and the
diagonal is never read. So every entry of the law has a small relative error, even if the chain nearly falls
apart: a chain that leaves a block of states once in e^600 steps is no harder than any other.

Each row is divided by a scale, whose logarithm is kept, so that the exits of a state that is hardly ever left
are ordinary numbers too. The effect of numbers that are still too small for a double is bounded during the
elimination, and the bound is returned.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Eliminated", "eliminate"]

Array = npt.NDArray[np.float64]

# This many states are taken out together; the rest of the matrix is then updated once for all of them.
_PANEL = 48
# The most multiplications in one call of NumPy, some 20 ms, because Ctrl-C is seen only between calls.
_FLOPS = 1e8
# The most entries for one call of exp, log or max, for the same reason.
_ENTRIES = 1_000_000
# A product below this number may have been rounded to 0 or have lost digits.
_TINY = 2 * float(np.finfo(np.float64).tiny)
# A chain of at most this many states is eliminated in logarithms if its numbers do not fit into doubles.
_LOGARITHMIC = 600
# That is done if underflow may have changed an entry, or the whole law, by more than this share.
_LOST = 1e-11


class Eliminated(NamedTuple):
    """The logarithms of a law, and a bound on the error that underflow can have caused."""

    log_law: Array
    error: float
    """a bound on the L1 error by underflow; rounding adds about eps times the number of states"""


def eliminate(log_rates: Array, *, in_logarithms: bool = False) -> Eliminated:
    """The law of the irreducible chain with probabilities exp(log_rates), (n, n); the diagonal is not read.

    Rows need not sum to 1: a row that is multiplied by c divides the law of its state by c. ``log_rates`` is
    overwritten. ``in_logarithms``: compute with logarithms for every size; by default only small chains that
    need it do.
    """
    n = len(log_rates)
    if n == 1:
        return Eliminated(np.zeros(1), 0.0)
    np.fill_diagonal(log_rates, -np.inf)
    if in_logarithms:
        return Eliminated(_in_logarithms(log_rates), 0.0)
    # The elimination in doubles overwrites its argument, so a chain that may need logarithms is copied.
    copy = log_rates.copy() if n <= _LOGARITHMIC else None
    with np.errstate(all="ignore"):  # the bounds include overflow and underflow
        found, relative = _in_doubles(log_rates)
    if copy is not None and not (found.error <= _LOST and relative <= _LOST):
        return Eliminated(_in_logarithms(copy), 0.0)
    return found


# ---- in doubles, a panel of states at a time -----------------------------------------------------


def _in_doubles(a: Array) -> tuple[Eliminated, float]:
    """The law, and a bound on the relative change of an entry by underflow (inf: one may be lost)."""
    n = len(a)
    scale = np.empty(n)
    # For each row a bound on the change of its entries by underflow, in units of the row's scale.
    small = np.zeros(n)
    for rows in _row_blocks(n, n):
        block = a[rows]
        scale[rows] = block.max(axis=1)
        block -= scale[rows, None]
        small[rows] = _TINY * ((block < -700) & np.isfinite(block)).any(axis=1)
        np.exp(block, out=block)
    kept: list[tuple[int, int, Array, Array, Array]] = []
    high = n
    while high > 1:
        low = max(1, high - _PANEL)
        if high < n and not _rescale(a, high, scale, small):
            return Eliminated(np.full(n, math.nan), math.inf), math.inf
        out = _panel(a, low, high, small)
        if not (out > 0).all():  # all exits of a state have underflowed
            return Eliminated(np.full(n, math.nan), math.inf), math.inf
        kept.append((low, high, scale[:high].copy(), small[:high].copy(), out))
        left, right = a[:low, low:high], a[low:high, :low]
        for rows in _row_blocks(low, 2 * low * (high - low), _FLOPS):
            a[rows, :low] += left[rows] @ right
        high = low
    return _substitute(a, kept)


def _row_blocks(n: int, per_row: int, limit: float = _ENTRIES) -> list[slice]:
    height = max(1, int(limit // max(1, per_row)))
    return [slice(i, min(n, i + height)) for i in range(0, n, height)]


def _rescale(a: Array, high: int, scale: Array, small: Array) -> bool:
    """Rescales rows whose entries have become very small or large; False if all entries of a row are 0."""
    for rows in _row_blocks(high, high):
        block = a[rows, :high]
        index = np.arange(rows.start, rows.stop)
        block[index - rows.start, index] = 0.0  # returns to the state itself do not count
        top = block.max(axis=1)
        if not top.all():
            return False
        far = (top < 1e-30) | (top > 1e30)
        if far.any():
            exponent = np.frexp(top[far])[1]
            block[far] = np.ldexp(block[far], -exponent[:, None])
            small[index[far]] = np.ldexp(small[index[far]], -exponent)
            scale[index[far]] += exponent * math.log(2.0)
    return True


def _panel(a: Array, low: int, high: int, small: Array) -> Array:
    """Takes out the states high-1, ..., low; returns the total rate from each of them to states below it.

    Column k then holds a[i, k] / out[k]: the rates into state k, divided by this total rate out of it.
    """
    out = np.zeros(high - low)
    for k in range(high - 1, low - 1, -1):
        if k + 1 < high:
            a[k, :k] += a[k, k + 1 : high] @ a[k + 1 : high, :k]
            a[:k, k] += a[:k, k + 1 : high] @ a[k + 1 : high, k]
        leaving = float(a[k, :k].sum())
        out[k - low] = leaving
        if not leaving > 0:
            break
        a[:k, k] /= leaving
        small[:k] += a[:k, k] * small[k] + _TINY
    return out


def _substitute(
    a: Array, kept: list[tuple[int, int, Array, Array, Array]]
) -> tuple[Eliminated, float]:
    """The law, computed from state 0 upwards, and the bounds on the change of it by underflow.

    ``log_most`` is an upper bound of the law that includes all mass that underflow can have removed.
    """
    n = len(a)
    log_law, log_most = np.zeros(n), np.zeros(n)
    for low, high, scale, small, out in reversed(kept):
        for k in range(low, high):
            leaving = out[k - low]
            shares = a[:k, k]
            lost = small[:k] / leaving
            doubt = k * small[k] / leaving
            log_law[k] = _log_sum(log_law[:k] + scale[:k] + np.log(shares)) - scale[k]
            if lost.any() or doubt:
                most = _log_sum(log_most[:k] + scale[:k] + np.log(shares + lost)) - scale[k]
                log_most[k] = most - np.log1p(-doubt) if doubt < 1 else math.inf
            else:
                log_most[k] = _log_sum(log_most[:k] + scale[:k] + np.log(shares)) - scale[k]
    relative = float(np.expm1(np.max(log_most - log_law)))
    total = _log_sum(log_law)
    error = float(np.expm1(_log_sum(log_most) - total))
    if math.isnan(relative) or math.isnan(error):
        relative = error = math.inf
    return Eliminated(log_law - total, 2 * error), relative


def _log_sum(x: Any) -> float:
    top = float(np.max(x))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.exp(x - top).sum()))


# ---- in logarithms, for chains whose numbers exceed the range of doubles -------------------------


def _in_logarithms(a: Array) -> Array:
    """The same elimination with logarithms: about 50 times slower, but no number is too small for it."""
    n = len(a)
    out = np.zeros(n)
    for k in range(n - 1, 0, -1):
        out[k] = _log_sum(a[k, :k])
        a[:k, k] -= out[k]
        for rows in _row_blocks(k, k):
            np.logaddexp(a[rows, :k], a[rows, k, None] + a[k, :k], out=a[rows, :k])
    log_law = np.zeros(n)
    for k in range(1, n):
        log_law[k] = _log_sum(log_law[:k] + a[:k, k])
    return np.asarray(log_law - _log_sum(log_law))
