"""Rotational energy (EOT-11): how far a flow is from :math:`b_R + a\\nabla\\theta`.

The a-weighted Hodge decomposition :math:`u = b_R + a\\nabla\\theta + w` with
:math:`\\nabla\\cdot(w\\mu) = 0` minimises :math:`\\int \\langle w, a^{-1}w\\rangle\\,d\\mu`; the minimum
is the rotational energy (theorem 5.2). The equation for the potential carries the density,

.. math:: \\nabla\\cdot(\\mu\\,a\\nabla\\theta) = \\nabla\\cdot(\\mu\\,(u - b_R)),

which appendix G leaves out (docs/errata.md).

================================  ================================================================
``rotational_energy(X, u, a)``    at samples: meshless by polynomials, or on the neighbour graph
``on_grid(u, spacing, ...)``      on a grid in 1, 2 or 3 dimensions, masks allowed
``on_simplex(u, n, ...)``         on the simplex of 2, 3 or 4 states (example 5.4)
``path_energy(X, ...)``           along the layers of a stack of activations
``jacobian_asymmetry(f, X)``      how far the Jacobian of a layer is from that of a gradient
================================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import one_of
from ._arrays import Float, count, float64, generator, points, same_shape
from ._layer_map import Asymmetry, jacobian_asymmetry
from ._stats import Interval, mean_interval
from ._tensor import TensorLike, tensor, without_time

if TYPE_CHECKING:
    from ._poisson import PoissonSolve
    from ._whitney import Mesh, MeshHodge

__all__ = [
    "Asymmetry",
    "PathEnergy",
    "RotationalEnergy",
    "jacobian_asymmetry",
    "on_grid",
    "on_simplex",
    "path_energy",
    "rotational_energy",
    "simplex_points",
]


def __dir__() -> list[str]:
    return list(__all__)


SpaceField = npt.ArrayLike | Callable[[Float], npt.ArrayLike]
"""Values at the points, or a function of points (n, d)."""


@dataclass(frozen=True, eq=False)
class RotationalEnergy:
    """The energy of the rotational part, and how it was found."""

    energy: float
    """:math:`\\hat R = \\int \\langle w, a^{-1}w\\rangle\\,d\\mu`"""
    kinetic: float
    """:math:`\\int \\langle u - b_R, a^{-1}(u - b_R)\\rangle\\,d\\mu`"""
    standard_error: float | None
    """of the Monte-Carlo mean (None on meshes, which are quadratures)"""
    interval: Interval | None
    """bootstrap interval of the energy over the samples, the potential held fixed"""
    theta: Float = field(repr=False)
    """the potential at the points (mean 0); NaN at grid vertices that a mask leaves out"""
    remainder: Float = field(repr=False)
    """w at the points; on meshes at the centres of the simplices"""
    method: str
    gamma: float
    """Tikhonov's term that was needed, relative to the mean diagonal"""
    condition: float
    """condition number of the system that was solved"""
    n_iter: int
    residual: float
    """relative residual of the solve"""
    preconditioner: str
    converged: bool

    @property
    def normalized(self) -> float:
        """Share of the kinetic energy, between 0 and 1 (N.2's, in the metric of a)."""
        return self.energy / self.kinetic if self.kinetic > 0 else 0.0

    def __float__(self) -> float:
        return self.energy

    def __str__(self) -> str:
        lines = [
            f"rotational energy {self.energy:.6g}, {100 * self.normalized:.3g} % of the kinetic energy"
        ]
        if self.standard_error is not None and self.interval is not None:
            low, high = self.interval
            lines.append(
                f"  standard error {self.standard_error:.2g}, interval [{low:.6g}, {high:.6g}]"
            )
        state = "converged" if self.converged else "NOT CONVERGED"
        lines.append(
            f"  {self.method}; {state} after {self.n_iter} iterations (residual {self.residual:.1e}, "
            f"{self.preconditioner})"
        )
        lines.append(f"  gamma {self.gamma:g}, condition number {self.condition:.3g}")
        return "\n".join(lines)


def rotational_energy(
    X: npt.ArrayLike,
    u: SpaceField,
    a: TensorLike | None = None,
    *,
    reference: SpaceField | None = None,
    weights: npt.ArrayLike | None = None,
    method: str = "auto",
    degree: int | None = None,
    n_neighbors: int | None = None,
    gamma: float = 0.0,
    max_condition: float = 1e8,
    n_resamples: int = 200,
    confidence: float = 0.95,
    bootstrap: str = "percentile",
    rng: int | np.random.Generator | None = 0,
) -> RotationalEnergy:
    """The rotational energy of a velocity known at samples of its law (EOT-11, corollary 5.3).

    ``X`` (n, d) samples of mu, ``u`` (n, d) the velocity there (or a function of X), ``a`` the diffusion
    tensor (number, diagonal, matrix, or a function of (x, t) with t = 0; default: identity),
    ``reference`` the drift :math:`b_R` (default 0), ``weights`` of the samples (importance sampling;
    default: equal).

    ``method``:

    - "polynomial": theta among polynomials up to ``degree`` (default: up to 6, as the number of samples
      allows). Exact for such potentials; takes any ``a``. A sample of n points makes the energy look
      smaller by a share of about (number of terms) / (n d), a potential outside the span makes it look
      larger.
    - "graph": theta at the samples, on the graph of ``n_neighbors`` neighbours (default 16 d + 16, at most
      96, at least 2 d + 2). Exact for potentials of degree two, resolves what polynomials cannot; takes a
      constant ``a``. One potential value per sample absorbs part of a rotation (8 % of a plane Gaussian's at
      the default), less with more neighbours.
    - "auto": polynomials, of degree two at least, whatever the number of samples; the graph above 43
      dimensions.

    The system is solved by conjugate gradients with incomplete Cholesky, and ``gamma`` raised until its
    condition number is at most ``max_condition`` (N.2). Example: a rotation of a Gaussian keeps all of
    its energy.

    >>> import numpy as np
    >>> from qkcore.diagnostics import rotation
    >>> X = np.random.default_rng(0).normal(size=(4000, 2))
    >>> R = rotation.rotational_energy(X, np.stack([X[:, 1], -X[:, 0]], axis=1))
    >>> bool(abs(R.normalized - 1) < 0.01), bool(abs(R.energy - 2) < 4 * R.standard_error)
    (True, True)
    >>> rotation.rotational_energy(X, -X).normalized < 1e-20  # a gradient flow
    True
    """
    from . import _cloud

    x = points("X", X, least=3)
    n, d = x.shape
    v = _at_points("u", u, x)
    if reference is not None:
        v = v - _at_points("reference", reference, x)
    A = tensor(1.0 if a is None else without_time(a), d)
    mass = _weights(weights, n)
    one_of("method", method, ("auto", "polynomial", "graph"))
    solver = _solver(gamma, max_condition)
    moving = float(mass @ np.einsum("nk,nk->n", v, A.solve(x, 0.0, v)))  # a singular a ends here
    affordable = _cloud.best_degree(n, d)
    if method == "auto":
        # By the dimension alone: an estimate that changed its method with the number of samples would jump.
        wide = degree is None and _cloud.terms(d, 2) > _cloud.MOST_QUADRATIC
        method = "graph" if wide else "polynomial"
        if wide and not A.constant:
            raise ValueError(
                f"a: a tensor that varies needs polynomials, and {d} dimensions are too many for degree 2; "
                'pass method="polynomial", degree=1 or 2, or project the samples first'
            )
        if not wide and degree is None:
            affordable = degree = max(affordable, 2)
            if _cloud.terms(d, 2) >= n * d:
                raise ValueError(
                    f"X: wanted more than {_cloud.terms(d, 2) // d} samples in {d} dimensions, as a "
                    f"potential of degree two needs, got {n}; project the samples first"
                )
    if method == "polynomial":
        degree = max(affordable, 1) if degree is None else count("degree", degree)
        if _cloud.terms(d, degree) > min(n * d - 1, 5000):
            raise ValueError(
                f"degree: {degree} has {_cloud.terms(d, degree)} terms in {d} dimensions, too many for "
                f"{n} samples; "
                f"pass degree={max(affordable, 1)} or fewer, or project the samples first"
            )
        out = _cloud.polynomial(x, v, mass, A, degree, **solver)
    else:
        if not A.constant:
            raise ValueError('a: method "graph" wants a constant tensor; pass method="polynomial"')
        k = (
            max(2 * d + 2, min(16 * d + 16, 96))
            if n_neighbors is None
            else count("n_neighbors", n_neighbors, d + 1)
        )
        out = _cloud.graph(x, v, mass, A, min(k, n - 1), **solver)
    each = np.einsum("nk,nk->n", out.remainder, A.solve(x, 0.0, out.remainder))
    energy = float(mass @ each)
    error = float(np.sqrt(((mass * (each - energy)) ** 2).sum() * n / max(n - 1, 1)))
    found = mean_interval(
        each,
        rng=generator(rng),
        method=one_of("bootstrap", bootstrap, ("percentile", "BCa", "basic")),
        n_resamples=count("n_resamples", n_resamples, 10),
        confidence=confidence,
        weights=None if weights is None else mass,
    )
    return _result(energy, moving, error, found, out.theta, out.remainder, out.method, out.solve)


def on_grid(
    u: SpaceField,
    spacing: float | Sequence[float],
    *,
    shape: Sequence[int] | None = None,
    origin: Sequence[float] | None = None,
    a: TensorLike | None = None,
    density: SpaceField | None = None,
    reference: SpaceField | None = None,
    mask: npt.ArrayLike | None = None,
    gamma: float = 0.0,
    max_condition: float = 1e8,
) -> RotationalEnergy:
    """The rotational energy of a velocity on a regular grid in 1 to 3 dimensions (EOT-11).

    ``u``: values ``(*shape, d)`` at the vertices, or a function of points (n, d), then with ``shape``.
    ``spacing``: one number or one per axis; ``origin``: the first vertex (default 0). ``density`` of mu:
    values ``(*shape)`` or a function (default: uniform), normalised. ``mask`` ``(*shape)``: True where there
    is support; Neumann's condition holds on its boundary (N.2). ``a`` is evaluated per simplex.

    Kuhn's triangulation with Whitney forms: the energy of a smooth field converges with order 2 in the
    spacing. Potential flows give zero up to the solver, exactly so for potentials of degree two given by
    values, for smooth ones given by a function (five Gauss points per edge).

    >>> import numpy as np
    >>> from qkcore.diagnostics import rotation
    >>> field = lambda x: np.stack([np.cos(x[:, 0]), -x[:, 1]], axis=1)  # a gradient
    >>> rotation.on_grid(field, 0.1, shape=(11, 11)).normalized < 1e-20
    True
    """
    from . import _whitney

    if callable(u):
        if shape is None:
            raise ValueError("shape: wanted the numbers of vertices, as u is a function; got None")
        size = tuple(count("shape", s, 2) for s in shape)
        values = None
    else:
        values = float64("u", u)
        size = values.shape[:-1]
        if values.ndim < 2 or values.shape[-1] != len(size) or min(size) < 2:
            raise ValueError(
                "u: wanted values (*shape, d) on a grid in d dimensions, at least two vertices per axis, "
                f"got shape {values.shape}"
            )
    d = len(size)
    _checks.integer_within("dimension", d, 1, 3, "grids have 1, 2 or 3; use samples for more")
    steps = np.broadcast_to(float64("spacing", spacing), (d,))
    _checks.all_positive("spacing", steps)
    start = np.zeros(d) if origin is None else same_shape("origin", origin, (d,), "the grid's axes")
    axes = [start[k] + steps[k] * np.arange(size[k]) for k in range(d)]
    nodes = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
    cells = _whitney.grid_cells(size)
    kept = np.arange(len(nodes))
    if mask is not None:
        inside = np.asarray(mask)
        if inside.dtype != np.bool_ or inside.shape != size:
            raise ValueError(
                f"mask: wanted booleans of shape {size}, got {inside.dtype} {inside.shape}"
            )
        cells = cells[inside.ravel()[cells].all(axis=1)]
        if not len(cells):
            raise ValueError("mask: wanted at least one box of the grid inside, got none")
        kept, flat = np.unique(cells, return_inverse=True)
        cells = flat.reshape(cells.shape)
    mesh = _whitney.Mesh(nodes[kept], cells)

    def pick(value: SpaceField | None) -> SpaceField | None:
        if value is None or callable(value):
            return value
        array = float64("density or reference", value)
        return array.reshape(len(nodes), *array.shape[d:])[kept]

    field_u: SpaceField = u if values is None else values.reshape(-1, d)[kept]
    found, solve = _on_mesh(mesh, field_u, a, pick(density), pick(reference), gamma, max_condition)
    theta = np.full(len(nodes), np.nan) if mask is not None else np.empty(len(nodes))
    theta[kept] = found.theta
    name = f"grid of {' x '.join(map(str, size))}, {len(cells)} simplices"
    return _result(
        found.energy, found.kinetic, None, None, theta.reshape(size), found.remainder, name, solve
    )


def on_simplex(
    u: SpaceField,
    n: int,
    *,
    states: int = 3,
    a: TensorLike | None = None,
    density: SpaceField | None = None,
    reference: SpaceField | None = None,
    gamma: float = 0.0,
    max_condition: float = 1e8,
) -> RotationalEnergy:
    """The rotational energy of a flow on the probability simplex (EOT-11, example 5.4).

    Coordinates :math:`(p_1, \\dots, p_{V-1})`, the last probability is what is missing to 1. ``u`` is a
    function of such points (m, V - 1), or values at :func:`simplex_points` ``(n, states)``. ``n`` cuts
    every edge of the simplex; ``density`` defaults to the uniform law. A tensor that is singular on the
    boundary, such as the mobility diag(p) - pp^T, needs a + epsilon I (assumption 5.1).

    Example 5.4, the rotation (beta p2, -beta p1) with the uniform law: no flow passes the boundary, so
    the energy is beta^2 times twice the torsional rigidity of the right-angled triangle, 0.0521795.

    >>> from qkcore.diagnostics import rotation
    >>> import numpy as np
    >>> gradient = lambda p: -3.0 * p
    >>> rotation.on_simplex(gradient, 16).normalized < 1e-20
    True
    >>> spin = lambda p: np.stack([p[:, 1], -p[:, 0]], axis=1)
    >>> round(rotation.on_simplex(spin, 64).energy, 4)
    0.0522
    """
    from . import _whitney

    d = _checks.integer_within("states", states, 2, 4, "use samples for more states") - 1
    mesh = _whitney.simplex_mesh(d, count("n", n))
    found, solve = _on_mesh(mesh, u, a, density, reference, gamma, max_condition)
    name = f"simplex of {states} states, {len(mesh.cells)} cells"
    return _result(
        found.energy, found.kinetic, None, None, found.theta, found.remainder, name, solve
    )


def simplex_points(n: int, states: int = 3) -> Float:
    """The vertices of the mesh of :func:`on_simplex`, (m, states - 1)."""
    from . import _whitney

    n, states = count("n", n), _checks.integer_within("states", states, 2, 4, "as on_simplex")
    return _whitney.simplex_mesh(states - 1, n).nodes


@dataclass(frozen=True, eq=False)
class PathEnergy:
    """The rotational energy along a path: layer by layer, and integrated over depth."""

    energy: float
    """:math:`\\int_0^1 R_t\\,dt`, the mean over the layers"""
    normalized: float
    interval: Interval
    """percentile bootstrap over the layers"""
    layers: tuple[RotationalEnergy, ...] = field(repr=False)

    def __float__(self) -> float:
        return self.energy

    def __str__(self) -> str:
        low, high = self.interval
        bad = sum(not layer.converged for layer in self.layers)
        return (
            f"rotational energy {self.energy:.4g} over {len(self.layers)} layers, "
            f"interval [{low:.4g}, {high:.4g}], "
            f"{100 * self.normalized:.3g} % of the kinetic energy"
            + (f"; {bad} solves did not converge" if bad else "")
        )


def path_energy(
    X: npt.ArrayLike,
    u: npt.ArrayLike | None = None,
    a: TensorLike | None = None,
    *,
    n_resamples: int = 200,
    rng: int | np.random.Generator | None = 0,
    **options: object,
) -> PathEnergy:
    """Rotational energy of a stack of states (EOT-11): the integral over depth of theorem 5.2.

    ``X`` (L + 1, n, d): the same samples at successive layers. The velocity is the forward difference over
    :math:`\\delta t = 1/L`, unless given as ``u`` (L, n, d). Further options as :func:`rotational_energy`.

    >>> import numpy as np
    >>> from qkcore.diagnostics import rotation
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> shrinking = np.stack([x * 0.9**k for k in range(5)])
    >>> rotation.path_energy(shrinking).normalized < 1e-20
    True
    """
    path = float64("X", X)
    _checks.shape("X", path.shape, ("layers", "n", "d"), what="states")
    _checks.some("X", len(path), 2, "layers")
    steps = len(path) - 1
    drift = (
        np.diff(path, axis=0) * steps
        if u is None
        else same_shape("u", u, (steps, *path.shape[1:]), "X without its last layer")
    )
    rng = generator(rng)
    layers = tuple(
        rotational_energy(path[k], drift[k], a, rng=rng, **options)  # type: ignore[arg-type]
        for k in range(steps)
    )
    energies = np.array([layer.energy for layer in layers])
    kinetic = sum(layer.kinetic for layer in layers)
    found = mean_interval(energies, rng=rng, n_resamples=count("n_resamples", n_resamples, 10))
    share = float(energies.sum() / kinetic) if kinetic > 0 else 0.0
    return PathEnergy(float(energies.mean()), share, found, layers)


def _on_mesh(
    mesh: Mesh,
    u: SpaceField,
    a: TensorLike | None,
    density: SpaceField | None,
    reference: SpaceField | None,
    gamma: float,
    max_condition: float,
) -> tuple[MeshHodge, PoissonSolve]:
    from . import _whitney

    d = mesh.d
    A = tensor(1.0 if a is None else without_time(a), d)

    def covector(x: Float) -> Float:
        v = _at_points("u", u, x)
        if reference is not None:
            v = v - _at_points("reference", reference, x)
        return A.solve(x, 0.0, v)

    functions = callable(u) and (reference is None or callable(reference))
    integrals = _whitney.edge_integrals(mesh, covector if functions else covector(mesh.nodes))
    centres = mesh.centres
    at = A.at(centres, 0.0)
    if at.ndim == 2:
        at = np.broadcast_to(at, (len(at), d))[:, :, None] * np.eye(d)
    if density is None:
        rho = np.ones(len(centres))
    elif callable(density):
        rho = np.asarray(density(centres), dtype=np.float64)
        _checks.shape("density", rho.shape, (len(centres),), why="with one value per point")
    else:
        rho = same_shape("density", density, (len(mesh.nodes),), "the vertices")[mesh.cells].mean(1)
    _checks.finite("density", rho)
    _checks.all_positive("density", rho, "numbers > 0 on the whole mesh", "mask what has no mass")
    found = _whitney.hodge(mesh, integrals, at, rho, **_solver(gamma, max_condition))
    return found, found.solve


def _solver(gamma: float, max_condition: float) -> dict[str, float]:
    start = _checks.at_least("gamma", gamma, 0)
    limit = _checks.above("max_condition", max_condition, 1, "e.g. 1e8")
    return {"gamma": start, "max_condition": limit}


def _result(
    energy: float,
    kinetic: float,
    error: float | None,
    found: Interval | None,
    theta: Float,
    remainder: Float,
    method: str,
    solve: PoissonSolve,
) -> RotationalEnergy:
    return RotationalEnergy(
        energy,
        kinetic,
        error,
        found,
        theta,
        remainder,
        method,
        solve.gamma,
        solve.condition,
        solve.n_iter,
        solve.residual,
        solve.preconditioner,
        solve.converged,
    )


def _at_points(name: str, value: SpaceField, x: Float) -> Float:
    if callable(value):
        found = np.asarray(value(x), dtype=np.float64)
        _checks.shape(name, found.shape, x.shape, what="a function whose value is")
        _checks.finite(name, found)
        return found
    return same_shape(name, value, x.shape, "the points")


def _weights(weights: npt.ArrayLike | None, n: int) -> Float:
    if weights is None:
        return np.full(n, 1 / n)
    w = same_shape("weights", weights, (n,), "the points")
    total = float(w.sum())
    if not ((w >= 0).all() and total > 0):
        raise ValueError(
            "weights: wanted numbers >= 0 with a positive sum, got negative or only zeros"
        )
    return w / total
