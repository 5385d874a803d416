"""Stacks of softmax rows, one layer at a time: what P0-P3 read from them.

A stack of 30 layers, 9 heads and 512 x 512 logits is 566 MB in float64; only two layers of it are held in
double precision at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ..simplex._tail import locked_motion, log_tail
from ._arrays import Float, plain_array

Array = npt.NDArray[np.floating[Any]]


def _row_sum(eps: float) -> float:
    """Rows further from 1 than this are no probabilities of a dtype of that spacing."""
    return 1e-6 if eps < 1e-12 else 1e-3 if eps < 1e-6 else 2e-2


def are_probabilities(layer: Array, eps: float = 0.0) -> bool:
    """Whether every row is >= 0 and sums to 1, or to 0 (of a token that is left out), and one sums to 1."""
    if layer.shape[-1] < 2 or not (layer >= 0).all():
        return False
    sums = layer.sum(axis=-1, dtype=np.float64)
    slack = _row_sum(max(eps, float(np.finfo(layer.dtype).eps)))
    ones = np.abs(sums - 1) <= slack
    return bool(ones.any() and (ones | (sums == 0)).all())


def refuse_probabilities(name: str, instead: str) -> None:
    """Logits that are probabilities in truth: what is wrong and what to do."""
    raise ValueError(
        f"{name}: wanted logits, got rows that are all >= 0 and sum to 1, which are probabilities; "
        f"pass {instead}, or, if they are logits, subtract a constant from each row, which changes nothing"
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """One layer: logits (rows, keys) over temperature, and their softmax."""

    z: Float
    p: Float


@dataclass(frozen=True, eq=False)
class RowChange:
    """How the logits of every row change between two layers, up to what the softmax ignores."""

    dz: Float
    """change of each visible logit, less their mean over the row; 0 where both layers mask"""
    half_range: Float
    """half of largest less smallest change over the visible keys: the sup norm up to a shift of the row"""
    seen: Float
    """visible keys of each row"""
    remasked: npt.NDArray[np.bool_]
    """rows that mask other keys than before; ``dz`` is 0 at those keys"""

    @property
    def square(self) -> Float:
        """\\|dz\\|^2 of each row; infinite where the mask changes."""
        out = np.einsum("rk,rk->r", self.dz, self.dz)
        out[self.remasked] = np.inf
        return np.asarray(out)


@dataclass(frozen=True, eq=False)
class RowMotion:
    """What happens to every row between two layers."""

    tv: Float
    """half the L1 distance"""
    change: Float
    """half the range of the change of the logits: the norm that ignores common shifts"""
    tail: Float
    """1 - max p before"""
    bound: Float
    """the most that the row can move in TV when its logits move by ``change`` (eq 23, sharp)"""
    seen: Float
    """visible keys"""
    square: Float
    """\\|dz\\|^2 of the row without its mean (inf where the mask changes)"""


class LayerStack:
    """Layers of logits or of probabilities, checked, read one by one."""

    def __init__(
        self, layers: Sequence[Array], temperature: float, given: str, lost: float = 0.0
    ) -> None:
        self._layers = layers
        self._temperature = temperature
        self._given = given
        self.shape = layers[0].shape
        self.n_layers = len(layers)
        self.lost = lost
        """largest \\|sum p - 1\\| of the rows as they came, where rounding does not explain it; else 0"""

    @classmethod
    def of_logits(cls, logits: object, tau: float, instead: str = "") -> LayerStack:
        """From logits (layers, ..., keys) or a sequence of layers."""
        layers, eps = _layers("logits", logits)
        for k, layer in enumerate(layers):
            _checks.finite(f"logits[{k}]", layer, minus_inf=True)
            if np.isneginf(layer).all(axis=-1).any():
                raise ValueError(
                    f"logits[{k}]: wanted at least one unmasked key per row, got a row of -inf; "
                    "remove rows that attend to nothing"
                )
        if all(are_probabilities(layer, eps) for layer in layers):
            refuse_probabilities("logits", instead or "np.log(p)")
        tau = _checks.positive("tau", tau)
        largest = max(
            float(np.abs(x, out=np.zeros_like(x), where=x > -np.inf).max()) for x in layers
        )
        if not largest / tau < np.finfo(np.float64).max / 4:
            raise ValueError(
                f"logits: wanted numbers whose differences, divided by the temperature {tau:g}, are within "
                f"the range of float64, got entries up to {largest:g}; scale them down"
            )
        return cls(layers, tau, "logits")

    @classmethod
    def of_probabilities(cls, probabilities: object) -> LayerStack:
        """From attention weights (layers, ..., keys); logits are their logarithms."""
        layers, eps = _layers("probabilities", probabilities)
        eps = max(eps, float(np.finfo(layers[0].dtype).eps))
        worst = 0.0
        for k, layer in enumerate(layers):
            if np.isneginf(layer).any():
                raise ValueError(
                    f"probabilities[{k}]: wanted numbers >= 0, got -inf, which masks logits; "
                    "pass logits=... if these are logits"
                )
            _checks.finite(f"probabilities[{k}]", layer)
            _checks.none_negative(
                f"probabilities[{k}]", layer, do="pass logits=... if these are logits"
            )
            off = float(np.abs(layer.sum(axis=-1, dtype=np.float64) - 1).max())
            if off > _row_sum(eps):
                raise ValueError(
                    f"probabilities[{k}]: wanted rows that sum to 1, got a row that is off by {off:.3g}; "
                    "normalise them, leave out rows of zeros, or pass logits=... if these are logits"
                )
            worst = max(worst, off)
        # Each entry is rounded, and the sum that divided them was rounded at every term.
        rounding = eps * max(8, layers[0].shape[-1])
        return cls(layers, 1.0, "probabilities", worst if worst > rounding else 0.0)

    @property
    def n_heads(self) -> int:
        """Rows come in heads: everything between the layer axis and (rows, keys)."""
        return int(np.prod(self.shape[:-2], dtype=np.int64)) if len(self.shape) > 2 else 1

    @property
    def n_heads_proper(self) -> int:
        """The axis before (rows, keys) alone; those before it are passages."""
        return self.shape[-3] if len(self.shape) > 2 else 1

    def of_head(self, k: int, head: int) -> Float:
        """Logits of one head at layer k over temperature, (passages x rows, keys)."""
        given = self._layers[k].reshape(-1, self.n_heads_proper, *self.shape[-2:])[:, head]
        return self._logits(given.reshape(-1, self.shape[-1])).z

    def layer(self, k: int) -> Rows:
        """Layer k as (rows, keys) in double precision, probabilities normalised there."""
        return self._logits(self._layers[k].reshape(-1, self.shape[-1]))

    def _logits(self, given: Array) -> Rows:
        if self._given == "probabilities":
            p = given.astype(np.float64)
            p /= p.sum(axis=-1, keepdims=True)
            with np.errstate(divide="ignore"):
                return Rows(np.log(p), p)
        z = given.astype(np.float64)
        if self._temperature != 1.0:
            z /= self._temperature
        return Rows(z, softmax(z))

    def transitions(self) -> Iterator[tuple[Rows, Rows]]:
        """Successive pairs of layers."""
        before = self.layer(0)
        for k in range(1, self.n_layers):
            after = self.layer(k)
            yield before, after
            before = after


def softmax(z: Float) -> Float:
    """Row softmax, shifted by the largest entry."""
    p: Float = z - z.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def row_change(before: Rows, after: Rows) -> RowChange:
    """The change of the logits of every row, centred over its visible keys."""
    with np.errstate(invalid="ignore"):
        dz = after.z - before.z
    visible = np.isfinite(dz)
    if visible.all():
        seen = np.full(len(dz), float(dz.shape[1]))
        half_range = dz.max(axis=1) / 2 - dz.min(axis=1) / 2
        dz -= (dz / dz.shape[1]).sum(axis=1)[:, None]
        return RowChange(dz, half_range, seen, np.zeros(len(dz), dtype=bool))
    remasked = (np.isneginf(before.z) != np.isneginf(after.z)).any(axis=1)
    seen = visible.sum(axis=1).astype(np.float64)
    dz = np.where(visible, dz, 0.0)
    high = np.where(visible, dz, -np.inf).max(axis=1)
    low = np.where(visible, dz, np.inf).min(axis=1)
    some = seen > 0
    half_range = np.where(some, high, 0.0) / 2 - np.where(some, low, 0.0) / 2
    share = np.maximum(seen, 1.0)[:, None]
    dz = np.where(visible, dz - (dz / share).sum(axis=1)[:, None], 0.0)
    return RowChange(dz, half_range, seen, remasked)


def row_motion(before: Rows, after: Rows) -> RowMotion:
    """Everything that P0 to P2 need of one transition."""
    change = row_change(before, after)
    tv = 0.5 * np.abs(after.p - before.p).sum(axis=1)
    bound = locked_motion(log_tail(before.z), change.half_range)
    return RowMotion(tv, change.half_range, tail_mass(before.p), bound, change.seen, change.square)


def tail_mass(p: Float) -> Float:
    """1 - max p as the sum of the others, to full relative precision."""
    top = p.argmax(axis=1)[:, None]
    largest = np.take_along_axis(p, top, axis=1)
    np.put_along_axis(p, top, 0.0, axis=1)
    tail: Float = p.sum(axis=1)
    np.put_along_axis(p, top, largest, axis=1)
    return tail


def _layers(name: str, value: object) -> tuple[list[Array], float]:
    """A list of arrays of one shape (..., keys), at least two of them, and the spacing of what came."""
    value, eps = plain_array(name, value)
    if isinstance(value, (list, tuple)):
        layers = [_checks.real_array(f"{name}[{k}]", layer) for k, layer in enumerate(value)]
    else:
        array = _checks.real_array(name, value)  # type: ignore[arg-type]
        _checks.shape(name, array.shape, ("layers", ..., "keys"), what="layers of rows")
        layers = list(array)
    _checks.some(name, len(layers), 2, "layers", "the diagnostics follow rows through depth")
    for k, layer in enumerate(layers):
        _checks.not_empty(f"{name}[{k}]", layer)
        if layer.ndim < 1 or layer.shape != layers[0].shape or layer.dtype != layers[0].dtype:
            raise ValueError(
                f"{name}[{k}]: wanted {layers[0].dtype} of shape {layers[0].shape} like the first layer, got "
                f"{layer.dtype} {layer.shape}"
            )
    return layers, eps
