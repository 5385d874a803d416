"""The sample client runs, and mypy --strict accepts it if mypy is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import ROOT, environment

CLIENT = ROOT / "tests" / "typing" / "client.py"
CUDA_CLIENT = ROOT / "tests" / "typing" / "cuda_client.py"


def run(*arguments: str, client: Path = CLIENT, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments, str(client)],
        # a folder named typing must not be on the path
        env=environment(PYTHONPATH=None, **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_runs() -> None:
    # -P: without it the client's own folder would come first on the path.
    run("-W", "error", *(["-P"] if sys.version_info >= (3, 11) else []))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_the_client() -> None:
    run("-m", "mypy", "--strict", "--no-incremental", "--cache-dir", "/dev/null")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_a_client_of_the_cuda_module() -> None:
    """By the stub beside the sources, which needs no compiled module."""
    run(
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--cache-dir",
        "/dev/null",
        client=CUDA_CLIENT,
        MYPYPATH=str(ROOT / "packaging" / "cuda"),
    )
