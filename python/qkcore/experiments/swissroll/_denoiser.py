"""AMAP and DMAP denoisers of D.2 in JAX: forward pass, training loop, sampler (DAC-13).

The three coordinates of a point are the tokens. Time enters only through the temperature, as in the paper.
Whole loops are compiled: a call of :meth:`Trainer.advance` runs many steps without Python between them.
Random numbers depend only on the seed and the step, so the result is the same if a run is divided into
several calls, or interrupted and resumed.
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

from ._data import Schedule

Tree = Any
MODELS = ("amap", "dmap")
TOKENS = 3


@dataclass(frozen=True)
class Architecture:
    """The architecture of a denoiser; ``symmetrized`` is erratum 2's correction of DMAP's metric."""

    kind: str
    d_model: int
    heads: int
    blocks: int
    symmetrized: bool = True


class State(NamedTuple):
    """Everything that a run needs to continue."""

    weights: Tree
    optimizer: Tree
    average: Tree


def initial_weights(seed: int, a: Architecture) -> Tree:
    """Random weights: variance 1 / inputs for dense layers, zero biases, layer norms at the identity."""
    draw = np.random.default_rng(seed)

    def dense(inputs: int, outputs: int) -> Tree:
        w = draw.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        return {"w": _single(w), "b": _single(np.zeros(outputs))}

    def block() -> Tree:
        ones, zeros = np.ones(a.d_model), np.zeros(a.d_model)
        return {
            "norm": {"scale": _single(ones), "shift": _single(zeros)},
            "qkv": dense(a.d_model, 3 * a.d_model),
            "out": dense(a.d_model, a.d_model),
        }

    return {
        "embed": dense(1, a.d_model),
        "position": _single(0.02 * draw.standard_normal((TOKENS, a.d_model))),
        "blocks": [block() for _ in range(a.blocks)],
        "read": dense(a.d_model, 1),
    }


def _single(values: npt.NDArray[Any]) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def markov_logits(q: jax.Array, k: jax.Array, a: Architecture) -> jax.Array:
    """Logits (heads, 3, 3, n) of one block at temperature 1, from q and k (heads, d_head, 3, n)."""
    C = (q[:, :, :, None] * k[:, :, None, :]).sum(1)
    if a.kind == "amap":
        scaled: jax.Array = C / np.sqrt(a.d_model // a.heads)
        return scaled
    qq, kk = jnp.square(q).sum(1), jnp.square(k).sum(1)  # (heads, 3, n)
    if a.symmetrized:
        qq = kk = (qq + kk) / 2
    metric: jax.Array = C + jnp.swapaxes(C, 1, 2) - qq[:, :, None] - kk[:, None]
    return metric


def predict(w: Tree, x: jax.Array, temperature: jax.Array, a: Architecture) -> jax.Array:
    """The predicted noise (n, 3) for x (n, 3) at inverse temperatures (n,).

    The points are always the last axis. Everything between the matrix products then runs along the points in
    whole SIMD vectors, which an axis of three tokens or four channels would not fill.
    """
    n, d = x.shape[0], a.d_model
    head = (a.heads, d // a.heads, TOKENS, n)
    tokens = zip(x.T, w["embed"]["b"] + w["position"], strict=True)
    slope = _column(w["embed"]["w"][0])
    h = jnp.concatenate([slope * xi + _column(at) for xi, at in tokens], axis=1)  # (d, 3 n)
    for block in w["blocks"]:
        centred = h - h.mean(0)
        z = centred * jax.lax.rsqrt(jnp.square(centred).mean(0) + 1e-6)
        z = z * _column(block["norm"]["scale"]) + _column(block["norm"]["shift"])
        qkv = block["qkv"]["w"].T @ z + _column(block["qkv"]["b"])
        q, k, v = (part.reshape(head) for part in jnp.split(qkv, 3))
        P = jax.nn.softmax(markov_logits(q, k, a) * temperature, axis=2)
        mixed = (P[:, None] * v[:, :, None]).sum(3).reshape(d, TOKENS * n)
        h = h + block["out"]["w"].T @ mixed + _column(block["out"]["b"])
    noise: jax.Array = w["read"]["w"][:, 0] @ h + w["read"]["b"]
    return noise.reshape(TOKENS, n).T


def _column(x: jax.Array) -> jax.Array:
    return x[:, None]


class Noise(NamedTuple):
    """A schedule and its temperatures as arrays on the device, indexed by step t."""

    alpha_bar: jax.Array
    heat: jax.Array
    inverse_root: jax.Array
    pull: jax.Array
    spread: jax.Array


def noise_of(schedule: Schedule, temperatures: npt.NDArray[np.float64]) -> Noise:
    """Coefficients of the standard DDPM: reverse mean from the predicted noise, and posterior variance."""
    return Noise(
        alpha_bar=_single(schedule.alpha_bar),
        heat=_single(temperatures),
        inverse_root=_single(1 / np.sqrt(1 - schedule.beta)),
        pull=_single(schedule.beta / np.sqrt(1 - schedule.alpha_bar)),
        spread=_single(np.sqrt(schedule.posterior)),
    )


class Recipe(NamedTuple):
    """How to train; a constant of the compiled program."""

    batch: int
    learning_rate: float
    ema: float


@partial(jax.jit, static_argnames=("a", "recipe"))
def _advance(
    state: State,
    seed: jax.Array,
    start: jax.Array,
    stop: jax.Array,
    noise: Noise,
    points: jax.Array,
    *,
    a: Architecture,
    recipe: Recipe,
) -> tuple[State, jax.Array]:
    optimizer = optax.adam(recipe.learning_rate)
    key = jax.random.fold_in(jax.random.key(seed), 1)
    size = (recipe.batch,)

    def loss(w: Tree, step_key: jax.Array) -> jax.Array:
        which, when, how = jax.random.split(step_key, 3)
        x0 = points[jax.random.randint(which, size, 0, len(points))]
        t = jax.random.randint(when, size, 0, len(noise.heat))
        true = jax.random.normal(how, (*size, TOKENS))
        signal = noise.alpha_bar[t][:, None]
        xt = jnp.sqrt(signal) * x0 + jnp.sqrt(1 - signal) * true
        return jnp.square(predict(w, xt, noise.heat[t], a) - true).sum(-1).mean()

    def step(i: jax.Array, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        (w, memory, average), total = carry
        value, gradient = jax.value_and_grad(loss)(w, jax.random.fold_in(key, i))
        update, memory = optimizer.update(gradient, memory)
        w = optax.apply_updates(w, update)
        average = jax.tree.map(lambda m, x: recipe.ema * m + (1 - recipe.ema) * x, average, w)
        return State(w, memory, average), total + value

    state, total = jax.lax.fori_loop(start, stop, step, (state, jnp.float32(0)))
    return state, total / (stop - start)


@partial(jax.jit, static_argnames=("n", "a"))
def _sample(w: Tree, seed: jax.Array, noise: Noise, *, n: int, a: Architecture) -> jax.Array:
    T = len(noise.heat)
    key = jax.random.fold_in(jax.random.key(seed), 2)

    def back(k: jax.Array, x: jax.Array) -> jax.Array:
        t = T - 1 - k
        predicted = predict(w, x, jnp.full(n, noise.heat[t]), a)
        mean = noise.inverse_root[t] * (x - noise.pull[t] * predicted)
        fresh = jax.random.normal(jax.random.fold_in(key, t), (n, TOKENS))
        return mean + noise.spread[t] * fresh  # the spread is 0 at t = 0

    x = jax.random.normal(jax.random.fold_in(key, T), (n, TOKENS))
    out: jax.Array = jax.lax.fori_loop(0, T, back, x)
    return out


class Trainer:
    """One model on one schedule, which can be trained and sampled with any seed."""

    def __init__(
        self,
        a: Architecture,
        schedule: Schedule,
        temperatures: npt.NDArray[np.float64],
        data: npt.NDArray[np.float64],
        recipe: Recipe,
    ) -> None:
        self.architecture = a
        self.recipe = recipe
        self._noise = noise_of(schedule, temperatures)
        self._points = _single(data)

    def start(self, seed: int) -> State:
        """Fresh weights."""
        w = initial_weights(seed, self.architecture)
        return State(w, optax.adam(self.recipe.learning_rate).init(w), w)

    def advance(self, state: State, seed: int, start: int, stop: int) -> tuple[State, float]:
        """Trains for the steps start .. stop-1; returns the new state and the mean loss over them."""
        a, recipe = self.architecture, self.recipe
        state, loss = _advance(
            state, seed, start, stop, self._noise, self._points, a=a, recipe=recipe
        )
        return state, float(loss)

    def sample(self, state: State, seed: int, n: int) -> npt.NDArray[np.float64]:
        """n samples by the reverse process, with the averaged weights."""
        found = _sample(state.average, seed, self._noise, n=n, a=self.architecture)
        return np.asarray(found, dtype=np.float64)

    def pack(self, state: State) -> dict[str, npt.NDArray[Any]]:
        """The state as named arrays, for a file."""
        return {f"a{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}

    def unpack(self, arrays: dict[str, npt.NDArray[Any]]) -> State:
        """The state from :meth:`pack`'s arrays."""
        structure: Any = jax.tree.structure(self.start(0))
        leaves = [jnp.asarray(arrays[f"a{i}"]) for i in range(structure.num_leaves)]
        state: State = jax.tree.unflatten(structure, leaves)
        return state
