"""What scores of CPU and of device arrays share: shape, temperature, masks along the diagonal."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from . import _checks

if TYPE_CHECKING:
    from typing_extensions import Self

UNBOUNDED = 1 << 60  # a band this wide masks nothing


class DiagonalMasks:
    """Scores with batch axes, rows, columns and a band of entries that exist."""

    __slots__ = ()
    _batch: tuple[int, ...]
    _n_rows: int
    _n_cols: int
    _band: tuple[int, int]

    @abstractmethod
    def _with(self, *, band: tuple[int, int]) -> Self: ...

    @abstractmethod
    def __mul__(self, factor: object) -> Self: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return (*self._batch, self._n_rows, self._n_cols)

    @property
    def ndim(self) -> int:
        """The number of axes: two and the batch axes."""
        return len(self._batch) + 2

    def __truediv__(self, temperature: object) -> Self:
        """Scores over a positive temperature."""
        return self * (1.0 / _checks.positive("temperature", temperature))

    def causal(self, offset: int = 0) -> Self:
        """Keeps key j for row i when ``j <= i + offset``; the rest is -inf."""
        return self._band_limited(-UNBOUNDED, _checks.integer("offset", offset, any_size=True))

    def window(self, left: int | None, right: int | None) -> Self:
        """Keeps ``i - left <= j <= i + right``; None leaves that side open."""
        lo = -UNBOUNDED if left is None else -_checks.integer("left", left, any_size=True)
        hi = UNBOUNDED if right is None else _checks.integer("right", right, any_size=True)
        if lo > hi:
            raise ValueError(
                f"left, right: wanted a window with -left <= right, got left={left}, right={right};"
                " it would mask everything"
            )
        return self._band_limited(lo, hi)

    def _band_limited(self, lo: int, hi: int) -> Self:
        # Clamped so that sums of indices cannot overflow 64 bits.
        lo, hi = min(max(lo, -UNBOUNDED), UNBOUNDED), max(min(hi, UNBOUNDED), -UNBOUNDED)
        return self._with(band=(max(lo, self._band[0]), min(hi, self._band[1])))
