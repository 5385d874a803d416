"""Scores with NumPy arrays whose visits run on a device, for iterations that run on the host.

Stationary laws, spectra and transforms read some entries and compute many products. For the entries there is
a copy of the points and shifts on the host, in O(N d) memory. Every product, log-sum-exp and marginal is
computed on the device; only vectors are copied there and back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._host import Host
from .._lazy_scores import Scores
from ._cuda import Cuda, place_of

__all__ = ["full_precision", "visited", "visiting", "visits"]

Array = npt.NDArray[Any]


class _Visits(Host):
    """A backend that takes and returns NumPy arrays, and computes with ``cuda``."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        # The device array that belongs to an array of the host, found by the address of its data. Copies of
        # the scores' own arrays are kept; the entries of other arrays are removed together with the array.
        self._there: dict[tuple[Any, ...], Any] = {}
        self._copies: list[Array] = []

    @property
    def place(self) -> str:
        return self.cuda.place

    def copied(self, array: Any) -> Array:
        """A copy of a device array on the host; both are remembered as the same array."""
        if array.contiguous:
            host = self.cuda.download(array)
        elif array.T.contiguous:
            host = self.cuda.download(array.T).swapaxes(-1, -2)
        elif array.strides[-2] == 0:  # one row for all, as in a mask of padded keys
            host = np.broadcast_to(self.cuda.download(array.cut(-2, 0, 1)), array.shape)
        else:
            raise ValueError(
                "scores: wanted contiguous arrays for iterations on the host, got shape "
                f"{array.shape} with strides {array.strides}; pass contiguous copies"
            )
        if host.dtype == np.bool_:
            host = host.view(np.uint8)
        self._copies.append(host)
        self._there[_key(host)] = array
        return host

    def _on_device(self, array: Array) -> Any:
        """The array on the device. Points and matrices are uploaded once, vectors at every use."""
        key = _key(array)
        if (known := self._there.get(key)) is not None:
            return known
        if array.ndim == 1:
            return self.cuda.upload(array, str(array.dtype))
        if (known := self._there.get(_key(self.swap(array)))) is not None:
            return known.T
        found = self.cuda.upload(array, "bool" if array.dtype == np.uint8 else str(array.dtype))
        self._there[key] = found
        weakref.finalize(array, self._there.pop, key, None)
        return found

    def on_device(self, s: Scores) -> Scores:
        """The same scores, with arrays on the device."""
        move = self._on_device
        terms = s.terms.map(x=move, y=move, z=move, r=move, c=move)
        return Scores(s.dtype, s.batch, s.n_rows, s.n_cols, terms, bound=s.bound, backend=self.cuda)

    def logsumexp(self, s: Scores, target: Any, at: int) -> Array:
        c = self.cuda
        return c.download(c.logsumexp(self.on_device(s), None, c.stream()))

    def largest(self, s: Scores, at: int) -> Any:
        return self.cuda.largest(s, at)

    def normalizer(self, s: Scores, at: int) -> Any:
        return _Rounded(self.logsumexp(s, None, at))

    def product(
        self,
        s: Scores,
        weight: str,
        values: Array,
        target: Any,
        at: int,
        keep: list[Any] | None = None,
    ) -> Array:
        c = self.cuda
        there: list[Any] | None = None if keep is None or keep else []
        given = c.upload(values, str(s.dtype))
        out = c.product(self.on_device(s), weight, given, None, c.stream(), there)
        if keep is not None and there:
            keep.append(_Rounded(c.download(there[0].lse)))
        return c.download(out)

    def marginals(self, s: Scores, at: int) -> tuple[Array, Array]:
        c = self.cuda
        rows, columns = c.marginals(self.on_device(s), c.stream())
        return c.download(rows), c.download(columns)

    def materialize(self, s: Scores, weight: str | None, target: Any, at: int) -> Array:
        c = self.cuda
        return c.download(c.materialize(self.on_device(s), weight, None, c.stream()))

    def moment(self, which: str, s: Scores, log_weights: Callable[[int], Scores], at: int) -> Array:
        c = self.cuda
        found = c.moment(
            which, self.on_device(s), lambda _: self.on_device(log_weights(at)), c.stream()
        )
        return c.download(found)


class _Rounded:
    """The normaliser of every row as one rounded number, its log-sum-exp, as on devices."""

    def __init__(self, lse: Array) -> None:
        self.lse = lse

    def shifts(self) -> tuple[Array, ...]:
        return (np.where(np.isneginf(self.lse), 0.0, -self.lse).astype(self.lse.dtype),)

    def divided(self) -> None:
        return None


def visits(s: Scores) -> _Visits:
    """The backend of scores that were made by ``visited``."""
    assert isinstance(s.backend, _Visits)
    return s.backend


def visited(s: Scores, name: str = "operator") -> Scores:
    """The same scores with arrays on the host and visits on the device; ``name`` is used in messages."""
    full_precision(name, s)
    cuda = s.backend
    assert isinstance(cuda, Cuda)
    backend = _Visits(cuda)
    seen: dict[tuple[Any, ...], Array] = {}

    def copied(
        array: Any,
    ) -> Array:  # the same array is copied once, so that symmetric scores stay symmetric
        if (place := place_of(array)) not in seen:
            seen[place] = backend.copied(array)
        return seen[place]

    move: Callable[[Any], Array] = copied
    terms = s.terms.map(x=move, y=move, z=move, r=move, c=move)
    return Scores(s.dtype, s.batch, s.n_rows, s.n_cols, terms, bound=s.bound, backend=backend)


def full_precision(name: str, s: Scores) -> None:
    """Refuses scores whose inputs have 16 bits."""
    if (inputs := getattr(s.backend, "inputs", str(s.dtype))) != str(s.dtype):
        raise TypeError(
            f"{name}: wanted float32 or float64 for iterations on the host, got {inputs}; convert the points"
        )


def visiting(s: Scores, cuda: Cuda) -> Scores:
    """The same scores of NumPy arrays, which are uploaded at the first visit."""
    cuda.inputs = cuda.inputs or str(s.dtype)
    backend = _Visits(cuda)
    return Scores(s.dtype, s.batch, s.n_rows, s.n_cols, s.terms, bound=s.bound, backend=backend)


def _key(array: Array) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str
