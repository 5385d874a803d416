"""What an experiment reports: claims with verdicts, and tables."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = ("holds", "holds in part", "does not hold", "not tested")


@dataclass(frozen=True)
class Claim:
    """One statement of a document, with what was measured and a verdict."""

    statement: str
    where: str
    paper: str
    measured: str
    verdict: str

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: wanted one of {', '.join(VERDICTS)}, got {self.verdict!r}")


@dataclass(frozen=True)
class Listing:
    """A table to be read by people; all cells are text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def text(self) -> str:
        """The table as aligned text for a terminal.

        >>> print(Listing("Ranks", ("r", "error"), (("8", "0.1"), ("11", "0.047"))).text())
        Ranks
           r  error
           8    0.1
          11  0.047
        """
        table = [self.header, *self.rows]
        widths = [max(len(row[k]) for row in table) for k in range(len(self.header))]
        lines = [
            "  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table
        ]
        return "\n".join([self.title, *lines, *([f"  {self.note}"] if self.note else [])])


def number(value: float | None, digits: int = 3) -> str:
    """A number as text for a table; a dash for None and NaN.

    >>> number(0.0154869), number(None)
    ('0.0155', '–')
    """
    if value is None or value != value:
        return "–"
    return f"{value:.{digits}g}"
