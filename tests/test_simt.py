"""The SIMT layer finds mistakes: kernels that have one deliberate bug each (tests/simt/bugs.cu)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernels import backend, built

# The messages of the plain layer and of the race build, in the order of the enumeration in bugs.cu. None
# means that the plain layer, which runs each thread to the next barrier, cannot see the bug.
BUGS: list[tuple[str, str | None, str]] = [
    ("missing_barrier", None, r"race \(.*bugs.cu"),
    ("missing_second_barrier", None, r"race \(.*bugs.cu"),
    ("missing_warp_sync", None, r"race \(.*bugs.cu"),
    ("tile_off_by_one", None, r"read outside of memory.*bugs.cu"),
    ("shared_overrun", None, r"write outside of memory.*bugs.cu"),
    ("global_overrun", "write outside an allocation", r"write outside of memory.*bugs.cu"),
    ("no_tail_check", "write outside an allocation", r"write outside of memory.*bugs.cu"),
    ("narrow_mask", "mask does not name", "mask does not name"),
    ("divergent_shuffle", "deadlock|different operations", "deadlock|different operations"),
    ("divergent_barrier", "deadlock|barrier|wrong|order", "deadlock|barrier|race"),
    ("early_return", "never reach", "never reach"),
    ("atomic_order", "order", "order"),
    ("block_race", "wrong|order", "race between blocks"),
    ("uninitialised", "wrong", "nobody has written"),
    ("lost_update", None, "race"),
]
N = 1000  # sixteen blocks of 64, the last one not full


def findings(name: str, bug: int, seeds: int) -> str:
    """Everything said about the bug: reports, "wrong" for a wrong result, "order" for one that depends on the
    schedule."""
    kernels = backend(name)
    x = np.random.default_rng(0).normal(size=N).astype(np.float32) * 10 ** np.linspace(
        -3, 3, N
    ).astype(np.float32)
    said, results = [], set()
    for seed in range(seeds):
        kernels.seed = seed
        status, result, reports = kernels.seeded_bug(x, bug)
        said.append(reports)
        if status == 0:
            results.add(result)
            if not abs(result - float(x.astype(np.float64).sum())) <= 1e-5 * float(np.abs(x).sum()):
                said.append("wrong")
    if len(results) > 1:
        said.append("order")
    return "\n".join(said)


needs = {
    name: pytest.mark.skipif(not built(name), reason=f"not built: make {target}")
    for name, target in (("simt", "simt"), ("race", "simt-race"))
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs[n]) for n in ("simt", "race")])
def test_a_right_kernel_is_not_accused(name: str) -> None:
    assert backend(name).library.qk_n_bugs() == len(BUGS) + 1
    assert findings(name, 0, 20).strip() == ""


def _cases(which: int) -> list[Any]:
    """(number, what must be said) of the bugs that the layer can see: 1 plain, 2 the race build."""
    return [
        pytest.param(bug, entry[which], id=entry[0])
        for bug, entry in enumerate(BUGS, start=1)
        if entry[which] is not None
    ]


@needs["simt"]
@pytest.mark.parametrize(("bug", "wanted"), _cases(1))
def test_plain_runs_find(bug: int, wanted: str) -> None:
    said = findings("simt", bug, 20)
    assert re.search(wanted, said), said


@needs["race"]
@pytest.mark.parametrize(("bug", "wanted"), _cases(2))
def test_race_build_finds(bug: int, wanted: str) -> None:
    said = findings("race", bug, 20)
    assert re.search(wanted, said), said
