"""Attention on measures: kernels, maximum entropy, W1, contraction and Lipschitz bounds (MTA).

================================ ==============================================================
``Measure``                      weighted points: push-forward, mixture, convolution (MTA-1)
``boltzmann_gibbs, softmatch``   :math:`\\Psi_g(\\nu)` and the kernel :math:`\\Psi_G(\\nu)` (definitions 3, 4)
``AttentionKernel``              :math:`A_\\mu = \\Pi\\circ(\\Psi_G(\\mu) L)` (definition 8)
``TransformerKernel``            the multi-head encoder block (proposition 12, appendix A)
``maximum_entropy``              :math:`\\lambda(x)` from moments (MTA-2, theorem 14)
``moment_projection``            onto Dirac measures and exponential families (16, 17)
``w1, w1_bracket``               the distance with l1 ground metric, exact and bracketed (MTA-4)
``contraction, lipschitz``       bounds, compared with measurements (MTA-3, 19 to 24)
``gaussian_lipschitz``           the unbounded Gaussian case (28 to 30)
``neighbourhood``                attention under another neighbourhood (25)
``fixed_point``                  weight-shared depth (26)
================================ ==============================================================

Distances are l1, as in the paper; plain numbers in brackets are its propositions and theorems. Printed
bounds that do not hold are reported too, and marked as such (erratum 10).
"""

from ._bounds import Bound, ContractionReport, contraction, neighbourhood
from ._domains import Ball, Box, Domain
from ._entropy import InfeasibleMomentsError, MaximumEntropy, maximum_entropy
from ._families import (
    ExponentialFamily,
    ExponentialMember,
    Gaussian,
    GaussianFamily,
    kl_divergence,
    moment_projection,
)
from ._fixed_point import FixedPoint, fixed_point, tau_bound
from ._jacobian import AttentionJacobian, LocalConstant
from ._kernels import AttentionKernel, ConditionedKernel, boltzmann_gibbs, softmatch
from ._lipschitz import LipschitzReport, gaussian_lipschitz, lipschitz, softmatch_perturbation
from ._lookups import FunctionLookup, LinearLookup, Lookup, TableLookup
from ._measure import GaussianMixture, Measure
from ._potentials import (
    DotPotential,
    FunctionPotential,
    GaussianPotential,
    Potential,
    PotentialConstants,
)
from ._transformer import ConditionedTransformer, FeedForward, LayerNorm, TransformerKernel
from ._transport import W1Bracket, w1, w1_bracket

__all__ = [
    "AttentionJacobian",
    "AttentionKernel",
    "Ball",
    "Bound",
    "Box",
    "ConditionedKernel",
    "ConditionedTransformer",
    "ContractionReport",
    "Domain",
    "DotPotential",
    "ExponentialFamily",
    "ExponentialMember",
    "FeedForward",
    "FixedPoint",
    "FunctionLookup",
    "FunctionPotential",
    "Gaussian",
    "GaussianFamily",
    "GaussianMixture",
    "GaussianPotential",
    "InfeasibleMomentsError",
    "LayerNorm",
    "LinearLookup",
    "LipschitzReport",
    "LocalConstant",
    "Lookup",
    "MaximumEntropy",
    "Measure",
    "Potential",
    "PotentialConstants",
    "TableLookup",
    "TransformerKernel",
    "W1Bracket",
    "boltzmann_gibbs",
    "contraction",
    "fixed_point",
    "gaussian_lipschitz",
    "kl_divergence",
    "lipschitz",
    "maximum_entropy",
    "moment_projection",
    "neighbourhood",
    "softmatch",
    "softmatch_perturbation",
    "tau_bound",
    "w1",
    "w1_bracket",
]
