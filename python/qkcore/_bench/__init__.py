"""``qkcore bench``: a short comparison with NumPy and with similar libraries that are installed.

It is for users who have the package but not its sources. The figures of the documentation come from the
larger set of benchmarks in the folder bench/ of the repository.
"""

from __future__ import annotations

from ._cases import GROUPS, Case
from ._runner import BenchResult, BenchRow, run

__all__ = ["GROUPS", "BenchResult", "BenchRow", "Case", "run"]
