"""The Swiss roll, the two noise schedules and the temperature of D.2 (DAC-13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ... import _checks

Array = npt.NDArray[np.float64]

VARIANTS = ("corrected", "printed")


def swiss_roll(n: int, noise: float, seed: int) -> Array:
    """n points (n, 3) of scikit-learn's ``make_swiss_roll(n, noise=noise, random_state=seed)``.

    >>> swiss_roll(4, 0.1, 0).shape
    (4, 3)
    """
    # The generator and the order of the draws are those of scikit-learn, so the points are the same.
    draw = np.random.RandomState(seed)
    t = 1.5 * np.pi * (1 + 2 * draw.uniform(size=n))
    height = 21 * draw.uniform(size=n)
    points = np.stack([t * np.cos(t), height, t * np.sin(t)])
    points += noise * draw.standard_normal(size=(3, n))
    return np.ascontiguousarray(points.T)


@dataclass(frozen=True)
class Standardized:
    """Points with mean 0 and variance 1 in each coordinate, and the map that made them so."""

    points: Array
    mean: Array
    scale: Array

    def apply(self, X: Array) -> Array:
        """The same map for other points."""
        return (X - self.mean) / self.scale


def standardize(X: Array, epsilon: float) -> Standardized:
    """Standardizes points as D.2 does: centres them and divides by sqrt(variance + epsilon)."""
    mean = X.mean(axis=0)
    scale = np.sqrt(np.square(X - mean).mean(axis=0) + epsilon)
    return Standardized((X - mean) / scale, mean, scale)


@dataclass(frozen=True)
class Schedule:
    """The noise of the steps t = 0 .. T-1 (the paper's 1 .. T): variances and quantities made from them."""

    beta: Array
    alpha_bar: Array
    """product of 1 - beta up to and including t"""
    posterior: Array
    """variance of the reverse step, (1 - alpha_bar_{t-1}) / (1 - alpha_bar_t) beta_t"""
    turned: int
    """number of steps whose beta was negative and was set to 0, as alpha_bar would have risen"""


def cosine_schedule(timesteps: int, offset: float, beta_max: float, variant: str) -> Schedule:
    """The clipped cosine schedule, as printed or with Nichol and Dhariwal's factor 1/2 (erratum 3).

    As printed the angle reaches pi, so cos^2 rises again after half of the steps and its ratios give negative
    variances. They are set to 0 here; otherwise alpha_bar would reach 20030, and the square root of
    1 - alpha_bar would be NaN.

    >>> bool(cosine_schedule(200, 0.008, 0.02, "corrected").alpha_bar[-1] < 0.08)
    True
    >>> cosine_schedule(200, 0.008, 0.02, "printed").turned
    101
    """
    _checks.one_of("variant", variant, VARIANTS)
    angle = (np.arange(timesteps + 1) / timesteps + offset) / (1 + offset) * np.pi
    if variant == "corrected":
        angle /= 2
    curve = np.cos(angle) ** 2
    raw = 1 - curve[1:] / curve[:-1]
    beta = np.clip(raw, 0.0, beta_max)
    alpha_bar = np.cumprod(1 - beta)
    before = np.concatenate([[1.0], alpha_bar[:-1]])
    return Schedule(
        beta=beta,
        alpha_bar=alpha_bar,
        posterior=beta * (1 - before) / (1 - alpha_bar),
        turned=int(np.count_nonzero(raw < 0)),
    )


def temperatures(timesteps: int, low: float, high: float) -> Array:
    """lambda(t), linear from low to high over t = 0 .. T-1."""
    return np.linspace(low, high, timesteps)
