"""The Markov interface: what every stochastic operator offers, however its products are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _checks, _dynamics
from ._batch import each
from ._dynamics import CurrentNorms, Regime
from ._lazy_scores import Real
from ._linear import RIGHT, LinearMap

__all__ = ["Composition", "Markov"]

R = TypeVar("R")

# Where only products with an operator are available, this many of its rows are computed at a time.
_BLOCK = 256


class Markov(LinearMap):
    """A stochastic matrix, used through its products: its rows (``axis`` 1) or columns (0) sum to 1."""

    __slots__ = ()

    axis: int

    @property
    def T(self) -> Markov:
        """The transposed operator."""
        raise NotImplementedError

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """True for rows (columns) whose entries are all masked, and whose weights are therefore 0."""
        raise NotImplementedError

    @property
    def bistochastic(self) -> bool:
        """Whether both the rows and the columns sum to 1 by construction."""
        return False

    # ---- products ---------------------------------------------------------------------------

    @overload
    def __matmul__(self, V: Markov) -> Composition: ...
    @overload
    def __matmul__(self, V: npt.ArrayLike) -> Real: ...
    def __matmul__(self, V: Markov | npt.ArrayLike) -> Composition | Real:
        if isinstance(V, Markov):
            return _compose(self, V)
        out: Real = self._applied(RIGHT, V)
        return out

    def __pow__(self, t: int) -> Composition:
        """t steps of the chain. A product with it is t products in turn; no power of the array is formed."""
        steps = _checks.integer("t", t)
        if steps < 0:
            raise ValueError(f"t: wanted a number of steps, 0 or more, got {t}")
        chain = self if len(self.shape) != 2 or self.shape[0] == self.shape[1] else None
        if chain is None:
            raise ValueError(f"A ** t: wanted a square operator, got shape {self.shape}")
        return Composition((self,) * steps, self.shape, self.dtype, self.axis)

    # ---- dynamics (DAC-8) -------------------------------------------------------------------

    def stationary(
        self,
        *,
        tol: float | None = None,
        max_iter: int = 10_000,
        on_fail: str = "warn",
        n_threads: int | None = None,
    ) -> Real:
        """The law with :math:`\\rho P = \\rho` (DAC-8); for a column-stochastic operator P rho = rho.

        For symmetric kernels the law follows from the row sums (DAC eq 19), and for bistochastic chains it is
        uniform. Other chains of up to 2048 states are solved by elimination without subtraction, from the
        logarithms of the probabilities, so that every entry is accurate even if the chain nearly falls apart.
        Larger chains are solved by power steps. Their result counts only if the chain is seen to forget its
        start; otherwise elimination is used for up to 4096 states (8 N^2 bytes), and beyond that, in O(N)
        memory, an elimination of the parts between which the chain hardly moves, or Arnoldi's method.

        ``tol`` is the L1 error that the law may have (default: 1e4 eps). When the estimate of the error
        is larger, ``on_fail`` says what happens: "warn" (a :class:`qkcore.ConvergenceWarning` with the
        estimate), "raise" or "ignore".

        Raises :class:`qkcore.ReducibleChainError` when the law is not unique. For a batch the result is an
        array of laws (..., N).

        >>> import numpy as np, qkcore as qk
        >>> A = qk.softmax(qk.scores.dense(np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))))
        >>> A.stationary()
        array([0.33333333, 0.66666667])
        """
        if self._many:
            options: Any = {"tol": tol, "max_iter": max_iter, "on_fail": on_fail}
            return self._each(lambda P, _: P.stationary(**options, n_threads=n_threads))
        P = self._chain()
        law = _dynamics.law_of(P, tol, _checks.integer("max_iter", max_iter), on_fail, n_threads)
        return self._given(_dynamics.rounded(law.log_law, P.dtype))

    def currents(self, rho: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The array :math:`J_{ij} = \\rho_i P_{ij} - \\rho_j P_{ji}` (DAC-8, eq 18), antisymmetric.

        This forms an N x N array; :meth:`current_norms` does not.
        """
        if self._many:
            return self._each(lambda P, r: P.currents(r, n_threads=n_threads), rho)
        P = self._chain()
        flow = _dynamics.law("rho", rho, P)[:, None] * P.to_numpy(n_threads=n_threads)
        return self._given(flow - flow.T)

    def current_norms(
        self, rho: npt.ArrayLike | None = None, *, n_threads: int | None = None
    ) -> CurrentNorms:
        """Norms of all currents in O(N) memory, at ``rho`` or at the stationary law (DAC-8).

        For a batch the result is a :class:`qkcore.Batch`, whose fields are arrays.
        """
        if self._many:
            return self._each(lambda P, r: P.current_norms(r, n_threads=n_threads), rho)
        P = self._chain()
        _dynamics.refuse_empty_rows(P)
        if rho is not None:
            return P._current_norms(_dynamics.law("rho", rho, P), n_threads)
        law = _dynamics.law_of(P, None, _dynamics.MAX_ITER, "warn", n_threads)
        return _dynamics.norms_at(P, law.log_law, n_threads)

    def entropy_production(
        self, rho: npt.ArrayLike | None = None, *, n_threads: int | None = None
    ) -> float:
        """:math:`\\tfrac12\\sum_{ij} J_{ij}\\log(\\rho_iP_{ij}/\\rho_jP_{ji})`, nats per step (DAC-8).

        It is taken at ``rho``, or at the stationary law. In equilibrium it is 0; if the chain can take some
        edge in one direction only, it is infinite.
        """
        return self.current_norms(rho, n_threads=n_threads).entropy_production

    def regime(
        self,
        rho: npt.ArrayLike | None = None,
        *,
        tol: float | None = None,
        n_threads: int | None = None,
    ) -> Regime:
        """The regime EQ, NESS or NE (DAC-8, 4.0.1) at ``rho``, or at the stationary law.

        For a batch the result is a :class:`qkcore.Batch`, and ``A.regime().regime`` an array of names.
        ``rho`` is then one law (N,) for all chains, or one law for each.

        A law counts as stationary if the L1 distance of rho P from rho is at most ``tol``, and currents count
        as zero up to ``tol`` times the largest flow; the report has both figures. The default is 1000 eps,
        or, for operators of a bridge or of Sinkhorn, ten times the error that the solve left in the
        marginals.

        If the chain ends in a single state (causal attention ends in the first), its stationary law is that
        state, where no current can flow. The regime is then "EQ", which says nothing about the rest of the
        chain; ``absorbing`` and ``recurrent`` of the report show it. Pass ``rho``, e.g. a uniform law, to
        look at the chain elsewhere.

        >>> import numpy as np, qkcore as qk
        >>> turn = np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
        >>> A = qk.softmax(qk.scores.dense(np.log(turn)))
        >>> A.regime().regime
        'NESS'
        """
        if self._many:
            return self._each(lambda P, r: P.regime(r, tol=tol, n_threads=n_threads), rho)
        return _dynamics.regime(self._chain(), rho, tol, n_threads)

    def spectral_gap(self, *, n_threads: int | None = None) -> float:
        """:math:`1 - |\\lambda_2|`, the rate at which the chain forgets its start; 0 if it never does."""
        if self._many:
            return self._each(lambda P, _: P.spectral_gap(n_threads=n_threads))
        return _dynamics.spectral_gap(self._chain(), n_threads)

    def leads_to(self, state: int, *, n_threads: int | None = None) -> npt.NDArray[np.bool_]:
        """True for the states from which the chain can reach ``state``."""
        if self._many:
            return self._each(lambda P, _: P.leads_to(state, n_threads=n_threads))
        P = self._chain()
        target = _checks.integer("state", state)
        if not 0 <= target < P.shape[0]:
            raise ValueError(f"state: wanted 0 to {P.shape[0] - 1}, got {state}")
        return _dynamics.leads_to(P, target, n_threads)

    # ---- overridden by operators that know more ----------------------------------------------

    @property
    def _many(self) -> bool:
        """Whether this is a batch of chains."""
        return len(self.shape) > 2

    def _each(self, call: Callable[[Markov, Any], R], rho: Any = None) -> R:
        """``call(chain, its law)`` for every chain of a batch; ``rho`` may be one law for all of them.

        The result has the fields of the result of one chain, with the axes of the batch.
        """
        out: R = each(self.shape[:-2], lambda k: call(self[k], self._law_of(rho, k)))
        return out

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def _law_of(self, rho: Any, index: tuple[int, ...]) -> Any:
        if rho is None:
            return None
        array = _checks.converted("rho", rho, self.dtype, "the operator")
        _checks.into_batch("rho", array.shape, array.shape[:-1], self.shape[:-2])
        return np.broadcast_to(array, (*self.shape[:-2], array.shape[-1]))[index]

    def _chain(self) -> Markov:
        """The row-stochastic form of one square chain, which takes NumPy vectors."""
        return _dynamics.square(self)._with_host_vectors()

    def _with_host_vectors(self) -> Markov:
        """The same operator for NumPy vectors, also if its own arrays are on a device."""
        return self

    def _given(self, array: Real) -> Real:
        """A NumPy array, converted to an array of the caller's library."""
        return array

    def _known_stationary(self) -> Real | None:
        """The stationary law if a formula gives it, otherwise None."""
        return None

    def _steps(self) -> tuple[Any, ...]:
        """The softmax operators whose product this operator is, in the order of the steps."""
        return (self,)

    def _in_float64(self) -> Markov:
        """The same operator from data that are converted to float64."""
        raise NotImplementedError

    @property
    def _stochastic_error(self) -> float:
        """The largest relative error of a row or column sum, which a Sinkhorn solve has left."""
        return 0.0

    @property
    def _marginal_error(self) -> float:
        """The L1 error of all sums together, as a share of the mass."""
        return self._stochastic_error

    def _current_norms(self, rho: Real, n_threads: int | None) -> CurrentNorms:
        """From rows that are computed as products with unit vectors, a block at a time."""
        n = self.shape[0]
        found = []
        with np.errstate(divide="ignore"):
            log_rho = np.log(rho.astype(np.float64))
        for first in range(0, n, _BLOCK):
            unit = np.zeros((min(_BLOCK, n - first), n), self.dtype)
            unit[np.arange(len(unit)), first + np.arange(len(unit))] = 1
            out = self.apply_left(unit, n_threads=n_threads)
            into = self.apply(unit.T, n_threads=n_threads).T
            forth, back = rho[first : first + len(unit), None] * out, rho * into
            diff = (forth - back).astype(np.float64)
            # The logarithms of the factors are added, because a product that underflows to 0 would look like
            # an edge that does not exist.
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = (log_rho[first : first + len(unit), None] + np.log(out)) - (
                    log_rho + np.log(into)
                )
                tilt = np.where(diff == 0, 0.0, diff * ratio)
            where = np.argmax(np.abs(diff), axis=1)
            found.append(
                (
                    np.abs(diff).sum(axis=1),
                    (diff**2).sum(axis=1),
                    tilt.sum(axis=1),
                    diff[np.arange(len(unit)), where],
                    forth.max(axis=1),
                    where,
                )
            )
        return _dynamics.gather_norms(tuple(map(np.concatenate, zip(*found, strict=True))))


class Composition(Markov):
    """A product of stochastic operators, applied one after the other: ``A @ B``, ``A ** t``.

    ``(A @ B) @ V`` is computed as ``A @ (B @ V)``. Only :meth:`to_numpy` forms the product as an array.
    """

    __slots__ = ("_dtype", "_shape", "axis", "factors")

    def __init__(
        self,
        factors: tuple[Markov, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        axis: int,
    ) -> None:
        self.factors = factors
        self._shape = shape
        self._dtype = dtype
        self.axis = axis

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M) of the product."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the common dtype of all factors."""
        return self._dtype

    @property
    def T(self) -> Composition:
        """The transposed product: the transposed factors in reverse order."""
        shape = (*self._shape[:-2], self._shape[-1], self._shape[-2])
        reverse = tuple(factor.T for factor in reversed(self.factors))
        return Composition(reverse, shape, self._dtype, 1 - self.axis)

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """True for rows (columns) of weight 0."""
        flags = (
            self.apply(np.ones(self._shape[-1], self._dtype)) == 0
            if self.axis == 1
            else (self.apply_left(np.ones(self._shape[-2], self._dtype)) == 0)
        )
        return np.asarray(flags)

    @property
    def bistochastic(self) -> bool:
        """Whether every factor is bistochastic: products of such operators are too (DAC B.5)."""
        return all(factor.bistochastic for factor in self.factors)

    def _steps(self) -> tuple[Any, ...]:
        return tuple(step for factor in self.factors for step in factor._steps())

    def __getitem__(self, index: Any) -> Composition:
        """Chains of a batch, by integers and slices for its leading axes."""
        factors = tuple([factor[index] for factor in self.factors])
        if not factors:
            batch = np.broadcast_to(np.int8(0), self._shape[:-2])[index].shape
            return Composition((), (*batch, *self._shape[-2:]), self._dtype, self.axis)
        return Composition(factors, factors[0].shape, self._dtype, self.axis)

    def _with_host_vectors(self) -> Composition:
        here = {id(factor): factor._with_host_vectors() for factor in self.factors}
        factors = tuple(here[id(factor)] for factor in self.factors)
        return Composition(factors, self._shape, self._dtype, self.axis)

    def _given(self, array: Real) -> Real:
        return self.factors[0]._given(array) if self.factors else array

    def _in_float64(self) -> Composition:
        wide = {id(factor): factor._in_float64() for factor in self.factors}
        factors = tuple(wide[id(factor)] for factor in self.factors)
        return Composition(factors, self._shape, np.dtype(np.float64), self.axis)

    @property
    def _stochastic_error(self) -> float:
        return sum(factor._stochastic_error for factor in self.factors)

    @property
    def _marginal_error(self) -> float:
        return sum(factor._marginal_error for factor in self.factors)

    def _current_norms(self, rho: Real, n_threads: int | None) -> CurrentNorms:
        """Computed in float64, where products of small probabilities do not underflow."""
        if self.dtype == np.float64:
            return super()._current_norms(rho, n_threads)
        return self._in_float64()._current_norms(rho.astype(np.float64), n_threads)

    def _applied(self, name: str, V: Any, n_threads: int | None = None) -> Any:
        """The product with V from the right: the factors act from the last to the first."""
        if not self.factors:
            return _checks.real_array(name, V).copy()
        out = self.factors[-1]._applied(name, V, n_threads)
        for factor in reversed(self.factors[:-1]):
            out = factor.apply(out, n_threads=n_threads)
        return out

    def _applied_left(self, name: str, U: Any, n_threads: int | None = None) -> Any:
        """The product with U from the left: the factors act from the first to the last."""
        if not self.factors:
            return _checks.real_array(name, U).copy()
        out = self.factors[0]._applied_left(name, U, n_threads)
        for factor in self.factors[1:]:
            out = factor.apply_left(out, n_threads=n_threads)
        return out

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The product as an array."""
        if not self.factors:
            return np.broadcast_to(np.eye(self._shape[-1], dtype=self._dtype), self._shape).copy()
        out = self.factors[-1].to_numpy(n_threads=n_threads)
        for factor in reversed(self.factors[:-1]):
            out = factor.apply(out, n_threads=n_threads)
        return out

    def __repr__(self) -> str:
        kind = "bi" if self.bistochastic else ("row-" if self.axis == 1 else "column-")
        n = len(self.factors)
        return f"Composition({n} steps, shape={self.shape}, dtype={self.dtype}, {kind}stochastic)"


def _compose(A: Markov, B: Markov) -> Composition:
    if A.dtype != B.dtype:
        raise TypeError(
            f"A @ B: wanted operators of one dtype, got {A.dtype} and {B.dtype}; "
            "build one of them from converted data"
        )
    if A.shape[:-2] != B.shape[:-2] or A.shape[-1] != B.shape[-2]:
        raise ValueError(
            f"A @ B: wanted equal batch axes and as many columns of A as rows of B, got shapes "
            f"{A.shape} and {B.shape}"
        )
    axis = A.axis
    if A.axis != B.axis:
        if not (A.bistochastic or B.bistochastic):
            raise ValueError(
                "A @ B: wanted both row-stochastic or both column-stochastic, got one of each; "
                "their product is not stochastic: transpose one, or multiply arrays"
            )
        axis = B.axis if A.bistochastic else A.axis
    left = A.factors if isinstance(A, Composition) else (A,)
    right = B.factors if isinstance(B, Composition) else (B,)
    return Composition(left + right, (*A.shape[:-1], B.shape[-1]), A.dtype, axis)
