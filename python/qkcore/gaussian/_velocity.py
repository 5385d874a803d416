"""The velocity of a Gaussian law under attention: an affine map of the token (TPDE 4.1, 4.10, 4.14)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .._lazy_scores import Real
from ._parameters import Parameters, check_law, check_parameters
from ._roots import regression

__all__ = ["AffineVelocity", "velocity"]


@dataclass(frozen=True)
class AffineVelocity:
    """:math:`\\Gamma(x) = b + M x`, and what it does to the mean and the covariance of the law."""

    matrix: Real
    """M, (..., d, d)"""
    offset: Real
    """b, (..., d)"""
    mean_rate: Real
    """:math:`\\dot\\alpha = b + M\\alpha`"""
    cov_rate: Real = field(repr=False)
    """:math:`\\dot\\Sigma = M\\Sigma + \\Sigma M^\\top`"""

    def __call__(self, x: npt.ArrayLike) -> Real:
        """The velocity of tokens x (..., d)."""
        points = np.asarray(x)
        out: Real = np.einsum("...ij,...j->...i", self.matrix, points) + self.offset
        return out


def velocity(
    kind: str,
    mean: npt.ArrayLike | None,
    cov: npt.ArrayLike,
    *,
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    V: npt.ArrayLike,
    epsilon: float = 1.0,
    heads: int = 1,
) -> AffineVelocity:
    """The velocity field of tokens with law N(mean, cov), in closed form (TPDE-3).

    With :math:`A = K^\\top Q`, summed over heads:

    ================== ==========================================================================
    "softmax"          :math:`V(\\alpha + \\Sigma A x)` (lemma 4.1)
    "l2"               :math:`V(\\Sigma^{-1} + 2K^\\top K)^{-1}(\\Sigma^{-1}\\alpha + 2Ax)` (lemma 4.10)
    "sinkhorn"         :math:`\\varepsilon^{-1} V(\\alpha + N(x - \\alpha))`, N the regression of y on x
                       under the entropic coupling (lemma 4.14, without its inverses)
    "linear"           :math:`V(\\Sigma + \\alpha\\alpha^\\top) A x` (2.2, attention without softmax)
    "linear_epsilon"   :math:`\\varepsilon^{-1} V\\alpha + V\\Sigma A x` (2.2, expanded softmax)
    ================== ==========================================================================

    Covariances and A may be singular. Shapes are those of :func:`flow`. It takes NumPy arrays and computes in
    float64.

    >>> import numpy as np
    >>> from qkcore.gaussian import velocity
    >>> I = np.eye(2)
    >>> v = velocity("softmax", np.array([1.0, 0.0]), np.diag([2.0, 0.5]), Q=I, K=-I, V=I)
    >>> v.matrix
    array([[-2. ,  0. ],
           [ 0. , -0.5]])
    >>> v.mean_rate
    array([-1.,  0.])
    """
    alpha, sigma = check_law(mean, cov)
    p = check_parameters(
        kind, Q, K, V, d=sigma.shape[-1], dtype=sigma.dtype, epsilon=epsilon, heads=heads
    )
    return field_of(p, alpha, sigma)


def field_of(p: Parameters, alpha: Real, sigma: Real) -> AffineVelocity:
    dtype = sigma.dtype
    mean, cov = alpha.astype(np.float64)[..., None, :, None], sigma.astype(np.float64)
    S = cov[..., None, :, :]
    A, V = p.A.astype(np.float64), p.V.astype(np.float64)
    if p.kind == "l2":
        K = p.K.astype(np.float64)
        Kt = K.swapaxes(-1, -2)
        # Sigma K^T (I + 2 K Sigma K^T)^-1, which does not need Sigma^-1
        inner = np.eye(K.shape[-2]) + 2 * K @ S @ Kt
        B = np.linalg.solve(inner, K @ S).swapaxes(-1, -2)
        slope = 2 * B @ p.Q.astype(np.float64)
        offset = mean - 2 * B @ (K @ mean)
    elif p.kind == "sinkhorn":
        N = regression(S, S, A, p.epsilon)
        slope, offset = N / p.epsilon, (mean - N @ mean) / p.epsilon
    elif p.kind == "linear":
        slope, offset = (S + mean @ mean.swapaxes(-1, -2)) @ A, 0 * mean
    else:
        slope = S @ A
        offset = mean / p.epsilon if p.kind == "linear_epsilon" else mean
    M = (V @ slope).sum(axis=-3)
    b = (V @ offset).sum(axis=-3)[..., 0]
    flux = M @ cov
    mean_rate = b + (M @ mean[..., 0, :, :])[..., 0]
    return AffineVelocity(
        M.astype(dtype),
        b.astype(dtype),
        mean_rate.astype(dtype),
        (flux + flux.swapaxes(-1, -2)).astype(dtype),
    )
