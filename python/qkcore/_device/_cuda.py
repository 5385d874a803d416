"""Arrays of a CUDA device and the kernels of ``qkcore_cuda``, as the backend of scores and operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._host import WEIGHTS
from ._arrays import largest_score
from ._cuda_flows import CudaFlows
from ._factors import DeviceFactors

if TYPE_CHECKING:
    from .._lazy_scores import Scores
    from .._terms import Terms

__all__ = ["Cuda", "one_of", "place_of"]

_SOFTMAX = WEIGHTS["softmax"]


class _Normalizer:
    """The normaliser of a row as one rounded number, its log-sum-exp."""

    __slots__ = ("_backend", "lse")

    def __init__(self, backend: Cuda, lse: Any) -> None:
        self._backend, self.lse = backend, lse

    def shifts(self) -> tuple[Any, ...]:
        c = self._backend
        return (c.module.map_vector("minus_or_zero", self.lse, stream=c.stream()),)

    def divided(self) -> None:
        return None


class Cuda(DeviceFactors, CudaFlows):
    """The backend for one device and the array library of the first device array of a call."""

    host_arrays = False
    inputs = ""
    """the dtype of points, matrices and right-hand sides: a dtype of 16 bits, or the dtype of the results"""

    @property
    def place(self) -> str:
        return f"cuda:{self.device}"

    # ---- arguments ----------------------------------------------------------------------------------

    def at(self, n_threads: int | None, stream: object = None) -> int:
        if n_threads is not None:
            raise TypeError(
                f"n_threads: wanted None for arrays on {self.place}, which uses no threads of the CPU, got "
                f"{n_threads}"
            )
        return self.stream(stream)

    def matrix(self, name: str, value: Any) -> tuple[Any, np.dtype[Any], float, bool]:
        array = self.numbers(name, value, short=True)
        _checks.shape(name, array.shape, (..., "N", "M"), do=f"pass {name}[None, :]")
        found = self.figures((name, array, None))[0]
        largest = self.finite(name, found, minus_inf=True)
        self.inputs = array.dtype
        return array, self.real(array), largest, bool(found["minus_inf"])

    def points(
        self, names: tuple[str, str], X: Any, Y: Any
    ) -> tuple[Any, Any, float, float, np.dtype[Any]]:
        arrays: list[tuple[str, Any]] = []
        for name, value in zip(names, (X,) if Y is None or Y is X else (X, Y), strict=False):
            array = self.numbers(name, value, short=True)
            hint = f"for points on a line pass {name}[:, None]"
            _checks.shape(name, array.shape, (..., "n", "d"), what="points", do=hint)
            if arrays and array.dtype != arrays[0][1].dtype:
                raise TypeError(
                    f"{name}: wanted {arrays[0][1].dtype} like {names[0]}, got {array.dtype}; "
                    "convert one of them"
                )
            arrays.append((name, array))
        figures = self.figures(*((name, array, None) for name, array in arrays))
        largest = [self.finite(n, found) for (n, _), found in zip(arrays, figures, strict=True)]
        x, y = arrays[0][1], arrays[-1][1]
        self.inputs = x.dtype
        return x, y, largest[0], largest[-1], self.real(x)

    def small(self, value: Any, dtype: np.dtype[Any]) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(
                self.download(self.take(f"W[{k}]", w, dtype=str(dtype), like="the points"))
                for k, w in enumerate(value)
            )
        return self.download(self.take("W", value, dtype=str(dtype), like="the points"))

    def vectors(
        self, dtype: np.dtype[Any], batch: tuple[int, ...], *named: tuple[str, Any, int]
    ) -> list[tuple[Any, float]]:
        arrays = [(name, self.vector(name, x, str(dtype), n, batch)) for name, x, n in named]
        figures = self.figures(*((name, x, None) for name, x in arrays))
        return [
            (x, self.finite(name, found, minus_inf=True))
            for (name, x), found in zip(arrays, figures, strict=True)
        ]

    def values(
        self, name: str, value: Any, dtype: np.dtype[Any], like: str = "the scores"
    ) -> tuple[Any, bool]:
        short = self.inputs not in ("float32", "float64")
        return self.take(name, value, dtype=self.inputs if short else str(dtype), like=like), False

    def check_finite(self, name: str, array: Any) -> None:
        self.finite(name, self.figures((name, array, None))[0])

    def boolean(self, name: str, value: Any, core: tuple[int, ...]) -> Any:
        mask = self.take(name, value, dtype="bool")
        _checks.core_shape(name, mask.shape, core, "as the scores")
        return mask

    def output(self, name: str, given: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return super().output(name, given, shape, str(dtype))

    def writable(self, target: Any, vector: bool, at: int) -> Any:
        if target is None:
            return None
        array = self.module.asarray(target, "out", at)
        return array.expand() if vector else array

    # ---- views --------------------------------------------------------------------------------------

    def swap(self, array: Any) -> Any:
        return array.T

    def cut(self, array: Any, axis: int, first: int, last: int) -> Any:
        return array.cut(axis, first, last)

    def one(self, array: Any, index: tuple[int, ...], core: tuple[slice, ...]) -> Any:
        return one_of(array, index, len(core))

    def indexed(self, array: Any, index: tuple[Any, ...], core: int) -> Any:
        if not all(hasattr(i, "__index__") for i in index):
            raise NotImplementedError(
                f"index: wanted one integer for every batch axis of scores on {self.place}, got {index}"
            )
        lead = array.ndim - core
        return one_of(array, tuple(int(i) for i in index[len(index) - lead :]), core)

    def has_minus_inf(self, array: Any) -> bool:
        return bool(self.figures(("scores", array, None))[0]["minus_inf"])

    def part(self, array: Any, index: Any) -> Any:
        return self.give(one_of(self.take("batch", array), tuple(map(int, index)), 1))

    def taken(self, array: Any, at: npt.NDArray[np.intp], axis: int) -> Any:
        raise NotImplementedError(
            f"columns: wanted scores of CPU arrays, got scores on {self.place}, where selecting columns "
            "is not implemented"
        )

    def column(self, array: Any) -> Any:
        return array.expand()

    def same(self, a: Any, b: Any) -> bool:
        return a is b or place_of(a) == place_of(b)

    # ---- small maps ---------------------------------------------------------------------------------

    def scaled(self, array: Any, factor: float) -> Any:
        return self.module.map_vector("affine", array, a=factor, stream=self.stream())

    def project(self, name: str, points: Any, matrix: npt.NDArray[Any]) -> tuple[Any, float]:
        self._full_precision(name)
        if points.ndim != 2 or not points.contiguous:
            raise ValueError(
                f"{name}: wanted contiguous points (n, d) for use with W on a device, got shape "
                f"{points.shape} with strides {points.strides}; pass a contiguous copy, one problem "
                "at a time"
            )
        dtype = self.real(points)
        out = self.module.project(points, self.upload(matrix.T, str(dtype)), stream=self.stream())
        found = self.figures((name, out, None))[0]
        bad = found["nan"] or found["plus_inf"] or found["minus_inf"]
        return out, largest_score(f"{name} times W", math.inf if bad else found["largest"], dtype)

    def unit_rows(self, name: str, x: Any) -> Any:
        from ._rows import Sphere

        self._full_precision(name)
        if x.ndim != 2 or not x.contiguous:
            raise ValueError(
                f"{name}: wanted contiguous points (n, d) on a device, got shape {x.shape} with strides "
                f"{x.strides}; pass a contiguous copy, one problem at a time"
            )
        stream = self.stream()
        squares = self.figures((name, self.module.row_dots(x, x, stream=stream), None))[0]
        if squares["smallest"] == 0 or squares["plus_inf"]:
            raise ValueError(
                f"{name}: wanted points other than 0 whose squared norms do not overflow, got squared norms "
                f"from {squares['smallest']:.3g} to {squares['largest']:.3g}"
            )
        out = self.module.map_vector("affine", x, a=1.0, stream=stream)
        Sphere(self, x).normalise(out, stream)
        return out

    def row_dots(self, a: Any, b: Any, factor: float) -> Any:
        self._full_precision("X")
        return self.module.row_dots(a, b, factor, stream=self.stream())

    def _full_precision(self, name: str) -> None:
        if self.inputs not in ("float32", "float64"):
            raise TypeError(
                f"{name}: wanted float32 or float64 for scores that project points, got "
                f"{self.inputs}; convert it, or use dot without W"
            )

    def centred(self, x: Any, y: Any) -> None:
        return None

    def negated(self, x: Any, n_last: int) -> Any:
        raise NotImplementedError  # only called if ``centred`` returns points

    def padding(self, terms: Terms, mask: Any, dtype: np.dtype[Any], n_rows: int) -> Terms:
        return terms._replace(masks=(*terms.masks, mask.broadcast_rows(n_rows)))

    def joined(self, s: Scores, t: Scores) -> None:
        other = t.backend
        if not isinstance(other, Cuda):
            raise TypeError(
                f"s + t: wanted both scores on {self.place}, got scores of CPU arrays on one side; move the "
                "arrays to one place"
            )
        if other.device != self.device:
            raise ValueError(
                f"s + t: wanted scores on one device, got {self.place} and {other.place}"
            )
        if other.inputs != self.inputs:
            raise TypeError(
                f"s + t: wanted scores of one dtype, got {self.inputs} and {other.inputs}; "
                "convert the data of one of them"
            )

    # ---- visits -------------------------------------------------------------------------------------

    def describe(self, s: Scores) -> tuple[Any, ...]:
        """The description of scores of cuda/bind/description.hpp.

        It does not say in which order terms are added; this depends only on the kernel.
        """
        t = s.terms
        if t.offsets is not None:
            raise TypeError(
                f"ragged: wanted scores of CPU arrays, got scores on {self.place}, where ragged blocks are "
                "not implemented; use batch axes"
            )
        return (
            str(s.dtype),
            self.device,
            s.batch,
            s.n_rows,
            s.n_cols,
            t.dots,
            t.distances,
            t.dense,
            t.row_bias,
            t.col_bias,
            t.masks,
            *t.band,
        )

    def logsumexp(self, s: Scores, target: Any, at: int) -> Any:
        return self.module.reduce_rows(s._described, _SOFTMAX, None, True, lse=target, stream=at)[0]

    def largest(self, s: Scores, at: int) -> Any:
        raise NotImplementedError(
            f"max: wanted scores of CPU arrays, got scores on {self.place}, where it is not implemented"
        )

    def normalizer(self, s: Scores, at: int) -> _Normalizer:
        return _Normalizer(self, self.logsumexp(s, None, at))

    def product(
        self,
        s: Scores,
        weight: str,
        values: Any,
        target: Any,
        at: int,
        keep: list[Any] | None = None,
    ) -> Any:
        wanted = keep is not None and not keep
        lse, product = self.module.reduce_rows(
            s._described, WEIGHTS[weight], values, wanted, out=target, stream=at
        )
        if keep is not None and wanted:
            keep.append(_Normalizer(self, lse))
        return product

    def materialize(self, s: Scores, weight: str | None, target: Any, at: int) -> Any:
        if weight == "softmax":
            s = s.normalized(self.normalizer(s, at).shifts(), 1)
        elif weight not in (None, "exp"):
            raise NotImplementedError(
                f'to_numpy: wanted weight "exp" on {self.place}, got {weight!r}, for which this is not '
                "implemented; take to_numpy() of the scores"
            )
        return self.module.materialize(s._described, weight is None, target, stream=at)

    def marginals(self, s: Scores, at: int) -> tuple[Any, Any]:
        rows, columns = self.module.marginals(s._described, stream=at)
        return rows, columns

    def moment(self, which: str, s: Scores, log_weights: Callable[[int], Scores], at: int) -> Any:
        from ._moments import expected_rows

        log = log_weights(at)
        if which != "entropy":
            return expected_rows(log, s, at)
        out = expected_rows(log, log, at)
        self.module.map_vector("affine", out, a=-1.0, out=out, stream=at)
        return out

    # ---- results ------------------------------------------------------------------------------------

    def turned(self, array: Any) -> Any:
        return self.library.transpose(array)

    def squeeze(self, array: Any) -> Any:
        return array.squeeze()

    def here(self, name: str, array: Any) -> npt.NDArray[Any]:
        return self.download(self.take(name, array))

    def visited(self, s: Scores) -> Scores:
        from ._visits import visited

        return visited(s)

    def returned(self, s: Scores) -> Scores:
        from ._visits import visits

        return visits(s).on_device(s)

    def visiting(self, s: Scores) -> Scores:
        from ._visits import visiting

        return visiting(s, self)

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        if array.contiguous or array.ndim < 2:
            return self.download(array)
        return np.stack([self.to_host(array.entry(k)) for k in range(array.shape[0])])

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        return self.upload(array, str(array.dtype))


def place_of(array: Any) -> tuple[Any, ...]:
    """The memory of a device array: address, shape, strides and dtype."""
    return array.pointer, array.shape, array.strides, array.dtype


def one_of(array: Any, index: tuple[int, ...], core: int) -> Any:
    """The part of an array that belongs to one problem of a batch; a problem has ``core`` axes."""
    n_batch = array.ndim - core
    for k in index[len(index) - n_batch :]:
        array = array.entry(k if array.shape[0] > 1 else 0)
    return array
