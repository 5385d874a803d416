"""The terms of a sum of scores: the arrays that belong to its rows, and those that belong to its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._rounding import PLAIN, Rounding

__all__ = ["EVERYTHING", "UNBOUNDED", "Offsets", "Terms"]

Offsets = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
Change = Callable[[Any], Any]

UNBOUNDED = 1 << 60  # a band this wide masks nothing
EVERYTHING = (-UNBOUNDED, UNBOUNDED)


def _same(array: Any) -> Any:
    return array


class Terms(NamedTuple):
    """The terms whose sum is a score, and the masks. The arrays are NumPy arrays, or all on a device.

    =============  ============================================================================
    dots           (x, y, c): c <x_i, y_j>
    distances      (x, y, c, k, p): -c sum |x_i - y_j|^p over the coordinates, where the last k
                   of them are subtracted instead of added
    dense          (z, c): c z_ij
    row_bias       r_i
    col_bias       c_j
    masks          -inf where a mask is 0
    band           -inf unless band[0] <= j - i <= band[1]
    offsets        -inf outside diagonal blocks; where the blocks begin among rows and columns
    rounding       the order in which the terms are added
    =============  ============================================================================
    """

    dots: tuple[tuple[Any, Any, float], ...] = ()
    distances: tuple[tuple[Any, Any, float, int, int], ...] = ()
    dense: tuple[tuple[Any, float], ...] = ()
    row_bias: tuple[Any, ...] = ()
    col_bias: tuple[Any, ...] = ()
    masks: tuple[Any, ...] = ()
    band: tuple[int, int] = EVERYTHING
    offsets: Offsets | None = None
    rounding: Rounding = PLAIN

    @staticmethod
    def dot(x: Any, y: Any, scale: float) -> Terms:
        """A single dot term."""
        # NamedTuple's own constructor takes several times as long, which matters for scores of few points.
        return tuple.__new__(Terms, (((x, y, scale),), (), (), (), (), (), EVERYTHING, None, PLAIN))

    def map(
        self,
        *,
        x: Change = _same,
        y: Change = _same,
        z: Change = _same,
        r: Change = _same,
        c: Change = _same,
        masks: Change | None = None,
    ) -> Terms:
        """Replaces every array by a function of it.

        ``x`` and ``y`` change the points of rows and columns, ``z`` the matrices, ``r`` and ``c`` the shifts
        of rows and columns, ``masks`` the masks (by default ``z`` changes them too).
        """
        m = z if masks is None else masks
        return Terms(
            tuple([(x(a), y(b), scale) for a, b, scale in self.dots]),
            tuple([(x(a), y(b), scale, k, p) for a, b, scale, k, p in self.distances]),
            tuple([(z(a), scale) for a, scale in self.dense]),
            tuple(map(r, self.row_bias)),
            tuple(map(c, self.col_bias)),
            tuple(map(m, self.masks)),
            self.band,
            self.offsets,
            self.rounding,
        )

    def transposed(self, swap: Change) -> Terms:
        """The terms of the transposed scores; ``swap`` exchanges the last two axes of a matrix."""
        low, high = self.band
        return Terms(
            tuple([(y, x, scale) for x, y, scale in self.dots]),
            tuple([(y, x, scale, k, p) for x, y, scale, k, p in self.distances]),
            tuple([(swap(z), scale) for z, scale in self.dense]),
            self.col_bias,
            self.row_bias,
            tuple(map(swap, self.masks)),
            (-high, -low),
            None if self.offsets is None else self.offsets[::-1],
            self.rounding.transposed(len(self.dots)),
        )

    def scaled(self, scale: Callable[[float], float], shift: Change) -> Terms:
        """Every term times a number: ``scale`` multiplies the factors of terms, ``shift`` the shifts."""
        return self._replace(
            dots=tuple([(x, y, scale(b)) for x, y, b in self.dots]),
            distances=tuple([(x, y, scale(b), k, p) for x, y, b, k, p in self.distances]),
            dense=tuple([(z, scale(b)) for z, b in self.dense]),
            row_bias=tuple(map(shift, self.row_bias)),
            col_bias=tuple(map(shift, self.col_bias)),
        )

    def joined(self, other: Terms, offsets: Offsets | None) -> Terms:
        """The sum of both, in the ragged blocks of ``offsets``."""
        return Terms(
            self.dots + other.dots,
            self.distances + other.distances,
            self.dense + other.dense,
            self.row_bias + other.row_bias,
            self.col_bias + other.col_bias,
            self.masks + other.masks,
            (max(self.band[0], other.band[0]), min(self.band[1], other.band[1])),
            offsets,
            self.rounding.joined(
                other.rounding, len(self.dots), len(self.row_bias), len(self.col_bias)
            ),
        )

    def shifted(self, axis: int, shifts: tuple[Any, ...], *stages: int) -> Terms:
        """With further shifts of rows (axis 1) or columns (axis 0), which are added at the given stages."""
        if axis == 1:
            rounding = self.rounding.with_stages(len(self.row_bias), 1, *stages)
            return self._replace(row_bias=self.row_bias + shifts, rounding=rounding)
        rounding = self.rounding.with_stages(len(self.col_bias), 0, *stages)
        return self._replace(col_bias=self.col_bias + shifts, rounding=rounding)

    def with_shifts(self, rows: tuple[Any, ...], columns: tuple[Any, ...]) -> Terms:
        """With these shifts instead of the old ones; they are added together with the terms."""
        return self._replace(row_bias=rows, col_bias=columns, rounding=Rounding(self.rounding.dots))

    @property
    def banded(self) -> bool:
        """Whether there is a causal mask or a window, which masks entries of large enough scores."""
        return self.band != EVERYTHING

    def hides(self, n_rows: int, n_cols: int) -> bool:
        """Whether the band masks an entry of scores with this many rows and columns."""
        return self.band[0] > 1 - n_rows or self.band[1] < n_cols - 1

    @property
    def features(self) -> Iterator[Any]:
        """The points of the rows, term by term; the points of the columns have the same dimension."""
        yield from (x for x, _, _ in self.dots)
        yield from (x for x, *_ in self.distances)

    @property
    def numbers(self) -> Iterator[Any]:
        """The arrays in which -inf may mask entries: matrices and shifts."""
        yield from (z for z, _ in self.dense)
        yield from self.row_bias
        yield from self.col_bias

    def counts(self) -> list[str]:
        """How many terms of each kind there are, for ``repr``."""
        named = (
            ("dot", self.dots),
            ("distance", tuple(term for term in self.distances if term[4] == 2)),
            ("l1", tuple(term for term in self.distances if term[4] == 1)),
            ("dense", self.dense),
            ("row shift", self.row_bias),
            ("column shift", self.col_bias),
            ("mask", self.masks),
        )
        parts = [f"{len(terms)} {name}" for name, terms in named if terms]
        if self.banded:
            parts.append("band")
        if self.offsets is not None:
            parts.append(f"{len(self.offsets[0]) - 1} ragged blocks")
        return parts
