"""Score estimation by denoising, for laws with known scores: errors by noise level, and time of a fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from harness import Array, Group, Options, Row, Timing
from peers import optional
from qkcore.diagnostics import score

MEAN, COV = np.array([0.5, -1.0]), np.array([[1.0, 0.6], [0.6, 0.8]])
PARTS = [0.4, 0.6]
MEANS = np.array([[-1.5, 0.0], [1.0, 0.5]])
COVS = np.array([[[0.2, 0.0], [0.0, 0.4]], [[0.4, 0.1], [0.1, 0.3]]])
SMALLER: dict[str, Any] = {"width": 64, "epochs": 20, "learning_rate": 3e-3, "patience": 20}
SETTINGS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("M.2's", 20000, {}),
    ("width 64, 20 epochs, rate 3e-3", 8000, SMALLER),
    ("the same, preconditioned", 8000, SMALLER | {"preconditioned": True}),
)


def gaussian(n: int, rng: np.random.Generator) -> Array:
    return rng.multivariate_normal(MEAN, COV, size=n)


def mixture(n: int, rng: np.random.Generator) -> Array:
    side = rng.choice(2, size=n, p=PARTS)
    roots = np.linalg.cholesky(COVS)
    return MEANS[side] + np.einsum("nij,nj->ni", roots[side], rng.standard_normal((n, 2)))


LAWS: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "Gaussian": (gaussian, lambda x, s: score.gaussian_score(x, MEAN, COV, sigma=s)),
    "mixture of two": (mixture, lambda x, s: score.mixture_score(x, PARTS, MEANS, COVS, sigma=s)),
}


def errors(fit: score.ScoreFit, law: str, rng: np.random.Generator) -> list[float]:
    """Relative root mean square error on new samples of the smoothed law, for each noise level."""
    sample, truth = LAWS[law]
    out = []
    for sigma in map(float, fit.sigmas):
        x = sample(4000, rng) + sigma * rng.standard_normal((4000, 2))
        wanted = truth(x, sigma)
        off = fit(x, sigma=sigma) - wanted
        out.append(float(np.sqrt((off**2).sum() / (wanted**2).sum())))
    return out


def run(options: Options) -> Group:
    group = Group(
        "scores",
        "Scores by denoising (EOT-14)",
        "Laws in the plane. The error is that of the score of the smoothed law, relative, root mean square, "
        "on fresh samples; noise levels are multiples of the root mean square norm of the data. The time is "
        "that of the whole fit, compilation included.",
    )
    if optional("jax", group) is None or optional("optax", group) is None:
        return group
    for law, (sample, _) in LAWS.items():
        for name, n, settings in SETTINGS[1:] if options.quick else SETTINGS:
            rng = np.random.default_rng(0)
            X = sample(1000 if options.quick else n, rng)
            start = time.perf_counter()
            fit = score.fit(X, **settings)
            timing = Timing((time.perf_counter() - start,))
            found = errors(fit, law, rng)
            for multiple, error in zip((0.01, 0.02, 0.05, 0.1), found, strict=True):
                case = f"{law}, {len(X)} samples, noise {multiple}"
                group.add(Row(case, name, timing, error=error))
    return group
