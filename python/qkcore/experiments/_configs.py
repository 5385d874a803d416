"""Settings of an experiment: the shipped file, ``--quick``, a user's file, ``--set key=value`` (EOT-17)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ._errors import ExperimentError, missing, unknown

Config = dict[str, Any]


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise missing("PyYAML", "reading settings", "experiments") from None
    return yaml


def shipped_text(name: str) -> str:
    """The experiment's YAML file as it ships, comments included."""
    file = resources.files(__package__).joinpath("configs", f"{name}.yaml")
    return file.read_text(encoding="utf-8")


def _mapping(text: str, where: str) -> Config:
    yaml = _yaml()
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{where}: not valid YAML: {reason}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ExperimentError(f"{where}: wanted 'key: value' lines, got {_kind(value)}")
    return {str(k): v for k, v in value.items()}


def resolve(
    name: str,
    *,
    quick: bool = False,
    file: Path | None = None,
    overrides: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The settings of a run. Later ones win: shipped, quick, file, overrides, seed.

    >>> resolve("trefoil", quick=True, overrides=["n=100"])["n"]
    100
    """
    defaults = _mapping(shipped_text(name), f"{name}.yaml")
    short = defaults.pop("quick", {})
    config = dict(defaults)
    if quick:
        _update(config, short, defaults, f"{name}.yaml, quick")
    if file is not None:
        _update(config, _read(file), defaults, str(file))
    for item in overrides:
        key, sign, text = item.partition("=")
        if not sign or not key.strip():
            raise ExperimentError(f"--set {item}: wanted key=value, e.g. --set seed=1")
        value = _mapping(f"value: {text}", f"--set {item}").get("value")
        _update(config, {key.strip(): value}, defaults, "--set")
    if seed is not None:
        config["seed"] = seed
    if config["seed"] < 0:
        raise ExperimentError(f"seed: wanted an integer of at least 0, got {config['seed']}")
    return config


def _read(file: Path) -> Config:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ExperimentError(f"{file}: cannot be read: {reason}") from error
    return _mapping(text, str(file))


def _update(config: Config, values: Mapping[str, Any], defaults: Config, where: str) -> None:
    for key, value in values.items():
        if key not in defaults:
            error = unknown("key", key, defaults)
            raise ExperimentError(f"{where}: {error}")
        config[key] = _like(value, defaults[key], f"{where}: {key}")


def _like(value: Any, default: Any, where: str) -> Any:
    """The value as the type of the shipped one; a whole number will do for a real one."""
    if isinstance(default, float) and isinstance(value, str):
        try:  # YAML 1.1 reads 1e-3 as text
            value = float(value)
        except ValueError:
            value = str(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ExperimentError(f"{where}: wanted {_kind(default)}, got {_kind(value)} ({value!r})")
    if isinstance(default, list):
        if not value:
            raise ExperimentError(f"{where}: wanted at least one entry, got an empty list")
        return [_like(v, default[0], where) for v in value]
    return value


def _kind(value: object) -> str:
    names: dict[type, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), "nothing")


def dump(config: Config, header: str) -> str:
    """The settings as YAML that ``--config`` reads again."""
    lines = "".join(f"# {line}\n" for line in header.splitlines())
    return lines + str(_yaml().safe_dump(config, sort_keys=False, default_flow_style=None))


def fingerprint(config: Config, ignoring: Iterable[str] = ()) -> str:
    """Tells settings apart: a checkpoint belongs to those that it was made with."""
    left_out = set(ignoring)
    kept = {k: v for k, v in sorted(config.items()) if k not in left_out}
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def positive(config: Config, *keys: str, least: float = 0) -> None:
    """Refuses numbers that are not above ``least``; experiments call it on their settings."""
    for key in keys:
        values = config[key] if isinstance(config[key], list) else [config[key]]
        for value in values:
            if not value > least:
                raise ExperimentError(f"{key}: wanted a number above {least}, got {value}")
