"""Flows of particles on the device, as cpp/src/ode/flow.cpp: what is kept of them, what ends them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._native import cpu
from .._ode import METHODS, Integrator, NoConvergence, Overflow
from ._cuda import Cuda
from ._steps import Particles
from ._velocity import DeviceField, cloud

__all__ = ["FlowOptions", "flow", "last_radius"]

_BISECTIONS = 30


class FlowOptions(NamedTuple):
    span: tuple[float, float]
    method: str
    n_steps: int
    rtol: float
    atol: float
    first_step: float
    min_step: float
    max_step: float
    max_steps: int
    breaks: npt.NDArray[np.float64]
    report: Callable[[float], None] | None
    t_eval: npt.NDArray[np.float64] | None = None
    radius: float = 0.0
    n_clusters: int = 0
    linkage: float = 0.0


def flow(field: Any, X0: Any, options: FlowOptions) -> tuple[Any, ...]:
    """(t, x, status, steps, rejected, evaluations): x is a device array (T, N, d)."""
    c = Cuda(X0)
    x = cloud(c, "X0", X0, field.d if hasattr(field, "parameters") else None)
    o, of = options, DeviceField(field, c, x, "X0")
    watched = _Watched(of, o, c.stream())
    integrator = Integrator(
        watched,
        max_steps=o.max_steps,
        first_step=o.first_step,
        min_step=o.min_step,
        max_step=o.max_step,
    )
    status = watched.start()
    if not status:
        (_fixed if o.n_steps else _adaptive)(integrator, o)
        status = integrator.status
    if status:
        watched.close()
    return (
        np.asarray(watched.times),
        watched.stacked(),
        status or "finished",
        integrator.n_steps,
        integrator.n_rejected,
        watched.n_evaluations,
    )


def last_radius(states: Any) -> float:
    """The distance from 0 of the farthest particle of the last state."""
    c = Cuda(states)
    array = c.take("x", states)
    x, stream = array.entry(array.shape[0] - 1), c.stream()
    size = max(c.figures(("x", x, None))[0]["largest"], 1e-300)  # taken out, as squares overflow
    scaled = c.module.map_vector("affine", x, a=1 / size, stream=stream)
    squares = c.module.row_dots(scaled, scaled, stream=stream)
    return size * math.sqrt(c.figures(("radius", squares, None))[0]["largest"])


class _Watched(Particles):
    """Particles, the states of them that are kept, and the events that are watched for."""

    def __init__(self, field: DeviceField, options: FlowOptions, stream: int) -> None:
        method = METHODS[options.method]
        super().__init__(field, method, options.span[0], stream, options.rtol, options.atol)
        self.o = options
        self.times: list[float] = []
        self._states: list[Any] = []
        self._waiting = [] if options.t_eval is None else options.t_eval.tolist()[::-1]

    def start(self) -> str:
        if self.o.t_eval is None:
            self._save(self.t, self.x)
        while self._waiting and self._waiting[-1] <= self.t:
            self._save(self._waiting.pop(), self.x)
        return self._event(self.x)

    def close(self) -> None:
        """A flow that ends early keeps the state it reached."""
        if not self.times or self.times[-1] < self.t:
            self._save(self.t, self.x)

    def _save(self, t: float, x: Any) -> None:
        self.times.append(t)
        self._states.append(x)

    def stacked(self) -> Any:
        """All states as one array of the caller's library."""
        c, stream, x = self.c, self.stream, self.field.x
        shape = (len(self._states), *x.shape)
        target = c.output("x", None, shape, x.dtype)
        out = c.module.asarray(
            c.module.empty(shape, x.dtype, c.device, stream) if target is None else target,
            "x",
            stream,
        )
        for index, state in enumerate(self._states):
            c.module.copy(state, out.entry(index), stream)
        return c.give(out, target, stream)

    # ---- events --------------------------------------------------------------------------------

    def _event(self, x: Any) -> str:
        """The status of an event that has come, or nothing."""
        c, o, stream = self.c, self.o, self.stream
        if o.radius > 0:
            scaled = c.module.map_vector("affine", x, a=1 / o.radius, stream=stream)
            squares = c.module.row_dots(scaled, scaled, stream=stream)
            found = c.figures(("radius", squares, None))[0]
            if found["largest"] > 1 or found["plus_inf"]:
                return "blew up"
        if o.n_clusters > 0:  # on the host: the one place where a flow brings back a state
            labels = cpu.cluster_labels(c.download(x), o.linkage)
            if int(labels.max()) + 1 <= o.n_clusters:
                return "clustered"
        return ""

    def _first_event(self, h: float) -> float:
        """The earliest fraction of the step at which the event is seen, by bisection."""
        before, after = 0.0, 1.0
        for _ in range(_BISECTIONS):
            theta = 0.5 * (before + after)
            if self._event(self.interpolate(theta, h, self.middle)):
                after = theta
            else:
                before = theta
        return after

    # ---- after a step --------------------------------------------------------------------------

    def take(self, to: float) -> str:
        """What follows a step to ``to``: outputs, events, the move."""
        h = to - self.t
        status, theta, known = self._event(self.next), 1.0, False
        ended = bool(status)
        if ended or (self._waiting and self._waiting[-1] < to):
            try:
                self.end_slope(h)
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
                self._save(at, self.interpolate((at - self.t) / h, h, self.empty()))
        state = self.next
        if theta < 1:
            state = self.interpolate(theta, h, self.empty())
        self.accept(stop, state, moves_on=not ended)
        if self.o.t_eval is None or ended:
            self._save(stop, state)
        if self.o.report is not None:
            self.o.report(stop)
        return status


# ---- loops ------------------------------------------------------------------------------------------


def _fixed(integrator: Integrator, o: FlowOptions) -> None:
    """Uniform steps, cut where the layers change."""
    t0, t1 = o.span
    h = (t1 - t0) / o.n_steps
    grid = {t0 + i * h for i in range(1, o.n_steps)} | {t1}
    cuts = {float(b) for b in o.breaks if all(abs(b - t) > 1e-9 * h for t in (*grid, t0))}
    for to in sorted(grid | cuts):
        if not integrator.fixed_step(to):
            return
        if np.any(np.abs(o.breaks - to) <= 1e-9 * h):
            integrator.restart()


def _adaptive(integrator: Integrator, o: FlowOptions) -> None:
    for to in o.breaks[(o.breaks > o.span[0]) & (o.breaks < o.span[1])]:
        if not integrator.advance(float(to)):
            return
        integrator.restart()
    integrator.advance(o.span[1])
