"""Temperatures that control the entropy, and early exits from a stack of layers (EOT-15; EOT 3.9, H.1).

================================ ===============================================================
``temperature_for_entropy(z)``   the temperature at which a row has a wanted entropy
``EntropySchedule``              feedback on the smoothed entropy, layer by layer
``entropy_flow(...)``            the same feedback in continuous time
``motion_bound(p, remaining)``   how far p can still move while its logits move by ``remaining``
``EarlyExit``                    says when this bound is below a tolerance
================================ ===============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._ode import Arrays, Integrator
from ._words import Ended
from .simplex import Mobility
from .simplex._softmax import logits as check_logits
from .simplex._softmax import plain_entropy, plain_softmax
from .simplex._tail import LogTail, locked_motion, log_tail

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]

__all__ = [
    "EarlyExit",
    "EntropySchedule",
    "ExitDecision",
    "ScheduleFlow",
    "entropy_flow",
    "motion_bound",
    "temperature_for_entropy",
]


def __dir__() -> list[str]:
    return list(__all__)


def _bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (_checks.positive("bounds", b) for b in bounds)
    if not low < high:
        raise ValueError(f"bounds: wanted low < high, got ({low:g}, {high:g}); swap them")
    return low, high


def temperature_for_entropy(
    z: npt.ArrayLike, target: npt.ArrayLike, *, bounds: tuple[float, float] = (1e-3, 1e3)
) -> tuple[Any, Any]:
    """The tau at which softmax(z/tau) has the entropy ``target``, and whether ``bounds`` allow it (EOT-15).

    The entropy rises with the temperature, :math:`dH/d\\tau = \\mathrm{Var}_p(z)/\\tau^3 \\ge 0`, from the
    logarithm of the number of largest logits to the logarithm of the number of logits. So there is only one
    such tau. If it is outside ``bounds``, the nearer bound is returned, and the second result is False.

    >>> import numpy as np, qkcore as qk
    >>> tau, reached = qk.schedule.temperature_for_entropy(np.array([np.log(3.0), 0.0]), 0.5623351446188083)
    >>> round(tau, 9), reached
    (1.0, True)
    """
    low, high = (np.log(b) for b in _bounds(bounds))
    logits = check_logits("z", z).astype(np.float64)
    wanted = _checks.doubles("target", target)
    _checks.none_negative("target", wanted, "an entropy >= 0 in nats", "e.g. 0.5 * np.log(V)")
    wanted = np.broadcast_to(wanted, logits.shape[:-1])
    shifted = logits - logits.max(axis=-1, keepdims=True)

    def entropy_at(log_tau: Double) -> Double:
        scaled = np.exp(shifted * np.exp(-log_tau)[..., None])
        return np.asarray(plain_entropy(scaled / scaled.sum(axis=-1, keepdims=True)))

    lower, upper = np.full(wanted.shape, low), np.full(wanted.shape, high)
    below, above = entropy_at(lower) > wanted, entropy_at(upper) < wanted
    for _ in range(64):
        middle = (lower + upper) / 2
        hot = entropy_at(middle) > wanted
        lower, upper = np.where(hot, lower, middle), np.where(hot, middle, upper)
    tau = np.exp(np.where(below, low, np.where(above, high, (lower + upper) / 2)))
    reached = ~(below | above)
    return (float(tau), bool(reached)) if tau.ndim == 0 else (tau, reached)


class EntropySchedule:
    """Raises the temperature if the entropy of attention is too low, lowers it if it is too high (EOT-15).

    It does so after each layer, whose mean entropy is :math:`H_\\ell`:

    .. math:: \\hat H_\\ell = \\beta\\hat H_{\\ell-1} + (1-\\beta) H_\\ell, \\qquad
       \\tau_{\\ell+1} = \\mathrm{clip}\\big(\\tau_\\ell\\, e^{g (H^* - \\hat H_\\ell)}\\big)

    with :math:`\\hat H_0 = H_0`. Because the entropy rises with the temperature, this is negative feedback.
    The papers ask for such schedules but define none, so this one is our own. ``target`` is :math:`H^*` in
    nats, a number or a function of the layer; ``gain`` is g, ``smoothing`` is :math:`\\beta` in [0, 1), and
    ``bounds`` are those of the temperature.

    >>> import numpy as np, qkcore as qk
    >>> schedule = qk.schedule.EntropySchedule(target=1.0, gain=0.5)
    >>> z = np.array([4.0, 0.0, 0.0, 0.0])
    >>> for _ in range(200):
    ...     tau = schedule.update(z)
    >>> bool(np.isclose(qk.simplex.entropy(qk.simplex.from_logits(z, tau)), 1.0))
    True
    """

    def __init__(
        self,
        target: float | Callable[[int], float],
        *,
        gain: float = 0.5,
        smoothing: float = 0.5,
        bounds: tuple[float, float] = (0.1, 10.0),
        tau: float = 1.0,
    ) -> None:
        self.target = target if callable(target) else _checks.number("target", target)
        self.gain = _checks.positive("gain", gain)
        self.smoothing = _checks.number("smoothing", smoothing)
        if not 0 <= self.smoothing < 1:
            raise ValueError(
                f"smoothing: wanted 0 <= smoothing < 1, got {smoothing!r}; 0 does not smooth"
            )
        self.bounds = _bounds(bounds)
        self.tau = float(np.clip(_checks.positive("tau", tau), *self.bounds))
        self.smoothed: float | None = None
        self.taus: list[float] = [self.tau]
        self.entropies: list[float] = []
        self.n_clipped = 0

    def __repr__(self) -> str:
        seen = f"{len(self.entropies)} layers, clipped {self.n_clipped} times"
        return f"EntropySchedule({seen}, tau={self.tau:.4g})"

    def update(self, z: npt.ArrayLike) -> float:
        """Takes the logits (..., V) of a layer and returns the temperature of the next layer.

        The entropy of the layer is taken at the present temperature.
        """
        p = plain_softmax(check_logits("z", z), self.tau)
        return self.update_entropy(float(np.mean(plain_entropy(p.astype(np.float64)))))

    def update_entropy(self, entropy: float) -> float:
        """Takes the entropy of a layer, in nats, and returns the temperature of the next layer."""
        h = _checks.number("entropy", entropy)
        target = self.target(len(self.entropies)) if callable(self.target) else self.target
        old = h if self.smoothed is None else self.smoothed
        self.smoothed = self.smoothing * old + (1 - self.smoothing) * h
        low, high = self.bounds
        log_tau = np.log(self.tau) + self.gain * (_checks.number("target", target) - self.smoothed)
        self.n_clipped += int(not np.log(low) <= log_tau <= np.log(high))
        self.tau = float(np.exp(np.clip(log_tau, np.log(low), np.log(high))))
        self.entropies.append(h)
        self.taus.append(self.tau)
        return self.tau


@dataclass(frozen=True)
class ScheduleFlow(Ended):
    """A temperature as a function of continuous depth, up to the depth that the integrator reached."""

    t: Double
    tau: Double
    smoothed: Double
    status: str  #: "finished", "step limit", "step underflow" or "blew up"

    @property
    def success(self) -> bool:
        """Whether the result covers all of t_span."""
        return self.status == "finished"

    def __str__(self) -> str:
        return f"ScheduleFlow: {self.status}, tau from {self.tau[0]:.4g} to {self.tau[-1]:.4g}"


def entropy_flow(
    entropy_at: Callable[[float, float], float],
    target: float | Callable[[float], float],
    t_span: tuple[float, float],
    *,
    rate: float = 1.0,
    time_constant: float = 0.1,
    bounds: tuple[float, float] = (0.1, 10.0),
    tau: float = 1.0,
    t_eval: npt.ArrayLike | None = None,
    rtol: float = 1e-8,
) -> ScheduleFlow:
    """:class:`EntropySchedule` in continuous time (EOT-15):

    .. math:: \\frac{d\\log\\tau}{dt} = r\\,(H^*(t) - \\hat H), \\qquad
       \\frac{d\\hat H}{dt} = \\frac{H(\\tau, t) - \\hat H}{T}

    where tau is kept in ``bounds``. The discrete schedule with the gain :math:`g = rh` and the smoothing
    :math:`\\beta = e^{-h/T}` takes steps of length h of this flow, and converges to it for small h.
    ``entropy_at`` is a function of (tau, t), ``target`` a number or a function of t, ``rate`` is r and
    ``time_constant`` is T.

    >>> import numpy as np, qkcore as qk
    >>> z = np.array([4.0, 0.0, 0.0])
    >>> flow = qk.schedule.entropy_flow(
    ...     lambda tau, t: float(qk.simplex.entropy(qk.simplex.from_logits(z, tau))), 0.9, (0, 60), rate=2.0)
    >>> bool(np.isclose(flow.smoothed[-1], 0.9))
    True
    """
    low, high = (np.log(b) for b in _bounds(bounds))
    rate, lag = _checks.positive("rate", rate), _checks.positive("time_constant", time_constant)
    t0, t1 = span = _checks.time_span("t_span", t_span, "negate the flow")
    start = float(np.clip(np.log(_checks.positive("tau", tau)), low, high))
    if not callable(target):
        target = _checks.number("target", target)

    def entropy(log_tau: float, t: float) -> float:
        return _checks.number(
            "entropy_at", entropy_at(float(np.exp(np.clip(log_tau, low, high))), t)
        )

    def field(y: Double, t: float) -> list[float]:
        wanted = target(t) if callable(target) else target
        push = rate * (wanted - y[1])
        outward = (y[0] >= high and push > 0) or (y[0] <= low and push < 0)
        return [0.0 if outward else push, (entropy(y[0], t) - y[1]) / lag]

    state = Arrays(field, np.array([start, entropy(start, t0)]), t0, rtol=rtol, atol=rtol)
    steps = Integrator(state, max_steps=100_000)
    wanted = None if t_eval is None else _checks.output_times(t_eval, span)
    path = []
    for t in [t1] if wanted is None else wanted.tolist():
        if not steps.advance(t):
            break
        path.append((t, state.x))
    if wanted is None:
        path = state.path
    y = np.array([x for _, x in path]).reshape(-1, 2)
    taus = np.exp(np.clip(y[:, 0], low, high))
    return ScheduleFlow(np.array([t for t, _ in path]), taus, y[:, 1], steps.status or "finished")


def motion_bound(
    p: npt.ArrayLike, remaining: npt.ArrayLike, *, tau: float = 1.0, logits: bool = False
) -> Any:
    """A bound on how far p can move, in total variation, while logits move by at most ``remaining`` (EOT-15).

    If the total change of each logit is :math:`\\delta_i \\in [-R, R]`, up to a common constant, odds are
    multiplied by at most :math:`E = e^{2R/\\tau}`. So the mass s of any set rises to at most
    :math:`sE/(1-s+sE)`, and

    .. math:: \\mathrm{TV} \\le \\frac{t(1-t)(E-1)}{1+t(E-1)} \\;\\text{ if } t \\le \\frac1{1+\\sqrt E},
       \\qquad \\tanh\\frac{R}{2\\tau} \\;\\text{ otherwise}

    where t is the tail :math:`1 - p_{max}`. The first bound is attained, by raising all logits of the tail.
    It is the certificate of locking (theorem 3.9): for small R it is :math:`2Rt(1-t)/\\tau`, which is half of
    :attr:`Mobility.mass_norm` times R.

    ``remaining`` is R for each row: half of max - min of the sum of the steps to come, which is at most the
    sum of their :math:`\\|\\Delta z\\|_\\infty`. ``logits=True`` says that ``p`` contains logits instead of
    probabilities. Pass logits if you have them: an entry of p that is 0 counts as masked, so that a row with
    only one positive entry cannot move, but a softmax also rounds to such a row if the other logits are lower
    by 745 (104 in single precision).

    >>> import numpy as np, qkcore as qk
    >>> float(np.round(qk.schedule.motion_bound(np.array([0.999, 0.001]), 0.5), 6))
    0.001714
    >>> qk.schedule.motion_bound(np.array([800.0, 0.0]), 1000.0, logits=True)
    1.0
    """
    tau = _checks.positive("tau", tau)
    _checks.flag("logits", logits, "pass the logits first, as p")
    if logits:
        tail = log_tail(check_logits("p", p), tau)
    else:
        with np.errstate(divide="ignore"):
            mass = np.log(np.asarray(Mobility(p, tau).tail))
        tail = LogTail(np.zeros_like(mass), mass)
    R = _checks.doubles("remaining", remaining, inf=True)
    _checks.none_negative("remaining", R, "numbers >= 0 (inf: unknown)", "bound the steps to come")
    out = locked_motion(tail, R, tau)
    return float(out) if out.ndim == 0 else out


@dataclass(frozen=True)
class ExitDecision:
    """Whether rows may leave a stack of layers after ``layer``, and the figures that justify it."""

    layer: int
    exit: Any  #: for each row, whether the bound is at most the tolerance
    bound: Any  #: for each row, on the total variation by which it can still move
    remaining: Any  #: the remaining change of the logits, from which the bound follows
    tail: Any
    #: of the mobility, the indicator of H.1; it is small for uniform rows too, so it certifies nothing
    frobenius_norm: Any
    #: whether bounds on the steps were given; if not, the remaining variation is extrapolated
    certified: bool
    tol: float

    @property
    def all(self) -> bool:
        """Whether every row may leave."""
        return bool(np.all(self.exit))

    def __str__(self) -> str:
        how = (
            "supplied"
            if self.certified
            else "extrapolated, which certifies nothing if a later step is larger"
        )
        share = f"{100 * float(np.mean(self.exit)):.0f} % of rows"
        worst = f"at most {np.max(self.bound):.3g} to come (tolerance {self.tol:g})"
        return f"layer {self.layer}: {share} may exit; {worst}; remaining variation {how}"


class EarlyExit:
    """Says when the rest of a stack of L steps can hardly change the probabilities any more (EOT-15).

    ``tol`` is the total variation that may be lost, and ``n_layers`` is L. ``variation`` has bounds of
    :math:`\\|\\Delta z^{(\\ell)}\\|_\\infty`, one for all steps or one for each step (L,), e.g. from spectral
    norms. With them an exit is certified by :func:`motion_bound`. Without them every later step is assumed to
    be as large as the largest step so far, and the decision says so.

    The indicator of the paper, a small :math:`\\|J\\|_F`, is reported but not used. For a uniform row over V
    entries it is about :math:`V^{-1/2}` (0.0045 for 50257), although one step can still change all of the
    row.

    >>> import numpy as np, qkcore as qk
    >>> policy = qk.schedule.EarlyExit(tol=1e-3, n_layers=10, variation=0.1)
    >>> [policy.update(np.array([z, 0.0])).all for z in (0.0, 4.0, 9.0)]
    [False, False, True]
    """

    def __init__(
        self, *, tol: float, n_layers: int, variation: npt.ArrayLike | None = None, tau: float = 1.0
    ) -> None:
        self.tol = _checks.positive("tol", tol)
        self.n_layers = _checks.integer_within("n_layers", n_layers, 1, 10**9, "a stack has a step")
        self.tau = _checks.positive("tau", tau)
        self.variation: Double | None = None
        if variation is not None:
            steps = _checks.doubles("variation", variation, inf=True)
            _checks.shape(
                "variation",
                steps.shape,
                (),
                (self.n_layers,),
                what="one number for each step, or one for all, of",
                do="give one bound per step",
            )
            _checks.none_negative("variation", steps)
            self.variation = np.broadcast_to(steps, (self.n_layers,))
        self.layer = -1
        self._last: Real | None = None
        self._largest: Any = 0.0

    def update(self, z: npt.ArrayLike) -> ExitDecision:
        """Takes the logits (..., V) of the next layer; the first call takes the stack's input (layer 0)."""
        logits = check_logits("z", z)
        if self.layer == self.n_layers:
            raise ValueError(
                f"z: wanted at most {self.n_layers + 1} layers, got more; n_layers counts steps"
            )
        if self._last is not None:
            self._largest = np.maximum(self._largest, self._half_range(logits))
        self._last = logits
        self.layer += 1
        left = self.n_layers - self.layer
        if self.variation is not None:
            remaining: Any = float(self.variation[self.layer :].sum())
        elif self.layer == 0:
            remaining = np.inf if left else 0.0
        else:
            remaining = left * self._largest
        p = plain_softmax(logits.astype(np.float64), self.tau)
        J = Mobility(p, self.tau)
        # The bound is computed from the logits, because the tail of p may underflow to 0, which would give
        # the bound 0.
        bound = motion_bound(logits, remaining, tau=self.tau, logits=True)
        return ExitDecision(
            layer=self.layer,
            exit=bound <= self.tol,
            bound=bound,
            remaining=remaining,
            tail=J.tail,
            frobenius_norm=J.frobenius_norm,
            certified=self.variation is not None,
            tol=self.tol,
        )

    def _half_range(self, logits: Real) -> Double:
        assert self._last is not None
        _checks.shape(
            "z", logits.shape, self._last.shape, why="as before", do="one stack at a time"
        )
        with np.errstate(invalid="ignore"):
            step = np.subtract(logits, self._last, dtype=np.float64)
        both = np.isneginf(logits) & np.isneginf(self._last)
        high = np.where(both, -np.inf, step).max(axis=-1)
        low = np.where(both, np.inf, step).min(axis=-1)
        return np.asarray((high - low) / 2)
