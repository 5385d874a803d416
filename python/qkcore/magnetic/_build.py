"""Magnetic operators from points, from attention and from each other."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .. import _checks, scores
from .._lazy_scores import Real, Scores
from .._points import WLike
from .._terms import Terms
from ..operators import KernelOperator, MarkovOperator, kernel, softmax
from ._hermitian import Complex
from ._operator import MagneticOperator, one_angle_per_state
from ._phases import log_flux, phases, scale, times


def operator(
    X: npt.ArrayLike,
    *,
    beta: float,
    W: WLike = None,
    gamma: float = 1.0,
    metric: str = "W",
    alpha: float = 0.0,
) -> MagneticOperator:
    """The magnetic diffusion operator of points (DAC-6, eqs 14-15, 37-40): :math:`\\tilde P = P\\odot U`.

    P is the row softmax of :math:`-\\beta D^2`, D the distance in the symmetric part of W (``metric="W"``,
    eq 2) or the Euclidean one (``"euclidean"``); the phases are :func:`phases` (X, W, gamma). ``alpha``
    divides the kernel by :math:`(q_iq_j)^\\alpha`, q its row sums, as in diffusion maps. The symmetric
    part may be indefinite; if it is 0, P is uniform.

    >>> import numpy as np
    >>> from qkcore import magnetic
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> P = magnetic.operator(X, beta=1.0, W=np.array([[1.0, 0.5], [-0.5, 1.0]]))
    >>> P
    MagneticOperator(shape=(100, 100), dtype=complex128, row-stochastic magnitude, gauge weight 1)
    >>> bool(np.abs(P.current() + P.current().T).max() < 1e-15)
    True
    """
    angles = phases(X, W, gamma)
    s, _ = density_normalized(scores.distance(X, W=metric_of(W, metric), beta=beta), alpha)
    return MagneticOperator(softmax(s), angles)


def metric_of(W: WLike, metric: str) -> WLike:
    """The W of the squared distances; None for Euclidean ones."""
    _checks.one_of("metric", metric, ("W", "euclidean"))
    return W if metric == "W" else None


def density_normalized(s: Scores, alpha: float) -> tuple[Scores, Real | None]:
    """log of K_ij / (q_i q_j)^alpha, and the shift -alpha log q that was added (None if alpha is 0)."""
    power = _checks.at_least("alpha", alpha, 0, "e.g. 0, 0.5 or 1")
    if power == 0:
        return s, None
    b = s.backend
    shift: Real = b.give(b.scaled(b.logsumexp(s, None, b.at(None)), -power))
    return s.shift(rows=shift, columns=shift), shift


def from_attention(
    A: MarkovOperator,
    P: MarkovOperator | None = None,
    *,
    gamma: float = 1.0,
    rho: npt.ArrayLike | None = None,
) -> MagneticOperator:
    """A magnetic operator whose phases are the currents of attention (DAC-11, eqs 76-81).

    :math:`\\tilde P_{ij} = P_{ij}e^{i\\gamma F_{ij}}` with the :func:`log_flux` F of A (at ``rho``, or at
    its stationary law). P gives the absolute values, e.g.
    ``qk.softmax(qk.scores.distance(X, beta=beta))``. Without P they are the row softmax of s + s^T, where s
    are the scores of A: for ``qk.scores.forward(X, W=W, beta=beta)`` that is the diffusion map of eq 11,
    because :math:`d^\\to_{ij} + d^\\to_{ji} = D^2_{ij}`.

    >>> import numpy as np, qkcore as qk
    >>> from qkcore import magnetic
    >>> rng = np.random.default_rng(0)
    >>> X, W = rng.normal(size=(50, 3)), rng.normal(size=(3, 3))
    >>> A = qk.softmax(qk.scores.forward(X, W=W, beta=0.1))
    >>> P = magnetic.from_attention(A, gamma=0.5)
    >>> D = qk.softmax(qk.scores.distance(X, W=W, beta=0.1))
    >>> bool(np.allclose(np.abs(P.to_numpy()), D.to_numpy()))
    True
    """
    flux = log_flux(A, rho)
    if P is None:
        s = A.scores if A.axis == 1 else A.T.scores
        P = softmax(s + s.T)
    return MagneticOperator(P, times(flux, scale("gamma", gamma, flux.dtype)))


def hadamard(*operators: MagneticOperator | MarkovOperator | KernelOperator) -> MagneticOperator:
    """The entrywise product: scores, phases and gauge weights add (DAC-6, theorem C.8).

    Real operators count as magnetic ones with phase 0 and gauge weight 0. The product is a kernel; call
    ``normalized()`` on it for rows that sum to 1.

    >>> import numpy as np
    >>> from qkcore import magnetic
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> P = magnetic.operator(X, beta=1.0, W=np.array([[1.0, 0.5], [-0.5, 1.0]]))
    >>> magnetic.hadamard(P, P).gauge_weight
    2.0
    """
    _checks.some("hadamard", len(operators), 1, "operator")
    factors = []
    for i, factor in enumerate(operators):
        if isinstance(factor, (MarkovOperator, KernelOperator)):
            none = factor.scores._with(Terms(), bound=0.0)
            factor = MagneticOperator(factor, none, gauge_weight=0.0)
        _checks.instance(f"hadamard[{i}]", factor, MagneticOperator, "an operator")
        factors.append(factor)
    weights, angles = factors[0].log_weights, factors[0].phases
    for factor in factors[1:]:
        weights, angles = weights + factor.log_weights, angles + factor.phases
    total = math.fsum(factor.gauge_weight for factor in factors)
    return MagneticOperator(kernel(weights), angles, gauge_weight=total)


def gauge_transform(E: npt.ArrayLike, phi: npt.ArrayLike, weight: float = 1.0) -> Complex:
    """:math:`E'_{ij} = e^{i\\alpha(\\phi_i-\\phi_j)}E_{ij}` of an array E (..., N, N) (DAC-6, theorem C.8).

    alpha is ``weight``. :meth:`MagneticOperator.gauge` does the same without forming the array.

    >>> import numpy as np
    >>> from qkcore import magnetic
    >>> magnetic.gauge_transform(np.ones((2, 2)), np.array([np.pi / 2, 0.0])).round(12)
    array([[1.+0.j, 0.+1.j],
           [0.-1.j, 1.+0.j]])
    """
    edges = _checks.complex_array("E", E)
    _checks.square_matrices("E", edges.shape)
    batch, n = edges.shape[:-2], edges.shape[-1]
    angles = one_angle_per_state(phi, n, batch, edges.real.dtype).astype(np.float64)
    turn = np.exp(1j * _checks.number("weight", weight) * angles).astype(edges.dtype)
    out: Complex = turn[..., :, None] * edges * turn.conj()[..., None, :]
    return out
