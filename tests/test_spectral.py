"""Leading eigenpairs: repeated eigenvalues, orthonormality, signs, and reproducible bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.linalg import get_blas_funcs

from qkcore import _spectral
from qkcore._spectral import leading_eigenpairs

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64", "complex64", "complex128")
all_types = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operators by iteration too, with small blocks: copies are easily missed."""
    monkeypatch.setattr(_spectral, "DENSE_UP_TO", 0)
    monkeypatch.setattr(_spectral, "BLOCK", 2)
    monkeypatch.setattr(_spectral, "BASIS", 50)


def eps_of(dtype: str) -> float:
    return float(np.finfo(dtype).eps)


def ring(n: int, width: float, dtype: str) -> tuple[Array, Array]:
    """A Gaussian kernel on a ring, in a random gauge if complex, and its eigenvalues.

    All but the largest (and for even n the smallest) are there twice, exactly.
    """
    steps = np.minimum(np.arange(n), n - np.arange(n))
    row = np.exp(-((steps / width) ** 2))
    row /= row.sum()
    matrix = row[(np.arange(n) - np.arange(n)[:, None]) % n]
    if np.dtype(dtype).kind == "c":
        turn = np.exp(1j * np.random.default_rng(n).uniform(0, 6, n))
        matrix = turn[:, None] * matrix * turn.conj()
    return matrix.astype(dtype), np.sort(np.fft.fft(row).real)[::-1]


def multiply(A: Array) -> Callable[[Array], Array]:
    """Products by SciPy's BLAS: its threads and NumPy's, taking turns, slow each other down."""
    gemm = get_blas_funcs("gemm", (A,))
    return lambda x: np.asarray(gemm(1.0, A, x))


def check(A: Array, k: int, want: Array | None = None, size: float = 1.0) -> tuple[Array, Array]:
    """Eigenpairs of A, after all that must hold for any; ``want`` is the whole spectrum."""
    values, vectors = leading_eigenpairs(multiply(A), len(A), k, A.dtype)
    tol = 500 * eps_of(A.dtype.name)
    assert values.shape == (k,) and values.dtype == A.real.dtype
    assert vectors.shape == (len(A), k) and vectors.dtype == A.dtype
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(k), atol=tol)
    # A vector is as accurate as its residual; hundreds of restarts cost some digits.
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=10 * tol * size)
    if want is None:
        want = np.linalg.eigvalsh(A.astype(np.complex128))[::-1]
    np.testing.assert_allclose(values, want[:k], atol=tol * size)
    size_of = np.abs(vectors)
    turned = np.abs(vectors - size_of) <= 1e-5 * size_of  # entries that are positive
    assert (turned & (size_of >= (1 - 1e-5) * size_of.max(axis=0))).any(axis=0).all()
    return values, vectors


@pytest.mark.usefixtures("iterated")
@all_types
@pytest.mark.parametrize(("n", "width"), [(70, 1.0), (200, 3.0), (1000, 20.0)])
def test_repeated_eigenvalues_are_all_found(n: int, width: float, dtype: str) -> None:
    """ARPACK misses the third value for n = 70, and others for 200 and 1000 in float32."""
    A, want = ring(n, width, dtype)
    for k in (2, 3, 4, 5, 12) if n < 1000 else (3, 5):
        check(A, k, want)


@all_types
@pytest.mark.parametrize("n", [1, 2, 70, 200])
def test_small_operators_are_diagonalised_whole(n: int, dtype: str) -> None:
    A, want = ring(n, 1.0, dtype)
    for k in {1, min(n, 3), n}:
        check(A, k, want)


@pytest.mark.usefixtures("iterated")
@all_types
@pytest.mark.parametrize("times", [2, 3, 6])
def test_higher_multiplicities(times: int, dtype: str) -> None:
    """The same simple spectrum on blocks that do not see each other."""
    n = 60 * times
    with np.errstate(over="ignore"):
        block = np.exp(-0.01 * np.subtract.outer(range(60), range(60)) ** 2.0)
    A = np.kron(np.eye(times), block / block.sum(axis=1).max()).astype(dtype)
    if np.dtype(dtype).kind == "c":
        turn = np.exp(1j * np.arange(n) ** 2).astype(dtype)
        A = turn[:, None] * A * turn.conj()
    for k in (times, times + 1, 2 * times + 1):
        check(A, k)


@pytest.mark.usefixtures("iterated")
@all_types
@pytest.mark.parametrize("scale", [1e-10, 1e10])
@pytest.mark.parametrize("shift", [-1.0, -3.0, 5.0])
def test_scale_and_shift(scale: float, shift: float, dtype: str) -> None:
    """What counts as equal follows the size of the operator, also where the wanted values are near 0."""
    A, want = ring(150, 1.0, dtype)
    moved = (scale * (A + shift * np.eye(150))).astype(dtype)
    check(moved, 5, scale * (want + shift), size=scale * 6)


@pytest.mark.usefixtures("iterated")
@all_types
@pytest.mark.parametrize("n", [70, 150])
def test_nearly_all_pairs(n: int, dtype: str) -> None:
    A, want = ring(n, 1.0, dtype)
    for k in (n // 4 - 1, n // 4, n // 2, n - 2, n - 1, n):
        check(A, k, want)


@all_types
def test_both_ways_agree(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((120, 120))
    if np.dtype(dtype).kind == "c":
        Z = Z + 1j * rng.standard_normal((120, 120))
    A = ((Z + Z.conj().T) / 40).astype(dtype)
    values, vectors = check(A, 4)
    monkeypatch.setattr(_spectral, "DENSE_UP_TO", 0)
    monkeypatch.setattr(_spectral, "BASIS", 30)
    monkeypatch.setattr(_spectral, "BLOCK", 2)
    again, others = check(A, 4)
    np.testing.assert_allclose(again, values, atol=50 * eps_of(dtype))
    np.testing.assert_allclose(others, vectors, atol=2000 * eps_of(dtype))


@pytest.mark.usefixtures("iterated")
@all_types
@pytest.mark.parametrize("kind", ["ring", "one value", "rank one"])
def test_the_same_bits_again(kind: str, dtype: str) -> None:
    n = 200
    if kind == "ring":
        A, _ = ring(n, 1.0, dtype)
    elif kind == "one value":
        A = np.eye(n, dtype=dtype)
    else:  # the Krylov space ends after one step
        A = np.full((n, n), 1 / n, dtype)
    one, two = (check(A, 5) for _ in range(2))
    assert one[0].tobytes() == two[0].tobytes() and one[1].tobytes() == two[1].tobytes()


def test_fewer_passes_than_arpack() -> None:
    """Blocks of vectors: eigsh needs 72 passes over this matrix, and sees each eigenvalue once or not."""
    A, want = ring(1000, 20.0, "float64")
    calls = 0

    def product(x: Array) -> Array:
        nonlocal calls
        calls += 1
        return np.asarray(A @ x)

    values, _ = leading_eigenpairs(product, 1000, 5, np.float64)
    np.testing.assert_allclose(values, want[:5], atol=1e-14)
    assert calls <= 36


@pytest.mark.usefixtures("iterated")
@all_types
def test_no_convergence(dtype: str) -> None:
    A, _ = ring(300, 1.0, dtype)
    with pytest.raises(RuntimeError, match=r"of the 4 wanted converged within 0 .* raise max_iter"):
        leading_eigenpairs(multiply(A), 300, 4, dtype, max_iter=0)


def test_signs() -> None:
    """The largest entry becomes positive; of equal ones the first."""
    V = np.array([[-1.0, 0.5, 1.0], [1.0, -2.0, 1.0 + 1e-9]])
    np.testing.assert_array_equal(_spectral.fix_signs(V), V * [-1, -1, 1])
    got = _spectral.fix_signs(np.array([[3j], [-1.0]]))
    np.testing.assert_allclose(got, [[3], [1j]])
