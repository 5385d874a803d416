"""Which marginals a masked kernel can carry, by enumerating every set of rows in exact arithmetic (DAC-7)."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import qkcore as qk

from .generators import DTYPES

dense = qk.scores.dense


def judge(keep: Any, mu: Any, nu: Any) -> tuple[str, Any, float]:
    """The verdict, the usable entries, and the share of the mass that finds no place.

    From the masses of all sets of rows and of the columns they see: rows that fill those columns leave no
    room there for other rows.
    """
    live = keep & (mu > 0)[:, None] & (nu > 0)
    n, m = live.shape
    rows, cols = [Fraction(float(x)) for x in mu], [Fraction(float(x)) for x in nu]
    assert sum(rows) == sum(cols)
    usable, missing = live.copy(), Fraction(0)
    for size in range(n + 1):
        for chosen in combinations(range(n), size):
            inside = np.isin(np.arange(n), chosen)
            seen = live[inside].any(axis=0) if size else np.zeros(m, bool)
            room = sum(cols[j] for j in np.flatnonzero(seen)) - sum(rows[i] for i in chosen)
            missing = max(missing, -Fraction(room))
            if room == 0:
                usable &= ~(~inside[:, None] & seen)
    if missing > 0:
        return "infeasible", None, float(missing / sum(rows))
    return ("feasible" if (usable == live).all() else "no total support"), usable, 0.0


def whole_weights(rng: np.random.Generator, dtype: str, bits: int) -> tuple[Any, Any, Any]:
    """A mask and marginals of two blocks, one in units of 2**-bits; all sums of weights are exact.

    The marginals are those of a plan on part of the mask, changed a little now and then. The mask may have
    entries between the blocks, and the plan too where the dtype can hold the sums.
    """
    shapes = rng.integers(1, 4, (2, 2))
    n, m = shapes.sum(axis=0)
    keep = rng.random((n, m)) < 0.5
    unit = np.full((n, m), 2.0**-bits)
    unit[: shapes[0, 0], : shapes[0, 1]] = 1.0
    across = np.ones((n, m), bool)
    across[: shapes[0, 0], : shapes[0, 1]] = across[shapes[0, 0] :, shapes[0, 1] :] = False
    carries = keep & (rng.random((n, m)) < 0.6) & ~(across & (bits > 16))
    plan = np.where(carries, rng.integers(1, 5, (n, m)) * unit, 0.0)
    if not plan.any():
        keep[0, 0], plan[0, 0] = True, 1.0
    mu, nu = plan.sum(1), plan.sum(0)
    if rng.random() < 0.8:  # from one column to another of the same block
        block = slice(0, shapes[0, 1]) if rng.random() < 0.5 else slice(shapes[0, 1], m)
        a, b = rng.integers(block.start, block.stop, 2)
        step = 1.0 if block.start == 0 else 2.0**-bits
        if nu[a] >= step:
            nu[a] -= step
            nu[b] += step
    return keep, mu.astype(dtype), nu.astype(dtype)


def status(s: Any, mu: Any, nu: Any) -> str:
    found = qk.bridge(s, mu, nu, max_iter=300, on_fail="ignore").status
    return found if found in ("infeasible", "no total support") else "feasible"


def masked(keep: Any, dtype: Any) -> Any:
    return dense(np.zeros(keep.shape, dtype)).masked(keep)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [0, 4, 16, 100, 900])
def test_masks_against_all_sets_of_rows(dtype: str, bits: int) -> None:
    """Weights count on their own scale: a set of mass 1e-270 is judged like one of mass 1."""
    bits = min(bits, 100) if dtype == "float32" else bits
    rng = np.random.default_rng((bits, len(dtype)))
    seen = set()
    for _ in range(120):
        keep, mu, nu = whole_weights(rng, dtype, bits)
        want, usable, missing = judge(keep, mu, nu)
        seen.add(want)
        s = masked(keep, dtype)
        if want == "infeasible":
            with pytest.raises(ValueError, match="no coupling"):
                qk.usable_entries(s, mu, nu)
        else:
            np.testing.assert_array_equal(qk.usable_entries(s, mu, nu), usable)
        # Errors of the marginals below the tolerance count as none.
        assert status(s, mu, nu) == want or 0 < missing < 1e-5
    assert seen == {"infeasible", "feasible", "no total support"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [0, 4, 16, 100])
def test_causal_masks_against_all_sets_of_rows(dtype: str, bits: int) -> None:
    """Bands are judged from sums of leading rows alone, with the same verdict."""
    rng = np.random.default_rng((bits, len(dtype), 1))
    seen = set()
    for _ in range(150):
        _, mu, nu = whole_weights(rng, dtype, bits)
        n, m = len(mu), len(nu)
        offset = int(rng.integers(-1, m))
        keep = np.arange(m) <= np.arange(n)[:, None] + offset
        want, _, missing = judge(keep, mu, nu)
        seen.add(want)
        s = qk.scores.dot(np.zeros((n, 1), dtype), np.zeros((m, 1), dtype)).causal(offset)
        assert status(s, mu, nu) == want or 0 < missing < 1e-5
        down = qk.scores.dot(np.zeros((m, 1), dtype), np.zeros((n, 1), dtype)).window(offset, None)
        assert status(down, nu, mu) == want or 0 < missing < 1e-5
    assert seen == {"infeasible", "feasible", "no total support"}


def test_small_weights_do_not_hide_an_entry() -> None:
    """Every coupling uses entry (0, 1), for 1e-10 of the mass."""
    a = 1e-10
    mu, nu = np.array([0.999, 0.001]), np.array([0.999 - a, 0.001 + a])
    s = masked(np.array([[True, True], [False, True]]), "float64")
    assert qk.usable_entries(s, mu, nu).tolist() == [[True, True], [False, True]]
    b = qk.bridge(s, mu, nu, tol=1e-14)
    assert b.converged
    assert b.plan()[0, 1] == pytest.approx(a, rel=1e-3)


def test_weights_near_the_smallest_double() -> None:
    """1e-300 beside 1: whether the small row fits into the small column decides."""
    s = masked(np.array([[True, True], [False, True]]), "float64")
    mu = np.array([1.0, 1e-300])
    assert qk.usable_entries(s, mu, np.array([1.0, 2e-300])).tolist() == [
        [True, True],
        [False, True],
    ]
    assert qk.usable_entries(s, mu, mu).tolist() == [[True, False], [False, True]]
    with pytest.raises(ValueError, match="no coupling"):
        qk.usable_entries(s, mu, np.array([1.0, 5e-301]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_are_equal_but_for_rounding(dtype: str) -> None:
    """Blocks of 3 rows of 1/15 and a column of 1/5 fit, and exactly so."""
    mu, nu = np.full(15, 1 / 15, dtype), np.full(5, 1 / 5, dtype)
    blocks = np.kron(np.eye(5, dtype=bool), np.ones((3, 1), bool))
    assert status(masked(blocks, dtype), mu, nu) == "feasible"
    below = masked(np.tri(5, dtype=bool).repeat(3, axis=0), dtype)
    assert status(below, mu, nu) == "no total support"
    np.testing.assert_array_equal(qk.usable_entries(below, mu, nu), blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [100, 700])
def test_causal_masks_of_many_rounded_weights(n: int, dtype: str) -> None:
    """Only the diagonal carries mass, whatever rounding does to the sums of leading rows."""
    rng = np.random.default_rng(n)
    w = rng.random(n)
    mu, nu = (w / w.sum()).astype(dtype), (w / w.sum() * (1 + 1e-15)).astype(dtype)
    nu = (nu.astype("float64") / nu.sum(dtype="float64") * mu.sum(dtype="float64")).astype(dtype)
    s = dense(np.zeros((n, n), dtype))
    for one in (s.causal(), s.masked(np.tri(n, dtype=bool))):
        np.testing.assert_array_equal(qk.usable_entries(one, mu, nu), np.eye(n, dtype=bool))


@pytest.mark.parametrize("mass", [1e-12, 1.0, 1e12])
def test_verdicts_do_not_depend_on_the_unit_of_mass(mass: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        keep, mu, nu = whole_weights(rng, "float64", 4)
        want, _, _ = judge(keep, mu, nu)
        assert status(masked(keep, "float64"), mass * mu, mass * nu) == want
