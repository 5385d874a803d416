"""Runs the cases: contenders take turns, answers are checked, and minimal times are compared as ratios."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkcore as qk

from ..experiments._errors import ExperimentError, unknown
from ..experiments._manifest import commit, machine, now, versions
from ._cases import GROUPS, Case

PEERS = ("torch", "POT", "jax")


@dataclass(frozen=True)
class BenchRow:
    """One contender in one case."""

    group: str
    case: str
    contender: str
    seconds: float  # minimum of the samples
    samples: tuple[float, ...]
    ratio: float  # time divided by that of qkcore
    error: float  # the largest, relative to the size of the data; NaN for a wrong shape or NaN in the answer
    memory_mb: (
        float | None
    )  # growth of the peak of resident memory in the first call; None if unknown
    wrong: bool  # whether this is qkcore, with an error beyond its bound


@dataclass(frozen=True)
class BenchResult:
    """All rows, and the environment in which they were measured."""

    environment: dict[str, Any]
    rows: tuple[BenchRow, ...]

    @property
    def wrong(self) -> tuple[BenchRow, ...]:
        """Rows of qkcore with an error beyond its bound."""
        return tuple(row for row in self.rows if row.wrong)

    def __str__(self) -> str:
        head = ("group", "case", "contender", "time", "time/qkcore", "max error", "peak MB")
        cells = [
            (
                row.group,
                row.case,
                row.contender,
                _seconds(row.seconds),
                f"{row.ratio:.2f}",
                f"{row.error:.1e}" + (" WRONG" if row.wrong else ""),
                "-" if row.memory_mb is None else f"{row.memory_mb:.0f}",
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = []
        for line in (head, *cells):
            left = [text.ljust(width) for text, width in zip(line[:3], widths[:3], strict=True)]
            right = [text.rjust(width) for text, width in zip(line[3:], widths[3:], strict=True)]
            lines.append("  ".join((*left, *right)))
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Writes the result as JSON, and makes the folder if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {"environment": self.environment, "rows": [asdict(row) for row in self.rows]}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def run(
    groups: Iterable[str] = (),
    *,
    quick: bool = False,
    threads: int | None = None,
    echo: Callable[[str], None] | None = None,
) -> BenchResult:
    """Times qkcore, NumPy and the peers that are installed on the same problems.

    Parameters
    ----------
    groups : names of ``GROUPS``; no names mean all of them.
    quick : small sizes, only to see that everything works; their times mean little.
    threads : the threads of qkcore and PyTorch; by default ``qk.get_num_threads()``. The threads of NumPy and
        JAX are set by the environment (``OPENBLAS_NUM_THREADS``) before Python starts.
    echo : a function that is called with one line before each group.

    >>> result = run(["logsumexp"], quick=True)
    >>> result.wrong
    ()
    """
    names = list(groups) or list(GROUPS)
    for name in names:
        if name not in GROUPS:
            raise unknown("benchmark", name, GROUPS)
    if threads is not None and threads < 1:
        raise ExperimentError(f"threads: wanted a number of threads >= 1, got {threads}")
    used = int(qk.config()["threads"]) if threads is None else threads
    rows: list[BenchRow] = []
    for name in names:
        if echo is not None:
            echo(f"{name} ...")
        rows += _measure(name, GROUPS[name](quick, used), rounds=3 if quick else 7)
    environment = {
        **machine(),
        "bench_threads": used,
        "quick": quick,
        "time": now(),
        "commit": commit(),
        "versions": {**versions(), **_peer_versions()},
    }
    return BenchResult(environment, tuple(rows))


def _peer_versions() -> dict[str, str | None]:
    import importlib.metadata

    found: dict[str, str | None] = {}
    for name in PEERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _measure(group: str, case: Case, rounds: int) -> list[BenchRow]:
    errors: dict[str, float] = {}
    memory: dict[str, float | None] = {}
    for name, call in case.contenders.items():
        value, memory[name] = _peak_growth(call)
        errors[name] = _error(value, case)
    samples = _interleave(case, rounds)
    mine = min(samples["qkcore"])
    return [
        BenchRow(
            group,
            case.name,
            name,
            min(times),
            tuple(times),
            min(times) / mine,
            errors[name],
            memory[name],
            name == "qkcore" and not errors[name] <= case.bound,
        )
        for name, times in samples.items()
    ]


def _error(value: Any, case: Case) -> float:
    found = np.asarray(value, dtype=np.float64)
    if found.shape != case.exact.shape:
        return float("nan")
    return float(np.abs(found - case.exact).max()) / case.scale


def _interleave(case: Case, rounds: int, sample: float = 0.01) -> dict[str, list[float]]:
    """Times of contenders that take turns, so that other work on the machine affects all of them alike.

    Short calls are repeated.
    """
    repeats = {}
    for name, call in case.contenders.items():
        began = time.perf_counter()
        call()
        repeats[name] = max(1, round(sample / max(time.perf_counter() - began, 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in case.contenders}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in case.contenders.items():
                time.sleep(0.02)  # threads of the last contender may still be spinning
                began = time.perf_counter()
                for _ in range(repeats[name]):
                    call()
                samples[name].append((time.perf_counter() - began) / repeats[name])
    finally:
        if collecting:
            gc.enable()
    return samples


def _status_kb(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {key}")


def _peak_growth(call: Callable[[], object]) -> tuple[object, float | None]:
    """The result of a call, and by how many MB it raised the peak of resident memory (None outside Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        before = _status_kb("VmRSS")
    except OSError:
        return call(), None
    value = call()
    return value, max(0.0, (_status_kb("VmHWM") - before) / 1024)


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
