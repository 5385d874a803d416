"""Velocities of particles on the device: attention by the row reductions, the rest by small maps.

What the kernel ``velocity`` computes alone goes there. Weights, positions, the centred form and masks of
kinds that are not normalised are put together from the same reductions: log weights are a shift of columns,
positions a mask, masses divide rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import particles as checks
from .._host import WEIGHTS
from .._terms import UNBOUNDED
from ._bistochastic import Bistochastic
from ._cuda import Cuda
from ._errors import NoConvergence, Overflow
from ._rows import ALL, LINEAR, Sphere, divide, reduced, rows_times

__all__ = ["DeviceField", "cloud", "velocity"]

_NORMALISED = ("softmax", "l2")


class DeviceField:
    """An AttentionField whose matrices are on the device, or any function of device arrays."""

    def __init__(self, field: Any, c: Cuda, x: Any, name: str) -> None:
        self.field, self.c, self.x = field, c, x
        self.attention = hasattr(field, "parameters")
        self.sphere: Sphere | None = None
        self.bistochastic: Bistochastic | None = None  # potentials from call to call
        self._uploaded: tuple[float, tuple[Any, Any, Any]] | None = None
        self._start = 0.0
        if self.attention:
            _refuse(field)
            self._seen = _Seen(field, c, x)
            if field.sphere:
                self.sphere = Sphere(c, x)
                self.sphere.check(name, x)

    def enter(self, t: float) -> None:
        """A step begins: its layer stays in force to the end of the step."""
        self._start = t

    def matrices(self, t: float) -> tuple[Any, Any, Any]:
        """Q and K (heads, k, d), V (heads, d, d) in force at t; uploaded when they change."""
        field = self.field
        key = t if field.time_dependent else 0.0
        if field.times is not None:
            t = self._start
            key = float(np.searchsorted(field.times, t, side="right"))
        if self._uploaded is None or self._uploaded[0] != key:
            Q, K, V = field.parameters(t)
            V = np.broadcast_to(V, (field.heads, *V.shape[1:]))
            ready = tuple(self.c.upload(m, self.x.dtype) for m in (Q, K, V))
            self._uploaded = (key, ready)
        assert self._uploaded is not None
        return self._uploaded[1]

    def __call__(self, x: Any, t: float, out: Any, stream: int) -> Any:
        if not self.attention:
            return self._function(x, t, out, stream)
        if self._seen.plain:
            self._plain(x, t, out, stream)
        else:
            self._composed(x, t, out, stream)
        if self.sphere is not None:
            self.sphere.tangent(x, out, stream)
        return out

    def _function(self, x: Any, t: float, out: Any, stream: int) -> Any:
        given = self.field(self.c.library.take(x), t)
        array = self.c.take("field", given, dtype=self.x.dtype, like="X0")
        if array.shape != self.x.shape or not array.contiguous:
            raise ValueError(
                f"field: wanted a contiguous velocity of shape {self.x.shape}, got {array.shape} "
                f"with strides {array.strides}"
            )
        self.c.module.copy(array, out, stream)
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
        """Head by head: its product, then its values, added up."""
        module, field = self.c.module, self.field
        Q, K, V = self.matrices(t)
        kind = _Sinkhorn if field.kind == "sinkhorn" else _Centred if field.centred else _Head
        head = kind(self, x, stream)
        term = None
        for h in range(field.heads):
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
        """sum_j w(s_ij) values_j over what particle i sees."""
        seen = self._seen
        masks, band = (seen.masks, seen.band) if masked else ((), ALL)
        return reduced(
            self.c, self.x, weight, values, stream, dots, distances, col_bias, masks, band
        )


class _Head:
    """Products of one state, whatever the head."""

    scale = 1.0  # of the values

    def __init__(self, of: DeviceField, x: Any, stream: int) -> None:
        self.of, self.x, self.stream = of, x, stream
        kind = of.field.kind
        self.normalised, self.l2 = kind in _NORMALISED, kind == "l2"
        self.weight = WEIGHTS["softmax"] if self.normalised else WEIGHTS[kind]
        self.values = x if self.normalised else of._seen.weighted(x, stream)

    def product(self, h: int, Q: Any, K: Any) -> Any:
        of, module = self.of, self.of.c.module
        q = module.project(self.x, Q, stream=self.stream)
        k = module.project(self.x, K, stream=self.stream)
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
    """Means under a bistochastic kernel, over epsilon."""

    def __init__(self, of: DeviceField, x: Any, stream: int) -> None:
        self.of, self.x, self.stream = of, x, stream
        self.scale = 1 / of.field.epsilon
        if of.bistochastic is None:
            of.bistochastic = Bistochastic(of.field, of.c, x)
        self.solver = of.bistochastic

    def product(self, h: int, Q: Any, K: Any) -> Any:
        module = self.of.c.module
        q = module.project(self.x, Q, stream=self.stream)
        k = module.project(self.x, K, stream=self.stream)
        return self.solver.product(h, q, k, self.x, self.stream)


class _Centred(_Head):
    """Linear attention of its second form: a mean over epsilon, and a covariance times A x.

    About the mean m of all particles, for nothing to cancel when the cloud is far from 0: with y = x - m and
    the mean n_i of the y that particle i sees,
    Cov_i A x_i = sum_j p_ij <Q x_i, K y_j> y_j - <Q x_i, K n_i> n_i.
    """

    def __init__(self, of: DeviceField, x: Any, stream: int) -> None:
        self.of, self.x, self.stream = of, x, stream
        module, seen = of.c.module, of._seen
        everything = of.reduce(
            WEIGHTS["softmax"], x, stream, col_bias=seen.log_weights, masked=False
        )
        self.y = module.map_vector("affine", x, everything, a=1.0, b=-1.0, stream=stream)
        self.visible = of.reduce(WEIGHTS["softmax"], self.y, stream, col_bias=seen.log_weights)
        self.values = seen.weighted(self.y, stream)
        self.mean = module.map_vector("affine", everything, self.visible, b=1.0, stream=stream)

    def product(self, h: int, Q: Any, K: Any) -> Any:
        of, module, stream = self.of, self.of.c.module, self.stream
        q = module.project(self.x, Q, stream=stream)
        k = module.project(self.y, K, stream=stream)
        seen = of.reduce(LINEAR, self.values, stream, dots=((q, k, 1.0),))
        seen = of._seen.divided(seen, stream)
        k = module.project(self.visible, K, stream=stream)
        along = rows_times(of.c, q, k, self.visible, stream)
        terms, signs = (along, self.mean), (-1.0, 1.0 / of.field.epsilon)
        return module.combine(seen, terms, signs, 1.0, out=seen, stream=stream)


class _Seen:
    """Which particles see which and with what weight, brought to the device once."""

    def __init__(self, field: Any, c: Cuda, x: Any) -> None:
        self.c = c
        n, d = x.shape
        dtype = x.dtype
        weights = field.weights
        causal = isinstance(field.mask, str)
        if weights is not None:
            checks.count_matches("weights", len(weights), n)
            if causal:
                field._check_visible(weights, np.arange(1, n + 1))
        self.masks: tuple[Any, ...] = ()
        order, ends = np.arange(n), np.full(n, n)
        if causal:
            ends = np.arange(1, n + 1)
        elif field.mask is not None:
            checks.count_matches("mask", len(field.mask), n)
            order, ends = field._order, field._ends
        self.band = ALL
        if np.array_equal(order, np.arange(n)) and np.array_equal(ends, np.arange(1, n + 1)):
            self.band = (-UNBOUNDED, 0)
        elif field.mask is not None and not causal:
            visible = field.mask[None, :] <= field.mask[:, None]
            self.masks = (c.upload(visible, "bool"),)
        # Sinkhorn attention has its weights in the marginals, and normalised rows.
        normalised = field.kind in (*_NORMALISED, "sinkhorn")
        self.plain = (
            weights is None
            and not field.centred
            and field.kind != "sinkhorn"
            and not self.masks
            and (normalised or field.mask is None)
        )
        self.log_weights: tuple[Any, ...] = ()
        self._inverse_weights = self._masses = None
        self._scale = 1.0
        if self.plain:
            return

        def rows(numbers: npt.NDArray[np.float64]) -> Any:
            with np.errstate(over="ignore"):  # to infinity, which a number may be divided by
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
        # Sums are of masses when there are weights, of ones when there are none.
        whole = float(n) if weights is None else 1.0
        if field.mask is None or not (field.renormalise or field.centred):
            self._scale = 1 / whole
        else:
            self._masses = rows(whole * mass)

    def weighted(self, x: Any, stream: int) -> Any:
        """w_j x_j, or x_j when all weigh the same."""
        by = self._inverse_weights
        return x if by is None else divide(self.c, x, by, stream)

    def divided(self, sums: Any, stream: int) -> Any:
        """Sums over what is seen, divided by its mass or by the number of particles."""
        if self._masses is not None:
            return divide(self.c, sums, self._masses, stream)
        if self._scale == 1.0:
            return sums
        return self.c.module.map_vector("affine", sums, a=self._scale, out=sums, stream=stream)


def _refuse(field: Any) -> None:
    """What the kernels do not compute: said, and left to the CPU."""
    if field.kind == "sinkhorn" and field.mask is not None:
        raise ValueError(
            f"mask: wanted None for sinkhorn attention on a device, got {field!r}: one bridge per position; "
            "this field runs on the CPU: pass a NumPy array"
        )


# ---- one velocity -----------------------------------------------------------------------------------


def cloud(c: Cuda, name: str, X: Any, d: int | None) -> Any:
    """Particles (N, d), finite and contiguous."""
    x = c.numbers(name, X)
    _checks.shape(name, x.shape, ("N", "d" if d is None else d), what="particles")
    if not x.contiguous:
        raise ValueError(
            f"{name}: wanted a contiguous array, got strides {x.strides}; pass a contiguous copy"
        )
    c.finite(name, c.figures((name, x, None))[0])
    return x


def velocity(field: Any, X: Any, t: float) -> Any:
    """The velocities (N, d) of particles on the device."""
    c = Cuda(X)
    x = cloud(c, "X", X, field.d)
    stream = c.stream()
    target = c.output("out", None, x.shape, x.dtype)
    out = target if target is not None else c.module.empty(x.shape, x.dtype, c.device, stream)
    of = DeviceField(field, c, x, "X")
    of.enter(t)
    try:
        got = of(x, t, c.module.asarray(out, "out", stream), stream)
        figures = c.figures(("velocity", got, None))[0]
        lost = figures["nan"] or figures["plus_inf"] or figures["minus_inf"]
    except Overflow:
        lost = 1.0
    except NoConvergence:
        raise RuntimeError(
            "sinkhorn: the marginals did not reach sinkhorn_tol; raise sinkhorn_tol, "
            "sinkhorn_max_iter or epsilon, or pass a NumPy array: the CPU has Newton's method too"
        ) from None
    if lost:
        raise OverflowError(
            f"X: velocities of {field.kind} attention overflow {x.dtype}; scale the points or the "
            "parameters down" + (", or use float64" if x.dtype == "float32" else "")
        )
    return c.give(got, target, stream)
