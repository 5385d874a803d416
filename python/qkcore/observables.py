"""Figures of a flow of particles: radius, clusters, energies, distances, stability (TPDE-2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, scores
from ._checks import Real
from ._checks import particles as checks
from ._growth import VBound, grown
from ._host import HOST
from ._native import cpu
from ._transport import METHODS, conditional_wasserstein, wasserstein
from .bridges import bridge
from .fields import AttentionField
from .flows import flow

__all__ = [
    "AngleStatistics",
    "Clusters",
    "MeanFieldConvergence",
    "Stability",
    "angles",
    "clusters",
    "conditional_wasserstein",
    "field_lipschitz_bound",
    "interaction_energy",
    "mean_field_convergence",
    "radius",
    "radius_bound",
    "sinkhorn_energy",
    "stability",
]


def __dir__() -> list[str]:
    return list(__all__)


_BOUNDED = ("softmax", "l2", "sinkhorn", "sigmoid")


# ---- radius -------------------------------------------------------------------------------------


def radius(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The largest distance of a particle from 0, for each state of x (..., N, d)."""
    array, _ = _checks.points("x", x)
    size = max(float(np.abs(array).max()), 1e-300)  # divided by, so that squares do not overflow
    return np.asarray(size * np.sqrt(((array.astype(np.float64) / size) ** 2).sum(-1)).max(-1))


def radius_bound(
    field: AttentionField,
    R0: float,
    t: npt.ArrayLike,
    t0: float = 0.0,
    *,
    V_bound: VBound = None,
) -> npt.NDArray[np.float64]:
    r""":math:`R(t) = R_0\exp\int_{t_0}^t \|V(s)\|_2\,ds` (TPDE-2, theorems 3.1 and 3.4).

    Particles that start within R0 of 0 stay within R(t). With several heads :math:`\|V\|` stands for
    :math:`\sum_h\|V_h\|` (lemma B.4), and for sinkhorn for :math:`\|V\|/\varepsilon`. Only softmax, l2,
    sinkhorn and sigmoid have such a bound; for other kinds this function raises an error.

    The integral is exact for a constant V and for layers. If V is a function of t, only samples of it are
    known. The integral is then the result of adaptive quadrature plus its error estimate, and at least the
    value that 4096 random samples give. An error is raised if the two contradict each other, or if V changes
    too fast. Even so, a peak of V between all samples would be missed. ``V_bound`` turns the result into a
    proof: it is a number, or a function (a, b) that returns an upper bound of
    :math:`\sum_h\|V_h(s)\|_2` for all s in [a, b].

    >>> import numpy as np, qkcore as qk
    >>> f = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=2 * np.eye(2))
    >>> bool(qk.observables.radius_bound(f, 1.0, 0.5) == np.exp(1.0))
    True
    """
    _attention(field)
    _checks.one_of(
        "field.kind", field.kind, _BOUNDED, "no other kind has a radius bound (TPDE 3.1)"
    )
    R0 = _checks.positive("R0", R0)
    t0, ends = _checks.number("t0", t0), _checks.doubles("t", t)
    if (ends < t0).any():
        raise ValueError(f"t: wanted times from t0 = {t0} on, got {ends.min()}")
    with np.errstate(over="ignore"):  # inf is a bound too
        return np.asarray(R0 * np.exp(grown(field, t0, ends, V_bound)))


def _attention(field: object) -> None:
    _checks.instance("field", field, AttentionField, "an AttentionField")


# ---- clusters and angles ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters by single linkage at a given threshold."""

    count: int
    sizes: npt.NDArray[np.int64]
    """largest first"""
    labels: npt.NDArray[np.int64] = field(repr=False)
    """(N,): the number of each particle's cluster, from 0, in the order of the clusters' first particles"""
    threshold: float
    """particles at this distance or nearer are joined"""


def clusters(X: npt.ArrayLike, threshold: float) -> Clusters:
    """The clusters of particles, where two particles are joined if at most ``threshold`` apart.

    These are the connected components of that relation (single linkage).

    >>> import numpy as np, qkcore as qk
    >>> qk.observables.clusters(np.array([[0.0], [0.1], [5.0]]), 0.2)
    Clusters(count=2, sizes=array([2, 1]), threshold=0.2)
    """
    cloud = checks.one_cloud("X", X)
    threshold = _checks.positive("threshold", threshold)
    labels = cpu.cluster_labels(cloud, threshold)
    sizes = np.bincount(labels)
    return Clusters(len(sizes), np.sort(sizes)[::-1], labels, threshold)


@dataclass(frozen=True)
class AngleStatistics:
    """Cosines of the angles between all pairs of distinct particles."""

    mean: float
    std: float
    smallest: float
    largest: float
    aligned: float
    """fraction of pairs with a cosine of at least ``tolerance``"""
    tolerance: float


def angles(X: npt.ArrayLike, tolerance: float = 0.99) -> AngleStatistics:
    """Statistics of the cosines of the angles between all pairs, as seen from 0.

    The memory is O(N). A particle at 0 raises an error, because it has no direction.

    >>> import numpy as np, qkcore as qk
    >>> a = qk.observables.angles(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
    >>> a.mean, a.smallest
    (-0.3333333333333333, -1.0)
    """
    cloud = checks.one_cloud("X", X).astype(np.float64)
    n = len(cloud)
    _checks.some("X", n, 2, "particles")
    tolerance = _checks.number("tolerance", tolerance)
    norms = np.linalg.norm(cloud, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError("X: wanted particles away from 0, got one at 0, which has no direction")
    u = cloud / norms
    total = squares = 0.0
    low, high, count = math.inf, -math.inf, 0
    for start in range(0, n, 256):
        block = np.clip(u[start : start + 256] @ u.T, -1.0, 1.0)
        pairs = block[np.arange(n) > np.arange(start, start + len(block))[:, None]]
        if pairs.size:
            total += float(pairs.sum())
            squares += float((pairs**2).sum())
            low, high = min(low, float(pairs.min())), max(high, float(pairs.max()))
            count += int((pairs >= tolerance).sum())
    m = n * (n - 1) / 2
    mean = total / m
    return AngleStatistics(
        mean, math.sqrt(max(0.0, squares / m - mean**2)), low, high, count / m, tolerance
    )


# ---- energies -----------------------------------------------------------------------------------


def interaction_energy(
    X: npt.ArrayLike, A: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> float:
    r""":math:`\mathcal F(\mu) = \frac12\iint e^{Ax\cdot y}\,d\mu(x)\,d\mu(y)` (TPDE 5.4).

    The softmax flow decreases it when A is symmetric and :math:`B = -VA^{-\top}` is symmetric positive
    definite. The paper does not require A to be symmetric, but this is needed; see docs/errata.

    >>> import numpy as np, qkcore as qk
    >>> qk.observables.interaction_energy(np.zeros((3, 2)), np.eye(2))
    0.5
    """
    cloud = checks.one_cloud("X", X)
    d = cloud.shape[1]
    matrix = _checks.real_array("A", A).astype(cloud.dtype)
    _checks.shape("A", matrix.shape, (d, d), do="A = K.T @ Q")
    w = _weights(weights, len(cloud))
    with np.errstate(divide="ignore"):
        log_w = np.log(w).astype(cloud.dtype)
    rows = scores.dot(cloud, W=np.ascontiguousarray(matrix.T)).shift(columns=log_w).logsumexp(1)
    return 0.5 * float(np.dot(w, np.exp(rows.astype(np.float64))))


def sinkhorn_energy(
    X: npt.ArrayLike,
    field: AttentionField,
    weights: npt.ArrayLike | None = None,
    t: float = 0.0,
    *,
    tol: float = 1e-11,
) -> float:
    r""":math:`\mathcal F_\varepsilon(\mu)` of TPDE 5.11, which the Sinkhorn flow decreases if A = Aᵀ = −V.

    It is :math:`-\frac12 OT_\varepsilon(\mu,\mu) + \frac1{4\varepsilon}\int(|Qx|^2+|Kx|^2)\,d\mu`, for one
    head. ``tol`` is the L1 error of the bridge's marginals; clouds much wider than :math:`\sqrt\varepsilon`
    need a larger tolerance.
    """
    _attention(field)
    t = _checks.number("t", t)
    if field.kind != "sinkhorn" or field.heads != 1:
        raise ValueError(f"field: wanted a sinkhorn field with one head, got {field!r}")
    cloud = checks.one_cloud("X", X, field.d).astype(np.float64)
    w = _weights(weights, len(cloud))
    Q, K, _ = field.parameters(t)
    q, k = cloud @ Q[0].T, cloud @ K[0].T
    found = bridge(scores.distance(q, k, beta=0.5 / field.epsilon), w, w, tol=tol)
    if not found.converged:
        raise RuntimeError(f"sinkhorn: {found.status} with a marginal error of {found.error:.3g}")
    # kappa = e^{f + s + g} / (w_i w_j), so log(kappa / e^s) = f + g - log w_i - log w_j.
    live = w > 0
    ot = float(np.dot(w[live], (found.f + found.g - 2 * np.log(np.where(live, w, 1)))[live]))
    second = float(np.dot(w, (q**2).sum(1) + (k**2).sum(1)))
    return -0.5 * ot + second / (4 * field.epsilon)


def _weights(weights: npt.ArrayLike | None, n: int) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.full(n, 1 / n)
    w = checks.weights(weights)
    checks.count_matches("weights", len(w), n)
    return w


# ---- stability and mean field -------------------------------------------------------------------


def field_lipschitz_bound(field: AttentionField, R: float, t: float = 0.0) -> float:
    r"""A bound of :math:`\|D_x\Gamma_\mu\|_2` for measures within R of 0 (TPDE 3.1, estimate ii).

    It is :math:`\sum_h\|V_h\|\|A_h\|R^2` for softmax, this divided by :math:`\varepsilon^2` for sinkhorn, a
    quarter of it for sigmoid, and twice of it for l2. The paper has the factor 1 for l2, which does not hold
    (docs/errata).
    """
    _attention(field)
    t = _checks.number("t", t)
    if field.kind not in _BOUNDED:
        raise ValueError(f"field: no such bound for {field.kind} attention (TPDE 3.1)")
    R = _checks.positive("R", R)
    A = np.linalg.norm(field.interaction(t), 2, axis=(1, 2))
    _, _, V = field.parameters(t)
    v = np.linalg.norm(np.broadcast_to(V, (field.heads, *V.shape[1:])), 2, axis=(1, 2))
    factor = {"softmax": 1.0, "l2": 2.0, "sigmoid": 0.25, "sinkhorn": field.epsilon**-2}[field.kind]
    return factor * float(np.dot(A, v)) * R**2


@dataclass(frozen=True, eq=False)
class Stability:
    """Measured :math:`W_p(\\mu(t),\\nu(t)) / W_p(\\mu_0,\\nu_0)` over perturbations (TPDE 3.1, 3.4)."""

    t: npt.NDArray[np.float64] = field(repr=False)
    ratios: npt.NDArray[np.float64] = field(repr=False)
    """(trials, times)"""
    constant: npt.NDArray[np.float64]
    """(times,): the largest ratio of all trials, a lower bound of C(t, R0)"""
    p: float
    conditional: bool
    """whether distances are conditional on the positions of the mask (definition 3.2)"""
    transport: str
    """how distances were found: "exact", or "sinkhorn", an estimate that is some per cent low"""


def stability(
    field: AttentionField,
    X0: npt.ArrayLike,
    t: npt.ArrayLike,
    *,
    size: float = 1e-3,
    n_trials: int = 5,
    p: float = 2.0,
    transport: str = "auto",
    rng: np.random.Generator | int | None = 0,
    **flow_options: Any,
) -> Stability:
    """The distance between flows that start close together, relative to that at the start (TPDE-2).

    Each trial adds normal noise of standard deviation ``size`` to X0. Under a mask by positions the
    conditional distance is used. ``transport`` is the ``method`` of :func:`qkcore.wasserstein`; distances are
    exact unless it is "sinkhorn". ``flow_options`` are passed to :func:`qkcore.flow`.

    >>> import numpy as np, qkcore as qk
    >>> f = qk.AttentionField("softmax", Q=np.zeros((1, 1)), K=np.eye(1), V=np.eye(1))
    >>> s = qk.observables.stability(f, np.linspace(-1, 1, 5)[:, None], [1.0])
    >>> bool(s.constant[0] <= np.e)
    True
    """
    _attention(field)
    cloud = field._particles(HOST, "X0", X0)
    times = np.atleast_1d(_checks.doubles("t", t))
    _checks.not_empty("t", times)
    _checks.rising("t", times)
    _checks.all_positive("t", times, "rising times > 0", "the start is at 0")
    checks.choice("transport", transport, METHODS)
    size = _checks.positive("size", size)
    n_trials = _checks.integer_within("n_trials", n_trials, 1, 10**6, "perturbed starts")
    generator = np.random.default_rng(rng)
    positions = field.mask if isinstance(field.mask, np.ndarray) else None
    if isinstance(field.mask, str):
        positions = np.arange(1, len(cloud) + 1) / len(cloud)

    def distance(x: Real, y: Real) -> float:
        if positions is not None:
            return conditional_wasserstein(
                x, y, positions, positions, p=p, weights=field.weights, method=transport
            )
        return wasserstein(x, y, field.weights, field.weights, p=p, method=transport)

    options = {"t_eval": times, **flow_options}
    span = (0.0, float(times[-1]))
    base = flow(field, cloud, span, **options)
    ratios = np.empty((n_trials, len(times)))
    for trial in range(n_trials):
        moved = (cloud + size * generator.standard_normal(cloud.shape)).astype(cloud.dtype)
        if field.sphere:
            moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        other = flow(field, moved, span, **options)
        if not (base.success and other.success):
            status = base.status if not base.success else other.status
            raise RuntimeError(f"stability: the flow {status} before t = {span[1]}; shorten t")
        start = distance(cloud, moved)
        if not start > 0:
            raise ValueError(
                f"size: wanted noise that changes X0 in {cloud.dtype}, got {size:g}; raise it"
            )
        ratios[trial] = [distance(a, b) / start for a, b in zip(base.x, other.x, strict=True)]
    return Stability(
        times, ratios, ratios.max(axis=0), p, positions is not None, _transport_used(transport)
    )


@dataclass(frozen=True, eq=False)
class MeanFieldConvergence:
    """:math:`W_p` between flows of n particles and of many (the reference), and its rate in n."""

    n: npt.NDArray[np.int64]
    distances: npt.NDArray[np.float64]
    """(len(n),): the distances at the last time, as means over the trials"""
    rate: float
    """slope of log distance against log n; NaN where a distance is 0"""
    p: float
    n_reference: int
    transport: str
    """how distances were found: "exact", or "sinkhorn", an estimate that is some per cent low"""


def mean_field_convergence(
    field: AttentionField,
    sample: Callable[[int, np.random.Generator], npt.ArrayLike],
    n: Sequence[int],
    t: float,
    *,
    n_reference: int = 2000,
    n_trials: int = 4,
    p: float = 2.0,
    transport: str = "auto",
    rng: np.random.Generator | int | None = 0,
    **flow_options: Any,
) -> MeanFieldConvergence:
    r"""Measures :math:`W_p(\mu^n(t), \mu(t))` for empirical starts of n particles (TPDE-2, theorem 3.1).

    ``sample(n, rng)`` draws n particles of :math:`\mu_0`. :math:`\mu(t)` is replaced by a flow of
    ``n_reference`` independent particles, whose own error the distances cannot fall below. The expected rate
    is that of :math:`W_p(\mu^n_0,\mu_0)`: about :math:`n^{-1/2}` in one dimension, and :math:`n^{-1/d}` for
    d > 2p. Distances are exact, in any dimension and for every p >= 1, unless ``transport="sinkhorn"`` asks
    for the estimate of :func:`qkcore.wasserstein` (p = 2). The estimate is too low by 2 to 9 per cent, and
    lowers the rate by as much.
    """
    _attention(field)
    generator = np.random.default_rng(rng)
    sizes = np.array([_checks.integer_within("n", m, 2, 10**9, "particles") for m in n])
    _checks.some("n", len(sizes), 2, "sizes, for a rate")
    t = _checks.positive("t", t)
    checks.choice("transport", transport, METHODS)
    n_reference = _checks.integer_within("n_reference", n_reference, 2, 10**9, "particles")
    n_trials = _checks.integer_within("n_trials", n_trials, 1, 10**6, "starts per size")
    if field.weights is not None or isinstance(field.mask, np.ndarray):
        raise ValueError(
            "field: wanted a field without weights and positions, because these fix the number of "
            "particles, got one with them"
        )

    def final(m: int) -> Real:
        sol = flow(field, np.asarray(sample(m, generator)), (0.0, t), t_eval=[t], **flow_options)
        if not sol.success:
            raise RuntimeError(f"mean_field_convergence: the flow {sol.status} at t = {sol.t[-1]}")
        return np.asarray(sol.x[-1])

    reference = final(n_reference)
    distances = np.array(
        [
            np.mean(
                [
                    wasserstein(final(int(m)), reference, p=p, method=transport)
                    for _ in range(n_trials)
                ]
            )
            for m in sizes
        ]
    )
    rate = math.nan
    if distances.all() and len(np.unique(sizes)) > 1:
        rate = float(np.polyfit(np.log(sizes), np.log(distances), 1)[0])
    return MeanFieldConvergence(sizes, distances, rate, p, n_reference, _transport_used(transport))


def _transport_used(transport: str) -> str:
    return "sinkhorn" if transport == "sinkhorn" else "exact"
