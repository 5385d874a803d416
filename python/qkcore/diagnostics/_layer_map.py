"""How far the Jacobian of a layer is from symmetric: P4 without samples of a flow.

The motion of a layer is u = f(x) - x; where u is a gradient its Jacobian J is symmetric. The share

.. math:: \\frac{\\|(J - J^T)/2\\|^2}{\\|J - cI\\|^2}, \\qquad c = \\mathrm{tr}\\,J / d,

is 0 for gradients, 1 for rotations and 1/2 for a random matrix. A multiple of the identity, which every
residual layer and every shrinking adds, is taken off first, or it would hide the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    rng: int | np.random.Generator | None = 0,
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
    from scipy.stats import t as student

    x = float64("X", X)
    _checks.shape("X", x.shape, ("n", "d"), what="states")
    m = count("n_probes", n_probes, 4)
    forward, backward, rounding = _products(layer_map, x)
    if x.size <= m:
        J = np.stack([forward(x, e.reshape(x.shape)).ravel() for e in np.eye(x.size)], axis=1)
        off = J - np.trace(J) / x.size * np.eye(x.size)
        energy = float((off**2).sum())
        floor = _noise(float((J**2).sum()), x.size, rounding)
        share = float((((J - J.T) / 2) ** 2).sum()) / energy if energy > floor else float("nan")
        return Asymmetry(share, (share, share), x.size, True)
    signs = generator(rng).choice([-1.0, 1.0], size=(m, *x.shape))
    moved = [forward(x, v) for v in signs]
    square = float(np.mean([(Jv * Jv).sum() for Jv in moved]))
    c = float(np.mean([(v * Jv).sum() for v, Jv in zip(signs, moved, strict=True)])) / x.size
    top, below = np.empty(m), np.empty(m)
    for k, (v, Jv) in enumerate(zip(signs, moved, strict=True)):
        w = Jv - c * v  # B v with B = J - cI
        below[k] = (w * w).sum()
        if backward:
            top[k] = 0.25 * ((Jv - backward(x, v)) ** 2).sum()
        else:  # |B v|^2 - <v, B (B v)> over 2
            top[k] = 0.5 * (below[k] - (v * (forward(x, w) - c * w)).sum())
    if not below.mean() > _noise(square, x.size, rounding):
        return Asymmetry(float("nan"), (float("nan"), float("nan")), m, False)
    share = float(top.mean() / below.mean())
    error = float((top - share * below).std(ddof=1) / np.sqrt(m) / below.mean())
    wide = float(student.ppf(0.975, m - 1)) * error
    return Asymmetry(share, (share - wide, share + wide), m, False)


def _noise(square: float, size: int, rounding: float) -> float:
    """The square of a Jacobian (of f(x) - x) that is a multiple of the identity but for rounding."""
    return (30 * rounding) ** 2 * (size + square)


def _products(layer_map: LayerMap, x: Float) -> tuple[_Applied, _Applied | None, float]:
    """Products of the Jacobian of f(x) - x and of its transpose with a vector, and their rounding."""
    if isinstance(layer_map, tuple):
        if len(layer_map) != 2:
            raise ValueError(
                f"layer_map: wanted a function or a pair (jvp, vjp), got {len(layer_map)} items"
            )
        jvp, vjp = layer_map
        _checks.function("layer_map[0]", jvp, "(x, v)")
        _checks.function("layer_map[1]", vjp, "(x, v)")
        eps = _values(jvp(x, np.ones_like(x)), x)[1]
        return _less_identity(jvp), _less_identity(vjp), eps
    _checks.function("layer_map", layer_map, "the states")
    eps = _values(layer_map(x), x)[1]
    return _differences(layer_map, eps), None, eps ** (2 / 3)


def _less_identity(product: Product) -> _Applied:
    def moved(x: Float, v: Float) -> Float:
        return np.asarray(_values(product(x, v), x)[0] - v)

    return moved


def _differences(f: Callable[[Float], npt.ArrayLike], eps: float) -> _Applied:
    """Central differences with the step that balances their rounding, of f's own precision."""

    def product(x: Float, v: Float) -> Float:
        size, scale = _root_mean_square(v), _root_mean_square(x) or 1.0
        if size == 0:
            return np.zeros_like(x)
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
