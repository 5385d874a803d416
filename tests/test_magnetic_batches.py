"""Magnetic operators on batches, against their problems one by one, and on a device, against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qkcore as qk
from qkcore import magnetic
from tests.device_libraries import Library, xp  # noqa: F401  # a fixture

Array = NDArray[Any]
DTYPES = ("float32", "float64")
BATCH, N, D = (2, 3), 14, 3


def rough(dtype: str) -> float:
    return 2e3 * float(np.finfo(dtype).eps)


def data(dtype: str) -> tuple[Array, Array]:
    r = np.random.default_rng(17)
    X, W = r.normal(size=(*BATCH, N, D)), r.normal(size=(D, D))
    return X.astype(dtype), (W + 3 * np.eye(D)).astype(dtype)


def made(kind: str, X: Array, W: Array) -> magnetic.MagneticOperator:
    """The same construction of points with and without batch axes."""
    if kind == "operator":
        return magnetic.operator(X, beta=0.3, W=W, gamma=0.7, alpha=0.5)
    if kind == "factors":
        pair = np.ascontiguousarray(W[:, :1]), np.ascontiguousarray(W[:1])
        return magnetic.operator(X, beta=0.3, W=pair, metric="euclidean")
    if kind == "attention":
        return magnetic.from_attention(qk.softmax(qk.scores.forward(X, W=W, beta=0.05)), gamma=0.5)
    if kind == "kernel":
        P = magnetic.operator(X, beta=0.3, W=W, metric="euclidean")
        return magnetic.hadamard(P, P, qk.kernel(qk.scores.distance(X)))
    assert kind == "one phase for all"
    P = qk.softmax(qk.scores.distance(X, beta=0.3))
    turn = np.sin(np.arange(N * N).reshape(N, N)).astype(X.dtype)
    return magnetic.MagneticOperator(P, qk.scores.dense(turn - turn.T))


KINDS = ("operator", "factors", "attention", "kernel", "one phase for all")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_problems(kind: str, dtype: str) -> None:
    """Products, arrays, spectra, laws, currents, gauges and Laplacians."""
    X, W = data(dtype)
    many, tol = made(kind, X, W), rough(dtype)
    assert many.shape == (*BATCH, N, N) and len(many) == BATCH[0]
    r = np.random.default_rng(1)
    V = (r.normal(size=(*BATCH, N, 2)) + 1j * r.normal(size=(*BATCH, N, 2))).astype(many.dtype)
    phi = r.normal(size=(*BATCH, N)).astype(dtype)
    values, vectors = many.spectrum(4)
    assert values.shape == (*BATCH, 4) and vectors.shape == (*BATCH, N, 4)
    chain = many.normalized()
    laws, currents = chain.stationary(), chain.current()
    turned = many.gauge(phi)
    L = magnetic.laplacian(many, "symmetric")
    smallest = L.spectrum(3)[0]
    one_vector = many @ V[0, 0, :, 0]
    for k in np.ndindex(BATCH):
        one = made(kind, X[k], W)
        entries = one.to_numpy()
        size = tol * max(1.0, float(np.abs(entries).max()))
        np.testing.assert_allclose(many.to_numpy()[k], entries, rtol=0, atol=size)
        np.testing.assert_allclose(many[k].to_numpy(), entries, rtol=0, atol=size)
        np.testing.assert_allclose((many @ V)[k], one @ V[k], rtol=0, atol=20 * size)
        np.testing.assert_allclose((many.H @ V)[k], one.H @ V[k], rtol=0, atol=20 * size)
        left = V.swapaxes(-1, -2)
        np.testing.assert_allclose((left @ many)[k], left[k] @ one, rtol=0, atol=20 * size)
        np.testing.assert_allclose(one_vector[k], one @ V[0, 0, :, 0], rtol=0, atol=20 * size)
        want = one.spectrum(4)[0]
        np.testing.assert_allclose(values[k], want, rtol=0, atol=size)
        np.testing.assert_allclose(
            entries @ vectors[k], vectors[k] * values[k], rtol=0, atol=1e3 * size
        )
        np.testing.assert_allclose(laws[k], one.normalized().stationary(), rtol=0, atol=tol)
        np.testing.assert_allclose(currents[k], one.normalized().current(), rtol=0, atol=tol)
        np.testing.assert_allclose(
            turned[k].to_numpy(), one.gauge(phi[k]).to_numpy(), rtol=0, atol=20 * size
        )
        np.testing.assert_allclose(
            smallest[k], magnetic.laplacian(one, "symmetric").spectrum(3)[0], rtol=0, atol=tol
        )
        np.testing.assert_allclose(
            (L @ V)[k], magnetic.laplacian(one, "symmetric") @ V[k], rtol=0, atol=20 * tol
        )
        np.testing.assert_allclose(L.to_numpy()[k], L[k].to_numpy(), rtol=0, atol=tol)


def test_laws_that_are_given() -> None:
    X, W = data("float64")
    A = qk.softmax(qk.scores.dot(X, W=W, beta=0.1))
    rho = np.random.default_rng(2).dirichlet(np.full(N, 5.0), size=BATCH)
    P = magnetic.operator(X, beta=0.3, W=W)
    flux, theirs = P.flux(rho), magnetic.log_flux(A, rho).to_numpy()
    same = P.flux(rho[0, 0])
    for k in np.ndindex(BATCH):
        np.testing.assert_allclose(flux[k], P[k].flux(rho[k]), rtol=0, atol=1e-15)
        np.testing.assert_allclose(same[k], P[k].flux(rho[0, 0]), rtol=0, atol=1e-15)
        want = magnetic.log_flux(A[k], rho[k]).to_numpy()
        np.testing.assert_allclose(theirs[k], want, rtol=0, atol=1e-12)
    edges = P.to_numpy()
    phi = np.random.default_rng(3).normal(size=(*BATCH, N))
    np.testing.assert_allclose(
        magnetic.gauge_transform(edges, phi), P.gauge(phi).to_numpy(), rtol=0, atol=1e-13
    )


def test_distances_between_two_clouds_in_a_batch() -> None:
    """What is left of an asymmetric distance: the centre belongs to every problem by itself."""
    X, _ = data("float64")
    Y = X[..., ::-1, :] + 0.1
    A = qk.softmax(qk.scores.distance(X, Y, beta=0.2))
    got = magnetic.log_flux(A).to_numpy()
    for k in np.ndindex(BATCH):
        np.testing.assert_allclose(got[k], magnetic.log_flux(A[k]).to_numpy(), rtol=0, atol=1e-10)


def test_kernels_that_no_scaling_makes_hermitian() -> None:
    X, W = data("float64")
    A = qk.softmax(qk.scores.dot(X, W=W, beta=0.2))
    op = magnetic.MagneticOperator(A, magnetic.phases(X, W))
    np.testing.assert_allclose(op.stationary(), A.stationary(), rtol=1e-12)
    with pytest.raises(ValueError, match="no diagonal scaling makes Hermitian"):
        op.hermitian()
    with pytest.raises(ValueError, match="left operand of @: wanted length 14"):
        np.ones(5) @ op
    with pytest.raises(ValueError, match="U: wanted length 14"):
        op.apply_left(np.ones(5))
    with pytest.raises(ValueError, match="phi: wanted batch axes that broadcast"):
        op.gauge(np.ones((4, N)))
    with pytest.raises(TypeError, match=r"right operand of @: .* convert it, e\.g\. it\.astype"):
        op @ np.ones(N, np.float32)


# ---- on a device --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batched", [False, True])
def test_operators_of_device_arrays(xp: Library, batched: bool, dtype: str) -> None:  # noqa: F811
    """Real results are arrays of the caller's library, complex ones NumPy's; all as on the CPU."""
    X, _ = data(dtype)
    X = X if batched else X[0, 0]
    tol, d = rough(dtype), xp.asarray

    def both(to: Any) -> magnetic.MagneticOperator:
        P = qk.softmax(qk.scores.distance(to(X), beta=0.3))
        turn = np.sin(np.arange(N * N).reshape(N, N)).astype(dtype)
        return magnetic.MagneticOperator(P, qk.scores.dense(to(turn - turn.T)))

    here, there = both(lambda a: a), both(d)
    assert (there.device, there.dtype) == ("cuda:0", here.dtype) and "cuda:0" in repr(there)
    V = np.random.default_rng(5).normal(size=(N,)).astype(dtype)
    np.testing.assert_allclose(there @ (V + 1j * V), here @ (V + 1j * V), rtol=0, atol=tol)
    np.testing.assert_allclose(there @ d(V), here @ V, rtol=0, atol=tol)
    np.testing.assert_allclose(d(V) @ there, V @ here, rtol=0, atol=tol)
    np.testing.assert_allclose(there.to_numpy(), here.to_numpy(), rtol=0, atol=tol)
    values, vectors = there.spectrum(3)
    np.testing.assert_allclose(values, here.spectrum(3)[0], rtol=0, atol=tol)
    moved = there.to_numpy() @ vectors
    np.testing.assert_allclose(moved, vectors * values[..., None, :], rtol=0, atol=100 * tol)
    np.testing.assert_allclose(xp.numpy(there.stationary()), here.stationary(), rtol=0, atol=tol)
    np.testing.assert_allclose(xp.numpy(there.current()), here.current(), rtol=0, atol=tol)
    rho = np.full(N, 1 / N, dtype)
    np.testing.assert_allclose(there.flux(d(rho)), here.flux(rho), rtol=0, atol=tol)
    turned = there.gauge(d(V))
    assert turned.device == "cuda:0"
    np.testing.assert_allclose(turned.to_numpy(), here.gauge(V).to_numpy(), rtol=0, atol=tol)
    twice = magnetic.hadamard(there, there).normalized()
    want = magnetic.hadamard(here, here).normalized()
    np.testing.assert_allclose(twice.to_numpy(), want.to_numpy(), rtol=0, atol=tol)
    for kind in ("combinatorial", "symmetric", "random_walk"):
        mine, theirs = (magnetic.laplacian(op.kernel, kind) for op in (here, there))
        np.testing.assert_allclose(theirs.spectrum(2)[0], mine.spectrum(2)[0], rtol=0, atol=N * tol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_and_attention_on_a_device(xp: Library, dtype: str) -> None:  # noqa: F811
    X, W = data(dtype)
    X, tol, d = X[0, 0], rough(dtype), xp.asarray
    for alpha in (0.0, 1.0):
        mine = magnetic.operator(X, beta=0.3, W=W, alpha=alpha)
        theirs = magnetic.operator(d(X), beta=0.3, W=d(W), alpha=alpha)
        np.testing.assert_allclose(theirs.to_numpy(), mine.to_numpy(), rtol=0, atol=tol)
        np.testing.assert_allclose(theirs.spectrum(3)[0], mine.spectrum(3)[0], rtol=0, atol=tol)
    pair = W[:, :1].copy(), W[:1].copy()
    low = magnetic.phases(d(X), tuple(map(d, pair))), magnetic.phases(X, pair)
    np.testing.assert_allclose(low[0].to_numpy(), low[1].to_numpy(), rtol=0, atol=tol)
    A, B = (qk.softmax(qk.scores.dot(to(X), W=to(W), beta=0.1)) for to in (lambda a: a, d))
    rho = np.random.default_rng(2).dirichlet(np.full(N, 5.0)).astype(dtype)
    rho /= rho.sum()
    for law in (None, rho):
        flux = magnetic.log_flux(B, None if law is None else d(law))
        assert flux.device == "cuda:0"
        want = magnetic.log_flux(A, law).to_numpy()
        np.testing.assert_allclose(flux.to_numpy(), want, rtol=0, atol=10 * tol)
    mine, theirs = (magnetic.from_attention(op, gamma=0.5) for op in (A, B))
    np.testing.assert_allclose(theirs.to_numpy(), mine.to_numpy(), rtol=0, atol=10 * tol)
    np.testing.assert_allclose(theirs.spectrum(3)[0], mine.spectrum(3)[0], rtol=0, atol=10 * tol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_of_device_points(xp: Library, dtype: str) -> None:  # noqa: F811
    X, W = data(dtype)
    X, d = X.reshape(-1, D), xp.asarray
    new = X[:7] + np.asarray(0.1, dtype)
    for alpha in (0.0, 1.0):
        mine = magnetic.MagneticMap(3, W=W, beta=0.05, gamma=0.1, alpha=alpha).fit(X)
        theirs = magnetic.MagneticMap(3, W=W, beta=0.05, gamma=0.1, alpha=alpha).fit(d(X))
        size = 50 * rough(dtype) * float(np.abs(mine.embedding_).max())
        np.testing.assert_allclose(theirs.eigenvalues_, mine.eigenvalues_, atol=rough(dtype))
        np.testing.assert_allclose(theirs.embedding_, mine.embedding_, rtol=0, atol=size)
        np.testing.assert_allclose(theirs.transform(d(new)), mine.transform(new), rtol=0, atol=size)


def test_what_a_device_refuses(xp: Library) -> None:  # noqa: F811
    X, W = data("float64")
    P = qk.softmax(qk.scores.distance(xp.asarray(X[0, 0])))
    with pytest.raises(TypeError, match=r"phases: wanted arrays on cuda:0 like the magnitude"):
        magnetic.MagneticOperator(P, magnetic.phases(X[0, 0], W))
    op = magnetic.MagneticOperator(P, qk.scores.dense(xp.asarray(np.zeros((N, N)))))
    with pytest.raises(TypeError, match=r"right operand of @: wanted complex128 or float64"):
        op @ np.ones(N, np.float32)
    masked = qk.scores.dense(xp.asarray(np.zeros((N, N)))).masked(xp.asarray(np.eye(N) > 0))
    with pytest.raises(ValueError, match="phases: wanted an angle for every pair"):
        magnetic.MagneticOperator(P, masked)
