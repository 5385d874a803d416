"""Builds the native programs in bench/native with the C++ compiler of this machine."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

from harness import BENCH

NATIVE = BENCH / "native"
CPP = BENCH.parent / "cpp"
# The same flags as in the wheel.
LIBRARY_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
NO_COMPILER = "skipped: no C++ compiler (install g++, or set CXX)"


def compiler() -> list[str] | None:
    """The command of the C++ compiler: CXX if it is set, otherwise g++ or c++."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    return shlex.split(found) if found else None


def build(name: str, sources: dict[str, tuple[str, ...]]) -> Path | None:
    """Compiles each source with its extra flags and links them; returns None if there is no compiler."""
    command = compiler()
    if command is None:
        return None
    folder = NATIVE / "build"
    folder.mkdir(exist_ok=True)
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread", f"-I{CPP / 'include'}"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mprefer-vector-width=512")  # otherwise GCC uses half of the width of AVX-512
    objects = []
    for source, extra in sources.items():
        target = folder / f"{source}.o"
        words = [*command, *flags, *extra, "-c", str(NATIVE / f"{source}.cpp"), "-o", str(target)]
        subprocess.run(words, check=True)
        objects.append(str(target))
    # The extra flags are not used for linking, because -ffast-math at link time would make the whole
    # program flush subnormal numbers.
    program = folder / name
    subprocess.run([*command, "-pthread", *objects, "-o", str(program)], check=True)
    return program


@cache
def limits() -> Path | None:
    fast = ("-ffast-math", "-fopenmp-simd")  # without these flags GCC does not call libmvec
    sources = {"limits": (), "exp_qkcore": LIBRARY_FLAGS, "exp_libmvec": fast}
    return build("limits", sources)


@cache
def stages() -> Path | None:
    return build("stages", {"stages": (*LIBRARY_FLAGS, f"-I{CPP / 'src'}")})
