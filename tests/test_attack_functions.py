"""Functions beside bridges against oracles of their own: some hundred random hard inputs each."""

from __future__ import annotations

import numpy as np
import pytest

import qkcore as qk

from . import attack_functions, attack_tools

DRAWS = 40


@pytest.mark.parametrize("family", attack_functions.FAMILIES, ids=lambda family: family.__name__)
def test_errors_are_within_rounding(family: attack_tools.Family) -> None:
    if family is attack_functions.gaussians:
        pytest.importorskip("mpmath", reason="the oracle of Gaussian laws needs mpmath")
    found = [one for seed in range(DRAWS) for one in attack_tools.attack(family, seed)]
    assert not [(name, share) for name, share in found if share > 1]
    assert sum(not name.startswith("refused") for name, _ in found) > DRAWS / 2


def test_a_wrong_digit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are tight enough to see an error of a thousandth."""
    entropy = qk.simplex.entropy
    monkeypatch.setattr(qk.simplex, "entropy", lambda p: entropy(p) * (1 + 1e-3))
    shares = [
        share
        for seed in range(DRAWS)
        for name, share in attack_tools.attack(attack_functions.simplex, seed)
        if name == "simplex.entropy"
    ]
    assert max(shares) > 1


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
