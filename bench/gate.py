"""Shows what a change made faster or slower: two builds take turns in one run.

    pip install -t before --no-deps OLD_TREE; pip install -t after --no-deps NEW_TREE
    python bench/gate.py before after [--rounds 9] [--only TEXT ...] [--factor 1.05] [--cpu]

Each build runs in a separate process, and both compute the same rows, in an order that alternates from round
to round. Two ratios of new to old time are shown: the median of the rounds' ratios, and the ratio of the
minima, which other programs disturb less. The exit status is 1 if *both* are above the factor in some row. On
a busy machine use ``--cpu``, which counts the processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environment

Make = Callable[[], Callable[[], object]]
TYPES = ("float32", "float64")
SAMPLE = 0.06  # least duration of a sample, in seconds


def rows() -> Iterator[tuple[str, Make]]:
    """All rows: the name, and a function that makes inputs and returns the call to be timed."""
    import warnings

    import numpy as np

    import qkcore as qk

    warnings.simplefilter("ignore")
    threads = int(os.environ["QKCORE_NUM_THREADS"])

    def rng() -> Any:
        return np.random.default_rng(7)

    def points(n: int, d: int, dtype: str, count: int = 2) -> Any:
        return rng().standard_normal((count, n, d)).astype(dtype)

    def matrix(n: int, m: int, dtype: str) -> Any:
        return rng().standard_normal((n, m)).astype(dtype)

    def uniform(n: int, dtype: str) -> Any:
        return np.full(n, 1 / n, dtype)

    def attention(shape: tuple[int, ...], dtype: str, causal: bool) -> Make:
        def make() -> Callable[[], object]:
            Q, K, V = rng().standard_normal((3, *shape)).astype(dtype)
            s = qk.scores.dot(Q, K, beta=shape[-1] ** -0.5)
            A = qk.softmax(s.causal() if causal else s)
            return lambda: A @ V

        return make

    for dtype in TYPES:
        yield f"attention 1x12x1024x64 {dtype}", attention((1, 12, 1024, 64), dtype, False)
        yield f"attention 8x12x128x64 {dtype}", attention((8, 12, 128, 64), dtype, False)
        yield f"causal 8x12x128x64 {dtype}", attention((8, 12, 128, 64), dtype, True)
        yield f"attention 40x2 {dtype}", attention((40, 2), dtype, False)

    def product(n: int, d: int, dtype: str, how: str) -> Make:
        def make() -> Callable[[], object]:
            X, Y = points(n, d, dtype)
            s = qk.scores.dot(X, Y, beta=0.3) if d > 3 else qk.scores.distance(X, Y, beta=0.5)
            A, mu, v = qk.softmax(s), uniform(n, dtype), matrix(n, 3, dtype)
            return {
                "logsumexp": lambda: s.logsumexp(),
                "mu @ A": lambda: mu @ A,
                "A @ v": lambda: A @ v,
                "marginals": lambda: s.marginals(mu * 0 - 30, mu * 0),
                "to_numpy": lambda: A.to_numpy(),
            }[how]

        return make

    for dtype in TYPES:
        for d in (3, 64):
            for how in ("logsumexp", "mu @ A", "A @ v", "to_numpy"):
                yield f"{how} N=2000 d={d} {dtype}", product(2000, d, dtype, how)

    def dense(n: int, dtype: str, how: str) -> Make:
        def make() -> Callable[[], object]:
            s = qk.scores.dense(matrix(n, n, dtype))
            A, mu, v = qk.softmax(s), uniform(n, dtype), matrix(n, 1, dtype)[:, 0]
            return {"logsumexp": lambda: s.logsumexp(), "columns": lambda: s.logsumexp(0),
                    "mu @ A": lambda: mu @ A, "A @ v": lambda: A @ v}[how]  # fmt: skip

        return make

    for dtype in TYPES:
        for how in ("logsumexp", "columns", "mu @ A", "A @ v"):
            yield f"dense {how} N=2000 {dtype}", dense(2000, dtype, how)

    def bridge(s: Any, mu: Any, nu: Any, **options: Any) -> Callable[[], object]:
        return lambda: qk.bridge(s, mu, nu, **options)

    def from_points(n: int, d: int, dtype: str, **options: Any) -> Make:
        def make() -> Callable[[], object]:
            X, Y = points(n, d, dtype)
            s = qk.scores.distance(X, Y, beta=2.0 / d)
            return bridge(s, uniform(n, dtype), uniform(n, dtype), **options)

        return make

    def from_matrix(n: int, epsilon: float, dtype: str, **options: Any) -> Make:
        def make() -> Callable[[], object]:
            X, Y = rng().random((2, n, 2))
            cost = ((X[:, None] - Y) ** 2).sum(-1)
            s = qk.scores.dense((-cost / (epsilon * cost.mean())).astype(dtype))
            return bridge(s, uniform(n, dtype), uniform(n, dtype), **options)

        return make

    # The same number of plain iterations in both builds; then whole solves with the default options.
    plain: dict[str, Any] = {"solver": "alternating", "tol": 1e-30, "max_iter": 8}
    for dtype in TYPES:
        yield f"8 iterations dense N=2000 {dtype}", from_matrix(2000, 0.05, dtype, **plain)
        yield f"8 iterations d=3 N=3000 {dtype}", from_points(3000, 3, dtype, max_memory=0, **plain)
        yield (
            f"8 iterations d=64 N=2000 {dtype}",
            from_points(2000, 64, dtype, max_memory=0, **plain),
        )
        yield f"bridge dense N=2000 eps=0.05 {dtype}", from_matrix(2000, 0.05, dtype)
        yield f"bridge dense N=2000 eps=0.005 {dtype}", from_matrix(2000, 0.005, dtype)
        yield f"bridge dense N=200 eps=0.02 {dtype}", from_matrix(200, 0.02, dtype)
        yield f"bridge d=3 N=3000 {dtype}", from_points(3000, 3, dtype)
        yield f"bridge d=30 N=1000 {dtype}", from_points(1000, 30, dtype)

    def batch(count: int, n: int, dtype: str) -> Make:
        def make() -> Callable[[], object]:
            s = qk.scores.dense(3 * rng().standard_normal((count, n, n)).astype(dtype))
            return bridge(s, uniform(n, dtype), uniform(n, dtype))

        return make

    for dtype in TYPES:
        yield f"500 bridges 16x16 {dtype}", batch(500, 16, dtype)
        yield f"20 bridges 128x128 {dtype}", batch(20, 128, dtype)

    def symmetric(n: int, dtype: str) -> Make:
        def make() -> Callable[[], object]:
            s = qk.scores.distance(points(n, 3, dtype)[0])
            return bridge(s, uniform(n, dtype), uniform(n, dtype))

        return make

    def doubly_stochastic(n: int, dtype: str) -> Make:
        def make() -> Callable[[], object]:
            s = qk.scores.dot(*points(n, 16, dtype), beta=0.25)
            return lambda: qk.sinkhorn(s)

        return make

    def penalised(n: int, dtype: str) -> Make:
        def make() -> Callable[[], object]:
            X, Y = points(n, 3, dtype)
            s = qk.scores.distance(X, Y)
            return bridge(s, uniform(n, dtype), uniform(n, dtype), penalty=1.0)

        return make

    for dtype in TYPES:
        yield f"self bridge N=1500 {dtype}", symmetric(1500, dtype)
        yield f"sinkhorn N=1000 {dtype}", doubly_stochastic(1000, dtype)
        yield f"penalised N=1000 {dtype}", penalised(1000, dtype)

    def isb_step(n: int) -> Make:
        def make() -> Callable[[], object]:
            X = points(n, 2, "float64")[0]
            return lambda: qk.isb.heat_flow(X, epsilon=0.2, n_steps=3)

        return make

    yield "isb 3 steps N=400 float64", isb_step(400)

    def particles(n: int, d: int, dtype: str, kind: str = "softmax") -> Make:
        def make() -> Callable[[], object]:
            g = rng()
            X = g.standard_normal((n, d)).astype(dtype)
            Q, K = (g.standard_normal((2, d, d)) / d**0.75).astype(dtype)
            field = qk.AttentionField(
                kind, Q=Q, K=K, V=(g.standard_normal((d, d)) / d**0.5).astype(dtype)
            )
            return lambda: qk.flow(
                field, X, (0.0, 0.1), "rk4", n_steps=10, t_eval=[0.1], n_threads=threads
            )

        return make

    for dtype in TYPES:
        for d in (2, 3, 8, 32, 64):
            yield f"particles d={d} n=1000 {dtype}", particles(1000, d, dtype)
        yield f"particles d=2 n=100 {dtype}", particles(100, 2, dtype)
        yield f"relu particles d=8 n=1000 {dtype}", particles(1000, 8, dtype, "relu")

    def gaussian(d: int) -> Make:
        def make() -> Callable[[], object]:
            g = rng()
            Q, K, V = g.standard_normal((3, d, d)) / d
            return lambda: qk.gaussian.flow(
                "softmax", None, np.eye(d), (0.0, 0.2), Q=Q, K=K, V=V, n_steps=20, method="rk4"
            )

        return make

    for d in (2, 8, 64):
        yield f"gaussian flow d={d} float64", gaussian(d)

    def small(what: str) -> Make:
        def make() -> Callable[[], object]:
            X = points(8, 2, "float64")[0]
            s = qk.scores.dot(X)
            A = qk.softmax(s)
            mu = uniform(8, "float64")
            return {
                "A @ X": lambda: A @ X,
                "scores.dot": lambda: qk.scores.dot(X),
                "logsumexp": lambda: s.logsumexp(),
                "bridge": lambda: qk.bridge(s, mu, mu),
            }[what]

        return make

    for what in ("scores.dot", "A @ X", "logsumexp", "bridge"):
        yield f"one call N=8: {what}", small(what)


# ---- one build -----------------------------------------------------------------------------------


def child() -> None:
    """Reads names of rows, one per line, and answers with the seconds of one call in a sample of many."""
    # An editable install would be found before any folder.
    standard = ("_frozen_importlib", "_frozen_importlib_external")
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder.__module__ in standard]
    folder, clock = sys.argv[2], {"cpu": time.process_time, "wall": time.perf_counter}[sys.argv[3]]
    import qkcore

    found_in = Path(str(qkcore.__file__)).resolve().parent.parent
    if found_in != Path(folder):
        raise SystemExit(f"gate: wanted qkcore of {folder}, got that of {found_in}")
    known = dict(rows())
    print(json.dumps(list(known)), flush=True)
    call: Callable[[], object] = lambda: None  # noqa: E731
    now, count = "", 1
    for line in sys.stdin:
        name = line.strip()
        if name != now:
            call, now = known[name](), name
            found = call()
            began = clock()
            call()
            count = max(1, round(SAMPLE / max(1e-6, clock() - began)))
            visits = getattr(found, "n_visits", None)
            if hasattr(visits, "ravel"):
                visits = sum(visits.ravel())
            print(json.dumps(None if visits is None else int(visits)), flush=True)
            continue
        began = clock()
        for _ in range(count):
            call()
        print(json.dumps((clock() - began) / count), flush=True)


class Build:
    """A process that has imported one build."""

    def __init__(self, folder: Path, threads: int, clock: str) -> None:
        path = os.pathsep.join([str(folder.resolve()), str(Path(__file__).resolve().parent)])
        variables = dict.fromkeys(environment.THREAD_VARIABLES, str(threads))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", str(folder.resolve()), clock],
            env={**os.environ, **variables, "PYTHONPATH": path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.names: list[str] = self._heard()

    def _heard(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("gate: a build's process has ended; its error stands above")
        return json.loads(line)

    def ask(self, name: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self._heard()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("before", type=Path, help="folder with one installed build")
    parser.add_argument("after", type=Path, help="folder with the other")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--factor", type=float, default=1.05)
    parser.add_argument("--cpu", action="store_true", help="processor time, of one thread")
    parser.add_argument(
        "--only", nargs="*", default=[], help="rows that contain one of these texts"
    )
    given = parser.parse_args()
    threads, clock = (1, "cpu") if given.cpu else (given.threads, "wall")
    builds = [Build(folder, threads, clock) for folder in (given.before, given.after)]
    shared = [name for name in builds[0].names if name in builds[1].names]
    missed = sorted(set(builds[0].names) ^ set(builds[1].names))
    wanted = [name for name in shared if not given.only or any(text in name for text in given.only)]
    slower = []
    print(f"{'row':44s} {'before':>10s} {'after':>10s} {'median':>7s} {'minima':>7s}  visits")
    for name in wanted:
        visits = [build.ask(name) for build in builds]
        times: list[list[float]] = [[], []]
        for turn in range(given.rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                times[which].append(builds[which].ask(name))
        median = statistics.median(new / old for old, new in zip(*times, strict=True))
        least = [min(one) for one in times]
        mark = ""
        if median > given.factor and least[1] / least[0] > given.factor:
            slower.append(name)
            mark = "  slower"
        seen = "" if visits[0] is None else f"  {visits[0]} -> {visits[1]}"
        print(
            f"{name:44s} {least[0] * 1e3:8.3f}ms {least[1] * 1e3:8.3f}ms {median:7.2f} "
            f"{least[1] / least[0]:7.2f}{seen}{mark}",
            flush=True,
        )
    print(f"{len(wanted)} rows, {len(slower)} slower by more than {given.factor - 1:.0%}")
    if missed:
        print("rows of one build alone: " + ", ".join(missed))
    return 1 if slower else 0


if __name__ == "__main__":
    if "--child" in sys.argv:
        child()
    else:
        sys.exit(main())
