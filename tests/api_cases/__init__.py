"""One valid call of every public function and class, drawn at random (tests/test_api_properties.py).

A case is a function that turns a `Draw` into a `Call`: the function to be called, and its arguments by name.
Arguments are drawn from wide but well-conditioned families, so that every call must succeed.
"""

from __future__ import annotations

from . import _diagnostics, _flows, _maps, _operators  # noqa: F401  (they fill CASES)
from ._base import CASES, Call, Draw

__all__ = ["CASES", "Call", "Draw"]
