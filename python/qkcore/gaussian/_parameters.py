"""The parameters Q, K, V of a Gaussian flow: checks, heads, batch axes, and matrices made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._lazy_scores import Real

KINDS = ("softmax", "l2", "sinkhorn", "linear", "linear_epsilon")


@dataclass(frozen=True)
class Parameters:
    """One attention field: heads' queries, keys (..., heads, k, d) and values (..., heads, d, d)."""

    kind: str
    Q: Real
    K: Real
    V: Real
    epsilon: float

    @property
    def d(self) -> int:
        return int(self.V.shape[-1])

    @property
    def heads(self) -> int:
        return int(self.V.shape[-3])

    @cached_property
    def A(self) -> Real:
        """:math:`A = K^\\top Q` of every head, (..., heads, d, d)."""
        out: Real = self.K.swapaxes(-1, -2) @ self.Q
        return out

    @property
    def batch(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.Q.shape[:-3], self.K.shape[:-3], self.V.shape[:-3])

    def square(self) -> tuple[Real, Real]:
        """Q and K as d x d matrices of each head with the same :math:`K^\\top K` and :math:`K^\\top Q`."""
        Q, K = np.broadcast_arrays(self.Q, self.K)
        k = K.shape[-2]
        if k > self.d:
            basis, K = np.linalg.qr(K)
            Q = basis.swapaxes(-1, -2) @ Q
        elif k < self.d:
            rows = [(0, 0)] * (K.ndim - 2) + [(0, self.d - k), (0, 0)]
            Q, K = np.pad(Q, rows), np.pad(K, rows)
        return Q, K


def check_parameters(
    kind: object,
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    V: npt.ArrayLike,
    *,
    d: int,
    dtype: np.dtype[Any],
    epsilon: object = 1.0,
    heads: object = 1,
) -> Parameters:
    _checks.one_of("kind", kind, KINDS, "other fields do not keep laws Gaussian")
    for name, given in (("Q", Q), ("K", K), ("V", V)):
        if callable(given):
            raise TypeError(
                f"{name}: wanted a constant matrix, got a function; parameters are constant within one call "
                f"of qk.gaussian: cut the time into layers, and start each with {name}(t) from the last mean "
                "and covariance of the layer before; flows of particles accept functions (qk.AttentionField)"
            )
    n_heads = _checks.count("heads", heads, do="pass heads=1 for a single head")
    q, k = (_matrix(name, value, d, dtype) for name, value in (("Q", Q), ("K", K)))
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"K: wanted as many rows as Q, got shapes {k.shape} and {q.shape}; "
            "queries and keys are compared row by row"
        )
    rows = q.shape[-2]
    if rows % n_heads:
        raise ValueError(
            f"heads: wanted a divisor of the {rows} rows of Q and K, got {n_heads}; "
            "the heads' matrices are stacked row by row (TPDE eq 2.9)"
        )
    q, k = (x.reshape(*x.shape[:-2], n_heads, rows // n_heads, d) for x in (q, k))
    v = _checks.real_array("V", V)
    _checks.same_dtype("V", v, dtype, "cov")
    wanted = f"(..., {d}, {d})" if n_heads == 1 else f"({d}, {d}) or (..., {n_heads}, {d}, {d})"
    if (
        v.ndim < 2
        or v.shape[-2:] != (d, d)
        or (n_heads > 1 < v.ndim - 1 and v.shape[-3] != n_heads)
    ):
        raise ValueError(
            f"V: wanted shape {wanted}, got {v.shape}; it maps the space of the tokens into itself"
        )
    _checks.finite("V", v)
    if n_heads == 1 or v.ndim == 2:
        v = np.repeat(v[..., None, :, :], n_heads, axis=-3)
    eps = _checks.representable("epsilon", _checks.positive("epsilon", epsilon), dtype)
    found = Parameters(str(kind), q, k, v, eps)
    _checks.broadcast(
        "Q, K, V", q.shape[:-3], _checks.broadcast("K, V", k.shape[:-3], v.shape[:-3])
    )
    return found


def _matrix(name: str, value: npt.ArrayLike, d: int, dtype: np.dtype[Any]) -> Real:
    array = _checks.real_array(name, value)
    _checks.same_dtype(name, array, dtype, "cov")
    _checks.shape(
        name,
        array.shape,
        (..., "k", d),
        why=f"for tokens of dimension {d}",
        do="it multiplies a token from the left",
    )
    _checks.not_empty(name, array)
    _checks.finite(name, array)
    return array


def check_law(mean: npt.ArrayLike | None, cov: npt.ArrayLike) -> tuple[Real, Real]:
    """mean (..., d), zero when None, and cov (..., d, d), of one dtype."""
    sigma = _checks.covariances("cov", cov)
    d = sigma.shape[-1]
    if mean is None:
        return np.zeros(d, sigma.dtype), sigma
    alpha = _checks.real_array("mean", mean)
    _checks.same_dtype("mean", alpha, sigma.dtype, "cov")
    _checks.shape(
        "mean", alpha.shape, (..., d), why=f"as cov has {d} rows", do="pass mean=None for 0"
    )
    _checks.not_empty("mean", alpha)
    _checks.finite("mean", alpha)
    _checks.broadcast("cov", alpha.shape[:-1], sigma.shape[:-2])
    return alpha, sigma
