"""The vectorised exp and log: error in ulp against extended precision, and special values."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from qkcore._native import cpu

from .generators import DTYPES
from .reference import Array

# Extended precision has 11 bits more than float64, so its error is below 0.001 ulp. If the platform lacks it,
# mpmath computes a sample.
EXTENDED = np.finfo(np.longdouble).nmant >= 63
BITS = {"float32": np.uint32, "float64": np.uint64}


def exact(function: str, x: Array) -> Array:
    """The true value, in a precision with room to spare over that of x."""
    if x.dtype == np.float32:
        return np.asarray(getattr(np, function)(x.astype(np.float64)))
    if EXTENDED:
        return np.asarray(getattr(np, function)(x.astype(np.longdouble)))
    return mp_exact(function, x).astype(np.longdouble)


def mp_exact(function: str, x: Array) -> Array:
    with mpmath.workprec(200):
        values = [getattr(mpmath, function)(mpmath.mpf(float(v))) for v in x]
    return np.array(values, dtype=object)


def ulp_error(got: Array, want: Array) -> Array:
    """|got - want| in units of the last place of the correctly rounded result."""
    dtype = got.dtype
    unit = np.spacing(np.abs(want).astype(dtype)).astype(want.dtype)
    return np.asarray(np.abs(got.astype(want.dtype) - want) / unit, dtype=np.float64)


def log_max(dtype: str) -> float:
    return float(np.log(np.finfo(dtype).max))


def log_tiny(dtype: str) -> float:
    return float(np.log(np.finfo(dtype).tiny))


def random_bits(dtype: str, n: int, seed: int = 0) -> Array:
    """Floats with random bit patterns: every exponent, both signs, infinities and NaN."""
    info = np.iinfo(BITS[dtype])
    raw = np.random.default_rng(seed).integers(0, info.max, n, BITS[dtype], endpoint=True)
    return raw.view(dtype)


def exp_arguments(dtype: str) -> Array:
    """Where exp is a normal number: a dense grid, random bits, and the neighbours of k log 2."""
    lo, hi = log_tiny(dtype), log_max(dtype)
    grid = np.linspace(lo, hi, 400_001)
    near = (np.arange(np.ceil(lo / np.log(2)), hi / np.log(2)) * np.log(2)).astype(dtype)
    halves = ((np.arange(np.ceil(lo / np.log(2)), hi / np.log(2)) + 0.5) * np.log(2)).astype(dtype)
    steps = [np.nextafter(c, dtype_inf(dtype, sign)) for c in (near, halves) for sign in (-1, 1)]
    small = np.linspace(-1, 1, 100_001)
    parts = [grid, near, halves, *steps, small, random_bits(dtype, 300_000)]
    x = np.concatenate([np.asarray(p, dtype) for p in parts])
    with np.errstate(invalid="ignore"):
        return x[(x > dtype_of(dtype, lo)) & (x < dtype_of(dtype, hi))]


def dtype_inf(dtype: str, sign: int) -> Array:
    return np.array(sign * np.inf, dtype)


def dtype_of(dtype: str, value: float) -> Array:
    return np.array(value, dtype)


def log_arguments(dtype: str) -> Array:
    """Positive numbers, subnormal ones too: random bits, around 1, around powers of two."""
    info = np.finfo(dtype)
    powers = np.ldexp(np.ones(1, dtype), np.arange(info.minexp, info.maxexp)).astype(dtype)
    steps = [np.nextafter(powers, dtype_inf(dtype, sign)) for sign in (-1, 1)]
    one = 1 + np.arange(-2000, 2001) * float(info.eps)
    below = np.linspace(1, 0.999 * 2**info.nmant, 5001).round() * float(info.smallest_subnormal)
    parts = [np.linspace(0.4, 2.5, 400_001), one, powers, *steps, below]
    parts += [random_bits(dtype, 300_000)]
    x = np.concatenate([np.asarray(p, dtype) for p in parts])
    with np.errstate(invalid="ignore"):
        return x[(x > 0) & np.isfinite(x)]


def sample_if_slow(x: Array) -> Array:
    return x if EXTENDED or x.dtype == np.float32 else x[:: max(1, x.size // 20_000)]


def test_the_stated_bounds_are_plain_small_numbers() -> None:
    """A bound of many ulp would make every accuracy test below it meaningless."""
    assert type(cpu.EXP_MAX_ULP) is float
    assert 0.5 <= cpu.EXP_MAX_ULP <= 4
    assert type(cpu.LOG_MAX_ULP) is float
    assert 0.5 <= cpu.LOG_MAX_ULP <= 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_is_within_its_bound(dtype: str) -> None:
    x = sample_if_slow(exp_arguments(dtype))
    error = ulp_error(cpu.exp(x), exact("exp", x))
    worst = int(np.argmax(error))
    assert error[worst] <= cpu.EXP_MAX_ULP, f"exp({x[worst]!r}): {error[worst]:.3f} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_is_within_its_bound(dtype: str) -> None:
    x = sample_if_slow(log_arguments(dtype))
    got, want = cpu.log(x), exact("log", x)
    at_one = x == 1
    assert (got[at_one] == 0).all()  # must be exact, so that the entropy of a single outcome is 0
    error = ulp_error(got[~at_one], want[~at_one])
    worst = int(np.argmax(error))
    assert error[worst] <= cpu.LOG_MAX_ULP, f"log({x[~at_one][worst]!r}): {error[worst]:.3f} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["exp", "log"])
def test_a_sample_against_mpmath(function: str, dtype: str) -> None:
    """Independent of the platform's own exp and log, however precise they claim to be."""
    arguments: Callable[[str], Array] = exp_arguments if function == "exp" else log_arguments
    x = arguments(dtype)
    x = x[:: x.size // 2000]
    x = np.ascontiguousarray(x[x != 1] if function == "log" else x)
    want = mp_exact(function, x)
    got = getattr(cpu, function)(x)
    unit = np.spacing(np.abs(want.astype(np.float64)).astype(dtype))
    error = [
        abs(mpmath.mpf(float(g)) - w) / mpmath.mpf(float(u))
        for g, w, u in zip(got, want, unit, strict=True)
    ]
    bound = cpu.EXP_MAX_ULP if function == "exp" else cpu.LOG_MAX_ULP
    assert float(max(error)) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_of_special_values(dtype: str) -> None:
    x = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0], dtype)
    got = cpu.exp(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, np.array([0, np.inf, np.nan, 1, 1], dtype))
    assert not np.signbit(got[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_softmax_power_of_two(dtype: str) -> None:
    """Within its bound for normal results, exactly 0 from -inf, never above the smallest normal."""
    lowest = float(np.finfo(dtype).minexp)
    grid = np.linspace(lowest, 0, 400_001)
    halves = np.arange(lowest, 0) + 0.5
    near = [np.nextafter(halves.astype(dtype), dtype_inf(dtype, sign)) for sign in (-1, 1)]
    x = np.concatenate([np.asarray(p, dtype) for p in (grid, halves, *near)])
    error = ulp_error(cpu.exp2_nonpos(x), np.exp2(x.astype(np.longdouble)))
    assert error.max() <= cpu.EXP_MAX_ULP
    whole = np.arange(lowest, 1).astype(dtype)
    np.testing.assert_array_equal(cpu.exp2_nonpos(whole), np.ldexp(1.0, whole.astype(int)))
    below = np.array([lowest - 1, 2 * lowest, -np.finfo(dtype).max, -np.inf], dtype)
    got = cpu.exp2_nonpos(below)
    assert (got == 0).all()
    assert not np.signbit(got).any()
    between = cpu.exp2_nonpos(np.linspace(lowest - 1, lowest, 10_001).astype(dtype))
    assert ((between >= 0) & (between <= np.finfo(dtype).tiny)).all()
    assert np.isnan(cpu.exp2_nonpos(np.array([np.nan], dtype))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weights_of_a_softmax(dtype: str) -> None:
    """Half the argument in ulp, besides the bound of exp; 1 for the largest score, 0 from -inf."""
    x = exp_arguments(dtype)
    x = x[x <= 0]
    error = ulp_error(cpu.weight_exp(x), exact("exp", x))
    normal = exact("exp", x) >= np.finfo(dtype).tiny * (1 + 100 * np.finfo(dtype).eps)
    assert (error <= cpu.EXP_MAX_ULP + np.abs(x.astype(np.float64)) / 2)[normal].all()
    near = error[np.abs(x) < 0.02]  # the largest weights are as accurate as exp itself
    assert len(near) > 1000 and near.max() <= cpu.EXP_MAX_ULP
    got = cpu.weight_exp(np.array([0, -0.0, -np.inf, np.finfo(dtype).min, np.nan], dtype))
    np.testing.assert_array_equal(got, np.array([1, 1, 0, 0, np.nan], dtype))
    assert not np.signbit(got[:4]).any()
    below = cpu.weight_exp(np.linspace(1.01, 1.0, 10_001).astype(dtype) * x.min())
    assert ((below >= 0) & (below <= 1.01 * np.finfo(dtype).tiny)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_overflows_to_infinity_only_where_it_must(dtype: str) -> None:
    top = np.nextafter(dtype_of(dtype, log_max(dtype)), dtype_of(dtype, 0))
    assert np.isfinite(cpu.exp(np.array([top], dtype))).all()
    above = np.array([log_max(dtype) * 1.0001, 1e3, 1e30, np.finfo(dtype).max], dtype)
    assert (cpu.exp(above) == np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_flushes_subnormal_results_to_zero(dtype: str) -> None:
    """Below the smallest normal number the answer is 0, as stated beside the function."""
    below = np.concatenate(
        [
            np.linspace(2 * log_tiny(dtype), log_tiny(dtype) * 1.0001, 10_001),
            [-1e4, -1e30, float(np.finfo(dtype).min)],
        ]
    ).astype(dtype)
    got = cpu.exp(below)
    assert (got == 0).all()
    assert not np.signbit(got).any()
    # One ulp above the limit nothing is flushed.
    inside = np.linspace(log_tiny(dtype) * 0.9999, -1, 1001).astype(dtype)
    assert (cpu.exp(inside) > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_is_monotone_to_the_last_bits(dtype: str) -> None:
    """Neighbours never swap by more than the error bound allows."""
    x = np.sort(exp_arguments(dtype))
    y = cpu.exp(x)
    with np.errstate(over="ignore"):
        drop = (y[:-1] - y[1:]) / np.spacing(y[:-1])
    assert drop.max() <= 2 * cpu.EXP_MAX_ULP


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_of_special_values(dtype: str) -> None:
    x = np.array([0.0, -0.0, -1.0, -np.inf, np.inf, np.nan, 1.0], dtype)
    want = np.array([-np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, 0], dtype)
    got = cpu.log(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["exp", "log"])
def test_the_tail_of_the_array_equals_its_middle(function: str, dtype: str) -> None:
    """Every length, so that the scalar remainder and the vector body give the same bits."""
    x = np.linspace(0.1, 3, 70).astype(dtype)
    whole = getattr(cpu, function)(x)
    for n in range(71):
        got = getattr(cpu, function)(x[:n].copy())
        assert got.tobytes() == whole[:n].tobytes(), n


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_inverts_exp(dtype: str) -> None:
    x = np.linspace(1, 80, 10_001).astype(dtype)
    eps = float(np.finfo(dtype).eps)
    error = np.abs(cpu.log(cpu.exp(x)).astype(np.float64) - x)
    assert (error <= eps * (cpu.EXP_MAX_ULP + cpu.LOG_MAX_ULP * np.abs(x))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sine_and_cosine_are_within_their_bound(dtype: str) -> None:
    """The phases of magnetic operators: absolute error in eps, over every size of argument."""
    rng = np.random.default_rng(0)
    quarter = np.pi / 2 * np.arange(-4000, 4001)
    sizes = [np.linspace(-10, 10, 200_001), quarter, np.nextafter(quarter, np.inf)]
    sizes += [10.0**k * rng.uniform(-1, 1, 20_000) for k in range(-3, 9)]
    sizes += [np.array([0.0, -0.0, 5999.9, 6000.1, 1e6, 1.0001e6])]
    x = np.concatenate(sizes).astype(dtype)
    sine, cosine = cpu.sincos(x)
    assert sine.dtype == cosine.dtype == x.dtype
    eps = float(np.finfo(dtype).eps)
    high = x.astype(np.longdouble)
    assert float(np.abs(sine - np.sin(high)).max()) <= cpu.SINCOS_MAX_ERROR * eps
    assert float(np.abs(cosine - np.cos(high)).max()) <= cpu.SINCOS_MAX_ERROR * eps
    assert cpu.SINCOS_MAX_ERROR <= 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_sine_and_cosine_of_special_values(dtype: str) -> None:
    huge = np.array([1e20, -3e30], dtype)
    sine, cosine = cpu.sincos(huge)
    np.testing.assert_allclose(sine, np.sin(huge), atol=2e-7 if dtype == "float32" else 1e-15)
    np.testing.assert_allclose(cosine, np.cos(huge), atol=2e-7 if dtype == "float32" else 1e-15)
    for part in cpu.sincos(np.array([np.nan], dtype)):
        assert np.isnan(part).all()
    for part in cpu.sincos(np.array([np.inf, -np.inf, 1.0], dtype)):
        assert np.isnan(part[:2]).all()
        assert np.isfinite(part[2])
    sine, cosine = cpu.sincos(np.zeros(1, dtype))
    assert (sine == 0).all()
    assert (cosine == 1).all()
