"""The magnetic operator: products, Hermitian form, spectrum, flux and gauge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, _device, _dynamics
from .._config import resolve_threads
from .._lazy_scores import Real, Scores
from .._linear import LEFT, RIGHT
from .._native import cpu
from ..operators import KernelOperator, MarkovOperator, kernel, right_hand_side, softmax
from ._hermitian import Complex, Reversal, find_reversal, leading, right_vectors
from ._phases import masked, square, times

_COMPLEX: dict[int, np.dtype[Any]] = {4: np.dtype(np.complex64), 8: np.dtype(np.complex128)}


class MagneticOperator:
    """:math:`\\tilde P_{ij} = P_{ij}\\,e^{i\\Theta_{ij}}`, applied without being formed (DAC-6, eqs 39-40).

    ``magnitude`` is the real operator: ``qk.softmax(s)`` gives :math:`\\tilde P` and ``qk.kernel(s)`` the
    magnetic kernel :math:`\\tilde K`. ``phases`` are angles as scores, e.g. from :func:`phases`.
    ``gauge_weight`` is the alpha of theorem C.8, by which :meth:`gauge` multiplies its angles :math:`\\phi`.

    The absolute values are those of P, so probabilities do not change; the phases show in products,
    in the spectrum and in the flux.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore import magnetic
    >>> angles = np.array([[0.0, np.pi / 2], [-np.pi / 2, 0.0]])
    >>> P = magnetic.MagneticOperator(qk.softmax(qk.scores.dense(np.zeros((2, 2)))),
    ...                               qk.scores.dense(angles))
    >>> P @ np.array([1.0, 2.0])
    array([0.5+1.j , 1. -0.5j])
    """

    __slots__ = ("_here_cell", "_magnitude", "_phases", "_reversal_cell", "gauge_weight")
    # So that NumPy leaves `array @ operator` to __rmatmul__.
    __array_ufunc__ = None

    def __init__(
        self,
        magnitude: MarkovOperator | KernelOperator,
        phases: Scores,
        *,
        gauge_weight: float = 1.0,
    ) -> None:
        hint = 'pass qk.softmax(s) for rows that sum to 1, or qk.kernel(s, "exp")'
        _checks.instance(
            "magnitude", magnitude, (MarkovOperator, KernelOperator), "a real operator", hint
        )
        if isinstance(magnitude, KernelOperator) and magnitude.weight != "exp":
            raise ValueError(
                f'magnitude: wanted weights exp(s), got {magnitude.weight!r}; pass qk.kernel(s, "exp")'
            )
        s = magnitude.scores
        _checks.one_problem("magnitude", (), s.terms.offsets is not None)
        hint = "wrap an array with qk.scores.dense(array)"
        _checks.instance("phases", phases, Scores, "angles as scores", hint)
        _checks.one_problem("phases", (), phases.terms.offsets is not None)
        _checks.same_place("phases", phases.device, s.device, "the magnitude")
        if phases.dtype != magnitude.dtype:
            raise TypeError(
                f"phases: wanted {magnitude.dtype} like the magnitude, got {phases.dtype}; "
                "convert the data of one of them"
            )
        _checks.into_batch("phases", phases.shape, phases.batch, s.batch)
        if phases.shape[-2:] != magnitude.shape[-2:]:
            raise ValueError(
                f"phases: wanted shape {magnitude.shape} like the magnitude, got {phases.shape}; "
                "every pair has one weight and one angle"
            )
        if masked(phases):
            raise ValueError(
                "phases: wanted an angle for every pair, got masked ones; "
                "mask the scores of the magnitude instead"
            )
        self._magnitude = magnitude
        self._phases = phases._with(phases.terms, batch=s.batch)
        self.gauge_weight = _checks.number("gauge_weight", gauge_weight)
        self._reversal_cell: list[Reversal | None] = []
        self._here_cell: list[MagneticOperator] = []

    @property
    def magnitude(self) -> MarkovOperator | KernelOperator:
        """The real operator of the absolute values."""
        return self._magnitude

    @property
    def phases(self) -> Scores:
        """The angles, as lazy scores."""
        return self._phases

    @property
    def log_weights(self) -> Scores:
        """The logarithm of the absolute values, lazily."""
        P = self._magnitude
        return P.log_weights if isinstance(P, MarkovOperator) else P.scores

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, M): batch axes, rows, columns."""
        return self._magnitude.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex64 for float32 data, complex128 for float64."""
        return _COMPLEX[self._magnitude.dtype.itemsize]

    @property
    def T(self) -> MagneticOperator:
        """The transposed operator."""
        return self._with(self._magnitude.T, self._phases.T, -self.gauge_weight)

    @property
    def H(self) -> MagneticOperator:
        """The adjoint: transposed and conjugated."""
        return self._with(self._magnitude.T, times(self._phases.T, -1.0))

    @property
    def kernel(self) -> MagneticOperator:
        """:math:`\\tilde K = K \\odot U` without the normaliser (DAC-6, eq 39)."""
        return self._with(kernel(self._magnitude.scores))

    def normalized(self) -> MagneticOperator:
        """:math:`\\tilde K_{ij} / \\sum_k K_{ik}`: rows whose absolute values sum to 1 (DAC-6, eq 40)."""
        if isinstance(self._magnitude, MarkovOperator):
            return self
        return self._with(softmax(self._magnitude.scores))

    def _with(
        self,
        magnitude: MarkovOperator | KernelOperator | None = None,
        phases: Scores | None = None,
        weight: float | None = None,
    ) -> MagneticOperator:
        """The same operator with the given parts replaced; they have been checked already."""
        out = MagneticOperator.__new__(MagneticOperator)
        out._magnitude = self._magnitude if magnitude is None else magnitude
        out._phases = self._phases if phases is None else phases
        out.gauge_weight = self.gauge_weight if weight is None else weight
        out._reversal_cell, out._here_cell = [], []
        return out

    @property
    def device(self) -> str:
        """Where the scores are: "cpu", or e.g. "cuda:0"."""
        return self._magnitude.device

    @property
    def _here(self) -> MagneticOperator:
        """The same operator over NumPy arrays, for the complex products of the CPU engine. Points, masks and
        shifts that are on a device are copied; sums of weights are computed on the device."""
        b = self._phases.backend
        if b.host_arrays:
            return self
        if not self._here_cell:
            P, phases = self._magnitude._with_host_vectors(), b.visited(self._phases)
            self._here_cell.append(self._with(P, phases))
        return self._here_cell[0]

    def _given(self, array: Real) -> Real:
        """A NumPy array as an array of the caller's library."""
        b = self._phases.backend
        out: Real = b.give(b.from_host(array))
        return out

    def __len__(self) -> int:
        """The length of the first batch axis."""
        return len(self._phases)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> MagneticOperator:
        """Operators of a batch, by integers and slices for its leading axes."""
        return self._with(self._magnitude[index], self._phases[index])

    def __iter__(self) -> Iterator[MagneticOperator]:
        return (self[k] for k in range(len(self)))

    # ---- products ---------------------------------------------------------------------------

    def __matmul__(self, V: npt.ArrayLike) -> Complex:
        return self._applied(RIGHT, V, None)

    def __rmatmul__(self, U: npt.ArrayLike) -> Complex:
        return self._applied_left(LEFT, U, None)

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Complex:
        """The product with a real or complex V of shape (..., M, k) or (..., M): ``P @ V``, a NumPy array."""
        return self._applied("V", V, n_threads)

    def apply_left(self, U: npt.ArrayLike, *, n_threads: int | None = None) -> Complex:
        """The product from the left with U of shape (..., N) or (..., k, N): ``U @ P`` (no conjugation)."""
        return self._applied_left("U", U, n_threads)

    def _applied(self, name: str, V: npt.ArrayLike, n_threads: int | None) -> Complex:
        values, vector = self._columns(name, V, at=-2)
        out = self._here._product(values, resolve_threads(n_threads))
        return out[..., 0] if vector else out

    def _applied_left(self, name: str, U: npt.ArrayLike, n_threads: int | None) -> Complex:
        values, vector = self._columns(name, U, at=-1)
        out = self._here.T._product(values, resolve_threads(n_threads))
        return out[..., 0] if vector else out.swapaxes(-1, -2)

    def _columns(self, name: str, value: Any, *, at: int) -> tuple[Complex, bool]:
        """The right-hand sides as contiguous (..., length, k), and whether they were one vector."""
        if _device.on_device(value):
            value = self._phases.backend.here(name, value)
        array = _checks.complex_array(name, value)
        if array.dtype != self.dtype:
            raise TypeError(
                f"{name}: wanted {self.dtype} or {self._magnitude.dtype} like the operator, got "
                f"{np.asarray(value).dtype}; convert it, e.g. {_checks.code(name)}.astype(np.{self.dtype})"
            )
        length = self.shape[-1 if at == -2 else -2]
        _, vector = right_hand_side(name, array.real, self._here._phases, length, at=at)
        columns = array[..., None] if vector else (array if at == -2 else array.swapaxes(-1, -2))
        return np.ascontiguousarray(columns), vector

    def _product(self, values: Complex, n_threads: int) -> Complex:
        real = self._magnitude.dtype
        turned: Complex = values * self.dtype.type(1j)
        out = cpu.apply_phases(
            self.log_weights._spec,
            self._phases._spec,
            values.view(real),
            turned.view(real),
            n_threads,
        )
        return out.view(self.dtype)

    def to_numpy(self, *, n_threads: int | None = None) -> Complex:
        """The operator as a complex array (..., N, M)."""
        here = self._here
        return _polar(
            here._magnitude.to_numpy(n_threads=n_threads),
            here._phases.to_numpy(n_threads=n_threads),
        )

    # ---- Hermitian form ---------------------------------------------------------------------

    def hermitian(self) -> MagneticOperator:
        """:math:`H = D^{1/2}\\tilde P D^{-1/2}`, Hermitian, with the spectrum of P̃ (DAC-6, after eq 15).

        For :math:`P = e^{s}/Z` with symmetric s it is :math:`e^{s_{ij} - \\frac12\\log Z_i -
        \\frac12\\log Z_j + i\\Theta_{ij}}`. Row and column shifts of symmetric scores are allowed, so
        Hadamard products of magnetic operators have such a form too. Other operators raise a ValueError.
        """
        here = self._here
        return here._with(kernel(here._reversed().weights))

    def _reversed(self) -> Reversal:
        found = self._reversal()
        if found is None:
            raise ValueError(
                "operator: wanted symmetric scores (up to row and column shifts) and antisymmetric "
                "phases, got an operator that no diagonal scaling makes Hermitian; "
                "use symmetric scores such as qk.scores.distance(X), and phases(X, W) or log_flux(A)"
            )
        return found

    def _reversal(self) -> Reversal | None:
        if not self._reversal_cell:
            self._reversal_cell.append(find_reversal(self))
        return self._reversal_cell[0]

    def spectrum(
        self, k: int | None = None, *, n_threads: int | None = None
    ) -> tuple[Real, Complex]:
        """The k largest eigenvalues (None: all), which are real, and right eigenvectors as columns (DAC-6).

        :math:`\\tilde P\\psi = \\lambda\\psi` is solved with the matrix of :meth:`hermitian`. The vectors are
        orthonormal in the stationary law (uniform for a kernel),
        :math:`\\sum_i\\pi_i\\bar\\psi_{ik}\\psi_{il} = \\delta_{kl}`, and each is turned so that its largest
        entry is positive. A gauge turns the vectors and does not change the values (C.8). A batch has values
        (..., k) and vectors (..., N, k). Both are NumPy arrays.

        >>> import numpy as np, qkcore as qk
        >>> from qkcore import magnetic
        >>> angles = np.array([[0.0, np.pi / 2], [-np.pi / 2, 0.0]])
        >>> P = magnetic.MagneticOperator(qk.softmax(qk.scores.dense(np.zeros((2, 2)))),
        ...                               qk.scores.dense(angles))
        >>> values, vectors = P.spectrum()
        >>> np.abs(values.round(12))
        array([1., 0.])
        """
        here = self._here
        if here.shape[:-2]:
            return each_pair(here, lambda one: one.spectrum(k, n_threads=n_threads))
        H = here.hermitian()
        threads = resolve_threads(n_threads)
        values, vectors = leading(lambda x: H._product(x, threads), here, k)
        return values, right_vectors(here, values, vectors, here._reversed().log_law, threads)

    # ---- flux and currents ------------------------------------------------------------------

    def stationary(self) -> Real:
        """The law :math:`\\pi \\propto Z` of the magnitudes (DAC-6, eq 19): phases do not change it."""
        return self._given(self._here._law())

    def _law(self) -> Real:
        P = self._chain()
        found = self._reversal()
        if found is None:
            return P.stationary()
        law: Real = np.exp(found.log_law).astype(P.dtype)
        return law

    def flux(self, rho: npt.ArrayLike | None = None, *, n_threads: int | None = None) -> Complex:
        """The array :math:`F_{ij} = \\pi_i P_{ij} e^{i\\Theta_{ij}}` (DAC-6, eqs 41, 80), (..., N, N).

        The law is the stationary one, for which the flux is Hermitian, or ``rho``: one law (N,), or one for
        each problem of a batch. The result is a NumPy array.
        """
        here = self._here
        P = here._chain()
        if rho is None:
            law = here._law()
        elif P._many:
            rho = _device.to_host("rho", rho) if _device.on_device(rho) else rho
            law = P._each(lambda one, r: _dynamics.law("rho", r, one), rho)
        else:
            law = _dynamics.law("rho", rho, P)
        flow: Real = law[..., :, None] * P.to_numpy(n_threads=n_threads)
        return _polar(flow, here._phases.to_numpy(n_threads=n_threads))

    def current(self, rho: npt.ArrayLike | None = None, *, n_threads: int | None = None) -> Real:
        """The magnetic current :math:`J_{ij} = \\pi_i P_{ij}\\sin\\Theta_{ij}` (DAC-6, eqs 42, 81).

        An array (..., N, N), antisymmetric at the stationary law (eq 43), the default. With phases gamma F
        it is :math:`\\gamma\\pi_iP_{ij}F_{ij}` to second order in gamma (DAC-11, eq 83).
        """
        return self._given(self.flux(rho, n_threads=n_threads).imag.copy())

    def _chain(self) -> MarkovOperator:
        P = self._magnitude
        if not isinstance(P, MarkovOperator):
            raise ValueError(
                "operator: wanted rows that sum to 1 in absolute value, got a kernel; "
                "call normalized() first"
            )
        if P.axis != 1:
            raise ValueError(
                "operator: wanted rows that sum to 1 in absolute value, got columns that do; "
                "take its transpose .T"
            )
        square("operator", P.scores)
        return P

    # ---- gauge ------------------------------------------------------------------------------

    def gauge(self, phi: npt.ArrayLike) -> MagneticOperator:
        """:math:`E'_{ij} = e^{i\\alpha(\\phi_i - \\phi_j)}E_{ij}`, alpha = ``gauge_weight`` (DAC-6, C.8).

        phi has shape (N,), or (..., N) for a batch, in radians. A gauge changes neither the magnitudes of the
        flux, nor the sums of phases around cycles, nor the spectrum.
        """
        n = square("operator", self._phases)
        if _device.on_device(phi):
            phi = self._phases.backend.here("phi", phi)
        angles = one_angle_per_state(phi, n, self._phases.batch, self._magnitude.dtype)
        turn = angles * angles.dtype.type(self.gauge_weight)
        rows, columns = self._given(turn), self._given(-turn)
        return self._with(phases=self._phases.shift(rows=rows, columns=columns))

    def __repr__(self) -> str:
        kind = "kernel"
        if isinstance(self._magnitude, MarkovOperator):
            kind = "row-stochastic" if self._magnitude.axis == 1 else "column-stochastic"
            kind = "bistochastic" if self._magnitude.bistochastic else kind
        return (
            f"MagneticOperator(shape={self.shape}, dtype={self.dtype}{self._magnitude._place()}, "
            f"{kind} magnitude, gauge weight {self.gauge_weight:g})"
        )


def one_angle_per_state(
    phi: npt.ArrayLike, n: int, batch: tuple[int, ...], dtype: np.dtype[Any]
) -> Real:
    angles = _checks.real_array("phi", phi)
    _checks.core_shape("phi", angles.shape, (n,), "with one angle per state")
    _checks.into_batch("phi", angles.shape, angles.shape[:-1], batch)
    _checks.same_dtype("phi", angles, dtype, "the operator")
    _checks.finite("phi", angles)
    return angles


def each_pair(ops: Any, call: Callable[[Any], tuple[Real, Complex]]) -> tuple[Real, Complex]:
    """A pair of arrays for every problem of a batch, as two arrays with the batch axes in front."""
    batch = ops.shape[:-2]
    found = [call(ops[k]) for k in np.ndindex(batch)]
    values, vectors = (np.stack(parts) for parts in zip(*found, strict=True))
    return values.reshape(*batch, *values.shape[1:]), vectors.reshape(*batch, *vectors.shape[1:])


def _polar(size: Real, angle: Real) -> Complex:
    """size * exp(i angle), in the precision of both."""
    out: Complex = np.empty(size.shape, _COMPLEX[size.dtype.itemsize])
    np.multiply(size, np.cos(angle), out=out.real)
    np.multiply(size, np.sin(angle), out=out.imag)
    return out
