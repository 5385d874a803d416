"""The stub of qkcore_cuda agrees with the compiled module in names, arguments and defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests import fake_cuda

FOLDER = Path(__file__).resolve().parents[1] / "packaging" / "cuda" / "qkcore_cuda"
TYPES = {"DeviceArray", "Status", "Figures"}  # names that only the stub has

pytestmark = pytest.mark.skipif(not fake_cuda.built(), reason="not built: make simt")


def stub() -> ast.Module:
    return ast.parse((FOLDER / "_module.pyi").read_text())


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def described(node: ast.FunctionDef) -> list[tuple[str, Any]]:
    """Names and defaults of the arguments, "required" for none."""
    a = node.args
    plain = [*a.posonlyargs, *a.args]
    defaults: list[Any] = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    pairs = list(zip((x.arg for x in plain), defaults, strict=True))
    pairs += list(zip((x.arg for x in a.kwonlyargs), a.kw_defaults, strict=True))
    return [
        (name.rstrip("_"), "required" if value is None else ast.literal_eval(value))
        for name, value in pairs
        if name != "self"
    ]


def compiled(function: Any) -> list[tuple[str, Any]]:
    """The same of a function of the module."""
    text, _, defaults = function.__nb_signature__[0]
    inside = text[text.index("(") + 1 : text.rindex(") ->")]
    out = []
    for part in filter(None, re.split(r", (?=\w+: |\*)", inside)):
        name, _, rest = part.partition(":")
        if name in ("self", "*"):
            continue
        at = re.search(r"= \\(\d+)$", rest)
        out.append((name, defaults[int(at[1])] if at else "required"))
    return out


def test_names() -> None:
    """What the package exports is in the stub, and what is in the stub is in the module."""
    module = fake_cuda.module()
    exported = ast.parse((FOLDER / "__init__.py").read_text())
    imported = next(node for node in exported.body if isinstance(node, ast.ImportFrom))
    wanted = {alias.name for alias in imported.names}
    body = stub().body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)} - TYPES
    assert set(functions(body)) | classes | {"version"} == wanted
    assert all(hasattr(module, name) for name in wanted)
    public = {name for name in dir(module) if not name.startswith(("_", "simt_"))}
    assert public == wanted
    assert (FOLDER / "py.typed").is_file()


@pytest.mark.parametrize("name", sorted(functions(stub().body)))
def test_arguments(name: str) -> None:
    found, wanted = (
        described(functions(stub().body)[name]),
        compiled(getattr(fake_cuda.module(), name)),
    )
    # "..." stands for a number that means no bound.
    found = [(n, dict(wanted)[n] if d is ... else d) for n, d in found]
    assert found == wanted


def test_the_array() -> None:
    """Its methods with their arguments, its properties, and nothing beside them."""
    array = fake_cuda.module().Array
    node = next(n for n in stub().body if isinstance(n, ast.ClassDef) and n.name == "Array")
    members = functions(node.body)
    public = {n for n in dir(array) if not n.startswith("_")} | {"__dlpack__", "__dlpack_device__"}
    assert set(members) == public
    for name, member in members.items():
        if member.decorator_list:
            assert isinstance(vars(array)[name], property)
        elif name != "__dlpack__":
            assert described(member) == compiled(getattr(array, name))
