"""The parts of a case, which is a function that turns a `Draw` into a `Call`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qkcore as qk
from qkcore import magnetic, measure

from ..reference import Array


@dataclass
class Call:
    function: Callable[..., Any]
    arguments: dict[str, Any]
    positional: tuple[Any, ...] = ()  # for *arguments
    # Arguments whose wrong values are noticed only later (functions) or have a special meaning.
    free: frozenset[str] = frozenset()

    def __call__(self, **changes: Any) -> Any:
        return self.function(*self.positional, **{**self.arguments, **changes})


@dataclass
class Draw:
    """Sizes, a dtype and a stream of numbers; every array is read-only."""

    seed: int = 0
    n: int = 7
    m: int = 5
    d: int = 2
    dtype: str = "float64"
    arrays: list[tuple[Array, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, self.n, self.m, self.d])

    def keep(self, a: Any) -> Array:
        """`a` read-only, its bytes remembered."""
        out = np.array(a, dtype=self.dtype)
        out.flags.writeable = False
        self.arrays.append((out, out.tobytes()))
        return out

    def unchanged(self) -> None:
        for array, before in self.arrays:
            assert array.tobytes() == before, f"an input of shape {array.shape} was written to"

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return self.keep(scale * np.clip(self.rng.normal(size=shape), -3, 3))

    def double(self, *shape: int, scale: float = 1.0) -> Array:
        """Where only double precision is meant."""
        kept, self.dtype = self.dtype, "float64"
        out = self.normal(*shape, scale=scale)
        self.dtype = kept
        return out

    def X(self, n: int | None = None) -> Array:
        return self.normal(n or self.n, self.d)

    def law(self, *shape: int) -> Array:
        w = self.rng.uniform(0.5, 1.5, shape).astype(self.dtype).astype(np.float64)
        return self.keep(w / w.sum(axis=-1, keepdims=True))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return self.keep(self.rng.uniform(low, high, shape))

    def square(self, scale: float = 0.5) -> Array:
        return self.normal(self.d, self.d, scale=scale)

    def symmetric(self, scale: float = 0.5) -> Array:
        a = self.rng.normal(size=(self.d, self.d)) * scale
        return self.keep(np.float32(a + a.T).astype(np.float64) / 2)

    def cov(self, *lead: int) -> Array:
        a = self.rng.normal(size=(*lead, self.d, self.d)).astype(np.float32).astype(np.float64)
        c = a @ a.swapaxes(-1, -2) / self.d + 0.2 * np.eye(self.d)
        return self.keep((c + c.swapaxes(-1, -2)) / 2)

    def scores(self, square: bool = False) -> qk.Scores:
        Y = None if square else self.X(self.m)
        return qk.scores.distance(self.X(), Y, beta=0.5)

    def markov(self) -> qk.MarkovOperator:
        return qk.softmax(qk.scores.forward(self.X(), W=self.square(), beta=0.3))

    def diffusion(self) -> qk.MarkovOperator:
        return qk.diffusion.operator(self.X(), beta=0.5)

    def magnetic(self) -> Any:
        return magnetic.operator(self.X(), beta=0.5, W=self.square())

    def field(self, kind: str = "softmax") -> qk.AttentionField:
        Q, K, V = (self.double(self.d, self.d, scale=0.3) for _ in range(3))
        return qk.AttentionField(kind, Q=Q, K=K, V=V)

    def logits(self, layers: int = 9, step: float = 0.1) -> Array:
        base = self.rng.normal(size=(1, self.n, self.m + 1))
        moves = step * self.rng.normal(size=(layers, self.n, self.m + 1))
        return self.keep(base + np.cumsum(moves, axis=0))

    def kernel(self) -> measure.AttentionKernel:
        return measure.AttentionKernel(measure.GaussianPotential(0.5))

    def box(self) -> measure.Box:
        return measure.Box(np.full(self.d, -4.0), np.full(self.d, 4.0))

    def factors(self) -> tuple[qk.LowRank, Array, Array]:
        """Positive factors and the marginals of a bridge over them."""
        G = qk.LowRank(self.uniform(0.2, 1, self.n, 2), self.uniform(0.2, 1, 2, self.m))
        return G, self.law(self.n), self.law(self.m)


CASES: dict[str, Callable[[Draw], Call]] = {}


def case(
    name: str, function: Callable[..., Any], draw: Callable[[Draw], dict[str, Any]], free: str = ""
) -> None:
    assert name not in CASES, name
    CASES[name] = lambda g: Call(function, draw(g), free=frozenset(free.split()))


def cases_of(
    prefix: str, module: Any, table: Iterable[tuple[str, Callable[[Draw], dict[str, Any]]]]
) -> None:
    for name, draw in table:
        case(f"{prefix}{name}", getattr(module, name), draw)
