"""The mass outside the largest entry of a softmax row, and how far the row can move, in logarithms.

The tail of a row underflows to 0 when its logits are about 745 below the largest. As a probability it
then says that the row cannot move at all, while a change of the logits of that size moves all of it. So
the tail is kept as a logarithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Double = npt.NDArray[np.float64]


class LogTail(NamedTuple):
    """The logarithm of the tail of each row: twice ``half_gap`` over tau, plus ``rest``."""

    half_gap: Double
    """(second largest logit - largest logit) / 2, at most 0; the difference itself might overflow"""
    rest: Double
    """what the sum over the other logits adds; -inf if a row has a single entry that is not masked"""


def log_tail(z: npt.NDArray[np.floating[Any]], tau: float = 1.0) -> LogTail:
    """The log-tail of rows of checked logits (..., V) at temperature ``tau``."""
    logits = z.astype(np.float64)
    top = logits.argmax(axis=-1)[..., None]
    largest = np.take_along_axis(logits, top, axis=-1)[..., 0]
    np.put_along_axis(logits, top, -np.inf, axis=-1)
    second = logits.max(axis=-1)
    alone = np.isneginf(second)
    second = np.where(alone, largest, second)
    with np.errstate(over="ignore", divide="ignore"):
        half_gap = second / 2 - largest / 2
        sizes = np.exp((logits - second[..., None]) / tau).sum(axis=-1)
        # The largest entry's share of the total is 1 / (1 + e^(gap/tau) sizes).
        rest = np.log(sizes) - np.log1p(np.exp(2 * half_gap / tau) * sizes)
    return LogTail(half_gap, rest)


def locked_motion(tail: LogTail, R: npt.ArrayLike, tau: float = 1.0) -> Double:
    """The largest motion in total variation of rows whose logits change by at most R each.

    With :math:`t` the tail and :math:`E = e^{2R/\\tau}` it is :math:`(1-t)\\,w/(1+w)`,
    :math:`w = t(E-1)`, while :math:`t \\le 1/(1+e^{R/\\tau})`, and :math:`\\tanh(R/2\\tau)` otherwise.
    """
    from scipy.special import expit

    half, rest, change = np.broadcast_arrays(
        tail.half_gap, tail.rest, np.asarray(R, dtype=np.float64)
    )
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = change / tau
        # This is log w. Half the gap and R are added first, because each alone may overflow when doubled.
        weight = 2 * (half + change) / tau + rest + np.log(-np.expm1(-2 * scaled))
        locked = -np.expm1(2 * half / tau + rest) * expit(weight)
        near = 2 * (half + change / 2) / tau + rest + np.log1p(np.exp(-scaled)) <= 0
        out = np.where(near, locked, np.tanh(scaled / 2))
    still = np.isneginf(rest) | (change == 0)
    return np.where(still, 0.0, out)
