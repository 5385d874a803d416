"""Interaction potentials G(x, y) = exp(a(x, y)) and their constants on a compact set (MTA-1, MTA-3)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, scores
from .._lazy_scores import Real, Scores
from ._domains import Domain

__all__ = [
    "DotPotential",
    "FunctionPotential",
    "GaussianPotential",
    "Potential",
    "PotentialConstants",
]

Matrix = npt.NDArray[np.float64]


def safe_exp(x: float) -> float:
    """exp, with inf where it leaves the range of a double."""
    return math.exp(x) if x < 709.0 else math.inf


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


@dataclass(frozen=True)
class PotentialConstants:
    """Constants of a potential on a set E with the l1 metric.

    Some are kept as logarithms, because they range over hundreds of decades. All are upper bounds
    (``log_inf`` a lower one); each potential says which of them are exact.
    """

    log_sup: float
    """:math:`\\log\\|G\\|_\\infty`"""
    log_inf: float
    """:math:`\\log\\epsilon(G)`"""
    log_lip_left: float
    """:math:`\\log\\|G\\|_{Lip,\\infty}`: in the query"""
    log_lip_right: float
    """:math:`\\log\\|G\\|_{\\infty,Lip}`: in the key"""
    log_oscillation: float
    """the largest range of a(x, .) for one x: at most ``log_sup - log_inf``"""
    slope_right: float
    """the largest :math:`\\|\\nabla_y a\\|_\\infty`"""
    spread: float
    """the largest range over keys of one entry of :math:`\\nabla_x a(x, .)`"""
    spread_l2: float
    """the largest Euclidean distance of two gradients :math:`\\nabla_x a(x, .)`"""
    diameter: float
    """l1 diameter of E"""
    diameter_l2: float
    """Euclidean diameter of E"""

    @property
    def sup(self) -> float:
        """:math:`\\|G\\|_\\infty`."""
        return safe_exp(self.log_sup)

    @property
    def epsilon(self) -> float:
        """:math:`\\epsilon(G) = \\inf G`."""
        return safe_exp(self.log_inf)

    @property
    def lip_left(self) -> float:
        """:math:`\\|G\\|_{Lip,\\infty}`."""
        return safe_exp(self.log_lip_left)

    @property
    def lip_right(self) -> float:
        """:math:`\\|G\\|_{\\infty,Lip}`."""
        return safe_exp(self.log_lip_right)

    def __str__(self) -> str:
        return (
            f"||G|| = {self.sup:.4g}, eps(G) = {self.epsilon:.4g}, ||G||_Lip,inf = "
            f"{self.lip_left:.4g}, ||G||_inf,Lip = {self.lip_right:.4g}, diam = {self.diameter:.4g}"
        )


class Potential(ABC):
    """A positive function G of a query and a key, given by its logarithm a (MTA, definition 4)."""

    @abstractmethod
    def scores(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> Scores:
        """a(x_i, y_j), lazily; a potential that leaves out terms that depend on i alone must say so."""

    @abstractmethod
    def constants(self, domain: Domain) -> PotentialConstants:
        """The constants of propositions 19 to 25 on a compact set."""

    def constants_at(self, x: npt.ArrayLike, domain: Domain) -> PotentialConstants:
        """The constants of G(x, .), for one query x (proposition 25)."""
        return self.constants(domain)

    def double(self) -> Potential:
        """The same potential with its arrays in float64."""
        return self

    def pairs(self, X: Matrix, Y: Matrix) -> Matrix:
        """a(x_i, y_i) for points in pairs, (n,)."""
        rows = [self.scores(x[None], y[None]).to_numpy()[0, 0] for x, y in zip(X, Y, strict=True)]
        return np.asarray(rows, dtype=np.float64)

    # Derivatives need the scores as products of features of rows and columns, s = R(x) C(y)^T. Terms that
    # depend on the row alone are left out, because they do not change a softmax.

    def row_features(self, X: Real) -> Real:
        """The features R of the rows, (n, r)."""
        raise self._no_derivative()

    def column_features(self, Y: Real) -> Real:
        """The features C of the columns, (m, r)."""
        raise self._no_derivative()

    def row_push(self, X: Real, dX: Real) -> Real:
        """The derivative of R in the direction dX."""
        raise self._no_derivative()

    def column_push(self, Y: Real, dY: Real) -> Real:
        """The derivative of C in the direction dY."""
        raise self._no_derivative()

    def row_pull(self, X: Real, dR: Real) -> Real:
        """The transpose of :meth:`row_push`."""
        raise self._no_derivative()

    def column_pull(self, Y: Real, dC: Real) -> Real:
        """The transpose of :meth:`column_push`."""
        raise self._no_derivative()

    def _no_derivative(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no derivative; use DotPotential or GaussianPotential"
        )


class DotPotential(Potential):
    """:math:`G(x, y) = e^{\\beta x^T W y}` (MTA section 3.2): beta = 1/sqrt(d) is the scaled dot product.

    W is (d, d), or factors (W_Q (d, r), W_K (r, d)), or the identity if left out. The constants are exact for
    W = I on a set centred at the origin, and upper bounds otherwise.

    >>> from qkcore.measure import Ball, DotPotential
    >>> print(DotPotential(beta=0.5).constants(Ball(1.0, dim=4)))
    ||G|| = 1.649, eps(G) = 0.6065, ||G||_Lip,inf = 0.8244, ||G||_inf,Lip = 0.8244, diam = 4
    """

    def __init__(
        self,
        beta: float = 1.0,
        W: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> None:
        self.beta = _checks.positive("beta", beta)
        parts: list[npt.ArrayLike] = []
        if W is not None:
            parts = list(W) if isinstance(W, tuple) else [W]
        for part in parts:
            array = _checks.real_array("W", part)
            _checks.not_empty("W", array)
            _checks.finite("W", array)
        self.W = W

    @classmethod
    def scaled(cls, dim: int, W: npt.ArrayLike | None = None) -> DotPotential:
        """Scaled dot product: beta = 1/sqrt(dim)."""
        return cls(_checks.integer_within("dim", dim, 1, 2**31, "a dimension") ** -0.5, W)

    def double(self) -> DotPotential:
        """The same potential with W in float64."""
        if isinstance(self.W, tuple):
            left, right = (np.asarray(W, dtype=np.float64) for W in self.W)
            return DotPotential(self.beta, (left, right))
        return DotPotential(self.beta, None if self.W is None else np.asarray(self.W, np.float64))

    def _matrix(self, d: int, dtype: np.dtype[Any] | None = None) -> Real:
        if self.W is None:
            return np.eye(d, dtype=dtype)
        if isinstance(self.W, tuple):
            W = np.asarray(self.W[0]) @ np.asarray(self.W[1])
        else:
            W = np.asarray(self.W)
        _checks.shape("W", W.shape, (d, d), why=f"for points in R^{d}")
        out: Real = W.astype(np.float64 if dtype is None else dtype)
        return out

    def scores(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> Scores:
        """:math:`\\beta x_i^T W y_j`."""
        return scores.dot(X, Y, W=self.W, beta=self.beta)

    def constants(self, domain: Domain) -> PotentialConstants:
        """Upper bounds on a compact set; exact for W = I and a set centred at the origin."""
        W, c, b = self._matrix(domain.dim), domain.centre, self.beta
        middle, inner = float(c @ W @ c), domain.bilinear(W)
        left, right = float(domain.reach(W @ c)[0]), float(domain.reach(W.T @ c)[0])
        log_sup = b * (middle + left + right + inner)
        slope_left = b * float((np.abs(W @ c) + domain.reach(W)).max())
        slope_right = b * float((np.abs(W.T @ c) + domain.reach(W.T)).max())
        return PotentialConstants(
            log_sup=log_sup,
            log_inf=b * (middle - left - right - inner),
            log_lip_left=log_sup + _log(slope_left),
            log_lip_right=log_sup + _log(slope_right),
            log_oscillation=2 * b * (right + inner),
            slope_right=slope_right,
            spread=2 * b * float(domain.reach(W).max()),
            spread_l2=b * float(np.linalg.norm(W, 2)) * domain.diameter_l2,
            diameter=domain.diameter,
            diameter_l2=domain.diameter_l2,
        )

    def constants_at(self, x: npt.ArrayLike, domain: Domain) -> PotentialConstants:
        """The constants of G(x, .): those in the key are exact, the others are those of all queries."""
        whole = self.constants(domain)
        form = self.beta * (self._matrix(domain.dim).T @ np.asarray(x, dtype=np.float64))
        middle, reach = float(form @ domain.centre), float(domain.reach(form)[0])
        slope = float(np.abs(form).max())
        return PotentialConstants(
            log_sup=middle + reach,
            log_inf=middle - reach,
            log_lip_left=whole.log_lip_left,
            log_lip_right=middle + reach + _log(slope),
            log_oscillation=2 * reach,
            slope_right=slope,
            spread=whole.spread,
            spread_l2=whole.spread_l2,
            diameter=whole.diameter,
            diameter_l2=whole.diameter_l2,
        )

    def pairs(self, X: Matrix, Y: Matrix) -> Matrix:
        """a(x_i, y_i) for points in pairs, (n,)."""
        out: Matrix = (self.row_features(X) * Y).sum(axis=1)
        return out

    def row_features(self, X: Real) -> Real:
        """beta X W."""
        out: Real = X * X.dtype.type(self.beta)
        if isinstance(self.W, tuple):
            return out @ np.asarray(self.W[0], X.dtype) @ np.asarray(self.W[1], X.dtype)
        return out if self.W is None else out @ np.asarray(self.W, X.dtype)

    def column_features(self, Y: Real) -> Real:
        """Y."""
        return Y

    def row_push(self, X: Real, dX: Real) -> Real:
        """beta dX W."""
        return self.row_features(dX)

    def column_push(self, Y: Real, dY: Real) -> Real:
        """dY."""
        return dY

    def row_pull(self, X: Real, dR: Real) -> Real:
        """beta dR W^T."""
        out: Real = dR * X.dtype.type(self.beta)
        if isinstance(self.W, tuple):
            return out @ np.asarray(self.W[1], X.dtype).T @ np.asarray(self.W[0], X.dtype).T
        return out if self.W is None else out @ np.asarray(self.W, X.dtype).T

    def column_pull(self, Y: Real, dC: Real) -> Real:
        """dC."""
        return dC

    def __repr__(self) -> str:
        return f"DotPotential(beta={self.beta:g}{'' if self.W is None else ', W'})"


class GaussianPotential(Potential):
    """:math:`G(x, y) = e^{-\\beta\\|x-y\\|_2^2}` (MTA section 6.3, where beta = 1).

    The constants are exact except ``log_oscillation``, which is an upper bound.

    >>> from qkcore.measure import Box, GaussianPotential
    >>> print(GaussianPotential().constants(Box([0.0], [0.5])))
    ||G|| = 1, eps(G) = 0.7788, ||G||_Lip,inf = 0.7788, ||G||_inf,Lip = 0.7788, diam = 0.5
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = _checks.positive("beta", beta)

    def scores(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> Scores:
        """:math:`-\\beta\\|x_i - y_j\\|_2^2`."""
        return scores.distance(X, Y, beta=self.beta)

    def _lip(self, reach: float) -> float:
        """max of 2 beta t exp(-beta t^2) for t up to ``reach``."""
        t = min(reach, 1 / math.sqrt(2 * self.beta))
        return 2 * self.beta * t * math.exp(-self.beta * t * t)

    def constants(self, domain: Domain) -> PotentialConstants:
        """Exact on balls and boxes, except ``log_oscillation``."""
        width = 2 * float(domain.reach(np.eye(domain.dim)).max())
        range_ = self.beta * domain.diameter_l2**2
        lip = _log(self._lip(width))
        return PotentialConstants(
            log_sup=0.0,
            log_inf=-range_,
            log_lip_left=lip,
            log_lip_right=lip,
            log_oscillation=range_,
            slope_right=2 * self.beta * width,
            spread=2 * self.beta * width,
            spread_l2=2 * self.beta * domain.diameter_l2,
            diameter=domain.diameter,
            diameter_l2=domain.diameter_l2,
        )

    def constants_at(self, x: npt.ArrayLike, domain: Domain) -> PotentialConstants:
        """The constants of G(x, .); the Lipschitz constants are upper bounds."""
        whole = self.constants(domain)
        point = np.asarray(x, dtype=np.float64)
        near = float(np.linalg.norm(domain.project(point[None])[0] - point))
        far = domain.farthest(point)
        reach = float((np.abs(point - domain.centre) + domain.reach(np.eye(domain.dim))).max())
        return PotentialConstants(
            log_sup=-self.beta * near**2,
            log_inf=-self.beta * far**2,
            log_lip_left=whole.log_lip_left,
            log_lip_right=_log(self._lip(reach)),
            log_oscillation=self.beta * (far**2 - near**2),
            slope_right=2 * self.beta * reach,
            spread=whole.spread,
            spread_l2=whole.spread_l2,
            diameter=whole.diameter,
            diameter_l2=whole.diameter_l2,
        )

    def pairs(self, X: Matrix, Y: Matrix) -> Matrix:
        """a(x_i, y_i) for points in pairs, (n,)."""
        out: Matrix = -self.beta * ((X - Y) ** 2).sum(axis=1)
        return out

    def row_features(self, X: Real) -> Real:
        """[2 beta x, 1]."""
        return np.column_stack([2 * self.beta * X, np.ones(len(X))]).astype(X.dtype)

    def column_features(self, Y: Real) -> Real:
        """[y, -beta |y|^2]."""
        return np.column_stack([Y, -self.beta * (Y * Y).sum(axis=1)]).astype(Y.dtype)

    def row_push(self, X: Real, dX: Real) -> Real:
        """[2 beta dx, 0]."""
        return np.column_stack([2 * self.beta * dX, np.zeros(len(X))]).astype(X.dtype)

    def column_push(self, Y: Real, dY: Real) -> Real:
        """[dy, -2 beta <y, dy>]."""
        return np.column_stack([dY, -2 * self.beta * (Y * dY).sum(axis=1)]).astype(Y.dtype)

    def row_pull(self, X: Real, dR: Real) -> Real:
        """The transpose of :meth:`row_push`."""
        out: Real = dR[:, :-1] * X.dtype.type(2 * self.beta)
        return out

    def column_pull(self, Y: Real, dC: Real) -> Real:
        """The transpose of :meth:`column_push`."""
        out: Real = dC[:, :-1] - Y.dtype.type(2 * self.beta) * Y * dC[:, -1:]
        return out

    def __repr__(self) -> str:
        return f"GaussianPotential(beta={self.beta:g})"


class FunctionPotential(Potential):
    """Any positive function: ``G(X (n, d), Y (m, d))`` gives an (n, m) array of values > 0.

    All n m values are stored. ``constants``: its constants on the set on which bounds are wanted; only the
    bounds use them.

    >>> import numpy as np
    >>> from qkcore.measure import FunctionPotential
    >>> one = FunctionPotential(lambda X, Y: np.ones((len(X), len(Y))))
    >>> one.scores(np.zeros((2, 1)), np.zeros((3, 1))).to_numpy().shape
    (2, 3)
    """

    def __init__(
        self,
        G: Callable[[Real, Real], npt.ArrayLike],
        constants: PotentialConstants | None = None,
    ) -> None:
        _checks.function("G", G, "(X, Y)")
        self.G = G
        self._constants = constants

    def scores(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> Scores:
        """log G(x_i, y_j), as a dense array."""
        x, y = _checks.points("X", X)[0], _checks.points("Y", Y)[0]
        values = np.asarray(self.G(x, y)).astype(x.dtype)
        _checks.shape(
            "G", values.shape, (len(x), len(y)), what="values", do="G takes all points at once"
        )
        _checks.finite("G(X, Y)", values)
        _checks.all_positive(
            "G",
            values,
            "a potential that is positive everywhere",
            "an interaction potential is the exponential of a score",
        )
        return scores.dense(np.log(values))

    def constants(self, domain: Domain) -> PotentialConstants:
        """The constants that were passed with the function, whatever the domain."""
        if self._constants is None:
            raise ValueError(
                "constants: wanted the constants of this potential for its bounds, got None; pass "
                "FunctionPotential(G, PotentialConstants(...))"
            )
        return self._constants

    def __repr__(self) -> str:
        return f"FunctionPotential({getattr(self.G, '__name__', 'G')})"
