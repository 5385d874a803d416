"""What fuzzing once found stays fixed: the calls of tests/corpus, and a few new ones of a fixed seed."""

from __future__ import annotations

import numpy as np
import pytest

from .fuzzing import Entry, corpus, random_entry, run


@pytest.mark.parametrize("entry", corpus(), ids=lambda e: f"{e.case}-{e.seed}")
def test_the_corpus(entry: Entry) -> None:
    assert run(entry) is None


def test_random_calls() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        entry = random_entry(rng)
        found = run(entry)
        assert found is None, f"{entry}: {found}"
