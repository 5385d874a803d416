"""The pages of docs/ and the README: their code runs, their links work, and their numbers are current."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import qkcore

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)


def with_readme() -> list[Path]:
    """The README is not beside the tests when an installed wheel is tested."""
    return [*PAGES, *(p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if p.exists())]


def by_name(path: Path) -> str:
    return path.name


def code(path: Path) -> list[tuple[int, str]]:
    """Python blocks of a page with the line that they start at."""
    text = path.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, m.start()) + 2, m[2]) for m in FENCE.finditer(text) if m[1] == "python"
    ]


@pytest.mark.parametrize("path", [p for p in with_readme() if code(p)], ids=by_name)
def test_code_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after another, as a reader would type them in."""
    monkeypatch.chdir(tmp_path)
    if "matplotlib" in path.read_text(encoding="utf-8"):
        monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": path.stem}
    for line, block in code(path):
        if ">>>" in block:
            continue  # what it prints is compared below
        tree = ast.increment_lineno(ast.parse(block), line - 1)
        exec(compile(tree, str(path), "exec"), names)


@pytest.mark.parametrize(
    "path", [p for p in with_readme() if ">>> " in p.read_text(encoding="utf-8")], ids=by_name
)
def test_sessions_print_what_they_say(path: Path) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    with np.printoptions(legacy=False):
        found = doctest.testfile(str(path), module_relative=False, optionflags=flags)
    assert found.failed == 0


def test_no_python_hides_in_an_indented_block() -> None:
    """Indented code is not run: what imports or calls qkcore belongs into a ```python block."""
    for path in with_readme():
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        hidden = re.findall(
            r"^    (?:import |from \w+ import |\w+ = (?:qk|magnetic|diffusion)\.).*",
            text,
            re.MULTILINE,
        )
        assert not hidden, f"{path.name}: {hidden[0]}"


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub and MyST make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", with_readme(), ids=by_name)
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        if name.startswith("auto_gallery/"):
            continue  # made by the build, which checks it separately (tools/check_site.py)
        place = (path.parent / name).resolve() if name else path
        if not place.is_relative_to(DOCS) and not (ROOT / "README.md").exists():
            continue  # with an installed wheel only docs/ is there
        assert place.exists(), f"{path.name} links to {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", with_readme(), ids=by_name)
def test_rows_of_tables_have_the_cells_of_their_header(path: Path) -> None:
    """A bar inside code ends a cell unless it is escaped: what follows would vanish."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    wanted = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            wanted = 0
            continue
        count = len(re.split(r"(?<!\\)\|", line.strip()[1:].removesuffix("|")))
        wanted = wanted or count
        assert count == wanted, f"{path.name}: {line}"


def test_every_page_is_listed_once() -> None:
    """index.md is the one list of pages; a page that it does not name is not on the site."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = [m[2] for m in FENCE.finditer(text) if m[1] == "{toctree}"]
    listed: list[str] = []
    for tree in trees:
        for entry in (line.strip() for line in tree.splitlines()):
            if not entry or entry.startswith(":"):
                continue
            if "*" in entry:
                listed += [p.stem for p in DOCS.glob(entry + ".md")]
            else:
                listed.append(entry)
    wanted = {p.stem for p in PAGES} - {"index"}
    assert set(listed) == wanted | {"api/index", "auto_gallery/index"}
    assert len(listed) == len(set(listed))


def public_names(module: ModuleType = qkcore) -> list[str]:
    """By the modules' ``__all__``, all the way down."""
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        found.append(f"{module.__name__}.{name}")
        if isinstance(value, ModuleType) and hasattr(value, "__all__"):
            found += public_names(value)
    return [name for name in found if not name.endswith("__version__")]


def test_the_api_pages_have_every_public_name() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((DOCS / "api").glob("*.rst")))
    described = set(re.findall(r"^\.\. auto\w+:: (\S+)", text, re.MULTILINE))
    missing = [name for name in public_names() if name not in described]
    assert not missing, f"add to docs/api: {', '.join(missing)}"


def test_the_api_pages_name_nothing_that_is_gone() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((DOCS / "api").glob("*.rst")))
    known = set(public_names())
    gone = [n for n in re.findall(r"^\.\. auto\w+:: (\S+)", text, re.MULTILINE) if n not in known]
    assert not gone, f"remove from docs/api: {', '.join(gone)}"


def readme_table() -> ModuleType:
    path = ROOT / "tools" / "readme_table.py"
    if not path.exists():
        pytest.skip("tools/ is not here: this is a test of an installed wheel")
    spec = importlib.util.spec_from_file_location("readme_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_performance_page() -> None:
    tool = readme_table()
    wanted = tool.table((DOCS / "performance.md").read_text(encoding="utf-8"))
    for path in tool.PAGES:
        text = path.read_text(encoding="utf-8")
        assert tool.updated(text, wanted) == text, f"{path.name}: python tools/readme_table.py"


def test_the_table_follows_the_page() -> None:
    """A changed time on the performance page is a changed time in the table; a lost case is an error."""
    tool = readme_table()
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    first = tool.shown_rows(text)[0]
    assert first[1] in text
    part = tool.section(text, "attention", "Attention")
    changed = text.replace(part, part.replace(first[1], "9.99 s"))
    assert tool.shown_rows(changed)[0][1] == "9.99 s"
    with pytest.raises(tool.MissingFigureError, match="no row of qkcore for the case"):
        tool.shown_rows(text.replace(part, part.replace("N=16000", "N=17000")))
