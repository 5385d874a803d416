"""Runs the groups' cases with pytest-benchmark: ``pytest bench --benchmark-only [--groups a,b] [--full]``.

The cases are not written a second time. Each group of run.py runs with a recorder in the place of the timer.
The recorder keeps the contenders (qkcore, the NumPy reference, the installed peers), while the group computes
its answers and checks them as always. Then every contender of every case is a benchmark, grouped by case.

pytest-benchmark times one contender after the other. Published figures come from bench/run.py, which
interleaves them. This file is not collected by default, because ``testpaths`` is tests/.
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
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of peers are not our concern

# Groups that time their steps themselves (whole flows, training, native programs, other processes).
WITHOUT_CALLS = ("limits", "isb", "scores", "isa", "stages", "native", "growth")
GROUPS = tuple(name for name in run.GROUPS if name not in WITHOUT_CALLS)


@dataclass(frozen=True)
class Found:
    """The results of a group's run with the recorder."""

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
    """Makes one test per contender. The groups run here, since only they know their contenders."""
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
    # qkcore is checked by the group against its bound. Every contender with an error must have a finite one.
    if recorded.contender.startswith("qkcore"):
        assert not [text for text in found.failures if recorded.case in text]
    if recorded.error is not None:
        assert math.isfinite(recorded.error)
        benchmark.extra_info["error"] = recorded.error
    benchmark.group = f"{case[0]}: {recorded.case}"
    recorded.setup()
    benchmark(recorded.call)
