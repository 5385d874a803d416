"""The tools of bench/: comparison of runs, explanations of missed targets, the document, floors and fits."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"

pytestmark = pytest.mark.skipif(not BENCH.is_dir(), reason="bench/ is not beside the tests")


@pytest.fixture(autouse=True)
def bench_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """bench/ is a folder of scripts; what it adds to sys.modules goes away again."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path and Path(path).parent == BENCH:
            del sys.modules[name]


def tool(name: str) -> Any:
    return importlib.import_module(name)


def write(path: Path, times: dict[tuple[str, str], list[float]], **more: Any) -> Path:
    rows = [
        {"case": case, "contender": who, "timing": {"samples": samples}}
        for (case, who), samples in times.items()
    ]
    environment = {"cpu": "A", "threads": 2, "versions": {"numpy": "2"}, **more.pop("env", {})}
    path.write_text(json.dumps({"environment": environment, "name": "group", "rows": rows, **more}))
    return path


def compare(tmp_path: Path, old: Any, new: Any, *words: str, **more: Any) -> int:
    a, b = write(tmp_path / "a.json", old), write(tmp_path / "b.json", new, **more)
    status: int = tool("compare").main([str(a), str(b), *words])
    return status


def test_a_regression_beyond_the_factor_is_status_1(tmp_path: Path, capsys: Any) -> None:
    old = {("case", "qkcore"): [1.0, 1.01]}
    assert compare(tmp_path, old, {("case", "qkcore"): [1.4, 1.41]}) == 1
    assert "slower   1.40×" in capsys.readouterr().out
    assert compare(tmp_path, old, {("case", "qkcore"): [1.4, 1.41]}, "--factor", "1.5") == 0
    assert compare(tmp_path, old, {("case", "qkcore"): [0.5, 0.51]}) == 0
    assert "faster   0.50×" in capsys.readouterr().out


def test_a_change_within_the_spread_of_the_samples_is_no_change(
    tmp_path: Path, capsys: Any
) -> None:
    old = {("case", "qkcore"): [1.0, 1.6, 1.7]}  # the median is 1.6 times the minimum
    assert compare(tmp_path, old, {("case", "qkcore"): [1.4, 1.41]}) == 0
    assert "0 faster, 1 same, 0 slower" in capsys.readouterr().out


def test_a_slower_machine_is_divided_out_by_the_peers(tmp_path: Path) -> None:
    old = {("case", "qkcore"): [1.0], ("case", "NumPy"): [2.0], ("case", "floor: exp"): [1.0]}
    new = {("case", "qkcore"): [2.0], ("case", "NumPy"): [4.0], ("case", "floor: exp"): [1.0]}
    assert compare(tmp_path, old, new) == 0
    assert compare(tmp_path, old, new, "--raw") == 1


def test_a_new_wrong_answer_is_status_1(tmp_path: Path, capsys: Any) -> None:
    times = {("case", "qkcore"): [1.0]}
    assert compare(tmp_path, times, times, failures=["error 1"]) == 1
    assert "WRONG ANSWER" in capsys.readouterr().out


def test_folders_and_differences_of_the_environment(tmp_path: Path, capsys: Any) -> None:
    for name, version in (("old", "2"), ("new", "3")):
        (tmp_path / name).mkdir()
        env = {"versions": {"numpy": version}, "cpu": name}
        write(tmp_path / name / "group.json", {("case", "qkcore"): [1.0]}, env=env)
    assert tool("compare").main([str(tmp_path / "old"), str(tmp_path / "new"), "--all"]) == 0
    out = capsys.readouterr().out
    assert "cpu differs" in out and "numpy differs: 2 and 3" in out and "same" in out


def test_nothing_to_compare_is_status_2(tmp_path: Path, capsys: Any) -> None:
    assert compare(tmp_path, {("a", "qkcore"): [1.0]}, {("b", "qkcore"): [1.0]}) == 2
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    assert tool("compare").main([str(bad), str(bad)]) == 2
    assert tool("compare").main([str(tmp_path / "none.json"), str(bad)]) == 2
    assert "is no result" in capsys.readouterr().err


def group_with_targets() -> Any:
    harness = tool("harness")
    group = harness.Group("attention", "Attention")
    group.at_least("N=1: speed against torch SDPA", 1.0, 2.0, why="The floor is 3 ns.")
    group.at_most("N=1: memory", 5.0, 1.0, " MB")
    group.at_least("N=1: met", 3.0, 2.0)
    return group


def test_missed_targets_are_shown_with_the_number_and_the_text() -> None:
    text = tool("report").markdown(group_with_targets())
    assert "| N=1: speed against torch SDPA | ≥ 2× | 1× | **no** |" in text
    # First the computed text, then the written one.
    assert "(1×, wanted ≥ 2×): The floor is 3 ns. A profile" in text
    assert "N=1: memory (5 MB, wanted ≤ 1 MB): **not explained yet**" in text
    assert "N=1: met (" not in text


def test_every_explanation_belongs_to_a_group() -> None:
    run, report = tool("run"), tool("report")
    assert set(report.explanations()) <= set(run.GROUPS)
    for texts in report.explanations().values():
        assert all(isinstance(text, str) and text.strip() for text in texts.values())


def test_a_partial_run_keeps_the_other_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, harness = tool("report"), tool("harness")
    document = tmp_path / "performance.md"
    monkeypatch.setattr(report, "DOCUMENT", document)
    env = {
        "cpu": "A", "threads": 2, "isa": "v3", "qkcore": "0", "commit": "c", "compiler": "g",
        "python": "3", "versions": {"numpy": "2"}, "date": "today",
    }  # fmt: skip
    report.write_document([harness.Group("one", "One"), harness.Group("two", "Two")], env)
    text = document.read_text().replace("# Performance", "# Performance\n\nBy hand.")
    document.write_text(text)
    report.write_document([harness.Group("two", "Two again")], env)
    text = document.read_text()
    assert "## One\n" in text and "## Two again" in text and "By hand." in text
    assert "## Two\n" not in text and text.count("<!-- bench:two -->") == 1


def test_results_are_read_back_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, harness = tool("report"), tool("harness")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    group = harness.Group(
        "demo", "A title", "About it.", notes=["a note"], extra={"table": "| a |"}
    )
    for contender, error in (("qkcore", 1e-16), ("torch", None)):
        timing = harness.Timing((0.2, 0.1), per_iteration=contender == "torch")
        group.rows.append(harness.Row("case", contender, timing, 1000, 1.5, error, 3.0))
    group.targets.append(harness.Target("a figure", "≥ 2×", "1×", False, "because"))
    report.write_json(group, {"date": "today"})
    assert report.read_json("demo") == (group, {"date": "today"})


def test_the_document_has_a_section_for_every_marker() -> None:
    text = (BENCH.parent / "docs" / "performance.md").read_text()
    run = tool("run")
    for name in run.GROUPS:
        assert text.count(f"<!-- bench:{name} -->") == text.count(f"<!-- /bench:{name} -->") <= 1


def test_floor_is_flops_and_exps_at_the_measured_rates() -> None:
    limits, harness = tool("limits"), tool("harness")
    floor = limits.Floor(harness.Options(), "float64")
    assert floor.seconds(1000, 32) is None and floor.why(1000, 32, 1.0) == ""
    floor.fma.rates, floor.exp.rates = {"fma": 100.0}, {"exp_libmvec": 1.0, "exp_qkcore": 2.0}
    assert floor.seconds(10**9, 32) == pytest.approx(64 / 100 + 1 / 2)
    why = floor.why(10**9, 32, 2.28, peer=2.28)
    assert "0.64 + 0.50 ns" in why and "50 % of the floor" in why and "2.00× the peer" in why


def test_fitted_exponents_are_those_of_power_laws() -> None:
    growth = tool("growth")
    n = np.array([100, 1000, 10000])
    assert growth.exponent(n, 3e-9 * n**2.0) == pytest.approx(2)
    assert growth.exponent(n, 5.0 * n) == pytest.approx(1)
    assert growth.exponent(n[:1], n[:1]) is None


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    fake = SimpleNamespace(perf_counter=lambda: found.now, sleep=lambda _: None)
    monkeypatch.setattr(tool("harness"), "time", fake)
    alone = SimpleNamespace(fraction=lambda: 0.0)
    monkeypatch.setattr(tool("harness"), "OtherLoad", lambda: alone)
    return found


def test_time_per_iteration_is_free_of_set_up_and_the_long_run_is_clearly_longer(
    clock: Clock,
) -> None:
    harness = tool("harness")
    ready: list[int] = []
    fast = harness.LongAndShort(lambda n: clock.advance(0.1 + 1e-4 * n), ready=ready.append)
    fast.prepare(0.0)
    assert (fast.many - fast.few) * 1e-4 >= 0.3
    assert ready[:2] == [1, 2] and ready[-1] == fast.many
    assert fast.sample(0.0) == pytest.approx(1e-4)
    heavy = harness.LongAndShort(lambda n: clock.advance(4.0 + 0.1 * n), slow=10, step=10)
    heavy.prepare(0.0)  # by half of the short run at least
    assert (heavy.many - heavy.few) % 10 == 0 and (heavy.many - heavy.few) * 0.1 >= 2.05
    slow = harness.LongAndShort(lambda n: clock.advance(5.0 * n))
    slow.prepare(0.0)
    assert (slow.few, slow.many) == (1, 2) and clock.now > 0


def test_a_run_that_takes_no_time_does_not_hang(clock: Clock) -> None:
    harness = tool("harness")
    nothing = harness.LongAndShort(lambda n: None)
    nothing.prepare(0.0)
    assert nothing.many >= harness.MOST_ITERATIONS
    turns = harness.take_turns({"a": nothing}, rounds=3, budget=1.0)
    assert turns.missing == ("a",) and turns.timings() == {}


def test_iterations_of_a_solve_leave_the_first_out_and_keep_the_mean(clock: Clock) -> None:
    harness = tool("harness")

    def solve(callback: Any) -> None:
        for seconds in (9.0, 0.1, 0.1, 0.1, 0.5):  # set-up, iterations, one that does more
            clock.advance(seconds)
            callback(0, 0.0)

    one = harness.IterationsOfSolves(solve)
    one.prepare(0.0)
    assert one.repeats == 1 and clock.now == pytest.approx(9.8)  # long enough: not tried again
    assert one.sample(0.0) == pytest.approx(0.2)
    brief = harness.IterationsOfSolves(solve, target=2.0)
    brief.prepare(0.0)
    assert brief.repeats == 3


def test_a_contender_that_had_a_trial_is_recorded_once() -> None:
    harness = tool("harness")
    found = harness.Recorder()
    found.calls = []
    found.keep({"a": int, "b": int}, {})
    found.keep({"b": float, "c": int}, {})
    found.label("case", "b", 0.5)
    assert [(one.contender, one.case) for one in found.calls] == [
        ("a", ""),
        ("b", "case"),
        ("c", ""),
    ]
    found.keep({"b": int}, {})  # another case
    assert [one.contender for one in found.calls] == ["a", "b", "c", "b"]


@pytest.mark.parametrize("name", ["stages", "limits", "exp_qkcore"])
def test_native_programs_compile_against_the_headers_of_today(name: str) -> None:
    """`core.cpp` is compiled by make bench-native alone: it needs Google Benchmark."""
    compiling = tool("compiling")
    command = compiling.compiler()
    if command is None:
        pytest.skip(compiling.NO_COMPILER)
    include = [f"-I{compiling.CPP / folder}" for folder in ("include", "src")]
    source = str(compiling.NATIVE / f"{name}.cpp")
    done = subprocess.run(
        [*command, "-std=c++20", "-fsyntax-only", *include, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_iterations_between_printed_lines_leave_set_up_out(clock: Clock) -> None:
    harness = tool("harness")

    def run(count: int) -> None:
        clock.advance(7.0)
        for k in range(count):
            clock.advance(0.01)
            if k % 10 == 0:
                clock.advance(0.05)  # a look at the error
                print("It. |Err") if k % 200 == 0 else None
                print(f"{k:5d}|{0.5:8e}|")
        clock.advance(3.0)

    one = harness.PrintedIterations(run, 10)
    one.prepare(0.0)
    assert one.count % 10 == 1 and (one.count - 1) * 0.015 >= 0.3 and one.count < 50
    assert one.sample(0.0) == pytest.approx(0.015)
    with pytest.raises(RuntimeError, match="0 lines were printed"):
        harness.PrintedIterations(lambda count: None, 10).sample(0.0)


def test_slow_contenders_sit_out_once_they_had_their_share(clock: Clock) -> None:
    harness = tool("harness")

    def work(seconds: float) -> Any:
        return harness.LongAndShort(lambda n: clock.advance(seconds * n), 0, 1)

    contenders = {"fast": work(0.5), "slow": work(3.0), "slowest": work(20.0)}
    turns = harness.take_turns(contenders, rounds=4, budget=1e9, share=8.0, settle=0.0)
    seen = [sum(name in one for one in turns.rounds) for name in contenders]
    assert seen == [4, 2, 1] and turns.missing == ()
    assert turns.timings()["slow"] == harness.Timing((pytest.approx(3.0),) * 2, True)
    late = harness.take_turns(contenders, rounds=4, budget=1e9, limit=1.0, brief=1.0, settle=0.0)
    assert [list(one) for one in late.rounds] == [list(contenders)] + [["fast"]] * 3


def test_ratios_within_rounds_do_not_see_the_machine_drift() -> None:
    turns = tool("harness").Turns(
        ({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 6.0}, {"a": 9.0}, {"a": 9.0, "b": 90.0})
    )
    assert turns.ratio("b", "a") == 2.0
    apart = tool("harness").Turns(({"a": 1.0}, {"b": 2.0}))  # no round in common: medians
    assert apart.ratio("b", "a") == 2.0


def test_times_per_iteration_are_reported_by_median_and_range() -> None:
    harness, report = tool("harness"), tool("report")
    group = harness.Group("bridges", "Bridges")
    times = harness.Timing((1e-3, 3e-3, 2e-3), True)
    group.rows.append(harness.Row("case", "qkcore", times, 1000, 1.0))
    group.rows.append(harness.Row("other", "qkcore", harness.Timing((4e-3, 5e-3)), 1000, 1.0))
    text = report.markdown(group)
    assert "| case | qkcore | – | 2 ms | 1 ms – 3 ms | 2e+03 | 1.00 |" in text
    assert "| other | qkcore | 4 ms | 4.5 ms | – | 4e+03 | 1.00 |" in text


def test_compare_takes_medians_of_times_per_iteration(tmp_path: Path) -> None:
    found = []
    for name, lucky in (("old", 1.0), ("new", 0.1)):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name / "group.json", {("case", "qkcore"): [lucky, 1.0, 1.0]})
        data = json.loads(path.read_text())
        data["rows"][0]["timing"]["per_iteration"] = True
        path.write_text(json.dumps(data))
        # A file of Google Benchmark, which is ignored.
        (tmp_path / name / "native_v3.json").write_text("{}")
        found.append(tool("compare").load(tmp_path / name))
    (change,) = tool("compare").changes(*found)
    assert change.verdict == "same" and change.ratio == pytest.approx(1.0)


def native_file(path: Path, factor: float, *, failing: bool = False) -> None:
    name = "attention/N:4000/d:64/float32/threads:2/min_time:0.200/repeats:3/real_time"
    run: dict[str, Any] = {"run_name": name}
    runs = [
        {**run, "label": "FMA + exp", "real_time": 1.0, "x_limit": 1.0},
        {**run, "label": "read", "real_time": 2.0, "x_limit": 1.0},
        {**run, "aggregate_name": "mean", "real_time": 9.0, "x_limit": 9.0},
        {**run, "aggregate_name": "median", "real_time": 30.0 * factor, "x_limit": 1.5},
        {**run, "aggregate_name": "cv", "real_time": 0.04, "x_limit": 0.04},
        {"run_name": "limits/float32/threads:2/iterations:1", "GFLOP_s": 200.0, "Gexp_s": 7.0,
         "GB_s": 30.0},
    ]  # fmt: skip
    if failing:
        runs.append(
            {**run, "error_occurred": True, "error_message": "wrong answer", "real_time": 0.0}
        )
    path.write_text(json.dumps({"context": {}, "benchmarks": runs}))


def test_native_results_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native, harness = tool("native"), tool("harness")
    (tmp_path / "results").mkdir()
    native_file(tmp_path / "results" / "native_v2.json", 3.0)
    native_file(tmp_path / "results" / "native_v3.json", 1.0, failing=True)
    monkeypatch.setattr(native, "BENCH", tmp_path)
    monkeypatch.setattr(native, "build_and_run", lambda *_: None)
    monkeypatch.setattr(native.environment, "cpu_has", lambda level: level != "v4")
    group = native.run(harness.Options())
    row = "| attention, N = 4000, d = 64 | float32 | 2 | FMA + exp / read | 90 ms | 1.50 | 30 ms | 1.50 |"
    assert row in group.extra["table"].splitlines()
    assert "| FMA, GFLOP/s | v3 | 200 |" in group.extra["table"]
    assert group.failures == [
        "v3: attention/N:4000/d:64/float32/threads:2/min_time:0.200/repeats:3/real_time: wrong answer"
    ]
    assert "v4: not run, the processor lacks it" in group.notes


def test_native_without_its_programs_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    native, harness = tool("native"), tool("harness")
    monkeypatch.setattr(native.environment, "cpu_has", lambda level: level == "v2")
    monkeypatch.setattr(native, "build_and_run", lambda *_: "skipped: no make")
    group = native.run(harness.Options())
    assert group.notes == ["skipped: no make"] and not group.extra


# ---- two builds that take turns ---------------------------------------------------------------------

FAKE = """
import time
from types import SimpleNamespace


class Result:
    n_visits = {visits}


def dot(X):
    time.sleep({seconds})
    return Result()


scores = SimpleNamespace(dot=dot)
softmax = lambda s: s
"""


def fake_build(folder: Path, seconds: float, visits: int) -> Path:
    """A package of that name whose one function takes so long."""
    (folder / "qkcore").mkdir(parents=True)
    (folder / "qkcore" / "__init__.py").write_text(FAKE.format(seconds=seconds, visits=visits))
    return folder


@pytest.mark.parametrize("slower", [False, True])
def test_the_gate_finds_what_became_slower(tmp_path: Path, slower: bool) -> None:
    """Two builds, one of which takes 20 times as long: the ratio, the visits of both, the exit status."""
    quick = fake_build(tmp_path / "quick", 0.001, 3)
    slow = fake_build(tmp_path / "slow", 0.02, 4)
    before, after = (quick, slow) if slower else (slow, quick)
    found = subprocess.run(
        [
            *(sys.executable, str(BENCH / "gate.py"), str(before), str(after)),
            *("--rounds", "3", "--only", "one call N=8: scores.dot"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == int(slower), found.stderr
    row = next(line for line in found.stdout.splitlines() if line.startswith("one call N=8"))
    assert row.endswith("3 -> 4  slower" if slower else "4 -> 3")
    ratio = float(row.split()[6])
    assert ratio > 4 if slower else ratio < 0.25
    assert f"1 rows, {int(slower)} slower by more than 5%" in found.stdout


def test_the_gate_says_when_a_build_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "broken" / "qkcore").mkdir(parents=True)
    (tmp_path / "broken" / "qkcore" / "__init__.py").write_text(
        "raise ImportError('no such build')"
    )
    found = subprocess.run(
        [
            sys.executable,
            str(BENCH / "gate.py"),
            str(tmp_path / "broken"),
            str(tmp_path / "broken"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "no such build" in found.stderr and "a build's process has ended" in found.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    elsewhere = subprocess.run(
        [sys.executable, str(BENCH / "gate.py"), str(empty), str(empty)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert elsewhere.returncode == 1
    assert "gate: a build's process has ended" in elsewhere.stderr
