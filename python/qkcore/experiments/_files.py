"""Writes files completely or not at all: each is written under a temporary name and then renamed."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ._errors import ExperimentError

TEMPORARY = ".qkcore-writing-"
"""how the names of files that are being written begin; a process that is killed may leave one behind"""

LARGEST = 256 * 2**20
"""files of results with more bytes than this are not read"""

_recorder: ContextVar[Callable[[Path, bytes], None] | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(record: Callable[[Path, bytes], None]) -> Iterator[None]:
    """Calls ``record(path, content)`` before every file that is written inside the ``with`` block."""
    token = _recorder.set(record)
    try:
        yield
    finally:
        _recorder.reset(token)


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file in one step; after an interruption the old file is still there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        if (record := _recorder.get()) is not None:
            record(path, content)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # only the owner may read what mkstemp makes
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: Path, error: OSError) -> ExperimentError:
    reason = error.strerror or str(error)
    return ExperimentError(
        f"cannot write {path}: {reason}; choose another folder with --out DIR (report: --output)"
    )


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Writes strict JSON: NaN and infinities become null."""
    text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    write_text(path, text + "\n")


def read_bytes(path: Path) -> bytes:
    """The content of a file of results; raises an ExperimentError if it cannot be read.

    Symbolic links are refused, because what is shown of a folder of results must be inside that folder.
    Everything else that is not a regular file is refused too (opening a pipe would wait for ever), and so are
    files that are larger than any results.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST:
                raise ExperimentError(
                    f"{path}: cannot be read: wanted at most {LARGEST} bytes, got {size}"
                )
            return file.read()
    except FileNotFoundError:
        raise ExperimentError(f"{path}: not found; run the experiment first") from None
    except OSError as error:
        if path.is_symlink():
            raise ExperimentError(
                f"{path}: is a symbolic link, which is not followed; put the file itself there"
            ) from None
        raise unreadable(path, error) from error


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading; raises an OSError for links, folders, pipes and devices."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise OSError(errno.EINVAL, f"wanted a file, got {kind}")
    return os.fdopen(handle, "rb")


def unreadable(path: Path, error: Exception) -> ExperimentError:
    """The error for a file or folder that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return ExperimentError(f"{path}: cannot be read: {reason}")


def read_text(path: Path) -> str:
    """UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: cannot be read: it is not text in UTF-8") from error


def read_json(path: Path) -> Any:
    """The file's value; raises an ExperimentError if the file is missing or broken."""
    try:
        return json.loads(read_text(path))
    except ExperimentError:
        raise
    except RecursionError:
        raise ExperimentError(f"{path}: cannot be read: it is nested too deeply") from None
    except ValueError as error:
        raise ExperimentError(f"{path}: cannot be read: not valid JSON: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Reads a JSON file that holds an object, such as metrics.json and manifest.json."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ExperimentError(
            f"{path}: cannot be read: wanted a JSON object, got {type(value).__name__}"
        )
    return value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Writes a header and one line for each row; floats are written with all their digits."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(rows[0]) if rows else []
    writer.writerow(names)
    for row in rows:
        if list(row) != names:
            raise ValueError(f"rows: wanted the columns {names}, got {list(row)}")
        writer.writerow([_cell(v) for v in row.values()])
    write_text(path, text.getvalue())


def _cell(value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, float) else value


def columns(**arrays: Sequence[Any] | npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Rows for :func:`write_csv` from columns of one length.

    >>> columns(a=[1, 2], b=["x", "y"])
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    return [dict(zip(arrays, values, strict=True)) for values in zip(*arrays.values(), strict=True)]


class Table:
    """A CSV file read back: text and numbers by column.

    ``table["x"]`` is an array of floats if every cell is a number, and of text otherwise;
    ``table.where(kind="amap")`` has the rows where column ``kind`` contains "amap".
    """

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> Table:
        """Reads a file; raises an ExperimentError if it is missing or is not a table."""
        try:
            rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
        except csv.Error as error:
            raise unreadable(path, error) from error
        for number, row in enumerate(rows, 1):
            if None in row or None in row.values():
                raise ExperimentError(
                    f"{path}: cannot be read: row {number} does not have as many cells as the header"
                )
        return cls(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        cells = [row[name] for row in self.rows]
        try:
            return np.array([float(c) for c in cells])
        except ValueError:
            return np.array(cells)

    def where(self, **wanted: str) -> Table:
        """The rows that have these texts in these columns."""
        return Table([r for r in self.rows if all(r[k] == v for k, v in wanted.items())])
