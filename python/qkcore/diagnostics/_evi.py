"""The discrete evolution variational inequality (eq 25) on Sinkhorn W2 (P3, EOT-12)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks, scores
from ..bridges import bridge
from ._arrays import Float, float64, points

__all__ = ["EVI", "evi", "sinkhorn_w2"]

_MOST_STEPS = (
    100_000  # laws that lie far apart on a line, as those of sinks, take some ten thousand
)


def sinkhorn_w2(
    p: npt.ArrayLike,
    q: npt.ArrayLike,
    support: npt.ArrayLike,
    *,
    epsilon: float | None = None,
    debiased: bool = True,
    tol: float = 1e-8,
    n_threads: int | None = None,
) -> Float:
    """The Sinkhorn surrogate of :math:`W_2^2` between laws on one support (EOT-12).

    ``p`` and ``q`` (..., n) laws, ``support`` (n,) positions or (n, d) points. The value is
    :math:`\\min_\\Pi \\langle \\Pi, |x - y|^2\\rangle + \\varepsilon\\,\\mathrm{KL}(\\Pi \\| p\\otimes q)`
    by :func:`qkcore.bridge`; ``debiased`` takes off the means of the self-terms, so that it vanishes
    when p = q and nowhere else. ``epsilon`` defaults to a hundredth of the mean squared distance of the
    support.

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> x = np.linspace(0, 1, 5)
    >>> p, q = np.eye(5)[0], np.eye(5)[3]
    >>> round(float(curvature.sinkhorn_w2(p, q, x)), 6)  # one point to another: 0.75 squared
    0.5625
    """
    x = float64("support", support)
    x = points("support", x[:, None] if x.ndim == 1 else x)
    a, b = float64("p", p), float64("q", q)
    for name, law in (("p", a), ("q", b)):
        _checks.shape(name, law.shape, (..., len(x)), what="laws", why="on the points of support")
    a, b = np.broadcast_arrays(a, b)
    lead = a.shape[:-1]
    a, b = (np.ascontiguousarray(v).reshape(-1, len(x)) for v in (a, b))
    if epsilon is None:
        spread = 2 * float(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean())
        eps = 0.01 * spread if spread > 0 else 1.0
    else:
        eps = _checks.positive("epsilon", epsilon)
    kernel = scores.distance(x, beta=1 / eps)

    def value(mu: Float, nu: Float) -> Float:
        out = np.empty(len(mu))
        for k in range(len(mu)):
            # Weights of 0 are left out: their potentials are infinite.
            i, j = mu[k] > 0, nu[k] > 0
            m, n = mu[k][i], nu[k][j]
            s = kernel if i.all() and j.all() else scores.distance(x[i], x[j], beta=1 / eps)
            m, n = m / m.sum(), n / n.sum()
            found = bridge(s, m, n, tol=tol, max_iter=_MOST_STEPS, n_threads=n_threads)
            if not found.converged:
                raise ArithmeticError(
                    f"Sinkhorn did not converge ({found.status}, error {found.error:.2e}); "
                    f"raise epsilon (now {eps:.3g})"
                )
            out[k] = eps * float(m @ (found.f - np.log(m)) + n @ (found.g - np.log(n)))
        return out

    cost = value(a, b)
    if debiased:
        cost = cost - 0.5 * (value(a, a) + value(b, b))
    return cost.reshape(lead)


@dataclass(frozen=True, eq=False)
class EVI:
    """Both sides of eq 25, layer by layer (layers, rows); the first layer has no predecessor."""

    w2: Float
    """Sinkhorn :math:`W_2^2` to the target, (layers, rows)"""
    progress: Float = field(repr=False)
    """left side: the change of w2 over :math:`2\\eta`, (layers - 1, rows)"""
    gap: Float = field(repr=False)
    """:math:`F(\\rho^{(\\ell)}) - F(\\rho^*)`, (layers - 1, rows)"""
    eta: float
    epsilon: float | None

    @property
    def drift(self) -> Float:
        """The smallest drift term with which eq 25 holds: progress + gap (negative: to spare)."""
        out: Float = self.progress + self.gap
        return out

    @property
    def contracting(self) -> float:
        """Share of steps that come nearer to the target."""
        return float((self.progress <= 0).mean())

    def __str__(self) -> str:
        return (
            f"EVI over {len(self.w2)} layers, {self.w2.shape[1]} rows: "
            f"{100 * self.contracting:.3g} % of steps come nearer; "
            f"W2^2 {self.w2[0].mean():.4g} -> {self.w2[-1].mean():.4g}; "
            f"drift needed: median {np.median(self.drift):.3g}, largest {self.drift.max():.3g}"
        )


def evi(
    rows: npt.ArrayLike,
    support: npt.ArrayLike,
    *,
    target: npt.ArrayLike | None = None,
    tau: float = 1.0,
    eta: float | None = None,
    epsilon: float | None = None,
    n_threads: int | None = None,
) -> EVI:
    """The discrete EVI with drift (eq 25, P3; EOT-12) of rows that pass through layers.

    ``rows`` (layers, n) or (layers, rows, n): laws on ``support`` (n,) or (n, d). ``target``:
    :math:`\\rho^*`, (n,) or (rows, n); by default the last layer. The objective is the free energy whose
    minimiser the target is, up to a constant
    :math:`F(\\rho) = \\tau\\,\\mathrm{KL}(\\rho\\,\\|\\,\\rho^*)`. ``eta`` defaults to one over the
    number of steps.

    >>> import numpy as np
    >>> from qkcore.diagnostics import curvature
    >>> s = np.linspace(0, 1, 5)[:, None]
    >>> rows = (1 - s) * np.array([0.6, 0.3, 0.1]) + s * np.array([0.2, 0.3, 0.5])  # a straight path
    >>> curvature.evi(rows, np.arange(3.0)).contracting
    1.0
    """
    P = float64("rows", rows)
    P = P[:, None] if P.ndim == 2 else P
    _checks.shape("rows", P.shape, ("layers", "rows", "n"))
    _checks.some("rows", len(P), 2, "layers")
    if (P < 0).any() or float(np.abs(P.sum(axis=-1) - 1).max()) > 1e-6:
        raise ValueError(
            "rows: wanted probabilities that sum to 1 along the last axis; normalise them"
        )
    goal = P[-1] if target is None else np.broadcast_to(float64("target", target), P.shape[1:])
    tau = _checks.positive("tau", tau)
    step = 1 / (len(P) - 1) if eta is None else _checks.positive("eta", eta)
    w2 = sinkhorn_w2(P, goal, support, epsilon=epsilon, n_threads=n_threads)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(P > 0, P * (np.log(P) - np.log(goal)), 0.0)
    gap = tau * terms.sum(axis=-1)
    return EVI(w2, np.diff(w2, axis=0) / (2 * step), gap[1:], step, epsilon)
