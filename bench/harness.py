"""Timing, memory and correctness of contenders that compute the same thing.

Timings on a shared machine are noisy and drift, so contenders take turns in one run (round-robin,
the order rotating) and are compared as ratios of what that run saw. Noise only ever adds time: the
minimum is the headline, the median stands beside it. Times per iteration are differences of two runs, to
which noise adds or from which it takes: there the median is the headline, and ratios are the rounds' own.
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

MOST_ITERATIONS = 20_000  # of a long run: whoever needs more to be seen does not iterate
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
        # Who is timed again before its row is there had a trial before: it is kept once.
        self.calls[:] = [one for one in self.calls if one.case or one.contender not in contenders]
        self.calls += [Recorded(name, c, setups.get(name, int)) for name, c in contenders.items()]

    def label(self, case: str, contender: str, error: float | None) -> None:
        """A group adds its rows after the timing: only then the case has a name."""
        for recorded in self.calls or ():
            if recorded.contender == contender and not recorded.case:
                recorded.case, recorded.error = case, error


recorder = Recorder()  # one for the process, as patience


@dataclass(frozen=True)
class Timing:
    """Seconds per call, or per iteration, one sample per round."""

    samples: tuple[float, ...]
    per_iteration: bool = (
        False  # differences of runs: their minimum is the luckiest error, not a time
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
    ratio: float | None = None  # time over qkcore's time in the same run
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
    with no_collection():
        for k in rounds_in(rounds, budget):
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
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def rounds_in(rounds: int, budget: float) -> Iterator[int]:
    """Numbers of 3 to ``rounds`` rounds, for about ``budget`` seconds; up to twice that in a busy machine."""
    began, quiet = time.perf_counter(), 0
    for k in itertools.count():
        spent = time.perf_counter() - began
        if k >= 3 and (spent > 2 * budget or (quiet >= 3 and (k >= rounds or spent > budget))):
            return
        if k > quiet:  # there was a disturbed round
            waiting = time.perf_counter()
            patience.wait()
            began += time.perf_counter() - waiting
        load = OtherLoad()
        yield k
        quiet += (load.fraction() or 0.0) < QUIET


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Iterated(Protocol):
    """A contender whose time is that of one of its iterations."""

    def prepare(self, settle: float) -> None:
        """Warm up, and find out how many iterations make a sample."""

    def sample(self, settle: float) -> float:
        """Seconds per iteration, in a sample of its own."""

    def whole(self) -> Call:
        """A run of some iterations, for those who time whole calls."""


def seconds_of(call: Call, settle: float) -> float:
    """One call after a pause, for the threads of whoever ran before to come to rest."""
    time.sleep(settle)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class LongAndShort:
    """Seconds per iteration as the difference of a long and a short run: set-up drops out.

    ``run(count)`` does so many iterations. The short run has ``few``, the long one as many more, by multiples
    of ``step``, as it takes for the two to differ by ``target`` seconds and by half of the short one, whose
    set-up varies too. Where the short one alone lasts longer than ``slow`` seconds, one step is added and
    nothing tried out. ``ready(count)`` does off the clock what a first run of so many would do on it, e.g.
    compile.
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
            # A small difference is mostly noise, so that no more than a factor of 8 is believed at once.
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
    """Seconds per iteration by the times at which whole solves report the ends of their iterations.

    For a solver whose iterations differ from those of a longer solve. ``solve(callback)`` calls back after
    each; the first is left out, set-up being in it. Solves are repeated until a sample has ``target``
    seconds. A sample is the mean iteration: the few that do more count too.
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
        ):  # the first pays for lazy set-up: count by another
            self.repeats = min(20, math.ceil(self.target / sum(self.spans(settle))))

    def sample(self, settle: float) -> float:
        return statistics.mean(span for _ in range(self.repeats) for span in self.spans(settle))

    def whole(self) -> Call:
        return lambda: self.solve(lambda *_: None)


class PrintedIterations:
    """Seconds per iteration by the times at which a verbose run prints lines that begin with their number.

    For solvers without a callback whose set-up takes longer than many iterations, and varies more: in a
    difference of two runs its variation would be counted. ``run(count)`` does so many iterations and prints a
    line every ``step``; all between the first line and the last is counted, looks at the error included.
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
    """What each round saw, by contender; one that is slow sat out some."""

    rounds: tuple[Mapping[str, float], ...]
    missing: tuple[str, ...] = ()  # contenders no sample of which was a time

    def timings(self) -> dict[str, Timing]:
        names = dict.fromkeys(name for seen in self.rounds for name in seen)
        return {
            name: Timing(tuple(seen[name] for seen in self.rounds if name in seen), True)
            for name in names
        }

    def ratio(self, name: str, over: str) -> float:
        """The median of the rounds' own ratios, in which the drift of the machine is no part."""
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
    """Seconds per iteration of each contender in each round, as ``interleave`` does it for whole calls.

    A contender whose samples have taken ``share`` seconds in all (``shares`` has exceptions), or would with
    one more, sits out the rest: the slowest are seen once. A sample that is no time (a long run that was over
    before the short one) is dropped, and taken again in the next round. When all has taken ``limit`` seconds,
    trials included, those whose samples take longer than ``brief`` seconds sit out too: one slow contender
    does not leave the others with a single sample.
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
            if sum(tried.values()) == before:  # all sit out
                break
            found.append(seen)
    missing = (name for name in names if not any(name in seen for seen in found))
    return Turns(tuple(found), tuple(missing))


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
