"""The ``qkcore`` command with nothing installed but what the core needs; all experiments; completion."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkcore import cli, experiments

ABSENT = ("click", "matplotlib", "yaml", "jax", "optax", "sklearn", "torch", "ot")
PLAIN = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
from qkcore.cli import main
sys.exit(main())
"""


def plain(*words: str, cwd: Path | None = None) -> Any:
    """The command in a process of its own, where the extras cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", PLAIN, *words], capture_output=True, text=True, timeout=120, cwd=cwd
    )


def test_help_list_info_and_bench_need_the_core_alone(tmp_path: Path) -> None:
    for words, wanted in (
        (("--help",), "exit status:"),
        ((), "completion"),
        (("run", "--help"), "--set KEY=VALUE"),
        (("--version",), "qkcore "),
        (("list",), "transformer-diagnostics"),
        (("info",), "numpy"),
        (("bench", "logsumexp", "--quick", "--threads", "1", "--out", str(tmp_path)), "bench.json"),
        (("completion", "bash"), "complete -o filenames -F _qkcore qkcore"),
    ):
        done = plain(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert wanted in done.stdout and done.stderr == ""


@pytest.mark.parametrize(
    ("name", "packages", "extra"),
    [
        ("trefoil", "matplotlib and PyYAML, which are not", "experiments"),
        ("swissroll", "jax, optax, matplotlib and PyYAML, which are not", "train"),
        ("image-diffusion", "jax, optax, matplotlib and PyYAML, which are not", "images"),
        ("transformer-diagnostics", "matplotlib and PyYAML, which are not", "models"),
    ],
)
def test_run_names_the_packages_that_are_missing(
    name: str, packages: str, extra: str, tmp_path: Path
) -> None:
    done = plain("run", name, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"qkcore: error: {name} needs {packages} installed: pip install 'qkcore[{extra}]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_one_missing_package_is_named_alone(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # type: ignore[arg-type]
    assert cli.main(["run", "trefoil"]) == 2
    assert "trefoil needs matplotlib, which is not installed" in capsys.readouterr().err


def test_all_goes_on_after_a_refusal_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ran = []

    def run(name: str, options: Any) -> None:
        ran.append((name, options.quick, options.command))
        if name in broken:
            raise broken[name]

    monkeypatch.setattr(cli, "_run_one", run)
    for broken, status in (
        ({}, 0),
        ({"trefoil": ArithmeticError("no luck")}, 1),
        ({"swissroll": experiments.ExperimentError("needs jax")}, 2),
        ({"trefoil": ArithmeticError(), "swissroll": experiments.ExperimentError("jax")}, 2),
        ({"regimes": KeyboardInterrupt()}, 130),
    ):
        ran.clear()
        assert cli.main(["run", "all", "--quick"]) == status
        wanted = experiments.names()[: 2 if status == 130 else None]
        assert ran == [(name, True, "qkcore run all --quick") for name in wanted]
        captured = capsys.readouterr()
        assert captured.out == "".join(f"== {name}\n" for name in wanted)
        assert ("ArithmeticError" in captured.err) == ("trefoil" in broken)
        assert ("going on" in captured.err) == ("trefoil" in broken)


def test_options_stand_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkcore import _bench

    seen: list[Any] = []

    def run(groups: Any, **settings: Any) -> Any:
        seen.append((groups, settings["quick"], settings["threads"]))
        return SimpleNamespace(write=lambda path: None, wrong=())

    monkeypatch.setattr(_bench, "run", run)
    for words in ("a --quick b --threads 2", "--threads=2 --quick a b", "a b --threads 2 --quick"):
        assert cli.main(["bench", *words.split()]) == 0
    assert seen == [(["a", "b"], True, 2)] * 3


# ---- completion ----------------------------------------------------------------------------------


def completed(tmp_path: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    (tmp_path / "notes.yaml").write_text("")
    script = "\n".join(
        [
            'eval "$COMPLETION"',
            f"COMP_WORDS=(qkcore {' '.join(repr(w) for w in words)})",
            f"COMP_CWORD={len(words)}",
            '_qkcore; printf "%s\\n" "${COMPREPLY[@]}"',
        ]
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env={"COMPLETION": printed("bash")},
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def printed(shell: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main(["completion", shell]) == 0
    return said.getvalue()


def test_bash_completes_commands_names_options_and_files(tmp_path: Path) -> None:
    assert completed(tmp_path, "") == {
        *("list", "run", "report", "bench", "info", "completion", "--help", "--version"),
    }
    assert completed(tmp_path, "r") == {"run", "report"}
    assert completed(tmp_path, "run", "tr") == {"trefoil", "transformer-diagnostics"}
    assert completed(tmp_path, "run", "a") == {"all"}
    assert completed(tmp_path, "run", "trefoil", "--se") == {"--set", "--seed"}
    assert completed(tmp_path, "run", "trefoil", "--config", "") == {"notes.yaml"}
    assert completed(tmp_path, "run", "trefoil", "--seed", "") == set()
    assert completed(tmp_path, "bench", "attention", "l") == {"logsumexp"}
    assert "notes.yaml" in completed(tmp_path, "report", "n")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_hear_of_every_command_option_and_name(shell: str) -> None:
    script = printed(shell)
    for name, command in cli._program()[1].items():
        assert name in script
        for option in (o for a in command.arguments for o in a.option_strings if o[:2] == "--"):
            assert (f"-l {option[2:]} " if shell == "fish" else f"'{option}[") in script.replace(
                "'*--", "'--"
            )
    assert all(name in script for name in experiments.names())
    assert all(line.count("'") % 2 == 0 for line in script.splitlines()), "quotes in pairs"
