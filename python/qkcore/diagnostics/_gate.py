"""P0: may the other diagnostics speak? Bounded variation and continuity (N.4, EOT-13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ._arrays import Float
from ._layers import LayerStack, logit_change


@dataclass(frozen=True, eq=False)
class Gate:
    """What P0 measures."""

    variation: float
    """:math:`\\bar S_L`: :math:`\\sum_\\ell (\\Delta z)^2` of a logit, averaged over rows and keys, of the
    worst head"""
    by_head: Float = field(repr=False)
    by_layer: Float = field(repr=False)
    """mean square change of a logit at every transition"""
    total: float
    """:math:`S_L = \\sum_\\ell \\|\\Delta z\\|_2^2` of a row, averaged over rows"""
    residual: float
    """largest defect of mass: \\|sum p - 1\\| of a row, \\|sum dp\\| of a step"""
    mask_changes: bool = False
    """whether an entry is masked in one layer and not in the next"""

    @property
    def spikes(self) -> list[int]:
        """Transitions whose variation exceeds five times the median (H.1)."""
        middle = float(np.median(self.by_layer))
        return [int(k) for k in np.flatnonzero(self.by_layer > 5 * middle)]


def measure(stack: LayerStack) -> Gate:
    """One pass over the layers, in double precision."""
    heads = stack.n_heads
    squares, layers = [], []
    before = stack.layer(0)
    residual = max(stack.lost, float(np.abs(before.p.sum(axis=1) - 1).max()))
    total = 0.0
    mask_changes = False
    for k in range(1, stack.n_layers):
        after = stack.layer(k)
        dz, broken = logit_change(before, after)
        if broken is None:
            width = np.full(len(dz), dz.shape[1], dtype=np.float64)
        else:
            width = np.isfinite(after.z).sum(axis=1).astype(np.float64)
            dz[~np.isfinite(dz)] = np.inf
            mask_changes |= bool((np.isneginf(before.z) != np.isneginf(after.z)).any())
        square = np.einsum("rk,rk->r", dz, dz)
        total += float(square.mean())
        per_key = (square / width).reshape(heads, -1).mean(axis=1)
        squares.append(per_key)
        layers.append(float(per_key.mean()))
        sums = after.p.sum(axis=1)
        flow = np.subtract(after.p, before.p).sum(axis=1)
        residual = max(residual, float(np.abs(sums - 1).max()), float(np.abs(flow).max()))
        before = after
    by_head = np.sum(squares, axis=0)
    return Gate(float(by_head.max()), by_head, np.array(layers), total, residual, mask_changes)


def measure_states(H: Float) -> Gate:
    """The same of activations (layers, n, d): squares relative to their mean square, no mass to lose."""
    # Relative to the largest entry first: the squares of 1e200 and of 1e-200 are no numbers.
    largest = float(np.abs(H).max()) or 1.0
    unit = H / largest
    scale = float((unit * unit).mean()) or 1.0
    steps = np.diff(unit, axis=0)
    by_layer = (steps * steps).mean(axis=(1, 2)) / scale
    with np.errstate(over="ignore"):
        total = float(np.square(largest) * (steps * steps).sum(axis=(0, 2)).mean())
    variation = float(by_layer.sum())
    return Gate(variation, np.array([variation]), by_layer, total, 0.0)
