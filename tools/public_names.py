"""Writes docs/api/names.md, the table of all public names, from ``__all__`` and the docstrings.

python tools/public_names.py            compare: exit status 1 if the table is not what it should be
python tools/public_names.py --write    write it
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

TABLE = Path(__file__).parents[1] / "docs" / "api" / "names.md"
HEAD = """\
# All public names

What is not in this table is not public: it may change without notice. `tools/public_names.py` writes it from
the lists of names of the sources (`__all__`) and the first sentences of their docstrings.
"""


def namespaces(module: ModuleType, name: str) -> Iterator[tuple[str, ModuleType]]:
    """A module and, below it, those that it lists as public."""
    yield name, module
    for inner in module.__all__:
        value = getattr(module, inner)
        if inspect.ismodule(value):
            yield from namespaces(value, f"{name}.{inner}")


def sentence(value: Any) -> str:
    """The first sentence of a docstring, in Markdown."""
    if isinstance(value, str):
        return "the version"
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    first = re.match(r"(.+?(?<!prop)(?<!eq)[.:])(?=\s|$)", paragraph)
    text = (first.group(1) if first else paragraph).rstrip(".:")
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?(?:qkcore\.)?([^`]*)`", r"`\1`", text).replace("``", "`")
    return text.replace(r"\|", r"\Vert ").replace("|", r"\|")


def table() -> str:
    """The whole page."""
    lines = [HEAD]
    for name, module in namespaces(importlib.import_module("qkcore"), "qk"):
        lines += [f"## {name}\n", "| name | what |", "|---|---|"]
        lines += [
            f"| `{name}.{inner}` | {sentence(getattr(module, inner))} |" for inner in module.__all__
        ]
        lines.append("")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """The command."""
    wanted = table()
    if "--write" in words:
        TABLE.write_text(wanted, encoding="utf-8")
        return 0
    if TABLE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{TABLE}: not what the sources say; run python {Path(__file__).name} --write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
