"""P4: how much of the tokens' mean motion through depth is rotation (EOT-11, section 6.2).

States are divided by their root mean square, as the norms in front of the layers do, and token 0 (a
decoder's sink) is left out. The velocity is that of one layer over 1/L. The measure is that of the suite:
the linear mean flow of the centred states in their leading principal components at each layer, without the
scatter that it does not explain. Exact gradient fields at the same states are the control.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...diagnostics import _mean_flow
from ._attention import Array
from ._states import central

_FIELDS, _SAMPLES = (
    3,
    500,
)  # gradient fields of the control, and the tokens that they are measured at


def prepared(hidden: Array) -> Array:
    """(layers + 1, n - 1, d): states divided by their root mean square, without token 0."""
    H = hidden[:, 1:].astype(np.float64)
    H /= np.sqrt(np.square(H).mean(axis=2, keepdims=True))
    return H


def measured(
    states: Array, count: int, n_layers: int, seed: int, *, control: bool
) -> dict[str, Any]:
    """The central layers together, as in 6.2, and every layer by itself (``rows``)."""
    path = states.astype(np.float64)
    steps = len(path) - 1
    velocities = np.diff(path, axis=0) * steps
    before = path[:-1]
    rng = np.random.default_rng(seed)
    every = _mean_flow.measure(before, velocities, count, None, rng)
    middle = central(steps, n_layers)
    part = _mean_flow.measure(before[middle], velocities[middle], count, None, rng)
    fields = np.array([])
    if control:
        chosen = rng.permutation(path.shape[1])[:_SAMPLES]
        fields = _mean_flow.gradient_control(
            before[middle][:, chosen], velocities[middle][:, chosen], count, _FIELDS, rng
        )
    known = fields[np.isfinite(fields)]
    return {
        "layers": len(part.by_layer),
        "held": part.held,
        "energy": part.energy,
        "interval": list(part.energy_interval),
        "share": part.share,
        "share_interval": list(part.interval),
        "explained": part.explained,
        "scaling": part.scaling,
        "beyond": part.beyond,
        "beyond_interval": list(part.beyond_interval),
        "control": max(float(known.max()), 0.0) if known.size else float("nan"),
        "rows": [
            {
                "layer": k,
                "share": float(every.by_layer[k]),
                "error": float(every.error_by_layer[k]),
                "explained": float(every.explained_by_layer[k]),
                "kinetic": float(every.kinetic_by_layer[k]),
            }
            for k in range(steps)
        ],
    }
