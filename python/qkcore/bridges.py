"""Schrödinger bridges: the coupling of two marginals closest to a kernel (DAC-7), and Sinkhorn.

:math:`\\Pi_{ij} = e^{f_i + s_{ij} + g_j}` with row sums :math:`\\mu` and column sums :math:`\\nu`
(DAC eqs 16, 63-64). Everything is done on logarithms, with reductions of the engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real, Scores
from .operators import MarkovOperator, _scores_argument, softmax

__all__ = ["SchrodingerBridge", "bridge", "sinkhorn"]

_TOL = {4: 1e-5, 8: 1e-9}
_STAGNATION = 100  # iterations without progress


@dataclass(frozen=True, eq=False)
class SchrodingerBridge:
    """A solved bridge: log potentials, how the solve went, and everything that follows from them."""

    scores: Scores = field(repr=False)
    mu: Real = field(repr=False)
    nu: Real = field(repr=False)
    f: Real = field(repr=False)
    """log potential of the rows"""
    g: Real = field(repr=False)
    """log potential of the columns; sum_j nu_j g_j = 0"""
    status: str
    """"converged", or why not: "iteration limit", "stagnated" (at the precision of the dtype),
    "infeasible" (mass where the kernel has none)"""
    converged: bool
    """finite, and both marginals within ``tol`` (L1) at a final check of their own"""
    n_iter: int
    errors: npt.NDArray[np.float64] = field(repr=False)
    """L1 error of the column marginal after each iteration (of both, for the symmetric update)"""
    error: float
    """L1 error of the worse marginal at the final check"""
    worst: float
    """largest relative error of a single entry of the marginals at the final check"""
    method: str
    tol: float

    @cached_property
    def _log_plan(self) -> Scores:
        return self.scores.shift(rows=self.f, columns=self.g)

    def plan(self) -> Real:
        """The coupling as an array (N, M)."""
        return np.exp(self._log_plan.to_numpy())

    def marginals(self) -> tuple[Real, Real]:
        """Row and column sums of the coupling, in one pass."""
        return self._log_plan.marginals()

    @cached_property
    def forward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\mu_i` (eq 17): the softmax of s + g over rows (eq 33), N x M."""
        return softmax(self.scores.shift(columns=self.g))

    @cached_property
    def backward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\nu_j` as an M x N operator whose rows are the columns j."""
        return softmax(self.scores.T.shift(columns=self.f))

    def project(self, V: npt.ArrayLike) -> Real:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        return self.forward.apply(V)

    @cached_property
    def cost(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij} s_{ij}`."""
        return float(self._row_terms[0])

    @cached_property
    def entropy(self) -> float:
        """:math:`-\\sum_{ij} \\Pi_{ij}\\log \\Pi_{ij}`, in nats."""
        return float(self._row_terms[1])

    @cached_property
    def _row_terms(self) -> tuple[float, float]:
        # A row of the coupling is mu_i times a softmax, whose moments the engine gives.
        forward, live = self.forward, self.mu > 0
        mu = self.mu[live].astype(np.float64)
        expected = forward.expected_score()[live].astype(np.float64)  # of s + g
        g_mean = forward.apply(np.where(np.isfinite(self.g), self.g, 0))[live].astype(np.float64)
        entropy = forward.entropy()[live].astype(np.float64)
        return -math.fsum(mu * (expected - g_mean)), math.fsum(mu * (entropy - np.log(mu)))

    def __str__(self) -> str:
        n, m = self.scores.shape
        state = "converged" if self.converged else f"not converged ({self.status})"
        return (
            f"Schrödinger bridge {n} x {m}, {self.scores.dtype}: {state}\n"
            f"  {self.n_iter} iterations of {self.method}, "
            f"marginal error {self.error:.3g} (tolerance {self.tol:.3g})"
        )


def bridge(
    kernel: Scores,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    solver: str = "auto",
    n_threads: int | None = None,
    init: SchrodingerBridge | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> SchrodingerBridge:
    """The Schrödinger bridge from mu (N,) to nu (M,) over the kernel exp(s) (DAC-7, eqs 16, 63-64).

    The kernel is taken as given: no hidden factor, no hidden temperature. ``solver`` is "log"
    (alternating log-domain updates), "symmetric" (the averaged update, for symmetric scores and
    mu = nu) or "auto", which takes the second where it applies. ``tol`` bounds the L1 error of both
    marginals (default 1e-9, in float32 1e-5). ``init`` is an earlier result or potentials (f, g).

    >>> import numpy as np, qkcore as qk
    >>> b = qk.bridge(qk.scores.dense(np.zeros((2, 3))), np.full(2, 0.5), np.array([0.2, 0.3, 0.5]))
    >>> b.plan()
    array([[0.1 , 0.15, 0.25],
           [0.1 , 0.15, 0.25]])
    >>> b.converged
    True
    """
    s = _scores_argument(kernel)
    if s.ndim != 2:
        raise ValueError(
            f"kernel: wanted one N x M problem, got shape {s.shape}; solve them in turn"
        )
    mu, nu = _marginal("mu", mu, s, 0), _marginal("nu", nu, s, 1)
    masses = float(mu.sum(dtype=np.float64)), float(nu.sum(dtype=np.float64))
    slack = 16 * math.sqrt(max(s.shape)) * float(np.finfo(s.dtype).eps)
    if abs(masses[0] - masses[1]) > slack * masses[0]:
        raise ValueError(
            f"nu: wanted the total mass of mu, {masses[0]:.6g}, got {masses[1]:.6g}; "
            "divide both by their sums"
        )
    wanted = _TOL[s.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    limit = _checks.integer("max_iter", max_iter)
    if limit < 1:
        raise ValueError(f"max_iter: wanted at least 1, got {max_iter}")
    symmetric = s._symmetric and np.array_equal(mu, nu)
    if solver not in ("auto", "log", "symmetric"):
        raise ValueError(f'solver: wanted "auto", "log" or "symmetric", got {solver!r}')
    if solver == "symmetric" and not symmetric:
        raise ValueError(
            'solver: wanted symmetric scores and mu = nu for "symmetric", got a problem that is not '
            'known to be symmetric; use "auto"'
        )
    if solver == "auto":
        solver = "symmetric" if symmetric else "log"
    f, g = _start(init, s)
    state = _State(s, mu, nu, f, g, n_threads)
    update = state.average if solver == "symmetric" else state.alternate
    status = _iterate(state, update, wanted, limit)
    return _finish(state, status, solver, wanted)


def sinkhorn(
    s: Scores,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    n_threads: int | None = None,
) -> MarkovOperator:
    """The bistochastic operator :math:`e^{s_{ij} + u_i + v_j}` (DAC-4, eqs 9-10; B.3).

    :math:`A^{+-}` from forward scores, :math:`A^{-+}` from backward ones, :math:`P^{+-}` from
    distances (symmetric, by the averaged update). ``tol`` bounds the mean over rows (columns) of
    how far their sums are from 1. ``.bridge`` is the solver's result; a solve that did not converge
    raises.

    >>> import numpy as np, qkcore as qk
    >>> B = qk.sinkhorn(qk.scores.distance(np.array([[0.0], [1.0], [3.0]])))
    >>> B.to_numpy().sum(axis=0)
    array([1., 1., 1.])
    """
    s = _scores_argument(s)
    if s.ndim != 2 or s.shape[0] != s.shape[1]:
        raise ValueError(f"s: wanted square scores (N, N), got shape {s.shape}; see qk.bridge")
    n = s.shape[0]
    uniform = np.full(n, 1 / n, s.dtype)
    found = bridge(s, uniform, uniform, tol=tol, max_iter=max_iter, n_threads=n_threads)
    if not found.converged:
        raise RuntimeError(
            f"sinkhorn: {found.status} after {found.n_iter} iterations, with a marginal error of "
            f"{found.error:.3g} (wanted {found.tol:.3g}); raise max_iter or tol, lower beta, or look "
            "at qk.bridge(s, mu, nu), which returns what it has"
        )
    if found.method == "symmetric":
        half = (found.f + found.g + s.dtype.type(math.log(n))) / 2
        return MarkovOperator(s.shift(rows=half, columns=half), 1, bridge=found)
    rows = found.f + s.dtype.type(math.log(n))
    return MarkovOperator(s.shift(rows=rows, columns=found.g), 1, bridge=found)


class _State:
    """Potentials and the two half-steps; ``error`` belongs to the marginal not just fixed."""

    def __init__(
        self, s: Scores, mu: Real, nu: Real, f: Real, g: Real, n_threads: int | None
    ) -> None:
        self.s, self.mu, self.nu, self.f, self.g = s, mu, nu, f, g
        self.n_threads = n_threads
        with np.errstate(divide="ignore"):
            self.log_mu, self.log_nu = np.log(mu), np.log(nu)
        self.errors: list[float] = []
        self.infeasible = False

    def _solve(self, log_weight: Real, lse: Real) -> Real:
        """log_weight - lse; rows without mass stay out, rows with mass need a kernel."""
        if np.any(np.isneginf(lse) & (log_weight > -np.inf)):
            self.infeasible = True
        with np.errstate(invalid="ignore"):
            out: Real = np.where(
                np.isneginf(log_weight) | np.isneginf(lse), -np.inf, log_weight - lse
            )
        return out

    def alternate(self) -> float:
        """f from g, the error of the columns, g from f."""
        lse = self.s.shift(columns=self.g).logsumexp(1, n_threads=self.n_threads)
        self.f = self._solve(self.log_mu, lse)
        lse = self.s.shift(rows=self.f).logsumexp(0, n_threads=self.n_threads)
        error = float(np.abs(np.exp((self.g + lse).astype(np.float64)) - self.nu).sum())
        self.g_next = self._solve(self.log_nu, lse)
        return error

    def average(self) -> float:
        """f = g moved half-way to the row update; the error is that of both marginals."""
        lse = self.s.shift(columns=self.g).logsumexp(1, n_threads=self.n_threads)
        error = float(np.abs(np.exp((self.f + lse).astype(np.float64)) - self.mu).sum())
        new = self._solve(self.log_mu, lse)
        with np.errstate(invalid="ignore"):
            new = np.where(np.isneginf(new), new, (self.f + new) / 2)
        self.g_next = new.astype(self.f.dtype, copy=False)
        return error

    def accept(self, method_is_symmetric: bool) -> None:
        """Go on: take the update that the last error did not yet know of."""
        self.g = self.g_next
        if method_is_symmetric:
            self.f = self.g_next


def _iterate(state: _State, update: Any, tol: float, max_iter: int) -> str:
    best, best_at = math.inf, 0
    symmetric = update == state.average
    if symmetric:
        # f = g is the gauge that the averaged update keeps.
        with np.errstate(invalid="ignore"):
            both = (state.f + state.g) / 2
        state.f = state.g = np.where(np.isnan(both), -np.inf, both).astype(state.f.dtype)
    for k in range(max_iter):
        error = update()
        state.errors.append(error)
        if state.infeasible:
            return "infeasible"
        if error <= 0.5 * tol:
            return "converged"
        if error < 0.99 * best:
            best, best_at = error, k
        elif k - best_at > _STAGNATION:
            return "converged" if error <= tol else "stagnated"
        state.accept(symmetric)
    return "iteration limit"


def _finish(state: _State, status: str, method: str, tol: float) -> SchrodingerBridge:
    f, g = state.f, state.g
    live = state.nu > 0
    if np.isfinite(g[live]).all():
        mean = float(
            np.sum(state.nu[live].astype(np.float64) * g[live]) / state.nu.sum(dtype=float)
        )
        f, g = f + f.dtype.type(mean), g - g.dtype.type(mean)
    error = worst = 0.0
    got = state.s.marginals(f, g, n_threads=state.n_threads)
    for sums, wanted in zip(got, (state.mu, state.nu), strict=True):
        off = np.abs(sums.astype(np.float64) - wanted)
        error = max(error, float(off.sum()))
        worst = max(worst, float((off[wanted > 0] / wanted[wanted > 0]).max()))
    converged = error <= tol and status != "infeasible"
    if converged:
        status = "converged"
    elif status == "converged":
        status = "stagnated"
    return SchrodingerBridge(
        scores=state.s,
        mu=state.mu,
        nu=state.nu,
        f=f,
        g=g,
        status=status,
        converged=converged,
        n_iter=len(state.errors),
        errors=np.array(state.errors),
        error=error,
        worst=worst,
        method=method,
        tol=tol,
    )


def _marginal(name: str, value: npt.ArrayLike, s: Scores, side: int) -> Real:
    array = _checks.real_array(name, value)
    _checks.same_dtype(name, array, s.dtype, "the kernel")
    what = "rows" if side == 0 else "columns"
    _checks.core_shape(name, array.shape, (s.shape[side],), f"as the {what} of the kernel")
    if array.ndim != 1:
        raise ValueError(f"{name}: wanted shape ({s.shape[side]},), got {array.shape}")
    _checks.finite(name, array)
    if (low := float(array.min())) < 0:
        raise ValueError(f"{name}: wanted weights >= 0, got {low:.3g}; marginals are measures")
    if not array.any():
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    return array


def _start(
    init: SchrodingerBridge | tuple[npt.ArrayLike, npt.ArrayLike] | None, s: Scores
) -> tuple[Real, Real]:
    if init is None:
        return np.zeros(s.shape[0], s.dtype), np.zeros(s.shape[1], s.dtype)
    pair = (init.f, init.g) if isinstance(init, SchrodingerBridge) else init
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"init: wanted an earlier result or a pair (f, g), got {type(init).__name__}"
        )
    f, _ = s._bias("init f", pair[0], s.shape[0])
    g, _ = s._bias("init g", pair[1], s.shape[1])
    # A row that had no mass earlier starts from nothing, not from -inf for ever.
    return np.where(np.isneginf(f), 0, f).astype(s.dtype), np.where(np.isneginf(g), 0, g).astype(
        s.dtype
    )
