"""The order in which the terms of a score are added, on which the digits of normalised weights depend."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EARLY", "LATE", "PLAIN", "REFERENCE", "Rounding"]

# The stages at which a shift may be added, numbered as in cpp/include/qk/problem.hpp. If a log-sum-exp near
# 1e4 were rounded to the dtype and then subtracted, every weight would have an error of 1e4 eps. So it is
# subtracted in two parts: first the maximum, which is exactly one of the rounded scores, and then the
# logarithm of a sum, which is small.
EARLY = 0  # added together with the terms
REFERENCE = 1  # added to the rounded score; it is minus a maximum
LATE = 2  # added last


class Rounding(NamedTuple):
    """How a sum of terms is rounded. Without this information results lose digits, but stay correct.

    A tuple may be shorter than the list of terms that it describes; missing entries mean 0, or ``EARLY``.
    """

    dots: tuple[int, ...] = ()
    """for each dot term, whether its scale multiplies the array of the columns (1) or of the rows (0)"""
    rows: tuple[int, ...] = ()
    """the stage of each row shift"""
    columns: tuple[int, ...] = ()
    """the stage of each column shift"""

    @property
    def late(self) -> bool:
        """Whether some shift is added after the score has been rounded."""
        return any(self.rows) or any(self.columns)

    def transposed(self, n_dots: int) -> Rounding:
        """For the transposed scores: every scale multiplies the same array as before, for the same bits."""
        dots = tuple(1 - side for side in _padded(self.dots, n_dots, 0))
        return Rounding(dots, self.columns, self.rows)

    def joined(self, other: Rounding, n_dots: int, n_rows: int, n_columns: int) -> Rounding:
        """For the terms of these scores, whose numbers are given, followed by the terms of ``other``."""
        return Rounding(
            _padded(self.dots, n_dots, 0) + other.dots,
            _padded(self.rows, n_rows, EARLY) + other.rows,
            _padded(self.columns, n_columns, EARLY) + other.columns,
        )

    def same_stages(self, n: int) -> bool:
        """Whether the first n row shifts have the same stages as the first n column shifts."""
        return _padded(self.rows, n, EARLY) == _padded(self.columns, n, EARLY)

    def with_stages(self, n: int, axis: int, *stages: int) -> Rounding:
        """With stages for further shifts of rows (axis 1) or columns (axis 0), which follow the first n."""
        if not any(stages):
            return self  # missing entries mean EARLY
        if axis == 1:
            return self._replace(rows=_padded(self.rows, n, EARLY) + stages)
        return self._replace(columns=_padded(self.columns, n, EARLY) + stages)


def _padded(values: tuple[int, ...], n: int, value: int) -> tuple[int, ...]:
    return values[:n] + (value,) * (n - len(values))


PLAIN = Rounding()
