"""The folders of a run: which of their files belong to qkcore, and how new results replace old ones.

A run works in ``DIR/NAME.unfinished``. When it is done, that folder and ``DIR/NAME`` change places in
one step, so ``DIR/NAME`` always holds either all of the old results or all of the new ones. "Our" files are
those that a manifest lists, as long as their content is still what was written; nothing else is ever removed.
Files that a user has put into ``DIR/NAME`` or changed there stay there. If the new results need the name
of such a file, it is renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import qkcore as qk

from . import _manifest
from ._errors import ExperimentError
from ._files import TEMPORARY, open_regular, read_text, unreadable, unwritable

CHECKPOINTS = "checkpoint"
LEDGER = "written.jsonl"
MANIFEST = "manifest.json"

Mark = tuple[int, str]
"""size and sha256 of a file"""


def mark_of(content: bytes) -> Mark:
    return len(content), hashlib.sha256(content).hexdigest()


def mark_at(path: Path) -> Mark | None:
    """The mark of a regular file; None for everything else, including symbolic links."""
    try:
        file = open_regular(path)
    except OSError:
        return None
    with file:
        digest, size = hashlib.sha256(), 0
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


class Known:
    """The files that qkcore wrote into a folder, with the marks of every content that it gave them."""

    def __init__(self, folder: Path, marks: Mapping[str, Iterable[Mark]] | None = None) -> None:
        self.folder = folder
        self.marks: dict[str, list[Mark]] = {k: list(v) for k, v in (marks or {}).items()}

    @classmethod
    def listed(cls, folder: Path, manifest: Mapping[str, Any]) -> Known:
        """The files that the manifest lists."""
        files = manifest["files"]
        return cls(folder, {k: [(m["bytes"], m["sha256"])] for k, m in files.items()})

    def ours(self, name: str) -> bool:
        """Whether the file is there and has not changed since it was written."""
        path = self.folder / name
        return (
            bool(self.marks.get(name))
            and not path.parent.is_symlink()
            and mark_at(path) in self.marks[name]
        )

    def missing(self) -> list[str]:
        """Names of the listed files that are not there."""
        return [n for n in sorted(self.marks) if not os.path.lexists(self.folder / n)]

    def changed(self) -> list[str]:
        """Names of the listed files that are there but have changed since they were written."""
        there = (n for n in sorted(self.marks) if os.path.lexists(self.folder / n))
        return [n for n in there if not self.ours(n)]


class Working(Known):
    """The folder that a run works in. A ledger lists the files written, so they are known after a kill."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fresh: set[str] = set()
        """names of the files that this process has written, in contrast to earlier ones"""
        self.kept: list[str] = []

    def load(self, manifest: Mapping[str, Any] | None) -> None:
        """Reads the manifest's list and the ledger that an earlier process left."""
        if manifest is not None:
            self.marks = Known.listed(self.folder, manifest).marks
        path = self.folder / LEDGER
        if not path.exists():
            return
        for line in read_text(path).splitlines():
            with contextlib.suppress(
                ValueError, TypeError, LookupError
            ):  # a line that a kill has cut off
                entry = json.loads(line)
                name, mark = str(entry["file"]), (int(entry["bytes"]), str(entry["sha256"]))
                if _manifest.inside(name):
                    self.marks.setdefault(name, []).append(mark)

    def record(self, path: Path, content: bytes) -> None:
        """Notes a file in the ledger before it is written; a user's file of that name is put aside."""
        if path.parent not in (self.folder, self.folder / CHECKPOINTS) or path.name == MANIFEST:
            return
        name = str(path.relative_to(self.folder))
        if os.path.lexists(path) and not self.ours(name):
            self.put_aside(name)
        self.note(name, mark_of(content))
        self.fresh.add(name)

    def put_aside(self, name: str) -> None:
        """Gives a user's file another name."""
        path = self.folder / name
        aside = free_name(path)
        os.rename(path, aside)
        self.kept.append(f"{name} was not written by this run; it is kept as {aside.name}")

    def note(self, name: str, mark: Mark) -> None:
        """Adds one line to the ledger."""
        self.marks.setdefault(name, []).append(mark)
        line = json.dumps({"file": name, "bytes": mark[0], "sha256": mark[1]}) + "\n"
        try:
            with (self.folder / LEDGER).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def clean(self) -> None:
        """Removes incomplete files that a killed process has left."""
        for folder in (self.folder, self.folder / CHECKPOINTS):
            if folder.is_dir() and not folder.is_symlink():
                for path in folder.glob(f"{TEMPORARY}*"):
                    path.unlink()

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints that are there and unchanged."""
        names = sorted(n for n in self.marks if n.startswith(f"{CHECKPOINTS}/"))
        return [n for n in names if self.ours(n)]

    def discard(self, *, but: Iterable[str] = ()) -> None:
        """Removes what was written, except for some files; a user's files stay where they are."""
        for name in sorted(set(self.marks) - set(but)):
            if self.ours(name):
                (self.folder / name).unlink()
            del self.marks[name]
        _remove_if_empty(self.folder / CHECKPOINTS)
        (self.folder / LEDGER).unlink(missing_ok=True)

    def forget(self) -> None:
        """Empties the folder for a new run. The manifest is removed last, as it says which files are ours."""
        self.discard()
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def adopt(self, other: Known) -> None:
        """Takes over the checkpoints of finished results as hard links; no run changes them in place."""
        for name in sorted(n for n in other.marks if n.startswith(f"{CHECKPOINTS}/")):
            source, target = other.folder / name, self.folder / name
            if not other.ours(name) or os.path.lexists(target):
                continue
            target.parent.mkdir(exist_ok=True)
            self.note(name, other.marks[name][-1])
            try:
                os.link(source, target)
            except OSError:  # a file system without hard links
                shutil.copyfile(source, target)

    def results(self, *, with_checkpoints: bool) -> dict[str, dict[str, Any]]:
        """The list of files for the manifest of the finished run."""
        names = {n for n in self.fresh if not n.startswith(f"{CHECKPOINTS}/")}
        if with_checkpoints:
            names |= set(self.checkpoints())
        last = {n: self.marks[n][-1] for n in sorted(names)}
        return {n: {"bytes": size, "sha256": sha256} for n, (size, sha256) in last.items()}


class Place:
    """``DIR/NAME`` and the folders next to it that a run needs."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self.folder, self.experiment = folder, experiment
        self.working = folder.parent / f"{folder.name}.unfinished"
        self.replaced = folder.parent / f"{folder.name}.replaced"
        self.kept: list[str] = []
        """one sentence for each file that was renamed"""

    def check(self) -> None:
        """Refuses paths that are not folders. Links are refused: what they lead to must not be replaced."""
        for path in (self.folder, self.working, self.replaced, self.working / CHECKPOINTS):
            if path.is_symlink():
                raise ExperimentError(
                    f"cannot write {path}: it is a symbolic link, which is not followed; "
                    "choose the folder behind it with --out DIR"
                )
            if os.path.lexists(path) and not path.is_dir():
                raise ExperimentError(
                    f"cannot write {path}: it is a file; choose another folder with --out DIR"
                )
            if path.is_dir():
                # Raises if the folder may not be read, since its files would be unknown.
                entries(path)

    def manifest(self, folder: Path) -> dict[str, Any] | None:
        """The manifest of a folder, None if it has none; an ExperimentError if qkcore did not write it."""
        if not os.path.lexists(folder / MANIFEST):
            return None
        return _manifest.read(folder, self.experiment)

    def identity(self, folder: Path) -> str | None:
        """Identifies the run that wrote the files of a folder: a manifest names the run that it replaces."""
        if not os.path.lexists(folder / MANIFEST):
            return None
        manifest = self._readable(folder)
        return "unreadable" if manifest is None else str(manifest.get("id"))

    def recover(self) -> None:
        """Completes the exchange of two folders that a killed process had begun."""
        try:
            if self.replaced.is_dir():
                if not self.folder.is_dir():
                    new = self._readable(self.working)
                    finished = new is not None and new["status"] == "finished"
                    os.rename(self.working if finished else self.replaced, self.folder)
                if self.replaced.is_dir():
                    self._dissolve(self.replaced)
            if not self.working.is_dir():
                return
            new, old = self._readable(self.working), self._readable(self.folder)
            if (
                new is not None
                and new["status"] == "finished"
                and new.get("replaces") == self.identity(self.folder)
            ):
                self.exchange()
            elif old is not None and old.get("replaces") == self.identity(self.working):
                os.rename(self.working, self.replaced)  # the folders had already changed places
                self._dissolve(self.replaced)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def exchange(self) -> None:
        """Puts the new results in the place of the old ones in one step, and keeps the files of the user."""
        try:
            manifest = _manifest.read(self.working, self.experiment)
            files = Working(self.working)
            files.load(None)
            files.discard(but=manifest["files"])  # checkpoints, which are no longer needed
            if not os.path.lexists(self.folder):
                os.rename(self.working, self.folder)
                return
            if _swap(self.working, self.folder):
                os.rename(self.working, self.replaced)
            else:
                os.rename(self.folder, self.replaced)
                os.rename(self.working, self.folder)
            self._dissolve(self.replaced)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def _readable(self, folder: Path) -> dict[str, Any] | None:
        with contextlib.suppress(ExperimentError):
            return self.manifest(folder)
        return None

    def _dissolve(self, old: Path) -> None:
        """Removes our files from a folder and moves all others to the results."""
        manifest = self._readable(old)
        known = Known(old) if manifest is None else Known.listed(old, manifest)
        for inner in (CHECKPOINTS, ""):
            folder = old / inner
            if folder.is_symlink() or not folder.is_dir():
                continue
            others = []
            for entry in sorted(os.scandir(folder), key=lambda e: e.name):
                name = f"{inner}/{entry.name}" if inner else entry.name
                if name == CHECKPOINTS and _remove_if_empty(old / name):
                    continue
                if entry.name.startswith(TEMPORARY) or known.ours(name):
                    os.unlink(entry.path)
                elif manifest is not None and name == MANIFEST:
                    continue  # removed last: it says which of the other files are ours
                else:
                    others.append(name)
            # Files that need another name are moved last, when it is known which names are taken.
            for name in sorted(others, key=lambda n: os.path.lexists(self.folder / n)):
                self._bring(old, name, changed=name in known.marks)
        if manifest is not None:
            (old / MANIFEST).unlink()
        old.rmdir()

    def _bring(self, old: Path, name: str, *, changed: bool) -> None:
        source, target = old / name, self.folder / name
        target.parent.mkdir(exist_ok=True)
        if os.path.lexists(target):
            target = free_name(target)
            why = (
                "was changed since the run that wrote it" if changed else "was not written by a run"
            )
            self.kept.append(f"{name} {why}; it is kept as {target.relative_to(self.folder)}")
        os.rename(source, target)


def _remove_if_empty(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
        return False
    folder.rmdir()
    return True


def free_name(path: Path) -> Path:
    """A similar name that is not taken: ranks.kept.csv, ranks.kept-2.csv, …"""
    number = 1
    while True:
        found = path.with_name(
            f"{path.stem}.kept{'' if number == 1 else f'-{number}'}{path.suffix}"
        )
        if not os.path.lexists(found):
            return found
        number += 1


def _swap(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step; returns False if the system or the file system cannot do that."""
    exchange, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one))


@contextlib.contextmanager
def reading(folder: Path, manifest: Mapping[str, Any]) -> Iterator[None]:
    """Turns errors that are due to changed files of results into one-line messages.

    If the files are unchanged and written by this version of qkcore, the error is a bug in qkcore, and keeps
    its traceback.
    """
    try:
        yield
    except ExperimentError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        version = manifest["versions"].get("qkcore")
        changed = Known.listed(folder, manifest).changed()
        if version != qk.__version__:
            why = f"written by another version of qkcore, {version}"
        elif changed:
            why = f"changed since the run: {', '.join(changed)}"
        elif manifest["status"] != "finished":
            why = "not finished"
        else:
            raise
        quick = " --quick" if manifest["quick"] else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExperimentError(
            f"{folder}: cannot be read ({why}; {reason}); run it again: "
            f"qkcore run {manifest['experiment']}{quick} --force --out {folder.parent}"
        ) from error


def entries(folder: Path) -> list[str]:
    """The sorted names in a folder; raises an ExperimentError if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(folder, error) from error
