"""Softmax with temperature and the entropy of its rows (EOT 2.2, H.1)."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .. import _checks

Real = npt.NDArray[np.floating[Any]]
Array = TypeVar("Array", bound=Real)


def logits(name: str, value: npt.ArrayLike) -> Real:
    """Checked rows of logits (..., V): finite, or -inf for masked entries; no row may be all masked."""
    array = _checks.real_array(name, value)
    _checks.shape(name, array.shape, (..., "V"), what="rows of logits")
    _checks.not_empty(name, array)
    _checks.finite(name, array, minus_inf=True)
    if np.isneginf(array.max(axis=-1)).any():
        raise ValueError(
            f"{name}: wanted at least one logit above -inf in every row, got a row that is all masked; "
            "leave such rows out"
        )
    return array


def plain_softmax(z: Array, tau: float) -> Array:
    """Softmax of checked logits, shifted before the division so that large z / tau do not overflow."""
    with np.errstate(over="ignore"):
        weights: Any = (z - z.max(axis=-1, keepdims=True)) / z.dtype.type(tau)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = weights
    return out


def log_sum_exp(z: Real) -> Any:
    """log sum exp over the last axis, which is kept; rows need an entry above -inf."""
    top = z.max(axis=-1, keepdims=True)
    return top + np.log(np.exp(z - top).sum(axis=-1, keepdims=True))


def from_logits(z: npt.ArrayLike, tau: float = 1.0) -> Real:
    """Probabilities of logits: :math:`p_i = e^{z_i/\\tau} / \\sum_j e^{z_j/\\tau}` (EOT 2.2).

    ``z`` is one vector (V,) or rows (..., V); -inf masks an entry. The result has its shape and dtype.
    It is the minimiser of :math:`\\langle -z, p\\rangle - \\tau H(p)`, see :func:`kl_prox` (EOT-1).

    >>> import numpy as np, qkcore as qk
    >>> qk.simplex.from_logits(np.array([0.0, np.log(3.0), -np.inf]))
    array([0.25, 0.75, 0.  ])
    """
    return plain_softmax(logits("z", z), _checks.positive("tau", tau))


def plain_entropy(p: Array) -> Array:
    """The entropy of every row of checked probabilities."""
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    rows: Any = np.asarray(-(p * logs).sum(axis=-1))
    return cast(Array, rows)


def entropy(p: npt.ArrayLike) -> Real:
    """Shannon entropy :math:`H(p) = -\\sum_i p_i \\log p_i` of every row, in nats; 0 log 0 is 0.

    >>> import numpy as np, qkcore as qk
    >>> float(qk.simplex.entropy(np.full(4, 0.25)) / np.log(4.0))
    1.0
    """
    return plain_entropy(_checks.probabilities("p", p))
