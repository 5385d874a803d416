"""Random hard calls of the engine against an oracle in long double: reductions, products, arrays, marginals.

QKCORE_ATTACK=20000 runs the whole campaign. Every bound is a first-order rounding analysis on the data at
hand, in eps of the dtype: see tests/bounds.py.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import qkcore as qk

from .bounds import eps_of, summation, tiny_of

Array = Any
Wide = np.longdouble
CHUNKS = 8
COUNT = int(os.environ.get("QKCORE_ATTACK", "240")) // CHUNKS

# One, and around the edges of packs, panels and tiles of every instruction set.
SIZES = (1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 49, 64, 65, 97, 129, 255, 257)
LONG = (511, 513, 1023, 1025, 2049)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Scores: of all sizes, tied, far apart, at the ends of the range, with -inf."""
    kind = rng.integers(7)
    if kind <= 1:
        z = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 4)
    elif kind == 2:
        z = rng.uniform(-1e4, 1e4, (*shape[:-1], 1)) + rng.normal(size=shape)
    elif kind == 3:
        z = rng.uniform(-1e4, 1e4, (*shape[:-2], 1, shape[-1])) + rng.normal(size=shape)
    elif kind == 4:
        z = np.full(shape, rng.choice([0.0, 1e4, -1e4, 1e-30]))
    elif kind == 5:
        z = rng.choice([-3e38, -1e30, -1.0, 0.0, 1.0, 1e30, 3e38], shape)
    else:
        z = rng.normal(size=shape)
        z.flat[rng.integers(z.size)] = 1e3
    z = z.astype(dtype)
    if rng.random() < 0.3:
        z[rng.random(shape) < rng.choice([0.02, 0.5, 0.98])] = -np.inf
    return z


def layout(rng: np.random.Generator, z: Array) -> Array:
    """The same numbers in another order of memory, or a view with other strides."""
    kind = rng.integers(6)
    if kind == 0:
        return np.ascontiguousarray(z.swapaxes(-1, -2)).swapaxes(-1, -2)
    if kind == 1:
        return np.ascontiguousarray(z[..., ::-1, ::-1])[..., ::-1, ::-1]
    if kind == 2:
        wide = np.zeros((*z.shape[:-2], 2 * z.shape[-2], 3 * z.shape[-1]), z.dtype)
        wide[..., ::2, ::3] = z
        return wide[..., ::2, ::3]
    if kind == 3:  # every row, or every column, is the same memory
        return np.broadcast_to(z[..., :1, :] if rng.random() < 0.5 else z[..., :, :1], z.shape)
    return z


def draw(seed: int) -> tuple[qk.Scores, Array]:
    """Scores, and the same as a long double array."""
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.float32, np.float64])
    n, m = (int(rng.choice(SIZES)) for _ in range(2))
    if rng.random() < 0.3:
        m = n
    # Many are combined with few on the other side, because products in long double are slow.
    if rng.random() < 0.1:
        few, many = int(rng.choice(SIZES[:8])), int(rng.choice(LONG))
        n, m = (few, many) if rng.random() < 0.5 else (many, few)
    batch: tuple[int, ...] = ()
    if n * m < 4000 and rng.random() < 0.3:
        batch = tuple(int(k) for k in rng.integers(1, 4, int(rng.integers(1, 3))))
    kind = rng.integers(4)
    if kind <= 1:
        own = tuple(1 if rng.random() < 0.3 else k for k in batch)
        s = qk.scores.dense(layout(rng, values(rng, (*own, n, m), dtype)))
        if batch and own != batch:  # the axes of length 1 broadcast against those of another term
            s = s + qk.scores.dense(np.zeros((*batch, n, m), dtype))
    else:
        d = int(rng.choice([1, 2, 3, 4, 5, 17, 33]))
        X, Y = rng.normal(size=(*batch, n, d)), rng.normal(size=(*batch, m, d))
        if m == n:
            Y = X + 1e-3 * rng.normal(size=X.shape)
        beta = float(10.0 ** rng.uniform(-2, 4))
        make = qk.scores.distance if kind == 2 else qk.scores.dot
        s = make(layout(rng, X.astype(dtype)), layout(rng, Y.astype(dtype)), beta=beta)
    if rng.random() < 0.3 and kind != 0:
        s = s.shift(
            rows=(10.0 ** rng.uniform(-1, 4) * rng.normal(size=n)).astype(dtype),
            columns=(10.0 ** rng.uniform(-1, 4) * rng.normal(size=m)).astype(dtype),
        )
    mask = rng.integers(7)
    if mask == 0:
        s = s.causal(int(rng.integers(-3, 4)))
    elif mask == 1:
        s = s.window(int(rng.integers(0, 5)), int(rng.integers(0, 5)))
    elif mask == 2:
        s = s.masked(rng.random((n, m)) < rng.choice([0.05, 0.5, 0.95]))
    elif mask == 3:
        s = s.key_padding(rng.random(m) < 0.5)
    elif mask == 4 and not batch:
        cuts = [np.sort(np.r_[0, rng.integers(0, k + 1, 2), k]).astype(np.int64) for k in (n, m)]
        s = s.ragged(*cuts)
    return s, s.to_numpy().astype(Wide)


def softmax(S: Array) -> tuple[Array, Array, Array]:
    """Weights, log-sum-exp and s - max of each row; rows of -inf have weights 0."""
    top = S.max(-1, keepdims=True)
    base = np.where(np.isneginf(top), 0, top)
    x = S - base
    e = np.exp(x)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (base + np.log(total))[..., 0]
    return e / np.where(total == 0, 1, total), lse, np.where(np.isneginf(x), 0, x)


def slack(P: Array, dtype: Any, more: Any = 0.0) -> Array:
    with np.errstate(divide="ignore"):
        size = np.where(P > 0, np.abs(np.log(P)), 0)
    return P * eps_of(dtype) * (8 + size + more) + tiny_of(dtype)


def check(name: str, got: Array, want: Array, allowed: Array, found: list[str]) -> None:
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(Wide) - want)
    bad = ~((off <= allowed) | (got == want))
    if bad.any():
        with np.errstate(invalid="ignore", divide="ignore"):
            worst = np.nanmax(np.where(bad, off / allowed, 0))
        found.append(
            f"{name}: {int(bad.sum())} of {bad.size} off, by {float(worst):.3g} of the bound"
        )


def attack(seed: int) -> list[str]:
    """What is wrong with the calls on one draw."""
    s, S = draw(seed)
    rng = np.random.default_rng([seed, 1])
    found: list[str] = []
    dtype, (n, m) = s.dtype.type, s.shape[-2:]
    eps = eps_of(dtype)
    threads = int(rng.choice([1, 2, 3]))
    P, lse, x = softmax(S)
    Q, lse_columns, _ = softmax(S.swapaxes(-1, -2))
    for axis, want, count in ((1, lse, m), (0, lse_columns, n)):
        allowed = eps * (np.abs(np.where(np.isneginf(want), 0, want)) + 8 + summation(count))
        check(f"logsumexp({axis})", s.logsumexp(axis, n_threads=threads), want, allowed, found)
    A = qk.softmax(s)
    lead = S.shape[:-2]
    for name, op, W, count in (
        ("A", A, P, m),
        ("A.T", A.T, P.swapaxes(-1, -2), n),
        ("columns", qk.softmax(s, axis=0), Q.swapaxes(-1, -2), m),
    ):
        check(f"{name}.to_numpy", op.to_numpy(n_threads=threads), W, slack(W, dtype), found)
        k = int(rng.choice([1, 2, 4, 5, 9] if n * m < 9000 else [1, 5]))
        V = rng.normal(size=(*lead, W.shape[-1], k)).astype(dtype)
        size = np.abs(V).astype(Wide)
        allowed = slack(W, dtype) @ size + eps * summation(count) * (W @ size)
        check(f"{name} @ V", op.apply(V, n_threads=threads), W @ V.astype(Wide), allowed, found)
    # Moments: a weight of exponent x is off by (8 + |x|) eps.
    moment = (P * (1 + np.abs(x)) * (8 + np.abs(x))).sum(-1)
    live = np.where(np.isneginf(S), 0, S)
    expected = (P * live).sum(-1)
    entropy = -(P * np.log(np.where(P > 0, P, 1))).sum(-1)
    rounding = eps * (moment + summation(m) * (P * np.abs(x)).sum(-1))
    check(
        "expected_score",
        A.expected_score(n_threads=threads),
        expected,
        rounding + eps * (8 + np.abs(expected)),
        found,
    )
    allowed = rounding + eps * (8 + np.log(m)) * (1 + summation(m) / 8)
    check("entropy", A.entropy(n_threads=threads), entropy, allowed, found)
    top = float(np.max(S))
    if -60 < top < 60:
        K = np.exp(S)
        rows, columns = s.marginals(n_threads=threads)
        for name, got, sums, off, count in (
            ("rows", rows, K.sum(-1), slack(K, dtype).sum(-1), m),
            ("columns", columns, K.sum(-2), slack(K, dtype).sum(-2), n),
        ):
            check(f"marginals, {name}", got, sums, off + eps * summation(count) * sums, found)
        V = rng.normal(size=(*lead, m, 3)).astype(dtype)
        size = np.abs(V).astype(Wide)
        for weight, W in (
            ("exp", K),
            ("linear", live),
            ("relu", np.maximum(live, 0)),
            ("sigmoid", np.where(np.isneginf(S), 0, 1 / (1 + np.exp(-live)))),
        ):
            got = qk.kernel(s, weight).apply(V, n_threads=threads)
            bound = (8 + summation(m)) * eps * (np.abs(W) @ size) + tiny_of(dtype) * size.sum(
                -2, keepdims=True
            )
            if weight in ("exp", "sigmoid"):
                bound = bound + slack(np.abs(W), dtype) @ size
            check(f"kernel {weight}", got, W @ V.astype(Wide), bound, found)
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_hard_calls(chunk: int) -> None:
    with np.errstate(over="ignore"):  # far ends of the range: differences of scores that are -inf
        wrong = {
            seed: found
            for seed in range(chunk * COUNT, (chunk + 1) * COUNT)
            if (found := attack(seed))
        }
    assert not wrong


def test_the_bounds_see_one_lost_digit() -> None:
    """A weight that is off by 100 eps fails: the loss of a normaliser's digits would not pass."""
    rng = np.random.default_rng(0)
    P = softmax(rng.normal(size=(9, 40)).astype(Wide))[0]
    found: list[str] = []
    check("same", P.astype(np.float32), P, slack(P, np.float32), found)
    assert not found
    check(
        "off",
        (P * (1 + 100 * eps_of(np.float32))).astype(np.float32),
        P,
        slack(P, np.float32),
        found,
    )
    assert found
