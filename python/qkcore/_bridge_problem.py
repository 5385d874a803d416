"""The arguments of a bridge, checked: marginals, penalties, starting potentials and limits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _checks, _pieces
from ._bridge_check import Conditions, block_sums
from ._bridge_kernels import BridgeKernel, ScoresKernel
from ._bridge_result import SchrodingerBridge
from ._lazy_scores import Real, Scores

TOLERANCES = {4: 1e-5, 8: 1e-9}

Init = SchrodingerBridge | tuple[npt.ArrayLike, npt.ArrayLike] | None


class Problem(NamedTuple):
    kernel: BridgeKernel
    mu: Real
    nu: Real
    tol: float
    max_iter: int
    max_visits: int
    row_penalty: float = math.inf
    col_penalty: float = math.inf
    n_threads: int = 1

    @property
    def s(self) -> Scores:
        """The scores of a kernel that has them."""
        assert isinstance(self.kernel, ScoresKernel)
        return self.kernel.scores

    @property
    def penalty(self) -> tuple[float, float]:
        return self.row_penalty, self.col_penalty

    @property
    def balanced(self) -> bool:
        return all(map(math.isinf, self.penalty))

    @property
    def conditions(self) -> tuple[Conditions, Conditions]:
        return Conditions(self.mu, self.row_penalty), Conditions(self.nu, self.col_penalty)


def _gauge(f: Real, g: Real, nu: Real) -> tuple[Real, Real]:
    """Potentials shifted so that sum_j nu_j g_j = 0."""
    # One product is enough if every potential is finite; a weight of 0 times an infinite potential is NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        moment = float(_pieces.total(lambda w, x: np.dot(w.astype(np.float64), x), nu, g))
    if not math.isfinite(moment):
        found = _live_moment(nu, g)
        if found is None:
            return f, g
        moment = found
    mean = moment / _checks.mass(nu)
    return _pieces.mapped(lambda x: x + mean, f), _pieces.mapped(lambda x: x - mean, g)


def _live_moment(nu: Real, g: Real) -> float | None:
    """sum_j nu_j g_j over the columns with weight; None if one of their potentials is not finite."""
    moment = 0.0
    for weights, potential in _pieces.pieces(nu, g):
        live = weights > 0
        if not live.all():
            weights, potential = weights[live], potential[live]
        if not np.isfinite(potential).all():
            return None
        moment += float((weights.astype(np.float64) * potential).sum())
    return moment


def _marginal(name: str, value: npt.ArrayLike, s: Scores | BridgeKernel, side: int) -> Real:
    array = _checks.converted(name, value, s.dtype, "the kernel")
    what = "rows" if side == 0 else "columns"
    length = s.shape[side - 2]
    if isinstance(s, BridgeKernel) and not isinstance(s, ScoresKernel):
        _checks.shape(name, array.shape, (length,), why=f"as the {what} of the kernel")
    _checks.core_shape(name, array.shape, (length,), f"as the {what} of the kernel")
    if array.ndim > 1:
        _checks.into_batch(name, array.shape, array.shape[:-1], s.batch)
    _checks.masses(name, array)
    return array


def uniform_marginals(s: Scores, mu: Any, nu: Any) -> tuple[Any, Any]:
    """Equal weights for a marginal that the caller left out, with the mass of the other marginal, or 1."""
    if mu is not None and nu is not None:
        return mu, nu
    b, offsets = s.backend, s.terms.offsets
    if mu is None and nu is None:
        both = zip(s.shape[-2:], offsets or (None, None), strict=True)
        mu, nu = (b.give(b.from_host(_uniform(n, cuts, 1.0, s.dtype))) for n, cuts in both)
        return mu, nu
    side = 0 if nu is None else 1
    name, given = ("mu", mu) if nu is None else ("nu", nu)
    ((array, _),) = b.vectors(s.dtype, s.batch, (name, given, s.shape[side - 2]))
    weights = b.to_host(array)
    cuts, others = (None, None) if offsets is None else (offsets[side], offsets[1 - side])
    if cuts is None:
        mass = _pieces.total(lambda w: w.sum(axis=-1, dtype=np.float64), weights)
    else:
        mass = block_sums(weights, cuts)
    found = b.give(b.from_host(_uniform(s.shape[-1 - side], others, mass, s.dtype)))
    return (mu, found) if nu is None else (found, nu)


def _uniform(n: int, cuts: Any, mass: Any, dtype: np.dtype[Any]) -> Real:
    """Equal weights of this total mass for n entries, or for the entries of each block between cuts."""
    if cuts is None:
        each = np.asarray(mass)[..., None] / n
        every = np.broadcast_to(each, (*each.shape[:-1], n))
        return _pieces.mapped(lambda x: x.astype(dtype, order="C"), every)
    sizes = np.diff(cuts)
    each = np.broadcast_to(mass, sizes.shape) / np.maximum(sizes, 1)
    return np.repeat(each, sizes).astype(dtype)


def _same_mass(p: Problem) -> None:
    """Both marginals of every problem must have the same total."""
    offsets = p.s.terms.offsets if isinstance(p.kernel, ScoresKernel) else None
    if offsets is not None:
        masses = [block_sums(w, cuts) for w, cuts in zip((p.mu, p.nu), offsets, strict=True)]
    else:
        masses = [
            _pieces.total(lambda w: w.sum(axis=-1, dtype=np.float64), w) for w in (p.mu, p.nu)
        ]
    _compare_masses(masses, max(p.kernel.shape[-2:]), p.mu.dtype)


def _compare_masses(masses: list[Real], n: int, dtype: np.dtype[Any]) -> None:
    rows, columns = masses
    off = np.abs(rows - columns) > _checks.mass_slack(n, dtype) * np.abs(rows)
    if np.any(off):
        at = int(np.argmax(np.ravel(off)))
        a, b = (float(np.ravel(x)[at]) for x in np.broadcast_arrays(rows, columns))
        raise ValueError(
            f"nu: wanted the total mass of mu, {a:.6g}, got {b:.6g}, which is off by {abs(a - b) / a:.2g} of "
            "it; divide both by their sums in the dtype of the scores, or pass penalty= for marginals that "
            "need not be met"
        )


def _is_symmetric(p: Problem) -> bool:
    return p.balanced and p.kernel.symmetric and np.array_equal(p.mu, p.nu)


def limits(max_iter: object, max_visits: object) -> tuple[int, int]:
    """The most iterations and the most visits; by default 10 000 visits, or max_iter if that is more."""
    most = _checks.count("max_iter", max_iter)
    return most, max(most, 10_000) if max_visits is None else _checks.count(
        "max_visits", max_visits
    )


def penalties(penalty: float | tuple[float, float] | None) -> tuple[float, float]:
    if penalty is None:
        return math.inf, math.inf
    pair = penalty if isinstance(penalty, tuple) else (penalty, penalty)
    if len(pair) != 2:
        raise ValueError(f"penalty: wanted one weight or two (rows, columns), got {len(pair)}")
    return _penalty(pair[0]), _penalty(pair[1])


def _penalty(value: object) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"penalty: wanted weights > 0 (inf: a constraint), got {value!r}")
    return _checks.positive("penalty", value)


def memory_limit(max_memory: float | None) -> float | None:
    if max_memory is None or (isinstance(max_memory, (int, float)) and max_memory >= 0):
        return max_memory
    raise ValueError(f"max_memory: wanted a number of bytes, 0 or more, got {max_memory!r}")


def _start(init: Any, kernel: BridgeKernel) -> tuple[Real, Real]:
    """Potentials to start from, in float64: zeros, or those of an earlier result or a pair."""
    sizes = kernel.shape[-2:]
    if init is None:
        return np.zeros(sizes[0]), np.zeros(sizes[1])
    pair = (init.f, init.g) if hasattr(init, "f") and hasattr(init, "g") else init
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"init: wanted an earlier result or a pair (f, g), got {type(init).__name__}"
        )

    def begin(x: Real) -> Real:
        # A row that had no mass in an earlier solve starts from 0: a potential of -inf would never change.
        return _pieces.mapped(lambda x: np.where(np.isneginf(x), 0.0, x).astype(np.float64), x)

    out = []
    for name, value, size in zip(("init f", "init g"), pair, sizes, strict=True):
        if isinstance(kernel, ScoresKernel):
            ((array, _),) = kernel.scores.backend.vectors(
                kernel.dtype, kernel.batch, (name, value, size)
            )
        else:
            array = _checks.real_array(name, value)
            _checks.shape(name, array.shape, (size,))
            _checks.finite(name, array, minus_inf=True)
        out.append(begin(array))
    return out[0], out[1]
