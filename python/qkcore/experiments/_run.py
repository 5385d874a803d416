"""Runs an experiment, with its folder, checkpoints and manifest (EOT-17)."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import qkcore as qk

from .._progress import track
from . import _configs, _files, _folders, _manifest
from ._errors import ExperimentError
from ._lock import locked

T = TypeVar("T")


class Run:
    """What ``compute`` receives: where to write, the checkpoints of an interrupted run, and progress bars."""

    def __init__(self, files: _folders.Working, progress: bool = False) -> None:
        self.folder = files.folder
        self.show = progress
        self.reused = 0
        """how many stages were read from checkpoints"""
        self._files = files
        self._earlier = set(files.checkpoints())

    def progress(self, items: Iterable[T], name: str, total: int | None = None) -> Iterable[T]:
        """The items, with a progress bar on a terminal."""
        return track(items, name, None if self.show else False, total)

    def stage(self, key: str, work: Callable[[], Any]) -> Any:
        """The result of ``work``, a JSON value, read from a checkpoint if an earlier run computed it."""
        name = f"{_folders.CHECKPOINTS}/{key}.json"
        if self._files.ours(name):
            self.reused += name in self._earlier
        else:
            _files.write_json(self.folder / name, work())
        return _files.read_json(self.folder / name)  # the same value, computed or read

    def save_arrays(self, key: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Saves named arrays as a checkpoint."""
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # the stub takes them for allow_pickle
        path = self.folder / _folders.CHECKPOINTS / f"{key}.npz"
        _files.write_bytes(path, content.getvalue())

    def load_arrays(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """The arrays that :meth:`save_arrays` saved, or None if there are none."""
        name = f"{_folders.CHECKPOINTS}/{key}.npz"
        if not self._files.ours(name):
            return None
        self.reused += name in self._earlier
        with np.load(self.folder / name) as arrays:
            return dict(arrays)

    def write_csv(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Writes a CSV file into the folder."""
        _files.write_csv(self.folder / f"{name}.csv", rows)

    def write_metrics(self, metrics: Mapping[str, object]) -> None:
        """Writes metrics.json."""
        _files.write_json(self.folder / "metrics.json", metrics)


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
    already_there: bool = False
    """true if a run with these settings was finished before, so that nothing was computed"""
    kept: tuple[str, ...] = ()
    """a sentence for each file of a user that was renamed because the new results needed its name"""


def folder_of(name: str, out: str | Path, quick: bool) -> Path:
    """The folder with the results of a run; quick runs have separate folders.

    >>> str(folder_of("trefoil", "results", quick=True))
    'results/trefoil-quick'
    """
    return Path(out) / (f"{name}-quick" if quick else name)


def run(
    name: str,
    out: str | Path = "results",
    *,
    config: str | Path | None = None,
    overrides: Iterable[str] = (),
    seed: int | None = None,
    quick: bool = False,
    force: bool = False,
    progress: bool = False,
    command: str | None = None,
) -> Outcome:
    """Runs an experiment and writes its results into ``out``/``name``, as ``qkcore run`` does (EOT-17).

    Quick runs go to ``out``/``name``-quick. ``overrides`` are "key=value" texts. The run works in a separate
    folder (``name``.unfinished), which replaces the old results when the run is finished; until then they
    stay as they are. An interrupted run continues from its last checkpoint when it is started again with the
    same settings. A finished run is not repeated, and its results are not replaced by those of other
    settings, unless ``force`` is true. Files that no run wrote, or that were changed afterwards, are never
    removed. An :class:`ExperimentError` is raised for wrong names, settings and folders, and for a folder
    that another process is writing into.

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
    experiment.require_packages()
    settings = _configs.resolve(name, quick=quick, file=file, overrides=overrides, seed=seed)
    experiment.check(settings)
    experiment.require(settings)
    place = _folders.Place(folder_of(name, out, quick), name)
    place.check()
    with locked(place.folder, command):
        place.check()
        place.recover()
        found = _finished(place, settings, experiment.extends, force)
        if found is not None:
            return found
        return _compute(place, experiment, settings, quick, force, progress, command)


def _finished(
    place: _folders.Place, settings: dict[str, Any], extends: tuple[str, ...], force: bool
) -> Outcome | None:
    """The results of an earlier run with the same settings, or None if something has to be computed."""
    if force:
        return None
    manifest = place.manifest(place.folder)
    if manifest is None or manifest["status"] != "finished":
        return None
    differ = differences(manifest, settings)
    if differ and set(differ) <= set(extends):
        return None  # more steps or seeds: the run continues from the checkpoints
    again = "--force replaces them, --out DIR writes elsewhere"
    if differ:
        raise ExperimentError(
            f"{place.folder}: holds the results of a run with other settings ({told(differ)}); {again}"
        )
    lost = _folders.Known.listed(place.folder, manifest).missing()
    if lost:
        raise ExperimentError(
            f"{place.folder}: this run is finished, but files of it are missing ({', '.join(lost)}); {again}"
        )
    return Outcome(
        place.experiment,
        place.folder,
        settings,
        _files.read_mapping(place.folder / "metrics.json"),
        tuple(place.folder / n for n in sorted(manifest["files"]) if n.endswith(".png")),
        float(manifest["wall_time_s"] or 0),
        manifest["resumed"],
        already_there=True,
        kept=tuple(place.kept),
    )


def differences(
    manifest: Mapping[str, Any], settings: dict[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The settings (and version of qkcore) that differ from another run's: (its value, the value wanted)."""
    there = {**manifest["settings"], "version of qkcore": manifest["versions"].get("qkcore")}
    # The settings in the manifest went through JSON, so these must too before they can be compared.
    asked = {**json.loads(json.dumps(settings)), "version of qkcore": qk.__version__}
    return {
        key: (there.get(key), asked.get(key))
        for key in {**there, **asked}
        if there.get(key) != asked.get(key)
    }


def told(differ: Mapping[str, tuple[Any, Any]]) -> str:
    """The differences as text for a message, at most four of them.

    >>> told({"seed": (0, 1)})
    'seed is 0 there, 1 was asked for'
    """
    shown = [
        f"{key} is {_configs.short(there)} there, {_configs.short(asked)} was asked for"
        for key, (there, asked) in list(differ.items())[:4]
    ]
    more = len(differ) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _prepare(
    place: _folders.Place, settings: dict[str, Any], extends: tuple[str, ...], force: bool
) -> _folders.Working:
    """The folder to work in, either empty or with the checkpoints of an earlier run with these settings."""
    files = _folders.Working(place.working)
    manifest = None
    try:
        manifest = place.manifest(place.working)
    except ExperimentError:
        if not force:
            raise
        files.put_aside(_folders.MANIFEST)
    files.load(manifest)
    files.clean()
    differ = {} if manifest is None else differences(manifest, settings)
    if manifest is None or not set(differ) <= set(extends):
        if manifest is not None and files.checkpoints() and not force:
            raise ExperimentError(
                f"{place.working}: holds an unfinished run with other settings ({told(differ)}); the command "
                "of that run continues it, --force discards it, --out DIR writes elsewhere"
            )
        files.forget()
        manifest = None
    place.working.mkdir(exist_ok=True)
    if manifest is None and not force and extends and place.folder.is_dir():
        finished = place.manifest(place.folder)
        if finished is not None and set(differences(finished, settings)) <= set(extends):
            files.adopt(_folders.Known.listed(place.folder, finished))
    return files


def _compute(
    place: _folders.Place,
    experiment: Any,
    settings: dict[str, Any],
    quick: bool,
    force: bool,
    progress: bool,
    command: str | None,
) -> Outcome:
    name = experiment.name
    try:
        files = _prepare(place, settings, experiment.extends, force)
    except OSError as error:
        raise _files.unwritable(place.working, error) from error
    manifest: dict[str, Any] = {
        "experiment": name,
        "id": uuid.uuid4().hex,
        "replaces": None,
        "reproduces": experiment.reproduces,
        "status": "running",
        "quick": quick,
        "seed": settings["seed"],
        "settings": settings,
        "command": command,
        "started": _manifest.now(),
        "finished": None,
        "wall_time_s": None,
        "resumed": False,
        "commit": _manifest.commit(),
        "versions": _manifest.versions(),
        "machine": _manifest.machine(),
        "files": {},
    }
    header = f"{name} ({experiment.reproduces}); the settings of this run\n"
    header += f"again: qkcore run {name} --config THIS_FILE"
    _files.write_json(place.working / "manifest.json", manifest)
    start = time.perf_counter()

    def finish(status: str, **more: Any) -> float:
        elapsed = time.perf_counter() - start
        manifest.update(
            status=status,
            finished=_manifest.now(),
            wall_time_s=round(elapsed, 3),
            resumed=state.reused > 0,
            **more,
        )
        _files.write_json(place.working / "manifest.json", manifest)
        return elapsed

    state = Run(files, progress)
    try:
        with _files.recording(files.record):
            _files.write_text(place.working / "config.yaml", _configs.dump(settings, header))
            experiment.compute(settings, state)
            figures = experiment.plot(place.working)
        metrics = _files.read_mapping(place.working / "metrics.json")
        written = files.results(with_checkpoints=bool(experiment.extends))
    except BaseException as error:
        finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    # The run is now finished. If it is interrupted here, the next run exchanges the folders.
    elapsed = finish("finished", files=written, replaces=place.identity(place.folder))
    place.exchange()
    return Outcome(
        name,
        place.folder,
        settings,
        metrics,
        tuple(place.folder / path.name for path in figures),
        elapsed,
        state.reused > 0,
        kept=(*files.kept, *place.kept),
    )
