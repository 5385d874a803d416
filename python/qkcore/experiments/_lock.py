"""Lets only one process at a time write into a folder of results.

The lock is ``flock`` on the file ``DIR/.NAME.lock``, so the system releases it whenever the process ends,
even if it is killed. The file says in plain text who holds the lock. On a network file system ``flock``
always excludes other processes of the same machine, but processes of other machines only if the file system
passes locks on (NFS does since Linux 2.6.12, if its lock service runs). If the file system has no locks at
all, the run is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ._errors import ExperimentError
from ._files import unwritable
from ._manifest import now


@contextmanager
def locked(folder: Path, command: str | None) -> Iterator[None]:
    """Holds the lock of a folder; raises an :class:`ExperimentError` at once if another process holds it."""
    path = folder.parent / f".{folder.name}.lock"
    handle = _acquire(path, folder)
    try:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": now(),
            "command": command or " ".join(sys.argv),
        }
        os.ftruncate(handle, 0)
        os.pwrite(handle, (json.dumps(holder, ensure_ascii=False) + "\n").encode(), 0)
        yield
    finally:
        # The file is removed while the lock is held: a process that has opened it meanwhile notices that it
        # is gone, and opens a new one.
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _acquire(path: Path, folder: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(folder.parent, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                return handle
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                message = f"{folder}: another run writes into it{_who(handle)}"
                os.close(handle)
                raise ExperimentError(
                    f"{message}; wait for it, or choose another folder with --out DIR"
                ) from None
            os.close(handle)
            raise ExperimentError(
                f"{folder}: the file system has no locks ({error.strerror}); "
                "choose a folder on a local disk with --out DIR"
            ) from error
        os.close(handle)  # the last holder removed the file after it was opened here


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _who(handle: int) -> str:
    """What the lock file says about its holder; empty if the holder has not written it yet."""
    try:
        holder: Any = json.loads(os.pread(handle, 65536, 0))
        return (
            f" (process {holder['pid']} on {holder['host']}, since {holder['since']}, "
            f"command: {holder['command']})"
        )
    except (OSError, ValueError, TypeError, LookupError):
        return ""
