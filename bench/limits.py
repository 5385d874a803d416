"""What the machine can do at best: bandwidth, FMA and exp rates, by a native program."""

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
    """Run the probe; the words are its command line, e.g. ``dtype="float32", threads=2``."""
    binary = compiling.limits()
    if binary is None:
        return {}
    command = [str(binary), *(f"{key}={value}" for key, value in words.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class BestRate:
    """A limit watched during a benchmark: call it once per round, it keeps the best rate seen."""

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
        """In 1e9 per second, the better of the probes; None when nothing could be measured."""
        return max(self.rates.values(), default=0.0) or None


class Floor:
    """The time that FMA and exp rates of the machine leave to a kernel, watched in the same run.

    Both rates are the best that a loop of nothing else reaches, and the two are added, for they share the
    processor's ports: no arrangement of the same arithmetic is faster.
    """

    def __init__(self, options: Options, dtype: str) -> None:
        self.fma = BestRate(options, dtype, "fma")
        self.exp = BestRate(options, dtype, "exp_libmvec", "exp_qkcore")

    def __call__(self) -> None:
        self.fma()
        self.exp()

    def seconds(self, entries: int, fmas: int, exps: int = 1) -> float | None:
        """For ``entries`` that take so many FMA and exponentials each; None if nothing was measured."""
        if self.fma.best is None or self.exp.best is None:
            return None
        return entries * (2 * fmas / self.fma.best + exps / self.exp.best) * 1e-9

    def why(self, entries: int, fmas: int, mine: float, peer: float | None = None) -> str:
        """One sentence for a missed target: the floor, our share of it, what it leaves of the target."""
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
