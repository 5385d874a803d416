"""The leading eigenvectors of a magnetic operator as an estimator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import _checks, scores
from .._backend import backend_of
from .._bandwidth import median_rule
from .._estimator import Transformer
from .._points import WLike
from ..diffusion._localized import effective_points, warn_of_parts
from ..operators import softmax
from ._build import density_normalized, metric_of
from ._hermitian import Complex
from ._operator import MagneticOperator
from ._phases import phases


class MagneticMap(Transformer):
    """Magnetic diffusion map: points as leading eigenvectors of :math:`\\tilde P` (DAC-6, eqs 37-40).

    The coordinates of point i are :math:`\\lambda_k^t\\psi_{ik}`, complex numbers: angles between
    coordinates show the direction that the antisymmetric part of W gives the data, absolute values its
    geometry. The first vector is kept, because it is constant only if the phases vanish; then the map is a
    diffusion map. Eigenvectors are orthonormal in the stationary law and turned so that their largest entry
    is positive, which makes results reproducible.

    Parameters (scikit-learn's conventions; all are arguments of the constructor):

    - ``n_components``: how many eigenvectors.
    - ``beta``: inverse temperature of :math:`e^{-\\beta D^2}`; None takes 1 / median of the squared
      distances between (at most 1000) different points.
    - ``W``: (d, d) or a pair of factors, None for the identity; ``gamma`` scales the phases.
    - ``metric``: "W", the symmetric part of W, or "euclidean".
    - ``alpha``: density normalisation, 0 (none) to 1.
    - ``t``: diffusion time, an integer >= 0.

    After ``fit``: ``eigenvalues_``, ``eigenvectors_``, ``embedding_``, ``beta_``, ``n_features_in_``,
    ``effective_points_`` (on how many points each coordinate is concentrated, see
    :class:`qkcore.diffusion.DiffusionMap`).

    ``fit`` warns with :class:`qkcore.diffusion.DisconnectedWarning` if the points fall into parts with no
    weights between them, or if a coordinate is nearly 0 except at a few points.

    Points may be on a device: the sums of weights are computed there, and complex products by the CPU engine
    from a copy of the points. The fitted arrays are NumPy arrays.

    >>> import numpy as np
    >>> from qkcore import magnetic
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> turn = np.array([[1.0, 0.3], [-0.3, 1.0]])
    >>> model = magnetic.MagneticMap(3, W=turn).fit(X)
    >>> model.embedding_.shape, model.embedding_.dtype
    ((200, 3), dtype('complex128'))
    >>> bool(np.allclose(model.transform(X), model.embedding_))
    True
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        beta: float | None = None,
        W: WLike = None,
        gamma: float = 1.0,
        metric: str = "W",
        alpha: float = 0.0,
        t: int = 1,
    ) -> None:
        self.n_components = n_components
        self.beta = beta
        self.W = W
        self.gamma = gamma
        self.metric = metric
        self.alpha = alpha
        self.t = t

    def fit(self, X: npt.ArrayLike, y: object = None) -> MagneticMap:
        """Find the leading eigenvectors for points X (n, d); y is ignored."""
        return self._fit(X, 3)

    def _fit(self, X: npt.ArrayLike, stacklevel: int) -> MagneticMap:
        where = backend_of(X)
        X = where.here("X", X)
        points = self._points(X).copy()  # a copy, with which transform compares new points
        k = _checks.integer_within(
            "n_components", self.n_components, 1, len(points), "at most one per point"
        )
        steps = _checks.integer("t", self.t)
        if steps < 0:
            raise ValueError(f"t: wanted a number of steps, 0 or more, got {steps}")
        angles = where.visiting(phases(points, self.W, self.gamma))
        W = metric_of(self.W, self.metric)
        beta = self.beta
        if beta is None:
            beta = median_rule(points, W).beta or 1.0  # equal points give the same with any beta
        plain = where.visiting(scores.distance(points, W=W, beta=beta))
        s, shift = density_normalized(plain, self.alpha)
        P = MagneticOperator(softmax(s), angles)
        values, vectors = P.spectrum(k)
        self.beta_ = float(beta)
        self.eigenvalues_ = values
        self.eigenvectors_ = vectors
        self.embedding_: Complex = vectors * values**steps
        self._learn_features(X, points)
        # transform uses these, so that parameters changed after fit do not matter to it (except t).
        self._fitted = points, shift, W, (self.W, self.gamma)
        law = P.stationary()
        self.effective_points_ = effective_points(law, vectors)
        warn_of_parts(
            type(self).__name__,
            values,
            vectors,
            law,
            f"Leave outliers out, lower beta (now {self.beta_:.3g}), or map large parts one by one",
            stacklevel,
            with_constant=False,
        )
        return self

    def fit_transform(self, X: npt.ArrayLike, y: object = None) -> Complex:
        """Fit and give the coordinates of X, (n, n_components)."""
        found: Complex = self._as_asked(self._fit(X, 3).embedding_, X)
        return found

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:
        """The names of the coordinates, for scikit-learn's pipelines."""
        self._require_fitted("embedding_")
        return np.array([f"magneticmap{k}" for k in range(self.embedding_.shape[1])], dtype=object)

    def transform(self, X: npt.ArrayLike) -> Complex:
        """The coordinates of points X (m, d), new ones too, by Nyström's extension.

        :math:`\\psi_k(x) = \\lambda_k^{-1}\\sum_j P(x, x_j)e^{i\\Theta(x, x_j)}\\psi_{jk}`.
        """
        self._require_fitted("embedding_")
        where = backend_of(X)
        X = where.here("X", X)
        points = self._points(X)
        old, shift, W, turn = self._fitted
        self._same_features(X, points)
        points = points.astype(old.dtype, copy=False)
        s = where.visiting(scores.distance(points, old, W=W, beta=self.beta_))
        if shift is not None:  # the factor of a new point cancels in the softmax
            s = s.shift(columns=shift)
        angles = where.visiting(phases(points, *turn, Y=old))
        P = MagneticOperator(softmax(s), angles)
        values, steps = self.eigenvalues_, _checks.integer("t", self.t)
        if steps == 0:
            lost = np.abs(values) <= 100 * np.finfo(values.dtype).eps
            if lost.any():
                raise ValueError(
                    f"transform: eigenvalue {int(np.argmax(lost))} is 0 to rounding and its vector "
                    "cannot be extended; fit fewer components, or take t >= 1"
                )
        moved: Complex = self._as_asked((P @ self.eigenvectors_) * values ** float(steps - 1), X)
        return moved
