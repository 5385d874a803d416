"""The result of a flow of bridges, and its recorder."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend, backend_of
from .._host import HOST
from .._lazy_scores import Real
from .._progress import Bar
from .._words import Ended, Status
from ._barycentric import BarycentricMap, cloud_of

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BridgeFlow", "FlowEnds", "Recorder"]


class FlowEnds(Exception):
    """A step cannot be taken. The recorder then ends the flow with this text in its message. If the first
    step fails there is nothing to keep, so ``error`` is raised, which names the argument at fault."""

    def __init__(self, problem: str, error: Exception) -> None:
        super().__init__(problem)
        self.error = error


@dataclass(frozen=True, eq=False)
class BridgeFlow(Ended):
    """A trajectory of particles and how each of its bridges was solved."""

    kind: str
    t: npt.NDArray[np.float64] = field(repr=False)
    """times of the stored states; a step advances by epsilon"""
    x: Any = field(repr=False)
    """stored states (times, N, d), the first being the start; on a device if the particles came from one"""
    weights: npt.NDArray[np.float64] = field(repr=False)
    """masses of the particles (N,), which do not change"""
    epsilon: float
    status: str
    """"finished", or why the flow ended early: "no convergence" of a bridge, "blew up", or "stopped"
    before a step that could not be taken"""
    message: str
    """why the flow ended early, at which step and time; empty if it finished"""
    converged: bool
    """whether the flow finished, with every bridge solved to its tolerance"""
    n_steps: int
    """number of steps taken"""
    n_iter: npt.NDArray[np.int64] = field(repr=False)
    """iterations of the solver, for each step"""
    errors: npt.NDArray[np.float64] = field(repr=False)
    """marginal error of each step's bridge at its final check"""
    self_weight: npt.NDArray[np.float64] = field(repr=False)
    """mass that stays on its own point in the bridge of each step. Particles drawn from a law move too little
    by about this fraction. It is 0 for steps without motion"""
    theta: npt.NDArray[np.float64] = field(repr=False)
    """theta of each step; infinite if the particles were at the target and did not move"""
    unevenness: npt.NDArray[np.float64] = field(repr=False)
    """relative error of each step's displacement that comes from uneven spacing of the points on which the
    surrogate is defined (``max_unevenness`` of :func:`kl_flow`); NaN if it does not matter"""
    map: BarycentricMap | None = field(repr=False)
    """the last bridge, converged or not"""

    @property
    def X(self) -> Real:
        """The last good state (N, d)."""
        last: Real = cloud_of(self.x, (len(self.t) - 1,))
        return last

    def mean(self) -> Real:
        """Means of the stored states (times, d), a NumPy array."""
        means: Real = np.einsum("n,tnd->td", self.weights, self._states)
        return means

    @property
    def _states(self) -> Real:
        states: Real = backend_of(self.x).here("x", self.x)
        return states

    def covariance(self) -> Real:
        """Covariances of the stored states (times, d, d), a NumPy array."""
        centred = self._states - self.mean()[:, None]
        weighted = centred * self.weights[:, None]
        covariances: Real = np.swapaxes(weighted, 1, 2) @ centred
        return covariances

    def plot(self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1)) -> Figure:
        """Draws the paths of the particles, as :meth:`qkcore.ParticleFlow.plot` does."""
        from .. import _plots

        return _plots.flow(self, ax, dims)

    def animate(
        self, *, ax: Axes | None = None, dims: tuple[int, int] = (0, 1), interval: float = 40.0
    ) -> FuncAnimation:
        """An animation of the particles, as by :meth:`qkcore.ParticleFlow.animate`."""
        from .. import _plots

        return _plots.animate(self, ax, dims, interval)

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.bridge_flow(self)

    def __str__(self) -> str:
        _, n, d = self.x.shape
        work = f"{self.n_iter.mean():.1f} iterations per step" if self.n_steps else "no steps"
        return (
            f"{self.kind}, {n} particles in dimension {d}: {self.status}\n"
            f"  {self.n_steps} steps of {self.epsilon:g} to t = {self.t[-1]:g}, {work}, largest "
            f"marginal error {self.errors.max(initial=0.0):.3g}, largest self weight "
            f"{self.self_weight.max(initial=0.0):.3g}"
        )


class Recorder:
    """Stores the states of a running flow and the numbers about its steps, and shows its progress."""

    def __init__(
        self,
        kind: str,
        x: Real,
        w: npt.NDArray[np.float64],
        epsilon: float,
        n_steps: int,
        save_every: int,
        progress: bool,
        where: Backend = HOST,
    ) -> None:
        self._where = where
        self.ended = False
        self._kind, self._w, self._epsilon, self._n = kind, w, epsilon, n_steps
        self._every = _checks.integer("save_every", save_every)
        if self._every < 0:
            raise ValueError(f"save_every: wanted 0 (ends only) or more, got {save_every}")
        self._now = x
        self._done = 0
        self._t, self._x = [0.0], [np.array(x)]
        self._iterations: list[int] = []
        self._errors: list[float] = []
        self._alone: list[float] = []
        self._theta: list[float] = []
        self._uneven: list[float] = []
        self._map: BarycentricMap | None = None
        self._status, self._message = Status.FINISHED, ""
        self._bar = Bar(kind, progress, n_steps)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._bar.__exit__(kind, value, trace)
        if not isinstance(value, FlowEnds):
            return False
        if self._done == 0:
            raise value.error from None
        self.end(Status.STOPPED, str(value))
        return True

    def step(
        self, found: BarycentricMap, theta: float, new: Real, unevenness: float = np.nan
    ) -> Real:
        """Stores a step if its bridge converged and its result is finite; otherwise ends the flow."""
        self._map = found
        if not found.converged:
            self.end(Status.NO_CONVERGENCE, f"bridge not converged ({found.status})")
            return self._now
        if not (inside := np.isfinite(new).all(axis=1)).all():
            lost = int((~inside).sum())
            problem = f"{lost} of {len(new)} particles left the range of {new.dtype}"
            self.end(Status.BLEW_UP, problem)
            return self._now
        self._iterations.append(found.n_iter)
        self._errors.append(found.error)
        self._alone.append(found.self_weight)
        return self._advance(theta, new, unevenness)

    def end(self, status: Status, problem: str) -> None:
        """Stops the flow before the next step, and says why."""
        self.ended = True
        now = self._done * self._epsilon
        self._status = status
        self._message = f"ended at step {self._done + 1} of {self._n} (t = {now:g}): {problem}"

    def rest(self, x: Real) -> Real:
        """Stores a step in which nothing moves."""
        self._iterations.append(0)
        self._errors.append(0.0)
        self._alone.append(0.0)
        return self._advance(np.inf, x, np.nan)

    def _advance(self, theta: float, new: Real, unevenness: float) -> Real:
        self._theta.append(theta)
        self._uneven.append(unevenness)
        self._done += 1
        self._now = new
        if self._every and self._done % self._every == 0:
            self._t.append(self._done * self._epsilon)
            self._x.append(new)
        self._bar.step(f"{self._iterations[-1]} iterations")
        return new

    def result(self) -> BridgeFlow:
        last = self._done * self._epsilon
        if self._t[-1] != last:
            self._t.append(last)
            self._x.append(self._now)
        return BridgeFlow(
            kind=self._kind,
            t=np.array(self._t),
            x=self._where.give(self._where.from_host(np.stack(self._x))),
            weights=self._w,
            epsilon=self._epsilon,
            status=self._status,
            message=self._message,
            converged=not self.ended,
            n_steps=self._done,
            n_iter=np.array(self._iterations, np.int64),
            errors=np.array(self._errors),
            self_weight=np.array(self._alone),
            theta=np.array(self._theta),
            unevenness=np.array(self._uneven),
            map=None if self._map is None else self._map._given(self._where),
        )
