"""Low-rank kernels whose factors are on the device: products of up to four experts through them (DAC-10)."""

from __future__ import annotations

import copy
import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .._terms import EVERYTHING
from ._arrays import Context
from ._missing import missing

__all__ = ["DeviceFactored", "DeviceLowRank", "DeviceProductOfFactors"]

_MOST_EXPERTS = 4  # max_terms of qk_cuda/types.hpp


class DeviceFactored:
    """:math:`K_{ij} = \\prod_e \\sum_c L^e_{ic} R^e_{cj}` on the device, as ``qkcore._factors.Factored``."""

    # So that `array @ kernel` comes to us and not to the library's own product.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    _context: Context
    # Components first, points contiguous.
    _left: tuple[Any, ...]
    _right: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self._left[0].shape[1], self._right[0].shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, as the factors came."""
        return np.dtype(str(self._left[0].dtype))

    @property
    def device(self) -> str:
        """The device that holds the factors, e.g. "cuda:0"."""
        return f"cuda:{self._context.device}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each expert."""
        return tuple(f.shape[0] for f in self._left)

    @property
    def T(self) -> DeviceFactored:
        """The transposed kernel."""
        out = copy.copy(self)
        out._left, out._right = self._right, self._left
        return out

    def apply(self, V: Any, *, stream: Any = None) -> Any:
        """``K @ V`` for a device array V of shape (M,) or (M, k): O((N + M) r_0 r_1 ... k) work."""
        c = self._context
        at = c.stream(stream)
        array = self._right_hand_sides("V", V, self.shape[1], 0)
        if array.ndim == 1:
            return c.give(self._product(array.expand().T, at).entry(0), None, at)
        return c.library.transpose(c.give(self._product(array.T, at), None, at))

    def apply_left(self, U: Any, *, stream: Any = None) -> Any:
        """``U @ K`` for a device array U of shape (N,) or (k, N)."""
        c = self._context
        at = c.stream(stream)
        array = self._right_hand_sides("U", U, self.shape[0], -1)
        if array.ndim == 1:
            return c.give(self.T._product(array.expand().T, at).entry(0), None, at)
        return c.give(self.T._product(array, at), None, at)

    def __matmul__(self, V: Any) -> Any:
        return self.apply(V)

    def __rmatmul__(self, U: Any) -> Any:
        return self.apply_left(U)

    def _product(self, z: Any, stream: int) -> Any:
        """z (k, M) times the transpose of the kernel."""
        z = _points_contiguous(self._context, z, stream)
        return self._context.module.factored_product(self._left, self._right, z, stream=stream)

    def _right_hand_sides(self, name: str, value: Any, length: int, axis: int) -> Any:
        c = self._context
        array = c.take(name, value, dtype=str(self.dtype), like="the factors")
        if array.ndim not in (1, 2) or array.shape[axis] != length:
            wanted = f"({length}, k)" if axis == 0 else f"(k, {length})"
            raise ValueError(
                f"{name}: wanted shape ({length},) or {wanted} for a kernel of shape {self.shape}, got "
                f"{array.shape}; " + ("did you mean U @ K?" if axis == 0 else "did you mean K @ V?")
            )
        if 0 in array.shape:
            raise ValueError(f"{name}: wanted no axis of length 0, got shape {array.shape}")
        c.finite(name, c.figures((name, array, None))[0])
        return array

    def to_cpu(self) -> Any:
        """The same kernel with NumPy factors: for bridges, counts of negative entries, errors."""
        from .._factors import LowRank, ProductOfFactors

        experts = [
            LowRank(self._context.download(left).T, self._context.download(right))
            for left, right in zip(self._left, self._right, strict=True)
        ]
        return ProductOfFactors(*experts) if len(experts) > 1 else experts[0]

    def __getattr__(self, name: str) -> NoReturn:
        from .._factors import LowRank

        missing(self, name, LowRank)

    def to_numpy(self) -> npt.NDArray[Any]:
        """The kernel as a NumPy array (N, M), computed on the host from the factors."""
        out: npt.NDArray[Any] = self.to_cpu().to_numpy()
        return out


class DeviceLowRank(DeviceFactored):
    """left @ right for device arrays (N, r) and (r, M): what ``LowRank`` of device arrays gives."""

    def __init__(self, left: Any, right: Any) -> None:
        self._context = c = Context(left, right)
        l, r = (_factor(c, name, x) for name, x in (("left", left), ("right", right)))
        if r.dtype != l.dtype:
            raise TypeError(
                f"right: wanted {l.dtype} like left, got {r.dtype}; convert one of them"
            )
        if l.shape[1] != r.shape[0]:
            raise ValueError(
                f"right: wanted shape ({l.shape[1]}, M) after left of shape {l.shape}, got {r.shape}; "
                "left is (N, r) and right (r, M)"
            )
        for name, found in zip(
            ("left", "right"), c.figures(("left", l, None), ("right", r, None)), strict=True
        ):
            c.finite(name, found)
        stream = c.stream()
        self._left = (_points_contiguous(c, l.T, stream),)
        self._right = (_points_contiguous(c, r, stream),)

    @property
    def rank(self) -> int:
        """The number r of components."""
        return self.ranks[0]

    def __repr__(self) -> str:
        return (
            f"DeviceLowRank(shape={self.shape}, rank={self.rank}, dtype={self.dtype}, "
            f"device={self.device!r})"
        )


class DeviceProductOfFactors(DeviceFactored):
    """The entrywise product of low-rank matrices on the device."""

    def __init__(self, *factors: Any) -> None:
        from .._factors import MOST_COMBINATIONS

        for k, factor in enumerate(factors):
            if not isinstance(factor, DeviceFactored):
                raise TypeError(
                    f"experts[{k}]: wanted low-rank factors on a device like the others, got "
                    f"{type(factor).__name__}; move its factors there: "
                    "LowRank(asarray(left), asarray(right)) of device arrays"
                )
            first = factors[0]
            if (factor.shape, factor.dtype, factor.device) != (
                first.shape,
                first.dtype,
                first.device,
            ):
                raise ValueError(
                    f"experts[{k}]: wanted shape {first.shape} and {first.dtype} on {first.device} like "
                    f"experts[0], got {factor.shape} and {factor.dtype} on {factor.device}"
                )
        self._context = factors[0]._context
        self._left = tuple(f for factor in factors for f in factor._left)
        self._right = tuple(f for factor in factors for f in factor._right)
        ranks = " x ".join(map(str, self.ranks))
        if len(self._left) > _MOST_EXPERTS:
            raise ValueError(
                f"experts: wanted at most {_MOST_EXPERTS} on a device, got {len(self._left)}; "
                "the CPU takes any number: use to_cpu() of them"
            )
        if math.prod(self.ranks) > MOST_COMBINATIONS:
            raise ValueError(
                f"experts: wanted ranks whose product is at most {MOST_COMBINATIONS}, got {ranks}; "
                "the work per point is that product: lower the ranks, or use the exact operators"
            )

    def __repr__(self) -> str:
        ranks = " x ".join(map(str, self.ranks))
        return (
            f"DeviceProductOfFactors(shape={self.shape}, ranks {ranks}, dtype={self.dtype}, "
            f"device={self.device!r})"
        )


def _factor(c: Context, name: str, value: Any) -> Any:
    array = c.numbers(name, value)
    if array.ndim != 2:
        raise ValueError(
            f"{name}: wanted a matrix, got shape {array.shape}; left is (N, r), right is (r, M)"
        )
    return array


def _points_contiguous(c: Context, array: Any, stream: int) -> Any:
    """(r, n) without gaps: the array itself when it has none, as on the CPU."""
    if array.contiguous:
        return array
    spec = (
        array.dtype,
        c.device,
        (),
        *array.shape,
        (),
        (),
        ((array, 1.0),),
        (),
        (),
        (),
        *EVERYTHING,
    )
    return c.module.materialize(spec, True, stream=stream)
