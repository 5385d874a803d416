"""Diffusion maps: the Markov operator of a Gaussian kernel and its spectrum (DAC-5; DAC 3.2, 4.1, C.2).

============================= ==================================================================
``operator(X, beta=)``        :math:`P^+`, rows of :math:`e^{-\\beta D^2}` normalised (eq 11)
``bistochastic(X, beta=)``    :math:`P^{+-}`, rows and columns normalised (Sinkhorn)
``symmetric_conjugate(P)``    :math:`S = \\Pi^{1/2} P\\, \\Pi^{-1/2}`, with the spectrum of P
``laplacian(P, kind)``        :math:`I - P`, :math:`I - S` or diag(Z) - K (eqs 12-13)
``diffusion_distance(P, ..)`` the distance between t-step laws, from the operator itself
``choose_beta(X, rule)``      the automatic scales, with the rule stated
``DiffusionMap``              coordinates :math:`\\lambda_k^t\\psi_k`, also of new points
``DisconnectedWarning``       the coordinates only tell a few points from the rest
============================= ==================================================================

:math:`P^-` (columns normalised) is ``operator(...).T``, as K is symmetric. Everything but ``to_numpy``
works in O(N) memory from the points; :class:`DiffusionMap` may keep one array, see ``max_memory``.
"""

from ._localized import DisconnectedWarning
from ._map import DiffusionMap
from ._operators import (
    Laplacian,
    bistochastic,
    diffusion_distance,
    laplacian,
    operator,
    symmetric_conjugate,
)
from ._scale import BetaChoice, choose_beta

__all__ = [
    "BetaChoice",
    "DiffusionMap",
    "DisconnectedWarning",
    "Laplacian",
    "bistochastic",
    "choose_beta",
    "diffusion_distance",
    "laplacian",
    "operator",
    "symmetric_conjugate",
]
