"""Gaussian laws under attention: flows, formulas, entropic transport, energies (TPDE-3, TPDE-4).

============================= ====================================================================
``flow(kind, mean, cov, ..)`` means and covariances of many laws over time, each with a status
``velocity(kind, ..)``        the affine field :math:`b + Mx` that moves them
``softmax_line`` ...          solutions on a line: softmax, L2, Sinkhorn
``commuting``, ``rank_one``   solutions for commuting parameters and from a covariance of rank one
``stationarity``              tests of stationary points and bounds on their rank
``entropic_ot``               the coupling of two Gaussians for :math:`|Qx - Ky|^2/2\\varepsilon`
``entropic_bures``, ``bures`` distances of covariances
``sinkhorn_energy`` ...       energies, gradients, the Bures-Wasserstein flow
============================= ====================================================================
"""

from ._closed_forms import (
    Commuting,
    RankOne,
    commuting,
    l2_line,
    rank_one,
    sinkhorn_line,
    softmax_blow_up_line,
    softmax_line,
)
from ._energy import bures_rate, sinkhorn_energy, sinkhorn_gradient, twisted_energy
from ._flow import flow
from ._result import GaussianFlow
from ._stationary import Stationarity, stationarity, stationary_rank_bound
from ._transport import EntropicPlan, Quadratic, bures, entropic_bures, entropic_ot
from ._velocity import AffineVelocity, velocity

__all__ = [
    "AffineVelocity",
    "Commuting",
    "EntropicPlan",
    "GaussianFlow",
    "Quadratic",
    "RankOne",
    "Stationarity",
    "bures",
    "bures_rate",
    "commuting",
    "entropic_bures",
    "entropic_ot",
    "flow",
    "l2_line",
    "rank_one",
    "sinkhorn_energy",
    "sinkhorn_gradient",
    "sinkhorn_line",
    "softmax_blow_up_line",
    "softmax_line",
    "stationarity",
    "stationary_rank_bound",
    "twisted_energy",
    "velocity",
]
