"""Shows what became faster or slower: ``python bench/compare.py OLD NEW [--factor 1.25] [--noise 1.05]``.

OLD and NEW are files written by ``bench/run.py``, or folders of them. Rows are matched by group, case and
contender, and compared by their minima, or by medians if they are times per iteration. Other programs on the
machine change every time, so a change counts only

- if it is larger than the noise and, where a row has several samples, than their spread in both runs, and
- relative to the peers: if the same case has contenders other than qkcore, their median change is taken for
  that of the machine, and is divided out (``--raw`` turns this off).

The exit status is 1 if qkcore is slower than before by more than ``--factor`` in some row, or gives a wrong
answer that it did not give before, and 2 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[str, str, str]  # group, case, contender
# Entries of the environment; versions are compared one by one.
SAME = ("cpu", "threads", "isa", "compiler")


@dataclass(frozen=True)
class Change:
    """The ratio of new to old time of one row."""

    key: Key
    old: float
    new: float
    machine: float  # median change of the peers in the same case, or 1 if there are none
    noise: float  # ratios within [1 / noise, noise] may be noise

    @property
    def ratio(self) -> float:
        return self.new / self.old / self.machine

    @property
    def verdict(self) -> str:
        if self.ratio > self.noise:
            return "slower"
        return "faster" if self.ratio * self.noise < 1 else "same"


@dataclass
class Run:
    """Every row of one or more result files."""

    environment: dict[str, Any]
    times: dict[Key, float]
    spreads: dict[Key, float]
    failures: set[str]


def load(path: Path) -> Run:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    # Files of Google Benchmark.
    files = [file for file in files if not file.name.startswith("native_")]
    run = Run({}, {}, {}, set())
    for file in files:
        try:
            data = json.loads(file.read_text())
            group = data["name"]
            for row in data["rows"]:
                key = (group, row["case"], row["contender"])
                samples = [float(s) for s in row["timing"]["samples"]]
                middle = bool(row["timing"].get("per_iteration"))
                run.times[key] = statistics.median(samples) if middle else min(samples)
                run.spreads[key] = spread(samples)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{file} is no result of bench/run.py ({problem!r})") from problem
        run.environment = data.get("environment", {})
        run.failures |= {f"{group}: {text}" for text in data.get("failures", [])}
    return run


def ours(contender: str) -> bool:
    # The contenders of group "small" are steps of a call.
    return contender.startswith(("qkcore", "K.T @ z")) or "(" in contender


def yardstick(contender: str) -> bool:
    """Whether a row is a floor, which changes with the machine but is not a program that was timed."""
    return contender.startswith(("floor", "one exp", "one read", "reading"))


def spread(samples: list[float]) -> float:
    """The ratio of the median to the minimum; 1 for a single sample."""
    return statistics.median(samples) / min(samples)


def changes(old: Run, new: Run, *, noise: float = 1.05, raw: bool = False) -> list[Change]:
    """The changes of qkcore's rows that both runs have, with the largest slow-down first."""
    common = [key for key in new.times if key in old.times]
    ratios = {key: new.times[key] / old.times[key] for key in common}
    peers: dict[tuple[str, str], list[float]] = {}
    for key in common:
        if not ours(key[2]) and not yardstick(key[2]):
            peers.setdefault(key[:2], []).append(ratios[key])
    found = []
    for key in common:
        if ours(key[2]):
            machine = 1.0 if raw else statistics.median(peers.get(key[:2], [1.0]))
            wide = max(noise, old.spreads[key], new.spreads[key])
            found.append(Change(key, old.times[key], new.times[key], machine, wide))
    return sorted(found, key=lambda change: -change.ratio)


def differences(old: Run, new: Run) -> list[str]:
    """Differences other than the code that may have changed the times."""
    lines = []
    for name in SAME:
        a, b = old.environment.get(name), new.environment.get(name)
        if a != b:
            lines.append(f"note: {name} differs: {a} and {b}")
    versions = [run.environment.get("versions", {}) for run in (old, new)]
    for name in sorted(set(versions[0]) | set(versions[1])):
        a, b = (v.get(name) for v in versions)
        if a and b and a != b:
            lines.append(f"note: {name} differs: {a} and {b}")
    return lines


def report(found: list[Change], *, everything: bool = False) -> str:
    lines = []
    for change in found:
        if everything or change.verdict != "same":
            where = " / ".join(change.key)
            lines.append(
                f"{change.verdict:6s} {change.ratio:6.2f}×  {change.old * 1e3:10.4g} ms -> "
                f"{change.new * 1e3:10.4g} ms  (machine {change.machine:.2f}×, "
                f"noise {change.noise:.2f}×)  {where}"
            )
    counts = {v: sum(c.verdict == v for c in found) for v in ("faster", "same", "slower")}
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/compare.py", description="Compare two runs.")
    parser.add_argument("old", type=Path, help="a result file of bench/run.py, or a folder of them")
    parser.add_argument("new", type=Path)
    parser.add_argument("--factor", type=float, default=1.25, help="a regression is beyond this")
    parser.add_argument("--noise", type=float, default=1.05, help="less than this is no change")
    parser.add_argument("--raw", action="store_true", help="do not divide by the peers' change")
    parser.add_argument("--all", action="store_true", help="show the rows that stayed the same too")
    asked = parser.parse_args(arguments)
    for name in ("factor", "noise"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name}: at least 1 is wanted, received {getattr(asked, name)}")
    try:
        old, new = load(asked.old), load(asked.new)
    except (OSError, ValueError) as problem:
        print(f"compare: {problem}", file=sys.stderr)
        return 2
    found = changes(old, new, noise=asked.noise, raw=asked.raw)
    if not found:
        print("compare: the two runs have no row of qkcore in common", file=sys.stderr)
        return 2
    print("\n".join(differences(old, new)), end="\n" if differences(old, new) else "")
    print(report(found, everything=asked.all))
    gone = [key for key in old.times if ours(key[2]) and key not in new.times]
    if gone:
        print(f"{len(gone)} rows of the old run are not in the new one, e.g. {' / '.join(gone[0])}")
    broken = sorted(new.failures - old.failures)
    for text in broken:
        print(f"WRONG ANSWER (not in the old run)  {text}")
    worse = [c for c in found if c.verdict == "slower" and c.ratio > asked.factor]
    if worse:
        print(f"{len(worse)} regressions beyond {asked.factor:g}×")
    return 1 if worse or broken else 0


if __name__ == "__main__":
    sys.exit(main())
