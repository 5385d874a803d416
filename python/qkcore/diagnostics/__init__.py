"""Diagnostics of a stack of layers as a transport of probability (EOT): arrays in, results out.

==============  ==================================================================================
``run``         P0-P4 on logits or activations: pass, fail or abstain, with numbers and reasons
``depth``       depth as time: variation budgets, jumps, segments (EOT-3, EOT-4)
``drift``       drifts from samples: local and ridge regression (EOT-6)
``duality``     one law, two flows: SDE and probability flow, parity, weak error (EOT-7, EOT-9)
``rotation``    a-weighted Hodge decomposition and rotational energy (EOT-11)
``curvature``   W1, curvature, EVI, locking (EOT-12)
``score``       score estimation by denoising (EOT-14; needs the extra ``train``)
==============  ==================================================================================
"""

from . import curvature, depth, drift, duality, rotation, score
from .report import Check, Report, Thresholds, run

__all__ = [
    "Check",
    "Report",
    "Thresholds",
    "curvature",
    "depth",
    "drift",
    "duality",
    "rotation",
    "run",
    "score",
]


def __dir__() -> list[str]:
    return list(__all__)
