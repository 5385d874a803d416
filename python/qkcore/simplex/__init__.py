"""How the softmax moves the probability simplex: mobility, flows, proximal steps (EOT-1, 2, 5, 8).

============================== ================================================================
``from_logits(z, tau)``        rows of probabilities; ``entropy(p)`` their Shannon entropy
``Mobility(p, tau)``           :math:`J = (\\mathrm{diag}(p) - pp^\\top)/\\tau`: products, norms, spectrum
``EffectiveMobility(p, W, a)`` :math:`J W^\\top a W J`, what hidden noise does to probabilities
``pf_ode(p0, drift, t_span)``  :math:`\\dot p = J(p)\\, b(p, t)`, checked as in H.1
``entropy_rate(p, b)``         how fast entropy changes along it (L.1)
``kl_prox(cost, reference)``   :math:`\\min\\, c\\cdot p + \\tau\\mathrm{KL}(p\\|u)`; ``free_energy``
``jko(p0, energy)``            successive KL-proximal steps
``qk.semi_relaxed(s, mu)``     the same for all rows of a coupling, in O(N) memory
============================== ================================================================
"""

from ._drifts import FittedDrift
from ._effective import EffectiveMobility
from ._flow import PFSolution, entropy_rate, pf_ode, project_to_simplex
from ._mobility import Mobility
from ._softmax import entropy, from_logits
from ._transport import JKOPath, free_energy, jko, kl_prox

__all__ = [
    "EffectiveMobility",
    "FittedDrift",
    "JKOPath",
    "Mobility",
    "PFSolution",
    "entropy",
    "entropy_rate",
    "free_energy",
    "from_logits",
    "jko",
    "kl_prox",
    "pf_ode",
    "project_to_simplex",
]
