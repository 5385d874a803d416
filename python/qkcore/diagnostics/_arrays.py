"""Arguments that the diagnostics share: float64 arrays, callables that are asked for shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks

Float = npt.NDArray[np.float64]
Field = Callable[[Float, float], npt.ArrayLike]
"""A field over points and time: ``f(x, t)`` with x (n, d)."""


# The spacing of numbers near 1 in half precision, which NumPy knows only in part.
_HALF = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def plain_array(name: str, value: Any) -> tuple[Any, float]:
    """Tensors and half precision as NumPy arrays, and the spacing near 1 of what came (0: not known).

    Tensors of PyTorch are recognised by their methods. Half precision, which has no arithmetic here, becomes
    float32, which holds it exactly. Anything else passes as it is, for the checks that follow.
    """
    if isinstance(value, (list, tuple)):
        parts = [plain_array(name, part) for part in value]
        return [part for part, _ in parts], max((eps for _, eps in parts), default=0.0)
    array = value
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        array = _of_tensor(name, value)
    kind = str(getattr(value, "dtype", "")).rpartition(".")[2]
    if isinstance(array, np.ndarray):
        if kind in _HALF:
            return array.astype(np.float32), _HALF[kind]
        if array.dtype.kind == "f":
            return array, float(np.finfo(array.dtype).eps)
    return array, 0.0


def _of_tensor(name: str, value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "__dlpack_device__"):
        _checks.refuse_device(name, value)
    try:
        tensor = value.detach()
        if str(tensor.dtype).rpartition(".")[2] in _HALF:
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    except (RuntimeError, TypeError, AttributeError) as error:
        raise TypeError(
            f"{name}: wanted an array or a dense tensor on the CPU, got {type(value).__name__} that NumPy "
            f"cannot read ({error}); pass {name}.detach().cpu().float().numpy()"
        ) from error


def float64(name: str, value: npt.ArrayLike) -> Float:
    """A finite float64 array: diagnostics accumulate in double precision whatever comes in (H.1)."""
    value, _ = plain_array(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name}: wanted a rectangular array of numbers, got {type(value).__name__} ({error}); "
            "pass a NumPy array"
        ) from None
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    real = _checks.real_array(name, array)
    _checks.not_empty(name, real)
    if real.ndim:
        _checks.finite(name, real)
    else:
        _checks.number(name, real)
    return real.astype(np.float64, copy=False)


def points(name: str, value: npt.ArrayLike, least: int = 1) -> Float:
    """Points (n, d), at least ``least`` of them."""
    X = float64(name, value)
    _checks.shape(
        name, X.shape, ("n", "d"), what="points", do=f"for points on a line pass {name}[:, None]"
    )
    _checks.some(name, len(X), least, "points", "collect more")
    return X


def same_shape(name: str, value: npt.ArrayLike, shape: tuple[int, ...], other: str) -> Float:
    """A finite array of the shape of another argument."""
    array = float64(name, value)
    _checks.shape(name, array.shape, shape, why=f"like {other}")
    return array


def field_values(name: str, value: npt.ArrayLike, shape: tuple[int, ...], t: float) -> Float:
    """What a caller's field returned: the right shape and finite, or an error that says when."""
    array = np.asarray(value, dtype=np.float64)
    _checks.shape(
        name,
        array.shape,
        shape,
        what=f"a function whose value at t = {t:.6g} is",
        do="return one row per point",
    )
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name}: wanted finite values, got NaN or infinity at t = {t:.6g}; "
            "take smaller steps or start away from the singularity"
        )
    return array


def generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    """A generator from a seed; generators pass."""
    return np.random.default_rng(rng)


def count(name: str, value: object, least: int = 1) -> int:
    """An integer from ``least`` on, within reason: a count that could never be gone through is a slip."""
    return _checks.count(name, value, least, below=2**31)
