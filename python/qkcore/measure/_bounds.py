"""Contraction coefficients: the bounds of MTA 19 to 25, compared with measured ratios (MTA-3, erratum 10).

Each bound has three versions. ``printed`` is that of the paper. ``corrected`` makes the same estimates with a
centred test function, and holds where the printed one does not. ``sharp`` estimates covariances, which
avoids the exponential of the diameter where possible. ``corrected`` and ``sharp`` are proved upper bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._domains import Domain, domain_argument
from ._jacobian import AttentionJacobian
from ._kernels import AttentionKernel, kernel_argument
from ._measure import Measure, as_measure
from ._potentials import PotentialConstants, safe_exp
from ._search import attention_ratio, lookup_ratio, measure_ratio, query_ratio
from ._transport import w1

__all__ = ["Bound", "ContractionReport", "contraction", "neighbourhood"]


@dataclass(frozen=True)
class Bound:
    """An upper bound in three versions, and the largest value that was measured."""

    name: str
    printed: float
    """the bound as the paper prints it"""
    printed_holds: bool
    """whether the printed bound is proved, which is not always so (erratum 10)"""
    corrected: float
    """a proved bound, by the estimates of the paper after correction"""
    sharp: float
    """a proved bound by other estimates, often tighter; inf where there is none"""
    measured: float
    """the largest value found by sampling, on the data and by local maximisation; at most the true one"""
    distance: float = math.nan
    """the distance of the two inputs, for bounds that compare two of them; NaN for the others"""

    @property
    def bound(self) -> float:
        """The smallest of the versions that are proved."""
        proved = [self.corrected, self.sharp]
        if self.printed_holds:
            proved.append(self.printed)
        return min(proved)

    @property
    def ratio(self) -> float:
        """bound / measured: the bound is loose by at most this factor. It is inf if nothing was measured."""
        return self.bound / self.measured if self.measured > 0 else math.inf

    @property
    def printed_violated(self) -> bool:
        """Whether the measured constant exceeds the printed one."""
        return self.measured > self.printed * (1 + 1e-9)

    def __str__(self) -> str:
        note = "" if self.printed_holds else " (not a bound)"
        return (
            f"{self.name:<34} bound {self.bound:<10.4g} measured {self.measured:<10.4g} ratio "
            f"{self.ratio:<9.3g} printed {self.printed:.4g}{note}"
        )


@dataclass(frozen=True)
class ContractionReport:
    """tau of every part of an attention kernel on a set E, in W1 with the l1 metric (MTA 19 to 23)."""

    domain: Domain = field(repr=False)
    constants: PotentialConstants = field(repr=False)
    query: Bound
    """proposition 19, first inequality: Psi_G in the query"""
    measure: Bound
    """proposition 19, second inequality: Psi_G in the measure"""
    softmatch: Bound
    """tau(Psi_G) of theorem 23: the sum of both"""
    projection: Bound
    """proposition 20; the paper prints d, the true value is 1"""
    lookup: Bound
    """proposition 21"""
    attention: Bound
    """theorem 23: tau(A)"""
    invariant: bool | None
    """whether A maps measures on E to measures on E, which theorem 26 needs; None if that is not known"""

    @property
    def contracts(self) -> bool:
        """Whether tau(A) < 1 is proved and E is mapped into itself: theorem 26 applies."""
        return self.attention.bound < 1 and self.invariant is True

    def __str__(self) -> str:
        rows = (
            self.query,
            self.measure,
            self.softmatch,
            self.projection,
            self.lookup,
            self.attention,
        )
        verdict = "theorem 26 applies" if self.contracts else "theorem 26 does not apply"
        return "\n".join([str(self.constants), *map(str, rows), verdict])


Readings = tuple[float, float, float]


def psi_bounds(c: PotentialConstants) -> tuple[Readings, Readings]:
    """(printed, corrected, sharp) of both inequalities of proposition 19.

    In the query: if the test function f is centred at its mean c under one of the two measures, the
    difference is :math:`|\\mu((G_x - G_y)(f - c))|/\\mu(G_x)`, which is half of what is printed. The
    ``sharp`` bound uses that the derivative is a covariance of f and :math:`\\partial_k a`, at most a quarter
    of the product of their ranges.
    In the measure: the difference is :math:`|(\\mu-\\nu)(G(f - c))|/\\mu(G)`, and G(f - c) has the Lipschitz
    constant :math:`\\|G\\|_\\infty + \\|G\\|_{Lip} diam`. The ``sharp`` bound uses
    :math:`G/\\mu(G) \\le e^{osc}` for one x.
    """
    query = safe_exp(c.log_lip_left - c.log_inf) * c.diameter
    key = safe_exp(c.log_lip_right - c.log_inf) * c.diameter
    contrast = safe_exp(c.log_sup - c.log_inf)
    sharp_key = safe_exp(c.log_oscillation) * (1 + c.slope_right * c.diameter)
    return (2 * query, query, c.diameter * c.spread / 4), (2 * key, contrast + key, sharp_key)


def contraction(
    kernel: AttentionKernel,
    domain: Domain,
    *,
    data: Measure | npt.ArrayLike | None = None,
    samples: int = 2000,
    climbs: int = 200,
    rng: np.random.Generator | int | None = 0,
) -> ContractionReport:
    """Contraction coefficients of an attention kernel on a compact set E (MTA-3; propositions 19 to 23).

    ``domain``: a :class:`Ball` or :class:`Box`. Each bound comes with the largest ratio found over
    ``samples`` random configurations of E (corners, tiny weights), improved by ``climbs`` steps of
    local maximisation, and at ``data`` if given. A bound that overflows is inf, which is still true.

    >>> from qkcore.measure import AttentionKernel, Box, DotPotential, contraction
    >>> report = contraction(AttentionKernel(DotPotential()), Box([-0.5], [0.5]), samples=200)
    >>> report.query.sharp, round(report.query.measured, 3)
    (0.25, 0.25)
    >>> report.measure.printed < report.measure.measured <= report.measure.bound  # erratum 10
    True
    """
    _checks.instance("kernel", kernel, AttentionKernel, "an AttentionKernel")
    count = _checks.integer_within("samples", samples, 1, 10_000_000, "random configurations")
    steps = _checks.integer_within("climbs", climbs, 0, 10_000_000, "steps of maximisation")
    generator = np.random.default_rng(rng)
    kernel_argument(kernel)
    domain_argument(domain)
    measure = None if data is None else as_measure("data", data)
    if measure is not None:
        inside("data", measure, domain)
    kernel = kernel.double()
    if measure is not None:
        measure = Measure(measure.points.astype(np.float64), _doubled(measure.weights))
    c = kernel.potential.constants(domain)
    query_values, key_values = psi_bounds(c)
    potential = kernel.potential
    query = Bound(
        "Psi_G in the query (19)",
        query_values[0],
        True,
        query_values[1],
        query_values[2],
        query_ratio(potential, domain, count, steps, generator),
    )
    key = Bound(
        "Psi_G in the measure (19)",
        key_values[0],
        False,
        key_values[1],
        key_values[2],
        measure_ratio(potential, domain, count, steps, generator),
    )
    both = Bound(
        "tau(Psi_G) (23)",
        query.printed + key.printed,
        False,
        query.corrected + key.corrected,
        query.bound + key.bound,
        max(query.measured, key.measured),
    )
    d = domain.dim
    projection = Bound("tau(Pi) (20)", float(d), True, 1.0, 1.0, 1.0)
    lip = kernel.values.lipschitz
    known = math.inf if lip is None else lip
    lookup = Bound(
        "tau(L) (21)",
        known,
        True,
        known,
        known,
        lookup_ratio(kernel, domain, count, steps, generator),
    )
    measured = attention_ratio(kernel, domain, max(8, count // 20), steps, generator)
    if measure is not None and kernel.projection == "dirac":
        measured = max(measured, _local(kernel, measure))
    attention = Bound(
        "tau(A) (23)",
        d * known * both.printed,
        False,
        known * both.corrected,
        known * both.sharp,
        measured,
    )
    return ContractionReport(
        domain, c, query, key, both, projection, lookup, attention, invariant(kernel, domain)
    )


def invariant(kernel: AttentionKernel, domain: Domain) -> bool | None:
    """Whether the values of a linear lookup stay in the set; None for other lookups."""
    from ._lookups import LinearLookup

    lookup = kernel.values
    if not isinstance(lookup, LinearLookup):
        return None
    M = np.eye(domain.dim) if lookup.M is None else np.asarray(lookup.M, dtype=np.float64)
    if M.shape != (domain.dim, domain.dim):
        return None
    return domain.holds([M], np.zeros(domain.dim) if lookup.b is None else lookup.b)


def _doubled(weights: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    w = weights.astype(np.float64)
    return np.asarray(w / w.sum())


def _local(kernel: AttentionKernel, measure: Measure) -> float:
    try:
        return AttentionJacobian(kernel, measure).w1_norm().value
    except NotImplementedError:  # without a derivative there are only the sampled ratios
        return 0.0


def inside(name: str, measure: Measure, domain: Domain) -> None:
    _checks.same_space(name, measure.dim, domain.dim, "the domain")
    away = np.abs(domain.project(measure.points) - measure.points).max(axis=1)
    outside = away > 1e-6 * (1 + np.abs(measure.points).max())
    if outside.any():
        raise ValueError(
            f"{name}: wanted points inside the domain, got {int(outside.sum())} outside, the first at "
            f"index {int(outside.argmax())}; use Ball.around(X) or Box.around(X)"
        )


def neighbourhood(
    kernel: AttentionKernel,
    x: npt.ArrayLike,
    mu: Measure | npt.ArrayLike,
    mu_hat: Measure | npt.ArrayLike,
    domain: Domain,
) -> Bound:
    """How far attention at x moves when its neighbourhood mu is replaced by mu_hat (MTA-3, proposition 25).

    ``measured`` is :math:`\\|A_\\mu(x) - A_{\\hat\\mu}(x)\\|_1`. The bounds on it are those of the second
    inequality of proposition 19 for G(x, .), times :math:`\\tau(L)` and ``distance`` = W1(mu, mu_hat). The
    printed bound does not always hold (erratum 10).

    >>> import numpy as np
    >>> from qkcore.measure import AttentionKernel, Box, GaussianPotential, neighbourhood
    >>> X = np.linspace(0.0, 1.0, 6)[:, None]
    >>> found = neighbourhood(AttentionKernel(GaussianPotential()), X[0], X, X[:4], Box([0.0], [1.0]))
    >>> round(found.distance, 3), found.measured <= found.bound
    (0.2, True)
    """
    kernel_argument(kernel)
    domain_argument(domain)
    p, q = as_measure("mu", mu), as_measure("mu_hat", mu_hat)
    query = np.asarray(_checks.real_array("x", x)).reshape(1, -1)
    for name, measure in (("mu", p), ("mu_hat", q), ("x", Measure(query))):
        inside(name, measure, domain)
    distance = w1(p, q)
    whole = kernel.potential.constants(domain)
    at = kernel.potential.constants_at(query[0], domain)
    _, (printed, corrected, sharp) = psi_bounds(at)
    # The paper divides by the infimum of G over all of E, and not by that of G(x, .).
    printed *= safe_exp(at.log_inf - whole.log_inf)
    lip = kernel.values.lipschitz
    factor = distance * (math.inf if lip is None else lip) if distance > 0 else 0.0
    moved = kernel(p).attend(query).astype(np.float64) - kernel(q).attend(query)
    return Bound(
        "neighbourhood (25)",
        domain.dim * factor * printed,
        False,
        factor * corrected,
        factor * sharp,
        float(np.abs(moved).sum()),
        distance,
    )
