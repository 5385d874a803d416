"""Dormand and Prince's 5(4) pair: tableau as data, one step, the step control of EOT H.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Double = npt.NDArray[np.float64]
Field = Callable[[float, Double], Double]

NODES = np.array([0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1])
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
WEIGHTS = np.array([*STAGES[6], 0])
# Weights of order five minus those of order four.
ERROR = np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40])
# y(t + x h) = y + h sum_i k_i (DENSE[i] . (x, x^2, x^3, x^4)): continuous, of order four.
DENSE = np.array(
    [
        [1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
        [0, 0, 0, 0],
        [0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
        [0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
        [0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
        [0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
        [0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
    ]
)

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0  # H.1


class Step(NamedTuple):
    """One trial step: the states of all stages and their slopes; the last stage is the new state."""

    states: list[Double]
    slopes: list[Double]
    error: Double  # of the new state, per entry


def trial(field: Field, t: float, y: Double, slope: Double, h: float) -> Step:
    """All stages from y, whose slope is known (first same as last)."""
    states, slopes = [y], [slope]
    for k in range(1, 7):
        states.append(_move(y, h, STAGES[k], slopes))
        slopes.append(field(t + NODES[k] * h, states[-1]))
    return Step(states, slopes, _move(np.zeros_like(y), h, ERROR, slopes))


def _move(y: Double, h: float, weights: Sequence[float] | Double, slopes: list[Double]) -> Double:
    """y + h times the weighted slopes. What overflows makes the error inf or NaN, and the step shorter."""
    with np.errstate(over="ignore", invalid="ignore"):
        out: Double = y + h * sum(w * s for w, s in zip(weights, slopes, strict=True) if w)
    return out


def dense(y: Double, slopes: list[Double], h: float, x: float) -> Double:
    """The state at the fraction x of a step."""
    return _move(y, h, DENSE @ np.array([x, x**2, x**3, x**4]), slopes)


def factor(error: float) -> float:
    """How much longer the next step may be: min(10, max(0.2, 0.9 error^(-1/5))) (H.1)."""
    if error == 0:
        return GROW
    return float(min(GROW, max(SHRINK, SAFETY * error**-0.2)))


def first_step(
    field: Field, t: float, y: Double, slope: Double, scale: Double, longest: float
) -> float:
    """A first step from the sizes of y, y' and y'' (Hairer, Nørsett and Wanner II.4)."""
    d0, d1 = norm(y / scale), norm(slope / scale)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, longest)
    if h0 == 0 or not np.isfinite(d1):
        return max(h0, 1e-300)  # the step control finds out
    d2 = norm((field(t + h0, y + h0 * slope) - slope) / scale) / h0
    h1 = max(1e-6, h0 * 1e-3) if max(d1, d2) <= 1e-15 else (0.01 / max(d1, d2)) ** 0.2
    return min(100 * h0, h1, longest)


def norm(x: Double) -> float:
    """The largest root mean square of a row: every row of a batch keeps the tolerance."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.mean(x * x, axis=-1)).max())
