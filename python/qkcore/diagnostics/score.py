"""Scores by multi-scale denoising (EOT-14, M.2), on JAX and optax: ``pip install qkcore[train]``.

A network :math:`s_\\theta(\\tilde h, t, \\sigma)` learns the score of the law smoothed by
:math:`\\mathcal N(0, \\sigma^2 I)` from

.. math:: E\\ w(\\sigma)\\,\\Big|s_\\theta(h + \\varepsilon, t, \\sigma) +
   \\frac{\\varepsilon}{\\sigma^2}\\Big|^2, \\qquad w(\\sigma) = \\frac{\\sigma^2}{\\sigma^2 +
   \\sigma_{\\min}^2}.

JAX is imported when :func:`fit` is called, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import fraction
from .._progress import track
from ._arrays import Float, count, float64, points

__all__ = ["ScoreFit", "available", "fit", "gaussian_score", "mixture_score"]


def __dir__() -> list[str]:
    return list(__all__)


def available() -> bool:
    """Whether JAX and optax can be imported."""
    try:
        _backend()
    except ImportError:
        return False
    return True


def _backend() -> tuple[Any, Any]:
    try:
        return importlib.import_module("jax"), importlib.import_module("optax")
    except ImportError as problem:
        raise ImportError(
            f"score estimation needs JAX and optax ({problem}): pip install 'qkcore[train]'"
        ) from None


@dataclass(frozen=True, eq=False)
class ScoreFit:
    """A fitted score network."""

    parameters: Any = field(repr=False)
    centre: Float = field(repr=False)
    scale: float = field(repr=False)
    """root mean square distance of the data from their mean: sigmas are multiples of it"""
    sigmas: Float
    """noise levels in units of the data"""
    train_loss: Float = field(repr=False)
    """after every epoch, over the levels in use"""
    validation_loss: Float = field(repr=False)
    """after every epoch, over all levels"""
    best_epoch: int
    stopped_early: bool
    preconditioned: bool
    d: int

    def __call__(
        self, x: npt.ArrayLike, t: npt.ArrayLike = 0.0, *, sigma: float | None = None
    ) -> Float:
        """The score at points (n, d), of the law smoothed by ``sigma`` (default: the smallest level)."""
        h = points("x", x)
        _checks.same_space("x", h.shape[1], self.d, "the samples")
        level = float(self.sigmas[0]) if sigma is None else _checks.positive("sigma", sigma)
        jax, _ = _backend()
        apply = _network(jax, self.preconditioned)
        time = np.broadcast_to(float64("t", t), (len(h),)).astype(np.float32)
        y = ((h - self.centre) / self.scale).astype(np.float32)
        s = np.full(len(h), level / self.scale, dtype=np.float32)
        out = np.asarray(apply(self.parameters, y, time, s), dtype=np.float64)
        return out / self.scale

    def moments(
        self, x: npt.ArrayLike, t: npt.ArrayLike = 0.0, *, sigma: float | None = None
    ) -> ScoreMoments:
        """Stein's identities and anisotropy on samples of the smoothed law (M.2, step 5)."""
        h = points("x", x, least=2)
        s = self(h, t, sigma=sigma)
        centred = h - h.mean(axis=0)
        values = np.asarray(np.linalg.eigvalsh(s.T @ s / len(s)), dtype=np.float64)
        return ScoreMoments(
            float(np.linalg.norm(s.mean(axis=0))),
            float(np.linalg.norm(s.T @ centred / len(h) + np.eye(self.d))),
            values,
            int((values > 1e-8 * values[-1]).sum()),
        )

    def __str__(self) -> str:
        end = "stopped early" if self.stopped_early else "ran to the end"
        return (
            f"score network in {self.d} dimensions, {len(self.sigmas)} noise levels, "
            f"{len(self.train_loss)} epochs ({end}); validation loss "
            f"{self.validation_loss[self.best_epoch]:.4g} at epoch {self.best_epoch}"
        )


@dataclass(frozen=True, eq=False)
class ScoreMoments:
    """Checks that need no knowledge of the density."""

    mean: float
    """norm of E s, 0 for a score"""
    stein: float
    """norm of E s x^T + I, 0 for a score"""
    eigenvalues: Float
    """of E s s^T: the Fisher information, whose spread is the anisotropy"""
    rank: int
    """dimensions that the scores span"""


def fit(
    h: npt.ArrayLike,
    t: npt.ArrayLike = 0.0,
    *,
    sigmas: Sequence[float] = (0.01, 0.02, 0.05, 0.1),
    width: int | None = None,
    depth: int = 2,
    epochs: int = 5,
    batch: int = 256,
    learning_rate: float = 1e-4,
    weight_decay: float = 1e-5,
    validation: float = 0.1,
    patience: int = 2,
    curriculum: bool = True,
    preconditioned: bool = False,
    rng: int | np.random.Generator = 0,
    progress: bool = False,
) -> ScoreFit:
    """Fit a score network to samples h (n, d) at depths t (EOT-14, M.2).

    As the document has it: input [h; t; log sigma], a projection to ``width`` (default max(512, 2 d)),
    ``depth`` residual blocks (2 or 3), layer norm, a projection to d; AdamW with learning rate 1e-4 and
    weight decay 1e-5, ``batch`` samples per noise level, 5 epochs, early stopping (``patience`` epochs
    without a better validation loss), a curriculum from large noise to small. The loop over batches is
    one compiled scan per epoch.

    One choice is ours: ``sigmas`` are multiples of the root mean square norm of the centred data, not of
    each sample's own norm: sigma is an input of the network, and would tell it the norm of the sample that
    it is to find (docs/errata.md). ``preconditioned`` divides the network's output by sigma and weights the
    loss by :math:`\\sigma^2 w(\\sigma)`, which fits large noise better and small noise worse
    (docs/diagnostics.md).
    """
    jax, _ = _backend()
    jnp = jax.numpy
    x = points("h", h, least=10)
    n, d = x.shape
    time = np.broadcast_to(float64("t", t), (n,))
    factors = np.sort(float64("sigmas", sigmas))
    _checks.shape("sigmas", factors.shape, ("k",))
    _checks.all_positive("sigmas", factors)
    width = max(512, 2 * d) if width is None else count("width", width, 2)
    depth, epochs = count("depth", depth), count("epochs", epochs)
    patience, batch = count("patience", patience), count("batch", batch)
    learning_rate = _checks.positive("learning_rate", learning_rate)
    held = max(1, round(fraction("validation", validation) * n))
    centre = x.mean(axis=0)
    scale = float(np.sqrt(((x - centre) ** 2).sum(axis=1).mean()))
    if not scale > 0:
        raise ValueError("h: wanted samples that differ, got copies of one point; it has no score")
    seed = rng if isinstance(rng, int) else int(rng.integers(2**31))
    order = np.random.default_rng(seed).permutation(n)
    y = ((x - centre) / scale).astype(np.float32)[order]
    when = time.astype(np.float32)[order]
    data, times = jnp.asarray(y[held:]), jnp.asarray(when[held:])
    batch = min(batch, len(data))
    steps = len(data) // batch
    levels = jnp.asarray(factors, dtype=jnp.float32)

    key, check = jax.random.split(jax.random.PRNGKey(seed))
    draws = np.random.default_rng(seed)
    parameters = _initial(draws, d, width, depth)
    epoch, validate, prepare = _programs(preconditioned, learning_rate, float(weight_decay))
    state = prepare(parameters)
    kept = jnp.asarray(y[:held]), jnp.asarray(when[:held])

    best, best_epoch, best_value = parameters, 0, np.inf
    train, valid = [], []
    stopped = False
    for k in track(range(epochs), "score", progress):
        used = min(levels.size, 1 + (k * levels.size) // epochs) if curriculum else levels.size
        active = jnp.asarray((np.arange(levels.size) >= levels.size - used).astype(np.float32))
        chosen = draws.permutation(len(data))[: steps * batch].reshape(steps, batch)
        key, now = jax.random.split(key)
        parameters, state, value = epoch(
            parameters, state, now, data, times, jnp.asarray(chosen), levels, active
        )
        train.append(float(value))
        valid.append(float(validate(parameters, check, *kept, levels)))
        if not np.isfinite(valid[-1]):
            raise ArithmeticError(
                f"the loss is not finite after epoch {k}; lower the learning rate "
                f"(now {learning_rate:g})"
            )
        if valid[-1] < best_value:
            best, best_epoch, best_value = parameters, k, valid[-1]
        elif used == levels.size and k - best_epoch >= patience:
            stopped = True
            break
    return ScoreFit(
        jax.tree_util.tree_map(np.asarray, best),
        centre,
        scale,
        factors * scale,
        np.array(train),
        np.array(valid),
        best_epoch,
        stopped,
        preconditioned,
        d,
    )


@lru_cache(maxsize=8)
def _programs(preconditioned: bool, rate: float, decay: float) -> tuple[Any, Any, Any]:
    """An epoch, the validation loss and the optimiser's start, compiled once for all fits of a shape."""
    jax, optax = _backend()
    jnp = jax.numpy
    apply = _network(jax, preconditioned)
    optimizer = optax.adamw(rate, weight_decay=decay)

    def loss(p: Any, key: Any, points: Any, when: Any, levels: Any, active: Any) -> Any:
        n, d = points.shape
        noise = jax.random.normal(key, (levels.size, n, d))
        sigma = jnp.repeat(levels, n)
        noisy = (points[None] + levels[:, None, None] * noise).reshape(-1, d)
        found = apply(p, noisy, jnp.tile(when, levels.size), sigma)
        missed = jnp.sum((found + noise.reshape(-1, d) / sigma[:, None]) ** 2, axis=1)
        weight = levels**2 / (levels**2 + levels[0] ** 2)
        weight = active * (weight * levels**2 if preconditioned else weight)
        return jnp.sum(weight * missed.reshape(levels.size, n).mean(axis=1)) / jnp.sum(weight)

    def epoch(
        p: Any, s: Any, key: Any, h: Any, t: Any, chosen: Any, levels: Any, active: Any
    ) -> Any:
        def step(carry: Any, now: Any) -> Any:
            p, s = carry
            rows, key = now
            value, slope = jax.value_and_grad(loss)(p, key, h[rows], t[rows], levels, active)
            update, s = optimizer.update(slope, s, p)
            return (optax.apply_updates(p, update), s), value

        keys = jax.random.split(key, chosen.shape[0])
        (p, s), values = jax.lax.scan(step, (p, s), (chosen, keys))
        return p, s, values.mean()

    def validate(p: Any, key: Any, h: Any, t: Any, levels: Any) -> Any:
        return loss(p, key, h, t, levels, jnp.ones_like(levels))

    return jax.jit(epoch), jax.jit(validate), optimizer.init


def _initial(rng: np.random.Generator, d: int, width: int, depth: int) -> Any:
    """Weights of variance 1 / inputs, by NumPy: nothing to compile."""

    def dense(rows: int, columns: int) -> dict[str, npt.NDArray[np.float32]]:
        w = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(rows))
        return {"w": w, "b": np.zeros(columns, np.float32)}

    return {
        "enter": dense(d + 2, width),
        "blocks": [{"up": dense(width, width), "down": dense(width, width)} for _ in range(depth)],
        "leave": dense(width, d),
    }


def _network(jax: Any, preconditioned: bool) -> Any:
    """[h; t; log sigma] -> residual blocks -> layer norm -> score."""
    jnp = jax.numpy

    def linear(p: Any, v: Any) -> Any:
        return v @ p["w"] + p["b"]

    def apply(p: Any, h: Any, t: Any, sigma: Any) -> Any:
        log_sigma = jnp.log(sigma)
        v = linear(p["enter"], jnp.concatenate([h, t[:, None], log_sigma[:, None]], axis=1))
        for block in p["blocks"]:
            v = v + linear(block["down"], jax.nn.silu(linear(block["up"], v)))
        v = (v - v.mean(axis=1, keepdims=True)) / jnp.sqrt(v.var(axis=1, keepdims=True) + 1e-6)
        out = linear(p["leave"], v)
        return out / sigma[:, None] if preconditioned else out

    return apply


def gaussian_score(
    x: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike, *, sigma: float = 0.0
) -> Float:
    """The score of a Gaussian smoothed by sigma: :math:`-(C + \\sigma^2 I)^{-1}(x - m)`, to judge a fit by.

    >>> import numpy as np
    >>> from qkcore.diagnostics import score
    >>> score.gaussian_score(np.array([[2.0]]), [1.0], [[0.5]], sigma=0.0)
    array([[-2.]])
    """
    m, C = float64("mean", mean), float64("cov", cov)
    return mixture_score(x, [1.0], m[None], C[None], sigma=sigma)


def mixture_score(
    x: npt.ArrayLike,
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covs: npt.ArrayLike,
    *,
    sigma: float = 0.0,
) -> Float:
    """The score of a Gaussian mixture smoothed by sigma: weights (k,), means (k, d), covs (k, d, d)."""
    h = points("x", x)
    sigma = _checks.number("sigma", sigma)
    w, m, C = float64("weights", weights), float64("means", means), float64("covs", covs)
    d = h.shape[1]
    _checks.shape("means", m.shape, (len(w), d))
    _checks.shape("covs", C.shape, (len(w), d, d))
    logs, slopes = [], []
    for weight, mean, cov in zip(w, m, C, strict=True):
        total = cov + sigma**2 * np.eye(d)
        sign, logdet = np.linalg.slogdet(total)
        if sign <= 0:
            raise ValueError(
                "covs: wanted positive definite matrices, got a singular one; pass sigma > 0"
            )
        slope = -np.linalg.solve(total, (h - mean).T).T
        logs.append(np.log(weight) + 0.5 * (slope * (h - mean)).sum(axis=1) - 0.5 * logdet)
        slopes.append(slope)
    top = np.stack(logs)
    share = np.exp(top - top.max(axis=0))
    share /= share.sum(axis=0)
    out: Float = (share[..., None] * np.stack(slopes)).sum(axis=0)
    return out
