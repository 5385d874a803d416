"""Every example in a docstring runs and prints what it says; every public thing has a docstring."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import numpy as np
import pytest

import qkcore as qk

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    """All modules of the package but the compiled ones, private ones included."""
    names = [qk.__name__]
    for info in pkgutil.walk_packages(qk.__path__, qk.__name__ + "."):
        if info.name.endswith("__main__"):  # importing it would run it
            continue
        spec = info.module_finder.find_spec(info.name, None)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            names.append(info.name)
    return names


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    with np.printoptions(legacy=False):
        result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert result.failed == 0


def test_there_are_examples_to_run() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    count = sum(
        len(test.examples)
        for name in modules()
        for test in finder.find(importlib.import_module(name))
    )
    assert count >= 20


def public_objects() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in qk.__all__:
        value = getattr(qk, name)
        if isinstance(value, ModuleType):
            found.append((name, value))
            exported = getattr(value, "__all__", [])
            found += [(f"{name}.{inner}", getattr(value, inner)) for inner in exported]
        elif callable(value):
            found.append((name, value))
        if inspect.isclass(value):
            members = ((k, v) for k, v in vars(value).items() if not k.startswith("_"))
            found += [(f"{name}.{k}", v) for k, v in members if callable(v) or is_property(v)]
    return found


def is_property(value: object) -> bool:
    return isinstance(value, property) or type(value).__name__ == "cached_property"


@pytest.mark.parametrize(("name", "value"), public_objects())
def test_every_public_object_is_documented(name: str, value: object) -> None:
    text = inspect.getdoc(value) or ""
    assert len(text) >= 20, f"{name} has no docstring worth the name"
    assert not text.startswith("__init__"), name


def test_fixed_names_are_there() -> None:
    for name in ("dense", "dot", "forward", "backward", "distance"):
        assert callable(getattr(qk.scores, name))
        parameters = inspect.signature(getattr(qk.scores, name)).parameters
        wanted = ["Z"] if name == "dense" else ["X", "Y", "W", "beta"]
        assert list(parameters) == wanted, name
    assert inspect.signature(qk.softmax).parameters["axis"].default == 1
