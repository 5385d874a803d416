"""P4: how much of the tokens' motion through depth is rotation (EOT-11, section 6.2).

States are divided by their root mean square, as the norms before the layers do, and token 0 (a decoder's
sink) is left out. The velocity is the change by one layer, divided by the time 1/L. States and velocities are
centred at each layer, because a common drift is a gradient and would only dilute the share. Everything is
computed in the leading principal components.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...diagnostics import rotation
from ...diagnostics._stats import mean_interval
from ._attention import Array
from ._states import central


def prepared(hidden: Array) -> Array:
    """(layers + 1, n - 1, d): states divided by their root mean square, without token 0."""
    H = hidden[:, 1:].astype(np.float64)
    H /= np.sqrt(np.square(H).mean(axis=2, keepdims=True))
    return H


def components(states: Array, count: int) -> tuple[Array, float]:
    """Leading principal directions (d, count) of states centred by layer, and their share of the variance."""
    H = states - states.mean(axis=1, keepdims=True)
    flat = H.reshape(-1, H.shape[2])
    values, vectors = np.linalg.eigh(flat.T @ flat)
    count = min(count, len(values))
    return vectors[:, ::-1][:, :count], float(values[-count:].sum() / values.sum())


def energies(states: Array, directions: Array, seed: int | None) -> list[dict[str, Any]]:
    """A row for each transition: energy of rotation, its share, and the share for shuffled velocities.

    ``seed`` is that of the shuffle; with None there is no shuffle.
    """
    X = (states - states.mean(axis=1, keepdims=True)) @ directions
    steps = len(X) - 1
    rng = np.random.default_rng(seed)
    out = []
    for k in range(steps):
        u = (X[k + 1] - X[k]) * steps
        found = rotation.rotational_energy(X[k], u, rng=0, n_resamples=10)
        # The velocities of other tokens are explained by no field: all is rotation, except for overfitting.
        chance = float("nan")
        if seed is not None:
            mixed = rotation.rotational_energy(X[k], rng.permutation(u), rng=0, n_resamples=10)
            chance = mixed.normalized
        out.append(
            {
                "layer": k,
                "energy": found.energy,
                "kinetic": found.kinetic,
                "share": found.normalized,
                "chance": chance,
                "condition": found.condition,
                "converged": int(found.converged),
            }
        )
    return out


def over_depth(rows: list[dict[str, Any]], n_layers: int, seed: int) -> dict[str, Any]:
    """Mean energy over the central layers, with a percentile interval over layers, as in 6.2."""
    middle = rows[central(len(rows), n_layers)]
    energy = np.array([r["energy"] for r in middle])
    kinetic = np.array([r["kinetic"] for r in middle])
    chance = np.array([r["chance"] for r in middle])
    low, high = mean_interval(energy, rng=np.random.default_rng(seed), n_resamples=200)
    return {
        "layers": len(middle),
        "energy": float(energy.mean()),
        "interval": [low, high],
        "share": float(energy.sum() / kinetic.sum()) if kinetic.sum() > 0 else 0.0,
        "median_share": float(np.median([r["share"] for r in middle])),
        "chance": float(chance.mean()),
    }
