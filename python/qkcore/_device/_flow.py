"""Flows of particles on the device, as cpp/src/ode/flow.cpp: loops, what is kept of them, what ends them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._native import cpu
from ._arrays import Context
from ._errors import NoConvergence, Overflow
from ._steps import METHODS, Stepper
from ._velocity import DeviceField, cloud

__all__ = ["FlowOptions", "flow", "last_radius"]

_SAFETY, _SHRINK, _GROW, _ALPHA, _BETA = 0.9, 0.2, 10.0, 0.7, 0.4
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


class _Ended(Exception):
    """The flow is over; the status says why."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


def flow(field: Any, X0: Any, options: FlowOptions) -> tuple[Any, ...]:
    """(t, x, status, steps, rejected, evaluations): x is a device array (T, N, d)."""
    c = Context(X0)
    x = cloud(c, "X0", X0, field.d if hasattr(field, "parameters") else None)
    of = DeviceField(field, c, x, "X0")
    stepper = Stepper(of, METHODS[options.method], options.span[0], c.stream())
    record = _Record(stepper, options)
    rejected = [0]
    try:
        record.start()
        if options.n_steps:
            _fixed(stepper, record, options)
        else:
            _adaptive(stepper, record, options, rejected)
        status = "finished"
    except (_Ended, NoConvergence) as end:
        status = end.status if isinstance(end, _Ended) else "no convergence"
        record.close()
    result = record.stacked()
    return (
        np.asarray(record.times),
        result,
        status,
        record.n_steps,
        rejected[0],
        stepper.n_evaluations,
    )


def last_radius(states: Any) -> float:
    """The distance from 0 of the farthest particle of the last state."""
    c = Context(states)
    array = c.take("x", states)
    x, stream = array.entry(array.shape[0] - 1), c.stream()
    size = max(c.figures(("x", x, None))[0]["largest"], 1e-300)  # taken out, as squares overflow
    scaled = c.module.map_vector("affine", x, a=1 / size, stream=stream)
    squares = c.module.row_dots(scaled, scaled, stream=stream)
    return size * math.sqrt(c.figures(("radius", squares, None))[0]["largest"])


class _Record:
    """The states that are kept, and the events that are watched for."""

    def __init__(self, stepper: Stepper, options: FlowOptions) -> None:
        self.stepper, self.o = stepper, options
        self.times: list[float] = []
        self._states: list[Any] = []
        self._waiting = [] if options.t_eval is None else options.t_eval.tolist()[::-1]
        self.n_steps = 0

    def start(self) -> None:
        stepper = self.stepper
        if self.o.t_eval is None:
            self._save(stepper.t, stepper.x)
        while self._waiting and self._waiting[-1] <= stepper.t:
            self._save(self._waiting.pop(), stepper.x)
        status = self._event(stepper.x)
        if status:
            raise _Ended(status)

    def close(self) -> None:
        """A flow that ends early keeps the state it reached."""
        if not self.times or self.times[-1] < self.stepper.t:
            self._save(self.stepper.t, self.stepper.x)

    def _save(self, t: float, x: Any) -> None:
        self.times.append(t)
        self._states.append(x)

    def stacked(self) -> Any:
        """All states as one array of the caller's library."""
        c, stream, x = self.stepper.c, self.stepper.stream, self.stepper.field.x
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
        c, o, stream = self.stepper.c, self.o, self.stepper.stream
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
            if self._event(self.stepper.interpolate(theta, h, self.stepper.middle)):
                after = theta
            else:
                before = theta
        return after

    # ---- after a step --------------------------------------------------------------------------

    def take(self, to: float) -> None:
        """What follows a step to ``to``: outputs, events, the move."""
        stepper = self.stepper
        h = to - stepper.t
        self.n_steps += 1
        status, theta, known = self._event(stepper.next), 1.0, False
        ended = bool(status)
        if ended or (self._waiting and self._waiting[-1] < to):
            try:
                stepper.end_slope(h)
                known = True
            except (Overflow, NoConvergence) as problem:
                status = "blew up" if isinstance(problem, Overflow) else "no convergence"
            if ended and known:
                theta = self._first_event(h)
        stop = stepper.t + theta * h if theta < 1 else to
        while self._waiting and self._waiting[-1] <= stop:
            at = self._waiting.pop()
            if at >= to or not known:
                self._save(at, stepper.next)
            else:
                state = stepper.interpolate((at - stepper.t) / h, h, stepper.empty())
                self._save(at, state)
        state = stepper.next
        if theta < 1:
            state = stepper.interpolate(theta, h, stepper.empty())
        stepper.accept(stop, state, moves_on=not ended)
        if self.o.t_eval is None or ended:
            self._save(stop, state)
        if self.o.report is not None:
            self.o.report(stop)
        if status:
            raise _Ended(status)


# ---- loops ------------------------------------------------------------------------------------------


def _fixed(stepper: Stepper, record: _Record, o: FlowOptions) -> None:
    """Uniform steps, cut where the layers change."""
    t0, t1 = o.span
    h = (t1 - t0) / o.n_steps
    grid = {t0 + i * h for i in range(1, o.n_steps)} | {t1}
    cuts = {float(b) for b in o.breaks if all(abs(b - t) > 1e-9 * h for t in (*grid, t0))}
    for to in sorted(grid | cuts):
        try:
            stepper.step(to - stepper.t)
        except Overflow:
            raise _Ended("blew up") from None
        record.take(to)
        if np.any(np.abs(o.breaks - to) <= 1e-9 * h):
            stepper.has_first = False


def _adaptive(stepper: Stepper, record: _Record, o: FlowOptions, rejected: list[int]) -> None:
    h, last_error, taken = o.first_step, 1.0, 0
    just_rejected = overflow = False
    order = stepper.method.order
    while stepper.t < o.span[1]:
        ahead = o.breaks[o.breaks > stepper.t]
        limit = float(min(ahead[0], o.span[1])) if len(ahead) else o.span[1]
        left = limit - stepper.t
        if h <= 0:
            try:
                h, last_error = stepper.first_step(left, o.rtol, o.atol), 1.0
            except Overflow:
                raise _Ended("blew up") from None
        if o.max_step > 0:
            h = min(h, o.max_step)
        smallest = o.min_step or 10 * float(np.spacing(abs(stepper.t)))
        if h < smallest < left:
            gone = overflow or stepper.escaping()
            raise _Ended("blew up" if gone else "step underflow")
        if taken >= o.max_steps:
            raise _Ended("step limit")
        taken += 1
        size = left if h >= left * (1 - 1e-12) else 0.5 * left if 2 * h > left else h
        to = limit if size == left else stepper.t + size
        overflow = False
        try:
            stepper.step(to - stepper.t)
            error = stepper.error(to - stepper.t, o.rtol, o.atol)
        except Overflow:
            overflow, error = True, math.inf
        if not error <= 1.0:
            rejected[0] += 1
            just_rejected = True
            factor = _SAFETY * error ** (-1 / order) if math.isfinite(error) else 0.1
            h = size * max(_SHRINK, factor)
            continue
        record.take(to)
        floor = max(error, 1e-10)
        factor = _SAFETY * floor ** (-_ALPHA / order) * last_error ** (_BETA / order)
        h = size * min(max(factor, _SHRINK), 1.0 if just_rejected else _GROW)
        last_error, just_rejected = max(floor, 1e-4), False
        if len(ahead) and to >= ahead[0]:
            stepper.has_first, h = False, 0.0
