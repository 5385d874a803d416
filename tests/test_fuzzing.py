"""The calls that fuzzing kept (tests/corpus: one for each way a case can end), and some of a fixed seed."""

from __future__ import annotations

import numpy as np
import pytest

from .fuzzing import Entry, corpus, random_entry, run


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
