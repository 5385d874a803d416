"""The probability-flow ODE on the simplex (EOT-5; EOT 3.3, H.1, L.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._ode import METHODS, Integrator, Overflow, State
from .._progress import Bar
from .._words import Ended
from ._drifts import Drift, FittedDrift, Piece, pieces_of
from ._mobility import mobility_product
from ._softmax import plain_entropy, plain_softmax

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]

MASS_TOLERANCE = 1e-12  # H.1
# Units of rtol + atol by which p may differ, in total variation, from the softmax of the integrated logits,
# tau log p(0) + int b dt. Of 400 random problems 353 stayed below this, with errors of at most 923
# tolerances. In 16 problems the error was above 0.05; 15 of these exceeded this limit, the other ran with
# rtol = 7e-4.
LOGIT_SLACK = 1000.0

_MESSAGES = {
    "finished": "the end of t_span was reached",
    "step limit": "max_steps ran out; raise it, or loosen rtol and atol",
    "step underflow": "the step became too small to go on: the drift is too rough here",
    "blew up": "the drift gives NaN or inf from here on, or moves p too fast for any step",
}


@dataclass(frozen=True)
class PFSolution(Ended):
    """A path of probabilities, and what the checks of H.1 found on the way (EOT-5).

    ``t`` (times), ``p`` (times, ..., V) and ``entropy`` (times, ...) end where the integration ended:
    when ``success`` is False that is before the end of t_span, and ``status`` and ``message`` say why.
    """

    t: Double
    p: Real
    entropy: Double
    status: str
    message: str
    t_reached: float  #: the end of t_span, or the time at which the integration failed
    n_steps: int  #: accepted steps
    n_rejected: int  #: rejected steps
    n_evaluations: int  #: evaluations of the drift
    max_mass_error: float  #: largest :math:`|\\sum_i p_i - 1|` before any repair
    n_renormalized: int  #: steps after which p was divided by its sum, which was off by > 1e-12
    most_negative: float  #: smallest entry before any repair, 0 when none was negative
    n_projected: int  #: steps after which rows were projected back onto the simplex
    entropy_residual: float  #: largest :math:`|H(t) - H(0) - \\int \\dot H|`, with L.1's rate
    coordinates: str  #: "p" or "logits": those in which this path was integrated
    logit_residual: float
    """largest total variation between p and the softmax of :math:`\\tau\\log p(0) + \\int b\\,dt` while the
    path was integrated in "p"; if that was too large, the path was integrated again in logits"""

    @property
    def success(self) -> bool:
        """Whether the path covers all of t_span."""
        return self.status == "finished"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was repaired on the way, in words; empty if nothing had to be repaired."""
        out = []
        if self.n_renormalized:
            out.append(
                f"renormalised after {self.n_renormalized} steps (mass off by {self.max_mass_error:.1e})"
            )
        if self.n_projected:
            out.append(
                f"projected after {self.n_projected} steps (an entry was {self.most_negative:.1e}); entries "
                'that were set to 0 stay 0, which coordinates="logits" avoids'
            )
        if self.coordinates == "logits" and self.logit_residual:
            out.append(
                f"integrated in logits: in p the path differed by {self.logit_residual:.1e} (in total "
                "variation) from the softmax of its integrated logits: entries far below atol had grown"
            )
        return tuple(out)

    def __str__(self) -> str:
        lines = [
            f"PFSolution: {self.status} at t = {self.t_reached:g} ({self.message})",
            f"  {self.n_steps} steps, {self.n_rejected} rejected, {self.n_evaluations} drift evaluations",
            f"  mass within {self.max_mass_error:.1e}, entropy balance within {self.entropy_residual:.1e}",
            *(f"  {text}" for text in self.warnings),
        ]
        return "\n".join(lines)


def entropy_rate(p: npt.ArrayLike, b: npt.ArrayLike, tau: float = 1.0) -> Any:
    """Entropy's rate under :math:`\\dot p = J b`: :math:`\\dot H = -\\sum_i (Jb)_i \\log p_i` (L.1).

    It is minus the covariance of b and log p under p, divided by tau: negative if b raises likely entries.

    >>> import numpy as np, qkcore as qk
    >>> p = np.array([0.75, 0.25])
    >>> bool(np.isclose(qk.simplex.entropy_rate(p, np.log(p)), -0.1875 * np.log(3.0) ** 2))
    True
    """
    q = _checks.probabilities("p", p)
    drift = _checks.real_array("b", b)
    _checks.same_dtype("b", drift, q.dtype, "p")
    _checks.core_shape("b", drift.shape, (q.shape[-1],), "like p")
    _checks.finite("b", drift)
    shape = np.broadcast_shapes(q.shape, drift.shape)
    q, drift = np.broadcast_to(q, shape), np.broadcast_to(drift, shape)
    out = _rate(q, mobility_product(q, drift, _checks.positive("tau", tau)))
    return float(out) if out.ndim == 0 else out


def _rate(p: Real, velocity: Real) -> Real:
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    out: Real = np.asarray(-np.einsum("...i,...i->...", velocity, logs))
    return out


def project_to_simplex(y: Double) -> Double:
    """The nearest point of the simplex to every row: :math:`\\max(0, y_i - \\nu)` summing to one (H.1)."""
    y = _checks.doubles("y", y)
    _checks.shape("y", y.shape, (..., "V"), what="rows")
    _checks.not_empty("y", y)
    descending = -np.sort(-y, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1
    counts = np.arange(1, y.shape[-1] + 1)
    kept = (descending - excess / counts > 0).sum(axis=-1, keepdims=True)
    nu = np.take_along_axis(excess, kept - 1, axis=-1) / kept
    out: Double = np.maximum(y - nu, 0.0)
    return out


class _Path(State):
    """One integration, with its output and its checks. The state x is p, or the logits."""

    def __init__(
        self,
        p0: Double,
        t0: float,
        settings: tuple[float, float, float],
        logits: bool,
        of_logits: bool,
        wanted: Double | None,
    ) -> None:
        self.tau, self.rtol, self.atol = settings
        self.logits, self.of_logits = logits, of_logits
        with np.errstate(divide="ignore"):
            self.z = self.tau * np.log(p0)  # the logits: their start plus the integral of the drift
        super().__init__(METHODS["dopri5"], t0, self.z if logits else p0)
        n_stages = len(self.k)
        # The drift at each stage of a step, and the state at which it was evaluated.
        self.drifts: list[Double] = [p0] * n_stages
        self.states: list[Double] = [p0] * n_stages
        self.piece: Piece
        self.bar: Bar
        self.wanted = [] if wanted is None else wanted.tolist()[::-1]
        self.every_step = wanted is None
        self.times: list[float] = []
        self.path: list[Double] = []
        if wanted is None or wanted[0] == t0:
            self.times, self.path = [t0], [p0]
            self.wanted[-1:] = []
        self.n_evaluations = 0
        self.max_mass_error = self.most_negative = self.entropy_residual = 0.0
        self.n_renormalized = self.n_projected = 0
        self.logit_residual = 0.0
        self.start_entropy = plain_entropy(p0)
        self.flux = np.zeros(p0.shape[:-1])

    def probabilities(self, y: Double) -> Double:
        return np.asarray(plain_softmax(y, self.tau)) if self.logits else y

    def drift(self, t: float, p: Double) -> Double:
        self.n_evaluations += 1
        state = p
        if self.of_logits:
            with np.errstate(divide="ignore", invalid="ignore"):
                state = self.tau * np.log(p)
        b = np.asarray(self.piece.drift(state, t), dtype=np.float64)
        if b.shape != p.shape:
            try:
                b = np.broadcast_to(b, p.shape)
            except ValueError:
                raise ValueError(
                    f"drift: wanted values of shape {p.shape} like p, got {b.shape}; "
                    "return one number per entry"
                ) from None
        if not np.isfinite(b).all():
            raise Overflow
        return b

    # ---- called by the integrator ---------------------------------------------------------------

    def slope(self, t: float, x: Double, s: int) -> Double:
        p = self.probabilities(x)
        b = self.drift(t, p)
        self.states[s], self.drifts[s] = x, b
        if self.logits:
            return b
        with np.errstate(over="ignore", invalid="ignore"):
            velocity: Double = mobility_product(p, b, self.tau)
        return velocity

    def error(self, h: float) -> float:
        """The estimated error. An entry below -atol rejects the step: its error is larger than atol."""
        error = super().error(h)
        return error if self.logits else max(error, -float(self.next.min()) / self.atol)

    def norm(self, v: Double, other: Double) -> float:
        if self.logits:  # an error of log p is a relative error of p
            return _norm(v / (self.tau * self.rtol))
        return _norm(v / (self.atol + self.rtol * np.maximum(np.abs(self.x), np.abs(other))))

    def sizes(self) -> tuple[float, float]:
        finite = np.where(np.isfinite(self.x), self.x, 0.0)  # logits of entries that are 0
        return self.norm(finite, self.x), self.norm(self.k[0], self.x)

    def escaping(self, resolution: float) -> bool:
        return False  # p is bounded, so tiny steps mean a rough drift, not an escape to infinity

    def take(self, to: float) -> str:
        """Checks a step, repairs the state at its end, and stores the states that were asked for."""
        h, end = to - self.t, self.next
        repaired = self._accept(h)
        if self.disagrees:
            return "disagrees"
        while self.wanted and self.wanted[-1] <= to:
            at = self.wanted.pop()
            inside = self.combine(self.method.at((at - self.t) / h), h) if at < to else self.next
            self._keep(at, inside)
        if self.every_step:
            self._keep(to, self.next)
        self.bar.to(to)
        self.move(to, self.next, same_slope=not repaired)
        self.states[0], self.states[-1] = end, self.states[0]
        self.drifts[0], self.drifts[-1] = self.drifts[-1], self.drifts[0]
        return ""

    def _keep(self, t: float, x: Double) -> None:
        """Stores p. Interpolation keeps its mass, but may give negative entries: then p is projected."""
        p = self.probabilities(x)
        self.times.append(t)
        self.path.append(project_to_simplex(p) if p.min() < 0 else p)

    def _accept(self, h: float) -> bool:
        """Adds the step to the checks; True if the state at its end was repaired."""
        for weight, x, slope in zip(self.method.b, self.states, self.k, strict=True):
            if weight:
                p = self.probabilities(x)
                velocity = mobility_product(p, slope, self.tau) if self.logits else slope
                self.flux += h * weight * _rate(np.maximum(p, 0.0), velocity)
        repaired = False
        if not self.logits:
            for weight, b in zip(self.method.b, self.drifts, strict=True):
                self.z = self.z + h * weight * b
            repaired = self._repair()
            summed = plain_softmax(self.z, self.tau)
            off = float(np.abs(summed - self.next).sum(axis=-1).max()) / 2
            self.logit_residual = max(self.logit_residual, off)
        residual = plain_entropy(self.probabilities(self.next)) - self.start_entropy - self.flux
        self.entropy_residual = max(self.entropy_residual, float(np.abs(residual).max()))
        return repaired

    @property
    def disagrees(self) -> bool:
        """Whether p is wrong because entries below atol, whose errors are not controlled, have grown."""
        return self.logit_residual > min(0.1, LOGIT_SLACK * (self.rtol + self.atol))

    def _repair(self) -> bool:
        smallest = float(self.next.min())
        if negative := smallest < 0:
            self.most_negative = min(self.most_negative, smallest)
            self.n_projected += 1
            rows = self.next.min(axis=-1) < 0
            self.next = self.next.copy()
            self.next[rows] = project_to_simplex(self.next[rows])
        mass = self.next.sum(axis=-1, keepdims=True)
        off = float(np.abs(mass - 1).max())
        self.max_mass_error = max(self.max_mass_error, off)
        if heavy := off > MASS_TOLERANCE:
            self.n_renormalized += 1
            self.next = self.next / mass
        return negative or heavy


def _norm(x: Double) -> float:
    """The largest root mean square of a row, so that every row of a batch meets the tolerance."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.mean(x * x, axis=-1)).max())


def pf_ode(
    p0: npt.ArrayLike,
    drift: Drift | FittedDrift | tuple[npt.ArrayLike, npt.ArrayLike],
    t_span: tuple[float, float],
    *,
    tau: float = 1.0,
    t_eval: npt.ArrayLike | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    max_steps: int = 2000,
    coordinates: str = "p",
    drift_of: str = "p",
    progress: bool = False,
) -> PFSolution:
    """Move p along a drift b of its logits: :math:`\\dot p = J^\\tau(p)\\, b(p, t)` (EOT-5, theorem 3.7).

    p0: one vector (V,), or rows (..., V), which are integrated with the same steps. drift: one of

    - a function ``b(p, t)``, with values of p's shape (float64);
    - a table ``(times, values)``. With as many values as times, the drift is linear in between; with one
      value less, it is constant on each interval (the increments of layers). The times must cover ``t_span``;
    - a fitted model with ``predict``, of p or of p and the time (see :mod:`qkcore.diagnostics.drift`).

    With ``drift_of="logits"`` the drift is called with :math:`\\tau \\log p` instead of p.
    ``coordinates="logits"`` integrates :math:`\\dot z = b`, whose softmax solves the same equation: mass and
    positivity are then exact, and ``rtol`` bounds the relative error of every entry, however small. The
    default, p itself, is the choice of the paper. In p, errors of entries below ``atol`` are not controlled,
    and an entry of 1e-100 whose logit rises by 300 ends near 1. So p is compared with the softmax of the
    integrated logits; if they differ too much, the path is integrated again in logits, and ``coordinates``
    and ``warnings`` of the result say so.

    The method is Dormand-Prince 5(4) with the step control of H.1. After each step, rows with a negative
    entry are projected onto the simplex (an entry below -atol rejects the step), rows whose sum is wrong by
    more than 1e-12 are divided by it, and the entropy is compared with the integral of :func:`entropy_rate`.
    The result reports all of this. ``t_eval``: the times at which p is wanted (interpolated to order four);
    default: the ends of the steps. If the integration fails, the result has the path up to there and a
    ``status`` that says why. Exceptions that the drift raises pass through. If the drift is NaN or inf inside
    a trial step, a shorter step is tried, so the path ends where the drift stops being finite.

    >>> import numpy as np, qkcore as qk
    >>> sol = qk.simplex.pf_ode(np.array([0.5, 0.5]), lambda p, t: np.array([np.log(3.0), 0.0]), (0, 1))
    >>> sol.status, sol.p[-1].round(6)
    ('finished', array([0.75, 0.25]))
    """
    start = _checks.probabilities("p0", p0)
    t0, t1 = span = _checks.time_span("t_span", t_span, "negate the drift")
    p = start.astype(np.float64)
    p /= p.sum(axis=-1, keepdims=True)
    settings = (
        _checks.positive("tau", tau),
        _checks.positive("rtol", rtol),
        _checks.positive("atol", atol),
    )
    in_logits = _checks.one_of("coordinates", coordinates, ("p", "logits")) == "logits"
    of_logits = _checks.one_of("drift_of", drift_of, ("p", "logits")) == "logits"
    limit = _checks.integer_within("max_steps", max_steps, 1, 10**9, "allow at least one step")
    times = _checks.output_times(t_eval, span)
    pieces = pieces_of(drift, p.shape, t0, t1)

    def integrate(in_logits: bool) -> tuple[_Path, Integrator]:
        run = _Path(p, t0, settings, in_logits, of_logits, times)
        steps = Integrator(run, max_steps=limit, elementary=True)
        with Bar("pf_ode", progress, t1 - t0, start=t0) as run.bar:
            for piece in pieces:
                run.piece = piece
                steps.restart()
                if not steps.advance(piece.stop):
                    break
        return run, steps

    run, steps = integrate(in_logits)
    residual = run.logit_residual
    if run.disagrees:
        in_logits, spent = True, run.n_evaluations
        run, steps = integrate(True)
        run.n_evaluations += spent
    path = np.stack(run.path) if run.path else np.zeros((0, *p.shape))
    status = steps.status or "finished"
    return PFSolution(
        t=np.array(run.times),
        p=path.astype(start.dtype),
        entropy=plain_entropy(path),
        status=status,
        message=_MESSAGES[status],
        t_reached=run.t,
        n_steps=steps.n_steps,
        n_rejected=steps.n_rejected,
        n_evaluations=run.n_evaluations,
        max_mass_error=run.max_mass_error,
        n_renormalized=run.n_renormalized,
        most_negative=run.most_negative,
        n_projected=run.n_projected,
        entropy_residual=run.entropy_residual,
        coordinates="logits" if in_logits else "p",
        logit_residual=residual,
    )
