"""The public calls on device arrays against the same calls on the CPU.

On the SIMT layer (tests/fake_cuda.py) everything runs except CUDA's runtime: dispatch, checks, streams, the
module's host code, and the kernels. On a machine with a device the same tests run there (marker gpu).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qkcore as qk
from tests import fake_cuda
from tests.device_libraries import HAS_DEVICE, Library

Array = NDArray[Any]
DTYPES = ("float32", "float64")


@pytest.mark.gpu
def test_a_device_is_there() -> None:
    if not HAS_DEVICE:
        pytest.skip(
            "no CUDA device: device arrays are tested on the SIMT layer only (docs/cuda.md)"
        )
    assert qk.config()["cuda"]["devices"]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def close(found: Array, wanted: Array, size: float = 1.0) -> None:
    """The same within rounding, infinities included."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    eps = float(np.finfo(wanted.dtype).eps)
    largest = float(np.abs(wanted[finite]).max(initial=1.0))
    np.testing.assert_allclose(
        found[finite], wanted[finite], rtol=0, atol=300 * eps * size * largest
    )


def cpu_and_device(xp: Library, kind: str, dtype: str) -> tuple[Any, Any]:
    """The same scores from NumPy arrays and from device arrays."""
    r = rng()
    X, Y = r.normal(size=(13, 3)).astype(dtype), r.normal(size=(18, 3)).astype(dtype)
    W = r.normal(size=(3, 3)).astype(dtype)
    Z = r.normal(size=(13, 18)).astype(dtype)
    rows, columns = r.normal(size=13).astype(dtype), r.normal(size=18).astype(dtype)
    mask, keys = r.random((13, 18)) < 0.6, r.random(18) < 0.7
    d = xp.asarray

    def build(to: Any) -> Any:
        s = qk.scores
        return {
            "dense": lambda: s.dense(to(Z)),
            "dot": lambda: s.dot(to(X), to(Y), beta=0.5),
            "dot, W": lambda: s.dot(to(X), to(Y), W=to(W)),
            "dot, factors": lambda: s.dot(to(X), to(Y), W=(to(W[:, :2]), to(W[:2]))),
            "forward": lambda: s.forward(to(X), to(Y), W=to(W)),
            "forward, self": lambda: s.forward(to(X), beta=0.3),
            "backward": lambda: s.backward(to(X), to(Y)),
            "cosine": lambda: s.cosine(to(X), to(Y), beta=0.7),
            "distance": lambda: s.distance(to(X), to(Y), beta=0.7),
            "l1": lambda: s.l1(to(X), to(Y), beta=0.7),
            "l1, W": lambda: s.l1(to(X), to(Y), W=to(np.abs(W[0]))),
            "distance, W": lambda: s.distance(to(X), to(Y), W=to(W)),
            "sum": lambda: (
                (s.dot(to(X), to(Y)) + s.distance(to(X), to(Y)) + s.dense(to(Z))).shift(
                    to(rows), to(columns)
                )
                / 2.0
            ),
            "causal": lambda: s.dot(to(X), to(Y)).causal(2),
            "window": lambda: s.distance(to(X), to(Y)).window(3, 4),
            "masked": lambda: s.dense(to(Z)).masked(to(mask)).key_padding(to(keys)),
        }[kind]()

    return build(lambda a: a), build(d)


KINDS = (
    "dense",
    "dot",
    "dot, W",
    "dot, factors",
    "forward",
    "forward, self",
    "backward",
    "cosine",
    "distance",
    "distance, W",
    "l1",
    "l1, W",
    "sum",
    "causal",
    "window",
    "masked",
)

# ---- scores and operators ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_products(xp: Library, kind: str, dtype: str) -> None:
    """DAC-1 to DAC-4 on the device: scores, log-sum-exp, softmax from both sides and both axes, marginals."""
    cpu, device = cpu_and_device(xp, kind, dtype)
    assert device.shape == cpu.shape and device.dtype == cpu.dtype and device.device == "cuda:0"
    n, m = cpu.shape
    size = max(1.0, float(np.abs(cpu.to_numpy()[np.isfinite(cpu.to_numpy())]).max()))
    close(device.to_numpy(), cpu.to_numpy(), size)
    close(xp.numpy(device.to_device()), cpu.to_numpy(), size)
    close(xp.numpy(device.T.to_device()), cpu.T.to_numpy(), size)
    for axis in (0, 1):
        close(xp.numpy(device.logsumexp(axis)), cpu.logsumexp(axis), size)
    V, U = rng().normal(size=(m, 5)).astype(dtype), rng().normal(size=(2, n)).astype(dtype)
    for axis in (0, 1):
        A, B = qk.softmax(cpu, axis), qk.softmax(device, axis)
        close(xp.numpy(B @ xp.asarray(V)), A @ V, 4 * size)
        close(xp.numpy(B @ xp.asarray(V[:, 0].copy())), A @ V[:, 0], 4 * size)
        close(xp.numpy(B.apply_left(xp.asarray(U))), U @ A, 8 * size)
        close(xp.numpy(B.apply_left(xp.asarray(U[0].copy()))), U[0] @ A, 8 * size)
        close(xp.numpy(B.log_normalizer), A.log_normalizer, size)
        close(xp.numpy(B.to_device()), A.to_numpy(), 8 * size)
        close(B.T.to_numpy(), A.T.to_numpy(), 8 * size)
    for found, wanted in zip(device.marginals(), cpu.marginals(), strict=True):
        close(xp.numpy(found), wanted, 8 * size)


@pytest.mark.parametrize("weight", ["exp", "linear", "relu", "sigmoid"])
def test_kernels(xp: Library, weight: str) -> None:
    cpu, device = cpu_and_device(xp, "masked", "float64")
    V, U = rng().normal(size=(18, 2)), rng().normal(size=(3, 13))
    A, B = qk.kernel(cpu, weight), qk.kernel(device, weight)
    close(xp.numpy(B @ xp.asarray(V)), A @ V, 8)
    close(xp.numpy(B.apply_left(xp.asarray(U))), U @ A, 8)


def test_the_array_on_the_left(xp: Library) -> None:
    """mu @ A: the array library leaves the product to the operator."""
    cpu, device = cpu_and_device(xp, "dot", "float64")
    mu = np.full(13, 1 / 13)
    close(xp.numpy(xp.asarray(mu) @ qk.softmax(device)), mu @ qk.softmax(cpu), 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_of_heads(xp: Library, dtype: str) -> None:
    """Batch axes, one of them broadcast, as (batch, heads, tokens, d)."""
    r = rng()
    Q, K = r.normal(size=(2, 3, 9, 4)).astype(dtype), r.normal(size=(1, 3, 11, 4)).astype(dtype)
    V = r.normal(size=(2, 1, 11, 5)).astype(dtype)
    keys = r.random((2, 1, 11)) < 0.8
    d = xp.asarray
    cpu = qk.scores.dot(Q, K, beta=0.5).causal(3).key_padding(keys)
    device = qk.scores.dot(d(Q), d(K), beta=0.5).causal(3).key_padding(d(keys))
    assert device.shape == cpu.shape == (2, 3, 9, 11)
    close(xp.numpy(device.logsumexp()), cpu.logsumexp(), 8)
    close(xp.numpy(qk.softmax(device) @ d(V)), qk.softmax(cpu) @ V, 8)
    close(xp.numpy(qk.softmax(device, 0) @ d(V)), qk.softmax(cpu, 0) @ V, 8)
    close(device.to_numpy(), cpu.to_numpy(), 8)
    for found, wanted in zip(device.marginals(), cpu.marginals(), strict=True):
        close(xp.numpy(found), wanted, 32)


def test_strided_points_are_read_where_they_are(xp: Library) -> None:
    """Points, dense scores and values may have any strides: nothing is copied."""
    r = rng()
    X, Y, V = r.normal(size=(4, 13)), r.normal(size=(4, 18)), r.normal(size=(3, 18))
    Z = r.normal(size=(18, 13))
    d = xp.asarray
    cpu = qk.scores.dot(X.T, Y.T) + qk.scores.dense(Z.T)
    device = qk.scores.dot(d(X).T, d(Y).T) + qk.scores.dense(d(Z).T)
    close(xp.numpy(qk.softmax(device) @ d(V).T), qk.softmax(cpu) @ V.T, 16)


def test_batch_axes_with_gaps(xp: Library) -> None:
    """(tokens, heads, d) seen as (heads, tokens, d), as attention layers have it."""
    if xp.is_real:
        pytest.skip("the view is made by hand over the SIMT layer")
    X = rng().normal(size=(2, 9, 3, 4))
    module = fake_cuda.module()
    memory = fake_cuda.asarray(X).memory
    view = fake_cuda.FakeArray(module.simt_view(memory, [2, 3, 9, 4], [9 * 3 * 4, 4, 3 * 4, 1]))
    cpu = qk.softmax(qk.scores.dot(X.swapaxes(1, 2))) @ X.swapaxes(1, 2)
    close(xp.numpy(qk.softmax(qk.scores.dot(view)) @ view), cpu, 16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_inputs_of_16_bits(xp: Library, dtype: str) -> None:
    """Points and values of 16 bits, sums and results in float32."""
    if xp.is_real:
        pytest.skip("conversions of 16 bits differ between libraries")
    from tests.kernels import bfloat16

    r = rng()
    host = [r.normal(size=shape).astype(np.float32) for shape in ((10, 8), (12, 8), (12, 3))]
    if dtype == "float16":
        bits = [a.astype(np.float16) for a in host]
        host = [a.astype(np.float32) for a in bits]
    else:
        pairs = [bfloat16(a) for a in host]
        bits, host = [p[0] for p in pairs], [p[1] for p in pairs]
    X, Y, V = (fake_cuda.asarray(b, dtype=dtype) for b in bits)
    A = qk.softmax(qk.scores.dot(X, Y, beta=0.25).causal(5))
    assert A.dtype == np.float32
    wanted = qk.softmax(qk.scores.dot(host[0], host[1], beta=0.25).causal(5)) @ host[2]
    close(xp.numpy(A @ V), wanted, 8)
    with pytest.raises(TypeError, match=r"X: wanted float32 or float64 for scores that project"):
        qk.scores.forward(X)


def test_rows_that_see_nothing(xp: Library) -> None:
    cpu = qk.scores.dense(np.zeros((3, 3))).window(-1, None)
    device = qk.scores.dense(xp.asarray(np.zeros((3, 3)))).window(-1, None)
    A, B = qk.softmax(cpu), qk.softmax(device)
    close(xp.numpy(B @ xp.asarray(np.ones(3))), A @ np.ones(3))
    close(xp.numpy(B.log_normalizer), A.log_normalizer)
    close(xp.numpy(B.to_device()), A.to_numpy())
    close(xp.numpy(B.apply_left(xp.asarray(np.ones(3)))), np.ones(3) @ A)


# ---- bridges ----------------------------------------------------------------------------------------


def laws(n: int, m: int, dtype: str) -> tuple[Array, Array]:
    r = rng()
    mu, nu = r.random(n) + 0.1, r.random(m) + 0.1
    return (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dense", "distance", "sum"])
def test_bridge(xp: Library, kind: str, dtype: str) -> None:
    """DAC-7: potentials, coupling and both kernels are those of the CPU, in the same gauge."""
    cpu, device = cpu_and_device(xp, kind, dtype)
    mu, nu = laws(13, 18, dtype)
    mu[3] = 0
    mu /= mu.sum()
    a = qk.bridge(cpu, mu, nu)
    b = qk.bridge(device, xp.asarray(mu), xp.asarray(nu))
    assert a.converged and b.converged and b.status == "converged", str(b)
    assert b.error <= b.tol
    accuracy = 1e-3 if dtype == "float32" else 1e-7
    f, g = xp.numpy(b.f), xp.numpy(b.g)
    assert np.isneginf(f[3])
    live = mu > 0
    np.testing.assert_allclose(f[live], a.f[live], rtol=0, atol=accuracy)
    np.testing.assert_allclose(g, a.g, rtol=0, atol=accuracy)
    assert abs(float(np.sum(nu * g))) < (1e-5 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(xp.numpy(b.plan()), a.plan(), rtol=0, atol=accuracy)
    for found, wanted in zip(b.marginals(), (mu, nu), strict=True):
        np.testing.assert_allclose(xp.numpy(found), wanted, rtol=0, atol=b.tol)
    V, U = (r.astype(dtype) for r in (rng().normal(size=(18, 2)), rng().normal(size=(13, 2))))
    np.testing.assert_allclose(xp.numpy(b.project(xp.asarray(V))), a.project(V), atol=accuracy)
    np.testing.assert_allclose(
        xp.numpy(b.backward @ xp.asarray(U)), a.backward @ U, atol=10 * accuracy
    )
    assert "on cuda:0: converged" in str(b)


def test_bridge_starts_from_an_earlier_result(xp: Library) -> None:
    _, device = cpu_and_device(xp, "distance", "float64")
    mu, nu = (xp.asarray(w) for w in laws(13, 18, "float64"))
    first = qk.bridge(device, mu, nu)
    for init in (first, (first.f, first.g)):
        again = qk.bridge(device, mu, nu, init=init)
        assert again.converged and again.n_iter < first.n_iter


def test_bridge_with_penalties(xp: Library) -> None:
    cpu, device = cpu_and_device(xp, "distance", "float64")
    mu, nu = laws(13, 18, "float64")
    a = qk.bridge(cpu, mu, 2 * nu, penalty=(0.5, math.inf), tol=1e-10)
    b = qk.bridge(device, xp.asarray(mu), xp.asarray(2 * nu), penalty=(0.5, math.inf), tol=1e-10)
    assert a.converged and b.converged, str(b)
    np.testing.assert_allclose(xp.numpy(b.plan()), a.plan(), atol=1e-9)


def test_penalised_plans_beyond_the_dtype(xp: Library) -> None:
    """Entries of e^300: neither the masses of the rows nor the sums of the check are float32 numbers."""
    Z = (300 + 20 * rng().random((6, 5))).astype(np.float32)
    mu, nu = np.full(6, 1 / 6, np.float32), np.full(5, 0.6, np.float32)
    s = qk.scores.dense(xp.asarray(Z))
    b = qk.bridge(s, xp.asarray(mu), xp.asarray(nu), penalty=(0.5, 2.0), tol=1e-3)
    a = qk.bridge(
        qk.scores.dense(Z.astype(float)), mu.astype(float), nu.astype(float), penalty=(0.5, 2.0)
    )
    assert a.converged and b.converged and "two" not in b.method, str(b)
    for found, wanted in zip((b.f, b.g), (a.f, a.g), strict=True):
        np.testing.assert_allclose(xp.numpy(found), wanted, rtol=0, atol=2e-3)


def test_bridge_reports_and_stops(xp: Library) -> None:
    """The callback sees every iteration, and a limit is a status."""
    _, device = cpu_and_device(xp, "distance", "float64")
    mu, nu = (xp.asarray(w) for w in laws(13, 18, "float64"))
    seen: list[tuple[int, float]] = []
    b = qk.bridge(device, mu, nu, max_iter=7, callback=lambda n, e: seen.append((n, e)))
    assert (b.status, b.converged, b.n_iter) == ("iteration limit", False, 7)
    few = qk.bridge(device, mu, nu, max_visits=5, on_fail="ignore")
    assert (few.status, few.n_iter, few.n_visits) == ("visit limit", 5, 5)
    assert [n for n, _ in seen] == list(range(1, 8))
    np.testing.assert_array_equal(b.errors, [e for _, e in seen])

    def stop(n: int, error: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qk.bridge(device, mu, nu, callback=stop)


@pytest.mark.parametrize("penalty", [None, (0.5, 2.0), (math.inf, 0.7)])
def test_a_visit_is_one_pass_over_the_entries(xp: Library, penalty: Any) -> None:
    """The masses of rows are foreseen: no pass of its own for the columns but where rows are relaxed."""
    if xp.is_real:
        pytest.skip("waits and launches are counted by the SIMT layer")
    _, device = cpu_and_device(xp, "distance", "float64")
    mu, nu = (xp.asarray(w) for w in laws(13, 18, "float64"))
    seen: list[tuple[int, int]] = []

    def note(n: int, error: float) -> None:
        counts = fake_cuda.module().simt_counts()
        seen.append((counts["waits"], counts["launches"]))

    options: dict[str, Any] = {"tol": 1e-15, "max_iter": 20, "callback": note, "penalty": penalty}
    qk.bridge(device, mu, nu, solver="alternating", **options)
    steps = np.diff(seen, axis=0)
    assert len(steps) > 10 and np.all(steps == steps[0])
    # Waits: g to the device, log-sum-exps and columns back. Launches: strips, columns.
    assert steps[0].tolist() == [3, 2]
    seen.clear()
    qk.bridge(device, mu, nu, solver="relaxed", **options)
    assert np.all(np.diff(seen, axis=0) >= steps[0])


def test_columns_that_underflow_get_their_exact_potential(xp: Library) -> None:
    """Costs far beyond the range of exp: the sweep alone would leave such columns as they were."""
    X, Y = np.array([[0.0], [0.5], [1.0]]), np.array([[0.2], [0.7], [40.0]])
    mu, nu = np.array([0.3, 0.3, 0.4]), np.array([0.5, 0.3, 0.2])
    b = qk.bridge(qk.scores.distance(xp.asarray(X), xp.asarray(Y)), xp.asarray(mu), xp.asarray(nu))
    a = qk.bridge(qk.scores.distance(X, Y), mu, nu, solver="alternating")
    assert a.converged and b.converged, str(b)
    np.testing.assert_allclose(xp.numpy(b.plan()), a.plan(), atol=1e-8)


def test_an_infeasible_bridge_says_so(xp: Library) -> None:
    keep = np.array([[True, True], [False, False]])
    s = qk.scores.dense(xp.asarray(np.zeros((2, 2)))).masked(xp.asarray(keep))
    half = xp.asarray(np.full(2, 0.5))
    b = qk.bridge(s, half, half)
    assert b.status == "infeasible" and not b.converged
    b = qk.bridge(s.T, half, half)
    assert b.status == "infeasible" and not b.converged


# ---- particles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["softmax", "l2", "linear", "exp", "relu", "sigmoid"])
def test_velocities(xp: Library, kind: str, dtype: str) -> None:
    """TPDE-1 on the device: two heads of every kind that the kernels compute."""
    r = rng()
    X = r.normal(size=(14, 3)).astype(dtype)
    Q, K, V = 0.5 * r.normal(size=(4, 3)), 0.5 * r.normal(size=(4, 3)), r.normal(size=(2, 3, 3))
    field = qk.AttentionField(kind, Q=Q, K=K, V=V, heads=2)
    close(xp.numpy(field(xp.asarray(X))), field(X), 16)


@pytest.mark.parametrize("method", ["euler", "heun", "rk4", "dopri5"])
def test_flows_of_fixed_steps(xp: Library, method: str) -> None:
    """TPDE-2: the states of every step, causal attention with layers that change between steps."""
    r = rng()
    X = r.normal(size=(9, 2))
    layers = r.normal(size=(2, 2, 2))
    field = qk.AttentionField(
        "softmax", Q=layers, K=np.eye(2), V=-np.eye(2), mask="causal", times=np.array([0.0, 0.4])
    )
    a = qk.flow(field, X, (0.0, 1.0), method, n_steps=4)
    b = qk.flow(field, xp.asarray(X), (0.0, 1.0), method, n_steps=4)
    np.testing.assert_allclose(b.t, a.t)
    assert (b.status, b.n_steps) == (a.status, a.n_steps)
    assert b.n_evaluations == a.n_evaluations
    close(xp.numpy(b.x), a.x, 16)
    assert "9 particles in 2 dimensions" in str(b) and "on cuda:0" in str(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_flows_that_adapt(xp: Library, dtype: str) -> None:
    """Dormand-Prince with the controller of the CPU: the same steps up to rounding."""
    X = rng().normal(size=(9, 2)).astype(dtype)
    field = qk.AttentionField("l2", Q=np.eye(2), K=np.eye(2), V=-np.eye(2))
    a = qk.flow(field, X, (0.0, 2.0))
    b = qk.flow(field, xp.asarray(X), (0.0, 2.0))
    assert b.status == a.status == "finished"
    assert abs(b.n_steps - a.n_steps) <= 1 and abs(b.n_rejected - a.n_rejected) <= 1
    np.testing.assert_allclose(
        xp.numpy(b.x)[-1], a.x[-1], rtol=0, atol=1e-4 if dtype == "float32" else 1e-6
    )


def test_time_dependent_parameters(xp: Library) -> None:
    X = rng().normal(size=(6, 2))
    field = qk.AttentionField("softmax", Q=lambda t: (1 + t) * np.eye(2), K=np.eye(2), V=np.eye(2))
    a = qk.flow(field, X, (0.0, 0.5), "rk4", n_steps=2)
    b = qk.flow(field, xp.asarray(X), (0.0, 0.5), "rk4", n_steps=2)
    close(xp.numpy(b.x), a.x, 16)


def test_any_function_of_device_arrays(xp: Library) -> None:
    """A field of the caller's own, in the caller's own library."""
    X = rng().normal(size=(6, 2))
    attention = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=-np.eye(2))
    a = qk.flow(attention, X, (0.0, 0.5), "rk4", n_steps=2)
    b = qk.flow(lambda x, t: attention(x, t), xp.asarray(X), (0.0, 0.5), "rk4", n_steps=2)
    close(xp.numpy(b.x), a.x, 16)


def test_a_flow_that_blows_up(xp: Library) -> None:
    """TPDE 4: exponential weights with V = identity escape in finite time; the states stay finite."""
    X = 3 * np.ones((4, 1), np.float32)
    field = qk.AttentionField("exp", Q=np.eye(1), K=np.eye(1), V=np.eye(1))
    for options in ({"method": "rk4", "n_steps": 50}, {"method": "dopri5"}):
        a = qk.flow(field, X, (0.0, 1.0), **options)  # type: ignore[arg-type]
        b = qk.flow(field, xp.asarray(X), (0.0, 1.0), **options)  # type: ignore[arg-type]
        assert a.status == b.status == "blew up"
        assert np.isfinite(xp.numpy(b.x)).all()
