"""Velocities of particles on the device: attention by reductions of rows, the rest by small maps.

The kernel ``velocity`` computes plain fields alone. Weights, positions, the centred form, and masks for kinds
that are not normalised are composed of reductions: logarithms of weights are a shift of columns, positions
are a mask, and rows are divided by masses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._flow_tasks import FieldSpec
from .._host import WEIGHTS
from .._terms import UNBOUNDED
from ._arrays import Context
from ._bistochastic import Bistochastic
from ._rows import ALL, LINEAR, Sphere, divide, reduced, rows_times

__all__ = ["DeviceField", "DeviceFunction"]

_NORMALISED = ("softmax", "l2")


class DeviceFunction:
    """A velocity that is a caller's function of device arrays, for particles like x."""

    sphere: Sphere | None = None

    def __init__(self, function: Callable[[Any, float], Any], c: Context, x: Any) -> None:
        self.function, self.c, self.x = function, c, x

    def enter(self, t: float) -> None:
        """Called when a step begins."""

    def __call__(self, x: Any, t: float, out: Any, stream: int) -> Any:
        given = self.function(self.c.library.take(x), t)
        array = self.c.take("field", given, dtype=self.x.dtype, like="X0")
        if array.shape != self.x.shape or not array.contiguous:
            raise ValueError(
                f"field: wanted a contiguous velocity of shape {self.x.shape}, got {array.shape} "
                f"with strides {array.strides}"
            )
        self.c.module.copy(array, out, stream)
        return out


class DeviceField:
    """A field of attention whose matrices are on the device."""

    def __init__(self, field: FieldSpec, c: Context, x: Any) -> None:
        if field.kind == "sinkhorn" and field.ends is not None:
            raise ValueError(
                "mask: wanted None for sinkhorn attention on a device, got a mask, which needs one bridge "
                "per position and runs only on the CPU; pass a NumPy array"
            )
        self.field, self.c, self.x = field, c, x
        self.heads = field.Q.shape[1]
        self.sphere = Sphere(c, x) if field.sphere else None
        self.bistochastic: Bistochastic | None = None  # keeps the potentials from call to call
        self._uploaded: tuple[float, tuple[Any, Any, Any]] | None = None
        self._start = 0.0
        self._seen = _Seen(field, c, x)

    def enter(self, t: float) -> None:
        """Called when a step begins; the layer at this time applies up to the end of the step."""
        self._start = t

    def matrices(self, t: float) -> tuple[Any, Any, Any]:
        """Q and K (heads, k, d), V (heads, d, d) as they apply at t; they are uploaded when they change."""
        key = t
        if not self.field.time_dependent:
            t = self._start
            key = float(np.searchsorted(self.field.times, t, side="right"))
        if self._uploaded is None or self._uploaded[0] != key:
            Q, K, V = self.field.parameters(t)
            V = np.broadcast_to(V, (self.heads, *V.shape[1:]))
            q, k, v = (self.c.upload(m, self.x.dtype) for m in (Q, K, V))
            self._uploaded = key, (q, k, v)
        return self._uploaded[1]

    def __call__(self, x: Any, t: float, out: Any, stream: int) -> Any:
        (self._plain if self._seen.plain else self._composed)(x, t, out, stream)
        if self.sphere is not None:
            self.sphere.tangent(x, out, stream)
        return out

    def _plain(self, x: Any, t: float, out: Any, stream: int) -> None:
        kind = self.field.kind
        self.c.module.velocity(
            x,
            *self.matrices(t),
            WEIGHTS["softmax" if kind == "l2" else kind],
            kind == "l2",
            1.0,
            kind not in _NORMALISED,
            *self._seen.band,
            out,
            stream,
        )

    def _composed(self, x: Any, t: float, out: Any, stream: int) -> None:
        """Computes the product of each head, multiplies it with V, and adds up the heads."""
        module = self.c.module
        Q, K, V = self.matrices(t)
        head = {"sinkhorn": _Sinkhorn, "linear centred": _Centred}.get(self.field.kind, _Head)(
            self, x, stream
        )
        term = None
        for h in range(self.heads):
            product = head.product(h, Q.entry(h), K.entry(h))
            if h == 0:
                module.project(product, V.entry(h), head.scale, out=out, stream=stream)
            else:
                term = module.project(product, V.entry(h), head.scale, out=term, stream=stream)
                module.combine(out, (term,), (1.0,), 1.0, out=out, stream=stream)

    def reduce(
        self,
        weight: int,
        values: Any,
        stream: int,
        *,
        dots: tuple[Any, ...] = (),
        distances: tuple[Any, ...] = (),
        col_bias: tuple[Any, ...] = (),
        masked: bool = True,
    ) -> Any:
        """sum_j w(s_ij) values_j over the particles that particle i sees."""
        seen = self._seen
        masks, band = (seen.masks, seen.band) if masked else ((), ALL)
        return reduced(
            self.c, self.x, weight, values, stream, dots, distances, col_bias, masks, band
        )


class _Head:
    """The products of all heads for one state."""

    scale = 1.0  # the factor of V

    def __init__(self, of: DeviceField, x: Any, stream: int) -> None:
        self.of, self.x, self.keys, self.stream = of, x, x, stream
        self.prepare(x, stream)

    def prepare(self, x: Any, stream: int) -> None:
        of, kind = self.of, self.of.field.kind
        self.normalised, self.l2 = kind in _NORMALISED, kind == "l2"
        self.weight = WEIGHTS["softmax"] if self.normalised else WEIGHTS[kind]
        self.values = x if self.normalised else of._seen.weighted(x, stream)

    def product(self, h: int, Q: Any, K: Any) -> Any:
        project = self.of.c.module.project
        queries = project(self.x, Q, stream=self.stream)
        return self.sums(h, queries, project(self.keys, K, stream=self.stream), K)

    def sums(self, h: int, q: Any, k: Any, K: Any) -> Any:
        of = self.of
        out = of.reduce(
            self.weight,
            self.values,
            self.stream,
            dots=() if self.l2 else ((q, k, 1.0),),
            distances=((q, k, 1.0, 0, 2),) if self.l2 else (),
            col_bias=of._seen.log_weights if self.normalised else (),
        )
        return out if self.normalised else of._seen.divided(out, self.stream)


class _Sinkhorn(_Head):
    """Means under a bistochastic kernel, divided by epsilon."""

    def prepare(self, x: Any, stream: int) -> None:
        of = self.of
        self.scale = 1 / of.field.epsilon
        if of.bistochastic is None:
            of.bistochastic = Bistochastic(of.field, of.c, x)
        self.solver = of.bistochastic

    def sums(self, h: int, q: Any, k: Any, K: Any) -> Any:
        return self.solver.product(h, q, k, self.x, self.stream)


class _Centred(_Head):
    """The second form of linear attention: a mean divided by epsilon, and a covariance times A x.

    The covariance is computed from y = x - m, where m is the mean of all particles, so that nothing cancels
    if the cloud is far from 0. With the mean n_i of the y that particle i sees,
    Cov_i A x_i = sum_j p_ij <Q x_i, K y_j> y_j - <Q x_i, K n_i> n_i.
    """

    def prepare(self, x: Any, stream: int) -> None:
        of, module, seen = self.of, self.of.c.module, self.of._seen
        everything = of.reduce(
            WEIGHTS["softmax"], x, stream, col_bias=seen.log_weights, masked=False
        )
        self.keys = module.map_vector("affine", x, everything, a=1.0, b=-1.0, stream=stream)
        self.visible = of.reduce(WEIGHTS["softmax"], self.keys, stream, col_bias=seen.log_weights)
        self.values = seen.weighted(self.keys, stream)
        self.mean = module.map_vector("affine", everything, self.visible, b=1.0, stream=stream)

    def sums(self, h: int, q: Any, k: Any, K: Any) -> Any:
        of, module, stream = self.of, self.of.c.module, self.stream
        seen = of.reduce(LINEAR, self.values, stream, dots=((q, k, 1.0),))
        seen = of._seen.divided(seen, stream)
        k = module.project(self.visible, K, stream=stream)
        along = rows_times(of.c, q, k, self.visible, stream)
        terms, signs = (along, self.mean), (-1.0, 1.0 / of.field.epsilon)
        return module.combine(seen, terms, signs, 1.0, out=seen, stream=stream)


class _Seen:
    """Which particles each particle sees, and their weights; uploaded to the device once."""

    def __init__(self, field: FieldSpec, c: Context, x: Any) -> None:
        self.c = c
        n, d = x.shape
        dtype, weights = x.dtype, field.weights
        whole = np.arange(n)
        order = whole if field.order is None else field.order
        ends = np.full(n, n) if field.ends is None else field.ends
        self.masks: tuple[Any, ...] = ()
        self.band = ALL
        if np.array_equal(order, whole) and np.array_equal(ends, whole + 1):
            self.band = (-UNBOUNDED, 0)
        elif field.ends is not None:
            rank = np.argsort(order)
            self.masks = (c.upload(rank[None, :] < ends[rank][:, None], "bool"),)
        # In sinkhorn attention the weights are the marginals, and rows are normalised.
        normalised = field.kind in (*_NORMALISED, "sinkhorn")
        self.plain = (
            weights is None
            and field.kind not in ("linear centred", "sinkhorn")
            and not self.masks
            and (normalised or field.ends is None)
        )
        self.log_weights: tuple[Any, ...] = ()
        self._inverse_weights = self._masses = None
        self._scale = 1.0
        if self.plain:
            return

        def rows(numbers: npt.NDArray[np.float64]) -> Any:
            with np.errstate(over="ignore"):  # infinity may be a divisor
                return c.upload(np.broadcast_to(numbers[:, None], (n, d)).astype(dtype), dtype)

        if weights is not None:
            with np.errstate(divide="ignore"):
                self.log_weights = (c.upload(np.log(weights), dtype),)
                if not normalised:
                    self._inverse_weights = rows(1 / weights)
        if normalised:
            return
        each = np.full(n, 1 / n) if weights is None else weights
        mass = np.empty(n)
        mass[order] = np.cumsum(each[order])[ends - 1]
        # With weights the sums add masses; without weights every particle counts as 1.
        total = float(n) if weights is None else 1.0
        if field.ends is not None and field.renormalise:
            self._masses = rows(total * mass)
        else:
            self._scale = 1 / total

    def weighted(self, x: Any, stream: int) -> Any:
        """w_j x_j, or x_j if there are no weights."""
        by = self._inverse_weights
        return x if by is None else divide(self.c, x, by, stream)

    def divided(self, sums: Any, stream: int) -> Any:
        """Sums over visible particles, divided by their mass or by the number of particles."""
        if self._masses is not None:
            return divide(self.c, sums, self._masses, stream)
        if self._scale == 1.0:
            return sums
        return self.c.module.map_vector("affine", sums, a=self._scale, out=sums, stream=stream)
