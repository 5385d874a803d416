"""Bridges over factored kernels, with a guard on their signs (DAC-10, D.1; EOT-10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._bridge_check import Conditions, Residual, judge
from ._bridge_kernels import BridgeKernel
from ._bridge_problem import Problem
from ._bridge_report import Callback
from ._bridge_result import SchrodingerBridge, SolvedBridge
from ._bridge_solve import ask
from ._config import resolve_threads
from ._convergence import on_fail_option, settle
from ._factors import BLOCK_ROWS, Factored, LowRank, NegativeEntries, ProductOfFactors
from ._lazy_scores import Real, Scores
from ._native import cpu

__all__ = ["CompressionErrors", "FactoredBridge", "compression_errors", "solve_factored"]

_SIGNS = ("stop", "continue")
# Up to this many entries are looked at one by one when the signs of a coupling are checked.
_LOOKED_AT = 4_000_000
# Terms of the sums that are taken in extended precision, some 10 ns each, where double leaves a doubt.
_EXTENDED_TERMS = 200_000_000

Init = Any  # an earlier result (anything with f and g), a pair (f, g), or None


class FactoredConditional:
    """Rows of a factored kernel, weighted and normalised: :math:`K_{ij} v_j / (K v)_i`.

    They sum to 1; with negative entries in the kernel they are not probabilities.
    """

    __array_ufunc__ = None

    def __init__(self, kernel: Factored, weights: Real) -> None:
        self._kernel = kernel
        self._double = kernel._double()
        self._weights = weights

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self._kernel.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the kernel."""
        return self._kernel.dtype

    @cached_property
    def _inverse_sums(self) -> Real:
        sums = self._double.apply(self._weights)
        with np.errstate(divide="ignore"):
            return np.where(sums == 0, 0.0, 1 / sums)

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product with V (M,) or (M, k)."""
        values = _checks.real_array("V", V)
        _checks.same_dtype("V", values, self.dtype, "the kernel")
        n = self.shape[1]
        _checks.shape("V", values.shape, (n,), (n, "k"))
        across = (slice(None),) + (None,) * (values.ndim - 1)
        out = self._double.apply(self._weights[across] * values, n_threads=n_threads)
        out = out * self._inverse_sums[across]
        return out.astype(self.dtype, copy=False)

    def __matmul__(self, V: npt.ArrayLike) -> Real:
        return self.apply(V)

    def to_numpy(self) -> Real:
        """As an array (N, M)."""
        out = self._inverse_sums[:, None] * self._double.to_numpy() * self._weights
        return out.astype(self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"FactoredConditional(shape={self.shape}, dtype={self.dtype})"


@dataclass(frozen=True, eq=False, kw_only=True)
class FactoredBridge(SolvedBridge):
    """A bridge over a factored kernel: the names of :class:`SchrodingerBridge`, and its signs.

    The coupling is :math:`\\Pi_{ij} = u_i K_{ij} v_j`, with f = log |u| and g = log |v|. ``converged`` is
    True only for a coupling: the marginals met within ``tol`` and no entry negative by more than rounding.
    Otherwise the figures are those of the last scalings, and ``status`` tells why they are not a coupling.
    A visit is a product with K and one with its transpose.
    """

    kernel: Factored = field(repr=False)
    u: Real = field(repr=False)
    """scaling of the rows, float64; negative entries only after ``on_negative="continue"``"""
    v: Real = field(repr=False)
    """scaling of the columns, float64"""
    signs_checked: float = 1.0
    """the share of the entries whose signs were looked at; below 1, ``.negative`` looks at all of them"""

    @cached_property
    def negative(self) -> NegativeEntries:
        """The negative entries of the coupling: their number, fraction, the smallest entry, their sum.

        Looks at all N M entries, whatever the solver looked at.
        """
        K = self.kernel._double()
        # Signs that the scalings lost are counted in the kernel's entries all the same.
        eps = float(np.finfo(self.kernel.dtype).eps)
        return K._negative(np.abs(self.u), np.abs(self.v), eps, resolve_threads(None))

    def plan(self) -> Real:
        """The coupling as an array (N, M)."""
        self._used()
        out = self.u[:, None] * self.kernel._double().to_numpy() * self.v
        return out.astype(self.kernel.dtype, copy=False)

    def marginals(self) -> tuple[Real, Real]:
        """Row and column sums of the coupling."""
        dtype = self.kernel.dtype
        rows, cols = _sums(self.kernel._double(), self.u, self.v, resolve_threads(None))
        return rows.astype(dtype, copy=False), cols.astype(dtype, copy=False)

    @property
    def forward(self) -> FactoredConditional:
        """:math:`K_{ij} v_j / (K v)_i`, N x M (eq 17)."""
        self._used()
        return self._forward

    @cached_property
    def _forward(self) -> FactoredConditional:
        return FactoredConditional(self.kernel, self.v)

    @cached_property
    def backward(self) -> FactoredConditional:
        """:math:`K_{ij} u_i / (K^\\top u)_j` as an M x N operator whose rows are the columns j."""
        self._used()
        return FactoredConditional(self.kernel.T, self.u)

    def project(self, V: npt.ArrayLike) -> Real:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        self._used()
        return self._forward.apply(V)

    @cached_property
    def cost(self) -> float:
        """:math:`-\\sum_{ij}\\Pi_{ij}\\log K_{ij}`, by blocks of rows; NaN when entries are negative."""
        self._used()
        if self.status.startswith("negative") or (
            not self.kernel.nonnegative and self.negative.count > 0
        ):
            return math.nan
        K = self.kernel._double()
        total = 0.0
        for start in range(0, K.shape[0], BLOCK_ROWS):
            stop = min(K.shape[0], start + BLOCK_ROWS)
            entries = K._rows(start, stop)
            logs = np.log(entries, out=np.zeros_like(entries), where=entries > 0)
            total -= float(self.u[start:stop] @ (entries * logs) @ self.v)
        return total

    @property
    def rate(self) -> float:
        """The observed factor by which the last iterations reduced the error; NaN if there were few."""
        tail = self.errors[-6:]
        if len(tail) < 3 or not (tail > 0).all():
            return math.nan
        return float((tail[-1] / tail[0]) ** (1 / (len(tail) - 1)))

    def exact(self, **options: Any) -> SchrodingerBridge:
        """The bridge over the operators that were compressed: the way out of a negative kernel.

        ``options`` go to :func:`qkcore.bridge`. The factors must come from :func:`low_rank` or
        :func:`nystrom`, which remember what they approximate.
        """
        from .bridges import bridge

        total: Scores | None = None
        for expert in _experts(self.kernel):
            logits = _logits(expert)
            total = logits if total is None else total + logits
        assert total is not None
        return bridge(total, self.mu, self.nu, **options)

    def __str__(self) -> str:
        n, m = self.kernel.shape
        signs = f"\n  signs of {self.signs_checked:.2%} of the entries checked"
        return self._summary(f"Factored Schrödinger bridge {n} x {m}, {self.kernel.dtype}") + (
            "" if self.signs_checked == 1 else signs
        )


def solve_factored(
    K: Factored,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
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
    """The bridge from mu (N,) to nu (M,) over a factored kernel (DAC-10, D.1).

    Scalings :math:`u = \\mu / (K v)`, :math:`v = \\nu / (K^\\top u)`, in double for both types, through
    products with the factors: O((N + M) r_0 r_1) per visit. ``solver``, ``penalty``, ``init``, ``callback``
    and ``progress`` are those of :func:`qkcore.bridge`; "auto" is Sinkhorn's iteration where a factor is
    negative, and the accelerated one elsewhere. Truncated kernels have negative entries; two guards keep
    them from passing for couplings:

    - each visit checks that K v and K^T u are positive wherever there is mass. If not, the
      solve stops with status "negative kernel" and the last scalings (``on_negative="continue"``
      goes on with signed ones, as a solver without a guard would, to the same status).
    - after convergence entries are looked at, unless no factor is negative. Any below 0 by more than
      rounding: status "negative entries"; ``.negative`` has the figures. ``signs="auto"`` looks at all
      entries up to 4e6, and beyond at whole rows and columns that are spread evenly over the kernel, as
      many as have 4e6 entries; ``signs_checked`` says which share that is. ``signs="all"`` looks at every
      entry whatever their number, which takes O(N M r).

    ``on_fail`` is that of :func:`qkcore.bridge`. Ways out: more rank, ``low_rank(A, r, nonnegative=True)``,
    ``positive_features``, or the exact operators, ``result.exact()``.

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
    _checks.one_of("on_negative", on_negative, ("stop", "continue"))
    fails = on_fail_option(on_fail)
    _checks.one_of("signs", signs, ("auto", "all"))
    kernel = FactoredKernel(K, on_negative == "continue")
    asked = ask(kernel, mu, nu, tol, max_iter, solver, penalty, init, n_threads)
    fields = asked.solved(callback, progress)
    return settle(_result(kernel, asked.problem, fields, signs), fails)


class FactoredKernel(BridgeKernel):
    """A factored kernel, in double precision whatever its dtype, and the signs of its scalings."""

    def __init__(self, K: Factored, follow_signs: bool) -> None:
        self.given, self.K = K, K._double()
        self.shape, self.dtype = K.shape, K.dtype
        self.potentials = self.entries = np.dtype(np.float64)
        self.followed = follow_signs and not K.nonnegative

    @cached_property
    def native(self) -> Any:
        guard = 0 if self.given.nonnegative else 2 if self.followed else 1
        return cpu.bridge_factors(self.K._left, self.K._right, guard)

    @property
    def kept(self) -> str:
        return "factored, signed" if self.followed else "factored"

    def scalings(self, f: Real, g: Real, mass: float) -> tuple[Real, Real]:
        """u / mass and v, with their signs."""
        with np.errstate(over="ignore"):
            u, v = np.exp(f - math.log(mass)), np.exp(g)
        if self.followed:
            rows, cols = self.native.signs
            u, v = u * rows, v * cols
        return u, v

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        """By products with the factors; extended precision decides where rounding leaves a doubt."""
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
        sizes = [
            math.prod(np.sqrt(np.einsum("ci,ci->i", x, x)) for x in side)
            for side in (self.K._left, self.K._right)
        ]
        terms = sum(r + 2 for r in self.K.ranks) + math.sqrt(max(self.K.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            slack = float(np.abs(u) @ sizes[0] * (np.abs(v) @ sizes[1])) * terms
            slack *= float(np.finfo(np.float64).eps) / (1.0 if p.balanced else float(sums[0].sum()))
        found = judge(sums, sides, (f, g), slack, p.tol)
        small = math.prod(self.K.ranks) * sum(self.K.shape) <= _EXTENDED_TERMS
        if not (abs(found.error - p.tol) <= slack and small):
            return found
        return judge(_extended_sums(self.K, u, v), sides, (f, g), 0.0, p.tol)

    def refuses(self, solver: str) -> str | None:
        if self.followed and solver not in ("auto", "alternating"):
            return f'wanted solver="alternating" where signs may be lost, got {solver!r}'
        return super().refuses(solver)

    def automatic(self, symmetric: bool) -> str:
        # A sum that is not positive is the kernel's fault only where Sinkhorn's iteration goes.
        return super().automatic(symmetric) if self.given.nonnegative else "alternating"


def _result(
    kernel: FactoredKernel, p: Problem, fields: dict[str, Any], signs: str
) -> FactoredBridge:
    f, g, status = fields["f"], fields["g"], fields["status"]
    mass = _checks.total(p.mu) if p.balanced else 1.0
    u, v = kernel.scalings(f, g, mass)
    lost = bool((u[p.mu > 0] < 0).any() or (v[p.nu > 0] < 0).any())
    negative: NegativeEntries | None = None
    checked = 1.0
    if status != "infeasible" and lost:
        status = "negative kernel"
    elif fields["converged"] and not kernel.given.nonnegative:
        some, checked, negative = _signs(kernel, u, v, signs, p.n_threads)
        status = "negative entries" if some else status
    fields |= {name: fields[name].astype(kernel.dtype, copy=False) for name in ("f", "g")}
    fields |= {"status": status, "converged": status == "converged"}
    result = FactoredBridge(kernel=kernel.given, u=u * mass, v=v, signs_checked=checked, **fields)
    if negative is not None:
        result.__dict__["negative"] = negative  # the cached property
    return result


def _extended_sums(K: Factored, u: Real, v: Real) -> tuple[Any, Any]:
    """:func:`_sums` in extended precision, one combination of components after another."""
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
) -> tuple[bool, float, NegativeEntries | None]:
    """Whether negative entries were found, in which share of all entries, and their figures if in all."""
    n, m = kernel.K.shape
    eps = float(np.finfo(kernel.dtype).eps)
    if signs == "all" or n * m <= _LOOKED_AT:
        negative = kernel.K._negative(u, v, eps, n_threads)
        return negative.count > 0, 1.0, negative
    count = max(1, _LOOKED_AT // (n + m))  # rows, and as many columns
    for K, scales in ((kernel.K, (u, v)), (kernel.K.T, (v, u))):
        chosen = np.unique(np.linspace(0, K.shape[0] - 1, count).round().astype(np.int64))
        if K._negative(*scales, eps, n_threads, rows=chosen).count:
            return True, _share_of(count, n, m), None
    return False, _share_of(count, n, m), None


def _share_of(count: int, n: int, m: int) -> float:
    """The share of the entries of n x m that lie in ``count`` rows or ``count`` columns."""
    rows, cols = min(1.0, count / n), min(1.0, count / m)
    return rows + cols - rows * cols


def _sums(K: Factored, u: Real, v: Real, n_threads: int) -> tuple[Real, Real]:
    return u * K._product(v, n_threads), v * K.T._product(u, n_threads)


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
    """of the factored bridge"""
    cut_gap: float
    """smallest gap at which an expert was truncated (erratum 11); NaN when unknown"""


def compression_errors(
    b: FactoredBridge, exact: SchrodingerBridge, t: npt.ArrayLike | None = None
) -> CompressionErrors:
    """Compares a factored bridge with the exact one, by blocks of rows (DAC-10, D.1).

    ``t`` (M,) is the latent coordinate of the columns that the barycentric maps average; j / M by
    default. The figures are there whatever the status.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank, compression_errors, solve_factored
    >>> A = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> half = np.full(2, 0.5)
    >>> b = solve_factored(LowRank(A, np.eye(2)), half, half)
    >>> compression_errors(b, qk.bridge(qk.scores.dense(np.log(A)), half, half)).coupling_rel_err < 1e-8
    True
    """
    b = _checks.instance("b", b, FactoredBridge, "a FactoredBridge")
    exact = _checks.instance("exact", exact, SchrodingerBridge, "a SchrodingerBridge")
    _checks.instance("b", b, FactoredBridge, "a FactoredBridge (qk.bridge of factors)")
    n, m = b.kernel.shape
    _checks.shape("exact", exact.scores.shape, (n, m))
    latent = np.arange(m) / m if t is None else _checks.real_array("t", t)
    _checks.shape("t", latent.shape, (m,))
    _checks.finite("t", latent)
    latent = latent.astype(np.float64)
    K = b.kernel._double()
    f, g = exact.f.astype(np.float64), exact.g.astype(np.float64)
    sums = np.zeros(4)  # squares of the kernel, its error, the coupling, its error
    maps = np.zeros((2, n))
    rows, cols = np.zeros(n), np.zeros(m)
    smallest = [math.inf, math.inf]
    for start in range(0, n, BLOCK_ROWS):
        stop = min(n, start + BLOCK_ROWS)
        logits = exact.scores.rows(start, stop).to_numpy().astype(np.float64)
        true, ours = np.exp(logits), K._rows(start, stop)
        true_plan = np.exp(logits + f[start:stop, None] + g)
        plan = b.u[start:stop, None] * ours * b.v
        sums += [np.square(x).sum() for x in (true, ours - true, true_plan, plan - true_plan)]
        rows[start:stop], cols = plan.sum(axis=1), cols + plan.sum(axis=0)
        smallest = [min(a, float(x.min())) for a, x in zip(smallest, (ours, plan), strict=True)]
        # Barycentric maps are of the conditional rows, which rows without mass have too.
        weights = np.exp(logits + g - (logits + g).max(axis=1, keepdims=True))
        maps[0, start:stop] = weights @ latent / weights.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            maps[1, start:stop] = (ours @ (b.v * latent)) / (ours @ b.v)
    gaps = [e.cut_gap for e in _experts(b.kernel)]
    return CompressionErrors(
        kernel_rel_err=math.sqrt(sums[1] / sums[0]),
        coupling_rel_err=math.sqrt(sums[3] / sums[2]),
        latent_rmse=float(np.sqrt(np.mean(np.square(maps[0] - maps[1])))),
        row_err=float(np.abs(rows - b.mu).max()),
        col_err=float(np.abs(cols - b.nu).max()),
        min_entry=smallest[0],
        min_mass=smallest[1],
        status=b.status,
        cut_gap=math.nan if any(map(math.isnan, gaps)) else min(gaps),
    )


# ---- arguments ----------------------------------------------------------------------------------


def _experts(K: Factored) -> tuple[LowRank, ...]:
    if isinstance(K, ProductOfFactors):
        return K.experts
    assert isinstance(K, LowRank)
    return (K,)


def _logits(expert: LowRank) -> Scores:
    from .experts import poe

    source: Any = expert.source
    if source is None:
        raise ValueError(
            "exact: wanted factors that know what they approximate, got given ones; "
            "solve with qk.bridge(qk.poe(A, B, ...), mu, nu) over the exact operators"
        )
    if isinstance(source, np.ndarray):
        if source.min() < 0:
            raise ValueError(
                f"exact: wanted arrays with entries >= 0, got {source.min():.3g}: "
                "the exact kernel is negative itself"
            )
        with np.errstate(divide="ignore"):
            return scores.dense(np.log(source))
    logits: Scores = poe(source)
    return logits
