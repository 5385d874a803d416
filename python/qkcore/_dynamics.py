"""What a Markov chain does: stationary law, reachability, currents, regime, spectral gap (DAC-8).

Everything is written against products with the operator; no N x N array is formed except where the
name says so, or for chains of at most ``SMALL`` states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._lazy_scores import Real

if TYPE_CHECKING:
    from ._markov import Markov

__all__ = ["CurrentNorms", "ReducibleChainError", "Regime"]

# Chains this small are solved by elimination on the array itself.
SMALL = 200


class ReducibleChainError(ValueError):
    """The chain has several closed classes of states, so its stationary law is not unique."""


@dataclass(frozen=True)
class CurrentNorms:
    """Norms of the currents :math:`J_{ij} = \\rho_i P_{ij} - \\rho_j P_{ji}` (DAC eq 18)."""

    largest: float
    """max |J_ij|"""
    where: tuple[int, int]
    """an edge (i, j) that carries the largest current, directed so that J_ij > 0"""
    total: float
    """the sum of |J_ij| over i < j"""
    frobenius: float
    """the square root of the sum of J_ij^2 over all i, j"""
    largest_flow: float
    """max rho_i P_ij: what a current is small or large against"""
    entropy_production: float
    """half the sum of J_ij log(rho_i P_ij / rho_j P_ji), nats per step; inf with one-way edges"""


@dataclass(frozen=True)
class Regime:
    """Which of DAC 4.0.1's regimes a pair (P, rho) is in, and the figures that say so."""

    regime: str
    """"EQ" (stationary, no currents), "NESS" (stationary with currents) or "NE" (not stationary)"""
    max_current: float
    tol: float
    """currents up to this size count as none"""
    stationarity: float
    """the L1 distance between rho P and rho"""
    stationarity_tol: float
    entropy_production: float
    """nats per step (inf when some edge is one-way)"""
    currents: CurrentNorms = field(repr=False)
    rho: Real = field(repr=False)

    def __str__(self) -> str:
        meaning = {
            "EQ": "equilibrium: stationary, detailed balance",
            "NESS": "non-equilibrium steady state: stationary, with currents",
            "NE": "not stationary",
        }[self.regime]
        i, j = self.currents.where
        return (
            f"{self.regime} ({meaning})\n"
            f"  |rho P - rho|_1      {self.stationarity:.3g}  (tolerance {self.stationarity_tol:.3g})\n"
            f"  largest current      {self.max_current:.3g}  on {i} -> {j}  "
            f"(tolerance {self.tol:.3g})\n"
            f"  total current        {self.currents.total:.3g}\n"
            f"  entropy production   {self.entropy_production:.3g} nats per step"
        )


def square(P: Markov) -> Markov:
    """The row-stochastic form of one square chain: dynamics need one."""
    if len(P.shape) != 2:
        raise ValueError(
            f"operator: wanted one chain, got shape {P.shape}; take the problems of a batch one by one"
        )
    if P.shape[0] != P.shape[1]:
        raise ValueError(
            f"operator: wanted as many columns as rows, got shape {P.shape}; "
            "a chain moves within one set of states"
        )
    return P if P.axis == 1 else P.T


def law(name: str, rho: npt.ArrayLike, P: Markov) -> Real:
    """A probability vector of the chain's length and dtype."""
    array = _checks.real_array(name, rho)
    _checks.same_dtype(name, array, P.dtype, "the operator")
    _checks.core_shape(name, array.shape, (P.shape[0],), "as the states of the chain")
    if array.ndim != 1:
        raise ValueError(f"{name}: wanted shape ({P.shape[0]},), got {array.shape}; pass one law")
    _checks.finite(name, array)
    if (low := float(array.min())) < 0:
        raise ValueError(f"{name}: wanted probabilities, got a negative one ({low:.3g})")
    total = float(array.sum(dtype=np.float64))
    allowed = 16 * math.sqrt(len(array)) * float(np.finfo(array.dtype).eps)
    if abs(total - 1) > allowed:
        raise ValueError(
            f"{name}: wanted probabilities that sum to 1, got a sum of {total:.6g}; "
            f"divide by {name}.sum()"
        )
    return array


def refuse_empty_rows(P: Markov) -> None:
    if (n := int(np.count_nonzero(P.empty))) > 0:
        raise ValueError(
            f"operator: wanted a stochastic matrix, got {n} empty row{'s' if n > 1 else ''} (fully "
            "masked), from which the chain goes nowhere; let those states keep themselves"
        )


# ---- stationary law -----------------------------------------------------------------------------


def stationary(P: Markov, tol: float | None, max_iter: int, n_threads: int | None) -> Real:
    refuse_empty_rows(P)
    n = P.shape[0]
    eps = float(np.finfo(P.dtype).eps)
    wanted = 8 * eps if tol is None else _checks.positive("tol", tol)
    rho = P._known_stationary()
    if rho is None:
        rho = _by_elimination(P) if n <= SMALL else _by_iteration(P, wanted, max_iter, n_threads)
    _refuse_several_classes(P, rho, n_threads)
    # Rounding in the product itself sets a floor, which grows with the spread of the scores.
    residual = _residual(P, rho, n_threads)
    acceptable = max(wanted, 1e4 * eps, 2 * P._stochastic_error)
    if not residual <= acceptable:
        raise RuntimeError(
            f"stationary: the law is not found to tolerance: |rho P - rho|_1 = {residual:.3g}, "
            f"wanted {acceptable:.3g}; the chain mixes slowly: raise max_iter (it is {max_iter})"
        )
    return rho


def _normalized(rho: npt.NDArray[Any], dtype: np.dtype[Any]) -> Real:
    positive = np.maximum(rho.real.astype(np.float64), 0.0)
    out: Real = (positive / positive.sum()).astype(dtype)
    return out


def _residual(P: Markov, rho: Real, n_threads: int | None) -> float:
    moved = P.apply_left(rho, n_threads=n_threads)
    return float(np.abs(moved.astype(np.float64) - rho).sum())


def _by_elimination(P: Markov) -> Real:
    """Grassmann-Taksar-Heyman: no subtraction, so every entry has a small relative error."""
    a = P.to_numpy().astype(np.float64)
    n = len(a)
    for k in range(n - 1, 0, -1):
        out = a[k, :k].sum()
        if out <= 0:  # no way back to lower states: reducible
            return _long_run_average(P)
        a[:k, k] /= out
        a[:k, :k] += np.outer(a[:k, k], a[k, :k])
    rho = np.zeros(n)
    rho[0] = 1.0
    for k in range(1, n):
        rho[k] = rho[:k] @ a[:k, k]
    return _normalized(rho, P.dtype)


def _long_run_average(P: Markov) -> Real:
    """The law that a uniform start tends to on average: squares the lazy chain of a small operator."""
    lazy = 0.5 * (np.eye(P.shape[0]) + P.to_numpy().astype(np.float64))
    for _ in range(60):  # 2^60 steps
        lazy = lazy @ lazy
        lazy /= lazy.sum(axis=1, keepdims=True)
    return _normalized(lazy.mean(axis=0), P.dtype)


def _by_iteration(P: Markov, tol: float, max_iter: int, n_threads: int | None) -> Real:
    """Power steps while they converge fast, then Arnoldi on the transposed operator, then polish."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    n = P.shape[0]
    rho = np.full(n, 1 / n, P.dtype)
    previous = math.inf
    for _ in range(40):
        moved = _normalized(P.apply_left(rho, n_threads=n_threads), P.dtype)
        residual = float(np.abs(moved.astype(np.float64) - rho).sum())
        rho = moved
        if residual <= tol:
            return rho
        if residual > 0.8 * previous:  # slow, or at the floor of rounding
            break
        previous = residual
    step = LinearOperator(
        (n, n), matvec=lambda x: P.apply_left(x, n_threads=n_threads), dtype=P.dtype
    )
    try:
        # The rightmost eigenvalue: periodic chains have others on the unit circle.
        _, vectors = eigs(step, k=1, which="LR", v0=rho, maxiter=max_iter, tol=0, ncv=min(n, 40))
        found: npt.NDArray[Any] = vectors[:, 0]
    except ArpackNoConvergence as stopped:
        if stopped.eigenvectors.size == 0:
            raise RuntimeError(
                f"stationary: Arnoldi did not converge within {max_iter} restarts; raise max_iter"
            ) from stopped
        found = stopped.eigenvectors[:, 0]
    found = found * np.exp(-1j * np.angle(found[np.argmax(np.abs(found))]))
    best = _normalized(found, P.dtype)
    residual = _residual(P, best, n_threads)
    for _ in range(10):  # power steps remove what is left of fast modes
        moved = _normalized(P.apply_left(best, n_threads=n_threads), P.dtype)
        after = _residual(P, moved, n_threads)
        if after >= residual:
            break
        best, residual = moved, after
    return best


def _refuse_several_classes(P: Markov, rho: Real, n_threads: int | None) -> None:
    """Every state must lead to the most likely one; otherwise there is a closed class without it."""
    target = int(np.argmax(rho))
    reached = leads_to(P, target, n_threads)
    if (n_left := int(np.count_nonzero(~reached))) > 0:
        example = int(np.argmin(reached))
        raise ReducibleChainError(
            f"stationary: the chain is reducible: from {n_left} of its {P.shape[0]} states (e.g. "
            f"{example}) there is no way to state {target}, so it has at least two closed classes and "
            "no unique stationary law; treat the classes as chains of their own"
        )


def leads_to(P: Markov, target: int, n_threads: int | None = None) -> npt.NDArray[np.bool_]:
    """States from which ``target`` can be reached, through weights that do not underflow."""
    reached = np.zeros(P.shape[0], bool)
    reached[target] = True
    frontier = reached
    while frontier.any():
        seen = P.apply(frontier.astype(P.dtype), n_threads=n_threads) > 0
        frontier = seen & ~reached
        reached = reached | seen
    return reached


# ---- currents and regime ------------------------------------------------------------------------


def regime(
    P: Markov, rho: npt.ArrayLike | None, tol: float | None, n_threads: int | None
) -> Regime:
    refuse_empty_rows(P)
    if tol is None:
        rate = max(1e3 * float(np.finfo(P.dtype).eps), 10 * P._stochastic_error)
    else:
        rate = _checks.positive("tol", tol)
    if rho is None:
        where: Real = stationary(P, None, 10_000, n_threads)
    else:
        where = law("rho", rho, P)
    norms = P._current_norms(where, n_threads)
    stationarity = _residual(P, where, n_threads)
    allowed = rate * norms.largest_flow
    if stationarity > rate:
        name = "NE"
    else:
        name = "EQ" if norms.largest <= allowed else "NESS"
    return Regime(
        name, norms.largest, allowed, stationarity, rate, norms.entropy_production, norms, where
    )


def gather_norms(rows: tuple[npt.NDArray[Any], ...]) -> CurrentNorms:
    """Norms of the currents from what the engine found in each row (see compare_rows)."""
    absolute, squares, tilt, largest, top, where = rows
    i = int(np.argmax(np.abs(largest)))
    j = int(where[i])
    return CurrentNorms(
        largest=abs(float(largest[i])),
        where=(i, j) if largest[i] >= 0 else (j, i),
        total=0.5 * math.fsum(absolute),
        frobenius=math.sqrt(math.fsum(squares)),
        largest_flow=float(top.max()),
        entropy_production=max(0.0, 0.5 * float(np.sum(tilt))),
    )


# ---- spectrum -----------------------------------------------------------------------------------


def spectral_gap(P: Markov, n_threads: int | None) -> float:
    """1 - |lambda_2|: how fast the chain forgets; 0 for periodic and reducible chains."""
    refuse_empty_rows(P)
    n = P.shape[0]
    if n == 1:
        return 1.0
    if n <= SMALL:
        values = np.linalg.eigvals(P.to_numpy().astype(np.float64))
    else:
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

        step = LinearOperator(
            (n, n), matvec=lambda x: P.apply(x, n_threads=n_threads), dtype=P.dtype
        )
        start = np.cos(np.arange(n, dtype=P.dtype))  # any fixed vector: results must repeat
        try:
            values = eigs(
                step,
                k=2,
                which="LM",
                v0=start,
                tol=1e-11,
                maxiter=100,
                ncv=min(n, 40),
                return_eigenvectors=False,
            )
        except ArpackNoConvergence as stopped:
            # Many eigenvalues of one size, as a long cycle has them: Arnoldi cannot tell them apart.
            raise RuntimeError(
                "spectral_gap: Arnoldi did not converge, as for chains with many eigenvalues of "
                "nearly the same size; for a chain that fits use np.linalg.eigvals(A.to_numpy())"
            ) from stopped
    second = np.sort(np.abs(values))[-2]
    return float(max(0.0, 1.0 - second))
