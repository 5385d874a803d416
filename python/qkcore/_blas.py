"""SciPy's LAPACK for Sinkhorn attention in many dimensions, handed to the C++ side once."""

from __future__ import annotations

from functools import cache

from ._native import cpu

__all__ = ["bring_blas"]

_BLAS = ("gemm", "syrk")
_LAPACK = ("pstrf", "syevd", "gesdd")


@cache
def bring_blas() -> bool:
    """Whether large matrices are decomposed there; if not, the loops of small ones do it, more slowly.

    The addresses are those that Cython code is given: ``scipy.linalg.cython_blas`` and ``cython_lapack``.
    """
    from scipy.linalg import cython_blas, cython_lapack

    routines = {
        letter + name: module.__pyx_capi__[letter + name]
        for module, names in ((cython_blas, _BLAS), (cython_lapack, _LAPACK))
        for name in names
        for letter in "sd"
    }
    return cpu.use_blas(routines)
