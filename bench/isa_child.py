"""Child of isa.py: ``QKCORE_ISA=level python bench/isa_child.py THREADS N_ATTENTION N_LSE``.

Times both kernels at the chosen level, and prints the samples and the errors as JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import environment

CHECKED_ROWS = 200


def measure(threads: int, n_attention: int, n_lse: int, dtype: str) -> dict[str, Any]:
    import attention
    import lse
    import qkcore as qk
    import reference
    from harness import Options, interleave, max_error

    Q, K, V = attention.inputs(n_attention, dtype)
    X, Y = lse.inputs(n_lse, 3, dtype)
    first, second = f"attention d=64 N={n_attention} {dtype}", f"logsumexp d=3 N={n_lse} {dtype}"
    calls: dict[str, Any] = {
        first: attention.ours(Options(threads=threads), n_attention, dtype),
        second: partial(qk.scores.distance(X, Y).logsumexp, n_threads=threads),
    }
    scores = reference.dot_scores(Q, K, attention.BETA)
    mean = reference.attention(scores, CHECKED_ROWS, V)
    lses = reference.logsumexp(reference.distance_scores(X, Y, 1.0), CHECKED_ROWS)
    errors = {
        first: attention.error_of(calls[first]()[:CHECKED_ROWS], mean, V),
        second: max_error(calls[second]()[:CHECKED_ROWS], lses),
    }
    timings = interleave(calls, rounds=4, budget=4, settle=0.01)
    return {
        name: {"samples": timing.samples, "error": errors[name]} for name, timing in timings.items()
    }


def main() -> None:
    threads, n_attention, n_lse = (int(word) for word in sys.argv[1:4])
    environment.limit_threads(threads)
    import qkcore as qk

    found = {"isa": qk.config()["isa"]}
    for dtype in ("float32", "float64"):
        found.update(measure(threads, n_attention, n_lse, dtype))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
