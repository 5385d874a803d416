"""Magnetic Laplacians (DAC-6, corollary C.9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._config import resolve_threads
from .._lazy_scores import Real
from .._linear import RIGHT
from ._hermitian import Complex, is_hermitian, leading, right_vectors
from ._operator import MagneticOperator, each_pair
from ._phases import square


class MagneticLaplacian:
    """:math:`D - \\tilde K` or its normalised forms, applied without being formed; see :func:`laplacian`."""

    __slots__ = ("_log_law", "_operator", "_symmetric", "degree", "kind")
    __array_ufunc__ = None

    def __init__(
        self,
        operator: MagneticOperator,
        degree: Real,
        kind: str,
        symmetric: MagneticOperator,
        log_law: npt.NDArray[np.float64],
    ) -> None:
        self._operator = operator
        self.degree = degree
        """the diagonal from which the operator is subtracted, (..., N); a NumPy array"""
        self.kind = kind
        # A Hermitian operator with the same spectrum, and the law that relates the two.
        self._symmetric = symmetric
        self._log_law = log_law

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, N)."""
        return self._operator.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex64 or complex128."""
        return self._operator.dtype

    def __matmul__(self, V: npt.ArrayLike) -> Complex:
        return self._applied(RIGHT, V, None)

    def __getitem__(self, index: Any) -> MagneticLaplacian:
        """Laplacians of a batch, by integers and slices for its leading axes."""
        op, symmetric = self._operator[index], self._symmetric[index]
        degree, log_law = self.degree[index], self._log_law[index]
        return MagneticLaplacian(op, degree, self.kind, symmetric, log_law)

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Complex:
        """The product with a real or complex V of shape (..., N, k) or (..., N)."""
        return self._applied("V", V, n_threads)

    def _applied(self, name: str, V: npt.ArrayLike, n_threads: int | None) -> Complex:
        values, vector = self._operator._columns(name, V, at=-2)
        out = self._product(self._operator, values, resolve_threads(n_threads))
        return out[..., 0] if vector else out

    def _product(self, operator: MagneticOperator, values: Complex, n_threads: int) -> Complex:
        out: Complex = self.degree[..., None] * values - operator._product(values, n_threads)
        return out

    def to_numpy(self, *, n_threads: int | None = None) -> Complex:
        """The Laplacian as a complex array (..., N, N)."""
        out: Complex = -self._operator.to_numpy(n_threads=n_threads)
        states = np.arange(out.shape[-1])
        out[..., states, states] += self.degree
        return out

    def spectrum(
        self, k: int | None = None, *, n_threads: int | None = None
    ) -> tuple[Real, Complex]:
        """The k smallest eigenvalues (None: all), smallest first, and eigenvectors as columns.

        They are real and not negative, and a gauge does not change them (corollary C.9). If the graph of the
        states is connected, the smallest is 0 exactly when phases add up to multiples of 2 pi around every
        cycle. "random_walk" vectors are orthonormal in the stationary law, the others in the usual sense. A
        batch has values (..., k) and vectors (..., N, k).
        """
        if self.shape[:-2]:
            return each_pair(self, lambda one: one.spectrum(k, n_threads=n_threads))
        threads = resolve_threads(n_threads)
        # No eigenvalue exceeds twice the largest degree (Gershgorin). So the smallest eigenvalues of L are
        # the largest ones of top - L, which ``leading`` finds.
        top = 2 * self.degree.max()
        flipped, vectors = leading(
            lambda x: top * x - self._product(self._symmetric, x, threads), self._operator, k
        )
        values: Real = top - flipped
        if self.kind == "random_walk":
            vectors = right_vectors(self._operator, 1 - values, vectors, self._log_law, threads)
        return values, vectors

    def __repr__(self) -> str:
        return f"MagneticLaplacian(shape={self.shape}, dtype={self.dtype}, {self.kind})"


def laplacian(op: MagneticOperator, kind: str = "combinatorial") -> MagneticLaplacian:
    """The magnetic Laplacian of an operator or kernel (DAC-6, corollary C.9).

    ================= =======================================================================
    "combinatorial"   :math:`L_U = D - K\\odot U`, D the row sums of K (without normaliser)
    "symmetric"       :math:`I - H = I - D^{-1/2}(K\\odot U)D^{-1/2}`
    "random_walk"     :math:`I - \\tilde P`
    ================= =======================================================================

    All are positive semidefinite; the last two have the same spectrum, and 0 on the diagonal of a state
    without any weight.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore import magnetic
    >>> edge = qk.kernel(qk.scores.dense(np.array([[-np.inf, 0.0], [0.0, -np.inf]])))
    >>> op = magnetic.MagneticOperator(edge, qk.scores.dense(np.array([[0.0, 1.0], [-1.0, 0.0]])))
    >>> np.abs(magnetic.laplacian(op).spectrum()[0].round(12))
    array([0., 2.])
    """
    op = _checks.instance("op", op, MagneticOperator, "a magnetic operator")
    _checks.one_of("kind", kind, ("combinatorial", "symmetric", "random_walk"))
    n, op = square("op", op.phases), op._here
    real = op.magnitude.dtype
    if kind == "combinatorial":
        K = op.kernel
        degree = K.magnitude @ np.ones(n, real)
        if not is_hermitian(K):
            raise ValueError(
                "op: wanted symmetric scores and antisymmetric phases for D - K, got others; for "
                'scores that are symmetric up to shifts take kind="symmetric"'
            )
        return MagneticLaplacian(K, degree, kind, K, np.zeros((*K.shape[:-2], n)))
    P = op.normalized()
    chain = P._chain()
    H = P.hermitian()
    diagonal = np.where(chain.empty, 0, 1).astype(real)
    return MagneticLaplacian(
        H if kind == "symmetric" else P, diagonal, kind, H, P._reversed().log_law
    )
