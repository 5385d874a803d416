"""Schrödinger bridges: the coupling of two marginals closest to a kernel (DAC-7, EOT-1, EOT-10).

:math:`\\Pi_{ij} = e^{f_i + s_{ij} + g_j}` with row sums :math:`\\mu` and column sums :math:`\\nu`
(DAC eqs 16, 63-64). One iteration visits every entry once: the row update, and in the same visit the
column sums that follow from it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from . import _checks, _device, _pieces, scores
from ._bridge_batch import solve_batch
from ._bridge_check import (
    Conditions,
    batch_residuals,
    block_sums,
    residual,
    wide_marginals,
    widened,
)
from ._bridge_kernels import GivenKernel, ScoresKernel, SweepKernel, is_given
from ._bridge_problem import TOLERANCES, _marginal, memory_limit, uniform_marginals
from ._bridge_report import Callback
from ._bridge_result import SchrodingerBridge
from ._bridge_solve import ask
from ._config import resolve_threads
from ._convergence import ConvergenceError, limit_named, on_fail_option, settle
from ._factored_bridge import FactoredBridge, solve_factored
from ._factors import Factored
from ._given_bridge import GivenBridge
from ._lazy_scores import Scores
from .operators import MarkovOperator, scores_argument

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["GivenBridge", "SchrodingerBridge", "bridge", "semi_relaxed", "sinkhorn"]


class _Options(TypedDict, total=False):
    """What :func:`bridge` takes beside the problem, for type checkers."""

    tol: float | None
    max_iter: int
    max_visits: int | None
    solver: str
    penalty: float | tuple[float, float] | None
    init: Any
    max_memory: float | None
    callback: Callback | None
    progress: bool
    on_fail: str
    n_threads: int | None


@overload
def bridge(
    kernel: Scores,
    mu: npt.ArrayLike | None = None,
    nu: npt.ArrayLike | None = None,
    **options: Unpack[_Options],
) -> SchrodingerBridge: ...
@overload
def bridge(
    *,
    cost: npt.ArrayLike,
    epsilon: float,
    mu: npt.ArrayLike | None = None,
    nu: npt.ArrayLike | None = None,
    **options: Unpack[_Options],
) -> SchrodingerBridge: ...
@overload
def bridge(
    kernel: SweepKernel, mu: npt.ArrayLike, nu: npt.ArrayLike, **options: Unpack[_Options]
) -> GivenBridge: ...
@overload
def bridge(
    kernel: Factored, mu: npt.ArrayLike, nu: npt.ArrayLike, **options: Unpack[_Options]
) -> FactoredBridge: ...
def bridge(
    kernel: Scores | Factored | SweepKernel | None = None,
    mu: npt.ArrayLike | None = None,
    nu: npt.ArrayLike | None = None,
    *,
    cost: npt.ArrayLike | None = None,
    epsilon: float | None = None,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    solver: str = "auto",
    penalty: float | tuple[float, float] | None = None,
    init: Any = None,
    max_memory: float | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> SchrodingerBridge | FactoredBridge | GivenBridge:
    """The Schrödinger bridge from mu (..., N) to nu (..., M) over the kernel exp(s) (DAC-7).

    The kernel is taken as given: no hidden factor, no hidden temperature. ``cost`` and ``epsilon`` instead of
    it mean the scores -cost / epsilon (an infinite cost forbids a pair): entropic optimal transport. mu and
    nu are converted to the dtype of the scores; left out, they are uniform. Weights of 0 are exact. Batched
    and ragged scores are solved in one call, every problem for itself.

    ``solver``:

    - "auto": "symmetric" where it applies, else "anderson" until the rate that it sees is slow; from there
      "newton" if the error is below 0.3, and "annealed" if it is not, or if "newton" makes little progress.
    - "accelerated": "anderson" first; when its rate shows that many iterations are left, "newton" goes on.
    - "alternating": Sinkhorn's iteration.
    - "relaxed": the same, over-relaxed once its rate has settled, and only while that helps.
    - "anderson": extrapolation of the last five iterates; a step that makes things worse is undone.
    - "newton": Newton's method on the dual, its systems solved from the entries that matter where these are
      few, else by conjugate gradients with products of the kernel.
    - "symmetric": the averaged update, for symmetric scores and mu = nu.
    - "annealed": "newton" from an easy kernel to this one, in stages: from a small multiple of the scores to
      the scores, or, for factored kernels, with a part of rank one added that vanishes.

    Factored kernels (:func:`qkcore.low_rank`, :func:`qkcore.poe` of them, :func:`qkcore.nystrom`) have
    a guard on signs: a kernel that goes negative never gives a result that is marked converged (DAC-10).
    "auto" is "alternating" for those that might.

    A kernel of your own is any object with ``shape`` (N, M), ``dtype`` and methods on float64 vectors. With
    :math:`p_{ij} = e^{s_{ij} + g_j - \\mathrm{lse}_i}`, ``rows(g, mass)`` returns ``lse``, the
    log-sum-exps of the rows of s + g, and ``columns``, :math:`\\sum_i m_i p_{ij}` for m = ``mass(lse)``
    (None when ``mass`` is None); ``columns(f)`` returns the log-sum-exps of the columns of f + s;
    ``curvature(x, mass)`` returns :math:`\\sum_i \\mathrm{mass}_i p_{ij} \\sum_k p_{ik} x_k` at the g of the
    last ``rows``. ``scaled(factor)`` returns the object whose scores are factor s.
    ``entries(first, end, least)`` returns where p >= least in rows first to end (exclusive), at the g of the
    last ``rows``: the rows, counted from first, the columns, and p there, in the order of ``np.nonzero``.
    "newton" solves its systems from them where they are few, to digits that products do not have. Without
    ``curvature`` "newton", "accelerated" and "annealed" are refused, without ``scaled`` "annealed" is; "auto"
    does without. A method that raises OverflowError says that the potentials are out of its range.
    ``symmetric = True`` says that s is symmetric. The result is a :class:`GivenBridge`.

    A masked kernel that cannot carry the marginals ends with status "infeasible"; one that can, but not
    on all of its entries (a causal mask with uniform marginals: only the diagonal), with "no total
    support": the iteration creeps to its limit like 1/k. :func:`usable_entries` then gives the smaller
    mask on which it converges, :func:`semi_relaxed` leaves the columns free. Every problem of a batch is
    judged for itself.

    ``tol`` bounds the L1 error of both marginals as a share of the mass (default 1e-9, in float32 1e-5); the
    check of it at the end is made in more precision than the dtype's. ``max_iter`` bounds ``n_iter``, the
    iterations, each of which has one of the ``errors``. ``max_visits`` bounds ``n_visits``, the visits of all
    entries (None: 10 000, or max_iter where that is more), those of inner solves included; linear algebra on
    gathered entries counts as the visits that would take as long. The status "iteration limit" or
    "visit limit" says which was reached. ``penalty``: KL penalties on the marginals instead of constraints
    (unbalanced), one weight or (rows, columns), in units of the kernel's own temperature; inf for a
    constraint. Their ``tol`` bounds the residual of the optimality conditions as a share of the plan's mass.
    ``on_fail``: what a solve that does not converge leads to, "warn" (a :class:`qkcore.ConvergenceWarning`
    when the result is used), "raise" (a :class:`qkcore.ConvergenceError`) or "ignore". ``init``: an earlier
    result or potentials (f, g). ``max_memory``: bytes for storing the kernel's entries (default: as much as a
    dense kernel has already, 256 MB for one from points; 0: compute them at every visit).
    ``callback(visits, error)`` is called after each iteration, ``progress=True`` shows a bar.

    >>> import numpy as np, qkcore as qk
    >>> b = qk.bridge(qk.scores.dense(np.zeros((2, 3))), np.full(2, 0.5), np.array([0.2, 0.3, 0.5]))
    >>> b.plan()
    array([[0.1 , 0.15, 0.25],
           [0.1 , 0.15, 0.25]])
    >>> b.converged
    True
    """
    fails, memory = on_fail_option(on_fail), memory_limit(max_memory)
    options: dict[str, Any] = {
        "tol": tol,
        "max_iter": max_iter,
        "max_visits": max_visits,
        "solver": solver,
        "penalty": penalty,
        "init": init,
        "n_threads": n_threads,
    }
    shown: dict[str, Any] = {"callback": callback, "progress": progress}
    if cost is not None or epsilon is not None:
        if kernel is not None:
            raise TypeError(
                "kernel: wanted None beside cost and epsilon, got both; give one of them"
            )
        kernel = scores_of_cost(cost, epsilon)
    if isinstance(kernel, (Scores, MarkovOperator)):
        kernel = scores_argument(kernel, "kernel")
        mu, nu = uniform_marginals(kernel, mu, nu)
    if kernel is not None and (mu is None or nu is None):
        name = "mu" if mu is None else "nu"
        raise TypeError(f"{name}: wanted weights beside a kernel that is not scores, got None")
    weights: tuple[Any, Any] = mu, nu
    if isinstance(kernel, Factored):
        return solve_factored(kernel, weights[0], weights[1], on_fail=fails, **options, **shown)
    there = _device.is_scores(kernel)
    if not there and not isinstance(kernel, (Scores, MarkovOperator)) and is_given(kernel):
        fields = ask(GivenKernel(kernel), *weights, **options).solved(**shown)
        return settle(GivenBridge(kernel=kernel, **fields), fails)
    s: Any = kernel if there else scores_argument(kernel, "kernel")
    alone = not s.batch and (there or s.terms.offsets is None)
    if not alone and (callback is not None or progress):
        raise ValueError("kernel: wanted one problem for a callback or a progress bar, got a batch")
    if there:
        from ._device._bridge import solved

        fields = solved(s, weights[0], weights[1], max_memory=memory, **shown, **options)
        return settle(SchrodingerBridge(scores=s, **fields), fails)
    asked = ask(ScoresKernel(s, memory), *weights, **options)
    if not alone:
        return settle(solve_batch(asked), fails)
    return settle(SchrodingerBridge(scores=s, **asked.solved(**shown)), fails)


def sinkhorn(
    s: Scores,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    max_memory: float | None = None,
    n_threads: int | None = None,
) -> MarkovOperator:
    """The bistochastic operator :math:`e^{s_{ij} + u_i + v_j}` (DAC-4, eqs 9-10; B.3).

    :math:`A^{+-}` from forward scores, :math:`A^{-+}` from backward ones, :math:`P^{+-}` from
    distances (symmetric, by the averaged update). ``tol`` bounds the mean over rows (columns) of
    how far their sums are from 1; ``max_iter`` and ``max_visits`` are those of
    :func:`bridge`. ``.bridge`` is the solver's result; a solve that did not converge
    raises :class:`qkcore.ConvergenceError`.

    >>> import numpy as np, qkcore as qk
    >>> B = qk.sinkhorn(qk.scores.distance(np.array([[0.0], [1.0], [3.0]])))
    >>> B.to_numpy().sum(axis=0)
    array([1., 1., 1.])
    """
    s = scores_argument(s)
    if s.n_rows != s.n_cols:
        raise ValueError(f"s: wanted square scores (..., N, N), got shape {s.shape}; see qk.bridge")
    if s.terms.offsets is not None:
        raise ValueError("s: wanted one problem, got ragged blocks; see qk.bridge")
    n, b = s.n_rows, s.backend
    uniform = b.give(b.from_host(np.full(n, 1 / n, s.dtype)))
    found = bridge(
        s,
        uniform,
        uniform,
        tol=tol,
        max_iter=max_iter,
        max_visits=max_visits,
        max_memory=max_memory,
        n_threads=n_threads,
    )
    _require_converged(found)
    f, g = (b.here("potentials", x) for x in (found.f, found.g))
    log_n = s.dtype.type(math.log(n))
    if all(name.startswith("symmetric") for name in np.ravel(found.method)):
        half = b.give(b.from_host((f + g + log_n) / 2))
        # Added together, so that the operator has the same bits as its transpose.
        return MarkovOperator(s.shift(rows=half, columns=half), 1, bridge=found)
    rows = b.give(b.from_host(f + log_n))
    return MarkovOperator(s._coupled(rows, found.g), 1, bridge=found)


def _require_converged(found: Any) -> None:
    if not np.all(found.converged):
        bad = int(np.argmin(np.ravel(found.converged)))
        status, steps, error = (np.ravel(x)[bad] for x in (found.status, found.n_iter, found.error))
        limit = limit_named(status)
        which = f" in problem {bad}" if np.ndim(found.converged) else ""
        raise ConvergenceError(
            f"sinkhorn: {status}{which} after {steps} iterations, with a marginal error of "
            f"{error:.3g} (wanted {found.tol:.3g}); raise {limit} or tol, lower beta, or look "
            "at qk.bridge(s, mu, nu), which returns what it has"
        )


def semi_relaxed(
    kernel: Scores,
    mu: npt.ArrayLike | None = None,
    *,
    reference: npt.ArrayLike | None = None,
    n_threads: int | None = None,
) -> SchrodingerBridge:
    """Rows constrained, columns free: attention as one-sided entropic transport (EOT-1).

    Row i of the coupling is :math:`\\mu_i p_i` where :math:`p_i = \\mathrm{softmax}_j(s_{ij} + \\log u_j)`
    minimises :math:`\\langle -s_i, p\\rangle + \\mathrm{KL}(p \\| u)` over the simplex, for the reference
    ``u`` (default: uniform; only its ratios matter). -inf scores are infinite costs.

    >>> import numpy as np, qkcore as qk
    >>> s = qk.scores.dense(np.zeros((1, 2)))
    >>> qk.semi_relaxed(s, np.ones(1), reference=np.array([1.0, 3.0])).plan()
    array([[0.25, 0.75]])
    """
    s = scores_argument(kernel, "kernel")
    mu, _ = uniform_marginals(s, mu, None)
    if _device.is_scores(s):
        return _semi_relaxed_on_device(s, mu, reference)
    rows = _marginal("mu", mu, s, 0)
    if reference is None:
        g = np.zeros(s.shape[-1], s.dtype)
    else:
        with np.errstate(divide="ignore"):
            g = _pieces.mapped(np.log, _marginal("reference", reference, s, 1))
    threads = resolve_threads(n_threads)
    rows = np.broadcast_to(rows, (*s.batch, s.shape[-2]))
    g = np.broadcast_to(g, (*s.batch, s.shape[-1]))
    log_reference = _pieces.converted(g, np.float64)
    lse = widened(s).shift(columns=log_reference).logsumexp(1, n_threads=threads)

    def potential(lse: Any, weights: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(weights.astype(np.float64))
            return np.where(np.isneginf(lse), -np.inf, log - lse).astype(s.dtype)

    f = _pieces.mapped(potential, lse, rows)
    _, cols = wide_marginals(s, _pieces.converted(f, np.float64), log_reference, threads)
    tol = TOLERANCES[s.dtype.itemsize]
    sides = Conditions(rows, math.inf), Conditions(_pieces.converted(cols, s.dtype), 0.0)
    unseen = _pieces.mapped(lambda x, w: (np.isneginf(x) & (w > 0)).astype(np.float64), lse, rows)
    alone = not s.batch and s.terms.offsets is None
    found: tuple[Any, Any, Any]
    if alone:
        found = residual(s, *sides, f, g, tol, threads)
        blind: Any = unseen.any()
    else:
        cuts = None if s.terms.offsets is None else s.terms.offsets[0]
        found = batch_residuals(s, *sides, f, g, tol, threads)
        blind = block_sums(unseen, cuts) > 0
    error, worst, met = found
    figures: dict[str, Any] = {
        "status": np.where(blind, "infeasible", np.where(met, "converged", "stagnated")),
        "converged": met,
        "n_iter": np.ones_like(met, np.int64),
        "n_visits": np.ones_like(met, np.int64),
        "error": error,
        "worst": worst,
        "method": np.full_like(met, "one row update", "U14"),
    }
    for name, values in figures.items():
        figures[name] = np.asarray(values).item() if alone else values.reshape(s.batch or -1)
    return SchrodingerBridge(
        scores=s,
        mu=rows,
        nu=sides[1].weights,
        f=f,
        g=g,
        errors=np.atleast_1d(figures["error"]),
        tol=tol,
        penalty=(math.inf, 0.0),
        **figures,
    )


def scores_of_cost(cost: Any, epsilon: float | None) -> Scores:
    """-cost / epsilon as scores."""
    for name, value in (("cost", cost), ("epsilon", epsilon)):
        if value is None:
            raise TypeError(f"{name}: wanted cost and epsilon together, got None")
    temperature = _checks.positive("epsilon", epsilon)
    if _device.on_device(cost):
        return -scores.dense(cost) / temperature
    array = _checks.real_array("cost", cost)
    if np.isneginf(array).any():
        raise ValueError("cost: wanted numbers above -inf (inf forbids a pair), got -inf")
    if np.isposinf(array).any():
        return scores.dense(-array) / temperature
    return -scores.dense(array) / temperature


def _semi_relaxed_on_device(s: Scores, mu: Any, reference: Any) -> SchrodingerBridge:
    """Vectors on the host, visits on the device."""
    from ._device._visits import visited

    b, (*_, n, m) = s.backend, s.shape
    named = [("mu", mu, n)] + ([] if reference is None else [("reference", reference, m)])
    host = [b.to_host(x) for x, _ in b.vectors(s.dtype, s.batch, *named)]
    found = semi_relaxed(visited(s, "kernel"), host[0], reference=host[1] if host[1:] else None)
    there = {
        name: b.give(b.from_host(np.ascontiguousarray(getattr(found, name))))
        for name in ("mu", "nu", "f", "g")
    }
    return replace(found, scores=s, **there)
