"""Every instruction set that this CPU can run gives right answers; each is tested in a separate process."""

from __future__ import annotations

import pytest

import qkcore as qk

from .processes import run_ok, run_python

AVAILABLE: list[str] = list(qk.config()["isa_available"])
KNOWN = ("v2", "v3", "v4", "native", "baseline", "wide")


def test_the_level_in_use_is_one_of_those_available() -> None:
    assert AVAILABLE
    assert set(AVAILABLE) <= set(KNOWN)
    assert qk.config()["isa"] in AVAILABLE


@pytest.mark.slow
@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_level_is_accurate(isa: str) -> None:
    assert run_ok("from tests import battery; battery.main()", QKCORE_ISA=isa).split() == [isa]


@pytest.mark.parametrize("isa", [isa for isa in KNOWN if isa not in AVAILABLE])
def test_a_level_that_cannot_run_says_what_can(isa: str) -> None:
    """An ImportError, not an illegal instruction."""
    done = run_python("import qkcore", QKCORE_ISA=isa)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "QKCORE_ISA" in done.stderr
    assert isa in done.stderr
    assert all(level in done.stderr for level in AVAILABLE)


@pytest.mark.parametrize("value", ["v9", "avx2", "V3", "-1"])
def test_an_unknown_level_says_what_is_known(value: str) -> None:
    done = run_python("import qkcore", QKCORE_ISA=value)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "QKCORE_ISA" in last
    assert value in last
    assert all(level in last for level in AVAILABLE)


def test_the_level_can_be_forced() -> None:
    for isa in AVAILABLE:
        assert (
            run_ok("import qkcore as qk; print(qk.config()['isa'])", QKCORE_ISA=isa).strip() == isa
        )


def test_without_a_wish_the_best_level_is_used() -> None:
    """Levels are listed in order of what they can do: the choice is one of the ends."""
    chosen = run_ok("import qkcore as qk; print(qk.config()['isa'])").strip()
    assert chosen in (AVAILABLE[0], AVAILABLE[-1])
    order = [level for level in ("v4", "v3", "v2") if level in AVAILABLE]
    if order and "native" not in AVAILABLE:
        assert chosen == order[0]
