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

from . import _checks, _device
from ._config import resolve_threads
from ._lazy_scores import Real, Scores
from ._linear import LinearMap
from ._native import cpu
from .operators import KernelOperator, MarkovOperator, kernel

__all__ = ["Factored", "LowRank", "NegativeEntries", "ProductOfFactors"]

# Products of ranks above this are refused: the work per point is that product.
MOST_COMBINATIONS = 1 << 16
# Rows that are looked at together when a dense comparison goes through blocks.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class NegativeEntries:
    """The entries of a factored kernel (or coupling) that are below 0 by more than rounding."""

    count: int
    """how many there are"""
    fraction: float
    """of all entries"""
    smallest: float
    """the smallest entry, of whatever sign"""
    mass: float
    """the sum of the negative entries"""


class Factored(LinearMap):
    """:math:`K_{ij} = \\prod_e \\sum_c L^e_{ic} R^e_{cj}`: applied through its factors, never formed."""

    # Components first, points contiguous: what the engine streams.
    _left: tuple[Real, ...]
    _right: tuple[Real, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self._left[0].shape[1], self._right[0].shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, as the factors came."""
        return self._left[0].dtype

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each expert."""
        return tuple(f.shape[0] for f in self._left)

    @property
    def T(self) -> Factored:
        raise NotImplementedError

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """``K @ V`` for V of shape (M,) or (M, k): O((N + M) r_0 r_1 ... k) work."""
        threads = resolve_threads(n_threads)
        values = _right_hand_sides("V", V, self, axis=0)
        return self._product(values, threads)

    def apply_left(self, U: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """``U @ K`` for U of shape (N,) or (k, N)."""
        threads = resolve_threads(n_threads)
        values = _right_hand_sides("U", U, self, axis=1)
        return self.T._product(values.T, threads).T

    def _product(self, values: Real, n_threads: int) -> Real:
        if len(self._left) == 1:  # a plain matrix: two products by BLAS
            out: Real = self._left[0].T @ (self._right[0] @ values)
            return out
        vector = values.ndim == 1
        z = np.ascontiguousarray(values[None, :] if vector else values.T)
        found = cpu.factored_product(self._left, self._right, z, n_threads)
        return found[0] if vector else found.T

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The kernel as an array (N, M), by BLAS, which has its own threads."""
        resolve_threads(n_threads)
        return self._rows(0, self.shape[0])

    def _rows(self, start: int, stop: int) -> Real:
        """Rows start to stop as an array."""
        out: Real = self._left[0][:, start:stop].T @ self._right[0]
        for left, right in zip(self._left[1:], self._right[1:], strict=True):
            out *= left[:, start:stop].T @ right
        return out

    @cached_property
    def nonnegative(self) -> bool:
        """Whether no factor has a negative entry, so that the kernel cannot have one."""
        return all(float(f.min()) >= 0 for f in (*self._left, *self._right))

    def count_negative(self, *, n_threads: int | None = None) -> NegativeEntries:
        """Counts the negative entries, tile by tile: O(N M r) work, O(N + M) memory.

        An entry counts when it is below 0 by more than the rounding of its own computation,
        :math:`\\epsilon \\sum_e (r_e + 2) \\prod_e \\|L^e_i\\| \\|R^e_j\\|`.

        >>> import numpy as np, qkcore as qk
        >>> from qkcore.factors import LowRank
        >>> LowRank(np.array([[1.0], [2.0]]), np.array([[3.0, -1.0]])).count_negative()
        NegativeEntries(count=2, fraction=0.5, smallest=-2.0, mass=-3.0)
        """
        n, m = self.shape
        one = self.dtype.type(1)
        u, v = (np.full(k, one) for k in (n, m))
        return self._negative(u, v, float(np.finfo(self.dtype).eps), resolve_threads(n_threads))

    def _negative(
        self,
        u: Real,
        v: Real,
        eps: float,
        n_threads: int,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> NegativeEntries:
        """Of u_i K_ij v_j, for u, v >= 0 of the kernel's dtype; in all rows, or in those given."""
        left = self._left if rows is None else tuple(f[:, rows] for f in self._left)
        slack = eps * sum(r + 2 for r in self.ranks)
        row_sizes, col_sizes = (
            np.prod([np.sqrt(np.einsum("ci,ci->i", f, f)) for f in side], axis=0)
            for side in (left, self._right)
        )
        count, smallest, mass = cpu.negative_entries(
            left,
            self._right,
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

        ``exact`` is an operator, an array, or scores (for their exponential, e.g. of ``qk.poe``).

        >>> import numpy as np, qkcore as qk
        >>> from qkcore.factors import low_rank
        >>> low_rank(np.diag([4.0, 3.0]), 1).relative_error(np.diag([4.0, 3.0]))
        0.6
        """
        blocks = _blocks("exact", exact, self.shape)
        off = size = 0.0
        for start, stop, block in blocks:
            off += float(np.square(block - self._rows(start, stop).astype(np.float64)).sum())
            size += float(np.square(block).sum())
        return math.sqrt(off / size) if size > 0 else math.inf if off > 0 else 0.0

    def _double(self) -> Factored:
        """The same kernel with factors in double; the kernel itself when they are."""
        raise NotImplementedError


class LowRank(Factored):
    """A matrix left @ right of rank r, for left (N, r) and right (r, M) (DAC-10, D.1).

    The factors are kept with the points contiguous in memory; arrays that come otherwise are
    copied once. :func:`low_rank` makes one from an operator. Factors on a device give a kernel there.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore.factors import LowRank
    >>> G = LowRank(np.array([[1.0], [2.0]]), np.array([[3.0, 0.0, 1.0]]))
    >>> G
    LowRank(shape=(2, 3), rank=1, dtype=float64, given)
    >>> G @ np.array([1.0, 1.0, 1.0])
    array([4., 8.])
    """

    def __new__(cls, left: Any = None, right: Any = None, **_: Any) -> Any:
        if _device.on_device(left, right):
            from ._device._factored import DeviceLowRank

            return DeviceLowRank(left, right)
        return super().__new__(cls)

    def __init__(
        self,
        left: npt.ArrayLike,
        right: npt.ArrayLike,
        *,
        method: str = "given",
        singular_values: Real | None = None,
        cut_gap: float = math.nan,
        error: float = math.nan,
        source: object = None,
    ) -> None:
        l = _factor("left", left)
        r = _factor("right", right)
        _checks.same_dtype("right", r, l.dtype, "left")
        hint = "left is (N, r) and right (r, M)"
        _checks.shape(
            "right", r.shape, (l.shape[1], "M"), why=f"after left of shape {l.shape}", do=hint
        )
        self._left = (_points_contiguous(l.T),)
        self._right = (_points_contiguous(r),)
        self.method = method
        """how the factors were found: "given", "dense", "svds", "randomised", "nonnegative", ..."""
        self.singular_values = singular_values
        """those that were kept, largest first; None for factors that are not of an SVD"""
        self.cut_gap = cut_gap
        """1 - s_{r+1} / s_r, the gap at which the truncation cuts; NaN when it is not known.
        Near 0 it cuts through a pair of equal singular values, and the result is one of many
        equally good ones (erratum 11)."""
        self.error = error
        """relative Frobenius error against the source where the method gives it, else NaN"""
        self.source = source
        """what was approximated: an operator, an array, or None"""

    @property
    def left(self) -> Real:
        """The left factor, of shape (N, r)."""
        return self._left[0].T

    @property
    def right(self) -> Real:
        """The right factor, of shape (r, M)."""
        return self._right[0]

    @property
    def rank(self) -> int:
        """The number r of components."""
        return len(self._left[0])

    @property
    def T(self) -> LowRank:
        """The transposed matrix."""
        out = copy.copy(self)  # checked already
        out._left, out._right = self._right, self._left
        out.source = getattr(self.source, "T", None)
        return out

    @property
    def cuts_pair(self) -> bool:
        """Whether the truncation goes through nearly equal singular values (erratum 11)."""
        return self.cut_gap < PAIR

    def _double(self) -> LowRank:
        if self.dtype == np.float64:
            return self
        return LowRank(self.left.astype(np.float64), self.right.astype(np.float64))

    def __repr__(self) -> str:
        text = f"LowRank(shape={self.shape}, rank={self.rank}, dtype={self.dtype}, {self.method}"
        return text + (", cuts a pair of singular values)" if self.cuts_pair else ")")


# Singular values closer than this, relatively, count as equal.
PAIR = 1e-3


class ProductOfFactors(Factored):
    """The entrywise product of low-rank matrices (DAC-10): what ``qk.poe`` of them gives.

    :math:`(K z)_i = (L^0_i \\otimes L^1_i)\\cdot H` with
    :math:`H = \\sum_j z_j\\, R^0_j \\otimes R^1_j`, an array of :math:`r_0 \\times r_1` numbers: one visit
    of the right factors, one of the left ones, O((N + M) r_0 r_1) work and no N x M array. More than
    two experts multiply their ranks likewise.

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

    def __new__(cls, *factors: Any) -> Any:
        if any(map(_device.is_factored, factors)):
            from ._device._factored import DeviceProductOfFactors

            return DeviceProductOfFactors(*factors)
        return super().__new__(cls)

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
            if expert.shape != experts[0].shape or expert.dtype != experts[0].dtype:
                raise ValueError(
                    f"experts[{k}]: wanted shape {experts[0].shape} and {experts[0].dtype} like "
                    f"experts[0], got {expert.shape} and {expert.dtype}; experts score the same pairs"
                )
        if math.prod(e.rank for e in experts) > MOST_COMBINATIONS and len(experts) > 1:
            ranks = " x ".join(str(e.rank) for e in experts)
            raise ValueError(
                f"experts: wanted ranks whose product is at most {MOST_COMBINATIONS}, got {ranks}; "
                "the work per point is that product: lower the ranks, or use the exact operators"
            )
        self.experts = experts
        self._left = tuple(e._left[0] for e in experts)
        self._right = tuple(e._right[0] for e in experts)

    @property
    def T(self) -> ProductOfFactors:
        """The transposed kernel."""
        out = copy.copy(self)  # checked already
        out.experts = tuple(e.T for e in self.experts)
        out._left, out._right = self._right, self._left
        return out

    def _double(self) -> ProductOfFactors:
        if self.dtype == np.float64:
            return self
        return ProductOfFactors(*(e._double() for e in self.experts))

    def __repr__(self) -> str:
        ranks = " x ".join(map(str, self.ranks))
        return f"ProductOfFactors(shape={self.shape}, ranks {ranks}, dtype={self.dtype})"


# ---- arguments ----------------------------------------------------------------------------------


def _factor(name: str, value: npt.ArrayLike) -> Real:
    array = _checks.real_array(name, value)
    if array.ndim != 2:
        raise ValueError(
            f"{name}: wanted a matrix, got shape {array.shape}; left is (N, r), right is (r, M)"
        )
    _checks.not_empty(name, array)
    _checks.finite(name, array)
    return array


def _points_contiguous(array: Real) -> Real:
    """(r, n) whose rows are contiguous: the array itself when they are."""
    if array.shape[1] == 1 or array.strides[1] == array.itemsize:
        return array if array.shape[1] > 1 else np.ascontiguousarray(array)
    return np.ascontiguousarray(array)


def _right_hand_sides(name: str, value: npt.ArrayLike, K: Factored, *, axis: int) -> Real:
    array = _checks.real_array(name, value)
    _checks.same_dtype(name, array, K.dtype, "the factors")
    length = K.shape[1 - axis]
    if array.ndim not in (1, 2) or array.shape[0 if axis == 0 else -1] != length:
        wanted = f"({length}, k)" if axis == 0 else f"(k, {length})"
        raise ValueError(
            f"{name}: wanted shape ({length},) or {wanted} for a kernel of shape {K.shape}, got "
            f"{array.shape}; " + ("did you mean U @ K?" if axis == 0 else "did you mean K @ V?")
        )
    _checks.not_empty(name, array)
    _checks.finite(name, array)
    return array


def entries_of(name: str, operator: object) -> tuple[Callable[[int, int], Real], tuple[int, int]]:
    """A function that gives rows start to stop of an operator or array, and the shape."""
    if isinstance(operator, Factored):
        return operator._rows, operator.shape
    if isinstance(operator, (Scores, MarkovOperator, KernelOperator)):
        if len(operator.shape) != 2:
            raise ValueError(
                f"{name}: wanted one matrix, got batch axes, shape {operator.shape}; "
                "take the problems one by one"
            )
        weight = "exp"
        if isinstance(operator, Scores):
            logits = operator
        elif isinstance(operator, MarkovOperator):
            logits = operator.log_weights
        else:
            logits, weight = operator.scores, operator.weight
        n, m = logits.shape
        return lambda a, b: kernel(logits.rows(a, b), weight).to_numpy(), (n, m)
    array = _factor(name, operator)  # type: ignore[arg-type]  # whatever NumPy takes, or an error
    return lambda a, b: array[a:b], (array.shape[0], array.shape[1])


def _blocks(name: str, exact: object, shape: tuple[int, int]) -> Iterator[tuple[int, int, Real]]:
    rows, got = entries_of(name, exact)
    if got != shape:
        raise ValueError(f"{name}: wanted shape {shape} like the factors, got {got}")
    return (
        (a, b, rows(a, b).astype(np.float64))
        for a, b in ((k, min(shape[0], k + BLOCK_ROWS)) for k in range(0, shape[0], BLOCK_ROWS))
    )
