"""Runs clang-tidy on cpp/, at one instruction-set level only, because all levels have the same sources."""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

# Flags that only GCC knows; clang would warn about each of them.
GCC_ONLY = {"-fno-fat-lto-objects", "-fno-semantic-interposition"}


def without_precompiled(command: str) -> list[str]:
    """The words of a command without the precompiled header, which is in GCC's own format.

    This also checks that every file includes what it uses.
    """
    return re.sub(r"-Winvalid-pch|-include \S*cmake_pch\S*", "", command).split()


def one_level(commands: list[dict[str, str]]) -> list[dict[str, str]]:
    """Each file once, with the flags of v3 if that was built, since they enable most intrinsics."""
    by_file: dict[str, dict[str, str]] = {}
    for entry in commands:
        if entry["file"] not in by_file or "-march=x86-64-v3" in entry["command"]:
            words = [word for word in without_precompiled(entry["command"]) if word not in GCC_ONLY]
            by_file[entry["file"]] = {**entry, "command": " ".join(words)}
    return [by_file[file] for file in sorted(by_file)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clang-tidy", default="clang-tidy")
    parser.add_argument("--build", type=Path, required=True, help="build folder of CMake")
    parser.add_argument("files", nargs="*", help="only files whose path ends in one of these")
    args = parser.parse_args()

    commands = one_level(json.loads((args.build / "compile_commands.json").read_text()))
    folder = args.build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(commands, indent=1))

    def tidy(file: str) -> tuple[str, float, subprocess.CompletedProcess[str]]:
        start = time.monotonic()
        command = [args.clang_tidy, "-p", str(folder), "--quiet", file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return file, time.monotonic() - start, done

    files = [c["file"] for c in commands if not args.files or c["file"].endswith(tuple(args.files))]
    # The precompiled header is not our source.
    files = [file for file in files if "cmake_pch" not in file]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, seconds, done in pool.map(tidy, files):
            print(f"clang-tidy {os.path.relpath(file)} ({seconds:.0f} s)", flush=True)
            if done.returncode:
                failed += 1
                print(done.stdout, done.stderr, sep="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
