"""Formulas as MathML, by the converter that comes with docutils: no script and no font to load.

A formula that the converter does not know is a warning, and so fails the build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def convert(tex: str, node: nodes.Element, *, block: bool) -> str:
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        logger.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{nodes.unescape(tex)}</code>"


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext(), node, block=False))
    raise nodes.SkipNode


def displayed(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(convert(node.astext(), node, block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
