"""Checks of the arguments of flows of particles: parameters, masks, weights, steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._ode import ADAPTIVE
from .arrays import Real, finite, not_empty, points, real_array, shape
from .numbers import count, positive
from .options import one_of, refuse, shown
from .times import rising

Velocity = Callable[[Any, float], Any]
Doubles = npt.NDArray[np.float64]
Parameter = npt.ArrayLike | Callable[[float], npt.ArrayLike]


def _matrix(name: str, value: npt.ArrayLike) -> Doubles:
    array = real_array(name, value)
    not_empty(name, array)
    finite(name, array)
    return np.ascontiguousarray(array, dtype=np.float64)


def query_key(name: str, value: npt.ArrayLike, heads: int, layers: int | None) -> Doubles:
    """Q or K, whose heads are stacked as in TPDE 2.9, as an array (layers or 1, heads, k, d)."""
    array = _matrix(name, value)
    wanted = "(heads*k, d)" if layers is None else f"(heads*k, d) or ({layers}, heads*k, d)"
    if array.ndim == 3 and layers is not None:
        layer_axis(name, array, layers)
    elif array.ndim != 2:
        hint = "" if layers is not None else "; layers need times="
        raise ValueError(f"{name}: wanted shape {wanted}, got {array.shape}{hint}")
    rows, d = array.shape[-2:]
    if rows % heads:
        raise ValueError(
            f"heads: wanted a divisor of the {rows} rows of {name}, got {heads}; "
            "heads are stacked row-wise, k rows each (TPDE 2.9)"
        )
    return array.reshape(-1, heads, rows // heads, d)


def values(value: npt.ArrayLike, heads: int, d: int, layers: int | None) -> Doubles:
    """V as an array (layers or 1, heads or 1, d, d)."""
    array = _matrix("V", value)
    shapes = f"({d}, {d})" if heads == 1 else f"({d}, {d}) or ({heads}, {d}, {d})"
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] != d:
        raise ValueError(
            f"V: wanted square matrices {shapes} for points of dimension {d}, got shape "
            f"{array.shape}; absorb an output projection W as W @ V"
        )
    if array.ndim == 2:
        return array.reshape(1, 1, d, d)
    if array.ndim == 4 and layers is not None:
        layer_axis("V", array, layers)
        if array.shape[1] not in (1, heads):
            raise ValueError(f"V: wanted {heads} heads on axis 1, got shape {array.shape}")
        return array
    if array.ndim == 3:
        first = array.shape[0]
        if layers is not None and heads > 1 and first == layers == heads:
            raise ValueError(
                f"V: shape {array.shape} can mean layers or heads; "
                "pass V[:, None] (layers) or np.broadcast_to(V, (layers, *V.shape)) (heads)"
            )
        if first == heads:
            return array[None]
        if layers is not None and first == layers:
            return array[:, None]
    also = "" if layers is None else f", or with {layers} layers in front"
    raise ValueError(f"V: wanted shape {shapes}{also}, got {array.shape}")


def layer_axis(name: str, array: Doubles, layers: int) -> None:
    if array.shape[0] != layers:
        raise ValueError(
            f"{name}: wanted {layers} layers on axis 0, as many as times, got shape {array.shape}"
        )


def layer_times(value: npt.ArrayLike) -> Doubles:
    times = _matrix("times", value)
    rising("times", times, do="layers begin at these times, e.g. np.arange(n_layers) * dt")
    return times


def positions(value: npt.ArrayLike) -> Doubles:
    array = _matrix("mask", value)
    shape("mask", array.shape, ("N",), what="positions", do="one number per particle")
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"mask: wanted positions in [0, 1], got values from {low:.3g} to {high:.3g}; "
            "rescale them, only their order matters"
        )
    return array


def weights(value: npt.ArrayLike) -> Doubles:
    array = _matrix("weights", value)
    shape("weights", array.shape, ("N",), do="one number per particle")
    if (array < 0).any() or not array.sum() > 0:
        got = f"a minimum of {array.min():.3g} and a sum of {array.sum():.3g}"
        refuse("weights", "numbers >= 0 with a positive sum", got)
    return np.asarray(array / array.sum())


def one_cloud(name: str, value: npt.ArrayLike, d: int | None = None) -> Real:
    """Finite particles (N, d) as a contiguous array."""
    array, _ = points(name, value)
    shape(name, array.shape, ("N", "d"), what="particles")
    if d is not None and array.shape[1] != d:
        refuse(name, f"particles of dimension {d} as the columns of Q", f"shape {array.shape}")
    return np.ascontiguousarray(array)


def count_matches(name: str, got: int, n: int) -> None:
    if got != n:
        refuse(name, f"{n} entries, one per particle", str(got))


def on_sphere(name: str, X: Real) -> None:
    off = float(np.abs(np.linalg.norm(X.astype(np.float64), axis=1) - 1).max())
    if off > 1e-3 if X.dtype == np.float32 else off > 1e-6:
        raise ValueError(
            f"{name}: wanted unit rows for a field on the sphere, got norms off by {off:.2g}; "
            f"pass {name} / np.linalg.norm({name}, axis=1, keepdims=True)"
        )


def choice(name: str, value: object, allowed: Sequence[str]) -> int:
    """The position of a word in a list; the core numbers the words in the same way."""
    one_of(name, value, allowed)
    return list(allowed).index(str(value))


def step_sizes(
    method: str,
    n_steps: int | None,
    rtol: float | None,
    atol: float | None,
    defaults: tuple[float, float],
) -> tuple[int, float, float]:
    """The number of equal steps, or 0 for steps that adapt, and then their tolerances."""
    if n_steps is not None:
        if rtol is not None or atol is not None:
            got = "drop one of them"
            refuse("rtol, atol", "None if n_steps is given, which fixes the steps", "both", got)
        return count("n_steps", n_steps), 1.0, 1.0
    if method not in ADAPTIVE:
        raise ValueError(
            f"n_steps: wanted a number of steps for {method}, whose steps are fixed, got None; "
            "pass n_steps=100, or method='dopri5' with rtol and atol"
        )
    given = (("rtol", rtol, defaults[0]), ("atol", atol, defaults[1]))
    tols = [positive(n, default if x is None else x) for n, x, default in given]
    return 0, tols[0], tols[1]


def velocity_function(field: Any) -> Velocity:
    """A function (X, t) -> velocity. Its signature is checked, if it has one, before it is called."""
    wanted = "field: wanted an AttentionField or a function (X, t) -> velocity, got "
    function: Velocity = field
    if not callable(field):
        raise TypeError(wanted + shown(field))
    try:
        signature = inspect.signature(field)
    except (TypeError, ValueError):  # functions written in C may have no signature
        return function
    try:
        signature.bind(None, 0.0)
    except TypeError:
        if len(signature.parameters) == 1:
            got = "one that takes 1 argument; pass lambda X, t: field(X)"
        else:
            got = f"one that is called as field{signature}; wrap it in a lambda X, t: ..."
        raise TypeError(wanted + got) from None
    return function


@dataclass(frozen=True)
class PythonVelocity:
    """A function (X, t) -> velocity of NumPy arrays, whose result is checked after every call."""

    function: Any

    def __call__(self, X: Real, t: float) -> Real:
        v = np.asarray(self.function(X, t))
        shape("field", v.shape, X.shape, what="a velocity")
        return np.ascontiguousarray(v, dtype=X.dtype)
