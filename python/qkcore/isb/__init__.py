"""Wasserstein gradient flows from same-marginal Schrödinger bridges (ISB-1 to ISB-4).

=================================== ================================================================
``barycentric(X, epsilon)``         :math:`B_{\\rho,\\varepsilon}`, the mean of Y given X = x in the bridge
``step(X, epsilon, theta=)``        :math:`x + (B_{\\sigma,\\varepsilon}(x) - x)/\\theta`; ``euler_step``
``heat_flow(X, epsilon, n)``        2x - B for x: :math:`\\partial_t\\rho = \\tfrac12\\Delta\\rho`
``kl_flow``, ``ornstein_uhlenbeck`` to a log-concave target given by its score or potential
``Mixture``, ``gaussian_w2``        laws known exactly, and distances to them
``one_step_rate``, ``uniform_rate`` errors against exact solutions, with fitted exponents
``gaussian_slope`` and others       closed forms for normal laws
=================================== ================================================================

The kernel is :math:`e^{-|x-y|^2/2\\varepsilon}` (the poster's objective lacks the ½, erratum 6) and every
step advances the time by epsilon, in the convention :math:`\\partial_t\\rho = \\tfrac12\\Delta\\rho`.
"""

from ._barycentric import BarycentricMap, barycentric
from ._convergence import (
    Rate,
    fit_rate,
    gaussian_entropy_gap,
    gaussian_slope,
    gaussian_variances,
    one_step_rate,
    uniform_rate,
)
from ._density import auto_theta, kde_log_density, silverman, surrogate_weights
from ._flows import heat_flow, kl_flow, ornstein_uhlenbeck, steps_for
from ._laws import Mixture, gaussian_w2
from ._result import BridgeFlow
from ._steps import Step, euler_step, step

__all__ = [
    "BarycentricMap",
    "BridgeFlow",
    "Mixture",
    "Rate",
    "Step",
    "auto_theta",
    "barycentric",
    "euler_step",
    "fit_rate",
    "gaussian_entropy_gap",
    "gaussian_slope",
    "gaussian_variances",
    "gaussian_w2",
    "heat_flow",
    "kde_log_density",
    "kl_flow",
    "one_step_rate",
    "ornstein_uhlenbeck",
    "silverman",
    "step",
    "steps_for",
    "surrogate_weights",
    "uniform_rate",
]
