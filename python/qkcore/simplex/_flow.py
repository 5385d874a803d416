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
# How far p may be, in total variation, from the softmax of the logits that its drift adds up to, in units of
# rtol + atol. Of 400 random problems 353 stayed below this, with errors of at most 923 tolerances; of 16 with
# an error above 0.05, 15 were above this, and the other had asked for no more than rtol = 7e-4.
LOGIT_SLACK = 1000.0

_MESSAGES = {
    "finished": "the end of t_span was reached",
    "step limit": "max_steps ran out; raise it, or loosen rtol and atol",
    "step underflow": "the step shrank to nothing: the drift is too rough here",
    "blew up": "the drift gives NaN or inf from here on, or moves p faster than any step",
}


@dataclass(frozen=True)
class PFSolution(Ended):
    """A path of probabilities and everything the guards saw on the way (EOT-5, H.1).

    ``t`` (times), ``p`` (times, ..., V) and ``entropy`` (times, ...) end where the integration ended:
    when ``success`` is False that is before the end of t_span, and ``status`` and ``message`` say why.
    """

    t: Double
    p: Real
    entropy: Double
    status: str
    message: str
    t_reached: float  #: the end of t_span, unless it failed
    n_steps: int  #: accepted
    n_rejected: int
    n_evaluations: int  #: evaluations of the drift
    max_mass_error: float  #: largest :math:`|\\sum_i p_i - 1|` before any repair
    n_renormalized: int  #: steps after which that was above 1e-12, and repaired
    most_negative: float  #: smallest entry before any repair, 0 when none was negative
    n_projected: int  #: steps after which rows were projected back onto the simplex
    entropy_residual: float  #: largest :math:`|H(t) - H(0) - \\int \\dot H|`, with L.1's rate
    coordinates: str  #: "p" or "logits": those in which this path was integrated
    logit_residual: float
    """largest total variation between p and the softmax of :math:`\\tau\\log p(0) + \\int b\\,dt`, seen in
    coordinates "p"; where it was too large, the path was integrated anew in logits"""

    @property
    def success(self) -> bool:
        """Whether the path covers all of t_span."""
        return self.status == "finished"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was repaired on the way, in words; empty when nothing was."""
        out = []
        if self.n_renormalized:
            out.append(
                f"renormalised after {self.n_renormalized} steps (mass off by {self.max_mass_error:.1e})"
            )
        if self.n_projected:
            out.append(
                f"projected after {self.n_projected} steps (an entry was {self.most_negative:.1e}); entries "
                'set to 0 stay there: coordinates="logits" avoids it'
            )
        if self.coordinates == "logits" and self.logit_residual:
            out.append(
                f"integrated in logits: in p the path came to differ by {self.logit_residual:.1e} (TV) from "
                "the softmax of the logits that its own drift adds up to, as entries far below atol grew"
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

    It is minus the covariance of b and log p under p, over tau; negative when b favours what is likely.

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
    """One integration: the state x is p, or the logits; what is kept of it, and the guards."""

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
            self.z = self.tau * np.log(p0)  # the logits that the drift adds up to
        super().__init__(METHODS["dopri5"], t0, self.z if logits else p0)
        n_stages = len(self.k)
        self.drifts: list[Double] = [
            p0
        ] * n_stages  # of the stages, and the states at which they are taken
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

    # ---- what the integrator asks for ----------------------------------------------------------

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
        """An entry below -atol is off by more than that, whatever the estimate says."""
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
        return False  # p is bounded: a step that is too small is one that is too rough

    def take(self, to: float) -> str:
        """Monitors a step and repairs its end; keeps what is wanted."""
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
        """Interpolated states keep their mass but may dip below 0 by the interpolation error."""
        p = self.probabilities(x)
        self.times.append(t)
        self.path.append(project_to_simplex(p) if p.min() < 0 else p)

    def _accept(self, h: float) -> bool:
        """True when the state at the end of the step was repaired."""
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
        """Whether p is off because entries below atol, whose errors nothing controls, grew."""
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
    """The largest root mean square of a row: every row of a batch keeps the tolerance."""
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
    """Carry p along a drift of its logits: :math:`\\dot p = J^\\tau(p)\\, b(p, t)` (EOT-5, theorem 3.7).

    p0: (V,) or rows (..., V) that share the steps. drift: one of

    - a function ``b(p, t)``, with values of p's shape (float64);
    - a table ``(times, values)``: as many values as times are joined linearly, one less are constant on the
      intervals (the increments of layers); steps end at the times, nothing is extrapolated;
    - a fitted model with ``predict``, of p or of p and the time (see :mod:`qkcore.diagnostics.drift`).

    ``drift_of="logits"`` hands over :math:`\\tau \\log p` instead of p. ``coordinates="logits"``
    integrates :math:`\\dot z = b`, whose softmax solves the same equation: mass and positivity are then
    exact and ``rtol`` bounds the relative error of every entry, however small (the default, p itself, is
    the paper's). In p, errors of entries below ``atol`` are not controlled, and an entry of 1e-100 whose
    logit rises by 300 ends near 1. So p is compared with the softmax of the logits that the drift adds up to;
    if it comes to differ, the path is integrated anew in logits, and ``coordinates`` and ``warnings`` say so.

    Dormand-Prince 5(4) with the step control of H.1. Guards of H.1 after each step: rows with a negative
    entry are projected onto the simplex (an entry below -atol rejects the step), a mass off by more than
    1e-12 is repaired, entropy is compared with the integral of :func:`entropy_rate`; all of it is
    reported. ``t_eval``: times at which p is wanted (interpolated to order four), default the steps. A
    failure gives the path up to there and its ``status``; exceptions of the drift are its own and pass
    through. A drift that is NaN or inf inside a trial step makes the step shorter, so the path ends where the
    drift ends.

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
