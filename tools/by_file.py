"""by_file.py [options] FILE... [-- PYTEST ARGUMENTS]: runs pytest in one process per file.

It is meant for runs under a sanitizer, whose first finding ends the process; with one process per file the
other files still run. A folder stands for its test files. The program prints one line per file, the output of
the files that failed, and a summary.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

POLL = 0.2


@dataclass(frozen=True)
class Outcome:
    file: Path
    code: int | None  # None: it did not end in time
    seconds: float
    closing: str  # the last line of pytest, or the report of the sanitizer
    output: str

    @property
    def good(self) -> bool:
        return self.code in (0, 5)  # 5: the file has no tests to run

    def __str__(self) -> str:
        word = "ok" if self.good else "timeout" if self.code is None else f"exit {self.code}"
        return f"{word:8s} {self.file}: {self.closing} ({self.seconds:.0f} s)"


def closing_line(output: str) -> str:
    finding = re.search(
        r"^.*(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error):.*$", output, re.M
    )
    if finding:
        return finding.group(0).strip()
    lines = [line.strip("= ") for line in output.splitlines() if line.strip("= ")]
    return lines[-1] if lines else "no output"


def run(file: Path, seconds: float, arguments: list[str], logs: Path) -> Outcome:
    log = logs / f"{file.stem}.log"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        str(file),
        *arguments,
    ]
    spent = 0.0  # counted in steps, so that a run that is stopped and continued (SIGSTOP) does not time out
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        while process.poll() is None and spent < seconds:
            before = time.monotonic()
            time.sleep(POLL)
            spent += min(time.monotonic() - before, 5 * POLL)
        code = process.poll()
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_text(errors="replace")
    return Outcome(file, code, spent, closing_line(output), output)


def test_files(paths: list[Path]) -> list[Path]:
    found = [sorted(path.glob("test_*.py")) if path.is_dir() else [path] for path in paths]
    return [file for files in found for file in files]


def main() -> int:
    words = sys.argv[1:]
    own, arguments = words, []
    if "--" in words:
        own, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--seconds", type=float, default=3600, help="for each file")
    options.add_argument("--logs", type=Path, default=Path("build/by_file"), help="for the outputs")
    options.add_argument("--without", type=Path, nargs="*", default=[], help="files to leave out")
    options.add_argument("files", type=Path, nargs="+")
    chosen = options.parse_args(own)
    chosen.logs.mkdir(parents=True, exist_ok=True)
    files = [file for file in test_files(chosen.files) if file not in chosen.without]
    outcomes: list[Outcome] = []
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        waiting = [pool.submit(run, f, chosen.seconds, arguments, chosen.logs) for f in files]
        for done in concurrent.futures.as_completed(waiting):
            outcome = done.result()
            outcomes.append(outcome)
            print(outcome, flush=True)
            if not outcome.good:
                print("\n".join(outcome.output.splitlines()[-80:]), flush=True)
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        for number, word in re.findall(
            r"(\d+) (passed|failed|skipped|xfailed|errors?)", outcome.closing
        ):
            counts[word] += int(number)
    bad = [str(outcome.file) for outcome in outcomes if not outcome.good]
    print(f"{len(outcomes)} files:", ", ".join(f"{n} {word}" for word, n in counts.items()))
    print("not good: " + (" ".join(bad) or "none"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
