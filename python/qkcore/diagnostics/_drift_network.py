"""A drift as a small network (EOT H.1), on JAX and optax, which are imported when it is fitted."""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._regressor import Double, Real, Regressor


class MLPDrift(Regressor):
    """Ridge regression plus a network for what it leaves, for drifts that bend (EOT-6, H.1).

    The network starts at 0, so that the model starts as the ridge, and is trained by Adam on all states at
    once. A fifth of them is left out, and the weights are those of the step with the least error on it, or
    none. Prediction needs NumPy alone. EOT has 2 or 3 layers of 256 to 512 units.

    width, depth: of the hidden layers; n_steps, learning_rate: of Adam; alpha: the ridge.

    >>> from qkcore.diagnostics.drift import MLPDrift
    >>> MLPDrift(width=64, n_steps=100)
    MLPDrift(width=64, n_steps=100)
    """

    def __init__(
        self,
        width: int = 256,
        depth: int = 2,
        n_steps: int = 400,
        learning_rate: float = 3e-3,
        alpha: float = 1e-3,
        random_state: int = 0,
    ) -> None:
        self.width = width
        self.depth = depth
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> MLPDrift:
        """Fit the ridge, then the network to its residuals."""
        points, target = self._data(X, y)
        width = _checks.integer_within("width", self.width, 1, 10**5, "units of a layer")
        depth = _checks.integer_within("depth", self.depth, 1, 10, "hidden layers")
        steps = _checks.integer_within("n_steps", self.n_steps, 1, 10**7, "take one step at least")
        rate = _checks.positive("learning_rate", self.learning_rate)
        alpha = _checks.positive("alpha", self.alpha)
        x = points.astype(np.float64)
        self._centre = x.mean(axis=0)
        self._scale = np.sqrt(((x - self._centre) ** 2).mean()) or 1.0
        z = (x - self._centre) / self._scale
        self._mean = target.mean(axis=0)
        gram = z.T @ z + alpha * np.eye(z.shape[1])
        self._linear = np.linalg.solve(gram, z.T @ (target - self._mean))
        left = target - self._mean - z @ self._linear
        self._unit = np.sqrt((left**2).mean()) or 1.0
        rng = np.random.default_rng(self.random_state)
        sizes = [z.shape[1], *[width] * depth, target.shape[1]]
        start = [
            (rng.normal(size=(a, b)) / np.sqrt(a) * (k < depth), np.zeros(b))
            for k, (a, b) in enumerate(pairwise(sizes))
        ]
        order = rng.permutation(len(z))
        held, kept = np.split(order, [max(1, len(z) // 5)])
        r = left / self._unit
        self.n_steps_, self._weights = _train(
            start, (z[kept], r[kept]), (z[held], r[held]), steps, rate
        )
        return self

    def predict(self, X: npt.ArrayLike) -> Real:
        """Drifts at states X (n, d): (n, m), or (n,) when y was."""
        points = self._queries(X)
        z = (points.astype(np.float64) - self._centre) / self._scale
        out = z @ self._linear + self._mean
        if self._weights:
            h: Double = z
            for W, b in self._weights[:-1]:
                h = h @ W + b
                h = h / (1 + np.exp(-np.clip(h, -700, 700)))
            W, b = self._weights[-1]
            out = out + self._unit * (h @ W + b)
        return self._shaped(np.asarray(out), points)


def _train(
    start: list[tuple[Double, Double]],
    data: tuple[Double, Double],
    left_out: tuple[Double, Double],
    n_steps: int,
    rate: float,
) -> tuple[int, list[tuple[Double, Double]]]:
    """The step of least error on what was left out, and the weights there; none where it is the start."""
    program = _program(n_steps, rate)
    single = [(W.astype(np.float32), b.astype(np.float32)) for W, b in start]
    best, at = program(single, *(x.astype(np.float32) for x in (*data, *left_out)))
    kept = [(np.asarray(W, np.float64), np.asarray(b, np.float64)) for W, b in best]
    return int(at), kept if int(at) else []


@lru_cache(maxsize=8)
def _program(n_steps: int, rate: float) -> Any:
    """All steps, compiled once for all fits of one shape: a drift is fitted at every layer."""
    try:
        jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    except ImportError as problem:
        raise ImportError(
            f"a drift by a network needs JAX and optax ({problem}): pip install 'qkcore[train]'"
        ) from None
    jnp = jax.numpy
    optimizer = optax.adam(rate)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        h = x
        for W, b in weights[:-1]:
            h = jax.nn.silu(h @ W + b)
        W, b = weights[-1]
        return jnp.mean((h @ W + b - y) ** 2)

    def train(weights: Any, x: Any, y: Any, new_x: Any, new_y: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            weights, state, best, least, at = carry
            update, state = optimizer.update(jax.grad(loss)(weights, x, y), state, weights)
            weights = optax.apply_updates(weights, update)
            error = loss(weights, new_x, new_y)
            better = error < least
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), weights, best)
            least, at = jnp.where(better, error, least), jnp.where(better, now, at)
            return (weights, state, best, least, at), None

        begin = (weights, optimizer.init(weights), weights, loss(weights, new_x, new_y), 0)
        (_, _, best, _, at), _ = jax.lax.scan(step, begin, jnp.arange(1, n_steps + 1))
        return best, at

    return jax.jit(train)
