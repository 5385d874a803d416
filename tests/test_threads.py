"""Threads: the same bits for any number, concurrent calls, and calls that release the GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qkcore as qk

from .bounds import assert_same_bits
from .generators import DTYPES, Problem, Spec, build
from .reference import Array

COUNTS = (1, 2, 3, 4, 7)


def row_reductions(p: Problem, V: Array) -> dict[str, Callable[[int], Array]]:
    A, K = qk.softmax(p.scores), qk.kernel(p.scores)
    return {
        "logsumexp": lambda n: p.scores.logsumexp(n_threads=n),
        "A @ V": lambda n: A.apply(V, n_threads=n),
        "K @ V": lambda n: K.apply(V, n_threads=n),
        "entropy": lambda n: A.entropy(n_threads=n),
        "expected_score": lambda n: A.expected_score(n_threads=n),
        "to_numpy": lambda n: A.to_numpy(n_threads=n),
    }


def other_reductions(p: Problem, U: Array) -> dict[str, Callable[[int], Array]]:
    A, B = qk.softmax(p.scores), qk.softmax(p.scores, axis=0)
    return {
        "rows": lambda n: p.scores.marginals(n_threads=n)[0],
        "columns": lambda n: p.scores.marginals(n_threads=n)[1],
        "logsumexp(0)": lambda n: p.scores.logsumexp(0, n_threads=n),
        "U @ A": lambda n: A.apply_left(U, n_threads=n),
        "U @ B": lambda n: B.apply_left(U, n_threads=n),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "distance", "sum"])
@pytest.mark.parametrize("mask", ["none", "causal", "dense"])
def test_row_reductions_have_the_same_bits_for_any_thread_count(
    kind: str, mask: str, dtype: str
) -> None:
    for rows, columns in ((517, 300), (3, 5000), (1, 1)):
        p = build(Spec(kind, dtype, rows, columns, 3, mask=mask))
        for name, call in row_reductions(p, p.vectors(5)).items():
            want = call(1)
            for n in COUNTS:
                assert_same_bits(call(n), want, f"{name}, {n} threads, {rows} x {columns}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "distance"])
def test_everything_has_the_same_bits_when_repeated(kind: str, dtype: str) -> None:
    """The order of a reduction is fixed by the thread count, never by who finishes first."""
    p = build(Spec(kind, dtype, 517, 300, 3))
    calls = {**row_reductions(p, p.vectors(5)), **other_reductions(p, p.vectors(2, left=True))}
    for name, call in calls.items():
        for n in COUNTS:
            want = call(n)
            for _ in range(4):
                assert_same_bits(call(n), want, f"{name}, {n} threads")


def test_concurrent_calls_from_several_python_threads() -> None:
    problems = [build(Spec("distance", "float64", 300 + i, 257, 3, seed=i)) for i in range(4)]
    right = [p.vectors(3) for p in problems]
    want = [qk.softmax(p.scores) @ V for p, V in zip(problems, right, strict=True)]
    start = threading.Barrier(4)

    def work(i: int) -> list[Array]:
        start.wait()
        return [qk.softmax(problems[i].scores) @ right[i] for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(work, range(4))):
            for got in found:
                assert_same_bits(got, want[i], f"thread {i}")


def test_one_operator_shared_by_several_python_threads() -> None:
    """Whatever is computed on first use (the normaliser) is computed safely."""
    p = build(Spec("forward", "float64", 300, 257, 3))
    V = p.vectors(3)
    want = qk.softmax(p.scores) @ V
    for _ in range(10):
        A = qk.softmax(p.scores)
        start = threading.Barrier(4)

        def work(
            _: int, A: qk.MarkovOperator = A, start: threading.Barrier = start
        ) -> tuple[Array, Array]:
            start.wait()
            return A @ V, A.log_normalizer

        with ThreadPoolExecutor(4) as pool:
            for got, lse in pool.map(work, range(4)):
                assert_same_bits(got, want, "shared operator")
                assert_same_bits(lse, p.scores.logsumexp(), "shared normaliser")


def long_scores(seconds: float) -> tuple[qk.Scores, float]:
    """Scores whose log-sum-exp takes about `seconds` on one thread, and how long it took."""
    n = 2000
    while True:
        s = qk.scores.distance(np.random.default_rng(0).normal(size=(n, 3)))
        start = time.perf_counter()
        s.logsumexp(n_threads=1)
        took = time.perf_counter() - start
        if took >= seconds:
            return s, took
        n = int(n * min(3.0, max(1.3, 1.2 * (seconds / took) ** 0.5)))


@pytest.mark.slow
def test_another_python_thread_runs_meanwhile() -> None:
    """Ticks of a second thread are counted in the middle of the call only: were the GIL held, it
    could tick at the edges but never there."""
    s, _ = long_scores(0.3)
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        s.logsumexp(n_threads=1)
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    margin = 0.2 * (end - start)
    inside = sum(start + margin < t < end - margin for t in ticks)
    assert inside >= 10, f"{inside} ticks in {end - start:.2f} s"
