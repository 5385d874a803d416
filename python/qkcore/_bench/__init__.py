"""``qkcore bench``: a short comparison with NumPy and with whatever peers are installed.

Self-contained, for a user who has the package and not its sources; the figures of the documentation come
from the larger set in the repository's bench/ folder.
"""

from __future__ import annotations

from ._cases import GROUPS, Case
from ._runner import BenchResult, BenchRow, run

__all__ = ["GROUPS", "BenchResult", "BenchRow", "Case", "run"]
