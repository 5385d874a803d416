"""Libraries with their own memory and streams, such as CuPy and PyTorch: results use both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _arrays, _backend
from qkcore._device._libraries import Library
from tests import fake_cuda
from tests.fake_cuda import FakeArray, asarray
from tests.fake_cuda import numpy as to_numpy

pytestmark = pytest.mark.skipif(not fake_cuda.built(), reason="not built: make simt")

STREAM = 9


class Owned(FakeArray):
    """An array from the library's own pool."""


class Pool(Library):
    waits = False

    def __init__(self) -> None:
        super().__init__(fake_cuda)

    def stream(self, device: int) -> int:
        return STREAM

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        return Owned(fake_cuda.module().empty(shape, dtype, device))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    before = _backend._use(fake_cuda.module())
    chosen = Pool()
    monkeypatch.setattr(_arrays, "library_of", lambda array: chosen)
    yield chosen
    _backend._use(before)


X = np.random.default_rng(3).normal(size=(6, 2))
FIELD: dict[str, Any] = {"Q": np.eye(2), "K": np.eye(2), "V": -np.eye(2)}


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": np.arange(1.0, 7)}, {"mask": np.zeros(6)}, {"mask": "causal"}],
)
def test_velocities_and_flows(pool: Pool, options: dict[str, Any]) -> None:
    field = qk.AttentionField("softmax", **FIELD, **options)
    v = field(asarray(X))
    assert isinstance(v, Owned)
    np.testing.assert_allclose(to_numpy(v), field(X), atol=1e-14)
    for t_eval in (None, [0.3]):
        sol = qk.flow(field, asarray(X), (0.0, 1.0), "rk4", n_steps=2, t_eval=t_eval)
        assert isinstance(sol.x, Owned)
        wanted = qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=2, t_eval=t_eval)
        np.testing.assert_allclose(to_numpy(sol.x), wanted.x, atol=1e-13)
    assert fake_cuda.module().simt_counts()["last_stream"] == STREAM


def test_gaussian_flows(pool: Pool) -> None:
    eye = np.eye(2)
    options: dict[str, Any] = {"Q": eye, "K": -eye, "V": eye, "n_steps": 3, "method": "euler"}
    a = qk.gaussian.flow("softmax", None, eye, (0, 1), **options)
    b = qk.gaussian.flow("softmax", None, asarray(eye), (0, 1), **options)
    for name in ("mean", "cov", "mean_rate", "cov_rate"):
        assert isinstance(getattr(b, name), Owned)
        np.testing.assert_allclose(to_numpy(getattr(b, name)), getattr(a, name), atol=1e-14)


def test_scores_and_operators(pool: Pool) -> None:
    s = qk.scores.dot(asarray(X))
    assert isinstance(s.logsumexp(), Owned) and isinstance(s.to_device(), Owned)
    assert isinstance(qk.softmax(s) @ asarray(X), Owned)
    np.testing.assert_allclose(
        to_numpy(qk.softmax(s).entropy()), qk.softmax(qk.scores.dot(X)).entropy(), atol=1e-14
    )
    assert fake_cuda.module().simt_counts()["last_stream"] == STREAM


def test_bridges(pool: Pool) -> None:
    law = np.full(6, 1 / 6)
    a = qk.bridge(qk.scores.distance(X, beta=0.2), law, law)
    b = qk.bridge(qk.scores.distance(asarray(X), beta=0.2), asarray(law), asarray(law))
    np.testing.assert_allclose(to_numpy(b.plan()), a.plan(), atol=1e-8)
    np.testing.assert_allclose([b.cost, b.entropy], [a.cost, a.entropy], atol=1e-7)
    assert fake_cuda.module().simt_counts()["last_stream"] == STREAM
