"""One run of an experiment: its folder, checkpoints, manifest (EOT-17)."""

from __future__ import annotations

import importlib.util
import io
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from . import _configs, _files, _manifest
from ._errors import ExperimentError, missing

T = TypeVar("T")

OUTPUTS = ("*.csv", "*.png", "metrics.json")


class Run:
    """What ``compute`` is given: where to write, what an earlier, interrupted run left, progress."""

    def __init__(self, folder: Path, fingerprint: str, progress: bool) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoint"
        self.show = progress
        self.reused = 0
        """how many stages came from checkpoints"""
        self._mark = fingerprint
        self._earlier: set[str] = set()

    def progress(self, items: Iterable[T], name: str, total: int | None = None) -> Iterable[T]:
        """The items, with a progress bar on a terminal."""
        return tqdm(items, desc=name, total=total, disable=None if self.show else True, leave=False)

    def stage(self, key: str, work: Callable[[], Any]) -> Any:
        """The work's result, a JSON value; read, not computed, when an earlier run got so far."""
        path = self.checkpoints / f"{key}.json"
        if path.exists():
            self.reused += path.name in self._earlier
            return _files.read_json(path)
        _files.write_json(path, work())
        return _files.read_json(path)  # the same value, whether computed or read

    def save_arrays(self, key: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Named arrays as a checkpoint."""
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # the stub takes them for allow_pickle
        _files.write_bytes(self.checkpoints / f"{key}.npz", content.getvalue())

    def load_arrays(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """What :meth:`save_arrays` saved; None when it did not."""
        path = self.checkpoints / f"{key}.npz"
        if not path.exists():
            return None
        self.reused += path.name in self._earlier
        with np.load(path) as arrays:
            return dict(arrays)

    def write_csv(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """A CSV file in the folder."""
        _files.write_csv(self.folder / f"{name}.csv", rows)

    def write_metrics(self, metrics: Mapping[str, object]) -> None:
        """metrics.json."""
        _files.write_json(self.folder / "metrics.json", metrics)

    def _open(self) -> None:
        """Keeps checkpoints of the same settings; removes what belongs to others."""
        path = self.checkpoints / "settings.json"
        if path.exists() and _files.read_json(path) == self._mark:
            self._earlier = {p.name for p in self.checkpoints.iterdir()}
            return
        try:
            if self.checkpoints.exists():
                shutil.rmtree(self.checkpoints)
            for pattern in OUTPUTS:
                for old in self.folder.glob(pattern):
                    old.unlink()
        except OSError as error:
            raise _files.unwritable(self.folder, error) from error
        _files.write_json(path, self._mark)

    def _close(self) -> None:
        shutil.rmtree(self.checkpoints)


@dataclass(frozen=True)
class Outcome:
    """Where a run's files are, and what it measured."""

    name: str
    folder: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    figures: tuple[Path, ...]
    wall_time: float
    resumed: bool


def run(
    name: str,
    out: str | Path = "results",
    *,
    config: str | Path | None = None,
    overrides: Iterable[str] = (),
    seed: int | None = None,
    quick: bool = False,
    progress: bool = False,
    command: str | None = None,
) -> Outcome:
    """Runs an experiment into ``out``/``name``: what ``qkcore run`` does (EOT-17).

    ``overrides`` are "key=value" texts. A run that was interrupted goes on from its last checkpoint when
    the same settings are asked for again. Wrong names, settings and folders are
    :class:`ExperimentError`.

    >>> import tempfile
    >>> from qkcore import experiments
    >>> with tempfile.TemporaryDirectory() as out:
    ...     done = experiments.run("regimes", out, quick=True)
    ...     sorted(p.name for p in done.folder.glob("*.json"))
    ['manifest.json', 'metrics.json']
    """
    from . import get

    experiment = get(name)
    file = None if config is None else Path(config)
    settings = _configs.resolve(name, quick=quick, file=file, overrides=overrides, seed=seed)
    experiment.check(settings)
    for package, extra in (*experiment.needs, ("matplotlib", "experiments")):
        if importlib.util.find_spec(package) is None:
            raise missing(package, name, extra)
    experiment.require(settings)
    folder = Path(out) / name
    if folder.exists() and not folder.is_dir():
        raise ExperimentError(f"cannot write {folder}: it is a file; choose another --out DIR")
    state = Run(folder, _configs.fingerprint(settings, experiment.extends), progress)
    state._open()
    header = f"{name} ({experiment.reproduces}); the settings of this run\n"
    header += f"again: qkcore run {name} --config THIS_FILE"
    _files.write_text(folder / "config.yaml", _configs.dump(settings, header))
    manifest: dict[str, Any] = {
        "experiment": name,
        "reproduces": experiment.reproduces,
        "status": "running",
        "quick": quick,
        "seed": settings["seed"],
        "command": command,
        "started": _manifest.now(),
        "finished": None,
        "wall_time_s": None,
        "resumed": False,
        "commit": _manifest.commit(),
        "versions": _manifest.versions(),
        "machine": _manifest.machine(),
    }
    _files.write_json(folder / "manifest.json", manifest)
    start = time.perf_counter()

    def finish(status: str) -> float:
        elapsed = time.perf_counter() - start
        manifest.update(
            status=status,
            finished=_manifest.now(),
            wall_time_s=round(elapsed, 3),
            resumed=state.reused > 0,
        )
        _files.write_json(folder / "manifest.json", manifest)
        return elapsed

    try:
        experiment.compute(settings, state)
        figures = experiment.plot(folder)
    except BaseException as error:
        finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    elapsed = finish("finished")
    if not experiment.extends:
        state._close()
    metrics = _files.read_json(folder / "metrics.json")
    return Outcome(name, folder, settings, metrics, tuple(figures), elapsed, state.reused > 0)
