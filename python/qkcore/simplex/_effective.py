"""The covariance that noise of hidden states gives to probabilities (EOT-8; EOT 4.4, F)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._mobility import Mobility, mobility_product

Real = npt.NDArray[np.floating[Any]]


class EffectiveMobility:
    """The diffusion matrix of noisy probabilities: :math:`M(p) = J\\, W^\\top a\\, W J` (EOT-8, prop. 4.4).

    For hidden states h (d) with noise of covariance :math:`a\\,dt` and logits :math:`z = W^\\top h`, the
    probabilities :math:`p = \\mathrm{softmax}(z/\\tau)` have covariance :math:`M\\,dt`. M maps constants to
    0, has rank at most min(d, V - 1) and is kept as the factor :math:`B = J W^\\top` (V x d).

    p: one vector (V,). W: (d, V). a: a number, a diagonal (d,) or a symmetric positive semidefinite
    matrix (d, d).

    >>> import numpy as np, qkcore as qk
    >>> M = qk.simplex.EffectiveMobility(np.array([0.5, 0.5]), np.eye(2), a=4.0)
    >>> M.to_numpy()
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    >>> M.trace, round(M.operator_norm, 12)
    (1.0, 1.0)
    """

    def __init__(
        self, p: npt.ArrayLike, W: npt.ArrayLike, a: npt.ArrayLike | float = 1.0, tau: float = 1.0
    ) -> None:
        J = Mobility(p, tau)
        _checks.shape("p", J.p.shape, ("V",), what="one vector", do="take rows one by one")
        V = len(J.p)
        weights = _checks.real_array("W", W)
        _checks.same_dtype("W", weights, J.p.dtype, "p")
        _checks.shape("W", weights.shape, ("d", V), why="with z = W.T @ h", do="transpose it?")
        _checks.not_empty("W", weights)
        _checks.finite("W", weights)
        self.p, self.tau = J.p, J.tau
        self.factor: Real = mobility_product(np.broadcast_to(J.p, weights.shape), weights, J.tau).T
        self.a, self._root = _diffusion(a, len(weights), J.p.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(V, V)."""
        return (len(self.p), len(self.p))

    def __repr__(self) -> str:
        d = self.factor.shape[1]
        return f"EffectiveMobility(V={len(self.p)}, d={d}, operator norm {self.operator_norm:.3g})"

    def __matmul__(self, v: npt.ArrayLike) -> Real:
        """M v, or M times the columns of a matrix (V, k)."""
        values = _checks.real_array("v", v)
        _checks.same_dtype("v", values, self.p.dtype, "p")
        n = len(self.p)
        _checks.shape("v", values.shape, (n,), (n, "k"), why="over the entries of p")
        inner = self.factor.T @ values
        out: Real = self.factor @ (self.a @ inner)
        return out

    def to_numpy(self) -> Real:
        """The matrix itself, (V, V)."""
        half = self._half
        out: Real = half @ half.T
        return out

    @cached_property
    def _half(self) -> Real:
        out: Real = self.factor @ self._root
        return out

    @property
    def trace(self) -> float:
        """The variance of the probabilities, summed over entries, per unit of time."""
        return float(np.sum(self._half.astype(np.float64) ** 2))

    @property
    def operator_norm(self) -> float:
        """Largest eigenvalue; at most :math:`\\|a\\| \\|W\\|^2 \\|J\\|^2`."""
        return float(np.linalg.norm(self._half, 2) ** 2)

    def eigenvalues(self) -> Real:
        """The min(d, V) largest eigenvalues, ascending; the others are 0."""
        out: Real = np.linalg.svd(self._half, compute_uv=False)[::-1] ** 2
        return out


def _diffusion(a: npt.ArrayLike | float, d: int, dtype: np.dtype[Any]) -> tuple[Real, Real]:
    """a as a matrix, and a matrix r with a = r r^T."""
    array = _checks.doubles("a", a).astype(dtype)
    if array.ndim == 0:
        array = np.full(d, array, dtype)
    if array.ndim == 1 and array.shape == (d,):
        _checks.none_negative("a", array, "a diagonal >= 0", "pass variances")
        return np.diag(array), np.diag(np.sqrt(array))
    _checks.shape(
        "a",
        array.shape,
        (),
        (d,),
        (d, d),
        what="a number, a diagonal or a matrix",
        do="it acts on hidden states",
    )
    size = float(np.abs(array).max())
    slack = 100 * float(np.finfo(dtype).eps) * size * d
    if np.abs(array - array.T).max() > slack:
        raise ValueError("a: wanted a symmetric matrix, got one that is not; pass (a + a.T) / 2")
    values, vectors = np.linalg.eigh((array + array.T) / 2)
    if values[0] < -slack:
        raise ValueError(
            f"a: wanted a positive semidefinite matrix, got the eigenvalue {values[0]:.3g}; "
            "pass sigma @ sigma.T"
        )
    root: Real = vectors * np.sqrt(np.maximum(values, 0))
    return array, root
