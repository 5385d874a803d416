"""How far the Jacobian of a layer is from symmetric: P4 without samples of a flow.

The motion of a layer is u = f(x) - x; where u is a gradient its Jacobian J is symmetric. The share

.. math:: \\frac{\\|(J - J^T)/2\\|^2}{\\|J - cI\\|^2}, \\qquad c = \\mathrm{tr}\\,J / d,

is 0 for gradients, 1 for rotations and 1/2 for a random matrix. A multiple of the identity, which every
residual layer and every shrinking adds, is taken off first, or it would hide the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import count
from ._arrays import Float, float64, generator
from ._stats import Interval

Product = Callable[[Float, Float], npt.ArrayLike]
_Applied = Callable[[Float, Float], Float]
LayerMap = Callable[[Float], npt.ArrayLike] | tuple[Product, Product]


@dataclass(frozen=True)
class Asymmetry:
    """The antisymmetric share of a Jacobian; see :func:`jacobian_asymmetry`."""

    share: float
    """0 for a gradient, 1/2 for a random matrix, 1 for a rotation; NaN if J is a multiple of the identity"""
    interval: Interval
    """95 % over the probes; a point where the Jacobian was formed"""
    n_probes: int
    exact: bool
    """whether the Jacobian was formed column by column"""

    def __str__(self) -> str:
        low, high = self.interval
        how = "all columns" if self.exact else f"{self.n_probes} probes"
        return (
            f"antisymmetric share of the Jacobian {self.share:.4g} [{low:.4g}, {high:.4g}] ({how})"
        )


def jacobian_asymmetry(
    layer_map: LayerMap,
    X: npt.ArrayLike,
    *,
    n_probes: int = 32,
    seed: int | np.random.Generator | None = 0,
) -> Asymmetry:
    """The antisymmetric share of the Jacobian J of f(x) - x at the state X (P4; EOT-11).

    ``layer_map``: f, a function of states like X, differentiated by central differences in the precision of
    its values; or a tuple of two functions of (x, v): the products of the Jacobian of f and of its transpose
    with v. The state X (n, d) is one point: a layer may mix its rows, as attention does. States of at most
    ``n_probes`` numbers have their Jacobian formed; others are probed by random signs (Hutchinson).

    >>> import numpy as np
    >>> from qkcore.diagnostics import rotation
    >>> x = np.random.default_rng(0).normal(size=(2, 3))
    >>> abs(rotation.jacobian_asymmetry(lambda x: x - 0.1 * np.tanh(x), x).share) < 1e-12
    True
    """
    x = float64("X", X)
    _checks.shape("X", x.shape, ("n", "d"), what="states")
    m = count("n_probes", n_probes, 4)
    forward, backward = _products(layer_map)
    if x.size <= m:
        J = np.stack([forward(x, e.reshape(x.shape)).ravel() for e in np.eye(x.size)], axis=1)
        off = J - np.trace(J) / x.size * np.eye(x.size)
        below = float((off**2).sum())
        share = float((((J - J.T) / 2) ** 2).sum()) / below if below > _noise(J) else float("nan")
        return Asymmetry(share, (share, share), x.size, True)
    rng = generator(seed)
    square, twice, trace = np.empty(m), np.empty(m), np.empty(m)
    for k in range(m):
        v = rng.choice([-1.0, 1.0], size=x.shape)
        Jv = forward(x, v)
        # tr(J J) = E <J^T v, J v>; without products of the transpose <v, J (J v)> is the same.
        twice[k] = (backward(x, v) * Jv).sum() if backward else (v * forward(x, Jv)).sum()
        square[k], trace[k] = (Jv * Jv).sum(), (v * Jv).sum()
    return _from_probes(square, twice, trace, x.size)


def _from_probes(square: Float, twice: Float, trace: Float, size: int) -> Asymmetry:
    """The share and its jackknife error; the square of the trace is unbiased."""
    from scipy.stats import t as student

    m = len(square)

    def energies(keep: npt.NDArray[Any]) -> tuple[float, float]:
        s, w, c = square[keep], twice[keep], trace[keep]
        centre = (c.sum() ** 2 - (c**2).sum()) / (len(c) * (len(c) - 1)) / size
        return 0.5 * float(s.mean() - w.mean()), float(s.mean() - centre)

    every = np.arange(m)
    top, below = energies(every)
    if not below > 1e-12 * float(square.mean()):
        return Asymmetry(float("nan"), (float("nan"), float("nan")), m, False)
    left_out = np.array([a / b for a, b in (energies(np.delete(every, k)) for k in range(m))])
    error = float(np.sqrt((m - 1) / m * ((left_out - left_out.mean()) ** 2).sum()))
    share, wide = top / below, float(student.ppf(0.975, m - 1))
    return Asymmetry(share, (share - wide * error, share + wide * error), m, False)


def _noise(J: Float) -> float:
    """Of a Jacobian that is a multiple of the identity: the rounding of differences."""
    return 1e-16 * float((J**2).sum())


def _products(layer_map: LayerMap) -> tuple[_Applied, _Applied | None]:
    """Products of the Jacobian of f(x) - x and of its transpose with a vector."""
    if isinstance(layer_map, tuple):
        if len(layer_map) != 2:
            raise ValueError(
                f"layer_map: wanted a function or a pair (jvp, vjp), got {len(layer_map)} items"
            )
        jvp, vjp = layer_map
        _checks.function("layer_map[0]", jvp, "(x, v)")
        _checks.function("layer_map[1]", vjp, "(x, v)")
        return _less_identity(jvp), _less_identity(vjp)
    _checks.function("layer_map", layer_map, "the states")
    return _differences(layer_map), None


def _less_identity(product: Product) -> _Applied:
    def moved(x: Float, v: Float) -> Float:
        return np.asarray(_values(product(x, v), x)[0] - v)

    return moved


def _differences(f: Callable[[Float], npt.ArrayLike]) -> _Applied:
    def product(x: Float, v: Float) -> Float:
        size, scale = _root_mean_square(v), _root_mean_square(x) or 1.0
        if size == 0:
            return np.zeros_like(x)
        eps = _values(f(x), x)[1]
        step, direction = eps ** (1 / 3) * scale, v / size
        ahead, behind = (_values(f(x + sign * step * direction), x)[0] for sign in (1, -1))
        return np.asarray((ahead - behind) / (2 * step) * size - v)

    return product


def _root_mean_square(x: Float) -> float:
    largest = float(np.abs(x).max())
    return largest * float(np.sqrt(np.square(x / largest).mean())) if largest > 0 else 0.0


def _values(out: npt.ArrayLike, x: Float) -> tuple[Float, float]:
    array = np.asarray(out)
    _checks.shape("layer_map", array.shape, x.shape, what="a function whose value is")
    real = _checks.real_array("layer_map", array)
    _checks.finite("layer_map", real)
    return real.astype(np.float64), float(np.finfo(real.dtype).eps)
