"""Timing, memory and correctness of contenders that compute the same thing.

Timings on a shared machine are noisy and drift, so contenders take turns in one run (round-robin,
the order rotating) and are compared as ratios of what that run saw. Noise only ever adds time: the
minimum is the headline, the median stands beside it.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environment import OtherLoad

BENCH = Path(__file__).resolve().parent

QUIET = 0.1  # of the processors taken by others, at most, for a round to count as undisturbed

Call = Callable[[], object]
Array = NDArray[Any]


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    threads: int = 2
    quick: bool = False


class Patience:
    """Seconds that the whole run may still spend waiting for other programs to leave it alone."""

    def __init__(self) -> None:
        self.left = 0.0

    def wait(self, at_most: float = 10.0) -> None:
        """Return once others have been quiet for a moment, or patience is at its end."""
        end = time.perf_counter() + at_most
        while self.left > 0 and time.perf_counter() < end:
            load, began = OtherLoad(), time.perf_counter()
            time.sleep(0.25)
            self.left -= time.perf_counter() - began
            if (load.fraction() or 0.0) < QUIET:
                return


patience = Patience()  # run.py sets it; one for the process, as the machine is


@dataclass
class Recorded:
    """One contender of one case as a call to be timed by another program (bench/test_bench.py)."""

    contender: str
    call: Call
    setup: Call
    case: str = ""  # known once the group adds its row
    error: float | None = None


class Recorder:
    """While ``calls`` is a list, nothing is timed: the contenders are kept in it, and every time is 1."""

    def __init__(self) -> None:
        self.calls: list[Recorded] | None = None

    def keep(self, contenders: Mapping[str, Call], setups: Mapping[str, Call]) -> None:
        assert self.calls is not None
        self.calls += [Recorded(name, c, setups.get(name, int)) for name, c in contenders.items()]

    def label(self, case: str, contender: str, error: float | None) -> None:
        """A group adds its rows after the timing: only then the case has a name."""
        for recorded in self.calls or ():
            if recorded.contender == contender and not recorded.case:
                recorded.case, recorded.error = case, error


recorder = Recorder()  # one for the process, as patience


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample per round."""

    samples: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Row:
    """One contender in one case."""

    case: str
    contender: str
    timing: Timing
    entries: int | None = None  # matrix entries visited by a call
    ratio: float | None = None  # time over qkcore's time, minima of the same run
    error: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True)
class Target:
    """A figure we set out to reach: reported, never enforced."""

    claim: str
    wanted: str
    measured: str
    met: bool
    why: str = ""  # what the run itself found to say about a miss, e.g. a floor from its limits


@dataclass
class Group:
    """Everything that one benchmark module found."""

    name: str
    title: str
    intro: str = ""
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Keep a row, and show that the run is alive."""
        self.rows.append(row)
        if recorder.calls is not None:
            recorder.label(row.case, row.contender, row.error)
            return
        print(f"  {row.case}: {row.contender} {row.timing.minimum * 1e3:.4g} ms", flush=True)

    def at_least(
        self, claim: str, value: float, wanted: float, unit: str = "×", why: str = ""
    ) -> None:
        met = value >= wanted
        self.targets.append(Target(claim, f"≥ {wanted:g}{unit}", f"{value:.3g}{unit}", met, why))

    def at_most(
        self, claim: str, value: float, wanted: float, unit: str = "×", why: str = ""
    ) -> None:
        met = value <= wanted
        self.targets.append(Target(claim, f"≤ {wanted:g}{unit}", f"{value:.3g}{unit}", met, why))

    def check(self, what: str, error: float, bound: float) -> None:
        """Record a wrong answer of ours; NaN is one."""
        if not error <= bound:
            self.failures.append(f"{what}: error {error:.3g}, bound {bound:.3g}")


def repeats_for(call: Call, sample: float) -> int:
    """How often to repeat a call so that one sample lasts long enough for the clock."""
    call()  # the first call pays for lazy set-up
    start = time.perf_counter()
    call()
    elapsed = time.perf_counter() - start
    if elapsed >= sample:
        return 1
    repeats = max(1, int(0.2 * sample / max(elapsed, 1e-7)))
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    elapsed = (time.perf_counter() - start) / repeats
    return max(1, round(sample / elapsed))


def interleave(
    contenders: Mapping[str, Call],
    *,
    rounds: int = 7,
    budget: float = 10.0,
    sample: float = 0.01,
    settle: float = 0.04,
    probe: Callable[[], None] | None = None,
    setups: Mapping[str, Call] | None = None,
) -> dict[str, Timing]:
    """Time the contenders in turns: 3 to ``rounds`` rounds, about ``budget`` seconds.

    While other programs keep the machine busy it goes on, up to twice the budget, for three rounds
    that had the processors nearly to themselves.

    ``settle`` is a pause before every sample: the worker threads of OpenBLAS and OpenMP keep
    spinning for tens of milliseconds after a call, and would take a core from whoever is next.
    ``probe`` runs once per round, for a limit of the machine to be seen in the same minute.
    ``setups`` maps a contender to what must be called before it, off the clock.
    """
    if recorder.calls is not None:
        recorder.keep(contenders, setups or {})
        return dict.fromkeys(contenders, Timing((1.0,)))
    names = list(contenders)
    prepare: Mapping[str, Call] = setups or {}
    counts: dict[str, int] = {}
    for name in names:
        prepare.get(name, int)()
        time.sleep(settle)
        counts[name] = repeats_for(contenders[name], sample)
    samples: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()
    try:
        quiet = 0
        for k in itertools.count():
            spent = time.perf_counter() - began
            if k >= 3 and (spent > 2 * budget or (quiet >= 3 and (k >= rounds or spent > budget))):
                break
            if k > quiet:  # there was a disturbed round
                waiting = time.perf_counter()
                patience.wait()
                began += time.perf_counter() - waiting
            load = OtherLoad()
            turn = k % len(names)
            for name in names[turn:] + names[:turn]:
                call, count = contenders[name], counts[name]
                prepare.get(name, int)()
                time.sleep(settle)
                if count > 1:
                    call()  # refills the caches that the predecessor emptied
                start = time.perf_counter()
                for _ in range(count):
                    call()
                samples[name].append((time.perf_counter() - start) / count)
            if probe is not None:
                time.sleep(settle)
                probe()
            quiet += (load.fraction() or 0.0) < QUIET
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def best_of(timings: Mapping[str, Timing], names: list[str]) -> str:
    """The fastest of several formulations by one library: what a careful user would keep."""
    return min(names, key=lambda name: timings[name].minimum)


def max_error(result: object, reference: Array) -> float:
    """max |result - reference|, relative to the largest reference value; NaN if shapes differ."""
    value = np.asarray(result, dtype=np.float64)
    if value.shape != reference.shape:
        return float("nan")
    scale = float(np.max(np.abs(reference))) or 1.0
    return float(np.max(np.abs(value - reference))) / scale


def peak_growth_mb(module: str, job: str, options: Options, **arguments: object) -> float:
    """Growth of the resident high-water mark while ``module.job(options, **arguments)()`` runs.

    The job builds its inputs and returns the call to watch. A fresh process, because the high-water
    mark of this one already carries every earlier contender.
    """
    if recorder.calls is not None:
        return 0.0
    request = {"module": module, "job": job, "threads": options.threads, "arguments": arguments}
    done = subprocess.run(
        [sys.executable, str(BENCH / "memory.py"), json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"memory probe of {module}.{job} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])
