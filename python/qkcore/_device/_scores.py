"""Lazy scores of device arrays: the same normal form and the same methods as on the CPU."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._score_masks import UNBOUNDED, DiagonalMasks
from ._arrays import Context, largest_score
from ._missing import missing

__all__ = ["DeviceScores", "one_of"]

SOFTMAX = 0  # Weight of the kernels: softmax, exp, linear, relu, sigmoid


class DeviceScores(DiagonalMasks):
    """A lazy score matrix (..., N, M) of arrays on a CUDA device; see :class:`qkcore.Scores`.

    Reductions run on the caller's stream and return arrays of the caller's library.
    """

    __slots__ = (
        "_band",
        "_batch",
        "_col_bias",
        "_context",
        "_dense",
        "_distances",
        "_dots",
        "_inputs",
        "_masks",
        "_n_cols",
        "_n_rows",
        "_row_bias",
        "_top",
        "dtype",
    )
    # Array libraries must leave `array + scores` to us.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    def __init__(
        self,
        context: Context,
        dtype: np.dtype[Any],
        inputs: str,
        batch: tuple[int, ...],
        n_rows: int,
        n_cols: int,
        *,
        dots: tuple[tuple[Any, Any, float], ...] = (),
        distances: tuple[tuple[Any, Any, float, int], ...] = (),
        dense: tuple[tuple[Any, float], ...] = (),
        row_bias: tuple[Any, ...] = (),
        col_bias: tuple[Any, ...] = (),
        masks: tuple[Any, ...] = (),
        band: tuple[int, int] = (-UNBOUNDED, UNBOUNDED),
        top: float,
    ) -> None:
        self._context = context
        self.dtype = dtype
        self._inputs = inputs
        self._batch = batch
        self._n_rows, self._n_cols = n_rows, n_cols
        self._dots, self._distances, self._dense = dots, distances, dense
        self._row_bias, self._col_bias, self._masks = row_bias, col_bias, masks
        self._band = band
        self._top = largest_score("scores", top, dtype)

    @property
    def _spec(self) -> tuple[Any, ...]:
        """What the module reads: see cuda/bind/description.hpp."""
        return (
            str(self.dtype),
            self._context.device,
            self._batch,
            self._n_rows,
            self._n_cols,
            self._dots,
            self._distances,
            self._dense,
            self._row_bias,
            self._col_bias,
            self._masks,
            *self._band,
        )

    def _with(self, **changed: Any) -> DeviceScores:
        fields: dict[str, Any] = {
            "batch": self._batch,
            "n_rows": self._n_rows,
            "n_cols": self._n_cols,
            "dots": self._dots,
            "distances": self._distances,
            "dense": self._dense,
            "row_bias": self._row_bias,
            "col_bias": self._col_bias,
            "masks": self._masks,
            "band": self._band,
            "top": self._top,
        }
        return DeviceScores(self._context, self.dtype, self._inputs, **{**fields, **changed})

    @property
    def device(self) -> str:
        """The device that holds the arrays, e.g. "cuda:0"."""
        return f"cuda:{self._context.device}"

    @property
    def T(self) -> DeviceScores:
        """The transposed scores, lazily."""
        lo, hi = self._band
        return self._with(
            n_rows=self._n_cols,
            n_cols=self._n_rows,
            dots=tuple((y, x, c) for x, y, c in self._dots),
            distances=tuple((y, x, c, k) for x, y, c, k in self._distances),
            dense=tuple((z.T, c) for z, c in self._dense),
            row_bias=self._col_bias,
            col_bias=self._row_bias,
            masks=tuple(m.T for m in self._masks),
            band=(-hi, -lo),
        )

    def rows(self, start: int, stop: int) -> DeviceScores:
        """Rows start to stop (exclusive) as scores of their own, lazily."""
        first, last = _checks.integer("start", start), _checks.integer("stop", stop)
        if not 0 <= first < last <= self._n_rows:
            raise ValueError(
                f"start, stop: wanted 0 <= start < stop <= {self._n_rows}, got {start}, {stop}"
            )

        def cut(x: Any) -> Any:
            return x.cut(-2, first, last)

        lo, hi = self._band
        bounded = (max(lo + first, -UNBOUNDED), min(hi + first, UNBOUNDED))
        return self._with(
            n_rows=last - first,
            dots=tuple((cut(x), y, c) for x, y, c in self._dots),
            distances=tuple((cut(x), y, c, k) for x, y, c, k in self._distances),
            dense=tuple((cut(z), c) for z, c in self._dense),
            row_bias=tuple(r.cut(-1, first, last) for r in self._row_bias),
            masks=tuple(cut(m) for m in self._masks),
            band=(lo if lo <= -UNBOUNDED else bounded[0], hi if hi >= UNBOUNDED else bounded[1]),
        )

    def _problem(self, index: tuple[int, ...]) -> DeviceScores:
        """One problem of a batch, by its index along every batch axis."""

        def matrix(x: Any) -> Any:
            return one_of(x, index, 2)

        def points(x: Any, y: Any) -> tuple[Any, Any]:  # one cloud with itself stays so
            left = matrix(x)
            return left, left if y is x else matrix(y)

        return self._with(
            batch=(),
            dots=tuple((*points(x, y), c) for x, y, c in self._dots),
            distances=tuple((*points(x, y), c, k) for x, y, c, k in self._distances),
            dense=tuple((matrix(z), c) for z, c in self._dense),
            row_bias=tuple(one_of(r, index, 1) for r in self._row_bias),
            col_bias=tuple(one_of(r, index, 1) for r in self._col_bias),
            masks=tuple(matrix(m) for m in self._masks),
        )

    # ---- algebra ------------------------------------------------------------------------------

    def __add__(self, other: object) -> DeviceScores:
        """Logit sum: the product of experts (DAC A.3)."""
        if not isinstance(other, DeviceScores):
            from .._lazy_scores import Scores

            if isinstance(other, Scores):
                raise TypeError(
                    f"s + t: wanted scores on {self.device} on both sides, got scores of CPU arrays "
                    "beside them; move the arrays to one place"
                )
            return NotImplemented
        if other._context.device != self._context.device:
            raise ValueError(
                f"s + t: wanted scores on one device, got {self.device} and {other.device}"
            )
        if (other.dtype, other._inputs) != (self.dtype, self._inputs):
            raise TypeError(
                f"s + t: wanted scores of one dtype, got {self._inputs} and {other._inputs}; "
                "convert the data of one of them"
            )
        if (other._n_rows, other._n_cols) != (self._n_rows, self._n_cols):
            raise ValueError(
                f"s + t: wanted equal last two axes, got {self.shape} and {other.shape}; "
                "experts score the same pairs"
            )
        return self._with(
            batch=_checks.broadcast("s + t", self._batch, other._batch),
            dots=self._dots + other._dots,
            distances=self._distances + other._distances,
            dense=self._dense + other._dense,
            row_bias=self._row_bias + other._row_bias,
            col_bias=self._col_bias + other._col_bias,
            masks=self._masks + other._masks,
            band=(max(self._band[0], other._band[0]), min(self._band[1], other._band[1])),
            top=self._top + other._top,
        )

    __radd__ = __add__

    def __mul__(self, factor: object) -> DeviceScores:
        """Scores times a positive number (an inverse temperature)."""
        c = _checks.positive("factor", factor)
        largest_score("scores", c * self._top, self.dtype)
        module, stream = self._context.module, self._context.stream()

        def scaled(r: Any) -> Any:
            return module.map_vector("affine", r, a=c, stream=stream)

        return self._with(
            top=c * self._top,
            dots=tuple((x, y, c * b) for x, y, b in self._dots),
            distances=tuple((x, y, c * b, k) for x, y, b, k in self._distances),
            dense=tuple((z, c * b) for z, b in self._dense),
            row_bias=tuple(scaled(r) for r in self._row_bias),
            col_bias=tuple(scaled(r) for r in self._col_bias),
        )

    __rmul__ = __mul__

    # ---- masks and shifts ---------------------------------------------------------------------

    def masked(self, M: Any) -> DeviceScores:
        """Keeps the entries where the boolean device array M (..., N, M) is True."""
        mask = self._context.take("M", M, dtype="bool")
        if mask.shape[-2:] != (self._n_rows, self._n_cols):
            raise ValueError(
                f"M: wanted shape (..., {self._n_rows}, {self._n_cols}) as the scores, got {mask.shape}"
            )
        batch = _checks.broadcast("M", self._batch, mask.shape[:-2])
        return self._with(batch=batch, masks=(*self._masks, mask))

    def key_padding(self, keep: Any) -> DeviceScores:
        """Keeps the columns where the boolean device array ``keep`` (..., M) is True."""
        mask = self._context.take("keep", keep, dtype="bool")
        if mask.shape[-1:] != (self._n_cols,):
            raise ValueError(
                f"keep: wanted shape (..., {self._n_cols}) as the scores, got {mask.shape}"
            )
        batch = _checks.broadcast("keep", self._batch, mask.shape[:-1])
        return self._with(batch=batch, masks=(*self._masks, mask.broadcast_rows(self._n_rows)))

    def shift(self, rows: Any = None, columns: Any = None) -> DeviceScores:
        """Adds r_i to row i and c_j to column j (device arrays (..., N), (..., M)); -inf masks."""
        c = self._context
        named = [
            (name, c.vector(name, x, str(self.dtype), length, self._batch))
            for name, x, length in (
                ("rows", rows, self._n_rows),
                ("columns", columns, self._n_cols),
            )
            if x is not None
        ]
        figures = c.figures(*((name, x, None) for name, x in named))
        batch, top = self._batch, self._top
        biases = {"rows": self._row_bias, "columns": self._col_bias}
        for (name, x), found in zip(named, figures, strict=True):
            top += c.finite(name, found, minus_inf=True)
            batch = _checks.broadcast(name, batch, x.shape[:-1])
            biases[name] = (*biases[name], x)
        return self._with(batch=batch, row_bias=biases["rows"], col_bias=biases["columns"], top=top)

    # ---- reductions ---------------------------------------------------------------------------

    def _reduce(
        self,
        weight: int,
        values: Any,
        want_lse: bool,
        *,
        out: Any = None,
        stream: int,
    ) -> tuple[Any, Any]:
        """(log-sum-exp, product) as module arrays."""
        found: tuple[Any, Any] = self._context.module.reduce_rows(
            self._spec, weight, values, want_lse, out=out, stream=stream
        )
        return found

    def logsumexp(self, axis: int = 1, *, out: Any = None, stream: Any = None) -> Any:
        """:math:`\\log\\sum_j e^{s_{ij}}` of each row (axis=1) or column (axis=0), on the device."""
        s, c = (self if _checks.axis(axis) == 1 else self.T), self._context
        at = c.stream(stream)
        target = c.output("out", out, (*s._batch, s._n_rows), str(s.dtype))
        lse, _ = c.module.reduce_rows(s._spec, SOFTMAX, None, True, lse=target, stream=at)
        return c.give(lse, target, at)

    def marginals(self, f: Any = None, g: Any = None) -> tuple[Any, Any]:
        """Row and column sums of :math:`e^{f_i + s_ij + g_j}` (DAC-7), both in one pass."""
        s = self if f is None and g is None else self.shift(f, g)
        rows, cols = self._context.module.marginals(s._spec, stream=self._context.stream())
        return self._context.give(rows), self._context.give(cols)

    def to_device(self, *, out: Any = None, stream: Any = None) -> Any:
        """The scores as a device array (..., N, M); masked entries are -inf."""
        return self._materialize(True, out, stream)

    def _materialize(self, raw: bool, out: Any, stream: Any) -> Any:
        c = self._context
        at = c.stream(stream)
        target = c.output("out", out, self.shape, str(self.dtype))
        return c.give(c.module.materialize(self._spec, raw, target, at), target, at)

    def to_numpy(self) -> npt.NDArray[Any]:
        """The scores as a NumPy array: computed on the device and copied to the host."""
        return self._context.download(
            self._context.module.materialize(self._spec, True, stream=self._context.stream())
        )

    def __getattr__(self, name: str) -> NoReturn:
        from .._lazy_scores import Scores

        missing(self, name, Scores)

    def __repr__(self) -> str:
        return f"DeviceScores(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"


def one_of(array: Any, index: tuple[int, ...], core: int) -> Any:
    """What one problem of a batch sees of an array whose last ``core`` axes are its own."""
    n_batch = array.ndim - core
    for k in index[len(index) - n_batch :]:
        array = array.entry(k if array.shape[0] > 1 else 0)
    return array
