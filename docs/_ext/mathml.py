"""Formulas as MathML, by the converter that comes with docutils: no script and no font to load.

A formula that the converter cannot read is a warning, and so fails the build.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


# What LaTeX knows and the converter does not.
SAME = {r"\dots": r"\ldots", r"\big": "", r"\Big": "", r"\textstyle": ""}


# An accented letter takes its indices to the side, not below, when it stands in a group of two.
ACCENTED = re.compile(
    r"\\(?:dot|ddot|bar|hat|tilde|vec|widehat|widetilde|overline)\s*(?:\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z])(?=\s*[_^])"
)

# So do the bars of a norm: a power of the closing bar alone leaves two heights, plain bars a gap.
NORM = re.compile(
    r"(\\lVert|\\lvert|\\Vert|\\vert|\\\||(?<!\\)\|)((?:(?!\1).)+?)(\\rVert|\\rvert|\1)(?=\s*[_^])"
)

SIDES = {"|": (r"\lvert ", r"\rvert "), r"\|": (r"\lVert ", r"\rVert ")}


def norm(found: re.Match[str]) -> str:
    left, right = SIDES.get(found[1], (found[1], found[3]))
    return f"{{{left}{found[2]}{right}}}"


def convert(tex: str, node: nodes.Element, *, block: bool) -> str:
    known = re.sub(r"\\[A-Za-z]+", lambda m: SAME.get(m[0], m[0]), " ".join(tex.split()))
    known = NORM.sub(norm, ACCENTED.sub(r"{\g<0>{}}", known))
    try:
        return tex2mathml(known, as_block=block)
    except Exception as error:  # what it cannot read it reports in many ways
        logger.warning("formula %r: %s: %s", tex, type(error).__name__, error, location=node)
        return f"<code>{html.escape(tex)}</code>"


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
