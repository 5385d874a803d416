"""Trajectories of particles under a velocity field (TPDE-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks, _config, _device
from ._checks import Real
from ._checks import particles as checks
from ._native import cpu
from ._words import Ended
from .fields import AttentionField, _PythonField

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ParticleFlow", "flow"]

Field = AttentionField | Callable[[Real, float], npt.ArrayLike]

_TABLEAUX = cpu.tableaux()
_MOST_UNKNOWNS = 4000  # of implicit methods, which factor a matrix of that size at every step
_RTOL = {4: 1e-4, 8: 1e-6}
_ATOL = {4: 1e-6, 8: 1e-9}
_MEANING = {
    "finished": "the end of t_span was reached",
    "blew up": "the particles left the radius or the range of the dtype; x[-1] is the last finite state",
    "clustered": "as few clusters as asked for; t[-1] is when",
    "step limit": "max_steps were not enough; x[-1] is how far it came; if the steps are short for "
    "stability alone (a stiff flow), pass method='rodas4'",
    "step underflow": "the tolerance asks for steps below min_step; x[-1] is how far it came",
    "no convergence": "Sinkhorn's iteration missed sinkhorn_tol; x[-1] is the last state before",
}


@dataclass(frozen=True, eq=False)
class ParticleFlow(Ended):
    """A computed trajectory; ``print`` it for a summary."""

    t: npt.NDArray[np.float64] = field(repr=False)
    """times (T,): every step, or those of ``t_eval``. A flow that ends early ends with its last time."""
    x: Real = field(repr=False)
    """states (T, N, d), in the order and dtype of X0; always finite"""
    status: str
    """"finished", or why not: "blew up", "clustered", "step limit", "step underflow", "no convergence\""""
    method: str
    n_steps: int
    """steps accepted"""
    n_rejected: int
    n_evaluations: int
    """of the velocity"""
    field: Any = field(repr=False)
    """what was integrated"""

    @property
    def success(self) -> bool:
        """The end of the span, or the event that was waited for, was reached."""
        return self.status in ("finished", "clustered")

    @property
    def message(self) -> str:
        """What the status means, in a sentence."""
        return _MEANING[self.status]

    def plot(self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1)) -> Figure:
        """Draws the paths of the particles, coloured by time; returns the matplotlib figure.

        ``dims``: the two coordinates to draw; in one dimension, the paths over time. ``ax``: axes of your
        own. Of more than 400 particles some are drawn.
        """
        from . import _plots

        return _plots.flow(self, ax, dims)

    def animate(
        self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1), interval: float = 40.0
    ) -> FuncAnimation:
        """The moving particles as a matplotlib animation, one frame of ``interval`` milliseconds for each
        stored time: ``.save("flow.gif")`` writes it, ``.to_jshtml()`` is for notebooks."""
        from . import _plots

        return _plots.animate(self, ax, dims, interval)

    def _repr_html_(self) -> str:
        from . import _html

        return _html.flow(self)

    def __str__(self) -> str:
        times, n, d = self.x.shape
        head = (
            f"{self.status}: {self.message}\n"
            f"  {n} particles in {d} dimensions, {self.x.dtype}, {times} times from {self.t[0]:g} "
            f"to {self.t[-1]:g}\n"
            f"  {self.method}: {self.n_steps} steps, {self.n_rejected} rejected, "
            f"{self.n_evaluations} evaluations"
        )
        if _device.on_device(self.x):
            from ._device._flow import last_radius

            return f"{head}\n  last radius {last_radius(self.x):.6g}, on {_device.place(self.x)}"
        last = self.x[-1].astype(np.float64)
        size = max(float(np.abs(last).max()), 1e-300)  # taken out, for squares not to overflow
        radius = size * float(np.linalg.norm(last / size, axis=1).max())
        return f"{head}\n  last radius {radius:.6g}"


def flow(
    field: Field,
    X0: npt.ArrayLike,
    t_span: tuple[float, float],
    method: str = "dopri5",
    *,
    n_steps: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    t_eval: npt.ArrayLike | None = None,
    blow_up: float | None = None,
    clusters: tuple[int, float] | None = None,
    first_step: float | None = None,
    min_step: float | None = None,
    max_step: float | None = None,
    max_steps: int = 100_000,
    progress: bool = False,
    n_threads: int | None = None,
) -> ParticleFlow:
    r"""Integrates :math:`\dot x_i = \Gamma_{t,X}(x_i)` from X0 (N, d) over ``t_span`` (TPDE-2, eq 1.1).

    ``n_steps`` gives that many equal steps of "euler", "heun" (explicit trapezoid), "rk4", "dopri5" or
    "rodas4" (orders 1, 2, 4, 5, 4), and one more for each change of layer inside a step. Without it, "dopri5"
    and "rodas4" adapt their steps: the root mean square of the embedded error over ``atol + rtol |x|`` stays
    below 1 (PI control). Defaults: rtol 1e-6 and atol 1e-9, float32 1e-4 and 1e-6.

    "rodas4" is implicit (an L-stable Rosenbrock method), for stiff flows: where some directions relax much
    faster than the flow moves, explicit steps are short for stability alone, these are not. Each step costs
    N d + 7 velocities, for the Jacobian by differences, and the factorisation of a matrix of that size: for
    at most 4000 coordinates, on the CPU. It computes in float64 whatever the dtype of X0, and gives a Python
    field float64.

    The loop runs in C++ without returning to Python, for constant parameters and for layers. Parameters
    that are callables of t are called once per stage; ``field`` may also be any function (X, t) -> (N, d).

    ``t_eval`` asks for states at given times instead of every step: by the continuous extension of dopri5
    (order 4) and, in fixed steps, rodas4 (order 3; its adaptive steps end at these times), by cubic
    Hermite interpolation for the others. ``blow_up=R`` ends the flow when a particle is farther than R
    from 0, ``clusters=(m, r)`` when there are m clusters or fewer, particles nearer than r being joined
    (single linkage); the time is found by bisection on the interpolant. Without ``blow_up`` a flow that
    leaves the range of the dtype, or that changes by its own size within 1000 of the smallest steps that
    t can resolve (10 spacings each), has blown up. ``min_step`` is 10 spacings of t unless given.

    A field on the sphere has its rows scaled to norm 1 after each step.

    >>> import numpy as np, qkcore as qk
    >>> X0 = np.random.default_rng(0).normal(size=(50, 2))
    >>> field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=-np.eye(2))
    >>> sol = qk.flow(field, X0, (0.0, 1.0), "rk4", n_steps=20)
    >>> sol.x.shape, sol.status
    ((21, 50, 2), 'finished')
    """
    code = checks.choice("method", method, cpu.FLOW_METHODS)
    span = _checks.time_span("t_span", t_span, "negate V")
    if _device.on_device(X0):
        return _flow_on_device(
            field,
            X0,
            method,
            span,
            n_steps,
            (rtol, atol),
            (t_eval, blow_up, clusters),
            (first_step, min_step, max_step, max_steps),
            progress,
        )
    native: Any
    order = None
    dtype = None
    if _TABLEAUX[method]["gamma"] and callable(field):
        X0, dtype = _in_double(field, X0)
    breaks = np.empty(0)
    if isinstance(field, AttentionField):
        X = field._particles("X0", X0)
        native, order = field._spec(X), field._order
        if field.times is not None:
            breaks = field.times[(field.times > span[0]) & (field.times < span[1])]
    elif callable(field):
        X = checks.one_cloud("X0", X0)
        native = _PythonField(field)
    else:
        raise TypeError(
            f"field: wanted an AttentionField or a function (X, t) -> velocity, got {field!r}"
        )
    options = _steps(method, n_steps, rtol, atol, X.itemsize if dtype is None else dtype.itemsize)
    options |= {
        "method": code,
        "t0": span[0],
        "t1": span[1],
        "first_step": _optional("first_step", first_step),
        "min_step": _optional("min_step", min_step),
        "max_step": _optional("max_step", max_step),
        "max_steps": _checks.integer_within(
            "max_steps", max_steps, 1, 2**62, "accepted and rejected"
        ),
        "breaks": breaks,
        "t_eval": None if t_eval is None else checks.output_times(t_eval, span),
        "sphere": isinstance(field, AttentionField) and field.sphere,
        "radius": _optional("blow_up", blow_up),
        **_cluster_event(clusters),
    }
    bar = _Bar(progress, span)
    try:
        options["report"] = bar.call
        t, x, status, steps, rejected, evaluations = cpu.integrate(
            native, X if order is None else X[order], options, _config.resolve_threads(n_threads)
        )
    finally:
        bar.close()
    if order is not None:
        back = np.empty_like(x)
        back[:, order] = x
        x = back
    if dtype is not None:
        x = x.astype(dtype, copy=False)
    return ParticleFlow(t, x, cpu.FLOW_STATUS[status], method, steps, rejected, evaluations, field)


def _in_double(field: Field, X0: npt.ArrayLike) -> tuple[Real, np.dtype[Any]]:
    """The particles in the precision of implicit methods, and the dtype of the result."""
    X = (
        field._particles("X0", X0)
        if isinstance(field, AttentionField)
        else checks.one_cloud("X0", X0)
    )
    if X.size > _MOST_UNKNOWNS:
        raise ValueError(
            f"method: wanted an explicit one for {X.size} coordinates, got an implicit one, which factors a "
            f"matrix of that size at every step; pass at most {_MOST_UNKNOWNS}, or method='dopri5'"
        )
    return X.astype(np.float64, copy=False), X.dtype


def _flow_on_device(
    field: Any,
    X0: Any,
    method: str,
    span: tuple[float, float],
    n_steps: int | None,
    tolerances: tuple[float | None, float | None],
    events: tuple[npt.ArrayLike | None, float | None, tuple[int, float] | None],
    steps: tuple[float | None, float | None, float | None, int],
    progress: bool,
) -> ParticleFlow:
    from ._device import _flow as device

    if _TABLEAUX[method]["gamma"]:
        raise ValueError(
            f"method: wanted an explicit one for particles on a device, got {method!r}, which runs on the "
            "CPU; pass NumPy arrays, or method='dopri5'"
        )
    if not (isinstance(field, AttentionField) or callable(field)):
        raise TypeError(
            f"field: wanted an AttentionField or a function (X, t) -> velocity, got {field!r}"
        )
    breaks = np.empty(0)
    if isinstance(field, AttentionField) and field.times is not None:
        breaks = field.times[(field.times > span[0]) & (field.times < span[1])]
    itemsize = 8 if "64" in str(getattr(X0, "dtype", "")) else 4
    chosen = _steps(method, n_steps, *tolerances, itemsize)
    first, least, most, limit = steps
    t_eval, blow_up, clusters = events
    bar = _Bar(progress, span)
    try:
        t, x, status, taken, rejected, evaluations = device.flow(
            field,
            X0,
            device.FlowOptions(
                span,
                method,
                chosen["n_steps"],
                chosen["rtol"],
                chosen["atol"],
                _optional("first_step", first),
                _optional("min_step", least),
                _optional("max_step", most),
                _checks.integer_within("max_steps", limit, 1, 2**62, "accepted and rejected"),
                breaks,
                bar.call,
                None if t_eval is None else checks.output_times(t_eval, span),
                _optional("blow_up", blow_up),
                **_cluster_event(clusters),
            ),
        )
    finally:
        bar.close()
    return ParticleFlow(t, x, status, method, taken, rejected, evaluations, field)


def _steps(
    method: str, n_steps: int | None, rtol: float | None, atol: float | None, itemsize: int
) -> dict[str, Any]:
    if n_steps is not None:
        count = _checks.count("n_steps", n_steps)
        if rtol is not None or atol is not None:
            raise ValueError(
                "rtol, atol: wanted none beside n_steps, which fixes the steps; drop one of them"
            )
        return {"n_steps": count, "rtol": 1.0, "atol": 1.0}
    if not _TABLEAUX[method]["adaptive"]:
        raise ValueError(
            f"n_steps: wanted for {method}, whose steps are fixed, got None; "
            "pass n_steps=100, or method='dopri5' with rtol and atol"
        )
    return {
        "n_steps": 0,
        "rtol": _RTOL[itemsize] if rtol is None else _checks.positive("rtol", rtol),
        "atol": _ATOL[itemsize] if atol is None else _checks.positive("atol", atol),
    }


def _optional(name: str, value: float | None) -> float:
    return 0.0 if value is None else _checks.positive(name, value)


def _cluster_event(clusters: tuple[int, float] | None) -> dict[str, Any]:
    if clusters is None:
        return {"n_clusters": 0, "linkage": 0.0}
    try:
        count, linkage = clusters
    except (TypeError, ValueError):
        raise TypeError(
            f"clusters: wanted a pair (count, distance), got {clusters!r}; pass e.g. (1, 1e-3)"
        ) from None
    count = _checks.integer("clusters[0]", count)
    if count < 1:
        raise ValueError(f"clusters[0]: wanted a count of at least 1, got {count}")
    return {"n_clusters": count, "linkage": _checks.positive("clusters[1]", linkage)}


class _Bar:
    """A progress bar over time, or nothing."""

    def __init__(self, show: bool, span: tuple[float, float]) -> None:
        self._bar: Any = None
        self._start = span[0]
        if show:
            from tqdm.auto import tqdm

            self._bar = tqdm(desc="flow", total=span[1] - span[0], unit=" t")

    @property
    def call(self) -> Callable[[float], None] | None:
        return None if self._bar is None else self._update

    def _update(self, t: float) -> None:
        self._bar.update(t - self._start - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
