"""Magnetic diffusion maps: a real operator times unit phases (DAC-6, DAC-11; DAC 4.4, C.6, C.7).

==================== ======================================================================
``phases(X, W)``     :math:`\\Theta_{ij} = \\gamma\\, x_i^\\top A\\, x_j`, antisymmetric (eq 37)
``log_flux(A)``      :math:`F_{ij} = \\log(\\pi_i A_{ij}) - \\log(\\pi_j A_{ji})` (eq 76)
``operator(X, ...)`` :math:`\\tilde P_{ij} = P_{ij} e^{i\\Theta_{ij}}` from points (eqs 14-15, 40)
``from_attention``   the same with :math:`\\Theta = \\gamma F` (eqs 77-81)
``hadamard(B, C)``   the entrywise product; gauge weights add (theorem C.8)
``laplacian(op)``    :math:`D - K\\odot U`, :math:`I - H` or :math:`I - \\tilde P` (corollary C.9)
``MagneticMap``      the leading eigenvectors as an estimator
==================== ======================================================================

Phases are lazy scores whose entries are angles, and they are never formed. Products cost one exp and one
sine-cosine per entry and O(N) memory.
"""

from ._build import from_attention, gauge_transform, hadamard, operator
from ._laplacian import MagneticLaplacian, laplacian
from ._map import MagneticMap
from ._operator import MagneticOperator
from ._phases import log_flux, phases

__all__ = [
    "MagneticLaplacian",
    "MagneticMap",
    "MagneticOperator",
    "from_attention",
    "gauge_transform",
    "hadamard",
    "laplacian",
    "log_flux",
    "operator",
    "phases",
]
