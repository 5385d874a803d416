"""tools/check_symbols.py finds every kind of mistake; the wheels are checked when they are built."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_symbols.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="runs away from the source tree")
MODULE = Path("_cpu_v3.cpython-311-x86_64-linux-gnu.so")
INIT = "000000000005f330 g    DF .text\t00000000000001e5  Base        PyInit__cpu_v3\n"
HEADER = """
   STACK off    0x0 vaddr 0x0 paddr 0x0 align 2**4
         filesz 0x0 memsz 0x0 flags rw-
  NEEDED               libstdc++.so.6
  NEEDED               libc.so.6
    0x069691b4 0x00 02 GLIBC_2.34
    0x056bafd0 0x00 05 GLIBCXX_3.4.30
"""


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_symbols", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, symbols: str = INIT, header: str = HEADER
) -> list[str]:
    shown = {"-T": symbols, "-p": header}
    monkeypatch.setattr(tool, "objdump", lambda option, path: shown[option])
    problems: list[str] = tool.problems(MODULE, (2, 35))
    return problems


def test_a_good_module(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = "0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.14) memcpy\n"
    optional = "0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__\n"
    assert found(tool, monkeypatch, INIT + needs + optional) == []


@pytest.mark.parametrize(
    "line",
    [
        "0000000000001109 g    DF .text\t0000000000000018 other\n",
        "000000000000112c  w   DF .text\t000000000000000d other\n",  # an inline function
        "0000000000004010 u    DO .data\t0000000000000004 other\n",  # its static variable
    ],
)
def test_a_symbol_too_many(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    (problem,) = found(tool, monkeypatch, INIT + line)
    assert "other" in problem and "wanted PyInit__cpu_v3 alone" in problem


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("libc.so.6", "libgomp.so.1"), "needs ['libgomp.so.1']"),
        (("flags rw-", "flags rwx"), "executable stack"),
        (("  NEEDED", "  RUNPATH              /opt\n  NEEDED"), "run path"),
        (("GLIBC_2.34", "GLIBC_2.36"), "needs glibc (2, 36)"),
    ],
)
def test_what_it_refuses(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], says: str
) -> None:
    (problem,) = found(tool, monkeypatch, header=HEADER.replace(*change))
    assert says in problem
