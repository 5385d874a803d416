"""Kernels for qk.bridge as users write them, with NumPy and SciPy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

Array = np.ndarray[Any, np.dtype[Any]]


class Dense:
    """exp of an array of logarithms."""

    curvature: Any
    scaled: Any
    entries: Any

    def __init__(self, logs: Array, symmetric: bool = False) -> None:
        self.logs = logs.astype(np.float64)
        self.shape, self.dtype, self.symmetric = logs.shape, logs.dtype, symmetric
        self.calls: list[str] = []
        self.curvature, self.scaled = self._curvature, self._scaled
        self.entries = None  # which tests set to _entries

    def rows(self, g: Array, mass: Any) -> tuple[Array, Array | None]:
        self.calls.append("rows")
        with np.errstate(divide="ignore"):
            lse = logsumexp(self.logs + g, axis=1)
        self.softmax = np.exp(self.logs + g - np.where(np.isneginf(lse), 0, lse)[:, None])
        return lse, None if mass is None else mass(lse) @ self.softmax

    def columns(self, f: Array) -> Array:
        self.calls.append("columns")
        with np.errstate(divide="ignore"):
            out: Array = logsumexp(self.logs + f[:, None], axis=0)
        return out

    def _curvature(self, x: Array, mass: Array) -> Array:
        self.calls.append("curvature")
        out: Array = (mass * (self.softmax @ x)) @ self.softmax
        return out

    def _entries(self, first: int, end: int, least: float) -> tuple[Array, Array, Array]:
        self.calls.append("entries")
        p = self.softmax[first:end]
        i, j = np.nonzero(p >= least)
        return i, j, p[i, j]

    def _scaled(self, factor: float) -> Dense:
        self.calls.append("scaled")
        out = Dense(factor * self.logs)
        out.calls = self.calls
        return out
