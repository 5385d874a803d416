"""Compares registers, shared memory and spills of every kernel, as ptxas prints them, with resources.csv.

    cuda_resources.py LOG...            fails on a spill, on local memory, and on more than the table allows
    cuda_resources.py --update LOG...   writes the table

The numbers belong to one release of nvcc, which the table's first line names. With another release only
spills make the check fail, and differences are printed.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).parent.parent / "cuda" / "resources.csv"
FIELDS = ["architecture", "kernel", "threads", "registers", "shared"]
ENTRY = re.compile(r"Compiling entry function '(.+?)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
Key = tuple[str, str]
Row = tuple[int, int, int]  # threads, registers, shared bytes


def short_name(mangled: str) -> str:
    """A kernel's demangled name, such as reduce_wide<float, float, Tile<64, 64, 16, 16, 16>, 64, true>."""
    full = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout
    name = full.replace("qk::cuda::", "").replace("> >", ">>").strip().removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at].replace("(bool)1", "true").replace("(bool)0", "false")
    return name


def threads_of(name: str) -> int:
    """The block size, from the template arguments (see cuda/src)."""
    if tile := re.search(r"Tile<\d+, \d+, \d+, (\d+), (\d+)>", name):
        return int(tile[1]) * int(tile[2])
    numbers = [int(n) for n in re.findall(r"\b(\d+)\b", name.partition("<")[2])]
    return 32 * numbers[-1] if name.startswith("gaussian_flow") else numbers[0]


def read_logs(paths: list[Path]) -> tuple[str, dict[Key, Row], list[str]]:
    release, found, problems = "", {}, []
    entry: Key | None = None
    for line in (line for path in paths for line in path.read_text().splitlines()):
        if match := re.search(r"release (\S+), V(\S+)", line):
            release = match[2]
        elif match := ENTRY.search(line):
            entry = (match[2], short_name(match[1]))
        elif entry and (match := SPILLS.search(line)):
            if any(int(n) for n in match.groups()):
                problems.append(f"{entry[0]} {entry[1]}: local memory or spills: {line.strip()}")
        elif entry and (match := USED.search(line)):
            found[entry] = (threads_of(entry[1]), int(match[1]), int(match[2] or 0))
            entry = None
    return release, found, problems


def read_table() -> tuple[str, dict[Key, Row]]:
    if not TABLE.exists():
        return "", {}
    with TABLE.open() as file:
        release = file.readline().removeprefix("# nvcc ").strip()
        rows = {
            (r["architecture"], r["kernel"]): (
                int(r["threads"]),
                int(r["registers"]),
                int(r["shared"]),
            )
            for r in csv.DictReader(file)
        }
    return release, rows


def write_table(release: str, rows: dict[Key, Row]) -> None:
    with TABLE.open("w", newline="") as file:
        file.write(f"# nvcc {release}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for (architecture, kernel), row in sorted(
            rows.items(), key=lambda r: (int(r[0][0][3:]), r[0][1])
        ):
            writer.writerow([architecture, kernel, *row])


def compare(release: str, found: dict[Key, Row]) -> list[str]:
    allowed_release, allowed = read_table()
    problems = []
    for key in sorted(found.keys() | allowed.keys()):
        name = " ".join(key)
        if key not in found or key not in allowed:
            where = "compiled" if key in found else "in the table"
            problems.append(f"{name}: only {where}")
        elif any(f > a for f, a in zip(found[key], allowed[key], strict=True)):
            problems.append(
                f"{name}: {found[key]} (threads, registers, shared), allowed {allowed[key]}"
            )
    if problems and release != allowed_release:
        print(
            f"nvcc {release}, the table is of {allowed_release}: not compared, for information only"
        )
        print("\n".join(problems))
        return []
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()

    release, found, problems = read_logs(args.logs)
    if not found:
        problems.append("no kernels in the logs: was -Xptxas=-v given?")
    if args.update and not problems:
        write_table(release, found)
    problems += compare(release, found)
    print("\n".join(problems))
    n_architectures = len({key[0] for key in found})
    print(f"nvcc {release}: {len(found)} kernels over {n_architectures} architectures")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
