"""Measures how long `import qkcore` takes in new processes: ``python bench/importing.py [--rounds 15]``.

Prints wall and processor time of the import, the part of NumPy, and the slowest modules.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys

CHILD = """
import json, sys, time
def both():
    return time.perf_counter(), time.process_time()
start = both()
import numpy
middle = both()
import qkcore
end = both()
print(json.dumps([[1e3 * (b - a) for a, b in zip(*pair)] for pair in ((start, middle), (middle, end))]))
"""


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found = [json.loads(child("-c", CHILD).stdout) for _ in range(rounds)]
    for name, pick in (
        ("NumPy", lambda one, k: one[0][k]),
        ("qkcore alone", lambda one, k: one[1][k]),
        ("import qkcore", lambda one, k: one[0][k] + one[1][k]),
    ):
        wall, cpu = ([pick(one, k) for one in found] for k in (0, 1))
        print(
            f"{name:14s} wall: median {statistics.median(wall):5.0f} ms, least {min(wall):5.0f};"
            f"  processor: median {statistics.median(cpu):5.0f} ms, least {min(cpu):5.0f}"
        )
    lines = re.findall(
        r"import time: +(\d+) \| +\d+ \| +(qkcore\S*)",
        child("-X", "importtime", "-c", "import qkcore").stderr,
    )
    slowest = sorted(((int(us) / 1e3, name) for us, name in lines), reverse=True)[:8]
    print("slowest:", ", ".join(f"{name} {ms:.1f} ms" for ms, name in slowest))


if __name__ == "__main__":
    main()
