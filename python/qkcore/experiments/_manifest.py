"""Records the circumstances of a run: versions, processor, threads, commit, time (EOT-17)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import qkcore as qk

from ._errors import ExperimentError
from ._files import read_mapping

PACKAGES = ("numpy", "scipy", "matplotlib", "PyYAML", "tqdm", "jax", "jaxlib", "optax",
            "safetensors", "tokenizers", "gguf", "onnx")  # fmt: skip


def now() -> str:
    """The present time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Versions of Python, qkcore and the packages that experiments use; None if one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "qkcore": qk.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the source tree that qkcore runs from, with "-dirty" if edited; None if installed."""
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


FIELDS: dict[str, tuple[type, ...]] = {
    "experiment": (str,),
    "status": (str,),
    "quick": (bool,),
    "seed": (int,),
    "started": (str,),
    "wall_time_s": (int, float, type(None)),
    "resumed": (bool,),
    "commit": (str, type(None)),
    "versions": (dict,),
    "machine": (dict,),
    "settings": (dict,),
    "files": (dict,),
}


def read(folder: Path, name: str) -> dict[str, Any]:
    """The manifest of a run of the experiment; raises an ExperimentError if the file is not one.

    Names of files outside the folder are refused, because the files that a manifest lists are read and
    replaced.
    """
    path = folder / "manifest.json"
    found = read_mapping(path)

    def refuse(wanted: str) -> ExperimentError:
        return ExperimentError(
            f"{path}: not a manifest that this version of qkcore wrote for {name} ({wanted}); run it again "
            "with --force, which keeps every file that no run wrote, or elsewhere with --out DIR"
        )

    for key, types in FIELDS.items():
        if key not in found:
            raise refuse(f"it has no {key!r}")
        if not isinstance(found[key], types):
            raise refuse(f"{key!r} is {type(found[key]).__name__}")
    if found["experiment"] != name:
        raise refuse(f"it belongs to {found['experiment']!r}")
    for file, mark in found["files"].items():
        if not inside(file):
            raise refuse(f"it lists {file!r}, which is not in the folder")
        if not (
            isinstance(mark, dict)
            and isinstance(mark.get("bytes"), int)
            and isinstance(mark.get("sha256"), str)
        ):
            raise refuse(f"it has no size and sha256 for {file!r}")
    return found


def inside(name: str) -> bool:
    """Whether the name is that of a file in the folder of a run or in its folder of checkpoints.

    >>> [inside(n) for n in ("a.csv", "checkpoint/a.json", "../a.csv", "/a.csv", "b/a.csv", "..")]
    [True, True, False, False, False, False]
    """
    last = name.removeprefix("checkpoint/")
    return "/" not in last and "\0" not in last and last not in ("", ".", "..", "checkpoint")
