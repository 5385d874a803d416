"""The kernels that the bridge solver knows, each with what the solver asks of it.

The entries, or products with them, are the core's (``native``); what is decided here is how the potentials
of a kernel are judged at the end, what its zeros allow, and which methods apply.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _checks, _feasibility
from ._bridge_check import Residual, judge, largest_finite, residual, rounding_slack, widened
from ._lazy_scores import Real, Scores
from ._native import cpu

if TYPE_CHECKING:
    from ._bridge_problem import Problem
    from ._bridge_solve import Found

__all__ = ["BridgeKernel", "ChainKernel", "GivenKernel", "ScoresKernel", "SweepKernel", "is_given"]

_EPS = float(np.finfo(np.float64).eps)
# What a solver asks of an object besides rows and columns.
_NEEDED = {
    "newton": ("curvature(x, mass)",),
    "accelerated": ("curvature(x, mass)",),
    "annealed": ("curvature(x, mass)", "scaled(factor)"),
}


class BridgeKernel:
    """One kernel exp(s_ij) of N rows and M columns, for one solve."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """of the marginals, and of what is given back"""
    batch: tuple[int, ...] = ()
    potentials: np.dtype[Any]
    """the dtype that potentials are rounded to before they are judged"""
    entries: np.dtype[Any]
    """the dtype that the entries are computed in"""
    symmetric = False
    """whether s_ij = s_ji by construction"""
    name = "kernel"
    """the argument that the caller gave it as"""

    @cached_property
    def native(self) -> Any:
        """The kernel as the core knows it; entries stay stored in it from solve to solve."""
        raise NotImplementedError

    def forget(self) -> None:
        """Gives back the memory of stored entries."""
        self.__dict__.pop("native", None)

    @property
    def kept(self) -> str:
        """How the entries were kept, for ``method``."""
        raise NotImplementedError

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        """The final check of potentials."""
        raise NotImplementedError

    @cached_property
    def support(self) -> Scores | None:
        """Scores that are -inf where the kernel is 0; None where that is not known."""
        return None

    def verdict(self, p: Problem, found: Found) -> str:
        """The last word on a problem, where zeros of the kernel leave the solver's own in doubt."""
        s = self.support if p.balanced else None  # penalties make every mask feasible
        if s is None:
            return found.status
        return _feasibility.verdict(s, p.mu, p.nu, found.f, found.g, found.status, found.error)

    def crawls(self, p: Problem) -> bool:
        """Whether it is cheap to know that the iteration converges like 1/k, without a limit."""
        s = self.support if p.balanced else None
        if s is None or not s.terms.banded or s.terms.masks or s.terms.dense:
            return False
        return _feasibility.diagnose(s, p.mu, p.nu) == _feasibility.NO_TOTAL_SUPPORT

    def in_double(self) -> BridgeKernel | None:
        """The same kernel with entries in double precision, where it has them in single."""
        return None

    def refuses(self, solver: str) -> str | None:
        """Why a method does not apply: what was wanted, and what to do; None where it does."""
        return None

    def automatic(self, symmetric: bool) -> str:
        """What "auto" stands for: the core's policy, unless something is known that it cannot see."""
        return "symmetric" if symmetric else "auto"


class ScoresKernel(BridgeKernel):
    """Scores, of one problem or of a batch. ``scratch``: room for a symmetric kernel's triangle."""

    def __init__(
        self,
        s: Scores,
        max_memory: float | None = None,
        *,
        potentials: Any = None,
        scratch: Real | None = None,
        name: str = "kernel",
    ) -> None:
        self.scores, self.max_memory, self.scratch, self.name = s, max_memory, scratch, name
        self.shape, self.dtype, self.batch = s.shape, s.dtype, s.batch
        self.entries = s.dtype
        self.potentials = np.dtype(s.dtype if potentials is None else potentials)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.scores.symmetric

    @property
    def memory(self) -> float:
        """Bytes for entries, as the core wants it."""
        return -1.0 if self.max_memory is None else float(self.max_memory)

    @cached_property
    def native(self) -> Any:
        return cpu.bridge_scores(self.scores._spec, self.memory, self.scratch)

    @property
    def kept(self) -> str:
        return "stored" if self.native.stored else "on the fly"

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        return residual(self.scores, *p.conditions, f, g, p.tol, p.n_threads)

    @cached_property
    def support(self) -> Scores:
        return self.scores

    def in_double(self) -> ScoresKernel | None:
        if self.dtype == np.float64:
            return None
        self.forget()
        return ScoresKernel(widened(self.scores), self.max_memory, name=self.name)


class ChainKernel(BridgeKernel):
    """The product of the kernels of several steps, as matrices."""

    name = "kernels"

    def __init__(self, steps: tuple[Scores, ...]) -> None:
        self.steps = steps
        self.shape = steps[0].shape[0], steps[-1].shape[1]
        self.dtype = self.potentials = self.entries = steps[0].dtype

    @cached_property
    def native(self) -> Any:
        return cpu.bridge_chain(tuple(s._spec for s in self.steps))

    @property
    def kept(self) -> str:
        return f"{len(self.steps)} steps"

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        """The ends in double precision, step by step."""
        wide = tuple(map(widened, self.steps))
        f, g = f.astype(np.float64), g.astype(np.float64)
        h, a = [g], [f]
        for s in reversed(wide):
            h.insert(0, s.shift(columns=h[0]).logsumexp(1, n_threads=p.n_threads))
        for s in wide:
            a.append(s.shift(rows=a[-1]).logsumexp(0, n_threads=p.n_threads))
        with np.errstate(invalid="ignore", over="ignore"):
            rows, columns = (np.nan_to_num(np.exp(x), nan=0.0) for x in (f + h[0], a[-1] + g))
        slack = sum(rounding_slack(s, x, y) for s, x, y in zip(wide, a, h[1:], strict=False))
        return judge((rows, columns), p.conditions, (f, g), slack, p.tol)

    def in_double(self) -> ChainKernel | None:
        return None if self.dtype == np.float64 else ChainKernel(tuple(map(widened, self.steps)))


class GivenKernel(BridgeKernel):
    """An object of the caller's own: see :func:`qkcore.bridge`."""

    def __init__(self, given: Any) -> None:
        self.given = given
        shape = given.shape
        if not (isinstance(shape, tuple) and len(shape) == 2):
            raise ValueError(f"kernel: wanted .shape as a pair (N, M), got {shape!r}")
        self.shape = tuple(_checks.integer("kernel.shape", size) for size in shape)
        if min(self.shape) < 1:
            raise ValueError(f"kernel: wanted .shape of at least (1, 1), got {shape!r}")
        self.dtype = self.potentials = self.entries = np.dtype(given.dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"kernel: wanted .dtype float32 or float64, got {self.dtype}")
        self.symmetric = bool(getattr(given, "symmetric", False))

    @cached_property
    def native(self) -> Any:
        n, m = self.shape
        return cpu.bridge_object(self.given, n, m, _EPS)

    @property
    def kept(self) -> str:
        return "given"

    def check(self, p: Problem, f: Real, g: Real) -> Residual:
        """By a visit of its own: the only word there is on the kernel's entries."""
        wide = f.astype(np.float64), g.astype(np.float64)
        try:
            with np.errstate(over="ignore"):
                sums = self.native.sums(*wide, p.n_threads)
        except OverflowError:
            return Residual(math.inf, math.inf, False)
        size = 32 + sum(map(largest_finite, wide)) + math.sqrt(max(self.shape))
        return judge(sums, p.conditions, wide, _EPS * size, p.tol)

    def refuses(self, solver: str) -> str | None:
        for method in _NEEDED.get(solver, ()):
            if not callable(getattr(self.given, method.partition("(")[0], None)):
                return (
                    f"wanted a method {method} for solver={solver!r}, got {type(self.given).__name__} "
                    'without one; write it, or use solver="auto", which does without'
                )
        return None


class SweepKernel(Protocol):
    """What a kernel of the caller's own has, and what may be missing (``curvature``, ``scaled``,
    ``entries``): see :func:`qkcore.bridge`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> npt.DTypeLike: ...
    def rows(self, g: Any, mass: Any, /) -> tuple[Any, Any]: ...
    def columns(self, f: Any, /) -> Any: ...


def is_given(kernel: object) -> bool:
    """Whether an object has what a kernel that is given from Python needs."""
    return (
        callable(getattr(kernel, "rows", None))
        and callable(getattr(kernel, "columns", None))
        and hasattr(kernel, "shape")
        and hasattr(kernel, "dtype")
    )
