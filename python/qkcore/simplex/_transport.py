"""Attention rows as one-sided entropic transport, and KL-proximal (JKO) steps (EOT-1; EOT 2.3, B)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._softmax import log_sum_exp, logits, plain_softmax

Real = npt.NDArray[np.floating[Any]]
Gradient = Callable[[Real], npt.ArrayLike]


def _gibbs_logits(cost: npt.ArrayLike, reference: npt.ArrayLike | None, tau: float) -> Real:
    """:math:`\\tau \\log u - c`, whose softmax at temperature tau is the minimiser."""
    c = _checks.real_array("cost", cost)
    _checks.shape("cost", c.shape, (..., "V"), what="rows of costs")
    with np.errstate(invalid="ignore"):
        z: Real = logits("cost (times -1)", -c)
    if reference is None:
        return z
    z = z + c.dtype.type(tau) * _log_reference(reference, z)
    if np.isneginf(z.max(axis=-1)).any():
        raise ValueError(
            "cost: wanted a finite cost where the reference has mass, got a row without any; "
            "its problem has no solution"
        )
    return z


def _log_reference(reference: npt.ArrayLike, z: Real) -> Real:
    u = _checks.real_array("reference", reference)
    _checks.same_dtype("reference", u, z.dtype, "cost")
    _checks.shape(
        "reference",
        u.shape,
        (..., z.shape[-1]),
        why="like cost",
        do="its last axis runs over the entries of a row",
    )
    _checks.finite("reference", u)
    if u.min() < 0 or (u.max(axis=-1) == 0).any():
        raise ValueError(
            "reference: wanted weights >= 0, not all 0 in a row, got a negative one or a row of zeros; "
            "pass a measure"
        )
    with np.errstate(divide="ignore"):
        out: Real = np.log(u / u.sum(axis=-1, keepdims=True))
    return out


def kl_prox(
    cost: npt.ArrayLike, reference: npt.ArrayLike | None = None, *, tau: float = 1.0
) -> Real:
    """The row p that minimises :math:`\\langle c, p\\rangle + \\tau\\,\\mathrm{KL}(p\\|u)` (EOT-1, eq 1).

    Over the simplex this is :math:`p_j \\propto u_j e^{-c_j/\\tau}`. For :math:`c_j = -q\\cdot k_j` and
    uniform u it is a row of attention; otherwise it is one KL-proximal (JKO, mirror) step from u
    (proposition 2.1).

    cost: (..., V), +inf masks an entry. reference: (V,) or (..., V), weights >= 0 of which only the
    ratios matter; default uniform. For couplings of many rows in O(N) memory use :func:`qkcore.semi_relaxed`.

    >>> import numpy as np, qkcore as qk
    >>> qk.simplex.kl_prox(np.array([0.0, 0.0, np.inf]), reference=np.array([1.0, 3.0, 4.0]))
    array([0.25, 0.75, 0.  ])
    """
    tau = _checks.positive("tau", tau)
    return plain_softmax(_gibbs_logits(cost, reference, tau), tau)


def free_energy(
    cost: npt.ArrayLike, reference: npt.ArrayLike | None = None, *, tau: float = 1.0
) -> Any:
    """The minimum of the problem that :func:`kl_prox` solves (EOT-1).

    It is :math:`-\\tau \\log \\sum_j u_j e^{-c_j/\\tau}` with u normalised to the sum 1.

    >>> import numpy as np, qkcore as qk
    >>> float(qk.simplex.free_energy(np.full(5, 2.0)))
    2.0
    """
    tau = _checks.positive("tau", tau)
    z = _gibbs_logits(cost, reference, tau)
    if reference is None:
        z = z - z.dtype.type(tau * np.log(z.shape[-1]))
    out = -tau * log_sum_exp(z / z.dtype.type(tau))[..., 0]
    return float(out) if np.ndim(out) == 0 else out


@dataclass(frozen=True)
class JKOPath:
    """Successive KL-proximal steps: ``p`` (steps + 1, ..., V), and each step's residual and iterations."""

    p: Real
    residuals: npt.NDArray[np.float64]
    n_iter: npt.NDArray[np.int64]
    tol: float

    @property
    def converged(self) -> bool:
        """Whether every step's optimality condition holds to ``tol``."""
        return bool((self.residuals <= self.tol).all())

    @property
    def status(self) -> str:
        """``"converged"``, or the first step that did not converge."""
        bad = np.flatnonzero(~(self.residuals <= self.tol))
        return f"step {bad[0]}: iteration limit" if len(bad) else "converged"

    def __str__(self) -> str:
        worst = self.residuals.max(initial=0.0)
        return f"JKOPath: {len(self.p) - 1} steps, {self.status}, residual up to {worst:.1e}"


def jko(
    p0: npt.ArrayLike,
    energy: npt.ArrayLike | Gradient,
    *,
    tau: float = 1.0,
    n_steps: int = 1,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> JKOPath:
    """JKO steps :math:`p^{k+1} = \\arg\\min_p F(p) + \\tau\\,\\mathrm{KL}(p\\|p^k)` (EOT-1, prop. 2.1).

    energy: an array c (V,) or (..., V) for :math:`F(p) = \\langle c, p\\rangle` (+inf masks), whose step
    is :func:`kl_prox`; or a function that gives :math:`\\nabla F(p)`, of p's shape, for a convex F. Then
    each step solves :math:`p = \\mathrm{softmax}(\\log p^k - \\nabla F(p)/\\tau)` by damped fixed-point
    iteration; ``residuals`` holds the l1 error of that equation, and ``status`` says if it stayed above
    ``tol``.

    A step advances the flow :math:`\\dot p = -(\\mathrm{diag}\\,p - pp^\\top)\\nabla F(p)` by the time
    :math:`1/\\tau`: exactly for a linear F, to first order otherwise.

    >>> import numpy as np, qkcore as qk
    >>> path = qk.simplex.jko(np.array([0.5, 0.5]), np.array([0.0, np.log(3.0)]), n_steps=2)
    >>> path.p[1:]
    array([[0.75, 0.25],
           [0.9 , 0.1 ]])
    """
    p = _checks.probabilities("p0", p0)
    tau = _checks.positive("tau", tau)
    tol = _checks.positive("tol", tol)
    steps = _checks.integer_within("n_steps", n_steps, 1, 10**9, "take at least one step")
    limit = _checks.integer_within("max_iter", max_iter, 1, 10**9, "allow at least one iteration")
    if not callable(energy):
        energy = _checks.real_array("energy", energy)
        _checks.same_dtype("energy", energy, p.dtype, "p0")
        _checks.core_shape("energy", energy.shape, (p.shape[-1],), "like p0")
    path, residuals, counts = [p], [], []
    for _ in range(steps):
        if callable(energy):
            p, residual, used = _implicit_step(p, energy, tau, tol, limit)
        else:
            p, residual, used = kl_prox(energy, p, tau=tau), 0.0, 1
        path.append(p)
        residuals.append(residual)
        counts.append(used)
    shape = np.broadcast_shapes(*(q.shape for q in path))
    stacked: Real = np.stack([np.broadcast_to(q, shape) for q in path])
    return JKOPath(stacked, np.array(residuals), np.array(counts, np.int64), tol)


def _implicit_step(
    u: Real, gradient: Gradient, tau: float, tol: float, limit: int
) -> tuple[Real, float, int]:
    """Damped steps of log p towards log u - gradient / tau, shortened when they raise the residual."""
    with np.errstate(divide="ignore"):
        log_u = np.log(u)
    empty = np.isneginf(log_u)
    log_p, damping = log_u, 1.0
    best, best_log, best_move, best_residual = u, log_u, np.zeros_like(u), np.inf
    for k in range(1, limit + 1):
        p = np.exp(log_p).astype(u.dtype)
        slope = np.broadcast_to(np.asarray(gradient(p), dtype=p.dtype), p.shape)
        if not np.isfinite(slope[~empty]).all():
            raise ValueError(
                "energy: wanted a finite gradient, got NaN or inf; keep F differentiable on the simplex"
            )
        wanted = np.where(empty, -np.inf, log_u - np.where(empty, 0.0, slope) / tau)
        wanted = wanted - log_sum_exp(wanted)
        residual = float(np.abs(np.exp(wanted) - p).sum(axis=-1).max())
        if residual <= best_residual:
            move = np.where(empty, 0.0, wanted - np.where(empty, 0.0, log_p))
            best, best_log, best_move, best_residual = p, log_p, move, residual
            damping = min(1.0, 1.5 * damping)
        else:
            damping /= 2
        if residual <= tol:
            return p, residual, k
        # A step changes odds by at most a factor e^2, so that a stiff F does not throw p into a corner.
        longest = max(1.0, float(np.ptp(best_move, axis=-1).max()) / 2)
        log_p = best_log + min(damping, 1 / longest) * best_move
        log_p = log_p - log_sum_exp(log_p)
    return best, best_residual, limit
