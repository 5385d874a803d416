"""Integrals of the norm of V over time: exact for layers; by quadrature or by given bounds for functions."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._checks import particles as checks
from .fields import AttentionField

__all__ = ["VBound", "grown"]

Doubles = npt.NDArray[np.float64]
VBound = float | Callable[[float, float], float] | None

_STRATA = 2048  # strata of the whole time span; each has two random samples
_PIECES = 64  # pieces into which the quadrature cuts the whole time span at first
_RTOL = 1e-8
_MOST_REFINED = 1500  # the most intervals of the quadrature
_FAR_OFF = 0.02  # a quadrature with a larger relative error is refused
_LEAST_GAIN = 1e-2  # halving ends when 512 halvings lower the bound by less than this share
_MOST_INTERVALS = 4096


def grown(field: AttentionField, t0: float, ends: Doubles, V_bound: VBound) -> Doubles:
    """An upper bound of :math:`\\int_{t_0}^t\\|V(s)\\|\\,ds` for each time t, summed over heads."""
    _, _, V = field._given
    if V_bound is not None and not callable(V):
        raise ValueError(
            f"V_bound: wanted None for a V that is not a function of t, because its integral is exact, got "
            f"{_checks.shown(V_bound)}"
        )
    times = np.unique(np.concatenate([[t0], ends.ravel()]))
    total = [0.0]
    for a, b in itertools.pairwise(times.tolist()):
        if not callable(V):
            piece = _layers(field, a, b)
        elif V_bound is not None:
            piece = _proved(field, a, b, V_bound)
        else:
            piece = _checked_quadrature(field, a, b, (b - a) / float(times[-1] - times[0]))
        total.append(total[-1] + piece)
    # Rounding may make the sums too small, so they are raised by a bound on that.
    sums = np.array(total) * (1 + 4 * np.finfo(np.float64).eps * (len(total) > 2))
    found: Doubles = sums[np.searchsorted(times, ends)]
    return found


def speed(field: AttentionField, t: float) -> float:
    """:math:`\\sum_h\\|V_h(t)\\|_2`, over epsilon for sinkhorn."""
    given = field._given[2]
    if callable(given):  # only V is evaluated, because this is the inner loop
        V = np.asarray(given(t))
        if V.shape != (field.d, field.d) or V.dtype.kind != "f" or not np.isfinite(V).all():
            V = checks.values(V, field.heads, field.d, None)[0]  # or an error
    else:
        V = field.parameters(t)[2]
    norms = np.linalg.svd(V, compute_uv=False)[..., 0]
    heads = field.heads if norms.size == 1 else 1
    return heads * float(norms.sum()) / (field.epsilon if field.kind == "sinkhorn" else 1.0)


def _layers(field: AttentionField, a: float, b: float) -> float:
    cuts = [a, b]
    if field.times is not None:
        cuts[1:1] = [s for s in field.times if a < s < b]
    return sum(speed(field, (s + e) / 2) * (e - s) for s, e in itertools.pairwise(cuts))


def _checked_quadrature(field: AttentionField, a: float, b: float, share: float) -> float:
    """Adaptive quadrature plus its error estimate, but at least what independent random samples show."""
    from scipy.integrate import quad_vec

    rng = np.random.default_rng(0)
    pieces = max(2, math.ceil(_PIECES * share))
    # The cuts are random, because nodes that repeat with the period of V would see only a part of it.
    cuts = np.sort(rng.uniform(a, b, pieces - 1))
    size: Any = lambda s: speed(field, float(s))  # noqa: E731  # SciPy's stubs refuse what it takes
    found: Any = quad_vec(
        size,
        a,
        b,
        epsabs=1e-300,  # only the relative error counts
        epsrel=_RTOL,
        limit=_MOST_REFINED,
        points=cuts,
    )
    value, error = float(found[0]), float(found[1])
    if not (math.isfinite(value) and error <= _FAR_OFF * value):
        raise RuntimeError(
            f"V: its norm varies too fast for a quadrature between t = {a:g} and {b:g} "
            f"({value:.6g} +- {error:.2g}); pass V_bound=, a bound of its norm on intervals"
        )
    n = max(16, math.ceil(_STRATA * share))
    edges = a + (b - a) * np.arange(n)[:, None] / n
    at = edges + (b - a) / n * rng.random((n, 2))
    seen = np.array([[speed(field, float(s)) for s in pair] for pair in at])
    mean = (b - a) * float(seen.mean())
    spread = (b - a) * math.sqrt(float(((seen[:, 0] - seen[:, 1]) ** 2).sum()) / 4) / n
    # A jump inside a stratum may leave no trace in its two samples.
    unseen = 2 * (b - a) / n * float(np.ptp(seen))
    if mean - 6 * spread - unseen > (value + error) * (1 + 1e-9):
        raise RuntimeError(
            f"V: quadrature gives {value:.6g} for the integral of its norm between t = {a:g} and {b:g}, "
            f"random samples {mean:.6g} +- {spread:.2g}; pass V_bound=, a bound of its norm on intervals"
        )
    return max(value + error, mean + 4 * spread)


def _proved(field: AttentionField, a: float, b: float, V_bound: VBound) -> float:
    """The sum of bounds over intervals, of which the largest is halved as long as that lowers the sum."""
    scale = 1 / (field.epsilon if field.kind == "sinkhorn" else 1.0)

    def above(s: float, e: float) -> float:
        given = V_bound(s, e) if callable(V_bound) else V_bound
        bound = _checks.number("V_bound", given) * scale
        for t in (s, 0.5 * (s + e), e):
            if (norm := speed(field, t)) > bound * (1 + 1e-12):
                raise ValueError(
                    f"V_bound: wanted at least the norm of V on [{s:g}, {e:g}], which is "
                    f"{norm / scale:.6g} at t = {t:g}, got {bound / scale:.6g}"
                )
        return bound

    first = above(a, b)
    parts = [(-first * (b - a), a, b, first)]
    before = math.inf
    for k in range(_MOST_INTERVALS if callable(V_bound) else 0):
        if k % 512 == 0:
            total = -math.fsum(part[0] for part in parts)
            if total > (1 - _LEAST_GAIN) * before:
                break
            before = total
        _, s, e, bound = heapq.heappop(parts)
        middle = 0.5 * (s + e)
        for left, right in ((s, middle), (middle, e)):
            height = min(bound, above(left, right))
            heapq.heappush(parts, (-height * (right - left), left, right, height))
    return -math.fsum(part[0] for part in parts) * (1 + 1e-12)
