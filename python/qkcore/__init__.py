"""qkcore: attention, diffusion maps and Schrödinger bridges as one engine over score matrices.

>>> import numpy as np, qkcore as qk
>>> rng = np.random.default_rng(0)
>>> Q, K, V = (rng.normal(size=(100, 8)) for _ in range(3))
>>> A = qk.softmax(qk.scores.dot(Q, K, beta=8**-0.5).causal())
>>> (A @ V).shape
(100, 8)
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from . import _interpreter  # noqa: F401  # must run before anything compiled is loaded

# isort: split
from . import scores
from ._batch import Batch
from ._config import config, get_num_threads, set_num_threads, show_config
from ._convergence import ConvergenceError, ConvergenceWarning
from ._cpuid import version as __version__
from ._dynamics import CurrentNorms, ReducibleChainError, Regime
from ._feasibility import usable_entries
from ._lazy_scores import Scores
from ._linear import LinearMap, OperatorSum
from ._markov import Composition
from ._reading import LargestWeights
from ._words import RegimeName, Solver, Status, Weight
from .bridges import GivenBridge, SchrodingerBridge, bridge, semi_relaxed, sinkhorn
from .chains import BridgeChain, bridge_chain
from .experts import DirectionalExperts, directional_experts, poe, total_variation
from .factors import (
    FactoredBridge,
    LowRank,
    NegativeEntries,
    ProductOfFactors,
    compression_errors,
    low_rank,
    nystrom,
    positive_features,
)
from .fields import AttentionField
from .flows import ParticleFlow, flow
from .ipf import AdaptiveIPF, adaptive_ipf
from .operators import KernelOperator, MarkovOperator, kernel, softmax
from .transport import (
    Barycenter,
    barycenter,
    c_transform,
    free_barycenter,
    sinkhorn_divergence,
    wasserstein,
)

if TYPE_CHECKING:
    from . import (
        diagnostics,
        diffusion,
        divergence,
        gaussian,
        isb,
        magnetic,
        measure,
        observables,
        schedule,
        simplex,
    )

__all__ = [
    "AdaptiveIPF",
    "AttentionField",
    "Barycenter",
    "Batch",
    "BridgeChain",
    "Composition",
    "ConvergenceError",
    "ConvergenceWarning",
    "CurrentNorms",
    "DirectionalExperts",
    "FactoredBridge",
    "GivenBridge",
    "KernelOperator",
    "LargestWeights",
    "LinearMap",
    "LowRank",
    "MarkovOperator",
    "NegativeEntries",
    "OperatorSum",
    "ParticleFlow",
    "ProductOfFactors",
    "ReducibleChainError",
    "Regime",
    "RegimeName",
    "SchrodingerBridge",
    "Scores",
    "Solver",
    "Status",
    "Weight",
    "__version__",
    "adaptive_ipf",
    "barycenter",
    "bridge",
    "bridge_chain",
    "c_transform",
    "compression_errors",
    "config",
    "diagnostics",
    "diffusion",
    "directional_experts",
    "divergence",
    "flow",
    "free_barycenter",
    "gaussian",
    "get_num_threads",
    "isb",
    "kernel",
    "low_rank",
    "magnetic",
    "measure",
    "nystrom",
    "observables",
    "poe",
    "positive_features",
    "schedule",
    "scores",
    "semi_relaxed",
    "set_num_threads",
    "show_config",
    "simplex",
    "sinkhorn",
    "sinkhorn_divergence",
    "softmax",
    "total_variation",
    "usable_entries",
    "wasserstein",
]

# These modules are imported when they are first used. The functions above do not need them, and some of them
# import SciPy.
_NAMESPACES = frozenset(
    {
        "diagnostics",
        "diffusion",
        "divergence",
        "gaussian",
        "isb",
        "magnetic",
        "measure",
        "observables",
        "schedule",
        "simplex",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _NAMESPACES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
