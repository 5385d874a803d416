"""Fuzzing guided by coverage: libFuzzer, through atheris, chooses the calls of tests/fuzzing.py.

    python -m tests.fuzzing_guided --seconds 300 [--keep]      # make fuzz-guided

An input is the bytes of one `Entry`. Inputs that reach new lines or branches of qkcore's Python code are kept
and mutated further. The program begins with the calls of the corpus and stops at the first failure, whose
call it prints. With --keep this call is added to the corpus, and so are calls that ended as no other call of
the corpus did. The compiled modules are not instrumented; `make fuzz` runs them with a sanitizer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or "--worker" not in sys.argv:
    from .api_cases import CASES
    from .fuzzing import CORPUS, Entry, corpus, run
else:  # coverage is measured for what is imported here
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["qkcore"]):
        from .api_cases import CASES
        from .fuzzing import CORPUS, Entry, corpus, run

NAMES = sorted(CASES)
FORM = struct.Struct("<HIBBBBB")
MOST_ROWS, MOST_COLUMNS, MOST_DIMENSIONS, MOST_SPOILT = 33, 17, 5, 3


def to_bytes(entry: Entry) -> bytes:
    return FORM.pack(
        NAMES.index(entry.case), entry.seed, entry.n - 1, entry.m - 1, entry.d - 1,
        entry.dtype == "float64", entry.spoil,
    )  # fmt: skip


def from_bytes(data: bytes) -> Entry:
    """Every string of bytes is a call: what is missing is 0, what is too much is left out."""
    case, seed, n, m, d, double, spoil = FORM.unpack(data[: FORM.size].ljust(FORM.size, b"\0"))
    return Entry(
        case=NAMES[case % len(NAMES)],
        seed=seed,
        n=1 + n % MOST_ROWS,
        m=1 + m % MOST_COLUMNS,
        d=1 + d % MOST_DIMENSIONS,
        dtype="float64" if double % 2 else "float32",
        spoil=spoil % MOST_SPOILT,
    )


class Finding(Exception):
    """A call that ended as none may: libFuzzer stops at it."""


def work(inputs: str, limits: list[str]) -> None:
    """In a process of its own, which libFuzzer ends when it is done."""

    def one(data: bytes) -> None:
        entry = from_bytes(data)
        outcome = run(entry)
        if outcome.wrong:
            raise Finding(f"{json.dumps(asdict(entry))}\n    {outcome.wrong}")

    atheris.Setup([sys.argv[0], inputs, *limits], one)
    atheris.Fuzz()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep", action="store_true")
    options.add_argument("--worker", metavar="FOLDER", help="of inputs; for the process itself")
    chosen, limits = options.parse_known_args()
    if chosen.worker:
        work(chosen.worker, limits)
    known = corpus()
    with tempfile.TemporaryDirectory() as folder:
        inputs, found = Path(folder) / "inputs", Path(folder) / "found"
        inputs.mkdir()
        found.mkdir()
        for k, entry in enumerate(known):
            (inputs / f"known-{k:05d}").write_bytes(to_bytes(entry))
        # Calls take milliseconds, and a solve may take seconds.
        code = subprocess.call(
            [sys.executable, "-m", "tests.fuzzing_guided", "--worker", str(inputs),
             f"-max_total_time={chosen.seconds}", f"-seed={chosen.seed}", f"-max_len={FORM.size}",
             f"-artifact_prefix={found}/", "-timeout=60", "-rss_limit_mb=6000"]
        )  # fmt: skip
        new = [
            from_bytes(path.read_bytes())
            for path in sorted(inputs.iterdir())
            if not path.name.startswith("known-")
        ]
        findings = [from_bytes(path.read_bytes()) for path in found.iterdir()]
    kinds = {(entry.case, run(entry).kind) for entry in known}
    # These are not run again, because one of them may have ended its process.
    added = list(findings)
    for entry in new:
        kind = (entry.case, run(entry).kind)
        if kind not in kinds:
            kinds.add(kind)
            added.append(entry)
    for entry in findings:
        print(f"finding: {json.dumps(asdict(entry))}")
    print(
        f"{len(new)} inputs reached something new, {len(added)} of them ended in a way that no call of the "
        f"corpus did; libFuzzer's exit code {code}"
    )
    if chosen.keep:
        with CORPUS.open("a") as f:
            f.writelines(json.dumps(asdict(entry)) + "\n" for entry in added)
    return code


if __name__ == "__main__":
    sys.exit(main())
