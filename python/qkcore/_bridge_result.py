"""The result of solving a bridge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _device
from ._bridge_check import problem_part, wide_marginals
from ._convergence import WarnsOnUse
from ._lazy_scores import Real, Scores
from ._words import Ended
from .operators import MarkovOperator, softmax
from .scores import distance, l1

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Self

__all__ = ["SchrodingerBridge", "SolvedBatch", "SolvedBridge"]

Value = Any  # a number, or for batches an array of them


@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedBridge(Ended, WarnsOnUse):
    """The fields of every solved bridge, for any kernel; for a batch, arrays over its problems."""

    mu: Any = field(repr=False)
    nu: Any = field(repr=False)
    f: Any = field(repr=False)
    """log potential of the rows"""
    g: Any = field(repr=False)
    """log potential of the columns; sum_j nu_j g_j = 0 for balanced problems"""
    status: Any
    """"converged", or the reason why it did not: "iteration limit" (``max_iter``), "visit limit"
    (``max_visits``), "stagnated" (at the precision of the dtype), "infeasible" (no coupling exists on the
    support of the kernel), "no total support" (a coupling exists, but only on some entries of the support;
    the iteration approaches it like 1/k), "negative kernel" (a sum that should be positive is not), "negative
    entries" (for factors: the marginals are met by a plan with negative mass), "overflow" (one problem of a
    batch)"""
    converged: Any
    """whether everything is finite and the conditions are met within ``tol`` at a separate final check. The
    check computes in more precision than the dtype's for scores of CPU arrays, chains and factors, and uses
    the kernel's own sums for others"""
    n_iter: Any
    """iterations of all methods that were tried; each makes one visit, except with Newton's method (see
    ``n_visits``)"""
    n_visits: Any
    """visits of all entries, including those of inner solves; for chains, a visit uses every step twice"""
    errors: npt.NDArray[np.float64] = field(repr=False)
    """the error after each iteration: the L1 error of the marginal that the last half-step did not fix, as a
    share of the mass; for batches only the last error of each problem"""
    error: Any
    """L1 error of the worse marginal at the final check, as a share of the mass. With penalties it is the
    error of the optimality conditions (row sums = mu exp(-f / penalty), and likewise for columns), as a share
    of the mass of the plan"""
    worst: Any
    """largest relative error of a single entry of the marginals at the final check"""
    method: Any
    """the methods that were used, and how the entries were kept, e.g. "anderson, then newton, stored"."""
    tol: float
    penalty: tuple[float, float] = (math.inf, math.inf)
    """weights of the KL penalties on both marginals; inf: the marginal is met exactly; 0: it is free"""
    relaxation: Any = 1.0
    """the factor of over-relaxation that the solve ended with"""
    on_fail: str = field(default="warn", repr=False)
    """what happens when a result that did not converge is used: "warn" or "ignore" """

    def plot(self, *, axes: Sequence[Axes] | None = None) -> Figure:
        """Draws the plan with its marginals, and the convergence; returns the matplotlib figure.

        ``axes``: four existing axes, for the plan, for nu above it, for mu beside it and for the convergence;
        for a chain one, for the convergence. Plans of more than 256 rows or columns are drawn as means of
        blocks.
        """
        from . import _plots

        return _plots.bridge(self, axes)

    def _repr_html_(self) -> str:
        from . import _html

        return _html.bridge(self)

    def _summary(self, what: str) -> str:
        """The text that ``print`` shows for a solved problem, or for a batch of them."""
        if isinstance(self.status, str):
            state = "converged" if self.converged else f"not converged ({self.status})"
        else:
            state = f"{int(np.sum(self.converged))} of {np.size(self.converged)} converged"
        balanced = all(map(math.isinf, self.penalty))
        kind = "marginal error" if balanced else "optimality residual"
        methods = ", or ".join(sorted(set(np.ravel(self.method).tolist())))
        return (
            f"{what}: {state}\n  {np.max(self.n_iter)} iterations ({methods}), "
            f"{kind} {np.max(self.error):.3g} of the mass (tolerance {self.tol:.3g})"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedBatch(SolvedBridge):
    """A solved bridge, or a batch of them: with batch axes every figure is an array over the batch."""

    @property
    def _is_batch(self) -> bool:
        raise NotImplementedError

    def _part(self, k: int) -> dict[str, Any]:
        """The kernel and the vectors of problem k."""
        raise NotImplementedError

    def _figure(self, name: str, of: Callable[[Any], float]) -> Value:
        """A figure of one problem, or an array of it over the batch; computed once."""
        kept: dict[str, Any] = self.__dict__
        key = f"_figure_{name}"
        if key not in kept:
            kept[key] = (
                np.array([of(one) for one in self]).reshape(np.shape(self.converged))
                if self._is_batch
                else of(self)
            )
        found: Value = kept[key]
        return found

    def __bool__(self) -> bool:  # a result is true, even with no problems
        return True

    def __len__(self) -> int:
        if not self._is_batch:
            raise TypeError("len: wanted a batch of bridges, got one bridge; see b.plan()")
        return int(np.size(self.converged))

    def __getitem__(self, index: int | tuple[int, ...]) -> Self:
        if not self._is_batch:
            raise TypeError("index: wanted a batch of bridges, got one bridge; see b.plan()")
        shape = np.shape(self.converged)
        flat = np.arange(len(self))
        try:
            k = flat.reshape(shape)[index] if isinstance(index, tuple) else flat[index]
        except IndexError:
            raise IndexError(
                f"index: wanted a problem of the batch {shape}, got {index!r}"
            ) from None
        if np.ndim(k):
            raise TypeError(
                f"index: wanted one integer for a problem, or one for each of the batch axes {shape}, "
                f"got {index!r}"
            )
        k = int(k)
        figures = ("converged", "n_iter", "n_visits", "error", "worst", "method", "relaxation")
        return replace(
            self,
            **self._part(k),
            **{
                name: np.ravel(np.broadcast_to(getattr(self, name), shape))[k].item()
                for name in figures
            },
            status=str(np.ravel(self.status)[k]),
            errors=np.ravel(self.errors)[k : k + 1],
            on_fail="ignore" if self.__dict__.get("_warned") else self.on_fail,
        )

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self)))


@dataclass(frozen=True, eq=False, kw_only=True)
class SchrodingerBridge(SolvedBatch):
    """A solved bridge: its log potentials, how the solve went, and everything that follows from them.

    The coupling is :math:`\\Pi_{ij} = e^{f_i + s_{ij} + g_j}`. With batch axes, every figure below is
    an array over the batch (over the blocks of ragged scores), ``b[k]`` is the result of problem k alone
    (``b[i, j]`` with two batch axes), and ``len(b)`` and iteration go through all problems.

    Using a result that did not converge (its plan, projection, operators, cost, ...) gives one
    :class:`qkcore.ConvergenceWarning`, unless ``qk.bridge`` was told otherwise (``on_fail=``).
    """

    scores: Scores = field(repr=False)

    @cached_property
    def _vectors(self) -> dict[str, Real]:
        """f, g, mu and nu as NumPy vectors, for figures that are computed on the host."""
        s, b = self.scores, self.scores.backend
        *_, n, m = s.shape
        named = ("f", self.f, n), ("g", self.g, m), ("mu", self.mu, n), ("nu", self.nu, m)
        found = b.vectors(s.dtype, s.batch, *named)
        return {name: b.to_host(x) for (name, *_), (x, _) in zip(named, found, strict=True)}

    @cached_property
    def _log_plan(self) -> Scores:
        return self.scores._coupled(self.f, self.g)

    def plan(self) -> Real:
        """The coupling as an array (N, M)."""
        self._used()
        if _device.is_scores(self.scores):
            there: Real = self._log_plan._array("exp", None, None)
            return there
        return np.exp(self._log_plan.to_numpy())  # the engine would flush subnormal results to 0

    def marginals(self) -> tuple[Real, Real]:
        """Row and column sums of the coupling, in one pass."""
        return self._log_plan.marginals()

    @property
    def forward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{ik}` (eq 17): the softmax of s + g over rows (eq 33), N x M."""
        self._used()
        return self._forward

    @property
    def backward(self) -> MarkovOperator:
        """:math:`\\Pi_{ij}/\\sum_k \\Pi_{kj}` as an M x N operator whose rows are the columns j."""
        self._used()
        return self._backward

    @cached_property
    def _forward(self) -> MarkovOperator:
        return self._with_errors(softmax(self.scores.shift(columns=self.g)))

    @cached_property
    def _backward(self) -> MarkovOperator:
        return self._with_errors(softmax(self.scores.T.shift(columns=self.f)))

    def _with_errors(self, operator: MarkovOperator) -> MarkovOperator:
        """The operator with the errors that a converged solve left in the marginals, for its checks."""
        if not self._is_batch and self.converged:
            operator._solve_errors = (float(self.worst), float(self.error))
        return operator

    def project(self, V: npt.ArrayLike) -> Real:
        """Barycentric projection: the mean of V (M, k) or (M,) under each row of the coupling."""
        self._used()
        return self._forward.apply(V)

    def transform(self, new: Any, Y: npt.ArrayLike) -> Real:
        """The barycentric projection out of sample: means of Y (M, k) under rows that the solve did not have.

        ``new``: scores of the new rows against the same columns, made in the same way as the scores of the
        bridge; or new points, for a bridge of ``qk.scores.distance(X, Y)`` or ``l1`` without W. No potential
        of the new rows is needed, because it cancels when a row is normalised.

        >>> import numpy as np, qkcore as qk
        >>> X, Y = np.array([[0.0], [1.0]]), np.array([[10.0], [11.0]])
        >>> b = qk.bridge(qk.scores.distance(X, Y, beta=5.0))
        >>> b.transform(np.array([[0.0], [0.5]]), Y).round(3)
        array([[10.007],
               [10.5  ]])
        """
        self._used()
        s = new if isinstance(new, Scores) else self._against_columns(new)
        columns = self.scores.shape[-1]
        if s.shape[-1] != columns:
            raise ValueError(f"new: wanted scores against {columns} columns, got shape {s.shape}")
        return softmax(s.shift(columns=self.g))._applied("Y", Y)

    def _against_columns(self, points: Any) -> Scores:
        """Scores of other points as rows, for bridges of distances without W."""
        t = self.scores.terms
        others = t.dots or t.dense or t.row_bias or t.col_bias or t.masks or t.banded or t.offsets
        if others or len(t.distances) != 1 or not self.scores.as_given:
            raise TypeError(
                "new: wanted scores of the new rows against the same columns for this kernel, got "
                f"{type(points).__name__}; points are enough for qk.scores.l1(X, Y), and "
                "qk.scores.distance(X, Y) of at most 16 dimensions, without W"
            )
        _, y, beta, _, power = t.distances[0]
        make = l1 if power == 1 else distance
        return make(points, self.scores.backend.give(y), beta=beta)

    @property
    def cost(self) -> Value:
        """:math:`-\\sum_{ij} \\Pi_{ij} s_{ij}`."""
        self._used()
        return self._figure("cost", lambda b: b._row_terms[0])

    @property
    def entropy(self) -> Value:
        """:math:`-\\sum_{ij} \\Pi_{ij}\\log \\Pi_{ij}`, in nats."""
        self._used()
        return self._figure("entropy", lambda b: b._row_terms[1])

    @property
    def primal(self) -> Value:
        """The minimised value :math:`\\sum_{ij} \\Pi_{ij}(\\log\\Pi_{ij} - s_{ij} - 1)`, and with
        penalties :math:`\\rho_1, \\rho_2` also :math:`\\rho_1\\mathrm{KL}(\\Pi 1\\|\\mu) +
        \\rho_2\\mathrm{KL}(\\Pi^\\top 1\\|\\nu)`, :math:`\\mathrm{KL}(a\\|b) = \\sum a\\log(a/b) - a + b`."""
        self._used()
        return self._figure("primal", SchrodingerBridge._primal)

    @property
    def dual(self) -> Value:
        """:math:`\\langle f,\\mu\\rangle + \\langle g,\\nu\\rangle - \\sum_{ij}\\Pi_{ij}`, where a penalty
        :math:`\\rho` replaces :math:`\\langle f,\\mu\\rangle` by :math:`\\rho\\langle 1 - e^{-f/\\rho},
        \\mu\\rangle`: at most ``primal`` of any coupling, and equal to it at the solution."""
        self._used()
        return self._figure("dual", SchrodingerBridge._dual)

    @property
    def gap(self) -> Value:
        """primal - dual; for a converged result it is of the size of ``error`` times the potentials."""
        return self.primal - self.dual

    @property
    def rate(self) -> Value:
        """The factor by which each of the last iterations reduced the error; NaN if there were fewer than
        three, and for batches, whose errors are not kept."""
        return self._figure("rate", lambda b: observed_rate(b.errors))

    @property
    def birkhoff_rate(self) -> Value:
        """:math:`\\tanh^2(\\Delta/4)`: the Birkhoff-Hopf bound on the factor per plain iteration.

        :math:`\\Delta = \\max (s_{ij} + s_{kl} - s_{il} - s_{kj})` is exact for small problems, and otherwise
        an upper bound: twice the largest range of the difference between a row and the first row. The result
        is 1 if the kernel has zeros. The rate stated in EOT is weaker than this bound (erratum 7).
        """
        return self._figure("birkhoff_rate", lambda b: _birkhoff_rate(b.scores))

    # ---- one problem --------------------------------------------------------------------------------

    @cached_property
    def _row_terms(self) -> tuple[float, float]:
        # A row of the coupling is its sum times a row of the softmax, whose moments the engine computes.
        forward, b = self._forward, self.scores.backend
        f, g = self._vectors["f"], self._vectors["g"]

        def host(array: Any) -> npt.NDArray[np.float64]:
            out: npt.NDArray[np.float64] = b.here("figure", array)[live].astype(np.float64)
            return out

        with np.errstate(invalid="ignore"):
            log_mass = (f + b.here("figure", forward.log_normalizer)).astype(np.float64)
        live = np.isfinite(log_mass)
        log_mass = log_mass[live]
        mass = np.exp(log_mass)
        expected = host(forward.expected_score())  # of s + g
        finite_g = b.give(b.from_host(np.where(np.isfinite(g), g, 0).astype(g.dtype)))
        g_mean = host(forward.apply(finite_g))
        entropy = host(forward.entropy())
        return -math.fsum(mass * (expected - g_mean)), math.fsum(mass * (entropy - log_mass))

    @cached_property
    def _sums(self) -> tuple[Real, Real]:
        s, f, g = self.scores, self._vectors["f"], self._vectors["g"]
        if _device.is_scores(s):
            if s.terms.dense:  # in the scores' dtype, on the device: the matrix is not copied
                rows, columns = (s.backend.here("sums", x) for x in self.marginals())
                return rows.astype(np.float64), columns.astype(np.float64)
            s = s.backend.visited(s)
        return wide_marginals(s, f.astype(np.float64), g.astype(np.float64), s.backend.at(None))

    @property
    def _sides(self) -> tuple[tuple[Real, Real], tuple[Real, Real]]:
        v = self._vectors
        return (v["f"], v["mu"]), (v["g"], v["nu"])

    def _primal(self) -> float:
        return primal_value(*self._row_terms, self._sums, self._sides, self.penalty)

    def _dual(self) -> float:
        return dual_value(self._sums, self._sides, self.penalty)

    # ---- batches ------------------------------------------------------------------------------------

    @property
    def _is_batch(self) -> bool:
        return bool(self.scores.batch) or self.scores.terms.offsets is not None

    def _part(self, k: int) -> dict[str, Any]:
        part = self.scores.backend.part
        here, there = (problem_part(self.scores, k, side) for side in (0, 1))
        rows = {name: part(getattr(self, name), here) for name in ("mu", "f")}
        columns = {name: part(getattr(self, name), there) for name in ("nu", "g")}
        return {"scores": self.scores._problem(k), **rows, **columns}

    def __str__(self) -> str:
        *batch, n, m = self.scores.shape
        size = f"{n} x {m}" + (f", batch {tuple(batch)}" if batch else "")
        place = f", on {self.scores.device}" if self.scores.device != "cpu" else ""
        return self._summary(f"Schrödinger bridge {size}, {self.scores.dtype}{place}")


def observed_rate(errors: Any) -> float:
    """See :attr:`SchrodingerBridge.rate`."""
    tail = np.atleast_1d(errors)[-6:]
    if len(tail) < 3 or not (tail > 0).all():
        return math.nan
    return float((tail[-1] / tail[0]) ** (1 / (len(tail) - 1)))


Sides = tuple[tuple[Any, Any], tuple[Any, Any]]  # (potential, weight) of rows and columns


def primal_value(
    cost: float, entropy: float, sums: tuple[Any, Any], sides: Sides, penalties: tuple[float, float]
) -> float:
    """See :attr:`SchrodingerBridge.primal`; ``sums`` are those of the plan, in float64."""
    from scipy.special import kl_div

    total = cost - entropy - math.fsum(sums[0])
    for got, (_, weight), penalty in zip(sums, sides, penalties, strict=True):
        if 0 < penalty < math.inf:
            total += penalty * math.fsum(kl_div(got, weight.astype(np.float64)))
    return total


def dual_value(sums: tuple[Any, Any], sides: Sides, penalties: tuple[float, float]) -> float:
    """See :attr:`SchrodingerBridge.dual`."""
    total = -math.fsum(sums[0])
    for (potential, weight), penalty in zip(sides, penalties, strict=True):
        live = weight > 0
        value, mass = potential[live].astype(np.float64), weight[live].astype(np.float64)
        if math.isinf(penalty):
            total += math.fsum(value * mass)
        elif penalty > 0:
            # The potential -inf belongs to a row without entries. Every potential is admissible there, and
            # the value is largest in the limit of large potentials.
            tilt = np.where(np.isneginf(value), -1.0, np.expm1(-value / penalty))
            total -= penalty * math.fsum(tilt * mass)
    return total


_EXACT_BELOW = 10**7  # the exact diameter is computed if n * n * m is at most this


def _birkhoff_rate(s: Scores) -> float:
    n, m = s.shape
    exact = n * n * m <= _EXACT_BELOW
    first = s.rows(0, n if exact else 1).to_numpy().astype(np.float64)
    diameter = 0.0
    for start in range(0, n, 256):
        block = s.rows(start, min(n, start + 256)).to_numpy().astype(np.float64)
        if np.isneginf(block).any():
            return 1.0
        for reference in first:
            diameter = max(diameter, float(np.ptp(block - reference, axis=1).max()))
    return math.tanh((diameter if exact else 2 * diameter) / 4) ** 2
