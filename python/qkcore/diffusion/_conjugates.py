"""The symmetric conjugate of a diffusion operator, of all pairs or of neighbours, and its eigenpairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._lanczos import Product
from .._lazy_scores import Real, Scores
from ..operators import KernelOperator, kernel, softmax
from ._eigenpairs import StoredKernel, nontrivial_eigenpairs
from ._given import RightFactors
from ._local_scale import Double, GlobalKernel, LocalKernel
from ._neighbors import NeighborGraph
from ._operators import _halved
from ._variable import VariableKernel

__all__ = ["Conjugate", "Spectrum", "of_all_pairs", "of_neighbors", "spectrum"]


class Conjugate(NamedTuple):
    """:math:`S_{ij} = K_{ij} r_i r_j / \\sqrt{Z_i Z_j}`, with the spectrum of the diffusion operator."""

    S: KernelOperator | None
    """S as an operator; None if there is only ``multiply``"""
    multiply: Product | None
    """the product with S, if S is stored"""
    log_z: Double
    """the row sums of K_ij r_i r_j, up to a factor"""
    shift: Real | None
    """log r"""
    dtype: np.dtype[Any]


class Spectrum(NamedTuple):
    """Eigenpairs other than the trivial one, the stationary law, and the number of passes over the matrix."""

    values: Double
    vectors: npt.NDArray[Any]
    """of the symmetric conjugate"""
    law: Double
    passes: int


def of_all_pairs(
    s: Scores,
    weights: GlobalKernel | LocalKernel,
    factors: RightFactors,
    stored: bool,
    bounded: bool,
    n_threads: int,
) -> Conjugate:
    """The conjugate from scores of all pairs. ``stored``: S is formed and kept. ``bounded``: no score is
    above 0, and those on the diagonal are 0."""
    variable = isinstance(weights, VariableKernel)
    # Bounded scores give weights from 0 to 1, with 1 on the diagonal. Then the row sums and their powers stay
    # in the range of the dtype, and all are computed from the stored weights. For other metrics and powers
    # they are computed in logarithms.
    if stored and bounded and factors.plain and not variable and abs(factors.alpha) <= 2:
        K = StoredKernel(s, n_threads)
        none = np.zeros(s.n_rows, s.dtype)
        shift = K.log_row_sums(none) * s.dtype.type(-factors.alpha) if factors.alpha else None
        log_z = K.log_row_sums(none if shift is None else shift)
        half = log_z * s.dtype.type(-0.5) + (none if shift is None else shift)
        S = kernel(s.shift(rows=half, columns=half), "exp")
        return Conjugate(S, K.scaled(np.exp(half)), log_z.astype(np.float64), shift, s.dtype)
    log_sums = None
    if factors.estimates_density:
        b = s.backend
        log_sums = b.give(b.logsumexp(s, None, b.at(n_threads)))
    log_r = _log_factors(weights, factors, log_sums)
    shift = None if log_r is None else log_r.astype(s.dtype)
    if shift is not None:
        s = s.shift(rows=shift, columns=shift)
    P = softmax(s)
    S = kernel(_halved(P, n_threads), "exp")
    log_z = P._normalizer(n_threads).lse.astype(np.float64)
    return Conjugate(
        S, StoredKernel(S.scores, n_threads) if stored else None, log_z, shift, s.dtype
    )


def of_neighbors(
    graph: NeighborGraph, weights: GlobalKernel | LocalKernel, factors: RightFactors
) -> Conjugate:
    """The conjugate from scores of neighbours; S is a sparse array in double precision."""
    s = graph.scores()
    log_sums = s.log_row_sums(None) if factors.estimates_density else None
    shift = _log_factors(weights, factors, log_sums)
    log_z = s.log_row_sums(shift)
    if shift is not None:
        log_z = log_z + shift
    half = -log_z / 2 if shift is None else shift - log_z / 2
    S = s.kernel(half, half)
    return Conjugate(None, lambda x: np.asarray(S @ x), log_z, shift, np.dtype(np.float64))


def _log_factors(
    weights: GlobalKernel | LocalKernel, factors: RightFactors, log_sums: Double | None
) -> Double | None:
    if isinstance(weights, VariableKernel):
        return factors.logarithms(log_sums, np.log(weights.scales), weights.dimension)
    return factors.logarithms(log_sums, None, 0.0)


def spectrum(
    c: Conjugate,
    slowness: Double | None,
    k: int,
    definite: bool,
    restarts: int | None,
    n_threads: int,
) -> Spectrum:
    """The leading eigenpairs of the chain P, or of a slower chain if ``slowness`` is given.

    The slower chain :math:`I + C(P - I)`, C = diag(slowness), moves from i with probability C_i and else
    stays there. It is reversible with respect to the law of P divided by C.
    """
    law = np.exp(c.log_z - c.log_z.max())
    multiply = c.multiply
    if slowness is not None:
        law = law / slowness
        assert c.S is not None or multiply is not None
        times, root = _product(c, n_threads), np.sqrt(slowness).astype(c.dtype)[:, None]

        def slowed(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            y = root * x
            out: npt.NDArray[Any] = x + root * (times(y) - y)
            return out

        multiply = slowed
    law /= law.sum()
    values, vectors, passes = nontrivial_eigenpairs(
        c.S,
        np.sqrt(law),
        k,
        multiply,
        definite and slowness is None,
        restarts,
        n_threads,
        dtype=c.dtype,
    )
    return Spectrum(values, vectors, law, passes)


def _product(c: Conjugate, n_threads: int) -> Product:
    if c.multiply is not None:
        return c.multiply
    S = c.S
    assert S is not None
    return lambda x: S.apply(x, n_threads=n_threads)
