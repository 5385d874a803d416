"""Samplers: both flows from shared seeds, and one flow at many step sizes on one Brownian path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._schedule import VP, Steps, grid, steps
from ._scores import Score

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Bar = Callable[[Iterable[int], str, int], Iterable[int]]


def start(seed: int, n: int, d: int) -> Single:
    """Initial noise; both samplers of image i start from row i."""
    return np.random.default_rng([seed, 1]).standard_normal((n, d), dtype=np.float32)


def fresh(seed: int, step: int, shape: tuple[int, ...]) -> Single:
    """The noise of one step. It depends only on the seed and the step, and not on earlier draws."""
    return np.random.default_rng([seed, 2, step]).standard_normal(shape, dtype=np.float32)


def advance(x: Single, score: Score, table: Steps, k: int, noise: Single | None) -> Single:
    """One step of a sampler; ``noise`` is already scaled."""
    out = score.denoise(x, float(table.t[k])) * np.float32(table.pull[k])
    out += np.float32(table.keep[k]) * x
    if noise is not None:
        out += noise
    if not np.isfinite(out).all():
        raise FloatingPointError(f"samples are not finite at t = {table.t[k + 1]:g}")
    return out


@dataclass(frozen=True, eq=False)
class Moment:
    """The samples of both samplers at one logged time."""

    t: float
    sde: Single
    ode: Single
    sde_moved: float
    """mean length of the paths since the previous logged time, divided by the root of the dimension"""
    ode_moved: float


def side_by_side(
    score: Score,
    vp: VP,
    *,
    scheme: str,
    n_times: int,
    refine: int,
    t_end: float,
    n: int,
    d: int,
    seed: int,
) -> Iterator[Moment]:
    """Runs SDE and probability flow from the same initial noise; yields n_times times of a shared grid.

    Each interval between logged times is divided into ``refine`` steps; with 1 the samplers step from one
    logged time to the next, as those of EOT do.
    """
    times = grid(n_times * refine, t_end)
    random, smooth = (steps(vp, times, flow, scheme) for flow in ("sde", "ode"))
    x = start(seed, n, d)
    y = x.copy()
    moved = np.zeros(2)
    for k in range(len(times) - 1):
        noise = fresh(seed, k, x.shape)
        noise *= np.float32(random.noise[k])
        new = advance(x, score, random, k, noise), advance(y, score, smooth, k, None)
        moved += [_length(new[0] - x), _length(new[1] - y)]
        x, y = new
        if (k + 1) % refine == 0:
            yield Moment(float(times[k + 1]), x, y, float(moved[0]), float(moved[1]))
            moved[:] = 0


def _length(step: Single) -> float:
    squares = np.einsum("nd,nd->n", step, step, dtype=np.float64)
    return float(np.sqrt(squares).mean() / np.sqrt(step.shape[1]))


def on_one_path(
    score: Score,
    vp: VP,
    levels: Sequence[int],
    *,
    scheme: str,
    t_end: float,
    n: int,
    d: int,
    seed: int,
    bar: Bar | None = None,
) -> dict[int, Single]:
    """The SDE's samples at t_end for every number of steps, all with the same Brownian path.

    Every number must divide the largest. Because the path is shared, differences between the results have
    little variance, so that weak errors can be measured.
    """
    finest = max(levels)
    small = steps(vp, grid(finest, t_end), "sde", scheme)
    tables = {K: steps(vp, grid(K, t_end), "sde", scheme) for K in levels}
    x = {K: start(seed, n, d) for K in levels}
    held = {K: np.zeros((n, d), dtype=np.float32) for K in levels}
    loop: Iterable[int] = range(finest)
    for f in loop if bar is None else bar(loop, "weak error", finest):
        noise = fresh(seed, f, (n, d))
        noise *= np.float32(small.gain[f])
        for K in levels:
            held[K] *= np.float32(small.carry[f])
            held[K] += noise
            ratio = finest // K
            if (f + 1) % ratio == 0:
                k = f // ratio
                held[K] *= np.float32(tables[K].release[k])
                x[K] = advance(x[K], score, tables[K], k, held[K])
                held[K][:] = 0
    return x
