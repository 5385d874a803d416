"""Diffusion maps: the Markov operator of a Gaussian kernel and its spectrum (DAC-5; DAC 3.2, 4.1, C.2).

============================ ==================================================================
``operator(X, beta=)``       :math:`P^+`, rows of :math:`e^{-\\beta D^2}` normalised (eq 11)
``bistochastic(X, beta=)``   :math:`P^{+-}`, rows and columns normalised (Sinkhorn)
``symmetric_conjugate(P)``   :math:`S = \\Pi^{1/2} P\\, \\Pi^{-1/2}`, with the spectrum of P
``laplacian(P, kind)``       :math:`I - P`, :math:`I - S` or diag(Z) - K (eqs 12-13)
``diffusion_distance(P, ..)`` the distance between t-step laws, from the operator itself
``choose_beta(X, rule)``     the automatic scales, with the rule stated
``DiffusionMap``             coordinates :math:`\\lambda_k^t\\psi_k`, also of new points
============================ ==================================================================

:math:`P^-` (columns normalised) is ``operator(...).T``, as K is symmetric. Everything but ``to_numpy``
works in O(N) memory from the points; :class:`DiffusionMap` may keep one array, see ``max_memory``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, _dynamics, scores
from ._bandwidth import median_rule
from ._config import resolve_threads
from ._estimator import Estimator
from ._lazy_scores import Real, Scores
from ._markov import Markov
from ._spectral import fix_signs, leading_eigenpairs
from .operators import KernelOperator, MarkovOperator, kernel, softmax
from .scores import WLike

__all__ = [
    "BetaChoice",
    "DiffusionMap",
    "Laplacian",
    "bistochastic",
    "choose_beta",
    "diffusion_distance",
    "laplacian",
    "operator",
    "symmetric_conjugate",
]

KINDS = ("random_walk", "symmetric", "combinatorial")
RULES = ("median", "dimension")

# Vectors multiplied at a time, and basis vectors kept. Where every entry costs an exp, 16 vectors take
# 1.6 times as long as one; where an array is read, two symmetric products cost what one other does.
_LAZY = (16, 240)
_FORMED = (2, 80)


# ---- operators ----------------------------------------------------------------------------------


def operator(
    X: npt.ArrayLike,
    *,
    beta: float,
    alpha: float = 0.0,
    W: WLike = None,
    n_threads: int | None = None,
) -> MarkovOperator:
    """The diffusion operator :math:`P^+ = \\mathrm{softmax}^+(-\\beta D^2)` of points (DAC-5, eq 11).

    :math:`D^2_{ij} = (x_i-x_j)^\\top W (x_i-x_j)` for X (..., N, d). With ``alpha`` the kernel K is
    divided by its density first, :math:`K_{ij} / (q_i q_j)^\\alpha`, :math:`q_i = \\sum_j K_{ij}`: 0 keeps
    the influence of the sampling, 1/2 gives a Fokker-Planck and 1 a Laplace-Beltrami operator that
    depends on the geometry alone (Coifman and Lafon 2006). Its stationary law is
    :math:`\\pi_i = Z_i/\\sum_k Z_k`, Z the row sums (eq 19), with detailed balance (proposition C.2).

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> P.to_numpy().round(3)
    array([[0.731, 0.269, 0.   ],
           [0.265, 0.721, 0.013],
           [0.   , 0.018, 0.982]])
    >>> P.stationary().round(3)
    array([0.363, 0.367, 0.27 ])
    """
    s, _ = _density_normalized(scores.distance(X, W=W, beta=beta), alpha, n_threads)
    return softmax(s)


def bistochastic(
    X: npt.ArrayLike,
    *,
    beta: float,
    W: WLike = None,
    tol: float | None = None,
    max_iter: int = 10_000,
    n_threads: int | None = None,
) -> MarkovOperator:
    """:math:`P^{+-} = \\mathrm{Sinkhorn}(-\\beta D^2) = P^{-+}`, symmetric (DAC-5, 3.2 and 4.1).

    Its stationary law is uniform. ``tol`` and ``max_iter`` are those of :func:`qkcore.sinkhorn`.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> B = diffusion.bistochastic(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> B.to_numpy().sum(axis=0).round(6)
    array([1., 1., 1.])
    """
    from .bridges import sinkhorn

    s = scores.distance(X, W=W, beta=beta)
    return sinkhorn(s, tol=tol, max_iter=max_iter, n_threads=n_threads)


def symmetric_conjugate(P: MarkovOperator, *, n_threads: int | None = None) -> KernelOperator:
    """The symmetric operator with the spectrum of P (DAC-5, 3.2): what is diagonalised.

    :math:`S_{ij} = e^{s_{ij}}/\\sqrt{Z_i Z_j} = \\sqrt{\\pi_i/\\pi_j}\\,P_{ij}`. An eigenvector v of S
    gives the right eigenvector :math:`v_i/\\sqrt{\\pi_i}` of P and the left one
    :math:`v_i\\sqrt{\\pi_i}`; the leading v is :math:`\\sqrt\\pi`, of eigenvalue 1.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> S = diffusion.symmetric_conjugate(P)
    >>> np.linalg.eigvalsh(S.to_numpy()).round(4)  # and those of P
    array([0.4588, 0.9755, 1.    ])
    """
    rows = _reversible("P", P)
    if rows.bistochastic:
        return kernel(rows.log_weights, "exp")
    return kernel(_halved(rows, resolve_threads(n_threads)), "exp")


def _halved(rows: MarkovOperator, n_threads: int) -> Scores:
    """s_ij - lse_i / 2 - lse_j / 2, with one array for both shifts so that the symmetry shows."""
    lse = rows._normalizer(n_threads)
    half: Real = lse * lse.dtype.type(-0.5)
    half[np.isneginf(lse)] = 0  # an empty row has nothing to scale
    return rows.scores.shift(rows=half, columns=half)


def _density_normalized(
    s: Scores, alpha: object, n_threads: int | None
) -> tuple[Scores, Real | None]:
    """log of K_ij / (q_i q_j)^alpha, and the column shift that does it (None if alpha is 0)."""
    power = _number("alpha", alpha)
    if power == 0:
        return s, None
    shift: Real = s.logsumexp(n_threads=n_threads) * s.dtype.type(-power)
    return s.shift(rows=shift, columns=shift), shift


def _reversible(name: str, P: object) -> MarkovOperator:
    """The row-stochastic form of one softmax of symmetric scores."""
    if not isinstance(P, MarkovOperator):
        raise TypeError(
            f"{name}: wanted a diffusion operator, got {type(P).__name__}; "
            "make one with qk.diffusion.operator(X, beta=...)"
        )
    rows = P if P.axis == 1 else P.T
    if len(rows.shape) != 2:
        raise ValueError(
            f"{name}: wanted one chain, got shape {rows.shape}; "
            "take the problems of a batch one by one"
        )
    if not rows.scores._symmetric:
        raise ValueError(
            f"{name}: wanted an operator with symmetric scores (of distances, say), got one whose "
            "scores are not known to be symmetric; its spectrum may be complex: see np.linalg.eig"
        )
    return rows


# ---- Laplacians ---------------------------------------------------------------------------------


class Laplacian:
    """A Laplacian that is applied without being formed. Made by :func:`laplacian`."""

    __slots__ = ("_operator", "degree", "kind")
    __array_ufunc__ = None

    def __init__(self, operator: Markov | KernelOperator, degree: Real, kind: str) -> None:
        self._operator = operator
        self.degree = degree
        """what stands on the diagonal before the operator is subtracted, (N,)"""
        self.kind = kind

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, N)."""
        return self._operator.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, as the data came."""
        return self._operator.dtype

    @property
    def T(self) -> Laplacian:
        """The transposed Laplacian: itself but for "random_walk"."""
        return Laplacian(self._operator.T, self.degree, self.kind)

    def apply(self, V: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product with V of shape (N, k) or (N,): ``L @ V`` on given threads."""
        values = _checks.real_array("V", V)
        product = self._operator.apply(values, n_threads=n_threads)
        degree = self.degree if values.ndim == 1 else self.degree[:, None]
        out: Real = degree * values - product
        return out

    def apply_left(self, U: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """The product from the left with U of shape (k, N) or (N,): ``U @ L``."""
        values = _checks.real_array("U", U)
        out: Real = values * self.degree - self._operator.apply_left(values, n_threads=n_threads)
        return out

    def __matmul__(self, V: npt.ArrayLike) -> Real:
        return self.apply(V)

    def __rmatmul__(self, U: npt.ArrayLike) -> Real:
        return self.apply_left(U)

    def to_numpy(self, *, n_threads: int | None = None) -> Real:
        """The Laplacian as an array (N, N)."""
        out: Real = -self._operator.to_numpy(n_threads=n_threads)
        out[np.diag_indices(len(out))] += self.degree
        return out

    def __repr__(self) -> str:
        return f"Laplacian(shape={self.shape}, dtype={self.dtype}, kind={self.kind!r})"


def laplacian(
    P: Markov | npt.ArrayLike,
    kind: str = "random_walk",
    *,
    beta: float | None = None,
    alpha: float | None = None,
    W: WLike = None,
    n_threads: int | None = None,
) -> Laplacian:
    """A Laplacian of a diffusion operator P, or of points with ``beta`` (DAC-5, eqs 12-13).

    =================== ===================================================================
    "random_walk"       :math:`L^+ = I - P^+` (eq 13), of any square stochastic operator
    "symmetric"         :math:`I - S`, S the :func:`symmetric_conjugate`: the same spectrum
    "combinatorial"     :math:`L = \\mathrm{diag}(Z) - K`, :math:`Z_i = \\sum_j K_{ij}` (eq 12)
    =================== ===================================================================

    :math:`K = e^s` are the weights before rows are normalised, divided by densities if alpha is not 0.
    All annihilate constants but "symmetric", which annihilates :math:`\\sqrt\\pi`. For a bistochastic
    operator they are the same.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> L = diffusion.laplacian(np.array([[0.0], [1.0], [3.0]]), "combinatorial", beta=1.0)
    >>> L.to_numpy().round(3)
    array([[ 0.368, -0.368, -0.   ],
           [-0.368,  0.386, -0.018],
           [-0.   , -0.018,  0.018]])
    """
    if kind not in KINDS:
        raise ValueError(f"kind: wanted one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if isinstance(P, Markov):
        for name, value in (("beta", beta), ("alpha", alpha), ("W", W)):
            if value is not None:
                raise ValueError(
                    f"{name}: wanted for points only, got {value!r} beside an operator, which has "
                    f"its own; leave {name} out"
                )
        chain = P
    else:
        if beta is None:
            raise ValueError(
                "beta: wanted a number > 0 for a Laplacian of points, got None; "
                "pass e.g. beta=qk.diffusion.choose_beta(X).beta"
            )
        chain = operator(P, beta=beta, alpha=alpha or 0.0, W=W, n_threads=n_threads)
    _dynamics.square(chain)
    one = np.ones(chain.shape[0], chain.dtype)
    if kind == "random_walk":
        return Laplacian(chain, one, kind)
    rows = _reversible("P", chain)
    if kind == "symmetric":
        return Laplacian(symmetric_conjugate(rows, n_threads=n_threads), one, kind)
    if rows.bistochastic:  # its scores are the logarithms of the weights already
        return Laplacian(rows, one, kind)
    degree = np.exp(rows._normalizer(resolve_threads(n_threads)))
    return Laplacian(kernel(rows.scores, "exp"), degree, kind)


def diffusion_distance(
    P: MarkovOperator,
    i: npt.ArrayLike,
    j: npt.ArrayLike,
    t: int = 1,
    *,
    n_threads: int | None = None,
) -> Real:
    """:math:`D_t(i,j) = \\big(\\sum_k (P^t_{ik} - P^t_{jk})^2/\\pi_k\\big)^{1/2}` for pairs (DAC-5).

    i and j are indices of one shape, or broadcast. From t products with P, exactly and without
    eigenvectors; :meth:`DiffusionMap.diffusion_distance` is for many pairs.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> P = diffusion.operator(np.array([[0.0], [1.0], [3.0]]), beta=1.0)
    >>> diffusion.diffusion_distance(P, 0, [1, 2]).round(4)
    array([1.075 , 2.2837])
    """
    rows = _reversible("P", P)
    steps = _checks.integer("t", t)
    if steps < 0:
        raise ValueError(f"t: wanted a number of steps, 0 or more, got {steps}")
    n = rows.shape[0]
    first, second = np.broadcast_arrays(_indices("i", i, n), _indices("j", j, n))
    law = rows._known_stationary()
    assert law is not None
    used, where = np.unique(np.stack([first.ravel(), second.ravel()]), return_inverse=True)
    here, there = where.reshape(2, -1)
    start = np.zeros((len(used), n), rows.dtype)
    start[np.arange(len(used)), used] = 1
    moved = (rows**steps).apply_left(start, n_threads=n_threads)
    difference = (moved[here].astype(np.float64) - moved[there]) / np.sqrt(law)
    return _checked_norm(difference, first.shape, rows.dtype)


def _checked_norm(
    difference: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Real:
    out: Real = np.linalg.norm(difference, axis=-1).reshape(shape).astype(dtype)
    return out


def _indices(name: str, value: npt.ArrayLike, n: int) -> npt.NDArray[np.intp]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: wanted indices of points, got {array.dtype}; pass integers from 0 to {n - 1}"
        )
    if array.size and (array.min() < 0 or array.max() >= n):
        raise ValueError(
            f"{name}: wanted indices from 0 to {n - 1}, got {array.min()} to {array.max()}"
        )
    return array.astype(np.intp)


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # whatever float() takes but text
    except (TypeError, ValueError):
        raise TypeError(f"{name}: wanted a number, got {value!r}; pass e.g. {name}=1.0") from None
    if not math.isfinite(number):
        raise ValueError(f"{name}: wanted a finite number, got {value!r}; pass e.g. {name}=1.0")
    return number


# ---- the scale ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BetaChoice:
    """What a rule for beta found. Made by :func:`choose_beta`."""

    beta: float
    rule: str
    """"median" or "dimension\""""
    n_points: int
    """how many of the points the rule looked at"""
    dimension: float | None = None
    """the estimated intrinsic dimension ("dimension" only)"""


def choose_beta(X: npt.ArrayLike, rule: str = "median", *, W: WLike = None) -> BetaChoice:
    """The inverse scale beta of :math:`e^{-\\beta D^2}` by a stated rule (DAC-5).

    "median"
        beta = 1 / median of the squared distances between different points (those at distance 0 do
        not count). A wide kernel: every point sees about half of the others.
    "dimension"
        The beta at which the kernel sum :math:`T = \\sum_{ij} e^{-\\beta D^2_{ij}}` grows fastest with
        the scale :math:`\\epsilon = 1/\\beta` (Berry, Giannakis and Harlim 2015): the maximum of
        :math:`\\frac{d\\log T}{d\\log\\epsilon} = \\beta\\,\\frac{\\sum D^2 K}{\\sum K}`, found
        on powers of 2 and refined to 0.1 %. On a manifold of dimension m, T grows like
        :math:`\\epsilon^{m/2}`, so twice the maximum estimates m. A narrow kernel, which follows the
        shape of the data.

    Of more than 1000 points, 1000 evenly spaced in their order are looked at, so the rule repeats.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    >>> circle = np.column_stack([np.cos(angle), np.sin(angle)])
    >>> round(diffusion.choose_beta(circle).beta, 3)
    0.5
    >>> found = diffusion.choose_beta(circle, "dimension")
    >>> found.rule, round(found.dimension, 1)
    ('dimension', 1.2)
    """
    if rule not in RULES:
        raise ValueError(
            f"rule: wanted one of {', '.join(map(repr, RULES))}, got {rule!r}; "
            "or choose beta yourself"
        )
    points, _ = _checks.points("X", X)
    if points.ndim != 2:
        raise ValueError(f"X: wanted shape (n, d), got {points.shape}; pass one set of points")
    found = median_rule(points, W)
    if found.lowest < 0:
        raise ValueError(
            f"beta: wanted squared distances >= 0 for the rule {rule!r}, got {found.lowest:.3g} "
            "(W is indefinite); pass a number"
        )
    if found.beta is None:
        raise ValueError(
            f"beta: wanted points that differ for the rule {rule!r}, got {len(points)} equal ones; "
            "pass a number"
        )
    if rule == "median":
        return BetaChoice(found.beta, rule, found.minus.shape[0])
    return _fastest_growth(found.minus, found.beta)


def _fastest_growth(minus: Scores, middle: float) -> BetaChoice:
    """The maximum over beta of d log T / d log(1/beta), from ``minus``, the scores -D^2."""
    from scipy.optimize import minimize_scalar

    def growth(log2_beta: float) -> tuple[float, float]:
        """The slope, and log T less its smallest possible value log N."""
        P = softmax(minus * (middle * 2.0**log2_beta))
        lse = P.log_normalizer
        weight = np.exp(lse - lse.max())
        slope = -float(weight @ P.expected_score() / weight.sum())
        return slope, float(lse.max() + np.log(weight.sum()) - np.log(len(lse)))

    # Wider than 2^-4 every weight is near 1; narrower than T ~ N every point is alone.
    best, slope = -4, -math.inf
    for exponent in range(-4, 100):
        found, above = growth(exponent)
        if found > slope:
            best, slope = exponent, found
        if above < 1e-3:
            break
    refined = minimize_scalar(
        lambda x: -growth(x)[0],
        bounds=(best - 1, best + 1),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return BetaChoice(
        middle * 2.0 ** float(refined.x), "dimension", minus.shape[0], -2 * float(refined.fun)
    )


# ---- the estimator ------------------------------------------------------------------------------


class DiffusionMap(Estimator):
    """Diffusion map: points as eigenvectors of the diffusion operator (DAC-5, eqs 11, 19).

    The coordinates of point i after t steps are :math:`\\lambda_k^t\\psi_{ik}`, k = 1, 2, ...: right
    eigenvectors of :func:`operator`, largest eigenvalues first, normalised by
    :math:`\\sum_i\\pi_i\\psi_{ik}^2 = 1`. The trivial pair (eigenvalue 1, constant vector) is left out.
    Distances between coordinates are diffusion distances. Each vector's largest entry is positive, so
    that results repeat.

    Parameters (scikit-learn's conventions; all are arguments of the constructor):

    - ``n_components``: how many coordinates, 1 to N - 1.
    - ``beta``: the inverse scale of :math:`e^{-\\beta D^2}`, a number, or the rule "median" or
      "dimension" of :func:`choose_beta`; None is "median".
    - ``alpha``: density normalisation as in :func:`operator`: 0 none, 1 removes the sampling density.
    - ``t``: diffusion time, a number >= 0 (0: the eigenvectors themselves).
    - ``W``: the metric (d, d) or a pair of factors, None for the identity.
    - ``max_memory``: bytes. If the N x N symmetric conjugate fits, it is formed once and multiplied by
      BLAS; otherwise every product is computed from the points, 16 vectors at a time, in O(N) memory.
      The default, 256 MB, forms it up to N = 5792 in double and 8192 in single precision.
    - ``max_iter``: restarts of the eigensolver (None: as many as it likes; it raises when they run out).
    - ``n_threads``: for the library's own products.

    After ``fit``: ``eigenvalues_`` (without the trivial 1), ``eigenvectors_`` (N, n_components),
    ``embedding_``, ``stationary_`` (N,), ``beta_``, ``beta_rule_`` ("given", "median" or "dimension"),
    ``dimension_`` (of the rule "dimension"; else None), ``materialized_`` (whether the array was formed),
    ``n_iter_`` (passes over the matrix), ``points_`` (a copy of X), ``n_features_in_``.

    >>> import numpy as np
    >>> from qkcore import diffusion
    >>> angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    >>> circle = np.column_stack([np.cos(angle), np.sin(angle)])
    >>> model = diffusion.DiffusionMap(2, beta=10.0).fit(circle)
    >>> model.eigenvalues_.round(6)
    array([0.974671, 0.974671])
    >>> np.linalg.norm(model.embedding_, axis=1).round(6)[:3]  # a circle again
    array([1.378392, 1.378392, 1.378392])
    >>> bool(np.allclose(model.transform(circle), model.embedding_))
    True
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        beta: float | str | None = None,
        alpha: float = 0.0,
        t: float = 1,
        W: WLike = None,
        max_memory: float = 256 * 2**20,
        max_iter: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.beta = beta
        self.alpha = alpha
        self.t = t
        self.W = W
        self.max_memory = max_memory
        self.max_iter = max_iter
        self.n_threads = n_threads

    def fit(self, X: npt.ArrayLike, y: object = None) -> DiffusionMap:
        """Find the coordinates of points X (n, d); y is ignored."""
        points = np.array(self._points(X), order="C")  # new points are compared with these
        n = len(points)
        k = _checks.integer("n_components", self.n_components)
        if n < 2:
            raise ValueError(f"X: wanted at least 2 points, got {n} (1 sample)")
        if not 1 <= k < n:
            raise ValueError(
                f"n_components: wanted 1 to {n - 1}, one less than there are points, got {k}; "
                "pass fewer, or more points"
            )
        t = _number("t", self.t)
        memory = _number("max_memory", self.max_memory)
        for name, value in (("t", t), ("max_memory", memory)):
            if value < 0:
                raise ValueError(f"{name}: wanted a number >= 0, got {value:g}")
        restarts = None if self.max_iter is None else _checks.integer("max_iter", self.max_iter)
        if restarts is not None and restarts < 1:
            raise ValueError(f"max_iter: wanted 1 or more restarts, got {restarts}")
        threads = resolve_threads(self.n_threads)
        choice = self._choice(points)
        s, shift = _density_normalized(
            scores.distance(points, W=self.W, beta=choice.beta), self.alpha, threads
        )
        P = softmax(s)
        S = kernel(_halved(P, threads), "exp")
        log_z = P._normalizer(threads).astype(np.float64)
        law = np.exp(log_z - log_z.max())
        law /= law.sum()
        materialized = n * n * s.dtype.itemsize <= memory
        values, vectors, passes = _nontrivial_eigenpairs(
            S, np.sqrt(law), k, materialized, restarts, threads
        )
        self.beta_ = choice.beta
        self.beta_rule_ = choice.rule
        self.dimension_ = choice.dimension
        self.eigenvalues_: Real = values.astype(s.dtype)
        self.eigenvectors_: Real = _right_eigenvectors(vectors, law, s.dtype)
        self.stationary_: Real = law.astype(s.dtype)
        self.materialized_ = materialized
        self.n_iter_ = passes
        self.points_: Real = points
        self.n_features_in_ = points.shape[1]
        # What transform needs must not change with parameters that are set after fit.
        metric = self.W
        if metric is not None:
            metric = tuple(map(np.array, metric)) if isinstance(metric, tuple) else np.array(metric)
        self._fitted = (t, metric, shift)
        self.embedding_: Real = self.eigenvectors_ * _powers(self.eigenvalues_, t)
        return self

    def _choice(self, points: Real) -> BetaChoice:
        beta = "median" if self.beta is None else self.beta
        if isinstance(beta, str):
            if beta not in RULES:
                raise ValueError(
                    f"beta: wanted a number > 0 or one of the rules {', '.join(map(repr, RULES))}, "
                    f"got {beta!r}"
                )
            return choose_beta(points, beta, W=self.W)
        return BetaChoice(_checks.positive("beta", beta), "given", len(points))

    def fit_transform(self, X: npt.ArrayLike, y: object = None) -> Real:
        """Fit, and give the coordinates of X, (n, n_components)."""
        return self.fit(X, y).embedding_

    @property
    def operator_(self) -> MarkovOperator:
        """The fitted diffusion operator, (N, N)."""
        self._require_fitted("embedding_")
        _, metric, shift = self._fitted
        s = scores.distance(self.points_, W=metric, beta=self.beta_)
        return softmax(s if shift is None else s.shift(rows=shift, columns=shift))

    def transform(self, X: npt.ArrayLike) -> Real:
        """The coordinates of points X (m, d), new ones too, by Nyström's extension.

        :math:`\\lambda_k^t\\psi_k(x) = \\lambda_k^{t-1}\\sum_j P(x, x_j)\\psi_{jk}`: for t >= 1 nothing is
        divided by an eigenvalue. P(x, .) is normalised as in ``fit``, density included. The points of
        ``fit`` get their embedding, to rounding.

        >>> import numpy as np
        >>> from qkcore import diffusion
        >>> model = diffusion.DiffusionMap(1, beta=1.0).fit(np.array([[0.0], [1.0], [3.0]]))
        >>> model.transform(np.array([[0.0], [2.0]])).round(4) + 0.0
        array([[-0.6211],
               [ 0.5039]])
        """
        product = self._extended(X)
        t = self._fitted[0]
        if t >= 1:
            out: Real = product * _powers(self.eigenvalues_, t - 1)
            return out
        self._refuse_zero_eigenvalues(f"transform with t={t:g} < 1")
        return product / self.eigenvalues_ * _powers(self.eigenvalues_, t)

    def eigenfunctions(self, X: npt.ArrayLike) -> Real:
        """:math:`\\psi_k(x) = \\lambda_k^{-1}\\sum_j P(x, x_j)\\psi_{jk}` at points X (m, d): Nyström.

        Rounding is divided by the eigenvalue too; eigenvalues that are 0 to rounding are refused.
        """
        product = self._extended(X)
        self._refuse_zero_eigenvalues("eigenfunctions")
        out: Real = product / self.eigenvalues_
        return out

    def _extended(self, X: npt.ArrayLike) -> Real:
        """sum_j P(x, x_j) psi_jk; a density of x itself would cancel in the row's normaliser."""
        self._require_fitted("embedding_")
        array = np.asarray(X)
        points = self._points(array.astype(self.points_.dtype) if array.dtype.kind in "iub" else X)
        if points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X: wanted {self.n_features_in_} features as in fit, got {points.shape[1]}; X has "
                f"{points.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        _checks.same_dtype("X", points, self.points_.dtype, "the points of fit")
        _, metric, shift = self._fitted
        s = scores.distance(points, self.points_, W=metric, beta=self.beta_)
        P = softmax(s if shift is None else s.shift(columns=shift))
        return P.apply(self.eigenvectors_, n_threads=self.n_threads)

    def _refuse_zero_eigenvalues(self, what: str) -> None:
        lost = np.abs(self.eigenvalues_) <= 100 * np.finfo(self.eigenvalues_.dtype).eps
        if lost.any():
            at = int(np.argmax(lost))
            raise ValueError(
                f"{what}: eigenvalue {at} is 0 to rounding ({self.eigenvalues_[at]:.1e}), so its "
                f"vector cannot be extended to new points; fit at most {at} components, or raise beta"
            )

    def diffusion_distance(self, i: npt.ArrayLike, j: npt.ArrayLike | None = None) -> Real:
        """:math:`D_t(i,j) = \\big(\\sum_k\\lambda_k^{2t}(\\psi_{ik}-\\psi_{jk})^2\\big)^{1/2}` (DAC-5).

        Indices of fitted points, of one shape or broadcast; without j from i to every point, (..., N).
        With all N - 1 components this is the distance of the t-step laws, see
        :func:`qkcore.diffusion.diffusion_distance`; with fewer it is at most that.

        >>> import numpy as np
        >>> from qkcore import diffusion
        >>> model = diffusion.DiffusionMap(2, beta=1.0).fit(np.array([[0.0], [1.0], [3.0]]))
        >>> model.diffusion_distance(0).round(4)
        array([0.    , 1.075 , 2.2837])
        """
        self._require_fitted("embedding_")
        where = self.embedding_
        here = where[_indices("i", i, len(where))]
        there = where if j is None else where[_indices("j", j, len(where))]
        difference = (here[..., None, :] if j is None else here) - there
        return _checked_norm(difference, difference.shape[:-1], where.dtype)

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:
        """The names of the coordinates, for scikit-learn's pipelines."""
        self._require_fitted("embedding_")
        name = type(self).__name__.lower()
        names = [f"{name}{k}" for k in range(self.embedding_.shape[1])]
        return np.array(names, dtype=object)


def _powers(values: Real, t: float) -> Real:
    """values ** t. Negative eigenvalues (of indefinite metrics) have integer powers only."""
    if t == int(t):
        whole: Real = values ** int(t)
        return whole
    if values.min() < -100 * np.finfo(values.dtype).eps:
        raise ValueError(
            f"t: wanted an integer, as there are negative eigenvalues ({values.min():.3g}), got "
            f"{t:g}; pass an integer or fewer components"
        )
    out: Real = np.maximum(values, 0) ** values.dtype.type(t)
    return out


def _right_eigenvectors(
    vectors: npt.NDArray[Any], law: npt.NDArray[np.float64], dtype: np.dtype[Any]
) -> Real:
    """psi_i = v_i / sqrt(pi_i), with unit norm in pi."""
    v = vectors.astype(np.float64)
    v /= np.linalg.norm(v, axis=0)
    out: Real = fix_signs(v / np.sqrt(law)[:, None]).astype(dtype)
    return out


# ---- eigenpairs ---------------------------------------------------------------------------------

Product = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def _nontrivial_eigenpairs(
    S: KernelOperator,
    root: npt.NDArray[np.float64],
    k: int,
    materialized: bool,
    max_iter: int | None,
    n_threads: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """The k largest eigenvalues of S, and vectors, besides the known pair (1, root); the passes made."""
    n, dtype = S.shape[0], S.dtype
    first = root.astype(dtype)[:, None]
    multiply = _blas_product(S, n_threads) if materialized else _lazy_product(S, n_threads)
    passes = 0

    def product(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        nonlocal passes
        passes += 1
        return multiply(x)

    # Moving the known eigenvalue to -1, below all others, keeps constants apart from other vectors of
    # eigenvalue 1 (of clusters that do not see each other).
    def deflated(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        y = product(x)
        y -= first * (2 * (first.T @ x))
        return y

    size, basis = _FORMED if materialized else _LAZY
    basis = max(basis, 2 * k + 6 * size)
    if basis + size >= n - k:  # the Krylov space would be (nearly) the whole space
        values, vectors = leading_eigenpairs(deflated, n, n, dtype)
        return values[:k], vectors[:, :k], passes
    solver = _Lanczos(product, first, 1000 if max_iter is None else max_iter)
    values, vectors = solver.leading(k, size, basis)
    # From a block of m vectors a Krylov space holds m vectors to every eigenvalue, however often it
    # is repeated: where m are equal, those that are orthogonal to what is found are looked at too.
    near = max(10 * solver.tol, math.sqrt(float(np.finfo(dtype).eps)))
    while k > size and (values[: k - size] - values[size - 1 : k - 1] <= near).any():
        solver.lock(vectors)
        size, basis = _LAZY[0], max(basis, 2 * k + 6 * _LAZY[0])
        if basis + size >= n - solver.locked.shape[1]:
            values, vectors = leading_eigenpairs(deflated, n, n, dtype)
            break
        others, more = solver.leading(k, size, basis, above=float(values[k - 1]) + solver.tol)
        if len(others) == 0:
            break
        values, vectors = np.append(values, others), np.hstack([vectors, more])
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], vectors[:, order]
    return values[:k], vectors[:, :k], passes


def _lazy_product(S: KernelOperator, n_threads: int) -> Product:
    return lambda x: S.apply(x, n_threads=n_threads)


def _blas_product(S: KernelOperator, n_threads: int) -> Product:
    """Products with the array of S. symv reads one triangle: half the memory traffic of gemv."""
    from scipy.linalg.blas import get_blas_funcs

    matrix = S.to_numpy(n_threads=n_threads)
    symv, gemm = get_blas_funcs(("symv", "gemm"), (matrix,))

    def product(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if x.shape[1] > 4:
            return np.asarray(gemm(1.0, matrix.T, x))
        return np.column_stack([symv(1.0, matrix.T, column) for column in x.T])

    return product


class _Lanczos:
    """Thick-restart block Lanczos with full orthogonalisation, orthogonal to ``locked``.

    For this spectrum (in [-1, 1], its upper end wanted) it makes fewer products than ARPACK, which
    looks for convergence at restarts only, and it takes several vectors in one pass over the matrix.
    All linear algebra is SciPy's: NumPy has a BLAS of its own, and the waiting threads of one slow the
    other down several times when they take turns.
    """

    def __init__(self, product: Product, locked: npt.NDArray[Any], max_restarts: int) -> None:
        self.product = product
        self.locked = locked
        self.max_restarts = max_restarts
        n = len(locked)
        self.tol = math.sqrt(n) * float(np.finfo(locked.dtype).eps)

    def lock(self, vectors: npt.NDArray[Any]) -> None:
        """Leave out the span of ``first`` and these vectors from now on."""
        self.locked = np.hstack([self.locked[:, :1], vectors])

    def leading(
        self, k: int, size: int, basis: int, above: float = -math.inf
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """k pairs, or as many as are ``above``, largest first, by ``size`` vectors at a time."""
        from scipy.linalg import eigh

        n, m = self.locked.shape
        dtype = self.locked.dtype
        V = np.empty((n, m + basis + size), dtype, order="F")
        V[:, :m] = self.locked
        T = np.zeros((basis + size, basis + size))  # the projected matrix
        Q = np.random.default_rng(m).standard_normal((n, size)).astype(dtype)
        Q, _ = _orthonormal(Q, V[:, :m])
        # To see that no other is above, its value to a tenth of the mean spacing is enough.
        enough = max(self.tol, 0.1 * (1 - above) / m)
        kept, restarts, step = 0, 0, 0
        while True:
            V[:, m + kept : m + kept + size] = Q
            known = V[:, : m + kept + size]
            R, H = _project(np.asfortranarray(self.product(Q)), known)
            T[: kept + size, kept : kept + size] = H[m:]
            T[kept : kept + size, :kept] = H[m : m + kept].T
            kept += size
            step += 1
            Q, B = _orthonormal(R, known)
            full = kept + size > basis
            if not full and (kept < k or step % max(1, 4 // size)):
                continue
            values, vectors = eigh(T[:kept, :kept])
            values, vectors = values[::-1], vectors[:, ::-1]
            residual = np.linalg.norm(B @ vectors[kept - size :], axis=0)
            wanted = int((values[:k] > above).sum())
            if residual[:wanted].max(initial=0.0) <= self.tol and (
                wanted == k or residual[wanted] <= enough
            ):
                out = _combine(known[:, m:], vectors[:, :wanted])
                return values[:wanted].astype(dtype), fix_signs(out) if wanted else out
            if full:
                if restarts == self.max_restarts:
                    raise RuntimeError(
                        f"eigenpairs: {int((residual[:k] <= self.tol).sum())} of the {k} wanted "
                        f"converged within {restarts} restarts; ask for fewer, lower beta, or raise "
                        "max_iter"
                    )
                restarts += 1
                keep = max(k + size, kept // 2)
                V[:, m : m + keep] = _combine(known[:, m:], vectors[:, :keep])
                T[:] = 0
                T[np.arange(keep), np.arange(keep)] = values[:keep]
                kept = keep


def _combine(basis: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """basis @ weights, in the precision of the basis."""
    from scipy.linalg.blas import get_blas_funcs

    if weights.shape[1] == 0:
        return np.empty((len(basis), 0), basis.dtype)
    gemm = get_blas_funcs("gemm", (basis,))
    return np.asarray(gemm(1.0, basis, weights))


def _project(
    R: npt.NDArray[Any], basis: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """R without its part in the orthonormal basis, in the place of R, and the coefficients of that."""
    from scipy.linalg.blas import get_blas_funcs

    gemm = get_blas_funcs("gemm", (basis,))
    H = gemm(1.0, basis, R, trans_a=1)
    return np.asarray(gemm(-1.0, basis, H, beta=1.0, c=R, overwrite_c=1)), np.asarray(H)


def _orthonormal(
    R: npt.NDArray[Any], basis: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Q and B with R = Q B + (basis), Q orthonormal and orthogonal to the basis.

    What is left of a column may be rounding alone, and is a direction all the same: a pass that takes
    most of a column away is followed by another.
    """
    from scipy.linalg import qr

    B = np.eye(R.shape[1])
    for _ in range(4):
        before = np.linalg.norm(R, axis=0)
        R, _ = _project(np.asfortranarray(R), basis)
        R, upper = qr(R, mode="economic", check_finite=False)
        B = upper @ B
        if (np.abs(np.diag(upper)) > 0.5 * before).all():
            break
    return R, B
