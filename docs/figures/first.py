"""Draws docs/_static/first.png, the picture of the first page: ``python docs/figures/first.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

import qkcore as qk

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parent.parent / "_static" / "first.png"
INK, WARM, COLD = "#222222", "#c8502d", "#2d6cb4"


def clusters(axis: plt.Axes) -> None:
    """Particles on a circle under softmax attention."""
    rng = np.random.default_rng(4)
    angle = rng.uniform(0, 2 * np.pi, 60)
    start = np.c_[np.cos(angle), np.sin(angle)]
    beta = np.sqrt(9.0)
    field = qk.AttentionField(
        "softmax", Q=beta * np.eye(2), K=beta * np.eye(2), V=np.eye(2), sphere=True
    )
    sol = qk.flow(field, start, (0.0, 14.0), rtol=1e-7, t_eval=np.linspace(0, 14, 60))
    for particle in sol.x.swapaxes(0, 1):  # time runs outwards
        radius = 0.45 + 0.55 * np.linspace(0, 1, len(particle))[:, None]
        axis.plot(*(particle * radius).T, color=COLD, lw=0.7, alpha=0.6)
    axis.scatter(*start.T * 0.45, s=6, color=INK, zorder=3)
    axis.scatter(*sol.x[-1].T, s=22, color=WARM, zorder=3)
    axis.set_title("attention: particles gather")


def roll(axis: plt.Axes) -> None:
    """A spiral coloured by its first diffusion coordinate."""
    rng = np.random.default_rng(0)
    t = 1.5 * np.pi * (1 + 2 * rng.random(2000))
    X = np.c_[t * np.cos(t), t * np.sin(t)] / 10 + 0.03 * rng.normal(size=(2000, 2))
    first = qk.diffusion.DiffusionMap(1, beta=60.0, alpha=1.0).fit_transform(X)[:, 0]
    axis.scatter(*X.T, c=np.argsort(np.argsort(first)), cmap="viridis", s=4)
    axis.set_title("diffusion map: order along the roll")


def bridge(axis: plt.Axes) -> None:
    """A bump on a circle carried to a bump on a trefoil; lines are the barycentric projection."""
    t = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = np.c_[np.cos(t), np.sin(t)] * 0.8
    trefoil = np.c_[np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t)] / 1.5
    mu = np.exp(3 * np.cos(t - 0.8))
    nu = np.exp(3 * np.cos(t - 2.6))
    found = qk.bridge(qk.scores.distance(circle, trefoil, beta=12.0), mu / mu.sum(), nu / nu.sum())
    end = found.project(trefoil)
    for i in np.flatnonzero(mu > 0.05 * mu.max())[::4]:
        axis.plot(*np.c_[circle[i], end[i]], color=INK, lw=0.6, alpha=0.5)
    axis.scatter(*circle.T, s=1 + 14 * mu / mu.max(), color=COLD)
    axis.scatter(*trefoil.T, s=1 + 14 * nu / nu.max(), color=WARM)
    axis.set_title("bridge: circle to trefoil")


def main() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), layout="constrained")
    for draw, axis in zip((clusters, roll, bridge), axes, strict=True):
        draw(axis)
        axis.set_aspect("equal")
        axis.axis("off")
        axis.title.set_fontsize(10)
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=115, metadata={"Software": None})


if __name__ == "__main__":
    main()
