"""Times the stages of one tile of a row reduction, and compares them with their bounds."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import compiling
import limits
from harness import Group, Options

WITHIN_BOUND = 1.5
FMAS = {"score and maximum, dot d=3": 3, "score dot d=64": 64, "product k=64": 64}  # per entry


def bound(name: str, rates: dict[str, float]) -> float | None:
    """Least time in ns per entry: no arrangement of the same arithmetic can be faster."""
    if name in FMAS:
        return 2 * FMAS[name] / rates["fma"]
    if name.startswith("exp"):
        return 1 / max(rates["exp_qkcore"], rates.get("exp_libmvec", 0.0))
    return None


def run(options: Options) -> Group:
    group = Group(
        "stages",
        "Stages of a tile",
        "Times are ns per matrix entry on one thread with the data in cache. The bounds are the FMA "
        "rate for scores and products, and one exponential of data in L1 for the weights.",
    )
    program = compiling.stages()
    if program is None:
        group.notes.append(compiling.NO_COMPILER)
        return group
    seconds = 0.1 if options.quick else 0.5
    command = [str(program), f"seconds={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    lines = ["| stage | dtype | ns/entry | bound |", "|---|---|---:|---:|"]
    for dtype, stages in found.items():
        rates = limits.probe(dtype=dtype, threads=1, seconds=seconds)[dtype]["1"]
        for name, value in stages.items():
            least = bound(name, rates)
            shown = f"{least:.3g}" if least is not None else "–"
            lines.append(f"| {name} | {dtype} | {value:.3g} | {shown} |")
            if least is not None:
                group.at_most(f"{name} {dtype}: time over its bound", value / least, WITHIN_BOUND)
    group.extra["stages"] = found
    group.extra["table"] = "\n".join(lines)
    return group
