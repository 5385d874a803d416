"""Docstrings on the API pages: read as they are meant, and every public name has an entry."""

from __future__ import annotations

import re
from types import ModuleType

from sphinx.application import Sphinx
from sphinx.util import logging

import qkcore

logger = logging.getLogger(__name__)


def value(name: str) -> object:
    found: object = qkcore
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def public_names(module: ModuleType = qkcore) -> list[str]:
    """``qkcore.softmax``, ``qkcore.gaussian``, ``qkcore.gaussian.flow``, ... by ``__all__``."""
    found = []
    for name in module.__all__:
        item = getattr(module, name)
        found.append(f"{module.__name__}.{name}")
        if isinstance(item, ModuleType) and hasattr(item, "__all__"):
            found += public_names(item)
    return [name for name in found if not name.endswith(".__version__")]


# What is left alone: code, formulas, sessions.
VERBATIM = re.compile(
    r"(``.*?``|`[^`]*`|^ *(?:>>>|\.\.\.) [^\n]*$|^ *\.\. math::.*?(?:\n\n|\Z))",
    re.MULTILINE | re.DOTALL,
)


def readable(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Three habits of the docstrings that reStructuredText would read otherwise."""
    text = "\n".join(lines)
    if what == "attribute":  # comments (#:) come as they are written, with the backslashes doubled
        text = text.replace("\\\\", "\\")
    # Absolute values, |x|, are no substitutions.
    parts = VERBATIM.split(text)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    text = "".join(parts)
    # "name : text" under the heading "Parameters" is a list of definitions.
    if "\nParameters\n----------\n" in text:
        before, after = text.split("\nParameters\n----------\n")
        after = re.sub(r"^(\w[\w, ]*) : (.*)$", r"``\1``\n    \2", after, flags=re.MULTILINE)
        text = f"{before}\n{after}"
    lines[:] = text.split("\n")


def check(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    domain = app.env.domains["py"].data
    described = {*domain["objects"], *domain["modules"]}
    # Some things have two public names; they are described under one of them.
    there = {id(value(name)) for name in public_names() if name in described}
    for name in public_names():
        if name not in described and id(value(name)) not in there:
            logger.warning("%s is public and has no entry in docs/api", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", readable)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
