"""Maximum entropy under moment constraints (MTA-2, theorem 14): find lambda(x) from the moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._words import Ended
from ..operators import MarkovOperator, softmax
from ..scores import dense
from ._measure import Measure

__all__ = ["InfeasibleMomentsError", "MaximumEntropy", "maximum_entropy"]

Array = npt.NDArray[np.float64]

_BLOCK_BYTES = 64 * 2**20
# In directions with less than this part of the largest variance, features count as constant.
_FLAT = 1e-13
# The exponents change by at most this much in a step, because the quadratic model is useless farther away.
_LONG_STEP = 8.0
# If the exponents range over more than this, the target may lie on the boundary of the convex hull.
_SATURATED = 12.0
_ARMIJO = 1e-4


class InfeasibleMomentsError(ValueError):
    """No measure on the support has these moments: the target is outside the features' convex hull."""


@dataclass(frozen=True, eq=False)
class MaximumEntropy(Ended):
    """The maximisers of :math:`H_\\nu(\\mu) = -KL(\\mu\\|\\nu)` under :math:`\\mu(k(x,\\cdot)) = f(x)`.

    :math:`\\mu^*_x = \\Psi_{G(x,\\cdot)}(\\nu)` with :math:`G = e^{\\langle\\lambda(x), k(x, y)\\rangle}`.
    """

    lam: Array = field(repr=False)
    """:math:`\\lambda(x)`, (m, l); if features are linearly dependent, the one of least norm in units of
    the features' ranges; NaN if infeasible"""
    status: Any
    """for each x: "converged"; "infeasible" (the target is outside the convex hull of the features);
    "boundary" (it is on the boundary of the hull: the maximiser has mass on some of the points only, and
    lambda is infinite, so a finite approximation is returned, whose error is in ``errors``); "iteration
    limit"
    """
    errors: Array = field(repr=False)
    """largest error of a moment, (m,), relative to the range of its feature"""
    entropy: Array = field(repr=False)
    """:math:`H_\\nu(\\mu^*_x)`, (m,); -inf if infeasible"""
    n_iter: int
    features: Array = field(repr=False)
    log_weights: Array = field(repr=False)

    @property
    def converged(self) -> npt.NDArray[np.bool_]:
        """Whether the moments are met with a finite lambda, for each x."""
        return np.asarray(self.status == "converged")

    def softmatch(self) -> MarkovOperator:
        """The maximisers as a Markov kernel (m, n): the softmatch kernel of theorem 14."""
        if not np.isfinite(self.lam).all():
            raise InfeasibleMomentsError(
                "softmatch: wanted feasible moments for every x, got infeasible ones; see status"
            )
        if self.features.ndim == 2:
            scores = self.lam @ self.features.T
        else:
            scores = np.einsum("mnl,ml->mn", self.features, self.lam)
        return softmax(dense(scores).shift(columns=self.log_weights))

    def __str__(self) -> str:
        kinds, counts = np.unique(self.status, return_counts=True)
        found = ", ".join(f"{c} {k}" for k, c in zip(kinds, counts, strict=True))
        return f"MaximumEntropy({found}; {self.n_iter} Newton steps)"


def maximum_entropy(
    features: npt.ArrayLike,
    targets: npt.ArrayLike,
    nu: Measure | npt.ArrayLike | None = None,
    *,
    tol: float = 1e-10,
    max_iter: int = 100,
    on_infeasible: str = "raise",
) -> MaximumEntropy:
    """The measure of largest entropy relative to nu with given moments (MTA-2, theorem 14).

    ``features``: k(x_i, y_j), (m, n, l), or (n, l) when they do not depend on x; ``targets``: f(x_i),
    (m, l), or (l,) for one x; ``nu``: the n weights of the base measure (default: equal), or the
    measure itself. Damped Newton on the dual
    :math:`\\min_\\lambda \\log\\nu(e^{\\langle\\lambda, k\\rangle}) - \\langle\\lambda, f\\rangle`, all x
    at once, in coordinates in which the features have unit variance.

    A target outside the convex hull of the features raises :class:`InfeasibleMomentsError`, or with
    ``on_infeasible="report"`` has the ``status`` "infeasible". This is said only after a separating direction
    or a linear programme has shown it. ``tol`` is relative to the range of each feature.

    >>> import numpy as np
    >>> from qkcore.measure import maximum_entropy
    >>> dice = maximum_entropy(np.arange(1.0, 7.0)[:, None], np.array([4.5]))
    >>> dice.softmatch().to_numpy().round(4)
    array([[0.0544, 0.0788, 0.1142, 0.1654, 0.2398, 0.3475]])
    """
    k = np.asarray(_checks.real_array("features", features), dtype=np.float64)
    f = np.asarray(_checks.real_array("targets", targets), dtype=np.float64)
    _checks.shape("features", k.shape, ("n", "l"), ("m", "n", "l"))
    for name, array in (("features", k), ("targets", f)):
        _checks.not_empty(name, array)
        _checks.finite(name, array)
    if f.ndim == 1:
        f = f[None, :]
    wanted = (len(k) if k.ndim == 3 else "m", k.shape[-1])
    _checks.shape("targets", f.shape, wanted, why=f"for features of shape {k.shape}")
    _checks.one_of("on_infeasible", on_infeasible, ("raise", "report"))
    tol = _checks.positive("tol", tol)
    steps = _checks.integer_within("max_iter", max_iter, 1, 2**31, "at least one Newton step")
    log_w = _base_weights(nu, k.shape[-2])
    n, l = k.shape[-2:]
    per_x = 8 * n * (l + 4)
    block = max(1, _BLOCK_BYTES // per_x)
    parts = [
        _solve(k if k.ndim == 2 else k[i : i + block], f[i : i + block], log_w, tol, steps)
        for i in range(0, len(f), block)
    ]
    found = MaximumEntropy(
        lam=np.concatenate([p.lam for p in parts]),
        status=np.concatenate([p.status for p in parts]),
        errors=np.concatenate([p.errors for p in parts]),
        entropy=np.concatenate([p.entropy for p in parts]),
        n_iter=max(p.n_iter for p in parts),
        features=k,
        log_weights=log_w,
    )
    bad = np.flatnonzero(found.status == "infeasible")
    if on_infeasible == "raise" and bad.size:
        raise InfeasibleMomentsError(
            f"targets: wanted moments inside the convex hull of the features, got {bad.size} of "
            f"{len(f)} outside, the first targets[{bad[0]}] = {f[bad[0]].tolist()[:4]}; no measure "
            'on the support has them (on_infeasible="report" returns the others)'
        )
    return found


class _Part(NamedTuple):
    lam: Array
    status: npt.NDArray[np.str_]
    errors: Array
    entropy: Array
    n_iter: int


def _base_weights(nu: Measure | npt.ArrayLike | None, n: int) -> Array:
    if nu is None:
        return np.full(n, -np.log(n))
    measure = nu if isinstance(nu, Measure) else Measure(np.zeros((n, 1)), nu)
    if len(measure) != n:
        raise ValueError(
            f"nu: wanted {n} weights, one for each row of features, got {len(measure)}"
        )
    return measure.log_weights.astype(np.float64)


def _solve(k: Array, f: Array, log_w: Array, tol: float, max_iter: int) -> _Part:
    """Newton's method for a block of targets; k is (m, n, l), or (n, l) if all targets share it."""
    live = np.isfinite(log_w)
    k3 = (k[None] if k.ndim == 2 else k)[:, live]
    w = np.exp(log_w[live])
    m, l = f.shape
    # Centred at the base mean, each feature in units of its range, then rotated to unit variance.
    mean = np.einsum("n,mnl->ml", w, k3)
    span = np.ptp(k3, axis=1)
    unit = np.where(span > 0, span, 1.0)
    y = (k3 - mean[:, None, :]) / unit[:, None, :]
    t = (f - mean) / unit
    values, vectors = np.linalg.eigh(np.einsum("n,mnl,mnr->mlr", w, y, y))
    varies = values > _FLAT * np.maximum(values[:, -1:], 1e-300)
    whiten = vectors * np.where(varies, 1 / np.sqrt(np.where(varies, values, 1.0)), 0.0)[:, None, :]
    z = y @ whiten
    b = np.einsum("ml,mlr->mr", np.broadcast_to(t, (m, l)), np.broadcast_to(whiten, (m, l, l)))
    # In directions in which the features are constant, only targets with the same constant are feasible.
    flat = np.where(varies, 0.0, np.einsum("ml,mlr->mr", t, np.broadcast_to(vectors, (m, l, l))))
    outside = np.abs(flat).max(axis=1) > np.maximum(tol, 1e-7)
    theta, error, n_iter, separated = _newton(z, b, np.log(w), y, t, outside, tol, max_iter)
    lam = np.einsum("mlr,mr->ml", np.broadcast_to(whiten, (m, l, l)), theta) / unit
    s = np.einsum("mnr,mr->mn", np.broadcast_to(z, (m, *z.shape[1:])), theta)
    log_z = _logsumexp(s + np.log(w))
    entropy = log_z - np.einsum("mr,mr->m", theta, b)
    status = np.where(error <= tol, "converged", "iteration limit").astype("U16")
    status[outside | separated] = "infeasible"
    doubtful = (status != "infeasible") & ((np.ptp(s, axis=1) > _SATURATED) | (error > tol))
    for i in np.flatnonzero(doubtful):
        verdict = _position(y[i if len(y) > 1 else 0], t[i], tol)
        if verdict != "inside":
            status[i] = verdict
    lost = status == "infeasible"
    lam[lost], entropy[lost], error[lost] = np.nan, -np.inf, np.inf
    return _Part(lam, status, error, entropy, n_iter)


def _newton(
    z: Array,
    b: Array,
    log_w: Array,
    y: Array,
    t: Array,
    outside: npt.NDArray[np.bool_],
    tol: float,
    max_iter: int,
) -> tuple[Array, Array, int, npt.NDArray[np.bool_]]:
    """theta (m, r) in whitened coordinates, errors, iterations, and proofs of infeasibility."""
    m, r = b.shape
    theta = np.zeros((m, r))
    error = np.full(m, np.inf)
    separated = np.zeros(m, dtype=bool)
    active = np.flatnonzero(~outside)
    n_iter = 0

    def pick(a: Array, index: npt.NDArray[np.intp]) -> Array:
        return a[index] if len(a) > 1 else a

    def dual(th: Array, index: npt.NDArray[np.intp]) -> tuple[Array, Array]:
        s = np.einsum("mnr,mr->mn", np.broadcast_to(pick(z, index), (len(index), *z.shape[1:])), th)
        shifted = s - np.einsum("mr,mr->m", th, b[index])[:, None]
        return shifted, _logsumexp(shifted + log_w)

    while active.size and n_iter <= max_iter:
        s, value = dual(theta[active], active)
        p = np.exp(s + log_w - value[:, None])
        za = np.broadcast_to(pick(z, active), (len(active), *z.shape[1:]))
        moment = np.einsum("mn,mnr->mr", p, za)
        gradient = moment - b[active]
        ya = np.broadcast_to(pick(y, active), (len(active), *y.shape[1:]))
        error[active] = np.abs(np.einsum("mn,mnl->ml", p, ya) - t[active]).max(axis=1)
        # If every point has a lower score than the target, theta separates the target from the convex
        # hull, which proves that it is infeasible.
        apart = s.max(axis=1) < -1e-9 * (1 + np.abs(s).max(axis=1))
        separated[active[apart]] = True
        going = ~apart & (error[active] > 0.1 * tol)
        if n_iter == max_iter:
            break
        active, s, value, p = active[going], s[going], value[going], p[going]
        gradient, moment, za = gradient[going], moment[going], za[going]
        if not active.size:
            break
        n_iter += 1
        centred = za - moment[:, None, :]
        hessian = np.einsum("mn,mnr,mnq->mrq", p, centred, centred)
        ridge = 1e-14 * np.trace(hessian, axis1=1, axis2=2)[:, None] + 1e-300
        hessian[:, np.arange(r), np.arange(r)] += ridge
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(values, ridge)
        inner = np.einsum("mrq,mr->mq", vectors, gradient) / values
        step = -np.einsum("mrq,mq->mr", vectors, inner)
        change = np.ptp(np.einsum("mnr,mr->mn", za, step), axis=1)
        step *= np.minimum(1.0, _LONG_STEP / np.maximum(change, 1e-300))[:, None]
        slope = np.einsum("mr,mr->m", gradient, step)
        length = np.ones(len(active))
        waiting = np.ones(len(active), dtype=bool)
        for _ in range(40):
            index = np.flatnonzero(waiting)
            _, trial = dual(theta[active[index]] + length[index, None] * step[index], active[index])
            # Near the optimum the decrease is smaller than rounding errors. The last term allows for them,
            # so that the full step, which is right there, is accepted.
            enough = trial <= value[index] + _ARMIJO * length[index] * slope[index] + 1e-14 * (
                1 + np.abs(value[index])
            )
            waiting[index[enough]] = False
            length[index[~enough]] /= 2
            if not waiting.any():
                break
        theta[active] += length[:, None] * step
    return theta, error, n_iter, separated


def _position(y: Array, t: Array, tol: float) -> str:
    """Where a target lies relative to the convex hull: "inside", "boundary" or "infeasible".

    A linear programme finds the largest t0 such that all weights can be at least t0: 0 on the boundary.
    """
    from scipy.optimize import linprog

    n = len(y)
    cost = np.zeros(n + 1)
    cost[n] = -1.0
    # Weights are t0 + q_j with q_j >= 0.
    equal = np.vstack([np.hstack([y.T, y.sum(axis=0)[:, None]]), np.append(np.ones(n), n)])
    found = linprog(cost, A_eq=equal, b_eq=np.append(t, 1.0), bounds=[(0, None)] * (n + 1))
    if found.status == 2:
        return "infeasible"
    if found.status != 0 or found.x is None:
        raise RuntimeError(f"the linear programme of the moments failed: {found.message}")
    return "inside" if found.x[n] > 1e-9 * min(1.0, 1 / n) else "boundary"


def _logsumexp(s: Array) -> Array:
    top = s.max(axis=-1)
    out: Array = top + np.log(np.exp(s - top[..., None]).sum(axis=-1))
    return out
