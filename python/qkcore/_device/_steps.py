"""Particles on the device as a state of the integrator: combinations of device arrays.

What is asked of the device per step is one summary, to see that the state is finite and, when steps adapt,
how large the error is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._ode import Overflow, State, Tableau
from ._velocity import DeviceField

__all__ = ["Particles"]


class Particles(State):
    """One cloud on the device, its slopes, and steps from it."""

    def __init__(
        self, field: DeviceField, method: Tableau, t0: float, stream: int, rtol: float, atol: float
    ) -> None:
        super().__init__(method, t0, field.x)
        self.field, self.c, self.stream = field, field.c, stream
        self._tolerances = {"a": atol, "b": rtol}
        self.k = [self.empty() for _ in method.a]
        self.middle, self.next = self.empty(), self.empty()
        self._zeros: Any = None
        # The slope at the end of the step just taken, of methods that lack it.
        self._end: Any = None
        self.n_evaluations = 0

    def empty(self) -> Any:
        x = self.field.x
        return self.c.module.empty(x.shape, x.dtype, self.c.device, self.stream)

    @property
    def zero(self) -> Any:
        if self._zeros is None:
            self._zeros = self.c.upload(np.zeros(self.field.x.shape), self.field.x.dtype)
        return self._zeros

    def slope(self, t: float, x: Any, s: int) -> Any:
        self._evaluate(t, x, self.k[s])
        return self.k[s]

    def _evaluate(self, t: float, x: Any, out: Any) -> None:
        self.n_evaluations += 1
        self.field(x, t, out, self.stream)

    def combine(self, weights: tuple[float, ...], h: float, *, is_next: bool = False) -> Any:
        out = self._combine(weights, h, self.next if is_next else self.middle)
        if is_next:
            self._normalise(out)
        return out

    def _combine(self, weights: tuple[float, ...], h: float, out: Any, x: Any = None) -> Any:
        k = tuple(self.k[: len(weights)])
        return self.c.module.combine(
            self.x if x is None else x, k, weights, h, out=out, stream=self.stream
        )

    def _normalise(self, x: Any) -> None:
        if self.field.sphere is not None:
            self.field.sphere.normalise(x, self.stream)

    def _finite(self, *given: tuple[str, Any]) -> None:
        for found in self.c.figures(*((name, x, None) for name, x in given)):
            if found["nan"] or found["plus_inf"] or found["minus_inf"]:
                raise Overflow

    # ---- one step ------------------------------------------------------------------------------

    def first(self) -> None:
        self.field.enter(self.t)
        super().first()

    def step(self, h: float) -> None:
        self._end = None
        super().step(h)
        # One look per step: a stage that overflowed leaves its mark on the last slope and state.
        self._finite(("x", self.next), ("k", self.k[-1]))

    def accept(self, to: float, state: Any, *, moves_on: bool) -> None:
        """Takes a state over, which nobody writes to again; its slope too, where it is known."""
        self.move(to, state, same_slope=moves_on)
        self.next = self.empty()
        if moves_on and self._end is not None:
            self.k[0], self._end = self._end, None
            self.has_first = True

    # ---- inside of a step ----------------------------------------------------------------------

    def end_slope(self, h: float) -> None:
        """What interpolants need beside the stages; it serves the next step too."""
        if self.method.dense or self._end is not None:
            return
        end = self.empty()
        self._evaluate(self.t + h, self.next, end)
        self._finite(("k", end))
        self._end = end

    def interpolate(self, theta: float, h: float, out: Any) -> Any:
        """The state at t + theta h of the step just taken: order 4 for dopri5, else cubic Hermite."""
        if self.method.dense:
            self._combine(self.method.at(theta), h, out)
        else:
            square, cube = theta**2, theta**3
            start = 2 * cube - 3 * square + 1
            self.c.module.combine(
                self.zero,
                (self.x, self.next, self.k[0], self._end),
                (start, 1 - start, (cube - 2 * square + theta) * h, (cube - square) * h),
                1.0,
                out=out,
                stream=self.stream,
            )
        self._normalise(out)
        return out

    # ---- the size of steps ---------------------------------------------------------------------

    def _scaled_norm(self, v: Any, x: Any, y: Any) -> float:
        ratio = self.c.module.map_vector(
            "relative", v, x, y, **self._tolerances, stream=self.stream
        )
        found = self.c.figures(("error", ratio, None))[0]
        if found["nan"] or found["plus_inf"] or found["minus_inf"]:
            return math.inf
        return math.sqrt(found["squares"] / math.prod(self.field.x.shape))

    def error(self, h: float) -> float:
        off = self._combine(self.method.error, h, self.middle, x=self.zero)
        return self._scaled_norm(off, self.x, self.next)

    def sizes(self) -> tuple[float, float]:
        speed = self._scaled_norm(self.k[0], self.x, self.x)
        if not math.isfinite(speed):
            raise Overflow
        return self._scaled_norm(self.x, self.x, self.x), speed

    def change(self, h: float) -> float:
        self._evaluate(self.t + h, self._combine((1.0,), h, self.middle), self.k[1])
        change = self.c.module.map_vector(
            "affine", self.k[1], self.k[0], a=1.0, b=-1.0, out=self.middle, stream=self.stream
        )
        return self._scaled_norm(change, self.x, self.x)

    def escaping(self, resolution: float) -> bool:
        x, k = self.c.figures(("x", self.x, None), ("k", self.k[0], None))
        return bool(k["largest"] * 1000 * resolution >= x["largest"])
