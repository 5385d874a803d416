"""Drifts fitted to transitions: k nearest neighbours with Huber's loss, ridge, a network (EOT-6; EOT 6, H.1).

========================== =====================================================================
``transitions(logits)``    states and drifts :math:`L\\,\\Delta z` of a stack, as a regression problem
``KNNDrift``               local constant or linear fits, robust, k by leave-one-out
``RidgeDrift``             linear (or any features), the ridge by 5-fold cross-validation
``MLPDrift``               a small network on top of the ridge (needs the extra ``train``)
========================== =====================================================================

All are scikit-learn-style regressors, and drifts that :func:`qkcore.simplex.pf_ode` takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, _config
from ..simplex._softmax import logits as check_logits
from ..simplex._softmax import plain_softmax
from ._depth_budget import increments
from ._drift_network import MLPDrift
from ._regressor import Regressor

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]

__all__ = ["KNNDrift", "MLPDrift", "RidgeDrift", "transitions"]


def __dir__() -> list[str]:
    return list(__all__)


HUBER = 1.345  # times the median absolute deviation (H.1)
RIDGES = (1e-4, 1e-3, 1e-2)
_CHUNK = 2**22  # entries of the neighbours' arrays that are held at a time


def transitions(
    logits: npt.ArrayLike, *, tau: float = 1.0, state: str = "p", with_time: bool = True
) -> tuple[Double, Double]:
    """States X and drifts y of all rows of a stack (L + 1, ..., V): one pair per layer and row (EOT-6).

    ``y = L (z[l+1] - z[l])``, without its mean over the row, which the softmax does not see;
    X is p (or, with ``state="logits"``, tau log p), with the time l/L as last column unless
    ``with_time=False``. Stacks with masked entries have no drift there and are refused.

    >>> import numpy as np
    >>> from qkcore.diagnostics import drift
    >>> X, y = drift.transitions(np.zeros((4, 10, 3)))
    >>> X.shape, y.shape
    ((30, 4), (30, 3))
    """
    tau = _checks.positive("tau", tau)
    _checks.one_of("state", state, ("p", "logits"))
    z = check_logits("logits", logits).astype(np.float64)
    _checks.finite("logits", z)
    steps = [dz for _, dz in increments(z)]
    L, V = len(steps), z.shape[-1]
    y = L * np.stack(steps)
    y -= y.mean(axis=-1, keepdims=True)
    p = plain_softmax(z[:-1], tau)
    if state == "logits":
        p = tau * np.log(np.maximum(p, np.finfo(np.float64).tiny))
    X = p.reshape(-1, V)
    if with_time:
        times = np.repeat(np.arange(L) / L, len(X) // L)
        X = np.column_stack([X, times])
    return X, y.reshape(-1, V)


class KNNDrift(Regressor):
    """Local regression on the k nearest states, with Huber's loss against outliers (EOT-6, H.1).

    At a state x the neighbours' drifts are fitted by a constant (``degree=0``) or a linear function
    (``degree=1``) that minimises :math:`\\sum_i \\rho_\\delta(\\|r_i\\|)`, by reweighting, with
    :math:`\\delta` = ``huber`` times the median residual (1.345 MAD; None: least squares). Exact k-d trees.

    n_neighbors: k; None chooses it from ``candidates`` by leave-one-out on the training states (Huber
    loss of the left-out drifts, of ``n_loo`` states at most, evenly spaced; in ``loo_errors_``; choice in
    ``n_neighbors_``). degree: None takes 1 when k is at least twice the number of coefficients, else 0.

    >>> import numpy as np
    >>> from qkcore.diagnostics.drift import KNNDrift
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = KNNDrift(n_neighbors=12).fit(X, X @ np.array([[1.0, 0.0], [2.0, -1.0]]))
    >>> model.predict(np.array([[0.5, 0.5]])).round(6)
    array([[ 1.5, -0.5]])
    """

    def __init__(
        self,
        n_neighbors: int | None = None,
        candidates: Sequence[int] = (6, 12, 24, 48),
        degree: int | None = None,
        huber: float | None = HUBER,
        n_reweight: int = 30,
        n_loo: int = 1000,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.candidates = candidates
        self.degree = degree
        self.huber = huber
        self.n_reweight = n_reweight
        self.n_loo = n_loo

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> KNNDrift:
        """Keep the states X (n, d) and drifts y (n,) or (n, m), and choose k."""
        points, target = self._data(X, y)
        if self.huber is not None:
            _checks.positive("huber", self.huber)
        _checks.one_of("degree", self.degree, (0, 1, None), "local fits are low")
        _checks.integer_within("n_reweight", self.n_reweight, 1, 10**6, "reweight at least once")
        _checks.integer_within("n_loo", self.n_loo, 1, 10**9, "leave out at least one state")
        from scipy.spatial import cKDTree

        n = len(points)
        self._tree = cKDTree(points.astype(np.float64))
        self._target = target
        if self.n_neighbors is not None:
            k = _checks.integer_within(
                "n_neighbors", self.n_neighbors, 1, 10**9, "use one at least"
            )
            self.n_neighbors_ = min(k, n)
            return self
        tried = [
            _checks.integer_within("candidates", k, 1, 10**9, "positive counts")
            for k in self.candidates
        ]
        _checks.some("candidates", len(tried), 1, "count", "pass e.g. (6, 12, 24)")
        self.candidates_ = sorted({min(k, n - 1) for k in tried})
        self.loo_errors_ = self._leave_one_out()
        self.n_neighbors_ = self.candidates_[int(self.loo_errors_.argmin())]
        return self

    def predict(self, X: npt.ArrayLike) -> Real:
        """Drifts at states X (n, d): (n, m), or (n,) when y was."""
        points = self._queries(X)
        queries = points.astype(np.float64)
        index = self._nearest(queries, self.n_neighbors_)
        return self._shaped(self._local(queries, index), points)

    def _nearest(self, queries: Double, k: int) -> npt.NDArray[np.int64]:
        workers = _config.get_num_threads()
        _, index = self._tree.query(queries, k=[*range(1, k + 1)], workers=workers)
        return np.asarray(index, dtype=np.int64)

    def _leave_one_out(self) -> Double:
        every = np.asarray(self._tree.data, dtype=np.float64)
        left_out = np.unique(
            np.linspace(0, len(every) - 1, min(self.n_loo, len(every))).astype(np.int64)
        )
        states, target = every[left_out], self._target[left_out]
        most = self.candidates_[-1]
        index = self._nearest(states, most + 1)
        own = index == left_out[:, None]
        own[~own.any(axis=1), -1] = True  # more duplicates of it than neighbours were asked for
        others = index[~own].reshape(len(states), most)
        errors = np.stack(
            [
                np.linalg.norm(self._local(states, others[:, :k]) - target, axis=1)
                for k in self.candidates_
            ]
        )
        delta = (self.huber or HUBER) * float(np.median(errors, axis=1).min())
        if self.huber is None or delta == 0:
            return np.asarray((errors**2).mean(axis=1) / 2)
        return np.asarray(huber_loss(errors, delta).mean(axis=1))

    def _local(self, queries: Double, index: npt.NDArray[np.int64]) -> Double:
        """Robust fits at all queries from the neighbours that ``index`` (n, k) names."""
        k, d, m = index.shape[1], queries.shape[1], self._target.shape[1]
        degree = self.degree if self.degree is not None else int(k >= 2 * (d + 1))
        states = np.asarray(self._tree.data, dtype=np.float64)
        rows = max(1, _CHUNK // (k * (m + degree * d)))
        out = np.empty((len(queries), m))
        for at in range(0, len(queries), rows):
            part = slice(at, at + rows)
            near = index[part]
            offsets = states[near] - queries[part, None, :] if degree else None
            out[part] = _robust_fit(self._target[near], offsets, self.huber, self.n_reweight)
        return out


def huber_loss(r: Double, delta: float) -> Double:
    """:math:`r^2/2` up to delta, :math:`\\delta(|r| - \\delta/2)` beyond (H.1)."""
    size = np.abs(r)
    return np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))


def _robust_fit(
    values: Double, offsets: Double | None, huber: float | None, n_reweight: int
) -> Double:
    """The fits' values at their centres: values (n, k, m), offsets (n, k, d) for linear ones."""
    if huber is None:
        return _weighted_fit(values, offsets, np.ones(values.shape[:2]))[0]
    center = np.median(values, axis=1)
    fitted = np.broadcast_to(center[:, None, :], values.shape)
    for _ in range(n_reweight):
        size = np.linalg.norm(values - fitted, axis=2)
        delta = huber * np.median(size, axis=1, keepdims=True)
        weights = np.ones_like(size)
        np.divide(delta, size, out=weights, where=size > delta)
        # Where half of the residuals are 0 they decide; a floor keeps the others' equations solvable.
        new, fitted = _weighted_fit(values, offsets, np.maximum(weights, 1e-12))
        scale = np.abs(new).max(initial=0.0)
        if np.abs(new - center).max(initial=0.0) <= 1e-10 * scale:
            return new
        center = new
    return center


def _weighted_fit(values: Double, offsets: Double | None, weights: Double) -> tuple[Double, Double]:
    """Weighted least squares: the fit at the centres (n, m) and at the neighbours (n, k, m)."""
    total = weights.sum(axis=1, keepdims=True)
    mean = np.einsum("nk,nkm->nm", weights, values) / total
    if offsets is None:
        return mean, np.broadcast_to(mean[:, None, :], values.shape)
    middle = np.einsum("nk,nkd->nd", weights, offsets) / total
    x = offsets - middle[:, None, :]
    y = values - mean[:, None, :]
    normal = np.einsum("nk,nkd,nke->nde", weights, x, x, optimize=True)
    d = x.shape[2]
    # A trace of ridge: directions in which the neighbours do not differ get no slope.
    ridge = 1e-10 * np.trace(normal, axis1=1, axis2=2) / d + np.finfo(np.float64).tiny
    normal[:, range(d), range(d)] += ridge[:, None]
    slope = np.linalg.solve(normal, np.einsum("nk,nkd,nkm->ndm", weights, x, y, optimize=True))
    fitted = mean[:, None, :] + np.einsum("nkd,ndm->nkm", x, slope)
    return mean - np.einsum("nd,ndm->nm", middle, slope), fitted


class RidgeDrift(Regressor):
    """Ridge regression of drifts, with the ridge chosen by cross-validation (EOT-6; EOT 6).

    Minimises :math:`\\|y - \\phi(X) w - c\\|^2 + \\alpha\\|w\\|^2` (no 1/n, intercept unpenalised) for
    the alpha of least mean squared error over ``n_folds`` folds, shuffled once by ``random_state``.
    features: None for :math:`\\phi(x) = x`, or a function of the states (n, d) that gives (n, f).

    >>> import numpy as np
    >>> from qkcore.diagnostics.drift import RidgeDrift
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> RidgeDrift().fit(X, X @ np.array([1.0, -2.0]) + 3).predict(np.array([[1.0, 1.0]])).round(4)
    array([2.])
    """

    def __init__(
        self,
        alphas: Sequence[float] = RIDGES,
        n_folds: int = 5,
        features: Callable[[Real], Real] | None = None,
        random_state: int = 0,
    ) -> None:
        self.alphas = alphas
        self.n_folds = n_folds
        self.features = features
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> RidgeDrift:
        """Choose alpha (``alpha_``, errors in ``cv_errors_``) and fit all states with it."""
        points, target = self._data(X, y)
        alphas = [_checks.positive("alphas", a) for a in self.alphas]
        _checks.some("alphas", len(alphas), 1, "number", "pass e.g. (1e-4, 1e-3, 1e-2)")
        folds = min(
            _checks.integer_within("n_folds", self.n_folds, 2, 10**9, "split at least in two"),
            len(points),
        )
        phi = self._features(points)
        order = np.random.default_rng(self.random_state).permutation(len(points))
        errors = np.zeros(len(alphas))
        for held in np.array_split(order, folds):
            kept = np.setdiff1d(order, held)
            for k, (w, c) in enumerate(_ridge_path(phi[kept], target[kept], alphas)):
                errors[k] += ((phi[held] @ w + c - target[held]) ** 2).sum()
        self.cv_errors_ = errors / target.size
        self.alpha_ = alphas[int(errors.argmin())]
        self.coef_, self.intercept_ = _ridge_path(phi, target, [self.alpha_])[0]
        return self

    def predict(self, X: npt.ArrayLike) -> Real:
        """Drifts at states X (n, d): (n, m), or (n,) when y was."""
        points = self._queries(X)
        return self._shaped(self._features(points) @ self.coef_ + self.intercept_, points)

    def _affine(self) -> tuple[Double, Double] | None:
        """W and c of the drift X W + c; None where the features are a function of the states."""
        return None if self.features is not None else (self.coef_, self.intercept_)

    def _features(self, points: Real) -> Double:
        if self.features is None:
            return points.astype(np.float64)
        out = np.asarray(self.features(points), dtype=np.float64)
        _checks.shape("features", out.shape, (len(points), "f"), why="for these states")
        return out


def _ridge_path(x: Double, y: Double, alphas: Sequence[float]) -> list[tuple[Double, Double]]:
    """(weights, intercept) for every alpha from one singular value decomposition."""
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    u, s, vt = np.linalg.svd(x - x_mean, full_matrices=False)
    rotated = u.T @ (y - y_mean)
    out = []
    for alpha in alphas:
        w = vt.T @ ((s / (s**2 + alpha))[:, None] * rotated)
        out.append((w, y_mean - x_mean @ w))
    return out
