"""One valid call of every public function and class, drawn at random (tests/test_api_properties.py).

A case is a function of a `Draw` that gives a `Call`: the function, and its arguments by name. Arguments
are drawn from wide but well-conditioned families, so that a call has no excuse to fail.
"""

from __future__ import annotations

from . import _diagnostics, _flows, _maps, _operators  # noqa: F401  (they fill CASES)
from ._base import CASES, Call, Draw

__all__ = ["CASES", "Call", "Draw"]
