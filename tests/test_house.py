"""The rooms of the core: a file may include files of the rooms below its own, and of no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "cpp" / "src"
# From the ground up; each room may use itself and what is named before it on its line.
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
