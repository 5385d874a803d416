"""The compact score model in JAX: a residual network on top of the exact Gaussian score (EOT-16).

In the coordinates of the principal axes, with :math:`\\lambda_i` their variances, the denoiser is

.. math:: D_i = D^{\\text{Gauss}}_i(x, t) + r_i(t)\\,F_i(y, c, t), \\qquad
    y = \\frac{x - \\alpha m}{\\sqrt{\\alpha^2\\lambda + \\sigma^2}}, \\qquad
    r_i^2 = \\frac{\\lambda_i\\sigma^2}{\\alpha^2\\lambda_i + \\sigma^2}.

y has variance 1 at every time, and r is the deviation that the Gaussian law leaves, so F has size 1 at all
times. F starts at 0, which gives the exact Gaussian score, and learns how the images differ from it. The
inputs c are the pixels' distances from black and from white in units of the noise, tanh((pixel ± alpha) /
2 sigma): the background is exactly black, and no smooth function of y can see noise that is so small. The
network consists of matrix products only, since a CPU computes these, but not convolutions, at its peak rate.
The loss is the usual one, the squared error of the predicted noise with uniform t.

Whole loops are compiled. Random numbers depend only on the seed and the step, so a run that is interrupted
and resumed gives the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from ._schedule import VP
from ._scores import Axes

Tree = Any
Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

WAVES = 8  # frequencies of the time's embedding
ROWS = 1000  # images in one compiled call, few enough for a core's cache


@dataclass(frozen=True)
class Recipe:
    """The network's size and how it is trained; a constant of the compiled program."""

    width: int
    blocks: int
    batch: int
    steps: int
    learning_rate: float
    ema: float
    t_end: float
    beta_min: float
    beta_max: float


class Law(NamedTuple):
    """The Gaussian that the network corrects, on the device."""

    mean: jax.Array
    variance: jax.Array
    axes: jax.Array


class State(NamedTuple):
    """Everything that a run needs to continue."""

    weights: Tree
    optimizer: Tree
    average: Tree


def law_of(axes: Axes) -> Law:
    """The Gaussian with these axes and variances, in single precision."""
    return Law(_single(axes.mean), _single(axes.variance), _single(axes.axes))


def _single(values: npt.ArrayLike) -> jax.Array:
    return jnp.asarray(np.asarray(values, dtype=np.float32))


def initial_weights(seed: int, d: int, recipe: Recipe) -> Tree:
    """Random weights of variance 1 / inputs; 0 in the output layer and in the second layer of every block."""
    draw = np.random.default_rng([seed, 0])
    width = recipe.width

    def dense(inputs: int, outputs: int, scale: float = 1.0) -> Tree:
        w = scale * draw.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        return {"w": _single(w), "b": _single(np.zeros(outputs))}

    embedded = 2 * WAVES + 1
    return {
        "enter": dense(3 * d, width),
        "blocks": [
            {
                "time": dense(embedded, 2 * width, 0.1),
                "up": dense(width, width),
                "down": dense(width, width, 0.0),
            }
            for _ in range(recipe.blocks)
        ],
        "leave": dense(width, d, 0.0),
        "direct": dense(2 * d, d, 0.0),
    }


def count(weights: Tree) -> int:
    """The number of parameters."""
    return sum(int(np.size(x)) for x in jax.tree.leaves(weights))


def _linear(p: Tree, v: jax.Array) -> jax.Array:
    out: jax.Array = v @ p["w"] + p["b"]
    return out


def _normal(v: jax.Array) -> jax.Array:
    out: jax.Array = v * jax.lax.rsqrt(jnp.square(v).mean(-1, keepdims=True) + 1e-6)
    return out


def network(w: Tree, y: jax.Array, c: jax.Array, log_ratio: jax.Array) -> jax.Array:
    """F (n, d) of y (n, d) and c (n, 2 d) at log signal-to-noise ratios (n,) or (1,)."""
    place = log_ratio[:, None] / 10
    angle = place * jnp.asarray(np.pi * 2.0 ** np.arange(-1, WAVES - 1) / 4, jnp.float32)
    time = jnp.concatenate([place, jnp.sin(angle), jnp.cos(angle)], axis=1)
    h = _linear(w["enter"], jnp.concatenate([y, c], axis=1))
    for block in w["blocks"]:
        scale, shift = jnp.split(_linear(block["time"], time), 2, axis=-1)
        z = jax.nn.silu(_linear(block["up"], _normal(h)) * (1 + scale) + shift)
        h = h + _linear(block["down"], z)
    return _linear(w["leave"], _normal(h)) + _linear(w["direct"], c)


def denoise(w: Tree, x: jax.Array, log_alpha: jax.Array, law: Law) -> jax.Array:
    """D (n, d) of x (n, d); the time is given by log_alpha (n,) or (1,)."""
    a = jnp.exp(log_alpha)[:, None]
    v = -jnp.expm1(2 * log_alpha)[:, None]
    total = a * a * law.variance + v
    centred = x - a * law.mean
    left_open = jnp.sqrt(law.variance * v / total)
    log_ratio = 2 * log_alpha - jnp.log(v[:, 0])
    pixels, twice = x @ law.axes.T, 2 * jnp.sqrt(v)
    c = jnp.tanh(jnp.concatenate([(pixels + a) / twice, (pixels - a) / twice], axis=1))
    F = network(w, centred * jax.lax.rsqrt(total), c, log_ratio)
    out: jax.Array = law.mean + a * law.variance / total * centred + left_open * F
    return out


def _log_alpha(t: jax.Array, recipe: Recipe) -> jax.Array:
    slope = recipe.beta_max - recipe.beta_min
    return -0.25 * t * t * slope - 0.5 * t * recipe.beta_min


def loss(w: Tree, x0: jax.Array, key: jax.Array, law: Law, recipe: Recipe) -> jax.Array:
    """Mean squared error of the predicted noise; the times are stratified over the batch."""
    when, how = jax.random.split(key)
    n = x0.shape[0]
    place = (jnp.arange(n) + jax.random.uniform(when, (n,))) / n
    log_alpha = _log_alpha(recipe.t_end + (1 - recipe.t_end) * place, recipe)
    noise = jax.random.normal(how, x0.shape)
    a = jnp.exp(log_alpha)[:, None]
    s = jnp.sqrt(-jnp.expm1(2 * log_alpha))[:, None]
    found = denoise(w, a * x0 + s * noise, log_alpha, law)
    return jnp.square(a / s * (found - x0)).mean()


def _optimizer(recipe: Recipe) -> Any:
    warm = min(200, max(1, recipe.steps // 10))
    rate = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, warm, max(recipe.steps, warm + 1), 0.02 * recipe.learning_rate
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def _key(seed: jax.Array | int, purpose: int) -> jax.Array:
    # XLA's own generator: on a CPU threefry is several times slower, and would cost as much as a layer
    return jax.random.fold_in(jax.random.key(seed, impl="rbg"), purpose)


@partial(jax.jit, static_argnames="recipe")
def _advance(
    state: State,
    seed: jax.Array,
    first: jax.Array,
    stop: jax.Array,
    images: jax.Array,
    law: Law,
    *,
    recipe: Recipe,
) -> tuple[State, jax.Array]:
    optimizer = _optimizer(recipe)
    key = _key(seed, 1)

    def step(i: jax.Array, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        (w, memory, average), total = carry
        which, rest = jax.random.split(jax.random.fold_in(key, i))
        x0 = images[jax.random.randint(which, (recipe.batch,), 0, len(images))]
        value, slope = jax.value_and_grad(loss)(w, x0, rest, law, recipe)
        update, memory = optimizer.update(slope, memory, w)
        w = optax.apply_updates(w, update)
        rate = jnp.minimum(recipe.ema, (1 + i) / (10 + i))  # the memory is short at first
        average = jax.tree.map(lambda m, v: rate * m + (1 - rate) * v, average, w)
        return State(w, memory, average), total + value

    state, total = jax.lax.fori_loop(first, stop, step, (state, jnp.float32(0)))
    return state, total / (stop - first)


_loss = jax.jit(loss, static_argnames="recipe")
_denoise = jax.jit(denoise)


@jax.jit
def _asymmetry(
    w: Tree, x: jax.Array, v: jax.Array, log_alpha: jax.Array, law: Law
) -> tuple[jax.Array, jax.Array]:
    def at(z: jax.Array) -> jax.Array:
        return denoise(w, z, log_alpha, law)

    _, forward = jax.jvp(at, (x,), (v,))
    _, pull = jax.vjp(at, x)
    backward = pull(v)[0]
    turning = jnp.square(forward - backward).sum(-1)
    stretching = jnp.square(forward + backward).sum(-1)
    return turning, stretching


class Trainer:
    """Trains on images in the coordinates of their axes (n, d)."""

    def __init__(self, images: Single, axes: Axes, recipe: Recipe) -> None:
        self.recipe = recipe
        self.law = law_of(axes)
        self.d = images.shape[1]
        self._images = _single(images)

    def start(self, seed: int) -> State:
        """Fresh weights: the exact Gaussian score."""
        w = initial_weights(seed, self.d, self.recipe)
        return State(w, _optimizer(self.recipe).init(w), w)

    def advance(self, state: State, seed: int, first: int, stop: int) -> tuple[State, float]:
        """Trains for the steps first .. stop-1; returns the new state and the mean loss over them."""
        state, value = _advance(
            state, seed, first, stop, self._images, self.law, recipe=self.recipe
        )
        return state, float(value)

    def validate(self, weights: Tree, images: Single, seed: int) -> float:
        """The loss on other images, with the same noise in every call."""
        found = _loss(weights, _single(images), _key(seed, 3), self.law, recipe=self.recipe)
        return float(found)

    def pack(self, tree: Tree) -> dict[str, npt.NDArray[Any]]:
        """The tree as named arrays, for a file."""
        return {f"a{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}

    def unpack(self, arrays: dict[str, npt.NDArray[Any]], like: Tree) -> Any:
        """The tree from :meth:`pack`'s arrays."""
        structure: Any = jax.tree.structure(like)
        leaves = [jnp.asarray(arrays[f"a{i}"]) for i in range(structure.num_leaves)]
        return jax.tree.unflatten(structure, leaves)


@dataclass(frozen=True, eq=False)
class NetworkScore:
    """A trained network as a score."""

    weights: Tree
    law: Law
    vp: VP

    def _time(self, t: float) -> jax.Array:
        return _single(np.reshape(self.vp.log_alpha(t), 1))

    def denoise(self, x: Single, t: float) -> Single:
        """D in blocks of equal size (the last is filled up), so that one compiled program serves all."""
        rows = min(ROWS, len(x))
        time = self._time(t)
        found = []
        for begin in range(0, len(x), rows):
            block = x[begin : begin + rows]
            filled = np.concatenate([block, np.zeros((rows - len(block), x.shape[1]), np.float32)])
            found.append(_denoise(self.weights, filled, time, self.law))
        return np.concatenate([np.asarray(v) for v in found])[: len(x)]

    def asymmetry(self, x: Single, t: float, seed: int) -> float:
        """Antisymmetric share of the Jacobian of D (in squared Frobenius norm); 0 for an exact score.

        A gradient has a symmetric Jacobian. The share is estimated with one random direction per sample.
        """
        v = np.random.default_rng([seed, 4]).standard_normal(x.shape, dtype=np.float32)
        turning, stretching = _asymmetry(self.weights, x, v, self._time(t), self.law)
        a, b = float(np.mean(np.asarray(turning))), float(np.mean(np.asarray(stretching)))
        return a / (a + b)


def gaussian_loss(axes: Axes, recipe: Recipe, n: int = 20000) -> float:
    """The loss of the Gaussian score on data with these variances: the mean of alpha^2 r^2 / sigma^2."""
    t = recipe.t_end + (1 - recipe.t_end) * (np.arange(n) + 0.5) / n
    a2 = np.exp(2 * VP(recipe.beta_min, recipe.beta_max).log_alpha(t))
    # The sums over the axes are computed for blocks of times, which bounds the memory.
    total = 0.0
    for part in np.array_split(a2, 50):
        signal = part[:, None] * axes.variance
        total += float((signal / (signal + 1 - part[:, None])).mean(axis=1).sum())
    return total / n
