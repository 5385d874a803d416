"""All measures of one passage of one model, as plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...diagnostics.curvature import evi
from .._configs import Config
from . import _operators, _paths, _rotation, _states
from ._attention import Array, Trace
from ._models import Model

Row = dict[str, Any]


def passage(trace: Trace, model: Model, config: Config, *, follow: bool, first: bool) -> Row:
    """Measures of a passage; with ``first`` also spectra, with ``follow`` also Sinkhorn W2 and key space."""
    layers = [_paths.centred(heads.logits) for heads in trace.layers]
    states = _rotation.prepared(trace.hidden)
    moves = _paths.transitions(layers, config["locked_tail"])
    n_heads = len(layers[0])
    squares = np.array([m["square"] for m in moves]).reshape(-1, n_heads)
    start, length = _paths.longest_window(squares, config["variation"])
    heads = [
        {"layer": k, **row}
        for k, layer in enumerate(trace.layers)
        for row in _operators.of_heads(layer, spectrum=first)
    ]
    out: Row = {
        "heads": heads,
        "transitions": moves,
        "curvature": _paths.contraction(
            layers, config["temperatures"], config["pairs"], config["seed"]
        ),
        "locking": _paths.locking(layers),
        "states": _states.profile(trace),
        "steps": _states.fixed_point(trace),
        "variation": float(squares.sum(axis=0).max()),
        "variation_best_head": float(squares.sum(axis=0).min()),
        "window": {"start": start, "length": length},
        "suite": {"rows": _paths.verdicts(layers, states, config["seed"])},
        "evi": _evi(layers, config["evi_rows"]) if follow else [],
        "key_space": _paths.in_key_space(
            trace.layers, config["key_pairs"], config["key_layers"], config["seed"]
        )
        if follow
        else [],
    }
    if 2 <= length < len(layers) - 1:
        part = slice(start, start + length + 1)
        out["suite"]["window"] = _paths.verdicts(layers[part], states[part], config["seed"])
    probe = _states.probe_logits(model, trace, config["probe_rows"])
    if probe is not None:
        out["probe"] = _states.probe_profile(probe)
        shown = [_paths.centred(z) for z in probe]
        # There is no P3, because words of a vocabulary have no positions, and no P4, which is about states.
        out["suite"]["probe"] = _paths.verdicts(shown, None, config["seed"], ("P0", "P1", "P2"))
    return out


def _evi(layers: list[Array], count: int) -> list[Row]:
    """Figure 8: Sinkhorn W2 from rows of the mean of the heads to the same rows at the last layer."""
    n = layers[0].shape[1]
    chosen = np.unique(np.linspace(n // 2, n - 1, count).round().astype(int))
    laws = np.stack([_paths._rows(z).p.reshape(z.shape)[:, chosen].mean(axis=0) for z in layers])
    found = evi(laws, np.arange(n, dtype=np.float64))
    return [
        {
            "layer": k,
            "row": int(i),
            "w2": float(found.w2[k, j]),
            "progress": float(found.progress[k - 1, j]) if k else float("nan"),
            "drift": float(found.drift[k - 1, j]) if k else float("nan"),
        }
        for k in range(len(found.w2))
        for j, i in enumerate(chosen)
    ]
