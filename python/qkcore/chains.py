"""Multi-step bridges: a path measure over a chain of kernels with given end marginals (DAC-7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from . import _checks
from ._bridge_problem import _TOL, _at_least_one, _gauge, _marginal
from ._lazy_scores import Real, Scores
from .operators import MarkovOperator, _scores_argument, softmax

__all__ = ["BridgeChain", "bridge_chain"]


@dataclass(frozen=True, eq=False)
class BridgeChain:
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
    error: float
    tol: float

    @cached_property
    def _backward_potentials(self) -> list[Real]:
        """h_k: log of what the kernels after time k and g make of every state; h_n = g."""
        h = [self.g]
        for s in reversed(self.scores):
            h.append(s.shift(columns=h[-1]).logsumexp(1))
        return h[::-1]

    @cached_property
    def kernels(self) -> tuple[MarkovOperator, ...]:
        """The steps of the bridge, row-stochastic: :math:`\\mathrm{softmax}_j(s_k + h_k)`."""
        h = self._backward_potentials
        return tuple(softmax(s.shift(columns=h[k + 1])) for k, s in enumerate(self.scores))

    @cached_property
    def marginals(self) -> tuple[Real, ...]:
        """The laws at times 0..n: mu, pushed through the steps."""
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
    n_threads: int | None = None,
) -> BridgeChain:
    """The Schrödinger bridge over several steps (DAC-7): the closest path measure with both ends.

    Kernels (N0, N1), (N1, N2), ... as scores; intermediate states need not be as many as the ends.
    Solved by alternating updates of both ends, every kernel visited twice per iteration; products of
    kernels are never formed.

    >>> import numpy as np, qkcore as qk
    >>> s = qk.scores.distance(np.array([[0.0], [1.0], [2.0]]))
    >>> start, end = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])
    >>> c = qk.bridge_chain([s, s], start, end)
    >>> c.marginals[1].argmax()  # half-way it is in the middle
    np.int64(1)
    """
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
    masses = float(rows.sum(dtype=np.float64)), float(cols.sum(dtype=np.float64))
    if abs(masses[0] - masses[1]) > 1e-5 * masses[0]:
        raise ValueError(f"nu: wanted the total mass of mu, {masses[0]:.6g}, got {masses[1]:.6g}")
    wanted = _TOL[rows.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    limit = _at_least_one("max_iter", max_iter)
    dtype = rows.dtype
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(rows), np.log(cols)
    g = np.where(cols > 0, 0.0, -np.inf).astype(dtype)
    if init is not None:
        g = np.where(np.isneginf(init.g) & (cols > 0), 0, init.g).astype(dtype)
    errors: list[float] = []
    status = "iteration limit"
    best, best_at = math.inf, 0
    while True:
        h = g
        for s in reversed(chain):
            h = s.shift(columns=h).logsumexp(1, n_threads=n_threads)
        f = _minus(log_mu, h)
        a = f
        for s in chain:
            a = s.shift(rows=a).logsumexp(0, n_threads=n_threads)
        if np.any((rows > 0) & np.isneginf(f)) or np.any((cols > 0) & np.isneginf(a)):
            status = "infeasible"
            errors.append(math.inf)
            break
        with np.errstate(invalid="ignore"):
            reached = np.where(cols > 0, np.exp((a + g).astype(np.float64)), 0.0)
        errors.append(float(np.abs(reached - cols).sum()))
        if errors[-1] <= wanted:
            status = "converged"
            break
        if errors[-1] < 0.99 * best:
            best, best_at = errors[-1], len(errors)
        elif len(errors) - best_at > 100:
            status = "stagnated"
            break
        if len(errors) >= limit:
            break
        g = _minus(log_nu, a)
    f, g = (x.astype(dtype) for x in _gauge(f, g, cols))
    return BridgeChain(
        chain, rows, cols, f, g, status, status == "converged", len(errors), np.array(errors),
        errors[-1], wanted,
    )  # fmt: skip


def _minus(log_weight: Real, lse: Real) -> Real:
    """log_weight - lse, with weights of 0 staying out."""
    with np.errstate(invalid="ignore"):
        out: Real = np.where(np.isneginf(log_weight) | np.isneginf(lse), -np.inf, log_weight - lse)
    return out.astype(log_weight.dtype)
