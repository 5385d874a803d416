"""Lipschitz constants of attention at data and over all of space (MTA-3; corollary 24, 28 to 30)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _checks
from ._bounds import Bound, inside, psi_bounds
from ._domains import Ball, Domain, domain_argument
from ._jacobian import AttentionJacobian, LocalConstant, query_jacobians
from ._kernels import AttentionKernel, kernel_argument
from ._lookups import TableLookup
from ._measure import Measure, as_measure
from ._potentials import GaussianPotential
from ._transport import w1

__all__ = ["LipschitzReport", "gaussian_lipschitz", "lipschitz", "softmatch_perturbation"]

# The Lipschitz constant of exp(-|x-y|^2) as a function of the pair (x, y), in l1.
_GAUSSIAN_LIP = math.sqrt(2 / math.e)
_QUERIES = 64


@dataclass(frozen=True)
class LipschitzReport:
    """How much attention can stretch distances, near given data and over a set that contains them."""

    query: Bound
    """corollary 24, for one query in the Euclidean norm; keys and values are fixed"""
    domain: Domain = field(repr=False)
    local: tuple[LocalConstant, LocalConstant] | None = field(repr=False)
    """:attr:`spectral` and :attr:`w1`; None for a lookup without a derivative (a table has no values for
    other keys than its own, so particles that are keys cannot move)"""

    @property
    def spectral(self) -> LocalConstant:
        """The largest singular value of the Jacobian at the data: l2 on all particles together."""
        return self._local[0]

    @property
    def w1(self) -> LocalConstant:
        """The local constant in W1 (l1 ground metric)."""
        return self._local[1]

    @property
    def _local(self) -> tuple[LocalConstant, LocalConstant]:
        if self.local is None:
            raise NotImplementedError(
                "the lookup has no derivative, so self-attention has no Jacobian; use .query, which "
                "needs none (.local is None)"
            )
        return self.local

    def __str__(self) -> str:
        if self.local is None:
            return f"no Jacobian, since the lookup has no derivative\n{self.query}"
        return (
            f"local, Euclidean {self.spectral.value:.6g} ({self.spectral.products} products), W1 "
            f"{self.w1.value:.6g} ({self.w1.products} products)\n{self.query}"
        )


def lipschitz(
    kernel: AttentionKernel,
    X: Measure | npt.ArrayLike,
    *,
    domain: Domain | None = None,
    tol: float = 1e-3,
    queries: int = _QUERIES,
    climbs: int = 50,
    rng: np.random.Generator | int | None = 0,
) -> LipschitzReport:
    """Local constants of self-attention at X, and the bound of corollary 24 (MTA-3).

    The local constants are norms of the Jacobian, which every bound must exceed. They are found by products
    with the Jacobian and its transpose, each of which costs a few matrix products and O(n d) memory. The
    bound holds for queries and keys in ``domain`` (default: a ball around X) and the values that the lookup
    gives them. Its ``measured`` is the largest :math:`\\|\\partial_q Attention(q, K, V)\\|_2` over
    ``queries`` points of the data and of the domain, improved by ``climbs`` steps of local maximisation.

    For keys K with values V that are no function of the keys, as in the original definition, pass
    ``TableLookup(K, V)`` and X = K. Then :math:`\\|\\ell\\|` is the largest ratio of distances in the table.
    The ``sharp`` bound :math:`diam_2(V)\\,diam_2(\\nabla_q a)/4` holds however close two keys are, because
    the derivative is the covariance of the values and :math:`\\nabla_q a`. Such particles cannot move, so
    there are no local constants (``local`` is None).

    >>> import numpy as np
    >>> from qkcore.measure import AttentionKernel, DotPotential, lipschitz
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> found = lipschitz(AttentionKernel(DotPotential.scaled(3)), X)
    >>> found.query.measured <= found.query.bound, found.spectral.converged
    (True, True)
    """
    measure = as_measure("X", X)
    J = AttentionJacobian(kernel, measure)
    rtol = _checks.positive("tol", tol)
    area: Domain = Ball.around(measure.points) if domain is None else domain
    domain_argument(area)
    _checks.same_space("domain", area.dim, measure.dim, "X")
    inside("X", measure, area)
    count = _checks.integer_within("queries", queries, 1, 1_000_000, "queries to look at")
    steps = _checks.integer_within("climbs", climbs, 0, 1_000_000, "steps of maximisation")
    generator = np.random.default_rng(rng)
    measured = _query_norm(kernel, measure, area, count, steps, generator)
    c = kernel.potential.constants(area)
    (printed, corrected, sharp), _ = psi_bounds(c)
    d = measure.dim
    lip, lip_l2 = kernel.values.lipschitz, kernel.values.lipschitz_l2
    l1 = math.inf if lip is None else lip
    # Cauchy-Schwarz on the covariance of values and gradients, each at most half a diameter wide.
    width = math.inf if lip_l2 is None else lip_l2 * c.diameter_l2
    if isinstance(kernel.values, TableLookup):
        width = min(width, kernel.values.diameter_l2)
    covariance = _times(width, c.spread_l2 / 4)
    query = Bound(
        "Attention in the query, l2 (24)",
        d**1.5 * _times(l1, printed),
        True,
        d**0.5 * _times(l1, corrected),
        min(d**0.5 * _times(l1, sharp), covariance),
        measured,
    )
    local = None
    if kernel.values.differentiable:
        local = (J.spectral_norm(tol=rtol), J.w1_norm())
    return LipschitzReport(query, area, local)


def _times(unknown: float, factor: float) -> float:
    """The product. It is 0 for a factor 0, even if the constant is inf: nothing depends on the query then."""
    return unknown * factor if factor > 0 else 0.0


def _query_norm(
    kernel: AttentionKernel,
    mu: Measure,
    domain: Domain,
    count: int,
    steps: int,
    rng: np.random.Generator,
) -> float:
    chosen = rng.choice(len(mu), min(count, len(mu)), replace=False)
    Q = np.vstack([mu.points[chosen], domain.sample(count, rng).astype(mu.dtype)])

    def norms(points: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        found = query_jacobians(kernel, mu, points.astype(mu.dtype))
        return np.asarray(np.linalg.norm(found.astype(np.float64), 2, axis=(1, 2)))

    values = norms(Q)
    best = np.argsort(values)[::-1][:8]
    points, value, size = Q[best].astype(np.float64), values[best], 0.2
    for _ in range(steps):
        trial = domain.project(points + size * domain.diameter_l2 * rng.normal(size=points.shape))
        found = norms(trial)
        better = found > value
        points[better], value = trial[better], np.maximum(found, value)
        size = min(0.5, 1.5 * size) if better.any() else 0.8 * size
    return float(value.max())


def gaussian_lipschitz(
    kernel: AttentionKernel, mu: Measure | npt.ArrayLike, nu: Measure | npt.ArrayLike
) -> Bound:
    """How much attention with a Gaussian potential stretches W1 on all of R^d, from mu to nu (MTA-3; 29, 30).

    ``measured`` is :math:`W_1(\\mu A_\\mu, \\nu A_\\nu)/W_1(\\mu,\\nu)`; mu and nu may have different numbers
    of points. The printed factor rests on proposition 28, which does not hold (erratum 10), so it is not
    proved. It is stated for beta = 1, but does not depend on beta. ``corrected`` is inf unless both measures
    have equal weights. For those it is proved: if the best coupling has n atoms, the least of them of
    weight w, the ratio is at most

    .. math:: K_\\ell\\big[\\sqrt n + 2\\sqrt d\\,(S_2 + \\sqrt{\\omega}\\,S_1 + 2\\omega)\\big],\\quad
        \\omega = W_0\\big(\\tfrac{1/w - 1}{e}\\big),\\ L = \\max(1, \\ln n),\\
        S_2 = \\sqrt n L + n L e^{-L},\\ S_1^2 = \\sqrt n\\,S_2

    because the columns of a row-normalised positive definite kernel sum to at most sqrt(n).

    >>> import numpy as np
    >>> from qkcore.measure import AttentionKernel, GaussianPotential, gaussian_lipschitz
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> found = gaussian_lipschitz(AttentionKernel(GaussianPotential()), X, X[:17] + 0.1)
    >>> found.measured <= found.bound
    True
    """
    kernel_argument(kernel)
    wanted = "a GaussianPotential, which alone has a bound on all of R^d"
    hint = "use contraction on a compact set"
    _checks.instance("kernel", kernel.potential, GaussianPotential, wanted, hint)
    p, q = as_measure("mu", mu), as_measure("nu", nu)
    distance = w1(p, q)
    if distance == 0:
        raise ValueError("mu, nu: wanted two different measures, got equal ones")
    lip = kernel.values.lipschitz
    known = math.inf if lip is None else lip
    d = p.dim
    printed = 2 * d * known * printed_factor(min(len(p), len(q)), d)
    corrected = known * gaussian_factor(*_coupling_atoms(p, q), d)
    measured = w1(kernel.step(p), kernel.step(q)) / distance
    return Bound(
        "Gaussian attention on R^d (29)", printed, False, corrected, math.inf, measured, distance
    )


def printed_factor(n: int, d: int) -> float:
    """The factor of proposition 28 as printed, for the potential exp(-|x-y|^2)."""
    root = math.sqrt(d)
    return root * math.sqrt(math.log(n) + 1 / (2 * math.e)) * _GAUSSIAN_LIP + 1 + root + 2


def _coupling_atoms(p: Measure, q: Measure) -> tuple[int, float]:
    """Upper bounds on the number of atoms of a best coupling, and on one over its least weight."""
    n, m = int((p.weights > 0).sum()), int((q.weights > 0).sum())
    if not (p.uniform and q.uniform):
        return n + m - 1, math.inf  # an atom may have arbitrarily little mass
    # If both have equal weights, the entries of an extremal coupling are multiples of 1/lcm(n, m).
    return (n if n == m else n + m - 1), float(math.lcm(n, m))


def gaussian_factor(atoms: int, inverse: float, d: int) -> float:
    """The corrected factor of theorem 29 for a coupling of this many atoms of weight >= 1/``inverse``."""
    from scipy.special import lambertw

    if math.isinf(inverse):
        return math.inf
    omega = float(np.real(lambertw((inverse - 1) / math.e)))
    L = max(1.0, math.log(atoms))
    s2 = math.sqrt(atoms) * L + atoms * L * math.exp(-L)
    s1 = math.sqrt(math.sqrt(atoms) * s2)
    return math.sqrt(atoms) + 2 * math.sqrt(d) * (s2 + math.sqrt(omega) * s1 + 2 * omega)


def softmatch_perturbation(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    mu: Measure | npt.ArrayLike,
    nu: Measure | npt.ArrayLike,
    *,
    beta: float = 1.0,
) -> Bound:
    """How far the softmatch measures of x in mu and of y in nu differ, for a Gaussian potential on R^d.

    This is proposition 28 (MTA-3). x is a point of mu and y one of nu, and both measures have equal weights.
    ``measured`` is :math:`W_1(\\Psi_{G(x,\\cdot)}(\\mu), \\Psi_{G(y,\\cdot)}(\\nu))`, and the bounds are
    factors times ``distance`` = d(x, y) + W1(mu, nu). The printed proof scales the measures to mass N and
    forgets that W1 scales with them. So the printed factor lacks an N, and the bound fails without it
    (erratum 10).
    """
    p, q = as_measure("mu", mu), as_measure("nu", nu)
    for name, measure, value in (("x", p, x), ("y", q, y)):
        if not measure.uniform:
            raise ValueError("mu, nu: wanted equal weights, got different ones; pass points (n, d)")
        if not (measure.points == np.asarray(value)).all(axis=1).any():
            raise ValueError(f"{name}: wanted a point of its measure, got one that is not in it")
    potential = GaussianPotential(beta)
    first, second = (
        AttentionKernel(potential)(m).before_projection(np.asarray(z)) for m, z in ((p, x), (q, y))
    )
    # The paper has beta = 1. Another beta stretches space, and both sides of the inequality by the same
    # factor.
    distance = float(np.abs(np.asarray(x) - np.asarray(y)).sum()) + w1(p, q)
    printed = printed_factor(len(q), p.dim)
    return Bound(
        "softmatch on R^d (28)",
        printed * distance,
        False,
        len(p) * printed * distance,
        math.inf,
        w1(first, second),
        distance,
    )
