"""Settings of an experiment: the shipped file, ``--quick``, a user's file, ``--set key=value`` (EOT-17)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ._errors import ExperimentError, missing, unknown
from ._files import unreadable

Config = dict[str, Any]


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise missing("reading settings", "experiments", "PyYAML") from None
    return yaml


def shipped_text(name: str) -> str:
    """The experiment's YAML file as it ships, comments included."""
    file = resources.files(__package__).joinpath("configs", f"{name}.yaml")
    return file.read_text(encoding="utf-8")


MOST_CHARACTERS = 32 * 1024
"""limit for a file of settings; the largest shipped file has a sixth of it"""
MOST_PARTS = 5000
"""limit for keys, values and brackets together; the largest shipped file has a tenth of it"""
MOST_LEVELS = 20
"""limit for nested lists and mappings; the shipped files have three levels"""


LONG_NUMBER = re.compile(r"[-+]?(0x)?[0-9a-fA-F_:]{100,}")


def _mapping(text: str, where: str) -> Config:
    yaml = _yaml()
    if len(text) > MOST_CHARACTERS:
        raise ExperimentError(
            f"{where}: wanted settings of at most {MOST_CHARACTERS} characters, got more"
        )
    try:
        _refuse_bombs(yaml.parse(text, Loader=yaml.SafeLoader), where)
        value = yaml.safe_load(text)
    except ExperimentError:
        raise
    except yaml.YAMLError as error:
        raise ExperimentError(f"{where}: not valid YAML: {short(error, 300)}") from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML raises other errors too, for instance for "!!int x" and for days that do not exist.
        raise ExperimentError(f"{where}: not valid YAML: {short(error, 300)}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ExperimentError(f"{where}: wanted 'key: value' lines, got {_kind(value)}")
    return {str(k): v for k, v in value.items()}


def _refuse_bombs(events: Iterable[Any], where: str) -> None:
    """Refuses what would take long to read: aliases (their contents multiply), deep nesting, long numbers."""
    level = 0
    for count, event in enumerate(events):
        kind = type(event).__name__
        if count > MOST_PARTS:
            raise ExperimentError(f"{where}: wanted at most {MOST_PARTS} keys and values, got more")
        if kind == "ScalarEvent" and LONG_NUMBER.fullmatch(event.value):
            raise ExperimentError(
                f"{where}: wanted a number of at most 100 digits, got {len(event.value)}"
            )
        if kind == "AliasEvent":
            raise ExperimentError(
                f"{where}: wanted every value written out, got the alias *{event.anchor}"
            )
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            level += 1
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            level -= 1
        if level > MOST_LEVELS:
            raise ExperimentError(
                f"{where}: wanted at most {MOST_LEVELS} levels of nested lists, got more"
            )


def short(value: object, most: int = 80) -> str:
    """A value for a message, on one line; a long one is cut.

    >>> short([1, 2]), short("x" * 100, 8)
    ('[1, 2]', 'xxxxxxx…')
    """
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print very long numbers
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def resolve(
    name: str,
    *,
    quick: bool = False,
    file: Path | None = None,
    overrides: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The settings of a run: the shipped ones, changed by quick, file, overrides and seed, in this order.

    >>> resolve("trefoil", quick=True, overrides=["n=100"])["n"]
    100
    """
    defaults = _mapping(shipped_text(name), f"{name}.yaml")
    smaller = defaults.pop("quick", {})
    config = dict(defaults)
    if quick:
        _update(config, smaller, defaults, f"{name}.yaml, quick")
    if file is not None:
        _update(config, _read(file), defaults, str(file))
    for item in overrides:
        key, sign, text = item.partition("=")
        where = f"--set {short(item)}"
        if not sign or not key.strip():
            raise ExperimentError(f"{where}: wanted key=value, e.g. --set seed=1")
        value = _mapping(f"value: {text}", where).get("value")
        _update(config, {key.strip(): value}, defaults, "--set")
    if seed is not None:
        config["seed"] = seed
    if not 0 <= config["seed"] < 2**63:
        raise ExperimentError(
            f"seed: wanted an integer of at least 0 and below 2**63, got {short(config['seed'])}"
        )
    return config


def _read(file: Path) -> Config:
    try:
        with file.open("rb") as opened:  # not the whole file: a device may have no end
            text = opened.read(4 * MOST_CHARACTERS + 4).decode()
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{file}: cannot be read: it is not text in UTF-8") from error
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    return _mapping(text, str(file))


def _update(config: Config, values: Mapping[str, Any], defaults: Config, where: str) -> None:
    for key, value in values.items():
        if key not in defaults:
            error = unknown("key", key, defaults)
            raise ExperimentError(f"{where}: {error}")
        config[key] = _like(value, defaults[key], f"{where}: {key}")


def _like(value: Any, default: Any, where: str) -> Any:
    """The value, converted to the type of the shipped one; where that is real, a whole number is accepted."""
    if isinstance(default, float) and isinstance(value, str):
        try:  # YAML 1.1 reads 1e-3 as text
            value = float(value)
        except ValueError:
            value = str(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ExperimentError(f"{where}: wanted a number below 2**63, got {short(value)}")
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ExperimentError(
            f"{where}: wanted {_kind(default)}, got {_kind(value)} ({_quoted(value)})"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ExperimentError(f"{where}: wanted a finite number, got {value}")
    if isinstance(default, list):
        if not value:
            raise ExperimentError(f"{where}: wanted at least one entry, got an empty list")
        return [_like(v, default[0], where) for v in value]
    if isinstance(default, dict):
        return {str(k): _like_part(v, str(k), default, where) for k, v in value.items()}
    return value


def _like_part(value: Any, key: str, default: Config, where: str) -> Any:
    """An entry of a mapping. Which entries a mapping must have is checked by the experiment."""
    if key not in default:
        raise ExperimentError(f"{where}: {unknown('key', key, default)}")
    return _like(value, default[key], f"{where}: {key}")


def _quoted(value: object) -> str:
    return repr(short(value)) if isinstance(value, str) else short(value)


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


def fingerprint(config: Config) -> str:
    """A short text that differs between settings, so that checkpoints are used only with their settings."""
    return hashlib.sha256(json.dumps(dict(sorted(config.items()))).encode()).hexdigest()[:16]


def positive(config: Config, *keys: str, least: float = 0) -> None:
    """Refuses settings that are not above ``least``; experiments call this in ``check``."""
    for key in keys:
        values = config[key] if isinstance(config[key], list) else [config[key]]
        for value in values:
            if not value > least:
                raise ExperimentError(f"{key}: wanted a number above {least}, got {value}")
