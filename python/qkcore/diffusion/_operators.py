"""The diffusion operator, its symmetric conjugate and its Laplacians (DAC-5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, _dynamics, scores
from .._config import resolve_threads
from .._lazy_scores import Real, Scores
from .._markov import Markov
from .._points import WLike
from ..operators import KernelOperator, MarkovOperator, kernel, softmax

KINDS = ("random_walk", "symmetric", "combinatorial")


def operator(
    X: npt.ArrayLike,
    *,
    beta: float,
    alpha: float = 0.0,
    W: WLike = None,
    n_threads: int | None = None,
) -> MarkovOperator:
    """The diffusion operator :math:`P^+ = \\mathrm{softmax}^+(-\\beta D^2)` of points (DAC-5, eq 11).

    :math:`D^2_{ij} = (x_i-x_j)^\\top W (x_i-x_j)` for X (..., N, d). With ``alpha`` the kernel K is
    divided by its density first, :math:`K_{ij} / (q_i q_j)^\\alpha`, :math:`q_i = \\sum_j K_{ij}`: 0 keeps
    the influence of the sampling, 1/2 gives a Fokker-Planck and 1 a Laplace-Beltrami operator that
    depends on the geometry alone (Coifman and Lafon 2006). Its stationary law is
    :math:`\\pi_i = Z_i/\\sum_k Z_k`, Z the row sums (eq 19), with detailed balance (proposition C.2).

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> P.to_numpy().round(3)
    array([[0.731, 0.269, 0.   ],
           [0.265, 0.721, 0.013],
           [0.   , 0.018, 0.982]])
    >>> P.stationary().round(3)
    array([0.363, 0.367, 0.27 ])
    """
    s, _ = _density_normalized(scores.distance(X, W=W, beta=beta), alpha, n_threads)
    return softmax(s)


def bistochastic(
    X: npt.ArrayLike,
    *,
    beta: float,
    W: WLike = None,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    n_threads: int | None = None,
) -> MarkovOperator:
    """:math:`P^{+-} = \\mathrm{Sinkhorn}(-\\beta D^2) = P^{-+}`, symmetric (DAC-5, 3.2 and 4.1).

    Its stationary law is uniform. ``tol``, ``max_iter`` and ``max_visits`` are those of
    :func:`qkcore.sinkhorn`.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> B = diffusion.bistochastic(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> B.to_numpy().sum(axis=0).round(6)
    array([1., 1., 1.])
    """
    from ..bridges import sinkhorn

    s = scores.distance(X, W=W, beta=beta)
    return sinkhorn(s, tol=tol, max_iter=max_iter, max_visits=max_visits, n_threads=n_threads)


def symmetric_conjugate(P: MarkovOperator, *, n_threads: int | None = None) -> KernelOperator:
    """The symmetric operator with the spectrum of P, for finding eigenvectors (DAC-5, 3.2).

    :math:`S_{ij} = e^{s_{ij}}/\\sqrt{Z_i Z_j} = \\sqrt{\\pi_i/\\pi_j}\\,P_{ij}`. An eigenvector v of S
    gives the right eigenvector :math:`v_i/\\sqrt{\\pi_i}` of P and the left one
    :math:`v_i\\sqrt{\\pi_i}`; the leading v is :math:`\\sqrt\\pi`, of eigenvalue 1.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> S = diffusion.symmetric_conjugate(P)
    >>> np.linalg.eigvalsh(S.to_numpy()).round(4)  # and those of P
    array([0.4588, 0.9755, 1.    ])
    """
    rows = _reversible("P", P)
    if rows.bistochastic:
        return kernel(rows.log_weights, "exp")
    return kernel(_halved(rows, n_threads), "exp")


def _halved(rows: MarkovOperator, n_threads: int | None) -> Scores:
    """s_ij - lse_i / 2 - lse_j / 2, with one array for both shifts, which marks the scores as symmetric."""
    b = rows.scores.backend
    halves = [b.scaled(x, 0.5) for x in rows._normalizer(b.at(n_threads)).shifts()]
    return rows.scores.normalized(tuple(halves), 0, 1)


def _density_normalized(
    s: Scores, alpha: object, n_threads: int | None
) -> tuple[Scores, Real | None]:
    """log of K_ij / (q_i q_j)^alpha, and the shift -alpha log q that was added (None if alpha is 0)."""
    power = _checks.number("alpha", alpha)
    if power == 0:
        return s, None
    b = s.backend
    shift: Real = b.give(b.scaled(b.logsumexp(s, None, b.at(n_threads)), -power))
    return s.shift(rows=shift, columns=shift), shift


def _reversible(name: str, P: object) -> MarkovOperator:
    """P or its transpose, whichever has rows that sum to 1; one chain with symmetric scores is wanted."""
    hint = "make one with qk.diffusion.operator(X, beta=...)"
    P = _checks.instance(name, P, MarkovOperator, "a diffusion operator", hint)
    rows = P if P.axis == 1 else P.T
    if len(rows.shape) != 2:
        raise ValueError(
            f"{name}: wanted one chain, got shape {rows.shape}; "
            "take the problems of a batch one by one"
        )
    if not rows.scores.symmetric:
        raise ValueError(
            f"{name}: wanted an operator with symmetric scores (of distances, say), got one whose "
            "scores are not known to be symmetric; its spectrum may be complex: see np.linalg.eig"
        )
    return rows


# ---- Laplacians ---------------------------------------------------------------------------------


class Laplacian:
    """A Laplacian that is applied without being formed. Made by :func:`laplacian`."""

    __slots__ = ("_operator", "degree", "kind")
    __array_ufunc__ = None

    def __init__(self, operator: Markov | KernelOperator, degree: Real, kind: str) -> None:
        self._operator = operator
        self.degree = degree
        """the diagonal from which the operator is subtracted, (N,)"""
        self.kind = kind

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, N)."""
        return self._operator.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the data, float32 or float64."""
        return self._operator.dtype

    @property
    def T(self) -> Laplacian:
        """The transposed Laplacian; only "random_walk" differs from its transpose."""
        return Laplacian(self._operator.T, self.degree, self.kind)

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product with V of shape (N, k) or (N,): ``L @ V`` on given threads."""
        values = _checks.real_array("V", V)
        product = self._operator.apply(values, n_threads=n_threads)
        degree = self.degree if values.ndim == 1 else self.degree[:, None]
        out: Real = degree * values - product
        return out

    def apply_left(self, U: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product from the left with U of shape (k, N) or (N,): ``U @ L``."""
        values = _checks.real_array("U", U)
        out: Real = values * self.degree - self._operator.apply_left(values, n_threads=n_threads)
        return out

    def __matmul__(self, V: npt.ArrayLike) -> Real:
        return self.apply(V)

    def __rmatmul__(self, U: npt.ArrayLike) -> Real:
        return self.apply_left(U)

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The Laplacian as an array (N, N)."""
        out: Real = -self._operator.to_numpy(n_threads=n_threads)
        out[np.diag_indices(len(out))] += self.degree
        return out

    def __repr__(self) -> str:
        return f"Laplacian(shape={self.shape}, dtype={self.dtype}, kind={self.kind!r})"


def laplacian(
    P: Markov | npt.ArrayLike,
    kind: str = "random_walk",
    *,
    beta: float | None = None,
    alpha: float | None = None,
    W: WLike = None,
    n_threads: int | None = None,
) -> Laplacian:
    """A Laplacian of a diffusion operator P, or of points with ``beta`` (DAC-5, eqs 12-13).

    =================== ===================================================================
    "random_walk"       :math:`L^+ = I - P^+` (eq 13), of any square stochastic operator
    "symmetric"         :math:`I - S`, S the :func:`symmetric_conjugate`: the same spectrum
    "combinatorial"     :math:`L = \\mathrm{diag}(Z) - K`, :math:`Z_i = \\sum_j K_{ij}` (eq 12)
    =================== ===================================================================

    :math:`K = e^s` are the weights before rows are normalised, divided by densities if alpha is not 0.
    All map constants to 0, except "symmetric", which maps :math:`\\sqrt\\pi` to 0. For a bistochastic
    operator all three are the same.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> L = diffusion.laplacian(np.array([[0.0], [1.0], [3.0]]), "combinatorial", beta=1.0)
    >>> L.to_numpy().round(3)
    array([[ 0.368, -0.368, -0.   ],
           [-0.368,  0.386, -0.018],
           [-0.   , -0.018,  0.018]])
    """
    _checks.one_of("kind", kind, KINDS)
    if isinstance(P, Markov):
        for name, value in (("beta", beta), ("alpha", alpha), ("W", W)):
            if value is not None:
                raise ValueError(
                    f"{name}: wanted for points only, got {value!r} together with an operator, which has "
                    f"its own; leave {name} out"
                )
        chain = P
    else:
        if beta is None:
            raise ValueError(
                "beta: wanted a number > 0 for a Laplacian of points, got None; "
                "pass e.g. beta=qk.diffusion.choose_beta(X).beta"
            )
        chain = operator(P, beta=beta, alpha=alpha or 0.0, W=W, n_threads=n_threads)
    _dynamics.square(chain)
    one = np.ones(chain.shape[0], chain.dtype)
    if kind == "random_walk":
        return Laplacian(chain, one, kind)
    rows = _reversible("P", chain)
    if kind == "symmetric":
        return Laplacian(symmetric_conjugate(rows, n_threads=n_threads), one, kind)
    if rows.bistochastic:  # its scores are the logarithms of the weights already
        return Laplacian(rows, one, kind)
    degree = np.exp(rows._normalizer(resolve_threads(n_threads)).lse)
    return Laplacian(kernel(rows.scores, "exp"), degree, kind)


def diffusion_distance(
    P: MarkovOperator,
    i: npt.ArrayLike,
    j: npt.ArrayLike,
    t: int = 1,
    *,
    n_threads: int | None = None,
) -> Real:
    """:math:`D_t(i,j) = \\big(\\sum_k (P^t_{ik} - P^t_{jk})^2/\\pi_k\\big)^{1/2}` for pairs (DAC-5).

    i and j are indices of one shape, or broadcast. It takes t products with P and no eigenvectors, and is
    exact; for many pairs :meth:`DiffusionMap.diffusion_distance` is faster.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> diffusion.diffusion_distance(P, 0, [1, 2]).round(4)
    array([1.075 , 2.2837])
    """
    rows = _reversible("P", P)._with_host_vectors()
    steps = _checks.integer("t", t)
    if steps < 0:
        raise ValueError(f"t: wanted a number of steps, 0 or more, got {steps}")
    n = rows.shape[0]
    first, second = np.broadcast_arrays(_indices("i", i, n), _indices("j", j, n))
    law = rows._known_stationary()
    assert law is not None
    used, where = np.unique(np.stack([first.ravel(), second.ravel()]), return_inverse=True)
    here, there = where.reshape(2, -1)
    start = np.zeros((len(used), n), rows.dtype)
    start[np.arange(len(used)), used] = 1
    moved = (rows**steps).apply_left(start, n_threads=n_threads)
    difference = (moved[here].astype(np.float64) - moved[there]) / np.sqrt(law)
    return _checked_norm(difference, first.shape, rows.dtype)


def _checked_norm(
    difference: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Real:
    out: Real = np.linalg.norm(difference, axis=-1).reshape(shape).astype(dtype)
    return out


def _indices(name: str, value: npt.ArrayLike, n: int) -> npt.NDArray[np.intp]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: wanted indices of points, got {array.dtype}; pass integers from 0 to {n - 1}"
        )
    if array.size and (array.min() < 0 or array.max() >= n):
        raise ValueError(
            f"{name}: wanted indices from 0 to {n - 1}, got {array.min()} to {array.max()}"
        )
    return array.astype(np.intp)
