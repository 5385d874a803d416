"""Naive versions of the image experiment's measures (EOT-16): loops and closed forms in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def empirical_denoiser(x: Array, images: Array, alpha: float, sigma: float) -> Array:
    """E[x_0 | x] when x_0 is one of the images: one noisy image at a time."""
    out = np.zeros_like(x)
    for i, noisy in enumerate(x):
        logs = np.array([-np.sum((noisy - alpha * y) ** 2) / (2 * sigma**2) for y in images])
        weights = np.exp(logs - logs.max())
        out[i] = (weights[:, None] * images).sum(axis=0) / weights.sum()
    return out


def network(w: Any, y: Array, c: Array, log_ratio: float, waves: int) -> Array:
    """The residual network, one image at a time."""
    place = log_ratio / 10
    angles = [place * np.pi * 2.0**k / 4 for k in range(-1, waves - 1)]
    time = np.array([place, *np.sin(angles), *np.cos(angles)])

    def normal(v: Array) -> Array:
        return v / np.sqrt(np.mean(v * v) + 1e-6)

    def linear(p: Any, v: Array) -> Array:
        return v @ np.asarray(p["w"], dtype=np.float64) + np.asarray(p["b"], dtype=np.float64)

    out = []
    for image, near in zip(y, c, strict=True):
        h = linear(w["enter"], np.concatenate([image, near]))
        for block in w["blocks"]:
            both = linear(block["time"], time)
            scale, shift = both[: len(h)], both[len(h) :]
            z = linear(block["up"], normal(h)) * (1 + scale) + shift
            h = h + linear(block["down"], z / (1 + np.exp(-z)))
        out.append(linear(w["leave"], normal(h)) + linear(w["direct"], near))
    return np.array(out)


def pooled_cells(x: Array, bins: int) -> npt.NDArray[np.int64]:
    """The number of every value's bin over [0, 1]: 0 below, bins + 1 above."""
    edges = np.linspace(0, 1, bins + 1)
    cell = np.searchsorted(edges, x.ravel(), side="right")
    cell[x.ravel() == 1] = bins
    return cell
