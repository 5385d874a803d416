"""How rows change through depth: P0 to P3 for every head, and the verdicts of the suite (EOT-13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import diagnostics
from ...diagnostics import _locking
from ...diagnostics._layers import Rows, row_change, row_motion, softmax
from ...diagnostics.curvature import Geometry, curvature_sweep, gaps_at
from ._attention import Array, Heads

# A gate that lets everything pass, to see what P1 to P4 would say where P0 fails.
OPEN = 1e300
SHOWN = ("P0", "P1", "P2", "P3", "P4")


def centred(logits: Array) -> Array:
    """(heads, n, m) logits in float64 without the mean of each row, which the softmax ignores."""
    z = logits.astype(np.float64)
    seen = np.isfinite(z)
    mean = np.where(seen, z, 0.0).sum(axis=-1) / seen.sum(axis=-1)
    out: Array = z - mean[..., None]
    return out


def transitions(layers: Sequence[Array], locked_tail: float) -> list[dict[str, Any]]:
    """The measures of P0, P1 and P2, with a row for each transition and head."""
    out = []
    heads, n, _ = layers[0].shape
    before = _rows(layers[0])
    for k in range(1, len(layers)):
        after = _rows(layers[k])
        m = row_motion(before, after)
        each = {
            "square": m.square / m.seen,
            "tv": m.tv,
            "budget": 0.5 * m.change,
            "defect": _missed(before, after),
        }
        means = {name: value.reshape(heads, n).mean(axis=1) for name, value in each.items()}
        tail, tv = m.tail.reshape(heads, n), m.tv.reshape(heads, n)
        # A row that sees only one key has no tail and cannot move. It does not count as locked.
        several = (m.seen > 1).reshape(heads, n)
        for h in range(heads):
            locked = (tail[h] <= locked_tail) & several[h]
            out.append(
                {
                    "layer": k - 1,
                    "head": h,
                    **{name: float(value[h]) for name, value in means.items()},
                    "locked": int(locked.sum()),
                    "rows": int(several[h].sum()),
                    "locked_tv": float(np.median(tv[h][locked])) if locked.any() else float("nan"),
                }
            )
        before = after
    return out


def _missed(before: Rows, after: Rows) -> Array:
    """Half the L1 distance of each row to one Euler step of the probability flow, p + J dz."""
    dz = row_change(before, after).dz
    euler = before.p * (dz - np.einsum("rk,rk->r", before.p, dz)[:, None])
    out: Array = 0.5 * np.abs(after.p - before.p - euler).sum(axis=1)
    return out


def _rows(layer: Array) -> Rows:
    z = layer.reshape(-1, layer.shape[-1]).astype(np.float64, copy=False)
    return Rows(z, softmax(z))


def locking(layers: Sequence[Array]) -> dict[str, Any]:
    """Figure 7: TV against tail mass in bins, for all rows that see more than one key."""
    parts = []
    before = _rows(layers[0])
    for k in range(1, len(layers)):
        after = _rows(layers[k])
        m = row_motion(before, after)
        several = m.seen > 1
        parts.append(np.stack([m.tail, m.change, m.tv, m.bound])[:, several])
        before = after
    found = _locking.summarize(*np.concatenate(parts, axis=1))
    bins = [
        {
            "bin": k,
            "low_edge": float(found.edges[k]),
            "high_edge": float(found.edges[k + 1]),
            "rows": int(found.counts[k]),
            "median": float(found.median[k]),
            "low": float(found.low[k]),
            "high": float(found.high[k]),
            "bound": float(found.bound[k]),
        }
        for k in range(len(found.counts))
    ]
    return {
        "bins": bins,
        "above_sharp": found.exceeding,
        "above_printed": found.exceeding_printed,
        "argmax_kept": _kept(layers),
    }


def _kept(layers: Sequence[Array]) -> float:
    """Share of rows whose largest entry stays the largest; eq 23 is about these rows only."""
    tops = np.stack([layer.argmax(axis=-1) for layer in layers])
    several = np.isfinite(layers[0]).sum(axis=-1) > 1
    return float((tops[1:] == tops[:-1])[:, several].mean())


def contraction(
    layers: Sequence[Array], temperatures: Sequence[float], n_pairs: int, seed: int
) -> list[dict[str, Any]]:
    """P3 for every layer and head: how the curvature gap of neighbouring queries depends on temperature."""
    rng = np.random.default_rng(seed)
    heads, n, m = layers[0].shape
    geometry = Geometry((n, m), None, None)
    first = np.sort(rng.choice(n - 1, size=min(n_pairs, n - 1), replace=False))
    pairs = np.stack([first, first + 1], axis=1).astype(np.int64)
    factors = np.asarray(temperatures, dtype=np.float64)
    out = []
    for k, layer in enumerate(layers):
        for h in range(heads):
            gaps = gaps_at(layer[h], pairs, geometry, factors, "temperature", True).mean(axis=1)
            out += [
                {"layer": k, "head": h, "temperature": float(t), "gap": float(g)}
                for t, g in zip(factors, gaps, strict=True)
            ]
    return out


def longest_window(squares: Array, limit: float) -> tuple[int, int]:
    """The longest stretch of depth through which P0 would pass, as (first transition, number of them).

    ``squares`` (transitions, heads): the worst head of a stretch must stay within ``limit``.

    >>> longest_window(np.array([[0.2], [0.05], [0.05], [0.3]]), 0.15)
    (1, 2)
    """
    best = (0, 0)
    for start in range(len(squares)):
        total = np.cumsum(squares[start:], axis=0).max(axis=1)
        length = int(np.searchsorted(total, limit, side="right"))
        if length > best[1]:
            best = (start, length)
    return best


def verdicts(
    logits: Sequence[Array], activations: Array | None, seed: int, checks: Sequence[str] = SHOWN
) -> dict[str, Any]:
    """The verdicts of the suite as N.4 prescribes it, and those with the gate open."""
    options: dict[str, Any] = {"activations": activations, "rng": seed}
    strict = diagnostics.run(list(logits), **options)
    lifted = diagnostics.run(
        list(logits), **options, thresholds={"variation": OPEN, "continuity": 1.0}
    )
    return {
        "gated": {name: strict.verdicts[name] for name in checks},
        "open": {name: lifted.verdicts[name] for name in checks},
        "value": {name: lifted[name].value for name in checks},
        "reason": {name: lifted[name].reason for name in checks},
        "residual": strict["P0"].details["residual"],
        "jeffreys": strict["P0"].details["jeffreys"],
    }


def in_key_space(
    layers: Sequence[Heads], n_pairs: int, n_layers: int, seed: int
) -> list[dict[str, Any]]:
    """P3 with l1 distances of the queries and keys, which needs a linear programme for each pair.

    It is computed for a few layers, when the temperature doubles and when keys are halved.
    """
    out = []
    for k in np.unique(np.linspace(0, len(layers) - 1, n_layers).round().astype(int)):
        heads = layers[k]
        logits = heads.logits.astype(np.float64)
        for h in range(len(logits)):
            points = {"queries": heads.queries[h], "keys": heads.keys[h]}
            # Pairs are taken from the second half, because early rows of causal heads see few keys.
            n = len(logits[h])
            first = np.linspace(n // 2, n - 2, n_pairs).round().astype(int)
            pairs = np.stack([first, first + 1], axis=1)
            for knob, options in (
                ("temperature", {"temperatures": [1.0, 2.0]}),
                ("key norm", {"key_scales": [1.0, 0.5]}),
            ):
                found = curvature_sweep(
                    logits[h], pairs=pairs, n_resamples=10, rng=seed,
                    **points, **options,  # type: ignore[arg-type]
                )  # fmt: skip
                before, after = found.mean
                out.append(
                    {
                        "layer": int(k),
                        "head": h,
                        "knob": knob,
                        "gap": float(before),
                        "gap_after": float(after),
                    }
                )
    return out
