"""Diagnostics of stacks of layers and of samples: what a flow explains, and when to abstain (EOT 6, H, K)."""

from . import depth, drift

__all__ = [
    "depth",
    "drift",
]
