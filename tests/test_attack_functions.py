"""All functions except bridges against independent oracles, on random hard inputs (tests/attack_*.py)."""

from __future__ import annotations

import functools
import inspect
import pathlib
import re
import sys
from types import CodeType, FrameType

import numpy as np
import pytest

import qkcore as qk

from . import attack_campaign, attack_names, attack_tools

DRAWS = 40
# Loops over particles, and linear programmes, are slow.
FEWER = {"particles": 12, "rotations": 12, "neighbours": 15, "contractions": 20}
NEED_MPMATH = {"gaussians", "entropic_gaussians", "lines"}


@pytest.mark.parametrize("family", attack_campaign.FAMILIES, ids=lambda family: family.__name__)
def test_errors_are_within_bounds(family: attack_tools.Family) -> None:
    """Some draws of every family, which also call every name that tests/attack_names.py puts beside it."""
    name = family.__name__
    if name in NEED_MPMATH:
        pytest.importorskip("mpmath", reason=f"the oracle of {name} needs mpmath")
    draws = FEWER.get(name, DRAWS)
    wanted = codes(dict(attack_names.listed())[name])
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in wanted:
            called.add(wanted[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = [one for seed in range(draws) for one in attack_tools.attack(family, seed)]
    finally:
        sys.setprofile(before)
    assert not [(what, share) for what, share in found if share > 1]
    assert sum(not what.startswith("refused") for what, _ in found) > draws / 2
    assert called == set(wanted.values())


def codes(names: list[str]) -> dict[CodeType, str]:
    """The code of public functions, and of the methods of public classes, with the names."""
    found: dict[CodeType, str] = {}
    public = attack_names.public()
    for name in names:
        value = public[name]
        if not inspect.isclass(value):
            found[inspect.unwrap(value).__code__] = name
            continue
        for owner in (c for c in value.__mro__ if c.__module__.startswith("qkcore")):
            for member in vars(owner).values():
                member = getattr(member, "fget", None) or getattr(member, "func", None) or member
                if inspect.isfunction(member):
                    found.setdefault(member.__code__, name)
    return found


def test_every_public_name_is_attacked_or_says_why_not() -> None:
    listed = attack_names.listed()
    names = [name for _, line in listed for name in line]
    assert len(names) == len(set(names))
    assert set(names) == set(attack_names.public())
    families = [family.__name__ for family in attack_campaign.FAMILIES]
    assert len(families) == len(set(families))
    assert [key for key, _ in listed][: len(families)] == families
    here = pathlib.Path(__file__).parent
    for reason, line in listed[len(families) :]:
        if match := re.search(r"tests/(test_\w+\.py)", reason):
            text = (here / match[1]).read_text()
            assert [name for name in line if name.split(".")[-1] not in text] == []


WRONG = {
    "diffusion.diffusion_distance": "diffusion_spectra",
    "diagnostics.curvature.locking_bound": "moves",
    "gaussian.bures_rate": "gaussian_forms",
    "gaussian.l2_line": "lines",
    "isb.silverman": "choices",
    "magnetic.gauge_transform": "magnetic",
    "measure.kl_divergence": "measures",
    "observables.interaction_energy": "observables",
    "schedule.motion_bound": "moves",
    "simplex.entropy": "simplex",
    "simplex.entropy_rate": "simplex_flows",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_digit_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are tight enough to see an error of a millionth, in single precision of a thousandth."""
    if WRONG[name] in NEED_MPMATH:
        pytest.importorskip("mpmath", reason=f"the oracle of {WRONG[name]} needs mpmath")
    *path, last = name.split(".")
    module = functools.reduce(getattr, path, qk)
    right = getattr(module, last)
    off = 1e-3 if name == "simplex.entropy" else 1e-6
    monkeypatch.setattr(module, last, lambda *args, **more: right(*args, **more) * (1 - off))
    (family,) = (f for f in attack_campaign.FAMILIES if f.__name__ == WRONG[name])
    found = [one for seed in range(DRAWS) for one in attack_tools.attack(family, seed)]
    assert max(share for _, share in found) > 1


@pytest.mark.parametrize("tail", [1e-50, 1e-61, 1e-100, 1e-160, 1e-250, 1e-300])
def test_mobility_next_to_a_vertex(tail: float) -> None:
    """Two tokens: the one eigenvalue that is not 0 is 2 p (1 - p) / tau, and both norms are that."""
    J = qk.simplex.Mobility(np.array([tail, 1 - tail]), tau=0.5)
    np.testing.assert_allclose(J.operator_norm, 4 * tail, rtol=1e-14)
    np.testing.assert_allclose(J.frobenius_norm, 4 * tail, rtol=1e-14)
    np.testing.assert_allclose(J.eigenvalues(), [0.0, 4 * tail], rtol=1e-14)
    three = qk.simplex.Mobility(np.array([[tail, 1.0, tail], [0.25, 0.5, 0.25]]))
    np.testing.assert_allclose(three.operator_norm, [3 * tail, 0.375], rtol=1e-14)
    np.testing.assert_allclose(three.condition_number, [3.0, 1.5], rtol=1e-14)


def test_boltzmann_gibbs_of_tiny_products() -> None:
    """Large potentials where the weights are tiny: products underflow, their proportions do not."""
    nu = qk.measure.Measure(np.arange(3.0)[:, None], np.array([1.0, 1e-300, 3e-300]))
    weights = qk.measure.boltzmann_gibbs(np.array([1e-300, 1e25, 1e25]), nu).weights
    np.testing.assert_allclose(weights[1:], [0.25, 0.75], rtol=1e-14)


def test_rates_of_close_epsilons() -> None:
    """Two epsilons 1e-4 apart in their logarithms: the slope keeps what rounding the logarithms leaves."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        e = rng.uniform(1e-4, 2e-4) * np.array([1.0, 1.0001])
        x = 3 * e**1.7
        u, v = np.log(e.astype(np.longdouble)), np.log(x.astype(np.longdouble))
        want = (v[1] - v[0]) / (u[1] - u[0])
        bound = 2 * np.finfo(float).eps * (np.abs(v).max() + 2.7 * np.abs(u).max()) / (u[1] - u[0])
        assert abs(qk.isb.fit_rate(e, x).slope - want) <= bound
