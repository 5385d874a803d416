"""Problems with their known answer: a library object, its reference array, its error per eps.

`build(Spec(...))` is deterministic, so the Spec that Hypothesis prints reproduces a failing example.
`specs()` draws them. `EDGES` are the sizes at which a vector register, a tile or an unrolled loop begins or
ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import qkcore as qk

from . import bounds
from . import reference as ref
from .reference import Array, Weight

EDGES: tuple[int, ...] = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)
EDGES += (127, 128, 129, 255, 256, 257)
DIMS = (1, 2, 3, 7, 16, 17, 64, 65)
RHS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64)
DTYPES = ("float32", "float64")
POINT_KINDS = ("dot", "forward", "backward", "distance")
KINDS = ("dense", *POINT_KINDS, "l1", "sum", "scaled", "shifted", "transposed")
WEIGHTS = ("none", "positive", "asymmetric", "indefinite", "factored")
MASKS = ("none", "causal", "window", "dense", "padding", "ragged", "several")
BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 2))


@dataclass(frozen=True)
class Spec:
    """Everything that determines a problem."""

    kind: str = "dot"
    dtype: str = "float64"
    rows: int = 17
    columns: int = 9
    dim: int = 3
    weight: str = "none"
    mask: str = "none"
    batch: tuple[int, ...] = ()
    beta: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    """`scores` is the library's lazy object, `s` the same matrix by the reference."""

    scores: qk.Scores
    s: Array
    mag: Array  # sum of the absolute values of the terms of each score
    terms: int  # number of terms; 0 means that scores are read from memory, without error
    dtype: Any
    rng: np.random.Generator

    @property
    def slack(self) -> Array:
        """Error of the scores, entry by entry, in units of eps; masked entries have none."""
        return np.where(np.isinf(self.s), 0.0, bounds.slack(self.terms, self.mag))

    @property
    def transposed(self) -> Problem:
        """The same problem with its rows and columns exchanged."""
        return replace(
            self,
            scores=self.scores.T,
            s=np.swapaxes(self.s, -1, -2),
            mag=np.swapaxes(self.mag, -1, -2),
        )

    def vectors(self, k: int | None, *, left: bool = False) -> Array:
        """A right-hand side (..., M, k), for the left product (..., k, N); k = None: a vector."""
        n, m = self.s.shape[-2:]
        if k is None:
            shape: tuple[int, ...] = (n if left else m,)
        else:
            shape = (k, n) if left else (m, k)
        return normal(self.rng, (*self.s.shape[:-2], *shape), self.dtype)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def points(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Gaussian points, cut at 2.5, whose inner products are of order 1 whatever the dimension.

    Cut, as is W below, so that no score at beta = 3 reaches 88, where exp overflows float32.
    """
    return (np.clip(rng.standard_normal(shape), -2.5, 2.5) * shape[-1] ** -0.25).astype(dtype)


def weight_matrix(rng: np.random.Generator, name: str, d: int, dtype: Any) -> Weight:
    """W of the given nature, with entries such that x^T W y stays of order 1."""
    if name == "none":
        return None
    raw = rng.uniform(-1, 1, (d, d)) / np.sqrt(d)
    if name == "asymmetric":
        return raw.astype(dtype)
    if name == "positive":
        return (raw @ raw.T + 0.1 * np.eye(d)).astype(dtype)
    if name == "indefinite":
        signs = np.where(np.arange(d) % 2 == 0, 1.0, -1.0)
        orthogonal, _ = np.linalg.qr(raw)
        return ((orthogonal * signs) @ orthogonal.T).astype(dtype)
    if name == "factored":  # a rank that is neither 1 nor d, so that swapped factors are noticed
        rank = max(1, (2 * d) // 3)
        left = rng.uniform(-1, 1, (d, rank)) / np.sqrt(d)
        right = rng.uniform(-1, 1, (rank, d)) / np.sqrt(rank)
        return left.astype(dtype), right.astype(dtype)
    raise ValueError(name)


def point_scores(
    kind: str, X: Array, Y: Array | None, W: Weight, beta: float, rng: np.random.Generator
) -> Problem:
    """Scores made from points, with answer and error."""
    made = getattr(qk.scores, kind)(X, Y, W=W, beta=beta)
    other = X if Y is None else Y
    s = getattr(ref, kind)(X, other, W, beta)
    mag, terms = bounds.magnitude(kind, X, other, W, beta), bounds.terms(X.shape[-1], W)
    return Problem(made, s, mag, terms, X.dtype, rng)


def l1_scores(
    X: Array, Y: Array, W: Array | None, beta: float, rng: np.random.Generator
) -> Problem:
    """City-block scores; the points times their weights are rounded."""
    s = ref.l1(X, Y, W, beta)
    sizes = [
        np.abs(a.astype(np.float64)) @ (np.ones(a.shape[-1]) if W is None else W) for a in (X, Y)
    ]
    mag = beta * (sizes[0][..., :, None] + sizes[1][..., None, :])
    return Problem(qk.scores.l1(X, Y, W=W, beta=beta), s, mag, X.shape[-1] + 2, X.dtype, rng)


def dense_scores(Z: Array, rng: np.random.Generator) -> Problem:
    s = ref.high(Z)
    return Problem(qk.scores.dense(Z), s, bounds.finite_abs(s), 0, Z.dtype, rng)


def add(a: Problem, b: Problem) -> Problem:
    """Product of experts: the terms of both in one sum."""
    scores, terms = a.scores + b.scores, a.terms + b.terms + 1
    return replace(a, scores=scores, s=a.s + b.s, mag=a.mag + b.mag, terms=terms)


def scale(a: Problem, c: float) -> Problem:
    """A temperature: one more rounding."""
    return replace(a, scores=c * a.scores, s=ref.HIGH(c) * a.s, mag=c * a.mag, terms=a.terms + 1)


def shift(a: Problem, rows: Array | None, columns: Array | None) -> Problem:
    """Each shift is one more term."""
    s, mag = ref.shift(a.s, rows, columns), a.mag
    if rows is not None:
        mag = mag + bounds.finite_abs(rows)[..., :, None]
    if columns is not None:
        mag = mag + bounds.finite_abs(columns)[..., None, :]
    return replace(a, scores=a.scores.shift(rows, columns), s=s, mag=mag, terms=a.terms + 2)


def keep(a: Problem, scores: qk.Scores, mask: Array) -> Problem:
    """The problem whose library side is `scores` and whose answer keeps only `mask`."""
    s = ref.masked(a.s, mask)
    return replace(a, scores=scores, s=s, mag=np.broadcast_to(a.mag, s.shape))


def offsets(rng: np.random.Generator, total: int, blocks: int) -> Array:
    """0 = o_0 <= ... <= o_blocks = total; blocks may be empty."""
    inner = np.sort(rng.integers(0, total + 1, blocks - 1))
    return np.concatenate([[0], inner, [total]]).astype(np.int64)


def mask_problem(a: Problem, name: str) -> Problem:
    """Applies a mask of the given nature to both sides."""
    rng, (n, m) = a.rng, a.s.shape[-2:]
    if name == "none":
        return a
    if name == "causal":
        offset = int(rng.integers(-2, 3))
        return keep(a, a.scores.causal(offset), ref.causal_mask(n, m, offset))
    if name == "window":
        left, right = int(rng.integers(0, 6)), int(rng.integers(0, 6))
        return keep(a, a.scores.window(left, right), ref.window_mask(n, m, left, right))
    if name == "dense":
        mask = rng.random(a.s.shape) < 0.6
        return keep(a, a.scores.masked(mask), mask)
    if name == "padding":
        mask = rng.random((*a.s.shape[:-2], m)) < 0.7
        return keep(a, a.scores.key_padding(mask), mask[..., None, :])
    if name == "ragged":
        if a.s.ndim > 2:
            raise ValueError("ragged scores are 2-D")
        blocks = int(rng.integers(1, 5))
        rows, columns = offsets(rng, n, blocks), offsets(rng, m, blocks)
        return keep(a, a.scores.ragged(rows, columns), ref.ragged_mask(rows, columns))
    if name == "several":
        return mask_problem(mask_problem(mask_problem(a, "causal"), "padding"), "dense")
    raise ValueError(name)


def build(spec: Spec) -> Problem:
    """The problem a Spec stands for, always the same."""
    rng = np.random.default_rng([spec.seed, spec.rows, spec.columns, spec.dim])
    dtype = np.dtype(spec.dtype)
    x_shape = (*spec.batch, spec.rows, spec.dim)
    y_shape = (*spec.batch, spec.columns, spec.dim)

    def base(kind: str) -> Problem:
        if kind == "dense":
            return dense_scores(
                normal(rng, (*spec.batch, spec.rows, spec.columns), dtype) * dtype.type(2), rng
            )
        if kind == "l1":
            weights = None if spec.weight == "none" else rng.uniform(0, 1, spec.dim).astype(dtype)
            X, Y = points(rng, x_shape, dtype), points(rng, y_shape, dtype)
            return l1_scores(X, Y, weights, spec.beta, rng)
        W = weight_matrix(rng, spec.weight, spec.dim, dtype)
        X, Y = points(rng, x_shape, dtype), points(rng, y_shape, dtype)
        return point_scores(kind, X, Y, W, spec.beta, rng)

    if spec.kind in ("dense", "l1", *POINT_KINDS):
        problem = base(spec.kind)
    elif spec.kind == "sum":
        problem = add(base("forward"), base("dot"))
        if spec.seed % 2:  # three experts, one of them read from memory
            problem = add(problem, base("dense"))
    elif spec.kind == "scaled":
        problem = scale(base("distance"), 0.37)
    elif spec.kind == "shifted":
        r = normal(rng, (*spec.batch, spec.rows), dtype)
        c = normal(rng, (*spec.batch, spec.columns), dtype)
        problem = shift(base("dot"), r, c)
    elif spec.kind == "transposed":
        turned = replace(spec, kind="forward", mask="none", rows=spec.columns, columns=spec.rows)
        problem = build(turned).transposed
    else:
        raise ValueError(spec.kind)
    return mask_problem(problem, spec.mask)


@st.composite
def specs(draw: st.DrawFn, *, kinds: tuple[str, ...] = KINDS, entries: int = 20_000) -> Spec:
    """Any problem whose score matrices hold at most `entries` numbers, batch included."""
    batch = draw(st.sampled_from(BATCHES))
    room = entries // int(np.prod(batch, dtype=int))
    rows = draw(st.sampled_from([n for n in EDGES if n <= room]))
    columns = draw(st.sampled_from([m for m in EDGES if m * rows <= room]))
    masks = [mask for mask in MASKS if not (mask == "ragged" and batch)]
    return Spec(
        kind=draw(st.sampled_from(kinds)),
        dtype=draw(st.sampled_from(DTYPES)),
        rows=rows,
        columns=columns,
        # The naive distance forms N x M x d numbers, so large d is combined with few entries.
        dim=draw(st.sampled_from([d for d in DIMS if d * rows * columns <= 400_000])),
        weight=draw(st.sampled_from(WEIGHTS)),
        mask=draw(st.sampled_from(masks)),
        batch=batch,
        beta=draw(st.sampled_from((0.25, 1.0, 3.0))),
        seed=draw(st.integers(0, 2**16)),
    )
