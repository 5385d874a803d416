"""All of a bridge on a device: batches, costs, entropies, dual values, printed text (DAC-7, EOT-1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _bridge_kernel, _moments
from qkcore._device._bridge_kernel import DeviceKernel
from tests import fake_cuda
from tests.device_libraries import Library
from tests.fake_cuda import FakeArray
from tests.test_device import DTYPES, KINDS, close, cpu_and_device, laws, rng

FIGURES = ("status", "converged", "n_iter", "n_visits", "errors", "error", "worst", "method")


@pytest.fixture(params=[2**26, 4 * 18 * 8], ids=["one block", "blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_moments, "BLOCK_BYTES", request.param)


# ---- rows, expected scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_scores(xp: Library, kind: str, dtype: str) -> None:
    """Some of the rows, whatever the scores are made of, masks and bands among it."""
    cpu, device = cpu_and_device(xp, kind, dtype)
    whole = device.to_numpy()
    for start, stop in ((0, 13), (0, 1), (12, 13), (4, 11)):
        part = device.rows(start, stop)
        assert part.shape == (stop - start, cpu.shape[1])
        np.testing.assert_array_equal(part.to_numpy(), whole[start:stop])
        close(xp.numpy(part.logsumexp()), cpu.logsumexp()[start:stop], 32)
    with pytest.raises(ValueError, match=r"start, stop: wanted 0 <= start < stop <= 13, got 3, 3"):
        device.rows(3, 3)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "distance", "causal", "masked"])
def test_entropy_and_expected_score(xp: Library, kind: str, dtype: str) -> None:
    cpu, device = cpu_and_device(xp, kind, dtype)
    for axis in (0, 1):
        a, b = qk.softmax(cpu, axis), qk.softmax(device, axis)
        close(xp.numpy(b.entropy()), a.entropy(), 4)
        close(xp.numpy(b.expected_score()), a.expected_score(), 4)


def test_entropy_of_rows_that_see_nothing_and_of_batches(xp: Library) -> None:
    device = qk.softmax(qk.scores.dense(xp.asarray(np.zeros((3, 3)))).window(-1, None))
    np.testing.assert_allclose(xp.numpy(device.entropy()), [math.log(2), 0, 0], atol=1e-15)
    np.testing.assert_array_equal(xp.numpy(device.expected_score()), np.zeros(3))
    X, Y = rng().normal(size=(2, 3, 5, 2)), rng().normal(size=(1, 3, 6, 2))
    a = qk.softmax(qk.scores.dot(X, Y))
    b = qk.softmax(qk.scores.dot(xp.asarray(X), xp.asarray(Y)))
    close(xp.numpy(b.entropy()), a.entropy(), 4)
    close(xp.numpy(b.expected_score()), a.expected_score(), 4)


# ---- figures of one bridge --------------------------------------------------------------------------


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "distance", "sum", "masked"])
def test_cost_entropy_and_duality(xp: Library, kind: str, dtype: str) -> None:
    """DAC-7, EOT-1: by their definitions on the coupling itself, and no gap at the solution."""
    cpu, device = cpu_and_device(xp, kind, dtype)
    if kind == "masked":  # a softmax mask of its own marginals: feasible
        plan = qk.softmax(cpu).to_numpy() / 13
        mu, nu = plan.sum(1), plan.sum(0)
    else:
        mu, nu = laws(13, 18, dtype)
        mu[3] = 0
        mu /= mu.sum()
    b = qk.bridge(device, xp.asarray(mu), xp.asarray(nu))
    assert b.converged, str(b)
    P, s = xp.numpy(b.plan()).astype(float), cpu.to_numpy().astype(float)
    live = P > 0
    cost, entropy = -np.sum(P[live] * s[live]), -np.sum(P[live] * np.log(P[live]))
    eps = 1e3 * np.finfo(dtype).eps
    size = 1 + abs(cost) + abs(entropy)
    np.testing.assert_allclose([b.cost, b.entropy], [cost, entropy], rtol=0, atol=eps * size)
    np.testing.assert_allclose(b.primal, cost - entropy - P.sum(), rtol=0, atol=eps * size)
    f, g = xp.numpy(b.f).astype(float), xp.numpy(b.g).astype(float)
    dual = np.sum((mu * f.clip(-1e300))[mu > 0]) + np.sum((nu * g.clip(-1e300))[nu > 0]) - P.sum()
    np.testing.assert_allclose(b.dual, dual, rtol=0, atol=eps * size)
    largest = max(np.abs(x[np.isfinite(x)]).max() for x in (f, g))
    assert abs(b.gap) <= 4 * b.error * (1 + largest) + eps * size
    a = qk.bridge(cpu, mu, nu, tol=b.tol)
    for name in ("cost", "entropy", "primal", "dual"):
        wanted = getattr(a, name)
        slack = 1e-3 if dtype == "float32" else 1e-6
        np.testing.assert_allclose(getattr(b, name), wanted, rtol=0, atol=slack * (1 + abs(wanted)))
    rows, columns = (xp.numpy(x) for x in b.marginals())
    np.testing.assert_allclose(rows, P.sum(1), rtol=0, atol=eps)
    np.testing.assert_allclose(columns, P.sum(0), rtol=0, atol=eps)


def test_rates(xp: Library) -> None:
    """The observed rate per iteration is the one of the CPU's plain iteration, below Birkhoff's bound."""
    X, Y = rng().normal(size=(9, 2)), rng().normal(size=(8, 2))
    mu, nu = laws(9, 8, "float64")
    a = qk.bridge(qk.scores.distance(X, Y), mu, nu, solver="alternating", tol=1e-12)
    device = qk.scores.distance(xp.asarray(X), xp.asarray(Y))
    ends = xp.asarray(mu), xp.asarray(nu)
    b = qk.bridge(device, *ends, solver="alternating", tol=1e-12)
    assert a.converged and b.converged and b.n_iter == len(b.errors)
    np.testing.assert_allclose(b.rate, a.rate, rtol=0.1)
    np.testing.assert_allclose(b.birkhoff_rate, a.birkhoff_rate, rtol=1e-12)
    assert 0 < b.rate <= b.birkhoff_rate <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["forward, self", "backward", "distance"])
def test_sinkhorn(xp: Library, kind: str, dtype: str) -> None:
    """DAC-4, eqs 9-10: rows and columns sum to 1, products from both sides, the CPU's operator."""
    X = rng().normal(size=(11, 3)).astype(dtype)
    make = {
        "forward, self": lambda x: qk.scores.forward(x, beta=0.3),
        "backward": lambda x: qk.scores.backward(x, beta=0.3),
        "distance": lambda x: qk.scores.distance(x, beta=0.3),
    }[kind]
    a, b = qk.sinkhorn(make(X)), qk.sinkhorn(make(xp.asarray(X)))
    accuracy = 1e-4 if dtype == "float32" else 1e-8
    P = b.to_numpy()
    for axis in (0, 1):
        np.testing.assert_allclose(P.sum(axis), 1, rtol=0, atol=11 * b.bridge.tol)
    np.testing.assert_allclose(P, a.to_numpy(), rtol=0, atol=accuracy)
    V = rng().normal(size=(11, 2)).astype(dtype)
    np.testing.assert_allclose(xp.numpy(b @ xp.asarray(V)), P @ V, rtol=0, atol=accuracy)
    np.testing.assert_allclose(xp.numpy(b.T @ xp.asarray(V)), P.T @ V, rtol=0, atol=accuracy)
    np.testing.assert_allclose(
        xp.numpy(b.entropy()), -(P * np.log(P)).sum(1), rtol=0, atol=accuracy
    )
    assert b.bistochastic and b.T.bistochastic and "bistochastic" in repr(b)


def test_sinkhorn_that_does_not_converge(xp: Library) -> None:
    X = xp.asarray(rng().normal(size=(5, 2)))
    with pytest.raises(RuntimeError, match=r"sinkhorn: iteration limit after 1 iterations"):
        qk.sinkhorn(qk.scores.forward(X, beta=2.0), max_iter=1)
    with pytest.raises(
        ValueError, match=r"s: wanted square scores \(..., N, N\), got shape \(5, 4\)"
    ):
        qk.sinkhorn(qk.scores.dot(X, xp.asarray(np.zeros((4, 2)))))
    with pytest.raises(ValueError, match=r"max_iter: wanted at least 1"):
        qk.sinkhorn(qk.scores.distance(X), max_iter=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_semi_relaxed(xp: Library, dtype: str) -> None:
    """EOT-1: rows constrained, columns free, a reference with a 0; rows that see nothing are said."""
    cpu, device = cpu_and_device(xp, "causal", dtype)
    mu, u = laws(13, 18, dtype)
    u[3] = 0
    mu[2] = 0
    for reference in (None, u):
        a = qk.semi_relaxed(cpu, mu, reference=reference)
        b = qk.semi_relaxed(
            device, xp.asarray(mu), reference=None if reference is None else xp.asarray(u)
        )
        assert b.converged and b.status == a.status
        for name in ("f", "g", "nu"):
            close(xp.numpy(getattr(b, name)), getattr(a, name), 8)
        close(xp.numpy(b.plan()), a.plan(), 8)
        np.testing.assert_allclose(xp.numpy(b.marginals()[0]), mu, rtol=0, atol=1e-5)
    empty = cpu.causal(-3), device.causal(-3)
    a, b = qk.semi_relaxed(empty[0], mu), qk.semi_relaxed(empty[1], xp.asarray(mu))
    assert (b.status, b.converged) == (a.status, a.converged) == ("infeasible", False)
    np.testing.assert_allclose(b.error, a.error, rtol=1e-5)
    close(xp.numpy(b.f), a.f, 8)


MASKS = {
    "causal": np.tri(12, dtype=bool),
    "anti-causal": np.tri(12, dtype=bool).T,
    "blocks": np.kron(np.eye(3), np.ones((4, 4))).astype(bool),
    "a block that nothing returns from": np.kron([[1, 1], [0, 1]], np.ones((6, 6))).astype(bool),
    "too few columns for three rows": np.vstack([np.arange(12) < 2] * 3 + [np.ones(12, bool)] * 9),
    "wide band": np.abs(np.subtract.outer(np.arange(12), np.arange(12))) < 5,
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_judged_as_on_the_cpu(xp: Library, kind: str) -> None:
    """DAC-7: infeasible masks, and those without total support however well the marginals are met."""
    keep, u = MASKS[kind], np.full(12, 1 / 12)
    Z = rng().standard_normal((12, 12))
    device = qk.scores.dense(xp.asarray(Z))
    masked = {
        "causal": device.causal,
        "anti-causal": lambda: device.window(0, None),
        "wide band": lambda: device.window(4, 4),
    }.get(kind, lambda: device.masked(xp.asarray(keep)))()
    for tol in (1e-9, 0.5):
        a = qk.bridge(qk.scores.dense(Z).masked(keep), u, u, tol=tol)
        b = qk.bridge(masked, xp.asarray(u), xp.asarray(u), tol=tol, max_iter=2000)
        assert (b.status, b.converged) == (a.status, a.converged), str(b)
    batch = qk.scores.dense(xp.asarray(np.stack([Z, -Z]))).masked(xp.asarray(keep))
    found = qk.bridge(batch, xp.asarray(u), xp.asarray(u), tol=0.5)
    assert found.status.tolist() == [a.status] * 2
    free = qk.bridge(masked, xp.asarray(u), xp.asarray(u), penalty=1.0)
    assert free.converged  # with penalties every mask has a solution


# ---- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(xp: Library, dtype: str) -> None:
    """Every problem of a batch is solved as it is alone; axes of length 1 broadcast."""
    r = rng()
    X, Y = r.normal(size=(2, 1, 7, 2)).astype(dtype), r.normal(size=(3, 9, 2)).astype(dtype)
    mu = r.random((2, 3, 7)).astype(dtype)
    mu /= mu.sum(-1, keepdims=True)
    nu = laws(1, 9, dtype)[1]
    d = xp.asarray
    s = qk.scores.distance(d(X), d(Y))
    many = qk.bridge(s, d(mu), d(nu))
    assert s.shape == (2, 3, 7, 9) and np.all(many.converged)
    for name in FIGURES:
        assert np.shape(getattr(many, name)) == (2, 3), name
    assert str(many).startswith(
        f"Schrödinger bridge 7 x 9, batch (2, 3), {dtype}, on cuda:0: 6 of 6 converged"
    )
    f, g, plan = (xp.numpy(x) for x in (many.f, many.g, many.plan()))
    rows, columns = (xp.numpy(x) for x in many.marginals())
    np.testing.assert_allclose(rows, mu, rtol=0, atol=many.tol)
    np.testing.assert_allclose(columns, np.broadcast_to(nu, columns.shape), atol=many.tol)
    for i, j in np.ndindex(2, 3):
        one = qk.bridge(qk.scores.distance(d(X[i, 0]), d(Y[j])), d(mu[i, j].copy()), d(nu))
        np.testing.assert_array_equal(f[i, j], xp.numpy(one.f))
        np.testing.assert_array_equal(g[i, j], xp.numpy(one.g))
        assert (many.n_iter[i, j], many.status[i, j]) == (one.n_iter, one.status)
        assert (many.error[i, j], many.errors[i, j]) == (one.error, one.errors[-1])
    accuracy = 1e-4 if dtype == "float32" else 1e-8
    cpu = qk.bridge(qk.scores.distance(X, Y), mu, nu)
    np.testing.assert_allclose(plan, cpu.plan(), rtol=0, atol=accuracy)
    V = r.normal(size=(2, 3, 9, 2)).astype(dtype)
    np.testing.assert_allclose(
        xp.numpy(many.project(d(V))), cpu.project(V), rtol=0, atol=20 * accuracy
    )
    if not xp.is_real:  # every other weight of a larger array
        wide = xp.asarray(np.repeat(mu, 2, axis=1))
        apart = FakeArray(
            fake_cuda.module().simt_view(wide.memory, list(mu.shape), [2 * 21, 14, 1])
        )
        np.testing.assert_array_equal(xp.numpy(qk.bridge(s, apart, d(nu)).f), f)
    again = qk.bridge(s, d(mu), d(nu), init=many)
    assert np.all(again.converged) and np.all(again.n_iter <= many.n_iter)
    assert np.max(again.n_iter) < np.max(many.n_iter)


def test_symmetric_problems_of_a_batch(xp: Library) -> None:
    """Points with themselves are known to be symmetric, one cloud or many; other points are not."""
    X, u = rng().normal(size=(3, 7, 2)), xp.asarray(np.full(7, 1 / 7))
    for points in (X, X[0]):
        b = qk.bridge(qk.scores.distance(xp.asarray(points)), u, u, solver="symmetric")
        assert np.all(b.converged)
        assert all(how.startswith("symmetric, ") for how in np.ravel(b.method))
        f, g = (xp.numpy(x) for x in (b.f, b.g))
        np.testing.assert_allclose(f - f.mean(-1, keepdims=True), g, rtol=0, atol=1e-8)
    apart = qk.scores.distance(xp.asarray(X), xp.asarray(X.copy()))
    with pytest.raises(ValueError, match=r"solver: wanted symmetric scores and mu = nu"):
        qk.bridge(apart, u, u, solver="symmetric")


def test_a_batch_with_penalties_and_one_infeasible_problem(xp: Library) -> None:
    r = rng()
    Z = r.normal(size=(2, 3, 4))
    mu, nu = laws(3, 4, "float64")
    d = xp.asarray
    options: dict[str, Any] = {"penalty": (0.5, math.inf), "tol": 1e-10}
    a = [qk.bridge(qk.scores.dense(z), mu, 2 * nu, **options) for z in Z]
    b = qk.bridge(qk.scores.dense(d(Z)), d(mu), d(2 * nu), **options)
    assert np.all(b.converged)
    np.testing.assert_allclose(xp.numpy(b.plan()), [one.plan() for one in a], atol=1e-9)

    keep = np.ones((2, 3, 4), bool)
    keep[1, 1] = False
    b = qk.bridge(qk.scores.dense(d(Z)).masked(d(keep)), d(mu), d(nu))
    assert b.status.tolist() == ["converged", "infeasible"]
    assert b.converged.tolist() == [True, False]
    assert "1 of 2 converged" in str(b)


def test_figures_of_a_batch(xp: Library) -> None:
    d, Z, half = xp.asarray, rng().normal(size=(2, 3, 4)), np.full(3, 1 / 3)
    quarter = np.full((2, 4), 1 / 4)
    a = qk.bridge(qk.scores.dense(Z), half, quarter)
    b = qk.bridge(qk.scores.dense(d(Z)), d(half), d(quarter))
    for name in ("cost", "entropy", "primal", "dual", "gap", "birkhoff_rate"):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), atol=1e-7)
    assert np.isnan(b.rate).all() and len(b) == 2
    for k, one in enumerate(b):
        close(xp.numpy(one.plan()), a[k].plan(), 1e7)
        assert one.cost == pytest.approx(a[k].cost) and one.status == "converged"


def test_what_a_batch_does_not_have(xp: Library) -> None:
    d = xp.asarray
    Z, half = d(np.zeros((2, 3, 3))), d(np.full(3, 1 / 3))
    s = qk.scores.dense(Z)
    with pytest.raises(ValueError, match=r"kernel: wanted one problem for a callback"):
        qk.bridge(s, half, half, callback=print)
    wide = d(np.full((2, 2, 3), 1 / 3))
    with pytest.raises(ValueError, match=r"mu: wanted batch axes that broadcast to \(2,\)"):
        qk.bridge(s, wide, half)
    uneven = d(np.array([[1 / 3] * 3, [1.0] * 3]))
    with pytest.raises(ValueError, match=r"nu: wanted the total mass of mu, 3, got 1"):
        qk.bridge(s, uneven, half)


# ---- large entries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "distance", "masked", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strips_of_rows_give_their_large_entries(xp: Library, kind: str, dtype: str) -> None:
    cpu, device = cpu_and_device(xp, kind, dtype)
    n, m = cpu.shape
    mu, _ = laws(n, m, dtype)
    sweep = DeviceKernel(device, mu).sweep
    g = rng().normal(size=m)
    g[1] = -math.inf
    lse, _ = sweep.rows(g, lambda lse: np.where(np.isneginf(lse), 0.0, mu))
    p = np.exp(cpu.to_numpy() + g - np.where(np.isneginf(lse), 0.0, lse)[:, None])
    assert sweep.entries is not None
    for first, end, least in ((0, n, 1e-2), (2, 7, 0.2), (n - 1, n, 1e-9)):
        i, j, shares = sweep.entries(first, end, least)
        want = p[first:end] >= least
        np.testing.assert_array_equal((i, j), np.nonzero(want))
        np.testing.assert_allclose(
            shares, p[first:end][want], rtol=1e-4 if dtype == "float32" else 1e-12
        )


@pytest.mark.parametrize("n", [24, 70])
def test_logits_up_to_700_on_a_device(xp: Library, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Z, u = np.random.default_rng(0).uniform(-700, 700, (n, n)), np.full(n, 1 / n)
    scores = qk.scores.dense(xp.asarray(Z))
    b = qk.bridge(scores, xp.asarray(u), xp.asarray(u), tol=1e-12)
    assert b.converged and b.n_visits < 300
    f, g = xp.numpy(b.f), xp.numpy(b.g)
    plan = np.exp(Z + f[:, None] + g)
    assert max(np.abs(plan.sum(k) - u).sum() for k in (0, 1)) <= 1e-12
    # Kernels with more entries than Newton's method examines are solved by products only, to fewer digits.
    monkeypatch.setattr(_bridge_kernel, "_LOOKED_AT", n * n - 1)
    assert DeviceKernel(scores, u).sweep.entries is None
    few = qk.bridge(
        scores, xp.asarray(u), xp.asarray(u), tol=1e-12, max_visits=600, on_fail="ignore"
    )
    assert not few.converged
