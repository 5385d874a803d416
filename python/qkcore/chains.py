"""Multi-step bridges: a path measure over a chain of kernels with given end marginals (DAC-7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from . import _checks
from ._bridge_check import largest_finite, rounding_slack, widened
from ._bridge_problem import _TOL, _at_least_one, _equal_masses, _gauge, _marginal
from ._config import resolve_threads
from ._convergence import WarnsOnUse, on_fail_option, settle
from ._lazy_scores import Real, Scores
from .operators import MarkovOperator, _scores_argument, softmax

__all__ = ["BridgeChain", "bridge_chain"]


@dataclass(frozen=True, eq=False)
class BridgeChain(WarnsOnUse):
    """The path measure :math:`e^{f(x_0)} \\prod_k e^{s_k(x_{k-1}, x_k)} e^{g(x_n)}` with given ends."""

    scores: tuple[Scores, ...] = field(repr=False)
    mu: Real = field(repr=False)
    nu: Real = field(repr=False)
    f: Real = field(repr=False)
    g: Real = field(repr=False)
    status: str
    converged: bool
    n_iter: int
    errors: npt.NDArray[np.float64] = field(repr=False)
    """after each iteration, the L1 error of the last marginal as a share of the mass"""
    error: float
    """L1 error of the worse end as a share of the mass, at the final check"""
    tol: float
    on_fail: str = field(default="warn", repr=False)
    """what using the result does when it did not converge: "warn" or "ignore" """

    @property
    def n_visits(self) -> int:
        """Iterations; each visits every kernel twice."""
        return self.n_iter

    @cached_property
    def _backward_potentials(self) -> list[Real]:
        """h_k: log of what the kernels after time k and g make of every state; h_n = g."""
        return _backward(self.scores, self.g, None)

    @cached_property
    def kernels(self) -> tuple[MarkovOperator, ...]:
        """The steps of the bridge, row-stochastic: :math:`\\mathrm{softmax}_j(s_k + h_k)`."""
        self._used()
        h = self._backward_potentials
        return tuple(softmax(s.shift(columns=h[k + 1])) for k, s in enumerate(self.scores))

    @cached_property
    def marginals(self) -> tuple[Real, ...]:
        """The laws at times 0..n: mu, pushed through the steps."""
        self._used()
        laws = [np.exp(self.f + self._backward_potentials[0])]
        for step in self.kernels:
            laws.append(step.apply_left(laws[-1]))
        return tuple(laws)

    def __str__(self) -> str:
        sizes = " -> ".join(str(len(x)) for x in self._backward_potentials)
        state = "converged" if self.converged else f"not converged ({self.status})"
        return (
            f"bridge over {len(self.scores)} steps ({sizes} states): {state}\n"
            f"  {self.n_iter} iterations, marginal error {self.error:.3g} (tolerance {self.tol:.3g})"
        )


def bridge_chain(
    kernels: Sequence[Scores],
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    init: BridgeChain | None = None,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> BridgeChain:
    """The Schrödinger bridge over several steps (DAC-7): the closest path measure with both ends.

    Kernels (N0, N1), (N1, N2), ... as scores; intermediate states need not be as many as the ends.
    Solved by alternating updates of both ends, every kernel visited twice per iteration; products of
    kernels are never formed. ``on_fail`` is that of :func:`bridge`.

    >>> import numpy as np, qkcore as qk
    >>> s = qk.scores.distance(np.array([[0.0], [1.0], [2.0]]))
    >>> start, end = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])
    >>> c = qk.bridge_chain([s, s], start, end)
    >>> c.marginals[1].argmax()  # half-way it is in the middle
    np.int64(1)
    """
    fails = on_fail_option(on_fail)
    chain = tuple(_scores_argument(s) for s in kernels)
    if not chain:
        raise ValueError("kernels: wanted at least one, got none")
    for k, s in enumerate(chain):
        if s.ndim != 2:
            raise ValueError(f"kernels[{k}]: wanted shape (N, M), got {s.shape}")
        _checks.same_dtype(f"kernels[{k}]", np.empty(0, s.dtype), chain[0].dtype, "kernels[0]")
        if k and s.shape[0] != chain[k - 1].shape[1]:
            raise ValueError(
                f"kernels[{k}]: wanted {chain[k - 1].shape[1]} rows, the columns of kernels[{k - 1}], "
                f"got shape {s.shape}"
            )
    rows, cols = _marginal("mu", mu, chain[0], 0), _marginal("nu", nu, chain[-1], 1)
    _equal_masses(rows, cols)
    wanted = _TOL[rows.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    limit = _at_least_one("max_iter", max_iter)
    threads = resolve_threads(n_threads)
    g = np.where(cols > 0, 0.0, -np.inf)
    if init is not None:
        g = np.where(np.isneginf(init.g) & (cols > 0), 0.0, init.g.astype(np.float64))
    errors: list[float] = []
    attempts = [(chain, 0.5 * wanted), (chain, 0.05 * wanted)]
    if rows.dtype == np.float32:  # whose own scores may be too coarse for the tolerance
        attempts.append((tuple(map(widened, chain)), 0.05 * wanted))
    for steps, inner in attempts:
        f, g, status = _iterate(steps, rows, cols, g, inner, limit, errors, threads)
        ends = [x.astype(rows.dtype) for x in _gauge(f, g, cols)]
        error, met = _check(chain, rows, cols, ends[0], ends[1], wanted, threads)
        if met or status == "infeasible" or len(errors) >= limit:
            break
    if met:
        status = "converged"
    elif status == "converged":
        status = "stagnated"
    found = BridgeChain(
        chain,
        rows,
        cols,
        ends[0],
        ends[1],
        status,
        met,
        len(errors),
        np.array(errors),
        error,
        wanted,
    )
    return settle(found, fails)


def _iterate(
    chain: tuple[Scores, ...],
    mu: Real,
    nu: Real,
    g: Real,
    tol: float,
    limit: int,
    errors: list[float],
    n_threads: int,
) -> tuple[Real, Real, str]:
    """Alternating updates of both ends; the errors, as shares of the mass, are appended to the list."""
    dtype = chain[0].dtype
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(mu.astype(np.float64)), np.log(nu.astype(np.float64))
    mass = _checks.total(mu)
    best, best_at = math.inf, len(errors)
    while True:
        f = _minus(log_mu, _backward(chain, g.astype(dtype), n_threads)[0])
        a = f.astype(dtype)
        for s in chain:
            a = s.shift(rows=a).logsumexp(0, n_threads=n_threads)
        if np.any((mu > 0) & np.isneginf(f)) or np.any((nu > 0) & np.isneginf(a)):
            errors.append(math.inf)
            return f, g, "infeasible"
        with np.errstate(invalid="ignore"):
            reached = np.where(nu > 0, np.exp(a.astype(np.float64) + g), 0.0)
        errors.append(float(np.abs(reached - nu).sum()) / mass)
        if errors[-1] <= tol:
            return f, g, "converged"
        if len(errors) >= limit:
            return f, g, "iteration limit"
        # Far above the rounding of the potentials a constant error is a plateau, and it goes on.
        floor = 16 * float(np.finfo(dtype).eps) * (32 + sum(largest_finite(x) for x in (f, g)))
        if errors[-1] < 0.99 * best:
            best, best_at = errors[-1], len(errors)
        elif len(errors) - best_at > 100 and errors[-1] < floor:
            return f, g, "stagnated"
        g = _minus(log_nu, a)


def _backward(chain: Sequence[Scores], g: Real, n_threads: int | None) -> list[Real]:
    """h_0, ..., h_n = g: what the end's potential is, seen from each earlier time."""
    h = [g]
    for s in reversed(chain):
        h.append(s.shift(columns=h[-1]).logsumexp(1, n_threads=n_threads))
    return h[::-1]


def _check(
    chain: tuple[Scores, ...], mu: Real, nu: Real, f: Real, g: Real, tol: float, n_threads: int
) -> tuple[float, bool]:
    """The error of the worse end, and whether it is within tol, in more precision than the dtype's."""
    wide = tuple(map(widened, chain))
    f, g = f.astype(np.float64), g.astype(np.float64)
    h = _backward(wide, g, n_threads)
    a = [f]
    for s in wide:
        a.append(s.shift(rows=a[-1]).logsumexp(0, n_threads=n_threads))
    error = 0.0
    for weight, log in ((mu, f + h[0]), (nu, a[-1] + g)):
        wanted = weight.astype(np.float64)
        off = np.abs(np.exp(np.where(np.isnan(log), -np.inf, log)) - wanted)
        error = max(error, _checks.total(off) / _checks.total(wanted))
    slack = sum(rounding_slack(s, x, y) for s, x, y in zip(wide, a, h[1:], strict=False))
    return error, error + slack <= tol


def _minus(log_weight: Real, lse: Real) -> Real:
    """log_weight - lse in float64, with weights of 0 staying out."""
    with np.errstate(invalid="ignore"):
        out: Real = np.where(np.isneginf(log_weight) | np.isneginf(lse), -np.inf, log_weight - lse)
    return out
