"""Products of experts: Hadamard products of operators, as sums of logits (DAC-9; A.2, C.5, C.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._config import resolve_threads
from ._factors import Factored, LowRank, ProductOfFactors
from ._lazy_scores import Real, Scores
from ._native import cpu
from ._points import WLike
from .operators import KernelOperator, MarkovOperator, softmax

if TYPE_CHECKING:
    from .magnetic import MagneticOperator

__all__ = ["ConstantZ", "DirectionalExperts", "directional_experts", "poe", "total_variation"]


@overload
def poe(*experts: LowRank | ProductOfFactors) -> ProductOfFactors: ...
@overload
def poe(*experts: Scores | MarkovOperator | KernelOperator) -> Scores: ...
@overload
def poe(*experts: Scores | MarkovOperator | KernelOperator | MagneticOperator) -> Any: ...
def poe(*experts: Any) -> Any:
    """The product of experts :math:`\\prod_k G_k`, entry by entry, as scores (DAC-9; A.2, C.5).

    Experts are scores (which stand for their exponentials), stochastic operators, or kernels with weight
    "exp". The result is lazy. ``qk.softmax`` of it is the normalised product (eqs 50, 69), and
    ``qk.bridge`` takes it as a kernel. If one of the experts is a magnetic operator, so is the product:
    phases and gauge weights add (theorem C.8). The product of low-rank factors (:func:`qkcore.low_rank`) is
    applied in O((N + M) r^2) operations without being formed (DAC-10).

    >>> import numpy as np, qkcore as qk
    >>> A, B = (qk.softmax(qk.scores.dense(np.log([[0.5, 0.5], [a, 1 - a]]))) for a in (0.2, 0.6))
    >>> np.exp(qk.poe(A, B).to_numpy())
    array([[0.25, 0.25],
           [0.12, 0.32]])
    """
    _checks.some("experts", len(experts), 1, "operator")
    if any(isinstance(expert, Factored) for expert in experts):
        return ProductOfFactors(*experts)
    from .magnetic import MagneticOperator, hadamard

    if any(isinstance(expert, MagneticOperator) for expert in experts):
        return hadamard(*experts)
    total = _logarithm(0, experts[0])
    for k, expert in enumerate(experts[1:], start=1):
        total = total + _logarithm(k, expert)
    return total


def _logarithm(k: int, expert: object) -> Scores:
    if isinstance(expert, MarkovOperator):
        return expert.log_weights
    if isinstance(expert, KernelOperator):
        if expert.weight != "exp":
            raise ValueError(
                f'experts[{k}]: wanted a kernel with weight "exp", got {expert.weight!r}; '
                "its entries have no logarithm in closed form: wrap them with qk.scores.dense"
            )
        return expert.scores
    hint = "wrap an array of logarithms with qk.scores.dense(array)"
    return _checks.instance(f"experts[{k}]", expert, Scores, "scores or an operator", hint)


def total_variation(A: MarkovOperator, B: MarkovOperator, *, n_threads: int | None = None) -> Real:
    """:math:`\\tfrac12\\sum_j |A_{ij} - B_{ij}|` for each row i (float64), without forming A or B.

    >>> import numpy as np, qkcore as qk
    >>> A, B = (qk.softmax(qk.scores.dense(np.log([[a, 1 - a]]))) for a in (0.5, 0.8))
    >>> qk.total_variation(A, B)
    array([0.3])
    """
    for name, value in (("A", A), ("B", B)):
        _checks.instance(name, value, MarkovOperator, "a MarkovOperator")
    if A.shape != B.shape or A.dtype != B.dtype or A.axis != B.axis:
        raise ValueError(
            f"B: wanted shape {A.shape}, {A.dtype} and axis {A.axis} like A, got {B.shape}, "
            f"{B.dtype} and axis {B.axis}"
        )
    if A.axis == 0:
        A, B = A.T, B.T
    threads = resolve_threads(n_threads)
    found = cpu.compare_rows(A.log_weights._spec, B.log_weights._spec, threads)
    out: Real = 0.5 * found[0]
    return out


@dataclass(frozen=True)
class ConstantZ:
    """The constant-z approximation (DAC eq 27) and its distance from the diffusion operator."""

    operator: MarkovOperator = field(repr=False)
    total_variation: Real = field(repr=False)
    """distance of each row"""
    mean_error: float
    """mean total variation over rows"""
    max_error: float
    """largest total variation of a row"""
    log_z_spread: float
    """max - min of log z: the approximation is exact when this is 0"""

    def __str__(self) -> str:
        return (
            f"constant-z approximation: total variation {self.mean_error:.3g} mean, "
            f"{self.max_error:.3g} at most; log z spreads over {self.log_z_spread:.3g}"
        )


@dataclass(frozen=True, eq=False)
class DirectionalExperts:
    """Diffusion as a product of the two directions of attention (DAC-9, theorem C.6)."""

    forward_scores: Scores = field(repr=False)
    backward_scores: Scores = field(repr=False)

    @cached_property
    def forward(self) -> MarkovOperator:
        """:math:`A^+` = row softmax of :math:`-\\beta d^\\to` (eq 8)."""
        return softmax(self.forward_scores, axis=1)

    @cached_property
    def backward(self) -> MarkovOperator:
        """:math:`A^-` = column softmax of :math:`-\\beta d^\\gets` (eq 7)."""
        return softmax(self.backward_scores, axis=0)

    @cached_property
    def backward_by_rows(self) -> MarkovOperator:
        """:math:`A^{\\gets+}` = row softmax of :math:`-\\beta d^\\gets` (eq 28)."""
        return softmax(self.backward_scores, axis=1)

    @property
    def log_z(self) -> Real:
        """:math:`\\log z^-_j = \\log\\sum_\\ell e^{-\\beta d^\\gets_{\\ell j}}` (theorem C.6)."""
        return self.backward.log_normalizer

    def weighted(self) -> MarkovOperator:
        """:math:`P^+ \\propto A^+_{ij} A^-_{ij} z^-_j` (eqs 26, 70), which is exact."""
        return softmax(poe(self.forward, self.backward).shift(columns=self.log_z))

    def by_rows(self) -> MarkovOperator:
        """:math:`P^+ \\propto A^{\\to+}_{ij} A^{\\gets+}_{ij}` (eqs 29, 71), which is exact."""
        return softmax(poe(self.forward, self.backward_by_rows))

    def diffusion(self) -> MarkovOperator:
        """:math:`P^+` = row softmax of :math:`-\\beta D^2` (eq 11), from the summed logits."""
        return softmax(self.forward_scores + self.backward_scores)

    def constant_z(self, *, n_threads: int | None = None) -> ConstantZ:
        """:math:`P^+ \\approx A^+_{ij}A^-_{ij}/\\sum_\\ell` (eq 27), with its error."""
        approximation = softmax(poe(self.forward, self.backward))
        rows = total_variation(self.diffusion(), approximation, n_threads=n_threads)
        z = self.log_z
        return ConstantZ(
            approximation, rows, float(rows.mean()), float(rows.max()), float(np.ptp(z))
        )


def directional_experts(
    X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, W: WLike = None, beta: float = 1.0
) -> DirectionalExperts:
    """The two directional experts of the diffusion operator on X (DAC-9, eqs 25-29; C.6).

    >>> import numpy as np, qkcore as qk
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> e = qk.directional_experts(X, beta=0.5)
    >>> P = qk.softmax(qk.scores.distance(X, beta=0.5))
    >>> bool(np.allclose(e.weighted().to_numpy(), P.to_numpy()))
    True
    >>> print(e.constant_z())
    constant-z approximation: total variation 0.0365 mean, 0.0575 at most; log z spreads over 0.492
    """
    return DirectionalExperts(
        scores.forward(X, Y, W=W, beta=beta), scores.backward(X, Y, W=W, beta=beta)
    )
