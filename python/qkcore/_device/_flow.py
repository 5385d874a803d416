"""Particles on the device: velocities, and the steps of a flow as combinations of device arrays.

The methods and the control of the step are those of cpp/src/flow.cpp; what is asked of the device per step
is one summary, to see that the state is finite and, when steps adapt, how large the error is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._score_masks import UNBOUNDED
from ._arrays import Context
from ._operators import WEIGHTS

__all__ = ["flow", "velocity"]

_KINDS = ("softmax", "l2", "linear", "exp", "relu", "sigmoid")
_SAFETY, _SHRINK, _GROW, _ALPHA, _BETA = 0.9, 0.2, 10.0, 0.7, 0.4


class Tableau(NamedTuple):
    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] = ()
    last_is_next: bool = False


_LAST = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
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
    ),
}


class _Overflow(Exception):
    """A state or slope that is not finite."""


class _Field:
    """An AttentionField whose matrices are on the device, or any function of device arrays."""

    def __init__(self, field: Any, c: Context, x: Any) -> None:
        self.field, self.c, self.x = field, c, x
        self.attention = hasattr(field, "parameters")
        self._uploaded: tuple[float, tuple[Any, Any, Any]] | None = None
        self._start = 0.0
        if self.attention:
            _refuse(field)

    def enter(self, t: float) -> None:
        """A step begins: its layer stays in force to the end of the step."""
        self._start = t

    def matrices(self, t: float) -> tuple[Any, Any, Any]:
        """Q and K (heads, k, d), V (heads, d, d) in force at t; uploaded when they change."""
        field = self.field
        key = t if field.time_dependent else 0.0
        if field.times is not None:
            t = self._start
            key = float(np.searchsorted(field.times, t, side="right"))
        if self._uploaded is None or self._uploaded[0] != key:
            Q, K, V = field.parameters(t)
            V = np.broadcast_to(V, (field.heads, *V.shape[1:]))
            ready = tuple(self.c.upload(m, self.x.dtype) for m in (Q, K, V))
            self._uploaded = (key, ready)
        assert self._uploaded is not None
        return self._uploaded[1]

    def __call__(self, x: Any, t: float, out: Any, stream: int) -> Any:
        if not self.attention:
            given = self.field(self.c.library.take(x), t)
            array = self.c.take("field", given, dtype=self.x.dtype, like="X0")
            if array.shape != self.x.shape or not array.contiguous:
                raise ValueError(
                    f"field: wanted a contiguous velocity of shape {self.x.shape}, got {array.shape} "
                    f"with strides {array.strides}"
                )
            self.c.module.copy(array, out, stream)
            return out
        kind = self.field.kind
        causal = isinstance(self.field.mask, str)
        return self.c.module.velocity(
            x,
            *self.matrices(t),
            WEIGHTS.index("softmax" if kind == "l2" else kind),
            kind == "l2",
            1.0,
            kind not in ("softmax", "l2"),
            -UNBOUNDED,
            0 if causal else UNBOUNDED,
            out,
            stream,
        )


def _refuse(field: Any) -> None:
    """What the kernels do not compute: said, and left to the CPU."""
    wrong = (
        ("kind", field.kind not in _KINDS or field.centred, f"one of {', '.join(_KINDS)}"),
        ("weights", field.weights is not None, "None"),
        ("mask", field.mask is not None and not isinstance(field.mask, str), 'None or "causal"'),
        ("sphere", field.sphere, "False"),
        (
            "mask",
            isinstance(field.mask, str) and field.kind not in ("softmax", "l2"),
            "None for kinds that are not normalised",
        ),
    )
    for name, bad, wanted in wrong:
        if bad:
            raise ValueError(
                f"{name}: wanted {wanted} for particles on a device, got {field!r}; "
                "this field runs on the CPU: pass a NumPy array"
            )


def _cloud(c: Context, name: str, X: Any, d: int | None) -> Any:
    x = c.numbers(name, X)
    if x.ndim != 2 or (d is not None and x.shape[1] != d):
        wanted = "d" if d is None else d
        raise ValueError(f"{name}: wanted particles of shape (N, {wanted}), got {x.shape}")
    if not x.contiguous:
        raise ValueError(
            f"{name}: wanted a contiguous array, got strides {x.strides}; pass a contiguous copy"
        )
    c.finite(name, c.figures((name, x, None))[0])
    return x


def velocity(field: Any, X: Any, t: float) -> Any:
    """The velocities (N, d) of particles on the device."""
    c = Context(X)
    x = _cloud(c, "X", X, field.d)
    stream = c.stream()
    target = c.output("out", None, x.shape, x.dtype)
    out = target if target is not None else c.module.empty(x.shape, x.dtype, c.device, stream)
    got = _Field(field, c, x)(x, t, out, stream)
    figures = c.figures(("velocity", got, None))[0]
    if figures["nan"] or figures["plus_inf"] or figures["minus_inf"]:
        raise OverflowError(
            f"X: velocities of {field.kind} attention overflow {x.dtype}; scale the points or the "
            "parameters down" + (", or use float64" if x.dtype == "float32" else "")
        )
    return c.give(got, target, stream)


class _Stepper:
    """One state on the device, its slopes, and steps from it."""

    def __init__(self, field: _Field, method: Tableau, t0: float, stream: int) -> None:
        self.field, self.method, self.c = field, method, field.c
        self.stream, self.t = stream, t0
        self.x = field.x
        self.k = [self._empty() for _ in method.a]
        self.middle, self.next = self._empty(), self._empty()
        self.zero: Any = None
        self.has_first = False
        self.n_evaluations = 0

    def _empty(self) -> Any:
        x = self.field.x
        return self.c.module.empty(x.shape, x.dtype, self.c.device, self.stream)

    def slope(self, t: float, x: Any, out: Any) -> None:
        self.n_evaluations += 1
        self.field(x, t, out, self.stream)

    def combine(self, weights: tuple[float, ...], h: float, out: Any, x: Any = None) -> Any:
        k = tuple(self.k[: len(weights)])
        return self.c.module.combine(
            self.x if x is None else x, k, weights, h, out=out, stream=self.stream
        )

    def first_slope(self) -> None:
        self.field.enter(self.t)
        if not self.has_first:
            self.slope(self.t, self.x, self.k[0])
            self.has_first = True

    def step(self, h: float) -> None:
        """Stages, and the state at t + h in ``next``; raises when it is not finite."""
        self.first_slope()
        last = len(self.method.a) - 1
        for s in range(1, last + 1):
            at = self.next if self.method.last_is_next and s == last else self.middle
            self.combine(self.method.a[s], h, at)
            self.slope(self.t + self.method.c[s] * h, at, self.k[s])
        if not self.method.last_is_next:
            self.combine(self.method.b, h, self.next)
        # One look per step: a stage that overflowed leaves its mark on the last slope and state.
        for found in self.c.figures(("x", self.next, None), ("k", self.k[-1], None)):
            if found["nan"] or found["plus_inf"] or found["minus_inf"]:
                raise _Overflow

    def scaled_norm(self, v: Any, x: Any, y: Any, rtol: float, atol: float) -> float:
        ratio = self.c.module.map_vector("relative", v, x, y, a=atol, b=rtol, stream=self.stream)
        found = self.c.figures(("error", ratio, None))[0]
        if found["nan"] or found["plus_inf"] or found["minus_inf"]:
            return math.inf
        return math.sqrt(found["squares"] / math.prod(self.field.x.shape))

    def error(self, h: float, rtol: float, atol: float) -> float:
        if self.zero is None:
            self.zero = self.c.upload(np.zeros(self.field.x.shape), self.field.x.dtype)
        off = self.combine(self.method.error, h, self.middle, x=self.zero)
        return self.scaled_norm(off, self.x, self.next, rtol, atol)

    def first_step(self, limit: float, rtol: float, atol: float) -> float:
        """Hairer, Nørsett and Wanner, II.4: from the size of the slope and of its change."""
        self.first_slope()
        size = self.scaled_norm(self.x, self.x, self.x, rtol, atol)
        speed = self.scaled_norm(self.k[0], self.x, self.x, rtol, atol)
        if not math.isfinite(speed):
            raise _Overflow
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

    def accept(self, to: float) -> Any:
        """Moves on, and hands out the new state, which nobody writes to again."""
        self.t, self.x = to, self.next
        self.next = self._empty()
        self.has_first = self.method.last_is_next
        if self.has_first:
            self.k[0], self.k[-1] = self.k[-1], self.k[0]
        return self.x


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


def flow(field: Any, X0: Any, options: FlowOptions) -> tuple[Any, ...]:
    """(t, x, status, steps, rejected, evaluations): x is a device array (T, N, d)."""
    c = Context(X0)
    x = _cloud(c, "X0", X0, field.d if hasattr(field, "parameters") else None)
    stepper = _Stepper(_Field(field, c, x), METHODS[options.method], options.span[0], c.stream())
    times, states = [options.span[0]], [x]
    loop = _fixed if options.n_steps else _adaptive
    status, rejected = loop(stepper, options, times, states)
    shape = (len(states), *x.shape)
    target = c.output("x", None, shape, x.dtype)
    out = c.module.asarray(
        c.module.empty(shape, x.dtype, c.device, stepper.stream) if target is None else target,
        "x",
        stepper.stream,
    )
    for index, state in enumerate(states):
        c.module.copy(state, out.entry(index), stepper.stream)
    result = c.give(out, target, stepper.stream)
    return (
        np.asarray(times),
        result,
        status,
        len(times) - 1,
        rejected,
        stepper.n_evaluations,
    )


def _take(
    stepper: _Stepper, o: FlowOptions, to: float, times: list[float], states: list[Any]
) -> None:
    states.append(stepper.accept(to))
    times.append(to)
    if o.report is not None:
        o.report(to)


def _fixed(
    stepper: _Stepper, o: FlowOptions, times: list[float], states: list[Any]
) -> tuple[str, int]:
    """Uniform steps, cut where the layers change."""
    t0, t1 = o.span
    h = (t1 - t0) / o.n_steps
    grid = {t0 + i * h for i in range(1, o.n_steps)} | {t1}
    cuts = {float(b) for b in o.breaks if all(abs(b - t) > 1e-9 * h for t in (*grid, t0))}
    for to in sorted(grid | cuts):
        try:
            stepper.step(to - stepper.t)
        except _Overflow:
            return "blew up", 0
        _take(stepper, o, to, times, states)
        if np.any(np.abs(o.breaks - to) <= 1e-9 * h):
            stepper.has_first = False
    return "finished", 0


def _adaptive(
    stepper: _Stepper, o: FlowOptions, times: list[float], states: list[Any]
) -> tuple[str, int]:
    h, last_error, rejected, taken = o.first_step, 1.0, 0, 0
    just_rejected = overflow = False
    order = stepper.method.order
    while stepper.t < o.span[1]:
        ahead = o.breaks[o.breaks > stepper.t]
        limit = float(min(ahead[0], o.span[1])) if len(ahead) else o.span[1]
        left = limit - stepper.t
        if h <= 0:
            try:
                h, last_error = stepper.first_step(left, o.rtol, o.atol), 1.0
            except _Overflow:
                return "blew up", rejected
        if o.max_step > 0:
            h = min(h, o.max_step)
        smallest = o.min_step or 10 * float(np.spacing(abs(stepper.t)))
        if h < smallest < left:
            gone = overflow or stepper.escaping()
            return ("blew up" if gone else "step underflow"), rejected
        if taken >= o.max_steps:
            return "step limit", rejected
        taken += 1
        size = left if h >= left * (1 - 1e-12) else 0.5 * left if 2 * h > left else h
        to = limit if size == left else stepper.t + size
        overflow = False
        try:
            stepper.step(to - stepper.t)
            error = stepper.error(to - stepper.t, o.rtol, o.atol)
        except _Overflow:
            overflow, error = True, math.inf
        if not error <= 1.0:
            rejected += 1
            just_rejected = True
            factor = _SAFETY * error ** (-1 / order) if math.isfinite(error) else 0.1
            h = size * max(_SHRINK, factor)
            continue
        _take(stepper, o, to, times, states)
        floor = max(error, 1e-10)
        factor = _SAFETY * floor ** (-_ALPHA / order) * last_error ** (_BETA / order)
        h = size * min(max(factor, _SHRINK), 1.0 if just_rejected else _GROW)
        last_error, just_rejected = max(floor, 1e-4), False
        if len(ahead) and to >= ahead[0]:
            stepper.has_first, h = False, 0.0
    return "finished", rejected
