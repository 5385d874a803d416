"""Options for ``pytest bench --benchmark-only``; sets the thread limits before NumPy is imported."""

from __future__ import annotations

import os

import pytest

import environment

environment.limit_threads(int(os.environ.get("QKCORE_NUM_THREADS", environment.available_cpus())))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--groups", default="", help="groups of bench/run.py, by commas; default: all")
    parser.addoption("--full", action="store_true", help="the sizes of the published figures")
