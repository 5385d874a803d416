"""Limits: too little memory, ten thousand calls, and our threads together with those of BLAS."""

from __future__ import annotations

import sys

import pytest

from .processes import no_sanitizer, run_ok

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sets RLIMIT_AS")

# The address space that is in use now, plus 400 MB.
LIMITED = """
import resource
import numpy as np
import qkcore as qk
rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 3)); u = np.full(20_000, 1 / 20_000)
small = qk.scores.distance(X[:300])
want = small.logsumexp()  # the threads are there
qk.bridge(small, u[:300], u[:300], tol=1e-3)
s = qk.scores.distance(X)
with open("/proc/self/statm") as f:
    used = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20, resource.RLIM_INFINITY))
"""


@linux_only
@no_sanitizer
@pytest.mark.parametrize(
    "call",
    [
        "s.to_numpy()",  # 3.2 GB, by NumPy
        "qk.softmax(s).to_numpy()",
        "qk.bridge(s, u, u, tol=1e-3, max_memory=1e11)",  # the kernel stored, by the engine
        "qk.isb.barycentric(X, 1.0, max_memory=1e11)",
        "qk.flow(lambda x, t: -x, X, (0.0, 1.0), 'euler', n_steps=10**4)",  # every state kept
        "qk.positive_features(s, 20_000)",
        "qk.low_rank(qk.softmax(s), 900, method='dense')",
    ],
)
def test_no_memory_is_a_memory_error(call: str) -> None:
    """RLIMIT_AS: MemoryError, no crash, and the library works afterwards."""
    code = LIMITED + (
        "try:\n"
        f"    {call}\n"
        "except MemoryError:\n"
        "    print('MemoryError')\n"
        "assert (small.logsumexp() == want).all()\n"
    )
    assert run_ok(code).strip() == "MemoryError"


GROWTH = """
import numpy as np
import qkcore as qk

def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3)); V = rng.normal(size=(40, 2)); u = np.full(40, 1 / 40)
field = qk.AttentionField("softmax", Q=np.eye(3), K=np.eye(3), V=-np.eye(3))
def call():
    CALL
for _ in range(200):
    call()
before = rss()
for _ in range(COUNT):
    call()
print((rss() - before) / 2**20)
"""


@linux_only
@no_sanitizer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("qk.softmax(qk.scores.distance(X).causal()) @ V", 10_000),
        ("qk.softmax(qk.scores.distance(X)).apply(V, n_threads=3)", 10_000),
        ("qk.bridge(qk.scores.distance(X, beta=0.1), u, u, tol=1e-2)", 10_000),
        ("qk.flow(field, X, (0.0, 0.1), 'euler', n_steps=2)", 10_000),
        ("qk.flow(lambda x, t: -x, X, (0.0, 0.1), 'euler', n_steps=2)", 10_000),
        (
            "try:\n        qk.scores.distance(X, beta=-1.0)\n    except ValueError:\n        pass",
            10_000,
        ),
        (
            "try:\n        qk.kernel(qk.scores.dense(np.full((4, 4), 800.0))).to_numpy()\n"
            "    except OverflowError:\n        pass",
            10_000,
        ),
    ],
)
def test_repeated_calls_do_not_grow(call: str, count: int) -> None:
    """4 MB in 10 000 calls would be 400 bytes a call: one small array kept would be more."""
    code = GROWTH.replace("CALL", call).replace("COUNT", str(count))
    assert float(run_ok(code, timeout=600)) < 4


@pytest.mark.slow
def test_threads_of_python_beside_those_of_blas() -> None:
    """Python threads that call the engine (two threads each) and BLAS (two threads) by turns."""
    code = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import qkcore as qk
    rng = np.random.default_rng(0)
    X, M = rng.normal(size=(500, 4)), rng.normal(size=(400, 400))
    A = qk.softmax(qk.scores.distance(X))
    want, product = A.apply(X, n_threads=2).tobytes(), M @ M
    start = threading.Barrier(4)
    def work(i):
        start.wait()
        for _ in range(15):
            assert A.apply(X, n_threads=2).tobytes() == want
            np.testing.assert_allclose(M @ M, product, rtol=1e-12, atol=1e-12)
        return i
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
    """
    run_ok(code, OPENBLAS_NUM_THREADS="2", timeout=200)
