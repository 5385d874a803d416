"""Gaussian flows on the device (TPDE-3): the states stay there, and their sizes are copied to the host.

The kernel ``gaussian_steps`` computes the steps. The sizes of all laws are recorded after each step. A law
that grows beyond the limit, or is no longer finite, is computed again on the CPU, which finds where it ended
and how fast it grew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._config import get_num_threads
from .._flow_tasks import Laws, LawsFlown
from .._native import cpu
from .._ode import METHODS
from ._arrays import Context

__all__ = ["flow"]

MOST_DIMENSIONS = 8  # max_gaussian_dim of qk_cuda/api.hpp
_KINDS = ("softmax", "linear", "linear_epsilon", "l2")
_METHODS = ("euler", "heun", "rk4")
_SIZES = 2**20  # how many sizes are recorded on the device before they are copied to the host
# One step of Euler's method of this length gives the rate. It is a power of 2, so that dividing by it is
# exact.
_LONG = 2.0**20


def _check(p: Laws) -> None:
    """Refuses options that the kernel does not support."""
    method = cpu.FLOW_METHODS[p.method]
    for wrong, name, wanted, got in (
        (p.field == 2, "kind", _KINDS, "'sinkhorn'"),
        (method not in _METHODS, "method", _METHODS, repr(method)),
        (p.pushforward, "form", ("covariance",), "'pushforward'"),
    ):
        if wrong:
            names = ", ".join(f'"{n}"' for n in wanted)
            raise ValueError(
                f"{name}: wanted {names} for laws on a device, got {got}, which runs only on the CPU; pass "
                "NumPy arrays"
            )
    if (d := p.mean.shape[1]) > MOST_DIMENSIONS:
        raise ValueError(
            f"cov: wanted at most {MOST_DIMENSIONS} dimensions on a device, got {d}; pass NumPy arrays"
        )


def flow(c: Context, p: Laws, at: int) -> LawsFlown:
    _check(p)
    module, stream = c.module, at
    (n, d), dtype = p.mean.shape, p.mean.dtype.name
    mean, cov = c.upload(p.mean, dtype), c.upload(p.cov, dtype)
    given: tuple[npt.NDArray[Any], ...] = (p.score, p.query, p.value)
    if all(len(x) == 1 for x in given):  # one field for all laws
        given = tuple(x[0] for x in given)
    else:
        given = tuple(np.broadcast_to(x, (n, *x.shape[1:])) for x in given)
    matrices = tuple(c.upload(x, dtype) for x in given)
    field: dict[str, Any] = {"l2": p.field == 1, "gain": p.gain, "raw_moment": p.raw_moment}
    means = module.empty((p.n_stored, n, d), dtype, c.device, stream)
    covs = module.empty((p.n_stored, n, d, d), dtype, c.device, stream)
    tableau = METHODS[cpu.FLOW_METHODS[p.method]]
    watch = _Watch(c, p, stream)

    def store(slot: int) -> None:
        module.copy(mean, means.entry(slot), stream)
        module.copy(cov, covs.entry(slot), stream)

    def step(tables: Any, h: float) -> None:
        a, b = tables
        module.gaussian_steps(mean, cov, *matrices, **field, a=a, b=b, h=h, stream=stream)

    store(0)
    slot, span = 1, p.t1 - p.t0
    for k in range(p.n_steps):
        t = p.t0 + span * (k / p.n_steps)
        t_next = p.t1 if k + 1 == p.n_steps else p.t0 + span * ((k + 1) / p.n_steps)
        step((tableau.a, tableau.b), t_next - t)
        watch.look(mean, cov)
        if (k + 1) % p.every == 0 or k + 1 == p.n_steps:
            store(slot)
            slot += 1
        if p.report is not None and k % 64 == 0:
            p.report(k / p.n_steps)
    ended = watch.ended()
    last = c.download(mean), c.download(cov)
    step((((),), (1.0,)), _LONG)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # from laws that ended, which are replaced below
        rates = tuple(
            ((c.download(after) - before) / before.dtype.type(_LONG)).astype(before.dtype)
            for after, before in zip((mean, cov), last, strict=True)
        )
    figures, counts = np.zeros((n, 12)), np.zeros((n, 4), np.int64)
    figures[:, 0], counts[:, 1], counts[:, 3] = p.t1, p.n_steps, 1
    if len(ended):
        found = cpu.gaussian_flow(*p.of(ended), get_num_threads())
        for ours, theirs in zip((*rates, figures, counts), found[2:], strict=True):
            ours[ended] = theirs
        for ours, theirs in zip(last, found[:2], strict=True):
            ours[ended] = theirs[-1]
        for states, theirs in zip((means, covs), found[:2], strict=True):
            whole = c.download(states)
            whole[:, ended] = theirs
            module.copy(c.upload(whole, dtype), states, at)
    return LawsFlown(means, covs, last, (rates[0], rates[1]), figures, counts)


class _Watch:
    """Records the sizes of all laws after each step, and finds those that grew too large or became NaN."""

    def __init__(self, c: Context, p: Laws, stream: int) -> None:
        self.c, self.p, self.stream = c, p, stream
        n, dtype = len(p.mean), p.mean.dtype
        self._room = max(1, min(p.n_steps, _SIZES // n))
        # The sums of squares of covariances and of means.
        self._sizes = c.module.empty((2, self._room, n), dtype.name, c.device, stream)
        self._count = 0
        squares = np.square(p.cov.astype(np.float64)).sum(axis=(1, 2))
        if p.judge_mean:
            squares = np.maximum(squares, np.square(p.mean.astype(np.float64)).sum(axis=1) ** 2)
        with np.errstate(over="ignore"):
            most = np.minimum(p.max_growth**2 * squares, 0.9 * float(np.finfo(dtype).max))
        self._limit = np.where(squares > 0, most, np.inf)
        self._gone = np.zeros(n, bool)

    def look(self, mean: Any, cov: Any) -> None:
        n, d = mean.shape
        flat = cov.reshape((n, d * d))
        for kind, x in enumerate((flat, mean)):
            out = self._sizes.entry(kind).entry(self._count)
            self.c.module.row_dots(x, x, out=out, stream=self.stream)
        self._count += 1
        if self._count == self._room:
            self._read()

    def _read(self) -> None:
        covs, means = self.c.download(self._sizes).astype(np.float64)[:, : self._count]
        self._gone |= ~(np.isfinite(covs) & np.isfinite(means)).all(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            self._gone |= (covs > self._limit).any(axis=0)
            if self.p.judge_mean:
                self._gone |= (np.square(means) > self._limit).any(axis=0)
        self._count = 0

    def ended(self) -> npt.NDArray[np.intp]:
        if self._count:
            self._read()
        return np.flatnonzero(self._gone)
