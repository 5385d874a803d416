"""Gaussian flows on the device (TPDE-3): the states stay there, what is judged of them comes to the host.

Steps are those of the kernel ``gaussian_steps``. After each step the sizes of all laws are looked at; what
grows beyond the limit, or is no longer finite, is traced again on the CPU, which finds where it ended and how
fast it grew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._native import cpu
from .._ode import METHODS
from ._arrays import Context

__all__ = ["LawsOnDevice", "Steps"]

MOST_DIMENSIONS = 8  # max_gaussian_dim of qk_cuda/api.hpp
_METHODS = ("euler", "heun", "rk4")
_SIZES = 2**20  # numbers that are kept between two looks
# One step of Euler's method this long gives the rate; a power of 2, so that dividing by it is exact.
_LONG = 2.0**20


class Steps(NamedTuple):
    """What ``cpu.gaussian_flow`` is given, in its order."""

    field: int
    gain: float
    raw_moment: bool
    epsilon: float
    mean: npt.NDArray[Any]
    cov: npt.NDArray[Any]
    score: npt.NDArray[Any]
    query: npt.NDArray[Any]
    value: npt.NDArray[Any]
    method: int
    pushforward: bool
    t0: float
    t1: float
    n_steps: int
    every: int
    rtol: float
    atol: float
    max_steps: int
    max_growth: float
    judge_mean: bool
    report: Any
    n_threads: int

    def of(self, chosen: npt.NDArray[np.intp]) -> Steps:
        """The same for some of the trajectories."""

        def rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return x if len(x) == 1 < len(self.mean) else np.ascontiguousarray(x[chosen])

        return self._replace(
            mean=np.ascontiguousarray(self.mean[chosen]),
            cov=np.ascontiguousarray(self.cov[chosen]),
            score=rows(self.score),
            query=rows(self.query),
            value=rows(self.value),
            report=None,
        )


class LawsOnDevice:
    """Means and covariances that came on a device."""

    def __init__(self, mean: Any, cov: Any) -> None:
        self.c = c = Context(mean, cov)
        self._mean = None if mean is None else c.numbers("mean", mean)
        self._cov = c.numbers("cov", cov)

    def to_host(self) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any]]:
        """The laws of the start, for the checks and to be judged against."""
        mean = None if self._mean is None else self._copied("mean", self._mean)
        return mean, self._copied("cov", self._cov)

    def _copied(self, name: str, array: Any) -> npt.NDArray[Any]:
        if not array.contiguous:
            raise ValueError(
                f"{name}: wanted a contiguous array, got strides {array.strides}; pass a contiguous copy"
            )
        return self.c.download(array)

    @staticmethod
    def check(kind: str, method: str, form: str, d: int) -> None:
        """Refuses what the kernel does not compute."""
        for name, value, wanted in (
            ("kind", kind, ("softmax", "linear", "linear_epsilon", "l2")),
            ("method", method, _METHODS),
            ("form", form, ("covariance",)),
        ):
            if value not in wanted:
                names = ", ".join(f'"{n}"' for n in wanted)
                raise ValueError(
                    f"{name}: wanted {names} for laws on a device, got {value!r}; the others run on the "
                    "CPU: pass NumPy arrays"
                )
        if d > MOST_DIMENSIONS:
            raise ValueError(
                f"cov: wanted at most {MOST_DIMENSIONS} dimensions on a device, got {d}; pass NumPy arrays"
            )

    # ---- the flow ------------------------------------------------------------------------------

    def flow(self, p: Steps, n_stored: int) -> _Flowed:
        c, module, stream = self.c, self.c.module, self.c.stream()
        (n, d), dtype = p.mean.shape, p.mean.dtype.name
        mean, cov = c.upload(p.mean, dtype), c.upload(p.cov, dtype)
        given: tuple[npt.NDArray[Any], ...] = (p.score, p.query, p.value)
        if all(len(x) == 1 for x in given):  # one field for all
            given = tuple(x[0] for x in given)
        else:
            given = tuple(np.broadcast_to(x, (n, *x.shape[1:])) for x in given)
        matrices = tuple(c.upload(x, dtype) for x in given)
        field: dict[str, Any] = {"l2": p.field == 1, "gain": p.gain, "raw_moment": p.raw_moment}
        means = module.empty((n_stored, n, d), dtype, c.device, stream)
        covs = module.empty((n_stored, n, d, d), dtype, c.device, stream)
        tableau = METHODS[_METHODS[p.method]]
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
        with np.errstate(over="ignore", invalid="ignore"):  # of what ended, which is replaced below
            rates = tuple(
                ((c.download(after) - before) / before.dtype.type(_LONG)).astype(before.dtype)
                for after, before in zip((mean, cov), last, strict=True)
            )
        figures, counts = np.zeros((n, 12)), np.zeros((n, 4), np.int64)
        figures[:, 0], counts[:, 1], counts[:, 3] = p.t1, p.n_steps, 1
        if len(ended):
            found = cpu.gaussian_flow(*p.of(ended))
            for ours, theirs in zip((*rates, figures, counts), found[2:], strict=True):
                ours[ended] = theirs
            for ours, theirs in zip(last, found[:2], strict=True):
                ours[ended] = theirs[-1]
            means, covs = (
                self._replaced(ours, ended, theirs)
                for ours, theirs in zip((means, covs), found[:2], strict=True)
            )
        return _Flowed(means, covs, last, rates, figures, counts)

    def _replaced(self, states: Any, ended: npt.NDArray[np.intp], found: npt.NDArray[Any]) -> Any:
        whole = self.c.download(states)
        whole[:, ended] = found
        return self.c.upload(whole, states.dtype)

    def give(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Results in the shape of the batch, as arrays of the caller's library."""
        c = self.c
        stream = c.stream()
        if isinstance(array, np.ndarray):
            array = c.upload(array, array.dtype.name)
        shaped = array.reshape(shape)
        target = c.output("out", None, shape, shaped.dtype)
        if target is not None:
            c.module.copy(shaped, c.module.asarray(target, "out", stream), stream)
        return c.give(shaped, target, stream)


class _Flowed(NamedTuple):
    means: Any
    covs: Any
    last: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    rates: tuple[npt.NDArray[Any], ...]
    figures: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


class _Watch:
    """The sizes of all laws after each step: which of them grew too large or were lost."""

    def __init__(self, c: Context, p: Steps, stream: int) -> None:
        self.c, self.p, self.stream = c, p, stream
        n, dtype = len(p.mean), p.mean.dtype
        self._room = max(1, min(p.n_steps, _SIZES // n))
        # Squares of covariances and of means.
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
