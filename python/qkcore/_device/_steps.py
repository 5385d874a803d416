"""Steps of a flow on the device: stages, errors and interpolants as combinations of device arrays.

The methods are those of cpp/src/ode/steppers.cpp. What is asked of the device per step is one summary, to see
that the state is finite and, when steps adapt, how large the error is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ._errors import Overflow
from ._velocity import DeviceField

__all__ = ["METHODS", "Stepper"]


class Tableau(NamedTuple):
    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] = ()
    last_is_next: bool = False
    dense: tuple[tuple[float, float, float, float], ...] = ()


_LAST = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
# The last coefficients of the interpolant (Hairer, Nørsett and Wanner, II.6).
_D = (
    -12715105075 / 11282082432,
    0.0,
    87487479700 / 32700410799,
    -10690763975 / 1880347072,
    701980252875 / 199316789632,
    -1453857185 / 822651844,
    69997945 / 29380423,
)


def _dense() -> tuple[tuple[float, float, float, float], ...]:
    """Powers of theta in x + theta (D + (1-theta) (h k_1 - D + theta (2 D - h k_7 - h k_1 + (1-theta) E))),
    with D = h sum b_s k_s and E = h sum d_s k_s."""
    out = []
    for s, (b, d) in enumerate(zip((*_LAST, 0.0), _D, strict=True)):
        r2 = (s == 0) - b
        r3 = b - (s == 6) - r2
        out.append((b + r2, -r2 + r3 + d, -r3 - 2 * d, d))
    return tuple(out)


METHODS = {
    "euler": Tableau(1, ((),), (1.0,), (0.0,)),
    "heun": Tableau(2, ((), (1.0,)), (0.5, 0.5), (0.0, 1.0)),
    "rk4": Tableau(
        4,
        ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        (1 / 6, 1 / 3, 1 / 3, 1 / 6),
        (0.0, 0.5, 0.5, 1.0),
    ),
    "dopri5": Tableau(
        5,
        (
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            _LAST,
        ),
        (*_LAST, 0.0),
        (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
        (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
        last_is_next=True,
        dense=_dense(),
    ),
}


class Stepper:
    """One state on the device, its slopes, and steps from it."""

    def __init__(self, field: DeviceField, method: Tableau, t0: float, stream: int) -> None:
        self.field, self.method, self.c = field, method, field.c
        self.stream, self.t = stream, t0
        self.x = field.x
        self.k = [self.empty() for _ in method.a]
        self.middle, self.next = self.empty(), self.empty()
        self._zeros: Any = None
        self._end: Any = (
            None  # the slope at the end of the step just taken, of methods that lack it
        )
        self.has_first = False
        self.n_evaluations = 0

    def empty(self) -> Any:
        x = self.field.x
        return self.c.module.empty(x.shape, x.dtype, self.c.device, self.stream)

    @property
    def zero(self) -> Any:
        if self._zeros is None:
            self._zeros = self.c.upload(np.zeros(self.field.x.shape), self.field.x.dtype)
        return self._zeros

    def slope(self, t: float, x: Any, out: Any) -> None:
        self.n_evaluations += 1
        self.field(x, t, out, self.stream)

    def combine(self, weights: tuple[float, ...], h: float, out: Any, x: Any = None) -> Any:
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

    def first_slope(self) -> None:
        self.field.enter(self.t)
        if not self.has_first:
            self.slope(self.t, self.x, self.k[0])
            self.has_first = True

    def step(self, h: float) -> None:
        """Stages, and the state at t + h in ``next``; raises when it is not finite."""
        self.first_slope()
        self._end = None
        last = len(self.method.a) - 1
        for s in range(1, last + 1):
            is_next = self.method.last_is_next and s == last
            at = self.next if is_next else self.middle
            self.combine(self.method.a[s], h, at)
            if is_next:
                self._normalise(at)
            self.slope(self.t + self.method.c[s] * h, at, self.k[s])
        if not self.method.last_is_next:
            self.combine(self.method.b, h, self.next)
            self._normalise(self.next)
        # One look per step: a stage that overflowed leaves its mark on the last slope and state.
        self._finite(("x", self.next), ("k", self.k[-1]))

    def accept(self, to: float, state: Any, *, moves_on: bool) -> None:
        """Takes a state over, which nobody writes to again; its slope too, where it is known."""
        self.t, self.x = to, state
        self.next = self.empty()
        self.has_first = False
        if moves_on and self.method.last_is_next:
            self.k[0], self.k[-1] = self.k[-1], self.k[0]
            self.has_first = True
        elif moves_on and self._end is not None:
            self.k[0], self._end = self._end, None
            self.has_first = True

    # ---- inside of a step ----------------------------------------------------------------------

    def end_slope(self, h: float) -> None:
        """What interpolants need beside the stages; it serves the next step too."""
        if self.method.dense or self._end is not None:
            return
        end = self.empty()
        self.slope(self.t + h, self.next, end)
        self._finite(("k", end))
        self._end = end

    def interpolate(self, theta: float, h: float, out: Any) -> Any:
        """The state at t + theta h of the step just taken: order 4 for dopri5, else cubic Hermite."""
        if self.method.dense:
            weights = tuple(
                theta * (p[0] + theta * (p[1] + theta * (p[2] + theta * p[3])))
                for p in self.method.dense
            )
            self.combine(weights, h, out)
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

    def scaled_norm(self, v: Any, x: Any, y: Any, rtol: float, atol: float) -> float:
        ratio = self.c.module.map_vector("relative", v, x, y, a=atol, b=rtol, stream=self.stream)
        found = self.c.figures(("error", ratio, None))[0]
        if found["nan"] or found["plus_inf"] or found["minus_inf"]:
            return math.inf
        return math.sqrt(found["squares"] / math.prod(self.field.x.shape))

    def error(self, h: float, rtol: float, atol: float) -> float:
        off = self.combine(self.method.error, h, self.middle, x=self.zero)
        return self.scaled_norm(off, self.x, self.next, rtol, atol)

    def first_step(self, limit: float, rtol: float, atol: float) -> float:
        """Hairer, Nørsett and Wanner, II.4: from the size of the slope and of its change."""
        self.first_slope()
        size = self.scaled_norm(self.x, self.x, self.x, rtol, atol)
        speed = self.scaled_norm(self.k[0], self.x, self.x, rtol, atol)
        if not math.isfinite(speed):
            raise Overflow
        h0 = min(limit, 1e-6 * limit if size < 1e-5 or speed < 1e-5 else 0.01 * size / speed)
        self.combine((1.0,), h0, self.middle)
        self.slope(self.t + h0, self.middle, self.k[1])
        change = self.c.module.map_vector(
            "affine", self.k[1], self.k[0], a=1.0, b=-1.0, out=self.middle, stream=self.stream
        )
        steepest = max(speed, self.scaled_norm(change, self.x, self.x, rtol, atol) / h0)
        if not math.isfinite(steepest):
            steepest = speed
        h1 = max(1e-6, 1e-3 * h0) if steepest <= 1e-15 else (0.01 / steepest) ** (1 / 5)
        return min(limit, 100 * h0, h1)

    def escaping(self) -> bool:
        """The state changes by its own size within a thousand of the steps that time can resolve."""
        x, k = self.c.figures(("x", self.x, None), ("k", self.k[0], None))
        return k["largest"] * 1e4 * float(np.spacing(abs(self.t))) >= x["largest"]
