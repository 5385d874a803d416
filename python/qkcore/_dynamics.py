"""Properties of a Markov chain: stationary law, reachability, currents, regime, spectral gap (DAC-8).

Everything is computed from products with the operator. N x N arrays are formed only by functions whose name
says so, for spectra of at most ``SMALL`` states, and for stationary laws (see _stationary.py).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks, _device
from ._classes import Classes, find_classes
from ._classes import leads_to as leads_to
from ._config import resolve_threads
from ._convergence import ConvergenceError, ConvergenceWarning, on_fail_option
from ._lazy_scores import Real
from ._native import cpu
from ._stationary import ELIMINATED, Law, ReducibleChainError, stationary_law
from ._words import RegimeName

if TYPE_CHECKING:
    from ._markov import Markov

__all__ = ["CurrentNorms", "ReducibleChainError", "Regime"]

# Up to this many states the spectrum is computed from the matrix itself.
SMALL = 200
# The most steps of an iteration, if the caller has not given a number.
MAX_ITER = 10_000


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
    """max rho_i P_ij, the size that currents are compared with"""
    entropy_production: float
    """half the sum of J_ij log(rho_i P_ij / rho_j P_ji), nats per step; inf with one-way edges"""


@dataclass(frozen=True)
class Regime:
    """The regime (DAC 4.0.1) of a pair (P, rho), and the figures that determine it."""

    regime: RegimeName
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
    law_error: float | None = None
    """estimated L1 error of ``rho`` as the stationary law; None when the caller gave rho"""
    recurrent: npt.NDArray[np.intp] | None = field(default=None, repr=False)
    """the states of closed classes, to which the chain returns for ever; None if they were not searched for,
    because rho was given and the chain is masked and has more than 4096 states"""
    n_closed: int | None = None
    """the number of closed classes, which is 1 if the stationary law is unique; None if ``recurrent`` is"""
    absorbing: tuple[int, ...] = ()
    """states that are never left"""

    @property
    def trivial(self) -> bool:
        """Whether all of rho is on absorbing states, so that the regime says nothing about other states."""
        if not self.absorbing:
            return False
        away = np.ones(len(self.rho), bool)
        away[list(self.absorbing)] = False
        return not self.rho[away].any()

    def __str__(self) -> str:
        meaning = {
            "EQ": "equilibrium: stationary, detailed balance",
            "NESS": "non-equilibrium steady state: stationary, with currents",
            "NE": "not stationary",
        }[self.regime]
        if self.trivial:
            meaning = f"trivial: {_some(self.absorbing)} and rho is there, where nothing moves"
        i, j = self.currents.where
        lines = [
            f"{self.regime} ({meaning})",
            f"  |rho P - rho|_1      {self.stationarity:.3g}  (tolerance {self.stationarity_tol:.3g})",
            f"  largest current      {self.max_current:.3g}  on {i} -> {j}  (tolerance {self.tol:.3g})",
            f"  total current        {self.currents.total:.3g}",
            f"  entropy production   {self.entropy_production:.3g} nats per step",
        ]
        if self.law_error is not None and self.law_error > self.stationarity_tol:
            lines.append(f"  error of the law     {self.law_error:.3g} (L1, estimated)")
        return "\n".join(lines + self._about_classes())

    def _about_classes(self) -> list[str]:
        lines = []
        n = len(self.rho)
        if self.recurrent is not None and len(self.recurrent) < n:
            left = n - len(self.recurrent)
            lines.append(f"  transient states     {left} of {n}: the chain leaves them for good")
        if self.absorbing and not self.trivial:
            lines.append(f"  absorbing            {_some(self.absorbing)}")
        if self.n_closed is not None and self.n_closed > 1:
            lines.append(
                f"  closed classes       {self.n_closed}: there is no unique stationary law"
            )
        if self.trivial:
            lines.append("  pass rho=, e.g. a uniform law, for the regime elsewhere")
        return lines


def _some(states: tuple[int, ...]) -> str:
    if len(states) == 1:
        return f"state {states[0]} absorbs the chain"
    listed = ", ".join(map(str, states[:3])) + (", ..." if len(states) > 3 else "")
    return f"{len(states)} states absorb the chain ({listed})"


def square(P: Markov) -> Markov:
    """The row-stochastic form of a chain; refuses batches and operators that are not square."""
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
    if _device.on_device(rho):
        rho = _device.to_host(name, rho)
    array = _checks.converted(name, rho, P.dtype, "the operator")
    _checks.core_shape(name, array.shape, (P.shape[0],), "as the states of the chain")
    _checks.shape(name, array.shape, P.shape[:1], do="pass one law")
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
            "masked), from which the chain cannot move; unmask the diagonal, so that those states stay"
        )


# ---- stationary law ------------------------------------------------------------------------------


def law_of(
    P: Markov,
    tol: float | None,
    max_iter: int,
    on_fail: str,
    n_threads: int | None,
    *,
    depth: int = 3,
) -> Law:
    """The stationary law; if it may be wrong, this warns or raises, as ``on_fail`` says.

    ``depth``: the ``stacklevel`` of a warning, so that it shows the line of the user's code.
    """
    refuse_empty_rows(P)
    choice = on_fail_option(on_fail)
    wanted = 1e4 * float(np.finfo(P.dtype).eps) if tol is None else _checks.positive("tol", tol)
    found = stationary_law(P, wanted, max_iter, n_threads)
    if not found.trusted and choice != "ignore":
        message = (
            f"stationary: the law may be wrong by {found.error:.2g} (estimated L1 error, wanted "
            f"{found.wanted:.2g}): the chain of {P.shape[0]} states forgets its start too slowly to tell; "
            f"raise max_iter (it is {max_iter}) or tol, or take at most {ELIMINATED} states, for which the "
            'law is computed by elimination; on_fail="raise" makes this an error, "ignore" says nothing'
        )
        if choice == "raise":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=depth)
    return found


def rounded(log_law: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> Real:
    """The probabilities themselves, in the dtype of the chain."""
    weight = np.exp(log_law)
    out: Real = (weight / weight.sum()).astype(dtype)
    return out


def _residual(P: Markov, rho: Real, n_threads: int | None) -> float:
    moved = P.apply_left(rho, n_threads=n_threads)
    return float(np.abs(moved.astype(np.float64) - rho).sum())


# ---- currents and regime -------------------------------------------------------------------------


def regime(
    P: Markov, rho: npt.ArrayLike | None, tol: float | None, n_threads: int | None
) -> Regime:
    refuse_empty_rows(P)
    eps = float(np.finfo(P.dtype).eps)
    given = None if tol is None else _checks.positive("tol", tol)
    classes: Classes | None
    error: float | None
    if rho is None:
        found = law_of(P, None, MAX_ITER, "warn", n_threads, depth=4)
        classes, error = found.classes, found.error
        where: Real = rounded(found.log_law, P.dtype)
        norms = norms_at(P, found.log_law, n_threads)
    else:
        where, error = law("rho", rho, P), None
        classes = find_classes(P, n_threads, within_array=True)
        norms = P._current_norms(where, n_threads)
    stationarity = _residual(P, where, n_threads)
    if given is None:
        rate = max(1e3 * eps, 10 * P._marginal_error)
        # Errors of the marginals change a single flow by at most the error of all sums together, and by at
        # most the relative error of one sum times the flow.
        left = min(P._stochastic_error * norms.largest_flow, P._marginal_error)
        allowed = max(1e3 * eps * norms.largest_flow, 10 * left)
    else:
        rate, allowed = given, given * norms.largest_flow
    if stationarity > rate:
        name = RegimeName.NE
    else:
        name = RegimeName.EQ if norms.largest <= allowed else RegimeName.NESS
    return Regime(
        name,
        norms.largest,
        allowed,
        stationarity,
        rate,
        norms.entropy_production,
        norms,
        where,
        error,
        None if classes is None else np.sort(np.concatenate(classes.closed)),
        None if classes is None else len(classes.closed),
        () if classes is None else tuple(int(c[0]) for c in classes.closed if len(c) == 1),
    )


def norms_at(P: Markov, log_rho: npt.NDArray[np.float64], n_threads: int | None) -> CurrentNorms:
    """Norms of the currents at a law that is given by logarithms, so that small probabilities count too."""
    if len(P._steps()) != 1:
        return P._in_float64()._current_norms(rounded(log_rho, np.dtype(np.float64)), n_threads)
    least = float(log_rho.min(initial=0.0, where=np.isfinite(log_rho)))
    if least > math.log(float(np.finfo(P.dtype).tiny)):
        return P._current_norms(rounded(log_rho, P.dtype), n_threads)
    # If a probability underflowed to 0, an edge with flow in both directions would look like a one-way edge.
    wide: Any = P._in_float64()
    flow = wide.log_weights.shift(rows=log_rho)
    return gather_norms(cpu.compare_rows(flow._spec, flow.T._spec, resolve_threads(n_threads)))


def gather_norms(rows: tuple[npt.NDArray[Any], ...]) -> CurrentNorms:
    """Norms of the currents from the engine's figures for each row (see compare_rows)."""
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


# ---- spectrum ------------------------------------------------------------------------------------


def spectral_gap(P: Markov, n_threads: int | None) -> float:
    """1 - |lambda_2|: how fast the chain forgets its start; 0 for periodic and reducible chains."""
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
            # Arnoldi's method cannot separate many eigenvalues of one modulus, such as those of a long cycle.
            raise RuntimeError(
                "spectral_gap: Arnoldi's method did not converge, which happens if many eigenvalues have "
                "nearly the same modulus; if the matrix fits into memory, use np.linalg.eigvals(A.to_numpy())"
            ) from stopped
    second = np.sort(np.abs(values))[-2]
    return float(max(0.0, 1.0 - second))
