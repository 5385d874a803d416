"""Writes the time-and-error table of README.md and docs/index.md from docs/performance.md.

    python tools/readme_table.py            rewrites the text between the markers
    python tools/readme_table.py --check    exit status 1 if that would change anything

All numbers of the table are measured: `python bench/run.py GROUP --write-docs` updates docs/performance.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
SOURCE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

# The rows of the table: bench group, start of its heading, case; the words for the case; the contenders.
SHOWN = (
    (
        ("attention", "Attention", "N=16000 float32"),
        "attention, d = 64, N = 16000, float32",
        ("torch", "NumPy"),
    ),
    (
        ("attention", "Attention", "N=16000 float64"),
        "the same, float64",
        ("torch", "NumPy"),
    ),
    (
        ("lse", "Log-sum-exp", "distance d=3 N=10000 float64"),
        "log-sum-exp of distances, d = 3, N = 10000, float64",
        ("torch", "NumPy"),
    ),
    (
        ("diffusion", "Diffusion maps", 'N=4000, beta "median"'),
        "diffusion map, N = 4000, 10 eigenvectors",
        ("NumPy and eigsh",),
    ),
    (
        ("bridges", "Schrödinger bridges", "to L1 error 1e-9 N=2000 eps=0.005"),
        "bridge, N = 2000, ε = 0.005, to an L1 error of 1e-9",
        ("POT sinkhorn",),
    ),
    (
        ("bridges", "Schrödinger bridges", "iteration from points d=3 N=10000 float32"),
        "an iteration of a bridge from points, d = 3, N = 10000, float32",
        ("torch", "KeOps"),
    ),
    (
        ("particles", "Particle flows", "N=2000 d=2 float64, 100 steps"),
        "2000 particles under attention, d = 2, 100 RK4 steps",
        ("JAX scan", "torch"),
    ),
    (
        ("gaussian", "Gaussian flows", "softmax, 10000 laws, d=5, 1000 steps"),
        "10000 Gaussian laws under attention, d = 5, 1000 steps",
        ("NumPy batched", "JAX"),
    ),
    (
        ("low_rank", "Product of two", "N=100000 float64"),
        "two experts of rank 14, N = 100000, a product",
        ("NumPy",),
    ),
)


class MissingFigureError(LookupError):
    """docs/performance.md lacks a number that the table needs."""


def section(text: str, group: str, heading: str) -> str:
    """A group's part of the page: between its markers, or under the heading that begins with these words."""
    marked = re.search(rf"<!-- bench:{group} -->\n(.*?)<!-- /bench:{group} -->", text, re.DOTALL)
    if marked:
        return marked[1]
    titled = re.search(
        rf"^## {re.escape(heading)}.*?(?=^## |^<!-- |\Z)", text, re.DOTALL | re.MULTILINE
    )
    if titled is None:
        raise MissingFigureError(
            f"{SOURCE.name}: no section bench:{group} and no heading '{heading}'"
        )
    return titled[0]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(part: str) -> list[dict[str, str]]:
    """The rows of a section's table of cases; an empty case means that of the row above."""
    lines = part.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith("| case |")), None)
    if start is None:
        raise MissingFigureError(f"no table of cases in: {lines[0]}")
    head, found, case = cells(lines[start]), [], ""
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        row = dict(zip(head, cells("|" + line.strip()[1:]), strict=True))
        case = row["case"] = row["case"] or case
        found.append(row)
    return found


def headline(row: dict[str, str]) -> str:
    """The smallest time, or the median for times per iteration, which are differences."""
    return row["median"] if row["min"] == "–" else row["min"]


def shown_rows(text: str) -> list[list[str]]:
    out = []
    for (group, heading, case), words, peers in SHOWN:
        here = [row for row in rows(section(text, group, heading)) if row["case"] == case]
        ours = next((row for row in here if row["contender"] == "qkcore"), None)
        if ours is None:
            raise MissingFigureError(f"{group}: no row of qkcore for the case '{case}'")
        own = [words, headline(ours), ours["max error"]]
        for peer in peers:
            other = next((row for row in here if row["contender"].startswith(peer)), None)
            if other is None:
                raise MissingFigureError(f"{group}: no row '{peer}' for the case '{case}'")
            out.append(
                [
                    *own,
                    other["contender"],
                    headline(other),
                    "is the reference" if other["max error"] == "0.0e+00" else other["max error"],
                    f"{float(other['time / qkcore']):.2g} ×",
                ]
            )
            own = ["", "", ""]
    return out


def environment(text: str) -> str:
    """The line of the page that describes the machine."""
    found = re.search(r"^Machine of the figures below: (.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    if found is None:
        found = re.search(r"^\*(.* instruction set .*)\*$", text, re.MULTILINE)
    if found is None:
        raise MissingFigureError(f"{SOURCE.name}: no line that names the machine")
    return " ".join(found[1].split()).rstrip(".")


def table(text: str) -> str:
    head = ["", "qkcore", "error", "compared with", "time", "error", "their time / ours"]
    lines = ["| " + " | ".join(head) + " |", "|---|---:|---:|---|---:|---:|---:|"]
    lines += ["| " + " | ".join(row) + " |" for row in shown_rows(text)]
    return "\n".join(
        [
            *lines,
            "",
            f"Best of several runs (iterations: the median) on {environment(text)}. "
            "Rows come from several runs: each section of the performance page names its own commit. "
            "An error is the largest difference from a float64 or LAPACK reference. For a bridge it is the "
            "L1 error of its worse marginal, for one iteration of a bridge the largest error of its "
            "potentials.",
        ]
    )


def updated(page: str, new: str) -> str:
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"wanted one {BEGIN} and one {END}")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.split(END)[1]}"


def main() -> int:
    new = table(SOURCE.read_text(encoding="utf-8"))
    stale = []
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        text = updated(old, new)
        if text != old:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python tools/readme_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
