"""May a stack of layers be read as a flow in time? Budgets, bound, jumps (EOT-3, EOT-4; EOT 3, D, K).

=============================== ==================================================================
``budget(logits)``              C_BV, S_L, Ξ_L per row; ``Constants``, ``estimate_constants``
``finite_depth(logits, drift)`` theorem 3.1's bound beside the error of the PF-ODE
``BVDetector``, ``detect``      algorithm 1, layer by layer or over a stack
``segment(logits)``             depth cut at its jumps, each side analysed (K.2)
=============================== ==================================================================

Logits are (L + 1, ..., V): layers first, entries of a row last, any batch of rows (heads, queries) between.
"""

from ._depth_budget import (
    Constants,
    DepthBudget,
    FiniteDepth,
    budget,
    estimate_constants,
    finite_depth,
)
from ._depth_detector import BVDetector, BVStep, detect
from ._depth_segments import Interface, Segment, Segmentation, segment

__all__ = [
    "BVDetector",
    "BVStep",
    "Constants",
    "DepthBudget",
    "FiniteDepth",
    "Interface",
    "Segment",
    "Segmentation",
    "budget",
    "detect",
    "estimate_constants",
    "finite_depth",
    "segment",
]
