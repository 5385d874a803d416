"""Threads and processes: same bits, no hang after fork, no GIL held, Ctrl-C obeyed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qkcore as qk

from .bounds import assert_same_bits
from .generators import DTYPES, Problem, Spec, build
from .processes import command, environment, run_ok, run_python
from .reference import Array

COUNTS = (1, 2, 3, 4, 7)
posix_only = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and fork")


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


# ---- processes ---------------------------------------------------------------------------------

# Python warns of fork with threads running since 3.12; that the library survives it is the point.
FORK = ("-W", "error", "-W", "ignore::DeprecationWarning")
WORK = """
import os, sys
import numpy as np
import qkcore as qk
X = np.random.default_rng(0).normal(size=(600, 3))
V = np.ones((600, 2)) * np.arange(1, 3)
def work(seed=0):
    s = qk.scores.distance(X)
    return (qk.softmax(s).apply(V, n_threads=2).tobytes(), s.logsumexp(n_threads=3).tobytes())
"""


@posix_only
def test_calls_work_after_fork() -> None:
    """A child of fork has none of the parent's threads; waiting for them would hang for ever."""
    code = WORK + (
        "want = work()\n"
        "for _ in range(5):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os._exit(0 if work() == want else 3)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert work() == want\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"  # a grandchild, from a child that has made threads of its own
        "    work()\n"
        "    inner = os.fork()\n"
        "    if inner == 0:\n"
        "        os._exit(0 if work() == want else 3)\n"
        "    os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    run_ok(code, *FORK, timeout=60)


@posix_only
def test_fork_while_another_thread_computes() -> None:
    """The lock of the pool may be held at the moment of fork; the child must not inherit that."""
    code = WORK + (
        "import threading\n"
        "want, stop = work(), threading.Event()\n"
        "def busy():\n"
        "    while not stop.is_set():\n"
        "        work()\n"
        "thread = threading.Thread(target=busy); thread.start()\n"
        "try:\n"
        "    for _ in range(20):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            os._exit(0 if work() == want else 3)\n"
        "        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "finally:\n"
        "    stop.set(); thread.join()\n"
    )
    run_ok(code, *FORK, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    import multiprocessing

    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    code = f"""
    import multiprocessing
    from tests.test_threads import pool_work
    if __name__ == "__main__":
        want = pool_work(1)
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            assert pool.map(pool_work, [1] * 4) == [want] * 4
    """
    run_ok(code, *FORK, timeout=100)


def pool_work(seed: int) -> bytes:
    p = build(Spec("distance", "float32", 257, 129, 3, seed=seed))
    return bytes(qk.softmax(p.scores).apply(p.vectors(3), n_threads=2).tobytes())


# Prints "ready" just before the call, and the moment at which the interrupt was delivered.
INTERRUPTED = """
import time
import numpy as np
import qkcore as qk
X = np.random.default_rng(0).normal(size=(SIZE, 8))
s = qk.scores.distance(X)
qk.scores.distance(X[:100]).logsumexp()
try:
    print("ready", flush=True)
    CALL
    print("finished")
except KeyboardInterrupt:
    print(time.monotonic())
    again = qk.scores.distance(X[:50]).logsumexp()  # the library still works afterwards
    assert np.isfinite(again).all()
"""


def interrupt_latency(call: str, size: int) -> float:
    code = INTERRUPTED.replace("CALL", call).replace("SIZE", str(size))
    with subprocess.Popen(
        command(code), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        time.sleep(0.3)  # well inside the call
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            raise AssertionError(f"{call}: not interrupted within 20 s") from None
    assert child.returncode == 0, err
    assert out.strip() != "finished", f"{call}: too short to be interrupted"
    return float(out) - sent


@posix_only
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="compares clocks of two processes")
@pytest.mark.parametrize(
    "call",
    [
        "s.logsumexp()",
        "s.logsumexp(n_threads=1)",
        "s.marginals()",
        "qk.softmax(s) @ np.ones((SIZE, 64))",
        "np.ones(SIZE) @ qk.softmax(s)",
        "qk.softmax(s, axis=0).entropy()",
    ],
)
def test_ctrl_c_stops_a_long_call(call: str) -> None:
    """Within 100 ms. A loaded machine may delay any one try, so the best of three counts, and
    none may take long enough for a person to press Ctrl-C again."""
    latencies: list[float] = []
    while len(latencies) < 3 and (not latencies or min(latencies) > 0.1):
        latencies.append(interrupt_latency(call, 300_000))
    assert min(latencies) <= 0.1 and max(latencies) <= 1.0, latencies


# ---- QKCORE_NUM_THREADS --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_the_environment_sets_the_thread_count(n: int) -> None:
    code = "import qkcore as qk; print(qk.get_num_threads(), qk.config()['threads'])"
    assert run_ok(code, QKCORE_NUM_THREADS=str(n)).split() == [str(n)] * 2


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5"])
def test_a_bad_thread_count_in_the_environment_is_an_error(value: str) -> None:
    done = run_python("import qkcore as qk; qk.get_num_threads()", QKCORE_NUM_THREADS=value)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "QKCORE_NUM_THREADS" in last
    assert value in last
    assert "Error" in last


@pytest.mark.usefixtures("restore_threads")
def test_more_threads_than_work_is_fine() -> None:
    qk.set_num_threads(64)
    p = build(Spec("dot", "float64", 3, 2, 1))
    want = p.scores.logsumexp(n_threads=1)
    assert_same_bits(p.scores.logsumexp(), want, "64 threads for 3 rows")
    assert_same_bits(p.scores.logsumexp(n_threads=1000), want, "1000 threads for 3 rows")
