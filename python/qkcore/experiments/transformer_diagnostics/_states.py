"""Measures of the residual stream through depth: clustering, updates, read-out (MTA-3, EOT 3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._attention import Array, Trace
from ._models import Model


def profile(trace: Trace) -> list[dict[str, float]]:
    """How similar tokens are and how far they moved, with a row for each state of the stream.

    Token 0 is left out, because in decoders it is the sink, whose norm is much larger.
    """
    out = []
    states = trace.hidden[:, 1:].astype(np.float64)
    for k, H in enumerate(states):
        size = np.linalg.norm(H, axis=1)
        unit = H / size[:, None]
        n = len(H)
        mean = unit.mean(axis=0)
        values = np.linalg.svd(H - H.mean(axis=0), compute_uv=False) ** 2
        spread = float(np.square(values).sum())
        row = {
            "layer": k,
            "norm": float(size.mean()),
            # The mean over all pairs of different tokens.
            "cosine": float((n * mean @ mean - 1) / (n - 1)),
            "rank": float(values.sum() ** 2 / spread) if spread > 0 else 0.0,
            "update": float("nan"),
            "turn": float("nan"),
        }
        if k:
            before = states[k - 1]
            old = np.linalg.norm(before, axis=1)
            row["update"] = float((np.linalg.norm(H - before, axis=1) / old).mean())
            row["turn"] = float((1 - (unit * (before / old[:, None])).sum(axis=1)).mean())
        out.append(row)
    return out


def fixed_point(trace: Trace) -> list[float]:
    """Relative distance of successive states of all tokens; falls geometrically near fixed points (26)."""
    H = trace.hidden.astype(np.float64)
    steps = np.linalg.norm(np.diff(H, axis=0), axis=(1, 2))
    return [float(v) for v in steps / np.linalg.norm(H[1:], axis=(1, 2))]


def probe_logits(model: Model, trace: Trace, n_rows: int) -> list[Array] | None:
    """Logits over the vocabulary at every depth, for tokens all over the passage; None without read-out."""
    at = np.unique(np.linspace(1, trace.n_tokens - 1, n_rows).round().astype(int))
    layers = [model.read_out(state[at]) for state in trace.hidden]
    found = [z for z in layers if z is not None]
    return found if len(found) == len(layers) else None


def probe_profile(layers: list[Array]) -> list[dict[str, float]]:
    """How the read-out's law changes: TV to the next layer and to the last one, and entropy."""
    from ...diagnostics._layers import softmax

    laws = [softmax(z.astype(np.float64)) for z in layers]
    out = []
    for k, p in enumerate(laws):
        following = laws[min(k + 1, len(laws) - 1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
        out.append(
            {
                "layer": k,
                "probe_step": float(0.5 * np.abs(following - p).sum(axis=1).mean()),
                "probe_left": float(0.5 * np.abs(laws[-1] - p).sum(axis=1).mean()),
                "probe_entropy": float(entropy.mean()),
            }
        )
    return out


def surprise(model: Model, trace: Trace) -> float:
    """Mean negative log-probability of the next token in nats; NaN for models that do not predict it."""
    if not model.network.causal:
        return float("nan")
    z = model.read_out(trace.hidden[-1][:-1])
    assert z is not None
    z = z.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return float(-logp[np.arange(len(z)), trace.ids[1:]].mean())


def central(n_layers: int, count: int) -> slice:
    """The ``count`` transitions in the middle of ``n_layers``, or all of them."""
    count = min(count, n_layers)
    start = (n_layers - count) // 2
    return slice(start, start + count)


def summarize(values: Any) -> dict[str, float]:
    """Mean, spread and range over passages; all are None if there are no values."""
    x = np.asarray([v for v in values if v is not None and v == v], dtype=np.float64)
    if not x.size:
        return dict.fromkeys(("mean", "sd", "low", "high"), float("nan"))
    return {
        "mean": float(x.mean()),
        "sd": float(x.std(ddof=1)) if x.size > 1 else 0.0,
        "low": float(x.min()),
        "high": float(x.max()),
    }
