"""Every public name of the package has an entry in the API pages, or the build fails."""

from __future__ import annotations

from types import ModuleType

import qkcore
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def public_names(module: ModuleType = qkcore) -> list[str]:
    """``qkcore.softmax``, ``qkcore.gaussian``, ``qkcore.gaussian.flow``, ... by the modules' ``__all__``."""
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        full = f"{module.__name__}.{name}"
        found.append(full)
        if isinstance(value, ModuleType) and hasattr(value, "__all__"):
            found += public_names(value)
    return [name for name in found if not name.endswith(".__version__")]


def check(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    described = set(app.env.domains["py"].data["objects"]) | set(
        app.env.domains["py"].data["modules"]
    )
    for name in public_names():
        if name not in described:
            logger.warning("%s is public and has no entry in docs/api", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
