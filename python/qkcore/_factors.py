"""Matrices known by their low-rank factors, and entrywise products of them (DAC-10)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import Backend, backend_of
from ._batch import each
from ._config import resolve_threads
from ._host import HOST
from ._lazy_scores import Real, Scores
from ._linear import LinearMap
from ._native import cpu
from .operators import KernelOperator, MarkovOperator, kernel, right_hand_side

__all__ = ["Factored", "LowRank", "NegativeEntries", "ProductOfFactors"]

# The largest product of ranks that is accepted: the work per point is proportional to it.
MOST_COMBINATIONS = 1 << 16
# The number of rows that are computed at a time when all entries are visited by blocks of rows.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class NegativeEntries:
    """The entries of a factored kernel (or coupling) that are below 0 by more than rounding."""

    count: int
    """their number"""
    fraction: float
    """their share of all entries"""
    smallest: float
    """the smallest of all entries; it is positive if none is negative"""
    mass: float
    """the sum of the negative entries"""


class Factored(LinearMap):
    """:math:`K_{ij} = \\prod_e \\sum_c L^e_{ic} R^e_{cj}`: applied through its factors, never formed.

    The batch axes of the factors are those of the kernel, and ``K[k]`` is the kernel of problem k. Factors on
    a device are applied there; single entries are computed from a copy of the factors on the host.
    """

    backend: Backend
    # Arrays (..., components, points) with contiguous points: the layout in which the engines read them.
    _left: tuple[Any, ...]
    _right: tuple[Any, ...]

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """The lengths of the batch axes."""
        return np.broadcast_shapes(*(f.shape[:-2] for f in (*self._left, *self._right)))

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M)."""
        return *self.batch, self._left[0].shape[-1], self._right[0].shape[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of the factors."""
        out: np.dtype[Any] = np.dtype(self._left[0].dtype)
        return out

    @property
    def device(self) -> str:
        """Where the factors are: "cpu", or e.g. "cuda:0"."""
        return self.backend.place

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each expert."""
        return tuple(f.shape[-2] for f in self._left)

    @property
    def T(self) -> Factored:
        """The transposed kernel."""
        return self._map(lambda e: e.T)

    def _map(self, change: Callable[[LowRank], LowRank]) -> Factored:
        """The product of the changed experts."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Factored:
        """The kernels of some problems of a batch, by integers and slices for its leading axes."""
        batch = self.batch
        at = _index(index, batch)
        return self._map(lambda e: e._part(at, batch))

    def __len__(self) -> int:
        """The length of the first batch axis."""
        if not self.batch:
            raise TypeError("len: wanted a batch of kernels, got one kernel; see K.shape")
        return self.batch[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Factored]:
        return (self[k] for k in range(len(self)))

    def apply(self, V: Any, *, n_threads: int | None = None, stream: Any = None) -> Any:
        """``K @ V`` for V of shape (..., M) or (..., M, k): O((N + M) r_0 r_1 ... k) work."""
        return self._applied("V", V, n_threads, stream)

    def apply_left(self, U: Any, *, n_threads: int | None = None, stream: Any = None) -> Any:
        """``U @ K`` for U of shape (..., N) or (..., k, N)."""
        return self._applied_left("U", U, n_threads, stream)

    def _applied(self, name: str, V: Any, n_threads: int | None = None, stream: Any = None) -> Any:
        b = self.backend
        at = b.at(n_threads, stream)
        n = self.shape[-1]
        values, vector = right_hand_side(name, V, self, n, at=-2, like="the factors")
        return self._given(self._product(b.swap(values), at), vector, at)

    def _applied_left(
        self, name: str, U: Any, n_threads: int | None = None, stream: Any = None
    ) -> Any:
        b = self.backend
        at = b.at(n_threads, stream)
        n = self.shape[-2]
        values, vector = right_hand_side(name, U, self, n, at=-1, like="the factors")
        found = self.T._product(b.swap(values), at)
        return self._given(found, True, at) if vector else b.give(found, None, at)

    def _given(self, product: Any, vector: bool, at: int) -> Any:
        """A product (..., k, N) in the layout of the caller's right-hand side: a vector, or columns."""
        b = self.backend
        if vector:
            return b.give(b.squeeze(b.swap(product)), None, at)
        return b.turned(b.give(product, None, at))

    def _product(self, z: Any, at: int) -> Any:
        return self.backend.factored_product(self._left, self._right, z, at)

    def _visit(self, x: Real, n_threads: int | None) -> Real:
        """The product with a NumPy vector (..., M), as a NumPy vector."""
        b = self.backend
        out: Real = b.to_host(self._product(b.from_host(x[..., None, :]), b.at(n_threads)))
        return out[..., 0, :]

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The kernel as an array (..., N, M), by BLAS on the host, which has its own threads."""
        self.backend.at(n_threads)
        return self._rows(0, self.shape[-2])

    def _rows(self, start: int, stop: int) -> Real:
        """Rows start to stop as an array."""
        here = self.to_cpu()
        out: Real | None = None
        for left, right in zip(here._left, here._right, strict=True):
            entries = left[..., start:stop].swapaxes(-1, -2) @ right
            out = entries if out is None else out * entries
        assert out is not None
        return out

    def to_cpu(self) -> Factored:
        """The same kernel with NumPy factors: the kernel itself if it has them, else a copy, made once."""
        return self if self.backend.host_arrays else self._copy

    @cached_property
    def _copy(self) -> Factored:
        return self._map(lambda e: e._moved(e.backend.to_host, HOST))

    @cached_property
    def _double(self) -> Factored:
        """The same kernel with factors in double precision; the kernel itself if it has them already."""
        if self.dtype == np.float64:
            return self
        wide = np.dtype(np.float64)
        return self._map(lambda e: e._moved(lambda x: e.backend.converted(x, wide), e.backend))

    def _scaled(self, rows: Real, columns: Real) -> Factored:
        """The kernel rows_i K_ij columns_j in double precision, for NumPy vectors (..., N) and (..., M).

        The vectors are multiplied into the factors of the first expert.
        """
        expert, *others = (e for e in _experts(self._double))

        def times(factor: Any, scale: Real) -> Any:
            b = self.backend
            return b.from_host(b.to_host(factor) * scale[..., None, :])

        first = expert._of(
            times(expert._left[0], rows), times(expert._right[0], columns), expert.backend
        )
        return ProductOfFactors(first, *others) if others else first

    @cached_property
    def nonnegative(self) -> bool:
        """Whether no factor has a negative entry, so that the kernel cannot have one."""
        return all(self.backend.smallest(f) >= 0 for f in (*self._left, *self._right))

    def count_negative(self, *, n_threads: int | None = None) -> NegativeEntries:
        """Counts the negative entries, tile by tile: O(N M r) work, O(N + M) memory, on the host.

        An entry counts when it is below 0 by more than the rounding of its own computation,
        :math:`\\epsilon \\sum_e (r_e + 2) \\prod_e \\|L^e_i\\| \\|R^e_j\\|`. For a batch, the result is a
        :class:`qkcore.Batch`, whose fields are arrays.

        >>> import numpy as np, qkcore as qk
        >>> from qkcore.factors import LowRank
        >>> LowRank(np.array([[1.0], [2.0]]), np.array([[3.0, -1.0]])).count_negative()
        NegativeEntries(count=2, fraction=0.5, smallest=-2.0, mass=-3.0)
        """
        if batch := self.batch:
            out: NegativeEntries = each(
                batch, lambda k: self[k].count_negative(n_threads=n_threads)
            )
            return out
        one = self.dtype.type(1)
        u, v = (np.full(k, one) for k in self.shape)
        return self._negative(u, v, float(np.finfo(self.dtype).eps), self._threads(n_threads))

    def _threads(self, n_threads: int | None) -> int:
        """The number of threads for work on the host."""
        self.backend.at(n_threads)  # a device takes no number of threads
        return resolve_threads(n_threads)

    def _negative(
        self,
        u: Real,
        v: Real,
        eps: float,
        n_threads: int,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> NegativeEntries:
        """The negative entries of u_i K_ij v_j, for u, v >= 0 of the kernel's dtype, in all or some rows."""
        here = self.to_cpu()
        left = here._left if rows is None else tuple(f[:, rows] for f in here._left)
        slack = eps * sum(r + 2 for r in self.ranks)
        row_sizes, col_sizes = _sizes(left), _sizes(here._right)
        count, smallest, mass = cpu.negative_entries(
            left,
            here._right,
            np.ascontiguousarray(u if rows is None else u[rows]),
            np.ascontiguousarray(v),
            row_sizes.astype(self.dtype, copy=False),
            (slack * col_sizes).astype(self.dtype, copy=False),
            n_threads,
        )
        looked_at = row_sizes.size * col_sizes.size
        return NegativeEntries(count, count / looked_at, smallest, mass)

    def relative_error(self, exact: object) -> float:
        """:math:`\\|K - A\\|_F / \\|A\\|_F` (D.1), by blocks of rows: O(M) memory, O(N M r) work.

        ``exact`` is an operator, an array, or scores (for their exponential, e.g. of ``qk.poe``). For a
        batch, the result is an array over it.

        >>> import numpy as np, qkcore as qk
        >>> from qkcore.factors import low_rank
        >>> low_rank(np.diag([4.0, 3.0]), 1).relative_error(np.diag([4.0, 3.0]))
        0.6
        """
        if batch := self.batch:
            got = _checks.array_shape("exact", exact)
            if got != self.shape:
                raise ValueError(f"exact: wanted shape {self.shape} like the factors, got {got}")
            given: Any = np.asarray(exact) if isinstance(exact, (list, tuple)) else exact
            out: float = each(batch, lambda k: self[k].relative_error(given[k]))
            return out
        blocks = _blocks("exact", exact, self.shape)
        off = size = 0.0
        for start, stop, block in blocks:
            off += float(np.square(block - self._rows(start, stop).astype(np.float64)).sum())
            size += float(np.square(block).sum())
        return math.sqrt(off / size) if size > 0 else math.inf if off > 0 else 0.0

    def _place(self) -> str:
        return "" if self.device == "cpu" else f", device={self.device!r}"


# The cached properties of a kernel; a copy with other factors must compute them anew.
_KEPT = ("batch", "nonnegative", "_copy", "_double")


class LowRank(Factored):
    """A matrix left @ right of rank r, for left (..., N, r) and right (..., r, M) (DAC-10, D.1).

    The factors are kept with the points contiguous in memory; arrays in another order are copied once.
    :func:`low_rank` approximates an operator by such a matrix. Factors on a device give a kernel on it.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank
    >>> G = LowRank(np.array([[1.0], [2.0]]), np.array([[3.0, 0.0, 1.0]]))
    >>> G
    LowRank(shape=(2, 3), rank=1, dtype=float64, given)
    >>> G @ np.array([1.0, 1.0, 1.0])
    array([4., 8.])
    """

    def __init__(
        self,
        left: Any,
        right: Any,
        *,
        method: str = "given",
        singular_values: Real | None = None,
        cut_gap: Any = math.nan,
        error: Any = math.nan,
        source: object = None,
    ) -> None:
        b = self.backend = backend_of(left, right)
        l, r = b.factor("left", left), b.factor("right", right)
        _checks.same_dtype("right", r, l.dtype, "left")
        hint = "left is (..., N, r) and right (..., r, M)"
        _checks.shape(
            "right", r.shape[-2:], (l.shape[-1], "M"), why=f"after left of shape {l.shape}", do=hint
        )
        _checks.broadcast("right", l.shape[:-2], r.shape[:-2])
        self._left, self._right = (b.streamed(b.swap(l)),), (b.streamed(r),)
        self.method = method
        """how the factors were found: "given", "dense", "svds", "randomised", "nonnegative", ..."""
        self.singular_values = singular_values
        """the singular values that were kept (..., r), largest first; None if there was no SVD"""
        self.cut_gap = cut_gap
        """1 - s_{r+1} / s_r, the relative gap after the last singular value that was kept; NaN if it is not
        known. If it is near 0, the truncation separates a pair of equal singular values, and the result is
        one of many equally good ones (erratum 11). For a batch, an array."""
        self.error = error
        """relative Frobenius error against the source if the method computes it, else NaN"""
        self.source = source
        """the operator or array that was approximated, or None"""

    def _of(self, left: Any, right: Any, backend: Backend) -> LowRank:
        """A copy with other factors, which must be checked and in the engines' layout already."""
        out = copy.copy(self)
        for name in _KEPT:
            out.__dict__.pop(name, None)
        out._left, out._right, out.backend = (left,), (right,), backend
        return out

    def _moved(self, move: Callable[[Any], Any], backend: Backend) -> LowRank:
        return self._of(move(self._left[0]), move(self._right[0]), backend)

    def _map(self, change: Callable[[LowRank], LowRank]) -> LowRank:
        return change(self)

    def __getitem__(self, index: Any) -> LowRank:
        """The kernels of some problems of a batch, by integers and slices for its leading axes."""
        return self._part(_index(index, self.batch), self.batch)

    def _part(self, index: tuple[Any, ...], batch: tuple[int, ...]) -> LowRank:
        out = self._moved(lambda x: self.backend.indexed(x, index, 2), self.backend)
        own = index[len(batch) - len(self.batch) :]
        for name in ("singular_values", "cut_gap", "error", "source"):
            value = getattr(self, name)
            if np.ndim(value) or len(getattr(value, "shape", ())) > 2:
                found = value[own]
                setattr(out, name, found.item() if np.ndim(found) == 0 else found)
        return out

    @property
    def left(self) -> Any:
        """The left factor, of shape (..., N, r)."""
        return self.backend.turned(self.backend.give(self._left[0]))

    @property
    def right(self) -> Any:
        """The right factor, of shape (..., r, M)."""
        return self.backend.give(self._right[0])

    @property
    def rank(self) -> int:
        """The number r of components."""
        return self.ranks[0]

    @property
    def T(self) -> LowRank:
        """The transposed matrix."""
        out = self._of(self._right[0], self._left[0], self.backend)
        out.source = _turned(self.source)
        return out

    @property
    def cuts_pair(self) -> Any:
        """Whether the truncation separates nearly equal singular values (erratum 11)."""
        return self.cut_gap < PAIR

    def __repr__(self) -> str:
        text = (
            f"LowRank(shape={self.shape}, rank={self.rank}, dtype={self.dtype}{self._place()}, "
            f"{self.method}"
        )
        return text + (", cuts a pair of singular values)" if np.any(self.cuts_pair) else ")")


# Singular values with a smaller relative difference than this count as equal.
PAIR = 1e-3


class ProductOfFactors(Factored):
    """The entrywise product of low-rank matrices (DAC-10), as ``qk.poe`` returns it.

    :math:`(K z)_i = (L^0_i \\otimes L^1_i)\\cdot H` with
    :math:`H = \\sum_j z_j\\, R^0_j \\otimes R^1_j`, an array of :math:`r_0 \\times r_1` numbers: one visit
    of the right factors, one of the left factors, O((N + M) r_0 r_1) work and no N x M array. With more
    than two experts the work is proportional to the product of all ranks; a device takes up to four experts.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank, ProductOfFactors
    >>> G = LowRank(np.array([[1.0], [2.0]]), np.array([[3.0, 0.0, 1.0]]))
    >>> K = ProductOfFactors(G, G)
    >>> K @ np.array([1.0, 1.0, 1.0])
    array([10., 40.])
    >>> K.T @ np.array([1.0, 0.0])
    array([9., 0., 1.])
    """

    experts: tuple[LowRank, ...]

    def __init__(self, *factors: LowRank | ProductOfFactors) -> None:
        _checks.some("experts", len(factors), 1, "low-rank matrix")
        experts = tuple(
            e for f in factors for e in (f.experts if isinstance(f, ProductOfFactors) else (f,))
        )
        for k, expert in enumerate(experts):
            if not isinstance(expert, LowRank):
                raise TypeError(
                    f"experts[{k}]: wanted a LowRank like the others, got {type(expert).__name__}; "
                    "compress it with qk.low_rank(operator, rank), or take the product of exact "
                    "operators only"
                )
            first = experts[0]
            _checks.same_place(f"experts[{k}]", expert.device, first.device, "experts[0]")
            if expert.shape[-2:] != first.shape[-2:] or expert.dtype != first.dtype:
                raise ValueError(
                    f"experts[{k}]: wanted shape {first.shape} and {first.dtype} like "
                    f"experts[0], got {expert.shape} and {expert.dtype}; experts score the same pairs"
                )
            _checks.broadcast(f"experts[{k}]", first.batch, expert.batch)
        most = experts[0].backend.most_experts
        if most is not None and len(experts) > most:
            raise ValueError(
                f"experts: wanted at most {most} on a device, got {len(experts)}; "
                "the CPU takes any number: use to_cpu() of them"
            )
        if math.prod(e.rank for e in experts) > MOST_COMBINATIONS and len(experts) > 1:
            ranks = " x ".join(str(e.rank) for e in experts)
            raise ValueError(
                f"experts: wanted ranks whose product is at most {MOST_COMBINATIONS}, got {ranks}; "
                "the work per point is that product: lower the ranks, or use the exact operators"
            )
        self._take(experts)

    def _take(self, experts: tuple[LowRank, ...]) -> None:
        self.experts, self.backend = experts, experts[0].backend
        self._left = tuple(e._left[0] for e in experts)
        self._right = tuple(e._right[0] for e in experts)

    def _map(self, change: Callable[[LowRank], LowRank]) -> ProductOfFactors:
        out = copy.copy(self)  # checked already
        for name in _KEPT:
            out.__dict__.pop(name, None)
        out._take(tuple(map(change, self.experts)))
        return out

    def __repr__(self) -> str:
        ranks = " x ".join(map(str, self.ranks))
        return f"ProductOfFactors(shape={self.shape}, ranks {ranks}, dtype={self.dtype}{self._place()})"


def _experts(K: Factored) -> tuple[LowRank, ...]:
    if isinstance(K, ProductOfFactors):
        return K.experts
    assert isinstance(K, LowRank)
    return (K,)


def _index(index: Any, batch: tuple[int, ...]) -> tuple[Any, ...]:
    """One index for every batch axis."""
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > len(batch):
        raise IndexError(
            f"index: wanted integers or slices for the batch axes {batch}, got {index!r}"
        )
    return (*given, *(slice(None),) * (len(batch) - len(given)))


def _turned(source: Any) -> Any:
    """The transpose of the operator or array that was approximated."""
    if isinstance(source, np.ndarray):
        return source.swapaxes(-1, -2)
    return getattr(source, "T", None)


def _sizes(side: tuple[Real, ...]) -> Real:
    """prod_e |L^e_i|, which bounds the terms that an entry is summed from."""
    sizes = [np.sqrt(np.einsum("ci,ci->i", f, f)) for f in side]
    out: Real = np.prod(sizes, axis=0)
    return out


# ---- arguments ----------------------------------------------------------------------------------


def entries_of(name: str, operator: object) -> tuple[Callable[[int, int], Real], tuple[int, int]]:
    """A function that gives rows start to stop of an operator or array, and the shape."""
    if isinstance(operator, Factored):
        _checks.one_problem(name, operator.batch)
        return operator._rows, (operator.shape[-2], operator.shape[-1])
    if isinstance(operator, (Scores, MarkovOperator, KernelOperator)):
        _checks.one_problem(name, operator.shape[:-2])
        weight = "exp"
        if isinstance(operator, Scores):
            logits = operator
        elif isinstance(operator, MarkovOperator):
            logits = operator.log_weights
        else:
            logits, weight = operator.scores, operator.weight
        n, m = logits.shape
        return lambda a, b: kernel(logits.rows(a, b), weight).to_numpy(), (n, m)
    array = HOST.factor(name, backend_of(operator).here(name, operator))
    _checks.one_problem(name, array.shape[:-2])
    return lambda a, b: array[a:b], (array.shape[0], array.shape[1])


def _blocks(name: str, exact: object, shape: tuple[int, ...]) -> Iterator[tuple[int, int, Real]]:
    rows, got = entries_of(name, exact)
    if got != shape:
        raise ValueError(f"{name}: wanted shape {shape} like the factors, got {got}")
    return (
        (a, b, rows(a, b).astype(np.float64))
        for a, b in ((k, min(shape[0], k + BLOCK_ROWS)) for k in range(0, shape[0], BLOCK_ROWS))
    )
