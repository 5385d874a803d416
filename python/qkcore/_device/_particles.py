"""Particles on a device as a state of the integrator, with outputs and events as in cpp/src/ode/flow.cpp.

In each step one summary is copied from the device, to see whether the state is finite. Steps that adapt need
one more, for the error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._flow_tasks import Flown, FlowOptions
from .._native import cpu
from .._ode import METHODS, Integrator, NoConvergence, Overflow, State
from ._arrays import lost
from ._velocity import DeviceField, DeviceFunction

__all__ = ["integrate"]

_BISECTIONS = 30


def integrate(field: DeviceField | DeviceFunction, o: FlowOptions, stream: int) -> Flown:
    state = _Particles(field, o, stream)
    integrator = Integrator(
        state,
        max_steps=o.max_steps,
        first_step=o.first_step,
        min_step=o.min_step,
        max_step=o.max_step,
    )
    status = state.start()
    if not status:
        (_fixed if o.n_steps else _adaptive)(integrator, o)
        status = integrator.status
    if status:
        state.close()
    return Flown(
        np.asarray(state.times),
        state.stacked(),
        status or "finished",
        integrator.n_steps,
        integrator.n_rejected,
        state.n_evaluations,
    )


def _fixed(integrator: Integrator, o: FlowOptions) -> None:
    """Equal steps, which are cut where layers change."""
    h = (o.t1 - o.t0) / o.n_steps
    grid = {o.t0 + i * h for i in range(1, o.n_steps)} | {o.t1}
    cuts = {float(b) for b in o.breaks if all(abs(b - t) > 1e-9 * h for t in (*grid, o.t0))}
    for to in sorted(grid | cuts):
        if not integrator.fixed_step(to):
            return
        if np.any(np.abs(o.breaks - to) <= 1e-9 * h):
            integrator.restart()


def _adaptive(integrator: Integrator, o: FlowOptions) -> None:
    for to in o.breaks:
        if not integrator.advance(float(to)):
            return
        integrator.restart()
    integrator.advance(o.t1)


class _Particles(State):
    """One cloud with the stages of its steps, its stored states, and the events that are looked for."""

    def __init__(
        self, field: DeviceField | DeviceFunction, options: FlowOptions, stream: int
    ) -> None:
        super().__init__(METHODS[options.method], options.t0, field.x)
        self.field, self.c, self.o, self.stream = field, field.c, options, stream
        self.k = [self.empty() for _ in self.method.a]
        self.middle, self.next = self.empty(), self.empty()
        self.zero = self.c.upload(np.zeros(field.x.shape), field.x.dtype)
        # The slope at the end of the last step, for methods whose stages do not include it.
        self._end: Any = None
        self.n_evaluations = 0
        self.times: list[float] = []
        self._states: list[Any] = []
        self._waiting = [] if options.t_eval is None else options.t_eval.tolist()[::-1]

    def empty(self) -> Any:
        x = self.field.x
        return self.c.module.empty(x.shape, x.dtype, self.c.device, self.stream)

    # ---- one step ------------------------------------------------------------------------------

    def first(self) -> None:
        self.field.enter(self.t)
        super().first()

    def slope(self, t: float, x: Any, s: int) -> Any:
        return self._slope(t, x, self.k[s])

    def _slope(self, t: float, x: Any, out: Any) -> Any:
        self.n_evaluations += 1
        return self.field(x, t, out, self.stream)

    def step(self, h: float) -> None:
        self._end = None
        super().step(h)
        # One check per step is enough, since an overflow in any stage shows in the last slope or the new
        # state.
        self._finite(self.next, self.k[-1])

    def combine(self, weights: tuple[float, ...], h: float, *, is_next: bool = False) -> Any:
        if not is_next:
            return self.moved(self.x, weights, h)
        return self._normalised(self.moved(self.x, weights, h, self.next))

    def moved(self, x: Any, weights: tuple[float, ...], h: float, out: Any = None) -> Any:
        k, at = tuple(self.k[: len(weights)]), self.zero if x is None else x
        to = self.middle if out is None else out
        return self.c.module.combine(at, k, weights, h, out=to, stream=self.stream)

    def _normalised(self, x: Any) -> Any:
        if self.field.sphere is not None:
            self.field.sphere.normalise(x, self.stream)
        return x

    def _finite(self, *given: Any) -> None:
        if any(map(lost, self.c.figures(*(("x", x, None) for x in given)))):
            raise Overflow

    # ---- the size of steps ---------------------------------------------------------------------

    def norm(self, v: Any, other: Any) -> float:
        tolerances = {"a": self.o.atol, "b": self.o.rtol}
        ratio = self.c.module.map_vector(
            "relative", v, self.x, other, **tolerances, stream=self.stream
        )
        found = self.c.figures(("error", ratio, None))[0]
        return math.inf if lost(found) else math.sqrt(found["squares"] / math.prod(v.shape))

    def sizes(self) -> tuple[float, float]:
        size, speed = super().sizes()
        if not math.isfinite(speed):
            raise Overflow
        return size, speed

    def escaping(self, resolution: float) -> bool:
        x, k = self.c.figures(("x", self.x, None), ("k", self.k[0], None))
        return bool(k["largest"] * 1000 * resolution >= x["largest"])

    # ---- stored states -------------------------------------------------------------------------

    def start(self) -> str:
        if self.o.t_eval is None:
            self._save(self.t, self.x)
        while self._waiting and self._waiting[-1] <= self.t:
            self._save(self._waiting.pop(), self.x)
        return self._event(self.x)

    def close(self) -> None:
        """Stores the last state of a flow that ends early."""
        if not self.times or self.times[-1] < self.t:
            self._save(self.t, self.x)

    def _save(self, t: float, x: Any) -> None:
        self.times.append(t)
        self._states.append(x)

    def stacked(self) -> Any:
        """All states as one array of the caller's library."""
        c, stream, x = self.c, self.stream, self.field.x
        out, target = c.fresh((len(self._states), *x.shape), x.dtype, stream)
        for index, state in enumerate(self._states):
            c.module.copy(state, out.entry(index), stream)
        return c.give(out, target, stream)

    # ---- inside of a step ----------------------------------------------------------------------

    def _end_slope(self, h: float) -> None:
        """Computes the slope at the end of the step, which Hermite interpolation and the next step need."""
        if self.method.dense or self._end is not None:
            return
        end = self._slope(self.t + h, self.next, self.empty())
        self._finite(end)
        self._end = end

    def _inside(self, theta: float, h: float, out: Any) -> Any:
        """The state at t + theta h in the last step: of order 4 for dopri5, otherwise by cubic Hermite."""
        if self.method.dense:
            self.moved(self.x, self.method.at(theta), h, out)
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
        return self._normalised(out)

    def _event(self, x: Any) -> str:
        """The status of an event that has happened, or an empty string."""
        c, o, stream = self.c, self.o, self.stream
        if o.radius > 0:
            scaled = c.module.map_vector("affine", x, a=1 / o.radius, stream=stream)
            squares = c.module.row_dots(scaled, scaled, stream=stream)
            found = c.figures(("radius", squares, None))[0]
            if found["largest"] > 1 or found["plus_inf"]:
                return "blew up"
        if o.n_clusters > 0:  # on the host; nothing else in a flow copies a state there
            labels = cpu.cluster_labels(c.download(x), o.linkage)
            if int(labels.max()) + 1 <= o.n_clusters:
                return "clustered"
        return ""

    def _first_event(self, h: float) -> float:
        """The earliest fraction of the step at which the event is found, by bisection."""
        before, after = 0.0, 1.0
        for _ in range(_BISECTIONS):
            theta = 0.5 * (before + after)
            if self._event(self._inside(theta, h, self.middle)):
                after = theta
            else:
                before = theta
        return after

    def take(self, to: float) -> str:
        """Does what follows an accepted step to time ``to``: events, outputs, the move to the new state."""
        h = to - self.t
        status, theta, known = self._event(self.next), 1.0, False
        ended = bool(status)
        if ended or (self._waiting and self._waiting[-1] < to):
            try:
                self._end_slope(h)
                known = True
            except (Overflow, NoConvergence) as problem:
                status = "blew up" if isinstance(problem, Overflow) else "no convergence"
            if ended and known:
                theta = self._first_event(h)
        stop = self.t + theta * h if theta < 1 else to
        while self._waiting and self._waiting[-1] <= stop:
            at = self._waiting.pop()
            if at >= to or not known:
                self._save(at, self.next)
            else:
                self._save(at, self._inside((at - self.t) / h, h, self.empty()))
        state = self.next if theta >= 1 else self._inside(theta, h, self.empty())
        self._move(stop, state, moves_on=not ended)
        if self.o.t_eval is None or ended:
            self._save(stop, state)
        if self.o.report is not None:
            self.o.report(stop)
        return status

    def _move(self, to: float, state: Any, *, moves_on: bool) -> None:
        """Makes a new state the present one, with its slope if that is known; its array is not reused."""
        self.move(to, state, same_slope=moves_on)
        self.next = self.empty()
        if moves_on and self._end is not None:
            self.k[0], self._end = self._end, None
            self.has_first = True
