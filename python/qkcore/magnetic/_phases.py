"""Where phases come from: the antisymmetric part of W, or the log-flux of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, _device, _dynamics
from .._lazy_scores import Scores
from .._points import WLike, pair
from .._terms import Terms
from ..operators import MarkovOperator


def phases(
    X: npt.ArrayLike, W: WLike, gamma: float = 1.0, *, Y: npt.ArrayLike | None = None
) -> Scores:
    """:math:`\\Theta_{ij} = \\gamma\\, x_i^\\top A\\, y_j`, A = (W - W^T)/2, lazily (DAC-6, eqs 4, 37).

    X is (..., N, d), W (d, d) or a pair ``(W_Q (d, r), W_K (r, d))``; low-rank factors are never multiplied
    out. gamma is any number, in radians per unit of :math:`x^\\top A y`. Without Y (then x_j stands for
    y_j) the phases are antisymmetric, to rounding. ``W=None`` has no antisymmetric part: all are 0.

    >>> import numpy as np
    >>> from qkcore import magnetic
    >>> X = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> magnetic.phases(X, np.array([[0.0, 1.0], [0.0, 0.0]])).to_numpy()
    array([[ 0.,  1.],
           [-1.,  0.]])
    """
    p = pair(X, Y, W, 1.0)
    x, y = p.x, p.y
    p.same_dimension()
    angle = scale("gamma", gamma, p.dtype)
    if W is None:
        return p.scores(Terms(), 0.0)
    d = x.shape[-1]
    left, right = _checks.matrix_w(p.W, d, d, p.dtype)
    if right is not None and 2 * right.shape[-2] < d:
        x_q, x_k, y_q, y_k = (
            p.backend.project(name, points, w)
            for name, points in (("X", x), ("Y", y))
            for w in (left, right.swapaxes(-1, -2))
        )
        bound = 0.5 * right.shape[-2] * (x_q[1] * y_k[1] + x_k[1] * y_q[1])
        dots = ((x_q[0], y_k[0], angle / 2), (x_k[0], y_q[0], -angle / 2))
        return p.scores(Terms(dots=dots), abs(angle) * bound)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        full = left.astype(np.float64) if right is None else left.astype(np.float64) @ right
        antisymmetric = (full / 2 - full.swapaxes(-1, -2) / 2).astype(p.dtype)
    turned, largest = p.backend.project("X", x, antisymmetric)
    return p.scores(Terms(dots=((turned, y, angle),)), abs(angle) * d * largest * p.y_largest)


def log_flux(A: MarkovOperator, rho: npt.ArrayLike | None = None) -> Scores:
    """:math:`F_{ij} = \\log\\frac{\\rho_i A_{ij}}{\\rho_j A_{ji}}`, antisymmetric, lazily (DAC-11, eq 76).

    At the stationary law of A unless ``rho`` is given; it vanishes exactly where detailed balance holds.
    Symmetric terms of the scores cancel and are not computed. Every weight must be positive, so masked
    operators are refused. In a batch every chain has its own law; ``rho`` is one law for all or one for each.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore import magnetic
    >>> turn = np.array([[0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.6, 0.2, 0.2]])
    >>> magnetic.log_flux(qk.softmax(qk.scores.dense(np.log(turn)))).to_numpy().round(4)
    array([[ 0.    ,  1.0986, -1.0986],
           [-1.0986,  0.    ,  1.0986],
           [ 1.0986, -1.0986,  0.    ]])
    """
    _checks.instance("A", A, MarkovOperator, "an attention operator", "make one with qk.softmax(s)")
    there = A.scores.backend
    P = (A if A.axis == 1 else A.T)._with_host_vectors()
    s = P.scores
    square("A", s)
    if masked(s):
        raise ValueError(
            "A: wanted weights both ways between all states for a log-flux, got masked ones; "
            "use an operator without a mask"
        )
    if rho is None:
        if s._with(s.terms.with_shifts((), ())).symmetric:  # then pi_i A_ij is symmetric (eq 19)
            return A.scores._with(Terms(), bound=0.0)
    elif _device.on_device(rho):
        rho = _device.to_host("rho", rho)
    if s.batch:
        log_law: Any = P._each(_log_law, rho)
    else:
        log_law = _log_law(P, rho)
    log_weights = P.log_weights.shift(rows=log_law.astype(P.dtype))
    return there.returned(_antisymmetrized(log_weights))


def _log_law(P: Any, rho: Any) -> npt.NDArray[np.float64]:
    """The logarithm of the law rho of one chain, or of its stationary law if rho is None."""
    if rho is None:
        # Computed in logarithms, because probabilities that underflow still have a finite flux.
        log_law = _dynamics.law_of(P, None, _dynamics.MAX_ITER, "warn", None).log_law
    else:
        with np.errstate(divide="ignore"):
            log_law = np.log(_dynamics.law("rho", rho, P).astype(np.float64))
    if not np.isfinite(log_law).all():
        raise ValueError(
            f"rho: wanted positive probabilities, got 0 for state {int(np.argmin(log_law))}; the log-flux "
            "is infinite there"
        )
    return log_law


def _antisymmetrized(s: Scores) -> Scores:
    """s_ij - s_ji for unmasked scores; terms that are symmetric by construction are dropped."""
    dots = [(x, y, c) for x, y, c in s.terms.dots if x is not y]
    n = s.n_rows
    tilt = total(s.terms.row_bias, n) - total(s.terms.col_bias, n)  # shifts leave tilt_i - tilt_j
    distances = []
    for x, y, c, n_negative, power in s.terms.distances:
        if x is y:
            continue
        if power != 2:
            distances += [(x, y, c, n_negative, power), (y, x, -c, n_negative, power)]
            continue
        # -c |x - y|^2 = 2c <x, y> - c |x|^2 - c |y|^2; taken from a common centre for accuracy.
        means = [z.mean(axis=-2, dtype=np.float64, keepdims=True) for z in (x, y)]
        centre = 0.5 * (means[0] + means[1])
        sign = np.ones(x.shape[-1])
        sign[x.shape[-1] - n_negative :] = -1
        xc, yc = x - centre, y - centre
        tilt = tilt + c * ((yc * yc - xc * xc) @ sign)
        dots.append(((xc * sign).astype(s.dtype), yc.astype(s.dtype), 2 * c))
    tilt = tilt - tilt.mean(axis=-1, keepdims=True)
    row = tilt.astype(s.dtype)
    terms = Terms(
        dots=tuple(dots) + tuple((y, x, -c) for x, y, c in dots),
        distances=tuple(distances),
        dense=s.terms.dense + tuple((z.swapaxes(-1, -2), -c) for z, c in s.terms.dense),
        row_bias=(row,),
        col_bias=(-row,),
    )
    return s._with(terms, bound=8 * s.bound + 2 * float(np.abs(tilt).max()))


# ---- helpers for scores ---------------------------------------------------------------------------


def times(angles: Scores, factor: float) -> Scores:
    """Angles times any number. (Other scores may be multiplied by positive factors only.)"""
    terms = angles.terms.scaled(lambda c: c * factor, lambda r: angles.backend.scaled(r, factor))
    return angles._with(
        terms.with_shifts(terms.row_bias, terms.col_bias), bound=abs(factor) * angles.bound
    )


def total(shifts: tuple[npt.NDArray[Any], ...], n: int) -> npt.NDArray[np.float64]:
    """The sum of row (or column) shifts, in float64."""
    return sum(shifts, start=np.zeros(n))


def scale(name: str, value: object, dtype: np.dtype[Any]) -> float:
    """A number of either sign, or 0, that the dtype can hold."""
    number = _checks.number(name, value)
    if number:
        _checks.representable(name, abs(number), dtype)
    return number


def square(name: str, s: Scores) -> int:
    """The number of states of scores, or of each problem of a batch."""
    _checks.one_problem(name, (), s.terms.offsets is not None)
    if s.n_rows != s.n_cols:
        raise ValueError(
            f"{name}: wanted as many columns as rows, got shape {s.shape}; "
            "currents and spectra belong to one set of states"
        )
    return s.n_rows


def masked(s: Scores) -> bool:
    """Whether any entry is -inf."""
    if s.terms.hides(s.n_rows, s.n_cols):
        return True
    to_host = s.backend.to_host
    return s.holed or any(not to_host(mask).all() for mask in s.terms.masks)
