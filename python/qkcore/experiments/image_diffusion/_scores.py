"""Two exact scores in the coordinates of the data's principal axes, and the protocol of all scores.

The rotation to these axes does not change the noise, and makes the Gaussian law diagonal. Every score is
given by its denoiser :math:`D(x, t) = E[x_0 | x_t = x]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

import qkcore as qk

from ._schedule import VP, Steps

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]


class Score(Protocol):
    """What a sampler needs from a score."""

    def denoise(self, x: Single, t: float) -> Single:
        """E[x_0 | x_t = x], (n, d)."""
        ...


@dataclass(frozen=True, eq=False)
class Axes:
    """Principal axes of images (n, d) in [-1, 1]: x = axes z, largest variance first."""

    axes: Single
    """(d, d), columns are axes"""
    mean: Array
    """mean of the images, in z"""
    variance: Array
    """(d,), variances of the images, in z"""

    @classmethod
    def of(cls, images: Single) -> Axes:
        """Computes the axes from the covariance of the images."""
        centre = images.mean(axis=0, dtype=np.float64)
        moved = images - centre.astype(np.float32)
        covariance = (moved.T @ moved).astype(np.float64) / len(images)
        values, vectors = np.linalg.eigh(covariance)
        V = vectors[:, ::-1]
        variance = np.maximum(values[::-1], 0.0)
        return cls(np.ascontiguousarray(V, dtype=np.float32), centre @ V, variance)

    def enter(self, images: npt.NDArray[np.floating]) -> Single:
        """Converts images to z."""
        out: Single = np.asarray(images, dtype=np.float32) @ self.axes
        return out

    def pixels(self, z: Single) -> Single:
        """Converts z to pixels, where black is 0 and white 1."""
        x = z @ self.axes.T
        x += 1
        x *= 0.5
        return x

    @cached_property
    def brightness(self) -> Array:
        """The linear functional of z that gives an image's mean pixel, except for the constant 1/2."""
        out: Array = self.axes.sum(axis=0, dtype=np.float64) / (2 * len(self.axes))
        return out


@dataclass(frozen=True, eq=False)
class GaussianScore:
    """The exact score of the Gaussian with the data's mean and covariance."""

    mean: Array
    variance: Array
    vp: VP

    def gain(self, t: float) -> Array:
        """The gain in D = mean + gain (x - alpha mean)."""
        a, s = self.vp.alpha(t), self.vp.sigma(t)
        out: Array = a * self.variance / (a * a * self.variance + s * s)
        return out

    def denoise(self, x: Single, t: float) -> Single:
        """The denoiser, which is Wiener's filter."""
        g = self.gain(t)
        shift = self.mean * (1 - g * self.vp.alpha(t))
        out: Single = x * g.astype(np.float32) + shift.astype(np.float32)
        return out

    def law(self, t: float) -> tuple[Array, Array]:
        """Mean and variance of the true law at time t."""
        a, s = self.vp.alpha(t), self.vp.sigma(t)
        return a * self.mean, a * a * self.variance + s * s

    def sampled(self, table: Steps, *, true_start: bool = False) -> tuple[Array, Array]:
        """Mean and variance of the law at the end of a sampler, without sampling error.

        The sampler starts from N(0, I), or from the true law at t = 1, which differs a little. Everything is
        linear here, so the recursion of the two moments is exact for any step size.
        """
        *_, last = self.path(table, true_start=true_start)
        return last

    def path(self, table: Steps, *, true_start: bool = False) -> Iterator[tuple[Array, Array]]:
        """The two moments after every step."""
        m, v = np.zeros_like(self.mean), np.ones_like(self.mean)
        if true_start:
            m, v = self.law(float(table.t[0]))
        for k in range(len(table)):
            g = self.gain(float(table.t[k]))
            slope = table.keep[k] + table.pull[k] * g
            m = slope * m + table.pull[k] * self.mean * (1 - g * self.vp.alpha(table.t[k]))
            v = slope * slope * v + table.noise[k] ** 2
            yield m, v


@dataclass(frozen=True, eq=False)
class EmpiricalScore:
    """The exact score of a finite set of images: attention of the noisy image over them.

    The engine computes :math:`D = \\sum_j \\text{softmax}_j(-|x - \\alpha y_j|^2 / 2\\sigma^2)\\,y_j`.
    """

    points: Single
    vp: VP

    def denoise(self, x: Single, t: float) -> Single:
        """The mean of the images, weighted by how likely x came from each."""
        a, s = float(self.vp.alpha(t)), float(self.vp.sigma(t))
        shrunk = self.points * np.float32(a)
        weights = qk.softmax(qk.scores.distance(x, shrunk, beta=1 / (2 * s * s)))
        return np.asarray(weights @ self.points, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class PooledLaw:
    """The law of a random pixel of a random image; at every time it is a mixture of Gaussians."""

    weights: Array
    centres: Array
    variances: Array

    @classmethod
    def of_images(cls, images: Single) -> PooledLaw:
        """The law of the images' pixels: grey levels and how often they occur."""
        levels, counts = np.unique(images, return_counts=True)
        return cls(counts / counts.sum(), levels.astype(np.float64), np.zeros(len(levels)))

    @classmethod
    def of_gaussian(cls, axes: Axes) -> PooledLaw:
        """The law of the pixels of the Gaussian, with one component for each pixel."""
        V = axes.axes.astype(np.float64)
        d = len(V)
        return cls(np.full(d, 1 / d), V @ axes.mean, (V * V) @ axes.variance)

    def masses(self, vp: VP, t: float, bins: int) -> Array:
        """Masses of the bins over [0, 1] and of both sides beyond, in the order of PooledParity.masses."""
        a, s = float(vp.alpha(t)), float(vp.sigma(t))
        edges = 2 * np.linspace(0.0, 1.0, bins + 1) - 1
        spread = np.sqrt(a * a * self.variances + s * s)
        below = ndtr((edges[:, None] - a * self.centres) / spread) @ self.weights
        out: Array = np.diff(np.concatenate([[0.0], below, [1.0]]))
        return out


def score_of(denoised: Single, x: Single, t: float, vp: VP) -> Array:
    """The score :math:`\\nabla\\log p_t = (\\alpha D - x) / \\sigma^2` in double precision."""
    a, s = float(vp.alpha(t)), float(vp.sigma(t))
    out: Array = (a * denoised.astype(np.float64) - x) / (s * s)
    return out
