"""Bridges over factored kernels, with checks of the signs of their entries (DAC-10, D.1; EOT-10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._batch import each
from ._bridge_check import Conditions, Residual, judge
from ._bridge_fields import Vectors, each_solved, solved_fields
from ._bridge_kernels import BridgeKernel
from ._bridge_problem import Problem
from ._bridge_report import Callback
from ._bridge_result import SchrodingerBridge, SolvedBatch, observed_rate
from ._bridge_solve import ask
from ._config import resolve_threads
from ._convergence import on_fail_option, settle
from ._factors import BLOCK_ROWS, Factored, LowRank, NegativeEntries, _experts
from ._lazy_scores import Real, Scores
from ._linear import LinearMap
from ._native import cpu
from .operators import right_hand_side

__all__ = ["CompressionErrors", "FactoredBridge", "compression_errors", "solve_factored"]

_SIGNS = ("stop", "continue")
# The number of entries whose signs are checked with signs="auto"; a kernel with fewer is checked completely.
_LOOKED_AT = 4_000_000
# The most terms of sums that are computed in extended precision, some 10 ns each, if double precision leaves
# open whether the conditions are met.
_EXTENDED_TERMS = 200_000_000

Init = Any  # an earlier result (anything with f and g), a pair (f, g), or None


class FactoredConditional(LinearMap):
    """Rows of a factored kernel, weighted and normalised: :math:`K_{ij} v_j / (K v)_i`.

    Each row sums to 1; if the kernel has negative entries, its rows are not probabilities. The weights and
    the sums are multiplied into the factors, in double precision.
    """

    def __init__(self, scaled: Factored, dtype: np.dtype[Any]) -> None:
        self._scaled, self._dtype = scaled, dtype
        self.backend, self.batch = scaled.backend, scaled.batch

    @classmethod
    def of(cls, kernel: Factored, weights: Real) -> FactoredConditional:
        """The conditional law of the columns, for weights (..., M) in a NumPy array."""
        sums = kernel._double._visit(weights, None)
        inverse = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums != 0)
        return cls(kernel._scaled(inverse, weights), kernel.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M)."""
        return self._scaled.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the kernel."""
        return self._dtype

    @property
    def T(self) -> FactoredConditional:
        """The transposed matrix, whose columns sum to 1."""
        return FactoredConditional(self._scaled.T, self._dtype)

    def __getitem__(self, index: Any) -> FactoredConditional:
        """The operators of some problems of a batch, by integers and slices for its leading axes."""
        return FactoredConditional(self._scaled[index], self._dtype)

    def _applied(self, name: str, V: Any, n_threads: int | None = None) -> Any:
        found, vector, at = self._moved(name, V, -2, self._scaled, n_threads)
        return self._scaled._given(found, vector, at)

    def _applied_left(self, name: str, U: Any, n_threads: int | None = None) -> Any:
        found, vector, at = self._moved(name, U, -1, self._scaled.T, n_threads)
        return self._scaled._given(found, True, at) if vector else self.backend.give(found)

    def _moved(
        self, name: str, value: Any, at: int, K: Factored, n_threads: int | None
    ) -> tuple[Any, bool, int]:
        """The product (..., k, N), computed in double precision and rounded to the dtype of the kernel."""
        b, where = self.backend, self.backend.at(n_threads)
        n = K.shape[-1]
        values, vector = right_hand_side(name, value, self, n, at=at, like="the kernel")
        found = K._product(b.converted(b.swap(values), np.dtype(np.float64)), where)
        return b.converted(found, self._dtype), vector, where

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The matrix as an array (..., N, M)."""
        return self._scaled.to_numpy(n_threads=n_threads).astype(self._dtype, copy=False)

    def __repr__(self) -> str:
        return f"FactoredConditional(shape={self.shape}, dtype={self.dtype})"


@dataclass(frozen=True, eq=False, kw_only=True)
class FactoredBridge(SolvedBatch):
    """A solved bridge over a factored kernel: like :class:`SchrodingerBridge`, with checks of the signs.

    The coupling is :math:`\\Pi_{ij} = u_i K_{ij} v_j`, with f = log |u| and g = log |v|. ``converged`` is
    True only if this is a coupling: the marginals are met within ``tol``, and no entry is negative by more
    than rounding. Otherwise the figures are those of the last scalings, and ``status`` says why they do not
    give a coupling. A visit is one product with K and one with its transpose. With batch axes every figure is
    an array over the batch, and ``b[k]`` is the result of problem k alone.
    """

    kernel: Factored = field(repr=False)
    u: Any = field(repr=False)
    """scaling of the rows, float64; negative entries only after ``on_negative="continue"``"""
    v: Any = field(repr=False)
    """scaling of the columns, float64"""
    signs_checked: Any = 1.0
    """the share of the entries whose signs were checked; if below 1, ``.negative`` checks all entries"""

    @cached_property
    def _scalings(self) -> tuple[Real, Real]:
        """u and v as NumPy arrays."""
        b = self.kernel.backend
        return b.here("u", self.u), b.here("v", self.v)

    @cached_property
    def _coupling(self) -> Factored:
        return self.kernel._scaled(*self._scalings)

    @cached_property
    def negative(self) -> NegativeEntries:
        """The negative entries of the coupling: their number, fraction, the smallest entry, their sum.

        This computes all N M entries, even if the solver has checked only some. For a batch, the result is a
        :class:`qkcore.Batch`.
        """
        if self._is_batch:
            out: NegativeEntries = each(self.kernel.batch, lambda k: self[k].negative)
            return out
        u, v = self._scalings
        # The scalings are taken without their signs, so that negative entries of the kernel are counted.
        eps = float(np.finfo(self.kernel.dtype).eps)
        return self.kernel._double._negative(np.abs(u), np.abs(v), eps, resolve_threads(None))

    def plan(self) -> Any:
        """The coupling as an array (..., N, M); its entries are computed on the host."""
        self._used()
        return self._result(self._coupling.to_numpy())

    def marginals(self) -> tuple[Any, Any]:
        """Row and column sums of the coupling."""
        rows, columns = _sums(self.kernel._double, *self._scalings, None)
        return self._result(rows), self._result(columns)

    def _result(self, array: Real) -> Any:
        """A NumPy array converted to the dtype of the kernel and to the caller's library."""
        b = self.kernel.backend
        return b.give(b.from_host(array.astype(self.kernel.dtype, copy=False)))

    @property
    def forward(self) -> FactoredConditional:
        """:math:`K_{ij} v_j / (K v)_i`, N x M (eq 17)."""
        self._used()
        return self._forward

    @cached_property
    def _forward(self) -> FactoredConditional:
        return FactoredConditional.of(self.kernel, self._scalings[1])

    @cached_property
    def backward(self) -> FactoredConditional:
        """:math:`K_{ij} u_i / (K^\\top u)_j` as an M x N operator whose rows are the columns j."""
        self._used()
        return FactoredConditional.of(self.kernel.T, self._scalings[0])

    def project(self, V: npt.ArrayLike) -> Any:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        self._used()
        return self._forward.apply(V)

    @property
    def cost(self) -> Any:
        """:math:`-\\sum_{ij}\\Pi_{ij}\\log K_{ij}`, by blocks of rows; NaN if there are negative entries."""
        self._used()
        return self._figure("cost", FactoredBridge._cost)

    def _cost(self) -> float:
        if self.status.startswith("negative") or (
            not self.kernel.nonnegative and self.negative.count > 0
        ):
            return math.nan
        K, (u, v) = self.kernel._double, self._scalings
        total = 0.0
        for start in range(0, K.shape[0], BLOCK_ROWS):
            stop = min(K.shape[0], start + BLOCK_ROWS)
            entries = K._rows(start, stop)
            logs = np.log(entries, out=np.zeros_like(entries), where=entries > 0)
            total -= float(u[start:stop] @ (entries * logs) @ v)
        return total

    @property
    def rate(self) -> Any:
        """The factor by which each of the last iterations reduced the error; NaN if there were fewer than
        three, and for batches, whose errors are not kept."""
        return self._figure("rate", lambda b: observed_rate(b.errors))

    def exact(self, **options: Any) -> SchrodingerBridge:
        """Solves the bridge over the exact operators, e.g. if the factored kernel has negative entries.

        ``options`` go to :func:`qkcore.bridge`. The factors must come from :func:`low_rank` or
        :func:`nystrom`, which keep the operator that they approximate.
        """
        from .bridges import bridge

        total: Scores | None = None
        for expert in _experts(self.kernel):
            logits = _logits(expert)
            total = logits if total is None else total + logits
        assert total is not None
        return bridge(total, self.mu, self.nu, **options)

    # ---- batches ------------------------------------------------------------------------------------

    @property
    def _is_batch(self) -> bool:
        return bool(self.kernel.batch)

    def _part(self, k: int) -> dict[str, Any]:
        index = tuple(int(i) for i in np.unravel_index(k, self.kernel.batch))
        part = self.kernel.backend.part
        own = {name: part(getattr(self, name), index) for name in ("mu", "nu", "f", "g", "u", "v")}
        share = float(np.ravel(self.signs_checked)[k])
        return {**own, "kernel": self.kernel[index], "signs_checked": share}

    def __str__(self) -> str:
        *batch, n, m = self.kernel.shape
        size = f"{n} x {m}, " + (f"batch {tuple(batch)}, " if batch else "")
        checked = np.min(self.signs_checked)
        signs = f"\n  signs of {checked:.2%} of the entries checked"
        return self._summary(f"Factored Schrödinger bridge {size}{self.kernel.dtype}") + (
            "" if checked == 1 else signs
        )


def solve_factored(
    K: Factored,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    solver: str = "auto",
    penalty: float | tuple[float, float] | None = None,
    init: Init = None,
    on_negative: str = "stop",
    signs: str = "auto",
    on_fail: str = "warn",
    callback: Callback | None = None,
    progress: bool = False,
    n_threads: int | None = None,
) -> FactoredBridge:
    """The bridge from mu (..., N) to nu (..., M) over a factored kernel (DAC-10, D.1).

    Scalings :math:`u = \\mu / (K v)`, :math:`v = \\nu / (K^\\top u)`, in double for both types, through
    products with the factors: O((N + M) r_0 r_1) per visit. ``max_iter``, ``max_visits``, ``solver``,
    ``penalty``, ``init``, ``callback`` and ``progress`` are those of :func:`qkcore.bridge`; "auto" is
    Sinkhorn's iteration if a factor has negative entries. Truncated kernels usually have negative entries.
    Two checks make sure that a result with negative entries does not count as a coupling:

    - each visit checks that K v and K^T u are positive wherever there is mass. If not, the
      solve stops with the status "negative kernel" and the last scalings. With
      ``on_negative="continue"`` it goes on with signed scalings, as a solver without this check
      does, and ends with the same status.
    - after convergence the signs of entries are checked, unless no factor has negative entries. If an
      entry is below 0 by more than rounding, the status is "negative entries", and ``.negative`` has
      the figures. ``signs="auto"`` checks all entries if there are at most 4e6. Otherwise it checks
      whole rows and columns with 4e6 entries in total, evenly spread over the kernel;
      ``signs_checked`` is the share of all entries that was checked. ``signs="all"`` checks every
      entry for any size, which takes O(N M r) work.

    The problems of a batch are solved one after the other. Factors on a device are multiplied there, and the
    scalings are on the host; ``on_negative="continue"`` needs factors on the CPU.

    ``on_fail`` is that of :func:`qkcore.bridge`. If signs prevent a coupling, use a higher rank,
    ``low_rank(A, r, nonnegative=True)``, ``positive_features``, or the exact operators: ``result.exact()``.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank, solve_factored
    >>> K = LowRank(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]]))
    >>> b = solve_factored(K, np.full(2, 0.5), np.full(3, 1 / 3))
    >>> b.status, b.plan().sum(axis=0).round(6)
    ('converged', array([0.333333, 0.333333, 0.333333]))
    >>> K = LowRank(np.array([[1.0], [1.0]]), np.array([[1.0, -0.1, 1.0]]))
    >>> b = solve_factored(K, np.full(2, 0.5), np.full(3, 1 / 3))
    >>> b.status, b.converged
    ('negative kernel', False)
    """
    if not isinstance(K, Factored):
        raise TypeError(
            f"K: wanted a LowRank or a product of them, got {type(K).__name__}; "
            "for exact operators use qk.bridge"
        )
    _checks.one_of("on_negative", on_negative, _SIGNS)
    fails = on_fail_option(on_fail)
    _checks.one_of("signs", signs, ("auto", "all"))
    if on_negative == "continue" and not K.backend.host_arrays:
        raise ValueError(
            f'on_negative: wanted "stop" for a kernel on {K.device}, got "continue"; solve K.to_cpu()'
        )
    if K.batch and (callback is not None or progress):
        raise ValueError("K: wanted one problem for a callback or a progress bar, got a batch")
    b, follow = K.backend, on_negative == "continue"
    b.at(n_threads)  # a device takes no number of threads

    def solved(one: Factored, mu: Any, nu: Any, init: Any) -> dict[str, Any]:
        kernel = FactoredKernel(one, follow, mu)
        asked = ask(kernel, mu, nu, tol, max_iter, max_visits, solver, penalty, init, n_threads)
        found = solved_fields(asked, not K.batch, callback, progress)
        return _fields(kernel, asked.problem, found, signs)

    if b.host_arrays and not K.batch:
        return settle(FactoredBridge(kernel=K, **solved(K, mu, nu, init)), fails)
    given = Vectors(K, mu, nu, init)
    found = each_solved(K.batch, lambda k: solved(K[k] if K.batch else K, *given.of(k)))
    for name in ("f", "g", "u", "v"):
        found[name] = b.give(b.from_host(found[name]))
    if not b.host_arrays:
        found |= {"mu": mu, "nu": nu}
    return settle(FactoredBridge(kernel=K, **found), fails)


class FactoredKernel(BridgeKernel):
    """A factored kernel in double precision (for both dtypes), and the signs of its scalings."""

    def __init__(self, K: Factored, follow_signs: bool, mu: Any) -> None:
        self.given, self.K, self.mu = K, K._double, mu
        self.shape, self.dtype = K.shape, K.dtype
        self.potentials = self.entries = np.dtype(np.float64)
        self.followed = follow_signs and not K.nonnegative
        self._last: tuple[Real, Real, float, tuple[Real, Real]] | None = None

    @cached_property
    def native(self) -> Any:
        guard = 0 if self.given.nonnegative else 2 if self.followed else 1
        if self.K.backend.host_arrays:
            return cpu.bridge_factors(self.K._left, self.K._right, guard)
        from ._device._factors import FactoredSweep

        sweep = FactoredSweep(self.K, self.mu, guard > 0)
        n, m = self.shape
        return cpu.bridge_object(sweep, n, m, float(np.finfo(np.float64).eps))

    @property
    def kept(self) -> str:
        return "factored, signed" if self.followed else "factored"

    def scalings(self, f: Real, g: Real, mass: float) -> tuple[Real, Real]:
        """u / mass and v, with their signs; computed only once for the same arguments in succession."""
        last = self._last
        if last is not None and last[0] is f and last[1] is g and last[2] == mass:
            return last[3]
        with np.errstate(over="ignore"):
            u, v = np.exp(f - math.log(mass)), np.exp(g)
        if self.followed:
            rows, cols = self.native.signs
            u, v = u * rows, v * cols
        self._last = f, g, mass, (u, v)
        return u, v

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        """The check, by products with the factors; extended precision decides what rounding leaves open."""
        mass = _checks.total(p.mu) if p.balanced else 1.0
        u, v = self.scalings(f, g, mass)
        if not (np.isfinite(u).all() and np.isfinite(v).all()):
            return Residual(math.inf, math.inf, False)
        rows, columns = (
            Conditions(side.weights.astype(np.float64) / mass, side.penalty)
            for side in p.conditions
        )
        sides = rows, columns
        sums = _sums(self.K, u, v, p.n_threads)
        here = self.K.to_cpu()
        sizes = [_lengths(side) for side in (here._left, here._right)]
        terms = sum(r + 2 for r in self.K.ranks) + math.sqrt(max(self.K.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            slack = float(np.abs(u) @ sizes[0] * (np.abs(v) @ sizes[1])) * terms
            slack *= float(np.finfo(np.float64).eps) / (1.0 if p.balanced else float(sums[0].sum()))
        found = judge(sums, sides, (f, g), slack, p.tol)
        small = math.prod(self.K.ranks) * sum(self.K.shape) <= _EXTENDED_TERMS
        if not (abs(found.error - p.tol) <= slack and small):
            return found
        return judge(_extended_sums(here, u, v), sides, (f, g), 0.0, p.tol)

    def refuses(self, solver: str) -> str | None:
        if self.followed and solver not in ("auto", "alternating"):
            return f'wanted solver="alternating" for on_negative="continue", got {solver!r}'
        return super().refuses(solver)

    def automatic(self, symmetric: bool) -> str:
        # Only with Sinkhorn's iteration does a sum that is not positive show that the kernel is negative;
        # the steps of other methods can cause such a sum by themselves.
        return super().automatic(symmetric) if self.given.nonnegative else "alternating"


def _fields(
    kernel: FactoredKernel, p: Problem, fields: dict[str, Any], signs: str
) -> dict[str, Any]:
    """The fields of the result of one problem, with NumPy vectors."""
    f, g, status = fields["f"], fields["g"], fields["status"]
    mass = _checks.total(p.mu) if p.balanced else 1.0
    u, v = kernel.scalings(f, g, mass)
    lost = kernel.followed and bool((u[p.mu > 0] < 0).any() or (v[p.nu > 0] < 0).any())
    checked = 1.0
    if status != "infeasible" and lost:
        status = "negative kernel"
    elif fields["converged"] and not kernel.given.nonnegative:
        some, checked = _signs(kernel, u, v, signs, p.n_threads)
        status = "negative entries" if some else status
    fields |= {name: fields[name].astype(kernel.dtype, copy=False) for name in ("f", "g")}
    fields |= {"status": status, "converged": status == "converged"}
    return fields | {"u": u * mass, "v": v, "signs_checked": checked}


def _extended_sums(K: Factored, u: Real, v: Real) -> tuple[Any, Any]:
    """:func:`_sums` in extended precision, one combination of components after the other."""
    left, right = ([f.astype(np.longdouble) for f in side] for side in (K._left, K._right))
    rows, cols = np.zeros(len(u), np.longdouble), np.zeros(len(v), np.longdouble)
    for parts in product(*(range(r) for r in K.ranks)):
        on_rows = math.prod(f[c] for f, c in zip(left, parts, strict=True))
        on_cols = math.prod(f[c] for f, c in zip(right, parts, strict=True))
        rows += on_rows * (on_cols @ v)
        cols += on_cols * (on_rows @ u)
    return u * rows, v * cols


def _signs(
    kernel: FactoredKernel, u: Real, v: Real, signs: str, n_threads: int
) -> tuple[bool, float]:
    """Whether negative entries were found, and the share of all entries that was checked."""
    n, m = kernel.K.shape
    eps = float(np.finfo(kernel.dtype).eps)
    if signs == "all" or n * m <= _LOOKED_AT:
        return kernel.K._negative(u, v, eps, n_threads).count > 0, 1.0
    count = max(1, _LOOKED_AT // (n + m))  # rows, and as many columns
    for K, scales in ((kernel.K, (u, v)), (kernel.K.T, (v, u))):
        chosen = np.unique(np.linspace(0, K.shape[0] - 1, count).round().astype(np.int64))
        if K._negative(*scales, eps, n_threads, rows=chosen).count:
            return True, _share_of(count, n, m)
    return False, _share_of(count, n, m)


def _share_of(count: int, n: int, m: int) -> float:
    """The share of the entries of n x m that lie in ``count`` rows or ``count`` columns."""
    rows, cols = min(1.0, count / n), min(1.0, count / m)
    return rows + cols - rows * cols


def _lengths(side: tuple[Real, ...]) -> Real:
    """For every point, the product over the experts of the norm of its components."""
    squares: Real = np.einsum("...ci,...ci->...i", side[0], side[0])
    lengths: Real = np.sqrt(squares)
    for x in side[1:]:
        lengths *= np.sqrt(np.einsum("...ci,...ci->...i", x, x))
    return lengths


def _sums(K: Factored, u: Real, v: Real, n_threads: int | None) -> tuple[Real, Real]:
    at = n_threads if K.backend.host_arrays else None  # a device takes no number of threads
    return u * K._visit(v, at), v * K.T._visit(u, at)


# ---- D.1's measures -----------------------------------------------------------------------------


@dataclass(frozen=True)
class CompressionErrors:
    """How far a factored bridge is from the exact one: every measure of D.1 (DAC-10, DAC-12)."""

    kernel_rel_err: float
    """:math:`\\|K_{lr} - K\\|_F / \\|K\\|_F`"""
    coupling_rel_err: float
    """:math:`\\|\\Pi_{lr} - \\Pi^*\\|_F / \\|\\Pi^*\\|_F`"""
    latent_rmse: float
    """root mean square difference of the barycentric maps of t"""
    row_err: float
    """:math:`\\max_i |\\sum_j \\Pi_{lr,ij} - \\mu_i|`"""
    col_err: float
    """:math:`\\max_j |\\sum_i \\Pi_{lr,ij} - \\nu_j|`"""
    min_entry: float
    """smallest entry of the factored kernel"""
    min_mass: float
    """smallest entry of the factored coupling"""
    status: str
    """the status of the factored bridge"""
    cut_gap: float
    """smallest gap at which an expert was truncated (erratum 11); NaN when unknown"""


def compression_errors(
    b: FactoredBridge, exact: SchrodingerBridge, t: npt.ArrayLike | None = None
) -> CompressionErrors:
    """Compares a factored bridge with the exact one, by blocks of rows (DAC-10, D.1).

    ``t`` (M,) is the latent coordinate of the columns that the barycentric maps average; j / M by
    default. The figures are computed for every status.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank, compression_errors, solve_factored
    >>> A = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> half = np.full(2, 0.5)
    >>> b = solve_factored(LowRank(A, np.eye(2)), half, half)
    >>> compression_errors(b, qk.bridge(qk.scores.dense(np.log(A)), half, half)).coupling_rel_err < 1e-8
    True
    """
    exact = _checks.instance(
        "exact", exact, SchrodingerBridge, "a SchrodingerBridge (qk.bridge of scores)"
    )
    _checks.instance("b", b, FactoredBridge, "a FactoredBridge (qk.bridge of factors)")
    _checks.one_problem("b", b.kernel.batch)
    n, m = b.kernel.shape
    _checks.shape("exact", exact.scores.shape, (n, m))
    latent = np.arange(m) / m if t is None else _checks.real_array("t", t)
    _checks.shape("t", latent.shape, (m,))
    _checks.finite("t", latent)
    latent = latent.astype(np.float64)
    K, (u, v) = b.kernel._double, b._scalings
    f, g = (exact._vectors[name].astype(np.float64) for name in ("f", "g"))
    mu, nu = (b.kernel.backend.here(name, x) for name, x in (("mu", b.mu), ("nu", b.nu)))
    sums = np.zeros(4)  # squares of the kernel, its error, the coupling, its error
    maps = np.zeros((2, n))
    rows, cols = np.zeros(n), np.zeros(m)
    smallest = [math.inf, math.inf]
    for start in range(0, n, BLOCK_ROWS):
        stop = min(n, start + BLOCK_ROWS)
        logits = exact.scores.rows(start, stop).to_numpy().astype(np.float64)
        true, ours = np.exp(logits), K._rows(start, stop)
        true_plan = np.exp(logits + f[start:stop, None] + g)
        plan = u[start:stop, None] * ours * v
        sums += [np.square(x).sum() for x in (true, ours - true, true_plan, plan - true_plan)]
        rows[start:stop], cols = plan.sum(axis=1), cols + plan.sum(axis=0)
        smallest = [min(a, float(x.min())) for a, x in zip(smallest, (ours, plan), strict=True)]
        # Barycentric maps are means under the conditional laws, which rows without mass have too.
        weights = np.exp(logits + g - (logits + g).max(axis=1, keepdims=True))
        maps[0, start:stop] = weights @ latent / weights.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            maps[1, start:stop] = (ours @ (v * latent)) / (ours @ v)
    gaps = [e.cut_gap for e in _experts(b.kernel)]
    return CompressionErrors(
        kernel_rel_err=math.sqrt(sums[1] / sums[0]),
        coupling_rel_err=math.sqrt(sums[3] / sums[2]),
        latent_rmse=float(np.sqrt(np.mean(np.square(maps[0] - maps[1])))),
        row_err=float(np.abs(rows - mu).max()),
        col_err=float(np.abs(cols - nu).max()),
        min_entry=smallest[0],
        min_mass=smallest[1],
        status=b.status,
        cut_gap=math.nan if any(map(math.isnan, gaps)) else min(gaps),
    )


# ---- arguments ----------------------------------------------------------------------------------


def _logits(expert: LowRank) -> Scores:
    from .experts import poe

    source: Any = expert.source
    if source is None:
        raise ValueError(
            "exact: wanted factors that keep what they approximate, got given factors; "
            "solve with qk.bridge(qk.poe(A, B, ...), mu, nu) over the exact operators"
        )
    if isinstance(source, np.ndarray):
        if source.min() < 0:
            raise ValueError(
                f"exact: wanted arrays with entries >= 0, got {source.min():.3g}: "
                "the exact kernel has negative entries itself"
            )
        with np.errstate(divide="ignore"):
            return scores.dense(np.log(source))
    logits: Scores = poe(source)
    return logits
