"""The Hodge decomposition on a mesh of simplices, by Whitney's forms.

The covector field :math:`\\eta = a^{-1}(u - b_R)` is known by its integrals along edges. Whitney's edge forms
interpolate them, vertex values give :math:`\\theta`, and

.. math:: \\min_\\theta\\ \\int \\langle \\eta - \\nabla\\theta,\\ a(\\eta - \\nabla\\theta)\\rangle\\,d\\mu

is a sparse Laplacian (that of linear elements, Neumann's condition built in). A potential flow has edge
integrals :math:`\\theta_j - \\theta_i`: its remainder is exactly zero on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations
from math import factorial

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from . import _poisson
from ._arrays import Float

Index = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Mesh:
    """Vertices (n, d) and simplices (m, d + 1)."""

    nodes: Float
    cells: Index

    @property
    def d(self) -> int:
        return int(self.nodes.shape[1])

    @property
    def centres(self) -> Float:
        """Where tensors and densities are evaluated: once per simplex."""
        out: Float = self.nodes[self.cells].mean(axis=1)
        return out

    def edges(self) -> tuple[Index, Index]:
        """Begin and end of every edge of every simplex: (m, d (d + 1) / 2) each."""
        pairs = list(combinations(range(self.d + 1), 2))
        return self.cells[:, [i for i, _ in pairs]], self.cells[:, [j for _, j in pairs]]


def grid_cells(shape: tuple[int, ...]) -> Index:
    """Kuhn's triangulation of a grid: every box is cut into d! simplices, all alike."""
    d = len(shape)
    strides = np.array([int(np.prod(shape[k + 1 :])) for k in range(d)], dtype=np.int64)
    corner = np.zeros(tuple(s - 1 for s in shape), dtype=np.int64)
    for k, s in enumerate(shape):
        index = np.arange(s - 1, dtype=np.int64) * strides[k]
        corner += index.reshape([-1 if j == k else 1 for j in range(d)])
    paths = []
    for order in permutations(range(d)):
        steps = np.concatenate([[0], np.cumsum(strides[list(order)])])
        paths.append(corner.ravel()[:, None] + steps)
    return np.concatenate(paths)


def simplex_mesh(d: int, n: int) -> Mesh:
    """The simplex {p >= 0, sum p <= 1} in d dimensions, every edge cut into n (Kuhn's subdivision).

    The ordered points :math:`1 \\ge x_1 \\ge \\dots \\ge x_d \\ge 0` of a grid are such a subdivision
    already; :math:`p_k = x_k - x_{k+1}` takes them to the simplex.
    """
    axes = np.meshgrid(*[np.arange(n + 1)] * d, indexing="ij")
    x = np.stack([axis.ravel() for axis in axes], axis=1)
    ordered = np.asarray((np.diff(x, axis=1) <= 0).all(axis=1))
    cells = grid_cells((n + 1,) * d)
    cells = cells[ordered[cells].all(axis=1)]
    number = np.cumsum(ordered) - 1
    y = x[ordered] / n
    p = y - np.concatenate([y[:, 1:], np.zeros((len(y), 1))], axis=1)
    return Mesh(p, number[cells])


@dataclass(frozen=True, eq=False)
class MeshHodge:
    """The decomposition on a mesh."""

    theta: Float
    remainder: Float
    """w at the centres of the simplices"""
    energy: float
    kinetic: float
    solve: _poisson.PoissonSolve


def edge_integrals(mesh: Mesh, form: Callable[[Float], Float] | Float) -> Float:
    """Integrals of a covector field along all edges (m, edges): trapezoidal from values at the vertices
    (exact for linear fields), five Gauss points for a function (exact up to degree nine)."""
    begin, end = mesh.edges()
    x0, along = mesh.nodes[begin], mesh.nodes[end] - mesh.nodes[begin]
    if not callable(form):
        middle = 0.5 * (form[begin] + form[end])
        return np.asarray(np.einsum("mek,mek->me", middle, along))
    nodes, weights = np.polynomial.legendre.leggauss(5)
    out = np.zeros(begin.shape)
    for s, w in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
        at = form((x0 + s * along).reshape(-1, mesh.d)).reshape(along.shape)
        out += w * np.einsum("mek,mek->me", at, along)
    return out


def hodge(
    mesh: Mesh,
    integrals: Float,
    a: Float,
    density: Float,
    **solver: float,
) -> MeshHodge:
    """Split edge integrals into differences of a potential and a remainder.

    ``a`` (m or 1, d, d) and ``density`` (m,) per simplex; the density is normalised to mass 1.
    """
    d = mesh.d
    corners = mesh.nodes[mesh.cells]
    sides = corners[:, 1:] - corners[:, :1]
    volume = np.abs(np.linalg.det(sides)) / factorial(d)
    mass = volume * density
    total = float(mass.sum())
    mass = mass / total
    inner = np.swapaxes(np.linalg.inv(sides), 1, 2)  # gradients of barycentric coordinates 1..d
    gradients = np.concatenate([-inner.sum(axis=1, keepdims=True), inner], axis=1)
    g = np.einsum("mik,mkl,mjl->mij", gradients, np.broadcast_to(a, (len(mass), d, d)), gradients)
    pairs = list(combinations(range(d + 1), 2))
    i, j = (np.array(side) for side in zip(*pairs, strict=True))
    overlap = (np.eye(d + 1) + 1) / ((d + 1) * (d + 2))  # means of products of two coordinates

    def term(p: Index, q: Index, r: Index, s: Index) -> Float:
        out: Float = overlap[np.ix_(p, q)] * g[:, r][:, :, s]
        return out

    whitney = term(i, i, j, j) - term(i, j, j, i) - term(j, i, i, j) + term(j, j, i, i)
    whitney *= mass[:, None, None]
    difference = np.zeros((len(pairs), d + 1))
    difference[np.arange(len(pairs)), i] = -1.0
    difference[np.arange(len(pairs)), j] = 1.0
    load = np.einsum("ev,mef,mf->mv", difference, whitney, integrals)
    n = len(mesh.nodes)
    b = np.bincount(mesh.cells.ravel(), load.ravel(), minlength=n).astype(np.float64)
    stiffness = g * mass[:, None, None]
    rows = np.repeat(mesh.cells, d + 1, axis=1).ravel()
    columns = np.tile(mesh.cells, (1, d + 1)).ravel()
    A = sp.csr_matrix((stiffness.ravel(), (rows, columns)), shape=(n, n))
    theta, solve = solve_grounded(A, b, **solver)
    left = integrals - np.einsum("ev,mv->me", difference, theta[mesh.cells])
    energy = float(np.einsum("me,mef,mf->", left, whitney, left))
    kinetic = float(np.einsum("me,mef,mf->", integrals, whitney, integrals))
    covector = np.einsum("me,mek->mk", left, gradients[:, j] - gradients[:, i]) / (d + 1)
    w = np.einsum("mkl,ml->mk", np.broadcast_to(a, (len(mass), d, d)), covector)
    return MeshHodge(theta, w, max(energy, 0.0), kinetic, solve)


def solve_grounded(
    A: sp.csr_matrix, b: Float, **solver: float
) -> tuple[Float, _poisson.PoissonSolve]:
    """Solve a Laplacian system: one vertex of each component is held at 0, then the mean is removed."""
    n = A.shape[0]
    # Entries that cancel leave the pattern: Kuhn's diagonals carry nothing when a is isotropic.
    keep = np.abs(A.data) > 1e-14 * float(np.abs(A.data).max())
    coo = A.tocoo()
    A = sp.csr_matrix((coo.data[keep], (coo.row[keep], coo.col[keep])), shape=(n, n))
    _, label = connected_components(A, directed=False)
    _, held = np.unique(label, return_index=True)
    free = np.ones(n, dtype=bool)
    free[held] = False
    theta = np.zeros(n)
    if not free.any():
        return theta, _poisson.PoissonSolve(theta, 0.0, 1.0, 0, 0.0, "none", True)
    inner = sp.csr_matrix(A[free][:, free])
    solve = _poisson.solve(inner, b[free], **solver)  # type: ignore[arg-type]
    theta[free] = solve.theta
    size = np.bincount(label)
    theta -= (np.bincount(label, theta) / size)[label]
    return theta, solve
