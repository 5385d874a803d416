"""Eigenpairs with a surrogate are right for any surrogate, and need few passes if it is good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import eigh

import qkcore as qk
from qkcore import diffusion
from qkcore._davidson import MAX_PASSES, Surrogate, leading_by_davidson, surrogate_of
from qkcore._native import cpu

Array = np.ndarray[Any, Any]
K = 6


class Counted:
    """Products with a matrix, and how many there were."""

    def __init__(self, matrix: Array) -> None:
        self.matrix, self.passes = matrix, 0

    def __call__(self, x: Array) -> Array:
        self.passes += 1
        return self.matrix @ x


def kernel_of(n: int, dtype: str, beta: float = 0.3) -> tuple[qk.Scores, Array, Array]:
    """Scores, the matrix in double precision, and no known vector."""
    X = np.random.default_rng(n).standard_normal((n, 2)).astype(dtype)
    s = qk.scores.distance(X, beta=beta)
    return s, np.exp(s.to_numpy().astype(np.float64)), np.empty((n, 0), dtype)


def check(matrix: Array, found: tuple[Array, Array] | None, dtype: str, k: int = K) -> None:
    assert found is not None
    values, vectors = found
    exact = eigh(matrix, eigvals_only=True)[::-1]
    tol = 4 * np.sqrt(len(matrix)) * np.finfo(dtype).eps * exact[0]
    assert values.dtype == vectors.dtype == np.dtype(dtype)
    np.testing.assert_allclose(values, exact[:k], atol=tol)
    X = vectors.astype(np.float64)
    np.testing.assert_allclose(X.T @ X, np.eye(k), atol=tol)
    assert np.linalg.norm(matrix @ X - X * values, axis=0).max() <= tol


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [20, 40, 80])
def test_pairs_from_a_partial_factor(rank: int, dtype: str) -> None:
    s, matrix, known = kernel_of(500, dtype)
    factor, rank, rest = cpu.partial_cholesky(s._spec, rank, 0.0, 2)
    surrogate = surrogate_of(factor[:rank], known, rest)
    assert surrogate.knows(K)
    gram = surrogate.vectors.T.astype(np.float64) @ surrogate.vectors
    # The smallest values have rounding errors of the largest, and so have their vectors; only the first
    # count.
    np.testing.assert_allclose(gram[:K, :K], np.eye(K), atol=1e4 * np.finfo(dtype).eps)
    product = Counted(matrix.astype(dtype))
    check(matrix, leading_by_davidson(product, known, K, surrogate), dtype)
    assert product.passes <= (8 if rank < 40 else 4)


def test_vectors_orthogonal_to_what_is_known() -> None:
    s, matrix, _ = kernel_of(400, "float64")
    values, vectors = eigh(matrix)
    first = vectors[:, -1:]
    factor, rank, rest = cpu.partial_cholesky(s._spec, 40, 0.0, 2)
    surrogate = surrogate_of(factor[:rank], first, rest)
    np.testing.assert_allclose(first.T @ surrogate.vectors[:, :K], 0, atol=1e-12)
    found = leading_by_davidson(Counted(matrix), first, K, surrogate)
    deflated = matrix - values[-1] * first @ first.T
    check(deflated, found, "float64")


@pytest.mark.parametrize("hidden", [0, 3])
def test_an_eigenvector_that_the_surrogate_does_not_see_is_found(hidden: int) -> None:
    """The surrogate is exact but for one of the leading vectors, which it is orthogonal to."""
    _, matrix, known = kernel_of(500, "float64")
    values, vectors = eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    seen = [i for i in range(40) if i != hidden]
    surrogate = Surrogate(
        np.ascontiguousarray(vectors[:, seen]), values[seen], float(values[hidden])
    )
    assert not surrogate.knows(K)  # otherwise it would not be used
    product = Counted(matrix)
    check(matrix, leading_by_davidson(product, known, K, surrogate), "float64")


def test_a_useless_surrogate_gives_none_or_the_right_answer() -> None:
    _, matrix, known = kernel_of(400, "float64", beta=3.0)
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((400, 30)))
    product = Counted(matrix)
    found = leading_by_davidson(product, known, K, Surrogate(Q, np.linspace(1, 0.5, 30), 1.0))
    assert product.passes <= MAX_PASSES
    if found is not None:
        check(matrix, found, "float64")


def test_repeated_eigenvalues_are_complete() -> None:
    """Points on a circle: all eigenvalues but the first come in exact pairs."""
    angle = 2 * np.pi * np.arange(600) / 600
    s = qk.scores.distance(np.column_stack([np.cos(angle), np.sin(angle)]), beta=2.0)
    factor, rank, rest = cpu.partial_cholesky(s._spec, 40, 0.0, 2)
    known = np.empty((600, 0))
    matrix = np.exp(s.to_numpy())
    for k in (5, 6, 7):
        surrogate = surrogate_of(factor[:rank], known, rest)
        check(matrix, leading_by_davidson(Counted(matrix), known, k, surrogate), "float64", k)


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_of_points_take_few_passes(dtype: str, max_memory: int) -> None:
    """DAC-5 with a surrogate, with nothing formed too; narrow kernels fall back to Lanczos."""
    X = np.random.default_rng(5).standard_normal((900, 2)).astype(dtype)
    wide = diffusion.DiffusionMap(4, beta=0.5, max_memory=max_memory).fit(X)
    assert wide.n_iter_ <= 6
    with pytest.warns(
        diffusion.DisconnectedWarning, match="live on"
    ):  # so narrow that points are alone
        narrow = diffusion.DiffusionMap(4, beta=60.0, max_memory=max_memory).fit(X)
    assert narrow.n_iter_ > wide.n_iter_
    for model in (wide, narrow):
        P = diffusion.operator(X.astype(np.float64), beta=model.beta_)
        S = diffusion.symmetric_conjugate(P).to_numpy()
        exact = eigh(S, eigvals_only=True)[::-1][1:5]
        np.testing.assert_allclose(model.eigenvalues_, exact, atol=200 * np.finfo(dtype).eps)


def test_clusters_that_do_not_see_each_other() -> None:
    """Eigenvalue 1 comes once for each cluster."""
    rng = np.random.default_rng(2)
    X = np.concatenate([rng.standard_normal((100, 2)) + np.array([1e4 * c, 0]) for c in range(7)])
    with pytest.warns(diffusion.DisconnectedWarning, match="7 parts .* of 100, 100, 100"):
        model = diffusion.DiffusionMap(8, beta=0.5).fit(X)
    np.testing.assert_allclose(model.eigenvalues_[:6], 1, atol=1e-12)
    assert model.eigenvalues_[6] < 0.99
