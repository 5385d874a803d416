"""Times the same kernels at every instruction-set level that was built and that the processor supports.

The level is chosen at import, so each measurement is a separate process. The levels take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import environment
import qkcore as qk
from harness import BENCH, Group, Options, Row, Timing

LEVELS = ("v2", "v3", "v4")
LACKING = "the processor lacks it"
BOUND = {"float32": 2e-6, "float64": 5e-15}


def why_not(level: str) -> str | None:
    """Why a level cannot run here, or None."""
    if level in qk.config()["isa_available"]:
        return None
    return "not built" if environment.cpu_has(level) else LACKING


def measure(level: str, options: Options, sizes: tuple[int, int]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCH / "isa_child.py"), str(options.threads), *map(str, sizes)],
        env={**os.environ, "QKCORE_ISA": level},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"QKCORE_ISA={level} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found.pop("isa") != level:
        raise RuntimeError(f"QKCORE_ISA={level} was not obeyed")
    return found


def run(options: Options) -> Group:
    group = Group(
        "isa",
        "Instruction-set levels",
        "The same sources compiled for each x86-64 level, forced by `QKCORE_ISA`; the ratio is to "
        "the fastest level.",
    )
    sizes = (1000, 2000) if options.quick else (4000, 10000)
    reasons = {level: why_not(level) for level in LEVELS}
    samples: dict[str, dict[str, list[float]]] = {}
    errors: dict[tuple[str, str], float] = {}
    for _ in range(1 if options.quick else 3):
        for level in (level for level in LEVELS if reasons[level] is None):
            for kernel, found in measure(level, options, sizes).items():
                samples.setdefault(kernel, {}).setdefault(level, []).extend(found["samples"])
                errors[kernel, level] = found["error"]
    for kernel, by_level in sorted(samples.items()):
        n = int(kernel.split("N=")[1].split()[0])
        best = min(min(values) for values in by_level.values())
        for level, values in by_level.items():
            ratio, error = min(values) / best, errors[kernel, level]
            group.add(Row(kernel, level, Timing(tuple(values)), n * n, ratio, error))
            group.check(f"{kernel} at {level}", error, BOUND[kernel.split()[-1]])
        for lower, upper in pairwise(by_level):
            gain = min(by_level[lower]) / min(by_level[upper])
            group.at_least(f"{kernel}: {upper} against {lower}", gain, 1.0)
    group.notes += [f"{level}: not run: {why}" for level, why in reasons.items() if why]
    if reasons["v4"] == LACKING:
        group.notes.append(
            "v4 (AVX-512) is compiled, and its tile shapes pass the test suite in the build `wide`, but it "
            "was not run on this processor"
        )
    return group
