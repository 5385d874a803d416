"""The groups' cases through pytest-benchmark: ``pytest bench --benchmark-only [--groups a,b] [--full]``.

Nothing is written twice: each group of run.py is run with its timing replaced by a recorder, which keeps the
contenders (qkcore, the NumPy reference, the installed peers), while the group computes its answers and
checks them as always. Then every contender of every case is a benchmark here, grouped by case.

pytest-benchmark times one contender after the other; bench/run.py, which interleaves them, is the source of
published figures. Collected only when asked for: ``testpaths`` is tests/.
"""

from __future__ import annotations

import importlib
import math
import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import harness
import run

pytest.importorskip("pytest_benchmark", reason="pip install 'qkcore[bench]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # what peers warn of is theirs

# Their steps time themselves (whole flows, training, native programs, other processes).
WITHOUT_CALLS = ("limits", "isb", "scores", "isa", "stages", "native", "growth")
GROUPS = tuple(name for name in run.GROUPS if name not in WITHOUT_CALLS)


@dataclass(frozen=True)
class Found:
    """What a group's run under the recorder gave."""

    calls: tuple[harness.Recorded, ...]
    failures: tuple[str, ...]


@cache
def record(name: str, full: bool) -> Found:
    threads = int(os.environ["QKCORE_NUM_THREADS"])
    harness.recorder.calls = calls = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
            group = module.run(harness.Options(threads=threads, quick=not full))
    finally:
        harness.recorder.calls = None
    kept = tuple(recorded for recorded in calls if recorded.case)
    return Found(kept, tuple(group.failures))


def asked(config: pytest.Config) -> list[str]:
    names = [name for name in config.getoption("--groups").split(",") if name]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise pytest.UsageError(f"--groups: {unknown[0]!r} is none of {', '.join(GROUPS)}")
    return names or list(GROUPS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per contender; the groups are run here, since only they know their contenders."""
    full = metafunc.config.getoption("--full")
    cases = [
        (name, k) for name in asked(metafunc.config) for k in range(len(record(name, full).calls))
    ]

    def label(case: tuple[str, int]) -> str:
        recorded = record(case[0], full).calls[case[1]]
        return f"{case[0]}: {recorded.case}: {recorded.contender}"

    metafunc.parametrize("case", cases, ids=map(label, cases))


def test_contender(case: tuple[str, int], benchmark: Any, request: pytest.FixtureRequest) -> None:
    found = record(case[0], request.config.getoption("--full"))
    recorded = found.calls[case[1]]
    # Ours: the group's own check against its own bound. Everybody: a finite error, where one is computed.
    if recorded.contender.startswith("qkcore"):
        assert not [text for text in found.failures if recorded.case in text]
    if recorded.error is not None:
        assert math.isfinite(recorded.error)
        benchmark.extra_info["error"] = recorded.error
    benchmark.group = f"{case[0]}: {recorded.case}"
    recorded.setup()
    benchmark(recorded.call)
