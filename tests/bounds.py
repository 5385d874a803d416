"""How far a correct engine may be from the reference, and the comparison itself.

No bound here is a guess: each is a first-order rounding analysis, in units of eps = 2u of the working dtype,
evaluated for the data at hand.

A score is a sum of n terms: products of coordinates, shifts, other experts. In any order of the additions,
the rounding error is at most n u times the sum of their absolute values (`magnitude` below), so no sum of up
to 9 terms can break the bound. For longer sums, roundings are taken to be independent and uniform within u.
Their sum then has a standard deviation of sqrt(n) u / sqrt(3), and 1.5 sqrt(n) eps is five deviations.
`slack` is 2 + that, times the magnitude; the 2 is for beta, for the rounding of each product and for that of
the result. So cancellation (distances of nearby points) is covered by the magnitude, and not by a loose
constant. Scores that are read from memory (n = 0) have no error.

Errors of results follow by differentiation: an error ds of a score is a relative error ds of exp(s), so a
log-sum-exp is off by the p-weighted mean of ds, a product by sum p |v| ds, and so on. exp, log, the running
sums and the final rounding add a few eps each.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from . import reference as ref
from .reference import Array, Weight


class Rounded(Protocol):
    """Scores by the reference, and how far the library's may be from them."""

    @property
    def dtype(self) -> Any: ...
    @property
    def s(self) -> Array: ...
    @property
    def terms(self) -> int: ...
    @property
    def slack(self) -> Array: ...


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
    if kind == "distance":
        return distance_magnitude(X, Y, W, beta)
    X, Y, V = np.abs(X), np.abs(Y), _absolute(W)
    mag = ref.gram(X, Y, V)
    if kind == "forward":
        mag = mag + ref.self_gram(Y, V)[..., None, :]
    elif kind == "backward":
        mag = np.swapaxes(ref.gram(Y, X, V), -1, -2) + ref.self_gram(X, V)[..., :, None]
    return np.asarray(beta * mag, dtype=np.float64)


def distance_magnitude(X: Array, Y: Array, W: Weight, beta: float) -> Array:
    """The same for a distance: (|x - c| + |y - c|)^2, with c the middle of the keys.

    That is what |x|^2 + |y|^2 - 2 x.y costs on centred points. Distances do not change when all
    points move, so a cloud far from the origin must not cost digits. A metric W may be applied
    through any factorisation of its symmetric part, which is stable in norm but not entry by
    entry, before the points are centred; the factor is itself rounded and enters squared.
    """
    x, y = X.astype(np.float64), Y.astype(np.float64)
    centre = y.reshape(-1, y.shape[-1]).mean(axis=0)
    sizes = [np.linalg.norm(a - centre, axis=-1) for a in (x, y)]
    scale = 1.0
    if W is not None:
        factors = W if isinstance(W, tuple) else (W,)
        scale = 2.0 * float(np.prod([np.linalg.norm(w, 2) for w in factors]))
        sizes = [
            np.maximum(n, np.linalg.norm(a, axis=-1)) for n, a in zip(sizes, (x, y), strict=True)
        ]
    return np.asarray(beta * scale * (sizes[0][..., :, None] + sizes[1][..., None, :]) ** 2)


def accumulation(count: int) -> float:
    """Error, in eps, of adding `count` terms onto a number of size 1."""
    return min(0.5 * count, 1.5 * float(np.sqrt(count)))


def slack(count: int, mag: Array) -> Array:
    """Error of a sum of `count` terms of total size `mag`, in eps."""
    return (2.0 + accumulation(count)) * mag if count else np.zeros(mag.shape)


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


def _weight_error(p: Rounded, axis: int) -> Array:
    """Relative error, in eps, of exp(s - max): the score's own and that of the subtraction."""
    return p.slack + finite_abs(p.s - ref.peak(p.s, axis)) + EXP_EPS


def _normaliser_error(p: Rounded, axis: int) -> Array:
    """Relative error, in eps, of the sum of exp(s - max), kept as an axis of length 1."""
    weighted = ref.softmax(p.s, axis) * _weight_error(p, axis)
    return _sum(weighted, axis) + summation(_length(p.s, axis))


def logsumexp(p: Rounded, axis: int = 1) -> Array:
    error = _squeeze(_normaliser_error(p, axis), axis) + 1.0
    return eps_of(p.dtype) * (error + finite_abs(ref.logsumexp(p.s, axis)))


def _one_more_term(p: Rounded) -> float:
    """What a number of size 1 costs, in eps, as one more term of the sum that makes a score."""
    return 1.0 + accumulation(p.terms)


def softmax_relative(p: Rounded, axis: int = 1) -> Array:
    """Relative error, in eps, of each probability, also when made as exp(s - lse) with the
    normaliser as one more term of the score."""
    lse = np.expand_dims(finite_abs(ref.logsumexp(p.s, axis)), -1 if axis in (1, -1) else -2)
    return _weight_error(p, axis) + _normaliser_error(p, axis) + _one_more_term(p) * lse


def softmax(p: Rounded, axis: int = 1) -> Array:
    relative = softmax_relative(p, axis)
    return eps_of(p.dtype) * ref.softmax(p.s, axis) * relative + tiny_of(p.dtype)


def kernel(p: Rounded, weight: str) -> Array:
    """Error of w(s): |w'(s)| ds, plus that of evaluating w."""
    k = ref.kernel(p.s, weight)
    if weight == "exp":
        units = k * (p.slack + EXP_EPS)
    elif weight == "sigmoid":
        units = k * ((1 - k) * p.slack + EXP_EPS)
    else:  # linear and relu have slope at most 1 and cost nothing to evaluate
        units = p.slack
    return np.asarray(eps_of(p.dtype) * units + tiny_of(p.dtype), dtype=np.float64)


def apply(dtype: Any, P: Array, entry: Array, V: Array) -> Array:
    """Error of P V when every P_ij is off by at most entry_ij."""
    rounding = eps_of(dtype) * (summation(P.shape[-1]) + 1.0)
    error = ref.apply(entry + rounding * np.abs(P), np.abs(V))
    return np.asarray(error, dtype=np.float64)


def apply_left(dtype: Any, U: Array, P: Array, entry: Array) -> Array:
    rounding = eps_of(dtype) * (summation(P.shape[-2]) + 1.0)
    error = ref.apply_left(np.abs(U), entry + rounding * np.abs(P))
    return np.asarray(error, dtype=np.float64)


def entropy(p: Rounded, axis: int = 1) -> Array:
    """Error of log Z - sum p (s - max), both measured from the largest score.

    No term |lse| stands here: entropy does not change when the whole row is shifted, and an
    engine that subtracts two large numbers to get it would be wrong for logits of 1e4.
    """
    gap = finite_abs(p.s - ref.peak(p.s, axis))
    normaliser = _normaliser_error(p, axis)
    relative = _weight_error(p, axis) + normaliser + summation(_length(p.s, axis))
    weighted = ref.softmax(p.s, axis) * (relative * gap + p.slack + gap)
    return _squeeze(eps_of(p.dtype) * (_sum(weighted, axis) + normaliser + 4.0), axis)


def expected_score(p: Rounded, axis: int = 1) -> Array:
    """Error of sum p s = max + sum p (s - max): that of the second sum, and of rounding."""
    size = finite_abs(ref.expected_score(p.s, axis))
    return entropy(p, axis) + 2 * eps_of(p.dtype) * size


def marginals(p: Rounded, f: Array | None, g: Array | None) -> tuple[Array, Array]:
    """Errors of the row and the column sums of exp(f + s + g); f and g are terms of the score."""
    eps, plan = eps_of(p.dtype), np.exp(ref.shift(p.s, f, g))
    units = p.slack + finite_abs(p.s) + EXP_EPS
    if f is not None:
        units = units + _one_more_term(p) * np.abs(f)[..., :, None]
    if g is not None:
        units = units + _one_more_term(p) * np.abs(g)[..., None, :]
    found = []
    for axis in (-1, -2):
        total = (plan * (units + summation(p.s.shape[axis]))).sum(axis=axis)
        # Every term of a sum may have been flushed to zero.
        found.append(np.asarray(eps * total, np.float64) + tiny_of(p.dtype) * p.s.shape[axis])
    return found[0], found[1]


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
