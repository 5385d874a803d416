"""Diffusion tensors a = sigma sigma^T: scalar, diagonal, full; constant or dependent on state and time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._arrays import Field, Float, count, field_values, float64

TensorLike = npt.ArrayLike | Field

_DIFFERENCE = float(np.finfo(np.float64).eps) ** (1 / 3)  # step of a central difference
_ASYMMETRY = 1e-10
_NEGATIVE = 1e-10


class DiffusionTensor:
    """One interface to every form of ``a`` in d dimensions.

    A number, a diagonal (d,), a matrix (d, d), or a function of (x, t) that returns one of these per
    point: (n,), (n, d) or (n, d, d).
    """

    def __init__(self, a: TensorLike, d: int, *, divergence: Field | None = None) -> None:
        self.d = d = count("d", d)
        self._field: Field | None = None
        self._constant: Float | None = None
        self._given_divergence = divergence
        if callable(a):
            self._field = a
            return
        constant = float64("a", a)
        _checks.shape(
            "a",
            constant.shape,
            (),
            (d,),
            (d, d),
            what="a number, a diagonal, a matrix or a function of (x, t): an array",
        )
        self._constant = constant
        _refuse_indefinite(constant[None] if constant.ndim else constant[None, None], 0.0)

    @property
    def constant(self) -> bool:
        """Whether ``a`` is the same everywhere and always (its divergence is then 0)."""
        return self._constant is not None

    def at(self, x: Float, t: float) -> Float:
        """Values per point, with a leading axis of n or 1: (., 1), (., d) or (., d, d)."""
        if self._constant is not None:
            return self._constant[None] if self._constant.ndim else self._constant[None, None]
        assert self._field is not None
        value = np.asarray(self._field(x, t), dtype=np.float64)
        n, d = x.shape
        _checks.shape(
            "a",
            value.shape,
            (n,),
            (n, d),
            (n, d, d),
            what="a function whose value is",
            why=f"for {n} points",
        )
        field_values("a", value, value.shape, t)
        value = value[:, None] if value.ndim == 1 else value
        _refuse_indefinite(value, t)
        return value

    def apply(self, x: Float, t: float, v: Float) -> Float:
        """a v, row by row."""
        a = self.at(x, t)
        return a * v if a.ndim == 2 else _times(a, v)

    def root(self, x: Float, t: float, xi: Float) -> Float:
        """sigma xi with the symmetric root, which semi-definite tensors have too."""
        a = self.at(x, t)
        if a.ndim == 2:
            return np.sqrt(np.maximum(a, 0.0)) * xi
        values, vectors = np.linalg.eigh(a)
        root = np.einsum("nij,nj,nkj->nik", vectors, np.sqrt(np.maximum(values, 0.0)), vectors)
        return _times(root, xi)

    def solve(self, x: Float, t: float, v: Float) -> Float:
        """a^-1 v, row by row; a singular tensor is an error that says where."""
        a = self.at(x, t)
        if a.ndim == 2:
            smallest, largest = a.min(axis=1), a.max(axis=1)
        else:
            values = np.linalg.eigvalsh(a)
            smallest, largest = values[:, 0], values[:, -1]
        bad = ~(smallest > 1e-14 * largest)
        if bad.any():
            k = int(np.argmax(bad))
            where = "" if self.constant else f" at point {k}"
            raise ValueError(
                f"a: wanted a positive definite tensor, got eigenvalues from {smallest[k]:.3g} to "
                f"{largest[k]:.3g}{where}; a^-1 does not exist: pass a + epsilon I (assumption 5.1), "
                "e.g. epsilon=1e-8 times its largest eigenvalue"
            )
        if a.ndim == 2:
            return v / a
        full = np.broadcast_to(a, (len(v), self.d, self.d))
        return np.asarray(np.linalg.solve(full, v[..., None])[..., 0], dtype=np.float64)

    def divergence(self, x: Float, t: float) -> Float:
        """(div a)_i = sum_j d a_ij / d x_j: as given, or by central differences."""
        n, d = x.shape
        if self._given_divergence is not None:
            return field_values("divergence", self._given_divergence(x, t), (n, d), t)
        out = np.zeros((n, d))
        if self._constant is not None:
            return out
        for j in range(d):
            step = _DIFFERENCE * np.maximum(1.0, np.abs(x[:, j]))
            ahead, behind = x.copy(), x.copy()
            ahead[:, j] += step
            behind[:, j] -= step
            slope = self.at(ahead, t) - self.at(behind, t)
            width = (ahead - behind)[:, j]
            if slope.ndim == 2:  # a_ij = 0 off the diagonal: only i = j is left
                out[:, j] += slope[:, min(j, slope.shape[1] - 1)] / width
            else:
                out += slope[:, :, j] / width[:, None]
        return out


def _times(a: Float, v: Float) -> Float:
    """Matrices (n or 1, d, d) times rows (n, d)."""
    if len(a) == 1:
        return np.asarray(v @ a[0].T)
    return np.asarray(np.einsum("nij,nj->ni", a, v))


def _refuse_indefinite(a: Float, t: float) -> None:
    """Symmetric and no eigenvalue below zero (singular is fine: the SDE has no noise there)."""
    if a.ndim == 2:
        lowest, scale = float(a.min()), float(np.abs(a).max())
    else:
        scale = float(np.abs(a).max())
        asymmetry = float(np.abs(a - np.swapaxes(a, 1, 2)).max())
        if asymmetry > _ASYMMETRY * scale:
            raise ValueError(
                f"a: wanted a symmetric tensor, got |a - a^T| up to {asymmetry:.3g} at t = {t:.6g}; "
                "pass sigma @ sigma.T"
            )
        lowest = float(np.linalg.eigvalsh(a).min())
    if lowest < -_NEGATIVE * max(scale, np.finfo(np.float64).tiny):
        raise ValueError(
            f"a: wanted a positive semi-definite tensor, got eigenvalue {lowest:.3g} at t = {t:.6g}; "
            "pass sigma @ sigma.T"
        )


def tensor(
    a: TensorLike | DiffusionTensor, d: int, divergence: Callable[..., npt.ArrayLike] | None = None
) -> DiffusionTensor:
    """A tensor in d dimensions; one that is made already passes."""
    if isinstance(a, DiffusionTensor):
        _checks.same_space("a", a.d, d, "the points")
        return a
    return DiffusionTensor(a, d, divergence=divergence)


def without_time(a: TensorLike | DiffusionTensor) -> TensorLike | DiffusionTensor:
    """Tensors of space alone are functions of x here; those of (x, t) are asked at t = 0."""
    if not callable(a) or isinstance(a, DiffusionTensor):
        return a
    from inspect import signature

    try:
        wanted = len(signature(a).parameters)
    except (TypeError, ValueError):  # builtins may hide their signature
        wanted = 2
    if wanted >= 2:
        return a
    alone = a
    return lambda x, t: alone(x)  # type: ignore[call-arg]
