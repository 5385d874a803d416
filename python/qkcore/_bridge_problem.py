"""What a bridge is asked for, checked: marginals, penalties, starting potentials; and its errors."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks
from ._bridge_result import SchrodingerBridge
from ._lazy_scores import Real, Scores
from ._score_masks import UNBOUNDED

_TOL = {4: 1e-5, 8: 1e-9}
# Entries of kernels from points are stored up to this many bytes; a dense kernel may be stored again.
_STORED_BYTES = 256 * 2**20

Init = SchrodingerBridge | tuple[npt.ArrayLike, npt.ArrayLike] | None


class _Problem(NamedTuple):
    s: Scores
    mu: Real
    nu: Real
    tol: float
    max_iter: int
    row_penalty: float
    col_penalty: float
    stored: bool
    n_threads: int

    @property
    def balanced(self) -> bool:
        return math.isinf(self.row_penalty) and math.isinf(self.col_penalty)

    def dampings(self) -> tuple[float, float]:
        """The fraction of a full update that a KL penalty leaves: p / (1 + p)."""
        return tuple(  # type: ignore[return-value]
            1.0 if math.isinf(p) else p / (1 + p) for p in (self.row_penalty, self.col_penalty)
        )


def _gauge(f: Real, g: Real, nu: Real) -> tuple[Real, Real]:
    """Potentials shifted so that sum_j nu_j g_j = 0."""
    live = nu > 0
    if not np.isfinite(g[live]).all():
        return f, g
    mean = float(np.sum(nu[live].astype(np.float64) * g[live]) / np.sum(nu, dtype=np.float64))
    return f + mean, g - mean


def _wanted(potential: Real, weight: Real, penalty: float) -> Real:
    """The marginal of the solution: the weight, or with a KL penalty weight * exp(-potential / penalty)."""
    wanted = weight.astype(np.float64)
    if math.isinf(penalty):
        return wanted
    with np.errstate(over="ignore", invalid="ignore"):
        tilt = np.exp(-potential.astype(np.float64) / penalty)
        return np.where(wanted > 0, wanted * tilt, 0.0)


def _check(p: _Problem, f: Real, g: Real) -> tuple[float, float]:
    """L1 and worst relative error of the conditions on the marginals of exp(f + s + g)."""
    error = worst = 0.0
    sums = p.s.marginals(f, g, n_threads=p.n_threads)
    sides = ((f, p.mu, p.row_penalty), (g, p.nu, p.col_penalty))
    for got, (potential, weight, strength) in zip(sums, sides, strict=True):
        wanted = _wanted(potential, weight, strength)
        off = np.abs(got.astype(np.float64) - wanted)
        live = wanted > 0
        error = max(error, float(off.sum()))
        if live.any():
            worst = max(worst, float((off[live] / wanted[live]).max()))
    return (error, worst) if math.isfinite(error) else (math.inf, math.inf)


def _marginal_errors(sums: Real, wanted: Real, cuts: npt.NDArray[np.int64] | None) -> Real:
    """L1 and worst relative errors of each problem's marginal, (2, problems)."""
    off = np.abs(sums.astype(np.float64) - wanted)
    relative = np.divide(off, wanted, out=np.zeros_like(off), where=wanted > 0)
    if cuts is None:
        length = off.shape[-1]
        return np.stack([off.reshape(-1, length).sum(-1), relative.reshape(-1, length).max(-1)])
    out = np.zeros((2, len(cuts) - 1))
    for k, (first, end) in enumerate(pairwise(cuts)):
        out[:, k] = off[first:end].sum(), relative[first:end].max(initial=0.0)
    return out


def _marginal(name: str, value: npt.ArrayLike, s: Scores, side: int) -> Real:
    array = _checks.real_array(name, value)
    _checks.same_dtype(name, array, s.dtype, "the kernel")
    what = "rows" if side == 0 else "columns"
    length = s.shape[side - 2]
    _checks.core_shape(name, array.shape, (length,), f"as the {what} of the kernel")
    if array.ndim > 1:
        _checks.into_batch(name, array.shape, array.shape[:-1], s._batch)
    _checks.masses(name, array)
    return array


def _block_sums(w: Real, cuts: npt.NDArray[np.int64]) -> Real:
    """Sums of the blocks; reduceat gives an empty one the entry that follows it, so those stay out."""
    sums = np.zeros(len(cuts) - 1)
    live = np.flatnonzero(np.diff(cuts))
    sums[live] = np.add.reduceat(w.astype(np.float64), cuts[live])
    return sums


def _same_mass(p: _Problem) -> None:
    """Both marginals of every problem must have the same total."""
    if p.s._offsets is not None:
        masses = [_block_sums(w, cuts) for w, cuts in zip((p.mu, p.nu), p.s._offsets, strict=True)]
    else:
        masses = [w.sum(axis=-1, dtype=np.float64) for w in (p.mu, p.nu)]
    slack = 16 * math.sqrt(max(p.s.shape[-2:])) * float(np.finfo(p.s.dtype).eps)
    off = np.abs(masses[0] - masses[1]) > slack * np.abs(masses[0])
    if np.any(off):
        at = int(np.argmax(np.ravel(off)))
        a, b = (float(np.ravel(np.broadcast_arrays(*masses)[k])[at]) for k in (0, 1))
        raise ValueError(
            f"nu: wanted the total mass of mu, {a:.6g}, got {b:.6g}; divide both by their sums, or "
            "pass penalty= for marginals that need not be met"
        )


def _is_symmetric(p: _Problem) -> bool:
    return p.balanced and p.s._symmetric and np.array_equal(p.mu, p.nu)


def _band_only(s: Scores) -> bool:
    lo, hi = s._band
    return (lo, hi) != (-UNBOUNDED, UNBOUNDED) and not (s._masks or s._dense)


def _at_least_one(name: str, value: object) -> int:
    number = _checks.integer(name, value)
    if number < 1:
        raise ValueError(f"{name}: wanted at least 1, got {value}")
    return number


def _penalties(penalty: float | tuple[float, float] | None) -> tuple[float, float]:
    if penalty is None:
        return math.inf, math.inf
    pair = penalty if isinstance(penalty, tuple) else (penalty, penalty)
    if len(pair) != 2:
        raise ValueError(f"penalty: wanted one weight or two (rows, columns), got {len(pair)}")
    for value in pair:
        if not (isinstance(value, (int, float)) and value > 0):
            raise ValueError(f"penalty: wanted weights > 0 (inf: a constraint), got {value!r}")
    return float(pair[0]), float(pair[1])


def _stored(s: Scores, max_memory: float | None) -> bool:
    entries = math.prod(s.shape[-2:])
    if s._offsets is not None:
        rows, cols = (np.diff(cuts) for cuts in s._offsets)
        entries = int((rows * cols).max(initial=0))
    size = entries * s.dtype.itemsize
    if max_memory is None:
        return bool(s._dense) or size <= _STORED_BYTES
    if not (isinstance(max_memory, (int, float)) and max_memory >= 0):
        raise ValueError(f"max_memory: wanted a number of bytes, 0 or more, got {max_memory!r}")
    return size <= max_memory


def _start(init: Init, s: Scores) -> tuple[Real, Real]:
    if init is None:
        return np.zeros(s.shape[-2]), np.zeros(s.shape[-1])
    pair = (init.f, init.g) if isinstance(init, SchrodingerBridge) else init
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"init: wanted an earlier result or a pair (f, g), got {type(init).__name__}"
        )
    f, _ = s._bias("init f", pair[0], s.shape[-2])
    g, _ = s._bias("init g", pair[1], s.shape[-1])
    # A row that had no mass earlier starts from nothing, not from -inf for ever.
    return tuple(np.where(np.isneginf(x), 0.0, x).astype(np.float64) for x in (f, g))  # type: ignore[return-value]
