"""check_site.py FOLDER: checks that links within a site work, and that it loads nothing from elsewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[key] for key in ("id", "name") if found.get(key))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(found.get("href", ""))
        if tag in LOADED and LOADED[tag] in found:
            self.loads.append(found[LOADED[tag]])


def problems(folder: Path) -> list[str]:
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        return [f"{folder}: no pages"]
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        found += [f"{name} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name} links to {url}, which is not there")
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].anchors:
                    found.append(f"{name} links to {url}: no such place on that page")
    for style in folder.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text:
            found.append(f"{style.relative_to(folder)} loads something from the network")
    return found


def main() -> int:
    folder = Path(sys.argv[1])
    found = problems(folder)
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        pages = len(list(folder.rglob("*.html")))
        print(f"docs: {pages} pages in {folder}, all links lead somewhere, nothing is fetched")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
