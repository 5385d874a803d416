"""The derivative of self-attention as a map of its particles, in O(n d) memory (MTA-3).

With :math:`y_i = \\sum_j p_{ij} v_j`, a change of the particles changes scores by :math:`\\dot s` and values
by :math:`\\dot v`, and

.. math:: \\dot y_i = \\sum_j p_{ij}\\dot v_j + \\sum_j p_{ij}(\\dot s_{ij} - \\bar{\\dot s}_i) v_j,
    \\qquad \\bar{\\dot s}_i = \\sum_j p_{ij}\\dot s_{ij}.

Scores are products of features of row and column, so :math:`\\dot s = \\dot R C^T + R\\dot C^T`. They and the
weights are computed by tiles that stay in the cache, and no n by n array is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._config import resolve_threads
from .._lazy_scores import Real
from .._native import cpu
from ._kernels import AttentionKernel, kernel_argument, softmatch
from ._measure import Measure, as_measure

__all__ = ["AttentionJacobian", "LocalConstant"]

Vector = npt.NDArray[np.float64]

_LANCZOS_STEPS = 24
_ALL_COLUMNS = 256


@dataclass(frozen=True)
class LocalConstant:
    """A norm of the Jacobian. ``value`` is what one direction attains, so the norm is at least that."""

    value: float
    products: int
    """number of products with the Jacobian or its transpose that were needed"""
    residual: float
    """relative residual of the singular pair (0 for the l1 norm, which is a maximum over columns)"""
    converged: bool


class AttentionJacobian:
    """The Jacobian of :math:`X \\mapsto (A_{m(X)}(x_i))_i` at a measure, never formed.

    ``apply`` multiplies it by directions (n, d) and gives (n, d'); ``transpose`` multiplies its transpose.
    The particles move and their weights do not. For kernels with a dot-product or Gaussian potential and a
    linear lookup.

    >>> import numpy as np
    >>> from qkcore.measure import AttentionJacobian, AttentionKernel, DotPotential
    >>> J = AttentionJacobian(AttentionKernel(DotPotential()), np.zeros((4, 2)))
    >>> J.apply(np.ones((4, 2)))[0]  # at the origin attention is the mean
    array([1., 1.])
    >>> round(J.spectral_norm().value, 12)
    1.0
    """

    def __init__(self, kernel: AttentionKernel, X: Measure | npt.ArrayLike) -> None:
        kernel_argument(kernel)
        self.kernel = kernel
        self.measure = as_measure("X", X)
        if kernel.projection != "dirac":
            raise ValueError('kernel: wanted projection="dirac", which has a Jacobian of points')
        x = self.measure.points
        self._rows = kernel.potential.row_features(x)
        self._columns = kernel.potential.column_features(x)
        self._values = kernel.values.values(x)
        with np.errstate(divide="ignore"):
            self._shift = self.measure.log_weights

    @property
    def shape(self) -> tuple[int, int]:
        """(n d', n d), the shape of the Jacobian as a matrix on flattened particles."""
        return (self._values.size, self.measure.points.size)

    @cached_property
    def _normalizer(self) -> Real:
        # The features leave out terms that depend on the row alone, so for Gaussian scores this is not the
        # normaliser of the scores themselves. It takes one pass over dot products of the features.
        from ..scores import dot

        s = dot(np.ascontiguousarray(self._rows), np.ascontiguousarray(self._columns))
        return s.shift(columns=self._shift).logsumexp()

    @cached_property
    def _factors(self) -> tuple[Real, ...]:
        """The arrays that the compiled products read: features, log weights, normaliser, values, outputs."""
        outputs = self.kernel(self.measure).attend(self.measure.points)
        arrays = (
            self._rows,
            self._columns,
            self._shift,
            self._normalizer,
            self._values,
            outputs,
        )
        return tuple(np.ascontiguousarray(a) for a in arrays)

    def apply(self, direction: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """J times a direction (n, d), as (n, d')."""
        x = self.measure.points
        dx = _checks.real_array("direction", direction)
        _checks.shape("direction", dx.shape, x.shape, why="as the points")
        _checks.same_dtype("direction", dx, x.dtype, "the points")
        potential = self.kernel.potential
        # dR C^T + R dC^T is computed as one product of twice the inner length.
        left = np.hstack([potential.row_push(x, dx), self._rows])
        right = np.hstack([self._columns, potential.column_push(x, dx)])
        d_values = np.ascontiguousarray(self.kernel.values.push(x, dx))
        return cpu.attention_push(self._factors, left, right, d_values, resolve_threads(n_threads))

    def transpose(self, cotangent: npt.ArrayLike, *, n_threads: int | None = None) -> Real:
        """J^T times (n, d'), as (n, d)."""
        x = self.measure.points
        u = _checks.real_array("cotangent", cotangent)
        _checks.shape("cotangent", u.shape, (len(x), self._values.shape[1]), why="as the output")
        _checks.same_dtype("cotangent", u, x.dtype, "the points")
        to_rows, to_columns, to_values = cpu.attention_pull(
            self._factors, np.ascontiguousarray(u), resolve_threads(n_threads)
        )
        potential = self.kernel.potential
        out: Real = (
            potential.row_pull(x, to_rows)
            + potential.column_pull(x, to_columns)
            + self.kernel.values.pull(x, to_values)
        )
        return out

    def to_numpy(self) -> Real:
        """The Jacobian as a matrix (n d', n d), by n d products: only for small problems."""
        n, d = self.measure.points.shape
        out = np.empty(self.shape, self.measure.dtype)
        for k in range(n * d):
            e = np.zeros(n * d, self.measure.dtype)
            e[k] = 1
            out[:, k] = self.apply(e.reshape(n, d)).reshape(-1)
        return out

    def spectral_norm(self, *, tol: float = 1e-3, max_products: int = 200) -> LocalConstant:
        """The largest singular value: the local Lipschitz constant in the Euclidean (Frobenius) norm.

        Lanczos on :math:`J^T J`, started again from the best vector after every 24 steps, so that at most 24
        directions are stored. It stops when the value has changed by less than ``tol`` (relative) over
        three steps. The estimate approaches the norm from below and never exceeds it.
        """
        rtol = _checks.positive("tol", tol)
        limit = _checks.integer_within("max_products", max_products, 4, 2**31, "products")
        shape, dtype = self.measure.points.shape, self.measure.dtype
        count = 0

        def gram(v: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            nonlocal count
            count += 2
            inner = self.apply(v.reshape(shape).astype(dtype))
            return self.transpose(inner).reshape(-1).astype(np.float64)

        vector = np.random.default_rng(0).normal(size=self.shape[1])
        vector /= np.linalg.norm(vector)
        history: list[float] = []
        converged = False
        while not converged and count < limit - 2:
            steps = max(1, min(_LANCZOS_STEPS, len(vector), (limit - count - 2) // 2))
            vector, values, exhausted = _lanczos(gram, vector, steps, rtol, history)
            history += values
            converged = exhausted or _settled(history, rtol)
        image = gram(vector)
        top = float(vector @ image)  # a Rayleigh quotient
        residual = float(np.linalg.norm(image - top * vector)) / top if top > 0 else 0.0
        return LocalConstant(max(top, 0.0) ** 0.5, count, residual, converged)

    def w1_norm(self, *, max_steps: int = 8) -> LocalConstant:
        """The local constant in W1: the largest
        :math:`\\sum_i w_i\\|\\dot y_i\\|_1 / \\sum_i w_i\\|\\dot x_i\\|_1`.

        For small moves of the particles the identity is the best coupling, so this is the local
        contraction coefficient. It is a maximum over n d columns. Up to 256 of them, all are computed. Of
        more, Hager's ascent finds a large one; it starts from the uniform direction, a random one and the two
        particles that receive most attention relative to their weight. Its value never exceeds the norm
        and is seldom far below it.
        """
        w = self.measure.weights
        n, d = self.measure.points.shape
        if n * d <= _ALL_COLUMNS:
            return LocalConstant(self._all_columns(), n * d, 0.0, True)
        dtype = self.measure.dtype
        live = w > 0
        inverse = np.where(live, 1 / np.where(live, w, 1), 0).astype(dtype)[:, None]
        points = np.ascontiguousarray(self.measure.points)
        received = softmatch(self.kernel.potential, points, self.measure).apply_left(w)
        leading = np.argsort(received * inverse[:, 0])[::-1][:2]
        uniform = np.full((n, d), 1 / (n * d), dtype)
        random = np.random.default_rng(0).random((n, d)).astype(dtype)
        starts = [uniform, random / random.sum()]
        for particle in leading:
            at = np.zeros((n, d), dtype)
            at[particle] = 1 / d
            starts.append(at)
        best, count = 0.0, 0
        for x in starts:
            own = 0.0
            for _ in range(max_steps):
                y = self.apply(inverse * x) * w[:, None]
                value = float(np.abs(y).sum())
                grown, own = value > own * (1 + 1e-12), max(own, value)
                z = inverse * self.transpose(np.where(y >= 0, 1, -1).astype(dtype) * w[:, None])
                count += 2
                k = int(np.abs(z).argmax())
                if abs(float(z.reshape(-1)[k])) <= float((z * x).sum()) * (1 + 1e-9) or not grown:
                    break
                x = np.zeros((n, d), dtype)
                x.reshape(-1)[k] = 1
            best = max(best, own)
        return LocalConstant(best, count, 0.0, True)

    def _all_columns(self) -> float:
        w = self.measure.weights.astype(np.float64)
        J = np.abs(self.to_numpy().astype(np.float64))
        sums = np.repeat(w, self._values.shape[1]) @ J
        per = np.repeat(w, self.measure.dim)
        live = per > 0
        return float((sums[live] / per[live]).max())


def _settled(values: list[float], tol: float) -> bool:
    """Whether the largest eigenvalue changed by at most 2 tol over three steps, hence its root by tol."""
    return len(values) > 3 and abs(values[-1] - values[-4]) <= 2 * tol * abs(values[-1])


def _lanczos(
    apply: Callable[[Vector], Vector], start: Vector, steps: int, tol: float, earlier: list[float]
) -> tuple[Vector, list[float], bool]:
    """The leading Ritz vector, the Ritz values on the way, and whether the space was exhausted."""
    basis = [start]
    diagonal: list[float] = []
    beside: list[float] = []
    found: list[float] = []
    for _ in range(steps):
        w = apply(basis[-1])
        diagonal.append(float(w @ basis[-1]))
        for _ in range(2):  # orthogonalising twice is enough for rounding errors
            for q in basis:
                w -= (q @ w) * q
        norm = float(np.linalg.norm(w))
        tri = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(tri)
        found.append(float(values[-1]))
        exhausted = norm <= 1e-12 * max(abs(values[-1]), 1e-300)
        if exhausted or _settled(earlier + found, tol) or len(diagonal) == steps:
            best = np.zeros_like(start)
            for c, q in zip(vectors[:, -1], basis, strict=True):
                best += c * q
            return best / np.linalg.norm(best), found, exhausted
        beside.append(norm)
        basis.append(w / norm)
    raise AssertionError("unreachable")


def query_jacobians(kernel: AttentionKernel, mu: Measure, Q: Real) -> Real:
    """:math:`\\partial_q Attention(q, K, V)` for queries (m, d), as (m, d', d)."""
    potential = kernel.potential
    columns = potential.column_features(mu.points)
    values = kernel.values.values(mu.points)
    d = Q.shape[1]
    out = np.empty((len(Q), values.shape[1], d), Q.dtype)
    P = softmatch(potential, Q, mu).to_numpy()
    mean = P @ values
    for i, p in enumerate(P):
        covariance = ((values - mean[i]) * p[:, None]).T @ columns  # (d', r)
        push = potential.row_push(np.repeat(Q[i : i + 1], d, axis=0), np.eye(d, dtype=Q.dtype))
        out[i] = covariance @ push.T
    return out
