"""Files that are either there and whole, or not there: written beside their place, then moved."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import ExperimentError


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file in one move; an interruption leaves the old one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's files are for their owner alone
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
    """UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Strict JSON: what is not a number (NaN, infinities) becomes null."""
    text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """The file's value; an ExperimentError when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExperimentError(f"{path}: not found; run the experiment first") from None
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error


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
    """A header and one line for each row; floats with all their digits."""
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

    ``table["x"]`` is an array of floats when every cell is a number, of text otherwise;
    ``table.where(kind="amap")`` the rows whose cells are those texts.
    """

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> Table:
        """Of a file; an ExperimentError when it is missing."""
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return cls(list(csv.DictReader(file)))
        except FileNotFoundError:
            raise ExperimentError(f"{path}: not found; run the experiment first") from None
        except OSError as error:
            raise ExperimentError(f"{path}: cannot be read: {error}") from error

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        cells = [row[name] for row in self.rows]
        try:
            return np.array([float(c) for c in cells])
        except ValueError:
            return np.array(cells)

    def where(self, **wanted: str) -> Table:
        """The rows with these texts."""
        return Table([r for r in self.rows if all(r[k] == v for k, v in wanted.items())])
