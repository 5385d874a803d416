"""Writes one HTML page about all runs in a folder: figures, tables, statements with verdicts, errata."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from . import EXPERIMENTS, Experiment, _manifest
from ._errata import ERRATA
from ._errors import ExperimentError
from ._files import read_bytes, read_mapping, read_text, write_text
from ._folders import MANIFEST, Known, Place, entries, reading
from ._results import VERDICTS, Claim, Listing
from ._run import folder_of

# Words: runs of letters that are not part of a number, as the e of 1e-3 is.
WORDS = re.compile(r"[^\W\d_]+")

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; border-top: 2px solid #0072b2; padding-top: .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
img { max-width: 100%; height: auto; background: #fff; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #888; } td.text, th.text { text-align: left; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: #00694f; } .does-not-hold { color: #a63d00; } .holds-in-part { color: #7a5600; }
.note, .made, figcaption { color: #555; font-size: .86rem; } .warning { color: #a63d00; font-weight: 600; }
figure { margin: 1.4rem 0; } td:not(.text) { white-space: nowrap; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #16181b; } th, td { border-color: #444; }
  .holds { color: #4fd0ac; } .does-not-hold { color: #ff9a5c; } .holds-in-part { color: #f0c04a; }
  .note, .made, figcaption { color: #aaa; } .warning { color: #ff9a5c; }
}
"""


@dataclass(frozen=True)
class Found:
    """One run in the folder: full or quick, finished or not."""

    experiment: Experiment
    folder: Path
    manifest: dict[str, Any]
    label: str
    """NAME or NAME-quick"""
    newer: str = ""
    """a sentence about a later run that is not finished; empty if there is none"""

    @property
    def finished(self) -> bool:
        return bool(self.manifest["status"] == "finished")

    @property
    def measured(self) -> bool:
        """Whether there are numbers to show; an unfinished run may have none."""
        return self.finished or (self.folder / "metrics.json").exists()

    def claims(self) -> list[Claim]:
        """The document's statements with verdicts."""
        if not self.measured:
            return []
        metrics = read_mapping(self.folder / "metrics.json")
        with reading(self.folder, self.manifest):
            return self.experiment.claims(metrics)

    def tables(self) -> list[Listing]:
        with reading(self.folder, self.manifest):
            return self.experiment.tables(self.folder) if self.measured else []

    def figures(self) -> tuple[list[str], list[str]]:
        """Names of the pictures that the run drew, and of other pictures in the folder (not shown)."""
        there = [n for n in entries(self.folder) if n.endswith(".png")]
        if not self.finished:
            return [], there
        drawn = [n for n in sorted(self.manifest["files"]) if n.endswith(".png")]
        return drawn, [n for n in there if n not in drawn]


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Writes the page (to DIR/report.html by default) and returns its path."""
    if not folder.is_dir():
        raise ExperimentError(
            f"{folder}: no such folder; run an experiment with --out {folder} first"
        )
    entries(folder)  # raises if the folder cannot be read
    found = [
        f for e in EXPERIMENTS.values() for quick in (False, True) for f in _find(e, folder, quick)
    ]
    if not found:
        raise ExperimentError(
            f"{folder}: no results in it; run an experiment with --out {folder} first "
            f"({', '.join(EXPERIMENTS)})"
        )
    path = folder / "report.html" if output is None else output
    write_text(path, page([contents(found), *(section(f) for f in found)]))
    return path


def _find(e: Experiment, out: Path, quick: bool) -> list[Found]:
    """The finished run, with a note if a later one is not finished; or the only run, if unfinished."""
    place = Place(folder_of(e.name, out, quick), e.name)
    manifests = []
    for folder in (place.folder, place.working):
        if folder.is_symlink():
            raise ExperimentError(
                f"{folder}: is a symbolic link, which is not followed; "
                "make a report of the folder that it leads to, or put that folder itself there"
            )
        if folder.is_dir():
            entries(folder)  # raises if the folder may not be read
        manifests.append(
            _manifest.read(folder, e.name) if os.path.lexists(folder / MANIFEST) else None
        )
    finished, unfinished = manifests
    if finished is None:
        return (
            [] if unfinished is None else [Found(e, place.working, unfinished, place.folder.name)]
        )
    newer = ""
    if unfinished is not None:
        newer = f"A later run, started {unfinished['started']}, is not finished ({unfinished['status']})."
    return [Found(e, place.folder, finished, place.folder.name, newer)]


def contents(found: list[Found]) -> str:
    """The table of contents, with the number of statements for each verdict."""
    rows = []
    for f in found:
        claims = f.claims()
        counts = [sum(c.verdict == v for c in claims) for v in VERDICTS]
        cells = "".join(
            f'<td class="{v.replace(" ", "-")}">{n or "–"}</td>'
            for v, n in zip(VERDICTS, counts, strict=True)
        )
        quick = " (quick run)" if f.manifest["quick"] else ""
        state = "" if f.finished else " (not finished)"
        link = f'<a href="#{f.label}">{escape(f.experiment.name)}</a>{quick}{state}'
        what = escape(f.experiment.reproduces)
        rows.append(f'<tr><td class="text">{link}</td><td class="text">{what}</td>{cells}</tr>')
    head = "".join(f"<th>{v}</th>" for v in VERDICTS)
    return (
        '<div class="scroll"><table><tr><th class="text">experiment</th>'
        f'<th class="text">reproduces</th>{head}</tr>\n' + "\n".join(rows) + "</table></div>"
        '<p class="note">The numbers count the statements of the documents, by the verdict of the '
        "measurements. Every statement is listed below with what was measured.</p>"
    )


def page(sections: list[str]) -> str:
    """The whole HTML document; it loads nothing from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>qkcore: experiments</title>\n<style>{STYLE}</style></head>\n<body>\n"
        "<h1>qkcore: results of the experiments</h1>\n" + "\n".join(sections) + "</body></html>\n"
    )


def section(f: Found) -> str:
    """The part of the page about one run."""
    e, manifest = f.experiment, f.manifest
    quick = " (quick run)" if manifest["quick"] else ""
    parts = [f'<section id="{f.label}"><h2>{escape(e.name)}: {escape(e.title)}{quick}</h2>']
    parts.append(f"<p>Reproduces {escape(e.reproduces)}.</p>")
    if manifest["quick"]:
        parts.append(
            '<p class="warning">A quick run: its settings are smaller than those of the document.</p>'
        )
    if not f.finished:
        parts.append(
            f'<p class="warning">This run is not finished ({escape(manifest["status"])}): '
            "only the results that it has so far are shown.</p>"
        )
    if f.newer:
        parts.append(f'<p class="note">{escape(f.newer)}</p>')
    if f.finished and (changed := Known.listed(f.folder, manifest).changed()):
        names = escape(", ".join(changed))
        parts.append(f'<p class="warning">These files were changed after the run: {names}.</p>')
    drawn, others = f.figures()
    if f.measured:
        parts.append(_claims(f.claims()))
        parts += [_figure(f.folder / name) for name in drawn]
        parts += [_table(t) for t in f.tables()]
    if others:
        names = escape(", ".join(others))
        parts.append(
            f'<p class="note">Pictures that this run did not draw are not shown: {names}.</p>'
        )
    parts.append(_errata(e))
    with reading(f.folder, manifest):
        parts.append(_made(manifest, f.folder))
    return "\n".join(parts) + "</section>"


def _claims(claims: list[Claim]) -> str:
    rows = "".join(
        f'<tr><td class="text">{escape(c.statement)}</td><td class="text">{escape(c.where)}</td>'
        f'<td class="text">{escape(c.paper)}</td><td class="text">{escape(c.measured)}</td>'
        f'<td class="text verdict {c.verdict.replace(" ", "-")}">{c.verdict}</td></tr>\n'
        for c in claims
    )
    names = ("statement", "where", "paper", "measured here", "verdict")
    head = "".join(f'<th class="text">{n}</th>' for n in names)
    title = "<h3>Statements of the document, and what was measured</h3>"
    return f'{title}<div class="scroll"><table><tr>{head}</tr>\n{rows}</table></div>'


def _figure(path: Path) -> str:
    data = base64.b64encode(read_bytes(path)).decode()
    name = escape(path.stem)
    caption = f"<figcaption>{name}.png</figcaption>"
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}">{caption}</figure>'


def _table(t: Listing) -> str:
    texts = [any(not _is_figure(r[k]) for r in t.rows) for k in range(len(t.header))]
    kind = [' class="text"' if text else "" for text in texts]
    head = "".join(f"<th{c}>{escape(h)}</th>" for h, c in zip(t.header, kind, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{c}>{escape(v)}</td>" for v, c in zip(row, kind, strict=True))
        + "</tr>\n"
        for row in t.rows
    )
    note = f'<p class="note">{escape(t.note)}</p>' if t.note else ""
    table = f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'
    return f"<h3>{escape(t.title)}</h3>{table}{note}"


def _is_figure(cell: str) -> bool:
    """Whether a cell holds numbers only. Numbers, ranges and shares are aligned right, words left.

    >>> [_is_figure(c) for c in ("–", "-0.62", "3 of 47", "1e-3 (0.1–2)", "100 converged", "softmax")]
    [True, True, True, True, False, False]
    """
    return not any(len(word) > 1 and word not in ("of", "to") for word in WORDS.findall(cell))


def _errata(e: Experiment) -> str:
    items = "".join(f"<li value={n}>{escape(ERRATA[n])}</li>\n" for n in e.errata)
    return f"<h3>Errata that this experiment shows</h3><ol>{items}</ol>" if items else ""


def _made(manifest: dict[str, Any], folder: Path) -> str:
    settings = escape(read_text(folder / "config.yaml"))
    versions = manifest["versions"]
    cpu, isa, threads = (manifest["machine"].get(k) for k in ("cpu", "isa", "threads"))
    known = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    seconds = manifest["wall_time_s"]
    took = f", {seconds:.0f} s" if seconds is not None else ""
    resumed = ", resumed" if manifest["resumed"] else ""
    text = (
        f"Started {manifest['started']}{took}{resumed}; seed {manifest['seed']}; {cpu}, {isa}, "
        f"{threads} threads; {known}; commit {manifest['commit'] or '–'}."
    )
    folded = f"<details><summary>Settings</summary><pre>{settings}</pre></details>"
    return f'<p class="made">{escape(text)}</p>{folded}'
