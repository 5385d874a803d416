"""Processes and signals: fork, multiprocessing, Ctrl-C, and the number of threads of child processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import qkcore as qk

from .bounds import assert_same_bits
from .generators import Spec, build
from .processes import command, environment, no_sanitizer, run_ok, run_python

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and fork")

# Since 3.12 Python warns if a process with threads forks; here the library must survive just that.
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
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    code = f"""
    import multiprocessing
    from tests.test_processes import pool_work
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
@no_sanitizer
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


# A second Python thread counts the threads of the process while a call is under way.
COUNTED = """
import os, threading, time
import numpy as np
import qkcore as qk

def count(call):
    most, done = [0], threading.Event()
    def watch():
        while not done.is_set():
            most[0] = max(most[0], len(os.listdir("/proc/self/task")))
            time.sleep(0.001)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            call()
    finally:
        done.set()
        watcher.join()
    return most[0]

s = qk.scores.distance(np.random.default_rng(0).normal(size=(1500, 8)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc/self/task")
@pytest.mark.parametrize(
    "change",
    ["pass", "qk.set_num_threads(4)", "call = lambda: s.logsumexp(n_threads=4)"],
    ids=["environment", "set_num_threads", "n_threads"],
)
def test_a_thread_count_is_what_a_call_uses(change: str) -> None:
    """One thread is the caller alone; four are the caller and three more."""
    env = {"QKCORE_NUM_THREADS": "4"} if change == "pass" else {"QKCORE_NUM_THREADS": "1"}
    lines = ["call = s.logsumexp", "alone = count(lambda: s.logsumexp(n_threads=1))", change]
    code = "\n".join([COUNTED, *lines, "print(count(call) - alone)"])
    assert int(run_ok(code, OPENBLAS_NUM_THREADS="1", **env)) == 3


@pytest.mark.usefixtures("restore_threads")
def test_more_threads_than_work_is_fine() -> None:
    qk.set_num_threads(64)
    p = build(Spec("dot", "float64", 3, 2, 1))
    want = p.scores.logsumexp(n_threads=1)
    assert_same_bits(p.scores.logsumexp(), want, "64 threads for 3 rows")
    assert_same_bits(p.scores.logsumexp(n_threads=1000), want, "1000 threads for 3 rows")


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inner = interpreters.create()
code = '''
try:
    import qkcore
except ImportError as error:
    assert "subinterpreter" in str(error) and "process" in str(error), error
else:
    raise AssertionError("imported")
'''
run = interpreters.run_string if hasattr(interpreters, "run_string") else interpreters.exec
failed = run(inner, code)
assert failed is None, failed
import qkcore as qk  # the main interpreter is not harmed
assert qk.get_num_threads() >= 1
print("refused")
"""


def test_a_subinterpreter_is_refused_with_a_message() -> None:
    """Loading the compiled modules there waited for ever for a lock that the thread itself held."""
    out = run_ok(SUBINTERPRETER, "-W", "error", "-W", "ignore::RuntimeWarning", timeout=60)
    assert out.strip() == "refused"


# The threads of the superuser are not limited, but those of other users are.
FEW_THREADS = """
import os, resource, time, warnings
import numpy as np
import qkcore as qk
X = np.random.default_rng(0).normal(size=(900, 3)).astype(np.float32)
V, u = np.ones((900, 2), np.float32), np.full(900, 1 / 900, np.float32)
s = qk.scores.distance(X)
def work(n):
    return (
        qk.softmax(s).apply(V, n_threads=n).tobytes(),
        s.marginals(n_threads=n)[1].tobytes(),
        qk.bridge(s, u, u, n_threads=n).f.tobytes(),
    )
work(1)
assert qk.config()["thread_shortage"] == ""
if os.getuid() == 0:
    os.setuid(65534)
most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (4, most))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    few = work(24)
    again = work(24)
said = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
assert len(said) == 1, said
assert "n_threads: wanted 24 threads, but the system started only" in said[0], said
assert "qk.set_num_threads" in said[0]
assert few == again
wanted, had = qk._native.cpu.thread_shortage()
assert wanted == 24 and 1 <= had <= 4, (wanted, had)
assert qk.config()["thread_shortage"] == f"wanted 24, the system started {had}"
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
time.sleep(1.1)  # the system is asked again after a second
assert work(24) == few  # bit by bit what the threads that were asked for give
qk.show_config()
"""


@no_sanitizer
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of threads")
def test_threads_that_cannot_start_are_done_without() -> None:
    out = run_ok(FEW_THREADS, timeout=120, OPENBLAS_NUM_THREADS="1")
    assert "thread_shortage wanted 24, the system started" in out
