"""What a run was made with: versions, processor, threads, commit, time (EOT-17)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import qkcore as qk

PACKAGES = ("numpy", "scipy", "matplotlib", "PyYAML", "click", "tqdm", "jax", "jaxlib", "optax",
            "safetensors", "tokenizers", "gguf", "onnx")  # fmt: skip


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Of Python, qkcore and what experiments use; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "qkcore": qk.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the source tree that qkcore runs from, "-dirty" when edited; None when installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout.strip()

    try:
        edited = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("-dirty" if edited else "")
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """Processor, instruction set and threads."""
    settings = qk.config()
    return {
        "platform": platform.platform(),
        "cpu": settings.get("cpu"),
        "isa": settings.get("isa"),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": qk.get_num_threads(),
    }
