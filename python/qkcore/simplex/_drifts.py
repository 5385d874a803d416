"""A drift given as a function, a table or a fitted model, as pieces that are smooth in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .. import _checks

Double = npt.NDArray[np.float64]
Drift = Callable[[Double, float], npt.ArrayLike]


@runtime_checkable
class FittedDrift(Protocol):
    """Anything with scikit-learn's ``predict``: states (n, V), or (n, V + 1) with the time last."""

    def predict(self, X: Any, /) -> Any:
        """Drifts (n, V) at states."""
        ...


class Piece(NamedTuple):
    """The drift on [start, stop]; a step never crosses the end of a piece."""

    start: float
    stop: float
    drift: Drift


def pieces_of(drift: object, shape: tuple[int, ...], t0: float, t1: float) -> list[Piece]:
    """The smooth pieces of a drift between t0 and t1, for states of ``shape`` (..., V)."""
    if isinstance(drift, (tuple, list)):
        if len(drift) != 2:
            raise ValueError(
                f"drift: wanted a table (times, values), got {len(drift)} items; pass a pair of arrays"
            )
        return _table(drift[0], drift[1], shape, t0, t1)
    if isinstance(drift, FittedDrift):
        return [Piece(t0, t1, _from_model(drift, shape))]
    if callable(drift):
        return [Piece(t0, t1, drift)]
    raise TypeError(
        f"drift: wanted a function of (p, t), a table (times, values) or a fitted model with predict, "
        f"got {type(drift).__name__}; pass e.g. lambda p, t: b"
    )


def _table(
    times: npt.ArrayLike, values: npt.ArrayLike, shape: tuple[int, ...], t0: float, t1: float
) -> list[Piece]:
    t = _checks.doubles("drift", times)
    b = np.asarray(values, dtype=np.float64)
    if t.ndim != 1 or len(t) < 2 or not np.isfinite(t).all() or (np.diff(t) <= 0).any():
        raise ValueError(
            f"drift: wanted at least two rising times, got shape {t.shape}; sort them, drop repeats"
        )
    if b.ndim == 0 or len(b) not in (len(t), len(t) - 1):
        raise ValueError(
            f"drift: wanted {len(t)} values (linear in between) or {len(t) - 1} (constant on each "
            f"interval) for {len(t)} times, got {b.shape}; its first axis is time"
        )
    if np.broadcast_shapes(b.shape[1:], shape) != shape:
        raise ValueError(f"drift: wanted values of shape (times, ..., {shape[-1]}), got {b.shape}")
    if not np.isfinite(b).all():
        raise ValueError("drift: wanted finite values, got NaN or inf; remove or replace them")
    slack = 1e-12 * max(1.0, abs(t0), abs(t1))
    if t[0] > t0 + slack or t[-1] < t1 - slack:
        raise ValueError(
            f"drift: wanted times that cover [{t0:g}, {t1:g}], got [{t[0]:g}, {t[-1]:g}]; "
            "nothing is extrapolated"
        )
    inside = t[(t > t0 + slack) & (t < t1 - slack)]
    ends = np.concatenate([[t0], inside, [t1]])
    first = int(np.searchsorted(t, t0 + slack, side="right")) - 1
    out = []
    for k in range(len(ends) - 1):
        i = min(first + k, len(t) - 2)
        if len(b) == len(t) - 1:
            piece = _constant(b[i])
        else:
            piece = _line(t[i], t[i + 1], b[i], b[i + 1])
        out.append(Piece(float(ends[k]), float(ends[k + 1]), piece))
    return out


def _constant(value: Double) -> Drift:
    return lambda p, t: value


def _line(start: float, stop: float, before: Double, after: Double) -> Drift:
    slope = (after - before) / (stop - start)
    return lambda p, t: before + (t - start) * slope


def _from_model(model: FittedDrift, shape: tuple[int, ...]) -> Drift:
    V = shape[-1]
    wanted = getattr(model, "n_features_in_", V)
    if wanted not in (V, V + 1):
        raise ValueError(
            f"drift: wanted a model of states ({V}) or of states and time ({V + 1} features), got one "
            f"fitted on {wanted}; fit it on rows like p, or on np.c_[p, t]"
        )

    def drift(p: Double, t: float) -> npt.ArrayLike:
        states = p.reshape(-1, V)
        if wanted == V + 1:
            states = np.column_stack([states, np.full(len(states), t)])
        return np.asarray(model.predict(states)).reshape(shape)

    return drift
