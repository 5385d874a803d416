"""W1 with the l1 ground metric (MTA-4): closed forms, brute force, linear programmes, certified brackets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkcore import measure
from qkcore.measure import Measure, w1, w1_bracket

from . import reference_measure as ref
from .reference import Array


def random_measure(rng: np.random.Generator, n: int, d: int) -> Measure:
    # On a coarse grid, so that points repeat within and between measures.
    X = np.round(2 * rng.normal(size=(n, d))) / 2 if rng.random() < 0.5 else rng.normal(size=(n, d))
    w = rng.random(n) * (rng.random(n) < 0.8) + 1e-3
    return Measure(X, w / w.sum())


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 10**6))
def test_against_the_linear_programme(n: int, m: int, d: int, seed: int) -> None:
    """MTA-4: every method that applies against the programme written out."""
    rng = np.random.default_rng((seed, n, m, d))
    mu, nu = random_measure(rng, n, d), random_measure(rng, m, d)
    want = ref.w1_programme(mu.points, mu.weights, nu.points, nu.weights)
    for method in ("auto", "linprog", "pot", *(("sorted",) if d == 1 else ())):
        np.testing.assert_allclose(w1(mu, nu, method=method), want, atol=1e-9, err_msg=method)
    found = w1_bracket(mu, nu)
    assert found.lower <= want + 1e-9
    assert found.upper >= want - 1e-9


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 10**6))
def test_against_all_matchings(n: int, d: int, seed: int) -> None:
    """MTA-4, section 6.1: equal weights, by trying every permutation; also in single precision."""
    rng = np.random.default_rng((seed, n, d))
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    want = ref.w1_permutations(X, Y)
    for method in ("auto", "assignment", "linprog"):
        np.testing.assert_allclose(w1(X, Y, method=method), want, atol=1e-9)
    np.testing.assert_allclose(w1(X.astype("f"), Y.astype("f")), want, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3), st.integers(0, 10**6))
def test_laws_of_a_metric(n: int, m: int, d: int, seed: int) -> None:
    """MTA-4: symmetry, triangle inequality, scaling, translation, permutation and duplication."""
    rng = np.random.default_rng((seed, n, m, d))
    mu, nu, la = (random_measure(rng, k, d) for k in (n, m, 3))
    a = w1(mu, nu)
    np.testing.assert_allclose(w1(nu, mu), a, atol=1e-12)
    assert w1(mu, mu) < 1e-15
    assert a <= w1(mu, la) + w1(la, nu) + 1e-12
    shift = rng.normal(size=d)
    f: Callable[[Array], Array] = lambda X: 3 * X + shift  # noqa: E731
    np.testing.assert_allclose(w1(mu.push_forward(f), nu.push_forward(f)), 3 * a, atol=1e-11)
    order = rng.permutation(n)
    np.testing.assert_allclose(w1(Measure(mu.points[order], mu.weights[order]), nu), a, atol=1e-12)
    twice = Measure(np.vstack([mu.points] * 2), np.tile(mu.weights / 2, 2))
    np.testing.assert_allclose(w1(twice, nu), a, atol=1e-12)
    assert w1(twice, mu) < 1e-14
    # Between the distance of the means (the projection does not expand: tau(Pi) = 1) and the cost of a
    # coupling.
    assert np.abs(mu.mean() - nu.mean()).sum() <= a + 1e-12
    product = mu.weights @ np.abs(mu.points[:, None] - nu.points[None]).sum(axis=2) @ nu.weights
    assert a <= product + 1e-12


def test_known_values() -> None:
    """MTA-4: Dirac measures, translations, and the line against quantile functions."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5))
    assert math.isclose(w1(Measure.dirac(x), Measure.dirac(y)), np.abs(x - y).sum())
    X = rng.normal(size=(30, 4))
    for method in ("auto", "pot", "linprog"):
        got = w1(X, X + np.array([0.3, -0.2, 0.1, 0.0]), method=method)
        assert math.isclose(got, 0.6, rel_tol=1e-8)
    a, b = np.sort(rng.normal(size=1000)), np.sort(rng.normal(size=1000) + 1)
    assert math.isclose(w1(a[:, None], b[:, None]), np.abs(a - b).mean(), rel_tol=1e-12)


@pytest.mark.parametrize(("n", "m", "d"), [(150, 120, 2), (200, 200, 5), (80, 100, 16)])
def test_bracket_holds_and_closes(n: int, m: int, d: int) -> None:
    """MTA-4: the exact value inside the bracket, and the bracket as narrow as asked."""
    rng = np.random.default_rng(n)
    mu = Measure(rng.normal(size=(n, d)))
    w = rng.random(m)
    nu = Measure(rng.normal(size=(m, d)) + 0.3, w / w.sum())
    exact = w1(mu, nu)
    found = w1_bracket(mu, nu, rtol=0.02)
    assert found.lower <= exact * (1 + 1e-12)
    assert found.upper >= exact * (1 - 1e-12)
    assert found.status == "converged"
    assert found.gap <= 0.02 * found.upper
    assert str(found).startswith("W1 in [")


def test_bracket_by_landmarks() -> None:
    """MTA-4: more points than the matrix may hold: looser, and still on both sides."""
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(500, 2)), rng.normal(size=(400, 2)) + np.array([2.0, 0.0])
    exact = w1(X, Y)
    found = w1_bracket(X, Y, max_points=100)
    assert found.landmarks == (100, 100)
    assert found.lower <= exact <= found.upper
    assert found.lower > 0.8 * exact
    assert found.upper < 1.5 * exact


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: w1(np.ones((2, 2)), np.ones((2, 3))), ValueError, r"nu.*2 dimensions.*3"),
    (lambda: w1(np.ones((2, 2)), np.ones((2, 2), "f")), TypeError, r"nu.*float64.*float32"),
    (lambda: w1(np.ones((0, 2)), np.ones((2, 2))), ValueError, r"mu.*at least one point"),
    (lambda: w1(np.ones(2), np.ones(2)), ValueError, r"mu.*\(n, d\)"),
    (lambda: w1(np.ones((2, 2)), np.zeros((2, 2)), method="emd"), ValueError, r"method.*linprog"),
    (lambda: w1(np.ones((2, 2)), np.zeros((2, 2)), method="sorted"), ValueError, r"sorted.*d = 2"),
    (
        lambda: w1(np.eye(2), np.vstack([np.eye(2) + 3, [[9.0, 9.0]]]), method="assignment"),
        ValueError,
        r"assignment.*2 and 3 points",
    ),
    (
        lambda: w1(np.arange(2200.0).reshape(1100, 2), -np.arange(2400.0).reshape(1200, 2) - 1,
                   method="linprog"),
        ValueError,
        r"1100 x 1200.*w1_bracket",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "pattern"), BAD)
def test_bad_input(call: Callable[[], object], error: type[Exception], pattern: str) -> None:
    """MTA-4: what cannot be compared, or is too large, is refused with a reason."""
    with pytest.raises(error, match=pattern):
        call()


def test_without_pot(monkeypatch: pytest.MonkeyPatch) -> None:
    """MTA-4: POT is optional: without it the programme is solved by SciPy, and "pot" says so."""
    monkeypatch.setattr(measure._transport, "_has_pot", lambda: False)
    mu = Measure(np.eye(3), np.array([0.2, 0.3, 0.5]))
    assert math.isclose(w1(mu, np.zeros((1, 3))), 1.0)
    with pytest.raises(ImportError, match=r"pip install POT"):
        w1(mu, np.zeros((1, 3)), method="pot")
