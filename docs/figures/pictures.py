"""Draws the pictures of docs/pictures.md by running its code: ``python docs/figures/pictures.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
PAGE, OUT = DOCS / "pictures.md", DOCS / "_static"
SHOWN = ("b", "A")  # what the page shows as a notebook would


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, names)
    for name in ("bridge", "operator", "flow", "map"):
        path = OUT / f"pictures_{name}.png"
        names[f"{name}_figure"].savefig(path, dpi=100, metadata={"Software": None})
    names["sol"].animate().save(str(OUT / "pictures_flow.gif"), writer="pillow", dpi=70)
    shown = "\n\n".join(names[name]._repr_html_() for name in SHOWN)
    begin, end = "<!-- notebook:begin -->", "<!-- notebook:end -->"
    before, _, rest = text.partition(begin)
    PAGE.write_text(f"{before}{begin}\n{shown}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
