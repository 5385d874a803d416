"""Features that users expect: problems of a batch, arithmetic, arrays, SciPy, default weights, costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator, eigs, gmres

import qkcore as qk

DTYPES = ("float32", "float64")


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def batch_of_scores(dtype: str = "float64") -> Any:
    """Every kind of term, some without batch axes, some of length 1 along them."""
    r = rng()
    X, Y = r.normal(size=(2, 3, 5, 4)).astype(dtype), r.normal(size=(3, 6, 4)).astype(dtype)
    Z, mask = r.normal(size=(2, 1, 5, 6)).astype(dtype), r.random((1, 3, 5, 6)) < 0.8
    s = qk.scores.dot(X, Y, beta=0.5) + qk.scores.distance(X[0, 0], Y) + qk.scores.dense(Z)
    return s.masked(mask).shift(rows=r.normal(size=5).astype(dtype), columns=Y[:, :, 0].copy())


INDICES = [
    0,
    -1,
    (1, 2),
    (-2, -1),
    (slice(None), 1),
    (0, slice(0, 2)),
    slice(0, 1),
    slice(None, None, -1),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_problems_of_a_batch(index: Any) -> None:
    s = batch_of_scores()
    array = s.to_numpy()
    np.testing.assert_array_equal(s[index].to_numpy(), array[index])
    A, K = qk.softmax(s), qk.kernel(s)
    np.testing.assert_allclose(A[index].to_numpy(), A.to_numpy()[index], rtol=1e-14)
    np.testing.assert_allclose(K[index].to_numpy(), K.to_numpy()[index], rtol=1e-14)
    columns = qk.softmax(s, 0)
    np.testing.assert_allclose(columns[index].to_numpy(), columns.to_numpy()[index], rtol=1e-13)


def test_length_and_iteration() -> None:
    s = batch_of_scores()
    assert (len(s), len(s[0])) == (2, 3) and bool(s[0, 0]) and bool(qk.softmax(s))
    for k, one in enumerate(qk.softmax(s)):
        np.testing.assert_allclose(one.to_numpy(), qk.softmax(s).to_numpy()[k], rtol=1e-14)
    blocks = qk.scores.dense(np.arange(25.0).reshape(5, 5)).ragged(np.array([0, 2, 5]))
    assert len(blocks) == 2
    np.testing.assert_array_equal(blocks[-1].to_numpy(), np.arange(25.0).reshape(5, 5)[2:, 2:])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ((0, 0, 0), IndexError, r"index: wanted problems of the batch \(2, 3\), got \(0, 0, 0\)"),
        (2, IndexError, r"index: wanted problems of the batch"),
        ([0, 1], TypeError, r"index: wanted integers and slices"),
    ],
)
def test_indices_that_are_refused(index: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        batch_of_scores()[index]
    with pytest.raises(TypeError, match=r"use rows\(first, last\) for rows"):
        batch_of_scores()[0, 0][0]
    with pytest.raises(TypeError, match=r"len: wanted scores with batch axes"):
        len(batch_of_scores()[0, 0])


# ---- arithmetic -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_differences_and_arrays(dtype: str) -> None:
    r = rng()
    X, Y = r.normal(size=(7, 3)).astype(dtype), r.normal(size=(9, 3)).astype(dtype)
    Z = r.normal(size=(7, 9)).astype(dtype)
    s, t = qk.scores.dot(X, Y), qk.scores.distance(X, Y)
    S, T, tol = s.to_numpy(), t.to_numpy(), 20 * float(np.finfo(dtype).eps)
    for found, wanted in (
        (-s, -S),
        (-t, -T),
        (s - t, S - T),
        (s + Z, S + Z),
        (Z + s, Z + S),
        (s - Z, S - Z),
        (Z - t, Z - T),
        (-2.0 * t, -2 * T),
        (s / -4.0, S / -4),
        (-(t.causal()), np.where(np.tri(7, 9) > 0, -T, -np.inf)),
    ):
        np.testing.assert_allclose(found.to_numpy(), wanted, atol=tol * 40, rtol=tol)
        assert found.bound >= np.abs(wanted[np.isfinite(wanted)]).max()
        with np.errstate(divide="ignore"):
            lse = np.log(np.exp(wanted.astype(float)).sum(axis=1))
        np.testing.assert_allclose(found.logsumexp(), lse, atol=tol * 40, rtol=tol)


def test_arithmetic_that_is_refused() -> None:
    s = qk.scores.dense(np.array([[0.0, -np.inf]]))
    with pytest.raises(
        ValueError, match=r"factor: wanted a number > 0 for scores in which -inf masks"
    ):
        _ = -s
    with pytest.raises(ValueError, match=r"factor: wanted a number other than 0"):
        s * 0
    with pytest.raises(TypeError, match=r"s \+ array: .* a constant cancels"):
        s + 1.0
    with pytest.raises(
        ValueError, match=r"array - s: wanted an array \(\.\.\., N, M\), got shape \(2,\)"
    ):
        np.zeros(2) - s
    with pytest.raises(TypeError, match="unsupported operand"):
        s + "no"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3).filter(lambda c: abs(c) > 1e-3), min_size=1, max_size=4))
def test_sums_and_multiples_of_operators(factors: list[float]) -> None:
    r = rng()
    parts = [
        qk.softmax(qk.scores.dense(r.normal(size=(6, 6)))),
        qk.kernel(qk.scores.dot(r.normal(size=(6, 2))), "relu"),
        qk.softmax(qk.scores.dense(r.normal(size=(6, 6))), 0).T,
        qk.low_rank(r.normal(size=(6, 6)), 2),
    ][: len(factors)]
    total = sum((c * A for c, A in zip(factors[1:], parts[1:], strict=True)), factors[0] * parts[0])
    array = sum(c * A.to_numpy() for c, A in zip(factors, parts, strict=True))
    V = r.normal(size=(6, 2))
    assert isinstance(total, qk.OperatorSum)
    np.testing.assert_allclose(np.asarray(total), array, atol=1e-12)
    np.testing.assert_allclose(total @ V, array @ V, atol=1e-12)
    np.testing.assert_allclose(V.T @ total, V.T @ array, atol=1e-12)
    np.testing.assert_allclose((-total / 2.0).T.to_numpy(), -array.T / 2, atol=1e-12)
    np.testing.assert_allclose(
        (total - parts[0]).to_numpy(), array - parts[0].to_numpy(), atol=1e-12
    )


def test_sums_of_operators_that_do_not_fit() -> None:
    A = qk.softmax(qk.scores.dense(np.zeros((2, 3))))
    B = qk.softmax(qk.scores.dense(np.zeros((3, 3))))
    with pytest.raises(ValueError, match=r"A \+ B: wanted equal last two axes"):
        A + B
    with pytest.raises(TypeError, match=r"A \+ B: wanted operators of one dtype"):
        B + qk.softmax(qk.scores.dense(np.zeros((3, 3), np.float32)))
    with pytest.raises(TypeError, match="unsupported operand"):
        A + 1


def test_arrays_and_scipy() -> None:
    r = rng()
    X = r.normal(size=(30, 2))
    A = qk.softmax(qk.scores.dot(X, W=r.normal(size=(2, 2))))
    P = A.to_numpy()
    np.testing.assert_array_equal(np.asarray(A), P)
    assert np.asarray(A.scores, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match=r"copy=None or True"):
        A.__array__(copy=False)
    L = aslinearoperator(A)
    np.testing.assert_allclose(L.matvec(X[:, 0]), P @ X[:, 0])
    np.testing.assert_allclose(L.rmatvec(X[:, 0]), P.T @ X[:, 0])
    np.testing.assert_allclose(L.matmat(X), P @ X)
    np.testing.assert_allclose(aslinearoperator(A @ A).rmatmat(X), (P @ P).T @ X)
    leading = np.sort(np.abs(np.linalg.eigvals(P)))[-2:]
    np.testing.assert_allclose(np.sort(np.abs(eigs(L, k=2)[0])), leading, rtol=1e-8)
    b = r.normal(size=30)
    x, failed = gmres(aslinearoperator(qk.kernel(qk.scores.distance(X, beta=9.0))), b, rtol=1e-10)
    assert not failed
    np.testing.assert_allclose(np.exp(-9 * np.square(X[:, None] - X).sum(2)) @ x, b, atol=1e-8)


# ---- reading attention ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "minus infinity", "batch"])
def test_what_people_look_at_in_attention(kind: str) -> None:
    r = rng()
    Z = r.normal(size=(3, 6, 8) if kind == "batch" else (6, 8))
    mask = r.random((6, 8)) < 0.5
    mask[2] = False
    mask[3] = np.arange(8) == 5
    s = qk.scores.dense(np.where(mask, Z, -np.inf) if kind == "minus infinity" else Z)
    s = {"causal": s.causal, "masked": lambda: s.masked(mask)}.get(kind, lambda: s)()
    A = qk.softmax(s)
    P, seen = A.to_numpy(), np.isfinite(s.to_numpy()).sum(axis=-1)
    np.testing.assert_allclose(A.column_mass(), P.mean(axis=-2), rtol=1e-12)
    weights = r.random(6)
    np.testing.assert_allclose(A.column_mass(weights), weights @ P, rtol=1e-12)
    found = A.top_k(3)
    np.testing.assert_allclose(found.weights, -np.sort(-P, axis=-1)[..., :3], rtol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(P, found.columns, -1), found.weights, rtol=1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(P > 0, P * np.log(P), 0).sum(axis=-1)
        share = np.where(seen > 1, entropy / np.log(seen), 0)
    np.testing.assert_allclose(A.normalized_entropy(), share, atol=1e-12)
    mass = P.mean(axis=-2)
    for factor in (0.5, 1.5):
        wanted = mass > factor / 8 * mass.sum(axis=-1, keepdims=True)
        np.testing.assert_array_equal(A.sinks(factor), wanted)


def test_uniform_rows_have_normalised_entropy_one() -> None:
    A = qk.softmax(qk.scores.dense(np.zeros((5, 5), np.float32)).causal())
    np.testing.assert_allclose(A.normalized_entropy(), [0, 1, 1, 1, 1], atol=1e-6)
    with pytest.raises(ValueError, match=r"k: wanted 1 to 5, got 6"):
        A.top_k(6)


# ---- bridges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_left_out_are_uniform(dtype: str) -> None:
    Z = rng().normal(size=(4, 6)).astype(dtype)
    s = qk.scores.dense(Z)
    mu, nu = np.full(4, 1 / 4, dtype), np.full(6, 1 / 6, dtype)
    wanted = qk.bridge(s, mu, nu).plan()
    np.testing.assert_array_equal(qk.bridge(s).plan(), wanted)
    np.testing.assert_array_equal(qk.bridge(s, mu).plan(), wanted)
    np.testing.assert_allclose(
        qk.bridge(s, nu=nu).plan(), wanted, rtol=1e-12 if dtype == "float64" else 1e-5
    )
    np.testing.assert_array_equal(qk.semi_relaxed(s).plan(), qk.semi_relaxed(s, mu).plan())
    heavy = qk.bridge(s, 3 * mu)
    assert heavy.converged and float(heavy.plan().sum()) == pytest.approx(3, rel=1e-5)
    batch = qk.bridge(qk.scores.dense(np.stack([Z, -Z])), np.stack([mu, 2 * mu]))
    np.testing.assert_allclose(batch.plan().sum(axis=(1, 2)), [1, 2], rtol=1e-5)
    ragged = qk.bridge(s.ragged(np.array([0, 1, 4]), np.array([0, 4, 6])))
    np.testing.assert_allclose(ragged.plan().sum(axis=0), [0.25] * 4 + [0.5] * 2, rtol=1e-5)


def test_vectors_are_converted_to_the_dtype_of_the_scores() -> None:
    Z = rng().normal(size=(3, 3)).astype(np.float32)
    s, third = qk.scores.dense(Z), np.full(3, 1 / 3)
    b = qk.bridge(s, third, [1 / 3] * 3)
    assert b.converged and b.mu.dtype == b.plan().dtype == np.float32
    assert qk.bridge(s, np.ones(3, int), [1, 1, 1]).converged
    A = qk.softmax(s.shift(rows=[1, 2, 3]))
    assert A.doob([1.0, 2.0, 3.0]).dtype == np.float32
    assert A.regime(third).rho.dtype == np.float32
    with pytest.raises(
        OverflowError, match=r"mu: wanted numbers that float32 can hold .* got 1e-60"
    ):
        qk.bridge(s, np.array([1e-60, 0.5, 0.5]), third)
    with pytest.raises(TypeError, match=r"mu: wanted float32 or float64"):
        qk.bridge(s, np.array([1j, 1, 1]), third)


@pytest.mark.parametrize("dtype", DTYPES)
def test_costs_and_temperatures(dtype: str) -> None:
    r = rng()
    C = r.random((5, 7)).astype(dtype)
    b = qk.bridge(cost=C, epsilon=0.1)
    a = qk.bridge(qk.scores.dense((-C / np.asarray(0.1, dtype)).astype(dtype)))
    np.testing.assert_allclose(b.plan(), a.plan(), atol=2 * a.tol)
    C[0, 0] = np.inf
    assert qk.bridge(cost=C, epsilon=0.1, nu=np.full(7, 1 / 7)).plan()[0, 0] == 0
    with pytest.raises(TypeError, match="epsilon: wanted cost and epsilon together, got None"):
        qk.bridge(cost=C)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="kernel: wanted None beside cost and epsilon"):
        qk.bridge(qk.scores.dense(np.zeros_like(C)), cost=C, epsilon=1.0)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="kernel: wanted scores, got NoneType"):
        qk.bridge()  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="cost: wanted numbers above -inf"):
        qk.bridge(cost=-C, epsilon=1.0)


def test_a_kernel_that_is_not_scores_is_named_before_missing_marginals() -> None:
    """Weights may be missing only beside scores, so an array is the mistake, not its missing weights."""
    u = np.full(3, 1 / 3)
    wrap = r"kernel: wanted scores, got {}; wrap an array with qk\.scores\.dense\(array\)"
    wrong: tuple[Any, ...] = (np.eye(3), [[1.0]], "scores", object(), None)
    for kernel in wrong:
        for weights in ((), (u,), (u, u)):
            with pytest.raises(TypeError, match=wrap.format(type(kernel).__name__)):
                qk.bridge(kernel, *weights)
    factors: Any = qk.LowRank(np.ones((3, 1)), np.ones((1, 3)))
    with pytest.raises(TypeError, match="mu: wanted weights, got None; they may be left out only"):
        qk.bridge(factors, nu=u)
    with pytest.raises(TypeError, match="nu: wanted weights, got None; they may be left out only"):
        qk.bridge(factors, u)


def test_out_of_sample_projection() -> None:
    """The points of the fit get their projection; others what the closed form of one column per row says."""
    r = rng()
    X, Y, new = r.normal(size=(20, 2)), r.normal(size=(15, 2)) + 1, r.normal(size=(4, 2))
    b = qk.bridge(qk.scores.distance(X, Y, beta=2.0))
    np.testing.assert_allclose(b.transform(X, Y), b.project(Y), rtol=1e-12)
    weights = np.exp(b.g - 2 * np.square(new[:, None] - Y).sum(axis=2))
    wanted = weights @ Y / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(b.transform(new, Y), wanted, rtol=1e-10)
    found = b.transform(qk.scores.distance(new, Y, beta=2.0), Y)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    city = qk.bridge(qk.scores.l1(X, Y, beta=6.0) / 3.0)
    wanted = city.transform(qk.scores.l1(new, Y, beta=2.0), Y)
    np.testing.assert_allclose(city.transform(new, Y), wanted, rtol=1e-12)
    c = qk.bridge(qk.scores.dot(X, Y))
    # After multiplication by W, the kernel's points are not in the space of new points.
    weighed = qk.bridge(qk.scores.distance(X, Y, W=np.diag([4.0, 0.25])))
    for other in (c, weighed, qk.bridge(qk.scores.l1(X, Y, W=np.array([2.0, 1.0])))):
        with pytest.raises(TypeError, match="new: wanted scores of the new rows"):
            other.transform(new, Y)
    with pytest.raises(ValueError, match="new: wanted scores against 15 columns"):
        c.transform(qk.scores.dot(new, X), Y)
    assert math.isfinite(float(c.transform(qk.scores.dot(new, Y), Y).sum()))


# ---- batches of chains ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax", "columns", "bistochastic", "composition"])
def test_batches_of_chains(kind: str) -> None:
    """Every figure of a batch is that of its problems, one by one."""
    r = rng()
    X, W = r.normal(size=(2, 3, 7, 2)), r.normal(size=(2, 2))
    s = qk.scores.dot(X, W=W)
    A: Any = {
        "softmax": lambda: qk.softmax(s),
        "columns": lambda: qk.softmax(s, 0),
        "bistochastic": lambda: qk.sinkhorn(s),
        "composition": lambda: qk.softmax(s) @ qk.softmax(-s),
    }[kind]()
    rho = r.random((3, 7))
    rho /= rho.sum(axis=1, keepdims=True)
    laws, gaps, norms, regimes = A.stationary(), A.spectral_gap(), A.current_norms(), A.regime()
    assert laws.shape == (2, 3, 7) and gaps.shape == (2, 3)
    assert norms.shape == (2, 3) and len(regimes) == 2 and bool(regimes)
    there = A.entropy_production(rho)
    for index in np.ndindex(2, 3):
        one = A[index]
        np.testing.assert_array_equal(laws[index], one.stationary())
        assert gaps[index] == one.spectral_gap()
        assert norms.total[index] == norms[index].total == one.current_norms().total
        assert regimes.regime[index] == regimes[index].regime == one.regime().regime
        assert there[index] == one.entropy_production(rho[index[1]])
        np.testing.assert_array_equal(A.currents(rho)[index], one.currents(rho[index[1]]))
        np.testing.assert_array_equal(A.leads_to(1)[index], one.leads_to(1))
    assert regimes.rho.shape == (2, 3, 7) and regimes[1].regime.shape == (3,)
    assert str(regimes).startswith("Regime of a batch (2, 3)\n[0, 0]: ")
    with pytest.raises(ValueError, match=r"rho: wanted batch axes that broadcast to \(2, 3\)"):
        A.regime(np.full((5, 7), 1 / 7))


def test_sinkhorn_of_a_batch() -> None:
    s = qk.scores.distance(rng().normal(size=(4, 6, 2)))
    B = qk.sinkhorn(s)
    np.testing.assert_allclose(B.to_numpy().sum(axis=(1)), 1, atol=1e-7)
    for k in range(4):
        np.testing.assert_allclose(B[k].to_numpy(), qk.sinkhorn(s[k]).to_numpy(), atol=1e-8)
        assert B[k].bistochastic and B[k].bridge.converged
    Z = np.zeros((2, 3, 3))
    Z[1] = np.diag([0, 0, -np.inf]) + np.where(np.eye(3) > 0, 0, -np.inf)
    with pytest.raises(qk.ConvergenceError, match="in problem 1"):
        qk.sinkhorn(qk.scores.dense(Z))


# ---- heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dot", "forward", "backward", "distance"])
@pytest.mark.parametrize("form", ["matrix", "factors", "semidefinite", "of low rank"])
def test_a_matrix_for_every_head(name: str, form: str, dtype: str) -> None:
    """Scores of all heads at once are those of each head alone; indefinite metrics of different ranks too."""
    r = rng()
    X, Y = r.normal(size=(6, 4)).astype(dtype), r.normal(size=(2, 1, 5, 4)).astype(dtype)
    W: Any = r.normal(size=(3, 4, 4)).astype(dtype)
    if form == "semidefinite":
        W = W @ W.swapaxes(-1, -2)
    elif form == "of low rank":
        W[0] = np.outer(W[0, 0], W[0, 0])
        W[1] = 0
    elif form == "factors":
        W = (W[:, :, :2].copy(), W[:, :2].copy())
    heads = [tuple(w[k] for w in W) if isinstance(W, tuple) else W[k] for k in range(3)]
    make = getattr(qk.scores, name)
    tol = 200 * float(np.finfo(dtype).eps)
    for points in ((X,), (X, Y)):
        found = make(*points, W=W, beta=0.7)
        lead = () if len(points) == 1 else (2,)
        assert found.shape == (*lead, 3, 6, 6 if len(points) == 1 else 5)
        for k, w in enumerate(heads):
            alone = make(*(p if p.ndim == 2 else p[:, 0] for p in points), W=w, beta=0.7)
            np.testing.assert_allclose(
                found.to_numpy()[..., k, :, :], alone.to_numpy(), atol=tol * 20
            )
    assert qk.softmax(make(X, W=W))[1].stationary().shape == (6,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosines(dtype: str) -> None:
    """Lengths do not matter, from 1e-30 to 1e30; batches broadcast; 0 has no direction."""
    r = rng()
    X, Y = r.normal(size=(2, 5, 3)).astype(dtype), r.normal(size=(4, 3)).astype(dtype)
    wanted = 0.7 * (X @ Y.T) / np.linalg.norm(X, axis=-1)[..., None] / np.linalg.norm(Y, axis=1)
    tol = 20 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(qk.scores.cosine(X, Y, beta=0.7).to_numpy(), wanted, atol=tol)
    for scale in (1e-30, 1e30):
        lengths = np.asarray(scale, dtype)
        found = qk.scores.cosine(X * lengths, Y / lengths, beta=0.7).to_numpy()
        np.testing.assert_allclose(found, wanted, atol=tol)
    alone = qk.scores.cosine(Y)
    assert alone.symmetric
    np.testing.assert_allclose(np.diag(alone.to_numpy()), 1, atol=tol)
    Y[2] = 0
    with pytest.raises(ValueError, match=r"Y: wanted points other than 0, .* row 2"):
        qk.scores.cosine(X[0], Y)


# ---- arrays of other libraries ----------------------------------------------------------------------


class Tensor:
    """As much of a tensor as is looked at."""

    def __init__(self, values: Any, error: Exception | None = None, **more: Any) -> None:
        self.values, self.error = values, error
        vars(self).update(more)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.values


def test_arrays_of_other_libraries_share_their_memory() -> None:
    X = rng().normal(size=(5, 2))
    s = qk.scores.dot(Tensor(X))
    assert np.shares_memory(s.terms.dots[0][0], X)
    V = Tensor(np.ones((5, 1)))
    np.testing.assert_allclose(qk.softmax(s) @ V, 1)
    b = qk.bridge(s, Tensor(np.full(5, 0.2)), [0.2] * 5)
    assert b.converged


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            Tensor(0, requires_grad=True),
            TypeError,
            r"a Tensor that requires gradients.*X\.detach\(\)",
        ),
        (Tensor(0, TypeError("BFloat16")), TypeError, r"cannot take \(BFloat16\).*X\.float\(\)"),
        (Tensor(0, tocsr=None), TypeError, r"a sparse Tensor; pass X\.toarray\(\)"),
        ([[1.0], [1.0, 2.0]], ValueError, "wanted a rectangular array of numbers, got list"),
        (None, TypeError, "X: wanted float32 or float64"),
    ],
    ids=["gradients", "bfloat16", "sparse", "ragged", "none"],
)
def test_what_cannot_be_taken_says_what_to_do(
    value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        qk.scores.dot(value)
