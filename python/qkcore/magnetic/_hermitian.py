"""The Hermitian form of a magnetic operator, and eigenvectors computed from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks, _spectral
from .._lanczos import Product
from .._lazy_scores import Real, Scores
from .._rounding import EARLY, Rounding
from ..operators import MarkovOperator, kernel
from ._phases import square, total

if TYPE_CHECKING:
    from ._operator import MagneticOperator

Complex = npt.NDArray[np.complexfloating[Any, Any]]


class Reversal(NamedTuple):
    """The law for which the magnitudes are reversible, and the Hermitian form."""

    weights: Scores
    """the log weights of the Hermitian form"""
    log_law: npt.NDArray[np.float64]


def find_reversal(op: MagneticOperator) -> Reversal | None:
    """The law and the Hermitian form of op, or None if no diagonal scaling makes op Hermitian.

    If the log weights are c_ij + r_i + l_j with a symmetric c, those of the Hermitian form are
    c_ij + (r + l)_i/2 + (r + l)_j/2.
    """
    s = op.log_weights
    n = square("operator", s)
    row, col = total(s.terms.row_bias, n), total(s.terms.col_bias, n)
    row, col = (np.broadcast_to(x, (*s.batch, n)).copy() for x in (row, col))
    gone = np.isneginf(row)
    if (gone != np.isneginf(col)).any():
        return None
    row[gone] = col[gone] = 0
    halves, rounding = _halves(s, n)
    live = [np.where(gone, 0, half) for half in halves]
    top = s.bound + 2 * sum(float(np.abs(half).max(initial=0.0)) for half in live)
    terms = s.terms._replace(row_bias=halves, col_bias=halves, rounding=rounding)
    weights = s._with(terms, bound=top)
    if not is_hermitian(op._with(kernel(weights))):
        return None
    log_law = col - row
    P = op.magnitude
    if isinstance(P, MarkovOperator):
        gone = gone | P.empty
    log_law[gone] = -np.inf
    some = ~gone.all(axis=-1, keepdims=True)  # a chain without any weight has no law
    log_law -= np.where(some, log_law.max(axis=-1, keepdims=True), 0)
    mass = np.exp(log_law).sum(axis=-1, keepdims=True)
    return Reversal(weights, log_law - np.log(np.where(some, mass, 1)))


def _halves(s: Scores, n: int) -> tuple[tuple[Real, ...], Rounding]:
    """Half the sum of row and column shifts, for use on both sides; early and late ones stay apart."""
    by_stage: dict[int, list[Real]] = {EARLY: []}
    for shifts, stages in (
        (s.terms.row_bias, s.terms.rounding.rows),
        (s.terms.col_bias, s.terms.rounding.columns),
    ):
        for k, shift in enumerate(shifts):
            by_stage.setdefault(stages[k] if k < len(stages) else EARLY, []).append(shift)
    order = tuple(sorted(by_stage))
    halves = tuple((0.5 * total(tuple(by_stage[k]), n)).astype(s.dtype) for k in order)
    return halves, Rounding(s.terms.rounding.dots, order, order)


def is_hermitian(op: MagneticOperator) -> bool:
    """Whether op and its adjoint map one test vector to the same result, up to rounding."""
    n = op.shape[-1]
    real = op.magnitude.dtype
    probe = _spectral.probe(n, op.dtype)
    difference = np.abs(op @ probe - op.H @ probe)
    size = op.magnitude @ np.ones(n, real)
    tops = op.log_weights.bound + op.phases.bound
    allowed = float(np.finfo(real).eps) * (64 + math.sqrt(n) + 4 * tops)
    return bool((difference <= allowed * size + np.finfo(real).tiny).all())


def leading(product: Product, op: MagneticOperator, k: int | None) -> tuple[Real, Complex]:
    """The k largest eigenvalues (None: all) of a Hermitian product on the states of op, and vectors."""
    n = op.shape[0]
    wanted = (
        n if k is None else _checks.integer_within("k", k, 1, n, "there are as many eigenpairs")
    )
    return _spectral.leading_eigenpairs(product, n, wanted, op.dtype)


def right_vectors(
    op: MagneticOperator,
    values: Real,
    vectors: Complex,
    log_law: npt.NDArray[np.float64],
    n_threads: int,
) -> Complex:
    """Right eigenvectors psi = u / sqrt(pi) from the eigenvectors u of the Hermitian form.

    The division magnifies the rounding errors of u at unlikely states. There psi = P psi / lambda is often
    more accurate: its error is the average of the errors over a row, plus psi times the rounding error of
    lambda, both divided by lambda. For each entry the formula with the smaller error estimate is used.
    """
    gone = np.isneginf(log_law)
    with np.errstate(over="ignore"):
        scale = np.exp(-0.5 * np.where(gone, 0.0, log_law)).astype(values.dtype)
    if not np.isfinite(scale).all():
        raise OverflowError(
            f"spectrum: wanted a stationary law whose roots are within the range of {values.dtype}, got one "
            f"down to e^{log_law[~gone].min():.0f}; eigenvectors are divided by them: lower beta"
            + (", or use float64" if values.dtype == np.float32 else "")
        )
    scale[gone] = 1
    out: Complex = vectors * scale[:, None]
    error = op.magnitude.apply(scale[:, None], n_threads=n_threads)
    moved = op._product(out, n_threads)
    size = np.abs(values)
    # This is |psi lambda|, by the formula that gives more. They differ if lambda itself is a rounding error.
    psi = np.maximum(np.abs(moved), np.abs(out) * size)
    better = (error * size + psi < scale[:, None] * size**2) & ~gone[:, None]
    np.divide(moved, values, out=out, where=better)
    return _spectral.fix_signs(out)
