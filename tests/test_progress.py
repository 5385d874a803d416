"""The progress bar: what it shows, and that it does nothing unless it is requested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import qkcore
from qkcore._progress import Bar, track


def test_shares_counts_and_open_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("flow", True, 2.0, start=1.0) as bar:
        assert bar.report is not None
        bar.report(1.5)
        bar.to(2.5, "near")
    with Bar("steps", True, 4) as bar:
        bar.step()
        bar.step("half way")
    with Bar("bridge", True, unit=" visits") as bar:
        bar.to(17, "error 1e-3")
    shown = capsys.readouterr().err
    assert "flow:  75%" in shown and "near" in shown
    assert "steps:  50%" in shown and "2/4" in shown and "half way" in shown
    assert "bridge: 17 visits" in shown and "error 1e-3" in shown


def test_items_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track("abc", "letters", True)) == ["a", "b", "c"]
    assert "letters: 100%" in capsys.readouterr().err
    for show in (False, None):  # None, because standard error is not a terminal here
        assert list(track(iter(range(3)), "numbers", show, 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_nothing_is_loaded_or_told_without_a_bar() -> None:
    program = (
        "import sys; from qkcore._progress import Bar, track\n"
        "with Bar('x', False, 1.0) as bar: bar.to(1.0); bar.step(); print(bar.report)\n"
        "print(list(track([1], 'x', False)), 'tqdm' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["None", "[1]", "False"]


def test_nobody_else_draws_bars() -> None:
    package = Path(qkcore.__file__).parent
    users = [p.name for p in package.rglob("*.py") if "import tqdm" in p.read_text()]
    assert users == ["_progress.py"]
