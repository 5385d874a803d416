"""A search for the worst case, by random configurations and local maximisation (MTA-3).

Every ratio is that of an actual pair of measures, or a limit of such ratios, so none exceeds the true
constant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ._domains import Domain
from ._jacobian import AttentionJacobian
from ._kernels import AttentionKernel
from ._lookups import TableLookup
from ._measure import Measure
from ._potentials import Potential
from ._transport import w1

__all__ = ["attention_ratio", "lookup_ratio", "measure_ratio", "query_ratio"]

Array = npt.NDArray[np.float64]
Points = tuple[Array, ...]

_STEP = 1e-4  # distance of pairs that approximate a derivative, relative to the diameter
_KEEP = 16  # number of configurations that are improved at the same time


def _climb(
    ratio: Callable[..., Array], start: Points, domain: Domain, steps: int, rng: np.random.Generator
) -> float:
    """The best ratio over the starts and over random moves of the best of them."""
    values = ratio(*start)
    best = np.argsort(values)[::-1][:_KEEP]
    points = [p[best] for p in start]
    value = values[best]
    size = np.full(len(best), 0.3)
    scale = domain.diameter_l2
    for _ in range(steps):
        trial = [
            domain.project(p + scale * size[:, None] * rng.normal(size=p.shape)) for p in points
        ]
        found = ratio(*trial)
        better = found > value
        for p, q in zip(points, trial, strict=True):
            p[better] = q[better]
        value = np.where(better, found, value)
        size = np.clip(np.where(better, 1.5 * size, 0.85 * size), 1e-6, 0.5)
    return float(value.max(initial=0.0))


def query_ratio(
    potential: Potential, domain: Domain, samples: int, steps: int, rng: np.random.Generator
) -> float:
    """Proposition 19, first inequality: queries x, y and measures on two atoms u, v with the worst weights.

    For these W1 is :math:`\\tanh(|\\Delta|/4)\\|u-v\\|_1`, where Delta is the second difference of a.
    """

    def ratio(x: Array, y: Array, u: Array, v: Array) -> Array:
        delta = (
            potential.pairs(x, u)
            - potential.pairs(x, v)
            - potential.pairs(y, u)
            + potential.pairs(y, v)
        )
        apart = np.abs(x - y).sum(axis=1)
        moved = np.tanh(np.abs(delta) / 4) * np.abs(u - v).sum(axis=1)
        # If the points are too close, the difference is a rounding error.
        return np.where(apart > 1e-7 * domain.diameter, moved / np.maximum(apart, 1e-300), 0.0)

    x, y, u, v = (domain.sample(samples, rng) for _ in range(4))
    near = np.arange(samples) % 2 == 0
    axis = np.eye(domain.dim)[rng.integers(domain.dim, size=samples)]
    shifted = domain.project(x - np.sign(x - domain.centre) * axis * _STEP * domain.diameter)
    y[near] = shifted[near]
    return _climb(ratio, (x, y, u, v), domain, steps, rng)


def measure_ratio(
    potential: Potential, domain: Domain, samples: int, steps: int, rng: np.random.Generator
) -> float:
    """Proposition 19, second inequality: nearly all mass is at u, and a small part moves from v to v'.

    As that part goes to 0, the ratio tends to :math:`|h(v') - h(v)|/\\|v'-v\\|_1` with
    :math:`h(v) = e^{a(x,v)-a(x,u)}\\|v-u\\|_1`, if W1 is estimated with the 1-Lipschitz function
    :math:`\\|z-u\\|_1`.
    """

    def ratio(x: Array, u: Array, v: Array, other: Array) -> Array:
        gain = np.exp(potential.pairs(x, v) - potential.pairs(x, u))
        change = np.exp(potential.pairs(x, other) - potential.pairs(x, v))
        here, there = np.abs(v - u).sum(axis=1), np.abs(other - u).sum(axis=1)
        apart = np.abs(other - v).sum(axis=1)
        value = gain * np.abs(there * change - here) / np.maximum(apart, 1e-300)
        return np.where(apart > 1e-7 * domain.diameter, value, 0.0)

    x, u, v, other = (domain.sample(samples, rng) for _ in range(4))
    near = np.arange(samples) % 2 == 0
    axis = np.eye(domain.dim)[rng.integers(domain.dim, size=samples)]
    shifted = domain.project(v - np.sign(v - domain.centre) * axis * _STEP * domain.diameter)
    other[near] = shifted[near]
    return _climb(ratio, (x, u, v, other), domain, steps, rng)


def lookup_ratio(
    kernel: AttentionKernel, domain: Domain, samples: int, steps: int, rng: np.random.Generator
) -> float:
    """Proposition 21: largest :math:`\\|\\ell(x) - \\ell(y)\\|_1/\\|x-y\\|_1` found (exact for a table)."""
    lookup = kernel.values
    if isinstance(lookup, TableLookup):
        return lookup.lipschitz

    def ratio(x: Array, y: Array) -> Array:
        apart = np.abs(x - y).sum(axis=1)
        moved = np.abs(lookup.values(x) - lookup.values(y)).sum(axis=1)
        return np.where(apart > 1e-7 * domain.diameter, moved / np.maximum(apart, 1e-300), 0.0)

    x, y = domain.sample(samples, rng), domain.sample(samples, rng)
    axis = np.eye(domain.dim)[rng.integers(domain.dim, size=samples)]
    step = np.where(domain.centre > x, 1.0, -1.0) * axis * 0.1 * domain.diameter / domain.dim
    near = np.arange(samples) % 2 == 0
    y[near] = domain.project(x + step)[near]
    return _climb(ratio, (x, y), domain, steps, rng)


def attention_ratio(
    kernel: AttentionKernel, domain: Domain, samples: int, steps: int, rng: np.random.Generator
) -> float:
    """Theorem 23: local constants of small weighted measures, or ratios of pairs if there is no derivative.

    Nothing is measured (the result is 0) for tables, whose keys cannot move, and for projections onto
    other families.
    """
    if kernel.projection != "dirac" or isinstance(kernel.values, TableLookup):
        return 0.0

    def local(points: Array, logits: Array) -> float:
        weights = np.exp(logits - logits.max())
        mu = Measure(points, weights / weights.sum())
        try:
            return AttentionJacobian(kernel, mu).w1_norm().value
        except NotImplementedError:
            return _pair_ratio(kernel, mu, domain, rng)

    best, kept = 0.0, (domain.sample(2, rng), np.zeros(2))
    for _ in range(samples):
        n = int(rng.integers(2, 6))
        points, logits = domain.sample(n, rng), rng.normal(size=n) * rng.choice([0.0, 1.0, 5.0])
        value = local(points, logits)
        if value > best:
            best, kept = value, (points, logits)
    size = 0.3
    for _ in range(steps):
        points, logits = kept
        moved = domain.project(points + size * domain.diameter_l2 * rng.normal(size=points.shape))
        trial = np.clip(logits + 3 * size * rng.normal(size=len(logits)), -12, 12)
        value = local(moved, trial)
        better = value > best
        if better:
            best, kept = value, (moved, trial)
        size = float(np.clip(size * (1.5 if better else 0.9), 1e-4, 0.5))
    return best


def _pair_ratio(
    kernel: AttentionKernel, mu: Measure, domain: Domain, rng: np.random.Generator
) -> float:
    """The ratio of W1 distances, after the layer and before it, of mu and a copy with moved points."""
    moved = domain.project(mu.points + 0.05 * domain.diameter_l2 * rng.normal(size=mu.points.shape))
    nu = Measure(moved, mu.weights)
    apart = w1(mu, nu)
    if apart < 1e-7 * domain.diameter:
        return 0.0
    return w1(kernel.step(mu), kernel.step(nu)) / apart
