"""SciPy's LAPACK for Sinkhorn attention in many dimensions, handed to the C++ side once."""

from __future__ import annotations

from functools import cache

from ._native import cpu

__all__ = ["bring_blas"]

_BLAS = ("gemm", "syrk")
_LAPACK = ("pstrf", "syevd", "gesdd")


@cache
def bring_blas() -> bool:
    """Hand the routines over, and say whether large matrices are decomposed by them.

    If not, large matrices are decomposed by the same loops as small ones, more slowly. The addresses are
    those that SciPy exports for Cython code in ``scipy.linalg.cython_blas`` and ``cython_lapack``.
    """
    from scipy.linalg import cython_blas, cython_lapack

    routines = {
        letter + name: module.__pyx_capi__[letter + name]
        for module, names in ((cython_blas, _BLAS), (cython_lapack, _LAPACK))
        for name in names
        for letter in "sd"
    }
    return cpu.use_blas(routines)
