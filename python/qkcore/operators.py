"""Operators made from scores: normalised ones and plain kernels (DAC-2, DAC-3, DAC-4, DAC-8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _checks, _device, _dynamics
from ._backend import Backend, Normalizer
from ._bridge_check import widened
from ._dynamics import CurrentNorms
from ._host import WEIGHTS
from ._lazy_scores import Real, Scores
from ._linear import LinearMap
from ._markov import Markov
from ._native import cpu
from ._reading import LargestWeights, largest_weights, log_visible

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KernelOperator", "MarkovOperator", "kernel", "softmax"]


class _Operator(LinearMap):
    """A matrix w(s_ij) that is applied without being formed."""

    __slots__ = ("_scores",)

    _scores: Scores

    @property
    def scores(self) -> Scores:
        """The scores from which the operator is made."""
        return self._scores

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return self._scores.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of the data."""
        return self._scores.dtype

    @property
    def device(self) -> str:
        """Where the arrays are: "cpu", or e.g. "cuda:0"."""
        return self._scores.device

    def apply(
        self,
        V: npt.ArrayLike,
        *,
        n_threads: int | None = None,
        out: Any = None,
        stream: Any = None,
    ) -> Real:
        """The product ``A @ V`` with V of shape (..., M, k) or (..., M), with options.

        ``n_threads`` is how many threads compute. The result is written to ``out`` if it is given. ``stream``
        is the stream of a device on which to compute (an integer handle, or a stream object of CuPy, PyTorch
        or CUDA Python); by default the current stream of the caller's library.
        """
        return self._applied("V", V, n_threads, out, stream)

    def _applied(
        self,
        name: str,
        V: Any,
        n_threads: int | None = None,
        out: Any = None,
        stream: Any = None,
    ) -> Real:
        s, b = self._scores, self._scores.backend
        values, vector = right_hand_side(name, V, s, s.n_cols, at=-2)
        at = b.at(n_threads, stream)
        if out is None and b.host_arrays:
            here: Real = self._product(values, None, at)
            return here[..., 0] if vector else here
        core = (s.n_rows,) if vector else (s.n_rows, values.shape[-1])
        target = b.output("out", out, (*s.batch, *core), s.dtype)
        product = self._product(values, b.writable(target, vector, at), at)
        found: Real = b.give(b.squeeze(product) if vector else product, target, at)
        return found

    def apply_left(
        self, U: npt.ArrayLike, *, n_threads: int | None = None, stream: Any = None
    ) -> Real:
        """The product ``U @ A`` from the left with U of shape (..., N) or (..., k, N)."""
        return self._applied_left("U", U, n_threads, stream)

    def _applied_left(
        self, name: str, U: Any, n_threads: int | None = None, stream: Any = None
    ) -> Real:
        s, b = self._scores, self._scores.backend
        values, vector = right_hand_side(name, U, s, s.n_rows, at=-1)
        at = b.at(n_threads, stream)
        product = self.T._product(values, None, at)
        found: Real = (
            b.give(b.squeeze(product), None, at) if vector else b.turned(b.give(product, None, at))
        )
        return found

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The operator as a NumPy array (..., N, M); from a device it is copied."""
        b = self._scores.backend
        out: Real = b.to_host(self._materialized(None, b.at(n_threads)))
        return out

    def to_device(self, *, out: Any = None, stream: Any = None) -> Any:
        """The operator as an array (..., N, M) on the device that computes it."""
        s, b = self._scores, self._scores.backend
        at = b.at(None, stream)
        target = b.output("out", out, s.shape, s.dtype)
        return b.give(self._materialized(target, at), target, at)

    @property
    def T(self) -> _Operator:
        raise NotImplementedError

    def __bool__(self) -> bool:  # True even if __len__, the number of problems, is 0
        return True

    def __len__(self) -> int:
        """The length of the first batch axis."""
        return len(self._scores)

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> Self:
        """Operators of a batch, selected by integers and slices for its leading axes, e.g. ``A[0, 2]``."""
        raise NotImplementedError

    def _product(self, values: Any, target: Any, at: int) -> Any:
        raise NotImplementedError

    def _materialized(self, target: Any, at: int) -> Any:
        raise NotImplementedError

    def _place(self) -> str:
        return "" if self.device == "cpu" else f", device={self.device!r}"


class MarkovOperator(_Operator, Markov):
    """A row- or column-stochastic matrix that is applied without being formed.

    With ``axis`` 1 ("+") each row sums to 1, with ``axis`` 0 ("−") each column. :func:`softmax` makes such
    operators, and :func:`qkcore.sinkhorn` makes operators whose rows and columns both sum to 1. The weights
    of a row (column) whose entries are all masked are 0; ``empty`` marks such rows.
    """

    __slots__ = (
        "_log_weights",
        "_normalizer_cell",
        "_over_peaks",
        "_rows_first",
        "_solve_errors",
        "_transposed",
        "axis",
        "bridge",
    )

    def __init__(self, scores: Scores, axis: int, *, bridge: Any = None) -> None:
        self._scores = scores
        self.axis = axis
        # The result of Sinkhorn's problem, or None. With it the scores already are log weights, which need no
        # normalisation.
        self.bridge = bridge
        # The scores whose rows are normalised: ``scores``, or their transpose once it has been made.
        self._rows_first = scores if axis == 1 else None
        # The normaliser is computed once, for the operator and its transpose together. Both share this list.
        # (References from one operator to the other and back would be a cycle for the garbage collector.)
        self._normalizer_cell: list[Normalizer] = []
        self._log_weights: Scores | None = None
        self._over_peaks: tuple[Scores, Any] | None = None
        self._transposed: MarkovOperator | None = None
        # If this is the operator of a bridge, the errors that the solve left in its marginals: the largest
        # relative error of one entry, and the L1 error.
        self._solve_errors = (0.0, 0.0)

    @property
    def T(self) -> MarkovOperator:
        """The transposed operator: column-stochastic if this one is row-stochastic."""
        if self._transposed is None:
            self._transposed = MarkovOperator(self._scores.T, 1 - self.axis, bridge=self.bridge)
            self._transposed._normalizer_cell = self._normalizer_cell
            if self._rows_first is not None:
                self._transposed._rows_first = self._rows_first
            self._transposed._solve_errors = self._solve_errors
        return self._transposed

    def __getitem__(self, index: Any) -> Self:
        """Operators of a batch, selected by integers and slices for its leading axes, e.g. ``A[0, 2]``."""
        bridge = self.bridge
        if bridge is not None and np.ndim(bridge.converged) and _one(index, self.shape[:-2]):
            bridge = bridge[index]
        return type(self)(self._scores[index], self.axis, bridge=bridge)

    @property
    def bistochastic(self) -> bool:
        """Whether both rows and columns sum to 1 (up to the tolerance of ``bridge``)."""
        return self.bridge is not None

    @property
    def log_weights(self) -> Scores:
        """The logarithm of the operator as lazy scores: scores minus the normaliser, -inf where masked."""
        return self._shifted(self._scores.backend.at(None))

    @property
    def log_normalizer(self) -> Real:
        """Log-sum-exp of each row (axis 1) or column (axis 0). It is computed once and is read-only."""
        b = self._scores.backend
        out: Real = b.give(self._normalizer(b.at(None)).lse)
        return out

    def _normalizer(self, at: int) -> Normalizer:
        """The normaliser as the backend keeps it. The first call computes it, with ``at`` threads or on the
        stream ``at``."""
        if not self._normalizer_cell:
            self._normalizer_cell.append(self._scores.backend.normalizer(self._by_rows(), at))
        return self._normalizer_cell[0]

    def _by_rows(self) -> Scores:
        """The scores, or their transpose, such that rows are normalised."""
        if self._rows_first is None:
            self._rows_first = self._scores.T
        return self._rows_first

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """True for rows (columns) whose entries are all masked, and so have weight 0; a NumPy array."""
        b = self._scores.backend
        out: npt.NDArray[np.bool_] = np.isneginf(b.to_host(self._normalizer(b.at(None)).lse))
        return out

    def _shifted(self, at: int) -> Scores:
        """The log weights: the scores minus the normaliser. Their exponential is the operator."""
        if self.bridge is not None:
            return self._scores
        if self._log_weights is None:
            self._log_weights = self._scores.normalized(self._normalizer(at).shifts(), self.axis)
        return self._log_weights

    def _product(self, values: Any, target: Any, at: int) -> Any:
        b = self._scores.backend
        if self.axis == 1 and self.bridge is None:  # the same pass computes the normaliser too
            keep = self._normalizer_cell
            return b.product(self._scores, "softmax", values, target, at, keep)
        s, values = self._exponents(values, at)
        return b.product(s, "exp", values, target, at)

    def _exponents(self, values: Any, at: int) -> tuple[Scores, Any]:
        """Scores and right-hand sides such that exp(scores) times the right-hand sides is the product."""
        if self.bridge is not None or values.shape[:-2] != self._scores.batch:
            return self._shifted(at), values
        if self._over_peaks is None:
            divided = self._normalizer(at).divided()
            if divided is None:
                return self._shifted(at), values
            minus_peaks, factors = divided
            self._over_peaks = self._scores.normalized((minus_peaks,), self.axis), factors
        s, factors = self._over_peaks
        return s, values * factors

    def _materialized(self, target: Any, at: int) -> Any:
        b = self._scores.backend
        if self.axis == 1 and self.bridge is None:  # in one pass
            return b.materialize(self._scores, "softmax", target, at)
        return b.materialize(self._shifted(at), "exp", target, at)

    def entropy(self, *, n_threads: int | None = None, stream: Any = None) -> Real:
        """:math:`-\\sum_j p_{ij}\\log p_{ij}` of each row (axis 1) or column (axis 0)."""
        return self._moment("entropy", n_threads, stream)

    def normalized_entropy(self, *, n_threads: int | None = None) -> Real:
        """The entropy of each row (axis 1) or column (axis 0), as a share of the largest possible: 0 to 1.

        The largest possible entropy is the logarithm of the number of entries that are not masked. If there
        are fewer than two of them, the result is 0.

        >>> import numpy as np, qkcore as qk
        >>> qk.softmax(qk.scores.dense(np.zeros((3, 3))).causal()).normalized_entropy()
        array([0., 1., 1.])
        """
        entropy = self._host_vector(self.entropy(n_threads=n_threads))
        largest = np.asarray(log_visible(self._by_rows(), n_threads), np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(largest > 0, np.clip(entropy / largest, 0, 1), 0.0)
        return self._given(share.astype(self.dtype))

    def column_mass(
        self, weights: npt.ArrayLike | None = None, *, n_threads: int | None = None
    ) -> Real:
        """The mass that each column receives, (..., M): ``weights @ A``, with equal weights by default.

        Columns that receive much more than 1 / M are attention sinks, see :meth:`sinks`.
        """
        if weights is None:
            n, b = self.shape[-2], self._scores.backend
            weights = b.give(b.from_host(np.full(n, 1 / n, self.dtype)))
        return self._applied_left("weights", weights, n_threads)

    def sinks(self, factor: float = 10.0, *, n_threads: int | None = None) -> npt.NDArray[np.bool_]:
        """True for columns that receive over ``factor`` times the average mass; a NumPy array (..., M)."""
        share = _checks.positive("factor", factor) / self.shape[-1]
        mass = self._host_vector(self.column_mass(n_threads=n_threads))
        flags: npt.NDArray[np.bool_] = mass > share * mass.sum(axis=-1, keepdims=True)
        return flags

    def top_k(self, k: int, *, n_threads: int | None = None) -> LargestWeights:
        """The k largest weights of every row and their columns, as NumPy arrays, in O(N k) memory.

        >>> import numpy as np, qkcore as qk
        >>> A = qk.softmax(qk.scores.dense(np.log(np.array([[0.2, 0.5, 0.3]]))))
        >>> A.top_k(2).columns
        array([[1, 2]])
        """
        return largest_weights(self, _checks.integer("k", k), n_threads)

    def _host_vector(self, array: Any) -> Any:
        return self._scores.backend.here("array", array)

    def expected_score(self, *, n_threads: int | None = None, stream: Any = None) -> Real:
        """:math:`\\sum_j p_{ij} s_{ij}` of each row (axis 1) or column (axis 0); 0 for an empty one."""
        return self._moment("expected score", n_threads, stream)

    def _moment(self, which: str, n_threads: int | None, stream: Any) -> Real:
        b = self._scores.backend
        at = b.at(n_threads, stream)
        out: Real = b.give(b.moment(which, self._by_rows(), self._by_rows_shifted, at), None, at)
        return out

    def _by_rows_shifted(self, at: int) -> Scores:
        """The log weights, or their transpose, such that rows are normalised."""
        log_weights = self._shifted(at)
        return log_weights if self.axis == 1 else log_weights.T

    def doob(self, h: npt.ArrayLike, *, n_threads: int | None = None) -> MarkovOperator:
        """The Doob transform :math:`P_{ij} h_j / (P h)_i` for h >= 0 (DAC-7, eqs 22, 34-35; C.4).

        It is a softmax with a bias of the columns (eq 33). For a column-stochastic operator rows and columns
        exchange their roles.

        >>> import numpy as np, qkcore as qk
        >>> A = qk.softmax(qk.scores.dense(np.zeros((2, 2))))
        >>> A.doob(np.array([1.0, 3.0])).to_numpy()
        array([[0.25, 0.75],
               [0.25, 0.75]])
        """
        P = self if self.axis == 1 else self.T
        b = self._scores.backend
        ((given, _),) = b.vectors(P.dtype, P.scores.batch, ("h", h, P.shape[-1]))
        weights = b.to_host(given)
        _checks.finite("h", weights)
        _checks.none_negative("h", weights, "weights >= 0")
        log_h = b.give(b.from_host(_log_relative(weights)))
        out = MarkovOperator(P._shifted(b.at(n_threads)).shift(columns=log_h), 1)
        if out.empty.any() and not P.empty.all():
            row = int(np.argmax(out.empty.reshape(-1)))
            raise ValueError(
                f"h: wanted (P h)_i > 0 for every i, got 0 for row {row}; "
                "h must be positive somewhere where row i has weight"
            )
        return out if self.axis == 1 else out.T

    def _known_stationary(self) -> Real | None:
        if self.bistochastic:
            return np.full(self.shape[0], 1 / self.shape[0], self.dtype)
        if not self._scores.symmetric:
            return None
        weight = np.exp(self._log_row_sums())
        law: Real = (weight / weight.sum()).astype(self.dtype)
        return law

    def _log_row_sums(self) -> npt.NDArray[np.float64]:
        """Logarithms of the sums of exp(s) over rows, minus the logarithm of the largest sum.

        The maxima are subtracted from each other before the small parts are added. For large scores a
        log-sum-exp that is rounded as one number would have too few digits.
        """
        found, b = self._normalizer(self._scores.backend.at(None)), self._scores.backend
        lse, *parts = (b.to_host(x).astype(np.float64) for x in (found.lse, *found.shifts()))
        peak = np.where(np.isneginf(lse), -np.inf, -parts[0])
        sums = (peak - peak.max()) - sum(parts[1:])
        out: npt.NDArray[np.float64] = sums - sums.max()
        return out

    def _of(self, scores: Scores) -> MarkovOperator:
        """The same operator, made from another form of its scores."""
        out = MarkovOperator(scores, self.axis, bridge=self.bridge)
        out._solve_errors = self._solve_errors
        return out

    def _law_of(self, rho: Any, index: tuple[int, ...]) -> Any:
        if not _device.on_device(rho):
            return super()._law_of(rho, index)
        return self._scores.backend.part(rho, index)

    def _in_float64(self) -> MarkovOperator:
        return self._of(widened(self._scores))

    def _with_host_vectors(self) -> MarkovOperator:
        here = self._scores.backend.visited(self._scores)
        return self if here is self._scores else self._of(here)

    def _given(self, array: Real) -> Real:
        b = self._scores.backend
        out: Real = b.give(b.from_host(array))
        return out

    @property
    def _stochastic_error(self) -> float:
        return self._solve_errors[0] if self.bridge is None else float(np.max(self.bridge.worst))

    @property
    def _marginal_error(self) -> float:
        return self._solve_errors[1] if self.bridge is None else float(np.max(self.bridge.error))

    def _current_norms(self, rho: Real, n_threads: int | None) -> CurrentNorms:
        threads = self._scores.backend.at(n_threads)
        with np.errstate(divide="ignore"):
            flow = self._shifted(threads).shift(rows=np.log(rho))
        return _dynamics.gather_norms(cpu.compare_rows(flow._spec, flow.T._spec, threads))

    def __repr__(self) -> str:
        side = "row" if self.axis == 1 else "column"
        kind = "bistochastic" if self.bistochastic else f"{side}-stochastic"
        text = f"MarkovOperator(shape={self.shape}, dtype={self.dtype}{self._place()}, {kind}"
        if self.bridge is None and self._normalizer_cell and (n := int(self.empty.sum())):
            text += f" except {n} empty {side}{'s' if n > 1 else ''} (fully masked)"
        return text + ")"


class KernelOperator(_Operator):
    """K_ij = w(s_ij), not normalised; masked entries are 0. Made by :func:`kernel`."""

    __slots__ = ("weight",)

    def __init__(self, scores: Scores, weight: str) -> None:
        self._scores = scores
        self.weight = weight

    @property
    def T(self) -> KernelOperator:
        """The transposed operator."""
        return KernelOperator(self._scores.T, self.weight)

    def __getitem__(self, index: Any) -> Self:
        """Kernels of a batch, selected by integers and slices for its leading axes."""
        return type(self)(self._scores[index], self.weight)

    def _with_host_vectors(self) -> KernelOperator:
        here = self._scores.backend.visited(self._scores)
        return self if here is self._scores else KernelOperator(here, self.weight)

    def _product(self, values: Any, target: Any, at: int) -> Any:
        return self._scores.backend.product(self._scores, self.weight, values, target, at)

    def _materialized(self, target: Any, at: int) -> Any:
        return self._scores.backend.materialize(self._scores, self.weight, target, at)

    def __repr__(self) -> str:
        return (
            f"KernelOperator(shape={self.shape}, dtype={self.dtype}{self._place()}, "
            f"weight={self.weight!r})"
        )


def softmax(s: Scores, axis: int = 1) -> MarkovOperator:
    """The softmax of scores along rows (axis=1, "+") or columns (axis=0, "−") (DAC-3; DAC-4, eqs 7-8).

    :math:`A^+_{ij} = e^{s_{ij}} / \\sum_k e^{s_{ik}}`. ``A @ V`` is attention. It makes one pass over the
    scores with an online softmax, in O(N + M) memory if the scores come from points. ``mu @ A`` transports a
    measure.

    >>> import numpy as np, qkcore as qk
    >>> Q = K = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> A = qk.softmax(qk.scores.dot(Q, K))
    >>> A @ np.array([0.0, 1.0])
    array([0.5       , 0.73105858])
    >>> np.array([0.5, 0.5]) @ A
    array([0.38447071, 0.61552929])
    """
    return MarkovOperator(scores_argument(s), _checks.axis(axis))


def kernel(s: Scores, weight: str = "exp") -> KernelOperator:
    """The kernel w(s_ij) for w = "exp", "linear", "relu" or "sigmoid" (DAC-2; TPDE 2.1-2.7).

    >>> import numpy as np, qkcore as qk
    >>> K = qk.kernel(qk.scores.dense(np.array([[-1.0, 2.0]])), "relu")
    >>> K @ np.array([10.0, 100.0])
    array([200.])
    """
    names = [name for name in WEIGHTS if name != "softmax"]
    _checks.one_of("weight", weight, names, "for a normalised operator use qk.softmax")
    return KernelOperator(scores_argument(s), weight)


def _one(index: Any, batch: tuple[int, ...]) -> bool:
    """Whether an index selects a single problem."""
    parts = index if isinstance(index, tuple) else (index,)
    return len(parts) == len(batch) and not any(isinstance(part, slice) for part in parts)


def scores_argument(s: object, name: str = "s") -> Scores:
    """Returns ``s`` if it is scores, and otherwise raises an error that names the argument."""
    hint = "wrap an array with qk.scores.dense(array) or build scores from points"
    return _checks.instance(name, s, Scores, "scores", hint)


# log 2 in two parts: the first has 40 bits, so that its product with any exponent of a double is exact.
_LN2_HIGH = float.fromhex("0x1.62e42fefa2p-1")
_LN2_LOW = float.fromhex("0x1.9ef35793c7673p-41")


def _log_relative(weights: Real) -> Real:
    """log(w / 2^k) along the last axis, rounded once, where 2^k is the power of two just above max w.

    So a large or small common factor of w costs no digits, while it would cost digits in log w.
    """
    fraction, exponent = np.frexp(weights)
    power = exponent - np.max(np.where(weights > 0, exponent, -(2**20)), axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        found: Real = (np.log(fraction) + power * _LN2_LOW) + power * _LN2_HIGH
    return found.astype(weights.dtype)


def right_hand_side(
    name: str, value: npt.ArrayLike, s: Any, length: int, *, at: int, like: str = "the scores"
) -> tuple[Any, bool]:
    """Right-hand sides as (..., length, k), and whether a vector was given instead of a matrix."""
    b: Backend = s.backend
    given, checked = b.values(name, value, s.dtype, like)
    n_batch = len(s.batch)
    # A vector is either the same for all problems of the batch, or there is one for each.
    vector = given.ndim in (1, n_batch + 1)
    if not vector and given.ndim != n_batch + 2:
        wanted = f"(..., {length})" if n_batch else f"({length},)"
        wanted_matrix = f"(..., {length}, k)" if at == -2 else f"(..., k, {length})"
        raise ValueError(
            f"{name}: wanted shape {wanted} or {wanted_matrix} for an operator of shape {s.shape}, "
            f"got {given.shape}; give it the operator's batch axes (length 1 broadcasts)"
        )
    matrix = b.column(given) if vector else b.swap(given) if at == -1 else given
    if matrix.shape[-2] != length:
        side = "columns" if at == -2 else "rows"
        raise ValueError(
            f"{name}: wanted length {length} along the operator's {side} (operator shape "
            f"{s.shape}), got {given.shape}; "
            + ("did you mean U @ A?" if at == -2 else "did you mean A @ V?")
        )
    if n_batch:
        _checks.into_batch(name, given.shape, matrix.shape[:-2], s.batch)
    if not checked:
        b.check_finite(name, given)
    return matrix, vector
