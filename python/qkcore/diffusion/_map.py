"""Diffusion maps as an estimator (DAC-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend, backend_of
from .._config import resolve_threads
from .._estimator import Transformer
from .._lanczos import Product
from .._lazy_scores import Real
from .._points import WLike
from .._spectral import fix_signs
from ..operators import MarkovOperator, kernel, softmax
from ._eigenpairs import StoredKernel, nontrivial_eigenpairs, stored_bytes
from ._local_scale import GlobalKernel, SelfTuningKernel, neighbor_count
from ._localized import effective_points, warn_of_parts
from ._operators import _checked_norm, _density_normalized, _halved, _indices
from ._scale import RULES, BetaChoice, choose_beta

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDWIDTHS = ("global", "self-tuning")


class DiffusionMap(Transformer):
    """Diffusion map: points as eigenvectors of the diffusion operator (DAC-5, eqs 11, 19).

    The coordinates of point i after t steps are :math:`\\lambda_k^t\\psi_{ik}`, k = 1, 2, ...: right
    eigenvectors of :func:`operator`, largest eigenvalues first, normalised by
    :math:`\\sum_i\\pi_i\\psi_{ik}^2 = 1`. The trivial pair (eigenvalue 1, constant vector) is left out.
    Distances between coordinates are diffusion distances. Each vector's largest entry is positive, so
    that results repeat.

    Parameters (scikit-learn's conventions; all are arguments of the constructor):

    - ``n_components``: how many coordinates, 1 to N - 1.
    - ``beta``: the inverse scale of :math:`e^{-\\beta D^2}`, a number, or the rule "median",
      "dimension" or "knn" of :func:`choose_beta`; None is "median" (1 for "self-tuning").
    - ``bandwidth``: "global", one scale for all points, or "self-tuning", one for each (Zelnik-Manor and
      Perona 2005): the kernel is :math:`e^{-\\beta D_{ij}^2/(\\sigma_i\\sigma_j)}`, :math:`\\sigma_i` the
      distance of point i to its ``n_neighbors``-th neighbour. For data with outliers, or of uneven density.
    - ``n_neighbors``: for "self-tuning" and for the rule "knn".
    - ``alpha``: density normalisation as in :func:`operator`: 0 none, 1 removes the sampling density.
    - ``t``: diffusion time, a number >= 0 (0: the eigenvectors themselves).
    - ``W``: the metric (d, d) or a pair of factors, None for the identity.
    - ``max_memory``: bytes. If the upper half of the N x N symmetric conjugate fits, it is formed once and
      read for every product; otherwise every product is computed from the points, 16 vectors at a time,
      in O(N) memory. The default, 256 MB, forms it up to N = 8000 in double and 11500 in single precision.
    - ``max_iter``: restarts of the eigensolver (None: as many as it likes; it raises when they run out).
    - ``n_threads``: for the library's own products.

    After ``fit``: ``eigenvalues_`` (without the trivial 1), ``eigenvectors_`` (N, n_components),
    ``embedding_``, ``stationary_`` (N,), ``beta_``, ``beta_rule_`` ("given", "median", "dimension", "knn"),
    ``dimension_`` (of the rule "dimension"; else None), ``scales_`` (:math:`\\sigma`, (N,), of "self-tuning",
    else None), ``effective_points_`` (how many points each coordinate lives on:
    :math:`1/\\sum_i(\\pi_i\\psi_{ik}^2)^2`), ``materialized_`` (whether the array was formed),
    ``n_iter_`` (passes over the matrix), ``points_`` (a copy of X), ``n_features_in_``.

    ``fit`` warns with :class:`DisconnectedWarning` where points fall into parts that do not see each other,
    or where a coordinate lives on a few points only, as it does with outliers.

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
        bandwidth: str = "global",
        n_neighbors: int = 7,
        alpha: float = 0.0,
        t: float = 1,
        W: WLike = None,
        max_memory: float = 256 * 2**20,
        max_iter: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.beta = beta
        self.bandwidth = bandwidth
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.t = t
        self.W = W
        self.max_memory = max_memory
        self.max_iter = max_iter
        self.n_threads = n_threads

    def fit(self, X: npt.ArrayLike, y: object = None) -> DiffusionMap:
        """Find the coordinates of points X (n, d); y is ignored."""
        return self._fit(X, 3)

    def _fit(self, X: npt.ArrayLike, stacklevel: int) -> DiffusionMap:
        where = backend_of(X)
        # New points are compared with these.
        points = np.array(self._points(where.here("X", X)), order="C")
        n = len(points)
        k = _checks.integer("n_components", self.n_components)
        _checks.some("X", n, 2, "points", "1 sample has no map")
        if not 1 <= k < n:
            raise ValueError(
                f"n_components: wanted 1 to {n - 1}, one less than there are points, got {k}; "
                "pass fewer, or more points"
            )
        t = _checks.at_least("t", self.t, 0)
        memory = _checks.at_least("max_memory", self.max_memory, 0)
        restarts = None if self.max_iter is None else _checks.count("max_iter", self.max_iter)
        threads = resolve_threads(self.n_threads)
        choice = self._choice(points)
        alpha = _checks.number("alpha", self.alpha)
        weights: GlobalKernel | SelfTuningKernel
        if self.bandwidth == "self-tuning":
            near = neighbor_count(self.n_neighbors, n)
            weights = SelfTuningKernel(points, self.W, choice.beta, near, threads)
        else:
            weights = GlobalKernel(points, self.W, choice.beta)
        s = where.visiting(weights.scores())
        materialized = where.host_arrays and stored_bytes(n, s.dtype) <= memory
        multiply: Product | None = None
        # Distances give weights from 0 to 1, with 1 on the diagonal: sums and their powers are numbers, and
        # the stored weights serve them all. Other metrics and powers go by logarithms.
        distances = self.W is None or self.bandwidth == "self-tuning"
        if materialized and distances and abs(alpha) <= 2:
            K = StoredKernel(s, threads)
            none = np.zeros(n, s.dtype)
            shift = K.log_row_sums(none) * s.dtype.type(-alpha) if alpha else None
            log_z = K.log_row_sums(none if shift is None else shift)
            half = log_z * s.dtype.type(-0.5) + (none if shift is None else shift)
            S = kernel(s.shift(rows=half, columns=half), "exp")
            multiply = K.scaled(np.exp(half))
        else:
            s, shift = _density_normalized(s, alpha, threads)
            P = softmax(s)
            S = kernel(_halved(P, threads), "exp")
            log_z = P._normalizer(threads).lse
            if materialized:
                multiply = StoredKernel(S.scores, threads)
        log_z = log_z.astype(np.float64)
        law = np.exp(log_z - log_z.max())
        law /= law.sum()
        values, vectors, passes = nontrivial_eigenpairs(
            S,
            np.sqrt(law),
            k,
            multiply,
            self.W is None and self.bandwidth == "global",  # then it is positive semidefinite
            restarts,
            threads,
        )
        dtype = points.dtype
        self.beta_ = choice.beta
        self.beta_rule_ = choice.rule
        self.dimension_ = choice.dimension
        self.eigenvalues_: Real = values.astype(dtype)
        self.eigenvectors_: Real = _right_eigenvectors(vectors, law, dtype)
        self.stationary_: Real = law.astype(dtype)
        self.scales_: Real | None = None
        if isinstance(weights, SelfTuningKernel):
            self.scales_ = weights.scales.astype(dtype)
        self.effective_points_ = effective_points(law, self.eigenvectors_)
        self.materialized_ = materialized
        self.n_iter_ = passes
        self.points_: Real = points
        self._learn_features(X, points)
        # What transform needs must not change with parameters that are set after fit.
        self._fitted = (t, weights, shift)
        self.embedding_: Real = self.eigenvectors_ * _powers(self.eigenvalues_, t)
        other = 'pass bandwidth="self-tuning"'
        if self.bandwidth == "self-tuning":
            other = f"raise n_neighbors (now {self.n_neighbors})"
        remedy = (
            f"Leave outliers out, lower beta (now {choice.beta:.3g}), {other}, "
            "or map large parts one by one"
        )
        warn_of_parts(
            type(self).__name__,
            self.eigenvalues_,
            self.eigenvectors_,
            law,
            remedy,
            stacklevel,
            with_constant=True,
        )
        return self

    def _choice(self, points: Real) -> BetaChoice:
        _checks.one_of("bandwidth", self.bandwidth, BANDWIDTHS)
        beta = "median" if self.beta is None else self.beta
        if self.bandwidth == "self-tuning":
            if isinstance(self.beta, str):
                raise ValueError(
                    f'beta: wanted a number > 0 or None for bandwidth="self-tuning", got the rule '
                    f"{self.beta!r}; the scales come from n_neighbors"
                )
            beta = 1.0 if self.beta is None else self.beta
        if isinstance(beta, str):
            if beta not in RULES:
                raise ValueError(
                    f"beta: wanted a number > 0 or one of the rules {', '.join(map(repr, RULES))}, "
                    f"got {beta!r}"
                )
            return choose_beta(points, beta, W=self.W, n_neighbors=self.n_neighbors)
        return BetaChoice(_checks.positive("beta", beta), "given", len(points))

    def fit_transform(self, X: npt.ArrayLike, y: object = None) -> Real:
        """Fit, and give the coordinates of X, (n, n_components)."""
        where = backend_of(X)
        out: Real = where.give(where.from_host(self._fit(X, 3).embedding_))
        return self._as_asked(out, X)  # type: ignore[no-any-return]  # a data frame if that was asked for

    @property
    def operator_(self) -> MarkovOperator:
        """The fitted diffusion operator, (N, N); that of "self-tuning" is in double precision."""
        self._require_fitted("embedding_")
        _, weights, shift = self._fitted
        s = weights.scores()
        return softmax(s if shift is None else s.shift(rows=shift, columns=shift))

    def transform(self, X: npt.ArrayLike) -> Real:
        """The coordinates of points X (m, d), new ones too, by Nyström's extension.

        :math:`\\lambda_k^t\\psi_k(x) = \\lambda_k^{t-1}\\sum_j P(x, x_j)\\psi_{jk}`: for t >= 1 nothing is
        divided by an eigenvalue. P(x, .) is normalised as in ``fit``, density included. The points of
        ``fit`` get their embedding, to rounding. With "self-tuning", the scale of a new point is its distance
        to the (``n_neighbors`` + 1)-th nearest point of ``fit``; a point of ``fit`` is its own nearest, so
        its scale is what it was there.

        >>> import numpy as np
        >>> from qkcore import diffusion
        >>> model = diffusion.DiffusionMap(1, beta=1.0).fit(np.array([[0.0], [1.0], [3.0]]))
        >>> model.transform(np.array([[0.0], [2.0]])).round(4) + 0.0
        array([[-0.6211],
               [ 0.5039]])
        """
        where, product = self._extended(X)
        t = self._fitted[0]
        if t < 1:
            self._refuse_zero_eigenvalues(f"transform with t={t:g} < 1")
            product, t = product / self.eigenvalues_, t + 1
        out: Real = where.give(where.from_host(product * _powers(self.eigenvalues_, t - 1)))
        return self._as_asked(out, X)  # type: ignore[no-any-return]  # a data frame if that was asked for

    def eigenfunctions(self, X: npt.ArrayLike) -> Real:
        """:math:`\\psi_k(x) = \\lambda_k^{-1}\\sum_j P(x, x_j)\\psi_{jk}` at points X (m, d): Nyström.

        Rounding is divided by the eigenvalue too; eigenvalues that are 0 to rounding are refused.
        """
        where, product = self._extended(X)
        self._refuse_zero_eigenvalues("eigenfunctions")
        out: Real = where.give(where.from_host(product / self.eigenvalues_))
        return out

    def _extended(self, X: npt.ArrayLike) -> tuple[Backend, Real]:
        """sum_j P(x, x_j) psi_jk; a density of x itself would cancel in the row's normaliser."""
        self._require_fitted("embedding_")
        where = backend_of(X)
        X = where.here("X", X)
        points = self._points(X)
        self._same_features(X, points)
        points = points.astype(self.points_.dtype, copy=False)
        _, weights, shift = self._fitted
        s = where.visiting(weights.cross(points, resolve_threads(self.n_threads)))
        P = softmax(s if shift is None else s.shift(columns=shift))
        vectors = self.eigenvectors_.astype(s.dtype, copy=False)
        return where, P.apply(vectors, n_threads=self.n_threads).astype(points.dtype, copy=False)

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

    def plot(
        self,
        *,
        ax: Axes | None = None,
        color: npt.ArrayLike | None = None,
        components: tuple[int, int] = (0, 1),
    ) -> Figure:
        """Draws the fitted points in two coordinates; returns the matplotlib figure.

        ``components``: which two, counted from 0. ``color``: a number for each point. ``ax``: axes of your
        own.
        """
        from .. import _plots

        self._require_fitted("embedding_")
        return _plots.diffusion_map(self, ax, color, components)

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
