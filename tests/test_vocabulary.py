"""One vocabulary: in all public functions and results a thing has the same name, and arguments one order.

The rules are those of docs/conventions.md ("Names of arguments and results").
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import qkcore as qk
from qkcore._words import Ended

TOOL = Path(__file__).parents[1] / "tools" / "public_names.py"
NAMESPACES = (
    "qkcore",
    *(f"qkcore.{name}" for name in sorted(qk.__all__) if inspect.ismodule(getattr(qk, name))),
    *(
        f"qkcore.diagnostics.{name}"
        for name in qk.diagnostics.__all__
        if inspect.ismodule(getattr(qk.diagnostics, name))
    ),
)

# A name that is not used, and the one that is.
INSTEAD = {
    "seed": "rng",
    "random_state": "rng",
    "maxiter": "max_iter",
    "n_iterations": "max_iter",
    "steps": "n_steps",
    "num_steps": "n_steps",
    "num_threads": "n_threads",
    "threads": "n_threads",
    "n_jobs": "n_threads",
    "tolerance": "tol",
    "temperature": "tau",
    "eps": "epsilon",
    "verbose": "progress",
    "weights_x": "weights",
    "positions_x": "positions",
}
# Exceptions: scikit-learn prescribes `random_state`; the tolerance of two angles is not that of a solve; all
# other libraries call the epsilon of a layer norm `eps`.
MAY = {
    ("qkcore.diagnostics.drift.RidgeDrift", "random_state"),
    ("qkcore.diagnostics.drift.MLPDrift", "random_state"),
    ("qkcore.observables.angles", "tolerance"),
    ("qkcore.observables.AngleStatistics", "tolerance"),
    ("qkcore.measure.LayerNorm", "eps"),
}
# Where both are arguments, the first comes before the second.
ORDER = (
    ("X", "Y"),
    ("Q", "K"),
    ("K", "V"),
    ("mu", "nu"),
    ("f", "g"),
    ("mean", "cov"),
    ("weights", "weights_y"),
    ("positions", "positions_y"),
    ("tol", "max_iter"),
    ("rtol", "atol"),
)
# Options come last, and in this order.
LAST = ("progress", "on_fail", "n_threads", "stream")
# Words that fields of results must not use for status, n_iter, error, errors and message.
NOT_A_FIELD = {"success", "nit", "iterations", "n_iters", "msg", "reason_ended", "err", "state"}


def public() -> Iterator[tuple[str, Any]]:
    seen = set()
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and id(value) not in seen:
                seen.add(id(value))
                yield f"{namespace}.{name}", value


def signatures() -> Iterator[tuple[str, list[inspect.Parameter]]]:
    """Of functions, classes and the methods of classes."""
    for name, value in public():
        if inspect.isclass(value):
            if issubclass(value, (str, Exception, Warning)):
                continue
            for method, function in vars(value).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", parameters(function)[1:]
        yield name, parameters(value)


def parameters(value: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(value).parameters.values())


def results() -> Iterator[tuple[str, type]]:
    for name, value in public():
        if inspect.isclass(value) and dataclasses.is_dataclass(value):
            yield name, value


def test_there_are_namespaces_and_signatures() -> None:
    assert len(NAMESPACES) > 15
    assert sum(1 for _ in signatures()) > 300


def test_every_namespace_lists_its_names_once() -> None:
    for namespace in NAMESPACES:
        names = importlib.import_module(namespace).__all__
        assert len(set(names)) == len(names), namespace


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_dir_shows_the_public_names_only(namespace: str) -> None:
    """What a module imports for itself is not offered by the completion of a shell or an editor."""
    module = importlib.import_module(namespace)
    shown = {name for name in dir(module) if not name.startswith("_")}
    assert shown <= set(module.__all__), sorted(shown - set(module.__all__))


def test_one_name_for_one_thing() -> None:
    wrong = [
        f"{name}({p.name}): call it {INSTEAD[p.name]}"
        for name, found in signatures()
        for p in found
        if p.name in INSTEAD and (name, p.name) not in MAY
    ]
    assert wrong == []


def test_the_exceptions_exist() -> None:
    assert {(name, p.name) for name, found in signatures() for p in found} >= MAY


def test_one_order() -> None:
    wrong = []
    fields = {name for name, _ in results()}
    for name, found in signatures():
        if name in fields:
            continue
        at = {p.name: i for i, p in enumerate(found)}
        for first, second in (*ORDER, *pairwise(LAST)):
            if first in at and second in at and at[first] > at[second]:
                wrong.append(f"{name}: {second} before {first}")
    assert wrong == []


def test_a_function_takes_rng_as_an_int_or_a_generator() -> None:
    wrong = [
        f"{name}: {p.annotation}"
        for name, found in signatures()
        for p in found
        if p.name == "rng"
        and not {"int", "Generator"} <= set(str(p.annotation).replace(".", " ").split())
    ]
    assert wrong == []


def test_results_name_their_fields_alike() -> None:
    wrong = [
        f"{name}.{f.name}"
        for name, value in results()
        for f in dataclasses.fields(value)
        if f.name in NOT_A_FIELD or (f.name in INSTEAD and (name, f.name) not in MAY)
    ]
    assert wrong == []


def test_a_status_is_one_of_the_words() -> None:
    """Results with a status take it through Ended, which refuses other words than Status has."""
    with_status = [
        (name, value)
        for name, value in results()
        if "status" in {f.name for f in dataclasses.fields(value)}
    ]
    assert len(with_status) > 10
    assert [name for name, value in with_status if not issubclass(value, Ended)] == []
    with pytest.raises(ValueError, match="'done' is not a valid Status"):
        qk.measure.W1Bracket(0.0, 1.0, 0.0, (1, 1), "done")


def test_no_function_is_exported_twice() -> None:
    homes: dict[int, list[str]] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            if callable(getattr(module, name)):
                homes.setdefault(id(getattr(module, name)), []).append(f"{namespace}.{name}")
    assert [names for names in homes.values() if len(names) > 1] == []


def test_a_module_and_a_function_never_share_a_name() -> None:
    """``qk.low_rank`` is the function; a module of the name would replace it once it is imported."""
    folder = Path(qk.__file__).parent
    stems = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir()}
    functions = {name for name in qk.__all__ if not inspect.ismodule(getattr(qk, name))}
    assert functions & stems == set()


@pytest.mark.skipif(not TOOL.is_file(), reason="away from the source tree")
def test_the_table_of_public_names_is_that_of_the_sources() -> None:
    """After a change of names: python tools/public_names.py --write."""
    spec = importlib.util.spec_from_file_location("public_names", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TABLE.read_text(encoding="utf-8") == tool.table()
    rows = [line for line in tool.table().splitlines() if line.startswith("| `qk.")]
    assert len(rows) == sum(len(importlib.import_module(name).__all__) for name in NAMESPACES)
    assert [row for row in rows if len(row.split(" | ")[1].strip(" |")) < 8] == []
