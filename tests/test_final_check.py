"""The final check of a bridge (DAC-7): its verdict on potentials holds in extended precision.

For dense scores it uses a separate loop (cpp/src/bridge/coupling_sums.cpp), which is faster and less exact
than the sums of ``s.marginals``. The check takes the possible error of this loop into account.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import qkcore as qk
from qkcore._bridge_check import Conditions, residual, rounding_slack, wide_marginals
from qkcore._native import cpu

Long = np.longdouble
EPS = float(np.finfo(np.float64).eps)
SHAPES = [(1, 1), (3, 5), (4, 16), (5, 17), (63, 15), (64, 512), (65, 1037), (130, 33), (300, 1)]
needs_more_than_double = pytest.mark.skipif(
    np.finfo(Long).eps >= EPS, reason="no extended precision here: nothing to compare with"
)


def problem(
    n: int, m: int, dtype: str, seed: int, scale: float = 3.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = (scale * rng.standard_normal((n, m))).astype(dtype)
    f, g = scale * rng.standard_normal(n), scale * rng.standard_normal(m)
    return z, f.astype(dtype), g.astype(dtype)


def exact_plan(z: np.ndarray, f: np.ndarray, g: np.ndarray, factor: float = 1.0) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.exp(Long(factor) * z.astype(Long) + f.astype(Long)[:, None] + g.astype(Long))


@needs_more_than_double
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_a_matrix(shape: tuple[int, int], dtype: str) -> None:
    """Row and column sums at every edge of blocks and packs, in both orders, with masks, on any threads."""
    z, f, g = problem(*shape, dtype, 1)
    if min(shape) > 2:
        z[0, 1], f[-1], g[2] = -np.inf, -np.inf, -np.inf
    f, g = f.astype(float), g.astype(float)
    for factor, order, threads in itertools.product((1.0, 0.3), "CF", (1, 3)):
        plan = exact_plan(z, f, g, factor)
        size = max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in (z, f, g))
        got = cpu.coupling_sums(np.asarray(z, order=order), factor, f, g, threads)
        for there, axis in zip(got, (1, 0), strict=True):
            want = plan.sum(axis).astype(float)
            np.testing.assert_allclose(there, want, rtol=EPS * (6 * size + 40), atol=0)


def test_one_matrix_takes_the_short_way() -> None:
    """The sums are those of the general kernel but for rounding, whichever way the matrix lies in memory."""
    z, f, g = problem(70, 50, "float64", 2)
    strided = np.zeros((140, 100))
    strided[::2, ::2] = z
    general = qk.scores.dense(z).marginals(f, g)
    for matrix in (z, np.asfortranarray(z), z[::-1][::-1], strided[::2, ::2]):
        for got, want in zip(
            wide_marginals(qk.scores.dense(matrix), f, g, 1), general, strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-13)
    masked = qk.scores.dense(z).masked(z < 2)
    for got, want in zip(wide_marginals(masked, f, g, 1), masked.marginals(f, g), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)


def test_sums_do_not_drift() -> None:
    """A hundred thousand like terms, down a column and along a row."""
    n = 100_000
    zeros = np.zeros(n)
    z = np.full((n, 1), np.log(0.1))
    exact = n * math.exp(math.log(0.1))
    _, columns = cpu.coupling_sums(np.repeat(z, 2, axis=1), 1.0, zeros, zeros[:2], 1)
    rows, _ = cpu.coupling_sums(np.repeat(z.T, 2, axis=0), 1.0, zeros[:2], zeros, 1)
    for got in (*columns, *rows):
        assert abs(got / exact - 1) < 40 * EPS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entries_out_of_range(dtype: str) -> None:
    """An entry that overflows is said, whichever part of its row it is in; one that underflows is 0."""
    for j in (0, 15, 16, 19):
        z = np.zeros((5, 20), dtype)
        z[3, j] = 1000
        with pytest.raises(OverflowError):
            cpu.coupling_sums(z, 1.0, np.zeros(5), np.zeros(20), 1)
        z[3, j] = -1000
        rows, columns = cpu.coupling_sums(z, 1.0, np.zeros(5), np.zeros(20), 1)
        assert rows[3] == pytest.approx(19, rel=4 * EPS)
        assert columns[j] == pytest.approx(4, rel=4 * EPS)
    with pytest.raises(OverflowError):  # the sum, of entries that are in range
        cpu.coupling_sums(np.full((1, 50), 708, dtype), 1.0, np.zeros(1), np.full(50, 0.9), 1)
    with pytest.raises(ValueError, match="an entry for every row"):
        cpu.coupling_sums(np.zeros((2, 3), dtype), 1.0, np.zeros(3), np.zeros(3), 1)
    with pytest.raises(ValueError, match="contiguous"):
        cpu.coupling_sums(np.zeros((4, 6), dtype)[::2, ::2], 1.0, np.zeros(2), np.zeros(3), 1)


def error_in_long(
    z: np.ndarray, f: np.ndarray, g: np.ndarray, mu: np.ndarray, nu: np.ndarray
) -> float:
    plan = exact_plan(z, f, g)
    return max(
        float(np.abs(plan.sum(1) - mu.astype(Long)).sum() / mu.astype(Long).sum()),
        float(np.abs(plan.sum(0) - nu.astype(Long)).sum() / nu.astype(Long).sum()),
    )


def near_tolerance(
    dtype: str, seed: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """A problem, potentials that nearly solve it, and how far these are from solving it."""
    n, m = 37, 53
    z, f, g = problem(n, m, dtype, seed, scale)
    plan = exact_plan(z, f, g)
    rng = np.random.default_rng(seed + 1)
    off = 10.0 ** rng.uniform(*((-6, -4) if dtype == "float32" else (-13, -9)))
    mu = (plan.sum(1) * (1 + off * rng.uniform(-1, 1, n))).astype(dtype)
    nu = (plan.sum(0) * (1 + off * rng.uniform(-1, 1, m))).astype(dtype)
    return z, f, g, mu, nu, error_in_long(z, f, g, mu, nu)


@needs_more_than_double
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0])
def test_what_is_met_is_met_in_extended_precision(dtype: str, scale: float) -> None:
    """Tolerances within a few units of rounding of the true error, above and below: met says the truth.

    Scores up to 10^2 make potentials and scores cancel, so that double precision alone cannot say it.
    """
    scale = min(scale, 10.0) if dtype == "float32" else scale
    for seed in range(12):
        z, f, g, mu, nu, truth = near_tolerance(dtype, seed, scale)
        s = qk.scores.dense(z)
        slack = rounding_slack(s, f.astype(float), g.astype(float))
        sides = Conditions(mu, math.inf), Conditions(nu, math.inf)
        for part in (-3.0, -1.0, -0.3, -1e-3, 1e-3, 0.3, 1.0, 3.0):
            tol = truth + part * slack
            found = residual(s, *sides, f, g, tol, 1)
            assert abs(found.error - truth) <= slack
            assert found.met == (truth <= tol), (seed, part)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000, 40_000])
def test_deviations(n: int) -> None:
    """Sums and the largest relative error; entries of which nothing is wanted have none."""
    rng = np.random.default_rng(n)
    wanted = rng.random(n)
    got = wanted * (1 + 0.1 * rng.standard_normal(n))
    wanted[::3] = 0.0
    off = np.abs(got - wanted)
    live = wanted > 0
    expected = (
        math.fsum(got),
        math.fsum(wanted),
        math.fsum(off),
        float((off[live] / wanted[live]).max(initial=0.0)),
    )
    assert cpu.deviation(got, wanted) == pytest.approx(expected, rel=1e-14)
    got[-1] = np.nan
    assert math.isnan(cpu.deviation(got, wanted)[2])
    got[-1] = np.inf
    assert cpu.deviation(got, wanted)[2] == math.inf
    with pytest.raises(ValueError, match="two vectors of one length"):
        cpu.deviation(got, np.zeros(n + 1))


@needs_more_than_double
def test_without_extended_precision_doubt_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rounding leaves it open and nothing decides, the conditions do not count as met."""
    monkeypatch.setattr("qkcore._bridge_check._HAS_EXTENDED", False)
    z, f, g, mu, nu, truth = near_tolerance("float64", 5, 3.0)
    s = qk.scores.dense(z)
    slack = rounding_slack(s, f, g)
    sides = Conditions(mu, math.inf), Conditions(nu, math.inf)
    assert not residual(s, *sides, f, g, truth + 0.01 * slack, 1).met
    assert residual(s, *sides, f, g, truth + 2.5 * slack, 1).met
