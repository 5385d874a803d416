"""Diffusion maps as an estimator (DAC-5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import Backend, backend_of
from .._config import resolve_threads
from .._estimator import Transformer
from .._lazy_scores import Real
from .._points import WLike
from .._spectral import fix_signs
from ..operators import MarkovOperator, softmax
from ._conjugates import of_all_pairs, of_neighbors, spectrum
from ._eigenpairs import stored_bytes
from ._given import right_factors
from ._local_scale import GlobalKernel, LocalKernel, SelfTuningKernel, neighbor_count
from ._localized import effective_points, warn_of_parts
from ._neighbors import NeighborGraph, NeighborLogits
from ._operators import _checked_norm, _indices
from ._scale import RULES, BetaChoice, choose_beta
from ._variable import DensityBandwidth, GivenBandwidth, VariableKernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from scipy.sparse import csr_array

BANDWIDTHS = ("global", "self-tuning", "variable")
Values = npt.ArrayLike | Callable[[Real], npt.ArrayLike]
Weights = GlobalKernel | LocalKernel


class _Fitted(NamedTuple):
    """What transform uses; fixed by ``fit``."""

    t: float
    weights: Weights
    shift: Real | None
    """the logarithms of the factors of the kernel's columns"""
    graph: NeighborGraph | None
    narrowest: float
    """the smallest variable bandwidth"""

    def normalized(self, s: NeighborLogits) -> csr_array[Any]:
        """The sparse kernel with its columns multiplied by their factors, and rows that sum to 1."""
        return s.kernel(-s.log_row_sums(self.shift), self.shift)


class DiffusionMap(Transformer):
    """Diffusion map: points as eigenvectors of the diffusion operator (DAC-5, eqs 11, 19).

    The coordinates of point i after t steps are :math:`\\lambda_k^t\\psi_{ik}`, k = 1, 2, ...: right
    eigenvectors of :func:`operator`, largest eigenvalues first, normalised by
    :math:`\\sum_i\\pi_i\\psi_{ik}^2 = 1`. The trivial pair (eigenvalue 1, constant vector) is left out.
    Distances between coordinates are diffusion distances. Each vector's largest entry is positive, which
    makes results reproducible.

    Parameters (scikit-learn's conventions; all are arguments of the constructor):

    - ``n_components``: how many coordinates, 1 to N - 1.
    - ``beta``: the inverse scale of :math:`e^{-\\beta D^2}`, a number, or the rule "median",
      "dimension" or "knn" of :func:`choose_beta`; None is "median" (1 for "self-tuning").
    - ``bandwidth``: "global", one scale for all points; "self-tuning", one for each (Zelnik-Manor and
      Perona 2005): the kernel is :math:`e^{-\\beta D_{ij}^2/(\\sigma_i\\sigma_j)}`, :math:`\\sigma_i` the
      distance of point i to its ``n_neighbors``-th neighbour, for data with outliers, or of uneven density;
      "variable" (Berry and Harlim 2016): the same with the bandwidth :math:`\\rho_i = q_i^{-1/2}`, q the
      density, in place of :math:`\\sigma_i`; the generator is divided by :math:`\\rho^2`, so that its limit
      is known. Or give a bandwidth :math:`\\rho`, as an array (N,) or a function of points (m, d) that gives
      (m,).
    - ``n_neighbors``: for "self-tuning", "variable" and for the rule "knn".
    - ``neighbors``: None for the weights of all pairs, or k: weights are kept where one point is among the k
      nearest of the other (itself included), in a sparse array. O(N k) memory and time.
    - ``alpha``: density normalisation as in :func:`operator`: 0 none, 1 removes the sampling density.
    - ``density``: the density of the points, up to a factor, if it is known; default: the kernel's row sums.
      An array (N,) or a function of points, like the next two.
    - ``weights``: numbers w > 0 that multiply the kernel's columns: in the limit a drift
      :math:`2\\nabla\\log w` is added.
    - ``target``: a density :math:`\\pi`, up to a factor. The columns are divided by the density of the points
      and multiplied by :math:`\\pi^{1/2}` (Banisch et al. 2020): whatever the points were drawn from, the
      limit is the Langevin generator :math:`\\Delta + \\nabla\\log\\pi\\cdot\\nabla`.
    - ``dimension``: the intrinsic dimension, for powers of a variable bandwidth; None: estimated.
    - ``t``: diffusion time, a number >= 0 (0: the eigenvectors themselves).
    - ``W``: the metric (d, d) or a pair of factors, None for the identity.
    - ``max_memory``: bytes. If the upper half of the N x N symmetric conjugate fits, it is formed once and
      read for every product; otherwise every product is computed from the points, 16 vectors at a time,
      in O(N) memory. The default, 256 MB, forms it up to N = 8000 in double and 11500 in single precision.
    - ``max_iter``: the most restarts of the eigensolver, which raises if they are not enough. None: 1000.
    - ``n_threads``: for the library's own products.

    After ``fit``: ``eigenvalues_`` (without the trivial 1), ``eigenvectors_`` (N, n_components),
    ``embedding_``, ``stationary_`` (N,), ``beta_``, ``beta_rule_`` ("given", "median", "dimension", "knn"),
    ``dimension_`` (of the rule "dimension" and of variable bandwidths; else None), ``scales_``
    (:math:`\\sigma` or :math:`\\rho`, (N,); None if global), ``rates_`` (minus the eigenvalues of the
    generator, :math:`4\\beta(1-\\lambda_k)`, divided by :math:`\\min\\rho^2` for a variable bandwidth; None
    for "self-tuning", which has no limit of this kind), ``effective_points_`` (on how many points each
    coordinate is concentrated: :math:`1/\\sum_i(\\pi_i\\psi_{ik}^2)^2`), ``materialized_`` (whether the array
    was formed), ``n_iter_`` (passes over the matrix), ``points_`` (a copy of X), ``n_features_in_``.

    ``fit`` warns with :class:`DisconnectedWarning` if the points fall into parts with no weights between
    them, or if a coordinate is nearly 0 except at a few points, as happens with outliers.

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
        bandwidth: str | Values = "global",
        n_neighbors: int = 7,
        neighbors: int | None = None,
        alpha: float = 0.0,
        density: Values | None = None,
        weights: Values | None = None,
        target: Values | None = None,
        dimension: float | None = None,
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
        self.neighbors = neighbors
        self.alpha = alpha
        self.density = density
        self.weights = weights
        self.target = target
        self.dimension = dimension
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
        # A copy, with which transform compares new points.
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
        near = self._near(n, where)
        factors = right_factors(points, self.alpha, self.weights, self.target, self.density)
        weights, choice = self._kernel(points, threads)
        graph = None if near is None else NeighborGraph(weights, points, near, threads)
        if graph is not None:
            materialized = True
            conjugate = of_neighbors(graph, weights, factors)
        else:
            s = where.visiting(weights.scores())
            materialized = where.host_arrays and stored_bytes(n, s.dtype) <= memory
            bounded = self.W is None or isinstance(weights, LocalKernel)
            conjugate = of_all_pairs(s, weights, factors, materialized, bounded, threads)
        slowness, narrowest = None, 1.0
        if isinstance(weights, VariableKernel):
            narrowest = float(weights.scales.min())
            slowness = (narrowest / weights.scales) ** 2
        definite = self.W is None and isinstance(weights, GlobalKernel) and graph is None
        values, vectors, law, passes = spectrum(conjugate, slowness, k, definite, restarts, threads)
        dtype = points.dtype
        self.beta_ = choice.beta
        self.beta_rule_ = choice.rule
        self.dimension_ = (
            weights.dimension if isinstance(weights, VariableKernel) else choice.dimension
        )
        self.eigenvalues_: Real = values.astype(dtype)
        self.eigenvectors_: Real = _right_eigenvectors(vectors, law, dtype)
        self.stationary_: Real = law.astype(dtype)
        self.scales_: Real | None = None
        self.rates_: Real | None = None
        if isinstance(weights, LocalKernel):
            self.scales_ = weights.scales.astype(dtype)
        if not isinstance(weights, SelfTuningKernel):
            self.rates_ = (4 * choice.beta / narrowest**2 * (1 - values)).astype(dtype)
        self.effective_points_ = effective_points(law, self.eigenvectors_)
        self.materialized_ = materialized
        self.n_iter_ = passes
        self.points_: Real = points
        self._learn_features(X, points)
        # Kept apart, so that parameters that are set after fit do not change transform.
        self._fitted = _Fitted(t, weights, conjugate.shift, graph, narrowest)
        self.embedding_: Real = self.eigenvectors_ * _powers(self.eigenvalues_, t)
        self._warn(weights, law, stacklevel + 1)
        return self

    def _warn(self, weights: Weights, law: npt.NDArray[np.float64], stacklevel: int) -> None:
        """Warns of disconnected parts, and of coordinates concentrated on few points."""
        other = 'pass bandwidth="self-tuning"'
        if isinstance(weights, GivenBandwidth):
            other = "bound the bandwidth"
        elif isinstance(weights, LocalKernel):
            other = f"raise n_neighbors (now {self.n_neighbors})"
        if self.neighbors is not None:
            other = f"raise neighbors (now {self.neighbors})"
        values = self.eigenvalues_
        if isinstance(weights, VariableKernel):
            # With a variable bandwidth the chain seldom moves where the bandwidth is wide. The eigenvalues
            # are corrected for how seldom it moves at the mean bandwidth, so that slowness alone does not
            # warn.
            spread = float(np.exp(np.log(weights.scales).mean())) / float(weights.scales.min())
            values = np.maximum(1 - (1 - values) * values.dtype.type(spread**2), 0)
        remedy = (
            f"Leave outliers out, lower beta (now {self.beta_:.3g}), {other}, "
            "or map large parts one by one"
        )
        warn_of_parts(
            type(self).__name__,
            values,
            self.eigenvectors_,
            law,
            remedy,
            stacklevel,
            with_constant=True,
        )

    def _near(self, n: int, where: Backend) -> int | None:
        """``neighbors``, checked, but at most the number of points; None for all pairs."""
        if self.neighbors is None:
            return None
        k = _checks.integer_within(
            "neighbors", self.neighbors, 2, 10**9, "each point is its own nearest neighbour"
        )
        if not where.host_arrays:
            raise TypeError(
                f"neighbors: wanted None for points on {where.place}, where no kernel is sparse, got {k}; "
                "leave neighbors out, or copy X to the CPU"
            )
        return min(k, n)

    def _kernel(self, points: Real, threads: int) -> tuple[Weights, BetaChoice]:
        """The kernel with its scale, and how that was found."""
        bandwidth, n = self.bandwidth, len(points)
        if isinstance(bandwidth, str):
            other = "or pass an array or a function of points"
            _checks.one_of("bandwidth", bandwidth, BANDWIDTHS, other)
        if isinstance(bandwidth, str) and bandwidth == "global":
            choice = self._choice(points)
            return GlobalKernel(points, self.W, choice.beta), choice
        if isinstance(self.beta, str):
            raise ValueError(
                f"beta: wanted a number > 0 or None for bandwidth={_shown(bandwidth)}, got the rule "
                f"{self.beta!r}; the scales come from the points"
            )
        beta = None if self.beta is None else _checks.positive("beta", self.beta)
        if isinstance(bandwidth, str) and bandwidth == "self-tuning":
            near = neighbor_count(self.n_neighbors, n)
            beta = 1.0 if beta is None else beta
            tuned = SelfTuningKernel(points, self.W, beta, near, threads)
            return tuned, BetaChoice(beta, "given", n)
        m = None if self.dimension is None else _checks.positive("dimension", self.dimension)
        weights: VariableKernel
        if isinstance(bandwidth, str):
            near = neighbor_count(self.n_neighbors, n)
            weights = DensityBandwidth(points, self.W, near, m, threads)
        else:
            weights = GivenBandwidth(points, self.W, bandwidth)
        return weights, weights.choose(beta, m)

    def _choice(self, points: Real) -> BetaChoice:
        beta = "median" if self.beta is None else self.beta
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
        """The fitted diffusion operator, (N, N); in double precision unless the bandwidth is global.

        With a variable bandwidth it is the chain before it is slowed down where the bandwidth is wide.
        """
        self._require_fitted("embedding_")
        fitted = self._fitted
        if fitted.graph is not None:
            raise ValueError(
                "operator_: wanted a map of all pairs, got one of neighbors; use sparse_operator_"
            )
        s, shift = fitted.weights.scores(), fitted.shift
        return softmax(s if shift is None else s.shift(rows=shift, columns=shift))

    @property
    def sparse_operator_(self) -> csr_array[Any]:
        """The fitted diffusion operator of ``neighbors``, as SciPy's sparse array (N, N)."""
        self._require_fitted("embedding_")
        fitted = self._fitted
        if fitted.graph is None:
            raise ValueError(
                "sparse_operator_: wanted a map of neighbors, got one of all pairs; use operator_"
            )
        return fitted.normalized(fitted.graph.scores())

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
        where, product, shares = self._extended(X)
        t = self._fitted.t
        if shares is not None:
            product = product / shares * self.eigenvalues_
        elif t < 1:
            self._refuse_zero_eigenvalues(f"transform with t={t:g} < 1")
            product, t = product / self.eigenvalues_, t + 1
        if shares is not None and t < 1:
            self._refuse_zero_eigenvalues(f"transform with t={t:g} < 1")
        out: Real = where.give(where.from_host(product * _powers(self.eigenvalues_, t - 1)))
        return self._as_asked(out, X)  # type: ignore[no-any-return]  # a data frame if that was asked for

    def eigenfunctions(self, X: npt.ArrayLike) -> Real:
        """:math:`\\psi_k(x) = \\lambda_k^{-1}\\sum_j P(x, x_j)\\psi_{jk}` at points X (m, d): Nyström.

        The division magnifies rounding errors too, so eigenvalues that are 0 up to rounding are refused.
        """
        where, product, shares = self._extended(X)
        if shares is None:
            self._refuse_zero_eigenvalues("eigenfunctions")
            shares = self.eigenvalues_
        out: Real = where.give(where.from_host(product / shares))
        return out

    def _extended(self, X: npt.ArrayLike) -> tuple[Backend, Real, Real | None]:
        """sum_j P(x, x_j) psi_jk, and its ratio to psi_k(x) if that is not the eigenvalue.

        A density of x itself is not needed, since it cancels in the normaliser of the row. The ratio is given
        for a variable bandwidth only, where it is 1 - (1 - lambda_k) rho(x)^2 / min rho^2.
        """
        self._require_fitted("embedding_")
        where = backend_of(X)
        X = where.here("X", X)
        points = self._points(X)
        self._same_features(X, points)
        points = points.astype(self.points_.dtype, copy=False)
        fitted, threads = self._fitted, resolve_threads(self.n_threads)
        scales = fitted.weights.scales_of(points, threads)
        if fitted.graph is not None:
            if not where.host_arrays:
                raise TypeError(
                    f"X: wanted points on the CPU for a map of neighbors, got some on {where.place}; copy X"
                )
            P = fitted.normalized(fitted.graph.cross(points, scales, threads))
            product = np.asarray(P @ self.eigenvectors_.astype(np.float64))
        else:
            s = where.visiting(fitted.weights.cross(points, scales))
            columns = fitted.shift
            A = softmax(s if columns is None else s.shift(columns=columns))
            vectors = self.eigenvectors_.astype(s.dtype, copy=False)
            product = A.apply(vectors, n_threads=self.n_threads)
        product = product.astype(points.dtype, copy=False)
        if not isinstance(fitted.weights, VariableKernel):
            return where, product, None
        assert scales is not None
        wide = ((scales / fitted.narrowest) ** 2)[:, None]
        shares = 1 - (1 - self.eigenvalues_.astype(np.float64)) * wide
        lost = np.abs(shares) <= math.sqrt(np.finfo(points.dtype).eps)
        if lost.any():
            row, k = np.unravel_index(int(np.argmax(lost)), lost.shape)
            raise ValueError(
                f"X: wanted points to which coordinate {k} can be extended, got point {row}, whose bandwidth "
                f"{scales[row]:.3g} is too wide for that; fit at most {k} components, or raise beta"
            )
        return where, product, shares.astype(points.dtype)

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

        i and j are indices of fitted points, and broadcast; without j, the distances from i to every point,
        (..., N). With all N - 1 components this is the distance of the t-step laws, see
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

        ``components``: which two, counted from 0. ``color``: a number for each point. ``ax``: the axes to
        draw on.
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
    """values ** t. Unless t is an integer, negative eigenvalues (of indefinite metrics) are refused."""
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


def _shown(bandwidth: object) -> str:
    if isinstance(bandwidth, str):
        return repr(bandwidth)
    return "a function" if callable(bandwidth) else "an array"
