"""Experiments with their quick settings; each is run once for all tests that use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qkcore import experiments

Results = Callable[[str], experiments.Outcome]
_PLOT = experiments.Experiment.plot


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("results")
    made: dict[str, experiments.Outcome] = {}

    def get(name: str) -> experiments.Outcome:
        if name not in made:
            # The first test that needs the run may use the fixture no_figures.
            with pytest.MonkeyPatch.context() as whole:
                whole.setattr(experiments.Experiment, "plot", _PLOT)
                made[name] = experiments.run(name, out, quick=True)
        return made[name]

    return get


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of numbers alone: drawing is most of the time of a small run."""
    monkeypatch.setattr(experiments.Experiment, "plot", lambda *_: [])
