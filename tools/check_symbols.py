"""check_symbols.py WHEEL: checks what the compiled modules of a wheel export and what they need.

A module must export its init function and nothing else. It may need only the C and C++ libraries, in versions
that the wheel's manylinux tag allows. It must have no executable stack and no run path.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIBRARIES = {
    "libstdc++.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
}


def objdump(option: str, path: Path) -> str:
    done = subprocess.run(
        ["objdump", option, str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout


def exported(path: Path) -> set[str]:
    """Dynamic symbols that are defined in the module: global, weak (inline functions) and unique ones."""
    rows = [line for line in objdump("-T", path).splitlines() if re.match(r"^[0-9a-f]{16} ", line)]
    return {row.split()[-1] for row in rows if "*UND*" not in row and row[17] != "l"}


def newest(path: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of GLIBC, GLIBCXX and CXXABI that the module needs."""
    found: dict[str, tuple[int, ...]] = {}
    for name, version in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", objdump("-p", path)):
        parts = tuple(int(x) for x in version.split("."))
        found[name] = max(found.get(name, (0,)), parts)
    return found


def problems(path: Path, glibc: tuple[int, ...] | None) -> list[str]:
    wrong = []
    init = "PyInit_" + path.name.split(".")[0]
    if (got := exported(path)) != {init}:
        wrong.append(f"exports {sorted(got)}, wanted {init} alone")
    header = objdump("-p", path)
    needed = set(re.findall(r"NEEDED\s+(\S+)", header))
    if needed - LIBRARIES:
        wrong.append(f"needs {sorted(needed - LIBRARIES)}, which a machine may not have")
    if re.search(r"R(UN)?PATH", header):
        wrong.append("has a run path")
    stack = re.search(r"STACK.*\n.*flags (\S+)", header)
    if stack and "x" in stack.group(1):
        wrong.append("asks for an executable stack")
    if glibc and newest(path).get("GLIBC", (0,)) > glibc:
        wrong.append(f"needs glibc {newest(path)['GLIBC']}, the tag promises {glibc}")
    return wrong


def main(wheel: Path) -> int:
    tag = re.search(r"manylinux_(\d+)_(\d+)", wheel.name)
    glibc = (int(tag.group(1)), int(tag.group(2))) if tag else None
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        modules = sorted(Path(folder).rglob("*.so"))
        if not modules:
            print(f"{wheel.name}: no compiled module")
            return 1
        for path in modules:
            wrong = problems(path, glibc)
            failed += bool(wrong)
            versions = ", ".join(
                f"{k} {'.'.join(map(str, v))}" for k, v in sorted(newest(path).items())
            )
            print(
                f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {versions}: {'; '.join(wrong) or 'fine'}"
            )
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
