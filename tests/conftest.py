"""Hypothesis profiles, and the fixtures of all test modules."""

from __future__ import annotations

import os

# BLAS gets one thread, which must be set before NumPy is loaded. The threads of NumPy's and SciPy's OpenBLAS
# wait by spinning, and on a busy machine the small products of these tests then take up to a hundred times as
# long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

import qkcore as qk

from .device_libraries import xp  # noqa: F401
from .quick_runs import no_figures, results  # noqa: F401  (fixtures of all modules)

# There is no example database, so that a test run leaves no files behind. A failing example is printed with
# its seed and `@reproduce_failure` blob, which suffice to run it again.
_COMMON: dict[str, Any] = {"deadline": None, "database": None, "print_blob": True}
hypothesis.settings.register_profile("dev", max_examples=40, **_COMMON)
hypothesis.settings.register_profile("ci", max_examples=40, derandomize=True, **_COMMON)
hypothesis.settings.register_profile("thorough", max_examples=1000, **_COMMON)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

# A shell without job control starts background jobs with SIGINT ignored, and children inherit this. The
# tests of interrupts would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """Puts the global thread count back, so that one test cannot slow down the others."""
    before = qk.get_num_threads()
    yield
    qk.set_num_threads(before)
