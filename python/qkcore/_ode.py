"""The integrator of cpp/src/ode for states that are arrays of any library; methods and statuses are the same.

A State holds one initial value problem and the stages of its steps, and an Integrator runs the loops over the
steps. The coefficients of the methods and the control of the step size come from the C++ side. ``Arrays`` is
the state for a function of one NumPy array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._native import cpu

__all__ = [
    "ADAPTIVE",
    "IMPLICIT",
    "METHODS",
    "Arrays",
    "Integrator",
    "NoConvergence",
    "Overflow",
    "State",
    "Tableau",
]


class Overflow(Exception):
    """A state or slope that is not finite."""


class NoConvergence(Exception):
    """Sinkhorn's iteration inside a velocity did not reach its tolerance."""


Double = npt.NDArray[np.float64]
Rows = tuple[tuple[float, ...], ...]


class Tableau(NamedTuple):
    """An explicit method, see cpp/include/qk/tableau.hpp."""

    order: int
    a: Rows
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...]
    dense: Rows
    last_is_next: bool
    adaptive: bool

    def at(self, theta: float) -> tuple[float, ...]:
        """Weights of the stages for the state at the fraction ``theta`` of a step."""
        return tuple(
            theta * (p[0] + theta * (p[1] + theta * (p[2] + theta * p[3]))) for p in self.dense
        )


_FOUND = cpu.tableaux()
ADAPTIVE = tuple(name for name, found in _FOUND.items() if found["adaptive"])
IMPLICIT = tuple(name for name, found in _FOUND.items() if found["gamma"])
METHODS = {
    name: Tableau(*(found[field] for field in Tableau._fields))
    for name, found in _FOUND.items()
    if name not in IMPLICIT
}


class State:
    """A state x at time t, the stages k of a step that starts there, and the trial state ``next`` at its end.

    Subclasses compute the slope, and raise Overflow if it is not finite. Those whose arrays are not NumPy's
    also define how arrays are combined.
    """

    def __init__(self, method: Tableau, t: float, x: Any) -> None:
        self.method, self.t, self.x = method, t, x
        self.k: list[Any] = [None] * len(method.a)
        self.next: Any = None
        self.has_first = False  # k[0] is the slope at (t, x)

    # ---- what subclasses add -------------------------------------------------------------------

    def slope(self, t: float, x: Any, s: int) -> Any:
        """The slope at (t, x) for stage s."""
        raise NotImplementedError

    def combine(self, weights: tuple[float, ...], h: float, *, is_next: bool = False) -> Any:
        """x + h sum_s weights_s k_s; ``is_next`` says that this is the state at the end of the step."""
        return self.moved(self.x, weights, h)

    def moved(self, x: Any, weights: tuple[float, ...], h: float) -> Any:
        """x + h sum_s weights_s k_s for NumPy arrays; None stands for x = 0.

        An overflow makes the error of the step inf or NaN, and the integrator then tries a shorter step.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            along = h * sum(w * k for w, k in zip(weights, self.k, strict=False) if w)
            return along if x is None else x + along

    def norm(self, v: Any, other: Any) -> float:
        """The size of v in units of the tolerance at the larger of the state x and ``other``."""
        raise NotImplementedError

    def error(self, h: float) -> float:
        """The error of the step in units of the tolerance."""
        return self.norm(self.moved(None, self.method.error, h), self.next)

    def sizes(self) -> tuple[float, float]:
        """The sizes of the state and of its slope in units of the tolerance."""
        return self.norm(self.x, self.x), self.norm(self.k[0], self.x)

    def change(self, h: float) -> float:
        """The change of the slope along a step of Euler's method, in units of the tolerance."""
        self.k[1] = self.slope(self.t + h, self.moved(self.x, (1.0,), h), 1)
        return self.norm(self.moved(None, (-1.0, 1.0), 1.0), self.x)

    def escaping(self, resolution: float) -> bool:
        """Whether the state would change by its own size within 1000 steps of the length ``resolution``."""
        raise NotImplementedError

    def take(self, to: float) -> str:
        """Does what follows an accepted step to time ``to``. Returns "", or the status that ends the flow."""
        raise NotImplementedError

    # ---- one step ------------------------------------------------------------------------------

    def first(self) -> None:
        if not self.has_first:
            self.k[0] = self.slope(self.t, self.x, 0)
            self.has_first = True

    def step(self, h: float) -> None:
        """Computes the stages and the trial state; raises Overflow if one of them is not finite."""
        m, last = self.method, len(self.method.a) - 1
        for s in range(1, last + 1):
            is_next = m.last_is_next and s == last
            at = self.combine(m.a[s], h, is_next=is_next)
            if is_next:
                self.next = at
            self.k[s] = self.slope(self.t + m.c[s] * h, at, s)
        if not m.last_is_next:
            self.next = self.combine(m.b, h, is_next=True)

    def move(self, to: float, x: Any, *, same_slope: bool) -> None:
        """The state becomes x; ``same_slope`` says that the last stage is the slope at x."""
        self.t, self.x = to, x
        self.has_first = same_slope and self.method.last_is_next
        if self.has_first:
            self.k[0], self.k[-1] = self.k[-1], self.k[0]


class Arrays(State):
    """x' = f(x, t) for a NumPy array x in double precision; ``path`` has the state after every step.

    Errors are root mean squares in units of atol + rtol |x|, as in cpp/src/ode/flow.cpp.
    """

    def __init__(
        self,
        f: Callable[[Double, float], npt.ArrayLike],
        x: Double,
        t: float,
        *,
        method: str = "dopri5",
        rtol: float = 1e-6,
        atol: float = 1e-9,
    ) -> None:
        super().__init__(METHODS[method], t, x)
        self.f, self.rtol, self.atol = f, rtol, atol
        self.path: list[tuple[float, Double]] = [(t, x)]

    def slope(self, t: float, x: Double, s: int) -> Double:
        return self._finite(np.asarray(self.f(self._finite(x), t), dtype=np.float64))

    def step(self, h: float) -> None:
        super().step(h)
        self._finite(self.next)

    def escaping(self, resolution: float) -> bool:
        return bool(np.abs(self.k[0]).max() * 1000 * resolution >= np.abs(self.x).max())

    def take(self, to: float) -> str:
        self.move(to, self.next, same_slope=True)
        self.path.append((to, self.x))
        return ""

    def norm(self, v: Double, other: Double) -> float:
        scale = self.atol + self.rtol * np.maximum(np.abs(self.x), np.abs(other))
        with np.errstate(over="ignore"):
            return float(np.sqrt(np.mean((v / scale) ** 2)))

    @staticmethod
    def _finite(x: Double) -> Double:
        if not np.isfinite(x).all():
            raise Overflow
        return x


class Integrator:
    """Takes fixed or controlled steps of one State up to a time, or until the flow ends.

    See cpp/src/ode/integrator.hpp.
    """

    def __init__(
        self,
        state: State,
        *,
        max_steps: int,
        elementary: bool = False,
        first_step: float = 0.0,
        min_step: float = 0.0,
        max_step: float = 0.0,
    ) -> None:
        self.state, self.status = state, ""
        self._control = cpu.StepController(state.method.order, elementary)
        self._h, self._most_steps = first_step, max_steps
        self._min_step, self._max_step = min_step, max_step
        self._overflowed = False
        self.n_steps = self.n_rejected = 0

    def restart(self) -> None:
        """The slope jumps here, so the step size and the slopes of earlier steps are forgotten."""
        self._h, self.state.has_first = 0.0, False
        self._control.reset()

    def fixed_step(self, to: float) -> bool:
        """One step to time ``to``. Like the other methods it returns False when the flow has ended."""
        try:
            self.state.first()
            self.state.step(to - self.state.t)
        except (Overflow, NoConvergence) as problem:
            return self._failed(problem)
        self.n_steps += 1
        return self._end(self.state.take(to))

    def advance(self, to: float) -> bool:
        """Controlled steps up to the time ``to``."""
        state = self.state
        while state.t < to:
            left = to - state.t
            try:
                state.first()
                if self._h <= 0:
                    self._h = self._first_step(left)
            except (Overflow, NoConvergence) as problem:
                return self._failed(problem)
            if self._max_step > 0:
                self._h = min(self._h, self._max_step)
            resolution = 10 * float(np.spacing(abs(state.t)))
            smallest = self._min_step or resolution
            if self._h < smallest < left:
                gone = self._overflowed or state.escaping(resolution)
                return self._end("blew up" if gone else "step underflow")
            if self.n_steps + self.n_rejected >= self._most_steps:
                return self._end("step limit")
            # The last two steps are made equal, so that the very last one cannot become too small.
            size = self._h
            if size >= left * (1 - 1e-12):
                size = left
            elif 2 * size > left:
                size = 0.5 * left
            end = to if size == left else state.t + size
            h = end - state.t
            try:
                state.step(h)
                error = state.error(h)
            except Overflow:
                error = math.inf
            except NoConvergence as problem:
                return self._failed(problem)
            if not error <= 1.0:
                self.n_rejected += 1
                self._overflowed = not math.isfinite(error)
                self._h = h * self._control.rejected(error)
                continue
            self.n_steps += 1
            self._overflowed = False
            wanted = h * self._control.accepted(error)
            self._h = max(self._h, wanted) if size < self._h else wanted
            if not self._end(state.take(end)):
                return False
        return True

    def _first_step(self, longest: float) -> float:
        size, speed = self.state.sizes()
        probe = self._control.probe(size, speed, longest)
        try:
            change = self.state.change(probe)
        except Overflow:
            change = math.inf
        return float(self._control.first(probe, speed, change, longest))

    def _failed(self, problem: Exception) -> bool:
        return self._end("blew up" if isinstance(problem, Overflow) else "no convergence")

    def _end(self, status: str) -> bool:
        self.status = status
        return not status
