"""Results of many problems: an array of results that gives every figure as an array over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Batch", "each"]

T = TypeVar("T")


class Batch(Generic[T]):
    """Results of one kind, one for each problem of a batch.

    A field of the results is an array over the batch: ``norms.total`` is (8, 12) for 8 x 12 heads, and
    ``regimes.rho`` is (8, 12, N). ``norms[0, 2]`` is one result; ``len`` and iteration go along the first
    axis.
    Fields whose lengths differ from problem to problem are arrays of objects.
    """

    def __init__(self, results: Any) -> None:
        self._results: Any = results

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the batch axes."""
        out: tuple[int, ...] = self._results.shape
        return out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        values = [getattr(one, name) for one in self._results.ravel()]
        return stacked(values, self.shape)

    def __getitem__(self, index: Any) -> Any:
        found = self._results[index]
        return Batch(found) if isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        return int(self.shape[0])

    def __bool__(self) -> bool:  # a result is true, even with no problems
        return True

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __str__(self) -> str:
        kind = type(self._results.flat[0]).__name__
        lines = [f"{kind} of a batch {self.shape}"]
        first = list(np.ndindex(self.shape))[:3]
        lines += [f"{list(k)}: {str(self._results[k]).splitlines()[0]}" for k in first]
        return "\n".join(lines + ["..."] * (self._results.size > 3))

    def __repr__(self) -> str:
        return f"Batch({type(self._results.flat[0]).__name__}, shape={self.shape})"


def each(batch: tuple[int, ...], call: Callable[[tuple[int, ...]], Any]) -> Any:
    """``call(index)`` for every problem: an array of numbers or of arrays, or a ``Batch`` of results."""
    values = [call(index) for index in np.ndindex(batch)]
    if isinstance(values[0], (float, int, np.generic, np.ndarray)):
        return stacked(values, batch)
    results = np.empty(len(values), object)
    results[:] = values
    return Batch(results.reshape(batch))


def stacked(values: list[Any], batch: tuple[int, ...]) -> Any:
    """Values of one shape as an array with the batch axes in front; values of several as one of objects."""
    arrays = [np.asarray(value) for value in values]
    if any(a.shape != arrays[0].shape or a.dtype == object for a in arrays):
        out = np.empty(len(values), object)
        for k, value in enumerate(values):
            out[k] = value
        return out.reshape(batch)
    return np.stack(arrays).reshape(*batch, *arrays[0].shape)
