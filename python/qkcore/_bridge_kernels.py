"""The kernels that the bridge solver knows, each with the methods that the solver calls.

The core computes the entries, or products with them (``native``). The classes here decide how the potentials
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
# The methods that a solver calls on a kernel given from Python, besides rows and columns.
_NEEDED = {
    "newton": ("curvature(x, mass)",),
    "accelerated": ("curvature(x, mass)",),
    "annealed": ("curvature(x, mass)", "scaled(factor)"),
}


class BridgeKernel:
    """One kernel exp(s_ij) of N rows and M columns, for one solve."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """the dtype of the marginals and of the result"""
    batch: tuple[int, ...] = ()
    potentials: np.dtype[Any]
    """the dtype that potentials are rounded to before they are judged"""
    entries: np.dtype[Any]
    """the dtype that the entries are computed in"""
    symmetric = False
    """whether s_ij = s_ji by construction"""
    name = "kernel"
    """the name of the caller's argument, for messages"""

    @cached_property
    def native(self) -> Any:
        """The kernel as an object of the core, which keeps stored entries from one solve to the next."""
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
        """The status of a result, after a check whether the zeros of the kernel allow a solution at all."""
        s = self.support if p.balanced else None  # penalties make every mask feasible
        if s is None:
            return found.status
        return _feasibility.verdict(s, p.mu, p.nu, found.f, found.g, found.status, found.error)

    def crawls(self, p: Problem) -> bool:
        """Whether a cheap test shows that the potentials have no limit, so that errors decay like 1/k."""
        s = self.support if p.balanced else None
        if s is None or not s.terms.banded or s.terms.masks or s.terms.dense:
            return False
        return _feasibility.diagnose(s, p.mu, p.nu) == _feasibility.NO_TOTAL_SUPPORT

    def in_double(self) -> BridgeKernel | None:
        """The same kernel with entries in double precision; None if it has them already."""
        return None

    def refuses(self, solver: str) -> str | None:
        """Why a method does not apply, as a message with what to do instead; None if it applies."""
        return None

    def automatic(self, symmetric: bool) -> str:
        """The method that "auto" stands for: the core's policy, unless this kernel knows a better method."""
        return "symmetric" if symmetric else "auto"


class ScoresKernel(BridgeKernel):
    """Scores of one problem or of a batch. ``scratch``: memory for the triangle of a symmetric kernel."""

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
        """The most bytes for stored entries; -1 leaves the choice to the core."""
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
        """The marginals at both ends of the chain, computed in double precision, step by step."""
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
    """A kernel that the caller gives as a Python object: see :func:`qkcore.bridge`."""

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
        """One more visit, which asks the caller's object for the sums: nothing else knows the entries."""
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
    """The methods of a kernel that the caller gives as a Python object: see :func:`qkcore.bridge`.

    The methods ``curvature``, ``scaled`` and ``entries`` may be missing.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> npt.DTypeLike: ...
    def rows(self, g: Any, mass: Any, /) -> tuple[Any, Any]: ...
    def columns(self, f: Any, /) -> Any: ...


def is_given(kernel: object) -> bool:
    """Whether an object has the attributes that a kernel given from Python needs."""
    return (
        callable(getattr(kernel, "rows", None))
        and callable(getattr(kernel, "columns", None))
        and hasattr(kernel, "shape")
        and hasattr(kernel, "dtype")
    )
