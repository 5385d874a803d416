"""In which order the terms of a score are added: what keeps the digits of normalised weights."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EARLY", "LATE", "PLAIN", "REFERENCE", "Rounding"]

# Stages of a shift, numbered as in cpp/include/qk/problem.hpp. A log-sum-exp near 1e4 that is rounded to the
# dtype and subtracted leaves an error of 1e4 eps in every weight. So it is subtracted in two parts: the
# maximum, which is exactly one of the rounded scores, and then the logarithm of a sum, which is small.
EARLY = 0  # added to the terms as they are summed
REFERENCE = 1  # added to the rounded score: minus a maximum
LATE = 2  # added after that


class Rounding(NamedTuple):
    """How a sum of terms is rounded, not which terms there are: to lose it costs digits, no more.

    Tuples may be shorter than the terms they describe: what is not said is 0, or ``EARLY``.
    """

    dots: tuple[int, ...] = ()
    """for each dot term, whether (1) its scale multiplies the columns or not (0), but the rows"""
    rows: tuple[int, ...] = ()
    """the stage of each row shift"""
    columns: tuple[int, ...] = ()
    """the stage of each column shift"""

    @property
    def late(self) -> bool:
        """Whether some shift is added to the rounded score."""
        return any(self.rows) or any(self.columns)

    def transposed(self, n_dots: int) -> Rounding:
        """For the transposed scores: scales stay with their arrays, so that both have the same bits."""
        dots = tuple(1 - side for side in _padded(self.dots, n_dots, 0))
        return Rounding(dots, self.columns, self.rows)

    def joined(self, other: Rounding, n_dots: int, n_rows: int, n_columns: int) -> Rounding:
        """For the terms of these scores, as many as the counts say, followed by those of others."""
        return Rounding(
            _padded(self.dots, n_dots, 0) + other.dots,
            _padded(self.rows, n_rows, EARLY) + other.rows,
            _padded(self.columns, n_columns, EARLY) + other.columns,
        )

    def same_stages(self, n: int) -> bool:
        """Whether n row shifts and n column shifts have the same stages."""
        return _padded(self.rows, n, EARLY) == _padded(self.columns, n, EARLY)

    def with_stages(self, n: int, axis: int, *stages: int) -> Rounding:
        """For further shifts of rows (axis 1) or columns (axis 0) of these stages, after n of that axis."""
        if not any(stages):
            return self  # what is not said is early
        if axis == 1:
            return self._replace(rows=_padded(self.rows, n, EARLY) + stages)
        return self._replace(columns=_padded(self.columns, n, EARLY) + stages)


def _padded(values: tuple[int, ...], n: int, value: int) -> tuple[int, ...]:
    return values[:n] + (value,) * (n - len(values))


PLAIN = Rounding()
