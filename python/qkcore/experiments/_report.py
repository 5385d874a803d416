"""One HTML page of everything in a folder: figures, tables, the document beside us, errata."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path
from typing import Any

from . import EXPERIMENTS, Experiment
from ._errata import ERRATA
from ._errors import ExperimentError
from ._files import read_json, write_text
from ._results import VERDICTS, Claim, Listing

# Runs of letters that are no part of a number: the e of 1e-3 is.
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


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Writes the page (DIR/report.html unless told otherwise) and returns where it is."""
    if not folder.is_dir():
        raise ExperimentError(
            f"{folder}: no such folder; run an experiment with --out {folder} first"
        )
    found = [e for e in EXPERIMENTS.values() if (folder / e.name / "manifest.json").exists()]
    if not found:
        raise ExperimentError(
            f"{folder}: no results in it; run an experiment with --out {folder} first "
            f"({', '.join(EXPERIMENTS)})"
        )
    path = folder / "report.html" if output is None else output
    write_text(path, page([contents(found, folder), *(section(e, folder / e.name) for e in found)]))
    return path


def contents(found: list[Experiment], folder: Path) -> str:
    """What is on the page, and how many statements of the documents hold."""
    rows = []
    for e in found:
        claims = _claims_of(e, folder / e.name)
        counts = [sum(c.verdict == v for c in claims) for v in VERDICTS]
        cells = "".join(
            f'<td class="{v.replace(" ", "-")}">{n or "–"}</td>'
            for v, n in zip(VERDICTS, counts, strict=True)
        )
        quick = " (quick run)" if read_json(folder / e.name / "manifest.json")["quick"] else ""
        link = f'<a href="#{e.name}">{escape(e.name)}</a>{quick}'
        rows.append(
            f'<tr><td class="text">{link}</td><td class="text">{escape(e.reproduces)}</td>{cells}</tr>'
        )
    head = "".join(f"<th>{v}</th>" for v in VERDICTS)
    return (
        '<div class="scroll"><table><tr><th class="text">experiment</th>'
        f'<th class="text">reproduces</th>{head}</tr>\n' + "\n".join(rows) + "</table></div>"
        '<p class="note">Statements of the documents by what became of them here; each is below, beside what '
        "was measured.</p>"
    )


def _claims_of(e: Experiment, folder: Path) -> list[Claim]:
    path = folder / "metrics.json"
    if not path.exists():
        return []
    try:
        return e.claims(read_json(path))
    except KeyError as error:
        raise ExperimentError(
            f"{path}: written by another version of qkcore (no {error}); "
            f"run it again: qkcore run {e.name} --out {folder.parent}"
        ) from error


def page(sections: list[str]) -> str:
    """The whole document; nothing is fetched from anywhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>qkcore: experiments</title>\n<style>{STYLE}</style></head>\n<body>\n"
        "<h1>qkcore: experiments beside the documents</h1>\n"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def section(e: Experiment, folder: Path) -> str:
    """One experiment: what was asked, what came out."""
    manifest = read_json(folder / "manifest.json")
    parts = [f'<section id="{e.name}"><h2>{escape(e.name)}: {escape(e.title)}</h2>']
    parts.append(f"<p>Reproduces {escape(e.reproduces)}.</p>")
    if manifest["quick"]:
        parts.append('<p class="warning">A quick run: not the setting of the document.</p>')
    if manifest["status"] != "finished":
        parts.append(
            f'<p class="warning">This run is not finished ({escape(manifest["status"])}): '
            "what follows is what there was.</p>"
        )
    if (folder / "metrics.json").exists():
        parts.append(_claims(_claims_of(e, folder)))
        parts += [_figure(p) for p in sorted(folder.glob("*.png"))]
        parts += [_table(t) for t in e.tables(folder)]
    parts.append(_errata(e))
    parts.append(_made(manifest, folder))
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
    return f'<h3>The document and we</h3><div class="scroll"><table><tr>{head}</tr>\n{rows}</table></div>'


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
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
    """Numbers, ranges and shares are set right, words left.

    >>> [_is_figure(c) for c in ("–", "-0.62", "3 of 47", "1e-3 (0.1–2)", "100 converged", "softmax")]
    [True, True, True, True, False, False]
    """
    return not any(len(word) > 1 and word not in ("of", "to") for word in WORDS.findall(cell))


def _errata(e: Experiment) -> str:
    items = "".join(f"<li value={n}>{escape(ERRATA[n])}</li>\n" for n in e.errata)
    return f"<h3>Errata that it bears on</h3><ol>{items}</ol>" if items else ""


def _made(manifest: dict[str, Any], folder: Path) -> str:
    settings = escape((folder / "config.yaml").read_text(encoding="utf-8"))
    machine, versions = manifest["machine"], manifest["versions"]
    known = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    seconds = manifest["wall_time_s"]
    took = f", {seconds:.0f} s" if seconds is not None else ""
    resumed = ", resumed" if manifest["resumed"] else ""
    text = (
        f"Started {manifest['started']}{took}{resumed}; seed {manifest['seed']}; {machine['cpu']}, "
        f"{machine['isa']}, {machine['threads']} threads; {known}; commit {manifest['commit'] or '–'}."
    )
    folded = f"<details><summary>Settings</summary><pre>{settings}</pre></details>"
    return f'<p class="made">{escape(text)}</p>{folded}'
