"""Random calls of public functions: sizes down to 1, unusual layouts, and one or more wrong arguments.

    python -m tests.fuzzing --seconds 600 [--seed 0] [--keep]      # make fuzz runs it with a sanitizer

Every call is a line of JSON (`Entry`), which `run` repeats exactly. The calls of the corpus
(tests/corpus/calls.jsonl, which tests/test_fuzzing.py replays) come first. Calls that fail are printed. With
--keep they are added to the corpus, and so is every call that ended as no other call of the corpus did.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .api_cases import CASES, Draw
from .api_faults import faults
from .reference import Array
from .test_memory import backwards, fortran, padded_rows, sliced

CORPUS = Path(__file__).parent / "corpus" / "calls.jsonl"
LAYOUTS: tuple[Callable[[Array], Array], ...] = (np.array, fortran, sliced, backwards, padded_rows)
# OverflowError: scores are beyond the range of the dtype. RuntimeError: a solver failed, in a function whose
# result has no status.
REFUSED = (ValueError, TypeError, OverflowError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Entry:
    case: str
    seed: int
    n: int
    m: int
    d: int
    dtype: str
    spoil: int  # how many arguments are wrong


def random_entry(rng: np.random.Generator) -> Entry:
    return Entry(
        case=str(rng.choice(list(CASES))),
        seed=int(rng.integers(2**31)),
        n=int(rng.choice([1, 2, 3, 7, 8, 9, 17, 33])),
        m=int(rng.choice([1, 2, 3, 7, 8, 9, 17])),
        d=int(rng.choice([1, 2, 3, 5])),
        dtype=str(rng.choice(["float32", "float64"])),
        spoil=int(rng.integers(3)),
    )


@dataclass(frozen=True)
class Outcome:
    """How a call ended, in few words, and what is wrong with that (None: nothing)."""

    kind: str
    wrong: str | None = None


def run(entry: Entry) -> Outcome:
    rng = np.random.default_rng(entry.seed)
    draw = Draw(entry.seed, entry.n, entry.m, entry.d, entry.dtype)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            call = CASES[entry.case](draw)
            changes: dict[str, Any] = {}
            for name, value in call.arguments.items():
                if isinstance(value, np.ndarray) and value.ndim:
                    changes[name] = LAYOUTS[rng.integers(len(LAYOUTS))](value)
            wrong = list(faults(call))
            for _ in range(entry.spoil if wrong else 0):
                name, _, value = wrong[rng.integers(len(wrong))]
                changes[name] = value
            call(**changes)
        except REFUSED as error:
            # Messages begin with the argument they are about.
            kind = f"{type(error).__name__} {str(error).partition(':')[0]}"
            silent = not str(error) and not isinstance(error, MemoryError)
            return Outcome(kind, "an error without a message" if silent else None)
        except Exception as error:
            return Outcome(type(error).__name__, f"{type(error).__name__}: {error}")
    try:
        draw.unchanged()
    except AssertionError as error:
        return Outcome("input written to", str(error))
    return Outcome(f"a result of {entry.dtype}, {'one' if entry.n == 1 else 'several'}")


def corpus() -> list[Entry]:
    return [Entry(**json.loads(line)) for line in CORPUS.read_text().splitlines() if line]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", action="store_true")
    chosen = options.parse_args()
    rng = np.random.default_rng(chosen.seed)
    seen: set[tuple[str, str]] = set()
    kept, count, failed, added = corpus(), 0, 0, 0
    end = time.monotonic() + chosen.seconds
    while kept or time.monotonic() < end:
        new = not kept
        entry = random_entry(rng) if new else kept.pop()
        line = json.dumps(asdict(entry))
        print(line, end="\r", file=sys.stderr, flush=True)  # the last line before a crash
        outcome = run(entry)
        if outcome.wrong:
            failed += 1
            print(f"{line}\n    {outcome.wrong}", flush=True)
        if new and chosen.keep and (outcome.wrong or (entry.case, outcome.kind) not in seen):
            added += 1
            with CORPUS.open("a") as f:
                f.write(line + "\n")
        seen.add((entry.case, outcome.kind))
        count += 1
    print(
        f"{count} calls, {len(seen)} kinds of outcome, {failed} findings, "
        f"{added} calls added to the corpus, seed {chosen.seed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
