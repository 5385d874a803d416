"""The stationary law of a chain, in logarithms and with an estimate of its error.

A small residual |rho P - rho| proves nothing about a chain that nearly falls apart, because any mixture of
the laws of its parts has a small residual. So laws are computed by elimination, which needs no such test, or
by products together with a measurement of how fast the chain forgets its start, which turns a residual into
an error.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._aggregation import Found, by_aggregation, by_arnoldi, by_products
from ._bridge_check import widened
from ._classes import Classes, find_classes
from ._elimination import eliminate

if TYPE_CHECKING:
    from ._markov import Markov

__all__ = [
    "DIRECT",
    "ELIMINATED",
    "Law",
    "ReducibleChainError",
    "log_probabilities",
    "stationary_law",
]

Array = npt.NDArray[np.float64]

# Up to this many states a chain is eliminated at once. It needs 8 N^2 bytes, here 34 MB, and is as fast as
# products.
DIRECT = 2048
# Up to this many states a chain is eliminated if products do not show that the law is accurate. It needs up
# to 134 MB, and some seconds.
ELIMINATED = 4096
# If the measured spectral gap is at least this, Arnoldi's method is tried before aggregation.
_ARNOLDI = 5e-4
# The array of log probabilities is computed this many entries at a time; Ctrl-C takes effect in between.
_ENTRIES = 1_000_000


class ReducibleChainError(ValueError):
    """The chain has several closed classes of states, so its stationary law is not unique."""


class Law(NamedTuple):
    """A stationary law and what is known about it."""

    log_law: Array
    """logarithms of the probabilities; -inf for states to which the chain does not return"""
    error: float
    """an estimate of the L1 error"""
    wanted: float
    """the error that was asked for"""
    classes: Classes

    @property
    def trusted(self) -> bool:
        """Whether the error is at most the error that was asked for."""
        return self.error <= self.wanted


def stationary_law(P: Markov, tol: float, max_iter: int, n_threads: int | None) -> Law:
    """The law of a row-stochastic chain without empty rows, to an L1 error of ``tol`` where possible."""
    classes = find_classes(P, n_threads)
    _refuse_several(P, classes)
    n = P.shape[0]
    members = classes.closed[0]
    known = _known_law(P, n_threads)
    if known is not None:
        return Law(known[0], known[1], max(tol, known[1]), classes)
    if len(members) == 1:
        return Law(_spread_out(np.zeros(1), members, n), 0.0, tol, classes)
    steps = P._steps()
    chain = steps[0] if all(step is steps[0] for step in steps) else P  # A^t has the law of A
    direct = len(members) <= DIRECT and n <= ELIMINATED
    law = _eliminated(chain, classes, tol, n_threads) if direct else None
    if law is not None and law.trusted:
        return law
    wide = _widened(chain)
    found = by_products(wide, members, tol, max_iter, n_threads, hurry=n <= ELIMINATED)
    if found.error > tol and not direct and n <= ELIMINATED:
        law = _eliminated(chain, classes, tol, n_threads)
        if law.trusted:
            return law
    # Here there are too many states for an array, or numbers too small for doubles. The error of Arnoldi's
    # method is the rounding error divided by the gap, so with a small gap aggregation is tried first.
    methods = [by_aggregation] if direct else [by_aggregation, by_arnoldi]
    if found.gap >= _ARNOLDI:
        methods.reverse()
    for method in methods:
        if found.error > tol:
            better = method(wide, members, found, tol, max_iter, n_threads)
            found = min(found, better, key=_error)
    if found.error > tol and direct:
        return _eliminated(chain, classes, tol, n_threads, in_logarithms=True)
    return Law(found.log_law, found.error, tol, classes)


def _error(found: Found) -> float:
    return found.error


def _refuse_several(P: Markov, classes: Classes) -> None:
    if not len(classes.apart):
        return
    target = int(classes.closed[0][0])
    if len(classes.closed) > 1:
        how_many = f"at least two closed classes ({len(classes.closed)} in all)"
    else:
        how_many = "at least two closed classes"
    raise ReducibleChainError(
        f"stationary: the chain is reducible: from {len(classes.apart)} of its {P.shape[0]} states (e.g. "
        f"{int(classes.apart[0])}) there is no way to state {target}, so it has {how_many} and no unique "
        "stationary law; treat the classes as chains of their own, or pass rho= to functions that take a law"
    )


def _spread_out(log_law: Array, members: npt.NDArray[np.intp], n: int) -> Array:
    out = np.full(n, -np.inf)
    out[members] = log_law
    return out


def _known_law(P: Markov, n_threads: int | None) -> tuple[Array, float] | None:
    """The law and its error where a formula gives them: bistochastic chains, symmetric scores (DAC eq 19)."""
    n = P.shape[0]
    if P.bistochastic:
        return np.full(n, -math.log(n)), P._marginal_error
    steps: tuple[Any, ...] = P._steps()
    if not steps or any(step is not steps[0] for step in steps) or not steps[0].scores.symmetric:
        return None
    log_law: Array = steps[0]._log_row_sums()
    return log_law - math.log(float(np.exp(log_law).sum())), 0.0


def _eliminated(
    P: Markov,
    classes: Classes,
    tol: float,
    n_threads: int | None,
    *,
    in_logarithms: bool = False,
) -> Law:
    n = P.shape[0]
    members = classes.closed[0]
    log_p = log_probabilities(P, n_threads)
    if len(members) < n:
        log_p = log_p[np.ix_(members, members)]
    found = eliminate(log_p, in_logarithms=in_logarithms)
    # The bound on rounding: each eliminated state costs about two operations, and none of them cancels.
    rounding = 2 * len(members) * float(np.finfo(np.float64).eps)
    log_law = _spread_out(found.log_law, members, n)
    return Law(log_law, found.error + rounding, max(tol, rounding), classes)


def _widened(P: Markov) -> Markov:
    """The chain in float64, unless that would copy large arrays of scores."""
    if P.dtype == np.float64:
        return P
    steps = P._steps()
    if P.shape[0] > ELIMINATED and any(step.scores.terms.dense for step in steps):
        return P
    return P._in_float64()


# ---- probabilities in logarithms -----------------------------------------------------------------


def log_probabilities(P: Markov, n_threads: int | None = None) -> Array:
    """log P (N, N) in float64, from the scores, so that nothing underflows even if P is in float32."""
    steps = P._steps()
    out = _log_step(steps[0], n_threads)
    for step in steps[1:]:
        out = _log_product(out, _log_step(step, n_threads))
    return out


def _log_step(step: Any, n_threads: int | None) -> Array:
    s = step.scores
    n, m = s.shape
    height = n if s.terms.offsets is not None else max(1, _ENTRIES // m)
    out = np.empty((n, m))
    for first in range(0, n, height):
        rows = s if height >= n else s.rows(first, min(n, first + height))
        out[first : first + height] = widened(rows).to_numpy(n_threads=n_threads)
    for first in range(0, n, max(1, _ENTRIES // m)):
        block = out[first : first + max(1, _ENTRIES // m)]
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, keepdims=True))
    return out


def _log_product(a: Array, b: Array) -> Array:
    """log(exp(a) exp(b)), where each column of b is scaled by its own maximum before the product."""
    out = np.empty((len(a), b.shape[1]))
    top = b.max(axis=0)
    top[~np.isfinite(top)] = 0
    least = min(_least(a), _least(b - top))
    if least < -600 and a.shape[1] * out.size <= 1e8:  # some of these products would underflow
        for i in range(len(a)):
            with np.errstate(divide="ignore"):
                terms = a[i][:, None] + b
                largest = terms.max(axis=0)
                largest[~np.isfinite(largest)] = 0
                out[i] = largest + np.log(np.exp(terms - largest).sum(axis=0))
        return out
    right = np.exp(b - top)
    height = max(1, int(1e8 // max(1, 2 * b.size)))  # Ctrl-C takes effect only between products
    for first in range(0, len(a), height):
        with np.errstate(divide="ignore"):
            out[first : first + height] = np.log(np.exp(a[first : first + height]) @ right) + top
    return out


def _least(a: Array) -> float:
    return float(a.min(initial=0.0, where=np.isfinite(a)))
