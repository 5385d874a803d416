"""Random chains of blocks that are rarely left, and their stationary laws by elimination in logarithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .reference import Array

COUPLINGS = ("ring", "star", "tree", "random", "line")


@dataclass(frozen=True)
class BlockChain:
    """Scores of a chain, and the block of each of its states."""

    scores: Array
    block: Any
    about: str

    @property
    def n_blocks(self) -> int:
        return int(self.block.max()) + 1


def block_chain(rng: Any, n_most: int, *, leaks: tuple[float, float] = (5, 600)) -> BlockChain:
    """A chain of 2 to 6 blocks with leaks from e^-leaks[1] to e^-leaks[0]; about a third of them periodic."""
    m = int(rng.integers(2, 7))
    sizes = rng.integers(1, max(2, n_most // m) + 1, m)
    block = np.repeat(np.arange(m), sizes)
    rng.shuffle(block)
    n = len(block)
    coupling = str(rng.choice(COUPLINGS))
    between = _between(rng, m, coupling, leaks)
    Z = rng.normal(size=(n, n)) * rng.uniform(0, 2)
    periodic = bool(rng.random() < 0.35)
    Z += between[np.ix_(block, block)]
    if periodic:
        # Each block has two sides, and steps nearly always change the side: a period of 2 except for tiny
        # loops.
        side = np.zeros(n, int)
        for b in range(m):
            states = np.flatnonzero(block == b)
            side[states] = np.arange(len(states)) % 2
        same = (block[:, None] == block) & (side[:, None] == side)
        alone = np.bincount(block)[block] == 1
        Z[same & ~alone[:, None]] -= rng.uniform(20, 600)
    about = f"{n} states, {m} blocks, {coupling}{', periodic' if periodic else ''}"
    return BlockChain(Z, block, about)


def _between(rng: Any, m: int, coupling: str, leaks: tuple[float, float]) -> Array:
    """Log leaks between blocks; -inf where there is no direct way."""
    out = np.full((m, m), -np.inf)
    np.fill_diagonal(out, 0.0)

    def edge(a: int, b: int) -> None:
        out[a, b] = -rng.uniform(*leaks)

    if coupling == "ring":  # one way round
        for a in range(m):
            edge(a, (a + 1) % m)
    else:
        for b in range(1, m):
            parent = {"star": 0, "line": b - 1}.get(coupling, int(rng.integers(0, b)))
            edge(parent, b)
            edge(b, parent)
        if coupling == "random":
            for a, b in np.argwhere(rng.random((m, m)) < 0.4):
                if a != b:
                    edge(a, b)
    if rng.random() < 0.5:  # leaks of equal size, of which only the ratios matter
        off = np.isfinite(out) & ~np.eye(m, dtype=bool)
        out[off] = -rng.uniform(*leaks) + rng.uniform(-4, 4, off.sum())
    return out


def log_law(scores: Array) -> Array:
    """Grassmann, Taksar and Heyman in logarithms and long doubles, states taken out from the first on."""
    a = np.asarray(scores).astype(np.longdouble)
    top = a.max(axis=1, keepdims=True)
    a = a - top - np.log(np.exp(a - top).sum(axis=1, keepdims=True))
    n = len(a)
    leaving = np.zeros(n, np.longdouble)
    for k in range(n - 1):
        leaving[k] = np.logaddexp.reduce(a[k, k + 1 :])
        through = a[k + 1 :, k, None] + (a[k, k + 1 :] - leaving[k])
        a[k + 1 :, k + 1 :] = np.logaddexp(a[k + 1 :, k + 1 :], through)
    out = np.zeros(n, np.longdouble)
    for k in range(n - 2, -1, -1):
        out[k] = np.logaddexp.reduce(out[k + 1 :] + a[k + 1 :, k]) - leaving[k]
    law: Array = out - np.logaddexp.reduce(out)
    return law
