"""Energies of Gaussian laws and the Bures-Wasserstein gradient flow (TPDE-4, 5.3-5.4)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real
from ._closed_forms import _square
from ._roots import conditional, root
from ._transport import _law, _pair, entropic_bures

__all__ = ["bures_rate", "sinkhorn_energy", "sinkhorn_gradient", "twisted_energy"]


def sinkhorn_energy(
    mean: npt.ArrayLike | None,
    cov: npt.ArrayLike,
    *,
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    epsilon: float = 1.0,
    as_printed: bool = False,
) -> float:
    """The energy :math:`F_\\varepsilon` of the Sinkhorn flow if :math:`A = A^\\top = -V` (TPDE-4, 5.11-5.12).

    The flow descends :math:`F_\\varepsilon = -\\frac12 OT_\\varepsilon(\\mu, \\mu) +
    \\frac{1}{4\\varepsilon}\\int(|Qx|^2 + |Kx|^2)d\\mu`. For a Gaussian law this is

    .. math:: \\tfrac{1}{4\\varepsilon}\\left(-\\mathfrak{B}_\\varepsilon^2(\\Sigma, \\Sigma)
       + \\mathrm{Tr}\\,Q\\Sigma Q^\\top + \\mathrm{Tr}\\,K\\Sigma K^\\top + 2\\alpha^\\top A\\alpha\\right).

    Eq 5.12 has :math:`\\alpha^\\top(Q^\\top Q + K^\\top K)\\alpha` as the last term, which forgets that
    :math:`OT_\\varepsilon` contains :math:`|Q\\alpha - K\\alpha|^2/2\\varepsilon`. The gradient of that is
    not the Sinkhorn flow unless :math:`Q\\alpha = K\\alpha` (erratum 22). ``as_printed=True`` computes the
    printed formula.

    >>> import numpy as np
    >>> from qkcore.gaussian import sinkhorn_energy
    >>> I = np.eye(2)
    >>> round(sinkhorn_energy(np.array([1.0, 0.0]), I, Q=I, K=I), 6)
    0.877428
    """
    alpha, sigma = _law("mean", mean, "cov", cov)
    _one_law(alpha, sigma)
    q, k = _pair(Q, K, sigma.shape[-1], sigma.shape[-1])
    eps = _checks.positive("epsilon", epsilon)
    quadratic = q.T @ q + k.T @ k
    last = quadratic if as_printed else 2 * k.T @ q
    spread = float(np.trace(quadratic @ sigma) + alpha @ last @ alpha)
    return (spread - float(entropic_bures(sigma, sigma, epsilon=eps, Q=q, K=k))) / (4 * eps)


def sinkhorn_gradient(
    cov: npt.ArrayLike, *, Q: npt.ArrayLike, K: npt.ArrayLike, epsilon: float = 1.0
) -> Real:
    """:math:`\\nabla_\\Sigma F_\\varepsilon`, the symmetric Euclidean gradient in the covariance (TPDE-4).

    :math:`\\frac{1}{4\\varepsilon^2}(A^\\top\\mathrm{Cov}(y|x)A + A\\,\\mathrm{Cov}(x|y)A^\\top)`, from the
    potentials of the coupling.

    >>> import numpy as np
    >>> from qkcore.gaussian import sinkhorn_gradient
    >>> float(round(sinkhorn_gradient(np.eye(1), Q=np.eye(1), K=np.eye(1))[0, 0], 6))
    0.309017
    """
    sigma = _checks.covariances("cov", cov).astype(np.float64)
    q, k = _pair(Q, K, sigma.shape[-1], sigma.shape[-1])
    eps = _checks.positive("epsilon", epsilon)
    A = k.T @ q
    out: Real = A.T @ conditional(sigma, sigma, A, eps) @ A
    out = out + A @ conditional(sigma, sigma, A.T, eps) @ A.T
    return out / (4 * eps**2)


def bures_rate(cov: npt.ArrayLike, gradient: npt.ArrayLike) -> Real:
    """:math:`\\dot\\Sigma = -2(G\\Sigma + \\Sigma G)`: Bures-Wasserstein steepest descent (TPDE-4, 5.3).

    G is the Euclidean gradient of an energy of the covariance. Eq 5.9 and the line after it print
    :math:`+(G\\Sigma + \\Sigma G)`, without the sign and without the 2 that the metric brings (on a line
    :math:`W_2^2 \\approx ds^2/4s`; erratum 23). With :func:`sinkhorn_gradient` and :math:`A = A^\\top = -V`
    this is the Sinkhorn flow.

    >>> import numpy as np
    >>> from qkcore.gaussian import bures_rate, sinkhorn_gradient, velocity
    >>> S, I = np.diag([1.0, 2.0]), np.eye(2)
    >>> descent = bures_rate(S, sinkhorn_gradient(S, Q=I, K=I))
    >>> bool(np.allclose(descent, velocity("sinkhorn", None, S, Q=I, K=I, V=-I).cov_rate))
    True
    """
    sigma = _checks.covariances("cov", cov)
    G = _checks.real_array("gradient", gradient)
    _checks.finite("gradient", G)
    _checks.shape("gradient", G.shape, (..., *sigma.shape[-2:]))
    product = G @ sigma
    out: Real = -2 * (product + product.swapaxes(-1, -2))
    return out


def twisted_energy(mean: npt.ArrayLike | None, cov: npt.ArrayLike, A: npt.ArrayLike) -> float:
    """:math:`\\frac12\\iint e^{Ax\\cdot y}d\\mu\\,d\\mu` of a Gaussian law (TPDE-4, 5.4, D.2).

    The softmax flow descends it if :math:`-VA^{-\\top}` is symmetric and positive definite. It is infinite
    if the largest singular value of :math:`\\Sigma^{1/2}A\\Sigma^{1/2}` is 1 or more; the absolute value in
    the paper's determinant hides that (erratum 24).

    >>> import numpy as np
    >>> from qkcore.gaussian import twisted_energy
    >>> round(twisted_energy(None, 0.6 * np.eye(1), np.eye(1)), 6)  # 1 / 2 sqrt(1 - 0.36)
    0.625
    >>> twisted_energy(None, 1.2 * np.eye(1), np.eye(1))
    inf
    """
    alpha, sigma = _law("mean", mean, "cov", cov)
    _one_law(alpha, sigma)
    a = _square("A", A, sigma.shape[-1])
    L = root(sigma)
    T = L @ a @ L
    singular = np.linalg.svd(T, compute_uv=False)
    if singular[0] >= 1:
        return math.inf
    d = len(singular)
    # With x = alpha + L xi and y = alpha + L eta, this is the mean of exp(b.z + z'Jz/2) over z = (xi, eta),
    # which is standard normal.
    zero = np.zeros((d, d))
    inner = np.eye(2 * d) - np.block([[zero, T.T], [T, zero]])
    b = np.concatenate([L @ a.T @ alpha, L @ a @ alpha])
    exponent = float(alpha @ a @ alpha + 0.5 * b @ np.linalg.solve(inner, b))
    log_determinant = float(np.log1p(-(singular**2)).sum())
    log_value = exponent - 0.5 * log_determinant - math.log(2)
    return math.exp(log_value) if log_value < 709 else math.inf


def _one_law(mean: Real, cov: Real) -> None:
    _checks.shape("mean", mean.shape, ("d",), what="one law, with a mean", do=_ONE)
    _checks.shape("cov", cov.shape, ("d", "d"), what="one law, with a covariance", do=_ONE)


_ONE = "take them one by one"
