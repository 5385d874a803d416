"""Stationary covariances of the softmax flow: tests and the ranks that they may have (TPDE-3, 4.6-4.8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._closed_forms import _square

__all__ = ["Stationarity", "stationarity", "stationary_rank_bound"]


@dataclass(frozen=True)
class Stationarity:
    """Whether Σ is a stationary point of eq 4.1, and what the lemmas say about it."""

    stationary: bool
    """:math:`|\\dot\\Sigma|_F` is at most ``tol`` times ``scale``"""
    residual: float
    """:math:`|V\\Sigma A\\Sigma + \\Sigma A^\\top\\Sigma V^\\top|_F`"""
    scale: float
    """:math:`2|V|\\,|A|\\,|\\Sigma|^2` (Frobenius): the residual cannot be larger"""
    tol: float
    rank: int
    """number of eigenvalues of Σ above ``tol`` times the largest"""
    rank_bound: int | None
    """proposition 4.8: dim ker A + min(positive, negative eigenvalues); None unless V = I and A = Aᵀ"""
    in_kernel: float | None
    """|Vu| / (|V| |u|) for Σ = uuᵀ of rank one, otherwise None; if it is 0, Σ is stationary (lemma 4.7)"""
    isotropy: float | None
    """:math:`u^\\top(A + A^\\top)u` over its largest possible size, for rank one; if it is 0, Σ is stationary
    (lemma 4.7)"""
    direction: Real | None = field(repr=False)
    """u"""

    def __str__(self) -> str:
        lines = [
            f"{'stationary' if self.stationary else 'not stationary'}: |cov'| = {self.residual:.3g}, "
            f"tolerance {self.tol * self.scale:.3g}; rank {self.rank}"
        ]
        if self.rank_bound is not None:
            lines.append(f"  a stationary point has rank at most {self.rank_bound} (TPDE 4.8)")
        if self.isotropy is not None:
            lines.append(
                f"  rank one (TPDE 4.7): |Vu| {self.in_kernel:.3g}, u'(A + A')u {self.isotropy:.3g}, relative"
            )
        return "\n".join(lines)


def stationary_rank_bound(A: npt.ArrayLike, tol: float = 1e-10) -> int:
    """dim ker A + min(#positive, #negative eigenvalues) of a symmetric A (TPDE 4.8, for V = I).

    It is the largest dimension of a space on which the form A vanishes, so the bound is attained.

    >>> import numpy as np
    >>> from qkcore.gaussian import stationary_rank_bound
    >>> stationary_rank_bound(np.diag([1.0, -2.0, 0.0, 3.0]))
    2
    """
    tol = _checks.positive("tol", tol)
    array = _checks.doubles("A", A)
    _checks.not_empty("A", array)
    _checks.square("A", array.shape, "pass K.T @ Q")
    _checks.finite("A", array)
    if np.abs(array - array.T).max() > tol * np.abs(array).max():
        raise ValueError("A: wanted a symmetric matrix (TPDE 4.8), got one that is not")
    values = np.linalg.eigvalsh(array)
    cut = tol * float(np.abs(values).max())
    positive, negative = int((values > cut).sum()), int((values < -cut).sum())
    return len(values) - positive - negative + min(positive, negative)


def stationarity(
    cov: npt.ArrayLike, A: npt.ArrayLike, V: npt.ArrayLike, *, tol: float = 1e-10
) -> Stationarity:
    """Tests whether Σ is a stationary point of the softmax flow (TPDE 4.6-4.8).

    A covariance :math:`uu^\\top` of rank one is stationary iff :math:`Vu = 0` or
    :math:`u^\\top(A + A^\\top)u = 0` (lemma 4.7). With V = I and symmetric A, the rank of stationary points
    is bounded (proposition 4.8).

    >>> import numpy as np
    >>> from qkcore.gaussian import stationarity
    >>> print(stationarity(np.diag([1.0, 0.0]), [[0.0, 1.0], [1.0, 0.0]], np.eye(2)))
    stationary: |cov'| = 0, tolerance 4e-10; rank 1
      a stationary point has rank at most 1 (TPDE 4.8)
      rank one (TPDE 4.7): |Vu| 1, u'(A + A')u 0, relative
    """
    sigma = _checks.covariances("cov", cov).astype(np.float64)
    _checks.shape("cov", sigma.shape, ("d", "d"), what="one covariance", do="take them one by one")
    d = sigma.shape[0]
    a, v = (_square(name, x, d) for name, x in (("A", A), ("V", V)))
    allowed = _checks.positive("tol", tol)
    flux = v @ sigma @ a @ sigma
    residual = float(np.linalg.norm(flux + flux.T))
    scale = 2 * float(np.linalg.norm(v) * np.linalg.norm(a) * np.linalg.norm(sigma) ** 2)
    values, vectors = np.linalg.eigh(sigma)
    top = max(float(values[-1]), 0.0)
    rank = int((values > allowed * top).sum()) if top > 0 else 0
    identity = np.array_equal(v, np.eye(d))
    symmetric = np.abs(a - a.T).max() <= allowed * np.abs(a).max()
    in_kernel = isotropy = direction = None
    if rank == 1:
        u = vectors[:, -1]
        direction = np.sqrt(top) * u
        in_kernel = float(np.linalg.norm(v @ u) / (np.linalg.norm(v, 2) or 1.0))
        form = a + a.T
        isotropy = float(u @ form @ u / (np.linalg.norm(form, 2) or 1.0))
    return Stationarity(
        residual <= allowed * scale,
        residual,
        scale,
        allowed,
        rank,
        stationary_rank_bound(a, allowed) if identity and symmetric else None,
        in_kernel,
        isotropy,
        direction,
    )
