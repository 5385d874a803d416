"""MagneticMap, masked operators, and refused input."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

import qkcore as qk
from qkcore import magnetic
from qkcore._bandwidth import median_rule
from qkcore._estimator import NotFittedError
from tests.reference_magnetic import (
    COMPLEX,
    Array,
    both_types,
    eps_of,
    naive_phases,
    problem,
    squared_distances,
)

# ---- the estimator --------------------------------------------------------------------------------


@both_types
@pytest.mark.parametrize("n", [1, 2, 65, 200])
def test_magnetic_map(n: int, dtype: str) -> None:
    """DAC-6: the embedding is lambda^t psi of the operator, and extends to the points it came from."""
    X, W, _ = problem(n, dtype)
    k = min(n, 3)
    for t in (1, 2):
        model = magnetic.MagneticMap(k, beta=0.3, W=W, gamma=0.5, metric="euclidean", t=t)
        got = model.fit_transform(X)
        assert got.dtype == COMPLEX[dtype] and got.shape == (n, k)
        op = magnetic.operator(X, beta=0.3, W=W, gamma=0.5, metric="euclidean")
        values, vectors = op.spectrum(k)
        np.testing.assert_array_equal(model.eigenvalues_, values)
        np.testing.assert_array_equal(model.eigenvectors_, vectors)
        np.testing.assert_allclose(got, vectors * values**t, rtol=1e-6)
        scale = np.abs(got).max()
        np.testing.assert_allclose(model.transform(X), got, atol=3e3 * eps_of(dtype) * scale)
        assert model.beta_ == 0.3 and model.n_features_in_ == 3
    again = magnetic.MagneticMap(k, beta=0.3, W=W, gamma=0.5, metric="euclidean", t=2).fit(X)
    assert again.embedding_.tobytes() == got.tobytes()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("metric", ["W", "euclidean"])
def test_nystrom(alpha: float, d: int, metric: str) -> None:
    """psi(x) = 1/lambda sum_j P(x, x_j) e^{i theta(x, x_j)} psi_j, by hand, for new points."""
    rng = np.random.default_rng(d)
    X, new = rng.standard_normal((60, d)), rng.standard_normal((11, d))
    W = np.eye(d) + 0.4 * rng.standard_normal((d, d))  # its symmetric part may be indefinite
    beta = 0.2 / d
    model = magnetic.MagneticMap(4, beta=beta, W=W, alpha=alpha, metric=metric).fit(X)
    S = (W + W.T) / 2 if metric == "W" else np.eye(d)
    K, k = (np.exp(-beta * squared_distances(P, X, S)) for P in (X, new))
    q = K.sum(axis=1)
    K = K / np.outer(q, q) ** alpha
    k = k / q**alpha
    U, u = (np.exp(1j * P @ ((W - W.T) / 2) @ X.T) for P in (X, new))
    E = K * U / K.sum(axis=1, keepdims=True)
    values, psi = model.eigenvalues_, model.eigenvectors_
    np.testing.assert_allclose(E @ psi, psi * values, atol=1e-10)
    np.testing.assert_allclose(values, np.sort(np.linalg.eigvals(E).real)[::-1][:4], atol=1e-11)
    want = (k * u / k.sum(axis=1, keepdims=True)) @ psi / values
    np.testing.assert_allclose(model.transform(new), want * values, atol=1e-10)
    model.set_params(t=0)
    np.testing.assert_allclose(model.transform(new), want, atol=1e-9)


def test_median_rule() -> None:
    """beta = None: one over the median squared distance between different points, in the metric."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    upper = np.triu_indices(300, 1)
    beta = magnetic.MagneticMap().fit(X).beta_
    assert beta == pytest.approx(1 / np.median(squared_distances(X, X)[upper]))
    W = np.diag([1.0, 4.0, 9.0]) + np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0.0]])
    beta = magnetic.MagneticMap(W=W).fit(X).beta_
    assert beta == pytest.approx(1 / np.median(squared_distances(X, X, W)[upper]))
    repeated = np.vstack([np.zeros((200, 3)), X[:2]])
    distances = squared_distances(repeated[-3:], repeated[-3:])
    rest = [distances[0, 1]] * 200 + [distances[0, 2]] * 200 + [distances[1, 2]]
    assert magnetic.MagneticMap().fit(repeated).beta_ == pytest.approx(1 / np.median(rest))
    assert magnetic.MagneticMap(1).fit(np.ones((5, 2))).beta_ == 1
    many = rng.standard_normal((2500, 2))
    one, two = (median_rule(many) for _ in range(2))
    assert one.beta == two.beta and one.beta is not None and 0.15 < one.beta < 0.5
    assert one.minus.shape == (1000, 1000) and one.lowest == 0
    assert median_rule(X, np.diag([1.0, -1.0, 1.0])).lowest < -1


def test_scikit_learn_conventions() -> None:
    """clone, Pipeline, set_params and integer data."""
    base = pytest.importorskip("sklearn.base")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    X, W, _ = problem(50)
    model = magnetic.MagneticMap(3, W=W, beta=0.2)
    copy = base.clone(model)
    assert copy is not model and copy.get_params().keys() == model.get_params().keys()
    assert copy.fit_transform(X).tobytes() == model.fit(X).embedding_.tobytes()
    made = pipeline.make_pipeline(preprocessing.StandardScaler(), model)
    out = made.fit_transform(X)
    assert out.shape == (50, 3) and np.iscomplexobj(out)
    np.testing.assert_allclose(made.transform(X), out, atol=1e-11)
    made.set_params(magneticmap__n_components=2)
    assert made.fit_transform(X).shape == (50, 2)
    assert magnetic.MagneticMap(2).fit(np.arange(12).reshape(6, 2)).embedding_.shape == (6, 2)
    assert "n_components=4, beta=0.5" in repr(magnetic.MagneticMap(4, beta=0.5))
    with pytest.raises(ValueError, match="no such parameter"):
        model.set_params(bandwidth=1)


def test_the_estimator_keeps_its_own_points() -> None:
    X, W, _ = problem(30)
    mine = X.copy()
    model = magnetic.MagneticMap(2, W=W, beta=0.3).fit(mine)
    before = model.transform(X)
    mine[:] = 0
    np.testing.assert_array_equal(model.transform(X), before)


def test_a_directed_ring_is_seen_in_the_angles() -> None:
    """Points that drift round a noisy ring: the leading coordinate turns with the angle, DMAP's cannot."""
    rng = np.random.default_rng(2)
    phi = np.sort(rng.uniform(0, 2 * np.pi, 150))
    X = np.c_[np.cos(phi), np.sin(phi)] + 0.02 * rng.standard_normal((150, 2))
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]])
    # sin(a) phase per hop of angle a; the best mode advances by 2 turns per turn at gamma = 2.
    first = magnetic.MagneticMap(1, beta=8.0, W=turn, gamma=2.0).fit(X).embedding_[:, 0]
    winding = np.unwrap(np.angle(first))
    assert abs(abs(winding[-1] - winding[0]) / (phi[-1] - phi[0]) - 2) < 0.1


# ---- masked operators -----------------------------------------------------------------------------


@both_types
def test_symmetric_masks_keep_the_hermitian_form(dtype: str) -> None:
    X, W, rng = problem(40, dtype)
    keep = rng.random((40, 40)) < 0.4
    keep = keep | keep.T
    keep[7] = keep[:, 7] = False  # a state without any weight
    s = qk.scores.distance(X, beta=0.3)
    theta = naive_phases(X, W, 1.0)
    for masked, seen in (
        (s.masked(keep), keep),
        (s.window(3, 3), np.abs(np.subtract.outer(range(40), range(40))) <= 3),
    ):
        op = magnetic.MagneticOperator(qk.softmax(masked), magnetic.phases(X, W))
        K = np.exp(-0.3 * squared_distances(X, X)) * seen
        d = K.sum(axis=1)
        safe = np.where(d > 0, d, 1)
        H = K * np.exp(1j * theta) / np.sqrt(safe[:, None] * safe)
        tol = 300 * eps_of(dtype)
        np.testing.assert_allclose(op.hermitian().to_numpy(), H, atol=tol)
        np.testing.assert_allclose(op.spectrum()[0], np.linalg.eigvalsh(H)[::-1], atol=tol)
        np.testing.assert_allclose(op.stationary(), d / d.sum(), atol=tol)
        J = op.current()
        np.testing.assert_allclose(J, (d / d.sum() / safe)[:, None] * K * np.sin(theta), atol=tol)
    with pytest.raises(ValueError, match="no diagonal scaling makes Hermitian"):
        magnetic.MagneticOperator(qk.softmax(s.causal()), magnetic.phases(X, W)).hermitian()


def test_padding() -> None:
    """States left out on both sides are gone; left out on one side there is no Hermitian form."""
    X, W, _ = problem(20)
    gone = np.where(np.arange(20) < 15, 0.0, -np.inf)
    s = qk.scores.distance(X, beta=0.3)
    theta = magnetic.phases(X, W)
    op = magnetic.MagneticOperator(qk.softmax(s.shift(gone, gone)), theta)
    small = magnetic.operator(X[:15], beta=0.3, W=W, metric="euclidean")
    np.testing.assert_allclose(op.stationary(), np.r_[small.stationary(), np.zeros(5)], atol=1e-15)
    np.testing.assert_allclose(
        np.sort(op.spectrum()[0]), np.sort(np.r_[small.spectrum()[0], np.zeros(5)]), atol=1e-13
    )
    one_sided = magnetic.MagneticOperator(qk.softmax(s.shift(columns=gone)), theta)
    with pytest.raises(ValueError, match="no diagonal scaling"):
        one_sided.spectrum()


def test_attention_as_magnitude() -> None:
    """Magnitudes need not be reversible: flux and currents are there, the spectrum is refused."""
    X, W, _ = problem(30)
    A = qk.softmax(qk.scores.forward(X, W=W, beta=0.2))
    op = magnetic.MagneticOperator(A, magnetic.phases(X, W))
    np.testing.assert_allclose(op.stationary(), A.stationary(), atol=0)
    want = A.stationary()[:, None] * A.to_numpy() * np.sin(naive_phases(X, W, 1.0))
    np.testing.assert_allclose(op.current(), want, atol=1e-15)
    rho = np.full(30, 1 / 30)
    np.testing.assert_allclose(op.flux(rho), op.to_numpy() / 30, atol=1e-16)
    with pytest.raises(ValueError, match="no diagonal scaling makes Hermitian"):
        op.spectrum(2)
    # Symmetric phases are not a gauge field either.
    P = qk.softmax(qk.scores.distance(X))
    with pytest.raises(ValueError, match="antisymmetric"):
        magnetic.MagneticOperator(P, qk.scores.dot(X)).hermitian()


# ---- bad input ------------------------------------------------------------------------------------


def good(n: int = 5) -> tuple[Array, Array, magnetic.MagneticOperator]:
    X, W, _ = problem(n)
    return X, W, magnetic.operator(X, beta=1.0, W=W)


def raises(error: type[Exception], match: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        call()


def test_bad_right_hand_sides() -> None:
    _, _, op = good()
    V = np.ones((5, 2))
    raises(
        TypeError,
        "right operand of @: wanted complex128 or float64",
        lambda: op @ V.astype(np.float32),
    )
    raises(
        TypeError,
        "right operand of @: wanted complex128 or float64",
        lambda: op @ V.astype(np.complex64),
    )
    raises(
        TypeError,
        "right operand of @: wanted float32 or float64",
        lambda: op @ np.ones(5, dtype=int),
    )
    raises(
        TypeError, "right operand of @: wanted float32 or float64", lambda: op @ V.astype(">c16")
    )
    raises(
        ValueError, r"length 5 along the operator's columns.*U @ A", lambda: op @ np.ones((4, 5))
    )
    raises(ValueError, r"length 5 along the operator's rows.*A @ V", lambda: np.ones((5, 4)) @ op)
    raises(ValueError, r"wanted shape \(5,\) or \(\.\.\., 5, k\)", lambda: op @ np.ones((1, 5, 2)))
    raises(ValueError, "no axis of length 0", lambda: op @ np.ones((5, 0)))
    for bad in (np.nan, np.inf, 1j * np.nan):
        raises(
            ValueError, "right operand of @: wanted finite", lambda bad=bad: op @ np.full(5, bad)
        )
    raises(
        ValueError,
        "right operand of @: wanted finite",
        lambda: magnetic.laplacian(op) @ np.full(5, np.nan),
    )


def test_bad_points_and_weights() -> None:
    X, W, _ = good()
    f = magnetic.operator
    raises(TypeError, "X: .*complex128", lambda: f(X * 1j, beta=1.0, W=W))
    raises(TypeError, "W: .*complex128", lambda: f(X, beta=1.0, W=W * 1j))
    raises(TypeError, "W: wanted float64", lambda: f(X, beta=1.0, W=W.astype(np.float32)))
    raises(ValueError, "X: wanted finite", lambda: f(X * np.nan, beta=1.0, W=W))
    raises(ValueError, "W: wanted finite", lambda: f(X, beta=1.0, W=W * np.inf))
    raises(ValueError, r"W: wanted shape \(3, 3\)", lambda: f(X, beta=1.0, W=W[:2]))
    raises(ValueError, "inner sizes must agree", lambda: f(X, beta=1.0, W=(W[:, :2], W)))
    raises(ValueError, "tuple of 0", lambda: magnetic.phases(X, ()))
    raises(ValueError, "X: wanted no axis of length 0", lambda: f(X[None][:0], beta=1.0, W=W))
    raises(ValueError, "beta", lambda: f(X, beta=0.0, W=W))
    raises(ValueError, "gamma: wanted a finite", lambda: f(X, beta=1.0, W=W, gamma=np.nan))
    raises(TypeError, "gamma: wanted a real number", lambda: f(X, beta=1.0, W=W, gamma=1j))
    raises(TypeError, "gamma: wanted a real number", lambda: f(X, beta=1.0, W=W, gamma="1"))
    raises(ValueError, "metric: wanted", lambda: f(X, beta=1.0, W=W, metric="cosine"))
    raises(ValueError, "alpha: wanted", lambda: f(X, beta=1.0, W=W, alpha=-1.0))
    raises(
        ValueError,
        "gamma: wanted a number that float32",
        lambda: magnetic.phases(X.astype(np.float32), W.astype(np.float32), 1e300),
    )
    raises(OverflowError, "overflows", lambda: magnetic.phases(X * 1e200, W * 1e200))


def test_bad_operators() -> None:
    X, W, op = good()
    s, theta = qk.scores.distance(X), magnetic.phases(X, W)
    M = magnetic.MagneticOperator
    raises(TypeError, "magnitude: wanted a real operator", lambda: M(s, theta))
    raises(ValueError, "magnitude: wanted weights exp", lambda: M(qk.kernel(s, "relu"), theta))
    raises(TypeError, "phases: wanted angles as scores", lambda: M(qk.softmax(s), theta.to_numpy()))
    raises(
        ValueError,
        r"phases: wanted shape \(5, 5\)",
        lambda: M(qk.softmax(s), magnetic.phases(X, W, Y=X[:4])),
    )
    raises(
        TypeError,
        "phases: wanted float64",
        lambda: M(qk.softmax(s), magnetic.phases(X.astype(np.float32), W.astype(np.float32))),
    )
    raises(
        ValueError,
        "phases: wanted batch axes that broadcast",
        lambda: M(qk.softmax(s), magnetic.phases(X[None], W)),
    )
    raises(ValueError, "ragged", lambda: M(qk.softmax(s.ragged([0, 2, 5])), theta))
    for masked in (theta.causal(), theta.masked(np.eye(5) > 0), theta.window(1, 1)):
        raises(
            ValueError,
            "phases: wanted an angle for every pair",
            lambda t=masked: M(qk.softmax(s), t),
        )
    raises(
        ValueError,
        "phases: wanted an angle",
        lambda: M(qk.softmax(s), qk.scores.dense(np.full((5, 5), -np.inf))),
    )
    M(qk.softmax(s), theta.causal(4))  # a band that masks nothing
    raises(ValueError, "gauge_weight", lambda: M(qk.softmax(s), theta, gauge_weight=np.inf))
    raises(ValueError, "call normalized", lambda: op.kernel.flux())
    raises(ValueError, "take its transpose", lambda: op.T.current())
    raises(ValueError, "rho: wanted probabilities", lambda: op.flux(np.ones(5)))
    raises(TypeError, "rho: wanted float32 or float64", lambda: op.flux(np.ones(5) * 1j / 5))
    raises(ValueError, "k: wanted 1 to 5", lambda: op.spectrum(6))
    raises(ValueError, "k: wanted 1 to 5", lambda: op.spectrum(0))
    raises(ValueError, r"phi: wanted shape \(\.\.\., 5\)", lambda: op.gauge(np.ones(4)))
    raises(TypeError, "phi", lambda: op.gauge(np.ones(5) * 1j))
    raises(ValueError, "phi: wanted finite", lambda: op.gauge(np.full(5, np.nan)))
    raises(TypeError, "phi: wanted float64", lambda: op.gauge(np.ones(5, np.float32)))
    raises(TypeError, "op: wanted a magnetic operator", lambda: magnetic.laplacian(qk.softmax(s)))
    raises(ValueError, "kind: wanted", lambda: magnetic.laplacian(op, "signless"))
    raises(ValueError, "at least one", lambda: magnetic.hadamard())
    raises(
        TypeError,
        r"hadamard\[1\]: wanted an operator, got ndarray",
        lambda: magnetic.hadamard(op, np.ones((5, 5))),
    )
    other = magnetic.operator(X[:4], beta=1.0, W=W)
    raises(ValueError, "equal last two axes", lambda: magnetic.hadamard(op, other))
    single = magnetic.operator(X.astype(np.float32), beta=1.0, W=W.astype(np.float32))
    raises(TypeError, "one dtype", lambda: magnetic.hadamard(op, single))
    raises(ValueError, "E: wanted a square", lambda: magnetic.gauge_transform(X, np.ones(5)))
    raises(ValueError, "phi: wanted shape", lambda: magnetic.gauge_transform(W, np.ones(5)))
    raises(
        TypeError,
        "phi: wanted float64",
        lambda: magnetic.gauge_transform(W, np.ones(3, np.float32)),
    )
    raises(ValueError, "E: wanted finite", lambda: magnetic.gauge_transform(W * np.nan, np.ones(3)))


def test_bad_attention() -> None:
    X, _, _ = good()
    A = qk.softmax(qk.scores.dot(X))
    raises(TypeError, "A: wanted an attention operator", lambda: magnetic.log_flux(A.to_numpy()))
    s = qk.scores.dot(X)
    for masked in (
        s.causal(),
        s.window(1, 1),
        s.masked(np.tri(5) > 0),
        s.key_padding(np.arange(5) < 4),
        qk.scores.dense(np.where(np.eye(5) > 0, -np.inf, 0.0)),
    ):
        raises(ValueError, "weights both ways", lambda m=masked: magnetic.log_flux(qk.softmax(m)))
    raises(
        ValueError,
        "as many columns",
        lambda: magnetic.log_flux(qk.softmax(qk.scores.dot(X, X[:3]))),
    )
    ragged = qk.softmax(s.ragged([0, 2, 5]))
    raises(ValueError, "one problem", lambda: magnetic.log_flux(ragged))
    raises(ValueError, "rho: wanted positive", lambda: magnetic.log_flux(A, np.eye(5)[0]))
    raises(ValueError, "rho", lambda: magnetic.log_flux(A, np.ones(5)))
    raises(
        ValueError,
        r"phases: wanted shape \(4, 4\)",
        lambda: magnetic.from_attention(A, qk.softmax(qk.scores.distance(X[:4]))),
    )
    raises(ValueError, "gamma", lambda: magnetic.from_attention(A, gamma=np.inf))


def test_bad_estimators() -> None:
    X, W, _ = good()
    M = magnetic.MagneticMap
    raises(NotFittedError, "call fit", lambda: M().transform(X))
    raises(ValueError, "n_components: wanted 1 to 5", lambda: M(6).fit(X))
    raises(TypeError, "n_components: wanted an integer", lambda: M(2.0).fit(X))  # type: ignore[arg-type]
    raises(ValueError, "t: wanted", lambda: M(t=-1).fit(X))
    raises(ValueError, "beta", lambda: M(beta=-1.0).fit(X))
    raises(ValueError, "metric", lambda: M(metric="other").fit(X))
    raises(ValueError, "W: wanted shape", lambda: M(W=W[:2]).fit(X))
    raises(ValueError, "X: wanted", lambda: M().fit(X[0]))
    raises(ValueError, "X: wanted finite", lambda: M().fit(X * np.nan))
    raises(ValueError, "X: .*complex", lambda: M().fit(X * 1j))
    fitted = M(W=W).fit(X)
    raises(ValueError, "X: wanted 3 features", lambda: fitted.transform(X[:, :2]))
    ring = np.array([[1.0, 0], [0, 1.0]])
    lost = M(2, beta=1e-30, t=0).fit(ring)
    raises(ValueError, "cannot be extended", lambda: lost.transform(ring))


def test_pickles() -> None:
    _, _, op = good()
    for made in (op, op.T, magnetic.laplacian(op)):
        again = pickle.loads(pickle.dumps(made))
        assert again.to_numpy().tobytes() == made.to_numpy().tobytes()
        assert type(made).__module__.startswith("qkcore.magnetic")


def test_reprs() -> None:
    _, _, op = good()
    for text, made in (
        ("row-stochastic", op),
        ("column-stochastic", op.T),
        ("kernel", op.hermitian()),
        ("gauge weight -1", op.T),
    ):
        assert text in repr(made)


def test_new_parameters_wait_for_the_next_fit() -> None:
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(30, 3)), rng.normal(size=(3, 3))
    fitted = magnetic.MagneticMap(2, W=W).fit(X)
    before = fitted.transform(X[:5])
    fitted.set_params(W=W + 1, gamma=3.0, metric="euclidean")
    np.testing.assert_array_equal(fitted.transform(X[:5]), before)
