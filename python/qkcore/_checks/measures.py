"""Checks of laws, marginals and covariances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _pieces
from .arrays import Real, finite, not_empty, real_array
from .options import refuse

# How far the sum of a row of probabilities may be from 1. A softmax over 10^6 entries is within this.
_MASS = {4: 1e-4, 8: 1e-8}


def probabilities(name: str, value: npt.ArrayLike) -> Real:
    """Rows of probabilities (..., V): finite, not negative, and with sum 1."""
    array = real_array(name, value)
    if array.ndim == 0:
        raise ValueError(
            f"{name}: wanted rows of probabilities (..., V), got a number; pass an array"
        )
    not_empty(name, array)
    finite(name, array)
    smallest = float(array.min())
    if smallest < 0:
        raise ValueError(
            f"{name}: wanted probabilities >= 0, got {smallest:.3g}; for logits pass "
            f"qk.simplex.from_logits({name})"
        )
    off = np.abs(array.sum(axis=-1, dtype=np.float64) - 1.0)
    if off.max() > _MASS[array.itemsize]:
        row = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
        where = f" in row {row if len(row) > 1 else row[0]}" if row else ""
        raise ValueError(
            f"{name}: wanted rows that sum to 1 within {_MASS[array.itemsize]:g}, got a sum that is off "
            f"by {off.max():.3g}{where}; divide by {name}.sum(axis=-1, keepdims=True)"
        )
    return array


def covariances(name: str, value: npt.ArrayLike, d: int | None = None) -> Real:
    """Covariances (..., d, d): square, finite, symmetric and positive semidefinite up to rounding.

    The result is exactly symmetric.
    """
    array = real_array(name, value)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or d not in (None, array.shape[-1]):
        size = "d" if d is None else d
        raise ValueError(
            f"{name}: wanted covariances of shape (..., {size}, {size}), got shape {array.shape}; "
            f"for a variance s on a line pass np.array([[s]])"
        )
    not_empty(name, array)
    finite(name, array)
    turned = array.swapaxes(-1, -2)
    scale = np.abs(array).max(axis=(-1, -2))
    eps = float(np.finfo(array.dtype).eps)
    if (off := np.abs(array - turned).max(axis=(-1, -2)) > 1e3 * eps * scale).any():
        raise ValueError(
            f"{name}: wanted symmetric matrices, got {int(off.sum())} of {off.size} that are not; "
            f"pass ({name} + {name}.swapaxes(-1, -2)) / 2 if the asymmetry is rounding"
        )
    symmetric: Real = 0.5 * (array + turned)
    try:  # far cheaper than eigenvalues, which are needed only if this fails
        np.linalg.cholesky(
            symmetric
            + (1e3 * eps * scale)[..., None, None] * np.eye(array.shape[-1], dtype=array.dtype)
        )
        return symmetric
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(symmetric)[..., 0]
    if (bad := smallest < -1e3 * eps * scale).any():
        raise ValueError(
            f"{name}: wanted positive semidefinite matrices, got {int(bad.sum())} of {bad.size} with a "
            f"negative eigenvalue (the lowest is {float(smallest.min()):.3g}); a covariance has none"
        )
    return symmetric


def masses(name: str, array: Real) -> None:
    """Refuses weights that are not a measure: not finite, negative, or all zero."""
    finite(name, array)
    if (low := min(float(part.min()) for (part,) in _pieces.pieces(array))) < 0:
        raise ValueError(f"{name}: wanted weights >= 0, got {low:.3g}; masses cannot be negative")
    with np.errstate(over="ignore"):
        found = mass(array)
    if found == 0:
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    if found == math.inf:
        raise OverflowError(
            f"{name}: the total mass overflows float64; divide the weights by their largest"
        )


def total(weights: Real) -> float:
    """The sum of weights to almost the last digit, because it is computed in extended precision."""
    return float(_pieces.total(lambda w: w.sum(dtype=np.longdouble), weights))


def mass(weights: Real) -> float:
    """The sum of weights in float64."""
    return float(_pieces.total(lambda w: w.sum(dtype=np.float64), weights))


def mass_slack(n: int, dtype: np.dtype[Any]) -> float:
    """The relative difference up to which two sums of n rounded weights count as equal."""
    return 16 * math.sqrt(n) * float(np.finfo(dtype).eps)


def none_negative(
    name: str, array: npt.NDArray[Any], wanted: str = "numbers >= 0", do: str = ""
) -> None:
    """Refuses an array with a negative entry."""
    if array.size and array.min() < 0:
        refuse(name, wanted, _lowest(array), do)


def all_positive(
    name: str, array: npt.NDArray[Any], wanted: str = "numbers > 0", do: str = ""
) -> None:
    """Refuses an array with an entry that is not above 0, or is NaN."""
    if array.size and not array.min() > 0:
        refuse(name, wanted, _lowest(array), do)


def _lowest(array: npt.NDArray[Any]) -> str:
    at = np.unravel_index(int(array.argmin()), array.shape)
    where = ", ".join(map(str, at))
    return f"{array.min():.3g}" + (f" at index {where}" if array.size > 1 else "")
