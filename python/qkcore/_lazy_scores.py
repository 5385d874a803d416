"""The lazy score matrix: one normal form for every sum of scores, masks and shifts included."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._config import resolve_threads
from ._native import cpu
from ._rounding import EARLY, LATE, PLAIN, REFERENCE, Rounding
from ._score_masks import UNBOUNDED, DiagonalMasks

Real = npt.NDArray[np.floating[Any]]
Offsets = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


class Scores(DiagonalMasks):
    """A lazy score matrix of shape (..., N, M). Build one with the functions of ``qk.scores``.

    Every sum of scores has the same normal form, so sums, masks and shifts cost nothing until
    reduced: dot terms + distance terms + dense terms + row shift + column shift, masked to -inf.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> s = qk.scores.dot(X).causal()
    >>> s.to_numpy()
    array([[  1., -inf, -inf],
           [  0.,   4., -inf],
           [  1.,   2.,   2.]])
    """

    __slots__ = (
        "_band",
        "_batch",
        "_col_bias",
        "_dense",
        "_distances",
        "_dots",
        "_masks",
        "_n_cols",
        "_n_rows",
        "_offsets",
        "_rounding",
        "_row_bias",
        "_spec",
        "_top",
        "dtype",
    )

    # NumPy must not try to loop over us: arr + s is an error, not an object array.
    __array_ufunc__ = None

    def __init__(
        self,
        dtype: np.dtype[Any],
        batch: tuple[int, ...],
        n_rows: int,
        n_cols: int,
        *,
        dots: tuple[tuple[Real, Real, float], ...] = (),
        distances: tuple[tuple[Real, Real, float, int], ...] = (),
        dense: tuple[tuple[Real, float], ...] = (),
        row_bias: tuple[Real, ...] = (),
        col_bias: tuple[Real, ...] = (),
        masks: tuple[npt.NDArray[np.uint8], ...] = (),
        band: tuple[int, int] = (-UNBOUNDED, UNBOUNDED),
        offsets: Offsets | None = None,
        rounding: Rounding = PLAIN,
        top: float,
    ) -> None:
        # `top` bounds every finite score: a sum that overflowed to -inf would pass for a mask.
        _checks.no_overflow("scores", top, dtype)
        if offsets is not None and batch:
            raise ValueError(
                f"ragged: wanted 2-D scores, got batch axes {batch}; ragged blocks are the batch: "
                "concatenate the problems along the rows"
            )
        self.dtype = dtype
        self._batch = batch
        self._n_rows = n_rows
        self._n_cols = n_cols
        self._dots = dots
        self._distances = distances
        self._dense = dense
        self._row_bias = row_bias
        self._col_bias = col_bias
        self._masks = masks
        self._band = band
        self._offsets = offsets
        self._rounding = rounding
        self._top = top
        self._spec = self._describe()

    def _describe(self) -> tuple[Any, ...]:
        """What the engine reads: see cpp/bind/score_tuple.hpp."""
        rows, cols = self._offsets if self._offsets is not None else (None, None)
        return (
            self.dtype.itemsize == 4,
            self._batch,
            self._n_rows,
            self._n_cols,
            rows,
            cols,
            self._dots,
            self._distances,
            self._dense,
            self._row_bias,
            self._col_bias,
            self._masks,
            *self._band,
            None if self._rounding is PLAIN else self._rounding,
        )

    def _with(
        self,
        *,
        batch: tuple[int, ...] | None = None,
        dots: tuple[tuple[Real, Real, float], ...] | None = None,
        distances: tuple[tuple[Real, Real, float, int], ...] | None = None,
        dense: tuple[tuple[Real, float], ...] | None = None,
        row_bias: tuple[Real, ...] | None = None,
        col_bias: tuple[Real, ...] | None = None,
        masks: tuple[npt.NDArray[np.uint8], ...] | None = None,
        band: tuple[int, int] | None = None,
        offsets: Offsets | None = None,
        rounding: Rounding | None = None,
        top: float | None = None,
    ) -> Scores:
        """The same scores but for what is given. Given shifts without ``rounding`` are added early."""
        if rounding is None:
            rounding = self._rounding
            if row_bias is not None and rounding.rows:
                rounding = rounding._replace(rows=())
            if col_bias is not None and rounding.columns:
                rounding = rounding._replace(columns=())
        return Scores(
            self.dtype,
            self._batch if batch is None else batch,
            self._n_rows,
            self._n_cols,
            dots=self._dots if dots is None else dots,
            distances=self._distances if distances is None else distances,
            dense=self._dense if dense is None else dense,
            row_bias=self._row_bias if row_bias is None else row_bias,
            col_bias=self._col_bias if col_bias is None else col_bias,
            masks=self._masks if masks is None else masks,
            band=self._band if band is None else band,
            offsets=self._offsets if offsets is None else offsets,
            rounding=rounding,
            top=self._top if top is None else top,
        )

    @property
    def T(self) -> Scores:
        """The transposed scores, lazily."""
        lo, hi = self._band
        return Scores(
            self.dtype,
            self._batch,
            self._n_cols,
            self._n_rows,
            dots=tuple((y, x, c) for x, y, c in self._dots),
            distances=tuple((y, x, c, k) for x, y, c, k in self._distances),
            dense=tuple((z.swapaxes(-1, -2), c) for z, c in self._dense),
            row_bias=self._col_bias,
            col_bias=self._row_bias,
            masks=tuple(m.swapaxes(-1, -2) for m in self._masks),
            band=(-hi, -lo),
            offsets=None if self._offsets is None else self._offsets[::-1],
            rounding=self._rounding.transposed(len(self._dots)),
            top=self._top,
        )

    @property
    def _symmetric(self) -> bool:
        """Whether s_ij = s_ji by construction (False when that is merely not known)."""

        def same(a: Real, b: Real) -> bool:
            return a is b or (
                a.shape == b.shape
                and a.strides == b.strides
                and a.__array_interface__["data"] == b.__array_interface__["data"]
            )

        lo, hi = self._band
        rows, cols = list(self._row_bias), list(self._col_bias)
        return (
            self._n_rows == self._n_cols
            and lo == -hi
            and all(
                any(same(x, v) and same(y, u) and b == c for u, v, c in self._dots)
                for x, y, b in self._dots
            )
            and all(same(x, y) for x, y, _, _ in self._distances)
            and not self._masks
            and all(same(z, z.swapaxes(-1, -2)) for z, _ in self._dense)
            and len(rows) == len(cols)
            and all(same(r, c) for r, c in zip(rows, cols, strict=True))
            and self._rounding.same_stages(len(rows))
        )

    def rows(self, start: int, stop: int) -> Scores:
        """Rows start to stop (exclusive) as scores of their own, lazily; not for ragged scores."""
        first, last = _checks.integer("start", start), _checks.integer("stop", stop)
        if not 0 <= first < last <= self._n_rows:
            raise ValueError(
                f"start, stop: wanted 0 <= start < stop <= {self._n_rows}, got {start}, {stop}"
            )
        if self._offsets is not None:
            raise ValueError(
                "rows: wanted scores that are not ragged; take the rows before ragged()"
            )

        def cut(x: Any) -> Any:  # along the rows; axes of length 1 broadcast
            return x[..., first:last, :] if x.shape[-2] != 1 or self._n_rows == 1 else x

        lo, hi = self._band
        bounded = (max(lo + first, -UNBOUNDED), min(hi + first, UNBOUNDED))
        return Scores(
            self.dtype,
            self._batch,
            last - first,
            self._n_cols,
            dots=tuple((cut(x), y, c) for x, y, c in self._dots),
            distances=tuple((cut(x), y, c, k) for x, y, c, k in self._distances),
            dense=tuple((cut(z), c) for z, c in self._dense),
            row_bias=tuple(r[..., first:last] for r in self._row_bias),
            col_bias=self._col_bias,
            masks=tuple(cut(m) for m in self._masks),
            band=(lo if lo <= -UNBOUNDED else bounded[0], hi if hi >= UNBOUNDED else bounded[1]),
            rounding=self._rounding,
            top=self._top,
        )

    def _problem(self, k: int) -> Scores:
        """Problem k of a batch, its axes counted as one, or block k of ragged scores, lazily."""
        if self._offsets is None:
            at = np.unravel_index(k, self._batch)
            rows = cols = slice(None)
        else:
            at = ()
            rows, cols = (slice(*cuts[k : k + 2].tolist()) for cuts in self._offsets)
        n_rows, n_cols = (
            len(range(*cut.indices(n))) for cut, n in ((rows, self._n_rows), (cols, self._n_cols))
        )

        def one(x: Any, *core: slice) -> Any:  # axes of length 1 broadcast
            lead = x.ndim - len(core)
            index = [
                0 if n == 1 else i for i, n in zip(at[len(at) - lead :], x.shape, strict=False)
            ]
            own = (
                slice(None) if n == 1 else cut for cut, n in zip(core, x.shape[lead:], strict=True)
            )
            return x[(*index, *own)]

        every = slice(None)
        return Scores(
            self.dtype,
            (),
            n_rows,
            n_cols,
            dots=tuple((one(x, rows, every), one(y, cols, every), c) for x, y, c in self._dots),
            distances=tuple(
                (one(x, rows, every), one(y, cols, every), c, m) for x, y, c, m in self._distances
            ),
            dense=tuple((one(z, rows, cols), c) for z, c in self._dense),
            row_bias=tuple(one(r, rows) for r in self._row_bias),
            col_bias=tuple(one(c, cols) for c in self._col_bias),
            masks=tuple(one(m, rows, cols) for m in self._masks),
            band=self._band,
            rounding=self._rounding,
            top=self._top,
        )

    # ---- algebra ------------------------------------------------------------------------------

    def __add__(self, other: object) -> Scores:
        """Logit sum: the product of experts (DAC A.3). Shapes broadcast over batch axes."""
        if not isinstance(other, Scores):
            return NotImplemented
        if other.dtype != self.dtype:
            raise TypeError(
                f"s + t: wanted scores of one dtype, got {self.dtype} and {other.dtype}; "
                "convert the data of one of them"
            )
        if (other._n_rows, other._n_cols) != (self._n_rows, self._n_cols):
            raise ValueError(
                f"s + t: wanted equal last two axes, got {self.shape} and {other.shape}; "
                "experts score the same pairs"
            )
        offsets = self._common_offsets(other)
        lo, hi = self._band
        other_lo, other_hi = other._band
        return self._with(
            batch=_checks.broadcast("s + t", self._batch, other._batch),
            dots=self._dots + other._dots,
            distances=self._distances + other._distances,
            dense=self._dense + other._dense,
            row_bias=self._row_bias + other._row_bias,
            col_bias=self._col_bias + other._col_bias,
            masks=self._masks + other._masks,
            band=(max(lo, other_lo), min(hi, other_hi)),
            offsets=offsets,
            rounding=self._rounding.joined(
                other._rounding, len(self._dots), len(self._row_bias), len(self._col_bias)
            ),
            top=self._top + other._top,
        )

    def _common_offsets(self, other: Scores) -> Offsets | None:
        """The ragged blocks of a sum. A band counts from a block's corner, so it must not move."""
        if self._offsets is None or other._offsets is None:
            whole, offsets = (
                (self, other._offsets) if self._offsets is None else (other, self._offsets)
            )
            if offsets is not None and whole._band != (-UNBOUNDED, UNBOUNDED):
                raise ValueError(
                    "s + t: wanted causal masks and windows applied after ragged(), got one on "
                    "scores that are not ragged beside ragged ones; call ragged() first, on each "
                    "or on the sum"
                )
            return offsets
        if not all(map(np.array_equal, self._offsets, other._offsets)):
            raise ValueError(
                "s + t: wanted the same ragged blocks, got different offsets; "
                "call ragged() once, on the sum"
            )
        return self._offsets

    def __mul__(self, factor: object) -> Scores:
        """Scores times a positive number (an inverse temperature)."""
        if isinstance(factor, (Scores, np.ndarray)):
            return NotImplemented
        c = _checks.positive("factor", factor)

        def scaled(scale: float) -> float:
            return _checks.representable("factor * beta", c * scale, self.dtype)

        # Checked before the shifts are multiplied: they must not overflow on the way.
        _checks.no_overflow("scores", c * self._top, self.dtype)
        number = self.dtype.type(_checks.representable("factor", c, self.dtype))
        return self._with(
            top=c * self._top,
            dots=tuple((x, y, scaled(b)) for x, y, b in self._dots),
            distances=tuple((x, y, scaled(b), k) for x, y, b, k in self._distances),
            dense=tuple((z, scaled(b)) for z, b in self._dense),
            row_bias=tuple(r * number for r in self._row_bias),
            col_bias=tuple(r * number for r in self._col_bias),
            rounding=self._rounding,
        )

    __rmul__ = __mul__

    # ---- masks and shifts ---------------------------------------------------------------------

    def masked(self, M: npt.ArrayLike) -> Scores:
        """Keeps the entries where the boolean array M (..., N, M) is True."""
        mask = _checks.boolean("M", M, (self._n_rows, self._n_cols))
        batch = _checks.broadcast("M", self._batch, mask.shape[:-2])
        return self._with(batch=batch, masks=(*self._masks, mask))

    def key_padding(self, keep: npt.ArrayLike) -> Scores:
        """Keeps the columns where the boolean array ``keep`` (..., M) is True."""
        mask = _checks.boolean("keep", keep, (self._n_cols,))
        batch = _checks.broadcast("keep", self._batch, mask.shape[:-1])
        bias = np.where(mask, 0.0, -np.inf).astype(self.dtype)
        return self._with(batch=batch, col_bias=(*self._col_bias, bias), rounding=self._rounding)

    def shift(
        self, rows: npt.ArrayLike | None = None, columns: npt.ArrayLike | None = None
    ) -> Scores:
        """Adds r_i to row i and c_j to column j (arrays (..., N) and (..., M)); -inf masks."""
        return self._shift(rows, columns, ("rows", "columns"))

    def _coupled(self, f: npt.ArrayLike | None, g: npt.ArrayLike | None) -> Scores:
        """f_i + s_ij + g_j, the logarithm of a coupling: the potentials are about as large as the scores, and
        their sum is rounded only after the first of them has taken most of a score away."""
        return self._shift(f, g, ("f", "g"), REFERENCE)

    def _shift(
        self,
        rows: npt.ArrayLike | None,
        columns: npt.ArrayLike | None,
        names: tuple[str, str],
        stage: int = EARLY,
    ) -> Scores:
        batch, top, rounding = self._batch, self._top, self._rounding
        row_bias, col_bias = self._row_bias, self._col_bias
        # Normalised scores are small where they matter, and their shifts come after what made them small.
        stage = LATE if rounding.late else stage
        if rows is not None:
            r, largest = self._bias(names[0], rows, self._n_rows)
            top += largest
            batch = _checks.broadcast(names[0], batch, r.shape[:-1])
            rounding = rounding.with_stages(len(row_bias), 1, stage)
            row_bias = (*row_bias, r)
        if columns is not None:
            c, largest = self._bias(names[1], columns, self._n_cols)
            top += largest
            batch = _checks.broadcast(names[1], batch, c.shape[:-1])
            rounding = rounding.with_stages(len(col_bias), 0, stage)
            col_bias = (*col_bias, c)
        return self._with(
            batch=batch, row_bias=row_bias, col_bias=col_bias, rounding=rounding, top=top
        )

    def _after_rounding(self, shifts: tuple[Real, ...], *axes: int) -> Scores:
        """Adds shifts of the rows (axis 1), the columns (axis 0) or both to the rounded scores, one after the
        other: minus a maximum, and what remains. Scores do not grow by them, so ``top`` stays."""
        # A second maximum is one of scores that are small already.
        stages = (LATE if self._rounding.late else REFERENCE, LATE)[: len(shifts)]
        row_bias, col_bias, rounding = self._row_bias, self._col_bias, self._rounding
        if 1 in axes:
            rounding = rounding.with_stages(len(row_bias), 1, *stages)
            row_bias = (*row_bias, *shifts)
        if 0 in axes:
            rounding = rounding.with_stages(len(col_bias), 0, *stages)
            col_bias = (*col_bias, *shifts)
        return self._with(row_bias=row_bias, col_bias=col_bias, rounding=rounding)

    def _bias(self, name: str, value: npt.ArrayLike, length: int) -> tuple[Real, float]:
        """A shift, and its largest finite magnitude."""
        array = _checks.real_array(name, value)
        if array.ndim < 1:
            raise ValueError(
                f"{name}: wanted shape (..., {length}), got a single number; "
                f"pass np.full({length}, value)"
            )
        _checks.same_dtype(name, array, self.dtype, "the scores")
        _checks.core_shape(name, array.shape, (length,), "as the scores")
        return array, _checks.finite(name, array, minus_inf=True)

    def ragged(
        self, row_offsets: npt.ArrayLike, column_offsets: npt.ArrayLike | None = None
    ) -> Scores:
        """Many problems of different sizes in one: block-diagonal scores, -inf outside the blocks.

        Block b holds rows ``row_offsets[b]:row_offsets[b+1]`` and the same range of columns, or
        that of ``column_offsets``. Causal masks and windows count from the corner of each block.
        """
        if self._offsets is not None:
            raise ValueError("ragged: these scores are ragged already; call it once")
        rows = _checks.offsets("row_offsets", row_offsets, self._n_rows)
        if column_offsets is None:
            if self._n_cols != self._n_rows:
                raise ValueError(
                    f"column_offsets: wanted for scores of shape {self.shape}, got None; "
                    "only square scores can share row_offsets"
                )
            cols = rows
        else:
            cols = _checks.offsets("column_offsets", column_offsets, self._n_cols)
        if len(rows) != len(cols):
            raise ValueError(
                f"column_offsets: wanted {len(rows)} offsets like row_offsets, got {len(cols)}; "
                "every block has rows and columns"
            )
        return self._with(offsets=(rows, cols))

    # ---- reductions ---------------------------------------------------------------------------

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The scores as an array (..., N, M); masked entries are -inf."""
        return cpu.materialize(self._spec, True, 0, resolve_threads(n_threads))

    def logsumexp(self, axis: int = 1, *, n_threads: int | None = None) -> Real:
        """:math:`\\log\\sum_j e^{s_{ij}}` for each row (axis=1) or over i for each column (axis=0).

        -inf where everything is masked. O(N + M) memory when the scores come from points.
        """
        s = self if _checks.axis(axis) == 1 else self.T
        lse = cpu.reduce_rows(s._spec, 0, None, True, False, resolve_threads(n_threads))[0]
        assert lse is not None
        return lse

    def marginals(
        self,
        f: npt.ArrayLike | None = None,
        g: npt.ArrayLike | None = None,
        *,
        n_threads: int | None = None,
    ) -> tuple[Real, Real]:
        """Row and column sums of :math:`e^{f_i + s_ij + g_j}` (DAC-7), both in one pass."""
        s = self if f is None and g is None else self._coupled(f, g)
        return cpu.marginals(s._spec, resolve_threads(n_threads))

    def __repr__(self) -> str:
        parts = [f"{len(t)} {n}" for n, t in self._terms() if t]
        if self._band != (-UNBOUNDED, UNBOUNDED):
            parts.append("band")
        if self._offsets is not None:
            parts.append(f"{len(self._offsets[0]) - 1} ragged blocks")
        return f"Scores(shape={self.shape}, dtype={self.dtype}, {', '.join(parts)})"

    def _terms(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        return (
            ("dot", self._dots),
            ("distance", self._distances),
            ("dense", self._dense),
            ("row shift", self._row_bias),
            ("column shift", self._col_bias),
            ("mask", self._masks),
        )
