"""The probability-flow ODE on the simplex (EOT-5; EOT 3.3, H.1, L.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from . import _dopri
from ._drifts import Drift, FittedDrift, Piece, pieces_of, time_span
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
    "max_steps": "max_steps ran out; raise it, or loosen rtol and atol",
    "step_too_small": "the step shrank to nothing: the drift is too rough or blows up here",
    "drift_not_finite": "the drift gives NaN or inf from here on",
}


@dataclass(frozen=True)
class PFSolution:
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
    n_drift: int  #: evaluations of the drift
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
            f"  {self.n_steps} steps, {self.n_rejected} rejected, {self.n_drift} drift evaluations",
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
    if y.ndim == 0:
        raise ValueError("y: wanted rows (..., V), got a number; pass an array")
    _checks.not_empty("y", y)
    descending = -np.sort(-y, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1
    counts = np.arange(1, y.shape[-1] + 1)
    kept = (descending - excess / counts > 0).sum(axis=-1, keepdims=True)
    nu = np.take_along_axis(excess, kept - 1, axis=-1) / kept
    out: Double = np.maximum(y - nu, 0.0)
    return out


_SHORT = 1e-6  # of a piece: the first step where the size of the drift cannot be explored


class _NotFinite(Exception):
    pass


class _Integration:
    """State and counters of one integration; y is p, or the logits."""

    def __init__(
        self,
        p0: Double,
        t0: float,
        tau: float,
        rtol: float,
        atol: float,
        logits: bool,
        of_logits: bool,
    ) -> None:
        self.tau, self.rtol, self.atol = tau, rtol, atol
        self.logits, self.of_logits = logits, of_logits
        with np.errstate(divide="ignore"):
            self.y = tau * np.log(p0) if logits else p0
        self.t = t0
        self.n_drift = self.n_steps = self.n_rejected = 0
        self.max_mass_error = self.most_negative = self.entropy_residual = 0.0
        self.n_renormalized = self.n_projected = 0
        with np.errstate(divide="ignore"):
            self.z = tau * np.log(p0)  # the logits that the drift adds up to
        self.drifts: list[Double] = []  # of the stages of a trial step, in coordinates p
        self.logit_residual = 0.0
        self.start_entropy = plain_entropy(p0)
        self.flux = np.zeros(p0.shape[:-1])

    def probabilities(self, y: Double) -> Double:
        return plain_softmax(y, self.tau) if self.logits else y

    def drift(self, piece: Piece, t: float, p: Double) -> Double:
        self.n_drift += 1
        state = p
        if self.of_logits:
            with np.errstate(divide="ignore", invalid="ignore"):
                state = self.tau * np.log(p)
        b = np.asarray(piece.drift(state, t), dtype=np.float64)
        if b.shape != p.shape:
            try:
                b = np.broadcast_to(b, p.shape)
            except ValueError:
                raise ValueError(
                    f"drift: wanted values of shape {p.shape} like p, got {b.shape}; "
                    "return one number per entry"
                ) from None
        if not np.isfinite(b).all():
            raise _NotFinite
        return b

    def field(self, piece: Piece, t: float, y: Double) -> Double:
        p = self.probabilities(y)
        b = self.drift(piece, t, p)
        if self.logits:
            return b
        self.drifts.append(b)
        with np.errstate(over="ignore", invalid="ignore"):
            return mobility_product(p, b, self.tau)

    def error(self, step: _dopri.Step) -> float:
        """The scaled error of a trial step: 1 is what the tolerances allow.

        An entry below -atol is off by more than that, whatever the estimate says.
        """
        if self.logits:  # an error of log p is a relative error of p
            return _dopri.norm(step.error / (self.tau * self.rtol))
        size = np.maximum(np.abs(step.states[0]), np.abs(step.states[-1]))
        below = -float(step.states[-1].min()) / self.atol
        return max(_dopri.norm(step.error / (self.atol + self.rtol * size)), below)

    def scale(self) -> Double:
        if self.logits:
            return np.full(self.y.shape, self.tau * self.rtol)
        return self.atol + self.rtol * np.abs(self.y)

    def accept(self, step: _dopri.Step, h: float) -> bool:
        """Take a step, monitor and repair it; True when the state was repaired."""
        for weight, y, slope in zip(_dopri.WEIGHTS, step.states, step.slopes, strict=True):
            if weight:
                p = self.probabilities(y)
                velocity = mobility_product(p, slope, self.tau) if self.logits else slope
                self.flux += h * weight * _rate(np.maximum(p, 0.0), velocity)
        self.y = step.states[-1]
        self.n_steps += 1
        repaired = False
        if not self.logits:
            for weight, b in zip(_dopri.WEIGHTS, self.drifts, strict=True):
                self.z = self.z + h * weight * b
            repaired = self._repair()
            summed = plain_softmax(self.z, self.tau)
            off = float(np.abs(summed - self.y).sum(axis=-1).max()) / 2
            self.logit_residual = max(self.logit_residual, off)
        residual = plain_entropy(self.probabilities(self.y)) - self.start_entropy - self.flux
        self.entropy_residual = max(self.entropy_residual, float(np.abs(residual).max()))
        return repaired

    @property
    def disagrees(self) -> bool:
        """Whether p is off because entries below atol, whose errors nothing controls, grew."""
        return self.logit_residual > min(0.1, LOGIT_SLACK * (self.rtol + self.atol))

    def _repair(self) -> bool:
        smallest = float(self.y.min())
        if negative := smallest < 0:
            self.most_negative = min(self.most_negative, smallest)
            self.n_projected += 1
            rows = self.y.min(axis=-1) < 0
            self.y = self.y.copy()
            self.y[rows] = project_to_simplex(self.y[rows])
        mass = self.y.sum(axis=-1, keepdims=True)
        off = float(np.abs(mass - 1).max())
        self.max_mass_error = max(self.max_mass_error, off)
        if heavy := off > MASS_TOLERANCE:
            self.n_renormalized += 1
            self.y = self.y / mass
        return negative or heavy


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
    t0, t1 = time_span(t_span)
    p = start.astype(np.float64)
    p /= p.sum(axis=-1, keepdims=True)
    settings = (
        _checks.positive("tau", tau),
        _checks.positive("rtol", rtol),
        _checks.positive("atol", atol),
    )
    in_logits = _choice("coordinates", coordinates) == "logits"
    of_logits = _choice("drift_of", drift_of) == "logits"
    limit = _checks.integer_within("max_steps", max_steps, 1, 10**9, "allow at least one step")
    times = None if t_eval is None else _times(t_eval, t0, t1)
    pieces = pieces_of(drift, p.shape, t0, t1)

    def integrate(in_logits: bool) -> tuple[_Integration, str, list[float], list[Double]]:
        run = _Integration(p, t0, *settings, in_logits, of_logits)
        out_t, out_p = ([t0], [p]) if times is None or times[0] == t0 else ([], [])
        wanted = times if times is None else times[times > t0]
        status = "finished"
        bar = _progress_bar(t1 - t0) if progress else None
        try:
            for piece in pieces:
                status = _run_piece(run, piece, limit, wanted, out_t, out_p, bar)
                if status != "finished":
                    break
        finally:
            if bar is not None:
                bar.close()
        return run, status, out_t, out_p

    run, status, out_t, out_p = integrate(in_logits)
    residual = run.logit_residual
    if run.disagrees:
        in_logits, spent = True, run.n_drift
        run, status, out_t, out_p = integrate(True)
        run.n_drift += spent
    path = np.stack(out_p) if out_p else np.zeros((0, *p.shape))
    return PFSolution(
        t=np.array(out_t),
        p=path.astype(start.dtype),
        entropy=plain_entropy(path),
        status=status,
        message=_MESSAGES[status],
        t_reached=run.t,
        n_steps=run.n_steps,
        n_rejected=run.n_rejected,
        n_drift=run.n_drift,
        max_mass_error=run.max_mass_error,
        n_renormalized=run.n_renormalized,
        most_negative=run.most_negative,
        n_projected=run.n_projected,
        entropy_residual=run.entropy_residual,
        coordinates="logits" if in_logits else "p",
        logit_residual=residual,
    )


def _run_piece(
    run: _Integration,
    piece: Piece,
    limit: int,
    wanted: Double | None,
    out_t: list[float],
    out_p: list[Double],
    bar: Any,
) -> str:
    """Integrate one smooth piece of the drift; the status it ends with."""

    def field(t: float, y: Double) -> Double:
        return run.field(piece, t, y)

    t = piece.start
    try:
        slope = field(t, run.y)
    except _NotFinite:
        return "drift_not_finite"
    try:
        h = _dopri.first_step(field, t, run.y, slope, run.scale(), piece.stop - t)
    except _NotFinite:
        h = _SHORT * (piece.stop - t)
    run.drifts[1:] = []
    not_finite = False
    while t < piece.stop:
        if run.n_steps + run.n_rejected >= limit:
            return "max_steps"
        h = min(h, piece.stop - t)
        if t + h == t:
            return "drift_not_finite" if not_finite else "step_too_small"
        try:
            step = _dopri.trial(field, t, run.y, slope, h)
        except _NotFinite:
            # The step reached into where the drift has no value: a shorter one may not.
            run.n_rejected += 1
            not_finite = True
            h *= _dopri.SHRINK
            run.drifts[1:] = []
            continue
        error = run.error(step)
        if not error <= 1:
            run.n_rejected += 1
            not_finite = False
            h *= _dopri.factor(error) if np.isfinite(error) else _dopri.SHRINK
            run.drifts[1:] = []
            continue
        before, end = run.y, piece.stop if t + h >= piece.stop else t + h
        repaired = run.accept(step, h)
        if run.disagrees:
            return "disagrees"
        for x in [] if wanted is None else wanted[(wanted > t) & (wanted <= end)]:
            inside = _dopri.dense(before, step.slopes, h, (x - t) / h) if x < end else run.y
            out_t.append(float(x))
            out_p.append(_inside(run, inside))
        if wanted is None:
            out_t.append(end)
            out_p.append(run.probabilities(run.y))
        if bar is not None:
            bar.update(end - t)
        t = run.t = end
        slope = step.slopes[-1]
        run.drifts[:-1] = []
        if repaired:
            run.drifts.clear()
            try:
                slope = field(t, run.y)
            except _NotFinite:
                return "drift_not_finite"
        # Next to where the drift has no value, a longer step would only be refused again.
        h *= min(1.0, _dopri.factor(error)) if not_finite else _dopri.factor(error)
        not_finite = False
    run.drifts.clear()
    return "finished"


def _progress_bar(length: float) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=length, desc="pf_ode", unit=" t")


def _inside(run: _Integration, y: Double) -> Double:
    """Interpolated states keep their mass but may dip below 0 by the interpolation error."""
    p = run.probabilities(y)
    return project_to_simplex(p) if p.min() < 0 else p


def _choice(name: str, value: object) -> str:
    if value not in ("p", "logits"):
        raise ValueError(f'{name}: wanted "p" or "logits", got {value!r}; choose one of them')
    return str(value)


def _times(t_eval: npt.ArrayLike, t0: float, t1: float) -> Double:
    times = _checks.doubles("t_eval", t_eval)
    if times.ndim != 1 or len(times) == 0:
        raise ValueError(
            f"t_eval: wanted finite times (n,), got shape {times.shape}; pass a 1-D array"
        )
    if (np.diff(times) <= 0).any() or times[0] < t0 or times[-1] > t1:
        raise ValueError(f"t_eval: wanted rising times in [{t0:g}, {t1:g}], got others; sort them")
    return times
