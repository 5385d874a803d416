"""The array libraries over which the tests of device arrays run.

`simt` is available once it is built. CuPy, PyTorch and JAX are tested too on a machine with a CUDA device,
qkcore_cuda and the library (marker gpu).
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qkcore._device import _backend
from tests import fake_cuda

Array = NDArray[Any]


class Library:
    name = "simt"
    is_real = False

    def asarray(self, host: Any) -> Any:
        return fake_cuda.asarray(np.asarray(host))

    def numpy(self, x: Any) -> Array:
        assert isinstance(x, fake_cuda.FakeArray)
        return fake_cuda.numpy(x)


class Real(Library):
    is_real = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.xp = importlib.import_module(name)

    def asarray(self, host: Any) -> Any:
        host = np.asarray(host)
        if self.name == "torch":
            return self.xp.as_tensor(host, device="cuda")
        return self.xp.asarray(host) if self.name == "cupy" else self.xp.device_put(host)

    def numpy(self, x: Any) -> Array:
        if self.name == "torch":
            return np.asarray(x.cpu())
        return np.asarray(x.get() if self.name == "cupy" else x)


def has_device() -> bool:
    if importlib.util.find_spec("qkcore_cuda") is None:
        return False
    import qkcore as qk

    return bool(qk.config()["cuda"]["available"])


HAS_DEVICE = has_device()
_NAMES = ["simt"]
if HAS_DEVICE:
    _NAMES += [n for n in ("cupy", "torch", "jax") if importlib.util.find_spec(n)]

LIBRARIES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(not fake_cuda.built(), reason="not built: make simt")
        if name == "simt"
        else pytest.mark.gpu,
    )
    for name in _NAMES
]


def library(name: str) -> Library:
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    return Library() if name == "simt" else Real(name)


@pytest.fixture(params=LIBRARIES)
def xp(request: pytest.FixtureRequest) -> Iterator[Library]:
    """An array library; whatever a test leaves behind on the device is found."""
    chosen = library(request.param)
    if chosen.is_real:
        yield chosen
        return
    module = fake_cuda.module()
    before = _backend._use(module)
    module.simt_clear()
    module.simt_devices(2)
    module.simt_seed(7)
    # What earlier tests have left; collecting takes longer than most tests.
    if module.live_allocations():
        gc.collect()
    alive = module.live_allocations()
    yield chosen
    _backend._use(before)
    if module.live_allocations() != alive:
        gc.collect()
    assert module.simt_reports() == ""
    assert module.live_allocations() == alive
