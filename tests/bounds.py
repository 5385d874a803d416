"""How far a correct engine may be from the reference, and the comparison itself.

Nothing here is a guess at "close enough": each bound is a first-order rounding analysis, in units
of eps = 2u of the working dtype, evaluated on the data at hand.

A score is a sum of n terms: products of coordinates, shifts, other experts. In whatever order they
are added, the rounding error is at most n u times the sum of their absolute values (`magnitude`
below), and in practice grows like sqrt(n) u, because the roundings are independent. `slack` is
(2 + sqrt(n)/2) magnitude: the 2 pays for beta, for rounding each product and for the result.
Cancellation (distance of nearby points) is thus accounted for by the magnitude, not by a loose
constant. Scores read from memory (n = 0) have no error at all.

Everything after the score follows by differentiating: an error ds in a score is a relative error
ds in exp(s), so a log-sum-exp is off by the p-weighted mean of ds, a product by sum p |v| ds, and
so on; exp, log, the running sums and the final rounding add a few eps each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import reference as ref
from .reference import Array, Weight

# exp, the rescaling of the online softmax and one division, in eps.
EXP_EPS = 5.0


def eps_of(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def tiny_of(dtype: Any) -> float:
    """The smallest normal number: exp flushes results below it to zero."""
    return float(np.finfo(dtype).tiny)


def summation(count: int) -> float:
    """Error, in eps, of a sum of `count` terms relative to the sum of their absolute values."""
    return 1.0 + 0.25 * float(np.sqrt(count))


# ---- scores, in units of eps -------------------------------------------------------------------


def _absolute(W: Weight) -> Weight:
    if W is None:
        return None
    if isinstance(W, tuple):
        return (np.abs(W[0]), np.abs(W[1]))
    return np.abs(W)


def terms(d: int, W: Weight) -> int:
    """How many products are added up in one Gram entry."""
    if W is None:
        return d
    if isinstance(W, tuple):
        return d + int(W[0].shape[1]) + int(W[1].shape[1])
    return d + int(W.shape[1])


def magnitude(kind: str, X: Array, Y: Array, W: Weight, beta: float) -> Array:
    """Sum of the absolute values of the terms of a score, entry by entry: (..., N, M)."""
    if kind == "distance" and W is not None:
        return metric_magnitude(X, Y, W, beta)
    X, Y, V = np.abs(X), np.abs(Y), _absolute(W)
    mag = ref.gram(X, Y, V)
    if kind == "forward":
        mag = mag + ref.self_gram(Y, V)[..., None, :]
    elif kind == "backward":
        mag = np.swapaxes(ref.gram(Y, X, V), -1, -2) + ref.self_gram(X, V)[..., :, None]
    elif kind == "distance":
        # What |x|^2 + |y|^2 - 2 x.y costs; the engine may do better, it need not.
        mag = 2 * mag + ref.self_gram(X, V)[..., :, None] + ref.self_gram(Y, V)[..., None, :]
    return np.asarray(beta * mag, dtype=np.float64)


def metric_magnitude(X: Array, Y: Array, W: Weight, beta: float) -> Array:
    """The same for a Mahalanobis distance, by norms: |W| (|x| + |y|)^2.

    A metric may be applied through any factorisation of the symmetric part of W, which is stable
    in norm but not entry by entry. The 2: the factor is itself rounded and enters squared.
    """
    if isinstance(W, tuple):
        size = np.linalg.norm(W[0], 2) * np.linalg.norm(W[1], 2)
    else:
        size = np.linalg.norm(np.asarray(W), 2)
    x = np.linalg.norm(X.astype(np.float64), axis=-1)[..., :, None]
    y = np.linalg.norm(Y.astype(np.float64), axis=-1)[..., None, :]
    return np.asarray(2 * beta * float(size) * (x + y) ** 2, dtype=np.float64)


def slack(count: int, mag: Array) -> Array:
    """Error of a sum of `count` terms of total size `mag`, in eps."""
    return (2.0 + 0.5 * float(np.sqrt(count))) * mag if count else np.zeros(mag.shape)


def finite_abs(s: Array) -> Array:
    """|s|, with 0 in masked places, whose error is zero."""
    return np.asarray(np.abs(np.where(np.isinf(s), 0, s)), dtype=np.float64)


def scores(dtype: Any, slack: Array) -> Array:
    """Underflow of a product of tiny coordinates costs at most one smallest normal number."""
    return np.where(slack > 0, eps_of(dtype) * slack + tiny_of(dtype), 0.0)


# ---- reductions --------------------------------------------------------------------------------


def _sum(a: Array, axis: int) -> Array:
    return np.asarray(a.sum(axis=-1 if axis in (1, -1) else -2, keepdims=True))


def _squeeze(a: Array, axis: int) -> Array:
    return np.asarray(np.squeeze(a, axis=-1 if axis in (1, -1) else -2), dtype=np.float64)


def _length(s: Array, axis: int) -> int:
    return int(s.shape[-1 if axis in (1, -1) else -2])


def _weight_error(s: Array, slack: Array, axis: int) -> Array:
    """Relative error, in eps, of exp(s - max): the score's own and that of the subtraction."""
    return slack + finite_abs(s - ref.peak(s, axis)) + EXP_EPS


def _normaliser_error(s: Array, slack: Array, axis: int) -> Array:
    """Relative error, in eps, of the sum of exp(s - max), kept as an axis of length 1."""
    p = ref.softmax(s, axis)
    return _sum(p * _weight_error(s, slack, axis), axis) + summation(_length(s, axis))


def logsumexp(dtype: Any, s: Array, slack: Array, axis: int = 1) -> Array:
    error = _normaliser_error(s, slack, axis)
    return _squeeze(eps_of(dtype) * (error + 1.0), axis) + eps_of(dtype) * finite_abs(
        ref.logsumexp(s, axis)
    )


def softmax_relative(s: Array, slack: Array, axis: int = 1) -> Array:
    """Relative error, in eps, of each probability, also when made as exp(s - lse)."""
    lse = np.expand_dims(finite_abs(ref.logsumexp(s, axis)), -1 if axis in (1, -1) else -2)
    return _weight_error(s, slack, axis) + _normaliser_error(s, slack, axis) + lse


def softmax(dtype: Any, s: Array, slack: Array, axis: int = 1) -> Array:
    p = ref.softmax(s, axis)
    return eps_of(dtype) * p * softmax_relative(s, slack, axis) + tiny_of(dtype)


def kernel(dtype: Any, s: Array, slack: Array, weight: str) -> Array:
    """Error of w(s): |w'(s)| ds, plus that of evaluating w."""
    k = ref.kernel(s, weight)
    if weight == "exp":
        units = k * (slack + EXP_EPS)
    elif weight == "sigmoid":
        units = k * ((1 - k) * slack + EXP_EPS)
    else:  # linear and relu have slope at most 1 and cost nothing to evaluate
        units = np.where(s == -np.inf, 0.0, slack)
    return np.asarray(eps_of(dtype) * units + tiny_of(dtype), dtype=np.float64)


def apply(dtype: Any, P: Array, entry: Array, V: Array) -> Array:
    """Error of P V when every P_ij is off by at most entry_ij."""
    rounding = eps_of(dtype) * (summation(P.shape[-1]) + 1.0)
    error = ref.apply(entry + rounding * np.abs(P), np.abs(V))
    return np.asarray(error, dtype=np.float64)


def apply_left(dtype: Any, U: Array, P: Array, entry: Array) -> Array:
    rounding = eps_of(dtype) * (summation(P.shape[-2]) + 1.0)
    error = ref.apply_left(np.abs(U), entry + rounding * np.abs(P))
    return np.asarray(error, dtype=np.float64)


def expected_score(dtype: Any, s: Array, slack: Array, axis: int = 1) -> Array:
    """Error of sum p s = max + sum p (s - max): that of p times |s - max|, and that of s."""
    return entropy(dtype, s, slack, axis) + 2 * eps_of(dtype) * finite_abs(
        ref.expected_score(s, axis)
    )


def entropy(dtype: Any, s: Array, slack: Array, axis: int = 1) -> Array:
    """Error of log Z - sum p (s - max), both measured from the largest score.

    No term |lse| stands here: entropy does not change when the whole row is shifted, and an
    engine that subtracts two large numbers to get it would be wrong for logits of 1e4.
    """
    p = ref.softmax(s, axis)
    gap = finite_abs(s - ref.peak(s, axis))
    normaliser = _normaliser_error(s, slack, axis)
    relative = _weight_error(s, slack, axis) + normaliser + summation(_length(s, axis))
    units = _sum(p * (relative * gap + slack + gap), axis) + normaliser + 4.0
    return _squeeze(eps_of(dtype) * units, axis)


def marginals(
    dtype: Any, s: Array, slack: Array, f: Array | None, g: Array | None
) -> tuple[Array, Array]:
    plan = np.exp(ref.shift(s, f, g))
    units = slack + finite_abs(s) + EXP_EPS
    if f is not None:
        units = units + np.abs(f)[..., :, None]
    if g is not None:
        units = units + np.abs(g)[..., None, :]
    error = eps_of(dtype) * plan * units
    rows = error.sum(axis=-1) + eps_of(dtype) * summation(s.shape[-1]) * plan.sum(axis=-1)
    columns = error.sum(axis=-2) + eps_of(dtype) * summation(s.shape[-2]) * plan.sum(axis=-2)
    floor = tiny_of(dtype) * max(s.shape[-2:])  # every term of a sum may have been flushed
    return np.asarray(rows + floor, np.float64), np.asarray(columns + floor, np.float64)


# ---- comparison --------------------------------------------------------------------------------


def assert_within(actual: Any, expected: Array, bound: Array | float, what: str) -> None:
    """Fails unless |actual - expected| <= bound everywhere, with -inf matched exactly."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    assert not np.isnan(actual).any(), f"{what}: NaN at {np.argwhere(np.isnan(actual))[0]}"
    infinite = np.isinf(expected)
    same = np.isinf(actual) == infinite
    assert same.all(), f"{what}: infinite in other places, first {np.argwhere(~same)[0]}"
    assert (np.signbit(actual) | ~infinite).all(), f"{what}: +inf in the result"
    error = np.abs(np.where(infinite, 0, ref.high(actual)) - np.where(infinite, 0, expected))
    excess = error - bound
    if (excess > 0).any():
        at = np.unravel_index(int(np.argmax(excess)), excess.shape)
        limit = np.broadcast_to(bound, excess.shape)[at]
        raise AssertionError(
            f"{what}: at {tuple(int(a) for a in at)} got {actual[at]!r}, want {expected[at]!r}; "
            f"error {float(error[at]):.3g} exceeds the bound {float(limit):.3g} "
            f"({float(error[at] / limit) if limit else np.inf:.2f} times)"
        )


def assert_same_bits(a: Array, b: Array, what: str) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape, what
    assert a.tobytes() == b.tobytes(), f"{what}: {int((a != b).sum())} entries differ"
