"""Errors that a user of the command line can correct: shown as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExperimentError(ValueError):
    """A wrong name, key, value or folder; the message is one line and says what to do."""


def unknown(what: str, name: str, known: Iterable[str]) -> ExperimentError:
    """The error for a name that does not exist; its message suggests the nearest names that do.

    >>> print(unknown("experiment", "trefoi", ["regimes", "trefoil"]))
    unknown experiment 'trefoi'; did you mean trefoil? (known: regimes, trefoil)
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return ExperimentError(f"unknown {what} {name!r}{hint} (known: {', '.join(names)})")


def missing(needed_for: str, extra: str, *packages: str) -> ExperimentError:
    """The error for missing packages; its message names the extra that installs them.

    >>> print(missing("trefoil", "experiments", "matplotlib", "PyYAML"))
    trefoil needs matplotlib and PyYAML, which are not installed: pip install 'qkcore[experiments]'
    """
    *others, last = packages
    listed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
    return ExperimentError(
        f"{needed_for} needs {listed} not installed: pip install 'qkcore[{extra}]'"
    )
