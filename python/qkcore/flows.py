"""Trajectories of particles under a velocity field (TPDE-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import backend_of
from ._checks import Real
from ._checks import particles as checks
from ._flow_tasks import FieldSpec, FlowOptions
from ._native import cpu
from ._progress import Bar
from ._words import Ended
from .fields import AttentionField

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ParticleFlow", "flow"]

Field = AttentionField | Callable[[Real, float], npt.ArrayLike]

_RTOL = {4: 1e-4, 8: 1e-6}
_ATOL = {4: 1e-6, 8: 1e-9}
_MEANING = {
    "finished": "the end of t_span was reached",
    "blew up": "the particles left the radius or the range of the dtype; x[-1] is the last finite state",
    "clustered": "there are as few clusters as asked for, since the time t[-1]",
    "step limit": "max_steps were not enough to reach the end; x[-1] is the last state; if the steps are "
    "short only for stability (a stiff flow), pass method='rodas4'",
    "step underflow": "the tolerance needs steps shorter than min_step; x[-1] is the last state",
    "no convergence": "Sinkhorn's iteration did not reach sinkhorn_tol; x[-1] is the last state before that",
}


@dataclass(frozen=True, eq=False)
class ParticleFlow(Ended):
    """A computed trajectory; ``print`` it for a summary."""

    t: npt.NDArray[np.float64] = field(repr=False)
    """times (T,): after every step, or those of ``t_eval``; if the flow ends early, its end is the last"""
    x: Real = field(repr=False)
    """states (T, N, d), in the order and dtype of X0; always finite"""
    status: str
    """"finished", or why the flow ended earlier: "blew up", "clustered", "step limit", "step underflow" or
    "no convergence" """
    method: str
    n_steps: int
    """steps accepted"""
    n_rejected: int
    n_evaluations: int
    """how often the velocity was computed"""
    field: Any = field(repr=False)
    """the field or function that was integrated"""

    @property
    def success(self) -> bool:
        """Whether the end of the time span, or the wanted number of clusters, was reached."""
        return self.status in ("finished", "clustered")

    @property
    def message(self) -> str:
        """One sentence that explains the status."""
        return _MEANING[self.status]

    def plot(self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1)) -> Figure:
        """Draws the paths of the particles, coloured by time; returns the matplotlib figure.

        ``dims`` are the two coordinates to draw; in one dimension the paths are drawn over time. ``ax`` are
        matplotlib axes to draw into. At most 400 particles are drawn.
        """
        from . import _plots

        return _plots.flow(self, ax, dims)

    def animate(
        self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1), interval: float = 40.0
    ) -> FuncAnimation:
        """The moving particles as a matplotlib animation.

        There is one frame of ``interval`` milliseconds for each stored time. ``.save("flow.gif")`` writes the
        animation to a file, and ``.to_jshtml()`` is for notebooks.
        """
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
        backend = backend_of(self.x)
        where = "" if backend.host_arrays else f", on {backend.place}"
        return f"{head}\n  last radius {backend.last_radius(self.x):.6g}{where}"


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

    "rodas4" is implicit (an L-stable Rosenbrock method), for stiff flows, where some directions relax much
    faster than the flow moves. Explicit methods need short steps there, only for stability; this one
    does not. Each step computes N d + 7 velocities, most of them for the Jacobian by differences, and factors
    a matrix with N d rows. It is for at most 4000 coordinates, on the CPU. It computes in float64 whatever
    the dtype of X0, and passes float64 to a field that is a Python function.

    For constant parameters and for layers the loop runs in C++ without returning to Python. Parameters that
    are callables of t are called once per stage; ``field`` may also be any function (X, t) -> (N, d).

    ``t_eval`` asks for states at given times instead of after every step. They are interpolated by the
    continuous extension of dopri5 (order 4) or rodas4 (order 3, for fixed steps; its adaptive steps end at
    these times), and by cubic Hermite interpolation for the other methods.

    ``blow_up=R`` ends the flow when a particle is farther than R from 0. ``clusters=(m, r)`` ends it when
    there are at most m clusters, where particles nearer than r are joined (single linkage). The time of such
    an event is found by bisection on the interpolant. Without ``blow_up`` a flow has blown up if it leaves
    the range of the dtype, or if it would change by its own size within 1000 of the shortest steps. The
    shortest step, ``min_step``, is 10 spacings of floating-point numbers at t unless it is given.

    For a field on the sphere, rows are scaled to norm 1 after each step.

    >>> import numpy as np, qkcore as qk
    >>> X0 = np.random.default_rng(0).normal(size=(50, 2))
    >>> field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=-np.eye(2))
    >>> sol = qk.flow(field, X0, (0.0, 1.0), "rk4", n_steps=20)
    >>> sol.x.shape, sol.status
    ((21, 50, 2), 'finished')
    """
    checks.choice("method", method, cpu.FLOW_METHODS)
    t0, t1 = span = _checks.time_span("t_span", t_span)
    backend = backend_of(X0)
    at = backend.at(n_threads)
    breaks = np.empty(0)
    given: FieldSpec | checks.Velocity
    if isinstance(field, AttentionField):
        x = field._particles(backend, "X0", X0)
        given = field._spec(x.shape[0])
        if field.times is not None:
            breaks = field.times[(field.times > t0) & (field.times < t1)]
    else:
        given = checks.velocity_function(field)
        x = backend.particles("X0", X0, None)
    size = np.dtype(x.dtype).itemsize
    steps = checks.step_sizes(method, n_steps, rtol, atol, (_RTOL[size], _ATOL[size]))
    with Bar("flow", progress, t1 - t0, start=t0) as bar:
        options = FlowOptions(
            method,
            t0,
            t1,
            *steps,
            _optional("first_step", first_step),
            _optional("min_step", min_step),
            _optional("max_step", max_step),
            _checks.integer_within("max_steps", max_steps, 1, 2**62, "accepted and rejected"),
            breaks,
            _checks.output_times(t_eval, span),
            isinstance(field, AttentionField) and field.sphere,
            _optional("blow_up", blow_up),
            *_cluster_event(clusters),
            bar.report,
        )
        found = backend.integrate(given, x, options, at)
    return ParticleFlow(found.t, found.x, found.status, method, *found[3:], field)


def _optional(name: str, value: float | None) -> float:
    return 0.0 if value is None else _checks.positive(name, value)


def _cluster_event(clusters: tuple[int, float] | None) -> tuple[int, float]:
    if clusters is None:
        return 0, 0.0
    try:
        count, linkage = clusters
    except (TypeError, ValueError):
        raise TypeError(
            f"clusters: wanted a pair (count, distance), got {clusters!r}; pass e.g. (1, 1e-3)"
        ) from None
    count = _checks.integer("clusters[0]", count)
    if count < 1:
        raise ValueError(f"clusters[0]: wanted a count of at least 1, got {count}")
    return count, _checks.positive("clusters[1]", linkage)
