"""Entropic transport between Gaussians for the cost |Qx - Ky|^2 / 2 epsilon, in closed form (TPDE-4, A.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._roots import lines, root

__all__ = ["EntropicPlan", "Quadratic", "bures", "entropic_bures", "entropic_ot"]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """:math:`-\\frac12(x - c)^\\top U(x - c) + \\ell^\\top(x - c) + \\mathrm{const}`."""

    centre: Real
    matrix: Real
    """U (..., d, d), symmetric but not necessarily positive"""
    linear: Real
    constant: Any

    def __call__(self, x: npt.ArrayLike) -> Real:
        """Its values at points x (..., d); for batches the leading axes broadcast."""
        z = np.asarray(x, np.float64) - self.centre
        square = np.einsum("...i,...ij,...j->...", z, self.matrix, z)
        out: Real = self.constant + np.einsum("...i,...i->...", self.linear, z) - 0.5 * square
        return out


@dataclass(frozen=True, eq=False)
class EntropicPlan:
    """The optimal coupling of two Gaussians, itself Gaussian, and its potentials."""

    value: Any
    """:math:`\\int c\\,d\\pi + KL(\\pi\\|\\mu\\otimes\\nu)` for :math:`c = |Qx - Ky|^2/2\\varepsilon`"""
    cost: Any
    """:math:`\\int c\\,d\\pi`"""
    kl: Any
    """:math:`KL(\\pi\\|\\mu\\otimes\\nu) = -\\frac12\\sum\\log(1 - \\rho_i^2)`"""
    mean: Real = field(repr=False)
    """the mean of (x, y)"""
    cov: Real = field(repr=False)
    """the covariance of (x, y), with the blocks :math:`\\Sigma`, ``cross`` and :math:`\\Omega`"""
    cross: Real = field(repr=False)
    """:math:`\\mathrm{Cov}(x, y) = A^{-1}C^\\top` of theorem A.3, (..., d_x, d_y)"""
    correlations: Real
    """canonical correlations ρ of the coupling, descending"""
    f: Quadratic = field(repr=False)
    g: Quadratic = field(repr=False)
    """:math:`d\\pi = e^{f(x) + g(y) - c(x, y)}d\\mu\\,d\\nu`, with :math:`\\int g\\,d\\nu = 0`"""
    epsilon: float

    @property
    def regression(self) -> Real:
        """N with :math:`E[y|x] = \\beta + N(x - \\alpha)`, (..., d_y, d_x)."""
        return self._regression

    _regression: Real = field(repr=False, default_factory=lambda: np.zeros(0))

    def project(self, x: npt.ArrayLike) -> Real:
        """The barycentric projection :math:`E[y|x]` of points x (..., d_x)."""
        d = self.cross.shape[-2]
        z = np.asarray(x, np.float64) - self.mean[..., :d]
        out: Real = self.mean[..., d:] + np.einsum("...ij,...j->...i", self._regression, z)
        return out

    def __str__(self) -> str:
        if np.ndim(self.value):
            return (
                f"{np.size(self.value)} entropic plans between Gaussians, epsilon {self.epsilon:g}"
            )
        top = float(self.correlations[0]) if self.correlations.size else 0.0
        return (
            f"entropic plan between Gaussians in {self.cross.shape[-2]} and {self.cross.shape[-1]} "
            f"dimensions, epsilon {self.epsilon:g}\n"
            f"  value {self.value:.6g} = cost {self.cost:.6g} + KL {self.kl:.6g}; "
            f"largest correlation {top:.6g}"
        )


def entropic_ot(
    mean_x: npt.ArrayLike | None,
    cov_x: npt.ArrayLike,
    mean_y: npt.ArrayLike | None,
    cov_y: npt.ArrayLike,
    *,
    epsilon: float = 1.0,
    Q: npt.ArrayLike | None = None,
    K: npt.ArrayLike | None = None,
) -> EntropicPlan:
    """Entropic transport between N(mean_x, cov_x) and N(mean_y, cov_y) (TPDE-4, theorem A.3).

    Minimises :math:`\\int|Qx - Ky|^2/2\\varepsilon\\,d\\pi + KL(\\pi\\|\\mu\\otimes\\nu)` over couplings.
    ``Q`` (k, d_x) and ``K`` (k, d_y) are the identity if None, and means are 0 if None; leading axes of the
    laws are a batch. Covariances and :math:`A = K^\\top Q` may be singular, though the paper's formula
    inverts both: square roots are found by eigh, followed by one SVD and a formula for each singular value.

    >>> import numpy as np, qkcore as qk
    >>> I = np.eye(1)
    >>> plan = qk.gaussian.entropic_ot(None, I, None, 4 * I, epsilon=1.0)
    >>> plan.cross  # rho / (1 - rho^2) = 2, times the standard deviations
    array([[1.56155281]])
    >>> plan.project(np.array([1.0]))
    array([1.56155281])
    """
    eps = _checks.positive("epsilon", epsilon)
    alpha, sigma = _law("mean_x", mean_x, "cov_x", cov_x)
    beta, omega = _law("mean_y", mean_y, "cov_y", cov_y)
    q, k = _pair(Q, K, sigma.shape[-1], omega.shape[-1])
    A = k.T @ q
    batch = _checks.broadcast(
        "cov_y",
        _checks.broadcast("mean_x", sigma.shape[:-2], alpha.shape[:-1]),
        _checks.broadcast("mean_y", omega.shape[:-2], beta.shape[:-1]),
    )
    alpha, beta = (np.broadcast_to(m, (*batch, m.shape[-1])) for m in (alpha, beta))
    sigma, omega = (np.broadcast_to(c, (*batch, *c.shape[-2:])) for c in (sigma, omega))
    found = lines(sigma, omega, A, eps)
    cross = (found.left * found.rho[..., None, :]) @ found.right.swapaxes(-1, -2)
    given_x = _conditional(omega, found.right, found.one_minus_square)
    given_y = _conditional(sigma, found.left, found.one_minus_square)
    N = given_x @ A / eps
    kl = -0.5 * np.log(found.one_minus_square).sum(axis=-1)
    shift = alpha @ q.T - beta @ k.T  # Q alpha - K beta
    offset = (shift**2).sum(axis=-1) / (2 * eps)
    trace = np.einsum("ki,...ij,kj->...", q, sigma, q) + np.einsum("ki,...ij,kj->...", k, omega, k)
    cost = (trace / 2 - (found.strength * found.rho).sum(axis=-1)) / eps + offset
    U = (A.T @ given_x @ A / eps - q.T @ q) / eps
    W = (A @ given_y @ A.T / eps - k.T @ k) / eps
    # At the centres the density ratio is prod (1 - rho^2)^-1/2. The constant is split between f and g such
    # that the mean of g is 0, as in discrete bridges.
    g_centre = 0.5 * np.einsum("...ij,...ji->...", W, omega)
    f = Quadratic(alpha, U, shift @ q / eps, kl + offset - g_centre)
    g = Quadratic(beta, W, -shift @ k / eps, g_centre)
    joint = np.concatenate(
        [
            np.concatenate([sigma, cross], axis=-1),
            np.concatenate([cross.swapaxes(-1, -2), omega], axis=-1),
        ],
        axis=-2,
    )
    single = not batch
    return EntropicPlan(
        value=float(cost + kl) if single else cost + kl,
        cost=float(cost) if single else cost,
        kl=float(kl) if single else kl,
        mean=np.concatenate([alpha, beta], axis=-1),
        cov=joint,
        cross=cross,
        correlations=found.rho,
        f=f,
        g=g,
        epsilon=eps,
        _regression=N,
    )


def _conditional(omega: Real, right: Real, one_minus_square: Real) -> Real:
    """Cov(y | x): lines keep 1 - rho^2 of their variance, and directions that belong to no line all of it."""
    turned = right.swapaxes(-1, -2)
    out: Real = (right * one_minus_square[..., None, :]) @ turned
    if right.shape[-1] < right.shape[-2]:
        out = out + omega - right @ turned
    return out


def entropic_bures(
    cov_x: npt.ArrayLike,
    cov_y: npt.ArrayLike,
    *,
    epsilon: float = 1.0,
    Q: npt.ArrayLike | None = None,
    K: npt.ArrayLike | None = None,
) -> Any:
    """:math:`\\mathfrak{B}^2_\\varepsilon = 2\\varepsilon\\,OT_\\varepsilon` of centred laws (TPDE-4, 5.13).

    Eq 5.13 subtracts :math:`|\\alpha_1 - \\alpha_2|^2`, which is the contribution of the means only for
    Q = K = I (erratum 22). The result here is the contribution of the covariances for any Q and K. Its limit
    for :math:`\\varepsilon\\to0` and Q = K = I is :func:`bures`.

    >>> import numpy as np
    >>> from qkcore.gaussian import bures, entropic_bures
    >>> a, b = np.diag([1.0, 4.0]), np.diag([9.0, 4.0])
    >>> float(bures(a, b)), round(entropic_bures(a, b, epsilon=1e-9), 6)
    (4.0, 4.0)
    """
    plan = entropic_ot(None, cov_x, None, cov_y, epsilon=epsilon, Q=Q, K=K)
    return 2 * plan.epsilon * plan.value


def bures(cov_x: npt.ArrayLike, cov_y: npt.ArrayLike) -> Any:
    """The squared Bures distance :math:`W_2^2(N(0, \\Sigma), N(0, \\Omega))`.

    :math:`\\mathrm{Tr}(\\Sigma + \\Omega) - 2\\|\\Omega^{1/2}\\Sigma^{1/2}\\|_*`, by eigh and one SVD.

    >>> import numpy as np
    >>> from qkcore.gaussian import bures
    >>> float(bures(np.eye(2), 4 * np.eye(2)))
    2.0
    """
    sigma = _checks.covariances("cov_x", cov_x).astype(np.float64)
    omega = _checks.covariances("cov_y", cov_y, sigma.shape[-1]).astype(np.float64)
    overlap = np.linalg.svd(root(omega) @ root(sigma), compute_uv=False).sum(axis=-1)
    traces = np.trace(sigma, axis1=-2, axis2=-1) + np.trace(omega, axis1=-2, axis2=-1)
    return np.maximum(traces - 2 * overlap, 0.0)


def _law(
    mean_name: str, mean: npt.ArrayLike | None, cov_name: str, cov: npt.ArrayLike
) -> tuple[Real, Real]:
    """Mean (..., d) and covariance (..., d, d) in float64."""
    sigma = _checks.covariances(cov_name, cov).astype(np.float64)
    d = sigma.shape[-1]
    if mean is None:
        return np.zeros(d), sigma
    alpha = _checks.real_array(mean_name, mean).astype(np.float64)
    _checks.shape(
        mean_name, alpha.shape, (..., d), why=f"as {cov_name} has {d} rows", do="pass None for 0"
    )
    _checks.finite(mean_name, alpha)
    return alpha, sigma


def _pair(
    Q: npt.ArrayLike | None, K: npt.ArrayLike | None, d_x: int, d_y: int
) -> tuple[Real, Real]:
    """The checked matrices Q (k, d_x) and K (k, d_y) in float64; the identity for None."""
    if (Q is None or K is None) and d_x != d_y:
        raise ValueError(
            f"Q, K: wanted matrices (k, {d_x}) and (k, {d_y}) between spaces of different dimension, got None"
        )
    found = []
    for name, value, d in (("Q", Q, d_x), ("K", K, d_y)):
        array = np.eye(d) if value is None else _checks.real_array(name, value).astype(np.float64)
        _checks.shape(name, array.shape, ("k", d))
        _checks.finite(name, array)
        found.append(array)
    q, k = found
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"K: wanted as many rows as Q, got shapes {k.shape} and {q.shape}")
    return q, k
