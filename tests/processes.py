"""Runs Python code in a separate process that can import these tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A sanitizer (tools/sanitize.sh) maps terabytes of shadow memory, keeps freed memory for a while and slows
# everything down. Measured memory and times are then not those of the library.
no_sanitizer = pytest.mark.skipif(
    any(name in os.environ.get("LD_PRELOAD", "") for name in ("libasan", "libtsan")),
    reason="runs under a sanitizer",
)


def environment(**changes: str | None) -> dict[str, str]:
    """The environment without qkcore's own variables, and then with `changes` (None removes)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("QKCORE_")}
    # So that `tests.*` can be imported; the library itself comes from where it is installed.
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), env.get("PYTHONPATH")) if p)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def command(code: str, *flags: str) -> list[str]:
    return [sys.executable, *flags, "-c", textwrap.dedent(code)]


def run_python(
    code: str, *flags: str, timeout: float = 120, **env: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs `code`; warnings are errors there too unless `flags` says otherwise."""
    return subprocess.run(
        command(code, *(flags or ("-W", "error"))),
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_ok(code: str, *flags: str, timeout: float = 120, **env: str | None) -> str:
    """Runs `code`, which must succeed, and gives its standard output."""
    done = run_python(code, *flags, timeout=timeout, **env)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
