"""Timing, memory and correctness of contenders that compute the same thing.

Times on a shared machine are noisy and drift, so contenders take turns in one run (in rounds, with rotating
order) and are compared by ratios of times of the same run. Noise can only add time, so the minimum is the
main figure; the median is shown too. Times per iteration are differences of two runs, which noise can make
larger or smaller. For these the median is the main figure, and ratios are taken within each round.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from environment import OtherLoad

BENCH = Path(__file__).resolve().parent

MOST_ITERATIONS = (
    20_000  # of a long run; a program that needs more to be timed does not iterate at all
)
QUIET = (
    0.1  # a round counts as undisturbed if other programs use at most this share of the processors
)

Call = Callable[[], object]
Array = NDArray[Any]


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    threads: int = 2
    quick: bool = False


class Patience:
    """The time that the whole run may still spend waiting until other programs leave the machine alone."""

    def __init__(self) -> None:
        self.left = 0.0

    def wait(self, at_most: float = 10.0) -> None:
        """Waits until other programs have been quiet for a moment, or until the time is used up."""
        end = time.perf_counter() + at_most
        while self.left > 0 and time.perf_counter() < end:
            load, began = OtherLoad(), time.perf_counter()
            time.sleep(0.25)
            self.left -= time.perf_counter() - began
            if (load.fraction() or 0.0) < QUIET:
                return


patience = Patience()  # run.py sets it; there is one for the whole process


@dataclass
class Recorded:
    """One contender of one case, as a call that another program (bench/test_bench.py) times."""

    contender: str
    call: Call
    setup: Call
    case: str = ""  # filled in when the group adds its row
    error: float | None = None


class Recorder:
    """While ``calls`` is a list, nothing is timed: the contenders are appended to it, and every time is 1."""

    def __init__(self) -> None:
        self.calls: list[Recorded] | None = None

    def keep(self, contenders: Mapping[str, Call], setups: Mapping[str, Call]) -> None:
        assert self.calls is not None
        # A contender that is timed again before its row exists had a trial run; it is kept only once.
        self.calls[:] = [one for one in self.calls if one.case or one.contender not in contenders]
        self.calls += [Recorded(name, c, setups.get(name, int)) for name, c in contenders.items()]

    def label(self, case: str, contender: str, error: float | None) -> None:
        """Names the case of a recorded call, which is known only when the group adds its row."""
        for recorded in self.calls or ():
            if recorded.contender == contender and not recorded.case:
                recorded.case, recorded.error = case, error


recorder = Recorder()  # there is one for the whole process


@dataclass(frozen=True)
class Timing:
    """Seconds per call or per iteration, with one sample per round."""

    samples: tuple[float, ...]
    per_iteration: bool = (
        False  # for differences of runs, whose minimum is mostly error, so that the median counts
    )

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def headline(self) -> float:
        return self.median if self.per_iteration else self.minimum


@dataclass(frozen=True)
class Row:
    """One contender in one case."""

    case: str
    contender: str
    timing: Timing
    entries: int | None = None  # matrix entries visited by a call
    ratio: float | None = None  # time divided by qkcore's time in the same run
    error: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True)
class Target:
    """A performance target. Missing it is reported, but is not an error."""

    claim: str
    wanted: str
    measured: str
    met: bool
    why: str = ""  # an explanation of a miss that the run computed, such as a floor


@dataclass
class Group:
    """All results of one benchmark module."""

    name: str
    title: str
    intro: str = ""
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Keeps a row and prints it, to show progress."""
        self.rows.append(row)
        if recorder.calls is not None:
            recorder.label(row.case, row.contender, row.error)
            return
        print(f"  {row.case}: {row.contender} {row.timing.headline * 1e3:.4g} ms", flush=True)

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
        """Records a wrong answer of qkcore if the error is above the bound or NaN."""
        if not error <= bound:
            self.failures.append(f"{what}: error {error:.3g}, bound {bound:.3g}")


def repeats_for(call: Call, sample: float) -> int:
    """How often a call must be repeated so that a sample lasts long enough for the clock."""
    call()  # the first call includes lazy set-up, and is not timed
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
    """Times the contenders in turns: 3 to ``rounds`` rounds in about ``budget`` seconds.

    If other programs keep the machine busy, it continues for up to twice the budget, until three rounds were
    nearly undisturbed.

    ``settle`` is a pause before every sample: the worker threads of OpenBLAS and OpenMP keep spinning for
    tens of milliseconds after a call, and would take a core from the next contender. ``probe`` is called once
    per round, to measure a limit of the machine at nearly the same time. ``setups`` maps a contender to a
    function that is called before it and not timed.
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
    with no_collection():
        for k in rounds_in(rounds, budget):
            turn = k % len(names)
            for name in names[turn:] + names[:turn]:
                call, count = contenders[name], counts[name]
                prepare.get(name, int)()
                time.sleep(settle)
                if count > 1:
                    call()  # fills the caches again after the previous contender
                start = time.perf_counter()
                for _ in range(count):
                    call()
                samples[name].append((time.perf_counter() - start) / count)
            if probe is not None:
                time.sleep(settle)
                probe()
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def rounds_in(rounds: int, budget: float) -> Iterator[int]:
    """Numbers of 3 to ``rounds`` rounds within about ``budget`` seconds, or twice that on a busy machine."""
    began, quiet = time.perf_counter(), 0
    for k in itertools.count():
        spent = time.perf_counter() - began
        if k >= 3 and (spent > 2 * budget or (quiet >= 3 and (k >= rounds or spent > budget))):
            return
        if k > quiet:  # a round was disturbed
            waiting = time.perf_counter()
            patience.wait()
            began += time.perf_counter() - waiting
        load = OtherLoad()
        yield k
        quiet += (load.fraction() or 0.0) < QUIET


@contextmanager
def no_collection() -> Iterator[None]:
    """Switches garbage collection off inside the ``with`` block."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Iterated(Protocol):
    """A contender for which the time of one iteration is measured."""

    def prepare(self, settle: float) -> None:
        """Warms up, and chooses how many iterations a sample has."""

    def sample(self, settle: float) -> float:
        """Seconds per iteration in a new sample."""

    def whole(self) -> Call:
        """A run of some iterations, for programs that time whole calls."""


def seconds_of(call: Call, settle: float) -> float:
    """Times one call after a pause, in which threads of the previous contender come to rest."""
    time.sleep(settle)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class LongAndShort:
    """Seconds per iteration from the difference of a long and a short run, in which the set-up cancels.

    ``run(count)`` makes ``count`` iterations. The short run makes ``few``. The long run makes more, in
    multiples of ``step``, until the two differ by ``target`` seconds and by half of the time of the short
    run, whose set-up varies too. If the short run takes longer than ``slow`` seconds, the long run has just
    one step more. ``ready(count)`` is called without timing, and does what only a first run would do, such as
    compiling.
    """

    def __init__(
        self,
        run: Callable[[int], object],
        few: int = 1,
        step: int = 1,
        target: float = 0.3,
        slow: float = 4.0,
        ready: Callable[[int], object] = int,
    ) -> None:
        self.run, self.few, self.step, self.target, self.slow = run, few, step, target, slow
        self.ready, self.many = ready, few + step

    def prepare(self, settle: float) -> None:
        self.ready(self.few)
        self.ready(self.many)
        if seconds_of(lambda: self.run(self.few), settle) > self.slow:
            return
        short = seconds_of(lambda: self.run(self.few), settle)
        target = max(self.target, 0.5 * short)
        while True:
            longer = seconds_of(lambda: self.run(self.many), settle) - short
            if longer >= target or self.many >= MOST_ITERATIONS:
                return
            # A small difference is mostly noise, so the number of iterations grows at most by a factor of 8
            # at once.
            factor = min(8.0, 1.3 * target / max(longer, 1e-9))
            steps = (self.many - self.few) // self.step
            self.many = self.few + self.step * max(steps + 1, math.ceil(steps * factor))
            self.ready(self.many)

    def sample(self, settle: float) -> float:
        short = seconds_of(lambda: self.run(self.few), settle)
        longer = seconds_of(lambda: self.run(self.many), settle) - short
        return longer / (self.many - self.few)

    def whole(self) -> Call:
        return lambda: self.run(self.few + self.step)


class IterationsOfSolves:
    """Seconds per iteration from the times at which whole solves report the ends of their iterations.

    This is for solvers whose iterations would differ in a longer solve. ``solve(callback)`` calls back after
    each iteration; the first is left out, because it includes the set-up. Solves are repeated until a sample
    has ``target`` seconds. A sample is the mean over all iterations, including the few that do more work.
    """

    def __init__(
        self, solve: Callable[[Callable[[int, float], None]], object], target: float = 0.3
    ) -> None:
        self.solve, self.target, self.repeats = solve, target, 1

    def spans(self, settle: float) -> list[float]:
        ends: list[float] = []
        time.sleep(settle)
        self.solve(lambda *_: ends.append(time.perf_counter()))
        return [end - start for start, end in itertools.pairwise(ends)]

    def prepare(self, settle: float) -> None:
        if (
            sum(self.spans(settle)) < self.target
        ):  # the first solve includes lazy set-up, so another one is counted
            self.repeats = min(20, math.ceil(self.target / sum(self.spans(settle))))

    def sample(self, settle: float) -> float:
        return statistics.mean(span for _ in range(self.repeats) for span in self.spans(settle))

    def whole(self) -> Call:
        return lambda: self.solve(lambda *_: None)


class PrintedIterations:
    """Seconds per iteration from the times at which a verbose run prints lines that begin with their number.

    This is for solvers without a callback whose set-up takes longer than many iterations and varies more, so
    that a difference of two runs would be inaccurate. ``run(count)`` makes ``count`` iterations and prints a
    line after every ``step``. All time between the first line and the last counts, including that for the
    error.
    """

    def __init__(self, run: Callable[[int], object], step: int, target: float = 0.3) -> None:
        self.run, self.step, self.target, self.count = run, step, target, step + 1

    def ends(self, settle: float) -> list[float]:
        seen: list[float] = []

        class Lines(io.TextIOBase):
            def write(self, text: str) -> int:
                if text.lstrip()[:1].isdigit():
                    seen.append(time.perf_counter())
                return len(text)

        time.sleep(settle)
        with redirect_stdout(Lines()):
            self.run(self.count)
        return seen

    def prepare(self, settle: float) -> None:
        while self.count < MOST_ITERATIONS:
            per_iteration = self.sample(settle)
            enough = self.step * math.ceil(self.target / (self.step * max(per_iteration, 1e-9))) + 1
            if enough <= self.count:
                return
            self.count = min(enough, 8 * self.count)

    def sample(self, settle: float) -> float:
        ends = self.ends(settle)
        if len(ends) < 2:
            raise RuntimeError(
                f"{len(ends)} lines were printed in {self.count} iterations, at least 2 are wanted: "
                "does the run print its progress?"
            )
        return (ends[-1] - ends[0]) / (self.step * (len(ends) - 1))

    def whole(self) -> Call:
        def call() -> None:
            with redirect_stdout(io.StringIO()):
                self.run(self.step)

        return call


@dataclass(frozen=True)
class Turns:
    """The samples of each contender by round; slow contenders take part in some rounds only."""

    rounds: tuple[Mapping[str, float], ...]
    missing: tuple[str, ...] = ()  # contenders without any valid sample

    def timings(self) -> dict[str, Timing]:
        names = dict.fromkeys(name for seen in self.rounds for name in seen)
        return {
            name: Timing(tuple(seen[name] for seen in self.rounds if name in seen), True)
            for name in names
        }

    def ratio(self, name: str, over: str) -> float:
        """The median of the ratios of each round, which the drift of the machine does not affect."""
        both = [seen[name] / seen[over] for seen in self.rounds if name in seen and over in seen]
        if both:
            return statistics.median(both)
        found = self.timings()
        return found[name].median / found[over].median


def take_turns(
    contenders: Mapping[str, Iterated],
    *,
    rounds: int = 7,
    budget: float = 20.0,
    share: float = 8.0,
    shares: Mapping[str, float] | None = None,
    limit: float = 75.0,
    brief: float = 3.0,
    settle: float = 0.04,
) -> Turns:
    """Measures seconds per iteration of each contender in rounds, as ``interleave`` does for whole calls.

    A contender skips the remaining rounds if its samples have taken ``share`` seconds (``shares`` has
    exceptions), or would with one more; so the slowest have one sample. A sample that is not positive
    (because a long run took less time than the short one) is dropped and repeated in the next round. When
    everything has taken ``limit`` seconds, including trials, contenders whose samples take longer than
    ``brief`` seconds are skipped too, while the others continue. So one slow contender does not limit the
    others to a single sample.
    """
    if recorder.calls is not None:
        recorder.keep({name: one.whole() for name, one in contenders.items()}, {})
        return Turns((dict.fromkeys(contenders, 1.0),))
    names = list(contenders)
    began = time.perf_counter()
    for one in contenders.values():
        one.prepare(settle)
    allowed = dict.fromkeys(names, share) | dict(shares or {})
    spent = dict.fromkeys(names, 0.0)
    latest = dict.fromkeys(names, 0.0)
    tried = dict.fromkeys(names, 0)
    found: list[dict[str, float]] = []
    with no_collection():
        for k in rounds_in(rounds, budget):
            turn = k % len(names)
            seen: dict[str, float] = {}
            before = sum(tried.values())
            for name in names[turn:] + names[:turn]:
                start = time.perf_counter()
                late = start - began > limit
                enough = spent[name] > 0 and spent[name] + latest[name] > allowed[name]
                if enough or (late and tried[name] and latest[name] > brief):
                    continue
                tried[name] += 1
                value = contenders[name].sample(settle)
                latest[name] = time.perf_counter() - start
                if value > 0:
                    spent[name] += latest[name]
                    seen[name] = value
            if sum(tried.values()) == before:  # all contenders are skipped
                break
            found.append(seen)
    missing = (name for name in names if not any(name in seen for seen in found))
    return Turns(tuple(found), tuple(missing))


def best_of(timings: Mapping[str, Timing], names: list[str]) -> str:
    """The fastest of several formulations with the same library, which a careful user would choose."""
    return min(names, key=lambda name: timings[name].minimum)


def max_error(result: object, reference: Array) -> float:
    """max |result - reference| divided by the largest reference value; NaN if shapes differ."""
    value = np.asarray(result, dtype=np.float64)
    if value.shape != reference.shape:
        return float("nan")
    scale = float(np.max(np.abs(reference))) or 1.0
    return float(np.max(np.abs(value - reference))) / scale


def peak_growth_mb(module: str, job: str, options: Options, **arguments: object) -> float:
    """The growth of the resident memory's peak while ``module.job(options, **arguments)()`` runs.

    The job builds its inputs and returns the call to measure. It runs in a new process, because the peak of
    this one includes all earlier contenders.
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
