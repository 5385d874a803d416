"""Common parts of the attacks on functions: random hard numbers, errors relative to bounds, campaigns.

A family is a generator: it draws one problem and yields, for every function that it calls, a name and the
error relative to its bound. A bound is the worst case of rounding to first order: the dtype's eps, times the
number of roundings that a term goes through, times the size of the terms that are added. No bound was fitted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import qkcore as qk

Long = np.longdouble
Rng = np.random.Generator
# The name of a function, and its error divided by its bound.
Found = tuple[str, float]

SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)


def worst(error: Any, bound: Any) -> float:
    """The largest error as a share of its bound; what is not finite is as wrong as can be."""
    error, bound = np.broadcast_arrays(np.asarray(error, Long), np.asarray(bound, Long))
    if not np.isfinite(error).all():
        return float("inf")
    return float(np.max(np.where(error > 0, error / np.maximum(bound, Long(5e-324)), 0), initial=0))


def dtype_of(rng: Rng) -> np.dtype[Any]:
    return np.dtype(("float32", "float64")[rng.integers(2)])


def size(rng: Rng, largest: int = 65) -> int:
    return int(rng.choice([n for n in SIZES if n <= largest]))


def laid_out(rng: Rng, a: Any) -> Any:
    """The same array with other strides: as it is, every other entry, backwards, or transposed in memory."""
    kind = rng.integers(4)
    if kind == 1:
        big = np.full([2 * n + 1 for n in a.shape], np.nan, a.dtype)
        view = big[tuple(slice(1, None, 2) for _ in a.shape)]
        view[...] = a
        return view
    if kind == 2:
        flip = tuple(slice(None, None, -1) for _ in a.shape)
        return np.ascontiguousarray(a[flip])[flip]
    return np.asfortranarray(a) if kind == 3 else a


def numbers(rng: Rng, shape: tuple[int, ...], dtype: Any, scale: float) -> Any:
    """Normal, with ties, with repeated rows, or spread over many orders of magnitude below the scale."""
    kind = rng.integers(4)
    x = rng.normal(size=shape)
    if kind == 1:
        x = np.round(x)
    if kind == 2:
        x = x[rng.integers(0, shape[0], shape[0])]
    if kind == 3:
        x = np.sign(x) * 10.0 ** rng.uniform(-20, 0, shape)
    return laid_out(rng, (x * scale).astype(dtype))


def scale_of(rng: Rng, dtype: Any, power: int = 1) -> float:
    """1e-30 to 1e30, as far as its power does not leave the range of the dtype."""
    reach = min(30.0, (30.0 if dtype == np.float32 else 280.0) / power / 1.2)
    return float(10.0 ** rng.uniform(-reach, reach))


def law(rng: Rng, n: int, dtype: Any) -> Any:
    """Probabilities: uniform, random, with zeros, or with tails down to subnormal numbers."""
    kind = rng.integers(4)
    p = np.ones(n) if kind == 0 else rng.random(n) + 1e-3
    if kind == 2:
        p[rng.random(n) < 0.4] = 0
    if kind == 3:
        p = 10.0 ** rng.uniform(-44 if dtype == np.float32 else -318, 0, n)
    if not p.sum() > 0:
        p[0] = 1
    p[int(rng.integers(n))] += 1e-3
    return laid_out(rng, (p / p.sum()).astype(dtype))


def logs(rng: Rng, n: int, m: int, dtype: Any, scale: float, holes: float) -> Any:
    z = np.array(numbers(rng, (n, m), dtype, scale))
    hidden = rng.random((n, m)) < holes
    hidden[np.arange(n), rng.integers(0, m, n)] = False
    z[hidden] = -np.inf
    return z


def softmax(z: Any) -> tuple[Any, Any]:
    """Rows of probabilities in extended precision, and how far their exponents are from the largest."""
    z = z.astype(Long)
    below = z.max(axis=1, keepdims=True) - z
    e = np.exp(-below)
    return e / e.sum(axis=1, keepdims=True), np.where(np.isfinite(below), below, 0)


def programme(cost: Any, a: Any, b: Any) -> float | None:
    """The least cost of a coupling, by a linear programme; None where HiGHS finds none.

    HiGHS leaves constraints and optimality by 1e-7, absolute: costs are scaled to at most 1 for it.
    """
    from scipy.optimize import linprog

    top = float(cost.max())
    if top == 0:
        return 0.0
    rows = np.kron(np.eye(len(a)), np.ones(len(b)))
    columns = np.kron(np.ones(len(a)), np.eye(len(b)))
    found = linprog(
        (cost / top).astype(float).ravel(),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.r_[a, b],
        method="highs-ds",
    )
    return float(found.fun) * top if found.success else None


Family = Callable[[Rng], Iterator[Found]]


def attack(family: Family, seed: int) -> list[Found]:
    """What one draw finds; an exception that is not a refusal to overflow counts as wrong."""
    found: list[Found] = []
    name = family.__name__
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", qk.ConvergenceWarning)
        try:
            found.extend(family(np.random.default_rng([seed, *name.encode()])))
        except OverflowError:
            found.append(("refused: overflow", 0.0))
        except (ArithmeticError, ValueError, RuntimeError, AssertionError, UserWarning) as error:
            found.append((f"{name}: {type(error).__name__}: {error}", float("inf")))
    return found
