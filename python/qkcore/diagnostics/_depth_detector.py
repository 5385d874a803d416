"""Online detection of jumps in depth: algorithm 1 (EOT-4; EOT K.1, H.1)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._depth_budget import Layers, increments, sizes

Double = npt.NDArray[np.float64]

MEDIANS = 5.0  # H.1: a spike is five times the median
WARM_UP = 8  # increments that are judged again while the median settles
HISTORY = 512  # layers whose median is taken, so that a stream may last


@dataclass(frozen=True)
class BVStep:
    """What the detector makes of one layer; every field but ``layer`` has one value per row."""

    layer: int  #: index of the increment, from layer to layer + 1
    norm: Any  #: :math:`\\|\\Delta z\\|_2`
    statistic: Any  #: mean of the squares in the window
    threshold: Any  #: the adaptive one
    severity: Any  #: statistic / threshold

    @property
    def violated(self) -> Any:
        """Whether the statistic is above its threshold."""
        return self.severity > 1

    @property
    def spike(self) -> Any:
        """Whether the layer's own square is: the jump itself, not its echo in the window."""
        return np.square(self.norm) > self.threshold

    @property
    def action(self) -> str:
        """``"none"``, ``"monitor"`` or (severity above 2 in some row) ``"segment"``."""
        worst = float(np.max(self.severity))
        return "segment" if worst > 2 else "monitor" if worst > 1 else "none"


class BVDetector:
    """Flags, while layers stream by, where logits jump too far for a flow (EOT-4, algorithm 1).

    After each increment the mean of the squared norms in the last ``window`` layers is compared with
    :math:`\\tau_0 (1 + 0.1\\,\\mathrm{std}/\\mathrm{mean})`, std and mean being those of the norms in the
    window.

    threshold: :math:`\\tau_0`; None takes five times the median of the squared norms so far (H.1; the
    last 512), from the third layer on (there is nothing to compare with before). window: W; the text
    gives no value.

    A median of few layers may be that of a jump. So with the median as threshold, each of the first 8
    increments has all ``steps`` before it judged again with the median so far: a jump at the very first
    increment is found at the third. What ``update`` gave before does not change.

    A jump stays in the window for W layers, so its flags repeat; ``BVStep.spike`` tells the jump from its
    echo. The sum is taken afresh from the window: the running one of the algorithm keeps the rounding
    errors of a large jump for ever (a jump of 1e9 leaves it wrong by the size of all that follows).

    >>> import numpy as np
    >>> from qkcore.diagnostics.depth import BVDetector
    >>> detector = BVDetector(threshold=1.0, window=4)
    >>> turn = np.array([1.0, 1.0, -1.0, -1.0])
    >>> steps = [detector.update(size * turn) for size in (0.1, 0.1, 3.0, 0.1)]
    >>> [step.action for step in steps], detector.violations
    (['none', 'none', 'segment', 'segment'], [2, 3])
    """

    def __init__(self, *, threshold: float | None = None, window: int = 8) -> None:
        self.threshold = None if threshold is None else _checks.positive("threshold", threshold)
        self.window = _checks.integer_within("window", window, 1, 10**9, "keep at least one layer")
        self.steps: list[BVStep] = []
        self._norms: deque[Double] = deque(maxlen=self.window)
        self._squares: deque[Double] = deque(maxlen=HISTORY)

    def __repr__(self) -> str:
        return f"BVDetector({len(self.steps)} layers seen, violations at {self.violations})"

    @property
    def violations(self) -> list[int]:
        """Layers at which some row was flagged."""
        return [s.layer for s in self.steps if np.any(s.violated)]

    def update(self, dz: npt.ArrayLike) -> BVStep:
        """Take the next increment :math:`\\Delta z^{(\\ell)}`, one row (V,) or rows (..., V)."""
        array = _checks.real_array("dz", dz)
        _checks.shape(
            "dz", array.shape, (..., "V"), what="an increment", do="pass update_norm(norm)"
        )
        _checks.not_empty("dz", array)
        _checks.finite("dz", array)
        wide = array.astype(np.float64)
        return self.update_norm(np.sqrt(sizes(wide, wide, True)[1]))

    def update_norm(self, norm: npt.ArrayLike) -> BVStep:
        """Take the norm of the next increment, or the norms of its rows."""
        value = _checks.doubles("norm", norm)
        _checks.none_negative("norm", value, "finite numbers >= 0", "find NaN in the logits")
        if self._norms:
            _checks.shape(
                "dz",
                value.shape,
                self._norms[-1].shape,
                what="rows",
                why="as before",
                do="one detector follows one stack",
            )
        self._norms.append(value)
        self._squares.append(value**2)
        base = self._base()
        index = len(self.steps)
        step = self._judge(index, np.stack(self._norms), base)
        if self.threshold is None and index < WARM_UP:
            known = np.stack([np.asarray(s.norm) for s in self.steps] + [value])
            inside = (known[max(0, k + 1 - self.window) : k + 1] for k in range(index))
            self.steps = [self._judge(k, norms, base) for k, norms in enumerate(inside)]
        self.steps.append(step)
        return step

    @staticmethod
    def _judge(index: int, inside: Double, base: Any) -> BVStep:
        """The verdict on the last of the norms in a window, given tau_0."""
        statistic = (inside**2).mean(axis=0)
        mean = inside.mean(axis=0)
        spread = np.divide(inside.std(axis=0), mean, out=np.zeros_like(mean), where=mean > 0)
        threshold = base * (1 + 0.1 * spread)
        severity = np.zeros_like(statistic)
        np.divide(statistic, threshold, out=severity, where=threshold > 0)
        severity[(threshold == 0) & (statistic > 0)] = np.inf
        return BVStep(index, *(_value(x) for x in (inside[-1], statistic, threshold, severity)))

    def _base(self) -> Any:
        if self.threshold is not None:
            return self.threshold
        if len(self._squares) < 3:
            return np.inf
        return MEDIANS * np.median(np.stack(self._squares), axis=0)


def detect(logits: Layers, *, threshold: float | None = None, window: int = 8) -> BVDetector:
    """Algorithm 1 over a stack (L + 1, ..., V) or any iterable of layers (EOT-4).

    Masked entries and constants of rows do not count.
    """
    detector = BVDetector(threshold=threshold, window=window)
    for z, dz in increments(logits):
        detector.update_norm(np.sqrt(sizes(z, dz, True)[1]))
    return detector


def _value(x: Double) -> Any:
    return float(x) if np.ndim(x) == 0 else x
