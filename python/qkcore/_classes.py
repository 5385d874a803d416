"""The closed classes of a chain, and the states that lead to a state, found from scores.

A transition exists if its score is not -inf, however small its probability is. So a weight that underflows to
0 does not remove a transition.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ._lazy_scores import Scores
    from ._markov import Markov

__all__ = ["Classes", "find_classes", "leads_to"]

Flags = npt.NDArray[np.bool_]
States = npt.NDArray[np.intp]

# Up to this many states the transitions of a masked chain are stored as an array of booleans.
ARRAY = 4096
# Tempered scores lie between minus and plus this, so that none of their weights underflows.
_MILD = 20.0


class Classes(NamedTuple):
    """Closed classes: sets of states that the chain does not leave, and in which it reaches every state."""

    closed: tuple[States, ...]
    """all closed classes; for masked chains too large for an array only one of them"""
    apart: States
    """states from which the first closed class cannot be reached: none if and only if it is the only one"""


@overload
def find_classes(P: Markov, n_threads: int | None = None) -> Classes: ...
@overload
def find_classes(
    P: Markov, n_threads: int | None = None, *, within_array: bool
) -> Classes | None: ...
def find_classes(
    P: Markov, n_threads: int | None = None, *, within_array: bool = False
) -> Classes | None:
    """The closed classes of a row-stochastic chain without empty rows.

    ``within_array``: return None for masked chains so large that finding the classes takes many products.
    """
    n = P.shape[0]
    none = np.zeros(0, np.intp)
    if P._steps() and not any(_has_holes(step) for step in P._steps()):
        return Classes((np.arange(n),), none)
    band = _band_of(P)
    if band is not None:
        return _of_band(n, *band)
    if n <= ARRAY:
        return _of_array(transitions(P, n_threads))
    if within_array:
        return None
    return _by_walking(P, n_threads)


def leads_to(P: Markov, target: int, n_threads: int | None = None) -> Flags:
    """States from which ``target`` can be reached."""
    n = P.shape[0]
    if P._steps() and not any(_has_holes(step) for step in P._steps()):
        return np.ones(n, bool)
    if n <= ARRAY:
        return _ancestors(transitions(P, n_threads), target)
    return _walk(tempered(P), target, n_threads, forward=False)


# ---- transitions as an array ---------------------------------------------------------------------


def transitions(P: Markov, n_threads: int | None = None) -> Flags:
    """True where the chain can go from i to j in one step, (N, N)."""
    n = P.shape[0]
    steps = P._steps()
    if not steps:
        return np.eye(n, dtype=bool)
    if all(step is steps[0] for step in steps):
        return _power(_step_transitions(steps[0], n_threads), len(steps))
    out = _step_transitions(steps[0], n_threads)
    for step in steps[1:]:
        out = _product(out, _step_transitions(step, n_threads))
    return out


def _step_transitions(step: Any, n_threads: int | None) -> Flags:
    scores: Scores = step.scores
    return np.isfinite(scores.to_numpy(n_threads=n_threads))


def _product(a: Flags, b: Flags) -> Flags:
    right = b.astype(np.float32)
    out = np.empty(a.shape, bool)
    height = max(1, int(1e8 // max(1, 2 * b.size)))  # Ctrl-C is seen between products only
    for first in range(0, len(a), height):
        out[first : first + height] = a[first : first + height].astype(np.float32) @ right > 0
    return out


def _power(a: Flags, exponent: int) -> Flags:
    out: Flags | None = None
    while exponent:
        if exponent & 1:
            out = a if out is None else _product(out, a)
        exponent >>= 1
        if exponent:
            a = _product(a, a)
    assert out is not None
    return out


def _of_array(edges: Flags) -> Classes:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    first, last = np.nonzero(edges)
    graph: Any = csr_array((np.ones(len(first), np.int8), (first, last)), shape=edges.shape)
    n_classes, label = connected_components(graph, directed=True, connection="strong")
    leaves = label[first] != label[last]
    is_open = np.zeros(n_classes, bool)
    is_open[label[first[leaves]]] = True
    found = [np.flatnonzero(label == k) for k in np.flatnonzero(~is_open)]
    closed = tuple(sorted(found, key=lambda states: (-len(states), int(states[0]))))
    return Classes(closed, np.flatnonzero(~_ancestors(edges, int(closed[0][0]))))


def _ancestors(edges: Flags, target: int) -> Flags:
    reached = np.zeros(len(edges), bool)
    reached[target] = True
    frontier = reached
    while frontier.any():
        seen = edges[:, frontier].any(axis=1)
        frontier = seen & ~reached
        reached = reached | seen
    return reached


# ---- bands, in closed form -----------------------------------------------------------------------


def _band_of(P: Markov) -> tuple[int, int] | None:
    """Offsets j - i of the entries that exist, when nothing but causal masks and windows hides entries."""
    if len(P._steps()) != 1:
        return None
    s: Scores = P._steps()[0].scores
    if s.terms.offsets is not None or _hidden_entries(s):
        return None
    return s.terms.band


def _of_band(n: int, low: int, high: int) -> Classes:
    """The classes of a chain that goes from i to i + low, ..., i + high, as far as these states exist.

    The offset 0 is among them, because no row is empty.
    """
    none = np.zeros(0, np.intp)
    if n == 1 or (low < 0 < high):
        return Classes((np.arange(n),), none)
    if low < 0:  # downwards only
        return Classes((np.zeros(1, np.intp),), none)
    if high > 0:
        return Classes((np.full(1, n - 1, np.intp),), none)
    return Classes(tuple(np.full(1, i, np.intp) for i in range(n)), np.arange(1, n))


# ---- large masked chains: one product per step of the search -------------------------------------


def tempered(P: Markov) -> tuple[Any, ...]:
    """Operators with the same transitions as P, whose scores are scaled so that no weight underflows."""
    from .operators import softmax

    out = []
    for step in P._steps():
        s: Scores = step.scores
        factor = min(1.0, _MILD / s.bound) if s.bound > 0 else 1.0
        out.append(softmax(s if factor == 1.0 else s * factor))
    return tuple(out)


def _walk(
    steps: tuple[Any, ...], state: int, n_threads: int | None, *, forward: bool
) -> npt.NDArray[np.bool_]:
    """States that can be reached from ``state`` (``forward``), or states from which it can be reached."""
    n, dtype = steps[0].shape[0], steps[0].dtype
    reached = np.zeros(n, bool)
    reached[state] = True
    frontier = reached
    while frontier.any():
        seen = frontier
        for step in steps if forward else reversed(steps):
            weights = seen.astype(dtype)
            move = step.apply_left if forward else step.apply
            seen = move(weights, n_threads=n_threads) > 0
        frontier = seen & ~reached
        reached = reached | seen
    return reached


def _by_walking(P: Markov, n_threads: int | None) -> Classes:
    """A closed class, found by moving on to states that do not lead back until there are none."""
    steps = tempered(P)
    rho = np.full(P.shape[0], 1 / P.shape[0], P.dtype)
    for _ in range(3):  # a state of large mass is likely to be in a closed class
        for step in steps:
            rho = step.apply_left(rho, n_threads=n_threads)
    state = int(np.argmax(rho))
    while True:
        onward = _walk(steps, state, n_threads, forward=True)
        back = _walk(steps, state, n_threads, forward=False)
        further = onward & ~back
        if not further.any():
            return Classes((np.flatnonzero(onward),), np.flatnonzero(~back))
        state = int(np.argmax(np.where(further, rho, -math.inf)))


# ---- masks ---------------------------------------------------------------------------------------


def _has_holes(step: Any) -> bool:
    s: Scores = step.scores
    banded = s.terms.hides(s.n_rows, s.n_cols)
    return s.terms.offsets is not None or banded or _hidden_entries(s)


def _hidden_entries(s: Scores) -> bool:
    """Whether a mask, a term or a shift makes scores -inf."""
    return s.holed or any(not mask.all() for mask in s.terms.masks)
