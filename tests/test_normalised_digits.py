"""Normalised weights stay accurate however large the scores are, in rows, columns and products.

The reference is the softmax in long double of the scores as the library rounds them. An entry p may then have
an error of a few eps plus that of its rounded logarithm, eps |log p|, but not of eps times a score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore import diffusion, magnetic
from qkcore.operators import _log_relative

from .bounds import eps_of, summation, tiny_of

Array = Any
Wide = np.longdouble
DTYPES = [np.float32, np.float64]


def softmax(S: Array) -> Array:
    """Of each row of the last two axes, in long double; rows of -inf are 0."""
    S = S.astype(Wide)
    top = S.max(-1, keepdims=True)
    e = np.exp(S - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def slack(P: Array, dtype: Any, *, more: float = 0.0) -> Array:
    """How far an entry may be off: 8 eps for exp, sums and roundings, and eps |log p| for its exponent."""
    with np.errstate(divide="ignore"):
        size = np.where(P > 0, -np.log(P), 0)
    return P * eps_of(dtype) * (8 + more + size) + tiny_of(dtype)


def assert_entries(got: Array, P: Array, dtype: Any, *, more: float = 0.0) -> None:
    assert got.dtype == dtype
    np.testing.assert_array_less(
        np.abs(got.astype(Wide) - P), slack(P, dtype, more=more) * (1 + 1e-9)
    )


def assert_product(
    got: Array, P: Array, V: Array, dtype: Any, *, terms: int, more: float = 0.0
) -> None:
    assert got.dtype == dtype
    size = np.abs(V).astype(Wide)
    allowed = slack(P, dtype, more=more) @ size + eps_of(dtype) * summation(terms) * (P @ size)
    off = np.abs(got.astype(Wide) - P @ V.astype(Wide))
    np.testing.assert_array_less(off, allowed + tiny_of(dtype))


def points(rng: np.random.Generator, n: int, m: int, d: int, dtype: Any) -> tuple[Array, Array]:
    X = rng.normal(size=(n, d))
    Y = np.concatenate([X[: min(n, m)], rng.normal(size=(max(0, m - n), d))])
    return X.astype(dtype), (Y + 1e-2 * rng.normal(size=Y.shape)).astype(dtype)


def scores_of(kind: str, n: int, m: int, dtype: Any, seed: int = 0) -> qk.Scores:
    rng = np.random.default_rng([seed, n, m])
    level = rng.uniform(-1e4, 1e4, (n, 1))
    Z = (level + 3 * rng.normal(size=(n, m))).astype(dtype)
    if kind == "dense":
        return qk.scores.dense(Z)
    if kind == "dense, wild":
        return qk.scores.dense(rng.uniform(-1e4, 1e4, (n, m)).astype(dtype))
    if kind == "dense, reversed columns":
        return qk.scores.dense(np.asfortranarray(Z)[:, ::-1])
    if kind == "two matrices":
        return qk.scores.dense(Z) + 0.37 * qk.scores.dense(Z[::-1].copy())
    if kind == "masked":
        keep = rng.uniform(size=(n, m)) < 0.5
        keep[:, 0] = True
        return qk.scores.dense(Z).masked(keep)
    if kind == "shifted":
        rows, columns = (1e3 * rng.normal(size=k) for k in (n, m))
        return qk.scores.dense(Z).shift(rows.astype(dtype), columns.astype(dtype))
    d = 3 if kind.endswith("few") else 9
    X, Y = points(rng, n, m, d, dtype)
    if kind.startswith("distance"):
        return qk.scores.distance(X, Y, beta=1e4)
    if kind.startswith("dot"):
        return qk.scores.dot(X, Y, beta=1.1e3)
    assert kind == "points and matrix, many"
    return qk.scores.dot(X, Y, beta=1.1e3) + qk.scores.dense(Z)


KINDS = [
    "dense",
    "dense, wild",
    "dense, reversed columns",
    "two matrices",
    "masked",
    "shifted",
    "distance, few",
    "distance, many",
    "dot, few",
    "dot, many",
    "points and matrix, many",
]
# Around the edges of packs, micro-tiles and tiles; one column and one row.
SIZES = [(1, 1), (1, 40), (40, 1), (13, 17), (97, 33), (65, 257), (130, 1030)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_transposed_products_and_arrays(kind: str, n: int, m: int, dtype: Any) -> None:
    s = scores_of(kind, n, m, dtype)
    A, S = qk.softmax(s), s.to_numpy()
    P, rng = softmax(S), np.random.default_rng(1)
    assert_entries(A.to_numpy(), P, dtype)
    assert_entries(A.T.to_numpy(), P.T, dtype)
    for k in (1, 2, 7):
        U = rng.normal(size=(n, k)).astype(dtype)
        assert_product(A.T @ U, P.T, U, dtype, terms=n)
    mu = rng.uniform(size=n).astype(dtype)
    assert_product(mu @ A, P.T, mu, dtype, terms=n)
    columns, Q = qk.softmax(s, axis=0), softmax(S.T).T
    assert_entries(columns.to_numpy(), Q, dtype)
    V = rng.normal(size=(m, 3)).astype(dtype)
    assert_product(columns @ V, Q, V, dtype, terms=m)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_have_the_same_bits_when_transposed(kind: str, dtype: Any) -> None:
    """What the digits rest on: a maximum found along the rows is one of the scores down the columns."""
    s = scores_of(kind, 66, 259, dtype)
    np.testing.assert_array_equal(s.T.to_numpy(), s.to_numpy().T)
    np.testing.assert_array_equal(s.T.T.to_numpy(), s.to_numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_doob_transforms(kind: str, dtype: Any) -> None:
    s = scores_of(kind, 61, 130, dtype)
    A, P, rng = qk.softmax(s), softmax(s.to_numpy()), np.random.default_rng(2)
    h = np.exp(2 * rng.normal(size=130)).astype(dtype) * dtype(1e-30)  # its scale must not matter
    h[3] = 0
    want = P * h.astype(Wide)
    total = want.sum(1, keepdims=True)
    # Rows with nearly all of their weight in column 3 would lose digits: that is another test.
    if not (total.min() > 0 and (P[:, 3] < 0.5).all()):
        h[3] = h[4]
        want = P * h.astype(Wide)
        total = want.sum(1, keepdims=True)
    want /= total
    D = A.doob(h)
    # The exponent is rounded again relative to the old normaliser and to log h.
    more = 2 * float(np.log(h[h > 0].max() / h[h > 0].min())) + 100 * (P.max(1).min() < 1e-3)
    with np.errstate(divide="ignore"):
        more = more + np.where(P > 0, np.abs(np.log(P)), 0)
    assert_entries(D.to_numpy(), want, dtype, more=more)
    assert_entries(D.T.to_numpy(), want.T, dtype, more=np.transpose(more))
    mu = rng.uniform(size=61).astype(dtype)
    assert_product(mu @ D, want.T, mu, dtype, terms=61, more=np.transpose(more))


@pytest.mark.parametrize("dtype", DTYPES)
def test_doob_weights_are_rounded_once_in_their_logarithm(dtype: Any) -> None:
    """Weights over the whole range: three roundings of the exponent and one unit of exp, not six.

    With scores of 0 the exponent is log h, its difference from the normaliser, and what exp does with it.
    """
    rng = np.random.default_rng(4)
    lowest = np.log10(float(np.finfo(dtype).tiny)) + 3
    h = (10.0 ** rng.uniform(lowest, 0, 4000)).astype(dtype)
    h[0] = 1
    logs = _log_relative(h)
    exact = np.log(h.astype(Wide)) - np.log(Wide(2))  # minus that of the power of two above max h
    assert logs.dtype == dtype
    # Half a unit of the result, and what log gives of a fraction between 0.5 and 1.
    assert (np.abs(logs - exact) <= 0.52 * np.spacing(np.abs(logs)) + eps_of(dtype)).all()
    D = qk.softmax(qk.scores.dense(np.zeros((2, 4000), dtype))).doob(h).to_numpy()
    want = h.astype(Wide) / h.astype(Wide).sum()
    relative = np.abs(D[0] - want) / want
    assert (relative <= eps_of(dtype) * (16 + 1.1 * np.abs(np.log(want)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "dense, wild", "distance, few", "dot, many"])
def test_currents_and_distances_between_operators(kind: str, dtype: Any) -> None:
    n = 83
    s = scores_of(kind, n, n, dtype)
    A, P, rng = qk.softmax(s), softmax(s.to_numpy()), np.random.default_rng(3)
    rho = rng.uniform(0.5, 1, n)
    rho = (rho / rho.sum()).astype(dtype)
    flow = rho.astype(Wide)[:, None] * P
    J = flow - flow.T
    eps = eps_of(dtype)
    allowed = slack(flow, dtype)
    assert (np.abs(A.currents(rho).astype(Wide) - J) <= allowed + allowed.T).all()
    found = A.current_norms(rho)
    assert abs(found.total - np.abs(J).sum() / 2) <= allowed.sum() + eps * np.abs(J).sum()
    other = qk.softmax(s.shift(columns=rng.normal(size=n).astype(dtype)))
    Q = softmax(other.scores.to_numpy())
    got = qk.total_variation(A, other)
    want = np.abs(P - Q).sum(1) / 2
    assert (np.abs(got - want) <= (slack(P, dtype) + slack(Q, dtype)).sum(1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_and_ragged_blocks(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    Z = (rng.uniform(-1e4, 1e4, (2, 3, 37, 1)) + rng.normal(size=(2, 3, 37, 50))).astype(dtype)
    A, P = qk.softmax(qk.scores.dense(Z)), softmax(Z)
    T = P.swapaxes(-1, -2)
    assert_entries(A.T.to_numpy(), T, dtype)
    for shape in ((37, 4), (3, 37, 4), (2, 3, 37, 4)):  # broadcast over batch axes, and one each
        U = rng.normal(size=shape).astype(dtype)
        wide = np.broadcast_to(U, (2, 3, 37, 4))
        if U.ndim == 4:
            assert_product(A.T @ U, T, wide, dtype, terms=37)
        elif U.ndim == 2:
            full = U[None, None] * np.ones((1, 1, 1, 1), dtype)
            assert_product(A.T @ full, T, wide, dtype, terms=37)
    cuts = np.array([0, 10, 37, 37, 60])
    Z = (rng.uniform(-1e4, 1e4, (60, 1)) + rng.normal(size=(60, 60))).astype(dtype)
    s = qk.scores.dense(Z).ragged(cuts)
    R, want = qk.softmax(s), softmax(s.to_numpy())
    assert_entries(R.T.to_numpy(), want.T, dtype)
    mu = rng.uniform(size=60).astype(dtype)
    assert_product(mu @ R, want.T, mu, dtype, terms=60)


@pytest.mark.parametrize("dtype", DTYPES)
def test_symmetric_conjugate_of_large_symmetric_scores(dtype: Any) -> None:
    """exp(s_ij - lse_i / 2 - lse_j / 2), where the normalisers are near 1e4 and differ little."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(45, 6))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype)
    P = qk.softmax(qk.scores.dot(X, beta=9e3))
    S = P.scores.to_numpy().astype(Wide)
    top = S.max(1, keepdims=True)
    lse = (top + np.log(np.exp(S - top).sum(1, keepdims=True)))[:, 0]
    want = np.exp(S - lse[:, None] / 2 - lse[None, :] / 2)
    assert_entries(diffusion.symmetric_conjugate(P).to_numpy(), want, dtype, more=16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnetic_products_of_large_scores(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    n = 50
    s = scores_of("dense", n, n, dtype)
    theta = rng.normal(size=(n, n))
    theta = (theta - theta.T).astype(dtype)
    E = magnetic.MagneticOperator(qk.softmax(s), qk.scores.dense(theta))
    P = softmax(s.to_numpy())
    v = (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(E.dtype)
    phases = np.exp(1j * theta.astype(Wide))
    allowed = slack(P, dtype) + eps_of(dtype) * (4 + summation(n)) * P
    size = 2 * np.abs(v).astype(Wide)
    assert (np.abs(E @ v - (P * phases) @ v.astype(np.clongdouble)) <= allowed @ size).all()
    assert (np.abs(v @ E - v.astype(np.clongdouble) @ (P * phases)) <= size @ allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_couplings_of_large_scores(dtype: Any) -> None:
    """The coupling exp(f + s + g) is that of the potentials, whatever their size."""
    rng = np.random.default_rng(7)
    n, m = 40, 57
    Z = (rng.uniform(-1e4, 1e4, (n, 1)) + rng.normal(size=(n, m))).astype(dtype)
    mu, nu = np.full(n, 1 / n, dtype), np.full(m, 1 / m, dtype)
    b = qk.bridge(qk.scores.dense(Z), mu, nu, on_fail="ignore")
    exact = np.exp(b.f.astype(Wide)[:, None] + Z.astype(Wide) + b.g.astype(Wide)[None, :])
    assert_entries(b.plan(), exact, dtype)
    rows, columns = b.marginals()
    allowed = slack(exact, dtype)
    eps = eps_of(dtype)
    assert (np.abs(rows - exact.sum(1)) <= allowed.sum(1) + eps * exact.sum(1)).all()
    assert (np.abs(columns - exact.sum(0)) <= allowed.sum(0) + eps * exact.sum(0)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stationary_law_of_large_symmetric_scores(dtype: Any) -> None:
    """pi_i is proportional to exp(lse_i) (DAC eq 19), whose digits are those of lse_i - lse_k."""
    rng = np.random.default_rng(8)
    X = 1e-4 * rng.normal(size=(30, 3))
    X[:, 0] += 1
    P = qk.softmax(qk.scores.dot(X.astype(dtype), beta=9e3))
    S = P.scores.to_numpy().astype(Wide)
    weight = np.exp(S - S.max()).sum(1)
    want = weight / weight.sum()
    assert np.abs(P.stationary() / want - 1).max() <= 16 * eps_of(dtype)
