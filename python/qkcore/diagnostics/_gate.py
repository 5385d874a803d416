"""P0: may the other diagnostics speak? Bounded variation and continuity (N.4, EOT-13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ._arrays import Float
from ._layers import LayerStack, RowChange, Rows, row_change


@dataclass(frozen=True, eq=False)
class Gate:
    """What P0 measures."""

    S_bar: float
    """:math:`\\bar S_L`: the squared changes of a logit summed over depth, averaged over the visible keys
    and the rows of a head, of the worst head"""
    by_head: Float = field(repr=False)
    """the same of every head"""
    by_layer: Float = field(repr=False)
    """mean square change of a logit at every transition, over all heads"""
    worst_by_layer: Float = field(repr=False)
    """the same of the worst head, whose sum is S_bar"""
    jeffreys: float
    """the change in Fisher's metric: Jeffreys' divergence :math:`\\langle\\Delta p, \\Delta z\\rangle` of
    successive rows, summed over depth, averaged over the rows of a head, of the worst head"""
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
    """One pass over the layers, in double precision; constants of rows do not count."""
    heads = stack.n_heads
    squares, divergences = [], []
    before = stack.layer(0)
    residual = max(stack.lost, float(np.abs(before.p.sum(axis=1) - 1).max()))
    mask_changes = False
    for k in range(1, stack.n_layers):
        after = stack.layer(k)
        change = row_change(before, after)
        mask_changes |= bool(change.remasked.any())
        squares.append((change.square / np.maximum(change.seen, 1)).reshape(heads, -1).mean(axis=1))
        divergences.append(_jeffreys(before, after, change).reshape(heads, -1).mean(axis=1))
        sums = after.p.sum(axis=1)
        flow = np.subtract(after.p, before.p).sum(axis=1)
        residual = max(residual, float(np.abs(sums - 1).max()), float(np.abs(flow).max()))
        before = after
    by_head = np.sum(squares, axis=0)
    by_layer = np.mean(squares, axis=1)
    jeffreys = float(np.sum(divergences, axis=0).max())
    worst = np.array([square[int(by_head.argmax())] for square in squares])
    return Gate(float(by_head.max()), by_head, by_layer, worst, jeffreys, residual, mask_changes)


def _jeffreys(before: Rows, after: Rows, change: RowChange) -> Float:
    """The symmetrised Kullback-Leibler divergence of the rows of two layers."""
    out: Float = np.einsum("rk,rk->r", after.p - before.p, change.dz)
    out[change.remasked] = np.inf
    return np.asarray(np.maximum(out, 0.0))


def measure_states(H: Float) -> Gate:
    """The same of activations (layers, n, d), which have no mass to lose.

    The squares are those of each sample's step without the mean step of its layer, relative to the mean
    square distance of the samples from their centre: a common drift moves no sample against the others.
    """
    # Relative to the largest entry first: the squares of 1e200 and of 1e-200 are no numbers.
    largest = float(np.abs(H).max()) or 1.0
    unit = H / largest
    unit -= unit.mean(axis=1, keepdims=True)
    extent = float(np.abs(unit).max())
    # Samples that are equal but for rounding have no distances to compare with.
    unit = unit / extent if extent > H.shape[1] * np.finfo(np.float64).eps else np.zeros_like(unit)
    scale = float((unit * unit).mean()) or 1.0
    steps = np.diff(unit, axis=0)
    by_layer = (steps * steps).mean(axis=(1, 2)) / scale
    variation = float(by_layer.sum())
    return Gate(variation, np.array([variation]), by_layer, by_layer, float("nan"), 0.0)
