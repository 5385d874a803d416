"""Schrödinger bridges on the device: the loop stays there, and one pair of numbers comes back per check."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from .. import _checks, _feasibility
from .._score_masks import UNBOUNDED
from ._bridge_result import DeviceBridge
from ._scores import SOFTMAX, DeviceScores, one_of

__all__ = ["DeviceBridge", "Loop", "bridge", "keeps_weights", "run", "semi_relaxed"]

_TOL = {4: 1e-5, 8: 1e-9}
_SOLVERS = ("auto", "alternating")
# Iterations between two looks at the residual: few at first, for easy problems, then more.
_FIRST, _MOST = 1, 16
# Checks without a new smallest residual after which the dtype has given what it can.
_PATIENCE = 25
# Weights of a strip of rows are kept between their two uses up to this much scratch memory.
_STORED_BYTES = 2**30


def bridge(
    s: DeviceScores,
    mu: Any,
    nu: Any,
    *,
    tol: float | None,
    max_iter: int,
    solver: str,
    penalty: tuple[float, float],
    init: Any,
    max_memory: float | None,
    report: Any,
) -> DeviceBridge:
    """Sinkhorn's iteration, one visit each; arguments checked by qk.bridge but for the arrays."""
    if solver not in _SOLVERS:
        raise ValueError(
            f'solver: wanted "auto" or "alternating" for arrays on a device, got {solver!r}; the others '
            "run on the CPU"
        )
    c, dtype = s._context, str(s.dtype)
    _full_precision(s)
    if s._batch and report is not None:
        raise ValueError("kernel: wanted one problem for a callback or a progress bar, got a batch")
    tol = _TOL[s.dtype.itemsize] if tol is None else _checks.positive("tol", tol)
    n, m = s.shape[-2:]
    rows, columns = _marginal(s, "mu", mu, n), _marginal(s, "nu", nu, m)
    balanced = all(map(math.isinf, penalty))
    problems = list(itertools.product(*map(range, s._batch)))
    if balanced:
        _same_masses(s, [(one_of(rows, p, 1), one_of(columns, p, 1)) for p in problems])
    start = _start(s, init)
    stored = keeps_weights((n, m), s.dtype.itemsize, max_memory)
    stream = c.stream()
    f, g = (c.module.empty((*s._batch, k), dtype, c.device, stream) for k in (n, m))
    loops = [
        Loop(
            s._problem(p),
            (one_of(rows, p, 1), one_of(columns, p, 1)),
            (one_of(f, p, 1), one_of(g, p, 1)),
            None if start is None else one_of(start, p, 1),
            penalty,
            stored,
            stream,
        )
        for p in problems
    ]
    run(loops, 0.5 * tol, max_iter, report)
    found = [loop.finish(tol) for loop in loops]
    return DeviceBridge(
        scores=s,
        mu=mu,
        nu=nu,
        f=c.give(f, stream=stream),
        g=c.give(g, stream=stream),
        method=f"alternating, {'one exp' if stored else 'two exps'} per entry and iteration",
        tol=tol,
        penalty=penalty,
        **(_over_batch(found, s._batch) if s._batch else found[0]._asdict()),
    )


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
        checked=np.ones(1, np.int64),
    )


def _full_precision(s: DeviceScores) -> None:
    if s._inputs != str(s.dtype):
        raise TypeError(
            f"kernel: wanted float32 or float64 for a bridge, got {s._inputs}; convert the points"
        )


def keeps_weights(shape: tuple[int, int], itemsize: int, max_memory: float | None) -> bool:
    """Whether there is room for the weights between their two uses."""
    # 216 blocks keep a strip of 32 rows each (cuda/src/sweep.hpp).
    strips = min(216, -(-shape[0] // 32)) * 32 * shape[1] * itemsize
    return strips <= (_STORED_BYTES if max_memory is None else max_memory)


class _Found(NamedTuple):
    """What became of one problem."""

    status: str
    converged: bool
    n_iter: int
    n_visits: int
    errors: Any
    error: float
    worst: float
    checked: Any


def _over_batch(found: list[_Found], batch: tuple[int, ...]) -> dict[str, Any]:
    """The figures of all problems as arrays over the batch; of the errors the last ones."""
    out: dict[str, Any] = {}
    for name in ("status", "converged", "n_iter", "n_visits", "error", "worst"):
        out[name] = np.array([getattr(one, name) for one in found]).reshape(batch)
    out["errors"] = np.array([one.errors[-1] for one in found]).reshape(batch)
    return out


def run(loops: list[Loop], tol: float, max_iter: int, report: Any = None) -> None:
    """Iterates all problems that have not ended, with one look at all of their errors at a time."""
    one = loops[0]
    module, stream = one.c.module, one.stream
    residual = module.empty((len(loops), 2), "float64", one.c.device, stream)
    active, done, every = loops, 0, _FIRST
    while active and done < max_iter:
        count = min(every, max_iter - done)
        seen = module.sinkhorn_sweeps_many(
            [loop.arrays for loop in active],
            residual.cut(-2, 0, len(active)),
            count,
            done > 0,
            *one.dampings,
            one.stored,
            stream,
        )
        done += count
        for loop, (absolute, stuck) in zip(active, seen, strict=True):
            error = absolute / loop.mass
            if report is not None:
                report(done, error)
            loop.look(count, error, stuck, tol)
        active = [loop for loop in active if not loop.status]
        every = min(2 * every, _MOST)
    for loop in active:
        loop.status = "iteration limit"


class Loop:
    """One problem; f and g are written in place."""

    def __init__(
        self,
        s: DeviceScores,
        marginals: tuple[Any, Any],
        potentials: tuple[Any, Any],
        start: Any,
        penalty: tuple[float, float],
        stored: bool,
        stream: int,
    ) -> None:
        self.s, self.c, self.penalty = s, s._context, penalty
        self.mu, self.nu = marginals
        self.f, self.g = potentials
        self.stored, self.stream = stored, stream
        self.balanced = all(map(math.isinf, penalty))
        self.dampings = tuple(1.0 if math.isinf(p) else p / (1 + p) for p in penalty)
        n, m = s.shape
        dtype, device, module = str(s.dtype), self.c.device, self.c.module
        # g of the first row update; f follows from it. A column that had no mass starts from nothing.
        if start is None:
            module.copy(self.c.fill(0.0, m, dtype), self.g, stream)
        else:
            module.map_vector("minus_or_zero", start, out=self.g, stream=stream)
            module.map_vector("affine", self.g, a=-1.0, out=self.g, stream=stream)
        self.lse = module.empty((n,), dtype, device, stream)
        self.columns = module.empty((m,), dtype, device, stream)
        # Errors are shares of the mass: of the marginals, or of the plan where these need not be met.
        self.mass = self.c.figures(("mu", self.mu, None))[0]["sum"]
        self.errors: list[float] = []
        self.checked: list[int] = []
        self.n_iter = self.n_visits = 0
        self.status = ""
        self._best, self._since = math.inf, 0

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What the sweeps read and write."""
        return self.s._spec, self.g, self.mu, self.nu, self.lse, self.f, self.columns

    def look(self, count: int, error: float, stuck: float, tol: float) -> None:
        """After ``count`` more iterations: whether to go on, which an empty status means."""
        self.n_iter += count
        self.n_visits += count
        self.errors.append(error)
        self.checked.append(self.n_iter)
        self._since = 0 if error < self._best else self._since + 1
        self._best = min(self._best, error)
        if stuck and not self._exact_columns():
            self.status = "infeasible"
        elif not math.isfinite(error):
            self.status = "infeasible" if self._blind_rows() else "stagnated"
        elif (error <= tol and not stuck) or (
            not self.balanced and len(self.errors) > 1 and self._settled(tol)
        ):
            self.status = "converged"
        elif self._since >= _PATIENCE and self.balanced:
            self.status = "stagnated"

    def _settled(self, tol: float) -> bool:
        """Penalised problems: the optimality conditions themselves, since no marginal is met."""
        return self._error()[0] <= tol

    def _exact_columns(self) -> bool:
        """Columns whose mass underflowed: their potential from an exact log-sum-exp."""
        turned = self.s.T
        turned = turned._with(col_bias=(*turned._col_bias, self.f))
        lse, _ = turned._reduce(SOFTMAX, None, True, stream=self.stream)
        self.n_visits += 1
        self.c.module.map_vector(
            "log_minus", self.nu, lse, a=self.dampings[1], out=self.g, stream=self.stream
        )
        return self.c.figures(("g", self.g, None))[0]["plus_inf"] == 0

    def _blind_rows(self) -> bool:
        return self.c.figures(("f", self.f, None))[0]["plus_inf"] > 0

    # ---- the end -------------------------------------------------------------------------------

    def _error(self) -> tuple[float, float]:
        """L1 (as a share of the mass) and worst relative error of the conditions on the marginals."""
        s = self.s._with(row_bias=(*self.s._row_bias, self.f), col_bias=(*self.s._col_bias, self.g))
        sums = self.c.module.marginals(s._spec, stream=self.stream)
        wanted = []
        for weight, potential, strength in zip(
            (self.mu, self.nu), (self.f, self.g), self.penalty, strict=True
        ):
            if math.isinf(strength):
                wanted.append(weight)
            else:
                wanted.append(
                    self.c.module.map_vector(
                        "tilt", weight, potential, a=-1 / strength, stream=self.stream
                    )
                )
        figures = self.c.figures(("rows", sums[0], wanted[0]), ("columns", sums[1], wanted[1]))
        self.n_visits += 1
        if any(side["nan"] or side["plus_inf"] for side in figures):
            return math.inf, math.inf
        mass = self.mass if self.balanced else figures[0]["sum"]
        off = max(s["difference"] for s in figures)
        error = off / mass if mass > 0 else math.inf if off > 0 else 0.0
        return error, max(s["ratio"] for s in figures)

    def finish(self, tol: float) -> _Found:
        module, status = self.c.module, self.status
        if self.balanced and status != "infeasible":
            mean = self.c.figures(("g", self.g, self.nu))[0]
            shift = mean["dot"] / mean["weight"]
            if math.isfinite(shift):
                module.map_vector("affine", self.f, c=shift, out=self.f, stream=self.stream)
                module.map_vector("affine", self.g, c=-shift, out=self.g, stream=self.stream)
        blind = self._blind_rows()
        if blind:
            status = "infeasible"
        error, worst = (math.inf, math.inf) if blind else self._error()
        converged = error <= tol and status != "infeasible"
        if converged:
            status = "converged"
        elif status == "converged":
            status = "stagnated"
        status = self._verdict(status, error)
        return _Found(
            status,
            status == "converged",
            self.n_iter,
            self.n_visits,
            np.asarray(self.errors),
            error,
            worst,
            np.asarray(self.checked, np.int64),
        )

    def _verdict(self, status: str, error: float) -> str:
        """What the mask allows, by the tests of the CPU: a mask of few entries is copied to the host."""
        from .. import scores

        s, (n, m) = self.s, self.s.shape
        open_sides = [abs(end) == UNBOUNDED for end in s._band]
        if not self.balanced or (not s._masks and all(open_sides)):
            return status
        if s._masks or not any(open_sides):
            if n * m > _feasibility.MAX_ENTRIES:
                return status
            host = scores.dense(s.to_numpy())
        else:  # a causal mask: what it lets through is known without its entries
            host = scores.dot(np.zeros((n, 1), s.dtype), np.zeros((m, 1), s.dtype))._with(
                band=s._band
            )
        mu, nu, f, g = (self.c.download(x) for x in (self.mu, self.nu, self.f, self.g))
        return _feasibility.verdict(host, mu, nu, f, g, status, error)


# ---- arguments ----------------------------------------------------------------------------------


def _start(s: DeviceScores, init: Any) -> Any:
    """g to start from, (..., M)."""
    if init is None:
        return None
    pair = (init.f, init.g) if isinstance(init, DeviceBridge) else init
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"init: wanted an earlier result on the device or a pair (f, g), got {type(init).__name__}"
        )
    c = s._context
    g = c.vector("init g", pair[1], str(s.dtype), s.shape[-1], s._batch)
    _checks.into_batch("init g", g.shape, g.shape[:-1], s._batch)
    c.finite("init g", c.figures(("init g", g, None))[0], minus_inf=True)
    return g


def _marginal(s: DeviceScores, name: str, value: Any, length: int) -> Any:
    c = s._context
    array = c.vector(name, value, str(s.dtype), length, s._batch)
    _checks.into_batch(name, array.shape, array.shape[:-1], s._batch)
    found = c.figures((name, array, None))[0]
    c.finite(name, found)
    if found["smallest"] < 0:
        raise ValueError(
            f"{name}: wanted weights >= 0, got {found['smallest']:.3g}; marginals are measures"
        )
    if found["largest"] == 0:
        raise ValueError(f"{name}: wanted some mass, got all zeros")
    return array


def _same_masses(s: DeviceScores, marginals: list[tuple[Any, Any]]) -> None:
    """Both marginals of every problem must have the same total."""
    figures = s._context.figures(
        *((name, w, None) for pair in marginals for name, w in zip(("mu", "nu"), pair, strict=True))
    )
    slack = 16 * math.sqrt(max(s.shape[-2:])) * float(np.finfo(s.dtype).eps)
    for rows, columns in zip(figures[::2], figures[1::2], strict=True):
        a, b = rows["sum"], columns["sum"]
        if abs(a - b) > slack * abs(a):
            raise ValueError(
                f"nu: wanted the total mass of mu, {a:.6g}, got {b:.6g}; divide both by their sums, or "
                "pass penalty= for marginals that need not be met"
            )
