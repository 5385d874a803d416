"""The installed package: files, metadata, instruction sets, and the time of its import."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qkcore
from qkcore import _cpuid

PACKAGE = Path(qkcore.__file__).parent
X86_64 = platform.machine() in ("x86_64", "AMD64")
# In ascending order; the processor supports a prefix.
SHIPPED = ["v2", "v3", "v4"] if X86_64 else ["baseline"]
BUILT = [
    level
    for level in ("native", "baseline", "v2", "v3", "v4")
    if importlib.util.find_spec(f"qkcore._cpu_{level}")
]
SUPPORTED = [level for level in SHIPPED if level <= _cpuid.level()]
# tools/check_wheel.sh sets QKCORE_ALL_LEVELS: then a wheel for users that lacks a level is an error, and the
# test is not skipped.
only_wheel = pytest.mark.skipif(
    len(BUILT) < len(SHIPPED) and not os.environ.get("QKCORE_ALL_LEVELS"),
    reason="a build for this machine alone (make dev, demo, test)",
)


def binary(module: str) -> Path:
    spec = importlib.util.find_spec(f"qkcore.{module}")
    assert spec is not None, f"qkcore.{module} is missing"
    assert spec.origin is not None
    return Path(spec.origin)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QKCORE_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# ---- files ---------------------------------------------------------------------------------------


@only_wheel
def test_every_level_of_the_architecture_is_there() -> None:
    assert BUILT == SHIPPED


def test_types_ship_with_the_package() -> None:
    assert (PACKAGE / "py.typed").is_file()
    for module in ["_cpuid", *(f"_cpu_{level}" for level in BUILT)]:
        folders = (binary(module).parent, PACKAGE)  # an editable install has two
        assert any((folder / f"{module}.pyi").is_file() for folder in folders), module


# ---- metadata ------------------------------------------------------------------------------------


def test_metadata() -> None:
    metadata = importlib.metadata.metadata("qkcore")
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert set(metadata.get_all("License-File") or []) == {"LICENSE", "NOTICE"}
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Version"] == qkcore.__version__ == _cpuid.version

    requires = [r for r in importlib.metadata.requires("qkcore") or [] if "extra ==" not in r]
    assert sorted(re.split(r"[<>=!~; ]", r)[0] for r in requires) == ["numpy", "scipy", "tqdm"]


# ---- instruction sets ----------------------------------------------------------------------------

YMM, ZMM = r"%ymm", r"%zmm|%k[1-7]"
# All AVX instructions begin with v, also those on xmm registers. (verr and verw are not AVX.)
AVX = rf"\tv(?!er[rw]\b)|{YMM}|{ZMM}"
# Some instructions of SSE3 to SSE4.2; a compiler that may use these levels will use one of them.
ABOVE_V1 = (
    rf"{AVX}|\t(popcnt|pshufb|palignr|haddp|movddup|lddqu|round[sp][sd]|blendv?p|pblend|"
    r"pextr[bdq]|crc32|pmulld)"
)
TOO_MUCH = {"_cpuid": ABOVE_V1, "_cpu_v2": AVX, "_cpu_v3": ZMM}
SIGN_OF_USE = {"_cpu_v3": YMM, "_cpu_v4": ZMM}


def disassembly(module: str) -> Iterator[str]:
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump (binutils) is not installed: the instructions cannot be inspected")
    command = [objdump, "-d", "--no-show-raw-insn", str(binary(module))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from process.stdout
    assert process.returncode == 0


def count(module: str, pattern: str) -> tuple[int, str]:
    """Number of matching instructions, and the first of them."""
    search, found, first = re.compile(pattern).search, 0, ""
    for line in disassembly(module):
        if search(line):
            found += 1
            first = first or line.strip()
    return found, first


@only_wheel
@pytest.mark.skipif(not X86_64, reason="x86-64 levels")
def test_constants_are_not_read_through_masks() -> None:
    """A page that no lane asks for is never faulted in, and such reads then take a hundred cycles each."""
    found, first = count("_cpu_v4", r"\(%rip\).*\{%k")
    assert found == 0, f"{first}: see in_register in cpp/include/qk/simd.hpp"


@only_wheel
@pytest.mark.skipif(not X86_64, reason="x86-64 levels")
@pytest.mark.parametrize("module", TOO_MUCH)
def test_module_stays_within_its_level(module: str) -> None:
    found, first = count(module, TOO_MUCH[module])
    assert found == 0, f"{module} would crash on a processor of its level: {first}"


@only_wheel
@pytest.mark.skipif(not X86_64, reason="x86-64 levels")
@pytest.mark.parametrize("module", SIGN_OF_USE)
def test_module_uses_its_level(module: str) -> None:
    found, _ = count(module, SIGN_OF_USE[module])
    assert found > 100, f"{module} was built without the instructions it is named after"


def test_cpuid() -> None:
    assert _cpuid.level() in (["v1", "v2", "v3", "v4"] if X86_64 else ["baseline"])
    assert _cpuid.brand().strip() == _cpuid.brand() != ""


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or not X86_64, reason="needs /proc/cpuinfo")
def test_cpuid_agrees_with_the_kernel() -> None:
    flags = set(re.findall(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)[0].split())
    v2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
    v3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
    v4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    level = "v1"
    for name, needed in (("v2", v2), ("v3", v3), ("v4", v4)):
        if not needed <= flags:
            break
        level = name
    assert _cpuid.level() == level


# ---- import --------------------------------------------------------------------------------------

USE = """
import numpy as np, qkcore as qk
X = np.random.default_rng(0).standard_normal((70, 5))
A = qk.softmax(qk.scores.distance(X))
Z = -((X[:, None] - X[None]) ** 2).sum(-1)
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
np.testing.assert_allclose(A @ X, P @ X, rtol=1e-12, atol=1e-13)
print(qk.config()["isa"])
"""


@pytest.mark.parametrize("level", SHIPPED)
def test_each_supported_level_works_when_forced(level: str) -> None:
    if level not in BUILT:
        pytest.skip(f"{level} was not built")
    if level not in SUPPORTED:
        pytest.skip(f"this processor ({_cpuid.brand()}) stops at {_cpuid.level()}")
    done = python(USE, QKCORE_ISA=level)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [level]


def test_best_level_is_the_default() -> None:
    done = python(USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [SUPPORTED[-1] if BUILT == SHIPPED else BUILT[0]]


@pytest.mark.parametrize("level", ["v9", "avx2", *(x for x in SHIPPED if x not in SUPPORTED)])
def test_unusable_level_is_an_import_error_that_helps(level: str) -> None:
    done = python("import qkcore", QKCORE_ISA=level)
    message = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert message.startswith("ImportError"), done.stderr
    assert "QKCORE_ISA" in message
    assert level in message, "it names what was asked for"
    for usable in SUPPORTED if BUILT == SHIPPED else BUILT:
        assert usable in message, "it names what there is"


def test_import_is_light() -> None:
    done = python(
        "import sys, numpy; before = set(sys.modules); import qkcore; "
        "print(*sorted(set(sys.modules) - before))"
    )
    assert done.returncode == 0, done.stderr
    new = done.stdout.split()
    heavy = {"scipy", "matplotlib", "torch", "pandas", "yaml", "importlib.metadata", "argparse"}
    assert not heavy & set(new)
    others = [name for name in new if not name.startswith("qkcore")]
    assert len(others) < 60, f"import qkcore loads {len(others)} modules beyond NumPy: {others}"


def test_import_starts_no_thread() -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc to count threads")
    count_threads = "import os; print(len(os.listdir('/proc/self/task')))"
    with_numpy = python(f"import numpy; {count_threads}")
    with_qkcore = python(f"import numpy, qkcore; {count_threads}")
    assert with_qkcore.stdout == with_numpy.stdout
