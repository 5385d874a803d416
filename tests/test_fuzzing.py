"""The calls that fuzzing kept (tests/corpus has one for each way a case can end), and some random ones."""

from __future__ import annotations

import numpy as np
import pytest

from .fuzzing import Entry, corpus, random_entry, run
from .fuzzing_guided import FORM, from_bytes, to_bytes


@pytest.mark.parametrize("entry", corpus(), ids=lambda e: f"{e.case}-{e.seed}")
def test_the_corpus(entry: Entry) -> None:
    outcome = run(entry)
    assert outcome.wrong is None, f"{outcome.kind}: {outcome.wrong}"


def test_random_calls() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        entry = random_entry(rng)
        outcome = run(entry)
        assert outcome.wrong is None, f"{entry}: {outcome.wrong}"


def test_guided_fuzzing_sees_the_same_calls() -> None:
    """libFuzzer's inputs are bytes: those of a call give it back, and any others give some call."""
    for entry in corpus():
        assert from_bytes(to_bytes(entry)) == entry
    rng = np.random.default_rng(2)
    for size in range(FORM.size + 3):
        entry = from_bytes(rng.bytes(size))
        assert from_bytes(to_bytes(entry)) == entry
