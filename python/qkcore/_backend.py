"""The interface of backends: all that scores, operators, bridges and flows ask of the CPU engine or of CUDA.

A backend belongs to the arrays of one call: it knows where they are and which library made them. ``at`` says
where a visit runs: it is a number of threads on the CPU, and a stream on a device. If a backend cannot do
something, its method raises an error whose message says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _device
from ._host import HOST

if TYPE_CHECKING:
    from ._flow_tasks import FieldSpec, Flown, FlowOptions, Laws, LawsFlown
    from ._lazy_scores import Scores
    from ._terms import Terms

__all__ = ["Backend", "Normalizer", "backend_of"]

Velocity = Callable[[Any, float], Any]
Array = Any  # of the backend: NumPy's, or the CUDA module's view of a device array
Host = npt.NDArray[Any]


class Normalizer(Protocol):
    """The log-sum-exp of every row, as precisely as the backend keeps it."""

    @property
    def lse(self) -> Array: ...
    def shifts(self) -> tuple[Array, ...]:
        """Numbers to add to the scores of a row, one after the other: their exponentials are the weights."""

    def divided(self) -> tuple[Array, Host] | None:
        """A shift of the scores, and factors of the right-hand sides that complete the normalisation; None if
        this would save nothing."""


class Backend(Protocol):
    """The place where the arrays of a call are, and the engine that computes there."""

    host_arrays: bool
    """whether the arrays are NumPy's, which the CPU engine can read"""

    @property
    def place(self) -> str:
        """ "cpu", or e.g. "cuda:0" """

    # ---- arguments ----------------------------------------------------------------------------------

    def at(self, n_threads: int | None, stream: object = None) -> int:
        """Where to compute; refuses the option that belongs to the other backend."""

    def matrix(self, name: str, value: Any) -> tuple[Array, np.dtype[Any], float, bool]:
        """An array (..., N, M) of scores, the dtype of results, the largest magnitude, and whether -inf masks
        an entry."""

    def points(
        self, names: tuple[str, str], X: Any, Y: Any
    ) -> tuple[Array, Array, float, float, np.dtype[Any]]:
        """Points (..., n, d) of one dtype, with X for Y if Y is None; the largest magnitudes of their
        coordinates, and the dtype of results."""

    def small(self, value: Any, dtype: np.dtype[Any]) -> Any:
        """A matrix W, or the pair of its factors, as NumPy arrays."""

    def vectors(
        self,
        dtype: np.dtype[Any],
        batch: tuple[int, ...],
        *named: tuple[str, Any, int],
    ) -> list[tuple[Array, float]]:
        """Arrays (..., length) of the scores' dtype, with their largest finite magnitudes; -inf is a mask."""

    def values(
        self, name: str, value: Any, dtype: np.dtype[Any], like: str = "the scores"
    ) -> tuple[Array, bool]:
        """Right-hand sides of this dtype, and whether they are already known to be finite. ``like`` names
        what has this dtype, for messages."""

    def check_finite(self, name: str, array: Array) -> None:
        """Refuses NaN, infinities and empty axes."""

    def boolean(self, name: str, value: Any, core: tuple[int, ...]) -> Array:
        """A boolean array whose last axes have the lengths ``core``; True keeps an entry."""

    def output(self, name: str, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The caller's array for results, checked, or a new array; None if the visit makes the array."""

    def writable(self, target: Any, vector: bool, at: int) -> Array | None:
        """The caller's array in the form that products write to (a vector has one column); None if they
        cannot, and ``give`` copies the result instead."""

    # ---- views --------------------------------------------------------------------------------------

    def swap(self, array: Array) -> Array:
        """The last two axes exchanged."""

    def cut(self, array: Array, axis: int, first: int, last: int) -> Array:
        """The entries first to last of an axis (a negative number); an axis of length 1 is not cut."""

    def one(self, array: Array, index: tuple[int, ...], core: tuple[slice, ...]) -> Array:
        """The part of an array that belongs to one problem of a batch. ``core`` has one slice for each of the
        last axes, which are not batch axes."""

    def indexed(self, array: Array, index: tuple[Any, ...], core: int) -> Array:
        """The entries at integers or slices, one for each batch axis; the last ``core`` axes stay."""

    def has_minus_inf(self, array: Array) -> bool:
        """Whether -inf masks an entry."""

    def part(self, array: Any, index: Any) -> Any:
        """The vector of one problem, out of the caller's array for all problems."""

    def taken(self, array: Array, at: npt.NDArray[np.intp], axis: int) -> Array:
        """The entries at these indices along an axis."""

    def column(self, array: Array) -> Array:
        """(..., n) as (..., n, 1)."""

    def same(self, a: Array, b: Array) -> bool:
        """Whether two arrays are the same memory in the same order (False where that is not known)."""

    # ---- small maps ---------------------------------------------------------------------------------

    def scaled(self, array: Array, factor: float) -> Array:
        """The array times a number."""

    def project(self, name: str, points: Array, matrix: Host) -> tuple[Array, float]:
        """points @ matrix, and its largest magnitude."""

    def unit_rows(self, name: str, x: Array) -> Array:
        """Points divided by their norms; refuses points of norm 0."""

    def row_dots(self, a: Array, b: Array, factor: float) -> Array:
        """factor <a_i, b_i> of every row."""

    def centred(self, x: Array, y: Array) -> tuple[Array, Array] | None:
        """Both clouds minus the mean of y, if the engine expands squared distances into products; None if it
        computes them from differences."""

    def negated(self, x: Array, n_last: int) -> Array:
        """The points with their last coordinates negated."""

    def padding(self, terms: Terms, mask: Array, dtype: np.dtype[Any], n_rows: int) -> Terms:
        """The terms with the columns masked where ``mask`` is 0."""

    def joined(self, s: Scores, t: Scores) -> None:
        """Refuses to add scores that are in different places or have different input dtypes."""

    # ---- factors of low-rank kernels (_host_factors.py, _device/_factors.py) ----------------------------

    most_experts: int | None
    """how many experts a product through factors may have; None: any number"""

    def factor(self, name: str, value: Any) -> Array:
        """One factor (..., n, r) or (..., r, n) of finite numbers."""

    def streamed(self, array: Array) -> Array:
        """Components (..., r, n) whose points are contiguous: the array itself when they are."""

    def factored_product(
        self, left: tuple[Array, ...], right: tuple[Array, ...], z: Array, at: int
    ) -> Array:
        """z (..., k, M) times the transpose of prod_e left_e^T right_e: (..., k, N)."""

    def converted(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The numbers in another dtype; the array itself when it has it. From a device they cross to the host
        and back."""

    def smallest(self, array: Array) -> float:
        """The smallest entry."""

    # ---- visits -------------------------------------------------------------------------------------

    def describe(self, s: Scores) -> tuple[Any, ...]:
        """The scores as the tuple that the engine reads."""

    def logsumexp(self, s: Scores, target: Any, at: int) -> Array: ...

    def largest(self, s: Scores, at: int) -> Any:
        """The largest score of each row, in the caller's library."""

    def normalizer(self, s: Scores, at: int) -> Normalizer: ...

    def product(
        self,
        s: Scores,
        weight: str,
        values: Array,
        target: Any,
        at: int,
        keep: list[Any] | None = None,
    ) -> Array:
        """sum_j w(s_ij) values_j. If ``keep`` is an empty list, it receives the normaliser of the weight
        "softmax", which the same pass finds."""

    def materialize(self, s: Scores, weight: str | None, target: Any, at: int) -> Array:
        """w(s_ij) as an array; the scores themselves without a weight."""

    def marginals(self, s: Scores, at: int) -> tuple[Array, Array]: ...

    def moment(self, which: str, s: Scores, log_weights: Callable[[int], Scores], at: int) -> Array:
        """The "entropy" of each row of the softmax of s, or its "expected score"."""

    # ---- flows: the types of their arguments and results are in _flow_tasks.py ----------------------

    def particles(self, name: str, X: Any, d: int | None) -> Array:
        """Particles (N, d), finite and contiguous; ``d`` is their dimension where that is known."""

    def on_sphere(self, name: str, x: Array) -> None:
        """Refuses particles whose norms are not 1."""

    def velocity(self, field: FieldSpec, x: Array, t: float, at: int) -> Any:
        """The velocities (N, d) at time t in the caller's library; raises _ode's Overflow, NoConvergence."""

    def integrate(
        self, field: FieldSpec | Velocity, x: Array, options: FlowOptions, at: int
    ) -> Flown:
        """Particles moved by a field of attention, or by a function of (X, t) in the caller's library."""

    def last_radius(self, states: Any) -> float:
        """The largest distance of a particle from 0 in the last of the states (T, N, d)."""

    def law(self, name: str, value: Any) -> Any:
        """Means or covariances of Gaussian laws in a form that the NumPy checks accept; None stays None."""

    def gaussian_flow(self, laws: Laws, at: int) -> LawsFlown:
        """Gaussian laws moved by attention, with figures and counts for each law that the caller judges."""

    def shaped(self, array: Any, shape: tuple[int, ...]) -> Any:
        """States of laws, or NumPy arrays of their figures, in this shape and in the caller's library."""

    # ---- results ------------------------------------------------------------------------------------

    def give(self, array: Array, target: Any = None, at: int | None = None) -> Any:
        """A result in the caller's library; this is ``target`` if the result was written to it."""

    def turned(self, array: Any) -> Any:
        """A result with its last two axes exchanged."""

    def squeeze(self, array: Array) -> Array:
        """(..., n, 1) as (..., n)."""

    def here(self, name: str, array: Any) -> Any:
        """The caller's array as a NumPy array; an array that is one already is returned unchanged."""

    def visited(self, s: Scores) -> Scores:
        """The same scores with NumPy arrays, copied from the device if necessary. Visits still run where this
        backend computes."""

    def returned(self, s: Scores) -> Scores:
        """Scores that ``visited`` has made, or parts of them, as scores with this backend's arrays."""

    def visiting(self, s: Scores) -> Scores:
        """The same scores of NumPy arrays, but their visits run where this backend computes."""

    def to_host(self, array: Array) -> Host:
        """A NumPy array with the same numbers."""

    def from_host(self, array: Host) -> Array:
        """The same numbers where this backend computes."""


def backend_of(*arrays: object) -> Backend:
    """The backend for the arrays (or tuples of arrays) of one call: a device if any array is on a device."""
    if not _device.on_device(*arrays):
        return HOST
    from ._device._cuda import Cuda

    return Cuda(*arrays)
