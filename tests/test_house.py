"""The rooms of the core, and the modules of the package: what may use what.

A file of the core may include files of the rooms below its own, and of no others. Modules of the package
import each other in one direction, and take no private name out of another package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "cpp" / "src"
# From the lowest room up. Each room may use itself and the rooms that are listed for it.
MAY_USE = {
    "simd": (),
    "threads": (),
    "engine": ("simd", "threads"),
    "lowrank": ("engine", "simd", "threads"),
    "bridge": ("lowrank", "engine", "simd", "threads"),
    "ode": ("simd", "threads"),
    "fields": ("ode", "bridge", "lowrank", "engine", "simd", "threads"),
}
OUTSIDE = {"precompiled.hpp"}  # belongs to the build, not to a room

pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason="away from the source tree")


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)


def files() -> list[Path]:
    return sorted(SOURCES.rglob("*.[ch]pp"))


def test_every_source_is_in_a_room() -> None:
    strays = [
        path.relative_to(SOURCES).as_posix()
        for path in files()
        if path.name not in OUTSIDE and path.relative_to(SOURCES).parts[0] not in MAY_USE
    ]
    assert strays == []
    assert {
        path.relative_to(SOURCES).parts[0] for path in files() if path.name not in OUTSIDE
    } == set(MAY_USE)


def test_rooms_use_only_what_lies_below_them() -> None:
    upward = []
    for path in files():
        room, *rest = path.relative_to(SOURCES).parts
        for name in includes(path):
            other = name.split("/")[0]
            if rest and other != "qk" and other != room and other not in MAY_USE[room]:
                upward.append(f"{room}/{'/'.join(rest)} includes {name}")
    assert upward == []


def test_includes_name_the_room_or_the_public_header() -> None:
    """`#include "engine/walk.hpp"`, never `"walk.hpp"`: the room is seen where it is used."""
    bare = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path in files()
        for name in includes(path)
        if "/" not in name
    ]
    assert bare == []


def test_headers_do_not_include_each_other_in_a_circle() -> None:
    graph = {
        path.relative_to(SOURCES).as_posix(): [
            name for name in includes(path) if (SOURCES / name).exists()
        ]
        for path in files()
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name in done:
            return
        for other in graph.get(name, []):
            visit(other, (*above, name))
        done.add(name)

    for name in graph:
        visit(name, ())
    assert done == set(graph)


# ---- the package ------------------------------------------------------------------------------------

PACKAGE = Path(__file__).parents[1] / "python" / "qkcore"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(module, name) for what is imported when the module is: not in functions, not for type checkers."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def statements(nodes: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                yield node
            elif isinstance(node, ast.If):
                if "TYPE_CHECKING" not in ast.unparse(node.test):
                    yield from statements(node.body)
                yield from statements(node.orelse)
            elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
                yield from statements(node.body)

    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        if module.split(".")[0] == "qkcore":
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                yield (inside, "") if inside in known else (module, alias.name)


def graph() -> dict[str, set[str]]:
    """The package itself is left out: it imports all, and others take compiled modules out of it."""
    known = modules()
    return {
        name: {other for other, _ in imported(name, path, known)} - {"qkcore"}
        for name, path in known.items()
        if name != "qkcore"
    }


def test_modules_import_each_other_in_one_direction() -> None:
    """Taken away from the bottom, nothing is left: no module imports itself by way of others."""
    left = graph()
    while bottom := {name for name, below in left.items() if not below & set(left) - {name}}:
        left = {name: below for name, below in left.items() if name not in bottom}
    assert left == {}


def test_no_private_name_leaves_its_package() -> None:
    known = modules()
    taken = []
    for name, path in known.items():
        here = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for module, what in imported(name, path, known):
            if module not in known:  # compiled
                continue
            there = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
            if what.startswith("_") and not what.startswith("__") and there != here:
                taken.append(f"{name} takes {what} of {module}")
    assert taken == []


def test_scores_operators_and_bridges_exist_once() -> None:
    """For NumPy's engine and for devices alike; a backend is what differs."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in modules().values())
    assert "same methods" not in text
    for name in ("Scores", "MarkovOperator", "KernelOperator", "SchrodingerBridge"):
        assert len(re.findall(rf"^class \w*{name}\b", text, re.MULTILINE)) == 1, name


# ---- the checks of arguments -------------------------------------------------------------------------

# Patterns of the messages of qkcore._checks' helpers; messages written by hand must not match them.
FAMILIES = {
    "one_of": r'wanted (one of \{|"[\w-]+"( or|, ) ?"[\w-]+", got)',
    "flag": r"wanted True or False, got",
    "function": r"wanted a function( of \([\w, ]+\))?, got",
    "instance": r"wanted (an?|the) [\w ]+, got \{type\(\w+\)\.__name__\}$",
    "shape": r"wanted shape \(",
    "count": r"wanted at least (\d+|\{least\}|one|two)( \w+)?, got",
    "at_least": r"wanted a number >=? [\d{]\S*, got",
    "finite": r"wanted finite numbers, got",
    "none_negative": r"wanted (numbers|weights|entries) >=? 0, got",
    "same_space": r"wanted (points in|dimension) \{[^}]+\}( dimensions)? as \w+, got",
    "time_span": r"wanted (t0 < t1|a pair \(t0, t1\)), got",
    "masses": r"wanted some mass, got",
}
# Exceptions for which no helper fits: shapes that depend on more than lengths (or have an alternative that is
# a word), and a mask where a number is meant.
PARTICULAR = {
    "_host.py": {"shape"},
    "diagnostics/_layers.py": {"none_negative"},
    "diagnostics/report.py": {"shape"},
}


def literal(node: ast.expr) -> str:
    """The text of a message, with the expressions in it as they are written."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            "{" + ast.unparse(v.value) + "}" if isinstance(v, ast.FormattedValue) else literal(v)
            for v in node.values
        )
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def refusals(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.func) in ("ValueError", "TypeError")
        ):
            yield node.lineno, "".join(literal(part) for part in node.exc.args)


def test_what_checks_have_a_helper_for_is_refused_by_the_helper() -> None:
    """One place knows how a refusal of a shape, a word, a count or a class reads."""
    written, needed = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(("_checks/", "experiments/")):
            continue
        for line, message in refusals(path):
            for helper, pattern in FAMILIES.items():
                if re.search(pattern, message):
                    if helper in PARTICULAR.get(name, ()):
                        needed.add((name, helper))
                    else:
                        written.append(f"{name}:{line} _checks.{helper}: {message}")
    assert written == []
    assert needed == {(name, helper) for name, all_of in PARTICULAR.items() for helper in all_of}


def test_the_families_see_a_refusal_that_is_written_by_hand() -> None:
    for helper, message in {
        "one_of": '{name}: wanted "a" or "b", got {value}',
        "shape": "V: wanted shape ({d}, k), got {V.shape}",
        "count": "{name}: wanted at least 1, got {n}",
        "instance": "K: wanted a LowRank, got {type(K).__name__}",
        "none_negative": "w: wanted weights >= 0, got {low}; divide",
    }.items():
        assert [name for name, p in FAMILIES.items() if re.search(p, message)] == [helper]
