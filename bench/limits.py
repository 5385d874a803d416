"""Measures the machine's best bandwidth, FMA rate and exp rate with a native program."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import compiling
from harness import Group, Options, recorder

UNITS = {
    "dram_read": "DRAM read, GB/s",
    "l2_read": "L2 read, GB/s",
    "fma": "FMA, GFLOP/s",
    "exp_libmvec": "exp by libmvec, G/s",
    "exp_qkcore": "exp by qkcore, G/s",
}


def probe(**words: object) -> dict[str, Any]:
    """Runs the probe; the arguments become its command line, e.g. ``dtype="float32", threads=2``."""
    binary = compiling.limits()
    if binary is None:
        return {}
    command = [str(binary), *(f"{key}={value}" for key, value in words.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class BestRate:
    """A limit that is measured during a benchmark: call it once per round; it keeps the best rate."""

    def __init__(self, options: Options, dtype: str, *probes: str) -> None:
        self.options, self.dtype, self.probes = options, dtype, probes
        self.rates: dict[str, float] = {}

    def __call__(self) -> None:
        for name in () if recorder.calls is not None else self.probes:
            threads = self.options.threads
            found = probe(probe=name, dtype=self.dtype, threads=threads, seconds=0.1)
            rate = found.get(self.dtype, {}).get(str(threads), {}).get(name, 0.0)
            self.rates[name] = max(rate, self.rates.get(name, 0.0))

    @property
    def best(self) -> float | None:
        """The best rate of all probes in 1e9 per second; None if nothing could be measured."""
        return max(self.rates.values(), default=0.0) or None


class Floor:
    """The least time of a kernel, from the machine's FMA and exp rates in the same run.

    Both rates are the best that a loop without anything else reaches. The two times are added, because both
    kinds of operations use the same ports of the processor. So no arrangement of the same arithmetic is
    faster.
    """

    def __init__(self, options: Options, dtype: str) -> None:
        self.fma = BestRate(options, dtype, "fma")
        self.exp = BestRate(options, dtype, "exp_libmvec", "exp_qkcore")

    def __call__(self) -> None:
        self.fma()
        self.exp()

    def seconds(self, entries: int, fmas: int, exps: int = 1) -> float | None:
        """The least time for ``entries`` with so many FMA and exponentials each; or None."""
        if self.fma.best is None or self.exp.best is None:
            return None
        return entries * (2 * fmas / self.fma.best + exps / self.exp.best) * 1e-9

    def why(self, entries: int, fmas: int, mine: float, peer: float | None = None) -> str:
        """One sentence about a missed target: the floor, qkcore's share of it, and the possible ratio."""
        floor = self.seconds(entries, fmas)
        if floor is None or self.fma.best is None or self.exp.best is None:
            return ""
        flops, exp = 2 * fmas / self.fma.best, 1 / self.exp.best
        text = (
            f"{2 * fmas} flops and one exp of an entry take {flops:.2f} + {exp:.2f} ns at this run's "
            f"rates ({self.fma.best:.0f} GFLOP/s, {self.exp.best:.2g} G/s), and qkcore takes "
            f"{mine / entries * 1e9:.2f} ns, {100 * floor / mine:.0f} % of the floor's speed"
        )
        if peer is not None:
            text += f"; nothing that does this arithmetic is more than {peer / floor:.2f}× the peer's speed"
        return text + "."


def run(options: Options) -> Group:
    group = Group(
        "limits",
        "Limits of the machine",
        "Best rates of a native program: sums of arrays, independent FMA chains, exponentials of "
        "data in L1.",
    )
    found = probe(seconds=0.2 if options.quick else 1.0)
    if not found:
        group.notes.append(compiling.NO_COMPILER)
        return group
    group.extra["limits"] = found
    columns = [(dtype, team) for dtype in ("float32", "float64") for team in found[dtype]]
    head = [f"{d}, {t} thread{'s' if t != '1' else ''}" for d, t in columns]
    table = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for name, title in UNITS.items():
        cells = [f"{found[d][t][name]:.3g}" if name in found[d][t] else "–" for d, t in columns]
        table.append(f"| {title} | " + " | ".join(cells) + " |")
    group.extra["table"] = "\n".join(table)
    return group
