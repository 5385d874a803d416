"""Experiments at their quick settings, each run once for all the tests that look at it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qkcore import experiments

Results = Callable[[str], experiments.Outcome]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("results")
    made: dict[str, experiments.Outcome] = {}

    def get(name: str) -> experiments.Outcome:
        if name not in made:
            made[name] = experiments.run(name, out, quick=True)
        return made[name]

    return get
