"""What a run does with files (EOT-17): which files are its own, when results are replaced, who may write."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkcore import cli, experiments
from qkcore.experiments import _configs, _files, _folders, _lock, _manifest, _report
from qkcore.experiments._folders import Place, Working

from .processes import command, environment


def fork() -> int:
    """A child without a warning of the threads that other tests left: it does nothing with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


pytest.importorskip("matplotlib")
pytest.importorskip("yaml")

NAME = "toy"
STAGES = 4


class Toy:
    """Four checkpoints, one table, one picture: a run of milliseconds, stopped wherever a test says."""

    name, reproduces, extends = NAME, "nothing", ()
    stop: Callable[[str], None] = staticmethod(lambda where: None)

    def compute(self, config: dict[str, Any], run: experiments.Run) -> None:
        rng = np.random.default_rng(config["seed"])
        values = []
        for k in range(STAGES):
            self.stop(f"stage {k}")
            drawn = rng.random()
            values.append(run.stage(f"part-{k}", lambda: {"value": drawn}))  # noqa: B023
        self.stop("before the table")
        run.write_csv("values", [{"value": v["value"]} for v in values])
        self.stop("before the numbers")
        run.write_metrics({"sum": sum(v["value"] for v in values)})

    def plot(self, folder: Path) -> list[Path]:
        self.stop("before the picture")
        _files.write_bytes(folder / "values.png", b"\x89PNG" + (folder / "values.csv").read_bytes())
        self.stop("after the picture")
        return [folder / "values.png"]


def start(out: Path, seed: int = 0, *, force: bool = False, toy: Any = None) -> Any:
    """What experiments.run does once the settings are known."""
    from qkcore.experiments import _run

    toy = toy or Toy()
    place = Place(out / NAME, NAME)
    settings = {"seed": seed, "n": 5}
    place.check()
    with _lock.locked(place.folder, "toy command"):
        place.check()
        place.recover()
        found = _run._finished(place, settings, toy.extends, force)
        return found or _run._compute(place, toy, settings, False, force, False, "toy command")


def content(folder: Path) -> dict[str, bytes]:
    """Everything in the folder but its manifest, by name."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "manifest.json"
    }


@pytest.fixture(scope="module", autouse=True)
def _light() -> Iterator[None]:
    """Asking git and the metadata of packages, and waiting for the disk, takes longer than these runs."""
    versions = _manifest.versions()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_manifest, "commit", lambda: None)
        patch.setattr(_manifest, "versions", lambda: versions)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, bytes]]:
    """The files of uninterrupted runs of two seeds."""
    out = tmp_path_factory.mktemp("whole")
    return {seed: content(start(out / str(seed), seed).folder) for seed in (0, 1)}


# ---- whose files ---------------------------------------------------------------------------------


def test_a_run_leaves_its_files_and_lists_them(tmp_path: Path) -> None:
    done = start(tmp_path)
    assert os.listdir(tmp_path) == [NAME], "no lock and no folder beside it stays"
    listed = _manifest.read(done.folder, NAME)["files"]
    assert set(listed) == {"config.yaml", "metrics.json", "values.csv", "values.png"}
    assert set(os.listdir(done.folder)) == {*listed, "manifest.json"}
    for name, mark in listed.items():
        data = (done.folder / name).read_bytes()
        assert mark == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_files_of_a_user_are_never_removed(tmp_path: Path, wanted: Any) -> None:
    """Tables, pictures, folders and links that no run wrote, before the first run and after it."""
    folder = tmp_path / NAME
    (folder / "drafts").mkdir(parents=True)
    mine = {"my_notes.csv": b"a,b\n", "photo.png": b"\x89PNG mine", "drafts/values.csv": b"deep"}
    for name, data in mine.items():
        (folder / name).write_bytes(data)
    (folder / "link").symlink_to("/nonexistent")
    for seed in (0, 1, 0):
        start(tmp_path, seed, force=True)
        assert content(folder) == wanted[seed] | mine
        assert os.readlink(folder / "link") == "/nonexistent"
    assert os.listdir(tmp_path) == [NAME]


def test_files_that_a_user_changed_are_kept_under_another_name(tmp_path: Path, wanted: Any) -> None:
    folder = start(tmp_path).folder
    (folder / "values.csv").write_bytes(b"changed")
    (folder / "metrics.json").unlink()
    (folder / "metrics.json").mkdir()
    done = start(tmp_path, 1, force=True)
    assert content(folder) == wanted[1] | {"values.kept.csv": b"changed"}
    assert (folder / "metrics.kept.json").is_dir()
    assert sorted(done.kept) == [
        "metrics.json was changed since the run that wrote it; it is kept as metrics.kept.json",
        "values.csv was changed since the run that wrote it; it is kept as values.kept.csv",
    ]
    (folder / "values.csv").write_bytes(b"again")
    start(tmp_path, 0, force=True)
    assert (folder / "values.kept-2.csv").read_bytes() == b"again"
    assert (folder / "values.kept.csv").read_bytes() == b"changed"


def test_files_of_the_same_content_in_other_places_are_not_ours(tmp_path: Path) -> None:
    """A copy of a result under another name belongs to whoever made it."""
    folder = start(tmp_path).folder
    (folder / "copy.csv").write_bytes((folder / "values.csv").read_bytes())
    (tmp_path / "values.csv").write_bytes((folder / "values.csv").read_bytes())
    start(tmp_path, 1, force=True)
    assert (folder / "copy.csv").exists() and (tmp_path / "values.csv").exists()


@pytest.mark.parametrize("name", ["../victim.csv", "/victim.csv", "a/../../victim.csv", "..", ""])
def test_a_manifest_that_lists_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    folder = start(tmp_path).folder
    victim = tmp_path / "victim.csv"
    victim.write_bytes(b"precious")
    name = str(victim) if name == "/victim.csv" else name
    manifest = json.loads((folder / "manifest.json").read_text())
    mark = {"bytes": 8, "sha256": hashlib.sha256(b"precious").hexdigest()}
    manifest["files"][name] = mark
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(experiments.ExperimentError, match="not in the folder"):
        start(tmp_path, 1)
    start(tmp_path, 1, force=True)  # does not know the files that were there, and keeps all of them
    assert victim.read_bytes() == b"precious"
    assert (folder / "values.kept.csv").exists() and (folder / "manifest.kept.json").exists()


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    """The target has the very content that the manifest lists; still it is not ours."""
    folder = start(tmp_path).folder
    outside = tmp_path / "outside"
    outside.mkdir()
    os.rename(folder / "values.csv", outside / "values.csv")
    (folder / "values.csv").symlink_to(outside / "values.csv")
    start(tmp_path, 1, force=True)
    assert (outside / "values.csv").exists() and (folder / "values.kept.csv").is_symlink()


@pytest.mark.parametrize("which", ["", ".unfinished", ".unfinished/checkpoint"])
def test_folders_that_are_links_or_files_are_refused(tmp_path: Path, which: str) -> None:
    path = tmp_path / f"{NAME}{which}"
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(experiments.ExperimentError, match="a symbolic link, which is not followed"):
        start(tmp_path)
    path.unlink()
    path.write_text("")
    with pytest.raises(experiments.ExperimentError, match=r"it is a file; .* --out"):
        start(tmp_path)
    assert not os.listdir(tmp_path / "elsewhere")


# ---- old results stay until the new ones are whole -----------------------------------------------

PLACES = [
    *(f"stage {k}" for k in range(STAGES)),
    *("before the table", "before the numbers", "before the picture", "after the picture"),
]


def stopping(where: str, error: BaseException) -> Toy:
    toy = Toy()

    def stop(here: str) -> None:
        if here == where:
            raise error

    toy.stop = stop  # type: ignore[method-assign]
    return toy


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ArithmeticError("ours"), MemoryError()])
@pytest.mark.parametrize("where", PLACES)
def test_an_interruption_leaves_the_old_results(
    tmp_path: Path, wanted: Any, where: str, error: BaseException
) -> None:
    folder = start(tmp_path).folder
    (folder / "notes.txt").write_bytes(b"mine")
    before = content(folder), (folder / "manifest.json").read_bytes()
    with pytest.raises(type(error)):
        start(tmp_path, 1, force=True, toy=stopping(where, error))
    assert (content(folder), (folder / "manifest.json").read_bytes()) == before
    done = start(tmp_path, 1, force=True)
    assert content(folder) == wanted[1] | {"notes.txt": b"mine"}
    assert done.resumed is (where != "stage 0")
    assert os.listdir(tmp_path) == [NAME]


SYSTEM_CALLS = ("rename", "unlink", "rmdir", "replace", "mkdir", "link")


@pytest.mark.parametrize("atomic", [True, False], ids=["exchange", "two renames"])
def test_a_kill_at_any_step_leaves_old_or_new_results(
    tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    """A process that dies before its k-th change of the file system, for every k; the next one goes on.

    Where the file system cannot exchange two folders there is a moment with no results in place; the next
    run puts the new ones there.
    """
    swap = _folders._swap if atomic else lambda *_: False
    for k in itertools.count():
        out = tmp_path / str(k)
        folder = start(out).folder
        (folder / "notes.txt").write_bytes(b"mine")
        (folder / "values.csv").write_bytes(b"changed")
        before = content(folder)
        left, pid = k, fork()
        if pid == 0:  # the child is really killed, so that no handler and no finally runs

            def step(*_: Any) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            for name in SYSTEM_CALLS:
                setattr(os, name, _before(step, getattr(os, name)))
            _folders._swap = _before(step, swap)
            try:
                start(out, 1, force=True)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        now = content(folder) if folder.exists() else None
        old = now == before
        new = now is not None and wanted[1].items() <= now.items()
        assert old or new or (not atomic and now is None), (k, now)
        with monkeypatch.context() as patch:
            patch.setattr(_folders, "_swap", swap)
            start(out, 1, force=old)
        kept = {"notes.txt": b"mine", "values.kept.csv": b"changed"}
        assert content(folder) == wanted[1] | kept, k
        assert os.listdir(out) == [NAME], k
        if os.WIFEXITED(status):
            assert new
            break
    assert k > 25, "that many steps were tried"


def _before(first: Callable[..., None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **named: Any) -> Any:
        first()
        return then(*arguments, **named)

    return both


def test_killed_ten_times_a_run_gives_the_same_bytes(tmp_path: Path, wanted: Any) -> None:
    """SIGKILL in every stage and between them: what was done is used, and the files are the same."""
    rng = np.random.default_rng(0)
    for where in rng.choice(PLACES, size=10):
        toy = Toy()
        toy.stop = lambda here: here == where and os.kill(os.getpid(), signal.SIGKILL)  # type: ignore # noqa: B023
        pid = fork()
        if pid == 0:
            try:
                start(tmp_path, toy=toy)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
    done = start(tmp_path)
    assert done.resumed and content(done.folder) == wanted[0]
    assert os.listdir(tmp_path) == [NAME]


def test_remains_of_a_killed_write_are_removed(tmp_path: Path, wanted: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, toy=stopping("before the table", KeyboardInterrupt()))
    working = tmp_path / f"{NAME}.unfinished"
    for folder in (working, working / "checkpoint"):
        (folder / f"{_files.TEMPORARY}abc").write_bytes(b"half of a fi")
    (working / "mine.txt").write_bytes(b"notes")
    assert content(start(tmp_path).folder) == wanted[0] | {"mine.txt": b"notes"}


def test_checkpoints_that_were_changed_are_not_used(tmp_path: Path, wanted: Any) -> None:
    """They are kept, and computed again."""
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, toy=stopping("stage 3", KeyboardInterrupt()))
    changed = tmp_path / f"{NAME}.unfinished" / "checkpoint" / "part-1.json"
    changed.write_bytes(b'{"value": 17}')
    done = start(tmp_path)
    mine = {"checkpoint/part-1.kept.json": b'{"value": 17}'}
    assert content(done.folder) == wanted[0] | mine
    assert done.kept == (
        "checkpoint/part-1.json was not written by this run; it is kept as part-1.kept.json",
    )


def test_a_full_disk_leaves_the_old_results(
    tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = start(tmp_path).folder

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(experiments.ExperimentError, match="No space left on device"):
            start(tmp_path, 1, force=True)
    assert content(folder) == wanted[0]
    start(tmp_path, 1, force=True)
    assert content(folder) == wanted[1]


# ---- finished runs, other settings ---------------------------------------------------------------


def test_a_finished_run_is_not_repeated(tmp_path: Path, wanted: Any) -> None:
    first = start(tmp_path)
    manifest = (first.folder / "manifest.json").read_bytes()
    fail = stopping("stage 0", AssertionError("computed again"))
    again = start(tmp_path, toy=fail)
    assert again.already_there and not first.already_there
    assert again.metrics == first.metrics and again.figures == first.figures
    assert (first.folder / "manifest.json").read_bytes() == manifest
    with pytest.raises(AssertionError, match="computed again"):
        start(tmp_path, toy=fail, force=True)


def test_results_of_other_settings_are_not_replaced_unasked(
    tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = start(tmp_path).folder
    with pytest.raises(
        experiments.ExperimentError,
        match=r"other settings \(seed is 0 there, 1 was asked for\); --force .* --out DIR",
    ):
        start(tmp_path, 1)
    assert content(folder) == wanted[0]
    monkeypatch.setattr("qkcore.__version__", "9.9")
    with pytest.raises(
        experiments.ExperimentError, match=r"version of qkcore is .* 9\.9 was asked"
    ):
        start(tmp_path)


def test_an_unfinished_run_of_other_settings_is_not_discarded_unasked(
    tmp_path: Path, wanted: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, toy=stopping("stage 2", KeyboardInterrupt()))
    with pytest.raises(
        experiments.ExperimentError, match=r"unfinished run with other settings \(seed is 0 there"
    ):
        start(tmp_path, 1)
    done = start(tmp_path, 1, force=True)
    assert not done.resumed and content(done.folder) == wanted[1]


def test_a_finished_run_with_missing_files_says_so(tmp_path: Path, wanted: Any) -> None:
    folder = start(tmp_path).folder
    (folder / "values.png").unlink()
    with pytest.raises(experiments.ExperimentError, match=r"are missing \(values.png\); --force"):
        start(tmp_path)
    assert content(start(tmp_path, force=True).folder) == wanted[0]


def test_more_of_the_same_goes_on_from_kept_checkpoints(tmp_path: Path) -> None:
    """Settings that extend a run need no --force, use its checkpoints, and leave them until they are done."""

    class More(Toy):
        extends = ("n",)  # type: ignore[assignment]

    toy = More()
    folder = start(tmp_path, toy=toy).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sum(n.startswith("checkpoint/") for n in manifest["files"]) == STAGES
    manifest["settings"]["n"] = 4
    (folder / "manifest.json").write_text(json.dumps(manifest))
    before = content(folder)
    cut = More()
    cut.stop = stopping("before the table", KeyboardInterrupt()).stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, toy=cut)
    assert content(folder) == before
    done = start(tmp_path, toy=toy)
    assert done.resumed and content(folder).keys() == before.keys()
    assert os.listdir(tmp_path) == [NAME]


def test_quick_runs_have_a_folder_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The full run stays, the report shows and marks both, and a second command computes nothing."""
    quick = ["run", "regimes", "--quick", "--out", str(tmp_path)]
    full = ["run", "regimes", "--config", str(tmp_path / "regimes-quick" / "config.yaml"),
            "--out", str(tmp_path)]  # fmt: skip
    assert cli.main(quick) == 0 and cli.main(full) == 0
    capsys.readouterr()
    before = content(tmp_path / "regimes")
    assert cli.main(quick) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{tmp_path}/regimes-quick: already finished with these settings")
    assert "does not hold: A generic non-constant h" in shown
    assert cli.main([*quick, "--seed", "5"]) == 2
    assert "seed is 0 there, 5 was asked for" in capsys.readouterr().err
    assert cli.main([*quick, "--seed", "5", "--force"]) == 0
    assert content(tmp_path / "regimes") == before
    text = _report.write_report(tmp_path).read_text()
    assert 'href="#regimes">regimes</a></td>' in text
    assert 'href="#regimes-quick">regimes</a> (quick run)</td>' in text
    assert text.count('<p class="warning">A quick run') == 1


# ---- one process at a time -----------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, until it is killed."""
    code = f"""
    import time
    from pathlib import Path
    from qkcore.experiments import _lock
    with _lock.locked(Path({str(tmp_path / NAME)!r}), "qkcore run toy --seed 7"):
        print("locked", flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen(command(code), env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_two_runs_into_one_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """The second ends at once, and says who is there; a crash of the first releases the folder."""
    with pytest.raises(experiments.ExperimentError) as caught:
        start(tmp_path)
    message = str(caught.value)
    assert (
        f"another run writes into it (process {holder.pid} on {os.uname().nodename}, since 2"
        in message
    )
    assert "command: qkcore run toy --seed 7" in message and "--out DIR" in message
    assert os.listdir(tmp_path) == [f".{NAME}.lock"], "nothing of the first was touched"
    start(tmp_path / "other")  # another folder is free
    holder.kill()
    holder.wait()
    start(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["other", NAME]


def test_the_lock_excludes_threads_of_one_process(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    with (
        _lock.locked(folder, None),
        pytest.raises(experiments.ExperimentError, match=f"process {os.getpid()} on"),
        _lock.locked(folder, None),
    ):
        pass
    with _lock.locked(folder, None):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_file_that_is_removed_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the file between our opening and locking it: that lock would protect nothing."""
    path, opened = tmp_path / f".{NAME}.lock", []
    real = os.open

    def slow(name: Any, *arguments: Any) -> int:
        handle = real(name, *arguments)
        if name == path and not opened:
            path.unlink()
        opened.append(handle)
        return handle

    monkeypatch.setattr(os, "open", slow)
    with _lock.locked(tmp_path / NAME, None):
        assert path.exists() and len(opened) == 2


@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}", "\xff"])
def test_a_lock_file_without_a_holder_is_free(tmp_path: Path, text: str) -> None:
    (tmp_path / f".{NAME}.lock").write_text(text, encoding="latin-1")
    start(tmp_path)
    assert os.listdir(tmp_path) == [NAME]


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(_lock.fcntl, "flock", refuse)
    with pytest.raises(experiments.ExperimentError, match=r"no locks .* local disk with --out"):
        start(tmp_path)


def test_a_ledger_with_garbage_in_it(tmp_path: Path, wanted: Any) -> None:
    """Lines that are no entries, and names that lead elsewhere, count for nothing."""
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, toy=stopping("stage 2", KeyboardInterrupt()))
    (tmp_path / "victim").write_bytes(b"")
    empty = hashlib.sha256(b"").hexdigest()
    with (tmp_path / f"{NAME}.unfinished" / _folders.LEDGER).open("a") as file:
        for line in ("{", "[]", "null", '{"file": "a"}',
                     json.dumps({"file": "../victim", "bytes": 0, "sha256": empty})):  # fmt: skip
            file.write(line + "\n")
    assert content(start(tmp_path).folder) == wanted[0]
    assert (tmp_path / "victim").exists()
    assert isinstance(Working(tmp_path).marks, dict) and _configs.short(2**70).endswith("bits")
