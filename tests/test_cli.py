"""The ``qkcore`` command with only the core's requirements installed; all experiments; completion."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkcore import cli, experiments

ABSENT = ("click", "matplotlib", "yaml", "jax", "optax", "sklearn", "torch", "ot")
PLAIN = f"""
import sys
import tempfile
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
        assert ("continuing" in captured.err) == ("trefoil" in broken)


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


def printed(shell: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main(["completion", shell]) == 0
    return said.getvalue()


BASH = """
COMP_WORDS=($LINE_SO_FAR); [[ $LINE_SO_FAR == *' ' ]] && COMP_WORDS+=('')
source "$SCRIPT"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _qkcore; printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'source $SCRIPT; complete -C "$LINE_SO_FAR" | string replace -r "\\t.*" ""; true'
# A second shell on a separate terminal, in which Tab is pressed; compadd prints its arguments.
ZSH = r"""
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner 'source "$SETUP"'
zpty -r inner seen '*READY*'
zpty -w -n inner "$LINE_SO_FAR"$'\t'
zpty -r inner seen '*DONE*'
zpty -d inner
[[ -e $FOUND ]] && cat "$FOUND"
true
"""
ZSH_SETUP = r"""
autoload -Uz compinit; compinit -u -D; source "$SCRIPT"
compadd() {
    local -a hits
    [[ " $* " == *' -'[OAD]' '* ]] || { builtin compadd -A hits "$@"; print -rl -- $hits >> "$FOUND"; }
    builtin compadd "$@"
}
tab() { zle complete-word; zle -M DO''NE }
zle -N tab; bindkey '^I' tab
PS1=READY
"""


def completed(shell: str, line: str, folder: Path) -> set[str]:
    """What a shell offers for the last word of a line: the shell is run."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "notes.yaml").write_text("")
    with tempfile.TemporaryDirectory() as place:
        script, setup, found = (Path(place) / name for name in ("script", "setup", "found"))
        script.write_text(printed(shell))
        setup.write_text(ZSH_SETUP)
        options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
        done = subprocess.run(
            [shell, *options, "-c", text],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=folder,
            env={
                "LINE_SO_FAR": line,
                "SCRIPT": str(script),
                "SETUP": str(setup),
                "FOUND": str(found),
                "PATH": os.environ["PATH"],
                "HOME": place,
                "TERM": "dumb",
            },
        )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_names_options_and_files(shell: str, tmp_path: Path) -> None:
    def offered(line: str) -> set[str]:
        return completed(shell, f"qkcore {line}", tmp_path)

    commands = {"list", "run", "report", "bench", "info", "completion"}
    assert offered("") - {"--help", "--version"} == commands
    assert offered("--") == {"--help", "--version"}
    assert offered("r") == {"run", "report"}
    assert offered("run tr") == {"trefoil", "transformer-diagnostics"}
    assert offered("run a") == {"all"}
    assert offered("run trefoil --se") == {"--set", "--seed"}
    assert offered("run trefoil --config ") == {"notes.yaml"}
    assert offered("run trefoil --seed ") == set()
    assert offered("bench attention l") == {"logsumexp"}
    assert offered("completion z") == {"zsh"}
    assert offered("report n") == {"notes.yaml"}
    # A folder may have the name of a command.
    assert offered("report run --o") == {"--output"}


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
