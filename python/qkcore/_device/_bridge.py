"""Schrödinger bridges on the device: the solver of the host over kernels that stay there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _checks
from .._bridge_problem import _TOL, _penalties
from .._bridge_report import Callback
from .._bridge_solve import ask, overflowed
from ._bridge_kernel import DeviceKernel
from ._bridge_result import DeviceBridge
from ._scores import SOFTMAX, DeviceScores, one_of

__all__ = ["bridge", "semi_relaxed"]

# Figures of one problem, of which a batch has arrays.
_FIGURES = ("status", "converged", "n_iter", "n_visits", "error", "worst", "method", "relaxation")


def bridge(
    s: DeviceScores,
    mu: Any,
    nu: Any,
    *,
    penalty: Any,
    init: Any,
    max_memory: float | None,
    callback: Callback | None,
    progress: bool,
    **options: Any,
) -> DeviceBridge:
    """As :func:`qkcore.bridge`, one problem of a batch after the other."""
    c = s._context
    _full_precision(s)
    pair = (init.f, init.g) if isinstance(init, DeviceBridge) else init
    started = isinstance(pair, tuple) and len(pair) == 2
    given = (mu, nu, *pair) if started else (mu, nu)
    named = zip(("mu", "nu", "init f", "init g"), given, s.shape[-2:] * 2, strict=False)
    vectors = [_vector(s, *one) for one in named]
    solved = []
    for index in np.ndindex(s._batch):
        at = [c.download(one_of(x, index, 1)) for x in vectors]
        kernel = DeviceKernel(s._problem(index), at[0], _penalties(penalty)[0], max_memory)
        start = (at[2], at[3]) if started else pair
        asked = ask(kernel, at[0], at[1], penalty=penalty, init=start, **options)
        try:
            solved.append(asked.solved(callback, progress))
        except OverflowError:
            if not s._batch:
                raise
            solved.append(asked.fields(overflowed(kernel)))  # the others have their results
    fields = solved[0]
    if s._batch:
        for name in _FIGURES:
            fields[name] = np.array([one[name] for one in solved]).reshape(s._batch)
        fields["errors"] = np.array([_last(one["errors"]) for one in solved]).reshape(s._batch)
    stream = c.stream()
    for name in ("f", "g"):
        both = np.stack([one[name] for one in solved])
        both = both.reshape(*s._batch, both.shape[-1])
        fields[name] = c.give(c.upload(both, str(s.dtype)), stream=stream)
    return DeviceBridge(scores=s, **(fields | {"mu": mu, "nu": nu}))


def _vector(s: DeviceScores, name: str, value: Any, length: int) -> Any:
    """One for every problem of the batch."""
    array = s._context.vector(name, value, str(s.dtype), length, s._batch)
    _checks.into_batch(name, array.shape, array.shape[:-1], s._batch)
    return array


def _last(errors: Any) -> float:
    return float(errors[-1]) if len(errors) else math.inf


def semi_relaxed(s: DeviceScores, mu: Any, reference: Any) -> DeviceBridge:
    """Rows constrained, columns free: one row update (EOT-1)."""
    c, dtype, stream = s._context, str(s.dtype), s._context.stream()
    _full_precision(s)
    _checks.one_problem("kernel", s._batch)
    n, m = s.shape
    rows = _marginal(s, "mu", mu, n)
    if reference is None:
        g = c.fill(0.0, m, dtype)
    else:
        g = c.module.map_vector("log", _marginal(s, "reference", reference, m), stream=stream)
    lse, _ = s._with(col_bias=(*s._col_bias, g))._reduce(SOFTMAX, None, True, stream=stream)
    f = c.module.map_vector("log_minus", rows, lse, a=1.0, stream=stream)
    # A row with mass that sees nothing has a potential of +inf.
    blind = c.figures(("f", f, None))[0]["plus_inf"]
    if blind:
        host = c.download(f)
        host[np.isposinf(host)] = -np.inf
        f = c.upload(host, dtype)
    plan = s._with(row_bias=(*s._row_bias, f), col_bias=(*s._col_bias, g))
    sums, columns = c.module.marginals(plan._spec, stream=stream)
    found, given = c.figures(("rows", sums, rows), ("mu", rows, None))
    error, tol = found["difference"] / given["sum"], _TOL[s.dtype.itemsize]
    met = not blind and error <= tol
    return DeviceBridge(
        scores=s,
        mu=mu,
        nu=c.give(columns, stream=stream),
        f=c.give(f, stream=stream),
        g=c.give(g, stream=stream),
        status="infeasible" if blind else "converged" if met else "stagnated",
        converged=met,
        n_iter=1,
        n_visits=1,
        errors=np.array([error]),
        error=error,
        worst=found["ratio"],
        method="one row update",
        tol=tol,
        penalty=(math.inf, 0.0),
    )


def _full_precision(s: DeviceScores) -> None:
    if s._inputs != str(s.dtype):
        raise TypeError(
            f"kernel: wanted float32 or float64 for a bridge, got {s._inputs}; convert the points"
        )


def _marginal(s: DeviceScores, name: str, value: Any, length: int) -> Any:
    c, array = s._context, _vector(s, name, value, length)
    found = c.figures((name, array, None))[0]
    c.finite(name, found)
    if found["smallest"] < 0:
        raise ValueError(
            f"{name}: wanted weights >= 0, got {found['smallest']:.3g}; marginals are measures"
        )
    if found["largest"] == 0:
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    return array
