"""``qkcore bench``: every contender is right, wrong answers are noticed, and table and file are complete."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkcore import _bench, cli
from qkcore._bench import _runner


@pytest.mark.parametrize("group", _bench.GROUPS)
@pytest.mark.filterwarnings("ignore")  # warnings of peers are not our concern
def test_all_contenders_give_the_exact_answer(group: str) -> None:
    case = _bench.GROUPS[group](True, 1)
    for name, call in case.contenders.items():
        error = _runner._error(call(), case)
        # Peers may be off as far as single precision and other stopping rules allow, qkcore by its bound.
        assert error <= (case.bound if name == "qkcore" else max(1e3 * case.bound, 1e-6)), name


def test_table_and_file_have_time_ratio_error_memory(tmp_path: Path, capsys: Any) -> None:
    words = ["bench", "logsumexp", "attention", "--quick", "--threads", "1"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for word in ("time/qkcore", "max error", "peak MB", "NumPy", "attention"):
        assert word in shown
    data = json.loads((tmp_path / "bench.json").read_text())
    assert {"cpu", "commit", "versions", "bench_threads"} <= set(data["environment"])
    assert data["environment"]["bench_threads"] == 1
    rows = {(row["group"], row["contender"]): row for row in data["rows"]}
    for group in ("logsumexp", "attention"):
        mine, other = rows[group, "qkcore"], rows[group, "NumPy"]
        assert mine["ratio"] == 1 and mine["seconds"] == min(mine["samples"]) > 0
        assert other["ratio"] == pytest.approx(other["seconds"] / mine["seconds"])
        assert not mine["wrong"] and mine["error"] < 1e-5


def test_a_wrong_answer_is_marked_and_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    right = _bench.GROUPS["logsumexp"](True, 1)
    for off in (1e-3, math.nan):
        calls = {**right.contenders, "qkcore": lambda off=off: right.exact + off}
        case = dataclasses.replace(right, contenders=calls)
        monkeypatch.setitem(_bench.GROUPS, "logsumexp", lambda quick, threads, case=case: case)
        assert cli.main(["bench", "logsumexp", "--quick", "--out", str(tmp_path)]) == 1
        assert "WRONG" in capsys.readouterr().out


def test_a_result_of_another_shape_is_wrong() -> None:
    case = _bench.GROUPS["logsumexp"](True, 1)
    assert math.isnan(_runner._error(np.zeros(3), case))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "atention"], "unknown benchmark 'atention'; did you mean attention"),
        (
            ["bench", "attention", "--threads", "0"],
            "threads: wanted a number of threads >= 1, got 0",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: Any) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
