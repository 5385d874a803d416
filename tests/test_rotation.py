"""Rotational energy (EOT-11): fields with known Hodge parts on meshes and samples, and the linear solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from qkcore.diagnostics import _poisson, _whitney, rotation
from qkcore.diagnostics._tensor import DiffusionTensor

from .reference_diagnostics import Array, mobility, triangle_torsion

ZERO = 1e-20  # share of the kinetic energy that counts as solver precision, squared


def spin(x: Array) -> Array:
    return np.stack([x[:, 1], -x[:, 0]], axis=1)


# Example 5.4


def test_two_simplex_example() -> None:
    """EOT-11, example 5.4: gradient flow none; rotation beta^2 x twice the rigidity of the triangle."""
    sigma2, alpha = 0.7, 1.3
    gradient = rotation.on_simplex(lambda p: -alpha * sigma2 * p, 12, a=sigma2)
    assert gradient.normalized < ZERO
    assert gradient.theta.std() > 0
    exact = 8 * triangle_torsion()  # (2 beta)^2 / area x integral of psi, at beta = 1
    assert abs(exact - 0.05217949) < 5e-7
    found = [rotation.on_simplex(spin, n).energy for n in (8, 16, 32)]
    errors = np.array(found) - exact
    orders = np.log2(errors[:-1] / errors[1:])
    assert (np.abs(orders - 2) < 0.1).all()  # the stated order
    extrapolated = (4 * found[2] - found[1]) / 3
    assert abs(extrapolated - exact) < 2e-4 * exact
    twice = rotation.on_simplex(lambda p: 2 * spin(p), 16, a=sigma2)
    assert twice.energy == pytest.approx(4 * found[1] / sigma2, rel=1e-11)  # proportional to beta^2
    centred = rotation.on_simplex(lambda p: spin(p - 1 / 3), 16)  # "around the simplex centre"
    assert centred.energy == pytest.approx(found[1], rel=1e-11)
    assert gradient.kinetic == pytest.approx(
        alpha**2 * sigma2 / 3, rel=0.01
    )  # E (p1^2 + p2^2) = 1/3


def test_simplices_of_other_sizes() -> None:
    """A line has no rotation; in the three-simplex a gradient has none and a rotation has some."""
    line = rotation.on_simplex(lambda p: np.sin(3 * p), 20, states=2)
    assert line.normalized < ZERO
    solid = rotation.on_simplex(lambda p: np.exp(p), 5, states=4)
    assert solid.normalized < ZERO
    turned = rotation.on_simplex(
        lambda p: np.stack([p[:, 1], -p[:, 0], 0 * p[:, 0]], axis=1), 6, states=4
    )
    assert 0.05 < turned.normalized < 0.9
    mesh = _whitney.simplex_mesh(3, 4)
    corners = mesh.nodes[mesh.cells]
    volumes = np.abs(np.linalg.det(corners[:, 1:] - corners[:, :1])) / 6
    assert volumes.sum() == pytest.approx(1 / 6) and len(mesh.cells) == 4**3
    assert (mesh.nodes >= 0).all() and (mesh.nodes.sum(axis=1) <= 1 + 1e-15).all()


def test_mobility_as_tensor() -> None:
    """A flow J grad theta on the simplex is potential in the metric of the mobility (corollary 5.6)."""

    def J(p: Array, t: float = 0.0) -> Array:
        full = np.einsum("ni,ij->nij", p, np.eye(p.shape[1])) - np.einsum("ni,nj->nij", p, p)
        return full + 1e-9 * np.eye(p.shape[1])

    def flow(p: Array) -> Array:
        return np.einsum("nij,nj->ni", J(p), np.stack([p[:, 0], -2 * p[:, 1]], axis=1))

    p = np.random.default_rng(0).dirichlet([2, 2, 2])
    np.testing.assert_allclose(
        J(p[None, :2])[0] - 1e-9 * np.eye(2), mobility(p)[:2, :2], atol=1e-15
    )
    assert rotation.on_simplex(flow, 10, a=J).normalized < 1e-12
    with pytest.raises(ValueError, match=r"positive definite.*epsilon I"):
        rotation.on_simplex(flow, 10, a=lambda p: J(p) - 1e-9 * np.eye(2))


# Grids


def wave(x: Array) -> tuple[Array, Array]:
    """A solenoidal field tangent to the unit square and a gradient with no normal part."""
    c, s = np.cos(np.pi * x), np.sin(np.pi * x)
    curl = np.pi * np.stack([s[:, 0] * c[:, 1], -c[:, 0] * s[:, 1]], axis=1)
    gradient = -np.pi * np.stack([s[:, 0] * c[:, 1], c[:, 0] * s[:, 1]], axis=1)
    return curl, gradient


def test_grid_converges_with_order_two() -> None:
    """EOT-11: known energies pi^2/2 of both parts; the sum splits into them."""
    errors = []
    for n in (9, 17, 33):
        R = rotation.on_grid(lambda x: wave(x)[0] + 2 * wave(x)[1], 1 / (n - 1), shape=(n, n))
        errors.append(abs(R.energy - np.pi**2 / 2))
        assert R.converged
    assert (np.abs(np.log2(np.array(errors[:-1]) / errors[1:]) - 2) < 0.1).all()
    assert errors[-1] < 2e-3 * np.pi**2 / 2


def test_values_at_vertices_converge_too() -> None:
    errors = []
    for n in (9, 17, 33):
        axes = np.meshgrid(*[np.linspace(0, 1, n)] * 2, indexing="ij")
        x = np.stack([a.ravel() for a in axes], axis=1)
        u = (wave(x)[0] + wave(x)[1]).reshape(n, n, 2)
        errors.append(abs(rotation.on_grid(u, 1 / (n - 1)).energy - np.pi**2 / 2))
    assert (np.abs(np.log2(np.array(errors[:-1]) / errors[1:]) - 2) < 0.2).all()


TENSORS: dict[str, Any] = {
    "identity": None,
    "scalar": 0.3,
    "diagonal": np.array([0.5, 2.0]),
    "full": np.array([[2.0, 0.8], [0.8, 1.0]]),
    "varying": lambda x, t: np.stack([1 + x[:, 0] ** 2, 2 + np.sin(x[:, 1])], axis=1),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("density", ["uniform", "gaussian"])
def test_potential_flows_have_no_rotation(kind: str, density: str) -> None:
    """EOT-11: u = b + a grad theta gives zero at solver precision, whatever a, mu, b and the mask."""
    a = TENSORS[kind]

    def gradient(x: Array) -> Array:
        return np.stack([np.cos(x[:, 0]) * x[:, 1], np.sin(x[:, 0]) + 3 * x[:, 1] ** 2], axis=1)

    def reference(x: Array) -> Array:
        return spin(x) + 1

    def u(x: Array) -> Array:
        T = DiffusionTensor(1.0 if a is None else a, 2)
        return T.apply(x, 0.0, gradient(x)) + reference(x)

    rho = None if density == "uniform" else lambda x: np.exp(-((x - 0.5) ** 2).sum(axis=1))
    n = 13
    axes = np.meshgrid(*[np.linspace(-1, 1, n)] * 2, indexing="ij")
    disc = axes[0] ** 2 + axes[1] ** 2 <= 1
    for mask in (None, disc):
        R = rotation.on_grid(
            u, 2 / (n - 1), shape=(n, n), origin=(-1, -1), a=a, density=rho, mask=mask,
            reference=reference,
        )  # fmt: skip
        assert R.normalized < ZERO, str(R)
    found = R.theta[disc]  # the potential is the known one, up to a constant
    x = np.stack([axes[0][disc], axes[1][disc]], axis=1)
    wanted = np.sin(x[:, 0]) * x[:, 1] + x[:, 1] ** 3
    used = np.isfinite(found)
    difference = found[used] - wanted[used]
    assert np.ptp(difference) < 1e-9


def test_rotation_of_a_disc_keeps_its_energy() -> None:
    """A rotation is tangent to circles: with any radial density all of it remains, for a = sigma^2 I."""
    errors = []
    for n in (33, 65):
        axes = np.meshgrid(*[np.linspace(-1, 1, n)] * 2, indexing="ij")
        disc = axes[0] ** 2 + axes[1] ** 2 <= 1
        R = rotation.on_grid(
            spin, 2 / (n - 1), shape=(n, n), origin=(-1, -1), mask=disc, a=0.5,
            density=lambda x: np.exp(-4 * (x**2).sum(axis=1)),
        )  # fmt: skip
        errors.append(1 - R.normalized)
    assert errors[1] < 0.01 and errors[1] < 0.7 * errors[0]


def test_in_three_dimensions() -> None:
    def u(x: Array) -> Array:
        return np.stack([x[:, 1], -x[:, 0], np.exp(x[:, 2])], axis=1)

    R = rotation.on_grid(u, 0.25, shape=(9, 9, 9), origin=(-1, -1, -1))
    # the spin part in each layer is that of the square: energy 4 x torsion of the square of side 2 / area
    k = np.arange(1, 400, 2)
    M, N = np.meshgrid(k, k)
    torsion = float((64 / (np.pi**6 * (M * N) ** 2 * (M**2 + N**2))).sum()) * 2**4
    assert abs(R.energy / (4 * torsion / 4) - 1) < 0.03
    assert (
        abs(rotation.on_grid(lambda x: spin(x[:, :2]), 0.05, shape=(41, 41)).energy / (torsion) - 1)
        < 0.01
    )


def test_the_weight_belongs_into_the_equation() -> None:
    """Erratum (EOT, appendix G): without mu in the Poisson equation the remainder is larger."""

    def u(x: Array) -> Array:
        return np.stack([np.sin(3 * x[:, 1]) + x[:, 0] ** 2, x[:, 0] * x[:, 1]], axis=1)

    def rho(x: Array) -> Array:
        return np.exp(-6 * x[:, 0])

    n = 33
    right = rotation.on_grid(u, 1 / (n - 1), shape=(n, n), density=rho)
    plain = rotation.on_grid(u, 1 / (n - 1), shape=(n, n))
    mesh = _whitney.Mesh(
        np.stack(
            [a.ravel() for a in np.meshgrid(*[np.linspace(0, 1, n)] * 2, indexing="ij")], axis=1
        ),
        _whitney.grid_cells((n, n)),
    )
    mass = rho(mesh.centres)
    mass /= mass.sum()
    printed = float(mass @ (plain.remainder**2).sum(axis=1))
    best = float(mass @ (right.remainder**2).sum(axis=1))
    assert printed > 1.5 * best


def test_whitney_mass_reduces_to_linear_elements() -> None:
    """d^T M d is the stiffness matrix of linear elements: both sides of the normal equations agree."""
    rng = np.random.default_rng(0)
    mesh = _whitney.Mesh(rng.normal(size=(4, 3)), np.array([[0, 1, 2, 3]]))
    theta = rng.normal(size=4)
    begin, end = mesh.edges()
    a = np.eye(3)[None] + 0.2
    R = _whitney.hodge(mesh, theta[end] - theta[begin], a, np.ones(1))
    corners = mesh.nodes[1:] - mesh.nodes[0]
    slope = np.linalg.solve(corners, theta[1:] - theta[0])
    assert R.kinetic == pytest.approx(float(slope @ a[0] @ slope))
    assert R.energy < 1e-20 * R.kinetic


# Samples


@pytest.mark.parametrize("method", ["polynomial", "graph"])
def test_clouds(method: str) -> None:
    """EOT-11: a Gaussian in the plane; a gradient of degree two has none, a rotation keeps E|x|^2 = 2."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 2))
    H = np.array([[1.0, 0.3], [0.3, -0.5]])
    R = rotation.rotational_energy(X, X @ H, method=method)
    assert R.normalized < ZERO
    spun = rotation.rotational_energy(X, spin(X), method=method)
    assert 1 - spun.normalized < (0.04 if method == "polynomial" else 0.25)
    assert spun.standard_error is not None and spun.interval is not None
    assert spun.interval[0] < spun.energy < spun.interval[1]
    exact = float((X**2).sum(axis=1).std(ddof=1) / np.sqrt(len(X)))
    assert abs(spun.standard_error / exact - 1) < 0.2
    assert "rotational energy" in str(spun) and float(spun) == spun.energy
    if method == "polynomial":
        assert abs(spun.energy - 2) < 4 * spun.standard_error


@pytest.mark.parametrize("method", ["polynomial", "graph"])
def test_tensor_in_clouds(method: str) -> None:
    """u = a grad theta with full a has none; in coordinates where a = I nothing changes."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(800, 3))
    a = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.7]])
    H = rng.normal(size=(3, 3))
    assert rotation.rotational_energy(X, X @ (H + H.T) @ a, a, method=method).normalized < ZERO
    root = scipy.linalg.sqrtm(a).real
    u = np.cos(X[:, ::-1])
    R = rotation.rotational_energy(X, u, a, method=method)
    inverse = np.linalg.inv(root)
    same = rotation.rotational_energy(X @ inverse, u @ inverse, method=method)
    assert R.energy == pytest.approx(same.energy, rel=1e-6)


def test_polynomials_resolve_what_they_span_and_agree_with_the_mesh() -> None:
    rng = np.random.default_rng(3)
    P = rng.dirichlet([1, 1, 1], size=20_000)[:, :2]
    sampled = rotation.rotational_energy(P, spin(P))
    assert sampled.standard_error is not None
    assert abs(sampled.energy - 0.0521795) < 5 * sampled.standard_error + 5e-4
    X = rng.normal(size=(2000, 2))
    quartic = np.stack([4 * X[:, 0] ** 3 * X[:, 1], X[:, 0] ** 4 + 2 * X[:, 1]], axis=1)
    assert rotation.rotational_energy(X, quartic).normalized < ZERO
    assert rotation.rotational_energy(X, quartic, degree=2).normalized > 0.01
    varying = rotation.rotational_energy(
        X, quartic * (1 + X[:, :1] ** 2), lambda x, t: 1 + x[:, 0] ** 2
    )
    assert varying.normalized < ZERO


def test_reference_weights_and_paths() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(600, 2))
    u = -X + 0.3 * spin(X)
    assert rotation.rotational_energy(X, u, reference=lambda x: 0.3 * spin(x)).normalized < ZERO
    whole = rotation.rotational_energy(X, u)
    repeated = rotation.rotational_energy(
        np.repeat(X, 2, axis=0), np.repeat(u, 2, axis=0), degree=3
    )
    weighted = rotation.rotational_energy(X, u, weights=np.full(600, 2.0), degree=3)
    assert weighted.energy == pytest.approx(repeated.energy, rel=1e-10)
    assert whole.kinetic == pytest.approx(float((u**2).sum(axis=1).mean()))
    angle = 0.02
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    states = [X]
    for _ in range(5):
        states.append(states[-1] @ turn)
    path = rotation.path_energy(np.array(states))
    assert len(path.layers) == 5 and path.normalized > 0.9
    assert abs(path.energy / ((X**2).sum(axis=1).mean() * (5 * angle) ** 2) - 1) < 0.1
    assert "5 layers" in str(path)


@given(st.integers(0, 10_000))
def test_energy_lies_between_zero_and_the_kinetic_energy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 2)) * rng.uniform(0.1, 10, size=2)
    u = rng.normal(size=(60, 2)) + X @ rng.normal(size=(2, 2))
    R = rotation.rotational_energy(X, u, degree=2, n_resamples=10)
    assert 0 <= R.energy <= R.kinetic * (1 + 1e-9)
    shifted = rotation.rotational_energy(
        X, u + X @ np.array([[1, 2], [2, -3.0]]), degree=2, n_resamples=10
    )
    assert shifted.energy == pytest.approx(R.energy, rel=1e-8, abs=1e-10)  # gradients do not count


# The solver


def laplacian(n: int) -> sp.csr_matrix:
    one = sp.diags([2.0, -1.0, -1.0], [0, 1, -1], shape=(n, n))
    eye = sp.identity(n)
    return sp.csr_matrix(sp.kron(one, eye) + sp.kron(eye, one))


def test_incomplete_cholesky_is_ic0() -> None:
    """On the pattern of A the product L L^T is A (that is what defines it); sequential elimination agrees."""
    A = laplacian(9)
    L = _poisson.incomplete_cholesky(A)
    assert L is not None
    product = (L @ L.T).tocsr()
    on_pattern = product.multiply(A != 0)
    assert abs(on_pattern - A).max() < 1e-9
    dense = A.toarray()
    n = len(dense)
    pattern = dense != 0
    wanted = np.tril(dense)
    for k in range(n):  # the textbook loop
        wanted[k, k] = np.sqrt(wanted[k, k])
        below = np.arange(k + 1, n)[pattern[k + 1 :, k]]
        wanted[below, k] /= wanted[k, k]
        for j in below:
            rows = below[(below >= j) & pattern[below, j]]
            wanted[rows, j] -= wanted[rows, k] * wanted[j, k]
    np.testing.assert_allclose(L.toarray(), wanted, atol=1e-9)


def test_preconditioning_helps_and_solves() -> None:
    A = laplacian(40)
    b = np.random.default_rng(5).normal(size=1600)
    M = _poisson.Preconditioner(A)
    x, steps, residual = _poisson.conjugate_gradients(A, b, M, tol=1e-12, max_iter=1000)
    np.testing.assert_allclose(A @ x, b, atol=1e-9)
    _, plain, _ = _poisson.conjugate_gradients(A, b, lambda r: r, tol=1e-12, max_iter=1000)  # type: ignore[arg-type]
    assert residual < 1e-11 and steps < 0.5 * plain
    assert M.name == "IC(0)"
    low, high = _poisson.extreme_eigenvalues(A)
    angle = np.pi / 82
    assert high == pytest.approx(8 * np.cos(angle) ** 2, rel=1e-3)
    assert low == pytest.approx(8 * np.sin(angle) ** 2, rel=2e-2)


def test_tikhonov_is_raised_until_the_condition_number_is_met() -> None:
    """EOT-11 (N.2): gamma and the number reached are recorded; none where none is needed."""
    values = np.geomspace(1, 1e-13, 40)
    Q = np.linalg.qr(np.random.default_rng(6).normal(size=(40, 40)))[0]
    A = sp.csr_matrix((Q * values) @ Q.T)
    A = sp.csr_matrix(0.5 * (A + A.T))
    out = _poisson.solve(A, np.ones(40))
    assert out.gamma > 0 and out.condition <= 1e8
    full = A.toarray() + out.gamma * A.diagonal().mean() * np.eye(40)
    assert np.linalg.cond(full) == pytest.approx(out.condition, rel=1e-3)
    assert out.residual < 1e-6
    assert _poisson.solve(laplacian(5), np.ones(25)).gamma == 0
    assert _poisson.solve(laplacian(5), np.ones(25), gamma=1e-5).gamma == 1e-5
    thin = np.random.default_rng(7).normal(size=(300, 2)) * [1, 1e-7]
    R = rotation.rotational_energy(thin, spin(thin))
    assert R.condition <= 1e8 and np.isfinite(R.energy)


def test_breakdown_of_the_incomplete_factor_is_repaired() -> None:
    """Kershaw's matrix is positive definite, its IC(0) is not: the diagonal is lifted, and said so."""
    K = np.array([[3.0, -2, 0, 2], [-2, 3, -2, 0], [0, -2, 3, -2], [2, 0, -2, 3]])
    assert np.linalg.eigvalsh(K).min() > 0
    assert _poisson.incomplete_cholesky(sp.csr_matrix(K / 3)) is None
    big = sp.csr_matrix(np.kron(np.eye(8), K / 3))
    M = _poisson.Preconditioner(big)
    assert M.shift > 0 and "added to its diagonal" in M.name
    b = np.arange(32.0)
    _, _, residual = _poisson.conjugate_gradients(big, b, M, tol=1e-12, max_iter=100)
    assert residual < 1e-11


X = np.random.default_rng(8).normal(size=(50, 2))
ERRORS: list[tuple[str, Any, type[Exception], str]] = [
    ("shape", lambda: rotation.rotational_energy(X, X[:, :1]), ValueError, r"u:.*\(50, 2\)"),
    ("nan", lambda: rotation.rotational_energy(X * np.nan, X), ValueError, "X.*finite"),
    ("nan u", lambda: rotation.rotational_energy(X, X * np.inf), ValueError, "u.*inf"),
    ("few", lambda: rotation.rotational_energy(X[:2], X[:2]), ValueError, "X:.*at least 3"),
    (
        "singular",
        lambda: rotation.rotational_energy(X, X, np.diag([1.0, 0.0])),
        ValueError,
        "a:.*epsilon",
    ),
    ("zero", lambda: rotation.rotational_energy(X, X, 0.0), ValueError, "a:.*positive definite"),
    (
        "singular graph",
        lambda: rotation.rotational_energy(X, X, np.diag([1.0, 0.0]), method="graph"),
        ValueError,
        "a:.*epsilon",
    ),
    (
        "varying graph",
        lambda: rotation.rotational_energy(X, X, lambda x, t: 1 + x[:, 0] ** 2, method="graph"),
        ValueError,
        "a:.*constant",
    ),
    ("degree", lambda: rotation.rotational_energy(X, X, degree=40), ValueError, "degree.*too many"),
    (
        "weights",
        lambda: rotation.rotational_energy(X, X, weights=-np.ones(50)),
        ValueError,
        "weights",
    ),
    ("gamma", lambda: rotation.rotational_energy(X, X, gamma=-1.0), ValueError, "gamma.*>= 0"),
    (
        "condition",
        lambda: rotation.rotational_energy(X, X, max_condition=0.5),
        ValueError,
        "max_condition",
    ),
    ("grid", lambda: rotation.on_grid(np.zeros((4, 4, 3)), 1.0), ValueError, "u:.*grid"),
    ("no shape", lambda: rotation.on_grid(spin, 1.0), ValueError, "shape"),
    ("spacing", lambda: rotation.on_grid(np.zeros((4, 4, 2)), 0.0), ValueError, "spacing"),
    (
        "mask",
        lambda: rotation.on_grid(np.zeros((4, 4, 2)), 1.0, mask=np.zeros((4, 4), bool)),
        ValueError,
        "mask.*at least one",
    ),
    (
        "density",
        lambda: rotation.on_grid(spin, 1.0, shape=(4, 4), density=lambda x: 0 * x[:, 0]),
        ValueError,
        "density.*> 0",
    ),
    ("states", lambda: rotation.on_simplex(spin, 4, states=7), ValueError, "states.*samples"),
    ("layers", lambda: rotation.path_energy(X[None]), ValueError, "X:.*two layers"),
]


@pytest.mark.parametrize(("name", "call", "error", "match"), ERRORS, ids=[e[0] for e in ERRORS])
def test_bad_input(name: str, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_no_rotation_does_not_make_a_bridge() -> None:
    """Erratum (EOT 5.1, 5.2): a path of N(0, s(t)^2) has R = 0 whatever s, and is no Schrödinger bridge.

    From N(0, 1) back to N(0, 1) over Brownian motion the bridge has variance 1.059 half-way; a path that
    dips to 0.25 there has KL 0.34 to it, and zero rotational energy.
    """
    t = np.linspace(0, 1, 21)
    variance = 1 - 0.75 * np.sin(np.pi * t) ** 2
    x = np.random.default_rng(9).normal(size=(500, 1))
    path = np.sqrt(variance)[:, None, None] * x
    energy = rotation.path_energy(path)
    assert energy.normalized < ZERO
    in_plane = rotation.path_energy(
        np.sqrt(variance)[:, None, None] * np.random.default_rng(9).normal(size=(500, 2))
    )
    assert in_plane.normalized < ZERO
    covariance = (np.sqrt(5) - 1) / 2  # the coupling of the ends, for unit variances and sigma = 1
    half = 0.5 + 0.5 * covariance + 0.25
    assert half == pytest.approx(1.059, abs=1e-3)
    kl = 0.5 * (0.25 / half - 1 - np.log(0.25 / half))
    assert kl == pytest.approx(0.34, abs=0.005)


def test_many_dimensions() -> None:
    """Degree two up to 43 dimensions, the graph above; contractions are gradients in both."""
    rng = np.random.default_rng(10)
    for n, d, method in ((400, 12, "meshless"), (60, 30, "meshless"), (150, 50, "graph")):
        X = rng.normal(size=(n, d))
        S = rng.normal(size=(d, d))
        assert rotation.rotational_energy(X, X @ (S + S.T)).normalized < ZERO
        R = rotation.rotational_energy(X, X @ (S - S.T))
        assert R.method.startswith(method) and R.normalized > 0.7


def test_too_dense_for_an_incomplete_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where IC(0) would take too much memory the diagonal serves, and the result says so."""
    X = np.random.default_rng(11).normal(size=(700, 2))
    wanted = rotation.rotational_energy(X, spin(X), method="graph")
    monkeypatch.setattr(_poisson, "_MOST_PAIRS", 10)
    R = rotation.rotational_energy(X, spin(X), method="graph")
    assert R.preconditioner == "diagonal" and R.converged and R.n_iter > wanted.n_iter
    assert R.energy == pytest.approx(wanted.energy, rel=1e-8)
