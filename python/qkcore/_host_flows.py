"""Flows of particles and Gaussian laws in NumPy arrays, a part of the backend ``Host``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._blas import bring_blas
from ._checks import particles as checks
from ._flow_tasks import FieldSpec, Flown, FlowOptions, Laws, LawsFlown
from ._native import cpu
from ._ode import IMPLICIT, NoConvergence, Overflow

__all__ = ["HostFlows"]

Real = npt.NDArray[np.floating[Any]]
Velocity = Callable[[Any, float], Any]

_MOST_UNKNOWNS = 4000  # for implicit methods, which factor a matrix of this size at every step
# Sinkhorn attention stores an N x N kernel of at most this size; entries of larger ones are computed anew.
_STORED_BYTES = 2**28
_METHODS = cpu.FLOW_METHODS


class HostFlows:
    """The section "flows" of :class:`qkcore._backend.Backend`, on NumPy arrays."""

    def particles(self, name: str, X: Any, d: int | None) -> Real:
        return checks.one_cloud(name, X, d)

    def on_sphere(self, name: str, x: Real) -> None:
        checks.on_sphere(name, x)

    def velocity(self, field: FieldSpec, x: Real, t: float, at: int) -> Real:
        code, v = cpu.velocity(_described(field, x), _sorted(field, x), t, at)
        status = cpu.VELOCITY_STATUS[code]
        if status == "not finite":
            raise Overflow
        if status == "no convergence":
            raise NoConvergence
        return _back(field, v, 0)

    def integrate(
        self, field: FieldSpec | Velocity, x: Real, options: FlowOptions, at: int
    ) -> Flown:
        dtype, method = x.dtype, options.method
        if method in IMPLICIT:
            _check_unknowns(f"for {x.size} coordinates", method, x.size)
            x = x.astype(np.float64, copy=False)
        native: Any = checks.PythonVelocity(field)
        if isinstance(field, FieldSpec):
            native, x = _described(field, x), _sorted(field, x)
        given = {**options._asdict(), "method": _METHODS.index(method)}
        t, states, status, *counts = cpu.integrate(native, x, given, at)
        states = _back(field, states, 1).astype(dtype, copy=False)
        return Flown(t, states, cpu.FLOW_STATUS[status], *counts)

    def last_radius(self, states: Real) -> float:
        last = states[-1].astype(np.float64)
        size = max(float(np.abs(last).max()), 1e-300)  # divided by, so that squares do not overflow
        return size * float(np.linalg.norm(last / size, axis=1).max())

    def law(self, name: str, value: Any) -> Any:
        return value

    def gaussian_flow(self, laws: Laws, at: int) -> LawsFlown:
        dtype, d = laws.mean.dtype, laws.mean.shape[1]
        if _METHODS[laws.method] in IMPLICIT:
            unknowns = d + d * (d + 1) // 2
            _check_unknowns(f"in {d} dimensions", _METHODS[laws.method], unknowns)
            laws = laws.mapped(lambda x: x.astype(np.float64, copy=False))
        if cpu.gaussian_wants_blas(laws.field, d):
            bring_blas()
        *found, figures, counts = cpu.gaussian_flow(*laws, at)
        mean, cov, mean_rate, cov_rate = (x.astype(dtype, copy=False) for x in found)
        return LawsFlown(mean, cov, (mean[-1], cov[-1]), (mean_rate, cov_rate), figures, counts)

    def shaped(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape)


def _described(field: FieldSpec, x: Real) -> tuple[Any, ...]:
    """The tuple that cpp/bind/register_particles.cpp reads; particles are sorted by their positions."""
    weights = field.weights
    return (
        cpu.FIELD_KINDS.index(field.kind),
        field.Q,
        field.K,
        field.V,
        field.times,
        np.empty(0, np.int64) if field.ends is None else field.ends,
        np.empty(0) if weights is None else _sorted(field, weights),
        field.renormalise,
        field.sphere,
        field.epsilon,
        field.tol_of(x.dtype),
        field.max_visits,
        len(x) ** 2 * x.itemsize <= _STORED_BYTES,
        field.parameters if field.time_dependent else None,
    )


def _sorted(field: FieldSpec, x: Real) -> Real:
    return x if field.order is None else x[field.order]


def _back(field: FieldSpec | Velocity, x: Real, axis: int) -> Real:
    """Particles in the order of the caller."""
    if not isinstance(field, FieldSpec) or field.order is None:
        return x
    out = np.empty_like(x)
    out[field.order if axis == 0 else (slice(None), field.order)] = x
    return out


def _check_unknowns(where: str, method: str, n: int) -> None:
    if n > _MOST_UNKNOWNS:
        raise ValueError(
            f"method: wanted an explicit method {where}, got {method!r}, which factors a matrix with {n} "
            f"rows at every step; pass at most {_MOST_UNKNOWNS} unknowns, or method='dopri5'"
        )
