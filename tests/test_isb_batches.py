"""Iterated bridges on batches, against their clouds one by one, and on a device, against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qkcore as qk
from qkcore import isb
from tests.device_libraries import Library, xp  # noqa: F401  # a fixture

Array = NDArray[Any]
DTYPES = ("float32", "float64")
EPSILON = 0.4


def clouds(dtype: str, batch: tuple[int, ...] = (2, 3), n: int = 24, d: int = 2) -> Array:
    return np.random.default_rng(8).normal(size=(*batch, n, d)).astype(dtype)


def weights(dtype: str, batch: tuple[int, ...] = (2, 3), n: int = 24) -> Array:
    w = np.random.default_rng(9).uniform(0.2, 1, size=(*batch, n)).astype(dtype)
    w[..., 3] = 0  # B is available nevertheless
    return w


def near(dtype: str) -> float:
    return 2e-4 if dtype == "float32" else 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("memory", [None, 0])
def test_maps_of_a_batch(memory: float | None, weighted: bool, dtype: str) -> None:
    X, w = clouds(dtype), weights(dtype) if weighted else None
    B = isb.barycentric(X, EPSILON, w, max_memory=memory)
    assert B.status.shape == B.error.shape == B.n_iter.shape == B.self_weight.shape == (2, 3)
    assert B.converged.all() and (B.error <= B.tol).all() and B.values.dtype == dtype
    assert B.potential.shape == (2, 3, 24) and B.potential.dtype == np.float64
    assert (B.method == ("on the fly" if memory == 0 else "stored")).all()
    Y = np.random.default_rng(1).normal(size=(2, 3, 5, 2)).astype(dtype)
    at, score = B(Y), B.score()
    for k in np.ndindex(2, 3):
        one = isb.barycentric(X[k], EPSILON, None if w is None else w[k])
        np.testing.assert_allclose(B.values[k], one.values, rtol=0, atol=near(dtype))
        np.testing.assert_allclose(B[k].values, B.values[k], rtol=0)
        assert (B[k].status, B[k].n_iter, B[k].error) == ("converged", B.n_iter[k], B.error[k])
        np.testing.assert_allclose(at[k], one(Y[k]), rtol=0, atol=near(dtype))
        np.testing.assert_allclose(B(Y[0, 0])[k], one(Y[0, 0]), rtol=0, atol=near(dtype))
        np.testing.assert_allclose(score[k], one.score(), rtol=0, atol=10 * near(dtype))
        assert B.self_weight[k] == pytest.approx(one.self_weight, abs=near(dtype))
        np.testing.assert_allclose(
            B.operator[k].to_numpy(), one.operator.to_numpy(), rtol=0, atol=near(dtype)
        )
        assert abs(int(B.n_iter[k]) - one.n_iter) <= 3
    assert (isb.barycentric(X, EPSILON, w, init=B).n_iter <= 3).all()
    assert "6 of 6 converged" in str(B) and "batch (2, 3)" in str(B)
    assert B[0].values.shape == (3, 24, 2)


def test_a_batch_says_which_maps_have_not_converged() -> None:
    X = np.stack([clouds("float64", ()), np.zeros((24, 2))])  # equal points are solved at once
    B = isb.barycentric(X, 0.05, max_iter=2, on_fail="ignore")
    assert B.status.tolist() == ["iteration limit", "converged"] and B.n_iter[0] == 2
    with pytest.warns(qk.ConvergenceWarning, match=r"1 of 2 problems not converged \(iteration"):
        isb.barycentric(X, 0.05, max_iter=2)
    with pytest.raises(RuntimeError, match="step: bridge 1 of 2 problems not converged"):
        isb.step(X, 0.05, max_iter=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_a_batch(dtype: str) -> None:
    X, w = clouds(dtype), weights(dtype)
    moved = isb.step(X, EPSILON, theta=2.0, weights=w)
    grid = np.linspace(-3, 3, 12, dtype=dtype)[:, None].repeat(2, 1)
    other = isb.step(X, EPSILON, surrogate=(grid, np.ones(12, dtype)))
    again = isb.step(X, EPSILON, theta=2.0, surrogate=moved.map)
    euler = isb.euler_step(X, EPSILON, lambda x: x / 2)
    assert "batch (2, 3)" in str(moved)
    for k in np.ndindex(2, 3):
        one = isb.step(X[k], EPSILON, theta=2.0, weights=w[k])
        np.testing.assert_allclose(moved.X[k], one.X, rtol=0, atol=near(dtype))
        np.testing.assert_allclose(again.X[k], one.X, rtol=0, atol=near(dtype))
        want = isb.step(X[k], EPSILON, surrogate=(grid, np.ones(12, dtype))).X
        np.testing.assert_allclose(other.X[k], want, rtol=0, atol=near(dtype))
        np.testing.assert_array_equal(euler[k], isb.euler_step(X[k], EPSILON, X[k] / 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["heat", "score", "potential", "ornstein-uhlenbeck"])
def test_flows_of_a_batch(kind: str, dtype: str) -> None:
    X, w = clouds(dtype), weights(dtype)

    def flow(X: Array, w: Array) -> Any:
        if kind == "heat":
            return isb.heat_flow(X, 0.1, 5, weights=w, save_every=2)
        if kind == "score":
            return isb.kl_flow(X, 0.1, 5, weights=w, score=lambda x: -x, save_every=2)
        if kind == "potential":
            energy = lambda x: (x**2).sum(1) / 2  # noqa: E731
            return isb.kl_flow(X, 0.1, 5, weights=w, potential=energy, save_every=2)
        return isb.ornstein_uhlenbeck(X, 0.1, 5, weights=w, mean=0.5, save_every=2)

    many = flow(X, w)
    assert isinstance(many, qk.Batch) and many.shape == (2, 3)
    assert (many.status == "finished").all() and many.x.shape == (2, 3, 4, 24, 2)
    assert many.n_iter.shape == (2, 3, 5)
    for k in np.ndindex(2, 3):
        one = flow(X[k], w[k])
        np.testing.assert_allclose(many.x[k], one.x, rtol=0, atol=20 * near(dtype))
        np.testing.assert_array_equal(many.t[k], one.t)
        np.testing.assert_allclose(many[k].covariance(), one.covariance(), atol=50 * near(dtype))


def test_one_flow_that_ends_does_not_stop_the_others() -> None:
    """Particles that run away, in the first step or later, end their own flow."""
    X = clouds("float64", (3,))

    def score(x: Array) -> Array:
        far = np.abs(x).max()
        return np.full_like(x, np.nan) if far > 30 else x * (1e3 if far > 8 else 1.0)

    X[1] *= 4
    X[2] *= 100
    flows = isb.kl_flow(X, 0.1, 4, score=score)
    assert flows[0].status == "finished" and flows[0].n_steps == 4
    assert flows.converged.tolist() == [True, False, False]
    assert flows[1].message.startswith("ended at step 2 of 4") and flows[1].n_steps == 1
    assert flows[2].message.startswith("ended at step 1 of 4") and flows[2].n_steps == 0
    np.testing.assert_array_equal(flows[2].X, X[2])
    np.testing.assert_allclose(flows[0].X, isb.kl_flow(X[0], 0.1, 4, score=score).X, atol=1e-7)


def test_scores_that_overflow_for_one_cloud() -> None:
    X = clouds("float64", (2,))
    flows = isb.kl_flow(X, 0.1, 3, score=lambda x: x * (1e160 if x[0, 0] == X[1, 0, 0] else 1.0))
    assert flows[0].status == "finished"
    assert "overflows float64" in flows[1].message and flows[1].n_steps == 1


# ---- on a device --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_maps_on_a_device(xp: Library, batch: tuple[int, ...], dtype: str) -> None:  # noqa: F811
    X, w, d = clouds(dtype, batch), weights(dtype, batch), xp.asarray
    want, got = isb.barycentric(X, EPSILON, w), isb.barycentric(d(X), EPSILON, d(w))
    assert np.all(got.converged) and np.all(np.asarray(got.error) <= got.tol)
    np.testing.assert_allclose(xp.numpy(got.values), want.values, rtol=0, atol=near(dtype))
    np.testing.assert_allclose(got.self_weight, want.self_weight, atol=near(dtype))
    Y = np.random.default_rng(1).normal(size=(*batch, 5, 2)).astype(dtype)
    np.testing.assert_allclose(xp.numpy(got(d(Y))), want(Y), rtol=0, atol=near(dtype))
    np.testing.assert_allclose(xp.numpy(got.score()), want.score(), rtol=0, atol=10 * near(dtype))
    V = np.ones(24, dtype)
    np.testing.assert_allclose(xp.numpy(got.operator @ d(V)), want.operator @ V, atol=near(dtype))
    again = isb.barycentric(d(X), EPSILON, d(w), init=got)
    assert np.all(again.n_iter <= 4)
    if batch:
        np.testing.assert_array_equal(xp.numpy(got[1].values), xp.numpy(got.values)[1])
    moved, there = isb.step(X, EPSILON, weights=w), isb.step(d(X), EPSILON, weights=d(w))
    np.testing.assert_allclose(xp.numpy(there.X), moved.X, rtol=0, atol=near(dtype))
    grid = np.linspace(-3, 3, 12, dtype=dtype)[:, None].repeat(2, 1)
    pair = grid, np.ones(12, dtype)
    moved = isb.step(X, EPSILON, surrogate=pair)
    there = isb.step(d(X), EPSILON, surrogate=(d(grid), d(pair[1])))
    np.testing.assert_allclose(xp.numpy(there.X), moved.X, rtol=0, atol=near(dtype))
    v = np.sin(X)
    euler = isb.euler_step(d(X), EPSILON, d(v))
    np.testing.assert_array_equal(xp.numpy(euler), isb.euler_step(X, EPSILON, v))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_flows_on_a_device(xp: Library, batch: tuple[int, ...], dtype: str) -> None:  # noqa: F811
    """The bridges run on the device; a score is a function of the library's arrays."""
    X, d = clouds(dtype, batch, n=18), xp.asarray

    def there(f: Any) -> Any:
        return lambda x: d(f(xp.numpy(x)))

    energy = lambda x: (x**2).sum(1) / 2  # noqa: E731
    cases = [
        (isb.heat_flow(X, 0.1, 3), isb.heat_flow(d(X), 0.1, 3)),
        (
            isb.kl_flow(X, 0.1, 3, score=lambda x: -x),
            isb.kl_flow(d(X), 0.1, 3, score=there(lambda x: -x)),
        ),
        (
            isb.kl_flow(X, 0.1, 3, potential=energy),
            isb.kl_flow(d(X), 0.1, 3, potential=there(energy)),
        ),
        (isb.ornstein_uhlenbeck(X, 0.1, 3), isb.ornstein_uhlenbeck(d(X), 0.1, 3)),
    ]
    for want, got in cases:
        for k in np.ndindex(batch):
            mine, theirs = (want[k], got[k]) if batch else (want, got)
            assert theirs.status == "finished" and theirs.map is not None
            size = 20 * near(dtype)
            np.testing.assert_allclose(xp.numpy(theirs.x), mine.x, rtol=0, atol=size)
            np.testing.assert_allclose(xp.numpy(theirs.X), mine.X, rtol=0, atol=size)
            np.testing.assert_allclose(theirs.mean(), mine.mean(), rtol=0, atol=size)
            np.testing.assert_allclose(theirs.covariance(), mine.covariance(), atol=3 * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["support", "carried", "function", "estimate"])
def test_surrogate_flows_on_a_device(xp: Library, kind: str, dtype: str) -> None:  # noqa: F811
    """Densities, maps and Jacobians of the poster's step: their sums are the device's."""
    far = 6 if kind == "estimate" else 18  # an estimate of the far tails is mostly rounding
    x, d = np.linspace(-far, far, 60, dtype=dtype)[:, None], xp.asarray
    w = np.exp(-(x[:, 0] ** 2) / 8)
    Z = np.linspace(-14, 14, 60, dtype=dtype)[:, None]

    def normal(x: Array, k: int = 0) -> Array:
        return -(x[:, 0] ** 2) / (2 * (1 + 3 * np.exp(-0.2 * k)))

    def flow(to: Any, back: Any) -> isb.BridgeFlow:
        options: dict[str, Any] = {
            "support": {"support": to(Z), "bandwidth": 0.5},
            "carried": {"log_density": to(normal(x))},
            "function": {"log_density": lambda z, k: to(normal(back(z), k))},
            "estimate": {"theta": -1.0},
        }[kind]
        energy = lambda z: to((back(z) ** 2).sum(1) / 2)  # noqa: E731
        return isb.kl_flow(
            to(x),
            0.2,
            3,
            potential=energy,
            method="surrogate",
            weights=to(w),
            **options,
            max_unevenness=np.inf,
            tol=None if dtype == "float32" else 1e-13,
        )

    mine, theirs = flow(lambda a: a, lambda a: a), flow(d, xp.numpy)
    assert theirs.status == mine.status == "finished"
    # Where there is hardly any mass the potentials, and so the steps, are not determined.
    off = np.abs(xp.numpy(theirs.x) - mine.x)[..., 0] @ (w / w.sum()).astype(np.float64)
    assert off.max() <= 20 * near(dtype)
    np.testing.assert_allclose(theirs.theta, mine.theta, rtol=1e-2 if dtype == "float32" else 1e-5)


def test_what_a_device_refuses(xp: Library) -> None:  # noqa: F811
    X, d = clouds("float64", ()), xp.asarray
    with pytest.raises(TypeError, match="weights: wanted an array on cuda:0 like the others"):
        isb.barycentric(d(X), EPSILON, np.ones(24))
    with pytest.raises(TypeError, match="n_threads: wanted None for arrays on cuda:0"):
        isb.heat_flow(d(X), EPSILON, 1, n_threads=2)
    with pytest.raises(TypeError, match="score: wanted an array on cuda:0"):
        isb.kl_flow(d(X), EPSILON, 1, score=lambda x: np.zeros((24, 2)))
    B = isb.barycentric(d(X), EPSILON)
    with pytest.raises(TypeError, match="Y: wanted an array on cuda:0"):
        B(X)
