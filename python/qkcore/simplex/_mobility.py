"""The softmax's Jacobian as the mobility of the simplex (EOT-2; EOT 2.2, H.1, J.2, L.2, L.3)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks, _config
from .._native import cpu
from ._softmax import Array, logits, plain_softmax

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]

_LARGEST, _TAIL, _SECOND, _THIRD, _NORM, _LEAST = range(6)


class Mobility:
    """How far p moves when logits do: :math:`J^\\tau = (\\mathrm{diag}(p) - pp^\\top)/\\tau` (EOT-2).

    J is the Jacobian of :math:`z \\mapsto p = \\mathrm{softmax}(z/\\tau)`: a small change of the logits by
    :math:`\\delta` moves p by :math:`J\\delta`. It is symmetric, positive semidefinite, maps constants
    to 0, and is formed by :meth:`to_numpy` only.

    p: one vector (V,) or a batch of rows (..., V) that sum to one, float32 or float64, *already taken
    at* temperature ``tau``; :meth:`from_logits` takes the softmax too. Rows are divided by their sum.

    ===================== ==============================================================================
    ``J @ v``             :math:`p \\odot (v - p\\cdot v)/\\tau`, O(V)
    ``operator_norm``     largest eigenvalue; at most :math:`1/2\\tau`, reached at (1/2, 1/2, 0, ...)
    ``frobenius_norm``    from three moments (H.1), arranged so that nothing cancels near a vertex
    ``mass_norm``         most mass (in l1) that moves if logits change by at most 1
    ``trace``             :math:`(1 - \\sum p_i^2)/\\tau`
    ``eigenvalues()``     all V, from the secular equation, O(V) each; they interlace p
    ``condition_number``  largest over smallest eigenvalue that is not 0
    ===================== ==============================================================================

    Results with one number per row have the shape of the batch. They are computed and returned in float64,
    whatever the dtype of p.

    >>> import numpy as np, qkcore as qk
    >>> J = qk.simplex.Mobility(np.array([0.5, 0.5, 0.0]), tau=0.5)
    >>> J.operator_norm, J.eigenvalues()
    (1.0, array([0., 0., 1.]))
    >>> J @ np.array([1.0, 0.0, 7.0])
    array([ 0.5, -0.5,  0. ])
    """

    def __init__(self, p: npt.ArrayLike, tau: float = 1.0) -> None:
        array = _checks.probabilities("p", p)
        mass = array.sum(axis=-1, keepdims=True, dtype=np.float64)
        if (np.abs(mass - 1) > 4 * np.finfo(array.dtype).eps).any():
            array = (array / mass).astype(array.dtype)
        self.p: Real = array
        self.tau = _checks.positive("tau", tau)

    @classmethod
    def from_logits(cls, z: npt.ArrayLike, tau: float = 1.0) -> Mobility:
        """The mobility at logits z: :math:`J^\\tau(z) = J(z/\\tau)/\\tau` (L.2)."""
        tau = _checks.positive("tau", tau)
        return cls(plain_softmax(logits("z", z), tau), tau)

    def __repr__(self) -> str:
        rows = "x".join(map(str, self.p.shape[:-1]))
        batch = f"{rows} rows, " if rows else ""
        norm = f"operator norm up to {np.max(self.operator_norm):.3g}"
        return f"Mobility({batch}V={self.p.shape[-1]}, tau={self.tau:g}, {norm})"

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., V, V)."""
        return (*self.p.shape, self.p.shape[-1])

    def __matmul__(self, v: npt.ArrayLike) -> Real:
        return self.apply(v)

    def apply(self, v: npt.ArrayLike) -> Real:
        """J v for every row: v (..., V) broadcasts against p, in p's dtype.

        The value at each row's largest probability is subtracted from v first. That does not change J v, and
        near a vertex, where J is tiny, it keeps the relative accuracy of every entry: with the differences
        d = v - v_top the error is a few V eps p (|d| + sum p |d|) / tau.
        """
        values = _checks.real_array("v", v)
        _checks.same_dtype("v", values, self.p.dtype, "p")
        _checks.shape(
            "v",
            values.shape,
            (..., self.p.shape[-1]),
            why="like p",
            do="the last axis runs over the entries of p",
        )
        shape = _checks.broadcast("v", self.p.shape[:-1], values.shape[:-1])
        _checks.finite("v", values)
        wide = np.broadcast_to(values, (*shape, values.shape[-1]))
        return mobility_product(np.broadcast_to(self.p, wide.shape), wide, self.tau)

    def to_numpy(self) -> Real:
        """The matrices themselves, (..., V, V)."""
        p = self.p
        out: Real = -p[..., :, None] * p[..., None, :]
        i = np.arange(p.shape[-1])
        out[..., i, i] += p
        out /= p.dtype.type(self.tau)
        return out

    # ---- one number per row ---------------------------------------------------------------------

    @cached_property
    def _moments(self) -> Double:
        return _rows(self.p, 0)

    @cached_property
    def _norms(self) -> Double:
        away, factor = _away_from_vertex(self.p)
        norms: Double = _rows(away, 1)[..., _NORM] * factor
        return norms

    @property
    def tail(self) -> Any:
        """Mass outside the largest entry, :math:`1 - \\max_i p_i`, as a sum (no cancellation)."""
        return _scalar(self._moments[..., _TAIL])

    @property
    def trace(self) -> Any:
        """Sum of the eigenvalues, :math:`(1 - \\sum_i p_i^2)/\\tau`."""
        m = self._moments
        return _scalar((m[..., _TAIL] * (1 + m[..., _LARGEST]) - m[..., _SECOND]) / self.tau)

    @property
    def frobenius_norm(self) -> Any:
        """Root of :math:`\\sum p^2 + (\\sum p^2)^2 - 2\\sum p^3` over tau (H.1).

        In this printed form the three moments cancel near a vertex (no digit is left at
        :math:`1 - p_{max} = 10^{-8}`). With :math:`m = p_{max}`, :math:`t = 1 - m` and the moments
        :math:`s_2, s_3` of all entries except the largest, the number under the root is
        :math:`m^2 t^2 + 2 m^2 s_2 + s_2 + s_2^2 - 2 s_3`, in which nothing cancels.
        """
        away, factor = _away_from_vertex(self.p)
        m = _rows(away, 0)
        top, tail, s2, s3 = (m[..., k] for k in (_LARGEST, _TAIL, _SECOND, _THIRD))
        square = (top * tail) ** 2 + 2 * top**2 * s2 + s2 + s2**2 - 2 * s3
        return _scalar(np.sqrt(square) * factor / self.tau)

    @property
    def operator_norm(self) -> Any:
        """Largest eigenvalue, from the secular equation; :math:`2p(1-p)/\\tau` for two tokens (L.3)."""
        return _scalar(self._norms / self.tau)

    @property
    def mass_norm(self) -> Any:
        """Bound of :math:`\\|J\\delta\\|_1` over :math:`\\|\\delta\\|_\\infty \\le 1`: mass that can move.

        It is :math:`\\max_S 4 P(S) (1 - P(S)) / \\tau` over sets S of entries. If the tail t is at most a
        half, this is exactly :math:`4 t (1-t)/\\tau`; otherwise the bound :math:`1/\\tau` is returned. Unlike
        the operator norm, which is 1/V for a uniform p, it does not vanish for spread-out rows.
        """
        t = np.minimum(self._moments[..., _TAIL], 0.5)
        return _scalar(4 * t * (1 - t) / self.tau)

    @cached_property
    def condition_number(self) -> Any:
        """Largest over smallest eigenvalue that is not 0; inf where J is 0 (a vertex).

        It is at most :math:`1/(2 p_{min})`, over the support. This is a bound and not an asymptote (J.3 3.):
        at :math:`(1-2\\epsilon, \\epsilon, \\epsilon)` the number tends to 3.
        """
        rows = _rows(_away_from_vertex(self.p)[0], 2)
        out = np.full(rows.shape[:-1], np.inf)
        np.divide(rows[..., _NORM], rows[..., _LEAST], out=out, where=rows[..., _LEAST] > 0)
        return _scalar(out)

    def eigenvalues(self, *, n_threads: int | None = None) -> Real:
        """All eigenvalues, ascending, (..., V), in p's dtype; to full relative accuracy in float64.

        With distinct values :math:`q_1 < \\dots < q_d` of the entries that are not 0, and their
        multiplicities :math:`m_k`, the eigenvalues are 0 for the constant vector and for every zero entry,
        :math:`q_k` exactly :math:`m_k - 1` times, and the root of

        .. math:: \\sum_k \\frac{m_k q_k}{q_k - \\lambda} = 0

        in each gap :math:`(q_k, q_{k+1})`. Roots are found by rational interpolation, O(d) each.

        >>> import numpy as np, qkcore as qk
        >>> qk.simplex.Mobility(np.full(4, 0.25)).eigenvalues()
        array([0.  , 0.25, 0.25, 0.25])
        """
        threads = _config.resolve_threads(n_threads)
        p = self.p.reshape(-1, self.p.shape[-1])
        away, factors = _away_from_vertex(p.astype(np.float64))
        found = [
            _row_eigenvalues(row, threads) * factor
            for row, factor in zip(away, factors, strict=True)
        ]
        out = np.stack(found) / self.tau
        return out.reshape(self.p.shape).astype(self.p.dtype)


def mobility_product(p: Array, v: Array, tau: float) -> Array:
    """J v for arrays of one shape (..., V), unchecked."""
    if p.ndim == 1:  # without the bookkeeping of a batch, several times faster for small V
        moved: Any = v - v[p.argmax()]
        moved -= p @ moved
    else:
        top = np.expand_dims(p.argmax(axis=-1), -1)
        moved = v - np.take_along_axis(v, top, axis=-1)
        moved -= np.einsum("...i,...i->...", p, moved)[..., None]
    moved *= p
    if tau != 1:
        moved /= p.dtype.type(tau)
    out: Array = moved
    return out


def _rows(p: Real, extremes: int) -> Double:
    """The engine's six numbers for every row; ``extremes`` is how many of the two eigenvalues it computes."""
    flat = p.reshape(-1, p.shape[-1])
    return cpu.mobility_rows(flat, extremes, _config.get_num_threads()).reshape(*p.shape[:-1], 6)


# If the tail is below this, J is to full accuracy the tail times a matrix that depends only on the
# proportions of the small entries. With the tail itself, squares and the solver's smallest numbers would
# underflow.
_VERTEX = 1e-60


def _away_from_vertex(p: Real) -> tuple[Real, Double]:
    """The rows with tiny tails enlarged in proportion, and factors that give J of the original rows."""
    at = np.expand_dims(p.argmax(axis=-1), -1)
    rest = np.array(p, np.float64)
    np.put_along_axis(rest, at, 0.0, axis=-1)
    tail = rest.sum(axis=-1)
    near = (tail > 0) & (tail < _VERTEX)
    factor = np.where(near, tail / _VERTEX, 1.0)
    if p.dtype != np.float64 or not near.any():
        return p, np.ones_like(factor)
    # The tail may be subnormal, so it is divided out before it is replaced.
    rest = rest / np.where(near, tail, 1.0)[..., None] * _VERTEX
    np.put_along_axis(rest, at, np.take_along_axis(p, at, axis=-1), axis=-1)
    return np.where(near[..., None], rest, p), factor


def _row_eigenvalues(p: Double, n_threads: int) -> Double:
    positive = p[p > 0] / p.sum()
    values, counts = np.unique(positive, return_counts=True)
    repeated = np.repeat(values, counts - 1)
    roots = (
        cpu.secular_roots(values, values * counts, n_threads)
        if len(values) > 1
        else np.zeros(0, np.float64)
    )
    zeros = np.zeros(len(p) - len(repeated) - len(roots))
    return np.concatenate([zeros, np.sort(np.concatenate([repeated, roots]))])


def _scalar(x: Double) -> Any:
    """A number for one vector, an array for a batch."""
    return float(x) if np.ndim(x) == 0 else x
