"""What a whole bridge solve takes besides the visits of its iterations.

    python bench/overhead.py [--n 4000] [--eps 0.05 0.5]

Dense scores, one thread, processor time. The time of a visit is the slope of plain iterations; the rest of a
solve is its time minus that of its visits. Newton's products take less than a visit, so where the solver
used them the rest comes out too small; where refining visits fall into the slope, as for large epsilon in
float64, it is less certain.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import qkcore as qk

ROUNDS = 15


def fastest(s: Any, weights: Any, **options: Any) -> tuple[float, Any]:
    """The least processor time of several solves, and the result of the last."""
    least, found = np.inf, None
    for _ in range(ROUNDS):
        start = time.process_time()
        found = qk.bridge(s, weights, weights, on_fail="ignore", **options)
        least = min(least, time.process_time() - start)
    return least, found


def measure(n: int, epsilon: float, dtype: str) -> None:
    x, y = np.random.default_rng(7).random((2, n, 2))
    cost = np.square(x[:, None] - y).sum(axis=-1)
    s = qk.scores.dense((-cost / (epsilon * cost.mean())).astype(dtype))
    weights = np.full(n, 1 / n, dtype)
    plain: dict[str, Any] = {"solver": "alternating", "tol": 1e-30}
    visit = (
        fastest(s, weights, **plain, max_iter=20)[0] - fastest(s, weights, **plain, max_iter=4)[0]
    ) / 16
    whole, b = fastest(s, weights)
    rest = whole - visit * b.n_visits
    print(
        f"{dtype} eps {epsilon:g}: visit {1e3 * visit:.2f} ms, whole {1e3 * whole:.1f} ms in {b.n_visits} "
        f"visits ({b.method}, {b.status}), rest {1e3 * rest:.1f} ms"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--n", type=int, default=4000, help="points on each side")
    arguments.add_argument("--eps", type=float, nargs="+", default=[0.05, 0.5])
    given = arguments.parse_args()
    qk.set_num_threads(1)
    for epsilon in given.eps:
        for dtype in ("float32", "float64"):
            measure(given.n, epsilon, dtype)


if __name__ == "__main__":
    main()
