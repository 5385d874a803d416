"""Constants of the finite-depth bound that follow from the drift itself, for drifts of a known form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Double = npt.NDArray[np.float64]

_ALL_PAIRS = 256  # entries of a row up to which all pairs of coefficients are compared


def _half_range(x: Double) -> Double:
    return np.asarray((x.max(axis=-1) - x.min(axis=-1)) / 2)


def drift_constants(drift: Any, V: int, n_layers: int) -> tuple[float, float, float] | None:
    """L_b, M_b and L_t of a table or of a ridge regression; None for drifts of which nothing is known."""
    if isinstance(drift, (tuple, list)):
        return _of_table(
            np.asarray(drift[0], np.float64), np.asarray(drift[1], np.float64), n_layers
        )
    affine = getattr(drift, "_affine", None)
    known = None if affine is None else affine()
    return None if known is None else _of_line(known[0], known[1], V)


def _of_table(times: Double, values: Double, n_layers: int) -> tuple[float, float, float] | None:
    """A table depends on time alone."""
    most = float(_half_range(values).max())
    if len(values) == len(times):
        width = np.diff(times).reshape(-1, *(1,) * (values.ndim - 1))
        slope = float(_half_range(np.diff(values, axis=0) / width).max())
        return 0.0, most, slope
    # Constant on intervals: no Lipschitz constant in time, and none is needed if no layer sees a jump.
    inside = times[(times > 0) & (times < 1)] * n_layers
    if np.abs(inside - inside.round()).max(initial=0.0) > 1e-9:
        return None
    return 0.0, most, 0.0


def _of_line(coef: Double, intercept: Double, V: int) -> tuple[float, float, float]:
    """b(p, t) = p W + t w + c: extreme over the simplex at its vertices.

    The l1 ball of differences of probabilities has the vertices (e_i - e_j) / 2.
    """
    W, slopes = coef[:V], coef[V:]
    if V <= _ALL_PAIRS:
        steep = max(float(_half_range((W - row) / 2).max()) for row in W)
    else:  # W_i - W_j = (W_i - m) - (W_j - m): at most twice too much
        steep = float(_half_range(W - W.mean(axis=0)).max())
    ends = [W + intercept, W + slopes.sum(axis=0) + intercept]
    most = max(float(_half_range(x).max()) for x in ends)
    return steep, most, float(_half_range(slopes).max(initial=0.0))
