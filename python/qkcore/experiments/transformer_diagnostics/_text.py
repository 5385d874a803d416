"""Passages of English from Python's standard library: its help topics."""

from __future__ import annotations

import hashlib

from .._errors import ExperimentError


def topics() -> list[tuple[str, str]]:
    """(name, text in one line) of all topics, longest first, as the running Python has them."""
    from pydoc_data import topics as source

    plain = {name: _plain(text) for name, text in source.topics.items()}
    return sorted(plain.items(), key=lambda item: (-len(item[1]), item[0]))


def _plain(text: str) -> str:
    """The text without underlines and line breaks."""
    lines = [line for line in text.splitlines() if line.strip().strip('*=-~^"')]
    return " ".join(" ".join(lines).split())


def passages(count: int) -> list[tuple[str, str]]:
    """The ``count`` longest topics, none of which is part of another."""
    chosen: list[tuple[str, str]] = []
    for name, text in topics():
        # Topics overlap; for example, "customization" is a chapter of "specialnames".
        if not any(text[200:400] in other for _, other in chosen):
            chosen.append((name, text))
        if len(chosen) == count:
            return chosen
    raise ExperimentError(f"passages: wanted at most {len(chosen)}, got {count}")


def digest(text: str) -> str:
    """A digest of the text, since topics differ between versions of Python."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
