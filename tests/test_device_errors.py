"""Wrong device arrays are refused, and nothing leaks then (on the SIMT layer)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _backend
from qkcore.factors import LowRank, ProductOfFactors, low_rank
from tests import fake_cuda
from tests.fake_cuda import FakeArray, asarray
from tests.fake_cuda import numpy as to_numpy

pytestmark = pytest.mark.skipif(not fake_cuda.built(), reason="not built: make simt")

X = np.random.default_rng(0).normal(size=(7, 3))
HALF = np.full(7, 1 / 7)


@pytest.fixture(autouse=True)
def machine() -> Iterator[Any]:
    """Two pretended devices, the module in place of qkcore_cuda, and a count of what is alive."""
    module = fake_cuda.module()
    before = _backend._use(module)
    module.simt_clear()
    module.simt_devices(2)
    if module.live_allocations():
        gc.collect()
    alive = module.live_allocations()
    yield module
    _backend._use(before)
    module.simt_fail_allocation(-1)
    module.simt_devices(1)
    if module.live_allocations() != alive:
        gc.collect()
    assert module.live_allocations() == alive
    assert module.simt_reports() == ""


# ---- places -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: qk.scores.dot(asarray(X), X), "Y"),
        (lambda: qk.scores.dot(X, asarray(X)), "X"),
        (lambda: qk.scores.distance(asarray(X), W=np.eye(3)), "W"),
        (lambda: qk.scores.dot(asarray(X), W=(asarray(np.eye(3)), np.eye(3))), r"W\[1\]"),
        (lambda: qk.softmax(qk.scores.dot(asarray(X))) @ X, "right operand of @"),
        (lambda: qk.softmax(qk.scores.dot(asarray(X))).apply_left(HALF), "U"),
        (lambda: qk.softmax(qk.scores.dot(asarray(X))).apply(asarray(X), out=X), "out"),
        (lambda: qk.scores.dot(asarray(X)).shift(rows=HALF), "rows"),
        (lambda: qk.scores.dot(asarray(X)).masked(np.ones((7, 7), bool)), "M"),
        (lambda: qk.bridge(qk.scores.dot(asarray(X)), HALF, asarray(HALF)), "mu"),
    ],
)
def test_cpu_arrays_beside_device_arrays(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(
        TypeError, match=rf"{name}: wanted an array on cuda:0 .*NumPy array on the CPU; move"
    ):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: qk.softmax(qk.scores.dot(X)) @ asarray(X),
        lambda: qk.bridge(qk.scores.dot(X), asarray(HALF), HALF),
        lambda: qk.AttentionField("softmax", Q=asarray(np.eye(3)), K=np.eye(3), V=np.eye(3)),
        lambda: qk.scores.dot(X).shift(rows=asarray(HALF)),
    ],
)
def test_device_arrays_beside_cpu_arrays(call: Callable[[], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"wanted an array on the CPU like the others, got one on cuda:0"
    ):
        call()


def test_two_devices() -> None:
    here, there = asarray(X), asarray(X, device=1)
    with pytest.raises(
        ValueError, match=r"Y: wanted an array on cuda:0 like the others, got one on cuda:1"
    ):
        qk.scores.dot(here, there)
    with pytest.raises(
        ValueError, match=r"right operand of @: wanted an array on cuda:0 .* cuda:1"
    ):
        qk.softmax(qk.scores.dot(here)) @ there
    with pytest.raises(ValueError, match=r"s \+ t: wanted scores on one device"):
        qk.scores.dot(here) + qk.scores.dot(there)
    with pytest.raises(TypeError, match=r"scores of CPU arrays"):
        qk.scores.dot(here) + qk.scores.dot(X)


def test_the_device_of_the_arrays_is_used_and_the_current_one_restored(machine: Any) -> None:
    there = asarray(X, device=1)
    product = qk.softmax(qk.scores.dot(there)) @ there
    counts = machine.simt_counts()
    assert (counts["last_device"], counts["current"]) == (1, 0)
    assert product.__dlpack_device__() == (2, 1)
    np.testing.assert_allclose(to_numpy(product), qk.softmax(qk.scores.dot(X)) @ X, atol=1e-13)


def test_an_array_of_another_kind_of_device() -> None:
    class Elsewhere(FakeArray):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

    with pytest.raises(
        TypeError, match=r"on the CPU or on a CUDA device, got a Elsewhere on DLPack .* 10"
    ):
        qk.scores.dot(Elsewhere(asarray(X).memory))


def test_the_module_itself_refuses_cpu_arrays(machine: Any) -> None:
    with pytest.raises(
        TypeError, match=r"x: wanted an array on a CUDA device, got a ndarray on the CPU; .*cupy"
    ):
        machine.row_dots(X, X)
    with pytest.raises(TypeError, match=r"array: wanted an array on a CUDA device .*, got list"):
        machine.asarray([1.0])


def test_a_library_without_a_namespace() -> None:
    class Nameless:
        def __init__(self) -> None:
            self.array = asarray(X)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(TypeError, match=r"wanted arrays of CuPy, PyTorch, JAX or a library with"):
        qk.scores.dot(Nameless())


# ---- no device --------------------------------------------------------------------------------------


def test_without_a_device(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    array = asarray(X)
    machine.simt_devices(0)
    cuda = qk.config()["cuda"]
    assert not cuda["available"] and "no CUDA-capable device" in cuda["reason"]
    qk.show_config()
    assert "cuda            unavailable: no CUDA-capable device" in capsys.readouterr().out
    with pytest.raises(
        RuntimeError, match=r"cuda:0: wanted CUDA, which is unavailable: no CUDA-capable"
    ):
        qk.scores.dot(array)
    machine.simt_devices(2)


def test_with_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert [d["name"] for d in qk.config()["cuda"]["devices"]] == ["SIMT layer"] * 2
    qk.show_config()
    assert "SIMT layer, SIMT layer" in capsys.readouterr().out


def test_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    array = asarray(X)
    monkeypatch.setattr(_backend, "_loaded", None)
    monkeypatch.setattr(_backend, "_failure", "the package qkcore-cuda is not installed")
    with pytest.raises(
        RuntimeError, match=r"unavailable: the package qkcore-cuda is not installed"
    ):
        qk.scores.dot(array)


# ---- streams ----------------------------------------------------------------------------------------


class CuPyStream:
    ptr = 71


class TorchStream:
    cuda_stream = 72


class ProtocolStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 73


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(5, 5), (CuPyStream(), 71), (TorchStream(), 72), (ProtocolStream(), 73), (0, 0)],
)
def test_the_callers_stream(machine: Any, stream: Any, handle: int) -> None:
    """Launched there, and DLPack is told so: the producer makes its data ready on it."""
    A, V = qk.softmax(qk.scores.dot(asarray(X))), asarray(X)
    out = asarray(np.empty((7, 3)))
    fake_cuda.STREAMS.clear()
    assert A.apply(V, out=out, stream=stream) is out
    assert machine.simt_counts()["last_stream"] == handle
    assert fake_cuda.STREAMS[-1] == (handle or 1)  # DLPack does not allow the stream 0
    np.testing.assert_allclose(to_numpy(out), qk.softmax(qk.scores.dot(X)) @ X, atol=1e-13)


def test_results_are_ordered_before_their_use(machine: Any) -> None:
    """Memory written on one stream and taken over on another: the second waits for the first."""
    array = machine.empty((3,), "float32", 0, 5)
    before = machine.simt_counts()["orders"]
    array.__dlpack__(stream=5)
    array.__dlpack__(stream=-1)
    assert machine.simt_counts()["orders"] == before
    array.__dlpack__(stream=6, max_version=(1, 0))
    array.__dlpack__()
    assert machine.simt_counts()["orders"] == before + 2


@pytest.mark.parametrize("stream", ["0", 1.5, True, object()])
def test_wrong_streams(stream: Any) -> None:
    A = qk.softmax(qk.scores.dot(asarray(X)))
    with pytest.raises(
        TypeError, match=r"stream: wanted None, an integer handle, or an object with"
    ):
        A.apply(asarray(X), stream=stream)
    with pytest.raises(ValueError, match=r"stream: wanted a handle of 0 or more, got -3"):
        A.apply(asarray(X), stream=-3)


# ---- shapes, dtypes, strides, outputs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: qk.scores.dense(asarray(np.zeros(3))),
            ValueError,
            r"Z: wanted shape \(\.\.\., N, M\)",
        ),
        (lambda: qk.scores.dot(asarray(np.zeros(3))), ValueError, r"X: wanted points of shape"),
        (
            lambda: qk.scores.dot(asarray(np.zeros((0, 3)))),
            ValueError,
            r"X: wanted no axis of length 0",
        ),
        (
            lambda: qk.scores.dot(asarray(X), asarray(X[:, :2].copy())),
            ValueError,
            r"Y: wanted points of dim",
        ),
        (
            lambda: qk.scores.dot(asarray(X), asarray(X.astype("f"))),
            TypeError,
            r"Y: wanted float64 like X",
        ),
        (
            lambda: qk.scores.dot(asarray(X.astype(bool))),
            TypeError,
            r"X: wanted float32 or float64",
        ),
        (lambda: qk.scores.dot(asarray(X.astype(int))), TypeError, r"dtype: wanted float32"),
        (
            lambda: qk.scores.dot(asarray(X), beta=0),
            ValueError,
            r"beta: wanted a finite number > 0",
        ),
        (
            lambda: qk.scores.dot(asarray(X * np.nan)),
            ValueError,
            r"X: wanted finite numbers, got NaN",
        ),
        (
            lambda: qk.scores.dense(asarray(X + np.inf)),
            ValueError,
            r"Z: wanted numbers below \+inf",
        ),
        (lambda: qk.scores.dot(asarray(1e200 * X)), OverflowError, r"scores can reach"),
        (
            lambda: qk.softmax(dot()) @ asarray(X[:5]),
            ValueError,
            r"right operand of @: wanted length 7 along the operator's",
        ),
        (
            lambda: qk.softmax(dot()) @ asarray(X.astype("f")),
            TypeError,
            r"right operand of @: wanted float64 like the scores",
        ),
        (
            lambda: qk.softmax(dot()) @ asarray(X * np.inf),
            ValueError,
            r"right operand of @: wanted finite numbers",
        ),
        (
            lambda: dot().masked(asarray(np.ones((7, 6), bool))),
            ValueError,
            r"M: wanted shape \(\.\.\., 7, 7\)",
        ),
        (lambda: dot().masked(asarray(np.ones((7, 7)))), TypeError, r"M: wanted bool, got float64"),
        (
            lambda: dot().shift(rows=asarray(HALF[:3])),
            ValueError,
            r"rows: wanted shape \(\.\.\., 7\)",
        ),
        (
            lambda: dot().shift(rows=asarray(np.ones(14)).every(2)),
            ValueError,
            r"rows: .*contiguous.*strides",
        ),
        (lambda: bridge(asarray(-HALF), asarray(HALF)), ValueError, r"mu: wanted weights >= 0"),
        (lambda: bridge(asarray(HALF), asarray(0 * HALF)), ValueError, r"nu: wanted some mass"),
        (
            lambda: bridge(asarray(HALF), asarray(2 * HALF)),
            ValueError,
            r"nu: wanted the total mass of mu",
        ),
        (lambda: bridge(asarray(HALF[:3]), asarray(HALF)), ValueError, r"mu: wanted shape"),
        (
            lambda: bridge(asarray(np.ones(14)).every(2), asarray(HALF)),
            ValueError,
            r"mu: .*contiguous",
        ),
        (
            lambda: bridge(asarray(HALF), asarray(HALF), solver="nearest"),
            ValueError,
            r"solver: wanted one of 'alternating'",
        ),
        (
            lambda: bridge(asarray(HALF), asarray(HALF), init=3),
            TypeError,
            r"init: wanted an earlier result",
        ),
        (
            lambda: qk.total_variation(qk.softmax(dot()), qk.softmax(dot())),
            TypeError,
            r"scores: wanted scores of CPU arrays here, got Scores",
        ),
        (
            lambda: dot().ragged(np.array([0, 3, 7])),
            TypeError,
            r"ragged: wanted scores of CPU arrays, got scores on cuda:0",
        ),
        (
            lambda: dot().columns(np.arange(3)),
            NotImplementedError,
            r"columns: wanted scores of CPU",
        ),
        (
            lambda: dot().logsumexp(n_threads=2),
            TypeError,
            r"n_threads: wanted None for arrays on cuda:0",
        ),
        (lambda: flow(asarray(X.T).T), ValueError, r"X0: wanted a contiguous array"),
        (
            lambda: flow(asarray(X[:, :2].copy())),
            ValueError,
            r"X0: wanted particles of shape \(N, 3\)",
        ),
        (
            lambda: flow(asarray(X), t_eval=np.array([1.5])),
            ValueError,
            r"t_eval: wanted times within t_span",
        ),
        (
            lambda: flow(asarray(X), weights=HALF[:3]),
            ValueError,
            r"weights: wanted 7 entries, one per particle, got 3",
        ),
        (
            lambda: flow(asarray(X), kind="sinkhorn", mask="causal"),
            ValueError,
            r"mask: wanted None for sinkhorn attention on a device",
        ),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def dot() -> Any:
    return qk.scores.dot(asarray(X))


def bridge(mu: Any, nu: Any, **options: Any) -> Any:
    return qk.bridge(dot(), mu, nu, **options)


def flow(x: Any, *, t_eval: Any = None, kind: str = "softmax", **options: Any) -> Any:
    eye = np.eye(3)
    field = qk.AttentionField(kind, Q=eye, K=eye, V=eye, **options)
    return qk.flow(field, x, (0.0, 1.0), "euler", n_steps=1, t_eval=t_eval)


def test_outputs() -> None:
    A, V = qk.softmax(dot()), asarray(X)
    wanted = qk.softmax(qk.scores.dot(X)) @ X
    out = asarray(np.full((7, 3), np.nan))
    assert A.apply(V, out=out) is out
    np.testing.assert_allclose(to_numpy(out), wanted, atol=1e-13)
    vector = asarray(np.full(7, np.nan))
    assert A.apply(asarray(X[:, 0].copy()), out=vector) is vector
    np.testing.assert_allclose(to_numpy(vector), wanted[:, 0], atol=1e-13)
    lse = asarray(np.full(7, np.nan))
    assert dot().logsumexp(out=lse) is lse
    np.testing.assert_allclose(to_numpy(lse), qk.scores.dot(X).logsumexp(), atol=1e-13)

    with pytest.raises(
        ValueError, match=r"out: wanted an array that may be written to, got a read-only"
    ):
        A.apply(V, out=out.readonly())
    with pytest.raises(ValueError, match=r"out: wanted shape \(7, 3\), got \(7, 2\)"):
        A.apply(V, out=asarray(np.empty((7, 2))))
    with pytest.raises(TypeError, match=r"out: wanted float64, got float32"):
        A.apply(V, out=asarray(np.empty((7, 3), "f")))
    with pytest.raises(ValueError, match=r"out: wanted a contiguous array, got strides"):
        A.apply(V, out=asarray(np.empty((3, 7))).T)
    np.testing.assert_allclose(to_numpy(out), wanted, atol=1e-13)


def test_inputs_may_be_read_only_or_of_the_first_dlpack() -> None:
    wanted = qk.softmax(qk.scores.dot(X)) @ X
    for x in (asarray(X).readonly(), FakeArray(asarray(X).memory, old=True)):
        np.testing.assert_allclose(to_numpy(qk.softmax(qk.scores.dot(x)) @ x), wanted, atol=1e-13)


def test_an_array_that_cannot_be_shared() -> None:
    class Learning(FakeArray):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("tensors that require gradients cannot be exported")

    with pytest.raises(
        TypeError, match=r"X: wanted an array that DLPack can share, got a Learning"
    ) as seen:
        qk.scores.dot(Learning(asarray(X).memory))
    assert "require gradients" in str(seen.value.__cause__)


def test_jax_arrays_are_never_written_to() -> None:
    """JAX exports memory without the read-only mark, and relies on it being left alone."""
    immutable = type("Array", (FakeArray,), {"__module__": "jaxlib.fake"})
    out = immutable(asarray(np.empty((7, 3))).memory)
    with pytest.raises(ValueError, match=r"out: wanted an array that may be written to"):
        fake_cuda.module().combine(asarray(X), (), (), 0.0, out=out)


# ---- memory -----------------------------------------------------------------------------------------


def every_call() -> list[Callable[[], Any]]:
    x, half = asarray(X), asarray(HALF)
    s = qk.scores.dot(x)
    eye = np.eye(3)
    field = qk.AttentionField("softmax", Q=eye, K=eye, V=eye)
    many, law = asarray(np.stack([X, 2 * X])), asarray(eye)
    bistochastic = qk.AttentionField("sinkhorn", Q=eye, K=eye, V=eye, sinkhorn_tol=1e-2)
    unit = asarray(X / np.linalg.norm(X, axis=1, keepdims=True))
    weighted = {"weights": np.arange(1.0, 8), "mask": HALF}
    sphere = qk.AttentionField("softmax", Q=eye, K=eye, V=eye, sphere=True, **weighted)
    centred = qk.AttentionField("linear", Q=eye, K=eye, V=eye, centred=True, **weighted)
    return [
        lambda: qk.scores.forward(x, W=asarray(eye)),
        lambda: qk.softmax(s) @ x,
        lambda: qk.softmax(s).apply_left(half),
        lambda: qk.softmax(s, 0).to_device(),
        lambda: s.marginals(),
        lambda: qk.bridge(qk.scores.distance(x), half, half, tol=1e-3),
        lambda: field(x),
        lambda: qk.flow(field, x, (0.0, 1.0), "rk4", n_steps=2),
        lambda: qk.flow(field, x, (0.0, 1.0)),
        lambda: qk.flow(sphere, unit, (0.0, 1.0), "heun", n_steps=2, t_eval=[0.2]),
        lambda: qk.bridge(qk.scores.distance(many, many), half, half, tol=1e-2),
        lambda: bistochastic(x),
        lambda: qk.softmax(s).entropy(),
        lambda: qk.bridge(qk.scores.distance(x), half, half, tol=1e-3).cost,
        lambda: ProductOfFactors(LowRank(x, asarray(X.T)), LowRank(x, asarray(X.T))) @ x,
        lambda: qk.bridge(LowRank(asarray(X**2), asarray((X.T) ** 2)), half, half, tol=1e-3),
        lambda: low_rank(qk.softmax(s), 2, method="randomised", max_iter=2),
        lambda: qk.isb.barycentric(x, 1.0, tol=1e-3).score(),
        lambda: qk.magnetic.operator(x, beta=1.0, W=asarray(eye)).stationary(),
        lambda: qk.gaussian.flow(
            "l2", None, law, (0, 1), Q=eye, K=eye, V=eye, n_steps=2, method="euler"
        ),
        lambda: qk.flow(centred, x, (0.0, 1.0), "euler", n_steps=2, blow_up=4.0, clusters=(1, 0.1)),
    ]


def test_too_little_memory_wherever_it_happens(machine: Any) -> None:
    """Every allocation of every call fails once: a MemoryError, and all that was allocated is given back."""
    # All steps of a loop make the same allocations, so after the first ones every seventh is tested.
    tried = [*range(40), *range(40, 2000, 7)]
    for call in every_call():
        gc.collect()
        for n in tried:
            alive = machine.live_allocations()
            machine.simt_fail_allocation(n)
            message = ""
            try:
                call()
            except MemoryError as error:
                message = str(error)
            machine.simt_fail_allocation(-1)
            # Either an object in a reference cycle, or a leak.
            if machine.live_allocations() != alive:
                gc.collect()
            assert machine.live_allocations() == alive
            if not message:  # the call makes no more than n allocations
                break
            assert "no room on the device" in message
        assert n > 0


def test_results_live_as_long_as_they_are_wanted(machine: Any) -> None:
    """Shared memory goes when the last owner goes: ours, the capsule's, the importer's."""
    gc.collect()
    alive = machine.live_allocations()
    array = machine.empty((4,), "float32", 0)
    capsule = array.__dlpack__(max_version=(1, 0))
    importer = machine.asarray(FakeArray(array))
    assert machine.live_allocations() == alive + 1
    del array
    gc.collect()
    del capsule
    gc.collect()
    assert machine.live_allocations() == alive + 1
    assert importer.shape == (4,)
    del importer
    gc.collect()
    assert machine.live_allocations() == alive


def test_views_stay_inside(machine: Any) -> None:
    """Parts and other shapes of an array: what is outside of it is refused."""
    array = machine.asarray(asarray(X))
    np.testing.assert_array_equal(to_numpy(FakeArray(array.cut(-2, 2, 5))), X[2:5])
    np.testing.assert_array_equal(to_numpy(FakeArray(array.reshape((3, 7)))), X.reshape(3, 7))
    for axis, first, last in ((-2, 0, 8), (-1, 2, 1), (-2, -1, 3), (0, 0, 1), (-3, 0, 1)):
        with pytest.raises(IndexError, match=r"outside of the axis|axis: wanted -1"):
            array.cut(axis, first, last)
    with pytest.raises(ValueError, match=r"shape: wanted as many entries as .* \(7, 3\) has, got"):
        array.reshape((7, 2))
    with pytest.raises(ValueError, match=r"shape: wanted as many entries as a contiguous array"):
        array.T.reshape((21,))


def test_sweeps_check_their_arguments(machine: Any) -> None:
    room = asarray(np.zeros(2))
    vectors = [asarray(HALF) for _ in range(6)]
    with pytest.raises(ValueError, match=r"residual: wanted shape \(2,\), got \(1, 2"):
        machine.sinkhorn_sweeps(dot()._described, *vectors, asarray(np.zeros((1, 2))), 1, False)
    with pytest.raises(ValueError, match=r"n: wanted at least 1, got 0"):
        machine.sinkhorn_sweeps(dot()._described, *vectors, room, 0, False)
    many = qk.scores.dot(asarray(np.stack([X, X])))._described
    with pytest.raises(ValueError, match=r"kernel: wanted one problem, got batch axes"):
        machine.sinkhorn_sweeps(many, *vectors, room, 1, False)


def test_sweeps_look_at_their_residual_only_if_asked(machine: Any) -> None:
    g, lse, f, columns, room = (asarray(np.zeros(n)) for n in (7, 7, 7, 7, 2))
    law = asarray(np.full(7, 1 / 7))
    arrays = (dot()._described, g, law, law, lse, f, columns)
    seen = machine.sinkhorn_sweeps(*arrays, room, 2, False)
    plan = np.exp(X @ X.T)
    v = np.ones(7)
    for _ in range(2):
        reached = v * ((1 / 7 / (plan @ v)) @ plan)
        v *= 1 / 7 / reached
    assert seen == (pytest.approx(np.abs(reached - 1 / 7).sum(), rel=1e-10), 0)
    np.testing.assert_allclose(to_numpy(g), np.log(v), atol=1e-12)
    assert machine.sinkhorn_sweeps(*arrays, None, 1, True) is None
