"""Solves hard bridge problems with every method, and shows visits, time and error.

    python bench/hard.py [--limit VISITS] [--size POINTS] [--methods auto annealed ...]

Numbers of visits do not depend on the machine, but times do. For a method that does not converge within the
limit, its last error is shown. For every problem the best single method is compared with "auto".
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import qkcore as qk

METHODS = ("auto", "alternating", "relaxed", "anderson", "newton", "accelerated", "annealed")


class Problem(NamedTuple):
    name: str
    scores: Any
    mu: Any
    nu: Any
    options: dict[str, Any]


def bumps(n: int, m: int, tol: float, dtype: str = "float64") -> Problem:
    x, y, width = np.linspace(-1, 2, n), np.linspace(-1, 2, m), 9 / 51
    mu, nu = (np.exp(-(t**2) / 2 / width**2) for t in (x, y - 0.4))
    Z = (-((x[:, None] - y) ** 2) / 1e-4).astype(dtype)
    weights = ((w / w.sum()).astype(dtype) for w in (mu, nu))
    return Problem(
        f"bumps {n} x {m} {dtype}, tol {tol:g}", qk.scores.dense(Z), *weights, {"tol": tol}
    )


def logits(seed: int, tol: float) -> Problem:
    Z = np.random.default_rng(seed).uniform(-700, 700, (24, 24))
    u = np.full(24, 1 / 24)
    return Problem(
        f"logits in +-700, seed {seed}, tol {tol:g}", qk.scores.dense(Z), u, u, {"tol": tol}
    )


def squares(epsilon: float, uniform: bool) -> Problem:
    rng = np.random.default_rng(0)
    X, Y = rng.random((200, 2)), rng.random((200, 2))
    C = ((X[:, None] - Y) ** 2).sum(-1)
    mu, nu = (np.ones(200) if uniform else 0.1 + rng.random(200) for _ in range(2))
    name = f"200 points, eps {epsilon:g} of the mean, {'uniform' if uniform else 'random'} weights"
    s = qk.scores.dense(-C / (epsilon * C.mean()))
    return Problem(name, s, mu / mu.sum(), nu / nu.sum(), {})


def unbalanced(penalty: float | tuple[float, float]) -> Problem:
    rng = np.random.default_rng(0)
    X, Y = rng.random((200, 2)), rng.random((150, 2)) + 0.2
    s = qk.scores.distance(X, Y, beta=200.0)
    options = {"penalty": penalty}
    return Problem(f"penalty {penalty}", s, np.full(200, 1 / 200), np.full(150, 1 / 150), options)


def clusters(n: int) -> Problem:
    rng = np.random.default_rng(0)
    clouds = []
    for _ in range(2):
        centres, label = rng.normal(size=(12, 30)) * 2, rng.integers(0, 12, n)
        shapes = rng.normal(size=(12, 30, 30)) * np.geomspace(1, 0.1, 30)
        noise = np.einsum("nd,nde->ne", rng.normal(size=(n, 30)), shapes[label])
        clouds.append((centres[label] + noise * 2 / math.sqrt(30)).astype(np.float32))
    X, Y = clouds
    some = rng.integers(0, n, (2, 4000))
    mean = float(((X[some[0]] - Y[some[1]]) ** 2).sum(1).mean())
    u = np.full(n, 1 / n, np.float32)
    s = qk.scores.distance(X, Y, beta=float(np.float32(1e3 / mean)))
    return Problem(f"{n} points of 12 clusters in 30 dimensions", s, u, u, {"tol": 1e-3})


def problems(size: int) -> Iterator[Problem]:
    for shape in ((60, 51), (200, 170)):
        for tol in (1e-4, 1e-8):
            yield bumps(*shape, tol)
    yield bumps(60, 51, 1e-3, "float32")
    for seed in (0, 1):
        for tol in (1e-9, 1e-12):
            yield logits(seed, tol)
    for epsilon in (1e-3, 1e-4, 1e-5):
        for uniform in (True, False):
            yield squares(epsilon, uniform)
    for penalty in (10.0, 2000.0, 1e5, (math.inf, 10.0)):
        yield unbalanced(penalty)
    yield clusters(size)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--limit", type=int, default=20_000, help="visits that a method may make"
    )
    arguments.add_argument("--size", type=int, default=1500, help="points of the large cloud")
    arguments.add_argument("--methods", nargs="+", default=METHODS)
    given = arguments.parse_args()
    for p in problems(given.size):
        print(p.name)
        arrived = {}
        limit = given.limit if p.scores.shape[0] < 1000 else min(given.limit, 400)
        for method in given.methods:
            start = time.perf_counter()
            try:
                b = qk.bridge(
                    p.scores,
                    p.mu,
                    p.nu,
                    solver=method,
                    max_iter=limit,
                    max_visits=limit,
                    on_fail="ignore",
                    **p.options,
                )
            except (ValueError, OverflowError) as refused:
                print(f"  {method:12} {refused}")
                continue
            took = 1e3 * (time.perf_counter() - start)
            print(
                f"  {method:12} {b.status:16} {b.n_visits:6} visits {took:8.1f} ms  "
                f"error {b.error:.1e}  {b.method}"
            )
            if b.converged:
                arrived[method] = b.n_visits
        single = {name: visits for name, visits in arrived.items() if name != "auto"}
        if single and "auto" in arrived:
            best = min(single, key=lambda name: single[name])
            print(f"  auto takes {arrived['auto'] / single[best]:.2f} times the visits of {best}")


if __name__ == "__main__":
    main()
