"""Describes the machine and the versions of a measurement. Must not import NumPy, which reads the thread
limits only once."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

PEERS = (
    "numpy", "scipy", "torch", "threadpoolctl", "POT", "ott-jax", "jax", "diffrax",
    "pykeops", "geomloss", "regot",
)  # fmt: skip
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "QKCORE_NUM_THREADS",
)
# Flags that /proc/cpuinfo must list for each x86-64 level; one or two flags per level suffice.
LEVEL_FLAGS = {
    "v2": {"sse4_2", "popcnt"},
    "v3": {"avx2", "fma", "bmi2"},
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def limit_threads(threads: int) -> None:
    """Gives every library the same number of threads. Must be called before NumPy is imported."""
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_field(key: str) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.split(":")[0].strip() == key:
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return ""


def cpu_has(level: str) -> bool:
    """Whether the processor has an x86-64 level; False if this is not known."""
    return LEVEL_FLAGS[level] <= set(cpu_field("flags").split())


class OtherLoad:
    """Measures which share of the processors other processes use from now on."""

    def __init__(self) -> None:
        self.start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """CPU seconds of all processes, those of this one and its finished children, and the wall clock."""
        try:
            words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
        except OSError:
            return None
        everybody = sum(int(word) for word in words) / os.sysconf("SC_CLK_TCK")
        return everybody, sum(os.times()[:4]), time.perf_counter()

    def fraction(self) -> float | None:
        """The share, between 0 and 1; None if the system does not say."""
        now = self._now()
        if now is None or self.start is None:
            return None
        everybody, own, wall = (b - a for a, b in zip(self.start, now, strict=True))
        return min(1.0, max(0.0, (everybody - own) / (wall * (os.cpu_count() or 1))))


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the sources, followed by "+" if they have been changed since."""
    root = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def record(threads: int) -> dict[str, Any]:
    import qkcore

    config = qkcore.config()
    return {
        "cpu": cpu_field("model name") or platform.processor() or platform.machine(),
        "cpus": available_cpus(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "qkcore": config.get("version"),
        "isa": config.get("isa"),
        "isa_available": config.get("isa_available"),
        "compiler": config.get("compiler"),
        "commit": commit(),
        "versions": {name: version(name) for name in PEERS},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
